"""What a reproduction came to: one document with every number, its runs and the machine, and one page to read."""

from __future__ import annotations

import json
import math
import platform
from collections.abc import Sequence
from pathlib import Path

import torch

from bridge.compare import Verdict
from bridge.documents import Document
from bridge.errors import BridgeError
from bridge.paper.target import Bound, Cell, Preset
from bridge.reproduce import Reproduced
from bridge.studies.study import Study
from bridge.tables import Table, number
from empirics.store import Store

_COLUMNS = ("row", "column", "printed", "ours", "spread", "verdict", "reason")


def results_document(results: Sequence[Reproduced], preset: Preset, store: Store, seconds: float) -> Document:
    """Every cell of every target, the spec hash of every run, and where it was made; no weights."""
    specs = dict.fromkeys(run.spec for one in results for run in one.runs)
    return {
        "preset": preset.value,
        "machine": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "torch": torch.__version__,
        "targets": [
            {
                "id": one.target.id,
                "title": one.target.title,
                "statement": one.target.statement,
                "cells": [_cell_document(cell) for cell in one.cells],
                "beside": [_table_document(table) for table in one.companions],
                "notes": list(one.target.notes),
            }
            for one in results
        ],
        "runs": [{"id": spec.id, "seed": spec.seed, "path": str(store.path(spec))} for spec in specs],
        "files": [str(file) for one in results for file in one.files],
        "seconds": round(seconds, 3),
    }


def save_summary(folder: Path, results: Sequence[Reproduced], document: Document) -> tuple[Path, ...]:
    """Write results.json and results.md: for the same runs the same bytes, in whatever folder. Raises BridgeError where
    that fails."""
    data, page = folder / "results.json", folder / "results.md"
    lasting = {key: value for key, value in document.items() if key != "seconds"}
    lasting["files"] = [Path(file).name for file in document["files"]]
    try:
        data.write_text(json.dumps(lasting, indent=1, allow_nan=False) + "\n")
        page.write_text(results_page(results))
    except OSError as error:
        raise BridgeError(f"cannot write to {folder}: {error.strerror}; choose another --out") from None
    return data, page


def summary_line(results: Sequence[Reproduced]) -> str:
    """How many printed numbers came back, and how many bars were met, of those that were compared."""
    cells = [cell for one in results for cell in one.cells]
    printed = [cell for cell in cells if cell.printed.bound is Bound.EQUAL]
    bars = [cell for cell in cells if cell.printed.bound is not Bound.EQUAL]
    parts = []
    if printed and all(cell.verdict in (Verdict.OUT_OF_REGIME, Verdict.NOT_RUN) for cell in printed):
        parts.append(f"{len(printed)} printed numbers, none compared: these runs are not at the paper's settings")
    elif printed:
        back = sum(cell.agrees for cell in printed)
        digits = sum(cell.agrees and cell.digits for cell in printed)
        parts.append(f"{back} of {len(printed)} printed numbers come back, {digits} of them to the last printed digit")
    if bars:
        met, not_run = sum(cell.agrees for cell in bars), sum(cell.verdict is Verdict.NOT_RUN for cell in bars)
        compared = sum(cell.verdict is not Verdict.OUT_OF_REGIME for cell in bars) - not_run
        told = f"{met} of {compared} bars met" if compared else f"{len(bars)} bars, none compared"
        parts.append(told + (f", {not_run} not run" if not_run else ""))
    return "; ".join(parts)


def results_page(results: Sequence[Reproduced]) -> str:
    """Every printed number beside ours, as Markdown."""
    title = "Every bar" if all(isinstance(one.target, Study) for one in results) else "Every printed number"
    lines = [f"# {title} beside ours", "", summary_line(results) + ".", ""]
    missed = [_missed(one.target.id, cell) for one in results for cell in one.cells if cell.verdict is Verdict.DEVIATES]
    if missed:
        lines += ["Those that do not:", "", *missed, ""]
    for one in results:
        lines += [f"## {one.target.id}: {one.target.title}", ""]
        if one.cells:
            lines += [Table("", _COLUMNS, tuple(_row(cell) for cell in one.cells)).markdown(), ""]
        lines += _listed(one.target.notes)
        for table in one.companions:
            lines += [f"**{table.title}**", "", table.markdown(), "", *_listed(table.notes)]
    return "\n".join(lines).rstrip() + "\n"


def _listed(notes: Sequence[str]) -> list[str]:
    return [*(f"- {note}" for note in notes), ""] if notes else []


def _missed(target: str, cell: Cell) -> str:
    place = f"{target}, {cell.printed.row}, {cell.printed.column}"
    why = f"; {cell.reason}" if cell.reason else ""
    return f"- {place}: printed {_printed(cell)}, ours {_ours(cell)}{why}"


def _row(cell: Cell) -> tuple[str, ...]:
    spread = number(cell.measured.spread, cell.printed.decimals + 2)
    return (*cell.printed.key, _printed(cell), _ours(cell), spread, cell.word, cell.reason)


def _printed(cell: Cell) -> str:
    return cell.printed.text


def _ours(cell: Cell) -> str:
    return number(cell.measured.value, cell.printed.decimals + 2)


def _table_document(table: Table) -> Document:
    return {
        "title": table.title,
        "columns": list(table.columns),
        "rows": [list(row) for row in table.rows],
        "notes": list(table.notes),
    }


def _cell_document(cell: Cell) -> Document:
    return {
        "row": cell.printed.row,
        "column": cell.printed.column,
        "printed": cell.printed.value,
        "decimals": cell.printed.decimals,
        "ours": cell.measured.value if math.isfinite(cell.measured.value) else None,
        "spread": cell.measured.spread,
        "same_digits": cell.digits,
        "verdict": cell.verdict.value,
        "recorded": cell.printed.recorded.value,
        "reason": cell.reason,
    } | ({} if cell.printed.bound is Bound.EQUAL else {"bound": cell.printed.bound.value})
