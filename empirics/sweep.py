"""Many runs on one machine: those that are on disk are not trained again.

Every run trains in a process of its own on one thread, so that it has the same bits
whatever else is trained beside it.
"""

from __future__ import annotations

import multiprocessing
import queue
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
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

    A run that fails does not stop the others; at the end EmpiricsError tells of all that failed. A
    worker that the system kills ends the sweep; a second call goes on with what is missing. On
    KeyboardInterrupt the workers are stopped and what is finished stays.
    """
    todo = missing(specs, store)
    if not todo:
        return
    context = multiprocessing.get_context("spawn")
    reports, before = context.Queue(), set(multiprocessing.active_children())
    pool = ProcessPoolExecutor(min(workers, len(todo)), context, _start_worker, (reports,))
    try:
        with _interrupts_ignored():
            futures = [pool.submit(_train_and_store, spec, store.root) for spec in todo]
        _wait(futures, reports, progress)
    except BaseException:
        for worker in set(multiprocessing.active_children()) - before:
            worker.terminate()
        raise
    finally:
        pool.shutdown(cancel_futures=True)
    _raise_failures(futures, store, todo)


def _wait(futures: list[Future[None]], reports: Any, progress: SweepProgress | None) -> None:
    pending = set(futures)
    while pending:
        _, pending = wait(pending, timeout=0.2)
        steps = _drain(reports)
        if progress is not None and steps:
            progress(steps)


def _raise_failures(futures: list[Future[None]], store: Store, todo: Sequence[RunSpec]) -> None:
    errors = [error for future in futures if (error := future.exception()) is not None]
    for error in errors:
        if not isinstance(error, EmpiricsError | BrokenProcessPool):
            raise error
    told = [str(error) for error in errors if isinstance(error, EmpiricsError)]
    if len(told) < len(errors):
        left = [spec.id for spec in missing(todo, store)]
        told.append(
            f"a training process was killed, perhaps for memory; not finished: {', '.join(left)}; "
            f"finished runs are kept: call again, with fewer workers"
        )
    if told:
        raise EmpiricsError("; ".join(told))


@contextmanager
def _interrupts_ignored() -> Iterator[None]:
    """Workers started here inherit it: an interrupt is the parent's to handle, which then stops them."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    previous = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous)


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
