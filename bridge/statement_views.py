"""Statements as tables that a person reads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from bridge.tables import Table
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
