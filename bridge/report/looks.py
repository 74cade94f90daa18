"""How a line, a mark or a face of matplotlib looks, in plotly's terms: lengths in CSS pixels, dashes as drawn.

Source: `matplotlib.lines`, `matplotlib.markers`; https://plotly.com/javascript/reference.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.artist import Artist
from matplotlib.collections import PathCollection
from matplotlib.colors import to_hex, to_rgba
from matplotlib.lines import Line2D
from matplotlib.markers import MarkerStyle
from matplotlib.patches import Patch

from bridge.documents import Document
from bridge.errors import BridgeError

PIXELS = 4 / 3
"""CSS pixels in a point."""

_NONE = ("None", "none", " ", "", None)
_OPEN_ONLY = ("x", "+", "_", "|")
_SYMBOLS = {
    "o": "circle",
    ".": "circle",
    "s": "square",
    "D": "diamond",
    "d": "diamond-tall",
    "^": "triangle-up",
    "v": "triangle-down",
    "<": "triangle-left",
    ">": "triangle-right",
    "*": "star",
    "x": "x-thin",
    "+": "cross-thin",
    "_": "line-ew",
    "|": "line-ns",
}


def dashes(line: Line2D) -> str | None:
    """The dashes of a line in pixels, "solid", or None where points are not joined."""
    if line.get_linestyle() in _NONE:
        return None
    # matplotlib tells its own patterns by name and all others as "--"; the pattern itself has no public name.
    _, pattern = vars(line)["_unscaled_dash_pattern"]
    scale = line.get_linewidth() * PIXELS
    return "solid" if pattern is None else ",".join(f"{length * scale:.3g}px" for length in pattern)


def stroke(line: Line2D) -> Document:
    """Colour, width and dashes of a line."""
    return {"color": hexed(line.get_color()), "width": line.get_linewidth() * PIXELS, "dash": dashes(line)}


def marks(line: Line2D) -> Document:
    """The marks on a line's points, empty where it has none. A face that is white or none is open."""
    marker = line.get_marker()
    if marker in _NONE:
        return {}
    size = line.get_markersize() * PIXELS * (0.5 if marker == "." else 1)
    edge = hexed(line.get_markeredgecolor())
    found = _mark(marker, line.get_markerfacecolor(), edge) | {"size": size}
    if found["color"] != edge:
        found["line"] = {"color": edge, "width": line.get_markeredgewidth() * PIXELS}
    return found


def scattered(points: PathCollection) -> Document:
    """The marks of a scatter, each with its colour and size where they differ."""
    values = points.get_array()
    faces: Any = points.get_facecolor() if values is None else points.to_rgba(values)
    outlines: Any = points.get_edgecolor()
    edges = [hexed(edge) for edge in outlines]
    colours = [hexed(face) for face in faces] or edges
    sizes = [float(np.sqrt(size)) * PIXELS for size in points.get_sizes()]
    found = _mark(_marker_of(points), "none" if not len(faces) else colours[0], colours[0])
    return found | {
        "color": colours if len(set(colours)) > 1 else colours[0],
        "size": sizes if len(sizes) > 1 else sizes[0],
    }


def key(handle: Artist) -> Document:
    """The mark of an entry in a legend: the face of a patch, else the mark of a line. A triangle of a path is one."""
    if isinstance(handle, Line2D):
        if isinstance(handle.get_marker(), str):
            return marks(handle) or {"symbol": "line-ew-open", "color": hexed(handle.get_color())}
        return {"symbol": "triangle-ne", "color": hexed(handle.get_color())}
    if isinstance(handle, Patch):
        return {"symbol": "square", "color": hexed(handle.get_facecolor())}
    raise BridgeError(f"a {type(handle).__name__} in a legend is not read: use a line or a patch")


def hexed(color: Any) -> str:
    """A colour without its opacity."""
    return to_hex(color)


def rgba(color: Any, alpha: float | None = None) -> str:
    """A colour with its opacity, as CSS has it."""
    red, green, blue, opacity = to_rgba(color, alpha)
    return f"rgba({round(red * 255)},{round(green * 255)},{round(blue * 255)},{opacity:g})"


def opacity(artist: Artist) -> Document:
    """Opacity of an artist, nothing where it has none of its own."""
    alpha = artist.get_alpha()
    return {} if alpha is None else {"opacity": float(alpha)}


def _mark(marker: Any, face: Any, edge: str) -> Document:
    symbol = _SYMBOLS.get(marker) if isinstance(marker, str) else None
    if symbol is None:
        raise BridgeError(f"the marker {marker!r} of a picture is not read: use one of {' '.join(_SYMBOLS)}")
    hollow = marker not in _OPEN_ONLY and (face in _NONE or hexed(face) == "#ffffff")
    drawn_by_edge = hollow or marker in _OPEN_ONLY
    return {"symbol": symbol + "-open" * drawn_by_edge, "color": edge if drawn_by_edge else hexed(face)}


def _marker_of(points: PathCollection) -> str:
    """The marker whose outline the points have: a scatter does not keep its name."""
    outline = points.get_paths()[0].vertices
    for marker in _SYMBOLS:
        style = MarkerStyle(marker)
        if np.array_equal(style.get_path().transformed(style.get_transform()).vertices, outline):
            return marker
    raise BridgeError(f"the marker of a scatter is not read: use one of {' '.join(_SYMBOLS)}")
