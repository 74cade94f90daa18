"""Random distances in a context, and the angles that they turn a key by.

In a context of M tokens a distance m is uniform on a range of whole numbers within 0..M-1. In an endless one
only the angles m theta mod 2 pi are left, which are uniform on the closure of the rotary orbit (Weyl): a
circle for each class of frequencies that are rational multiples of one another, and a finite group.

Source: `theory.incommensurability` (the closure); its use here is ours.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Complex128, Int64

from theory.errors import TheoryError
from theory.incommensurability import orbit_closure
from theory.schedule import RotarySchedule


@dataclass(frozen=True, eq=False)
class Draws:
    """Distances in tokens, None in an endless context, and e^(i m theta) of every pair."""

    distances: Int64[np.ndarray, "draw"] | None
    turns: Complex128[np.ndarray, "draw pair"]


def turns_at(schedule: RotarySchedule, distances: Int64[np.ndarray, "draw"]) -> Draws:
    """The angles at given distances."""
    return Draws(distances, np.exp(1j * np.multiply.outer(distances, schedule.frequencies)))


def distances_between(first: int, stop: int, count: int, rng: np.random.Generator) -> Int64[np.ndarray, "draw"]:
    """Independent distances, uniform on first..stop-1; one seed gives nearly proportional ones at every length."""
    return first + np.floor(rng.random(count) * (stop - first)).astype(np.int64)


def endless(schedule: RotarySchedule, count: int, rng: np.random.Generator) -> Draws:
    """Independent angles of an endless context. Raises TheoryError where the exact frequencies are not known."""
    closure = orbit_closure(schedule)
    angles = np.zeros((count, schedule.pairs))
    for circle in closure.circles:
        angles[:, list(circle.pairs)] = np.multiply.outer(2 * np.pi * rng.random(count), circle.multiples)
    if closure.finite:
        if closure.period >= 1 << 53:
            raise TheoryError(f"the frequencies come back after {closure.period} positions only: give a length instead")
        steps = rng.integers(0, closure.period, count)
        whole = np.array([[int(step) * a % closure.period for a in closure.residues] for step in steps])
        angles[:, list(closure.finite)] = 2 * np.pi * whole / closure.period
    return Draws(None, np.exp(1j * angles))
