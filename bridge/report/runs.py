"""What runs on disk put into a report: targets of the paper whose runs are there, their figures, and every run.

Nothing is trained, and a damaged run stops the report.

Source: `bridge.reproduce`, `empirics.store`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from bridge.errors import BridgeError
from bridge.on_disk import told
from bridge.paper import TARGETS
from bridge.paper.target import Preset, Target
from bridge.prediction import predict
from bridge.report.contents import Absent, Contents, Numbers, Picture
from bridge.report.explore import NamedCarrier, named_carrier
from bridge.report.heads import HeadMap, MappedHead, Observed
from bridge.reproduce import Reproduced, measure
from bridge.results import summary_line
from bridge.sources.run import head_of_run
from bridge.sources.transformer import head_of_transformer
from bridge.tables import Table, number
from empirics.spec import Rotary, RunSpec
from empirics.store import Store, load_run
from empirics.sweep import missing
from empirics.train import AnyRun, Progress, Run, SequenceRun, TransformerRun

_SAMPLED_ERROR = 1e-5
"""Quadrature error of the exact law where the head is a sample anyway."""


def report_of_runs(root: Path, preset: Preset | None = None, progress: Progress | None = None) -> Contents:
    """The report on a folder of runs: by default at the preset at which more of the paper's targets are there.

    Raises BridgeError where it holds no runs, EmpiricsError for one that is damaged or that a newer version wrote.
    """
    store = Store(root)
    if not root.is_dir() or not store.paths():
        raise BridgeError(
            f"{root} holds no runs and no checkpoint: `carrier reproduce all --runs {root}` trains the paper's runs, "
            f"`carrier train --runs {root}` one of your own"
        )
    runs = tuple(load_run(path) for path in store.paths())
    found = {one: _whole(one, store) for one in ((preset,) if preset else (Preset.PAPER, Preset.SMOKE))}
    size = max(found, key=lambda one: len(found[one]))
    whole = found[size]
    results = measure(whole, size, store, progress)
    absent = tuple(
        Absent(one.id, one.title, len(missing(one.specs_at(size), store)), len(one.specs_at(size)))
        for one in TARGETS
        if one not in whole
    )
    return Contents(
        f"runs in {root}, preset {size.value}",
        found=_found(size, results, absent),
        summary=summary_line(results),
        numbers=tuple(Numbers(one.target.id, one.tables, one.stored) for one in results),
        absent=absent,
        pictures=tuple(Picture(name, one.target.title, drawn) for one in results for name, drawn in one.drawn.items()),
        runs=_table(runs),
        carriers=_carriers(runs),
    )


def report_of_run(path: Path) -> Contents:
    """The report on one run: its heads. Raises BridgeError where it has no carrier, EmpiricsError as `load_run`."""
    run = load_run(path)
    heads = mapped_run(run)
    return Contents(heads.title, runs=_table((run,)), heads=heads, carriers=heads.carriers())


def mapped_run(run: AnyRun) -> HeadMap:
    """The heads of one run. Raises BridgeError where it has no carrier."""
    title = f"run {run.spec.id}"
    if isinstance(run, SequenceRun):
        raise BridgeError(f"run {run.spec.id} answers a task on sequences and has no target offset: give another run")
    if isinstance(run, TransformerRun):
        spec = run.spec
        heads = tuple(_of_transformer(run, layer, head) for layer in range(spec.layers) for head in range(spec.heads))
        sampled = f"heads are samples of queries and keys at L={spec.train_lengths[1]}"
        return HeadMap(title, heads, spec.train_lengths[1], (sampled,))
    return HeadMap(title, tuple(_of_run(run, index) for index in range(run.spec.heads)), run.spec.train_lengths[1])


def _found(preset: Preset, results: tuple[Reproduced, ...], absent: tuple[Absent, ...]) -> dict[str, str]:
    """What the runs say of each target."""
    missed = {one.id: f"not run: {one.missing} of {one.wanted} runs are not there" for one in absent}
    at_the_papers = preset is Preset.PAPER
    return missed | {
        one.target.id: told(one.cells) if at_the_papers else "not run at the paper's settings" for one in results
    }


def _carriers(runs: Sequence[AnyRun]) -> tuple[NamedCarrier, ...]:
    """Of every setting of a one-head rotary run the one of least seed."""
    chosen: dict[str, Run] = {}
    plain = (run for run in runs if isinstance(run, Run) and _has_plain_carrier(run.spec))
    for run in sorted(plain, key=lambda run: (run.spec.offset, run.spec.seed, run.spec.id)):
        chosen.setdefault(run.spec.model_copy(update={"seed": 0}).id, run)
    return tuple(
        named_carrier(run.spec.id, head_of_run(run).carrier(), run.spec.offset, run.spec.train_lengths[1])
        for run in chosen.values()
    )


def _table(runs: Sequence[AnyRun]) -> Table:
    """Every run in a line: what it is, and what it did directly after training."""
    columns = ("run", "steps", "K", "trained lengths", "accuracy there", "longest L", "accuracy", "peak at")
    notes = (
        "accuracy there: at the longest trained length that was evaluated",
        "peak at: offset of the highest mean attention, of a transformer that of its shift head",
    )
    return Table("runs", columns, tuple(_row(run) for run in runs), notes)


def _whole(preset: Preset, store: Store) -> tuple[Target, ...]:
    return tuple(one for one in TARGETS if not missing(one.specs_at(preset), store))


def _has_plain_carrier(spec: RunSpec) -> bool:
    return isinstance(spec.encoding, Rotary) and spec.heads == 1 and spec.width % 2 == 0


def _of_run(run: Run, index: int) -> MappedHead:
    head = head_of_run(run, index)
    prediction = predict(head, run.spec.offset, run.spec.evaluation_lengths)
    observed: tuple[Observed, ...] = ()
    # Attention of a run with several heads was averaged over them.
    if run.spec.heads == 1:
        back = run.spec.offset
        observed = tuple(
            Observed(seen.length, seen.attention[back], seen.attention_error[back]) for seen in run.evaluation
        )
    return MappedHead(0, index, prediction, observed=observed)


def _of_transformer(run: TransformerRun, layer: int, index: int) -> MappedHead:
    spec = run.spec
    head = head_of_transformer(run, layer, index, spec.train_lengths[1])
    prediction = predict(head, spec.offset, spec.evaluation_lengths, relative_error=_SAMPLED_ERROR)
    return MappedHead(layer, index, prediction, notes=("attention of the last query of each length",))


def _row(run: AnyRun) -> tuple[str, ...]:
    spec, seen = run.spec, run.evaluation
    trained = [one for one in seen if one.length <= spec.train_lengths[1]]
    last, inside = seen[-1], trained[-1] if trained else None
    lengths = "-".join(map(str, spec.train_lengths))
    return (
        spec.id,
        str(spec.steps),
        "-" if isinstance(run, SequenceRun) else str(run.spec.offset),
        lengths,
        number(inside.accuracy if inside else None),
        str(last.length),
        number(last.accuracy),
        _peak(run),
    )


def _peak(run: AnyRun) -> str:
    """Where the last evaluated length has its highest attention; a task on sequences has no target to look for."""
    if isinstance(run, SequenceRun):
        return "-"
    where = run.evaluation[-1] if isinstance(run, Run) else run.evaluation[-1].shift_head
    return str(where.selected_offset)
