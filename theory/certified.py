"""Certified heights of the relative kernel and certified margins, at any lag.

Both are values, at integers s, of one sum over the rotary pairs with exact coefficients,

    f(s) = Re sum_i c_i e^(i s theta_i).

The kernel g has c_i = p_i. The mean profile at j tokens back is f(j) with c_i = scale gain_i a_i conj(b_i),
which needs no angle. A float is taken as exactly the binary number that it is, an exact (sympy) frequency
or weight as itself. Ball arithmetic (Arb) then encloses f(s) at 1, at 1e9, at 1e30.

A maximum is found in two steps. A float64 scan, whose error bound is proved at `CosineSum.scan`, discards
what it can; ball arithmetic of growing precision decides the rest. What 1024 bits beyond those of the lag
do not tell apart is reported as a tie.

Source: arXiv 2607.18759, Lemma 2, Proposition 1, Corollary 1; the certificates are ours.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache, reduce

import numpy as np
import sympy
from flint import acb, arb, ctx, fmpq
from jaxtyping import Complex128, Float64

from theory.errors import TheoryError
from theory.head import Carrier
from theory.incommensurability import monomial, realigning_period
from theory.kernel import check_target
from theory.schedule import RotarySchedule, as_pairs

_BLOCK = 1 << 10
_FIRST_BITS, _LAST_BITS = 128, 1024

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
    """g(s) = sum_i p_i cos(s theta_i) at one lag s of any size and sign, to 30 digits or more.

    Raises TheoryError where weights and schedule do not fit or a frequency has no exact value in closed form.
    """
    return CosineSum.of_kernel(weights, schedule).enclosure(lag)


def certified_maximum(weights: Weights, schedule: RotarySchedule, first: int, last: int) -> CertifiedMaximum:
    """The maximum of g over the lags first <= s <= last, negative ones included, and where it is.

    An exact period is a tie. Some 1e8 lags a second at 32 pairs; memory for 2^20 lags and the candidates.
    Raises TheoryError as `kernel_enclosure` and for an empty range.
    """
    if first > last:
        raise TheoryError(f"the lags from {first} to {last} are none: give first <= last")
    lags, ball = CosineSum.of_kernel(weights, schedule).maximum(((first, last),))
    return CertifiedMaximum(min(lags), Enclosure.of(ball), len(lags) == 1)


def certified_margin(carrier: Carrier, offset: int, length: int) -> CertifiedMargin:
    """mu_L = phi(-K) - max over -L < delta <= 0, delta != -K, of phi(delta), K = `offset`, L = `length`.

    phi is that of the means alone, in nats: no bias, no local window. The means, the scale and the gains of
    the schedule are taken as the binary numbers that they are.
    Raises TheoryError where the target is not among the offsets or has no competitor, or a mean is 0.
    """
    check_target(offset, length)
    if length < 2:
        raise TheoryError(f"a margin needs a competitor: give a length of 2 or more, got {length}")
    profile = CosineSum.of_carrier(carrier)
    ranges = ((0, offset - 1), (offset + 1, length - 1))
    rivals, _ = profile.maximum([(first, last) for first, last in ranges if first <= last])
    value = reduce(arb.union, (profile.difference(offset, rival) for rival in rivals))
    return CertifiedMargin(Enclosure.of(value), -min(rivals), len(rivals) == 1)


@dataclass(frozen=True, eq=False)
class CosineSum:
    """f(s) = Re sum_i c_i e^(i s theta_i) over the pairs whose c_i, a pair of rationals, is not 0.

    Raises TheoryError where no pair is left or the sum of |c_i| is beyond float64.
    """

    coefficients: tuple[tuple[fmpq, fmpq], ...]
    frequencies: tuple[sympy.Expr, ...]
    period: int | None

    @classmethod
    def of_kernel(cls, weights: Weights, schedule: RotarySchedule) -> CosineSum:
        """g: c_i = p_i."""
        if len(weights) != schedule.pairs:
            raise TheoryError(f"give one weight a pair: the schedule has {schedule.pairs}, got {len(weights)}")
        return cls._of(((_rational(weight), fmpq(0)) for weight in weights), schedule)

    @classmethod
    def of_carrier(cls, carrier: Carrier) -> CosineSum:
        """phi(-s): c_i = scale gain_i a_i conj(b_i), in nats."""
        means = zip(as_pairs(carrier.query_mean), as_pairs(carrier.key_mean), carrier.schedule.score_gains, strict=True)
        scale = _rational(carrier.logit_scale)
        coefficients = []
        for query, key, gain in means:
            a, b, c, d = (_rational(lane) for lane in (query.real, query.imag, key.real, key.imag))
            factor = scale * _rational(gain)
            coefficients.append((factor * (a * c + b * d), factor * (b * c - a * d)))
        return cls._of(coefficients, carrier.schedule)

    @classmethod
    def _of(cls, coefficients: Iterable[tuple[fmpq, fmpq]], schedule: RotarySchedule) -> CosineSum:
        exact = schedule.exact or tuple(sympy.Rational(theta) for theta in schedule.frequencies.tolist())
        active = [(c, theta) for c, theta in zip(coefficients, exact, strict=True) if c != (0, 0)]
        if not active:
            raise TheoryError("no rotary pair is active: every weight is 0, so there is no kernel")
        frequencies = tuple(theta for _, theta in active)
        total = cls(tuple(c for c, _ in active), frequencies, _period(frequencies))
        if not math.isfinite(total.rounding * 2**53):
            raise TheoryError("the weights add up to more than float64 holds: scale them down")
        return total

    def ball(self, lag: int) -> arb:
        """f(s) at the working precision."""
        total = arb(0)
        for (real, imaginary), theta in zip(self.coefficients, _balls(self.frequencies, ctx.prec), strict=True):
            sine, cosine = (lag * theta).sin_cos()
            total += real * cosine - imaginary * sine
        return total

    def turns(self) -> tuple[arb, ...]:
        """theta_i/2 pi at the working precision."""
        return tuple(theta / (2 * arb.pi()) for theta in _balls(self.frequencies, ctx.prec))

    def enclosure(self, lag: int) -> Enclosure:
        """f(s) to the digits of 128 bits, whatever the lag."""
        with ctx.workprec(self.bits(lag)):
            return Enclosure.of(self.ball(lag))

    def maximum(self, ranges: Sequence[tuple[int, int]]) -> tuple[list[int], arb]:
        """The lags of some ranges that may hold the maximum, one where it is certain, and a ball that holds it.

        Of an exact period each range is scanned once; a second lag stands for those that follow.
        """
        period = self.period or 1 + max(last - first for first, last in ranges)
        lags, ball = self._decide(self._candidates([(a, min(z, a + period - 1)) for a, z in ranges]))
        again = [lag + period for lag in lags for first, last in ranges if first <= lag <= last - period]
        return lags + again, ball

    def exceeds(self, lag: int, other: int) -> bool:
        """Whether f(lag) > f(other), certified; two lags that no precision tells apart are equal."""
        return self._decide([lag, other])[0] == [lag]

    def difference(self, lag: int, other: int) -> arb:
        """f(lag) - f(other), to the precision that decides its sign, if one does; 0 for whole periods."""
        if self.period is not None and (lag - other) % self.period == 0:
            return arb(0)
        extra = 0
        while True:
            with ctx.workprec(self.bits(lag, other) + extra):
                ball = self.ball(lag) - self.ball(other)
            if (not ball.contains(0) and ball.rel_accuracy_bits() >= 53) or extra >= _LAST_BITS:
                return ball
            extra = 2 * extra + _FIRST_BITS

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
        amplitudes = np.array([complex(int(a.p) / int(a.q), int(b.p) / int(b.q)) for a, b in self.coefficients])
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
        fastest = max(abs(float(theta)) for theta in self.frequencies)
        return _FIRST_BITS + max(abs(lag) for lag in lags).bit_length() + int(fastest).bit_length()

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

    def _decide(self, lags: Sequence[int]) -> tuple[list[int], arb]:
        """The lags not certified to be lower than another one at the last precision, and a ball of their maximum."""
        extra, left = 0, list(lags)
        while True:
            with ctx.workprec(self.bits(*left) + extra):
                balls = {lag: self.ball(lag) for lag in left}
                highest = max(balls.values(), key=arb.mid)
                left = [lag for lag, ball in balls.items() if not ball < highest]
                if len(left) == 1 or extra >= _LAST_BITS:
                    return left, reduce(arb.union, (balls[lag] for lag in left))
            extra = 2 * extra + _FIRST_BITS

    def _rotations(self, multiples: range) -> Complex128[np.ndarray, "multiple pair"]:
        """e^(i k theta_i), each the midpoint of a ball of radius below 2^-60."""
        precision = self.bits(*multiples)
        with ctx.workprec(precision):
            balls = [acb(0, k * theta).exp() for k in multiples for theta in _balls(self.frequencies, precision)]
        return np.array([complex(ball) for ball in balls]).reshape(len(multiples), len(self.frequencies))


def _period(frequencies: tuple[sympy.Expr, ...]) -> int | None:
    """The exact period, None where there is none; a rational turns by no rational part of 2 pi."""
    if any(theta.is_Rational and theta != 0 for theta in frequencies):
        return None
    return realigning_period(RotarySchedule.from_exact(frequencies))


@lru_cache(maxsize=64)
def _balls(frequencies: tuple[sympy.Expr, ...], precision: int) -> tuple[arb, ...]:
    """Exact frequencies as balls of relative radius near 2^-precision."""
    with ctx.workprec(precision):
        return tuple(math.prod((_power(*factor) for factor in monomial(theta)), start=arb(1)) for theta in frequencies)


def _power(base: sympy.Expr, exponent: sympy.Rational) -> arb:
    return (arb.pi() if base == sympy.pi else arb(_rational(base))) ** _rational(exponent)


def _rational(number: float | sympy.Rational) -> fmpq:
    """A float as the binary number that it is."""
    try:
        exact = Fraction(number)
    except (ValueError, OverflowError):
        raise TheoryError(f"weights, means and gains must be finite numbers, got {number}") from None
    return fmpq(exact.numerator, exact.denominator)
