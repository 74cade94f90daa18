"""The picture of surgery: what a head keeps at every length, as trained and under each edit, predicted and observed."""

from __future__ import annotations

from collections.abc import Sequence

import matplotlib
import numpy as np
from jaxtyping import Float64
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bridge.figures.axes import SHARE, accuracy_axis, length_axis
from bridge.figures.style import BLUE, GREEN, GREY, ORANGE, PURPLE, STYLE, add_legend, panels
from bridge.studies.surgery_arms import ALIGNED, EQUAL, PRESCRIBED, SHARPENED, TRAINED, ArmResult
from bridge.studies.surgery_tables import seeds_of

_DRAWN = {
    TRAINED: ("as trained", ORANGE, "s", "-"),
    SHARPENED: ("logits times 4", PURPLE, "v", "--"),
    ALIGNED: ("phases aligned", GREY, "D", ":"),
    EQUAL: ("best carrier, same energy", GREEN, "^", "-."),
    PRESCRIBED: ("best carrier, energy of the bound", BLUE, "o", "-"),
}


def arms_figure(arms: Sequence[ArmResult], offset: int) -> Figure:
    """Attention on the target and accuracy against length for one K, means over seeds: points are observed, bars their
    standard deviation over seeds; lines are predicted on the left and join the points on the right."""
    with matplotlib.rc_context(STYLE):
        figure, (left, right) = panels(2)
        for arm, (label, color, marker, dashes) in _DRAWN.items():
            found = seeds_of(arms, arm, offset)
            told, seen = [one.predicted[0] for one in found], [one.observed[0] for one in found]
            _draw(left, found[0].lengths, told, seen, label, color, marker, dashes)
            _draw(right, found[0].lengths, [], [one.accuracy for one in found], label, color, marker, dashes)
        spec, longest = arms[0].spec, max(max(one.lengths) for one in arms)
        for panel in (left, right):
            length_axis(panel, spec, longest)
        left.set_ylim(SHARE)
        left.set_ylabel(f"mean attention on offset {-offset}")
        left.set_title("attention on the target: lines predicted, points observed")
        accuracy_axis(right, spec)
        right.set_title(f"accuracy, K = {offset}; nothing was trained beyond L = {spec.train_lengths[1]}")
        add_legend(figure, left, right, columns=4)
    return figure


def _draw(
    panel: Axes,
    lengths: Sequence[int],
    predicted: Sequence[Float64[np.ndarray, "length"]],
    observed: Sequence[Float64[np.ndarray, "length"]],
    label: str,
    color: str,
    marker: str,
    dashes: str,
) -> None:
    lines = predicted or observed
    panel.plot(lengths, np.mean(lines, axis=0), color=color, ls=dashes, lw=1.5 if predicted else 0.7)
    panel.errorbar(
        lengths,
        np.mean(observed, axis=0),
        np.std(observed, axis=0, ddof=min(1, len(observed) - 1)),
        fmt=marker,
        ms=4.5,
        color=color,
        elinewidth=0.8,
        label=label,
    )
