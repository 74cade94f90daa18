"""`carrier train` and `carrier demo`: one head of one's own, and the main job."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from bridge.commands.options import Device, Json, OutFolder, PresetName, RunsFolder
from bridge.commands.terminal import check_length, finish, lengths_from, needs_training_extra, progress, say, show
from bridge.designs import ATTENTION, start_means
from bridge.errors import BridgeError
from bridge.head_views import carrier_notes
from bridge.output import output_folder
from empirics.spec import EVALUATION_LENGTHS, RunSpec, run_spec

_EVALUATION_LENGTHS = ",".join(map(str, EVALUATION_LENGTHS))
_PENALTY_WEIGHT = 0.1
_KINDS = ("rope", "periodic", "ape", "randomized", "sinusoidal", "alibi", "t5", "none")
# The encodings that each of these options belongs to.
_BELONGS = {
    "base": ("rope", "sinusoidal"),
    "moduli": ("periodic",),
    "slope": ("alibi",),
    "buckets": ("t5",),
    "decay": ("ape",),
}


def train(
    encoding: Annotated[
        str, typer.Option(help="rope, periodic, ape (learned positions), randomized, sinusoidal, alibi, t5 or none.")
    ] = "rope",
    offset: Annotated[int, typer.Option(help="Target offset K in tokens back.")] = 2,
    second_offset: Annotated[
        int | None, typer.Option(help="Retrieval by mode: the last token asks for K or for this offset.")
    ] = None,
    width: Annotated[int, typer.Option(help="Width d of the layer.")] = 64,
    heads: Annotated[int, typer.Option(help="Heads that share the width.")] = 1,
    attention: Annotated[str, typer.Option(help="softmax or linear.")] = "softmax",
    temperature: Annotated[float, typer.Option(help="Factor on the logits.")] = 1.0,
    base: Annotated[float | None, typer.Option(help="Base of rope or sinusoidal positions; else 10000.")] = None,
    moduli: Annotated[
        str | None, typer.Option(help="Periods in tokens of periodic rope, dealt over its pairs; else 2.")
    ] = None,
    slope: Annotated[float | None, typer.Option(help="Slope of alibi in nats a token; else 0.5.")] = None,
    buckets: Annotated[int | None, typer.Option(help="Distances that t5 tells apart; else 32.")] = None,
    decay: Annotated[float | None, typer.Option(help="Weight decay on learned positions (coupled L2); else 0.")] = None,
    start_length: Annotated[
        int | None, typer.Option(help="Start from the best carrier for contexts to so many tokens (attention .9).")
    ] = None,
    margin_reach: Annotated[
        int | None, typer.Option(help="Add to the loss what the means alone lose in a context of so many tokens.")
    ] = None,
    margin_weight: Annotated[float | None, typer.Option(help="Weight of that penalty; else 0.1.")] = None,
    vocabulary: Annotated[int, typer.Option(help="Number of tokens m.")] = 20,
    train_lengths: Annotated[str, typer.Option(help="Shortest and longest training length.")] = "8,16",
    evaluation_lengths: Annotated[str, typer.Option(help="Lengths observed after training.")] = _EVALUATION_LENGTHS,
    steps: Annotated[int, typer.Option(help="Optimizer steps.")] = 4000,
    batch: Annotated[int, typer.Option(help="Sequences a step.")] = 256,
    learning_rate: Annotated[float, typer.Option(help="Adam's step size.")] = 1e-3,
    seed: Annotated[int, typer.Option(help="Seed of the one generator of the run.")] = 0,
    runs: RunsFolder = Path("runs"),
    device: Device = "cpu",
    as_json: Json = False,
) -> None:
    """Train one head at settings of your own; a run that is there already is shown, not trained again."""
    trained = lengths_from("--train-lengths", train_lengths)
    observed = lengths_from("--evaluation-lengths", evaluation_lengths)
    periods = None if moduli is None else _moduli(moduli)
    settings = {"base": base, "moduli": periods, "slope": slope, "buckets": buckets, "decay": decay}
    spec = run_spec(
        encoding=_encoding(encoding, settings, max(*trained, *observed) + 1),
        offset=abs(offset),
        second_offset=None if second_offset is None else abs(second_offset),
        width=width,
        heads=heads,
        attention=attention,
        temperature=temperature,
        vocabulary=vocabulary,
        train_lengths=trained if len(trained) > 1 else trained * 2,
        evaluation_lengths=observed,
        steps=steps,
        batch=batch,
        learning_rate=learning_rate,
        seed=seed,
        penalty=_penalty(margin_reach, margin_weight),
    )
    if start_length is not None:
        start = start_means(spec, check_length("--start-length", start_length), ATTENTION)
        spec = run_spec(**dict(spec) | {"start": start})
    with needs_training_extra():
        from bridge.run_views import run_document, run_table
        from empirics.store import Store
        from empirics.sweep import missing, sweep

    store = Store.open(runs)
    with progress(sum(one.steps for one in missing([spec], store)), "training") as advance:
        sweep([spec], store, device=device, progress=advance)
    run, path = store.load(spec), store.path(spec)
    show(as_json, lambda: run_document(run, path), (run_table(run),), (f"run: {path}",))


def demo(
    preset: PresetName = "paper",
    runs: RunsFolder = Path("runs"),
    out: OutFolder = Path("demo"),
    sequences: Annotated[int, typer.Option(min=2, help="Fresh sequences a length.")] = 40_000,
) -> None:
    """The main job: train a rotary head, predict its dilution from its weights, observe it, compare."""
    with needs_training_extra():
        from bridge import paper
        from bridge.account import account
        from bridge.figures.runs import account_figure
        from bridge.figures.save import save_results
        from bridge.paper.measures import holds_in_range_only
        from bridge.paper.target import Preset, learned, preset_of, shrink
        from bridge.reproduce import reproduce as reproduce_targets
        from bridge.run_views import account_table, accuracy_table
        from empirics.store import Store
        from empirics.sweep import missing, sweep

    size, target = preset_of(preset), paper.target("table-7")
    specs = [spec for spec in (*target.specs, *learned(2, 1)) if isinstance(spec, RunSpec)]
    rotary_spec, learned_spec = shrink(tuple(specs), size)
    folder, store = output_folder(out), Store.open(runs)
    if todo := missing([rotary_spec, learned_spec], store):
        say(f"training {len(todo)} heads: K=2, seed 0, rotary and learned positions; seconds")
    with progress(sum(spec.steps for spec in todo), "training") as advance:
        sweep(todo, store, progress=advance)
    (printed,) = reproduce_targets((target,), size, store, folder)
    show(False, dict, printed.tables)
    say(f"observing the rotary head on {sequences} fresh sequences a length; about a minute")
    told, pinned = account(store.load(rotary_spec), sequences=sequences), store.load(learned_spec)
    shown, accuracies = account_table(told), accuracy_table(told.run, pinned)
    files = (
        *printed.files,
        *save_results(folder, "dilution", shown, account_figure(told, pinned)),
        *save_results(folder, "accuracy", accuracies),
    )
    show(False, dict, (shown,), carrier_notes(told.prediction))
    show(False, dict, (accuracies,), tuple(f"written: {file}" for file in files))
    finish(size is Preset.SMOKE or (printed.as_recorded and told.agrees and holds_in_range_only(pinned)))


def _penalty(reach: int | None, weight: float | None) -> dict[str, float] | None:
    """Fields of a penalty on the margin."""
    if reach is None and weight is not None:
        raise BridgeError("--margin-weight is that of the penalty of --margin-reach: give both, or neither")
    return None if reach is None else {"weight": _PENALTY_WEIGHT if weight is None else weight, "reach": reach}


def _encoding(kind: str, settings: Mapping[str, float | tuple[int, ...] | None], rows: int) -> dict[str, Any]:
    """Fields of an encoding; a setting that it does not have is refused."""
    if kind not in _KINDS:
        raise BridgeError(f"--encoding {kind} is unknown: give one of {', '.join(_KINDS)}")
    given = {name: value for name, value in settings.items() if value is not None}
    for name, value in given.items():
        if kind not in _BELONGS[name]:
            raise BridgeError(
                f"--{name} {_text(value)} was given with {kind} positions, which have none: drop one of the two "
                f"(it belongs to {' and '.join(_BELONGS[name])})"
            )
    return {"kind": kind, **given} | ({"rows": rows} if kind in ("ape", "randomized") else {})


def _moduli(text: str) -> tuple[int, ...]:
    """Periods in tokens, as often as they are given."""
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise BridgeError(f"--moduli needs whole numbers with commas, such as 2,3, got {text[:60]!r}") from None


def _text(value: float | tuple[int, ...]) -> str:
    """A setting as it was given."""
    return ",".join(map(str, value)) if isinstance(value, tuple) else f"{value:g}"
