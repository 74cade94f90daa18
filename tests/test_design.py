"""Designed carriers: explicit rotations, direct softmax, enumeration of every sequence, forty-digit sums."""

from dataclasses import replace
from itertools import product

import mpmath
import numpy as np
import pytest
import sympy
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles import score_table
from scipy.special import softmax

from theory.accuracy import accuracy_law
from theory.bias import LinearBias
from theory.content_costs import LARGEST_LOGIT, OVERFLOWING_LOGIT, check_logits, cost_of_content
from theory.design import (
    Design,
    aligned,
    design_carrier,
    energy_bound,
    energy_for_accuracy,
    energy_for_attention,
    energy_of_means,
    price_in_range,
)
from theory.dilution import margin_bound
from theory.errors import TheoryError
from theory.head import Carrier, Head
from theory.kernel import kernel, selected_offset
from theory.schedule import RotarySchedule

SETUP = RotarySchedule.geometric(64, 10_000)
SMALL = RotarySchedule(np.array([1.3, 0.4]), attention_factor=1.1)


def random_head(
    seed: int,
    schedule: RotarySchedule = SMALL,
    tokens: int = 3,
    residual: float = 1.0,
    own: float = 0.0,
) -> Head:
    """A vocabulary of unequal weights whose means are not 0; `own` moves the keys at offset 0 alone."""
    rng = np.random.default_rng(seed)
    queries, keys = residual * rng.normal(size=(2, tokens, schedule.dim)) + rng.normal(size=schedule.dim)
    weights = rng.dirichlet(np.full(tokens, 3.0))
    return Head(schedule, queries, weights, keys[:, None] + own, keys, weights, 0.7)


def designed(head: Head, design: Design, energy: float) -> Head:
    """The head with the means of the design, written out pair by pair: query phases kept, key's K theta ahead."""
    query_mean = head.query_weights @ head.queries
    sizes = np.sqrt(energy * design.weights / head.logit_scale) / head.schedule.attention_factor
    turns = np.arctan2(query_mean[1::2], query_mean[0::2])
    ahead = turns + design.offset * head.schedule.frequencies
    query = np.stack([sizes * np.cos(turns), sizes * np.sin(turns)], axis=1).reshape(-1)
    key = np.stack([sizes * np.cos(ahead), sizes * np.sin(ahead)], axis=1).reshape(-1)
    shift = key - head.key_weights @ head.keys
    return replace(
        head,
        queries=head.queries - query_mean + query,
        keys=head.keys + shift,
        local_keys=head.local_keys + shift,
    )


def tables(head: Head, length: int) -> tuple[np.ndarray, np.ndarray]:
    """Logits of the pool [query, offset, key] and of own keys [query], by the written-out rotation."""
    pool = head.logit_scale * score_table(head.schedule, head.queries, head.keys, length)
    own = head.logit_scale * score_table(head.schedule, head.queries, head.local_keys[:, 0], 1)
    return pool, np.diagonal(own[:, 0])


def enumerated_attention(head: Head, offset: int, length: int) -> float:
    """The mean attention over every sequence, each with its probability."""
    pool, own = tables(head, length)
    expected = 0.0
    for a, rest in product(range(len(head.queries)), product(range(len(head.keys)), repeat=length - 1)):
        chance = head.query_weights[a] * np.prod(head.key_weights[list(rest)])
        logits = np.r_[own[a], pool[a, np.arange(1, length), list(rest)]]
        expected += chance * softmax(logits)[offset]
    return float(expected)


def enumerated_accuracy(head: Head, readout: np.ndarray, offset: int, length: int) -> float:
    pool, own = tables(head, length)
    expected = 0.0
    for a, rest in product(range(len(head.queries)), product(range(len(head.keys)), repeat=length - 1)):
        chance = head.query_weights[a] * np.prod(head.key_weights[list(rest)])
        tokens = np.array([a, *rest])
        attention = softmax(np.r_[own[a], pool[a, np.arange(1, length), list(rest)]])
        expected += chance * ((attention @ readout[tokens]).argmax() == tokens[offset])
    return float(expected)


def attention_of_means(design: Design, energy: float, length: int) -> float:
    lags = design.offset - np.arange(length)
    return float(softmax(energy * kernel(design.weights, design.schedule.frequencies, lags))[design.offset])


@pytest.mark.parametrize(
    ("offset", "length", "margin"),
    [
        (0, 16, 0.4016),
        (15, 16, 0.4016),
        (0, 48, 0.3441),
        (47, 90, 0.3441),
        (0, 512, 0.3129),
        (0, 2048, 0.2960),
        (0, 4096, 0.2907),
    ],
)
def test_margins_of_the_reference_schedule(offset, length, margin):
    design = design_carrier(SETUP, offset, length)
    assert design.margin == pytest.approx(margin, abs=5e-5)
    assert design.reach == max(offset, length - 1 - offset)
    lags = np.arange(1, design.reach + 1)
    # Angles up to 4095 rad are off by 4095 * 2^-53 = 5e-13.
    assert design.margin == pytest.approx(1 - kernel(design.weights, SETUP.frequencies, lags).max(), abs=1e-12)


@pytest.mark.parametrize(
    "schedule",
    [SETUP, SMALL, RotarySchedule(np.array([1.0, 0.2]), attention_factor=1.2).padded(8)],
    ids=["rotary", "factor", "partial"],
)
@pytest.mark.parametrize("offset", [0, 2, 11])
def test_the_profile_of_a_designed_carrier_is_energy_times_the_kernel(schedule, offset):
    design = design_carrier(schedule, offset, 14)
    like = Carrier.from_means(schedule, *np.random.default_rng(offset).normal(size=(2, schedule.dim)), 1.0)
    active = design.weights > 0
    for other, keep in ((None, "query"), (None, "key"), (like, "query"), (like, "key")):
        made = design.carrier(7.5, 0.3, other, keep=keep)
        scores = 0.3 * score_table(schedule, made.query_mean[None], made.key_mean[None], 14)[0, :, 0]
        expected = 7.5 * kernel(design.weights, schedule.frequencies, offset - np.arange(14))
        # Logits of 7.5 nats from angles up to 13 rad, rounded a few times.
        np.testing.assert_allclose(scores, expected, atol=1e-13)
        assert made.energy == pytest.approx(7.5, rel=1e-14)
        assert np.linalg.norm(made.query_mean) == pytest.approx(np.linalg.norm(made.key_mean), rel=1e-14)
        mean, own = (
            getattr(made, f"{keep}_mean"),
            np.zeros(schedule.dim) if other is None else getattr(like, f"{keep}_mean"),
        )
        turns = np.arctan2(mean[1::2], mean[0::2])[active]
        np.testing.assert_allclose(turns, np.arctan2(own[1::2], own[0::2])[active], atol=1e-14)


@pytest.mark.parametrize(("offset", "length"), [(0, 30), (3, 40), (25, 30), (14, 29)])
def test_the_certified_margin_holds_the_true_one(offset, length):
    design = design_carrier(SMALL, offset, length)
    found = design.certified()
    with mpmath.workdps(40):
        weights, theta = ([mpmath.mpf(x) for x in numbers] for numbers in (design.weights, SMALL.frequencies))
        falls = {
            back: mpmath.fsum(p * (1 - mpmath.cos((offset - back) * t)) for p, t in zip(weights, theta, strict=True))
            for back in range(length)
            if back != offset
        }
        lowest = min(falls.values())
        assert mpmath.mpf(found.value.lower) <= lowest <= mpmath.mpf(found.value.upper)
        nearest = [back for back, fall in falls.items() if fall == lowest]
    assert found.value.upper - found.value.lower < 1e-15
    assert found.competitor == -nearest[0]
    assert found.unique == (len(nearest) == 1)
    assert design.margin == pytest.approx(float(lowest), abs=1e-14)


def test_a_competitor_on_both_sides_is_a_tie():
    assert not design_carrier(SMALL, 14, 29).certified().unique
    assert design_carrier(SMALL, 0, 29).certified().unique


def test_the_energy_bound_is_the_corollary_turned_round():
    energy = energy_bound(0.2907, 0.9, 4096)
    assert energy == pytest.approx(36.17, abs=5e-3)
    assert margin_bound(0.2907 * energy, [4096])[0] == pytest.approx(0.9, rel=1e-12)
    # Uniform attention, and less, costs nothing.
    assert energy_bound(0.3, 0.05, 10) == 0 and energy_bound(0.3, 0.1 + 1e-6, 10) > 0


@settings(max_examples=60)
@given(
    seed=st.integers(0, 10_000),
    pairs=st.integers(1, 5),
    length=st.integers(2, 60),
    attention=st.floats(1e-3, 1 - 1e-6),
    data=st.data(),
)
def test_the_means_take_no_more_than_the_bound_and_reach_the_attention(seed, pairs, length, attention, data):
    schedule = RotarySchedule(np.random.default_rng(seed).uniform(0.05, 3, size=pairs))
    design = design_carrier(schedule, data.draw(st.integers(0, length - 1)), length)
    shorter = data.draw(st.integers(max(2, design.offset + 1), length))
    energy = energy_of_means(design, attention, shorter)
    assert 0 <= energy <= energy_bound(design.margin, attention, shorter)
    if attention <= 1 / shorter:
        assert energy == 0
    else:
        # A narrow margin takes an energy whose logits round by energy 2^-53 times a few.
        odds = np.log(attention / (1 - attention))
        reached = attention_of_means(design, energy, shorter)
        assert np.log(reached / (1 - reached)) == pytest.approx(odds, abs=1e-9 + energy * 1e-13)


def test_less_energy_than_that_of_the_means_is_not_enough():
    design = design_carrier(SETUP, 2, 4096)
    energy = energy_of_means(design, 0.9)
    assert energy < 0.63 * energy_bound(design.margin, 0.9, 4096)
    assert attention_of_means(design, 0.999 * energy, 4096) < 0.9 < attention_of_means(design, 1.001 * energy, 4096)
    assert energy_of_means(design, 0.9, 512) < energy


def test_one_competitor_makes_the_bound_exact():
    design = design_carrier(SMALL, 1, 2)
    assert energy_of_means(design, 0.8) == energy_bound(design.margin, 0.8, 2) > 0


@pytest.mark.parametrize("attention", [0.4, 0.9, 0.999])
def test_without_residuals_a_head_takes_what_its_means_take(attention):
    head = random_head(1, tokens=1)
    design = design_carrier(SMALL, 2, 12)
    energy = energy_of_means(design, attention)
    assert energy_for_attention(head, design, attention) == pytest.approx(energy, rel=1e-3)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("offset", "length", "attention"), [(2, 5, 0.9), (0, 4, 0.7), (4, 5, 0.5)])
def test_energy_for_attention_against_every_sequence(seed, offset, length, attention):
    head = random_head(seed, own=0.3)
    design = design_carrier(SMALL, offset, length)
    energy = energy_for_attention(head, design, attention)

    def reached(factor: float) -> float:
        return enumerated_attention(designed(head, design, factor * energy), offset, length)

    # To 1e-3 relative.
    assert reached(1 - 1e-3) < attention < reached(1 + 1e-3)
    # The least: nothing below it has the attention.
    assert max(map(reached, (0.0, 0.2, 0.4, 0.6, 0.8, 0.9))) < attention
    cost = cost_of_content(designed(head, design, energy), offset, length)
    assert cost.content == pytest.approx(attention, abs=1e-2)


@pytest.mark.parametrize("attention", [0.6, 0.9, 0.999])
def test_a_self_key_that_is_repelled_takes_less(attention):
    # The one competitor is the self key: phi(-1) - l_0 = A mu + c sqrt(A) for a key moved against the unit query.
    head, design = random_head(1, tokens=1), design_carrier(SMALL, 1, 2)
    one = designed(head, design, 1.0)
    repelled = replace(head, local_keys=head.local_keys - one.queries[:, None])
    push = 0.7 * 1.1**2 * float(one.queries[0] @ one.queries[0])
    odds = np.log(attention / (1 - attention))
    root = (-push + np.sqrt(push**2 + 4 * design.margin * odds)) / (2 * design.margin)
    assert energy_for_attention(repelled, design, attention) == pytest.approx(root**2, rel=1e-3)
    assert root**2 < 0.8 * energy_of_means(design, attention)


def test_energy_is_that_of_a_shorter_length_where_one_is_given():
    head, design = random_head(0), design_carrier(SMALL, 1, 30)
    energy = energy_for_attention(head, design, 0.8, 4)
    below, above = (enumerated_attention(designed(head, design, f * energy), 1, 4) for f in (0.999, 1.001))
    assert below < 0.8 < above
    assert energy < energy_for_attention(head, design, 0.8)


def test_residuals_alone_may_have_the_attention():
    head, design = random_head(3, residual=2.0), design_carrier(SMALL, 1, 4)
    assert enumerated_attention(designed(head, design, 0.0), 1, 4) > 0.05
    assert energy_for_attention(head, design, 0.05) == 0
    assert energy_for_attention(head, design, 0.9) > 0


def test_attention_that_no_energy_reaches_is_named():
    # Its own key stands above all that the exact law can hold.
    head, design = random_head(1, tokens=1), design_carrier(SMALL, 1, 4)
    drowned = replace(head, local_keys=head.local_keys + 1e4)
    with pytest.raises(TheoryError, match=r"attention 0\.9 is not reached: the most up to an energy of .* nats is "):
        energy_for_attention(drowned, design, 0.9)


@pytest.mark.parametrize("seed", range(3))
def test_energy_for_accuracy_against_every_sequence(seed):
    head = random_head(seed, residual=0.7)
    design, readout = design_carrier(SMALL, 2, 5), np.eye(3)
    # Accuracy is a step in the energy wherever one sequence turns right: a value between two steps.
    energy = energy_for_accuracy(head, readout, design, 0.93)

    def reached(factor: float) -> float:
        return enumerated_accuracy(designed(head, design, factor * energy), readout, 2, 5)

    assert reached(1 - 1e-3) < 0.93 <= reached(1 + 1e-3)


def test_where_sequences_are_too_many_the_accuracy_is_the_estimate():
    head, readout = random_head(5, residual=0.7), np.eye(3)
    design = design_carrier(SMALL, 2, 12)
    energy = energy_for_accuracy(head, readout, design, 0.9)
    below, above = (accuracy_law(designed(head, design, f * energy), readout, 2, [12]) for f in (0.999, 1.001))
    assert below.point[0] < 0.9 < above.point[0]
    # The control: another number of the bracket would take another energy.
    assert above.lower[0] < 0.9 < below.upper[0]


def test_costs_against_every_sequence():
    head = designed(random_head(5, own=1.5), design_carrier(SMALL, 2, 5), 2.0)
    cost = cost_of_content(head, 2, 5)
    pool, own = tables(head, 5)
    means = head.query_weights @ (pool @ head.key_weights)
    assert cost.means == pytest.approx(softmax(means)[2], rel=1e-12)
    assert cost.own_keys == pytest.approx(softmax(np.r_[head.query_weights @ own, means[1:]])[2], rel=1e-12)
    # The law is asked for 1e-6.
    assert cost.content == pytest.approx(enumerated_attention(head, 2, 5), rel=1e-6)
    assert cost.of_own_keys + cost.of_residuals == pytest.approx(cost.means - cost.content, abs=1e-15)
    assert min(abs(cost.of_own_keys), abs(cost.of_residuals)) > 1e-3


def test_a_sink_is_a_key_of_its_own():
    head = random_head(2)
    sunk = replace(head, sink_keys=head.keys + 1.0)
    plain, cost = cost_of_content(head, 1, 6), cost_of_content(sunk, 1, 6)
    assert cost.means == plain.means
    pool, own = tables(head, 6)
    profile = head.query_weights @ (pool @ head.key_weights)
    far = head.logit_scale * score_table(SMALL, head.queries, sunk.sink_keys, 6)[:, 5]
    logits = np.r_[head.query_weights @ own, profile[1:5], head.query_weights @ np.diagonal(far)]
    assert cost.own_keys == pytest.approx(softmax(logits)[1], rel=1e-12) != plain.own_keys


def test_price_in_range_against_direct_softmax():
    design = design_carrier(SETUP, 2, 512)
    found = price_in_range(design, [16, 64, 512], 15.0)
    assert (found.offset, found.energy, found.lengths) == (2, 15.0, (16, 64, 512))
    for j, length in enumerate(found.lengths):
        own = design_carrier(SETUP, 2, length)
        assert found.attention[j] == pytest.approx(attention_of_means(design, 15.0, length), rel=1e-10)
        assert found.of_own_design[j] == pytest.approx(attention_of_means(own, 15.0, length), rel=1e-10)
    assert found.price[2] == 0 and found.price[0] > 1e-3


def test_aligned_phases_keep_amplitudes_query_and_bias():
    head = replace(random_head(4), bias=LinearBias(0.1))
    own, moved = head.carrier(), aligned(head.carrier(), 3)
    np.testing.assert_allclose(moved.amplitudes, own.amplitudes, rtol=1e-14)
    assert moved.query_mean.tolist() == own.query_mean.tolist() and moved.bias is own.bias
    assert (moved.query_fraction, moved.key_fraction) == (own.query_fraction, own.key_fraction)
    profile = 0.7 * score_table(SMALL, moved.query_mean[None], moved.key_mean[None], 9)[0, :, 0]
    assert profile[3] == pytest.approx(own.energy, rel=1e-13) and selected_offset(profile) == -3
    assert own.phases == pytest.approx(head.carrier().phases) and len(moved.local_profile) == 0


def largest(head: Head, length: int) -> float:
    """Every logit of every query: own keys, those of the pool beyond the window, the sink's at every place."""
    bias = np.zeros(length) if head.bias is None else head.bias.at(np.arange(length))
    scores = [
        head.logit_scale * score_table(head.schedule, head.queries, head.keys, length)[:, head.window :]
        + bias[head.window :, None]
    ]
    for j in range(head.window):
        local = head.logit_scale * score_table(head.schedule, head.queries, head.local_keys[:, j], head.window)
        scores.append(np.diagonal(local[:, j]) + bias[j])
    if head.sink_keys is not None:
        far = head.logit_scale * score_table(head.schedule, head.queries, head.sink_keys, length)
        scores.append(np.diagonal(far, axis1=0, axis2=2)[head.window :] + bias[head.window :, None])
    return max(float(np.abs(score).max()) for score in scores if score.size)


@settings(max_examples=40)
@given(
    seed=st.integers(0, 10_000),
    window=st.integers(1, 3),
    sink=st.booleans(),
    biased=st.booleans(),
    length=st.integers(3, 40),
    block=st.sampled_from([1, 40, 1 << 18]),
)
def test_the_largest_logit_is_that_of_every_pair(seed, window, sink, biased, length, block):
    rng = np.random.default_rng(seed)
    queries, keys = rng.normal(size=(2, 5, 4)) * rng.uniform(0.2, 1.2, size=(2, 5, 1))
    local = np.concatenate([keys[:, None], rng.normal(size=(5, window - 1, 4))], axis=1)
    sinks = 2 * rng.normal(size=(5, 4)) if sink else None
    bias = LinearBias(0.2) if biased else None
    head = Head(SMALL, queries, np.full(5, 0.2), local, keys, np.full(5, 0.2), 0.9, sinks, bias)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("theory.content_costs._BLOCK", block)
        assert check_logits(head, length) == pytest.approx(largest(head, length), rel=1e-12)


def test_a_bias_can_make_the_query_of_the_smaller_scores_the_widest():
    # Scores 5 and -4.9 at every offset: |5 - j| is 5 at most, |-4.9 - j| comes to 12.9.
    queries, keys = np.array([[5.0, 0.0], [-4.9, 0.0]]), np.array([[1.0, 0.0], [1.0, 0.0]])
    schedule, half = RotarySchedule.without_rotation(2), np.full(2, 0.5)
    head = Head.from_tokens(schedule, queries, keys, half, 1.0, LinearBias(1.0))
    assert check_logits(head, 9) == pytest.approx(12.9, rel=1e-14) == largest(head, 9)
    assert check_logits(replace(head, bias=None), 9) == 5


def test_a_logit_that_float32_holds_too_coarsely_is_named():
    # Half of the spacing of float32 is what a rounding moves a number by at most: 2^-10 from 2^14 on.
    assert np.spacing(np.float32(LARGEST_LOGIT)) / 2 == 2.0**-10
    assert np.spacing(np.nextafter(np.float32(LARGEST_LOGIT), np.float32(0))) / 2 == 2.0**-11
    assert np.exp(2.0**-10) > 1.0009
    head, design = random_head(1, tokens=1), design_carrier(SMALL, 2, 9)
    assert check_logits(designed(head, design, 16383.9), 9) == pytest.approx(16383.9, rel=1e-12)
    with pytest.raises(TheoryError, match=r"a logit reaches 16384\.2 nats, expected at most 16384, .*: ask for less"):
        check_logits(designed(head, design, 16384.2), 9)
    # Below 0 too.
    opposed = replace(designed(head, design, 16384.2), queries=-designed(head, design, 16384.2).queries)
    with pytest.raises(TheoryError, match=r"a logit reaches 16384\.2 nats"):
        check_logits(opposed, 9)


def test_a_logit_beyond_float32s_exponential_is_no_reason_to_refuse():
    assert np.isfinite(np.exp(np.float32(OVERFLOWING_LOGIT - 1e-5)))
    with np.errstate(over="ignore", invalid="ignore"):
        assert np.isinf(np.exp(np.float32(OVERFLOWING_LOGIT + 1e-5)))
    head = designed(random_head(1, tokens=1), design_carrier(SMALL, 2, 9), 163.0)
    assert check_logits(head, 9) == pytest.approx(163.0, rel=1e-12)
    pool, own = tables(head, 9)
    logits = np.r_[own[0], pool[0, 1:, 0]].astype(np.float32)
    rises = logits - logits.max()
    # Each logit and each difference is rounded, both below 2^8 nats: 2^-24 * 2^8 and as much again, twice for odds.
    assert np.exp(rises)[2] == 1 and np.isfinite(softmax(logits)).all()
    np.testing.assert_allclose(softmax(logits), softmax(np.r_[own[0], pool[0, 1:, 0]]), atol=4 * 2.0**-16)


@pytest.mark.parametrize("of", ["own keys", "sink", "pool, infinite", "pool, no number"])
def test_a_logit_that_is_not_finite_is_refused(of):
    head, far = random_head(2), np.full((3, 4), 1e200)
    wild = {
        "own keys": replace(head, queries=far, local_keys=far[:, None]),
        "sink": replace(head, queries=far, sink_keys=far),
        "pool, infinite": replace(head, queries=far, keys=far),
        "pool, no number": replace(head, queries=far, keys=far * [1, -1, -1, 1]),
    }[of]
    with pytest.raises(TheoryError, match=r"a logit reaches inf nats, expected at most 16384"):
        check_logits(wild, 9)
    assert check_logits(head, 9) < 100


PERIODIC = RotarySchedule.periodic([(1, 5), (2, 5)])


def test_a_schedule_that_is_back_within_the_context_has_no_design():
    assert design_carrier(PERIODIC, 2, 5).margin > 0.5
    for schedule in (PERIODIC, RotarySchedule.without_rotation(4)):
        with pytest.raises(TheoryError, match=r"no aligned carrier .* give a shorter context or a slower schedule"):
            design_carrier(schedule, 2, 8)


@pytest.mark.parametrize(
    ("question", "text"),
    [
        (lambda d, h: design_carrier(SMALL, 5, 5), "needs a length above 5"),
        (lambda d, h: design_carrier(SMALL, -1, 5), "give 1"),
        (lambda d, h: design_carrier(SMALL, 0, 1), "must be 2 or more, got 1"),
        (lambda d, h: design_carrier(SMALL, 1.5, 5), "must be a whole number, got 1.5"),
        (lambda d, h: d.carrier(0.0, 1.0), "energy in nats must be a finite number above 0, got 0.0"),
        (lambda d, h: d.carrier(float("inf"), 1.0), "above 0, got inf"),
        (lambda d, h: d.carrier(1.0, -1.0), "logit scale must be a finite number above 0, got -1.0"),
        (lambda d, h: d.carrier(1.0, 1.0, Carrier.from_means(SETUP, np.ones(64), np.ones(64), 1.0)), "of 4, got shape"),
        (lambda d, h: aligned(h.carrier(), -1), "must be 0 or more, got -1"),
        (lambda d, h: energy_bound(0.0, 0.5, 9), "margin per nat must be a finite number above 0, got 0.0"),
        (lambda d, h: energy_bound(0.3, 1.0, 9), "attention must lie strictly between 0 and 1, got 1.0"),
        (lambda d, h: energy_bound(0.3, 0.5, 1), "length must be 2 or more, got 1"),
        (lambda d, h: energy_of_means(d, float("nan")), "strictly between 0 and 1, got nan"),
        (lambda d, h: energy_of_means(d, 0.5, 21), "up to 20 tokens, got 21: make one for 21"),
        (lambda d, h: energy_of_means(d, 0.5, 2), "needs a length above 2"),
        (lambda d, h: energy_for_attention(h, d, 0.0), "strictly between 0 and 1, got 0.0"),
        (lambda d, h: energy_for_attention(h, d, 0.5, 21), "make one for 21"),
        (lambda d, h: energy_for_attention(replace(h, schedule=OTHER), d, 0.5), "head and design differ in schedule"),
        (lambda d, h: energy_for_accuracy(h, np.eye(3), d, 1.0), "accuracy must lie strictly between 0 and 1"),
        (lambda d, h: energy_for_accuracy(h, np.eye(2), d, 0.5), "readout"),
        (lambda d, h: price_in_range(d, [4, 21], 1.0), "make one for 21"),
        (lambda d, h: price_in_range(d, [4], 0.0), "above 0, got 0.0"),
        (lambda d, h: check_logits(h, 0), "must be 1 or more, got 0"),
    ],
)
def test_bad_inputs_are_named(question, text, unchecked):
    with pytest.raises(TheoryError, match=text):
        question(design_carrier(SMALL, 2, 20), random_head(0))


OTHER = RotarySchedule.from_exact([sympy.Integer(1), sympy.Rational(1, 3)])
