"""The house style of the pictures.

Predictions are lines, observations points with error bars; every axis has a unit, the training
range is shaded, chance is dotted. Colours are the Okabe-Ito set, which colour-blind readers can
tell apart.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bridge.prediction import Prediction

BLUE, ORANGE, GREEN, PURPLE, GREY = "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#666666"
# In a PDF fonts are TrueType, which journals ask for, and text stays text.
STYLE: Any = {
    "axes.spines.top": False,
    "axes.spines.right": False,
    "font.size": 9.5,
    "legend.frameon": False,
    "legend.fontsize": 8.5,
    "svg.hashsalt": "carrier",
    "svg.fonttype": "path",
    "pdf.fonttype": 42,
}


def panels(count: int) -> tuple[Figure, tuple[Axes, ...]]:
    """A figure of so many panels side by side."""
    figure = Figure(figsize=(4.7 * count + 0.4, 4.4), layout="constrained")
    return figure, tuple(figure.subplots(1, count))


def draw_laws(panel: Axes, prediction: Prediction, bound: bool = True) -> None:
    """The laws of a prediction as lines against length, what was seen at short context as a level with its standard
    error, and uniform attention as the level of no selection."""
    order = np.argsort(prediction.lengths)
    lengths = np.asarray(prediction.lengths)[order]
    # A line through one point is not seen.
    marker = "_" if len(lengths) == 1 else None

    def draw(values: np.ndarray, color: str, dashes: Any, label: str) -> None:
        panel.plot(lengths, values[order], color=color, ls=dashes, marker=marker, ms=14, label=label)

    draw(prediction.exact, BLUE, "-", f"{prediction.law} law")
    draw(prediction.mean_profile, ORANGE, "--", "mean-profile law")
    if bound:
        draw(prediction.bound, GREEN, "-.", "margin bound")
    if prediction.seen is not None:
        level, error = prediction.seen
        draw(prediction.constant, PURPLE, (0, (6, 2, 1, 2)), "as at short context (band: 1 s.e.)")
        panel.fill_between(lengths, level - error, level + error, color=PURPLE, alpha=0.25, lw=0)
    draw(1 / np.asarray(prediction.lengths), GREY, ":", "uniform attention, 1/L")


def add_legend(figure: Figure, *axes: Axes, place: Any = "outside lower center", columns: int = 3) -> None:
    """One legend outside the panels, each entry once, so that it hides nothing."""
    entries: dict[str, Any] = {}
    for panel in axes:
        entries |= {label: handle for handle, label in zip(*panel.get_legend_handles_labels(), strict=True)}
    figure.legend(list(entries.values()), list(entries), loc=place, ncols=columns)
