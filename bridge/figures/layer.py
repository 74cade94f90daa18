"""All heads of a layer in one picture: how firmly each looks at its offset, and how that dilutes."""

from __future__ import annotations

from collections.abc import Sequence

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bridge.figures.style import BLUE, GREEN, GREY, ORANGE, STYLE
from bridge.inspect import HeadReport

_NAMED = 6
_COLOURS = (BLUE, ORANGE, GREEN, "#CC79A7", "#E69F00", "#56B4E9")


def layer_figure(reports: Sequence[HeadReport], trained_length: int) -> Figure:
    """Left: attention on the selected offset, head by head, and the carrier fractions; right: against length."""
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(10.5, max(3.6, 0.21 * len(reports) + 1.6)), layout="constrained")
        shares, fractions, dilution = figure.subplots(1, 3, width_ratios=(1.15, 0.8, 1.25))
        places = np.arange(len(reports))
        strongest = sorted(range(len(reports)), key=lambda i: -reports[i].share)[:_NAMED]
        colours = {index: colour for index, colour in zip(strongest, _COLOURS, strict=False)}
        _draw_shares(shares, reports, places, colours)
        _draw_fractions(fractions, reports, places)
        _draw_dilution(dilution, reports, colours, trained_length)
        for panel in (shares, fractions):
            panel.set_ylim(len(reports) - 0.5, -0.5)
            panel.set_yticks(places, [f"{report.layer}.{report.head}" for report in reports])
            panel.tick_params(axis="y", labelsize=7.5)
            panel.grid(axis="y", color="#EEEEEE", lw=0.6)
    return figure


def _draw_shares(panel: Axes, reports: Sequence[HeadReport], places: np.ndarray, colours: dict[int, str]) -> None:
    for place, report in zip(places, reports, strict=True):
        colour = colours.get(int(place), GREY)
        panel.errorbar(report.share, place, xerr=report.share_error, fmt="o", ms=4, color=colour, elinewidth=1)
        panel.annotate(
            f"{report.offset}", (report.share, place), (6, 0), textcoords="offset points", va="center", fontsize=7.5
        )
    reference = reports[0].reference_length
    panel.axvline(1 / reference, color=GREY, ls=":", lw=0.8)
    panel.set_xlim(0, max(0.1, 1.25 * max(report.share for report in reports)))
    panel.set_xlabel(f"expected attention at L={reference}\n(dotted: 1/L), on the selected offset (number)")
    panel.set_ylabel("head")


def _draw_fractions(panel: Axes, reports: Sequence[HeadReport], places: np.ndarray) -> None:
    carriers = [report.prediction.carrier for report in reports]
    panel.plot([carrier.query_fraction for carrier in carriers], places, "o", ms=4, color=BLUE, label="queries")
    panel.plot(
        [carrier.key_fraction for carrier in carriers], places, "s", ms=4, mfc="none", color=ORANGE, label="keys"
    )
    panel.set_xlim(0, 1)
    panel.set_xlabel("share of energy in the mean\n(carrier fraction)")
    panel.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=2)


def _draw_dilution(panel: Axes, reports: Sequence[HeadReport], colours: dict[int, str], trained_length: int) -> None:
    for index, report in enumerate(reports):
        prediction = report.prediction
        order = np.argsort(prediction.lengths)
        lengths, exact = np.asarray(prediction.lengths)[order], prediction.exact[order]
        named = index in colours
        panel.plot(
            lengths,
            exact,
            color=colours.get(index, "#CCCCCC"),
            lw=1.6 if named else 0.8,
            marker="o" if named else None,
            ms=3,
            zorder=2 + named,
            label=f"head {report.layer}.{report.head}, offset {report.offset}" if named else None,
        )
    panel.axvline(trained_length, color=GREY, lw=0.8, label=f"trained length, {trained_length}")
    panel.set_xscale("log", base=2)
    panel.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    panel.set_ylim(0, None)
    panel.set_xlabel("context length L (tokens)")
    panel.set_ylabel("predicted mean attention")
    panel.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=2, fontsize=7.5)
