"""Train what targets need, none twice, and put the printed numbers beside ours."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bridge.documents import Document
from bridge.figures.save import save_results
from bridge.paper.target import Cell, Preset, Target, table
from empirics.spec import RunSpec
from empirics.store import Store
from empirics.sweep import SweepProgress, missing, sweep
from empirics.train import Run


@dataclass(frozen=True, eq=False)
class Reproduced:
    """One target: its cells, the runs behind them, and the files that show it."""

    target: Target
    cells: tuple[Cell, ...]
    runs: tuple[Run, ...]
    files: tuple[Path, ...]

    @property
    def as_recorded(self) -> bool:
        """Whether every cell has the verdict on record."""
        return all(cell.as_recorded for cell in self.cells)


def steps_to_train(targets: Sequence[Target], preset: Preset, store: Store) -> int:
    """Optimizer steps that `reproduce` will make."""
    return sum(spec.steps for spec in missing(_specs(targets, preset), store))


def reproduce(
    targets: Sequence[Target],
    preset: Preset,
    store: Store,
    out: Path,
    workers: int = 2,
    progress: SweepProgress | None = None,
) -> tuple[Reproduced, ...]:
    """Train the missing runs, measure every cell, write table and figure of every target to `out`."""
    sweep(_specs(targets, preset), store, workers, progress)
    runs = {spec: store.load(spec) for spec in _specs(targets, preset)}
    return tuple(_one(target, preset, tuple(runs[spec] for spec in target.specs_at(preset)), out) for target in targets)


def reproduce_document(results: Sequence[Reproduced], store: Store, seconds: float) -> Document:
    """`carrier reproduce` as JSON: every cell, every run behind it."""
    specs = dict.fromkeys(run.spec for one in results for run in one.runs)
    return {
        "targets": [
            {
                "id": one.target.id,
                "statement": one.target.statement,
                "cells": [_cell_document(cell) for cell in one.cells],
            }
            for one in results
        ],
        "runs": [{"id": spec.id, "seed": spec.seed, "path": str(store.path(spec))} for spec in specs],
        "files": [str(file) for one in results for file in one.files],
        "seconds": round(seconds, 3),
    }


def _cell_document(cell: Cell) -> Document:
    return {
        "row": cell.printed.row,
        "column": cell.printed.column,
        "printed": cell.printed.value,
        "ours": cell.measured.value,
        "spread": cell.measured.spread,
        "verdict": cell.verdict.value,
        "recorded": cell.printed.recorded.value,
        "reason": cell.reason,
    }


def _one(target: Target, preset: Preset, runs: tuple[Run, ...], out: Path) -> Reproduced:
    cells = target.cells(runs, preset)
    figure = target.draw(runs) if target.draw is not None else None
    return Reproduced(target, cells, runs, save_results(out, target.id, table(target, cells), figure))


def _specs(targets: Sequence[Target], preset: Preset) -> tuple[RunSpec, ...]:
    return tuple(dict.fromkeys(spec for target in targets for spec in target.specs_at(preset)))
