"""What the training loop drives: runs in training, and the plain way to train one.

A learner holds the weights, what the optimizer remembers and the generators of its runs, all at
the same step. One generator a run, seeded immediately before its model is built, draws the
weights, then at every step a length and a batch, then the evaluation: with it a plain re-run on
a CPU gives the paper's digits.

Source: arXiv 2607.18759, section 5 and appendix E.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Float64
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from empirics.edit import write_means
from empirics.encoding_specs import LearnedPositions
from empirics.errors import EmpiricsError
from empirics.head import AttentionHead
from empirics.margin_penalty import MarginLoss
from empirics.observe import Observation, observe
from empirics.observe_sequences import SequenceObservation
from empirics.observe_transformer import TransformerObservation
from empirics.spec import RunSpec
from empirics.specs import Spec
from empirics.tasks import draw_batch, draw_length, targets

State = Mapping[str, Tensor]
Evaluation = tuple[Observation, ...] | tuple[TransformerObservation, ...] | tuple[SequenceObservation, ...]
_MOMENTS = ("exp_avg", "exp_avg_sq")


@runtime_checkable
class Learner(Protocol):
    """Runs in training, in step with one another."""

    name: str

    @property
    def specs(self) -> tuple[Spec, ...]:
        """One spec a run."""

    def step(self) -> Float64[Tensor, "run"]:
        """Draw a batch for every run and make one step; the loss (nats) of each batch before it, on the CPU.

        A penalty on the margin is not in it, unless that is not finite: then it is the loss.
        """

    def state(self) -> tuple[State, ...]:
        """Of each run all that it takes to go on with the same bits."""

    def restore(self, states: Sequence[State]) -> None:
        """Go on from such states."""

    def finish(self) -> Iterator[tuple[nn.Module, Evaluation]]:
        """Every trained model, and what it does on sequences that its own generator draws next."""


class PlainLearner:
    """One run of the one-layer model, sequence by sequence: autograd and torch's Adam."""

    name = "plain"

    def __init__(self, spec: RunSpec, device: torch.device | str = "cpu") -> None:
        self._spec = spec
        self.specs: tuple[Spec, ...] = (spec,)
        self._device = device
        self._generator = torch.Generator().manual_seed(spec.seed)
        self._model = initial(spec, self._generator).to(device)
        self._margin_loss = MarginLoss(spec, device) if spec.penalty else None
        self._optimizer = adam(self._model, spec)
        self._step = 0

    def step(self) -> Float64[Tensor, "run"]:
        spec, model = self._spec, self._model
        batch = draw_batch(spec, spec.batch, draw_length(spec, self._generator), self._generator).to(self._device)
        loss = cross_entropy(model(*batch).scores, targets(spec, batch.tokens))
        self._optimizer.zero_grad()
        loss.backward()
        if self._margin_loss is not None:
            penalty = self._margin_loss(model.embedding, model.query, model.key)
            penalty.backward()
            loss = loss if penalty.isfinite() else penalty
        self._optimizer.step()
        self._step += 1
        return loss.detach().double().cpu().reshape(1)

    def state(self) -> tuple[State, ...]:
        state = {"generator": self._generator.get_state(), "step": torch.tensor(self._step)}
        for name, weight in self._model.named_parameters():
            state[f"weights.{name}"] = weight.detach().cpu().clone()
            for moment in _MOMENTS:
                state[f"{moment}.{name}"] = self._optimizer.state[weight][moment].cpu().clone()
        return (state,)

    def restore(self, states: Sequence[State]) -> None:
        (state,), (own,) = states, self.state()
        check_state(self._spec, state, own)
        self._generator.set_state(state["generator"])
        self._step = int(state["step"])
        with torch.no_grad():
            for name, weight in self._model.named_parameters():
                weight.copy_(state[f"weights.{name}"])
                self._optimizer.state[weight]["step"].fill_(self._step)
                for moment in _MOMENTS:
                    self._optimizer.state[weight][moment].copy_(state[f"{moment}.{name}"])

    def finish(self) -> Iterator[tuple[AttentionHead, tuple[Observation, ...]]]:
        spec = self._spec
        yield self._model, observe(self._model, spec.evaluation_lengths, spec.evaluation_sequences, self._generator)


def initial(spec: RunSpec, generator: torch.Generator) -> AttentionHead:
    """The model before its first step: weights from the generator, and the means of the start where there is one."""
    model = AttentionHead(spec, generator)
    if spec.start is not None:
        write_means(model, spec.start)
    return model


def adam(model: nn.Module, spec: Spec, fused: bool = False) -> torch.optim.Adam:
    """Adam whose moments are there from the start; a position table alone may decay, by torch's coupled L2."""
    encoding = spec.encoding
    decay = encoding.decay if isinstance(encoding, LearnedPositions) else 0.0
    table = [weight for name, weight in model.named_parameters() if name.startswith("positions")]
    rest = [weight for name, weight in model.named_parameters() if not name.startswith("positions")]
    groups: list[dict[str, Any]] = [{"params": rest}, {"params": table, "weight_decay": decay}]
    optimizer = torch.optim.Adam(groups, lr=spec.learning_rate, fused=fused)
    for weight in model.parameters():
        optimizer.state[weight] = {
            "step": torch.zeros((), device=weight.device if fused else "cpu"),
            "exp_avg": torch.zeros_like(weight),
            "exp_avg_sq": torch.zeros_like(weight),
        }
    return optimizer


def check_state(spec: Spec, state: State, own: State) -> None:
    """Raise EmpiricsError where a state has other tensors than that of its run has."""
    if {name: value.shape for name, value in state.items()} != {name: value.shape for name, value in own.items()}:
        raise EmpiricsError(
            f"the state is not one of run {spec.id}: its tensors or their shapes are others; give the state of that run"
        )
