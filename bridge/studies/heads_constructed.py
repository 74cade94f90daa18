"""Index and Retrieval as explicit weights: logits, swap scores and discrepancy measured against their closed forms.

Swap scores come from the weights, run on prompts before and after every swap; the closed forms from the logits alone.
Discrepancies are the measured lead of the target over all keys before the query, over the targets k = 1..16 of Index
and over distances of the match of Retrieval.

Source: arXiv 2605.31558; `theory.constructed_heads`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float64

from bridge.compare import Measured
from bridge.paper.target import Bound, CellKey, Preset, Printed
from bridge.run_swaps import score_head
from bridge.studies.study import Findings, Place
from bridge.studies.swap_settings import TEMPERATURE
from bridge.tables import Table
from theory.constructed_heads import index_head, index_logits, prompt_logits, retrieval_head, retrieval_logits
from theory.discrepancy import discrepancy, positional_discrepancy, symbolic_loss
from theory.prompt_swaps import all_swaps, lower_score
from theory.schedule import RotarySchedule

_SEED, _PROMPT, _PAIRS, _INDICES = 20_261_202, 33, 32, 16
_ENERGY = 10.0
"""sum r_i in nats."""
_LENGTHS = {Preset.PAPER: (16, 64, 256, 1024, 4096, 16_384), Preset.SMOKE: (16, 64)}
_PROMPTS = {Preset.PAPER: 16, Preset.SMOKE: 2}
_DISTANCES = 64
_ROW = "constructed heads"


@dataclass(frozen=True, eq=False)
class Led:
    """The discrepancy of a constructed head at each length, in nats: measured, and predicted."""

    label: str
    positional: bool
    measured: Float64[np.ndarray, "length"]
    predicted: Float64[np.ndarray, "length"]


def measure(preset: Preset, place: Place) -> Findings:
    """Closed forms of scores and logits, then the discrepancies."""
    lengths = _LENGTHS[preset]
    table, logit_error, score_error = _scores(_PROMPTS[preset])
    led = discrepancies(lengths)
    off = max(float(np.abs(one.measured - one.predicted).max()) for one in led)
    measured: dict[CellKey, Measured] = {
        (_ROW, "logits less closed form, nats: greatest"): Measured(logit_error, None, 0.0),
        (_ROW, "swap scores less closed form: greatest"): Measured(score_error, None, 0.0),
        (_ROW, "discrepancy less closed form, nats: greatest"): Measured(off, None, 0.0),
    }
    place.advance(1)
    from bridge.figures.heads_study import discrepancy_figure

    return Findings(measured, (table, _led_table(led, lengths)), {"discrepancy": discrepancy_figure(led, lengths)}, ())


def discrepancies(lengths: tuple[int, ...]) -> tuple[Led, ...]:
    """Index on one frequency, on the best one for 16 lags and on 32 pairs; Retrieval frozen and on slow pairs."""
    geometric = RotarySchedule.geometric(2 * _PAIRS, 1e4)
    slow = {f"{base:.0e}".replace("e+0", "e"): RotarySchedule.geometric(2 * _PAIRS, base) for base in (1e4, 5e5)}
    return (
        _index("Index, one pair, theta 1", RotarySchedule(np.ones(1)), lengths),
        _index("Index, one pair, theta 2 pi/17", RotarySchedule(np.array([2 * np.pi / 17])), lengths),
        _index("Index, 32 pairs alike, base 1e4", geometric, lengths),
        _retrieval("Retrieval, frozen pairs", 0.0, lengths),
        *(
            _retrieval(f"Retrieval, slowest pair of base {base}", float(own.frequencies[-1]), lengths)
            for base, own in slow.items()
        ),
    )


def _scores(prompts: int) -> tuple[Table, float, float]:
    """Scores of both heads on random prompts by temperature and block, with the largest errors of logits and scores."""
    rng = np.random.default_rng(_SEED)
    geometric, frozen = RotarySchedule.geometric(2 * _PAIRS, 1e4), RotarySchedule.without_rotation(2 * _PAIRS)
    equal, each = np.full(_PAIRS, _ENERGY / _PAIRS), np.full(_PAIRS, _ENERGY)
    index, retrieval = index_head(equal, geometric, _INDICES), retrieval_head(each, frozen)
    offsets, swaps = np.arange(_PROMPT) - (_PROMPT - 1), all_swaps(_PROMPT)
    rows: list[tuple[str, ...]] = []
    errors: list[tuple[float, float]] = []
    drawn = [(rng.integers(0, _INDICES, _PROMPT), rng.integers(0, _PAIRS, _PROMPT)) for _ in range(prompts)]
    for temperature in (TEMPERATURE / 5, TEMPERATURE, 5 * TEMPERATURE, 1.0):
        told = []
        for numbers, symbols in drawn:
            by_place = index_logits(equal, geometric, int(numbers[-1]) + 1, offsets)
            by_symbol = retrieval_logits(each, frozen, int(symbols[-1]), symbols, offsets)
            at_place = score_head(index, numbers, swaps, temperature)
            at_symbol = score_head(retrieval, symbols, swaps, temperature)
            lower = [lower_score(logits, swaps.pairs, temperature) for logits in (by_place, by_symbol)]
            got = (at_place.positional, at_place.symbolic, at_symbol.positional, at_symbol.symbolic)
            wrong = np.abs(np.subtract(got, (1.0, lower[0], lower[1], 1.0))).max()
            logits = max(
                np.abs(prompt_logits(head, tokens) - form).max()
                for head, tokens, form in ((index, numbers, by_place), (retrieval, symbols, by_symbol))
            )
            errors.append((float(logits), float(wrong)))
            told.append((*got, *lower))
        means = np.mean(told, axis=0)
        rows += [
            (name, f"{temperature:g}", "1", f"{means[2 * at]:.4f}", f"{means[2 * at + 1]:.4f}", f"{means[4 + at]:.4f}")
            for at, name in enumerate(("Index", "Retrieval"))
        ]
    for block in (2, 4):
        own = all_swaps(_PROMPT, block)
        for at, (name, head) in enumerate((("Index", index), ("Retrieval", retrieval))):
            scores = [score_head(head, pair[at], own, TEMPERATURE) for pair in drawn]
            means = np.mean([(one.positional, one.symbolic) for one in scores], axis=0)
            rows.append((name, f"{TEMPERATURE:g}", str(block), *(f"{value:.4f}" for value in means), "-"))
    columns = ("head", "temperature", "block", "s_pos", "s_sym", "closed form of the lower")
    notes = (
        f"sum r_i = {_ENERGY:g} nats; random prompts of {_PROMPT} tokens, all swaps; the higher score is 1 by law",
        "with blocks the place, or the symbol, still decides alone: that score stays 1",
    )
    table = Table("swap scores of constructed heads", columns, tuple(rows), notes)
    return table, max(error for error, _ in errors), max(error for _, error in errors)


def _index(label: str, schedule: RotarySchedule, lengths: tuple[int, ...]) -> Led:
    """The least over k = 1..16 of what theory.discrepancy finds in the rows, against the law at the lags they meet."""
    amplitudes = np.full(schedule.pairs, _ENERGY / schedule.pairs)
    head = index_head(amplitudes, schedule, _INDICES)
    law = positional_discrepancy(amplitudes, schedule, max(lengths))
    measured, predicted = [], []
    for length in lengths:
        targets = range(1, min(_INDICES, length - 1) + 1)
        tokens = np.zeros(length, dtype=np.int64)
        rows = []
        for k in targets:
            tokens[-1] = k - 1
            rows.append(discrepancy(prompt_logits(head, tokens)[None])[0])
        measured.append(min(rows))
        predicted.append(min(law[max(length - 1 - k, k)] for k in targets))
    return Led(label, True, np.array(measured), np.array(predicted))


def _retrieval(label: str, frequency: float, lengths: tuple[int, ...]) -> Led:
    """The least over distances of the match of its lead over rivals, below 0 where one leads."""
    schedule, amplitudes = RotarySchedule(np.full(2, frequency)), np.full(2, _ENERGY)
    head = retrieval_head(amplitudes, schedule)
    measured, predicted = [], []
    for length in lengths:
        distances = np.unique(np.geomspace(1, length - 1, _DISTANCES).astype(np.int64))
        tokens = np.ones(length, dtype=np.int64)
        tokens[-1] = 0
        leads = []
        for distance in distances:
            tokens[length - 1 - distance] = 0
            logits = prompt_logits(head, tokens)[:-1]
            tokens[length - 1 - distance] = 1
            match = logits[length - 1 - distance]
            leads.append(match - np.delete(logits, length - 1 - distance).max())
        measured.append(min(leads))
        predicted.append(
            _ENERGY - symbolic_loss(amplitudes[:1], RotarySchedule(schedule.frequencies[:1]), length).exact
        )
    return Led(label, False, np.array(measured), np.array(predicted))


def _led_table(led: tuple[Led, ...], lengths: tuple[int, ...]) -> Table:
    rows = tuple(
        (one.label, *(f"{a:.3g} ({b:.3g})" for a, b in zip(one.measured, one.predicted, strict=True))) for one in led
    )
    notes = (
        f"nats, in parentheses the closed form; sum r_i = {_ENERGY:g} nats on every head",
        f"Index: least over targets 1..{_INDICES}; Retrieval: over distances of the match, below 0 where a rival leads",
    )
    return Table("discrepancy of constructed heads", ("head", *(f"L={length}" for length in lengths)), rows, notes)


_AT_MOST = Bound.AT_MOST
BARS = (
    Printed(_ROW, "logits less closed form, nats: greatest", 1e-10, 10, bound=_AT_MOST),
    Printed(_ROW, "swap scores less closed form: greatest", 1e-6, 6, bound=_AT_MOST),
    Printed(_ROW, "discrepancy less closed form, nats: greatest", 1e-6, 6, bound=_AT_MOST),
)
