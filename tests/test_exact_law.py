"""The exact law against sums over all token sequences and against simulation, which share no code with it.

Logits come from explicit rotation matrices or from sines and cosines written here; expectations are
sums over every assignment of keys, or means over sampled sequences.
"""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles import rotation, score_table
from scipy.special import softmax

from theory.bias import BucketBias, LinearBias
from theory.dilution import mean_profile_law
from theory.errors import TheoryError
from theory.exact_law import exact_law, exact_laws, exact_moments, exact_profile, exact_surface
from theory.head import Head
from theory.kernel import mean_profile
from theory.ramp_scaling import Llama3, Yarn
from theory.scaling import DynamicNtk, Linear, LongRope, Ntk, Proportional
from theory.schedule import RotarySchedule

BIASES = {
    "no bias": None,
    "ALiBi": LinearBias(0.3),
    "one bucket a distance": BucketBias.clamped(np.array([0.0, 1.0, -2.0, 0.5])),
    "T5": BucketBias.t5(np.array([0.0, 0.7, 1.1, -0.4]), max_distance=4),
}


def small_head(seed, tokens, window=1, sink=False, bias=None, spread=1.0, dim=4):
    """A head on a few tokens of unequal weight, each query with keys of its own in the window."""
    rng = np.random.default_rng(seed)
    queries, keys = spread**0.5 * rng.normal(size=(2, tokens, dim))
    weights = rng.dirichlet(np.full(tokens, 3.0))
    local = np.concatenate([keys[:, None], spread**0.5 * rng.normal(size=(tokens, window - 1, dim))], axis=1)
    sinks = spread**0.5 * rng.normal(size=(tokens, dim)) if sink else None
    schedule = RotarySchedule(rng.uniform(0.01, 2, size=dim // 2), attention_factor=1.1)
    return Head(schedule, queries, weights, local, keys, weights, 0.8, sinks, bias)


def enumerated(head, length, power=1):
    """E[attention^power] at each offset: every assignment of the independent keys, by outer sums of their masses."""

    def mass(query, key, distance):
        score = (
            query
            @ rotation(head.schedule.frequencies, -distance)
            @ key
            * head.logit_scale
            * head.schedule.attention_factor**2
        )
        return np.exp(score + (0 if head.bias is None else head.bias.at(np.array([distance]))[0]))

    expected = np.zeros(length)
    for a, query in enumerate(head.queries):
        own = {j: [mass(query, key, j)] for j, key in enumerate(head.local_keys[a][:length])}
        far = {j: [mass(query, key, j) for key in head.keys] for j in range(head.window, length)}
        if head.sink_keys is not None:
            far[length - 1] = [mass(query, head.sink_keys[a], length - 1)]
        present = own | far
        for offset in range(length):
            total, probability = np.zeros(1), np.ones(1)
            for masses in (masses for j, masses in present.items() if j != offset):
                total = np.add.outer(total, masses).reshape(-1)
                odds = head.key_weights if len(masses) > 1 else np.ones(1)
                probability = np.multiply.outer(probability, odds).reshape(-1)
            for x, odds in zip(present[offset], head.key_weights if len(present[offset]) > 1 else [1.0], strict=True):
                expected[offset] += head.query_weights[a] * odds * probability @ (x / (x + total)) ** power
    return expected


@st.composite
def heads_and_lengths(draw):
    """m <= 4 tokens and m^L <= 2e5 sequences, window and sink on and off."""
    tokens, window, sink = draw(st.integers(2, 4)), draw(st.integers(1, 3)), draw(st.booleans())
    longest = int(np.log(2e5) / np.log(tokens))
    length = draw(st.integers(window + 1 if sink else 1, min(longest, 9)))
    bias, spread = BIASES[draw(st.sampled_from(sorted(BIASES)))], draw(st.sampled_from([0.3, 1.0, 4.0]))
    return (draw(st.integers(0, 10_000)), tokens, window, sink, bias, spread), length


@settings(deadline=None, max_examples=25)
@given(heads_and_lengths())
def test_exact_law_is_the_sum_over_all_sequences(case):
    """Targets inside and outside the window and on the sink; 1e-10, the quadrature's own error being 1e-11."""
    head, length = small_head(*case[0]), case[1]
    truth = enumerated(head, length)
    np.testing.assert_allclose(exact_profile(head, length, 1e-11), truth, rtol=1e-10)
    offset = length // 2
    np.testing.assert_allclose(exact_law(head, offset, [length], 1e-11), [truth[offset]], rtol=1e-10)
    square = enumerated(head, length, power=2)[offset]
    mean, spread = exact_moments(head, offset, [length], 1e-11)
    assert mean[0] == pytest.approx(truth[offset], rel=1e-10)
    # A spread below 5e-6 of the root mean square is given as 0: 3e-11 of the square.
    assert mean[0] ** 2 + spread[0] ** 2 == pytest.approx(square, rel=1e-10)


def test_one_pass_over_offsets_and_lengths_is_the_law_at_each():
    """Also across the blocks that the offsets are taken in: 2100 keys make them 16 offsets long."""
    rng = np.random.default_rng(7)
    keys, weights = rng.normal(size=(2100, 4)), rng.dirichlet(np.ones(2100))
    base = small_head(7, 2, window=3, sink=True, bias=BIASES["ALiBi"])
    head = Head(
        base.schedule, base.queries, base.query_weights, base.local_keys, keys, weights, 0.8, base.sink_keys, base.bias
    )
    offsets, lengths = [0, 2, 3, 18, 19, 40], [41, 19, 20, 4, 64]
    surface = exact_surface(head, offsets, lengths)
    for row, offset in zip(surface, offsets, strict=True):
        for cell, length in zip(row, lengths, strict=True):
            assert cell == (pytest.approx(exact_law(head, offset, [length])[0], rel=3e-9) if length > offset else 0)
    assert exact_profile(head, 64).sum() == pytest.approx(1, abs=3e-9)
    np.testing.assert_array_equal(exact_laws([head, base], 2, [4, 9])[1], exact_law(base, 2, [4, 9]))


@settings(deadline=None, max_examples=20)
@given(seed=st.integers(0, 10_000), length=st.integers(4, 40), window=st.integers(1, 3), sink=st.booleans())
def test_exact_profile_sums_to_one(seed, length, window, sink):
    assert exact_profile(small_head(seed, 3, window, sink), length).sum() == pytest.approx(1, abs=3e-9)


def test_quadrature_keeps_the_error_it_is_given():
    head, lengths = small_head(3, 3, dim=16), (4, 16, 64)
    coarse, fine = exact_law(head, 2, lengths, 1e-4), exact_law(head, 2, lengths, 1e-11)
    np.testing.assert_allclose(coarse, fine, rtol=1e-4)
    assert (coarse != fine).any()


def test_a_joint_window_that_is_wide_enough_needs_no_quadrature():
    head = small_head(1, 3, window=2)
    own = softmax(head.local_logits(), axis=1)
    np.testing.assert_allclose(exact_law(head, 1, [2]), [head.query_weights @ own[:, 1]], rtol=1e-9)


@pytest.mark.parametrize(("spread", "reach"), [(12.0, 30), (100.0, 300)])
def test_beyond_the_usual_spread_it_answers_within_its_tolerance(spread, reach):
    """Where it raises instead is in test_theory: all keys of a context may lie 600 nats below another key."""
    head = small_head(0, 3, spread=spread)
    assert np.ptp(np.concatenate([head.logits(-np.arange(5)).reshape(-1), head.local_logits().reshape(-1)])) > reach
    np.testing.assert_allclose(exact_profile(head, 5), enumerated(head, 5), rtol=1e-8, atol=1e-15)


def test_a_bias_that_falls_for_ever_is_no_divergence():
    """ALiBi's steepest slope of eight heads over equal keys: at 4096 tokens the far ones are 2048 nats down."""
    head = Head.from_tokens(
        RotarySchedule.without_rotation(2), np.zeros((1, 2)), np.zeros((1, 2)), np.ones(1), 1.0, LinearBias(0.5)
    )
    lengths = np.array([1202, 4096])
    direct = [softmax(-0.5 * np.arange(n))[3] for n in lengths]
    np.testing.assert_allclose(exact_law(head, 3, lengths), direct, rtol=1e-9)
    assert exact_profile(head, 4096)[-1] == 0


def test_a_key_that_never_occurs_changes_nothing():
    base = small_head(2, 3)
    keys = np.vstack([base.keys, 1e4 * base.keys[:1]])
    more = replace(base, keys=keys, key_weights=np.append(base.key_weights, 0.0))
    np.testing.assert_array_equal(exact_law(more, 2, [4, 9]), exact_law(base, 2, [4, 9]))


def test_the_spread_of_a_head_without_any_is_zero():
    """One token: attention is the same in every sequence, and what rounding leaves of a variance is none."""
    mean, spread = exact_moments(small_head(0, 1), 2, [4, 9])
    assert (mean > 0).all() and (spread == 0).all()


def random_schedule(rng, dim):
    """One of eleven kinds of schedule: plain, partial, periodic, none, and every scaling."""
    base, factor = float(10 ** rng.uniform(2, 6)), float(rng.uniform(1, 8))
    rotated = 2 * int(rng.integers(1, dim // 2 + 1))
    per_pair = list(rng.uniform(1, 8, size=dim // 2))
    choices = [
        lambda: RotarySchedule.geometric(dim, base),
        lambda: RotarySchedule.geometric(rotated, base).padded(dim),
        lambda: RotarySchedule.periodic([(1, int(m)) for m in rng.integers(2, 40, size=dim // 2)]),
        lambda: RotarySchedule.without_rotation(dim),
        lambda: Linear(factor).schedule(dim, base),
        lambda: Ntk(factor).schedule(dim, base),
        lambda: DynamicNtk(factor, trained_length=128).schedule(dim, base, length=512),
        lambda: LongRope(per_pair, per_pair, trained_length=128, factor=factor).schedule(dim, base, length=512),
        lambda: Proportional(0.5, factor).schedule(dim, base),
        lambda: Yarn(factor, trained_length=4096).schedule(dim, base),
        lambda: Llama3(factor, 128, 1.0, 4.0).schedule(dim, base),
    ]
    return choices[rng.integers(len(choices))]()


def random_head(rng, longest):
    """d 4-128, m 2-50, every schedule and bias, logits that spread to 30 nats over the offsets."""
    tokens, dim, spread = int(rng.integers(2, 51)), 2 * int(rng.integers(2, 65)), rng.uniform(0.5, 30)
    schedule = random_schedule(rng, dim)
    bias = [None, LinearBias(rng.uniform(0, spread / 2 / longest)), BucketBias.t5(rng.normal(size=32))][rng.integers(3)]
    queries, keys = rng.normal(size=(2, tokens, dim)) + rng.normal(size=(2, 1, dim))
    weights = rng.dirichlet(np.ones(tokens))
    unscaled = score_table(schedule, queries, keys, longest)
    room = spread - (0 if bias is None else np.ptp(bias.at(np.arange(longest))))
    scale = max(room, 0.1) / np.ptp(unscaled)
    table = scale * unscaled + (0 if bias is None else bias.at(np.arange(longest))[:, None])
    return Head.from_tokens(schedule, queries, keys, weights, float(scale), bias), table


@pytest.mark.parametrize("heads", [10, pytest.param(200, marks=pytest.mark.slow)])
def test_heads_agree_with_simulation(heads):
    """Standard errors are those of the law's own second moment; 5.1 is one chance in 3700 over 800 normal tests.

    A shifted offset is the positive control: it is refused, but where the head is nearly flat.
    """
    rng, lengths, sequences = np.random.default_rng(20_260_724), np.array([16, 64, 256, 512]), 3000
    worst, refused = 0.0, 0
    for number in range(heads):
        head, table = random_head(rng, lengths.max())
        offset = int(rng.integers(0, 16))
        tokens = rng.choice(len(head.keys), size=(sequences, lengths.max()), p=head.key_weights)
        mass = np.exp(table - table.max())[tokens[:, :1], np.arange(lengths.max()), tokens]
        attention = (mass[:, [offset]] / np.cumsum(mass, axis=1)[:, lengths - 1]).mean(axis=0)
        mean, spread = exact_moments(head, offset, lengths)
        error = spread / sequences**0.5
        worst = max(worst, np.abs((attention - mean) / error).max())
        if number < 10:
            other = exact_law(head, (offset + 1) % 16, lengths)
            refused += np.abs((attention - other) / error).max() > 5.1
    assert worst < 5.1 and refused >= 6


def test_mean_profile_law_with_window_sink_and_bias_is_the_softmax_of_mean_logits():
    head = small_head(4, 3, window=2, sink=True, bias=BIASES["ALiBi"])
    lengths = np.array([3, 4, 9])
    sink = head.query_weights @ head.sink_logits(1 - lengths)
    law = mean_profile_law(mean_profile(head.carrier(), 9), 2, lengths, sink)
    pool = np.einsum("a,aob,b->o", head.query_weights, head.logits(-np.arange(9)), head.key_weights)
    pool[:2] = head.query_weights @ head.local_logits()
    truth = [softmax(np.append(pool[: n - 1], s)) for n, s in zip(lengths, sink, strict=True)]
    np.testing.assert_allclose(law, [each[2] for each in truth], rtol=1e-12)
    np.testing.assert_allclose(mean_profile_law(pool, 8, [9], sink[2:]), truth[2][8:], rtol=1e-12)


def test_buckets_by_hand():
    """T5 with 32 buckets to 128: one distance each below 16, then bucket 16 + floor(ln(d/16)/ln(8) 16)."""
    at = BucketBias.t5(np.arange(32.0)).at(np.array([0, 1, 15, 16, 18, 19, 20, 64, 127, 128, 5000]))
    np.testing.assert_array_equal(at, [0, 1, 15, 16, 16, 17, 17, 26, 31, 31, 31])
    np.testing.assert_array_equal(BIASES["one bucket a distance"].at(np.array([0, 2, 3, 99])), [0, -2, 0.5, 0.5])
    np.testing.assert_array_equal(LinearBias(0.5).at(np.array([0, 3])), [0, -1.5])
    assert [LinearBias(slope).limit for slope in (0.5, 0.0, -0.5)] == [-np.inf, 0, np.inf]
    # Keys ahead of the query are as far as those behind it.
    head = small_head(0, 2, bias=BIASES["one bucket a distance"])
    plain = replace(head, bias=None)
    ahead = head.logits(np.array([2, 9])) - plain.logits(np.array([2, 9]))
    np.testing.assert_allclose(ahead, np.broadcast_to([[-2.0], [0.5]], (2, 2, 2)), atol=1e-12)


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda h: exact_law(h, 5, [5]), "a key 5 tokens back needs a length above 5, got 5"),
        (lambda h: exact_law(h, -1, [5]), "counts tokens back and is 0 or more, got -1: give 1"),
        (lambda h: exact_law(h, 0, []), "give one length or more"),
        (lambda h: exact_law(h, 0, [9], 0.0), "between 1e-12 and 1, got 0.0"),
        (lambda h: exact_law(h, 0, [2]), "at length 2 the first token is inside the window of 2"),
        (lambda h: exact_surface(h, [], [9]), "give one offset or more"),
        (lambda h: exact_surface(h, [9], [4, 9]), "a key 9 tokens back needs a length above 9"),
        (lambda h: exact_surface(h, [0], [-3, 9]), "a key 0 tokens back needs a length above 0, got -3"),
        (lambda h: exact_profile(h, 0), "a length must be 1 or more, got 0"),
        (lambda h: exact_law(replace(h, bias=LinearBias(-1e308)), 1, [5]), "logits of inf nats"),
        (lambda h: exact_laws([], 0, [9]), "give one head or more"),
        (lambda h: small_head(0, 3).sink_logits(np.arange(2)), "no sink key"),
        (lambda h: mean_profile_law(np.zeros(9), 0, [3, 4], np.zeros(1)), "one sink logit a length: got 1 for 2"),
        (lambda h: LinearBias(np.nan), "finite number in nats a token, got nan"),
        (lambda h: BucketBias(np.ones(2), np.array([1, 2])), "begin at distance 0 and rise"),
        (lambda h: BucketBias(np.ones(2), np.array([0])), r"values must be a float64 array of 1, got shape \(2,\)"),
        (lambda h: BucketBias.t5(np.ones(3)), "even in number .* got 3 buckets"),
    ],
)  # fmt: skip
def test_errors_say_what_was_given_and_what_is_expected(call, text):
    with np.errstate(over="ignore"), pytest.raises(TheoryError, match=text):
        call(small_head(0, 3, window=2, sink=True))
