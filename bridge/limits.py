"""How long a context may be before a head of a checkpoint no more prefers near positions.

Position inversion is the chance that a key of the nearer half of a context scores less than the same key would in
the farther half; 1/2 is what it tends to. Locality is gone from the length on after which it stays above .45.

Source: `theory.content_limits` (each query, the whole covariance of keys); the level .45 is ours.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from bridge.surface import PlacedHead
from theory.content_limits import ContentLaw

LEVEL = 0.45
SHORTEST, LONGEST = 16, 1 << 20
"""Tokens between which locality is looked for."""

_CASES = 1 << 11
_DIGITS = 2


def locality_length(head: PlacedHead) -> int | None:
    """Tokens from which on position inversion stays above .45: 16 where it is above at every length, None where it is
    not yet at 2^20.

    Lengths are doubled from 16, then four to the octave, on 2048 queries and distances: the same at every length, so
    that the curve is smooth. A window that slides keeps what locality it has.
    """
    law = ContentLaw.of(head.content)

    def crossing(lengths: list[int]) -> float | None:
        there = (replace(law, schedule=head.at(length).schedule) for length in lengths)
        rates = [at.inversion(head.seen(length), _CASES).value for at, length in zip(there, lengths, strict=True)]
        return last_crossing(lengths, rates)

    found = crossing([SHORTEST << doubling for doubling in range((LONGEST // SHORTEST).bit_length())])
    if found is None or found == SHORTEST:
        return found if found is None else SHORTEST
    octave = 1 << (int(found).bit_length() - 1)
    finer = crossing([round(octave * 2 ** (step / 4)) for step in range(5)])
    return round(found if finer is None else finer)


def last_crossing(lengths: Sequence[int], rates: Sequence[float], level: float = LEVEL) -> float | None:
    """Length from which on rates stay above a level: the shortest where all do, None where the last does not.

    Between lengths, in ascending order, rates are straight in the logarithm of the length.
    """
    below = np.flatnonzero(np.asarray(rates) <= level)
    if len(below) == 0:
        return float(lengths[0])
    last = int(below[-1])
    if last == len(lengths) - 1:
        return None
    share = (level - rates[last]) / (rates[last + 1] - rates[last])
    return float(lengths[last] * (lengths[last + 1] / lengths[last]) ** share)


def locality_text(length: int | None) -> str:
    """For a table: two digits, "none" where there is no locality at any length."""
    if length is None:
        return "beyond 1M"
    if length <= SHORTEST:
        return "none"
    return str(round(length, _DIGITS - len(str(length))))
