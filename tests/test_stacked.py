"""The score-table trainer against autograd through the plain model, and runs of a stack against runs alone."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
import torch
from conftest import ROOT, tiny_spec
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import cross_entropy

from empirics import observe_tables
from empirics.errors import EmpiricsError
from empirics.head import AttentionHead
from empirics.learner import PlainLearner
from empirics.observe import observe
from empirics.observe_tables import observe_by_tables
from empirics.spec import (
    EVALUATION_LENGTHS,
    BucketBias,
    Encoding,
    LearnedPositions,
    LinearBias,
    NoPositions,
    PeriodicRotary,
    RandomizedPositions,
    Rotary,
    RunSpec,
    Sinusoidal,
    run_spec,
    transformer_spec,
)
from empirics.stacked import StackedLearner, bytes_per_run, stack_key
from empirics.table_loss import compiled, exponential
from empirics.tasks import draw_batch, draw_length, targets
from empirics.train import learner_of, train, train_together

ENCODINGS: tuple[Encoding, ...] = (
    Rotary(),
    Rotary(base=50.0),
    PeriodicRotary(moduli=(2, 3)),
    LearnedPositions(),
    LearnedPositions(decay=0.01),
    RandomizedPositions(),
    Sinusoidal(base=300.0),
    LinearBias(slope=0.3),
    BucketBias(buckets=6),
    NoPositions(),
)
KNOBS = ({}, {"heads": 4}, {"attention": "linear"}, {"second_offset": 1, "temperature": 0.5, "heads": 2})


def small(encoding: Encoding, **fields: object) -> RunSpec:
    """A run small enough that every encoding and knob is tried in a moment."""
    return run_spec(encoding=encoding, width=16, vocabulary=7, batch=32, evaluation_sequences=300, **fields)


def name(encoding: Encoding) -> str:
    return f"{encoding.kind}-{getattr(encoding, 'base', '')}{getattr(encoding, 'decay', '')}"


def plain_gradient(model: AttentionHead, generator: torch.Generator) -> tuple[float, dict[str, torch.Tensor]]:
    """Loss and gradient of the next batch by autograd; a decay's part of the gradient with it."""
    spec = model.spec
    batch = draw_batch(spec, spec.batch, draw_length(spec, generator), generator)
    loss = cross_entropy(model(*batch).scores, targets(spec, batch.tokens))
    model.zero_grad()
    loss.backward()
    decay = spec.encoding.decay if isinstance(spec.encoding, LearnedPositions) else 0.0
    return loss.item(), {
        key: weight.grad + (decay * weight.detach() if key == "positions" else 0)
        for key, weight in model.named_parameters()
    }


@pytest.mark.parametrize("knobs", KNOBS, ids=lambda knobs: "-".join(knobs) or "plain")
@pytest.mark.parametrize("encoding", ENCODINGS, ids=name)
def test_loss_gradient_and_step_are_those_of_the_plain_model(encoding: Encoding, knobs: dict) -> None:
    """In float64, over steps of several lengths: the loss, every gradient, and the weights after Adam's step."""
    spec = small(encoding, **knobs)
    stack = StackedLearner([spec.model_copy(update={"seed": 3}), spec], dtype=torch.float64)
    generator = torch.Generator().manual_seed(spec.seed)
    model = AttentionHead(spec, generator).double()
    decay = encoding.decay if isinstance(encoding, LearnedPositions) else 0.0
    groups = [
        {"params": [weight], "weight_decay": decay * (key == "positions")} for key, weight in model.named_parameters()
    ]
    optimizer = torch.optim.Adam(groups, lr=spec.learning_rate)
    for _ in range(4):
        loss, expected = plain_gradient(model, generator)
        assert stack.step()[1].item() == pytest.approx(loss, rel=1e-9)
        optimizer.step()
        for key, gradient in expected.items():
            found = stack.gradient(1)[key]
            assert (found - gradient).abs().max() <= 1e-9 * gradient.abs().max(), key
        weights = stack.weights(1)
        for key, weight in model.named_parameters():
            assert (weights[key] - weight.detach()).abs().max() < 1e-9, key


@pytest.mark.case(29)
@pytest.mark.parametrize("encoding", ENCODINGS, ids=name)
def test_a_run_of_a_stack_is_the_run_alone(encoding: Encoding) -> None:
    """Bit for bit, wherever it stands among runs of other seeds, offsets, temperatures and scalars."""
    spec = small(encoding, seed=5)
    other = {"rope": Rotary(base=7.0), "alibi": LinearBias(slope=2.0), "sinusoidal": Sinusoidal(base=9.0)}
    beside = [small(other.get(encoding.kind, encoding), seed=seed, offset=4, temperature=2.0) for seed in range(3)]
    alone, among = StackedLearner([spec]), StackedLearner([*beside[:2], spec, beside[2]])
    for _ in range(25):
        assert alone.step()[0] == among.step()[2]
    assert all(torch.equal(weight, among.weights(2)[key]) for key, weight in alone.weights(0).items())
    ((_, expected),) = alone.finish()
    assert list(among.finish())[2][1] == expected
    assert not torch.equal(among.weights(0)["query"], among.weights(1)["query"])


@pytest.mark.parametrize("encoding", ENCODINGS, ids=name)
def test_training_in_float32_stays_with_the_plain_trainer(encoding: Encoding) -> None:
    """Rounding parts two trainers slowly: after 200 steps the losses of the same batches are still alike."""
    spec = small(encoding)
    stack, plain = StackedLearner([spec]), PlainLearner(spec)
    losses = np.array([(stack.step().item(), plain.step().item()) for _ in range(200)])
    assert losses[-1, 1] < losses[0, 1] - 0.05
    assert losses[:20, 0] == pytest.approx(losses[:20, 1], rel=1e-5)
    assert losses[:, 0] == pytest.approx(losses[:, 1], rel=2e-2)


@pytest.mark.parametrize("knobs", KNOBS, ids=lambda knobs: "-".join(knobs) or "plain")
@pytest.mark.parametrize("encoding", ENCODINGS, ids=name)
def test_an_evaluation_through_tables_is_what_the_model_does(encoding: Encoding, knobs: dict) -> None:
    spec = small(encoding, **knobs)
    stack = StackedLearner([spec])
    for _ in range(30):
        stack.step()
    generator = torch.Generator()
    generator.set_state(stack.state()[0]["generator"])
    ((model, evaluation),) = stack.finish()
    plain = observe(model, spec.evaluation_lengths, spec.evaluation_sequences, generator)
    for ours, theirs in zip(evaluation, plain, strict=True):
        assert np.array(ours.by_head) == pytest.approx(np.array(theirs.by_head), abs=2e-6)
        assert np.array(ours.attention) == pytest.approx(np.array(theirs.attention), abs=2e-6)
        assert np.array(ours.error_by_head) == pytest.approx(np.array(theirs.error_by_head), abs=2e-6)
        assert np.array(ours.attention_error) == pytest.approx(np.array(theirs.attention_error), abs=2e-6)
        assert abs(ours.accuracy - theirs.accuracy) <= 1.5 / spec.evaluation_sequences


def rounding(model: AttentionHead, length: int) -> float:
    """By how much two float32 routes to an attention may differ, relatively.

    A logit is a product of head_width lanes, each of two sums of width terms, turned; a sum of n terms rounds by n
    units 2^-24 of the sum of their sizes. An attention is off by twice what its logits are, and a sum over the length.
    """
    spec, scale = model.spec, model.spec.temperature / math.sqrt(model.spec.head_width)
    inputs = model.embedding.detach().abs()
    asked, keys = inputs @ model.query.detach().abs().T, inputs @ model.key.detach().abs().T
    logit = (2 * spec.width + spec.head_width + 8) * 2 * scale * (asked @ keys.T).max().item()
    return 2.0**-24 * 2 * (2 * logit + length + 6)


@pytest.mark.parametrize("knobs", [{}, {"heads": 2}, {"heads": 2, "second_offset": 1}])
def test_an_observation_by_tables_is_that_of_the_model(knobs: dict, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same draws, which come in parts: accuracy exactly, attention and its errors to rounding; 2048 tokens too."""
    model = train(small(Rotary(), steps=500, learning_rate=3e-3, **knobs)).model
    lengths, sequences = (12, 48, 2048), 170
    ours, theirs = (torch.Generator().manual_seed(4) for _ in range(2))
    plain = observe(model, lengths, sequences, theirs)
    monkeypatch.setattr(observe_tables, "_PART_TOKENS", 5000)
    monkeypatch.setattr(observe_tables, "observe", None)
    seen = observe_by_tables(model, lengths, sequences, ours)
    assert torch.equal(ours.get_state(), theirs.get_state())
    for one, other in zip(seen, plain, strict=True):
        relative = rounding(model, one.length)
        assert relative < 1e-2
        assert (one.length, one.sequences, one.offset) == (other.length, other.sequences, other.offset)
        assert one.accuracy == other.accuracy
        assert np.array(one.by_head) == pytest.approx(np.array(other.by_head), rel=relative)
        assert np.array(one.attention) == pytest.approx(np.array(other.attention), rel=relative)
        # A standard error moves by no more than the attention of the sequences does, which is 1 at most.
        off = relative / math.sqrt(sequences - 1)
        assert np.array(one.error_by_head) == pytest.approx(np.array(other.error_by_head), abs=off)
        assert np.array(one.attention_error) == pytest.approx(np.array(other.attention_error), abs=off)
    assert seen[0].accuracy > 0.8, "a model that has learnt, whose attention is not flat"


def test_an_observation_by_tables_refuses_what_the_plain_one_does() -> None:
    model = AttentionHead(small(Rotary()), torch.Generator().manual_seed(0))
    with pytest.raises(EmpiricsError, match="length 2 holds no token K = 2 back"):
        observe_by_tables(model, [2], 100, torch.Generator())
    with pytest.raises(EmpiricsError, match="cannot be observed: give 2 sequences or more"):
        observe_by_tables(model, [16384], 1 << 20, torch.Generator())


@settings(max_examples=40, deadline=None)
@given(
    field=st.sampled_from(["width", "heads", "vocabulary", "batch", "steps", "train_lengths", "attention"]),
    free=st.sampled_from(
        [
            {"seed": 9},
            {"offset": 3},
            {"temperature": 3.0},
            {"encoding": Rotary(base=2.0)},
            {"penalty": {"weight": 1.0, "reach": 9}},
        ]
    ),
)
def test_runs_of_one_shape_share_a_key_and_no_others(field: str, free: dict) -> None:
    spec = run_spec()
    values = {"width": 32, "heads": 2, "train_lengths": (4, 12), "attention": "linear"}
    assert stack_key(spec) == stack_key(run_spec(**free))
    if field == "attention":
        free = {name: value for name, value in free.items() if name != "penalty"}
    assert stack_key(spec) != stack_key(run_spec(**free, **{field: values.get(field, 30)}))


def test_a_vocabulary_too_large_for_tables_takes_the_sequence_path() -> None:
    """The rule of `stack_key`, at its edge: with L = 16, B = 256, d = 64 the two ways cost the same near m = 158."""
    assert stack_key(run_spec(vocabulary=158)).stacks and not stack_key(run_spec(vocabulary=159)).stacks
    large = tiny_spec(vocabulary=1000)
    assert isinstance(learner_of([large]), PlainLearner) and isinstance(learner_of([tiny_spec()]), StackedLearner)
    (run,) = train_together([large])
    assert run.model.embedding.shape[0] == 1000
    assert not stack_key(transformer_spec()).stacks


def test_every_kind_of_encoding_is_held_against_the_plain_model() -> None:
    """A kind that the tables do not know would train in silence as no positions."""
    kinds = {kind.model_fields["kind"].default for kind in get_args(get_args(Encoding)[0])}
    assert {encoding.kind for encoding in ENCODINGS} == kinds


def test_an_evaluation_that_tables_do_not_pay_for_takes_the_plain_path() -> None:
    """The same stream and the same numbers on both sides of the rule: 48 m^2 entries against 48 x 48 tokens."""
    for vocabulary, sequences in ((6, 48), (8, 48)):
        stack = StackedLearner(
            [small(Rotary()).model_copy(update={"vocabulary": vocabulary, "evaluation_sequences": sequences})]
        )
        generator = torch.Generator()
        generator.set_state(stack.state()[0]["generator"])
        ((model, evaluation),) = stack.finish()
        plain = observe(model, EVALUATION_LENGTHS, sequences, generator)
        assert [seen.accuracy for seen in evaluation] == [seen.accuracy for seen in plain]
        assert (evaluation[-1].attention == plain[-1].attention) == (vocabulary == 8)


def test_runs_that_cannot_train_together_are_refused() -> None:
    with pytest.raises(EmpiricsError, match="2 runs of more than one shape"):
        learner_of([tiny_spec(), tiny_spec(width=32)])
    with pytest.raises(EmpiricsError, match="train alone, got 2"):
        learner_of([tiny_spec(vocabulary=1000), tiny_spec(vocabulary=1000, seed=1)])
    for device in ("cuda:7", "meta", "abacus"):
        with pytest.raises(EmpiricsError, match=f"device '{device}' cannot be used here .*: give cpu"):
            learner_of([tiny_spec()], device)
    assert isinstance(learner_of([tiny_spec()], "cpu:0"), StackedLearner)


def test_a_stack_of_64_runs_is_far_below_a_gigabyte() -> None:
    """The estimate by which stacks are cut holds what the arrays of a stack take."""
    stack = StackedLearner([run_spec(seed=seed) for seed in range(64)])
    held = sum(value.nbytes for value in vars(stack).values() if isinstance(value, np.ndarray))
    assert held == 64 * bytes_per_run(run_spec()) < 2**30 / 50


BITS = """
import hashlib
from empirics.spec import run_spec
from empirics.train import train
run = train(run_spec(steps=100, batch=64, width=16, vocabulary=16, evaluation_sequences=64))
print(hashlib.sha256(b"".join(weight.numpy().tobytes() for weight in run.model.state_dict().values())).hexdigest())
"""


@pytest.mark.slow
@pytest.mark.case(29)
def test_the_process_that_compiles_has_the_bits_of_those_that_load(tmp_path: Path) -> None:
    """Sums may be reordered by the compiler; so no function may be compiled in two ways, alone and for its caller."""
    environment = dict(os.environ) | {"NUMBA_CACHE_DIR": str(tmp_path)}
    command = [sys.executable, "-c", BITS]
    first, second = (subprocess.check_output(command, cwd=ROOT, env=environment) for _ in range(2))
    assert any(tmp_path.rglob("*.nbc")) and first == second


def test_the_compiled_exponential_is_exact_to_two_units() -> None:
    @compiled
    def exponentials(values):  # type: ignore[no-untyped-def]
        found = np.empty_like(values)
        for i in range(len(values)):
            found[i] = exponential(values[i])
        return found

    values = -np.geomspace(1e-9, 87, 200_001).astype(np.float32)
    exact = np.exp(values.astype(np.float64))
    assert (np.abs(exponentials(values) - exact) / np.spacing(exact.astype(np.float32))).max() < 2
    ends = exponentials(np.array([0, -200, -np.inf, np.nan], dtype=np.float32))
    assert ends[0] == 1 and np.isnan(ends[3])
    assert ends[1:3] == pytest.approx(np.exp(-87.0), rel=1e-6), (
        "below, e^-87: nothing beside the 1 of the largest logit"
    )
    assert exponentials(np.array([-3.0])) == np.exp(-3.0)
    with pytest.raises(NotImplementedError):
        exponential(0.0)
