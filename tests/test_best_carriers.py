"""The best carrier: value, certificate, constraint generation, and the distance of given carriers from it."""

import mpmath
import numpy as np
import pytest
import sympy
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import OptimizeResult, linprog

from theory.best_carriers import (
    DistanceFromBest,
    best_carrier,
    best_carrier_in_context,
    best_margin_curve,
    distance_from_best,
)
from theory.errors import TheoryError
from theory.head import Carrier
from theory.kernel import kernel
from theory.schedule import RotarySchedule, as_lanes

SETUP = RotarySchedule.geometric(64, 10_000)


def random_schedule(seed: int, pairs: int) -> RotarySchedule:
    return RotarySchedule(np.random.default_rng(seed).uniform(0.01, 3.5, size=pairs))


def carrier_with(schedule: RotarySchedule, weights: np.ndarray, phase_errors: np.ndarray, offset: int) -> Carrier:
    """The carrier of target `offset` with r = 3 p and psi_i = -K theta_i + e_i, all of it in the query."""
    query = as_lanes(3 * weights * np.exp(1j * (phase_errors - offset * schedule.frequencies)))
    return Carrier.from_means(schedule, query, as_lanes(np.ones(schedule.pairs, dtype=complex)), 1.0)


def margins(
    schedule: RotarySchedule, weights: np.ndarray, phase_errors: np.ndarray, behind: int, ahead: int
) -> np.ndarray:
    """sum p (cos e - cos(s theta - e)) over the lags -behind..ahead without 0, term by term."""
    lags = np.array([s for s in range(-behind, ahead + 1) if s])
    turns = np.multiply.outer(lags, schedule.frequencies) - phase_errors
    return ((np.cos(phase_errors) - np.cos(turns)) * weights).sum(axis=1)


@pytest.mark.parametrize(("reach", "value"), [(15, 0.4016), (47, 0.3441), (511, 0.3129), (2047, 0.2960)])
def test_best_values_of_the_reference_schedule(reach, value):
    best = best_carrier(SETUP, reach)
    assert best.value == pytest.approx(value, abs=5e-5)
    assert (best.behind, best.ahead) == (0, reach)
    assert not best.phase_errors.any()
    assert best.weights.sum() == pytest.approx(1, abs=1e-15 * 64) and (best.weights >= 0).all()


def test_equal_weights_are_ten_times_worse():
    g = kernel(np.full(32, 1 / 32), SETUP.frequencies, np.arange(1, 2048))
    assert 1 - g.max() == pytest.approx(0.0338, abs=5e-5)
    assert best_carrier(SETUP, 2047).value > 8 * (1 - g.max())


def test_the_first_lag_caps_the_value_at_its_fastest_pair():
    for reach in (1, 2):
        best = best_carrier(SETUP, reach)
        assert best.value == pytest.approx(1 - np.cos(1), abs=1e-12)
        assert best.active_lags.tolist() == [1] and best.weights.argmax() == 0
    assert best_carrier(SETUP, 2047).value < 1 - np.cos(1)


@settings(deadline=None, max_examples=40)
@given(seed=st.integers(0, 10_000), pairs=st.integers(1, 8), reach=st.integers(1, 300))
def test_weights_and_lags_prove_the_value(seed, pairs, reach):
    schedule = random_schedule(seed, pairs)
    best = best_carrier(schedule, reach)
    # Angles up to 300 * 3.5 rad are off by 1e3 * 2^-53 = 1e-13.
    lowest = (1 - kernel(best.weights, schedule.frequencies, np.arange(1, reach + 1))).min()
    assert best.value == pytest.approx(lowest, abs=2e-13)
    # Weak duality: no pair, and so no mixture of pairs, does better than `bound` on average over the lags.
    assert best.lag_weights.sum() == pytest.approx(1, abs=1e-12) and (best.lag_weights > 0).all()
    assert ((best.active_lags >= 1) & (best.active_lags <= reach)).all()
    averages = best.lag_weights @ (1 - np.cos(np.multiply.outer(best.active_lags, schedule.frequencies)))
    assert best.bound == pytest.approx(averages.max(), abs=2e-13)
    assert -2e-13 <= best.gap <= 1e-9 * best.bound + 1e-24
    other = np.random.default_rng(seed).dirichlet(np.ones(pairs))
    assert (1 - kernel(other, schedule.frequencies, np.arange(1, reach + 1))).min() <= best.bound + 2e-13


@settings(deadline=None, max_examples=20)
@given(seed=st.integers(0, 10_000), reach=st.integers(1, 200))
def test_two_pairs_against_every_mixture(seed, reach):
    schedule = random_schedule(seed, 2)
    first, second = (1 - np.cos(np.multiply.outer(np.arange(1, reach + 1), schedule.frequencies))).T
    share = np.linspace(0, 1, 2001)[:, None]
    scanned = (share * first + (1 - share) * second).min(axis=1).max()
    # Each lag's line has a slope of 2 at most, the grid a step of 1/2000: the best is missed by 1/2000.
    assert scanned - 1e-9 <= best_carrier(schedule, reach).value <= scanned + 1 / 2000


def test_growing_the_lags_comes_to_the_program_with_all_of_them():
    # The dual program, min over q of the largest average, with a dense matrix of 1500 lags.
    gains = 1 - np.cos(np.multiply.outer(np.arange(1, 1501), SETUP.frequencies))
    answer = linprog(
        np.r_[np.zeros(1500), 1.0],
        A_ub=np.c_[gains.T, -np.ones(32)],
        b_ub=np.zeros(32),
        A_eq=np.r_[np.ones(1500), 0.0][None],
        b_eq=[1.0],
        bounds=[(0, None)] * 1500 + [(None, None)],
        method="highs",
    )
    # HiGHS is asked for 1e-7 by default.
    assert best_carrier(SETUP, 1500).value == pytest.approx(answer.fun, abs=1e-6)


def test_a_reach_of_65536():
    best = best_carrier(SETUP, 65_536)
    assert best.value == pytest.approx(0.276588, abs=5e-7)
    assert best.gap <= 1e-9 and best.active_lags.max() <= 65_536
    # Both sides of a run of lags: the value is a minimum over every lag, not over those of the program.
    lowest = min(
        (1 - kernel(best.weights, SETUP.frequencies, np.arange(start, start + 4096))).min()
        for start in range(1, 65_537, 4096)
    )
    # Angles up to 65536 rad are off by 65536 * 2^-53 = 7e-12.
    assert best.value == pytest.approx(lowest, abs=2e-11)


def test_the_curve_never_rises():
    reaches = [1, 5, 15, 47, 511, 2047]
    curve = best_margin_curve(SETUP, reaches)
    # Each value is within 1e-9 of a best that never rises.
    assert (np.diff(curve) <= 1e-9).all()
    np.testing.assert_allclose(curve[2:], [0.4016, 0.3441, 0.3129, 0.2960], atol=5e-5)
    assert best_margin_curve(SETUP, []).shape == (0,)


def test_a_schedule_that_comes_back_has_no_margin_beyond_its_period():
    periodic = RotarySchedule.from_exact([2 * sympy.pi / 5])
    assert best_carrier(periodic, 4).value == pytest.approx(1 - np.cos(2 * np.pi / 5), abs=1e-12)
    assert best_carrier(periodic, 5).value == pytest.approx(0, abs=1e-12)


def test_one_competitor_is_best_met_by_misaligned_phases():
    # Target 0, competitor 1 back: cos e - cos(theta + e) has its maximum 2 sin(theta/2) at e = (pi - theta)/2.
    best = best_carrier_in_context(SETUP, 0, 2)
    assert best.value == pytest.approx(2 * np.sin(0.5), abs=1e-9)
    assert best.phase_errors[0] == pytest.approx((np.pi - 1) / 2, abs=1e-4)
    assert best.value > 2 * best_carrier(SETUP, 1).value


@pytest.mark.parametrize(("offset", "length"), [(2, 16), (2, 48), (0, 16), (15, 16)])
def test_on_one_sided_lags_the_best_phases_are_not_aligned(offset, length):
    aligned = best_carrier(SETUP, max(offset, length - 1 - offset))
    best = best_carrier_in_context(SETUP, offset, length)
    assert best.value > aligned.bound + 1e-3
    own = margins(SETUP, best.weights, best.phase_errors, length - 1 - offset, offset)
    assert best.value == pytest.approx(own.min(), abs=1e-12)


@pytest.mark.parametrize("offset", [1, 7, 20])
def test_on_two_sided_lags_aligned_phases_are_best(offset):
    best = best_carrier_in_context(SETUP, offset, 2 * offset + 1)
    assert best.value == pytest.approx(best_carrier(SETUP, offset).value, abs=2e-9)


@settings(deadline=None, max_examples=25)
@given(seed=st.integers(0, 10_000), pairs=st.integers(1, 6), length=st.integers(2, 40), data=st.data())
def test_no_carrier_exceeds_the_bound_of_its_context(seed, pairs, length, data):
    offset = data.draw(st.integers(0, length - 1))
    schedule, rng = random_schedule(seed, pairs), np.random.default_rng(seed)
    best = best_carrier_in_context(schedule, offset, length)
    behind = length - 1 - offset
    # Angles reach 40 * 3.5 rad: where pairs come back, they do to 140 * 2^-51.
    assert best.gap <= 1e-9 * best.bound + 1e-13
    assert best.value == pytest.approx(
        margins(schedule, best.weights, best.phase_errors, behind, offset).min(), abs=2e-13
    )
    averages = best.lag_weights @ (1 - np.exp(1j * np.multiply.outer(best.active_lags, schedule.frequencies)))
    assert best.bound == pytest.approx(np.abs(averages).max(), abs=2e-13)
    assert best.bound >= best_carrier(schedule, max(offset, behind)).value - 1e-9
    for _ in range(5):
        weights, errors = rng.dirichlet(np.ones(pairs)), rng.uniform(-np.pi, np.pi, size=pairs) * rng.uniform()
        assert margins(schedule, weights, errors, behind, offset).min() <= best.bound + 2e-13


@pytest.mark.parametrize(("offset", "length", "reach"), [(2, 48, 45), (45, 48, 45), (45, 46, 45), (0, 46, 45)])
def test_the_best_carrier_is_at_no_distance_from_itself(offset, length, reach):
    best = best_carrier(SETUP, reach)
    found = distance_from_best(carrier_with(SETUP, best.weights, best.phase_errors, offset), offset, length)
    assert isinstance(found, DistanceFromBest)
    assert found.ratio == pytest.approx(1, abs=1e-12)
    assert found.phase_loss == pytest.approx(0, abs=1e-12)
    assert found.weight_loss == pytest.approx(0, abs=1e-12)


def test_what_equal_weights_lose_is_in_the_weights():
    equal = np.full(32, 1 / 32)
    found = distance_from_best(carrier_with(SETUP, equal, np.zeros(32), 2), 2, 48)
    lowest = 1 - kernel(equal, SETUP.frequencies, np.arange(1, 46)).max()
    assert found.margin == pytest.approx(lowest, abs=1e-12)
    assert found.weight_loss == pytest.approx(best_carrier(SETUP, 45).value - lowest, abs=1e-12)
    assert found.phase_loss == pytest.approx(0, abs=1e-12)
    # A carrier of another target selects that one: the ratio is below 0 and the loss is in the phases.
    wrong = distance_from_best(carrier_with(SETUP, best_carrier(SETUP, 45).weights, np.zeros(32), 5), 2, 48)
    assert wrong.ratio < -0.5
    assert wrong.phase_loss == pytest.approx(wrong.best - wrong.margin, abs=1e-12)


def test_phases_can_gain_on_one_sided_lags():
    best = best_carrier_in_context(SETUP, 2, 48)
    found = distance_from_best(carrier_with(SETUP, best.weights, best.phase_errors, 2), 2, 48)
    assert found.margin == pytest.approx(best.value, abs=1e-12)
    assert found.ratio > 1 and found.phase_loss < 0 < found.weight_loss


@settings(deadline=None, max_examples=25)
@given(seed=st.integers(0, 10_000), pairs=st.integers(2, 6), offset=st.integers(1, 20))
def test_losses_add_up_and_are_losses_on_two_sided_lags(seed, pairs, offset):
    schedule, rng = random_schedule(seed, pairs), np.random.default_rng(seed)
    weights, errors = rng.dirichlet(np.ones(pairs)), rng.normal(scale=0.5, size=pairs)
    found = distance_from_best(carrier_with(schedule, weights, errors, offset), offset, 2 * offset + 1)
    assert found.margin == pytest.approx(margins(schedule, weights, errors, offset, offset).min(), abs=1e-12)
    assert found.best - found.margin == pytest.approx(found.phase_loss + found.weight_loss, abs=1e-12)
    # The best value is known to 1e-9 only.
    assert found.phase_loss >= -1e-12 and found.weight_loss >= -1e-9


def slow_margin(weights: list[float], frequencies: list[float], lags: range) -> float:
    """min over lags of sum p (1 - cos s theta) in 40 digits."""
    with mpmath.workdps(40):
        pairs = [(mpmath.mpf(p), mpmath.mpf(theta)) for p, theta in zip(weights, frequencies, strict=True)]
        return float(min(mpmath.fsum(p * (1 - mpmath.cos(s * theta)) for p, theta in pairs) for s in lags))


def test_a_slow_schedule_is_solved_relative_to_what_it_allows():
    # The first pair comes back near 2 pi/3e-5 = 209440, where a grain of the second is enough: lag 1 caps the value.
    slow = RotarySchedule(np.array([3e-5, 1e-5]))
    best = best_carrier(slow, 300_000)
    assert best.value == pytest.approx(2 * np.sin(1.5e-5) ** 2, rel=1e-8)
    assert 0 <= best.gap <= 1e-9 * best.bound
    near = range(209_430, 209_450)
    assert slow_margin(best.weights.tolist(), [3e-5, 1e-5], near) >= best.value * (1 - 1e-9)
    # Weights that look as good to an absolute 1e-9 are nine times worse.
    assert slow_margin([0.0, 1.0], [3e-5, 1e-5], range(1, 2)) < 0.12 * best.value


@pytest.mark.parametrize("factor", [1.0, 1e-2, 1e-4])
def test_values_of_slowed_schedules_shrink_as_squares(factor):
    # While no pair goes round, 1 - cos x = x^2/2 (1 - x^2/12 ...): the fastest pair alone, at lag 1.
    best = best_carrier(RotarySchedule(factor * np.array([1e-4, 7e-5, 2e-6])), 50)
    assert best.value == pytest.approx((factor * 1e-4) ** 2 / 2, rel=1e-8)
    turning = best_carrier_in_context(RotarySchedule(factor * np.array([1e-4, 7e-5, 2e-6])), 10, 61)
    assert turning.value == pytest.approx((factor * 1e-4) ** 2 / 2, rel=1e-8)


def test_distance_on_a_slow_schedule_keeps_its_digits():
    weights, theta = np.array([0.75, 0.25]), [1e-5, 2e-5]
    found = distance_from_best(carrier_with(RotarySchedule(np.array(theta)), weights, np.zeros(2), 4), 4, 10)
    expected = slow_margin(weights.tolist(), theta, range(1, 6))
    assert found.margin == pytest.approx(expected, rel=1e-9)
    assert found.aligned == pytest.approx(expected, rel=1e-12)
    assert found.best == pytest.approx(2 * np.sin(1e-5) ** 2, rel=1e-8)


def test_phases_on_a_schedule_that_comes_back_gain_nothing():
    periodic = RotarySchedule.from_exact([2 * sympy.pi / 5, 2 * sympy.pi / 7])
    best = best_carrier_in_context(periodic, 0, 40)
    assert 0 <= best.value <= best.bound < 1e-13


def test_where_the_solver_gives_up_another_way_holds(monkeypatch):
    """As it does with status "unknown" on some processors: the simplex method alone then finds the same value."""
    asked, solve = [], linprog

    def gives_up_first(*problem, method, **options):
        asked.append(method)
        gave_up = OptimizeResult(x=None, status=4, message="unknown")
        return gave_up if method == "highs" else solve(*problem, method=method, **options)

    expected = best_carrier(SETUP, 47).value
    monkeypatch.setattr("theory.best_carriers.linprog", gives_up_first)
    assert best_carrier(SETUP, 47).value == pytest.approx(expected, rel=1e-9)
    assert asked[:2] == ["highs", "highs-ds"]


def test_a_program_that_does_not_close_is_named(monkeypatch):
    monkeypatch.setattr("theory.best_carriers._ROUNDS", 1)
    assert best_carrier(SETUP, 64).gap <= 1e-9
    with pytest.raises(TheoryError, match=r"lags 0\.\.511 was found to .* in 1 rounds: give a shorter reach"):
        best_carrier(SETUP, 511)
    monkeypatch.setattr(
        "theory.best_carriers.linprog", lambda *_, **__: OptimizeResult(x=None, status=1, message="time limit")
    )
    with pytest.raises(TheoryError, match="over 64 lags was not solved: time limit"):
        best_carrier(SETUP, 64)


@pytest.mark.parametrize(
    ("question", "text"),
    [
        (lambda: best_carrier(SETUP, 0), "must be 1 or more, got 0"),
        (lambda: best_margin_curve(SETUP, [5, -1]), "must be 1 or more, got -1"),
        (lambda: best_carrier_in_context(SETUP, 5, 5), "needs a length above 5"),
        (lambda: best_carrier(SETUP, 2.5), "furthest lag, must be a whole number, got 2.5"),
        (lambda: best_margin_curve(SETUP, [5, 2.7]), "must be a whole number, got 2.7"),
        (
            lambda: best_carrier(RotarySchedule.geometric(16, 1e-12), 500),
            r"e\+13 rad.* to 0.002 only",
        ),
        (lambda: best_carrier_in_context(SETUP, 0, 1), "length of 2 or more, got 1"),
        (lambda: best_carrier_in_context(SETUP, 1, 3.5), "length must be a whole number, got 3.5"),
        (lambda: best_carrier_in_context(SETUP, 1.5, 3), "target offset K must be a whole number, got 1.5"),
        (lambda: distance_from_best(carrier_with(SETUP, np.full(32, 1 / 32), np.zeros(32), 2), -2, 9), "give 2"),
        (lambda: distance_from_best(carrier_with(SETUP, np.zeros(32), np.zeros(32), 2), 2, 9), "there is no kernel"),
        (
            lambda: distance_from_best(
                carrier_with(RotarySchedule.from_exact([2 * sympy.pi / 5]), np.ones(1), np.zeros(1), 2), 2, 9
            ),
            "every pair that turns is back at a whole turn, give a shorter context",
        ),
    ],
)
def test_bad_inputs_are_named(question, text, unchecked):
    with pytest.raises(TheoryError, match=text):
        question()
