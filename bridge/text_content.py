"""Layers of a checkpoint with content from its activations: the model runs on a text, and heads are filled with it.

    path, text -> windows of tokens -> activations -> heads of any layer

Source: `bridge.sources.texts` (windows), `bridge.sources.activations` (streams, queries, keys).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from bridge.calibration import check_windows
from bridge.errors import BridgeError
from bridge.sources.activations import Activations, HeadActivations, capture
from bridge.sources.attention import LayerPositions
from bridge.sources.cache import default_cache
from bridge.sources.change import AS_IT_IS, RotaryChange
from bridge.sources.formats import open_model, unchanged_model
from bridge.sources.loading import check_rotary, weights_sha256
from bridge.sources.model import Model
from bridge.sources.sampling import SEQUENCES, own_sequences
from bridge.sources.texts import Windows, cut_windows, join_windows, open_text
from bridge.sources.tokens import TextTokenizer, read_tokenizer_at

ITSELF = "itself"
"""The text that the model samples from itself."""

_CALIBRATION_SEED, _OBSERVATION_SEED = 1, 0


@dataclass(frozen=True)
class TextOptions:
    """What a model is run on: a text (None: the default of the format), its tokenizer (None: the model's own), the
    tokens of a window and the most windows, the first token, and the folder that activations are kept in.

    `first_token` is "auto" (what the tokenizer declares), "none", or a token's number; `sequences` are sampled where
    the text is the model's own.
    """

    text: str | None = None
    tokenizer: Path | None = None
    window: int = 257
    windows: int = 22
    first_token: str = "auto"
    cache: Path | None = None
    sequences: int = SEQUENCES


@dataclass(frozen=True, eq=False)
class TextContent:
    """Layers of a model over windows of text. `model` has the positions asked for, `own` the model's own,
    None where these are the same."""

    model: Model
    own: Model | None
    layers: tuple[int, ...]
    activations: Activations

    @property
    def name(self) -> str:
        """What files about it begin with."""
        return self.model.name

    @property
    def assumptions(self) -> tuple[str, ...]:
        """Sentences on every value that the files do not state, and on the text."""
        return (*self.model.assumptions, self.activations.windows.provenance)

    def changed(self, layer: int) -> LayerPositions | None:
        """The positions asked for, None where they are the layer's own."""
        return None if self.own is None else self.model.positions[layer]

    def heads(self, only: int | None = None) -> Iterator[tuple[int, int, HeadActivations]]:
        """Layer, index and activations of every head, layers in order, or of one head of each layer."""
        for layer in self.layers:
            activations = self.activations.layer(layer)
            if only is not None:
                yield layer, only, activations.head(only)
                continue
            for index, head in enumerate(activations.heads()):
                yield layer, index, head


def read_text_content(
    path: Path,
    layers: Sequence[int] | None,
    options: TextOptions,
    change: RotaryChange = AS_IT_IS,
    sha256: str | None = None,
    advance: Callable[[int], None] = lambda windows: None,
) -> TextContent:
    """Layers (None: all) of the checkpoint at a path over a text; `advance` is told of windows that are captured.

    The model runs under its own positions, whatever the change, as far as it states them. Raises BridgeError as
    `open_model`, `open_text`, `cut_windows` and `capture`, for a change that changes nothing, and where the sha256
    of the weights does not begin with the one given.
    """
    model = open_model(path, change)
    check_rotary(model)
    chosen = tuple(range(model.shape.layers)) if layers is None else tuple(layers)
    if not 0 <= min(chosen) <= max(chosen) < model.shape.layers:
        raise BridgeError(f"layer {max(chosen)} does not exist: layers of this model are 0 to {model.shape.layers - 1}")
    if sha256 is not None and not (found := weights_sha256(model)).startswith(sha256.lower()):
        raise BridgeError(f"{path} was altered or is another file: its sha256 is {found}, not {sha256}")
    own = _own(path, model, change)
    windows = calibration_windows(path, model, options)
    ran_under = AS_IT_IS if change == AS_IT_IS or own is not None else change
    activations = capture(path, windows, chosen, options.cache or default_cache(), ran_under, advance)
    return TextContent(model, own, chosen, activations)


def calibration_windows(path: Path, model: Model, options: TextOptions) -> Windows:
    """The windows that a model is calibrated on; the longest is as long as it was trained for.

    Raises BridgeError as `open_text`, `cut_windows` and `check_windows`.
    """
    length = min(options.window, model.shape.trained_length)
    source = options.text or ("stories" if model.format == "llama2.c" else "topics")
    windows = _windows(path, model, options, source, length, options.windows, _CALIBRATION_SEED)
    check_windows(len(windows.tokens), length)
    return windows


def observation_windows(
    path: Path, model: Model, options: TextOptions, source: str | None, length: int, count: int
) -> Windows:
    """Windows to observe a model on, from a text of its own (None: the source of Python's standard library, or what a
    llama2.c model samples from itself)."""
    source = source or (ITSELF if model.format == "llama2.c" else "source")
    return _windows(path, model, options, source, length, count, _OBSERVATION_SEED)


def _windows(
    path: Path, model: Model, options: TextOptions, source: str, length: int, count: int, seed: int
) -> Windows:
    if source == ITSELF:
        if options.tokenizer is not None or options.first_token != "auto":
            raise BridgeError(
                f"the text {ITSELF} is tokens already: drop --tokenizer and --first-token, or give a text"
            )
        sequences = own_sequences(path, seed, options.sequences, options.cache or default_cache())
        name = (
            f"{options.sequences} sequences that the model sampled at temperature 1, seed {seed}, from its first token"
        )
        return join_windows(sequences, length, count, None, name)
    tokenizer = _tokenizer(model, options)
    return cut_windows(
        open_text(source), tokenizer, model.shape.vocabulary, length, count, _first_token(options, tokenizer)
    )


def _tokenizer(model: Model, options: TextOptions) -> TextTokenizer:
    if options.tokenizer is None and model.format == "llama2.c":
        raise BridgeError(
            f"{model.path} holds no tokenizer: give --tokenizer FILE, or --text {ITSELF} for text that it samples"
        )
    return read_tokenizer_at(options.tokenizer or model.path)


def _first_token(options: TextOptions, tokenizer: TextTokenizer) -> int | None:
    if options.first_token == "auto":
        return tokenizer.first_token
    if options.first_token == "none":
        return None
    if not options.first_token.isdecimal():
        raise BridgeError(f"--first-token needs auto, none or a token's number, got {options.first_token[:40]!r}")
    return int(options.first_token)


def _own(path: Path, model: Model, change: RotaryChange) -> Model | None:
    """The model without the change; None where nothing was asked for, or it states no positions of its own."""
    own = unchanged_model(path, change)
    if own is not None and own.positions == model.positions:
        raise BridgeError(f"{path}: --base and --rope-scaling are the model's own: drop them")
    return own
