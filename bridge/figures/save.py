"""A result on disk: its table as CSV, its picture as PNG, SVG and PDF. Saved twice it has the same bytes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import matplotlib
from matplotlib.figure import Figure

from bridge.errors import BridgeError
from bridge.figures.style import STYLE
from bridge.tables import Table


def save_results(folder: Path, name: str, table: Table, figure: Figure | None = None) -> tuple[Path, ...]:
    """A table as CSV and its picture as PNG, SVG and PDF. Raises BridgeError where that fails."""
    text = folder / f"{name}.csv"
    with _writing(folder):
        text.write_text(table.csv())
    return (text, *(() if figure is None else save_figure(folder, name, figure)))


def save_figure(folder: Path, name: str, figure: Figure) -> tuple[Path, ...]:
    """A picture as PNG, SVG and PDF, without dates. Raises BridgeError where that fails."""
    png, svg, pdf = (folder / f"{name}.{suffix}" for suffix in ("png", "svg", "pdf"))
    with _writing(folder), matplotlib.rc_context(STYLE):
        figure.savefig(png, dpi=160, metadata={"Software": "carrier"})
        figure.savefig(svg, metadata={"Date": None})
        figure.savefig(pdf, metadata={"CreationDate": None})
    return png, svg, pdf


@contextmanager
def _writing(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise BridgeError(f"cannot write to {folder}: {error.strerror}; choose another --out") from None
