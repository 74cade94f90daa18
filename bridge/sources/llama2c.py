"""Reader of llama2.c checkpoints, legacy float32 format.

Seven int32 (width, hidden, layers, heads, kv heads, vocabulary, length; a negative vocabulary
means an output matrix of its own), then float32 tensors in the order of `_tensors`. Pairs are
interleaved. The rotary base is not in the file, but tables of cos(t theta_i) and sin(t theta_i)
are: they are held against

    theta_i = base^(-2i/d_head),   base = 1e4.

Source: karpathy/llama2.c, run.c (Config, memory_map_weights, rmsnorm, forward).
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import astuple, dataclass, field, replace
from math import prod
from pathlib import Path

import numpy as np
from jaxtyping import Float, Float32, Int64

from bridge.errors import BridgeError
from bridge.sources.change import AS_IT_IS, RotaryChange
from bridge.sources.configuration import Configuration
from bridge.sources.families import LLAMA
from bridge.sources.family import Names, RotaryPositions
from bridge.sources.model import Model
from bridge.sources.tensors import file_sha256, finite, open_plain
from theory.schedule import RotarySchedule

BASE = 1e4
NORM_EPSILON = 1e-5
FAMILY = replace(
    LLAMA,
    names=Names(
        embedding="tok_embeddings.weight",
        block="layers.{}.attention.",
        norm="layers.{}.attention_norm",
        query="layers.{}.attention.wq",
        key="layers.{}.attention.wk",
        others=frozenset({"wv.weight", "wo.weight"}),
        roots=("",),
    ),
    positions=RotaryPositions("interleaved", fraction=None),
    bias="no",
    defaults={"rms_norm_eps": NORM_EPSILON, "rope_theta": BASE},
    defaults_of="the llama2.c format",
)
_HEADER_BYTES = 28
_VERSIONED = b"24ka"
# Above these no header is believed: text and other formats read as integers are greater.
_LARGEST = {
    "width": 1 << 17,
    "hidden width": 1 << 20,
    "layers": 1 << 12,
    "heads": 1 << 12,
    "kv heads": 1 << 12,
    "vocabulary": 1 << 24,
    "length": 1 << 24,
}


@dataclass(frozen=True)
class _Header:
    width: int
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    vocabulary: int
    length: int

    @property
    def head_width(self) -> int:
        return self.width // self.heads


def read_llama2c(path: Path, change: RotaryChange = AS_IT_IS) -> Model:
    """The model of a llama2.c file, its rotary positions changed or as they are.

    Raises BridgeError where the file is missing, a git-LFS pointer, of another format, of
    another size than its header says, not finite, or rotary with another base.
    """
    sha256 = file_sha256(path)
    header, tied = _header(path)
    tensors = _Tensors(path, _placed(path, header, tied))
    deviation = _table_deviation(path, header, tensors.read("cosines"), tensors.read("sines"))
    configuration = Configuration(path, FAMILY, _entries(header), change)
    shape = configuration.shape()
    positions = configuration.positions(shape)
    configuration.note("output matrix", "the embedding" if tied else "its own", "file")
    return Model(
        format="llama2.c",
        family=FAMILY,
        path=path,
        shape=shape,
        positions=positions,
        root="",
        tensors=tensors,
        assumptions=(
            *configuration.assumptions,
            f"the rotary tables in the file agree with base {BASE:.0f} to {deviation:.0e}",
        ),
        provenance=tuple(configuration.provenance),
        digests={},
        file_sha256=sha256,
    )


@dataclass(frozen=True, eq=False)
class _Tensors:
    """The tensors of a file: shape and place, in bytes from its start. A `TensorSource`."""

    path: Path
    places: Mapping[str, tuple[tuple[int, ...], int]]
    _digests: dict[str, str] = field(default_factory=dict)

    @property
    def names(self) -> frozenset[str]:
        return frozenset(self.places)

    @property
    def digests(self) -> Mapping[str, str]:
        return self._digests

    def shape(self, name: str) -> tuple[int, ...]:
        return self.places[name][0]

    def read(self, name: str) -> Float32[np.ndarray, "..."]:
        shape, start = self.places[name]
        with open_plain(self.path) as file:
            file.seek(start)
            raw = file.read(4 * prod(shape))
        self._digests[name] = hashlib.sha256(raw).hexdigest()
        return finite(self.path, name, np.frombuffer(raw, "<f4").reshape(shape).astype(np.float32))

    def rows(self, name: str, rows: Int64[np.ndarray, "row"]) -> Float[np.ndarray, "row ..."]:
        return self.read(name)[rows]


def _entries(header: _Header) -> dict[str, int]:
    return {
        "hidden_size": header.width,
        "num_attention_heads": header.heads,
        "num_key_value_heads": header.kv_heads,
        "head_dim": header.head_width,
        "num_hidden_layers": header.layers,
        "vocab_size": header.vocabulary,
        "max_position_embeddings": header.length,
    }


def _header(path: Path) -> tuple[_Header, bool]:
    """The header with a vocabulary above 0, and whether the output matrix is the embedding."""
    with path.open("rb") as file:
        raw = file.read(_HEADER_BYTES)
    if raw.startswith(_VERSIONED):
        raise BridgeError(f"{path}: llama2.c format of version 1 or later; only the legacy float32 format is read")
    if len(raw) < _HEADER_BYTES:
        raise BridgeError(f"{path}: truncated or no llama2.c file: {len(raw)} bytes, the header has {_HEADER_BYTES}")
    width, hidden, layers, heads, kv_heads, vocabulary, length = np.frombuffer(raw, "<i4").tolist()
    header = _Header(width, hidden, layers, heads, kv_heads, abs(vocabulary), length)
    for (name, most), given in zip(_LARGEST.items(), astuple(header), strict=True):
        if not 0 < given <= most:
            raise BridgeError(f"{path}: no llama2.c file: its header gives {name} {given}, expected 1 to {most}")
    if width % heads or heads % kv_heads:
        raise BridgeError(
            f"{path}: no llama2.c file: width {width} is not a multiple of {heads} heads, "
            f"or {heads} heads are not a multiple of {kv_heads} kv heads"
        )
    if header.head_width % 2:
        raise BridgeError(f"{path}: head width {header.head_width} is odd: rotary pairs need an even one")
    return header, vocabulary > 0


def _tensors(header: _Header, tied: bool) -> dict[str, tuple[int, ...]]:
    """Names and shapes in the order of the file."""
    width, hidden, layers, keys = header.width, header.hidden, header.layers, header.kv_heads * header.head_width
    tensors: dict[str, tuple[int, ...]] = {
        "tok_embeddings.weight": (header.vocabulary, width),
        "layers.{}.attention_norm.weight": (layers, width),
        "layers.{}.attention.wq.weight": (layers, width, width),
        "layers.{}.attention.wk.weight": (layers, keys, width),
        "layers.{}.attention.wv.weight": (layers, keys, width),
        "layers.{}.attention.wo.weight": (layers, width, width),
        "layers.{}.ffn_norm.weight": (layers, width),
        "layers.{}.feed_forward.w1.weight": (layers, hidden, width),
        "layers.{}.feed_forward.w2.weight": (layers, width, hidden),
        "layers.{}.feed_forward.w3.weight": (layers, hidden, width),
        "norm.weight": (width,),
        "cosines": (header.length, header.head_width // 2),
        "sines": (header.length, header.head_width // 2),
    }
    return tensors if tied else tensors | {"output.weight": (header.vocabulary, width)}


def _placed(path: Path, header: _Header, tied: bool) -> dict[str, tuple[tuple[int, ...], int]]:
    """Shape and place of every tensor, a layer's on its own. Raises BridgeError for a file of another size."""
    at, placed = _HEADER_BYTES, {}
    for name, shape in _tensors(header, tied).items():
        if "{}" in name:
            for layer in range(header.layers):
                placed[name.format(layer)] = (shape[1:], at)
                at += 4 * prod(shape[1:])
        else:
            placed[name] = (shape, at)
            at += 4 * prod(shape)
    if (got := path.stat().st_size) != at:
        what = "truncated" if got < at else "bytes after its end"
        raise BridgeError(f"{path}: {what}: {got} bytes, its header asks for {at}")
    return placed


def _table_deviation(
    path: Path,
    header: _Header,
    cosines: Float32[np.ndarray, "position pair"],
    sines: Float32[np.ndarray, "position pair"],
) -> float:
    """The greatest difference of the file's tables from cos and sin of the float64 angles.

    Writers take frequency, angle and cosine in float32: the exponent's rounding grows by
    ln(base) = 9.2, and some units in the last place come with power, product and cosine, so an
    entry is off by at most 16 (1 + t theta_i) 2^-24.
    """
    frequencies = RotarySchedule.geometric(header.head_width, BASE).frequencies
    angles = np.multiply.outer(np.arange(len(cosines)), frequencies)
    deviation = np.maximum(np.abs(cosines - np.cos(angles)), np.abs(sines - np.sin(angles)))
    excess = deviation - 16 * (1 + angles) * 2.0**-24
    if excess.max() > 0:
        position, pair = (int(i) for i in np.unravel_index(excess.argmax(), excess.shape))
        raise BridgeError(
            f"{path}: the rotary tables are not those of base {BASE:.0f}: position {position}, pair {pair} "
            f"is off by {deviation[position, pair]:.1e}: an altered file or another base"
        )
    return float(deviation.max())
