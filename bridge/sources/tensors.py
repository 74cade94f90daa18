"""Named tensors on disk, each read when it is asked for and hashed as it is read.

A checkpoint may be larger than memory, and a layer's attention is a few parts in a thousand of
it: so nothing is read but what is asked for, through plain reads (mapped pages would count as
memory), and of a vocabulary only the rows of tokens that occur are kept.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from io import BufferedReader
from pathlib import Path
from typing import Protocol, runtime_checkable

import numpy as np
from jaxtyping import Float, Int64

from bridge.errors import BridgeError

_POINTER = b"version https://git-lfs"


@runtime_checkable
class TensorSource(Protocol):
    """The tensors of a checkpoint by name."""

    @property
    def names(self) -> frozenset[str]:
        """Every tensor that is there."""
        ...

    @property
    def digests(self) -> Mapping[str, str]:
        """sha256 in hexadecimal of the stored bytes of each tensor read so far, by name."""
        ...

    def shape(self, name: str) -> tuple[int, ...]:
        """Rows first. Raises BridgeError for a tensor that is not there."""
        ...

    def read(self, name: str) -> Float[np.ndarray, "..."]:
        """The whole tensor. Raises BridgeError for one that is not there, cut, or not finite."""
        ...

    def rows(self, name: str, rows: Int64[np.ndarray, "row"]) -> Float[np.ndarray, "row ..."]:
        """Some rows of a tensor, in the order given; all of it is hashed. Raises BridgeError as `read`."""
        ...


def open_plain(path: Path) -> BufferedReader:
    """A file opened for reading. Raises BridgeError where there is none, or a git-LFS pointer in its place."""
    if path.is_dir() or not path.exists():
        raise BridgeError(f"{path}: {'a folder, not a file' if path.is_dir() else 'no such file'}")
    file = path.open("rb")
    if file.read(len(_POINTER)) == _POINTER:
        file.close()
        raise BridgeError(f"{path}: a git-LFS pointer, not the file it stands for: run git lfs pull")
    file.seek(0)
    return file


def file_sha256(path: Path) -> str:
    """sha256 of a whole file in hexadecimal. Raises BridgeError as `open_plain`."""
    with open_plain(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def finite(path: Path, name: str, tensor: Float[np.ndarray, "..."]) -> Float[np.ndarray, "..."]:
    """The tensor itself. Raises BridgeError where a number of it is not finite."""
    if not np.isfinite(tensor).all():
        raise BridgeError(f"{path}: {name} holds numbers that are not finite: the file is damaged")
    return tensor
