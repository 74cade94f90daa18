"""A result on disk: its table as CSV, its picture as PNG and SVG. Saved twice it has the same bytes."""

from __future__ import annotations

from pathlib import Path

import matplotlib
from matplotlib.figure import Figure

from bridge.errors import BridgeError
from bridge.figures.style import STYLE
from bridge.tables import Table


def save_results(folder: Path, name: str, table: Table, figure: Figure | None = None) -> tuple[Path, ...]:
    """A table as CSV and its picture as PNG and SVG. Raises BridgeError where that fails."""
    text, png, svg = (folder / f"{name}.{suffix}" for suffix in ("csv", "png", "svg"))
    try:
        text.write_text(table.csv())
        if figure is None:
            return (text,)
        _save_figure(figure, png, svg)
    except OSError as error:
        raise BridgeError(f"cannot write to {folder}: {error.strerror}; choose another --out") from None
    return text, png, svg


def _save_figure(figure: Figure, png: Path, svg: Path) -> None:
    """Write a figure as PNG and as SVG, without dates."""
    with matplotlib.rc_context(STYLE):
        figure.savefig(png, dpi=160, metadata={"Software": "carrier"})
        figure.savefig(svg, metadata={"Date": None})
