"""The tasks: copy the token K positions back, from the last position or from every one.

    s_0 .. s_(L-1) independent and uniform on m tokens
    fixed offset          y = s_(L-1-K)
    content-conditioned   the last token is one of two modes, mode c asks for y = s_(L-1-K_c)
    full-sequence shift   y_i = s_(i-K) at every position i >= K

A batch has one length. Draws come from the generator of the run, in the order in which the
paper's own script evidently makes them: a length, then the tokens; then the modes, then the
positions, where they are random.

Source: arXiv 2607.18759, sections 2, 5.1 and 5.2.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Int64
from torch import Tensor

from empirics.encoding_specs import RandomizedPositions
from empirics.spec import RunSpec
from empirics.specs import ShiftSpec, Spec


class Batch(NamedTuple):
    """Sequences of one length and the absolute position of each of their tokens."""

    tokens: Int64[Tensor, "batch length"]
    positions: Int64[Tensor, "length"]

    def to(self, device: torch.device | str) -> Batch:
        """The same on another device."""
        return Batch(self.tokens.to(device), self.positions.to(device))


def draw_length(spec: Spec, generator: torch.Generator) -> int:
    """One training length, uniform on the training range, both ends included."""
    shortest, longest = spec.train_lengths
    return int(torch.randint(shortest, longest + 1, (1,), generator=generator))


def draw_batch(spec: ShiftSpec, sequences: int, length: int, generator: torch.Generator) -> Batch:
    """Independent uniform tokens; a mode in the last position where the spec has modes."""
    tokens = torch.randint(0, spec.vocabulary, (sequences, length), generator=generator)
    if isinstance(spec, RunSpec) and spec.second_offset is not None:
        tokens[:, -1] = spec.vocabulary + torch.randint(0, 2, (sequences,), generator=generator)
    if isinstance(spec.encoding, RandomizedPositions):
        positions = torch.randperm(spec.encoding.rows, generator=generator)[:length].sort().values
    else:
        positions = torch.arange(length)
    return Batch(tokens, positions)


def targets(spec: RunSpec, tokens: Int64[Tensor, "batch length"]) -> Int64[Tensor, "batch"]:
    """The token K positions before the last one, with the K of the mode that stands there."""
    last = tokens.shape[1] - 1
    wanted = tokens[:, [last - offset for offset in spec.offsets]]
    if spec.second_offset is None:
        return wanted[:, 0]
    return wanted.gather(1, tokens[:, -1:] - spec.vocabulary)[:, 0]
