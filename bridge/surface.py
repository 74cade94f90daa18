"""Expected attention of a checkpoint's head at every offset and length, by sampling.

A head of a checkpoint has a vocabulary for content, so the exact law is sampled. Its schedule may
depend on the length (dynamic NTK, LongRoPE) and it may see a sliding window only: at length L it is
the head with the schedule of L over the min(L, span) tokens that it sees.

A pass over n samples of a head of width d costs n L d products. Lengths up to 1024 share one pass;
each longer one has its own. They cost the same, a few tenths of a second, up to where 64 samples are too
many for that (2^21/d tokens): in a long context far keys average out, so that fewer samples do, and the
standard error says what is left.

Source: `theory.sampled_law`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Float64

from bridge.sources.attention import LayerPositions
from theory.head import Head
from theory.sampled_law import SEED, sampled_attention

_SHORT = 1024
_PRODUCTS = 1 << 27
_FEWEST, _MOST = 64, 2048


@dataclass(frozen=True, eq=False)
class PlacedHead:
    """One head with its positions: the content at the trained length, and what changes with the length."""

    content: Head
    positions: LayerPositions

    def at(self, length: int) -> Head:
        """The head at a length in tokens; a first token beyond the span is no sink any more."""
        content, rotary = self.content, self.positions.rotary
        if self.seen(length) < length and content.sink_keys is not None:
            content = replace(content, sink_keys=None)
        return content if rotary is None else replace(content, schedule=rotary.schedule(length))

    def seen(self, length: int) -> int:
        """How many tokens of a context so long it sees."""
        return length if self.positions.span is None else min(length, self.positions.span)


@dataclass(frozen=True, eq=False)
class Profile:
    """Expected attention at offsets 0, -1, ... of the tokens seen at a length, and the standard error of each."""

    mean: Float64[np.ndarray, "offset"]
    standard_error: Float64[np.ndarray, "offset"]


def sampled_surface(head: PlacedHead, lengths: Sequence[int], seed: int = SEED) -> dict[int, Profile]:
    """The profile at each length. Raises TheoryError as `sampled_attention`."""
    surface: dict[int, Profile] = {}
    for together in _passes(head, lengths):
        seen = [head.seen(length) for length in together]
        affordable = _PRODUCTS // (max(max(seen), _SHORT) * head.content.schedule.dim)
        samples = min(max(affordable, _FEWEST), _MOST)
        sampled = sampled_attention(head.at(together[0]), seen, samples, seed)
        for length, tokens, mean, error in zip(together, seen, sampled.mean.T, sampled.standard_error.T, strict=True):
            surface[length] = Profile(mean[:tokens], error[:tokens])
    return surface


def _passes(head: PlacedHead, lengths: Sequence[int]) -> list[list[int]]:
    """Lengths that share a schedule and a number of samples, together."""
    passes: dict[object, list[int]] = {}
    for length in dict.fromkeys(lengths):
        tokens = head.seen(length)
        schedule = head.at(length).schedule
        has_sink = head.at(length).sink_keys is not None
        key = (tokens if tokens > _SHORT else 0, schedule.frequencies.tobytes(), schedule.attention_factor, has_sink)
        passes.setdefault(key, []).append(length)
    return list(passes.values())
