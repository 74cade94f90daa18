"""Pictures of heads on a text: cells, classes, marks and numbers of made-up reports; laws beside observations."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection, QuadMesh
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure

from bridge.calibrated import CalibratedReport
from bridge.calibration import Seen
from bridge.compare import LIMIT, Comparison
from bridge.errors import BridgeError
from bridge.figures.model import COLOURS, model_figure
from bridge.figures.predictions import prediction_figure
from bridge.figures.save import save_results
from bridge.prediction import Prediction
from bridge.tables import Table
from bridge.trust import Trust
from theory.head import Carrier
from theory.kernel import Margin
from theory.schedule import RotarySchedule

LENGTHS = (64, 512, 2048)
TRUSTED, FLAGGED = Trust(2048, 0.5, 0.0, dependence=0.3), Trust(2048, 0.5, 0.0, drift=0.3)
"""Dependence is a note beside the flags and marks nothing."""


def prediction(exact: Iterable[float] = (0.6, 0.5, 0.4), offset: int = 1) -> Prediction:
    """A windowed law with these values at LENGTHS, seen .62 +- .01 at short context."""
    carrier = Carrier.from_means(RotarySchedule.geometric(4, 1e4), np.ones(4), np.ones(4), 0.5)
    values = np.array(tuple(exact))
    return Prediction(
        carrier=carrier,
        offset=offset,
        lengths=LENGTHS,
        profile=np.zeros(max(LENGTHS)),
        exact=values,
        mean_profile=values / 2,
        margins=(Margin(1.0, 0),) * len(LENGTHS),
        standard_error=np.full(len(LENGTHS), 0.001),
        law="windowed",
        seen=(0.62, 0.01),
    )


def report(layer: int, head: int, kind: str, offset: int, share: float, sink: float, trust: Trust) -> CalibratedReport:
    """A head of a class whose attention is highest at an offset."""
    profile = np.zeros(300)
    profile[-offset] = share
    seen = Seen(192, profile, np.full(300, 0.001), profile, sink, 0.001, 1.0, 0.01, share)
    return CalibratedReport(
        layer, head, offset, share, 0.001, offset, Margin(1.0, 0), 1024, prediction(), seen, kind, trust
    )


def heads_of(places: Iterable[tuple[int, int]], seed: int = 0) -> list[CalibratedReport]:
    """Heads of random classes, offsets and shares at (layer, head), in no order."""
    generator = np.random.default_rng(seed)
    made = []
    for layer, head in places:
        kind = str(generator.choice(list(COLOURS)))
        sink = generator.uniform(0.5, 1) if kind == "sink" else generator.uniform(0, 0.3)
        share = generator.uniform(0.2, 0.99) if kind in ("positional", "self") else generator.uniform(0.01, 0.2)
        offset = 0 if kind == "self" else -int(generator.geometric(0.4))
        trust = FLAGGED if generator.random() < 0.2 else TRUSTED
        made.append(report(layer, head, kind, offset, share, sink, trust))
    return [made[index] for index in generator.permutation(len(made))]


def whole(layers: int, heads: int) -> list[CalibratedReport]:
    return heads_of((layer, head) for layer in range(layers) for head in range(heads))


def one_each(layers: int) -> list[CalibratedReport]:
    return heads_of((layer, 7) for layer in range(layers))


SHAPES = {
    "a layer": heads_of((12, head) for head in range(9)),
    "30 x 9": whole(30, 9),
    "5 x 8": whole(5, 8),
    "32 x 32": whole(32, 32),
    "80 x 64": whole(80, 64),
    "a head": heads_of([(3, 4)]),
    "a head a layer": one_each(30),
    "far offsets": [report(0, head, "positional", -100 - head, 0.8 + head / 50, 0.0, TRUSTED) for head in range(9)],
    "another head in every layer": heads_of((2 * layer, (5 * layer) % 9) for layer in range(8)),
}
shapes = pytest.mark.parametrize("reports", SHAPES.values(), ids=SHAPES)


def labelled(reports: list[CalibratedReport]) -> tuple[list[int], list[int]]:
    """Layers and heads in the order of rows and columns."""
    return sorted({one.layer for one in reports}), sorted({one.head for one in reports})


def cells(figure: Figure, reports: list[CalibratedReport]) -> dict[tuple[int, int], np.ndarray]:
    """Colour of the cell of each (layer, head) that has one."""
    (mesh,) = [one for one in figure.axes[0].collections if isinstance(one, QuadMesh)]
    colours = np.asarray(mesh.get_array())
    layers, heads = labelled(reports)
    assert colours.shape == (len(layers), len(heads), 4)
    return {
        (layer, head): colours[row, column, :3]
        for row, layer in enumerate(layers)
        for column, head in enumerate(heads)
        if colours[row, column, 3] > 0
    }


def marked(panel: Axes, reports: list[CalibratedReport]) -> list[tuple[int, int]]:
    """(layer, head) of the cells that hold a mark."""
    (marks,) = [one for one in panel.collections if type(one) is PolyCollection]
    layers, heads = labelled(reports)
    centres = [np.asarray(path.vertices)[:3].mean(axis=0) for path in marks.get_paths()]
    return sorted((layers[round(float(y))], heads[round(float(x))]) for x, y in centres)


def legend_of(figure: Figure) -> list[str]:
    (legend,) = figure.legends
    return [text.get_text() for text in legend.get_texts()]


@shapes
def test_every_head_is_one_cell_whose_colour_is_of_its_class_and_deepens_with_its_share(
    reports: list[CalibratedReport],
) -> None:
    drawn = cells(model_figure(reports), reports)
    assert set(drawn) == {(one.layer, one.head) for one in reports}
    depths: dict[str, list[tuple[float, float]]] = {}
    for one in reports:
        missing = 1 - np.array(to_rgb(COLOURS[one.kind]))
        towards = 1 - drawn[one.layer, one.head]
        depth = float(towards @ missing / (missing @ missing))
        assert towards == pytest.approx(depth * missing, abs=1e-9)
        assert 0.2 <= depth <= 1
        depths.setdefault(one.kind, []).append((one.seen.sink if one.kind == "sink" else one.seen.share, depth))
    for pairs in depths.values():
        by_share = [depth for _, depth in sorted(pairs)]
        assert by_share == sorted(set(by_share))


@shapes
def test_marks_stand_exactly_on_heads_whose_prediction_is_flagged(reports: list[CalibratedReport]) -> None:
    figure = model_figure(reports)
    flagged = sorted((one.layer, one.head) for one in reports if one.trust.flags)
    assert marked(figure.axes[0], reports) == flagged
    assert f"prediction flagged ({len(flagged)})" in legend_of(figure)


@shapes
def test_positional_and_self_heads_alone_say_their_offset_and_share(reports: list[CalibratedReport]) -> None:
    """Where cells are too small for numbers, none are written and the key names none."""
    figure = model_figure(reports)
    layers, heads = labelled(reports)
    expected = {
        (one.layer, one.head): [str(one.seen.offset), f"{one.seen.share:.2f}"[1:]]
        for one in reports
        if one.kind in ("positional", "self")
    }
    found = {
        (layers[round(text.get_position()[1])], heads[round(text.get_position()[0])]): text.get_text().split()
        for text in figure.axes[0].texts
    }
    (key,) = figure.texts
    fits = len(reports) < 80 * 64
    assert found == (expected if fits else {})
    assert ("written" in key.get_text()) is fits


@shapes
def test_numbers_fit_their_cells(reports: list[CalibratedReport]) -> None:
    figure = model_figure(reports)
    figure.draw_without_rendering()
    panel = figure.axes[0]
    for text in panel.texts:
        column, row = text.get_position()
        corners = panel.transData.transform([(column - 0.5, row + 0.5), (column + 0.5, row - 0.5)])
        box = text.get_window_extent()
        assert (corners[0] <= box.min).all() and (box.max <= corners[1]).all()


@shapes
def test_the_picture_is_of_a_size_that_is_read_and_holds_all_that_is_drawn(reports: list[CalibratedReport]) -> None:
    figure = model_figure(reports)
    width, height = figure.get_size_inches()
    assert 2 < width <= 14 and 2 < height <= 16
    tight = figure.get_tightbbox()
    assert min(tight.x0, tight.y0) >= 0 and tight.x1 <= width and tight.y1 <= height


@shapes
def test_layer_0_is_at_the_top_and_ticks_name_layers_and_heads(reports: list[CalibratedReport]) -> None:
    panel = model_figure(reports).axes[0]
    layers, heads = labelled(reports)
    assert panel.get_ylim() == (len(layers) - 0.5, -0.5) and panel.get_xlim() == (-0.5, len(heads) - 0.5)
    for axis, named in ((panel.yaxis, layers), (panel.xaxis, heads)):
        for place, label in zip(axis.get_ticklocs(), axis.get_ticklabels(), strict=True):
            assert label.get_text() == str(named[int(place)])
    assert panel.get_xlabel() == "head" and panel.get_ylabel() == "layer"


@shapes
def test_bars_and_legend_count_the_heads_of_each_class(reports: list[CalibratedReport]) -> None:
    figure = model_figure(reports)
    counts = Counter(one.kind for one in reports)
    assert legend_of(figure)[:5] == [f"{kind} ({counts[kind]})" for kind in COLOURS]
    layers, _ = labelled(reports)
    assert len(figure.axes) == (2 if len(reports) > len(layers) else 1)
    for panel in figure.axes[1:]:
        assert panel.get_ylim() == figure.axes[0].get_ylim()
        ends = np.zeros(len(layers))
        for kind, bars in zip(COLOURS, panel.containers, strict=True):
            lengths = [bar.get_width() for bar in bars.patches]
            assert lengths == [sum(one.kind == kind and one.layer == layer for one in reports) for layer in layers]
            assert [bar.get_x() for bar in bars.patches] == ends.tolist()
            assert {bar.get_facecolor()[:3] for bar in bars.patches} == {to_rgb(COLOURS[kind])}
            ends += lengths


def test_the_order_of_reports_changes_nothing() -> None:
    reports = SHAPES["5 x 8"]
    backwards = list(reversed(reports))
    ones, others = cells(model_figure(reports), reports), cells(model_figure(backwards), backwards)
    assert all((ones[place] == others[place]).all() for place in ones)


def test_classes_are_told_apart_in_grey() -> None:
    greys = sorted(float(np.dot(to_rgb(colour), (0.299, 0.587, 0.114))) for colour in COLOURS.values())
    assert min(np.diff(greys)) > 0.05


def test_a_picture_of_no_heads_is_refused() -> None:
    with pytest.raises(BridgeError, match="needs one report or more, got none"):
        model_figure([])


@pytest.mark.parametrize("name", ["5 x 8", "a head a layer"])
def test_a_picture_of_heads_saved_twice_has_the_same_bytes(tmp_path: Path, name: str) -> None:
    assert_same_bytes(tmp_path, lambda: model_figure(SHAPES[name]))


def test_a_picture_of_predictions_saved_twice_has_the_same_bytes(tmp_path: Path) -> None:
    assert_same_bytes(tmp_path, lambda: prediction_figure([("head 1.2", prediction())], 2048, observed()))


def assert_same_bytes(folder: Path, draw: Callable[[], Figure]) -> None:
    table = Table("heads", ("head",), (("0.0",),))
    once, twice = folder / "once", folder / "twice"
    for place in (once, twice):
        place.mkdir()
        assert [path.suffix for path in save_results(place, "heads", table, draw())] == [".csv", ".png", ".svg", ".pdf"]
    for path in once.iterdir():
        assert path.read_bytes() == (twice / path.name).read_bytes() != b""


def observed(error: float = 0.004) -> Comparison:
    """What a model did at the lengths of `prediction`."""
    return Comparison(
        "windowed law", LENGTHS, prediction().exact, np.array([0.61, 0.47, 0.43]), np.full(len(LENGTHS), error)
    )


def curve(panel: Axes, label: str) -> tuple[list[float], list[float]]:
    (found,) = [one for one in panel.lines if one.get_label() == label]
    return np.asarray(found.get_xdata()).tolist(), np.asarray(found.get_ydata()).tolist()


def test_observed_points_stand_in_the_first_panel_with_bars_of_the_verdict() -> None:
    changed, before = prediction(), prediction((0.3, 0.2, 0.1))
    first, second = prediction_figure([("head 1.2", changed), ("unchanged", before)], 2048, observed()).axes
    (points,) = [one for one in first.containers if str(one.get_label()).startswith("observed")]
    assert points.lines[0].get_xdata().tolist() == list(LENGTHS)
    assert points.lines[0].get_ydata().tolist() == [0.61, 0.47, 0.43]
    ends = np.array([segment[:, 1] for segment in points.lines[2][0].get_segments()])
    assert ends[:, 1] - ends[:, 0] == pytest.approx(np.full(3, 2 * LIMIT * 0.004))
    assert not second.containers
    assert (first.get_title(), second.get_title()) == ("head 1.2, offset -1", "unchanged, offset -1")
    assert curve(second, "windowed law")[1] == [0.3, 0.2, 0.1]


def test_laws_are_named_and_what_was_seen_at_short_context_is_a_level_with_its_error() -> None:
    unsorted = replace(prediction((0.4, 0.6, 0.5)), lengths=(2048, 64, 512))
    figure = prediction_figure([("head 1.2", unsorted)], 2048, observed())
    (panel,) = figure.axes
    assert curve(panel, "windowed law") == (list(LENGTHS), [0.6, 0.5, 0.4])
    assert curve(panel, "as at short context (band: 1 s.e.)") == (list(LENGTHS), [0.62] * 3)
    (band,) = [one for one in panel.collections if isinstance(one, PolyCollection)]
    heights = np.asarray(band.get_paths()[0].vertices)[:, 1]
    assert (heights.min(), heights.max()) == pytest.approx((0.61, 0.63))
    entries = legend_of(figure)
    assert len(entries) == len(set(entries)) == 6 and f"observed (bars: {LIMIT} s.e.)" in entries


def test_a_prediction_without_a_text_has_the_exact_law_and_no_level() -> None:
    figure = prediction_figure([("head 0.2", replace(prediction(), law="exact", seen=None))], 2048)
    assert legend_of(figure) == ["exact law", "mean-profile law", "uniform attention, 1/L", "trained length, 2048"]


@pytest.mark.parametrize("error", [0.004, 0.3])
def test_the_axis_of_attention_holds_every_panel_s_curves_and_bars(error: float) -> None:
    named = [("head 1.2", prediction((0.03, 0.02, 0.01))), ("unchanged", prediction((0.9, 0.8, 0.7)))]
    first, second = prediction_figure(named, 2048, observed(error)).axes
    assert first.get_ylim() == second.get_ylim()
    low, high = first.get_ylim()
    assert low == 0 and high > max(0.9, 0.61 + LIMIT * error)


def test_a_prediction_of_one_length_is_seen() -> None:
    whole_law = prediction()
    half = np.array([0.5])
    one = replace(whole_law, lengths=(512,), exact=half, mean_profile=half, standard_error=half)
    (panel,) = prediction_figure([("head 1.2", one)], 2048).axes
    (law,) = [line for line in panel.lines if line.get_label() == "windowed law"]
    assert law.get_marker() == "_"


@pytest.mark.parametrize("count", [1, 2, 4, 9])
def test_the_legend_of_predictions_hides_no_panel_and_leaves_no_picture(count: int) -> None:
    figure = prediction_figure([(f"head 1.{head}", prediction()) for head in range(count)], 2048, observed())
    figure.draw_without_rendering()
    (legend,) = figure.legends
    box = legend.get_window_extent()
    assert figure.bbox.x0 <= box.x0 and box.x1 <= figure.bbox.x1
    assert all(panel.get_tightbbox().y1 <= box.y0 for panel in figure.axes)
