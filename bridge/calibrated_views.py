"""Heads on a text, and their predictions, as tables that a person reads."""

from __future__ import annotations

from collections.abc import Sequence

from bridge.calibrated import CalibratedReport
from bridge.compare import Comparison
from bridge.head_views import LOCALITY_NOTE, carrier_notes, prediction_table, rotary_text
from bridge.limits import locality_text
from bridge.orders import Orders
from bridge.tables import Table, number
from bridge.text_content import TextContent

ORDERS: Orders = {
    "head": lambda report: (report.layer, report.head),
    "class": lambda report: (report.kind, -report.seen.share),
    "offset": lambda report: (-report.seen.offset, -report.seen.share),
    "share": lambda report: (-report.seen.share,),
    "sink": lambda report: (-report.seen.sink,),
    "entropy": lambda report: (report.seen.entropy,),
    "query-fraction": lambda report: (-report.prediction.carrier.query_fraction,),
    "key-fraction": lambda report: (-report.prediction.carrier.key_fraction,),
}


def calibrated_table(content: TextContent, reports: Sequence[CalibratedReport], asked: Sequence[int]) -> Table:
    """One head a row, flags as numbered notes; a dash at a length asked for that does not hold the offset."""
    flags = {flag: index for index, flag in enumerate(dict.fromkeys(f for r in reports for f in r.flags), 1)}
    lengths = sorted(asked)
    rows = tuple(
        (
            f"{report.layer}.{report.head}",
            report.kind,
            str(report.seen.offset),
            number(report.seen.share),
            number(report.seen.share_error),
            number(report.seen.sink),
            number(report.seen.entropy, 2),
            number(report.prediction.carrier.query_fraction, 2),
            number(report.prediction.carrier.key_fraction, 2),
            str(report.profile_offset),
            str(report.offset),
            locality_text(report.locality_length),
            *(number(report.prediction.at(length)) for length in lengths),
            ",".join(str(flags[flag]) for flag in report.flags),
        )
        for report in reports
    )
    named = (
        "head",
        "class",
        "offset",
        "share",
        "s.e.",
        "sink",
        "entropy",
        "q frac",
        "k frac",
        "phi peak",
        "law's offset",
        "local to",
    )
    layers = tuple(dict.fromkeys(report.layer for report in reports))
    notes = (
        *_positions_notes(content, layers),
        "class, offset, share (with its standard error), sink, entropy (nats): in the second half of the windows, by "
        f"queries that see {reports[0].seen.length} tokens on average",
        f"law's offset: highest by the windowed law at L={reports[0].reference_length}; L=...: attention by it, on "
        "the offset that it selects under the model's own positions",
        LOCALITY_NOTE,
        *(f"flag {index}: {flag}" for flag, index in flags.items()),
        *content.assumptions,
    )
    return Table(heading(content), (*named, *(f"L={length}" for length in lengths), "flags"), rows, notes)


def calibrated_prediction_table(content: TextContent, report: CalibratedReport, compared: Comparison | None) -> Table:
    """Every law at every length, and what was observed beside them."""
    prediction = report.prediction
    title = f"attention at offset {-prediction.offset}, head {report.layer}.{report.head}: {heading(content)}"
    notes = (*_positions_notes(content, (report.layer,)), *content.assumptions)
    return prediction_table(title, prediction, notes, report.before, compared)


def prediction_notes(report: CalibratedReport) -> tuple[str, ...]:
    """What the head is, what the laws start from, and the flags."""
    seen, trust = report.seen, report.trust
    judged = {"drift": trust.drift, "self-consistency": trust.consistency, "content retrieval": trust.retrieval}
    known = ", ".join(f"{name} {value:+.3f}" for name, value in judged.items() if value is not None)
    short = "the windowed law at the shortest length"
    if report.prediction.seen is not None:
        share, error = report.prediction.seen
        short = f"{share:.4f} +- {error:.4f}, seen on the text by queries that see {seen.length} tokens on average"
    selected = f"{report.offset} with {report.share:.3f} +- {report.share_error:.3f} at L={report.reference_length}"
    return (
        f"on the text: {report.kind}, offset {seen.offset} with share {seen.share:.3f} +- {seen.share_error:.3f}, sink "
        f"{seen.sink:.3f}, entropy {seen.entropy:.2f} nats",
        f"by the windowed law: offset {selected}",
        f"constant: {short}",
        *carrier_notes(report.prediction),
        f"from the text alone at L={trust.length}: {known}",
        *(f"flag: {flag}" for flag in report.flags),
        *(f"note: {note}" for note in trust.notes),
    )


def heading(content: TextContent) -> str:
    """What was run, in a line."""
    layers = content.layers
    named = f"layer {layers[0]}" if len(layers) == 1 else f"layers {layers[0]} to {layers[-1]}"
    model = content.model
    return f"{named} of {model.family.name}, {model.format}, sha256 {content.activations.sha256[:16]}"


def _positions_notes(content: TextContent, layers: Sequence[int]) -> tuple[str, ...]:
    """Base, scaling and span in force, each kind of layer in a line."""
    kinds: dict[str, list[int]] = {}
    for layer in layers:
        kinds.setdefault(rotary_text(content.model.positions[layer]), []).append(layer)
    trained = f"trained length {content.model.shape.trained_length}"
    if len(kinds) == 1:
        return (f"{next(iter(kinds))}; {trained}",)
    return (*(f"layers {', '.join(map(str, own))}: {text}" for text, own in kinds.items()), trained)
