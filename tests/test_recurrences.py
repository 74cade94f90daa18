"""Near recurrences against brute force, sympy's continued fractions and mpmath."""

from fractions import Fraction
from itertools import pairwise, takewhile
from unittest.mock import patch

import mpmath
import numpy as np
import pytest
import sympy
from hypothesis import given, settings
from hypothesis import strategies as st
from sympy.ntheory.continued_fraction import continued_fraction_convergents, continued_fraction_iterator

from theory import certified, recurrences
from theory.certified import CosineSum, certified_maximum
from theory.errors import TheoryError
from theory.kernel import kernel
from theory.recurrences import (
    NearRecurrence,
    continued_fraction_recurrences,
    lattice_recurrences,
    near_recurrences,
    record_recurrences,
)
from theory.schedule import RotarySchedule

PI = sympy.pi
EQUAL = np.full(32, 1 / 32)
UNIT = RotarySchedule.from_exact([sympy.S.One])


def equal_kernel(base: float, lags: np.ndarray) -> np.ndarray:
    schedule = RotarySchedule.geometric(64, base)
    return kernel(np.full(32, 1 / 32), schedule.frequencies, lags)


def scanned_records(g: np.ndarray, first: int) -> list[int]:
    """Lags after `first` above all before them, by comparison one after the other."""
    records, highest = [], g[0]
    for step, height in enumerate(g[1:], start=1):
        if height > highest:
            records.append(first + step)
            highest = height
    return records


def mpmath_kernel(weights: np.ndarray, base: int, lag: int) -> mpmath.mpf:
    """g of a geometric schedule at 100 digits."""
    with mpmath.workdps(100):
        pairs = len(weights)
        thetas = [mpmath.mpf(base) ** (-mpmath.mpf(i) / pairs) for i in range(pairs)]
        return mpmath.fsum(mpmath.mpf(float(w)) * mpmath.cos(lag * t) for w, t in zip(weights, thetas, strict=True))


@pytest.mark.parametrize("reach", [710, 100_000])
def test_records_of_cos_n(reach):
    # arXiv 2608.11909: 6, 19, 25, 44, 333, 710; the next is 103993.
    found = record_recurrences(np.ones(1), UNIT, reach)
    assert [record.lag for record in found] == [6, 19, 25, 44, 333, 710]
    assert all(a.kernel.upper < b.kernel.lower for a, b in pairwise(found))


@settings(deadline=None, max_examples=30)
@given(
    seed=st.integers(0, 1000),
    pairs=st.integers(1, 4),
    after=st.integers(1, 40),
    more=st.integers(1, 3000),
    block=st.sampled_from([3, 1024]),
)
def test_records_are_those_of_a_scan(seed, pairs, after, more, block):
    rng = np.random.default_rng(seed)
    weights, schedule = rng.dirichlet(np.ones(pairs)), RotarySchedule(rng.uniform(0.01, 2, size=pairs))
    with patch.object(certified, "_BLOCK", block):
        found = record_recurrences(weights, schedule, after + more, after)
    g = kernel(weights, schedule.frequencies, np.arange(after, after + more + 1))
    assert [record.lag for record in found] == scanned_records(g, after)
    np.testing.assert_allclose([record.kernel.lower for record in found], g[[r.lag - after for r in found]], atol=1e-11)


def test_records_of_the_paper_schedule_beyond_the_peak():
    # The shoulder at 134 holds to 847602; 5228181 is next above 3.9e6.
    found = record_recurrences(EQUAL, RotarySchedule.geometric(64, 10_000), 10**6, first=110)
    assert [record.lag for record in found] == [118, 119, 132, 133, 134, 847_602, 847_603]
    for record in found:
        assert record.kernel.lower <= mpmath_kernel(EQUAL, 10_000, record.lag) <= record.kernel.upper


@pytest.mark.parametrize("noise", [-1, 1])
def test_the_screen_of_records_allows_for_the_error_of_the_scan(noise):
    # cos(1e-9 s) rises up to s = 0, by less than a rounding a step.
    slow, scan = RotarySchedule(np.array([1e-9])), CosineSum.scan

    def disturbed(total, first, last):
        for start, values in scan(total, first, last):
            yield start, values + noise * total.rounding * np.where((start + np.arange(len(values))) % 2, 1, -1)

    with patch.object(CosineSum, "scan", disturbed), patch.object(certified, "_BLOCK", 3):
        found = record_recurrences(np.ones(1), slow, reach=30, first=-30)
    assert [record.lag for record in found] == list(range(-29, 1))


def test_a_tie_sets_no_record():
    period = RotarySchedule.from_exact([2 * PI / 5])
    assert [r.lag for r in record_recurrences(np.ones(1), period, 10**7)] == [5]
    assert [r.lag for r in record_recurrences(np.ones(1), period, 10**7, first=2)] == [4, 5]
    # 2 and 3 tie by reflection; the float below 2 pi/5 turns less, so that 3 is farther from 2 pi and no record.
    floating = RotarySchedule(period.frequencies)
    with mpmath.workdps(50):
        theta = mpmath.mpf(float(period.frequencies[0]))
        assert mpmath.cos(3 * theta) < mpmath.cos(2 * theta) < mpmath.cos(4 * theta)
    assert [r.lag for r in record_recurrences(np.ones(1), floating, 4, first=2)] == [4]
    assert record_recurrences(np.ones(1), RotarySchedule(np.zeros(1)), 10**7) == ()


@pytest.mark.parametrize(
    "frequency", [sympy.S.One, -sympy.S.One, sympy.sqrt(2), 10 ** sympy.Rational(-1, 8), 2 * PI * sympy.sqrt(3)]
)
def test_records_of_one_frequency_are_the_convergents_of_sympy(frequency):
    found = continued_fraction_recurrences(np.ones(1), RotarySchedule.from_exact([frequency]), 10**12)
    convergents = continued_fraction_convergents(continued_fraction_iterator(abs(frequency) / (2 * PI)))
    denominators = takewhile(lambda q: q <= 10**12, (int(fraction.q) for fraction in convergents))
    assert [r.lag for r in found] == [q for q in denominators if q > 1]


@settings(deadline=None, max_examples=30)
@given(theta=st.integers(-(2**22), 2**22).filter(bool).map(lambda whole: whole / 2**20))
def test_records_of_one_frequency_are_those_of_the_scan(theta):
    schedule = RotarySchedule(np.array([theta, 0.0]))
    weights = np.array([0.75, 0.25])
    found = continued_fraction_recurrences(weights, schedule, 20_000)
    assert found == record_recurrences(weights, schedule, 20_000)


@settings(deadline=None, max_examples=30)
@given(turn=st.fractions(-3, 3, max_denominator=300))
def test_records_of_a_rational_turn_end_at_the_period(turn):
    schedule = RotarySchedule.from_exact([2 * PI * sympy.Rational(turn.numerator, turn.denominator)])
    if turn == 0 or turn.denominator == 1:
        assert record_recurrences(np.ones(1), schedule, 100) == ()
        return
    found = continued_fraction_recurrences(np.ones(1), schedule, 1000)
    assert [r.lag for r in found] == [r.lag for r in record_recurrences(np.ones(1), schedule, 1000)]
    assert found[-1].lag == turn.denominator


@pytest.mark.parametrize(
    ("low", "high", "quotients"),
    [
        ("2/5", "2/5", [2, 2]),
        ("1/7", "1/6", None),
        ("1000/6285", "1000/6284", None),
        ("0", "1/5", None),
        ("3", "3", []),
    ],
)
def test_quotients_are_those_that_an_interval_shares(low, high, quotients):
    assert recurrences._shared_quotients(Fraction(low), Fraction(high), 10**6) == quotients
    if quotients is None:  # up to a denominator that the ends still share, they are known
        assert recurrences._shared_quotients(Fraction("1000/6285"), Fraction("1000/6284"), 5) == [6]


def test_far_records_of_cos_n():
    found = continued_fraction_recurrences(np.ones(1), UNIT, 10**30)
    assert [r.lag for r in found][:6] == [6, 19, 25, 44, 333, 710]
    assert 10**28 < found[-1].lag <= 10**30
    with mpmath.workdps(100):
        heights = [mpmath.cos(r.lag) for r in found]
        assert all(a < b for a, b in pairwise(heights))
        assert all(r.kernel.lower <= height <= r.kernel.upper for r, height in zip(found, heights, strict=True))


@pytest.mark.parametrize("reach", [10**4, 10**5, 10**6])
@pytest.mark.parametrize("base", [100, 10_000])
def test_lattice_finds_what_the_scan_finds(base, reach):
    weights, schedule = np.full(4, 0.25), RotarySchedule.geometric(8, base)
    found = lattice_recurrences(weights, schedule, reach, first=100)
    highest = certified_maximum(weights, schedule, 100, reach)
    assert found[0].lag == highest.lag
    assert found[0].kernel == highest.value
    assert [r.kernel.lower for r in found] == sorted((r.kernel.lower for r in found), reverse=True)


def test_lattice_of_one_frequency_ends_at_the_last_convergent():
    last = continued_fraction_recurrences(np.ones(1), UNIT, 10**20)[-1]
    assert lattice_recurrences(np.ones(1), UNIT, 10**20, count=1) == (last,)


def test_lattice_sums_of_basis_vectors_find_higher_lags():
    # The basis vectors alone give .640.
    found = lattice_recurrences(EQUAL, RotarySchedule.geometric(64, 500_000), 10**9, first=1000, count=1)
    assert found[0].kernel.lower > 0.69


def test_lattice_recurrences_are_peaks_and_not_their_shoulders():
    schedule = RotarySchedule.geometric(64, 10_000)
    found = lattice_recurrences(EQUAL, schedule, 10**6, first=1000)
    for recurrence in found:
        around = recurrence.lag + np.arange(-16, 17)
        assert np.argmax(equal_kernel(10_000, around)) == 16
    assert len(found) == 5


def test_lattice_leaves_out_a_pair_too_light_to_be_seen():
    schedule = RotarySchedule.geometric(4, 10)
    weights = np.array([1.0, 1e-40])
    found = lattice_recurrences(weights, schedule, 10**6, count=1)
    highest = certified_maximum(weights, schedule, 1, 10**6)
    assert (found[0].lag, found[0].kernel) == (highest.lag, highest.value)


@pytest.mark.parametrize(("reach", "height"), [(10**9, 0.6), (10**12, 0.7), (10**30, 0.97)])
def test_far_recurrences_of_the_paper_schedule(reach, height):
    # Heights are what this search finds; random lags have a standard deviation of 1/8 around 0, so that the
    # best of a million of them stays near .6 (the sweep's .579 at reach 3e6).
    found = lattice_recurrences(EQUAL, RotarySchedule.geometric(64, 10_000), reach, first=1000, count=3)
    assert len(found) == 3
    for recurrence in found:
        assert 1000 <= recurrence.lag <= reach
        value = mpmath_kernel(EQUAL, 10_000, recurrence.lag)
        assert height < recurrence.kernel.lower <= value <= recurrence.kernel.upper


def test_lattice_leaves_out_what_does_not_turn_or_weigh():
    schedule = RotarySchedule.from_exact([sympy.S.One, sympy.S.Zero, sympy.sqrt(2)])
    found = lattice_recurrences(np.array([0.5, 0.5, 0.0]), schedule, 10**6, count=1)
    assert found[0].lag == 312_689
    assert found[0].kernel.lower == pytest.approx(0.5 + 0.5 * np.cos(312_689), abs=1e-9)


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


@settings(deadline=None, max_examples=30)
@given(seed=st.integers(0, 1000), reach=st.integers(1, 300), block=st.sampled_from([1, 7, 1 << 10]))
def test_recurrences_are_the_local_maxima_whatever_the_block(seed, reach, block):
    rng = np.random.default_rng(seed)
    weights, schedule = rng.dirichlet(np.ones(3)), RotarySchedule(rng.uniform(0.01, 2, size=3))
    g = kernel(weights, schedule.frequencies, np.arange(reach + 2))
    peaks = [s for s in range(1, reach + 1) if g[s] > g[s - 1] and g[s] >= g[s + 1]]
    with patch.object(certified, "_BLOCK", block):
        found = near_recurrences(weights, schedule, reach, count=reach)
    assert [r.lag for r in found] == sorted(peaks, key=lambda s: -g[s])
    np.testing.assert_allclose([r.kernel for r in found], [g[r.lag] for r in found], atol=1e-10)


def test_far_local_maxima_are_those_of_fast_pairs_too():
    # theta = 2 pi k + .01: float64 angles at s = 1e5 would be off by s theta 1e-16 = 1e-4, the peaks 628 apart.
    fast = RotarySchedule.from_exact([2 * PI * 10**6 + sympy.Rational(1, 100)])
    slow = RotarySchedule.from_exact([sympy.Rational(1, 100)])
    ours, theirs = (near_recurrences(np.ones(1), schedule, 10**5, count=200) for schedule in (fast, slow))
    assert [r.lag for r in ours] == [r.lag for r in theirs]
    np.testing.assert_allclose([r.kernel for r in ours], [r.kernel for r in theirs], rtol=0, atol=44 * 2.0**-53)


def test_periodic_schedule_comes_back_to_one():
    found = near_recurrences(np.ones(1), RotarySchedule.from_exact([2 * PI / 5]), 12, count=2)
    assert sorted(r.lag for r in found) == [5, 10]
    assert all(r.kernel == pytest.approx(1, abs=1e-12) for r in found)
    assert isinstance(found[0], NearRecurrence)


@pytest.mark.parametrize(
    ("question", "text"),
    [
        (lambda: near_recurrences(np.ones(2), UNIT, 5), "one weight a pair"),
        (lambda: near_recurrences(np.ones(1), UNIT, 0), "the reach must be 1 or more, got 0"),
        (lambda: near_recurrences(np.ones(1), UNIT, 5, 0), "the count must be 1 or more, got 0"),
        (lambda: near_recurrences(np.array([np.nan]), UNIT, 5), "the weight of pair 0 .* got nan"),
        (lambda: record_recurrences(np.ones(1), UNIT, 5, first=5), "no lag follows the first, 5, up to 5"),
        (lambda: record_recurrences(np.ones(2), UNIT, 5), "one weight a pair"),
        (lambda: record_recurrences(np.ones(1), UNIT, 5.0), "the reach must be a whole number, got 5.0"),
        (
            lambda: continued_fraction_recurrences(np.ones(2), RotarySchedule.geometric(4, 10), 5),
            "got 2 that turn: weigh the others 0 or use lattice_recurrences",
        ),
        (lambda: continued_fraction_recurrences(-np.ones(1), UNIT, 5), "must be above 0, got -1.0 at 1 rad"),
        (lambda: continued_fraction_recurrences(np.ones(1), RotarySchedule(np.zeros(1)), 5), "got 0 that turn"),
        (lambda: continued_fraction_recurrences(np.ones(1), UNIT, 0), "the reach must be 1 or more, got 0"),
        (lambda: continued_fraction_recurrences(np.ones(1), UNIT, 1e12), "the reach must be a whole number"),
        (lambda: lattice_recurrences(np.ones(1), RotarySchedule(np.zeros(1)), 5), "needs a pair that turns"),
        (
            lambda: lattice_recurrences(np.array([1, -2.0]), RotarySchedule.geometric(4, 100), 5),
            r"must be above 0, got -2.0 at 1/10 rad",
        ),
        (lambda: lattice_recurrences(np.ones(1), UNIT, 5, first=6), "from 6 to 5 are none: give first <= reach"),
        (lambda: lattice_recurrences(np.ones(1), UNIT, 5, first=0), "the first lag must be 1 or more, got 0"),
        (lambda: lattice_recurrences(np.ones(1), UNIT, 5, count=0), "the count must be 1 or more, got 0"),
        (lambda: lattice_recurrences(np.ones(1), UNIT, 10**6, first=10**6), "no short vector .* widen the range"),
    ],
)
def test_recurrences_name_what_does_not_fit(question, text, unchecked):
    with pytest.raises(TheoryError, match=text):
        question()
