"""Limits of single heads of checkpoints: rates counted over their own queries and keys, and by each closed form.

All is an array of rates with standard errors, a row a series, NaN where nothing was asked:

    counted              queries and keys of the head, drawn independently
    three closed forms   `theory.content_limits`, the coarsest first
    another text         counted on another text, with the eps of the first
    normal keys          counted with normal keys of the same mean and covariance, anew in each of 32 repetitions
    NAME, law / counted  the same content under changed positions

The last column is the endless context. eps is 1/64 of the spread of a score over far positions.

Source: ours.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Float64

from bridge.limits import last_crossing
from bridge.sources.attention import LayerPositions
from bridge.surface import PlacedHead
from theory.content_limits import ContentLaw, Limits, Refinement, score_spread
from theory.errors import TheoryError
from theory.head import Head
from theory.sampled_limits import sampled_limits

COUNTED, ANOTHER_TEXT, NORMAL_KEYS = "counted", "another text", "normal keys"
RATES = ("position inversion", "token inversion", "aliasing")
EPS = 1 / 64

_REPETITIONS = 32
_NORMAL_KEYS = 1024
_FEWER = 4
"""Of the cases of a law, one in so many where positions are changed."""

Rates = Float64[np.ndarray, "series length rate 2"]


@dataclass(frozen=True)
class LimitsSize:
    """At what lengths rates are taken, those of them for other texts and normal keys, the one for changed positions,
    and how many blocks are counted and cases averaged."""

    lengths: tuple[int, ...]
    some: tuple[int, ...]
    changed: int
    blocks: int
    cases: int


@dataclass(frozen=True)
class Changed:
    """Positions of a layer in place of its own, by name."""

    name: str
    positions: LayerPositions


@dataclass(frozen=True, eq=False)
class HeadLimits:
    """One head: rates by series, length and kind of rate; `lengths` does not have the endless context, `rates` has."""

    layer: int
    head: int
    lengths: tuple[int, ...]
    series: tuple[str, ...]
    rates: Rates

    def of(self, series: str) -> Float64[np.ndarray, "length rate"]:
        """Values of a series at the lengths."""
        return self.rates[self.series.index(series), :-1, :, 0]

    def error(self, series: str) -> Float64[np.ndarray, "length rate"]:
        """Standard errors of a series at the lengths."""
        return self.rates[self.series.index(series), :-1, :, 1]

    def endless(self, series: str) -> Float64[np.ndarray, "rate"]:
        """Values of a series in the endless context."""
        return self.rates[self.series.index(series), -1, :, 0]

    def locality(self, series: str) -> float | None:
        """Length from which on position inversion stays above .45, between the lengths at hand."""
        return last_crossing(self.lengths, self.of(series)[:, 0].tolist())


def series_of(changes: Sequence[str]) -> tuple[str, ...]:
    """Every series in the order of the rows."""
    changed = (f"{name}, {kind}" for name in changes for kind in ("law", COUNTED))
    return (COUNTED, *Refinement, ANOTHER_TEXT, NORMAL_KEYS, *changed)


def measure_head(
    head: PlacedHead, other: PlacedHead | None, changes: Sequence[Changed], size: LimitsSize, seed: int
) -> Rates:
    """Every series of one head; `other` is the same head on another text. Heads with seeds of their own err apart."""
    series = series_of([change.name for change in changes])
    rates = np.full((len(series), len(size.lengths) + 1, len(RATES), 2), np.nan)
    rows = dict(zip(series, rates, strict=True))
    eps, first, other_seed, changed_seed = EPS * score_spread(head.content), *_seeds(seed, 3)
    laws = {refinement: ContentLaw.of(head.content, refinement) for refinement in Refinement}
    for place, length in enumerate(size.lengths):
        there = head.at(length)
        rows[COUNTED][place] = _pairs(sampled_limits(there, head.seen(length), eps, size.blocks, first))
        for refinement, law in laws.items():
            rows[refinement][place] = _law(law, head, length, eps, size.cases, seed)
        if length in size.some:
            rows[NORMAL_KEYS][place] = _on_normal_keys(there, head.seen(length), eps, size.blocks, seed)
            if other is not None:
                counted = sampled_limits(other.at(length), other.seen(length), eps, size.blocks, other_seed)
                rows[ANOTHER_TEXT][place] = _pairs(counted)
        for change in changes:
            changed = replace(head, positions=change.positions)
            rows[f"{change.name}, law"][place] = _law(
                laws[Refinement.EACH_QUERY], changed, length, eps, size.cases // _FEWER, seed
            )
            if length == size.changed:
                counted = sampled_limits(changed.at(length), changed.seen(length), eps, size.blocks, changed_seed)
                rows[f"{change.name}, {COUNTED}"][place] = _pairs(counted)
    # With a bias, or frequencies that are not known exactly, there is no endless context to speak of.
    with suppress(TheoryError):
        rows[Refinement.EACH_QUERY][-1] = _pairs(laws[Refinement.EACH_QUERY].limits(None, eps, size.cases, seed))
    return rates


def _law(
    law: ContentLaw, head: PlacedHead, length: int, eps: float, cases: int, seed: int
) -> Float64[np.ndarray, "rate 2"]:
    there = replace(law, schedule=head.at(length).schedule)
    return _pairs(there.limits(head.seen(length), eps, cases, seed))


def _on_normal_keys(head: Head, length: int, eps: float, blocks: int, seed: int) -> Float64[np.ndarray, "rate 2"]:
    """Every repetition draws its keys, so that the scatter between them holds all there is."""
    mean = head.key_weights @ head.keys
    covariance = np.cov(head.keys, rowvar=False, aweights=head.key_weights, ddof=0)
    found = []
    for own in _seeds(seed + 500, _REPETITIONS):
        rng = np.random.default_rng(own)
        keys = rng.multivariate_normal(mean, covariance, _NORMAL_KEYS, method="eigh")
        normal = replace(head, keys=keys, key_weights=np.full(_NORMAL_KEYS, 1 / _NORMAL_KEYS))
        counted = sampled_limits(normal, length, eps, max(2, blocks // _REPETITIONS), own + 1)
        found.append(_pairs(counted)[:, 0])
    return np.stack([np.mean(found, axis=0), np.std(found, axis=0, ddof=1) / np.sqrt(_REPETITIONS)], axis=1)


def _seeds(seed: int, count: int) -> list[int]:
    """Seeds that follow from one."""
    return [int(own) for own in np.random.SeedSequence(seed).generate_state(count)]


def _pairs(limits: Limits) -> Float64[np.ndarray, "rate 2"]:
    """Values and standard errors in the order of `RATES`."""
    return np.array([[one.value, one.standard_error] for one in (limits.position, limits.token, limits.aliasing)])
