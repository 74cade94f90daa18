"""Heads of real checkpoints: swap scores and entropy on two disjoint texts, and the purest heads of either kind.

SmolLM2-135M on Python's documentation topics and on the source of its standard library; stories260K on what it samples
from itself, cut into two halves. Every token of a window but the first is swapped with an earlier one; the last third
of the tokens are the queries.

Source: arXiv 2511.11579 for the metric; texts and sizes are ours.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Float64, Int64
from scipy import stats

from bridge.compare import Measured
from bridge.paper.target import Bound, CellKey, Preset, Printed
from bridge.sources.formats import open_model
from bridge.sources.loading import weights_sha256
from bridge.sources.model import Model
from bridge.studies.held import statistic
from bridge.studies.materials import smollm2
from bridge.studies.study import Findings, Place
from bridge.studies.swap_settings import MIXED, PURE, TEMPERATURE
from bridge.swap_scores import score_checkpoint
from bridge.tables import Table
from bridge.text_content import ITSELF, TextOptions, observation_windows
from theory.prompt_swaps import drawn_swaps

SMOLLM2, STORIES = "SmolLM2-135M", "stories260K"
_QUANTITIES = ("s_pos", "s_sym", "entropy")
_SEED, _SHOWN = 20_261_203, 5


@dataclass(frozen=True)
class _Size:
    """Tokens and number of windows a text, layers of SmolLM2 (None: all), sequences that stories260K samples."""

    length: int = 24
    windows: int = 24
    layers: tuple[int, ...] | None = None
    sequences: int = 64


_SIZES = {Preset.PAPER: _Size(), Preset.SMOKE: _Size(16, 1, (1,), 4)}


@dataclass(frozen=True, eq=False)
class OnTexts:
    """The heads of one model on two texts: means over windows and queries of s_pos, s_sym and entropy (nats)."""

    name: str
    texts: tuple[str, str]
    scores: Float64[np.ndarray, "text 3 layer head"]

    @property
    def mean(self) -> Float64[np.ndarray, "3 layer head"]:
        """Over both texts."""
        return self.scores.mean(axis=0)


def measure(preset: Preset, place: Place) -> Findings:
    """Every model that is there, at the size of a preset."""
    size, absent = _SIZES[preset], []
    found: list[OnTexts] = []
    what: list[tuple[str, ...]] = []
    path = smollm2(place.models)
    if isinstance(path, str):
        absent.append(path)
    else:
        found.append(_smollm2(path, size, place, what))
    small = None if place.models is None else place.models / "stories260K.bin"
    if small is None or not small.is_file():
        absent.append(f"{STORIES} is not here: give --models FOLDER with stories260K.bin")
    else:
        found.append(_stories(small, size, place, what))
    measured: dict[CellKey, Measured] = {}
    for one in found:
        for quantity, (first, second) in zip(_QUANTITIES, np.moveaxis(one.scores, 1, 0), strict=True):
            measured[one.name, f"{quantity}: rank correlation of two texts"] = statistic(
                _rank_correlation, first.ravel(), second.ravel()
            )
    if not found:
        return Findings({}, (), {}, tuple(absent))
    run = Table("heads of checkpoints: what was run", ("model", "sha256 of its weights", "windows"), tuple(what))
    from bridge.figures.heads_study import checkpoints_figure

    tables = (run, _counts_table(found), *(_purest_table(one) for one in found))
    return Findings(measured, tables, {"checkpoints": checkpoints_figure(found)}, tuple(absent))


def _smollm2(path: Path, size: _Size, place: Place, what: list[tuple[str, ...]]) -> OnTexts:
    model, options = open_model(path), TextOptions(cache=place.cache)
    windows = {
        text: observation_windows(path, model, options, text, size.length, size.windows)
        for text in ("topics", "source")
    }
    what += [(SMOLLM2, weights_sha256(model), own.provenance) for own in windows.values()]
    return _scored(SMOLLM2, path, {text: own.tokens for text, own in windows.items()}, size, size.layers, place)


def _stories(path: Path, size: _Size, place: Place, what: list[tuple[str, ...]]) -> OnTexts:
    model: Model = open_model(path)
    options = TextOptions(cache=place.cache, sequences=size.sequences)
    windows = observation_windows(path, model, options, ITSELF, size.length, 2 * size.windows)
    what.append((STORIES, weights_sha256(model), windows.provenance))
    halves = {"first half": windows.tokens[: size.windows], "second half": windows.tokens[size.windows :]}
    return _scored(STORIES, path, halves, size, None, place)


def _scored(
    name: str,
    path: Path,
    texts: Mapping[str, Int64[np.ndarray, "window position"]],
    size: _Size,
    layers: tuple[int, ...] | None,
    place: Place,
) -> OnTexts:
    swaps = drawn_swaps(size.length, 1, np.random.default_rng(_SEED))
    queries = range(size.length - size.length // 3, size.length)
    first, second = (
        score_checkpoint(path, tokens, swaps, queries, TEMPERATURE, place.cache, layers, place.advance).over_prompts()
        for tokens in texts.values()
    )
    one, other = texts
    return OnTexts(name, (one, other), np.stack([first, second]))


def _rank_correlation(a: Float64[np.ndarray, "head"], b: Float64[np.ndarray, "head"]) -> float:
    """Spearman's rho."""
    return float(stats.spearmanr(a, b).statistic)


def _counts_table(found: list[OnTexts]) -> Table:
    rows = []
    for one in found:
        positional, symbolic, entropy = one.mean
        pure = ((positional >= PURE) & (symbolic <= MIXED), (symbolic >= PURE) & (positional <= MIXED))
        rows.append(
            (
                one.name,
                str(entropy.size),
                *(str(int(kind.sum())) for kind in pure),
                *(f"{np.median(values):.2f}" for values in one.mean),
            )
        )
    columns = ("model", "heads", "positional", "symbolic", *(f"median {quantity}" for quantity in _QUANTITIES))
    notes = (
        f"positional: s_pos at least {PURE:g} and s_sym at most {MIXED:g}; symbolic the other way round; temperature "
        f"{TEMPERATURE:g}; means over both texts",
        "a head that rests on the first token of its prompt, whatever that is, counts as positional",
    )
    return Table("heads of checkpoints by kind", columns, tuple(rows), notes)


def _purest_table(one: OnTexts) -> Table:
    """Of either kind the heads with the largest difference of scores over both texts."""
    lead = one.mean[0] - one.mean[1]
    order = np.argsort(lead, axis=None)
    rows = []
    for kind, chosen in (("positional", order[::-1][:_SHOWN]), ("symbolic", order[:_SHOWN])):
        for layer, head in zip(*np.unravel_index(chosen, lead.shape), strict=True):
            values = one.scores[:, :, layer, head]
            rows.append((kind, f"{layer}.{head}", *(f"{a:.3f}, {b:.3f}" for a, b in values.T)))
    columns = ("most", "head", *_QUANTITIES)
    notes = (f"layer.head, of the layers that were run; on {one.texts[0]}, on {one.texts[1]}",)
    return Table(f"{one.name}: the purest heads", columns, tuple(rows), notes)


BARS = tuple(
    Printed(name, f"{quantity}: rank correlation of two texts", 0.9, 2, bound=Bound.AT_LEAST)
    for name in (SMOLLM2, STORIES)
    for quantity in _QUANTITIES
)
