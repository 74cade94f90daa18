"""Score tables of a run: from its weights to the tables, and with the gradient back; compiled.

Lemma 1: a logit depends on the query token, the offset and the key token only, so it is an entry
of a finite table, and what a token adds to the readout is an entry of another,

    T[h, j, a, b] = tau (R_j W_Q E_a)_h . (W_K E_b)_h / sqrt(d/H),     O[h, b, y] = (U_h (W_V E_b)_h)_y

so that a step costs the tables, not the sequences, whose loss `empirics.table_loss` reads from them.
Vectors that are added to the embedding split T into four small tables, token or place against
token or place: they are further keys, l_t = T[s_n, s_t] + T[s_n, place t], and the query of token
a is that of E_a + p_n.

tests/test_stacked.py holds loss and gradient against autograd through the plain model.

Source: arXiv 2607.18759, lemma 1; Adam: Kingma and Ba (2015), with torch's defaults.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Int64

from empirics.observe import Sums
from empirics.table_loss import compiled, inlined, table_counts, table_loss

_BETA_1, _BETA_2, _EPSILON = 0.9, 0.999, 1e-8
# So many sequences at a time stay in the cache.
_CHUNK = 256


class Weights(NamedTuple):
    """Weights of one run, or their gradient: views of one row of a block. Query, key and value lie one below the other;
    encodings without positions have 0 rows of them, those without buckets 0 buckets."""

    embedding: Float[np.ndarray, "token width"]
    projections: Float[np.ndarray, "3*width width"]
    readout: Float[np.ndarray, "answer width"]
    positions: Float[np.ndarray, "row width"]
    bias: Float[np.ndarray, "head bucket"]


class Places(NamedTuple):
    """What an encoding gives to the offsets 0, 1, ... or to absolute positions, without learning it.

    `cosines` and `sines` of the turns, (0, 0) where nothing turns; `vectors` of the positions, (0, 0) where they are
    learned or none; `slope` in nats a token; `scale` of the logits.
    """

    cosines: Float[np.ndarray, "offset pair"]
    sines: Float[np.ndarray, "offset pair"]
    vectors: Float[np.ndarray, "row width"]
    slope: float
    scale: float
    softmax: bool


def loss_and_gradient(
    weights: Weights,
    places: Places,
    tokens: Int64[np.ndarray, "sequence place"],
    positions: Int64[np.ndarray, "place"],
    targets: Int64[np.ndarray, "sequence"],
    gradient: Weights,
) -> float:
    """Mean cross-entropy (nats) of a batch of one run; its gradient is written to `gradient`."""
    inputs, projected, rows, scores, outputs, biases = _tables(weights, places, positions)
    columns = np.ascontiguousarray(tokens.T)
    loss, to_scores, to_outputs, to_biases = table_loss(scores, outputs, biases, columns, targets, places.softmax)
    _pull_back(weights, places, positions, inputs, projected, rows, to_scores, to_outputs, to_biases, gradient)
    return loss


def counts(
    weights: Weights,
    places: Places,
    tokens: Int64[np.ndarray, "sequence place"],
    positions: Int64[np.ndarray, "place"],
    targets: Int64[np.ndarray, "sequence"],
) -> Sums:
    """What sequences add to an observation."""
    _, _, _, scores, outputs, biases = _tables(weights, places, positions)
    sums = Sums.zero(len(scores), len(positions))
    for first in range(0, len(tokens), _CHUNK):
        columns, wanted = np.ascontiguousarray(tokens[first : first + _CHUNK].T), targets[first : first + _CHUNK]
        correct, *found = table_counts(scores, outputs, biases, columns, wanted, places.softmax)
        sums = sums.plus(Sums(correct, *(one[..., ::-1] for one in found)))
    return sums


@compiled
def adam(
    weights: Float[np.ndarray, "weight"],
    gradient: Float[np.ndarray, "weight"],
    first: Float[np.ndarray, "weight"],
    second: Float[np.ndarray, "weight"],
    rate: float,
    step: int,
) -> None:
    """m = b1 m + (1-b1) g,  v = b2 v + (1-b2) g^2,  w = w - rate (m / (1-b1^t)) / (sqrt(v / (1-b2^t)) + eps)."""
    real = weights.dtype.type
    beta_1, beta_2, epsilon = real(_BETA_1), real(_BETA_2), real(_EPSILON)
    size, root = real(rate / (1 - _BETA_1**step)), real(1 / np.sqrt(1 - _BETA_2**step))
    for i in range(len(weights)):
        m = first[i] + (1 - beta_1) * (gradient[i] - first[i])
        v = beta_2 * second[i] + (1 - beta_2) * gradient[i] * gradient[i]
        first[i], second[i] = m, v
        weights[i] -= size * m / (np.sqrt(v) * root + epsilon)


@compiled
def _tables(weights: Weights, places: Places, positions: Int64[np.ndarray, "place"]) -> Any:
    """Inputs of the keys, their projections, the queries as rows (head, offset * token, lane), and the tables: scores
    (head, offset, token, key), outputs (head, key, answer), biases (head, place)."""
    embedding, projections, readout, table, bias = weights
    vocabulary, width = embedding.shape
    heads, buckets = bias.shape
    length, lanes = len(positions), width // heads
    vectors = places.vectors if len(places.vectors) else table
    keys = vocabulary + length if len(vectors) else vocabulary
    offsets = length if len(places.cosines) else 1
    inputs = np.empty((keys, width), embedding.dtype)
    inputs[:vocabulary] = embedding
    for place in range(keys - vocabulary):
        inputs[vocabulary + place] = vectors[positions[place]]
    biases = np.empty((heads, length), embedding.dtype)
    for place in range(length):
        distance = length - 1 - place
        biases[:, place] = -places.slope * distance
        if buckets:
            biases[:, place] += bias[:, min(distance, buckets - 1)]
    projected = np.dot(inputs, projections.T)
    rows = np.empty((heads, offsets * vocabulary, lanes), embedding.dtype)
    scores = np.empty((heads, offsets * vocabulary, keys), embedding.dtype)
    outputs = np.empty((heads, keys, len(readout)), embedding.dtype)
    for head in range(heads):
        query, key, value = _of_head(projected, head, lanes)
        asked = places.scale * query[:vocabulary]
        if keys > vocabulary:
            asked += places.scale * query[keys - 1]
        _turn(asked, places, rows[head])
        np.dot(rows[head], key.T, scores[head])
        reading = np.ascontiguousarray(readout[:, head * lanes : (head + 1) * lanes])
        np.dot(value, reading.T, outputs[head])
    return inputs, projected, rows, scores.reshape(heads, offsets, vocabulary, keys), outputs, biases


@compiled
def _pull_back(
    weights: Weights,
    places: Places,
    positions: Int64[np.ndarray, "place"],
    inputs: Float[np.ndarray, "key width"],
    projected: Float[np.ndarray, "key 3*width"],
    rows: Float[np.ndarray, "head row lane"],
    to_scores: Float[np.ndarray, "head offset token key"],
    to_outputs: Float[np.ndarray, "head key answer"],
    to_biases: Float[np.ndarray, "head place"],
    gradient: Weights,
) -> None:
    """The gradient in the weights from that in the tables."""
    vocabulary, width = weights.embedding.shape
    heads, buckets = weights.bias.shape
    length, lanes, keys = len(positions), width // heads, len(inputs)
    to_projected = np.zeros_like(projected)
    for head in range(heads):
        first, last = head * lanes, (head + 1) * lanes
        _, key, value = _of_head(projected, head, lanes)
        reading = np.ascontiguousarray(weights.readout[:, first:last])
        to_rows = to_scores[head].reshape(-1, keys)
        to_query = _turn_back(np.dot(to_rows, key), places, vocabulary)
        to_query *= places.scale
        to_projected[:vocabulary, first:last] = to_query
        if keys > vocabulary:
            # Of the places only the last one asks.
            to_projected[keys - 1, first:last] = to_query.sum(axis=0)
        to_projected[:, width + first : width + last] = np.dot(to_rows.T, rows[head])
        to_projected[:, 2 * width + first : 2 * width + last] = np.dot(to_outputs[head], reading)
        gradient.readout[:, first:last] = np.dot(to_outputs[head].T, value)
    np.dot(to_projected.T, inputs, gradient.projections)
    to_inputs = np.dot(to_projected, weights.projections)
    gradient.embedding[:] = to_inputs[:vocabulary]
    gradient.positions[:] = 0
    for place in range(length if len(weights.positions) else 0):
        gradient.positions[positions[place]] += to_inputs[vocabulary + place]
    gradient.bias[:] = 0
    for place in range(length if buckets else 0):
        gradient.bias[:, min(length - 1 - place, buckets - 1)] += to_biases[:, place]


@inlined
def _of_head(projected: Float[np.ndarray, "key 3*width"], head: int, lanes: int) -> Any:
    """Queries, keys and values of one head, (key, lane) each."""
    width, first = projected.shape[1] // 3, head * lanes
    query = np.ascontiguousarray(projected[:, first : first + lanes])
    key = np.ascontiguousarray(projected[:, width + first : width + first + lanes])
    return query, key, np.ascontiguousarray(projected[:, 2 * width + first : 2 * width + first + lanes])


@inlined
def _turn(query: Float[np.ndarray, "token lane"], places: Places, rows: Float[np.ndarray, "offset*token lane"]) -> None:
    """R_j q for every offset j and token; q itself where nothing turns."""
    tokens, lanes = query.shape
    if not len(places.cosines):
        rows[:] = query
    for offset in range(len(rows) // tokens if len(places.cosines) else 0):
        for token in range(tokens):
            for pair in range(lanes // 2):
                cosine, sine = places.cosines[offset, pair], places.sines[offset, pair]
                x, y = query[token, 2 * pair], query[token, 2 * pair + 1]
                rows[offset * tokens + token, 2 * pair] = x * cosine - y * sine
                rows[offset * tokens + token, 2 * pair + 1] = x * sine + y * cosine


@inlined
def _turn_back(
    rows: Float[np.ndarray, "offset*token lane"], places: Places, tokens: int
) -> Float[np.ndarray, "token lane"]:
    """Sum over the offsets of R_(-j) on what stands in the rows."""
    lanes = rows.shape[1]
    query = np.zeros((tokens, lanes), rows.dtype)
    if not len(places.cosines):
        query += rows
    for offset in range(len(rows) // tokens if len(places.cosines) else 0):
        for token in range(tokens):
            for pair in range(lanes // 2):
                cosine, sine = places.cosines[offset, pair], places.sines[offset, pair]
                x, y = rows[offset * tokens + token, 2 * pair], rows[offset * tokens + token, 2 * pair + 1]
                query[token, 2 * pair] += x * cosine + y * sine
                query[token, 2 * pair + 1] += y * cosine - x * sine
    return query
