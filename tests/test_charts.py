"""Interactive panels hold what the pictures hold: every number, label and mark, read again from the artists."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from functools import cache
from itertools import chain
from pathlib import Path

import numpy as np
import plotly.graph_objects as go
import pytest
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch
from test_model_figures import SHAPES, prediction

from bridge.documents import Document
from bridge.errors import BridgeError
from bridge.figures.model import COLOURS, model_figure
from bridge.figures.predictions import prediction_figure
from bridge.figures.save import save_figure
from bridge.paper import TARGETS as ALL
from bridge.paper.target import Preset, Target
from bridge.report.charts import Panel, chart
from empirics.head import AttentionHead
from empirics.observe import observe
from empirics.observe_transformer import observe_transformer
from empirics.spec import TransformerSpec
from empirics.specs import Spec
from empirics.train import AnyRun, Run, TransformerRun
from empirics.transformer import Transformer

TARGETS = tuple(target for target in ALL if target.draw is not None)


def untrained(spec: Spec) -> AnyRun:
    """A model before training, seen on few sequences: what is drawn is of no account here, that it is read is."""
    generator = torch.Generator().manual_seed(spec.seed)
    if isinstance(spec, TransformerSpec):
        model = Transformer(spec, generator)
        return TransformerRun(
            spec, model, (), observe_transformer(model, spec.evaluation_lengths, 4, 4, generator), 0.0
        )
    head = AttentionHead(spec, generator)
    with torch.no_grad():
        head.query.mul_(8)
    return Run(spec, head, (), observe(head, spec.evaluation_lengths, 4, generator), 0.0)


@cache
def drawn(target: Target) -> Figure:
    assert target.draw is not None
    return target.draw(tuple(untrained(spec) for spec in target.specs_at(Preset.SMOKE)))


FIGURES: dict[str, Callable[[], Figure]] = {
    **{target.id: lambda target=target: drawn(target) for target in TARGETS},  # type: ignore[misc]
    "heads": lambda: model_figure(SHAPES["5 x 8"]),
    "laws": lambda: prediction_figure([("0.3", prediction()), ("0.5", prediction((0.3, 0.2, 0.1), 3))], 512),
}
figures = pytest.mark.parametrize("name", FIGURES)


def panels_of(name: str) -> list[tuple[Axes, Panel]]:
    """The axes of a figure, each with its panel."""
    figure = FIGURES[name]()
    return list(zip(figure.axes, chart(name, figure).panels, strict=True))


def alone(draw: Callable[[Axes], object], size: tuple[float, float] = (4, 3)) -> Panel:
    """The panel of a picture with nothing else in it."""
    axes = Figure(figsize=size).subplots()
    axes.set_xlabel("length (tokens)")
    axes.set_ylabel("attention")
    draw(axes)
    (panel,) = chart("alone", axes.figure).panels
    return panel


def across(axes: Axes) -> list[tuple[np.ndarray, np.ndarray]]:
    """What joins or marks points of the panel: lines whose both coordinates are data."""
    data = axes.transData
    lines = [one for one in axes.lines if one.get_transform() == data]
    return [(np.asarray(one.get_xdata(), dtype=float), np.asarray(one.get_ydata(), dtype=float)) for one in lines]


def pairs(panel: Panel) -> set[tuple[float, float]]:
    """Every point of a panel's series."""
    traces = [one for one in panel.figure["data"] if one["type"] == "scatter" and one["mode"] != "text"]
    return set(chain.from_iterable(zip(one["x"], one["y"], strict=True) for one in traces))


def bars(panel: Panel) -> Iterator[tuple[float, float, float]]:
    """Horizontal place, lower and upper end of every vertical error bar."""
    for one in panel.figure["data"]:
        if error := one.get("error_y"):
            below = error.get("arrayminus", error["array"])
            for x, y, up, down in zip(one["x"], one["y"], error["array"], below, strict=True):
                yield x, y - down, y + up


def named(panel: Panel) -> dict[str, Document]:
    """Series and marked spans of a panel by name."""
    return {
        one["name"]: one for one in (*panel.figure["data"], *panel.figure["layout"].get("shapes", ())) if "name" in one
    }


@figures
def test_every_point_of_every_line_is_in_the_panel_with_equal_numbers(name: str) -> None:
    for axes, panel in panels_of(name):
        found = pairs(panel)
        transform = axes.xaxis.get_transform() if axes.get_xscale() == "symlog" else None
        for x, y in across(axes):
            places = x if transform is None else transform.transform(x)
            assert set(zip(places.tolist(), y.tolist(), strict=True)) <= found
    assert sum(len(across(axes)) for axes, _ in panels_of(name)) > 2 or name == "heads"


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.id)
def test_every_error_bar_reaches_as_far_as_in_the_picture(target: object) -> None:
    counted = 0
    for axes, panel in panels_of(target.id):  # type: ignore[attr-defined]
        segments = [line for one in axes.containers for line in one.lines[2][0].get_segments()]
        wanted = np.array(sorted((line[0, 0], line[0, 1], line[1, 1]) for line in segments)).reshape(-1, 3)
        found = np.array(sorted(bars(panel))).reshape(-1, 3)
        assert found.shape == wanted.shape
        assert found == pytest.approx(wanted, abs=1e-12)
        counted += len(wanted)
    assert counted or target.id == "figure-2"  # type: ignore[attr-defined]


@figures
def test_titles_axes_and_labels_are_those_of_the_picture(name: str) -> None:
    for axes, panel in panels_of(name):
        layout = panel.figure["layout"]
        assert axes.get_title() in panel.title
        own = {one.get_label() for one in (*axes.get_children(), *axes.containers) if isinstance(one.get_label(), str)}
        assert {label for label in own if label and not label.startswith("_")} <= set(named(panel))
        for side in ("x", "y"):
            label, ends = getattr(axes, f"get_{side}label")(), getattr(axes, f"get_{side}lim")()
            axis = layout[f"{side}axis"]
            assert label.replace("\n", "<br>") in axis["title"]["text"] and (axis["title"]["text"] or name == "heads")
            kind = getattr(axes, f"get_{side}scale")()
            assert axis["type"] == ("log" if kind == "log" else "linear")
            if kind != "symlog":
                assert axis["range"] == pytest.approx(np.log10(ends) if kind == "log" else ends)


@figures
def test_a_name_stands_once_in_the_legend_of_a_panel_and_every_mark_of_a_figure_of_ours_has_one(name: str) -> None:
    for _, panel in panels_of(name):
        entries = (*panel.figure["data"], *panel.figure["layout"].get("shapes", ()))
        listed = [one["name"] for one in entries if one.get("showlegend")]
        assert len(listed) == len(set(listed))
        marked = [one for one in panel.figure["data"] if "markers" in one.get("mode", "") and one["x"] != [None]]
        assert all("name" in one for one in marked)


@figures
def test_the_same_picture_gives_the_same_bytes_before_and_after_it_is_laid_out(name: str) -> None:
    figure = FIGURES[name]()
    texts = []
    for _ in range(2):
        texts.append(json.dumps([(one.id, one.figure, one.alt) for one in chart(name, figure).panels], allow_nan=False))
        figure.draw_without_rendering()
    assert texts[0] == texts[1] == json.dumps([(o.id, o.figure, o.alt) for o in chart(name, FIGURES[name]()).panels])


def test_what_is_given_is_a_plotly_figure_in_plain_json() -> None:
    for _, panel in panels_of("figure-1"):
        assert "template" not in panel.figure["layout"]
        assert json.loads(json.dumps(panel.figure)) == panel.figure
        assert len(go.Figure(panel.figure).data) == len(panel.figure["data"])
    assert [panel.id for _, panel in panels_of("figure-1")] == ["figure-1-1", "figure-1-2", "figure-1-3"]


def test_the_text_of_a_panel_tells_its_axes_and_the_numbers_of_its_series() -> None:
    axes, panel = panels_of("figure-1")[0]
    assert panel.alt.startswith("accuracy, K = 1. Horizontal: sequence length L (tokens), 6 to 50. Vertical: accuracy")
    (points, _, (reaches,)), label = axes.containers[0].lines, str(axes.containers[0].get_label())
    values = points.get_ydata()
    spread = (reaches.get_segments()[0][1, 1] - reaches.get_segments()[0][0, 1]) / 2
    assert f"{label}: {values[0]:.4g} +- {spread:.2g} at 12, {values[-1]:.4g} +- " in panel.alt
    assert "Marked: chance, 1/20" in panel.alt


def test_the_text_of_a_series_gives_its_ends_and_its_extremes_between_them() -> None:
    def draw(axes: Axes) -> None:
        axes.plot([8, 16, 32, 64], [0.5, 0.25, 0.875, 0.75], label="law")
        axes.errorbar([8], [0.5], [[0.125], [0.25]], fmt="o", label="seen")

    text = alone(draw).alt
    assert "law: 0.5 at 8, 0.75 at 64, lowest 0.25 at 16, highest 0.875 at 32. seen: 0.5 + 0.25 - 0.12 at 8." in text
    assert text.startswith("Horizontal: length (tokens), 5.2 to 66.8. Vertical: attention, ")


@figures
def test_every_panel_has_a_text_that_names_its_series(name: str) -> None:
    for _, panel in panels_of(name):
        assert "Horizontal: " in panel.alt and "Vertical: " in panel.alt and "\n" not in panel.alt
        told = [
            one["name"] for one in panel.figure["data"] if "name" in one and one["x"] != [None] and "fill" not in one
        ]
        assert all(f"{one}: " in panel.alt for one in list(dict.fromkeys(told))[:8])


def test_a_series_that_has_its_label_in_another_panel_has_it_in_its_own_too() -> None:
    """Below, profiles carry no label: the legend of the figure names them above. Points without bars say none."""
    above, below = panels_of("figure-2")[0][1], panels_of("figure-2")[3][1]
    names = {one: trace for one, trace in named(above).items() if one.startswith("L = ")}
    assert len(names) == 5
    for label, trace in names.items():
        assert named(below)[label]["y"] == trace["y"] and named(below)[label]["x"] != trace["x"]
    assert set(named(panels_of("figure-6")[1][1])) >= {"rotary (RoPE)", "learned positions (APE)"}


def test_a_line_that_only_looks_alike_takes_no_name_from_another_panel() -> None:
    """The carrier of figure 6 is blue, as the law is in the panel above."""
    (line,) = panels_of("figure-6")[5][1].figure["data"]
    assert "name" not in line and line["hovertemplate"].startswith("offset delta (tokens): %{x")


def test_ticks_in_octaves_and_names_read_as_in_the_picture() -> None:
    def octaves(axes: Axes) -> None:
        axes.plot([8, 64, 512], [0.9, 0.8, 0.7])
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")

    axis = alone(octaves).figure["layout"]["xaxis"]
    assert axis["type"] == "log" and set(zip(axis["tickvals"], axis["ticktext"], strict=True)) >= {
        (8, "8"),
        (512, "512"),
    }
    schemes = panels_of("figure-5")[0][1].figure
    assert schemes["layout"]["xaxis"]["ticktext"] == ["ALiBi", "T5", "RoPE", "none", "sinusoidal", "randomized"]
    assert [row[0] for row in schemes["data"][0]["customdata"]] == schemes["layout"]["xaxis"]["ticktext"]
    assert "%{customdata[0]}" in schemes["data"][0]["hovertemplate"]


def test_a_symlog_axis_is_placed_by_its_transform_and_read_by_its_numbers() -> None:
    axes, panel = panels_of("figure-4")[1]
    steps = axes.lines[0].get_xdata()
    trace = named(panel)["carrier fraction of keys"]
    assert [row[0] for row in trace["customdata"]] == [f"{step:g}" for step in steps] and steps[-1] == 20
    # Linear up to 25, with the slope that joins the decades there.
    assert trace["x"][-1] / axes.xaxis.get_transform().transform([25.0])[0] == pytest.approx(20 / 25)


def test_dashes_marks_bands_spans_and_steps_look_as_drawn() -> None:
    def draw(axes: Axes) -> None:
        axes.plot(
            [1, 2, 3], [1, 2, float("nan")], ls=(0, (6, 2)), lw=1.5, color="#0072B2", marker="s", mfc="none", label="a"
        )
        axes.step([1, 2], [1, 2], where="post", ls="--", label="b")
        axes.fill_between([1, 2], [0, 1], [2, 3], color="#CC79A7", alpha=0.25, label="c")
        axes.axvspan(1, 2, color="0.92", label="d")
        axes.axhline(0.5, ls=":", label="e")
        axes.invert_yaxis()

    panel = alone(draw)
    found = named(panel)
    assert found["a"]["y"] == [1, 2, None] and found["a"]["line"]["dash"] == "12px,4px"
    assert found["a"]["marker"]["symbol"] == "square-open" and found["a"]["marker"]["color"] == "#0072b2"
    assert found["b"]["line"]["shape"] == "hv" and found["b"]["line"]["dash"] != "solid"
    assert found["c"]["fillcolor"] == "rgba(204,121,167,0.25)" and found["c"]["fill"] == "toself"
    assert {(1, 0), (2, 1), (2, 3), (1, 2)} <= set(zip(found["c"]["x"], found["c"]["y"], strict=True))
    assert (found["d"]["x0"], found["d"]["x1"], found["d"]["yref"]) == (1, 2, "y domain")
    assert (found["e"]["y0"], found["e"]["y1"], found["e"]["xref"]) == (0.5, 0.5, "x domain")
    low, high = panel.figure["layout"]["yaxis"]["range"]
    assert low > high


def test_bars_on_bars_say_their_own_length() -> None:
    panels = panels_of("heads")
    reports = SHAPES["5 x 8"]
    for kind in COLOURS:
        bar = named(panels[1][1])[kind]
        counts = [sum(one.kind == kind and one.layer == layer for one in reports) for layer in range(5)]
        assert bar["x"] == counts and [row[0] for row in bar["customdata"]] == [str(count) for count in counts]
    ends = np.sum([named(panels[1][1])[kind]["x"] for kind in COLOURS], axis=0)
    assert ends.tolist() == [8] * 5


def test_cells_keep_their_colours_and_what_is_written_on_them() -> None:
    axes, panel = panels_of("heads")[0]
    (cells,) = [one for one in panel.figure["data"] if one["type"] == "heatmap"]
    (mesh,) = [one for one in axes.collections if type(one).__name__ == "QuadMesh"]
    shades = {round(step * cells["zmax"], 6): color for step, color in cells["colorscale"]}
    shown = [[shades[number] for number in row] for row in cells["z"]]
    wanted = [
        ["#" + "".join(f"{round(part * 255):02x}" for part in cell[:3]) for cell in row] for row in mesh.get_array()
    ]
    assert shown == wanted and len(set(chain.from_iterable(shown))) > 5
    (words,) = [one for one in panel.figure["data"] if one.get("mode") == "text"]
    texts = {(text.get_position(), text.get_text()) for text in axes.texts}
    assert {((x, y), text) for x, y, text in zip(words["x"], words["y"], words["text"], strict=True)} == texts
    assert cells["text"][4][7] == "head: 7<br>layer: 4"
    assert [one.split(" (")[0] for one in named(panel) if "(" in one][:5] == list(COLOURS)


def test_images_and_scatters_are_read_with_their_scale() -> None:
    figure = Figure()
    left, right = figure.subplots(1, 2)
    figure.colorbar(left.imshow([[0.0, 1.0], [2.0, float("nan")]]), ax=left, label="nats")
    right.scatter([1, 2], [3, 4], marker="^", c=["#0072B2", "#D55E00"])
    image, points = chart("one", figure).panels
    (cells,) = image.figure["data"]
    assert (
        cells["z"] == [[0, 1], [2, None]] and cells["y"] == [-0.5, 0.5, 1.5] and "nats: %{z" in cells["hovertemplate"]
    )
    assert image.figure["layout"]["yaxis"]["range"] == [1.5, -0.5]
    (trace,) = points.figure["data"]
    assert trace["marker"]["symbol"] == "triangle-up" and trace["marker"]["color"] == ["#0072b2", "#d55e00"]


def test_errors_to_the_sides_and_of_two_lengths_are_read() -> None:
    panel = alone(lambda axes: axes.errorbar([1, 2], [3, 4], yerr=[[0.1, 0.2], [0.3, 0.4]], xerr=[0.5, 0.6], fmt="o"))
    (trace,) = panel.figure["data"]
    assert trace["error_y"]["arrayminus"] == pytest.approx([0.1, 0.2])
    assert trace["error_y"]["array"] == pytest.approx([0.3, 0.4])
    assert trace["error_x"]["array"] == pytest.approx([0.5, 0.6]) and "arrayminus" not in trace["error_x"]


@pytest.mark.parametrize(
    ("draw", "words"),
    [
        (lambda axes: axes.add_patch(FancyArrowPatch((0, 0), (1, 1))), "alone: a FancyArrowPatch of a picture"),
        (lambda axes: axes.hlines([1], 0, 1), "a LineCollection of a picture"),
        (lambda axes: axes.plot([1], [1], "h"), "the marker 'h' of a picture is not read: use one of o"),
        (lambda axes: axes.text(0.5, 0.5, "here", transform=axes.transAxes), "the text 'here' stands at no data"),
    ],
    ids=["an arrow", "lines of a collection", "a marker", "a text"],
)
def test_what_is_not_read_is_refused_by_its_kind(draw: Callable[[Axes], object], words: str) -> None:
    with pytest.raises(BridgeError, match=re.escape(words)):
        alone(draw)


def test_a_picture_is_saved_three_ways_and_twice_with_the_same_bytes(tmp_path: Path) -> None:
    (tmp_path / "again").mkdir()
    files, again = (
        save_figure(place, "one", drawn.__wrapped__(TARGETS[2])) for place in (tmp_path, tmp_path / "again")
    )
    assert [file.suffix for file in files] == [".png", ".svg", ".pdf"]
    assert [file.read_bytes() for file in files] == [file.read_bytes() for file in again]
    pdf = files[2].read_bytes()
    assert pdf.startswith(b"%PDF") and b"CreationDate" not in pdf and b"/FontFile2" in pdf and b"/Type3" not in pdf
