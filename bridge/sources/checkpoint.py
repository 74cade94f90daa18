"""A trained model as its readers yield it: what it is, where each value comes from, and its heads.

Every format (llama2.c here; others yield the same object) is read into interleaved pairs and
float64. In layer 0 the input of attention is the token itself, so the weights alone make a head:

    x = norm(embedding[token]),   q = W_Q x,   k = W_K x,   logit = q^T R_delta k / sqrt(d_head)

and query head h of H reads key head h // (H / H_kv). Content of deeper layers depends on the
context: it needs activations.

Source: the files themselves; `theory.head` for what a head is.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Float64

from bridge.errors import BridgeError
from theory.head import Head
from theory.schedule import RotarySchedule

_POINTER = b"version https://git-lfs"


@dataclass(frozen=True)
class Provenance:
    """One value that shapes the heads, as text, and where it comes from.

    `source` is "file", "default" (of the format, not in the file), "declared by format" or "option".
    """

    name: str
    value: str
    source: str


@dataclass(frozen=True, eq=False)
class TokenLayer:
    """Layer 0 before rotation: what attention sees of every token, and the maps to queries and keys."""

    schedule: RotarySchedule
    inputs: Float64[np.ndarray, "token width"]
    query_maps: Float64[np.ndarray, "head dim width"]
    key_maps: Float64[np.ndarray, "kv_head dim width"]
    logit_scale: float


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """A model file, read as far as its heads need.

    `trained_length` is in tokens; `assumptions` are sentences for a person, one for each value
    that the file does not state; `provenance` says where every value comes from.
    """

    format: str
    family: str
    sha256: str
    trained_length: int
    layers: int
    assumptions: tuple[str, ...]
    provenance: tuple[Provenance, ...]
    first_layer: TokenLayer

    @property
    def heads(self) -> int:
        """Number of query heads of a layer."""
        return len(self.first_layer.query_maps)

    @property
    def kv_heads(self) -> int:
        """Number of key heads of a layer, each read by heads / kv_heads query heads in a row."""
        return len(self.first_layer.key_maps)

    @property
    def head_width(self) -> int:
        """Lanes of a query or key."""
        return self.first_layer.query_maps.shape[1]

    @property
    def vocabulary(self) -> int:
        """Number of tokens."""
        return len(self.first_layer.inputs)

    def head(self, layer: int, head: int, token_weights: Float64[np.ndarray, "token"]) -> Head:
        """One attention head over the tokens of weight above 0; the weights are probabilities.

        Raises BridgeError for a head that is not there, for a layer that needs activations, and
        for weights of another vocabulary.
        """
        self._check_place(layer, head)
        if len(token_weights) != self.vocabulary:
            raise BridgeError(
                f"the token weights are for {len(token_weights)} tokens, the checkpoint has {self.vocabulary}: "
                "give the tokenizer that belongs to it"
            )
        first, kept = self.first_layer, np.flatnonzero(token_weights)
        inputs = first.inputs[kept]
        return Head.from_tokens(
            first.schedule,
            inputs @ first.query_maps[head].T,
            inputs @ first.key_maps[head // (self.heads // self.kv_heads)].T,
            token_weights[kept],
            first.logit_scale,
        )

    def _check_place(self, layer: int, head: int) -> None:
        for name, given, count in (("layer", layer, self.layers), ("head", head, self.heads)):
            if not 0 <= given < count:
                raise BridgeError(f"{name} {given} does not exist: {name}s of this checkpoint are 0 to {count - 1}")
        if layer > 0:
            raise BridgeError(
                f"layer {layer} needs activations, which this version does not read: "
                "only layer 0 follows from the weights alone"
            )


def file_sha256(path: Path) -> str:
    """sha256 of a model's file in hexadecimal.

    Raises BridgeError where there is no such file, or a git-LFS pointer in its place.
    """
    if not path.is_file():
        raise BridgeError(f"{path}: no such file")
    with path.open("rb") as file:
        if file.read(len(_POINTER)) == _POINTER:
            raise BridgeError(f"{path}: a git-LFS pointer, not the file it stands for: run git lfs pull")
        file.seek(0)
        return hashlib.file_digest(file, "sha256").hexdigest()
