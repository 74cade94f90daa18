"""`carrier inspect` and `carrier predict` where the model runs on a text: any layer, any head."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bridge.calibrated import Asked, CalibratedReport, check_lengths, report_head
from bridge.calibrated_views import ORDERS, calibrated_prediction_table, calibrated_table, prediction_notes
from bridge.commands.terminal import progress, saved, show, written
from bridge.compare import Comparison
from bridge.documents import calibrated_document, calibrated_prediction_document
from bridge.errors import BridgeError
from bridge.inspect import default_lengths, default_reference
from bridge.observation import observe_checkpoint
from bridge.orders import check_order, ordered
from bridge.over_heads import executor_of, over_heads, worker_count
from bridge.prediction import Prediction
from bridge.sources.cache import default_cache
from bridge.sources.change import RotaryChange
from bridge.sources.formats import open_model
from bridge.sources.model import Model, Shape
from bridge.sources.texts import Windows
from bridge.text_content import TextContent, TextOptions, observation_windows, read_text_content

_FIRST_LENGTH = 64
"""Shortest of the default lengths: below it most of a context is the local window."""
_USUAL_LENGTH = 1024


@dataclass(frozen=True)
class Source:
    """A checkpoint, the text that it runs on, and what is changed."""

    checkpoint: Path
    options: TextOptions
    change: RotaryChange
    sha256: str | None


def text_options(layer: int | None, tokenizer: Path | None, observed: bool = False, **given: Any) -> TextOptions | None:
    """What to run the model on; None where layer 0 is to follow from the weights alone.

    To be observed a model runs in any case, with a cache and a first token. Raises BridgeError for options of one way
    together with the other.
    """
    only_weights = {name: given.pop(name) for name in ("uniform", "counts")}
    asked = {name: value for name, value in given.items() if value is not None}
    if given["text"] is not None or layer:
        if unread := [name for name, value in only_weights.items() if value]:
            raise BridgeError(f"--{unread[0]} is for layer 0 from the weights alone: drop it, or --text and --layer")
        return TextOptions(tokenizer=tokenizer, **asked)
    if observed:
        asked = {name: value for name, value in asked.items() if name not in ("cache", "first_token")}
    if asked:
        raise BridgeError(f"--{next(iter(asked)).replace('_', '-')} is for running the model: give --text too")
    return None


def is_run(place: Path) -> bool:
    """Whether a path is the folder of a run."""
    return any((place / name).exists() for name in ("run.json", "spec.json"))


def refuse(options: Mapping[str, Any], belongs: str, given: str) -> None:
    """Raises BridgeError for an option that belongs to another source than the one given."""
    if unread := [name for name, value in options.items() if value]:
        raise BridgeError(f"--{unread[0].replace('_', '-')} belongs to {belongs}, and {given}: drop it")


def inspect_on_text(
    source: Source,
    layer: int | None,
    head: int | None,
    lengths: tuple[int, ...] | None,
    at: int | None,
    sort: str,
    workers: int | None,
    scheduler: str | None,
    folder: Path | None,
    as_json: bool,
) -> None:
    """Every head of a layer, or of all layers: what it does on the text, and what the laws foretell."""
    # What can be refused is refused before the model runs.
    axis, reference = _axis(_shape(source, head), lengths, at)
    check_order(sort, ORDERS, axis)
    content, found = reports_on_text(source, layer, head, Asked(axis, reference), workers, scheduler)
    reports = ordered(found, sort, ORDERS)
    shown = calibrated_table(content, reports, axis)

    def draw() -> Any:
        from bridge.figures.model import model_figure

        return model_figure(reports)

    files = saved(folder, f"{content.name}-heads-on-text", shown, draw)
    show(as_json, lambda: calibrated_document(content, reports, files), (shown,), written(files))


def reports_on_text(
    source: Source,
    layer: int | None,
    head: int | None = None,
    asked: Asked | None = None,
    workers: int | None = None,
    scheduler: str | None = None,
) -> tuple[TextContent, list[CalibratedReport]]:
    """The model run on the text, and the report of every head of a layer, or of all layers; by default of all heads at
    the lengths of `carrier inspect`."""
    asked = asked or Asked(*_axis(_shape(source, head), None, None))
    check_lengths((*asked.lengths, asked.reference_length))
    content = _content(source, None if layer is None else (layer,))
    count = content.model.shape.heads * len(content.layers) if head is None else len(content.layers)
    heads = (
        (place, index, activations, replace(asked, changed=content.changed(place)))
        for place, index, activations in content.heads(head)
    )
    processes = worker_count(count, workers)
    with progress(count, "heads") as advance, executor_of(processes, scheduler) as executor:
        return content, list(over_heads(report_head, heads, executor, processes, advance))


def predict_on_text(
    source: Source,
    layer: int,
    head: int,
    offset: int | None,
    lengths: tuple[int, ...] | None,
    observe_windows: int,
    observe_text: str | None,
    folder: Path | None,
    as_json: bool,
) -> None:
    """One head against length by each law, under changed positions too, and held against what the model does."""
    shape = _shape(source, head)
    trained, axis = shape.trained_length, lengths or _default_lengths(shape)
    asked = Asked(axis, default_reference(trained, axis), offset)
    check_lengths((*axis, asked.reference_length))
    content = _content(source, (layer,))
    activations, asked = content.activations.layer(layer).head(head), replace(asked, changed=content.changed(layer))
    report = report_head(layer, head, activations, asked)
    compared, observed_on = None, None
    if observe_windows:
        place = layer, head, content.model
        compared, observed_on = observed(
            source, *place, report.prediction, observe_windows, observe_text, content.activations.windows
        )
    shown = calibrated_prediction_table(content, report, compared)

    def draw() -> Any:
        from bridge.figures.predictions import prediction_figure

        named = [
            (f"head {layer}.{head}", report.prediction),
            *([("unchanged", report.before)] if report.before else []),
        ]
        return prediction_figure(named, trained, compared)

    files = saved(folder, f"{content.name}-{layer}-{head}-offset-{report.prediction.offset}", shown, draw)
    show(
        as_json,
        lambda: calibrated_prediction_document(content, report, compared, observed_on, files),
        (shown,),
        (*prediction_notes(report), *([f"observed on {observed_on}"] if compared else []), *written(files)),
    )


def observed(
    source: Source,
    layer: int,
    head: int,
    model: Model,
    prediction: Prediction,
    count: int,
    text: str | None,
    calibrated_on: Windows | None = None,
) -> tuple[Comparison, str]:
    """A law against the model itself, at the lengths of the prediction; and the text, named."""
    windows = observation_windows(source.checkpoint, model, source.options, text, max(prediction.lengths), count)
    cache = source.options.cache or default_cache()
    asked = [layer], prediction.lengths, prediction.offset + 1
    with progress(len(windows.tokens), "observing") as advance:
        heads = observe_checkpoint(source.checkpoint, source.change, windows, *asked, cache, advance)
    back, seen = prediction.offset, heads[head]
    errors = seen.standard_error[:, back]
    compared = Comparison(f"{prediction.law} law", prediction.lengths, prediction.exact, seen.mean[:, back], errors)
    return compared, windows.provenance + _shared(windows, calibrated_on)


def _shape(source: Source, head: int | None) -> Shape:
    """Numbers of the model. Raises BridgeError for a head that is not there."""
    shape = open_model(source.checkpoint, source.change).shape
    if head is not None and not 0 <= head < shape.heads:
        raise BridgeError(f"head {head} does not exist: heads of this model are 0 to {shape.heads - 1}")
    return shape


def _axis(shape: Shape, lengths: tuple[int, ...] | None, at: int | None) -> tuple[tuple[int, ...], int]:
    """Lengths at which all heads are reported, and the one at which offsets are selected."""
    usual = max(_USUAL_LENGTH, shape.trained_length // 8)
    axis = lengths or tuple(length for length in _default_lengths(shape) if length <= usual)
    return axis, default_reference(shape.trained_length, axis) if at is None else at


def _default_lengths(shape: Shape) -> tuple[int, ...]:
    return tuple(length for length in default_lengths(shape.trained_length) if length >= _FIRST_LENGTH)


def _content(source: Source, layers: tuple[int, ...] | None) -> TextContent:
    with progress(source.options.windows, "windows") as advance:
        return read_text_content(source.checkpoint, layers, source.options, source.change, source.sha256, advance)


def _shared(windows: Windows, calibrated_on: Windows | None) -> str:
    """A warning where the text is one that the head was calibrated on."""
    shared = set(windows.documents) & set(() if calibrated_on is None else calibrated_on.documents)
    if not shared:
        return ""
    return f"; {len(shared)} of its documents are among those calibrated on: give another --observe-text"
