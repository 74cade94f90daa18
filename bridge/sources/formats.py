"""Which reader a path is for: a Hugging Face folder, a GGUF file, or a llama2.c file."""

from __future__ import annotations

from pathlib import Path

from bridge.errors import BridgeError
from bridge.sources.change import AS_IT_IS, RotaryChange
from bridge.sources.gguf import read_gguf
from bridge.sources.hugging_face import read_hugging_face
from bridge.sources.llama2c import read_llama2c
from bridge.sources.model import Model
from bridge.sources.tensors import open_plain

_GGUF = b"GGUF"
_PICKLES = (b"PK\x03\x04", b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05")
"""How the files of torch.save begin."""


def open_model(path: Path, change: RotaryChange = AS_IT_IS) -> Model:
    """The model at a path, with its own rotary positions or changed ones; of its tensors nothing is read yet.

    Raises BridgeError as the readers, and for a path that is none of theirs.
    """
    if path.is_dir():
        return read_hugging_face(path, change)
    if path.suffix in (".safetensors", ".json"):
        raise BridgeError(f"{path}: give the folder that holds config.json and the weights, not one file of it")
    with open_plain(path) as file:
        start = file.read(4)
    if start.startswith(_PICKLES):
        raise BridgeError(f"{path}: a pickle, which can run code, is not read: convert the model to safetensors")
    return read_gguf(path, change) if start == _GGUF else read_llama2c(path, change)


def unchanged_model(path: Path, change: RotaryChange) -> Model | None:
    """The model without a change; None where nothing is changed, or it states no positions of its own."""
    if change == AS_IT_IS:
        return None
    try:
        return open_model(path)
    except BridgeError:
        return None
