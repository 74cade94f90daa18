"""A carrier that is made, not found: weights and phases for a target, and the energy that they take.

With phases on the target (psi_i = -K theta_i) and weights p_i = r_i / A the mean profile is

    phi(delta) = A g(delta + K),   A = sum_i r_i in nats, the energy.

The best weights (`theory.best_carriers`) keep g at mu below 1 or more at every other lag of a context, so that
attention at length L is at least 1 / (1 + (L-1) e^(-A mu)) without residuals. What the means alone take is the
softmax of phi; what a head takes, whose residuals and own keys stay, is its exact law with these means.

Source: ours; the bound is Corollary 2 of arXiv 2607.18759.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import Literal

import numpy as np
from jaxtyping import Float64
from scipy.optimize import brentq
from scipy.special import expit, logit, logsumexp

from theory.accuracy import accuracy_law
from theory.best_carriers import best_with_margin
from theory.certified import CertifiedMargin, certified_margin
from theory.errors import TheoryError
from theory.exact_law import exact_law
from theory.head import Carrier, Head
from theory.inputs import Lengths, check_array, check_lengths, check_target, whole
from theory.schedule import RotarySchedule, as_lanes, as_pairs

Side = Literal["query", "key"]

_ENERGY_STEP, _ENERGY_STEPS = 1.25, 16
_ENERGY_ERROR, _LAW_ERROR = 5e-4, 1e-6


@dataclass(frozen=True, eq=False)
class Design:
    """Weights p_i for K = `offset` in every context of up to `length` tokens; `margin` is min 1 - g, nats per nat."""

    schedule: RotarySchedule
    offset: int
    length: int
    weights: Float64[np.ndarray, "pair"]
    margin: float

    @property
    def reach(self) -> int:
        """The furthest lag of a context: max(K, L-1-K)."""
        return max(self.offset, self.length - 1 - self.offset)

    def carrier(self, energy: float, logit_scale: float, like: Carrier | None = None, keep: Side = "query") -> Carrier:
        """The carrier with r_i = energy p_i (nats) and psi_i = -K theta_i, of the means alone.

        |a_i| = |b_i| = sqrt(r_i / (logit_scale score_gain_i)), the least norms for these r_i. The phases of one side
        are those of the same mean of `like`, 0 where that is 0 or not given. The law of the means does not know
        which side; residuals do, and in trained heads they cost far less where the query's phases are kept.
        Raises TheoryError for an energy or a scale that is not finite and above 0, and for a `like` of another width.
        """
        _check_above_0("an energy in nats", energy, "take that of energy_of_means")
        _check_above_0("the logit scale", logit_scale, "give the head's own")
        turns, kept = self.offset * self.schedule.frequencies, np.zeros(self.schedule.pairs)
        if like is not None:
            mean = like.query_mean if keep == "query" else like.key_mean
            check_array(f"the mean {keep} to be like", mean, self.schedule.dim)
            kept = np.angle(as_pairs(mean))
        query_phases = kept if keep == "query" else kept - turns
        sizes = np.sqrt(energy * self.weights / (logit_scale * self.schedule.score_gains))
        query, key = sizes * np.exp(1j * query_phases), sizes * np.exp(1j * (query_phases + turns))
        return Carrier.from_means(self.schedule, as_lanes(query), as_lanes(key), logit_scale)

    def certified(self) -> CertifiedMargin:
        """g(0) - max g over the lags 1..reach, nats per nat of energy, by ball arithmetic, and a competitor's offset.

        The weights are the binary numbers that they are. Raises TheoryError as `theory.certified.certified_margin`.
        """
        # Target 0 and a key of ones: every phase is 0 and every amplitude the weight, with no rounding.
        key = as_lanes(np.ones(self.schedule.pairs, dtype=np.complex128))
        plain = replace(self.schedule, attention_factor=1.0)
        found = certified_margin(Carrier.from_means(plain, as_lanes(self.weights + 0j), key, 1.0), 0, self.reach + 1)
        back = self.offset + found.competitor * np.array([1, -1])
        there = back[(back >= 0) & (back < self.length)]
        return replace(found, competitor=-int(there[0]), unique=found.unique and len(there) == 1)


@dataclass(frozen=True, eq=False)
class PriceInRange:
    """Attention of the means K = `offset` back at shorter lengths, at one energy (nats).

    `attention` is that of the design for the longest context, `of_own_design` that of the design for each length.
    """

    offset: int
    energy: float
    lengths: tuple[int, ...]
    attention: Float64[np.ndarray, "length"]
    of_own_design: Float64[np.ndarray, "length"]

    @property
    def price(self) -> Float64[np.ndarray, "length"]:
        """Attention given up at each length; designs maximise the margin, so that it can be a little below 0."""
        return self.of_own_design - self.attention


def design_carrier(schedule: RotarySchedule, offset: int, length: int) -> Design:
    """The weights with the largest margin at K = `offset` in contexts of up to `length` tokens, by a linear program.

    Raises TheoryError where the target is not in the context or alone in it, where no weights have a margin over its
    lags (a schedule that does not turn, or is back within them) and as `theory.best_carriers.best_carrier`.
    """
    offset, length = _check_context(offset, length)
    best = best_with_margin(schedule, max(offset, length - 1 - offset))
    return Design(schedule, offset, length, best.weights, best.value)


def aligned(carrier: Carrier, offset: int) -> Carrier:
    """The carrier with its amplitudes and its query, and the key's phases such that the target is K = `offset`.

    Its window is empty, as the mean logits of own keys do not follow from the means. Raises TheoryError for an
    offset that is no whole number of 0 or more.
    """
    offset = whole("the target offset K", offset, 0)
    phases = np.angle(as_pairs(carrier.query_mean)) + offset * carrier.schedule.frequencies
    key = np.abs(as_pairs(carrier.key_mean)) * np.exp(1j * phases)
    return replace(carrier, key_mean=as_lanes(key), local_profile=np.empty(0))


def energy_bound(margin: float, attention: float, length: int) -> float:
    """ln((L-1) a/(1-a)) / mu in nats: enough for attention a at length L without residuals; 0 for a of 1/L or less.

    `margin` mu is in nats per nat of energy. Raises TheoryError for one that is not above 0, for an attention that
    is not strictly between 0 and 1, and for a length below 2.
    """
    _check_share("the attention", attention)
    _check_above_0("a margin per nat", margin, "take that of a design")
    return max(math.log(whole("a length", length, 2) - 1) + float(logit(attention)), 0.0) / margin


def energy_of_means(design: Design, attention: float, length: int | None = None) -> float:
    """The least energy in nats at which the softmax of the means has the attention at the length, the design's own.

    sum over lags s of e^(-A (1 - g(s))) = (1-a)/a, the self key like any other; 0 for a of 1/L or less.
    Raises TheoryError for an attention not strictly between 0 and 1 and a length that the design is not made for.
    """
    length = _length_of(design, length)
    bound = energy_bound(design.margin, attention, length)
    falls = _falls(design, length)

    def excess(energy: float) -> float:
        return float(logsumexp(-energy * falls) + logit(attention))

    if excess(0.0) <= 0 or excess(bound) >= 0:
        return bound
    return float(brentq(excess, 0.0, bound, xtol=1e-13 * bound))


def energy_for_attention(head: Head, design: Design, attention: float, length: int | None = None) -> float:
    """The least energy in nats at which a head with the design's means has the attention at the length.

    By the exact law, its residuals and own keys kept, to 1e-3 relative. Attention can fall as energy grows, for the
    products of means and residuals grow too: the least is that of a scan by factors of 1.25 from what the means
    alone take. 0 where the residuals alone have it. Raises TheoryError where the scan does not reach it, up to 35
    times that energy or logits too wide for the exact law, where head and design differ in schedule, and as
    `energy_of_means`.
    """
    length, made = _length_of(design, length), _with_energy(head, design)

    def measure(energy: float) -> float:
        return float(exact_law(made(energy), design.offset, [length], _LAW_ERROR)[0])

    return _least_energy(measure, "attention", attention, _start(design, attention, length))


def energy_for_accuracy(
    head: Head, readout: Float64[np.ndarray, "key output"], design: Design, accuracy: float, length: int | None = None
) -> float:
    """The least energy in nats at which a head with the design's means reads the target with the accuracy.

    By the estimate of `theory.accuracy`, and otherwise as `energy_for_attention`. Raises TheoryError as both.
    """
    _check_share("the accuracy", accuracy)
    length, made = _length_of(design, length), _with_energy(head, design)

    def measure(energy: float) -> float:
        return float(accuracy_law(made(energy), readout, design.offset, [length]).point[0])

    # A readout is right where the target has about half of the attention.
    return _least_energy(measure, "accuracy", accuracy, _start(design, 0.5, length))


def price_in_range(design: Design, lengths: Lengths, energy: float) -> PriceInRange:
    """What a design gives up at shorter lengths against the designs made for them, at one energy in nats.

    Raises TheoryError for an energy that is not finite and above 0, and for lengths that the design is not made for.
    """
    _check_above_0("an energy in nats", energy, "take that of energy_of_means")
    each = tuple(_length_of(design, int(length)) for length in check_lengths(design.offset, lengths))
    attention = np.array([_attention(design, energy, length) for length in each])
    own = [design_carrier(design.schedule, design.offset, length) for length in each]
    of_own_design = np.array([_attention(shorter, energy, shorter.length) for shorter in own])
    return PriceInRange(design.offset, energy, each, attention, of_own_design)


def _check_context(offset: int, length: int) -> tuple[int, int]:
    """Target and length as whole numbers. Raises TheoryError unless the target is there, with a competitor."""
    length = whole("a length", length, 2)
    check_target(offset, length)
    return int(offset), length


def _check_above_0(name: str, number: float, remedy: str) -> None:
    if not (math.isfinite(number) and number > 0):
        raise TheoryError(f"{name} must be a finite number above 0, got {number}: {remedy}")


def _check_share(name: str, share: float) -> None:
    if not 0 < share < 1:
        raise TheoryError(f"{name} must lie strictly between 0 and 1, got {share}: give one such as 0.9")


def _length_of(design: Design, length: int | None) -> int:
    """The length asked for, the design's own by default. Raises TheoryError where the design is not made for it."""
    if length is None:
        return design.length
    length = _check_context(design.offset, length)[1]
    if length > design.length:
        raise TheoryError(
            f"the design is made for contexts of up to {design.length} tokens, got {length}: make one for {length}"
        )
    return length


def _falls(design: Design, length: int) -> Float64[np.ndarray, "rival"]:
    """1 - g = sum_i 2 p_i sin^2(s theta_i/2) at every lag s of the context but 0."""
    lags = np.arange(-design.offset, length - design.offset)
    active = design.weights > 0
    halves = np.multiply.outer(lags[lags != 0], design.schedule.frequencies[active] / 2)
    return np.square(np.sin(halves)) @ (2 * design.weights[active])


def _attention(design: Design, energy: float, length: int) -> float:
    return float(expit(-logsumexp(-energy * _falls(design, length))))


def _start(design: Design, attention: float, length: int) -> float:
    """Where a scan of energies begins: at what the means alone take, but at a margin of a tenth of a nat or more."""
    return max(energy_of_means(design, attention, length), 0.1 / design.margin)


def _with_energy(head: Head, design: Design) -> Callable[[float], Head]:
    """The head with the design's means, at any energy of 0 or more. Raises TheoryError where schedules differ."""
    own, made = head.schedule, design.schedule
    if not (np.array_equal(own.frequencies, made.frequencies) and np.array_equal(own.score_gains, made.score_gains)):
        raise TheoryError("head and design differ in schedule: make the design with design_carrier(head.schedule, ...)")
    one = design.carrier(1.0, head.logit_scale, like=head.carrier())
    return lambda energy: head.with_means(math.sqrt(energy) * one.query_mean, math.sqrt(energy) * one.key_mean)


def _least_energy(measure: Callable[[float], float], name: str, wanted: float, start: float) -> float:
    """The least energy, to 1e-3 relative, of a scan down or up from `start` at which what is measured is as wanted."""
    measure = cache(measure)
    if measure(start) < wanted:
        low, high = _climb(measure, name, wanted, start)
    elif measure(0.0) >= wanted:
        return 0.0
    else:
        high = start
        while measure(low := high / _ENERGY_STEP) >= wanted:
            high = low

    def excess(energy: float) -> float:
        # Log odds are nearly straight in the energy; 0 and 1 have none.
        return float(logit(np.clip(measure(energy), 1e-300, 1 - 1e-16)) - logit(wanted))

    return float(brentq(excess, low, high, rtol=_ENERGY_ERROR))


def _climb(measure: Callable[[float], float], name: str, wanted: float, start: float) -> tuple[float, float]:
    """The first step up from `start` at whose end what is measured is as wanted. Raises TheoryError where none is."""
    low, most = start, measure(start)
    for _ in range(_ENERGY_STEPS):
        high = low * _ENERGY_STEP
        try:
            reached = measure(high)
        except TheoryError:  # logits too wide for the law, as at higher energies
            break
        if reached >= wanted:
            return low, high
        low, most = high, max(most, reached)
    raise TheoryError(
        f"{name} {wanted:g} is not reached: the most up to an energy of {low:.4g} nats is {most:.4g}, give a lower "
        f"one, a shorter length or a head with smaller residuals"
    )
