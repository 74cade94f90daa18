"""Heads of a checkpoint, and predictions, as tables that a person reads."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from bridge.content import LayerContent
from bridge.errors import BridgeError
from bridge.inspect import HeadReport
from bridge.prediction import Prediction
from bridge.sources.change import scaling_text
from bridge.tables import Table, number

_ORDERS: dict[str, Callable[[HeadReport], float]] = {
    "head": lambda report: report.head,
    "query-fraction": lambda report: -report.prediction.carrier.query_fraction,
    "key-fraction": lambda report: -report.prediction.carrier.key_fraction,
    "offset": lambda report: -report.offset,
    "share": lambda report: -report.share,
    "margin": lambda report: -report.margin.value,
}


def check_order(order: str, lengths: Sequence[int]) -> None:
    """Raises BridgeError for an order that `ordered` does not know."""
    if order not in _ORDERS and order not in map(str, lengths):
        raise BridgeError(
            f"--sort needs {', '.join(_ORDERS)}, or one of the lengths {', '.join(map(str, lengths))}, got {order!r}"
        )


def ordered(reports: Sequence[HeadReport], order: str) -> list[HeadReport]:
    """Reports by a column or by predicted attention at a length: the greatest first, heads and offsets the least."""
    if order in _ORDERS:
        return sorted(reports, key=_ORDERS[order])
    return sorted(reports, key=lambda report: -(_exact_at(report.prediction, int(order)) or 0.0))


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
            *(number(_exact_at(report.prediction, length)) for length in lengths),
            ",".join(str(flags[flag]) for flag in report.flags),
        )
        for report in reports
    )
    named = ("head", "query frac", "key frac", "offset", "share", "phi peak", "margin (nats)", "rival")
    reference = reports[0].reference_length
    notes = (
        positions_note(content),
        f"offset and share (with its standard error): highest expected attention at L={reference} by the exact law, "
        "sampled; phi peak, margin, rival: of the means alone; L=...: predicted attention on the offset",
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
    rotary, span = content.positions.rotary, content.positions.span
    seen = "all tokens before it" if span is None else f"{span} tokens"
    turned = "no rotary positions"
    if rotary is not None:
        turned = (
            f"rotary base {rotary.base:g}, {rotary.width} of {rotary.head_width} lanes, "
            f"scaling {scaling_text(rotary.scaling)}"
        )
    return f"{turned}; a query sees {seen}; trained length {content.model.shape.trained_length}"


def prediction_table(
    title: str, prediction: Prediction, notes: tuple[str, ...] = (), unchanged: Prediction | None = None
) -> Table:
    """Every law at every length; `unchanged` is the exact law under the model's own positions."""
    columns = ["L", "exact law", "mean-profile law", "margin bound", "uniform"]
    cells = [
        [str(length), f"{exact:.4f}", f"{mean:.4f}", f"{bound:.4f}", f"{1 / length:.4f}"]
        for length, exact, mean, bound in zip(
            prediction.lengths, prediction.exact, prediction.mean_profile, prediction.bound, strict=True
        )
    ]
    if prediction.standard_error is not None:
        columns.insert(2, "s.e.")
        for row, error in zip(cells, prediction.standard_error, strict=True):
            row.insert(2, f"{error:.4f}")
    if unchanged is not None:
        columns.insert(1, "unchanged")
        for row, before in zip(cells, unchanged.exact, strict=True):
            row.insert(1, f"{before:.4f}")
    return Table(title, tuple(columns), tuple(tuple(row) for row in cells), notes)


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


def _exact_at(prediction: Prediction, length: int) -> float | None:
    """The exact law at a length, where the prediction has it."""
    at = dict(zip(prediction.lengths, prediction.exact, strict=True))
    return float(at[length]) if length in at else None
