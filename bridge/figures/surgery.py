"""The picture of a repair: a head as trained and with its carrier replaced, predicted and observed."""

from __future__ import annotations

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bridge.account import Account, prediction_of
from bridge.compare import LIMIT
from bridge.figures.axes import SHARE, accuracy_axis, length_axis
from bridge.figures.style import BLUE, ORANGE, STYLE, add_legend, panels
from bridge.surgery import Repair
from bridge.surgery_views import AFTER, BEFORE

_STATES = ((BEFORE, ORANGE, "s"), (AFTER, BLUE, "o"))


def repair_figure(done: Repair, head: int) -> Figure:
    """Attention on the target of one head against length, before and after; beside it the accuracy of the run."""
    with matplotlib.rc_context(STYLE):
        figure, (left, right) = panels(2)
        for (state, color, marker), told in zip(_STATES, (done.before[head], done.after[head]), strict=True):
            _attention(left, told, color, marker, f"{state}, offset {-told.prediction.offset}")
            lengths = [seen.length for seen in told.observations]
            values, errors = zip(*((seen.accuracy, seen.accuracy_error) for seen in told.observations), strict=True)
            right.errorbar(lengths, values, LIMIT * np.array(errors), fmt=marker, ms=4.5, color=color)
        spec, longest = done.run.spec, max(done.after[head].exact.lengths)
        for law, (_, color, _) in zip(done.accuracy or (), _STATES, strict=False):
            order = np.argsort(law.lengths)
            right.plot(np.array(law.lengths)[order], law.point[order], color=color)
        left.axvline(done.design.length, color="0.6", lw=0.8, label=f"designed for L up to {done.design.length}")
        length_axis(left, spec, longest)
        left.set_ylim(SHARE)
        left.set_ylabel("mean attention on the target")
        left.set_title(f"head {head}: carrier replaced, nothing trained")
        accuracy_axis(right, spec)
        length_axis(right, spec, longest)
        right.set_title("accuracy")
        add_legend(figure, left, right)
    return figure


def _attention(panel: Axes, told: Account, color: str, marker: str, state: str) -> None:
    """The exact law as a line, what was observed as points."""
    comparison = told.exact
    ends = max(told.prediction.offset + 1, min(comparison.lengths)), max(comparison.lengths)
    dense = np.unique(np.geomspace(*ends, 60).round().astype(int)).tolist()
    law = prediction_of(told.run, dense, told.prediction.offset, told.head)
    panel.plot(law.lengths, law.exact, color=color, label=f"{state}: exact law")
    panel.errorbar(
        comparison.lengths,
        comparison.observed,
        LIMIT * comparison.standard_error,
        fmt=marker,
        ms=4.5,
        color=color,
        label=f"{state}: observed (bars: {LIMIT} s.e.)",
    )
