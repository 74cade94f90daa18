"""How transformers is given a checkpoint: a Hugging Face folder, a GGUF file, or a llama2.c file.

Rotary positions are written into its configuration where they are changed, and for GGUF files in any
case: of those it reads the base and not the scaling. A weight that is missing would be a random one, and
one that is not read would be left out: both are errors.

Source: transformers 5.24; karpathy/llama2.c for the names of its tensors.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Collection, Iterator
from contextlib import contextmanager, redirect_stderr
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np

from bridge.errors import BridgeError
from bridge.sources.change import AS_IT_IS, RotaryChange
from bridge.sources.formats import open_model
from bridge.sources.model import Model, interleaving
from bridge.sources.network import Network
from bridge.sources.tensors import file_sha256
from theory.rope_parameters import rope_parameters

_LLAMA2C_NAMES = {
    "attention_norm": "input_layernorm",
    "attention.wq": "self_attn.q_proj",
    "attention.wk": "self_attn.k_proj",
    "attention.wv": "self_attn.v_proj",
    "attention.wo": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "feed_forward.w1": "mlp.gate_proj",
    "feed_forward.w2": "mlp.down_proj",
    "feed_forward.w3": "mlp.up_proj",
}


def open_network(path: Path, change: RotaryChange = AS_IT_IS) -> Network:
    """The network of a checkpoint, its rotary positions changed or as they are.

    Raises BridgeError as `open_model`, for a model without rotary positions, where transformers or torch is not
    installed, and where transformers cannot load the weights or misses one.
    """
    model = open_model(path, change)
    check_rotary(model)
    try:
        import transformers
    except ModuleNotFoundError as error:
        raise BridgeError(
            f"running a model needs {error.name}: pip install 'attention-carrier[hf]', or ask for layer 0 without "
            "--text, which follows from the weights alone"
        ) from None
    with quiet(transformers):
        try:
            causal = _LOADERS[model.format](model, change)
        except BridgeError:
            raise
        except Exception as error:  # transformers raises whatever its parts raise
            reason = " ".join(str(error).split())[:200] or type(error).__name__
            raise BridgeError(f"{path}: transformers cannot load this model: {reason}") from None
    return Network(model, causal.eval())


def check_rotary(model: Model) -> None:
    """Raises BridgeError for a model none of whose layers has rotary positions."""
    if all(positions.rotary is None for positions in model.positions):
        raise BridgeError(
            f"{model.path} has no rotary positions ({model.family.name}): its activations make no head of the theory; "
            "`carrier inspect` without --text shows what follows from its weights"
        )


def weights_sha256(model: Model) -> str:
    """sha256 in hexadecimal that stands for all that a run depends on: the whole file, or every file of the folder
    that holds weights or the configuration."""
    if model.file_sha256 is not None:
        return model.file_sha256
    if model.path.is_file():
        return file_sha256(model.path)
    others = [file for file in (model.path / "generation_config.json",) if file.is_file()]
    files = sorted([model.path / "config.json", *others, *model.path.glob("*.safetensors")])
    listing = "".join(f"{file.name} {file_sha256(file)}\n" for file in files)
    return hashlib.sha256(listing.encode()).hexdigest()


@contextmanager
def quiet(transformers: Any) -> Iterator[None]:
    """Without progress bars and advice on stderr: errors are raised, and said in one line."""
    level = transformers.utils.logging.get_verbosity()
    transformers.utils.logging.set_verbosity(logging.CRITICAL)
    try:
        with redirect_stderr(StringIO()):
            yield
    finally:
        transformers.utils.logging.set_verbosity(level)


def _from_folder(model: Model, change: RotaryChange) -> Any:
    import torch
    import transformers

    config = transformers.AutoConfig.from_pretrained(model.path, local_files_only=True)
    if change != AS_IT_IS:
        _set_rotary(config, model)
    loaded: Any = transformers.AutoModelForCausalLM.from_pretrained(
        model.path, config=config, dtype=torch.float32, local_files_only=True, output_loading_info=True
    )
    causal, told = loaded
    # Of what belongs to another part of the model, such as one for images, nothing is needed.
    stray = [name for name in told["unexpected_keys"] if name.startswith(f"{model.root}layers.")]
    _check_complete(model, told["missing_keys"], stray)
    return causal


def _from_gguf(model: Model, change: RotaryChange) -> Any:
    from transformers import AutoConfig, AutoModelForCausalLM
    from transformers.initialization import no_init_weights
    from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

    # Where transformers misses a key of the file it assumes a number, which ours has been read from the tensors for.
    own = {
        "vocab_size": model.shape.vocabulary,
        "head_dim": model.shape.head_width,
        "attention_bias": "blk.0.attn_q.bias" in model.tensors.names,
    }
    if model.family.query_scale is not None:
        own[model.family.query_scale] = round(model.shape.logit_scale**-2)
    entries = load_gguf_checkpoint(model.path)["config"] | own
    config = AutoConfig.for_model(entries.pop("model_type"), **entries)
    # transformers reads the base of a GGUF file and not its scaling.
    _set_rotary(config, model)
    with no_init_weights():
        causal = AutoModelForCausalLM.from_config(config)
    tensors = load_gguf_checkpoint(model.path, return_tensors=True, model_to_load=causal)["tensors"]
    told = causal.load_state_dict(tensors, strict=False)
    _check_complete(model, told.missing_keys, told.unexpected_keys)
    causal.tie_weights()
    return causal


def _from_llama2c(model: Model, change: RotaryChange) -> Any:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    shape, tensors = model.shape, model.tensors
    tied = "output.weight" not in tensors.names
    config = LlamaConfig(
        hidden_size=shape.width,
        intermediate_size=tensors.shape("layers.0.feed_forward.w1.weight")[0],
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        vocab_size=shape.vocabulary,
        max_position_embeddings=shape.trained_length,
        rms_norm_eps=shape.epsilon,
        tie_word_embeddings=tied,
    )
    _set_rotary(config, model)
    causal = LlamaForCausalLM(config)
    halves = np.argsort(interleaving(shape.head_width, shape.head_width, half_split=True))
    state = {"model.embed_tokens.weight": tensors.read("tok_embeddings.weight")}
    state["model.norm.weight"] = tensors.read("norm.weight")
    state["lm_head.weight"] = state["model.embed_tokens.weight"] if tied else tensors.read("output.weight")
    for layer in range(shape.layers):
        for own, theirs in _LLAMA2C_NAMES.items():
            tensor = tensors.read(f"layers.{layer}.{own}.weight")
            if own in ("attention.wq", "attention.wk"):
                tensor = tensor.reshape(-1, shape.head_width, shape.width)[:, halves].reshape(tensor.shape)
            state[f"model.layers.{layer}.{theirs}.weight"] = tensor
    causal.load_state_dict({name: torch.from_numpy(tensor) for name, tensor in state.items()})
    return causal


_LOADERS = {"safetensors": _from_folder, "gguf": _from_gguf, "llama2.c": _from_llama2c}


def _set_rotary(config: Any, model: Model) -> None:
    """Write the model's rotary positions into a configuration of transformers, by layer type where it has types."""
    # That of a model of text and images has the language model's one level down.
    config = config.get_text_config()
    nested = isinstance(config.rope_parameters, dict) and any(
        isinstance(own, dict) for own in config.rope_parameters.values()
    )
    by_layer = [None if own.rotary is None else rope_parameters(own.rotary) for own in model.positions]
    if nested:
        for kind, own in zip(config.layer_types, by_layer, strict=True):
            config.rope_parameters[kind] = own
    else:
        config.rope_parameters = next(own for own in by_layer if own is not None)


def _check_complete(model: Model, missing: Collection[str], stray: Collection[str]) -> None:
    """An output head may be tied; any other weight that is missing would be a random one, and a stray one left out."""
    lacking = [name for name in sorted(missing) if not name.startswith(("lm_head.", "embed_out."))]
    unread = [name for name in sorted(stray) if not name.endswith("inv_freq")]
    for names, what in ((lacking, "finds no"), (unread, "does not read")):
        if names:
            raise BridgeError(
                f"{model.path}: transformers {what} {names[0]} in it ({len(names)} of its weights): the file is "
                "damaged, or of another version than its configuration"
            )
