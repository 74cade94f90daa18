"""Schedule, head, kernel and dilution against routes that share no code with them.

Rotations are block-diagonal matrices, expectations are sums over all token sequences, angles
come from mpmath at 40 digits.
"""

import mpmath
import numpy as np
import pytest
import sympy
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles import rotation
from scipy.special import softmax

from theory.dilution import (
    dilution_curve,
    fit_inverse_linear,
    margin_bound,
    mean_profile_law,
)
from theory.errors import TheoryError
from theory.exact_law import exact_law, exact_profile
from theory.head import Carrier, Head
from theory.kernel import carrier_profile, kernel, margin, mean_profile, selected_offset
from theory.schedule import RotarySchedule, as_lanes, as_pairs

TOKENS, LENGTH = 3, 5


def token_head(seed, dim=4, joint=False):
    """A head on three tokens of unequal weight; with `joint` the key one back is the query's own too."""
    rng = np.random.default_rng(seed)
    vectors = rng.normal(size=(2, TOKENS, dim))
    weights = rng.dirichlet(np.ones(TOKENS) * 3)
    schedule = RotarySchedule.geometric(dim, 100)
    head = Head.from_tokens(schedule, *vectors, weights, logit_scale=0.8)
    if not joint:
        return head
    local = np.stack([vectors[1], rng.normal(size=(TOKENS, dim))], axis=1)
    return Head(schedule, vectors[0], weights, local, vectors[1], weights, logit_scale=0.8)


@settings(deadline=None, max_examples=30)
@given(seed=st.integers(0, 10_000), offset=st.integers(0, 6))
def test_mean_profile_law_is_the_softmax_of_the_profile(seed, offset):
    profile = np.random.default_rng(seed).normal(scale=5, size=30)
    lengths = [offset + 1, offset + 3, 30]
    truth = [softmax(profile[:length])[offset] for length in lengths]
    np.testing.assert_allclose(mean_profile_law(profile, offset, lengths), truth, rtol=1e-12)


@pytest.mark.parametrize(("dim", "offset"), [(4, 1), (8, 3), (64, 2)])
def test_dilution_curve_against_rotation_matrices(dim, offset):
    rng = np.random.default_rng(dim)
    query, key, scale = *rng.normal(size=(2, dim)), dim**-0.5
    frequencies = [10_000 ** (-2 * i / dim) for i in range(dim // 2)]
    lengths = [offset + 1, 10, 48]
    logits = np.array([scale * query @ rotation(frequencies, -j) @ key for j in range(48)])
    truth = [softmax(logits[:length])[offset] for length in lengths]
    schedule = RotarySchedule.geometric(dim, 10_000)
    np.testing.assert_allclose(dilution_curve(query, key, schedule, offset, lengths, scale), truth, rtol=1e-10)
    # The positive control: the other direction of time, and no scale, are other curves.
    assert not np.allclose(dilution_curve(key, query, schedule, offset, lengths, scale), truth, rtol=1e-3)
    assert not np.allclose(dilution_curve(query, key, schedule, offset, lengths, 1.0), truth, rtol=1e-3)


def test_means_of_the_score_table_are_the_mean_profile():
    head = token_head(5, dim=8)
    table = np.einsum("a,aob,b->o", head.query_weights, head.logits(-np.arange(12)), head.key_weights)
    table[0] = np.einsum("a,aa->", head.query_weights, head.logits(np.zeros(1, dtype=int))[:, 0])
    np.testing.assert_allclose(mean_profile(head.carrier(), 12), table, atol=1e-12)
    matrices = [0.8 * head.queries[1] @ rotation(head.schedule.frequencies, -j) @ head.keys[2] for j in range(12)]
    np.testing.assert_allclose(head.logits(-np.arange(12))[1, :, 2], matrices, atol=1e-12)


def test_carrier_of_the_target_is_aligned_and_peaks_there():
    schedule, key = RotarySchedule.geometric(64, 10_000), np.ones(64)
    query = rotation(schedule.frequencies, -3) @ key
    carrier = Carrier.from_means(schedule, query, key, 1 / 8)
    assert carrier.alignment(3) == pytest.approx(1, abs=1e-12)
    np.testing.assert_allclose(np.exp(1j * (carrier.phases + 3 * schedule.frequencies)), 1, atol=1e-12)
    profile = carrier_profile(carrier, 48)
    assert selected_offset(profile) == -3
    np.testing.assert_allclose(
        profile, 8 * kernel(carrier.weights, schedule.frequencies, 3 - np.arange(48)), atol=1e-12
    )


def test_shifting_the_mean_key_keeps_residuals():
    head, mean = token_head(2), np.array([1.0, 2, 3, 4])
    moved = head.with_means(key_mean=mean)
    np.testing.assert_allclose(moved.carrier().key_mean, mean, atol=1e-12)
    np.testing.assert_allclose(moved.keys - moved.keys[0], head.keys - head.keys[0], atol=1e-12)


def test_window_and_sink_move_with_the_mean_and_the_local_profile_is_the_queries_own() -> None:
    rng = np.random.default_rng(3)
    weights = np.array([0.7, 0.2, 0.1])
    content = {"queries": rng.normal(size=(3, 4)), "local_keys": rng.normal(size=(3, 2, 4))}
    keys, sinks = rng.normal(size=(5, 4)), rng.normal(size=(3, 4))
    schedule, uniform = RotarySchedule.geometric(4, 100), np.full(5, 0.2)
    head = Head(
        schedule, query_weights=weights, keys=keys, key_weights=uniform, logit_scale=0.5, sink_keys=sinks, **content
    )
    turned = [rotation(head.schedule.frequencies, -j) for j in range(2)]
    own = [[0.5 * q @ turned[j] @ k[j] for j in range(2)] for q, k in zip(head.queries, head.local_keys, strict=True)]
    np.testing.assert_allclose(head.carrier().local_profile, weights @ np.array(own), atol=1e-12)
    moved, shift = head.with_means(key_mean=np.ones(4)), np.ones(4) - keys.mean(axis=0)
    np.testing.assert_allclose(moved.local_keys, head.local_keys + shift, atol=1e-12)
    np.testing.assert_allclose(moved.sink_keys, sinks + shift, atol=1e-12)
    np.testing.assert_allclose(moved.keys.mean(axis=0), np.ones(4), atol=1e-12)


@settings(deadline=None, max_examples=40)
@given(seed=st.integers(0, 10_000), lag=st.integers(0, 100_000))
def test_kernel_is_symmetric_and_at_most_one(seed, lag):
    rng = np.random.default_rng(seed)
    weights, frequencies = rng.dirichlet(np.ones(5)), rng.uniform(0, 2, size=5)
    there, back, origin = kernel(weights, frequencies, np.array([lag, -lag, 0]))
    assert there == pytest.approx(back, abs=1e-12)
    assert abs(there) <= 1 + 1e-12 and origin == pytest.approx(1)


def test_margin_is_to_the_nearest_competitor():
    profile = np.array([0.5, -1.0, 3.0, 2.25, 0.0])
    assert (margin(profile, 2).value, margin(profile, 2).competitor) == (0.75, -3)
    assert (margin(profile, 0).value, margin(profile, 0).competitor) == (-2.5, -2)
    np.testing.assert_allclose(margin_bound(0.75, [5]), 1 / (1 + 4 * np.exp(-0.75)))
    assert margin_bound(0.75, [5])[0] < softmax(profile)[2]


def test_fit_of_the_inverse_against_least_squares_and_closed_form():
    lengths = [12, 16, 20, 24, 32, 48]
    exact = fit_inverse_linear(lengths, 1 / (1.2 + 0.03 * (np.array(lengths) - 1)))
    assert (exact.alpha, exact.c, exact.r_squared) == pytest.approx((1.2, 0.03, 1))
    x, y = np.array(lengths) - 1, 1 / np.random.default_rng(0).uniform(0.3, 0.9, size=6)
    fit = fit_inverse_linear(lengths, 1 / y)
    (alpha, c), squares, *_ = np.linalg.lstsq(np.stack([np.ones(6), x], axis=1), y, rcond=None)
    assert (fit.alpha, fit.c) == pytest.approx((alpha, c))
    assert fit.c == pytest.approx(((x - x.mean()) @ (y - y.mean())) / ((x - x.mean()) @ (x - x.mean())))
    assert fit.r_squared == pytest.approx(1 - squares[0] / ((y - y.mean()) @ (y - y.mean())))


@pytest.mark.parametrize(("dim", "base"), [(4, 10_000), (64, 10_000), (64, 5_000_000), (128, 500_000)])
def test_exact_frequencies_are_the_floating_ones(dim, base):
    schedule = RotarySchedule.geometric(dim, base)
    assert (schedule.pairs, schedule.dim) == (dim // 2, dim)
    assert schedule.exact[1] ** (dim // 2) == sympy.Rational(1, base)
    truth = [mpmath.mpf(base) ** (mpmath.mpf(-2 * i) / dim) for i in range(dim // 2)]
    np.testing.assert_allclose(schedule.frequencies, [float(theta) for theta in truth], rtol=1e-14)


def test_pair_one_at_base_five_million():
    assert RotarySchedule.geometric(64, 5_000_000).frequencies[1] == pytest.approx(5e6 ** (-1 / 32), rel=1e-14)
    assert RotarySchedule.geometric(4, 12.5).exact is None


def test_angles_at_a_million_are_the_exact_ones():
    schedule, position = RotarySchedule.geometric(64, 10_000), 1_000_000
    turned = as_pairs(schedule.rotate(np.tile([1.0, 0.0], 32), np.array(position)))
    with mpmath.workdps(40):
        exact = [mpmath.expj(position * mpmath.mpf(10_000) ** (mpmath.mpf(-i) / 32)) for i in range(32)]
        error = [abs(mpmath.arg(mpmath.mpc(z) / w)) for z, w in zip(turned, exact, strict=True)]
    assert max(error) < 1e-9


def test_rotation_is_that_of_the_matrix_and_lanes_are_interleaved():
    schedule, vectors = RotarySchedule.geometric(8, 100), np.random.default_rng(0).normal(size=(3, 8))
    truth = [rotation(schedule.frequencies, t) @ v for t, v in zip((0, 7, -4), vectors, strict=True)]
    np.testing.assert_allclose(schedule.rotate(vectors, np.array([0, 7, -4])), truth, atol=1e-12)
    np.testing.assert_array_equal(as_lanes(as_pairs(vectors)), vectors)


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: RotarySchedule.geometric(5, 1e4), "width must be even and 2 or more, got 5"),
        (lambda: RotarySchedule.geometric(0, 1e4), "width must be even and 2 or more, got 0"),
        (lambda: RotarySchedule.geometric(4, 0), "base must be a finite number above 0, got 0"),
        (lambda: RotarySchedule.geometric(4, -2.0), "above 0, got -2.0"),
        (lambda: RotarySchedule.geometric(4, float("nan")), "finite number above 0, got nan"),
        (lambda: RotarySchedule(np.array([])), "one finite frequency or more"),
        (lambda: RotarySchedule(np.ones(1), (sympy.Rational(1, 2),)), "are not the 1 floating-point ones"),
        (lambda: margin(np.ones(4), -1), r"counts tokens back and is 0 or more, got -1: give 1"),
        (lambda: margin(np.ones(1), 0), "needs a competitor"),
        (lambda: mean_profile_law(np.ones(4), 1, [5]), "profile holds 4 offsets, length 5"),
        (lambda: exact_law(token_head(0), 3, [3, 8]), "3 tokens back needs a length above 3, got 3"),
        (lambda: exact_law(token_head(0), 0, []), "one length or more"),
        (lambda: exact_law(token_head(0), 0, [4], 1.5), "between 1e-12 and 1, got 1.5"),
        (lambda: fit_inverse_linear([1, 2], np.ones(2)), "three distinct lengths or more, got 2"),
        (lambda: fit_inverse_linear([5, 5, 5], np.ones(3)), "three distinct lengths or more, got 1"),
        (lambda: fit_inverse_linear([1, 2, 3, 4], np.ones(3)), "must be a float64 array of 4, got shape"),
        (lambda: margin_bound(np.nan, [4]), "finite number of nats, got nan"),
        (lambda: margin_bound(1.0, [4, 0]), "needs a length above 0, got 0"),
        (lambda: selected_offset(np.empty(0)), "one offset or more, got none"),
        (lambda: selected_offset(np.array([np.nan, 1])), "a profile hold 1 numbers that are not finite"),
        (lambda: carrier_profile(token_head(0).carrier(), -3), "a length must be 1 or more, got -3"),
        (lambda: fit_inverse_linear([1, 2, 3], np.zeros(3)), "attention above 0"),
        (
            lambda: token_head(0).with_means(key_mean=np.full(4, np.nan)),
            "the mean key hold 4 numbers that are not finite",
        ),
    ],
)  # fmt: skip
def test_errors_say_what_was_given_and_what_is_expected(call, text):
    with pytest.raises(TheoryError, match=text):
        call()


def test_the_carrier_fraction_by_hand() -> None:
    """Two queries (3, 0) and (1, 0) weighted 1:3: mean 1.5, energy 3; keys (0, 2) and (0, -2): mean -1."""
    schedule = RotarySchedule.geometric(2, 10.0)
    queries, keys = np.array([[3.0, 0.0], [1.0, 0.0]]), np.array([[0.0, 2.0], [0.0, -2.0]])
    carrier = Head.from_tokens(schedule, queries, keys, np.array([0.25, 0.75]), 1.0).carrier()
    assert carrier.query_fraction == pytest.approx(1.5**2 / 3)
    assert carrier.key_fraction == pytest.approx(1.0 / 4)
    assert carrier.local_profile == pytest.approx([0.0])


def test_random_vectors_have_the_fraction_one_over_their_number() -> None:
    """1/m for m tokens, whatever the width: .050 at m = 20, within 4 standard errors over 400 heads."""
    rng, schedule = np.random.default_rng(0), RotarySchedule.geometric(64, 1e4)
    uniform = np.full(20, 1 / 20)
    fractions = [
        Head.from_tokens(schedule, *rng.standard_normal((2, 20, 64)), uniform, 1.0).carrier().key_fraction
        for _ in range(400)
    ]
    assert np.mean(fractions) == pytest.approx(1 / 20, abs=4 * np.std(fractions) / 20)


def test_the_exact_law_at_the_widest_spread_and_beyond() -> None:
    """Keys of +-x against a query of 1: the target wins, ties or loses, which is enumerated by hand."""
    schedule = RotarySchedule(np.zeros(1))

    def law(x: float) -> float:
        vectors = np.array([[x, 0.0], [-x, 0.0]])
        queries = np.array([[1.0, 0.0], [1.0, 0.0]])
        return exact_law(Head.from_tokens(schedule, queries, vectors, np.array([0.5, 0.5]), 1.0), 1, [3])[0]

    # Of three keys of +-x, a high target shares with the other high ones; a low one has a third where all are low.
    assert law(299.0) == pytest.approx((1 / 3 + 1 / 2 + 1 / 2 + 1 + 1 / 3) / 8, rel=1e-8)
    with pytest.raises(TheoryError, match=r"spread over 600.9 nats, .* the exact law takes 600"):
        law(301.0)
    with pytest.raises(TheoryError, match="relative error of the quadrature lies between 1e-12 and 1"):
        exact_profile(Head.from_tokens(schedule, *np.ones((2, 1, 2)), np.ones(1), 1.0), 3, 1e-13)


def test_numbers_that_are_none_are_refused() -> None:
    schedule, vectors = RotarySchedule.geometric(2, 10.0), np.ones((2, 2))
    with pytest.raises(TheoryError, match="query weights hold 1 numbers that are not finite"):
        Head.from_tokens(schedule, vectors, vectors, np.array([np.nan, 1.0]), 1.0)
    for query, key, scale, message in [
        (np.array([np.nan, 0.0]), np.ones(2), 1.0, "the mean query hold 1 numbers that are not finite"),
        (np.ones(2), np.ones(2), -1.0, "logit scale must be a finite number above 0, got -1"),
        (np.ones(4), np.ones(4), 1.0, r"the mean query must be a float64 array of 2, got shape \(4,\)"),
    ]:
        with pytest.raises(TheoryError, match=message):
            dilution_curve(query, key, schedule, 1, [4], scale)


def test_a_head_without_queries_has_no_fraction_and_no_kernel() -> None:
    schedule, keys = RotarySchedule.geometric(2, 10.0), np.ones((2, 2))
    head = Head.from_tokens(schedule, np.zeros((2, 2)), keys, np.full(2, 0.5), 1.0)
    carrier = head.carrier()
    assert np.isnan(carrier.query_fraction) and carrier.key_fraction == 1 and np.isnan(carrier.alignment(1))
    assert exact_law(head, 1, [4])[0] == pytest.approx(1 / 4)
    with pytest.raises(TheoryError, match=r"amplitudes add up to 0.0: both means must be active"):
        _ = carrier.weights
