"""Where a sweep trains: in this process, in processes of this machine, or on a Dask cluster.

Each is a `concurrent.futures` executor whose `workers` says how many shares its work is cut into.
"""

from __future__ import annotations

import multiprocessing
import os
import re
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from contextlib import contextmanager
from typing import Any

from empirics.errors import EmpiricsError

_ANSWER_SECONDS = 10
_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")

_reports: Any = None


class InProcess(Executor):
    """Does what is submitted at once, in this process."""

    workers = 1

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as error:
            future.set_exception(error)
        return future


class LocalPool(ProcessPoolExecutor):
    """Processes of one thread each that leave interrupts to their parent and end with it; made by `local_pool`."""

    def __init__(self, workers: int) -> None:
        context = multiprocessing.get_context("spawn")
        self.workers = workers
        # A plain pipe: what a worker has told is there when its work is done.
        self._told = context.SimpleQueue()
        super().__init__(workers, context, _start_worker, (self._told,))

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Workers start here and inherit what is set as they do: one thread each, interrupts ignored."""
        with _one_thread_each(), _interrupts_ignored():
            return super().submit(fn, *args, **kwargs)

    def steps(self) -> int:
        """The steps that workers have reported since the last call."""
        steps = 0
        while not self._told.empty():
            steps += self._told.get()
        return steps


@contextmanager
def local_pool(workers: int) -> Iterator[LocalPool]:
    """Processes of this machine, one thread of matrix products in each, since threads of several would wait for one
    another. On an exception, an interrupt among them, they are stopped at once.
    """
    before = set(multiprocessing.active_children())
    pool = LocalPool(workers)
    try:
        yield pool
    except BaseException:
        for worker in set(multiprocessing.active_children()) - before:
            worker.terminate()
        raise
    finally:
        pool.shutdown(cancel_futures=True)


@contextmanager
def cluster(address: str) -> Iterator[Executor]:
    """The workers of the Dask scheduler at an address such as tcp://HOST:8786.

    Scheduler and workers need this package, at the version that is here, and must see the store's folder under the
    path that it has here: keep it on a file system that they share. Give a worker process one thread. Where one dies
    its stack is given to another, which goes on from the checkpoints. After an interrupt a worker goes on to the end
    of the stack in its hands, whose runs are stored; a later call finds them. `workers` counts those that are there
    now: where a batch system starts them later, tell `sweep` how many there will be.

    Raises EmpiricsError where distributed is not installed or no scheduler answers.
    """
    try:
        from distributed import Client
    except ModuleNotFoundError as error:
        raise EmpiricsError(
            f"a cluster needs Dask, but {error.name} is not installed: pip install 'attention-carrier[cluster]'"
        ) from None
    if not re.fullmatch(r"(tcp|tls)://[^/]+:\d+", address):
        raise EmpiricsError(f"{address!r} is no address of a Dask scheduler: give one such as tcp://HOST:8786")
    try:
        client = Client(address, timeout=_ANSWER_SECONDS, set_as_default=False)
    except OSError as error:
        raise EmpiricsError(
            f"no Dask scheduler answers at {address!r} ({str(error).splitlines()[0]}): "
            f"start one with `dask scheduler`, or give the address of one that runs"
        ) from None
    with client:
        executor = client.get_executor(pure=False)
        executor.workers = max(1, sum(client.nthreads().values()))
        try:
            yield executor
        except BaseException:
            executor.shutdown(wait=False)
            raise


def report(steps: int) -> None:
    """Called in a worker of a `LocalPool`: tell the parent that steps were made."""
    _reports.put(steps)


@contextmanager
def _one_thread_each() -> Iterator[None]:
    """Through the environment, which holds for whatever a worker loads later."""
    before = {name: os.environ.get(name) for name in _THREADS}
    os.environ.update(dict.fromkeys(_THREADS, "1"))
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None) if value is None else os.environ.update({name: value})


@contextmanager
def _interrupts_ignored() -> Iterator[None]:
    """Only the main thread can set it."""
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
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """A parent that is killed cannot stop its workers; without this they would train on beside the next call."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
