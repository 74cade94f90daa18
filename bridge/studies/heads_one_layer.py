"""Trained one-layer heads under swaps: a rotary head that looks K back is positional, one without positions symbolic.

The rotary runs are the reference setup, K = 1..5. A head without positions sees the tokens alone, and cannot look K
back; it stands beside them as the control that swap scores tell apart.

Source: ours; reference setup of arXiv 2607.18759, section 5.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bridge.compare import Measured, over_seeds
from bridge.paper.target import Bound, CellKey, Preset, Printed, rotary, shrink
from bridge.run_swaps import score_head
from bridge.sources.run import head_of_run
from bridge.studies.study import Findings, Place
from bridge.studies.swap_settings import TEMPERATURE
from bridge.tables import Table
from empirics.spec import NoPositions, RunSpec, run_spec
from empirics.store import Store
from theory.prompt_swaps import all_swaps

_SEED = 20_261_204
_ROTARY, _CONTROL = "rotary heads, K=1..5, L=16", "heads without positions, L=16"


@dataclass(frozen=True)
class _Size:
    offsets: tuple[int, ...]
    seeds: int
    lengths: tuple[int, ...]
    prompts: int


_SIZES = {Preset.PAPER: _Size((1, 2, 3, 4, 5), 3, (16, 48), 16), Preset.SMOKE: _Size((2,), 1, (16,), 2)}


def specs(preset: Preset) -> tuple[RunSpec, ...]:
    """The rotary runs, and one without positions a seed."""
    size = _SIZES[preset]
    return shrink((*_rotary(size), *_without(size)), preset)


def measure(preset: Preset, place: Place) -> Findings:
    """Scores of every head on random prompts, at the trained length and beyond."""
    size, store = _SIZES[preset], Store(place.runs)
    rows: list[tuple[str, ...]] = []
    measured: dict[CellKey, Measured] = {}
    groups = {f"rotary, K={offset}": shrink(rotary(offset, size.seeds), preset) for offset in size.offsets}
    groups["no positions, K=2"] = shrink(_without(size), preset)
    scores: dict[tuple[str, int], np.ndarray] = {}
    for name, group in groups.items():
        for length in size.lengths:
            found = np.array([_scores(store, spec, length, size.prompts) for spec in group])
            scores[name, length] = found
            spread = found.std(axis=0, ddof=min(1, len(found) - 1))
            told = (f"{mean:.3f} +- {sd:.3f}" for mean, sd in zip(found.mean(axis=0), spread, strict=True))
            rows.append((name, str(length), *told))
        place.advance(1)
    shortest = size.lengths[0]
    positional = [float(one) for offset in size.offsets for one in scores[f"rotary, K={offset}", shortest][:, 0]]
    symbolic = [float(one) for one in scores["no positions, K=2", shortest][:, 1]]
    spread = over_seeds(positional).spread
    measured[_ROTARY, "least s_pos"] = Measured(min(positional), spread, 0.0)
    measured[_CONTROL, "least s_sym"] = Measured(min(symbolic), None, 0.0)
    columns = ("head", "L", "s_pos", "s_sym", "entropy (nats)")
    notes = (f"{size.prompts} random prompts, all swaps of two tokens, temperature {TEMPERATURE:g}; +-: over seeds",)
    return Findings(measured, (Table("one-layer heads under swaps", columns, tuple(rows), notes),), {}, ())


def _rotary(size: _Size) -> tuple[RunSpec, ...]:
    return tuple(spec for offset in size.offsets for spec in rotary(offset, size.seeds))


def _without(size: _Size) -> tuple[RunSpec, ...]:
    return tuple(run_spec(encoding=NoPositions(), offset=2, seed=seed) for seed in range(size.seeds))


def _scores(store: Store, spec: RunSpec, length: int, prompts: int) -> tuple[float, float, float]:
    """Means over prompts."""
    head, rng = head_of_run(store.load(spec)), np.random.default_rng(_SEED)
    told = []
    for tokens in rng.integers(0, spec.vocabulary, (prompts, length)):
        one = score_head(head, tokens, all_swaps(length).changing(tokens), TEMPERATURE)
        told.append((one.positional, one.symbolic, one.entropy))
    positional, symbolic, entropy = np.mean(told, axis=0)
    return float(positional), float(symbolic), float(entropy)


BARS = (
    Printed(_ROTARY, "least s_pos", 0.9, 2, bound=Bound.AT_LEAST),
    Printed(_CONTROL, "least s_sym", 0.999, 3, bound=Bound.AT_LEAST),
)
