"""A sweep that notes what it does in a log, or dies at a given place: for tests that kill it.

Every line is written at once and outlives the process: `start ID STEP` where the training of a run
begins, `kept ID STEP`, `stored ID`, and between them the phase, `train`, `write` or `evaluate`.
A Dask worker that has this module loaded notes to the file $NOTED.
"""

from __future__ import annotations

import importlib
import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from empirics import atomic, sweep, train
from empirics.specs import Spec
from empirics.store import Store


def sweep_noted(specs: Sequence[Spec], root: Path, log: Path) -> None:
    """Sweep in this process with a checkpoint as often as there can be one."""
    note_to(log)
    sweep.sweep(specs, Store(root), keep_seconds=0)


def sweep_dying(specs: Sequence[Spec], root: Path, place: str, call: int) -> None:
    """The same, but the process is killed as it comes to a place, such as `atomic:_write_flushed`, for the nth time.

    A file that is being written then is half written.
    """
    module, _, name = place.partition(":")
    owner: Any = importlib.import_module(module)
    *outer, name = name.split(".")
    for part in outer:
        owner = getattr(owner, part)
    whole, calls = getattr(owner, name), 0

    def dying(*arguments: Any, **options: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == call:
            if whole is atomic_write:
                path, data = arguments
                path.write_bytes(data[: len(data) // 2])
            os.kill(os.getpid(), signal.SIGKILL)
        return whole(*arguments, **options)

    atomic_write = atomic._write_flushed
    setattr(owner, name, dying)
    sweep.sweep(specs, Store(root), keep_seconds=0)


def dask_setup(worker: object) -> None:
    """What Dask calls in a worker that has this module loaded."""
    note_to(Path(os.environ["NOTED"]))


def note_to(log: Path) -> None:
    """Have this process note what it does."""
    descriptor = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def note(*words: object) -> None:
        os.write(descriptor, (" ".join(map(str, words)) + "\n").encode())

    together, learner_of, keep, save = sweep.train_together, train.learner_of, Store.keep, Store.save

    def written_in_halves(path: Path, data: bytes) -> None:
        """A slow disk, so that kills find files half written."""
        with path.open("wb", buffering=0) as file:
            for half in (data[: len(data) // 2], data[len(data) // 2 :]):
                file.write(half)
                time.sleep(0.002)

    def noted_together(specs: Sequence[Spec], checkpoints: Sequence[Any] = (), *others: Any) -> Iterator[Any]:
        for spec in specs:
            note("start", spec.id, checkpoints[0].step if checkpoints else 0)
        note("train")
        return together(specs, checkpoints, *others)

    def noted_learner(*arguments: Any, **options: Any) -> Any:
        learner = learner_of(*arguments, **options)
        finish = learner.finish

        def noted_finish() -> Iterator[Any]:
            note("evaluate")
            yield from finish()

        learner.finish = noted_finish
        return learner

    def noted_write(
        write: Callable[..., Any], told: Callable[[Any], tuple[object, ...]], then: str
    ) -> Callable[..., Any]:
        def noted(store: Store, what: Any) -> Any:
            note("write")
            result = write(store, what)
            note(*told(what))
            note(then)
            return result

        return noted

    atomic._write_flushed = written_in_halves
    sweep.train_together, train.learner_of = noted_together, noted_learner  # type: ignore[assignment]
    Store.keep = noted_write(keep, lambda kept: ("kept", kept.spec.id, kept.step), "train")  # type: ignore[method-assign]
    Store.save = noted_write(save, lambda run: ("stored", run.spec.id), "evaluate")  # type: ignore[method-assign]
