"""Inversion and aliasing in long contexts: closed forms against simulation, quadrature and brute force."""

import math
import tracemalloc
from dataclasses import replace

import mpmath
import numpy as np
import pytest
import sympy
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy.special import sici

from theory.bias import LinearBias
from theory.errors import TheoryError
from theory.head import Carrier
from theory.kernel import carrier_profile, cosine_sums, kernel
from theory.limits import (
    aliased_pairs,
    binned_pairs,
    collision_length,
    expected_aliased_pairs,
    inversion_rate,
    middle_range_kernel,
    position_inversion,
    token_inversion,
)
from theory.schedule import RotarySchedule

SIMULATION_SEED = 15514
DRAWS = 200_000
# Fixed seeds: a simulation is one draw, and 4.5 standard errors leave 7e-6 to chance in each comparison.
Z = 4.5


def aligned(pairs: int, base: float) -> Carrier:
    """p = 1/h, psi = 0: S(m) = sum_i cos(m theta_i)."""
    lanes = np.tile([1.0, 0.0], pairs)
    return Carrier.from_means(RotarySchedule.geometric(2 * pairs, base), lanes, lanes, 1.0)


def random_carrier(seed: int, pairs: int = 5) -> Carrier:
    """Random means; an attention factor, an unrotated pair and a scale, so that none is left out."""
    rng = np.random.default_rng(seed)
    frequencies = np.append(rng.uniform(0.01, 2, pairs - 1), 0.0)
    schedule = RotarySchedule(frequencies, attention_factor=1.3, unrotated=1)
    return Carrier.from_means(schedule, rng.normal(size=2 * pairs), rng.normal(size=2 * pairs), 0.4)


def simulated_scores(carrier: Carrier, keys: np.ndarray, distance: int) -> np.ndarray:
    """Rotated dot products themselves, lane by lane."""
    turned = carrier.schedule.rotate(keys, np.full(len(keys), -distance))
    gains = np.repeat(carrier.schedule.score_gains, 2)
    return carrier.logit_scale * turned @ (gains * carrier.query_mean)


def residuals(rng: np.random.Generator, variance: np.ndarray) -> np.ndarray:
    return rng.normal(size=(DRAWS, 2 * len(variance))) * np.repeat(np.sqrt(variance), 2)


def assert_share(observed: np.ndarray, probability: float) -> None:
    error = math.sqrt(probability * (1 - probability) / len(observed))
    assert abs(observed.mean() - probability) <= Z * error, (observed.mean(), probability, error)


# Position inversion


@pytest.mark.parametrize("seed", range(4))
def test_position_inversion_is_what_rotated_keys_do(seed):
    carrier, rng = random_carrier(seed), np.random.default_rng([SIMULATION_SEED, seed])
    variance = rng.uniform(0.1, 3, carrier.schedule.pairs)
    keys = carrier.key_mean + residuals(rng, variance)
    near, far = np.array([0, 3, 40]), np.array([7, 5, 1000])
    predicted = position_inversion(carrier, variance, near, far)
    assert np.ptp(predicted) > 0.05
    for m1, m2, probability in zip(near, far, predicted, strict=True):
        assert_share(simulated_scores(carrier, keys, m1) < simulated_scores(carrier, keys, m2), probability)


@settings(deadline=None, max_examples=50)
@given(
    seed=st.integers(0, 10**6),
    c=st.floats(0, 3),
    s=st.floats(0.1, 3),
    m1=st.integers(0, 5000),
    lag=st.integers(1, 5000),
)
def test_isotropic_form(seed, c, s, m1, lag):
    # k ~ N(c q, s^2 I): Phi(-c|q| (g(m1) - g(m2)) / (s sqrt(2 (1 - g(m2 - m1))))), in 50 digits of mpmath.
    schedule = RotarySchedule.geometric(16, 10_000)
    query = np.random.default_rng(seed).normal(size=16)
    energies = (query**2).reshape(8, 2).sum(axis=1)
    with mpmath.workdps(50):
        thetas = [mpmath.mpf(10_000) ** (mpmath.mpf(-i) / 8) for i in range(8)]
        norm = mpmath.fsum(map(mpmath.mpf, energies))

        def g(m):
            return mpmath.fsum(mpmath.mpf(e) * mpmath.cos(m * t) for e, t in zip(energies, thetas, strict=True)) / norm

        z = c * mpmath.sqrt(norm) * (g(m1) - g(m1 + lag)) / (s * mpmath.sqrt(2 * (1 - g(lag))))
        expected = float(mpmath.ncdf(-z))
    found = position_inversion(
        Carrier.from_means(schedule, query, c * query, 1.0), s**2, np.array([m1]), np.array([m1 + lag])
    )
    # Angles of 1e4 rad are off by 1e-12, the quotient by |z| / sqrt(1 - g) times that; lag 1 has 1 - g >= 1e-3.
    assert found[0] == pytest.approx(expected, abs=1e-9)


@settings(deadline=None, max_examples=50)
@given(
    seed=st.integers(0, 10**6),
    variance=st.sampled_from([0.0, 1e-3, 1.0, 50.0]),
    near=st.integers(0, 10**8),
    far=st.integers(0, 10**8),
)
def test_orders_are_complementary(seed, variance, near, far):
    carrier = replace(random_carrier(seed), bias=LinearBias(1e-6))
    there, back = (
        position_inversion(carrier, variance, np.array([a]), np.array([b]))[0] for a, b in ((near, far), (far, near))
    )
    assert 0 <= there <= 1
    assert there + back == pytest.approx(1, abs=1e-15)
    assert position_inversion(carrier, variance, np.array([near]), np.array([near]))[0] == 0.5


def test_a_whole_turn_is_a_tie_with_and_without_residual():
    lanes = np.array([1.0, 0.2, 0.7, -0.4])
    schedule = RotarySchedule.from_exact([2 * sympy.pi / 7, 6 * sympy.pi / 7])
    carrier = Carrier.from_means(schedule, lanes, lanes, 1.0)
    near, far = np.array([3, 10**6, 0]), np.array([3 + 7, 10**6 + 7 * 10**5, 7 * 10**8])
    for variance in (0.0, 1.0):
        np.testing.assert_array_equal(position_inversion(carrier, variance, near, far), 0.5)
    # One step beside the whole turn is no tie.
    assert position_inversion(carrier, 1.0, np.array([0]), np.array([7 * 10**8 + 1]))[0] < 0.2


def test_without_residual_the_mean_scores_decide():
    carrier = aligned(8, 1_000)
    scores = [math.fsum(math.cos(m * 1_000 ** (-i / 8)) for i in range(8)) for m in range(60)]
    near, far = np.divmod(np.arange(30 * 30), 30)
    expected = [float(scores[m1] < scores[m2]) for m1, m2 in zip(near, far + 30, strict=True)]
    np.testing.assert_array_equal(position_inversion(carrier, 0.0, near, far + 30), expected)
    assert 0 < np.mean(expected) < 1


def test_an_isotropic_key_has_no_order_to_lose_and_an_aligned_one_has():
    rng = np.random.default_rng([SIMULATION_SEED, 100])
    schedule = RotarySchedule.geometric(16, 10_000)
    queries, keys = rng.normal(size=(2, DRAWS, 16))

    def inverted(keys):
        scores = [(queries * schedule.rotate(keys, np.full(DRAWS, -m))).sum(axis=1) for m in (2, 50)]
        return scores[0] < scores[1]

    assert_share(inverted(keys), 0.5)
    assert inverted(queries + keys).mean() < 0.3
    zero_mean = Carrier.from_means(schedule, queries[0], np.zeros(16), 1.0)
    near, far = np.arange(100), np.arange(100, 200)
    np.testing.assert_array_equal(position_inversion(zero_mean, 1.0, near, far), 0.5)


def test_a_bias_moves_the_order():
    carrier = random_carrier(3)
    near, far = np.array([2]), np.array([30])
    tilted = replace(carrier, bias=LinearBias(0.1))
    rng = np.random.default_rng([SIMULATION_SEED, 101])
    keys = carrier.key_mean + residuals(rng, np.ones(5))
    gap = simulated_scores(carrier, keys, 2) - simulated_scores(carrier, keys, 30)
    assert_share(gap + 0.1 * 28 < 0, position_inversion(tilted, 1.0, near, far)[0])
    assert_share(gap < 0, position_inversion(carrier, 1.0, near, far)[0])


# Inversion rate


def ranked_rate(pairs: int, base: float, length: int) -> float:
    """Share of m1 < M/2 <= m2 < M with g(m1) < g(m2), every pair counted by sorting."""
    g = carrier_profile(aligned(pairs, base), length)
    half = (length + 1) // 2
    near = np.sort(g[:half])
    return float(np.searchsorted(near, g[half:]).mean() / half)


@pytest.mark.parametrize("length", [2, 3, 10, 31])
def test_rate_is_the_mean_over_all_pairs(length):
    carrier = random_carrier(7)
    every = [
        position_inversion(carrier, 1.0, np.array([m1]), np.array([m2]))[0]
        for m1 in range(length)
        for m2 in range(length)
        if m1 < length / 2 <= m2
    ]
    rate = inversion_rate(carrier, 1.0, length)
    assert rate.value == pytest.approx(np.mean(every), abs=1e-14)
    assert rate.standard_error == 0


def test_a_seed_names_its_pairs():
    first, again, other = (inversion_rate(aligned(4, 100), 1.0, 1_000, 100, seed) for seed in (1, 1, 2))
    assert first == again != other


@pytest.mark.parametrize("variance", [0.0, 2.0])
def test_sampled_rate_is_within_its_error_of_the_exact_one(variance):
    carrier = aligned(16, 1_000)
    exact = inversion_rate(carrier, variance, 1_000)
    scores = [
        (rate.value - exact.value) / rate.standard_error
        for rate in (inversion_rate(carrier, variance, 1_000, 4_000, seed) for seed in range(40))
    ]
    # Means and mean squares of 40 standard normals: 1 / sqrt(40) and sqrt(2 / 40).
    assert abs(np.mean(scores)) <= Z / math.sqrt(40)
    assert abs(np.mean(np.square(scores)) - 1) <= Z * math.sqrt(2 / 40)


@pytest.mark.parametrize(
    ("pairs", "base", "published"),
    [
        (32, 10_000, (0.08, 0.15, 0.22, 0.49, 0.50, 0.50, 0.50)),
        (64, 500_000, (0.05, 0.13, 0.18, 0.19, 0.30, 0.50, 0.50)),
    ],
)
def test_convergence_to_one_half(pairs, base, published):
    # Deterministic aligned kernel, p = 1/h: the two digits of M = 1e2..1e8, the first five from every pair.
    exact = [ranked_rate(pairs, base, 10**power) for power in range(2, 7)]
    rates = [inversion_rate(aligned(pairs, base), 0.0, 10**power, 1 << 16) for power in range(2, 9)]
    assert [round(rate, 2) for rate in exact] == list(published[:5])
    assert (rates[0].value, rates[0].standard_error) == (pytest.approx(exact[0], abs=1e-12), 0)
    for rate, value in zip(rates, [*exact, *published[5:]], strict=True):
        assert abs(rate.value - value) <= Z * rate.standard_error + 1e-12
    # 1/2 is reached beyond 2 pi / theta_min only: 4.7e4 and 2.6e6.
    turn = 2 * math.pi * base ** (1 - 1 / pairs)
    for power, rate in zip(range(2, 9), rates, strict=True):
        assert (abs(rate.value - 0.5) < 0.02) == (10**power > turn)


def test_a_larger_base_is_worse_below_the_base_and_better_above():
    small, large = (
        [ranked_rate(64, base, length) for length in (100, 1_000, 10_000, 30_000, 100_000)]
        for base in (10_000, 500_000)
    )
    below, above = slice(0, 3), slice(3, 5)
    assert (np.array(small)[below] < np.array(large)[below] - 0.01).all()
    assert (np.array(small)[above] > np.array(large)[above] + 0.2).all()


def test_residuals_raise_the_rate_towards_one_half():
    rates = [inversion_rate(aligned(32, 10_000), s**2, 1_000).value for s in (0, 1, 10, 1_000)]
    assert rates == sorted(rates)
    assert rates[0] == pytest.approx(0.1532, abs=1e-4)
    assert 0.49 < rates[-1] < 0.5


# Token inversion


@pytest.mark.parametrize("seed", range(3))
def test_token_inversion_is_what_two_rotated_keys_do(seed):
    carrier, rng = random_carrier(seed + 20), np.random.default_rng([SIMULATION_SEED, 200 + seed])
    variance = rng.uniform(0.1, 3, carrier.schedule.pairs)
    # The carrier's mean key is the difference of the two tokens' means.
    first, second = carrier.key_mean + residuals(rng, variance), residuals(rng, variance)
    distances = np.array([1, 6, 200])
    for distance, probability in zip(distances, token_inversion(carrier, variance, distances), strict=True):
        before, after = (simulated_scores(carrier, first - second, m) for m in (0, distance))
        assert_share(before * after < 0, probability)


@settings(deadline=None, max_examples=50)
@given(seed=st.integers(0, 10**6), distance=st.integers(0, 10**5))
def test_keys_of_one_law_flip_by_the_arc(seed, distance):
    carrier = replace(random_carrier(seed), key_mean=np.zeros(10))
    weights = np.square(carrier.schedule.score_gains * np.abs(carrier.query_mean[0::2] + 1j * carrier.query_mean[1::2]))
    g = float(kernel(weights / weights.sum(), carrier.schedule.frequencies, np.array([distance]))[0])
    # arccos of a g that is off by 1e-15 is off by up to sqrt(2e-15) near g = 1, here and nowhere in ours.
    found = token_inversion(carrier, 0.7, np.array([distance]))[0]
    assert found == pytest.approx(math.acos(min(g, 1)) / math.pi, abs=5e-8)


@settings(deadline=None, max_examples=40)
@given(
    seed=st.integers(0, 10**6),
    here=st.sampled_from([-6.0, -1.0, 0.0, 0.3, 2.0]),
    there=st.floats(-5, 5),
    lag=st.integers(1, 50),
)
def test_means_enter_as_an_orthant(seed, here, there, lag):
    # Price: d P(D D' < 0) / d rho = -2 density(0, 0), integrated from rho = 1 along rho = cos t.
    rng = np.random.default_rng(seed)
    schedule = RotarySchedule(rng.uniform(0.05, 2.5, size=3))
    weights = rng.dirichlet(np.ones(3) * 5)
    query = np.repeat(np.sqrt(weights), 2) * np.tile([1.0, 0.0], 3)
    # A mean key in the plane of q and of q turned, so that both standardised means are the given ones.
    turned = schedule.rotate(query, np.array(lag))
    gram = np.array([[1, query @ turned], [query @ turned, 1]])
    assume(np.linalg.det(gram) > 1e-3)
    wanted = math.sqrt(2) * np.array([here, there])
    mean = np.linalg.solve(gram, wanted) @ np.stack([query, turned])
    found = token_inversion(Carrier.from_means(schedule, query, mean, 1.0), 1.0, np.array([lag]))[0]
    rho = mpmath.mpf(float(query @ turned))

    def density(t):
        return mpmath.exp(-((here - there) ** 2 + 2 * here * there * (1 - mpmath.cos(t))) / (2 * mpmath.sin(t) ** 2))

    end = mpmath.acos(rho)
    integral = mpmath.quad(density, mpmath.linspace(end * mpmath.mpf("1e-12"), end, 9))
    expected = abs(mpmath.ncdf(here) - mpmath.ncdf(there)) + integral / mpmath.pi
    # The Gram matrix of condition up to 4e3 costs the means 1e-12.
    assert found == pytest.approx(float(expected), abs=1e-9)


@pytest.mark.parametrize(
    ("frequencies", "query", "key", "variance"),
    [
        # One order is the other plus a change of the means: correlation 1, from a pair that no residual reaches.
        ([1.0, 0.0], [1.0, 0, 1, 0], [2.0, 0, 0, 0], [0.0, 1.0]),
        ([2 * math.pi / 5, 1.0], [1.0, 0, 1, 0], [0.0, 0, 2, 0], [1.0, 0.0]),
        # Correlation -1 at odd distances: half a turn of the only residual.
        ([math.pi, 0.0], [1.0, 0, 1, 0], [0.0, 0, 3, 0], [1.0, 0.0]),
        ([math.pi, 1.0], [1.0, 0.3, 1, 0], [0.5, 0.1, 0.4, 0.7], [1.0, 0.0]),
    ],
)
def test_orders_of_one_residual_flip_by_their_means(frequencies, query, key, variance):
    carrier = Carrier.from_means(RotarySchedule(np.array(frequencies)), np.array(query), np.array(key), 1.0)
    rng = np.random.default_rng([SIMULATION_SEED, 220])
    difference = carrier.key_mean + math.sqrt(2) * residuals(rng, np.array(variance))
    distances = np.array([1, 2, 3, 5])
    found = token_inversion(carrier, np.array(variance), distances)
    assert np.ptp(found) > 0.01
    before = simulated_scores(carrier, difference, 0)
    for distance, probability in zip(distances, found, strict=True):
        assert_share(before * simulated_scores(carrier, difference, distance) < 0, probability)
    # The general form tends to the same: a residual of 1e-13 on the other pair.
    nearby = token_inversion(carrier, np.maximum(variance, 1e-26), distances)
    np.testing.assert_allclose(found, nearby, atol=1e-11)


@pytest.mark.parametrize("unit", [1e-200, 1e200])
def test_the_unit_of_the_query_does_not_matter(unit):
    carrier = random_carrier(11)
    scaled = replace(carrier, query_mean=unit * carrier.query_mean)
    near, far = np.array([0, 3, 40]), np.array([7, 5, 1000])
    np.testing.assert_allclose(
        position_inversion(scaled, 1.0, near, far), position_inversion(carrier, 1.0, near, far), rtol=1e-12
    )
    np.testing.assert_allclose(token_inversion(scaled, 1.0, far), token_inversion(carrier, 1.0, far), rtol=1e-12)


@pytest.mark.parametrize("kind", [np.uint64, np.uint8, np.int16])
def test_any_integer_type_counts_distances(kind):
    carrier, far = random_carrier(12), 20_000 if kind is np.int16 else 200
    near, far = np.array([far // 2, far]), np.array([far, far // 2])
    found = position_inversion(carrier, 1.0, near.astype(kind), far.astype(kind))
    np.testing.assert_array_equal(found, position_inversion(carrier, 1.0, near, far))
    assert np.ptp(found) > 0.05
    # int16 holds each of these distances and not their sum.
    wide = np.array([30_000])
    np.testing.assert_array_equal(
        position_inversion(carrier, 1.0, near[:1].astype(np.int16), wide.astype(np.int16)),
        position_inversion(carrier, 1.0, near[:1], wide),
    )


def test_a_bias_counts_in_full():
    # One pair: Phi(-(r cos m1 theta - r cos m2 theta + slope (m2 - m1)) / (2 s |q| sin((m2 - m1) theta / 2))).
    theta, slope, m1, m2 = 0.3, 0.07, 2, 9
    lanes = np.array([1.5, 0.0])
    carrier = replace(Carrier.from_means(RotarySchedule(np.array([theta])), lanes, lanes, 1.0), bias=LinearBias(slope))
    gap = 1.5**2 * (math.cos(m1 * theta) - math.cos(m2 * theta)) + slope * (m2 - m1)
    z = gap / (1.5 * 2.0 * 2 * abs(math.sin((m2 - m1) * theta / 2)))
    expected = math.erfc(z / math.sqrt(2)) / 2
    assert position_inversion(carrier, 4.0, np.array([m1]), np.array([m2]))[0] == pytest.approx(expected, rel=1e-12)


def test_token_inversion_at_the_edges():
    lanes = np.array([1.0, 0.0])
    half_turn = RotarySchedule.from_exact([sympy.pi])
    for mean in (lanes, -lanes, 0 * lanes):
        carrier = Carrier.from_means(half_turn, lanes, mean, 1.0)
        np.testing.assert_allclose(token_inversion(carrier, 1.0, np.array([0, 1, 2, 3])), [0, 1, 0, 1], atol=1e-15)
    # Whatever the phase, one pair half a turn on has the other sign, but for what its frequency is off by.
    rng = np.random.default_rng(5)
    for theta in (math.pi, math.pi - 1e-14, math.pi - 1e-10):
        for query, mean in rng.normal(size=(20, 2, 2)):
            carrier = Carrier.from_means(RotarySchedule(np.array([theta])), query, mean, 1.0)
            np.testing.assert_allclose(
                token_inversion(carrier, 1.0, np.array([1, 101])), 1, atol=max(1e-13, 200 * (math.pi - theta))
            )
    # Key mean (0, b): the order at 0 has no mean, at a quarter turn it has; independent, so 1/2.
    quarter = Carrier.from_means(RotarySchedule.from_exact([sympy.pi / 2]), lanes, np.array([0.0, 3.0]), 1.0)
    assert token_inversion(quarter, 1.0, np.array([1]))[0] == pytest.approx(0.5, abs=1e-12)
    # Means that cancel at 0 and not after a sixth of a turn, where the orders are independent.
    sixth = RotarySchedule.from_exact([sympy.pi / 3, 2 * sympy.pi / 3])
    for sign in (1, -1):
        cancelling = Carrier.from_means(sixth, np.tile(lanes, 2), sign * np.array([1.0, 0, -1, 0]), 1.0)
        assert cancelling.amplitudes @ np.cos(cancelling.phases) == 0
        assert token_inversion(cancelling, 1.0, np.array([1]))[0] == pytest.approx(0.5, abs=1e-12)
    # A slow pair: arccos(cos x) / pi = x / pi keeps its digits where 1 - cos x does not.
    slow = Carrier.from_means(RotarySchedule(np.array([1e-9])), lanes, 0 * lanes, 1.0)
    assert token_inversion(slow, 1.0, np.array([1]))[0] == pytest.approx(1e-9 / math.pi, rel=1e-12)


# Middle range


def test_middle_range_between_one_and_the_base():
    # Ci(m) - Ci(m / base) over ln base, the integral over pairs: Ci(x) = gamma + ln x up to x^2/4, |Ci(m)| < 1/m.
    base = 500_000.0
    lags = np.unique(np.geomspace(1, 100_000, 60).astype(int))
    integral = (sici(lags)[1] - sici(lags / base)[1]) / math.log(base)
    error = (1 / lags + (lags / base) ** 2 / 4) / math.log(base)
    assert (np.abs(middle_range_kernel(base, lags) - integral) <= error).all()


@pytest.mark.parametrize(("pairs", "base", "first", "last"), [(32, 10_000, 100, 1_000), (64, 500_000, 300, 10_000)])
def test_middle_range_is_the_running_mean_with_its_scatter(pairs, base, first, last):
    lags = np.arange(first, last)
    g = kernel(np.full(pairs, 1 / pairs), RotarySchedule.geometric(2 * pairs, base).frequencies, lags)
    rest = g - middle_range_kernel(base, lags, pairs)
    scatter = np.sqrt(np.log(lags * math.log(base) / (math.pi * pairs)) / (2 * pairs * math.log(base)))
    assert abs(rest.mean()) < 0.003
    # Without the trapezoid's end the mean is off by 1/(2h).
    assert (g - middle_range_kernel(base, lags)).mean() == pytest.approx(-1 / (2 * pairs), abs=0.003)
    assert math.sqrt((rest**2).mean() / (scatter**2).mean()) == pytest.approx(1, abs=0.1)


# Aliasing


def brute_force(scores: np.ndarray, tolerance: float) -> int:
    return sum(abs(a - b) < tolerance for i, a in enumerate(scores) for b in scores[:i])


def test_aliased_pairs_of_the_long_context():
    # h = 64, base 5e5, L = 8192, psi = 0, eps = the bf16 step at 8.
    scores, tolerance = carrier_profile(aligned(64, 500_000), 8192), 2.0**-7 * 8
    assert expected_aliased_pairs(np.ones(64), None, 8192, tolerance) == pytest.approx(2.09e5, rel=0.0025)
    counted, binned = aliased_pairs(scores, tolerance), binned_pairs(scores, tolerance)
    assert (counted, binned) == (216_140, 108_024)
    assert sum(int((np.abs(scores[:m] - scores[m]) < tolerance).sum()) for m in range(8192)) == counted


@pytest.mark.parametrize(("base", "length"), [(500, 1024), (500, 8192), (500_000, 1024), (500_000, 8192)])
def test_aliasing_with_random_phases(base, length):
    schedule, counts = RotarySchedule.geometric(128, base), []
    frequencies = schedule.frequencies
    for seed in range(40):
        phases = np.random.default_rng([SIMULATION_SEED, 300, seed]).uniform(0, 2 * np.pi, 64)
        counts.append(aliased_pairs(cosine_sums(np.ones(64), frequencies, phases, 0, length), 0.0625))
    mean, error = np.mean(counts), np.std(counts, ddof=1) / math.sqrt(40)
    expected = expected_aliased_pairs(np.ones(64), schedule, length, 0.0625)
    # A difference has variances 2 sin^2 a pair, so excess kurtosis -1.5 * 1.5 / h and at 0 a density lower by
    # an eighth of it, .28 / h.
    assert abs(mean - expected * (1 - 2.25 / (8 * 64))) <= Z * error
    # Independent scores are the same where every pair goes round, and too few where the slow ones stand still.
    independent = expected_aliased_pairs(np.ones(64), None, length, 0.0625)
    turns = length / (2 * math.pi / frequencies[-1])
    assert (abs(mean / independent - 1) < 0.02) == (turns > 1)
    assert (mean / independent > 1.2) == (turns < 0.01)


def test_expected_aliasing_is_the_printed_form_and_at_most_all_pairs():
    s, amplitudes = math.sqrt((4 + 9) / 2), np.array([2.0, 3.0])
    assert expected_aliased_pairs(amplitudes, None, 1000, 1e-3) == pytest.approx(
        1000**2 / 2 * 1e-3 / (s * math.sqrt(math.pi)), rel=1.1e-3
    )  # L (L - 1) in place of L^2 is 1e-3
    assert expected_aliased_pairs(amplitudes, None, 1000, 1e3) == pytest.approx(1000 * 999 / 2)
    # Frequency 0 tells nothing apart: every pair of positions aliases.
    still = RotarySchedule(np.zeros(2))
    assert expected_aliased_pairs(amplitudes, still, 50, 1e-9) == 50 * 49 / 2
    # The unit of scores does not matter, even where its square is beyond float64.
    for unit in (1e-170, 1e170):
        for schedule in (None, RotarySchedule(np.array([0.7, 0.1]))):
            found = expected_aliased_pairs(unit * amplitudes, schedule, 1000, unit * 1e-3)
            assert found == pytest.approx(expected_aliased_pairs(amplitudes, schedule, 1000, 1e-3), rel=1e-12)


def test_slow_pairs_alias_by_their_small_differences():
    # Two scores one token apart differ by N(0, r^2 (1 - cos theta)), 1 - cos theta = theta^2/2: eps is one deviation.
    theta, amplitudes = 1e-9, np.array([2.0])
    found = expected_aliased_pairs(amplitudes, RotarySchedule(np.array([theta])), 2, 2 * theta / math.sqrt(2))
    assert found == pytest.approx(math.erf(1 / math.sqrt(2)), rel=1e-12)


def test_expected_aliasing_of_a_long_context_takes_little_memory():
    tracemalloc.start()
    independent = expected_aliased_pairs(np.ones(2), None, 10**9, 1e-3)
    with_schedule = expected_aliased_pairs(np.ones(2), RotarySchedule(np.array([1.0, 2.0])), 10**6, 1e-3)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert independent == pytest.approx(1e18 / 2 * math.erf(1e-3 / 2), rel=1e-8)
    assert 0 < with_schedule < 5e11
    # 16384 lags at a time, of 2 pairs.
    assert peak < 4e6


@settings(deadline=None, max_examples=100)
@given(scores=st.lists(st.integers(-200, 200), max_size=40), step=st.integers(1, 64))
def test_counts_are_those_of_all_pairs(scores, step):
    # Sixty-fourths are exact, so that differences of just eps are decided: they do not alias.
    values, tolerance = np.array(scores, dtype=np.float64) / 64, step / 64
    assert aliased_pairs(values, tolerance) == brute_force(values, tolerance)
    bins = [math.floor(score / step) for score in scores]
    assert binned_pairs(values, tolerance) == sum(a == b for i, a in enumerate(bins) for b in bins[:i])


def test_bins_count_up_to_where_float64_tells_them_apart():
    scores = np.array([1e300, 2e300, 3e300])
    with pytest.raises(TheoryError, match=r"1e-300 are finer than float64 resolves scores up to 3e\+300: give a width"):
        binned_pairs(scores, 1e-300)
    assert binned_pairs(scores, 3e300 / 2.0**50) == 0
    assert binned_pairs(scores, 4e300) == 3


def test_equal_scores_alias_below_their_rounding():
    scores = np.array([1.0, 1.0, np.nextafter(1, 2), -0.0, 0.0])
    assert aliased_pairs(scores, 1e-30) == 2
    assert aliased_pairs(scores, 1e-3) == 4


@settings(deadline=None, max_examples=60)
@given(
    amplitudes=st.lists(st.floats(-3, 3), min_size=1, max_size=6),
    tolerance=st.floats(0.05, 3),
    seed=st.integers(0, 10**6),
)
def test_bins_force_a_collision(amplitudes, tolerance, seed):
    rng, a = np.random.default_rng(seed), np.array(amplitudes)
    frequencies, phases = rng.uniform(0, 3, len(a)), rng.uniform(0, 7, len(a))
    count = collision_length(a, tolerance)
    assert count - 1 <= 2 * np.abs(a).sum() / tolerance * (1 + 1e-12) + 1
    scores = np.cos(np.multiply.outer(np.arange(count), frequencies) + phases) @ a
    # Scores are rounded: one that is all alias by a hair is not to be missed.
    assert aliased_pairs(scores, tolerance * (1 + 1e-9)) >= 1
    # Any points of the interval, no position behind them; one fewer, evenly spread, need not collide.
    reach = np.abs(a).sum()
    if reach > 0:
        assert aliased_pairs(rng.uniform(-reach, reach, count), tolerance) >= 1
        assert aliased_pairs(-reach + tolerance * np.arange(count - 1), tolerance * (1 - 1e-9)) == 0


def test_the_count_of_bins_is_strict():
    # theta = pi, S = 1, -1, 1: two positions differ by 2A = eps and do not alias, three do.
    scores = np.array([1.0, -1.0, 1.0])
    assert collision_length(np.ones(1), 2.0) == 3
    assert aliased_pairs(scores[:2], 2.0) == 0
    assert aliased_pairs(scores, 2.0) == 1
    assert collision_length(np.ones(64), 0.0625) == 2050
    # The float 0.1 is above a tenth: 2 / 0.1 is below 20, though its float quotient is 20.
    assert collision_length(np.ones(1), 0.1) == 21
    assert collision_length(np.zeros(2), 1.0) == 2


# Errors


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda c, m: position_inversion(c, -1.0, m, m), r"residual variance is one number of 0 or more, or 4"),
        (lambda c, m: position_inversion(c, np.ones(3), m, m), "or 4, one a pair"),
        (lambda c, m: position_inversion(c, float("nan"), m, m), "got nan"),
        (lambda c, m: position_inversion(c, 1.0, -m, m), "from 0 to 2.53, got -5 to 0: drop the sign"),
        (lambda c, m: position_inversion(c, 1.0, m, m << 60), "from 0 to 2.53, got 0 to 5764"),
        (lambda c, m: position_inversion(c, 1.0, m, m / 2), "distances are whole numbers.* float64 of shape"),
        (lambda c, m: position_inversion(c, 1.0, m, np.array([1, 2])), r"flat arrays of one length.*\(2,\)"),
        (lambda c, m: token_inversion(c, 1.0, m[None]), r"flat arrays of one length.*\(1, 1\)"),
        (
            lambda c, m: position_inversion(replace(c, query_mean=np.full(8, 1e308)), 1e9, m, m),
            "must be finite, number 0",
        ),
        (
            lambda c, m: position_inversion(
                replace(c, query_mean=np.full(8, 1e200), key_mean=np.full(8, 1e200)), 1.0, m, m
            ),
            "amplitudes must be finite, number 0 is inf",
        ),
        (lambda c, m: inversion_rate(c, 1.0, 1), "length to compare in must be 2 or more, got 1"),
        (lambda c, m: inversion_rate(c, 1.0, 9.5), "must be a whole number, got 9.5"),
        (lambda c, m: inversion_rate(c, 1.0, 100, 1), "most_pairs must be 2 or more, got 1"),
        (lambda c, m: token_inversion(c, 0.0, m), "give a live pair a variance above 0"),
        (lambda c, m: token_inversion(c, 1.0, -m), "got -5"),
        (lambda c, m: middle_range_kernel(100.0, np.array([0])), "lags 1 to 100.0, the base, got lags 0 to 0"),
        (lambda c, m: middle_range_kernel(100.0, np.array([101])), "got lags 101 to 101"),
        (lambda c, m: middle_range_kernel(1.0, m), "finite base above 1"),
        (lambda c, m: middle_range_kernel(100.0, m, 0), "one pair or more"),
        (lambda c, m: expected_aliased_pairs(np.zeros(2), None, 100, 0.1), "give one that is not 0"),
        (lambda c, m: expected_aliased_pairs(np.ones(3), c.schedule, 100, 0.1), "give 4 finite amplitudes"),
        (lambda c, m: expected_aliased_pairs(np.array([1, np.nan]), None, 100, 0.1), "number 1 is nan"),
        (lambda c, m: expected_aliased_pairs(np.ones(2), None, 1, 0.1), "for two positions, must be 2 or more, got 1"),
        (lambda c, m: expected_aliased_pairs(np.ones(2), None, 10, 0.0), "above 0, got 0.0"),
        (lambda c, m: aliased_pairs(np.array([0, np.nan]), 0.1), "scores must be finite, number 1 is nan"),
        (lambda c, m: aliased_pairs(np.ones(2), -1.0), "above 0, got -1.0"),
        (lambda c, m: binned_pairs(np.ones(2), float("inf")), "above 0, got inf"),
        (lambda c, m: collision_length(np.array([np.inf]), 0.1), "amplitudes must be finite, number 0 is inf"),
        (lambda c, m: collision_length(np.ones(2), 0.0), "above 0, got 0.0"),
    ],
)
def test_what_does_not_fit_is_named(call, text, unchecked):
    with pytest.raises(TheoryError, match=text):
        call(aligned(4, 100), np.array([5]))
