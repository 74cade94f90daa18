"""The plain model: one layer, one attention head, a linear readout. Written to be read.

    x_t = E(s_t)  (+ p_t with learned positions),  q = W_Q x_n,  k_t = W_K x_t,  v_t = W_V x_t
    l_t = q . k_t / sqrt(d)                        (R_n q and R_t k_t with rotary positions)
    y   = U sum_t softmax(l)_t v_t                 the query is the last position, n = L - 1

Initialisation is PyTorch's default (embeddings N(0, 1), linear maps uniform by fan-in), drawn
from the generator of the run in the order E, W_Q, W_K, W_V, U, positions: with 49 rows and this
order alone does the mean norm of the untrained rows over three seeds come out as Table 6 has it.

Source: arXiv 2607.18759, section 2 and appendix E.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from empirics.encodings import frequencies, rotate
from empirics.spec import LearnedPositions, Rotary, RunSpec


class HeadOutput(NamedTuple):
    """Readout scores, attention and attention logits (nats) of the last position."""

    scores: Float[Tensor, "batch token"]
    attention: Float[Tensor, "batch length"]
    logits: Float[Tensor, "batch length"]


class AttentionHead(nn.Module):
    """The model of a RunSpec. `generator` fills the weights; without one they stay unset, to be loaded."""

    def __init__(self, spec: RunSpec, generator: torch.Generator | None = None) -> None:
        super().__init__()
        width, tokens = spec.width, spec.vocabulary
        self.spec = spec
        self.embedding = nn.Parameter(torch.empty(tokens, width))
        self.query = nn.Parameter(torch.empty(width, width))
        self.key = nn.Parameter(torch.empty(width, width))
        self.value = nn.Parameter(torch.empty(width, width))
        self.readout = nn.Parameter(torch.empty(tokens, width))
        if isinstance(spec.encoding, LearnedPositions):
            self.positions = nn.Parameter(torch.empty(spec.encoding.rows, width))
        if generator is not None:
            self._initialise(generator)

    def forward(self, tokens: Int64[Tensor, "batch length"]) -> HeadOutput:
        length = tokens.shape[1]
        inputs = self.embedding[tokens]
        if isinstance(self.spec.encoding, LearnedPositions):
            inputs = inputs + self.positions[:length]
        query = inputs[:, -1:] @ self.query.T
        key = inputs @ self.key.T
        value = inputs @ self.value.T
        if isinstance(self.spec.encoding, Rotary):
            place = torch.arange(length, device=tokens.device)
            theta = frequencies(self.spec.width, self.spec.encoding.base).to(tokens.device)
            query, key = rotate(query, place[-1:], theta), rotate(key, place, theta)
        logits = query @ key.transpose(1, 2) / math.sqrt(self.spec.width)
        attention = logits.softmax(dim=-1)
        scores = (attention @ value)[:, 0] @ self.readout.T
        return HeadOutput(scores, attention[:, 0], logits[:, 0])

    def _initialise(self, generator: torch.Generator) -> None:
        for name, parameter in self.named_parameters():
            if name in ("embedding", "positions"):
                nn.init.normal_(parameter, generator=generator)
            else:
                nn.init.kaiming_uniform_(parameter, a=math.sqrt(5), generator=generator)
