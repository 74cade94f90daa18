"""The multi-layer model: a decoder-only transformer, for the full-sequence shift and other tasks. Written to be read.

    x = E(s) (+ p with learned positions)
    x = x + Attention(norm(x)),   x = x + MLP(norm(x))        in every block
    y = U norm(x) + b

Attention is causal, its rotary positions turn the lanes of each head by themselves. What the paper
leaves open and is our choice: attention maps without bias, as in the one-layer model; MLP and
readout with the bias that PyTorch gives them; no dropout.

Initialisation is PyTorch's default (embeddings N(0, 1), linear maps and their biases uniform by
fan-in, norms 1 and 0), drawn from the generator of the run in the order E, then of every block
W_Q, W_K, W_V, W_O and the MLP, weight before bias, then U, and the position table last, as in the
one-layer model.

Source: arXiv 2607.18759, section 5.2 and appendix E.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn
from torch.nn.utils import skip_init

from empirics.encoding_specs import LearnedPositions, PeriodicRotary, Rotary
from empirics.encodings import rotate, turns
from empirics.sequence_spec import SequenceSpec
from empirics.spec import TransformerSpec


class LayerTrace(NamedTuple):
    """What the attention of one block reads and does; queries and keys are those before they are turned."""

    inputs: Float[Tensor, "batch length width"]
    query: Float[Tensor, "batch head length lane"]
    key: Float[Tensor, "batch head length lane"]
    attention: Float[Tensor, "batch head length length"]


class Trace(NamedTuple):
    """One pass of the model: readout scores, and of every layer what its attention did."""

    scores: Float[Tensor, "batch length output"]
    layers: tuple[LayerTrace, ...]


def shift_targets(tokens: Int64[Tensor, "batch length"], offset: int) -> Int64[Tensor, "batch counted"]:
    """out[i] = in[i-K] at the positions i = K .. L-1. The first K have no target: they are neither trained nor counted.

    Source: arXiv 2607.18759, section 5.2; that the first K do not count is our reading of it.
    """
    return tokens[:, : tokens.shape[1] - offset]


class Transformer(nn.Module):
    """The model of a spec. `generator` fills the weights; without one they stay unset, to be loaded."""

    def __init__(self, spec: TransformerSpec | SequenceSpec, generator: torch.Generator | None = None) -> None:
        super().__init__()
        self.spec = spec
        self.embedding = skip_init(nn.Embedding, spec.tokens, spec.width)
        self.blocks = nn.ModuleList(Block(spec) for _ in range(spec.layers))
        self.norm = nn.LayerNorm(spec.width)
        self.readout = skip_init(nn.Linear, spec.width, spec.outputs)
        if isinstance(spec.encoding, LearnedPositions):
            self.positions = skip_init(nn.Embedding, spec.encoding.rows, spec.width)
        if generator is not None:
            self._initialise(generator)

    def forward(self, tokens: Int64[Tensor, "batch length"]) -> Float[Tensor, "batch length output"]:
        """Readout scores at every position."""
        return self.trace(tokens).scores

    def trace(self, tokens: Int64[Tensor, "batch length"]) -> Trace:
        """Readout scores, and what the attention of every layer read and did."""
        place = torch.arange(tokens.shape[1], device=tokens.device)
        stream = self.embedding(tokens)
        if isinstance(self.spec.encoding, LearnedPositions):
            stream = stream + self.positions(place)
        layers = []
        for block in self.blocks:
            stream, layer = block(stream, place)
            layers.append(layer)
        return Trace(self.readout(self.norm(stream)), tuple(layers))

    def _initialise(self, generator: torch.Generator) -> None:
        for module in self.modules():
            if isinstance(module, nn.Embedding):
                nn.init.normal_(module.weight, generator=generator)
            elif isinstance(module, nn.Linear):
                bound = 1 / math.sqrt(module.in_features)
                for parameter in module.parameters():
                    nn.init.uniform_(parameter, -bound, bound, generator=generator)


class Block(nn.Module):
    """Pre-norm attention, then a pre-norm MLP of width 4 d with GELU, each added to the stream."""

    def __init__(self, spec: TransformerSpec | SequenceSpec) -> None:
        super().__init__()
        width = spec.width
        self.heads = spec.heads
        self.theta = (
            turns(spec.encoding, spec.head_width) if isinstance(spec.encoding, Rotary | PeriodicRotary) else None
        )
        self.attention_norm = nn.LayerNorm(width)
        self.query = skip_init(nn.Linear, width, width, bias=False)
        self.key = skip_init(nn.Linear, width, width, bias=False)
        self.value = skip_init(nn.Linear, width, width, bias=False)
        self.output = skip_init(nn.Linear, width, width, bias=False)
        self.mlp_norm = nn.LayerNorm(width)
        self.mlp = nn.Sequential(
            skip_init(nn.Linear, width, 4 * width), nn.GELU(), skip_init(nn.Linear, 4 * width, width)
        )

    def forward(
        self, stream: Float[Tensor, "batch length width"], place: Int64[Tensor, "length"]
    ) -> tuple[Float[Tensor, "batch length width"], LayerTrace]:
        inputs = self.attention_norm(stream)
        query, key, value = (self._split(project(inputs)) for project in (self.query, self.key, self.value))
        attention = self._attention(query.to(stream.dtype), key.to(stream.dtype), place)
        mixed = (attention.to(value.dtype) @ value).transpose(1, 2).flatten(2)
        stream = stream + self.output(mixed)
        stream = stream + self.mlp(self.mlp_norm(stream))
        return stream, LayerTrace(inputs, query, key, attention)

    def _attention(
        self,
        query: Float[Tensor, "batch head length lane"],
        key: Float[Tensor, "batch head length lane"],
        place: Int64[Tensor, "length"],
    ) -> Float[Tensor, "batch head length length"]:
        """softmax(R_n q . R_t k / sqrt(d_head)) over the keys t <= n, in the precision of the stream."""
        width = query.shape[-1]
        if self.theta is not None:
            theta = self.theta.to(place.device)
            query, key = rotate(query, place, theta), rotate(key, place, theta)
        logits = query @ key.transpose(2, 3) / math.sqrt(width)
        ahead = place[:, None] < place
        return logits.masked_fill(ahead, -math.inf).softmax(dim=-1, dtype=query.dtype)

    def _split(self, lanes: Float[Tensor, "batch length width"]) -> Float[Tensor, "batch head length lane"]:
        return lanes.unflatten(-1, (self.heads, -1)).transpose(1, 2)
