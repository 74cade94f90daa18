"""A report of one head of any layer from its activations: what it does on the text, and what the laws foretell.

Classes, from what is seen inside the calibration text:

    sink         half of its attention or more goes to the first token
    self         .2 or more goes to the query itself,       whatever far content is
    positional   .2 or more goes to one offset back,        whatever far content is
    content      a query's greatest attention is .3 or more on average, at no offset in particular
    mixed        all else: diffuse heads, and an offset that depends on content

Source: `bridge.calibration`, `bridge.trust`; classes are ours.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from bridge.calibration import WINDOW, Seen, see, windowed_head
from bridge.errors import BridgeError
from bridge.limits import locality_length
from bridge.prediction import Prediction, predict_placed
from bridge.sources.activations import HeadActivations
from bridge.sources.attention import LayerPositions
from bridge.surface import PlacedHead, sampled_surface
from bridge.trust import LIMIT, Trust, judge
from theory.kernel import Margin, carrier_profile, margin, selected_offset
from theory.sampled_law import SEED

_SINK = 0.5
_STRONG = 0.2
_SHARP = 0.3


@dataclass(frozen=True, eq=False)
class CalibratedReport:
    """One head of any layer.

    `offset` <= 0 has the highest attention by the windowed law at `reference_length`, the sink aside, and
    `share` is that attention with its standard error; `seen` is what the head does inside the text, `kind` its class.
    `prediction` is of the offset that was asked for, or else of the one that the head selects under the model's own
    positions; `before` the same without the change of positions that was asked for.
    """

    layer: int
    head: int
    offset: int
    share: float
    share_error: float
    profile_offset: int
    margin: Margin
    reference_length: int
    prediction: Prediction
    seen: Seen
    kind: str
    trust: Trust
    before: Prediction | None = None
    locality_length: int | None = None

    @property
    def flags(self) -> tuple[str, ...]:
        """Reasons not to trust the prediction."""
        return self.trust.flags


@dataclass(frozen=True)
class Asked:
    """What is asked of every head: lengths in tokens, the one at which the offset is selected, an offset (None:
    the selected one), and positions in place of the model's own."""

    lengths: tuple[int, ...]
    reference_length: int
    offset: int | None = None
    changed: LayerPositions | None = None


def report_head(layer: int, index: int, head: HeadActivations, asked: Asked) -> CalibratedReport:
    """The report of head `index` of a layer.

    Raises BridgeError where windows of text are too short, and where no length holds the offset.
    """
    check_lengths((*asked.lengths, asked.reference_length))
    seen, own = see(head), windowed_head(head)
    placed = own if asked.changed is None else replace(own, positions=asked.changed)
    reference = asked.reference_length
    selected = _selected(placed, reference)
    back = asked.offset
    if back is None:
        back = -(selected if asked.changed is None else _selected(own, reference))
    held = tuple(length for length in asked.lengths if placed.seen(length) > back + 1)
    if not held:
        raise BridgeError(
            f"offset {-back} of head {layer}.{index} lies outside every length of {list(asked.lengths)}, or on the "
            "first token: give a longer one"
        )
    surface = sampled_surface(placed, (*held, reference), SEED + 1)
    at_reference = placed.at(reference).carrier()
    profile = carrier_profile(at_reference, placed.seen(reference))
    profile_offset = selected_offset(profile)
    constant = _short(seen, back)
    before = None
    if asked.changed is not None:
        before = _windowed(predict_placed(own, back, held, sampled_surface(own, held, SEED + 1)), constant)
    return CalibratedReport(
        layer=layer,
        head=index,
        offset=selected,
        share=float(surface[reference].mean[-selected]),
        share_error=float(surface[reference].standard_error[-selected]),
        profile_offset=profile_offset,
        margin=margin(profile, -profile_offset),
        reference_length=reference,
        prediction=_windowed(predict_placed(placed, back, held, surface), constant),
        seen=seen,
        kind=classify(seen),
        trust=judge(head, seen, back, max(held)),
        before=before,
        locality_length=locality_length(placed),
    )


def check_lengths(lengths: Sequence[int]) -> None:
    """Raises BridgeError for a length in tokens that the local window and the sink fill."""
    if min(lengths) <= WINDOW:
        raise BridgeError(
            f"the windowed law takes {WINDOW} keys as they are, and the first one: lengths must be {WINDOW + 1} or "
            f"more, got {min(lengths)}"
        )


def classify(seen: Seen) -> str:
    """The class of a head, of those above."""
    share, swapped = seen.share, float(seen.swapped[-seen.offset])
    if seen.sink >= _SINK:
        return "sink"
    if share >= _STRONG and abs(swapped - share) < LIMIT:
        return "self" if seen.offset == 0 else "positional"
    return "content" if share < _STRONG and seen.peak >= _SHARP else "mixed"


def _selected(head: PlacedHead, length: int) -> int:
    """The offset of highest expected attention, without the farthest: the first token's grows with the length."""
    expected = sampled_surface(head, [length], SEED)[length]
    return selected_offset(expected.mean[:-1])


def _windowed(prediction: Prediction, seen: tuple[float, float] | None) -> Prediction:
    return replace(prediction, law="windowed", seen=seen)


def _short(seen: Seen, back: int) -> tuple[float, float] | None:
    """Attention inside the text at an offset with its error, None where its queries do not all hold it."""
    if back >= len(seen.profile):
        return None
    return float(seen.profile[back]), float(seen.profile_error[back])
