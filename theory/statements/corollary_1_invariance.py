"""Corollary 1: the score function of a rotary head has no length in it, and its margin does.

With the query at n = L-1 and a key j tokens back, at t = L-1-j,

    l(n, t) = sum_i a_i^T Rot(-j theta_i) b_i,                                   d/dL = 0
    mu_L = phi(-K) - max over -L < delta <= 0, delta != -K, of phi(delta),       mu_{L+1} <= mu_L.

Refuted is one margin mu for every length, which section 7 calls length-invariant and appendix A.3
and Table 7 use. (The corollary's own words are guarded: the selected offset stays unless a newly
available one is higher. A.4 takes the minimum over the offsets of L but writes mu.) Amended: mu_L
never rises with L. Of P frequencies, some s <= N^P turns all of them to within 2 pi/N of whole turns
(Dirichlet 1842), so

    mu_L <= (1 - cos(2 pi/N)) sum_i r_i          for L >= K + N^P + 1

where the phases are aligned with the target: mu_L falls to 0, and no schedule prevents it. That is
far away in practice: with equal energy, d=64 and base 1e4 the highest rival is 1 token from the target, and
mu_L = .0338 sum r_i, up to L = 3e6 at least.

Source: arXiv 2607.18759, Corollary 1, section 7, appendix A.3 and Table 7; monotonicity and limit are ours.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import sympy
from jaxtyping import Float64
from sympy.simplify.simplify import factor_sum

from theory.bias import LinearBias
from theory.certified import certified_margin
from theory.head import Carrier
from theory.kernel import margin, mean_profile
from theory.scaling import DynamicNtk
from theory.schedule import RotarySchedule
from theory.statements.statement import (
    PRINTED,
    Assumption,
    Counterexample,
    ProofStep,
    Statement,
    Verdict,
    Wording,
    rot,
    vanishes,
)


@dataclass(frozen=True, eq=False)
class LengthenedHead:
    """A mean query and key read at two lengths, each with its schedule; lengths in tokens, slope in nats a token.

    N = `boxes` is that of Dirichlet: the long length is the one at which it bounds the margin.
    """

    query: Float64[np.ndarray, "dim"]
    key: Float64[np.ndarray, "dim"]
    short_schedule: RotarySchedule
    long_schedule: RotarySchedule
    slope: float
    offset: int
    short: int
    boxes: int

    @property
    def long(self) -> int:
        """K + N^P + 1: the first length that holds the offsets -K-1..-K-N^P."""
        return self.offset + self.boxes**self.long_schedule.pairs + 1

    @property
    def total(self) -> float:
        """sum r_i in nats."""
        return float(self.carrier(self.short_schedule).amplitudes.sum())

    def carrier(self, schedule: RotarySchedule) -> Carrier:
        """The means under one of the schedules, without the bias."""
        return Carrier.from_means(schedule, self.query, self.key, 1.0)

    def scores(self, schedule: RotarySchedule, length: int) -> Float64[np.ndarray, "offset"]:
        """Mean logits of the last query of a sequence with the key at each offset, from absolute positions."""
        positions = np.arange(length)[::-1]
        keys = schedule.rotate(np.broadcast_to(self.key, (length, schedule.dim)), positions)
        return keys @ schedule.rotate(self.query, np.array(length - 1)) - self.slope * np.arange(length)

    def margin(self, schedule: RotarySchedule, length: int) -> float:
        """mu_L over sum r_i, from the profile by offset."""
        carrier = replace(self.carrier(schedule), bias=LinearBias(self.slope))
        return margin(mean_profile(carrier, length), self.offset).value / self.total


def _residual_printed(case: LengthenedHead) -> float:
    """The greatest change of a score at one offset, or of the margin, over sum r_i."""
    return max(_score_change(case), abs(_long_margin(case) - _short_margin(case)))


def _residual_amended(case: LengthenedHead) -> float:
    """The change of a score, and by how much mu rises, leaves [0, Dirichlet's bound], all over sum r_i."""
    short, long = _short_margin(case), _long_margin(case)
    return max(_score_change(case), long - short, -long, long - (1 - np.cos(2 * np.pi / case.boxes)))


def _score_change(case: LengthenedHead) -> float:
    short, long = case.scores(case.short_schedule, case.short), case.scores(case.long_schedule, case.long)
    return float(np.abs(long[: case.short] - short).max() / case.total)


def _short_margin(case: LengthenedHead) -> float:
    return case.margin(case.short_schedule, case.short)


def _long_margin(case: LengthenedHead) -> float:
    return case.margin(case.long_schedule, case.long)


@cache
def _prove_amended() -> tuple[ProofStep, ...]:
    length, back = sympy.symbols("L j", real=True)
    i, h = sympy.Symbol("i", integer=True), sympy.Symbol("h", integer=True, positive=True)
    score = sympy.Sum(_summand(length - 1, length - 1 - back, i), (i, 0, h - 1))
    mu, excess = sympy.Symbol("mu", real=True), sympy.Symbol("epsilon", positive=True)
    x, y, share = sympy.Symbol("x", real=True), sympy.Symbol("y", real=True), sympy.Symbol("r", nonnegative=True)
    boxes, defect = sympy.Symbol("N", positive=True), 1 - sympy.cos(x)
    r = sympy.IndexedBase("r")
    most = defect.subs(x, 2 * sympy.pi / boxes)
    return (
        ProofStep(
            "d/dL of the score of the last query with the key j back is 0, summed over blocks 0..h-1, h symbolic",
            score.diff(length).func is sympy.Sum and vanishes(score.diff(length).function),
        ),
        ProofStep(
            "mu_{L+1} = min(mu_L, phi(-K)-phi(-L)): the new offset leaves mu where its gap is greater and lowers it "
            "where it is smaller",
            sympy.Min(mu, mu + excess) == mu
            and sympy.Min(mu, mu - excess) == mu - excess
            and bool((mu - excess - mu).is_negative),
        ),
        ProofStep(
            "aligned: phi(-K) - phi(-K-s) is the sum of r_i - r_i cos(s theta_i) = 2 r_i sin^2(s theta_i/2): mu_L >= 0",
            vanishes(share * defect - 2 * share * sympy.sin(x / 2) ** 2)
            and bool((2 * share * sympy.sin(x / 2) ** 2).is_nonnegative),
        ),
        ProofStep(
            "within 2 pi/N <= pi of whole turns: 1 - cos x is even and rises on [0, pi], so a term is at most its end",
            vanishes(defect - defect.subs(x, -x))
            and vanishes(defect - defect.subs(x, x + 2 * sympy.pi))
            and bool(sympy.is_increasing(defect, sympy.Interval(0, sympy.pi))),
        ),
        ProofStep(
            "h such terms are at most (1 - cos(2 pi/N)) sum r_i",
            factor_sum(sympy.Sum(r[i] * most, (i, 0, h - 1))) == most * sympy.Sum(r[i], (i, 0, h - 1)),
        ),
        ProofStep("the bound tends to 0 as N grows", sympy.limit(most, boxes, sympy.oo) == 0),
        ProofStep(
            "not aligned: cos(y+x) - cos y = -2 sin(x/2) sin(y + x/2), so that phi comes back to phi(-K) all the same "
            "and no margin stays above 0",
            vanishes(sympy.cos(y + x) - sympy.cos(y) + 2 * sympy.sin(x / 2) * sympy.sin(y + x / 2))
            and sympy.limit(sympy.sin(sympy.pi / boxes), boxes, sympy.oo) == 0,
        ),
    )


def _summand(n: sympy.Expr, t: sympy.Expr, i: sympy.Symbol) -> sympy.Expr:
    """Block i of the score of a query at n and a key at t, each turned by its own position."""
    a, b, theta = sympy.IndexedBase("a"), sympy.IndexedBase("b"), sympy.IndexedBase("theta", real=True)[i]
    query, key = sympy.Matrix([a[2 * i], a[2 * i + 1]]), sympy.Matrix([b[2 * i], b[2 * i + 1]])
    return ((rot(n * theta) * query).T * rot(t * theta) * key)[0]


def _aligned(schedule: RotarySchedule, key: Float64[np.ndarray, "dim"], offset: int, boxes: int) -> LengthenedHead:
    query = schedule.rotate(key, np.array(-offset))
    return LengthenedHead(query, key, schedule, schedule, 0.0, offset, offset + 2, boxes)


def _draw(rng: np.random.Generator) -> LengthenedHead:
    pairs = int(rng.integers(1, 4))
    schedule = RotarySchedule.geometric(2 * pairs, float(10 ** rng.uniform(0.3, 5)))
    key = rng.uniform(0.5, 2, size=2 * pairs) * rng.choice([-1.0, 1.0], size=2 * pairs)
    boxes = int(rng.integers(3, (2000, 44, 12)[pairs - 1]))
    return _aligned(schedule, key, int(rng.integers(0, 7)), boxes)


def _counterexamples() -> tuple[Counterexample[LengthenedHead], ...]:
    # Two pairs at 1 and 1/10 rad/position, one nat each; N = 8 makes the long length 67.
    two = _aligned(RotarySchedule.geometric(4, 100.0), np.array([1.0, 0, 1, 0]), 2, 8)
    scaled = replace(two, long_schedule=DynamicNtk(4.0, 16).schedule(4, 100.0, length=two.long))
    biased = replace(_aligned(two.short_schedule, two.key, 0, 40), slope=1.0)
    late = replace(two, query=two.short_schedule.rotate(two.key, np.array(-3)))
    certified = {f"mu at L={length}": _certified(two, length) for length in (two.short, two.long)}
    return (
        Counterexample(
            PRINTED,
            "K=2, frequencies 1 and 1/10, one nat each: at L=4 the margin is 2 - cos 1 - cos .1, at L=67 the key 63 "
            "further back leaves 2 - cos 63 - cos 6.3",
            two,
            certified,
        ),
        Counterexample(
            "one-schedule",
            "dynamic NTK scaling by 4 from 16 tokens on: the frequencies, and with them every score, know the length",
            scaled,
            {
                "score 1 back at L=4": float(scaled.scores(scaled.short_schedule, scaled.short)[1]),
                "at L=67": float(scaled.scores(scaled.long_schedule, scaled.long)[1]),
            },
        ),
        Counterexample(
            "rotation-only",
            "K=0 under a bias of -1 nat a token: no key further back comes near, and the margin stays",
            biased,
            {
                f"mu at L={biased.short}": _short_margin(biased) * biased.total,
                f"at L={biased.long}": _long_margin(biased) * biased.total,
                "Dirichlet's bound": float(1 - np.cos(2 * np.pi / biased.boxes)) * biased.total,
            },
        ),
        Counterexample(
            "aligned",
            "the target is 2 back, the query is turned for 3: the margin is below 0 at every length",
            late,
            {"mu at L=4": _short_margin(late) * late.total, "at L=67": _long_margin(late) * late.total},
        ),
    )


def _certified(case: LengthenedHead, length: int) -> float:
    """mu_L in nats by ball arithmetic, to the last float."""
    return certified_margin(case.carrier(case.short_schedule), case.offset, length).value.lower


def _is_aligned(case: LengthenedHead) -> bool:
    return abs(case.carrier(case.short_schedule).alignment(case.offset) - 1) <= 1e-12


STATEMENT = Statement(
    row=2,
    id="corollary-1",
    label="Corollary 1, length invariance",
    printed=Wording(
        claim="The score profile is a function of the offset with no length in it; what is learned, the selected "
        "offset and the one margin mu by which it is selected, is the same at every length.",
        recorded=Verdict.REFUTED,
        residual=_residual_printed,
    ),
    amended=Wording(
        claim="The score function is the same at every length. The margin mu_L is not: it never rises with L, stays at "
        "0 or above where the phases are aligned with the target, and is then at most (1 - cos(2 pi/N)) sum r_i from "
        "L = K + N^P + 1 on, for P pairs and every N: it tends to 0.",
        recorded=Verdict.PROVED_GIVEN_CITED,
        residual=_residual_amended,
        prove=_prove_amended,
        cited=("Dirichlet 1842, simultaneous approximation",),
    ),
    assumptions=(
        Assumption(
            "one-schedule",
            "the frequencies are the same at both lengths",
            lambda case: np.array_equal(case.short_schedule.frequencies, case.long_schedule.frequencies),
        ),
        Assumption("rotation-only", "no bias by offset", lambda case: case.slope == 0),
        Assumption("aligned", "the mean query is the mean key pre-rotated to the target", _is_aligned),
    ),
    draw=_draw,
    tolerance=1e-9,
    tolerance_reason="positions stay below 2^11 at frequencies up to 1: an angle is off by 2^-42 rad at most, a score "
    "of six such lanes by less than 1e-11 of sum r_i, a margin by twice that",
    counterexamples=_counterexamples,
)
