"""A head of a transformer run as a head of the theory, filled with samples of its activations.

Past the first layer queries and keys depend on the context, so the content is drawn: from every
sequence one query, joint with its own key at offset 0, and from other sequences the pool of keys,
all before they are turned. No other key is joint with the query: that is an assumption, and what
is predicted with such a head shows whether it holds.

Source: arXiv 2607.18759, section 5.2; `theory.head` for what a head is.
"""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from bridge.errors import BridgeError
from bridge.sources.run import no_carrier
from empirics.spec import Rotary
from empirics.tasks import draw_batch
from empirics.train import TransformerRun
from theory.head import Head
from theory.schedule import RotarySchedule

SAMPLES = 512


@torch.no_grad()
def head_of_transformer(
    run: TransformerRun, layer: int, head: int, length: int, samples: int = SAMPLES, seed: int = 0
) -> Head:
    """One head from `samples` queries at positions K .. L-1 and as many keys at 0 .. L-1 of sequences of one length.

    Raises BridgeError where logits are no function of the offset (Lemma 1), where the run has no such head, or where
    the length does not hold the target.
    """
    spec = run.spec
    if not isinstance(spec.encoding, Rotary):
        raise no_carrier(spec)
    for name, given, count in (("layer", layer, spec.layers), ("head", head, spec.heads)):
        if not 0 <= given < count:
            raise BridgeError(f"run {spec.id} has {name}s 0 to {count - 1}, got {name} {given}")
    if length <= spec.offset:
        raise BridgeError(f"length {length} holds no token K = {spec.offset} back: give a longer one")
    generator = torch.Generator().manual_seed(seed)
    tokens = draw_batch(spec, 2 * samples, length, generator).tokens
    trace = run.model.trace(tokens).layers[layer]
    asking, asked = torch.arange(samples), torch.arange(samples, 2 * samples)
    place = torch.randint(spec.offset, length, (samples,), generator=generator)
    other = torch.randint(0, length, (samples,), generator=generator)
    return Head(
        schedule=RotarySchedule.geometric(spec.head_width, spec.encoding.base),
        queries=_float64(trace.query[asking, head, place]),
        query_weights=np.full(samples, 1 / samples),
        local_keys=_float64(trace.key[asking, head, place])[:, None],
        keys=_float64(trace.key[asked, head, other]),
        key_weights=np.full(samples, 1 / samples),
        logit_scale=spec.head_width**-0.5,
    )


def _float64(vectors: Float[Tensor, "sample lane"]) -> np.ndarray:
    return vectors.numpy().astype(np.float64)
