"""What a table or figure of the paper is: runs, printed numbers, a measurement, a verdict a cell.

With the preset `paper` the runs are the paper's own; `smoke` shrinks them so that everything is
walked through in seconds, and then no cell is compared: its verdict is "out of regime".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, TypeVar, cast

from matplotlib.figure import Figure

from bridge.compare import Measured, Verdict, against_printed, same_digits
from bridge.errors import BridgeError
from bridge.tables import Table, number
from empirics.sequence_spec import SequenceSpec
from empirics.spec import LearnedPositions, Rotary, RunSpec, run_spec
from empirics.specs import Spec
from empirics.train import AnyRun

CellKey = tuple[str, str]
AnySpec = TypeVar("AnySpec", bound=Spec)

_LEGEND = (
    "spread: standard deviation over seeds; - where there is one seed",
    "digits: ours rounds to the printed number; agrees: within a unit of its last digit and, over seeds, 2 s.e. of our "
    "mean; for one seed within .01 at least; an offset rounds to the same",
)
# At the preset smoke a run is as small as goes through every path.
_SMALL = {"steps": 20, "batch": 32, "evaluation_sequences": 64}
_SMALL_SEQUENCES = {"steps": 4, "batch": 8, "evaluation_sequences": 16}
_SMALL_TRANSFORMER = _SMALL_SEQUENCES | {"width": 32, "profile_sequences": 8}


class Preset(StrEnum):
    """At what size the runs of a target are trained."""

    SMOKE = "smoke"
    PAPER = "paper"


class Bound(StrEnum):
    """How ours is to stand to a number."""

    EQUAL = ""
    AT_MOST = "at most"
    AT_LEAST = "at least"


@dataclass(frozen=True)
class Printed:
    """A number of the paper, or a bar: its place, its value to so many decimals, the verdict on record and why."""

    row: str
    column: str
    value: float
    decimals: int
    recorded: Verdict = Verdict.AGREES
    reason: str = ""
    bound: Bound = Bound.EQUAL

    @property
    def key(self) -> CellKey:
        return self.row, self.column

    @property
    def text(self) -> str:
        """The number as it is shown, a bar with its direction."""
        return f"{self.bound.value} {number(self.value, self.decimals)}".strip()

    def judge(self, measured: Measured) -> Verdict:
        """The verdict on a number of ours; a bar is met or missed, whatever the spread."""
        if self.bound is Bound.EQUAL:
            return against_printed(measured, self.value, self.decimals)
        met = measured.value <= self.value if self.bound is Bound.AT_MOST else measured.value >= self.value
        return Verdict.AGREES if met else Verdict.DEVIATES


@dataclass(frozen=True)
class Cell:
    """A printed number with ours beside it."""

    printed: Printed
    measured: Measured
    verdict: Verdict
    reason: str

    @property
    def digits(self) -> bool:
        """Whether ours rounds to the printed digits; a bar has none to come back to."""
        return self.printed.bound is Bound.EQUAL and same_digits(
            self.measured.value, self.printed.value, self.printed.decimals
        )

    @property
    def agrees(self) -> bool:
        """Whether the printed number came back."""
        return self.verdict is Verdict.AGREES

    @property
    def word(self) -> str:
        """The verdict in a word, "digits" where it agrees to the last printed one."""
        return "digits" if self.verdict is Verdict.AGREES and self.digits else self.verdict.value

    @property
    def as_recorded(self) -> bool:
        """Whether the verdict is the one on record; a smoke run has none to give, nor has what was not run."""
        return self.verdict in (self.printed.recorded, Verdict.OUT_OF_REGIME, Verdict.NOT_RUN)


@dataclass(frozen=True)
class Target:
    """One table or figure. `measure` gives every printed cell its number from the runs of `specs`, in their order,
    and may give more cells than are printed. `beside` gives tables of what the paper does not print, such as where a
    peak stands and what the laws say of it; `notes` say what a reader should know beside the paper's caption.
    """

    id: str
    title: str
    statement: str
    specs: tuple[Spec, ...]
    printed: tuple[Printed, ...]
    measure: Callable[[Any], Mapping[CellKey, Measured]]
    draw: Callable[[Any], Figure] | None = None
    notes: tuple[str, ...] = ()
    beside: Callable[[Any], tuple[Table, ...]] | None = None

    def specs_at(self, preset: Preset) -> tuple[Spec, ...]:
        """The specs of a preset, in the order in which `measure` takes their runs."""
        return shrink(self.specs, preset)

    def cells(self, runs: tuple[AnyRun, ...], preset: Preset) -> tuple[Cell, ...]:
        """Every printed number with ours and its verdict."""
        measured = self.measure(runs)
        return tuple(_cell(printed, measured[printed.key], preset) for printed in self.printed)

    def companions(self, runs: tuple[AnyRun, ...]) -> tuple[Table, ...]:
        """The tables of `beside`, none where there are none."""
        return self.beside(runs) if self.beside is not None else ()


def preset_of(name: str) -> Preset:
    """The preset of a name. Raises BridgeError that lists the known ones."""
    if name not in list(Preset):
        raise BridgeError(f"unknown preset {name!r}: give {' or '.join(Preset)}")
    return Preset(name)


def shrink(specs: tuple[AnySpec, ...], preset: Preset) -> tuple[AnySpec, ...]:
    """The specs of the paper at the size of a preset; what has fewer steps than that already keeps them."""
    if preset is Preset.PAPER:
        return specs
    small = tuple(_small(spec) for spec in specs)
    return tuple(
        cast(AnySpec, spec.model_copy(update=update | {"steps": min(spec.steps, update["steps"])}))
        for spec, update in zip(specs, small, strict=True)
    )


def _small(spec: Spec) -> dict[str, int]:
    """What is smaller of a run at the preset smoke."""
    if isinstance(spec, SequenceSpec):
        return _SMALL_SEQUENCES
    return _SMALL if isinstance(spec, RunSpec) else _SMALL_TRANSFORMER


def rotary(offset: int, seeds: int) -> tuple[RunSpec, ...]:
    """The reference setup with rotary positions, seeds 0..seeds-1."""
    return tuple(run_spec(encoding=Rotary(), offset=offset, seed=seed) for seed in range(seeds))


def learned(offset: int, seeds: int) -> tuple[RunSpec, ...]:
    """The reference setup with learned positions, seeds 0..seeds-1."""
    return tuple(run_spec(encoding=LearnedPositions(), offset=offset, seed=seed) for seed in range(seeds))


def table(target: Target, cells: tuple[Cell, ...]) -> Table:
    """The cells of a target one below the other, as they are stored."""
    columns = ("row", "column", "printed", "ours", "spread", "same digits", "verdict")
    rows = tuple(
        (*cell.printed.key, *_words(cell), "yes" if cell.digits else "no", cell.verdict.value) for cell in cells
    )
    return Table(f"{target.id}: {target.title}", columns, rows)


def grid(target: Target, cells: tuple[Cell, ...]) -> Table:
    """The cells of a target as the paper lays them out: printed, ours, spread and verdict of each row."""
    at = {cell.printed.key: cell for cell in cells}
    columns, names = (tuple(dict.fromkeys(key[axis] for key in at)) for axis in (1, 0))
    rows = []
    for name in names:
        found = [at.get((name, column)) for column in columns]
        lines = zip(*((*_words(cell), cell.word) if cell else ("",) * 4 for cell in found), strict=True)
        for label, line in zip(("printed", "ours", "spread", "verdict"), lines, strict=True):
            rows.append((name if label == "printed" else "", label, *line))
    reasons = tuple(dict.fromkeys(f"{cell.printed.row}: {cell.reason}" for cell in cells if cell.reason))
    return Table(f"{target.id}: {target.title}", ("", "", *columns), tuple(rows), (*_LEGEND, *reasons, *target.notes))


def _words(cell: Cell) -> tuple[str, str, str]:
    decimals = cell.printed.decimals
    printed, ours = number(cell.printed.value, decimals), number(cell.measured.value, decimals + 2)
    return printed, ours, number(cell.measured.spread, decimals + 2)


def _cell(printed: Printed, measured: Measured, preset: Preset) -> Cell:
    if preset is Preset.SMOKE:
        return Cell(printed, measured, Verdict.OUT_OF_REGIME, "the smoke preset is not the paper's setting")
    return Cell(printed, measured, printed.judge(measured), printed.reason)
