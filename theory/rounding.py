"""Rounding to a floating-point format, once and to nearest even, of numbers that float64 does not hold.

A real number between two neighbouring float64s rounds to a format of 51 significand bits or fewer as the odd one of
them does (Boldo and Melquiond 2008, theorem 3): numbers of the format, and the ties between them, are even float64s.
So a number travels as an odd float64, and formats round from that. A ball (Arb) that no precision tells from a
float64 is taken to be that float64.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from flint import arb, ctx, fmpq
from jaxtyping import Float64

from theory.horizon import FloatFormat

_BITS = (160, 320, 1280)


def largest_number(precision: FloatFormat) -> float:
    """(2 - 2^(1-t)) 2^bias; what rounds beyond it is infinite."""
    bias = 2 ** (precision.exponent_bits - 1) - 1
    return math.ldexp(2 - 2.0**-precision.fraction_bits, bias)


def nearest(numbers: Float64[np.ndarray, "*shape"], precision: FloatFormat) -> Float64[np.ndarray, "*shape"]:
    """The numbers of a format next to float64s, ties to even, its subnormals and infinities included."""
    exponents = np.frexp(numbers)[1]
    # Numbers of a binade lie 2^(exponent - t) apart, those below the normal ones as far as the smallest.
    steps = np.maximum(exponents - precision.significand_bits, 1 - precision.underflow_exponent)
    rounded = np.ldexp(np.rint(np.ldexp(numbers, -steps)), steps)
    return np.where(np.abs(rounded) > largest_number(precision), np.copysign(np.inf, rounded), rounded)


def odd_sums(terms: Float64[np.ndarray, "number term"]) -> Float64[np.ndarray, "number"]:
    """The sum of each row, exact but for its last bit, which is odd where the sum lies between two float64s."""
    rows = terms.tolist()
    sums = np.array([math.fsum(row) for row in rows])
    # `fsum` rounds once, so that what is left has the sign of the exact remainder.
    left = np.array([math.fsum([*row, -total]) for row, total in zip(rows, sums.tolist(), strict=True)])
    return _odd(sums, left)


def odd_ball(number: Callable[[], arb]) -> float:
    """A number that is worked out at the current precision of balls, as an odd float64."""
    for bits in _BITS:
        with ctx.workprec(bits):
            ball = number()
            middle = ball.mid()
            numerator, denominator = middle.fmpq().p, middle.fmpq().q
            value = int(numerator) / int(denominator)
            left = ball - arb(fmpq(*value.as_integer_ratio()))
        if not left.contains(0):
            return float(_odd(np.array([value]), np.array([1.0 if left > 0 else -1.0]))[0])
    return value


def _odd(values: Float64[np.ndarray, "number"], left: Float64[np.ndarray, "number"]) -> Float64[np.ndarray, "number"]:
    """Float64s next to numbers that exceed them by `left`: the neighbour on that side where they are even."""
    beside = np.nextafter(values, np.copysign(np.inf, left))
    even = np.ascontiguousarray(values).view(np.int64) % 2 == 0
    return np.where((left != 0) & even, beside, values)
