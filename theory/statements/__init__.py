"""The statements of the papers, one file each: what lies in this folder with a STATEMENT is one."""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules

from theory.errors import TheoryError
from theory.statements.statement import Statement


def _found() -> tuple[Statement, ...]:
    modules = (import_module(f"{__name__}.{module.name}") for module in iter_modules(__path__))
    return tuple(sorted((m.STATEMENT for m in modules if hasattr(m, "STATEMENT")), key=lambda entry: entry.row))


STATEMENTS: tuple[Statement, ...] = _found()


def statement(id: str) -> Statement:
    """The statement of this id. Raises TheoryError naming the known ids where there is none."""
    known = {entry.id: entry for entry in STATEMENTS}
    if id not in known:
        raise TheoryError(f"there is no statement {id!r}: give one of {', '.join(known)}")
    return known[id]
