"""The attention of the last token of a prompt, in every head of a transformer. An earlier token is asked about by a
prompt that ends there."""

from __future__ import annotations

import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from empirics.transformer import Transformer

# Chunks that stay in the cache are faster than large ones.
_CHUNK_TOKENS = 1 << 12


@torch.no_grad()
def last_rows(
    model: Transformer, prompts: Int64[Tensor, "prompt length"]
) -> Float64[Tensor, "layer prompt head length"]:
    """Rows of the last token, computed in the precision of the model."""
    parts = []
    for some in prompts.split(max(1, _CHUNK_TOKENS // prompts.shape[1])):
        layers = model.trace(some.to(model.embedding.weight.device)).layers
        parts.append(torch.stack([layer.attention[:, :, -1].double().cpu() for layer in layers]))
    return torch.cat(parts, dim=1)
