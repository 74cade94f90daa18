"""What a trained model does at a length: accuracy and mean attention, each with its sampling error.

The height of the attention peak is never given without the offset at which it stands.

Source: arXiv 2607.18759, section 5, metrics (i) and (ii).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float64
from pydantic import BaseModel, ConfigDict

from empirics.encoding_specs import LearnedPositions, RandomizedPositions
from empirics.errors import EmpiricsError
from empirics.head import AttentionHead
from empirics.spec import MOST_TOKENS, RunSpec
from empirics.specs import ShiftSpec
from empirics.tasks import Batch, draw_batch, targets

# Chunks that stay in the cache are twice as fast as large ones.
_CHUNK_TOKENS = 1 << 13


class Observation(BaseModel):
    """One length. `attention[j]` is the mean attention on the key j tokens back, over sequences and heads,
    `attention_error` its standard error over the sequences; `by_head` and `error_by_head` are the same of each
    head alone. `offset` is the target K in tokens back. Linear attention has signs, and is no share."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    length: int
    sequences: int
    offset: int
    accuracy: float
    attention: tuple[float, ...]
    attention_error: tuple[float, ...]
    by_head: tuple[tuple[float, ...], ...]
    error_by_head: tuple[tuple[float, ...], ...]

    @property
    def accuracy_error(self) -> float:
        """Binomial standard error of the accuracy."""
        return float(np.sqrt(self.accuracy * (1 - self.accuracy) / self.sequences))

    @property
    def is_finite(self) -> bool:
        """Whether attention is a number everywhere, as it is not where logits overflow."""
        return bool(np.isfinite(self.by_head).all() and np.isfinite(self.error_by_head).all())

    @property
    def selected_offset(self) -> int:
        """delta <= 0 of the highest mean attention."""
        return -int(np.argmax(self.attention))

    @property
    def peak(self) -> float:
        """Mean attention at `selected_offset`."""
        return self.attention[-self.selected_offset]

    @property
    def peak_error(self) -> float:
        """Standard error of `peak`."""
        return self.attention_error[-self.selected_offset]

    @property
    def selected_by_head(self) -> tuple[int, ...]:
        """delta <= 0 of the highest mean attention of each head."""
        return tuple(-int(np.argmax(attention)) for attention in self.by_head)


class Sums(NamedTuple):
    """Sums over sequences: right answers, attention by head, its squares, and those of its mean over heads."""

    correct: int
    attention: Float64[np.ndarray, "head offset"]
    squares: Float64[np.ndarray, "head offset"]
    mean_squares: Float64[np.ndarray, "offset"]

    @classmethod
    def zero(cls, heads: int, length: int) -> Sums:
        return cls(0, np.zeros((heads, length)), np.zeros((heads, length)), np.zeros(length))

    def plus(self, other: Sums) -> Sums:
        return Sums(
            self.correct + other.correct,
            self.attention + other.attention,
            self.squares + other.squares,
            self.mean_squares + other.mean_squares,
        )


def observe(
    model: AttentionHead, lengths: Sequence[int], sequences: int, generator: torch.Generator
) -> tuple[Observation, ...]:
    """Observe a model at each length in the listed order, on fresh sequences from one generator.

    Raises EmpiricsError as `check_lengths`.
    """
    check_lengths(model.spec, lengths, sequences)
    return tuple(_observe_length(model, draw_batch(model.spec, sequences, length, generator)) for length in lengths)


def check_lengths(spec: ShiftSpec, lengths: Sequence[int], sequences: int) -> None:
    """Raise EmpiricsError where a length does not hold the target or has no learned position."""
    if not lengths or sequences < 2 or max(lengths) * sequences > MOST_TOKENS:
        raise EmpiricsError(
            f"{sequences} sequences of lengths {list(lengths)} cannot be observed: give 2 sequences or more, "
            f"and {MOST_TOKENS} tokens or fewer a length"
        )
    for length in lengths:
        if length <= max(spec.offsets):
            raise EmpiricsError(f"length {length} holds no token K = {max(spec.offsets)} back: give a longer one")
        if isinstance(spec.encoding, LearnedPositions | RandomizedPositions) and length > spec.encoding.rows:
            raise EmpiricsError(f"length {length} is beyond the {spec.encoding.rows} learned positions of this run")


@torch.no_grad()
def _observe_length(model: AttentionHead, batch: Batch) -> Observation:
    spec, device = model.spec, model.embedding.device
    sequences, length = batch.tokens.shape
    sums = Sums.zero(spec.heads, length)
    for tokens in batch.tokens.split(max(1, _CHUNK_TOKENS // length)):
        output = model(tokens.to(device), batch.positions.to(device))
        attention = output.attention.flip(-1).double().cpu().numpy()
        found = Sums(
            correct=int((output.scores.argmax(dim=-1).cpu() == targets(spec, tokens)).sum()),
            attention=attention.sum(axis=0),
            squares=np.square(attention).sum(axis=0),
            mean_squares=np.square(attention.mean(axis=1)).sum(axis=0),
        )
        sums = sums.plus(found)
    return summary(spec, sequences, sums)


def summary(spec: RunSpec, sequences: int, sums: Sums) -> Observation:
    """The observation of so many sequences from their sums."""
    by_head, mean = sums.attention / sequences, sums.attention.mean(axis=0) / sequences
    return Observation(
        length=len(mean),
        sequences=sequences,
        offset=spec.offset,
        accuracy=sums.correct / sequences,
        attention=tuple(mean.tolist()),
        attention_error=tuple(_error(mean, sums.mean_squares, sequences).tolist()),
        by_head=tuple(map(tuple, by_head.tolist())),
        error_by_head=tuple(map(tuple, _error(by_head, sums.squares, sequences).tolist())),
    )


def _error(
    mean: Float64[np.ndarray, "*head offset"], squares: Float64[np.ndarray, "*head offset"], sequences: int
) -> Float64[np.ndarray, "*head offset"]:
    """Standard error of a mean over sequences, of whose terms the squares add up to `squares`."""
    variance = np.maximum(squares / sequences - mean**2, 0) * sequences / max(sequences - 1, 1)
    return np.sqrt(variance / sequences)
