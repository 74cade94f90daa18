"""Whether a nonzero lag turns every active pair by whole turns, and how near the others come.

An exact frequency is taken as a monomial, a rational times powers of primes and of pi:

    theta = q prod_p p^(e_p) pi^k,   e_p and k rational.

Its class is (e_p mod 1, k). Two frequencies are rational multiples of each other iff their
classes agree, and distinct classes are linearly independent over Q: radicals of distinct
classes by Besicovitch (1940), powers of pi because pi is transcendental (Lindemann 1882).
So the rank over Q is the number of classes, and

    s theta in 2 pi Z for some s != 0   iff   theta = 0 or theta = 2 pi a/m,

the least such s being m in lowest terms. Most lags only come near: g(s) < 1.

Source: arXiv 2607.18759, Lemma 2 (uniqueness) and Table 5; rank and period are ours.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import lcm

import numpy as np
import sympy
from jaxtyping import Bool, Float64

from theory.errors import TheoryError
from theory.schedule import RotarySchedule

_CHUNK = 1 << 13


@dataclass(frozen=True)
class NearRecurrence:
    """A lag s at which the kernel has a local maximum, and g(s) there."""

    lag: int
    kernel: float


def rational_rank(schedule: RotarySchedule, active: Bool[np.ndarray, "pair"] | None = None) -> int:
    """Dimension over Q of the span of the active frequencies, exact.

    The closure of {s theta mod 2 pi} is a torus of this dimension where 2 pi is independent of
    them, as it is of algebraic ones. For base = A^k with A no power, h pairs: h / gcd(k, h).
    Raises TheoryError where exact frequencies are not known or one is no monomial.
    """
    return len({_class(theta) for theta in _active(schedule, active) if theta != 0})


def realigning_period(schedule: RotarySchedule, active: Bool[np.ndarray, "pair"] | None = None) -> int | None:
    """Least s > 0 with s theta_i in 2 pi Z for every active pair; None where no nonzero s does.

    A frequency of 0 never moves and constrains nothing. Raises TheoryError as `rational_rank`.
    """
    turns = [theta / (2 * sympy.pi) for theta in _active(schedule, active) if theta != 0]
    if any(_class(turn) != _RATIONAL for turn in turns):
        return None
    return lcm(*(int(sympy.Rational(turn).q) for turn in turns))


def near_recurrences(
    weights: Float64[np.ndarray, "pair"], schedule: RotarySchedule, reach: int, count: int = 5
) -> tuple[NearRecurrence, ...]:
    """The `count` highest local maxima of g over lags 1..reach, highest first, the nearer first in a tie.

    The falling flank of the peak at 0 holds no local maximum and so does not appear. Float64:
    g(s) is off by about s 1e-16, so that nearer ties than this are not told apart.
    """
    if len(weights) != schedule.pairs:
        raise TheoryError(f"give one weight a pair: the schedule has {schedule.pairs}, got {len(weights)}")
    if reach < 1 or count < 1:
        raise TheoryError(f"reach and count must be 1 or more, got {reach} and {count}")
    best: list[NearRecurrence] = []
    for start, g in _kernel_chunks(weights, schedule.frequencies, reach):
        peaks = 1 + np.flatnonzero((g[1:-1] > g[:-2]) & (g[1:-1] >= g[2:]))
        highest = peaks[np.argsort(-g[peaks], kind="stable")[:count]]
        best += [NearRecurrence(start + int(j), float(g[j])) for j in highest]
        best = sorted(best, key=lambda peak: -peak.kernel)[:count]
    return tuple(best)


def _kernel_chunks(
    weights: Float64[np.ndarray, "pair"], frequencies: Float64[np.ndarray, "pair"], reach: int
) -> Iterator[tuple[int, Float64[np.ndarray, "lag"]]]:
    """g on overlapping runs of lags that start at `start`, each lag 1..reach once an inner one.

    cos((start + j) theta) by the addition theorem: the cosines of j are taken once for all runs.
    """
    size = min(_CHUNK, reach)
    angles = np.multiply.outer(np.arange(size + 2), frequencies)
    cosines, sines = np.cos(angles), np.sin(angles)
    for start in range(0, reach, size):
        turn = start * frequencies
        g = cosines @ (weights * np.cos(turn)) - sines @ (weights * np.sin(turn))
        yield start, g[: min(size, reach - start) + 2]


_Class = tuple[tuple[sympy.Expr, sympy.Rational], ...]
_RATIONAL: _Class = ()


def _active(schedule: RotarySchedule, active: Bool[np.ndarray, "pair"] | None) -> list[sympy.Expr]:
    if schedule.exact is None:
        raise TheoryError(
            "the exact frequencies of this schedule are not known: rank and period are not defined by "
            "floating-point numbers, build it with RotarySchedule.from_exact or with a whole-number base"
        )
    mask = np.ones(schedule.pairs, dtype=bool) if active is None else np.asarray(active)
    if mask.dtype != bool or mask.shape != (schedule.pairs,):
        raise TheoryError(f"active must be {schedule.pairs} booleans, one a pair, got {mask.dtype} {mask.shape}")
    return [theta for theta, on in zip(schedule.exact, mask, strict=True) if on]


def _class(theta: sympy.Expr) -> _Class:
    """Fractional exponents of the primes and the exponent of pi, those that are not 0."""
    exponents: dict[sympy.Expr, sympy.Rational] = {}
    for factor, power in theta.as_powers_dict().items():
        if not power.is_Rational or not (factor == sympy.pi or _is_radicand(factor, power)):
            raise TheoryError(
                f"the frequency {theta} is no rational times powers of primes and of pi: its rational "
                "dependence on others is not decided, give frequencies of the form q * a**(b/c) * pi**k"
            )
        primes = {factor: 1} if factor == sympy.pi else sympy.factorrat(factor)
        for prime, multiplicity in primes.items():
            prime = sympy.sympify(prime)
            exponents[prime] = exponents.get(prime, sympy.S.Zero) + multiplicity * power
    reduced = ((p, e if p == sympy.pi else e - sympy.floor(e)) for p, e in exponents.items() if p != -1)
    return tuple(sorted(((p, e) for p, e in reduced if e != 0), key=str))


def _is_radicand(factor: sympy.Expr, power: sympy.Rational) -> bool:
    """A rational number, above 0 unless its power is whole: a negative root is no real number."""
    return bool(factor.is_Rational and (factor > 0 or power.is_Integer))
