"""Swaps of keys and blocks, heads as explicit weights, and scores of heads of our runs and of checkpoints."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from pathlib import Path
from typing import cast

import numpy as np
import pytest
import torch
from scipy.special import softmax
from tiny_models import VOCABULARY, Shelf

from bridge import swap_scores as module
from bridge.errors import BridgeError
from bridge.run_swaps import score_head, score_transformer
from bridge.studies.heads_constructed import discrepancies
from bridge.swap_scores import score_checkpoint
from empirics.encoding_specs import NoPositions, Rotary
from empirics.encodings import rotate
from empirics.hops import Hops
from empirics.sequence_spec import sequence_spec
from empirics.transformer import Block, Transformer
from theory.constructed_heads import index_head, index_logits, prompt_logits, retrieval_head, retrieval_logits
from theory.discrepancy import discrepancy, positional_discrepancy, symbolic_loss
from theory.errors import TheoryError
from theory.head import Head
from theory.prompt_swaps import Swaps, all_swaps, drawn_swaps, lower_score
from theory.schedule import RotarySchedule

TAU = 0.05
GEOMETRIC = RotarySchedule.geometric(32, 1e4)
ENERGIES = np.random.default_rng(1).exponential(1.5, 16)


def by_torch(head: Head, tokens: np.ndarray) -> np.ndarray:
    """Logits of the last token by the trainer's own rotation, keys turned as well as the query."""
    places, theta = torch.arange(len(tokens)), torch.from_numpy(head.schedule.frequencies)
    keys = rotate(torch.from_numpy(head.keys[tokens]), places, theta)
    query = rotate(torch.from_numpy(head.queries[tokens[-1:]]), places[-1:], theta)
    return head.logit_scale * (keys @ query[0]).numpy()


def in_a_loop(row: Callable[[list[int]], np.ndarray], prompt: list[int], block: int, tau: float) -> tuple[float, float]:
    """The definition, one swap of unequal blocks at a time: prompts are rebuilt from slices, attention is added up."""
    front = (len(prompt) - 1) % block
    starts = range(front, len(prompt) - 1, block)
    before = row(prompt)
    weights, kept, flipped = [], [], []
    for i, j in itertools.combinations(starts, 2):
        first, second = prompt[i : i + block], prompt[j : j + block]
        if first == second:
            continue
        after = row(prompt[:i] + second + prompt[i + block : j] + first + prompt[j + block :])
        a, b = before[i : i + block].sum(), before[j : j + block].sum()
        c, d = after[i : i + block].sum(), after[j : j + block].sum()
        size = math.hypot(a, b) * math.hypot(c, d)
        weights.append(math.exp(abs(a - b) / tau))
        kept.append((a * c + b * d) / size)
        flipped.append((a * d + b * c) / size)
    total = math.fsum(weights)
    means = [math.fsum(w * x for w, x in zip(weights, cosines, strict=True)) / total for cosines in (kept, flipped)]
    return means[0], means[1]


def sech_sum(logits: np.ndarray, tau: float) -> float:
    """sum w sech(l_i - l_j) over all keys before the query, with plain numbers."""
    shares = [math.exp(logit - max(logits)) for logit in logits]
    shares = [share / math.fsum(shares) for share in shares]
    terms = [
        (math.exp(abs(shares[i] - shares[j]) / tau), 1 / math.cosh(logits[i] - logits[j]))
        for i, j in itertools.combinations(range(len(logits) - 1), 2)
    ]
    return math.fsum(w * x for w, x in terms) / math.fsum(w for w, _ in terms)


def test_the_weights_of_index_give_its_logits_in_closed_form() -> None:
    """By the theory's rotation and by the trainer's."""
    rng = np.random.default_rng(3)
    head = index_head(ENERGIES, GEOMETRIC, 12)
    for length in (5, 40, 3000):
        tokens = rng.integers(0, 12, length)
        form = index_logits(ENERGIES, GEOMETRIC, int(tokens[-1]) + 1, np.arange(length) - (length - 1))
        assert np.abs(prompt_logits(head, tokens) - form).max() < 1e-11
        assert np.abs(by_torch(head, tokens) - form).max() < 1e-10
        k = int(tokens[-1]) + 1
        if k < length:
            assert form.argmax() == length - 1 - k and form.max() == pytest.approx(ENERGIES.sum(), rel=1e-12)


def test_the_weights_of_retrieval_give_its_logits_in_closed_form() -> None:
    """On frozen pairs the match has all of r_a at any distance, on pairs that turn it has not."""
    frozen = RotarySchedule.without_rotation(32)
    for schedule in (frozen, GEOMETRIC):
        head, tokens = retrieval_head(ENERGIES, schedule), np.random.default_rng(4).integers(0, 16, 300)
        form = retrieval_logits(ENERGIES, schedule, int(tokens[-1]), tokens, np.arange(300) - 299)
        assert np.abs(prompt_logits(head, tokens) - form).max() < 1e-12
        assert np.abs(by_torch(head, tokens) - form).max() < 1e-10
        matches = form[tokens == tokens[-1]]
        assert (np.ptp(matches) == 0) == (schedule is frozen)


@pytest.mark.parametrize("tau", [0.01, TAU, 1.0])
def test_scores_of_constructed_heads_are_their_closed_forms(tau: float) -> None:
    """To 1e-6, and by three routes: the scores of the weights, the closed form in plain numbers, and ours."""
    offsets, swaps = np.arange(20) - 19, all_swaps(20)
    rng = np.random.default_rng(5)
    numbers, symbols = rng.integers(0, 12, 20), rng.integers(0, 16, 20)
    symbols[[4, 11]] = symbols[-1]
    frozen = RotarySchedule.without_rotation(32)
    index, retrieval = index_head(ENERGIES, GEOMETRIC, 12), retrieval_head(5 * ENERGIES, frozen)
    by_place = index_logits(ENERGIES, GEOMETRIC, int(numbers[-1]) + 1, offsets)
    by_symbol = retrieval_logits(5 * ENERGIES, frozen, int(symbols[-1]), symbols, offsets)
    at_place, at_symbol = score_head(index, numbers, swaps, tau), score_head(retrieval, symbols, swaps, tau)
    assert at_place.positional == pytest.approx(1, abs=1e-6) and at_symbol.symbolic == pytest.approx(1, abs=1e-6)
    for lower, logits in ((at_place.symbolic, by_place), (at_symbol.positional, by_symbol)):
        assert lower == pytest.approx(sech_sum(logits, tau), abs=1e-6)
        assert lower == pytest.approx(lower_score(logits, swaps.pairs, tau), abs=1e-6)
        assert lower < 0.99


@pytest.mark.parametrize("block", [1, 2, 3, 5])
def test_blocks_change_places_whole_and_their_attention_is_added_up(block: int) -> None:
    """A head of both kinds at once, one swap at a time; 17 tokens leave one over at the front for blocks of 3 or 5."""
    rng = np.random.default_rng(6)
    queries, keys = rng.normal(size=(2, 9, 32))
    both = Head.from_tokens(GEOMETRIC, queries, keys, np.full(9, 1 / 9), 0.15)
    tokens = rng.integers(0, 9, 17)
    scores = score_head(both, tokens, all_swaps(17, block).changing(tokens), TAU)
    slow = in_a_loop(lambda prompt: softmax(by_torch(both, np.array(prompt))), tokens.tolist(), block, TAU)
    assert (scores.positional, scores.symbolic) == pytest.approx(slow, abs=1e-9)
    assert max(slow) < 0.999


def test_a_prompt_after_a_swap_of_blocks() -> None:
    swaps = Swaps(8, 3, np.array([[1, 0]]))
    assert swaps.prompts(np.arange(8)).tolist() == [[0, 4, 5, 6, 1, 2, 3, 7]]
    alike = np.array([9, 1, 2, 3, 1, 2, 3, 7])
    assert len(swaps.changing(alike).pairs) == 0 and len(swaps.changing(np.arange(8)).pairs) == 1


def test_every_key_before_a_query_is_in_a_drawn_swap() -> None:
    swaps = drawn_swaps(20, 2, np.random.default_rng(0))
    assert len(swaps.pairs) == 1 + 2 * 17 == len(np.unique(swaps.pairs, axis=0))
    for query in (2, 7, 19):
        assert set(swaps.before(query).pairs.ravel().tolist()) == set(range(query))
        assert swaps.before(query).length == query + 1


@pytest.mark.usefixtures("unchecked")
def test_swaps_that_cannot_be_made_are_refused() -> None:
    for make in (
        lambda: all_swaps(3, 2),
        lambda: all_swaps(9, 0),
        lambda: Swaps(9, 1, np.array([[3, 3]])),
        lambda: Swaps(9, 1, np.array([[0, 8]])),
        lambda: all_swaps(9).prompts(np.arange(8)),
        lambda: all_swaps(9, 2).before(4),
        lambda: all_swaps(9).before(9),
        lambda: index_head(ENERGIES, GEOMETRIC, 0),
        lambda: retrieval_head(-ENERGIES, GEOMETRIC),
        lambda: prompt_logits(index_head(ENERGIES, GEOMETRIC, 3), np.array([0, 3])),
    ):
        with pytest.raises(TheoryError):
            make()


def test_the_lead_of_constructed_heads_is_the_law_of_its_kind() -> None:
    """Measured in the rows, at three lengths: Index by the least gap at the lags that a target meets, in a loop;
    Retrieval by its loss, which is none on frozen pairs."""
    for one in discrepancies((16, 200, 4096)):
        assert np.abs(one.measured - one.predicted).max() < 1e-6
    head = index_head(ENERGIES, GEOMETRIC, 3)
    law = positional_discrepancy(ENERGIES, GEOMETRIC, 500)
    for k, length in itertools.product((1, 2, 3), (10, 500)):
        tokens = np.full(length, k - 1)
        lags = [lag for lag in range(k - length + 1, k + 1) if lag]
        least = min(sum(r * (1 - math.cos(lag * f)) for r, f in zip(ENERGIES, GEOMETRIC.frequencies)) for lag in lags)  # noqa: B905
        measured = float(discrepancy(prompt_logits(head, tokens)[None])[0])
        assert measured == pytest.approx(least, abs=1e-9) and law[length - 1 - k] == pytest.approx(least, abs=1e-9)
    found = {one.label: one.measured for one in discrepancies((16, 200, 4096))}
    assert np.ptp(found["Retrieval, frozen pairs"]) == 0 < np.ptp(found["Retrieval, slowest pair of base 1e4"])
    assert (np.diff(found["Index, one pair, theta 1"]) < 0).all()
    slow = RotarySchedule(np.array([1e-3]))
    assert symbolic_loss(np.ones(1), slow, 100).exact == pytest.approx(1 - math.cos(0.099), rel=1e-9)


def test_scores_of_a_transformer_are_those_of_its_prompts_run_one_by_one() -> None:
    """And in layer 0 a head without positions is symbolic, while one with rotary positions is not."""
    generator = torch.Generator().manual_seed(2)
    prompts = Hops().draw(2, 17, generator).tokens
    for encoding in (NoPositions(), Rotary()):
        spec = sequence_spec(
            task=Hops(), encoding=encoding, width=16, heads=2, train_lengths=(17, 17), evaluation_lengths=(17,)
        )
        model = Transformer(spec, torch.Generator().manual_seed(0))
        with torch.no_grad():
            for block in model.blocks:
                cast(Block, block).query.weight *= 8
        scored = score_transformer(model, prompts, all_swaps(17), TAU)
        for layer, head in np.ndindex(2, 2):

            def row(prompt: list[int]) -> np.ndarray:
                with torch.no_grad():
                    return model.trace(torch.tensor([prompt])).layers[layer].attention[0, head, -1].double().numpy()  # noqa: B023

            slow = in_a_loop(row, prompts[1].tolist(), 1, TAU)
            found = scored.positional[1, layer, head], scored.symbolic[1, layer, head]
            assert found == pytest.approx(slow, abs=1e-6)
            shares = row(prompts[1].tolist())
            assert scored.entropy[1, layer, head] == pytest.approx(-(shares * np.log(shares)).sum(), abs=1e-6)
        symbolic = scored.symbolic[:, 0]
        assert (symbolic > 1 - 1e-6).all() == isinstance(encoding, NoPositions)
        assert (scored.symbolic[:, 1] < 1 - 1e-6).all()


def test_scores_of_a_checkpoint_are_those_of_transformers_own_attention(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every query of a window as a prompt of its own, run after each swap by eager attention; a second call runs
    nothing."""
    saved = Shelf(tmp_path / "models").get("llama")
    windows, queries = np.random.default_rng(5).integers(0, VOCABULARY, (2, 10)), range(7, 10)
    swaps = drawn_swaps(10, 2, np.random.default_rng(0))
    found = score_checkpoint(saved.folder, windows, swaps, queries, TAU, tmp_path / "cache")
    saved.model.config._attn_implementation = "eager"

    def rows(prompt: np.ndarray) -> np.ndarray:
        with torch.no_grad():
            layers = saved.model(torch.tensor(prompt)[None], output_attentions=True, use_cache=False).attentions
        return np.stack([layer[0, :, -1].double().numpy() for layer in layers])

    expected = []
    for query in queries:
        prompt = windows[1, : query + 1]
        before, scores = rows(prompt), []
        for i, j in swaps.pairs.tolist():
            if max(i, j) < query and prompt[i] != prompt[j]:
                moved = prompt.copy()
                moved[[i, j]] = prompt[[j, i]]
                old, new = before[..., [i, j]], rows(moved)[..., [i, j]]
                sizes = np.linalg.norm(old, axis=-1) * np.linalg.norm(new, axis=-1)
                cosines = ((old * new).sum(axis=-1) / sizes, (old[..., ::-1] * new).sum(axis=-1) / sizes)
                scores.append((np.exp(np.abs(old[..., 0] - old[..., 1]) / TAU), *cosines))
        weights, kept, flipped = np.moveaxis(np.array(scores), 1, 0)
        total = weights.sum(axis=0)
        expected.append(((weights * kept).sum(axis=0) / total, (weights * flipped).sum(axis=0) / total))
    positional, symbolic = np.mean(expected, axis=0)
    assert np.abs(found.positional[1] - positional).max() < 1e-4
    assert np.abs(found.symbolic[1] - symbolic).max() < 1e-4
    assert np.ptp(positional) > 0.01

    def refuse(path: Path) -> None:
        raise AssertionError("the network is not run twice")

    monkeypatch.setattr(module, "open_network", refuse)
    again = score_checkpoint(saved.folder, windows, swaps, queries, TAU, tmp_path / "cache")
    assert (again.positional == found.positional).all()
    with pytest.raises(BridgeError, match="queries among"):
        score_checkpoint(saved.folder, windows, swaps, range(7, 11), TAU, tmp_path / "cache")
    with pytest.raises(AssertionError, match="not run twice"):
        score_checkpoint(saved.folder, windows, swaps, queries, 2 * TAU, tmp_path / "cache")
