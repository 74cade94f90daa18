"""The plain model: one layer of attention and a linear readout. Written to be read.

    x_t = E(s_t)  (+ p_t where positions are vectors),  q = W_Q x_n,  k_t = W_K x_t,  v_t = W_V x_t
    l_t = tau q . k_t / sqrt(d)  (+ b_(n-t))           (R_n q and R_t k_t with rotary positions)
    y   = U sum_t softmax(l)_t v_t                     the query is the last position, n = L - 1

With H heads q, k, v are split into heads of width d/H, each with rotary frequencies of its own
width, and their outputs are concatenated before U. Linear attention weighs by l_t itself.

Initialisation is PyTorch's default (embeddings N(0, 1), linear maps uniform by fan-in), drawn
from the generator of the run in the order E, W_Q, W_K, W_V, U, positions: with 49 rows and this
order alone does the mean norm of the untrained rows over three seeds come out as Table 6 has it.
A bucket bias starts at 0.

Source: arXiv 2607.18759, section 2 and appendix E.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from empirics.encoding_specs import (
    BucketBias,
    LearnedPositions,
    LinearBias,
    PeriodicRotary,
    RandomizedPositions,
    Rotary,
    Sinusoidal,
)
from empirics.encodings import distance_bias, rotate, sinusoids, turns
from empirics.spec import RunSpec


class HeadOutput(NamedTuple):
    """Readout scores, attention and attention logits (nats) of the last position; linear attention may be negative."""

    scores: Float[Tensor, "batch token"]
    attention: Float[Tensor, "batch head length"]
    logits: Float[Tensor, "batch head length"]


class AttentionHead(nn.Module):
    """The model of a RunSpec. `generator` fills the weights; without one they stay unset, to be loaded."""

    def __init__(self, spec: RunSpec, generator: torch.Generator | None = None) -> None:
        super().__init__()
        width = spec.width
        self.spec = spec
        self.embedding = nn.Parameter(torch.empty(spec.tokens, width))
        self.query = nn.Parameter(torch.empty(width, width))
        self.key = nn.Parameter(torch.empty(width, width))
        self.value = nn.Parameter(torch.empty(width, width))
        self.readout = nn.Parameter(torch.empty(spec.vocabulary, width))
        self.positions: nn.Parameter | None = None
        if isinstance(spec.encoding, LearnedPositions | RandomizedPositions):
            self.positions = nn.Parameter(torch.empty(spec.encoding.rows, width))
        self.bias: nn.Parameter | None = None
        if isinstance(spec.encoding, BucketBias):
            self.bias = nn.Parameter(torch.empty(spec.heads, spec.encoding.buckets))
        if generator is not None:
            self._initialise(generator)

    def forward(
        self, tokens: Int64[Tensor, "batch length"], positions: Int64[Tensor, "length"] | None = None
    ) -> HeadOutput:
        """`positions` of the tokens; by default 0 .. L-1."""
        encoding = self.spec.encoding
        place = torch.arange(tokens.shape[1], device=tokens.device) if positions is None else positions
        inputs = self.embedding[tokens]
        if self.positions is not None:
            inputs = inputs + self.positions[place]
        if isinstance(encoding, Sinusoidal):
            inputs = inputs + sinusoids(place, self.spec.width, encoding.base).to(inputs.dtype)
        query = self._heads(inputs[:, -1:] @ self.query.T)
        key = self._heads(inputs @ self.key.T)
        value = self._heads(inputs @ self.value.T)
        if isinstance(encoding, Rotary | PeriodicRotary):
            theta = turns(encoding, self.spec.head_width).to(tokens.device)
            query, key = rotate(query, place[-1:], theta), rotate(key, place, theta)
        logits = query @ key.transpose(2, 3) * (self.spec.temperature / math.sqrt(self.spec.head_width))
        if isinstance(encoding, LinearBias | BucketBias):
            bias = distance_bias(encoding, place[-1] - place, self.bias)
            logits = logits + bias.to(logits.dtype).unsqueeze(-2)
        attention = logits.softmax(dim=-1) if self.spec.attention == "softmax" else logits
        scores = (attention @ value).flatten(1) @ self.readout.T
        return HeadOutput(scores, attention[:, :, 0], logits[:, :, 0])

    def _heads(self, vectors: Float[Tensor, "batch length width"]) -> Float[Tensor, "batch head length lane"]:
        return vectors.unflatten(2, (self.spec.heads, self.spec.head_width)).transpose(1, 2)

    def _initialise(self, generator: torch.Generator) -> None:
        for name, parameter in self.named_parameters():
            if name in ("embedding", "positions"):
                nn.init.normal_(parameter, generator=generator)
            elif name == "bias":
                nn.init.zeros_(parameter)
            else:
                nn.init.kaiming_uniform_(parameter, a=math.sqrt(5), generator=generator)
