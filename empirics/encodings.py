"""Positions in the model: turned into queries and keys, added to the embedding, or added to the logits.

Angles are computed in float64 at every position and only their cosines and sines are cast,
so that positions far out are as exact as near ones.

Sources: arXiv 2607.18759, sections 2 and 5.1; 2608.11909 (periodic turns). Pairs are interleaved (2i, 2i+1).
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from empirics.encoding_specs import BucketBias, LinearBias, PeriodicRotary, Rotary
from empirics.errors import EmpiricsError


def frequencies(width: int, base: float) -> Float[Tensor, "pair"]:
    """theta_i = base^(-2i/width) in rad/position, float64."""
    return base ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)


def turns(encoding: Rotary | PeriodicRotary, width: int) -> Float[Tensor, "pair"]:
    """theta_i in rad/position of the pairs of a head of so many lanes, float64."""
    if isinstance(encoding, Rotary):
        return frequencies(width, encoding.base)
    return torch.tensor([2 * math.pi * a / m for a, m in encoding.turns(width // 2)], dtype=torch.float64)


def rotate(
    vectors: Float[Tensor, "*batch length width"],
    positions: Int64[Tensor, "length"],
    theta: Float[Tensor, "pair"],
) -> Float[Tensor, "*batch length width"]:
    """Turn pair i of the vector at position t by t theta_i."""
    angles = positions[:, None].to(torch.float64) * theta.to(torch.float64)
    # Complex numbers turn a pair in one pass over memory.
    turn = torch.complex(angles.cos().to(vectors.dtype), angles.sin().to(vectors.dtype))
    return torch.view_as_real(torch.view_as_complex(vectors.unflatten(-1, (-1, 2))) * turn).flatten(-2)


def sinusoids(positions: Int64[Tensor, "*length"], width: int, base: float) -> Float[Tensor, "*length width"]:
    """(sin t theta_i, cos t theta_i) in lanes (2i, 2i+1), float64 (Vaswani et al., 2017)."""
    angles = positions[..., None].to(torch.float64) * frequencies(width, base).to(positions.device)
    return torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(-2)


def distance_bias(
    encoding: LinearBias | BucketBias, distances: Int64[Tensor, "*length"], learned: Float[Tensor, "head bucket"] | None
) -> Float[Tensor, "..."]:
    """What is added to the logit (nats) of a key so many tokens back, the same or one a head.

    `learned` are the scalars of a bucket bias: the result has their heads before the length.
    """
    if learned is not None and isinstance(encoding, BucketBias):
        return learned[:, distances.clamp(max=encoding.buckets - 1)]
    if isinstance(encoding, LinearBias):
        return -encoding.slope * distances.double()
    raise EmpiricsError("a bucket bias needs its learned scalars, got none")
