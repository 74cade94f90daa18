"""How the heads of a checkpoint answer swaps of two tokens in a prompt.

The network runs on a window of text and on the window after each swap; what enters a layer then
differs wherever the swap is felt, the query's own token included. Attention is recomputed from the streams
by the layer's own maps. Every late token of a window is a query of its own: the prompt that ends
with it, and the swaps of tokens before it. So one pass serves many prompts.

Means over the queries of a window are kept on disk, under the sha256 of the weights and of all that was asked.

Source: arXiv 2511.11579; `theory.prompt_swaps` for swaps and scores, `bridge.sources.network` for the streams.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from jaxtyping import Float32, Float64, Int64
from scipy.special import softmax

from bridge.errors import BridgeError
from bridge.sources.activations import HeadActivations, LayerActivations
from bridge.sources.cache import FORMAT, keep, kept
from bridge.sources.formats import open_model
from bridge.sources.loading import open_network, weights_sha256
from bridge.sources.model import read_maps
from bridge.sources.network import Network
from theory.prompt_swaps import ScoredHeads, Swaps

_LEAST = np.finfo(np.float64).tiny
_TOGETHER = 16
"""Sequences of one pass: more gain nothing on a CPU."""


def score_checkpoint(
    path: Path,
    windows: Int64[np.ndarray, "window position"],
    swaps: Swaps,
    queries: range,
    temperature: float,
    cache: Path,
    layers: Sequence[int] | None = None,
    advance: Callable[[int], None] = lambda windows: None,
) -> ScoredHeads:
    """Swap scores and entropy of every head of some layers (None: all), means over the queries of each window.

    `queries` are positions, each of which asks about swaps before it. Raises BridgeError as `open_network`, for
    queries with fewer than two keys before them or outside a window, and where no swap before one changes its prompt.
    """
    length = windows.shape[1]
    if swaps.block != 1 or swaps.length != length or not queries or min(queries) < 2 or max(queries) >= length:
        raise BridgeError(
            f"windows of {length} tokens take swaps of single tokens in as many and queries among 2..{length - 1}: got "
            f"blocks of {swaps.block} in {swaps.length} tokens and queries {list(queries)[:3]} ..."
        )
    model = open_model(path)
    chosen = tuple(range(model.shape.layers)) if layers is None else tuple(layers)
    asked = f"{FORMAT} {weights_sha256(model)} {swaps.pairs.tolist()} {list(queries)} {temperature!r} {chosen}"
    network: Network | None = None
    scored = []
    for tokens in windows:
        digest = hashlib.sha256(f"{asked} {tokens.tolist()}".encode()).hexdigest()
        file = cache / "swaps" / f"{digest[:32]}.npy"
        found = kept(file)
        if found is None:
            network = network or open_network(path)
            found = _score_window(network, tokens, swaps.changing(tokens), queries, temperature, chosen)
            keep(file, found)
        scored.append(found)
        advance(1)
    return ScoredHeads.stacked(np.array(scored))


def _score_window(
    network: Network,
    tokens: Int64[np.ndarray, "position"],
    swaps: Swaps,
    queries: range,
    temperature: float,
    layers: tuple[int, ...],
) -> Float64[np.ndarray, "layer head 3"]:
    streams = _streams(network, np.concatenate([tokens[None], swaps.prompts(tokens)]), layers)
    scored = []
    for layer, stream in zip(layers, streams, strict=True):
        activations = LayerActivations(stream, read_maps(network.model, layer), network.model.positions[layer])
        scored.append([_score_head(head, swaps, queries, temperature) for head in activations.heads()])
    return np.array(scored)


def _streams(
    network: Network, sequences: Int64[np.ndarray, "sequence position"], layers: tuple[int, ...]
) -> Float32[np.ndarray, "layer sequence position width"]:
    """What enters each layer for every sequence."""
    held = np.empty((len(layers), *sequences.shape, network.model.shape.width), dtype=np.float32)
    for start in range(0, len(sequences), _TOGETHER):

        def visit(row: int, layer: int, stream: Float32[np.ndarray, "position width"]) -> None:
            held[layers.index(layer), start + row] = stream  # noqa: B023

        network.run(list(sequences[start : start + _TOGETHER]), layers, visit)
    return held


def _score_head(head: HeadActivations, swaps: Swaps, queries: range, temperature: float) -> Float64[np.ndarray, "3"]:
    """Means over queries of s_pos, s_sym, entropy; the first window is the prompt, the others are after a swap each."""
    rows = np.stack([softmax(head.logits(window, queries), axis=1) for window in range(len(head.queries))])
    # What underflows, or lies outside a sliding window, has a direction all the same: that of equally little.
    rows = np.maximum(rows, _LEAST)
    told = []
    for index, query in enumerate(queries):
        own = swaps.before(query)
        seen = rows[:, index, : query + 1]
        scores = own.scores(seen[0], seen[1:][(swaps.pairs < query).all(axis=1)], temperature)
        told.append((scores.positional, scores.symbolic, scores.entropy))
    return np.mean(told, axis=0)
