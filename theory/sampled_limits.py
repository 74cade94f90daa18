"""Inversion and aliasing rates of a head, counted over its own queries and keys.

Queries and keys are drawn independently from a head's own, the keys from the pool, distances from a context;
nothing is taken to be normal. A block shares one set of distances among its draws, and every pair of its
distances is compared: blocks are independent, and the standard error is that of their mean.

Source: ours; `theory.content_limits` for what is counted.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Complex128, Float64, Int64

from theory.bias import OffsetBias
from theory.content_limits import Limits, Rate, check_context, check_tolerance
from theory.context_draws import Draws, endless, turns_at
from theory.errors import TheoryError
from theory.head import Head
from theory.inputs import whole
from theory.limits import aliased_pairs
from theory.schedule import RotarySchedule, as_pairs

SEED = 2605_15516
_DRAWS, _DISTANCES = 64, 128


def sampled_limits(head: Head, length: int | None, tolerance: float, blocks: int = 256, seed: int = SEED) -> Limits:
    """The three rates in a context of `length` tokens, None for an endless one; `tolerance` is eps in nats.

    A block is 64 draws of a query and two different keys, at 128 distances or at all that there are. Raises TheoryError
    for a length below 2, a tolerance not above 0, and a single key; in an endless context also for a bias, and
    where the exact frequencies are not known.
    """
    check_context(length, head.bias)
    check_tolerance(tolerance)
    if np.count_nonzero(head.key_weights) < 2:
        raise TheoryError("one key has no order to change: give a head with two keys or more")
    rng = np.random.default_rng(seed)
    content = _Content.of(head)
    rows = np.array([_block(content, length, tolerance, rng) for _ in range(whole("blocks", blocks, 2))])
    values, errors = rows.mean(axis=0), rows.std(axis=0, ddof=1) / np.sqrt(blocks)
    position, token, aliasing = (Rate(float(value), float(error)) for value, error in zip(values, errors, strict=True))
    return Limits(position, token, aliasing)


@dataclass(frozen=True, eq=False)
class _Content:
    """Queries in nats and keys of a head as rotary pairs, and the cumulative sums of their weights."""

    schedule: RotarySchedule
    bias: OffsetBias | None
    queries: Complex128[np.ndarray, "query pair"]
    keys: Complex128[np.ndarray, "key pair"]
    query_sums: Float64[np.ndarray, "query"]
    key_sums: Float64[np.ndarray, "key"]

    @classmethod
    def of(cls, head: Head) -> _Content:
        gains = head.logit_scale * head.schedule.score_gains
        sums = (np.cumsum(weights) / weights.sum() for weights in (head.query_weights, head.key_weights))
        return cls(head.schedule, head.bias, gains * as_pairs(head.queries), as_pairs(head.keys), *sums)

    def scores(
        self, queries: Int64[np.ndarray, "draw"], keys: Complex128[np.ndarray, "draw pair"], draws: Draws
    ) -> Float64[np.ndarray, "draw distance"]:
        """Every key at every distance, in nats, without a bias."""
        products = self.queries[queries] * keys.conj()
        return products.real @ draws.turns.real.T - products.imag @ draws.turns.imag.T


def _block(
    content: _Content, length: int | None, tolerance: float, rng: np.random.Generator
) -> tuple[float, float, float]:
    draws, near = _distances(content.schedule, length, rng)
    queries, own = (_drawn(sums, _DRAWS, rng) for sums in (content.query_sums, content.key_sums))
    first, second = _two(content.key_sums, rng)
    scores = content.scores(queries, content.keys[own], draws)
    gaps = content.scores(queries, content.keys[first] - content.keys[second], draws)
    if content.bias is not None and draws.distances is not None:
        scores = scores + content.bias.at(draws.distances)
    here, there = scores[:, :near, None], scores[:, None, near:]
    position = float((here < there).mean() + (here == there).mean() / 2)
    pairs = scores.shape[1] * (scores.shape[1] - 1) / 2
    ahead, behind = (gaps > 0).sum(axis=1), (gaps < 0).sum(axis=1)
    same = (ahead * (ahead - 1) + behind * (behind - 1)) / 2
    token = float((ahead * behind + pairs - same).mean() / (2 * pairs))
    aliasing = float(np.mean([aliased_pairs(row, tolerance) for row in scores]) / pairs)
    return position, token, aliasing


def _distances(schedule: RotarySchedule, length: int | None, rng: np.random.Generator) -> tuple[Draws, int]:
    """Different distances, near ones first, and how many these are; that one kind is missing has a chance of 2^-127."""
    if length is None:
        return endless(schedule, _DISTANCES, rng), _DISTANCES // 2
    drawn = np.sort(rng.choice(length, min(length, _DISTANCES), replace=False)).astype(np.int64)
    return turns_at(schedule, drawn), int((drawn < length / 2).sum())


def _drawn(sums: Float64[np.ndarray, "row"], count: int, rng: np.random.Generator) -> Int64[np.ndarray, "draw"]:
    """Rows with the probabilities whose cumulative sums these are."""
    return np.searchsorted(sums, rng.random(count), side="right").astype(np.int64)


def _two(
    sums: Float64[np.ndarray, "key"], rng: np.random.Generator
) -> tuple[Int64[np.ndarray, "draw"], Int64[np.ndarray, "draw"]]:
    """Two rows that are not the same one."""
    first, second = _drawn(sums, _DRAWS, rng), _drawn(sums, _DRAWS, rng)
    while (same := first == second).any():
        first[same], second[same] = (_drawn(sums, int(same.sum()), rng) for _ in range(2))
    return first, second
