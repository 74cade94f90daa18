"""The relative kernel, the mean logit profile and its margin.

    g(s) = sum_i p_i cos(s theta_i),            sum p_i = 1
    phi(delta) = sum_i r_i cos(delta theta_i - psi_i)   (nats)
    mu_L = phi(-K) - max over -L < delta <= 0, delta != -K, of phi(delta)

A profile is an array over offsets 0, -1, ..., -(L-1): index j is the key j tokens back.

Source: arXiv 2607.18759, Lemma 2, Proposition 1, Corollary 2.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float64, Int

from theory.errors import TheoryError
from theory.head import Carrier
from theory.inputs import check_array, check_target, whole


@dataclass(frozen=True)
class Margin:
    """mu_L in nats with the offset of the nearest competitor: negative where that one is higher."""

    value: float
    competitor: int


def kernel(
    weights: Float64[np.ndarray, "pair"],
    frequencies: Float64[np.ndarray, "pair"],
    lags: Int[np.ndarray, "lag"],
) -> Float64[np.ndarray, "lag"]:
    """g(s) = sum_i p_i cos(s theta_i) at integer lags s = delta + K (Lemma 2)."""
    return np.cos(np.multiply.outer(lags, frequencies)) @ weights


def cosine_sums(
    amplitudes: Float64[np.ndarray, "pair"],
    frequencies: Float64[np.ndarray, "pair"],
    phases: Float64[np.ndarray, "pair"],
    start: int,
    count: int,
) -> Float64[np.ndarray, "lag"]:
    """sum_i r_i cos(s theta_i + psi_i) at the consecutive lags s = start..start+count-1.

    By the addition theorem: with s = start + B a + b the sum is a product of one matrix over a and
    one over b, so that count lags cost 2 sqrt(count) cosines a pair. No lag's value is carried on
    from the one before it: the error is that of one angle, about s theta 2^-53, and of the sum.
    """
    block = max(1, math.isqrt(count))
    rows = -(-count // block)
    coarse = np.multiply.outer(start + block * np.arange(rows), frequencies) + phases
    fine = np.multiply.outer(np.arange(block), frequencies)
    sums = (amplitudes * np.cos(coarse)) @ np.cos(fine).T - (amplitudes * np.sin(coarse)) @ np.sin(fine).T
    return sums.reshape(-1)[:count]


def carrier_profile(carrier: Carrier, length: int) -> Float64[np.ndarray, "offset"]:
    """phi(delta) of the means alone, delta = 0..-(length-1), in nats (Proposition 1).

    Raises TheoryError for a length below 1.
    """
    whole("a length", length, 1)
    return cosine_sums(carrier.amplitudes, carrier.schedule.frequencies, carrier.phases, 0, length)


def mean_profile(carrier: Carrier, length: int) -> Float64[np.ndarray, "offset"]:
    """E[logit | delta] in nats: phi and the bias, but inside the window the mean logit of a query with its own keys.

    Raises TheoryError for a length below 1.
    """
    profile = carrier_profile(carrier, length)
    if carrier.bias is not None:
        profile += carrier.bias.at(np.arange(length))
    local = carrier.local_profile[:length]
    profile[: len(local)] = local
    return profile


def selected_offset(profile: Float64[np.ndarray, "offset"]) -> int:
    """The offset delta <= 0 at which a profile is highest, the nearest of those that tie.

    Raises TheoryError for a profile that is empty or not finite.
    """
    check_profile(profile)
    return -int(np.argmax(profile))


def margin(profile: Float64[np.ndarray, "offset"], offset: int) -> Margin:
    """mu_L of the target K = `offset` tokens back over the offsets that the profile holds.

    Raises TheoryError where the target is not among them or has no competitor, or where the profile is not finite.
    """
    check_profile(profile)
    check_target(offset, len(profile))
    if len(profile) < 2:
        raise TheoryError("a margin needs a competitor: give a profile of two offsets or more, got one")
    rivals = np.where(np.arange(len(profile)) == offset, -np.inf, profile)
    nearest = int(np.argmax(rivals))
    return Margin(float(profile[offset] - profile[nearest]), -nearest)


def check_profile(profile: Float64[np.ndarray, "offset"]) -> None:
    """Raises TheoryError unless a profile holds one finite logit or more."""
    check_array("a profile", profile, None)
    if not len(profile):
        raise TheoryError("a profile has one offset or more, got none")
