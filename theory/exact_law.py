"""The exact law: attention on a key as the mean of the softmax, for every length in one pass.

For a query a, with X the exponential of its logit with the target key and Y_delta those of the
other keys, all independent given a, T = X + sum Y,

    E[(X/T)^p] = 1/Gamma(p) int_0^inf u^(p-1) E[X^p e^(-uX)] prod_delta E[e^(-u Y_delta)] du,

where the keys of the window (the query's own token at offset 0) and the sink are constants
given the query. p = 1 is the mean attention, p = 2 gives its spread over sequences. With
u = e^v the trapezoidal rule is exact up to a bound that holds for every realisation, and so
for the mean: (Xu)^p e^(-uT) has mass Gamma(p) (X/T)^p, and its Fourier transform in v is
Gamma(p + i w); step h leaves a relative error of at most

    2 sum_k |Gamma(p + 2 pi i k / h)| / Gamma(p),   |Gamma(1 + i y)|^2 = pi y / sinh(pi y).

Steps of h = ln 2 / chains make each node a doubling of an earlier one, and 1 - e^(-2x) =
z + z (1 - z) with z = 1 - e^(-x), so that the exponential is taken once for each chain.
Offsets are taken in blocks that fit the cache, with the log of the product carried over; a
node whose product has left float64 is dropped. Time grows linearly with the length.

Source: ours; arXiv 2607.18759, Corollary 2, is the softmax of the mean logits instead.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float64, Int, Int64
from scipy.special import logsumexp

from theory.errors import TheoryError
from theory.head import Head
from theory.inputs import Lengths, check_lengths, check_sink_beyond, check_target, whole

_WIDEST_SPREAD = 600.0
_BLOCK = 1 << 15
"""Numbers in the table of a block of offsets by keys: what stays in a core's own cache."""


def exact_law(head: Head, offset: int, lengths: Lengths, relative_error: float = 1e-9) -> Float64[np.ndarray, "length"]:
    """E[attention K = `offset` tokens back] at each length, keys beyond the window independent.

    The quadrature leaves at most `relative_error`, 1e-12 or more; rounding adds about 1e-15 over
    the least weight of a key. At L = K + 1 of a head with a sink the target is the sink.
    Attention below 1e-300 comes out as 0. Raises TheoryError where a length does not hold the
    target, where a head with a sink is asked for a length inside its window, and where logits are
    not finite or leave a context whose keys may all lie 600 nats below the highest one: their
    exponentials leave float64.
    """
    return _moments(head, [offset], [1], check_lengths(offset, lengths), relative_error)[0]


def exact_laws(
    heads: Sequence[Head], offset: int, lengths: Lengths, relative_error: float = 1e-9
) -> Float64[np.ndarray, "head length"]:
    """The exact law of several heads over the same tokens; a mean over heads hides one that fails. Errors as above."""
    if len(heads) == 0:
        raise TheoryError("give one head or more, got none")
    return np.stack([exact_law(head, offset, lengths, relative_error) for head in heads])


def exact_moments(
    head: Head, offset: int, lengths: Lengths, relative_error: float = 1e-9
) -> tuple[Float64[np.ndarray, "length"], Float64[np.ndarray, "length"]]:
    """Mean and standard deviation over sequences of the attention K = `offset` tokens back, at each length.

    A mean over n sequences scatters by the deviation, sqrt(E[a^2] - E[a]^2), over sqrt(n). Both moments have
    the given relative error, so the deviation has about E[a]^2/sd^2 times that, and one below
    sqrt(3 relative_error) of the root mean square, which is not told from 0, is given as 0. Errors as `exact_law`.
    """
    mean, square = _moments(head, [offset, offset], [1, 2], check_lengths(offset, lengths), relative_error)
    variance = square - mean**2
    return mean, np.sqrt(np.where(variance > 3 * relative_error * square, variance, 0))


def exact_surface(
    head: Head, offsets: Sequence[int], lengths: Lengths, relative_error: float = 1e-9
) -> Float64[np.ndarray, "offset length"]:
    """E[attention] at several offsets (tokens back) and lengths in one pass; 0 where a length does not hold the key.

    Errors as `exact_law`, but only the longest length must hold every offset.
    """
    given = check_lengths(0, lengths)
    if len(offsets) == 0:
        raise TheoryError("give one offset or more, got none")
    for offset in (min(offsets), max(offsets)):
        check_target(offset, int(given.max()))
    return _moments(head, offsets, [1] * len(offsets), given, relative_error)


def exact_profile(head: Head, length: int, relative_error: float = 1e-9) -> Float64[np.ndarray, "offset"]:
    """E[attention] at every offset 0..-(length-1) at one length; its sum is 1. Errors as `exact_law`."""
    whole("a length", length, 1)
    return exact_surface(head, range(length), [length], relative_error)[:, 0]


def _moments(
    head: Head,
    offsets: Sequence[int],
    powers: Sequence[int],
    lengths: Int64[np.ndarray, "length"],
    relative_error: float,
) -> Float64[np.ndarray, "moment length"]:
    """E[(X/T)^p] for each offset with its power p, 1 or 2, so that Gamma(p) = 1."""
    if not 1e-12 <= relative_error < 1:
        raise TheoryError(f"the relative error of the quadrature lies between 1e-12 and 1, got {relative_error}")
    shortest = int(lengths.min())
    if head.sink_keys is not None:
        check_sink_beyond(head.window, shortest)
    chains = next(n for n in range(1, 16) if _trapezoid_error(np.log(2) / n, max(powers)) <= relative_error / 3)
    wanted, power = np.asarray(offsets), np.asarray(powers)
    expected = np.zeros((len(wanted), len(lengths)))
    for a in np.flatnonzero(head.query_weights):
        query = _query(head, int(a), shortest, int(lengths.max()))
        low, high = _range(query, relative_error / 3, max(powers))
        # One step beyond `high`: a sum from there on is at most the integral from a step before.
        doublings = int(np.ceil((high + np.log(2) / chains - low) / np.log(2)))
        nodes = np.exp(low + np.log(2) / chains * np.arange(chains))[:, None] * 2.0 ** np.arange(doublings)
        step = head.query_weights[a] * np.log(2) / chains
        expected += step * _one_query(query, nodes, wanted, power, lengths)
    # Blocks treat all lengths that end in them alike, also with an offset of the same block that they do not hold.
    return np.where(wanted[:, None] < lengths, expected, 0.0)


@dataclass(frozen=True, eq=False)
class _Query:
    """One query and its keys. Exponentials are relative to the highest logit, `top`, of any of them.

    The mass T of every context asked for lies between `least` and `most`.
    """

    head: Head
    longest: int
    top: float
    local: Float64[np.ndarray, "window"]
    sink: Float64[np.ndarray, "position"] | None
    least: float
    most: float

    def pool(self) -> Iterator[tuple[int, Float64[np.ndarray, "offset key"]]]:
        """Y = e^l of the pool at every offset beyond the window, in blocks, with the first offset of each."""
        for start, logits in _far_logits(self.head, self.longest):
            yield start, np.exp(logits - self.top)


def _query(head: Head, a: int, shortest: int, longest: int) -> _Query:
    """Query a alone: a table of all queries at once would not fit for a real vocabulary."""
    occurs = head.key_weights > 0
    one = Head(
        head.schedule,
        head.queries[a : a + 1],
        np.ones(1),
        head.local_keys[a : a + 1, :longest],
        head.keys[occurs],
        head.key_weights[occurs],
        head.logit_scale,
        None if head.sink_keys is None else head.sink_keys[a : a + 1],
        head.bias,
    )
    local = one.local_logits()[0]
    sink = None if one.sink_keys is None else one.sink_logits(-np.arange(longest))[0]
    # The table is made twice, here for its ends and later for the law: kept, it would fill the memory.
    ends = [(logits.min(axis=1), logits.max(axis=1)) for _, logits in _far_logits(one, longest)]
    lows, highs = (np.concatenate([np.empty(0), *side]) for side in (zip(*ends, strict=True) if ends else ((), ())))
    sinks = np.empty(0) if sink is None else sink[one.window :]
    top = np.concatenate([local, highs, sinks]).max()
    if not np.isfinite(top):
        raise TheoryError(f"query {a} has logits of {top} nats: its vectors or its bias are damaged or too large")
    # The shortest context holds at least its own local keys and, but for the sink's place, the lowest of the pool.
    independent = max(shortest - one.window - (sink is not None), 0)
    lowest = logsumexp(np.concatenate([local[:shortest], lows[:independent]]))
    if not top - lowest <= _WIDEST_SPREAD:
        raise TheoryError(
            f"the logits of query {a} spread over {top - lowest:.1f} nats, from all keys of a context of {shortest} to "
            f"the highest key, the exact law takes {_WIDEST_SPREAD:.0f}: such a head has diverged"
        )
    most = np.exp(np.concatenate([local, highs, sinks]) - top).sum()
    sink_masses = None if sink is None else np.exp(sink - top)
    return _Query(one, longest, float(top), np.exp(local - top), sink_masses, float(np.exp(lowest - top)), float(most))


def _far_logits(head: Head, longest: int) -> Iterator[tuple[int, Float64[np.ndarray, "offset key"]]]:
    rows = max(16, _BLOCK // len(head.keys))
    for start in range(head.window, longest, rows):
        yield start, head.logits(-np.arange(start, min(start + rows, longest)))[0]


def _one_query(
    query: _Query,
    nodes: Float64[np.ndarray, "chain doubling"],
    offsets: Int[np.ndarray, "moment"],
    powers: Int[np.ndarray, "moment"],
    lengths: Int[np.ndarray, "length"],
) -> Float64[np.ndarray, "moment length"]:
    """sum over nodes of u^p E[X^p e^(-uX)] prod E[e^(-uY)]: a product of one matrix over moments, one over lengths."""
    window, u = len(query.local), nodes.reshape(-1)
    expected = np.zeros((len(offsets), len(lengths)))
    # densities: u^p E[X^p e^(-uX)] / E[e^(-uX)], so that its product with the whole product leaves X out of the rest.
    densities = np.zeros((u.size, len(offsets)))
    inside = offsets < window
    densities[:, inside] = np.multiply.outer(u, query.local[offsets[inside]]) ** powers[inside]
    product = -np.multiply.outer(u, np.cumsum(query.local))
    here = lengths <= window
    expected[:, here] = densities.T @ np.exp(product[:, lengths[here] - 1])
    carried = product[:, -1]
    for start, pool in query.pool():
        targets = _between(offsets, start, start + len(pool))
        log_survival, densities[:, targets] = _block(
            query, nodes, carried, pool, offsets[targets] - start, powers[targets]
        )
        product = carried[:, None] + np.cumsum(log_survival, axis=1)
        here = _between(lengths, start + 1, start + len(pool) + 1)
        ends = lengths[here] - 1
        if query.sink is None:
            expected[:, here] = densities.T @ np.exp(product[:, ends - start])
        else:
            # The key at -(L-1) is the sink's: the product ends one key before it.
            mass = np.multiply.outer(u, query.sink[ends])
            before = np.concatenate([carried[:, None], product], axis=1)[:, ends - start]
            survived = np.exp(before - mass)
            own = np.stack([(mass**power * survived).sum(axis=0) for power in (1, 2)])[powers - 1]
            expected[:, here] = np.where(offsets[:, None] == ends, own, densities.T @ survived)
        carried = product[:, -1]
    return expected


def _block(
    query: _Query,
    nodes: Float64[np.ndarray, "chain doubling"],
    carried: Float64[np.ndarray, "node"],
    pool: Float64[np.ndarray, "offset key"],
    rows: Int[np.ndarray, "target"],
    powers: Int[np.ndarray, "target"],
) -> tuple[Float64[np.ndarray, "node offset"], Float64[np.ndarray, "node target"]]:
    """log E[e^(-uY)] of a block of the pool at every node, and the densities of its target rows."""
    weights = query.head.key_weights
    target = weights * pool[rows] ** powers[:, None]
    log_survival, densities = np.zeros((nodes.size, len(pool))), np.zeros((nodes.size, len(rows)))
    # Products only fall with u: from the first node on whose product is 0 in float64, nothing is added any more.
    alive = (carried.reshape(nodes.shape) > np.log(np.finfo(np.float64).smallest_subnormal)).sum(axis=1)
    # The sum is known to one rounding, so that no survival below it is told from it.
    below_one = 1 - np.finfo(np.float64).epsneg
    for chain, doublings in enumerate(alive):
        absorbed = -np.expm1(-nodes[chain, 0] * pool)
        survived = np.empty_like(absorbed)
        for doubling in range(doublings):
            node = chain * nodes.shape[1] + doubling
            # In place: new tables cost more than the sums.
            np.subtract(1, absorbed, out=survived)
            log_survival[node] = np.log1p(-np.minimum(absorbed @ weights, below_one))
            if len(rows):
                mass = nodes[chain, doubling] ** powers * np.einsum("ok,ok->o", target, survived[rows])
                densities[node] = mass / np.exp(log_survival[node, rows])
            # z + z (1 - z) rounds to 1 in the end; z (2 - z) would stay one bit below for ever,
            # and u Y times that bit grows without bound.
            absorbed += np.multiply(absorbed, survived, out=survived)
        log_survival[chain * nodes.shape[1] + doublings : (chain + 1) * nodes.shape[1]] = -np.inf
    return log_survival, densities


def _between(numbers: Int[np.ndarray, "n"], first: int, end: int) -> Bool[np.ndarray, "n"]:
    return (numbers >= first) & (numbers < end)


def _range(query: _Query, error: float, power: int) -> tuple[float, float]:
    """log u beyond which every realisation has less than `error` of its mass.

    int (uT)^p e^(-uT) below log(uT) = y is at most e^y; above uT = x it is e^(-x) for p = 1 and
    (1 + x) e^(-x) for p = 2, where x = l + 2 ln(2 + l), l = -ln error, is enough.
    """
    reach = -np.log(error) + (power - 1) * 2 * np.log(2 - np.log(error))
    return float(np.log(error) - np.log(query.most)), float(np.log(reach) - np.log(query.least))


def _trapezoid_error(step: float, power: int) -> float:
    """2 sum_k |Gamma(p + 2 pi i k / h)|, the relative error of the infinite trapezoidal rule; Gamma(p) = 1."""
    y = 2 * np.pi * np.arange(1, 6) / step
    # sinh(pi y) is e^(pi y)/2 to double precision from the first term on (y > 4);
    # Gamma(2 + iy) = (1 + iy) Gamma(1 + iy).
    gamma = np.sqrt(2 * np.pi * y * np.exp(-np.pi * y)) * np.hypot(1, y) ** (power - 1)
    return float(2 * gamma.sum())
