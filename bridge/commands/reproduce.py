"""`carrier reproduce`: the numbers and pictures of the paper, and studies of real checkpoints, beside ours."""

from __future__ import annotations

from pathlib import Path
from time import perf_counter
from typing import Annotated

import typer

from bridge.commands.options import (
    Cache,
    Device,
    Json,
    Models,
    OutFolder,
    PresetName,
    RunsFolder,
    Scheduler,
    Workers,
)
from bridge.commands.terminal import finish, needs_training_extra, progress, say, show
from bridge.errors import BridgeError
from bridge.output import output_folder


def reproduce(
    targets: Annotated[
        list[str],
        typer.Argument(
            help="table-1 ... table-8, figure-1 ... figure-6, text-claims, all (of these); studies: real-heads, "
            "surgery, real-surgery, heads, limits, horizon."
        ),
    ],
    preset: PresetName = "paper",
    runs: RunsFolder = Path("runs"),
    out: OutFolder = Path("out"),
    workers: Workers = None,
    scheduler: Scheduler = None,
    device: Device = "cpu",
    models: Models = None,
    cache: Cache = None,
    as_json: Json = False,
) -> None:
    """Train what tables and figures of the paper need and put its numbers beside ours; a study runs real checkpoints.

    Can be interrupted and called again: what is finished is not trained again, the rest goes on from its checkpoints.
    """
    with needs_training_extra():
        from bridge import paper
        from bridge.paper.target import Preset, Target, preset_of
        from bridge.reproduce import conduct, measure, steps_to_train, train_targets, written
        from bridge.results import results_document, save_summary, summary_line
        from bridge.sources.cache import default_cache
        from bridge.studies import STUDIES
        from bridge.studies.study import Place, Study
        from empirics.executors import cluster, local_pool
        from empirics.store import Store

    started, size = perf_counter(), preset_of(preset)
    studies = tuple(study for study in STUDIES if study.id in targets)
    named = [name for name in dict.fromkeys(targets) if name not in {study.id for study in studies}]
    chosen = paper.TARGETS if "all" in named else tuple(paper.target(name) for name in named)
    idle = [study.id for study in studies if not study.specs_at(size)]
    if idle and (scheduler or device != "cpu"):
        raise BridgeError(f"{idle[0]} trains nothing and runs on this machine's CPU: drop --scheduler and --device")
    if cache and not studies:
        raise BridgeError("--cache is for studies of real checkpoints, such as real-heads: drop it")
    folder, store = output_folder(out), Store.open(runs)
    if size is Preset.PAPER and not as_json:
        say(*(f"{study.id}, from nothing: {study.cost}" for study in studies if study.cost))
    trained: tuple[Target | Study, ...] = (*chosen, *(study for study in studies if study.specs_at(size)))
    if trained:
        place = cluster(scheduler) if scheduler else local_pool(workers or 2)
        with progress(steps_to_train(trained, size, store), "training") as advance, place as executor:
            train_targets(trained, size, store, executor, workers, device, advance)
    with progress(len(chosen), "measuring") as advance:
        results = tuple(written(one, folder) for one in measure(chosen, size, store, advance))
    for study in studies:
        with progress(None, study.id) as advance:
            where = Place(models, cache or default_cache(), runs, workers or 2, advance)
            results += (written(conduct(study, size, where), folder),)
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
