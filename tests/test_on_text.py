"""`carrier inspect` and `carrier predict` where the model runs on a text, as a person runs them: tiny models on disk.

Reports are held against a call of our own on activations that another cache holds, observations against attention as
transformers computes it.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from conftest import run_carrier
from test_cli import document, one_line
from tiny_models import TINY, VOCABULARY
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from tokenizers.processors import TemplateProcessing

from bridge.calibrated import Asked, report_head
from bridge.text_content import TextOptions, read_text_content

FIRST = 5
"""The token that the tokenizer puts before a text."""
SOME = ("--window", "150", "--windows", "6")
AXIS = ("--lengths", "64,200")
OBSERVED = (8, 9)
"""Seeds of two documents as long as a window without its first token."""
TOLERANCE = 1e-5
"""Of attention: a network computes in float32."""


def words(seed: int, count: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, VOCABULARY, count)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Models with a tokenizer of words, texts beside them, and a folder for what was captured."""
    root = tmp_path_factory.mktemp("on-text")
    tokenizer = Tokenizer(WordLevel({f"w{word}": word for word in range(VOCABULARY)}, unk_token="w0"))
    tokenizer.pre_tokenizer = WhitespaceSplit()
    tokenizer.post_processor = TemplateProcessing(single=f"w{FIRST} $A", special_tokens=[(f"w{FIRST}", FIRST)])
    for name in ("llama", "gpt2", "bloom"):
        TINY[name].saved(root / name)
        tokenizer.save(str(root / name / "tokenizer.json"))
    (root / "text").mkdir()
    for number in range(3):
        (root / "text" / f"{number}").write_text(" ".join(f"w{word}" for word in words(number, 400)))
    (root / "other").mkdir()
    for number in OBSERVED:
        (root / "other" / f"{number}").write_text(" ".join(f"w{word}" for word in words(number, 199)))
    (root / "short").write_text("w1 w2 w3 " * 30)
    (root / "blank").write_text(" \n")
    return root


@pytest.fixture(autouse=True)
def cache(place: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The cache of the commands, one for all."""
    monkeypatch.setenv("CARRIER_CACHE", str(place / "cache"))
    return place / "cache"


def given(place: Path, command: str, *options: str) -> tuple[str, ...]:
    return command, str(place / "llama"), "--text", str(place / "text"), *SOME, *options


@pytest.fixture(scope="module")
def told(place: Path) -> dict[str, Any]:
    """The document of a whole model, and the files written with it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CARRIER_CACHE", str(place / "cache"))
        arguments = given(place, "inspect", *AXIS, "--sort", "class", "--out", str(place / "out"), "--json")
        return document(run_carrier(*arguments, "--workers", "2"))


def without_transformers(folder: Path) -> dict[str, str]:
    """An environment in which transformers cannot be imported."""
    (folder / "sitecustomize.py").write_text(
        """
import sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "transformers":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Absent())
"""
    )
    return dict(os.environ) | {"PYTHONPATH": str(folder)}


KEYS = {
    "layer", "head", "query_fraction", "key_fraction", "offset", "share", "sink_share", "margin", "class", "flags",
    "notes", "observed", "trust", "laws", "lengths", "standard_error", "base", "scaling", "span",
}  # fmt: skip


def test_every_head_of_every_layer_is_reported(told: dict[str, Any], place: Path) -> None:
    heads = told["heads"]
    assert sorted((entry["layer"], entry["head"]) for entry in heads) == [(i, j) for i in (0, 1) for j in range(6)]
    order = [(entry["class"], -entry["observed"]["share"]) for entry in heads]
    assert order == sorted(order)
    assert [entry["head"] for entry in heads] != 2 * list(range(6))
    for entry in heads:
        assert entry.keys() >= KEYS
        assert set(entry["laws"]) == {"windowed", "mean_profile", "constant"}
        assert all(len(law) == len(entry["lengths"]) for law in entry["laws"].values())
        assert (entry["base"], entry["span"]) == (5e5, None) and entry["scaling"].startswith("llama3, factor 8")
        assert entry["trust"].keys() >= {"length", "share", "retrieval", "consistency", "drift", "dependence"}
    model = told["model"]
    assert (model["format"], model["family"], len(model["sha256"])) == ("safetensors", "llama", 64)
    assert (
        "6 windows of 150 tokens of text (3 of 3 documents)" in model["text"] and model["text"] in model["assumptions"]
    )
    assert {Path(file).suffix for file in told["files"]} == {".csv", ".pdf", ".png", ".svg"}
    assert all(Path(file).stat().st_size > 200 for file in told["files"])
    (table,) = (Path(file) for file in told["files"] if file.endswith(".csv"))
    rows = [line.split(",")[0] for line in table.read_text().splitlines() if line[:2] in ("0.", "1.")]
    assert rows == [f"{entry['layer']}.{entry['head']}" for entry in heads]


def test_numbers_are_those_of_a_report_called_for_by_hand(told: dict[str, Any], place: Path, tmp_path: Path) -> None:
    options = TextOptions(text=str(place / "text"), window=150, windows=6, cache=tmp_path)
    content = read_text_content(place / "llama", [1], options)
    assert content.activations.sha256 == told["model"]["sha256"]
    for layer, index, head in content.heads():
        if index not in (0, 3):
            continue
        (entry,) = (e for e in told["heads"] if (e["layer"], e["head"]) == (layer, index))
        report = report_head(layer, index, head, Asked((64, 200), 200))
        seen, prediction = report.seen, report.prediction
        numbers = {
            "offset": report.offset,
            "share": report.share,
            "sink_share": seen.sink,
            "margin": report.margin.value,
            "query_fraction": prediction.carrier.query_fraction,
            "key_fraction": prediction.carrier.key_fraction,
        }
        assert {name: entry[name] for name in numbers} == pytest.approx(numbers, rel=1e-6)
        assert entry["laws"]["windowed"] == pytest.approx(prediction.exact.tolist(), rel=1e-6)
        assert entry["laws"]["mean_profile"] == pytest.approx(prediction.mean_profile.tolist(), rel=1e-6)
        assert entry["laws"]["constant"] == pytest.approx(prediction.constant.tolist(), rel=1e-6)
        assert entry["observed"]["share"] == pytest.approx(seen.share, rel=1e-6)
        assert entry["observed"]["entropy"] == pytest.approx(seen.entropy, rel=1e-6)
        assert (entry["observed"]["offset"], entry["class"]) == (seen.offset, report.kind)
        assert (entry["flags"], entry["notes"]) == (list(report.flags), list(report.trust.notes))


@pytest.mark.case(22)
def test_the_second_time_nothing_runs_and_without_transformers_nothing_can(
    told: dict[str, Any], place: Path, cache: Path, tmp_path: Path
) -> None:
    """What is captured is read again, by tokens: with another first token the model would have to run."""
    env, kept = without_transformers(tmp_path), sorted(cache.rglob("*.npy"))
    assert len(kept) == 2 * 6
    assert told["model"]["first_token"] == FIRST
    assert f"each begins with token {FIRST}, which the tokenizer adds" in told["model"]["text"]
    arguments = given(place, "inspect", *AXIS, "--layer", "1", "--head", "3", "--json")
    (alone,) = document(run_carrier(*arguments, env=env))["heads"]
    (entry,) = (entry for entry in told["heads"] if (entry["layer"], entry["head"]) == (1, 3))
    assert alone == entry
    assert sorted(cache.rglob("*.npy")) == kept
    refused = one_line(run_carrier(*arguments, "--first-token", "none", env=env))
    assert "needs transformers: pip install 'attention-carrier[hf]'" in refused and "layer 0 without --text" in refused
    assert "finds no tokens" in one_line(run_carrier(*arguments[:3], str(place / "blank"), *SOME, env=env))


def attention_under_yarn(place: Path, sequence: np.ndarray) -> np.ndarray:
    """[head query key] of layer 1 by transformers' eager attention, the scaling in its own words."""
    config = transformers.AutoConfig.from_pretrained(place / "llama")
    config.rope_parameters = {
        "rope_type": "yarn",
        "factor": 4.0,
        "rope_theta": 5e5,
        "original_max_position_embeddings": config.max_position_embeddings,
    }
    config._attn_implementation = "eager"
    causal = transformers.AutoModelForCausalLM.from_pretrained(place / "llama", config=config, dtype=torch.float32)
    with torch.no_grad():
        given = torch.tensor(sequence)[None]
        found = causal.eval()(input_ids=given, output_attentions=True, use_cache=False).attentions[1]
    return found[0].double().numpy()


@pytest.mark.case(22)
def test_a_prediction_under_a_scaling_stands_beside_what_the_model_does(place: Path, told: dict[str, Any]) -> None:
    """Observed on two windows of another text, each with the first token that was asked for before it."""
    arguments = given(place, "predict", *AXIS, "--layer", "1", "--head", "3", "--rope-scaling", "yarn:4", "--json")
    observing = ("--observe", "2", "--observe-text", str(place / "other"), "--first-token", "7", "--offset", "-2")
    found = document(run_carrier(*arguments, *observing))
    assert (found["layer"], found["head"], found["offset"], found["lengths"]) == (1, 3, -2, [64, 200])
    assert found["model"]["first_token"] == 7
    assert "each begins with token 7, which the tokenizer does not add" in found["model"]["text"]
    assert "2 windows of 200 tokens of other (2 of 2 documents)" in found["observed_on"]
    laws = found["laws"]
    assert all(len(laws[name]) == 2 for name in ("windowed", "mean_profile", "constant", "unchanged"))
    assert np.abs(np.subtract(laws["windowed"], laws["unchanged"])).max() > 1e-3
    sequences = [np.concatenate([[7], words(seed, 199)]) for seed in OBSERVED]
    attention = [attention_under_yarn(place, sequence)[3] for sequence in sequences]
    for number, length in enumerate(found["lengths"]):
        asking = np.arange(length - length // 16, length)
        rows = [own[asking, asking - 2].mean() for own in attention]
        assert abs(rows[0] - rows[1]) > 100 * TOLERANCE
        assert found["observed"][number] == pytest.approx(np.mean(rows), abs=TOLERANCE)
        assert found["standard_error"][number] == pytest.approx(np.std(rows, ddof=1) / 2**0.5, abs=TOLERANCE)


def test_layer_0_from_weights_alone_can_be_observed(place: Path, told: dict[str, Any]) -> None:
    """The exact law of counted tokens beside what the model does; tokens of the text are independent, so they agree."""
    counts = place / "text" / "0"
    options = ("--counts", str(counts), "--head", "2", "--offset", "1", "--lengths", "64,200")
    seen = ("--observe", "2", "--observe-text", str(place / "other"))
    found = document(run_carrier("predict", str(place / "llama"), *options, *seen, "--json"))
    assert found["laws"].keys() >= {"exact", "constant"} and "windowed" not in found["laws"]
    assert "2 windows of 200 tokens of other" in found["observed_on"]
    # The scatter of two windows is itself known to a factor only.
    error = np.hypot(found["standard_error"], found["sampling_error"])
    assert (np.abs(np.subtract(found["observed"], found["laws"]["exact"])) < np.maximum(10 * error, 0.01)).all()
    assert (np.array(found["observed"]) > 0).all()


def test_a_layer_above_the_first_has_a_text_at_hand(place: Path) -> None:
    arguments = ("inspect", str(place / "llama"), "--layer", "1", "--head", "0", "--windows", "2", *AXIS)
    shown = run_carrier(*arguments, "--first-token", "none")
    assert (shown.returncode, shown.stderr) == (0, "")
    flat = " ".join(shown.stdout.split())
    assert "2 windows of 257 tokens of the documentation topics of Python" in flat
    assert "no token is added before a window" in flat


def test_what_cannot_be_done_is_one_line_with_a_remedy(told: dict[str, Any], place: Path, tmp_path: Path) -> None:
    """None but the last runs the model: what was captured for the whole model is there already."""
    (tmp_path / "file").write_text("")
    llama, texted = ("inspect", str(place / "llama")), given(place, "inspect", *AXIS)
    predict = ("predict", str(place / "llama"))
    for arguments, thing, remedy in (
        ((*llama, "--text", str(place / "short")), "91 tokens, fewer than a window of 257", "--window 91"),
        ((*llama, "--text", str(place / "blank")), "finds no tokens in it", "give another text"),
        ((*llama, "--text", "nonsense"), "no text 'nonsense'", "give a file, a folder, or one of topics"),
        ((*texted, "--window", "127"), "windows of 127 tokens are too short", "give a longer --window"),
        ((*texted, "--windows", "1"), "there is one", "give a longer text"),
        (("inspect", str(place / "gpt2"), "--text", "topics"), "no rotary positions (gpt2)", "without --text"),
        (("predict", str(place / "bloom"), "--layer", "1"), "no rotary positions (bloom)", "without --text"),
        ((*llama, "--window", "200"), "--window is for running the model", "give --text too"),
        ((*llama, "--first-token", "none"), "--first-token is for running the model", "give --text too"),
        ((*texted, "--uniform"), "--uniform is for layer 0 from the weights alone", "drop it"),
        ((*texted, "--counts", str(place / "other")), "--counts is for layer 0 from the weights alone", "drop it"),
        ((*predict, "--observe-text", "topics"), "--observe-text is what --observe N observes on", "give both"),
        ((*texted, "--layer", "2"), "layer 2 does not exist", "layers of this model are 0 to 1"),
        ((*texted, "--layer", "-1"), "layer -1 does not exist", "layers of this model are 0 to 1"),
        ((*texted, "--head", "6"), "head 6 does not exist", "heads of this model are 0 to 5"),
        ((*texted, "--first-token", "abc"), "got 'abc'", "--first-token needs auto, none or a token's number"),
        ((*texted, "--first-token", "31"), "token 31 is to go before every window", "rows 0 to 30"),
        ((*texted, "--base", "500000"), "--base and --rope-scaling are the model's own", "drop them"),
        ((*texted, "--sort", "size"), "got 'size'", "--sort needs head, class"),
        ((*texted, "--sha256", "00"), "was altered or is another file", "not 00"),
        ((*texted, "--lengths", "5,64"), "got 5", "lengths must be 10 or more"),
        ((*texted, "--at", "9"), "lengths must be 10 or more, got 9", "10 or more"),
        ((*texted, "--cache", str(tmp_path / "file"), "--layer", "1"), "cannot write to", "choose another --cache"),
    ):
        said = one_line(run_carrier(*arguments))
        assert thing in said and remedy in said, said
