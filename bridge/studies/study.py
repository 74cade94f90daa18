"""What a study is: measurements of our own, and bars for some of them that were fixed before it was run.

A target of the paper compares with printed numbers (`bridge.paper.target`); a study has bars: a number is
to be at most, or at least, so much. It works on real checkpoints, or on runs that are trained for it. Every number
has its spread, or the standard error that stands in for it, and what was measured without a bar stands in tables
beside.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bridge.compare import Measured, Verdict
from bridge.paper.target import Cell, CellKey, Preset, Printed
from bridge.tables import Table, number
from empirics.specs import Spec


@dataclass(frozen=True)
class Place:
    """Where a study finds models and its runs, keeps what networks computed, and how it shares its work."""

    models: Path | None
    cache: Path
    runs: Path
    workers: int
    advance: Callable[[int], None] = lambda steps: None


@dataclass(frozen=True, eq=False)
class Findings:
    """What a study came to: the numbers that have bars, tables, pictures by name, and models that are absent.

    `drawn` are matplotlib's figures.
    """

    measured: Mapping[CellKey, Measured]
    tables: tuple[Table, ...]
    drawn: Mapping[str, Any]
    absent: tuple[str, ...]


@dataclass(frozen=True)
class Study:
    """An experiment. `bars` have the verdict on record; what needs an absent model is not run; `specs_at` gives the
    runs of a preset, which are trained before it is measured; `cost` is what the preset `paper` takes from nothing."""

    id: str
    title: str
    statement: str
    bars: tuple[Printed, ...]
    measure: Callable[[Preset, Place], Findings]
    notes: tuple[str, ...] = ()
    specs_at: Callable[[Preset], tuple[Spec, ...]] = lambda preset: ()
    cost: str = ""

    def cells(self, findings: Findings, preset: Preset) -> tuple[Cell, ...]:
        """Every bar with the number measured and its verdict."""
        return tuple(_cell(bar, findings, preset) for bar in self.bars)


def bars_table(study: Study, cells: tuple[Cell, ...]) -> Table:
    """Every bar with ours beside it."""
    columns = ("what", "number", "bar", "ours", "spread", "verdict")
    rows = tuple(
        (
            *cell.printed.key,
            cell.printed.text,
            number(cell.measured.value, cell.printed.decimals + 1),
            number(cell.measured.spread, cell.printed.decimals + 1),
            cell.verdict.value,
        )
        for cell in cells
    )
    reasons = tuple(dict.fromkeys(_reason(cell) for cell in cells if cell.reason))
    return Table(f"{study.id}: {study.title}", columns, rows, (*reasons, *study.notes))


def _reason(cell: Cell) -> str:
    """A missed bar has a reason of its own; what was not compared shares one."""
    return f"{cell.printed.row}: {cell.reason}" if cell.verdict is Verdict.DEVIATES else cell.reason


def _cell(bar: Printed, findings: Findings, preset: Preset) -> Cell:
    measured = findings.measured.get(bar.key)
    if measured is None:
        reason = "; ".join(findings.absent) or "not measured at this preset"
        return Cell(bar, Measured(float("nan"), None, 0.0), Verdict.NOT_RUN, reason)
    if preset is Preset.SMOKE:
        return Cell(bar, measured, Verdict.OUT_OF_REGIME, "the smoke preset is not the study's size")
    return Cell(bar, measured, bar.judge(measured), bar.reason)
