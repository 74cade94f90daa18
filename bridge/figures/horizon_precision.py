"""The picture of explicit look-back heads: gaps and the thresholds of formats, and where heads break."""

from __future__ import annotations

from collections.abc import Sequence

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bridge.figures.style import BLUE, GREEN, GREY, ORANGE, PURPLE, STYLE, add_legend
from bridge.studies.explicit_heads import FORMATS, Outcome
from theory.horizon import BF16, FP16, FP32, FloatFormat
from theory.rounded_heads import Rounding
from theory.rounding import largest_number

_ARITHMETICS = {
    Rounding.WEIGHTS: (BLUE, "o", "-"),
    Rounding.SCORES: (GREEN, "^", "--"),
    Rounding.FUSED: (PURPLE, "v", "-."),
    Rounding.EAGER: (ORANGE, "s", ":"),
}
_THRESHOLDS = {FP16: ("--", -11, (6, -9)), BF16: ("-.", -11, (6, -10)), FP32: (":", 4, (-3, 8))}
_AMPLITUDE, _FARTHEST = 9e3, 1000
_RECORDS = (2, 8, 21, 27, 46, 335, 712)
"""Lengths that the near recurrences 1, 6, 19, 25, 44, 333 and 710 of 1 rad end, one token back."""


def precision_figure(swept: Sequence[Outcome]) -> Figure:
    """A head at 1 rad a token: the gap to each rival, then a panel a format with the length that breaks against C."""
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(9.8, 7.6), layout="constrained")
        gaps, *others = figure.subplots(2, 2).ravel()
        _gaps(gaps)
        for panel, precision in zip(others, FORMATS, strict=True):
            _lengths(panel, [one for one in swept if one.precision is precision], precision)
        add_legend(figure, gaps, others[0], columns=4)
    return figure


def _gaps(panel: Axes) -> None:
    """C (1 - cos n) by lag, the thresholds, and the first lag below each with its number."""
    lags = np.arange(1, _FARTHEST + 1)
    gaps = _AMPLITUDE * 2 * np.sin(lags / 2) ** 2
    panel.plot(lags, gaps, ".", ms=2.5, color=GREY, label="gap of a rival, C (1 - cos n)")
    for precision, (dashes, above, beside) in _THRESHOLDS.items():
        gap = precision.underflow_gap
        panel.axhline(gap, color=BLUE, lw=1, ls=dashes)
        told = f"{precision.name}: weight 0 above {gap:.1f}"
        panel.annotate(told, (1, gap), (0, above), textcoords="offset points", color=BLUE, fontsize=8)
        first = lags[gaps < gap][0]
        panel.plot(first, gaps[first - 1], "o", ms=7, mfc="none", color=ORANGE)
        panel.annotate(f"{first}", (first, gaps[first - 1]), beside, textcoords="offset points", color=ORANGE)
    _logarithmic(panel)
    panel.set_xlabel("lag n from the target (tokens)")
    panel.set_ylabel("gap (nats)")
    panel.set_title(f"theta = 1 rad, C = {_AMPLITUDE:,.0f} nats: first rival that keeps weight")


def _lengths(panel: Axes, outcomes: Sequence[Outcome], precision: FloatFormat) -> None:
    """Lines are predicted, points torch's; a head that holds within reach has none."""
    for rounding, (color, marker, dashes) in _ARITHMETICS.items():
        found = [one for one in outcomes if one.rounding is rounding]
        amplitudes = [float(one.case.amplitudes.sum()) for one in found]
        predicted, measured = (
            [np.nan if length is None else length for length in lengths]
            for lengths in zip(*((one.predicted, one.measured) for one in found), strict=True)
        )
        panel.plot(
            amplitudes, predicted, color=color, ls=dashes, lw=1.3, drawstyle="steps-mid", label=f"{rounding}: predicted"
        )
        panel.plot(amplitudes, measured, marker, ms=3.8, mew=0.8, mfc="none", color=color, label=f"{rounding}: torch")
    _logarithmic(panel)
    panel.set_yticks(_RECORDS, [f"{length}" for length in _RECORDS])
    panel.yaxis.minorticks_off()
    panel.set_xlabel("amplitude C (nats)")
    panel.set_ylabel("first length that breaks (tokens)")
    most = largest_number(precision)
    limit = f"; scores overflow above C = {most:.0f}" if most < 1e6 else ""
    panel.set_title(f"{precision.name}{limit}")


def _logarithmic(panel: Axes) -> None:
    """Both axes, their numbers in the plain font."""
    panel.set_xscale("log")
    panel.set_yscale("log")
    for axis in (panel.xaxis, panel.yaxis):
        axis.set_major_formatter(lambda value, _: f"{value:g}")
