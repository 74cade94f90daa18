"""Means written into weights: what is asked for arrives, what is not asked for stays, and what cannot be is said."""

from __future__ import annotations

import copy
import hashlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import tiny_spec
from torch import nn

from bridge.sources.run import heads_of_run
from empirics.edit import constant_direction, edited, means, norm_direction, shift_block, write_means
from empirics.errors import EmpiricsError
from empirics.head import AttentionHead
from empirics.means import Means
from empirics.run import Run
from empirics.spec import LearnedPositions, LinearBias, RunSpec, run_spec, transformer_spec
from empirics.store import Store, load_run
from empirics.sweep import sweep
from empirics.train import learner_of, train
from empirics.transformer import Transformer

UNIT = 2.0**-24
"""Half a unit in the last place of 1 in float32: what rounding a weight costs, relatively."""
EPSILON = 2.0**-52
SHA = "0" * 64


def float64(weight: torch.Tensor) -> np.ndarray:
    return weight.detach().numpy().astype(np.float64)


def model_of(spec: RunSpec) -> AttentionHead:
    return AttentionHead(spec, torch.Generator().manual_seed(spec.seed))


def drawn_means(width: int, seed: int = 0) -> Means:
    query, key = np.random.default_rng(seed).normal(size=(2, width)) * 3
    return Means(query=tuple(query.tolist()), key=tuple(key.tolist()))


@pytest.mark.parametrize("tokens", [1, 20, 63, 64])
def test_the_constant_direction_is_the_least_one(tokens: int) -> None:
    """Against the normal equations: e = X^T y with X X^T y = 1 lies in the rows of X, so that none is shorter."""
    inputs = np.random.default_rng(tokens).normal(size=(tokens, 64)).astype(np.float32).astype(np.float64)
    direction = constant_direction(inputs)
    expected = inputs.T @ np.linalg.solve(inputs @ inputs.T, np.ones(tokens))
    # The normal equations square the condition number, and are the less exact of the two.
    tolerance = 64 * EPSILON * np.linalg.cond(inputs) ** 2 * np.linalg.norm(expected)
    assert np.abs(direction - expected).max() <= tolerance < 1e-2 * np.abs(expected).max()


def test_more_tokens_than_dimensions_have_no_constant_direction() -> None:
    """65 tokens in 64 dimensions; unless what is more says the same again, to the rounding of float64."""
    inputs = np.random.default_rng(0).normal(size=(65, 64))
    with pytest.raises(EmpiricsError, match=r"all 65 tokens alike in 64 dimensions, the best is off by 0\.\d+: give"):
        constant_direction(inputs)
    inputs[64] = inputs[3]
    assert np.abs(inputs @ constant_direction(inputs) - 1).max() < 1e-12
    inputs[64] *= 1 + 1e-9
    with pytest.raises(EmpiricsError, match=r"the best is off by \de-10"):
        constant_direction(inputs)


@pytest.mark.parametrize("knobs", [{}, {"heads": 4}, {"encoding": LinearBias()}, {"second_offset": 1, "heads": 2}])
def test_written_means_are_those_of_the_edited_model(knobs: dict) -> None:
    """Token by token: means arrive, residuals stay, both to the rounding of the weights to float32."""
    spec = run_spec(width=16, vocabulary=7, **knobs)
    model = model_of(spec)
    before, asked = copy.deepcopy(model), drawn_means(16)
    write_means(model, asked)
    inputs = float64(model.embedding)
    content, asking = inputs[:7], inputs[7:] if spec.second_offset else inputs[:7]
    for weight, old, mean, pool in (
        (model.query, before.query, asked.query, asking),
        (model.key, before.key, asked.key, content),
    ):
        new, past = pool @ float64(weight).T, pool @ float64(old).T
        # Each weight is rounded once: |W' x - exact| <= unit |W'| |x|; float64 adds less than a thousandth of that.
        bound = 1.001 * UNIT * np.abs(pool) @ np.abs(float64(weight)).T
        assert (np.abs(new.mean(axis=0) - mean) <= bound.mean(axis=0)).all()
        residual, expected = new - new.mean(axis=0), past - past.mean(axis=0)
        assert (np.abs(residual - expected) <= bound + bound.mean(axis=0)).all()
        assert np.abs(new - past).max() > 1, "the edit is no small one"
    for name, weight in model.named_parameters():
        assert torch.equal(weight, before.get_parameter(name)) == (name not in ("query", "key")), name
    held = means(model)
    assert held.query == pytest.approx(asked.query, abs=1e-5) and held.key == pytest.approx(asked.key, abs=1e-5)


def test_the_edit_is_of_rank_one() -> None:
    """The second singular value of W' - W is what rounding leaves of it, the first is the edit."""
    model = model_of(run_spec())
    before = float64(model.query)
    write_means(model, drawn_means(64))
    change = float64(model.query) - before
    first, second, *_ = np.linalg.svd(change, compute_uv=False)
    assert second <= UNIT * np.linalg.norm(float64(model.query)) < 1e-5 * first


def test_means_are_those_of_the_theory() -> None:
    """The theory takes them head by head from what a run holds."""
    run = train(tiny_spec(heads=2))
    carriers = [head.carrier() for head in heads_of_run(run)]
    found = means(run.model)
    assert np.array(found.query) == pytest.approx(np.concatenate([c.query_mean for c in carriers]), abs=1e-12)
    assert np.array(found.key) == pytest.approx(np.concatenate([c.key_mean for c in carriers]), abs=1e-12)


def test_a_model_that_is_given_its_own_means_keeps_its_bits() -> None:
    model = model_of(run_spec())
    before = copy.deepcopy(model)
    write_means(model, means(model))
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), before.parameters(), strict=True))


def test_what_cannot_be_written_is_said_and_leaves_the_model() -> None:
    learned = model_of(run_spec(encoding=LearnedPositions()))
    with pytest.raises(EmpiricsError, match=r"adds positions to its embedding.*: give a rotary run"):
        means(learned)
    with pytest.raises(EmpiricsError, match="adds positions to its embedding"):
        write_means(learned, drawn_means(64))
    large = model_of(run_spec(width=8, vocabulary=9))
    before = copy.deepcopy(large)
    with pytest.raises(EmpiricsError, match="no direction shifts all 9 tokens alike in 8 dimensions"):
        write_means(large, drawn_means(8))
    with pytest.raises(
        EmpiricsError, match=r"a mean query of 6 lanes and a mean key of 6 do not fit .*: give 8 of each"
    ):
        write_means(large, drawn_means(6))
    assert all(torch.equal(a, b) for a, b in zip(large.parameters(), before.parameters(), strict=True))


def test_an_edited_run_knows_its_parent_and_its_task(tmp_path: Path) -> None:
    """Parent by id and checksum; stored and read again; the parent as it was; an edit of an edit."""
    store, spec = Store.open(tmp_path), tiny_spec(steps=1)
    parent = train(spec)
    before = copy.deepcopy(parent.model)
    path = store.save(parent)
    sha256 = hashlib.sha256((path / "weights.safetensors").read_bytes()).hexdigest()
    moved = edited(parent, sha256, drawn_means(64), offset=9)
    assert moved.spec.id.startswith("rope-edited-k9-d64-seed0-") and moved.model.spec == moved.spec
    assert moved.spec.edit is not None and (moved.spec.edit.parent, moved.spec.edit.sha256) == (spec.id, sha256)
    assert (moved.history, moved.evaluation, moved.seconds, moved.learner) == ((), (), 0, "edit")
    assert all(torch.equal(a, b) for a, b in zip(parent.model.parameters(), before.parameters(), strict=True))
    assert parent.spec == parent.model.spec == spec
    held = load_run(store.save(replace(moved, evaluation=parent.evaluation)))
    assert isinstance(held, Run) and (held.spec, held.learner) == (moved.spec, "edit")
    assert torch.equal(held.model.query, moved.model.query) and not torch.equal(held.model.query, before.query)
    again = edited(moved, SHA, drawn_means(64, seed=1))
    assert again.spec.edit is not None and again.spec.edit.parent == moved.spec.id and again.spec.offset == 9
    assert again.spec.id != moved.spec.id


def test_an_edit_that_no_run_can_have_is_refused_in_one_line() -> None:
    parent = train(tiny_spec(steps=0))
    for arguments, message in (
        (("12ab", drawn_means(64)), "edit.sha256: String should match pattern"),
        ((SHA, drawn_means(32)), "a mean query of 32 lanes and a mean key of 32 do not fit width 64: give 64 of each"),
        ((SHA, drawn_means(64), -1), "offset: Input should be greater than or equal to 0"),
    ):
        with pytest.raises(EmpiricsError, match=message) as caught:
            edited(parent, *arguments)
        assert "\n" not in str(caught.value)
    assert edited(parent, SHA, drawn_means(64), 11).spec.offset == 11, "beyond the trained lengths, which begin at 8"
    for offset, lengths in ((12, (16, 20, 24, 32, 40, 48)), (47, (48,)), (48, (64,))):
        assert edited(parent, SHA, drawn_means(64), offset).spec.evaluation_lengths == lengths
    for knobs in ({"second_offset": 1}, {"encoding": LearnedPositions()}):
        with pytest.raises(EmpiricsError, match="edit needs"):
            edited(train(tiny_spec(steps=0, **knobs)), SHA, drawn_means(64))


def test_an_edited_run_is_not_trained(tmp_path: Path) -> None:
    """Nor does it stop the runs beside it in a sweep."""
    spec = edited(train(tiny_spec(steps=0)), SHA, drawn_means(64)).spec
    message = f"run {spec.id} was made from run {tiny_spec(steps=0).id} by an edit, it is not trained"
    with pytest.raises(EmpiricsError, match=message):
        learner_of([spec])
    store = Store.open(tmp_path)
    with pytest.raises(EmpiricsError, match=message):
        sweep([spec, tiny_spec(steps=0)], store)
    assert [path.name for path in store.paths()] == [tiny_spec(steps=0).id]


def trained_like(seed: int = 0) -> Transformer:
    """A small transformer whose norms have gains and biases, as training gives them."""
    generator = torch.Generator().manual_seed(seed)
    model = Transformer(transformer_spec(width=16, heads=2, vocabulary=9, offset=2), generator)
    for norm in (module for module in model.modules() if isinstance(module, nn.LayerNorm)):
        nn.init.normal_(norm.weight, mean=1, std=0.3, generator=generator)
        nn.init.normal_(norm.bias, mean=0.2, std=0.3, generator=generator)
    return model


def test_queries_and_keys_of_a_block_are_shifted_and_nothing_else_is() -> None:
    """Every token at every place, against an untouched copy, both run in float64."""
    model = trained_like()
    before = copy.deepcopy(model)
    query, key = (np.random.default_rng(seed).normal(size=16) for seed in range(2))
    key[8:] = 0
    shift_block(model.blocks[1], query, key)
    stay = [
        name for name, _ in model.named_parameters() if name not in ("blocks.1.query.weight", "blocks.1.key.weight")
    ]
    assert all(torch.equal(model.get_parameter(name), before.get_parameter(name)) for name in stay)
    assert torch.equal(model.blocks[1].key.weight[8:], before.blocks[1].key.weight[8:]), (
        "zeros are for a head that stays"
    )
    tokens = torch.randint(0, 9, (40, 12), generator=torch.Generator().manual_seed(1))
    new, old = (one.double().trace(tokens).layers[1] for one in (model, before))
    assert torch.equal(new.inputs, old.inputs)
    size = new.inputs.abs().flatten(0, 1).detach().numpy()
    for found, past, shift, block in ((new.query, old.query, query, "query"), (new.key, old.key, key, "key")):
        change = (found - past).transpose(1, 2).flatten(2).flatten(0, 1).detach().numpy()
        weight = model.get_parameter(f"blocks.1.{block}.weight").detach().numpy()
        bound = 1.001 * UNIT * size @ np.abs(weight).T
        assert (np.abs(change - shift) <= bound).all() and np.abs(shift).max() > 1e3 * bound.max()


def test_a_norm_without_a_constant_direction_is_refused() -> None:
    norm = trained_like().blocks[0].attention_norm
    assert np.isfinite(norm_direction(norm)).all()
    with torch.no_grad():
        norm.weight[[3, 5]] = 0
    with pytest.raises(EmpiricsError, match="2 gains of the layer norm are 0"):
        norm_direction(norm)
    with pytest.raises(EmpiricsError, match=r"add up to 0, so that no direction is constant.*: give a trained model"):
        norm_direction(nn.LayerNorm(16))
    balanced = nn.LayerNorm(3)
    for last, refused in ((-0.3, True), (-0.2999, False)):
        with torch.no_grad():
            balanced.bias.copy_(torch.tensor([0.1, 0.2, last]))
        assert float64(balanced.bias).sum() != 0, "what float32 left of a sum is none"
        if refused:
            with pytest.raises(EmpiricsError, match="add up to"):
                norm_direction(balanced)
        else:
            assert np.isfinite(norm_direction(balanced)).all()
