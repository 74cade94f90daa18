"""The statements of the papers, one file each, in the order in which they are used."""

from __future__ import annotations

from theory.errors import TheoryError
from theory.statements import corollary_2_decay, lemma_1_equivariance, lemma_2_selection
from theory.statements.statement import Statement

STATEMENTS: tuple[Statement, ...] = (
    lemma_1_equivariance.STATEMENT,
    lemma_2_selection.STATEMENT,
    corollary_2_decay.STATEMENT,
)


def statement(id: str) -> Statement:
    """The statement of this id. Raises TheoryError naming the known ids where there is none."""
    known = {entry.id: entry for entry in STATEMENTS}
    if id not in known:
        raise TheoryError(f"there is no statement {id!r}: give one of {', '.join(known)}")
    return known[id]
