"""Pictures of the study of positional and symbolic heads: discrepancy, training and length, checkpoints."""

from __future__ import annotations

from collections.abc import Sequence

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bridge.figures.axes import SHARE
from bridge.figures.style import BLUE, GREEN, GREY, ORANGE, PURPLE, STYLE, add_legend, panels
from bridge.hops import ITEM, QUERY
from bridge.studies.heads_checkpoints import OnTexts
from bridge.studies.heads_constructed import Led
from bridge.studies.heads_hops_tables import Reach, Stage

_COLOURS = (BLUE, ORANGE, GREEN, PURPLE, GREY)
_MARKS = ("o", "s", "^", "v", "D")
_KINDS = (("positional", False, BLUE, "o", "-"), ("symbolic", True, ORANGE, "s", "--"))


def discrepancy_figure(led: Sequence[Led], lengths: Sequence[int]) -> Figure:
    """Discrepancy of constructed heads against length: points are measured in the rows, lines the closed form."""
    with matplotlib.rc_context(STYLE):
        figure, both = panels(2)
        for panel, positional in zip(both, (True, False), strict=True):
            shown = [one for one in led if one.positional is positional]
            colours = _COLOURS if positional else _COLOURS[::-1]
            for one, color, marker in zip(shown, colours, _MARKS, strict=False):
                panel.plot(lengths, one.predicted, color=color)
                panel.plot(lengths, one.measured, marker, color=color, ms=4.5, label=one.label)
            panel.axhline(0, color=GREY, ls=":", lw=1)
            _octaves(panel)
            panel.set_title("positional: Index, targets 1 to 16" if positional else "symbolic: Retrieval, any distance")
        # The lead of Index falls over decades; where it is 0 but for rounding, it stands at the foot.
        both[0].set_yscale("symlog", linthresh=1e-8)
        both[0].set_ylim(-1e-9, 3)
        both[0].set_ylabel("discrepancy (nats), sum of amplitudes 10")
        add_legend(figure, *both)
    return figure


def hops_figure(stages: Sequence[Stage], reaches: Sequence[Reach]) -> Figure:
    """The purest heads of either kind as training goes on, a panel a task, and accuracy against length."""
    with matplotlib.rc_context(STYLE):
        figure, (left, middle, right) = panels(3)
        for panel, task in ((left, "number"), (middle, "letter")):
            own = [stage for stage in stages if stage.task == task]
            steps = [stage.steps for stage in own]
            for kind, symbolic, color, marker, dashes in _KINDS:
                lead = [max(stage.purest(asking, symbolic)[0] for asking in (QUERY, ITEM)) for stage in own]
                panel.plot(steps, lead, marker=marker, ms=4.5, color=color, ls=dashes, label=f"purest {kind} head")
            panel.plot(
                steps, [stage.accuracy for stage in own], marker="D", ms=3.5, color=GREY, ls=":", label="accuracy"
            )
            panel.set_ylim(-0.65, SHARE[1])
            panel.set_xlabel("optimizer steps")
            panel.set_title(f"{task} task, seed 0")
        left.set_ylabel("difference of the two scores; accuracy")
        for one, color, marker in zip(reaches, _COLOURS, _MARKS, strict=False):
            spread = one.accuracy.std(axis=0, ddof=min(1, len(one.accuracy) - 1))
            right.errorbar(
                one.lengths, one.accuracy.mean(axis=0), spread, marker=marker, ms=4.5, color=color, label=one.label
            )
        right.axhline(0.25, color=GREY, ls=(0, (1, 3)), label="without the prompt, 1/4")
        right.axvline(reaches[0].lengths[0], color="0.85", lw=4, zorder=0, label="trained length")
        _octaves(right)
        right.set_ylim(SHARE)
        right.set_ylabel("accuracy (share of prompts)")
        right.set_title("accuracy beyond the trained length")
        add_legend(figure, left, right, columns=4)
    return figure


def checkpoints_figure(found: Sequence[OnTexts]) -> Figure:
    """Every head of each model by its two scores, coloured by entropy, a panel a model."""
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(5.2 * len(found), 4.4), layout="constrained")
        for panel, one in zip(np.atleast_1d(figure.subplots(1, len(found))), found, strict=True):
            positional, symbolic, entropy = one.mean
            points = panel.scatter(positional, symbolic, c=entropy, cmap="viridis", s=18, vmin=0)
            figure.colorbar(points, ax=panel, label="entropy (nats)")
            edge = np.array([0.0, 1.0])
            panel.plot(edge, edge, color=GREY, ls=":", lw=1)
            panel.set(xlim=SHARE, ylim=SHARE, xlabel="s_pos", ylabel="s_sym", title=f"{one.name}, {entropy.size} heads")
    return figure


def _octaves(panel: Axes) -> None:
    panel.set_xscale("log", base=2)
    panel.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    panel.set_xlabel("length (tokens)")
