"""Predicted and observed on one axis, and a verdict by a rule that was fixed before the run.

A prediction agrees where every observation lies within `LIMIT` standard errors of it. The
standard error is the sampling error of the observation; nothing is fitted afterwards. Where an
assumption of the law does not hold for these weights, the verdict is "out of regime" and says
which, whatever the numbers do.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from jaxtyping import Float64

from bridge.errors import BridgeError

LIMIT = 3.5

# Attention is observed in float32: a head that is sure has no sampling error, but it is rounded.
_ROUNDING = 2.0**-23


class Verdict(StrEnum):
    """What a comparison comes to."""

    AGREES = "agrees"
    DEVIATES = "deviates"
    OUT_OF_REGIME = "out of regime"
    NOT_RUN = "not run"


@dataclass(frozen=True, eq=False)
class Comparison:
    """A law against observations at the same lengths; `unmet` names assumptions that do not hold."""

    law: str
    lengths: tuple[int, ...]
    predicted: Float64[np.ndarray, "length"]
    observed: Float64[np.ndarray, "length"]
    standard_error: Float64[np.ndarray, "length"]
    unmet: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        sizes = {len(self.lengths), len(self.predicted), len(self.observed), len(self.standard_error)}
        if len(sizes) != 1:
            raise BridgeError(f"lengths, predicted, observed and standard error differ in size: {sorted(sizes)}")

    @property
    def errors(self) -> Float64[np.ndarray, "length"]:
        """Predicted minus observed."""
        return self.predicted - self.observed

    @property
    def deviations(self) -> Float64[np.ndarray, "length"]:
        """Errors in standard errors of the observation, or of its rounding where that is larger."""
        return self.errors / np.maximum(self.standard_error, _ROUNDING)

    @property
    def verdict(self) -> Verdict:
        if self.unmet:
            return Verdict.OUT_OF_REGIME
        return Verdict.AGREES if (np.abs(self.deviations) <= LIMIT).all() else Verdict.DEVIATES


@dataclass(frozen=True)
class Measured:
    """A number of ours: its mean over runs, the standard deviation over them (None for one run),
    and the standard error that its comparison with a printed number grants it."""

    value: float
    spread: float | None
    standard_error: float


def over_seeds(values: Sequence[float], sampling_error: float = 0.0) -> Measured:
    """Mean and spread of one number over seeds; for a single seed the sampling error stands in."""
    if len(values) == 1:
        return Measured(float(values[0]), None, sampling_error)
    spread = float(np.std(values, ddof=1))
    return Measured(float(np.mean(values)), spread, spread / np.sqrt(len(values)))


def same_digits(ours: float, printed: float, decimals: int) -> bool:
    """Whether a number rounds to the printed digits."""
    return f"{ours:.{decimals}f}" == f"{printed:.{decimals}f}"


def tolerance(measured: Measured, decimals: int) -> float:
    """How far a printed number may lie from ours: a unit of its last digit and, over seeds, two errors of our mean.

    For a single seed it is that unit, and at least .01 where the number has one or two decimals; a number without
    decimals, such as an offset, has to round to the same.
    """
    unit = 10.0**-decimals
    if decimals == 0:
        return 0.5
    if measured.spread is None:
        return max(unit, 0.01) if decimals <= 2 else unit
    return unit + 2 * measured.standard_error


def against_printed(measured: Measured, printed: float, decimals: int) -> Verdict:
    """Agrees within `tolerance`, which was fixed before the runs."""
    agrees = abs(measured.value - printed) <= tolerance(measured, decimals) * (1 + 1e-9)
    return Verdict.AGREES if agrees else Verdict.DEVIATES
