"""Activations over windows of text: the residual stream into layers, and the queries and keys that follow.

    text -> windows of tokens -> network -> stream into a layer -> maps of the layer -> queries, keys

Streams go to disk window by window as they are captured, so that the memory of a capture does not grow with
the text, and stay there under the sha256 of weights, tokens and positions: a second call reads them, an
interrupted one goes on. A file that was cut is captured again.

Source: `bridge.sources.network` for the streams, `bridge.sources.model` for the maps.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from jaxtyping import Float32, Float64

from bridge.errors import BridgeError
from bridge.sources.attention import LayerPositions, Maps
from bridge.sources.cache import FORMAT, keep, kept
from bridge.sources.change import AS_IT_IS, RotaryChange
from bridge.sources.formats import open_model
from bridge.sources.loading import check_rotary, open_network, weights_sha256
from bridge.sources.model import Model, read_maps
from bridge.sources.texts import Windows
from theory.schedule import RotarySchedule

_TOGETHER = 4
"""Windows of one pass: more gain nothing on a CPU."""


@dataclass(frozen=True, eq=False)
class HeadActivations:
    """Queries and keys of one head over windows of text, before positions; `logit_scale` makes nats of products."""

    queries: Float64[np.ndarray, "window position lane"]
    keys: Float64[np.ndarray, "window position lane"]
    logit_scale: float
    positions: LayerPositions

    @property
    def length(self) -> int:
        """Tokens of a window."""
        return self.queries.shape[1]

    def first(self, length: int) -> HeadActivations:
        """The same over the first tokens of each window."""
        return replace(self, queries=self.queries[:, :length], keys=self.keys[:, :length])

    def schedule(self) -> RotarySchedule:
        """The schedule over a whole window."""
        return self.positions.schedule(self.queries.shape[2], self.length)

    def logits(self, window: int, asking: range, keys_of: int | None = None) -> Float64[np.ndarray, "query position"]:
        """Logits in nats of the queries at positions `asking` of a window with every key of it, -inf where unseen.

        `keys_of` takes the keys of another window at the same positions.
        """
        schedule, places = self.schedule(), np.arange(self.length)
        at = places[asking.start : asking.stop]
        gains = self.logit_scale * np.repeat(schedule.score_gains, 2)
        turned = schedule.rotate(gains * self.queries[window, at], at)
        logits = turned @ schedule.rotate(self.keys[window if keys_of is None else keys_of], places).T
        back = at[:, None] - places
        hidden = back < 0
        if self.positions.span is not None:
            hidden |= back >= self.positions.span
        logits[hidden] = -np.inf
        return logits


@dataclass(frozen=True, eq=False)
class LayerActivations:
    """One layer over windows of text: the stream into it, its maps, and how positions enter."""

    streams: Float32[np.ndarray, "window position width"]
    maps: Maps
    positions: LayerPositions

    def heads(self) -> Iterator[HeadActivations]:
        """Every query head in order."""
        windows, length, width = self.streams.shape
        for queries, keys in self.maps.groups(self.streams.reshape(-1, width)):
            own = keys.reshape(windows, length, -1)
            for query in queries:
                yield self._head(query.reshape(windows, length, -1), own)

    def head(self, index: int) -> HeadActivations:
        """One query head. Raises BridgeError for one that is not there."""
        if not 0 <= index < self.maps.query.heads:
            raise BridgeError(f"head {index} does not exist: heads of this layer are 0 to {self.maps.query.heads - 1}")
        windows, length, width = self.streams.shape
        kv, stream = index // self.maps.group, self.streams.reshape(-1, width)
        query = self.maps.queries(stream, slice(index, index + 1))[0]
        key = self.maps.keys(stream, slice(kv, kv + 1))[0]
        return self._head(query.reshape(windows, length, -1), key.reshape(windows, length, -1))

    def _head(
        self,
        queries: Float64[np.ndarray, "window position lane"],
        keys: Float64[np.ndarray, "window position lane"],
    ) -> HeadActivations:
        return HeadActivations(queries, keys, self.maps.logit_scale, self.positions)


@dataclass(frozen=True, eq=False)
class Activations:
    """Captured streams on disk. `sha256` is that of the weights."""

    model: Model
    windows: Windows
    sha256: str
    folder: Path

    def layer(self, index: int) -> LayerActivations:
        """One layer. Raises BridgeError as `read_maps`, and where it was not captured."""
        maps = read_maps(self.model, index)
        shape = (*self.windows.tokens.shape[1:], self.model.shape.width)
        streams = [_read(_file(self.folder, index, window), shape) for window in range(len(self.windows.tokens))]
        captured = [stream for stream in streams if stream is not None]
        if len(captured) < len(streams):
            raise BridgeError(f"layer {index} was not captured whole in {self.folder}: capture it again")
        return LayerActivations(np.stack(captured), maps, self.model.positions[index])


def capture(
    path: Path,
    windows: Windows,
    layers: Sequence[int],
    cache: Path,
    change: RotaryChange = AS_IT_IS,
    advance: Callable[[int], None] = lambda windows: None,
) -> Activations:
    """The streams into layers of a checkpoint over windows of text, run where they are not in the cache.

    It runs under its own rotary positions or changed ones. `advance` is told of windows that are done. Raises
    BridgeError as `open_network`, and where the cache cannot be written.
    """
    model = open_model(path, change)
    check_rotary(model)
    sha256 = weights_sha256(model)
    run = hashlib.sha256(f"{FORMAT} {sha256} {windows.digest} {model.positions}".encode()).hexdigest()
    folder = cache / "activations" / run[:32]
    shape = (*windows.tokens.shape[1:], model.shape.width)
    missing = [
        window
        for window in range(len(windows.tokens))
        if any(_read(_file(folder, layer, window), shape) is None for layer in layers)
    ]
    advance(len(windows.tokens) - len(missing))
    if missing:
        network = open_network(path, change)
        for start in range(0, len(missing), _TOGETHER):
            some = missing[start : start + _TOGETHER]

            def write(row: int, layer: int, stream: Float32[np.ndarray, "position width"]) -> None:
                keep(_file(folder, layer, some[row]), stream)  # noqa: B023

            network.run([windows.tokens[window] for window in some], layers, write)
            advance(len(some))
    return Activations(model, windows, sha256, folder)


def _file(folder: Path, layer: int, window: int) -> Path:
    return folder / f"layer-{layer:03d}-window-{window:04d}.npy"


def _read(file: Path, shape: tuple[int, ...]) -> Float32[np.ndarray, "position width"] | None:
    """A stream of this shape, None where the file is not there or not whole."""
    stream = kept(file)
    return stream if stream is not None and stream.shape == shape and stream.dtype == np.float32 else None
