"""What a transformer does on a multi-hop task: where its heads look, how they answer swaps, and at which length.

Two tokens ask: the query, last of a prompt, and an item, for which the prompt ends before the query. Of each head
there are the scores of swaps, the attention on the items that lead to the answer, and the discrepancy.

In layer 0 a number's head is a head of the theory: queries and keys are functions of the token, so that the exact law
foretells from the weights what an item with integer j leaves on the item j back at any length.

Source: arXiv 2605.31558; the tasks are those of `empirics.hops`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import numpy as np
import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from bridge.run_swaps import score_transformer
from empirics.encoding_specs import Rotary
from empirics.hops import ADDRESSES, CONTENTS, ITEMS, Hops
from empirics.observe_rows import last_rows
from empirics.train import SequenceRun
from empirics.transformer import Block
from theory.exact_law import exact_law
from theory.head import Head
from theory.prompt_swaps import ScoredHeads, all_swaps
from theory.schedule import RotarySchedule

QUERY, ITEM = "query", "item"
_TINY = torch.finfo(torch.float32).tiny


@dataclass(frozen=True, eq=False)
class Looked:
    """One length. Of the query's row: its mean attention on each visited item, the share of prompts in which that item
    is `first`, with the largest logit, and the mean discrepancy (nats). Of an item's row: its mean attention on the one
    that its integer names, with standard errors."""

    length: int
    on_visited: Float64[np.ndarray, "hop layer head"]
    first: Float64[np.ndarray, "hop layer head"]
    discrepancy: Float64[np.ndarray, "layer head"]
    on_named: Float64[np.ndarray, "layer head"]
    on_named_error: Float64[np.ndarray, "layer head"]


def swap_scores_of(run: SequenceRun, asking: str, prompts: int, seed: int, temperature: float) -> ScoredHeads:
    """Scores of every head over all swaps of two tokens, on fresh prompts of the trained length."""
    generator = torch.Generator().manual_seed(seed)
    length = run.spec.train_lengths[1]
    tokens = task_of(run).draw(prompts, length, generator).tokens
    shown = tokens if asking == QUERY else tokens[:, :-1]
    return score_transformer(run.model, shown, all_swaps(shown.shape[1]), temperature)


def look(run: SequenceRun, length: int, prompts: int, seed: int) -> Looked:
    """Where heads look on fresh prompts of a length above 16, at the query and at the last of so many uniform items."""
    generator = torch.Generator().manual_seed(seed)
    task = task_of(run)
    tokens = task.draw(prompts, length, generator).tokens
    rows = last_rows(run.model, tokens)
    visited = task.visited(tokens)
    on_visited = [_attention_at(rows, visited[:, hop]) for hop in range(task.hops)]
    top = rows.clamp_min(_TINY).log().topk(2, dim=-1).values
    items = torch.randint(0, ITEMS, (prompts, length), generator=generator)
    named = length - 2 - items[:, -1] // CONTENTS
    on_named = _attention_at(last_rows(run.model, items), named)
    return Looked(
        length,
        np.stack([one.mean(dim=1).numpy() for one in on_visited]),
        np.stack([(one == rows.amax(dim=-1)).double().mean(dim=1).numpy() for one in on_visited]),
        (top[..., 0] - top[..., 1]).mean(dim=1).numpy(),
        on_named.mean(dim=1).numpy(),
        (on_named.std(dim=1) / prompts**0.5).numpy(),
    )


def named_by_law(run: SequenceRun, head: int, lengths: tuple[int, ...]) -> Float64[np.ndarray, "length"]:
    """What the exact law says of `on_named` of a head of layer 0: the mean over integers j of the attention j back,
    for uniform items. Lengths are above 16."""
    queries, keys = _projected(run, head)
    schedule = RotarySchedule.geometric(run.spec.head_width, cast(Rotary, run.spec.encoding).base)
    laws = []
    for integer in range(ADDRESSES):
        own = slice(integer * CONTENTS, (integer + 1) * CONTENTS)
        asking = Head(
            schedule=schedule,
            queries=queries[own],
            query_weights=np.full(CONTENTS, 1 / CONTENTS),
            local_keys=keys[own][:, None],
            keys=keys,
            key_weights=np.full(ITEMS, 1 / ITEMS),
            logit_scale=run.spec.head_width**-0.5,
        )
        laws.append(exact_law(asking, integer + 1, lengths, 1e-6))
    return np.mean(laws, axis=0)


def task_of(run: SequenceRun) -> Hops:
    """The task that a run was trained on."""
    return cast(Hops, run.spec.task)


@torch.no_grad()
def _projected(
    run: SequenceRun, head: int
) -> tuple[Float64[np.ndarray, "token lane"], Float64[np.ndarray, "token lane"]]:
    """Queries and keys of the items in a head of layer 0, before they are turned."""
    block = cast(Block, run.model.blocks[0])
    inputs = block.attention_norm(run.model.embedding.weight[:ITEMS])
    lanes = slice(head * run.spec.head_width, (head + 1) * run.spec.head_width)
    queries, keys = (project(inputs)[:, lanes].double().numpy() for project in (block.query, block.key))
    return queries, keys


def _attention_at(
    rows: Float64[Tensor, "layer prompt head key"], places: Int64[Tensor, "prompt"]
) -> Float64[Tensor, "layer prompt head"]:
    index = places[None, :, None, None].expand(rows.shape[0], -1, rows.shape[2], 1)
    return rows.gather(3, index)[..., 0]
