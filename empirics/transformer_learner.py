"""Training of a transformer, a step at a time, so that it can stop at any step and go on with the same bits.

The loss is the mean cross-entropy over the positions at which something is asked, the optimizer Adam. One
generator, seeded immediately before the model is built, draws the weights, then at every step a
length and a batch, then the evaluation; it stays on the CPU whatever the device.

With precision "bfloat16" the matrix products of a step and the GELU between them are computed in it;
weights, norms, softmax, rotation, loss and Adam stay in float32. Where the processor has no fast
bfloat16 it trains all the same, only slower. Neither a compiled step nor torch's fused attention
pays at this size: products are three quarters of a float32 step, sequences at most 16 tokens.

Source: arXiv 2607.18759, section 5.2 and appendix E.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from jaxtyping import Float64
from torch import Tensor
from torch.nn.functional import cross_entropy

from empirics.learner import State, adam, check_state
from empirics.observe_sequences import SequenceObservation, observe_sequences
from empirics.observe_transformer import TransformerObservation, observe_transformer
from empirics.sequence_spec import SequenceSpec
from empirics.sequence_tasks import UNASKED, SequenceBatch
from empirics.spec import TransformerSpec
from empirics.specs import Spec
from empirics.tasks import draw_batch, draw_length
from empirics.transformer import Transformer, shift_targets


class TransformerLearner:
    """One transformer and the state of its training."""

    name = "transformer"

    def __init__(self, spec: TransformerSpec | SequenceSpec, device: torch.device | str = "cpu") -> None:
        self.specs: tuple[Spec, ...] = (spec,)
        self.spec = spec
        self.device = torch.device(device)
        self._generator = torch.Generator().manual_seed(spec.seed)
        self.model = Transformer(spec, self._generator).to(self.device)
        self._optimizer = adam(self.model, spec, fused=True)

    def step(self) -> Float64[Tensor, "run"]:
        """Draw a length and a batch, take one step, return the loss (nats) of that batch before it."""
        length = draw_length(self.spec, self._generator)
        tokens, targets = self._draw(length).to(self.device)
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.spec.precision == "bfloat16"):
            scores = self.model(tokens)[:, -targets.shape[1] :]
        loss = cross_entropy(scores.float().flatten(0, 1), targets.flatten(), ignore_index=UNASKED)
        self._optimizer.zero_grad()
        loss.backward()
        self._optimizer.step()
        return loss.detach().double().reshape(1).cpu()

    def state(self) -> tuple[State, ...]:
        """All that it takes to go on with the same bits: weights, what Adam remembers of each, generator."""
        state = {"generator": self._generator.get_state()}
        for name, weight in self.model.named_parameters():
            state[f"weights.{name}"] = weight.detach()
            for key, value in self._optimizer.state[weight].items():
                state[f"{key}.{name}"] = value
        return ({name: value.cpu().clone() for name, value in state.items()},)

    def restore(self, states: Sequence[State]) -> None:
        """Go on from what `state` returned. Raises EmpiricsError where it is the state of another model."""
        (state,), (own,) = states, self.state()
        check_state(self.spec, state, own)
        with torch.no_grad():
            for name, weight in self.model.named_parameters():
                weight.copy_(state[f"weights.{name}"])
                for key, value in self._optimizer.state[weight].items():
                    value.copy_(state[f"{key}.{name}"])
        self._generator.set_state(state["generator"])

    def finish(
        self,
    ) -> Iterator[tuple[Transformer, tuple[TransformerObservation, ...] | tuple[SequenceObservation, ...]]]:
        """The model and its evaluation, drawn from a copy of the generator as it stands."""
        lengths, sequences = self.spec.evaluation_lengths, self.spec.evaluation_sequences
        generator = self._generator.clone_state()
        if isinstance(self.spec, SequenceSpec):
            yield self.model, observe_sequences(self.model, self.spec.task, lengths, sequences, generator)
        else:
            profiles = self.spec.profile_sequences
            yield self.model, observe_transformer(self.model, lengths, sequences, profiles, generator)

    def _draw(self, length: int) -> SequenceBatch:
        """Sequences, and what is asked at their last positions."""
        if isinstance(self.spec, SequenceSpec):
            return self.spec.task.draw(self.spec.batch, length, self._generator)
        tokens = draw_batch(self.spec, self.spec.batch, length, self._generator).tokens
        return SequenceBatch(tokens, shift_targets(tokens, self.spec.offset))
