"""What the series of a picture are called: by their labels, or by the series that looks the same and has one.

A picture may name a series once, in a legend that all its panels share, and draw it in the others in the same look.
Panels that stand alone need the name in each.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.collections import Collection
from matplotlib.container import BarContainer, Container, ErrorbarContainer
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from bridge.documents import Document
from bridge.report.looks import dashes, hexed, key

_BARS = re.compile(r" \(bars: [^)]*\)$")


@dataclass(frozen=True)
class Name:
    """The name of a series, empty where it has none; the entry of the legend it goes with, and whether it is that."""

    text: str
    group: str
    listed: bool

    def entry(self) -> Document:
        """As plotly has it."""
        found: Document = {"showlegend": self.listed}
        return found | ({"name": self.text} if self.text else {}) | ({"legendgroup": self.group} if self.group else {})


@dataclass(frozen=True)
class _Look:
    color: str
    mark: str | None
    line: str | None


@dataclass(frozen=True, eq=False)
class Names:
    """The names in a figure. Each is listed once in a panel, by the first that asks."""

    figure: Figure
    _listed: set[tuple[int, str]] = field(default_factory=set)

    def of(self, panel: Axes, one: Artist | Container) -> Name:
        """The name of what is drawn in a panel."""
        own, look = _label(one), _look(one)
        if own:
            return self._name(panel, own, own)
        here = [(_look(other), label) for other, label in _labelled(panel)]
        for known, label in here:
            if known == look:
                return self._name(panel, label, label)
        if look.mark is not None and self.figure.legends:
            for other, label in (pair for elsewhere in self.figure.axes for pair in _labelled(elsewhere)):
                known = _look(other)
                if (known.color, known.mark) == (look.color, look.mark):
                    # What the bars of the other are is not said of points without.
                    label = label if isinstance(one, ErrorbarContainer) else _BARS.sub("", label)
                    return self._name(panel, label, label)
        for known, label in here:
            if known.color == look.color:
                kind = "points" if look.mark else "line" if look.line else "band"
                return Name(f"{label}, {kind}", label, False)
        return Name("", "", False)

    def unclaimed(self, panel: Axes) -> tuple[Document, ...]:
        """Entries of legends that no artist carries: of a panel's own, and of the figure's in its first panel."""
        carried = {label for each in self.figure.axes for _, label in _labelled(each)}
        shared = self.figure.legends if panel is self.figure.axes[0] else []
        return tuple(
            {"type": "scatter", "name": text.get_text(), "x": [None], "y": [None], "mode": "markers"}
            | {"marker": key(handle), "hoverinfo": "skip", "showlegend": True}
            for legend in (panel.get_legend(), *shared)
            if legend is not None
            for handle, text in zip(legend.legend_handles, legend.get_texts(), strict=True)
            if handle is not None and text.get_text() not in carried
        )

    def _name(self, panel: Axes, text: str, group: str) -> Name:
        first = (id(panel), group) not in self._listed
        self._listed.add((id(panel), group))
        return Name(text, group, first)


def _labelled(panel: Axes) -> Iterator[tuple[Artist | Container, str]]:
    drawn: list[Artist | Container] = [*panel.containers, *panel.get_children()]
    for one in drawn:
        if label := _label(one):
            yield one, label


def _label(one: Artist | Container) -> str:
    label = str(one.get_label() or "")
    return "" if label.startswith("_") else label


def _look(one: Any) -> _Look:
    match one:
        case ErrorbarContainer():
            return _look(one.lines[0])
        case BarContainer():
            return _Look(hexed(one.patches[0].get_facecolor()), None, None)
        case Line2D():
            marker = one.get_marker()
            return _Look(hexed(one.get_color()), None if marker in ("None", "", None) else str(marker), dashes(one))
        case Patch():
            return _Look(hexed(one.get_facecolor()), None, None)
        case Collection():
            faces: Any = one.get_facecolor()
            return _Look(hexed(faces[0]) if len(faces) else "", None, None)
    return _Look("", None, None)
