"""The model, the loop and what is observed of them, each by a route of its own."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import ROOT, tiny_spec
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from empirics.encodings import frequencies, rotate
from empirics.errors import EmpiricsError
from empirics.head import AttentionHead
from empirics.observe import observe
from empirics.spec import LearnedPositions, RandomizedPositions, Rotary, run_spec, transformer_spec
from empirics.specs import read_spec
from empirics.store import Store
from empirics.sweep import sweep
from empirics.tasks import draw_batch, draw_length, targets
from empirics.train import train

FLAT = {"query": [0.0] * 64, "key": [1.0] * 64}
FAR = {"weight": 1.0, "reach": 99}


def test_a_spec_is_its_text() -> None:
    spec = run_spec(encoding=Rotary(base=500.0), offset=3, seed=7)
    assert read_spec(spec.to_json()) == spec
    assert read_spec(transformer_spec(layers=3).to_json()) == transformer_spec(layers=3)
    with pytest.raises(EmpiricsError, match=r"^offset: Input should be a valid integer"):
        read_spec(spec.to_json().replace('"offset": 3', '"offset": "x"'))
    assert spec.id.startswith("rope-k3-d64-seed7-")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"ofset": 2}, "ofset: Extra inputs are not permitted, got 2"),
        ({"offset": 8}, "K = 8 must be below the shortest training length 8"),
        ({"offset": 7, "evaluation_lengths": (7, 12)}, "must be below the shortest evaluation length 7"),
        ({"width": 7}, "width 7 is odd"),
        ({"encoding": {"kind": "rope", "base": 0}}, "base: Input should be greater than or equal to 1, got 0"),
        ({"encoding": {"kind": "rope", "base": math.nan}}, "base: Input should be"),
        ({"encoding": {"kind": "rotary"}}, "encoding: Input tag 'rotary'"),
        ({"encoding": {"kind": "ape", "rows": 16}}, "16 position rows do not reach length 48"),
        ({"train_lengths": (16, 8)}, "give the shorter one first"),
        ({"learning_rate": 0.0}, "learning_rate"),
        ({"seed": -1}, "seed"),
        ({"heads": 3}, "width 64 does not split into 3 heads"),
        ({"heads": 32, "width": 32}, "head width 1 is odd"),
        ({"offset": 1, "second_offset": 8}, "K = 8 must be below the shortest training length 8"),
        ({"offset": 0, "second_offset": 3}, "give offsets of 1 or more"),
        ({"encoding": {"kind": "t5", "slope": 1}}, "slope: Extra inputs are not permitted"),
        ({"temperature": 0}, "temperature"),
        ({"evaluation_lengths": ()}, "evaluation_lengths is empty"),
        ({"evaluation_lengths": (300_000,)}, "an evaluation of 1228800000 tokens is too large: 268435456 are the most"),
        ({"train_lengths": (8, 900_000), "batch": 10_000}, "a batch of 9000000000 tokens is too large"),
        ({"encoding": {"kind": "rope", "base": 1e-308}}, "base: Input should be greater than or equal to 1"),
        ({"encoding": {"kind": "alibi", "slope": 1e39}}, "slope: Input should be less than or equal to 1000000"),
        ({"encoding": {"kind": "ape"}, "penalty": FAR}, "penalty needs rotary positions, got ape: leave it out"),
        ({"encoding": {"kind": "none"}, "start": FLAT}, "start needs rotary positions, got none"),
        ({"second_offset": 4, "penalty": FAR}, "penalty needs one offset, got [2, 4]: leave the second one out"),
        ({"attention": "linear", "penalty": FAR}, "penalty needs softmax attention, got linear"),
        (
            {"offset": 5, "penalty": {"weight": 1, "reach": 5}},
            "penalty reaches 5 tokens, none of them K = 5 back: give 6",
        ),
        ({"penalty": {"weight": 0, "reach": 9}}, "penalty.weight: Input should be greater than 0"),
        ({"penalty": {"weight": 1, "reach": 0}}, "penalty.reach: Input should be greater than or equal to 1"),
        (
            {"start": {"query": [0.0] * 64, "key": [0.0] * 63}},
            "a mean query of 64 lanes and a mean key of 63 do not fit",
        ),
        ({"start": FLAT, "width": 32}, "do not fit width 32: give 32 of each"),
        ({"start": FLAT, "vocabulary": 65}, "start shifts 65 tokens alike: give a width of as many lanes or more"),
        ({"start": {"query": [math.nan] * 64, "key": [0.0] * 64}}, "start.query.0: Input should be a finite number"),
        ({"edit": {"parent": "../x", "sha256": "0" * 64, "means": FLAT}}, "edit.parent: String should match pattern"),
        ({"edit": {"parent": "x", "sha256": "0" * 63, "means": FLAT}}, "edit.sha256: String should match pattern"),
        ({"encoding": {"kind": "t5", "buckets": 10**13}}, "buckets: Input should be less than or equal to 1000001"),
    ],
)
def test_a_bad_spec_is_one_line(fields: dict, message: str) -> None:
    with pytest.raises(EmpiricsError, match=re.escape(message)) as caught:
        run_spec(**fields)
    assert "\n" not in str(caught.value)


@given(
    field=st.sampled_from(["offset", "width", "vocabulary", "steps", "batch", "seed", "learning_rate", "encoding"]),
)
def test_whatever_changes_the_weights_changes_the_identifier(field: str) -> None:
    other = {"learning_rate": 2e-3, "encoding": Rotary(base=1e5), "width": 32}.get(field, 3)
    assert run_spec(**{field: other}).id != run_spec().id


def test_fields_that_came_later_change_no_identifier_of_an_earlier_run() -> None:
    """The recorded id; the fields are in a text, and in its hash, where they say something."""
    spec = run_spec(encoding=Rotary(), offset=2, seed=0)
    assert spec.id == "rope-k2-d64-seed0-fbf78dd19487"
    recorded = (ROOT / "docs" / "results" / "paper" / "results.json").read_text()
    assert f'"{spec.id}"' in recorded
    assert list(json.loads(spec.to_json())) == list(spec.model_dump()) == list(spec.model_dump(mode="json"))
    assert not {"start", "penalty", "edit"} & set(spec.model_dump())
    edit = {"parent": spec.id, "sha256": "ab" * 32, "means": FLAT}
    for fields, name in (
        ({"start": FLAT}, "rope-start-k2"),
        ({"penalty": FAR}, "rope-penalty-k2"),
        ({"edit": edit}, "rope-edited-k2"),
        ({"start": FLAT, "attention": "linear"}, "rope-linear-start-k2"),
        ({"start": FLAT, "penalty": FAR, "edit": edit}, "rope-start-penalty-edited-k2"),
    ):
        other = run_spec(**fields)
        assert other.id.startswith(f"{name}-d64-seed0-") and not other.id.endswith("fbf78dd19487")
        assert read_spec(other.to_json()) == other and fields.keys() <= json.loads(other.to_json()).keys()
    assert run_spec(penalty=FAR).id != run_spec(penalty=FAR | {"reach": 98}).id
    assert run_spec(start=FLAT).id != run_spec(start={"query": [0.0] * 64, "key": [math.nextafter(1, 2)] * 64}).id


@pytest.mark.parametrize("encoding", [Rotary(), LearnedPositions()])
def test_weights_and_stream_are_those_of_a_plain_script(encoding: Rotary | LearnedPositions) -> None:
    """PyTorch's own layers under the global seed draw the same weights, and leave the same stream behind."""
    spec = run_spec(encoding=encoding, seed=5)
    generator = torch.Generator().manual_seed(5)
    model = AttentionHead(spec, generator)
    torch.manual_seed(5)
    embedding = nn.Embedding(20, 64)
    maps = [nn.Linear(64, 64, bias=False) for _ in range(3)] + [nn.Linear(64, 20, bias=False)]
    assert torch.equal(model.embedding, embedding.weight)
    for ours, theirs in zip((model.query, model.key, model.value, model.readout), maps, strict=True):
        assert torch.equal(ours, theirs.weight)
    if isinstance(encoding, LearnedPositions):
        assert torch.equal(model.positions, nn.Embedding(49, 64).weight)
    length = int(torch.randint(8, 17, (1,)))
    tokens = torch.randint(0, 20, (256, length))
    assert draw_length(spec, generator) == length
    assert torch.equal(draw_batch(spec, 256, length, generator).tokens, tokens)


def test_untrained_rows_have_the_norm_of_table_6() -> None:
    """Printed 8.08 without weight decay: only rows drawn after the readout, 49 of them, come out so."""
    heads = [
        AttentionHead(run_spec(encoding=LearnedPositions(), seed=seed), torch.Generator().manual_seed(seed))
        for seed in range(3)
    ]
    norms = [head.positions.detach()[16:].norm(dim=1).mean().item() for head in heads]
    assert f"{np.mean(norms):.2f}" == "8.08"


def test_lengths_cover_the_training_range_and_nothing_else() -> None:
    generator = torch.Generator().manual_seed(0)
    drawn = {draw_length(run_spec(), generator) for _ in range(500)}
    assert drawn == set(range(8, 17))


@pytest.mark.parametrize("offset", [0, 2, 7])
def test_the_target_stands_offset_tokens_before_the_last(offset: int) -> None:
    tokens = torch.arange(20).reshape(2, 10)
    assert targets(run_spec(offset=offset), tokens).tolist() == [9 - offset, 19 - offset]


def test_a_mode_in_the_last_position_asks_for_its_own_offset() -> None:
    """The first of the two more tokens asks for K, the second for the second offset; both are drawn, nowhere else."""
    spec = run_spec(offset=1, second_offset=3, vocabulary=7)
    tokens = draw_batch(spec, 200, 9, torch.Generator().manual_seed(0)).tokens
    assert set(tokens[:, -1].tolist()) == {7, 8} and int(tokens[:, :-1].max()) == 6
    wanted = [row[7] if row[8] == 7 else row[5] for row in tokens.tolist()]
    assert targets(spec, tokens).tolist() == wanted


def test_random_positions_are_rising_rows_of_the_table() -> None:
    spec, generator = run_spec(encoding=RandomizedPositions(rows=50)), torch.Generator().manual_seed(0)
    drawn = [draw_batch(spec, 2, 9, generator).positions for _ in range(40)]
    assert all((positions.diff() > 0).all() for positions in drawn)
    assert {0, 49} <= {int(place) for positions in drawn for place in positions}
    assert draw_batch(run_spec(), 2, 9, generator).positions.tolist() == list(range(9))


def test_the_model_is_what_its_docstring_says() -> None:
    """The forward pass written out in numpy with rotation matrices, position by position."""
    spec = run_spec(width=6, vocabulary=5, encoding=Rotary(base=100.0))
    model = AttentionHead(spec, torch.Generator().manual_seed(1)).double()
    tokens = torch.tensor([[3, 1, 4, 1, 0, 2, 2, 4]])
    e, q, k, v, u = (weight.detach().numpy() for weight in model.parameters())

    def turn(position: int) -> np.ndarray:
        matrix = np.zeros((6, 6))
        for i in range(3):
            a = position * 100.0 ** (-2 * i / 6)
            matrix[2 * i : 2 * i + 2, 2 * i : 2 * i + 2] = [[np.cos(a), -np.sin(a)], [np.sin(a), np.cos(a)]]
        return matrix

    x = e[tokens[0].numpy()]
    query = turn(7) @ q @ x[7]
    logits = np.array([query @ turn(t) @ k @ x[t] for t in range(8)]) / np.sqrt(6)
    attention = np.exp(logits) / np.exp(logits).sum()
    output = model(tokens)
    assert output.logits[0, 0].detach().numpy() == pytest.approx(logits, abs=1e-12)
    assert output.attention[0, 0].detach().numpy() == pytest.approx(attention, abs=1e-12)
    assert output.scores[0].detach().numpy() == pytest.approx(u @ (attention @ (x @ v.T)), abs=1e-12)


def test_angles_are_exact_far_out() -> None:
    """Positions 256 and 257 stay apart, and a float32 vector at 10^6 is turned as a float64 one."""
    theta = frequencies(64, 10_000.0)
    vector = torch.randn(1, 64, generator=torch.Generator().manual_seed(0))
    far = torch.tensor([1_000_000])
    exact = rotate(vector.double(), far, theta)
    assert (rotate(vector, far, theta).double() - exact).abs().max() < 1e-6
    assert (rotate(vector, torch.tensor([256]), theta) - rotate(vector, torch.tensor([257]), theta)).abs().max() > 0.1


def test_training_again_gives_the_same_bits() -> None:
    first, second = train(tiny_spec()), train(tiny_spec())
    assert all(torch.equal(a, b) for a, b in zip(first.model.parameters(), second.model.parameters(), strict=True))
    assert first.evaluation == second.evaluation
    assert not torch.equal(train(tiny_spec(seed=1)).model.query, first.model.query)


def test_training_lowers_the_loss_and_reports_its_steps() -> None:
    seen: list[int] = []
    run = train(tiny_spec(steps=120), progress=seen.append)
    assert seen == [50, 50, 20] and [point.step for point in run.history] == [50, 100, 120]
    assert run.history[-1].loss < run.history[0].loss - 0.1


def test_a_loss_that_is_not_finite_stops_the_run_and_names_the_step(tmp_path: Path) -> None:
    store = Store.open(tmp_path)
    with pytest.raises(EmpiricsError, match=r"the loss is (nan|inf) at step \d+ of 50; the run is not stored"):
        sweep([tiny_spec(learning_rate=1e30, steps=50), tiny_spec()], store)
    assert [path.name for path in store.paths()] == [tiny_spec().id], "the other run of the sweep is kept"


def test_weights_that_are_not_finite_after_the_last_step_are_no_run(tmp_path: Path) -> None:
    """The loss of a step is that before it: the last update is seen in the weights alone."""
    store, spec = Store.open(tmp_path), tiny_spec(learning_rate=1e30, steps=1)
    with pytest.raises(EmpiricsError, match="the loss is nan at step 1 of 1; the run is not stored"):
        sweep([spec, tiny_spec(steps=1)], store)
    assert [path.name for path in store.paths()] == [tiny_spec(steps=1).id]


def test_an_observation_is_the_mean_over_sequences_with_its_error() -> None:
    model = train(tiny_spec(heads=2)).model
    (seen,) = observe(model, [30], 500, torch.Generator().manual_seed(3))
    tokens = torch.randint(0, 20, (500, 30), generator=torch.Generator().manual_seed(3))
    output = model(tokens)
    by_head = output.attention.detach().numpy().astype(np.float64)[:, :, ::-1]
    attention = by_head.mean(axis=1)
    assert np.array(seen.by_head) == pytest.approx(by_head.mean(axis=0), abs=1e-9)
    errors = by_head.std(axis=0, ddof=1) / np.sqrt(500)
    assert np.array(seen.error_by_head) == pytest.approx(errors, rel=1e-6)
    assert seen.selected_by_head == tuple(-by_head.mean(axis=0).argmax(axis=1))
    assert np.array(seen.attention) == pytest.approx(attention.mean(axis=0), abs=1e-9)
    assert np.array(seen.attention_error) == pytest.approx(attention.std(axis=0, ddof=1) / np.sqrt(500), rel=1e-6)
    assert sum(seen.attention) == pytest.approx(1, abs=1e-6)
    assert seen.peak == seen.attention[-seen.selected_offset] == max(seen.attention)
    assert seen.accuracy == (output.scores.argmax(dim=1) == tokens[:, 27]).double().mean().item()


def test_a_length_that_cannot_be_observed_is_refused() -> None:
    generator = torch.Generator().manual_seed(0)
    rotary = AttentionHead(run_spec(), torch.Generator().manual_seed(0))
    learned = AttentionHead(run_spec(encoding=LearnedPositions()), torch.Generator().manual_seed(0))
    with pytest.raises(EmpiricsError, match="length 2 holds no token K = 2 back"):
        observe(rotary, [2], 10, generator)
    with pytest.raises(EmpiricsError, match="length 50 is beyond the 49 learned positions"):
        observe(learned, [50], 10, generator)


def test_rows_that_no_training_length_reads_get_exactly_no_gradient() -> None:
    """Proposition 2 by autograd: zero, not small, below the row of the longest length not; trained, they stay put."""
    spec = run_spec(encoding=LearnedPositions(), seed=3)
    model = AttentionHead(spec, torch.Generator().manual_seed(3))
    generator = torch.Generator().manual_seed(4)
    for length in range(spec.train_lengths[0], spec.train_lengths[1] + 1):
        tokens = torch.randint(0, spec.vocabulary, (32, length), generator=generator)
        scores = model(tokens).scores
        nn.functional.cross_entropy(scores, targets(spec, tokens)).backward()
    gradient, longest = model.positions.grad, spec.train_lengths[1]
    assert (gradient[longest:] == 0).all() and (gradient[:longest].abs().sum(dim=1) > 0).all()
    before = model.positions.detach().clone()
    torch.optim.Adam(model.parameters(), lr=1e-3).step()
    assert torch.equal(model.positions[longest:], before[longest:])
    assert not torch.equal(model.positions[:longest], before[:longest])
