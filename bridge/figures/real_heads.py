"""Pictures of the study of real heads: predicted against observed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import matplotlib
import numpy as np
from jaxtyping import Float64
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bridge.figures.style import BLUE, GREEN, GREY, ORANGE, STYLE, add_legend
from bridge.studies.held import Change, Heads, correlation

_COLOURS = {"windowed": BLUE, "constant": GREEN, "mean profile": ORANGE}
_MARKS = {"windowed": "o", "constant": "s", "mean profile": "^"}


def errors_figure(heads: Heads) -> Figure:
    """Predicted against observed attention at the longest length, a panel a law; open marks are flagged heads."""
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(10.5, 4.0), layout="constrained")
        panels = figure.subplots(1, 3, sharex=True, sharey=True)
        observed = heads.observed[:, -1]
        errors = np.array([one.error[-1] for one in heads.held])
        for panel, (law, values) in zip(panels, heads.laws.items(), strict=True):
            for chosen, filled, label in ((~heads.flagged, True, "no flag"), (heads.flagged, False, "flagged")):
                panel.errorbar(
                    observed[chosen],
                    values[chosen, -1],
                    xerr=errors[chosen],
                    fmt=_MARKS[law],
                    ms=4.5,
                    mfc=_COLOURS[law] if filled else "none",
                    color=_COLOURS[law],
                    elinewidth=0.7,
                    label=f"{label} ({int(chosen.sum())})",
                )
            _diagonal(panel)
            panel.set_title(f"{law} law" if law != "constant" else "constant: as at short context")
            panel.legend(loc="upper left")
        figure.supxlabel(f"observed mean attention on the head's offset at L={heads.lengths[-1]}", fontsize=9.5)
        panels[0].set_ylabel("predicted mean attention")
    return figure


def changes_figure(changes: Sequence[Change]) -> Figure:
    """Predicted against observed change of attention under changed frequencies, a panel a change."""
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(3.6 * len(changes), 4.1), layout="constrained")
        for panel, change in zip(np.atleast_1d(figure.subplots(1, len(changes))), changes, strict=True):
            _draw_changes(panel, change.observed, change.mean_profile_change, change.predicted)
            panel.set_title(f"{change.name}, r = {correlation(change.predicted, change.observed):.2f} (windowed)")
            panel.set_xlabel("observed change of mean attention")
        figure.axes[0].set_ylabel("predicted change, on the head's own offset")
        add_legend(figure, figure.axes[0], place="outside lower center")
    return figure


def beyond_figure(models: Mapping[str, Heads]) -> Figure:
    """ln of the ratio of attention beyond the trained length to that within it, predicted against observed."""
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(4.6 * len(models) + 0.4, 4.3), layout="constrained")
        for panel, (name, heads) in zip(np.atleast_1d(figure.subplots(1, len(models))), models.items(), strict=True):
            observed = heads.log_ratio(heads.observed)
            _draw_changes(panel, observed, *(heads.log_ratio(heads.laws[law]) for law in ("mean profile", "windowed")))
            panel.set_title(f"{name}: ln of attention at L={heads.lengths[-1]} over L={heads.lengths[0]}")
            panel.set_xlabel("observed")
        figure.axes[0].set_ylabel("predicted")
        add_legend(figure, figure.axes[0], place="outside lower center")
    return figure


def _draw_changes(
    panel: Axes,
    observed: Float64[np.ndarray, "head"],
    mean_profile: Float64[np.ndarray, "head"],
    windowed: Float64[np.ndarray, "head"],
) -> None:
    """Predicted changes of both laws against observed ones; to the constant baseline nothing changes."""
    for law, values, face in (("mean profile", mean_profile, "none"), ("windowed", windowed, _COLOURS["windowed"])):
        panel.plot(observed, values, _MARKS[law], ms=4.5, mfc=face, color=_COLOURS[law], label=f"{law} law")
    _diagonal(panel, low=None)
    panel.axhline(0, color=GREEN, lw=0.9, ls="-.", label="constant: no change")


def _diagonal(panel: Axes, low: float | None = 0.0) -> None:
    """Where predicted is observed."""
    edges = [*panel.get_xlim(), *panel.get_ylim()]
    ends = (min(edges) if low is None else low, max(edges))
    panel.plot(ends, ends, color=GREY, ls=":", lw=0.9)
