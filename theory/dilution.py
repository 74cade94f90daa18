"""Attention on the target against length: the mean-profile law, the bound, the inverse-linear fit.

Mean-profile law (Corollary 2), phi in nats:

    a(L) = 1 / sum_{delta > -L} e^(phi(delta) - phi(-K))

is the softmax of the mean logits; the mean of the softmax is `theory.exact_law`.

Source: arXiv 2607.18759, Corollary 2 and Table 2 (fit).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float64, Int

from theory.errors import TheoryError
from theory.head import Carrier
from theory.kernel import carrier_profile, check_target
from theory.schedule import RotarySchedule

Lengths = Sequence[int] | Int[np.ndarray, "length"]
"""Context lengths in tokens, in any order."""


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
    check_lengths(offset, lengths)
    if np.max(lengths) > len(profile):
        raise TheoryError(f"the profile holds {len(profile)} offsets, length {np.max(lengths)} needs as many")
    ends = np.asarray(lengths) - 1
    mass = np.logaddexp.accumulate(profile)
    if sink is None:
        return np.exp(profile[offset] - mass[ends])
    if len(sink) != len(ends):
        raise TheoryError(f"give one sink logit a length: got {len(sink)} for {len(ends)}")
    before = np.concatenate([[-np.inf], mass])[ends]
    return np.exp(np.where(ends == offset, sink, profile[offset]) - np.logaddexp(before, sink))


def margin_bound(margin: float, lengths: Lengths) -> Float64[np.ndarray, "length"]:
    """1 / (1 + (L-1) e^-mu), Corollary 2's lower bound; mu in nats must hold at the longest length."""
    return 1 / (1 + (np.asarray(lengths) - 1) * np.exp(-margin))


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
    the key at offset 0 counts with phi(0) = scale m_Q . m_K.
    """
    check_lengths(offset, lengths)
    carrier = Carrier.from_means(schedule, query_mean, key_mean, logit_scale)
    return mean_profile_law(carrier_profile(carrier, int(np.max(lengths))), offset, lengths)


def fit_inverse_linear(lengths: Lengths, attention: Float64[np.ndarray, "length"]) -> InverseLinearFit:
    """Ordinary least squares of 1/a on L - 1, as Table 2 and Table 4 make it."""
    if len(lengths) < 3 or len(lengths) != len(attention):
        raise TheoryError(f"a fit needs three lengths or more with one value each, got {len(lengths)}")
    if not (attention > 0).all():
        raise TheoryError("a fit of 1/a needs attention above 0 at every length")
    x, y = np.asarray(lengths, dtype=np.float64) - 1, 1 / attention
    c, alpha = np.polyfit(x, y, 1)
    residual, total = np.square(y - alpha - c * x).sum(), np.square(y - y.mean()).sum()
    return InverseLinearFit(float(alpha), float(c), float(1 - residual / total))


def check_lengths(offset: int, lengths: Lengths) -> None:
    if len(lengths) == 0:
        raise TheoryError("give one length or more")
    check_target(offset, int(np.min(lengths)))
