"""Attention of a layer up to its logits, as a model computes it: norm, projections, head norms.

    x = norm(stream),   q = W_Q x + b_Q,   k = W_K x + b_K,   then norms of queries and keys

    rms    x gain / sqrt(mean x^2 + epsilon)
    layer  (x - mean x) gain / sqrt(var x + epsilon) + shift

Rotary pairs are interleaved, rotated lanes first. Weights stay as narrow as the file has them; all
arithmetic is float64. Query head h of H reads key head h // (H / H_kv).

Source: the implementations in transformers 5.24; `theory.head` for what becomes of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Float64

from bridge.errors import BridgeError
from theory.bias import LinearBias
from theory.head import Head
from theory.rotary import Rotary
from theory.schedule import RotarySchedule

_BLOCK = 1024
"""Tokens whose inputs are in float64 at a time: a wide model's vocabulary would fill the memory."""
_VECTOR_BYTES = 1 << 27
"""Queries and keys that are made at a time."""


@dataclass(frozen=True)
class LayerPositions:
    """How positions enter one layer: rotary or not, and how many tokens a query sees, itself one; None is all."""

    rotary: Rotary | None
    span: int | None = None

    def schedule(self, head_width: int, length: int | None = None) -> RotarySchedule:
        """The schedule at a current length (None: the trained); without rotary positions nothing turns."""
        return RotarySchedule.without_rotation(head_width) if self.rotary is None else self.rotary.schedule(length)


@dataclass(frozen=True, eq=False)
class Norm:
    """A norm over the last axis; `centred` is the layer norm, which has a shift, else the rms norm."""

    gain: Float64[np.ndarray, "lane"]
    epsilon: float
    centred: bool = False
    shift: Float64[np.ndarray, "lane"] | None = None

    def of(self, vectors: Float64[np.ndarray, "*row lane"]) -> Float64[np.ndarray, "*row lane"]:
        """The vectors normed, each on its own."""
        if self.centred:
            vectors = vectors - vectors.mean(axis=-1, keepdims=True)
        normed = vectors / np.sqrt(np.square(vectors).mean(axis=-1, keepdims=True) + self.epsilon) * self.gain
        return normed if self.shift is None else normed + self.shift


@dataclass(frozen=True, eq=False)
class Projection:
    """Inputs to the queries, or the keys, of every head.

    `norm` is over the lanes of a head, `whole_norm` over those of all heads together, head by head.
    """

    weight: Float[np.ndarray, "head lane width"]
    bias: Float64[np.ndarray, "head lane"] | None = None
    norm: Norm | None = None
    whole_norm: Norm | None = None

    @property
    def heads(self) -> int:
        """Number of heads."""
        return len(self.weight)

    def of(self, inputs: Float64[np.ndarray, "token width"], heads: slice) -> Float64[np.ndarray, "head token lane"]:
        """The vectors of some heads at every token, before positions."""
        if self.whole_norm is None:
            vectors = self._linear(inputs, heads)
            return vectors if self.norm is None else self.norm.of(vectors)
        vectors = self._linear(inputs, slice(None))
        joint = np.moveaxis(vectors, 0, 1).reshape(len(inputs), -1)
        normed = self.whole_norm.of(joint).reshape(len(inputs), self.heads, -1)
        return np.ascontiguousarray(np.moveaxis(normed, 1, 0)[heads])

    def _linear(
        self, inputs: Float64[np.ndarray, "token width"], heads: slice
    ) -> Float64[np.ndarray, "head token lane"]:
        taken = self.weight[heads].astype(np.float64)
        vectors = (inputs @ taken.reshape(-1, taken.shape[-1]).T).reshape(len(inputs), *taken.shape[:2])
        if self.bias is not None:
            vectors += self.bias[heads]
        return np.moveaxis(vectors, 1, 0)


@dataclass(frozen=True, eq=False)
class Maps:
    """From the residual stream to queries and keys; `logit_scale` makes nats of their products."""

    norm: Norm | None
    query: Projection
    key: Projection
    logit_scale: float

    @property
    def group(self) -> int:
        """Query heads that read one key head."""
        return self.query.heads // self.key.heads

    def queries(self, stream: Float[np.ndarray, "token width"], heads: slice) -> Float64[np.ndarray, "head token lane"]:
        """Queries of some heads."""
        return np.concatenate([self.query.of(inputs, heads) for inputs in self._inputs(stream)], axis=1)

    def keys(self, stream: Float[np.ndarray, "token width"], heads: slice) -> Float64[np.ndarray, "head token lane"]:
        """Keys of some key heads."""
        return np.concatenate([self.key.of(inputs, heads) for inputs in self._inputs(stream)], axis=1)

    def groups(
        self, stream: Float[np.ndarray, "token width"]
    ) -> Iterator[tuple[Float64[np.ndarray, "head token lane"], Float64[np.ndarray, "token lane"]]]:
        """For each key head the queries that read it, and its keys; inputs are normed once for a few of them."""
        per_key_head = 8 * len(stream) * self.key.weight.shape[1] * (self.group + 1)
        together = max(1, _VECTOR_BYTES // per_key_head)
        for first in range(0, self.key.heads, together):
            kv = slice(first, min(first + together, self.key.heads))
            heads = slice(kv.start * self.group, kv.stop * self.group)
            parts = [(self.query.of(inputs, heads), self.key.of(inputs, kv)) for inputs in self._inputs(stream)]
            queries, keys = (np.concatenate(side, axis=1) for side in zip(*parts, strict=True))
            for index, own in enumerate(keys):
                yield queries[index * self.group : (index + 1) * self.group], own

    def _inputs(self, stream: Float[np.ndarray, "token width"]) -> Iterator[Float64[np.ndarray, "token width"]]:
        for start in range(0, len(stream), _BLOCK):
            block = stream[start : start + _BLOCK].astype(np.float64)
            yield block if self.norm is None else self.norm.of(block)


@dataclass(frozen=True, eq=False)
class TokenLayer:
    """Layer 0, where a token is all that attention sees: `stream` has a row a token.

    Where positions are not rotary, queries and keys do not turn and may have a bias each (`biases`).
    """

    stream: Float[np.ndarray, "token width"]
    maps: Maps
    positions: LayerPositions
    biases: tuple[LinearBias, ...] | None = None

    def schedule(self, length: int | None = None) -> RotarySchedule:
        """The schedule at a current length."""
        return self.positions.schedule(self.maps.query.weight.shape[1], length)

    def head(self, index: int, weights: Float64[np.ndarray, "token"], length: int | None = None) -> Head:
        """One head over the tokens, with probabilities for weights, at the schedule of a length (None: the trained).

        Raises BridgeError for a head that is not there.
        """
        if not 0 <= index < self.maps.query.heads:
            raise BridgeError(f"head {index} does not exist: heads of this layer are 0 to {self.maps.query.heads - 1}")
        kv = index // self.maps.group
        query = self.maps.queries(self.stream, slice(index, index + 1))[0]
        return self._head(index, query, self.maps.keys(self.stream, slice(kv, kv + 1))[0], weights, length)

    def heads(self, weights: Float64[np.ndarray, "token"], length: int | None = None) -> Iterator[Head]:
        """Every head in order; those that read one key head are made together."""
        for kv, (queries, keys) in enumerate(self.maps.groups(self.stream)):
            for index, own in enumerate(queries, kv * self.maps.group):
                yield self._head(index, own, keys, weights, length)

    def _head(
        self,
        index: int,
        queries: Float64[np.ndarray, "token lane"],
        keys: Float64[np.ndarray, "token lane"],
        weights: Float64[np.ndarray, "token"],
        length: int | None,
    ) -> Head:
        bias = None if self.biases is None else self.biases[index]
        return Head.from_tokens(self.schedule(length), queries, keys, weights, self.maps.logit_scale, bias)


@dataclass(frozen=True, eq=False)
class PositionLayer:
    """Layer 0 of a model with learned positions: `table` has a row a trained position, added to a token's `stream`.

    `fresh_deviation` is the standard deviation that a row is drawn with before training, as far as the model says.
    """

    stream: Float[np.ndarray, "token width"]
    table: Float[np.ndarray, "position width"]
    maps: Maps
    fresh_deviation: float
