"""The one training loop: it steps a learner, watches the loss, keeps checkpoints, reports progress.

It computes on one thread, so that a run has the same bits whatever is trained beside it.
A run whose loss is no longer finite is given up at that step, and its last good checkpoint
stays; the runs beside it in a stack go on, since no bit of theirs depends on it.

Source: arXiv 2607.18759, section 5 and appendix E.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import cast, overload

import torch
from threadpoolctl import threadpool_limits

from empirics.errors import EmpiricsError
from empirics.head import AttentionHead
from empirics.learner import Learner, PlainLearner, State
from empirics.observe import Observation
from empirics.observe_sequences import SequenceObservation
from empirics.observe_transformer import TransformerObservation
from empirics.run import AnyRun, LossPoint, Run, SequenceRun, TransformerRun
from empirics.sequence_spec import SequenceSpec
from empirics.spec import RunSpec, TransformerSpec
from empirics.specs import Spec
from empirics.stacked import StackedLearner, stack_key
from empirics.transformer import Transformer
from empirics.transformer_learner import TransformerLearner

LOG_EVERY = 50
KEEP_SECONDS = 30.0

Progress = Callable[[int], None]


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """A run in training after `step` steps: all that it takes to go on with the same bits."""

    spec: Spec
    step: int
    history: tuple[LossPoint, ...]
    state: State
    learner: str


@dataclass(frozen=True)
class Failure:
    """A run whose loss was not finite at a step, or whose weights or attention were not after its last."""

    spec: Spec
    step: int
    loss: float

    @property
    def message(self) -> str:
        return (
            f"run {self.spec.id}: the loss is {self.loss} at step {self.step} of {self.spec.steps}; the run is not "
            f"stored, its last checkpoint stays if there is one: lower the learning rate ({self.spec.learning_rate:g})"
        )


Keep = Callable[[Checkpoint], None]


@overload
def train(spec: RunSpec, device: str = "cpu", progress: Progress | None = None) -> Run: ...
@overload
def train(spec: TransformerSpec, device: str = "cpu", progress: Progress | None = None) -> TransformerRun: ...
@overload
def train(spec: SequenceSpec, device: str = "cpu", progress: Progress | None = None) -> SequenceRun: ...
def train(spec: Spec, device: str = "cpu", progress: Progress | None = None) -> AnyRun:
    """Train one run. Raises EmpiricsError that names the step at which the loss is no longer finite."""
    (outcome,) = train_together([spec], device=device, progress=progress)
    if isinstance(outcome, Failure):
        raise EmpiricsError(outcome.message)
    return outcome


def train_together(
    specs: Sequence[Spec],
    checkpoints: Sequence[Checkpoint] = (),
    device: str = "cpu",
    keep: Keep | None = None,
    keep_seconds: float = KEEP_SECONDS,
    progress: Progress | None = None,
) -> Iterator[AnyRun | Failure]:
    """Train runs that can share a stack (`stack_key`), from their checkpoints where these are given.

    `keep` gets a checkpoint of every run about every `keep_seconds` seconds; `progress` is told of the steps made
    since it was last called, over all runs. Yields the outcome of each run, those that failed first. Raises
    EmpiricsError where the runs cannot train together or their checkpoints are not at one step.
    """
    with one_thread():
        yield from _train(specs, checkpoints, device, keep, keep_seconds, progress)


@contextmanager
def one_thread() -> Iterator[None]:
    """One thread for torch and for matrix products, as many as before afterwards."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with threadpool_limits(limits=1):
            yield
    finally:
        torch.set_num_threads(threads)


def trains_stacked(spec: Spec, device: str = "cpu") -> bool:
    """Whether runs like this one train as a stack; other runs train alone."""
    return stack_key(spec).stacks and device.partition(":")[0] == "cpu"


def learner_of(specs: Sequence[Spec], device: str = "cpu") -> Learner:
    """The learner of runs: a stack on the CPU where their tables pay, else one run, sequence by sequence.

    Raises EmpiricsError where the device is not there, the runs cannot train together, or were made by an edit.
    """
    _check_device(device)
    if len({stack_key(spec) for spec in specs}) != 1:
        raise EmpiricsError(f"{len(specs)} runs of more than one shape cannot train together: sweep them instead")
    spec = specs[0]
    if isinstance(spec, RunSpec) and spec.edit is not None:
        raise EmpiricsError(
            f"run {spec.id} was made from run {spec.edit.parent} by an edit, it is not trained: carrier repair makes it"
        )
    if trains_stacked(spec, device):
        return StackedLearner([spec for spec in specs if isinstance(spec, RunSpec)])
    if len(specs) > 1:
        raise EmpiricsError(f"runs such as {spec.id} train alone, got {len(specs)}: sweep them instead")
    return PlainLearner(spec, device) if isinstance(spec, RunSpec) else TransformerLearner(spec, device)


def _train(
    specs: Sequence[Spec],
    checkpoints: Sequence[Checkpoint],
    device: str,
    keep: Keep | None,
    keep_seconds: float,
    progress: Progress | None,
) -> Iterator[AnyRun | Failure]:
    started = kept = time.perf_counter()
    learner = learner_of(specs, device)
    first = _restore(learner, specs, checkpoints)
    histories = [list(checkpoint.history) for checkpoint in checkpoints] or [[] for _ in specs]
    failures: dict[int, Failure] = {}
    told = first
    for step in range(first + 1, specs[0].steps + 1):
        losses = learner.step()
        if not torch.isfinite(losses).all():
            for index, loss in enumerate(losses.tolist()):
                if not math.isfinite(loss):
                    failures.setdefault(index, Failure(specs[index], step, loss))
            if len(failures) == len(specs):
                break
        if step % LOG_EVERY and step != specs[0].steps:
            continue
        for history, loss in zip(histories, losses.tolist(), strict=True):
            history.append(LossPoint(step, loss))
        if progress is not None:
            progress((step - told) * len(specs))
            told = step
        if keep is not None and time.perf_counter() - kept >= keep_seconds:
            for index, state in enumerate(learner.state()):
                if index not in failures:
                    keep(Checkpoint(specs[index], step, tuple(histories[index]), state, learner.name))
            kept = time.perf_counter()
    yield from failures.values()
    if len(failures) < len(specs):
        yield from _finished(learner, histories, failures, started)


def _restore(learner: Learner, specs: Sequence[Spec], checkpoints: Sequence[Checkpoint]) -> int:
    if not checkpoints:
        return 0
    steps = {checkpoint.step for checkpoint in checkpoints}
    if [checkpoint.spec for checkpoint in checkpoints] != list(specs) or len(steps) != 1:
        raise EmpiricsError(
            f"{len(checkpoints)} checkpoints at steps {sorted(steps)} are not those of {len(specs)} runs"
        )
    for checkpoint in checkpoints:
        if checkpoint.learner != learner.name:
            raise EmpiricsError(
                f"the checkpoint of run {checkpoint.spec.id} is of its {checkpoint.learner} training and cannot go on "
                f"as {learner.name}: give the device that it began on, or move the checkpoint away"
            )
    learner.restore([checkpoint.state for checkpoint in checkpoints])
    return steps.pop()


def _finished(
    learner: Learner, histories: list[list[LossPoint]], failures: dict[int, Failure], started: float
) -> Iterator[AnyRun | Failure]:
    for index, (model, evaluation) in enumerate(learner.finish()):
        if index in failures:
            continue
        seconds = (time.perf_counter() - started) / len(histories)
        spec, history = learner.specs[index], tuple(histories[index])
        weights_finite = all(bool(torch.isfinite(weight).all()) for weight in model.parameters())
        if not weights_finite or not all(seen.is_finite for seen in evaluation):
            yield Failure(spec, spec.steps, math.nan)
        elif isinstance(model, AttentionHead):
            seen = cast(tuple[Observation, ...], evaluation)
            yield Run(model.spec, model, history, seen, seconds, learner.name)
        elif isinstance(model, Transformer) and isinstance(model.spec, TransformerSpec):
            told = cast(tuple[TransformerObservation, ...], evaluation)
            yield TransformerRun(model.spec, model, history, told, seconds, learner.name)
        elif isinstance(model, Transformer) and isinstance(model.spec, SequenceSpec):
            answers = cast(tuple[SequenceObservation, ...], evaluation)
            yield SequenceRun(model.spec, model, history, answers, seconds, learner.name)


def _check_device(device: str) -> None:
    try:
        torch.ones(1, device=device).cpu()
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).strip().splitlines()[0]
        raise EmpiricsError(
            f"device {device!r} cannot be used here ({reason}): give cpu, or cuda where there is one"
        ) from None
