"""The limits of rotary scores on real heads: inversion and aliasing, counted and by closed forms.

Heads of SmolLM2-135M and of stories260K: those of layer 0 over the tokens of a text, those of other layers over
activations. Counted is over a head's own queries and keys, drawn independently, at distances within the context;
the closed forms are those of `theory.content_limits`. Bars were fixed on the layer 0 of stories260K, before SmolLM2 and
every other layer were measured.

What the paper's setting is beyond its abstract is not known: context lengths, eps, texts, heads and changes are ours.

Source: ours, for arXiv 2605.15514.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bridge.calibration import windowed_head
from bridge.compare import Measured, Verdict
from bridge.content import ContentOptions, read_content
from bridge.figures.limits import changes_figure, errors_figure, lengths_figure
from bridge.over_heads import executor_of, over_heads
from bridge.paper.target import Bound, CellKey, Preset, Printed
from bridge.sources.activations import capture
from bridge.sources.cache import keep, kept
from bridge.sources.change import RotaryChange
from bridge.sources.formats import open_model
from bridge.sources.sampling import SEQUENCES
from bridge.studies.limits_heads import (
    Changed,
    HeadLimits,
    LimitsSize,
    measure_head,
    series_of,
)
from bridge.studies.limits_tables import (
    changes_table,
    endless_table,
    errors_table,
    heads_table,
    lengths_table,
    numbers,
)
from bridge.studies.materials import smollm2
from bridge.studies.study import Findings, Place, Study
from bridge.surface import PlacedHead
from bridge.tables import Table
from bridge.text_content import ITSELF, TextOptions, observation_windows, read_text_content

SMOLLM2, STORIES = "SmolLM2-135M", "stories260K"
_FORMAT = 1
"""Part of every name of what is kept: raise it when a series comes to mean something else."""

_LENGTHS = (100, 1_000, 10_000, 30_000, 100_000, 300_000, 1_000_000)
_SIZES = {
    Preset.PAPER: LimitsSize(_LENGTHS, (100, 1_000, 10_000), 10_000, 128, 1 << 13),
    Preset.SMOKE: LimitsSize((100, 1_000, 10_000), (100,), 1_000, 32, 1 << 11),
}


@dataclass(frozen=True)
class _Source:
    """A model with the layers that are read on a text, that text, and one to count on too."""

    name: str
    path: Path
    content: ContentOptions
    layers: tuple[int, ...]
    options: TextOptions
    other: str


_MISSED = (
    (
        SMOLLM2,
        "position inversion at L=1000000: greatest distance from 1/2",
        "the law has .06 there too: the slowest pair has turned but twice, and 1/2 is approached from above",
    ),
    (
        STORIES,
        "position inversion: error over that of the mean query",
        "within its spread of the bar: of four pairs, the mean query's form errs by .011 only",
    ),
)


def measure(preset: Preset, place: Place) -> Findings:
    """Every model that is there, at the size of a preset."""
    measured: dict[CellKey, Measured] = {}
    tables: list[Table] = []
    drawn: dict[str, Any] = {}
    sources, absent = _sources(preset, place)
    for source in sources:
        heads = tuple(_heads(source, _SIZES[preset], place))
        measured |= numbers(source.name, heads)
        tables += [
            errors_table(source.name, heads),
            lengths_table(source.name, heads),
            changes_table(source.name, heads),
            endless_table(source.name, heads),
            heads_table(source.name, heads),
        ]
        drawn |= {
            f"{source.name}-errors": errors_figure(heads),
            f"{source.name}-lengths": lengths_figure(heads),
            f"{source.name}-changes": changes_figure(heads),
        }
    return Findings(measured, tuple(tables), drawn, absent)


def _sources(preset: Preset, place: Place) -> tuple[tuple[_Source, ...], tuple[str, ...]]:
    """Models that are there, and why others are not; the smoke preset is for the small one."""
    sources, absent = [], []
    smoke = preset is Preset.SMOKE
    large = smollm2(place.models)
    if smoke:
        absent.append(f"{SMOLLM2} is for the preset paper")
    elif isinstance(large, str):
        absent.append(large)
    else:
        options = TextOptions(text="topics", cache=place.cache)
        sources.append(_Source(SMOLLM2, large, ContentOptions(), (10, 20), options, "source"))
    small = None if place.models is None else place.models / "stories260K.bin"
    if small is None or not small.is_file() or not small.with_name("tok512.bin").is_file():
        absent.append(f"{STORIES} is not here: give --models FOLDER with stories260K.bin and tok512.bin")
    else:
        tokenizer = ContentOptions(tokenizer=small.with_name("tok512.bin"))
        options = TextOptions(
            text=ITSELF, cache=place.cache, windows=3 if smoke else 22, sequences=12 if smoke else SEQUENCES
        )
        sources.append(_Source(STORIES, small, tokenizer, (1,) if smoke else (3,), options, ITSELF))
    return tuple(sources), tuple(absent)


def _heads(source: _Source, size: LimitsSize, place: Place) -> Iterator[HeadLimits]:
    """Every head of layer 0 from the weights, and of other layers on the text; one that was measured is kept."""
    model = open_model(source.path)
    base = next(positions.rotary.base for positions in model.positions if positions.rotary is not None)
    wanted = {
        "base / 10": RotaryChange(base=base / 10),
        "base x 10": RotaryChange(base=base * 10),
        **{f"{kind} 4": RotaryChange.parse(None, f"{kind}:4") for kind in ("linear", "ntk", "yarn")},
    }
    changed = {name: open_model(source.path, change).positions for name, change in wanted.items()}

    def work() -> Iterator[tuple[Any, ...]]:
        for digest, layer, index, head, other in _placed(source):
            changes = tuple(Changed(name, positions[layer]) for name, positions in changed.items())
            named = f"{_FORMAT} {digest} {layer}.{index} {size} {changes}"
            file = place.cache / "limits" / f"{hashlib.sha256(named.encode()).hexdigest()[:32]}.npy"
            yield layer, index, head, other, changes, size, file

    with executor_of(place.workers, None) as executor:
        yield from over_heads(_kept_or_measured, work(), executor, place.workers, place.advance)


def _placed(source: _Source) -> Iterator[tuple[str, int, int, PlacedHead, PlacedHead | None]]:
    """What was read, layer and index of each head, the head, and the same on the other text."""
    content = read_content(source.path, 0, source.content)
    for index, head in content.heads():
        yield f"{content.reading.sha256} {content.tokens.provenance}", 0, index, head, None
    text = read_text_content(source.path, source.layers, source.options)
    calibrated = text.activations.windows
    length, count = calibrated.tokens.shape[1], len(calibrated.tokens)
    windows = observation_windows(source.path, text.model, source.options, source.other, length, count)
    cache = text.activations.folder.parent.parent
    other = capture(source.path, windows, source.layers, cache)
    digest = f"{text.activations.sha256} {calibrated.digest} {windows.digest}"
    for layer in source.layers:
        for index, pair in enumerate(
            zip(text.activations.layer(layer).heads(), other.layer(layer).heads(), strict=True)
        ):
            own, elsewhere = (windowed_head(head) for head in pair)
            yield digest, layer, index, own, elsewhere


def _kept_or_measured(
    layer: int,
    index: int,
    head: PlacedHead,
    other: PlacedHead | None,
    changes: tuple[Changed, ...],
    size: LimitsSize,
    file: Path,
) -> HeadLimits:
    """One head; an interrupted study goes on with the heads that are left."""
    rates = kept(file)
    if rates is None:
        rates = measure_head(head, other, changes, size, 1000 * layer + index)
        keep(file, rates)
    return HeadLimits(layer, index, size.lengths, series_of([change.name for change in changes]), rates)


def _bars() -> tuple[Printed, ...]:
    """The same for both models."""
    at_most, at_least = Bound.AT_MOST, Bound.AT_LEAST
    missed = {(model, what): reason for model, what, reason in _MISSED}
    bars = [Printed(SMOLLM2, "heads", 20, 0, bound=at_least)]
    for model in (SMOLLM2, STORIES):
        bars += [
            Printed(model, "position inversion: mean absolute error", 0.02, 3, bound=at_most),
            Printed(model, "token inversion: mean absolute error", 0.02, 3, bound=at_most),
            Printed(model, "aliasing: mean relative error", 0.15, 2, bound=at_most),
            Printed(model, "position inversion at L=1000: r over heads", 0.95, 2, bound=at_least),
            Printed(model, "token inversion at L=1000: r over heads", 0.95, 2, bound=at_least),
            Printed(model, "position inversion: error over that of the mean query", 0.5, 2, bound=at_most),
            Printed(model, "length of locality: median factor off", 1.2, 2, bound=at_most),
            Printed(model, "position inversion on another text: mean absolute error", 0.03, 3, bound=at_most),
            Printed(model, "position inversion under changes: mean absolute error", 0.02, 3, bound=at_most),
            Printed(model, "normal keys: greatest deviation in standard errors", 5.0, 1, bound=at_most),
            Printed(model, "position inversion at L=1000000: greatest distance from 1/2", 0.05, 3, bound=at_most),
            Printed(model, "token inversion at L=1000000: greatest distance from 1/2", 0.05, 3, bound=at_most),
        ]
    return tuple(
        replace(bar, recorded=Verdict.DEVIATES, reason=missed[bar.key]) if bar.key in missed else bar for bar in bars
    )


STUDY = Study(
    id="limits",
    title="limits of rotary scores on real heads: inversion and aliasing, counted and by closed forms",
    statement="position-inversion",
    bars=_bars(),
    measure=measure,
    cost="some six minutes of one core; activations and every head that was measured are kept",
    notes=(
        "spread: standard error over heads, by resampling them; errors are those of the closed form of each query with "
        "the covariance of keys, over all heads and lengths",
        "no number is fitted; bars were fixed on layer 0 of stories260K, before SmolLM2 and other layers were measured",
        "context lengths, eps (1/64 of the spread of a head's scores), texts, heads and changes are ours",
    ),
)
