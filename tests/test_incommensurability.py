"""Rank and period of rotary schedules, in both directions."""

import math

import numpy as np
import pytest
import sympy
from hypothesis import given, settings
from hypothesis import strategies as st

from theory.errors import TheoryError
from theory.incommensurability import Circle, monomial, orbit_closure, rational_rank, realigning_period
from theory.kernel import kernel
from theory.ramp_scaling import Yarn
from theory.schedule import RotarySchedule

PI, ZERO, ONE = sympy.pi, sympy.S.Zero, sympy.S.One


@pytest.mark.parametrize(
    ("dim", "base", "rank"),
    [(64, 10_000, 8), (64, 1_000, 32), (64, 100_000, 32), (128, 10_000, 16), (64, 500_000, 32), (64, 5_000_000, 32)],
)
def test_rank_of_geometric_schedules(dim, base, rank):
    assert rational_rank(RotarySchedule.geometric(dim, base)) == rank


@settings(deadline=None, max_examples=30)
@given(root=st.sampled_from([2, 3, 6, 10, 12]), power=st.integers(1, 8), pairs=st.integers(1, 24))
def test_rank_is_h_over_gcd_for_a_power(root, power, pairs):
    schedule = RotarySchedule.geometric(2 * pairs, root**power)
    assert rational_rank(schedule) == pairs // math.gcd(power, pairs)


def test_rank_counts_classes_of_radicals_and_of_pi():
    six = [sympy.sqrt(6), sympy.sqrt(24) / 7, -sympy.sqrt(sympy.Rational(3, 2)), 1 / sympy.sqrt(6)]
    assert rational_rank(RotarySchedule.from_exact(six)) == 1
    mixed = [*six, sympy.sqrt(2), PI, 2 * PI / 5, ZERO, sympy.Rational(3, 7), PI * sympy.sqrt(2)]
    assert rational_rank(RotarySchedule.from_exact(mixed)) == 5


def test_only_what_stands_under_a_root_is_factored():
    # The product of two primes of 80 digits, which no factoring splits.
    hard = sympy.nextprime(10**79) * sympy.nextprime(3 * 10**79)
    assert rational_rank(RotarySchedule.from_exact([hard * sympy.sqrt(2), sympy.sqrt(2) / hard, ONE / hard])) == 2


def test_rank_of_the_active_pairs_only():
    schedule = RotarySchedule.geometric(64, 10_000)
    every_eighth = np.arange(32) % 8 == 0
    assert rational_rank(schedule, every_eighth) == 1
    assert rational_rank(schedule, np.zeros(32, dtype=bool)) == 0


@pytest.mark.parametrize("base", [2, 1_000, 10_000, 500_000])
def test_algebraic_frequencies_never_realign(base):
    assert realigning_period(RotarySchedule.geometric(64, base)) is None


@pytest.mark.parametrize(
    ("exact", "period"),
    [
        ([2 * PI / 5], 5),
        ([4 * PI / 10], 5),
        ([PI / 3, 4 * PI / 5, ZERO], 30),
        ([-2 * PI / 7, 6 * PI], 7),
        ([ZERO], 1),
        ([2 * PI / 5, ONE], None),
        ([PI * sympy.sqrt(2)], None),
        ([PI**2], None),
        ([sympy.sqrt(3)], None),
    ],
)
def test_period(exact, period):
    assert realigning_period(RotarySchedule.from_exact(exact)) == period


def test_period_of_the_active_pairs_only():
    schedule = RotarySchedule.from_exact([2 * PI / 5, ONE])
    assert realigning_period(schedule, np.array([True, False])) == 5
    assert realigning_period(schedule, np.array([False, True])) is None
    assert realigning_period(schedule, np.array([False, False])) == 1


@pytest.mark.parametrize(
    ("ratios", "multiples"),
    [
        ((sympy.Rational(333333336, 1000000007), 1), (333333336, 1000000007)),
        ((1 + sympy.Rational(1, 10**20), 1), (10**20 + 1, 10**20)),
        ((4, -6), (2, -3)),
        ((-4, 6, -10), (-2, 3, -5)),
        ((sympy.Rational(-2, 3), sympy.Rational(4, 5)), (-5, 6)),
        ((7,), (1,)),
    ],
)
@pytest.mark.parametrize("unit", [ONE, sympy.sqrt(2), PI * sympy.sqrt(3), sympy.sqrt(sympy.Rational(2, 3)), 1 / PI])
def test_the_multiples_of_a_circle_are_the_exact_ratios(ratios, multiples, unit):
    closure = orbit_closure(RotarySchedule.from_exact([unit * ratio for ratio in ratios]))
    assert closure.circles == (Circle(tuple(range(len(ratios))), multiples),)
    assert (closure.finite, closure.period) == ((), 1)


def test_the_closure_of_scaled_frequencies_holds_to_60_digits():
    # A ramp of 1.1 leaves ratios such as 64176294690029573/644014746713980980, which no short fraction is.
    schedule = Yarn(1.1, 4096).schedule(128, 10_000)
    circles = orbit_closure(schedule).circles
    assert max(n for circle in circles for n in circle.multiples) > 10**15
    for circle in circles:
        thetas = [schedule.exact[pair].evalf(60) for pair in circle.pairs]
        units = [theta / n for theta, n in zip(thetas, circle.multiples, strict=True)]
        assert all(abs(unit / units[0] - 1) < sympy.Float("1e-50", 60) for unit in units)


@settings(deadline=None, max_examples=40)
@given(st.lists(st.tuples(st.integers(-30, 30), st.integers(1, 12)), min_size=1, max_size=4))
def test_period_is_the_least_return_of_the_kernel(turns):
    schedule = RotarySchedule.from_exact([2 * PI * a / m for a, m in turns])
    period = realigning_period(schedule)
    weights = np.full(len(turns), 1 / len(turns))
    g = kernel(weights, schedule.frequencies, np.arange(1, period + 1))
    assert g[-1] == pytest.approx(1, abs=1e-9)
    assert (g[:-1] < 1 - 1e-6).all()


@pytest.mark.parametrize("exact", [1 + sympy.sqrt(2), sympy.E, sympy.cos(1)])
def test_a_frequency_that_is_no_monomial_is_named(exact):
    with pytest.raises(TheoryError, match=r"no rational times powers of primes and of pi.*give frequencies"):
        rational_rank(RotarySchedule.from_exact([exact]))


@pytest.mark.parametrize(
    "exact", [ONE, ZERO, -2 * PI / 5, sympy.Integer(10_000) ** sympy.Rational(-3, 32), sympy.sqrt(6) / PI]
)
def test_a_monomial_is_the_product_of_its_factors(exact):
    factors = monomial(exact)
    assert all(base == PI or base.is_Rational for base, _ in factors)
    assert sympy.prod(base**power for base, power in factors) == exact


def test_a_root_of_a_negative_number_is_no_monomial():
    with pytest.raises(TheoryError, match="give frequencies of the form"):
        monomial(sympy.Integer(-2) ** sympy.Rational(1, 3))


def test_unknown_exact_frequencies_and_wrong_masks_are_named():
    floating = RotarySchedule(np.array([1.0, 0.1]))
    for question in (rational_rank, realigning_period):
        with pytest.raises(TheoryError, match="exact frequencies of this schedule are not known"):
            question(floating)
    with pytest.raises(TheoryError, match="2 booleans, one a pair"):
        rational_rank(RotarySchedule.geometric(4, 10_000), np.ones(3, dtype=bool))
