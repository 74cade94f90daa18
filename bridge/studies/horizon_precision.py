"""Explicit look-back and modular heads in fp16, bf16 and fp32: where rounding is predicted to break them, and does.

    look-back   1 rad a token, a pair or two or thirty-two of a geometric schedule with equal and with best amplitudes:
                over a range of amplitudes C = sum r_i, and at both sides of amplitudes where the length jumps
    modular     2 pi a/m for m = 2..12, alone and beside a sink, at an amplitude that is sufficient in the arithmetic,
                at nine tenths of the least one, and with angles computed in the format

A head breaks at the first length at which a key that is not its to choose has a weight other than 0. It looks one token
back; that, the amplitudes and the arithmetics (`theory.rounded_heads`) are ours, since the paper's are not known.

Source: arXiv 2608.11909.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import sympy
from jaxtyping import Float64

from bridge.compare import Measured
from bridge.paper.target import Bound, CellKey, Preset, Printed
from bridge.studies.explicit_heads import FORMATS, HeadCase, Outcome, compare, leaks_at, measured_leak, overflows
from bridge.studies.horizon_precision_tables import (
    ANGLES,
    ASSURED,
    BROKEN,
    CERTIFIED,
    EXPLAINED,
    FAR,
    SHORT,
    ModularOutcome,
    agreement_table,
    lengths_table,
    look_back_numbers,
    modular_numbers,
    modular_table,
)
from bridge.tables import Table
from empirics.train import one_thread
from theory.best_carriers import best_carrier
from theory.horizon import FloatFormat, least_modular_amplitude
from theory.rounded_heads import Rounding, sufficient_modular_amplitude
from theory.schedule import RotarySchedule

_ONE_RAD = "1 rad"
_LOWEST, _HIGHEST = 30.0, 4e6
_MODULAR = (Rounding.WEIGHTS, Rounding.SCORES, Rounding.FUSED, Rounding.EAGER)
_SHORT_OF = 0.9


@dataclass(frozen=True, eq=False)
class PrecisionFindings:
    """What the explicit heads came to: numbers with their bars, tables, pictures by name."""

    measured: Mapping[CellKey, Measured]
    bars: tuple[Printed, ...]
    tables: tuple[Table, ...]
    drawn: Mapping[str, Any]


@dataclass(frozen=True)
class _Size:
    """Amplitudes of one pair and of two, lengths to which they are followed, edges a format, the modular heads."""

    amplitudes: int
    reach: int
    edges: int
    several: tuple[float, ...]
    many: tuple[float, ...]
    many_reach: int
    moduli: tuple[int, ...]
    modular_reach: int
    far: tuple[int, ...]


_SIZES = {
    Preset.PAPER: _Size(
        amplitudes=60,
        reach=720,
        edges=3,
        several=(300.0, 1e3, 5e3, 2e4, 6e4, 1e6),
        many=(300.0, 1e3, 5e3),
        many_reach=320,
        moduli=tuple(range(2, 13)),
        modular_reach=500,
        far=(1000, 10_000, 100_000),
    ),
    Preset.SMOKE: _Size(
        amplitudes=8,
        reach=100,
        edges=1,
        several=(1e3,),
        many=(),
        many_reach=0,
        moduli=(2, 5),
        modular_reach=60,
        far=(1000,),
    ),
}


def precision_findings(preset: Preset) -> PrecisionFindings:
    """Every head at the size of a preset: seconds for smoke, some three minutes of one core for paper."""
    from bridge.figures.horizon_precision import precision_figure

    size = _SIZES[preset]
    with one_thread():
        swept = [*_compared(_one_rad(np.geomspace(_LOWEST, _HIGHEST, size.amplitudes)), size.reach)]
        edges = [outcome for edge in _edges(swept, size.edges) for outcome in edge]
        several = [
            *_compared(_two_pairs(size.several), size.reach),
            *_compared(_many_pairs(size.many), size.many_reach),
        ]
        modular = [_modular(modulus, precision, size) for precision in FORMATS for modulus in size.moduli]
    return PrecisionFindings(
        look_back_numbers([*swept, *edges, *several], [*swept, *several]) | modular_numbers(modular),
        BARS,
        (
            lengths_table(swept, "a head at 1 rad a token"),
            lengths_table(several, "heads of several pairs"),
            agreement_table({"1 rad": swept, "1 rad, at jumps": edges, "several pairs": several}),
            modular_table(modular, size.modular_reach),
        ),
        {"precision": precision_figure(swept)},
    )


def _one_rad(amplitudes: Sequence[float] | Float64[np.ndarray, "amplitude"]) -> Iterator[HeadCase]:
    schedule = RotarySchedule.from_exact([sympy.S.One])
    return (HeadCase(_ONE_RAD, schedule, np.array([amplitude])) for amplitude in amplitudes)


def _two_pairs(amplitudes: Sequence[float]) -> Iterator[HeadCase]:
    schedule = RotarySchedule.geometric(4, 100)
    for name, shares in (("equal", np.full(2, 0.5)), ("best for 100 lags", best_carrier(schedule, 100).weights)):
        yield from (HeadCase(f"2 pairs, base 100, {name}", schedule, total * shares) for total in amplitudes)


def _many_pairs(amplitudes: Sequence[float]) -> Iterator[HeadCase]:
    if not amplitudes:
        return
    schedule = RotarySchedule.geometric(64, 10_000)
    for name, shares in (("equal", np.full(32, 1 / 32)), ("best for 512 lags", best_carrier(schedule, 512).weights)):
        yield from (HeadCase(f"32 pairs, base 1e4, {name}", schedule, total * shares) for total in amplitudes)


def _compared(cases: Iterator[HeadCase], reach: int) -> Iterator[Outcome]:
    for case in cases:
        for precision in FORMATS:
            for rounding in Rounding:
                if not overflows(case, precision, rounding):
                    yield compare(case, precision, rounding, reach)


def _edges(swept: Sequence[Outcome], count: int) -> Iterator[tuple[Outcome, Outcome]]:
    """The first amplitudes of each arithmetic at which the predicted length jumps, from below and from above."""
    for precision in FORMATS:
        for rounding in Rounding:
            found = [one for one in swept if (one.precision, one.rounding) == (precision, rounding)]
            jumps = [(a, b) for a, b in pairwise(found) if a.predicted != b.predicted]
            for below, above in jumps[:count]:
                yield _narrowed(below, above)


def _narrowed(below: Outcome, above: Outcome) -> tuple[Outcome, Outcome]:
    """Two amplitudes a billionth apart with different lengths, by bisection."""
    reach = 1 + max(below.predicted or 0, above.predicted or 0)
    precision, rounding = below.precision, below.rounding
    low, high = float(below.case.amplitudes[0]), float(above.case.amplitudes[0])
    while high > low * (1 + 1e-9):
        middle = math.sqrt(low * high)
        (case,) = _one_rad([middle])
        if case.rounded(precision, rounding).first_leak(reach).length == below.predicted:
            low = middle
        else:
            high = middle
    one, other = (compare(case, precision, rounding, reach) for case in _one_rad([low, high]))
    return one, other


def _modular(modulus: int, precision: FloatFormat, size: _Size) -> ModularOutcome:
    prime = (a for a in range(2, modulus // 2 + 1) if math.gcd(a, modulus) == 1)
    turn, reach = (next(prime, 1), modulus), size.modular_reach
    leaks = {}
    for rounding in _MODULAR:
        alone, beside = (modular_head(turn, precision, rounding, reach, sink) for sink in (False, True))
        leaks[rounding] = (
            measured_leak(alone, precision, rounding, reach),
            measured_leak(beside, precision, rounding, reach),
        )
    least = _SHORT_OF * least_modular_amplitude(modulus, precision)
    schedule = RotarySchedule.periodic([turn])
    low = HeadCase(f"{turn[0]}/{modulus}", schedule, np.array([least]), period=modulus)
    drifting = modular_head(turn, precision, Rounding.EAGER, reach)
    lasting = modular_head(turn, precision, Rounding.EAGER, ASSURED)
    far = {length: leaks_at(lasting, precision, Rounding.EAGER, length) for length in size.far}
    return ModularOutcome(
        turn,
        precision,
        leaks,
        tuple(compare(low, precision, rounding, 4 * modulus) for rounding in _MODULAR),
        compare(drifting, precision, Rounding.ANGLES, reach),
        far,
    )


def modular_head(
    turn: tuple[int, int], precision: FloatFormat, rounding: Rounding, reach: int, sink: bool = False
) -> HeadCase:
    """A head of sufficient amplitude; beside a sink it looks so far back that at first no key has its residue."""
    amplitude = sufficient_modular_amplitude(turn, precision, rounding, reach, sink)
    halfway = amplitude * (1 + math.cos(2 * math.pi / turn[1])) / 2
    return HeadCase(
        f"{turn[0]}/{turn[1]}",
        RotarySchedule.periodic([turn]),
        np.array([amplitude]),
        offset=turn[1] - 1 if sink else 1,
        period=turn[1],
        sink=halfway if sink else None,
    )


def _bars() -> tuple[Printed, ...]:
    at_least, at_most = Bound.AT_LEAST, Bound.AT_MOST
    rows = [f"look-back, {precision.name}, {rounding}" for precision in FORMATS for rounding in Rounding]
    return (
        *(Printed(row, EXPLAINED, 1.0, 2, bound=at_least) for row in rows),
        *(Printed(f"look-back, {precision.name}", CERTIFIED, 1.0, 2, bound=at_least) for precision in FORMATS),
        *(Printed(f"modular, {precision.name}", BROKEN, 0, 0, bound=at_most) for precision in FORMATS),
        *(Printed(f"modular, {precision.name}", FAR, 0, 0, bound=at_most) for precision in FORMATS),
        *(Printed(f"modular, {precision.name}, {SHORT}", EXPLAINED, 1.0, 2, bound=at_least) for precision in FORMATS),
        *(Printed(f"modular, {precision.name}, {ANGLES}", EXPLAINED, 1.0, 2, bound=at_least) for precision in FORMATS),
    )


BARS = _bars()
"""The study that takes these findings has them among its own."""
