"""How far a fixed-offset look-back holds at a given precision, and what a periodic head needs.

A look-back head scores a key at lag n from its target sum_i r_i cos(n theta_i). It attends to
the target alone where every rival's weight underflows, that is where the gap is f or more:

    sum_i r_i (1 - cos(n theta_i)) >= f  for n = 1..L,      exp(-f) rounds to 0 at gap f.

For one frequency the first lag that falls short is a record of ||n theta/2pi||, the distance to
the nearest whole number (`continued_fraction_recurrences`), and by Dirichlet's theorem it is no
farther than 2 pi / arccos(1 - f/C). On theta = 2 pi a/m, a prime to m, a head with score
C cos(theta (i - r)) selects the positions of one residue: every other scores C cos(2 pi/m) or less.

Source: arXiv 2608.11909; the formats, the search and its certificate are ours.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import numpy as np
from flint import arb, ctx
from jaxtyping import Float64

from theory.balls import nearest_float
from theory.certified import CosineSum
from theory.errors import TheoryError
from theory.inputs import check_amplitudes, whole
from theory.recurrences import continued_fraction_recurrences
from theory.schedule import RotarySchedule

_EXTRA_BITS = (0, 128, 256, 512, 1024)
# Far more than any format has, and few enough for the gap to be a float64.
_MOST_BITS = 512


@dataclass(frozen=True)
class FloatFormat:
    """A binary floating-point format as IEEE 754 lays it out, with subnormals, rounding to nearest even.

    Raises TheoryError for fewer than 2 exponent bits or 1 fraction bit, more than 512 of either, or a part of one.
    """

    name: str
    exponent_bits: int
    fraction_bits: int

    def __post_init__(self) -> None:
        for name, bits, least in (("exponent", self.exponent_bits, 2), ("fraction", self.fraction_bits, 1)):
            if whole(f"{self.name}: {name} bits", bits, least) > _MOST_BITS:
                raise TheoryError(f"{self.name}: no format has more than {_MOST_BITS} {name} bits, got {bits}")

    @property
    def significand_bits(self) -> int:
        """t, the hidden bit included: numbers just below 1 are 2^-t apart."""
        return self.fraction_bits + 1

    @property
    def underflow_exponent(self) -> int:
        """e = bias + fraction bits, bias = 2^(exponent bits - 1) - 1.

        The smallest subnormal is 2^(1 - e). Half of it, 2^-e, is a tie, and the even neighbour is 0.
        """
        return 2 ** (self.exponent_bits - 1) - 1 + self.fraction_bits

    @property
    def underflow_gap(self) -> float:
        """f = e ln 2 in nats, the smallest gap whose exp(-f) <= 2^-e rounds to 0."""
        return self.underflow_exponent * math.log(2)


FP16 = FloatFormat("fp16", 5, 10)
BF16 = FloatFormat("bf16", 8, 7)
FP32 = FloatFormat("fp32", 8, 23)


def lookback_horizon(
    amplitudes: Float64[np.ndarray, "pair"], schedule: RotarySchedule, precision: FloatFormat, reach: int = 1_000_000
) -> int | None:
    """N_max = sup {L : sum_i r_i (1 - cos(n theta_i)) >= f for all 1 <= n <= L}, in tokens; r_i >= 0 in nats.

    0 where already the nearest key does not underflow. With one turning pair it is exact however far
    it lies; with several it is exact within `reach`, None where no lag up to there falls short. Decided
    in ball arithmetic, on the exact frequencies where they are known, else on the float64 ones.
    Raises TheoryError for amplitudes that are not one finite number a pair, 0 or more, for a reach
    below 1 and for an exact frequency in no closed form (`monomial`).
    """
    check_amplitudes(amplitudes, schedule)
    reach = whole("the reach, in lags,", reach, 1)
    turning = (amplitudes > 0) & (schedule.frequencies != 0)
    if not turning.any():
        return 0
    scores, gap = CosineSum.of_kernel(amplitudes, schedule), precision.underflow_gap
    candidates: Iterable[int] = _screened(scores, gap, reach)
    if turning.sum() == 1:
        # Twice the bound, so that its rounding does not matter.
        farthest = 2 * math.ceil(_lags_apart(gap / float(amplitudes[turning][0])))
        candidates = [1, *(r.lag for r in continued_fraction_recurrences(amplitudes, schedule, farthest))]
    return next((n - 1 for n in candidates if _falls_short(scores, n, precision.underflow_exponent)), None)


def precision_cap(significand_bits: int, pairs: int = 1) -> float:
    """(2 pi / arccos(1 - 2^-t))^m, in lags: how many rivals m pairs of any frequencies keep apart at t bits.

    By Dirichlet's theorem N lags bring one within 2 pi (N + 1)^(-1/m) of whole turns on every pair,
    so that once N + 1 exceeds the cap its score is below the target's by less than a part 2^-t, one
    unit roundoff. Whatever the amplitude of t bits, the two scores round to one number from the cap at
    t + 1 on; at the cap itself they do for amplitudes just above a power of 2. (An amplitude of more
    bits is rounded itself, and can part the two once more.)
    Raises TheoryError for fewer than 1 bit or pair, and where the cap is beyond float64.
    """
    bits, pairs = whole("significand bits", significand_bits, 1), whole("pairs", pairs, 1)
    return _finite(f"the cap of {pairs} pairs at {bits} bits", lambda: _lags_apart(2.0**-bits) ** pairs)


def least_modular_amplitude(modulus: int, precision: FloatFormat, sink: bool = False) -> float:
    """The least C, in nats, at which all weight lies on one residue modulo m: f / (1 - cos(2 pi/m)).

    With a `sink`, a key of constant score that takes the weight where no position has the residue, twice
    that: its score must be f below the residue's C and f above the others' C cos(2 pi/m). Scores that are
    themselves rounded to t bits lose up to 2^(1-t) C of the gap, which C must then make up for.
    Raises TheoryError for a modulus below 2, which leaves nothing to select, and where C is beyond float64.
    """
    modulus = whole("the modulus of a residue", modulus, 2)
    gap = (2 if sink else 1) * precision.underflow_gap
    return _finite("the amplitude for this modulus", lambda: gap / (2 * math.sin(math.pi / modulus) ** 2))


def _lags_apart(gap: float) -> float:
    """2 pi / arccos(1 - gap): among more lags than this less 1, one pair brings some 1 - cos below `gap`.

    1 - cos x = 2 sin^2(x/2) keeps the digits that arccos near 1 loses. 2 from the largest gap, 2, on.
    """
    return math.pi / math.asin(min(1.0, math.sqrt(gap / 2)))


def _finite(name: str, quotient: Callable[[], float]) -> float:
    """A number that grows beyond float64, or whose divisor falls below it. Raises TheoryError where it does."""
    try:
        found = quotient()
    except (OverflowError, ZeroDivisionError):
        found = math.inf
    if not math.isfinite(found):
        raise TheoryError(f"{name} is more than float64 holds: give fewer")
    return found


def _screened(scores: CosineSum, gap: float, reach: int) -> Iterator[int]:
    """Lags 1..reach, in order, whose gap in float64 is not above `gap` by more than its error.

    A scanned score is off by `rounding` at most and the sum A of the P amplitudes by P 2^-53 A, which is less;
    a third covers the two subtractions, of numbers up to A + gap, together with 2^-50 of the gap.
    """
    total = sum(nearest_float(r) for r, _ in scores.coefficients)
    lowest = total - gap - 3 * scores.rounding - 2.0**-50 * gap
    for start, values in scores.scan(1, reach):
        yield from (start + place for place in np.flatnonzero(values >= lowest).tolist())


def _falls_short(scores: CosineSum, lag: int, underflow_exponent: int) -> bool:
    """Whether f(0) - f(lag) < e ln 2 for the scores f, certified."""
    for extra in _EXTRA_BITS:
        with ctx.workprec(scores.bits(lag) + extra):
            slack = scores.ball(0) - scores.ball(lag) - underflow_exponent * arb(2).log()
            if not slack.contains(0):
                return bool(slack < 0)
    raise TheoryError(f"whether the gap at lag {lag} underflows is not decided at {extra} bits: change the amplitudes")
