"""How fast runs train: the score-table trainer against the plain model, the transformer in bfloat16 against float32.

Ways that are compared take turns, and a ratio is the median of the ratios of neighbours: the machines are shared. Times
are of the wall, with all cores at work, and of training steps alone: no start, no compilation, no evaluation.
"""

from __future__ import annotations

import multiprocessing
import os
import resource
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from statistics import median
from time import perf_counter

import torch

from empirics.learner import Learner, PlainLearner
from empirics.spec import LearnedPositions, Rotary, TransformerSpec, run_spec, transformer_spec
from empirics.stacked import StackedLearner
from empirics.transformer_learner import TransformerLearner

SEEDS, REPEATS = 8, 7
CORES = min(len(os.sched_getaffinity(0)), SEEDS)

Line = dict[str, object]


def training_lines() -> Iterator[Line]:
    """One line a comparison."""
    yield from one_layer()
    yield stack_memory()
    for encoding in (Rotary(), LearnedPositions()):
        yield transformer(transformer_spec(encoding=encoding, vocabulary=16))


def one_layer() -> Iterator[Line]:
    """Seconds a run and step of the 8-seed job at K = 1: in stacks, a process a core; plainly, one run after another on
    all cores, and a run a core side by side."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(CORES, context) as pool:

        def side_by_side(work: Callable[[int, int], int], steps: int) -> float:
            started = perf_counter()
            done = sum(pool.map(work, range(CORES), [steps] * CORES))
            return (perf_counter() - started) / done

        side_by_side(_stacked_steps, 5)
        side_by_side(_plain_steps, 5)
        _all_cores_steps(20)
        turns = [
            (side_by_side(_stacked_steps, 1000), _all_cores_steps(100), side_by_side(_plain_steps, 100))
            for _ in range(REPEATS)
        ]
    stacked, everywhere, beside = zip(*turns, strict=True)
    yield _line("a run-step of 8 seeds in stacks, against plain runs on all cores", stacked, everywhere)
    yield _line("a run-step of 8 seeds in stacks, against plain runs side by side", stacked, beside)


def stack_memory() -> Line:
    """The most that a process holds which trains a stack of 64 runs, torch and compiler with it, against a gibibyte."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, context) as pool:
        held = pool.submit(_stack_bytes, 64).result()
    line: Line = {"name": "memory of a stack of 64 runs, against 1 GiB", "value": held, "unit": "B", "baseline": 2**30}
    return line | {"ratio": round(2**30 / held, 2)}


def transformer(spec: TransformerSpec) -> Line:
    """A step of the two-layer model in bfloat16 against float32, on all cores."""
    torch.set_num_threads(CORES)
    learners = [TransformerLearner(spec.model_copy(update={"precision": p})) for p in ("bfloat16", "float32")]
    for learner in learners:
        _seconds_a_step(learner, 3)
    half, single = zip(*([_seconds_a_step(one, 6) for one in learners] for _ in range(REPEATS)), strict=True)
    return _line(f"a step of the two-layer model ({spec.encoding.kind}) in bfloat16, against float32", half, single)


def _stacked_steps(core: int, steps: int) -> int:
    """Train one core's share of the seeds for so many steps; the number of run-steps."""
    torch.set_num_threads(1)
    seeds = range(core, SEEDS, CORES)
    learner = StackedLearner([run_spec(offset=1, seed=seed) for seed in seeds])
    for _ in range(steps):
        learner.step()
    return steps * len(seeds)


def _plain_steps(core: int, steps: int) -> int:
    torch.set_num_threads(1)
    _seconds_a_step(PlainLearner(run_spec(offset=1, seed=core)), steps)
    return steps


def _all_cores_steps(steps: int) -> float:
    torch.set_num_threads(CORES)
    return _seconds_a_step(PlainLearner(run_spec(offset=1)), steps)


def _stack_bytes(runs: int) -> int:
    learner = StackedLearner([run_spec(offset=1, seed=seed) for seed in range(runs)])
    for _ in range(20):
        learner.step()
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def _seconds_a_step(learner: Learner, steps: int) -> float:
    started = perf_counter()
    for _ in range(steps):
        learner.step()
    return (perf_counter() - started) / steps


def _line(name: str, ours: tuple[float, ...], theirs: tuple[float, ...]) -> Line:
    ratio = median(baseline / value for value, baseline in zip(ours, theirs, strict=True))
    line: Line = {"name": name, "value": round(median(ours), 6), "unit": "s", "baseline": round(median(theirs), 6)}
    return line | {"ratio": round(ratio, 2)}
