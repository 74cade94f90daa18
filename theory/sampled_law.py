"""The exact law by sampling: mean attention at every offset and length, with its standard error.

For a query a, its own keys in the window and at the sink, all others independent from the pool,

    E[A(delta, L)] = E[e^(l_delta) / T(L)],   T(L) = sum of e^(l_delta') over delta' > -L,

is what `exact_law` has by quadrature, at a cost of queries x keys x offsets. Use that one where
the pool is small (tens of tokens, or hundreds and few offsets) and this one for a vocabulary: here
the cost is samples x offsets, whatever the pool. A sample is a query and one context as long as
the longest length; every shorter length reads its beginning, so that all come from one pass.

The mean is over independent replicates and the standard error is their spread over the square root
of their number. Within a replicate queries are a systematic sample of their weights, and the keys of
an offset are one draw from each of equal shares of theirs, shuffled. A sample alone still has the
law's own distribution, hence no bias, and the spread between replicates counts what the shares gain.

At a near offset a few keys hold much of the attention and the mean needs many of them: there each
sample has keys of its own. The far ones act through their sum, in which they average out, and
samples in small groups share them: keys are turned once a group, and their logits are a matrix
product. Sharing correlates the samples of a group and biases none; a group is inside one replicate.

Source: ours.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Complex128, Float64, Int64

from theory.errors import TheoryError
from theory.head import Head
from theory.inputs import Lengths, check_lengths, check_sink_beyond, whole
from theory.schedule import as_pairs

SEED = 20_260_724
"""Seed of the random stream unless another is given."""

_REPLICATES = 32
_GROUP = 16
_NEAR = 128
_WIDEST_SPREAD = 600.0


@dataclass(frozen=True, eq=False)
class SampledAttention:
    """Mean attention at offsets 0, -1, ..., -(max length - 1), and the standard error of each mean.

    Both are 0 where a length does not hold the offset. `samples` is the number taken. The error
    comes from 32 replicates, so that (estimate - truth)/error has Student's distribution with 31
    degrees of freedom; a key too rare to be drawn at all is in no spread.
    """

    lengths: tuple[int, ...]
    mean: Float64[np.ndarray, "offset length"]
    standard_error: Float64[np.ndarray, "offset length"]
    samples: int


# Numbers beyond float64 are refused by name below, numpy need not warn of them.
@np.errstate(over="ignore", invalid="ignore")
def sampled_attention(head: Head, lengths: Lengths, samples: int = 4096, seed: int = SEED) -> SampledAttention:
    """E[attention] at every offset of every length, keys beyond the window independent, by sampling.

    Lengths in tokens, in any order; `samples` is 32 or more and is rounded up to a multiple of 32.
    One seed gives the same bits on one machine. Raises TheoryError for lengths below 1, where a head
    with a sink is asked for a length inside its window, for too few samples, and where logits are
    not finite or all keys of a context lie 600 nats below a key further back.
    """
    given = check_lengths(0, lengths)
    queries = -(-whole("the number of samples", samples, _REPLICATES) // _REPLICATES)
    rng = np.random.default_rng(whole("the seed", seed, 0))
    contexts = _Contexts.of(head, given)
    mean = np.zeros((len(given), contexts.longest))
    squares = np.zeros_like(mean)
    for number in range(1, _REPLICATES + 1):
        replicate = _replicate(contexts, queries, rng)
        step = replicate - mean
        mean += step / number
        squares += step * (replicate - mean)
    error = np.sqrt(squares / (_REPLICATES * (_REPLICATES - 1)))
    held = np.arange(contexts.longest) < given[:, None]
    return SampledAttention(
        lengths=tuple(given.tolist()),
        mean=np.where(held, mean, 0.0).T,
        standard_error=np.where(held, error, 0.0).T,
        samples=_REPLICATES * queries,
    )


@dataclass(frozen=True, eq=False)
class _Weighted:
    """Rows that occur, and where the share of each but the last ends in [0, 1)."""

    rows: Int64[np.ndarray, "row"]
    ends: Float64[np.ndarray, "end"]

    @classmethod
    def of(cls, weights: Float64[np.ndarray, "weight"]) -> _Weighted:
        rows = np.flatnonzero(weights)
        ends = np.cumsum(weights[rows])
        return cls(rows, ends[:-1] / ends[-1])

    def at(self, uniform: Float64[np.ndarray, "*batch"]) -> Int64[np.ndarray, "*batch"]:
        """The row in whose share each number lies."""
        return self.rows[np.searchsorted(self.ends, uniform, side="right")]

    def systematic(self, number: int, rng: np.random.Generator) -> Int64[np.ndarray, "number"]:
        """One number in each of equal shares of [0, 1), all at the same place of theirs."""
        return self.at((np.arange(number) + rng.random()) / number)

    def shuffled(self, offsets: int, number: int, rng: np.random.Generator) -> Int64[np.ndarray, "offset number"]:
        """For each offset one number in each of equal shares of [0, 1), in random order."""
        return rng.permuted(self.at((np.arange(number) + rng.random((offsets, number))) / number), axis=1)


@dataclass(frozen=True, eq=False)
class _Contexts:
    """What samples are made of. Vectors are complex pairs; those of queries hold scale and attention factor.

    `turns` are e^(-i j theta), what turns keys at the `near` offsets -j = 0, -1, ...; those further
    back are taken in blocks of as many, each with the queries turned to its beginning.
    """

    head: Head
    lengths: Int64[np.ndarray, "length"]
    longest: int
    near: int
    queries: Complex128[np.ndarray, "query pair"]
    keys: Complex128[np.ndarray, "key pair"]
    query_rows: _Weighted
    key_rows: _Weighted
    turns: Complex128[np.ndarray, "near pair"]
    bias: Float64[np.ndarray, "position"]

    @classmethod
    def of(cls, head: Head, lengths: Int64[np.ndarray, "length"]) -> _Contexts:
        longest, shortest = int(lengths.max()), int(lengths.min())
        if head.sink_keys is not None:
            check_sink_beyond(head.window, shortest)
        near = min(max(head.window, _NEAR), longest)
        distances = np.arange(longest)
        return cls(
            head=head,
            lengths=lengths,
            longest=longest,
            near=near,
            queries=head.logit_scale * head.schedule.score_gains * as_pairs(head.queries),
            keys=as_pairs(head.keys),
            query_rows=_Weighted.of(head.query_weights),
            key_rows=_Weighted.of(head.key_weights),
            turns=np.exp(-1j * np.multiply.outer(distances[:near], head.schedule.frequencies)),
            bias=np.zeros(longest) if head.bias is None else head.bias.at(distances),
        )


def _replicate(contexts: _Contexts, queries: int, rng: np.random.Generator) -> Float64[np.ndarray, "length position"]:
    """Mean attention over this many queries; every group of them is a systematic sample too."""
    groups = -(-queries // _GROUP)
    rows = contexts.query_rows.systematic(queries, rng)
    own = contexts.key_rows.shuffled(max(contexts.near - contexts.head.window, 0), queries, rng)
    shared = contexts.key_rows.shuffled(contexts.longest - contexts.near, groups, rng)
    attention = np.zeros((len(contexts.lengths), contexts.longest))
    for g in range(groups):
        logits = _logits(contexts, rows[g::groups], own[:, g::groups], shared[:, g])
        _add_attention(attention, contexts, rows[g::groups], logits)
    return attention / queries


def _logits(
    contexts: _Contexts,
    rows: Int64[np.ndarray, "sample"],
    own: Int64[np.ndarray, "own sample"],
    shared: Int64[np.ndarray, "shared"],
) -> Float64[np.ndarray, "sample position"]:
    """Logits of queries with their window, with `own` near keys, and with `shared` far ones, in nats."""
    near, turns, queries = contexts.near, contexts.turns, contexts.queries[rows]
    logits = np.empty((len(rows), contexts.longest))
    # One block for all: a new one each time would cost more than what is done with it.
    block = np.empty_like(turns)
    for sample, row in enumerate(rows):
        local = contexts.head.local_keys[row, :near]
        block[: len(local)] = as_pairs(local)
        np.take(contexts.keys, own[:, sample], axis=0, out=block[len(local) :], mode="clip")
        block *= turns
        # The product of lanes is the real part of that of pairs, Re(conj(q) k).
        logits[sample, :near] = block.view(np.float64) @ queries[sample].view(np.float64)
    for start in range(near, contexts.longest, near):
        far = block[: contexts.longest - start]
        np.take(contexts.keys, shared[start - near : start], axis=0, out=far, mode="clip")
        far *= turns[: len(far)]
        turned = queries * np.exp(1j * start * contexts.head.schedule.frequencies)
        logits[:, start : start + near] = turned.view(np.float64) @ far.view(np.float64).T
    logits += contexts.bias
    return logits


def _add_attention(
    attention: Float64[np.ndarray, "length position"],
    contexts: _Contexts,
    rows: Int64[np.ndarray, "sample"],
    logits: Float64[np.ndarray, "sample position"],
) -> None:
    """Add the softmax of every sample at every length; the key at -(L-1) is the sink where there is one."""
    ends, sink = contexts.lengths - 1, _sink_logits(contexts, rows)
    top = logits.max(axis=1) if sink is None else np.maximum(logits.max(axis=1), sink.max(axis=1))
    if not np.isfinite(top).all():
        raise TheoryError(
            f"logits of {top[~np.isfinite(top)][0]} nats: the vectors of the head or its bias are damaged or too large"
        )
    masses = np.exp(np.subtract(logits, top[:, None], out=logits), out=logits)
    totals = np.cumsum(masses, axis=1)
    if sink is None:
        totals = totals[:, ends]
    else:
        sink_masses = np.exp(sink - top[:, None])
        totals = totals[:, ends - 1] + sink_masses
    if totals.min() < np.exp(-_WIDEST_SPREAD):
        raise TheoryError(
            f"all keys of a context of {contexts.lengths[totals.min(axis=0).argmin()]} lie more than "
            f"{_WIDEST_SPREAD:.0f} nats below a key further back: such a head has diverged"
        )
    added = (1 / totals).T @ masses
    if sink is not None:
        added[np.arange(len(ends)), ends] = (sink_masses / totals).sum(axis=0)
    attention += added


def _sink_logits(contexts: _Contexts, rows: Int64[np.ndarray, "sample"]) -> Float64[np.ndarray, "sample length"] | None:
    head, ends = contexts.head, contexts.lengths - 1
    if head.sink_keys is None:
        return None
    turns = np.exp(-1j * np.multiply.outer(head.schedule.frequencies, ends))
    return ((contexts.queries[rows].conj() * as_pairs(head.sink_keys[rows])) @ turns).real + contexts.bias[ends]
