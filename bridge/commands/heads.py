"""`carrier inspect` and `carrier predict`: what a head selects, and what is left of it at a length."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from bridge.commands.options import Json, Layer, Lengths, OptionalOut, Sha256, TextFile, TokenizerFile
from bridge.commands.terminal import finish, lengths_from, needs_training_extra, progress, show
from bridge.documents import inspect_document, predict_document
from bridge.errors import BridgeError
from bridge.inspect import default_lengths, inspect_head, predict_at
from bridge.output import output_folder
from bridge.prediction import Prediction
from bridge.sources.checkpoint import Checkpoint
from bridge.sources.llama2c import read_llama2c
from bridge.sources.tokens import TokenWeights, token_weights
from bridge.tables import Table
from bridge.views import carrier_notes, heads_table, prediction_table


def inspect(
    checkpoint: Annotated[Path, typer.Argument(help="llama2.c checkpoint.")],
    layer: Layer = 0,
    head: Annotated[int | None, typer.Option(help="One head; default all.")] = None,
    lengths: Lengths = None,
    tokenizer: TokenizerFile = None,
    text: TextFile = None,
    sha256: Sha256 = None,
    out: OptionalOut = None,
    as_json: Json = False,
) -> None:
    """What each head of a checkpoint selects by position, from its weights alone."""
    wanted = None if lengths is None else lengths_from("--lengths", lengths)
    folder = None if out is None else output_folder(out)
    model, content = _read(checkpoint, tokenizer, text, sha256)
    axis = wanted or default_lengths(model.trained_length)
    chosen = range(model.heads) if head is None else [head]
    taken = [(index, model.head(layer, index, content.weights)) for index in chosen]
    reports = []
    with progress(len(taken), "heads") as advance:
        for index, one in taken:
            reports.append(inspect_head(one, layer, index, axis, model.trained_length))
            advance(1)
    assumptions = (*model.assumptions, content.provenance)
    shown = heads_table(model, reports, assumptions)
    named = [(f"head {report.layer}.{report.head}", report.prediction) for report in reports]
    files = _saved(folder, f"{checkpoint.stem}-heads", shown, lambda: _figure(named, model.trained_length))
    show(as_json, lambda: inspect_document(model, reports, assumptions, files), (shown,), _written(files))


def predict(
    source: Annotated[Path, typer.Argument(help="Folder of a run, or llama2.c checkpoint.")],
    layer: Layer = 0,
    head: Annotated[int, typer.Option(help="Head of the layer.")] = 0,
    offset: Annotated[
        int | None, typer.Option(help="Tokens back; default: a run's target, else what it selects.")
    ] = None,
    lengths: Lengths = None,
    observe: Annotated[int, typer.Option(help="Hold a run's prediction against so many fresh sequences a length.")] = 0,
    tokenizer: TokenizerFile = None,
    text: TextFile = None,
    sha256: Sha256 = None,
    out: OptionalOut = None,
    as_json: Json = False,
) -> None:
    """Attention at an offset against length, predicted from the weights; for a run also observed."""
    axis = None if lengths is None else lengths_from("--lengths", lengths)
    back = None if offset is None else abs(offset)
    folder = None if out is None else output_folder(out)
    if source.is_dir():
        if layer:
            raise BridgeError(f"a run has layer 0 only, got layer {layer}")
        if unread := [name for name, value in (("tokenizer", tokenizer), ("text", text), ("sha256", sha256)) if value]:
            raise BridgeError(f"--{unread[0]} belongs to a checkpoint, and {source} is the folder of a run: drop it")
        _predict_run(source, head, back, axis, observe, folder, as_json)
    elif observe and source.is_file():
        raise BridgeError("--observe needs a run: observing a checkpoint needs activations, which this version lacks")
    else:
        model, content = _read(source, tokenizer, text, sha256)
        _predict_checkpoint(source.stem, model, content, layer, head, back, axis, folder, as_json)


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

    files = _saved(folder, f"{run.spec.id}-offset-{prediction.offset}", shown, draw)
    show(
        as_json,
        lambda: (
            predict_document(0, head, prediction, assumptions, prediction.residuals(), files)
            | (account_document(told) if told else {})
        ),
        (shown,),
        (*carrier_notes(prediction), *_written(files)),
    )
    finish(told is None or told.agrees)


def _predict_checkpoint(
    name: str,
    model: Checkpoint,
    content: TokenWeights,
    layer: int,
    head: int,
    offset: int | None,
    lengths: tuple[int, ...] | None,
    folder: Path | None,
    as_json: bool,
) -> None:
    axis = lengths or default_lengths(model.trained_length)
    taken = model.head(layer, head, content.weights)
    report = inspect_head(taken, layer, head, axis, model.trained_length) if offset is None else None
    prediction = report.prediction if report else predict_at(taken, offset or 0, axis)
    flags = report.flags if report else ()
    assumptions = (*model.assumptions, content.provenance)
    title = f"predicted attention at offset {-prediction.offset}, head {layer}.{head}"
    shown = prediction_table(title, prediction, assumptions)
    named = [(f"head {layer}.{head}", prediction)]
    stem = f"{name}-{layer}-{head}-offset-{prediction.offset}"
    files = _saved(folder, stem, shown, lambda: _figure(named, model.trained_length))
    show(
        as_json,
        lambda: predict_document(layer, head, prediction, assumptions, flags, files),
        (shown,),
        (*carrier_notes(prediction), *(f"flag: {flag}" for flag in flags), *_written(files)),
    )


def _read(
    checkpoint: Path, tokenizer: Path | None, text: Path | None, sha256: str | None
) -> tuple[Checkpoint, TokenWeights]:
    model = read_llama2c(checkpoint)
    if sha256 is not None and not model.sha256.startswith(sha256.lower()):
        raise BridgeError(f"{checkpoint} was altered or is another file: its sha256 is {model.sha256}, not {sha256}")
    return model, token_weights(model.vocabulary, tokenizer, text)


def _saved(folder: Path | None, name: str, table: Table, draw: Callable[[], Any]) -> tuple[Path, ...]:
    """Table and picture in a folder, where one was asked for: only then is anything drawn, or matplotlib loaded."""
    if folder is None:
        return ()
    from bridge.figures.save import save_results

    return save_results(folder, name, table, draw())


def _figure(named: Sequence[tuple[str, Prediction]], trained_length: int) -> Any:
    from bridge.figures.predictions import prediction_figure

    return prediction_figure(named, trained_length)


def _written(files: tuple[Path, ...]) -> tuple[str, ...]:
    return tuple(f"written: {file}" for file in files)
