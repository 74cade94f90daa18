"""An axis of a matplotlib picture as a plotly axis: the same limits, the same words at the same places.

Linear and logarithmic axes are plotly's own. On any other scale, as symlog, numbers are placed through its transform,
and the words at the marks, like those of hover, give what they were.

Source: `matplotlib.axis`, `matplotlib.scale`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from jaxtyping import Float64
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure, SubFigure
from matplotlib.ticker import FixedLocator, LogFormatter, ScalarFormatter
from matplotlib.transforms import Bbox

from bridge.documents import Document

Side = Literal["x", "y"]
_MOST = 12
"""Powers with words on a log axis."""


@dataclass(frozen=True, eq=False)
class Scale:
    """One axis of a panel. `marks` are places with their words, empty where plotly chooses round numbers."""

    label: str
    kind: str
    axis: Axis
    limits: tuple[float, float]
    marks: tuple[tuple[float, str], ...]
    fixed: bool
    turn: float

    @property
    def worded(self) -> bool:
        """Whether plotly's own number of a place says nothing to a person: it is a name, or was transformed."""
        return self.fixed or not self.native

    @property
    def native(self) -> bool:
        """Whether plotly has this scale, so that numbers stand where they are."""
        return self.kind in ("linear", "log")

    def places(self, values: Sequence[float] | np.ndarray) -> list[float | None]:
        """Where plotly draws numbers: they themselves, except on a scale that it does not have; null for NaN."""
        numbers = np.asarray(values, dtype=float)
        return listed(numbers if self.native else self.axis.get_transform().transform(numbers))

    def words(self, value: float | None) -> str:
        """A place as a person says it: the name that stands there, or the number; nothing where there is none."""
        if value is None:
            return ""
        if self.fixed and self.marks:
            nearest, name = min(self.marks, key=lambda mark: abs(mark[0] - value))
            counted = all(word.lstrip("-").isdigit() for _, word in self.marks)
            # Between marks that count, every other head for instance, the place is the number.
            return name if nearest == value or not counted else f"{np.interp(value, *self._numbered()):.6g}"
        return f"{value:.6g}"

    def said(self, value: float) -> str:
        """A place with the name of the axis."""
        return self.lead + self.words(value)

    @property
    def lead(self) -> str:
        """The name of the axis before a number, in one row."""
        return f"{' '.join(self.label.split())}: " if self.label else ""

    def document(self) -> Document:
        """The axis as plotly's layout has it."""
        kind = "log" if self.kind == "log" else "linear"
        ends = self.limits if self.kind == "log" else self.places(self.limits)
        found: Document = {
            "title": {"text": self.label.replace("\n", "<br>")},
            "type": kind,
            "range": [math.log10(end) for end in self.limits] if kind == "log" else ends,
        }
        if self.marks:
            places, words = zip(*self.marks, strict=True)
            found |= {"tickmode": "array", "tickvals": self.places(places), "ticktext": list(words)}
            # matplotlib turns words against the clock.
            found |= {"tickangle": -self.turn} if self.turn else {}
        return found

    def _numbered(self) -> tuple[list[float], list[int]]:
        ordered = sorted((place, int(word)) for place, word in self.marks)
        return [place for place, _ in ordered], [number for _, number in ordered]


def listed(numbers: Float64[np.ndarray, "point"]) -> list[float | None]:
    """Numbers as JSON has them: null for what is not finite."""
    return [float(number) if math.isfinite(number) else None for number in numbers]


def scale(panel: Axes, side: Side) -> Scale:
    """The horizontal or vertical axis of a panel; what it shares with a neighbour it has from there."""
    named = next((one for one in (panel, *neighbours(panel, side)) if _axis(one, side).get_label_text()), panel)
    label = _axis(named, side).get_label_text() or _common_label(panel.figure, side)
    axis = _axis(panel, side)
    spoken = _axis(panel if len(axis.get_majorticklocs()) else named, side)
    formatter = spoken.get_major_formatter()
    low, high = (float(end) for end in (panel.get_xlim() if side == "x" else panel.get_ylim()))
    # matplotlib's own words for numbers follow from the size of its picture, plotly's from that of the panel.
    own = isinstance(formatter, ScalarFormatter | LogFormatter) and axis.get_scale() in ("linear", "log")
    marks: tuple[tuple[float, str], ...] = ()
    if not own:
        places = _places(spoken, low, high)
        spelled = zip(places, formatter.format_ticks(places), strict=True)
        marks = tuple((place, word) for place, word in spelled if min(low, high) <= place <= max(low, high))
    named_places = not own and isinstance(spoken.get_major_locator(), FixedLocator)
    turn = float(spoken.get_majorticklabels()[0].get_rotation()) if marks else 0.0
    return Scale(label, axis.get_scale(), axis, (low, high), marks, named_places, turn)


def place(panel: Axes) -> Bbox:
    """Where a panel stands in its figure, in shares of it; the same before and after matplotlib has laid it out."""
    spec = panel.get_subplotspec()
    return panel.get_position() if spec is None else spec.get_position(_whole(panel))


def _whole(panel: Axes) -> Figure:
    figure = panel.get_figure(root=True)
    assert figure is not None
    return figure


def neighbours(panel: Axes, side: Side) -> list[Axes]:
    """Panels of the same column, whose horizontal axis reads alike, or of the same row."""
    name = "intervalx" if side == "x" else "intervaly"
    here = getattr(place(panel), name)
    return [one for one in panel.figure.axes if np.allclose(getattr(place(one), name), here, atol=1e-6)]


def _places(axis: Axis, low: float, high: float) -> list[float]:
    """Where an axis has words. On a log axis powers of its base, since matplotlib's choice follows from its picture."""
    if axis.get_scale() != "log" or isinstance(axis.get_major_locator(), FixedLocator):
        return [float(place) for place in axis.get_majorticklocs()]
    base = float(getattr(axis.get_transform(), "base", 10))
    first, last = sorted(math.log(end, base) for end in (low, high))
    powers = range(math.ceil(first - 1e-9), math.floor(last + 1e-9) + 1)
    return [base**power for power in powers[:: -(-len(powers) // _MOST)]] if powers else []


def _common_label(figure: Figure | SubFigure, side: Side) -> str:
    return figure.get_supxlabel() if side == "x" else figure.get_supylabel()


def _axis(panel: Axes, side: Side) -> Axis:
    return panel.xaxis if side == "x" else panel.yaxis
