"""`carrier inspect`: what each head of a checkpoint selects by position, from weights alone or on a text."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from bridge.commands.on_text import Source, inspect_on_text, text_options
from bridge.commands.options import (
    Base,
    Cache,
    Counts,
    FirstToken,
    Json,
    Layer,
    Lengths,
    OptionalOut,
    RopeScaling,
    Scheduler,
    Sha256,
    Text,
    TokenizerSource,
    Uniform,
    Window,
    Windows,
    Workers,
)
from bridge.commands.terminal import check_length, lengths_from, progress, saved, show, written
from bridge.content import ContentOptions, LayerContent, read_content
from bridge.documents import inspect_document, pinned_document
from bridge.errors import BridgeError
from bridge.head_views import ORDERS, heads_table
from bridge.inspect import HeadReport, default_lengths, default_reference, inspect_head
from bridge.orders import check_order, ordered
from bridge.output import output_folder
from bridge.over_heads import executor_of, over_heads, worker_count
from bridge.pinned import inspect_positions
from bridge.pinned_views import pinned_table
from bridge.sources.attention import PositionLayer
from bridge.sources.change import RotaryChange


def inspect(
    checkpoint: Annotated[Path, typer.Argument(help="Hugging Face folder, GGUF file, or llama2.c file.")],
    layer: Layer = None,
    head: Annotated[int | None, typer.Option(help="One head; default all.")] = None,
    lengths: Lengths = None,
    at: Annotated[
        int | None, typer.Option(help="Length at which the offset is selected; default: the longest up to 1024.")
    ] = None,
    sort: Annotated[
        str,
        typer.Option(
            help="head, query-fraction, key-fraction, offset, share, one of the lengths; margin (from weights); class, "
            "sink, entropy (on a text)."
        ),
    ] = "head",
    text: Text = None,
    window: Window = None,
    windows: Windows = None,
    first_token: FirstToken = None,
    cache: Cache = None,
    tokenizer: TokenizerSource = None,
    counts: Counts = None,
    uniform: Uniform = False,
    base: Base = None,
    rope_scaling: RopeScaling = None,
    sha256: Sha256 = None,
    workers: Workers = None,
    scheduler: Scheduler = None,
    out: OptionalOut = None,
    as_json: Json = False,
) -> None:
    """What each head of a checkpoint selects by position: of layer 0 from the weights alone, of any layer on a text.

    With --text the model runs: what each head does there, its class, what the laws foretell, and when not to trust
    them. A model with learned positions is shown by where its heads are pinned instead.
    """
    wanted = None if lengths is None else lengths_from("--lengths", lengths)
    folder = None if out is None else output_folder(out)
    change = RotaryChange.parse(base, rope_scaling)
    options = text_options(
        layer,
        tokenizer,
        text=text,
        window=window,
        windows=windows,
        first_token=first_token,
        cache=cache,
        uniform=uniform,
        counts=counts,
    )
    if options is not None:
        source = Source(checkpoint, options, change, sha256)
        reference = None if at is None else check_length("--at", at)
        inspect_on_text(source, layer, head, wanted, reference, sort, workers, scheduler, folder, as_json)
        return
    content = read_content(checkpoint, 0, ContentOptions(tokenizer, counts, uniform), change, sha256)
    trained = content.model.shape.trained_length
    axis = wanted or default_lengths(trained)
    check_order(sort, ORDERS, axis)
    if isinstance(content.reading.layer, PositionLayer):
        if wanted or at is not None or sort != "head":
            raise BridgeError(f"{checkpoint} has learned positions: drop --lengths, --at and --sort")
        _show_pinned(checkpoint, content, content.reading.layer, head, folder, as_json)
        return
    reference = default_reference(trained, axis) if at is None else check_length("--at", at)
    reports = ordered(reports_from_weights(content, head, axis, reference, workers, scheduler), sort, ORDERS)
    shown = heads_table(content, reports, axis)
    files = saved(folder, f"{content.name}-heads", shown, lambda: _figure(reports, trained))
    show(as_json, lambda: inspect_document(content, reports, files), (shown,), written(files))


def reports_from_weights(
    content: LayerContent,
    head: int | None,
    lengths: Sequence[int],
    reference: int,
    workers: int | None = None,
    scheduler: str | None = None,
) -> list[HeadReport]:
    """The report of one head of a layer, or of all."""
    count = content.model.shape.heads if head is None else 1
    chosen = content.heads() if head is None else iter([(head, content.head(head))])
    heads = ((content.index, index, placed, lengths, reference) for index, placed in chosen)
    processes = worker_count(count, workers)
    with progress(count, "heads") as advance, executor_of(processes, scheduler) as executor:
        return list(over_heads(inspect_head, heads, executor, processes, advance))


def _show_pinned(
    checkpoint: Path, content: LayerContent, layer: PositionLayer, head: int | None, folder: Path | None, as_json: bool
) -> None:
    reports = inspect_positions(layer, content.weights)
    if head is not None:
        if not 0 <= head < len(reports):
            raise BridgeError(f"head {head} does not exist: heads of this layer are 0 to {len(reports) - 1}")
        reports = reports[head : head + 1]
    shown = pinned_table(content, reports)

    def draw() -> Any:
        from bridge.figures.pinned import pinned_figure

        return pinned_figure(reports, content.model.shape.trained_length)

    files = saved(folder, f"{content.name}-heads", shown, draw)
    show(as_json, lambda: pinned_document(content, reports, files), (shown,), written(files))


def _figure(reports: Sequence[HeadReport], trained_length: int) -> Any:
    from bridge.figures.layer import layer_figure

    return layer_figure(reports, trained_length)
