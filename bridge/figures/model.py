"""All heads of a model in one picture: a row a layer, a column a head, coloured by class.

A colour deepens with the share of attention that the class is about: on the observed offset, or on the first token
for a sink. The colours are of the Okabe-Ito set and differ in lightness, so that they are told apart in grey too.

Source: `bridge.calibrated` (classes), `bridge.trust` (flags).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from bridge.calibrated import CalibratedReport
from bridge.errors import BridgeError
from bridge.figures.style import STYLE

COLOURS = {
    "positional": "#0072B2",
    "self": "#000000",
    "sink": "#E69F00",
    "content": "#009E73",
    "mixed": "#F0E442",
}
"""Class to colour, in the order of the legend and of the bars."""

_PALEST = 0.25
_TOO_DARK = 0.45
_TYPE = 6.5
_TRIANGLE = ((-1, 1), (1, 1), (1, -1))

# All in inches. Cells have a size of their own, whatever is beside them.
_LARGEST = (9.3, 13.2)
_ONE_LINE, _TWO_LINES = (0.46, 0.14), (0.29, 0.26)
_LABEL = (0.22, 0.15)
_LEFT, _TOP, _BOTTOM, _GAP = 0.6, 0.12, 0.55, 0.15
_BARS, _LEGEND, _KEY = 1.4, (2.2, 2.4), 1.5


@dataclass(frozen=True)
class _Grid:
    """Where heads stand: the layers and heads that are reported, in order, and a cell's width and height in inches."""

    layers: tuple[int, ...]
    heads: tuple[int, ...]

    @property
    def cell(self) -> tuple[float, float]:
        return min(0.52, _LARGEST[0] / len(self.heads)), min(0.28, _LARGEST[1] / len(self.layers))

    @property
    def separator(self) -> str | None:
        """What stands between the numbers in a cell, None where they have no room."""
        fits = (np.greater_equal(self.cell, least).all() for least in (_ONE_LINE, _TWO_LINES))
        return next((between for between, does in zip(("  ", "\n"), fits, strict=True) if does), None)

    def place(self, report: CalibratedReport) -> tuple[int, int]:
        """Column and row of a report."""
        return self.heads.index(report.head), self.layers.index(report.layer)


def model_figure(reports: Sequence[CalibratedReport]) -> Figure:
    """Left: heads in their layers, the offset and its share written on positional and self heads, flagged ones marked;
    right, where a layer has several heads: how many of each class.

    Reports come in any order, of any layers and heads. Raises BridgeError where there are none.
    """
    if not reports:
        raise BridgeError("a picture of heads needs one report or more, got none")
    grid = _Grid(
        tuple(sorted({report.layer for report in reports})), tuple(sorted({report.head for report in reports}))
    )
    width, height = grid.cell[0] * len(grid.heads), grid.cell[1] * len(grid.layers)
    counted = len(reports) > len(grid.layers)
    right = _LEFT + width + _GAP + counted * (_BARS + _GAP)
    size = right + _LEGEND[0], max(_TOP + height + _BOTTOM, _LEGEND[1])
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=size)
        panel = _axes(figure, _LEFT, width, height)
        _draw_heads(panel, grid, reports)
        _mark_flagged(panel, grid, reports)
        if counted:
            _draw_counts(_axes(figure, _LEFT + width + _GAP, _BARS, height), grid, reports)
        _legend(figure, right, reports, written=grid.separator is not None)
    return figure


def _axes(figure: Figure, left: float, width: float, height: float) -> Axes:
    """Axes of this size in inches, at the top of a figure."""
    across, down = figure.get_size_inches()
    return figure.add_axes((left / across, 1 - (_TOP + height) / down, width / across, height / down))


def _draw_heads(panel: Axes, grid: _Grid, reports: Sequence[CalibratedReport]) -> None:
    cells = np.zeros((len(grid.layers), len(grid.heads), 4))
    for report in reports:
        column, row = grid.place(report)
        colour = _colour(report)
        cells[row, column] = (*colour, 1)
        if grid.separator and report.kind in ("positional", "self"):
            panel.text(
                column,
                row,
                f"{report.seen.offset}{grid.separator}" + f"{report.seen.share:.2f}".removeprefix("0"),
                ha="center",
                va="center",
                fontsize=_TYPE,
                linespacing=0.95,
                color="white" if _lightness(colour) < _TOO_DARK else "black",
            )
    edges = (np.arange(len(places) + 1) - 0.5 for places in (grid.heads, grid.layers))
    panel.pcolormesh(*edges, cells, edgecolors="white", linewidth=0.6)
    steps = [int(np.ceil(label / size)) for label, size in zip(_LABEL, grid.cell, strict=True)]
    panel.set_xticks(range(0, len(grid.heads), steps[0]), [str(head) for head in grid.heads[:: steps[0]]])
    panel.set_yticks(range(0, len(grid.layers), steps[1]), [str(layer) for layer in grid.layers[:: steps[1]]])
    panel.set_ylim(len(grid.layers) - 0.5, -0.5)
    panel.tick_params(length=0, labelsize=7.5)
    panel.spines[:].set_visible(False)
    panel.set_xlabel("head")
    panel.set_ylabel("layer")


def _mark_flagged(panel: Axes, grid: _Grid, reports: Sequence[CalibratedReport]) -> None:
    """A triangle in the upper right corner, a third of the lesser side of a cell."""
    side = 0.18 * min(grid.cell)
    reach = np.array((side / grid.cell[0], -side / grid.cell[1]))
    corners = [grid.place(report) for report in reports if report.trust.flags]
    triangles = [np.array(corner) + (0.46, -0.46) + reach * (np.array(_TRIANGLE) - 1) for corner in corners]
    panel.add_collection(
        PolyCollection(triangles, facecolors="black", edgecolors="white", linewidths=0.4), autolim=False
    )


def _draw_counts(panel: Axes, grid: _Grid, reports: Sequence[CalibratedReport]) -> None:
    counts = Counter((report.kind, report.layer) for report in reports)
    left = np.zeros(len(grid.layers))
    for kind, colour in COLOURS.items():
        lengths = np.array([counts[kind, layer] for layer in grid.layers], dtype=float)
        panel.barh(range(len(left)), lengths, 0.86, left, color=colour, edgecolor="white", linewidth=0.5, label=kind)
        left += lengths
    panel.set_ylim(len(left) - 0.5, -0.5)
    panel.set_yticks([])
    panel.tick_params(axis="x", labelsize=7.5)
    panel.set_xlim(0, left.max())
    panel.xaxis.set_major_locator(MaxNLocator(4, integer=True))
    panel.spines["left"].set_visible(False)
    panel.set_xlabel("heads (number)")


def _legend(figure: Figure, left: float, reports: Sequence[CalibratedReport], written: bool) -> None:
    counts = Counter(report.kind for report in reports)
    flagged = sum(bool(report.trust.flags) for report in reports)
    classes = [Patch(color=colour, label=f"{kind} ({counts[kind]})") for kind, colour in COLOURS.items()]
    mark = Line2D([], [], ls="", marker=list(_TRIANGLE), color="black", label=f"prediction flagged ({flagged})")
    across, down = figure.get_size_inches()
    figure.legend(
        handles=[*classes, mark],
        loc="upper left",
        bbox_to_anchor=(left / across, 1 - _TOP / down),
        borderaxespad=0,
        borderpad=0,
        title="class (heads)",
        title_fontsize=8.5,
        alignment="left",
    )
    key = "deeper colour: greater share of\nattention on the offset, for a\nsink on the first token"
    if written:
        key += "\n\nwritten: that offset and share"
    figure.text(left / across, 1 - (_TOP + _KEY) / down, key, va="top", fontsize=8.5)


def _colour(report: CalibratedReport) -> tuple[float, float, float]:
    """The colour of the class, mixed with white where the share is low."""
    share = report.seen.sink if report.kind == "sink" else report.seen.share
    depth = _PALEST + (1 - _PALEST) * share
    red, green, blue = (1 - depth * (1 - part) for part in to_rgb(COLOURS[report.kind]))
    return red, green, blue


def _lightness(colour: tuple[float, float, float]) -> float:
    """Luma of a colour, 0 for black and 1 for white."""
    return float(np.dot(colour, (0.299, 0.587, 0.114)))
