"""The arms of surgery on a head: its mean query, or query and key, moved to the best carrier, and the controls.

With query and key both moved, the carrier fixes the difference of their phases and not the phases. The arms keep the
key's, all but one: that keeps the query's, since on trained toy heads keeping the query's phases costs far less
attention (docs/surgery.md), while the key's are what siblings that read the same keys would lose.

Source: ours; `theory.design` for the carriers.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float64

from bridge.calibrated import CalibratedReport
from bridge.calibration import windowed_head
from bridge.designs import ATTENTION
from bridge.sources.activations import HeadActivations
from bridge.sources.edit import MeanEdit
from theory.design import design_carrier, energy_bound
from theory.head import Carrier
from theory.schedule import RotarySchedule, as_lanes, as_pairs

AS_IT_IS, ALONE, STEADY, BOTH = "as it is", "query alone", "query alone, steady pairs", "query and key"
QUERYS_PHASES = "query and key, query's phases kept"
OTHER, RANDOM = "control: query and key of another offset", "control: random shifts"
WANTED = ", energy for .9 at 8192"
LONGEST = 8192
"""Tokens over which carriers are best."""
_FURTHER = 4
"""Tokens that the control's target lies further back."""
_HELD = 0.5
"""A pair is steady from this share of its keys' mean square on, held by the mean key."""
_SHIFT_SEED = 20_261_130


@dataclass(frozen=True)
class Arm:
    """One thing that is done to a head: its means moved to a carrier of target K = `offset`.

    `energy` is sum r_i and `margin` that of the means over 8192 tokens, both in nats; they are None for the head as it
    is, which has no edit, and for random shifts.
    """

    name: str
    offset: int
    edit: MeanEdit | None = None
    energy: float | None = None
    margin: float | None = None


def arms_of(
    report: CalibratedReport, head: HeadActivations, direction: Float64[np.ndarray, "width"]
) -> tuple[Arm, ...]:
    """Everything that is done to a head at its offset, `direction` being e of its layer.

    Raises TheoryError as `design_carrier`.
    """
    content = windowed_head(head).content
    carrier, back = content.carrier(), report.prediction.offset
    schedule, scale, energy = carrier.schedule, carrier.logit_scale, carrier.energy
    key_squares = content.key_weights @ np.square(np.abs(as_pairs(content.keys)))
    steady = np.square(np.abs(as_pairs(carrier.key_mean))) >= _HELD * key_squares
    design = design_carrier(schedule, back, LONGEST)
    on_steady = design_carrier(RotarySchedule(schedule.frequencies[steady]), back, LONGEST)
    weights = np.zeros(schedule.pairs)
    weights[steady] = on_steady.weights

    def arm(name: str, offset: int, made: Carrier, energy: float | None = None, margin: float | None = None) -> Arm:
        key_shift = made.key_mean - carrier.key_mean
        edit = MeanEdit(
            report.layer,
            report.head,
            direction,
            made.query_mean - carrier.query_mean,
            key_shift if key_shift.any() else None,
        )
        return Arm(name, offset, edit, energy, margin)

    arms = [Arm(AS_IT_IS, back)]
    for nats, words in ((energy, ""), (energy_bound(design.margin, ATTENTION, LONGEST), WANTED)):
        both = design.carrier(nats, scale, like=carrier, keep="key")
        alone, some = (with_query(carrier, nats * p, back) for p in (design.weights, weights))
        arms += [
            arm(ALONE + words, back, alone, nats, nats * design.margin),
            arm(STEADY + words, back, some, nats, nats * on_steady.margin),
            arm(BOTH + words, back, both, nats, nats * design.margin),
        ]
    kept = design.carrier(energy, scale, like=carrier, keep="query")
    arms.append(arm(QUERYS_PHASES, back, kept, energy, energy * design.margin))
    other = design_carrier(schedule, back + _FURTHER, LONGEST)
    moved = other.carrier(energy, scale, like=carrier, keep="key")
    arms.append(arm(OTHER, back + _FURTHER, moved, energy, energy * other.margin))
    rng = np.random.default_rng(_SHIFT_SEED)
    means = design.carrier(energy, scale, like=carrier, keep="key")
    shifts = (_random(rng, means.query_mean - carrier.query_mean), _random(rng, means.key_mean - carrier.key_mean))
    arms.append(Arm(RANDOM, back, MeanEdit(report.layer, report.head, direction, *shifts)))
    return tuple(arms)


def with_query(carrier: Carrier, amplitudes: Float64[np.ndarray, "pair"], offset: int) -> Carrier:
    """The carrier with its key and the query that makes these amplitudes r_i (nats) and phases on the target:

    a_i = r_i / (scale f^2 |b_i|) e^(i (arg b_i - K theta_i)),   0 where r_i is.
    """
    key = as_pairs(carrier.key_mean)
    products = carrier.logit_scale * carrier.schedule.score_gains * np.abs(key)
    sizes = np.divide(amplitudes, products, out=np.zeros_like(amplitudes), where=amplitudes > 0)
    query = sizes * np.exp(1j * (np.angle(key) - offset * carrier.schedule.frequencies))
    return Carrier.from_means(carrier.schedule, as_lanes(query), carrier.key_mean, carrier.logit_scale)


def _random(rng: np.random.Generator, like: Float64[np.ndarray, "lane"]) -> Float64[np.ndarray, "lane"]:
    """A vector of the same norm in a random direction."""
    drawn = rng.standard_normal(len(like))
    return drawn * np.linalg.norm(like) / np.linalg.norm(drawn)
