"""The positional encodings, as a spec says them. Their arithmetic is `empirics.encodings`.

Sources: arXiv 2607.18759, section 5 and appendix E; those named in the classes.
"""

from __future__ import annotations

from itertools import cycle, islice
from typing import Annotated, Literal

from pydantic import Field, model_validator

from empirics.means import Strict

EVALUATION_LENGTHS = (12, 16, 20, 24, 32, 40, 48)
_MOST_ROWS = 1_000_001


class Rotary(Strict):
    """Rotary positions: pair i turns by base^(-2i/width) rad a token, with the width of a head."""

    kind: Literal["rope"] = "rope"
    base: float = Field(default=10_000.0, ge=1)


class PeriodicRotary(Strict):
    """Component-periodic rotary positions: pair i of a head turns by 2 pi a_i/m_i rad a token (arXiv 2608.11909).

    `moduli` are the m, dealt over the pairs in turn, `numerators` the a in the same order; without them they are 1.
    A numerator that m divides turns nothing.
    """

    kind: Literal["periodic"] = "periodic"
    moduli: tuple[Annotated[int, Field(ge=2, le=_MOST_ROWS)], ...] = Field(default=(2,), min_length=1)
    numerators: tuple[Annotated[int, Field(ge=0, le=_MOST_ROWS)], ...] | None = None

    @model_validator(mode="after")
    def _one_each(self) -> PeriodicRotary:
        if self.numerators is not None and len(self.numerators) != len(self.moduli):
            raise ValueError(
                f"{len(self.numerators)} numerators do not fit {len(self.moduli)} moduli: give one each, or none"
            )
        return self

    def turns(self, pairs: int) -> tuple[tuple[int, int], ...]:
        """(a, m) of each of so many pairs."""
        numerators = self.numerators or (1,) * len(self.moduli)
        return tuple(islice(cycle(zip(numerators, self.moduli, strict=True)), pairs))


class LearnedPositions(Strict):
    """One learned vector a position, added to the token embedding; `rows` of them.

    `decay` is a coupled L2 penalty, added to the gradient before Adam scales it, on this table alone.
    """

    kind: Literal["ape"] = "ape"
    rows: int = Field(default=max(EVALUATION_LENGTHS) + 1, ge=1, le=_MOST_ROWS)
    decay: float = Field(default=0.0, ge=0)


class RandomizedPositions(Strict):
    """Learned vectors of which a batch of length L takes L random rows in rising order (Ruoss et al., 2023)."""

    kind: Literal["randomized"] = "randomized"
    rows: int = Field(default=max(EVALUATION_LENGTHS) + 1, ge=1, le=_MOST_ROWS)


class Sinusoidal(Strict):
    """Fixed vectors of sines and cosines, added to the token embedding (Vaswani et al., 2017)."""

    kind: Literal["sinusoidal"] = "sinusoidal"
    base: float = Field(default=10_000.0, ge=1)


class LinearBias(Strict):
    """ALiBi: the logit of a key falls by `slope` nats a token (Press et al., 2022)."""

    kind: Literal["alibi"] = "alibi"
    slope: float = Field(default=0.5, ge=0, le=1e6)


class BucketBias(Strict):
    """T5's kind of bias: one learned scalar a distance, begun at 0; distances from `buckets` - 1 on share the last."""

    kind: Literal["t5"] = "t5"
    buckets: int = Field(default=32, ge=1, le=_MOST_ROWS)


class NoPositions(Strict):
    """No positions at all: the logit knows the two tokens and nothing else."""

    kind: Literal["none"] = "none"


Encoding = Annotated[
    Rotary
    | PeriodicRotary
    | LearnedPositions
    | RandomizedPositions
    | Sinusoidal
    | LinearBias
    | BucketBias
    | NoPositions,
    Field(discriminator="kind"),
]
