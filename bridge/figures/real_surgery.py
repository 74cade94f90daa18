"""Picture of the study of surgery: attention at the offset against length, predicted and observed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import matplotlib
from matplotlib.figure import Figure

from bridge.figures.style import BLUE, GREEN, GREY, ORANGE, PURPLE, STYLE, add_legend
from bridge.studies.real_surgery_arms import AS_IT_IS
from bridge.studies.real_surgery_tables import Surgery

_COLOURS = (ORANGE, GREEN, BLUE, PURPLE)


def surgery_figure(surgeries: Sequence[Surgery], arms: Mapping[str, str]) -> Figure:
    """A panel a head: predictions are lines, observations points with standard errors, arms (name: label) by colour,
    the head as it is in grey."""
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(3.9 * len(surgeries) + 0.4, 4.3), layout="constrained")
        panels = figure.subplots(1, len(surgeries), sharey=True, squeeze=False)[0]
        colours = {AS_IT_IS: GREY} | dict(zip(arms, _COLOURS, strict=False))
        labels = {AS_IT_IS: AS_IT_IS} | dict(arms)
        for panel, one in zip(panels, surgeries, strict=True):
            for name, colour in colours.items():
                done = one.outcome(name)
                panel.plot(done.lengths, done.predicted, color=colour, label=f"{labels[name]}: predicted")
                panel.errorbar(
                    done.lengths, done.observed, done.error, fmt="o", ms=4.5, color=colour, label="observed (1 s.e.)"
                )
            panel.set_xscale("log", base=2)
            panel.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
            panel.set_title(f"head {one.name}, offset {-one.outcome(AS_IT_IS).arm.offset}")
            panel.set_xlabel("length L (tokens)")
            panel.set_ylim(0, 1.02)
        panels[0].set_ylabel("mean attention at the offset")
        add_legend(figure, panels[0], place="outside lower center")
    return figure
