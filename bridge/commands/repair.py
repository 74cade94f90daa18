"""`carrier repair`: the carrier of a trained head replaced by the best one, predicted first, then observed."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from bridge.commands.options import Json, Lengths, OptionalOut
from bridge.commands.terminal import check_length, finish, lengths_from, needs_training_extra, saved, show, written
from bridge.designs import ATTENTION
from bridge.errors import BridgeError
from bridge.output import output_folder

_LENGTHS = (16, 64, 256, 1024, 4096)


def repair(
    run: Annotated[Path, typer.Argument(help="Folder of a run of the one-layer model with rotary positions.")],
    length: Annotated[int, typer.Option(help="Longest context, in tokens, that the head is to serve.")] = 4096,
    attention: Annotated[
        float | None, typer.Option(help="Attention wanted on the target at that length; default 0.9.")
    ] = None,
    accuracy: Annotated[float | None, typer.Option(help="Accuracy wanted there, in place of attention.")] = None,
    energy: Annotated[float | None, typer.Option(help="Energy sum r_i in nats, in place of both.")] = None,
    offset: Annotated[
        int | None, typer.Option(help="Tokens back, to move the head there; default: its target.")
    ] = None,
    lengths: Lengths = None,
    sequences: Annotated[int, typer.Option(min=2, help="Fresh sequences observed a length.")] = 1024,
    runs: Annotated[Path | None, typer.Option("--runs", help="Folder for the new run; default: that of RUN.")] = None,
    out: OptionalOut = None,
    as_json: Json = False,
) -> None:
    """Replace the carrier of a trained head by the best one for a length; nothing is trained.

    A linear program gives the weights, the margin bound and the exact law the energy; both means are written by a
    rank-one edit each and the result is stored as a run of its own. What was predicted stands beside what it does.
    Exit 1 where the two differ, or the law does not reach what was wanted.
    """
    with needs_training_extra():
        from bridge.surgery import Wanted, repair_run
        from bridge.surgery_views import repair_document, repair_table
        from empirics.store import Store, load_run, read_record
        from empirics.train import Run

    wanted = Wanted(
        check_length("--length", length),
        ATTENTION if attention is None and accuracy is None and energy is None else attention,
        accuracy,
        energy,
    )
    back = None if offset is None else abs(offset)
    folder = None if out is None else output_folder(out)
    parent = load_run(run)
    if not isinstance(parent, Run):
        raise BridgeError(f"run {parent.spec.id} is a transformer: `carrier repair` takes runs of the one-layer model")
    target = parent.spec.offset if back is None else back
    given = _LENGTHS if lengths is None else lengths_from("--lengths", lengths)
    # Lengths of one's own are taken as they are; what was asked for is looked at in any case.
    axis = tuple(dict.fromkeys((*(one for one in given if lengths is not None or target < one <= length), length)))
    store = Store.open(run.resolve().parent if runs is None else runs)
    sha256 = read_record(run).sha256["weights.safetensors"]
    done = repair_run(parent, sha256, wanted, axis, sequences, back)
    path = store.save(done.run)
    tables = tuple(repair_table(done, head) for head in range(parent.spec.heads))
    files: tuple[Path, ...] = ()
    for head, table in enumerate(tables):

        def draw(head: int = head) -> Any:
            from bridge.figures.surgery import repair_figure

            return repair_figure(done, head)

        files += saved(folder, f"{done.run.spec.id}-head-{head}", table, draw)
    show(
        as_json,
        lambda: repair_document(done, path, files),
        tables,
        (f"run: {path}", *written(files)),
    )
    finish(done.agrees and done.reached)
