"""The one training loop.

Cross-entropy and Adam. One generator, seeded immediately before the model is built, draws
the weights, then at every step a length and a batch, then the evaluation: with it a plain
re-run on a CPU gives the paper's digits.

Source: arXiv 2607.18759, section 5 and appendix E.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch.nn.functional import cross_entropy

from empirics.errors import EmpiricsError
from empirics.head import AttentionHead
from empirics.observe import Observation, observe
from empirics.spec import RunSpec
from empirics.tasks import draw_length, draw_tokens, targets

LOG_EVERY = 50

Progress = Callable[[int, float], None]


@dataclass(frozen=True)
class LossPoint:
    """Training loss (nats) of the batch at a step, the first step being 1."""

    step: int
    loss: float


@dataclass(frozen=True, eq=False)
class Run:
    """A finished run: the trained model, how its loss fell, and the evaluation that followed."""

    spec: RunSpec
    model: AttentionHead
    history: tuple[LossPoint, ...]
    evaluation: tuple[Observation, ...]
    seconds: float


def train(spec: RunSpec, progress: Progress | None = None) -> Run:
    """Train the run of a spec; `progress(step, loss)` is called every `LOG_EVERY` steps.

    Raises EmpiricsError that names the step at which the loss is no longer finite.
    """
    started = time.perf_counter()
    generator = torch.Generator().manual_seed(spec.seed)
    model = AttentionHead(spec, generator)
    optimizer = torch.optim.Adam(model.parameters(), lr=spec.learning_rate)
    history = []
    for step in range(1, spec.steps + 1):
        length = draw_length(spec, generator)
        tokens = draw_tokens(spec, spec.batch, length, generator)
        loss = cross_entropy(model(tokens).scores, targets(tokens, spec.offset))
        if not math.isfinite(value := loss.item()):
            raise EmpiricsError(
                f"run {spec.id}: the loss is {value} at step {step} of {spec.steps}; nothing was stored: "
                f"lower the learning rate ({spec.learning_rate:g})"
            )
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % LOG_EVERY == 0 or step == spec.steps:
            history.append(LossPoint(step, value))
            if progress is not None:
                progress(step, value)
    evaluation = observe(model, spec.evaluation_lengths, spec.evaluation_sequences, generator)
    return Run(spec, model, tuple(history), evaluation, time.perf_counter() - started)
