"""`carrier verify`: which statements hold, how sure that is, and what breaks them."""

from __future__ import annotations

from typing import Annotated

import typer

from bridge.commands.options import Json
from bridge.commands.terminal import finish, show
from bridge.documents import verify_document
from bridge.views import statement_story, statements_table


def verify(
    statements: Annotated[list[str] | None, typer.Argument(help="Such as lemma-2; default all.")] = None,
    as_json: Json = False,
) -> None:
    """Check statements: symbolically, numerically, and by what breaks them. Needs no torch."""
    from theory.statements import STATEMENTS, statement
    from theory.statements.statement import check

    chosen = [statement(name) for name in statements] if statements else list(STATEMENTS)
    results = [check(one) for one in chosen]
    stories = tuple(table for result in results for table in statement_story(result)) if statements else ()
    show(as_json, lambda: verify_document(results), (statements_table(results), *stories))
    finish(all(result.agrees for result in results))
