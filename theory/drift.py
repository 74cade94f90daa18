"""Rows that the loss never touches: what weight decay leaves of them.

With zero gradient every coordinate p of a row moves by a deterministic map, the optimizer's own
recurrence at learning rate eta and decay lambda. Rows start as p ~ N(0, sigma^2)^d.

    SGD (no momentum), AdamW:   p <- (1 - eta lambda) p
    Adam with coupled L2:       g = lambda p,  m <- b1 m + (1 - b1) g,  v <- b2 v + (1 - b2) g^2,
                                p <- p - eta (m / (1 - b1^t)) / (sqrt(v / (1 - b2^t)) + eps)

The first shrinks a row by a factor, so its norm is a scaled chi variable. In the second lambda
cancels while lambda |p| >> eps: a coordinate walks to 0 by about eta a step whatever lambda is.

Source: arXiv 2607.18759, Proposition 2, whose stated map is the first and whose printed norm of
0.20 is the second; the laws of the norm are ours.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import flint
import numpy as np
from jaxtyping import Float64
from scipy import special

from theory.errors import TheoryError
from theory.inputs import whole

# Nodes of the start above 0, and how many standard deviations they reach: a normal has 2e-23 of its mass beyond.
_NODES, _REACH = 4096, 10.0
# E sqrt(S) is integrated over t = log(u E S). The integrand falls as e^(-|t|/2) and is analytic for |Im t| < pi/2:
# cutting at 75 loses 1e-16 of sqrt(E S), the step 1/4 less than e^(-pi^2 / step) = 1e-17 of it.
_LOG_STEP, _LOG_REACH = 0.25, 75.0
# The widest row: its spread, about 1/sqrt 2, is the small difference of squares of the order of the width.
_WIDEST = 10**9


@dataclass(frozen=True)
class NormLaw:
    """Mean and standard deviation of a row's norm; `quadrature_error` is the move of both when the grid is halved."""

    mean: float
    spread: float
    quadrature_error: float = 0.0

    def scatter(self, rows: int) -> float:
        """Standard deviation of the mean over independent rows, spread / sqrt(rows). Raises TheoryError below 1."""
        return self.spread / math.sqrt(whole("rows", rows, 1))


@dataclass(frozen=True)
class Decay:
    """SGD without momentum, or AdamW, at rates per step.

    Raises TheoryError where a rate is below 0 or no number.
    """

    learning_rate: float
    weight_decay: float

    def __post_init__(self) -> None:
        _check_rates(self.learning_rate, self.weight_decay)

    def after(
        self, start: Float64[np.ndarray, "*row coordinate"], steps: int
    ) -> Float64[np.ndarray, "*row coordinate"]:
        """(1 - eta lambda)^n p for every coordinate p.

        Raises TheoryError for steps that are no whole number of 0 or more, and where rows grow beyond float64.
        """
        try:
            with np.errstate(over="raise"):
                return start * (1 - self.learning_rate * self.weight_decay) ** whole("steps", steps, 0)
        except (OverflowError, FloatingPointError):
            raise _beyond_float64(steps) from None

    def row_norm(self, width: int, steps: int, deviation: float = 1.0) -> NormLaw:
        """The norm of a row of `width` coordinates N(0, deviation^2) after n steps, exact:

            mean = sigma |1 - eta lambda|^n sqrt 2 Gamma((d+1)/2) / Gamma(d/2),
            spread^2 = sigma^2 (1 - eta lambda)^(2n) d - mean^2.

        Raises TheoryError for a width outside 1..1e9, a deviation that is not above 0, and as `after`.
        """
        width = _width(width)
        shrunk = float(np.abs(self.after(np.full(1, _deviation(deviation)), steps))[0])
        # d - mean^2 tends to 1/2: 128 bits keep the spread exact to rounding up to widths of 1e9.
        with flint.ctx.workprec(128):
            half = flint.arb(width) / 2
            mean = flint.arb(2).sqrt() * ((half + flint.arb(0.5)).lgamma() - half.lgamma()).exp()
            law = NormLaw(shrunk * float(mean), shrunk * float((2 * half - mean**2).sqrt()))
        if not math.isfinite(law.mean):
            raise _beyond_float64(steps)
        return law


@dataclass(frozen=True)
class CoupledAdam:
    """Adam whose weight decay is added to the gradient, as torch.optim.Adam(weight_decay=lambda) does.

    Raises TheoryError where eta or lambda is below 0 or no number, where the betas are not two
    numbers in [0, 1) or where epsilon is not above 0.
    """

    learning_rate: float
    weight_decay: float
    betas: tuple[float, float] = (0.9, 0.999)
    epsilon: float = 1e-8

    def __post_init__(self) -> None:
        _check_rates(self.learning_rate, self.weight_decay)
        if len(self.betas) != 2 or not all(0 <= beta < 1 for beta in self.betas):
            raise TheoryError(f"the betas of Adam are two numbers from 0 to below 1, got {self.betas}")
        if not (math.isfinite(self.epsilon) and self.epsilon > 0):
            raise TheoryError(f"epsilon must be a finite number above 0, got {self.epsilon}: Adam's default is 1e-8")

    def after(
        self, start: Float64[np.ndarray, "*row coordinate"], steps: int
    ) -> Float64[np.ndarray, "*row coordinate"]:
        """The n-th iterate of the recurrence from every coordinate of `start`, moments 0 at first.

        The map is odd in p and does not mix coordinates. Raises TheoryError as `Decay.after`, and where a
        squared gradient is beyond float64.
        """
        first, second = self.betas
        p, m, v = start.copy(), np.zeros_like(start), np.zeros_like(start)
        try:
            with np.errstate(over="raise", invalid="raise"):
                for step in range(1, whole("steps", steps, 0) + 1):
                    gradient = self.weight_decay * p
                    m = first * m + (1 - first) * gradient
                    v = second * v + (1 - second) * gradient**2
                    corrected = np.sqrt(v / (1 - second**step)) + self.epsilon
                    p = p - self.learning_rate / (1 - first**step) * m / corrected
        except FloatingPointError:
            raise _beyond_float64(steps) from None
        return p

    def row_norm(self, width: int, steps: int, deviation: float = 1.0) -> NormLaw:
        """The norm of a row of `width` coordinates N(0, deviation^2) after n steps, without any training.

        With x = p_n(p_0) and S the sum of d independent x^2 (Laplace formula of the square root),

            E sqrt S = 1/(2 sqrt pi) int_0^inf (1 - E[e^(-u x^2)]^d) u^(-3/2) du,   E S = d E[x^2],

        the expectations over p_0 by the trapezoidal rule on a grid of starts. Where the iterates
        jump to and fro about 0 (|p| below some eps/lambda), no grid resolves the map and
        `quadrature_error` says how much that matters. Raises TheoryError as `Decay.row_norm`.
        """
        sigma, d = _deviation(deviation), _width(width)
        starts = _REACH / _NODES * np.arange(1, _NODES + 1)
        ends = self.after(sigma * starts, steps)
        # In units of the largest no square leaves float64.
        unit = float(np.abs(ends).max()) or 1.0
        squares = np.square(ends / unit)
        # The node at start 0 stays at 0 and adds nothing; the others stand for both signs.
        weights = 2 * _REACH / _NODES * np.exp(-(starts**2) / 2) / math.sqrt(2 * math.pi)
        fine = _norm_of_squares(squares, weights, d)
        coarse = _norm_of_squares(squares[1::2], 2 * weights[1::2], d)
        mean, spread = (unit * number for number in fine)
        return NormLaw(mean, spread, unit * max(abs(a - b) for a, b in zip(fine, coarse, strict=True)))


def _norm_of_squares(
    squares: Float64[np.ndarray, "node"], weights: Float64[np.ndarray, "node"], width: int
) -> tuple[float, float]:
    """Mean and standard deviation of sqrt(S), S the sum of `width` draws of `squares`, 0 where no node is drawn."""
    total = width * float(weights @ squares)
    if total == 0:
        return 0.0, 0.0
    u = np.exp(np.arange(-_LOG_REACH, _LOG_REACH, _LOG_STEP)) / total
    # 1 - (1 - q)^d with q = 1 - E[e^(-u x^2)], written so that a small q keeps its digits.
    # The node at 0, left out, keeps the sum of the weights, and q with it, below 1.
    q = -np.expm1(-np.multiply.outer(u, squares)) @ weights
    mean = _LOG_STEP / (2 * math.sqrt(math.pi)) * float(-np.expm1(special.xlog1py(width, -q)) @ u**-0.5)
    return mean, math.sqrt(max(0.0, total - mean**2))


def _check_rates(learning_rate: float, weight_decay: float) -> None:
    for name, rate in (("learning rate", learning_rate), ("weight decay", weight_decay)):
        if not (math.isfinite(rate) and rate >= 0):
            raise TheoryError(f"the {name} must be a finite number, 0 or more, got {rate}")


def _deviation(deviation: float) -> float:
    if not (math.isfinite(deviation) and deviation > 0):
        raise TheoryError(f"rows start from N(0, deviation^2): give a finite deviation above 0, got {deviation}")
    return deviation


def _width(width: int) -> int:
    if whole("width", width, 1) > _WIDEST:
        raise TheoryError(f"width must be {_WIDEST} coordinates or fewer, got {width}: no row is wider")
    return int(width)


def _beyond_float64(steps: int) -> TheoryError:
    return TheoryError(f"rows leave the range of float64 within {steps} steps: give smaller rates or a smaller start")
