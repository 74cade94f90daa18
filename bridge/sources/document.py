"""A stretch of text that belongs together, read a part at a time: a file may be larger than memory.

Parts are counted in bytes, which a file can be entered at; a character cut at the edge of a part is
left out of both sides.

Source: ours.
"""

from __future__ import annotations

import codecs
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

from bridge.errors import BridgeError
from bridge.sources.tensors import open_plain

_CONTINUATION = bytes(range(0x80, 0xC0))
_PIECE = 1 << 16


@runtime_checkable
class Document(Protocol):
    """Text of a known size under a name."""

    @property
    def name(self) -> str:
        """What it is, for a person."""
        ...

    @property
    def size(self) -> int:
        """Bytes of its UTF-8."""
        ...

    def read(self, start: int, stop: int) -> str:
        """Text of the bytes from `start` to before `stop`, less a character cut at either and a byte-order mark.

        Raises BridgeError where it can no longer be read.
        """
        ...


@dataclass(frozen=True)
class FileDocument:
    """A file of UTF-8. Line breaks stay as the file has them."""

    name: str
    path: Path
    size: int

    def read(self, start: int, stop: int) -> str:
        """As `Document.read`."""
        try:
            with self.path.open("rb") as file:
                file.seek(start)
                raw = file.read(max(min(stop, self.size) - start, 0))
            return _decoded(raw, start)
        except (OSError, UnicodeDecodeError) as error:
            raise unreadable(self.path, error) from None


@dataclass(frozen=True)
class HeldDocument:
    """UTF-8 in memory."""

    name: str
    content: bytes

    @property
    def size(self) -> int:
        """Bytes of its UTF-8."""
        return len(self.content)

    def read(self, start: int, stop: int) -> str:
        """As `Document.read`."""
        return _decoded(self.content[start:stop], start)


def file_document(path: Path, name: str) -> FileDocument:
    """A file all of which is UTF-8. Raises BridgeError for one that is not, is empty or cannot be read."""
    # A pipe would be waited for, and cannot be entered twice.
    if path.exists() and not path.is_file():
        raise BridgeError(f"cannot read the text {path}: neither a file nor a folder")
    decoder = codecs.getincrementaldecoder("utf-8")()
    size = 0
    try:
        with open_plain(path) as file:
            while raw := file.read(_PIECE):
                size += len(raw)
                decoder.decode(raw)
        decoder.decode(b"", final=True)
    except (OSError, UnicodeDecodeError) as error:
        raise unreadable(path, error) from None
    if not size:
        raise BridgeError(f"the text {path} is empty: give another")
    return FileDocument(name, path, size)


def unreadable(path: Path, error: OSError | UnicodeDecodeError) -> BridgeError:
    """What to raise where a text cannot be read."""
    reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
    return BridgeError(f"cannot read the text {path}: {reason}")


def _decoded(raw: bytes, start: int) -> str:
    """UTF-8 from byte `start` of a document."""
    raw = raw.lstrip(_CONTINUATION) if start else raw.removeprefix(codecs.BOM_UTF8)
    return codecs.getincrementaldecoder("utf-8")().decode(raw)
