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
    Raises TheoryError where the frequencies are not a flat array of one or more, where one or the
    factor is not finite, where an unrotated pair turns, and unless there is one exact value a
    pair, of the floating-point one.
    """

    frequencies: Float64[np.ndarray, "pair"]
    exact: tuple[sympy.Expr, ...] | None = None
    attention_factor: float = 1.0
    unrotated: int = 0

    def __post_init__(self) -> None:
        if self.frequencies.ndim != 1 or self.frequencies.size == 0 or not np.isfinite(self.frequencies).all():
            raise TheoryError(
                f"a schedule needs a flat array of one finite frequency or more, got {self.frequencies} of shape "
                f"{self.frequencies.shape}: give the rad/position of each pair"
            )
        if self.exact is not None:
            numbers = _numbers("exact frequencies", self.exact)[1]
            if len(numbers) != self.pairs or not np.allclose(self.frequencies, numbers, rtol=1e-14, atol=0):
                raise TheoryError(
                    f"{len(numbers)} exact frequencies {numbers} are not the {self.pairs} floating-point ones "
                    f"{self.frequencies}: give one of each a pair, or make both by RotarySchedule.from_exact"
                )
        if not (np.isfinite(self.attention_factor) and self.attention_factor > 0):
            raise TheoryError(f"the attention factor must be a finite number above 0, got {self.attention_factor}")
        # A narrow float of numpy's would round every score.
        object.__setattr__(self, "attention_factor", float(self.attention_factor))
        if not 0 <= self.unrotated <= self.pairs or self.frequencies[self.pairs - self.unrotated :].any():
            raise TheoryError(
                f"the last {self.unrotated} of {self.pairs} pairs are said to be unrotated: their frequency must be 0"
            )

    @classmethod
    def geometric(cls, dim: int, base: float) -> RotarySchedule:
        """theta_i = base^(-2i/dim) for i = 0..dim/2-1, exact where the base is a whole number below 2^53.

        Raises TheoryError for an odd or empty width and for a base that is not a number above 0.
        """
        dim = _width("rotary width", dim)
        if not 0 < base <= sys.float_info.max:
            raise TheoryError(f"rotary base must be a finite number above 0, got {base}: give the model's own")
        frequencies = float(base) ** (-np.arange(0, dim, 2, dtype=np.float64) / dim)
        if not (float(base).is_integer() and base < 1 << 53):
            return cls(frequencies)
        whole = sympy.Integer(int(base))
        return cls(frequencies, tuple(whole ** sympy.Rational(-2 * i, dim) for i in range(dim // 2)))

    @classmethod
    def from_exact(cls, exact: Sequence[sympy.Expr]) -> RotarySchedule:
        """A schedule from exact frequencies in rad/position, for example 2 pi/5.

        Raises TheoryError for anything but real numbers, sympy's or Python's.
        """
        numbers, frequencies = _numbers("exact frequencies", exact)
        return cls(frequencies, numbers)

    @classmethod
    def periodic(cls, turns: Sequence[tuple[int, int]]) -> RotarySchedule:
        """Component-periodic: theta_i = 2 pi a_i/m_i from pairs (a, m), exact; pair i is back after m_i tokens.

        `incommensurability.realigning_period` is the period of all of them together. Raises
        TheoryError unless a and m are whole and m is 1 or more. Source: arXiv 2608.11909.
        """
        for a, m in turns:
            if not (isinstance(a, int | np.integer) and isinstance(m, int | np.integer) and m >= 1):
                raise TheoryError(f"a turn a/m needs a whole a and a period m of 1 token or more, got {a}/{m}")
        return cls.from_exact([2 * sympy.pi * sympy.Rational(int(a), int(m)) for a, m in turns])

    @classmethod
    def without_rotation(cls, dim: int) -> RotarySchedule:
        """No pair turns: the schedule of a head whose positions enter by a bias (ALiBi, T5) or not at all."""
        pairs = _width("head width", dim) // 2
        return cls(np.zeros(pairs), (sympy.S.Zero,) * pairs, unrotated=pairs)

    def padded(self, dim: int) -> RotarySchedule:
        """Partial rotary: this schedule on the first lanes of a head of width `dim`, the others unrotated.

        Raises TheoryError where `dim` is odd or narrower than the rotary width.
        """
        dim = _width("head width", dim)
        if dim < self.dim:
            raise TheoryError(
                f"a schedule of width {self.dim} does not fit a head of width {dim}: the rotary width must be the "
                f"head's or less, make the schedule for {dim} lanes or fewer"
            )
        added = dim // 2 - self.pairs
        return replace(
            self,
            frequencies=np.concatenate([self.frequencies, np.zeros(added)]),
            exact=None if self.exact is None else self.exact + (sympy.S.Zero,) * added,
            unrotated=self.unrotated + added,
        )

    def scaled(self, gains: Sequence[sympy.Expr]) -> RotarySchedule:
        """theta_i times gain_i, exact where theta_i is and no gain is a floating-point number.

        Raises TheoryError for anything but one real number a pair.
        """
        exact_gains, numbers = _numbers("gains", gains)
        if len(numbers) != self.pairs:
            raise TheoryError(
                f"a schedule of {self.pairs} pairs takes {self.pairs} gains, got {len(numbers)}: give one a pair"
            )
        exact = None
        if self.exact is not None and not any(gain.has(sympy.Float) for gain in exact_gains):
            exact = tuple(theta * gain for theta, gain in zip(self.exact, exact_gains, strict=True))
        return replace(self, frequencies=self.frequencies * numbers, exact=exact)

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


def _width(name: str, dim: int) -> int:
    if not isinstance(dim, int | np.integer) or dim < 2 or dim % 2:
        raise TheoryError(f"{name} must be even and 2 or more, got {dim}: give a whole number of lanes, two a pair")
    return int(dim)


def _numbers(name: str, given: Sequence[sympy.Expr]) -> tuple[tuple[sympy.Expr, ...], Float64[np.ndarray, "number"]]:
    """Real numbers as sympy's own and in float64."""
    try:
        exact = tuple(sympy.sympify(number, strict=True) for number in given)
        return exact, np.array([float(number) for number in exact], dtype=np.float64)
    except (TypeError, ValueError):  # SympifyError is one of the second
        raise TheoryError(
            f"{name} must be real numbers, sympy's or Python's, such as 2*sympy.pi/5, got {given}"
        ) from None
