"""Explicit rotary heads, run as torch computes them: vectors that are written down instead of trained.

    q_t = Rot(t theta_j) r_j (cos k theta_j, -sin k theta_j),     k_t = Rot(t theta_j) (1, 0)

for a head that looks k tokens back; keys are alike, and the score is not scaled. A sink is a key before all others,
with a lane of its own that no position turns. Pairs stand in two halves of a vector, turned as transformers' rotary
models do: `q * cos + rotate_half(q) * sin`, cosines and sines of float32 angles cast to the dtype.

What an operation rounds beyond the one rounding of its result can be taken away (`Operation`): it is then done in
float64 and rounded.

Source: arXiv 2608.11909 for the heads; the arithmetic is torch's.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from enum import StrEnum

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor
from torch.nn.functional import pad, scaled_dot_product_attention

_VECTOR = 64
"""Keys in which the fused kernel is sure to have no remainder: of one it takes exponentials in another way."""


class Arithmetic(StrEnum):
    """What is computed in the dtype; the rest is in float64, for turned vectors in float32."""

    WEIGHTS = "weights"  # float64 throughout; weights cast
    SCORES = "scores"  # scores cast, softmax in the dtype
    FUSED = "fused"  # vectors turned in the dtype, then torch's scaled_dot_product_attention
    EAGER = "eager"  # vectors turned in the dtype, then torch's matmul and softmax
    ANGLES = "angles"  # the same, positions and frequencies cast before anything else


class Operation(StrEnum):
    """An operation of torch's that can be done in float64 instead, and then rounded."""

    CAST = "Tensor.to of float64, which goes through float32"
    TURNS = "torch.cos and torch.sin"
    SCORES = "torch.matmul"
    WEIGHTS = "torch.softmax"
    KERNEL = "torch.nn.functional.scaled_dot_product_attention"


@dataclass(frozen=True)
class ExplicitHead:
    """Frequencies in rad/token, amplitudes in nats, one a pair; how far back it looks; the score of a sink."""

    frequencies: tuple[float, ...]
    amplitudes: tuple[float, ...]
    offset: int
    sink: float | None = None


def attention(
    head: ExplicitHead,
    queries: Int64[Tensor, "query"],
    dtype: torch.dtype,
    arithmetic: Arithmetic,
    replaced: Collection[Operation] = (),
) -> Float[Tensor, "query key"]:
    """Weights of the keys 0 .. max(queries), a sink first, for queries at these positions; none sees a later key."""
    turned = arithmetic not in (Arithmetic.WEIGHTS, Arithmetic.SCORES)
    vectors = dtype if turned else torch.float64
    positions = torch.arange(int(queries.max()) + 1)
    cosines, sines = _turns(head, positions, vectors, arithmetic, replaced)
    looked = head.offset * torch.tensor(head.frequencies, dtype=torch.float64)
    amplitudes = torch.tensor(head.amplitudes, dtype=torch.float64)
    content = _cast(torch.cat([amplitudes * looked.cos(), -amplitudes * looked.sin()]), vectors, replaced)
    key_content = torch.cat([torch.ones_like(looked), torch.zeros_like(looked)]).to(vectors)
    turned_queries = _rotate(content.expand(len(queries), -1), cosines[queries], sines[queries])
    keys = _rotate(key_content.expand(len(positions), -1), cosines, sines)
    hidden = positions[None] > queries[:, None]
    if head.sink is not None:
        sink = _cast(torch.tensor(head.sink, dtype=torch.float64), vectors, replaced)
        turned_queries = torch.cat([turned_queries, sink.expand(len(queries), 1)], dim=1)
        keys = pad(keys, (0, 1, 1, 0))
        keys[0, -1] = 1
        hidden = pad(hidden, (1, 0))
    if arithmetic is Arithmetic.FUSED:
        weights = _kernel_in_steps if Operation.KERNEL in replaced else _fused
        return weights(turned_queries, keys, hidden)
    if Operation.SCORES in replaced:
        scores = (turned_queries.double() @ keys.double().T).to(vectors)
    else:
        scores = turned_queries @ keys.T
    if arithmetic is Arithmetic.SCORES:
        scores = _cast(scores, dtype, replaced)
    scores = scores.masked_fill(hidden, -torch.inf)
    if Operation.WEIGHTS in replaced:
        scores = scores.double()
    return _cast(scores.softmax(dim=-1), dtype, replaced)


def _cast(
    numbers: Float[Tensor, "*shape"], dtype: torch.dtype, replaced: Collection[Operation]
) -> Float[Tensor, "*shape"]:
    """To the dtype, by two roundings in torch; once, where that is asked for, through the odd one of two float32s."""
    if Operation.CAST not in replaced or numbers.dtype is not torch.float64 or dtype is torch.float64:
        return numbers.to(dtype)
    single = numbers.float()
    left = numbers - single.double()
    towards = torch.copysign(torch.full_like(single, torch.inf), left.float())
    even = single.view(torch.int32) % 2 == 0
    between = (left != 0) & even & (dtype is not torch.float32)
    return torch.where(between, torch.nextafter(single, towards), single).to(dtype)


def _turns(
    head: ExplicitHead,
    positions: Int64[Tensor, "token"],
    vectors: torch.dtype,
    arithmetic: Arithmetic,
    replaced: Collection[Operation],
) -> tuple[Float[Tensor, "token lane"], Float[Tensor, "token lane"]]:
    """Cosines and sines of every position, the same in both halves of a vector."""
    in_float32 = arithmetic in (Arithmetic.FUSED, Arithmetic.EAGER)
    held = torch.float32 if in_float32 else vectors
    frequencies = torch.tensor(head.frequencies, dtype=torch.float64).to(held)
    angles = positions.to(held)[:, None] * frequencies
    if Operation.TURNS in replaced:
        angles = angles.double()
    cosines, sines = angles.cos().to(held).to(vectors), angles.sin().to(held).to(vectors)
    return torch.cat([cosines, cosines], dim=1), torch.cat([sines, sines], dim=1)


def _rotate(
    vectors: Float[Tensor, "token lane"], cosines: Float[Tensor, "token lane"], sines: Float[Tensor, "token lane"]
) -> Float[Tensor, "token lane"]:
    first, second = vectors.chunk(2, dim=-1)
    return vectors * cosines + torch.cat([-second, first], dim=-1) * sines


def _fused(
    queries: Float[Tensor, "query lane"], keys: Float[Tensor, "key lane"], hidden: Bool[Tensor, "query key"]
) -> Float[Tensor, "query key"]:
    """Its weights are what it reads from values that are unit vectors; its kernel wants vectors of one width."""
    seen = len(keys)
    width = _VECTOR * -(-seen // _VECTOR)
    asking, asked = pad(queries, (0, width - queries.shape[1])), pad(keys, (0, width - keys.shape[1], 0, width - seen))
    values = torch.eye(width, dtype=queries.dtype)
    mask = ~pad(hidden, (0, width - seen), value=True)
    read = scaled_dot_product_attention(asking[None, None], asked[None, None], values[None, None], mask, scale=1.0)
    return read[0, 0, :, :seen]


def _kernel_in_steps(
    queries: Float[Tensor, "query lane"], keys: Float[Tensor, "key lane"], hidden: Bool[Tensor, "query key"]
) -> Float[Tensor, "query key"]:
    """Scores in float32, and exponentials of them of which only those below its normal numbers are 0."""
    scores = (queries.double() @ keys.double().T).float().masked_fill(hidden, -torch.inf)
    exponentials = (scores - scores.amax(dim=-1, keepdim=True)).double().exp()
    exponentials[exponentials < torch.finfo(torch.float32).tiny] = 0
    return (exponentials / exponentials.sum(dim=-1, keepdim=True)).to(queries.dtype)
