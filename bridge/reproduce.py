"""Train what targets need, none twice, and measure every number of the paper beside its printed one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from pathlib import Path

from matplotlib.figure import Figure

from bridge.figures.save import save_figure, save_results
from bridge.paper.target import Cell, Preset, Target, grid, table
from bridge.studies.study import Place, Study, bars_table
from bridge.tables import Table
from empirics.specs import Spec
from empirics.store import Store
from empirics.sweep import missing, sweep
from empirics.train import AnyRun, Progress, one_thread


@dataclass(frozen=True, eq=False)
class Reproduced:
    """One target or study: its cells, what stands beside them, the runs behind them, pictures by the name of their
    file, and the files that show it, where they were written."""

    target: Target | Study
    cells: tuple[Cell, ...]
    companions: tuple[Table, ...]
    runs: tuple[AnyRun, ...]
    drawn: Mapping[str, Figure]
    files: tuple[Path, ...] = ()

    @property
    def tables(self) -> tuple[Table, ...]:
        """What a person reads: printed numbers or bars beside ours, if any, and what stands beside them."""
        if isinstance(self.target, Study):
            return (bars_table(self.target, self.cells), *self.companions)
        return (*((grid(self.target, self.cells),) if self.cells else ()), *self.companions)

    @property
    def stored(self) -> Mapping[str, Table]:
        """Tables by the name of their file. A figure without printed numbers has a table of ours."""
        name = self.target.id
        if isinstance(self.target, Study):
            beside = {f"{name}-{number}": one for number, one in enumerate(self.companions, 1)}
            return {name: bars_table(self.target, self.cells)} | beside
        return {name: table(self.target, self.cells) if self.cells else self.companions[0]}

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
    targets: Sequence[Target], preset: Preset, store: Store, progress: Progress | None = None
) -> tuple[Reproduced, ...]:
    """Measure every cell of targets whose runs are in the store, and draw the figure of each; nothing is written."""
    results = []
    for target in targets:
        # What is observed anew is small: more threads would wait for each other.
        with one_thread():
            results.append(_measure_one(target, preset, store))
        if progress is not None:
            progress(1)
    return tuple(results)


def written(one: Reproduced, out: Path) -> Reproduced:
    """The same with its tables and pictures in a folder. Raises BridgeError where that cannot be written."""
    files: tuple[Path, ...] = ()
    for name, stored in one.stored.items():
        files += save_results(out, name, stored)
    for name, figure in one.drawn.items():
        files += save_figure(out, name, figure)
    return replace(one, files=files)


def reproduce(targets: Sequence[Target], preset: Preset, store: Store, out: Path) -> tuple[Reproduced, ...]:
    """Train in this process what is missing, measure, and write tables and pictures."""
    train_targets(targets, preset, store)
    return tuple(written(one, out) for one in measure(targets, preset, store))


def conduct(study: Study, preset: Preset, place: Place) -> Reproduced:
    """Measure a study on the runs and checkpoints that are there. Raises BridgeError as the study's measurements."""
    findings = study.measure(preset, place)
    store = Store(place.runs)
    runs = tuple(store.load(spec) for spec in study.specs_at(preset))
    drawn = {f"{study.id}-{name}": figure for name, figure in findings.drawn.items()}
    return Reproduced(study, study.cells(findings, preset), findings.tables, runs, drawn)


def _measure_one(target: Target, preset: Preset, store: Store) -> Reproduced:
    runs = tuple(store.load(spec) for spec in target.specs_at(preset))
    drawn = {} if target.draw is None else {target.id: target.draw(runs)}
    return Reproduced(target, target.cells(runs, preset), target.companions(runs), runs, drawn)


def _specs(targets: Sequence[Target | Study], preset: Preset) -> tuple[Spec, ...]:
    return tuple(dict.fromkeys(spec for target in targets for spec in target.specs_at(preset)))
