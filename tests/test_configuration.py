"""Configurations that are damaged, and headers of llama2.c files: read, or refused in one line; never anything else."""

from __future__ import annotations

import struct
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_llama2c import checkpoint_bytes

from bridge.errors import BridgeError
from bridge.sources.configuration import Configuration
from bridge.sources.families import FAMILIES, GEMMA3, LLAMA, PHI3, QWEN2
from bridge.sources.llama2c import read_llama2c

PLAIN = {
    "hidden_size": 48,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "num_hidden_layers": 3,
    "vocab_size": 31,
    "max_position_embeddings": 4096,
    "original_max_position_embeddings": 512,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10_000.0,
    "rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512},
    "partial_rotary_factor": 0.5,
    "sliding_window": 64,
    "use_sliding_window": True,
    "max_window_layers": 1,
    "n_embd": 48,
    "n_head": 4,
    "n_layer": 2,
    "n_positions": 64,
    "rotary_dim": 8,
    "layer_norm_epsilon": 1e-5,
    "layer_norm_eps": 1e-5,
}
numbers = st.one_of(
    st.integers(-(10**40), 10**40),
    st.floats(),
    st.sampled_from([0, 1, 3, 2**63, 10**400, 1e308, 5e-324, True, "8", "", None, "layer\n0"]),
)
KINDS = ["linear", "dynamic", "yarn", "llama3", "longrope", "proportional", "ntk"]
values = st.recursive(
    numbers,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.dictionaries(
            st.sampled_from(
                ["rope_type", "type", "factor", "rope_theta", "full_attention", "sliding_attention", "mscale", "x"]
            ),
            st.one_of(
                inner, st.sampled_from(["linear", "dynamic", "yarn", "llama3", "longrope", "proportional", "ntk"])
            ),
            max_size=5,
        ),
    ),
    max_leaves=8,
)
ENTRIES = [*PLAIN, "rope_parameters", "layer_types", "rope_local_base_freq", "query_pre_attn_scalar"]


@given(st.sampled_from(FAMILIES), st.dictionaries(st.sampled_from(ENTRIES), values, max_size=4))
@settings(max_examples=300)
def test_a_damaged_configuration_is_read_or_refused_in_one_line(family, damage) -> None:
    configuration = Configuration(Path("config.json"), family, PLAIN | damage)
    try:
        shape = configuration.shape()
        positions = configuration.positions(shape)
    except BridgeError as error:
        assert str(error).startswith("config.json: ") and "\n" not in str(error)
        return
    assert len(positions) == shape.layers
    assert all(own.rotary is None or own.rotary.schedule().dim == shape.head_width for own in positions)


@pytest.mark.parametrize("family", [LLAMA, QWEN2, GEMMA3, PHI3])
def test_the_plain_configuration_is_read(family) -> None:
    """The control: what is damaged above is whole."""
    configuration = Configuration(Path("config.json"), family, PLAIN)
    assert configuration.positions(configuration.shape())[0].rotary is not None


@given(st.binary(min_size=28, max_size=28), st.lists(st.tuples(st.integers(0, 27), st.integers(0, 255)), max_size=6))
@settings(max_examples=400)
def test_a_damaged_header_of_llama2c_is_refused_in_one_line(header: bytes, flips: list[tuple[int, int]]) -> None:
    whole = bytearray(checkpoint_bytes())
    if flips:
        for place, value in flips:
            whole[place] = value
    else:
        whole[:28] = header
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.bin"
        path.write_bytes(whole)
        try:
            model = read_llama2c(path)
        except BridgeError as error:
            assert str(error).startswith(f"{path}: ") and "\n" not in str(error)
            return
    assert struct.unpack("<7i", whole[:28])[0] == model.shape.width


def refusal(family, **entries: object) -> str:
    configuration = Configuration(Path("config.json"), family, PLAIN | entries)
    with pytest.raises(BridgeError) as caught:
        configuration.positions(configuration.shape())
    return str(caught.value)


@pytest.mark.case(3)
def test_two_rotary_mappings_that_differ_are_refused() -> None:
    """A folder written anew by transformers 5 has rope_parameters; advice to add rope_scaling would be lost in it."""
    plain = {"rope_type": "default", "rope_theta": 1e4}
    assert "keep one of them" in refusal(LLAMA, rope_parameters=plain)
    same = Configuration(Path("config.json"), LLAMA, PLAIN | {"rope_parameters": plain, "rope_scaling": plain})
    assert same.positions(same.shape())[0].rotary.base == 1e4


def test_what_a_file_says_stays_on_one_line() -> None:
    assert "a b are not modelled" in refusal(LLAMA, layer_types=["a\nb"] * 3)
    assert "from 2 to" in refusal(LLAMA, max_position_embeddings=1)
    assert "from 2 to" in refusal(PHI3, sliding_window=1)


@pytest.mark.case(16)
def test_biases_that_the_configuration_states_are_read_or_missed() -> None:
    for stated, resolved in ((True, "yes"), (False, "no"), (None, "may")):
        assert Configuration(Path("config.json"), LLAMA, PLAIN | {"attention_bias": stated}).family.bias == resolved


def test_key_heads_that_are_not_stated_are_an_assumption() -> None:
    entries = {key: value for key, value in PLAIN.items() if key != "num_key_value_heads"}
    configuration = Configuration(Path("config.json"), LLAMA, entries)
    assert configuration.shape().kv_heads == 4
    assert "kv heads are as many as heads, 4: the file does not state them" in configuration.assumptions
