"""The picture of the main job: what was predicted from the weights of a run, and what the run then did."""

from __future__ import annotations

from collections.abc import Sequence

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bridge.account import Account, prediction_of
from bridge.compare import LIMIT
from bridge.figures.axes import SHARE, accuracy_axis, length_axis
from bridge.figures.style import BLUE, ORANGE, STYLE, add_legend, draw_laws, panels
from empirics.observe import Observation
from empirics.train import Run


def account_figure(told: Account, learned: Run | None = None) -> Figure:
    """Attention on the target against length, laws and observations; beside it the accuracy."""
    with matplotlib.rc_context(STYLE):
        figure, (left, right) = panels(2)
        draw_laws(left, prediction_of(told.run, _dense(told), told.prediction.offset))
        comparison, longest = told.exact, max(told.exact.lengths)
        left.errorbar(
            comparison.lengths,
            comparison.observed,
            LIMIT * comparison.standard_error,
            fmt="o",
            ms=4.5,
            color="black",
            label=f"observed, {told.observations[0].sequences} sequences a length (bars: {LIMIT} s.e.)",
        )
        length_axis(left, told.run.spec, longest)
        left.set_ylim(SHARE)
        left.set_ylabel(f"mean attention on offset {-told.prediction.offset}")
        left.set_title("dilution: predicted from the weights, then observed")
        _accuracy(right, told.observations, BLUE, "o", "rotary (RoPE)")
        if learned is not None:
            _accuracy(right, learned.evaluation, ORANGE, "s", "learned positions (APE)")
        accuracy_axis(right, told.run.spec)
        length_axis(right, told.run.spec, longest)
        right.set_title(f"accuracy, K = {told.run.spec.offset}")
        add_legend(figure, left, right)
    return figure


def _dense(told: Account) -> list[int]:
    """Enough lengths that the steps of a law are seen, from the first trained one on."""
    ends = told.run.spec.train_lengths[0], max(told.prediction.lengths)
    spaced = np.geomspace(*ends, 160).round().astype(int)
    return [int(length) for length in np.unique(spaced) if length > told.prediction.offset]


def _accuracy(panel: Axes, observations: Sequence[Observation], color: str, marker: str, label: str) -> None:
    panel.errorbar(
        [seen.length for seen in observations],
        [seen.accuracy for seen in observations],
        [LIMIT * seen.accuracy_error for seen in observations],
        fmt=marker,
        ms=4.5,
        color=color,
        label=label,
    )
