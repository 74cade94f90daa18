"""docs/findings.md and a page for each statement, written from the statements themselves.

`make findings` writes the former, a test keeps it current; `make docs` writes the pages anew at every build.
What depends on the machine, seconds and the last digits of residuals, is left out.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from theory.statements import STATEMENTS
from theory.statements.statement import PRINTED, Finding, Result, Shown, Statement, Verdict, check

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


def statement_page(statement: Statement[Any], result: Result) -> str:
    """One statement as markdown: each wording with its verdict and proof, each assumption with what drops it."""
    parts = [f"# {result.label}"]
    for wording, finding in result.wordings.items():
        parts += [f"## As {wording}: {finding.verdict}", finding.claim + _decided_by(finding)]
        parts += ["\n".join(["Proof steps:", "", *_steps(finding)])] if finding.steps else []
        cited = getattr(statement, wording).cited
        parts += [f"Given {' and '.join(cited)}."] if cited else []
    refuting = [_example(shown) for shown in result.counterexamples if shown.dropped == PRINTED]
    if refuting:
        parts += ["## What refutes the printed wording", "\n".join(refuting)]
    if statement.assumptions:
        parts += ["## Assumptions", "Below each: a case that lacks it alone, and misses the claim."]
    for assumption in statement.assumptions:
        examples = [_example(shown) for shown in result.counterexamples if shown.dropped == assumption.id]
        parts += [f"**{assumption.id}**: {assumption.text}.", "\n".join(examples)]
    parts += ["## Check it", f"```sh\ncarrier verify {result.id}\n```", _checked(statement, result)]
    return "\n\n".join(parts)


def _example(shown: Shown) -> str:
    return f"- {shown.text}: {_numbers(shown)}"


def _checked(statement: Statement[Any], result: Result) -> str:
    """What `carrier verify` runs for it, in a sentence."""
    if result.amended.verdict is Verdict.NEEDS_RUN:
        return "No proof step and no case decides it."
    broken = sum(shown.breaks for shown in result.counterexamples)
    return (
        f"{'This runs the proof, holds' if result.amended.steps else 'This holds'} the claim against {result.cases} "
        f"cases drawn under the assumptions, and finds that {broken} of {len(result.counterexamples)} counterexamples "
        f"miss it by a thousand tolerances or more. The tolerance is {statement.tolerance:.0e}: "
        f"{statement.tolerance_reason}."
    )


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
    if result.amended.steps:
        lines += ["", "Proof steps:", "", *_steps(result.amended)]
    if result.counterexamples:
        lines += ["", "| without | case | numbers |", "|---|---|---|"]
        for shown in result.counterexamples:
            dropped = "**refutes the printed wording**" if shown.dropped == PRINTED else shown.dropped
            lines.append(f"| {_cell(dropped)} | {_cell(shown.text)} | {_cell(_numbers(shown))} |")
    return "\n".join([*lines, "", f"`carrier verify {result.id}`"])


def _steps(finding: Finding) -> list[str]:
    return [f"{n}. {step.text} ({step.method})" for n, step in enumerate(finding.steps, 1)]


def _numbers(shown: Shown) -> str:
    return "; ".join(f"{name} = {_number(value)}" for name, value in shown.numbers.items())


def _decided_by(finding: Finding) -> str:
    return f" ({finding.method})" if finding.verdict is Verdict.NEEDS_RUN else ""


def _number(value: float) -> str:
    """Six digits; what is left of 0 by rounding is 0 on every machine."""
    return "0" if abs(value) < _ROUNDING else f"{value:.6g}"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    sys.stdout.write(findings([check(statement) for statement in STATEMENTS]))
