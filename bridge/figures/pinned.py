"""Heads of a model with learned positions in one picture: what each looks at, and where it is pinned beyond."""

from __future__ import annotations

from collections.abc import Sequence

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bridge.figures.style import BLUE, GREY, ORANGE, STYLE
from bridge.pinned import PinnedReport


def pinned_figure(reports: Sequence[PinnedReport], trained_length: int) -> Figure:
    """Left: the peak of the last trained query, and its offset; right: that of an untrained query, and its position."""
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(9.0, max(3.0, 0.24 * len(reports) + 1.6)), layout="constrained")
        trained, beyond = figure.subplots(1, 2, sharey=True)
        places = np.arange(len(reports))
        looking = [(report.share, report.share_error, f"{report.offset}") for report in reports]
        pinned = [(report.pinned_share, report.pinned_error, f"at {report.pinned}") for report in reports]
        _draw(trained, looking, places, BLUE)
        _draw(beyond, pinned, places, ORANGE)
        trained.set_xlabel(f"mean attention of the query at {trained_length - 1} on its peak\n(number: the offset)")
        beyond.set_xlabel(f"that of the query at {trained_length}, whose row is untrained\n(number: the position)")
        trained.set_ylabel("head")
        trained.set_yticks(places, [f"{report.head}" for report in reports])
        trained.set_ylim(len(reports) - 0.5, -0.5)
    return figure


def _draw(panel: Axes, peaks: Sequence[tuple[float, float, str]], places: np.ndarray, colour: str) -> None:
    for place, (share, error, name) in zip(places, peaks, strict=True):
        panel.errorbar(share, place, xerr=error, fmt="o", ms=4, color=colour, ecolor=GREY, elinewidth=1)
        panel.annotate(name, (share, place), (6, 0), textcoords="offset points", va="center", fontsize=7.5)
    panel.set_xlim(0, max(0.1, 1.25 * max(share for share, _, _ in peaks)))
    panel.grid(axis="y", color="#EEEEEE", lw=0.6)
