"""The picture of other schemes of positions, and of heads that retrieve at two offsets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bridge.compare import LIMIT
from bridge.figures.axes import SHARE, Series, accuracy_axis, length_axis, over_seeds
from bridge.figures.style import BLUE, GREEN, ORANGE, STYLE, add_legend, panels
from bridge.prediction import Prediction

_COLORS, _MARKERS = (BLUE, ORANGE, GREEN), ("o", "s", "^")
# Beside each other, so that two offsets at one accuracy are both seen.
_APART = 0.2


@dataclass(frozen=True, eq=False)
class Scheme:
    """One scheme of positions and its runs at each offset."""

    label: str
    by_offset: tuple[Series, ...]


def schemes_figure(
    schemes: Sequence[Scheme], length: int, predictions: Mapping[str, Prediction], modes: Sequence[Series]
) -> Figure:
    """Accuracy at a length by scheme; attention on the target and its exact law; accuracy with two modes by length.

    `predictions` are those of the first run at the last offset, by the label of the scheme.
    """
    with matplotlib.rc_context(STYLE):
        figure, (left, middle, right) = panels(3)
        _by_scheme(left, schemes, length)
        _dilution(middle, [scheme for scheme in schemes if scheme.label in predictions], predictions)
        _modes(right, modes)
        add_legend(figure, left, middle, right)
    return figure


def _by_scheme(panel: Axes, schemes: Sequence[Scheme], length: int) -> None:
    for index, series in enumerate(zip(*(scheme.by_offset for scheme in schemes), strict=True)):
        for place, one in enumerate(series):
            accuracies = [[seen.accuracy] for run in one.runs for seen in run.evaluation if seen.length == length]
            label = f"{one.label}, {len(one.runs)} seeds (bars: s.d.)"
            over_seeds(panel, [place + (index - 0.5) * _APART], accuracies, _COLORS[index], _MARKERS[index], label)
    accuracy_axis(panel, schemes[0].by_offset[0].runs[0].spec)
    panel.set_xticks(range(len(schemes)), [scheme.label for scheme in schemes], rotation=20)
    panel.set_xlabel("scheme of positions")
    panel.set_title(f"accuracy at L = {length}")


def _dilution(panel: Axes, schemes: Sequence[Scheme], predictions: Mapping[str, Prediction]) -> None:
    for scheme, color, marker in zip(schemes, _COLORS, _MARKERS, strict=True):
        run, told = scheme.by_offset[-1].runs[0], predictions[scheme.label]
        panel.plot(told.lengths, told.exact, color=color, label=f"exact law, {scheme.label}")
        panel.errorbar(
            [seen.length for seen in run.evaluation],
            [seen.attention[told.offset] for seen in run.evaluation],
            [LIMIT * seen.attention_error[told.offset] for seen in run.evaluation],
            fmt=marker,
            ms=4.5,
            color=color,
            label=f"observed, {scheme.label} (bars: {LIMIT} s.e.)",
        )
        length_axis(panel, run.spec, max(told.lengths))
        panel.set_title(f"attention on the target, K = {told.offset}, seed {run.spec.seed}")
    panel.set_ylim(SHARE)
    panel.set_ylabel("mean attention on the target")


def _modes(panel: Axes, modes: Sequence[Series]) -> None:
    for index, one in enumerate(modes):
        (run,) = one.runs
        panel.errorbar(
            # Two marks at one length lie beside each other.
            [seen.length + (index - 0.5) * _APART * 2 for seen in run.evaluation],
            [seen.accuracy for seen in run.evaluation],
            [LIMIT * seen.accuracy_error for seen in run.evaluation],
            fmt=_MARKERS[index],
            ms=4.5,
            color=_COLORS[index],
            mfc="white" if index else None,
            label=f"{one.label} (bars: {LIMIT} s.e.)",
        )
    spec = modes[0].runs[0].spec
    accuracy_axis(panel, spec)
    length_axis(panel, spec, spec.longest)
    panel.set_title(f"two modes, K = {' or '.join(map(str, spec.offsets))}")
