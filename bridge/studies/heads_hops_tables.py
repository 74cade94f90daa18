"""Tables of the number and the letter task: training, length, and where heads look."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float64

from bridge.hops import ITEM, QUERY, Looked
from bridge.studies.swap_settings import TEMPERATURE
from bridge.tables import Table
from theory.prompt_swaps import ScoredHeads


@dataclass(frozen=True, eq=False)
class Stage:
    """One state of training: its accuracy at the trained length, and scores at the query and at items."""

    task: str
    steps: int
    accuracy: float
    scores: Mapping[str, ScoredHeads]

    def purest(self, asking: str, symbolic: bool) -> tuple[float, str]:
        """The largest s_pos - s_sym, or s_sym - s_pos, of any head, and which; uniform attention has 0."""
        positional, symbols, _ = self.scores[asking].over_prompts()
        lead = symbols - positional if symbolic else positional - symbols
        layer, head = _most(lead)
        return float(lead.max()), f"{layer}.{head}"


@dataclass(frozen=True, eq=False)
class Reach:
    """Accuracy of one task at each length, a row a seed."""

    label: str
    lengths: tuple[int, ...]
    accuracy: Float64[np.ndarray, "seed length"]


def reach_table(reaches: Sequence[Reach]) -> Table:
    rows = []
    for one in reaches:
        mean, spread = one.accuracy.mean(axis=0), one.accuracy.std(axis=0, ddof=min(1, len(one.accuracy) - 1))
        rows.append((one.label, *(f"{value:.3f} +- {sd:.3f}" for value, sd in zip(mean, spread, strict=True))))
    columns = ("task", *(f"L={length}" for length in reaches[0].lengths))
    notes = ("trained on L=17 alone; +-: standard deviation over seeds; without the prompt .25 can be right",)
    return Table("accuracy against the length of the prompt", columns, tuple(rows), notes)


def stages_table(stages: Sequence[Stage]) -> Table:
    rows = []
    for stage in stages:
        told = [stage.purest(asking, symbolic) for asking in (QUERY, ITEM) for symbolic in (False, True)]
        rows.append(
            (stage.task, str(stage.steps), f"{stage.accuracy:.3f}", *(f"{lead:.2f} ({name})" for lead, name in told))
        )
    columns = (
        "task",
        "steps",
        "accuracy",
        *(f"{kind} at {at}" for at in (QUERY, ITEM) for kind in ("positional", "symbolic")),
    )
    notes = ("positional: the largest s_pos - s_sym of any head (layer.head), symbolic: the largest s_sym - s_pos",)
    return Table("pure heads as training goes on, seed 0", columns, tuple(rows), notes)


def heads_table(stage: Stage, seen: Sequence[Looked]) -> Table:
    first, last = seen[0], seen[-1]
    scores = {asking: one.over_prompts() for asking, one in stage.scores.items()}
    rows = []
    for layer, head in np.ndindex(*first.discrepancy.shape):
        at = (layer, head)
        told = [f"{value[at]:.2f}" for asking in (QUERY, ITEM) for value in scores[asking]]
        visited = [
            f"{near[at]:.2f}, {far[at]:.2f}" for near, far in zip(first.on_visited, last.on_visited, strict=True)
        ]
        named = f"{first.on_named[at]:.2f}, {last.on_named[at]:.2f}"
        lead = f"{first.discrepancy[at]:.1f}, {last.discrepancy[at]:.1f}"
        rows.append((f"{layer}.{head}", *told, *visited, named, lead))
    kinds = ("s_pos", "s_sym", "entropy")
    hops = tuple(f"on item {hop}" for hop in range(1, len(first.on_visited) + 1))
    columns = ("head", *(f"{kind}, {at}" for at in (QUERY, ITEM) for kind in kinds), *hops, "on named", "discrepancy")
    notes = (
        f"means over prompts, all swaps of two tokens, temperature {TEMPERATURE:g}; entropy in nats",
        f"on item n: attention of the query on the n-th item on the way, at L={first.length} and {last.length}",
        "on named: of an item on the one that its first half names as a number; discrepancy at the query, nats",
    )
    return Table(f"{stage.task}: heads after {stage.steps} steps, seed 0", columns, tuple(rows), notes)


def law_table(head: int, law: Float64[np.ndarray, "length"], seen: Sequence[Looked]) -> Table:
    rows = []
    for told, one in zip(law, seen, strict=True):
        observed, error = one.on_named[0, head], one.on_named_error[0, head]
        rows.append(
            (str(one.length), f"{told:.4f}", f"{observed:.4f} +- {error:.4f}", f"{(told - observed) / error:+.1f}")
        )
    columns = ("L", "exact law", "observed +- s.e.", "error (s.e.)")
    return Table(f"number: head 0.{head}, attention of an item on the one that its integer names", columns, tuple(rows))


def lengths_table(seen: Mapping[str, Sequence[Looked]]) -> Table:
    """Of each task the head that looks most at each item on the way, followed over lengths."""
    rows: list[tuple[str, ...]] = []
    for task, looked in seen.items():
        for hop in range(len(looked[0].on_visited)):
            head = _most(looked[0].on_visited[hop])
            name, what = f"{head[0]}.{head[1]}", f"of the query on item {hop + 1}"
            rows.append((task, name, what, *(f"{one.on_visited[hop][head]:.3f}" for one in looked)))
            rows.append(
                (task, name, "share in which it is the largest", *(f"{one.first[hop][head]:.3f}" for one in looked))
            )
            rows.append((task, name, "its discrepancy (nats)", *(f"{one.discrepancy[head]:.2f}" for one in looked)))
        if task == "number":
            head = _most(looked[0].on_named)
            told = (f"{one.on_named[head]:.3f}" for one in looked)
            rows.append((task, f"{head[0]}.{head[1]}", "of an item on the one it names", *told))
    columns = ("task", "head", "attention", *(f"L={one.length}" for one in next(iter(seen.values()))))
    return Table("where the heads of seed 0 look, by the length of the prompt", columns, tuple(rows))


def _most(values: Float64[np.ndarray, "layer head"]) -> tuple[int, int]:
    """Layer and head of the largest value."""
    layer, head = np.unravel_index(int(values.argmax()), values.shape)
    return int(layer), int(head)
