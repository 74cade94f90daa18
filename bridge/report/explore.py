"""What the explorable carrier starts from: where its sliders stop, the best weights, and carriers of real heads.

The numbers that a person sees are computed in the page, by explore.js; here is only what a linear program or a trained
head has to say. A carrier is told as weights p_i, a logit scale A = sum r_i in nats, and the phase errors e_i that are
left at its own K, all of them without scaling:

    phi(delta) = A sum_i p_i cos((delta + K) theta_i - e_i),     e_i = psi_i + K theta_i.

Source: `theory.best_carriers` (weights and phase errors), `theory.head` (amplitudes r_i, phases psi_i).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from bridge.documents import Document
from bridge.errors import BridgeError
from theory.best_carriers import best_carrier
from theory.head import Carrier
from theory.schedule import RotarySchedule

LONGEST = 100_000
"""The longest context, in tokens."""
REACH = 4096
"""The lags over which the best weights keep the target highest."""

_WIDTHS = (8, 16, 32, 64, 128)
_BASES = (100, 300, 1000, 3000, 10_000, 30_000, 100_000, 500_000, 1_000_000)
_STOPS: Mapping[str, tuple[float, ...]] = {
    "width": _WIDTHS,
    "base": _BASES,
    "factor": (1, 1.25, 1.5, 2, 3, 4, 6, 8, 12, 16, 24, 32),
    "trained": tuple(1 << exponent for exponent in range(4, 18)),
    "offset": tuple(range(65)),
    "scale": tuple(float(f"{10 ** (step / 20):.3g}") for step in range(-20, 41)),
    "length": (*(round(2 ** (step / 4)) for step in range(12, 67)), LONGEST),
}


@dataclass(frozen=True)
class NamedCarrier:
    """A carrier of a trained head, as the page takes it; `scale` is A in nats, `errors` are e_i in rad."""

    label: str
    width: int
    base: float
    offset: int
    trained_length: int
    scale: float
    weights: tuple[float, ...]
    errors: tuple[float, ...]


@dataclass(frozen=True)
class Explorable:
    """The sliders' stops by setting, the best weights by width and base, and the carriers that are offered.

    `best[w][b]` are the weights p_i for the w-th width and the b-th base, best over lags up to `reach`.
    Raises BridgeError where a label stands for two choices.
    """

    stops: Mapping[str, tuple[float, ...]]
    best: tuple[tuple[tuple[float, ...], ...], ...]
    reach: int
    carriers: tuple[NamedCarrier, ...]

    def __post_init__(self) -> None:
        labels = ["equal", "best", *(carrier.label for carrier in self.carriers)]
        twice = sorted({label for label in labels if labels.count(label) > 1})
        if twice:
            raise BridgeError(f"two choices of weights are called {twice[0]!r}: give each carrier a label of its own")

    def document(self) -> Document:
        """What the page's script reads."""
        return {
            "stops": {name: list(stops) for name, stops in self.stops.items()},
            "best": [[list(weights) for weights in row] for row in self.best],
            "carriers": [
                {
                    "label": one.label,
                    "width": one.width,
                    "base": one.base,
                    "offset": one.offset,
                    "trained": one.trained_length,
                    "scale": one.scale,
                    "weights": list(one.weights),
                    "errors": list(one.errors),
                }
                for one in self.carriers
            ],
        }


def explorable(carriers: Sequence[NamedCarrier] = ()) -> Explorable:
    """The page's data: a linear program for every width and base, about a second. Raises as `Explorable`."""
    best = tuple(tuple(_best_weights(width, base) for base in _BASES) for width in _WIDTHS)
    return Explorable(_STOPS, best, REACH, tuple(carriers))


def named_carrier(label: str, carrier: Carrier, offset: int, trained_length: int) -> NamedCarrier:
    """The carrier of a head that looks `offset` tokens back, for the page.

    Raises BridgeError where the page cannot turn its knobs: a schedule that is not base^(-2i/d) on every lane (scaled,
    partial, custom frequencies, one pair), an attention factor, a bias per offset, no energy, a K beyond the page's.
    """
    schedule = carrier.schedule
    if carrier.bias is not None:
        raise _unsuited(label, "has a bias per offset besides its carrier")
    if schedule.unrotated:
        raise _unsuited(label, f"has {schedule.unrotated} of {schedule.pairs} pairs that do not turn")
    if schedule.attention_factor != 1:
        raise _unsuited(label, f"has an attention factor of {schedule.attention_factor:g} already")
    if not 0 < carrier.energy < np.inf:
        raise _unsuited(label, f"has amplitudes that add up to {carrier.energy:g} nats")
    if not 0 <= offset < LONGEST:
        raise _unsuited(label, f"looks {offset} tokens back, and K is within 0..{LONGEST - 1} there")
    # Written out as a whole turn or less: e_i and e_i + 2 pi are one phase.
    errors = np.angle(np.exp(1j * (carrier.phases + offset * schedule.frequencies)))
    return NamedCarrier(
        label,
        schedule.dim,
        _base(label, schedule),
        int(offset),
        int(trained_length),
        carrier.energy,
        tuple(carrier.weights.tolist()),
        tuple(errors.tolist()),
    )


def _best_weights(width: int, base: float) -> tuple[float, ...]:
    return tuple(best_carrier(RotarySchedule.geometric(width, base), REACH).weights.tolist())


def _base(label: str, schedule: RotarySchedule) -> float:
    """The base of a geometric schedule over all lanes, which a schedule does not keep."""
    if schedule.pairs < 2 or (schedule.frequencies <= 0).any():
        raise _unsuited(label, f"has no base that its {schedule.pairs} frequencies would tell")
    found = float(schedule.frequencies[-1]) ** (-schedule.dim / (schedule.dim - 2))
    # A base is a number with few digits more often than not; its root was rounded.
    for base in (float(f"{found:.12g}"), found):
        geometric = RotarySchedule.geometric(schedule.dim, base).frequencies
        if np.allclose(schedule.frequencies, geometric, rtol=1e-14, atol=0):
            return base
    raise _unsuited(label, f"turns by frequencies other than base^(-2i/{schedule.dim}), as a scaled schedule does")


def _unsuited(label: str, what: str) -> BridgeError:
    return BridgeError(
        f"{label} {what}: the explorable carrier starts from plain rotary positions on all lanes, "
        "look at this one in the map of heads"
    )
