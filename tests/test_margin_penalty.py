"""The penalty on the margin: against plain sums and the theory, in both trainers, and what it does to a run."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import tiny_spec
from torch.nn.functional import cross_entropy

from bridge.sources.run import heads_of_run
from empirics.edit import means
from empirics.errors import EmpiricsError
from empirics.head import AttentionHead
from empirics.learner import PlainLearner, initial
from empirics.margin_penalty import MarginLoss
from empirics.means import MarginPenalty, Means
from empirics.spec import Rotary, RunSpec, run_spec
from empirics.stacked import StackedLearner, stack_key
from empirics.store import Store
from empirics.sweep import sweep
from empirics.tasks import draw_batch, draw_length, targets
from empirics.train import AnyRun, Checkpoint, Failure, Run, train, train_together
from theory.dilution import mean_profile_law
from theory.kernel import carrier_profile

START = Means(query=tuple(np.linspace(-1, 1, 16).tolist()), key=tuple(np.linspace(2, -1, 16).tolist()))


def small(**fields: object) -> RunSpec:
    """A run with a penalty that takes a moment."""
    penalty = MarginPenalty(weight=0.7, reach=50)
    given = {"width": 16, "vocabulary": 7, "batch": 32, "evaluation_sequences": 64, "penalty": penalty}
    return run_spec(**given | fields)


def model_of(spec: RunSpec) -> AttentionHead:
    """The model of a spec before its first step."""
    return initial(spec, torch.Generator().manual_seed(spec.seed))


def weights_of(model: AttentionHead) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return model.embedding, model.query, model.key


def summed(model: AttentionHead) -> float:
    """The penalty of a model by rotation matrices, key by key."""
    spec = model.spec
    assert spec.penalty is not None and isinstance(spec.encoding, Rotary)
    e, q, k = (weight.detach().double().numpy() for weight in weights_of(model))
    lanes, found = spec.width // spec.heads, 0.0
    for head in range(spec.heads):
        rows = slice(head * lanes, (head + 1) * lanes)
        query, key = (np.mean([matrix[rows] @ x for x in e], axis=0) for matrix in (q, k))
        phi = []
        for back in range(spec.penalty.reach):
            turned = np.zeros(lanes)
            for i in range(lanes // 2):
                a = -back * spec.encoding.base ** (-2 * i / lanes)
                turned[2 * i] = math.cos(a) * key[2 * i] - math.sin(a) * key[2 * i + 1]
                turned[2 * i + 1] = math.sin(a) * key[2 * i] + math.cos(a) * key[2 * i + 1]
            phi.append(spec.temperature / math.sqrt(lanes) * float(query @ turned))
        found += math.log(sum(math.exp(one - phi[spec.offset]) for one in phi)) / spec.heads
    return spec.penalty.weight * found


@pytest.mark.parametrize("knobs", [{}, {"heads": 4, "offset": 5}, {"temperature": 3.0, "encoding": Rotary(base=50.0)}])
def test_the_penalty_is_the_sum_of_its_docstring(knobs: dict) -> None:
    spec = small(start=START, **knobs)
    model = model_of(spec)
    assert summed(model) > 0.1
    exact = MarginLoss(spec, dtype=torch.float64)(*(weight.double() for weight in weights_of(model)))
    assert exact.item() == pytest.approx(summed(model), rel=1e-12)
    # float32: a mean of 7 rows and a product of 16 lanes on either side, then products of pairs with their turns and a
    # sum of up to 16 of them, twice (a logit and the target's); at last 50 exponentials. Each rounds by 2^-24.
    e, q, k = (weight.detach().abs().double() for weight in weights_of(model))
    size = spec.temperature / math.sqrt(spec.head_width) * ((q @ e.mean(dim=0)) @ (k @ e.mean(dim=0))).item()
    bound = 2.0**-24 * 0.7 * (2 * (2 * (7 + 16) + 6 + 16) * 2 * size + 50 + summed(model))
    assert bound < 1e-3 * summed(model)
    assert MarginLoss(spec)(*weights_of(model)).item() == pytest.approx(summed(model), abs=bound)


def test_the_penalty_is_the_law_of_the_mean_profile() -> None:
    """weight 1, one head: -log of the attention that the theory's law gives the target at the length `reach`."""
    run = train(tiny_spec(steps=60, penalty=MarginPenalty(weight=1.0, reach=300)))
    (head,) = heads_of_run(run)
    law = mean_profile_law(carrier_profile(head.carrier(), 300), 2, [300])
    found = MarginLoss(run.spec, dtype=torch.float64)(*(weight.double() for weight in weights_of(run.model)))
    assert found.item() == pytest.approx(-math.log(law.item()), rel=1e-10)


@pytest.mark.parametrize("heads", [1, 2])
def test_its_gradient_is_that_of_finite_differences(heads: int) -> None:
    """Along random directions in all weights at once, float64: central differences are exact to h^2."""
    spec = small(heads=heads, start=START)
    penalty = MarginLoss(spec, dtype=torch.float64)
    weights = [weight.detach().double().requires_grad_() for weight in weights_of(model_of(spec))]
    gradient = torch.autograd.grad(penalty(*weights), weights)
    generator, step = torch.Generator().manual_seed(0), 1e-5
    for _ in range(5):
        ways = [torch.randn(weight.shape, generator=generator, dtype=torch.float64) for weight in weights]
        ends = [penalty(*(w + sign * step * way for w, way in zip(weights, ways, strict=True))) for sign in (1, -1)]
        expected = sum((one * way).sum() for one, way in zip(gradient, ways, strict=True))
        assert ((ends[0] - ends[1]) / (2 * step)).item() == pytest.approx(expected.item(), rel=1e-6)


@pytest.mark.parametrize("knobs", [{}, {"heads": 4}, {"start": START}])
def test_the_stacked_step_is_that_of_autograd(knobs: dict) -> None:
    """In float64: the cross-entropy alone is told, gradient and step are those of the sum; a run without stays so."""
    spec = small(**knobs)
    stack = StackedLearner([spec.model_copy(update={"penalty": None}), spec], dtype=torch.float64)
    generator = torch.Generator().manual_seed(spec.seed)
    plain = model_of(spec).double()
    AttentionHead(spec, generator)
    penalty, optimizer = MarginLoss(spec, dtype=torch.float64), torch.optim.Adam(plain.parameters(), spec.learning_rate)
    for _ in range(4):
        batch = draw_batch(spec, spec.batch, draw_length(spec, generator), generator)
        loss = cross_entropy(plain(*batch).scores, targets(spec, batch.tokens))
        optimizer.zero_grad()
        (loss + penalty(*weights_of(plain))).backward()
        assert stack.step()[1].item() == pytest.approx(loss.item(), rel=1e-9)
        for name, weight in plain.named_parameters():
            assert (stack.gradient(1)[name] - weight.grad).abs().max() <= 1e-9 * weight.grad.abs().max(), name
        optimizer.step()
        for name, weight in plain.named_parameters():
            assert (stack.weights(1)[name] - weight.detach()).abs().max() < 1e-9, name
    assert not torch.equal(stack.weights(0)["query"], stack.weights(1)["query"])


def test_both_trainers_stay_together_in_float32() -> None:
    spec = small(start=START)
    stack, plain = StackedLearner([spec]), PlainLearner(spec)
    losses = np.array([(stack.step().item(), plain.step().item()) for _ in range(200)])
    assert losses[-1, 1] < losses[0, 1] - 0.05
    assert losses[:20, 0] == pytest.approx(losses[:20, 1], rel=1e-5)
    assert losses[:, 0] == pytest.approx(losses[:, 1], rel=2e-2)


def test_runs_of_one_stack_may_differ_in_start_and_penalty() -> None:
    """Bit for bit the run alone, among runs with another penalty, another start, or neither."""
    spec = small(seed=5, start=START)
    other = MarginPenalty(weight=3.0, reach=9)
    beside = [small(penalty=None), small(penalty=other), small(start=Means(query=START.key, key=START.query))]
    assert {stack_key(one) for one in beside} == {stack_key(spec)} and stack_key(spec).stacks
    alone, among = StackedLearner([spec]), StackedLearner([*beside[:2], spec, beside[2]])
    for _ in range(25):
        assert alone.step()[0] == among.step()[2]
    assert all(torch.equal(weight, among.weights(2)[name]) for name, weight in alone.weights(0).items())
    untouched = StackedLearner([beside[0]])
    for _ in range(25):
        untouched.step()
    assert all(torch.equal(weight, among.weights(0)[name]) for name, weight in untouched.weights(0).items())


@pytest.mark.parametrize("learner", [PlainLearner, lambda spec: StackedLearner([spec])])
def test_a_start_is_written_and_the_stream_stays(learner: object) -> None:
    """Before the first step, with the draws of the run without it."""
    spec = small(start=START, penalty=None)
    ((with_start,), (without,)) = (learner(one).state() for one in (spec, small(penalty=None)))  # type: ignore[operator]
    assert torch.equal(with_start["generator"], without["generator"])
    for name in ("embedding", "value", "readout"):
        assert torch.equal(with_start[f"weights.{name}"], without[f"weights.{name}"])
    model = AttentionHead(spec)
    model.load_state_dict({name: with_start[f"weights.{name}"] for name, _ in model.named_parameters()})
    assert means(model).query == pytest.approx(START.query, abs=1e-6)
    assert means(model).key == pytest.approx(START.key, abs=1e-6)
    assert means(model_of(small(penalty=None))).query != pytest.approx(START.query, abs=0.1)


CUT = {"steps": 150, "width": 16, "vocabulary": 7, "start": START, "penalty": MarginPenalty(weight=0.5, reach=30)}


@pytest.mark.parametrize("batch", [2, 64], ids=["plain", "stacked"])
def test_a_run_that_was_cut_ends_with_the_same_bits(batch: int) -> None:
    """From the checkpoint at step 50, through either learner."""
    kept: list[Checkpoint] = []
    spec = tiny_spec(**CUT, batch=batch)
    (whole,) = train_together([spec], keep=kept.append, keep_seconds=0)
    assert kept[0].step == 50 and kept[0].learner == ("plain" if batch == 2 else "stacked")
    (resumed,) = train_together([spec], kept[:1])
    assert_same_bits(whole, resumed)


def assert_same_bits(one: AnyRun | Failure, other: AnyRun | Failure) -> None:
    assert isinstance(one, Run) and isinstance(other, Run)
    assert (one.history, one.evaluation) == (other.history, other.evaluation)
    for name, weight in one.model.state_dict().items():
        assert torch.equal(weight, other.model.state_dict()[name]), name


@pytest.mark.parametrize("batch", [2, 64], ids=["plain", "stacked"])
def test_the_history_is_the_cross_entropy(batch: int) -> None:
    """The first batch meets the same weights: the penalty changes what follows, not what is told."""
    losses = [
        train(tiny_spec(width=16, vocabulary=7, steps=1, batch=batch, penalty=penalty)).history[0].loss
        for penalty in (None, MarginPenalty(weight=5.0, reach=30))
    ]
    assert losses[0] == losses[1]


@pytest.mark.parametrize("batch", [2, 64], ids=["plain", "stacked"])
def test_a_penalty_that_is_not_finite_is_a_failed_run(batch: int, tmp_path: Path) -> None:
    """Alone: its loss is finite, and the run beside it is stored."""
    given = {"width": 16, "vocabulary": 7, "batch": batch}
    failing = tiny_spec(**given, penalty=MarginPenalty(weight=1e300, reach=30))
    good = tiny_spec(**given, penalty=MarginPenalty(weight=1.0, reach=30))
    store = Store.open(tmp_path)
    with pytest.raises(EmpiricsError, match=r"the loss is inf at step 1 of 20; the run is not stored"):
        sweep([failing, good], store)
    assert [path.name for path in store.paths()] == [good.id]


def test_a_penalised_run_keeps_its_margin_at_long_lags() -> None:
    """phi(-K) less the highest phi from 16 to 199 tokens back, K = 2; both runs have learnt the task."""
    margins, losses = [], []
    for penalty in (None, MarginPenalty(weight=0.3, reach=200)):
        spec = tiny_spec(steps=600, batch=64, width=32, vocabulary=8, learning_rate=3e-3, penalty=penalty)
        run = train(spec)
        (head,) = heads_of_run(run)
        profile = carrier_profile(head.carrier(), 200)
        margins.append(profile[2] - profile[16:].max())
        losses.append(run.history[-1].loss)
    assert max(losses) < 0.5 * math.log(8)
    assert margins[0] < 1 < 5 < margins[1]
