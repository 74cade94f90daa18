"""A checkpoint that runs: its network in torch, by transformers, on the CPU and in float32.

What attention of a layer reads is the residual stream that enters it. `Network.run` hands it out layer
by layer while the network runs, and stops after the last layer that was asked for: nothing is kept,
so memory is that of one pass. Queries and keys follow from the stream by the layer's own maps
(`bridge.sources.model.read_maps`), which are read from the file on another way than transformers'.

Sequences of a pass that differ in length are padded on the left; padding is masked, has no position,
and is cut off again.

Source: transformers 5.24; karpathy/llama2.c for the names of its tensors.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, suppress
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float32, Int64

from bridge.errors import BridgeError
from bridge.sources.change import AS_IT_IS, RotaryChange
from bridge.sources.formats import open_model
from bridge.sources.model import Model, interleaving
from bridge.sources.tensors import file_sha256
from theory.rope_parameters import rope_parameters

Visit = Callable[[int, int, Float32[np.ndarray, "position width"]], None]
"""Takes the number of a sequence, a layer, and the stream that enters it."""

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


@dataclass(frozen=True, eq=False)
class Network:
    """A model with its network: `causal` is transformers' module with the output head."""

    model: Model
    causal: Any

    def run(self, sequences: Sequence[Int64[np.ndarray, "_position"]], layers: Sequence[int], visit: Visit) -> None:
        """Run sequences of tokens side by side and visit the stream that enters each of the layers, in their order.

        Raises BridgeError for a token or a layer that is not there, and where a stream is not finite.
        """
        import torch

        self._check(sequences, layers)
        self._forget_lengths()
        longest = max(map(len, sequences))
        tokens = torch.zeros(len(sequences), longest, dtype=torch.long)
        mask = torch.zeros_like(tokens)
        for row, sequence in enumerate(sequences):
            tokens[row, longest - len(sequence) :] = torch.from_numpy(sequence)
            mask[row, longest - len(sequence) :] = 1

        def enter(layer: int, stream: Any) -> None:
            for row, sequence in enumerate(sequences):
                own = stream[row, longest - len(sequence) :].numpy()
                if not np.isfinite(own).all():
                    raise BridgeError(
                        f"{self.model.path}: the stream into layer {layer} is not finite: damaged weights"
                    )
                visit(row, layer, own)

        with torch.no_grad(), self._entering(layers, enter), suppress(_Reached):
            self.causal.base_model(
                input_ids=tokens,
                attention_mask=None if bool(mask.all()) else mask,
                position_ids=(mask.cumsum(1) - 1).clamp(min=0),
                use_cache=False,
            )

    def _check(self, sequences: Sequence[Int64[np.ndarray, "_position"]], layers: Sequence[int]) -> None:
        shape = self.model.shape
        if not layers or min(layers) < 0 or max(layers) >= shape.layers:
            raise BridgeError(f"layers of this model are 0 to {shape.layers - 1}, got {list(layers)}")
        if not sequences or min(map(len, sequences)) == 0:
            raise BridgeError("a network runs on sequences of one token or more: got an empty one, or none")
        top = max(int(sequence.max()) for sequence in sequences)
        if top >= shape.vocabulary or min(int(sequence.min()) for sequence in sequences) < 0:
            raise BridgeError(f"tokens of this model are 0 to {shape.vocabulary - 1}, the text has token {top}")

    def _forget_lengths(self) -> None:
        """transformers keeps dynamic frequencies of the longest pass so far: a shorter one would run under these."""
        for module in self.causal.modules():
            for name in [name for name in vars(module) if name.endswith("max_seq_len_cached")]:
                setattr(module, name, 0)

    @contextmanager
    def _entering(self, layers: Sequence[int], enter: Callable[[int, Any], None]) -> Iterator[None]:
        """Around a pass: call for the stream of each layer, and end the pass after the last of them."""
        last = max(layers)

        def hook(layer: int) -> Callable[..., None]:
            def entered(module: Any, positional: tuple, named: dict) -> None:
                enter(layer, positional[0] if positional else named["hidden_states"])
                if layer == last:
                    raise _Reached

            return entered

        blocks = _blocks(self.causal, self.model.shape.layers)
        handles = [blocks[n].register_forward_pre_hook(hook(n), with_kwargs=True) for n in sorted(set(layers))]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()


class _Reached(Exception):
    """The last layer that was asked for is entered."""


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


def _blocks(causal: Any, layers: int) -> Any:
    """The list of the layers of a decoder."""
    import torch

    lists = [module for module in causal.base_model.modules() if isinstance(module, torch.nn.ModuleList)]
    found = [blocks for blocks in lists if len(blocks) == layers]
    if not found:
        raise BridgeError(f"{type(causal).__name__} of transformers has no list of {layers} layers: it is not read")
    return found[0]
