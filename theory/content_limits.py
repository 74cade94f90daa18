"""Inversion and aliasing rates of a head with content, in closed form from the moments of its queries and keys.

A query a and a key b of a head, as rotary pairs, score S(m) = scale Re sum_i f_i^2 a_i conj(b_i) e^(i m theta_i) at
distance m: at given distances every score is linear in the products c_i = a_i conj(b_i), or, for a given query,
in the key. Where that vector is normal with mean mu, E c c^H = H and E c c^T = P about it, Re x.c is normal too, and

    mean Re x.mu,    Cov(Re x.c, Re y.c) = Re(x^T P y + x^T H conj(y)) / 2,

so that with D = S(m1) - S(m2), x_i = scale f_i^2 a_i (e^(i m1 theta_i) - e^(i m2 theta_i)), and a tie counted one half

    position inversion   P(S(m1) < S(m2)) = Phi(-E D / sd D),             m1 < M/2 <= m2 < M,
    token inversion      P(two keys change order) = arccos(rho) / pi,     m1 != m2 < M, rho of their differences,
    aliasing             P(|D| < eps) = Phi((eps - E D)/sd D) - Phi((-eps - E D)/sd D),  m1 != m2 < M.

Three refinements: the mean query and isotropic residuals of keys in each pair (as `theory.limits`); means and whole
covariances of queries and keys, the products taken to be normal; each query on its own with the whole
covariance of keys, where keys alone are taken to be normal. The last is exact for normal keys, whatever the queries.

Source: the quantities are those of arXiv 2605.15514, the closed forms ours.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from enum import StrEnum

import numpy as np
from jaxtyping import Complex128, Float64
from scipy.special import ndtr

from theory.bias import OffsetBias
from theory.context_draws import Draws, distances_between, endless, turns_at
from theory.errors import TheoryError
from theory.head import Head
from theory.inputs import whole
from theory.schedule import RotarySchedule, as_pairs

SEED = 2605_15515
_CASES = 1 << 15


class Refinement(StrEnum):
    """What of a head's content a closed form takes in."""

    MEAN_QUERY = "mean query, variance a pair"
    MOMENTS = "means and covariances"
    EACH_QUERY = "each query, covariance of keys"


@dataclass(frozen=True)
class Rate:
    """A probability with its standard error."""

    value: float
    standard_error: float


@dataclass(frozen=True)
class Limits:
    """Position inversion, token inversion and aliasing of a head in a context."""

    position: Rate
    token: Rate
    aliasing: Rate


@dataclass(frozen=True, eq=False)
class _Moments:
    """Mean, and E c c^H and E c c^T about it, of a complex vector c."""

    mean: Complex128[np.ndarray, "pair"]
    hermitian: Complex128[np.ndarray, "pair pair"]
    pseudo: Complex128[np.ndarray, "pair pair"]

    @classmethod
    def of(
        cls,
        vectors: Complex128[np.ndarray, "row pair"],
        weights: Float64[np.ndarray, "row"],
        about: float | None = None,
    ) -> _Moments:
        """Of weighted rows, about their mean or another number."""
        mean = weights @ vectors
        rows = vectors - (mean if about is None else about)
        weighted = weights[:, None] * rows
        return cls(mean, weighted.T @ rows.conj(), weighted.T @ rows)

    def times(self, other: _Moments, mean: Complex128[np.ndarray, "pair"]) -> _Moments:
        """Of products with an independent vector, whose mean is given, from moments about 0."""
        hermitian, pseudo = self.hermitian * other.hermitian, self.pseudo * other.pseudo
        return _Moments(mean, hermitian - np.outer(mean, mean.conj()), pseudo - np.outer(mean, mean))

    def covariance(
        self, left: Complex128[np.ndarray, "case pair"], right: Complex128[np.ndarray, "case pair"]
    ) -> Float64[np.ndarray, "case"]:
        """Of Re x.c and Re y.c, a row each."""
        products = (left @ self.pseudo) * right + (left @ self.hermitian) * right.conj()
        return 0.5 * products.real.sum(axis=1)


@dataclass(frozen=True, eq=False)
class ContentLaw:
    """The three rates of a head in any context, by one refinement.

    Scores are Re sum_i scale f_i^2 front_i e^(i m theta_i) c_i: `fronts` come with their probabilities, and the vector
    c with its moments, for one key and for the difference of two. `replace` gives it another schedule.
    """

    schedule: RotarySchedule
    logit_scale: float
    bias: OffsetBias | None
    fronts: Complex128[np.ndarray, "query pair"]
    weights: Float64[np.ndarray, "query"]
    one: _Moments
    difference: _Moments

    @classmethod
    def of(cls, head: Head, refinement: Refinement = Refinement.EACH_QUERY) -> ContentLaw:
        """The law of a head's queries and of the keys of its pool."""
        queries, keys = as_pairs(head.queries), as_pairs(head.keys).conj()
        one = _Moments.of(keys, head.key_weights)
        fronts, weights = queries, head.query_weights
        if refinement is Refinement.MOMENTS:
            asked = _Moments.of(queries, head.query_weights, about=0.0)
            difference = asked.times(one, np.zeros_like(one.mean))
            one = asked.times(_Moments.of(keys, head.key_weights, about=0.0), asked.mean * one.mean)
            fronts, weights = np.ones((1, head.schedule.pairs), dtype=complex), np.ones(1)
        else:
            if refinement is Refinement.MEAN_QUERY:
                fronts, weights = (head.query_weights @ queries)[None], np.ones(1)
                one = replace(one, hermitian=np.diag(np.diag(one.hermitian)), pseudo=np.zeros_like(one.pseudo))
            difference = replace(one, mean=np.zeros_like(one.mean))
        return cls(head.schedule, head.logit_scale, head.bias, fronts, weights, one, difference)

    def limits(self, length: int | None, tolerance: float, cases: int = _CASES, seed: int = SEED) -> Limits:
        """The three rates in a context of `length` tokens, None for an endless one; `tolerance` is eps in nats.

        Averaged over `cases` independent draws of distances, and of queries where each is taken. Raises TheoryError
        for a length below 2, a tolerance not above 0, and keys that are all alike; in an endless context also for a
        bias, and where the exact frequencies are not known.
        """
        check_tolerance(tolerance)
        if not self.difference.hermitian.any():
            raise TheoryError("keys that are all alike have no order to change: give a head whose keys differ")
        position = self.inversion(length, cases, seed)
        rng = np.random.default_rng([seed, 1])
        first, second = self._any_two(length, cases, rng)
        fronts = self._drawn(cases, rng)
        token = self._reordered(fronts * first.turns, fronts * second.turns)
        gap, deviation = self._gap(fronts, first, second)
        with np.errstate(divide="ignore", invalid="ignore"):
            upper, lower = ((edge - gap) / deviation for edge in (tolerance, -tolerance))
            # Without a spread the mean difference decides.
            aliased = np.where(deviation > 0, ndtr(upper) - ndtr(lower), np.abs(gap) < tolerance)
        return Limits(position, _mean(token), _mean(aliased))

    def inversion(self, length: int | None, cases: int = _CASES, seed: int = SEED) -> Rate:
        """Position inversion alone. Raises TheoryError as `limits`; keys may be alike.

        Without a bias it tends to 1/2 as the context grows: near and far distances become draws of one law. One seed
        gives nearly proportional distances at every length, so that a curve over lengths is smooth.
        """
        check_context(length, self.bias)
        cases, rng = whole("cases", cases, 2), np.random.default_rng(seed)
        near, far = self._near_and_far(length, cases, rng)
        gap, deviation = self._gap(self._drawn(cases, rng), near, far)
        with np.errstate(divide="ignore", invalid="ignore"):
            return _mean(np.where(gap == 0, 0.5, ndtr(-gap / deviation)))

    def _drawn(self, cases: int, rng: np.random.Generator) -> Complex128[np.ndarray, "case pair"]:
        """A front for each case, in nats."""
        gains = self.logit_scale * self.schedule.score_gains
        return gains * self.fronts[rng.choice(len(self.fronts), cases, p=self.weights)]

    def _near_and_far(self, length: int | None, cases: int, rng: np.random.Generator) -> tuple[Draws, Draws]:
        if length is None:
            return endless(self.schedule, cases, rng), endless(self.schedule, cases, rng)
        half = (length + 1) // 2
        near, far = distances_between(0, half, cases, rng), distances_between(half, length, cases, rng)
        return turns_at(self.schedule, near), turns_at(self.schedule, far)

    def _any_two(self, length: int | None, cases: int, rng: np.random.Generator) -> tuple[Draws, Draws]:
        """Two distances that differ."""
        if length is None:
            return endless(self.schedule, cases, rng), endless(self.schedule, cases, rng)
        first, step = distances_between(0, length, cases, rng), distances_between(1, length, cases, rng)
        return turns_at(self.schedule, first), turns_at(self.schedule, (first + step) % length)

    def _gap(
        self, fronts: Complex128[np.ndarray, "case pair"], near: Draws, far: Draws
    ) -> tuple[Float64[np.ndarray, "case"], Float64[np.ndarray, "case"]]:
        """Mean and standard deviation of S(near) - S(far)."""
        apart = fronts * (near.turns - far.turns)
        gap = (apart @ self.one.mean).real
        if self.bias is not None and near.distances is not None and far.distances is not None:
            gap = gap + self.bias.at(near.distances) - self.bias.at(far.distances)
        return gap, np.sqrt(np.maximum(self.one.covariance(apart, apart), 0))

    def _reordered(
        self, here: Complex128[np.ndarray, "case pair"], there: Complex128[np.ndarray, "case pair"]
    ) -> Float64[np.ndarray, "case"]:
        """Probability that two keys change order; where neither moves the score it is a tie, one half."""
        both = self.difference.covariance(here, there)
        size = np.sqrt(self.difference.covariance(here, here) * self.difference.covariance(there, there))
        correlation = np.divide(both, size, out=np.zeros_like(both), where=size > 0)
        return np.arccos(np.clip(correlation, -1, 1)) / np.pi


def score_spread(head: Head) -> float:
    """s in nats, s^2 = E sum_i r_i^2 / 2 over queries and keys: the spread of a score over far positions."""
    gains = head.logit_scale * head.schedule.score_gains
    queries = head.query_weights @ np.square(np.abs(as_pairs(head.queries)))
    keys = head.key_weights @ np.square(np.abs(as_pairs(head.keys)))
    turning = head.schedule.frequencies != 0
    return math.sqrt(float((np.square(gains) * queries * keys)[turning].sum()) / 2)


def check_tolerance(tolerance: float) -> None:
    """Raises TheoryError for a tolerance in nats that is not above 0."""
    if not (math.isfinite(tolerance) and tolerance > 0):
        raise TheoryError(f"a tolerance must be a finite number of nats above 0, got {tolerance}")


def check_context(length: int | None, bias: OffsetBias | None) -> None:
    """Raises TheoryError for a length below 2, and for a bias in an endless context."""
    if length is not None:
        whole("the length to compare in", length, 2)
    elif bias is not None:
        raise TheoryError("a bias grows with the distance: an endless context has no rates, give a length")


def _mean(values: Float64[np.ndarray, "case"]) -> Rate:
    return Rate(float(values.mean()), float(values.std(ddof=1) / math.sqrt(len(values))))
