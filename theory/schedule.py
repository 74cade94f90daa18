"""Rotary schedules: the angular frequency of every rotary pair.

A rotary encoding turns pair i of a query or key at position t by the angle t theta_i.
Pairs are interleaved: pair i is lanes (2i, 2i+1), and is written as one complex number,
so that Rot(alpha) is multiplication by e^(i alpha). Angles are float64 at every position.

Source: arXiv 2607.18759, section 2; theta_i = base^(-2i/d), i = 0..d/2-1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import sympy
from jaxtyping import Float64, Int, Shaped

from theory.errors import TheoryError


@dataclass(frozen=True, eq=False)
class RotarySchedule:
    """Angular frequencies theta_i (rad/position) and, where they are known, their exact values.

    Raises TheoryError where there is no pair, where a frequency is not finite, or where the
    exact values are not those of the floating-point ones.
    """

    frequencies: Float64[np.ndarray, "pair"]
    exact: tuple[sympy.Expr, ...] | None = None

    def __post_init__(self) -> None:
        if self.frequencies.size == 0 or not np.isfinite(self.frequencies).all():
            raise TheoryError(f"a schedule needs one finite frequency or more, got {self.frequencies}")
        if self.exact is not None and not np.allclose(
            self.frequencies, np.array([float(theta) for theta in self.exact]), rtol=1e-14, atol=0
        ):
            raise TheoryError("the exact frequencies are not the floating-point ones: give one list only")

    @classmethod
    def geometric(cls, dim: int, base: float) -> RotarySchedule:
        """theta_i = base^(-2i/dim) for i = 0..dim/2-1, exact where the base is a whole number.

        Raises TheoryError for an odd or empty width and for a base that is not a number above 0.
        """
        if dim < 2 or dim % 2:
            raise TheoryError(f"rotary width must be even and 2 or more, got {dim}")
        if not (np.isfinite(base) and base > 0):
            raise TheoryError(f"rotary base must be a finite number above 0, got {base}")
        frequencies = float(base) ** (-np.arange(0, dim, 2, dtype=np.float64) / dim)
        if not float(base).is_integer():
            return cls(frequencies)
        whole = sympy.Integer(int(base))
        return cls(frequencies, tuple(whole ** sympy.Rational(-2 * i, dim) for i in range(dim // 2)))

    @classmethod
    def from_exact(cls, exact: Sequence[sympy.Expr]) -> RotarySchedule:
        """A schedule from exact frequencies in rad/position, for example 2 pi/5."""
        numbers = tuple(sympy.sympify(theta) for theta in exact)
        return cls(np.array([float(theta) for theta in numbers], dtype=np.float64), numbers)

    @property
    def pairs(self) -> int:
        """Number of rotary pairs, d/2."""
        return self.frequencies.size

    @property
    def dim(self) -> int:
        """Rotary width d."""
        return 2 * self.pairs

    def rotate(
        self, vectors: Float64[np.ndarray, "*batch dim"], positions: Int[np.ndarray, "*batch"]
    ) -> Float64[np.ndarray, "*batch dim"]:
        """R_t x: every pair of a vector turned by t theta_i, t its position in tokens."""
        turned = as_pairs(vectors) * np.exp(1j * positions[..., None] * self.frequencies)
        return as_lanes(turned)


def as_pairs(vectors: Shaped[np.ndarray, "*batch dim"]) -> Shaped[np.ndarray, "*batch pair"]:
    """Interleaved lanes (2i, 2i+1) as complex numbers."""
    return vectors[..., 0::2] + 1j * vectors[..., 1::2]


def as_lanes(pairs: Shaped[np.ndarray, "*batch pair"]) -> Shaped[np.ndarray, "*batch dim"]:
    """Complex pairs as interleaved lanes: the inverse of `as_pairs`."""
    return np.stack([pairs.real, pairs.imag], axis=-1).reshape(*pairs.shape[:-1], 2 * pairs.shape[-1])
