"""What a growing context does in the end: averages over the closure of the rotary orbit.

The angles s theta mod 2 pi, s = 1, 2, ..., are equidistributed on the closure of their orbit (Weyl),
which `theory.incommensurability.orbit_closure` gives: a circle for each class of frequencies that are
rational multiples of one another and not of 2 pi, and a finite group for those of the form 2 pi a/m.
An average over all lags is a product of averages over these,

    lim 1/n sum_{s<n} e^(sum_i r_i cos(s theta_i - psi_i))
      = [1/M sum_{s<M} e^(sum over 2 pi a/m)] prod_classes 1/2pi int e^(sum_k r_k cos(n_k y - psi_k)) dy,

I0(r_i) for a pair that is alone in its class. Each circle is summed over equal steps, which is exact
to rounding once the steps resolve the integrand; they are doubled until two sums agree.

With r-bar this average over e^phi(-K), the softmax of the mean profile has 1/a(L) ~ r-bar L. The mean
of the softmax has L E[a(L)] -> E_a[E_b e^l[a,-K,b] / E_b average_delta e^l[a,delta,b]], by the law of large
numbers and because L a(L) is bounded. Frequencies that have not turned once are constants in practice:
nothing here is seen before L is well beyond 2 pi / theta_min.

Source: ours; Weyl 1916. For independent frequencies, e^(-beta) prod I0(beta p_i), beta = sum r_i.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Complex128, Float64, Int
from scipy.special import logsumexp

from theory.bias import OffsetBias
from theory.errors import TheoryError
from theory.head import Carrier, Head
from theory.incommensurability import orbit_closure
from theory.inputs import check_target
from theory.kernel import mean_profile
from theory.schedule import RotarySchedule, as_pairs

_MOST_STEPS = 1 << 22
_CONVERGED = 1e-12


def orbit_average(
    amplitudes: Float64[np.ndarray, "*batch pair"],
    phases: Float64[np.ndarray, "*batch pair"],
    schedule: RotarySchedule,
) -> Float64[np.ndarray, "*batch"]:
    """log of the average of e^(sum_i r_i cos(s theta_i - psi_i)) over all lags s; r in nats, psi in rad.

    Raises TheoryError unless there is one finite amplitude and phase a pair, where the exact
    frequencies are not known, and where a period or the multiples n_k in a class are so large that
    four million steps do not resolve them.
    """
    if amplitudes.shape != phases.shape or amplitudes.shape[-1:] != (schedule.pairs,):
        raise TheoryError(
            f"give an amplitude and a phase for each of {schedule.pairs} pairs, got shapes {amplitudes.shape} and "
            f"{phases.shape}"
        )
    if not (np.isfinite(amplitudes).all() and np.isfinite(phases).all()):
        raise TheoryError("amplitudes and phases must be finite numbers: the means they come from are damaged")
    closure = orbit_closure(schedule)
    if closure.period > _MOST_STEPS:
        raise TheoryError(
            f"the frequencies come back after {closure.period} positions, an average takes up to {_MOST_STEPS}: "
            "average over the length in question instead"
        )
    waves = amplitudes * np.exp(-1j * phases)
    turning = np.exp(2j * np.pi * np.outer(np.arange(closure.period), closure.residues) / closure.period)
    total = _log_mean(waves[..., closure.finite], turning)
    for circle in closure.circles:
        total = np.asarray(total + _circle_average(waves[..., circle.pairs], np.array(circle.multiples)))
    return total


def dilution_rate(carrier: Carrier, offset: int) -> float:
    """r-bar = lim (1/a(L))/L of the softmax of the mean profile, target K = `offset` tokens back.

    What c of the inverse-linear fit tends to far beyond 2 pi / theta_min. Raises TheoryError as
    `orbit_average`, for a negative offset, and for a bias without a finite limit.
    """
    check_target(offset, offset + 1)
    far = _far_bias(carrier.bias)
    average = orbit_average(carrier.amplitudes, carrier.phases, carrier.schedule)
    return float(np.exp(average + far - mean_profile(carrier, offset + 1)[offset]))


def exact_limit(head: Head, offset: int) -> float:
    """lim L E[attention K = `offset` tokens back] of the exact law, K beyond the window. Errors as `dilution_rate`."""
    check_target(offset, offset + 1)
    if offset < head.window:
        raise TheoryError(f"the limit is that of a key beyond the window of {head.window}, got {offset} tokens back")
    far, asked = _far_bias(head.bias), head.query_weights > 0
    queries, keys = as_pairs(head.queries[asked]), as_pairs(head.keys)
    products = queries[:, None] * keys.conj() * head.logit_scale * head.schedule.score_gains
    with np.errstate(divide="ignore"):
        weights = np.log(head.key_weights)
    context = logsumexp(orbit_average(np.abs(products), np.angle(products), head.schedule) + far + weights, axis=1)
    target = logsumexp(head.logits(np.array([-offset]))[asked, 0] + weights, axis=1)
    return float(head.query_weights[asked] @ np.exp(target - context))


def _circle_average(
    waves: Complex128[np.ndarray, "*batch pair"], multiples: Int[np.ndarray, "pair"]
) -> Float64[np.ndarray, "*batch"]:
    """log of the mean of e^(Re sum_k w_k e^(i n_k y)) over the circle."""
    steps = 4 * int(np.abs(multiples).max()) + 64
    before = np.full(waves.shape[:-1], np.inf)
    while steps <= _MOST_STEPS:
        turning = np.exp(2j * np.pi * np.outer(np.arange(steps), multiples) / steps)
        average = _log_mean(waves, turning)
        if (np.abs(average - before) <= _CONVERGED * np.maximum(1, np.abs(average))).all():
            return average
        before, steps = average, 2 * steps
    raise TheoryError(
        f"amplitudes up to {np.abs(waves).max():.3g} nats on frequencies up to {int(np.abs(multiples).max())} times "
        f"their common unit need more than {_MOST_STEPS} steps on a circle: average over the length in question instead"
    )


def _log_mean(
    waves: Complex128[np.ndarray, "*batch pair"], turning: Complex128[np.ndarray, "step pair"]
) -> Float64[np.ndarray, "*batch"]:
    """log of the mean over steps of e^(Re sum_k w_k t_k), in blocks of steps."""
    totals = [np.full(waves.shape[:-1], -np.inf)]
    rows = max(1, (1 << 22) // max(1, int(np.prod(waves.shape[:-1]))))
    for start in range(0, len(turning), rows):
        block = turning[start : start + rows]
        logits = waves.real @ block.real.T - waves.imag @ block.imag.T
        totals.append(logsumexp(logits, axis=-1))
    return np.asarray(logsumexp(totals, axis=0) - np.log(len(turning)))


def _far_bias(bias: OffsetBias | None) -> float:
    limit = 0.0 if bias is None else bias.limit
    if not np.isfinite(limit):
        attention = "no" if limit < 0 else "all"
        raise TheoryError(
            f"the bias tends to {limit} nats, so that far keys get {attention} attention and there is no "
            "equidistribution limit: take the exact law at a long length"
        )
    return limit
