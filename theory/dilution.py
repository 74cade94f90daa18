"""Attention on the target against length: the mean-profile law, the bound, the inverse-linear fit.

Mean-profile law (Corollary 2), phi in nats:

    a(L) = 1 / sum_{delta > -L} e^(phi(delta) - phi(-K))

is the softmax of the mean logits; the mean of the softmax is `theory.exact_law`.

Source: arXiv 2607.18759, Corollary 2 and Table 2 (fit).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float64
from scipy.special import expit

from theory.errors import TheoryError
from theory.head import Carrier
from theory.inputs import Lengths, check_array, check_lengths
from theory.kernel import carrier_profile
from theory.schedule import RotarySchedule


@dataclass(frozen=True)
class InverseLinearFit:
    """1/a(L) = alpha + c (L - 1), with the share of variance of 1/a that it explains."""

    alpha: float
    c: float
    r_squared: float


def mean_profile_law(
    profile: Float64[np.ndarray, "offset"],
    offset: int,
    lengths: Lengths,
    sink: Float64[np.ndarray, "length"] | None = None,
) -> Float64[np.ndarray, "length"]:
    """Softmax of a profile at K = `offset` tokens back, at each length (Corollary 2, exact form).

    `sink` is the mean logit of the first token's own key at each of the lengths, in nats; it takes
    the place of the profile at offset -(L-1). Raises TheoryError where a length is not above K or
    not covered by the profile, or where there is not one sink logit a length.
    """
    ends = check_lengths(offset, lengths) - 1
    if ends.max() >= len(profile):
        raise TheoryError(f"the profile holds {len(profile)} offsets, length {ends.max() + 1} needs as many: extend it")
    mass = np.logaddexp.accumulate(profile)
    if sink is None:
        return np.exp(profile[offset] - mass[ends])
    if len(sink) != len(ends):
        raise TheoryError(f"give one sink logit a length: got {len(sink)} for {len(ends)}")
    before = np.concatenate([[-np.inf], mass])[ends]
    return np.exp(np.where(ends == offset, sink, profile[offset]) - np.logaddexp(before, sink))


def margin_bound(margin: float, lengths: Lengths) -> Float64[np.ndarray, "length"]:
    """1 / (1 + (L-1) e^-mu), Corollary 2's lower bound; mu in nats must hold at the longest length.

    Raises TheoryError for a margin that is not finite and for lengths below 1.
    """
    if not np.isfinite(margin):
        raise TheoryError(f"a margin is a finite number of nats, got {margin}")
    with np.errstate(divide="ignore"):
        return expit(margin - np.log(check_lengths(0, lengths) - 1))


def dilution_curve(
    query_mean: Float64[np.ndarray, "dim"],
    key_mean: Float64[np.ndarray, "dim"],
    schedule: RotarySchedule,
    offset: int,
    lengths: Lengths,
    logit_scale: float,
) -> Float64[np.ndarray, "length"]:
    """Attention K = `offset` tokens back at each length, straight from two mean vectors (Corollary 2).

    `logit_scale` is 1/sqrt(d_head) times any temperature. Nothing but the means is known, so
    the key at offset 0 counts with phi(0) = scale m_Q . m_K. Raises TheoryError as `mean_profile_law` and `Carrier`.
    """
    longest = int(check_lengths(offset, lengths).max())
    carrier = Carrier.from_means(schedule, query_mean, key_mean, logit_scale)
    return mean_profile_law(carrier_profile(carrier, longest), offset, lengths)


def fit_inverse_linear(lengths: Lengths, attention: Float64[np.ndarray, "length"]) -> InverseLinearFit:
    """Ordinary least squares of 1/a on L - 1, as Table 2 and Table 4 make it; R^2 is 1 where 1/a does not vary.

    Raises TheoryError for fewer than three distinct lengths, and unless there is an attention in (0, 1] at each.
    """
    x = check_lengths(0, lengths) - 1.0
    check_array("attention", attention, len(x))
    if len(np.unique(x)) < 3:
        raise TheoryError(f"a fit of two numbers needs three distinct lengths or more, got {len(np.unique(x))}")
    if not ((attention > 0) & (attention <= 1 + 1e-12)).all():
        raise TheoryError(f"a fit of 1/a needs attention above 0 and up to 1 at every length, got {attention}")
    y = 1 / attention
    c, alpha = np.polyfit(x, y, 1)
    residual, total = np.square(y - alpha - c * x).sum(), np.square(y - y.mean()).sum()
    return InverseLinearFit(float(alpha), float(c), float(1 - residual / total) if total > 0 else 1.0)
