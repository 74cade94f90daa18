"""`carrier runs list|show|verify`: what is on disk, and whether it is whole."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from bridge.commands.options import Json, RunsFolder
from bridge.commands.terminal import finish, needs_training_extra, show
from bridge.errors import BridgeError

app = typer.Typer(help="Runs on disk.", rich_markup_mode=None)


@app.command("list")
def list_runs(runs: RunsFolder = Path("runs"), as_json: Json = False) -> None:
    """Every run of a folder and whether it is whole."""
    _states(runs, as_json)


@app.command("verify")
def verify_runs(runs: RunsFolder = Path("runs"), as_json: Json = False) -> None:
    """The same; exit 1 where a run is damaged."""
    finish(_states(runs, as_json))


@app.command("show")
def show_run(run: Annotated[Path, typer.Argument(help="Folder of a run.")], as_json: Json = False) -> None:
    """Spec and evaluation of one run."""
    with needs_training_extra():
        from bridge.run_views import run_document, run_table
        from empirics.store import load_run

    loaded = load_run(run)
    show(as_json, lambda: run_document(loaded, run), (run_table(loaded),), (loaded.spec.to_json().rstrip(),))


def _states(root: Path, as_json: bool) -> bool:
    with needs_training_extra():
        from bridge.run_views import RunState, run_states_document, runs_table
        from empirics.errors import EmpiricsError
        from empirics.store import Store, read_record

    if not root.is_dir():
        raise BridgeError(f"no folder of runs at {root}: give --runs, or train one with `carrier train`")
    states = []
    for path in Store(root).paths():
        try:
            states.append(RunState(path, read_record(path), "whole"))
        except EmpiricsError as error:
            states.append(RunState(path, None, str(error)))
    show(as_json, lambda: run_states_document(states), (runs_table(states),))
    return all(state.record is not None for state in states)
