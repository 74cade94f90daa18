"""A head under every arm of its surgery: predicted from the calibration, observed on other text.

Source: `bridge.sources.edit` (edits), `bridge.calibration` (the windowed law's head), `bridge.observation` (queries).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from jaxtyping import Float64

from bridge.calibrated import CalibratedReport
from bridge.calibration import POOL_FROM, windowed_head
from bridge.observation import asking, profile_at_the_end
from bridge.sources.activations import LayerActivations, capture
from bridge.sources.edit import (
    MeanEdit,
    edited_maps,
    layer_inputs,
    mean_direction,
    share_explained,
    steadiest_direction,
)
from bridge.sources.texts import Windows
from bridge.studies.held import OFFSETS
from bridge.studies.real_surgery_arms import BOTH, QUERYS_PHASES, WANTED, Arm, arms_of
from bridge.studies.real_surgery_tables import Outcome, Sibling, Surgery
from bridge.surface import sampled_surface

LEAST_SQUARES = "least squares"
_DIRECTIONS = {LEAST_SQUARES: steadiest_direction, "mean input": mean_direction}


Set = tuple[Windows, tuple[int, ...]]
"""Windows of a text, and the lengths at which heads are observed on them."""
Seen = tuple[LayerActivations, tuple[int, ...]]
"""The same as activations of a layer."""


def operate(
    path: Path, calibrated: Windows, sets: Mapping[str, Set], rule: str, report: CalibratedReport, cache: Path
) -> Surgery:
    """Everything but the loss: the arms of a head predicted from the calibration and observed on sets of windows."""
    own = capture(path, calibrated, [report.layer], cache).layer(report.layer)
    seen = {
        text: (capture(path, windows, [report.layer], cache).layer(report.layer), lengths)
        for text, (windows, lengths) in sets.items()
    }
    inputs = {"calibration": layer_inputs(own, POOL_FROM)}
    inputs |= {text: layer_inputs(layer, POOL_FROM) for text, (layer, _) in seen.items()}
    directions = {name: of(inputs["calibration"]) for name, of in _DIRECTIONS.items()}
    arms = arms_of(report, own.head(report.head), directions[LEAST_SQUARES])
    return Surgery(
        report=report,
        rule=rule,
        outcomes=tuple(follow(own, list(seen.values()), arm, report.head) for arm in arms),
        shares={(name, text): share_explained(e, x) for name, e in directions.items() for text, x in inputs.items()},
        siblings=_siblings(list(seen.values()), arms, report.head),
        losses={},
    )


def follow(own: LayerActivations, seen: Sequence[Seen], arm: Arm, head: int) -> Outcome:
    """An arm predicted from the activations of the calibration and observed on others, each set counted alike."""
    found: dict[int, list[np.ndarray]] = {}
    for layer, lengths in seen:
        for length, profiles in zip(lengths, attention(layer, lengths, head, arm.edit), strict=True):
            found.setdefault(length, []).append(profiles)
    surface = sampled_surface(windowed_head(_with(own, arm.edit).head(head)), tuple(found))
    means = {length: np.mean([kind.mean(axis=0) for kind in kinds], axis=0) for length, kinds in found.items()}
    squares = [[kind[:, arm.offset].var(ddof=1) / len(kind) for kind in kinds] for kinds in found.values()]
    return Outcome(
        arm=arm,
        lengths=tuple(found),
        predicted=np.array([surface[length].mean[arm.offset] for length in found]),
        predicted_error=np.array([surface[length].standard_error[arm.offset] for length in found]),
        observed=np.array([mean[arm.offset] for mean in means.values()]),
        error=np.array([np.sqrt(sum(kinds)) / len(kinds) for kinds in squares]),
        selected=tuple(-int(mean.argmax()) for mean in means.values()),
    )


def attention(
    layer: LayerActivations, lengths: Sequence[int], head: int, edit: MeanEdit | None
) -> Float64[np.ndarray, "length window offset"]:
    """Mean attention of a head by offset in each window, as `bridge.observation` has it, with an edit of the layer."""
    offsets = min(OFFSETS, asking(min(lengths)).start)
    profiles = np.empty((len(lengths), len(layer.streams), offsets))
    for window, stream in enumerate(layer.streams):
        whole = _with(replace(layer, streams=stream[None]), edit).head(head)
        for row, length in enumerate(lengths):
            profiles[row, window] = profile_at_the_end(whole.first(length), offsets)
    return profiles


def _with(layer: LayerActivations, edit: MeanEdit | None) -> LayerActivations:
    return layer if edit is None else replace(layer, maps=edited_maps(layer.maps, edit))


def _siblings(seen: Sequence[Seen], arms: Sequence[Arm], head: int) -> tuple[Sibling, ...]:
    """The heads that read the same keys, at the last length of the first set, over the sets that have it."""
    group, longest = seen[0][0].maps.group, seen[0][1][-1:]
    layers = [layer for layer, lengths in seen if lengths[-1:] == longest]

    def profile(other: int, edit: MeanEdit | None) -> Float64[np.ndarray, "offset"]:
        return np.mean([attention(layer, longest, other, edit)[0].mean(axis=0) for layer in layers], axis=0)

    siblings = []
    for other in range(head // group * group, (head // group + 1) * group):
        if other == head:
            continue
        before = profile(other, None)
        at = int(before.argmax())
        moving = [arm for arm in arms if arm.name in (BOTH, BOTH + WANTED, QUERYS_PHASES)]
        after = {arm.name: float(profile(other, arm.edit)[at]) for arm in moving}
        siblings.append(Sibling(other, -at, float(before[at]), after))
    return tuple(siblings)
