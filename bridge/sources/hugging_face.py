"""Reader of Hugging Face folders: config.json and one or many safetensors files.

Only config.json, the index and the tensors that are asked for are read; weights in pickles are
not. An output head may be tied or absent: queries and keys do not depend on it.

Source: transformers 5.24; `bridge.sources.families` for the models that are known.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bridge.errors import BridgeError
from bridge.sources.change import AS_IT_IS, RotaryChange
from bridge.sources.configuration import Configuration
from bridge.sources.families import FAMILIES, UNMODELLED
from bridge.sources.family import Family
from bridge.sources.model import Model
from bridge.sources.safetensors import SafetensorsFolder
from bridge.sources.tensors import open_plain

_LARGEST_CONFIG = 1 << 26


def read_hugging_face(folder: Path, change: RotaryChange = AS_IT_IS) -> Model:
    """The model of a folder, its rotary positions changed or as they are.

    Raises BridgeError where a file is missing, cut or a git-LFS pointer, where the family is not known or has a part
    that is not modelled, and for a configuration that does not fit.
    """
    path = folder / "config.json"
    raw = _config_bytes(path)
    entries = _entries(path, raw)
    family = _family(path, entries)
    configuration = Configuration(path, family, entries, change)
    shape = configuration.shape()
    positions = configuration.positions(shape)
    tensors = SafetensorsFolder.open(folder)
    return Model(
        format="safetensors",
        family=configuration.family,
        path=folder,
        shape=shape,
        positions=positions,
        root=_root(folder, family, tensors.names),
        tensors=tensors,
        assumptions=tuple(configuration.assumptions),
        provenance=tuple(configuration.provenance),
        digests={"config.json": hashlib.sha256(raw).hexdigest()},
    )


def _config_bytes(path: Path) -> bytes:
    if not path.is_file():
        raise BridgeError(f"{path}: no such file: a Hugging Face folder holds config.json beside its weights")
    with open_plain(path) as file:
        raw = file.read(_LARGEST_CONFIG + 1)
    if len(raw) > _LARGEST_CONFIG:
        raise BridgeError(f"{path}: no configuration: more than {_LARGEST_CONFIG} bytes")
    return raw


def _entries(path: Path, raw: bytes) -> dict[str, Any]:
    """The entries of the language model; those of a model of text and images are one level down."""
    try:
        whole = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise BridgeError(f"{path}: no JSON: {str(error)[:80]}") from None
    if not isinstance(whole, dict):
        raise BridgeError(f"{path}: a configuration is a JSON object, got {type(whole).__name__}")
    inner = whole.get("text_config")
    if not isinstance(inner, dict):
        return whole
    # Whatever the language model in it is, where its tensors lie is for the family of the whole to say.
    kind = whole.get("model_type")
    known = any(kind in family.model_types for family in FAMILIES)
    quantized = {key: whole[key] for key in ("quantization_config",) if key in whole}
    return {**inner, **quantized, "model_type": inner.get("model_type", kind) if known else kind}


def _family(path: Path, entries: Mapping[str, Any]) -> Family:
    kind = entries.get("model_type")
    if not isinstance(kind, str):
        raise BridgeError(f'{path}: no model_type, which names the family: add it, such as "model_type": "llama"')
    if kind in UNMODELLED:
        raise BridgeError(f"{path}: family {kind} has {UNMODELLED[kind]}, which is not modelled")
    if "quantization_config" in entries:
        raise BridgeError(
            f"{path}: quantized weights are not read from safetensors: give the model before quantization"
        )
    for family in FAMILIES:
        if kind in family.model_types:
            return family
    known = ", ".join(kind for family in FAMILIES for kind in family.model_types)
    raise BridgeError(f"{path}: family {kind[:60]!r} is not known, only {known}: docs/new-family.md says how to add it")


def _root(folder: Path, family: Family, names: frozenset[str]) -> str:
    for root in family.names.roots:
        if root + family.names.embedding in names:
            return root
    raise BridgeError(
        f"{folder}: no tensor {family.names.roots[0]}{family.names.embedding}: the weights are not those of family "
        f"{family.name}, or of another part of the model"
    )
