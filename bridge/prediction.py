"""A head becomes a carrier, the carrier a prediction. No number of it is fitted or observed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float64

from bridge.errors import BridgeError
from bridge.surface import PlacedHead, Profile
from theory.dilution import margin_bound, mean_profile_law
from theory.exact_law import exact_law
from theory.head import Carrier, Head
from theory.kernel import Margin, margin, mean_profile, selected_offset


@dataclass(frozen=True, eq=False)
class Prediction:
    """Attention K = `offset` tokens back at each length by each law, and what the laws start from.

    `exact` is the mean of the softmax, with its standard error where it is sampled: over independent tokens, or by
    the windowed law, as `law` says; `mean_profile` is the softmax of the mean logits, whose `profile` is that of the
    longest length; `margins` are its mu_L at each length, with the nearest competitor; `constant` is the baseline
    "the same as at short context": what was `seen` there, with its standard error, or else the exact law at the
    shortest length.
    """

    carrier: Carrier
    offset: int
    lengths: tuple[int, ...]
    profile: Float64[np.ndarray, "offset"]
    exact: Float64[np.ndarray, "length"]
    mean_profile: Float64[np.ndarray, "length"]
    margins: tuple[Margin, ...]
    standard_error: Float64[np.ndarray, "length"] | None = None
    law: str = "exact"
    seen: tuple[float, float] | None = None

    @property
    def bound(self) -> Float64[np.ndarray, "length"]:
        """Corollary 2's lower bound on the mean-profile law, with the margin of each length."""
        rows = zip(self.margins, self.lengths, strict=True)
        return np.array([margin_bound(mu.value, [length])[0] for mu, length in rows])

    @property
    def constant(self) -> Float64[np.ndarray, "length"]:
        short = self.exact[int(np.argmin(self.lengths))] if self.seen is None else self.seen[0]
        return np.full(len(self.lengths), short)

    def at(self, length: int) -> float | None:
        """The exact or windowed law at a length, None where the prediction does not have it."""
        return dict(zip(self.lengths, self.exact.tolist(), strict=True)).get(length)

    @property
    def selected_offset(self) -> int:
        """delta <= 0 at which the mean profile is highest up to the longest length."""
        return selected_offset(self.profile)

    def residuals(self) -> tuple[str, ...]:
        """Why the mean-profile law is out of regime: it is exact only for a head without residuals."""
        fractions = {"keys": self.carrier.key_fraction, "queries": self.carrier.query_fraction}
        held = [f"{fraction:.2f} of {name}" for name, fraction in fractions.items() if fraction < 1 - 1e-9]
        return (f"the head has residuals: the carrier holds {' and '.join(held)}",) if held else ()


def predict(head: Head, offset: int, lengths: Sequence[int], relative_error: float = 1e-9) -> Prediction:
    """Predict attention `offset` tokens back at each length from what a head is.

    `relative_error` is the quadrature error allowed to the exact law. Raises TheoryError where
    a length does not hold the target.
    """
    exact = exact_law(head, offset, lengths, relative_error)
    carrier = head.carrier()
    profile = mean_profile(carrier, max(lengths))
    margins = tuple(margin(profile[:length], offset) for length in lengths)
    return Prediction(
        carrier, offset, tuple(lengths), profile, exact, mean_profile_law(profile, offset, lengths), margins
    )


def mean_profile_at(head: PlacedHead, offset: int, length: int) -> float:
    """The mean-profile law of a head at a length; a first token with keys of its own stands at its place."""
    own, seen = head.at(length), head.seen(length)
    sink = None if own.sink_keys is None else own.query_weights @ own.sink_logits(np.array([1 - seen]))
    return float(mean_profile_law(mean_profile(own.carrier(), seen), offset, [seen], sink)[0])


def predict_placed(head: PlacedHead, offset: int, lengths: Sequence[int], surface: Mapping[int, Profile]) -> Prediction:
    """The prediction for a head of a checkpoint, from its sampled profiles at each of the lengths.

    Raises BridgeError where a length does not hold the target among the tokens that the head sees.
    """
    for length in lengths:
        if head.seen(length) <= offset:
            raise BridgeError(
                f"at length {length} the head sees {head.seen(length)} tokens, none of them {offset} back: give longer "
                "--lengths or a nearer --offset"
            )
    carriers = {length: head.at(length).carrier() for length in lengths}
    profiles = {length: mean_profile(carriers[length], head.seen(length)) for length in lengths}
    longest = max(lengths)
    return Prediction(
        carrier=carriers[longest],
        offset=offset,
        lengths=tuple(lengths),
        profile=profiles[longest],
        exact=np.array([surface[length].mean[offset] for length in lengths]),
        mean_profile=np.array([mean_profile_at(head, offset, length) for length in lengths]),
        margins=tuple(margin(own, offset) for own in profiles.values()),
        standard_error=np.array([surface[length].standard_error[offset] for length in lengths]),
    )
