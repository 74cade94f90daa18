"""What a head is by its weights: which offset it looks at, how firmly, and how that dilutes.

The selected offset is the argmax of the exact expected attention at a reference length; the
profile offset is the argmax of phi. They differ where the spread of content, not the mean,
decides.

Source: `theory.dilution` (laws), `theory.kernel` (profile, margin).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from bridge.errors import BridgeError
from bridge.prediction import Prediction, predict
from theory.exact_law import exact_profile
from theory.head import Head
from theory.kernel import Margin, carrier_profile, margin, selected_offset

# Three digits are shown; the fourth is safe.
_RELATIVE_ERROR = 1e-4
_STABLE_SHARE = 0.05


@dataclass(frozen=True, eq=False)
class HeadReport:
    """One head of a layer.

    `offset` <= 0 is the selected offset and `share` its expected attention at
    `reference_length`; `margin` in nats is that of `profile_offset` up to there. `prediction` is
    of the selected offset, at those of the wanted lengths that hold it.
    """

    layer: int
    head: int
    offset: int
    share: float
    profile_offset: int
    margin: Margin
    reference_length: int
    prediction: Prediction
    flags: tuple[str, ...]


def default_lengths(trained_length: int) -> tuple[int, ...]:
    """Powers of two from 16 up to the trained length, and that length itself."""
    powers = (1 << exponent for exponent in range(4, trained_length.bit_length()))
    return tuple(sorted({*powers, trained_length}))


def inspect_head(head: Head, layer: int, index: int, lengths: Sequence[int], reference_length: int) -> HeadReport:
    """The report of head `index` of a layer. Raises BridgeError where no length holds the selected offset."""
    if reference_length < 2:
        raise BridgeError(f"the reference length must be 2 or more, got {reference_length}")
    profile = carrier_profile(head.carrier(), reference_length)
    expected = exact_profile(head, reference_length, _RELATIVE_ERROR)
    offset, profile_offset = selected_offset(expected), selected_offset(profile)
    held = [length for length in lengths if length > -offset]
    if not held:
        raise BridgeError(
            f"head {layer}.{index} selects offset {offset}, which no length of {list(lengths)} holds: give a longer one"
        )
    share = float(expected[-offset])
    return HeadReport(
        layer=layer,
        head=index,
        offset=offset,
        share=share,
        profile_offset=profile_offset,
        margin=margin(profile, -profile_offset),
        reference_length=reference_length,
        prediction=predict_at(head, -offset, held),
        flags=_flags(head, offset, profile_offset, share),
    )


def predict_at(head: Head, offset: int, lengths: Sequence[int]) -> Prediction:
    """A prediction to the three digits that a real vocabulary is worth."""
    return predict(head, offset, lengths, _RELATIVE_ERROR)


def _flags(head: Head, offset: int, profile_offset: int, share: float) -> tuple[str, ...]:
    raised = {
        "offset by profile differs from offset by exact law": profile_offset != offset,
        f"share below {_STABLE_SHARE}: argmax unstable": share < _STABLE_SHARE,
        "no queries or no keys: attention is uniform": not np.any(head.queries) or not np.any(head.keys),
        "uniform token weights": len(head.query_weights) > 1 and np.ptp(head.query_weights) == 0,
    }
    return tuple(flag for flag, is_raised in raised.items() if is_raised)
