"""A positional and a symbolic head as explicit weights, whose logits are known in closed form.

    Index       query k looks k tokens back:               l = sum_i r_i cos((delta + k) theta_i)
    Retrieval   query a looks at the key with symbol a:    l = r_a cos(delta theta_a) [a = b]

Index has one key for all tokens and turns it back by k tokens on every pair to make the query k: content says
how far, rotary positions do the rest. Retrieval gives symbol a the pair a, in query and key alike. Where
that pair is frozen (theta_a = 0) the place does not enter; where it turns, the match loses
r_a (1 - cos(delta theta_a)), and a rival stays at 0 since no pair holds two symbols.

The lead of Index at length n, over all targets, is `positional_discrepancy`; the lead of Retrieval at the worst
distance is r_a less `symbolic_loss`. Logits are in nats, amplitudes r_i too.

Source: arXiv 2605.31558 for the two heads and for what they are good for; the weights and laws are ours.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Float64, Int, Int64

from theory.errors import TheoryError
from theory.head import Head
from theory.inputs import check_amplitudes, whole
from theory.schedule import RotarySchedule


def index_head(amplitudes: Float64[np.ndarray, "pair"], schedule: RotarySchedule, indices: int) -> Head:
    """Index: token k - 1 asks k tokens back, k = 1..`indices`; as a key every token is the same.

    Raises TheoryError for amplitudes that are not one finite number a pair, 0 or more, and for no index.
    """
    check_amplitudes(amplitudes, schedule)
    count = whole("the number of indices", indices, 1)
    key = _pairs(np.sqrt(amplitudes))
    back = np.arange(1, count + 1)
    queries = schedule.rotate(np.broadcast_to(key, (count, len(key))), -back)
    return Head.from_tokens(schedule, queries, np.tile(key, (count, 1)), np.full(count, 1 / count), logit_scale=1.0)


def index_logits(
    amplitudes: Float64[np.ndarray, "pair"], schedule: RotarySchedule, index: int, offsets: Int[np.ndarray, "offset"]
) -> Float64[np.ndarray, "offset"]:
    """sum_i r_i cos((delta + k) theta_i) of the query k = `index`, in nats."""
    return np.cos(np.multiply.outer(offsets + index, schedule.frequencies)) @ amplitudes


def retrieval_head(amplitudes: Float64[np.ndarray, "pair"], schedule: RotarySchedule) -> Head:
    """Retrieval: a symbol a pair, token a asks for token a.

    Raises TheoryError for amplitudes that are not one finite number a pair, 0 or more.
    """
    check_amplitudes(amplitudes, schedule)
    symbols = np.zeros((schedule.pairs, 2 * schedule.pairs))
    symbols[np.arange(schedule.pairs), 2 * np.arange(schedule.pairs)] = np.sqrt(amplitudes)
    return Head.from_tokens(schedule, symbols, symbols, np.full(schedule.pairs, 1 / schedule.pairs), logit_scale=1.0)


def retrieval_logits(
    amplitudes: Float64[np.ndarray, "pair"],
    schedule: RotarySchedule,
    symbol: int,
    keys: Int[np.ndarray, "key"],
    offsets: Int[np.ndarray, "key"],
) -> Float64[np.ndarray, "key"]:
    """r_a cos(delta theta_a) for keys of the symbol a that is asked for, 0 for all others, in nats."""
    return np.where(keys == symbol, amplitudes[symbol] * np.cos(offsets * schedule.frequencies[symbol]), 0.0)


def prompt_logits(head: Head, tokens: Int64[np.ndarray, "key"]) -> Float64[np.ndarray, "key"]:
    """Logits in nats of the last token of a prompt with every token of it, where the content is a vocabulary.

    Raises TheoryError for a prompt with a token that the head has not.
    """
    if len(head.queries) != len(head.keys) or not len(tokens) or tokens.min() < 0 or tokens.max() >= len(head.keys):
        raise TheoryError(
            f"a prompt is of one token or more, each a query and a key of the head: it has {len(head.queries)} queries "
            f"and {len(head.keys)} keys, got tokens {tokens[:4].tolist()} ..."
        )
    back = len(tokens) - 1 - np.arange(len(tokens))
    gains = head.logit_scale * np.repeat(head.schedule.score_gains, 2)
    query = np.broadcast_to(gains * head.queries[tokens[-1]], (len(tokens), head.schedule.dim))
    logits = np.einsum("kd,kd->k", head.schedule.rotate(query, back), head.keys[tokens])
    return logits if head.bias is None else logits + head.bias.at(back)


def _pairs(amplitudes: Float64[np.ndarray, "pair"]) -> Float64[np.ndarray, "lane"]:
    """Pairs of these lengths, all at angle 0."""
    lanes = np.zeros(2 * len(amplitudes))
    lanes[::2] = amplitudes
    return lanes
