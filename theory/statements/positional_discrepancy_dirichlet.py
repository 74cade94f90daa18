"""Positional discrepancy: by how much a head that looks for a place can lead at every length.

A key of one content at place t scores sum_i r_i cos((t - a) theta_i) for the query that looks for place a.
Over all places a of n keys the largest logit leads the second by, at the least,

    A (1 - max_{0<|s|<n} g(s)),   A = sum r_i,   g(s) = sum_i r_i cos(s theta_i) / A,

which does not increase with n. Over N = n - 1 lags no m frequencies lead by more than

    A (1 - cos(2 pi (N + 1)^(-1/m)))    where N + 1 >= 2^m,

and one frequency attains it at theta = 2 pi/(N + 1). Refuted as restated with N in place of N + 1, for any N:
with N = m = 2 that is 1 - cos(2 pi/sqrt 2) = 1.266, while two pairs of equal amplitude at 2 pi/3 lead by 3/2.
From N >= 2^m on it holds, as the weaker bound. Amended: N + 1, and 2, which is no bound, below 2^m.

Source: arXiv 2605.31558, claims as restated here; the laws in the frequencies are ours.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import sympy
from jaxtyping import Float64, Int
from sympy.calculus.util import minimum

from theory.discrepancy import dirichlet_bound, discrepancy, positional_discrepancy
from theory.schedule import RotarySchedule, as_lanes, as_pairs
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
class PlaceReader:
    """Queries that look for places, keys of one content but for their residuals, and a phase error a pair."""

    amplitudes: Float64[np.ndarray, "pair"]
    schedule: RotarySchedule
    targets: Int[np.ndarray, "target"]
    residuals: Float64[np.ndarray, "key dim"]
    phases: Float64[np.ndarray, "pair"]

    @property
    def total(self) -> float:
        """A, in nats."""
        return float(self.amplitudes.sum())

    def leads(self) -> Float64[np.ndarray, "length"]:
        """Least discrepancy over the targets in a context, at 2..n keys, over A, from rotated vectors."""
        content = np.repeat(np.sqrt(self.amplitudes / 2), 2)
        places = np.arange(len(self.residuals))
        keys = self.schedule.rotate(content + self.residuals, places)
        turned = as_lanes(as_pairs(content) * np.exp(1j * self.phases))
        queries = self.schedule.rotate(np.tile(turned, (len(self.targets), 1)), self.targets)
        logits = queries @ keys.T / self.total
        return np.array([discrepancy(logits[self.targets < n, :n]).min() for n in places[2:] + 1])


def _residual_printed(case: PlaceReader) -> float:
    return _misses(case, [1 - math.cos(2 * math.pi * n ** (-1 / case.schedule.pairs)) for n in _lags(case)])


def _residual_amended(case: PlaceReader) -> float:
    """The misses, and how far the frequency that should attain the bound stays from it."""
    bounds = [dirichlet_bound(n, case.schedule.pairs) for n in _lags(case)]
    return _misses(case, bounds) + (abs(case.leads()[-1] - bounds[-1]) if _is_optimal(case) else 0)


def _misses(case: PlaceReader, bounds: list[float]) -> float:
    """Distance of the leads from A (1 - max g), and by how much they increase or exceed the bounds; A = 1."""
    leads = case.leads()
    law = positional_discrepancy(case.amplitudes / case.total, case.schedule, len(case.residuals))[2:]
    increase = np.diff(leads, append=leads[-1])
    return float(max(0.0, np.abs(leads - law).max(), increase.max(), (leads - bounds).max()))


def _lags(case: PlaceReader) -> range:
    """N at 3..n keys."""
    return range(2, len(case.residuals))


def _is_optimal(case: PlaceReader) -> bool:
    return case.schedule.pairs == 1 and math.isclose(case.schedule.frequencies[0] * len(case.residuals), 2 * math.pi)


def first_multiple_step() -> ProofStep:
    """1 - cos(2 pi s/n) for s = 1..n-1 is lowest at s = 1: written with s = 1 + j and n = j + k + 2."""
    j, k = sympy.symbols("j k", integer=True, nonnegative=True)
    x = sympy.Symbol("x", real=True)
    step = 2 * sympy.pi / (j + k + 2)
    low, high = step * j / 2, step * (j + 2) / 2
    excess = sympy.cos(step) - sympy.cos((1 + j) * step) - 2 * sympy.sin(low) * sympy.sin(high)
    inside = all(
        angle.is_nonnegative is True and sympy.factor(sympy.pi - angle).is_nonnegative is True for angle in (low, high)
    )
    return ProofStep(
        "1 - cos(2 pi s/n) less its value at s = 1 is 2 sin(pi (s-1)/n) sin(pi (s+1)/n), 0 or more for s = 1..n-1",
        vanishes(excess) and inside and minimum(sympy.sin(x), x, sympy.Interval(0, sympy.pi)) == 0,
    )


@cache
def _prove_amended() -> tuple[ProofStep, ...]:
    i, k = sympy.symbols("i k", integer=True)
    pairs, lags = sympy.symbols("m N", integer=True, positive=True)
    a, t, s, x, y, lead, rival = sympy.symbols("a t s x y lead rival", real=True)
    r, theta = sympy.IndexedBase("r", positive=True), sympy.IndexedBase("theta", real=True)
    u = sympy.Matrix([sympy.IndexedBase("u", real=True)[2 * i + lane] for lane in (0, 1)])
    score = ((rot(a * theta[i]) * u).T * rot(t * theta[i]) * u)[0]
    over_pairs = (i, 1, pairs)
    turned = sympy.Sum(r[i] * sympy.cos(s * theta[i]), over_pairs)
    gaps = sympy.Sum(r[i] * (1 - sympy.cos(s * theta[i])), over_pairs)
    share, shortfall, partial = sympy.symbols("p shortfall partial", nonnegative=True)
    turns = (lags + 1) ** (1 / pairs)
    half = sympy.Interval(0, sympy.Rational(1, 2))
    gap = 1 - sympy.cos(2 * sympy.pi * y)
    return (
        ProofStep(
            "pair i of the key at t scores |u_i|^2 cos((t-a) theta_i) for the target a",
            vanishes(score - (u.T * u)[0] * sympy.cos((t - a) * theta[i])),
        ),
        ProofStep(
            "the target leads a key s away by A - sum r_i cos(s theta_i) = sum r_i (1 - cos(s theta_i)), any m",
            sympy.simplify(sympy.Sum(r[i], over_pairs) - turned - gaps.expand()) == 0,
        ),
        ProofStep("which is the same at s and -s", gaps.subs(s, -s) == gaps),
        ProofStep(
            "one rival more never raises the least lead: min(lead, rival) = lead + min(0, rival - lead)",
            (sympy.Min(lead, rival) - lead - sympy.Min(0, rival - lead)).rewrite(sympy.Abs).expand() == 0
            and sympy.Min(0, x).is_nonpositive is True,
        ),
        ProofStep(
            "Q = (N+1)^(1/m) has Q^m = N + 1: some lag s < Q^m, so s <= N, lies within 1/Q turns on every pair",
            turns**pairs == lags + 1,
        ),
        ProofStep(
            "1 - cos(2 pi y) depends on the distance of y from whole turns alone, and rises with it up to 1/2",
            vanishes(gap.subs(y, k + y) - gap)
            and vanishes(gap.subs(y, k - y) - gap)
            and minimum(gap.diff(y), y, half) == 0,
        ),
        ProofStep(
            "it is 2 at the most, which is what is left to say where Q < 2",
            vanishes(2 - gap - 2 * sympy.cos(sympy.pi * y) ** 2) and (2 * sympy.cos(x) ** 2).is_nonnegative is True,
        ),
        ProofStep(
            "a mean of terms that fall short of a bound falls short of it, by induction on m",
            sympy.expand(share * x - share * (x - shortfall)) == share * shortfall
            and (partial + share * shortfall).is_nonnegative is True,
        ),
        first_multiple_step(),
        ProofStep(
            "so theta = 2 pi/(N+1) leads by 1 - cos(2 pi/(N+1)), which is the bound for m = 1",
            gap.subs(y, 1 / turns).subs(pairs, 1) == 1 - sympy.cos(2 * sympy.pi / (lags + 1)),
        ),
    )


def _reader(schedule: RotarySchedule, amplitudes: Float64[np.ndarray, "pair"], length: int) -> PlaceReader:
    return PlaceReader(
        amplitudes, schedule, np.arange(length), np.zeros((length, schedule.dim)), np.zeros(schedule.pairs)
    )


def _draw(rng: np.random.Generator) -> PlaceReader:
    pairs, length = int(rng.integers(1, 5)), int(rng.integers(3, 65))
    schedules = (
        RotarySchedule.periodic([(1, length)]),
        RotarySchedule.geometric(2 * pairs, float(10 ** rng.uniform(1, 5))),
        RotarySchedule(rng.uniform(-np.pi, np.pi, size=pairs)),
    )
    schedule = schedules[int(rng.integers(3))]
    return _reader(schedule, rng.uniform(0.1, 5, size=schedule.pairs), length)


def _counterexamples() -> tuple[Counterexample[PlaceReader], ...]:
    thirds = _reader(RotarySchedule.periodic([(1, 3), (1, 3)]), np.ones(2), 3)
    eleven = _reader(RotarySchedule.periodic([(1, 9)]), np.ones(1), 11)
    alone = replace(eleven, targets=np.array([2]))
    best = _reader(RotarySchedule.periodic([(1, 11)]), np.ones(1), 11)
    error = replace(best, phases=np.array([0.2]))
    told = replace(best, residuals=np.vstack([[1.0, 0.0], np.zeros((10, 2))]))
    return (
        Counterexample(
            PRINTED,
            "N = 2 lags, two pairs at 2 pi/3: 1 - cos(2 pi/3) = 3/2 at both lags, above 1 - cos(2 pi/sqrt 2)",
            thirds,
            {"lead over A": float(thirds.leads()[-1]), "as printed": 1 - math.cos(2 * math.pi / math.sqrt(2))},
        ),
        Counterexample(
            "every-target",
            "the third of 11 keys as the only target meets lags up to 8, which 2 pi/9 keeps farther apart",
            alone,
            _numbers(alone),
        ),
        Counterexample("aligned", "a query 0.2 rad off: the rival on that side is nearer", error, _numbers(error)),
        Counterexample("one-content", "the first key's content adds to its logit", told, _numbers(told)),
    )


def _numbers(case: PlaceReader) -> dict[str, float]:
    lags = len(case.residuals) - 1
    law = positional_discrepancy(case.amplitudes / case.total, case.schedule, lags + 1)
    return {
        "lead over A": float(case.leads()[-1]),
        "1 - max g": float(law[-1]),
        "bound": dirichlet_bound(lags, case.schedule.pairs),
    }


STATEMENT = Statement(
    row=27,
    id="positional-discrepancy",
    label="Positional discrepancy (arXiv 2605.31558)",
    printed=Wording(
        claim="A positional head leads by A (1 - max g) over the nonzero lags in context, which does not increase with "
        "length; m frequencies by A (1 - cos(2 pi N^(-1/m))) at most over N lags.",
        recorded=Verdict.REFUTED,
        residual=_residual_printed,
    ),
    amended=Wording(
        claim="That is its least lead over all targets of the context, and m frequencies lead by "
        "A (1 - cos(2 pi (N+1)^(-1/m))) at most where N + 1 >= 2^m; one frequency attains it, theta = 2 pi/(N+1).",
        recorded=Verdict.PROVED_GIVEN_CITED,
        residual=_residual_amended,
        prove=_prove_amended,
        cited=("Dirichlet 1842 and Minkowski 1896, simultaneous approximation: some 0 < s < Q^m, Q > 1 real",),
    ),
    assumptions=(
        Assumption(
            "every-target",
            "the lead is the least over all places of the context",
            lambda case: np.array_equal(case.targets, np.arange(len(case.residuals))),
        ),
        Assumption("aligned", "the query's phases are the key's", lambda case: not case.phases.any()),
        Assumption("one-content", "all keys have one content", lambda case: not case.residuals.any()),
    ),
    draw=_draw,
    tolerance=1e-12,
    tolerance_reason="float64 angles below 64 pi are off by 2^-45 rad at most, and a logit of A = 1 by as much: two "
    "logits of a lead, and the law, 1e-13 in all",
    counterexamples=_counterexamples,
)
