"""Surgery on heads of SmolLM2-135M: the mean query and mean key of a head replaced by the best carrier, untrained.

A head is calibrated on 257-token windows of Python's documentation topics. Its means are moved to the carrier with the
largest margin for its offset over 8192 tokens, written into the weights along a direction in which the inputs are
constant; nothing else changes, so that the stream into the layer is captured once for all arms. The arms:

    query alone                 a_i = r_i / (scale |b_i|) e^(i (arg b_i - K theta_i)): the keys stay, siblings too
    query alone, steady pairs   the same on the pairs whose mean key holds half of its mean square or more
    query and key               |a_i| = |b_i|, the key's phases kept: siblings see other keys

each with the energy of the head as it is, and with that which gives a head without residuals attention .9 at 8192
tokens, ln((L-1) a / (1-a)) / mu; and query and key with the query's phases kept, at the energy of the head as it is.
Both ways are there since the law of the means cannot tell them apart, and on trained toy heads keeping the query's
phases costs far less attention. Controls: the carrier of another offset, and random shifts of the same norms.

Heads are chosen from the calibration alone, among positional ones without a flag at 1024 tokens: the strongest of
the first third of the layers, the one with the smallest margin, the deepest.

Source: ours; `theory.design` for the carrier.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from bridge.calibrated import Asked, CalibratedReport, classify, report_head
from bridge.calibration import see
from bridge.compare import Measured
from bridge.errors import BridgeError
from bridge.figures.real_surgery import surgery_figure
from bridge.over_heads import executor_of, over_heads
from bridge.paper.target import Bound, CellKey, Preset, Printed
from bridge.sources.activations import HeadActivations, capture
from bridge.sources.edit import aftermath
from bridge.sources.texts import Windows, cut_windows
from bridge.sources.tokens import read_tokenizer_at
from bridge.studies.held import mean_absolute, statistic
from bridge.studies.materials import kinds_of_text, smollm2
from bridge.studies.real_surgery_arms import ALONE, AS_IT_IS, BOTH, OTHER, QUERYS_PHASES, RANDOM, STEADY, WANTED, Arm
from bridge.studies.real_surgery_outcomes import LEAST_SQUARES, Set, operate
from bridge.studies.real_surgery_tables import (
    Surgery,
    attention_table,
    errors_table,
    heads_table,
    losses_table,
    shares_table,
    siblings_table,
)
from bridge.studies.study import Findings, Place, Study
from bridge.tables import Table
from bridge.text_content import TextOptions, read_text_content

SMOLLM2 = "SmolLM2-135M"
EARLY, WEAK, DEEP = "strongest of the first third", "smallest margin", "deepest"
_DRAWN = {STEADY: "query alone, steady pairs", BOTH: "query and key", BOTH + WANTED: "query and key, more energy"}
_RECOMPUTED = (SMOLLM2, "attention of the edited network less ours: greatest")
_SELECTED = (SMOLLM2, "carrier of another offset: share of lengths that select it")
_UNREPAIRED = (SMOLLM2, "random shifts: attention less that as it is, L=1024: greatest")
_CONSTANT = (SMOLLM2, "share of e.x explained on held-out text: least")
_INSIDE_BOTH = (f"{SMOLLM2}, query and key, L=256 and 1024", "absolute error: mean")
_INSIDE_ALONE = (f"{SMOLLM2}, query alone, L=256 and 1024", "absolute error: mean")
_FAR = (f"{SMOLLM2}, {EARLY}, edited, L=4096 to 16384", "absolute error: mean")
_GAIN_BOTH = (f"{SMOLLM2}, {EARLY}, query and key, L=16384", "attention less that as it is")
_GAIN_STEADY = (f"{SMOLLM2}, {EARLY}, steady pairs, L=16384", "attention less that as it is")


@dataclass(frozen=True)
class _Size:
    """Layers (None: all) and windows to calibrate on; texts, lengths and windows of each text to observe all heads on;
    further lengths of source with windows, for the early head and for others; windows of each text for the loss and
    their tokens; whether flags count."""

    layers: tuple[int, ...] | None = None
    windows: int = 22
    texts: tuple[str, ...] = ("source", "licences")
    short: tuple[int, ...] = (256, 1024)
    short_windows: int = 8
    early: tuple[tuple[int, ...], int] = ((4096, 8192, 16384), 3)
    deep: tuple[tuple[int, ...], int] = ((4096,), 2)
    loss_windows: int = 4
    loss_length: int = 512
    flags: bool = True


_SIZES = {
    Preset.PAPER: _Size(),
    Preset.SMOKE: _Size((1,), 3, ("source",), (128, 256), 2, ((), 0), ((), 0), 2, 64, False),
}


def measure(preset: Preset, place: Place) -> Findings:
    """The operations, their controls and what they cost, where SmolLM2 is there."""
    path = smollm2(place.models)
    if isinstance(path, str):
        return Findings({}, (), {}, (path,))
    size, tokenizer = _SIZES[preset], read_tokenizer_at(path)
    content = read_text_content(path, size.layers, TextOptions("topics", windows=size.windows, cache=place.cache))
    calibrated, shape = content.activations.windows, content.model.shape
    texts = {kind: text for kind, text in kinds_of_text().items() if kind in size.texts}

    def cut(kind: str, length: int, most: int) -> Windows:
        return cut_windows(texts[kind], tokenizer, shape.vocabulary, length, most, tokenizer.first_token)

    short = {kind: (cut(kind, size.short[-1], size.short_windows), size.short) for kind in texts}
    with executor_of(place.workers, None) as executor:

        def over(work: Callable[..., Any], given: Iterable[tuple]) -> list[Any]:
            return list(over_heads(work, given, executor, place.workers, place.advance))

        asked = Asked(size.short, size.short[-1])
        reports = over(if_positional, ((*head, asked) for head in content.heads()))
        chosen = choose([report for report in reports if report is not None], shape.layers, size.flags)
        sets: dict[str, Mapping[str, Set]] = {}
        for rule in chosen:
            lengths, most = size.early if EARLY in rule else size.deep
            sets[rule] = short | ({"source, longer": (cut("source", lengths[-1], most), lengths)} if lengths else {})
        passes: dict[str, tuple[Windows, list[int]]] = {}
        for rule, report in chosen.items():
            for windows, _ in sets[rule].values():
                passes.setdefault(windows.digest, (windows, []))[1].append(report.layer)
        over(run_into, ((path, windows, layers, place.cache) for windows, layers in passes.values()))
        surgeries = over(
            operate, ((path, calibrated, sets[rule], rule, report, place.cache) for rule, report in chosen.items())
        )
        held_out = np.concatenate([windows.tokens[: size.loss_windows] for windows, _ in short.values()])
        costly = [(one, arm) for one in surgeries for arm in _costly(one)]
        edits = [None, *(arm.edit for _, arm in costly)]
        parts = min(place.workers, len(edits))
        work = ((path, held_out[:, : size.loss_length], edits[first::parts], place.cache) for first in range(parts))
        rows = np.empty((len(edits), 1 + len(held_out)))
        for first, part in enumerate(over(aftermath, work)):
            rows[first::parts] = part
    lost: dict[str, dict[str, np.ndarray]] = {one.name: {} for one in surgeries}
    for (one, arm), row in zip(costly, rows[1:], strict=True):
        lost[one.name][arm.name] = row[1:]
    surgeries = [replace(one, losses=lost[one.name]) for one in surgeries]
    what = {"calibration": calibrated.provenance} | {
        f"{rule}, {kind}": windows.provenance for rule in chosen for kind, (windows, _) in sets[rule].items()
    }
    tables = (
        Table(
            f"what was run: {SMOLLM2}, sha256 {content.activations.sha256}", ("text", "windows"), tuple(what.items())
        ),
        heads_table(surgeries),
        *(attention_table(one) for one in surgeries),
        errors_table(surgeries),
        losses_table(surgeries, rows[0, 1:], size.loss_length),
        siblings_table(surgeries, size.short[-1]),
        shares_table(surgeries),
    )
    measured = _numbers(surgeries, size) | {_RECOMPUTED: Measured(float(rows[:, 0].max()), None, 0.0)}
    return Findings(measured, tables, {"attention": surgery_figure(surgeries, _DRAWN)}, ())


def choose(reports: Sequence[CalibratedReport], layers: int, flags: bool) -> dict[str, CalibratedReport]:
    """Heads by the rules of this study, each once, under the rules that chose it; with `flags` none that has one.

    Raises BridgeError where no head is left.
    """
    left = [report for report in reports if not (flags and report.flags)]
    if not left:
        raise BridgeError(f"none of {len(reports)} positional heads is without a flag: give a longer calibration text")
    early = [report for report in left if report.layer < layers / 3]
    picked = {EARLY: max(early, key=lambda report: report.share)} if early else {}
    picked[WEAK] = min(left, key=lambda report: report.prediction.margins[-1].value)
    picked[DEEP] = max(left, key=lambda report: (report.layer, report.share))
    heads = dict.fromkeys((report.layer, report.head) for report in picked.values())
    return {
        ", ".join(rule for rule, report in picked.items() if (report.layer, report.head) == head): next(
            report for report in picked.values() if (report.layer, report.head) == head
        )
        for head in heads
    }


def if_positional(layer: int, index: int, head: HeadActivations, asked: Asked) -> CalibratedReport | None:
    """The report of a head that is positional inside the calibration text, None of another."""
    return report_head(layer, index, head, asked) if classify(see(head)) == "positional" else None


def run_into(path: Path, windows: Windows, layers: list[int], cache: Path) -> None:
    """Streams into the layers, into the cache: one pass serves every head that is observed on these windows."""
    capture(path, windows, layers, cache)


def _costly(one: Surgery) -> list[Arm]:
    """The arms of which the loss is measured."""
    names = (STEADY, BOTH, BOTH + WANTED, RANDOM) if EARLY in one.rule else (STEADY, BOTH)
    return [one.outcome(name).arm for name in names]


def _numbers(surgeries: Sequence[Surgery], size: _Size) -> dict[CellKey, Measured]:
    """Errors and gains; those of other lengths than the study's are not measured."""
    both, alone = (
        np.concatenate(
            [done.errors[: len(size.short)] for one in surgeries for done in one.outcomes if named(done.arm)]
        )
        for named in (lambda arm: arm.name in (BOTH, BOTH + WANTED), lambda arm: arm.name.startswith(ALONE))
    )
    controls = [one.outcome(OTHER) for one in surgeries]
    right = np.array([place == -done.arm.offset for done in controls for place in done.selected], dtype=np.float64)
    inside = size.short[-1]
    random = max(one.outcome(RANDOM).at(inside) - one.outcome(AS_IT_IS).at(inside) for one in surgeries)
    least = min(
        share
        for one in surgeries
        for (direction, text), share in one.shares.items()
        if direction == LEAST_SQUARES and text != "calibration"
    )
    measured = {
        _SELECTED: statistic(lambda share: float(share.mean()), right),
        _UNREPAIRED: Measured(random, None, 0.0),
        _CONSTANT: Measured(least, None, 0.0),
        _INSIDE_BOTH: statistic(mean_absolute, both),
        _INSIDE_ALONE: statistic(mean_absolute, alone),
    }
    for one in (one for one in surgeries if EARLY in one.rule and size.early[0]):
        edits = [done for done in one.outcomes if done.arm.energy is not None and done.arm.name != QUERYS_PHASES]
        far = np.concatenate([done.errors[len(size.short) :] for done in edits])
        measured[_FAR] = statistic(mean_absolute, far)
        own, last = one.outcome(AS_IT_IS), -1
        for key, name in ((_GAIN_BOTH, BOTH), (_GAIN_STEADY, STEADY)):
            done = one.outcome(name)
            error = float(np.hypot(done.error[last], own.error[last]))
            measured[key] = Measured(float(done.observed[last] - own.observed[last]), error, error)
    return measured


def _bars() -> tuple[Printed, ...]:
    at_most, at_least = Bound.AT_MOST, Bound.AT_LEAST
    return (
        Printed(*_RECOMPUTED, 1e-4, 6, bound=at_most),
        Printed(*_CONSTANT, 0.99, 3, bound=at_least),
        Printed(*_SELECTED, 1.0, 2, bound=at_least),
        Printed(*_UNREPAIRED, 0.0, 3, bound=at_most),
        Printed(*_INSIDE_BOTH, 0.03, 3, bound=at_most),
        Printed(*_INSIDE_ALONE, 0.05, 3, bound=at_most),
        Printed(*_FAR, 0.1, 3, bound=at_most),
        Printed(*_GAIN_BOTH, 0.3, 2, bound=at_least),
        Printed(*_GAIN_STEADY, 0.1, 2, bound=at_least),
    )


STUDY = Study(
    id="real-surgery",
    title="means of heads of SmolLM2 replaced by the best carrier: attention predicted and observed, and the loss",
    statement="windowed-exact-law",
    bars=_bars(),
    measure=measure,
    notes=(
        "spread: standard error over heads, arms and lengths, by resampling them; of a difference of attention over "
        "windows",
        "bars were fixed after some of the arms had been seen on fewer windows of source, before this study was run; "
        "licences had no part in it; the arm with the query's phases kept came after them and counts in none",
        "the file states a context of 8192 tokens: 16384 is beyond it",
    ),
)
