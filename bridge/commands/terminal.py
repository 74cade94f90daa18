"""How commands take lists, show progress and give their results."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from bridge.documents import Document
from bridge.errors import BridgeError
from bridge.tables import Table

_PLAIN_WIDTH = 132
_LONGEST = 1_000_000


def show(
    as_json: bool, document: Callable[[], Document], tables: tuple[Table, ...], notes: tuple[str, ...] = ()
) -> None:
    """One JSON document and nothing else, or tables with notes below."""
    if as_json:
        typer.echo(json.dumps(document(), indent=1, allow_nan=False))
        return
    console = Console(width=None if sys.stdout.isatty() else _PLAIN_WIDTH)
    for table in tables:
        table.print(console)
    say(*notes)


def say(*lines: str) -> None:
    """Plain lines on stdout."""
    for line in lines:
        typer.echo(line)


@contextmanager
def progress(total: int | None, what: str) -> Iterator[Callable[[int], None]]:
    """A bar on stderr, advanced by the function that is yielded; silent where stderr is no terminal.

    A total of None is not known beforehand, one of 0 needs no bar.
    """
    columns = (TextColumn(what), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    console = Console(stderr=True)
    with Progress(*columns, console=console, disable=not console.is_terminal or total == 0) as bar:
        task = bar.add_task(what, total=total)
        yield lambda steps: bar.advance(task, steps)


@contextmanager
def needs_training_extra() -> Iterator[None]:
    """Around imports of what trains and reads runs: a missing package is said in one line."""
    with _needs("train", "trains or reads runs"):
        yield


@contextmanager
def needs_report_extra() -> Iterator[None]:
    """Around imports of what makes the report."""
    with _needs("report", "makes a page"):
        yield


@contextmanager
def _needs(extra: str, does: str) -> Iterator[None]:
    try:
        yield
    except ModuleNotFoundError as error:
        raise BridgeError(
            f"this command {does} and needs {error.name}: pip install 'attention-carrier[{extra}]'"
        ) from None


def saved(folder: Path | None, name: str, table: Table, draw: Callable[[], Any]) -> tuple[Path, ...]:
    """Table and picture in a folder, where one was asked for: only then is anything drawn, or matplotlib loaded."""
    if folder is None:
        return ()
    from bridge.figures.save import save_results

    return save_results(folder, name, table, draw())


def written(files: tuple[Path, ...]) -> tuple[str, ...]:
    """A line for each file."""
    return tuple(f"written: {file}" for file in files)


def lengths_from(option: str, text: str) -> tuple[int, ...]:
    """Lengths in tokens separated by commas, each once. Raises BridgeError that names the option."""
    try:
        values = tuple(int(part) for part in text.split(","))
    except ValueError:
        values = ()
    if not values or min(values) < 2 or max(values) > _LONGEST:
        raise BridgeError(
            f"{option} needs whole numbers from 2 to {_LONGEST} with commas, such as 16,64,256, got {text[:60]!r}"
        )
    return tuple(dict.fromkeys(values))


def check_length(option: str, length: int) -> int:
    """The length itself, in tokens. Raises BridgeError that names the option, for one that `lengths_from` refuses."""
    if not 2 <= length <= _LONGEST:
        raise BridgeError(f"{option} needs a whole number from 2 to {_LONGEST}, got {length}")
    return length


def finish(as_recorded: bool) -> None:
    """Exit 0 where every verdict is the one on record, else 1."""
    if not as_recorded:
        raise typer.Exit(1)
