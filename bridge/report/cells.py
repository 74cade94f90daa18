"""A mesh or an image of matplotlib as plotly's heatmap: cells with numbers, or cells that have a colour each.

Source: `matplotlib.collections.QuadMesh`, `matplotlib.image`; https://plotly.com/javascript/reference/heatmap.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from jaxtyping import Float64
from matplotlib.axes import Axes
from matplotlib.collections import QuadMesh
from matplotlib.colors import to_hex
from matplotlib.image import AxesImage

from bridge.documents import Document
from bridge.report.scales import Scale

Cells = QuadMesh | AxesImage
_SHADES = 17


def cells_in(panel: Axes) -> list[Cells]:
    """The meshes and images of a panel."""
    return [one for one in panel.get_children() if isinstance(one, Cells)]


def heatmap(cells: Cells, horizontal: Scale, vertical: Scale) -> Document:
    """Cells between their edges. Hover says where one is, and its number where it has one."""
    across, down = _edges(cells)
    values: np.ndarray = np.ma.filled(np.ma.asarray(cells.get_array(), dtype=float), np.nan)
    shown = _coloured(values) if values.ndim == 3 else _numbered(cells, values)
    told = [
        [f"{horizontal.said(column)}<br>{vertical.said(row)}" for column in (across[1:] + across[:-1]) / 2]
        for row in (down[1:] + down[:-1]) / 2
    ]
    gap = {"xgap": 1, "ygap": 1} if isinstance(cells, QuadMesh) and len(np.atleast_1d(cells.get_edgecolor())) else {}
    places = {"x": across.tolist(), "y": down.tolist(), "text": told}
    return {"type": "heatmap"} | places | shown | gap | {"hoverongaps": False}


def _edges(cells: Cells) -> tuple[Float64[np.ndarray, "column_edge"], Float64[np.ndarray, "row_edge"]]:
    if isinstance(cells, QuadMesh):
        corners = np.asarray(cells.get_coordinates(), dtype=float)
        return corners[0, :, 0], corners[:, 0, 1]
    rows, columns = np.asarray(cells.get_array()).shape[:2]
    left, right, bottom, top = cells.get_extent()
    first, last = (top, bottom) if cells.origin == "upper" else (bottom, top)
    return np.linspace(left, right, columns + 1), np.linspace(first, last, rows + 1)


def _coloured(values: Float64[np.ndarray, "row column channel"]) -> Document:
    """Each colour is a number on a scale of exactly these colours; what is transparent is no cell."""
    palette, index = np.unique(values.reshape(-1, values.shape[2]), axis=0, return_inverse=True)
    opaque = values[..., 3] > 0 if values.shape[2] == 4 else np.ones(values.shape[:2], dtype=bool)
    numbers = np.where(opaque, index.reshape(values.shape[:2]), np.nan)
    last = max(len(palette) - 1, 1)
    steps: list[list[Any]] = [[number / last, to_hex(tuple(color))] for number, color in enumerate(palette)]
    # A scale has two ends, even where all cells are alike.
    scale = steps if len(steps) > 1 else [steps[0], [1, steps[0][1]]]
    return _scaled(numbers, 0.0, float(last), scale, "%{text}") | {"showscale": False}


def _numbered(cells: Cells, values: Float64[np.ndarray, "row column"]) -> Document:
    low, high = (float(end) for end in cells.get_clim())
    shades: list[list[Any]] = [[float(step), to_hex(cells.cmap(float(step)))] for step in np.linspace(0, 1, _SHADES)]
    if cells.colorbar is None:
        return _scaled(values, low, high, shades, "%{text}<br>%{z:.4~g}") | {"showscale": False}
    label = cells.colorbar.ax.get_ylabel() or cells.colorbar.ax.get_xlabel()
    bar = {"title": {"text": label, "side": "right"}}
    return _scaled(values, low, high, shades, f"%{{text}}<br>{label}: %{{z:.4~g}}") | {"colorbar": bar}


def _scaled(
    numbers: Float64[np.ndarray, "row column"], low: float, high: float, scale: list[list[Any]], template: str
) -> Document:
    rows = [[None if np.isnan(number) else float(number) for number in row] for row in numbers]
    return {"z": rows, "zmin": low, "zmax": high, "colorscale": scale, "hovertemplate": f"{template}<extra></extra>"}
