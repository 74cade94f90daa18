"""Surgery inside the two-layer transformer: its shift heads get the best carrier, the rest of the model stays.

The model learns out[i] = in[i-K] at lengths 8 to 16. The heads of its last layer that look K back are edited through
the one direction that a layer norm keeps constant (`empirics.edit`), so that every query of such a head is shifted by
one vector, every key by another, whatever the tokens. One head alone, then all of that layer.

The prediction takes queries and keys that the trained model draws at one length, assumes that far keys are independent
of the query, and averages the exact law over the contexts K+1 .. L of a sequence as the observation does.

Source: ours; the task is that of arXiv 2607.18759, section 5.2. Steps and rate are ours: 1000 at 1e-3.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np
import torch

from bridge.compare import Measured
from bridge.designs import ATTENTION
from bridge.paper.target import Bound, CellKey, Preset, Printed, shrink
from bridge.sources.transformer import head_of_transformer
from bridge.studies.study import Findings, Place
from bridge.tables import Table
from empirics.edit import shift_block
from empirics.observe_transformer import TransformerObservation, observe_transformer
from empirics.spec import transformer_spec
from empirics.store import Store
from empirics.train import TransformerRun, one_thread
from empirics.transformer import Block, Transformer
from theory.design import Design, design_carrier, energy_bound
from theory.exact_law import exact_law
from theory.head import Head

LENGTH = 1024
SHIFT_SEED, _DRAWN_AT = 20_261_130, 64
_ALL = "all of the last layer"
_LAW = ("shift heads", "predicted less observed attention: greatest")

SPECS = (
    transformer_spec(
        precision="bfloat16",
        vocabulary=16,
        steps=1000,
        learning_rate=1e-3,
        evaluation_lengths=(12, 16, 64),
        evaluation_sequences=256,
        profile_sequences=128,
    ),
)


@dataclass(frozen=True)
class _Size:
    lengths: tuple[int, ...]
    sequences: int
    samples: int


_SIZES = {
    Preset.PAPER: _Size((16, 64, 256, 512, LENGTH), 32, 512),
    Preset.SMOKE: _Size((16, 64), 8, 64),
}


def measure(preset: Preset, place: Place) -> Findings:
    """As trained, one shift head edited, all of the last layer edited."""
    size, (spec,) = _SIZES[preset], shrink(SPECS, preset)
    run = Store(place.runs).load(spec)
    layer = spec.layers - 1
    with one_thread():
        before = _observed(run.model, size)
        chosen = max(range(spec.heads), key=lambda head: _share(before[-1], layer, head))
        heads = [head_of_transformer(run, layer, head, _DRAWN_AT, size.samples) for head in range(spec.heads)]
        design = design_carrier(heads[0].schedule, spec.offset, LENGTH)
        energy = energy_bound(design.margin, ATTENTION, LENGTH)
        states = {"as trained": (), f"head {layer}.{chosen}": (chosen,), _ALL: tuple(range(spec.heads))}
        rows: list[tuple[str, ...]] = []
        errors: list[float] = []
        measured: dict[CellKey, Measured] = {}
        for state, edited in states.items():
            model, held = edited_model(run, layer, heads, edited, design, energy)
            seen = _observed(model, size) if edited else before
            told, off = _rows(state, seen, held, layer, chosen)
            rows, errors = rows + told, errors + off
            last = seen[-1]
            if edited:
                key = f"shift heads, {'one' if len(edited) == 1 else _ALL}", f"accuracy L={LENGTH}"
                measured[key] = Measured(last.accuracy, None, last.accuracy_error)
            place.advance(1)
    measured[_LAW] = Measured(max(errors), None, 0.0)
    columns = ("", "L", "accuracy", f"attention of head {layer}.{chosen}", "predicted", "error (s.e.)", "its peak at")
    notes = (
        f"K={spec.offset}, {size.sequences} sequences a length, +- s.e.; energy {energy:.2f} "
        f"nats by the bound for attention {ATTENTION:g} at L={LENGTH}",
        "predicted: exact law over contexts K+1 .. L, queries and keys drawn from the trained model at "
        f"L={_DRAWN_AT}; that far keys are independent of the query is assumed, and costs what the errors show",
    )
    title = f"shift heads of a two-layer transformer ({spec.steps} steps at lengths 8-16), edited inside it"
    return Findings(measured, (Table(title, columns, tuple(rows), notes),), {}, ())


def edited_model(
    run: TransformerRun, layer: int, heads: Sequence[Head], chosen: tuple[int, ...], design: Design, energy: float
) -> tuple[Transformer, tuple[Head, ...]]:
    """The model with the prescribed carrier in some heads of a layer, and those heads as the theory has them then."""
    model, held, lanes = copy.deepcopy(run.model), list(heads), run.spec.head_width
    shifts = np.zeros((2, run.spec.width))
    for index in chosen:
        head, own = heads[index], heads[index].carrier()
        made = design.carrier(energy, head.logit_scale, own)
        place = slice(index * lanes, (index + 1) * lanes)
        shifts[0, place], shifts[1, place] = made.query_mean - own.query_mean, made.key_mean - own.key_mean
        held[index] = head.with_means(made.query_mean, made.key_mean)
    shift_block(cast(Block, model.blocks[layer]), *shifts)
    return model, tuple(held)


def _observed(model: Transformer, size: _Size) -> tuple[TransformerObservation, ...]:
    generator = torch.Generator().manual_seed(SHIFT_SEED)
    return observe_transformer(model, size.lengths, size.sequences, size.sequences, generator)


def _rows(
    state: str, seen: Sequence[TransformerObservation], heads: Sequence[Head], layer: int, chosen: int
) -> tuple[list[tuple[str, ...]], list[float]]:
    """A row a length, and how far the law is off there."""
    offset, longest = seen[0].offset, max(one.length for one in seen)
    law = exact_law(heads[chosen], offset, range(offset + 1, longest + 1), 1e-6)
    rows: list[tuple[str, ...]] = []
    errors = []
    for one in seen:
        head = next(told for told in one.heads if (told.layer, told.head) == (layer, chosen))
        share, error = head.attention[offset], head.attention_error[offset]
        predicted = float(law[: one.length - offset].mean())
        errors.append(abs(predicted - share))
        rows.append(
            (
                state,
                str(one.length),
                f"{one.accuracy:.4f} +- {one.accuracy_error:.4f}",
                f"{share:.4f} +- {error:.4f}",
                f"{predicted:.4f}",
                f"{(predicted - share) / error:+.1f}",
                str(head.selected_offset),
            )
        )
    return rows, errors


def _share(seen: TransformerObservation, layer: int, head: int) -> float:
    return next(one.attention[seen.offset] for one in seen.heads if (one.layer, one.head) == (layer, head))


BARS = (
    Printed(*_LAW, 0.05, 2, bound=Bound.AT_MOST),
    Printed("shift heads, one", f"accuracy L={LENGTH}", 0.98, 2, bound=Bound.AT_LEAST),
    Printed(f"shift heads, {_ALL}", f"accuracy L={LENGTH}", 0.99, 2, bound=Bound.AT_LEAST),
)
