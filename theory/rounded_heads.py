"""Where an explicit rotary head breaks in floating point, number by number as the arithmetic rounds it.

The head has no content. The query at position t looks k tokens back, and keys are alike:

    q_t = Rot(t theta_j) r_j (cos k theta_j, -sin k theta_j),     k_t = Rot(t theta_j) (1, 0),
    score of the key at position i = sum_j r_j cos((t - k - i) theta_j).

It breaks at the first length at which a key that is not its to choose has a weight other than 0. How much of this a
format rounds, each model with all that the one before it does but for the scores of `fused`:

    weights   the weights of the softmax
    scores    scores, too; their differences from the highest one are in float32
    fused     weights; the query's numbers; cosines and sines of float32 angles, after float32; their products and
              sums, which turn the query and the key; scores are in float32, and exponentials below 2^-126, its
              smallest normal number, are 0 (a fused attention kernel)
    eager     the same, and scores (attention written out)
    angles    the same, and positions, frequencies, angles: nothing is in float32 before the softmax

Each operation is rounded once, to nearest even, from its exact value (`theory.rounding`).

Source: arXiv 2608.11909 (the heads, the horizon); the rounding models are ours.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum
from functools import partial

import numpy as np
import sympy
from flint import arb, ctx
from jaxtyping import Bool, Float64

from theory.balls import balls, exact_frequencies, rational
from theory.errors import TheoryError
from theory.horizon import FP32, FloatFormat, least_modular_amplitude
from theory.inputs import check_amplitudes, whole
from theory.rounding import largest_number, nearest, odd_ball, odd_sums
from theory.schedule import RotarySchedule

_UNDECIDED = 2.0**-48
_NORMAL_GAP = 126 * math.log(2)


class Rounding(StrEnum):
    """How much is rounded to the format (module header)."""

    WEIGHTS = "weights"
    SCORES = "scores"
    FUSED = "fused"
    EAGER = "eager"
    ANGLES = "angles"

    @property
    def turns_vectors(self) -> bool:
        """Whether queries and keys are turned in the format; else a score is a function of the lag."""
        return self in (Rounding.FUSED, Rounding.EAGER, Rounding.ANGLES)


@dataclass(frozen=True)
class Leak:
    """The first length, in tokens, at which a key that is not chosen keeps weight; None within the reach.

    `slack` is how near a decision up to there was to going the other way, in nats: another arithmetic breaks at the
    same length if its scores differ by less than half of that.
    """

    length: int | None
    slack: float


@dataclass(frozen=True, eq=False)
class RoundedHead:
    """A head that looks `offset` tokens back, r_j in nats, and the arithmetic in which it does.

    It is to choose the keys at whole `period`s from its target, without a period the target alone. A `sink` is the
    constant score, in nats, of a key that is to be chosen where there is no such key.
    Raises TheoryError for amplitudes that are not one finite number a pair, 0 or more, for an offset below 0 or a
    period below 1, and where scores that are rounded overflow the format.
    """

    amplitudes: Float64[np.ndarray, "pair"]
    schedule: RotarySchedule
    offset: int
    precision: FloatFormat
    rounding: Rounding
    period: int | None = None
    sink: float | None = None

    def __post_init__(self) -> None:
        check_amplitudes(self.amplitudes, self.schedule)
        whole("the offset of a look-back", self.offset, 0)
        whole("the period of what a head chooses", 1 if self.period is None else self.period, 1)
        total, largest = float(self.amplitudes.sum()), largest_number(self.precision)
        if self.rounding is not Rounding.WEIGHTS and total > largest:
            raise TheoryError(
                f"scores of {total:g} nats overflow {self.precision.name}, whose largest number is {largest:g}: "
                "give smaller amplitudes, or round the weights alone"
            )

    def first_leak(self, reach: int) -> Leak:
        """The first length with a leak, from the one at which there is a key to choose up to the reach.

        Raises TheoryError where float64 does not decide one.
        """
        reach, slack = whole("the reach, in tokens,", reach, 1), math.inf
        table = _TurnedVectors.of(self, reach) if self.rounding.turns_vectors else _LagScores.of(self, reach)
        undecided = _UNDECIDED * (float(self.amplitudes.sum()) + self.precision.underflow_gap)
        for length in range(self.shortest, reach + 1):
            below = self._below(table.last_scores(length))[~self.chosen(length)]
            closest = float(np.abs(below).min(initial=math.inf))
            if closest < undecided:
                raise TheoryError(
                    f"whether a weight at length {length} rounds to 0 in {self.precision.name} is not decided in "
                    f"float64, it is {closest:.1g} nats from it: change the amplitudes by a part in a million"
                )
            slack = min(slack, closest)
            if (below < 0).any():
                return Leak(length, slack)
        return Leak(None, slack)

    @property
    def shortest(self) -> int:
        """The first length at which there is a key to choose."""
        return self.offset + 1 if self.sink is None else 1

    def chosen(self, length: int) -> Bool[np.ndarray, "key"]:
        """The keys that the last of so many tokens is to choose, a sink first."""
        lags = length - 1 - self.offset - np.arange(length)
        keys = lags == 0 if self.period is None else lags % self.period == 0
        return keys if self.sink is None else np.append(not keys.any(), keys)

    def _below(self, scores: Float64[np.ndarray, "token"]) -> Float64[np.ndarray, "key"]:
        """How many nats each weight is below the tie under the smallest number of the format; above it is kept."""
        exact = self.rounding is Rounding.WEIGHTS
        if self.sink is not None:
            sink = np.array([self.sink])
            scores = np.append(sink if exact else nearest(sink, self.precision), scores)
        gaps = scores.max() - scores
        gaps = gaps if exact else nearest(gaps, FP32)
        normalised = gaps + math.log(np.exp(-gaps).sum()) - self.precision.underflow_gap
        return np.maximum(gaps - _NORMAL_GAP, normalised) if self.rounding is Rounding.FUSED else normalised


def sufficient_modular_amplitude(
    turn: tuple[int, int], precision: FloatFormat, rounding: Rounding, reach: int, sink: bool = False
) -> float:
    """A C, in nats, with which a head at 2 pi a/m, `turn` = (a, m) without a common divisor, chooses its residue alone
    at all lengths up to `reach` in tokens.

    It exceeds `least_modular_amplitude`, f/(1 - cos(2 pi/m)), by what the arithmetic may lose: the gap of two scores
    is C (1 - cos(2 pi/m) - 2 s) or more, each score being off by s C at most. With u = 2^-t, s = u for rounded scores.
    Turned vectors lose u by the query's numbers, u + 2^-24 by cosines, in the query and in the key, and 2 sqrt 2 u by
    products and sums: below 6 u + 2^-21 with second orders and float32 sums. Rounded scores lose u more. An angle is
    off by 3 v theta reach, v = 2^-24 or, where angles are rounded to the format, u: twice that is lost.
    A sink of C (1 + cos(2 pi/m))/2 needs twice the amplitude, and loses u twice.
    Raises TheoryError where the losses leave no gap and where a and m have a common divisor.
    """
    multiple, modulus = turn
    least = least_modular_amplitude(modulus, precision, sink)
    if math.gcd(multiple, modulus) != 1:
        raise TheoryError(f"a turn {multiple}/{modulus} leaves residues together: give a numerator prime to {modulus}")
    unit = 2.0**-precision.significand_bits
    lost = 0.0 if rounding is Rounding.WEIGHTS else unit
    if rounding.turns_vectors:
        angle = unit if rounding is Rounding.ANGLES else 2.0**-24
        lost = (6 if rounding is Rounding.FUSED else 7) * unit + 2.0**-21
        lost += 6 * angle * (2 * math.pi * abs(multiple) / modulus) * whole("the reach, in tokens,", reach, 1)
    if sink and rounding is not Rounding.WEIGHTS:
        lost += unit
    drop = 2 * math.sin(math.pi / modulus) ** 2
    if 2 * lost >= drop:
        raise TheoryError(
            f"no amplitude is sure to choose one residue modulo {modulus} in {precision.name}, {rounding}, up to "
            f"length {reach}: rounding may take {2 * lost:.2g} of a gap of {drop:.2g}; give a smaller modulus or reach"
        )
    # A millionth more, so that no rounding of the amplitude itself, nor of exponentials in float32, is felt.
    return least * drop / (drop - 2 * lost) * (1 + 1e-6)


@dataclass(frozen=True, eq=False)
class _LagScores:
    """Scores as a function of the lag, exact (the odd float64) or rounded to the format."""

    offset: int
    by_lag: Float64[np.ndarray, "lag"]

    @classmethod
    def of(cls, head: RoundedHead, reach: int) -> _LagScores:
        amplitudes = [arb(rational(r, "an amplitude")) for r in head.amplitudes.tolist()]
        frequencies = exact_frequencies(head.schedule)

        def score(lag: int) -> arb:
            turned = zip(amplitudes, balls(frequencies, ctx.prec), strict=True)
            return sum((r * (lag * theta).cos() for r, theta in turned), arb(0))

        exact = np.array([odd_ball(partial(score, lag)) for lag in range(max(reach, head.offset + 1))])
        return cls(head.offset, exact if head.rounding is Rounding.WEIGHTS else nearest(exact, head.precision))

    def last_scores(self, length: int) -> Float64[np.ndarray, "token"]:
        """Of the last of so many tokens for each of them."""
        return self.by_lag[np.abs(length - 1 - self.offset - np.arange(length))]


@dataclass(frozen=True, eq=False)
class _TurnedVectors:
    """The query's numbers, cosines and sines as the format holds them; a key is its cosines and sines."""

    query: Float64[np.ndarray, "lane pair"]
    cosines: Float64[np.ndarray, "token pair"]
    sines: Float64[np.ndarray, "token pair"]
    precision: FloatFormat
    scores_in: FloatFormat

    @classmethod
    def of(cls, head: RoundedHead, reach: int) -> _TurnedVectors:
        precision = head.precision
        scores_in = FP32 if head.rounding is Rounding.FUSED else precision
        held = precision if head.rounding is Rounding.ANGLES else FP32
        positions = nearest(np.arange(reach, dtype=np.float64), held)
        angles = nearest(np.multiply.outer(positions, nearest(head.schedule.frequencies, held)), held)
        turned = _turns((arb(1), partial(arb, angle)) for angle in angles.ravel().tolist())
        # From float32 to the format: rounded twice.
        cosines, sines = (nearest(nearest(one, held), precision).reshape(angles.shape) for one in turned)
        exact = exact_frequencies(head.schedule)
        amplitudes = [arb(rational(r, "an amplitude")) for r in head.amplitudes.tolist()]
        looked = [(r, partial(_look_back, exact, pair, head.offset)) for pair, r in enumerate(amplitudes)]
        cosine, sine = _turns(looked)
        return cls(nearest(np.array([cosine, -sine]), precision), cosines, sines, precision, scores_in)

    def last_scores(self, length: int) -> Float64[np.ndarray, "token"]:
        """Of the last of so many tokens for each of them."""
        (along, across), cosine, sine = self.query, self.cosines[length - 1], self.sines[length - 1]
        lanes = [(along * cosine, -across * sine), (across * cosine, along * sine)]
        terms = [np.stack([nearest(term, self.precision) for term in lane], axis=-1) for lane in lanes]
        one, other = (nearest(odd_sums(term), self.precision) for term in terms)
        products = np.concatenate([one * self.cosines[:length], other * self.sines[:length]], axis=-1)
        return nearest(odd_sums(products), self.scores_in)


def _look_back(frequencies: tuple[sympy.Expr, ...], pair: int, offset: int) -> arb:
    return offset * balls(frequencies, ctx.prec)[pair]


def _turns(
    turned: Iterable[tuple[arb, Callable[[], arb]]],
) -> tuple[Float64[np.ndarray, "number"], Float64[np.ndarray, "number"]]:
    """r cos and r sin of every r and its angle, which is worked out at the current precision, as odd float64s."""
    pairs = [(odd_ball(lambda r=r, a=a: r * a().cos()), odd_ball(lambda r=r, a=a: r * a().sin())) for r, a in turned]  # type: ignore[misc]
    cosines, sines = np.array(pairs).T
    return cosines, sines
