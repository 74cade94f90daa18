"""RunSpec: everything that changes the weights of a run, and nothing else.

The identifier of a run is a readable prefix and the hash of its spec, so that two runs with
one identifier have one set of weights. Device, threads and logging are not part of it.

Source: arXiv 2607.18759, section 5 and appendix E; defaults are the reference setup.
"""

from __future__ import annotations

import hashlib
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from empirics.errors import EmpiricsError

EVALUATION_LENGTHS = (12, 16, 20, 24, 32, 40, 48)


class _Strict(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Rotary(_Strict):
    """Rotary positions: pair i turns by base^(-2i/width) rad a token."""

    kind: Literal["rope"] = "rope"
    base: float = Field(default=10_000.0, gt=0)


class LearnedPositions(_Strict):
    """One learned vector a position, added to the token embedding; `rows` of them."""

    kind: Literal["ape"] = "ape"
    rows: int = Field(default=max(EVALUATION_LENGTHS) + 1, ge=1)


Encoding = Annotated[Rotary | LearnedPositions, Field(discriminator="kind")]


class RunSpec(_Strict):
    """One training run of the one-layer, one-head model on the fixed-offset task.

    `offset` is the target K in tokens back; lengths are in tokens, both ends included.
    The evaluation belongs to the spec since it draws from the generator of the run.
    """

    encoding: Encoding = Rotary()
    offset: int = Field(default=2, ge=0)
    width: int = Field(default=64, ge=2, le=8192)
    vocabulary: int = Field(default=20, ge=2, le=100_000)
    train_lengths: tuple[int, int] = (8, 16)
    batch: int = Field(default=256, ge=1, le=1_000_000)
    steps: int = Field(default=4000, ge=1, le=10_000_000)
    learning_rate: float = Field(default=1e-3, gt=0, le=1e30)
    seed: int = Field(default=0, ge=0, lt=2**63)
    evaluation_lengths: tuple[int, ...] = EVALUATION_LENGTHS
    evaluation_sequences: int = Field(default=4096, ge=2, le=10_000_000)

    @model_validator(mode="after")
    def _fits(self) -> RunSpec:
        shortest, longest = self.train_lengths
        if max(longest, *self.evaluation_lengths, 0) > 1_000_000:
            raise ValueError("lengths go to 1000000 tokens: give shorter ones")
        if shortest > longest:
            raise ValueError(f"train_lengths run from {shortest} down to {longest}: give the shorter one first")
        if not self.evaluation_lengths:
            raise ValueError("evaluation_lengths is empty: give one length or more")
        for name, least in (("training", shortest), ("evaluation", min(self.evaluation_lengths))):
            if self.offset >= least:
                raise ValueError(
                    f"offset K = {self.offset} must be below the shortest {name} length {least}: "
                    f"no token stands K back from the last one"
                )
        if isinstance(self.encoding, Rotary) and self.width % 2:
            raise ValueError(f"width {self.width} is odd: rotary positions turn pairs of lanes, give an even width")
        longest = max(longest, *self.evaluation_lengths)
        if isinstance(self.encoding, LearnedPositions) and self.encoding.rows < longest:
            raise ValueError(
                f"{self.encoding.rows} position rows do not reach length {longest}: give {longest} rows or more"
            )
        return self

    @property
    def id(self) -> str:
        """Folder name of the run: readable prefix and the first 12 hex digits of the spec's sha256."""
        digest = hashlib.sha256(self.to_json().encode()).hexdigest()[:12]
        return f"{self.encoding.kind}-k{self.offset}-d{self.width}-seed{self.seed}-{digest}"

    def to_json(self) -> str:
        """Canonical text of the spec, the one that is hashed and stored."""
        return self.model_dump_json(indent=1) + "\n"


def run_spec(**fields: Any) -> RunSpec:
    """A RunSpec from fields. Raises EmpiricsError with one line that names the first bad field."""
    try:
        return RunSpec(**fields)
    except ValidationError as error:
        raise EmpiricsError(_first_line(error)) from None


def read_spec(text: str) -> RunSpec:
    """A RunSpec from its stored text. Raises EmpiricsError; unknown fields are refused."""
    try:
        return RunSpec.model_validate_json(text)
    except ValidationError as error:
        raise EmpiricsError(_first_line(error)) from None


def _first_line(error: ValidationError) -> str:
    first = error.errors()[0]
    place = ".".join(str(part) for part in first["loc"])
    message = first["msg"].removeprefix("Value error, ")
    return f"{place}: {message}, got {first['input']!r}" if place else message
