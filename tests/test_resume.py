"""A run that was cut goes on from its checkpoint and ends with the same bits; nothing is trained twice."""

from __future__ import annotations

import random
import signal
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import noted
import pytest
import torch
from conftest import forked, tiny_spec

from empirics.errors import EmpiricsError
from empirics.spec import (
    BucketBias,
    LearnedPositions,
    LinearBias,
    NoPositions,
    RandomizedPositions,
    Sinusoidal,
    transformer_spec,
)
from empirics.specs import Spec
from empirics.stacked import stack_key
from empirics.store import Store
from empirics.sweep import missing, sweep
from empirics.train import LOG_EVERY, AnyRun, Checkpoint, train_together

STEPS = 3 * LOG_EVERY
SMALL = {"steps": STEPS, "width": 8, "vocabulary": 5}
ENCODINGS = (
    LearnedPositions(decay=0.1),
    RandomizedPositions(),
    Sinusoidal(),
    LinearBias(),
    BucketBias(buckets=4),
    NoPositions(),
)


def plain(**fields: object) -> Spec:
    """A run whose vocabulary is too large for tables to pay."""
    spec = tiny_spec(**SMALL | {"vocabulary": 400} | fields)
    assert not stack_key(spec).stacks
    return spec


def stacked(**fields: object) -> Spec:
    """A run that trains in a stack."""
    spec = tiny_spec(**SMALL | {"batch": 64} | fields)
    assert stack_key(spec).stacks
    return spec


def transformer(**fields: object) -> Spec:
    """A transformer that trains in a second."""
    small = {"width": 8, "heads": 2, "batch": 8, "vocabulary": 5, "steps": STEPS}
    evaluation = {"evaluation_lengths": (12, 16), "evaluation_sequences": 16, "profile_sequences": 8}
    return transformer_spec(**small | evaluation | fields)


KINDS = (
    *[[plain(encoding=encoding)] for encoding in ENCODINGS],
    *[[stacked(encoding=encoding), stacked(encoding=encoding, seed=1, offset=3)] for encoding in ENCODINGS],
    [plain()],
    [stacked(), stacked(seed=1, temperature=2.0)],
    [stacked(attention="linear")],
    [stacked(heads=2, second_offset=4, offset=1)],
    [transformer()],
    [transformer(encoding=LearnedPositions())],
    pytest.param([transformer(precision="bfloat16")], marks=pytest.mark.slow),
)


def name_of(specs: Sequence[Spec]) -> str:
    """What a parametrized case is called."""
    return "-".join(spec.id.rpartition("-")[0] for spec in specs) + f"-{stack_key(specs[0]).stacks}"


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """As in a worker of a sweep: sums over threads round differently."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def assert_same_bits(one: AnyRun, other: AnyRun) -> None:
    """Weights, history and evaluation are equal; equal is not close."""
    assert (one.spec, one.history, one.evaluation) == (other.spec, other.history, other.evaluation)
    theirs = other.model.state_dict()
    assert one.model.state_dict().keys() == theirs.keys()
    for name, weight in one.model.state_dict().items():
        assert torch.equal(weight, theirs[name]), f"{name} of {one.spec.id}"


def test_a_checkpoint_does_not_go_on_under_another_learner() -> None:
    """A run begun in tables has other bits when it is trained plainly: said, not mixed."""
    kept: list[Checkpoint] = []
    spec = stacked()
    list(train_together([spec], keep=kept.append, keep_seconds=0))
    assert kept[0].learner == "stacked"
    with pytest.raises(EmpiricsError, match="is of its plain training and cannot go on as stacked"):
        list(train_together([spec], [replace(kept[0], learner="plain")]))


@pytest.mark.case(27)
@pytest.mark.parametrize("specs", KINDS, ids=name_of)
def test_a_resumed_run_is_the_uninterrupted_one(specs: list[Spec], tmp_path: Path) -> None:
    """From every checkpoint, through the disk, alone and beside the others of its stack."""
    store, kept = Store.open(tmp_path), []
    whole = list(train_together(specs, keep=kept.append, keep_seconds=0))
    assert [checkpoint.step for checkpoint in kept] == [step for step in (50, 100, 150) for _ in specs]
    for step in (50, 100, 150):
        for checkpoint in kept:
            if checkpoint.step == step:
                store.keep(checkpoint)
        read = [store.checkpoint(spec) for spec in specs]
        together = train_together(specs, read)
        alone = [run for spec, one in zip(specs, read, strict=True) for run in train_together([spec], [one])]
        for runs in (list(together), alone):
            for resumed, run in zip(runs, whole, strict=True):
                assert_same_bits(resumed, run)


@pytest.mark.case(28)
@pytest.mark.parametrize("lost", ["generator", "weights.query", "exp_avg.query", "exp_avg_sq.key", "step"])
def test_every_part_of_a_checkpoint_counts(lost: str) -> None:
    """The check above can fail: with one tensor of the state as it was at the beginning, the bits differ."""
    specs, kept = [stacked()], []
    (whole,) = train_together(specs, keep=kept.append, keep_seconds=0)
    early, late = kept[0], kept[1]
    mixed = replace(late, state={**late.state, lost: early.state[lost]})
    (resumed,) = train_together(specs, [mixed])
    with pytest.raises(AssertionError):
        assert_same_bits(resumed, whole)


@pytest.mark.case(30)
def test_a_loss_that_is_not_finite_leaves_the_others_and_the_last_good_checkpoint(tmp_path: Path) -> None:
    """One of three runs of a stack is broken at step 120: it is named, and every other bit is as it was."""
    store, specs = Store.open(tmp_path), [stacked(seed=seed) for seed in range(3)]
    checkpoints = []
    whole = list(train_together(specs, keep=checkpoints.append, keep_seconds=0))
    late = [checkpoint for checkpoint in checkpoints if checkpoint.step == 100]
    broken = {**late[1].state, "weights.readout": torch.full_like(late[1].state["weights.readout"], torch.inf)}
    late[1] = replace(late[1], step=100, state=broken)
    for checkpoint in late:
        store.keep(checkpoint)
    before = store.checkpoint_path(specs[1]).read_bytes()
    with pytest.raises(EmpiricsError, match=rf"run {specs[1].id}: the loss is nan at step 101 of 150") as told:
        sweep(specs, store, keep_seconds=0)
    assert str(told.value).count("run ") == 2 and "\n" not in str(told.value), "this run alone, in one line"
    for spec, run in zip(specs, whole, strict=True):
        if spec != specs[1]:
            assert_same_bits(store.load(spec), run)
    assert missing(specs, store) == (specs[1],)
    assert store.checkpoint_path(specs[1]).read_bytes() == before
    with pytest.raises(EmpiricsError, match="at step 101"):
        sweep(specs, store)
    store.checkpoint_path(specs[1]).unlink()
    sweep(specs, store)
    assert_same_bits(store.load(specs[1]), whole[1])


def test_runs_that_were_cut_at_different_steps_go_on_each_from_its_own(tmp_path: Path) -> None:
    specs, kept = [stacked(seed=seed) for seed in range(3)], []
    whole = list(train_together(specs, keep=kept.append, keep_seconds=0))
    store, told = Store.open(tmp_path), []
    store.keep(kept[0])
    store.keep(kept[4])
    sweep(specs, store, progress=told.append)
    assert told[0] == 50 + 100 and sum(told) == 3 * STEPS
    for spec, run in zip(specs, whole, strict=True):
        assert_same_bits(store.load(spec), run)


PHASES = ("train", "write", "evaluate")
FLEET = (
    *[stacked(seed=seed, steps=300, evaluation_sequences=2000) for seed in range(4)],
    *[stacked(encoding=LearnedPositions(), seed=seed, steps=300) for seed in range(2)],
    plain(steps=200),
    transformer(steps=100),
)


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """The runs that nobody killed."""
    store = Store.open(tmp_path_factory.mktemp("uninterrupted"))
    sweep(FLEET, store)
    return store


def bits(path: Path) -> dict[str, bytes]:
    """What a run is; run.json has the time that it took."""
    return {file.name: file.read_bytes() for file in path.iterdir() if file.name != "run.json"}


@pytest.mark.case(26)
@pytest.mark.case(27)
@pytest.mark.parametrize(
    ("place", "call"),
    [
        pytest.param("empirics.stacked:StackedLearner.step", 1, id="before the first step"),
        pytest.param("empirics.stacked:StackedLearner.step", 120, id="between two checkpoints"),
        pytest.param("empirics.atomic:_write_flushed", 1, id="half of the first checkpoint"),
        pytest.param("empirics.atomic:_write_flushed", 4, id="half of a second checkpoint"),
        pytest.param("pathlib:Path.replace", 4, id="before a second checkpoint takes its place"),
        pytest.param("empirics.atomic:_flush_folder", 4, id="after it has taken its place"),
        pytest.param("empirics.stacked:StackedLearner.finish", 1, id="before the evaluation"),
        pytest.param("empirics.store:Store.save", 2, id="after the evaluation of a second run"),
        pytest.param("empirics.atomic:_write_flushed", 8, id="half of the weights of a run"),
        pytest.param("empirics.atomic:_rename", 2, id="before a run takes its place"),
        pytest.param("empirics.atomic:_flush_folder", 8, id="after it has taken its place, its checkpoint there"),
        pytest.param("pathlib:Path.unlink", 8, id="before the last checkpoint is removed"),
    ],
)
def test_killed_at_any_place_it_ends_with_the_same_bits(place: str, call: int, tmp_path: Path) -> None:
    """Half-written files among them: what was kept before loads, and no run comes from a torn one."""
    specs = [stacked(seed=seed) for seed in range(2)]
    whole, store = list(train_together(specs)), Store.open(tmp_path)
    process = forked(noted.sweep_dying, specs, tmp_path, place, call)
    process.join()
    assert process.exitcode == -signal.SIGKILL
    if (place, call) in (("empirics.atomic:_write_flushed", 4), ("pathlib:Path.replace", 4)):
        assert [store.checkpoint(spec).step for spec in specs] == [100, 50], "of the second run the earlier one"
        assert [path.name.startswith(".partial-") for path in tmp_path.iterdir()].count(True) == 1
    sweep(specs, Store.open(tmp_path))
    for spec, run in zip(specs, whole, strict=True):
        assert_same_bits(store.load(spec), run)
    assert not [path for path in Store.open(tmp_path).root.iterdir() if path.name.startswith(".state-")]


@pytest.mark.parametrize("kills", [5, pytest.param(50, marks=pytest.mark.slow)])
def test_killed_at_random_moments_it_ends_with_the_same_bits(kills: int, uninterrupted: Store, tmp_path: Path) -> None:
    """SIGKILL from outside, until so many have hit a sweep at work.

    Each waits for a phase of the work that is drawn, to come so often as is drawn, and then for a time that is drawn.
    """
    generator, phases, sweeps = random.Random(kills), Counter[str](), 0
    while phases.total() < kills:
        sweeps += 1
        store = Store.open(tmp_path / str(sweeps))
        while missing(FLEET, store):
            log = tmp_path / "log"
            log.write_text("")
            finished = {spec.id for spec in FLEET if store.has(spec)}
            steps = {spec.id: kept.step if (kept := store.checkpoint(spec)) else 0 for spec in FLEET}
            process = forked(noted.sweep_noted, FLEET, store.root, log)
            aim, times, delay = generator.choice(PHASES), generator.randint(1, 8), generator.uniform(0, 0.004)
            if phases.total() < kills:
                while log.read_text().split("\n").count(aim) < times and process.is_alive():
                    time.sleep(0.0002)
                process.join(delay)
                process.kill()
            process.join()
            lines = [line.split() for line in log.read_text().splitlines()]
            started = {line[1]: int(line[2]) for line in lines if line[0] == "start"}
            assert started.keys().isdisjoint(finished), "a finished run was trained again"
            assert all(steps[name] == step for name, step in started.items()), "a run did not go on from its checkpoint"
            if process.exitcode == -signal.SIGKILL:
                phases[[line[0] for line in lines if len(line) == 1][-1]] += 1
            else:
                assert process.exitcode == 0
        for spec in FLEET:
            assert bits(store.path(spec)) == bits(uninterrupted.path(spec)), spec.id
    print(f"{kills} kills over {sweeps} sweeps: {dict(phases)}")
    if kills >= 50:
        assert phases.keys() == set(PHASES), "no phase of the work was spared"
