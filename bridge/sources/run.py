"""A run of ours as heads of the theory.

Projections are taken in float64 from the stored float32 weights. The content is the vocabulary,
every token as likely as any other, and the key at offset 0 is the query's own. Where a task has
modes the queries are the mode tokens, which no other key is.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Float64
from torch import Tensor

from bridge.errors import BridgeError
from empirics.encoding_specs import BucketBias, LinearBias, NoPositions, PeriodicRotary, Rotary
from empirics.specs import Spec
from empirics.train import Run
from theory.bias import BucketBias as HeadBucketBias
from theory.bias import LinearBias as HeadLinearBias
from theory.bias import OffsetBias
from theory.head import Head
from theory.schedule import RotarySchedule


def heads_of_run(run: Run) -> tuple[Head, ...]:
    """Every head of a run. Raises BridgeError where logits are no function of the offset (Lemma 1)."""
    return tuple(head_of_run(run, index) for index in range(run.spec.heads))


def head_of_run(run: Run, index: int = 0) -> Head:
    """One trained head; for linear attention that of its logits. Raises BridgeError where logits are no function of the
    offset (Lemma 1), or the run has no such head."""
    spec, encoding = run.spec, run.spec.encoding
    if not isinstance(encoding, Rotary | PeriodicRotary | LinearBias | BucketBias | NoPositions):
        raise no_carrier(spec)
    if not 0 <= index < spec.heads:
        raise BridgeError(f"run {spec.id} has heads 0 to {spec.heads - 1}, got {index}")
    if spec.head_width % 2:
        raise BridgeError(f"run {spec.id} has heads of odd width {spec.head_width}: the theory takes pairs of lanes")
    lanes = slice(index * spec.head_width, (index + 1) * spec.head_width)
    embedding = _float64(run.model.embedding)
    queries = embedding @ _float64(run.model.query)[lanes].T
    keys = embedding @ _float64(run.model.key)[lanes].T
    return _head(run, index, queries, keys)


def no_carrier(spec: Spec) -> BridgeError:
    """Why a run is no head of the theory."""
    return BridgeError(
        f"run {spec.id} adds positions to its embedding: its logits are no function of the offset, so it has no "
        f"carrier; give a rotary run"
    )


def readout_of_run(run: Run, index: int = 0) -> Float64[np.ndarray, "key output"]:
    """O[b, y] = (U W_V E_b)_y: what full attention of a head on token b gives to the score of output y."""
    spec = run.spec
    lanes = slice(index * spec.head_width, (index + 1) * spec.head_width)
    value = _float64(run.model.value)[lanes]
    return _float64(run.model.embedding)[: spec.vocabulary] @ value.T @ _float64(run.model.readout)[:, lanes].T


def _head(
    run: Run, index: int, queries: Float64[np.ndarray, "token lane"], keys: Float64[np.ndarray, "token lane"]
) -> Head:
    """Tokens are the pool of keys; they ask as well, or the modes do where there are any."""
    spec = run.spec
    content = slice(None, spec.vocabulary)
    asking = content if spec.second_offset is None else slice(spec.vocabulary, None)
    count = len(queries[asking])
    schedule = RotarySchedule.without_rotation(spec.head_width)
    if isinstance(spec.encoding, Rotary):
        schedule = RotarySchedule.geometric(spec.head_width, spec.encoding.base)
    if isinstance(spec.encoding, PeriodicRotary):
        schedule = RotarySchedule.periodic(spec.encoding.turns(spec.head_width // 2))
    return Head(
        schedule=schedule,
        queries=queries[asking],
        query_weights=np.full(count, 1 / count),
        local_keys=keys[asking][:, None],
        keys=keys[content],
        key_weights=np.full(spec.vocabulary, 1 / spec.vocabulary),
        logit_scale=spec.temperature * spec.head_width**-0.5,
        bias=_bias(run, index),
    )


def _bias(run: Run, index: int) -> OffsetBias | None:
    encoding = run.spec.encoding
    if isinstance(encoding, LinearBias):
        return HeadLinearBias(encoding.slope)
    if isinstance(encoding, BucketBias) and run.model.bias is not None:
        return HeadBucketBias.clamped(_float64(run.model.bias)[index])
    return None


def _float64(parameter: Tensor) -> np.ndarray:
    return parameter.detach().numpy().astype(np.float64)
