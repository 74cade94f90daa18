"""What a task on sequences is: tokens in, and at some positions a class that is asked for.

A task is a part of a `SequenceSpec`, a strict model with a `kind` of its own, and says how many
input tokens and classes there are. What it draws comes from the generator of the run alone and is
causal: a target is a function of the tokens up to its position.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol, runtime_checkable

import torch
from jaxtyping import Int64
from torch import Tensor

UNASKED = -1
"""The target of a position at which nothing is asked."""


class SequenceBatch(NamedTuple):
    """Sequences of one length, and the class that is asked for, or `UNASKED`, at every position or the last ones."""

    tokens: Int64[Tensor, "sequence length"]
    targets: Int64[Tensor, "sequence asked"]

    def to(self, device: torch.device | str) -> SequenceBatch:
        """The same on another device."""
        return SequenceBatch(self.tokens.to(device), self.targets.to(device))


@runtime_checkable
class SequenceTask(Protocol):
    """A task: `tokens` rows of the embedding, `outputs` classes, and sequences of any length from `shortest` on."""

    @property
    def tokens(self) -> int:
        """Input vocabulary."""

    @property
    def outputs(self) -> int:
        """Classes of the readout."""

    @property
    def shortest(self) -> int:
        """The least length, in tokens, that holds a question."""

    def draw(self, sequences: int, length: int, generator: torch.Generator) -> SequenceBatch:
        """So many sequences of `length` tokens."""
