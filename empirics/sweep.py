"""Many runs: those that are on disk are not trained again, those that were cut go on from their checkpoints.

What is handed to a worker is a stack, or a part of one: runs that share their tables and stand at
one step. A run trains on one thread, whatever trains it, and no bit of it depends on the runs
beside it; so it has the same bits alone or in any stack, here, in a process pool or on a cluster
of one kind of machine.

    sweep(specs, store)                                    in this process
    with local_pool(2) as pool: sweep(specs, store, pool)  on two cores
    with cluster(address) as dask: sweep(specs, store, dask)
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, CancelledError, Executor, Future, wait
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from threadpoolctl import threadpool_limits

from empirics.errors import EmpiricsError
from empirics.executors import InProcess, LocalPool, report
from empirics.spec import RunSpec
from empirics.specs import Spec
from empirics.stacked import bytes_per_run, stack_key
from empirics.store import Store
from empirics.train import KEEP_SECONDS, Checkpoint, Failure, Progress, one_thread, train_together, trains_stacked

STACK_BYTES = 1 << 29

# A step through tables costs about this much less than one through the sequences.
_TABLE_GAIN = 30


@dataclass(frozen=True)
class Stack:
    """Runs that train together from the step at which their checkpoints stand, 0 where there are none.

    `tables` tells whether they train through tables; else there is one. The checkpoints are held where they train.
    """

    specs: tuple[Spec, ...]
    step: int
    tables: bool
    checkpoints: tuple[Checkpoint, ...] = ()

    @property
    def work_per_run(self) -> float:
        """About the multiplications that are left to a run: good for proportions only."""
        spec = self.specs[0]
        products = 2 if isinstance(spec, RunSpec) else 12 * spec.layers
        gain = _TABLE_GAIN if self.tables else 1
        step = spec.batch * spec.train_lengths[1] * products * spec.width**2 / gain
        return step * (spec.steps - self.step + 1)

    @property
    def work(self) -> float:
        return self.work_per_run * len(self.specs)


def missing(specs: Sequence[Spec], store: Store) -> tuple[Spec, ...]:
    """The specs, each once, whose runs are not on disk. Raises DamagedRun for one that is there but damaged."""
    return tuple(spec for spec in dict.fromkeys(specs) if not store.has(spec))


def sweep(
    specs: Sequence[Spec],
    store: Store,
    executor: Executor | None = None,
    workers: int | None = None,
    device: str = "cpu",
    progress: Progress | None = None,
    keep_seconds: float = KEEP_SECONDS,
    stack_bytes: int = STACK_BYTES,
) -> None:
    """Train and store what is missing, over any executor; in this process where none is given.

    The work is shared out to as many `workers` as the executor has (`local_pool` and `cluster` know; else 1), in
    stacks of at most `stack_bytes` each. `progress(steps)` tells the steps made since the last call, at the first
    one those of the checkpoints; executors other than `local_pool` tell of a stack when it is done.

    A run that fails does not stop the others; at the end EmpiricsError tells of all that failed. Workers that are
    lost (killed by the system, say) are told in one line. A second call skips what is finished and goes on with the
    rest. Raises DamagedRun, before anything trains, where a run or a checkpoint is damaged. On KeyboardInterrupt
    what has not begun is cancelled, and what is finished stays, with the checkpoints of the rest.
    """
    todo = missing(specs, store)
    stacks = _stacks(todo, store, device)
    executor = executor or InProcess()
    parts = share_out(stacks, workers or int(getattr(executor, "workers", 1)), stack_bytes)
    if progress is not None and (made := sum(stack.step * len(stack.specs) for stack in stacks)):
        progress(made)
    tell = progress if isinstance(executor, InProcess) else report if isinstance(executor, LocalPool) else None
    futures: dict[Future[tuple[Failure, ...]], Stack] = {}
    try:
        with one_thread():
            for part in parts:
                arguments = part.specs, store.root.resolve(), device, keep_seconds, tell
                futures[executor.submit(train_and_store, *arguments)] = part
            _wait(futures, executor, progress)
    except BaseException:
        for future in futures:
            future.cancel()
        raise
    _raise_failures(list(futures), store, todo)


def train_and_store(
    specs: Sequence[Spec],
    root: Path,
    device: str = "cpu",
    keep_seconds: float = KEEP_SECONDS,
    progress: Progress | None = None,
) -> tuple[Failure, ...]:
    """Train what is not finished of a stack and store each run: what a worker does, once or, where one died, again.

    Returns the runs that failed.
    """
    # For good: what trains beside it in another thread must not find it undone.
    torch.set_num_threads(1)
    threadpool_limits(limits=1)
    store = Store(root)
    failures: list[Failure] = []
    for stack in _stacks(missing(specs, store), store, device):
        for outcome in train_together(stack.specs, stack.checkpoints, device, store.keep, keep_seconds, progress):
            if isinstance(outcome, Failure):
                failures.append(outcome)
            else:
                store.save(outcome)
    return tuple(failures)


def share_out(stacks: Sequence[Stack], workers: int, stack_bytes: int) -> tuple[Stack, ...]:
    """Cut stacks so that workers get equal shares and each part fits into memory; most work first.

    The runs of all stacks are laid end to end and cut where a worker's share ends: at most workers - 1 cuts. A run
    that alone needs more than `stack_bytes` trains alone.
    """
    share = sum(stack.work for stack in stacks) / workers
    parts: list[Stack] = []
    laid = 0.0
    for stack in stacks:
        shares: dict[int, list[Spec]] = {}
        for spec in stack.specs:
            shares.setdefault(int((laid + stack.work_per_run / 2) / share), []).append(spec)
            laid += stack.work_per_run
        spec = stack.specs[0]
        most = max(1, stack_bytes // bytes_per_run(spec)) if stack.tables and isinstance(spec, RunSpec) else 1
        for specs in shares.values():
            count = math.ceil(len(specs) / most)
            parts += [replace(stack, specs=tuple(specs[first::count]), checkpoints=()) for first in range(count)]
    return tuple(sorted(parts, key=lambda part: part.work, reverse=True))


def _stacks(specs: Sequence[Spec], store: Store, device: str) -> tuple[Stack, ...]:
    """Runs of one key that stand at one step, together. Raises DamagedRun for a damaged checkpoint."""
    alike: dict[tuple[object, int, bool], list[tuple[Spec, Checkpoint | None]]] = {}
    for spec in specs:
        kept, tables = store.checkpoint(spec), trains_stacked(spec, device)
        key = stack_key(spec) if tables else spec, kept.step if kept else 0, tables
        alike.setdefault(key, []).append((spec, kept))
    return tuple(
        Stack(
            tuple(spec for spec, _ in together),
            step,
            tables,
            tuple(kept for _, kept in together if kept is not None),
        )
        for (_, step, tables), together in alike.items()
    )


def _wait(futures: dict[Future[Any], Stack], executor: Executor, progress: Progress | None) -> None:
    pending = set(futures)
    while pending:
        done, pending = wait(pending, timeout=0.2, return_when=FIRST_COMPLETED)
        if isinstance(executor, LocalPool):
            steps = executor.steps()
        elif isinstance(executor, InProcess):
            steps = 0
        else:
            steps = sum((part.specs[0].steps - part.step) * len(part.specs) for part in map(futures.__getitem__, done))
        if progress is not None and steps:
            progress(steps)


def _raise_failures(futures: Sequence[Future[tuple[Failure, ...]]], store: Store, todo: Sequence[Spec]) -> None:
    told: list[str] = []
    lost = False
    for future in futures:
        try:
            told += [failure.message for failure in future.result()]
        except EmpiricsError as error:
            told.append(str(error))
        except Exception as error:
            if not _was_lost(error):
                raise
            lost = True
    if lost:
        left = [spec.id for spec in missing(todo, store)]
        told.append(
            f"workers were lost, perhaps killed for memory; not finished: {', '.join(left)}; finished runs and "
            f"checkpoints are kept: call again, with fewer workers"
        )
    if told:
        raise EmpiricsError("; ".join(dict.fromkeys(told)))


def _was_lost(error: BaseException) -> bool:
    """Whether a worker was killed or contact with it lost. Dask's own error can only come where Dask is loaded."""
    killed = (dask.KilledWorker,) if (dask := sys.modules.get("distributed")) else ()
    return isinstance(error, (BrokenExecutor, CancelledError, *killed))
