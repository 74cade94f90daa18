"""What is done to a trained head in the study of surgery, and what one edited head is predicted and seen to do.

    trained           as it is
    sharper           logits times 4: energy without another carrier
    aligned           amplitudes kept, the key's phases turned onto the target
    prototype x1, x4  norms of the means as trained, or twice that; the best carrier for lags to 2047, key's phases 0
    best, equal       the best carrier for lags to 4093 at the head's own energy, the query's phases kept
    best, prescribed  the same at the energy that the bound asks for attention .9 at 4096
    key kept          the same, but with the key's phases kept
    other K           the prescribed edit with the carrier of another K
    random            means of the same norms in random directions

Residuals are kept in all of them. The last two are controls.

Source: ours.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float64, Int

from bridge.designs import ATTENTION
from bridge.sources.run import heads_of_run, readout_of_run
from bridge.surgery import law_and_error, with_carriers, with_temperature
from empirics.observe_tables import observe_by_tables
from empirics.spec import RunSpec
from empirics.store import Store, read_record
from empirics.train import Run
from theory.accuracy import AccuracyLaw, accuracy_law
from theory.design import Design, aligned, design_carrier, energy_bound, energy_for_attention
from theory.head import Carrier, Head

LENGTH = 4096
"""What the prescribed edit is made for, with the attention `bridge.designs.ATTENTION`."""
SHARPER = 4.0
FAR_LAG = 2047
ARMS_SEED, RANDOM_SEED = 20_261_201, 1
OTHER = "other K"
TRAINED, SHARPENED, ALIGNED = "trained", "sharper", "aligned"
PROTOTYPE_1, PROTOTYPE_4 = "prototype x1", "prototype x4"
EQUAL, PRESCRIBED, KEY_KEPT, RANDOM = "best, equal", "best, prescribed", "key kept", "random"


@dataclass(frozen=True)
class Looked:
    """At which lengths (tokens) a head is predicted and observed, on how many sequences each; at how many of the
    lengths, from the first on, its accuracy is predicted; whether the energy that it needs is looked for."""

    lengths: tuple[int, ...]
    sequences: tuple[int, ...]
    accuracies: int = 0
    needed: bool = False


@dataclass(frozen=True, eq=False)
class ArmResult:
    """One run under one arm. Attention is that on `offset` tokens back, which is not the task's where the arm moves it.

    `error` is the standard error of the observation, or the law's own where that is larger (`law_and_error`);
    `selected` are the offsets of highest observed mean attention, `energy` in nats, `needed` the energy that the exact
    law asks for the prescribed attention, where that was looked for; `predicted_accuracy` is at the first lengths.
    """

    arm: str
    spec: RunSpec
    offset: int
    lengths: tuple[int, ...]
    predicted: Float64[np.ndarray, "head length"]
    observed: Float64[np.ndarray, "head length"]
    error: Float64[np.ndarray, "head length"]
    selected: Int[np.ndarray, "head length"]
    accuracy: Float64[np.ndarray, "length"]
    accuracy_error: Float64[np.ndarray, "length"]
    predicted_accuracy: AccuracyLaw | None
    energy: Float64[np.ndarray, "head"]
    needed: Float64[np.ndarray, "head"] | None


def other_offset(offset: int) -> int:
    """The K of the next run, after 5 that of the first."""
    return offset % 5 + 1


def measure_arm(root: Path, spec: RunSpec, arm: str, looked: Looked) -> ArmResult:
    """One stored run under one arm: edited, predicted by the exact law of its edited weights, then observed."""
    store = Store(root)
    run, sha256 = store.load(spec), read_record(store.path(spec)).sha256["weights.safetensors"]
    made = _ARMS[arm](run, sha256)
    offset = other_offset(spec.offset) if arm == OTHER else spec.offset
    heads = heads_of_run(made)
    laws = [law_and_error(head, offset, looked.lengths, looked.sequences) for head in heads]
    law = None
    if looked.accuracies:
        law = accuracy_law(heads[0], readout_of_run(made), spec.offset, looked.lengths[: looked.accuracies])
    # A stream for each run and arm: what arms have in common is no reason that they err together.
    stream = int(np.random.SeedSequence([ARMS_SEED, spec.offset, spec.seed, ARMS.index(arm)]).generate_state(1)[0])
    generator = torch.Generator().manual_seed(stream)
    seen = [
        observe_by_tables(made.model, [length], count, generator)[0]
        for length, count in zip(looked.lengths, looked.sequences, strict=True)
    ]
    return ArmResult(
        arm,
        spec,
        offset,
        looked.lengths,
        np.stack([mean for mean, _ in laws]),
        np.array([[one.by_head[head][offset] for one in seen] for head in range(spec.heads)]),
        np.maximum(
            [[one.error_by_head[head][offset] for one in seen] for head in range(spec.heads)],
            np.stack([error for _, error in laws]),
        ),
        np.array([[one.selected_by_head[head] for one in seen] for head in range(spec.heads)]),
        np.array([one.accuracy for one in seen]),
        np.array([one.accuracy_error for one in seen]),
        law,
        np.array([head.carrier().energy for head in heads]),
        _needed(heads_of_run(run), spec.offset) if looked.needed else None,
    )


def prescribed(head: Head, offset: int) -> tuple[Design, float]:
    """The best carrier for `LENGTH`, and the energy (nats) with which the bound promises `ATTENTION` there."""
    design = design_carrier(head.schedule, offset, LENGTH)
    return design, energy_bound(design.margin, ATTENTION, LENGTH)


def _needed(heads: Sequence[Head], offset: int) -> Float64[np.ndarray, "head"]:
    return np.array([energy_for_attention(head, prescribed(head, offset)[0], ATTENTION) for head in heads])


def _by_head(make: Callable[[Run, Head], Carrier]) -> Callable[[Run, str], Run]:
    """An arm from the carrier that it gives to a head."""

    def arm(run: Run, sha256: str) -> Run:
        return with_carriers(run, sha256, [make(run, head) for head in heads_of_run(run)])

    return arm


def _equal(run: Run, head: Head) -> Carrier:
    own = head.carrier()
    return design_carrier(head.schedule, run.spec.offset, LENGTH).carrier(own.energy, head.logit_scale, own)


def _prototype(factor: float) -> Callable[[Run, Head], Carrier]:
    """m_K along sqrt(p) with phases 0, m_Q along it pre-rotated, each of its own norm as trained times sqrt(factor)."""

    def make(run: Run, head: Head) -> Carrier:
        own, offset = head.carrier(), run.spec.offset
        made = design_carrier(head.schedule, offset, FAR_LAG + offset + 1).carrier(1.0, head.logit_scale, keep="key")
        return _of_norms(head, made.query_mean, made.key_mean, own, np.sqrt(factor))

    return make


def _prescribed(run: Run, head: Head) -> Carrier:
    design, energy = prescribed(head, run.spec.offset)
    return design.carrier(energy, head.logit_scale, head.carrier())


def _other(run: Run, head: Head) -> Carrier:
    design, energy = prescribed(head, other_offset(run.spec.offset))
    return design.carrier(energy, head.logit_scale, head.carrier())


def _key_kept(run: Run, head: Head) -> Carrier:
    design, energy = prescribed(head, run.spec.offset)
    return design.carrier(energy, head.logit_scale, head.carrier(), keep="key")


def _random(run: Run, head: Head) -> Carrier:
    """Means of the norms of the prescribed ones, their directions drawn for each run."""
    rng = np.random.default_rng([RANDOM_SEED, run.spec.offset, run.spec.seed])
    query, key = rng.standard_normal((2, head.schedule.dim))
    return _of_norms(head, query, key, _prescribed(run, head), 1.0)


def _of_norms(
    head: Head,
    query: Float64[np.ndarray, "dim"],
    key: Float64[np.ndarray, "dim"],
    like: Carrier,
    factor: float,
) -> Carrier:
    """Means in these directions, with the norms of those of another carrier times a factor."""
    query = query * (factor * np.linalg.norm(like.query_mean) / np.linalg.norm(query))
    key = key * (factor * np.linalg.norm(like.key_mean) / np.linalg.norm(key))
    return Carrier.from_means(head.schedule, query, key, head.logit_scale)


_ARMS: Mapping[str, Callable[[Run, str], Run]] = {
    TRAINED: lambda run, _: run,
    SHARPENED: lambda run, _: with_temperature(run, SHARPER),
    ALIGNED: _by_head(lambda run, head: aligned(head.carrier(), run.spec.offset)),
    PROTOTYPE_1: _by_head(_prototype(1.0)),
    PROTOTYPE_4: _by_head(_prototype(SHARPER)),
    EQUAL: _by_head(_equal),
    PRESCRIBED: _by_head(_prescribed),
    KEY_KEPT: _by_head(_key_kept),
    OTHER: _by_head(_other),
    RANDOM: _by_head(_random),
}
ARMS = tuple(_ARMS)
