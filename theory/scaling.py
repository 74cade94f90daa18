"""Rotary scalings: how a model is run beyond its trained length by changing its schedule and nothing else.

A scaling multiplies every frequency by a gain, and may multiply rotated lanes by an attention factor:

    theta_i' = gain_i theta_i,     theta_i = base^(-2i/d),     i = 0..d/2-1.

s is the factor, T the trained length, L the current one, both in tokens; d is the *rotary* width,
`schedule.padded(head width)` makes partial rotary of the result. Only `Proportional` takes the
width of the head. A floating-point factor is the binary fraction that it is, and gains are exact
but for the roots of Ntk and DynamicNtk where numerator or denominator of s is 2^15 or more.

    Linear         1/s                                            position interpolation (2306.15595)
    Ntk            s^(-2i/(d-2)), the base times s^(d/(d-2))
    DynamicNtk     the same with s L/T - (s-1) for s where L > T, 1 up to T
    LongRope       1/s_i, short or long factors                   (2402.13753)
    Proportional   1/s on the first pairs of a full-width schedule, 0 on the others

`Yarn` and `Llama3` are in ramp_scaling.py, the reader of configurations in rope_parameters.py.

Source: the papers above; formulas and defaults as transformers 5.24 computes them, Ntk ours.
"""

from __future__ import annotations

import math
import sys
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from numbers import Real

import numpy as np
import sympy

from theory.errors import TheoryError
from theory.inputs import whole
from theory.schedule import RotarySchedule

# sympy divides roots by primes up to here; beyond it hunts for factors of powers of hundreds of digits.
_FACTORED_AT_ONCE = 1 << 15


@dataclass(frozen=True)
class Scaling(ABC):
    """What is done to the frequencies of a trained model; its numbers are Python's own and its lists tuples."""

    def __post_init__(self) -> None:
        for field in fields(self):
            object.__setattr__(self, field.name, _own(getattr(self, field.name)))

    def schedule(self, dim: int, base: float, length: int | None = None) -> RotarySchedule:
        """The scaled schedule of rotary width `dim` at a current length in tokens, None for the trained one.

        Stateless: the schedule of a length does not depend on the lengths asked for before. Raises
        TheoryError as `RotarySchedule.geometric`, for a length that is not whole or below 1, and where
        width or base do not fit the scaling.
        """
        if length is not None:
            length = whole("the current length (None for the trained one)", length, 1)
        plain = RotarySchedule.geometric(dim, base)
        return replace(plain.scaled(self._gains(plain, base, length)), attention_factor=self._attention_factor())

    @abstractmethod
    def _gains(self, plain: RotarySchedule, base: float, length: int | None) -> list[sympy.Expr]: ...

    def _attention_factor(self) -> float:
        return 1.0


@dataclass(frozen=True)
class Unscaled(Scaling):
    """Plain rotary positions: every gain is 1."""

    def _gains(self, plain: RotarySchedule, base: float, length: int | None) -> list[sympy.Expr]:
        return [sympy.S.One] * plain.pairs


@dataclass(frozen=True)
class Linear(Scaling):
    """Position interpolation: every frequency divided by s. Raises TheoryError unless s > 0."""

    factor: float

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(factor=self.factor)

    def _gains(self, plain: RotarySchedule, base: float, length: int | None) -> list[sympy.Expr]:
        return [1 / sympy.Rational(self.factor)] * plain.pairs


@dataclass(frozen=True)
class Ntk(Scaling):
    """Static NTK-aware scaling: base s^(d/(d-2)), so that pair 0 is kept and the last is divided by s.

    Raises TheoryError unless s > 0.
    """

    factor: float

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(factor=self.factor)

    def _gains(self, plain: RotarySchedule, base: float, length: int | None) -> list[sympy.Expr]:
        return _ntk_gains(sympy.Rational(self.factor), plain.pairs)


@dataclass(frozen=True)
class DynamicNtk(Scaling):
    """NTK-aware scaling by s L/T - (s-1), which grows from 1 at the trained length: plain up to there.

    Raises TheoryError unless s > 0 and T is whole and 1 or more.
    """

    factor: float
    trained_length: int

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(factor=self.factor)
        whole("original_max_position_embeddings", self.trained_length, 1)

    def _gains(self, plain: RotarySchedule, base: float, length: int | None) -> list[sympy.Expr]:
        beyond = max(length or 0, self.trained_length) - self.trained_length
        return _ntk_gains(1 + sympy.Rational(self.factor) * sympy.Rational(beyond, self.trained_length), plain.pairs)


@dataclass(frozen=True)
class LongRope(Scaling):
    """A factor a pair: the short list up to the trained length, the long one beyond it.

    The attention factor is the one given, else sqrt(1 + ln s / ln T), and 1 for s <= 1: it is that
    of the model, at every length. Raises TheoryError for numbers that are not above 0, for a T that is
    not whole, for lists of two lengths, where both s and the attention factor are missing, where s > 1
    meets T = 1, and by `schedule` where there is not one factor a pair.
    """

    short_factor: Sequence[float]
    long_factor: Sequence[float]
    trained_length: int
    factor: float | None = None
    attention_factor: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(factor=self.factor, attention_factor=self.attention_factor)
        whole("original_max_position_embeddings", self.trained_length, 1)
        for name, factors in (("short_factor", self.short_factor), ("long_factor", self.long_factor)):
            check_positive(**{f"{name}[{i}]": number for i, number in enumerate(factors)})
        if len(self.short_factor) != len(self.long_factor):
            raise TheoryError(
                f"LongRoPE has {len(self.short_factor)} short and {len(self.long_factor)} long factors: give one a pair"
            )
        if self.attention_factor is None and (self.factor is None or self.factor > 1 == self.trained_length):
            raise TheoryError(
                f"LongRoPE with factor {self.factor} and trained length {self.trained_length} has no attention factor: "
                "give attention_factor, or factor, the ratio of extended to trained length"
            )

    def _gains(self, plain: RotarySchedule, base: float, length: int | None) -> list[sympy.Expr]:
        factors = self.long_factor if (length or 0) > self.trained_length else self.short_factor
        if len(factors) != plain.pairs:
            raise TheoryError(
                f"LongRoPE has {len(factors)} factors and the rotary width {plain.dim} has {plain.pairs} pairs: "
                "give one a pair"
            )
        return [1 / sympy.Rational(number) for number in factors]

    def _attention_factor(self) -> float:
        if self.attention_factor is not None:
            return self.attention_factor
        if self.factor is None or self.factor <= 1:
            return 1.0
        return math.sqrt(1 + math.log(self.factor) / math.log(self.trained_length))


@dataclass(frozen=True)
class Proportional(Scaling):
    """The first floor(p d/2) pairs of a schedule over the whole head, divided by s; the others unrotated.

    d is the width of the head: partial rotary divides exponents by its own width, this by the head's.
    Raises TheoryError unless s > 0 and 0 <= p <= 1.
    """

    partial_rotary_factor: float = 1.0
    factor: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(factor=self.factor)
        if not 0 <= self.partial_rotary_factor <= 1:
            raise TheoryError(f"partial_rotary_factor must be between 0 and 1, got {self.partial_rotary_factor}")

    def schedule(self, dim: int, base: float, length: int | None = None) -> RotarySchedule:
        """As `Scaling.schedule`, `dim` the width of the head."""
        scaled = super().schedule(dim, base, length)
        return replace(scaled, unrotated=scaled.pairs - self._turning(dim))

    def _gains(self, plain: RotarySchedule, base: float, length: int | None) -> list[sympy.Expr]:
        turning = self._turning(plain.dim)
        return [1 / sympy.Rational(self.factor)] * turning + [sympy.S.Zero] * (plain.pairs - turning)

    def _turning(self, dim: int) -> int:
        return int(self.partial_rotary_factor * dim // 2)


def check_positive(**numbers: float | None) -> None:
    """Raises TheoryError by the first name whose number is given and not finite and above 0."""
    for name, number in numbers.items():
        if number is not None and not (isinstance(number, Real) and 0 < number <= sys.float_info.max):
            raise TheoryError(f"{name} must be a finite number above 0, got {number!r}")


def _own(value: object) -> object:
    # A narrow float of numpy's would round all that it meets, and a list has no hash.
    if isinstance(value, list | tuple | np.ndarray):
        return tuple(_own(item) for item in value)
    return value.item() if isinstance(value, np.generic) else value


def _ntk_gains(factor: sympy.Rational, pairs: int) -> list[sympy.Expr]:
    root = factor if max(factor.p, factor.q) < _FACTORED_AT_ONCE else sympy.Float(factor)
    # Width 2 has pair 0 alone, whose gain is 1 whatever the exponent's denominator.
    return [root ** sympy.Rational(-i, max(pairs - 1, 1)) for i in range(pairs)]
