"""Many runs at once, through their score tables: what fast training is.

Every run of a stack has a generator of its own, which draws what it draws when the run trains
alone, and no bit of a run depends on the runs beside it. Loss and gradient are those of the plain
model (`empirics.head`) at the cost of its tables (`empirics.score_table`); weights, gradient and
moments of all runs are blocks with the run as their leading axis.

Source: arXiv 2607.18759, lemma 1 and section 5.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float64
from torch import Tensor

from empirics.encoding_specs import BucketBias, Encoding, LearnedPositions, RandomizedPositions
from empirics.head import AttentionHead
from empirics.learner import State, check_state, initial
from empirics.margin_penalty import MarginLoss
from empirics.observe import Observation
from empirics.observe_tables import observe_by_tables, places, table_shape
from empirics.score_table import Weights, adam, loss_and_gradient
from empirics.spec import RunSpec
from empirics.specs import Spec
from empirics.tasks import draw_batch, draw_length, targets

_PENALISED = ("embedding", "query", "key")


@dataclass(frozen=True)
class StackKey:
    """What the runs of a stack have in common; `stacks` where tables pay, else a run trains alone."""

    shape: Spec
    stacks: bool


def stack_key(spec: Spec) -> StackKey:
    """Runs with one key can train together where it says so: they differ in seed, offsets, temperature, learning rate,
    start, penalty and the scalars of their encoding, or in how they are evaluated.

    Tables pay where a step takes fewer multiplications through them than through the sequences: with L the longest
    training length, B the batch, m tokens, c keys and J offsets that the table tells apart (L or 1), J m c d + 3 c d^2
    + B H c m against 2 B L (d^2 + d).
    """
    if not isinstance(spec, RunSpec):
        return StackKey(spec, False)
    free: dict[str, object] = {"seed": 0, "offset": 1, "temperature": 1.0, "learning_rate": 1e-3}
    free |= {"start": None, "penalty": None}
    free |= {"evaluation_lengths": (spec.train_lengths[1],), "evaluation_sequences": 2}
    if spec.second_offset is not None:
        free["second_offset"] = 1
    shape = spec.model_copy(update=free | {"encoding": _without_scalars(spec.encoding)})
    (offsets, keys), width = table_shape(spec, spec.train_lengths[1]), spec.width
    table = (
        offsets * spec.tokens * keys * width + 3 * keys * width**2 + spec.batch * spec.heads * keys * spec.vocabulary
    )
    return StackKey(shape, table < 2 * spec.batch * spec.train_lengths[1] * (width**2 + width))


def bytes_per_run(spec: RunSpec) -> int:
    """Memory that a run adds to a stack: weights, gradient and two moments, at float32."""
    return 4 * 4 * sum(weight.numel() for weight in AttentionHead(spec).parameters())


class StackedLearner:
    """Runs of one stack key, trained along a leading axis, on the CPU."""

    name = "stacked"

    def __init__(self, specs: Sequence[RunSpec], dtype: torch.dtype = torch.float32) -> None:
        self._specs = tuple(specs)
        self.specs: tuple[Spec, ...] = self._specs
        self._step = 0
        self._generators = [torch.Generator().manual_seed(spec.seed) for spec in specs]
        models = [initial(spec, one) for spec, one in zip(specs, self._generators, strict=True)]
        self._shapes = {name: weight.shape for name, weight in models[0].named_parameters()}
        flat = [torch.cat([weight.detach().flatten() for weight in model.parameters()]) for model in models]
        self._weights = torch.stack(flat).to(dtype).numpy()
        self._gradient, self._first, self._second = (np.zeros_like(self._weights) for _ in range(3))
        self._views = [self._view(block) for block in self._weights]
        self._gradient_views = [self._view(block) for block in self._gradient]
        self._places = [places(spec, spec.train_lengths[1], self._weights.dtype) for spec in specs]
        self._margin_losses = [MarginLoss(spec, dtype=dtype) if spec.penalty else None for spec in specs]
        named = [(self.weights(index), self.gradient(index)) for index in range(len(specs))]
        self._leaves = [[weights[name].requires_grad_() for name in _PENALISED] for weights, _ in named]
        self._leaf_gradients = [[gradient[name] for name in _PENALISED] for _, gradient in named]

    def step(self) -> Float64[Tensor, "run"]:
        self._step += 1
        losses = torch.zeros(len(self._specs), dtype=torch.float64)
        for index, (spec, generator) in enumerate(zip(self._specs, self._generators, strict=True)):
            batch = draw_batch(spec, spec.batch, draw_length(spec, generator), generator)
            wanted = targets(spec, batch.tokens).numpy()
            weights, gradient = self._views[index], self._gradient_views[index]
            losses[index] = loss_and_gradient(
                weights, self._places[index], batch.tokens.numpy(), batch.positions.numpy(), wanted, gradient
            )
            if isinstance(spec.encoding, LearnedPositions) and spec.encoding.decay:
                gradient.positions[:] += weights.positions.dtype.type(spec.encoding.decay) * weights.positions
            penalty = self._add_penalty(index)
            if not math.isfinite(penalty):
                losses[index] = penalty
            blocks = (self._weights, self._gradient, self._first, self._second)
            adam(*(block[index] for block in blocks), spec.learning_rate, self._step)
        return losses

    def state(self) -> tuple[State, ...]:
        return tuple(self._state(index) for index in range(len(self._specs)))

    def restore(self, states: Sequence[State]) -> None:
        for index, state in enumerate(states):
            check_state(self._specs[index], state, self._state(index))
            self._generators[index].set_state(state["generator"])
            self._step = int(state["step"])
            for part, block in self._blocks().items():
                for name, weight in self._named(block[index]).items():
                    weight.copy_(state[f"{part}.{name}"])

    def finish(self) -> Iterator[tuple[AttentionHead, tuple[Observation, ...]]]:
        for index, (spec, weights) in enumerate(zip(self._specs, self._weights, strict=True)):
            model = AttentionHead(spec)
            model.load_state_dict(self._named(weights))
            lengths, sequences = spec.evaluation_lengths, spec.evaluation_sequences
            yield model, observe_by_tables(model, lengths, sequences, self._generators[index])

    def weights(self, index: int) -> dict[str, Tensor]:
        """The weights of one run under the names of the plain model; views, not copies."""
        return self._named(self._weights[index])

    def gradient(self, index: int) -> dict[str, Tensor]:
        """The gradient of one run's last step, in the same way."""
        return self._named(self._gradient[index])

    def _add_penalty(self, index: int) -> float:
        """Add the gradient of a run's penalty, by autograd, to that of its loss; the penalty (nats), 0 without one."""
        margin_loss = self._margin_losses[index]
        if margin_loss is None:
            return 0.0
        leaves, sums = self._leaves[index], self._leaf_gradients[index]
        penalty = margin_loss(*leaves)
        for total, change in zip(sums, torch.autograd.grad(penalty, leaves), strict=True):
            total += change
        return penalty.item()

    def _view(self, block: np.ndarray) -> Weights:
        named = {name: tensor.numpy() for name, tensor in self._named(block).items()}
        spec = self._specs[0]
        # Query, key and value lie one after the other: one product serves all three.
        first = named["embedding"].size
        projections = block[first : first + 3 * spec.width**2].reshape(3 * spec.width, spec.width)
        positions = named.get("positions", np.zeros((0, spec.width), block.dtype))
        bias = named.get("bias", np.zeros((spec.heads, 0), block.dtype))
        return Weights(named["embedding"], projections, named["readout"], positions, bias)

    def _named(self, block: np.ndarray) -> dict[str, Tensor]:
        """One run's part of a block under the names of the plain model: views, not copies."""
        sizes = [shape.numel() for shape in self._shapes.values()]
        parts = torch.from_numpy(block).split(sizes)
        return {name: part.view(self._shapes[name]) for name, part in zip(self._shapes, parts, strict=True)}

    def _blocks(self) -> dict[str, np.ndarray]:
        return {"weights": self._weights, "exp_avg": self._first, "exp_avg_sq": self._second}

    def _state(self, index: int) -> State:
        state = {"generator": self._generators[index].get_state(), "step": torch.tensor(self._step)}
        for part, block in self._blocks().items():
            state |= {f"{part}.{name}": tensor.clone() for name, tensor in self._named(block[index]).items()}
        return state


def _without_scalars(encoding: Encoding) -> Encoding:
    """The encoding with every scalar that runs of a stack may differ in at its default."""
    if isinstance(encoding, LearnedPositions | RandomizedPositions):
        return type(encoding)(rows=encoding.rows)
    return BucketBias(buckets=encoding.buckets) if isinstance(encoding, BucketBias) else type(encoding)()
