"""The best carrier: which weights keep the target furthest above every other lag.

With phase errors e_i = psi_i + K theta_i and weights p_i = r_i / sum r_i a carrier's margin in units
of its amplitude is, over the lags s = delta + K of the context,

    mu / sum r_i = min over s of sum_i p_i (cos e_i - cos(s theta_i - e_i)),

each bracket computed as 2 sin(s theta_i/2) sin(s theta_i/2 - e_i), which keeps the digits of slow pairs.

Aligned phases (e = 0) leave min 1 - g(s), a linear program in p; its dual is a distribution q of lags:

    max over p of min over s of 1 - g(s) = min over q of max over i of sum_s q_s (1 - cos s theta_i)

so that any p bounds the best value from below and any q from above. Lags of a context of length L are
-(L-1-K)..K without 0, and g is even: aligned carriers see 1..S, S = max(K, L-1-K). Where the lags hold
-s with every s, alignment is best among all phases (the mean over s and -s of the bracket is
cos e_i (1 - cos s theta_i)). A context's lags are not so: without those beyond the shorter side,
misaligned phases can be better than the best aligned ones, and are found by the same program with
a column for each pair and phase error.

Source: ours; kernel and margin are those of arXiv 2607.18759, Lemma 2 and Corollary 2.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float64, Int
from scipy.optimize import linprog

from theory.errors import TheoryError
from theory.head import Carrier
from theory.inputs import check_target, whole
from theory.schedule import RotarySchedule

_GAP = 1e-9
_ROUNDS = 500
_FIRST_LAGS = 64
_NEW_LAGS = 64
_CHUNK = 1 << 14
# The program is scaled to its value, but by no more than this: HiGHS takes coefficients up to 1e15.
_LEAST_SHARE = 1e-12
# Angles beyond this are off by 1e-6 and more.
_WIDEST_ANGLE = 1e10


@dataclass(frozen=True, eq=False)
class BestCarrier:
    """Weights and phase errors with the largest margin over the lags -behind..ahead without 0.

    `value` is their margin in units of sum r_i, the minimum over every lag: the best value is at least
    that. `bound` is what no carrier exceeds, by the distribution `lag_weights` over `active_lags`.
    Both are float64 sums over angles up to S theta_max, off by about S theta_max 1e-16 at most.
    """

    behind: int
    ahead: int
    weights: Float64[np.ndarray, "pair"]
    phase_errors: Float64[np.ndarray, "pair"]
    value: float
    bound: float
    active_lags: Int[np.ndarray, "active"]
    lag_weights: Float64[np.ndarray, "active"]

    @property
    def gap(self) -> float:
        """bound - value: 1e-9 of the bound or less, but for the rounding where pairs come back to a whole turn."""
        return self.bound - self.value


@dataclass(frozen=True)
class DistanceFromBest:
    """How far a carrier is from the best aligned one, all in units of its sum r_i.

    `margin` is its own, `aligned` that of its weights with phases on the target, `best` that of the
    best weights with phases on the target.
    """

    margin: float
    aligned: float
    best: float

    @property
    def ratio(self) -> float:
        """margin / best: 1 at the best aligned carrier, below 0 where the target is not selected."""
        return self.margin / self.best

    @property
    def phase_loss(self) -> float:
        """What misaligned phases cost; below 0 where they gain, as they can on one-sided lags."""
        return self.aligned - self.margin

    @property
    def weight_loss(self) -> float:
        """What the weights cost: 0 or more."""
        return self.best - self.aligned


def best_carrier(schedule: RotarySchedule, reach: int) -> BestCarrier:
    """Weights that maximise min over 1 <= s <= reach of 1 - g(s), phases on the target.

    A linear program over a growing set of lags: memory does not depend on the reach.
    Raises TheoryError for a reach that is no whole number of 1 or more, and for angles S theta_max
    beyond 1e10 rad, which float64 holds to 1e-6 only.
    """
    return _best(schedule, 0, whole("the reach, the furthest lag,", reach, 1), turning=False)


def best_with_margin(schedule: RotarySchedule, reach: int) -> BestCarrier:
    """`best_carrier` of a schedule that has a margin over the reach.

    Raises TheoryError as `best_carrier`, and where float64 does not tell the best margin from 0.
    """
    best = best_carrier(schedule, reach)
    if best.bound <= _rounding(schedule, best.ahead, turning=False):
        raise TheoryError(
            f"no aligned carrier of this schedule has a margin over {best.ahead} lags: at one of them every pair that "
            "turns is back at a whole turn, give a shorter context or a slower schedule, one that turns at all"
        )
    return best


def best_carrier_in_context(schedule: RotarySchedule, offset: int, length: int) -> BestCarrier:
    """Weights and phases with the largest margin of target K = `offset` in a context of `length`.

    At least `best_carrier(schedule, max(K, L-1-K))`. Raises TheoryError where the target is not in
    the context or is alone in it, and for angles as `best_carrier`.
    """
    offset, length = _context(offset, length)
    return _best(schedule, length - 1 - offset, offset, turning=True)


def best_margin_curve(schedule: RotarySchedule, reaches: Sequence[int]) -> Float64[np.ndarray, "reach"]:
    """The value of `best_carrier` at each reach: the best falls with it, its value by all but the gap of `BestCarrier`.

    At most max 1 - cos theta_i. Raises TheoryError as `best_carrier`.
    """
    return np.array([best_carrier(schedule, reach).value for reach in reaches], dtype=np.float64)


def distance_from_best(carrier: Carrier, offset: int, length: int) -> DistanceFromBest:
    """A carrier's margin at target K = `offset` in a context of `length` against the best aligned carrier's.

    The margin is that of the means alone: a bias per offset is left out.
    Raises TheoryError where the target is not in the context or is alone in it, where no pair is
    active, and where the schedule has no carrier with a margin that float64 tells from 0.
    """
    offset, length = _context(offset, length)
    theta, weights = carrier.schedule.frequencies, carrier.weights
    best = best_with_margin(carrier.schedule, max(offset, length - 1 - offset))
    own = _lowest(weights, carrier.phases + offset * theta, theta, length - 1 - offset, offset)[1]
    aligned = _lowest(weights, np.zeros_like(weights), theta, 0, best.ahead)[1]
    return DistanceFromBest(float(own.min()), float(aligned.min()), best.value)


def _context(offset: int, length: int) -> tuple[int, int]:
    """Target and length as whole numbers. Raises TheoryError where the target is not there or is alone."""
    length = whole("a length", length)
    check_target(offset, length)
    if length < 2:
        raise TheoryError(f"a margin needs a competitor: give a length of 2 or more, got {length}")
    return int(offset), length


def _best(schedule: RotarySchedule, behind: int, ahead: int, turning: bool) -> BestCarrier:
    """Grows the lags by those a solution violates and, where phases turn, the columns by those q wants."""
    theta = schedule.frequencies
    rounding = _rounding(schedule, max(behind, ahead), turning)
    lags = np.arange(-min(behind, _FIRST_LAGS), min(ahead, _FIRST_LAGS) + 1)
    lags = lags[lags != 0]
    pairs, errors = np.arange(schedule.pairs), np.zeros(schedule.pairs)
    value, bound = -np.inf, np.inf
    for _ in range(_ROUNDS):
        shares, chances = _program(_margins(theta[pairs], errors, lags), bound)
        pulls = np.zeros(schedule.pairs, dtype=np.complex128)
        np.add.at(pulls, pairs, shares * np.exp(1j * errors))
        weights, turns = np.abs(pulls) / np.abs(pulls).sum(), np.angle(pulls)
        lowest, margins = _lowest(weights, turns, theta, behind, ahead)
        prices = chances @ _margins(theta, np.zeros_like(theta), lags)
        if turning:
            # sum_s q_s (1 - e^(i s theta)): a column of phase error e gains its part along e.
            prices = prices + 1j * (chances @ _margins(theta, np.full_like(theta, np.pi / 2), lags))
        gains = np.abs(prices)
        if margins.min() > value:
            value, found = float(margins.min()), (weights, turns)
        if gains.max() < bound:
            bound, proof = float(gains.max()), (lags[chances > 0], chances[chances > 0])
        if bound - value <= _GAP * bound + rounding:
            order = np.argsort(proof[0])
            return BestCarrier(behind, ahead, *found, value, bound, proof[0][order], proof[1][order])
        lags = np.union1d(lags, lowest[margins < bound])
        if turning:
            wanted = np.flatnonzero(gains > value)
            pairs, errors = np.r_[pairs, wanted], np.r_[errors, np.angle(prices[wanted])]
    raise TheoryError(
        f"the best carrier over the lags {-behind}..{ahead} was found to {bound - value:g} of {bound:g} only in "
        f"{_ROUNDS} rounds: give a shorter reach"
    )


def _rounding(schedule: RotarySchedule, reach: int, turning: bool) -> float:
    """How far from 0 a margin that is 0 at a whole turn comes out: sin(s theta/2) is what its angle was rounded by.

    Raises TheoryError where that is beyond 1e-6.
    """
    widest = reach * float(np.abs(schedule.frequencies).max())
    if widest > _WIDEST_ANGLE:
        raise TheoryError(
            f"angles reach {widest:g} rad, which float64 holds to {widest * 2.0**-53:.1g} only: give a shorter reach "
            "or a slower schedule"
        )
    # No pair is back within less than a turn.
    sine = 2.0**-51 * widest if widest > 6 else 0.0
    return sine if turning else sine**2


def _program(
    margins: Float64[np.ndarray, "lag column"], bound: float
) -> tuple[Float64[np.ndarray, "column"], Float64[np.ndarray, "lag"]]:
    """max t over shares in the simplex with t <= every lag's margin: the shares, the dual distribution of lags.

    t is counted in units of a bound on it, as the solver's tolerances are absolute and it drops what is below 1e-9.
    """
    lags, columns = margins.shape
    least = max(_LEAST_SHARE * float(np.abs(margins).max()), sys.float_info.min)
    scale = max(least, min(bound, float(margins.max(axis=1).min())))
    # At such tolerances the solver gives up now and then, on one machine and not on another; the next way then holds.
    for method, presolve in (("highs", True), ("highs-ds", False), ("highs-ipm", True), ("highs-ipm", False)):
        answer = linprog(
            np.r_[np.zeros(columns), -1.0],
            A_ub=np.c_[-margins / scale, np.ones(lags)],
            b_ub=np.zeros(lags),
            A_eq=np.r_[np.ones(columns), 0.0][None],
            b_eq=[1.0],
            bounds=[(0, None)] * columns + [(None, None)],
            method=method,
            options={
                "presolve": presolve,
                "primal_feasibility_tolerance": 1e-10,
                "dual_feasibility_tolerance": 1e-10,
            },
        )
        if answer.status == 0:
            break
    else:
        raise TheoryError(
            f"the linear program over {lags} lags was not solved: {answer.message.rstrip('.')}; give a shorter reach"
        )
    shares, chances = answer.x[:columns].clip(0), (-answer.ineqlin.marginals).clip(0)
    return shares / shares.sum(), chances / chances.sum()


def _margins(
    theta: Float64[np.ndarray, "column"], errors: Float64[np.ndarray, "column"], lags: Int[np.ndarray, "lag"]
) -> Float64[np.ndarray, "lag column"]:
    """cos e - cos(s theta - e) = 2 sin(s theta/2) sin(s theta/2 - e)."""
    halves = np.multiply.outer(lags, theta / 2)
    sines = np.sin(halves)
    return 2 * sines * (np.sin(halves - errors) if errors.any() else sines)


def _lowest(
    weights: Float64[np.ndarray, "pair"],
    errors: Float64[np.ndarray, "pair"],
    theta: Float64[np.ndarray, "pair"],
    behind: int,
    ahead: int,
) -> tuple[Int[np.ndarray, "lag"], Float64[np.ndarray, "lag"]]:
    """The lags at which the margin has its lowest local minima, the lowest of all among them, and it there."""
    lags, margins = np.empty(0, dtype=np.int64), np.empty(0)
    active = weights > 0
    for start in range(-behind, ahead + 1, _CHUNK):
        here = np.arange(start, min(start + _CHUNK, ahead + 1))
        run = _margins(theta[active], errors[active], here) @ weights[active]
        run[here == 0] = np.inf
        walled = np.r_[np.inf, run, np.inf]
        minima = np.flatnonzero((run < walled[:-2]) & (run <= walled[2:]) & np.isfinite(run))
        lags, margins = np.r_[lags, start + minima], np.r_[margins, run[minima]]
        kept = np.argsort(margins, kind="stable")[:_NEW_LAGS]
        lags, margins = lags[kept], margins[kept]
    return lags, margins
