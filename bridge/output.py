"""Where results go: a folder that is known to be writable before any work is done."""

from __future__ import annotations

import tempfile
from pathlib import Path

from bridge.errors import BridgeError


def output_folder(path: Path) -> Path:
    """The folder, made where it is absent. Raises BridgeError where it cannot be written."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path):
            pass
    except OSError as error:
        raise BridgeError(f"cannot write to {path}: {error.strerror}; choose another --out") from None
    return path
