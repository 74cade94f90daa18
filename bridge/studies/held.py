"""Heads of a checkpoint held against what they do: calibrated on one text, observed on others, nothing fitted.

Source: `bridge.calibrated` (reports), `bridge.observation` (what heads do).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from jaxtyping import Bool, Float64

from bridge.calibrated import Asked, CalibratedReport, report_head
from bridge.calibration import windowed_head
from bridge.compare import Measured
from bridge.observation import Observed, observe_checkpoint
from bridge.over_heads import executor_of, over_heads
from bridge.prediction import mean_profile_at
from bridge.sources.activations import HeadActivations
from bridge.sources.attention import LayerPositions
from bridge.sources.change import RotaryChange
from bridge.sources.texts import Windows
from bridge.studies.study import Place
from bridge.surface import sampled_surface
from bridge.text_content import TextContent

OFFSETS = 64
"""Offsets that are observed: a head that looks further back is left out."""

BOOTSTRAP_SEED = 20_261_130
_RESAMPLES = 1000


@dataclass(frozen=True, eq=False)
class Held:
    """One head: its report, and mean attention observed at the offset of the report at the same lengths, with its
    standard error."""

    report: CalibratedReport
    observed: Float64[np.ndarray, "length"]
    error: Float64[np.ndarray, "length"]


@dataclass(frozen=True, eq=False)
class Heads:
    """Heads of one model at the same lengths, an array a quantity."""

    held: tuple[Held, ...]

    @property
    def lengths(self) -> tuple[int, ...]:
        return self.held[0].report.prediction.lengths

    @property
    def observed(self) -> Float64[np.ndarray, "head length"]:
        return np.array([one.observed for one in self.held])

    @property
    def laws(self) -> Mapping[str, Float64[np.ndarray, "head length"]]:
        """Windowed law, constant baseline and mean-profile law."""
        predictions = [one.report.prediction for one in self.held]
        return {
            "windowed": np.array([prediction.exact for prediction in predictions]),
            "constant": np.array([prediction.constant for prediction in predictions]),
            "mean profile": np.array([prediction.mean_profile for prediction in predictions]),
        }

    @property
    def flagged(self) -> Bool[np.ndarray, "head"]:
        return np.array([bool(one.report.trust.flags) for one in self.held], dtype=bool)

    def where(self, chosen: Bool[np.ndarray, "head"]) -> Heads:
        """Some of the heads."""
        return Heads(tuple(one for one, is_chosen in zip(self.held, chosen, strict=True) if is_chosen))

    def above(self, share: float) -> Heads:
        """Those with more attention than that observed at their offset, at the longest length."""
        return self.where(self.observed[:, -1] > share)

    def errors(self, law: str) -> Float64[np.ndarray, "head length"]:
        """Predicted less observed."""
        return self.laws[law] - self.observed

    def log_ratio(self, values: Float64[np.ndarray, "head length"]) -> Float64[np.ndarray, "head"]:
        """ln of attention at the longest length over that at the shortest."""
        return np.log(values[:, -1] / values[:, 0])


@dataclass(frozen=True, eq=False)
class Change:
    """Attention of heads at one length under the model's own positions and under changed ones, predicted from the
    same calibration and observed; `mean_profile` is that law's prediction. The offset is the head's own one."""

    name: str
    heads: Heads
    before: Float64[np.ndarray, "head"]
    after: Float64[np.ndarray, "head"]
    mean_profile_change: Float64[np.ndarray, "head"]
    observed_before: Float64[np.ndarray, "head"]
    observed_after: Float64[np.ndarray, "head"]
    offsets_right: float

    @property
    def predicted(self) -> Float64[np.ndarray, "head"]:
        return self.after - self.before

    @property
    def observed(self) -> Float64[np.ndarray, "head"]:
        return self.observed_after - self.observed_before


def reports(content: TextContent, lengths: Sequence[int], reference: int, place: Place) -> list[CalibratedReport]:
    """The report of every head of a model."""
    asked = Asked(tuple(lengths), reference)
    heads = ((layer, index, head, asked) for layer, index, head in content.heads())
    with executor_of(place.workers, None) as executor:
        return list(over_heads(report_head, heads, executor, place.workers, place.advance))


def observations(
    path: Path,
    jobs: Mapping[str, tuple[RotaryChange, Windows, tuple[int, ...]]],
    layers: Sequence[int],
    place: Place,
) -> dict[str, tuple[Observed, ...]]:
    """Every head under a change on windows at lengths, job by job; each worker runs a model of its own."""
    work = (
        (path, change, windows, list(layers), list(lengths), OFFSETS, place.cache)
        for change, windows, lengths in jobs.values()
    )
    with executor_of(min(place.workers, len(jobs)), None) as executor:
        found = over_heads(observe_checkpoint, work, executor, place.workers, place.advance)
        return dict(zip(jobs, found, strict=True))


def hold(found: Sequence[CalibratedReport], kinds: Sequence[tuple[Observed, ...]]) -> Heads:
    """Reports beside the mean over kinds of text, each kind counted alike; heads whose offset was not observed, or that
    some length does not hold, are left out."""
    seen = _by_head(kinds)
    held = []
    for report in found:
        own = [kind[report.layer, report.head] for kind in seen]
        back, lengths = report.prediction.offset, report.prediction.lengths
        if back >= OFFSETS or lengths != own[0].lengths:
            continue
        mean = np.mean([one.mean for one in own], axis=0)
        error = np.sqrt(np.square([one.standard_error for one in own]).sum(axis=0)) / len(own)
        held.append(Held(report, mean[:, back], error[:, back]))
    return Heads(tuple(held))


def offsets_right(
    found: Sequence[CalibratedReport], kinds: Sequence[tuple[Observed, ...]], share: float
) -> Bool[np.ndarray, "head"]:
    """Whether the law selects the observed offset at the longest length, for every head that is observed to put more
    than a share there, wherever the law looks."""
    seen = _by_head(kinds)
    right = []
    for report in found:
        mean = np.mean([kind[report.layer, report.head].mean[-1] for kind in seen], axis=0)
        highest = int(np.nanargmax(mean))
        if mean[highest] > share:
            right.append(report.offset == -highest)
    return np.array(right, dtype=bool)


def change_of(
    name: str,
    heads: Heads,
    content: TextContent,
    positions: Sequence[LayerPositions],
    observed: Sequence[tuple[Observed, ...]],
    place: Place,
) -> Change:
    """Heads under changed positions at the longest length: frozen calibration, new frequencies."""
    length = heads.lengths[-1]
    places = {(one.report.layer, one.report.head): one for one in heads.held}
    work = (
        (head, places[layer, index].report.prediction.offset, positions[layer], length)
        for layer, index, head in content.heads()
        if (layer, index) in places
    )
    with executor_of(place.workers, None) as executor:
        told = list(over_heads(_changed, work, executor, place.workers, place.advance))
    after, profile_after, offsets = (np.array(column) for column in zip(*told, strict=True))
    kinds = _by_head(observed)
    rows = [np.mean([kind[key].mean[-1] for kind in kinds], axis=0) for key in places]
    backs = [one.report.prediction.offset for one in heads.held]
    highest = np.array([int(np.nanargmax(row)) for row in rows])
    return Change(
        name,
        heads,
        heads.laws["windowed"][:, -1],
        after,
        profile_after - heads.laws["mean profile"][:, -1],
        heads.observed[:, -1],
        np.array([row[back] for row, back in zip(rows, backs, strict=True)]),
        float((offsets == highest).mean()),
    )


def _by_head(kinds: Sequence[tuple[Observed, ...]]) -> list[dict[tuple[int, int], Observed]]:
    """Each kind of text by layer and head."""
    return [{(one.layer, one.head): one for one in kind} for kind in kinds]


def _changed(head: HeadActivations, back: int, positions: LayerPositions, length: int) -> tuple[float, float, int]:
    """Windowed and mean-profile law at an offset under changed positions, and the highest near offset of the former."""
    placed = replace(windowed_head(head), positions=positions)
    expected = sampled_surface(placed, [length])[length].mean
    return float(expected[back]), mean_profile_at(placed, back, length), int(expected[:OFFSETS].argmax())


def statistic(of: Callable[..., float], *columns: Float64[np.ndarray, "head"]) -> Measured:
    """A number over heads with its standard error, by resampling heads."""
    rng = np.random.default_rng(BOOTSTRAP_SEED)
    count = len(columns[0])
    drawn = rng.integers(0, count, (_RESAMPLES, count))
    error = float(np.std([of(*(column[rows] for column in columns)) for rows in drawn], ddof=1))
    return Measured(float(of(*columns)), error, error)


def correlation(a: Float64[np.ndarray, "head"], b: Float64[np.ndarray, "head"]) -> float:
    """Pearson's r."""
    return float(np.corrcoef(a, b)[0, 1])


def mean_absolute(errors: Float64[np.ndarray, "head"]) -> float:
    """Mean of the sizes."""
    return float(np.abs(errors).mean())


def median_absolute(errors: Float64[np.ndarray, "head"]) -> float:
    """Median of the sizes."""
    return float(np.median(np.abs(errors)))


def high_absolute(errors: Float64[np.ndarray, "head"]) -> float:
    """The 90th percentile of the sizes."""
    return float(np.quantile(np.abs(errors), 0.9))
