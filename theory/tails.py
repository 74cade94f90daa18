"""Tails of sums of independent finite-valued terms, for every two columns of a table at once.

Keys B_t are independent with weights w; key b in place t has gain g_tb >= 0 and adds the row
g_tb O[b, :]. The sum in column y less that in column c is

    R_yc = sum_t g_t[B_t] (O[B_t, y] - O[B_t, c]),
    K_yc(s) = log E e^(s R_yc) = sum_t log (A_t(s)^T diag(w) A_t(-s))_yc,   A_t(s) = e^(s g_tb O_by),

one product of matrices for all pairs. At x = K'(s) the saddlepoint approximation of Lugannani
and Rice (1980), in the form of Barndorff-Nielsen (1986), is

    P(R <= x) ~ Phi(r*),  r* = r + log(q/r)/r,  r = sgn(s) sqrt(2 (s x - K)),  q = s sqrt(K'').

It is tabulated at tilts s from the centre to far tails and interpolated in x. It is smooth: at
an atom of R it errs by up to half of that atom's mass, so terms that are few or outweigh the
others are for the caller to enumerate. Only the support is exact.

Source: the papers named above; all pairs from one product of matrices is ours.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float64

from theory.errors import TheoryError

# Interpolation then moves r* by less than .01 at |r| < 4.
_TILTS_PER_OCTAVE = 3
# Tilts times deviations: r is about their product, less where the terms are bounded closely.
_NEAREST, _FARTHEST = 0.1, 40.0
# Pairs narrower than this share of the widest would make the row of tilts endless.
_LEAST_DEVIATION = 1e-6
# Two such exponentials have a product in float64, with room for the square of a term up to 1e45.
_LARGEST_EXPONENT = 250.0


@dataclass(frozen=True, eq=False)
class Tails:
    """r* of every R_yc between points x_i = K'(s_i), and the support of R_yc.

    `cubics[y, c, i]` are the coefficients of r* in t = (x - x_i)/(x_(i+1) - x_i), the constant first.
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

    Give scores of order 1: variances and tilts must stay within float64. Raises TheoryError for
    weights that are not above 0 with sum 1 and for numbers that are not finite.
    """
    if not (weights > 0).all() or not abs(weights.sum() - 1) <= 1e-9:
        raise TheoryError(f"key weights must be above 0 with sum 1, got {weights}: leave out keys that never occur")
    if not (np.isfinite(gains).all() and np.isfinite(readout).all()):
        raise TheoryError(
            "gains and readout must be finite: subtract the largest logit before its exponential is taken"
        )
    # A number added to a whole row changes no difference: centred rows have the smallest exponents.
    rows = readout - (readout.max(axis=1, keepdims=True) + readout.min(axis=1, keepdims=True)) / 2
    tilts = _tilts(gains, weights, rows)
    log_moment, mean, variance = _cumulants(gains, weights, rows, tilts)
    # R_cy = -R_yc: the pair the other way round at the tilt of the other sign.
    s = np.concatenate([-tilts[::-1], tilts])
    k0, k1, k2 = (_both_signs(log_moment, 1), _both_signs(mean, -1), _both_signs(variance, 1))
    roots = np.sign(s) * np.sqrt(np.maximum(2 * (s * k1 - k0), 0))
    with np.errstate(divide="ignore", invalid="ignore"):
        slopes = np.where(roots == 0, 0, s / roots)
        scores = roots + np.log(s * np.sqrt(np.maximum(k2, 0)) / roots) / roots
    scores = np.where(np.isfinite(scores), scores, roots)
    # Where few terms are left to move, K'' vanishes and r* would turn back; P(R <= x) never does.
    half = len(tilts)
    scores[..., half:] = np.maximum.accumulate(scores[..., half:], axis=-1)
    scores[..., :half] = np.minimum.accumulate(scores[..., half - 1 :: -1], axis=-1)[..., ::-1]
    least = _least(gains, readout)
    return Tails(k1, _cubics(k1, roots, slopes, scores - roots), least, -least.T)


def covariances(
    gains: Float64[np.ndarray, "term key"],
    weights: Float64[np.ndarray, "key"],
    readout: Float64[np.ndarray, "key column"],
) -> Float64[np.ndarray, "term column column"]:
    """Covariance of g_t[B_t] O[B_t, y] and g_t[B_t] O[B_t, c], term by term."""
    terms = gains[:, :, None] * readout
    centred = terms - np.einsum("b,tbc->tc", weights, terms)[:, None]
    return np.matmul((centred * weights[:, None]).transpose(0, 2, 1), centred)


def _tilts(
    gains: Float64[np.ndarray, "term key"],
    weights: Float64[np.ndarray, "key"],
    rows: Float64[np.ndarray, "key column"],
) -> Float64[np.ndarray, "tilt"]:
    """Positive tilts from a tenth of a deviation to well past eight of them, for all pairs at once."""
    total = covariances(gains, weights, rows).sum(axis=0)
    own = np.diag(total)
    deviations = np.sqrt(np.maximum(own[:, None] + own - 2 * total, 0))
    widest = deviations.max()
    if widest == 0:
        return np.ones(1)
    farthest = _FARTHEST / deviations[deviations > _LEAST_DEVIATION * widest].min()
    farthest = min(farthest, _LARGEST_EXPONENT / float((gains * np.abs(rows).max(axis=1)).max()))
    nearest = min(_NEAREST / widest, farthest / 2)
    count = int(np.ceil(_TILTS_PER_OCTAVE * np.log2(farthest / nearest))) + 1
    return np.geomspace(nearest, farthest, count)


def _cumulants(
    gains: Float64[np.ndarray, "term key"],
    weights: Float64[np.ndarray, "key"],
    rows: Float64[np.ndarray, "key column"],
    tilts: Float64[np.ndarray, "tilt"],
) -> Float64[np.ndarray, "3 tilt column column"]:
    """K, K' and K'' at every tilt for every two columns, one term at a time."""
    sums = np.zeros((3, len(tilts), rows.shape[1], rows.shape[1]))
    for gain in gains:
        step = gain[:, None] * rows
        up = np.exp(tilts[:, None, None] * step)
        down = 1 / up
        left = (up * weights[:, None]).transpose(0, 2, 1)
        left_first, down_first = left * step.T, down * step
        moment = left @ down
        mean = (left_first @ down - left @ down_first) / moment
        square = (left_first * step.T) @ down - 2 * left_first @ down_first + left @ (down_first * step)
        sums += np.stack([np.log(moment), mean, square / moment - mean**2])
    return sums


def _both_signs(
    cumulant: Float64[np.ndarray, "tilt left right"], parity: int
) -> Float64[np.ndarray, "left right both"]:
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


def _least(
    gains: Float64[np.ndarray, "term key"], readout: Float64[np.ndarray, "key column"]
) -> Float64[np.ndarray, "left right"]:
    """The least value of every R_yc."""
    steps = gains[:, :, None] * readout
    least = [(steps[:, :, y, None] - steps).min(axis=1).sum(axis=0) for y in range(readout.shape[1])]
    return np.stack(least)
