"""When not to trust the windowed law for a head: what its calibration text alone says of that.

Differences in mean attention at the offset in question:

    drift         calibrated on the first half of the windows less on the second, at the length asked for
    consistency   the law less what is seen inside the windows, at their own length
    retrieval     far keys of another document at the same positions less the text's own, inside the windows
    dependence    the windowed law less the law with independent keys, at the length asked for

Consistency compares at one length, the mean one of the queries seen: a head whose attention swings with the length
gets some of it from that alone. Drift says that keys or queries change along the text; consistency that the law
misses what it was calibrated on; retrieval that the head looks for content, which far keys drawn at random do not
hold. A share below .05 leaves the offset undecided. Dependence says nothing against the windowed law: it says that
the laws with independent keys, mean-profile law included, do not serve this head.

Source: ours; thresholds were fixed on one model (SmolLM2).
"""

from __future__ import annotations

from dataclasses import dataclass

from bridge.calibration import POOL_FROM, Seen, independent_head, windowed_head
from bridge.sources.activations import HeadActivations
from bridge.surface import PlacedHead, sampled_surface

LIMIT = 0.02
"""From this difference in mean attention on a flag is raised."""

LEAST_SHARE = 0.05
"""Mean attention at the offset, inside the windows: below it the offset is not told apart."""


@dataclass(frozen=True)
class Trust:
    """The differences above at one offset, and `length`, the one asked for.

    Those that the laws are needed for are None where the share is below the least.
    """

    length: int
    share: float
    retrieval: float
    consistency: float | None = None
    drift: float | None = None
    dependence: float | None = None

    @property
    def flags(self) -> tuple[str, ...]:
        """Reasons not to trust the windowed law for this head, none where there is none."""
        raised = {
            f"drift: calibrated on the two halves of the text the law differs by {LIMIT} or more": self.drift,
            f"self-consistency: inside the text the law is off by {LIMIT} or more": self.consistency,
            f"content retrieval: with another document's far keys attention changes by {LIMIT} or more": self.retrieval,
        }
        found = [flag for flag, difference in raised.items() if difference is not None and abs(difference) >= LIMIT]
        low = f"share below {LEAST_SHARE}: offset undecided"
        return (*found, *((low,) if self.share < LEAST_SHARE else ()))

    @property
    def notes(self) -> tuple[str, ...]:
        """What to know beside the flags."""
        depends = self.dependence is not None and abs(self.dependence) >= LIMIT
        return ("content dependence: laws with independent keys do not serve this head",) if depends else ()


def judge(head: HeadActivations, seen: Seen, offset: int, length: int) -> Trust:
    """What the calibration says of a prediction `offset` tokens back at a length, under the positions that
    `head` has.

    Raises BridgeError where windows are too short.
    """
    inside = offset < len(seen.profile)
    share = float(seen.profile[offset]) if inside else 0.0
    retrieval = float(seen.swapped[offset]) - share if inside else 0.0
    if share < LEAST_SHARE:
        return Trust(length, share, retrieval)
    # In a short window few queries of its first half have a pool behind them: a quarter of all are enough.
    half = max(head.length // 2, POOL_FROM + (head.length - POOL_FROM) // 4)
    whole = windowed_head(head)
    at = _attention(whole, offset, seen.length, length)
    early = _attention(windowed_head(head, POOL_FROM, half), offset, length)
    late = _attention(windowed_head(head, half), offset, length)
    independent = _attention(independent_head(head), offset, length)
    return Trust(length, share, retrieval, at[0] - share, early[0] - late[0], at[1] - independent[0])


def _attention(head: PlacedHead, offset: int, *lengths: int) -> list[float]:
    surface = sampled_surface(head, lengths)
    return [float(surface[length].mean[offset]) for length in lengths]
