"""Accuracy against length, and the tails under it: enumeration, convolution, mpmath, simulation, trained runs."""

from dataclasses import replace
from functools import reduce
from itertools import product

import mpmath
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles import score_table
from scipy.integrate import quad
from scipy.special import ndtr, ndtri

from bridge.sources.run import head_of_run, readout_of_run
from empirics.spec import run_spec
from empirics.store import Store
from empirics.sweep import sweep
from theory import accuracy, tails
from theory.accuracy import AccuracyLaw, accuracy_law
from theory.errors import TheoryError
from theory.head import Head
from theory.schedule import RotarySchedule
from theory.tails import saddlepoint_tails

TABLE_1 = (12, 16, 20, 24, 32, 40, 48)
SIMULATION_SEED = 31_415
SEQUENCES = 200_000


def carrier_head(seed: int, tokens: int, offset: int, residual: float = 0.5) -> tuple[Head, np.ndarray]:
    """A small head that looks `offset` back, with tokens of unequal weight, and a readout that copies, both noisy."""
    rng, schedule = np.random.default_rng(seed), RotarySchedule.geometric(8, 10)
    query = rng.normal(size=8)
    query *= 2.5 / np.linalg.norm(query)
    queries = query + residual * rng.normal(size=(tokens, 8))
    keys = schedule.rotate(query, np.array(-offset)) + residual * rng.normal(size=(tokens, 8))
    readout = 3 * np.eye(tokens) + rng.normal(size=(tokens, tokens))
    return Head.from_tokens(schedule, queries, keys, rng.dirichlet(np.full(tokens, 5.0)), 0.7), readout


def readout_sums(head: Head, readout: np.ndarray, tokens: np.ndarray) -> np.ndarray:
    """sum_t e^l_t O[b_t, :] of rows of tokens, column j the token j back: a table look-up."""
    query = tokens[:, 0]
    gains = np.exp(head.logit_scale * score_table(head.schedule, head.queries, head.keys, tokens.shape[1]))
    sums = np.zeros((len(tokens), readout.shape[1]))
    for j in range(tokens.shape[1]):
        sums = sums + gains[query, j, tokens[:, j]][:, None] * readout[tokens[:, j]]
    return sums


def enumerated_accuracy(head: Head, readout: np.ndarray, offset: int, length: int) -> float:
    """The accuracy over all sequences, each with its probability."""
    tokens = np.array(list(product(range(len(readout)), repeat=length)))
    chance = head.query_weights[tokens[:, 0]] * head.key_weights[tokens[:, 1:]].prod(axis=1)
    return float(chance @ (readout_sums(head, readout, tokens).argmax(axis=1) == tokens[:, offset]))


def simulated_accuracy(head: Head, readout: np.ndarray, offset: int, length: int, sequences: int = SEQUENCES) -> float:
    """The accuracy over random sequences, from a seed of its own at each length."""
    rng, chunk, correct = np.random.default_rng([SIMULATION_SEED, length]), 10_000, 0
    for _ in range(sequences // chunk):
        tokens = rng.choice(len(readout), size=(chunk, length), p=head.key_weights)
        tokens[:, 0] = rng.choice(len(readout), size=chunk, p=head.query_weights)
        correct += int((readout_sums(head, readout, tokens).argmax(axis=1) == tokens[:, offset]).sum())
    return correct / sequences


def assert_holds(law: AccuracyLaw, observed: np.ndarray, sequences: int) -> None:
    """The bracket contains what was observed: four standard errors, and one sequence where they vanish."""
    error = 4 * np.sqrt(observed * (1 - observed) / sequences) + 4 / sequences
    assert (law.lower - error <= observed).all() and (observed <= law.upper + error).all(), (law, observed)
    assert (law.lower >= 0).all() and (law.lower <= law.point).all()
    assert (law.point <= law.upper).all() and (law.upper <= 1).all()


# Tails.


def random_terms(seed: int, terms: int, keys: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return rng.uniform(0.2, 2, (terms, keys)), rng.dirichlet(np.full(keys, 3.0)), rng.normal(size=(keys, 3))


def score_of_pair(tails, left: int, right: int, x: np.ndarray) -> np.ndarray:
    points = np.zeros((len(x), tails.points.shape[1]))
    points[:, right] = x
    return tails.scores(left, points)[:, right]


@settings(deadline=None, max_examples=15)
@given(seed=st.integers(0, 10_000), scale=st.sampled_from([1e-30, 1e-3, 1, 50, 1e30]), z=st.floats(-4, 4))
def test_scores_are_the_saddlepoint_formula(seed, scale, z):
    # mpmath on one pair at one tilt. The line through r* - r is off by h^2/8 of its curvature, where
    # points stand 2^(1/3) apart in s: below .01 nine times over at the ends, measured on 480 pairs.
    gains, weights, readout = random_terms(seed, terms=5, keys=4)
    step = gains * (readout[:, 2] - readout[:, 0])

    def cumulant(s):
        return mpmath.fsum(
            mpmath.log(mpmath.fsum(w * mpmath.exp(s * x) for w, x in zip(weights, row, strict=True))) for row in step
        )

    with mpmath.workdps(30):
        s = mpmath.mpf(z if abs(z) > 0.01 else 0.01) / mpmath.sqrt(mpmath.diff(cumulant, 0, 2))
        x, k, k2 = mpmath.diff(cumulant, s), cumulant(s), mpmath.diff(cumulant, s, 2)
        root = mpmath.sign(s) * mpmath.sqrt(2 * (s * x - k))
        expected = float(root + mpmath.log(s * mpmath.sqrt(k2) / root) / root)
    tails = saddlepoint_tails(gains * scale, weights, readout)
    assert score_of_pair(tails, 2, 0, np.array([float(x) * scale]))[0] == pytest.approx(expected, abs=0.01)


@pytest.mark.parametrize(("terms", "tolerance"), [(50, 0.008), (100, 0.004), (400, 0.001)])
def test_tails_of_a_lattice_sum_from_the_centre_to_1e_9(terms, tolerance):
    # Half-way between lattice points, Daniels' second continuity correction multiplies q by
    # sinh(s/2)/(s/2), which moves r* by s^2/24r, about 6/(24 * 1.56 n) at r = 6; the formula itself
    # errs by n^(-3/2). Both are below .4/n: the error must fall as the number of terms grows.
    weights = np.array([0.2, 0.3, 0.5])
    mass = reduce(np.convolve, [np.array([0.2, 0.3, 0, 0.5])] * terms)
    below = np.cumsum(mass)[:-1]
    tails = saddlepoint_tails(np.ones((terms, 3)), weights, np.array([[0.0, 7.0], [1.0, 7.0], [3.0, 7.0]]))
    score = score_of_pair(tails, 0, 1, np.arange(3 * terms) + 0.5 - 7 * terms)
    seen = (below > 1e-9) & (below < 1 - 1e-9)
    assert seen.sum() > 30
    np.testing.assert_allclose(score[seen], ndtri(below[seen]), atol=tolerance)
    # Positive control: one lattice point further is another probability.
    assert np.abs(score[seen][1:] - ndtri(below[seen])[:-1]).min() > 5 * tolerance


@settings(deadline=None, max_examples=25)
@given(seed=st.integers(0, 10_000), terms=st.integers(1, 6))
def test_support_is_exact_and_pairs_mirror_each_other(seed, terms):
    gains, weights, readout = random_terms(seed, terms, keys=3)
    tails = saddlepoint_tails(gains, weights, readout)
    sums = np.zeros((1, 3))
    for gain in gains:
        sums = (sums[:, None] + gain[:, None] * readout).reshape(-1, 3)
    values = sums[:, 1] - sums[:, 2]
    least, most = values.min(), values.max()
    np.testing.assert_allclose([tails.least[1, 2], tails.most[1, 2]], [least, most], atol=1e-12)
    width = most - least + 1
    outside = score_of_pair(tails, 1, 2, np.array([least - 1e-9 * width, most + 1e-9 * width]))
    assert outside.tolist() == [-np.inf, np.inf]
    x = np.linspace(least, most, 50)[1:-1]
    score = score_of_pair(tails, 1, 2, x)
    # A distribution function, up to the interpolation.
    assert (np.diff(score) >= -0.01).all()
    assert np.isfinite(score).all()
    np.testing.assert_allclose(score, -score_of_pair(tails, 2, 1, -x), atol=1e-9)


def test_a_sum_of_nothing_and_a_constant_are_steps():
    for gains, at in ((np.zeros((0, 2)), 0.0), (np.ones((3, 2)), 6.0)):
        tails = saddlepoint_tails(gains, np.array([0.4, 0.6]), np.array([[2.0, 0.0], [2.0, 0.0]]))
        assert score_of_pair(tails, 0, 1, np.array([at - 1e-9, at, at + 1e-9])).tolist() == [-np.inf, np.inf, np.inf]


def test_a_rare_key_of_huge_gain_overflows_nothing():
    gains, weights = np.tile([1.0, 2.0, 1e6], (5, 1)), np.array([0.5, 0.5 - 1e-9, 1e-9])
    tails = saddlepoint_tails(gains, weights, np.array([[1.0, 0.0], [-1.0, 0.0], [1.0, 0.0]]))
    score = score_of_pair(tails, 0, 1, np.array([-9.0, 0, 9, 1e5, 4e6]))
    assert np.isfinite(score).all() and (np.diff(score) >= 0).all()


@settings(deadline=None, max_examples=10)
@given(seed=st.integers(0, 10_000))
def test_covariance_of_the_scores(seed):
    gains, weights, readout = random_terms(seed, terms=4, keys=5)
    expected = sum(np.cov((gain[:, None] * readout).T, aweights=weights, ddof=0) for gain in gains)
    np.testing.assert_allclose(accuracy._covariance(gains, weights, readout), expected, atol=1e-12)


def direct_cumulants(gains: np.ndarray, weights: np.ndarray, step: np.ndarray, s: float) -> np.ndarray:
    """K, K' and K'' of the sum of g_tb step_b, as mean and variance under the tilted weights."""
    values = gains * step
    moments = np.exp(s * values) @ weights
    tilted = np.exp(s * values) * weights / moments[:, None]
    mean = (tilted * values).sum(axis=1)
    variance = (tilted * (values - mean[:, None]) ** 2).sum(axis=1)
    return np.array([np.log(moments).sum(), mean.sum(), variance.sum()])


def series_of(gains: np.ndarray, weights: np.ndarray, readout: np.ndarray) -> tuple:
    """The series of these terms from the first on, and their largest reach."""
    reach = (gains * np.ptp(readout, axis=1)).max(axis=1)
    order = np.argsort(-reach)
    left, right = np.triu_indices(readout.shape[1], 1)
    parts = gains[order], reach[order], weights, readout, readout[:, left] - readout[:, right]
    return tails._series(tails._Terms(*parts)), float(reach.max())


@settings(deadline=None, max_examples=25)
@given(seed=st.integers(0, 10_000), rho=st.floats(0.05, 0.95), spread=st.floats(0, 3), rare=st.floats(0.001, 0.5))
def test_the_series_of_light_terms_keeps_within_its_bound(seed, rho, spread, rare):
    # Rare keys are what makes high cumulants large. Rounding: 70 terms of order 1e-14 beside K' and K''.
    rng = np.random.default_rng(seed)
    gains, readout = np.exp(spread * rng.normal(size=(70, 3))), rng.normal(size=(3, 4))
    weights = np.array([rare, 0.4 * (1 - rare), 0.6 * (1 - rare)])
    series, reach = series_of(gains, weights, readout)
    for sign in (1, -1):
        s = rho / reach
        found, bounds = series.cumulants(s, 0), series.bounds[0] * s ** (tails._ORDER - 1) / (1 - rho)
        for i, (y, c) in enumerate(zip(*np.triu_indices(4, 1), strict=True)):
            step = sign * (readout[:, y] - readout[:, c])
            exact = direct_cumulants(gains, weights, step, s)
            scale = bounds[i] * np.array([s**2 / (tails._ORDER * (tails._ORDER + 1)), s / tails._ORDER, 1])
            size = np.array([1, 1 / s, 1 / s**2])
            assert (np.abs(found[:, i, (1 - sign) // 2] - exact) <= scale + 1e-11 * size).all()


def test_one_coefficient_less_leaves_the_bound(monkeypatch):
    # Positive control: p = 6, and what p = 3 leaves of two equal keys, an error of order rho^2, not rho^5.
    gains, weights, readout = np.ones((20, 2)), np.array([0.5, 0.5]), np.array([[1.0, 0.0], [0.0, 1.0]])
    series, _ = series_of(gains, weights, readout)
    bound = series.bounds[0, 0] * 0.2 ** (tails._ORDER - 1) / 0.8
    exact = direct_cumulants(gains, weights, np.array([1.0, -1.0]), 0.2)[2]
    assert abs(series.cumulants(0.2, 0)[2, 0, 0] - exact) <= bound
    series.coefficients[3:] = 0
    assert abs(series.cumulants(0.2, 0)[2, 0, 0] - exact) > 5 * bound


# The law.


@settings(deadline=None, max_examples=20)
@given(seed=st.integers(0, 10_000), offset=st.integers(0, 3), length=st.integers(4, 6))
def test_every_key_enumerated_is_the_accuracy_over_all_sequences(seed, offset, length):
    head, readout = carrier_head(seed, tokens=3, offset=offset)
    exact = enumerated_accuracy(head, readout, offset, length)
    law = accuracy_law(head, readout, offset, [length])
    # Sums of 729 products of probabilities, some 1e-16 each.
    np.testing.assert_allclose([law.lower[0], law.point[0], law.upper[0]], exact, atol=1e-12)


@pytest.mark.parametrize(("most_cases", "miss", "estimate"), [(1, 0.2, 0.03), (3, 0.1, 0.012), (400, 0.01, 0.001)])
def test_keys_left_to_the_saddlepoint(monkeypatch, most_cases, miss, estimate):
    # The bracket may miss by half of an atom of what is left, for each of two rivals. With no key
    # enumerated the heaviest has atoms of .2 and more; at one key the next one has, in each of three
    # cases; at five keys two light ones are left, with atoms of .05. The estimate's mean error over
    # the heads came to .022, .008 and .0004.
    monkeypatch.setattr(accuracy, "_MOST_CASES", most_cases)
    errors = []
    for seed in range(12):
        offset = seed % 3
        head, readout = carrier_head(seed, tokens=3, offset=offset)
        exact = enumerated_accuracy(head, readout, offset, 9)
        law = accuracy_law(head, readout, offset, [9])
        assert law.lower[0] - miss <= exact <= law.upper[0] + miss
        errors.append(abs(law.point[0] - exact))
    assert 1e-6 < np.mean(errors) < estimate


def test_ties_go_to_the_lower_token():
    # Equal attention and whole scores: ties are common, and token 2 ties with 0 wherever it stands alone.
    weights, readout = np.array([0.5, 0.3, 0.2]), np.array([[1.0, 0, 0], [0, 1, 0], [1, 0, 1]])
    head = Head.from_tokens(RotarySchedule.geometric(4, 10), np.zeros((3, 4)), np.zeros((3, 4)), weights, 1.0)
    tokens = np.array(list(product(range(3), repeat=5)))
    chance, scores = weights[tokens].prod(axis=1), readout[tokens].sum(axis=1)
    lowest = chance @ (scores.argmax(axis=1) == tokens[:, 2])
    highest = chance @ (2 - scores[:, ::-1].argmax(axis=1) == tokens[:, 2])
    assert accuracy_law(head, readout, 2, [5]).point[0] == pytest.approx(lowest, abs=1e-12)
    assert highest - lowest > 0.005


def test_two_equal_columns_of_the_readout_tie():
    head, readout = carrier_head(seed=1, tokens=4, offset=1)
    readout[:, 2] = readout[:, 1]
    law = accuracy_law(head, readout, 1, [4, 12])
    swapped = simulated_accuracy(head, readout, 1, 12)
    assert law.point[0] == pytest.approx(enumerated_accuracy(head, readout, 1, 4), abs=1e-12)
    assert law.lower[1] - 0.01 < swapped < law.upper[1] + 0.01


@settings(deadline=None, max_examples=8)
@given(seed=st.integers(0, 10_000), offset=st.integers(0, 2), factor=st.floats(0.01, 100))
def test_what_changes_no_prediction_changes_no_accuracy(seed, offset, factor):
    head, readout = carrier_head(seed, tokens=4, offset=offset)
    law = accuracy_law(head, readout, offset, [4, 9])
    rng = np.random.default_rng(seed)
    same = accuracy_law(head, factor * (readout + rng.normal(size=(4, 1))), offset, [4, 9])
    order = rng.permutation(4)
    renamed = Head.from_tokens(
        head.schedule, head.queries[order], head.keys[order], head.key_weights[order], head.logit_scale
    )
    moved = accuracy_law(renamed, readout[np.ix_(order, order)], offset, [4, 9])
    for other in (same, moved):
        for name in ("lower", "point", "upper"):
            np.testing.assert_allclose(getattr(other, name), getattr(law, name), atol=1e-6)


@pytest.mark.parametrize("power", [-1060, -700, -520, 330, 700, 1015])
def test_a_power_of_two_changes_no_bit_of_the_accuracy(power):
    # The squares of such scores leave float64; these scores, whole multiples of 2^-8, do not.
    head, readout = carrier_head(seed=2, tokens=8, offset=1)
    readout = np.round(readout * 256) / 256
    law, same = (accuracy_law(head, scores, 1, [6, 12]) for scores in (readout, np.ldexp(readout, power)))
    assert law.upper[1] - law.lower[1] > 1e-3
    for name in ("lower", "point", "upper"):
        np.testing.assert_array_equal(getattr(same, name), getattr(law, name))


@pytest.mark.parametrize("shift", [1e10, -(2.0**40)])
def test_a_number_added_to_a_whole_row_changes_no_bit_of_the_accuracy(shift):
    # Whole multiples of 2^-8: exact beside 2^40 too.
    head, readout = carrier_head(seed=2, tokens=8, offset=1)
    readout = np.round(readout * 256) / 256
    shifted = readout + shift * np.array([1, 0, -1, 2, 0, 1, 1, -2])[:, None]
    law, same = accuracy_law(head, readout, 1, [6, 12]), accuracy_law(head, shifted, 1, [6, 12])
    for name in ("lower", "point", "upper"):
        np.testing.assert_array_equal(getattr(same, name), getattr(law, name))


@pytest.mark.parametrize(("tokens", "tolerance"), [(20, 1e-5), (256, 4e-4)])
@pytest.mark.parametrize("loading", [0.3, 0.7, 0.9, 0.95])
def test_the_rule_of_the_copula_against_adaptive_quadrature(tokens, tolerance, loading):
    # Independent scores of variance loading^2 and 1 - loading^2: every two rivals correlate as loading^2.
    covariance = np.diag([loading**2] + [1 - loading**2] * (tokens - 1))
    scores = np.linspace(-4, -0.5, 15)
    rest = np.sqrt(1 - loading**2)
    found = accuracy._chances(np.repeat(scores[:, None], tokens - 1, axis=1), covariance, 0)[1]
    for score, chance in zip(scores, found, strict=True):
        expected, _ = quad(
            lambda f, a=score: np.exp(-f * f / 2) * ndtr((loading * f - a) / rest) ** (tokens - 1),
            -9, 9, epsabs=1e-10, points=[score / loading], limit=500,
        )  # fmt: skip
        assert chance == pytest.approx(expected / np.sqrt(2 * np.pi), abs=tolerance if loading > 0.7 else 1e-6)


def test_tokens_that_never_occur_are_rivals_but_no_keys():
    head, readout = carrier_head(seed=5, tokens=4, offset=1)
    weights = np.array([0.5, 0.0, 0.3, 0.2])
    head = Head.from_tokens(head.schedule, head.queries, head.keys, weights, head.logit_scale)
    readout[:, 1] += 2
    exact = enumerated_accuracy(head, readout, 1, 5)
    assert accuracy_law(head, readout, 1, [5]).point[0] == pytest.approx(exact, abs=1e-12)


def test_lengths_do_not_touch_each_other():
    head, readout = carrier_head(seed=2, tokens=5, offset=1)
    together = accuracy_law(head, readout, 1, [30, 6, 12])
    assert together.lengths == (30, 6, 12)
    for i, length in enumerate(together.lengths):
        alone = accuracy_law(head, readout, 1, [length])
        assert (alone.lower[0], alone.point[0]) == (together.lower[i], together.point[i])


@pytest.mark.parametrize(("seed", "offset"), [(0, 1), (1, 2), (2, 0), (3, 3)])
def test_bracket_of_a_random_head_holds_the_simulated_accuracy(seed, offset):
    head, readout = carrier_head(seed, tokens=8, offset=offset)
    lengths = [8, 16, 32]
    law = accuracy_law(head, readout, offset, lengths)
    seen = np.array([simulated_accuracy(head, readout, offset, length, 100_000) for length in lengths])
    assert_holds(law, seen, 100_000)
    assert (law.upper - law.lower < 0.15).all()
    # For the estimate no bound is known: what a copula leaves here is below .015.
    assert np.abs(law.point - seen).max() < 0.015


def laws(head: Head, readout: np.ndarray, offset: int, lengths: list[int]) -> np.ndarray:
    law = accuracy_law(head, readout, offset, lengths)
    return np.stack([law.lower, law.point, law.upper])


@pytest.mark.parametrize(
    ("tokens", "residual", "scale"), [(2, 0.5, 1), (2, 3.0, 1), (5, 0.5, 1), (5, 0.2, 8), (5, 3.0, 0), (20, 0.5, 2)]
)
def test_light_keys_by_series_against_every_key_by_itself(monkeypatch, tokens, residual, scale):
    # By their bound light keys move a probability by 1e-4; on these heads it came to 1e-8. At a scale of 8 logits are
    # some 40 nats, at 0 all are equal.
    head, readout = carrier_head(7, tokens, 2, residual)
    head = Head.from_tokens(head.schedule, scale * head.queries, head.keys, head.key_weights, head.logit_scale)
    if tokens == 20:
        head = replace(head, query_weights=np.eye(20)[3])
    lengths = [12, 100, 512]
    found = laws(head, readout, 2, lengths)
    monkeypatch.setattr(tails, "_ALLOWED", 0.0)
    plain = laws(head, readout, 2, lengths)
    np.testing.assert_allclose(found, plain, atol=1e-6)
    assert (plain[:, -1] < 1 - 1e-4).all()


def test_cumulants_to_the_second_are_not_enough(monkeypatch):
    # Positive control: were every key light and normal, the law would move by what the test above would see.
    head, readout = carrier_head(7, 5, 2)
    found = laws(head, readout, 2, [100])
    monkeypatch.setattr(tails, "_ORDER", 2)
    monkeypatch.setattr(tails._Series, "first_cut", lambda *_: 0)
    assert np.abs(laws(head, readout, 2, [100]) - found).max() > 1e-4


def carrier_alone(energy: float) -> Head:
    """Five tokens of one query and one key that look one back, every pair with the same share of `energy` nats."""
    schedule, query = RotarySchedule.geometric(32, 1000), np.ones(32)
    queries, keys = np.tile(query, (5, 1)), np.tile(schedule.rotate(query, np.array(1)), (5, 1))
    return Head.from_tokens(schedule, queries, keys, np.full(5, 0.2), energy / 32)


def test_what_never_fails_is_not_tabulated(monkeypatch):
    monkeypatch.setattr(accuracy, "_NEVER", np.inf)
    by_tails = laws(carrier_alone(60.0), np.eye(5), 1, [12])
    monkeypatch.undo()

    def tabulated(*_):
        raise AssertionError("tails were tabulated")

    monkeypatch.setattr(accuracy, "saddlepoint_tails", tabulated)
    # Four rivals, each with less than e^-28, and the tails' own end at r = 7.
    np.testing.assert_allclose(laws(carrier_alone(60.0), np.eye(5), 1, [12]), by_tails, atol=1e-11)
    with pytest.raises(AssertionError, match="tabulated"):
        laws(carrier_alone(1.0), np.eye(5), 1, [12])


@pytest.mark.parametrize("tokens", [2, 5])
def test_accuracy_at_4096_tokens_against_simulation(tokens):
    head, readout = carrier_head(4, tokens, 2, 0.3)
    head = Head.from_tokens(head.schedule, 2 * head.queries, head.keys, head.key_weights, head.logit_scale)
    rng, sequences, length = np.random.default_rng([SIMULATION_SEED, tokens]), 10_000, 4096
    gains = np.exp(head.logit_scale * score_table(head.schedule, head.queries, head.keys, length))
    query = target = rng.choice(tokens, size=sequences, p=head.query_weights)
    sums = gains[query, 0, query][:, None] * readout[query]
    for j in range(1, length):
        drawn = rng.choice(tokens, size=sequences, p=head.key_weights)
        target = drawn if j == 2 else target
        sums += gains[query, j, drawn][:, None] * readout[drawn]
    seen = float((sums.argmax(axis=1) == target).mean())
    lower, point, upper = laws(head, readout, 2, [length])[:, 0]
    error = 3.5 * np.sqrt(seen * (1 - seen) / sequences)
    assert 0.05 < seen < 0.99
    assert lower - error <= seen <= upper + error
    # One rival: the bracket is a number. More: the copula is within .015 of simulation, as above.
    assert abs(point - seen) <= error + (0 if tokens == 2 else 0.015)


def test_bracket_of_another_target_does_not_hold():
    head, readout = carrier_head(seed=3, tokens=8, offset=3)
    seen, wrong = simulated_accuracy(head, readout, 3, 8, 100_000), accuracy_law(head, readout, 4, [8])
    assert seen - wrong.upper[0] > 0.1


# Trained heads.


def assert_predicts(run, lengths: tuple[int, ...], sequences: int = SEQUENCES) -> AccuracyLaw:
    """The law against a simulation at all lengths and against the run's own evaluation at those of Table 1."""
    head, readout, offset = head_of_run(run), readout_of_run(run), run.spec.offset
    law = accuracy_law(head, readout, offset, lengths)
    seen = np.array([simulated_accuracy(head, readout, offset, length, sequences) for length in lengths])
    assert_holds(law, seen, sequences)
    assert np.abs(law.point - seen).max() < 0.03
    recorded = {observed.length: observed for observed in run.evaluation}
    for length, lower, upper in zip(law.lengths, law.lower, law.upper, strict=True):
        if length in recorded:
            error = 4 * np.sqrt(upper * (1 - lower) / recorded[length].sequences) + 4 / recorded[length].sequences
            assert lower - error <= recorded[length].accuracy <= upper + error
    assert set(TABLE_1) <= recorded.keys()
    return law


def test_readout_is_what_the_model_makes_of_full_attention(rotary_run):
    tokens = torch.randint(0, 20, (50, 12), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        output = rotary_run.model(tokens)
    attention = output.attention[:, 0].double().numpy()
    scores = np.einsum("bt,bty->by", attention, readout_of_run(rotary_run)[tokens.numpy()])
    # float32 through three products of width 64: 1e-6 of scores of some 20.
    np.testing.assert_allclose(scores, output.scores.double().numpy(), atol=1e-4)
    assert np.abs(scores).max() > 5


@pytest.mark.parametrize("sequences", [50_000, pytest.param(SEQUENCES, marks=pytest.mark.slow)])
def test_accuracy_of_a_trained_head_at_offset_2(rotary_run, sequences):
    law = assert_predicts(rotary_run, (*TABLE_1, 64, 128), sequences)
    assert law.lower[-2] > 0.999 and law.lower[-1] > 0.94 and law.upper[-1] < 0.96


@pytest.mark.slow
@pytest.mark.parametrize("offset", [1, 3])
def test_accuracy_of_trained_heads_at_offsets_1_and_3(tmp_path, offset):
    spec, store = run_spec(offset=offset, seed=0), Store.open(tmp_path / "runs")
    sweep([spec], store)
    assert_predicts(store.load(spec), (*TABLE_1, 64, 128))


# What does not fit.


@pytest.mark.parametrize(
    ("readout", "offset", "lengths", "text"),
    [
        (np.eye(4), 1, [6], r"readout \(U W_V E_b\)_y must be a float64 array of 3 ?x ?3, got shape \(4, 4\)"),
        (np.eye(3)[:, :2], 1, [6], r"got shape \(3, 2\)"),
        (np.full((3, 3), np.nan), 1, [6], r"hold 9 numbers that are not finite"),
        (np.eye(3), 1, [], "give one length or more"),
        (np.eye(3), 6, [8, 6], "needs a length above 6"),
        (np.eye(3), -1, [8], "0 or more, got -1: give 1"),
    ],
)
def test_readouts_and_lengths_that_do_not_fit_are_named(readout, offset, lengths, text):
    head, _ = carrier_head(0, tokens=3, offset=1)
    with pytest.raises(TheoryError, match=text):
        accuracy_law(head, readout, offset, lengths)


@pytest.mark.parametrize(
    ("gains", "weights", "text"),
    [
        (np.ones((2, 2)), np.array([1.0, 0.0]), "above 0 with sum 1.*leave out keys that never occur"),
        (np.ones((2, 2)), np.array([0.5, 0.6]), "above 0 with sum 1"),
        (np.full((2, 2), np.inf), np.array([0.5, 0.5]), "must be finite: subtract the largest logit"),
    ],
)
def test_terms_that_do_not_fit_are_named(gains, weights, text):
    with pytest.raises(TheoryError, match=text):
        saddlepoint_tails(gains, weights, np.eye(2))


def test_heads_that_are_no_vocabulary_are_named():
    head, readout = carrier_head(0, tokens=3, offset=1)
    parts = (head.schedule, head.queries, head.query_weights)
    wide = Head(*parts, np.stack([head.keys, head.keys], axis=1), head.keys, head.key_weights, 1.0)
    sink = Head(*parts, head.local_keys, head.keys, head.key_weights, 1.0, sink_keys=head.keys)
    fewer = Head(*parts, head.local_keys, head.keys[:2], np.array([0.5, 0.5]), 1.0)
    for bad, text in ((wide, "this head has 2 local keys: give"), (sink, "1 local keys and a sink: give")):
        with pytest.raises(TheoryError, match=text):
            accuracy_law(bad, readout, 1, [6])
    with pytest.raises(TheoryError, match="got 3 queries and 2 keys"):
        accuracy_law(fewer, readout[:2, :2], 1, [6])
