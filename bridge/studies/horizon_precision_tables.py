"""Explicit heads side by side: the numbers that have bars, and the tables that a person reads."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bridge.compare import Measured
from bridge.paper.target import CellKey
from bridge.studies.explicit_heads import FORMATS, Outcome
from bridge.tables import Table, number
from theory.horizon import FloatFormat, least_modular_amplitude, lookback_horizon
from theory.rounded_heads import Rounding

EXPLAINED, CERTIFIED = "share at the predicted length, or explained", "share at the certified horizon (weights)"
ASSURED = 10_000
"""The length up to which the amplitude of the heads that are looked at far out is sufficient."""
BROKEN, FAR = "heads with a leak up to the reach", f"heads with a leak at longer lengths to {ASSURED}"
SHORT, ANGLES = "nine tenths of the least amplitude", "angles in the format"
_NONE = "-"
_ROUNDINGS = (
    "weights: float64, weights rounded; scores: scores too; fused: queries and keys turned in the format, with cosines "
    "of float32 angles, then a fused kernel; eager: the same, scores and softmax in the format; angles: positions, "
    "frequencies and angles in the format too"
)


@dataclass(frozen=True, eq=False)
class ModularOutcome:
    """One modular head in one format: torch's first leak by arithmetic, alone and beside a sink.

    `short` are the heads with too small an amplitude, `angles` the one whose angles are in the format; `far` says for
    longer lengths whether torch leaks there, at an amplitude for `ASSURED` tokens.
    """

    turn: tuple[int, int]
    precision: FloatFormat
    leaks: Mapping[Rounding, tuple[int | None, int | None]]
    short: tuple[Outcome, ...]
    angles: Outcome
    far: Mapping[int, bool]


def broken_at(horizon: int, offset: int) -> int:
    """The first length at which a head that looks `offset` back has a rival beyond its horizon, in lags.

    The keys after its target are `offset` lags from it at every length, those before it length - 1 - offset.
    """
    return offset + 1 if horizon < offset else horizon + offset + 2


def look_back_numbers(outcomes: Sequence[Outcome], certified: Sequence[Outcome]) -> dict[CellKey, Measured]:
    """The shares of every arithmetic, and of the heads whose length is held against the certified horizon."""
    numbers = {}
    for precision in FORMATS:
        for rounding in Rounding:
            found = [one for one in outcomes if (one.precision, one.rounding) == (precision, rounding)]
            row = f"look-back, {precision.name}, {rounding}"
            numbers[row, EXPLAINED] = _share([one.explained for one in found])
        exact = [one for one in certified if (one.precision, one.rounding) == (precision, Rounding.WEIGHTS)]
        numbers[f"look-back, {precision.name}", CERTIFIED] = _share([_holds(one) for one in exact])
    return numbers


def modular_numbers(outcomes: Sequence[ModularOutcome]) -> dict[CellKey, Measured]:
    """How many leak, and whether those that should do where they should."""
    numbers = {}
    for precision in FORMATS:
        found, row = [one for one in outcomes if one.precision is precision], f"modular, {precision.name}"
        leaks = [leak for one in found for pair in one.leaks.values() for leak in pair]
        numbers[row, BROKEN] = Measured(float(sum(leak is not None for leak in leaks)), None, 0.0)
        beyond = [leaks for one in found for length, leaks in one.far.items() if length <= ASSURED]
        numbers[row, FAR] = Measured(float(sum(beyond)), None, 0.0)
        numbers[f"{row}, {SHORT}", EXPLAINED] = _share([short.explained for one in found for short in one.short])
        numbers[f"{row}, {ANGLES}", EXPLAINED] = _share([one.angles.explained for one in found])
    return numbers


def lengths_table(outcomes: Sequence[Outcome], title: str) -> Table:
    """The first length with a leak, at the amplitudes from which on a row of it is another one."""
    rows: list[tuple[str, ...]] = []
    for name, precision in dict.fromkeys((one.case.name, one.precision) for one in outcomes):
        told: tuple[str, ...] = ()
        several = [one for one in outcomes if one.case.name == name and one.precision is precision]
        for case in dict.fromkeys(one.case for one in several):
            found = {one.rounding: one for one in several if one.case is case}
            certified = _certified(found[Rounding.WEIGHTS])
            cells = (
                _NONE if certified is None else str(certified),
                *(_length(found[rounding]) if rounding in found else "overflow" for rounding in Rounding),
            )
            if cells != told:
                rows.append((name, precision.name, f"{case.amplitudes.sum():.4g}", *cells))
            told = cells
    return Table(
        f"Look-back: the first length that breaks, {title}",
        ("head", "format", "from C (nats)", "certified", *Rounding),
        tuple(rows),
        (
            "certified: N_max + k + 2, the horizon of theory for weights alone; - where there is none within reach",
            "one number: predicted, and torch's; two: predicted / torch's",
            _ROUNDINGS,
        ),
    )


def agreement_table(groups: Mapping[str, Sequence[Outcome]]) -> Table:
    """How many heads of each group break at the predicted length, and what makes the others break elsewhere."""
    rows = []
    for name, outcomes in groups.items():
        for precision in FORMATS:
            for rounding in Rounding:
                found = [one for one in outcomes if (one.precision, one.rounding) == (precision, rounding)]
                if not found:
                    continue
                others = Counter(one.operation for one in found if not one.equal)
                told = "; ".join(f"{count} by {operation}" for operation, count in sorted(others.items()))
                equal = sum(one.equal for one in found)
                slack = min(one.slack for one in found)
                rows.append(
                    (name, precision.name, rounding, str(len(found)), str(equal), told or _NONE, f"{slack:.1g}")
                )
    return Table(
        "Look-back: predicted against torch",
        ("heads", "format", "arithmetic", "compared", "equal", "others", "slack (nats)"),
        tuple(rows),
        (
            "by an operation: with it done in float64 and rounded once, torch breaks at the predicted length",
            "slack: how near the nearest decision of any of them was",
            "fused: that torch's kernel drops exponentials below 2^-126 was learned from torch, then predicted with",
            "at jumps: amplitudes a billionth apart, on both sides of one at which the predicted length changes",
        ),
    )


def modular_table(outcomes: Sequence[ModularOutcome], reach: int) -> Table:
    """Modular heads: leaks up to the reach at a sufficient amplitude, and the controls."""
    far = tuple(outcomes[0].far)
    rows = tuple(
        (
            f"{one.turn[0]}/{one.turn[1]}",
            one.precision.name,
            number(least_modular_amplitude(one.turn[1], one.precision), 2),
            *("none" if pair == (None, None) else " / ".join(map(str, pair)) for pair in one.leaks.values()),
            *("leaks" if one.far[length] else "none" for length in far),
            ", ".join(_length(short) for short in one.short),
            _length(one.angles),
        )
        for one in outcomes
    )
    return Table(
        f"Modular heads: leaks up to length {reach}",
        ("a/m", "format", "least C", *outcomes[0].leaks, *(f"eager, L={length}" for length in far), SHORT, ANGLES),
        rows,
        (
            "weights to eager: the head alone and beside a sink, at an amplitude that is sufficient for the arithmetic",
            f"eager, L: at that length alone, at an amplitude that is sufficient up to {ASSURED}",
            f"{SHORT}: the first length that breaks in each of the four; fused fp32 has none, as its exponentials "
            "are 0 from 87.3 nats on",
            f"{ANGLES}: the head of `eager` so computed",
            "one number: predicted, and torch's; two: predicted / torch's; - where there is none within reach",
        ),
    )


def _certified(one: Outcome) -> int | None:
    """The length that the certified horizon ends; of one pair however far it lies."""
    horizon = lookback_horizon(one.case.amplitudes, one.case.schedule, one.precision, one.reach)
    return None if horizon is None else broken_at(horizon, one.case.offset)


def _holds(one: Outcome) -> bool:
    """Whether torch's length is the certified one, or both are beyond the reach."""
    certified = _certified(one)
    return one.measured == (None if certified is None or certified > one.reach else certified)


def _length(one: Outcome) -> str:
    predicted, measured = (_NONE if length is None else str(length) for length in (one.predicted, one.measured))
    return predicted if one.equal else f"{predicted} / {measured}"


def _share(held: Sequence[bool]) -> Measured:
    return Measured(sum(held) / len(held), None, 0.0)
