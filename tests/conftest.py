"""Shape checks for every annotated function and dataclass, and the runs that several tests look at."""

from __future__ import annotations

import os
from pathlib import Path

from jaxtyping import install_import_hook

install_import_hook(["theory", "empirics", "bridge"], "shapes.checked")

import pytest  # noqa: E402

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def models() -> Path:
    """Small real checkpoints, read from beside the repository and never committed."""
    folder = Path(os.environ.get("CARRIER_MODELS", ROOT.parent / "shared" / "models"))
    if not (folder / "stories260K.bin").is_file():
        pytest.skip(f"no real checkpoints at {folder}: set CARRIER_MODELS to their folder")
    return folder
