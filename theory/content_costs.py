"""What the content of a head does beside its means: attention that own keys and residuals cost, and its widest logit.

Residuals and a query's own keys are what is left of a head when its means are taken out. The softmax of the mean
logits knows nothing of the first, that of phi alone of neither; the exact law knows both.

Source: ours; phi and its softmax are Proposition 1 and Corollary 2 of arXiv 2607.18759.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Bool, Float64, Int

from theory.dilution import mean_profile_law
from theory.errors import TheoryError
from theory.exact_law import exact_law
from theory.head import Head
from theory.inputs import whole
from theory.kernel import mean_profile
from theory.schedule import as_pairs

LARGEST_LOGIT = 2.0**14
"""In nats. A rounding in float32 moves a logit of l nats by up to 2^-24 |l|: beyond 2^14 = 16384 nats by more than
2^-10, which changes the odds of two keys by more than .1 %."""
OVERFLOWING_LOGIT = math.log(float(np.finfo(np.float32).max))
"""ln of float32's largest number, 88.7 nats: beyond it a softmax that does not subtract its largest logit overflows.
The usual softmax subtracts it, so that nothing is refused by this number."""

_LAW_ERROR = 1e-6
_BLOCK = 1 << 18
"""Numbers in the tables of a block of offsets."""


@dataclass(frozen=True)
class Cost:
    """Attention K = `offset` back at a length: what a head's own keys and residuals cost its means.

    `means` is the softmax of phi (and bias), `own_keys` that with the mean logits of a query's own keys, at offset 0
    or in its window and sink, `content` the exact law, residuals included.
    """

    offset: int
    length: int
    means: float
    own_keys: float
    content: float

    @property
    def of_own_keys(self) -> float:
        """Attention lost to the query's own keys; below 0 where they help."""
        return self.means - self.own_keys

    @property
    def of_residuals(self) -> float:
        """Attention lost to the residuals; below 0 where they help."""
        return self.own_keys - self.content


def cost_of_content(head: Head, offset: int, length: int) -> Cost:
    """What its own keys and residuals cost a head at K = `offset` and a length. Raises TheoryError as `exact_law`."""
    content = float(exact_law(head, offset, [length], _LAW_ERROR)[0])
    carrier = head.carrier()
    means = mean_profile(replace(carrier, local_profile=np.empty(0)), length)
    sink = None if head.sink_keys is None else head.query_weights @ head.sink_logits(np.array([1 - length]))
    own_keys = mean_profile_law(mean_profile(carrier, length), offset, [length], sink)
    return Cost(offset, length, float(mean_profile_law(means, offset, [length])[0]), float(own_keys[0]), content)


def check_logits(head: Head, length: int) -> float:
    """The largest |logit| in nats of any query with any key that a context of up to the length can have.

    A query is asked only while sum_i scale gain_i |a_i||b_i|, and the bias, can exceed what was found; memory does
    not grow with the length. Raises TheoryError where the largest exceeds `LARGEST_LOGIT`, beyond which one rounding in
    float32 changes odds by more than .1 %, and where a logit is not finite.
    """
    length = whole("a length", length, 1)
    with np.errstate(over="ignore", invalid="ignore"):
        largest = _largest_logit(head, length)
    if not largest <= LARGEST_LOGIT:
        raise TheoryError(
            f"a logit reaches {largest:.1f} nats, expected at most {LARGEST_LOGIT:.0f}, beyond which one rounding in "
            "float32 changes odds by more than .1 %: ask for less attention, a shorter length, a wider head or another "
            "base"
        )
    return largest


def _largest_logit(head: Head, length: int) -> float:
    found = _size(head.local_logits()[:, :length])
    if head.sink_keys is not None:
        for offsets in _blocks(head.window, length, len(head.queries) * head.schedule.dim):
            found = max(found, _size(head.sink_logits(offsets)))
    bias = 0.0
    if head.bias is not None:
        for offsets in _blocks(head.window, length, 1):
            bias = max(bias, _size(head.bias.at(-offsets)))
    gains = head.logit_scale * head.schedule.score_gains
    sizes = np.abs(as_pairs(head.keys))
    bounds = np.array([_bounds(query, gains, sizes).max() for query in head.queries])
    for a in np.argsort(-bounds):
        if bounds[a] + bias <= found:
            break
        rivals = _bounds(head.queries[a], gains, sizes) + bias > found
        found = max(found, _largest_of_query(head, int(a), rivals, length))
    return found


def _bounds(
    query: Float64[np.ndarray, "dim"], gains: Float64[np.ndarray, "pair"], sizes: Float64[np.ndarray, "key pair"]
) -> Float64[np.ndarray, "key"]:
    """sum_i scale gain_i |a_i||b_i|, which no turn exceeds; infinite where that is no number."""
    bounds = sizes @ (gains * np.abs(as_pairs(query)))
    return np.where(np.isnan(bounds), np.inf, bounds)


def _largest_of_query(head: Head, a: int, rivals: Bool[np.ndarray, "key"], length: int) -> float:
    """The largest |logit| of query a with those keys of the pool beyond the window, 0 where there is none."""
    keys = head.keys[rivals]
    one = replace(
        head,
        queries=head.queries[a : a + 1],
        query_weights=np.ones(1),
        local_keys=head.local_keys[a : a + 1],
        keys=keys,
        key_weights=np.full(len(keys), 1 / len(keys)),
        sink_keys=None,
    )
    blocks = _blocks(head.window, length, len(keys) + head.schedule.dim)
    return max((_size(one.logits(offsets)) for offsets in blocks), default=0.0)


def _size(logits: Float64[np.ndarray, "..."]) -> float:
    """The largest absolute value, infinite where one is no number."""
    largest = float(np.abs(logits).max())
    return math.inf if math.isnan(largest) else largest


def _blocks(first: int, end: int, numbers: int) -> Iterator[Int[np.ndarray, "offset"]]:
    """The offsets -first, ..., -(end-1) in blocks, each of so many `numbers` an offset."""
    rows = max(1, _BLOCK // numbers)
    for start in range(first, end, rows):
        yield -np.arange(start, min(start + rows, end))
