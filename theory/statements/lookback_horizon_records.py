"""Look-back horizon: how far a head that looks a fixed number of positions back keeps its target apart.

    N_max = sup {L : sum_i r_i (1 - cos(n theta_i)) >= f for n = 1..L},   f the gap whose e^-f underflows.

For one pair the first lag that falls short is a record of cos(n theta): at theta = 1, n = 6, 19, 25, 44, 333,
710, so that N_max = 0, 5, 18, 24, 43, 332, 709 as C grows. Scores kept to t bits round rival and target to one
number, and no C helps, from N lags on with

    N + 1 >= (2 pi / arccos(1 - 2^-(t+1)))^m     for m pairs: 100.5 (bf16), 284.3 (fp16), 25736 (fp32) for one.

Refuted as restated with 2^-t (71, 201, 18198): C = 1 and theta = 2 pi/251 keep 250 rivals apart in fp16,
because below a power of 2 numbers lie twice as dense. Amended: t + 1 bits, which one pair attains at every
power of 2, and an amplitude that is itself a number of t bits: one between two numbers may round away from
its rivals. At t the cap is right for amplitudes just above a power of 2, and in general to a factor sqrt 2 a pair.

Source: arXiv 2608.11909, claims as restated here; formats, certificates and the last bit are ours.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import sympy
from flint import arb
from jaxtyping import Float64, Int
from sympy.calculus.util import minimum

from theory.horizon import BF16, FP16, FP32, FloatFormat, lookback_horizon, precision_cap
from theory.recurrences import continued_fraction_recurrences, record_recurrences
from theory.schedule import RotarySchedule
from theory.statements.positional_discrepancy_dirichlet import first_multiple_step
from theory.statements.statement import PRINTED, Assumption, Counterexample, ProofStep, Statement, Verdict, Wording


@dataclass(frozen=True, eq=False)
class LookBack:
    """Amplitudes in nats, the lags of the rivals, and the bits to which scores are kept."""

    amplitudes: Float64[np.ndarray, "pair"]
    schedule: RotarySchedule
    lags: Int[np.ndarray, "rival"]
    precision: FloatFormat
    kept_bits: int

    def scores(self) -> Float64[np.ndarray, "rival"]:
        """sum_i r_i cos(n theta_i) at every rival."""
        return np.cos(np.multiply.outer(self.lags, self.schedule.frequencies)) @ self.amplitudes

    def horizon(self) -> int | None:
        """One less than the first lag whose exponential does not underflow, None where all do."""
        gap = (2 ** (self.precision.exponent_bits - 1) - 1 + self.precision.fraction_bits) * math.log(2)
        short = np.flatnonzero(self.amplitudes.sum() - self.scores() < gap)
        return int(self.lags[short[0]]) - 1 if short.size else None

    def confuses(self) -> bool:
        """Whether some rival's score rounds to the target's."""
        return bool(
            (_kept(self.scores(), self.kept_bits) == _kept(self.amplitudes.sum(keepdims=True), self.kept_bits)).any()
        )


def _kept(numbers: Float64[np.ndarray, "number"], bits: int) -> Float64[np.ndarray, "number"]:
    """The nearest number of so many bits, ties to even."""
    significands, exponents = np.frexp(numbers)
    return np.ldexp(np.rint(np.ldexp(significands, bits)), exponents - bits)


def _residual_printed(case: LookBack) -> float:
    return _misses(case, precision_cap(case.precision.significand_bits, case.schedule.pairs))


def _residual_amended(case: LookBack) -> float:
    """The misses, plus 1 where the frequency that should attain the cap does not keep its rivals apart."""
    cap = precision_cap(case.precision.significand_bits + 1, case.schedule.pairs)
    return _misses(case, cap) + (_attains(case) and len(case.lags) + 1 < cap and case.confuses())


def _misses(case: LookBack, cap: float) -> float:
    """1 each where the two horizons differ and where rivals beyond the cap are all kept apart."""
    reach = int(case.lags.max())
    ours = lookback_horizon(case.amplitudes, case.schedule, case.precision, reach)
    within = None if ours is None or ours >= reach else ours
    return float(within != case.horizon()) + (len(case.lags) + 1 >= cap and not case.confuses())


def _attains(case: LookBack) -> bool:
    """One pair at 2 pi/(N+1) with an amplitude that is a power of 2."""
    slowest = math.isclose(case.schedule.frequencies[0] * (len(case.lags) + 1), 2 * math.pi)
    return case.schedule.pairs == 1 and slowest and math.frexp(case.amplitudes[0])[0] == 0.5


@cache
def _prove_amended() -> tuple[ProofStep, ...]:
    one, unit = RotarySchedule.from_exact([sympy.S.One]), np.ones(1)
    scanned = [record.lag for record in record_recurrences(unit, one, 1000)]
    expanded = [record.lag for record in continued_fraction_recurrences(unit, one, 1000)]
    amplitudes = (20.0, 100.0, 1e3, 1700.0, 1e4, 2e5, 1e6)
    horizons = [lookback_horizon(np.array([c]), one, FP16) for c in amplitudes]
    caps = [
        [2 * arb.pi() / (1 - arb(2) ** -(f.significand_bits + b)).acos() for f in (BF16, FP16, FP32)] for b in (0, 1)
    ]
    stated = [[71.06, 201.05, 18198.05], [100.51, 284.34, 25735.93]]
    amplitude, gap, short, over = sympy.symbols("C f short over", positive=True)
    pairs, lags, bits = sympy.symbols("m N t", integer=True, positive=True)
    k, y = sympy.Symbol("k", integer=True), sympy.Symbol("y", real=True)
    part, slack = sympy.Symbol("u", positive=True), sympy.Symbol("w", positive=True)
    turns = (lags + 1) ** (1 / pairs)
    cap, half = 2 * sympy.pi / sympy.acos(1 - part), sympy.Interval(0, sympy.Rational(1, 2))
    power, two = sympy.S(2) ** k, sympy.S(2)
    reach = amplitude * two ** -(bits + 1)
    return (
        ProofStep(
            "the records of cos n up to n = 1000 are 6, 19, 25, 44, 333, 710, by a scan and by the continued fraction",
            scanned == expanded == [6, 19, 25, 44, 333, 710],
            "arb",
        ),
        ProofStep(
            "at C = 20, 100, 1e3, 1700, 1e4, 2e5, 1e6 in fp16 N_max = 0, 5, 18, 24, 43, 332, 709",
            horizons == [0, 5, 18, 24, 43, 332, 709],
            "arb",
        ),
        ProofStep(
            "the first lag short of f, C (1 - g) = f - short, is above a nearer one, which has f + over: a record",
            ((1 - (gap - short) / amplitude) - (1 - (gap + over) / amplitude)).simplify().is_positive is True,
        ),
        ProofStep(
            "Q = (N+1)^(1/m) has Q^m = N + 1: some lag s <= N lies within 1/Q turns on every pair",
            turns**pairs == lags + 1,
        ),
        ProofStep(
            "at Q = 2 pi/arccos(1-u) the rise 1 - cos(2 pi/Q) is u, and at a larger Q no more: it rises up to 1/2 turn",
            1 - sympy.cos(2 * sympy.pi / cap) == part
            and minimum((1 - sympy.cos(2 * sympy.pi * y)).diff(y), y, half) == 0,
        ),
        ProofStep(
            "below C = 2^k numbers of t bits lie 2^(k-t) apart: half of it is C 2^-(t+1), a tie that goes to C, even",
            sympy.simplify(power * two**-bits / 2 - reach.subs(amplitude, power)) == 0,
        ),
        ProofStep(
            "below C = 2^k (2 - w), 0 < w < 1, they lie 2^(k+1-t) apart: half of it is above C 2^-(t+1)",
            sympy.simplify(power * two ** (1 - bits) / 2 - reach.subs(amplitude, power * (2 - slack))).is_positive
            is True,
        ),
        ProofStep(
            "a part 2^-t of C = 2^k is more than half the distance below it: there the cap at t is too low",
            sympy.simplify(2 * reach.subs(amplitude, power) - power * two**-bits / 2).is_positive is True,
        ),
        first_multiple_step(),
        ProofStep(
            "2 pi/arccos(1 - 2^-t) = 71.06, 201.05, 18198.05 in bf16, fp16, fp32; 100.51, 284.34, 25735.93 at t + 1",
            all(
                bool(abs(ball - number) < 0.006)
                for balls, numbers in zip(caps, stated, strict=True)
                for ball, number in zip(balls, numbers, strict=True)
            ),
            "arb",
        ),
    )


def _look_back(
    schedule: RotarySchedule, amplitudes: Float64[np.ndarray, "pair"], lags: int, precision: FloatFormat
) -> LookBack:
    return LookBack(amplitudes, schedule, np.arange(1, lags + 1), precision, precision.significand_bits)


def _draw(rng: np.random.Generator) -> LookBack:
    precision, pairs = (BF16, FP16, FP32)[int(rng.integers(3))], int(rng.integers(1, 3))
    bits = precision.significand_bits
    total = float(
        2.0 ** int(rng.integers(4, 12)) * (1 if rng.random() < 0.5 else rng.integers(1, 2**bits) / 2**bits + 1)
    )
    total = _kept(np.array([total]), bits).item()
    if pairs == 1 or precision is FP32:
        lags = int(rng.uniform(0.9 * precision_cap(bits), 1.1 * precision_cap(bits + 1)))
        turning = (RotarySchedule.periodic([(1, lags + 1)]), RotarySchedule(rng.uniform(-np.pi, np.pi, size=1)))
        one = RotarySchedule.from_exact([sympy.S.One])
        return _look_back((*turning, one)[int(rng.integers(3))], np.array([total]), lags, precision)
    # A share in whole 2^-20, so that the two add up to the total exactly.
    share = float(np.rint(total * rng.uniform(0.1, 0.9) * 2**20) / 2**20)
    lags = math.ceil(precision_cap(bits + 1, 2)) if precision is BF16 else 2000
    schedule = RotarySchedule(rng.uniform(-np.pi, np.pi, size=2))
    return _look_back(schedule, np.array([share, total - share]), lags, precision)


def _counterexamples() -> tuple[Counterexample[LookBack], ...]:
    full = _look_back(RotarySchedule.periodic([(1, 251)]), np.ones(1), 250, FP16)
    beyond = _look_back(RotarySchedule.periodic([(1, 301)]), np.ones(1), 300, FP16)
    between = replace(beyond, amplitudes=np.array([1 + 1.01 * 2.0**-11]))
    finer = replace(beyond, kept_bits=53)
    odd = replace(beyond, schedule=RotarySchedule.periodic([(1, 2)]), lags=np.arange(1, 601, 2))
    return (
        Counterexample(
            PRINTED,
            "C = 1, theta = 2 pi/251: 250 rivals, more than 201, and all round to 1 - 2^-11 or less in fp16",
            full,
            {"highest rival in fp16": float(np.float16(full.scores().max())), "cap at t": precision_cap(11)},
        ),
        Counterexample(
            "representable",
            "C just above halfway to the next number of fp16: it rounds up, its rivals down",
            between,
            _numbers(between),
        ),
        Counterexample("rounded-scores", "the same head at C = 1 with scores kept to 53 bits", finer, _numbers(finer)),
        Counterexample(
            "every-lag", "300 rivals at odd lags, which pi rad per position keeps at -C", odd, _numbers(odd)
        ),
    )


def _numbers(case: LookBack) -> dict[str, float]:
    return {
        "target": _kept(case.amplitudes.sum(keepdims=True), case.kept_bits).item(),
        "highest rival": _kept(case.scores().max(keepdims=True), case.kept_bits).item(),
        "cap at t + 1": precision_cap(case.precision.significand_bits + 1, case.schedule.pairs),
    }


def _is_kept(numbers: Float64[np.ndarray, "number"], precision: FloatFormat) -> bool:
    return np.array_equal(_kept(numbers, precision.significand_bits), numbers)


STATEMENT = Statement(
    row=31,
    id="lookback-horizon",
    label="Look-back horizon (arXiv 2608.11909)",
    printed=Wording(
        claim="A look-back holds up to N_max, set by the record near recurrences 6, 19, 25, 44, 333, 710 of 1 rad; "
        "whatever C, rounding to t bits ends it at 2 pi/arccos(1 - 2^-t) lags, to the power m for m pairs.",
        recorded=Verdict.REFUTED,
        residual=_residual_printed,
    ),
    amended=Wording(
        claim="N_max is one less than a record, 0, 5, 18, 24, 43, 332, 709 as C grows; whatever C of t bits, rounding "
        "ends it once N + 1 reaches (2 pi/arccos(1 - 2^-(t+1)))^m, which one pair attains at powers of 2.",
        recorded=Verdict.PROVED_GIVEN_CITED,
        residual=_residual_amended,
        prove=_prove_amended,
        cited=("Dirichlet 1842 and Minkowski 1896, simultaneous approximation: some 0 < s < Q^m, Q > 1 real",),
    ),
    assumptions=(
        Assumption(
            "representable",
            "the target's score is a number of t bits",
            lambda case: _is_kept(case.amplitudes.sum(keepdims=True), case.precision),
        ),
        Assumption(
            "rounded-scores",
            "scores are kept to the t bits of the format",
            lambda case: case.kept_bits == case.precision.significand_bits,
        ),
        Assumption(
            "every-lag",
            "there is a rival at every lag up to N",
            lambda case: np.array_equal(case.lags, np.arange(1, len(case.lags) + 1)),
        ),
    ),
    draw=_draw,
    tolerance=1e-9,
    tolerance_reason="residuals count what differs. A whole N + 1 is 3e-6 of the cap or more from it, which moves "
    "1 - cos by 2^-43 at lag 1, where cos is right to 2^-53; at 26000 lags of pi it is right to 2^-36, C to 2^-25",
    counterexamples=_counterexamples,
)
