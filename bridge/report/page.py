"""The report as one file: template, style, scripts, data and plotly, so that it opens from the file system.

For the same contents the same bytes: identifiers are fixed and nothing is dated.

Source: `bridge.report.contents`; templates in `bridge/report/templates`.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from plotly.offline import get_plotlyjs

from bridge.documents import Document
from bridge.errors import BridgeError
from bridge.figures.save import save_figure, save_results
from bridge.output import output_folder
from bridge.report.charts import chart
from bridge.report.contents import Contents
from bridge.report.explore import explorable
from bridge.statement_views import statement_story
from bridge.tables import Table
from empirics.atomic import write_file
from theory.statements.statement import Result

PAGE, FIGURES = "report.html", "figures"
_SCRIPTS = ("charts.js", "explore.js", "page.js")
_ALARMS = {"deviates", "not decided", "refuted"}


@dataclass(frozen=True)
class StatementEntry:
    """A statement as it is shown: its verdicts, what runs say, and the tables behind them."""

    result: Result
    found: tuple[str, ...]
    story: tuple[Table, ...]


def save_report(contents: Contents, folder: Path) -> tuple[Path, ...]:
    """Write report.html, its pictures and the tables of numbers. Raises BridgeError where that fails.

    What cannot be made is found out before anything is written.
    """
    page, place = report_page(contents), output_folder(folder / FIGURES)
    files: tuple[Path, ...] = ()
    for one in contents.numbers:
        for name, table in one.stored.items():
            files += save_results(place, name, table)
    for picture in contents.pictures:
        files += save_figure(place, picture.id, picture.figure)
    try:
        write_file(folder / PAGE, page.encode())
    except OSError as error:
        raise BridgeError(f"cannot write to {folder}: {error.strerror}; choose another --out") from None
    return (folder / PAGE, *files)


def report_page(contents: Contents) -> str:
    """The page as HTML, with everything in it that it needs."""
    environment = Environment(
        loader=PackageLoader("bridge.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["json"] = _json
    environment.tests["alarming"] = lambda word: word in _ALARMS
    own = resources.files("bridge.report")
    return environment.get_template("report.html").render(
        contents=contents,
        statements=[_statement(result, contents) for result in contents.statements],
        charts=[(picture.title, chart(picture.id, picture.figure)) for picture in contents.pictures],
        explore=explorable(contents.carriers),
        style=Markup((own / "page.css").read_text()),
        plotly=Markup(get_plotlyjs()),
        scripts=[Markup((own / name).read_text()) for name in _SCRIPTS],
    )


def _statement(result: Result, contents: Contents) -> StatementEntry:
    targets = dict.fromkeys(finding.target for finding in result.wordings.values() if finding.target)
    found = tuple(f"{target}: {contents.found[target]}" for target in targets if target in contents.found)
    return StatementEntry(result, found, statement_story(result))


def _json(document: Document) -> Markup:
    """JSON that a page may hold: no tag can begin in it."""
    return Markup(json.dumps(document, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c"))
