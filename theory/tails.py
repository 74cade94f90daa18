"""Tails of sums of independent finite-valued terms, for every two columns of a table at once.

Keys B_t are independent with weights w; key b in place t has gain g_tb >= 0 and adds the row g_tb O[b, :]. The sum in
column y less that in column c is

    R_yc = sum_t X_t,   X_t = g_t[B_t] (O[B_t, y] - O[B_t, c]),
    K_yc(s) = log E e^(s R_yc) = sum_t log (A_t(s)^T diag(w) A_t(-s))_yc,   A_t(s) = e^(s g_tb O_by),

one product of matrices for all pairs. At x = K'(s) the saddlepoint approximation of Lugannani and Rice (1980), in the
form of Barndorff-Nielsen (1986), is

    P(R <= x) ~ Phi(r*),  r* = r + log(q/r)/r,  r = sgn(s) sqrt(2 (s x - K)),  q = s sqrt(K'').

It is tabulated at tilts s from the centre to |r| = 7 and interpolated in x. It is smooth: an atom of R costs up to half
of its mass, so terms that are few or outweigh the others are for the caller to enumerate.

Most terms of a long sum are light: with |X_t| <= x_t and rho = |s| x_t < 1 cumulants to order p stand for one, and

    |k_t''(s) - series| <= e^2 Var(X_t) rho^(p-1)/(1 - rho),

k_t less its series is at most that times s^2/(p (p+1)). For on |z| x_t = 1, at z of argument a, k_t''(z) =
E (X - X')^2 e^(z (X + X')) / 2 (E e^(zX))^2, X' a copy of X, is at most Var(X_t) e^(2 cos a)/cos^2(sin a), at a = 0 the
most, and Cauchy's estimate bounds its coefficients. At every tilt those terms are light whose bounds
together are estimated, to first order and at the tilt before, to move P(R <= x) by at most 1e-4; the others are heavy.

Source: the papers named above; all pairs from one product and light terms by series are ours.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float64, Int

from theory.errors import TheoryError

# Interpolation then moves r* by less than .01 at |r| < 4.
_TILTS_PER_OCTAVE = 3
# Tilts times deviations: r is about their product, less where the terms are bounded closely.
_NEAREST, _FARTHEST = 0.1, 40.0
# Beyond it a tail is below 2e-12.
_FARTHEST_ROOT = 7.0
# Pairs narrower than this share of the widest would make the row of tilts endless.
_LEAST_DEVIATION = 1e-6
# A variance below this share of its second moment is rounding.
_ROUNDING = 1e-13
# Two such exponentials have a product in float64, with room for the square of a term up to 1e45.
_LARGEST_EXPONENT = 250.0
# The highest cumulant of a light term, the estimated change of a probability by light terms, and the most of K''.
_ORDER = 6
_ALLOWED, _MOST_ALLOWED = 1e-4, 1.0
# Terms at a time: their tables stay in a core's cache.
_BLOCK = 32


@dataclass(frozen=True, eq=False)
class Tails:
    """r* of every R_yc between points x_i = K'(s_i), and the support of R_yc.

    `cubics[y, c, i]` are the coefficients of r* in t = (x - x_i)/(x_(i+1) - x_i), the constant first.
    The support stands as infinite where the tilts reach |r| = 7 on both sides, and is exact elsewhere.
    """

    points: Float64[np.ndarray, "left right tilt"]
    cubics: Float64[np.ndarray, "left right interval 4"]
    least: Float64[np.ndarray, "left right"]
    most: Float64[np.ndarray, "left right"]

    def scores(self, left: int, x: Float64[np.ndarray, "point right"]) -> Float64[np.ndarray, "point right"]:
        """r* with P(R <= x) ~ Phi(r*), for column `left` less every column; infinite outside the support."""
        points = self.points[left]
        ranks = [np.searchsorted(row, column, side="right") for row, column in zip(points, x.T, strict=True)]
        start = np.clip(np.stack(ranks, axis=1) - 1, 0, points.shape[1] - 2)
        right = np.arange(len(points))
        before, width = points[right, start], np.diff(points, axis=1)[right, start]
        t = np.clip(np.divide(x - before, width, out=np.zeros_like(x), where=width > 0), 0, 1)
        a, b, c, d = np.moveaxis(self.cubics[left][right, start], -1, 0)
        score = a + t * (b + t * (c + t * d))
        score[x < self.least[left]] = -np.inf
        score[x >= self.most[left]] = np.inf
        return score


def saddlepoint_tails(
    gains: Float64[np.ndarray, "term key"],
    weights: Float64[np.ndarray, "key"],
    readout: Float64[np.ndarray, "key column"],
) -> Tails:
    """The tails of R_yc for every two columns of `readout`; the sum of no term at all is 0.

    Time grows as terms x keys x columns^2, and for heavy terms as that times tilts. Give scores of order 1: variances
    and tilts must stay in float64. Raises TheoryError for weights not above 0 with sum 1, for numbers not finite.
    """
    if not (weights > 0).all() or not abs(weights.sum() - 1) <= 1e-9:
        raise TheoryError(f"key weights must be above 0 with sum 1, got {weights}: leave out keys that never occur")
    if not (np.isfinite(gains).all() and np.isfinite(readout).all()):
        raise TheoryError("gains and readout must be finite: subtract the largest logit before exponentials are taken")
    reach = (gains * np.ptp(readout, axis=1)).max(axis=1)
    order, exponent = np.argsort(-reach, kind="stable"), int(np.frexp(reach.max(initial=0))[1])
    gains, reach = np.ldexp(gains[order], -exponent), np.ldexp(reach[order], -exponent)
    left, right = np.triu_indices(readout.shape[1], 1)
    terms = _Terms(gains, reach, weights, readout, readout[:, left] - readout[:, right])
    tilts, cumulants, ended = _cumulants(terms, _series(terms))
    # R_cy = -R_yc: the pair the other way round at the tilt of the other sign.
    s = np.concatenate([-tilts[::-1], tilts])
    k0, k1, k2 = (_both_signs(cumulants[:, i], parity) for i, parity in enumerate((1, -1, 1)))
    roots = np.sign(s) * np.sqrt(np.maximum(2 * (s * k1 - k0), 0))
    with np.errstate(divide="ignore", invalid="ignore"):
        slopes = np.where(roots == 0, 0, s / roots)
        scores = roots + np.log(s * np.sqrt(np.maximum(k2, 0)) / roots) / roots
    scores = np.where(np.isfinite(scores), scores, roots)
    # Where few terms are left to move, K'' vanishes and r* would turn back; P(R <= x) never does.
    half = len(tilts)
    scores[..., half:] = np.maximum.accumulate(scores[..., half:], axis=-1)
    scores[..., :half] = np.minimum.accumulate(scores[..., half - 1 :: -1], axis=-1)[..., ::-1]
    least = np.ldexp(terms.least(ended), exponent)
    return Tails(np.ldexp(k1, exponent), _cubics(k1, roots, slopes, scores - roots), least, -least.T)


@dataclass(frozen=True, eq=False)
class _Terms:
    """The terms, widest first, the widest scaled to between 1/2 and 1 so that no power of one leaves float64.

    `reach` is x_t, the largest gain times range of a row; `differences` are O[b, y] - O[b, c] of the pairs y < c.
    """

    gains: Float64[np.ndarray, "term key"]
    reach: Float64[np.ndarray, "term"]
    weights: Float64[np.ndarray, "key"]
    readout: Float64[np.ndarray, "key column"]
    differences: Float64[np.ndarray, "key pair"]

    def cumulants(self, s: float, count: int) -> Float64[np.ndarray, "3 column column"]:
        """K, K' and K'' at s of the first terms for every two columns, one by one."""
        # A number added to a whole row changes no difference: centred rows have the smallest exponents.
        rows = self.readout - (self.readout.max(axis=1, keepdims=True) + self.readout.min(axis=1, keepdims=True)) / 2
        sums = np.zeros((3, *2 * self.readout.shape[1:]))
        for first in range(0, count, _BLOCK):
            step = self.gains[first : min(first + _BLOCK, count), :, None] * (s * rows)
            down = np.exp(-step)
            left = self.weights[:, None] / down
            left_first, down_first = left * step, down * step
            left_second, down_second = left_first * step, down_first * step
            left, left_first, left_second = (table.transpose(0, 2, 1) for table in (left, left_first, left_second))
            moment = left @ down
            mean = (left_first @ down - left @ down_first) / moment
            square = (left_second @ down - 2 * (left_first @ down_first) + left @ down_second) / moment
            sums += np.stack([np.log(moment).sum(axis=0), mean.sum(axis=0), (square - mean**2).sum(axis=0)])
        return sums / np.array([1, s, s**2])[:, None, None]

    def least(self, ended: Bool[np.ndarray, "pair"]) -> Float64[np.ndarray, "left right"]:
        """The least value of every R_yc, -inf for the pairs whose tilts end beyond what counts."""
        least, most = np.where(ended, -np.inf, 0), np.where(ended, np.inf, 0)
        differences = self.differences[:, ~ended]
        for first in range(0, len(self.gains) if differences.size else 0, _BLOCK):
            block = self.gains[first : first + _BLOCK, :, None]
            low = high = block[:, 0] * differences[0]
            for key in range(1, len(differences)):
                step = block[:, key] * differences[key]
                low, high = np.minimum(low, step), np.maximum(high, step)
            least[~ended] += low.sum(axis=0)
            most[~ended] += high.sum(axis=0)
        table, upper = np.zeros(2 * self.readout.shape[1:]), np.triu_indices(self.readout.shape[1], 1)
        table[upper], table.T[upper] = least, -most
        return table


@dataclass(frozen=True, eq=False)
class _Series:
    """Sums over the terms from each of `starts` to the last, of pairs y < c.

    `coefficients` are those of s, s^2, ... in K; `bounds` e^2 sum_t E X_t^2 x_t^(p-1); `reach` is x_t at the start.
    The last start is the number of terms, where nothing is left.
    """

    starts: Int[np.ndarray, "cut"]
    reach: Float64[np.ndarray, "cut"]
    coefficients: Float64[np.ndarray, "order cut pair"]
    bounds: Float64[np.ndarray, "cut pair"]

    def cumulants(self, s: float, cut: int) -> Float64[np.ndarray, "3 pair 2"]:
        """K, K' and K'' at s from a start on, of every pair and of the pair the other way round."""
        n = np.arange(1, _ORDER + 1)
        powers = np.stack([s**n, n * s ** (n - 1), n * (n - 1) * s ** np.maximum(n - 2, 0)])
        return np.stack([(powers * sign**n) @ self.coefficients[:, cut] for sign in (1.0, -1.0)], axis=-1)

    def first_cut(self, s: float, allowed: Float64[np.ndarray, "pair"]) -> int:
        """The first start whose remainder of K'' at s is at most `allowed` for every pair."""
        inside = np.flatnonzero(s * self.reach < 1)
        left = self.bounds[inside] * (s ** (_ORDER - 1) / (1 - s * self.reach[inside, None]))
        return int(inside[(left <= allowed).all(axis=1).argmax()])


def _series(terms: _Terms) -> _Series:
    gains, reach = terms.gains, terms.reach
    starts = [0]
    while starts[-1] < len(gains):
        starts.append(min(starts[-1] + max(_BLOCK // 2, starts[-1] // 4), len(gains)))
    powers = np.stack([terms.weights[:, None] * terms.differences**n for n in range(1, _ORDER + 1)])
    coefficients, bounds = np.zeros((_ORDER, len(starts), powers.shape[2])), np.zeros((len(starts), powers.shape[2]))
    buffers = np.empty((2, _ORDER, _BLOCK, powers.shape[2]))
    # Sums of a suffix of terms, from its end: nothing cancels.
    for cut in range(len(starts) - 2, -1, -1):
        own, coefficients[:, cut] = slice(starts[cut], starts[cut + 1]), coefficients[:, cut + 1]
        for first in range(own.start, own.stop, _BLOCK):
            coefficients[:, cut] += _coefficients(gains[first : min(first + _BLOCK, own.stop)], powers, buffers)
        heaviness = (np.square(gains[own]) * reach[own, None] ** (_ORDER - 1)).sum(axis=0)
        bounds[cut] = bounds[cut + 1] + np.e**2 * (heaviness @ powers[1])
    return _Series(np.array(starts), np.append(reach, 0)[starts], coefficients, bounds)


def _coefficients(
    gains: Float64[np.ndarray, "term key"],
    powers: Float64[np.ndarray, "order key pair"],
    buffers: Float64[np.ndarray, "2 order block pair"],
) -> Float64[np.ndarray, "order pair"]:
    """Coefficients of log E e^(sX), from a_n = E X^n / n!: n c_n = n a_n - sum_j j c_j a_(n-j), over all terms."""
    moments, own = buffers[:, :, : len(gains)]
    product, scaled = np.empty_like(own[0]), gains
    for n in range(_ORDER):
        np.matmul(scaled, powers[n], out=moments[n])
        scaled = scaled * gains / (n + 2)
        np.multiply(moments[n], n + 1, out=own[n])
        for j in range(n):
            np.multiply(own[j], moments[n - 1 - j], out=product)
            own[n] -= product
    return own.sum(axis=1) / np.arange(1, _ORDER + 1)[:, None]


def _tilts(deviations: Float64[np.ndarray, "pair"], reach: float) -> Float64[np.ndarray, "tilt"]:
    """Positive tilts from a tenth of a deviation to well past eight of them, for all pairs at once."""
    widest = deviations.max(initial=0)
    if widest == 0:
        return np.ones(1)
    farthest = _FARTHEST / deviations[deviations > _LEAST_DEVIATION * widest].min()
    farthest = min(farthest, 2 * _LARGEST_EXPONENT / reach)
    nearest = min(_NEAREST / widest, farthest / 2)
    count = int(np.ceil(_TILTS_PER_OCTAVE * np.log2(farthest / nearest))) + 1
    return np.geomspace(nearest, farthest, count)


def _cumulants(
    terms: _Terms, series: _Series
) -> tuple[Float64[np.ndarray, "tilt"], Float64[np.ndarray, "tilt 3 column column"], Bool[np.ndarray, "pair"]]:
    """Tilts, to |r| = 7 of every pair where they get there, K, K' and K'' at each, and which pairs got there."""
    left, right = np.triu_indices(terms.readout.shape[1], 1)
    pairs = np.stack([[left, right], [right, left]], axis=-1)
    variances = 2 * series.coefficients[1, 0]
    second_moments = (terms.weights * np.square(terms.gains).sum(axis=0)) @ np.square(terms.differences)
    deviations, found = np.sqrt(np.where(variances > _ROUNDING * second_moments, variances, 0)), []
    wide = deviations > _LEAST_DEVIATION * deviations.max(initial=0)
    tilts = _tilts(deviations, float(series.reach[0]))
    roots, spreads = tilts[0] * deviations[:, None], deviations[:, None] ** 2
    for s in tilts:
        # Of the tilt before: r grows, and K'' changes little from one to the next.
        allowed = np.where(wide, _allowed(roots, spreads).min(axis=1), np.inf)
        cut = series.first_cut(float(s), allowed)
        table = terms.cumulants(float(s), int(series.starts[cut]))
        table[:, pairs[0], pairs[1]] += series.cumulants(float(s), cut)
        found.append(table)
        k0, k1, spreads = table[:, pairs[0], pairs[1]]
        roots = np.sqrt(np.maximum(2 * (s * k1 - k0), 0))
        ended = wide & (roots >= _FARTHEST_ROOT).all(axis=1)
        if (ended == wide).all():
            break
    return tilts[: len(found)], np.stack(found), ended


def _allowed(roots: Float64[np.ndarray, "..."], spreads: Float64[np.ndarray, "..."]) -> Float64[np.ndarray, "..."]:
    """The change of K'' estimated to move P(R <= x) by `_ALLOWED` at these r and K'', without bound past 7.

    A share eta of K'' moves r* by eta (1/r + r/(p (p+1))) at most, to first order.
    """
    near = np.minimum(roots, _FARTHEST_ROOT)
    with np.errstate(divide="ignore"):
        moved = np.exp(-(near**2) / 2) / np.sqrt(2 * np.pi) * (1 / near + near / (_ORDER * (_ORDER + 1)))
    return np.where(
        roots < _FARTHEST_ROOT, np.maximum(spreads, 0) * np.minimum(_ALLOWED / moved, _MOST_ALLOWED), np.inf
    )


def _both_signs(cumulant: Float64[np.ndarray, "tilt y c"], parity: int) -> Float64[np.ndarray, "y c both"]:
    """A cumulant at -s and s from that at s, of the given parity under s -> -s with the columns exchanged."""
    positive = np.moveaxis(cumulant, 0, -1)
    return np.concatenate([parity * positive.transpose(1, 0, 2)[..., ::-1], positive], axis=-1)


def _cubics(
    points: Float64[np.ndarray, "left right tilt"],
    roots: Float64[np.ndarray, "left right tilt"],
    slopes: Float64[np.ndarray, "left right tilt"],
    corrections: Float64[np.ndarray, "left right tilt"],
) -> Float64[np.ndarray, "left right interval 4"]:
    """Hermite's cubic for r, whose derivative s/r is known, plus a line for r* - r, which is small and flat."""
    width, rise, drift = np.diff(points), np.diff(roots), np.diff(corrections)
    first, last = width * slopes[..., :-1], width * slopes[..., 1:]
    return np.stack(
        [(roots + corrections)[..., :-1], first + drift, 3 * rise - 2 * first - last, first + last - 2 * rise], axis=-1
    )
