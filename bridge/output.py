"""Where results go: a folder that is known to be writable before any work is done."""

from __future__ import annotations

import tempfile
from pathlib import Path

from matplotlib.figure import Figure

from bridge.errors import BridgeError
from bridge.figures.style import save_figure
from bridge.tables import Table


def output_folder(path: Path) -> Path:
    """The folder, made where it is absent. Raises BridgeError where it cannot be written."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path):
            pass
    except OSError as error:
        raise BridgeError(f"cannot write to {path}: {error.strerror}; choose another --out") from None
    return path


def save_results(folder: Path, name: str, table: Table, figure: Figure | None = None) -> tuple[Path, ...]:
    """A table as CSV and its picture as PNG and SVG. Raises BridgeError where that fails."""
    text, png, svg = (folder / f"{name}.{suffix}" for suffix in ("csv", "png", "svg"))
    try:
        text.write_text(table.csv())
        if figure is None:
            return (text,)
        save_figure(figure, png, svg)
    except OSError as error:
        raise BridgeError(f"cannot write to {folder}: {error.strerror}; choose another --out") from None
    return text, png, svg
