"""Heads one by one over any executor: what goes to a worker is a head, not a model, and what comes back its report."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import BrokenExecutor, Executor, Future
from contextlib import contextmanager
from itertools import islice
from typing import TypeVar

from bridge.errors import BridgeError
from empirics.executors import InProcess, cluster, local_pool

_WAITING = 8
_WORTH_A_PROCESS = 4
"""Heads: below so many another process would cost more than it gains."""

Report = TypeVar("Report")


def over_heads(
    report: Callable[..., Report],
    heads: Iterable[tuple],
    executor: Executor,
    workers: int,
    advance: Callable[[int], None],
) -> Iterator[Report]:
    """report(*head) of each, in order. Some wait beside those in work, so that no worker does while the next heads are
    made; no more are in memory at a time. Raises BridgeError where a worker has ended."""
    queue = iter(heads)

    def submit(count: int) -> list[Future]:
        return [executor.submit(report, *head) for head in islice(queue, count)]

    try:
        pending = submit(workers + _WAITING)
        while pending:
            yield pending.pop(0).result()
            advance(1)
            pending += submit(1)
    except BrokenExecutor:
        raise BridgeError("a worker has ended, as it does where memory is short: give --workers 1") from None


def worker_count(heads: int, workers: int | None) -> int:
    """How many processes for so many heads, where no number is given."""
    return workers or max(1, min(2, heads // _WORTH_A_PROCESS))


@contextmanager
def executor_of(workers: int, scheduler: str | None) -> Iterator[Executor]:
    """A Dask cluster, this process, or processes of this machine."""
    if scheduler:
        with cluster(scheduler) as executor:
            yield executor
    elif workers == 1:
        yield InProcess()
    else:
        with local_pool(workers) as executor:
            yield executor
