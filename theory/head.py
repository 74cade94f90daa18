"""What the theory knows of an attention head, and the carrier that follows from it.

A head is a schedule, a content distribution of its pre-rotation queries and keys, and a
logit scale. A query comes with *local keys* of its own at offsets 0, -1, ..., -(w-1), joint
with it (the key at offset 0 is of the query's own token); the keys further back are
independent of it, from a weighted pool. In the toy task and in layer 0 of a model both
pools are the vocabulary and the local window is the self key alone.

The carrier is the pair of means (m_Q, m_K). With a_i, b_i their rotary pairs,

    phi(delta) = scale m_Q^T R_delta m_K = sum_i r_i cos(delta theta_i - psi_i),
    r_i = scale |a_i||b_i|,  psi_i = arg a_i - arg b_i.

Source: arXiv 2607.18759, sections 2 and 4.2, Proposition 1.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Float64, Int

from theory.errors import TheoryError
from theory.schedule import RotarySchedule, as_pairs


@dataclass(frozen=True, eq=False)
class Head:
    """An attention head as a distribution of pre-rotation queries and keys.

    `local_keys[a, j]` is the key at offset -j of query a; `keys` is the pool of all keys
    further back. Weights are probabilities. `logit_scale` turns scores into nats.
    Raises TheoryError where shapes, weights or numbers do not fit.
    """

    schedule: RotarySchedule
    queries: Float64[np.ndarray, "query dim"]
    query_weights: Float64[np.ndarray, "query"]
    local_keys: Float64[np.ndarray, "query window dim"]
    keys: Float64[np.ndarray, "key dim"]
    key_weights: Float64[np.ndarray, "key"]
    logit_scale: float

    def __post_init__(self) -> None:
        width, queries = self.schedule.dim, len(self.queries)
        given = (self.queries.shape[1], self.local_keys.shape[2], self.keys.shape[1])
        if given != (width, width, width):
            raise TheoryError(f"queries, local keys and keys have widths {given}, the schedule has {width}")
        if self.local_keys.shape[:1] != (queries,) or self.local_keys.shape[1] < 1:
            raise TheoryError("every query needs its own key at offset 0 (local_keys[:, 0])")
        for name, weights, rows in (
            ("query", self.query_weights, queries),
            ("key", self.key_weights, len(self.keys)),
        ):
            if len(weights) != rows or not (weights >= 0).all() or not abs(weights.sum() - 1) <= 1e-9:
                raise TheoryError(f"{name} weights must be {rows} probabilities with sum 1")
        for name, vectors in (("queries", self.queries), ("local keys", self.local_keys), ("keys", self.keys)):
            _check_finite(name, vectors)
        _check_scale(self.logit_scale)

    @classmethod
    def from_tokens(
        cls,
        schedule: RotarySchedule,
        queries: Float64[np.ndarray, "token dim"],
        keys: Float64[np.ndarray, "token dim"],
        weights: Float64[np.ndarray, "token"],
        logit_scale: float,
    ) -> Head:
        """A head whose content is a vocabulary: row a of both arrays belongs to token a."""
        return cls(schedule, queries, weights, keys[:, None, :], keys, weights, logit_scale)

    @property
    def window(self) -> int:
        """Number of offsets, from 0 back, whose keys are joint with the query."""
        return self.local_keys.shape[1]

    def logits(self, offsets: Int[np.ndarray, "offset"]) -> Float64[np.ndarray, "query offset key"]:
        """The score table l[a, delta, b] = scale q_a^T R_delta k_b of the pool, in nats (Lemma 1)."""
        turned = self.schedule.rotate(
            np.broadcast_to(self.queries[:, None], (len(self.queries), len(offsets), self.schedule.dim)),
            np.broadcast_to(-offsets, (len(self.queries), len(offsets))),
        )
        return self.logit_scale * (turned @ self.keys.T)

    def local_logits(self) -> Float64[np.ndarray, "query window"]:
        """Logits of every query with its own local keys, in nats."""
        offsets = np.broadcast_to(-np.arange(self.window), self.local_keys.shape[:2])
        turned = self.schedule.rotate(self.local_keys, offsets)
        return self.logit_scale * np.einsum("qd,qwd->qw", self.queries, turned)

    def carrier(self) -> Carrier:
        """The means of the content and what they say of it."""
        query_mean, key_mean = self.query_weights @ self.queries, self.key_weights @ self.keys
        return Carrier(
            schedule=self.schedule,
            query_mean=query_mean,
            key_mean=key_mean,
            logit_scale=self.logit_scale,
            query_fraction=_fraction(query_mean, self.queries, self.query_weights),
            key_fraction=_fraction(key_mean, self.keys, self.key_weights),
            self_logit=float(self.query_weights @ self.local_logits()[:, 0]),
        )

    def with_key_mean(self, key_mean: Float64[np.ndarray, "dim"]) -> Head:
        """The same head with another mean key: every key shifted, every residual kept."""
        shift = key_mean - self.key_weights @ self.keys
        return replace(self, keys=self.keys + shift, local_keys=self.local_keys + shift)


@dataclass(frozen=True, eq=False)
class Carrier:
    """The mean query and mean key of a head.

    `query_fraction` and `key_fraction` are |mean|^2 / E|vector|^2, NaN where all vectors are 0;
    `self_logit` is the mean
    logit at offset 0 in nats, which holds the covariance of a token's own query and key and
    so is not phi(0).
    """

    schedule: RotarySchedule
    query_mean: Float64[np.ndarray, "dim"]
    key_mean: Float64[np.ndarray, "dim"]
    logit_scale: float
    query_fraction: float
    key_fraction: float
    self_logit: float

    def __post_init__(self) -> None:
        _check_widths(self.schedule, self.query_mean, self.key_mean)
        for name, mean in (("query mean", self.query_mean), ("key mean", self.key_mean)):
            _check_finite(name, mean)
        _check_scale(self.logit_scale)

    @classmethod
    def from_means(
        cls,
        schedule: RotarySchedule,
        query_mean: Float64[np.ndarray, "dim"],
        key_mean: Float64[np.ndarray, "dim"],
        logit_scale: float,
    ) -> Carrier:
        """The carrier of the head without residuals: fractions 1, self logit phi(0)."""
        _check_widths(schedule, query_mean, key_mean)
        return cls(schedule, query_mean, key_mean, logit_scale, 1.0, 1.0, logit_scale * float(query_mean @ key_mean))

    @property
    def amplitudes(self) -> Float64[np.ndarray, "pair"]:
        """r_i = scale |a_i||b_i|, in nats."""
        return self.logit_scale * np.abs(as_pairs(self.query_mean)) * np.abs(as_pairs(self.key_mean))

    @property
    def phases(self) -> Float64[np.ndarray, "pair"]:
        """psi_i = arg a_i - arg b_i in rad, in (-pi, pi]; the carrier of offset K has psi_i = -K theta_i."""
        return np.angle(as_pairs(self.query_mean) * as_pairs(self.key_mean).conj())

    @property
    def weights(self) -> Float64[np.ndarray, "pair"]:
        """p_i = r_i / sum r_i, the weights of the kernel. Raises TheoryError where every r_i is 0."""
        total = self.amplitudes.sum()
        if total == 0:
            raise TheoryError("no rotary pair is active: one of the means is 0, so there is no kernel")
        return self.amplitudes / total

    def alignment(self, offset: int) -> float:
        """cos(m_Q, R_-K m_K): 1 where the query is the key pre-rotated to K back; NaN where a mean is 0."""
        turned = self.schedule.rotate(self.key_mean, np.array(-offset))
        norms = np.linalg.norm(self.query_mean) * np.linalg.norm(turned)
        return float(self.query_mean @ turned / norms) if norms > 0 else float("nan")


def _fraction(
    mean: Float64[np.ndarray, "dim"], vectors: Float64[np.ndarray, "row dim"], weights: Float64[np.ndarray, "row"]
) -> float:
    energy = weights @ np.square(vectors).sum(axis=1)
    return float(mean @ mean / energy) if energy > 0 else float("nan")


def _check_widths(
    schedule: RotarySchedule, query_mean: Float64[np.ndarray, "query_dim"], key_mean: Float64[np.ndarray, "key_dim"]
) -> None:
    given = (len(query_mean), len(key_mean))
    if given != (schedule.dim, schedule.dim):
        raise TheoryError(f"means have widths {given}, the schedule has {schedule.dim}")


def _check_finite(name: str, vectors: Float64[np.ndarray, "*shape"]) -> None:
    if not np.isfinite(vectors).all():
        raise TheoryError(f"{name} hold a number that is not finite: the weights they come from are damaged")


def _check_scale(logit_scale: float) -> None:
    if not (np.isfinite(logit_scale) and logit_scale > 0):
        raise TheoryError(f"the logit scale must be a finite number above 0, got {logit_scale}")
