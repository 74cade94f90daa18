"""What goes wrong for people who do this job, a test for each row of the list; rows are marked `case(number)`.

Most of these failures are silent: shapes fit and angles are wrong. So logits are compared, far out, with each side
computing its own angles. Rows that belong to one part of the toolkit are in that part's tests; the last test here
counts them all.
"""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import mpmath
import numpy as np
import pytest
import torch
from conftest import ROOT, run_carrier
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import load_file, save_file
from test_families import (
    LENGTH,
    TOKENS,
    UNIFORM,
    Reference,
    as_read,
    from_vectors,
    key_heads_in_turn,
    refused,
    token_layer,
)
from test_llama2c import checkpoint_bytes
from tiny_models import VOCABULARY, Shelf, Tiny, head_logits, own_logits, write_gguf

from bridge.compare import over_seeds
from bridge.sources.families import UNMODELLED
from bridge.sources.formats import open_model
from bridge.sources.model import Model, Provenance, interleaving, read_layer
from theory.rotary import Rotary
from theory.scaling import DynamicNtk

TOLERANCE = 1e-4
NARROW = {
    "hidden_size": 56,
    "intermediate_size": 16,
    "num_hidden_layers": 1,
    "vocab_size": VOCABULARY,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e4},
}
HEADS_14 = Tiny("LlamaConfig", "LlamaForCausalLM", NARROW | {"num_attention_heads": 14, "num_key_value_heads": 2})
LLAMA = {
    "model_type": "llama",
    "hidden_size": 48,
    "num_attention_heads": 6,
    "num_hidden_layers": 2,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 8192,
}
LINEAR = {"factor": 4.0, "rope_type": "linear"}


@pytest.fixture(scope="module")
def shelf(tmp_path_factory: pytest.TempPathFactory) -> Shelf:
    return Shelf(tmp_path_factory.mktemp("cases"))


@pytest.fixture
def configured(tmp_path: Path) -> Callable[..., Model]:
    """A model of a configuration and an embedding alone, opened and not read."""

    def of(config: dict[str, object], embedding: str = "model.embed_tokens.weight") -> Model:
        (tmp_path / "config.json").write_text(json.dumps(config))
        save_file({embedding: np.zeros((1, 1), np.float32)}, tmp_path / "model.safetensors")
        return open_model(tmp_path)

    return of


def rotary_of(model: Model, layer: int = 0) -> Rotary:
    rotary = model.positions[layer].rotary
    assert rotary is not None
    return rotary


# 1, 2: the layout of pairs


@pytest.mark.case(1)
@pytest.mark.parametrize("name", ["llama", "qwen2"])
def test_rows_permuted_to_interleaved_pairs_give_the_same_logits(name: str, shelf: Shelf, tmp_path: Path) -> None:
    """Permuted as for Meta's own files; rows left as they are differ by a tenth of the greatest logit or more."""
    saved = shelf.get(name)
    tensors, config = load_file(saved.folder / "model.safetensors"), saved.model.config
    for tensor in list(tensors):
        if ".q_proj." in tensor or ".k_proj." in tensor:
            heads = config.num_attention_heads if ".q_proj." in tensor else config.num_key_value_heads
            halves = tensors[tensor].reshape(heads, 2, -1, *tensors[tensor].shape[1:])
            tensors[tensor] = np.ascontiguousarray(halves.swapaxes(1, 2).reshape(tensors[tensor].shape))
    (tmp_path / "config.json").write_bytes((saved.folder / "config.json").read_bytes())
    save_file(tensors, tmp_path / "model.safetensors")

    def as_interleaved(folder: Path) -> np.ndarray:
        model = open_model(folder)
        positions = replace(model.family.positions, pairs="interleaved")
        interleaved = replace(model, family=replace(model.family, positions=positions))
        return head_logits(as_read(interleaved), TOKENS, np.arange(VOCABULARY) * 160)

    stated = head_logits(as_read(open_model(saved.folder)), TOKENS, np.arange(VOCABULARY) * 160)
    np.testing.assert_allclose(as_interleaved(tmp_path), stated, rtol=0, atol=1e-12 * np.abs(stated).max())
    assert np.abs(as_interleaved(saved.folder) - stated).max() > 0.1 * np.abs(stated).max()


@pytest.mark.case(2)
@pytest.mark.parametrize(("name", "layout"), [("llama", "half-split"), ("gptj", "interleaved")])
def test_the_layout_is_stated_with_its_provenance(name: str, layout: str, shelf: Shelf) -> None:
    model = open_model(shelf.get(name).folder)
    assert Provenance("rotary pairs", layout, f"declared by family {name}") in model.provenance


@pytest.mark.case(2)
@given(pairs=st.integers(1, 64), tail=st.integers(0, 32))
def test_interleaving_and_back_is_the_identity(pairs: int, tail: int) -> None:
    width = 2 * pairs + 2 * tail
    there, lanes = interleaving(width, 2 * pairs, half_split=True), np.arange(width)
    np.testing.assert_array_equal(lanes[there][np.argsort(there)], lanes)
    np.testing.assert_array_equal(there[: 2 * pairs].reshape(-1, 2).T.ravel(), lanes[: 2 * pairs])
    np.testing.assert_array_equal(there[2 * pairs :], lanes[2 * pairs :])
    np.testing.assert_array_equal(interleaving(width, 2 * pairs, half_split=False), lanes)


# 3 to 8: bases and scalings


@pytest.mark.case(3)
@pytest.mark.parametrize(
    "spelling",
    [
        {"rope_theta": 5e5, "rope_scaling": {"factor": 4.0, "type": "linear"}},
        {"rope_theta": 5e5, "rope_scaling": LINEAR},
        {"rope_theta": 5e5, "rope_scaling": LINEAR | {"type": "linear"}},
        {"rope_theta": 5e5, "rope_parameters": LINEAR},
        {"rope_parameters": LINEAR | {"rope_theta": 5e5}},
        {"rope_parameters": {"full_attention": LINEAR | {"rope_theta": 5e5}}},
    ],
)
def test_every_spelling_has_the_same_frequencies(spelling: dict[str, object], configured: Callable[..., Model]) -> None:
    schedule = rotary_of(configured(LLAMA | spelling)).schedule()
    np.testing.assert_allclose(schedule.frequencies, 5e5 ** (-np.arange(4) / 4) / 4, rtol=1e-14)


@pytest.mark.case(3)
@pytest.mark.case(18)
def test_local_and_global_layers_read_the_same_from_old_and_new_names(configured: Callable[..., Model]) -> None:
    shape = {"model_type": "gemma3_text", "num_hidden_layers": 4}
    old = {
        "rope_theta": 1e6,
        "rope_local_base_freq": 2e4,
        "rope_scaling": LINEAR,
        "sliding_window_pattern": 2,
    }
    new = {
        "rope_parameters": {
            "full_attention": LINEAR | {"rope_theta": 1e6},
            "sliding_attention": {"rope_type": "default", "rope_theta": 2e4},
        },
        "layer_types": ["sliding_attention", "full_attention"] * 2,
    }
    first, second = configured(shape | old), configured(shape | new)
    assert first.positions == second.positions
    assert [rotary_of(first, layer).base for layer in range(4)] == [2e4, 1e6] * 2
    assert [layer.span for layer in first.positions] == [4096, None] * 2


@pytest.mark.case(18)
def test_a_kind_of_layer_without_rotary_parameters_is_named(configured: Callable[..., Model]) -> None:
    own = {"full_attention": {"rope_type": "default", "rope_theta": 1e6}}
    message = refused(lambda: configured({"model_type": "gemma3_text", "rope_parameters": own}))
    assert "no entry for sliding_attention layers" in message
    whole = own | {"sliding_attention": {"rope_type": "default", "rope_theta": 1e4}}
    assert configured({"model_type": "gemma3_text", "rope_parameters": whole}).shape.layers == 26


@pytest.mark.case(3)
def test_a_trained_length_beside_the_scaling_is_that_within(configured: Callable[..., Model]) -> None:
    """As in the first configurations of Phi-3; it is not max_position_embeddings."""
    lists = {"short_factor": [1.0, 1.25, 1.5, 2.0], "long_factor": [1.0, 2.0, 4.0, 8.0]}
    phi3, trained = LLAMA | {"model_type": "phi3", "rope_theta": 1e4}, {"original_max_position_embeddings": 512}
    beside = configured(phi3 | trained | {"rope_scaling": {"type": "su"} | lists})
    within = configured(phi3 | {"rope_parameters": {"rope_type": "longrope", "rope_theta": 1e4} | lists | trained})
    assert beside.positions == within.positions
    assert rotary_of(beside).schedule(513).frequencies[3] == rotary_of(beside).schedule(512).frequencies[3] / 4


@pytest.mark.case(4)
def test_a_base_that_is_missing_is_an_error_that_names_the_option(
    configured: Callable[..., Model], tmp_path: Path
) -> None:
    message = refused(lambda: configured(LLAMA))
    assert "no rope_theta" in message and "--base" in message
    command = run_carrier("inspect", str(tmp_path), "--uniform")
    assert (command.returncode, command.stdout) == (2, "") and "--base" in command.stderr
    assert not any("base" in line for line in configured(LLAMA | {"rope_theta": 1e4}).assumptions)


@pytest.mark.case(4)
def test_a_base_that_llama2c_does_not_store_is_an_assumption(tmp_path: Path) -> None:
    path = tmp_path / "model.bin"
    path.write_bytes(checkpoint_bytes())
    assert any("rotary base 10000" in line and "default" in line for line in open_model(path).assumptions)


@pytest.mark.case(5)
def test_a_base_of_5_million_is_that_of_pair_1(configured: Callable[..., Model]) -> None:
    frequencies = rotary_of(configured(LLAMA | {"rope_theta": 5_000_000.0})).schedule().frequencies
    assert frequencies[1] == pytest.approx(0.021147425268811282, rel=1e-15)  # 5e6^(-1/4)


@pytest.mark.case(7)
def test_yarn_parameters_that_are_not_known_are_named(configured: Callable[..., Model]) -> None:
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 1024, "rope_theta": 1e6}
    plain = configured(LLAMA | {"rope_parameters": yarn})
    unknown = configured(LLAMA | {"rope_parameters": yarn | {"finetuned": True, "extrapolation_factor": 1}})
    (line,) = set(unknown.assumptions) - set(plain.assumptions)
    assert line == "rotary parameters 'extrapolation_factor', 'finetuned' are not known and not used"
    assert unknown.positions == plain.positions


@pytest.mark.case(7)
@pytest.mark.parametrize("stated", [None, 1.5])
def test_logits_of_yarn_grow_as_the_square_of_its_factor(stated: float | None, shelf: Shelf) -> None:
    """Factor 4 has 1 + 0.1 ln 4, unless the configuration states another; both held against a factor of 1."""
    layer = token_layer(open_model(shelf.get("qwen2").folder))
    rotary = layer.positions.rotary

    def logits(attention_factor: float | None) -> np.ndarray:
        scaling = replace(rotary.scaling, attention_factor=attention_factor)
        positions = replace(layer.positions, rotary=replace(rotary, scaling=scaling))
        return head_logits(replace(layer, positions=positions).heads(UNIFORM), TOKENS, np.arange(VOCABULARY) * 100)

    factor = 1 + 0.1 * np.log(4) if stated is None else stated
    np.testing.assert_allclose(logits(stated), factor**2 * logits(1.0), rtol=1e-12, atol=1e-12)


@pytest.mark.case(8)
def test_a_long_input_leaves_nothing_behind_in_dynamic_scaling(shelf: Shelf) -> None:
    """Long then short is short, and to the trained length it is plain; transformers' own logits at both.

    Its own module forgets below the trained length, not at it.
    """
    saved = shelf.get("qwen3")
    layer, trained = token_layer(open_model(saved.folder)), 2048
    assert isinstance(layer.positions.rotary.scaling, DynamicNtk)
    short = layer.schedule(trained).frequencies
    longer = layer.schedule(LENGTH).frequencies
    np.testing.assert_array_equal(layer.schedule(17).frequencies, short)
    np.testing.assert_allclose(short, 1e6 ** (-np.arange(10) / 10), rtol=1e-14)
    assert longer[-1] < short[-1] / 2
    for positions in (np.array([0, 1, 4999, 5000]), np.array([0, 1, 2000, 2040])):
        theirs = Reference(saved, positions)
        assert theirs.deviation(layer.heads(UNIFORM, int(positions[-1]) + 1)) < TOLERANCE


# 10 to 14: widths and heads


@pytest.mark.case(10)
@pytest.mark.parametrize(
    "spelling", [{"rotary_pct": 0.5}, {"rope_parameters": {"partial_rotary_factor": 0.5, "rope_theta": 1e4}}]
)
def test_half_of_the_lanes_are_half(spelling: dict[str, object], configured: Callable[..., Model]) -> None:
    neox = {key: value for key, value in LLAMA.items() if key != "model_type"} | {"hidden_size": 96}
    neox |= {"model_type": "gpt_neox", "rotary_emb_base": 10_000}
    rotary = rotary_of(configured(neox | spelling, "gpt_neox.embed_in.weight"))
    assert (rotary.width, rotary.head_width) == (8, 16)
    assert rotary.schedule().unrotated == 4


@pytest.mark.case(10)
@pytest.mark.parametrize("name", ["gpt_neox", "gptj", "phi3"])
def test_the_tail_of_a_head_is_as_stored_bit_by_bit(name: str, shelf: Shelf) -> None:
    layer = token_layer(open_model(shelf.get(name).folder))
    width, schedule = layer.positions.rotary.width, layer.schedule(LENGTH)
    queries = layer.maps.queries(layer.stream, slice(None))
    turned = schedule.rotate(queries, np.full(queries.shape[:2], 4999))
    np.testing.assert_array_equal(turned[..., width:], queries[..., width:])
    assert (turned[..., :width] != queries[..., :width]).any()


@pytest.mark.case(11)
def test_a_head_width_that_is_not_hidden_over_heads(shelf: Shelf) -> None:
    """Hidden 640, four heads of 256: 1024 rows of queries, and a scale of 1/16."""
    wide = {
        "hidden_size": 640,
        "num_attention_heads": 4,
        "num_key_value_heads": 1,
        "head_dim": 256,
        "rms_norm_eps": 1.0,
    }
    saved = shelf.get("wide", Tiny("LlamaConfig", "LlamaForCausalLM", NARROW | wide))
    model = open_model(saved.folder)
    layer = token_layer(model)
    assert layer.maps.query.weight.shape == (4, 256, 640)
    assert (layer.maps.logit_scale, layer.positions.rotary.head_width) == (1 / 16, 256)
    assert Reference(saved).deviation(as_read(model)) < TOLERANCE


@pytest.mark.case(12)
@pytest.mark.parametrize(
    ("entries", "says"),
    [
        ({"head_dim": 7}, "head width 7 is odd"),
        ({"hidden_size": 42}, "head width 7 is odd"),
        ({"partial_rotary_factor": 0.4}, "turns 3 of 8 lanes"),
        ({"hidden_size": 50}, "is not a multiple"),
        ({"head_dim": 8}, None),
        ({"partial_rotary_factor": 0.5}, None),
    ],
)
def test_widths_that_do_not_fit_are_refused_when_the_configuration_is_read(
    entries: dict[str, object], says: str | None, configured: Callable[..., Model]
) -> None:
    config = LLAMA | {"rope_theta": 1e4} | entries
    if says is None:
        assert rotary_of(configured(config)).head_width == 8
    else:
        assert says in refused(lambda: configured(config))


@pytest.mark.case(13)
@pytest.mark.parametrize("partial", [1.0, 0.5])
def test_a_rotary_width_of_4_and_of_2(partial: float, shelf: Shelf) -> None:
    tiny = Tiny(
        "GPTNeoXConfig",
        "GPTNeoXForCausalLM",
        NARROW | {"num_attention_heads": 14, "rope_parameters": {"rope_theta": 1e4, "partial_rotary_factor": partial}},
    )
    saved = shelf.get(f"narrow {partial}", tiny)
    model = open_model(saved.folder)
    assert rotary_of(model).width == 4 * partial
    assert Reference(saved).deviation(as_read(model)) < TOLERANCE


@pytest.mark.case(14)
def test_query_head_h_of_14_reads_key_head_h_over_7(shelf: Shelf) -> None:
    saved = shelf.get("14 heads", HEADS_14)
    model, theirs = open_model(saved.folder), Reference(saved)
    assert theirs.deviation(as_read(model)) < TOLERANCE
    assert theirs.deviation(key_heads_in_turn(model)) > 0.1
    layer, every = token_layer(model), slice(None)
    query, key = layer.maps.queries(layer.stream, every), layer.maps.keys(layer.stream, every)
    assert theirs.deviation(from_vectors(layer, query, key, lambda head: head // 7)) < TOLERANCE


# 16, 17: all of the block


@pytest.mark.case(16)
@pytest.mark.parametrize(
    ("name", "stray"),
    [("llama", "self_attn.sinks"), ("mistral", "self_attn.q_proj.bias"), ("llama", "self_attn.q_norm.weight")],
)
def test_a_tensor_of_the_block_that_is_not_read_is_an_error(
    name: str, stray: str, shelf: Shelf, tmp_path: Path
) -> None:
    saved = shelf.get(name)
    tensors = load_file(saved.folder / "model.safetensors")
    (tmp_path / "config.json").write_bytes((saved.folder / "config.json").read_bytes())
    save_file(tensors | {f"model.layers.0.{stray}": np.ones(6, np.float32)}, tmp_path / "model.safetensors")
    assert f"model.layers.0.{stray}" in refused(lambda: token_layer(open_model(tmp_path)))
    save_file(tensors | {f"model.layers.1.{stray}": np.ones(6, np.float32)}, tmp_path / "model.safetensors")
    assert token_layer(open_model(tmp_path)).maps.query.heads == 6


@pytest.mark.case(17)
@pytest.mark.parametrize("kind", [kind for kind, part in UNMODELLED.items() if "after rotation" in part])
def test_a_norm_after_rotation_is_out_of_regime_and_says_so(kind: str, configured: Callable[..., Model]) -> None:
    message = refused(lambda: configured(LLAMA | {"model_type": kind, "rope_theta": 1e4}))
    assert kind in message and "Lemma 1" in message
    assert configured(LLAMA | {"rope_theta": 1e4}).family.name == "llama"


@pytest.mark.case(17)
@pytest.mark.parametrize("name", ["qwen3", "gemma3", "olmo2"])
def test_gains_of_head_norms_differ_inside_a_pair(name: str, shelf: Shelf) -> None:
    """Equal gains would let a norm after rotation pass for one before it."""
    query = token_layer(open_model(shelf.get(name).folder)).maps.query
    gain = (query.norm or query.whole_norm).gain
    assert np.abs(gain[0::2] - gain[1::2]).min() > 1e-3


# 19, 20: angles


@pytest.mark.case(19)
@pytest.mark.case(20)
@pytest.mark.parametrize("name", ["mistral", "gptj"])
@pytest.mark.parametrize("position", [256, 257, 131_072, 1_000_000])
def test_angles_far_out_are_exact(name: str, position: int, shelf: Shelf) -> None:
    """To 1e-9 rad; bfloat16 has no 257, and float32 is off by 3e-2 rad at a million."""
    rotary = rotary_of(open_model(shelf.get(name).folder))
    base, divisor = {"mistral": (5_000_000, 3), "gptj": (10_000, 1)}[name]
    schedule, pairs = rotary.schedule(), rotary.width // 2
    turned = schedule.rotate(np.tile([1.0, 0.0], rotary.head_width // 2), np.array(position))
    with mpmath.workdps(40):
        for pair in range(pairs):
            angle = position * mpmath.power(base, mpmath.mpf(-pair) / pairs) / divisor
            assert abs(turned[2 * pair] - mpmath.cos(angle)) < 1e-9
            assert abs(turned[2 * pair + 1] - mpmath.sin(angle)) < 1e-9
    neighbour = schedule.rotate(np.tile([1.0, 0.0], rotary.head_width // 2), np.array(position + 1))
    assert abs(neighbour[0] - turned[0]) > 1e-3


# 22: padding


@pytest.mark.case(22)
def test_left_padding_is_no_position(shelf: Shelf) -> None:
    """transformers on a padded sequence, positions from its mask, is the sequence alone and what our head predicts."""
    saved, padding = shelf.get("llama"), 9
    tokens = np.random.default_rng(0).integers(1, VOCABULARY, 12)
    padded = np.concatenate([np.zeros(padding, int), tokens])
    mask = torch.tensor(padded[None] > 0).long()

    def padded_logits(positions: torch.Tensor) -> np.ndarray:
        with torch.no_grad():
            out = saved.model(
                input_ids=torch.tensor(padded)[None],
                attention_mask=mask,
                position_ids=positions,
                output_attentions=True,
                use_cache=False,
            )
        return np.log(out.attentions[0][0, :, padding:, padding:].double().numpy() + 1e-300)

    ours = head_logits(as_read(open_model(saved.folder)), tokens, np.arange(12))
    unpadded = own_logits(saved.model, tokens, np.arange(12))
    seen = np.isfinite(unpadded)
    of_mask = padded_logits((mask.cumsum(-1) - 1).clamp(min=0))
    for theirs in (unpadded, of_mask):
        np.testing.assert_allclose(
            (theirs - theirs[..., :1])[seen], (ours - ours[..., :1])[seen], atol=TOLERANCE * np.abs(ours).max(), rtol=0
        )
    # A padding token that is seen takes attention, which a difference of two logits does not show.
    assert np.exp(of_mask).sum(-1) == pytest.approx(np.ones((6, 12)), abs=1e-6)


@pytest.mark.case(22)
def test_a_beginning_of_text_token_is_not_counted(tmp_path: Path) -> None:
    import tokenizers
    from tokenizers.processors import TemplateProcessing

    from bridge.sources.tokens import read_tokenizer_at

    backend = tokenizers.Tokenizer(tokenizers.models.WordLevel({"<s>": 0, "once": 1, "<unk>": 2}, unk_token="<unk>"))
    backend.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    backend.post_processor = TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    backend.save(str(tmp_path / "tokenizer.json"))
    assert backend.encode("once once").ids == [0, 1, 1]
    assert list(read_tokenizer_at(tmp_path).encode("once once")) == [1, 1]


# 23, 24: files


SPARSE = """
import resource, sys
from pathlib import Path
import numpy as np
from bridge.sources.formats import open_model
from bridge.sources.model import read_layer
model = open_model(Path(sys.argv[1]))
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
layer = read_layer(model, 0, np.arange(100)).layer
print(before, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, layer.maps.query.weight.nbytes)
"""


@pytest.mark.case(23)
def test_memory_is_that_of_the_tensors_read(tmp_path: Path) -> None:
    """Of a folder of 2.4 GB, 8 MiB of projections are held and 64 MiB of embedding pass in pieces."""
    entries, at = {}, 0
    sizes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (16_384, 1024),
        "model.layers.0.input_layernorm.weight": (1024,),
        "model.layers.0.self_attn.q_proj.weight": (1024, 1024),
        "model.layers.0.self_attn.k_proj.weight": (1024, 1024),
        "model.layers.0.mlp.up_proj.weight": (600_000, 1024),
    }
    for name, shape in sizes.items():
        size = 4 * int(np.prod(shape))
        entries[name] = {"dtype": "F32", "shape": shape, "data_offsets": [at, at + size]}
        at += size
    header = json.dumps(entries).encode()
    with (tmp_path / "model.safetensors").open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        file.truncate(8 + len(header) + at)
    wide = {"hidden_size": 1024, "num_attention_heads": 8, "vocab_size": 16_384, "rope_theta": 1e4}
    (tmp_path / "config.json").write_text(json.dumps(LLAMA | wide))
    ran = subprocess.run(
        [sys.executable, "-c", SPARSE, str(tmp_path)], cwd=ROOT, capture_output=True, text=True, check=True
    )
    before, after, held = (int(number) for number in ran.stdout.split())
    assert at > 2.4e9 and held == 4 << 20
    assert (after - before) * 1024 < 48 << 20


def folder_file(shelf: Shelf, target: Path) -> Path:
    folder = shelf.get("llama").folder
    (target / "config.json").write_bytes((folder / "config.json").read_bytes())
    (target / "model.safetensors").write_bytes((folder / "model.safetensors").read_bytes())
    return target / "model.safetensors"


def gguf_file(shelf: Shelf, target: Path) -> Path:
    return write_gguf(shelf.get("llama").model, target / "model.gguf")


def llama2c_file(shelf: Shelf, target: Path) -> Path:
    (target / "model.bin").write_bytes(checkpoint_bytes())
    return target / "model.bin"


@pytest.mark.case(24)
@pytest.mark.parametrize("made", [folder_file, gguf_file, llama2c_file])
def test_a_file_cut_by_a_byte_and_a_pointer_say_which(
    made: Callable[[Shelf, Path], Path], shelf: Shelf, tmp_path: Path
) -> None:
    file = made(shelf, tmp_path)
    given = tmp_path if file.suffix == ".safetensors" else file

    def read() -> object:
        return read_layer(open_model(given), 0, np.arange(3))

    raw = file.read_bytes()
    read()
    file.write_bytes(raw[:-1])
    assert "truncated" in refused(read) and file.name in refused(read)
    pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"0" * 64 + b"\nsize 1234567890\n"
    file.write_bytes(pointer.ljust(130, b"\n"))
    assert "git-LFS pointer" in refused(read) and file.name in refused(read)


@pytest.mark.case(24)
@pytest.mark.parametrize("damage", [lambda raw: raw[:-3], lambda _: b"version https://git-lfs.github.com/spec/v1\n"])
def test_a_configuration_that_is_cut_or_a_pointer_is_one_line(
    damage: Callable[[bytes], bytes], shelf: Shelf, tmp_path: Path
) -> None:
    folder_file(shelf, tmp_path)
    raw = (tmp_path / "config.json").read_bytes()
    (tmp_path / "config.json").write_bytes(damage(raw))
    assert "config.json" in refused(lambda: open_model(tmp_path))


# 34: what a mean hides


@pytest.mark.case(34)
def test_every_head_has_its_own_numbers(tmp_path: Path) -> None:
    path = tmp_path / "model.bin"
    path.write_bytes(checkpoint_bytes())
    heads = json.loads(run_carrier("inspect", str(path), "--uniform", "--json").stdout)["heads"]
    assert [head["head"] for head in heads] == list(range(14))
    assert len({head["margin"] for head in heads}) == 14


@pytest.mark.case(34)
def test_a_mean_over_seeds_keeps_its_spread() -> None:
    several = over_seeds([0.9, 0.9, 0.1])
    assert several.value == pytest.approx(1.9 / 3) and several.spread == pytest.approx(0.8 / 3**0.5)


# The list


def test_every_row_has_a_test() -> None:
    rows: set[int] = set()
    for path in sorted((ROOT / "tests").glob("test_*.py")):
        for call in ast.walk(ast.parse(path.read_text())):
            # tests/test_families.py marks its table through a function of the same name, the row last.
            if isinstance(call, ast.Call) and ast.unparse(call.func) in ("pytest.mark.case", "case"):
                rows |= {last.value for last in call.args[-1:] if isinstance(last, ast.Constant)}
    assert set(range(1, 35)) - rows == set()
