"""How heads of our runs answer swaps in a prompt: heads of a transformer, and heads whose content is a vocabulary.

A transformer runs whole on the prompt before and after every swap, so that a head of a deeper layer sees what the
layers below it make of the swap. A head of the theory, constructed or of a one-layer run, has its logits from
tokens and places alone.

Source: arXiv 2511.11579; `theory.prompt_swaps` for swaps and scores.
"""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import Float64, Int64
from scipy.special import softmax
from torch import Tensor

from empirics.observe_rows import last_rows
from empirics.transformer import Transformer
from theory.constructed_heads import prompt_logits
from theory.discrepancy import SwapScores
from theory.head import Head
from theory.prompt_swaps import ScoredHeads, Swaps

_LEAST = float(np.finfo(np.float32).tiny)


def score_transformer(
    model: Transformer, prompts: Int64[Tensor, "prompt length"], swaps: Swaps, temperature: float
) -> ScoredHeads:
    """Swap scores and entropy of the last token's row in every head, prompt by prompt.

    Raises TheoryError for swaps of prompts of another length, and where no swap changes a prompt.
    """
    table = [_score_prompt(model, tokens.numpy(), swaps.changing(tokens.numpy()), temperature) for tokens in prompts]
    return ScoredHeads.stacked(np.array(table))


def score_head(head: Head, tokens: Int64[np.ndarray, "length"], swaps: Swaps, temperature: float) -> SwapScores:
    """The same of one head of the theory on one prompt, over the swaps that are given."""
    before, *after = (softmax(prompt_logits(head, told)) for told in (tokens, *swaps.prompts(tokens)))
    return swaps.scores(before, np.array(after), temperature)


def _score_prompt(
    model: Transformer, tokens: Int64[np.ndarray, "length"], swaps: Swaps, temperature: float
) -> Float64[np.ndarray, "layer head 3"]:
    every = np.concatenate([tokens[None], swaps.prompts(tokens)])
    # What underflows in float32 has a direction all the same: that of two keys with equally little.
    rows = np.maximum(last_rows(model, torch.from_numpy(every)).numpy(), _LEAST)
    scored = [
        [swaps.scores(rows[layer, 0, head], rows[layer, 1:, head], temperature) for head in range(rows.shape[2])]
        for layer in range(len(rows))
    ]
    return np.array([[(one.positional, one.symbolic, one.entropy) for one in heads] for heads in scored])
