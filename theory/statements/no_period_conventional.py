"""No period: conventional rotations never come back, component-periodic ones do at the least common multiple.

The rotations of all active pairs are back at lag s iff s theta_i is in 2 pi Z for each of them.

    theta_0 = base^0 = 1:     s = 2 pi k with s != 0 makes pi = s / 2k rational, which it is not (Lambert 1761),
    theta_i = 2 pi a_i/m_i:   iff s is a multiple of lcm_i(m_i / gcd(a_i, m_i)).

The first pair alone decides the first line, for every real base above 0 and every width. Amended: it is a
claim about heads that use that pair, at 1 rad per position. A head that leaves it silent may repeat at a
transcendental base: base 25/(4 pi^2), d = 4, has theta_1 = 2 pi/5 (of an algebraic base any pair is enough,
see Lemma 2). So may one whose positions are scaled by pi/3. How near a return comes is another matter:
710 positions are 113 turns of the first pair to within 6e-5 rad.

Source: arXiv 2608.11909, claims as restated here; that the first pair is enough is ours.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import sympy
from jaxtyping import Bool

from theory.incommensurability import realigning_period
from theory.schedule import RotarySchedule
from theory.statements.statement import Assumption, Counterexample, ProofStep, Statement, Verdict, Wording, vanishes

_REACH = 1500
_BITS = 200


@dataclass(frozen=True, eq=False)
class Rotations:
    """A conventional schedule, the pairs that a head uses, and a component-periodic schedule as a/m pairs beside it."""

    schedule: RotarySchedule
    active: Bool[np.ndarray, "pair"]
    turns: tuple[tuple[int, int], ...]


def _first_return(schedule: RotarySchedule, active: Bool[np.ndarray, "pair"]) -> int | None:
    """The least lag up to _REACH within 2^-100 turns of whole ones on all active pairs, in integers of 200 bits."""
    exact = schedule.exact or ()
    turns = [
        int(sympy.floor(sympy.N(theta / (2 * sympy.pi), 90) * 2**_BITS))
        for theta, on in zip(exact, active, strict=True)
        if on
    ]
    half = 1 << (_BITS - 1)
    lags = range(1, _REACH + 1)
    return next(
        (s for s in lags if all(abs((s * turn + half) % (2 * half) - half) < 1 << (_BITS - 100) for turn in turns)),
        None,
    )


def _residual_printed(case: Rotations) -> float:
    """1 each where the search and the exact period say that all pairs together are back."""
    everything = np.ones(case.schedule.pairs, dtype=bool)
    return float(_first_return(case.schedule, everything) is not None) + (
        realigning_period(case.schedule, everything) is not None
    )


def _residual_amended(case: Rotations) -> float:
    """The same for the active pairs, and how far the component-periodic return is from the period and the lcm."""
    repeats = _first_return(case.schedule, case.active), realigning_period(case.schedule, case.active)
    periodic = RotarySchedule.periodic(case.turns)
    found = _first_return(periodic, np.ones(periodic.pairs, dtype=bool)) or math.inf
    multiple = math.lcm(*(m // math.gcd(a, m) for a, m in case.turns))
    return (
        sum(lag is not None for lag in repeats)
        + abs(found - multiple)
        + abs(found - (realigning_period(periodic) or 0))
    )


@cache
def _prove_printed() -> tuple[ProofStep, ...]:
    base = sympy.Symbol("base", positive=True)
    d, s, k = sympy.symbols("d s k", integer=True, nonzero=True)
    i = sympy.Symbol("i", integer=True)
    x, y = sympy.symbols("x y", real=True)
    turned = sympy.Matrix([[sympy.cos(x), -sympy.sin(x)], [sympy.sin(x), sympy.cos(x)]])
    back = sympy.solveset(turned.trace() - 2, x, sympy.S.Reals)
    whole_turns = sympy.ImageSet(sympy.Lambda(y, 2 * sympy.pi * y), sympy.S.Integers)
    first = (base ** (-2 * i / d)).subs(i, 0)
    solved = sympy.solve(s * first - 2 * sympy.pi * k, sympy.pi)
    return (
        ProofStep(
            "Rot(x) is the identity, of trace 2, iff x is in 2 pi Z",
            isinstance(back, sympy.ImageSet)
            and back.dummy_eq(whole_turns)
            and (turned.subs(x, 2 * sympy.pi * i) == sympy.eye(2)),
        ),
        ProofStep("theta_0 = base^(-2*0/d) = 1 for every base above 0 and every width d", first == 1),
        ProofStep("s theta_0 is not 0 for s not 0, so that it is no 0 turns", (s * first).is_nonzero is True),
        ProofStep(
            "s theta_0 = 2 pi k would make pi = s/(2k), which is rational; pi is not: never are all pairs back",
            solved == [s / (2 * k)] and solved[0].is_rational is True and sympy.pi.is_rational is False,
        ),
    )


@cache
def _prove_amended() -> tuple[ProofStep, ...]:
    a, b, c, j, s = sympy.symbols("a b c j s", integer=True)
    m = sympy.Symbol("m", integer=True, positive=True)
    common = sympy.Symbol("g", integer=True, positive=True)
    bezout = [s * a - j * m, a * b - 1 - c * m]
    base = 25 / (4 * sympy.pi**2)
    return (
        *_prove_printed(),
        ProofStep(
            "a common divisor g of a g and m g leaves the frequency 2 pi a/m as it is",
            2 * sympy.pi * (a * common) / (m * common) == 2 * sympy.pi * a / m,
        ),
        ProofStep(
            "2 pi a/m is back at every multiple s = j m",
            vanishes(sympy.cos(2 * sympy.pi * a * (j * m) / m) - 1),
        ),
        ProofStep(
            "and only there, a prime to m: s a = j m and a b = 1 + c m (Bezout) give s = m (j b - s c)",
            sympy.groebner(bezout, s, a, b, c, j, m).contains(s - m * (j * b - s * c)),
        ),
        ProofStep(
            "a common multiple j m less c times the least one, b m, is a common multiple: 0 where below the least",
            sympy.rem(j * m - c * (b * m), m, m) == 0,
        ),
        ProofStep(
            "at base 25/(4 pi^2), d = 4, the second pair turns by 2 pi/5 and is back every 5 positions",
            sympy.simplify(base ** sympy.Rational(-2, 4) - 2 * sympy.pi / 5) == 0
            and sympy.cos(5 * sympy.simplify(base ** sympy.Rational(-2, 4))) == 1,
        ),
    )


def _draw(rng: np.random.Generator) -> Rotations:
    pairs = int(rng.integers(1, 9))
    bases = (
        sympy.Integer(10) ** int(rng.integers(-12, 13)),
        sympy.Rational(int(rng.integers(1, 10_000)), int(rng.integers(1, 100))),
        sympy.Integer(int(rng.integers(2, 1000))) ** sympy.Rational(1, 2),
        (sympy.Rational(int(rng.integers(1, 30)), 2) / sympy.pi) ** 2,
    )
    base = bases[int(rng.integers(4))]
    schedule = RotarySchedule.from_exact([base ** sympy.Rational(-i, pairs) for i in range(pairs)])
    active = rng.random(pairs) < 0.5
    active[0] = True
    moduli = rng.integers(1, 12, size=int(rng.integers(1, 4))).tolist()
    return Rotations(schedule, active, tuple((int(rng.integers(1, 2 * m + 1)), m) for m in moduli))


def _counterexamples() -> tuple[Counterexample[Rotations], ...]:
    base = 25 / (4 * sympy.pi**2)
    transcendental = RotarySchedule.from_exact([sympy.S.One, base ** sympy.Rational(-1, 2)])
    second = Rotations(transcendental, np.array([False, True]), ((1, 4), (2, 6)))
    scaled = RotarySchedule.geometric(2, 1e4).scaled([sympy.pi / 3])
    thirds = replace(second, schedule=scaled, active=np.array([True]))
    return (
        Counterexample(
            "first-pair",
            "base 25/(4 pi^2), d = 4, a head on the second pair alone",
            second,
            {"base": float(base), "theta_1": float(transcendental.frequencies[1]), "period": float(_period(second))},
        ),
        Counterexample(
            "one-radian",
            "positions scaled by pi/3",
            thirds,
            {"theta_0": float(scaled.frequencies[0]), "period": float(_period(thirds))},
        ),
    )


def _period(case: Rotations) -> int:
    return _first_return(case.schedule, case.active) or 0


STATEMENT = Statement(
    row=30,
    id="no-period",
    label="Conventional RoPE never repeats (arXiv 2608.11909)",
    printed=Wording(
        claim="The rotations of conventional RoPE, all pairs together, are back at no nonzero lag.",
        recorded=Verdict.PROVED_GIVEN_CITED,
        residual=_residual_printed,
        prove=_prove_printed,
        cited=("Lambert 1761, pi is irrational",),
    ),
    amended=Wording(
        claim="Those of any pairs that include the first, at theta_0 = 1, are not, whatever the base and the other "
        "pairs; at theta_i = 2 pi a_i/m_i they are at the multiples of lcm(m_i/gcd(a_i, m_i)) and only there.",
        recorded=Verdict.PROVED_GIVEN_CITED,
        residual=_residual_amended,
        prove=_prove_amended,
        cited=("Lambert 1761, pi is irrational",),
    ),
    assumptions=(
        Assumption("first-pair", "the head uses the first pair", lambda case: bool(case.active[0])),
        Assumption(
            "one-radian",
            "which turns by 1 rad per position",
            lambda case: case.schedule.exact is not None and case.schedule.exact[0] == 1,
        ),
    ),
    draw=_draw,
    tolerance=1e-9,
    tolerance_reason="lags are whole numbers; 200 bits of a turn times 1500 lags are right to 2^-189, and pi is not "
    "within 2^-100 of a fraction of so small a denominator",
    counterexamples=_counterexamples,
)
