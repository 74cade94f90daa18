"""Text that a model samples from itself: sequences of the model's own distribution, from its first token to its end."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.special import softmax
from scipy.stats import chisquare

from bridge.errors import BridgeError
from bridge.sources import sampling as module
from bridge.sources.loading import open_network
from bridge.sources.network import Network
from bridge.sources.sampling import own_sequences, sample_sequences

FEWEST = 8
"""Occurrences expected of a token that is counted by itself; those of rarer ones are counted together."""


@pytest.fixture(scope="module")
def network(models: Path) -> Network:
    return open_network(models / "stories260K.bin")


def cut(network: Network, length: int) -> Network:
    """The same network, as if it was trained to a shorter length."""
    shape = replace(network.model.shape, trained_length=length)
    return replace(network, model=replace(network.model, shape=shape))


def next_logits(network: Network, *tokens: int) -> np.ndarray:
    with torch.no_grad():
        return network.causal(input_ids=torch.tensor([tokens])).logits[0, -1].double().numpy()


def fit(tokens: np.ndarray, probabilities: np.ndarray) -> float:
    """p value of the chi-square of tokens against probabilities."""
    expected = len(tokens) * probabilities
    counted = np.bincount(tokens, minlength=len(expected))
    often = expected >= FEWEST
    rare = expected[~often].sum()
    assert rare >= FEWEST and often.sum() >= 2
    return chisquare([*counted[often], counted[~often].sum()], [*expected[often], rare]).pvalue


def test_tokens_have_the_models_own_probabilities(network: Network) -> None:
    """The second token of all sequences, the third of those with the commonest one before it, and so on; another
    temperature is the negative control."""
    sequences = sample_sequences(cut(network, 4), 0, 6000)
    assert sequences.shape == (6000, 4)
    sequences[sequences == -1] = 1
    context = [1]
    for place in (1, 2, 3):
        logits, tokens = next_logits(network, *context), sequences[:, place]
        assert fit(tokens, softmax(logits)) > 1e-3
        assert fit(tokens, softmax(logits / 1.25)) < 1e-9
        context.append(Counter(tokens.tolist()).most_common(1)[0][0])
        sequences = sequences[tokens == context[-1]]
    assert len(sequences) > 4000


def test_no_token_is_too_rare_to_be_sampled(network: Network) -> None:
    """transformers takes the fifty likeliest unless it is told: of the others come as many as the model says."""
    logits = next_logits(network, 1)
    rare = np.argsort(logits)[:-50]
    expected = 40_000 * softmax(logits)[rare].sum()
    found = np.isin(sample_sequences(cut(network, 2), 4, 40_000)[:, 1], rare).sum()
    assert expected > 8 and found > 0
    assert abs(found - expected) < 4 * expected**0.5


def test_a_declared_penalty_on_repetition_changes_nothing(network: Network) -> None:
    """A folder may declare how to chat: that is not how the model was trained to continue."""
    plain = sample_sequences(cut(network, 40), 3, 8)
    declared = network.causal.generation_config
    try:
        declared.repetition_penalty, declared.min_p, declared.top_k = 5.0, 0.5, 1
        assert (sample_sequences(cut(network, 40), 3, 8) == plain).all()
        assert network.causal.generation_config is declared
    finally:
        declared.repetition_penalty, declared.min_p, declared.top_k = None, None, None


def test_a_seed_gives_its_sequences_and_leaves_other_streams_alone(network: Network) -> None:
    torch.manual_seed(5)
    first = sample_sequences(cut(network, 30), 1, 8)
    drawn = torch.rand(3)
    torch.manual_seed(5)
    assert (sample_sequences(cut(network, 30), 1, 8) == first).all()
    assert (sample_sequences(cut(network, 30), 2, 8) != first).mean() > 0.3
    torch.manual_seed(5)
    assert (torch.rand(3) == drawn).all()


def test_sequences_begin_with_the_first_token_and_end_once(network: Network) -> None:
    sequences = sample_sequences(cut(network, 320), 0, 32)
    assert (sequences[:, 0] == 1).all() and not (sequences[:, 1:] == 1).any()
    assert sequences.max() < network.model.shape.vocabulary and sequences.min() == -1
    ended = sequences == -1
    assert (ended[:, :-1] <= ended[:, 1:]).all(), "after the end there is no token any more"
    assert 3 <= ended[:, -1].sum() <= 29 and not ended[:, 1:60].any()


def test_an_end_that_a_model_declares_ends_a_sequence(network: Network) -> None:
    """The commonest token, declared to be an end, ends what went on before; it is none of the text itself."""
    plain = sample_sequences(cut(network, 20), 0, 8)
    declared, own = network.causal.generation_config, network.causal.generation_config.eos_token_id
    (common, _), *_ = Counter(plain[:, 1:].ravel().tolist()).most_common()
    try:
        for given in (common, [2, common]):
            declared.eos_token_id = given
            ended = sample_sequences(cut(network, 20), 0, 8)
            assert not (ended == common).any() and (ended == -1).sum() > (plain == -1).sum()
    finally:
        declared.eos_token_id = own


def test_sequences_are_read_the_second_time(
    network: Network, models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    few = sample_sequences(cut(network, 320), 7, 6)
    asked: list[tuple[int, int]] = []

    def sample(_: Network, seed: int, sequences: int) -> np.ndarray:
        asked.append((seed, sequences))
        return few[:sequences]

    monkeypatch.setattr(module, "sample_sequences", sample)
    monkeypatch.setattr(module, "open_network", lambda path: network)
    first = own_sequences(models / "stories260K.bin", 7, 6, tmp_path)
    again = own_sequences(models / "stories260K.bin", 7, 6, tmp_path)
    assert asked == [(7, 6)]
    assert [row.tolist() for row in first] == [[token for token in row if token >= 0] for row in few.tolist()]
    assert [row.tolist() for row in again] == [row.tolist() for row in first]
    (file,) = tmp_path.rglob("*.npy")
    file.write_bytes(file.read_bytes()[:-1])
    own_sequences(models / "stories260K.bin", 7, 6, tmp_path)
    own_sequences(models / "stories260K.bin", 8, 6, tmp_path)
    assert len(own_sequences(models / "stories260K.bin", 7, 5, tmp_path)) == 5
    assert asked == [(7, 6), (7, 6), (8, 6), (7, 5)] and len(list(tmp_path.rglob("*.npy"))) == 3


def test_a_model_without_a_first_token_is_refused(network: Network) -> None:
    declared = network.causal.generation_config
    first = declared.bos_token_id
    try:
        declared.bos_token_id = None
        with pytest.raises(BridgeError, match="declares no first token to sample from: give --text another text"):
            sample_sequences(network, 0, 1)
    finally:
        declared.bos_token_id = first
