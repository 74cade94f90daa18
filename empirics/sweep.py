"""Many runs on one machine: those that are on disk are not trained again.

Every run trains in a process of its own on one thread, so that it has the same bits
whatever else is trained beside it.
"""

from __future__ import annotations

import multiprocessing
import queue
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, wait
from pathlib import Path
from typing import Any

import torch

from empirics.errors import EmpiricsError
from empirics.spec import RunSpec
from empirics.store import Store
from empirics.train import train

SweepProgress = Callable[[int], None]

_reports: Any = None


def missing(specs: Sequence[RunSpec], store: Store) -> tuple[RunSpec, ...]:
    """The specs, each once, whose runs are not on disk. Raises DamagedRun for one that is there but damaged."""
    return tuple(spec for spec in dict.fromkeys(specs) if not store.has(spec))


def sweep(specs: Sequence[RunSpec], store: Store, workers: int = 2, progress: SweepProgress | None = None) -> None:
    """Train and store what is missing; `progress(steps)` tells the steps done since the last call.

    A run that fails does not stop the others. Raises EmpiricsError of the first that failed, at the end.
    """
    todo = missing(specs, store)
    if not todo:
        return
    context = multiprocessing.get_context("spawn")
    reports = context.Queue()
    with ProcessPoolExecutor(min(workers, len(todo)), context, _start_worker, (reports,)) as pool:
        futures = [pool.submit(_train_and_store, spec, store.root) for spec in todo]
        pending = set(futures)
        try:
            while pending:
                _, pending = wait(pending, timeout=0.2)
                steps = _drain(reports)
                if progress is not None and steps:
                    progress(steps)
        except KeyboardInterrupt:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    failures = [error for future in futures if (error := future.exception()) is not None]
    for error in failures:
        if not isinstance(error, EmpiricsError):
            raise error
    if failures:
        raise failures[0]


def _start_worker(reports: Any) -> None:
    global _reports
    _reports = reports
    torch.set_num_threads(1)


def _train_and_store(spec: RunSpec, root: Path) -> None:
    last = 0

    def report(step: int, loss: float) -> None:
        nonlocal last
        _reports.put(step - last)
        last = step

    Store(root).save(train(spec, report))


def _drain(reports: Any) -> int:
    steps = 0
    while True:
        try:
            steps += reports.get_nowait()
        except queue.Empty:
            return steps
