"""The best schedule: which base, or which frequencies, leave the best carrier the largest margin.

For given frequencies the best margin V is a linear program over weights p with a dual distribution q of lags
(`theory.best_carriers`); its derivative is that of its Lagrangian (Danskin),

    dV/dtheta_i = p_i sum_s q_s s sin(s theta_i),

where the solutions are unique. At a best schedule they are not: many lags tie. Therefore a step of the ascent asks
for the weights and the frequencies together, all near lags linearised in theta, within a box of frequencies that
shrinks until the step gains (sequential linear programming).

A bound comes from weights that are free over all frequencies of the range: for every q, V is at most

    max over theta of F(theta) = sum_s q_s (1 - cos s theta),

on a grid of step h off by at most h^2/8 sum_s q_s s^2. A best margin falls with the reach, so that a q over nearer
lags bounds it too. Over all frequencies the bound is 1 + 1/S: q_s in proportion to S+1-s leaves Fejer's kernel,
which is not negative, and the frequencies 2 pi k/(S+1), k = 1..S, with equal weights have g = -1/S at every lag.

Source: ours.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float64
from scipy.optimize import linprog

from theory.best_carriers import BestCarrier, best_carrier
from theory.errors import TheoryError
from theory.inputs import check_target, whole
from theory.kernel import cosine_sums
from theory.schedule import RotarySchedule

_BASES = 129
_REFINEMENTS = 5
_REFINED = 3

_SEED = 26071
_RANDOM_STARTS = 2
_STEPS = 60
# Steps and steps of the grid are measured as the angle that they are at the furthest lag.
_FIRST_STEP, _LAST_STEP = 1.0, 1e-5
_NEAR_LAGS = 400
# A margin of 0 is no unit.
_LEAST_SHARE = 1e-6
_GRID_ANGLE, _LEAST_GRID = 0.02, 1000
# The angle between the slowest and the fastest at the furthest lag of the bound: what a program with as many pairs
# as it takes is solved for in seconds.
_WIDEST_ANGLE = 400.0
_BOUND_GAP = 1e-4
_BOUND_ROUNDS = 30
_NEW_COLUMNS = 64


@dataclass(frozen=True, eq=False)
class BestBase:
    """The base with the largest margin per nat at K = `offset` in contexts of up to `length`, of all that were tried.

    `bases` in ascending order and the `margins` of their geometric schedules: all that was evaluated.
    """

    width: int
    offset: int
    length: int
    base: float
    margin: float
    bases: Float64[np.ndarray, "base"]
    margins: Float64[np.ndarray, "base"]

    @property
    def at_edge(self) -> bool:
        """Whether the best base is the lowest or the highest of the range: a wider range may hold a better one."""
        return self.base in (self.bases[0], self.bases[-1])


@dataclass(frozen=True, eq=False)
class BestFrequencies:
    """Frequencies with the largest margin per nat over the lags 1..reach that were found.

    `margin` is that of their best carrier, `bound` what no frequencies of the range exceed, however many.
    """

    schedule: RotarySchedule
    reach: int
    margin: float
    bound: float

    @property
    def gap(self) -> float:
        """bound - margin: what more pairs, or a better local maximum, could gain at most."""
        return self.bound - self.margin


def best_base(width: int, offset: int, length: int, bases: tuple[float, float] = (1.0, 1e7)) -> BestBase:
    """The base whose geometric schedule of `width` lanes has the largest best margin over max(K, L-1-K) lags.

    129 bases, ln(base/lowest) in proportion to the squares of 0..128, then five times the middle of the steps beside
    the best three. From 1 on, where all pairs are alike and hardly leave a margin, low bases are the best and have the
    narrowest peaks. The margin is not unimodal in the base: a peak narrower than a step of the first scan can be
    missed, and `bases` shows how close they lie; `at_edge` tells of a best one at an end of the range. Raises
    TheoryError unless 0 < lowest < highest, where the target has no competitor in the context, and as
    `RotarySchedule.geometric` and `theory.best_carriers.best_carrier`.
    """
    lowest, highest = bases
    if not 0 < lowest < highest < math.inf:
        raise TheoryError(f"bases lie between two finite numbers above 0, the lower one first, got {bases}")
    length = whole("a length", length, 2)
    check_target(offset, length)
    reach = max(offset, length - 1 - offset)

    def margin(base: float) -> float:
        return best_carrier(RotarySchedule.geometric(width, base), reach).value

    steps_of_log = np.geomspace(lowest, highest, (_BASES - 1) ** 2 + 1)
    found = {float(base): margin(float(base)) for base in steps_of_log[np.arange(_BASES) ** 2]}
    for _ in range(_REFINEMENTS):
        tried = sorted(found)
        best = sorted(range(len(tried)), key=lambda j: -found[tried[j]])[:_REFINED]
        steps = {step for j in best for step in (j - 1, j) if 0 <= step < len(tried) - 1}
        middles = (math.sqrt(tried[step] * tried[step + 1]) for step in steps)
        found |= {base: margin(base) for base in middles}
    tried = sorted(found)
    margins = np.array([found[base] for base in tried])
    highest_margin = int(margins.argmax())
    return BestBase(width, offset, length, tried[highest_margin], float(margins.max()), np.array(tried), margins)


def best_frequencies(pairs: int, reach: int, slowest: float, fastest: float) -> BestFrequencies:
    """So many frequencies within [slowest, fastest] rad/token with the largest best margin over the lags 1..reach.

    A local maximum, the best of the ascents from the geometric schedule of the range, from the frequencies that
    free weights favour and from two random ones of a fixed seed. Raises TheoryError for pairs or a reach below 1,
    unless 0 < slowest < fastest <= pi, and as `theory.best_carriers.best_carrier`.
    """
    pairs, reach = whole("the number of pairs", pairs, 1), whole("the reach, the furthest lag,", reach, 1)
    if not 0 < slowest < fastest <= math.pi:
        raise TheoryError(
            f"frequencies lie in a range of 0 < slowest < fastest <= pi rad/token, got {slowest} and {fastest}: faster "
            "ones are the same as slower ones at whole lags"
        )
    bound, favoured = _free_weights(pairs, reach, slowest, fastest)
    random = np.random.default_rng(_SEED).uniform(slowest, fastest, (_RANDOM_STARTS, pairs))
    starts = [np.geomspace(fastest, slowest, pairs), favoured, *random]
    ascents = [_ascend(start, reach, slowest, fastest) for start in starts]
    frequencies, best = max(ascents, key=lambda ascent: ascent[1].value)
    return BestFrequencies(RotarySchedule(np.sort(frequencies)[::-1]), reach, best.value, bound)


def margin_gradient(schedule: RotarySchedule, best: BestCarrier) -> Float64[np.ndarray, "pair"]:
    """dV/dtheta_i = p_i sum_s q_s s sin(s theta_i) of an aligned best carrier, per rad/token; one-sided in a tie."""
    turns = np.multiply.outer(schedule.frequencies, best.active_lags)
    return best.weights * (np.sin(turns) @ (best.lag_weights * best.active_lags))


def _ascend(
    frequencies: Float64[np.ndarray, "pair"], reach: int, slowest: float, fastest: float
) -> tuple[Float64[np.ndarray, "pair"], BestCarrier]:
    """Steps that gain, in a box that grows by half when one does and halves when it does not."""
    best = best_carrier(RotarySchedule(frequencies), reach)
    box, last = _FIRST_STEP / reach, _LAST_STEP / reach
    for _ in range(_STEPS):
        if box < last:
            break
        step = _step(frequencies, best, slowest - frequencies, fastest - frequencies, box)
        moved = np.clip(frequencies + step, slowest, fastest)
        other = _solved(moved, reach)
        if other is not None and other.value > best.value:
            frequencies, best, box = moved, other, 1.5 * box
        else:
            box /= 2
    return frequencies, best


def _solved(frequencies: Float64[np.ndarray, "pair"], reach: int) -> BestCarrier | None:
    """The best carrier, None where its program does not close: where very many lags tie it can miss its tolerance."""
    try:
        return best_carrier(RotarySchedule(frequencies), reach)
    except TheoryError:
        return None


def _step(
    theta: Float64[np.ndarray, "pair"],
    best: BestCarrier,
    down: Float64[np.ndarray, "pair"],
    up: Float64[np.ndarray, "pair"],
    box: float,
) -> Float64[np.ndarray, "pair"]:
    """The change of frequencies, within the box and down..up, for the largest margin over the near lags linearised.

    max t over weights p' and changes d: t <= sum_i p'_i (1 - cos s theta_i) + d_i p_i s sin(s theta_i). 0 where
    the program is not solved. Counted in units of the box and of the margin, as the solver's tolerances are absolute.
    """
    pairs = len(theta)
    kernel = cosine_sums(best.weights, theta, np.zeros(pairs), 1, best.ahead)
    lags = 1 + np.argsort(-kernel, kind="stable")[:_NEAR_LAGS]
    halves = np.multiply.outer(lags, theta / 2)
    margins, slopes = 2 * np.square(np.sin(halves)), best.weights * lags[:, None] * np.sin(2 * halves)
    scale = max(best.value, _LEAST_SHARE * float(margins.max()))
    answer = linprog(
        np.r_[np.zeros(2 * pairs), -1.0],
        A_ub=np.c_[-margins / scale, -slopes * (box / scale), np.ones(len(lags))],
        b_ub=np.zeros(len(lags)),
        A_eq=np.r_[np.ones(pairs), np.zeros(pairs + 1)][None],
        b_eq=[1.0],
        bounds=[(0, None)] * pairs
        + list(zip(np.maximum(-1, down / box), np.minimum(1, up / box), strict=True))
        + [(None, None)],
        method="highs",
    )
    return box * answer.x[pairs : 2 * pairs] if answer.status == 0 else np.zeros(pairs)


def _free_weights(pairs: int, reach: int, slowest: float, fastest: float) -> tuple[float, Float64[np.ndarray, "pair"]]:
    """A bound over all frequencies of the range, and the `pairs` of them to which free weights give most.

    Columns of frequency are added where F exceeds the value, until no frequency of a fine grid gains.
    """
    reach_of_bound = max(1, min(reach, int(_WIDEST_ANGLE / (fastest - slowest))))
    points = max(_LEAST_GRID, 2 + int(reach_of_bound * (fastest - slowest) / _GRID_ANGLE))
    grid = np.linspace(slowest, fastest, points)
    columns = np.union1d(np.geomspace(slowest, fastest, pairs), np.linspace(slowest, fastest, pairs))
    bound = 1 + 1 / reach
    for _ in range(_BOUND_ROUNDS):
        best = best_carrier(RotarySchedule(columns), reach_of_bound)
        favoured = columns[np.argsort(-best.weights, kind="stable")[:pairs]]
        # 1 - cos would lose the digits of slow pairs.
        prices = 2 * np.square(np.sin(np.multiply.outer(grid, best.active_lags / 2))) @ best.lag_weights
        between = float((grid[1] - grid[0]) ** 2 / 8 * (best.lag_weights @ best.active_lags.astype(np.float64) ** 2))
        bound = min(bound, float(prices.max()) + between)
        if bound - best.value <= _BOUND_GAP * bound:
            break
        walled = np.r_[-np.inf, prices, -np.inf]
        peaks = np.flatnonzero((prices > walled[:-2]) & (prices >= walled[2:]) & (prices > best.value))
        columns = np.union1d(columns, grid[peaks[np.argsort(-prices[peaks], kind="stable")[:_NEW_COLUMNS]]])
    return bound, favoured
