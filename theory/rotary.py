"""Rotary positions of a head: a base, a scaling, and the lanes that turn.

    theta_i = gain_i base^(-2i/r),  i = 0..r/2-1,     the last d - r lanes of a head of width d unrotated

A scaling may depend on the current length (dynamic NTK, LongRoPE), so a head has a schedule at a
length and not one for good. Only `Proportional` takes the width of the head for r.

Source: `theory.scaling` for the scalings; partial rotary as GPT-J and GPT-NeoX have it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from theory.errors import TheoryError
from theory.scaling import Proportional, Scaling, Unscaled
from theory.schedule import RotarySchedule

PLAIN = Unscaled()
"""No scaling."""


@dataclass(frozen=True)
class Rotary:
    """`width` of the `head_width` lanes turn, at frequencies of a base and a scaling.

    Raises TheoryError where a width is odd, below 2, or the rotary one above the head's, and for a base that the
    schedule refuses.
    """

    base: float
    head_width: int
    width: int
    scaling: Scaling = PLAIN

    def __post_init__(self) -> None:
        for name, lanes in (("rotary", self.width), ("head", self.head_width)):
            if lanes < 2 or lanes % 2:
                raise TheoryError(f"{name} width {lanes} is odd or below 2: rotary pairs take two lanes each")
        self.schedule()

    def schedule(self, length: int | None = None) -> RotarySchedule:
        """The schedule at a current length in tokens, None for the trained one. Raises TheoryError as the scaling."""
        return _schedule(self, length)


# Exact frequencies take sympy a tenth of a second, and every head of a layer asks for the same ones.
@lru_cache(maxsize=64)
def _schedule(rotary: Rotary, length: int | None) -> RotarySchedule:
    width = rotary.head_width if isinstance(rotary.scaling, Proportional) else rotary.width
    return rotary.scaling.schedule(width, rotary.base, length).padded(rotary.head_width)
