"""What a transformer answers at a length: the share of right answers, at every question and at the last position."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from jaxtyping import Float64
from pydantic import BaseModel, ConfigDict
from torch import Tensor
from torch.nn.functional import cross_entropy

from empirics.errors import EmpiricsError
from empirics.sequence_tasks import UNASKED, SequenceTask
from empirics.spec import MOST_TOKENS, LearnedPositions
from empirics.transformer import Transformer

# Chunks that stay in the cache are faster than large ones.
_CHUNK_TOKENS = 1 << 12


class SequenceObservation(BaseModel):
    """One length. `accuracy` is the mean over sequences of the share of right answers, `last_accuracy` that of the
    answers at the last position, which every task asks for; the errors are standard errors over the sequences.
    `by_position` is the share of right answers at every position, over the sequences that are asked there, None where
    none is. `loss` is the mean cross-entropy (nats) of the answers."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    length: int
    sequences: int
    accuracy: float
    accuracy_error: float
    last_accuracy: float
    last_accuracy_error: float
    by_position: tuple[float | None, ...]
    loss: float

    @property
    def is_finite(self) -> bool:
        """Whether the scores are numbers."""
        return math.isfinite(self.loss)


def observe_sequences(
    model: Transformer, task: SequenceTask, lengths: Sequence[int], sequences: int, generator: torch.Generator
) -> tuple[SequenceObservation, ...]:
    """Observe a model at each length (tokens) in the listed order, on fresh sequences from one generator.

    Raises EmpiricsError where a length holds no question or has no learned position.
    """
    if not lengths or sequences < 2 or max(lengths) * sequences > MOST_TOKENS:
        raise EmpiricsError(
            f"{sequences} sequences of lengths {list(lengths)} cannot be observed: give 2 sequences or more, "
            f"and {MOST_TOKENS} tokens or fewer a length"
        )
    if min(lengths) < task.shortest:
        raise EmpiricsError(f"length {min(lengths)} holds no question of the task: give {task.shortest} or more")
    encoding = model.spec.encoding
    if isinstance(encoding, LearnedPositions) and max(lengths) > encoding.rows:
        raise EmpiricsError(f"length {max(lengths)} is beyond the {encoding.rows} learned positions of this run")
    return tuple(_observe_length(model, task, length, sequences, generator) for length in lengths)


@torch.no_grad()
def _observe_length(
    model: Transformer, task: SequenceTask, length: int, sequences: int, generator: torch.Generator
) -> SequenceObservation:
    drawn = task.draw(sequences, length, generator)
    size = max(1, _CHUNK_TOKENS // length)
    hits, losses = [], []
    for tokens, targets in zip(drawn.tokens.split(size), drawn.targets.split(size), strict=True):
        scores = model(tokens.to(model.embedding.weight.device)).float().cpu()
        asked = targets != UNASKED
        hits.append((scores.argmax(dim=-1) == targets) & asked)
        losses.append(cross_entropy(scores[asked], targets[asked], reduction="sum"))
    right, asked = torch.cat(hits).double(), (drawn.targets != UNASKED).double()
    accuracy, accuracy_error = _mean(right.sum(dim=1) / asked.sum(dim=1))
    last_accuracy, last_accuracy_error = _mean(right[:, -1])
    by_position = right.sum(dim=0) / asked.sum(dim=0)
    return SequenceObservation(
        length=length,
        sequences=sequences,
        accuracy=accuracy,
        accuracy_error=accuracy_error,
        last_accuracy=last_accuracy,
        last_accuracy_error=last_accuracy_error,
        by_position=tuple(None if math.isnan(share) else share for share in by_position.tolist()),
        loss=float(torch.stack(losses).double().sum() / asked.sum()),
    )


def _mean(values: Float64[Tensor, "sequence"]) -> tuple[float, float]:
    """The mean and its standard error."""
    return float(values.mean()), float(values.std()) / math.sqrt(len(values))
