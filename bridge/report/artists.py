"""What is drawn in a matplotlib panel as plotly's traces and shapes: the same numbers, dashes, marks and colours.

Lines, points with error bars, bars, bands, spans, meshes, images and texts are read. Left out are spines, ticks and
the boxes of legends, whose labels the traces carry; anything else is refused by its kind, so that nothing is lost in
silence.

Source: `matplotlib.artist`; https://plotly.com/javascript/reference.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.collections import PathCollection, PolyCollection, QuadMesh
from matplotlib.container import BarContainer, Container, ErrorbarContainer
from matplotlib.image import AxesImage
from matplotlib.legend import Legend
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle
from matplotlib.spines import Spine
from matplotlib.text import Annotation, Text

from bridge.documents import Document
from bridge.errors import BridgeError
from bridge.report.cells import cells_in, heatmap
from bridge.report.looks import PIXELS, dashes, hexed, marks, opacity, rgba, scattered, stroke
from bridge.report.names import Name, Names
from bridge.report.scales import Scale, listed

_STEPS = {"default": "linear", "steps": "vh", "steps-pre": "vh", "steps-mid": "hvh", "steps-post": "hv"}
_ACROSS = {"left": "right", "center": "center", "right": "left"}
_DOWN = {"center": "middle", "center_baseline": "middle", "top": "bottom", "bottom": "top", "baseline": "top"}


@dataclass(frozen=True)
class Drawn:
    """Traces and shapes of a panel, in the order in which they lie above each other."""

    traces: tuple[Document, ...]
    shapes: tuple[Document, ...]


def drawn(panel: Axes, horizontal: Scale, vertical: Scale, names: Names) -> Drawn:
    """Everything in a panel. Raises BridgeError for an artist of a kind that is not read."""
    reader = _Reader(panel, horizontal, vertical, names)
    traces: list[tuple[float, Document]] = []
    shapes: list[Document] = []
    texts: list[Text] = []
    members = {id(member): one for one in panel.containers for member in _members(one)}
    done: set[int] = set()
    for artist in panel.get_children():
        one: Artist | Container = members.get(id(artist), artist)
        if id(one) in done or _is_frame(panel, artist) or not artist.get_visible():
            continue
        done.add(id(one))
        if isinstance(artist, Text):
            texts.append(artist)
        elif isinstance(artist, Line2D | Rectangle) and one is artist and (shape := reader.span(artist)):
            # Each series of a panel may shade the same span again.
            if all(shape | {"showlegend": other["showlegend"]} != other for other in shapes):
                shapes.append(shape)
        else:
            traces.append((artist.get_zorder(), reader.trace(one)))
    ordered = _joined(trace for _, trace in sorted(traces, key=lambda pair: pair[0]))
    return Drawn((*ordered, *reader.written(texts)), tuple(shapes))


@dataclass(frozen=True, eq=False)
class _Reader:
    panel: Axes
    x: Scale
    y: Scale
    names: Names

    def trace(self, one: Artist | Container) -> Document:
        match one:
            case ErrorbarContainer() if one.lines[0] is not None:
                found = self._line(one.lines[0], self.names.of(self.panel, one), _errors(one))
            case BarContainer() if one.errorbar is None:
                found = self._bars(one)
            case Line2D():
                found = self._line(one, self.names.of(self.panel, one), {})
            case PolyCollection():
                found = self._bands(one)
            case PathCollection():
                found = self._scatter(one)
            case QuadMesh() | AxesImage():
                found = heatmap(one, self.x, self.y)
            case _:
                raise BridgeError(
                    f"a {type(one).__name__} of a picture cannot be made interactive: draw it with lines, error bars, "
                    "bars, bands, spans, scatter, meshes, images or texts, or teach bridge/report/artists.py to read it"
                )
        return found

    def span(self, artist: Line2D | Rectangle) -> Document | None:
        """A line or a band right across the panel, None where the artist is no such thing."""
        transform = artist.get_transform() if isinstance(artist, Line2D) else artist.get_data_transform()
        in_data = transform.contains_branch_seperately(self.panel.transData)
        if all(in_data):
            return None
        if isinstance(artist, Line2D):
            (left, right), (bottom, top) = np.asarray(artist.get_data(), dtype=float)
            look = {"type": "line", "line": stroke(artist), "layer": "above"}
        else:
            (left, bottom), (right, top) = artist.get_bbox().get_points()
            fill = rgba(artist.get_facecolor(), artist.get_alpha())
            look = {"type": "rect", "fillcolor": fill, "line": {"width": 0}, "layer": "below"}
        ends = [
            (scale.places(pair), letter) if inside else (list(map(float, pair)), f"{letter} domain")
            for scale, pair, inside, letter in zip(
                (self.x, self.y), ((left, right), (bottom, top)), in_data, "xy", strict=True
            )
        ]
        ((x0, x1), xref), ((y0, y1), yref) = ends
        name = self.names.of(self.panel, artist)
        return {"x0": x0, "x1": x1, "xref": xref, "y0": y0, "y1": y1, "yref": yref} | look | name.entry()

    def written(self, texts: Sequence[Text]) -> tuple[Document, ...]:
        """All texts of a panel that stand at data. On a mesh they keep their colours, which suit its cells."""
        if not texts:
            return ()
        for text in texts:
            at_data = text.xycoords == "data" if isinstance(text, Annotation) else self._at_data(text)
            if not at_data:
                raise BridgeError(f"the text {text.get_text()!r} stands at no data: give it data coordinates")
        font: Document = {"size": [float(text.get_fontsize()) * PIXELS for text in texts]}
        if cells_in(self.panel):
            font["color"] = [hexed(text.get_color()) for text in texts]
        places = [text.xy if isinstance(text, Annotation) else text.get_position() for text in texts]
        return (
            {
                "type": "scatter",
                "mode": "text",
                "x": self.x.places([float(place[0]) for place in places]),
                "y": self.y.places([float(place[1]) for place in places]),
                "text": [_indented(text) for text in texts],
                "textposition": [
                    f"{_DOWN[text.get_verticalalignment()]} {_ACROSS[text.get_horizontalalignment()]}" for text in texts
                ],
                "textfont": font,
                "hoverinfo": "skip",
                "showlegend": False,
            },
        )

    def _at_data(self, text: Text) -> bool:
        return all(text.get_transform().contains_branch_seperately(self.panel.transData))

    def _line(self, line: Line2D, name: Name, errors: Document) -> Document:
        for letter, scale in (("x", self.x), ("y", self.y)):
            if f"error_{letter}" in errors and not scale.native:
                raise BridgeError(
                    f"error bars along a {scale.kind} axis are not read: draw them on a linear or log one"
                )
        marked = marks(line)
        joined = dashes(line) is not None and len(np.atleast_1d(line.get_xdata())) > 1
        mode = "+".join(["lines"] * joined + ["markers"] * bool(marked)) or "lines"
        return (
            {"type": "scatter"}
            | name.entry()
            | self._points(line.get_xdata(orig=False), line.get_ydata(orig=False), name, errors)
            | {"mode": mode, "cliponaxis": False}
            | ({"line": stroke(line) | {"shape": _STEPS[line.get_drawstyle()]}} if joined else {})
            | ({"marker": marked} if marked else {})
            | opacity(line)
            | errors
        )

    def _scatter(self, points: PathCollection) -> Document:
        places, name = np.asarray(points.get_offsets(), dtype=float), self.names.of(self.panel, points)
        found = self._points(places[:, 0], places[:, 1], name, {}) | {"mode": "markers", "marker": scattered(points)}
        return {"type": "scatter"} | name.entry() | found | opacity(points)

    def _bars(self, bars: BarContainer) -> Document:
        name, upright = self.names.of(self.panel, bars), bars.orientation != "horizontal"
        boxes = np.array([patch.get_bbox().get_points() for patch in bars.patches])
        low, high = boxes[:, 0], boxes[:, 1]
        along, across = (1, 0) if upright else (0, 1)
        middle, size = (low + high)[:, across] / 2, (high - low)[:, along]
        x, y = (middle, size) if upright else (size, middle)
        first = bars.patches[0]
        edge = {"color": hexed(first.get_edgecolor()), "width": first.get_linewidth() * PIXELS}
        return (
            {"type": "bar", "orientation": "v" if upright else "h"}
            | name.entry()
            # plotly would count from zero where a bar stands on another.
            | self._points(x, y, name, {}, spelled=True)
            | {"base": low[:, along].tolist(), "width": (high - low)[:, across].tolist()}
            | {"marker": {"color": [hexed(patch.get_facecolor()) for patch in bars.patches], "line": edge}}
        )

    def _bands(self, bands: PolyCollection) -> Document:
        """Filled polygons, one after the other; what lies between holds no number of its own."""
        name = self.names.of(self.panel, bands)
        ends = np.full((1, 2), np.nan)
        parts = [part for path in bands.get_paths() for part in (np.asarray(path.vertices), ends)]
        corners = np.concatenate(parts[:-1] or [ends])
        return (
            {"type": "scatter"}
            | name.entry()
            | {"x": self.x.places(corners[:, 0]), "y": self.y.places(corners[:, 1])}
            | {"mode": "lines", "line": {"width": 0}, "fill": "toself", "hoverinfo": "skip"}
            | {"fillcolor": rgba(np.atleast_2d(bands.get_facecolor())[0])}
        )

    def _points(self, x: Any, y: Any, name: Name, errors: Document, spelled: bool = False) -> Document:
        """Where points are, and what hover says of each: the series, then both axes, in words where plotly has none."""
        found: Document = {"x": self.x.places(x), "y": self.y.places(y)}
        if spelled or self.x.worded or self.y.worded:
            found["customdata"] = [[self.x.words(a), self.y.words(b)] for a, b in zip(x, y, strict=True)]
        said = [f"<b>{name.text}</b>"] if name.text else []
        for number, (letter, scale, digits) in enumerate((("x", self.x, ".6~g"), ("y", self.y, ".4~g"))):
            shown = f"%{{customdata[{number}]}}" if spelled or scale.worded else f"%{{{letter}:{digits}}}"
            said.append(scale.lead + shown + _spread(errors.get(f"error_{letter}"), letter))
        return found | {"hovertemplate": "<br>".join(said) + "<extra></extra>"}


def _members(container: Container) -> Iterator[Artist]:
    parts: list[Any] = list(container)
    while parts:
        part = parts.pop()
        if isinstance(part, Artist):
            yield part
        elif part is not None:
            parts.extend(part)


def _indented(text: Text) -> str:
    """The words of a text, as far from its point as an annotation's offset says."""
    away = text.xyann[0] if isinstance(text, Annotation) and text.get_horizontalalignment() == "left" else 0
    return "\u00a0" * round(away / (0.3 * float(text.get_fontsize()))) + text.get_text().replace("\n", "<br>")


def _joined(traces: Iterable[Document]) -> list[Document]:
    """Points that were drawn one by one in one look are one series."""
    found: list[Document] = []
    for trace in traces:
        same = next((other for other in found if trace.get("mode") == "markers" and _look(other) == _look(trace)), None)
        if same is None:
            found.append(trace)
            continue
        for name in {"x", "y", "customdata"} & trace.keys():
            same[name] = [*same[name], *trace[name]]
        for name in ("error_x", "error_y"):
            for side in {"array", "arrayminus"} & trace.get(name, {}).keys():
                same[name][side] = [*same[name][side], *trace[name][side]]
    return found


def _look(trace: Document) -> Document:
    """A trace without its numbers, and with no word on whether a legend lists it."""
    numbers = {"x", "y", "customdata", "showlegend", "array", "arrayminus"}
    return {
        name: {key: one for key, one in value.items() if key not in numbers} if isinstance(value, dict) else value
        for name, value in trace.items()
        if name not in numbers
    }


def _is_frame(panel: Axes, artist: Artist) -> bool:
    """What plotly draws by itself, or the page says: axes, the background, titles, the box of a legend."""
    frame = isinstance(artist, Axis | Spine | Legend) or artist is panel.patch
    return frame or (isinstance(artist, Text) and artist not in panel.texts)


def _errors(bars: ErrorbarContainer) -> Document:
    """Error bars as they reach from their points, the one side alone where both are alike."""
    line, (_, _, reaches) = bars.lines[0], bars.lines
    points = (line.get_xdata(orig=False), line.get_ydata(orig=False))
    # Horizontal bars come first.
    letters = ["x"] * bars.has_xerr + ["y"] * bars.has_yerr
    found: Document = {}
    for letter, reach in zip(letters, reaches, strict=True):
        axis = "xy".index(letter)
        ends = np.array([segment[:, axis] for segment in reach.get_segments()])
        below, above = points[axis] - ends[:, 0], ends[:, 1] - points[axis]
        alike = np.allclose(below, above, rtol=1e-9, atol=1e-12, equal_nan=True)
        sides: Document = {"array": listed((ends[:, 1] - ends[:, 0]) / 2)}
        if not alike:
            sides = {"array": listed(above), "arrayminus": listed(below), "symmetric": False}
        (width, *_), (color, *_) = np.atleast_1d(reach.get_linewidth()), np.atleast_2d(reach.get_color())
        look = {"color": hexed(color), "thickness": float(width) * PIXELS, "width": 0}
        found[f"error_{letter}"] = {"type": "data"} | sides | look
    return found


def _spread(error: Document | None, letter: str) -> str:
    if error is None:
        return ""
    if "arrayminus" in error:
        return f" + %{{error_{letter}.array:.2~g}} \u2212 %{{error_{letter}.arrayminus:.2~g}}"
    return f" \u00b1 %{{error_{letter}.array:.2~g}}"
