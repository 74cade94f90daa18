"""Exact numbers, and balls of any precision that hold them (Arb).

A float is exactly the binary number that it is, a fraction or a sympy rational itself. An exact frequency is a
sum, product or power of rationals and pi; one that a schedule knows only in floating point is that binary number.
"""

from __future__ import annotations

import math
from fractions import Fraction
from functools import lru_cache

import numpy as np
import sympy
from flint import arb, ctx, fmpq

from theory.errors import TheoryError
from theory.schedule import RotarySchedule

_DOUBLINGS = 5


def rational(number: object, name: str) -> fmpq:
    """An int, a float of up to 64 bits, a fraction or a sympy rational as the rational number that it is.

    Raises TheoryError, with the `name` of the number, for anything else and for what is not finite.
    """
    plain = number.item() if isinstance(number, np.generic) else number
    try:
        exact = Fraction(plain)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        raise TheoryError(
            f"{name} must be a finite float, integer or rational, got {plain!r} of type {type(number).__name__}"
        ) from None
    return fmpq(exact.numerator, exact.denominator)


def nearest_float(number: fmpq) -> float:
    """The float next to a rational number; a quotient of whole numbers is rounded once."""
    return int(number.p) / int(number.q)


def exact_frequencies(schedule: RotarySchedule) -> tuple[sympy.Expr, ...]:
    """theta_i in rad/position: the exact values of a schedule that has them, else its floats as binary numbers."""
    return schedule.exact or tuple(sympy.Rational(theta) for theta in schedule.frequencies.tolist())


@lru_cache(maxsize=64)
def balls(numbers: tuple[sympy.Expr, ...], precision: int) -> tuple[arb, ...]:
    """Sums, products and powers of rationals and pi as balls of relative radius near 2^-precision.

    A sum that cancels is worked out at up to 2^4 times the precision.
    Raises TheoryError for another number and for one that even then is not told from 0.
    """
    return tuple(_narrow(number, precision) for number in numbers)


def _narrow(number: sympy.Expr, precision: int) -> arb:
    for doublings in range(_DOUBLINGS):
        with ctx.workprec((precision + 32) << doublings):
            ball = _ball(number)
        if ball.rel_accuracy_bits() >= precision:
            return ball
    raise TheoryError(
        f"{number} is not told from 0 at {(precision + 32) << doublings} bits: simplify it, give 0 where it is 0"
    )


def _ball(number: sympy.Expr) -> arb:
    """At the current precision."""
    if number.is_Rational:
        return arb(fmpq(int(number.p), int(number.q)))
    if number == sympy.pi:
        return arb.pi()
    if not (number.is_Add or number.is_Mul or number.is_Pow):
        raise TheoryError(f"{number} has no ball: give sums, products and powers of rationals and pi")
    parts = [_ball(part) for part in number.args]
    if number.is_Add:
        return sum(parts, arb(0))
    return math.prod(parts, start=arb(1)) if number.is_Mul else parts[0] ** parts[1]
