"""What a trained model does at a length: accuracy and mean attention, each with its sampling error.

The height of the attention peak is never given without the offset at which it stands.

Source: arXiv 2607.18759, section 5, metrics (i) and (ii).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Float64
from pydantic import BaseModel, ConfigDict

from empirics.errors import EmpiricsError
from empirics.head import AttentionHead
from empirics.spec import LearnedPositions
from empirics.tasks import draw_tokens, targets

# Chunks that stay in the cache are twice as fast as large ones.
_CHUNK_TOKENS = 1 << 13
_MOST_TOKENS = 1 << 28


class Observation(BaseModel):
    """One length. `attention[j]` is the mean attention on the key j tokens back, `attention_error`
    its standard error over the sequences; `offset` is the target K in tokens back."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    length: int
    sequences: int
    offset: int
    accuracy: float
    attention: tuple[float, ...]
    attention_error: tuple[float, ...]

    @property
    def accuracy_error(self) -> float:
        """Binomial standard error of the accuracy."""
        return float(np.sqrt(self.accuracy * (1 - self.accuracy) / self.sequences))

    @property
    def selected_offset(self) -> int:
        """delta <= 0 of the highest mean attention."""
        return -int(np.argmax(self.attention))

    @property
    def peak(self) -> float:
        """Mean attention at `selected_offset`."""
        return self.attention[-self.selected_offset]


def observe(
    model: AttentionHead, lengths: Sequence[int], sequences: int, generator: torch.Generator
) -> tuple[Observation, ...]:
    """Observe a model at each length in the listed order, on fresh sequences from one generator.

    Raises EmpiricsError where a length does not hold the target or has no learned position.
    """
    spec = model.spec
    if not lengths or sequences < 2 or max(lengths) * sequences > _MOST_TOKENS:
        raise EmpiricsError(
            f"{sequences} sequences of lengths {list(lengths)} cannot be observed: give 2 sequences or more, "
            f"and {_MOST_TOKENS} tokens or fewer a length"
        )
    for length in lengths:
        if length <= spec.offset:
            raise EmpiricsError(f"length {length} holds no token K = {spec.offset} back: give a longer one")
        if isinstance(spec.encoding, LearnedPositions) and length > spec.encoding.rows:
            raise EmpiricsError(f"length {length} is beyond the {spec.encoding.rows} learned positions of this run")
    return tuple(_observe_length(model, length, sequences, generator) for length in lengths)


@torch.no_grad()
def _observe_length(model: AttentionHead, length: int, sequences: int, generator: torch.Generator) -> Observation:
    tokens = draw_tokens(model.spec, sequences, length, generator)
    correct = 0
    total: Float64[np.ndarray, "offset"] = np.zeros(length)
    squares: Float64[np.ndarray, "offset"] = np.zeros(length)
    for chunk in tokens.split(max(1, _CHUNK_TOKENS // length)):
        output = model(chunk)
        correct += int((output.scores.argmax(dim=-1) == targets(chunk, model.spec.offset)).sum())
        attention = output.attention.flip(-1).double().numpy()
        total += attention.sum(axis=0)
        squares += np.square(attention).sum(axis=0)
    mean = total / sequences
    variance = np.maximum(squares / sequences - mean**2, 0) * sequences / max(sequences - 1, 1)
    return Observation(
        length=length,
        sequences=sequences,
        offset=model.spec.offset,
        accuracy=correct / sequences,
        attention=tuple(mean.tolist()),
        attention_error=tuple(np.sqrt(variance / sequences).tolist()),
    )
