"""RunSpec and TransformerSpec: everything that changes the weights of a run, and nothing else.

The identifier of a run is a readable prefix and the hash of its spec, so that two runs with
one identifier have one set of weights. Device, threads and logging are not part of it.

Source: arXiv 2607.18759, section 5 and appendix E; defaults are the reference setup.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field, ValidationError, model_serializer, model_validator

from empirics.encoding_specs import (
    EVALUATION_LENGTHS,
    BucketBias,
    Encoding,
    LearnedPositions,
    LinearBias,
    NoPositions,
    PeriodicRotary,
    RandomizedPositions,
    Rotary,
    Sinusoidal,
)
from empirics.errors import EmpiricsError
from empirics.means import Edit, MarginPenalty, Means, Strict

__all__ = (
    "EVALUATION_LENGTHS",
    "MOST_TOKENS",
    "BucketBias",
    "Encoding",
    "LearnedPositions",
    "LinearBias",
    "NoPositions",
    "PeriodicRotary",
    "RandomizedPositions",
    "Rotary",
    "RunSpec",
    "Sinusoidal",
    "Trained",
    "TransformerSpec",
    "first_line",
    "run_spec",
    "transformer_spec",
)

MOST_TOKENS = 1 << 28
# These came later: left out of a text where they are None, they change no identifier of an earlier run.
_LATER = ("start", "penalty", "edit")


class Trained(Strict):
    """What the spec of every run has; lengths are in tokens, both ends included."""

    if TYPE_CHECKING:  # Each kind declares them, in an order that is part of its identifiers.
        width: int
        heads: int
        train_lengths: tuple[int, int]
        batch: int
        steps: int
        learning_rate: float
        seed: int
        evaluation_lengths: tuple[int, ...]
        evaluation_sequences: int

    @property
    def head_width(self) -> int:
        """Lanes of one head."""
        return self.width // self.heads

    @property
    def longest(self) -> int:
        """The longest length that is trained or evaluated."""
        return max(self.train_lengths[1], *self.evaluation_lengths)

    @property
    def id(self) -> str:
        """Folder name of the run: readable prefix and the first 12 hex digits of the spec's sha256."""
        digest = hashlib.sha256(self.to_json().encode()).hexdigest()[:12]
        return f"{self._name}-d{self.width}-seed{self.seed}-{digest}"

    @property
    def _name(self) -> str:
        raise NotImplementedError

    def to_json(self) -> str:
        """Canonical text of the spec, the one that is hashed and stored."""
        return self.model_dump_json(indent=1) + "\n"

    def check_sizes(self, encoding: Strict) -> None:
        """Raise ValueError where lengths, heads and positions do not fit."""
        shortest, longest = self.train_lengths
        if not self.evaluation_lengths:
            raise ValueError("evaluation_lengths is empty: give one length or more")
        if self.longest > 1_000_000:
            raise ValueError("lengths go to 1000000 tokens: give shorter ones")
        if shortest > longest:
            raise ValueError(f"train_lengths run from {shortest} down to {longest}: give the shorter one first")
        drawn = {
            "a batch": self.batch * longest,
            "an evaluation": self.evaluation_sequences * max(self.evaluation_lengths),
        }
        for name, tokens in drawn.items():
            if tokens > MOST_TOKENS:
                raise ValueError(f"{name} of {tokens} tokens is too large: {MOST_TOKENS} are the most")
        if self.width % self.heads:
            raise ValueError(f"width {self.width} does not split into {self.heads} heads: give a multiple of them")
        if isinstance(encoding, Rotary | PeriodicRotary) and self.head_width % 2:
            raise ValueError(
                f"head width {self.head_width} is odd: rotary positions turn pairs of lanes, give an even one"
            )
        if isinstance(encoding, Sinusoidal) and self.width % 2:
            raise ValueError(f"width {self.width} is odd: sinusoidal positions fill pairs of lanes, give an even one")
        if isinstance(encoding, LearnedPositions | RandomizedPositions) and encoding.rows < self.longest:
            raise ValueError(
                f"{encoding.rows} position rows do not reach length {self.longest}: give {self.longest} rows or more"
            )


class _ShiftSpec(Trained):
    """What runs share that copy a token.

    `offset` is the target K in tokens back.
    The evaluation belongs to the spec since it draws from the generator of the run.
    """

    offset: int = Field(default=2, ge=0)
    width: int = Field(default=64, ge=2, le=8192)
    heads: int = Field(default=1, ge=1)
    vocabulary: int = Field(default=20, ge=2, le=100_000)
    train_lengths: tuple[int, int] = (8, 16)
    batch: int = Field(default=256, ge=1, le=1_000_000)
    steps: int = Field(default=4000, ge=0, le=10_000_000)
    learning_rate: float = Field(default=1e-3, gt=0, le=1e30)
    seed: int = Field(default=0, ge=0, lt=2**63)
    evaluation_lengths: tuple[int, ...] = EVALUATION_LENGTHS
    evaluation_sequences: int = Field(default=4096, ge=2, le=10_000_000)

    @property
    def offsets(self) -> tuple[int, ...]:
        """Every target that is asked for."""
        return (self.offset,)

    @property
    def _name(self) -> str:
        return f"{self._kind}-k{self.offset}"

    @property
    def _kind(self) -> str:
        raise NotImplementedError

    def _check(self, encoding: Strict, deepest: int, trained: bool = True) -> None:
        """Raise ValueError where lengths, offsets, heads and positions do not fit. The `deepest` offset need not lie
        within the training lengths of a run that was not `trained`."""
        self.check_sizes(encoding)
        shortest = self.train_lengths[0]
        for name, least in (("training", shortest), ("evaluation", min(self.evaluation_lengths))):
            if deepest >= least and (trained or name == "evaluation"):
                raise ValueError(
                    f"offset K = {deepest} must be below the shortest {name} length {least}: "
                    f"no token stands K back from the last one"
                )


class RunSpec(_ShiftSpec):
    """One training run of the one-layer model, whose query is the last position.

    `temperature` multiplies the logits. With `attention` "linear" they weigh the values as they are, without
    softmax. With a `second_offset` the retrieval is conditioned on content: in the last position stands one of
    two more tokens, the first of which asks for `offset`, the second for `second_offset`. `start` is written into the
    weights before the first step, `penalty` added to the loss; with an `edit` the run was made from its parent.
    """

    model: Literal["head"] = "head"
    encoding: Encoding = Rotary()
    attention: Literal["softmax", "linear"] = "softmax"
    temperature: float = Field(default=1.0, gt=0, le=1e6)
    second_offset: int | None = Field(default=None, ge=0)
    start: Means | None = None
    penalty: MarginPenalty | None = None
    edit: Edit | None = None

    @model_validator(mode="after")
    def _fits(self) -> RunSpec:
        self._check(self.encoding, max(self.offsets), trained=self.edit is None)
        if self.second_offset is not None and 0 in self.offsets:
            raise ValueError("with a second offset the last position holds no content: give offsets of 1 or more")
        self._check_means()
        return self

    def _check_means(self) -> None:
        """Raise ValueError where the run has no one mean profile, or what is said of its means does not fit it."""
        for name in (name for name in _LATER if getattr(self, name) is not None):
            if not isinstance(self.encoding, Rotary):
                raise ValueError(f"{name} needs rotary positions, got {self.encoding.kind}: leave it out")
            if self.second_offset is not None:
                raise ValueError(f"{name} needs one offset, got {list(self.offsets)}: leave the second one out")
        if self.start is not None:
            self.start.check(self.width)
            if self.vocabulary > self.width:
                raise ValueError(f"start shifts {self.vocabulary} tokens alike: give a width of as many lanes or more")
        if self.edit is not None:
            self.edit.means.check(self.width)
        elif self.penalty is not None:
            self.penalty.check(self.offset, self.attention)

    @model_serializer(mode="wrap")
    def _dump(self, dump: Callable[[RunSpec], dict[str, Any]]) -> dict[str, Any]:
        return {name: value for name, value in dump(self).items() if name not in _LATER or value is not None}

    @property
    def offsets(self) -> tuple[int, ...]:
        """The target of every mode; without modes the one target."""
        return (self.offset,) if self.second_offset is None else (self.offset, self.second_offset)

    @property
    def tokens(self) -> int:
        """Rows of the embedding: the vocabulary, and after it the mode tokens where there are any."""
        return self.vocabulary + (0 if self.second_offset is None else 2)

    @property
    def _kind(self) -> str:
        told = {"linear": self.attention == "linear", "start": self.start, "penalty": self.penalty, "edited": self.edit}
        return "-".join([self.encoding.kind, *(name for name, holds in told.items() if holds)])


class TransformerSpec(_ShiftSpec):
    """One training run of the decoder-only transformer on the full-sequence shift out[i] = in[i-K].

    Pre-norm blocks of attention and an MLP of width 4 d with GELU; profiles are averaged over the first
    `profile_sequences` of the evaluated sequences. `precision` is that of the matrix products while training.
    """

    model: Literal["transformer"] = "transformer"
    encoding: Annotated[Rotary | PeriodicRotary | LearnedPositions, Field(discriminator="kind")] = Rotary()
    layers: int = Field(default=2, ge=1, le=100)
    precision: Literal["float32", "bfloat16"] = "float32"
    offset: int = Field(default=3, ge=0)
    width: int = Field(default=192, ge=2, le=8192)
    heads: int = Field(default=4, ge=1)
    steps: int = Field(default=8000, ge=0, le=10_000_000)
    learning_rate: float = Field(default=3e-4, gt=0, le=1e30)
    evaluation_lengths: tuple[int, ...] = (12, 16, 24, 32, 48)
    evaluation_sequences: int = Field(default=512, ge=2, le=10_000_000)
    profile_sequences: int = Field(default=256, ge=2, le=10_000_000)

    @model_validator(mode="after")
    def _fits(self) -> TransformerSpec:
        self._check(self.encoding, self.offset)
        if self.profile_sequences > self.evaluation_sequences:
            raise ValueError(
                f"profile_sequences {self.profile_sequences} exceed the {self.evaluation_sequences} that are evaluated"
            )
        return self

    @property
    def tokens(self) -> int:
        """Rows of the embedding."""
        return self.vocabulary

    @property
    def outputs(self) -> int:
        """Classes of the readout."""
        return self.vocabulary

    @property
    def _kind(self) -> str:
        return f"transformer-{self.encoding.kind}"


def run_spec(**fields: Any) -> RunSpec:
    """A RunSpec from fields. Raises EmpiricsError with one line that names the first bad field."""
    try:
        return RunSpec(**fields)
    except ValidationError as error:
        raise EmpiricsError(first_line(error)) from None


def transformer_spec(**fields: Any) -> TransformerSpec:
    """A TransformerSpec from fields. Raises EmpiricsError with one line that names the first bad field."""
    try:
        return TransformerSpec(**fields)
    except ValidationError as error:
        raise EmpiricsError(first_line(error)) from None


def first_line(error: ValidationError) -> str:
    """What is wrong with the first bad field, in a line."""
    first = error.errors()[0]
    # The tag of the model that a stored spec is of comes first where there is one; a person gave no such field.
    place = ".".join(str(part) for part in first["loc"] if part not in ("head", "transformer", "sequence"))
    message = first["msg"].removeprefix("Value error, ")
    return f"{place}: {message}, got {first['input']!r}" if place else message
