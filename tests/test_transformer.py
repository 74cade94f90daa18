"""The transformer of figure 6: its pass, its task, its training and what is observed of it, each by another route."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import erf, log_softmax
from torch import Tensor, nn

from empirics import observe_transformer as observation
from empirics.errors import EmpiricsError
from empirics.learner import State
from empirics.observe_transformer import TransformerObservation, carrier_fraction, observe_transformer
from empirics.spec import LearnedPositions, Rotary, TransformerSpec, transformer_spec
from empirics.tasks import draw_batch, draw_length
from empirics.transformer import Transformer, shift_targets
from empirics.transformer_learner import TransformerLearner

ENCODINGS = [Rotary(base=50.0), LearnedPositions(rows=12)]
TINY = {
    "width": 12,
    "heads": 2,
    "vocabulary": 5,
    "train_lengths": (5, 8),
    "batch": 16,
    "offset": 2,
    "evaluation_lengths": (6, 11),
    "evaluation_sequences": 40,
    "profile_sequences": 24,
    "learning_rate": 1e-3,
}


def small(**fields: Any) -> TransformerSpec:
    """Two layers of two heads, small enough for loops."""
    return transformer_spec(**(TINY | fields))


def built(spec: TransformerSpec, seed: int = 0) -> Transformer:
    """The untrained model in float64, so that another route agrees to rounding."""
    return Transformer(spec, torch.Generator().manual_seed(seed)).double()


def some_tokens(spec: TransformerSpec, sequences: int, length: int, seed: int = 1) -> Tensor:
    return torch.randint(0, spec.vocabulary, (sequences, length), generator=torch.Generator().manual_seed(seed))


# The pass.


def scores_in_loops(model: Transformer, sequence: list[int]) -> tuple[np.ndarray, np.ndarray]:
    """Scores [position, token] and attention [layer, head, query, key] of one sequence, in numpy, pairs as complex."""
    spec, weight = model.spec, {name: value.detach().numpy() for name, value in model.named_parameters()}
    lanes, length = spec.head_width, len(sequence)
    stream = weight["embedding.weight"][sequence]
    if isinstance(spec.encoding, LearnedPositions):
        stream = stream + weight["positions.weight"][:length]
    attention = np.zeros((spec.layers, spec.heads, length, length))
    for layer in range(spec.layers):
        block = {name.removeprefix(f"blocks.{layer}."): value for name, value in weight.items()}
        inputs = normalised(stream, block, "attention_norm")
        mixed = np.zeros_like(stream)
        for head in range(spec.heads):
            own = slice(head * lanes, (head + 1) * lanes)
            query, key, value = (inputs @ block[f"{name}.weight"][own].T for name in ("query", "key", "value"))
            for n in range(length):
                logits = np.array([logit(spec, query[n], key[t], n, t) for t in range(n + 1)])
                share = np.exp(logits - logits.max())
                attention[layer, head, n, : n + 1] = share / share.sum()
                mixed[n, own] = attention[layer, head, n] @ value
        stream = stream + mixed @ block["output.weight"].T
        hidden = normalised(stream, block, "mlp_norm") @ block["mlp.0.weight"].T + block["mlp.0.bias"]
        hidden = hidden * (1 + erf(hidden / math.sqrt(2))) / 2
        stream = stream + hidden @ block["mlp.2.weight"].T + block["mlp.2.bias"]
    scores = normalised(stream, weight, "norm") @ weight["readout.weight"].T + weight["readout.bias"]
    return scores, attention


def normalised(stream: np.ndarray, weight: dict[str, np.ndarray], name: str) -> np.ndarray:
    centred = stream - stream.mean(axis=-1, keepdims=True)
    scaled = centred / np.sqrt((centred**2).mean(axis=-1, keepdims=True) + 1e-5)
    return scaled * weight[f"{name}.weight"] + weight[f"{name}.bias"]


def logit(spec: TransformerSpec, query: np.ndarray, key: np.ndarray, n: int, t: int) -> float:
    """Re sum_i conj(q_i) k_i e^(i (t-n) theta_i) over the pairs of the head, over sqrt(d_head)."""
    q, k = query[0::2] + 1j * query[1::2], key[0::2] + 1j * key[1::2]
    lanes = len(query)
    turn = 0.0
    if isinstance(spec.encoding, Rotary):
        turn = (t - n) * spec.encoding.base ** (-2 * np.arange(lanes // 2) / lanes)
    return float((q.conj() * k * np.exp(1j * turn)).sum().real / math.sqrt(lanes))


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_the_pass_is_that_of_the_formulas(encoding: Rotary | LearnedPositions) -> None:
    spec = small(encoding=encoding)
    model = built(spec)
    with torch.no_grad():
        for parameter in model.parameters():  # norms at 1 and 0 would hide a norm that is left out
            parameter += 0.3 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(2))
    tokens = some_tokens(spec, 3, 7)
    with torch.no_grad():
        trace = model.trace(tokens)
    for row, sequence in enumerate(tokens.tolist()):
        scores, attention = scores_in_loops(model, sequence)
        np.testing.assert_allclose(trace.scores[row].numpy(), scores, rtol=0, atol=1e-12)
        for layer in range(spec.layers):
            np.testing.assert_allclose(trace.layers[layer].attention[row].numpy(), attention[layer], atol=1e-12)
    assert torch.equal(model(tokens), trace.scores)


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_traced_keys_and_queries_are_those_before_they_are_turned(encoding: Rotary | LearnedPositions) -> None:
    model = built(small(encoding=encoding))
    layer = model.trace(some_tokens(model.spec, 2, 6)).layers[1]
    for traced, projection in ((layer.key, model.blocks[1].key), (layer.query, model.blocks[1].query)):
        by_hand = torch.stack([layer.inputs @ part.T for part in projection.weight.chunk(2)], dim=1)
        torch.testing.assert_close(traced, by_hand, rtol=0, atol=1e-13)


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_a_position_sees_what_stands_before_it_and_itself(encoding: Rotary | LearnedPositions) -> None:
    model = built(small(encoding=encoding))
    tokens = some_tokens(model.spec, 4, 8)
    other = tokens.clone()
    other[:, 5] = (other[:, 5] + 1) % model.spec.vocabulary
    changed = (model(tokens) - model(other)).abs().amax(dim=-1)
    assert bool((changed[:, :5] == 0).all())
    assert bool((changed[:, 5:] > 1e-6).all())


def test_rotary_heads_see_offsets_and_learned_positions_do_not() -> None:
    """Lemma 1 in a head of the first layer: among the same tokens attention is shared as before when all move on."""
    moved = {}
    for encoding in ENCODINGS:
        model = built(small(encoding=encoding))
        word = some_tokens(model.spec, 1, 5)
        tokens = torch.cat([torch.zeros(1, 4, dtype=torch.int64), word], dim=1)
        with torch.no_grad():
            early, late = (model.trace(each).layers[0].attention for each in (word, tokens))
        late = late[..., 4:, 4:]
        moved[encoding.kind] = float((late / late.sum(dim=-1, keepdim=True) - early).abs().max())
    assert moved["rope"] < 1e-12
    assert moved["ape"] > 1e-2


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_weights_are_those_of_pytorchs_own_modules_in_the_stated_order(encoding: Rotary | LearnedPositions) -> None:
    spec = small(encoding=encoding)
    model = Transformer(spec, torch.Generator().manual_seed(5))
    with torch.random.fork_rng():
        torch.manual_seed(5)
        d = spec.width
        expected: list[nn.Module] = [nn.Embedding(spec.vocabulary, d)]
        for _ in range(spec.layers):
            expected += [nn.Linear(d, d, bias=False) for _ in range(4)] + [nn.Linear(d, 4 * d), nn.Linear(4 * d, d)]
        expected.append(nn.Linear(d, spec.vocabulary))
        if isinstance(encoding, LearnedPositions):
            expected.append(nn.Embedding(encoding.rows, d))
    drawn = [module for module in model.modules() if isinstance(module, nn.Embedding | nn.Linear)]
    assert len(drawn) == len(expected)
    for ours, theirs in zip(drawn, expected, strict=True):
        for name, parameter in theirs.named_parameters():
            torch.testing.assert_close(ours.get_parameter(name), parameter, rtol=1e-6, atol=1e-7)
    norms = [module for module in model.modules() if isinstance(module, nn.LayerNorm)]
    assert len(norms) == 5
    assert all(bool((norm.weight == 1).all() and (norm.bias == 0).all()) for norm in norms)


def test_a_model_without_generator_draws_nothing() -> None:
    before = torch.get_rng_state()
    Transformer(small())
    assert torch.equal(torch.get_rng_state(), before)


# The task.


@given(length=st.integers(1, 30), offset=st.integers(0, 29))
def test_every_counted_position_asks_for_the_token_k_back(length: int, offset: int) -> None:
    tokens = torch.arange(length)[None]
    targets = shift_targets(tokens, offset)[0].tolist() if offset < length else []
    assert targets == [i - offset for i in range(length) if i - offset >= 0]


# Training.


def equal(left: State, right: State) -> bool:
    return left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("encoding", [*ENCODINGS, LearnedPositions(rows=12, decay=1e-2)])
def test_a_run_that_stops_goes_on_with_the_same_bits(encoding: Rotary | LearnedPositions, precision: str) -> None:
    spec = small(encoding=encoding, precision=precision)
    whole = TransformerLearner(spec)
    losses = [float(whole.step()) for _ in range(8)]
    first = TransformerLearner(spec)
    halves = [float(first.step()) for _ in range(4)]
    states = first.state()
    first.step()  # a state stands apart from the learner it was taken of
    second = TransformerLearner(spec)
    second.restore(states)
    assert equal(second.state()[0], states[0])
    halves += [float(second.step()) for _ in range(4)]
    assert halves == losses
    assert equal(whole.state()[0], second.state()[0])
    assert next(second.finish())[1] == next(whole.finish())[1]
    assert not equal(TransformerLearner(spec).state()[0], states[0])


def test_a_state_is_tensors_in_float32_and_says_the_step() -> None:
    learner = TransformerLearner(small(precision="bfloat16"))
    names = {name for name, _ in learner.model.named_parameters()}
    kinds = ("weights", "step", "exp_avg", "exp_avg_sq")
    for step in (0, 1):
        (state,) = learner.state()
        assert state.keys() == {"generator"} | {f"{kind}.{name}" for kind in kinds for name in names}
        assert {int(state[f"step.{name}"]) for name in names} == {step}
        assert state["generator"].dtype == torch.uint8
        assert {value.dtype for name, value in state.items() if name != "generator"} == {torch.float32}
        learner.step()


def test_the_state_of_another_model_is_refused() -> None:
    learner = TransformerLearner(small())
    before = learner.state()
    with pytest.raises(EmpiricsError, match="the state is not one of run transformer-rope") as caught:
        learner.restore(TransformerLearner(small(width=16)).state())
    assert "\n" not in str(caught.value)
    with pytest.raises(EmpiricsError, match="the state is not one of run"):
        learner.restore(TransformerLearner(small(encoding=LearnedPositions(rows=12))).state())
    assert equal(learner.state()[0], before[0])


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_the_loss_is_the_mean_over_the_positions_that_have_a_target(encoding: Rotary | LearnedPositions) -> None:
    spec = small(encoding=encoding, batch=4, seed=3)
    learner = TransformerLearner(spec)
    generator = torch.Generator().manual_seed(3)
    model = Transformer(spec, generator).double()
    sequences = draw_batch(spec, spec.batch, draw_length(spec, generator), generator).tokens.tolist()
    terms = []
    for sequence in sequences:
        scores, _ = scores_in_loops(model, sequence)
        terms += [-log_softmax(scores[i])[sequence[i - 2]] for i in range(2, len(sequence))]
    assert float(learner.step()) == pytest.approx(np.mean(terms), rel=1e-6)


def test_a_step_is_one_of_adam_on_that_loss() -> None:
    """Adam written out, with the gradient of the same batch in float64."""
    spec = small(seed=4)
    learner = TransformerLearner(spec)
    generator = torch.Generator().manual_seed(4)
    model = Transformer(spec, generator).double()
    first = {name: torch.zeros_like(weight) for name, weight in model.named_parameters()}
    second = {name: torch.zeros_like(weight) for name, weight in model.named_parameters()}
    for step in (1, 2, 3):
        learner.step()
        tokens = draw_batch(spec, spec.batch, draw_length(spec, generator), generator).tokens
        chosen = model(tokens).log_softmax(dim=-1)[:, 2:].gather(2, tokens[:, :-2, None])
        model.zero_grad()
        (-chosen.mean()).backward()
        with torch.no_grad():
            for name, weight in model.named_parameters():
                assert weight.grad is not None
                first[name] = 0.9 * first[name] + 0.1 * weight.grad
                second[name] = 0.999 * second[name] + 0.001 * weight.grad**2
                scale = (second[name] / (1 - 0.999**step)).sqrt() + 1e-8
                weight -= spec.learning_rate * first[name] / (1 - 0.9**step) / scale
    for (name, ours), theirs in zip(learner.model.named_parameters(), model.parameters(), strict=True):
        # Adam's first steps are the sign of the gradient: where that is all rounding, float32 may step the other way.
        close = (ours.double() - theirs).abs() < 1e-5
        assert close.double().mean() > 0.98, name


def test_untrained_rows_stay_and_decay_acts_on_the_table_alone() -> None:
    learners = {
        decay: TransformerLearner(small(encoding=LearnedPositions(rows=12, decay=decay))) for decay in (0.0, 1e-2)
    }
    drawn = learners[0.0].model.positions.weight.detach().clone()
    readout = {}
    for decay, learner in learners.items():
        for _ in range(5):
            learner.step()
        readout[decay] = learner.model.blocks[0].mlp_norm.weight.detach()
    kept, decayed = (learner.model.positions.weight.detach() for learner in learners.values())
    assert torch.equal(kept[8:], drawn[8:])
    assert not bool((kept[:8] == drawn[:8]).any())
    assert bool((decayed[8:].abs() < drawn[8:].abs()).all())
    # Decay of a norm's weight would pull it from 1 by about the learning rate a step; what reaches it through the
    # table is far less.
    assert float((readout[0.0] - readout[1e-2]).abs().max()) < 2e-3


def test_bfloat16_is_that_of_the_products_and_of_nothing_else() -> None:
    seen: dict[str, set[torch.dtype]] = {}
    losses = {}
    for precision in ("float32", "bfloat16"):
        learner = TransformerLearner(small(precision=precision))
        outputs: set[torch.dtype] = set()
        for module in learner.model.modules():
            if isinstance(module, nn.Linear):
                module.register_forward_hook(lambda _m, _i, out, outputs=outputs: outputs.add(out.dtype))
            if isinstance(module, nn.LayerNorm):
                module.register_forward_hook(lambda _m, _i, out: _must_be_float32(out))
        losses[precision] = float(learner.step())
        seen[precision] = outputs
        assert all(weight.dtype == torch.float32 for weight in learner.model.parameters())
    assert seen == {"float32": {torch.float32}, "bfloat16": {torch.bfloat16}}
    assert losses["bfloat16"] != losses["float32"]
    # A product is rounded to 8 bits; scores of order 1 then move by about 1e-2, their mean by less.
    assert losses["bfloat16"] == pytest.approx(losses["float32"], abs=2e-2)


def _must_be_float32(out: Tensor) -> None:
    assert out.dtype == torch.float32


# What is observed.


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_the_observation_is_that_of_loops(encoding: Rotary | LearnedPositions) -> None:
    spec = small(encoding=encoding)
    model = built(spec)
    (short, long) = observe_transformer(model, (6, 11), 40, 24, torch.Generator().manual_seed(9))
    generator = torch.Generator().manual_seed(9)
    for observed, length in ((short, 6), (long, 11)):
        tokens = draw_batch(spec, 40, length, generator).tokens
        passes = [scores_in_loops(model, sequence) for sequence in tokens.tolist()]
        hits = [
            [scores[i].argmax() == sequence[i - 2] for i in range(2, length)]
            for (scores, _), sequence in zip(passes, tokens.tolist(), strict=True)
        ]
        assert observed.accuracy_by_position == pytest.approx(np.mean(hits, axis=0))
        assert observed.accuracy == pytest.approx(np.mean(hits))
        assert observed.accuracy_error == pytest.approx(np.std(np.mean(hits, axis=1), ddof=1) / math.sqrt(40))
        attention = np.array([attention for _, attention in passes[:24]])
        for head in observed.heads:
            own = attention[:, head.layer, head.head]
            for back in range(length):
                each = [np.mean([one[n, n - back] for n in range(max(back, 2), length)]) for one in own]
                assert head.attention[back] == pytest.approx(np.mean(each), rel=1e-9)
                assert head.attention_error[back] == pytest.approx(np.std(each, ddof=1) / math.sqrt(24), abs=1e-12)
        assert [(head.layer, head.head) for head in observed.heads] == [(0, 0), (0, 1), (1, 0), (1, 1)]
        best = max(observed.heads, key=lambda head: head.attention[2])
        assert observed.shift_head == best
        layers = model.trace(tokens[:24]).layers
        for head in observed.heads:
            key = layers[head.layer].key[:, head.head].flatten(0, 1).detach().numpy()
            assert head.key_fraction == pytest.approx((key.mean(0) ** 2).sum() / (key**2).sum(1).mean(), rel=1e-9)
            query = layers[head.layer].query[:, head.head].flatten(0, 1).detach().numpy()
            assert head.query_fraction == pytest.approx((query.mean(0) ** 2).sum() / (query**2).sum(1).mean(), rel=1e-9)


def test_the_carrier_fraction_is_1_for_one_vector_and_0_for_opposite_ones() -> None:
    vector = torch.randn(1, 3, 1, 4, generator=torch.Generator().manual_seed(0))
    same = vector.expand(5, 3, 6, 4)
    torch.testing.assert_close(carrier_fraction([same]), torch.ones(3, dtype=torch.float64))
    torch.testing.assert_close(carrier_fraction([same, -same]), torch.zeros(3, dtype=torch.float64))


def test_chunks_are_not_seen_in_the_observation(monkeypatch: pytest.MonkeyPatch) -> None:
    model = built(small())
    whole = observe_transformer(model, (11,), 40, 24, torch.Generator().manual_seed(9))[0]
    monkeypatch.setattr(observation, "_CHUNK_TOKENS", 33)
    parts = observe_transformer(model, (11,), 40, 24, torch.Generator().manual_seed(9))[0]
    assert parts.accuracy_by_position == whole.accuracy_by_position
    for one, other in zip(parts.heads, whole.heads, strict=True):
        assert one.attention == pytest.approx(other.attention, rel=1e-12)


@pytest.mark.parametrize(
    ("lengths", "sequences", "message"),
    [
        ((), 40, r"lengths \[\] cannot be observed"),
        ((11,), 10, "give 2 profiles or more, as many sequences"),
        ((2,), 40, "length 2 holds no token K = 2 back"),
        ((13,), 40, "length 13 is beyond the 12 learned positions"),
    ],
)
def test_what_cannot_be_observed_is_said_in_a_line(lengths: tuple[int, ...], sequences: int, message: str) -> None:
    model = Transformer(small(encoding=LearnedPositions(rows=12)), torch.Generator().manual_seed(0))
    with pytest.raises(EmpiricsError, match=message) as caught:
        observe_transformer(model, lengths, sequences, 24, torch.Generator())
    assert "\n" not in str(caught.value)


def test_it_learns_the_shift_and_rotary_positions_carry_it_further() -> None:
    """Lengths of 5 to 8 are trained; at 11 a learned position is new and a rotary offset is not."""
    seen: dict[str, TransformerObservation] = {}
    for encoding in (Rotary(), LearnedPositions(rows=12)):
        learner = TransformerLearner(small(encoding=encoding, width=32, batch=64, learning_rate=3e-3))
        for _ in range(300):
            learner.step()
        ((_, evaluation),) = learner.finish()
        assert [each.length for each in evaluation] == [6, 11]
        assert next(learner.finish())[1] == evaluation
        assert evaluation[0].accuracy > 0.99
        seen[encoding.kind] = evaluation[1]
    rotary, learned = seen["rope"], seen["ape"]
    assert rotary.accuracy > 0.9
    assert rotary.shift_head.selected_offset == -2
    assert min(learned.accuracy_by_position[:6]) > 0.9
    assert max(learned.accuracy_by_position[6:]) < 0.8
