"""A model on disk: what its configuration says, and layers read from its tensors when asked for.

Whatever the format, a reader yields a `Model`; `read_layer` makes of it what attention of one
layer does to tokens. Nothing is read but the tensors that queries and keys need, and of the
embedding only the rows of the tokens given; every tensor read is hashed whole.

Source: `bridge.sources.family` for the arithmetic of a family.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Float, Int64

from bridge.errors import BridgeError
from bridge.sources.attention import LayerPositions, Maps, Norm, PositionLayer, Projection, TokenLayer
from bridge.sources.family import Family, LearnedPositions, LinearBiasPositions, RotaryPositions
from bridge.sources.tensors import TensorSource
from theory.bias import LinearBias


@dataclass(frozen=True)
class Provenance:
    """One value that shapes the heads, as text, and where it comes from.

    `source` is "file", "default of ..." (named, not in the file), "declared by ..." (the family or
    the format) or "option".
    """

    name: str
    value: str
    source: str


@dataclass(frozen=True)
class Shape:
    """Numbers of a model's configuration: `trained_length` in tokens, `fresh_deviation` of untrained positions."""

    width: int
    heads: int
    kv_heads: int
    head_width: int
    layers: int
    vocabulary: int
    trained_length: int
    epsilon: float
    logit_scale: float
    fresh_deviation: float | None = None


@dataclass(frozen=True, eq=False)
class Model:
    """A model file or folder, read as far as its description.

    `root` begins every tensor's name; `assumptions` are sentences for a person, one for each value that the files do
    not state; `digests` are the sha256 of what was read for the description. Where `file_sha256` is given it is that of
    the one file, read whole; else what identifies a reading is the digest of all that it read.
    """

    format: str
    family: Family
    path: Path
    shape: Shape
    positions: tuple[LayerPositions, ...]
    root: str
    tensors: TensorSource
    assumptions: tuple[str, ...]
    provenance: tuple[Provenance, ...]
    digests: Mapping[str, str]
    file_sha256: str | None = None

    @property
    def name(self) -> str:
        """What files about it begin with."""
        return self.path.name if self.path.is_dir() else self.path.stem


@dataclass(frozen=True, eq=False)
class Reading:
    """One layer over the tokens given, and the sha256 of what was read for it.

    `files` are the names and digests that the sha256 is made of: description and tensors.
    """

    layer: TokenLayer | PositionLayer
    sha256: str
    files: tuple[tuple[str, str], ...]


def read_layer(model: Model, index: int, tokens: Int64[np.ndarray, "token"]) -> Reading:
    """Attention of a layer over tokens. Raises BridgeError as `read_maps`, and for a layer that needs activations."""
    check_layer(model, index)
    source = _LayerSource(model, index)
    layer = source.layer(source.maps(), source.stream(tokens))
    source.check_all_read()
    digests = tuple(sorted({**model.digests, **model.tensors.digests}.items()))
    combined = hashlib.sha256("".join(f"{name} {digest}\n" for name, digest in digests).encode()).hexdigest()
    return Reading(layer, model.file_sha256 or combined, digests)


def read_maps(model: Model, index: int) -> Maps:
    """From the residual stream that enters any layer to its queries and keys; what enters is for activations to say.

    Raises BridgeError for a layer that is not there, a tensor that is absent, of another shape, not finite, or of the
    attention block and not accounted for.
    """
    _check_index(model, index)
    source = _LayerSource(model, index)
    maps = source.maps()
    source.check_all_read()
    return maps


def check_layer(model: Model, index: int) -> None:
    """Raises BridgeError for a layer that is not there or that needs activations."""
    _check_index(model, index)
    if index > 0:
        raise BridgeError(f"layer {index} needs activations: only layer 0 follows from the weights alone")


def interleaving(head_width: int, rotary_width: int, half_split: bool) -> Int64[np.ndarray, "lane"]:
    """Where each lane of a head with interleaved pairs lies in the model's own order; the tail stays."""
    lanes = np.arange(head_width)
    if half_split:
        lanes[:rotary_width] = np.arange(rotary_width).reshape(2, -1).T.reshape(-1)
    return lanes


def alibi_slopes(heads: int) -> tuple[float, ...]:
    """2^(-8h/n) for h = 1..n, n the power of two up to the number of heads; every second one of twice as many
    for the heads beyond it. Source: Press et al. 2022, as BLOOM has it."""
    n = 1 << (heads.bit_length() - 1)
    slopes = [2 ** (-8 * h / n) for h in range(1, n + 1)]
    return (*slopes, *(2 ** (-4 * h / n) for h in range(1, 2 * (heads - n), 2)))


def _check_index(model: Model, index: int) -> None:
    if not 0 <= index < model.shape.layers:
        raise BridgeError(f"layer {index} does not exist: layers of this model are 0 to {model.shape.layers - 1}")


_Linear = tuple[Float[np.ndarray, "_head lane width"], Float[np.ndarray, "_head lane"] | None]


class _LayerSource:
    """The tensors of one layer, as a family's declaration names them."""

    def __init__(self, model: Model, index: int) -> None:
        self.model, self.shape, self.family, self.index = model, model.shape, model.family, index
        self.read: set[str] = set()
        rotary = model.positions[index].rotary
        half_split = (
            isinstance(model.family.positions, RotaryPositions) and model.family.positions.pairs == "half-split"
        )
        self.lanes = interleaving(self.shape.head_width, 0 if rotary is None else rotary.width, half_split)

    def maps(self) -> Maps:
        names, shape = self.family.names, self.shape
        if names.fused is None:
            query = self._separate(names.query or "", shape.heads)
            key = self._separate(names.key or "", shape.kv_heads)
        else:
            query, key = self._fused(names.fused)
        return Maps(
            None if names.norm is None else self._norm(names.norm, shape.width),
            self._projection(*query, names.query_norm),
            self._projection(*key, names.key_norm),
            shape.logit_scale,
        )

    def stream(self, tokens: Int64[np.ndarray, "token"]) -> Float[np.ndarray, "token width"]:
        """What enters attention at the tokens: embedding rows, scaled or normed as the family says."""
        names, name = self.family.names, self._name(self.family.names.embedding)
        self._expect(name, (self.shape.vocabulary, self.shape.width))
        rows = self.model.tensors.rows(name, tokens)
        if self.family.scale_embedding:
            return rows * math.sqrt(self.shape.width)
        return (
            rows
            if names.embedding_norm is None
            else self._norm(names.embedding_norm, self.shape.width).of(rows.astype(np.float64))
        )

    def layer(self, maps: Maps, stream: Float[np.ndarray, "token width"]) -> TokenLayer | PositionLayer:
        own, positions, names = self.model.positions[self.index], self.family.positions, self.family.names
        if isinstance(positions, LearnedPositions):
            table = self._matrix(names.positions or "", self.shape.trained_length + positions.first)
            return PositionLayer(stream, table[positions.first :], maps, self.shape.fresh_deviation or 0.0)
        slopes = alibi_slopes(self.shape.heads) if isinstance(positions, LinearBiasPositions) else None
        biases = None if slopes is None else tuple(LinearBias(slope) for slope in slopes)
        return TokenLayer(stream, maps, own, biases)

    def check_all_read(self) -> None:
        """Raises BridgeError for a tensor of the attention block that was not read and may matter."""
        block = self._name(self.family.names.block)
        unread = sorted(
            name
            for name in self.model.tensors.names - self.read
            if name.startswith(block) and name.removeprefix(block) not in self.family.names.others
        )
        if unread:
            raise BridgeError(
                f"{self.model.path}: {', '.join(unread[:4])} of the attention block is not read by family "
                f"{self.family.name}: logits may depend on it; give the model its own declaration (docs/new-family.md)"
            )

    def _separate(self, name: str, heads: int) -> _Linear:
        rows, lane = heads * self.shape.head_width, self.shape.head_width
        weight = self._matrix(f"{name}.weight", rows).reshape(heads, lane, -1)
        bias = self._vector(f"{name}.bias", rows).reshape(heads, lane) if self._has_bias(name) else None
        return weight, bias

    def _fused(self, name: str) -> tuple[_Linear, _Linear]:
        """Queries and keys of a fused projection."""
        rows = (self.shape.heads + 2 * self.shape.kv_heads) * self.shape.head_width
        weights = self._split(self._matrix(f"{name}.weight", rows))
        if not self._has_bias(name):
            return (weights[0], None), (weights[1], None)
        biases = self._split(self._vector(f"{name}.bias", rows))
        return (weights[0], biases[0]), (weights[1], biases[1])

    def _split(
        self, fused: Float[np.ndarray, "row *width"]
    ) -> tuple[Float[np.ndarray, "head lane *width"], Float[np.ndarray, "kv_head lane *width"]]:
        heads, kv_heads, lane, rest = self.shape.heads, self.shape.kv_heads, self.shape.head_width, fused.shape[1:]
        if self.family.fused == "head-major":
            by_head = fused.reshape(heads, 3, lane, *rest)
            return by_head[:, 0], by_head[:, 1]
        by_head = fused.reshape(-1, lane, *rest)
        return by_head[:heads], by_head[heads : heads + kv_heads]

    def _projection(
        self,
        weight: Float[np.ndarray, "head lane width"],
        bias: Float[np.ndarray, "head lane"] | None,
        norm: str | None,
    ) -> Projection:
        ordered = None if bias is None else bias[:, self.lanes].astype(np.float64)
        return Projection(weight[:, self.lanes], ordered, **self._head_norm(norm, len(weight)))

    def _has_bias(self, projection: str) -> bool:
        there = self._name(f"{projection}.bias") in self.model.tensors.names
        return self.family.bias == "yes" or (self.family.bias == "may" and there)

    def _head_norm(self, name: str | None, heads: int) -> dict[str, Norm]:
        if name is None or self.family.head_norm is None:
            return {}
        lane = self.shape.head_width
        if self.family.head_norm == "head":
            return {"norm": self._norm(name, lane, self.lanes)}
        joint = (np.arange(heads)[:, None] * lane + self.lanes).reshape(-1)
        return {"whole_norm": self._norm(name, heads * lane, joint)}

    def _norm(self, name: str, width: int, order: Int64[np.ndarray, "lane"] | None = None) -> Norm:
        order = np.arange(width) if order is None else order
        gain = self._vector(f"{name}.weight", width)[order].astype(np.float64)
        if self.family.norm == "layer":
            shift = self._vector(f"{name}.bias", width)[order].astype(np.float64)
            return Norm(gain, self.shape.epsilon, centred=True, shift=shift)
        return Norm(1 + gain if self.family.norm == "rms+1" else gain, self.shape.epsilon)

    def _matrix(self, name: str, rows: int) -> Float[np.ndarray, "row width"]:
        transposed = self.family.transposed and name != self.family.names.positions
        matrix = self._tensor(name, (self.shape.width, rows) if transposed else (rows, self.shape.width))
        return matrix.T if transposed else matrix

    def _vector(self, name: str, lanes: int) -> Float[np.ndarray, "lane"]:
        return self._tensor(name, (lanes,))

    def _tensor(self, name: str, shape: tuple[int, ...]) -> Float[np.ndarray, "..."]:
        whole = self._name(name)
        self._expect(whole, shape)
        return self.model.tensors.read(whole)

    def _expect(self, name: str, shape: tuple[int, ...]) -> None:
        self.read.add(name)
        if (found := self.model.tensors.shape(name)) != shape:
            raise BridgeError(
                f"{self.model.path}: {name} has shape {found}, the configuration asks for {shape}: one of them belongs "
                "to another model"
            )

    def _name(self, name: str) -> str:
        return self.model.root + name.format(self.index)
