"""Rounding to a format once, against numpy's casts, torch's, fractions and 60 digits."""

from __future__ import annotations

import math
from fractions import Fraction

import mpmath
import numpy as np
import pytest
from flint import arb
from hypothesis import given
from hypothesis import strategies as st

from theory.horizon import BF16, FP16, FP32, FloatFormat
from theory.rounding import largest_number, nearest, odd_ball, odd_sums

FORMATS = (FP16, BF16, FP32)


def nearest_fraction(number: Fraction, precision: FloatFormat) -> Fraction:
    """The definition, in whole numbers: count in steps of the binade, and let Python round ties to even."""
    if number == 0:
        return number
    exponent = math.floor(math.log2(abs(number)))
    while Fraction(2) ** exponent > abs(number):
        exponent -= 1
    while Fraction(2) ** (exponent + 1) <= abs(number):
        exponent += 1
    step = Fraction(2) ** max(exponent - precision.fraction_bits, 1 - precision.underflow_exponent)
    return round(number / step) * step


@pytest.mark.parametrize(("precision", "kind"), [(FP16, np.float16), (FP32, np.float32)])
def test_formats_of_numpy_round_as_numpy_does(precision: FloatFormat, kind: type) -> None:
    rng = np.random.default_rng(0)
    numbers = rng.normal(size=4000) * 2.0 ** rng.integers(-160, 140, size=4000)
    ties = (rng.integers(1, 4000, 500) + 0.5) * 2.0 ** (1 - precision.underflow_exponent)
    most = float(np.finfo(kind).max)
    given_numbers = np.concatenate([numbers, ties, -ties, [0.0, most, most * (1 + 2.0**-30), -2 * most, np.inf]])
    with np.errstate(over="ignore", under="ignore"):
        expected = given_numbers.astype(kind).astype(np.float64)
    assert np.array_equal(nearest(given_numbers, precision), expected)
    assert largest_number(precision) == most
    # Not the identity: most of them moved.
    assert (nearest(given_numbers, precision) != given_numbers).mean() > 0.5


def test_bf16_rounds_as_torch_rounds_float32() -> None:
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(1)
    numbers = (rng.normal(size=4000) * 2.0 ** rng.integers(-140, 120, size=4000)).astype(np.float32)
    expected = torch.from_numpy(numbers).to(torch.bfloat16).double().numpy()
    assert np.array_equal(nearest(numbers.astype(np.float64), BF16), expected)


@given(
    place=st.integers(0, 2**30),
    shift=st.integers(-20, 3),
    beyond=st.sampled_from([-1, 0, 1]),
    far=st.integers(60, 140),
    precision=st.sampled_from(FORMATS),
)
def test_a_sum_next_to_a_tie_is_rounded_once(
    place: int, shift: int, beyond: int, far: int, precision: FloatFormat
) -> None:
    """The small term is far below float64's last place, and decides to which side the tie goes."""
    t = precision.significand_bits
    terms = [math.ldexp(2**t + 2 * (place % 2 ** (t - 1)) + 1, shift), beyond * 2.0**-far]
    exact = nearest_fraction(sum(map(Fraction, terms), Fraction(0)), precision)
    assert Fraction(float(nearest(odd_sums(np.array([terms])), precision)[0])) == exact


def test_rounding_twice_is_not_rounding_once() -> None:
    """Positive control of the test above: through float64 alone the sum just above a tie is taken for the tie."""
    tie, above = 1 + 2.0**-11, 2.0**-80
    assert float(nearest(np.array([tie + above]), FP16)[0]) == 1
    assert float(nearest(odd_sums(np.array([[tie, above]])), FP16)[0]) == 1 + 2.0**-10
    assert float(nearest(odd_sums(np.array([[tie, -above]])), FP16)[0]) == 1


@given(lag=st.integers(0, 10**6), amplitude=st.floats(1, 6e4), precision=st.sampled_from(FORMATS))
def test_a_ball_rounds_as_sixty_digits_do(lag: int, amplitude: float, precision: FloatFormat) -> None:
    with mpmath.workdps(60):
        digits = mpmath.mpf(amplitude) * mpmath.cos(lag)
        fraction = Fraction(int(mpmath.floor(digits * mpmath.mpf(2) ** 180)), 2**180)
    found = nearest(np.array([odd_ball(lambda: arb(amplitude) * arb(lag).cos())]), precision)
    assert Fraction(float(found[0])) == nearest_fraction(fraction, precision)


def test_a_ball_at_a_float_is_that_float() -> None:
    assert odd_ball(lambda: 2049 * (arb.pi() / 3).cos() * 2) == 2049
    assert float(nearest(np.array([odd_ball(lambda: 2049 * (arb.pi() / 3).cos() * 2)]), FP16)[0]) == 2048
    # One above it, by far less than float64 shows, is not: it rounds up.
    above = odd_ball(lambda: arb(2049) + arb(2) ** -120)
    assert above > 2049 and float(nearest(np.array([above]), FP16)[0]) == 2050
