"""Training with the design in mind: what a designed start, or a penalty on the margin, does to extrapolation.

    plain        the reference setup
    start        the best carrier for contexts to 4096 written into the weights before the first step
    penalty      -ln of the mean-profile law's attention at 4096 added to the loss, from the means alone
    both         the start and the penalty
    randomized   learned positions of which each batch takes random rows of 4096, or of 48

At equal steps, all at lengths 8 to 16: no long sequence is ever seen. Randomized positions (Ruoss et al., 2023) are
learned vectors; with rotary ones the offset of the target would be random, too.

Source: ours.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float64

from bridge.compare import Measured
from bridge.designs import ATTENTION, start_means
from bridge.over_heads import executor_of, over_heads
from bridge.paper.target import Bound, CellKey, Preset, Printed, shrink
from bridge.sources.run import head_of_run
from bridge.studies.study import Findings, Place
from bridge.studies.surgery_tables import extreme, mean, means
from bridge.tables import Table
from empirics.means import MarginPenalty
from empirics.observe_tables import observe_by_tables
from empirics.spec import RandomizedPositions, Rotary, RunSpec, run_spec
from empirics.store import Store
from theory.exact_law import exact_law
from theory.kernel import carrier_profile, margin

LENGTH, OFFSET = 4096, 2
_PENALTY = 0.1
TRAINING_SEED = 20_261_130
PLAIN, START, PENALTY, BOTH = "plain", "start", "penalty", "both"
_ROWS = (LENGTH, 48)
_CONTROLS = (PLAIN, f"randomized, {LENGTH} rows")
_LENGTHS = {Preset.PAPER: (16, 48, 512, 2048, LENGTH), Preset.SMOKE: (16, 64)}
_SEQUENCES = {Preset.PAPER: 2048, Preset.SMOKE: 32}


@dataclass(frozen=True, eq=False)
class _Trained:
    """One run observed, NaN where it has no positions for a length; of its carrier, where there is one, margin and
    energy (nats) and what the exact law says."""

    accuracy: Float64[np.ndarray, "length"]
    attention: Float64[np.ndarray, "length"]
    predicted: Float64[np.ndarray, "length"] | None
    margin: float
    energy: float
    loss: float


def specs(seeds: int) -> tuple[RunSpec, ...]:
    """Every run of every way of training."""
    return tuple(spec for several in _ways(seeds).values() for spec in several)


def measure(preset: Preset, place: Place, seeds: int) -> Findings:
    """Every way observed at the same lengths."""
    lengths, count = _LENGTHS[preset], _SEQUENCES[preset]
    ways = {way: shrink(several, preset) for way, several in _ways(seeds).items()}
    jobs = [(place.runs, spec, lengths, count) for several in ways.values() for spec in several]
    with executor_of(place.workers, None) as executor:
        told = iter(list(over_heads(_observe, jobs, executor, place.workers, place.advance)))
    found = {way: [next(told) for _ in several] for way, several in ways.items()}
    measured: dict[CellKey, Measured] = {}
    if LENGTH in lengths:
        for way, several in found.items():
            values = [float(one.accuracy[-1]) for one in several if not np.isnan(one.accuracy[-1])]
            if values:
                side = "greatest" if way in _CONTROLS else "least"
                measured[f"training, {way}", f"{side} accuracy L={LENGTH}"] = extreme(values, side)
    return Findings(measured, (_table(found, lengths, count),), {}, ())


def _ways(seeds: int) -> Mapping[str, tuple[RunSpec, ...]]:
    start, penalty = (
        start_means(run_spec(offset=OFFSET), LENGTH, ATTENTION),
        MarginPenalty(weight=_PENALTY, reach=LENGTH),
    )
    fields: dict[str, dict[str, Any]] = {
        PLAIN: {},
        START: {"start": start},
        PENALTY: {"penalty": penalty},
        BOTH: {"start": start, "penalty": penalty},
    }
    for rows in _ROWS:
        fields[f"randomized, {rows} rows"] = {"encoding": RandomizedPositions(rows=rows)}
    return {
        way: tuple(run_spec(offset=OFFSET, seed=seed, **own) for seed in range(seeds)) for way, own in fields.items()
    }


def _observe(root: Path, spec: RunSpec, lengths: Sequence[int], sequences: int) -> _Trained:
    run = Store(root).load(spec)
    generator = torch.Generator().manual_seed(TRAINING_SEED + spec.seed)
    rows = spec.encoding.rows if isinstance(spec.encoding, RandomizedPositions) else max(lengths)
    held = [length for length in lengths if length <= rows]
    beyond = np.full(len(lengths) - len(held), np.nan)
    seen = observe_by_tables(run.model, held, sequences, generator)
    predicted, height, energy = None, float("nan"), float("nan")
    if isinstance(spec.encoding, Rotary):
        head = head_of_run(run)
        carrier = head.carrier()
        predicted = exact_law(head, spec.offset, lengths, 1e-6)
        height = margin(carrier_profile(carrier, max(lengths)), spec.offset).value
        energy = carrier.energy
    return _Trained(
        accuracy=np.r_[[one.accuracy for one in seen], beyond],
        attention=np.r_[[one.attention[spec.offset] for one in seen], beyond],
        predicted=predicted,
        margin=height,
        energy=energy,
        loss=run.history[-1].loss if run.history else float("nan"),
    )


def _table(found: Mapping[str, Sequence[_Trained]], lengths: Sequence[int], sequences: int) -> Table:
    rows = []
    for way, several in found.items():
        rows.append((way, "accuracy", *means([one.accuracy for one in several])))
        rows.append(("", "attention, observed", *means([one.attention for one in several])))
        laws = [one.predicted for one in several if one.predicted is not None]
        if laws:
            rows.append(("", "attention, exact law", *means(laws)))
            margins, energies = np.array([[one.margin, one.energy] for one in several]).T
            told = f"margin {mean(margins, 3)}, energy {mean(energies, 3)}"
            rows.append(("", f"nats at L={max(lengths)}", told, *[""] * (len(lengths) - 1)))
        losses = np.array([one.loss for one in several])
        rows.append(("", "last training loss (nats)", mean(losses, 5), *[""] * (len(lengths) - 1)))
    seeds = len(next(iter(found.values())))
    notes = (
        f"K={OFFSET}, {seeds} seeds: mean and s.d.; {sequences} sequences a length; steps and batches are equal",
        f"penalty: weight {_PENALTY:g}, reach {LENGTH}; start: energy of the bound for attention {ATTENTION:g} there",
    )
    return Table("training with the design in mind", ("", "", *(f"L={one}" for one in lengths)), tuple(rows), notes)


BARS = (
    *(
        Printed(f"training, {way}", f"least accuracy L={LENGTH}", 0.99, 2, bound=Bound.AT_LEAST)
        for way in (START, PENALTY, BOTH)
    ),
    *(Printed(f"training, {way}", f"greatest accuracy L={LENGTH}", 0.3, 2, bound=Bound.AT_MOST) for way in _CONTROLS),
)
