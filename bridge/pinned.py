"""Heads of models with learned positions: where they look at trained positions, and where beyond them.

A context is tokens drawn independently by their weights, at positions 0..n. With e the embedding
and p the position table of T rows, the input of attention is e[token t] + p[t], and the profile of
the query at n is its mean attention over contexts,

    A_n(t) = E[softmax over t <= n of scale q_n^T k_t],   sum over t of A_n(t) = 1.

The key at n is of the query's own token. A head that looks K back has its peak at t = n - K
for every trained n. The query at T has a row that training never reached, p[T], which is either
as it was drawn (fresh: N(0, deviation^2) a lane) or what weight decay leaves of it in the long run
(decayed: 0), while its keys at 0..T-1 are trained: whatever is left of the query, its token and its
biases, attends a *position*, and the head is pinned there.

Source: arXiv 2607.18759, section 5.1 and Table 6; that untrained rows are sampled is ours.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float64, Int64
from scipy.special import softmax

from bridge.errors import BridgeError
from bridge.sources.attention import PositionLayer
from theory.inputs import whole
from theory.sampled_law import SEED

SAMPLES = 96
"""Contexts unless another number is given."""

_FEWEST = 32
_PROBED = 10
_DRAWS = 32
_QUERIES = 4
"""Queries of each row that share the keys of a context: projecting keys is most of the cost."""

_EVERY = slice(None)


@dataclass(frozen=True, eq=False)
class PositionProfiles:
    """Profiles of every head over positions 0..T, 0 beyond the query, and the standard errors of these means.

    `trained` are of the queries at the positions `probed`; `draws` of the query at T with each fresh
    row, `fresh` their mean, whose error holds the scatter of contexts and that of draws and is rough where
    few draws hold much of the attention; `decayed` of the query at T with a row of zeros.
    """

    probed: Int64[np.ndarray, "probe"]
    trained: Float64[np.ndarray, "probe head position"]
    trained_error: Float64[np.ndarray, "probe head position"]
    draws: Float64[np.ndarray, "draw head position"]
    fresh: Float64[np.ndarray, "head position"]
    fresh_error: Float64[np.ndarray, "head position"]
    decayed: Float64[np.ndarray, "head position"]
    decayed_error: Float64[np.ndarray, "head position"]


@dataclass(frozen=True)
class PinnedReport:
    """What one head looks at; T is the number of trained positions, shares are mean attention.

    `offset` <= 0 in tokens is that of the peak of the query at T-1, `share` the peak.
    `steadiness` is the share of the probed trained positions, T/8 to T-1, whose peak is at this
    offset: near 1 for a head that looks an offset back; T-1 is one of the ten, so it is never 0.
    `pinned` is the position that the query at T attends most with a fresh row (T is its own),
    `fresh_agreement` the share of the draws of the row with their peak there. `decayed_pinned` is the
    position with a row of zeros. Errors are standard errors; at a flat profile a peak is biased
    upwards by two or three of them.
    """

    head: int
    offset: int
    share: float
    share_error: float
    steadiness: float
    pinned: int
    pinned_share: float
    pinned_error: float
    fresh_agreement: float
    decayed_pinned: int
    decayed_share: float


def inspect_positions(
    layer: PositionLayer, weights: Float64[np.ndarray, "token"], samples: int = SAMPLES, seed: int = SEED
) -> tuple[PinnedReport, ...]:
    """A report of every head, in order. Arguments and errors are those of `position_profiles`."""
    profiles = position_profiles(layer, weights, samples, seed)
    return tuple(_report(profiles, head) for head in range(layer.maps.query.heads))


def position_profiles(
    layer: PositionLayer, weights: Float64[np.ndarray, "token"], samples: int = SAMPLES, seed: int = SEED
) -> PositionProfiles:
    """Profiles of every head at ten trained positions and at the first untrained one.

    `weights` of 0 or more are those of the tokens of `layer.stream` and need not add up to 1; `samples`
    is the number of independent contexts, 32 or more, each with four queries a row. The error of
    a mean is the scatter of contexts over the square root of their number. One seed gives the same
    bits on one machine. Raises BridgeError for other weights, for a table without rows and where logits
    are not finite, TheoryError for too few samples or a seed below 0.
    """
    length, width = layer.table.shape
    if length == 0:
        raise BridgeError("the position table has no row: a model with learned positions has one a trained position")
    probabilities = _probabilities(layer, weights)
    contexts = whole("the number of samples", samples, _FEWEST)
    rng = np.random.default_rng(whole("the seed", seed, 0))
    probed = np.unique(np.linspace(length // 8, length - 1, _PROBED).astype(np.int64))
    fresh = layer.fresh_deviation * rng.standard_normal((_DRAWS, width))
    rows = np.concatenate([layer.table[probed].astype(np.float64), fresh, np.zeros((1, width))])
    places = np.concatenate([probed, np.full(_DRAWS + 1, length)])
    heads = layer.maps.query.heads
    mean = np.zeros((len(rows) + 1, heads, length + 1))
    squares = np.zeros_like(mean)
    draws = slice(len(probed), len(probed) + _DRAWS)
    for number in range(1, contexts + 1):
        profiles = _context_profiles(layer, probabilities, rows, places, rng)
        step = np.concatenate([profiles, profiles[draws].mean(axis=0, keepdims=True)]) - mean
        mean += step / number
        squares += (1 - 1 / number) * np.square(step)
    variance = squares / (contexts * (contexts - 1))
    error = np.sqrt(variance)
    return PositionProfiles(
        probed=probed,
        trained=mean[: len(probed)],
        trained_error=error[: len(probed)],
        draws=mean[draws],
        fresh=mean[-1],
        fresh_error=np.sqrt(variance[-1] + mean[draws].var(axis=0, ddof=1) / _DRAWS),
        decayed=mean[-2],
        decayed_error=error[-2],
    )


def _report(profiles: PositionProfiles, head: int) -> PinnedReport:
    peaks = profiles.trained[:, head].argmax(axis=1)
    offsets = peaks - profiles.probed
    pinned, decayed = int(profiles.fresh[head].argmax()), int(profiles.decayed[head].argmax())
    return PinnedReport(
        head=head,
        offset=int(offsets[-1]),
        share=float(profiles.trained[-1, head, peaks[-1]]),
        share_error=float(profiles.trained_error[-1, head, peaks[-1]]),
        steadiness=float((offsets == offsets[-1]).mean()),
        pinned=pinned,
        pinned_share=float(profiles.fresh[head, pinned]),
        pinned_error=float(profiles.fresh_error[head, pinned]),
        fresh_agreement=float((profiles.draws[:, head].argmax(axis=1) == pinned).mean()),
        decayed_pinned=decayed,
        decayed_share=float(profiles.decayed[head, decayed]),
    )


def _probabilities(layer: PositionLayer, weights: Float64[np.ndarray, "token"]) -> Float64[np.ndarray, "token"]:
    if len(weights) != len(layer.stream):
        raise BridgeError(
            f"the token weights are for {len(weights)} tokens, the layer has {len(layer.stream)}: give those of its own"
        )
    total = weights.sum()
    if not (0 < total < np.inf and weights.min() >= 0):
        raise BridgeError(
            f"token weights must be finite, 0 or more and not all 0, got {weights[:4].tolist()} ... with sum {total}: "
            "give the shares of a text"
        )
    return weights / total


# Numbers beyond float64 are refused by name, numpy need not warn of them.
@np.errstate(over="ignore", invalid="ignore")
def _context_profiles(
    layer: PositionLayer,
    probabilities: Float64[np.ndarray, "token"],
    rows: Float64[np.ndarray, "row width"],
    places: Int64[np.ndarray, "row"],
    rng: np.random.Generator,
) -> Float64[np.ndarray, "row head position"]:
    """Attention over one context of T tokens, each row of positions read by a query at its place, mean over queries."""
    maps, length = layer.maps, len(layer.table)
    own = rng.choice(len(probabilities), (len(rows), _QUERIES), p=probabilities)
    before = rng.choice(len(probabilities), length, p=probabilities)
    asking = (layer.stream[own].astype(np.float64) + rows[:, None]).reshape(-1, rows.shape[1])
    queries, own_keys = maps.queries(asking, _EVERY), maps.keys(asking, _EVERY)
    keys = maps.keys(layer.stream[before].astype(np.float64) + layer.table, _EVERY)
    place = np.repeat(places, _QUERIES)
    hidden = np.arange(length + 1) > place[:, None]
    profiles = np.empty((len(rows), maps.query.heads, length + 1))
    logits = np.empty((len(place), length + 1))
    for head, asked in enumerate(queries):
        kv = head // maps.group
        logits[:, :length] = asked @ keys[kv].T
        logits[np.arange(len(place)), place] = (asked * own_keys[kv]).sum(axis=1)
        logits *= maps.logit_scale
        logits[hidden] = -np.inf
        profiles[:, head] = softmax(logits, axis=1).reshape(len(rows), _QUERIES, -1).mean(axis=1)
    if not np.isfinite(profiles).all():
        head = int(np.argwhere(~np.isfinite(profiles))[0, 1])
        raise BridgeError(f"head {head} has logits that are not finite: its weights are damaged or far too large")
    return profiles
