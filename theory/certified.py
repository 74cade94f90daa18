"""Certified heights of the relative kernel and certified margins, at any lag.

Both are values, at integers s, of one sum over the rotary pairs with exact coefficients,

    f(s) = Re sum_i c_i e^(i s theta_i).

The kernel g has c_i = p_i. The mean profile at j tokens back is f(j) with c_i = scale gain_i a_i conj(b_i),
which needs no angle. A float is taken as exactly the binary number that it is, an exact (sympy) frequency
or weight as itself. Ball arithmetic (Arb) then encloses f(s) at 1, at 1e9, at 1e30. Precision grows from
128 bits beyond those of the angles to 128 + 1024, until a number has 30 digits; one that then still has
fewer, an exact 0 say, is held by a ball of some 2^-1152 sum_i |c_i|.

A maximum is found in two steps. A float64 scan, whose error bound is proved at `CosineSum.scan`, discards
what it can; ball arithmetic of growing precision decides the rest. What the last precision does not tell
apart is reported as a tie.

Source: arXiv 2607.18759, Lemma 2, Proposition 1, Corollary 1; the certificates are ours.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, reduce

import numpy as np
import sympy
from flint import acb, arb, ctx, fmpq
from jaxtyping import Complex128, Float64

from theory.balls import balls, exact_frequencies, nearest_float, rational
from theory.errors import TheoryError
from theory.head import Carrier
from theory.incommensurability import realigning_period
from theory.inputs import check_target, whole
from theory.schedule import RotarySchedule, as_pairs

_BLOCK = 1 << 10
_FIRST_BITS, _MORE_BITS = 128, (0, 128, 256, 512, 1024)
_ACCURATE = 100  # bits, of 30 digits

Weights = Sequence[sympy.Rational] | Float64[np.ndarray, "pair"]


@dataclass(frozen=True)
class Enclosure:
    """A real number known to lie in [lower, upper], and the narrower ball "[middle +/- radius]" in decimals."""

    lower: float
    upper: float
    decimals: str

    @classmethod
    def of(cls, ball: arb) -> Enclosure:
        """The floats next to a ball, rounded outwards."""
        lower, upper = float(ball.lower()), float(ball.upper())
        lower = lower if arb(lower) <= ball else math.nextafter(lower, -math.inf)
        upper = upper if arb(upper) >= ball else math.nextafter(upper, math.inf)
        return cls(lower, upper, ball.str(30))


@dataclass(frozen=True)
class CertifiedMaximum:
    """The lag of the highest g of a range, and g there; in a tie (not `unique`) the first of the lags that tie."""

    lag: int
    value: Enclosure
    unique: bool


@dataclass(frozen=True)
class CertifiedMargin:
    """mu_L in nats with the offset of the highest competitor; in a tie (not `unique`) the nearest of those that tie."""

    value: Enclosure
    competitor: int
    unique: bool


def kernel_enclosure(weights: Weights, schedule: RotarySchedule, lag: int) -> Enclosure:
    """g(s) = sum_i p_i cos(s theta_i) at one lag s of any size and sign, to 30 digits (module header: or so near 0).

    Raises TheoryError for a lag that is no whole number, where weights and schedule do not fit, where all weights
    are 0 or add up beyond float64, and for an exact frequency that is not of sums, products and powers of
    rationals and pi.
    """
    return CosineSum.of_kernel(weights, schedule).enclosure(whole("the lag", lag))


def certified_maximum(weights: Weights, schedule: RotarySchedule, first: int, last: int) -> CertifiedMaximum:
    """The maximum of g over the lags first <= s <= last, negative ones included, and where it is.

    An exact period is a tie. Some 1e8 lags a second at 32 pairs; memory for 2^20 lags and the candidates. A
    candidate, a lag within 5 `CosineSum.rounding` of the maximum, costs some 2 us a pair at each of five
    precisions: a million of them, the lags of one pair that hardly moves, 20 s.
    Raises TheoryError as `kernel_enclosure`, for an empty range and where sums leave the period undecided.
    """
    first, last = whole("the first lag", first), whole("the last lag", last)
    if first > last:
        raise TheoryError(f"the lags from {first} to {last} are none: give first <= last")
    lags, ball = CosineSum.of_kernel(weights, schedule).maximum(((first, last),))
    return CertifiedMaximum(min(lags), Enclosure.of(ball), len(lags) == 1)


def certified_margin(carrier: Carrier, offset: int, length: int) -> CertifiedMargin:
    """mu_L = phi(-K) - max over -L < delta <= 0, delta != -K, of phi(delta), K = `offset`, L = `length`.

    phi is that of the means alone, in nats: no bias, no local window. The means, the scale and the gains of
    the schedule are taken as the binary numbers that they are.
    Raises TheoryError where the target is not among the offsets or has no competitor, a mean is 0 or an exact
    frequency is no monomial (`theory.incommensurability`).
    """
    offset, length = whole("the target offset K", offset), whole("the length", length)
    check_target(offset, length)
    if length < 2:
        raise TheoryError(f"a margin needs a competitor: give a length of 2 or more, got {length}")
    profile = CosineSum.of_carrier(carrier)
    ranges = ((0, offset - 1), (offset + 1, length - 1))
    rivals, _ = profile.maximum([(first, last) for first, last in ranges if first <= last])
    value = _union(profile.difference(offset, rival) for rival in rivals)
    return CertifiedMargin(Enclosure.of(value), -min(rivals), len(rivals) == 1)


@dataclass(frozen=True, eq=False)
class CosineSum:
    """f(s) = Re sum_i c_i e^(i s theta_i) over the pairs whose c_i, a pair of rationals, is not 0.

    Raises TheoryError where no pair is left or the sum of |c_i| is beyond float64.
    """

    coefficients: tuple[tuple[fmpq, fmpq], ...]
    frequencies: tuple[sympy.Expr, ...]

    @classmethod
    def of_kernel(cls, weights: Weights, schedule: RotarySchedule) -> CosineSum:
        """g: c_i = p_i."""
        if len(weights) != schedule.pairs:
            raise TheoryError(f"give one weight a pair: the schedule has {schedule.pairs}, got {len(weights)}")
        exact = (rational(weight, f"the weight of pair {pair}") for pair, weight in enumerate(weights))
        return cls._of(((weight, fmpq(0)) for weight in exact), schedule)

    @classmethod
    def of_carrier(cls, carrier: Carrier) -> CosineSum:
        """phi(-s): c_i = scale gain_i a_i conj(b_i), in nats."""
        means = zip(as_pairs(carrier.query_mean), as_pairs(carrier.key_mean), carrier.schedule.score_gains, strict=True)
        scale = rational(carrier.logit_scale, "the logit scale")
        coefficients = []
        for query, key, gain in means:
            a, b, c, d = (rational(lane, "a mean") for lane in (query.real, query.imag, key.real, key.imag))
            factor = scale * rational(gain, "a score gain")
            coefficients.append((factor * (a * c + b * d), factor * (b * c - a * d)))
        return cls._of(coefficients, carrier.schedule)

    @classmethod
    def _of(cls, coefficients: Iterable[tuple[fmpq, fmpq]], schedule: RotarySchedule) -> CosineSum:
        pairs = zip(coefficients, exact_frequencies(schedule), strict=True)
        active = [(c, theta) for c, theta in pairs if c != (0, 0)]
        if not active:
            raise TheoryError("no rotary pair is active: every weight is 0, so there is no kernel")
        total = cls(tuple(c for c, _ in active), tuple(theta for _, theta in active))
        if not math.isfinite(total.rounding * 2**53):
            raise TheoryError("the weights add up to more than float64 holds: scale them down")
        return total

    @cached_property
    def period(self) -> int | None:
        """The exact period, None where there is none; a rational turns by no rational part of 2 pi."""
        if any(theta.is_Rational and theta != 0 for theta in self.frequencies):
            return None
        return realigning_period(RotarySchedule.from_exact(self.frequencies))

    def ball(self, lag: int) -> arb:
        """f(s) at the working precision."""
        total = arb(0)
        for (real, imaginary), theta in zip(self.coefficients, balls(self.frequencies, ctx.prec), strict=True):
            sine, cosine = (lag * theta).sin_cos()
            total += real * cosine - imaginary * sine
        return total

    def turns(self) -> tuple[arb, ...]:
        """theta_i/2 pi at the working precision."""
        return tuple(theta / (2 * arb.pi()) for theta in balls(self.frequencies, ctx.prec))

    def enclosure(self, lag: int) -> Enclosure:
        """f(s) to 30 digits."""
        return Enclosure.of(self._refined(lag))

    def maximum(self, ranges: Sequence[tuple[int, int]]) -> tuple[list[int], arb]:
        """The lags of some ranges that may hold the maximum, one where it is certain, and a ball of it, to 30 digits.

        Of an exact period each range is scanned once; a second lag stands for those that follow.
        """
        period = self.period or 1 + max(last - first for first, last in ranges)
        lags = self._decide(self._candidates([(a, min(z, a + period - 1)) for a, z in ranges]))
        again = [lag + period for lag in lags for first, last in ranges if first <= lag <= last - period]
        return lags + again, _union(map(self._refined, lags))

    def exceeds(self, lag: int, other: int) -> bool:
        """Whether f(lag) > f(other), certified; two lags that no precision tells apart are equal."""
        return self._decide([lag, other]) == [lag]

    def difference(self, lag: int, other: int) -> arb:
        """f(lag) - f(other) to 30 digits; 0 for whole periods."""
        if self.period is not None and (lag - other) % self.period == 0:
            return arb(0)
        return self._refined(lag, other)

    def scan(self, first: int, last: int) -> Iterator[tuple[int, Float64[np.ndarray, "lag"]]]:
        """(start, f(start), f(start+1), ...) in float64 over first..last, each value within `rounding` of f.

        With s = start + B a + b, f(s) = Re sum_i w_i x_ai y_bi for w_i = c_i e^(i start theta_i),
        x_ai = e^(i B a theta_i), y_bi = e^(i b theta_i): one matrix product over a and b. Balls give all
        three, so that no library cosine is trusted and the error does not grow with s.

        Proof of the bound, with u = 2^-53 and P pairs. Each of c_i, e^(i start theta_i), x_ai, y_bi is the
        midpoint of a ball of relative radius below 2^-7 u, truncated to 53 bits in both parts: off by at
        most 2.1 u of its modulus, 8.4 u |c_i| in all. The two complex products in front of y_bi round by at
        most sqrt(8) u each, 5.7 u |c_i| in all. The real dot product of 2P terms, added in any order, fused
        or not, is off by at most 2P u/(1 - 2P u) sum_i |c_i| (Higham 2002, section 3.1). The first orders
        are (2P + 14.1) u sum |c_i|: 2P + 20 covers the higher ones at P < 2^20, 2^-1022 what underflows.
        """
        count = last - first + 1
        block = min(_BLOCK, 1 + math.isqrt(count - 1))
        rows = min(_BLOCK, -(-count // block))
        fine = self._rotations(range(block)).view(np.float64)
        coarse = self._rotations(range(0, rows * block, block))
        amplitudes = np.array([complex(nearest_float(a), nearest_float(b)) for a, b in self.coefficients])
        for start in range(first, last + 1, rows * block):
            turned = np.conj(amplitudes * self._rotations(range(start, start + 1)) * coarse)
            yield start, (turned.view(np.float64) @ fine.T).reshape(-1)[: last - start + 1]

    @property
    def rounding(self) -> float:
        """The error bound of `scan`: (2P + 20) 2^-53 sum_i |c_i| + 2^-1022."""
        total = sum(((arb(real) ** 2 + arb(imaginary) ** 2).sqrt() for real, imaginary in self.coefficients), arb(0))
        return Enclosure.of((2 * len(self.coefficients) + 20) * total * arb(2) ** -53 + sys.float_info.min).upper

    def bits(self, *lags: int) -> int:
        """A working precision at which every angle s theta_i keeps 128 bits after the point."""
        return _FIRST_BITS + max(abs(lag) for lag in lags).bit_length() + self._fastest.bit_length()

    @cached_property
    def _fastest(self) -> int:
        return int(max(abs(float(theta)) for theta in self.frequencies))

    def _refined(self, lag: int, *other: int) -> arb:
        """f(lag), or f(lag) - f(other), at growing precision until it has 30 digits, or at the last one."""
        for more in _MORE_BITS:
            with ctx.workprec(self.bits(lag, *other) + more):
                ball = self.ball(lag) - sum(map(self.ball, other), arb(0))
            if ball.rel_accuracy_bits() >= _ACCURATE:
                break
        return ball

    def _candidates(self, ranges: Sequence[tuple[int, int]]) -> list[int]:
        """Every lag that the scan cannot rule out: a maximum is at most 2 `rounding` below the highest value.

        The third `rounding` is for the comparison itself, which rounds too.
        """
        origin, allowance = ranges[0][0], 3 * self.rounding
        places, heights = np.empty(0, dtype=np.int64), np.empty(0)
        for first, last in ranges:
            for start, values in self.scan(first, last):
                near = np.flatnonzero(values >= max(values.max(), heights.max(initial=-np.inf)) - allowance)
                places = np.concatenate([places, near + (start - origin)])
                heights = np.concatenate([heights, values[near]])
                kept = heights >= heights.max() - allowance
                places, heights = places[kept], heights[kept]
        return [origin + place for place in places.tolist()]

    def _decide(self, lags: Sequence[int]) -> list[int]:
        """The lags not certified to be lower than another one at the last precision, in order."""
        left = list(lags)
        for more in _MORE_BITS:
            with ctx.workprec(self.bits(*left) + more):
                heights = {lag: self.ball(lag) for lag in left}
                highest = max(heights.values(), key=arb.mid)
                left = [lag for lag, ball in heights.items() if not ball < highest]
            if len(left) == 1:
                break
        return left

    def _rotations(self, multiples: range) -> Complex128[np.ndarray, "multiple pair"]:
        """e^(i k theta_i), each the midpoint of a ball of radius below 2^-60."""
        precision = self.bits(*multiples)
        with ctx.workprec(precision):
            turned = [acb(0, k * theta).exp() for k in multiples for theta in balls(self.frequencies, precision)]
        return np.array([complex(ball) for ball in turned]).reshape(len(multiples), len(self.frequencies))


def _union(numbers: Iterable[arb]) -> arb:
    """The ball around some of them, at a precision that does not widen it."""
    with ctx.workprec(_FIRST_BITS):
        return reduce(arb.union, numbers)
