"""`carrier inspect`: what each head of a checkpoint selects by position, from its weights alone."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import BrokenExecutor, Executor
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from bridge.commands.options import (
    Base,
    Json,
    Layer,
    Lengths,
    OptionalOut,
    RopeScaling,
    Scheduler,
    Sha256,
    TextFile,
    TokenizerSource,
    Uniform,
    Workers,
)
from bridge.commands.terminal import check_length, lengths_from, progress, saved, show, written
from bridge.content import ContentOptions, LayerContent, read_content
from bridge.documents import inspect_document, pinned_document
from bridge.errors import BridgeError
from bridge.head_views import check_order, heads_table, ordered
from bridge.inspect import HeadReport, default_lengths, default_reference, inspect_heads
from bridge.output import output_folder
from bridge.pinned import inspect_positions
from bridge.pinned_views import pinned_table
from bridge.sources.attention import PositionLayer
from bridge.sources.change import RotaryChange
from empirics.executors import InProcess, cluster, local_pool

_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
_WORTH_A_PROCESS = 4
"""Heads: below so many another process would cost more than it gains."""


def inspect(
    checkpoint: Annotated[Path, typer.Argument(help="Hugging Face folder, GGUF file, or llama2.c file.")],
    layer: Layer = 0,
    head: Annotated[int | None, typer.Option(help="One head; default all.")] = None,
    lengths: Lengths = None,
    at: Annotated[
        int | None, typer.Option(help="Length at which the offset is selected; default: the longest up to 1024.")
    ] = None,
    sort: Annotated[
        str, typer.Option(help="head, query-fraction, key-fraction, offset, share, margin, or one of the lengths.")
    ] = "head",
    tokenizer: TokenizerSource = None,
    text: TextFile = None,
    uniform: Uniform = False,
    base: Base = None,
    rope_scaling: RopeScaling = None,
    sha256: Sha256 = None,
    workers: Workers = None,
    scheduler: Scheduler = None,
    out: OptionalOut = None,
    as_json: Json = False,
) -> None:
    """What each head of a checkpoint selects by position, from its weights alone.

    A model with learned positions is shown by where its heads are pinned instead.
    """
    wanted = None if lengths is None else lengths_from("--lengths", lengths)
    folder = None if out is None else output_folder(out)
    content = read_content(
        checkpoint, layer, ContentOptions(tokenizer, text, uniform), RotaryChange.parse(base, rope_scaling), sha256
    )
    trained = content.model.shape.trained_length
    axis = wanted or default_lengths(trained)
    check_order(sort, axis)
    if isinstance(content.reading.layer, PositionLayer):
        if wanted or at is not None or sort != "head":
            raise BridgeError(f"{checkpoint} has learned positions: drop --lengths, --at and --sort")
        _show_pinned(checkpoint, content, content.reading.layer, head, folder, as_json)
        return
    reference = default_reference(trained, axis) if at is None else check_length("--at", at)
    count = content.model.shape.heads if head is None else 1
    chosen = content.heads() if head is None else iter([(head, content.head(head))])
    shares = workers or max(1, min(2, count // _WORTH_A_PROCESS))
    with progress(count, "heads") as advance, _executor(shares, scheduler) as executor:
        try:
            found = list(inspect_heads(chosen, layer, axis, reference, executor, shares, advance))
        except BrokenExecutor:
            raise BridgeError("a worker has ended, as it does where memory is short: give --workers 1") from None
    reports = ordered(found, sort)
    shown = heads_table(content, reports, axis)
    files = saved(folder, f"{content.name}-heads", shown, lambda: _figure(reports, trained))
    show(as_json, lambda: inspect_document(content, reports, files), (shown,), written(files))


@contextmanager
def _executor(workers: int, scheduler: str | None) -> Iterator[Executor]:
    if scheduler:
        with cluster(scheduler) as executor:
            yield executor
    elif workers == 1:
        yield InProcess()
    else:
        # Read by workers as they start: threads of their own would wait for one another.
        before = {name: os.environ.get(name) for name in _THREADS}
        os.environ.update(dict.fromkeys(_THREADS, "1"))
        try:
            with local_pool(workers) as executor:
                yield executor
        finally:
            for name, value in before.items():
                os.environ.pop(name) if value is None else os.environ.update({name: value})


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


def _figure(reports: list[HeadReport], trained_length: int) -> Any:
    from bridge.figures.layer import layer_figure

    return layer_figure(reports, trained_length)
