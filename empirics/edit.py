"""Means written into weights: a rank-one edit of W_Q, another of W_K, and nothing else.

The query of token a is W_Q x_a. A vector e with e . x_a = 1 for every input x_a shifts them all alike,

    W_Q <- W_Q + (m_new - m_old) e^T,

so that the mean query becomes m_new and what is left of each query beside the mean stays; W_K likewise.
In the one-layer model the inputs are the rows of the embedding, and e is there where these are
no more than the width. In a pre-norm block they come from a layer norm, x = gamma z + beta with
the lanes of z adding up to 0, and e = (1/gamma) / sum(beta/gamma) has e . x = 1 whatever the token.

Source: the decomposition of queries and keys into means and residuals is arXiv 2607.18759, section 3;
the edit is ours.
"""

from __future__ import annotations

import copy

import numpy as np
import torch
from jaxtyping import Float64
from torch import Tensor, nn

from empirics.errors import EmpiricsError
from empirics.head import AttentionHead
from empirics.means import Means
from empirics.run import Run
from empirics.spec import run_spec
from empirics.transformer import Block

_EPSILON = float(np.finfo(np.float64).eps)


def constant_direction(inputs: Float64[np.ndarray, "token width"]) -> Float64[np.ndarray, "width"]:
    """The least vector e with e . x = 1 for every input x, e = X^+ 1.

    Raises EmpiricsError where there is none, as among more tokens than lanes: where some e . x misses 1 by more than
    max(tokens, width) eps s_1 |e|, the rounding of a backward stable e (s_1 the largest singular value of X).
    """
    tokens, width = inputs.shape
    direction = np.linalg.pinv(inputs, rcond=max(tokens, width) * _EPSILON) @ np.ones(tokens)
    miss = float(np.abs(inputs @ direction - 1).max())
    if miss > max(tokens, width) * _EPSILON * np.linalg.norm(inputs, 2) * np.linalg.norm(direction):
        raise EmpiricsError(
            f"no direction shifts all {tokens} tokens alike in {width} dimensions, the best is off by {miss:.2g}: "
            f"give a run with a vocabulary no larger than its width"
        )
    return direction


def means(model: AttentionHead) -> Means:
    """Mean query and mean key over the content, in float64; with modes the queries are those of the mode tokens.

    Raises EmpiricsError where positions are added to the embedding, as then queries have no mean of their own.
    """
    query, key = _means(model)
    return Means(query=tuple(query.tolist()), key=tuple(key.tolist()))


def write_means(model: AttentionHead, means: Means) -> None:
    """Give a model these means, in place: computed in float64, then cast; all other weights keep their bits.

    Raises EmpiricsError as `means` and `constant_direction`, and where the means are not of the model's width.
    """
    width = model.spec.width
    if not len(means.query) == len(means.key) == width:
        raise EmpiricsError(
            f"a mean query of {len(means.query)} lanes and a mean key of {len(means.key)} do not fit the model: "
            f"give {width} of each"
        )
    query, key = _means(model)
    direction = constant_direction(_float64(model.embedding))
    _add(model.query, np.array(means.query) - query, direction)
    _add(model.key, np.array(means.key) - key, direction)


def edited(run: Run, sha256: str, means: Means, offset: int | None = None) -> Run:
    """The run that has these means written into it, not trained and not observed yet; its parent stays as it is.

    `sha256` is that of the parent's weights.safetensors. With an `offset` the task is that of the new K, to be
    evaluated at those of the parent's lengths that hold it, or at K + the longest training length where none does.
    The history and the evaluation are empty. Raises EmpiricsError as `write_means` and where the spec does not allow
    an edit.
    """
    back = run.spec.offset if offset is None else offset
    edit = {"parent": run.spec.id, "sha256": sha256, "means": means}
    holding = tuple(length for length in run.spec.evaluation_lengths if length > back)
    lengths = holding or (back + run.spec.train_lengths[1],)
    spec = run_spec(**dict(run.spec) | {"edit": edit, "offset": back, "evaluation_lengths": lengths})
    model = copy.deepcopy(run.model)
    model.spec = spec
    write_means(model, means)
    return Run(spec, model, history=(), evaluation=(), seconds=0.0, learner="edit")


def norm_direction(norm: nn.LayerNorm) -> Float64[np.ndarray, "width"]:
    """e = (1/gamma) / sum(beta/gamma), for which e . x = 1 for every output x = gamma z + beta of a layer norm.

    Raises EmpiricsError where a gain is 0, or the sum is 0 to the rounding of its terms in the precision of the norm,
    as it is before training.
    """
    gain, bias = _float64(norm.weight), _float64(norm.bias)
    if not gain.all():
        raise EmpiricsError(
            f"{int((gain == 0).sum())} gains of the layer norm are 0, so that none is to be divided by it"
        )
    total = float((bias / gain).sum())
    if abs(total) <= len(gain) * torch.finfo(norm.weight.dtype).eps * np.abs(bias / gain).sum():
        raise EmpiricsError(
            f"the biases over the gains of the layer norm add up to {total:.2g}, so that no direction is constant over "
            f"its outputs: give a trained model"
        )
    return 1 / gain / total


def shift_block(block: Block, query: Float64[np.ndarray, "width"], key: Float64[np.ndarray, "width"]) -> None:
    """Add constants to all queries and all keys of a block, in place, lanes of its heads side by side.

    Zeros stand for the heads that stay. Raises EmpiricsError as `norm_direction`.
    """
    direction = norm_direction(block.attention_norm)
    _add(block.query.weight, query, direction)
    _add(block.key.weight, key, direction)


def _means(model: AttentionHead) -> tuple[Float64[np.ndarray, "width"], Float64[np.ndarray, "width"]]:
    spec, inputs = model.spec, _float64(model.embedding)
    if spec.encoding.kind in ("ape", "randomized", "sinusoidal"):
        raise EmpiricsError(
            f"run {spec.id} adds positions to its embedding, so that its queries have no mean of their own: "
            f"give a rotary run"
        )
    content = inputs[: spec.vocabulary].mean(axis=0)
    asking = content if spec.second_offset is None else inputs[spec.vocabulary :].mean(axis=0)
    return _float64(model.query) @ asking, _float64(model.key) @ content


@torch.no_grad()
def _add(weight: Tensor, shift: Float64[np.ndarray, "width"], direction: Float64[np.ndarray, "width"]) -> None:
    """W <- W + shift e^T, in float64, then in the precision of W."""
    weight.copy_(torch.from_numpy(_float64(weight) + np.outer(shift, direction)))


def _float64(weight: Tensor) -> Float64[np.ndarray, "*shape"]:
    return weight.detach().cpu().numpy().astype(np.float64)
