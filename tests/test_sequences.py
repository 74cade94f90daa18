"""Tasks on sequences, periodic rotary positions, and the transformer that is trained on them."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import run_carrier

from bridge.sources.run import head_of_run
from bridge.studies.horizon_languages import RIGHT, Recogniser, bars
from empirics.encoding_specs import NoPositions, PeriodicRotary, Rotary
from empirics.encodings import rotate, turns
from empirics.errors import EmpiricsError
from empirics.languages import BEGIN, Language
from empirics.observe_sequences import observe_sequences
from empirics.sequence_spec import SequenceSpec, sequence_spec
from empirics.sequence_tasks import UNASKED
from empirics.spec import run_spec
from empirics.store import Store
from empirics.sweep import sweep
from empirics.train import train
from empirics.transformer_learner import TransformerLearner
from theory.schedule import RotarySchedule

PATTERNS = {"aa": "(aa)*", "abab": "(ab)*", "a-first": "a[ab]*"}
SMALL = {"steps": 6, "batch": 8, "width": 16, "heads": 2, "evaluation_sequences": 16, "evaluation_lengths": (9, 21)}


def small(**fields: object) -> SequenceSpec:
    return sequence_spec(**(SMALL | fields))


@pytest.mark.parametrize("language", PATTERNS)
def test_every_prefix_is_asked_and_belongs_where_the_pattern_says(language: str) -> None:
    task, generator = Language(language=language), torch.Generator().manual_seed(0)
    drawn = task.draw(400, 13, generator)
    assert (drawn.tokens[:, 0] == BEGIN).all() and (drawn.targets[:, 0] == UNASKED).all()
    members = 0
    for tokens, targets in zip(drawn.tokens[:, 1:].tolist(), drawn.targets[:, 1:].tolist(), strict=True):
        word = "".join("ab"[token] for token in tokens)
        for length, answer in enumerate(targets, 1):
            assert answer == bool(re.fullmatch(PATTERNS[language], word[:length])), word[:length]
        members += targets[-1]
    assert 150 < members < 250


def test_misses_are_near_and_everywhere() -> None:
    """A word that does not belong to (ab)* differs from the one that does by one letter, wherever it stands."""
    drawn = Language(language="abab").draw(2000, 13, torch.Generator().manual_seed(1))
    wanted = torch.arange(12) % 2
    wrong = (drawn.tokens[:, 1:] != wanted).sum(dim=1)
    assert set(wrong.tolist()) == {0, 1}
    places = (drawn.tokens[:, 1:] != wanted).sum(dim=0)
    assert (places > 2000 / 24 * 0.5).all()


@pytest.mark.parametrize("numerators", [None, (1, 2)])
def test_periodic_positions_come_round(numerators: tuple[int, ...] | None) -> None:
    """After 2 x 3 tokens all pairs are where they were, and not before; the theory has the same schedule."""
    encoding = PeriodicRotary(moduli=(2, 3), numerators=numerators)
    theta = turns(encoding, 8)
    exact = RotarySchedule.periodic(encoding.turns(4))
    np.testing.assert_allclose(theta.numpy(), exact.frequencies, rtol=1e-15)
    vectors = torch.ones(7, 8, dtype=torch.float64)
    turned = rotate(vectors, torch.arange(7), theta)
    assert torch.allclose(turned[0], turned[6], atol=1e-12)
    assert all(not torch.allclose(turned[0], turned[place], atol=1e-3) for place in range(1, 6))
    conventional = rotate(vectors, torch.arange(7), turns(Rotary(), 8))
    assert not torch.allclose(conventional[0], conventional[6], atol=1e-3)


def test_a_periodic_run_is_a_head_of_the_theory_with_its_period(tmp_path: Path) -> None:
    done = run_carrier(
        "train", "--encoding", "periodic", "--moduli", "2,3", "--steps", "20", "--width", "16", "--json", cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["spec"]["encoding"]["moduli"] == [2, 3]
    run = train(run_spec(encoding=PeriodicRotary(moduli=(2, 3)), steps=20, batch=16, evaluation_sequences=32))
    head = head_of_run(run)
    logits = head.logits(np.array([-1, -7, -2]))
    np.testing.assert_allclose(logits[:, 0], logits[:, 1], atol=1e-9)
    assert np.abs(logits[:, 0] - logits[:, 2]).max() > 1e-3


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"task": {"kind": "language", "language": "ba"}}, "language"),
        ({"evaluation_lengths": (1,)}, "length 1 holds no question of the task"),
        ({"wdith": 3}, "wdith"),
        ({"encoding": {"kind": "periodic", "moduli": (2,), "numerators": (1, 1)}}, "2 numerators do not fit 1 moduli"),
    ],
)
def test_a_bad_spec_is_one_line(fields: dict, said: str) -> None:
    with pytest.raises(EmpiricsError, match=said):
        sequence_spec(**fields)


def test_a_run_is_stored_shown_and_goes_on_with_the_same_bits(tmp_path: Path) -> None:
    spec, store = small(encoding=PeriodicRotary()), Store.open(tmp_path / "runs")
    whole, first = TransformerLearner(spec), TransformerLearner(spec)
    for _ in range(6):
        whole.step()
    for _ in range(3):
        first.step()
    later = TransformerLearner(spec)
    later.restore(first.state())
    for _ in range(3):
        later.step()
    for one, other in zip(whole.model.parameters(), later.model.parameters(), strict=True):
        assert torch.equal(one, other)
    sweep([spec], store)
    loaded = store.load(spec)
    assert loaded.spec == spec and [seen.length for seen in loaded.evaluation] == [9, 21]
    for one, other in zip(whole.model.parameters(), loaded.model.parameters(), strict=True):
        assert torch.equal(one, other)
    for command in (("runs", "list", "--runs", str(tmp_path / "runs")), ("runs", "show", str(store.path(spec)))):
        shown = run_carrier(*command)
        assert shown.returncode == 0 and spec.id in shown.stdout, shown.stderr


def test_accuracy_is_that_of_answers_counted_by_hand() -> None:
    spec = small(encoding=NoPositions())
    learner = TransformerLearner(spec)
    (seen,) = observe_sequences(learner.model, spec.task, (9,), 16, torch.Generator().manual_seed(5))
    drawn = spec.task.draw(16, 9, torch.Generator().manual_seed(5))
    right = learner.model(drawn.tokens).argmax(dim=-1) == drawn.targets
    assert seen.last_accuracy == pytest.approx(float(right[:, -1].double().mean()))
    shares = [sum(row[1:]) / 8 for row in right.tolist()]
    assert seen.accuracy == pytest.approx(np.mean(shares))
    assert seen.accuracy_error == pytest.approx(np.std(shares, ddof=1) / 4)
    assert seen.last_accuracy_error == pytest.approx(np.std(right[:, -1].numpy(), ddof=1) / 4)
    log_shares = learner.model(drawn.tokens).detach().double().log_softmax(dim=-1)[:, 1:]
    chosen = log_shares.gather(2, drawn.targets[:, 1:, None])
    assert seen.loss == pytest.approx(-float(chosen.mean()), rel=1e-5)
    assert seen.by_position[0] is None
    assert seen.by_position[1:] == pytest.approx(right[:, 1:].double().mean(dim=0).tolist())


def test_a_seed_is_right_only_where_it_is_right_at_every_length_beyond_training() -> None:
    accuracy = np.ones((3, 500))
    accuracy[0, 10] = 0.5
    accuracy[1, 40] = accuracy[2, 499] = 0.99
    assert Recogniser("aa", "none", accuracy).right == 1
    assert len({bar.key for bar in bars()}) == len(bars()) and {bar.column for bar in bars()} == {RIGHT}


def test_the_study_is_walked_through(tmp_path: Path) -> None:
    options = ("--preset", "smoke", "--runs", str(tmp_path / "runs"), "--out", str(tmp_path / "out"), "--json")
    done = run_carrier("reproduce", "horizon", *options)
    assert done.returncode == 0, done.stderr
    (study,) = json.loads(done.stdout)["targets"]
    assert {cell["verdict"] for cell in study["cells"]} <= {"out of regime", "not run"}
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert {"horizon.csv", "horizon-languages.png", "horizon-precision.svg", "results.md"} <= names
