"""`carrier report`: one page with what is known, from the runs on disk or of a checkpoint's heads."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bridge.commands.inspect import reports_from_weights
from bridge.commands.on_text import Source, is_run, refuse, reports_on_text, text_options
from bridge.commands.options import (
    Base,
    Cache,
    Counts,
    FirstToken,
    Json,
    Layer,
    RopeScaling,
    Sha256,
    Text,
    TokenizerSource,
    Uniform,
    Window,
    Windows,
    Workers,
)
from bridge.commands.terminal import needs_report_extra, needs_training_extra, progress, show, written
from bridge.content import ContentOptions, read_content
from bridge.errors import BridgeError
from bridge.inspect import default_lengths, default_reference
from bridge.output import output_folder
from bridge.sources.change import RotaryChange
from bridge.text_content import TextOptions
from empirics.executors import local_pool

if TYPE_CHECKING:
    from bridge.report.contents import Contents

_ON_TEXT = {"text", "window", "windows", "first_token", "cache", "uniform", "counts"}


def report(
    source: Annotated[
        Path | None, typer.Argument(help="Folder of runs, one run, or checkpoint; default: runs, where there is one.")
    ] = None,
    out: Annotated[Path, typer.Option("--out", help="Folder for report.html and the figures.")] = Path("report"),
    preset: Annotated[
        str | None, typer.Option(help="paper or smoke: which runs are measured; default: those that are there.")
    ] = None,
    layer: Layer = None,
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
    as_json: Json = False,
) -> None:
    """One self-contained page: verdicts, every printed number beside ours, figures, heads, and a carrier with sliders.

    From runs on disk, without training; or of a checkpoint: layer 0 from its weights, all layers with --text. It opens
    without a network, and for the same inputs it is the same file. Needs `pip install 'attention-carrier[report]'`.
    """
    with needs_report_extra():
        from bridge.report.contents import Contents, checked_statements, report_document
        from bridge.report.page import save_report

    place = Path("runs") if source is None and Path("runs").is_dir() else source
    of_checkpoint: dict[str, Any] = {
        "layer": layer,
        "text": text,
        "window": window,
        "windows": windows,
        "first_token": first_token,
        "cache": cache,
        "tokenizer": tokenizer,
        "counts": counts,
        "uniform": uniform,
        "base": base,
        "rope_scaling": rope_scaling,
        "sha256": sha256,
    }
    # Statements are checked beside what is read: they need neither runs nor checkpoints.
    with local_pool(1) as aside:
        statements = aside.submit(checked_statements)
        if place is None:
            refuse(of_checkpoint | {"preset": preset}, "a checkpoint or runs", "none was given")
            contents = Contents("statements alone")
        elif _is_checkpoint(place):
            refuse({"preset": preset}, "runs", f"{place} is a checkpoint")
            options = text_options(layer, tokenizer, **{n: v for n, v in of_checkpoint.items() if n in _ON_TEXT})
            change = RotaryChange.parse(base, rope_scaling)
            counted = ContentOptions(tokenizer, counts, uniform)
            contents = _of_checkpoint(place, options, counted, change, sha256, layer, workers)
        else:
            refuse(of_checkpoint, "a checkpoint", f"{place} holds runs")
            contents = _of_runs(place, preset)
        contents = replace(contents, statements=statements.result())
    files = save_report(contents, output_folder(out))
    show(as_json, lambda: report_document(contents, files), (), written(files))


def _is_checkpoint(place: Path) -> bool:
    """Whether a path is a file, or a folder with weights that is no run."""
    if not place.exists():
        raise BridgeError(f"{place} is not there: give a folder of runs, one run, or a checkpoint")
    described = (place / "config.json").exists() or any(place.glob("*.safetensors"))
    return place.is_file() or (described and not is_run(place))


def _of_runs(place: Path, preset: str | None) -> Contents:
    with needs_training_extra():
        from bridge.paper.target import preset_of
        from bridge.report.runs import report_of_run, report_of_runs

    if is_run(place):
        refuse({"preset": preset}, "a folder of runs", f"{place} is one run")
        return report_of_run(place)
    with progress(None, "measuring") as advance:
        return report_of_runs(place, None if preset is None else preset_of(preset), advance)


def _of_checkpoint(
    place: Path,
    options: TextOptions | None,
    counted: ContentOptions,
    change: RotaryChange,
    sha256: str | None,
    layer: int | None,
    workers: int | None,
) -> Contents:
    from bridge.report.checkpoint import report_from_weights, report_on_text

    if options is not None:
        return report_on_text(*reports_on_text(Source(place, options, change, sha256), layer, workers=workers))
    content = read_content(place, 0, counted, change, sha256)
    trained = content.model.shape.trained_length
    axis = default_lengths(trained)
    reports = reports_from_weights(content, None, axis, default_reference(trained, axis), workers)
    return report_from_weights(content, reports)
