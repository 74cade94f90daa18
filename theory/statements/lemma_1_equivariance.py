"""Lemma 1: a rotary logit reads positions only through their difference.

    Rot(n theta_i)^T Rot(t theta_i) = Rot((t - n) theta_i)          for every block i
    l(n, t) = sum_i a_i^T Rot((t - n) theta_i) b_i                  for every number h of blocks

a_i, b_i are the rotary pairs of the query and the key before rotation. Amended: the same holds
for any logit f(t - n, content), so for ALiBi and T5 biases too. A gain per channel belongs to
the content where it stands before the rotation; after it, it must be the same on both lanes of
a pair, or it does not commute with the rotation.

Source: arXiv 2607.18759, Lemma 1 and appendix A.1.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import sympy
from jaxtyping import Float64, Int

from theory.schedule import RotarySchedule, as_pairs
from theory.statements.statement import (
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
class PositionedLogit:
    """A query and a key, how each is told its position, and pairs of positions with one shift."""

    query: Float64[np.ndarray, "dim"]
    key: Float64[np.ndarray, "dim"]
    query_schedule: RotarySchedule
    key_schedule: RotarySchedule
    gain_after: Float64[np.ndarray, "dim"]
    learned: Float64[np.ndarray, "table dim"]
    slope: float
    query_positions: Int[np.ndarray, "case"]
    key_positions: Int[np.ndarray, "case"]
    shift: int

    def logits(self, shift: int) -> Float64[np.ndarray, "case"]:
        """l(n + shift, t + shift) in units of sum_i |a_i||b_i|, with an ALiBi bias of the given slope."""
        n, t = self.query_positions + shift, self.key_positions + shift
        query = self.query_schedule.rotate(self.query + self.learned[n % len(self.learned)], n)
        key = self.key_schedule.rotate(self.key + self.learned[t % len(self.learned)], t)
        size = np.abs(as_pairs(self.query)) @ np.abs(as_pairs(self.key))
        return ((query * self.gain_after) * key).sum(axis=-1) / size + self.slope * (t - n)


def _residual(case: PositionedLogit) -> float:
    """Greatest change of a logit when both positions move by the shift."""
    return float(np.abs(case.logits(case.shift) - case.logits(0)).max())


@cache
def _prove_printed() -> tuple[ProofStep, ...]:
    n, t, theta, delta = sympy.symbols("n t theta delta", real=True)
    block = rot(n * theta).T * rot(t * theta) - rot((t - n) * theta)
    absolute, relative, i, h = _summands(n, n + delta)
    total = sympy.Sum(absolute, (i, 0, h - 1))
    return (
        ProofStep("Rot(n theta)^T Rot(t theta) - Rot((t-n) theta) = 0, one block", all(map(vanishes, block))),
        ProofStep("the summand of block i is a_i^T Rot(delta theta_i) b_i", vanishes(absolute - relative)),
        ProofStep(
            "d/dn of the sum over blocks 0..h-1 at fixed delta is 0, h symbolic",
            total.diff(n).func is sympy.Sum and vanishes(total.diff(n).function) and not relative.has(n),
        ),
    )


@cache
def _prove_amended() -> tuple[ProofStep, ...]:
    n, t, delta, query, key = sympy.symbols("n t delta x_n x_t", real=True)
    even, odd = sympy.symbols("gamma_0 gamma_1", positive=True)
    logit = sympy.Function("f")(t - n, query, key).subs(t, n + delta)
    gain_before = _summands(n, n + delta, key_gain=(even, odd))[0].diff(n)
    after, _, i, _ = _summands(n, n + delta, gain_after=(even, odd))
    a, b, theta = sympy.IndexedBase("a"), sympy.IndexedBase("b"), sympy.IndexedBase("theta", real=True)
    unit = {a[2 * i]: 1, a[2 * i + 1]: 0, b[2 * i]: 1, b[2 * i + 1]: 0, theta[i]: 1, even: 1, odd: 2, delta: 0}
    changes = after.subs(unit).diff(n).subs(n, 1)
    return (
        *_prove_printed(),
        ProofStep("any f(t-n, x_n, x_t), such as a bias per offset, is free of n", n not in logit.free_symbols),
        ProofStep("with a gain per channel before the rotation d/dn is still 0", vanishes(gain_before)),
        ProofStep(
            "with a gain after it d/dn is 0 where both lanes of a pair have one gain",
            vanishes(after.subs(odd, even).diff(n)),
        ),
        ProofStep(
            "where they differ it need not be: gains 1, 2, a = b = (1, 0), theta = n = 1, delta = 0: d/dn = sin 2 > 0",
            vanishes(changes - sympy.sin(2)) and bool(sympy.sin(2) > 0),
        ),
    )


def _summands(
    n: sympy.Expr,
    t: sympy.Expr,
    key_gain: tuple[sympy.Expr, sympy.Expr] = (sympy.S.One, sympy.S.One),
    gain_after: tuple[sympy.Expr, sympy.Expr] = (sympy.S.One, sympy.S.One),
) -> tuple[sympy.Expr, sympy.Expr, sympy.Symbol, sympy.Symbol]:
    """Summand i of the logit from absolute and from relative positions, with i and h."""
    i, h = sympy.Symbol("i", integer=True), sympy.Symbol("h", integer=True, positive=True)
    query, key, theta = sympy.IndexedBase("a"), sympy.IndexedBase("b"), sympy.IndexedBase("theta", real=True)[i]
    a = sympy.Matrix([query[2 * i], query[2 * i + 1]])
    b = sympy.diag(*key_gain) * sympy.Matrix([key[2 * i], key[2 * i + 1]])
    absolute = (rot(n * theta) * a).T * sympy.diag(*gain_after) * (rot(t * theta) * b)
    relative = a.T * rot(sympy.expand(t - n) * theta) * b
    return absolute[0], relative[0], i, h


def _draw(rng: np.random.Generator) -> PositionedLogit:
    pairs, cases = int(rng.integers(1, 33)), 64
    schedule = RotarySchedule.geometric(2 * pairs, float(10 ** rng.uniform(1, 6)))
    far = 10 ** rng.uniform(1, 5.7, size=(2, cases))
    return PositionedLogit(
        query=rng.normal(size=2 * pairs),
        key=rng.normal(size=2 * pairs),
        query_schedule=schedule,
        key_schedule=schedule,
        gain_after=np.repeat(rng.uniform(0.5, 2, size=pairs), 2),
        learned=np.zeros((1, 2 * pairs)),
        slope=float(rng.choice([0.0, -0.5])),
        query_positions=far[0].astype(int),
        key_positions=far[1].astype(int),
        shift=int(rng.integers(1, 500_000)),
    )


def _counterexamples() -> tuple[Counterexample[PositionedLogit], ...]:
    unit = np.array([1.0, 0.0])
    rotary = PositionedLogit(
        query=unit,
        key=unit,
        query_schedule=RotarySchedule.geometric(2, 1e4),
        key_schedule=RotarySchedule.geometric(2, 1e4),
        gain_after=np.ones(2),
        learned=np.zeros((1, 2)),
        slope=0.0,
        query_positions=np.array([2]),
        key_positions=np.array([0]),
        shift=1,
    )
    learned = replace(rotary, learned=np.array([[0.0, 0], [0, 0], [0, 0], [1, 0]]))
    slower = replace(rotary, key_schedule=RotarySchedule(np.array([0.5])))
    gained = replace(rotary, gain_after=np.array([2.0, 1.0]))
    return (
        Counterexample(
            "rotation-only", "a learned row p_3 added to the query at position 3", learned, _numbers(learned)
        ),
        Counterexample("one-schedule", "keys turned half as fast as queries", slower, _numbers(slower)),
        Counterexample(
            "no-gain-after", "a gain of 2 and 1 on the lanes of a pair after rotation", gained, _numbers(gained)
        ),
    )


def _numbers(case: PositionedLogit) -> dict[str, float]:
    return {"logit at (n, t) = (2, 0)": float(case.logits(0)[0]), "at (3, 1)": float(case.logits(1)[0])}


STATEMENT = Statement(
    row=1,
    id="lemma-1",
    label="Lemma 1, equivariance",
    printed=Wording(
        claim="Whatever the two projections, the logit of a rotary head at positions (n, t) is a function of t - n "
        "and of the two tokens.",
        recorded=Verdict.PROVED,
        residual=_residual,
        prove=_prove_printed,
    ),
    amended=Wording(
        claim="So is every logit whose positions enter through t - n alone, biases by offset included; a gain per "
        "channel may stand before the rotation, or after it if both lanes of a pair share it.",
        recorded=Verdict.PROVED,
        residual=_residual,
        prove=_prove_amended,
    ),
    assumptions=(
        Assumption("rotation-only", "content does not depend on the position", lambda case: not case.learned.any()),
        Assumption(
            "one-schedule",
            "queries and keys turn at the same frequencies",
            lambda case: np.array_equal(case.query_schedule.frequencies, case.key_schedule.frequencies),
        ),
        Assumption(
            "no-gain-after",
            "a gain after the rotation is the same on both lanes of a pair",
            lambda case: np.array_equal(case.gain_after[0::2], case.gain_after[1::2]),
        ),
    ),
    draw=_draw,
    tolerance=1e-8,
    tolerance_reason="positions stay below 2^20, where float64 rounds t theta by 2^-34 rad at most: four such angles "
    "under gains up to 2 move a logit by less than 5e-10 of sum |a||b|, and the bias by as little",
    counterexamples=_counterexamples,
)
