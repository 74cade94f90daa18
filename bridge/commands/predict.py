"""`carrier predict`: attention at an offset against length, of a run or of a checkpoint's head."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from bridge.commands.on_text import Source, is_run, observed, predict_on_text, refuse, text_options
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
    Sha256,
    Text,
    TokenizerSource,
    Uniform,
    Window,
    Windows,
)
from bridge.commands.terminal import finish, lengths_from, needs_training_extra, saved, show, written
from bridge.compare import Comparison
from bridge.content import ContentOptions, read_content
from bridge.documents import observation_document, predict_document
from bridge.errors import BridgeError
from bridge.head_views import carrier_notes, heading, positions_note, prediction_table
from bridge.inspect import content_flags, default_lengths, default_reference, inspect_head
from bridge.output import output_folder
from bridge.prediction import Prediction, predict_placed
from bridge.sources.change import RotaryChange
from bridge.surface import sampled_surface
from bridge.text_content import TextOptions


def predict(
    source: Annotated[
        Path, typer.Argument(help="Folder of a run, or checkpoint: Hugging Face folder, GGUF file, llama2.c file.")
    ],
    layer: Layer = None,
    head: Annotated[int, typer.Option(help="Head of the layer.")] = 0,
    offset: Annotated[
        int | None, typer.Option(help="Tokens back; default: a run's target, else what it selects.")
    ] = None,
    lengths: Lengths = None,
    observe: Annotated[
        int,
        typer.Option(
            help="Observe so many fresh sequences a length of a run, or windows of text of a checkpoint, too."
        ),
    ] = 0,
    observe_text: Annotated[
        str | None,
        typer.Option(help="Text that a checkpoint is observed on, as --text; default: source (llama2.c: itself)."),
    ] = None,
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
    out: OptionalOut = None,
    as_json: Json = False,
) -> None:
    """Attention at an offset against length, predicted: of a run, of layer 0 from weights, of any layer on a text.

    With --base or --rope-scaling: what that would do to a checkpoint's head, beside the head as it is. With --observe
    the run or the model is observed at those lengths, too.
    """
    axis = None if lengths is None else lengths_from("--lengths", lengths)
    back = None if offset is None else abs(offset)
    folder = None if out is None else output_folder(out)
    of_checkpoint = {
        "observe_text": observe_text,
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
    if is_run(source):
        if layer:
            raise BridgeError(f"a run has layer 0 only, got layer {layer}")
        refuse(of_checkpoint, "a checkpoint", f"{source} is the folder of a run")
        _predict_run(source, head, back, axis, observe, folder, as_json)
        return
    if observe < 0:
        raise BridgeError(f"--observe needs a number of windows of text, got {observe}")
    if observe_text is not None and not observe:
        raise BridgeError("--observe-text is what --observe N observes on: give both, or neither")
    change = RotaryChange.parse(base, rope_scaling)
    options = text_options(
        layer,
        tokenizer,
        observed=observe > 0,
        text=text,
        window=window,
        windows=windows,
        first_token=first_token,
        cache=cache,
        uniform=uniform,
        counts=counts,
    )
    if options is not None:
        where = Source(source, options, change, sha256)
        predict_on_text(where, layer or 0, head, back, axis, observe, observe_text, folder, as_json)
    else:
        own = TextOptions(tokenizer=tokenizer, first_token=first_token or "auto", cache=cache)
        where = Source(source, own, change, sha256)
        counted = ContentOptions(tokenizer, counts, uniform)
        _predict_checkpoint(where, counted, head, back, axis, observe, observe_text, folder, as_json)


def _predict_run(
    source: Path,
    head: int,
    offset: int | None,
    lengths: tuple[int, ...] | None,
    sequences: int,
    folder: Path | None,
    as_json: bool,
) -> None:
    with needs_training_extra():
        from bridge.account import LENGTHS, account, account_document, prediction_of
        from bridge.run_views import account_table
        from empirics.store import load_run
        from empirics.train import Run

    run, axis = load_run(source), lengths or LENGTHS
    if not isinstance(run, Run):
        raise BridgeError(f"run {run.spec.id} is a transformer: `carrier predict` takes runs of the one-layer model")
    assumptions = ("tokens are independent and uniform, as in the task",)
    told = account(run, axis, sequences, offset, head=head) if sequences else None
    prediction = told.prediction if told else prediction_of(run, axis, offset, head)
    named = run.spec.id if run.spec.heads == 1 else f"head {head} of {run.spec.id}"
    title = f"predicted attention at offset {-prediction.offset}, {named}"
    shown = account_table(told) if told else prediction_table(title, prediction)

    def draw() -> Any:
        from bridge.figures.runs import account_figure

        return account_figure(told) if told else _figure([(named, prediction)], run.spec.train_lengths[1])

    files = saved(folder, f"{run.spec.id}-offset-{prediction.offset}", shown, draw)
    show(
        as_json,
        lambda: (
            predict_document(0, head, prediction, assumptions, prediction.residuals(), files)
            | (account_document(told) if told else {})
        ),
        (shown,),
        (*carrier_notes(prediction), *written(files)),
    )
    finish(told is None or told.agrees)


def _predict_checkpoint(
    source: Source,
    options: ContentOptions,
    index: int,
    offset: int | None,
    lengths: tuple[int, ...] | None,
    observe: int,
    observe_text: str | None,
    folder: Path | None,
    as_json: bool,
) -> None:
    layer = 0
    content = read_content(source.checkpoint, layer, options, source.change, source.sha256)
    trained = content.model.shape.trained_length
    axis, head = lengths or default_lengths(trained), content.head(index)
    if offset is None:
        report = inspect_head(layer, index, head, axis, default_reference(trained, axis))
        prediction, flags = report.prediction, report.flags
    else:
        prediction, flags = predict_placed(head, offset, axis, sampled_surface(head, axis)), content_flags(head)
    own = content.unchanged(head)
    before = None
    if own is not None:
        surface = sampled_surface(own, prediction.lengths)
        before = predict_placed(own, prediction.offset, prediction.lengths, surface)
    title = f"predicted attention at offset {-prediction.offset}, head {layer}.{index}: {heading(content)}"
    compared, observed_on = None, None
    if observe:
        compared, observed_on = observed(source, layer, index, content.model, prediction, observe, observe_text)
    shown = prediction_table(title, prediction, (positions_note(content), *content.assumptions), before, compared)
    named = [(f"head {layer}.{index}", prediction), *([("unchanged", before)] if before else [])]
    stem = f"{content.name}-{layer}-{index}-offset-{prediction.offset}"
    files = saved(folder, stem, shown, lambda: _figure(named, trained, compared))
    show(
        as_json,
        lambda: (
            predict_document(layer, index, prediction, content.assumptions, flags, files, before)
            | ({} if compared is None else observation_document(compared, observed_on))
        ),
        (shown,),
        (
            *carrier_notes(prediction),
            *([f"observed on {observed_on}"] if compared else []),
            *(f"flag: {flag}" for flag in flags),
            *written(files),
        ),
    )


def _figure(named: Sequence[tuple[str, Prediction]], trained_length: int, compared: Comparison | None = None) -> Any:
    from bridge.figures.predictions import prediction_figure

    return prediction_figure(named, trained_length, compared)
