"""The map of heads: what each cell says, and the curves that it opens.

A cell has the head's carrier as amplitudes r_i (nats) and phases psi_i (rad), from which the page computes kernel and
profile, and the attention on its offset that the laws give at each length, beside what was observed where anything was.

Source: `bridge.inspect` (layer 0 from weights), `bridge.calibrated` (any layer on a text); phi is `theory.head`'s.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from bridge.calibrated import CalibratedReport
from bridge.documents import Document
from bridge.errors import BridgeError
from bridge.inspect import HeadReport
from bridge.prediction import Prediction
from bridge.report.explore import NamedCarrier, named_carrier

_NAMED = 12
"""Heads that the explorable page offers: those with the most attention on their offset."""
_BIASED = 1024
"""Offsets at which a bias is handed to the page."""


@dataclass(frozen=True)
class Observed:
    """Attention on the head's offset that was seen at a length, with its standard error."""

    length: float
    attention: float
    standard_error: float


@dataclass(frozen=True, eq=False)
class MappedHead:
    """A cell of the map. `kind` is the head's class where it was seen on a text, `notes` what to know of it."""

    layer: int
    head: int
    prediction: Prediction
    kind: str = ""
    notes: tuple[str, ...] = ()
    observed: tuple[Observed, ...] = ()

    @property
    def offset(self) -> int:
        """delta <= 0 that the head selects."""
        return -self.prediction.offset


@dataclass(frozen=True, eq=False)
class HeadMap:
    """Heads of a model or run: what they are of, how they were read, and the length that the model was trained at."""

    title: str
    heads: tuple[MappedHead, ...]
    trained_length: int
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.heads:
            raise BridgeError("a map of heads needs one head or more, got none")

    @property
    def lengths(self) -> tuple[int, ...]:
        """Every length that some head is predicted at, in tokens."""
        return tuple(sorted({length for head in self.heads for length in head.prediction.lengths}))

    @property
    def reference(self) -> int:
        """The length that is shown first: the longest within the trained one that every head is predicted at."""
        shared = set(self.lengths).intersection(*(head.prediction.lengths for head in self.heads)) or set(self.lengths)
        return max((length for length in shared if length <= self.trained_length), default=min(shared))

    def document(self) -> Document:
        """What the page's script reads. Schedules are listed once."""
        schedules = [head.prediction.carrier.schedule.frequencies for head in self.heads]
        distinct = {one.tobytes(): one for one in schedules}
        place = {key: index for index, key in enumerate(distinct)}
        return {
            "trained": self.trained_length,
            "lengths": list(self.lengths),
            "schedules": [one.tolist() for one in distinct.values()],
            "heads": [_cell(head, place[own.tobytes()]) for head, own in zip(self.heads, schedules, strict=True)],
        }

    def carriers(self) -> tuple[NamedCarrier, ...]:
        """The strongest heads for the explorable page, of those whose schedule it can turn the knobs of."""
        strongest = sorted(self.heads, key=lambda head: -head.prediction.exact[-1])
        named = []
        for head in strongest:
            name = f"head {head.layer}.{head.head}, offset {head.offset}"
            try:
                named.append(named_carrier(name, head.prediction.carrier, -head.offset, self.trained_length))
            except BridgeError:
                # Scaled, partial or no rotation: its kernel is shown in the map.
                continue
            if len(named) == _NAMED:
                break
        return tuple(named)


def mapped_from_weights(report: HeadReport) -> MappedHead:
    """A head of layer 0, from the weights alone."""
    return MappedHead(report.layer, report.head, report.prediction, notes=report.flags)


def mapped_on_text(report: CalibratedReport) -> MappedHead:
    """A head of any layer, with what it does on the text."""
    seen = report.seen
    words = f"on the text: offset {seen.offset} with {seen.share:.3f}, first token {seen.sink:.3f}"
    observed: tuple[Observed, ...] = ()
    if report.prediction.seen is not None:
        share, error = report.prediction.seen
        observed = (Observed(seen.length, share, error),)
    flags = tuple(f"flag: {flag}" for flag in report.flags)
    return MappedHead(report.layer, report.head, report.prediction, report.kind, (words, *flags), observed)


def _cell(head: MappedHead, schedule: int) -> Document:
    prediction = head.prediction
    carrier = prediction.carrier
    order = np.argsort(prediction.lengths)
    errors = prediction.standard_error
    return {
        "layer": head.layer,
        "head": head.head,
        "offset": head.offset,
        "query": _finite(carrier.query_fraction),
        "key": _finite(carrier.key_fraction),
        "kind": head.kind,
        "notes": list(head.notes),
        "schedule": schedule,
        "amplitudes": carrier.amplitudes.tolist(),
        "phases": carrier.phases.tolist(),
        "bias": [] if carrier.bias is None else carrier.bias.at(np.arange(_BIASED)).tolist(),
        "law": prediction.law,
        "lengths": _picked(prediction.lengths, order),
        "attention": _picked(prediction.exact, order),
        "errors": [] if errors is None else _picked(errors, order),
        "mean_profile": _picked(prediction.mean_profile, order),
        "observed": [[one.length, one.attention, _finite(one.standard_error)] for one in head.observed],
    }


def _picked(values: Sequence[float] | np.ndarray, order: np.ndarray) -> list[float]:
    return np.asarray(values)[order].tolist()


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
