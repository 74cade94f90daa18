"""Figure 2: attention by offset and by position at several lengths, rotary and learned positions; K = 2, 3 seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations

import numpy as np
from jaxtyping import Float64
from matplotlib.figure import Figure

from bridge.compare import Measured, over_seeds
from bridge.figures.axes import Series
from bridge.figures.heads import dissociation_figure
from bridge.paper.target import CellKey, Target, learned, rotary
from bridge.tables import Table, number
from empirics.observe import Observation
from empirics.spec import LearnedPositions, run_spec
from empirics.train import Run

OFFSET, SEEDS = 2, 3
DECAY = 1e-2
COORDINATES = ("relative", "absolute")
_ROWS = ("rotary (RoPE)", "learned positions (APE)", f"learned positions, decay {DECAY:g}")
_DRAWN = (12, 16, 24, 32, 48)


def unseen(run: Run) -> tuple[Observation, ...]:
    """What a run did at lengths L > L_max + K, where query and target both stand on untrained positions."""
    return tuple(seen for seen in run.evaluation if seen.length > run.spec.train_lengths[1] + run.spec.offset)


def profile_distance(one: Observation, other: Observation, coordinates: str) -> float:
    """Share of attention that parts two lengths: total variation over the keys that both have, each renormalised.

    In relative coordinates these are the last keys, in absolute ones the first. What longer contexts take from all
    keys alike (dilution) is thereby left out: it is next to 0 where logits depend on that coordinate alone.
    """
    shared = min(one.length, other.length)
    profiles = [_by(coordinates, seen)[:shared] for seen in (one, other)]
    first, second = (profile / profile.sum() for profile in profiles)
    return float(np.abs(first - second).sum() / 2)


def measure(runs: tuple[Run, ...]) -> Mapping[CellKey, Measured]:
    """Nothing: the paper prints no number with this figure. Ours are beside it."""
    return {}


def beside(runs: tuple[Run, ...]) -> tuple[Table, ...]:
    """Of every encoding, in both coordinates: how far unseen lengths lie apart and how far their peak moves."""
    columns = ("positions", *(f"{name}: {what}" for name in COORDINATES for what in ("apart", "peak s.d.")), "at -K")
    rows = []
    for row, group in zip(_ROWS, _groups(runs), strict=True):
        told = [(largest_distance(group, name), peak_spread(group, name)) for name in COORDINATES]
        numbers = [
            _with_spread(measured, digits) for pair in told for measured, digits in zip(pair, (3, 1), strict=True)
        ]
        rows.append((row, *numbers, f"{share_at_target(group):.0%}"))
    notes = (
        f"at unseen lengths L > L_max + K, mean over {SEEDS} seeds +- their s.d.; apart: the largest total variation "
        "of two lengths over the keys that both have, each renormalised; s.d. of the peak over lengths, in tokens",
    )
    return (Table("which coordinate the attention belongs to", columns, tuple(rows), notes),)


def draw(runs: tuple[Run, ...]) -> Figure:
    """Seed 0 of every encoding; above each panel the numbers of that coordinate over all seeds."""
    groups = _groups(runs)
    numbers = [
        (_words(group, "relative") + f", {share_at_target(group):.0%} at -K", _words(group, "absolute"))
        for group in groups
    ]
    columns = [Series(row, group) for row, group in zip(_ROWS, groups, strict=True)]
    return dissociation_figure(columns, _DRAWN, numbers)


def largest_distance(runs: Sequence[Run], coordinates: str) -> Measured:
    """The largest `profile_distance` of two unseen lengths, over seeds."""
    pairs = [combinations(unseen(run), 2) for run in runs]
    return over_seeds([max(profile_distance(*pair, coordinates) for pair in each) for each in pairs])


def peak_spread(runs: Sequence[Run], coordinates: str) -> Measured:
    """Standard deviation over unseen lengths of where the peak stands, in tokens, over seeds."""
    places = [[np.argmax(_by(coordinates, seen)) for seen in unseen(run)] for run in runs]
    return over_seeds([float(np.std(each)) for each in places])


def share_at_target(runs: Sequence[Run]) -> float:
    """Share of seeds and unseen lengths that select -K."""
    return float(np.mean([seen.selected_offset == -seen.offset for run in runs for seen in unseen(run)]))


def _by(coordinates: str, seen: Observation) -> Float64[np.ndarray, "key"]:
    """Mean attention from the query back, or from position 0 on."""
    attention = np.array(seen.attention)
    return attention if coordinates == "relative" else attention[::-1]


def _groups(runs: Sequence[Run]) -> tuple[tuple[Run, ...], ...]:
    return tuple(tuple(runs[first : first + SEEDS]) for first in range(0, len(runs), SEEDS))


def _words(runs: Sequence[Run], name: str) -> str:
    distance, spread = largest_distance(runs, name).value, peak_spread(runs, name).value
    return f"unseen lengths: {distance:.3f} apart, peak moves by {spread:.1f}"


def _with_spread(measured: Measured, decimals: int) -> str:
    return f"{number(measured.value, decimals)} +- {number(measured.spread, decimals)}"


TARGET = Target(
    id="figure-2",
    title="attention by offset and by position at several lengths, K=2, 3 seeds",
    statement="corollary-1",
    specs=rotary(OFFSET, SEEDS)
    + learned(OFFSET, SEEDS)
    + tuple(run_spec(encoding=LearnedPositions(decay=DECAY), offset=OFFSET, seed=seed) for seed in range(SEEDS)),
    printed=(),
    measure=measure,
    draw=draw,
    notes=(
        "rotary: one profile by offset at every length, once what longer contexts take from all keys alike is left out",
        "learned positions, as the paper trains them: the target is missed at every unseen length, but attention does "
        "not collapse by position either. The query's own untrained vector differs from length to length and moves the "
        "peak about within the trained positions; with weight decay these vectors vanish and the caption holds",
        "at trained lengths learned positions are right, so they collapse by offset there and not by position",
    ),
    beside=beside,
)
