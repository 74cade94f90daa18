"""Train what targets need, none twice, and measure every number of the paper beside its printed one."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from pathlib import Path

from bridge.figures.save import save_figure, save_results
from bridge.paper.target import Cell, Preset, Target, grid, table
from bridge.studies.study import Place, Study, bars_table
from bridge.tables import Table
from empirics.spec import Spec
from empirics.store import Store
from empirics.sweep import missing, sweep
from empirics.train import AnyRun, Progress, one_thread


@dataclass(frozen=True, eq=False)
class Reproduced:
    """One target or study: its cells, what stands beside them, the runs behind them, and the files that show it."""

    target: Target | Study
    cells: tuple[Cell, ...]
    companions: tuple[Table, ...]
    runs: tuple[AnyRun, ...]
    files: tuple[Path, ...]

    @property
    def tables(self) -> tuple[Table, ...]:
        """What a person reads: printed numbers or bars beside ours, if any, and what stands beside them."""
        if isinstance(self.target, Study):
            return (bars_table(self.target, self.cells), *self.companions)
        return (*((grid(self.target, self.cells),) if self.cells else ()), *self.companions)

    @property
    def as_recorded(self) -> bool:
        """Whether every cell has the verdict on record."""
        return all(cell.as_recorded for cell in self.cells)


def steps_to_train(targets: Sequence[Target | Study], preset: Preset, store: Store) -> int:
    """Optimizer steps of the runs that are not there."""
    return sum(spec.steps for spec in missing(_specs(targets, preset), store))


def train_targets(
    targets: Sequence[Target | Study],
    preset: Preset,
    store: Store,
    executor: Executor | None = None,
    workers: int | None = None,
    device: str = "cpu",
    progress: Progress | None = None,
) -> None:
    """Train the missing runs of all targets and studies, each once."""
    sweep(_specs(targets, preset), store, executor, workers, device, progress)


def measure(
    targets: Sequence[Target], preset: Preset, store: Store, out: Path, progress: Progress | None = None
) -> tuple[Reproduced, ...]:
    """Measure every cell of targets whose runs are in the store, and write table and figure of each to `out`."""
    results = []
    for target in targets:
        # What is observed anew is small: more threads would wait for each other.
        with one_thread():
            results.append(_measure_one(target, preset, store, out))
        if progress is not None:
            progress(1)
    return tuple(results)


def reproduce(targets: Sequence[Target], preset: Preset, store: Store, out: Path) -> tuple[Reproduced, ...]:
    """Train in this process what is missing, and measure."""
    train_targets(targets, preset, store)
    return measure(targets, preset, store, out)


def conduct(study: Study, preset: Preset, place: Place, out: Path) -> Reproduced:
    """Measure a study on the runs and checkpoints that are there, and write tables and pictures to `out`.

    Raises BridgeError as the study's measurements, and where `out` cannot be written.
    """
    findings = study.measure(preset, place)
    cells = study.cells(findings, preset)
    files = save_results(out, study.id, bars_table(study, cells))
    for number, beside in enumerate(findings.tables, 1):
        files += save_results(out, f"{study.id}-{number}", beside)
    for name, figure in findings.drawn.items():
        files += save_figure(out, f"{study.id}-{name}", figure)
    store = Store(place.runs)
    runs = tuple(store.load(spec) for spec in study.specs_at(preset))
    return Reproduced(study, cells, findings.tables, runs, files)


def _measure_one(target: Target, preset: Preset, store: Store, out: Path) -> Reproduced:
    runs = tuple(store.load(spec) for spec in target.specs_at(preset))
    cells = target.cells(runs, preset)
    companions = target.companions(runs)
    figure = target.draw(runs) if target.draw is not None else None
    # A figure without printed numbers has a table of ours.
    shown = table(target, cells) if cells else companions[0]
    return Reproduced(target, cells, companions, runs, save_results(out, target.id, shown, figure))


def _specs(targets: Sequence[Target | Study], preset: Preset) -> tuple[Spec, ...]:
    return tuple(dict.fromkeys(spec for target in targets for spec in target.specs_at(preset)))
