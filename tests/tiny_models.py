"""Tiny models of every family, made by transformers with random weights, and what their own forward says of layer 0.

`Shelf` keeps those that were made, `head_logits` and `deviation` hold our heads against `own_logits`, and
`write_gguf` is what llama.cpp's convert_hf_to_gguf makes of a model.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType

import gguf
import numpy as np
import torch
import transformers
from transformers.utils import ModelOutput

from theory.head import Head

VOCABULARY = 31
# Near and far, with gaps: a relative offset occurs at several absolute positions.
POSITIONS = np.array([0, 1, 2, 3, 5, 8, 40, 41, 257, 258, 300, 1023, 1024, 2047, 3000, 3001, 4094, 4999, 5000])

_LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 5e5,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 512,
}
_YARN = {"rope_type": "yarn", "rope_theta": 1e6, "factor": 4.0, "original_max_position_embeddings": 1024}
_COMMON = {"vocab_size": VOCABULARY, "num_hidden_layers": 2}
_GROUPED = {"hidden_size": 48, "intermediate_size": 40, "num_attention_heads": 6, "num_key_value_heads": 2} | _COMMON
_LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 1e4,
    "short_factor": [1.0, 1.125, 1.375],
    "long_factor": [1.5, 2.5, 7.0],
    "partial_rotary_factor": 0.75,
    "original_max_position_embeddings": 512,
}


@dataclass(frozen=True)
class Tiny:
    """A configuration of transformers' own class, by name."""

    config: str
    model: str
    entries: dict

    def but(self, **entries: object) -> Tiny:
        """The same with other entries."""
        return replace(self, entries=self.entries | entries)

    def build(self) -> transformers.PreTrainedModel:
        """The model with weights of one seed: gains unequal, biases not zero."""
        config = getattr(transformers, self.config)(**self.entries)
        config._attn_implementation = "eager"
        model = getattr(transformers, self.model)(config).eval()
        generator = torch.Generator().manual_seed(20261130)
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                drawn = torch.randn(parameter.shape, generator=generator)
                flat = parameter.ndim == 1
                gain = (flat and "norm" in name.lower()) or ".ln_" in name
                is_gain = gain and name.endswith("weight")
                parameter.copy_(1 + 0.3 * drawn if is_gain else (0.4 if flat else 0.25) * drawn)
        return model

    def saved(self, folder: Path) -> transformers.PreTrainedModel:
        """The model, written to a folder as float32 and then computing in float64."""
        model = self.build()
        model.save_pretrained(folder)
        return model.double()


TINY = {
    "llama": Tiny(
        "LlamaConfig",
        "LlamaForCausalLM",
        _GROUPED
        | {"head_dim": 12, "attention_bias": True, "max_position_embeddings": 8192, "rope_parameters": _LLAMA3},
    ),
    "mistral": Tiny(
        "MistralConfig",
        "MistralForCausalLM",
        _GROUPED
        | {
            "head_dim": 12,
            "sliding_window": None,
            "rope_parameters": {"rope_type": "linear", "factor": 3.0, "rope_theta": 5e6},
        },
    ),
    "qwen2": Tiny(
        "Qwen2Config",
        "Qwen2ForCausalLM",
        _GROUPED | {"max_position_embeddings": 4096, "rope_parameters": _YARN},
    ),
    "qwen3": Tiny(
        "Qwen3Config",
        "Qwen3ForCausalLM",
        _GROUPED
        | {
            "head_dim": 20,
            "max_position_embeddings": 2048,
            "rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e6},
        },
    ),
    "gemma3": Tiny(
        "Gemma3TextConfig",
        "Gemma3ForCausalLM",
        _GROUPED
        | {
            "num_hidden_layers": 3,
            "head_dim": 20,
            "query_pre_attn_scalar": 28,
            "sliding_window": 64,
            "layer_types": ["full_attention", "sliding_attention", "full_attention"],
            "rope_parameters": {
                "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
                "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
            },
        },
    ),
    "phi3": Tiny(
        "Phi3Config",
        "Phi3ForCausalLM",
        _GROUPED
        | {
            "pad_token_id": 0,
            "max_position_embeddings": 8192,
            "original_max_position_embeddings": 512,
            "rope_parameters": _LONGROPE,
        },
    ),
    "gpt_neox": Tiny(
        "GPTNeoXConfig",
        "GPTNeoXForCausalLM",
        _COMMON
        | {
            "hidden_size": 48,
            "intermediate_size": 40,
            "num_attention_heads": 4,
            "rotary_pct": 0.5,
            "rotary_emb_base": 25_000,
        },
    ),
    "gptj": Tiny(
        "GPTJConfig",
        "GPTJForCausalLM",
        {"vocab_size": VOCABULARY, "n_embd": 48, "n_head": 4, "n_layer": 2, "rotary_dim": 8, "n_positions": 8192},
    ),
    "olmo2": Tiny(
        "Olmo2Config",
        "Olmo2ForCausalLM",
        _GROUPED | {"rope_parameters": {"rope_type": "default", "rope_theta": 5e5}, "pad_token_id": 0},
    ),
    "gpt2": Tiny(
        "GPT2Config",
        "GPT2LMHeadModel",
        {"vocab_size": VOCABULARY, "n_embd": 48, "n_head": 4, "n_layer": 2, "n_positions": 64},
    ),
    "opt": Tiny(
        "OPTConfig",
        "OPTForCausalLM",
        _COMMON
        | {
            "hidden_size": 48,
            "word_embed_proj_dim": 48,
            "ffn_dim": 40,
            "num_attention_heads": 4,
            "max_position_embeddings": 64,
        },
    ),
    "bloom": Tiny(
        "BloomConfig", "BloomForCausalLM", {"vocab_size": VOCABULARY, "hidden_size": 48, "n_head": 6, "n_layer": 2}
    ),
}


def own_logits(
    model: transformers.PreTrainedModel, tokens: np.ndarray, positions: np.ndarray | None = None, layer: int = 0
) -> np.ndarray:
    """Logits [head query key] by the model's own forward, each row relative to its first key; -inf where masked.

    They are the logarithms of its attention, which are logits less a constant of the query.
    """
    attention = _forward(model, tokens, positions).attentions[layer][0].double().numpy()
    with np.errstate(divide="ignore"):
        return np.log(attention)


def residual_stream(
    model: transformers.PreTrainedModel, tokens: np.ndarray, positions: np.ndarray | None, layer: int
) -> np.ndarray:
    """What enters a layer, [token width]."""
    return _forward(model, tokens, positions).hidden_states[layer][0].numpy()


def _forward(model: transformers.PreTrainedModel, tokens: np.ndarray, positions: np.ndarray | None) -> ModelOutput:
    arguments = {} if positions is None else {"position_ids": torch.tensor(positions)[None]}
    with torch.no_grad():
        return model(
            input_ids=torch.tensor(tokens)[None],
            attention_mask=torch.ones(1, len(tokens), dtype=torch.long),
            output_attentions=True,
            output_hidden_states=True,
            use_cache=False,
            **arguments,
        )


@dataclass(frozen=True)
class Saved:
    """A model in float64 and the folder that its float32 weights were written to."""

    folder: Path
    model: transformers.PreTrainedModel


class Shelf:
    """Models made once each and kept in folders of a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._saved: dict[str, Saved] = {}

    def get(self, name: str, tiny: Tiny | None = None) -> Saved:
        """The model of a name, of TINY or, where it is first asked for, of the one given."""
        if name not in self._saved:
            folder = self.folder / name
            self._saved[name] = Saved(folder, (tiny or TINY[name]).saved(folder))
        return self._saved[name]


def head_logits(heads: Iterable[Head], tokens: np.ndarray, positions: np.ndarray) -> np.ndarray:
    """Logits [head query key] of heads over the vocabulary, for tokens at positions; those of later keys are void."""
    offsets, where = np.unique(np.minimum(positions - positions[:, None], 0), return_inverse=True)
    where = where.reshape(len(positions), len(positions))
    return np.stack([head.logits(offsets)[tokens[:, None], where, tokens] for head in heads])


def deviation(ours: np.ndarray, theirs: np.ndarray) -> float:
    """Greatest difference over the keys that are seen, as a share of the greatest logit.

    Both are [head query key] and compared less the logit of the query's own key; what `theirs` masks is -inf.
    """
    seen = np.isfinite(theirs)
    ours, theirs = (logits - np.diagonal(logits, axis1=1, axis2=2)[..., None] for logits in (ours, theirs))
    return float(np.abs(ours - theirs)[seen].max() / np.abs(theirs[seen]).max())


_ARCHITECTURES = {
    "gemma3_text": gguf.MODEL_ARCH.GEMMA3,
    "gpt_neox": gguf.MODEL_ARCH.GPTNEOX,
} | {kind: gguf.MODEL_ARCH[kind.upper()] for kind in ("llama", "qwen2", "qwen3", "phi3", "olmo2", "gpt2", "bloom")}


def write_gguf(
    model: transformers.PreTrainedModel,
    path: Path,
    metadata: Mapping[str, int | float | str] = MappingProxyType({}),
    kind: gguf.GGMLQuantizationType = gguf.GGMLQuantizationType.F32,
    extra: Mapping[str, np.ndarray] = MappingProxyType({}),
) -> Path:
    """The model in GGUF, matrices of the given type; `metadata` are keys after the architecture's, `extra` tensors."""
    config, names = model.config, gguf.get_tensor_name_map(_ARCHITECTURES[model.config.model_type], 64)
    architecture = gguf.MODEL_ARCH_NAMES[_ARCHITECTURES[config.model_type]]
    writer = gguf.GGUFWriter(path, architecture)
    for key, value in (_gguf_metadata(config) | dict(metadata)).items():
        if value is None:
            continue
        types = {int: gguf.GGUFValueType.UINT32, float: gguf.GGUFValueType.FLOAT32, str: gguf.GGUFValueType.STRING}
        writer.add_key_value(f"{architecture}.{key}", value, types[type(value)])
    prefix = "transformer." if config.model_type == "bloom" else ""
    tensors = {
        names.get_name(name.removeprefix(prefix), (".weight", ".bias")): _converted(
            config, name, tensor.float().numpy()
        )
        for name, tensor in model.state_dict().items()
        if "lm_head" not in name
    }
    for name, tensor in (tensors | dict(extra)).items():
        stored = kind if tensor.ndim == 2 and tensor.shape[1] % 32 == 0 else gguf.GGMLQuantizationType.F32
        writer.add_tensor(name, gguf.quantize(np.ascontiguousarray(tensor, np.float32), stored), raw_dtype=stored)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _gguf_metadata(config: transformers.PreTrainedConfig) -> dict[str, int | float | str]:
    """What every conversion writes: widths, counts, the base; scalings are each type's own."""
    metadata = {
        "context_length": getattr(config, "max_position_embeddings", 2048),
        "embedding_length": config.hidden_size,
        "block_count": config.num_hidden_layers,
        "attention.head_count": config.num_attention_heads,
        "attention.head_count_kv": getattr(config, "num_key_value_heads", None),
        "attention.key_length": getattr(config, "head_dim", None),
        "attention.sliding_window": getattr(config, "sliding_window", None),
    }
    epsilons = {"rms_norm_eps": "layer_norm_rms_epsilon"} | dict.fromkeys(
        ("layer_norm_eps", "layer_norm_epsilon"), "layer_norm_epsilon"
    )
    metadata |= {f"attention.{key}": getattr(config, name) for name, key in epsilons.items() if hasattr(config, name)}
    rotary = getattr(config, "rope_parameters", None) or {}
    rotary = rotary.get("full_attention", rotary)
    if rotary:
        metadata["rope.freq_base"] = float(rotary["rope_theta"])
    if (share := rotary.get("partial_rotary_factor")) is not None:
        metadata["rope.dimension_count"] = int(share * config.hidden_size) // config.num_attention_heads
    return metadata


def _converted(config: transformers.PreTrainedConfig, name: str, tensor: np.ndarray) -> np.ndarray:
    """A tensor as the conversion of its type stores it."""
    heads = config.num_attention_heads
    if config.model_type == "llama" and name.split(".")[-2] in ("q_proj", "k_proj"):
        heads = heads if "q_proj" in name else config.num_key_value_heads
        return tensor.reshape(heads, 2, len(tensor) // heads // 2, -1).swapaxes(1, 2).reshape(tensor.shape)
    if config.model_type == "gemma3_text" and name.endswith("norm.weight"):
        return tensor + 1
    if config.model_type in ("gpt_neox", "bloom") and ".query_key_value." in name:
        return tensor.reshape(heads, 3, -1, *tensor.shape[1:]).swapaxes(0, 1).reshape(tensor.shape)
    if config.model_type == "gpt2" and tensor.ndim == 2 and name.split(".")[-2].startswith("c_"):
        return tensor.T
    return tensor
