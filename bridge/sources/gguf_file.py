"""A GGUF file: its metadata, and its tensors read when they are asked for.

    "GGUF", u32 version, u64 tensors, u64 entries
    entries:   key, u32 type, value       (an array: u32 type of its elements, u64 count, elements)
    tensors:   name, u32 n, n x u64 dimensions (the fastest first), u32 type, u64 offset
    padding to general.alignment, then the data, from which offsets count

A string is a u64 length and as many bytes of UTF-8. Versions 2 and 3, little-endian, are read.
A count is held against the bytes that are left before anything is read for it: time and memory
are bounded by the size of the file. The last axis of a tensor, a *line*, is whole blocks of its
type; lines are the unit in which files are read; the package gguf knows what blocks mean.

Source: ggml-org/ggml, docs/gguf.md; the package gguf of ggml-org/llama.cpp.
"""

from __future__ import annotations

import hashlib
from collections.abc import Container, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from math import prod
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import BinaryIO, TypeAlias

import numpy as np
from jaxtyping import Float, Int64, Shaped, UInt8

from bridge.errors import BridgeError
from bridge.sources.tensors import finite, open_plain

MetadataValue: TypeAlias = str | int | float | bool | tuple[str, ...] | Shaped[np.ndarray, "element"]

_VERSIONS = (2, 3)
_ALIGNMENTS = [2**power for power in range(21)]
_CHUNK = 1 << 22
_LONGEST_NAME = 256
_STRING, _ARRAY = 8, 9
_SCALARS = {0: "u1", 1: "i1", 2: "<u2", 3: "<i2", 4: "<u4", 5: "<i4", 6: "<f4", 7: "?", 10: "<u8", 11: "<i8", 12: "<f8"}
_F64 = 28


@dataclass(frozen=True)
class _Tensor:
    """Where a tensor lies: `start` in the file, and `line_bytes`, 0 where gguf does not know the type."""

    shape: tuple[int, ...]
    type: int
    start: int
    line_bytes: int

    @property
    def lines(self) -> int:
        return prod(self.shape[:-1])

    @property
    def end(self) -> int:
        return self.start + self.lines * self.line_bytes


@dataclass(frozen=True, eq=False)
class GgufFile:
    """A GGUF file whose header has been read; a `TensorSource`.

    Shapes are rows first, the file's dimensions backwards; `header_sha256` is of the bytes before the tensor data.
    """

    path: Path
    metadata: Mapping[str, MetadataValue]
    header_sha256: str
    _tensors: Mapping[str, _Tensor] = field(repr=False)
    _digests: dict[str, str] = field(default_factory=dict, repr=False)

    @classmethod
    def open(cls, path: Path) -> GgufFile:
        """Read the header of a file.

        Raises BridgeError for a file that is missing, of another format, cut or damaged, and without the package gguf.
        """
        with open_plain(path) as file:
            header = _Header(path, file, path.stat().st_size)
            tensors, entries = header.start()
            metadata = header.metadata(entries)
            placed, data = header.tensors(tensors, metadata.get("general.alignment", 32))
            file.seek(0)
            return cls(path, MappingProxyType(metadata), hashlib.sha256(file.read(data)).hexdigest(), placed)

    @property
    def names(self) -> frozenset[str]:
        """Every tensor that is there."""
        return frozenset(self._tensors)

    @property
    def digests(self) -> Mapping[str, str]:
        """sha256 in hexadecimal of the stored bytes of each tensor read so far, by name."""
        return MappingProxyType(self._digests)

    def shape(self, name: str) -> tuple[int, ...]:
        """Rows first. Raises BridgeError for a tensor that is not there."""
        if name not in self._tensors:
            raise BridgeError(f"{self.path}: it has no tensor {name!r}: give a file that has it")
        return self._tensors[name].shape

    def read(self, name: str) -> Float[np.ndarray, "..."]:
        """The whole tensor, float32 or, where the file holds that, float64.

        Raises BridgeError for a tensor that is not there, of a type without numbers, cut, or not finite.
        """
        tensor = self._readable(name)
        return self._lines(name, np.arange(tensor.lines)).reshape(tensor.shape)

    def rows(self, name: str, rows: Int64[np.ndarray, "row"]) -> Float[np.ndarray, "row ..."]:
        """Some rows of a tensor, in the order given; all of it is hashed.

        Raises BridgeError as `read`, and for rows that are not there.
        """
        count, *rest = self._readable(name).shape
        if len(outside := rows[(rows < 0) | (rows >= count)]):
            raise BridgeError(f"{self.path}: {name} has rows 0 to {count - 1}, not row {outside[0]}: give one of these")
        if not rest:
            # The rows of a vector are numbers, which blocks hold by the dozen.
            return self.read(name)[rows]
        lines = np.add.outer(rows * prod(rest[:-1]), np.arange(prod(rest[:-1])))
        return self._lines(name, lines.ravel()).reshape(len(rows), *rest)

    def _readable(self, name: str) -> _Tensor:
        """A tensor of a type that is turned into numbers, as a block of zeros shows."""
        self.shape(name)
        tensor, types = self._tensors[name], _gguf(self.path).GGML_QUANT_SIZES
        try:
            _decode(self.path, np.zeros((1, types[tensor.type][1]), np.uint8), tensor.type)
        except (KeyError, NotImplementedError):
            known = next((each.name for each in types if each == tensor.type), f"{tensor.type}, unknown to gguf")
            raise BridgeError(f"{self.path}: {name} has type {known}; not read: use a file in F16 or Q8_0") from None
        return tensor

    def _lines(self, name: str, lines: Int64[np.ndarray, "line"]) -> Float[np.ndarray, "line width"]:
        """Some lines in the order given; the file is read in chunks from the first line to the last."""
        tensor = self._tensors[name]
        order = np.argsort(lines, kind="stable")
        ascending = lines[order]
        numbers = np.empty((len(lines), tensor.shape[-1]), np.float64 if tensor.type == _F64 else np.float32)
        digest, step = hashlib.sha256(), max(1, _CHUNK // tensor.line_bytes)
        with open_plain(self.path) as file:
            file.seek(tensor.start)
            for first in range(0, tensor.lines, step):
                expected = min(step, tensor.lines - first) * tensor.line_bytes
                raw = file.read(expected)
                if len(raw) < expected:
                    raise BridgeError(f"{self.path}: truncated since it was opened: {name} cannot be read")
                digest.update(raw)
                begin, end = np.searchsorted(ascending, (first, first + step))
                if begin < end:
                    kept = np.frombuffer(raw, np.uint8).reshape(-1, tensor.line_bytes)[ascending[begin:end] - first]
                    numbers[order[begin:end]] = _decode(self.path, kept, tensor.type)
        self._digests[name] = digest.hexdigest()
        return finite(self.path, name, numbers)


@dataclass
class _Header:
    """Reads a header from its first byte to its last, and nothing beyond the end of the file."""

    path: Path
    file: BinaryIO
    size: int
    at: int = 0

    def start(self) -> tuple[int, int]:
        """Numbers of tensors and of entries."""
        if (magic := self._take(min(4, self.size), "the file")) != b"GGUF":
            raise BridgeError(f"{self.path}: not a GGUF file: it begins with {magic!r}, expected b'GGUF'")
        raw = self._take(4, "the version")
        version, swapped = int.from_bytes(raw, "little"), int.from_bytes(raw, "big")
        if version not in _VERSIONS:
            given = "is big-endian" if swapped in _VERSIONS else f"has version {version}"
            raise BridgeError(f"{self.path}: this GGUF file {given}: convert it to little-endian version 3")
        # At the least a name, no dimensions, a type and an offset; a key, a type and a byte.
        return self._count(8 + 4 + 4 + 8, "the list of tensors"), self._count(8 + 4 + 1, "the metadata")

    def metadata(self, entries: int) -> dict[str, MetadataValue]:
        metadata: dict[str, MetadataValue] = {}
        for _ in range(entries):
            key = self._name("a key", metadata)
            metadata[key] = self._value(key)
        return metadata

    def tensors(self, count: int, alignment: MetadataValue) -> tuple[dict[str, _Tensor], int]:
        """The tensors by name, and the first byte of their data."""
        if type(alignment) is not int or alignment not in _ALIGNMENTS:
            raise self._damaged("general.alignment", "it is no power of two up to 2^20")
        listed: dict[str, tuple[tuple[int, ...], int, int]] = {}
        for _ in range(count):
            name = self._name("the name of a tensor", listed)
            listed[name] = self._shape(name), self._integer(4, name), self._integer(8, name)
        data = -(-self.at // alignment) * alignment
        tensors: dict[str, _Tensor] = {}
        for name, (shape, kind, offset) in listed.items():
            block, size = _gguf(self.path).GGML_QUANT_SIZES.get(kind, (1, 0))
            tensors[name] = tensor = _Tensor(shape, kind, data + offset, shape[-1] // block * size)
            if offset % alignment or shape[-1] % block:
                raise self._damaged(name, f"offset {offset}, {shape[-1]} columns: not whole {alignment}s and {block}s")
            if tensor.end > self.size:
                raise self._cut(f"tensor {name} ends at byte {tensor.end}")
        for before, after in pairwise(sorted(tensors, key=lambda name: tensors[name].start)):
            if tensors[before].end > tensors[after].start:
                raise self._damaged(after, f"it begins inside {before}")
        return tensors, data

    def _shape(self, name: str) -> tuple[int, ...]:
        dimensions = self._integer(4, name)
        if not 1 <= dimensions <= 4:
            raise self._damaged(name, f"it has {dimensions} dimensions, expected 1 to 4")
        shape = tuple([self._integer(8, name) for _ in range(dimensions)][::-1])
        if 0 in shape:
            raise self._damaged(name, f"its shape is {shape}, expected 1 or more everywhere")
        return shape

    def _value(self, key: str) -> MetadataValue:
        kind = self._integer(4, key)
        if kind == _STRING:
            return self._strings(key, 1)[0]
        if kind != _ARRAY:
            return self._numbers(key, kind, 1)[0].item()
        kind = self._integer(4, key)
        if kind == _STRING:
            return self._strings(key, self._count(8, key))
        return self._numbers(key, kind, self._integer(8, key))

    def _numbers(self, key: str, kind: int, count: int) -> Shaped[np.ndarray, "element"]:
        if kind not in _SCALARS:
            raise self._damaged(key, f"it is, or holds, values of type {kind}: expected numbers, strings or one array")
        dtype = np.dtype(_SCALARS[kind])
        raw = self._take(count * dtype.itemsize, key)
        if dtype.kind == "b" and raw.strip(b"\0\1"):
            raise self._damaged(key, "truth values must be 0 or 1")
        return np.frombuffer(raw, dtype)

    def _name(self, what: str, taken: Container[str]) -> str:
        # Names stand in messages, which are one line.
        name = self._strings(what, 1)[0]
        if name in taken or len(name) > _LONGEST_NAME or not name.isprintable():
            raise self._damaged(what, f"{name[:64]!r} stands there twice, is too long, or cannot be printed")
        return name

    def _strings(self, what: str, count: int) -> tuple[str, ...]:
        # One loop without calls: a vocabulary and its merges are some hundred thousand strings.
        strings: list[str] = []
        try:
            for _ in range(count):
                length = int.from_bytes(self.file.read(8), "little")
                self.at += 8 + length
                if self.at > self.size:
                    raise self._cut(f"{what} has a string that ends at byte {self.at}")
                strings.append(self.file.read(length).decode())
        except UnicodeDecodeError:
            raise self._damaged(what, "a string of it is not UTF-8") from None
        return tuple(strings)

    def _count(self, least: int, what: str) -> int:
        """A count of things that take `least` bytes each or more."""
        count = self._integer(8, what)
        if count * least > self.size - self.at:
            raise self._cut(f"{what} asks for {count} elements at byte {self.at}")
        return count

    def _integer(self, width: int, what: str) -> int:
        return int.from_bytes(self._take(width, what), "little")

    def _take(self, count: int, what: str) -> bytes:
        if count > self.size - self.at or len(raw := self.file.read(count)) < count:
            raise self._cut(f"{what} asks for {count} bytes at byte {self.at}")
        self.at += count
        return raw

    def _cut(self, what: str) -> BridgeError:
        return BridgeError(f"{self.path}: truncated or damaged: {what}, the file has {self.size} bytes")

    def _damaged(self, what: str, why: str) -> BridgeError:
        return BridgeError(f"{self.path}: the header is damaged: {what}: {why}")


def _gguf(path: Path) -> ModuleType:
    try:
        import gguf
    except ImportError:
        install = "pip install 'attention-carrier[models]'"
        raise BridgeError(f"{path}: reading GGUF needs the package gguf: {install}") from None
    return gguf


def _decode(path: Path, raw: UInt8[np.ndarray, "line byte"], kind: int) -> Float[np.ndarray, "line width"]:
    if kind == _F64:
        return raw.view("<f8")
    gguf = _gguf(path)
    # Scales that are not finite show in the numbers; a warning would say less.
    with np.errstate(over="ignore", invalid="ignore"):
        return gguf.dequantize(raw, gguf.GGMLQuantizationType(kind))
