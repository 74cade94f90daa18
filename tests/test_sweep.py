"""Sweeps: what is cut for whom, the same bits through every executor, workers that die, runs that fail."""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from conftest import ROOT, tiny_spec
from hypothesis import given
from hypothesis import strategies as st
from threadpoolctl import threadpool_info, threadpool_limits

from empirics.errors import EmpiricsError
from empirics.executors import cluster, local_pool
from empirics.learner import PlainLearner
from empirics.spec import LearnedPositions, NoPositions, Rotary, RunSpec, transformer_spec
from empirics.specs import Spec
from empirics.stacked import bytes_per_run, stack_key
from empirics.store import Store, read_record
from empirics.sweep import STACK_BYTES, Stack, missing, share_out, sweep, train_and_store
from empirics.train import Run, train, train_together

SHORT = {"steps": 100, "batch": 64, "width": 16, "vocabulary": 16, "evaluation_sequences": 64}
FLEET: tuple[Spec, ...] = (
    *[tiny_spec(**SHORT, seed=seed) for seed in range(3)],
    *[tiny_spec(**SHORT, seed=seed, encoding=LearnedPositions()) for seed in range(2)],
    tiny_spec(**SHORT | {"vocabulary": 400}),
    transformer_spec(
        steps=20, width=16, heads=2, batch=8, evaluation_lengths=(12,), evaluation_sequences=8, profile_sequences=4
    ),
)
# Long enough to be caught at work, wherever it runs.
LONG = tiny_spec(steps=100_000)


def bits(store: Store, spec: Spec) -> dict[str, bytes]:
    """What a run is; run.json has the time that it took."""
    return {file.name: file.read_bytes() for file in store.path(spec).iterdir() if file.name != "run.json"}


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """The fleet, swept in this process."""
    store = Store.open(tmp_path_factory.mktemp("here"))
    sweep(FLEET, store)
    return store


def assert_same_runs(store: Store, here: Store) -> None:
    """Every run of the fleet has the bits that it has when it is swept in this process."""
    for spec in FLEET:
        assert bits(store, spec) == bits(here, spec), spec.id


# What is cut for whom


def head_specs(runs: int, **fields: object) -> tuple[RunSpec, ...]:
    """Runs of one stack."""
    return tuple(tiny_spec(seed=seed, **fields) for seed in range(runs))


@given(
    sizes=st.lists(st.integers(1, 12), min_size=1, max_size=4),
    steps=st.lists(st.integers(1, 5000), min_size=4, max_size=4),
    workers=st.integers(1, 6),
    most=st.integers(1, 12),
)
def test_every_run_is_in_one_part_that_fits_and_shares_are_equal(
    sizes: list[int], steps: list[int], workers: int, most: int
) -> None:
    stacks = [Stack(head_specs(size, steps=count), 0, True) for size, count in zip(sizes, steps, strict=False)]
    budget = most * bytes_per_run(tiny_spec())
    parts = share_out(stacks, workers, budget)
    assert sorted(spec.id for part in parts for spec in part.specs) == sorted(
        spec.id for stack in stacks for spec in stack.specs
    )
    assert all(len({stack_key(spec) for spec in part.specs}) == 1 for part in parts)
    assert all(len(part.specs) * bytes_per_run(tiny_spec()) <= budget for part in parts)
    work = [part.work for part in parts]
    assert work == sorted(work, reverse=True), "most work first"
    run = max(stack.work_per_run for stack in stacks)
    assert max(work) <= sum(work) / workers + run, "no part is more than a share, up to one run"
    if budget >= sum(sizes) * bytes_per_run(tiny_spec()):
        assert len(parts) <= len(stacks) + workers - 1, "no cut without a reason"


def test_one_worker_and_enough_memory_cut_nothing() -> None:
    stacks = (Stack(head_specs(64), 0, True), Stack(head_specs(8, steps=10), 5, True))
    assert {part.specs for part in share_out(stacks, 1, STACK_BYTES)} == {stack.specs for stack in stacks}


def test_a_run_larger_than_the_budget_trains_alone() -> None:
    assert [len(part.specs) for part in share_out([Stack(head_specs(3), 0, True)], 1, 1)] == [1, 1, 1]


@pytest.fixture
def together(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Spec, ...]]:
    """The runs that this process trains together, as it begins to."""
    seen: list[tuple[Spec, ...]] = []

    def noting(specs: tuple[Spec, ...], *others: object) -> Iterator[object]:
        seen.append(specs)
        return train_together(specs, *others)

    monkeypatch.setattr("empirics.sweep.train_together", noting)
    return seen


def test_a_stack_larger_than_memory_is_split_and_has_the_same_bits(
    here: Store, tmp_path: Path, together: list[tuple[Spec, ...]]
) -> None:
    store = Store.open(tmp_path)
    sweep(FLEET, store)
    assert sorted(map(len, together)) == [1, 1, 2, 3]
    together.clear()
    split = Store.open(tmp_path / "split")
    sweep(FLEET, split, stack_bytes=bytes_per_run(tiny_spec(**SHORT)) * 5 // 2)
    assert max(map(len, together)) == 2 and len(together) > 4
    assert_same_runs(store, here)
    assert_same_runs(split, here)


def test_where_the_device_has_no_tables_every_run_trains_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, together: list[tuple[Spec, ...]]
) -> None:
    monkeypatch.setattr("empirics.train._check_device", lambda device: None)
    monkeypatch.setattr("empirics.train.PlainLearner", lambda spec, device: PlainLearner(spec, "cpu"))
    sweep(head_specs(3), Store.open(tmp_path), device="cuda")
    assert together == [(spec,) for spec in head_specs(3)]


def test_a_worker_that_is_given_a_stack_again_trains_the_rest(
    here: Store, tmp_path: Path, together: list[tuple[Spec, ...]]
) -> None:
    """As after the death of another that had stored the first run and no more."""
    store = Store.open(tmp_path)
    store.save(here.load(FLEET[0]))
    assert train_and_store(FLEET[:3], tmp_path) == () and together == [FLEET[1:3]]
    assert train_and_store(FLEET[:3], tmp_path) == () and together == [FLEET[1:3]]


# The same bits through every executor


@pytest.mark.case(29)
def test_a_run_has_the_same_bits_alone_and_in_a_sweep(here: Store) -> None:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        for spec in FLEET:
            alone, swept = train(spec), here.load(spec)
            assert (alone.history, alone.evaluation) == (swept.history, swept.evaluation)
            for name, weight in alone.model.state_dict().items():
                assert torch.equal(weight, swept.model.state_dict()[name]), (spec.id, name)
    finally:
        torch.set_num_threads(threads)


def test_processes_of_this_machine(here: Store, tmp_path: Path) -> None:
    """Every step is told, and what one worker trained the next call does not."""
    store, told = Store.open(tmp_path), []
    with local_pool(2) as pool:
        sweep(FLEET, store, pool, progress=told.append)
    assert sum(told) == sum(spec.steps for spec in FLEET)
    assert_same_runs(store, here)
    told.clear()
    with local_pool(2) as pool:
        sweep(FLEET, store, pool, progress=told.append)
    assert told == [] and multiprocessing.active_children() == []


def test_any_executor(here: Store, tmp_path: Path) -> None:
    """Threads here stand for an executor that the package does not know: it tells of a stack when it is done."""
    store, told = Store.open(tmp_path), []
    with ThreadPoolExecutor(2) as executor:
        sweep(FLEET, store, executor, workers=2, progress=told.append)
    assert sum(told) == sum(spec.steps for spec in FLEET)
    assert_same_runs(store, here)


def test_the_threads_of_this_process_are_as_before(tmp_path: Path) -> None:
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        store = Store.open(tmp_path)
        sweep([tiny_spec()], store)
        assert torch.get_num_threads() == 2
        assert read_record(store.path(tiny_spec())).threads == 1, "a run trains on one"
        with threadpool_limits(limits=2):
            train_and_store([tiny_spec(seed=1)], tmp_path)
            assert torch.get_num_threads() == 1, "a worker stays at one"
            assert {library["num_threads"] for library in threadpool_info()} == {1}
    finally:
        torch.set_num_threads(threads)


def threads_here() -> set[int]:
    """What torch and every library of matrix products would use in this process."""
    return {torch.get_num_threads(), *(library["num_threads"] for library in threadpool_info())}


def test_a_worker_of_this_machine_has_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever it is given to do, and whatever this process was started with."""
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    monkeypatch.delenv("OPENBLAS_NUM_THREADS", raising=False)
    with local_pool(1) as pool:
        assert pool.submit(threads_here).result() == {1}
    assert os.environ["OMP_NUM_THREADS"] == "2" and "OPENBLAS_NUM_THREADS" not in os.environ


# Runs that fail, workers that die, interrupts


@pytest.mark.case(31)
def test_a_run_that_fails_does_not_stop_the_others(tmp_path: Path) -> None:
    store = Store.open(tmp_path)
    bad = [tiny_spec(learning_rate=1e30, steps=50, seed=seed) for seed in range(2)]
    with pytest.raises(EmpiricsError) as told:
        sweep([bad[0], tiny_spec(), bad[1]], store)
    lines = str(told.value).split("; run ")
    assert len(lines) == 2 and all(spec.id in str(told.value) for spec in bad), "all that failed, in one line"
    assert "\n" not in str(told.value)
    assert [path.name for path in store.paths()] == [tiny_spec().id]
    assert missing([*bad, tiny_spec()], store) == tuple(bad)


def test_a_device_that_is_not_there_is_told_once(tmp_path: Path) -> None:
    with pytest.raises(EmpiricsError, match=r"^device 'meteor' cannot be used") as told:
        sweep([tiny_spec(), tiny_spec(vocabulary=400)], Store.open(tmp_path), device="meteor")
    assert str(told.value).count("meteor'") == 1


@pytest.mark.case(31)
def test_a_killed_worker_is_told_in_one_line_and_finished_runs_stay(tmp_path: Path) -> None:
    store = Store.open(tmp_path)
    sweep([tiny_spec()], store)
    killed = False

    def kill(steps: int) -> None:
        """Once it has kept a checkpoint: steps are told before they are kept."""
        nonlocal killed
        if not killed and store.checkpoint_path(LONG).exists():
            for worker in multiprocessing.active_children():
                worker.kill()
            killed = True

    with (
        pytest.raises(EmpiricsError, match=f"workers were lost.*not finished: {LONG.id};.*are kept"),
        local_pool(1) as pool,
    ):
        sweep([tiny_spec(), LONG], store, pool, progress=kill, keep_seconds=0)
    assert [path.name for path in store.paths()] == [tiny_spec().id]
    assert store.checkpoint(LONG) is not None


@pytest.mark.parametrize("pooled", [False, True])
def test_an_interrupt_stops_the_workers_and_leaves_checkpoints(pooled: bool, tmp_path: Path) -> None:
    steps, store = 0, Store.open(tmp_path)

    def interrupt(more: int) -> None:
        nonlocal steps
        steps += more
        if steps > 100:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        if pooled:
            with local_pool(1) as pool:
                sweep([LONG], store, pool, progress=interrupt, keep_seconds=0)
        else:
            sweep([LONG], store, progress=interrupt, keep_seconds=0)
    assert multiprocessing.active_children() == []
    kept = store.checkpoint(LONG)
    assert kept is not None and kept.step >= 100 and store.paths() == ()


def test_workers_end_with_a_parent_that_is_killed(tmp_path: Path) -> None:
    """Else they would train on beside the next call."""
    code = f"""
from pathlib import Path
from empirics.executors import local_pool
from empirics.specs import read_spec
from empirics.store import Store, read_record
from empirics.sweep import sweep
if __name__ == "__main__":
    with local_pool(1) as pool:
        sweep([read_spec({LONG.to_json()!r})], Store(Path({str(tmp_path)!r})), pool, keep_seconds=0)
"""
    script = tmp_path / "script.py"
    script.write_text(code)
    parent = subprocess.Popen(
        [sys.executable, str(script)], env=os.environ | {"PYTHONPATH": str(ROOT)}, stderr=subprocess.DEVNULL
    )
    state = Store(tmp_path).checkpoint_path(LONG)
    wait_until(state.exists)
    parent.kill()
    parent.wait()

    def quiet() -> bool:
        before = state.stat().st_mtime_ns
        time.sleep(0.5)
        return state.stat().st_mtime_ns == before

    wait_until(quiet)


def wait_until(true: Callable[[], bool], seconds: float = 60) -> None:
    """Wait for another process. Fails where it takes too long."""
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "it did not come to be"
        time.sleep(0.01)


# A Dask cluster


@pytest.fixture(scope="module")
def dask_processes(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[tuple[str, list[subprocess.Popen[bytes]], Path]]:
    """A scheduler and two workers in processes of their own on the loopback: its address, the workers, their notes."""
    pytest.importorskip("distributed", reason="Dask is not installed: pip install 'attention-carrier[cluster]'")
    folder, python = tmp_path_factory.mktemp("dask"), [sys.executable, "-m"]
    told, notes = folder / "scheduler.json", folder / "notes"
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "tests")]),
        "NOTED": str(notes),
        "OMP_NUM_THREADS": "2",
    }
    notes.write_text("")
    options = {"env": environment, "cwd": folder, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    scheduler = ["distributed.cli.dask_scheduler", "--host", "127.0.0.1", "--port", "0", "--no-dashboard"]
    worker = ["distributed.cli.dask_worker", "--no-nanny", "--nthreads", "1", "--no-dashboard", "--preload", "noted"]
    file = ["--scheduler-file", str(told)]
    processes = [subprocess.Popen([*python, *command, *file], **options) for command in (scheduler, worker, worker)]
    try:
        from distributed import Client

        wait_until(told.exists)
        with Client(scheduler_file=str(told), set_as_default=False) as client:
            client.wait_for_workers(2, timeout=60)
            address = client.scheduler.address
        yield address, processes[1:], notes
    finally:
        for process in processes:
            process.kill()
            process.wait()


def test_a_run_that_fails_on_a_cluster_is_named(
    tmp_path: Path, dask_processes: tuple[str, list[subprocess.Popen[bytes]], Path]
) -> None:
    address, _, _ = dask_processes
    store, bad = Store.open(tmp_path / "runs"), tiny_spec(learning_rate=1e30, steps=50)
    with pytest.raises(EmpiricsError, match=f"run {bad.id}: the loss is"), cluster(address) as executor:
        sweep([bad, tiny_spec()], store, executor)
    assert isinstance(store.load(tiny_spec()), Run)


def test_a_dask_worker_that_is_killed_loses_nothing(
    here: Store, tmp_path: Path, dask_processes: tuple[str, list[subprocess.Popen[bytes]], Path]
) -> None:
    """One of two is killed as both are at work: every run ends with the same bits, and none is trained twice."""
    address, workers, notes = dask_processes
    store = Store.open(tmp_path / "runs")
    slow = [tiny_spec(**SHORT | {"steps": 6000}, encoding=encoding) for encoding in (Rotary(), NoPositions())]
    told: list[int] = []

    def kill() -> None:
        wait_until(lambda: all(store.checkpoint_path(spec).exists() for spec in slow))
        # Not between a checkpoint and its note: the notes are what the steps are held against.
        workers[0].send_signal(signal.SIGSTOP)
        while not all(any(is_noted(spec) for _ in range(20)) for spec in slow):
            workers[0].send_signal(signal.SIGCONT)
            workers[0].send_signal(signal.SIGSTOP)
        workers[0].send_signal(signal.SIGKILL)

    def is_noted(spec: Spec) -> bool:
        kept = store.checkpoint(spec)
        steps = [line.split()[2] for line in notes.read_text().splitlines() if line.startswith(f"kept {spec.id} ")]
        return kept is None or steps[-1:] == [str(kept.step)]

    killer = threading.Thread(target=kill)
    killer.start()
    with cluster(address) as executor:
        assert executor.workers == 2
        sweep([*slow, *FLEET], store, executor, progress=told.append, keep_seconds=0)
    killer.join()
    assert workers[0].wait(timeout=10) == -signal.SIGKILL, "it was killed as both were at work"
    assert workers[1].poll() is None
    assert sum(told) == sum(spec.steps for spec in (*slow, *FLEET))
    assert_same_runs(store, here)
    assert {read_record(path).threads for path in store.paths()} == {1}, "whatever the worker was started with"
    alone = Store.open(tmp_path / "alone")
    sweep(slow, alone)
    assert [bits(store, spec) for spec in slow] == [bits(alone, spec) for spec in slow]
    lines = [line.split() for line in notes.read_text().splitlines()]
    again = 0
    for spec in (*slow, *FLEET):
        seen = [line for line in lines if len(line) > 1 and line[1] == spec.id]
        words = [line[0] for line in seen]
        assert words.count("stored") == 1 and words[-1] == "stored", "nothing goes on after a run is stored"
        kept = 0
        for line in seen:
            if line[0] == "start":
                assert int(line[2]) == kept, "it goes on from its last checkpoint"
            elif line[0] == "kept":
                kept = int(line[2])
        again += words.count("start") - 1
    assert again >= 1, "the stack of the killed worker went on elsewhere"


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("tcp://127.0.0.1:9", r"no Dask scheduler answers at 'tcp://127\.0\.0\.1:9'.*start one"),
        ("tcp://no.such.host.invalid:9", r"no Dask scheduler answers at"),
        *[(bad, "is no address of a Dask scheduler: give one") for bad in ("", "tcp://", "nonsense", "http://a:1")],
    ],
)
def test_a_scheduler_that_does_not_answer_is_one_line(
    address: str, message: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("distributed", reason="Dask is not installed: pip install 'attention-carrier[cluster]'")
    monkeypatch.setattr("empirics.executors._ANSWER_SECONDS", 1)
    with pytest.raises(EmpiricsError, match=message) as told, cluster(address):
        pass
    gc.collect()
    assert "\n" not in str(told.value) and capfd.readouterr() == ("", "")


def test_without_dask_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(EmpiricsError, match=r"not installed: pip install 'attention-carrier\[cluster\]'"), cluster("a"):
        pass
