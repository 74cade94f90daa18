"""Inference-time fixes of learned positions: tables that lay a long sequence over the trained rows.

A fix gives the L rows at which a sequence of length L > L_max is read, made of the L_max = T trained
rows p_0 .. p_(T-1) alone; nothing else of the model changes:

    interpolated   row t is p at t (T - 1)/(L - 1), on the straight line between its neighbours
    clamped        row t is p_min(t, T - 1)
    rescaled       row t is p_floor(t T / L)

Source: arXiv 2607.18759, Table 6, which names them and defines none. With these readings all of its
numbers come back at L = 40; rounding instead of cutting the rescaled index changes nothing there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from jaxtyping import Float
from torch import Tensor

from bridge.errors import BridgeError
from empirics.head import AttentionHead
from empirics.observe import Observation, observe
from empirics.train import Run

Fix = Callable[[Float[Tensor, "trained width"], int], Float[Tensor, "length width"]]


def interpolated(rows: Float[Tensor, "trained width"], length: int) -> Float[Tensor, "length width"]:
    """The first and the last position keep their rows, those between are mixed from two."""
    place = torch.arange(length, dtype=torch.float64) * (len(rows) - 1) / (length - 1)
    below = place.floor().long().clamp(max=len(rows) - 2)
    share = (place - below).to(rows.dtype)[:, None]
    return (1 - share) * rows[below] + share * rows[below + 1]


def clamped(rows: Float[Tensor, "trained width"], length: int) -> Float[Tensor, "length width"]:
    """Every position beyond the last trained one is read as that one."""
    return rows[torch.arange(length).clamp(max=len(rows) - 1)]


def rescaled(rows: Float[Tensor, "trained width"], length: int) -> Float[Tensor, "length width"]:
    """Positions are shrunk onto the trained ones, several to a row."""
    return rows[torch.arange(length) * len(rows) // length]


FIXES: Mapping[str, Fix] = {"interpolated": interpolated, "clamped": clamped, "rescaled": rescaled}


def observe_fixed(run: Run, fix: Fix, length: int) -> Observation:
    """What a run with learned positions does at a length beyond the trained ones, read through a fix.

    Sequences are as many as the run's own evaluation has, from a generator of the run's seed. Raises BridgeError
    where the run has no position table, or the length is not beyond the trained ones.
    """
    spec, table = run.spec, run.model.positions
    trained = spec.train_lengths[1]
    if table is None:
        raise BridgeError(f"run {spec.id} has no position table to fix: give one with learned positions")
    if length <= trained:
        raise BridgeError(f"length {length} is not beyond the trained ones: give more than {trained}")
    model = AttentionHead(spec)
    model.load_state_dict(run.model.state_dict())
    rows = fix(table.detach()[:trained], length)
    if model.positions is not None:
        model.positions.data[:length] = rows
    (seen,) = observe(model, [length], spec.evaluation_sequences, torch.Generator().manual_seed(spec.seed))
    return seen
