"""Pictures of the study of limits: predicted against counted, against length, and under other positions."""

from __future__ import annotations

from collections.abc import Sequence

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter

from bridge.figures.style import BLUE, GREEN, GREY, ORANGE, PURPLE, STYLE, add_legend
from bridge.limits import LEVEL
from bridge.studies.limits_heads import COUNTED, RATES, HeadLimits
from theory.content_limits import Refinement

_LOOKS = {
    Refinement.MEAN_QUERY: (ORANGE, "^", "none"),
    Refinement.MOMENTS: (GREEN, "s", "none"),
    Refinement.EACH_QUERY: (BLUE, "o", BLUE),
}
_LAW = Refinement.EACH_QUERY
_CHANGED = (BLUE, ORANGE, GREEN, PURPLE, "#E69F00", "#56B4E9")
_LINES = ("-", "--", "-.", ":", (0, (6, 2, 1, 2)), (0, (3, 1)))


def errors_figure(heads: Sequence[HeadLimits]) -> Figure:
    """Every head at every length: closed forms against what was counted, a panel a rate."""
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(11.0, 4.3), layout="constrained")
        for place, (panel, rate) in enumerate(zip(figure.subplots(1, 3), RATES, strict=True)):
            counted = np.concatenate([head.of(COUNTED)[:, place] for head in heads])
            for refinement, (colour, mark, face) in _LOOKS.items():
                told = np.concatenate([head.of(refinement)[:, place] for head in heads])
                panel.plot(counted, told, mark, ms=3, color=colour, mfc=face, mew=0.6, label=refinement.value)
            ends = (float(counted.min()), float(counted.max()))
            panel.plot(ends, ends, color=GREY, ls=":", lw=0.9, label="predicted is counted")
            panel.set_xlabel(f"{rate}, counted (probability)")
            panel.set_title(rate)
        figure.axes[0].set_ylabel("by closed form (probability)")
        add_legend(figure, figure.axes[0], columns=4)
    return figure


def lengths_figure(heads: Sequence[HeadLimits]) -> Figure:
    """Rates against the length of the context: a line a head by the law, counted points, and what they tend to."""
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(11.0, 4.3), layout="constrained")
        for place, (panel, rate) in enumerate(zip(figure.subplots(1, 3), RATES, strict=True)):
            for head in heads:
                panel.plot(
                    head.lengths, head.of(_LAW)[:, place], color=BLUE, lw=0.7, alpha=0.5, label="law, a head a line"
                )
                panel.errorbar(
                    head.lengths,
                    head.of(COUNTED)[:, place],
                    yerr=head.error(COUNTED)[:, place],
                    fmt="o",
                    ms=2.2,
                    color=ORANGE,
                    elinewidth=0.6,
                    label="counted",
                )
            if place < 2:
                panel.axhline(0.5, color=GREY, ls=":", lw=0.9, label="an endless context: 1/2")
            if place == 0:
                panel.axhline(LEVEL, color=GREEN, ls="-.", lw=0.9, label=f"locality is gone: {LEVEL:g}")
            _length_axis(panel)
            panel.set_ylabel(f"{rate} (probability)")
            panel.set_title(rate)
        panel.set_yscale("log")
        for axis in (panel.yaxis.set_major_formatter, panel.yaxis.set_minor_formatter):
            axis(lambda value, _: f"{value:g}" if f"{value:e}"[0] in "125" else "")
        add_legend(figure, figure.axes[0], columns=4)
    return figure


def changes_figure(heads: Sequence[HeadLimits]) -> Figure:
    """Means over heads against length under the model's own positions and under changed ones."""
    names = [name.removesuffix(", law") for name in heads[0].series if name.endswith(", law")]
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(8.6, 4.3), layout="constrained")
        for place, (panel, rate) in enumerate(zip(figure.subplots(1, 2, sharey=True), RATES[:2], strict=True)):
            for look, name in enumerate(["own positions", *names]):
                series = _LAW.value if name == "own positions" else f"{name}, law"
                mean = np.mean([head.of(series)[:, place] for head in heads], axis=0)
                panel.plot(heads[0].lengths, mean, color=_CHANGED[look], ls=_LINES[look], label=name)
            panel.axhline(0.5, color=GREY, ls=":", lw=0.9, label="an endless context: 1/2")
            _length_axis(panel)
            panel.set_title(rate)
        figure.axes[0].set_ylabel("mean over heads (probability)")
        add_legend(figure, figure.axes[0], columns=4)
    return figure


def _length_axis(panel: Axes) -> None:
    panel.set_xscale("log")
    panel.xaxis.set_major_formatter(EngFormatter(sep=""))
    panel.set_xlabel("context length L (tokens)")
