"""What a head is by its weights: which offset it looks at, how firmly, and how that dilutes.

The selected offset is the argmax of the expected attention at a reference length; the profile
offset is the argmax of phi. They differ where the spread of content, not the mean, decides. Expected
attention is sampled: one sample selects the offset, another one estimates the attention there.

Source: `theory.sampled_law` (expected attention), `theory.kernel` (profile, margin).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from bridge.errors import BridgeError
from bridge.limits import locality_length
from bridge.prediction import Prediction, predict_placed
from bridge.surface import PlacedHead, Profile, sampled_surface
from theory.kernel import Margin, carrier_profile, margin, selected_offset
from theory.sampled_law import SEED

_STABLE_SHARE = 0.05
_TOLD_APART = 3.0
_REFERENCE = 1024
_LONGEST = 1 << 17


@dataclass(frozen=True, eq=False)
class HeadReport:
    """One head of a layer.

    `offset` <= 0 is the selected offset and `share` its expected attention at `reference_length`,
    with its standard error; `margin` in nats is that of `profile_offset` up to there. `prediction`
    is of the selected offset, at those of the wanted lengths that hold it.
    `locality_length` is that of `bridge.limits`.
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
    flags: tuple[str, ...]
    locality_length: int | None = None


def default_lengths(trained_length: int) -> tuple[int, ...]:
    """16, 128, 1024, ..., each eight times the one before, up to the trained length, and that length itself.

    131072 is the longest: beyond it a length takes many seconds a head, and is for `--lengths` to ask for.
    """
    longest = min(trained_length, _LONGEST)
    powers = (1 << exponent for exponent in range(4, longest.bit_length(), 3))
    return tuple(sorted({*powers, longest}))


def default_reference(trained_length: int, lengths: Sequence[int]) -> int:
    """Where the offset is selected: the longest length asked for, but within the trained one, and 1024 at most."""
    return min(trained_length, _REFERENCE, max(lengths))


def inspect_head(layer: int, index: int, head: PlacedHead, lengths: Sequence[int], reference_length: int) -> HeadReport:
    """The report of head `index` of a layer. Raises BridgeError where no length holds the selected offset."""
    if reference_length < 2:
        raise BridgeError(f"the reference length must be 2 or more, got {reference_length}")
    expected = sampled_surface(head, [reference_length], SEED)[reference_length]
    profile = carrier_profile(head.at(reference_length).carrier(), len(expected.mean))
    offset, profile_offset = selected_offset(expected.mean), selected_offset(profile)
    held = [length for length in lengths if head.seen(length) > -offset]
    if not held:
        raise BridgeError(
            f"head {layer}.{index} selects offset {offset}, which no length of {list(lengths)} holds: give a longer one"
        )
    # The highest of many estimates is too high; one of other samples is not.
    surface = sampled_surface(head, (*held, reference_length), SEED + 1)
    there = surface[reference_length]
    return HeadReport(
        layer=layer,
        head=index,
        offset=offset,
        share=float(there.mean[-offset]),
        share_error=float(there.standard_error[-offset]),
        profile_offset=profile_offset,
        margin=margin(profile, -profile_offset),
        reference_length=reference_length,
        prediction=predict_placed(head, -offset, held, surface),
        flags=_flags(head, expected, float(there.mean[-offset]), profile_offset),
        locality_length=locality_length(head),
    )


def content_flags(head: PlacedHead) -> tuple[str, ...]:
    """What to know of a head's content, whatever offset is asked for."""
    content = head.content
    raised = {
        "no queries or no keys: attention is uniform": not np.any(content.queries) or not np.any(content.keys),
        "uniform token weights": len(content.query_weights) > 1 and np.ptp(content.query_weights) == 0,
    }
    return tuple(flag for flag, is_raised in raised.items() if is_raised)


def _flags(head: PlacedHead, expected: Profile, share: float, profile_offset: int) -> tuple[str, ...]:
    offset = selected_offset(expected.mean)
    gaps = expected.mean[-offset] - expected.mean
    rivals = gaps < _TOLD_APART * np.hypot(expected.standard_error, expected.standard_error[-offset])
    raised = {
        "offset by profile differs from offset by exact law": profile_offset != offset,
        f"share below {_STABLE_SHARE}: argmax unstable": share < _STABLE_SHARE,
        "another offset is as high within the sampling error": rivals.sum() > 1,
    }
    return (*(flag for flag, is_raised in raised.items() if is_raised), *content_flags(head))
