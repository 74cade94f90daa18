"""Attention on the target against length: the mean-profile law, the exact law, the inverse-linear fit.

Mean-profile law (Corollary 2), phi in nats:

    a(L) = 1 / sum_{delta > -L} e^(phi(delta) - phi(-K))

is the softmax of the mean logits. The mean of the softmax is the *exact law*: for a query a,
with X the exponential of its logit with the target key and Y_delta those of the other keys,
all independent given a,

    E[X / (X + sum Y)] = int_0^inf E[X e^(-uX)] prod_delta E[e^(-u Y_delta)] du,

where a local key (the query's own token at offset 0) is a constant given the query. With
u = e^v the trapezoidal rule is exact up to a bound that holds for every realisation, and so for
the mean: X e^v e^(-T e^v), T = X + sum Y, is a Gumbel density of mass X/T, whose Fourier
transform is Gamma(1 + i w); step h leaves a relative error of at most

    2 sum_k |Gamma(1 + 2 pi i k / h)|,   |Gamma(1 + i y)|^2 = pi y / sinh(pi y).

Steps of h = ln 2 / chains make each node a doubling of an earlier one, and 1 - e^(-2x) =
z + z (1 - z) with z = 1 - e^(-x), so that the exponential is taken once for each chain.

Source: arXiv 2607.18759, Corollary 2 and Table 2 (fit); the exact law is ours.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float64

from theory.errors import TheoryError
from theory.head import Carrier, Head
from theory.kernel import carrier_profile, check_target
from theory.schedule import RotarySchedule

_WIDEST_SPREAD = 600.0


@dataclass(frozen=True)
class InverseLinearFit:
    """1/a(L) = alpha + c (L - 1), with the share of variance of 1/a that it explains."""

    alpha: float
    c: float
    r_squared: float


def mean_profile_law(
    profile: Float64[np.ndarray, "offset"], offset: int, lengths: Sequence[int]
) -> Float64[np.ndarray, "length"]:
    """Softmax of a profile at K = `offset` tokens back, at each length (Corollary 2, exact form).

    Raises TheoryError where a length is not above K or not covered by the profile.
    """
    _check_lengths(offset, lengths)
    if max(lengths) > len(profile):
        raise TheoryError(f"the profile holds {len(profile)} offsets, length {max(lengths)} needs as many")
    mass = np.logaddexp.accumulate(profile)
    return np.exp(profile[offset] - mass[np.asarray(lengths) - 1])


def margin_bound(margin: float, lengths: Sequence[int]) -> Float64[np.ndarray, "length"]:
    """1 / (1 + (L-1) e^-mu), Corollary 2's lower bound; mu in nats must hold at the longest length."""
    return 1 / (1 + (np.asarray(lengths) - 1) * np.exp(-margin))


def dilution_curve(
    query_mean: Float64[np.ndarray, "dim"],
    key_mean: Float64[np.ndarray, "dim"],
    schedule: RotarySchedule,
    offset: int,
    lengths: Sequence[int],
    logit_scale: float,
) -> Float64[np.ndarray, "length"]:
    """Attention K = `offset` tokens back at each length, straight from two mean vectors (Corollary 2).

    `logit_scale` is 1/sqrt(d_head) times any temperature. Nothing but the means is known, so
    the key at offset 0 counts with phi(0) = scale m_Q . m_K.
    """
    _check_lengths(offset, lengths)
    carrier = Carrier.from_means(schedule, query_mean, key_mean, logit_scale)
    return mean_profile_law(carrier_profile(carrier, max(lengths)), offset, lengths)


def exact_law(
    head: Head, offset: int, lengths: Sequence[int], relative_error: float = 1e-9
) -> Float64[np.ndarray, "length"]:
    """E[attention K = `offset` tokens back] at each length, keys beyond the window independent.

    The quadrature leaves at most `relative_error`, 1e-12 or more. One pass serves all lengths.
    Raises TheoryError where a length does not hold the target, or where the logits of a query
    spread over more than 600 nats, beyond which their exponentials leave float64.
    """
    _check_lengths(offset, lengths)
    ends = np.asarray(lengths) - 1
    expected = np.zeros(len(ends))
    for weight, node in _nodes(head, int(min(lengths)), int(max(lengths)), relative_error):
        log_survival = node.log_survival
        log_survival[offset] = 0.0
        expected += weight * node.density(offset) * np.exp(np.cumsum(log_survival)[ends])
    return expected


def exact_profile(head: Head, length: int, relative_error: float = 1e-9) -> Float64[np.ndarray, "offset"]:
    """E[attention] at every offset 0..-(length-1) at one length, by the exact law; its sum is 1."""
    expected = np.zeros(length)
    for weight, node in _nodes(head, length, length, relative_error):
        log_survival = node.log_survival
        others = np.exp(log_survival.sum() - log_survival)
        if others.any():
            expected += weight * node.densities() * others
    return expected


def fit_inverse_linear(lengths: Sequence[int], attention: Float64[np.ndarray, "length"]) -> InverseLinearFit:
    """Ordinary least squares of 1/a on L - 1, as Table 2 and Table 4 make it."""
    if len(lengths) < 3 or len(lengths) != len(attention):
        raise TheoryError(f"a fit needs three lengths or more with one value each, got {len(lengths)}")
    if not (attention > 0).all():
        raise TheoryError("a fit of 1/a needs attention above 0 at every length")
    x, y = np.asarray(lengths, dtype=np.float64) - 1, 1 / attention
    c, alpha = np.polyfit(x, y, 1)
    residual, total = np.square(y - alpha - c * x).sum(), np.square(y - y.mean()).sum()
    return InverseLinearFit(float(alpha), float(c), float(1 - residual / total))


@dataclass(frozen=True, eq=False)
class _Node:
    """One quadrature node u of one query.

    With Y = e^l and w the weight of each key of the pool: `local` holds Y, `weighted` w Y,
    `survived` e^(-uY) and `absorbed` 1 - e^(-uY), which is exact where it is small.
    """

    u: float
    local: Float64[np.ndarray, "window"]
    weighted: Float64[np.ndarray, "offset key"]
    survived: Float64[np.ndarray, "offset key"]
    absorbed: Float64[np.ndarray, "offset key"]
    key_weights: Float64[np.ndarray, "key"]

    @property
    def log_survival(self) -> Float64[np.ndarray, "position"]:
        """log E[e^(-uY)] of the key at every offset, those of the window first."""
        # The sum is known to one rounding, so that no survival below it is told from it.
        below_one = 1 - np.finfo(np.float64).epsneg
        pool = np.log1p(-np.minimum(self.absorbed @ self.key_weights, below_one))
        return np.concatenate([-self.u * self.local, pool])

    def density(self, offset: int) -> float:
        """u E[X e^(-uX)] of the key `offset` tokens back."""
        window = len(self.local)
        if offset < window:
            mass = self.u * self.local[offset]
            return float(mass * np.exp(-mass))
        far = offset - window
        return float(self.u * self.weighted[far] @ self.survived[far])

    def densities(self) -> Float64[np.ndarray, "position"]:
        """u E[X e^(-uX)] of the key at every offset."""
        mass = self.u * self.local
        far = np.einsum("ok,ok->o", self.weighted, self.survived)
        return np.concatenate([mass * np.exp(-mass), self.u * far])


def _nodes(head: Head, shortest: int, longest: int, relative_error: float) -> Iterator[tuple[float, _Node]]:
    """Every quadrature node of every query, with query weight times step as its weight."""
    if not 1e-12 <= relative_error < 1:
        raise TheoryError(f"the relative error of the quadrature lies between 1e-12 and 1, got {relative_error}")
    chains = next(n for n in range(1, 9) if _trapezoid_error(np.log(2) / n) <= relative_error / 3)
    step = np.log(2) / chains
    window = min(head.window, longest)
    far_offsets = -np.arange(window, longest)
    local_logits = head.local_logits()[:, :window]
    for a in np.flatnonzero(head.query_weights):
        query = _one_query(head, int(a))
        far_logits = query.logits(far_offsets)[0]
        top = max(local_logits[a].max(), far_logits.max(initial=-np.inf))
        spread = top - min(local_logits[a].min(), far_logits.min(initial=np.inf))
        if spread > _WIDEST_SPREAD:
            raise TheoryError(
                f"the logits of query {a} spread over {spread:.0f} nats, the exact law takes {_WIDEST_SPREAD:.0f}: "
                f"such a head has diverged"
            )
        local, pool = np.exp(local_logits[a] - top), np.exp(far_logits - top)
        low, high = _range(local, pool, shortest, relative_error / 3)
        # One step beyond `high`: a sum from there on is at most the integral from a step before.
        doublings = int(np.ceil((high + step - low) / np.log(2)))
        weighted = pool * head.key_weights
        for chain in range(chains):
            u = float(np.exp(low + chain * step))
            absorbed = -np.expm1(-u * pool)
            survived = np.empty_like(absorbed)
            for _ in range(doublings):
                # In place: a node is read before the next is made, and new tables cost more than the sums.
                np.subtract(1, absorbed, out=survived)
                yield head.query_weights[a] * step, _Node(u, local, weighted, survived, absorbed, head.key_weights)
                # z + z (1 - z) rounds to 1 in the end; z (2 - z) would stay one bit below for ever,
                # and u Y times that bit grows without bound.
                absorbed += np.multiply(absorbed, survived, out=survived)
                u *= 2


def _one_query(head: Head, a: int) -> Head:
    """The head of query a alone: a table of all queries at once would not fit for a real vocabulary."""
    return Head(
        head.schedule,
        head.queries[a : a + 1],
        np.ones(1),
        head.local_keys[a : a + 1],
        head.keys,
        head.key_weights,
        head.logit_scale,
    )


def _range(
    local: Float64[np.ndarray, "window"], pool: Float64[np.ndarray, "offset key"], shortest: int, error: float
) -> tuple[float, float]:
    """log u beyond which every realisation has less than `error` of its mass.

    Total mass T lies between the least keys of the shortest length and the greatest of the
    longest; the Gumbel density has mass below e^y under log(uT) = y and e^(-e^y) above it.
    """
    least = local[:shortest].sum() + pool[: max(shortest - len(local), 0)].min(axis=1, initial=np.inf).sum()
    most = local.sum() + pool.max(axis=1, initial=0.0).sum()
    return float(np.log(error) - np.log(most)), float(np.log(-np.log(error)) - np.log(least))


def _trapezoid_error(step: float) -> float:
    """2 sum_k |Gamma(1 + 2 pi i k / h)|, the relative error of the infinite trapezoidal rule."""
    y = 2 * np.pi * np.arange(1, 6) / step
    # sinh(pi y) is e^(pi y)/2 to double precision from the first term on (y > 4).
    return float(2 * np.sqrt(2 * np.pi * y * np.exp(-np.pi * y)).sum())


def _check_lengths(offset: int, lengths: Sequence[int]) -> None:
    if len(lengths) == 0:
        raise TheoryError("give one length or more")
    check_target(offset, int(min(lengths)))
