"""What a number that a person gives must be, said once for all of the theory.

Arrays travel as float64; counts, lags and lengths are whole numbers of any integer type, numpy's too.
"""

from __future__ import annotations

import operator

import numpy as np
from jaxtyping import Float64

from theory.errors import TheoryError
from theory.schedule import RotarySchedule


def whole(name: str, value: object, least: int | None = None) -> int:
    """A whole number of any integer type as a Python int. Raises TheoryError for another, or for one below `least`."""
    try:
        number = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        raise TheoryError(f"{name} must be a whole number, got {value!r}: round it yourself") from None
    if least is not None and number < least:
        raise TheoryError(f"{name} must be {least} or more, got {number}")
    return number


def check_amplitudes(amplitudes: Float64[np.ndarray, "amplitude"], schedule: RotarySchedule) -> None:
    """Raises TheoryError unless there is one finite amplitude r_i of 0 or more for each pair of the schedule."""
    if len(amplitudes) != schedule.pairs or not (np.isfinite(amplitudes).all() and (amplitudes >= 0).all()):
        raise TheoryError(f"give {schedule.pairs} finite amplitudes, 0 or more, one a pair, got {amplitudes}")
