"""`carrier inspect` and `carrier predict` on checkpoints, as a person runs them: tiny models on disk."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from conftest import run_carrier, without_training_extra
from safetensors.numpy import load_file, save_file
from test_cli import document, one_line
from tiny_models import TINY, VOCABULARY
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit

from bridge.content import ContentOptions, read_content
from bridge.head_views import ORDERS
from bridge.inspect import default_lengths, inspect_head
from bridge.orders import ordered
from bridge.surface import sampled_surface
from theory.exact_law import exact_law
from theory.head import Head
from theory.sampled_law import SEED
from theory.schedule import RotarySchedule

# Each word once more than the one before it: a distribution that no other has.
TEXT = " ".join(f"w{word}" for word in range(12) for _ in range(word + 1))
LENGTHS = ("--lengths", "16,64", "--json")


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of each of four families with a tokenizer of words, and a text beside them."""
    root = tmp_path_factory.mktemp("checkpoints")
    tokenizer = Tokenizer(WordLevel({f"w{word}": word for word in range(VOCABULARY)}, unk_token="w0"))
    tokenizer.pre_tokenizer = WhitespaceSplit()
    for name in ("llama", "qwen3", "gpt2", "bloom", "gemma3"):
        TINY[name].saved(root / name)
        tokenizer.save(str(root / name / "tokenizer.json"))
    (root / "text").write_text(TEXT)
    return root


def content_of(folder: Path, head: int) -> Head:
    return read_content(folder, 0, ContentOptions(counts=folder.parent / "text")).head(head).content


def test_every_head_is_reported_without_torch_or_transformers(folders: Path, tmp_path: Path) -> None:
    env = without_training_extra(tmp_path)
    given = (str(folders / "llama"), "--counts", str(folders / "text"), "--out", str(tmp_path / "out"))
    told = document(run_carrier("inspect", *given, *LENGTHS, "--workers", "1", env=env))
    assert (told["model"]["format"], told["model"]["family"]) == ("safetensors", "llama")
    assert [entry["head"] for entry in told["heads"]] == list(range(6))
    assert any("12 distinct, no beginning-of-text token added" in line for line in told["model"]["assumptions"])
    for entry in told["heads"]:
        exact = exact_law(content_of(folders / "llama", entry["head"]), -entry["offset"], entry["lengths"], 1e-9)
        error = np.array(entry["standard_error"])
        assert (np.abs(exact - entry["laws"]["exact"]) <= 5 * error).all() and (error < 0.02).all()
        assert (entry["base"], entry["span"]) == (5e5, None) and entry["scaling"].startswith("llama3, factor 8")
    assert {Path(file).suffix for file in told["files"]} == {".csv", ".pdf", ".png", ".svg"}
    assert all(Path(file).stat().st_size > 200 for file in told["files"])
    read = {entry["name"] for entry in told["model"]["read"]}
    assert read == {"config.json", "model.embed_tokens.weight"} | {
        f"model.layers.0.{name}"
        for name in ("input_layernorm.weight", *(f"self_attn.{p}_proj.{k}" for p in "qk" for k in ("weight", "bias")))
    }


def test_two_processes_report_the_same_bits_in_the_same_order(folders: Path) -> None:
    given = ("inspect", str(folders / "llama"), "--counts", str(folders / "text"), "--lengths", "16", "--json")
    one, two = (document(run_carrier(*given, "--workers", workers)) for workers in "12")
    assert one["heads"] == two["heads"]


def test_the_table_can_be_sorted(folders: Path) -> None:
    given = ("inspect", str(folders / "llama"), "--counts", str(folders / "text"), *LENGTHS)
    heads = document(run_carrier(*given, "--sort", "share"))["heads"]
    shares = [entry["share"] for entry in heads]
    assert shares == sorted(shares, reverse=True) and [entry["head"] for entry in heads] != list(range(6))
    reports = [inspect_head(0, index, head, [16, 64], 64) for index, head in _heads(folders / "llama")]
    for order, key in (
        ("key-fraction", lambda report: -report.prediction.carrier.key_fraction),
        ("offset", lambda report: -report.offset),
        ("head", lambda report: report.head),
        ("64", lambda report: -report.prediction.exact[-1]),
    ):
        assert ordered(reports[::-1], order, ORDERS) == sorted(reports[::-1], key=key)


def _heads(folder: Path) -> list:
    return list(read_content(folder, 0, ContentOptions(counts=folder.parent / "text")).heads())


def test_a_scaling_and_a_base_change_the_frequencies_and_nothing_else(folders: Path) -> None:
    """linear:4 divides every frequency by 4: the exact law of the same content on the divided schedule."""
    options = ("--counts", str(folders / "text"), "--head", "3", "--offset", "2", *LENGTHS)
    plain = document(run_carrier("predict", str(folders / "llama"), *options))
    content = content_of(folders / "llama", 3)
    base = 5e5 ** (-np.arange(0, 12, 2) / 12)
    for change, frequencies in (
        (("--rope-scaling", "linear:4"), base / 4),
        (("--rope-scaling", "none", "--base", "100"), 100 ** (-np.arange(0, 12, 2) / 12)),
    ):
        told = document(run_carrier("predict", str(folders / "llama"), *options, *change))
        expected = exact_law(replace(content, schedule=RotarySchedule(frequencies)), 2, [16, 64], 1e-9)
        assert (np.abs(expected - told["laws"]["exact"]) <= 5 * np.array(told["sampling_error"])).all()
        assert told["laws"]["unchanged"] == plain["laws"]["exact"]
        assert np.abs(np.subtract(told["laws"]["exact"], plain["laws"]["exact"])).max() > 0.01
    assert plain["laws"]["unchanged"] is None
    table = run_carrier("predict", str(folders / "llama"), *options[:-1], "--rope-scaling", "yarn:4").stdout
    assert "unchanged" in table and "scaling yarn, factor 4, trained length 8192" in table


def test_dynamic_scaling_is_that_of_each_length(folders: Path) -> None:
    """Trained to 2048: plain up to there, and at 4096 the base grows as transformers has it."""
    given = ("predict", str(folders / "qwen3"), "--counts", str(folders / "text"), "--offset", "1", "--head", "2")
    told = document(run_carrier(*given, "--lengths", "64,4096", "--json"))
    content = content_of(folders / "qwen3", 2)
    grown = 1e6 * (2 * 4096 / 2048 - 1) ** (20 / 18)
    for place, (length, base) in enumerate(((64, 1e6), (4096, grown))):
        plain = RotarySchedule(base ** (-np.arange(0, 20, 2) / 20))
        expected = exact_law(replace(content, schedule=plain), 1, [length], 1e-6)[0]
        assert abs(expected - told["laws"]["exact"][place]) <= 5 * told["sampling_error"][place]


def test_a_sliding_window_ends_dilution(folders: Path, tmp_path: Path) -> None:
    shutil.copytree(folders / "gemma3", tmp_path / "gemma3")
    config = json.loads((tmp_path / "gemma3" / "config.json").read_text())
    config["layer_types"] = ["sliding_attention", "full_attention", "full_attention"]
    (tmp_path / "gemma3" / "config.json").write_text(json.dumps(config))
    given = ("--counts", str(folders / "text"), "--head", "1", "--offset", "3", "--lengths", "32,64,200", "--json")
    sliding = document(run_carrier("predict", str(tmp_path / "gemma3"), *given))["laws"]["exact"]
    full = document(run_carrier("predict", str(folders / "gemma3"), *given))["laws"]["exact"]
    assert sliding[1] == pytest.approx(sliding[2], rel=1e-12)
    assert sliding[1] < 0.8 * sliding[0]
    assert full[2] < 0.7 * full[1]
    refused = one_line(run_carrier("predict", str(tmp_path / "gemma3"), *given[:4], "--offset", "64", *given[6:]))
    assert "at length 32 the head sees 32 tokens, none of them 64 back" in refused


def test_a_base_that_nobody_states_is_asked_for(folders: Path, tmp_path: Path) -> None:
    shutil.copytree(folders / "llama", tmp_path / "llama")
    config = json.loads((tmp_path / "llama" / "config.json").read_text())
    del config["rope_parameters"]
    (tmp_path / "llama" / "config.json").write_text(json.dumps(config))
    given = ("inspect", str(tmp_path / "llama"), "--counts", str(folders / "text"), "--head", "0", *LENGTHS)
    refused = one_line(run_carrier(*given))
    assert "config.json: no rope_theta" in refused and "give --base" in refused
    told = document(run_carrier(*given, "--base", "10000"))
    (entry,) = (entry for entry in told["model"]["provenance"] if entry["name"] == "rotary base")
    assert entry == {"name": "rotary base", "value": "10000", "source": "option"}


def test_uniform_weights_only_where_asked_for_and_marked_as_poor(folders: Path) -> None:
    told = document(run_carrier("inspect", str(folders / "llama"), "--uniform", "--head", "0", *LENGTHS))
    assert any("uniform token weights: a poor stand-in" in line for line in told["model"]["assumptions"])
    assert "uniform token weights" in told["heads"][0]["flags"]
    counted = document(run_carrier("inspect", str(folders / "llama"), "--head", "0", *LENGTHS))
    assert any("documentation topics of Python" in line for line in counted["model"]["assumptions"])


def test_learned_positions_are_shown_by_where_they_are_pinned(folders: Path, tmp_path: Path) -> None:
    given = (str(folders / "gpt2"), "--counts", str(folders / "text"))
    told = document(run_carrier("inspect", *given, "--out", str(tmp_path), "--json"))
    assert {Path(file).suffix for file in told["files"]} == {".csv", ".pdf", ".png", ".svg"}
    assert [entry["head"] for entry in told["heads"]] == [0, 1, 2, 3]
    assert told["heads"][0].keys() >= {"offset", "steadiness", "pinned", "pinned_share", "decayed_pinned"}
    assert all(0 <= entry["pinned"] <= 64 for entry in told["heads"])
    assert "pinned at" in run_carrier("inspect", *given).stdout
    assert "has learned positions" in one_line(run_carrier("predict", *given))


def test_alibi_has_a_bias_and_no_base(folders: Path) -> None:
    told = document(run_carrier("inspect", str(folders / "bloom"), "--counts", str(folders / "text"), *LENGTHS))
    assert {(entry["base"], entry["scaling"]) for entry in told["heads"]} == {(None, None)}
    # Slopes fall by powers of two: the first head, whose slope is the greatest, holds on to what is near.
    for entry in told["heads"]:
        expected = exact_law(content_of(folders / "bloom", entry["head"]), -entry["offset"], [64], 1e-9)[0]
        assert abs(entry["laws"]["exact"][1] - expected) <= 5 * entry["standard_error"][1]


def test_a_checksum_of_what_was_read(folders: Path, tmp_path: Path) -> None:
    """It depends on the layer's tensors and the configuration, and not on the text."""
    (tmp_path / "other").write_text("w3 w4 w4")
    texts = (folders / "text", tmp_path / "other")
    (digest,) = {read_content(folders / "llama", 0, ContentOptions(counts=text)).reading.sha256 for text in texts}
    given = ("--counts", str(texts[0]), "--head", "0", *LENGTHS)
    told = document(run_carrier("inspect", str(folders / "llama"), "--sha256", digest[:12], *given))
    assert told["model"]["sha256"] == digest
    shutil.copytree(folders / "llama", tmp_path / "llama")
    raw = bytearray((tmp_path / "llama" / "model.safetensors").read_bytes())
    start = 8 + int.from_bytes(raw[:8], "little")
    place = json.loads(raw[8:start])["model.layers.0.self_attn.q_proj.weight"]["data_offsets"][0]
    raw[start + place] ^= 1
    (tmp_path / "llama" / "model.safetensors").write_bytes(raw)
    refused = one_line(run_carrier("inspect", str(tmp_path / "llama"), "--sha256", digest, *given))
    assert "was altered or is another file" in refused


def test_what_is_of_no_use_is_refused(folders: Path, tmp_path: Path) -> None:
    """Not left out in silence: nobody should take a curve for that of a change which was never made."""
    text = ("--counts", str(folders / "text"))
    assert "not rotary: drop --base" in one_line(run_carrier("inspect", str(folders / "gpt2"), *text, "--base", "100"))
    given = ("inspect", str(folders / "gpt2"), *text, "--lengths", "16")
    assert "has learned positions: drop --lengths" in one_line(run_carrier(*given))
    assert "drop --lengths, --at" in one_line(run_carrier("inspect", str(folders / "gpt2"), *text, "--at", "0"))
    sliding = tmp_path / "gemma3"
    shutil.copytree(folders / "gemma3", sliding)
    edit_json(sliding / "config.json", layer_types=["sliding_attention", "full_attention", "full_attention"])
    given = ("predict", str(sliding), *text, "--base", "123", "--rope-scaling", "linear:4")
    assert "leave layer 0 as it is" in one_line(run_carrier(*given))
    given = ("predict", str(folders / "bloom"), *text, "--rope-scaling", "yarn:4")
    assert "linear bias (ALiBi), not rotary" in one_line(run_carrier(*given))


def sharded(folder: Path) -> dict[str, str]:
    """The model of a folder cut into shards of a few tensors; where each tensor lies."""
    weights = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    names = sorted(weights)
    places = {name: f"model-{index // 8 + 1:05}-of-00004.safetensors" for index, name in enumerate(names)}
    for file in set(places.values()):
        save_file({name: weights[name] for name in names if places[name] == file}, folder / file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": places}))
    return places


def edit_json(path: Path, **changes: object) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


KEY = "model.layers.0.self_attn.k_proj.weight"


def truncate(folder: Path, places: dict[str, str]) -> None:
    raw = (folder / places[KEY]).read_bytes()
    (folder / places[KEY]).write_bytes(raw[:-1])


def put_pointer(folder: Path, places: dict[str, str]) -> None:
    pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"0" * 64 + b"\nsize 1056540\n"
    (folder / places[KEY]).write_bytes(pointer.ljust(130))


def remove_shard(folder: Path, places: dict[str, str]) -> None:
    (folder / places[KEY]).unlink()


def misplace(folder: Path, places: dict[str, str]) -> None:
    other = next(file for file in places.values() if file != places[KEY])
    index = {"metadata": {}, "weight_map": places | {KEY: other}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def add_stray(folder: Path, places: dict[str, str]) -> None:
    weights = load_file(folder / places[KEY]) | {"model.layers.0.self_attn.sinks": np.zeros(6, np.float32)}
    save_file(weights, folder / places[KEY])
    index = {"metadata": {}, "weight_map": places | {"model.layers.0.self_attn.sinks": places[KEY]}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def make_odd(folder: Path, places: dict[str, str]) -> None:
    edit_json(folder / "config.json", head_dim=13)


def drop_base(folder: Path, places: dict[str, str]) -> None:
    edit_json(folder / "config.json", rope_parameters=None)


def name_unmodelled(folder: Path, places: dict[str, str]) -> None:
    edit_json(folder / "config.json", model_type="deepseek_v3")


def drop_biases(folder: Path, places: dict[str, str]) -> None:
    name = "model.layers.0.self_attn.q_proj.bias"
    weights = load_file(folder / places[name])
    save_file({key: value for key, value in weights.items() if key != name}, folder / places[name])
    kept = {key: file for key, file in places.items() if key != name}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": kept}))


def drop_configuration(folder: Path, places: dict[str, str]) -> None:
    (folder / "config.json").unlink()


@pytest.mark.parametrize(
    ("damage", "thing", "remedy"),
    [
        (truncate, "damaged: truncated", "download it again"),
        (put_pointer, "a git-LFS pointer", "run git lfs pull"),
        (remove_shard, "no such file", "download"),
        (misplace, KEY, "download"),
        (add_stray, "model.layers.0.self_attn.sinks", "declaration (docs/new-family.md)"),
        (make_odd, "head width 13", "head_dim"),
        (drop_base, "rope_theta", "give --base"),
        (drop_biases, "model.layers.0.self_attn.q_proj.bias", "download"),
        (drop_configuration, "config.json: no such file", "a Hugging Face folder holds"),
        (name_unmodelled, "latent attention (MLA)", "not modelled"),
    ],
)
@pytest.mark.case(24)
def test_a_damaged_folder_is_named_in_one_line(
    damage: Callable[[Path, dict[str, str]], None], thing: str, remedy: str, folders: Path, tmp_path: Path
) -> None:
    shutil.copytree(folders / "llama", tmp_path / "llama")
    places = sharded(tmp_path / "llama")
    given = ("inspect", str(tmp_path / "llama"), "--counts", str(folders / "text"), "--head", "0", *LENGTHS)
    if damage is truncate:
        assert run_carrier(*given).returncode == 0, "the control: whole, it is read"
    damage(tmp_path / "llama", places)
    said = one_line(run_carrier(*given))
    assert thing in said and remedy in said, said


def test_one_sample_selects_the_offset_and_another_one_estimates_its_share(folders: Path) -> None:
    """The highest of many estimates is too high: reported is that of fresh samples, at every length."""
    head = dict(_heads(folders / "llama"))[2]
    report = inspect_head(0, 2, head, [48, 64], 64)
    selecting, estimating = sampled_surface(head, [64], SEED), sampled_surface(head, [48, 64], SEED + 1)
    assert report.offset == -int(selecting[64].mean.argmax())
    assert report.share == pytest.approx(estimating[64].mean[-report.offset], rel=1e-12)
    assert report.share != pytest.approx(selecting[64].mean.max(), rel=1e-6)
    assert report.prediction.exact == pytest.approx(
        [estimating[length].mean[-report.offset] for length in (48, 64)], rel=1e-12
    )


def test_pickles_are_named_and_no_length_is_beyond_reason(folders: Path, tmp_path: Path) -> None:
    (tmp_path / "pytorch_model.bin").write_bytes(b"PK\x03\x04" + bytes(100))
    assert "a pickle, which can run code, is not read" in one_line(
        run_carrier("inspect", str(tmp_path / "pytorch_model.bin"))
    )
    assert "--at needs a whole number from 2 to 1000000" in one_line(
        run_carrier("inspect", str(folders / "llama"), "--counts", str(folders / "text"), "--at", "1000000000")
    )
    assert default_lengths(10_000_000)[-1] == 131_072
