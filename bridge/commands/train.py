"""`carrier train`, `carrier reproduce`, `carrier demo`: what trains."""

from __future__ import annotations

from pathlib import Path
from time import perf_counter
from typing import Annotated

import typer

from bridge.commands.options import Json, OutFolder, PresetName, RunsFolder, Workers
from bridge.commands.terminal import finish, lengths_from, needs_training_extra, progress, say, show
from bridge.errors import BridgeError
from bridge.output import output_folder
from bridge.views import carrier_notes
from empirics.spec import EVALUATION_LENGTHS, run_spec

_EVALUATION_LENGTHS = ",".join(map(str, EVALUATION_LENGTHS))


def train(
    encoding: Annotated[str, typer.Option(help="rope or ape (learned positions).")] = "rope",
    offset: Annotated[int, typer.Option(help="Target offset K in tokens back.")] = 2,
    width: Annotated[int, typer.Option(help="Width d of the head.")] = 64,
    base: Annotated[float | None, typer.Option(help="Rotary base; 10000 if not given.")] = None,
    vocabulary: Annotated[int, typer.Option(help="Number of tokens m.")] = 20,
    train_lengths: Annotated[str, typer.Option(help="Shortest and longest training length.")] = "8,16",
    evaluation_lengths: Annotated[str, typer.Option(help="Lengths observed after training.")] = _EVALUATION_LENGTHS,
    steps: Annotated[int, typer.Option(help="Optimizer steps.")] = 4000,
    batch: Annotated[int, typer.Option(help="Sequences a step.")] = 256,
    learning_rate: Annotated[float, typer.Option(help="Adam's step size.")] = 1e-3,
    seed: Annotated[int, typer.Option(help="Seed of the one generator of the run.")] = 0,
    runs: RunsFolder = Path("runs"),
    as_json: Json = False,
) -> None:
    """Train one head at settings of your own; a run that is there already is shown, not trained again."""
    if encoding == "ape" and base is not None:
        raise BridgeError(f"--base {base:g} was given with learned positions, which have no rotary base: drop one")
    trained = lengths_from("--train-lengths", train_lengths)
    observed = lengths_from("--evaluation-lengths", evaluation_lengths)
    positions: dict[str, float | int] = {} if base is None else {"base": base}
    if encoding == "ape":
        positions["rows"] = max(*trained, *observed) + 1
    spec = run_spec(
        encoding={"kind": encoding, **positions},
        offset=offset,
        width=width,
        vocabulary=vocabulary,
        train_lengths=trained if len(trained) > 1 else trained * 2,
        evaluation_lengths=observed,
        steps=steps,
        batch=batch,
        learning_rate=learning_rate,
        seed=seed,
    )
    with needs_training_extra():
        from bridge.run_views import evaluation_table, run_document
        from empirics.store import Store
        from empirics.sweep import missing, sweep

    store = Store.open(runs)
    with progress(sum(one.steps for one in missing([spec], store)), "training") as advance:
        sweep([spec], store, 1, advance)
    run, path = store.load(spec), store.path(spec)
    shown = evaluation_table(f"{spec.id}: directly after training", run.evaluation)
    show(as_json, lambda: run_document(run, path), (shown,), (f"run: {path}",))


def reproduce(
    targets: Annotated[list[str], typer.Argument(help="table-1, table-2, table-7, figure-1, figure-3 or all.")],
    preset: PresetName = "paper",
    runs: RunsFolder = Path("runs"),
    out: OutFolder = Path("out"),
    workers: Workers = 2,
    as_json: Json = False,
) -> None:
    """Train what tables and figures of the paper need and put its numbers beside ours."""
    with needs_training_extra():
        from bridge import paper
        from bridge.paper.target import grid, preset_of
        from bridge.reproduce import reproduce as reproduce_targets
        from bridge.reproduce import reproduce_document, steps_to_train
        from empirics.store import Store

    started, size = perf_counter(), preset_of(preset)
    chosen = paper.TARGETS if "all" in targets else tuple(paper.target(name) for name in dict.fromkeys(targets))
    folder, store = output_folder(out), Store.open(runs)
    with progress(steps_to_train(chosen, size, store), "training") as advance:
        results = reproduce_targets(chosen, size, store, folder, workers, advance)
    show(
        as_json,
        lambda: reproduce_document(results, store, perf_counter() - started),
        tuple(grid(one.target, one.cells) for one in results),
        tuple(f"written: {file}" for one in results for file in one.files),
    )
    finish(all(one.as_recorded for one in results))


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
        from bridge.paper.target import Preset, grid, learned, preset_of, shrink
        from bridge.reproduce import reproduce as reproduce_targets
        from bridge.run_views import account_table, accuracy_table
        from empirics.store import Store
        from empirics.sweep import missing, sweep

    size, target = preset_of(preset), paper.target("table-7")
    rotary_spec, learned_spec = specs = (*target.specs_at(size), *shrink(learned(2, 1), size))
    folder, store = output_folder(out), Store.open(runs)
    if todo := missing(specs, store):
        say(f"training {len(todo)} heads: K=2, seed 0, rotary and learned positions; about a minute")
    with progress(sum(spec.steps for spec in todo), "training") as advance:
        sweep(specs, store, 2, advance)
    (printed,) = reproduce_targets((target,), size, store, folder)
    show(False, dict, (grid(target, printed.cells),))
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
