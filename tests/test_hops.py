"""The number and the letter task: what is asked, that the prompt answers it, and what a longer prompt changes."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Literal, cast

import numpy as np
import pytest
import torch
from conftest import ROOT, run_carrier

from bridge.compare import Measured
from bridge.hops import look, named_by_law
from bridge.studies.heads import STUDY
from empirics.errors import EmpiricsError
from empirics.hops import Hops
from empirics.sequence_spec import sequence_spec
from empirics.specs import read_spec
from empirics.train import train
from empirics.transformer import Block

Address = Literal["number", "letter"]
RECORD = ROOT / "docs" / "results" / "heads"
BOTH = pytest.mark.parametrize("address", ["number", "letter"])


def drawn(task: Hops, sequences: int, length: int, seed: int = 0) -> tuple[list[list[int]], list[int]]:
    batch = task.draw(sequences, length, torch.Generator().manual_seed(seed))
    assert batch.tokens.shape == batch.targets.shape == (sequences, length)
    assert (batch.targets[:, :-1] == -1).all()
    return batch.tokens.tolist(), batch.targets[:, -1].tolist()


def walked(address: str, hops: int, prompt: list[int]) -> tuple[int, list[int]]:
    """The answer and the places on the way, as a person reads a prompt."""
    *items, query = prompt
    asked, place, places = query - 64, len(items), []
    for _ in range(hops):
        if address == "number":
            place -= asked + 1
        else:
            (place,) = [at for at, item in enumerate(items) if item // 4 == asked]
        places.append(place)
        first, second = divmod(items[place], 4)
        asked = first if address == "number" else (first + second + 1) % 16
    return (items[place] % 4 if address == "number" else asked), places


@BOTH
@pytest.mark.parametrize("hops", [1, 2, 3])
def test_the_answer_is_what_a_person_reads_who_walks_the_prompt(address: Address, hops: int) -> None:
    for length in (17, 18, 60):
        task = Hops(address=address, hops=hops)
        prompts, answers = drawn(task, 200, length)
        read = [walked(address, hops, prompt) for prompt in prompts]
        assert [answer for answer, _ in read] == answers
        assert task.visited(torch.tensor(prompts)).tolist() == [places for _, places in read]
        assert {place for _, places in read for place in places} == set(range(length - 17, length - 1))
        assert max(map(max, prompts)) < task.tokens and max(answers) < task.outputs


@BOTH
def test_without_the_prompt_one_guess_in_four_is_right(address: Address) -> None:
    """The best answer to each query, counted over many prompts; with the prompt's first hop no more is known."""
    prompts, answers = drawn(Hops(address=address), 40_000, 17)
    by_query: dict[int, Counter[int]] = {}
    for prompt, answer in zip(prompts, answers, strict=True):
        by_query.setdefault(prompt[-1], Counter())[answer] += 1
    best = sum(counts.most_common(1)[0][1] for counts in by_query.values()) / len(prompts)
    assert 0.25 <= best < 0.27


def test_a_distractor_bears_no_visited_letter_and_the_visited_ones_stand_once() -> None:
    for length in (17, 300):
        prompts, _ = drawn(Hops(address="letter"), 300, length)
        others: Counter[int] = Counter()
        for prompt in prompts:
            _, places = walked("letter", 2, prompt)
            visited = {prompt[place] // 4 for place in places}
            rest = [item // 4 for at, item in enumerate(prompt[:-1]) if at not in places]
            assert len(visited) == 2 and visited.isdisjoint(rest)
            others.update(rest)
        assert len(others) == 16 and max(others.values()) < 1.3 * min(others.values())


@BOTH
def test_a_longer_prompt_asks_the_same_among_more_distractors(address: Address) -> None:
    """Distances of the visited items have one distribution at every length, unless the reach is longer."""
    near = [
        places for prompt in drawn(Hops(address=address), 4000, 17)[0] for places in [walked(address, 2, prompt)[1]]
    ]
    far = [places for prompt in drawn(Hops(address=address), 4000, 90)[0] for places in [walked(address, 2, prompt)[1]]]
    back = 16 - np.array(near), 89 - np.array(far)
    assert np.abs(back[0].mean(axis=0) - back[1].mean(axis=0)).max() < 0.4
    assert (back[1].min(), back[1].max()) == (1, 16)
    reaching = [walked(address, 2, prompt)[1] for prompt in drawn(Hops(address=address, reach=89), 400, 90)[0]]
    assert 89 - np.min(reaching) > 25


def test_a_spec_of_hops_is_read_back_and_refuses_prompts_that_hold_no_question() -> None:
    spec = sequence_spec(task=Hops(address="letter"), train_lengths=(17, 17), evaluation_lengths=(17, 64))
    assert read_spec(spec.to_json()) == spec and spec.id.startswith("hops-rope-")
    with pytest.raises(EmpiricsError, match="17 tokens or more"):
        sequence_spec(task=Hops(), train_lengths=(16, 17), evaluation_lengths=(17,))
    with pytest.raises(ValueError, match="reach of 2"):
        Hops(reach=1)


def test_the_exact_law_foretells_where_an_item_of_layer_0_looks() -> None:
    """Items are given a direction in common, and so the heads a carrier each: within four standard errors at each
    length, while the law of the head beside it is not."""
    lengths = (17, 40, 120)
    run = train(
        sequence_spec(task=Hops(), train_lengths=(17, 17), steps=0, evaluation_lengths=(17,), evaluation_sequences=2)
    )
    with torch.no_grad():
        run.model.embedding.weight += 4 * torch.randn(64, generator=torch.Generator().manual_seed(0))
        cast(Block, run.model.blocks[0]).query.weight *= 10
    seen = [look(run, length, 400, seed=1) for length in lengths]
    observed = np.array([one.on_named[0, 0] for one in seen])
    errors = np.array([one.on_named_error[0, 0] for one in seen])
    off, wrong = (np.abs(named_by_law(run, head, lengths) - observed) / errors for head in (0, 1))
    assert off.max() < 4 < wrong.max()


def test_attention_on_the_visited_items_is_read_from_the_rows_of_the_query() -> None:
    run = train(
        sequence_spec(
            task=Hops(address="letter"),
            train_lengths=(17, 17),
            steps=0,
            evaluation_lengths=(17,),
            evaluation_sequences=2,
        )
    )
    seen = look(run, 20, 8, seed=3)
    generator = torch.Generator().manual_seed(3)
    tokens = Hops(address="letter").draw(8, 20, generator).tokens
    items = torch.randint(0, 64, (8, 20), generator=generator)
    with torch.no_grad():
        layers, of_items = run.model.trace(tokens).layers, run.model.trace(items).layers
    for layer, head in np.ndindex(2, 4):
        rows = layers[layer].attention[:, head, -1].double().numpy()
        for hop in range(2):
            places = [walked("letter", 2, prompt)[1][hop] for prompt in tokens.tolist()]
            assert seen.on_visited[hop, layer, head] == pytest.approx(rows[np.arange(8), places].mean(), rel=1e-12)
            assert seen.first[hop, layer, head] == (rows.argmax(axis=1) == places).mean()
        named = [float(of_items[layer].attention[at, head, -1, 18 - items[at, -1] // 4]) for at in range(8)]
        assert seen.on_named[layer, head] == pytest.approx(np.mean(named), rel=1e-9)
        top = np.log(np.sort(rows, axis=1)[:, -2:])
        assert seen.discrepancy[layer, head] == pytest.approx((top[:, 1] - top[:, 0]).mean(), rel=1e-9)


def test_the_study_is_walked_through(models: Path, tmp_path: Path) -> None:
    """At the smoke preset: one JSON document, exit code 0, a number for every bar of a model that is here."""
    places = ("--runs", tmp_path / "runs", "--out", tmp_path / "out", "--cache", tmp_path / "cache", "--models", models)
    done = run_carrier("reproduce", "heads", "--preset", "smoke", "--json", *map(str, places))
    assert done.returncode == 0, done.stderr
    (told,) = json.loads(done.stdout)["targets"]
    verdicts = {(cell["row"], cell["column"]): cell["verdict"] for cell in told["cells"]}
    absent = {row for (row, _), verdict in verdicts.items() if verdict == "not run"}
    assert verdicts["stories260K", "s_pos: rank correlation of two texts"] == "out of regime"
    assert absent <= {"SmolLM2-135M", "number", "letter", "letter, no positions"}
    exact = {cell["column"]: cell["ours"] for cell in told["cells"] if cell["row"] == "constructed heads"}
    assert max(exact.values()) < 1e-6 and len(exact) == 3
    names = {file.name for file in (tmp_path / "out").iterdir()}
    assert {"heads.csv", "heads-hops.png", "heads-discrepancy.svg", "heads-checkpoints.png"} <= names


def test_the_record_of_the_study_holds_every_bar() -> None:
    """What is committed is what the study declares: the same bars, and the verdicts on record."""
    (told,) = json.loads((RECORD / "results.json").read_text())["targets"]
    cells = {(cell["row"], cell["column"]): cell for cell in told["cells"]}
    assert told["id"] == STUDY.id and cells.keys() == {bar.key for bar in STUDY.bars}
    for bar in STUDY.bars:
        cell = cells[bar.key]
        assert (cell["printed"], cell["bound"], cell["verdict"]) == (bar.value, bar.bound.value, bar.recorded.value)
        assert bar.judge(Measured(cell["ours"], cell["spread"], 0.0)) is bar.recorded
