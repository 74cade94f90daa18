"""Runs on disk: whole or named as damaged, never trained twice, never overwritten."""

from __future__ import annotations

import errno
import json
import multiprocessing
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from conftest import ROOT, tiny_spec

from empirics.errors import DamagedRun, EmpiricsError
from empirics.spec import LearnedPositions
from empirics.store import Store, load_run
from empirics.sweep import missing, sweep
from empirics.train import train


@pytest.fixture
def copied(tiny_store: Store, tmp_path: Path) -> Path:
    """A run folder of a test's own."""
    source = tiny_store.path(tiny_spec())
    return Path(shutil.copytree(source, tmp_path / source.name))


@pytest.fixture
def one_thread() -> Iterator[None]:
    """As in a worker of a sweep: sums over threads round differently."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.usefixtures("one_thread")
def test_a_stored_run_is_the_run_that_was_trained(tiny_store: Store) -> None:
    """Training in this process and in a worker of a sweep gives the same bits."""
    stored, trained = tiny_store.load(tiny_spec()), train(tiny_spec())
    assert stored.spec == trained.spec and stored.history == trained.history
    assert stored.evaluation == trained.evaluation
    for name, parameter in trained.model.state_dict().items():
        assert torch.equal(stored.model.state_dict()[name], parameter)


def test_a_finished_run_is_not_trained_again(tiny_store: Store) -> None:
    specs = [tiny_spec(), tiny_spec(encoding=LearnedPositions())]
    before = {path: path.stat().st_mtime_ns for root in tiny_store.paths() for path in root.iterdir()}
    sweep(specs, tiny_store)
    assert {path: path.stat().st_mtime_ns for root in tiny_store.paths() for path in root.iterdir()} == before
    assert missing([*specs, tiny_spec(seed=9), tiny_spec(seed=9)], tiny_store) == (tiny_spec(seed=9),)


def test_a_run_folder_holds_no_pickle(tiny_store: Store) -> None:
    names = {path.name for path in tiny_store.path(tiny_spec()).iterdir()}
    assert names == {"spec.json", "weights.safetensors", "history.jsonl", "evaluation.json", "run.json"}
    for path in tiny_store.path(tiny_spec()).iterdir():
        assert not path.read_bytes().startswith((b"\x80", b"PK"))


@pytest.mark.parametrize("name", ["spec.json", "weights.safetensors", "history.jsonl", "evaluation.json"])
@pytest.mark.parametrize("damage", ["cut", "altered", "missing"])
def test_a_damaged_run_is_named_and_left(copied: Path, name: str, damage: str) -> None:
    file, store = copied / name, Store(copied.parent)
    whole = file.read_bytes()
    if damage == "missing":
        file.unlink()
    else:
        file.write_bytes(whole[:-1] if damage == "cut" else whole[:-1] + bytes([whole[-1] ^ 1]))
    before = {path.name: path.read_bytes() for path in copied.iterdir()}
    for attempt in (lambda: load_run(copied), lambda: sweep([tiny_spec()], store)):
        with pytest.raises(DamagedRun, match=f"{name}.*(missing|altered or cut).*left as it is"):
            attempt()
    assert {path.name: path.read_bytes() for path in copied.iterdir()} == before


def test_a_damaged_record_is_named(copied: Path) -> None:
    (copied / "run.json").write_text("{")
    with pytest.raises(DamagedRun, match=r"run\.json is damaged"):
        load_run(copied)
    (copied / "run.json").unlink()
    with pytest.raises(DamagedRun, match=r"has no run\.json, so it is no finished run"):
        load_run(copied)


def test_weights_of_another_shape_are_a_damaged_run(copied: Path, tiny_store: Store) -> None:
    """Checksums that fit do not make learned positions the weights of a rotary run."""
    other = tiny_store.path(tiny_spec(encoding=LearnedPositions())) / "weights.safetensors"
    shutil.copy(other, copied / "weights.safetensors")
    record = json.loads((copied / "run.json").read_text())
    other_record = json.loads((other.parent / "run.json").read_text())
    record["sha256"]["weights.safetensors"] = other_record["sha256"]["weights.safetensors"]
    (copied / "run.json").write_text(json.dumps(record))
    with pytest.raises(DamagedRun, match="cannot be read"):
        load_run(copied)


def test_the_folder_of_another_spec_is_named(copied: Path) -> None:
    wrong = copied.rename(copied.parent / tiny_spec(seed=3).id)
    with pytest.raises(DamagedRun, match=f"holds the run of another spec, {tiny_spec().id}"):
        Store(wrong.parent).has(tiny_spec(seed=3))


def test_a_run_cut_while_it_is_written_leaves_nothing_behind(
    tiny_store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store.open(tmp_path / "runs")
    monkeypatch.setattr(Path, "rename", lambda self, target: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        store.save(tiny_store.load(tiny_spec()))
    assert list(store.root.iterdir()) == []


def test_a_run_that_is_there_stays(tiny_store: Store) -> None:
    path = tiny_store.path(tiny_spec())
    before = (path / "run.json").read_bytes()
    assert tiny_store.save(train(tiny_spec())) == path
    assert (path / "run.json").read_bytes() == before
    assert not [entry for entry in tiny_store.root.iterdir() if entry.name.startswith(".")]


def test_a_folder_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(EmpiricsError, match=r"cannot write to .*file/runs: Not a directory; choose another folder"):
        Store.open(tmp_path / "file" / "runs")


def test_a_record_that_vouches_for_nothing_is_damaged(copied: Path) -> None:
    record = json.loads((copied / "run.json").read_text())
    (copied / "run.json").write_text(json.dumps(record | {"sha256": {}}))
    with pytest.raises(DamagedRun, match=r"run\.json does not list spec\.json, weights\.safetensors"):
        load_run(copied)


def test_a_process_killed_while_it_writes_leaves_no_run(tiny_store: Store, tmp_path: Path) -> None:
    """Killed just before the rename: no folder has the name of the run, and the next call trains it."""
    code = (
        "import os; from pathlib import Path; from empirics import store; "
        "store._rename = lambda partial, target: os._exit(9); "
        f"root = Path({str(tiny_store.root)!r}); run = store.load_run(root / {tiny_spec().id!r}); "
        f"store.Store.open(Path({str(tmp_path)!r})).save(run)"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT).returncode == 9
    store = Store.open(tmp_path)
    assert store.paths() == () and not store.has(tiny_spec())
    (partial,) = tmp_path.iterdir()
    os.utime(partial, (0, 0))
    assert list(Store.open(tmp_path).root.iterdir()) == [], "what a killed process left is swept up later"
    sweep([tiny_spec()], store)
    assert store.has(tiny_spec())


def test_another_process_that_was_first_is_left_its_run(
    tiny_store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The target comes to be between the look and the rename."""
    store = Store.open(tmp_path)
    store.save(tiny_store.load(tiny_spec()))
    before = (store.path(tiny_spec()) / "run.json").stat().st_mtime_ns
    real = Path.exists
    monkeypatch.setattr(Path, "exists", lambda self: self.name != tiny_spec().id and real(self))
    store.save(tiny_store.load(tiny_spec()))
    monkeypatch.undo()
    assert (store.path(tiny_spec()) / "run.json").stat().st_mtime_ns == before
    assert [path.name for path in tmp_path.iterdir()] == [tiny_spec().id]


def test_a_disk_that_is_full_is_one_line(tiny_store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, run = Store.open(tmp_path), tiny_store.load(tiny_spec())

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(EmpiricsError, match=r"cannot write run rope-k2.*No space left on device"):
        store.save(run)
    assert list(tmp_path.iterdir()) == []


def test_a_killed_worker_is_told_in_one_line_and_finished_runs_stay(tmp_path: Path) -> None:
    store = Store.open(tmp_path)
    sweep([tiny_spec()], store)
    killed = False

    def kill(steps: int) -> None:
        nonlocal killed
        for worker in [] if killed else multiprocessing.active_children():
            worker.kill()
        killed = True

    long = tiny_spec(steps=100_000)
    with pytest.raises(EmpiricsError, match=f"a training process was killed.*not finished: {long.id}.*are kept"):
        sweep([tiny_spec(), long], store, progress=kill)
    assert [path.name for path in store.paths()] == [tiny_spec().id]


def test_an_interrupt_stops_the_workers(tmp_path: Path) -> None:
    def interrupt(steps: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        sweep([tiny_spec(steps=100_000)], Store.open(tmp_path), progress=interrupt)
    assert multiprocessing.active_children() == [] and list(tmp_path.iterdir()) == []
