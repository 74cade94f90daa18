"""Axes that pictures of runs share: lengths, trained ones shaded; accuracy, chance dotted; the spread over seeds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes

from bridge.figures.style import GREY
from empirics.specs import ShiftSpec, Spec
from empirics.train import Run

SHARE = (0, 1.04)


@dataclass(frozen=True, eq=False)
class Series:
    """The runs of one setting, a seed each."""

    label: str
    runs: tuple[Run, ...]


def length_axis(panel: Axes, spec: Spec, longest: int) -> None:
    """Sequence length in tokens, in octaves where it reaches far; the trained lengths are shaded."""
    shortest, longest_trained = spec.train_lengths
    panel.axvspan(
        shortest, longest_trained, color="0.92", zorder=0, label=f"trained lengths {shortest}-{longest_trained}"
    )
    panel.set_xlabel("sequence length L (tokens)")
    if longest > 100:
        panel.set_xscale("log", base=2)
        panel.xaxis.set_major_formatter(lambda value, _: f"{value:g}")


def accuracy_axis(panel: Axes, spec: ShiftSpec) -> None:
    """Accuracy from 0 to 1, with chance dotted."""
    panel.axhline(1 / spec.vocabulary, color=GREY, ls=":", label=f"chance, 1/{spec.vocabulary}")
    panel.set_ylim(SHARE)
    panel.set_ylabel("accuracy (share of sequences)")


def target_line(panel: Axes, offset: int) -> None:
    """The target of an axis of offsets."""
    panel.axvline(-offset, color=GREY, ls=":", label=f"target, -K = {-offset}")
    panel.set_xlabel("offset delta (tokens)")


def over_seeds(
    panel: Axes, places: Sequence[float], values: Sequence[Sequence[float]], color: str, marker: str, label: str
) -> None:
    """Mean over seeds (the rows) at each place, with the standard deviation as bars."""
    mean, spread = np.mean(values, axis=0), np.std(values, axis=0, ddof=min(1, len(values) - 1))
    panel.errorbar(places, mean, spread, fmt=marker, ms=4.5, color=color, label=label)
