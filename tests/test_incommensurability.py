"""Rank, period and near recurrences of rotary schedules, in both directions."""

import math

import numpy as np
import pytest
import sympy
from hypothesis import given, settings
from hypothesis import strategies as st

from theory.errors import TheoryError
from theory.incommensurability import NearRecurrence, near_recurrences, rational_rank, realigning_period
from theory.kernel import kernel
from theory.schedule import RotarySchedule

PI, ZERO, ONE = sympy.pi, sympy.S.Zero, sympy.S.One


def equal_kernel(base: float, lags: np.ndarray) -> np.ndarray:
    schedule = RotarySchedule.geometric(64, base)
    return kernel(np.full(32, 1 / 32), schedule.frequencies, lags)


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


def test_unknown_exact_frequencies_and_wrong_masks_are_named():
    floating = RotarySchedule(np.array([1.0, 0.1]))
    for question in (rational_rank, realigning_period):
        with pytest.raises(TheoryError, match="exact frequencies of this schedule are not known"):
            question(floating)
    with pytest.raises(TheoryError, match="2 booleans, one a pair"):
        rational_rank(RotarySchedule.geometric(4, 10_000), np.ones(3, dtype=bool))


def test_highest_recurrence_at_base_1000():
    # statements.md, base sweep: .546 at s = 1265873 is the highest of 100 <= s <= 3e6.
    found = near_recurrences(np.full(32, 1 / 32), RotarySchedule.geometric(64, 1_000), 3_000_000, count=5)
    far = [recurrence for recurrence in found if recurrence.lag >= 100]
    assert far[0].lag == 1_265_873
    assert far[0].kernel == pytest.approx(0.546, abs=5e-4)
    assert [r.kernel for r in found] == sorted((r.kernel for r in found), reverse=True)


def test_shoulder_of_the_peak_is_no_recurrence():
    # At base 1e4 the maximum over s >= 4 is g(4) = .7479, the flank of the peak at 0.
    g = equal_kernel(10_000, np.arange(4, 20_000))
    assert np.argmax(g) == 0
    assert g[0] == pytest.approx(0.7479, abs=5e-5)
    found = near_recurrences(np.full(32, 1 / 32), RotarySchedule.geometric(64, 10_000), 20_000)
    assert 4 not in {recurrence.lag for recurrence in found}


@settings(deadline=None, max_examples=15)
@given(seed=st.integers(0, 1000), reach=st.sampled_from([1, 2, 50, 8_191, 8_192, 8_193, 20_000]))
def test_recurrences_are_the_local_maxima_whatever_the_chunk(seed, reach):
    rng = np.random.default_rng(seed)
    weights, schedule = rng.dirichlet(np.ones(3)), RotarySchedule(rng.uniform(0.01, 2, size=3))
    g = kernel(weights, schedule.frequencies, np.arange(reach + 2))
    peaks = [s for s in range(1, reach + 1) if g[s] > g[s - 1] and g[s] >= g[s + 1]]
    highest = sorted(peaks, key=lambda s: -g[s])[:4]
    found = near_recurrences(weights, schedule, reach, count=4)
    assert len(found) == len(highest)
    np.testing.assert_allclose([r.kernel for r in found], g[highest], atol=1e-10)


def test_periodic_schedule_comes_back_to_one():
    found = near_recurrences(np.ones(1), RotarySchedule.from_exact([2 * PI / 5]), 12, count=2)
    assert sorted(r.lag for r in found) == [5, 10]
    assert all(r.kernel == pytest.approx(1, abs=1e-12) for r in found)
    assert isinstance(found[0], NearRecurrence)


@pytest.mark.parametrize(
    ("weights", "reach", "text"), [(np.ones(2), 5, "one weight a pair"), (np.ones(1), 0, "1 or more")]
)
def test_recurrences_name_what_does_not_fit(weights, reach, text):
    with pytest.raises(TheoryError, match=text):
        near_recurrences(weights, RotarySchedule.geometric(2, 10), reach)
