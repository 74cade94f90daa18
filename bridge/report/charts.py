"""A matplotlib figure as interactive panels, one for each of its axes: a figure is drawn once, and read here.

A panel is a plotly figure as plain JSON, with the numbers of the artists as they are, and a text that tells them to who
does not see it. Colours are those of the picture; `charts.js` fits them to the theme, and draws.

Source: `bridge.report.artists` (what is drawn), `bridge.report.scales` (axes), `bridge.report.names` (legends).
"""

from __future__ import annotations

from dataclasses import dataclass

import plotly.graph_objects as go
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bridge.documents import Document
from bridge.errors import BridgeError
from bridge.report.artists import drawn
from bridge.report.cells import cells_in
from bridge.report.names import Names
from bridge.report.scales import Scale, neighbours, place, scale

_TOLD = 8
_SLENDER, _TALL = 0.45, 3.0


@dataclass(frozen=True)
class Panel:
    """One panel: a plotly figure, what it says in words, and the height of its axes over their width."""

    id: str
    title: str
    figure: Document
    alt: str
    aspect: float


@dataclass(frozen=True)
class Chart:
    """The panels of a figure, in its order."""

    id: str
    panels: tuple[Panel, ...]


def chart(id: str, figure: Figure) -> Chart:
    """A figure as panels `id-1`, `id-2`, ... Raises BridgeError where it holds something that is not read."""
    names = Names(figure)
    bars = [image.colorbar.ax for axes in figure.axes for image in cells_in(axes) if image.colorbar is not None]
    axes = [one for one in figure.axes if one not in bars]
    try:
        return Chart(id, tuple(_panel(f"{id}-{number}", one, names) for number, one in enumerate(axes, 1)))
    except BridgeError as error:
        raise BridgeError(f"{id}: {error}") from None


def _panel(id: str, axes: Axes, names: Names) -> Panel:
    horizontal, vertical = scale(axes, "x"), scale(axes, "y")
    found = drawn(axes, horizontal, vertical, names)
    traces = (*found.traces, *names.unclaimed(axes))
    title = _title(axes)
    aspect = _aspect(axes, names.figure)
    layout = {
        "title": {"text": title.replace("\n", "<br>")},
        "xaxis": horizontal.document(),
        "yaxis": vertical.document(),
        "shapes": list(found.shapes),
        "barmode": "overlay",
        "showlegend": any(one.get("showlegend", False) for one in (*traces, *found.shapes)),
        # For `charts.js`. Cells keep their colours, and those that are dark need light around them.
        "meta": {"aspect": aspect, "light": any(cells_in(one) for one in names.figure.axes)},
    }
    # Building it refuses what plotly would not draw.
    document = go.Figure(data=list(traces), layout=layout).to_plotly_json()
    document["layout"].pop("template", None)
    return Panel(id, title, document, _alt(title, horizontal, vertical, document), aspect)


def _title(axes: Axes) -> str:
    """The title of a panel or of the one above it; where none has one, what is written beside the first panel."""
    titles = [one.get_title() for one in (axes, *neighbours(axes, "x")) if one.get_title()]
    beside = axes.figure.texts if axes is axes.figure.axes[0] else ()
    return titles[0] if titles else "\n".join(text.get_text() for text in beside)


def _aspect(axes: Axes, figure: Figure) -> float:
    width, height = figure.get_size_inches()
    box = place(axes)
    return round(float(min(max(box.height * height / (box.width * width), _SLENDER), _TALL)), 3)


def _alt(title: str, horizontal: Scale, vertical: Scale, document: Document) -> str:
    """Title, axes with their ends, each series by its first and last point and its extremes, and what is marked."""
    said = [_flat(title)] if title else []
    for side, axis in (("Horizontal", horizontal), ("Vertical", vertical)):
        ends = " to ".join(_ends(axis))
        said.append(f"{side}: {_flat(axis.label) or 'place'}, {ends}")
    named: dict[str, list[Document]] = {}
    for trace in document["data"]:
        if trace.get("mode") != "text" and trace["x"] != [None] and trace.get("fill") is None:
            named.setdefault(trace.get("name", ""), []).append(trace)
    said += [_series(name, alike, horizontal, vertical) for name, alike in list(named.items())[:_TOLD]]
    if len(named) > _TOLD:
        said.append(f"{len(named) - _TOLD} more series")
    marked = [one["name"] for one in document["layout"].get("shapes", ()) if "name" in one]
    if marked:
        said.append(f"Marked: {'; '.join(marked)}")
    return ". ".join(said) + "."


def _ends(axis: Scale) -> list[str]:
    """The ends of an axis, or its first and last name."""
    if axis.fixed and axis.marks:
        return [axis.marks[0][1], axis.marks[-1][1]]
    return [f"{end:.0f}" if abs(end) >= 100 else f"{end:.3g}" for end in axis.limits]


def _series(name: str, alike: list[Document], horizontal: Scale, vertical: Scale) -> str:
    """What a series goes through: all points of one name, or, of several lines, the first."""
    trace = alike[0]
    if trace["type"] == "heatmap":
        values = [value for row in trace["z"] for value in row if value is not None]
        reach = f", {min(values):.4g} to {max(values):.4g}" if "%{z" in trace["hovertemplate"] else ""
        return f"{len(trace['z'])} by {len(trace['z'][0])} cells{reach}"
    apart = all(one.get("mode") == "markers" for one in alike)
    more = "" if apart or len(alike) == 1 else f", and {len(alike) - 1} more like it"
    # The value of a horizontal bar, or of a point beside a name, is the horizontal one.
    sides = ("y", "x") if trace.get("orientation") == "h" or (vertical.worded and not horizontal.worded) else ("x", "y")
    scales = {"x": horizontal, "y": vertical}
    points = [
        (one[sides[1]][i], _spoken(one, sides[1], scales[sides[1]], i), _spoken(one, sides[0], scales[sides[0]], i))
        for one in (alike if apart else alike[:1])
        for i in range(len(one["x"]))
        if one["x"][i] is not None and one["y"][i] is not None
    ]
    lead = _flat(name or scales[sides[1]].label)
    if not points:
        return f"{lead}: no points"
    values = [value for value, _, _ in points]
    chosen = dict.fromkeys(("", index) for index in (0, len(points) - 1))
    for word, index in (("lowest ", values.index(min(values))), ("highest ", values.index(max(values)))):
        if values[index] not in (values[0], values[-1]):
            chosen[word, index] = None
    return f"{lead}: " + ", ".join(f"{word}{points[i][1]} at {points[i][2]}" for word, i in chosen) + more


def _spoken(trace: Document, side: str, axis: Scale, index: int) -> str:
    """A coordinate of a point, with its error where it has one."""
    if axis.worded:
        return str(trace["customdata"][index]["xy".index(side)])
    error = trace.get(f"error_{side}")
    if error is None or error["array"][index] is None:
        return f"{trace[side][index]:.4g}" if side == "y" else axis.words(trace[side][index])
    spread = f"+- {error['array'][index]:.2g}"
    if "arrayminus" in error:
        spread = f"+ {error['array'][index]:.2g} - {error['arrayminus'][index]:.2g}"
    return f"{trace[side][index]:.4g} {spread}"


def _flat(text: str) -> str:
    return " ".join(text.split())
