"""Results as tables that a person reads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from bridge.inspect import HeadReport
from bridge.prediction import Prediction
from bridge.sources.checkpoint import Checkpoint
from bridge.tables import Table, number
from theory.statements.statement import Result


def statements_table(results: Sequence[Result], found: Mapping[str, str]) -> Table:
    """One statement a row: the verdict on both wordings; `found` is what runs on disk say, by target."""
    rows = tuple(
        (
            result.label,
            "-" if result.printed is None else result.printed.verdict.value,
            result.amended.verdict.value,
            "; ".join([result.amended.method, *_runs(result, found)]),
            f"{result.seconds:.2f}",
        )
        for result in results
    )
    columns = ("statement", "as printed", "as amended", "method", "seconds")
    return Table(
        "Statements of arXiv 2607.18759 and of the three papers beside it",
        columns,
        rows,
        ("-: no paper prints it, it is ours", "`carrier verify ID` tells the whole story of one"),
    )


def _runs(result: Result, found: Mapping[str, str]) -> tuple[str, ...]:
    targets = dict.fromkeys(finding.target for finding in result.wordings.values() if finding.target)
    return tuple(f"{target}: {found[target]}" for target in targets)


def statement_story(result: Result) -> tuple[Table, ...]:
    """The claims of one statement, its proof steps and counterexamples, where there are any."""
    steps = tuple(
        (wording, step.text, step.method if step.confirmed else "not confirmed")
        for wording, finding in result.wordings.items()
        for step in finding.steps
    )
    examples = tuple(
        (
            shown.dropped,
            shown.text,
            "; ".join(f"{name} {value:.6g}" for name, value in shown.numbers.items()),
            "breaks" if shown.breaks else "holds",
        )
        for shown in result.counterexamples
    )
    claims = tuple((wording, finding.verdict.value, finding.claim) for wording, finding in result.wordings.items())
    tables = (
        Table(result.label, ("wording", "verdict", "claim"), claims),
        Table(f"{result.label}: proof", ("wording", "step", "confirmed by"), steps),
        Table("what breaks without an assumption", ("dropped", "case", "numbers", "claim"), examples),
    )
    return tuple(table for table in tables if table.rows)


def heads_table(checkpoint: Checkpoint, reports: Sequence[HeadReport], notes: tuple[str, ...]) -> Table:
    """One head a row, flags as numbered notes."""
    flags = {flag: index for index, flag in enumerate(dict.fromkeys(f for r in reports for f in r.flags), 1)}
    lengths = sorted({length for report in reports for length in report.prediction.lengths})
    rows = tuple(
        (
            f"{report.layer}.{report.head}",
            number(report.prediction.carrier.query_fraction),
            number(report.prediction.carrier.key_fraction),
            str(report.offset),
            number(report.share),
            str(report.profile_offset),
            number(report.margin.value),
            str(report.margin.competitor),
            *(number(_exact_at(report.prediction, length)) for length in lengths),
            ",".join(str(flags[flag]) for flag in report.flags),
        )
        for report in reports
    )
    named = ("head", "query frac", "key frac", "offset", "share", "phi peak", "margin (nats)", "rival")
    columns = (*named, *(f"L={length}" for length in lengths), "flags")
    reference = reports[0].reference_length
    notes = (
        f"offset and share: highest expected attention at L={reference} by the exact law; "
        f"phi peak, margin, rival: of the means alone; L=...: predicted attention on the offset",
        *(f"flag {index}: {flag}" for flag, index in flags.items()),
        *notes,
    )
    return Table(f"{checkpoint.family}, {checkpoint.format}, sha256 {checkpoint.sha256[:16]}", columns, rows, notes)


def prediction_table(title: str, prediction: Prediction, notes: tuple[str, ...] = ()) -> Table:
    """Every law at every length."""
    rows = tuple(
        (str(length), f"{exact:.4f}", f"{mean:.4f}", f"{bound:.4f}", f"{1 / length:.4f}")
        for length, exact, mean, bound in zip(
            prediction.lengths, prediction.exact, prediction.mean_profile, prediction.bound, strict=True
        )
    )
    return Table(title, ("L", "exact law", "mean-profile law", "margin bound", "uniform"), rows, notes)


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
