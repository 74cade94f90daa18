"""Best bases and frequencies: exhaustive grids, the uniform optimum, bounds against other schedules, derivatives."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

from theory.best_carriers import best_carrier
from theory.best_schedules import best_base, best_frequencies, margin_gradient
from theory.errors import TheoryError
from theory.schedule import RotarySchedule


def margin_of(frequencies: np.ndarray, reach: int) -> float:
    """The best margin by one dense program over every lag, primal form."""
    gains = 1 - np.cos(np.multiply.outer(np.arange(1, reach + 1), frequencies))
    pairs = len(frequencies)
    answer = linprog(
        np.r_[np.zeros(pairs), -1.0],
        A_ub=np.c_[-gains, np.ones(reach)],
        b_ub=np.zeros(reach),
        A_eq=np.r_[np.ones(pairs), 0.0][None],
        b_eq=[1.0],
        bounds=[(0, None)] * pairs + [(None, None)],
        method="highs",
    )
    return -answer.fun


@settings(max_examples=20)
@given(seed=st.integers(0, 10_000), pairs=st.integers(1, 6), reach=st.integers(2, 30))
def test_the_gradient_is_the_slope_of_the_best_margin(seed, pairs, reach):
    frequencies = np.random.default_rng(seed).uniform(0.2, 2.0, size=pairs)
    schedule, step = RotarySchedule(frequencies), 1e-5

    def value(moved: np.ndarray) -> float:
        return best_carrier(RotarySchedule(moved), reach).value

    own = value(frequencies)
    gradient = margin_gradient(schedule, best_carrier(schedule, reach))
    for pair, slope in enumerate(gradient):
        along = step * np.eye(pairs)[pair]
        ahead, behind = (value(frequencies + along) - own) / step, (own - value(frequencies - along)) / step
        # Values are within 2e-9 of the best one; the second derivative is reach^2 where the same lags stay active.
        error = 4e-9 / step + reach**2 * step
        # At a tie the slopes of the two sides differ and the gradient is one of those between.
        assert min(ahead, behind) - error <= slope <= max(ahead, behind) + error


def test_the_gradient_of_one_pair_is_that_of_its_lowest_lag():
    # 1 - cos s theta at theta = 2, s = 3 is the lowest of the first four; its slope is 3 sin 6.
    schedule = RotarySchedule(np.array([2.0]))
    assert margin_gradient(schedule, best_carrier(schedule, 4)) == pytest.approx([3 * np.sin(6)], rel=1e-12)


@pytest.mark.parametrize(("pairs", "reach"), [(1, 2), (2, 3), (2, 4), (4, 7), (8, 15)])
def test_uniform_frequencies_are_best_where_there_are_enough_pairs(pairs, reach):
    """theta = 2 pi k/(S+1), k = 1..ceil(S/2), mirrored ones weighed double: g = -1/S at every lag."""
    found = best_frequencies(pairs, reach, 1e-3, np.pi)
    assert 2 * pairs >= reach
    # The last box is an angle of 1e-5 at the furthest lag.
    assert found.margin == pytest.approx(1 + 1 / reach, abs=1e-5)
    # The bound of Fejer's kernel; angles of 15 pi are off by 1e-14.
    assert found.margin <= found.bound + 1e-13 <= 1 + 1 / reach + 2e-13
    k = np.arange(1, reach + 1)
    uniform = np.cos(2 * np.pi * np.multiply.outer(k, k) / (reach + 1)).mean(axis=1)
    np.testing.assert_allclose(uniform, -1 / reach, atol=1e-13)


def test_one_pair_too_few_misses_the_uniform_optimum():
    assert best_frequencies(3, 7, 1e-3, np.pi).margin < 1 + 1 / 7 - 0.02


@pytest.mark.parametrize("reach", [3, 5, 8])
def test_two_pairs_against_every_pair_of_a_grid(reach):
    lags = np.arange(1, reach + 1)
    gains = 1 - np.cos(np.multiply.outer(lags, np.linspace(0.05, 1.5, 150)))
    shares = np.linspace(0, 1, 41)
    scanned = max(
        float((share * gains[:, :, None] + (1 - share) * gains[:, None, :]).min(axis=0).max()) for share in shares
    )
    found = best_frequencies(2, reach, 0.05, 1.5)
    assert scanned <= found.margin + 1e-9
    # The grid's own error: half a step in frequency, |d/dtheta| <= reach, and half a step in the share, slope 2.
    assert found.margin <= scanned + reach * 1.45 / 149 / 2 + 1 / 40


def test_frequencies_found_beat_the_geometric_ones_and_come_to_their_bound():
    found = best_frequencies(8, 47, 1e-4, 1.0)
    geometric = margin_of(np.geomspace(1, 1e-4, 8), 47)
    assert found.margin == pytest.approx(margin_of(found.schedule.frequencies, 47), abs=1e-6)
    assert found.margin > geometric + 0.12
    # Of all frequencies up to 1 rad eight are enough: what they lack is a two-hundredth of a percent.
    assert 0 <= found.gap < 1e-4
    assert found.schedule.pairs == 8 and (np.diff(found.schedule.frequencies) <= 0).all()
    assert found.schedule.frequencies.min() >= 1e-4 and found.schedule.frequencies.max() <= 1
    again = best_frequencies(8, 47, 1e-4, 1.0)
    assert again.schedule.frequencies.tolist() == found.schedule.frequencies.tolist()


@pytest.mark.parametrize(("pairs", "reach", "slowest", "fastest"), [(4, 60, 0.1, 1.0), (6, 100, 0.1, 2.0)])
def test_what_is_found_is_a_local_maximum(pairs, reach, slowest, fastest):
    found, rng = best_frequencies(pairs, reach, slowest, fastest), np.random.default_rng(5)
    for size in (1e-2, 1e-3, 1e-4):
        for direction in rng.normal(size=(40, pairs)):
            moved = np.clip(found.schedule.frequencies + size / reach * direction, slowest, fastest)
            # The last box is an angle of 1e-5 at the furthest lag, and the cosines change by no more.
            assert best_carrier(RotarySchedule(moved), reach).value <= found.margin + 1e-5


@settings(max_examples=25)
@given(seed=st.integers(0, 10_000), pairs=st.integers(1, 40), slow=st.booleans())
def test_no_frequencies_of_the_range_exceed_the_bound(seed, pairs, slow):
    slowest, fastest = RANGES[slow]
    rng = np.random.default_rng(seed)
    log_uniform = np.exp(rng.uniform(np.log(slowest), np.log(fastest), size=pairs))
    for frequencies in (rng.uniform(slowest, fastest, size=pairs), log_uniform):
        assert best_carrier(RotarySchedule(frequencies), 24).value <= FOUND[slow].bound


RANGES = ((0.3, 2.5), (1e-10, 1e-8))
FOUND = tuple(best_frequencies(12, 24, slowest, fastest) for slowest, fastest in RANGES)


def test_bounds_are_near_what_is_found():
    # The positive control of the test above: bounds that anything could hold would be of no use.
    assert FOUND[0].margin > 0.9 * FOUND[0].bound
    # No pair of 1e-8 rad/token goes round in 24 tokens: lag 1 decides and the fastest pair alone is best.
    assert FOUND[1].margin == pytest.approx((1e-8) ** 2 / 2, rel=1e-8, abs=0)
    assert FOUND[1].bound == pytest.approx(FOUND[1].margin, rel=1e-4, abs=0)


def test_the_bound_of_a_longer_reach_is_that_of_nearer_lags(monkeypatch):
    full = best_frequencies(4, 60, 0.1, 1.0)
    monkeypatch.setattr("theory.best_schedules._WIDEST_ANGLE", 18.0)  # 20 lags
    capped = best_frequencies(4, 60, 0.1, 1.0)
    assert capped.bound >= full.bound * (1 - 1e-4)
    assert capped.bound == pytest.approx(best_frequencies(4, 20, 0.1, 1.0).bound, rel=2e-4)
    assert capped.margin <= capped.bound


@pytest.mark.slow
def test_a_whole_schedule_for_4096_tokens():
    found = best_frequencies(32, 4095, 1e-4, 1.0)
    assert found.margin > best_carrier(RotarySchedule(np.geomspace(1, 1e-4, 32)), 4095).value + 0.1
    assert 0 <= found.gap < 0.01 * found.bound


def test_the_best_base_is_the_best_of_a_scan():
    found = best_base(16, 2, 48, (10.0, 1e5))
    assert (found.width, found.offset, found.length) == (16, 2, 48)
    assert found.margin == found.margins.max() and found.base == found.bases[found.margins.argmax()]
    assert (np.diff(found.bases) > 0).all() and found.bases[0] == 10 and found.bases[-1] == pytest.approx(1e5)
    for j in range(0, len(found.bases), 10):
        frequencies = found.bases[j] ** (-np.arange(8) / 8)
        # HiGHS is asked for 1e-7 by default.
        assert found.margins[j] == pytest.approx(margin_of(frequencies, 45), abs=1e-6)
    # Around the best base five halvings of a step of the first scan.
    j, scan = int(found.margins.argmax()), np.log(1e4) * (np.arange(129) / 128) ** 2
    assert 0 < j < len(found.bases) - 1
    step = np.diff(scan)[np.searchsorted(scan, np.log(found.base / 10), side="right") - 1]
    np.testing.assert_allclose(np.diff(np.log(found.bases[j - 1 : j + 2])), step / 32, rtol=1e-6)
    assert not found.at_edge
    assert found.margin > max(margin_of(base ** (-np.arange(8) / 8), 45) for base in (10.0, 100.0, 1e4)) + 0.01


@pytest.mark.parametrize(("width", "offset", "length"), [(8, 0, 101), (16, 2, 48)])
def test_no_base_of_a_wide_and_dense_scan_is_better(width, offset, length):
    """Steps of .2 % up to 20, .04 beyond, to 1e8: the search ends within its last step of the scan's best base."""
    found, pairs = best_base(width, offset, length), np.arange(width // 2) / (width // 2)

    def margin(base: float) -> float:
        return margin_of(base**-pairs, length - 1 - offset)

    scan = np.r_[np.geomspace(1, 20, 1500), np.geomspace(20, 1e8, 400)]
    best = scan[np.argmax([margin(base) for base in scan])]
    j = int(found.margins.argmax())
    last_step = float(np.log(found.bases[j + 1] / found.bases[j]))
    around = [margin(best * np.exp(share * last_step)) for share in np.linspace(-1, 1, 41)]
    # HiGHS is asked for 1e-7 by default.
    assert found.margin >= min(around) - 1e-6
    assert best < 4 and not found.at_edge
    # Where bases begin at 10 the best one is missed by far more than is left open here.
    late = best_base(width, offset, length, (10.0, 1e7)).margin
    assert late < min(around) - 0.03


def test_at_base_1_all_pairs_are_one():
    found = best_base(16, 2, 48)
    assert found.bases[0] == 1
    # Of 45 lags 44 comes nearest to whole turns, 7 of them; cosines of 44 rad are off by 44 * 2^-53.
    assert found.margins[0] == pytest.approx(1 - np.cos(44), abs=1e-14)


def test_a_best_base_at_an_end_of_the_range_is_told():
    low, high = best_base(16, 2, 48, (2.6, 3.0)), best_base(16, 2, 48, (1.0, 1.2))
    assert low.at_edge and low.base == 2.6
    assert high.at_edge and high.base == 1.2


def test_the_best_base_depends_on_the_further_side_alone():
    assert best_base(8, 2, 20, (10, 1e3)).margins.tolist() == best_base(8, 17, 20, (10, 1e3)).margins.tolist()


@pytest.mark.parametrize(
    ("question", "text"),
    [
        (lambda: best_base(16, 2, 48, (100.0, 10.0)), r"the lower one first, got \(100.0, 10.0\)"),
        (lambda: best_base(16, 2, 48, (0.0, 10.0)), "above 0"),
        (lambda: best_base(16, 5, 5), "needs a length above 5"),
        (lambda: best_base(16, 0, 1), "length must be 2 or more, got 1"),
        (lambda: best_base(7, 0, 9), "must be even"),
        (lambda: best_frequencies(0, 5, 0.1, 1.0), "number of pairs must be 1 or more, got 0"),
        (lambda: best_frequencies(2, 0, 0.1, 1.0), "furthest lag, must be 1 or more, got 0"),
        (lambda: best_frequencies(2, 5, 1.0, 0.1), "got 1.0 and 0.1"),
        (lambda: best_frequencies(2, 5, 0.0, 1.0), "0 < slowest < fastest <= pi rad/token"),
        (lambda: best_frequencies(2, 5, 0.1, 4.0), "the same as slower ones"),
    ],
)
def test_bad_inputs_are_named(question, text, unchecked):
    with pytest.raises(TheoryError, match=text):
        question()
