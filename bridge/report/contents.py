"""What stands in a report, gathered before anything is written: all parts but the statements may be absent.

Source: `theory.statements`; `bridge.report.runs` and `bridge.report.heads` fill in what runs and checkpoints say.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from matplotlib.figure import Figure

from bridge.documents import Document
from bridge.report.explore import NamedCarrier
from bridge.report.heads import HeadMap
from bridge.tables import Table
from theory.statements import STATEMENTS
from theory.statements.statement import Result, check


@dataclass(frozen=True)
class Numbers:
    """A target of the paper: the tables that a person reads, printed numbers beside ours first, and those that are
    stored, by the name of their file."""

    id: str
    tables: tuple[Table, ...]
    stored: Mapping[str, Table]


@dataclass(frozen=True)
class Absent:
    """A target of the paper whose runs are not all on disk."""

    id: str
    title: str
    missing: int
    wanted: int


@dataclass(frozen=True, eq=False)
class Picture:
    """A figure with the name of its files and what it shows."""

    id: str
    title: str
    figure: Figure


@dataclass(frozen=True, eq=False)
class Contents:
    """A report. `source` says what was read; `found` is what runs say of statements, by target; `summary` counts the
    printed numbers that come back; `carriers` are offered on the explorable page."""

    source: str
    statements: tuple[Result, ...] = ()
    found: Mapping[str, str] = field(default_factory=dict)
    summary: str = ""
    numbers: tuple[Numbers, ...] = ()
    absent: tuple[Absent, ...] = ()
    pictures: tuple[Picture, ...] = ()
    runs: Table | None = None
    heads: HeadMap | None = None
    carriers: tuple[NamedCarrier, ...] = ()


def checked_statements() -> tuple[Result, ...]:
    """Every statement with its verdicts; takes seconds, and the same results come in the same order."""
    return tuple(check(statement) for statement in STATEMENTS)


def report_document(contents: Contents, files: Sequence[Path]) -> Document:
    """`carrier report`: what the page holds, and the files."""
    heads = () if contents.heads is None else contents.heads.heads
    return {
        "source": contents.source,
        "statements": len(contents.statements),
        "targets": [one.id for one in contents.numbers],
        "absent": [asdict(one) for one in contents.absent],
        "heads": [{"layer": one.layer, "head": one.head, "offset": one.offset} for one in heads],
        "files": [str(file) for file in files],
    }
