"""Biases that depend on the offset alone, added to the logit after its scale, in nats.

    logit = scale q^T R_delta k + b(|delta|)

Lemma 1 holds for them as it does for the rotation: nothing but t - n enters. ALiBi's bias is
-slope |delta|; a bucket bias is one number for each range of distances, the last one without end.

Source: Press et al. 2022 (ALiBi); Raffel et al. 2020 (T5's buckets); arXiv 2607.18759, appendix.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
from jaxtyping import Float64, Int

from theory.errors import TheoryError
from theory.inputs import check_array


@runtime_checkable
class OffsetBias(Protocol):
    """What a head adds to the logit of a key that many tokens back."""

    def at(self, distances: Int[np.ndarray, "offset"]) -> Float64[np.ndarray, "offset"]:
        """b(|delta|) in nats at distances |delta| of 0 or more, in tokens."""
        ...

    @property
    def limit(self) -> float:
        """What b tends to at a growing distance, in nats; infinite where it tends to nothing."""
        ...


@dataclass(frozen=True)
class LinearBias:
    """ALiBi: b = -slope |delta|, slope in nats a token. Raises TheoryError for a slope that is not finite."""

    slope: float

    def __post_init__(self) -> None:
        if not np.isfinite(self.slope):
            raise TheoryError(f"the slope of a linear bias must be a finite number in nats a token, got {self.slope}")

    def at(self, distances: Int[np.ndarray, "offset"]) -> Float64[np.ndarray, "offset"]:
        """-slope |delta|."""
        return -self.slope * np.asarray(distances, dtype=np.float64)

    @property
    def limit(self) -> float:
        """-inf for a slope above 0."""
        return 0.0 if self.slope == 0 else -np.copysign(np.inf, self.slope)


@dataclass(frozen=True, eq=False)
class BucketBias:
    """b = values[j] for first[j] <= |delta| < first[j+1]; the last bucket has no end.

    Raises TheoryError unless the buckets begin at 0 and rise and each has one finite value.
    """

    values: Float64[np.ndarray, "bucket"]
    first: Int[np.ndarray, "first"]

    def __post_init__(self) -> None:
        check_array("bucket values", self.values, len(self.first))
        if len(self.first) == 0:
            raise TheoryError("a bucket bias needs one bucket or more, got none")
        if self.first[0] != 0 or (np.diff(self.first) <= 0).any():
            raise TheoryError(f"buckets begin at distance 0 and rise, got {list(self.first)}")

    @classmethod
    def clamped(cls, values: Float64[np.ndarray, "bucket"]) -> BucketBias:
        """One value for each distance 0, 1, ..., the last one for all that are further."""
        return cls(values, np.arange(len(values)))

    @classmethod
    def t5(cls, values: Float64[np.ndarray, "bucket"], max_distance: int = 128) -> BucketBias:
        """T5's buckets of a causal head: the first half one distance each, the rest in equal steps of log distance.

        Bucket = n/2 + floor(ln(|delta| / (n/2)) / ln(max_distance / (n/2)) n/2), n-1 at most.
        Raises TheoryError for an odd number of buckets, or a max_distance that is not above half of them.
        """
        buckets = len(values)
        half = buckets // 2
        if buckets < 2 or buckets % 2 or max_distance <= half:
            raise TheoryError(
                f"T5's buckets are even in number and reach beyond one distance each: got {buckets} buckets "
                f"to distance {max_distance}"
            )
        distances = np.arange(half, max_distance + 1)
        steps = np.floor(np.log(distances / half) / np.log(max_distance / half) * half).astype(np.int64)
        bucket = np.minimum(half + steps, buckets - 1)
        # A bucket that no distance falls into is left out.
        used, where = np.unique(bucket, return_index=True)
        return cls(np.concatenate([values[:half], values[used]]), np.concatenate([np.arange(half), distances[where]]))

    def at(self, distances: Int[np.ndarray, "offset"]) -> Float64[np.ndarray, "offset"]:
        """The value of the bucket that each distance falls into."""
        return self.values[np.searchsorted(self.first, distances, side="right") - 1]

    @property
    def limit(self) -> float:
        """The value of the last bucket."""
        return float(self.values[-1])
