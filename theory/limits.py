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
from jaxtyping import Float64, Int, Int64, Integer
from scipy.special import erf, ndtr, owens_t

from theory.errors import TheoryError
from theory.head import Carrier
from theory.inputs import check_amplitudes, whole
from theory.schedule import RotarySchedule, as_pairs

_PAIR_SEED = 2605_15514
# Float64 tells whole numbers apart up to here.
_FARTHEST = 1 << 53
_CHUNK = 1 << 14


@dataclass(frozen=True)
class InversionRate:
    """Mean inversion probability of a context; the standard error is 0 where every pair was taken."""

    value: float
    standard_error: float


def position_inversion(
    carrier: Carrier,
    variance: float | Float64[np.ndarray, "pair"],
    near: Integer[np.ndarray, "case"],
    far: Integer[np.ndarray, "case"],
) -> Float64[np.ndarray, "case"]:
    """P(S(near) < S(far)) of one key at two distances in tokens, a tie counted one half.

    `variance` is s_i^2, of one lane of a key's residual: one number, or one a pair; 0 compares the
    mean scores themselves. The query is the mean query; the carrier's bias is counted in. With a mean
    key of 0 every answer is 1/2: residuals are as likely as their negatives, whatever the query.
    Raises TheoryError for a variance that is none, for distances that are no whole numbers from 0 to 2^53,
    one `far` for each `near`, and for scores beyond float64. Source: ours.
    """
    near, far = _distances(near, far)
    unit, variances = _score_variances(carrier, variance)
    gap, spread, _ = _gap_and_spreads(carrier, variances, near, far)
    if carrier.bias is not None:
        gap += carrier.bias.at(near) - carrier.bias.at(far)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(gap == 0, 0.5, ndtr(-gap / (unit * np.sqrt(spread))))


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
    length, most_pairs = whole("the length to compare in", length, 2), whole("most_pairs", most_pairs, 2)
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
    carrier: Carrier, variance: float | Float64[np.ndarray, "pair"], distances: Integer[np.ndarray, "case"]
) -> Float64[np.ndarray, "case"]:
    """Probability that two keys side by side change order between distance 0 and each of `distances`.

    The carrier's mean key is the difference of the two keys' means (0 for keys of one law), `variance`
    that of each key's residual, as in `position_inversion`. The differences D(0), D(m) of their scores
    are normal with means phi(0), phi(-m), variance 2 sum v_i and correlation g_v(m), and the answer is
    P(D(0) D(m) < 0) by Owen's T; with means 0 it is arccos(g_v(m)) / pi. A bias is the same for both.
    Raises TheoryError as `position_inversion`, and where no residual reaches the score.
    Source: Owen, Ann. Math. Statist. 27 (1956); its use here is ours.
    """
    (distances,) = _distances(distances)
    unit, variances = _score_variances(carrier, variance)
    total = variances.sum()
    if total == 0:
        raise TheoryError("no residual reaches the score, so no order is random: give a live pair a variance above 0")
    gap, apart, along = _gap_and_spreads(carrier, variances, np.zeros_like(distances), distances)
    deviation = unit * math.sqrt(2 * total)
    here = np.full(len(distances), carrier.amplitudes @ np.cos(carrier.phases)) / deviation
    step = gap / deviation
    there = here - step
    # 1 - g_v, 1 + g_v and sqrt(1 - g_v^2), uncancelled: 1 + g_v must not be lost half a turn on.
    deficit, excess, root = apart / (2 * total), along / (2 * total), np.sqrt(apart * along) / (2 * total)
    with np.errstate(divide="ignore", invalid="ignore"):
        wedge_here = owens_t(here, (deficit * here - step) / (here * root))
        wedge_there = owens_t(there, (deficit * there + step) / (there * root))
    flipped = 2 * (wedge_here + wedge_there) + ((here < 0) != (there < 0))
    flipped = np.where((here == 0) & (there == 0), 2 * np.arctan2(np.sqrt(deficit), np.sqrt(excess)) / np.pi, flipped)
    # Residuals that come back whole leave one normal: D(m) = D(0) + there - here.
    flipped = np.where(apart == 0, np.abs(ndtr(here) - ndtr(there)), flipped)
    return np.clip(flipped, 0, 1)


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
    amplitudes: Float64[np.ndarray, "pair"], schedule: RotarySchedule | None, length: int, tolerance: float
) -> float:
    """Expected number of pairs of L positions with |S(m1) - S(m2)| < eps.

    Without a schedule scores are independent N(0, s^2), s^2 = sum r_i^2 / 2: the number is
    L (L - 1) / 2 erf(eps / 2s), (L^2 / 2) eps / (s sqrt(pi)) for eps << s, and half of that for pairs in equal
    bins of width eps. That takes every rotary pair to go round, L beyond about 2 pi / theta_min. With a schedule
    the phases psi_i are random instead, so that scores m apart differ by about N(0, sum r_i^2 (1 - cos m theta_i)):
    rotary pairs that stand still tell no positions apart and more of them alias. Cosines
    are flatter than normal, so that for equal r_i the number comes out about .28 / h of itself too high.
    Raises TheoryError where no amplitude is above 0, for amplitudes that do not fit the schedule, for a length
    below 2 and a tolerance not above 0. Source: ours.
    """
    _check_tolerance(tolerance)
    length = whole("the length, for two positions,", length, 2)
    if schedule is not None:
        check_amplitudes(amplitudes, schedule)
    largest = float(np.abs(_finite("amplitudes", amplitudes)).max(initial=0))
    if largest == 0:
        raise TheoryError(f"scores without an amplitude are all equal: give one that is not 0, got {amplitudes}")
    squares, relative = np.square(amplitudes / largest), tolerance / largest
    if schedule is None:
        return length * (length - 1) / 2 * math.erf(relative / math.sqrt(2 * squares.sum()))
    expected = 0.0
    for start in range(1, length, _CHUNK):
        lags = np.arange(start, min(start + _CHUNK, length))
        half_spreads = np.square(np.sin(np.multiply.outer(lags, schedule.frequencies / 2))) @ squares
        with np.errstate(divide="ignore"):
            expected += float((length - lags) @ erf(relative / (2 * np.sqrt(half_spreads))))
    return expected


def aliased_pairs(scores: Float64[np.ndarray, "position"], tolerance: float) -> int:
    """Number of pairs of positions with |S(m1) - S(m2)| < eps, counted by sorting in O(L log L).

    Exact for scores and S + eps that float64 holds, else a difference of eps within one rounding of S may
    fall on either side. Raises TheoryError for scores that are not finite and a tolerance not above 0.
    """
    _check_tolerance(tolerance)
    ordered = np.sort(_finite("scores", scores))
    # Equal scores alias however small eps is against their rounding.
    reach = np.maximum(ordered + tolerance, np.nextafter(ordered, np.inf))
    return int((np.searchsorted(ordered, reach) - np.arange(1, len(ordered) + 1)).sum())


def binned_pairs(scores: Float64[np.ndarray, "position"], width: float) -> int:
    """Number of pairs of positions in one bin [j w, (j+1) w): aliased at eps = w, but not all that are.

    Raises TheoryError for scores that are not finite, a width not above 0, and 2^51 bins or more on one side of 0:
    float64 does not tell which of them a score is in.
    """
    _check_tolerance(width)
    largest = float(np.abs(_finite("scores", scores)).max(initial=0))
    if largest / 2.0**51 >= width:
        raise TheoryError(
            f"bins of width {width:g} are finer than float64 resolves scores up to {largest:g}: "
            f"give a width above {largest / 2.0**51:.2g}"
        )
    _, occupied = np.unique(np.floor_divide(scores, width), return_counts=True)
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
    reach = sum(Fraction(float(amplitude)) for amplitude in np.abs(_finite("amplitudes", amplitudes)))
    return math.floor(2 * reach / Fraction(float(tolerance))) + 2


def _gap_and_spreads(
    carrier: Carrier,
    variances: Float64[np.ndarray, "pair"],
    near: Int64[np.ndarray, "case"],
    far: Int64[np.ndarray, "case"],
) -> tuple[Float64[np.ndarray, "case"], Float64[np.ndarray, "case"], Float64[np.ndarray, "case"]]:
    """phi(-near) - phi(-far) in nats, and the variances of S(near) - S(far) and S(near) + S(far) in the unit of v_i."""
    amplitudes, phases = _finite("amplitudes", carrier.amplitudes), carrier.phases
    gap, apart, along = np.zeros((3, len(near)))
    for i, theta in enumerate(carrier.schedule.frequencies):
        # The difference of two cosines as a product: no cancellation between near neighbours.
        half = 0.5 * theta * (far - near)
        sine = np.sin(half)
        # Frequency and product are rounded, each to 2^-53: a sine below what that makes of it is a whole turn's.
        sine[np.abs(sine) <= 2.0**-51 * np.abs(half)] = 0
        gap += 2 * amplitudes[i] * sine * np.sin(0.5 * theta * (far + near) + phases[i])
        apart += 4 * variances[i] * sine**2
        along += 4 * variances[i] * np.cos(half) ** 2
    return gap, apart, along


def _score_variances(
    carrier: Carrier, variance: float | Float64[np.ndarray, "pair"]
) -> tuple[float, Float64[np.ndarray, "pair"]]:
    """A unit in nats and v_i in its square, the variance that the key residual of each pair gives a score.

    In units of the largest sqrt(v_i) no square leaves float64.
    """
    pairs = carrier.schedule.pairs
    given = np.asarray(variance, dtype=np.float64)
    if given.shape not in {(), (pairs,)} or not np.isfinite(given).all() or (given < 0).any():
        raise TheoryError(f"the residual variance is one number of 0 or more, or {pairs}, one a pair: got {variance}")
    gains = carrier.logit_scale * carrier.schedule.score_gains * np.abs(as_pairs(carrier.query_mean))
    deviations = _finite("deviations of the scores", gains * np.sqrt(given))
    unit = float(deviations.max()) or 1.0
    return unit, np.square(deviations / unit)


def _distances(*given: Integer[np.ndarray, "case"]) -> tuple[Int64[np.ndarray, "case"], ...]:
    """Distances as int64, whose differences and sums do not wrap."""
    for distances in given:
        if distances.dtype.kind not in "iu" or distances.ndim != 1 or distances.shape != given[0].shape:
            raise TheoryError(
                "distances are whole numbers, in flat arrays of one length, got "
                + " and ".join(f"{each.dtype} of shape {each.shape}" for each in given)
            )
        least, most = distances.min(initial=0), distances.max(initial=0)
        if least < 0 or most > _FARTHEST:
            raise TheoryError(f"distances count tokens back, from 0 to 2^53, got {least} to {most}: drop the sign")
    return tuple(distances.astype(np.int64) for distances in given)


def _check_tolerance(tolerance: float) -> None:
    if not (math.isfinite(tolerance) and tolerance > 0):
        raise TheoryError(f"a tolerance or bin width must be a finite number above 0, got {tolerance}")


def _finite(name: str, values: Float64[np.ndarray, "any"]) -> Float64[np.ndarray, "any"]:
    if not np.isfinite(values).all():
        place = int(np.argmin(np.isfinite(values)))
        raise TheoryError(f"{name} must be finite, number {place} is {values.flat[place]}: look at what it comes from")
    return values
