"""What the runs on disk say of a claim that trained weights decide; nothing is trained and nothing written."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from bridge.errors import BridgeError
from bridge.paper import TARGETS
from bridge.paper.target import Cell, Preset
from empirics.errors import EmpiricsError
from empirics.store import Store
from empirics.sweep import missing


def found_on_disk(name: str, root: Path) -> str:
    """How many cells of a target have the verdict on record, from the paper's runs in `root`; else what is missing."""
    known = {target.id: target for target in TARGETS}
    if name not in known:
        return "`carrier reproduce` has no such target yet"
    target, store = known[name], Store(root)
    specs = target.specs_at(Preset.PAPER)
    try:
        absent = missing(specs, store)
        if absent:
            return f"not run: {len(absent)} of {len(specs)} runs are not in {root}"
        cells = target.cells(tuple(store.load(spec) for spec in specs), Preset.PAPER)
    except (BridgeError, EmpiricsError) as error:
        return f"not decided: {error}"
    return told(cells)


def told(cells: Sequence[Cell]) -> str:
    """How many cells have the verdict on record."""
    return f"{sum(cell.as_recorded for cell in cells)} of {len(cells)} cells have the verdict on record"
