"""Limits of rotary scores in long contexts: inversion of positions and of tokens, aliasing.

The score of a key m tokens back is S(m) = sum_i r_i cos(m theta_i + psi_i), the profile of a carrier
at offset -m. For a fixed query a and keys m_K + xi with residuals xi of variance s_i^2 in both lanes
of pair i, write v_i = (scale f^2 |a_i| s_i)^2, f the attention factor. As (R_m1 - R_m2) turns pair i
by one angle and stretches it by 2 sin((m2 - m1) theta_i / 2),

    S(m1) - S(m2) ~ N(phi(-m1) - phi(-m2), sum_i v_i 4 sin^2((m2 - m1) theta_i / 2)),

and for v_i = s^2 |q_i|^2, m_K = c q, w_i = |q_i|^2 / |q|^2 its probability to be negative is

    Phi(-c |q| (g_w(m1) - g_w(m2)) / (s sqrt(2 (1 - g_w(m2 - m1))))).

Source: the quantities are those of arXiv 2605.15514, the closed forms ours.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from jaxtyping import Float64, Int
from scipy.special import erf, ndtr, owens_t

from theory.errors import TheoryError
from theory.head import Carrier
from theory.kernel import cosine_sums
from theory.schedule import as_pairs

_PAIR_SEED = 2605_15514


@dataclass(frozen=True)
class InversionRate:
    """Mean inversion probability of a context; the standard error is 0 where every pair was taken."""

    value: float
    standard_error: float


def position_inversion(
    carrier: Carrier,
    variance: float | Float64[np.ndarray, "pair"],
    near: Int[np.ndarray, "case"],
    far: Int[np.ndarray, "case"],
) -> Float64[np.ndarray, "case"]:
    """P(S(near) < S(far)) of one key at two distances in tokens, a tie counted one half.

    `variance` is s_i^2, of one lane of a key's residual: one number, or one a pair; 0 compares the
    mean scores themselves. The query is the mean query; the carrier's bias is counted in. With a mean
    key of 0 every answer is 1/2: residuals are as likely as their negatives, whatever the query.
    Raises TheoryError for a variance that is none and for negative distances. Source: ours.
    """
    _check_distances(near, far)
    gap, spread = _gap_and_spread(carrier, _score_variances(carrier, variance), near, far)
    if carrier.bias is not None:
        gap += carrier.bias.at(near) - carrier.bias.at(far)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(gap == 0, 0.5, ndtr(-gap / np.sqrt(spread)))


def inversion_rate(
    carrier: Carrier,
    variance: float | Float64[np.ndarray, "pair"],
    length: int,
    most_pairs: int = 1 << 18,
    seed: int = _PAIR_SEED,
) -> InversionRate:
    """Mean of `position_inversion` over all m1 < M/2 <= m2 < M, M = `length` in tokens.

    Every pair is taken up to `most_pairs` of them, else that many are drawn independently and
    uniformly from `seed`; the error is then 1/(2 sqrt(most_pairs)) at most, .001 as given. At variance
    0 it is the share of pairs whose mean scores are in the wrong order.
    As M grows the rate tends to 1/2 for every head without a bias: m1 and m2 become independent draws
    of one law on the closure of the rotations, so that either order is as likely. That needs
    M beyond about 2 pi / theta_min; until then the slowest pairs still tell near from far.
    Raises TheoryError for a length below 2 and as `position_inversion`. Source: ours.
    """
    if length < 2 or most_pairs < 2:
        raise TheoryError(f"length and most_pairs must be 2 or more to compare, got {length} and {most_pairs}")
    first_far = (length + 1) // 2
    every = first_far * (length - first_far)
    if every <= most_pairs:
        near, far = np.divmod(np.arange(every), length - first_far)
        return InversionRate(float(position_inversion(carrier, variance, near, far + first_far).mean()), 0.0)
    rng = np.random.default_rng(seed)
    near, far = rng.integers(0, first_far, most_pairs), rng.integers(first_far, length, most_pairs)
    found = position_inversion(carrier, variance, near, far)
    return InversionRate(float(found.mean()), float(found.std(ddof=1) / math.sqrt(most_pairs)))


def token_inversion(
    carrier: Carrier, variance: float | Float64[np.ndarray, "pair"], distances: Int[np.ndarray, "case"]
) -> Float64[np.ndarray, "case"]:
    """Probability that two keys side by side change order between distance 0 and each of `distances`.

    The carrier's mean key is the difference of the two keys' means (0 for keys of one law), `variance`
    that of each key's residual, as in `position_inversion`. The differences D(0), D(m) of their scores
    are normal with means phi(0), phi(-m), variance 2 sum v_i and correlation g_v(m), and the answer is
    P(D(0) D(m) < 0) by Owen's T; with means 0 it is arccos(g_v(m)) / pi. A bias is the same for both.
    Raises TheoryError as `position_inversion`, and where no residual reaches the score.
    Source: Owen, Ann. Math. Statist. 27 (1956); its use here is ours.
    """
    _check_distances(distances, distances)
    variances = _score_variances(carrier, variance)
    total = variances.sum()
    if total == 0:
        raise TheoryError("no residual reaches the score, so no order is random: give a live pair a variance above 0")
    gap, spread = _gap_and_spread(carrier, variances, np.zeros_like(distances), distances)
    deviation = math.sqrt(2 * total)
    step, deficit = gap / deviation, np.minimum(spread / (2 * total), 2)  # deficit = 1 - g_v(m), uncancelled
    here = np.full(len(distances), carrier.amplitudes @ np.cos(carrier.phases)) / deviation
    there = here - step
    root = np.sqrt(deficit * (2 - deficit))
    with np.errstate(divide="ignore", invalid="ignore"):
        wedge_here = owens_t(here, (deficit * here - step) / (here * root))
        wedge_there = owens_t(there, (deficit * there + step) / (there * root))
    flipped = 2 * (wedge_here + wedge_there) + ((here < 0) != (there < 0))
    flipped = np.where((here == 0) & (there == 0), 2 * np.arcsin(np.sqrt(deficit / 2)) / np.pi, flipped)
    return np.clip(np.where(root == 0, deficit > 1, flipped), 0, 1)


def middle_range_kernel(
    base: float, lags: Int[np.ndarray, "lag"], pairs: float = math.inf
) -> Float64[np.ndarray, "lag"]:
    """1 - (ln m + gamma) / ln base - 1 / (2h): the running mean of g(m) for equal p and 1 << m << base.

    theta_i = base^(-i/h) for i < h turns the sum over pairs into (Ci(m) - Ci(m / base)) / ln base; Ci(m)
    fades as 1/m, and Ci(x) = gamma + ln x up to x^2/4. 1/(2h) is the end of the trapezoid that
    the sum leaves out; `pairs` = inf leaves it out of the law too. Neighbouring pairs
    that are more than half a turn apart act as random phases: around the mean g scatters with variance
    about ln(m ln base / (pi h)) / (2 h ln base).
    Raises TheoryError for lags outside 1..base, no pair, or a base that is not above 1.
    Source: ours, for arXiv 2605.15514.
    """
    if not (math.isfinite(base) and base > 1) or not pairs >= 1:
        raise TheoryError(f"give a finite base above 1 and one pair or more, got base {base} and {pairs} pairs")
    if ((lags < 1) | (lags > base)).any():
        raise TheoryError(f"the middle range is lags 1 to {base}, the base, got lags {lags.min()} to {lags.max()}")
    return 1 - (np.log(lags) + np.euler_gamma) / math.log(base) - 1 / (2 * pairs)


def expected_aliased_pairs(
    amplitudes: Float64[np.ndarray, "pair"],
    length: int,
    tolerance: float,
    frequencies: Float64[np.ndarray, "pair"] | None = None,
) -> float:
    """Expected number of pairs of L positions with |S(m1) - S(m2)| < eps.

    Without frequencies scores are independent N(0, s^2), s^2 = sum r_i^2 / 2: the number is
    (L^2 / 2) eps / (s sqrt(pi)) for eps << s, and half of that for pairs in equal bins of width eps. That
    takes every rotary pair to go round, L beyond about 2 pi / theta_min. With frequencies the
    phases psi_i are random instead, so that scores m apart differ by about N(0, 2 s^2 (1 - g(m))) with
    g of weights r_i^2: rotary pairs that stand still tell no positions apart and more of them alias. Cosines
    are flatter than normal, so that for equal r_i the number comes out about .28 / h of itself too high.
    Raises TheoryError for no amplitude, a length below 2 or a tolerance not above 0. Source: ours.
    """
    _check_tolerance(tolerance)
    squares = np.square(_finite(amplitudes))
    if length < 2 or not squares.any():
        raise TheoryError(f"aliasing needs two positions and an amplitude that is not 0, got {length} and {amplitudes}")
    apart = np.ones(length - 1)
    if frequencies is not None:
        apart -= cosine_sums(squares / squares.sum(), frequencies, np.zeros(len(squares)), 1, length - 1)
    with np.errstate(divide="ignore"):
        aliased = erf(tolerance / np.sqrt(2 * squares.sum() * np.maximum(apart, 0)))
    return float(np.arange(length - 1, 0, -1) @ aliased)


def aliased_pairs(scores: Float64[np.ndarray, "position"], tolerance: float) -> int:
    """Number of pairs of positions with |S(m1) - S(m2)| < eps, counted by sorting in O(L log L).

    Exact for scores and S + eps that float64 holds, else a difference of eps within one rounding of S may
    fall on either side. Raises TheoryError for scores that are not finite and a tolerance not above 0.
    """
    _check_tolerance(tolerance)
    ordered = np.sort(_finite(scores))
    # Equal scores alias however small eps is against their rounding.
    reach = np.maximum(ordered + tolerance, np.nextafter(ordered, np.inf))
    return int((np.searchsorted(ordered, reach) - np.arange(1, len(ordered) + 1)).sum())


def binned_pairs(scores: Float64[np.ndarray, "position"], width: float) -> int:
    """Number of pairs of positions in one bin [j w, (j+1) w): aliased at eps = w, but not all that are.

    Raises TheoryError for scores that are not finite and a width not above 0.
    """
    _check_tolerance(width)
    _, occupied = np.unique(np.floor_divide(_finite(scores), width), return_counts=True)
    return int((occupied * (occupied - 1) // 2).sum())


def collision_length(amplitudes: Float64[np.ndarray, "pair"], tolerance: float) -> int:
    """Least number of positions that a count of bins forces to alias: floor(2 sum |r_i| / eps) + 2, exact.

    S lies in [-A, A], A = sum |r_i|, and floor(2A/eps) + 1 half-open bins [-A + j eps, -A + (j+1) eps)
    cover it, so that n > 2A/eps + 1 positions put two in one bin: |S(m1) - S(m2)| < eps, strictly.
    One fewer do not: with one pair, theta = pi and eps = 2A the scores A and -A differ by eps.
    Raises TheoryError for amplitudes that are not finite and a tolerance not above 0.
    Source: pigeonhole, ours.
    """
    _check_tolerance(tolerance)
    reach = sum(Fraction(float(amplitude)) for amplitude in np.abs(_finite(amplitudes)))
    return math.floor(2 * reach / Fraction(float(tolerance))) + 2


def _gap_and_spread(
    carrier: Carrier,
    variances: Float64[np.ndarray, "pair"],
    near: Int[np.ndarray, "case"],
    far: Int[np.ndarray, "case"],
) -> tuple[Float64[np.ndarray, "case"], Float64[np.ndarray, "case"]]:
    """phi(-near) - phi(-far) and the variance of S(near) - S(far), of the rotation alone, in nats and nats^2."""
    amplitudes, phases = carrier.amplitudes, carrier.phases
    gap, spread = np.zeros(len(near)), np.zeros(len(near))
    for i, theta in enumerate(carrier.schedule.frequencies):
        # The difference of two cosines as a product: no cancellation between near neighbours.
        half = 0.5 * theta * (far - near)
        sine = np.sin(half)
        # Frequency and product are rounded, each to 2^-53: a sine below what that makes of it is a whole turn's.
        sine[np.abs(sine) <= 2.0**-51 * np.abs(half)] = 0
        gap += 2 * amplitudes[i] * sine * np.sin(0.5 * theta * (far + near) + phases[i])
        spread += 4 * variances[i] * sine**2
    return gap, spread


def _score_variances(carrier: Carrier, variance: float | Float64[np.ndarray, "pair"]) -> Float64[np.ndarray, "pair"]:
    """v_i, the variance in nats^2 that the key residual of each pair gives a score."""
    pairs = carrier.schedule.pairs
    given = np.asarray(variance, dtype=np.float64)
    if given.shape not in {(), (pairs,)} or not np.isfinite(given).all() or (given < 0).any():
        raise TheoryError(f"the residual variance is one number of 0 or more, or {pairs}, one a pair: got {variance}")
    gains = carrier.logit_scale * carrier.schedule.score_gains * np.abs(as_pairs(carrier.query_mean))
    return np.square(gains) * given


def _check_distances(near: Int[np.ndarray, "case"], far: Int[np.ndarray, "case"]) -> None:
    least = min(near.min(initial=0), far.min(initial=0))
    if least < 0:
        raise TheoryError(f"distances count tokens back and are 0 or more, got {least}: drop the sign")


def _check_tolerance(tolerance: float) -> None:
    if not (math.isfinite(tolerance) and tolerance > 0):
        raise TheoryError(f"a tolerance or bin width must be a finite number above 0, got {tolerance}")


def _finite(values: Float64[np.ndarray, "any"]) -> Float64[np.ndarray, "any"]:
    if not np.isfinite(values).all():
        raise TheoryError("a score or amplitude is not finite: the weights it comes from are damaged")
    return values
