"""Whether a nonzero lag turns every active pair by whole turns.

An exact frequency is taken as a monomial, a rational times powers of primes and of pi:

    theta = q prod_p p^(e_p) pi^k,   e_p and k rational.

Its class is (e_p mod 1, k). Two frequencies are rational multiples of each other iff their
classes agree, and the multiple is then the ratio of what is left as q. Distinct classes are
linearly independent over Q: radicals by Besicovitch (1940), powers of pi because pi is
transcendental (Lindemann 1882).
So the rank over Q is the number of classes, and

    s theta in 2 pi Z for some s != 0   iff   theta = 0 or theta = 2 pi a/m,

the least such s being m in lowest terms. How near other lags come is in `theory.recurrences`.

Source: arXiv 2607.18759, Lemma 2 (uniqueness) and Table 5; rank and period are ours.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from math import gcd, lcm

import numpy as np
import sympy
from jaxtyping import Bool

from theory.errors import TheoryError
from theory.schedule import RotarySchedule


@dataclass(frozen=True)
class Circle:
    """A class of pairs whose frequencies are whole multiples n_k of one unit that is no rational multiple of 2 pi."""

    pairs: tuple[int, ...]
    multiples: tuple[int, ...]


@dataclass(frozen=True)
class OrbitClosure:
    """The closure of {s theta mod 2 pi}: a product of circles and of the residues of s modulo a period.

    `finite` lists the pairs with theta = 2 pi residue/period, those that never move among them.
    """

    circles: tuple[Circle, ...]
    finite: tuple[int, ...]
    residues: tuple[int, ...]
    period: int


def orbit_closure(schedule: RotarySchedule) -> OrbitClosure:
    """The closure of the orbit of all pairs. Raises TheoryError as `rational_rank`.

    Distinct classes of theta/2 pi are independent over Q, of the rational numbers too, so that the
    orbit fills the product of their circles (Kronecker), uniformly (Weyl), whatever s is modulo the period.
    """
    classes: dict[_Class, dict[int, Fraction]] = {}
    for pair, theta in enumerate(_active(schedule, None)):
        ratio, kind = _split(theta)
        classes.setdefault(kind if theta != 0 else _OF_PI, {})[pair] = ratio
    fixed = {pair: ratio / 2 for pair, ratio in classes.pop(_OF_PI, {}).items()}
    period = lcm(*(turn.denominator for turn in fixed.values()))
    circles = []
    for ratios in classes.values():
        denominator = lcm(*(ratio.denominator for ratio in ratios.values()))
        whole = [int(ratio * denominator) for ratio in ratios.values()]
        circles.append(Circle(tuple(ratios), tuple(n // gcd(*whole) for n in whole)))
    residues = tuple(int(turn * period) for turn in fixed.values())
    return OrbitClosure(tuple(circles), tuple(fixed), residues, period)


def rational_rank(schedule: RotarySchedule, active: Bool[np.ndarray, "pair"] | None = None) -> int:
    """Dimension over Q of the span of the active frequencies, exact.

    The closure of {s theta mod 2 pi} is a torus of this dimension where 2 pi is independent of
    them, as it is of algebraic ones. For base = A^k with A no power, h pairs: h / gcd(k, h).
    Raises TheoryError where exact frequencies are not known or one is no monomial.
    """
    return len({_split(theta)[1] for theta in _active(schedule, active) if theta != 0})


def realigning_period(schedule: RotarySchedule, active: Bool[np.ndarray, "pair"] | None = None) -> int | None:
    """Least s > 0 with s theta_i in 2 pi Z for every active pair; None where no nonzero s does.

    A frequency of 0 never moves and constrains nothing. Raises TheoryError as `rational_rank`.
    """
    parts = [_split(theta) for theta in _active(schedule, active) if theta != 0]
    if any(kind != _OF_PI for _, kind in parts):
        return None
    return lcm(*((ratio / 2).denominator for ratio, _ in parts))


def monomial(theta: sympy.Expr) -> tuple[tuple[sympy.Expr, sympy.Rational], ...]:
    """The factors of theta = prod a^(b/c) pi^k as pairs (base, exponent): bases are rational numbers or pi.

    Raises TheoryError where theta is no such product.
    """
    factors = tuple((base, sympy.sympify(power)) for base, power in theta.as_powers_dict().items())
    for base, power in factors:
        if not power.is_Rational or not (base == sympy.pi or _is_radicand(base, power)):
            raise TheoryError(
                f"the frequency {theta} is no rational times powers of primes and of pi: its rational "
                "dependence on others is not decided, give frequencies of the form q * a**(b/c) * pi**k"
            )
    return factors


_Class = tuple[tuple[sympy.Expr, sympy.Rational], ...]
_OF_PI: _Class = ((sympy.pi, sympy.S.One),)


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


def _split(theta: sympy.Expr) -> tuple[Fraction, _Class]:
    """theta as a rational number times the product of its class, 0 <= e_p < 1; the class leaves out e_p = 0 and k = 0.

    Only what stands under a root is factored.
    """
    rational, exponents = Fraction(1), dict[sympy.Expr, sympy.Rational]()
    for base, power in monomial(theta):
        if base != sympy.pi and power.is_Integer:
            rational *= Fraction(base.p, base.q) ** int(power)
            continue
        for prime, multiplicity in ({base: 1} if base == sympy.pi else sympy.factorrat(base)).items():
            prime = sympy.sympify(prime)
            exponents[prime] = exponents.get(prime, sympy.S.Zero) + multiplicity * power
    for prime in exponents.keys() - {sympy.pi}:
        whole = sympy.floor(exponents[prime])
        exponents[prime] -= whole
        rational *= Fraction(int(prime)) ** int(whole)
    return rational, tuple(sorted(((p, e) for p, e in exponents.items() if e != 0), key=str))


def _is_radicand(factor: sympy.Expr, power: sympy.Rational) -> bool:
    """A rational number, above 0 unless its power is whole: a negative root is no real number."""
    return bool(factor.is_Rational and (factor > 0 or power.is_Integer))
