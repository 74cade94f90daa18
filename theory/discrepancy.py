"""Positional against symbolic heads: how attention answers a swap of two keys, and how far its top logit leads.

Two keys i, j of a prompt change places, the query stays last. With v = (d_i, d_j) the attention to
places i and j before and v' after,

    s_pos = sum_swaps w cos(v', v),   s_sym = sum_swaps w cos(v', flip v),   w = softmax(|d_i - d_j| / tau).

A head that looks at places keeps v (s_pos = 1), one that looks at symbols flips it (s_sym = 1). The
discrepancy of a query is its largest logit minus its second largest, in nats. With pairs of amplitude
r_i, sum A, and frequency theta_i, a positional head leads at length n by min_{0<s<n} sum r_i (1 - cos s theta_i);
a symbolic head on frozen pairs (theta = 0) leads by A at every length, and loses it as they turn.

Source: arXiv 2605.31558, with the scores of arXiv 2511.11579; the laws in the frequencies are ours.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float64, Integer
from scipy import special

from theory.errors import TheoryError
from theory.inputs import check_amplitudes, whole
from theory.schedule import RotarySchedule

_CHUNK = 1 << 14
# Attention rows may come from float32: a row of a thousand keys then sums to 1 within about 1e-4.
_ROW_SUM = 1e-4


@dataclass(frozen=True)
class SwapScores:
    """s_pos and s_sym in [0, 1], and the entropy in nats of the row before.

    A uniform row scores 1 on both and has entropy log(keys): scores without the entropy say nothing.
    """

    positional: float
    symbolic: float
    entropy: float


@dataclass(frozen=True)
class SymbolicLoss:
    """What the match of a symbolic head loses once rotated, in nats: exactly, and the bound on it."""

    exact: float
    bound: float


def swap_scores(
    before: Float64[np.ndarray, "key"],
    after: Float64[np.ndarray, "row column"],
    swaps: Integer[np.ndarray, "swap 2"],
    temperature: float,
) -> SwapScores:
    """s_pos and s_sym of one query from its attention row before and after each swap of the keys (i, j).

    `after` holds one row a swap, `swaps` the two keys of each, whole numbers.
    Raises TheoryError for rows that are no probabilities, for a swap that is not of two keys of the row,
    for a temperature tau that is not above 0, and for a swap whose two keys hold no weight before or
    none after: it has no direction.
    """
    keys = len(before)
    if before.ndim != 1 or after.ndim != 2 or after.shape[1] != keys:
        raise TheoryError(
            f"give one row before and a table of rows after, of the same keys: got shapes {before.shape}, {after.shape}"
        )
    rows = np.vstack([before, after])
    if not ((rows >= 0).all() and (np.abs(rows.sum(axis=1) - 1) <= _ROW_SUM).all()):
        raise TheoryError(f"attention rows are probabilities with sum 1, got rows with sums {rows.sum(axis=1)}")
    if swaps.dtype.kind not in "iu" or swaps.ndim != 2 or swaps.shape[1] != 2:
        raise TheoryError(f"swaps are a table of two whole numbers each, got {swaps.dtype} of shape {swaps.shape}")
    if not len(swaps) or len(swaps) != len(after):
        raise TheoryError(f"give one row after each swap and a swap or more, got {len(after)} rows, {len(swaps)} swaps")
    if (swaps < 0).any() or (swaps >= keys).any() or (swaps[:, 0] == swaps[:, 1]).any():
        raise TheoryError(f"a swap is of two different keys among 0..{keys - 1}, got {swaps.tolist()}")
    if not (math.isfinite(temperature) and temperature > 0):
        raise TheoryError(f"the temperature must be a finite number above 0, got {temperature}")
    spreads = np.abs(before[swaps[:, 0]] - before[swaps[:, 1]])
    with np.errstate(over="ignore"):
        # From the largest down, so that a temperature near 0 leaves that one.
        weights = special.softmax((spreads - spreads.max()) / temperature)
    old, new = _directions(before[swaps], swaps), _directions(np.take_along_axis(after, swaps, axis=1), swaps)
    return SwapScores(
        positional=float(weights @ (old * new).sum(axis=1)),
        symbolic=float(weights @ (old[:, ::-1] * new).sum(axis=1)),
        entropy=float(special.entr(before).sum()),
    )


def discrepancy(logits: Float64[np.ndarray, "*batch query key"]) -> Float64[np.ndarray, "*batch query"]:
    """Largest minus second largest logit of every query, in nats; 0 in a tie.

    A logit of -inf masks its key; a row with one key left leads by infinity. Raises TheoryError for rows of
    fewer than two keys, for a row of masked keys alone, and for logits that are NaN or +inf.
    """
    if logits.shape[-1] < 2:
        raise TheoryError(f"a discrepancy needs two keys or more, got {logits.shape[-1]}")
    # NaN is sorted to the end.
    second, first = np.moveaxis(np.partition(logits, -2, axis=-1)[..., -2:], -1, 0)
    if not np.isfinite(first).all():
        raise TheoryError(
            f"{np.count_nonzero(~np.isfinite(first))} rows have no finite largest logit: leave out queries whose keys "
            "are all masked, and look for where NaN or +inf come from"
        )
    return first - second


def positional_discrepancy(
    amplitudes: Float64[np.ndarray, "pair"], schedule: RotarySchedule, length: int
) -> Float64[np.ndarray, "length"]:
    """A (1 - max_{0<|s|<n} g(s)) = min_{0<s<n} sum_i r_i (1 - cos s theta_i) at lengths n = 1..length, in nats.

    A = sum r_i, amplitudes in nats. Entry n-1 is length n: infinite at n = 1, which has no rival, and not
    increasing in n. All lags below n are counted, as they are over the targets K of one length; a fixed K
    meets those from -(n-1-K) to K only, and leads by as much or more.
    Raises TheoryError for amplitudes that are not one finite number a pair, 0 or more, and a length below 1.
    """
    gaps = _gaps(amplitudes, schedule, length)
    gaps[0] = np.inf
    return np.minimum.accumulate(gaps)


def dirichlet_bound(lags: int, pairs: int = 1) -> float:
    """1 - cos(2 pi (N + 1)^(-1/m)): no m frequencies keep 1 - g(s) above it at all of s = 1..N.

    By Dirichlet's theorem (Minkowski's form of it) some s <= N has ||s theta_i/2pi|| <= (N + 1)^(-1/m) for
    every i, whatever the weights of g. Attained for m = 1 by theta = 2 pi/(N + 1). The bound with N in
    place of N + 1 is weaker and so holds too, where it means anything. Below N + 1 = 2^m no lag need come
    within half a turn on every pair, and the bound is 2, which is always true.
    Raises TheoryError for fewer than 1 lag or pair.
    """
    lags, pairs = whole("lags", lags, 1), whole("pairs", pairs, 1)
    # By the logarithm, which takes a number of lags beyond float64 too.
    return 2 * math.sin(math.pi * min(0.5, math.exp(-math.log(lags + 1) / pairs))) ** 2


def symbolic_loss(amplitudes: Float64[np.ndarray, "pair"], schedule: RotarySchedule, length: int) -> SymbolicLoss:
    """What the key that matches the query's symbol loses at the worst of the distances s < length, in nats.

        exact = max_{s<L} sum r_i (1 - cos s theta_i)  <=  bound = A ((L-1) theta_max)^2 / 2

    theta_max is the fastest of the pairs with r_i > 0. The match scores sum r_i cos(s theta_i), A on frozen
    pairs. This is the loss of its lead over keys whose
    score does not turn with s; a rival whose own content turns towards the query takes more.
    Raises TheoryError as `positional_discrepancy`.
    """
    exact = float(_gaps(amplitudes, schedule, length).max())
    farthest = (length - 1) * float(np.abs(schedule.frequencies[amplitudes > 0]).max(initial=0))
    return SymbolicLoss(exact, float(amplitudes.sum()) * farthest**2 / 2)


def _directions(
    attention: Float64[np.ndarray, "swap 2"], swaps: Integer[np.ndarray, "swap 2"]
) -> Float64[np.ndarray, "swap 2"]:
    """The attention to the two keys of every swap as a unit vector."""
    norms = np.hypot(attention[:, 0], attention[:, 1])
    if not norms.all():
        raise TheoryError(
            f"the keys {swaps[np.argmin(norms)].tolist()} hold no attention, so that their swap has no direction: "
            "leave out swaps of keys whose weight underflows"
        )
    return attention / norms[:, None]


def _gaps(
    amplitudes: Float64[np.ndarray, "pair"], schedule: RotarySchedule, length: int
) -> Float64[np.ndarray, "length"]:
    """sum r_i (1 - cos s theta_i) at lags s < length, as 2 sin^2(s theta_i/2), which keeps the digits of small gaps."""
    check_amplitudes(amplitudes, schedule)
    length = whole("a length, in keys,", length, 1)
    gaps = np.empty(length)
    for start in range(0, length, _CHUNK):
        lags = np.arange(start, min(start + _CHUNK, length))
        halves = np.multiply.outer(lags, schedule.frequencies / 2)
        gaps[lags] = 2 * np.square(np.sin(halves)) @ amplitudes
    return gaps
