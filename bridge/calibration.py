"""A head of any layer, calibrated on text: the windowed law's head, and what is seen inside the text itself.

The windowed law is the exact law with a joint local window: a query of the text comes with its own keys
at offsets 0..-8 and its own first key, the sink; all further keys are independent of it, drawn from the
keys of the text at positions 64 and beyond. Nothing is fitted. Window and pool were chosen on one
model (SmolLM2) and hold as they are for others.

What is seen inside the windows, from their second half:

    profile    mean attention by offset                     sink      mean attention on the first token
    entropy    mean entropy of attention, nats              peak      mean of the greatest attention of a query,
    swapped    the profile with the far keys of the next window, at the same positions, in place of its own

Source: `theory.sampled_law` (the law); window, pool and what is seen are ours.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float64
from scipy.special import entr, softmax

from bridge.errors import BridgeError
from bridge.sources.activations import HeadActivations
from bridge.surface import PlacedHead
from theory.head import Head

WINDOW = 9
"""Offsets 0..-8, whose keys are the query's own."""

POOL_FROM = 64
"""Position of the first query and of the first key of the pool: those before differ."""

SHORTEST = 2 * POOL_FROM
"""Tokens of the shortest window of text that a head is calibrated on."""


@dataclass(frozen=True, eq=False)
class Seen:
    """Attention of a head inside its calibration text, mean over windows, with the standard error over them.

    Offsets are 0, -1, ..., as many as every query in question holds beside the sink; `length` is the mean number of
    tokens that these queries see.
    """

    length: int
    profile: Float64[np.ndarray, "offset"]
    profile_error: Float64[np.ndarray, "offset"]
    swapped: Float64[np.ndarray, "offset"]
    sink: float
    sink_error: float
    entropy: float
    entropy_error: float
    peak: float

    @property
    def offset(self) -> int:
        """delta <= 0 of the highest mean attention."""
        return -int(self.profile.argmax())

    @property
    def share(self) -> float:
        """Mean attention at that offset."""
        return float(self.profile[-self.offset])

    @property
    def share_error(self) -> float:
        """Its standard error."""
        return float(self.profile_error[-self.offset])


def check_windows(windows: int, length: int) -> None:
    """Raises BridgeError where windows of text are too short to calibrate a head on, or where there is one."""
    if length < SHORTEST:
        raise BridgeError(
            f"windows of {length} tokens are too short: {SHORTEST} or more are needed, since far keys are drawn from "
            f"positions {POOL_FROM} and beyond: give a longer --window"
        )
    if windows < 2:
        raise BridgeError("far keys are swapped between windows of text, and there is one: give a longer text")


def windowed_head(head: HeadActivations, first: int = POOL_FROM, stop: int | None = None) -> PlacedHead:
    """The head of the windowed law: queries and far keys at positions first..stop-1 of every window.

    Raises BridgeError where windows are too short for that.
    """
    return _calibrated(head, range(first, head.length if stop is None else stop), WINDOW)


def independent_head(head: HeadActivations) -> PlacedHead:
    """The same head where only the key at offset 0 and the sink are the query's own."""
    return _calibrated(head, range(POOL_FROM, head.length), 1)


def see(head: HeadActivations) -> Seen:
    """What the head does in the second half of each window. Raises BridgeError as `check_windows`."""
    windows = len(head.queries)
    check_windows(windows, head.length)
    asking = range(head.length // 2, head.length)
    at = np.arange(asking.start, asking.stop)
    offsets = asking.start
    back = at[:, None] - np.arange(head.length)
    own = (back < WINDOW) | (back == at[:, None])
    rows, columns = np.arange(len(at))[:, None], at[:, None] - np.arange(offsets)
    profiles, swapped = np.empty((2, windows, offsets))
    scalars = np.empty((windows, 3))
    for window in range(windows):
        logits = head.logits(window, asking)
        attention = softmax(logits, axis=1)
        other = head.logits(window, asking, keys_of=(window + 1) % windows)
        profiles[window] = attention[rows, columns].mean(axis=0)
        swapped[window] = softmax(np.where(own, logits, other), axis=1)[rows, columns].mean(axis=0)
        scalars[window] = (
            attention[:, 0].mean(),
            entr(attention).sum(axis=1).mean(),
            attention[:, 1:].max(axis=1).mean(),
        )
    error = scalars.std(axis=0, ddof=1) / np.sqrt(windows)
    sink, entropy, peak = scalars.mean(axis=0)
    return Seen(
        length=int(at.mean()) + 1,
        profile=profiles.mean(axis=0),
        profile_error=profiles.std(axis=0, ddof=1) / np.sqrt(windows),
        swapped=swapped.mean(axis=0),
        sink=float(sink),
        sink_error=float(error[0]),
        entropy=float(entropy),
        entropy_error=float(error[1]),
        peak=float(peak),
    )


def _calibrated(head: HeadActivations, places: range, window: int) -> PlacedHead:
    if places.start < window or not places.start < places.stop <= head.length:
        raise BridgeError(
            f"a head is calibrated at positions {window} to {head.length - 1} of its windows, one or more, got "
            f"{places.start} to {places.stop - 1}: give longer windows"
        )
    queries = np.concatenate(head.queries[:, places.start : places.stop])
    pool = np.concatenate(head.keys[:, places.start : places.stop])
    back = np.array(places)[:, None] - np.arange(window)
    content = Head(
        schedule=head.schedule(),
        queries=queries,
        query_weights=np.full(len(queries), 1 / len(queries)),
        local_keys=np.concatenate(head.keys[:, back]),
        keys=pool,
        key_weights=np.full(len(pool), 1 / len(pool)),
        logit_scale=head.logit_scale,
        sink_keys=np.repeat(head.keys[:, 0], len(places), axis=0),
    )
    return PlacedHead(content, head.positions)
