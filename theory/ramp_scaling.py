"""Scalings that keep fast pairs, divide slow ones by the factor s, and ramp between: YaRN and llama3.

With T the trained length in tokens, a pair of frequency theta turns n = T theta/2 pi times in it:

    many turns: theta' = theta,     few turns: theta' = theta/s.

YaRN ramps over the pair index, llama3 over n itself.

Source: arXiv 2309.00071 (YaRN), 2407.21783 (Llama 3); formulas and defaults as transformers 5.24
computes them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import sympy

from theory.errors import TheoryError
from theory.inputs import whole
from theory.scaling import Scaling, check_positive
from theory.schedule import RotarySchedule


@dataclass(frozen=True)
class Yarn(Scaling):
    """Fast pairs kept, slow ones divided by s, a ramp over the pair index between.

        ramp_i = clip((i - low)/(high - low), 0, 1),  low = c(beta_fast),  high = c(beta_slow),
        c(n) = d ln(T / 2 pi n) / (2 ln base),  the pair that turns n times in T.

    `truncate` takes low down and high up to whole pairs; without it the gains are floating-point.
    low is at least 0, high at most d-1 (the width, not the pairs), high = low + .001 where they are
    equal. With f(m) = 1 + m ln(s)/10, and 1 for s <= 1, the attention factor is the one given, else
    f(mscale)/f(mscale_all_dim) where both are given and not 0, else f(1).
    Raises TheoryError for numbers that are not above 0, for a T that is not whole, for beta_fast <
    beta_slow, for a base of 1 or less, and where low > d-1 or high < 0: the ramp would be upside down.
    """

    factor: float
    trained_length: int
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True
    attention_factor: float | None = None
    mscale: float | None = None
    mscale_all_dim: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        whole("original_max_position_embeddings", self.trained_length, 1)
        check_positive(
            factor=self.factor,
            beta_fast=self.beta_fast,
            beta_slow=self.beta_slow,
            attention_factor=self.attention_factor,
            mscale=self.mscale or None,
            mscale_all_dim=self.mscale_all_dim or None,
        )
        if self.beta_fast < self.beta_slow:
            raise TheoryError(
                f"beta_fast {self.beta_fast} is below beta_slow {self.beta_slow}: beta_fast counts the turns of the "
                "pairs that are kept, give the larger number there"
            )

    def _gains(self, plain: RotarySchedule, base: float, length: int | None) -> list[sympy.Expr]:
        low, high = self._range(plain.dim, base)
        width = high - low or sympy.Rational(1, 1000)
        ramp = [_clip((i - low) / width) for i in range(plain.pairs)]
        return [1 - r * (1 - 1 / sympy.Rational(self.factor)) for r in ramp]

    def _range(self, dim: int, base: float) -> tuple[sympy.Expr, sympy.Expr]:
        if base <= 1:
            raise TheoryError(f"YaRN finds its pairs by their wavelength and needs a base above 1, got {base}")
        low, high = (
            dim * math.log(self.trained_length / (2 * math.pi * turns)) / (2 * math.log(base))
            for turns in (self.beta_fast, self.beta_slow)
        )
        if self.truncate:
            low, high = math.floor(low), math.ceil(high)
        first, last = max(low, 0), min(high, dim - 1)
        if first > last:
            raise TheoryError(
                f"YaRN at width {dim}, base {base} and trained length {self.trained_length} ramps from {low:.6g} to "
                f"{high:.6g}, which must meet 0..d-1 = 0..{dim - 1}: give the trained length in tokens and the base of "
                "the model"
            )
        return sympy.sympify(first), sympy.sympify(last)

    def _attention_factor(self) -> float:
        if self.attention_factor is not None:
            return self.attention_factor
        if self.mscale and self.mscale_all_dim:
            return self._magnitude(self.mscale) / self._magnitude(self.mscale_all_dim)
        return self._magnitude(1.0)

    def _magnitude(self, scale: float) -> float:
        return 1.0 if self.factor <= 1 else 1 + 0.1 * scale * math.log(self.factor)


@dataclass(frozen=True)
class Llama3(Scaling):
    """As YaRN, with a ramp over the frequency itself.

        u_i = clip((T theta_i / 2 pi - low) / (high - low), 0, 1),  T theta_i / 2 pi the turns of pair i in T.

    Gains between are floating-point: what they stand for is a sum with a term in theta_i/pi, and exact
    frequencies are monomials.
    Raises TheoryError for numbers that are not above 0, for a T that is not whole, and unless
    low_freq_factor < high_freq_factor.
    """

    factor: float
    trained_length: int
    low_freq_factor: float
    high_freq_factor: float

    def __post_init__(self) -> None:
        super().__post_init__()
        whole("original_max_position_embeddings", self.trained_length, 1)
        check_positive(
            factor=self.factor,
            low_freq_factor=self.low_freq_factor,
            high_freq_factor=self.high_freq_factor,
        )
        if self.low_freq_factor >= self.high_freq_factor:
            raise TheoryError(
                f"low_freq_factor {self.low_freq_factor} is not below high_freq_factor {self.high_freq_factor}: they "
                "count turns in the trained length, pairs below the low one are divided by the factor"
            )

    def _gains(self, plain: RotarySchedule, base: float, length: int | None) -> list[sympy.Expr]:
        s, low, high = (sympy.Rational(x) for x in (self.factor, self.low_freq_factor, self.high_freq_factor))
        turns = self.trained_length * plain.frequencies / (2 * math.pi)
        kept = [_clip((sympy.Float(n) - low) / (high - low)) for n in turns.tolist()]
        return [(1 - u) / s + u for u in kept]


def _clip(number: sympy.Expr) -> sympy.Expr:
    return min(max(number, sympy.S.Zero), sympy.S.One)
