"""Arrays kept on disk between calls: what a network computed, under names that say from what.

Source: ours.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

import numpy as np
from jaxtyping import Shaped

from bridge.errors import BridgeError

FORMAT = 1
"""Part of every name: raise it when what is kept under a name comes to mean something else."""


def default_cache() -> Path:
    """Where arrays are kept unless another folder is named: CARRIER_CACHE, else `carrier` in the user's cache."""
    own = os.environ.get("CARRIER_CACHE")
    return Path(own) if own else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "carrier"


def kept(file: Path) -> Shaped[np.ndarray, "..."] | None:
    """The array of a file, None where it is not there or not whole."""
    try:
        array = np.load(file, allow_pickle=False)
    except (OSError, ValueError, EOFError):
        return None
    return array if isinstance(array, np.ndarray) else None


def keep(file: Path, array: Shaped[np.ndarray, "..."]) -> None:
    """Write an array, whole or not at all. Raises BridgeError where that fails."""
    part = file.with_suffix(f".{os.getpid()}.part")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with part.open("wb") as opened:
            np.save(opened, array, allow_pickle=False)
        os.replace(part, file)
    except OSError as error:
        raise BridgeError(f"cannot write to {file.parent}: {error.strerror}; choose another --cache") from None
    finally:
        with suppress(OSError):
            part.unlink(missing_ok=True)
