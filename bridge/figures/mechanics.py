"""The picture of mechanism and controls: the margin's bound, the carrier while it forms, pins under weight decay."""

from __future__ import annotations

from dataclasses import dataclass

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bridge.compare import LIMIT
from bridge.figures.axes import SHARE, length_axis
from bridge.figures.style import BLUE, GREEN, GREY, ORANGE, STYLE, add_legend, draw_laws
from bridge.prediction import Prediction
from empirics.spec import RunSpec
from empirics.train import Run
from theory.dilution import margin_bound


@dataclass(frozen=True)
class Dynamics:
    """Key carrier fraction and top-1 singular energy of W after so many steps, and the fraction of random keys."""

    steps: tuple[int, ...]
    key_fraction: tuple[float, ...]
    energy: tuple[float, ...]
    baseline: float


@dataclass(frozen=True)
class Pins:
    """Of every weight decay: each seed's pin at a length, and the accuracies of all seeds at all unseen lengths."""

    length: int
    decays: tuple[float, ...]
    positions: tuple[tuple[int, ...], ...]
    accuracies: tuple[tuple[float, ...], ...]


def mechanics_figure(
    run: Run, prediction: Prediction, margin: float, dynamics: Dynamics, pins: Pins, learned: RunSpec
) -> Figure:
    """Bound of a margin (nats), laws and observation against length; carrier against step; pins against decay."""
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(14.5, 5.0), layout="constrained")
        grid = figure.add_gridspec(2, 3)
        left, middle = figure.add_subplot(grid[:, 0]), figure.add_subplot(grid[:, 1])
        above, below = figure.add_subplot(grid[0, 2]), figure.add_subplot(grid[1, 2])
        _bound(left, run, prediction, margin)
        _emergence(middle, dynamics)
        _pins(above, pins, learned)
        _accuracies(below, pins, learned)
        add_legend(figure, left, middle, above, below)
    return figure


def _bound(panel: Axes, run: Run, prediction: Prediction, margin: float) -> None:
    offset, lengths = prediction.offset, prediction.lengths
    draw_laws(panel, prediction, bound=False)
    panel.plot(lengths, margin_bound(margin, lengths), color=GREEN, ls="-.", label=f"bound, margin {margin:.2f} nats")
    panel.errorbar(
        [seen.length for seen in run.evaluation],
        [seen.attention[offset] for seen in run.evaluation],
        [LIMIT * seen.attention_error[offset] for seen in run.evaluation],
        fmt="o",
        ms=4.5,
        color="black",
        label=f"observed (bars: {LIMIT} s.e.)",
    )
    length_axis(panel, run.spec, max(lengths))
    panel.set_ylim(SHARE)
    panel.set_ylabel(f"mean attention on offset {-offset}")
    panel.set_title("bound and target attention")


def _emergence(panel: Axes, dynamics: Dynamics) -> None:
    panel.plot(dynamics.steps, dynamics.key_fraction, color=BLUE, marker="o", ms=4.5, label="carrier fraction of keys")
    panel.plot(dynamics.steps, dynamics.energy, color=ORANGE, marker="s", ms=4.5, label="top-1 energy of W")
    panel.axhline(dynamics.baseline, color=GREY, ls="--", lw=0.9, label=f"random keys, {dynamics.baseline:.3f}")
    # Step 0 is on the axis too.
    panel.set_xscale("symlog", linthresh=25)
    panel.set_xticks(dynamics.steps, [str(step) for step in dynamics.steps])
    panel.set_xlim(left=0)
    panel.minorticks_off()
    panel.set_ylim(SHARE)
    panel.set_xlabel("training step")
    panel.set_ylabel("share of energy")
    panel.set_title("the carrier forms")


def _pins(panel: Axes, pins: Pins, spec: RunSpec) -> None:
    longest = spec.train_lengths[1]
    nearest = longest - 1 - spec.offset
    for place, positions in enumerate(pins.positions):
        label = f"pin at L = {pins.length}, one seed" if place == 0 else None
        panel.plot([place] * len(positions), positions, "o", ms=6, color=ORANGE, alpha=0.6, label=label)
    panel.axhline(nearest, color=ORANGE, ls=":", label=f"last trained target, {nearest}")
    panel.axhspan(-0.5, longest - 0.5, color="0.92", zorder=0)
    panel.axhline(pins.length - 1 - spec.offset, color=GREY, ls="-.", label=f"target at L = {pins.length}")
    _decay_axis(panel, pins)
    panel.set_ylabel("position (tokens)")
    panel.set_title("learned positions: pin and accuracy")


def _accuracies(panel: Axes, pins: Pins, spec: RunSpec) -> None:
    for place, accuracies in enumerate(pins.accuracies):
        low, mean, high = min(accuracies), float(np.mean(accuracies)), max(accuracies)
        label = "accuracy, unseen lengths (bars: range)" if place == 0 else None
        bars = [[mean - low], [high - mean]]
        panel.errorbar([place], [mean], bars, fmt="s", ms=4.5, color=BLUE, label=label)
    panel.axhline(1 / spec.vocabulary, color=GREY, ls=":", label=f"chance, 1/{spec.vocabulary}")
    _decay_axis(panel, pins)
    panel.set_ylim(0, 0.5)
    panel.set_ylabel("accuracy")


def _decay_axis(panel: Axes, pins: Pins) -> None:
    panel.set_xticks(range(len(pins.decays)), [f"{decay:g}" for decay in pins.decays])
    panel.set_xlim(-0.5, len(pins.decays) - 0.5)
    panel.set_xlabel("weight decay of the positions")
