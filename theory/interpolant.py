"""Attention without softmax: the linear score that fits the training offsets at the least norm.

A linear rotary score with coefficients u, v is

    f(delta) = sum_i u_i cos(delta theta_i) + v_i sin(delta theta_i) = sum_i r_i cos(delta theta_i - psi_i).

Training asks f(-K) = 1 and f(delta) = 0 at the other delta = 0..-(L-1): n = L equations X w = y in
d = 2h unknowns. Row delta of the feature matrix X is (cos delta theta_i, sin delta theta_i), so the
Gram matrix is Toeplitz, (X X^T)_ab = h g(a - b), g the kernel of equal weights. Three solutions:

    least norm    w = X^T (X X^T)^-1 y,  |w|^2 = y^T (X X^T)^-1 y
    truncated     singular values of X at or below tolerance * the largest one dropped
    ridge         w = X^T (X X^T + penalty I)^-1 y, the minimum of |X w - y|^2 + penalty |w|^2

Every |theta_i| <= 1 rad is an oversampled band: X is ill-conditioned (1.1e12 at d = 64, base 1e4,
L = 16) and the exact solution is of the order 1e9 away from the training offsets, so it is also
had from ball arithmetic. Coefficients are those of the score: an attention factor is part of them.

Source: arXiv 2607.18759, section 7; the exact minimiser and the regularised ones are ours.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from flint import acb, arb, arb_mat, ctx
from jaxtyping import Bool, Float64, Int

from theory.balls import balls, exact_frequencies
from theory.errors import TheoryError
from theory.inputs import check_target, whole
from theory.schedule import RotarySchedule

_MOST_BITS = 1 << 14


@dataclass(frozen=True, eq=False)
class InterpolationProblem:
    """X w = y at the offsets 0..-(length-1), y being 1 at -offset (K tokens back) and 0 elsewhere.

    Raises TheoryError where offset or length is no whole number, the target is not among the offsets, or they
    outnumber the features.
    """

    schedule: RotarySchedule
    offset: int
    length: int

    def __post_init__(self) -> None:
        whole("the target offset K", self.offset)
        whole("the length", self.length)
        check_target(self.offset, self.length)
        if self.length > self.schedule.dim:
            raise TheoryError(
                f"{self.length} training offsets cannot all be fitted by {self.schedule.dim} features: "
                "give a length up to the rotary width"
            )

    @property
    def features(self) -> Float64[np.ndarray, "offset dim"]:
        """X: the h cosine columns, then the h sine columns."""
        turns = np.multiply.outer(-np.arange(self.length), self.schedule.frequencies)
        return np.hstack([np.cos(turns), np.sin(turns)])

    @property
    def targets(self) -> Float64[np.ndarray, "offset"]:
        """y."""
        return (np.arange(self.length) == self.offset).astype(np.float64)

    @cached_property
    def decomposition(
        self,
    ) -> tuple[Float64[np.ndarray, "offset offset"], Float64[np.ndarray, "offset"], Float64[np.ndarray, "offset dim"]]:
        """The singular value decomposition of X; each value is off by about 1e-16 of the largest."""
        left, values, right = np.linalg.svd(self.features, full_matrices=False)
        return left, values, right

    def kept(self, tolerance: float) -> Bool[np.ndarray, "offset"]:
        """The singular values of X above tolerance * the largest one. Raises TheoryError unless 0 <= tolerance < 1."""
        if not 0 <= tolerance < 1:
            raise TheoryError(f"the tolerance is a fraction of the largest singular value in [0, 1), got {tolerance}")
        values = self.decomposition[1]
        return np.asarray(values > tolerance * values[0])

    def feature_rank(self, tolerance: float) -> int:
        """How many are `kept`."""
        return int(self.kept(tolerance).sum())

    def gram_rank(self, tolerance: float) -> int:
        """The same of X X^T, whose singular values are the squares: the rank of X at sqrt(tolerance)."""
        return self.feature_rank(tolerance**0.5 if tolerance > 0 else tolerance)


@dataclass(frozen=True, eq=False)
class Interpolant:
    """f with its coefficients u (`cosines`) and v (`sines`), in units of the target's score."""

    problem: InterpolationProblem
    cosines: Float64[np.ndarray, "pair"]
    sines: Float64[np.ndarray, "pair"]

    def profile(self, offsets: Int[np.ndarray, "offset"]) -> Float64[np.ndarray, "offset"]:
        """f(delta) at any offsets delta; off by about 1e-16 of the group norm."""
        turns = np.multiply.outer(offsets, self.problem.schedule.frequencies)
        return np.cos(turns) @ self.cosines + np.sin(turns) @ self.sines

    @property
    def norm(self) -> float:
        """|w| = sqrt(sum u_i^2 + v_i^2)."""
        return float(np.sqrt(np.square(self.cosines).sum() + np.square(self.sines).sum()))

    @property
    def group_norm(self) -> float:
        """sum_i r_i, r_i = sqrt(u_i^2 + v_i^2): what a norm on the two factors m_Q, m_K minimises."""
        return float(np.hypot(self.cosines, self.sines).sum())

    @property
    def residual(self) -> float:
        """max |f - y| over the training offsets."""
        return float(np.abs(self.profile(-np.arange(self.problem.length)) - self.problem.targets).max())

    def off_support(self, length: int) -> float:
        """Root mean square of f over the offsets that a context of `length` adds: -L..-(length-1)."""
        if length <= self.problem.length:
            raise TheoryError(f"offsets off support need a length above {self.problem.length}, got {length}")
        return float(np.sqrt(np.square(self.profile(-np.arange(self.problem.length, length))).mean()))


@dataclass(frozen=True, eq=False)
class SpectralInterpolant(Interpolant):
    """An interpolant read off the singular values of X.

    `rank` counts those that were used; `condition` is the ratio of the extreme ones used, for ridge
    of [X, sqrt(penalty) I]. It is the condition of the feature matrix: that of the Gram matrix is
    its square. Float64 does not resolve a condition above 1e15.
    """

    rank: int
    condition: float


@dataclass(frozen=True, eq=False)
class CertifiedInterpolant:
    """The exact least-norm solution: balls that hold |w|, sum r_i, f at `offsets` and the RMS of f over them.

    `bits` is the precision at which they came out as narrow as asked.
    """

    norm: arb
    group_norm: arb
    offsets: tuple[int, ...]
    values: tuple[arb, ...]
    root_mean_square: arb
    bits: int


def min_norm(problem: InterpolationProblem, tolerance: float | None = None) -> SpectralInterpolant:
    """The least-norm solution in float64, with singular values at or below tolerance * the largest dropped.

    Without a tolerance only those that rounding drowns are dropped, d * 2^-52 (numpy's rank): where
    `rank` is then below L this is not the interpolant, and `certified_min_norm` is.
    Raises TheoryError for a tolerance outside [0, 1).
    """
    if tolerance is None:
        tolerance = problem.schedule.dim * float(np.finfo(np.float64).eps)
    values, kept = problem.decomposition[1], problem.kept(tolerance)
    inverse = np.divide(1.0, values, out=np.zeros_like(values), where=kept)
    return _filtered(problem, inverse, int(kept.sum()), float(values[0] / values[kept][-1]))


def ridge(problem: InterpolationProblem, penalty: float) -> SpectralInterpolant:
    """argmin |X w - y|^2 + penalty |w|^2; the penalty adds to the Gram matrix, whose diagonal is h.

    Raises TheoryError for a penalty that is not a finite number above 0.
    """
    if not (np.isfinite(penalty) and penalty > 0):
        raise TheoryError(f"the ridge penalty must be a finite number above 0, got {penalty}: 0 is min_norm")
    values = problem.decomposition[1]
    damped = np.square(values) + penalty
    return _filtered(problem, values / damped, len(values), float(np.sqrt(damped[0] / damped[-1])))


def certified_min_norm(
    problem: InterpolationProblem, offsets: Int[np.ndarray, "offset"], digits: int = 15
) -> CertifiedInterpolant:
    """The exact least-norm solution by ball arithmetic, every number to `digits` digits of max(1, |number|).

    Frequencies are the exact ones where the schedule has them; otherwise its float64 numbers are
    taken as exactly what they are. Precision is doubled until the balls are as narrow as asked.
    Raises TheoryError where no offset is given or one is no whole number, where the Gram matrix stays singular, and
    where the digits ask for more than 2^14 bits.
    """
    digits, far = whole("the number of digits", digits, 1), [whole("an offset", delta) for delta in offsets]
    if not far:
        raise TheoryError("give one offset or more at which to evaluate the solution, got none")
    wanted, bits, answer = digits * np.log2(10), 64, None
    while bits <= _MOST_BITS:
        with ctx.workprec(bits), suppress(ZeroDivisionError):
            answer = _solve_in_balls(problem, far)
            numbers = (answer.norm, answer.group_norm, answer.root_mean_square, *answer.values)
            if min(number.rel_one_accuracy_bits() for number in numbers) >= wanted:
                return answer
        bits *= 2
    if answer is not None:
        raise TheoryError(f"{digits} digits are not reached at {_MOST_BITS} bits: give fewer digits or fewer offsets")
    raise singular(problem, _MOST_BITS)


def ball_features(schedule: RotarySchedule, offsets: list[int]) -> arb_mat:
    """Rows of X at the current precision, as balls: the h cosine columns, then the h sine columns."""
    thetas = balls(exact_frequencies(schedule), ctx.prec)
    turns = [[delta * theta for theta in thetas] for delta in offsets]
    return arb_mat([[turn.cos() for turn in row] + [turn.sin() for turn in row] for row in turns])


def singular(problem: InterpolationProblem, bits: int) -> TheoryError:
    """The error that no precision up to `bits` tells the Gram matrix from a singular one."""
    return TheoryError(
        f"the Gram matrix of {problem.length} offsets is not told from a singular one at {bits} bits: do "
        "frequencies coincide or repeat within the length? Give fewer offsets"
    )


def lengths_of_pairs(coefficients: list[arb]) -> list[arb]:
    """r_i of (u_1..u_h, v_1..v_h), as balls."""
    pairs = len(coefficients) // 2
    return [abs(acb(u, v)) for u, v in zip(coefficients[:pairs], coefficients[pairs:], strict=True)]


def _filtered(
    problem: InterpolationProblem, inverse: Float64[np.ndarray, "offset"], rank: int, condition: float
) -> SpectralInterpolant:
    left, _, right = problem.decomposition
    coefficients = right.T @ (inverse * (left.T @ problem.targets))
    pairs = problem.schedule.pairs
    return SpectralInterpolant(problem, coefficients[:pairs], coefficients[pairs:], rank, condition)


def _solve_in_balls(problem: InterpolationProblem, offsets: list[int]) -> CertifiedInterpolant:
    """At the current precision; ZeroDivisionError where the balls hold a singular Gram matrix."""
    features = ball_features(problem.schedule, [-j for j in range(problem.length)])
    targets = arb_mat(problem.length, 1, [int(j == problem.offset) for j in range(problem.length)])
    dual = (features * features.transpose()).solve(targets)
    coefficients = features.transpose() * dual
    values = (ball_features(problem.schedule, offsets) * coefficients).entries()
    return CertifiedInterpolant(
        # |w|^2 = y^T (X X^T)^-1 y.
        norm=dual[problem.offset, 0].sqrt(),
        group_norm=sum(lengths_of_pairs(coefficients.entries()), arb(0)),
        offsets=tuple(offsets),
        values=tuple(values),
        root_mean_square=(sum((value**2 for value in values), arb(0)) / len(values)).sqrt(),
        bits=ctx.prec,
    )
