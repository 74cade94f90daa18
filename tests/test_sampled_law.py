"""The law by sampling against the law by quadrature, which shares no code with it beyond the head.

A standardized difference has Student's distribution with 31 degrees of freedom: its mean square is
31/29 = 1.07, and one cell in 11 000 is beyond 4.5. Neighbouring cells go together, whence the band.
"""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import softmax

from theory.bias import BucketBias, LinearBias
from theory.errors import TheoryError
from theory.exact_law import exact_surface
from theory.head import Head
from theory.ramp_scaling import Yarn
from theory.sampled_law import sampled_attention
from theory.schedule import RotarySchedule

PLAIN = RotarySchedule(np.array([1.3, 0.2]))
PARTIAL = RotarySchedule(np.array([0.9, 0.3]), attention_factor=1.2).padded(8)
YARN = Yarn(4.0, trained_length=64).schedule(8, 10_000.0)
T5 = BucketBias.t5(np.array([0.0, 0.7, 1.1, -0.4]), max_distance=4)


def small_head(seed, tokens, schedule=PLAIN, window=1, sink=False, bias=None, spread=1.0):
    """A head on a few tokens of unequal weight, each query with keys of its own in the window."""
    rng = np.random.default_rng(seed)
    dim = schedule.dim
    queries, keys = spread**0.5 * rng.normal(size=(2, tokens, dim))
    local = np.concatenate([keys[:, None], spread**0.5 * rng.normal(size=(tokens, window - 1, dim))], axis=1)
    sinks = spread**0.5 * rng.normal(size=(tokens, dim)) if sink else None
    weights, query_weights = rng.dirichlet(np.full(tokens, 2.0), size=2)
    return Head(schedule, queries, query_weights, local, keys, weights, dim**-0.5, sinks, bias)


CASES = {
    "plain": (small_head(0, 10), [1, 2, 9, 40]),
    "thirty tokens": (small_head(1, 30), [12, 40]),
    "window": (small_head(2, 10, window=3), [1, 2, 3, 4, 30]),
    "nothing beyond the window": (small_head(3, 30, window=6), [4, 2]),
    "sink": (small_head(4, 12, sink=True), [2, 20, 40]),
    "window, sink, ALiBi": (small_head(5, 12, window=3, sink=True, bias=LinearBias(0.1)), [4, 25, 40]),
    "buckets": (small_head(6, 12, bias=T5), [5, 30]),
    "partial rotary": (small_head(7, 15, PARTIAL, window=2), [30, 7]),
    "YaRN": (small_head(8, 15, YARN, sink=True), [30, 7]),
    "far": (small_head(9, 8), [300, 520]),
    "far, sink, bias": (small_head(10, 8, window=2, sink=True, bias=T5), [257, 513]),
    "wide window": (small_head(11, 6, window=300), [310, 610]),
}


def standardized(head, lengths, sampled):
    """(estimate - truth)/error where there is an error; elsewhere the estimate has to be the truth."""
    truth = exact_surface(head, range(max(lengths)), lengths)
    scattered = sampled.standard_error > 1e-12
    np.testing.assert_allclose(sampled.mean[~scattered], truth[~scattered], atol=3e-9)
    return ((sampled.mean - truth)[scattered]) / sampled.standard_error[scattered]


def test_sampling_agrees_with_the_exact_law_within_its_standard_error():
    """Every head at every offset and length; a profile moved by one token is the positive control."""
    squares = []
    for name, (head, lengths) in CASES.items():
        sampled = sampled_attention(head, lengths, 2048)
        z = standardized(head, lengths, sampled)
        assert np.abs(z).max() < 4.5, name
        squares.append((z**2).mean())
    assert 0.8 < np.mean(squares) < 1.4
    sampled = sampled_attention(CASES["plain"][0], [40], 2048)
    moved = replace(sampled, mean=np.roll(sampled.mean, 1, axis=0))
    assert np.abs(standardized(CASES["plain"][0], [40], moved)).max() > 20


def test_errors_are_honest_for_a_vocabulary_too():
    """Two streams differ by their two errors: 3000 tokens by Zipf's weights, most of them in no replicate."""
    rng = np.random.default_rng(3)
    queries, keys = rng.normal(size=(2, 3000, 8))
    weights = 1 / np.arange(1, 3001)
    head = Head.from_tokens(
        RotarySchedule.geometric(8, 10_000.0), queries, keys, weights / weights.sum(), 8**-0.5, LinearBias(0.002)
    )
    squares = []
    for seed in range(0, 10, 2):
        one, other = (sampled_attention(head, [100, 400], 512, s) for s in (seed, seed + 1))
        error = np.hypot(one.standard_error, other.standard_error)
        squares.append(((one.mean - other.mean)[error > 0] / error[error > 0]) ** 2)
    assert 0.85 < np.mean(squares) < 1.25


def test_four_times_the_samples_halve_the_error():
    head = small_head(1, 1000, RotarySchedule.geometric(8, 10_000.0))
    coarse, fine = (sampled_attention(head, [400], samples).standard_error for samples in (1024, 4096))
    ratio = np.sqrt(np.mean(fine**2) / np.mean(coarse**2))
    assert 0.42 < ratio < 0.58


def test_lengths_come_in_any_order_and_twice():
    head = CASES["window, sink, ALiBi"][0]
    rising, mixed = sampled_attention(head, [4, 9, 40], 64), sampled_attention(head, np.array([9, 40, 4, 9]), 64)
    assert mixed.lengths == (9, 40, 4, 9)
    np.testing.assert_allclose(mixed.mean, rising.mean[:, [1, 2, 0, 1]], atol=1e-14)
    np.testing.assert_allclose(mixed.standard_error, rising.standard_error[:, [1, 2, 0, 1]], atol=1e-14)
    assert mixed.mean.shape == (40, 4)
    assert (mixed.mean[9:, 0] == 0).all() and (mixed.standard_error[9:, 0] == 0).all()
    assert (mixed.mean[:9, 0] > 0).all() and (mixed.standard_error[:9, 0] > 0).all()


def test_one_token_leaves_nothing_to_chance():
    head = small_head(3, 1, YARN, bias=LinearBias(0.01))
    logits = head.logits(-np.arange(600))[0, :, 0]
    sampled = sampled_attention(head, [5, 600], 64)
    np.testing.assert_allclose(sampled.mean[:, 1], softmax(logits), rtol=1e-11)
    np.testing.assert_allclose(sampled.mean[:5, 0], softmax(logits[:5]), rtol=1e-11)
    assert sampled.standard_error.max() < 1e-15


def test_one_seed_gives_the_same_bits_and_another_gives_others():
    head = CASES["far, sink, bias"][0]
    first, same, other = (sampled_attention(head, [300], 64, seed) for seed in (7, 7, 8))
    np.testing.assert_array_equal(first.mean, same.mean)
    np.testing.assert_array_equal(first.standard_error, same.standard_error)
    assert (first.mean != other.mean).mean() > 0.9


def test_samples_are_rounded_up_to_whole_replicates():
    head = small_head(0, 5)
    assert [sampled_attention(head, [3], samples).samples for samples in (32, 33, 4096)] == [32, 64, 4096]


def test_rows_that_never_occur_change_nothing():
    """A weight of 0 before, among and after the others; the same row with a weight is the positive control."""
    base = small_head(2, 5)
    wild, at = 100 * base.keys[:1], [0, 2, 5]
    more = replace(
        base,
        queries=np.insert(base.queries, at, wild, axis=0),
        query_weights=np.insert(base.query_weights, at, 0.0),
        local_keys=np.insert(base.local_keys, at, wild, axis=0),
        keys=np.insert(base.keys, at, wild, axis=0),
        key_weights=np.insert(base.key_weights, at, 0.0),
    )
    truth = sampled_attention(base, [4, 300], 256).mean
    np.testing.assert_allclose(sampled_attention(more, [4, 300], 256).mean, truth, rtol=1e-12)
    occurs = replace(more, key_weights=np.full(8, 1 / 8))
    assert np.abs(sampled_attention(occurs, [4, 300], 256).mean - truth).max() > 0.05


@settings(max_examples=25)
@given(
    seed=st.integers(0, 10_000),
    window=st.integers(1, 3),
    sink=st.booleans(),
    spread=st.sampled_from([0.1, 1.0, 30.0]),
    shift=st.floats(-1000, 1000),
    lengths=st.lists(st.integers(4, 300), min_size=1, max_size=4),
)
def test_attention_is_a_distribution_that_no_constant_bias_moves(seed, window, sink, spread, shift, lengths):
    head = small_head(seed, 6, PARTIAL, window, sink, spread=spread)
    plain = sampled_attention(head, lengths, 32, seed)
    np.testing.assert_allclose(plain.mean.sum(axis=0), 1, rtol=1e-12)
    assert (plain.mean >= 0).all() and (plain.mean <= 1 + 1e-12).all()
    shifted = sampled_attention(replace(head, bias=BucketBias.clamped(np.array([shift]))), lengths, 32, seed)
    np.testing.assert_allclose(shifted.mean, plain.mean, atol=1e-9)


def test_logits_that_spread_over_hundreds_of_nats_do_not_overflow():
    head = small_head(0, 6, spread=100.0)
    assert 500 < np.ptp(head.logits(-np.arange(40))) < 1000
    sampled = sampled_attention(head, [3, 40], 2048)
    np.testing.assert_allclose(sampled.mean.sum(axis=0), 1, rtol=1e-12)
    assert np.abs(standardized(head, [3, 40], sampled)).max() < 4.5


def test_a_bias_that_rises_into_the_distance_is_taken_while_the_shortest_context_is_in_float64():
    head = small_head(0, 3, bias=LinearBias(-10.0))
    assert sampled_attention(head, [60, 100], 32).mean[99, 1] > 0.5
    with pytest.raises(TheoryError, match="all keys of a context of 9 lie more than 600 nats below a key further back"):
        sampled_attention(head, [60, 9, 100], 32)


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda h: sampled_attention(h, []), "give one length or more"),
        (lambda h: sampled_attention(h, [0, 9]), "a key 0 tokens back needs a length above 0, got 0"),
        (lambda h: sampled_attention(h, [9.5]), "lengths are whole numbers of tokens, got float64"),
        (lambda h: sampled_attention(h, [2, 9]), "at length 2 the first token is inside the window of 2"),
        (lambda h: sampled_attention(h, [9], 31), "the number of samples must be 32 or more, got 31"),
        (lambda h: sampled_attention(h, [9], 40.0), "the number of samples must be a whole number, got 40.0"),
        (lambda h: sampled_attention(h, [9], seed=-1), "the seed must be 0 or more, got -1"),
        (lambda h: sampled_attention(replace(h, bias=LinearBias(-1e308)), [9]), "logits of inf nats: the vectors"),
        (lambda h: sampled_attention(replace(h, keys=1e200 * h.keys, queries=1e200 * h.queries), [9]), "logits of "),
        (lambda h: sampled_attention(replace(h, queries=1e99 * h.queries, sink_keys=1e250 * h.keys), [9]), "logits"),
    ],
)  # fmt: skip
@pytest.mark.filterwarnings("error")
def test_errors_say_what_was_given_and_what_is_expected(unchecked, call, text):
    head = small_head(0, 3, window=2, sink=True, spread=9.0)
    with pytest.raises(TheoryError, match=text) as raised:
        call(head)
    assert "\n" not in str(raised.value)
