"""Reader of the .safetensors files of a Hugging Face folder: one file, or shards with an index.

    u64 little-endian N,   N bytes of JSON {name: {dtype, shape, data_offsets: [a, b]}},   data

A tensor is the bytes a to b of the data, row-major and little-endian; together they cover the data
without overlap or hole. The index, {"weight_map": {name: shard}}, says which shard holds a tensor, so
that only shards asked for are opened. Floats become float32 (F64: float64), all without rounding:

    BF16     the upper half of a float32
    F8_E5M2  the upper half of a float16
    F8_E4M3  (-1)^s 2^(e-7) (1 + m/8),  e = 0: (-1)^s 2^-6 m/8,  e = 15, m = 7: not a number

Source: huggingface/safetensors, README (Format) and tensor.rs (Metadata.validate); arXiv 2209.05433 (fp8).
"""

from __future__ import annotations

import difflib
import hashlib
import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TypeGuard

import numpy as np
from jaxtyping import Float, Float32, Int64, Shaped

from bridge.errors import BridgeError
from bridge.sources.tensors import finite, open_plain

CHUNK_BYTES = 1 << 22
WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
_LARGEST_HEADER = 100_000_000
_MOST_DIGITS, _MOST_AXES, _MOST_NUMBERS = 20, 64, 1 << 59
_SHARD = re.compile(r"[\w+= -][\w+= .-]{0,127}\.safetensors", re.ASCII)
_BITS = (
    dict.fromkeys(("F64", "I64", "U64", "C64"), 64)
    | dict.fromkeys(("F32", "I32", "U32"), 32)
    | dict.fromkeys(("F16", "BF16", "I16", "U16"), 16)
    | dict.fromkeys(("F8_E4M3", "F8_E5M2", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ", "I8", "U8", "BOOL"), 8)
    | {"F6_E2M3": 6, "F6_E3M2": 6, "F4": 4}
)
_STORED = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2", "F8_E4M3": "u1", "F8_E5M2": "u1"}


@dataclass(frozen=True)
class _Tensor:
    """Where a tensor lies: bytes `start` to `stop` of its file."""

    dtype: str
    shape: tuple[int, ...]
    start: int
    stop: int


class SafetensorsFolder:
    """The tensors of a folder, a `bridge.sources.tensors.TensorSource`; `open` makes one."""

    def __init__(self, listing: Path, places: Mapping[str, Path]) -> None:
        self._listing, self._places = listing, places
        self._headers: dict[Path, dict[str, _Tensor]] = {}
        self._digests: dict[str, str] = {}

    @classmethod
    def open(cls, folder: Path) -> SafetensorsFolder:
        """model.safetensors, else what the index lists (no shard is opened yet), else the only .safetensors file.

        Raises BridgeError where none of these is there, and for a damaged one.
        """
        listing = _listing(folder)
        return cls(listing, _shards(listing) if listing.name == INDEX else dict.fromkeys(_header(listing), listing))

    @property
    def names(self) -> frozenset[str]:
        """Every tensor that is listed."""
        return frozenset(self._places)

    @property
    def digests(self) -> Mapping[str, str]:
        """sha256 in hexadecimal of the stored bytes of each tensor read so far, by name."""
        return MappingProxyType(self._digests)

    def path_of(self, name: str) -> Path:
        """The file that holds a tensor. Raises BridgeError for a tensor that is not listed."""
        if name not in self._places:
            near = difflib.get_close_matches(name, self._places, 1)
            hint = f"the nearest is {near[0]!r:.100}" if near else "none is like it"
            raise BridgeError(f"{self._listing}: no tensor {name!r:.100}, {hint}: download the model's own weights")
        return self._places[name]

    def shape(self, name: str) -> tuple[int, ...]:
        """Rows first. Raises BridgeError for a tensor that is not there, and for a damaged or absent shard."""
        return self._find(name)[1].shape

    def read(self, name: str) -> Float[np.ndarray, "..."]:
        """The whole tensor. Raises BridgeError as `shape`, for quantized weights, and where a number is not finite."""
        path, tensor = self._find_float(name)
        as_one_row = self._gather(path, name, tensor, 1, math.prod(tensor.shape), np.zeros(1, np.int64))
        return as_one_row.reshape(tensor.shape)

    def rows(self, name: str, rows: Int64[np.ndarray, "row"]) -> Float[np.ndarray, "row ..."]:
        """Rows of the first axis in the order given, repeats allowed, in the memory of those rows and a chunk.

        The whole tensor is hashed. Raises BridgeError as `read`, and for a row that is not there.
        """
        path, tensor = self._find_float(name)
        if not tensor.shape:
            raise BridgeError(f"{path}: {name!r:.100} is a single number and has no rows: read it whole")
        count, *row_shape = tensor.shape
        if (outside := rows[(rows < 0) | (rows >= count)]).size:
            raise BridgeError(f"{path}: {name!r:.100} has no row {outside[0]}: its {count} rows count from 0")
        return self._gather(path, name, tensor, count, math.prod(row_shape), rows).reshape(len(rows), *row_shape)

    def _find(self, name: str) -> tuple[Path, _Tensor]:
        path = self.path_of(name)
        if path not in self._headers:
            if not path.exists():
                raise BridgeError(f"{path}: no such file; it should hold {name!r:.100}: download this shard")
            self._headers[path] = _header(path)
        if name not in self._headers[path]:
            raise _damaged(path, f"{name!r:.100} is not in it, where {self._listing.name} places it")
        return path, self._headers[path][name]

    def _find_float(self, name: str) -> tuple[Path, _Tensor]:
        """A tensor whose stored numbers are the weights themselves."""
        path, tensor = self._find(name)
        if tensor.dtype not in _STORED or (tensor.dtype.startswith("F8") and self._is_scaled(name)):
            raise BridgeError(
                f"{path}: {name!r:.100} is stored as {tensor.dtype}: quantized weights need their scales, "
                "which this version does not read: give the checkpoint before its quantization"
            )
        return path, tensor

    def _is_scaled(self, name: str) -> bool:
        """Whether a scale lies beside it: weight_scale, weight_scale_inv, scale_weight, weight.scale, ..."""
        others = (other.rpartition(".") for other in self._places if other != name)
        return any(home in (name.rpartition(".")[0], name) and "scale" in last for home, _, last in others)

    def _gather(
        self, path: Path, name: str, tensor: _Tensor, count: int, width: int, wanted: Int64[np.ndarray, "row"]
    ) -> Float[np.ndarray, "row width"]:
        """The wanted ones of `count` rows, block by block; every byte is hashed."""
        stored = np.dtype(_STORED[tensor.dtype])
        found = np.empty((len(wanted), width), np.float64 if tensor.dtype == "F64" else np.float32)
        digest = hashlib.sha256()
        with open_plain(path) as file:
            file.seek(tensor.start)
            for rows, columns in _blocks(count, width, max(1, CHUNK_BYTES // stored.itemsize)):
                size = len(rows) * len(columns) * stored.itemsize
                if len(raw := file.read(size)) < size:
                    raise BridgeError(f"{path}: became shorter while {name!r:.100} was read: let its writer end first")
                digest.update(raw)
                block = np.frombuffer(raw, stored).reshape(len(rows), len(columns))
                kept = np.flatnonzero((wanted >= rows.start) & (wanted < rows.stop))
                found[kept, columns.start : columns.stop] = _numbers(tensor.dtype, block[wanted[kept] - rows.start])
        self._digests[name] = digest.hexdigest()
        return finite(path, f"{name!r:.100}", found)


def _blocks(count: int, width: int, most: int) -> Iterator[tuple[range, range]]:
    """Rows and columns of blocks that follow one another in the file: whole rows, or parts of one."""
    if count * width == 0:
        return
    step = max(1, most // width)
    for top in range(0, count, step):
        for left in range(0, width, most):
            yield range(top, min(top + step, count)), range(left, min(left + most, width))


def _numbers(dtype: str, stored: Shaped[np.ndarray, "row column"]) -> Float[np.ndarray, "row column"]:
    match dtype:
        case "F64":
            return stored.astype(np.float64, copy=False)
        case "BF16":
            return (stored.astype(np.uint32) << 16).view(np.float32)
        case "F8_E5M2":
            return (stored.astype(np.uint16) << 8).view(np.float16).astype(np.float32)
        case "F8_E4M3":
            return _E4M3[stored]
        case _:
            return stored.astype(np.float32, copy=False)


def _e4m3_values() -> Float32[np.ndarray, "256"]:
    exponent, mantissa = np.divmod(np.arange(128), 8)
    sizes = np.where(exponent > 0, np.ldexp(8.0 + mantissa, exponent - 10), np.ldexp(mantissa, -9))
    sizes[127] = np.nan
    return np.concatenate([sizes, -sizes]).astype(np.float32)


_E4M3 = _e4m3_values()


def _listing(folder: Path) -> Path:
    """The file that says which tensors there are, preferred as transformers does."""
    if not folder.is_dir():
        raise BridgeError(f"{folder}: {'a file' if folder.exists() else 'no such folder'}: give the folder of a model")
    present = sorted(entry.name for entry in folder.iterdir())
    for name in (WEIGHTS, INDEX):
        if name in present:
            return folder / name
    weights = [name for name in present if name.endswith(".safetensors")]
    if len(weights) == 1:
        return folder / weights[0]
    if weights:
        raise BridgeError(f"{folder}: {len(weights)} .safetensors files and no {INDEX} that lists them: download it")
    if any(re.fullmatch(r"pytorch_model.*\.bin", name) for name in present):
        raise BridgeError(f"{folder}: pickled weights are not read (they can run code): convert to safetensors")
    raise BridgeError(f"{folder}: no weights: expected {WEIGHTS}, or {INDEX} and its shards: download them")


def _shards(index: Path) -> dict[str, Path]:
    """The file of every tensor; shards have plain names, so that no index leads out of its folder."""
    with open_plain(index) as file:
        places = _json_object(index, file.read(_LARGEST_HEADER)).get("weight_map")
    if not isinstance(places, dict):
        raise _damaged(index, 'no {"weight_map": {tensor: shard}} in it')
    for name, shard in places.items():
        if not isinstance(shard, str) or not _SHARD.fullmatch(shard):
            raise _damaged(index, f"the shard of {name!r:.100} is not the plain name of a .safetensors file")
    return {name: index.parent / shard for name, shard in places.items()}


def _header(path: Path) -> dict[str, _Tensor]:
    """The tensors of one file, held against its size. Raises BridgeError for a file that is not whole."""
    with open_plain(path) as file:
        file_bytes = path.stat().st_size
        data_start = 8 + int.from_bytes(file.read(8), "little")
        if data_start > 8 + _LARGEST_HEADER:
            raise BridgeError(f"{path}: no safetensors file: its first 8 bytes are no length of a header")
        if data_start > file_bytes:
            raise _damaged(path, f"truncated: {file_bytes} bytes, its header alone ends at {data_start}")
        entries = _json_object(path, file.read(data_start - 8))
    metadata = entries.pop("__metadata__", None) or {}
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise _damaged(path, "its __metadata__ is no table of text")
    tensors = {name: _tensor(path, name, entry, data_start) for name, entry in entries.items()}
    end = data_start
    for name, tensor in sorted(tensors.items(), key=lambda item: (item[1].start, item[1].stop)):
        if tensor.start != end:
            raise _damaged(path, f"overlap or hole: {name!r:.100} starts at byte {tensor.start}, expected {end}")
        end = tensor.stop
    if file_bytes != end:
        what = "truncated" if file_bytes < end else "bytes after its end"
        raise _damaged(path, f"{what}: {file_bytes} bytes, its header asks for {end}")
    return tensors


def _tensor(path: Path, name: str, entry: object, data_start: int) -> _Tensor:
    fields = entry if isinstance(entry, dict) else {}
    dtype, shape, offsets = (fields.get(key) for key in ("dtype", "shape", "data_offsets"))
    if not isinstance(dtype, str) or not _are_whole(shape) or not _are_whole(offsets) or len(offsets) != 2:
        raise _damaged(path, f"{name!r:.100} needs a dtype, a shape of whole numbers from 0, two such data_offsets")
    if dtype not in _BITS:
        raise BridgeError(f"{path}: the dtype of {name!r:.100} is {dtype!r:.100}, expected one of {', '.join(_BITS)}")
    # numpy's limits, which hold for a tensor without numbers too.
    if len(shape) > _MOST_AXES or math.prod(max(1, size) for size in shape) > _MOST_NUMBERS:
        raise _damaged(path, f"{name!r:.100} has more than {_MOST_AXES} axes or {_MOST_NUMBERS} numbers")
    start, stop = offsets
    bits = math.prod(shape) * _BITS[dtype]
    if bits != 8 * (stop - start):
        raise _damaged(path, f"{name!r:.100} has {stop - start} bytes, its shape and dtype need {bits / 8:.15g}")
    return _Tensor(dtype, tuple(shape), data_start + start, data_start + stop)


def _are_whole(values: object) -> TypeGuard[list[int]]:
    # True and False are integers to isinstance.
    return isinstance(values, list) and all(type(value) is int and value >= 0 for value in values)


def _json_object(path: Path, raw: bytes) -> dict[str, object]:
    try:
        value = json.loads(raw.decode(), object_pairs_hook=_without_repeats, parse_int=_short_integer)
    except (RecursionError, ValueError) as error:
        raise _damaged(path, f"no JSON where it should be ({error})") from None
    if not isinstance(value, dict):
        raise _damaged(path, "no JSON object where it should be")
    return value


def _without_repeats(pairs: list[tuple[str, object]]) -> dict[str, object]:
    table = dict(pairs)
    if len(table) < len(pairs):
        raise ValueError("a name twice in one object")
    return table


def _short_integer(digits: str) -> int:
    if len(digits) > _MOST_DIGITS:
        raise ValueError(f"a number of {len(digits)} digits")
    return int(digits)


def _damaged(path: Path, what: str) -> BridgeError:
    return BridgeError(f"{path}: damaged: {what}: download it again")
