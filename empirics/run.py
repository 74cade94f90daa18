"""What training leaves: a model, how its loss fell, and what the model did directly afterwards."""

from __future__ import annotations

from dataclasses import dataclass

from empirics.head import AttentionHead
from empirics.observe import Observation
from empirics.observe_sequences import SequenceObservation
from empirics.observe_transformer import TransformerObservation
from empirics.sequence_spec import SequenceSpec
from empirics.spec import RunSpec, TransformerSpec
from empirics.transformer import Transformer


@dataclass(frozen=True)
class LossPoint:
    """Cross-entropy (nats) of the batch at a step, the first step being 1; a penalty on the margin is not in it."""

    step: int
    loss: float


@dataclass(frozen=True, eq=False)
class Run:
    """A finished run: the trained model, how its loss fell, and the evaluation that followed.

    `seconds` is the wall time from the start, or the last one where it was cut, to the end of its evaluation, shared
    out over the runs of its stack; `learner` is the way in which it was trained (`Learner.name`), or "edit".
    """

    spec: RunSpec
    model: AttentionHead
    history: tuple[LossPoint, ...]
    evaluation: tuple[Observation, ...]
    seconds: float
    learner: str = "plain"


@dataclass(frozen=True, eq=False)
class TransformerRun:
    """The same of a transformer."""

    spec: TransformerSpec
    model: Transformer
    history: tuple[LossPoint, ...]
    evaluation: tuple[TransformerObservation, ...]
    seconds: float
    learner: str = "transformer"


@dataclass(frozen=True, eq=False)
class SequenceRun:
    """The same of a transformer on another task."""

    spec: SequenceSpec
    model: Transformer
    history: tuple[LossPoint, ...]
    evaluation: tuple[SequenceObservation, ...]
    seconds: float
    learner: str = "transformer"


AnyRun = Run | TransformerRun | SequenceRun
