"""`carrier verify`: which statements hold, how sure that is, and what breaks them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bridge.commands.options import Json, RunsFolder
from bridge.commands.terminal import finish, show
from bridge.documents import verify_document
from bridge.statement_views import statement_story, statements_table

if TYPE_CHECKING:
    from theory.statements.statement import Statement


def verify(
    statements: Annotated[list[str] | None, typer.Argument(help="Such as lemma-2; default all.")] = None,
    runs: RunsFolder = Path("runs"),
    as_json: Json = False,
) -> None:
    """Check statements: symbolically, numerically, and by what breaks them. Needs no torch.

    Of a claim that trained weights decide it says what the runs on disk show, where torch is there to read them.
    """
    from theory.statements import STATEMENTS, statement
    from theory.statements.statement import check

    chosen = [statement(name) for name in statements] if statements else list(STATEMENTS)
    results = [check(one) for one in chosen]
    found = _found(chosen, runs)
    stories = tuple(table for result in results for table in statement_story(result)) if statements else ()
    show(as_json, lambda: verify_document(results, found), (statements_table(results, found), *stories))
    finish(all(result.agrees for result in results))


def _found(statements: Sequence[Statement], runs: Path) -> dict[str, str]:
    """By target of `carrier reproduce`, what the runs on disk say."""
    wordings = [wording for entry in statements for wording in (entry.printed, entry.amended) if wording is not None]
    targets = dict.fromkeys(wording.target for wording in wordings if wording.target is not None)
    if not targets:
        return {}
    try:
        from bridge.on_disk import found_on_disk
    except ModuleNotFoundError:
        return dict.fromkeys(targets, "reading runs needs `pip install 'attention-carrier[train]'`")
    return {target: found_on_disk(target, runs) for target in targets}
