"""The families that are read, one declaration each, and those that are known and not read.

The order within a declaration is that of `Family`; docs/new-family.md says how to add one.
"""

from __future__ import annotations

from dataclasses import replace

from bridge.sources.family import (
    Family,
    Keys,
    LearnedPositions,
    LinearBiasPositions,
    Names,
    RotaryPositions,
    Value,
)

_VALUE_AND_OUTPUT = frozenset(f"{name}.{kind}" for name in ("v_proj", "o_proj") for kind in ("weight", "bias")) | {
    "rotary_emb.inv_freq"
}

_LLAMA_NAMES = Names(
    embedding="embed_tokens.weight",
    block="layers.{}.self_attn.",
    norm="layers.{}.input_layernorm",
    query="layers.{}.self_attn.q_proj",
    key="layers.{}.self_attn.k_proj",
    others=_VALUE_AND_OUTPUT,
)
_FROM: dict[str, Value] = {"sliding_window": 4096, "max_window_layers": 28}
_NORMED_NAMES = replace(_LLAMA_NAMES, query_norm="layers.{}.self_attn.q_norm", key_norm="layers.{}.self_attn.k_norm")

LLAMA = Family(
    "llama",
    ("llama",),
    _LLAMA_NAMES,
    bias="may",
    bias_entry="attention_bias",
    defaults={"rms_norm_eps": 1e-6},
    defaults_of="transformers' LlamaConfig",
)
MISTRAL = replace(
    LLAMA,
    name="mistral",
    model_types=("mistral",),
    bias="no",
    window="all",
    defaults={"rms_norm_eps": 1e-6, "sliding_window": 4096, "num_key_value_heads": 8},
    defaults_of="transformers' MistralConfig",
)
QWEN2 = replace(
    LLAMA,
    name="qwen2",
    model_types=("qwen2",),
    bias="yes",
    bias_entry=None,
    window="from",
    defaults={"rms_norm_eps": 1e-6, **_FROM},
    defaults_of="transformers' Qwen2Config",
)
QWEN3 = replace(
    LLAMA,
    name="qwen3",
    model_types=("qwen3",),
    names=_NORMED_NAMES,
    window="from",
    head_norm="head",
    defaults={"rms_norm_eps": 1e-6, "head_dim": 128, **_FROM},
    defaults_of="transformers' Qwen3Config",
)
GEMMA3 = replace(
    LLAMA,
    name="gemma3",
    model_types=("gemma3_text", "gemma3"),
    names=replace(_NORMED_NAMES, roots=("model.", "", "language_model.model.", "model.language_model.")),
    positions=RotaryPositions(local_base="rope_local_base_freq"),
    norm="rms+1",
    head_norm="head",
    scale_embedding=True,
    window="types",
    query_scale="query_pre_attn_scalar",
    unmodelled={
        "attn_logit_softcapping": (None, "a soft cap of attention logits"),
        "use_bidirectional_attention": (False, "attention to later tokens"),
    },
    defaults={
        "vocab_size": 262_208,
        "hidden_size": 2304,
        "num_hidden_layers": 26,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "max_position_embeddings": 131_072,
        "rms_norm_eps": 1e-6,
        "query_pre_attn_scalar": 256,
        "sliding_window": 4096,
        "sliding_window_pattern": 6,
        "rope_theta": 1_000_000.0,
        "rope_local_base_freq": 10_000.0,
    },
    defaults_of="transformers' Gemma3TextConfig",
)
PHI3 = replace(
    LLAMA,
    name="phi3",
    model_types=("phi3",),
    names=replace(
        _LLAMA_NAMES,
        query=None,
        key=None,
        fused="layers.{}.self_attn.qkv_proj",
    ),
    bias="no",
    window="all",
    defaults={"rms_norm_eps": 1e-5},
    defaults_of="transformers' Phi3Config",
)
OLMO2 = replace(
    LLAMA,
    name="olmo2",
    model_types=("olmo2",),
    names=replace(_NORMED_NAMES, norm=None),
    norm=None,
    head_norm="whole",
    defaults={"rms_norm_eps": 1e-5},
    defaults_of="transformers' Olmo2Config",
)
GPT_NEOX = Family(
    "gpt_neox",
    ("gpt_neox",),
    Names(
        embedding="embed_in.weight",
        block="layers.{}.attention.",
        norm="layers.{}.input_layernorm",
        fused="layers.{}.attention.query_key_value",
        others=frozenset({"dense.weight", "dense.bias", "rotary_emb.inv_freq", "bias", "masked_bias"}),
        roots=("gpt_neox.", ""),
    ),
    Keys(kv_heads=None, head_width=None, epsilon="layer_norm_eps"),
    RotaryPositions(base="rotary_emb_base", fraction="rotary_pct"),
    norm="layer",
    fused="head-major",
    bias="may",
    bias_entry="attention_bias",
    defaults={"layer_norm_eps": 1e-5, "rotary_pct": 0.25},
    defaults_of="transformers' GPTNeoXConfig",
)
GPT_J = Family(
    "gptj",
    ("gptj",),
    Names(
        embedding="wte.weight",
        block="h.{}.attn.",
        norm="h.{}.ln_1",
        query="h.{}.attn.q_proj",
        key="h.{}.attn.k_proj",
        others=frozenset({"v_proj.weight", "out_proj.weight", "bias", "masked_bias"}),
        roots=("transformer.", ""),
    ),
    Keys("n_embd", "n_head", None, None, "n_layer", "vocab_size", "n_positions", "layer_norm_epsilon"),
    RotaryPositions("interleaved", fraction=None, lanes="rotary_dim", fixed_base=10_000.0),
    norm="layer",
    defaults={"layer_norm_epsilon": 1e-5, "rotary_dim": 64},
    defaults_of="transformers' GPTJConfig",
)
GPT2 = Family(
    "gpt2",
    ("gpt2",),
    Names(
        embedding="wte.weight",
        block="h.{}.attn.",
        norm="h.{}.ln_1",
        fused="h.{}.attn.c_attn",
        positions="wpe.weight",
        others=frozenset({"c_proj.weight", "c_proj.bias", "bias", "masked_bias"}),
        roots=("transformer.", ""),
    ),
    Keys("n_embd", "n_head", None, None, "n_layer", "vocab_size", "n_positions", "layer_norm_epsilon"),
    LearnedPositions(),
    norm="layer",
    transposed=True,
    bias="yes",
    unmodelled={
        "scale_attn_weights": (True, "logits without a scale"),
        "scale_attn_by_inverse_layer_idx": (False, "a logit scale of each layer's own"),
    },
    defaults={"layer_norm_epsilon": 1e-5, "n_positions": 1024, "initializer_range": 0.02},
    defaults_of="transformers' GPT2Config",
)
OPT = Family(
    "opt",
    ("opt",),
    Names(
        embedding="embed_tokens.weight",
        block="layers.{}.self_attn.",
        norm="layers.{}.self_attn_layer_norm",
        query="layers.{}.self_attn.q_proj",
        key="layers.{}.self_attn.k_proj",
        positions="embed_positions.weight",
        others=frozenset(f"{name}.{kind}" for name in ("v_proj", "out_proj") for kind in ("weight", "bias")),
        roots=("model.decoder.", "decoder.", ""),
    ),
    Keys(kv_heads=None, head_width=None, epsilon="layer_norm_eps", fresh="init_std"),
    LearnedPositions(first=2),
    norm="layer",
    bias="may",
    bias_entry="enable_bias",
    unmodelled={"do_layer_norm_before": (True, "a norm behind attention instead of before it")},
    defaults={"layer_norm_eps": 1e-5, "do_layer_norm_before": True, "init_std": 0.02},
    defaults_of="transformers' OPT",
)
BLOOM = Family(
    "bloom",
    ("bloom",),
    Names(
        embedding="word_embeddings.weight",
        block="h.{}.self_attention.",
        norm="h.{}.input_layernorm",
        fused="h.{}.self_attention.query_key_value",
        embedding_norm="word_embeddings_layernorm",
        others=frozenset({"dense.weight", "dense.bias"}),
        roots=("transformer.", ""),
    ),
    Keys("hidden_size", "n_head", None, None, "n_layer", "vocab_size", None, "layer_norm_epsilon"),
    LinearBiasPositions(),
    norm="layer",
    fused="head-major",
    bias="yes",
    aliases={"n_embed": "hidden_size", "num_attention_heads": "n_head", "num_hidden_layers": "n_layer"},
    defaults={"layer_norm_epsilon": 1e-5},
    defaults_of="transformers' BloomConfig",
)

FAMILIES = (LLAMA, MISTRAL, QWEN2, QWEN3, GEMMA3, PHI3, OLMO2, GPT_NEOX, GPT_J, GPT2, OPT, BLOOM)

_LATENT = "latent attention (MLA): keys are made from a compressed vector, and only a part of them turns"
_AFTER = "norms of queries and keys after rotation: logits are no function of the offset (Lemma 1)"
UNMODELLED = {
    "deepseek_v2": _LATENT,
    "deepseek_v3": _LATENT,
    "minicpm3": _LATENT,
    "gemma2": "a soft cap of attention logits",
    "hunyuan_v1_dense": _AFTER,
    "hunyuan_v1_moe": _AFTER,
    "llama4": _AFTER,
    "llama4_text": _AFTER,
    "mamba": "no attention",
    "t5": "an encoder, and position biases by bucket",
}
"""What is known of families that are not read: the part that stands in the way."""
