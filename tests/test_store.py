"""Runs on disk: whole or named as damaged, never trained twice, never overwritten."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import ROOT, tiny_spec
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import save_file

from empirics.errors import DamagedRun, EmpiricsError
from empirics.spec import LearnedPositions, RunSpec, transformer_spec
from empirics.specs import Spec
from empirics.store import Store, load_run, read_record
from empirics.sweep import missing, sweep
from empirics.train import Checkpoint, LossPoint, train, train_together


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
    """Training alone and in a sweep gives the same bits."""
    stored, trained = tiny_store.load(tiny_spec()), train(tiny_spec())
    assert stored.spec == trained.spec and stored.history == trained.history
    assert stored.learner == trained.learner == "stacked"
    assert stored.evaluation == trained.evaluation
    for name, parameter in trained.model.state_dict().items():
        assert torch.equal(stored.model.state_dict()[name], parameter)


@pytest.mark.case(31)
def test_a_finished_run_is_not_trained_again(tiny_store: Store) -> None:
    specs = [tiny_spec(), tiny_spec(encoding=LearnedPositions())]
    before = {path: path.stat().st_mtime_ns for root in tiny_store.paths() for path in root.iterdir()}
    sweep(specs, tiny_store)
    assert {path: path.stat().st_mtime_ns for root in tiny_store.paths() for path in root.iterdir()} == before
    assert missing([*specs, tiny_spec(seed=9), tiny_spec(seed=9)], tiny_store) == (tiny_spec(seed=9),)


@pytest.mark.case(28)
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


@pytest.mark.case(26)
def test_a_process_killed_while_it_writes_leaves_no_run(tiny_store: Store, tmp_path: Path) -> None:
    """Killed just before the rename: no folder has the name of the run, and the next call trains it."""
    code = (
        "import os; from pathlib import Path; from empirics import atomic, store; "
        "atomic._rename = lambda partial, target: os._exit(9); "
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


@pytest.fixture(scope="module")
def kept() -> Checkpoint:
    """A checkpoint of a run of 60 steps at step 50."""
    checkpoints: list[Checkpoint] = []
    list(train_together([long_spec()], keep=checkpoints.append, keep_seconds=0))
    return checkpoints[0]


def long_spec() -> RunSpec:
    """A run that has a checkpoint before its last step."""
    return tiny_spec(steps=60, width=8, vocabulary=5)


def assert_same_checkpoint(one: Checkpoint | None, other: Checkpoint) -> None:
    """Bit for bit, tensors without a shape and the generator's bytes among them."""
    assert one is not None
    assert (one.spec, one.step, one.history) == (other.spec, other.step, other.history)
    assert one.state.keys() == other.state.keys()
    for name, tensor in other.state.items():
        assert one.state[name].dtype == tensor.dtype and one.state[name].shape == tensor.shape
        assert torch.equal(one.state[name], tensor), name


def test_a_checkpoint_is_read_as_it_was_kept(kept: Checkpoint, tmp_path: Path) -> None:
    store = Store.open(tmp_path)
    assert store.checkpoint(long_spec()) is None
    store.keep(kept)
    assert_same_checkpoint(store.checkpoint(long_spec()), kept)
    assert [path.name for path in tmp_path.iterdir()] == [f".state-{long_spec().id}.safetensors"]
    assert store.paths() == () and not store.has(long_spec()), "a run in training is no finished one"
    assert not store.checkpoint_path(long_spec()).read_bytes().startswith((b"\x80", b"PK")), "no pickle"


def test_a_later_checkpoint_takes_the_place_of_the_earlier(kept: Checkpoint, tmp_path: Path) -> None:
    store, later = Store.open(tmp_path), replace(kept, step=55, history=(*kept.history, LossPoint(55, 0.1)))
    store.keep(kept)
    store.keep(later)
    assert_same_checkpoint(store.checkpoint(long_spec()), later)
    assert len(list(tmp_path.iterdir())) == 1


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_damaged_checkpoint_is_told_from_a_whole_one(
    kept: Checkpoint, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """Cut anywhere, or any byte altered: never taken for what was kept, and left as it is."""
    store = Store.open(tmp_path_factory.mktemp("damaged"))
    store.keep(kept)
    path = store.checkpoint_path(long_spec())
    whole = path.read_bytes()
    place = data.draw(st.integers(0, len(whole) - 1))
    cut = data.draw(st.booleans())
    damaged = whole[:place] if cut else whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :]
    path.write_bytes(damaged)
    with pytest.raises(DamagedRun, match=rf"checkpoint {re.escape(str(path))} cannot be used .*move it away") as told:
        store.checkpoint(long_spec())
    assert "\n" not in str(told.value)
    with pytest.raises(DamagedRun):
        sweep([tiny_spec(), long_spec()], store)
    assert path.read_bytes() == damaged
    assert store.paths() == (), "nothing was trained"


@pytest.mark.parametrize(
    "change",
    [{"step": 51}, {"history": (LossPoint(50, 0.5),)}, {"spec": tiny_spec(seed=4)}],
    ids=lambda change: next(iter(change)),
)
def test_what_the_header_says_is_vouched_for(kept: Checkpoint, change: dict[str, Any], tmp_path: Path) -> None:
    """The header of another checkpoint over these tensors, each valid in itself."""
    store, other = Store.open(tmp_path), replace(kept, **change)
    store.keep(other)
    with safe_open(store.checkpoint_path(other.spec), framework="pt") as file:
        header = file.metadata()
    store.keep(kept)
    path = store.checkpoint_path(kept.spec)
    with safe_open(path, framework="pt") as file:
        header["sha256"] = file.metadata()["sha256"]
    save_file(dict(kept.state), path, header)
    with pytest.raises(DamagedRun, match=r"altered since it was written"):
        store.checkpoint(kept.spec)


def test_the_checkpoint_of_another_spec_is_named(kept: Checkpoint, tmp_path: Path) -> None:
    store, other = Store.open(tmp_path), tiny_spec(seed=4)
    store.keep(kept)
    store.checkpoint_path(kept.spec).rename(store.checkpoint_path(other))
    with pytest.raises(DamagedRun, match="of another spec"):
        store.checkpoint(other)


def test_a_finished_run_has_no_checkpoint(kept: Checkpoint, tmp_path: Path) -> None:
    store = Store.open(tmp_path)
    store.keep(kept)
    store.save(train(long_spec()))
    assert [path.name for path in tmp_path.iterdir()] == [long_spec().id]
    store.keep(kept)
    assert Store.open(tmp_path).checkpoint(long_spec()) is None, "one that a killed process left is stale"
    store.keep(kept)
    (store.path(long_spec()) / "run.json").unlink()
    assert Store.open(tmp_path).checkpoint(long_spec()) is not None, "of a damaged run it stays"


@pytest.mark.case(26)
def test_a_disk_that_is_full_leaves_the_earlier_checkpoint(
    kept: Checkpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store.open(tmp_path)
    store.keep(kept)

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(EmpiricsError, match=r"cannot write a checkpoint of run rope-k2.*No space left on device"):
        store.keep(replace(kept, step=55))
    assert_same_checkpoint(store.checkpoint(long_spec()), kept)
    assert len(list(tmp_path.iterdir())) == 1


def test_a_transformer_is_stored_and_read(tmp_path: Path) -> None:
    spec = transformer_spec(
        steps=2, width=8, heads=2, batch=4, evaluation_lengths=(12,), evaluation_sequences=8, profile_sequences=4
    )
    store, trained = Store.open(tmp_path), train(spec)
    store.save(trained)
    stored = store.load(spec)
    assert (stored.spec, stored.history, stored.evaluation) == (spec, trained.history, trained.evaluation)
    for name, weight in trained.model.state_dict().items():
        assert torch.equal(stored.model.state_dict()[name], weight)


@pytest.mark.parametrize(
    ("spec", "learner"),
    [
        (tiny_spec(steps=0, vocabulary=400), "plain"),
        (tiny_spec(steps=0, batch=256), "stacked"),
        (transformer_spec(steps=0, width=8, heads=2, evaluation_sequences=2, profile_sequences=2), "transformer"),
    ],
    ids=["plain", "stacked", "transformer"],
)
def test_the_record_says_how_a_run_was_trained(spec: Spec, learner: str, tmp_path: Path) -> None:
    record = read_record(Store.open(tmp_path).save(train(spec)))
    assert (record.learner, record.device, record.threads) == (learner, "cpu", torch.get_num_threads())
