"""A layer of a checkpoint with content: its weights over the tokens of a text, each as often as it occurs there.

    path -> Model -> token weights -> Reading of the rows that occur -> heads

Source: `bridge.sources.formats` (models), `bridge.sources.tokens` (weights).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from jaxtyping import Float64

from bridge.errors import BridgeError
from bridge.sources.attention import LayerPositions, PositionLayer, TokenLayer
from bridge.sources.change import AS_IT_IS, RotaryChange
from bridge.sources.formats import open_model, unchanged_model
from bridge.sources.model import Model, Reading, check_layer, read_layer
from bridge.sources.tokens import TokenWeights, default_text, read_tokenizer_at, story, token_weights, uniform
from bridge.surface import PlacedHead


@dataclass(frozen=True)
class ContentOptions:
    """Where content comes from: a tokenizer and a text to count tokens in, None for the model's own and the default; or
    uniform."""

    tokenizer: Path | None = None
    counts: Path | None = None
    uniform: bool = False


OWN_CONTENT = ContentOptions()
"""The model's own tokenizer and the default text."""


@dataclass(frozen=True, eq=False)
class LayerContent:
    """One layer of a model over the tokens that occur, with their probabilities.

    `own_positions` are the model's, where they were changed and it states some.
    """

    model: Model
    index: int
    reading: Reading
    tokens: TokenWeights
    weights: Float64[np.ndarray, "token"]
    own_positions: LayerPositions | None

    @property
    def name(self) -> str:
        """What files about it begin with."""
        return self.model.name

    @property
    def assumptions(self) -> tuple[str, ...]:
        """Sentences on every value that the files do not state, content included."""
        return (*self.model.assumptions, self.tokens.provenance)

    @property
    def positions(self) -> LayerPositions:
        """How positions enter the layer."""
        return self.model.positions[self.index]

    def heads(self) -> Iterator[tuple[int, PlacedHead]]:
        """Every head with its index."""
        for index, head in enumerate(self._tokens().heads(self.weights)):
            yield index, PlacedHead(head, self.positions)

    def head(self, index: int) -> PlacedHead:
        """One head. Raises BridgeError for one that is not there."""
        return PlacedHead(self._tokens().head(index, self.weights), self.positions)

    def unchanged(self, head: PlacedHead) -> PlacedHead | None:
        """A head of it with the model's own positions, None where they were not changed."""
        return None if self.own_positions is None else replace(head, positions=self.own_positions)

    def _tokens(self) -> TokenLayer:
        layer = self.reading.layer
        if isinstance(layer, PositionLayer):
            raise BridgeError(
                f"{self.model.path} has learned positions: logits are no function of the offset, and its heads have no "
                "carrier; `carrier inspect` shows where they are pinned"
            )
        return layer


def read_content(
    path: Path,
    layer: int,
    options: ContentOptions = OWN_CONTENT,
    change: RotaryChange = AS_IT_IS,
    sha256: str | None = None,
) -> LayerContent:
    """A layer of the checkpoint at a path. `sha256` is the beginning of the one that the reading must have.

    Raises BridgeError as `open_model`, `token_weights` and `read_layer`, where the sha256 is another, and for a change
    that changes nothing.
    """
    model = open_model(path, change)
    check_layer(model, layer)
    own = _own_positions(path, layer, model, change)
    tokens = _token_weights(model, options)
    occur = np.flatnonzero(tokens.weights)
    reading = read_layer(model, layer, occur)
    if sha256 is not None and not reading.sha256.startswith(sha256.lower()):
        raise BridgeError(f"{path} was altered or is another file: its sha256 is {reading.sha256}, not {sha256}")
    return LayerContent(model, layer, reading, tokens, tokens.weights[occur], own)


def _own_positions(path: Path, layer: int, model: Model, change: RotaryChange) -> LayerPositions | None:
    """The layer's positions without the change, None where there is none, or the model states none of its own."""
    unchanged = unchanged_model(path, change)
    if unchanged is None:
        return None
    own = unchanged.positions[layer]
    if own == model.positions[layer]:
        raise BridgeError(
            f"{path}: --base and --rope-scaling leave layer {layer} as it is: they are the model's own, or the layer "
            "is local and keeps its base; drop them"
        )
    return own


def _token_weights(model: Model, options: ContentOptions) -> TokenWeights:
    if options.uniform:
        if options.tokenizer or options.counts:
            raise BridgeError("--uniform counts no text: drop --tokenizer and --counts, or --uniform")
        return uniform(model.shape.vocabulary)
    stories = model.format == "llama2.c"
    own = None if stories else model.path
    at = options.tokenizer or own
    tokenizer = None if at is None else read_tokenizer_at(at)
    return token_weights(model.shape.vocabulary, tokenizer, options.counts, story if stories else default_text)
