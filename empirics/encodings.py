"""Positions in the model: rotary, or learned and absolute.

Angles are computed in float64 at every position and only their cosines and sines are cast,
so that positions far out are as exact as near ones.

Source: arXiv 2607.18759, section 2; interleaved pairs (2i, 2i+1).
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Int64
from torch import Tensor


def frequencies(width: int, base: float) -> Float[Tensor, "pair"]:
    """theta_i = base^(-2i/width) in rad/position, float64."""
    return base ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)


def rotate(
    vectors: Float[Tensor, "*batch length width"],
    positions: Int64[Tensor, "length"],
    theta: Float[Tensor, "pair"],
) -> Float[Tensor, "*batch length width"]:
    """Turn pair i of the vector at position t by t theta_i."""
    angles = positions[:, None].to(torch.float64) * theta.to(torch.float64)
    cos, sin = angles.cos().to(vectors.dtype), angles.sin().to(vectors.dtype)
    even, odd = vectors[..., 0::2], vectors[..., 1::2]
    return torch.stack([even * cos - odd * sin, even * sin + odd * cos], dim=-1).flatten(-2)
