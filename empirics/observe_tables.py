"""Observation of a model through its score tables: what `observe` says, in a fraction of the time at long lengths.

By Lemma 1 a logit is an entry of a table of query token, offset and key token (`empirics.score_table`),
so that a sequence of L tokens costs L entries that are looked up, not L tokens through three matrices.
At L = 16384 with 20 tokens the table of a head has 16384 x 20 x 20 entries (26 MB). Sequences are
drawn and counted a part at a time: a generator fills rows one after the other, so that parts are what
one draw would be. Where something is drawn after all tokens (modes, random positions) they are
drawn at once.

Source: arXiv 2607.18759, lemma 1; section 5, metrics (i) and (ii).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np
import torch

from empirics.encoding_specs import (
    LearnedPositions,
    LinearBias,
    PeriodicRotary,
    RandomizedPositions,
    Rotary,
    Sinusoidal,
)
from empirics.encodings import sinusoids, turns
from empirics.head import AttentionHead
from empirics.observe import Observation, Sums, check_lengths, observe, summary
from empirics.score_table import Places, Weights, counts
from empirics.spec import RunSpec
from empirics.tasks import Batch, draw_batch, targets

# Tables beyond this many entries (134 MB) are not built.
_MOST_ENTRIES = 1 << 25
# Tokens that are drawn at a time (134 MB); the tables are computed once for each.
_PART_TOKENS = 1 << 24


def observe_by_tables(
    model: AttentionHead, lengths: Sequence[int], sequences: int, generator: torch.Generator
) -> tuple[Observation, ...]:
    """What `observe` says, of the same draws: accuracy, and attention to float32 rounding.

    Sequence by sequence, as `observe` does it, where the tables would be larger than what is looked up in them or than
    134 MB. Raises EmpiricsError as `check_lengths`.
    """
    check_lengths(model.spec, lengths, sequences)
    return tuple(_observe_length(model, length, sequences, generator) for length in lengths)


def places(spec: RunSpec, length: int, dtype: np.dtype) -> Places:
    """Turns of the offsets 0 .. length - 1, vectors of as many absolute positions, computed in float64."""
    encoding, place = spec.encoding, torch.arange(length)
    angles, vectors = torch.zeros(0, 0, dtype=torch.float64), torch.zeros(0, 0, dtype=torch.float64)
    if isinstance(encoding, Rotary | PeriodicRotary):
        angles = torch.outer(place.double(), turns(encoding, spec.head_width))
    if isinstance(encoding, Sinusoidal):
        vectors = sinusoids(place, spec.width, encoding.base)
    return Places(
        cosines=angles.cos().numpy().astype(dtype),
        sines=angles.sin().numpy().astype(dtype),
        vectors=vectors.numpy().astype(dtype),
        slope=dtype.type(encoding.slope if isinstance(encoding, LinearBias) else 0),
        scale=dtype.type(spec.temperature / math.sqrt(spec.head_width)),
        softmax=spec.attention == "softmax",
    )


def table_shape(spec: RunSpec, length: int) -> tuple[int, int]:
    """Offsets that the table of a length tells apart, and its keys: tokens, and places where positions are vectors."""
    vectors = isinstance(spec.encoding, LearnedPositions | RandomizedPositions | Sinusoidal)
    return length if isinstance(spec.encoding, Rotary | PeriodicRotary) else 1, spec.tokens + (length if vectors else 0)


def _observe_length(model: AttentionHead, length: int, sequences: int, generator: torch.Generator) -> Observation:
    spec = model.spec
    offsets, keys = table_shape(spec, length)
    if spec.heads * offsets * spec.tokens * keys > min(sequences * length, _MOST_ENTRIES):
        (seen,) = observe(model, [length], sequences, generator)
        return seen
    weights = _weights(model)
    turns = places(spec, length, weights.embedding.dtype)
    sums = Sums.zero(spec.heads, length)
    for batch in _drawn(spec, sequences, length, generator):
        wanted = targets(spec, batch.tokens).numpy()
        sums = sums.plus(counts(weights, turns, batch.tokens.numpy(), batch.positions.numpy(), wanted))
    return summary(spec, sequences, sums)


def _drawn(spec: RunSpec, sequences: int, length: int, generator: torch.Generator) -> Iterator[Batch]:
    """The sequences that `draw_batch` draws at once, in parts where tokens are all that is drawn."""
    at_once = spec.second_offset is not None or isinstance(spec.encoding, RandomizedPositions)
    part = sequences if at_once else max(1, _PART_TOKENS // length)
    for first in range(0, sequences, part):
        yield draw_batch(spec, min(part, sequences - first), length, generator)


def _weights(model: AttentionHead) -> Weights:
    named = {name: weight.detach().cpu().numpy() for name, weight in model.named_parameters()}
    embedding = named["embedding"]
    projections = np.concatenate([named["query"], named["key"], named["value"]])
    positions = named.get("positions", np.zeros((0, model.spec.width), embedding.dtype))
    bias = named.get("bias", np.zeros((model.spec.heads, 0), embedding.dtype))
    return Weights(embedding, projections, named["readout"], positions, bias)
