"""A Sphinx extension that writes a page for each statement and the table of all of them, when a build begins.

The pages come from `bridge.findings`, so that they say what `carrier verify` computes at that moment.
"""

from __future__ import annotations

import inspect
import sys
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx

from bridge.findings import statement_page
from theory.statements import STATEMENTS
from theory.statements.statement import Result, Statement, check

_INDEX = """# Statements

What arXiv 2607.18759 and three papers beside it claim, and what holds of it. Every verdict is computed when this page
is built; claims are restated, not quoted. [Findings](../findings.md) has the same on one page, by verdict;
[Doubt a lemma](../how-to/statement.md) says how to check one or add one.

| statement | as printed | as amended |
|---|---|---|
"""
_WORDS = """
*Proved*: every step by sympy, for every width. *Certified*: a step by ball arithmetic, whose error is bounded. *Proved
given a cited theorem*: the theorem is named on the page and not proved here. *Refuted*: a case that meets every
assumption misses the claim. *Needs a run*: trained weights decide it, in `carrier reproduce`. -: no paper prints it, it
is ours.
"""


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("builder-inited", _write)
    return {"parallel_read_safe": True}


def _write(app: Sphinx) -> None:
    results = [check(statement) for statement in STATEMENTS]
    pages = {f"{one.id}.md": _page(one, result) for one, result in zip(STATEMENTS, results, strict=True)}
    pages["index.md"] = _index(results)
    folder = Path(app.srcdir) / "statements"
    folder.mkdir(exist_ok=True)
    for old in folder.glob("*.md"):
        if old.name not in pages:
            old.unlink()
    for name, text in pages.items():
        # A page that did not change keeps its time, and Sphinx does not read it again.
        if not (folder / name).is_file() or (folder / name).read_text(encoding="utf-8") != text:
            (folder / name).write_text(text, encoding="utf-8")


def _index(results: list[Result]) -> str:
    rows = [
        f"| [{one.label}]({one.id}.md) | {one.printed.verdict if one.printed else '-'} | {one.amended.verdict} |\n"
        for one in results
    ]
    names = "\n".join(one.id for one in results)
    return "".join([_INDEX, *rows, _WORDS, "\n```{toctree}\n:hidden:\n\n", names, "\n```\n"])


def _page(statement: Statement[Any], result: Result) -> str:
    """What `bridge.findings` says of it, then the equations and the code of its file."""
    module = sys.modules[statement.draw.__module__]
    path = f"{module.__name__.replace('.', '/')}.py"
    equations = f"## In equations\n\n```text\n{module.__doc__}```"
    code = f"```python\n{inspect.getsource(module)}```"
    source = f"## Source\n\n<details>\n<summary>{path}</summary>\n\n{code}\n\n</details>\n"
    return "\n\n".join([statement_page(statement, result), equations, source])
