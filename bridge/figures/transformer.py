"""The picture of the multi-layer model: accuracy by length and by position, and its shift head at two lengths."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import matplotlib
import numpy as np
from jaxtyping import Float64
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bridge.compare import LIMIT
from bridge.figures.axes import SHARE, accuracy_axis, length_axis, target_line
from bridge.figures.style import BLUE, GREY, ORANGE, STYLE, add_legend
from empirics.observe_transformer import HeadObservation, TransformerObservation
from empirics.spec import TransformerSpec
from empirics.train import TransformerRun


@dataclass(frozen=True, eq=False)
class Followed:
    """A run, and one head of it at each evaluated length."""

    label: str
    run: TransformerRun
    heads: tuple[HeadObservation, ...]

    @property
    def name(self) -> str:
        """Where the head is, counted from 0."""
        return f"layer {self.heads[0].layer}, head {self.heads[0].head}"


@dataclass(frozen=True, eq=False)
class ShiftLaw:
    """What the theory says of a shift head: its carrier profile, and the attention on -K averaged as observed."""

    sampled_length: int
    profile: Float64[np.ndarray, "offset"]
    lengths: tuple[int, ...]
    attention: Float64[np.ndarray, "length"]


def transformer_figure(rotary: Followed, learned: Followed, law: ShiftLaw, shown: tuple[int, int]) -> Figure:
    """Above accuracy by length and by position, and what the shift head attends to; below its profiles by offset.

    `shown` are the two lengths whose profiles are compared, the second of them that of the positions.
    """
    both = ((rotary, BLUE, "o"), (learned, ORANGE, "s"))
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(14.5, 8.4), layout="constrained")
        panels = figure.subplots(2, 3)
        _accuracy(panels[0, 0], both)
        _by_position(panels[0, 1], both, shown[1])
        _on_target(panels[0, 2], both, law)
        for panel, followed in zip(panels[1, :2], (rotary, learned), strict=True):
            _profiles(panel, followed, shown)
        _carrier(panels[1, 2], rotary, law)
        add_legend(figure, *panels.flat)
    return figure


def read_in_range(spec: TransformerSpec, lengths: Sequence[int]) -> Float64[np.ndarray, "length"]:
    """Accuracy of a reader that is right at trained positions and guesses at the others, one in m.

    Of the L - K counted positions L_max - K are below L_max.
    """
    counted = np.asarray(lengths) - spec.offset
    inside = np.minimum(lengths, spec.train_lengths[1]) - spec.offset
    return (inside + (counted - inside) / spec.vocabulary) / counted


def _accuracy(panel: Axes, both: Sequence[tuple[Followed, str, str]]) -> None:
    for followed, color, marker in both:
        seen = followed.run.evaluation
        _points(
            panel,
            [one.length for one in seen],
            [one.accuracy for one in seen],
            [one.accuracy_error for one in seen],
            color,
            marker,
            f"{followed.label} (bars: {LIMIT} s.e.)",
        )
    spec = both[0][0].run.spec
    lengths = range(spec.train_lengths[0], spec.longest + 1)
    panel.plot(
        lengths, read_in_range(spec, lengths), color=GREY, ls="--", label="read at trained positions, else guess"
    )
    accuracy_axis(panel, spec)
    panel.set_ylabel("accuracy (share of tokens)")
    length_axis(panel, spec, spec.longest)
    panel.set_title(f"accuracy, full-sequence shift, K = {spec.offset}")


def _by_position(panel: Axes, both: Sequence[tuple[Followed, str, str]], length: int) -> None:
    for followed, color, marker in both:
        (seen,) = _at(followed.run.evaluation, length)
        places = seen.offset + np.arange(len(seen.accuracy_by_position))
        panel.plot(places, seen.accuracy_by_position, marker, ms=4, color=color)
    spec = both[0][0].run.spec
    panel.axvspan(-0.5, spec.train_lengths[1] - 0.5, color="0.92", zorder=0)
    accuracy_axis(panel, spec)
    panel.set_xlabel("position i of the query (tokens)")
    panel.set_title(f"accuracy by position, L = {length}; trained positions shaded")


def _on_target(panel: Axes, both: Sequence[tuple[Followed, str, str]], law: ShiftLaw) -> None:
    spec = both[0][0].run.spec
    for followed, color, marker in both:
        _points(
            panel,
            [seen.length for seen in followed.run.evaluation],
            [head.attention[spec.offset] for head in followed.heads],
            [head.attention_error[spec.offset] for head in followed.heads],
            color,
            marker,
            None,
        )
    label = f"exact law, RoPE, from activations at L = {law.sampled_length}"
    panel.plot(law.lengths, law.attention, color=BLUE, label=label)
    length_axis(panel, spec, spec.longest)
    panel.set_ylim(SHARE)
    panel.set_ylabel(f"mean attention on offset {-spec.offset}")
    panel.set_title("the shift head")


def _profiles(panel: Axes, followed: Followed, shown: tuple[int, int]) -> None:
    for length, color, marker in zip(shown, ("black", "#CC79A7"), ("o", "x"), strict=True):
        (head,) = [
            head for seen, head in zip(followed.run.evaluation, followed.heads, strict=True) if seen.length == length
        ]
        label = f"profile at L = {length}"
        panel.plot(-np.arange(length), head.attention, color=color, marker=marker, ms=5, lw=1, mfc="none", label=label)
    target_line(panel, followed.run.spec.offset)
    panel.set_ylim(SHARE)
    panel.set_ylabel("mean attention")
    panel.set_title(f"{followed.label}: {followed.name}")


def _carrier(panel: Axes, followed: Followed, law: ShiftLaw) -> None:
    panel.plot(-np.arange(len(law.profile)), law.profile, color=BLUE)
    target_line(panel, followed.run.spec.offset)
    panel.set_ylabel("carrier-only profile phi (nats)")
    lengths = [seen.length for seen in followed.run.evaluation]
    fraction = followed.heads[lengths.index(law.sampled_length)].key_fraction
    panel.set_title(f"RoPE's carrier, {fraction:.3f} of its keys' energy")


def _points(
    panel: Axes,
    places: Sequence[int],
    values: Sequence[float],
    errors: Sequence[float],
    color: str,
    marker: str,
    label: str | None,
) -> None:
    bars = LIMIT * np.asarray(errors)
    panel.errorbar(places, values, bars, fmt=marker, ms=4.5, color=color, label=label)


def _at(evaluation: Sequence[TransformerObservation], length: int) -> list[TransformerObservation]:
    return [seen for seen in evaluation if seen.length == length]
