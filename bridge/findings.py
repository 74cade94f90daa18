"""docs/findings.md, written from the statements themselves: `make findings` writes it, a test keeps it current.

What depends on the machine, seconds and the last digits of residuals, is left out.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from theory.statements import STATEMENTS
from theory.statements.statement import PRINTED, Finding, Result, Verdict, check

_INTRODUCTION = """# Findings

What holds of arXiv 2607.18759 and of the three papers beside it, as `carrier verify` computes it: proofs by sympy or by
ball arithmetic, cases drawn under the assumptions, and a counterexample for each assumption that is dropped. Claims are
restated, not quoted; of the three papers beside it only the abstracts were at hand, and what their claims are taken to
be is said with each. This page is written from the statements (`make findings`); each has a file under
`theory/statements/`.
"""
_ROUNDING = 1e-12
_SECTIONS = (
    ("Refuted as printed", "The printed wording fails in a case that meets every assumption; the amended one stands."),
    ("Holds as printed", "The amended wording says more, or says the same more exactly."),
    ("Decided by trained weights", "Theory alone does not decide these; the named target trains what does."),
    ("Ours", "No paper prints these; the account needs them."),
)


def findings(results: Sequence[Result]) -> str:
    """The page as markdown: a table of all statements, then each with its claims, proof and counterexamples."""
    rows = [
        f"| {result.label} | {result.printed.verdict if result.printed else '-'} | {result.amended.verdict} | "
        f"`carrier verify {result.id}` |"
        for result in results
    ]
    table = ["| statement | as printed | as amended | shown by |", "|---|---|---|---|", *rows]
    parts = [_INTRODUCTION, "\n".join(table)]
    for number, (title, text) in enumerate(_SECTIONS):
        chosen = [result for result in results if _section(result) == number]
        if chosen:
            parts += [f"## {title}\n\n{text}", *(_story(result) for result in chosen)]
    return "\n\n".join(part.rstrip("\n") for part in parts) + "\n"


def _section(result: Result) -> int:
    if Verdict.NEEDS_RUN in {finding.verdict for finding in result.wordings.values()}:
        return 2
    if result.printed is None:
        return 3
    return 0 if result.printed.verdict is Verdict.REFUTED else 1


def _story(result: Result) -> str:
    lines = [f"### {result.label}", ""]
    for wording, finding in result.wordings.items():
        lines.append(f"- **{wording}, {finding.verdict}**: {finding.claim}{_decided_by(finding)}")
    steps = result.amended.steps
    if steps:
        lines += ["", "Proof steps:", "", *(f"{n}. {step.text} ({step.method})" for n, step in enumerate(steps, 1))]
    if result.counterexamples:
        lines += ["", "| without | case | numbers |", "|---|---|---|"]
        for shown in result.counterexamples:
            numbers = "; ".join(f"{name} = {_number(value)}" for name, value in shown.numbers.items())
            dropped = "**refutes the printed wording**" if shown.dropped == PRINTED else shown.dropped
            lines.append(f"| {_cell(dropped)} | {_cell(shown.text)} | {_cell(numbers)} |")
    return "\n".join([*lines, "", f"`carrier verify {result.id}`"])


def _decided_by(finding: Finding) -> str:
    return f" ({finding.method})" if finding.verdict is Verdict.NEEDS_RUN else ""


def _number(value: float) -> str:
    """Six digits; what is left of 0 by rounding is 0 on every machine."""
    return "0" if abs(value) < _ROUNDING else f"{value:.6g}"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    sys.stdout.write(findings([check(statement) for statement in STATEMENTS]))
