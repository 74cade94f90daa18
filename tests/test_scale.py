"""Large checkpoints: one layer of a model of 70B shape, in sharded safetensors made sparse, is scanned within bounds.

Memory and bytes read are those of the process and of its workers, as the kernel counts them.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from conftest import ROOT
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace

from bridge.sources.tokens import default_text

LLAMA_70B = {
    "model_type": "llama",
    "hidden_size": 8192,
    "intermediate_size": 28672,
    "num_hidden_layers": 80,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500_000.0,
    "vocab_size": 128_256,
}
WORDS = 5300
"""Distinct tokens of Python's topics, as the tokenizer of a real model finds them."""

# Runs the command in this process and watches it from a thread: the high water of memory, of this process and of its
# workers together, and the bytes that it has read itself. What workers read from pipes is added when they have ended.
MEASURED = """
import json, sys, threading, time
from pathlib import Path
from bridge.cli import main
water, read, ended = {}, 0, threading.Event()
def look():
    global read
    me = Path("/proc/self")
    workers = (me / "task" / str(threading.main_thread().native_id) / "children").read_text().split()
    for who in ("self", *workers):
        try:
            lines = (me.parent / who / "status").read_text().splitlines()
            water[who] = next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))
        except (OSError, StopIteration):
            pass
    if workers or not read:
        now = int((me / "io").read_text().split()[1])
        # Workers that have ended between the two lines are in it: one that is gone is told by the next look.
        before, read = read, now
def watch():
    while not ended.wait(0.05):
        look()
threading.Thread(target=watch, daemon=True).start()
try:
    main()
except SystemExit as stop:
    ended.set()
    if len(water) < 2:
        read = 0
        look()
    print(json.dumps({"kib": sum(water.values()), "each": list(water.values()), "read": read}), file=sys.stderr)
    sys.exit(stop.code)
"""


def shapes(config: dict) -> dict[str, tuple[int, ...]]:
    """The tensors of a Llama model in the order of its shards."""
    width, inner, vocabulary = config["hidden_size"], config["intermediate_size"], config["vocab_size"]
    keys = width // config["num_attention_heads"] * config["num_key_value_heads"]
    found: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (vocabulary, width)}
    for layer in range(config["num_hidden_layers"]):
        for name, shape in (
            ("input_layernorm", (width,)),
            ("self_attn.q_proj", (width, width)),
            ("self_attn.k_proj", (keys, width)),
            ("self_attn.v_proj", (keys, width)),
            ("self_attn.o_proj", (width, width)),
            ("post_attention_layernorm", (width,)),
            ("mlp.gate_proj", (inner, width)),
            ("mlp.up_proj", (inner, width)),
            ("mlp.down_proj", (width, inner)),
        ):
            found[f"model.layers.{layer}.{name}.weight"] = shape
    return found | {"model.norm.weight": (width,), "lm_head.weight": (vocabulary, width)}


def sparse_checkpoint(folder: Path, config: dict) -> int:
    """A folder of such shape: shards of some 5 GB, holes but for what layer 0 needs; the bytes of all shards."""
    folder.mkdir()
    shards: list[dict[str, tuple[int, ...]]] = [{}]
    for name, shape in shapes(config).items():
        if sum(2 * int(np.prod(held)) for held in shards[-1].values()) > 5e9:
            shards.append({})
        shards[-1][name] = shape
    files = [f"model-{number:05}-of-{len(shards):05}.safetensors" for number in range(1, len(shards) + 1)]
    total, rng = 0, np.random.default_rng(0)
    for file, held in zip(files, shards, strict=True):
        header, at = {}, 0
        for name, shape in held.items():
            size = 2 * int(np.prod(shape))
            header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [at, at + size]}
            at += size
        raw = json.dumps(header).encode()
        with (folder / file).open("wb") as shard:
            shard.write(len(raw).to_bytes(8, "little") + raw)
            start = shard.tell()
            shard.truncate(start + at)
            for name in held:
                begin, end = header[name]["data_offsets"]
                if name == "model.embed_tokens.weight":
                    end = begin + 2 * WORDS * config["hidden_size"]
                elif not name.startswith("model.layers.0.") or name.split(".")[-2] not in (
                    "input_layernorm",
                    "q_proj",
                    "k_proj",
                ):
                    continue
                shard.seek(start + begin)
                drawn = rng.standard_normal((end - begin) // 2, dtype=np.float32) * 0.02
                shard.write((drawn.view(np.uint32) >> 16).astype(np.uint16).tobytes())
        total += start + at
    weight_map = {name: file for file, held in zip(files, shards, strict=True) for name in held}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    (folder / "config.json").write_text(json.dumps(config))
    words = dict.fromkeys(word for word, _ in Whitespace().pre_tokenize_str(default_text()[0]))
    tokenizer = Tokenizer(WordLevel({word: token for token, word in enumerate(list(words)[:WORDS])}, unk_token="The"))
    tokenizer.pre_tokenizer = Whitespace()
    tokenizer.save(str(folder / "tokenizer.json"))
    return total


def measured(*arguments: str) -> tuple[dict, dict]:
    """The JSON of a command, and what it took: kib of memory, workers included, and bytes read."""
    command = [sys.executable, "-c", MEASURED, *arguments]
    environment = dict(os.environ) | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout), json.loads(done.stderr.splitlines()[-1])


@pytest.mark.slow
@pytest.mark.case(23)
def test_a_layer_of_70b_shape_is_scanned_within_its_share(tmp_path: Path) -> None:
    """All 64 heads of layer 0: less than 3 % of the bytes, and below 2 GiB of memory, workers together."""
    total = sparse_checkpoint(tmp_path / "70b", LLAMA_70B)
    assert total > 135e9
    told, took = measured("inspect", str(tmp_path / "70b"), "--json")
    print(took, {"share": took["read"] / total})
    assert [entry["head"] for entry in told["heads"]] == list(range(64))
    assert {entry["lengths"][-1] for entry in told["heads"]} == {8192}
    assert took["read"] < 0.03 * total
    assert len(took["each"]) >= 3 and took["kib"] < 2 << 20


@pytest.mark.case(23)
def test_memory_is_bounded_by_the_tensors_of_the_layer(tmp_path: Path) -> None:
    """A model of 17 GB, of which layer 0 and the rows that occur are some 60 MB."""
    config = LLAMA_70B | {"hidden_size": 2048, "num_attention_heads": 16, "intermediate_size": 16_384}
    total = sparse_checkpoint(tmp_path / "small", config)
    assert total > 15e9
    given = ("inspect", str(tmp_path / "small"), "--head", "3", "--lengths", "16,64", "--json")
    told, took = measured(*given)
    assert len(told["heads"]) == 1
    assert took["kib"] < 700 << 10
    assert took["read"] < 0.05 * total
