"""Rotary schedules: the angular frequency of every rotary pair.

A rotary encoding turns pair i of a query or key at position t by the angle t theta_i.
Pairs are interleaved: pair i is lanes (2i, 2i+1), and is written as one complex number,
so that Rot(alpha) is multiplication by e^(i alpha). Angles are float64 at every position.

Source: arXiv 2607.18759, section 2; theta_i = base^(-2i/d), i = 0..d/2-1.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import sympy
from jaxtyping import Float64, Int, Shaped

from theory.errors import TheoryError


@dataclass(frozen=True, eq=False)
class RotarySchedule:
    """Angular frequencies theta_i (rad/position) and, where they are known, their exact values.

    `attention_factor` multiplies every rotated lane of queries and of keys (YaRN, LongRoPE), so
    that it enters scores squared. The last `unrotated` pairs are lanes that no position turns
    (partial rotary): their frequency is 0 and the factor passes them by.
    Raises TheoryError where there is no pair, where a frequency or the factor is not finite,
    where an unrotated pair turns, or where the exact values are not those of the
    floating-point ones.
    """

    frequencies: Float64[np.ndarray, "pair"]
    exact: tuple[sympy.Expr, ...] | None = None
    attention_factor: float = 1.0
    unrotated: int = 0

    def __post_init__(self) -> None:
        if self.frequencies.size == 0 or not np.isfinite(self.frequencies).all():
            raise TheoryError(f"a schedule needs one finite frequency or more, got {self.frequencies}")
        if self.exact is not None and not np.allclose(
            self.frequencies, np.array([float(theta) for theta in self.exact]), rtol=1e-14, atol=0
        ):
            raise TheoryError("the exact frequencies are not the floating-point ones: give one list only")
        if not (np.isfinite(self.attention_factor) and self.attention_factor > 0):
            raise TheoryError(f"the attention factor must be a finite number above 0, got {self.attention_factor}")
        if not 0 <= self.unrotated <= self.pairs or self.frequencies[self.pairs - self.unrotated :].any():
            raise TheoryError(
                f"the last {self.unrotated} of {self.pairs} pairs are said to be unrotated: their frequency must be 0"
            )

    @classmethod
    def geometric(cls, dim: int, base: float) -> RotarySchedule:
        """theta_i = base^(-2i/dim) for i = 0..dim/2-1, exact where the base is a whole number below 2^53.

        Raises TheoryError for an odd or empty width and for a base that is not a number above 0.
        """
        _check_width(dim)
        if not 0 < base <= sys.float_info.max:
            raise TheoryError(f"rotary base must be a finite number above 0, got {base}")
        frequencies = float(base) ** (-np.arange(0, dim, 2, dtype=np.float64) / dim)
        if not (float(base).is_integer() and base < 1 << 53):
            return cls(frequencies)
        whole = sympy.Integer(int(base))
        return cls(frequencies, tuple(whole ** sympy.Rational(-2 * i, dim) for i in range(dim // 2)))

    @classmethod
    def from_exact(cls, exact: Sequence[sympy.Expr]) -> RotarySchedule:
        """A schedule from exact frequencies in rad/position, for example 2 pi/5."""
        numbers = tuple(sympy.sympify(theta) for theta in exact)
        return cls(np.array([float(theta) for theta in numbers], dtype=np.float64), numbers)

    @classmethod
    def periodic(cls, turns: Sequence[tuple[int, int]]) -> RotarySchedule:
        """Component-periodic: theta_i = 2 pi a_i/m_i from pairs (a, m), exact; pair i is back after m_i tokens.

        `incommensurability.realigning_period` is the period of all of them together. Raises
        TheoryError for an m below 1. Source: arXiv 2608.11909.
        """
        for a, m in turns:
            if m < 1:
                raise TheoryError(f"a turn a/m needs a period m of 1 token or more, got {a}/{m}")
        return cls.from_exact([2 * sympy.pi * sympy.Rational(a, m) for a, m in turns])

    @classmethod
    def without_rotation(cls, dim: int) -> RotarySchedule:
        """No pair turns: the schedule of a head whose positions enter by a bias (ALiBi, T5) or not at all."""
        _check_width(dim)
        return cls(np.zeros(dim // 2), (sympy.S.Zero,) * (dim // 2), unrotated=dim // 2)

    def padded(self, dim: int) -> RotarySchedule:
        """Partial rotary: this schedule on the first lanes of a head of width `dim`, the others unrotated.

        Raises TheoryError where `dim` is odd or narrower than the rotary width.
        """
        _check_width(dim)
        if dim < self.dim:
            raise TheoryError(f"a rotary width of {self.dim} is more than the head's {dim}: give {dim} or fewer lanes")
        added = dim // 2 - self.pairs
        return replace(
            self,
            frequencies=np.concatenate([self.frequencies, np.zeros(added)]),
            exact=None if self.exact is None else self.exact + (sympy.S.Zero,) * added,
            unrotated=self.unrotated + added,
        )

    def scaled(self, gains: Sequence[sympy.Expr]) -> RotarySchedule:
        """theta_i times gain_i, exact where theta_i is and no gain is a floating-point number.

        Raises TheoryError where there is not one gain a pair.
        """
        if len(gains) != self.pairs:
            raise TheoryError(f"a schedule of {self.pairs} pairs takes {self.pairs} gains, got {len(gains)}")
        exact = None
        if self.exact is not None and not any(gain.has(sympy.Float) for gain in gains):
            exact = tuple(theta * gain for theta, gain in zip(self.exact, gains, strict=True))
        return replace(self, frequencies=self.frequencies * np.array([float(gain) for gain in gains]), exact=exact)

    @property
    def pairs(self) -> int:
        """Number of rotary pairs, d/2."""
        return self.frequencies.size

    @property
    def dim(self) -> int:
        """Rotary width d."""
        return 2 * self.pairs

    @property
    def score_gains(self) -> Float64[np.ndarray, "pair"]:
        """What the attention factor makes of each pair's share of a score: its square, 1 on unrotated pairs."""
        gains = np.full(self.pairs, self.attention_factor**2)
        gains[self.pairs - self.unrotated :] = 1
        return gains

    def rotate(
        self, vectors: Float64[np.ndarray, "*batch dim"], positions: Int[np.ndarray, "*batch"]
    ) -> Float64[np.ndarray, "*batch dim"]:
        """R_t x: every pair of a vector turned by t theta_i, t its position in tokens; no attention factor."""
        turned = as_pairs(vectors) * np.exp(1j * positions[..., None] * self.frequencies)
        return as_lanes(turned)


def as_pairs(vectors: Shaped[np.ndarray, "*batch dim"]) -> Shaped[np.ndarray, "*batch pair"]:
    """Interleaved lanes (2i, 2i+1) as complex numbers."""
    return vectors[..., 0::2] + 1j * vectors[..., 1::2]


def as_lanes(pairs: Shaped[np.ndarray, "*batch pair"]) -> Shaped[np.ndarray, "*batch dim"]:
    """Complex pairs as interleaved lanes: the inverse of `as_pairs`."""
    return np.stack([pairs.real, pairs.imag], axis=-1).reshape(*pairs.shape[:-1], 2 * pairs.shape[-1])


def _check_width(dim: int) -> None:
    if dim < 2 or dim % 2:
        raise TheoryError(f"rotary width must be even and 2 or more, got {dim}")
