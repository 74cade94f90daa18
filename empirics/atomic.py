"""Files and folders that are whole or not there: written under a temporary name, flushed, renamed.

A process that is killed at any moment leaves what was there before, or what it was to write, and
at most a hidden rest that `clear` removes later.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

_PARTIAL = ".partial-"
_STALE_SECONDS = 3600


def write_file(target: Path, data: bytes) -> None:
    """Write a file in place of the one that may be there. Raises OSError."""
    descriptor, name = tempfile.mkstemp(prefix=_PARTIAL, dir=target.parent)
    os.close(descriptor)
    partial = Path(name)
    try:
        _write_flushed(partial, data)
        partial.chmod(0o644)
        partial.replace(target)
        _flush_folder(target.parent)
    finally:
        partial.unlink(missing_ok=True)


def write_folder(target: Path, files: Mapping[str, bytes]) -> None:
    """Write a folder of files; where another process was first, its folder stays. Raises OSError."""
    partial = Path(tempfile.mkdtemp(prefix=_PARTIAL, dir=target.parent))
    try:
        for name, data in files.items():
            _write_flushed(partial / name, data)
        _flush_folder(partial)
        partial.chmod(0o755)
        if not target.exists():
            with contextlib.suppress(FileExistsError):
                _rename(partial, target)
            _flush_folder(target.parent)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def clear(root: Path) -> None:
    """Remove what killed processes left in a folder an hour ago or more: to write one takes milliseconds."""
    for partial in root.glob(_PARTIAL + "*"):
        with contextlib.suppress(FileNotFoundError):
            if time.time() - partial.stat().st_mtime > _STALE_SECONDS:
                if partial.is_dir():
                    shutil.rmtree(partial, ignore_errors=True)
                else:
                    partial.unlink()


def _write_flushed(path: Path, data: bytes) -> None:
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _flush_folder(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _rename(partial: Path, target: Path) -> None:
    """Rename a folder. Raises FileExistsError where the target has come to be and is not empty."""
    try:
        partial.rename(target)
    except OSError as error:
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
            raise FileExistsError(error.errno, error.strerror) from None
        raise
