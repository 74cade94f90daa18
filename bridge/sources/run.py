"""A run of ours as a head of the theory.

Projections are taken in float64 from the stored float32 weights. The content is the
vocabulary, every token as likely as any other, and the key at offset 0 is the query's own.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Float64
from torch import Tensor

from bridge.errors import BridgeError
from empirics.spec import Rotary
from empirics.train import Run
from theory.head import Head
from theory.schedule import RotarySchedule


def head_of_run(run: Run) -> Head:
    """The trained head. Raises BridgeError where its logits are no function of the offset (Lemma 1)."""
    spec = run.spec
    if not isinstance(spec.encoding, Rotary):
        raise BridgeError(
            f"run {spec.id} has learned positions: its logits are no function of the offset, so it has no carrier; "
            f"give a rotary run"
        )
    embedding = _float64(run.model.embedding)
    return Head.from_tokens(
        schedule=RotarySchedule.geometric(spec.width, spec.encoding.base),
        queries=embedding @ _float64(run.model.query).T,
        keys=embedding @ _float64(run.model.key).T,
        weights=np.full(spec.vocabulary, 1 / spec.vocabulary),
        logit_scale=spec.width**-0.5,
    )


def readout_of_run(run: Run) -> Float64[np.ndarray, "key output"]:
    """O[b, y] = (U W_V E_b)_y: what full attention on token b gives to the score of output y."""
    return _float64(run.model.embedding) @ _float64(run.model.value).T @ _float64(run.model.readout).T


def _float64(parameter: Tensor) -> np.ndarray:
    return parameter.detach().numpy().astype(np.float64)
