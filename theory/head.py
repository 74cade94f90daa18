"""What the theory knows of an attention head, and the carrier that follows from it.

A head is a schedule, a content distribution of its pre-rotation queries and keys, a logit
scale and, where there is one, a bias per offset. A query comes with *local keys* of its own at
offsets 0, -1, ..., -(w-1), joint with it (the key at offset 0 is of the query's own token), and
may come with its own *sink key*, that of the first token, at offset -(L-1); all other keys are
independent of it, from a weighted pool. In the toy task and in layer 0 of a model both pools
are the vocabulary, the local window is the self key alone and there is no sink.

The carrier is the pair of means (m_Q, m_K). With a_i, b_i their rotary pairs and f the
schedule's attention factor (on the pairs that rotate),

    phi(delta) = scale m_Q^T F R_delta m_K = sum_i r_i cos(delta theta_i - psi_i),
    r_i = scale f^2 |a_i||b_i|,  psi_i = arg a_i - arg b_i.

Source: arXiv 2607.18759, sections 2 and 4.2, Proposition 1; window and sink are ours.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Float64, Int

from theory.bias import OffsetBias
from theory.errors import TheoryError
from theory.inputs import check_array
from theory.schedule import RotarySchedule, as_pairs


@dataclass(frozen=True, eq=False)
class Head:
    """An attention head as a distribution of pre-rotation queries and keys.

    `local_keys[a, j]` is the key at offset -j of query a, `sink_keys[a]` the key of the first
    token of its sequence, `keys` the pool of all other keys. Weights are probabilities.
    `logit_scale` turns scores into nats, `bias` is added after it.
    Raises TheoryError where shapes, weights or numbers do not fit.
    """

    schedule: RotarySchedule
    queries: Float64[np.ndarray, "query dim"]
    query_weights: Float64[np.ndarray, "query"]
    local_keys: Float64[np.ndarray, "query window dim"]
    keys: Float64[np.ndarray, "key dim"]
    key_weights: Float64[np.ndarray, "key"]
    logit_scale: float
    sink_keys: Float64[np.ndarray, "query dim"] | None = None
    bias: OffsetBias | None = None

    def __post_init__(self) -> None:
        width, queries = self.schedule.dim, len(self.queries)
        if queries == 0 or len(self.keys) == 0:
            raise TheoryError(
                f"a head without content attends to nothing: got {queries} queries and {len(self.keys)} keys, "
                "give one of each or more"
            )
        check_array("queries", self.queries, None, width)
        check_array("keys", self.keys, None, width)
        check_array("local keys", self.local_keys, queries, None, width)
        if self.window < 1:
            raise TheoryError("every query needs its own key at offset 0: local_keys[:, 0] is missing")
        if self.sink_keys is not None:
            check_array("sink keys", self.sink_keys, queries, width)
        for name, weights, rows in (("query", self.query_weights, queries), ("key", self.key_weights, len(self.keys))):
            check_array(f"{name} weights", weights, rows)
            if not (weights >= 0).all() or not abs(weights.sum() - 1) <= 1e-9:
                raise TheoryError(
                    f"{name} weights must be {rows} probabilities with sum 1, got the least {weights.min():g} and "
                    f"sum {weights.sum():.12g}: divide counts by their sum"
                )
        _check_scale(self.logit_scale)

    @classmethod
    def from_tokens(
        cls,
        schedule: RotarySchedule,
        queries: Float64[np.ndarray, "token dim"],
        keys: Float64[np.ndarray, "token dim"],
        weights: Float64[np.ndarray, "token"],
        logit_scale: float,
        bias: OffsetBias | None = None,
    ) -> Head:
        """A head whose content is a vocabulary: row a of both arrays belongs to token a."""
        return cls(schedule, queries, weights, keys[:, None, :], keys, weights, logit_scale, bias=bias)

    @property
    def window(self) -> int:
        """Number of offsets, from 0 back, whose keys are joint with the query."""
        return self.local_keys.shape[1]

    def logits(self, offsets: Int[np.ndarray, "offset"]) -> Float64[np.ndarray, "query offset key"]:
        """The score table l[a, delta, b] = scale q_a^T R_delta k_b + bias of the pool, in nats (Lemma 1)."""
        return np.moveaxis(self._turned(offsets) @ self.keys.T, 0, 1) + self._bias(offsets)[:, None]

    def local_logits(self) -> Float64[np.ndarray, "query window"]:
        """Logits of every query with its own local keys, in nats."""
        offsets = -np.arange(self.window)
        return np.einsum("wqd,qwd->qw", self._turned(offsets), self.local_keys) + self._bias(offsets)

    def sink_logits(self, offsets: Int[np.ndarray, "offset"]) -> Float64[np.ndarray, "query offset"]:
        """Logits of every query with its own sink key at each offset, -(L-1) at length L, in nats.

        Raises TheoryError where the head has no sink key.
        """
        if self.sink_keys is None:
            raise TheoryError("this head has no sink key: give sink_keys, one a query")
        return np.einsum("oqd,qd->qo", self._turned(offsets), self.sink_keys) + self._bias(offsets)

    def _turned(self, offsets: Int[np.ndarray, "offset"]) -> Float64[np.ndarray, "offset query dim"]:
        """Queries turned so that their product with an unrotated key is the logit at each offset, without bias."""
        scaled = self.logit_scale * np.repeat(self.schedule.score_gains, 2) * self.queries
        shape = (len(offsets), len(self.queries))
        return self.schedule.rotate(
            np.broadcast_to(scaled, (*shape, self.schedule.dim)), np.broadcast_to(-offsets[:, None], shape)
        )

    def _bias(self, offsets: Int[np.ndarray, "offset"]) -> Float64[np.ndarray, "offset"]:
        return np.zeros(len(offsets)) if self.bias is None else self.bias.at(np.abs(offsets))

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
            local_profile=self.query_weights @ self.local_logits(),
            bias=self.bias,
        )

    def with_means(
        self, query_mean: Float64[np.ndarray, "dim"] | None = None, key_mean: Float64[np.ndarray, "dim"] | None = None
    ) -> Head:
        """The same head with other means: every query, or every key with those of window and sink, is shifted alike.

        Residuals are kept, and so are means that are not given. Raises TheoryError where a mean does not fit.
        """
        moved = self
        if query_mean is not None:
            check_array("the mean query", query_mean, self.schedule.dim)
            moved = replace(moved, queries=self.queries + (query_mean - self.query_weights @ self.queries))
        if key_mean is not None:
            check_array("the mean key", key_mean, self.schedule.dim)
            shift = key_mean - self.key_weights @ self.keys
            sink = None if self.sink_keys is None else self.sink_keys + shift
            moved = replace(moved, keys=self.keys + shift, local_keys=self.local_keys + shift, sink_keys=sink)
        return moved


@dataclass(frozen=True, eq=False)
class Carrier:
    """The mean query and mean key of a head.

    `query_fraction` and `key_fraction` are |mean|^2 / E|vector|^2, NaN where all vectors are 0.
    `local_profile` is the mean logit at offsets 0, -1, ... of the window in nats, bias included:
    it holds the covariance of a query with its own keys and so is not phi.
    """

    schedule: RotarySchedule
    query_mean: Float64[np.ndarray, "dim"]
    key_mean: Float64[np.ndarray, "dim"]
    logit_scale: float
    query_fraction: float
    key_fraction: float
    local_profile: Float64[np.ndarray, "window"]
    bias: OffsetBias | None = None

    def __post_init__(self) -> None:
        check_array("the mean query", self.query_mean, self.schedule.dim)
        check_array("the mean key", self.key_mean, self.schedule.dim)
        _check_scale(self.logit_scale)

    @classmethod
    def from_means(
        cls,
        schedule: RotarySchedule,
        query_mean: Float64[np.ndarray, "dim"],
        key_mean: Float64[np.ndarray, "dim"],
        logit_scale: float,
    ) -> Carrier:
        """The carrier of the head without residuals: fractions 1, no key of a logit other than phi, no bias."""
        return cls(schedule, query_mean, key_mean, logit_scale, 1.0, 1.0, np.empty(0))

    @property
    def amplitudes(self) -> Float64[np.ndarray, "pair"]:
        """r_i = scale f^2 |a_i||b_i|, in nats."""
        gains = self.logit_scale * self.schedule.score_gains
        return gains * np.abs(as_pairs(self.query_mean)) * np.abs(as_pairs(self.key_mean))

    @property
    def phases(self) -> Float64[np.ndarray, "pair"]:
        """psi_i = arg a_i - arg b_i in rad, in (-pi, pi]; the carrier of offset K has psi_i = -K theta_i."""
        return np.angle(as_pairs(self.query_mean) * as_pairs(self.key_mean).conj())

    @property
    def energy(self) -> float:
        """sum r_i in nats: the mean logit at the target where every phase is on it."""
        return float(self.amplitudes.sum())

    @property
    def weights(self) -> Float64[np.ndarray, "pair"]:
        """p_i = r_i / sum r_i, the weights of the kernel. Raises TheoryError unless sum r_i is above 0 and finite."""
        total = self.energy
        if not 0 < total < np.inf:
            raise TheoryError(
                f"there is no kernel where the amplitudes add up to {total}: both means must be active, and within "
                "float64, on one rotary pair or more"
            )
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


def _check_scale(logit_scale: float) -> None:
    if not (np.isfinite(logit_scale) and logit_scale > 0):
        raise TheoryError(
            f"the logit scale must be a finite number above 0, got {logit_scale}: it is 1/sqrt(d_head) times any "
            "temperature"
        )
