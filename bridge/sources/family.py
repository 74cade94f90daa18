"""What is the same in all models of a family: how a layer's queries and keys come about.

A declaration says which tensors hold what, and what the arithmetic around them is:

    x = norm(stream),   q = W_Q x + b_Q,   k = W_K x + b_K,   then head norms, then positions

The configuration of a model says the rest (widths, base, scaling). `bridge.sources.families` has
the declarations; docs/new-family.md is how to add one.

Source: the implementations in transformers 5.24, llama.cpp and llama2.c.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Value = int | float | bool | str | None


@dataclass(frozen=True)
class Names:
    """Where the tensors of a layer are; `{}` stands for the layer's number.

    All names begin with one of the `roots`, that under which the embedding is found: a model may be stored with its
    output head or without. Queries and keys are two tensors or one, `fused`. `block` begins the name of everything in
    the attention block: what is neither read nor in `others`, which logits do not depend on, is an error.
    """

    embedding: str
    block: str
    norm: str | None = None
    query: str | None = None
    key: str | None = None
    fused: str | None = None
    query_norm: str | None = None
    key_norm: str | None = None
    embedding_norm: str | None = None
    positions: str | None = None
    others: frozenset[str] = frozenset()
    roots: tuple[str, ...] = ("model.", "")


@dataclass(frozen=True)
class Keys:
    """The configuration's own names of what a layer needs; None where the family has no such entry.

    `fresh` is the standard deviation of an untrained row of learned positions.
    """

    width: str = "hidden_size"
    heads: str = "num_attention_heads"
    kv_heads: str | None = "num_key_value_heads"
    head_width: str | None = "head_dim"
    layers: str = "num_hidden_layers"
    vocabulary: str = "vocab_size"
    length: str | None = "max_position_embeddings"
    epsilon: str = "rms_norm_eps"
    fresh: str = "initializer_range"


@dataclass(frozen=True)
class RotaryPositions:
    """Queries and keys are turned; pair i is lanes (2i, 2i+1), or (i, i + half the rotary width).

    `base`, `fraction` and `lanes` name the configuration's entries for the base, the share and the
    number of lanes that turn; `fixed_base` is that of an implementation which reads none.
    `local_base` names the base of sliding layers where that is another.
    """

    pairs: Literal["interleaved", "half-split"] = "half-split"
    base: str = "rope_theta"
    fraction: str | None = "partial_rotary_factor"
    lanes: str | None = None
    fixed_base: float | None = None
    local_base: str | None = None


@dataclass(frozen=True)
class LinearBiasPositions:
    """ALiBi: a slope a head, powers of two as in its paper."""


@dataclass(frozen=True)
class LearnedPositions:
    """A row of a table is added to the embedding; that of position 0 is row `first`."""

    first: int = 0


@dataclass(frozen=True)
class Family:
    """One declaration.

    - `norm`: rms, rms+1 (the gain is 1 + w), layer, or None where the stream enters as it is
    - `fused`: rows of a fused tensor are all queries, all keys, all values (flat), or these three for each head in
      turn (head-major)
    - `transposed`: tensors are stored [input, output]
    - `bias`: whether projections have one; `bias_entry` is the configuration's word on it, where it has one
    - `head_norm`: queries and keys are normed within each head, or over the whole projection
    - `scale_embedding`: by sqrt(width)
    - `window`: how the configuration says which layers see a sliding window only
    - `query_scale`: the configuration's entry s, logits are scaled by s^(-1/2) instead of head width^(-1/2)
    - `aliases`: what older configurations call an entry, and its name here
    - `unmodelled`: entries that must be absent or have the value given, with the part that they switch on
    - `defaults`: what published configurations leave to the implementation, named in `defaults_of`
    """

    name: str
    model_types: tuple[str, ...]
    names: Names
    keys: Keys = Keys()
    positions: RotaryPositions | LinearBiasPositions | LearnedPositions = RotaryPositions()
    norm: Literal["rms", "rms+1", "layer"] | None = "rms"
    fused: Literal["flat", "head-major"] = "flat"
    transposed: bool = False
    bias: Literal["no", "yes", "may"] = "no"
    bias_entry: str | None = None
    head_norm: Literal["head", "whole"] | None = None
    scale_embedding: bool = False
    window: Literal["none", "all", "from", "types"] = "none"
    query_scale: str | None = None
    aliases: Mapping[str, str] = field(default_factory=dict)
    unmodelled: Mapping[str, tuple[Value, str]] = field(default_factory=dict)
    defaults: Mapping[str, Value] = field(default_factory=dict)
    defaults_of: str = ""
