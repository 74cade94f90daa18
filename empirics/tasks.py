"""The fixed-offset task: copy the token K positions before the last one.

    s_0 .. s_(L-1) independent and uniform on m tokens,   y = s_(L-1-K)

A batch has one length. Draws come from the generator of the run, in the order in which the
paper's own script evidently makes them: a length, then the tokens.

Source: arXiv 2607.18759, section 2.
"""

from __future__ import annotations

import torch
from jaxtyping import Int64
from torch import Tensor

from empirics.spec import RunSpec


def draw_length(spec: RunSpec, generator: torch.Generator) -> int:
    """One training length, uniform on the training range, both ends included."""
    shortest, longest = spec.train_lengths
    return int(torch.randint(shortest, longest + 1, (1,), generator=generator))


def draw_tokens(
    spec: RunSpec, sequences: int, length: int, generator: torch.Generator
) -> Int64[Tensor, "batch length"]:
    """Independent uniform tokens."""
    return torch.randint(0, spec.vocabulary, (sequences, length), generator=generator)


def targets(tokens: Int64[Tensor, "batch length"], offset: int) -> Int64[Tensor, "batch"]:
    """The token K = `offset` positions before the last one."""
    return tokens[:, tokens.shape[1] - 1 - offset]
