"""Activations of any layer: attention recomputed from captured queries and keys is the model's own.

Models of random weights come from transformers, which runs them with eager attention as the reference; streams are
captured from another instance, loaded as a person's checkpoint is, and pass through our own reading of the weights.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from conftest import ROOT
from scipy.special import softmax
from tiny_models import TINY, VOCABULARY, Shelf, write_gguf

from bridge.errors import BridgeError
from bridge.observation import asking, observe
from bridge.sources import activations as module
from bridge.sources.activations import LayerActivations, capture
from bridge.sources.change import AS_IT_IS, RotaryChange
from bridge.sources.formats import open_model
from bridge.sources.loading import open_network, weights_sha256
from bridge.sources.model import read_maps
from bridge.sources.network import Network
from bridge.sources.texts import Windows

TOLERANCE = 2e-5
"""Of attention: a network computes in float32."""
LENGTH = 150
ROTARY = tuple(name for name in TINY if name not in ("gpt2", "opt", "bloom"))


@pytest.fixture(scope="module")
def shelf(tmp_path_factory: pytest.TempPathFactory) -> Shelf:
    return Shelf(tmp_path_factory.mktemp("activations"))


def tokens_of(windows: int = 3, length: int = LENGTH, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, VOCABULARY, (windows, length))


def windows_of(tokens: np.ndarray) -> Windows:
    return Windows(tokens, tuple(f"document {i}" for i in range(len(tokens))), None, "random tokens")


def own_attention(model: torch.nn.Module, tokens: np.ndarray) -> np.ndarray:
    """[layer head query key] by transformers' eager attention."""
    model.config._attn_implementation = "eager"
    with torch.no_grad():
        given = torch.tensor(tokens)[None]
        found = model(input_ids=given, output_attentions=True, use_cache=False).attentions
    return np.stack([attention[0].double().numpy() for attention in found])


def recomputed(network: Network, tokens: np.ndarray, layers: int | None = None) -> np.ndarray:
    """The same from the streams of a network and our reading of the weights; of the first layers, or of all."""
    rows: list[np.ndarray] = []

    def visit(_: int, layer: int, stream: np.ndarray) -> None:
        maps, positions = read_maps(network.model, layer), network.model.positions[layer]
        heads = LayerActivations(stream[None], maps, positions).heads()
        rows.append(np.stack([softmax(head.logits(0, range(len(tokens))), axis=1) for head in heads]))

    network.run([tokens], range(layers or network.model.shape.layers), visit)
    return np.stack(rows)


@pytest.mark.parametrize("name", ROTARY)
def test_attention_of_every_layer_is_the_models_own(name: str, shelf: Shelf) -> None:
    saved, tokens = shelf.get(name), tokens_of()[0]
    theirs = own_attention(saved.model, tokens)
    ours = recomputed(open_network(saved.folder), tokens)
    assert ours.shape == theirs.shape
    assert np.abs(ours - theirs).max() < TOLERANCE
    # Attention is no constant, and layers differ: it is none that anything passes.
    assert np.abs(ours - ours.mean(axis=0)).max() > 0.05


CHANGES = {
    "linear:4": {"rope_type": "linear", "factor": 4.0},
    "dynamic:4": {"rope_type": "dynamic", "factor": 4.0},
    "yarn:4": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64},
    "llama3:8": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    },
    "none": {"rope_type": "default"},
    "ntk:4": {"rope_type": "default", "rope_theta": 5e6 * 4 ** (12 / 10)},
}


@pytest.mark.parametrize("scaling", CHANGES)
def test_a_changed_model_runs_under_the_change(scaling: str, shelf: Shelf) -> None:
    """transformers' reference takes the change in its own words; 150 tokens are beyond the trained length, 64."""
    saved = shelf.get("mistral-64", TINY["mistral"].but(max_position_embeddings=64))
    config = transformers.AutoConfig.from_pretrained(saved.folder)
    config.rope_parameters = {"rope_theta": 5e6} | CHANGES[scaling]
    reference = transformers.AutoModelForCausalLM.from_pretrained(saved.folder, config=config, dtype=torch.float32)
    tokens = tokens_of()[0]
    theirs = own_attention(reference.eval(), tokens)
    ours = recomputed(open_network(saved.folder, RotaryChange.parse(None, scaling)), tokens)
    assert np.abs(ours - theirs).max() < TOLERANCE
    # The model's own is linear with factor 3: every change shows.
    assert np.abs(theirs - own_attention(saved.model, tokens)).max() > 1000 * TOLERANCE


def test_a_change_leaves_local_layers_as_they_are(shelf: Shelf) -> None:
    saved, tokens = shelf.get("gemma3"), tokens_of()[0]
    changed = open_network(saved.folder, RotaryChange.parse(None, "yarn:4"))
    own = open_network(saved.folder)
    kinds = own.causal.config.layer_types
    same = {
        kind: changed.causal.config.rope_parameters[kind] == own.causal.config.rope_parameters[kind] for kind in kinds
    }
    assert same == {"full_attention": False, "sliding_attention": True}
    ours = recomputed(changed, tokens)
    assert np.abs(ours - own_attention(changed.causal, tokens)).max() < TOLERANCE
    assert np.abs(ours - recomputed(own, tokens)).max() > 0.01


PLAIN = {"rope_parameters": {"rope_type": "default", "rope_theta": 1e6}}
IN_GGUF = {
    "llama": TINY["llama"].but(**PLAIN),
    "qwen2": TINY["qwen2"].but(**PLAIN),
    "qwen3": TINY["qwen3"].but(**PLAIN),
    # Of its logit scale a file says nothing: by the number of layers it is of the head width, or of width over heads.
    "gemma3": TINY["gemma3"].but(num_hidden_layers=6, layer_types=None, query_pre_attn_scalar=20),
    "gemma3-62": TINY["gemma3"].but(num_hidden_layers=62, layer_types=None, query_pre_attn_scalar=8),
}


# Sixty layers take a minute.
SLOW = {"gemma3-62": pytest.mark.slow}


@pytest.mark.parametrize("name", [pytest.param(name, marks=SLOW.get(name, ())) for name in IN_GGUF])
def test_a_gguf_file_runs_as_the_folder_does(name: str, shelf: Shelf, tmp_path: Path) -> None:
    """Scaling included, which transformers does not read from the file."""
    saved = shelf.get(f"{name}-in-gguf", IN_GGUF[name])
    factor = {"llama": 3.0, "gemma3": 8.0, "gemma3-62": 8.0}.get(name)
    scaling = {} if factor is None else {"rope.scaling.type": "linear", "rope.scaling.factor": factor}
    metadata: dict[str, int | float | str] = {"feed_forward_length": 40} | scaling
    path = write_gguf(saved.model, tmp_path / "model.gguf", metadata)
    tokens = tokens_of()[0]
    network = open_network(path)
    # Through more random layers rounding grows.
    ours = recomputed(network, tokens, 4 if name == "gemma3-62" else None)
    change = RotaryChange.parse(None, "linear:3") if name == "llama" else AS_IT_IS
    theirs = own_attention(open_network(saved.folder, change).causal, tokens)
    assert np.abs(ours - theirs[: len(ours)]).max() < TOLERANCE


def test_a_llama2c_file_runs_as_transformers_llama(models: Path) -> None:
    tokens = np.random.default_rng(0).integers(0, 512, 200)
    network = open_network(models / "stories260K.bin")
    theirs = own_attention(network.causal, tokens)
    assert np.abs(recomputed(network, tokens) - theirs).max() < 2e-5
    # It is a language model: on its own kind of text it is far from uniform over 512 tokens.
    from bridge.sources.llama2c_tokenizer import read_tokenizer

    text = read_tokenizer(models / "tok512.bin").encode("Once upon a time, there was a little girl named Lily.")
    with torch.no_grad():
        given = torch.tensor([[1, *text]])
        loss = network.causal(input_ids=given, labels=given).loss.item()
    assert loss < 2.5 < np.log(512)


@pytest.mark.case(22)
def test_left_padding_is_no_position(shelf: Shelf) -> None:
    """Sequences of three lengths side by side have the streams that each has alone; wrongly placed ones have not."""
    network, tokens = open_network(shelf.get("llama").folder), tokens_of()
    sequences = [tokens[0], tokens[1, :90], tokens[2, :40]]

    def streams(given: list[np.ndarray]) -> dict[tuple[int, int], np.ndarray]:
        found: dict[tuple[int, int], np.ndarray] = {}
        network.run(given, [0, 1], lambda row, layer, stream: found.__setitem__((row, layer), stream.copy()))
        return found

    together = streams(sequences)
    alone = {(row, layer): own for row in range(3) for (_, layer), own in streams([sequences[row]]).items()}
    assert {key: stream.shape for key, stream in together.items()} == {key: own.shape for key, own in alone.items()}
    deviation = max(np.abs(together[key] - alone[key]).max() / np.abs(alone[key]).max() for key in alone)
    assert deviation < 1e-5
    shifted = streams([np.concatenate([np.zeros(3, np.int64), sequences[2]])])[0, 1][3:]
    assert np.abs(shifted - alone[2, 1]).max() > 100 * deviation * np.abs(shifted).max()


def test_a_pass_ends_after_the_last_layer_asked_for(shelf: Shelf) -> None:
    network = open_network(shelf.get("llama").folder)
    entered: list[int] = []
    network.causal.base_model.layers[1].register_forward_pre_hook(lambda *_: entered.append(1))
    network.run([tokens_of()[0]], [0], lambda *_: None)
    assert entered == []
    network.run([tokens_of()[0]], [1], lambda *_: None)
    assert entered == [1]


def test_captured_layers_come_back_and_are_not_run_again(
    shelf: Shelf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved, windows = shelf.get("llama"), windows_of(tokens_of(5))
    told: list[int] = []
    first = capture(saved.folder, windows, [0, 1], tmp_path, advance=told.append)
    assert sum(told) == 5 and first.sha256 == weights_sha256(open_model(saved.folder))
    layer = first.layer(1)
    assert layer.streams.shape == (5, LENGTH, 48)
    attention = own_attention(saved.model, windows.tokens[3])[1]
    ours = np.stack([softmax(head.logits(3, range(LENGTH)), axis=1) for head in layer.heads()])
    assert np.abs(ours - attention).max() < TOLERANCE
    by_index = softmax(layer.head(2).logits(3, range(LENGTH)), axis=1)
    assert np.array_equal(by_index, ours[2])

    def no_network(*_: object) -> Network:
        raise AssertionError("the model ran again")

    monkeypatch.setattr(module, "open_network", no_network)
    again = capture(saved.folder, windows, [1], tmp_path)
    assert np.array_equal(again.layer(1).streams, layer.streams)
    for other in (windows_of(tokens_of(5, seed=1)), windows_of(windows.tokens[:, :-1])):
        with pytest.raises(AssertionError, match="ran again"):
            capture(saved.folder, other, [1], tmp_path)
    with pytest.raises(AssertionError, match="ran again"):
        capture(saved.folder, windows, [1], tmp_path, RotaryChange.parse(None, "yarn:4"))
    altered = tmp_path / "altered"
    shutil.copytree(saved.folder, altered)
    weights = bytearray((altered / "model.safetensors").read_bytes())
    weights[-1] ^= 1
    (altered / "model.safetensors").write_bytes(weights)
    with pytest.raises(AssertionError, match="ran again"):
        capture(altered, windows, [1], tmp_path)


def test_a_damaged_file_is_captured_again(shelf: Shelf, tmp_path: Path) -> None:
    saved, windows = shelf.get("llama"), windows_of(tokens_of(3))
    whole = capture(saved.folder, windows, [0, 1], tmp_path).layer(1).streams
    files = sorted(tmp_path.rglob("*.npy"))
    assert len(files) == 6
    files[4].write_bytes(files[4].read_bytes()[:-1])
    files[5].unlink()
    told: list[int] = []
    again = capture(saved.folder, windows, [0, 1], tmp_path, advance=told.append)
    assert told == [1, 2] and np.array_equal(again.layer(1).streams, whole)
    files[0].write_bytes(b"")
    with pytest.raises(BridgeError, match="layer 0 was not captured whole"):
        again.layer(0)


_KILLED = """
import sys, numpy as np
sys.path[:0] = [{tests!r}, {root!r}]
from pathlib import Path
from bridge.sources.activations import capture
from bridge.sources.texts import Windows
tokens = np.load({tokens!r})
windows = Windows(tokens, ("document",) * len(tokens), None, "random tokens")
def advance(windows):
    print("done", windows, flush=True)
capture(Path({folder!r}), windows, [0, 1], Path({cache!r}), advance=advance)
print("whole", flush=True)
"""


def test_an_interrupted_capture_goes_on(shelf: Shelf, tmp_path: Path) -> None:
    """Killed after its first windows, and called again: what was done is not run again, and the streams are those of
    an uninterrupted one, bit for bit."""
    saved, tokens = shelf.get("llama"), tokens_of(40)
    np.save(tmp_path / "tokens.npy", tokens)
    script = _KILLED.format(
        tests=str(ROOT / "tests"),
        root=str(ROOT),
        tokens=str(tmp_path / "tokens.npy"),
        folder=str(saved.folder),
        cache=str(tmp_path / "cut"),
    )
    killed = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    assert killed.stdout is not None
    assert [killed.stdout.readline(), killed.stdout.readline()] == ["done 0\n", "done 4\n"]
    os.kill(killed.pid, signal.SIGKILL)
    killed.wait()
    left = len(list((tmp_path / "cut").rglob("*.npy")))
    assert 8 <= left < 80
    told: list[int] = []
    went_on = capture(saved.folder, windows_of(tokens), [0, 1], tmp_path / "cut", advance=told.append)
    assert told[0] == left // 2 and sum(told) == 40
    whole = capture(saved.folder, windows_of(tokens), [0, 1], tmp_path / "whole")
    for layer in (0, 1):
        assert np.array_equal(went_on.layer(layer).streams, whole.layer(layer).streams)


def test_memory_does_not_grow_with_the_text(shelf: Shelf, tmp_path: Path) -> None:
    """Forty times the windows, and no more memory than twice: streams go to disk."""
    folder = shelf.get("llama").folder
    capture(folder, windows_of(tokens_of(4, seed=9)), [0, 1], tmp_path)

    def peak(windows: int) -> int:
        given = windows_of(tokens_of(windows, seed=windows))
        tracemalloc.start()
        capture(folder, given, [0, 1], tmp_path)
        most = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return most

    few, many = peak(8), peak(160)
    streams = 2 * 160 * LENGTH * 48 * 4
    assert many < 2 * few and many - few < streams / 20


def test_observed_attention_is_the_mean_of_the_models_own(shelf: Shelf) -> None:
    """At every length the last sixteenth of the queries, one number a window, in mean and error."""
    saved, tokens = shelf.get("llama"), tokens_of(4, 160)
    seen = observe(open_network(saved.folder), tokens, [1], (48, 160, 16), 20)
    attention = np.stack([own_attention(saved.model, window)[1] for window in tokens])
    assert [one.head for one in seen] == list(range(6))
    for one in seen:
        for place, length in enumerate(one.lengths):
            for offset in (0, 3, 14):
                rows = np.array([np.mean([own[one.head, q, q - offset] for q in asking(length)]) for own in attention])
                assert abs(one.mean[place, offset] - rows.mean()) < TOLERANCE
                assert abs(one.standard_error[place, offset] - rows.std(ddof=1) / 2) < TOLERANCE
        assert np.isnan(one.mean[2, 16:]).all() and not np.isnan(one.mean[2, :16]).any()


def shelf_model(folder: Path) -> torch.nn.Module:
    """A model that has run nothing yet."""
    return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


@pytest.mark.case(8)
def test_lengths_of_a_dynamic_schedule_are_observed_each_with_its_own(shelf: Shelf) -> None:
    saved = shelf.get("dynamic", TINY["qwen3"].but(max_position_embeddings=64))
    tokens = tokens_of(2, 160)
    seen = observe(open_network(saved.folder), tokens, [1], (160, 48), 4)
    # transformers keeps the frequencies of a longer pass for a shorter one that is beyond the trained length, too.
    two = observe(open_network(saved.folder), tokens, [1], (96, 160), 4)
    assert np.abs(two[0].mean[1] - seen[0].mean[0]).max() < TOLERANCE
    fresh = [own_attention(shelf_model(saved.folder), window[:96])[1] for window in tokens]
    rows = [np.mean([own[0, q, q - 1] for q in asking(96)]) for own in fresh]
    assert abs(two[0].mean[0, 1] - np.mean(rows)) < TOLERANCE
    for place, length in enumerate((160, 48)):
        alone = own_attention(saved.model, tokens[0][:length])[1], own_attention(saved.model, tokens[1][:length])[1]
        rows = [np.mean([own[0, q, q - 1] for q in asking(length)]) for own in alone]
        assert abs(seen[0].mean[place, 1] - np.mean(rows)) < TOLERANCE


def refusal(call: object) -> str:
    with pytest.raises(BridgeError) as caught:
        call()  # type: ignore[operator]
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_errors_say_what_to_do(shelf: Shelf, tmp_path: Path, unchecked: None, monkeypatch: pytest.MonkeyPatch) -> None:
    saved = shelf.get("llama")
    network = open_network(saved.folder)
    assert "tokens of this model are 0 to" in refusal(lambda: network.run([np.array([VOCABULARY])], [0], print))
    assert "layers of this model are 0 to 1" in refusal(lambda: network.run([np.array([1])], [2], print))
    assert "an empty one" in refusal(lambda: network.run([np.array([], np.int64)], [0], print))
    assert "do not hold the length 200" in refusal(lambda: observe(network, tokens_of(), [0], (200,), 4))
    assert "no rotary positions" in refusal(lambda: open_network(shelf.get("gpt2").folder))
    assert "no rotary positions" in refusal(
        lambda: capture(shelf.get("bloom").folder, windows_of(tokens_of()), [0], tmp_path)
    )
    (tmp_path / "file").write_text("")
    assert "--cache" in refusal(lambda: capture(saved.folder, windows_of(tokens_of()), [0], tmp_path / "file"))
    neox = write_gguf(shelf.get("gpt_neox").model, tmp_path / "neox.gguf")
    assert "transformers cannot load this model: GGUF model with architecture gptneox" in refusal(
        lambda: open_network(neox)
    )
    monkeypatch.setitem(sys.modules, "transformers", None)
    assert "attention-carrier[hf]" in refusal(lambda: open_network(saved.folder))


def test_a_missing_weight_is_not_a_random_one(shelf: Shelf, tmp_path: Path) -> None:
    from safetensors.numpy import load_file, save_file

    folder = tmp_path / "cut"
    shutil.copytree(shelf.get("llama").folder, folder)
    tensors = load_file(folder / "model.safetensors")
    del tensors["model.layers.1.mlp.up_proj.weight"]
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    told = refusal(lambda: open_network(folder))
    assert "finds no model.layers.1.mlp.up_proj.weight in it (1 of its weights)" in told
    tensors = load_file(shelf.get("llama").folder / "model.safetensors")
    tensors["model.layers.1.mlp.up_proj.bias"] = np.ones(40, np.float32)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    assert "does not read model.layers.1.mlp.up_proj.bias" in refusal(lambda: open_network(folder))


def test_streams_that_are_not_finite_are_named(shelf: Shelf) -> None:
    saved = shelf.get("llama")
    network = open_network(saved.folder)
    with torch.no_grad():
        network.causal.base_model.layers[0].mlp.down_proj.weight.fill_(float("inf"))
    assert "stream into layer 1 is not finite" in refusal(
        lambda: network.run([tokens_of()[0]], [0, 1], lambda *_: None)
    )
