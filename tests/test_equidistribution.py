"""Averages over the closure of the orbit against long sums over lags, Bessel functions and the laws at great length."""

from dataclasses import replace

import numpy as np
import pytest
import sympy
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import i0, i0e

from theory.bias import BucketBias, LinearBias
from theory.dilution import mean_profile_law
from theory.equidistribution import dilution_rate, exact_limit, orbit_average
from theory.errors import TheoryError
from theory.exact_law import exact_law
from theory.head import Carrier, Head
from theory.incommensurability import Circle, orbit_closure
from theory.kernel import mean_profile
from theory.schedule import RotarySchedule

PI, ONE = sympy.pi, sympy.Integer(1)
MIXED = [sympy.sqrt(2), sympy.sqrt(2) / 3, 2 * PI / 5, ONE, PI * sympy.sqrt(3), 0 * ONE, 3 * ONE / 2, -2 * PI / 3]


def lag_average(amplitudes, frequencies, phases, reach):
    """log of the mean over lags 0..reach-1, cosine by cosine."""
    lags = np.arange(reach)
    logits = sum(r * np.cos(lags * w - p) for r, w, p in zip(amplitudes, frequencies, phases, strict=True))
    return np.log(np.mean(np.exp(logits)))


def test_the_closure_at_base_ten_thousand_is_a_torus_of_eight_dimensions():
    closure = orbit_closure(RotarySchedule.geometric(64, 10_000))
    assert (len(closure.circles), closure.finite) == (8, ())
    assert closure.circles[3] == Circle((3, 11, 19, 27), (1000, 100, 10, 1))
    assert len(orbit_closure(RotarySchedule.geometric(64, 10_001)).circles) == 32


def test_the_closure_of_periodic_and_mixed_frequencies():
    periodic = orbit_closure(RotarySchedule.periodic([(1, 5), (2, 7), (0, 1)]))
    assert (periodic.circles, periodic.finite, periodic.residues, periodic.period) == ((), (0, 1, 2), (7, 10, 0), 35)
    mixed = orbit_closure(RotarySchedule.from_exact(MIXED))
    assert [circle.pairs for circle in mixed.circles] == [(0, 1), (3, 6), (4,)]
    assert (mixed.circles[1].multiples, mixed.finite, mixed.period) == ((2, 3), (2, 5, 7), 15)


@pytest.mark.parametrize("schedule", [RotarySchedule.geometric(16, 4), RotarySchedule.from_exact(MIXED)])
def test_the_average_over_the_closure_is_that_over_lags(schedule):
    """A million lags average to about 1e-4 of the limit; the phases matter by more, which is the control."""
    rng = np.random.default_rng(0)
    amplitudes, phases = rng.uniform(0.2, 1, size=8), rng.uniform(-3, 3, size=8)
    average = float(orbit_average(amplitudes, phases, schedule))
    assert average == pytest.approx(lag_average(amplitudes, schedule.frequencies, phases, 1_000_000), abs=3e-4)
    assert abs(average - float(orbit_average(amplitudes, 0 * phases, schedule))) > 3e-3


@settings(deadline=None, max_examples=20)
@given(st.lists(st.tuples(st.integers(1, 8), st.integers(2, 9)), min_size=1, max_size=4), st.integers(0, 1000))
def test_a_periodic_average_is_the_mean_over_one_period(turns, seed):
    rng, schedule = np.random.default_rng(seed), RotarySchedule.periodic(turns)
    amplitudes, phases = rng.uniform(0, 5, size=len(turns)), rng.uniform(-3, 3, size=len(turns))
    # Two whole periods of every pair: 2520 is divided by 1..9.
    brute = lag_average(amplitudes, schedule.frequencies, phases, 5040)
    assert float(orbit_average(amplitudes, phases, schedule)) == pytest.approx(brute, abs=1e-9)


def test_independent_frequencies_give_bessel_functions():
    """e^-beta prod I0(beta p_i) at K = 0, by scipy's I0."""
    schedule, rng = RotarySchedule.geometric(64, 10_001), np.random.default_rng(1)
    weights = rng.dirichlet(np.ones(32))
    mean = np.repeat(np.sqrt(weights), 2)
    carrier = Carrier.from_means(schedule, mean, mean, 1.5)
    beta = 1.5 * 2
    np.testing.assert_allclose(carrier.amplitudes, beta * weights)
    assert dilution_rate(carrier, 0) == pytest.approx(np.exp(-beta) * np.prod(i0(beta * weights)), rel=1e-12)


def test_large_amplitudes_take_more_steps():
    """e^r I0e: at 10 000 nats the integrand is a spike that 64 steps would miss."""
    schedule = RotarySchedule.from_exact([ONE])
    for amplitude in (1.0, 100.0, 10_000.0):
        average = orbit_average(np.array([amplitude]), np.array([0.3]), schedule)
        assert float(average) == pytest.approx(amplitude + np.log(i0e(amplitude)), rel=1e-12)


def small_head(bias=None):
    """Three tokens on four fast pairs, so that a few thousand tokens are beyond 2 pi/theta_min many times."""
    rng, schedule = np.random.default_rng(5), RotarySchedule.geometric(8, 16)
    return Head.from_tokens(schedule, *rng.normal(size=(2, 3, 8)), np.array([0.2, 0.3, 0.5]), 0.5, bias)


def wide_head():
    """Distinct query and key weights, a window, a sink, an attention factor, a pair that nothing turns and a bias."""
    rng = np.random.default_rng(6)
    schedule = replace(RotarySchedule.geometric(6, 8).padded(8), attention_factor=1.1)
    queries, keys = rng.normal(size=(3, 8)), rng.normal(size=(4, 8))
    local, sinks = rng.normal(size=(3, 2, 8)), rng.normal(size=(3, 8))
    bias = BucketBias.clamped(np.array([0.0, 0.4, 0.5, -0.7]))
    return Head(schedule, queries, np.array([0.2, 0.3, 0.5]), local, keys, np.full(4, 0.25), 0.5, sinks, bias)


@pytest.mark.parametrize("head", [small_head(), wide_head()], ids=["tokens", "window, sink, bias, factor"])
def test_the_laws_tend_to_their_limits(head):
    """L a(L) -> 1/r-bar for the mean profile and the exact limit for the mean; the error falls as 1/L."""
    lengths = np.array([400, 40_000])
    exact = lengths * exact_law(head, 2, lengths)
    errors = np.abs(exact / exact_limit(head, 2) - 1)
    assert errors[1] < 1e-3 and errors[1] < errors[0] / 5
    carrier = head.carrier()
    profile = mean_profile(carrier, 40_000)
    for offset in (0, 1, 2):
        mean = 1 / (lengths * mean_profile_law(profile, offset, lengths))
        errors = np.abs(mean / dilution_rate(carrier, offset) - 1)
        assert errors[1] < 1e-3 and errors[1] < errors[0] / 5
    # The control: the limits of the two laws are apart, and so are those of other offsets.
    assert abs(exact_limit(head, 2) * dilution_rate(carrier, 2) - 1) > 0.01
    assert abs(exact_limit(head, 3) / exact_limit(head, 2) - 1) > 0.01


def test_queries_far_apart_do_not_swamp_each_other():
    """One query of 800 nats and one of 0 on equal keys: each spreads evenly; one that never occurs counts for none."""
    queries, keys = np.array([[800.0, 0], [0, 0], [1e300, 0]]), np.array([[1.0, 0], [1.0, 0], [1.0, 0]])
    local, weights = keys[:, None], np.array([0.5, 0.5, 0.0])
    head = Head(RotarySchedule.without_rotation(2), queries, weights, local, keys, np.full(3, 1 / 3), 1.0)
    assert exact_limit(head, 1) == pytest.approx(1, rel=1e-12)


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: exact_limit(small_head(), 0), "beyond the window of 1, got 0 tokens back"),
        (lambda: dilution_rate(small_head().carrier(), -2), "got -2: give 2"),
        (lambda: exact_limit(small_head(LinearBias(0.1)), 1), "tends to -inf nats, so that far keys get no attention"),
        (lambda: dilution_rate(small_head(LinearBias(-0.1)).carrier(), 1), "far keys get all attention"),
        (lambda: orbit_average(np.ones(3), np.ones(3), RotarySchedule.from_exact([ONE])), r"each of 1 pairs, got .*3"),
        (lambda: orbit_average(np.array([np.nan]), np.ones(1), RotarySchedule.from_exact([ONE])), "must be finite"),
        (
            lambda: orbit_average(np.ones(4), np.ones(4), RotarySchedule.periodic([(1, m) for m in (97, 89, 83, 79)])),
            "come back after 56606581 positions",
        ),
        (lambda: orbit_average(np.ones(1), np.ones(1), RotarySchedule(np.ones(1))), "exact frequencies .* not known"),
        (
            lambda: orbit_average(np.ones(2), np.zeros(2), RotarySchedule.from_exact([ONE, ONE / 10**7])),
            "10000000 times their common unit",
        ),
    ],
)
def test_errors_say_what_to_do(call, text):
    with pytest.raises(TheoryError, match=text):
        call()
