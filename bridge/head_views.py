"""Heads of a checkpoint, and predictions, as tables that a person reads."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float64

from bridge.compare import Comparison
from bridge.content import LayerContent
from bridge.inspect import HeadReport
from bridge.limits import LEVEL, locality_text
from bridge.orders import Orders
from bridge.prediction import Prediction
from bridge.sources.attention import LayerPositions
from bridge.sources.change import scaling_text
from bridge.tables import Table, number

ORDERS: Orders = {
    "head": lambda report: report.head,
    "query-fraction": lambda report: -report.prediction.carrier.query_fraction,
    "key-fraction": lambda report: -report.prediction.carrier.key_fraction,
    "offset": lambda report: -report.offset,
    "share": lambda report: -report.share,
    "margin": lambda report: -report.margin.value,
}

LOCALITY_NOTE = (
    f"local to: the length from which on the same key scores higher in the farther half than in the nearer one with a "
    f"chance above {LEVEL:g}"
)


def heads_table(content: LayerContent, reports: Sequence[HeadReport], asked: Sequence[int]) -> Table:
    """One head a row, flags as numbered notes; a dash at a length asked for that does not hold the offset."""
    flags = {flag: index for index, flag in enumerate(dict.fromkeys(f for r in reports for f in r.flags), 1)}
    lengths = sorted(asked)
    rows = tuple(
        (
            f"{report.layer}.{report.head}",
            number(report.prediction.carrier.query_fraction),
            number(report.prediction.carrier.key_fraction),
            str(report.offset),
            f"{report.share:.3f} +- {report.share_error:.3f}",
            str(report.profile_offset),
            number(report.margin.value),
            str(report.margin.competitor),
            locality_text(report.locality_length),
            *(number(report.prediction.at(length)) for length in lengths),
            ",".join(str(flags[flag]) for flag in report.flags),
        )
        for report in reports
    )
    named = ("head", "query frac", "key frac", "offset", "share", "phi peak", "margin (nats)", "rival", "local to")
    reference = reports[0].reference_length
    notes = (
        positions_note(content),
        f"offset and share (with its standard error): highest expected attention at L={reference} by the exact law, "
        "sampled; phi peak, margin, rival: of the means alone; L=...: predicted attention on the offset",
        LOCALITY_NOTE,
        *(f"flag {index}: {flag}" for flag, index in flags.items()),
        *content.assumptions,
    )
    return Table(heading(content), (*named, *(f"L={length}" for length in lengths), "flags"), rows, notes)


def heading(content: LayerContent) -> str:
    """What was read, in a line."""
    model = content.model
    return f"layer {content.index} of {model.family.name}, {model.format}, sha256 {content.reading.sha256[:16]}"


def positions_note(content: LayerContent) -> str:
    """Base, scaling and span in force, in a line."""
    return f"{rotary_text(content.positions)}; trained length {content.model.shape.trained_length}"


def rotary_text(positions: LayerPositions) -> str:
    """How positions enter a layer, for a person."""
    rotary, span = positions.rotary, positions.span
    seen = "all tokens before it" if span is None else f"{span} tokens"
    turned = "no rotary positions"
    if rotary is not None:
        turned = (
            f"rotary base {rotary.base:g}, {rotary.width} of {rotary.head_width} lanes, "
            f"scaling {scaling_text(rotary.scaling)}"
        )
    return f"{turned}; a query sees {seen}"


def prediction_table(
    title: str,
    prediction: Prediction,
    notes: tuple[str, ...] = (),
    unchanged: Prediction | None = None,
    compared: Comparison | None = None,
) -> Table:
    """Every law at every length; `unchanged`: under the model's own positions, `compared`: what was observed."""
    columns: dict[str, Sequence[float] | Float64[np.ndarray, "length"]] = {}
    if unchanged is not None:
        columns["unchanged"] = unchanged.exact
    columns[f"{prediction.law} law"] = prediction.exact
    if prediction.standard_error is not None:
        columns["s.e."] = prediction.standard_error
    columns["mean-profile law"] = prediction.mean_profile
    if prediction.law == "windowed":
        columns["constant"] = prediction.constant
    else:
        columns["margin bound"] = prediction.bound
    columns["uniform"] = [1 / length for length in prediction.lengths]
    if compared is not None:
        columns |= {"observed": compared.observed, "its s.e.": compared.standard_error}
    rows = [
        [str(length), *(number(float(values[place]), 4) for values in columns.values())]
        for place, length in enumerate(prediction.lengths)
    ]
    names = ["L", *columns]
    if compared is not None:
        names += ["law - obs", "constant - obs"]
        baseline = prediction.constant - compared.observed
        for row, *errors in zip(rows, compared.errors, baseline, strict=True):
            row += [f"{error:+.4f}" for error in errors]
    return Table(title, tuple(names), tuple(tuple(row) for row in rows), notes)


def carrier_notes(prediction: Prediction) -> tuple[str, ...]:
    """What the laws start from, in a few lines."""
    carrier, longest = prediction.carrier, max(prediction.lengths)
    margin = prediction.margins[int(np.argmax(prediction.lengths))]
    return (
        f"carrier fractions {carrier.query_fraction:.3f} (queries), {carrier.key_fraction:.3f} (keys); "
        f"alignment cos(m_Q, R_-K m_K) {carrier.alignment(prediction.offset):.3f}",
        f"margin at L={longest}: {margin.value:.3f} nats, nearest competitor at offset {margin.competitor}; "
        f"the mean profile is highest at {prediction.selected_offset}",
    )
