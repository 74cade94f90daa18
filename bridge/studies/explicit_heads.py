"""One explicit head in one arithmetic: the length at which it is predicted to break, and at which torch breaks it.

`theory.rounded_heads` rounds each operation once; torch may round one more often (a sum of products in float32) or a
little off (a cosine by a unit in the last place). Where the two lengths differ, torch's operations are replaced by
float64 and one rounding, first each alone and then all: the operation that brings the predicted length is named.

Source: ours; heads and horizon are those of arXiv 2608.11909.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float64

from empirics.explicit_heads import Arithmetic, ExplicitHead, Operation, attention
from theory.horizon import BF16, FP16, FP32, FloatFormat
from theory.rounded_heads import RoundedHead, Rounding
from theory.rounding import largest_number
from theory.schedule import RotarySchedule

FORMATS = (FP16, BF16, FP32)
_DTYPES = {FP16: torch.float16, BF16: torch.bfloat16, FP32: torch.float32}
_FIRST_LENGTHS = 64
UNEXPLAINED = "not explained"


@dataclass(frozen=True, eq=False)
class HeadCase:
    """A head to be run in several arithmetics; `period` as in `RoundedHead`: what it is to choose."""

    name: str
    schedule: RotarySchedule
    amplitudes: Float64[np.ndarray, "pair"]
    offset: int = 1
    period: int | None = None
    sink: float | None = None

    def rounded(self, precision: FloatFormat, rounding: Rounding) -> RoundedHead:
        """As the theory takes it."""
        return RoundedHead(self.amplitudes, self.schedule, self.offset, precision, rounding, self.period, self.sink)

    @property
    def explicit(self) -> ExplicitHead:
        """As torch runs it."""
        frequencies, amplitudes = (tuple(array.tolist()) for array in (self.schedule.frequencies, self.amplitudes))
        return ExplicitHead(frequencies, amplitudes, self.offset, self.sink)


@dataclass(frozen=True, eq=False)
class Outcome:
    """The first length with a leak, predicted and torch's, None up to the `reach`.

    `slack` is that of the prediction, in nats. `operation` names what makes the two differ, empty where they are equal.
    """

    case: HeadCase
    precision: FloatFormat
    rounding: Rounding
    reach: int
    predicted: int | None
    measured: int | None
    slack: float
    operation: str

    @property
    def equal(self) -> bool:
        return self.predicted == self.measured

    @property
    def explained(self) -> bool:
        """Equal, or different by an operation with a name."""
        return self.operation != UNEXPLAINED


def overflows(case: HeadCase, precision: FloatFormat, rounding: Rounding) -> bool:
    """Whether scores of this head are beyond the format that holds them."""
    return rounding is not Rounding.WEIGHTS and float(case.amplitudes.sum()) > largest_number(precision)


def compare(case: HeadCase, precision: FloatFormat, rounding: Rounding, reach: int) -> Outcome:
    """Prediction and torch up to so many tokens. Raises TheoryError as `RoundedHead.first_leak`."""
    leak = case.rounded(precision, rounding).first_leak(reach)
    measured = measured_leak(case, precision, rounding, reach)
    operation = ""
    if measured != leak.length:
        tried: list[tuple[Operation, ...]] = [*((one,) for one in Operation), tuple(Operation)]
        brought = (one for one in tried if measured_leak(case, precision, rounding, reach, one) == leak.length)
        found = next(brought, ())
        operation = "several of torch's operations together" if len(found) > 1 else next(iter(found), UNEXPLAINED)
    return Outcome(case, precision, rounding, reach, leak.length, measured, leak.slack, operation)


def measured_leak(
    case: HeadCase, precision: FloatFormat, rounding: Rounding, reach: int, replaced: Collection[Operation] = ()
) -> int | None:
    """The first length up to the reach at which torch gives weight, or no number, to a key that is not chosen."""
    head = case.rounded(precision, rounding)
    length = min(reach, _FIRST_LENGTHS)
    while True:
        weights = attention(case.explicit, torch.arange(length), _DTYPES[precision], Arithmetic(rounding), replaced)
        for seen, row in enumerate(weights.double().numpy()[head.shortest - 1 :], start=head.shortest):
            chosen = head.chosen(seen)
            if (row[: chosen.size][~chosen] != 0).any():
                return seen
        if length == reach:
            return None
        length = min(reach, 3 * length)


def leaks_at(case: HeadCase, precision: FloatFormat, rounding: Rounding, length: int) -> bool:
    """The same of one length alone, which may be long."""
    query = torch.tensor([length - 1])
    weights = attention(case.explicit, query, _DTYPES[precision], Arithmetic(rounding))[0]
    return bool((weights.double().numpy()[~case.rounded(precision, rounding).chosen(length)] != 0).any())
