"""Text that a model samples from itself: sequences from the first token at temperature 1, to the token that ends one.

Where no text of the kind that a model was trained on is at hand, this is the nearest one: whatever it says
of heads beyond the trained length, it says on the model's own distribution.

Source: transformers' `generate`; karpathy/llama2.c, run.c (token 1 begins a sequence and ends the one before).
"""

from __future__ import annotations

from copy import copy
from pathlib import Path

import numpy as np
from jaxtyping import Int64

from bridge.errors import BridgeError
from bridge.sources.cache import keep, kept
from bridge.sources.formats import open_model
from bridge.sources.loading import open_network, quiet, weights_sha256
from bridge.sources.network import Network

SEQUENCES = 256
"""How many are sampled unless another number is given."""

_NONE = -1
"""In the place of a token, after the end of a sequence."""


def own_sequences(path: Path, seed: int, sequences: int, cache: Path) -> list[Int64[np.ndarray, "_position"]]:
    """Sequences that a checkpoint samples from itself, kept in a folder under the sha256 of the weights.

    Raises BridgeError as `open_network` and `sample_sequences`, and where the folder cannot be written.
    """
    file = cache / "samples" / f"{weights_sha256(open_model(path))[:32]}-seed-{seed}-of-{sequences}.npy"
    rows = kept(file)
    if rows is None:
        rows = sample_sequences(open_network(path), seed, sequences)
        keep(file, rows)
    return [row[row != _NONE] for row in rows]


def sample_sequences(network: Network, seed: int, sequences: int = SEQUENCES) -> Int64[np.ndarray, "sequence position"]:
    """Sequences that each begin with the model's first token, at most as long as the trained length; -1 after the end.

    A sequence ends before the first token comes again, or the one that the model declares to end a text. Seed and
    number together give them. Raises BridgeError for a model that declares no first token.
    """
    import torch
    import transformers

    config = network.causal.generation_config
    first = config.bos_token_id
    if first is None:
        raise BridgeError(f"{network.model.path} declares no first token to sample from: give --text another text")
    # What a model declares for chats, such as a penalty on repetition, would leave no sample of its distribution.
    causal = copy(network.causal)
    causal.generation_config = transformers.GenerationConfig()
    ends = [first, *([config.eos_token_id] if isinstance(config.eos_token_id, int) else config.eos_token_id or [])]
    with torch.random.fork_rng(), torch.no_grad(), quiet(transformers):
        torch.manual_seed(seed)
        drawn = causal.generate(
            torch.full((sequences, 1), first),
            do_sample=True,
            temperature=1.0,
            top_k=0,
            top_p=1.0,
            max_length=network.model.shape.trained_length,
            eos_token_id=ends,
            pad_token_id=first,
        )
    rows = drawn.numpy().astype(np.int64)
    ended = np.cumsum(np.isin(rows[:, 1:], ends), axis=1) > 0
    rows[:, 1:][ended] = _NONE
    return rows
