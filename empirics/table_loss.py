"""Cross-entropy read from score tables, with its gradient in them, as compiled loops.

    l_t = T[h, n-t, s_n, s_t] + bias[h, t],   p = softmax(l),
    w_hb = sum_{t: s_t = b} p_t,   score_y = sum_(h,b) w_hb O[h, b, y]

With g = (softmax(score) - onehot(y)) / batch the gradient is

    dO = w^T g,   dw = g O^T,   dl_t = p_t (dw_(s_t) - sum_b w_b dw_b),   dT[h, j, a, b] = sum of its dl_t

and dl_t = dw_(s_t) for linear attention, where p = l. Places that are keys of their own, below the
tokens, are read beside them: l_t = T[s_n, s_t] + T[s_n, place t], and w holds p_t for both.

Sequences are the last axis of every array: the compiler takes as many at once as a register holds,
and everything stays in the cache. The compiler keeps its code on disk by the file of a function and
does not see what that calls elsewhere: compiled functions call those of their own file only.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import numba
import numpy as np
from jaxtyping import Float, Int64
from numba.extending import overload


def compiled(function: Callable[..., Any]) -> Any:
    """Machine code at the first call, kept on disk. Sums may be reordered; infinities and NaN stay what they are."""
    return _jit(function)


def inlined(function: Callable[..., Any]) -> Any:
    """The same inside each caller. Compiled apart as well, a sum has one order there and may have another inside,
    so that the process that compiles would train other bits than those that load what it kept.
    """
    return _jit(function, forceinline=True)


def _jit(function: Callable[..., Any], **options: Any) -> Any:
    plain = inspect.unwrap(function)
    return numba.njit(
        plain, cache=True, error_model="numpy", fastmath={"contract", "reassoc", "nsz", "arcp"}, **options
    )


@compiled
def table_loss(
    table: Float[np.ndarray, "head offset query key"],
    outputs: Float[np.ndarray, "head key answer"],
    bias: Float[np.ndarray, "head place"],
    tokens: Int64[np.ndarray, "place sequence"],
    targets: Int64[np.ndarray, "sequence"],
    softmax: bool,
) -> Any:
    """Mean loss (nats) of the sequences, and its gradient in table, outputs and bias."""
    heads, offsets, vocabulary, keys = table.shape
    length, batch = tokens.shape
    query, share = tokens[length - 1], table.dtype.type(1 / batch)
    attention, mass = _attend(table, bias, tokens, softmax)
    error = _answers(outputs, mass)
    loss = 0.0
    for i in range(batch):
        loss -= error[targets[i], i]
    loss += _normalise(error)
    for i in range(batch):
        error[targets[i], i] -= 1
    for answer in range(len(error)):
        for i in range(batch):
            error[answer, i] *= share

    to_table, to_outputs, to_bias = np.zeros_like(table), np.empty_like(outputs), np.empty_like(bias)
    to_mass = np.empty((keys, batch), table.dtype)
    expected = np.empty(batch, table.dtype)
    for head in range(heads):
        to_mass[:] = 0
        expected[:] = 0
        for key in range(keys):
            for answer in range(len(error)):
                _add_scaled(to_mass[key], outputs[head, key, answer], error[answer])
                to_outputs[head, key, answer] = _product(mass[head, key], error[answer])
            for i in range(batch):
                expected[i] += mass[head, key, i] * to_mass[key, i]
        for place in range(length):
            scores, row = to_table[head, length - 1 - place if offsets > 1 else 0], attention[head, place]
            to_bias[head, place] = 0
            for i in range(batch):
                change = to_mass[tokens[place, i], i]
                if keys > vocabulary:
                    change += to_mass[vocabulary + place, i]
                if softmax:
                    change = row[i] * (change - expected[i])
                scores[query[i], tokens[place, i]] += change
                if keys > vocabulary:
                    scores[query[i], vocabulary + place] += change
                to_bias[head, place] += change
    return loss / batch, to_table, to_outputs, to_bias


@compiled
def table_counts(
    table: Float[np.ndarray, "head offset query key"],
    outputs: Float[np.ndarray, "head key answer"],
    bias: Float[np.ndarray, "head place"],
    tokens: Int64[np.ndarray, "place sequence"],
    targets: Int64[np.ndarray, "sequence"],
    softmax: bool,
) -> Any:
    """Number of sequences answered rightly; sums of attention and its squares (head, place), and of the squares of its
    mean over heads."""
    attention, mass = _attend(table, bias, tokens, softmax)
    answers, correct = _answers(outputs, mass), 0
    heads, length, batch = attention.shape
    total, squares, mean_squares = np.zeros((heads, length)), np.zeros((heads, length)), np.zeros(length)
    for i in range(batch):
        best = 0
        for answer in range(len(answers)):
            if answers[answer, i] > answers[best, i]:
                best = answer
        correct += best == targets[i]
    for place in range(length):
        for i in range(batch):
            mean = 0.0
            for head in range(heads):
                share = np.float64(attention[head, place, i])
                total[head, place] += share
                squares[head, place] += share * share
                mean += share / heads
            mean_squares[place] += mean * mean
    return correct, total, squares, mean_squares


@inlined
def _attend(
    table: Float[np.ndarray, "head offset query key"],
    bias: Float[np.ndarray, "head place"],
    tokens: Int64[np.ndarray, "place sequence"],
    softmax: bool,
) -> Any:
    """Attention (head, place, sequence), and what of it every key gets, (head, key, sequence)."""
    heads, offsets, vocabulary, keys = table.shape
    length, batch = tokens.shape
    query = tokens[length - 1]
    attention = np.empty((heads, length, batch), table.dtype)
    mass = np.zeros((heads, keys, batch), table.dtype)
    for head in range(heads):
        for place in range(length):
            scores, row = table[head, length - 1 - place if offsets > 1 else 0], attention[head, place]
            for i in range(batch):
                row[i] = scores[query[i], tokens[place, i]] + bias[head, place]
            if keys > vocabulary:
                for i in range(batch):
                    row[i] += scores[query[i], vocabulary + place]
        if softmax:
            _normalise(attention[head])
        for place in range(length):
            row = attention[head, place]
            for i in range(batch):
                mass[head, tokens[place, i], i] += row[i]
            if keys > vocabulary:
                mass[head, vocabulary + place] = row
    return attention, mass


@inlined
def _answers(
    outputs: Float[np.ndarray, "head key answer"], mass: Float[np.ndarray, "head key sequence"]
) -> Float[np.ndarray, "answer sequence"]:
    """Readout scores."""
    heads, keys, count = outputs.shape
    answers = np.zeros((count, mass.shape[2]), mass.dtype)
    for head in range(heads):
        for answer in range(count):
            for key in range(keys):
                _add_scaled(answers[answer], outputs[head, key, answer], mass[head, key])
    return answers


@inlined
def _normalise(rows: Float[np.ndarray, "row sequence"]) -> float:
    """Softmax over the rows in place; the sum over sequences of the logarithm of what it divides by."""
    # Indices, not iteration over the rows: only they become vector instructions.
    count, batch = rows.shape
    top, total, logarithms = rows[0].copy(), np.zeros_like(rows[0]), 0.0
    for row in range(count):
        for i in range(batch):
            top[i] = max(top[i], rows[row, i])
    for row in range(count):
        for i in range(batch):
            rows[row, i] = exponential(rows[row, i] - top[i])
            total[i] += rows[row, i]
    for i in range(batch):
        logarithms += top[i] + np.log(total[i])
    for row in range(count):
        for i in range(batch):
            rows[row, i] /= total[i]
    return logarithms


@inlined
def _add_scaled(to: Float[np.ndarray, "sequence"], factor: float, row: Float[np.ndarray, "sequence"]) -> None:
    for i in range(len(row)):
        to[i] += factor * row[i]


@inlined
def _product(one: Float[np.ndarray, "sequence"], other: Float[np.ndarray, "sequence"]) -> float:
    total = one.dtype.type(0)
    for i in range(len(one)):
        total += one[i] * other[i]
    return total


def exponential(x: float) -> float:
    """e^x in compiled code; in float32 by loops' own arithmetic, since a call to the library takes one number a time.

    x = k ln 2 + r with |r| <= ln 2 / 2 and a polynomial in r (Cephes, expf): within 2 units of the last place for
    -87 <= x <= 0, and e^-87 = 1.6e-38 below, which no sum over a softmax sees.
    """
    raise NotImplementedError("compiled code only")


@overload(exponential, inline="always", strict=False)
def _exponential(x: Any) -> Any:
    return inspect.unwrap(_exponential_32) if x == numba.float32 else lambda x: np.exp(x)


def _exponential_32(x: Any) -> Any:
    x = max(x, np.float32(-87))
    k = np.floor(x * np.float32(1.44269504) + np.float32(0.5))
    r = x - k * np.float32(0.693359375) + k * np.float32(2.12194440e-4)
    tail = np.float32(1.9875691500e-4)
    tail = tail * r + np.float32(1.3981999507e-3)
    tail = tail * r + np.float32(8.3334519073e-3)
    tail = tail * r + np.float32(4.1665795894e-2)
    tail = tail * r + np.float32(1.6666665459e-1)
    tail = tail * r + np.float32(5.0000001201e-1)
    return (tail * r * r + r + np.float32(1)) * np.int32((np.int32(k) + np.int32(127)) << np.int32(23)).view(np.float32)
