"""Reader of llama2.c checkpoints, legacy float32 format.

Seven int32 (width, hidden, layers, heads, kv heads, vocabulary, length; a negative vocabulary
means an output matrix of its own), then float32 tensors in the order of `_tensors`. Pairs are
interleaved. The rotary base is not in the file, but tables of cos(t theta_i) and sin(t theta_i)
are: they are held against

    theta_i = base^(-2i/d_head),   base = 1e4.

Only the embedding, the first norm and W_Q, W_K of layer 0 and the tables are read.

Source: karpathy/llama2.c, run.c (Config, memory_map_weights, rmsnorm, forward).
"""

from __future__ import annotations

from dataclasses import astuple, dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Float32, Float64

from bridge.errors import BridgeError
from bridge.sources.checkpoint import Checkpoint, Provenance, TokenLayer, file_sha256
from theory.schedule import RotarySchedule

BASE = 1e4
NORM_EPSILON = 1e-5
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


def read_llama2c(path: Path) -> Checkpoint:
    """The checkpoint of a llama2.c file.

    Raises BridgeError where the file is missing, a git-LFS pointer, of another format, of
    another size than its header says, not finite, or rotary with another base.
    """
    sha256 = file_sha256(path)
    header, tied = _header(path)
    tensors = _map(path, header, tied)
    embedding, norm, queries, keys, cosines, sines = (
        _finite(path, name, tensors[name]) for name in ("embedding", "attention norm", "wq", "wk", "cosines", "sines")
    )
    schedule = RotarySchedule.geometric(header.head_width, BASE)
    deviation = _table_deviation(path, schedule, cosines, sines)
    layer = TokenLayer(
        schedule,
        norm * embedding / np.sqrt(np.square(embedding).mean(axis=1, keepdims=True) + NORM_EPSILON),
        queries.reshape(header.heads, header.head_width, header.width),
        keys.reshape(header.kv_heads, header.head_width, header.width),
        header.head_width**-0.5,
    )
    return Checkpoint(
        format="llama2.c",
        family="llama",
        sha256=sha256,
        trained_length=header.length,
        layers=header.layers,
        assumptions=(
            f"rotary base {BASE:.0f} is the format's default; the rotary tables in the file agree to {deviation:.0e}",
            f"norm epsilon {NORM_EPSILON:.0e} is the format's; the file does not state it",
        ),
        provenance=_provenance(header, tied),
        first_layer=layer,
    )


def _provenance(header: _Header, tied: bool) -> tuple[Provenance, ...]:
    stated = zip(_LARGEST, astuple(header), strict=True)
    return (
        *(Provenance(name, str(value), "file") for name, value in stated),
        Provenance("output matrix", "the embedding" if tied else "its own", "file"),
        Provenance("rotary base", f"{BASE:.0f}", "default"),
        Provenance("rotary pairs", "interleaved", "declared by format"),
        Provenance("norm epsilon", f"{NORM_EPSILON:.0e}", "declared by format"),
        Provenance("logit scale", "1/sqrt(head width)", "declared by format"),
    )


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
        "embedding": (header.vocabulary, width),
        "attention norm": (layers, width),
        "wq": (layers, width, width),
        "wk": (layers, keys, width),
        "wv": (layers, keys, width),
        "wo": (layers, width, width),
        "feed-forward norm": (layers, width),
        "w1": (layers, hidden, width),
        "w2": (layers, width, hidden),
        "w3": (layers, hidden, width),
        "final norm": (width,),
        "cosines": (header.length, header.head_width // 2),
        "sines": (header.length, header.head_width // 2),
    }
    return tensors if tied else tensors | {"output": (header.vocabulary, width)}


def _map(path: Path, header: _Header, tied: bool) -> dict[str, Float32[np.ndarray, "..."]]:
    """The tensors as views of the file; of those that every layer has, layer 0."""
    shapes = _tensors(header, tied)
    sizes = [int(np.prod(shape)) for shape in shapes.values()]
    expected, got = _HEADER_BYTES + 4 * sum(sizes), path.stat().st_size
    if got != expected:
        what = "truncated" if got < expected else "bytes after its end"
        raise BridgeError(f"{path}: {what}: {got} bytes, its header asks for {expected}")
    whole = np.memmap(path, "<f4", "r", _HEADER_BYTES)
    parts = np.split(whole, np.cumsum(sizes)[:-1])
    views = {name: part.reshape(shape) for (name, shape), part in zip(shapes.items(), parts, strict=True)}
    layered = ("attention norm", "wq", "wk")
    return views | {name: views[name][0] for name in layered}


def _finite(path: Path, name: str, tensor: Float32[np.ndarray, "..."]) -> Float64[np.ndarray, "..."]:
    # A plain array: a view of the map would hold the file open for the life of the checkpoint.
    numbers = np.array(tensor, dtype=np.float64)
    if not np.isfinite(numbers).all():
        raise BridgeError(f"{path}: {name} holds numbers that are not finite: the file is damaged")
    return numbers


def _table_deviation(
    path: Path,
    schedule: RotarySchedule,
    cosines: Float64[np.ndarray, "position pair"],
    sines: Float64[np.ndarray, "position pair"],
) -> float:
    """The greatest difference of the file's tables from cos and sin of the float64 angles.

    Writers take frequency, angle and cosine in float32: the exponent's rounding grows by
    ln(base) = 9.2, and some units in the last place come with power, product and cosine, so an
    entry is off by at most 16 (1 + t theta_i) 2^-24.
    """
    angles = np.multiply.outer(np.arange(len(cosines)), schedule.frequencies)
    deviation = np.maximum(np.abs(cosines - np.cos(angles)), np.abs(sines - np.sin(angles)))
    excess = deviation - 16 * (1 + angles) * 2.0**-24
    if excess.max() > 0:
        position, pair = (int(i) for i in np.unravel_index(excess.argmax(), excess.shape))
        raise BridgeError(
            f"{path}: the rotary tables are not those of base {BASE:.0f}: position {position}, pair {pair} "
            f"is off by {deviation[position, pair]:.1e}: an altered file or another base"
        )
    return float(deviation.max())
