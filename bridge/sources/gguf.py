"""Reader of GGUF models: their metadata in the words of config.json, their tensors under GGUF's names.

What conversion did to the weights differs by architecture, and is declared here for each:

- llama: rows of queries and keys are permuted, so that rotary pairs lie interleaved; the others keep halves
- gemma3: the gain of a norm is stored as 1 + w
- gptneox, bloom: fused projections are all queries, all keys, all values; gpt2: rows are outputs

A file says nothing of gemma3's local base, its pattern of layers or its logit scale: they belong to
the type, as llama.cpp has them, and are reported as assumptions. Frequency divisors of llama3 and
LongRoPE are tensors.

Source: llama.cpp, convert_hf_to_gguf.py and src/llama-model.cpp; the package gguf, constants.py.
"""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from bridge.errors import BridgeError
from bridge.sources.change import AS_IT_IS, RotaryChange
from bridge.sources.configuration import Configuration
from bridge.sources.families import BLOOM, GEMMA3, GPT2, GPT_NEOX, LLAMA, OLMO2, PHI3, QWEN2, QWEN3, UNMODELLED
from bridge.sources.family import Family, Names, RotaryPositions
from bridge.sources.gguf_file import GgufFile
from bridge.sources.model import Model

_NAMES = Names(
    embedding="token_embd.weight",
    block="blk.{}.attn_",
    norm="blk.{}.attn_norm",
    query="blk.{}.attn_q",
    key="blk.{}.attn_k",
    others=frozenset({"v.weight", "v.bias", "output.weight", "output.bias", "rot_embd"}),
    roots=("",),
)
_NORMED = replace(_NAMES, query_norm="blk.{}.attn_q_norm", key_norm="blk.{}.attn_k_norm")
_FUSED = replace(_NAMES, query=None, key=None, fused="blk.{}.attn_qkv")
_BASE = 10_000.0
_HARMLESS = {
    "attention.value_length",
    "attention.layer_norm_epsilon",
    "attention.layer_norm_rms_epsilon",
    "rope.scaling.finetuned",
}
"""Entries on attention and positions that no logit depends on, or that repeat what another family reads."""


def _converted(family: Family, names: Names, **changes: Any) -> Family:
    """A family as GGUF has it; llama.cpp's base stands where a file states none."""
    positions = family.positions
    defaults: dict[str, Any] = {}
    if isinstance(positions, RotaryPositions):
        defaults = {positions.base: _BASE}
        changes.setdefault("positions", replace(positions, lanes="rotary_lanes", fraction=None))
    return replace(
        family, names=names, defaults=defaults | changes.pop("defaults", {}), defaults_of="llama.cpp", **changes
    )


_FAMILIES = {
    "llama": _converted(LLAMA, _NAMES, positions=RotaryPositions("interleaved", fraction=None, lanes="rotary_lanes")),
    "qwen2": _converted(QWEN2, _NAMES),
    "qwen3": _converted(QWEN3, _NORMED),
    "gemma3": _converted(
        GEMMA3,
        _NORMED,
        norm="rms",
        defaults={"rope_theta": 1_000_000.0, "rope_local_base_freq": _BASE, "sliding_window_pattern": 6},
    ),
    "phi3": _converted(PHI3, _FUSED),
    "olmo2": _converted(OLMO2, replace(_NORMED, norm=None)),
    "gptneox": _converted(GPT_NEOX, _FUSED, fused="flat"),
    "gpt2": _converted(
        GPT2,
        replace(_FUSED, positions="position_embd.weight"),
        transposed=False,
        defaults={"initializer_range": 0.02},
    ),
    "bloom": _converted(BLOOM, replace(_FUSED, embedding_norm="token_embd_norm"), fused="flat"),
}
_OTHER_NAMES = {"deepseek2": "deepseek_v2", "hunyuan-dense": "hunyuan_v1_dense", "hunyuan-moe": "hunyuan_v1_moe"}


def read_gguf(path: Path, change: RotaryChange = AS_IT_IS) -> Model:
    """The model of a GGUF file, its rotary positions changed or as they are.

    Raises BridgeError as `GgufFile.open`, for an architecture that is not known or has a part that is not modelled, and
    for metadata that do not fit.
    """
    file = GgufFile.open(path)
    family = _family(file)
    metadata = _Metadata(file, family)
    entries = metadata.entries()
    configuration = Configuration(path, family, entries, change)
    shape = configuration.shape()
    return Model(
        format="gguf",
        family=configuration.family,
        path=path,
        shape=shape,
        positions=configuration.positions(shape),
        root="",
        tensors=file,
        assumptions=(*configuration.assumptions, *metadata.assumptions),
        provenance=tuple(configuration.provenance),
        digests={"header": file.header_sha256},
    )


def _family(file: GgufFile) -> Family:
    architecture = file.metadata.get("general.architecture")
    if not isinstance(architecture, str):
        raise BridgeError(f"{file.path}: no general.architecture, which names the family: convert the model again")
    unmodelled = _OTHER_NAMES.get(architecture, architecture)
    if unmodelled in UNMODELLED:
        raise BridgeError(f"{file.path}: family {architecture} has {UNMODELLED[unmodelled]}, which is not modelled")
    if architecture not in _FAMILIES:
        raise BridgeError(
            f"{file.path}: architecture {architecture[:60]!r} is not known, only {', '.join(_FAMILIES)}: "
            "docs/new-family.md says how to add it"
        )
    return _FAMILIES[architecture]


class _Metadata:
    """The metadata of one architecture, by config.json's names; `assumptions` are sentences on what they leave out."""

    def __init__(self, file: GgufFile, family: Family) -> None:
        self.file, self.family = file, family
        self.assumptions: list[str] = []
        self._prefix = f"{file.metadata['general.architecture']}."
        self._read: set[str] = set()

    def entries(self) -> dict[str, Any]:
        keys = self.family.keys
        norm = "layer_norm_epsilon" if self.family.norm == "layer" else "layer_norm_rms_epsilon"
        entries: dict[str, Any] = {
            keys.width: self._get("embedding_length"),
            keys.heads: self._get("attention.head_count"),
            keys.layers: self._get("block_count"),
            keys.vocabulary: self.file.shape(self.family.names.embedding)[0],
            keys.length or "seq_length": self._get("context_length"),
            keys.epsilon: self._get(f"attention.{norm}"),
        }
        if keys.kv_heads is not None:
            entries[keys.kv_heads] = self._get("attention.head_count_kv")
        if keys.head_width is not None:
            entries[keys.head_width] = self._get("attention.key_length")
        if self.family.window != "none":
            # Conversion writes 0 for no window.
            entries["sliding_window"] = self._get("attention.sliding_window") or None
            entries["sliding_window_pattern"] = self._get("attention.sliding_window_pattern")
        if self.family.query_scale is not None:
            entries[self.family.query_scale] = self._query_scale()
        if isinstance(self.family.positions, RotaryPositions):
            entries |= self._rotary(self.family.positions)
        self._check_all_read()
        return {key: value for key, value in entries.items() if value is not None}

    def _rotary(self, positions: RotaryPositions) -> dict[str, Any]:
        entries = {positions.base: self._get("rope.freq_base"), "rotary_lanes": self._get("rope.dimension_count")}
        if positions.local_base is not None:
            entries[positions.local_base] = self._get("rope.freq_base_swa")
        return entries | {"rope_scaling": self._scaling()}

    def _scaling(self) -> dict[str, Any] | None:
        """The scaling. Divisors of single frequencies are as LongRoPE's; a single list holds at every length."""
        kind = self._get("rope.scaling.type")
        factor = self._number("rope.scaling.factor") or self._number("rope.scale_linear")
        attention = self._number("rope.scaling.attn_factor")
        if "rope_freqs.weight" in self.file.names:
            divisors = self._divisors("rope_freqs.weight")
            return _longrope(divisors, divisors, self._trained_length(), 1.0)
        if "rope_factors_long.weight" in self.file.names:
            short, long = (self._divisors(f"rope_factors_{name}.weight") for name in ("short", "long"))
            if attention is None:
                self.assumptions.append("attention factor 1 of LongRoPE is llama.cpp's: the file does not state it")
            return _longrope(short, long, self._trained_length(), attention or 1.0)
        if kind in ("linear", "yarn") and factor is None:
            raise BridgeError(
                f"{self.file.path}: rotary scaling {kind} without {self._prefix}rope.scaling.factor: convert it again"
            )
        if kind in (None, "none"):
            return None if factor in (None, 1.0) or kind == "none" else {"rope_type": "linear", "factor": factor}
        if kind == "linear":
            return {"rope_type": "linear", "factor": factor}
        if kind == "yarn":
            betas = {name: self._number(f"rope.scaling.yarn_{name}") for name in ("beta_fast", "beta_slow")}
            # llama.cpp multiplies its factor by YaRN's own, 1 + 0.1 ln s.
            own = attention * (1 + 0.1 * math.log(factor)) if attention and factor else None
            return {
                "rope_type": "yarn",
                "factor": factor,
                "original_max_position_embeddings": self._trained_length(),
                "attention_factor": own,
            } | betas
        raise BridgeError(f"{self.file.path}: rotary scaling {str(kind)[:60]!r} is not known: convert the model again")

    def _trained_length(self) -> Any:
        if (stated := self._get("rope.scaling.original_context_length")) is not None:
            return stated
        self.assumptions.append("the trained length of the scaling is the context length: the file does not state it")
        return self._get("context_length")

    def _divisors(self, name: str) -> list[float]:
        return self.file.read(name).astype(np.float64).ravel().tolist()

    def _query_scale(self) -> int | None:
        """Of gemma3: the head width, but in the model of 62 layers width over heads."""
        if self._get("block_count") == 62:
            width, heads = self._get("embedding_length"), self._get("attention.head_count")
            return width // heads if isinstance(width, int) and isinstance(heads, int) and heads else None
        return self._get("attention.key_length")

    def _number(self, key: str) -> float | None:
        """A number above 0, or None where there is none."""
        value = self._get(key)
        if value is None or (isinstance(value, int | float) and value == 0):
            return None
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
            raise BridgeError(
                f"{self.file.path}: {self._prefix}{key} must be a finite number above 0, got {str(value)[:60]!r}: "
                "convert the model again"
            )
        return float(value)

    def _get(self, key: str) -> Any:
        """The value under the architecture's own key; one number where a list of equal ones stands for the layers."""
        self._read.add(key)
        value = self.file.metadata.get(self._prefix + key)
        if isinstance(value, np.ndarray):
            if len(set(value.tolist())) != 1:
                raise BridgeError(f"{self.file.path}: {key} differs from layer to layer, which is not modelled")
            return value.tolist()[0]
        return value

    def _check_all_read(self) -> None:
        """Raises BridgeError for an entry on attention or positions that nothing reads: logits may depend on it."""
        own = {key.removeprefix(self._prefix) for key in self.file.metadata if key.startswith(self._prefix)}
        unread = sorted(key for key in own - self._read - _HARMLESS if key.startswith(("attention.", "rope.")))
        if unread:
            raise BridgeError(
                f"{self.file.path}: {', '.join(unread[:4])!r:.200} of the metadata is not read by family "
                f"{self.family.name}, and logits may depend on it; docs/new-family.md says how to declare it"
            )


def _longrope(short: list[float], long: list[float], trained: Any, attention: float) -> dict[str, Any]:
    return {
        "rope_type": "longrope",
        "short_factor": short,
        "long_factor": long,
        "original_max_position_embeddings": trained,
        "attention_factor": attention,
    }
