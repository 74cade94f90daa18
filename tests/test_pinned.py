"""Profiles over positions: hand-built heads against closed forms, tiny models against their own attention.

A standardized difference of means over many contexts is near to normal, one in 100 000 is beyond
4.5. Of fresh rows a few draws hold much of the attention: there many seeds are taken together.
"""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import softmax
from tiny_models import TINY, VOCABULARY

from bridge.errors import BridgeError
from bridge.pinned import inspect_positions, position_profiles
from bridge.sources.attention import Maps, PositionLayer, Projection
from bridge.sources.hugging_face import read_hugging_face
from bridge.sources.model import read_layer
from theory.errors import TheoryError

WEIGHTS = np.random.default_rng(0).dirichlet(np.full(VOCABULARY, 2.0))
TOKENS = 30
UNIFORM = np.full(TOKENS, 1 / TOKENS)


def built(stream, table, query, key, bias=None, deviation=0.5):
    """A layer of one head without a norm; the content of `stream` stands in lanes before those of `table`."""
    tokens = np.concatenate([stream, np.zeros((len(stream), table.shape[1]))], axis=1)
    positions = np.concatenate([np.zeros((len(table), stream.shape[1])), table], axis=1)
    bias = None if bias is None else bias[None]
    return PositionLayer(
        tokens, positions, Maps(None, Projection(query[None], bias), Projection(key[None]), 1.0), deviation
    )


def content(lanes=3, seed=1):
    return np.random.default_rng(seed).normal(size=(TOKENS, lanes))


def looking_back(offset, length, sharpness):
    """q_n k_t = sharpness sum over f of cos(w_f (n - K - t)): rows are Fourier features, the query's turned by K."""
    frequencies = 2 * np.pi * np.arange(1, length // 2) / length
    angles = np.outer(np.arange(length), frequencies)
    table = np.concatenate([np.cos(angles), np.sin(angles)], axis=1)
    cosine, sine = np.diag(np.cos(offset * frequencies)), np.diag(np.sin(offset * frequencies))
    turn = np.block([[cosine, sine], [-sine, cosine]])
    blind = np.zeros((len(turn), 3))
    layer = built(content(), table, sharpness * np.hstack([blind, turn]), np.hstack([blind, np.eye(len(turn))]))
    return layer, frequencies


@settings(max_examples=25)
@given(st.data(), st.integers(16, 40), st.floats(0.05, 0.4))
def test_a_head_that_looks_an_offset_back_has_it_at_every_position_that_holds_it(data, length, sharpness) -> None:
    offset = data.draw(st.integers(0, length - 1))
    layer, frequencies = looking_back(offset, length, sharpness)
    (report,) = inspect_positions(layer, UNIFORM, 32)
    profiles = position_profiles(layer, UNIFORM, 32)
    away = length - 1 - offset - np.arange(length)
    expected = softmax(sharpness * np.cos(np.outer(away, frequencies)).sum(axis=1))
    np.testing.assert_allclose(profiles.trained[-1, 0], [*expected, 0], rtol=1e-9, atol=1e-15)
    assert (report.offset, report.share) == (-offset, pytest.approx(expected[length - 1 - offset]))
    assert report.share_error < 1e-9
    assert (profiles.probed[0], profiles.probed[-1], len(profiles.probed)) == (length // 8, length - 1, 10)
    assert report.steadiness == (profiles.probed >= offset).mean()
    assert report.steadiness == 1 or offset > length // 8


def blind_to_positions(own):
    """Tokens are all pairs (a, b); queries read a, keys a too where `own`, else b, which says nothing of a."""
    rng = np.random.default_rng(2)
    first, second = rng.normal(size=(5, 2)), rng.normal(size=(6, 2))
    pairs = np.concatenate([np.repeat(first, 6, axis=0), np.tile(second, (5, 1))], axis=1)
    query, key = np.eye(2, 28), np.eye(2, 28, k=0 if own else 2)
    return built(pairs, rng.normal(size=(24, 24)), query, key)


def test_a_head_that_ignores_positions_is_flat_unless_it_knows_its_own_token() -> None:
    profiles = position_profiles(blind_to_positions(own=False), UNIFORM, 100)
    for place, mean, error in zip(profiles.probed, profiles.trained[:, 0], profiles.trained_error[:, 0], strict=True):
        seen = slice(place + 1)
        assert np.abs(standardized(mean[seen], 1 / (place + 1), error[seen])).max() < 4.5
        assert not mean[place + 1 :].any()
    (flat,) = inspect_positions(blind_to_positions(own=False), UNIFORM, 100)
    assert flat.share < 1 / 24 + 4.5 * flat.share_error < 0.06
    assert np.abs(standardized(profiles.decayed[0], 1 / 25, profiles.decayed_error[0])).max() < 4.5
    (own,) = inspect_positions(blind_to_positions(own=True), UNIFORM, 100)
    assert (own.offset, own.steadiness, own.pinned) == (0, 1.0, 24)
    assert own.share > 1 / 24 + 10 * own.share_error


def biased(position, length, bias, row_gain, deviation):
    """Keys are one-hot in the position; the query is a bias for one of them, and lanes of its own of the row."""
    rng = np.random.default_rng(3)
    table = np.hstack([np.eye(length), 0.1 * rng.normal(size=(length, length))])
    blind, none = np.zeros((length, 3)), np.zeros((length, length))
    query = np.hstack([blind, none, row_gain * np.eye(length)])
    key = np.hstack([blind, np.eye(length), none])
    return built(content(), table, query, key, bias * np.eye(length)[position], deviation)


@settings(max_examples=25)
@given(st.data(), st.integers(16, 30), st.floats(0.0, 0.2))
def test_a_query_bias_pins_whatever_the_row(data, length, deviation) -> None:
    position = data.draw(st.integers(0, length // 8))
    (report,) = inspect_positions(biased(position, length, 7.0, 1.0, deviation), UNIFORM, 32)
    assert (report.pinned, report.fresh_agreement, report.decayed_pinned) == (position, 1.0, position)
    assert report.decayed_share == pytest.approx(np.exp(7) / (np.exp(7) + length))
    assert report.pinned_share > 0.8
    assert (report.offset, report.steadiness) == (position - (length - 1), 0.1)


def test_fresh_rows_that_disagree_are_not_pinned_where_the_decayed_one_is() -> None:
    (report,) = inspect_positions(biased(5, 20, 3.0, 10.0, 1.0), UNIFORM, 32)
    assert report.fresh_agreement < 0.5
    assert report.pinned_error > 0.02
    assert (report.decayed_pinned, report.decayed_share) == (5, pytest.approx(np.exp(3) / (np.exp(3) + 20)))


def standardized(mean, truth, error):
    return (mean - truth) / np.where(error > 0, error, 1e-12)


def extended(model, rows):
    """The model with these rows after its trained positions."""
    table = model.transformer.wpe if hasattr(model, "transformer") else model.model.decoder.embed_positions
    table.weight = torch.nn.Parameter(torch.cat([table.weight, torch.from_numpy(rows)]))
    return model


def own_attention(model, positions, seed):
    """Layer 0's attention [sequence head query key] on tokens drawn by weight, by the model's own forward."""
    tokens = np.random.default_rng(seed).choice(VOCABULARY, positions.shape, p=WEIGHTS)
    with torch.no_grad():
        out = model(
            input_ids=torch.tensor(tokens),
            attention_mask=torch.ones(positions.shape, dtype=torch.long),
            position_ids=torch.tensor(positions),
            output_attentions=True,
            use_cache=False,
        )
    return out.attentions[0].numpy()


def mean_and_error(replicates):
    return replicates.mean(axis=0), replicates.std(axis=0, ddof=1) / np.sqrt(len(replicates))


@pytest.mark.parametrize("name", ["gpt2", pytest.param("opt", marks=pytest.mark.slow)])
def test_profiles_are_the_mean_of_the_models_own_attention(name: str, tmp_path: Path) -> None:
    """At trained positions, at a row of zeros and at fresh rows, one a sequence.

    A table moved by a row, and the row of zeros in place of fresh ones, are the controls.
    """
    model = TINY[name].saved(tmp_path)
    layer = replace(read_layer(read_hugging_face(tmp_path), 0, np.arange(VOCABULARY)).layer, fresh_deviation=0.6)
    assert layer.table.shape == (64, 48)
    drawn = np.random.default_rng(4).normal(scale=0.6, size=(1000, 48))
    model = extended(model, np.concatenate([np.zeros((1, 48)), drawn]))
    trained = np.tile(np.arange(64), (100, 1))
    ours = position_profiles(layer, WEIGHTS)
    places = [own_attention(model, trained, seed)[:, :, ours.probed] for seed in range(10)]
    beyond = [np.column_stack([trained, np.full(100, 64)]) for _ in range(10)]
    zeros = [own_attention(model, positions, 10 + i)[:, :, 64] for i, positions in enumerate(beyond)]
    beyond = [np.column_stack([trained, 65 + 100 * i + np.arange(100)]) for i in range(10)]
    fresh = [own_attention(model, positions, 20 + i)[:, :, 64] for i, positions in enumerate(beyond)]

    def from_own(replicates, mean, error):
        own, own_error = mean_and_error(np.concatenate(replicates))
        return standardized(mean, own, np.hypot(error, own_error))

    def from_places(profiles):
        of_heads = (profiles.trained[:, :, :64], profiles.trained_error[:, :, :64])
        return from_own(places, *(array.swapaxes(0, 1) for array in of_heads))

    assert np.abs(from_places(ours)).max() < 4.5
    assert 0.7 < np.square(from_places(ours)[:, -1]).mean() < 1.4
    moved = position_profiles(replace(layer, table=np.roll(layer.table, 1, axis=0)), WEIGHTS)
    assert np.abs(from_places(moved)).max() > 20
    assert np.abs(from_own(zeros, ours.decayed, ours.decayed_error)).max() < 4.5
    several = [position_profiles(layer, WEIGHTS, 32, seed) for seed in range(10)]
    mean = np.mean([profiles.fresh for profiles in several], axis=0)
    error = np.sqrt(np.mean([profiles.fresh_error**2 for profiles in several], axis=0) / len(several))
    assert 0.4 < np.square(from_own(fresh, mean, error)).mean() < 2
    assert np.square(from_own(fresh, ours.decayed, error)).mean() > 4


def test_a_report_reads_its_profiles() -> None:
    layer = biased(5, 20, 3.0, 10.0, 1.0)
    profiles, (report,) = position_profiles(layer, UNIFORM, 40, 8), inspect_positions(layer, UNIFORM, 40, 8)
    assert asdict(report) == pytest.approx(
        {
            "head": 0,
            "offset": profiles.trained[-1, 0].argmax() - 19,
            "share": profiles.trained[-1, 0].max(),
            "share_error": profiles.trained_error[-1, 0, report.offset + 19],
            "steadiness": 0.1,
            "pinned": profiles.fresh[0].argmax(),
            "pinned_share": profiles.draws[:, 0, report.pinned].mean(),
            "pinned_error": profiles.fresh_error[0, report.pinned],
            "fresh_agreement": (profiles.draws[:, 0].argmax(axis=1) == report.pinned).mean(),
            "decayed_pinned": 5,
            "decayed_share": profiles.decayed[0].max(),
        }
    )


def test_query_heads_read_the_key_head_of_their_group() -> None:
    rng = np.random.default_rng(6)
    query, key = Projection(rng.normal(size=(4, 3, 5))), rng.normal(size=(2, 3, 5))
    grouped = PositionLayer(
        rng.normal(size=(TOKENS, 5)), rng.normal(size=(16, 5)), Maps(None, query, Projection(key), 0.5), 1.0
    )
    alone = replace(grouped, maps=replace(grouped.maps, key=Projection(key.repeat(2, axis=0))))
    crossed = replace(grouped, maps=replace(grouped.maps, key=Projection(np.tile(key, (2, 1, 1)))))
    expected = position_profiles(alone, UNIFORM, 32).trained
    np.testing.assert_allclose(position_profiles(grouped, UNIFORM, 32).trained, expected, rtol=1e-9)
    assert np.abs(position_profiles(crossed, UNIFORM, 32).trained - expected).max() > 0.01


def test_a_seed_gives_the_same_bits_and_another_does_not() -> None:
    layer = blind_to_positions(own=False)
    assert inspect_positions(layer, UNIFORM, 32, 5) == inspect_positions(layer, UNIFORM, 32, 5)
    assert inspect_positions(layer, UNIFORM, 32, 5) != inspect_positions(layer, UNIFORM, 32, 6)


def test_one_trained_position_is_enough() -> None:
    (report,) = inspect_positions(biased(0, 1, 3.0, 0.0, 0.1), UNIFORM, 32)
    assert (report.offset, report.share, report.steadiness, report.pinned) == (0, 1.0, 1.0, 0)


@pytest.mark.parametrize(
    ("weights", "said"),
    [
        (UNIFORM[1:], "for 29 tokens, the layer has 30"),
        (0 * UNIFORM, "not all 0"),
        (UNIFORM - 0.04 * (np.arange(TOKENS) == 3), "0 or more"),
        (np.where(np.arange(TOKENS) == 3, np.nan, UNIFORM), "finite"),
    ],
)
def test_weights_that_are_none_are_refused(weights: np.ndarray, said: str) -> None:
    with pytest.raises(BridgeError, match=said) as raised:
        inspect_positions(blind_to_positions(own=False), weights, 32)
    assert "\n" not in str(raised.value)


def test_a_layer_that_gives_no_numbers_is_refused() -> None:
    layer = blind_to_positions(own=True)
    with pytest.raises(BridgeError, match="no row"):
        inspect_positions(replace(layer, table=layer.table[:0]), UNIFORM, 32)
    with pytest.raises(BridgeError, match="head 0 has logits that are not finite"):
        inspect_positions(replace(layer, stream=1e200 * layer.stream), UNIFORM, 32)
    with pytest.raises(TheoryError, match="samples must be 32 or more"):
        inspect_positions(layer, UNIFORM, 31)
    with pytest.raises(TheoryError, match="seed must be 0 or more"):
        inspect_positions(layer, UNIFORM, 32, -1)
