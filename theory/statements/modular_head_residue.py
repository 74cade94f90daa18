"""Modular head: one component-periodic pair selects the positions of one residue.

At theta = 2 pi a/m, a prime to m, the key at position i scores C cos(2 pi a (i - r)/m) for the query that
looks for the residue r: C on the residue, C cos(2 pi/m) or less off it. In a softmax that subtracts its
maximum all others round to 0 iff they lie f below, f = e ln 2 with 2^-e half the smallest number of the format:

    C >= f / (1 - cos(2 pi/m)),     f = 17.33 (fp16), 92.88 (bf16), 103.97 (fp32).

Amended: the printed condition, twice that, is enough, and is needed only beside a sink, a key of constant
score that takes the weight where no position has the residue: it must lie f below C and f above C cos(2 pi/m).
The scores must be exact to the subtraction: a C that is just enough is not enough for scores in fp16.

Source: arXiv 2608.11909, claims as restated here; f is derived here from IEEE 754's layout of a format.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import sympy
from jaxtyping import Bool, Float64, Int

from theory.horizon import BF16, FP16, FP32, FloatFormat, least_modular_amplitude
from theory.schedule import RotarySchedule
from theory.statements.positional_discrepancy_dirichlet import first_multiple_step
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

# The smallest number above 0 that a format holds.
_SMALLEST = {"fp16": 2.0**-24, "bf16": 2.0**-133, "fp32": 2.0**-149}


@dataclass(frozen=True, eq=False)
class ModularHead:
    """A head of one pair at 2 pi a/m, what it looks for and with which amplitude, and how its softmax computes."""

    multiple: int
    modulus: int
    residue: int
    amplitude: float
    precision: FloatFormat
    sink: bool
    length: int
    shifted: bool = True
    rounded_scores: bool = False

    @property
    def threshold(self) -> float:
        """f / (1 - cos(2 pi/m)), f from the smallest number of the format."""
        return -math.log(_SMALLEST[self.precision.name] / 2) / (1 - math.cos(2 * math.pi / self.modulus))

    def scores(self, positions: Int[np.ndarray, "key"]) -> Float64[np.ndarray, "key"]:
        """From rotated vectors, over C."""
        schedule, unit = RotarySchedule.periodic([(self.multiple, self.modulus)]), np.array([1.0, 0.0])
        return schedule.rotate(np.tile(unit, (positions.size, 1)), positions) @ schedule.rotate(
            unit, np.array(self.residue)
        )

    def selects(self) -> bool:
        """Whether all weight lies on the residue; beside a sink, also whether that has all of it without one."""
        positions = np.arange(self.length)
        chosen = (positions - self.residue) % self.modulus == 0
        if not self.sink:
            return np.array_equal(self._kept(positions), chosen)
        absent = self._kept(positions[~chosen])
        return np.array_equal(self._kept(positions), [*chosen, False]) and absent[-1] and not absent[:-1].any()

    def _kept(self, positions: Int[np.ndarray, "key"]) -> Bool[np.ndarray, "kept"]:
        """The keys, a sink last, whose exponential the format does not round to 0."""
        scores = self.amplitude * self.scores(positions)
        if self.sink:
            scores = np.append(scores, self.amplitude * (1 + math.cos(2 * math.pi / self.modulus)) / 2)
        if self.rounded_scores:
            scores = _held(scores, self.precision)
        return _held(np.exp(scores - scores.max() if self.shifted else scores), self.precision) > 0


def _held(numbers: Float64[np.ndarray, "number"], precision: FloatFormat) -> Float64[np.ndarray, "number"]:
    """The nearest numbers of the format, by numpy's own; bf16 is fp32 without its last 16 bits, rounded to even."""
    with np.errstate(over="ignore", under="ignore"):
        if precision.name == "fp16":
            return numbers.astype(np.float16).astype(np.float64)
        single = numbers.astype(np.float32)
    if precision.name == "fp32":
        return single.astype(np.float64)
    bits = single.view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000).astype(np.uint32).view(np.float32).astype(np.float64)


def _residual_printed(case: ModularHead) -> float:
    """1 where the printed amplitude is met and the head does not select, and how far the runner-up is too high."""
    met = case.amplitude >= 2 * case.threshold
    return max(0.0, _runner_up(case) - math.cos(2 * math.pi / case.modulus)) + (met and not case.selects())


def _residual_amended(case: ModularHead) -> float:
    """1 where the head selects though the amplitude is not met, or the reverse; and the misses of two numbers."""
    needed = (2 if case.sink else 1) * case.threshold
    ours = least_modular_amplitude(case.modulus, case.precision, case.sink)
    misses = abs(_runner_up(case) - math.cos(2 * math.pi / case.modulus)) + abs(ours / needed - 1)
    return misses + (case.selects() != (case.amplitude >= needed))


def _runner_up(case: ModularHead) -> float:
    """The highest score off the residue, over C."""
    others = np.arange(case.length)
    return float(case.scores(others[(others - case.residue) % case.modulus != 0]).max())


@cache
def _prove_printed() -> tuple[ProofStep, ...]:
    a, b, c, i, j, r = sympy.symbols("a b c i j r", integer=True)
    m = sympy.Symbol("m", integer=True, positive=True)
    amplitude, gap, drop, more = sympy.symbols("C f drop more", positive=True)
    x = sympy.Symbol("x", real=True)
    turn = 2 * sympy.pi * a / m
    score = ((rot(turn * i) * sympy.Matrix([1, 0])).T * rot(turn * r) * sympy.Matrix([amplitude, 0]))[0]
    over = amplitude * drop - gap
    exponents, fractions = sympy.symbols("k p", integer=True, positive=True)
    lost = (2 ** (exponents - 1) - 1 + fractions) * sympy.log(2)
    smallest = sympy.S(2) ** (1 - (2 ** (exponents - 1) - 1) - fractions)
    formats = [lost.subs({exponents: f.exponent_bits, fractions: f.fraction_bits}) for f in (FP16, BF16, FP32)]
    return (
        ProofStep(
            "position i scores C cos(2 pi a (i-r)/m), and m positions on the same",
            vanishes(score - amplitude * sympy.cos(turn * (i - r))) and vanishes(score.subs(i, i + m) - score),
        ),
        ProofStep(
            "a prime to m has some a b = 1 + c m (Bezout): i - r = b j scores C cos(2 pi j/m), each residue j once",
            vanishes((score.subs(i, r + b * j) - amplitude * sympy.cos(2 * sympy.pi * j / m)).subs(a, (1 + c * m) / b)),
        ),
        first_multiple_step(),
        ProofStep(
            "e^-f is half the smallest number 2^(1-bias-p) of a format of k exponent and p fraction bits: a tie, "
            "which goes to 0",
            sympy.simplify(sympy.powsimp(sympy.exp(-lost).rewrite(sympy.Pow) / smallest) - sympy.Rational(1, 2)) == 0,
        ),
        ProofStep(
            "f = 25, 134 and 150 times ln 2 = 17.33, 92.88, 103.97 in fp16, bf16, fp32",
            [f"{sympy.N(f, 20):.2f}" for f in formats] == ["17.33", "92.88", "103.97"],
        ),
        ProofStep("e^-x falls: what lies more than f below is lost too", sympy.exp(-x).diff(x).is_negative is True),
        ProofStep(
            "C = 2 f/(1 - cos(2 pi/m)) + more has C (1 - cos(2 pi/m)) - f > 0: what is off the residue is lost",
            over.subs(amplitude, 2 * gap / drop + more).expand().is_positive is True,
        ),
    )


@cache
def _prove_amended() -> tuple[ProofStep, ...]:
    amplitude, gap, drop, more = sympy.symbols("C f drop more", positive=True)
    sink, below = sympy.Symbol("sink", real=True), sympy.Symbol("below", positive=True)
    over = amplitude * drop - gap
    upper, lower = amplitude - sink, sink - amplitude * (1 - drop)
    return (
        *_prove_printed(),
        ProofStep(
            "C = f/(1 - cos(2 pi/m)) is enough, at the tie, and more is above it: the gap less f is 0, then positive",
            over.subs(amplitude, gap / drop).expand() == 0
            and over.subs(amplitude, gap / drop + more).expand().is_positive is True,
        ),
        ProofStep(
            "and needed: with less the nearest residue, j = 1, lies less than f below and keeps weight",
            over.subs(amplitude, gap / drop - below).expand().is_negative is True,
        ),
        ProofStep(
            "the gaps above and below a sink add up to C (1 - cos(2 pi/m)): both f or more needs twice that C",
            (upper + lower - amplitude * drop).expand() == 0
            and (amplitude * drop - 2 * gap).subs(amplitude, 2 * gap / drop - below).expand().is_negative is True,
        ),
        ProofStep(
            "and halfway a sink has f on both sides at that C",
            all(
                (side - gap).subs(sink, amplitude * (1 - drop / 2)).subs(amplitude, 2 * gap / drop).expand() == 0
                for side in (upper, lower)
            ),
        ),
    )


def _draw(rng: np.random.Generator) -> ModularHead:
    modulus = int(rng.integers(2, 17))
    multiple = int(rng.choice([a for a in range(1, 3 * modulus) if math.gcd(a, modulus) == 1]))
    head = ModularHead(
        multiple=multiple,
        modulus=modulus,
        residue=int(rng.integers(modulus)),
        amplitude=1.0,
        precision=(FP16, BF16, FP32)[int(rng.integers(3))],
        sink=bool(rng.random() < 0.4),
        length=int(rng.integers(2 * modulus, 6 * modulus)),
    )
    factor = float(rng.choice([0.5, 0.98, 0.999, 1.001, 1.02, 1.999, 2.001, 3.0]))
    return replace(head, amplitude=factor * head.threshold)


def _counterexamples() -> tuple[Counterexample[ModularHead], ...]:
    fourths = ModularHead(1, 4, 1, 20.0, FP16, sink=False, length=12)
    even = replace(fourths, multiple=2)
    plain = replace(fourths, shifted=False)
    rounded = replace(fourths, modulus=12, length=24, amplitude=129.4, rounded_scores=True)
    return (
        Counterexample(
            "prime-multiple",
            "a/m = 2/4: residues 1 and 3 score alike",
            even,
            {"highest off the residue": _runner_up(even)},
        ),
        Counterexample(
            "maximum-subtracted",
            "e^score as it is: off the residue that is e^0 = 1 at m = 4",
            plain,
            {"C": plain.amplitude, "f/(1-cos)": plain.threshold, "weight off the residue": 1.0},
        ),
        Counterexample(
            "exact-scores",
            "C = 129.4 at m = 12, scores rounded to fp16: 129.375 less 112.0625 is below f",
            rounded,
            {
                "gap": rounded.amplitude * (1 - _runner_up(rounded)),
                "f": FP16.underflow_gap,
                "gap in fp16": _fp16(rounded),
            },
        ),
    )


def _fp16(case: ModularHead) -> float:
    top, next_best = np.float16(case.amplitude), np.float16(case.amplitude * _runner_up(case))
    return float(top) - float(next_best)


STATEMENT = Statement(
    row=29,
    id="modular-head",
    label="Modular head (arXiv 2608.11909)",
    printed=Wording(
        claim="On a pair of period m a head can select positions by residue: it scores C on its own and C cos(2 pi/m) "
        "or less on others, which vanish once C >= 2 f/(1 - cos(2 pi/m)), f the smallest gap whose e^-f underflows.",
        recorded=Verdict.PROVED,
        residual=_residual_printed,
        prove=_prove_printed,
    ),
    amended=Wording(
        claim="C >= f/(1 - cos(2 pi/m)) is enough and needed where the softmax subtracts its maximum, and twice that "
        "is where a sink of constant score takes the weight without the residue; f = 17.33, 92.88, 103.97.",
        recorded=Verdict.PROVED,
        residual=_residual_amended,
        prove=_prove_amended,
    ),
    assumptions=(
        Assumption("prime-multiple", "a is prime to m", lambda case: math.gcd(case.multiple, case.modulus) == 1),
        Assumption("maximum-subtracted", "exponentials are of score less highest score", lambda case: case.shifted),
        Assumption("exact-scores", "scores are not rounded before that", lambda case: not case.rounded_scores),
    ),
    draw=_draw,
    tolerance=1e-11,
    tolerance_reason="angles stay below 2 pi 48 * 96 and are off by 2^-39 rad at most, which moves cos by as much near "
    "sin = 1; amplitudes are 1e-3 or more from where selection changes, 17e-3 nats against scores right to 1e-8",
    counterexamples=_counterexamples,
)
