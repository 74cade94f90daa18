"""Pictures of runs: what was predicted from their weights, and what they did."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import matplotlib
import numpy as np
from jaxtyping import Float64
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bridge.account import Account, prediction_of
from bridge.compare import LIMIT
from bridge.figures.style import BLUE, GREY, ORANGE, STYLE, add_legend, draw_laws, panels
from empirics.observe import Observation
from empirics.train import Run
from theory.dilution import InverseLinearFit

_SHARE = (0, 1.04)


@dataclass(frozen=True, eq=False)
class Series:
    """The runs of one encoding, a seed each."""

    label: str
    runs: tuple[Run, ...]


def account_figure(told: Account, learned: Run | None = None) -> Figure:
    """Attention on the target against length, laws and observations; beside it the accuracy."""
    with matplotlib.rc_context(STYLE):
        figure, (left, right) = panels(2)
        draw_laws(left, prediction_of(told.run, _dense(told), told.prediction.offset))
        comparison = told.exact
        left.errorbar(
            comparison.lengths,
            comparison.observed,
            LIMIT * comparison.standard_error,
            fmt="o",
            ms=4.5,
            color="black",
            label=f"observed, {told.observations[0].sequences} sequences a length (bars: {LIMIT} s.e.)",
        )
        _length_axis(left, told.run, max(comparison.lengths))
        left.set_ylim(_SHARE)
        left.set_ylabel(f"mean attention on offset {-told.prediction.offset}")
        left.set_title("dilution: predicted from the weights, then observed")
        _accuracy(right, told.observations, BLUE, "o", "rotary (RoPE)")
        if learned is not None:
            _accuracy(right, learned.evaluation, ORANGE, "s", "learned positions (APE)")
        _accuracy_axis(right, told.run, max(comparison.lengths))
        add_legend(figure, left, right)
    return figure


def phenomenon_figure(
    series: tuple[Series, Series], axis: Sequence[int], predicted: Sequence[Float64[np.ndarray, "length"]]
) -> Figure:
    """Accuracy, peak height and selected offset against length; `predicted` is the first series' exact law."""
    with matplotlib.rc_context(STYLE):
        figure, (left, middle, right) = panels(3)
        for one, color, marker in zip(series, (BLUE, ORANGE), ("o", "s"), strict=True):
            lengths = [seen.length for seen in one.runs[0].evaluation]
            for panel, name in ((left, "accuracy"), (middle, "peak"), (right, "selected_offset")):
                values = [[getattr(seen, name) for seen in run.evaluation] for run in one.runs]
                _over_seeds(panel, lengths, values, color, marker, one.label)
        middle.plot(axis, np.mean(predicted, axis=0), color=BLUE, label="exact law, RoPE (seed mean)")
        run = series[0].runs[0]
        _accuracy_axis(left, run, max(axis))
        for panel, title in ((middle, "peak height"), (right, "offset of the peak")):
            _length_axis(panel, run, max(axis))
            panel.set_title(title)
        middle.set_ylim(_SHARE)
        middle.set_ylabel("highest mean attention of any offset")
        right.axhline(-run.spec.offset, color=GREY, ls=":", label=f"target, -K = {-run.spec.offset}")
        right.set_ylabel("offset delta of the peak (tokens)")
        add_legend(figure, left, middle, right)
    return figure


def carrier_figure(
    runs: Sequence[Run],
    profiles: Sequence[Float64[np.ndarray, "offset"]],
    axis: Sequence[int],
    exact: Sequence[Float64[np.ndarray, "length"]],
    fit: InverseLinearFit,
) -> Figure:
    """Left the carrier-only profile of every seed, right the peak height with its fit and its exact law."""
    with matplotlib.rc_context(STYLE):
        figure, (left, right) = panels(2)
        offset = runs[0].spec.offset
        offsets = -np.arange(len(profiles[0]))
        for seed, profile in enumerate(profiles):
            label = "carrier, one seed" if seed == 0 else None
            left.plot(offsets, profile, color=BLUE, alpha=0.55, lw=1.2, label=label)
        left.axvline(-offset, color=GREY, ls=":", label=f"target, -K = {-offset}")
        left.set_xlabel("offset delta (tokens)")
        left.set_ylabel("carrier-only profile phi (nats)")
        left.set_title("what the means select")
        lengths = [seen.length for seen in runs[0].evaluation]
        peaks = [[seen.peak for seen in run.evaluation] for run in runs]
        places = sorted({seen.selected_offset for run in runs for seen in run.evaluation})
        label = f"observed peak, at {', '.join(map(str, places))} (bars: seed s.d.)"
        _over_seeds(right, lengths, peaks, "black", "o", label)
        right.plot(axis, np.mean(exact, axis=0), color=BLUE, label="exact law (seed mean)")
        line = 1 / (fit.alpha + fit.c * (np.asarray(axis) - 1))
        right.plot(
            axis,
            line,
            color=ORANGE,
            ls="--",
            label=f"fit 1/({fit.alpha:.2f} + {fit.c:.4f} (L-1)), R2 {fit.r_squared:.3f}",
        )
        _length_axis(right, runs[0], max(axis))
        right.set_ylim(_SHARE)
        right.set_ylabel("mean attention (observed peak; law at the target)")
        right.set_title("how it dilutes")
        add_legend(figure, left, right)
    return figure


def _dense(told: Account) -> list[int]:
    """Enough lengths that the steps of a law are seen, from the first trained one on."""
    ends = told.run.spec.train_lengths[0], max(told.prediction.lengths)
    spaced = np.geomspace(*ends, 160).round().astype(int)
    return [int(length) for length in np.unique(spaced) if length > told.prediction.offset]


def _length_axis(panel: Axes, run: Run, longest: int) -> None:
    shortest, longest_trained = run.spec.train_lengths
    panel.axvspan(
        shortest, longest_trained, color="0.92", zorder=0, label=f"trained lengths {shortest}-{longest_trained}"
    )
    panel.set_xlabel("sequence length L (tokens)")
    if longest > 100:
        panel.set_xscale("log", base=2)
        panel.xaxis.set_major_formatter(lambda value, _: f"{value:g}")


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


def _accuracy_axis(panel: Axes, run: Run, longest: int) -> None:
    panel.axhline(1 / run.spec.vocabulary, color=GREY, ls=":", label=f"chance, 1/{run.spec.vocabulary}")
    _length_axis(panel, run, longest)
    panel.set_ylim(_SHARE)
    panel.set_ylabel("accuracy (share of sequences)")
    panel.set_title(f"accuracy, K = {run.spec.offset}")


def _over_seeds(
    panel: Axes, lengths: Sequence[int], values: Sequence[Sequence[float]], color: str, marker: str, label: str
) -> None:
    mean, spread = np.mean(values, axis=0), np.std(values, axis=0, ddof=min(1, len(values) - 1))
    panel.errorbar(lengths, mean, spread, fmt=marker, ms=4.5, color=color, label=label)
