"""The linear score that fits the training offsets at the least sum of amplitudes.

Where the score is the product of a mean query and a mean key, a norm on the two factors is a norm
on the sum of their pairs' amplitudes, since |a_i|^2 + |b_i|^2 >= 2 |a_i||b_i| = 2 r_i. It is a cone
program with a dual in one number z_delta a training offset, tolerance eps >= 0:

    min sum_i r_i     subject to  |f(delta) - y_delta| <= eps
    max y^T z - eps |z|_1   subject to  |a_i| <= 1,  a_i = sum_delta z_delta e^(i delta theta_i)

Every feasible z bounds the minimum from below, every feasible f from above. The barrier problem

    max over z of  y^T z + mu sum_i log(1 - |a_i|^2) - sum_delta max over |s| < eps of (s z_delta + mu log(eps^2 - s^2))

has a gradient of zero exactly where the pairs w_i = 2 mu a_i / (1 - |a_i|^2) give f = y - s, which is
feasible, and then the two bounds are within mu (h + L) of each other:

    sum |w_i| (1 - |a_i|) = sum 2 mu |a_i| / (1 + |a_i|),   |z| (eps - |s|) = 2 mu |s| / (eps + |s|)

add up to the gap. Newton's method does not mind that X is ill-conditioned, only its arithmetic does:
it runs at the precision of python-flint numbers, and the bounds are balls around its last point.

Source: ours; the norm is the one of arXiv 2607.18759, section 7, for bilinear weights.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass

import numpy as np
from flint import arb, arb_mat, ctx

from theory.errors import TheoryError
from theory.interpolant import Interpolant, InterpolationProblem, ball_features, lengths_of_pairs, singular

_SHRINK = 100
_NEWTON_STEPS = 200
_MOST_BITS = 1 << 12


@dataclass(frozen=True, eq=False)
class GroupInterpolant(Interpolant):
    """The least sum of amplitudes with |f - y| <= tolerance; coefficients rounded to float64.

    `minimum` is a ball that holds the exact minimum of sum r_i: between the dual point `certificate`
    (z, a number a training offset) and a feasible f.
    """

    tolerance: float
    minimum: arb
    certificate: tuple[arb, ...]
    bits: int

    @property
    def gap(self) -> float:
        """Width of `minimum` relative to it."""
        return float(2 * self.minimum.rad() / self.minimum.mid())


def least_group_norm(problem: InterpolationProblem, tolerance: float = 0.0, gap: float = 1e-9) -> GroupInterpolant:
    """min sum_i r_i subject to |f - y| <= tolerance at the training offsets, to a relative `gap`, certified.

    The tolerance is taken as the binary number that it is, frequencies as in `certified_min_norm`.
    At d = 64, base 1e4, K = 2, tolerance .3 it takes .4 s for L = 16, 4 s for L = 32, 30 s for L = 48: as L^3 and
    with the precision, which ill-conditioned X raise.
    Raises TheoryError for a tolerance outside [0, 1), at which f = 0 fits, for a gap outside [1e-30, 1), where the
    Gram matrix is singular, even if some f fits within the tolerance, and where 2^12 bits do not reach the gap.
    """
    if not 0 <= tolerance < 1:
        raise TheoryError(f"the tolerance must be in [0, 1), got {tolerance}: from 1 on f = 0 fits")
    if not 1e-30 <= gap < 1:
        raise TheoryError(f"the gap is relative and in [1e-30, 1), got {gap}")
    bits, barrier = 256, None
    while bits <= _MOST_BITS:
        with ctx.workprec(bits), suppress(ZeroDivisionError):
            barrier = _Barrier(problem, tolerance)
            found = barrier.minimise(gap)
            if found is not None and found.gap <= gap:
                return found
        bits *= 2
    if barrier is None:
        raise singular(problem, _MOST_BITS)
    raise TheoryError(
        f"no sum of amplitudes was certified to a gap of {gap} at {_MOST_BITS} bits: give fewer offsets or a wider gap"
    )


class _Barrier:
    """The barrier problem at the current precision; ZeroDivisionError where that is too low."""

    def __init__(self, problem: InterpolationProblem, tolerance: float) -> None:
        self.problem, self.tolerance = problem, arb(float(tolerance))
        self.pairs, self.length = problem.schedule.pairs, problem.length
        self.features = ball_features(problem.schedule, [-j for j in range(problem.length)])
        self.transposed = self.features.transpose()
        self.gram = self.features * self.transposed
        self.targets = _column([arb(int(j == problem.offset)) for j in range(problem.length)])
        self.least_norm = self.gram.solve(self.targets)[problem.offset, 0].sqrt().mid()

    def minimise(self, gap: float) -> GroupInterpolant | None:
        """Centres at mu = |w|, where z = 0 is near the centre, |w|/100, ... down to mu (h + L) <= gap * minimum."""
        z = _column([arb(0)] * self.length)
        mu = self.least_norm
        while True:
            z = self.centre(z, mu, arb(2) ** -4)
            if mu * (self.pairs + self.length) < arb(gap) * self.dual_value(z) / 4:
                return self.certify(self.centre(z, mu, arb(2) ** -(ctx.prec // 4)), mu)
            if mu < arb(2) ** -ctx.prec:
                return None
            mu = (mu / _SHRINK).mid()

    def centre(self, z: arb_mat, mu: arb, near: arb) -> arb_mat:
        """Damped Newton steps down to a decrement `near` 0.

        The barrier is self-concordant, so that 1/(1 + decrement) of a step stays inside.
        """
        for _ in range(_NEWTON_STEPS):
            gradient, hessian = self.derivatives(z, mu)
            step = hessian.solve(gradient, algorithm="approx")
            decrement = (step.transpose() * gradient)[0, 0].mid().nonnegative_part().sqrt().mid()
            z = _middle(z - step * (1 / (1 + decrement) if decrement > 0.25 else arb(1)))
            if decrement < near:
                return z
        raise ZeroDivisionError

    def derivatives(self, z: arb_mat, mu: arb) -> tuple[arb_mat, arb_mat]:
        """Gradient and Hessian of minus the barrier problem over mu, at exact z."""
        turned = (self.transposed * z).entries()
        slack = [1 - (a**2 + b**2) for a, b in self.halves(turned)] * 2
        pull = [2 * a / room for a, room in zip(turned, slack, strict=True)]
        misfit = self.misfit(z, mu)
        gradient = self.features * _column(pull) - (self.targets - _column(misfit)) / mu
        # -log(1 - |a|^2) has the Hessian 2/(1 - |a|^2) I + p p^T, p = 2 a/(1 - |a|^2), a block a pair.
        blocks = arb_mat(2 * self.pairs, 2 * self.pairs)
        for i in range(self.pairs):
            for k, other in ((i, i + self.pairs), (i + self.pairs, i)):
                blocks[k, k] = 2 / slack[k] + pull[k] ** 2
                blocks[k, other] = pull[k] * pull[other]
        hessian = self.features * blocks * self.transposed
        if self.tolerance > 0:
            for j, s in enumerate(misfit):
                room = self.tolerance**2 - s**2
                hessian[j, j] += room**2 / (2 * mu**2 * (self.tolerance**2 + s**2))
        return gradient, hessian

    def misfit(self, z: arb_mat, mu: arb) -> list[arb]:
        """s that attains max of s z + mu log(eps^2 - s^2): z = 2 mu s / (eps^2 - s^2), so |s| < eps."""
        squared = self.tolerance**2
        return [dual * squared / (mu + (mu**2 + dual**2 * squared).sqrt()) for dual in z.entries()]

    def dual_value(self, z: arb_mat) -> arb:
        """y^T z - eps |z|_1."""
        return z[self.problem.offset, 0] - self.tolerance * sum((abs(dual) for dual in z.entries()), arb(0))

    def certify(self, z: arb_mat, mu: arb) -> GroupInterpolant | None:
        """Both bounds in ball arithmetic; None where balls do not decide that both points are feasible."""
        turned = (self.transposed * z).entries()
        inside = [1 - (a**2 + b**2) for a, b in self.halves(turned)]
        misfit = self.misfit(z, mu)
        if not all(room > 0 for room in inside) or not all(abs(s) <= self.tolerance for s in misfit):
            return None
        rough = _column([2 * mu * a / room for a, room in zip(turned, inside * 2, strict=True)])
        # The least-norm correction makes f = y - s exact: the balls hold coefficients of a feasible f.
        missing = self.targets - _column(misfit) - self.features * rough
        exact = (rough + self.transposed * self.gram.solve(missing)).entries()
        upper = sum(lengths_of_pairs(exact), arb(0))
        rounded = np.array([float(number) for number in exact])
        return GroupInterpolant(
            self.problem,
            rounded[: self.pairs],
            rounded[self.pairs :],
            tolerance=float(self.tolerance),
            minimum=self.dual_value(z).lower().union(upper.upper()),
            certificate=tuple(z.entries()),
            bits=ctx.prec,
        )

    def halves(self, numbers: list[arb]) -> list[tuple[arb, arb]]:
        return list(zip(numbers[: self.pairs], numbers[self.pairs :], strict=True))


def _column(numbers: list[arb]) -> arb_mat:
    return arb_mat(len(numbers), 1, numbers)


def _middle(matrix: arb_mat) -> arb_mat:
    return arb_mat(matrix.nrows(), matrix.ncols(), [number.mid() for number in matrix.entries()])
