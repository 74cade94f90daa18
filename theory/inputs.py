"""What a number that a person gives must be, said once for all of the theory.

Arrays travel as float64; counts, lags and lengths are whole numbers of any integer type, numpy's too.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float64, Int, Int64

from theory.errors import TheoryError
from theory.schedule import RotarySchedule

Lengths = Sequence[int] | Int[np.ndarray, "length"]
"""Context lengths in tokens, in any order."""


def whole(name: str, value: object, least: int | None = None) -> int:
    """A whole number of any integer type as a Python int. Raises TheoryError for another, or for one below `least`."""
    try:
        number = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        raise TheoryError(f"{name} must be a whole number, got {value!r}: round it yourself") from None
    if least is not None and number < least:
        raise TheoryError(f"{name} must be {least} or more, got {number}")
    return number


def check_target(offset: int, length: int) -> None:
    """Raises TheoryError unless a key `offset` tokens back exists at this length."""
    if whole("the target offset K", offset) < 0:
        raise TheoryError(f"the target offset K counts tokens back and is 0 or more, got {offset}: give {-offset}")
    if offset >= length:
        raise TheoryError(
            f"a key {offset} tokens back needs a length above {offset}, got {length}: "
            "give a longer context or a nearer target"
        )


def check_lengths(offset: int, lengths: Lengths) -> Int64[np.ndarray, "length"]:
    """The lengths as int64. Raises TheoryError unless they are whole numbers, one or more, that hold the target."""
    given = np.asarray(lengths)
    if given.ndim != 1 or given.size == 0:
        raise TheoryError(f"give one length or more, in a flat list, got shape {given.shape}")
    if given.dtype.kind not in "iu":
        raise TheoryError(f"lengths are whole numbers of tokens, got {given.dtype} {given[:4].tolist()}: round them")
    check_target(offset, int(given.min()))
    return given.astype(np.int64)


def check_array(name: str, array: np.ndarray, *shape: int | None) -> None:
    """Raises TheoryError unless `array` is a finite float64 array of this shape; None stands for any size."""
    expected = " x ".join("any" if size is None else str(size) for size in shape)
    if not isinstance(array, np.ndarray) or array.dtype != np.float64:
        got = f"{array.dtype} array" if isinstance(array, np.ndarray) else type(array).__name__
        raise TheoryError(f"{name} must be a float64 array of {expected}, got {got}: use numpy.asarray(..., float)")
    if array.ndim != len(shape) or any(size not in (None, n) for size, n in zip(shape, array.shape, strict=True)):
        raise TheoryError(
            f"{name} must be a float64 array of {expected}, got shape {array.shape}: "
            "hold its counts against the other arrays, and its width against the schedule"
        )
    if not np.isfinite(array).all():
        raise TheoryError(
            f"{name} hold {np.count_nonzero(~np.isfinite(array))} numbers that are not finite: "
            "the weights they come from are damaged, look for the step at which they diverged"
        )


def check_amplitudes(amplitudes: Float64[np.ndarray, "amplitude"], schedule: RotarySchedule) -> None:
    """Raises TheoryError unless there is one finite amplitude r_i of 0 or more for each pair of the schedule."""
    if len(amplitudes) != schedule.pairs or not (np.isfinite(amplitudes).all() and (amplitudes >= 0).all()):
        raise TheoryError(f"give {schedule.pairs} finite amplitudes, 0 or more, one a pair, got {amplitudes}")


def check_sink_beyond(window: int, shortest: int) -> None:
    """Raises TheoryError where the sink key of the shortest length, at its end, would lie inside the window."""
    if shortest <= window:
        raise TheoryError(
            f"at length {shortest} the first token is inside the window of {window} and its key is no sink: "
            f"give lengths above {window}"
        )
