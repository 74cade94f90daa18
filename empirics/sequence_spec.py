"""SequenceSpec: a decoder-only transformer that is trained on a task of inputs and targets.

The model is that of `empirics.transformer`. Its evaluation draws from the generator of the run, and
so is part of the spec.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError, model_validator

from empirics.encoding_specs import LearnedPositions, NoPositions, PeriodicRotary, Rotary
from empirics.errors import EmpiricsError
from empirics.hops import Hops
from empirics.languages import Language
from empirics.spec import Trained, first_line


class SequenceSpec(Trained):
    """One training run. Lengths are those of the sequences, in tokens, whatever the task counts."""

    model: Literal["sequence"] = "sequence"
    task: Annotated[Language | Hops, Field(discriminator="kind")] = Language()
    encoding: Annotated[Rotary | PeriodicRotary | LearnedPositions | NoPositions, Field(discriminator="kind")] = (
        Rotary()
    )
    layers: int = Field(default=2, ge=1, le=100)
    precision: Literal["float32", "bfloat16"] = "float32"
    width: int = Field(default=64, ge=2, le=8192)
    heads: int = Field(default=4, ge=1)
    train_lengths: tuple[int, int] = (2, 41)
    batch: int = Field(default=128, ge=1, le=1_000_000)
    steps: int = Field(default=2000, ge=0, le=10_000_000)
    learning_rate: float = Field(default=1e-3, gt=0, le=1e30)
    seed: int = Field(default=0, ge=0, lt=2**63)
    evaluation_lengths: tuple[int, ...] = (41, 81, 161, 321)
    evaluation_sequences: int = Field(default=256, ge=2, le=10_000_000)

    @model_validator(mode="after")
    def _fits(self) -> SequenceSpec:
        self.check_sizes(self.encoding)
        shortest = min(self.train_lengths[0], *self.evaluation_lengths)
        if shortest < self.task.shortest:
            raise ValueError(
                f"length {shortest} holds no question of the task: give lengths of {self.task.shortest} tokens or more"
            )
        return self

    @property
    def tokens(self) -> int:
        """Rows of the embedding."""
        return self.task.tokens

    @property
    def outputs(self) -> int:
        """Classes of the readout."""
        return self.task.outputs

    @property
    def _name(self) -> str:
        return f"{self.task.kind}-{self.encoding.kind}"


def sequence_spec(**fields: Any) -> SequenceSpec:
    """A SequenceSpec from fields. Raises EmpiricsError with one line that names the first bad field."""
    try:
        return SequenceSpec(**fields)
    except ValidationError as error:
        raise EmpiricsError(first_line(error)) from None
