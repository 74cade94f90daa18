"""Pictures of the trained one-layer head: what it selects, where, and how its attention thins out."""

from __future__ import annotations

from collections.abc import Sequence

import matplotlib
import numpy as np
from jaxtyping import Float64
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

from bridge.figures.axes import SHARE, Series, accuracy_axis, length_axis, over_seeds, target_line
from bridge.figures.style import BLUE, GREY, ORANGE, STYLE, add_legend, panels
from empirics.observe import Observation
from empirics.train import Run
from theory.dilution import InverseLinearFit

# Dark to light with the length, told apart by colour-blind readers too.
_LENGTHS = matplotlib.colormaps["cividis"]


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
                over_seeds(panel, lengths, values, color, marker, f"{one.label}, {len(one.runs)} seeds (bars: s.d.)")
        middle.plot(axis, np.mean(predicted, axis=0), color=BLUE, label="exact law, RoPE (seed mean)")
        spec = series[0].runs[0].spec
        accuracy_axis(left, spec)
        left.set_title(f"accuracy, K = {spec.offset}")
        for panel in (left, middle, right):
            length_axis(panel, spec, max(axis))
        middle.set_title("peak height")
        middle.set_ylim(SHARE)
        middle.set_ylabel("highest mean attention of any offset")
        right.set_title("offset of the peak")
        right.axhline(-spec.offset, color=GREY, ls=":", label=f"target, -K = {-spec.offset}")
        right.set_ylabel("offset delta of the peak (tokens)")
        add_legend(figure, left, middle, right)
    return figure


def dissociation_figure(
    columns: Sequence[Series], lengths: Sequence[int], numbers: Sequence[tuple[str, str]]
) -> Figure:
    """Mean attention of the first run of each series: above by offset, below by absolute position.

    `numbers` are what is to be read in the two panels of each column; a triangle stands on the target's position.
    """
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(4.7 * len(columns) + 0.4, 7.4), layout="constrained")
        rows = figure.subplots(2, len(columns), squeeze=False)
        for one, above, below, words in zip(columns, *rows, numbers, strict=True):
            run = one.runs[0]
            longest_trained = run.spec.train_lengths[1]
            seen = [seen for seen in run.evaluation if seen.length in lengths]
            # Short contexts lie above long ones, so that a collapse is seen as one.
            colors = map(to_hex, _LENGTHS(np.linspace(0.92, 0, len(seen))))
            for color, what in zip(colors, reversed(seen), strict=True):
                _profile(above, below, what, color, what.length <= longest_trained)
            target_line(above, run.spec.offset)
            above.set_title(f"{one.label}\n{words[0]}", fontsize=9)
            below.set_title(words[1], fontsize=9)
            below.axvspan(-0.5, longest_trained - 0.5, color="0.92", zorder=0, label="trained positions")
            below.set_xlabel("absolute position t (tokens)")
            above.set_ylabel("mean attention, relative coordinates")
            below.set_ylabel("mean attention, absolute coordinates")
        add_legend(figure, rows[0, 0], rows[1, 0])
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
        offsets = -np.arange(len(profiles[0]))
        for seed, profile in enumerate(profiles):
            label = "carrier, one seed" if seed == 0 else None
            left.plot(offsets, profile, color=BLUE, alpha=0.55, lw=1.2, label=label)
        target_line(left, runs[0].spec.offset)
        left.set_ylabel("carrier-only profile phi (nats)")
        left.set_title("what the means select")
        lengths = [seen.length for seen in runs[0].evaluation]
        peaks = [[seen.peak for seen in run.evaluation] for run in runs]
        places = sorted({seen.selected_offset for run in runs for seen in run.evaluation})
        label = f"observed peak, at {', '.join(map(str, places))} (bars: seed s.d.)"
        over_seeds(right, lengths, peaks, "black", "o", label)
        right.plot(axis, np.mean(exact, axis=0), color=BLUE, label="exact law (seed mean)")
        line = 1 / (fit.alpha + fit.c * (np.asarray(axis) - 1))
        right.plot(
            axis,
            line,
            color=ORANGE,
            ls="--",
            label=f"fit 1/({fit.alpha:.2f} + {fit.c:.4f} (L-1)), R2 {fit.r_squared:.3f}",
        )
        length_axis(right, runs[0].spec, max(axis))
        right.set_ylim(SHARE)
        right.set_ylabel("mean attention (peak; law: target)")
        right.set_title("how it dilutes")
        add_legend(figure, left, right)
    return figure


def _profile(above: Axes, below: Axes, seen: Observation, color: str, trained: bool) -> None:
    back, label = np.arange(seen.length), f"L = {seen.length}{' (trained)' if trained else ''}"
    above.plot(-back, seen.attention, ".-", color=color, lw=1.2, ms=4, label=label)
    below.plot(seen.length - 1 - back, seen.attention, ".-", color=color, lw=1.2, ms=4)
    # The marker of the target stands on the axis, where no profile hides it.
    place = seen.length - 1 - seen.offset
    below.plot(place, 0, "^", ms=7, color=color, mec="black", clip_on=False, zorder=5, label="the target's position")
