"""How near the kernel comes back to 1 at lags far from 0, and where.

    g(s) = sum_i p_i cos(s theta_i)

Four ways, by what they promise:

- `near_recurrences`: the highest local maxima up to a reach, by a float64 scan;
- `record_recurrences`: every lag above all nearer ones, by that scan and ball arithmetic: certified, complete;
- `continued_fraction_recurrences`: the same for one frequency at any reach: certified, complete;
- `lattice_recurrences`: for several frequencies at any reach, by lattice reduction: heights certified,
  but a higher one may exist.

For one frequency g(s) falls with the distance of s theta/2 pi from the nearest whole number, so that its
records are the best approximations of the second kind: the denominators of the convergents (Lagrange).
For several, 1 - g(s) <= 2 pi^2 sum_i p_i (s theta_i/2 pi - n_i)^2 is the squared length of a lattice vector.

Source: arXiv 2607.18759, Lemma 2; arXiv 2608.11909 (records of cos n); the certificates and the lattice are ours.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from flint import ctx, fmpz_mat

from theory.balls import nearest_float
from theory.certified import CosineSum, Enclosure, Weights
from theory.errors import TheoryError
from theory.inputs import whole
from theory.schedule import RotarySchedule

_NEIGHBOURS = 16


@dataclass(frozen=True)
class NearRecurrence:
    """A lag s at which the kernel has a local maximum, and g(s) there."""

    lag: int
    kernel: float


@dataclass(frozen=True)
class Recurrence:
    """A lag s and an enclosure of g(s) there."""

    lag: int
    kernel: Enclosure


def near_recurrences(
    weights: Weights, schedule: RotarySchedule, reach: int, count: int = 5
) -> tuple[NearRecurrence, ...]:
    """The `count` highest local maxima of g over lags 1..reach, highest first, the nearer first in a tie.

    The falling flank of the peak at 0 holds no local maximum and so does not appear. Float64: g(s) is off by at
    most `CosineSum.rounding`, (2P + 20) 1.1e-16 sum |p_i|, at any lag; nearer ties than that are not told apart.
    Raises TheoryError as `kernel_enclosure` and for a reach or a count below 1.
    """
    reach, count = whole("the reach", reach, 1), whole("the count", count, 1)
    best: list[NearRecurrence] = []
    edge = np.empty(0)
    for start, values in CosineSum.of_kernel(weights, schedule).scan(0, reach + 1):
        g = np.concatenate([edge, values])
        peaks = 1 + np.flatnonzero((g[1:-1] > g[:-2]) & (g[1:-1] >= g[2:]))
        highest = peaks[np.argsort(-g[peaks], kind="stable")[:count]]
        best += [NearRecurrence(start - len(edge) + int(j), float(g[j])) for j in highest]
        best = sorted(best, key=lambda peak: -peak.kernel)[:count]
        edge = g[-2:]
    return tuple(best)


def record_recurrences(
    weights: Weights, schedule: RotarySchedule, reach: int, first: int = 1
) -> tuple[Recurrence, ...]:
    """Every lag s of first <= s <= reach with g(s) > g(s') for all first <= s' < s, nearest first.

    Certified and complete. The first lag sets the bar and is no record itself; a tie with an earlier lag is none.
    Raises TheoryError as `certified_maximum` and where no lag follows the first.
    """
    reach, first = whole("the reach", reach), whole("the first lag", first)
    if first >= reach:
        raise TheoryError(f"no lag follows the first, {first}, up to {reach}: give a reach above it")
    kernel = CosineSum.of_kernel(weights, schedule)
    last = reach if kernel.period is None else min(reach, first + kernel.period)
    highest, records = first, []
    for lag in _possible_records(kernel, first, last):
        if lag > first and kernel.exceeds(lag, highest):
            highest = lag
            records.append(Recurrence(lag, kernel.enclosure(lag)))
    return tuple(records)


def continued_fraction_recurrences(weights: Weights, schedule: RotarySchedule, reach: int) -> tuple[Recurrence, ...]:
    """The records of a kernel with one turning pair over 1 < s <= reach, at any reach, nearest first.

    With theta/2 pi = [a_0; a_1, ...] and q_(n+1) = a_(n+1) q_n + q_(n-1) they are the q_n above 1: no other
    lag is above all nearer ones, the intermediate fractions k q_n + q_(n-1) included. The quotients a_n are
    decided by ball arithmetic.
    Raises TheoryError as `certified_maximum`, unless exactly one pair turns, with a weight above 0, and for a
    reach below 1.
    """
    reach = whole("the reach", reach, 1)
    kernel = CosineSum.of_kernel(weights, schedule)
    turning = _turning(kernel)
    if len(turning) != 1:
        raise TheoryError(
            f"a continued fraction is of one turning pair, got {len(turning)} that turn: "
            "weigh the others 0 or use lattice_recurrences"
        )
    _check_positive(kernel, turning)
    before, q, lags = 0, 1, []
    for quotient in _quotients(kernel, reach):
        before, q = q, quotient * q + before
        lags.append(q)
    return tuple(Recurrence(lag, kernel.enclosure(lag)) for lag in lags if 1 < lag <= reach)


def lattice_recurrences(
    weights: Weights, schedule: RotarySchedule, reach: int, first: int = 1, count: int = 5
) -> tuple[Recurrence, ...]:
    """Up to `count` lags with first <= s <= reach, the highest that lattice reduction finds, highest first.

    The lattice of the vectors (w_i (s theta_i/2 pi - n_i), delta s/reach), w_i = pi sqrt(2 p_i/sum p), is
    LLL-reduced for delta = 1/256, 1/128, ..., 16 times (prod w_i/reach)^(1/P), at which a vector as short as
    Minkowski's theorem promises has s near `reach`. The candidates are the s of the basis vectors and of their
    sums and differences; each yields to the highest lag within 16 of it. Heights are enclosed; that no other
    lag up to `reach` is higher is not claimed, nor so: equal weights, d=64, base 1e4, 1e3 <= s <= 1e9 give
    .655 here and .681 (s = 903671965) by `certified_maximum`.
    A pair whose weight is below 2^-53 of their sum is left out of the lattice, not of the heights.
    Raises TheoryError as `certified_maximum`, unless 1 <= first <= reach and the count is 1 or more, where no
    pair turns or a turning one has a weight below 0, and where no short vector is of a lag in the range.
    """
    first, reach, count = whole("the first lag", first, 1), whole("the reach", reach), whole("the count", count, 1)
    if first > reach:
        raise TheoryError(f"the lags from {first} to {reach} are none: give first <= reach")
    kernel = CosineSum.of_kernel(weights, schedule)
    turning = _turning(kernel)
    if not turning:
        raise TheoryError("lattice reduction needs a pair that turns: the frequencies of all weighted pairs are 0")
    _check_positive(kernel, turning)
    found: dict[int, float] = {}
    for doublings in range(-8, 5):
        found |= _short_vectors(kernel, reach, first, doublings, 4 * count)
    if not found:
        raise TheoryError(
            f"no short vector of the lattice is of a lag from {first} to {reach}: widen the range or use "
            "certified_maximum"
        )
    best = sorted(found, key=lambda lag: (-found[lag], lag))[: 4 * count]
    around = [(max(first, lag - _NEIGHBOURS), min(reach, lag + _NEIGHBOURS)) for lag in best]
    peaks = sorted({kernel.maximum([lags])[0][0] for lags in around})
    certified = (Recurrence(lag, kernel.enclosure(lag)) for lag in peaks)
    return tuple(sorted(certified, key=lambda recurrence: -recurrence.kernel.lower)[:count])


def _possible_records(kernel: CosineSum, first: int, last: int) -> Iterator[int]:
    """The lags that the scan cannot rule out as records: one that is lower than an earlier lag is none."""
    highest, allowance = -np.inf, 3 * kernel.rounding
    for start, values in kernel.scan(first, last):
        ceiling = np.maximum.accumulate(np.concatenate([[highest], values]))
        highest = ceiling[-1]
        for place in np.flatnonzero(values >= ceiling[:-1] - allowance).tolist():
            yield start + place


def _turning(kernel: CosineSum) -> list[int]:
    return [pair for pair, theta in enumerate(kernel.frequencies) if theta != 0]


def _check_positive(kernel: CosineSum, pairs: list[int]) -> None:
    for pair in pairs:
        weight = kernel.coefficients[pair][0]
        if weight < 0:
            raise TheoryError(
                f"the weights of pairs that turn must be above 0, got {nearest_float(weight)} at "
                f"{kernel.frequencies[pair]} rad: record_recurrences and certified_maximum take any sign"
            )


def _quotients(kernel: CosineSum, reach: int) -> list[int]:
    """a_1, a_2, ... of theta/2 pi up to the first denominator above `reach`, or all of a rational one."""
    pair, period = _turning(kernel)[0], kernel.period
    quotients, bits = None, 64 + 2 * reach.bit_length() + (period or 0).bit_length()
    while quotients is None:
        with ctx.workprec(kernel.bits(1) + bits):
            turn = kernel.turns()[pair]
            ends = turn.lower().fmpq(), turn.upper().fmpq()
        low, high = (Fraction(int(end.p), int(end.q)) for end in ends)
        if period is not None:
            low = high = Fraction(round(low * period), period)
        quotients, bits = _shared_quotients(low, high, reach), 2 * bits
    return quotients


def _shared_quotients(low: Fraction, high: Fraction, reach: int) -> list[int] | None:
    """The quotients a_1, a_2, ... that all numbers of [low, high] share, None where they part before `reach`."""
    quotients, before, q = [], 0, 1
    low, high = low - low // 1, high - low // 1
    while q <= reach and high > 0:
        if low == 0 or high >= 1 or 1 // low != 1 // high:
            return None
        quotient = 1 // low
        low, high = 1 / high - quotient, 1 / low - quotient
        quotients.append(quotient)
        before, q = q, quotient * q + before
    return quotients


def _short_vectors(kernel: CosineSum, reach: int, first: int, doublings: int, count: int) -> dict[int, float]:
    """The `count` highest candidates of one lattice, delta a power of 2, with float64 heights.

    Coordinates are whole multiples of 2^-40 delta/reach: rounding moves one by at most 2^-40 delta.
    """
    turning = _turning(kernel)
    weights = np.array([nearest_float(kernel.coefficients[pair][0]) for pair in turning])
    heavy = weights >= 2.0**-53 * weights.sum()
    pairs, weights = np.array(turning)[heavy].tolist(), weights[heavy]
    widths = np.pi * np.sqrt(2 * weights / weights.sum())
    delta = Fraction(2) ** (doublings + round((np.log2(widths).sum() - math.log2(reach)) / len(pairs)))
    step = 1 << 40
    unit = int(reach * step / delta)
    scales = [max(1, int(Fraction(width) * unit)) for width in widths.tolist()]
    with ctx.workprec(kernel.bits(reach) + unit.bit_length()):
        turns = kernel.turns()
        last = [int((scale * turns[i].mid()).floor().fmpz()) for i, scale in zip(pairs, scales, strict=True)]
    rows = [[scale if i == j else 0 for j in range(len(pairs))] + [0] for i, scale in enumerate(scales)]
    basis = fmpz_mat([*rows, [*last, step]]).lll().tolist()
    lags = np.array([int(row[-1]) // step for row in basis], dtype=object)
    misses = np.array([[int(entry) / scale for entry, scale in zip(row, scales, strict=False)] for row in basis])
    one, other = np.triu_indices(len(basis), 1)
    lags = np.concatenate([lags, lags[one] + lags[other], lags[one] - lags[other]])
    misses = np.concatenate([misses, misses[one] + misses[other], misses[one] - misses[other]])
    heights = np.cos(2 * np.pi * misses) @ weights
    inside = np.flatnonzero((abs(lags) >= first) & (abs(lags) <= reach))
    highest = inside[np.argsort(-heights[inside], kind="stable")][:count]
    return {abs(lags[j]): float(heights[j]) for j in highest}
