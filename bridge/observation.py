"""What heads of a running model do at given lengths: mean attention by offset, on text of one's choice.

    observed(delta, L) = mean over windows of text, and over the last L/16 queries (1 to 256 of them) among the first
                         L tokens of each, of the attention at delta from the query

The standard error is that of the mean over windows. Attention looks back only: where no schedule depends on
the length one pass over a window serves every length, otherwise each length has a pass of its own.

Source: `bridge.sources.network` for the streams; attention is recomputed from them in float64, and a test holds it
against the model's own.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Float32, Float64, Int64
from scipy.special import softmax

from bridge.errors import BridgeError
from bridge.sources.activations import HeadActivations, LayerActivations
from bridge.sources.attention import LayerPositions
from bridge.sources.cache import FORMAT, keep, kept
from bridge.sources.change import RotaryChange
from bridge.sources.formats import open_model
from bridge.sources.loading import open_network, weights_sha256
from bridge.sources.model import read_maps
from bridge.sources.network import Network
from bridge.sources.texts import Windows

Advance = Callable[[int], None]

_MOST_QUERIES = 256


@dataclass(frozen=True, eq=False)
class Observed:
    """Mean attention of one head at offsets 0, -1, ... and each length, and its standard error over windows.

    Both are NaN where a length does not hold the offset, the error also where there is one window only.
    """

    layer: int
    head: int
    lengths: tuple[int, ...]
    mean: Float64[np.ndarray, "length offset"]
    standard_error: Float64[np.ndarray, "length offset"]
    windows: int


def observe(
    network: Network,
    tokens: Int64[np.ndarray, "window position"],
    layers: Sequence[int],
    lengths: Sequence[int],
    offsets: int,
    advance: Advance = lambda windows: None,
) -> tuple[Observed, ...]:
    """Every head of the layers, at offsets 0..-(offsets-1), over windows as long as the longest length or longer.

    `advance` is told of windows that are done. Raises BridgeError where windows are shorter, and as `Network.run`.
    """
    return _observed(_profiles(network, tokens, layers, lengths, offsets, advance), layers, lengths)


def observe_checkpoint(
    path: Path,
    change: RotaryChange,
    windows: Windows,
    layers: Sequence[int],
    lengths: Sequence[int],
    offsets: int,
    cache: Path,
    advance: Advance = lambda windows: None,
) -> tuple[Observed, ...]:
    """The same of a checkpoint under its own rotary positions or changed ones; what was observed once is read from the
    cache. Raises BridgeError as `open_network` and `observe`, and where the cache cannot be written."""
    model = open_model(path, change)
    asked = f"{FORMAT} {weights_sha256(model)} {windows.digest} {model.positions} {layers} {lengths} {offsets}"
    file = cache / "observations" / f"{hashlib.sha256(asked.encode()).hexdigest()[:32]}.npy"
    profiles = kept(file)
    if profiles is None:
        profiles = _profiles(open_network(path, change), windows.tokens, layers, lengths, offsets, advance)
        keep(file, profiles)
    else:
        advance(len(windows.tokens))
    return _observed(profiles, layers, lengths)


def asking(length: int) -> range:
    """Positions of the queries that stand for a length in tokens: the last sixteenth, 1 to 256 of them."""
    return range(length - min(max(length // 16, 1), _MOST_QUERIES), length)


def profile_at_the_end(head: HeadActivations, offsets: int) -> Float64[np.ndarray, "_offset"]:
    """Mean attention by offset of the queries at the end, as far as the first of them holds it."""
    places = np.array(asking(head.length))
    attention = softmax(head.logits(0, asking(head.length)), axis=1)
    held = np.arange(min(offsets, places[0] + 1))
    return attention[np.arange(len(places))[:, None], places[:, None] - held].mean(axis=0)


def _profiles(
    network: Network,
    tokens: Int64[np.ndarray, "window position"],
    layers: Sequence[int],
    lengths: Sequence[int],
    offsets: int,
    advance: Advance,
) -> Float64[np.ndarray, "layer head window length offset"]:
    """One mean profile a window, NaN where a length does not hold the offset."""
    if tokens.shape[1] < max(lengths):
        raise BridgeError(
            f"windows of {tokens.shape[1]} tokens do not hold the length {max(lengths)}: give a longer text, or "
            "shorter --lengths"
        )
    model = network.model
    maps = {layer: read_maps(model, layer) for layer in layers}
    profiles = np.full((len(layers), model.shape.heads, len(tokens), len(lengths), offsets), np.nan)
    for window, sequence in enumerate(tokens):
        for some in _passes(model.positions, lengths):

            def note(_: int, layer: int, stream: Float32[np.ndarray, "position width"]) -> None:
                whole = LayerActivations(stream[None], maps[layer], model.positions[layer])
                for index, head in enumerate(whole.heads()):
                    for length in some:  # noqa: B023
                        profile = profile_at_the_end(head.first(length), offsets)
                        place = layers.index(layer), index, window, lengths.index(length)  # noqa: B023
                        profiles[place][: len(profile)] = profile

            network.run([sequence[: max(some)]], layers, note)
        advance(1)
    return profiles


def _observed(
    profiles: Float64[np.ndarray, "layer head window length offset"], layers: Sequence[int], lengths: Sequence[int]
) -> tuple[Observed, ...]:
    windows = profiles.shape[2]
    mean = profiles.mean(axis=2)
    error = profiles.std(axis=2, ddof=1) / np.sqrt(windows) if windows > 1 else np.full_like(mean, np.nan)
    return tuple(
        Observed(layer, head, tuple(lengths), mean[place, head], error[place, head], windows)
        for place, layer in enumerate(layers)
        for head in range(mean.shape[1])
    )


def _passes(positions: Sequence[LayerPositions], lengths: Sequence[int]) -> list[list[int]]:
    """Lengths that one pass serves, together."""
    rotaries = {own.rotary for own in positions if own.rotary is not None}
    schedules = {
        length: tuple((s.frequencies.tobytes(), s.attention_factor) for s in (r.schedule(length) for r in rotaries))
        for length in lengths
    }
    return [list(lengths)] if len(set(schedules.values())) == 1 else [[length] for length in lengths]
