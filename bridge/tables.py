"""A table that a person reads: in the terminal, and as CSV beside the picture."""

from __future__ import annotations

import csv
import io
import math
from dataclasses import dataclass

from rich.console import Console
from rich.markup import escape
from rich.table import Table as RichTable

_ALARM = {"deviates", "not decided"}


@dataclass(frozen=True)
class Table:
    """Rows of text under named columns, with a title above and notes below."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...] = ()

    def print(self, console: Console) -> None:
        """Draw the table; words that call for attention are red where the terminal has colours."""
        console.print(self.title, style="bold", highlight=False, markup=False)
        drawn = RichTable(header_style="bold")
        for index, column in enumerate(self.columns):
            # Prose reads from the left, numbers and words of a column's width line up on the right.
            prose = index == 0 or any(cell.count(" ") > 3 for cell in (row[index] for row in self.rows))
            drawn.add_column(column, justify="left" if prose else "right", overflow="fold")
        for row in self.rows:
            drawn.add_row(*(f"[red]{cell}[/red]" if cell in _ALARM else escape(cell) for cell in row))
        console.print(drawn)
        for note in self.notes:
            console.print(f"  {note}", highlight=False, markup=False)

    def markdown(self) -> str:
        """The rows as a table of a Markdown page, without title and notes."""
        lines = (self.columns, ("---",) * len(self.columns), *self.rows)
        return "\n".join(f"| {' | '.join(line)} |" for line in lines)

    def csv(self) -> str:
        """The rows as CSV, the columns in the first line."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(self.columns)
        writer.writerows(self.rows)
        return text.getvalue()


def number(value: float | None, decimals: int = 3) -> str:
    """A number for a table; a dash where there is none."""
    return "-" if value is None or math.isnan(value) else f"{value:.{decimals}f}"
