"""`carrier reproduce`: the numbers and pictures of the paper, beside ours."""

from __future__ import annotations

from pathlib import Path
from time import perf_counter
from typing import Annotated

import typer

from bridge.commands.options import Device, Json, OutFolder, PresetName, RunsFolder, Scheduler, Workers
from bridge.commands.terminal import finish, needs_training_extra, progress, say, show
from bridge.output import output_folder


def reproduce(
    targets: Annotated[
        list[str], typer.Argument(help="table-1 ... table-8, figure-1 ... figure-6, text-claims, or all.")
    ],
    preset: PresetName = "paper",
    runs: RunsFolder = Path("runs"),
    out: OutFolder = Path("out"),
    workers: Workers = None,
    scheduler: Scheduler = None,
    device: Device = "cpu",
    as_json: Json = False,
) -> None:
    """Train what tables and figures of the paper need and put its numbers beside ours.

    Can be interrupted and called again: what is finished is not trained again, the rest goes on from its checkpoints.
    """
    with needs_training_extra():
        from bridge import paper
        from bridge.paper.target import preset_of
        from bridge.reproduce import measure, steps_to_train, train_targets
        from bridge.results import results_document, save_summary, summary_line
        from empirics.executors import cluster, local_pool
        from empirics.store import Store

    started, size = perf_counter(), preset_of(preset)
    chosen = paper.TARGETS if "all" in targets else tuple(paper.target(name) for name in dict.fromkeys(targets))
    folder, store = output_folder(out), Store.open(runs)
    place = cluster(scheduler) if scheduler else local_pool(workers or 2)
    with progress(steps_to_train(chosen, size, store), "training") as advance, place as executor:
        train_targets(chosen, size, store, executor, workers, device, advance)
    with progress(len(chosen), "measuring") as advance:
        results = measure(chosen, size, store, folder, advance)
    document = results_document(results, size, store, perf_counter() - started)
    files = save_summary(folder, results, document)
    show(
        as_json,
        lambda: document,
        tuple(table for one in results for table in one.tables),
        (*(f"written: {file}" for one in results for file in one.files), *(f"written: {file}" for file in files)),
    )
    if not as_json:
        say(summary_line(results))
    finish(all(one.as_recorded for one in results))
