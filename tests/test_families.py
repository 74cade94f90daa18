"""Every family that is read from safetensors: our logits of layer 0 against transformers' own attention.

transformers saves a tiny model of random weights and runs it in float64, with its own angles, which are float32: at
positions to 5000 that is what `TOLERANCE` is for. A mistake in reading has to show as `SHOWS` times the tolerance.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import transformers
from safetensors.numpy import load_file, save_file
from tiny_models import (
    POSITIONS,
    TINY,
    VOCABULARY,
    Saved,
    Shelf,
    Tiny,
    deviation,
    head_logits,
    own_logits,
    residual_stream,
)

from bridge.errors import BridgeError
from bridge.sources.attention import PositionLayer, Projection, TokenLayer
from bridge.sources.formats import open_model
from bridge.sources.model import Model, interleaving, read_layer, read_maps
from theory.head import Head
from theory.rotary import Rotary
from theory.scaling import LongRope, Unscaled

TOLERANCE = 1e-4
SHOWS = 500
TOKENS = np.arange(VOCABULARY)
UNIFORM = np.full(VOCABULARY, 1 / VOCABULARY)
LENGTH = int(POSITIONS[-1]) + 1
LEARNED = ("gpt2", "opt")
OF_OFFSETS = tuple(name for name in TINY if name not in LEARNED)

Heads = Callable[[Model], Iterable[Head]]


@pytest.fixture(scope="module")
def shelf(tmp_path_factory: pytest.TempPathFactory) -> Shelf:
    return Shelf(tmp_path_factory.mktemp("families"))


class Reference:
    """transformers' logits of layer 0 at tokens and positions of one draw."""

    def __init__(self, saved: Saved, positions: np.ndarray = POSITIONS) -> None:
        # BLOOM's forward takes no positions.
        given = None if saved.model.config.model_type == "bloom" else positions
        self.positions = np.arange(60) if given is None else positions
        self.tokens = np.random.default_rng(0).integers(0, VOCABULARY, len(self.positions))
        self.logits = own_logits(saved.model, self.tokens, given)

    def deviation(self, heads: Iterable[Head]) -> float:
        return deviation(head_logits(heads, self.tokens, self.positions), self.logits)


@pytest.fixture(scope="module")
def reference(shelf: Shelf) -> Callable[[str], Reference]:
    made: dict[str, Reference] = {}

    def of(name: str) -> Reference:
        if name not in made:
            made[name] = Reference(shelf.get(name))
        return made[name]

    return of


def token_layer(model: Model) -> TokenLayer:
    layer = read_layer(model, 0, TOKENS).layer
    assert isinstance(layer, TokenLayer)
    return layer


def as_read(model: Model) -> Iterator[Head]:
    return token_layer(model).heads(UNIFORM, LENGTH)


def refused(call: Callable[[], object]) -> str:
    with pytest.raises(BridgeError) as caught:
        call()
    assert "\n" not in str(caught.value)
    return str(caught.value)


# Mistakes: ways to read a model, each wrong in one thing


def family(**changes: object) -> Heads:
    """The declaration changed."""
    return lambda model: as_read(replace(model, family=replace(model.family, **changes)))


def swapped(model: Model) -> Iterator[Head]:
    """Interleaved pairs taken for halves, or back."""
    positions = model.family.positions
    other = {"interleaved": "half-split", "half-split": "interleaved"}[positions.pairs]
    return family(positions=replace(positions, pairs=other))(model)


def projections(**changes: object) -> Heads:
    """The projections changed."""

    def heads(model: Model) -> Iterator[Head]:
        layer = token_layer(model)
        maps = replace(layer.maps, query=replace(layer.maps.query, **changes), key=replace(layer.maps.key, **changes))
        return replace(layer, maps=maps).heads(UNIFORM, LENGTH)

    return heads


def with_rotary(model: Model, rotary: Rotary) -> Model:
    """The model with other rotary positions in layer 0."""
    return replace(model, positions=(replace(model.positions[0], rotary=rotary), *model.positions[1:]))


def unscaled(model: Model) -> Iterator[Head]:
    """Rotary scaling dropped."""
    return as_read(with_rotary(model, replace(model.positions[0].rotary, scaling=Unscaled())))


def turned_whole(model: Model) -> Iterator[Head]:
    """Partial rotary ignored: all lanes turn."""
    own = model.positions[0].rotary
    scaling = own.scaling
    if isinstance(scaling, LongRope):
        scaling = replace(scaling, short_factor=(*scaling.short_factor, 1.375), long_factor=(*scaling.long_factor, 7.0))
    return as_read(with_rotary(model, replace(own, width=own.head_width, scaling=scaling)))


def scale_of_head_width(model: Model) -> Iterator[Head]:
    layer = token_layer(model)
    return replace(layer, maps=replace(layer.maps, logit_scale=model.shape.head_width**-0.5)).heads(UNIFORM, LENGTH)


def without_slopes(model: Model) -> Iterator[Head]:
    return replace(token_layer(model), biases=None).heads(UNIFORM, LENGTH)


def from_vectors(layer: TokenLayer, query: np.ndarray, key: np.ndarray, key_of: Callable[[int], int]) -> Iterator[Head]:
    for head, queries in enumerate(query):
        yield Head.from_tokens(layer.schedule(LENGTH), queries, key[key_of(head)], UNIFORM, layer.maps.logit_scale)


def key_heads_in_turn(model: Model) -> Iterator[Head]:
    """Query head h reads key head h mod H_kv."""
    layer, every = token_layer(model), slice(None)
    query, key = layer.maps.queries(layer.stream, every), layer.maps.keys(layer.stream, every)
    return from_vectors(layer, query, key, lambda head: head % len(key))


def whole_norm_by_head(model: Model) -> Iterator[Head]:
    """A norm over all heads taken over each head, with its own part of the gain."""
    layer = token_layer(model)

    def vectors(projection: Projection) -> np.ndarray:
        plain = replace(projection, whole_norm=None).of(layer.stream.astype(np.float64), slice(None))
        gain = projection.whole_norm.gain.reshape(len(plain), 1, -1)
        return plain / np.sqrt(np.square(plain).mean(-1, keepdims=True) + projection.whole_norm.epsilon) * gain

    group = layer.maps.group
    return from_vectors(layer, vectors(layer.maps.query), vectors(layer.maps.key), lambda head: head // group)


def fused_by_key_head(model: Model) -> Iterator[Head]:
    """A flat fused projection taken for groups of queries, a key and a value."""
    layer, shape = token_layer(model), model.shape
    group = layer.maps.group
    fused = model.tensors.read("model.layers.0.self_attn.qkv_proj.weight")
    groups = fused.reshape(shape.kv_heads, group + 2, shape.head_width, -1)
    lanes = interleaving(shape.head_width, model.positions[0].rotary.width, half_split=True)
    query = groups[:, :group].reshape(shape.heads, shape.head_width, -1)[:, lanes]
    maps = replace(layer.maps, query=Projection(query), key=Projection(groups[:, group][:, lanes]))
    return replace(layer, maps=maps).heads(UNIFORM, LENGTH)


ROTARY = [name for name in OF_OFFSETS if name != "bloom"]
GROUPED = ("llama", "mistral", "qwen2", "qwen3", "gemma3", "phi3", "olmo2")
SCALED = ("llama", "mistral", "qwen2", "qwen3", "gemma3", "phi3")
BIASED = ("llama", "qwen2", "gpt_neox", "bloom")


def case(name: str, mistake: Heads, what: str, row: int | None = None) -> object:
    return pytest.param(name, mistake, id=f"{name}, {what}", marks=() if row is None else pytest.mark.case(row))


MISTAKES = [
    *(case(name, swapped, "pairs swapped", 1) for name in ROTARY),
    *(case(name, projections(bias=None), "no bias", 16) for name in BIASED),
    *(case(name, key_heads_in_turn, "key heads in turn", 14) for name in GROUPED),
    *(case(name, unscaled, "no scaling", 6) for name in SCALED),
    *(case(name, family(fused="flat"), "fused flat", 15) for name in ("gpt_neox", "bloom")),
    case("phi3", fused_by_key_head, "fused by key head"),
    *(case(name, turned_whole, "all lanes turn", 10) for name in ("phi3", "gpt_neox", "gptj")),
    *(case(name, projections(norm=None), "no head norm", 17) for name in ("qwen3", "gemma3")),
    case("olmo2", projections(whole_norm=None), "no whole norm", 17),
    case("olmo2", whole_norm_by_head, "whole norm by head", 17),
    case("gemma3", family(norm="rms"), "gain without 1+"),
    case("gemma3", scale_of_head_width, "scale of head width"),
    case("bloom", without_slopes, "no slopes"),
]


@pytest.mark.case(9)
@pytest.mark.parametrize("name", OF_OFFSETS)
def test_logits_are_those_of_transformers(name: str, shelf: Shelf, reference: Callable[[str], Reference]) -> None:
    model, theirs = open_model(shelf.get(name).folder), reference(name)
    assert model.shape.heads not in theirs.logits.shape[1:], "one axis could stand for the other"
    assert theirs.deviation(as_read(model)) < TOLERANCE


@pytest.mark.parametrize(("name", "mistake"), MISTAKES)
def test_a_mistake_shows(name: str, mistake: Heads, shelf: Shelf, reference: Callable[[str], Reference]) -> None:
    model, theirs = open_model(shelf.get(name).folder), reference(name)
    assert theirs.deviation(as_read(model)) < TOLERANCE
    assert theirs.deviation(mistake(model)) > SHOWS * TOLERANCE


def test_every_family_that_is_declared_has_a_model_here() -> None:
    from bridge.sources.families import FAMILIES

    assert {family.name for family in FAMILIES} == set(TINY)


@pytest.mark.case(6)
@pytest.mark.parametrize("name", ["llama", "mistral"])
def test_logits_at_position_20000(name: str, shelf: Shelf) -> None:
    """transformers' float32 angles are off by up to 2e4 rad 2^-24 = 1e-3 here; a head without its scaling by more."""
    positions = np.array([0, 1, 4096, 9999, 10_000, 15_000, 19_998, 19_999, 20_000])
    model, theirs = open_model(shelf.get(name).folder), Reference(shelf.get(name), positions)
    assert theirs.deviation(as_read(model)) < 1e-3
    assert theirs.deviation(unscaled(model)) > 0.1


@pytest.mark.parametrize("name", ["llama", "qwen3"])
def test_one_head_is_that_of_all_heads(name: str, shelf: Shelf) -> None:
    layer = token_layer(open_model(shelf.get(name).folder))
    for index, head in enumerate(layer.heads(UNIFORM, LENGTH)):
        alone = layer.head(index, UNIFORM, LENGTH)
        # To rounding: a matrix product of another size adds in another order on some processors.
        for ours, theirs in ((alone.queries, head.queries), (alone.keys, head.keys)):
            np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-14 * np.abs(theirs).max())


# Learned positions


def position_logits(layer: PositionLayer, tokens: np.ndarray) -> np.ndarray:
    """Logits [head query key] of a sequence, each token at its position."""
    stream, every = layer.stream[tokens] + layer.table[: len(tokens)], slice(None)
    queries, keys = layer.maps.queries(stream, every), layer.maps.keys(stream, every)
    return layer.maps.logit_scale * queries @ keys.swapaxes(1, 2)


def position_layer(model: Model) -> PositionLayer:
    layer = read_layer(model, 0, TOKENS).layer
    assert isinstance(layer, PositionLayer)
    return layer


@pytest.mark.case(21)
@pytest.mark.parametrize("name", LEARNED)
def test_learned_positions_begin_at_their_row(name: str, shelf: Shelf) -> None:
    saved = shelf.get(name)
    tokens = np.random.default_rng(0).integers(0, VOCABULARY, 40)
    theirs, model = own_logits(saved.model, tokens), open_model(saved.folder)
    layer = position_layer(model)
    assert len(layer.table) == 64
    assert deviation(position_logits(layer, tokens), theirs) < TOLERANCE
    other = replace(model.family.positions, first=2 - model.family.positions.first)
    rows = {"gpt2": "wpe.weight", "opt": "embed_positions.weight"}[name]
    stored = model.tensors.read(model.root + rows)
    shifted = replace(layer, table=stored[other.first : other.first + 62])
    assert deviation(position_logits(shifted, tokens), theirs) > SHOWS * TOLERANCE


@pytest.mark.parametrize("name", LEARNED)
def test_the_deviation_of_fresh_positions_is_the_configurations(name: str, shelf: Shelf) -> None:
    assert position_layer(open_model(shelf.get(name).folder)).fresh_deviation == 0.02


# Windows, and layers of two kinds

WINDOW = 16
LOCAL_FIRST = TINY["gemma3"].but(
    sliding_window=WINDOW, layer_types=["sliding_attention", "full_attention", "sliding_attention"]
)
WINDOWED = {
    "windowed mistral": TINY["mistral"].but(sliding_window=WINDOW),
    "windowed phi3": TINY["phi3"].but(sliding_window=WINDOW),
    "windowed qwen2": TINY["qwen2"].but(use_sliding_window=True, sliding_window=WINDOW, max_window_layers=1),
    "windowed qwen3": TINY["qwen3"].but(use_sliding_window=True, sliding_window=WINDOW, max_window_layers=1),
    "local first": LOCAL_FIRST,
    "llama": TINY["llama"],
}


@pytest.mark.parametrize("name", WINDOWED)
def test_a_query_sees_as_many_keys_as_transformers_leaves_it(name: str, shelf: Shelf) -> None:
    saved, length = shelf.get(name, WINDOWED[name]), 40
    model, tokens = open_model(saved.folder), np.random.default_rng(0).integers(0, VOCABULARY, length)
    spans = [layer.span for layer in model.positions]
    assert len(spans) == saved.model.config.num_hidden_layers
    assert (WINDOW in spans) == (name != "llama")
    for index, span in enumerate(spans):
        seen = np.isfinite(own_logits(saved.model, tokens, layer=index)[:, -1]).sum(-1)
        assert set(seen) == {length if span is None else span}
    assert token_layer(model).positions.span == spans[0]


@pytest.mark.case(18)
def test_local_and_global_layers_have_their_own_base_and_scaling(shelf: Shelf) -> None:
    saved = shelf.get("local first", LOCAL_FIRST)
    model, theirs = open_model(saved.folder), Reference(saved)
    own = saved.model.model.rotary_emb
    for layer, kind in zip(model.positions, LOCAL_FIRST.entries["layer_types"], strict=True):
        frequencies = getattr(own, f"{kind}_inv_freq").double().numpy()
        np.testing.assert_allclose(layer.rotary.schedule().frequencies, frequencies, rtol=1e-6)
    local, whole = model.positions[:2]
    assert (local.rotary.base, whole.rotary.base) == (1e4, 1e6)
    assert theirs.deviation(as_read(model)) < TOLERANCE
    assert theirs.deviation(as_read(with_rotary(model, whole.rotary))) > SHOWS * TOLERANCE


# Ways to store a model


def same_logits(first: Path, second: Path) -> None:
    heads = zip(as_read(open_model(first)), as_read(open_model(second)), strict=True)
    for one, other in heads:
        np.testing.assert_array_equal(one.logits(np.array([0, -7])), other.logits(np.array([0, -7])))


@pytest.mark.parametrize("name", ["llama", "phi3", "bloom"])
def test_shards_give_the_same_layer(name: str, shelf: Shelf, tmp_path: Path) -> None:
    shelf.get(name).model.float().save_pretrained(tmp_path, max_shard_size="20KB")
    shelf.get(name).model.double()
    assert len(list(tmp_path.glob("*.safetensors"))) > 2
    same_logits(shelf.get(name).folder, tmp_path)


@pytest.mark.case(25)
@pytest.mark.parametrize("name", ["llama", "gemma3", "gpt_neox", "gptj", "bloom"])
def test_an_output_head_may_be_absent(name: str, shelf: Shelf, tmp_path: Path) -> None:
    """The bare model is saved without its head, and its tensors without the prefix."""
    saved = shelf.get(name)
    saved.model.base_model.float().save_pretrained(tmp_path)
    saved.model.double()
    assert open_model(saved.folder).root != open_model(tmp_path).root == ""
    same_logits(saved.folder, tmp_path)


@pytest.mark.case(25)
def test_an_output_head_may_be_tied(shelf: Shelf) -> None:
    saved = shelf.get("tied llama", TINY["llama"].but(tie_word_embeddings=True))
    assert not any("lm_head" in name for name in load_file(saved.folder / "model.safetensors"))
    assert Reference(saved).deviation(as_read(open_model(saved.folder))) < TOLERANCE


@pytest.mark.parametrize("prefix", ["language_model.model.", "model.language_model."])
def test_the_text_part_of_gemma3_is_read_where_it_is_nested(prefix: str, shelf: Shelf, tmp_path: Path) -> None:
    folder = shelf.get("gemma3").folder
    inner = json.loads((folder / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "gemma3", "text_config": inner}))
    tensors = load_file(folder / "model.safetensors")
    save_file(
        {name.replace("model.", prefix, 1): tensor for name, tensor in tensors.items()}, tmp_path / "model.safetensors"
    )
    assert open_model(tmp_path).root == prefix
    same_logits(folder, tmp_path)


# Published configurations leave out or name otherwise what transformers writes


def rewritten(folder: Path, target: Path, change: Callable[[dict], dict]) -> Path:
    """A folder with its configuration changed."""
    config = json.loads((folder / "config.json").read_text())
    (target / "config.json").write_text(json.dumps(change(config)))
    (target / "model.safetensors").symlink_to(folder / "model.safetensors")
    return target


def test_names_of_blooms_first_configurations(shelf: Shelf, tmp_path: Path) -> None:
    names = {"hidden_size": "n_embed", "n_head": "num_attention_heads", "n_layer": "num_hidden_layers"}
    folder = shelf.get("bloom").folder
    published = rewritten(folder, tmp_path, lambda config: {names.get(key, key): config[key] for key in config})
    transformers_own = transformers.AutoConfig.from_pretrained(published)
    assert (transformers_own.hidden_size, transformers_own.n_head, transformers_own.n_layer) == (48, 6, 2)
    same_logits(folder, published)


def without(entry: str) -> Callable[[dict], dict]:
    return lambda config: {key: value for key, value in config.items() if key != entry}


@pytest.mark.parametrize("name", ["windowed qwen2", "windowed qwen3", "local first"])
def test_layer_types_that_are_not_listed_are_those_transformers_makes(name: str, shelf: Shelf, tmp_path: Path) -> None:
    folder = rewritten(shelf.get(name, WINDOWED[name]).folder, tmp_path, without("layer_types"))
    kinds = transformers.AutoConfig.from_pretrained(folder).layer_types
    spans = {"full_attention": None, "sliding_attention": WINDOW}
    assert "sliding_attention" in kinds
    assert [layer.span for layer in open_model(folder).positions] == [spans[kind] for kind in kinds]


def test_a_window_that_is_not_stated_is_transformers_and_an_assumption(shelf: Shelf, tmp_path: Path) -> None:
    """Absent is 4096 to transformers, null is none."""
    folder = rewritten(shelf.get("mistral").folder, tmp_path, without("sliding_window"))
    assert transformers.AutoConfig.from_pretrained(folder).sliding_window == 4096
    model = open_model(folder)
    assert model.positions[0].span == 4096
    assert any("sliding window 4096" in line and "MistralConfig" in line for line in model.assumptions)
    stated = open_model(shelf.get("mistral").folder)
    assert stated.positions[0].span is None and not any("window" in line for line in stated.assumptions)


def test_rotary_lanes_that_are_not_stated_are_transformers(shelf: Shelf, tmp_path: Path) -> None:
    """64 of GPT-J, more than the 12 of this head; null is the whole head."""
    folder = rewritten(shelf.get("gptj").folder, tmp_path, without("rotary_dim"))
    assert transformers.AutoConfig.from_pretrained(folder).rotary_dim == 64
    assert "64" in refused(lambda: open_model(folder))
    (whole := tmp_path / "whole").mkdir()
    rewritten(folder, whole, lambda config: config | {"rotary_dim": None})
    assert open_model(whole).positions[0].rotary.width == 12


def test_layers_beyond_the_first_are_refused(shelf: Shelf) -> None:
    model = open_model(shelf.get("llama").folder)
    assert "needs activations" in refused(lambda: read_layer(model, 1, TOKENS))
    assert "layers of this model are 0 to 1" in refused(lambda: read_layer(model, 2, TOKENS))
    assert read_layer(model, 0, TOKENS).sha256 == read_layer(model, 0, TOKENS).sha256


def tensors_of_another_model(saved: Saved, target: Path, tiny: Tiny) -> Path:
    tiny.saved(target / "other")
    return rewritten(target / "other", target, lambda _: json.loads((saved.folder / "config.json").read_text()))


def test_weights_of_another_width_are_refused(shelf: Shelf, tmp_path: Path) -> None:
    folder = tensors_of_another_model(shelf.get("llama"), tmp_path, TINY["llama"].but(head_dim=8))
    assert "the configuration asks for (72, 48)" in refused(lambda: read_layer(open_model(folder), 0, TOKENS))


@pytest.mark.parametrize("name", OF_OFFSETS)
def test_the_projections_of_a_deeper_layer(name: str, shelf: Shelf) -> None:
    """Layer 1, fed with transformers' residual stream, has its logits; the projections of layer 0 have not."""
    saved, model = shelf.get(name), open_model(shelf.get(name).folder)
    positions = np.arange(60) if name == "bloom" else POSITIONS
    tokens = np.random.default_rng(1).integers(0, VOCABULARY, len(positions))
    theirs = own_logits(saved.model, tokens, None if name == "bloom" else positions, layer=1)
    stream = residual_stream(saved.model, tokens, None if name == "bloom" else positions, 1)
    uniform = np.full(len(tokens), 1 / len(tokens))
    found = []
    for index in (1, 0):
        own = replace(token_layer(model), stream=stream, maps=read_maps(model, index), positions=model.positions[1])
        found.append(deviation(head_logits(own.heads(uniform, LENGTH), np.arange(len(tokens)), positions), theirs))
    assert found[0] < TOLERANCE < SHOWS * TOLERANCE < found[1]
