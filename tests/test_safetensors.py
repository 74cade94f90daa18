"""Safetensors folders: read, refused, fuzzed, and held against the safetensors package and torch.

What is expected comes from the package's own reader, from torch's float8 types, and from bytes put
together here; none of them shares code with the reader.
"""

from __future__ import annotations

import copy
import hashlib
import json
import math
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import ROOT
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import save_file

from bridge.errors import BridgeError
from bridge.sources import safetensors as reader
from bridge.sources.safetensors import INDEX, WEIGHTS, SafetensorsFolder
from bridge.sources.tensors import TensorSource

FLOATS = [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2]
SHAPES = st.lists(st.integers(0, 5), max_size=4).map(tuple)
ENTRY = {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}


def folder_of(folder: Path, tensors: dict[str, torch.Tensor], name: str = WEIGHTS) -> SafetensorsFolder:
    save_file(tensors, folder / name)
    return SafetensorsFolder.open(folder)


def sharded(folder: Path, shards: dict[str, dict[str, torch.Tensor]]) -> None:
    for shard, tensors in shards.items():
        save_file(tensors, folder / shard)
    places = {name: shard for shard, tensors in shards.items() for name in tensors}
    (folder / INDEX).write_text(json.dumps({"metadata": {"total_size": 0}, "weight_map": places}))


def raw_file(header: object, data: bytes) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def refused(folder: Path, raw: bytes, name: str = WEIGHTS) -> str:
    """The one line with which a file is refused; it begins with the file."""
    (folder / name).write_bytes(raw)
    with pytest.raises(BridgeError) as error:
        SafetensorsFolder.open(folder)
    message = str(error.value)
    assert message.startswith(f"{folder / name}: ")
    assert "\n" not in message
    return message.removeprefix(f"{folder / name}: ")


def stored_bytes(tensor: torch.Tensor) -> bytes:
    return tensor.reshape(-1).view(torch.uint8).numpy().tobytes() if tensor.numel() else b""


def random_tensor(dtype: torch.dtype, shape: tuple[int, ...], seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


@pytest.mark.parametrize("dtype", FLOATS)
@settings(max_examples=25)
@given(shape=SHAPES, chunk=st.sampled_from([1, 8, 24, 40, 1 << 22]), data=st.data())
def test_tensors_and_rows_are_those_of_the_package(
    dtype: torch.dtype, shape: tuple[int, ...], chunk: int, data: st.DataObject
) -> None:
    tensors = {"before": torch.ones(3), "w": random_tensor(dtype, shape), "z": torch.ones(1, dtype=torch.float16)}
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(reader, "CHUNK_BYTES", chunk)
        source: TensorSource = folder_of(Path(folder), tensors)
        with safe_open(Path(folder) / WEIGHTS, "pt") as package:
            wanted = package.get_tensor("w").to(torch.float64 if dtype == torch.float64 else torch.float32).numpy()
        whole = source.read("w")
        assert source.names == set(tensors)
        assert source.shape("w") == whole.shape == shape
        assert whole.dtype == wanted.dtype
        np.testing.assert_array_equal(whole, wanted)
        digest = hashlib.sha256(stored_bytes(tensors["w"])).hexdigest()
        assert dict(source.digests) == {"w": digest}
        if shape:
            indices = st.lists(st.integers(0, shape[0] - 1), max_size=9) if shape[0] else st.just([])
            rows = np.array(data.draw(indices), np.int64)
            fresh = SafetensorsFolder.open(Path(folder))
            np.testing.assert_array_equal(fresh.rows("w", rows), wanted[rows])
            assert dict(fresh.digests) == {"w": digest}


@pytest.mark.parametrize(("dtype", "stored"), [(torch.float8_e4m3fn, "F8_E4M3"), (torch.float8_e5m2, "F8_E5M2")])
def test_every_float8_code_is_torchs(tmp_path: Path, dtype: torch.dtype, stored: str) -> None:
    codes = torch.arange(256).to(torch.uint8)
    expected = codes.view(dtype).to(torch.float32)
    is_number = torch.isfinite(expected)
    assert is_number.sum() > 240
    header = {"w": {"dtype": stored, "shape": [int(is_number.sum())], "data_offsets": [0, int(is_number.sum())]}}
    (tmp_path / WEIGHTS).write_bytes(raw_file(header, codes[is_number].numpy().tobytes()))
    read = SafetensorsFolder.open(tmp_path).read("w")
    assert read.tobytes() == expected[is_number].numpy().tobytes()  # bytes: the sign of zero counts
    for code in codes[~is_number].tolist():
        header = {"w": {"dtype": stored, "shape": [1], "data_offsets": [0, 1]}}
        (tmp_path / WEIGHTS).write_bytes(raw_file(header, bytes([code])))
        with pytest.raises(BridgeError, match="not finite"):
            SafetensorsFolder.open(tmp_path).read("w")


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_every_half_precision_number_is_torchs(tmp_path: Path, dtype: torch.dtype) -> None:
    numbers = torch.arange(1 << 16).to(torch.int32).to(torch.uint16).view(dtype)
    numbers = numbers[torch.isfinite(numbers)]
    read = folder_of(tmp_path, {"w": numbers}).read("w")
    assert read.tobytes() == numbers.to(torch.float32).numpy().tobytes()


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("dtype", FLOATS)
def test_numbers_that_are_not_finite_are_refused_where_they_are_asked_for(tmp_path: Path, dtype: torch.dtype) -> None:
    tensor = random_tensor(dtype, (5, 2))
    tensor[3, 1] = math.nan
    source = folder_of(tmp_path, {"w": tensor})
    with pytest.raises(BridgeError, match=r"model\.safetensors: 'w' holds numbers that are not finite"):
        source.read("w")
    with pytest.raises(BridgeError, match="not finite"):
        source.rows("w", np.array([1, 3]))
    assert source.rows("w", np.array([4, 2])).shape == (2, 2)


def test_a_shard_that_is_not_needed_is_not_opened(tmp_path: Path) -> None:
    wanted = random_tensor(torch.bfloat16, (4, 3))
    sharded(tmp_path, {name: {name[0]: wanted} for name in ("a.safetensors", "b.safetensors", "c.safetensors")})
    (tmp_path / "b.safetensors").unlink()
    (tmp_path / "c.safetensors").write_bytes(b"garbage")
    source = SafetensorsFolder.open(tmp_path)
    assert source.names == {"a", "b", "c"}
    np.testing.assert_array_equal(source.read("a"), wanted.float().numpy())
    assert source.path_of("c") == tmp_path / "c.safetensors"
    with pytest.raises(BridgeError, match=r"b\.safetensors: no such file; it should hold 'b': download"):
        source.read("b")
    with pytest.raises(BridgeError, match=r"c\.safetensors: .*"):
        source.shape("c")


def test_a_tensor_the_index_misplaces_is_named(tmp_path: Path) -> None:
    sharded(tmp_path, {"a.safetensors": {"a": torch.ones(2)}, "b.safetensors": {"b": torch.ones(2)}})
    (tmp_path / INDEX).write_text(json.dumps({"weight_map": {"a": "b.safetensors", "b": "b.safetensors"}}))
    source = SafetensorsFolder.open(tmp_path)
    with pytest.raises(BridgeError, match=r"b\.safetensors: damaged: 'a' is not in it, where model.*json places it"):
        source.read("a")
    assert source.read("b").tolist() == [1, 1]


def test_one_file_is_preferred_to_an_index_and_an_index_to_others(tmp_path: Path) -> None:
    sharded(tmp_path, {"a.safetensors": {"a": torch.ones(2)}, "b.safetensors": {"b": torch.ones(2)}})
    assert SafetensorsFolder.open(tmp_path).names == {"a", "b"}
    assert folder_of(tmp_path, {"whole": torch.ones(2)}).names == {"whole"}


def test_a_single_file_of_another_name_is_read_and_two_are_not(tmp_path: Path) -> None:
    assert folder_of(tmp_path, {"w": torch.ones(2)}, "gpt.safetensors").read("w").tolist() == [1, 1]
    save_file({"v": torch.ones(2)}, tmp_path / "other.safetensors")
    with pytest.raises(BridgeError, match=r"2 \.safetensors files and no model\.safetensors\.index\.json"):
        SafetensorsFolder.open(tmp_path)


def test_folders_without_weights_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BridgeError, match=r"no weights: expected model\.safetensors"):
        SafetensorsFolder.open(tmp_path)
    (tmp_path / "pytorch_model-00001-of-00002.bin").write_bytes(b"")
    with pytest.raises(
        BridgeError, match=r"pickled weights are not read \(they can run code\): convert to safetensors"
    ):
        SafetensorsFolder.open(tmp_path)
    with pytest.raises(BridgeError, match="no such folder"):
        SafetensorsFolder.open(tmp_path / "absent")
    with pytest.raises(BridgeError, match="a file: give the folder"):
        SafetensorsFolder.open(tmp_path / "pytorch_model-00001-of-00002.bin")


@pytest.mark.parametrize(
    "shard", ["../w.safetensors", "/w.safetensors", "..", "a\\w.safetensors", "w.bin", "", 3, None, "w\0.safetensors"]
)
def test_shards_are_plain_names_beside_the_index(tmp_path: Path, shard: object) -> None:
    inside = tmp_path / "model"
    inside.mkdir()
    save_file({"w": torch.ones(1)}, tmp_path / "w.safetensors")
    index = json.dumps({"weight_map": {"w": shard}}).encode()
    assert "'w' is not the plain name of a .safetensors file" in refused(inside, index, INDEX)


@pytest.mark.parametrize("index", [b"", b"[]", b"{}", b'{"weight_map": 3}', b"\xff", b"[" * 100_000, b'{"a":1,"a":1}'])
def test_an_index_that_is_none_is_refused(tmp_path: Path, index: bytes) -> None:
    assert refused(tmp_path, index, INDEX).startswith("damaged: ")


def test_files_of_another_length_are_refused(tmp_path: Path) -> None:
    whole = raw_file({"w": ENTRY}, bytes(24))
    (tmp_path / WEIGHTS).write_bytes(whole)
    assert SafetensorsFolder.open(tmp_path).read("w").shape == (2, 3)
    size = len(whole)
    assert f"truncated: {size - 1} bytes, its header asks for {size}:" in refused(tmp_path, whole[:-1])
    assert f"bytes after its end: {size + 1} bytes, its header asks for {size}:" in refused(tmp_path, whole + b"\0")
    assert f"truncated: 30 bytes, its header alone ends at {size - 24}:" in refused(tmp_path, whole[:30])
    for length in range(8):
        assert "truncated" in refused(tmp_path, bytes(length))
    pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"0" * 64 + b"\nsize 12345678"
    assert "git lfs pull" in refused(tmp_path, pointer.ljust(130, b"\n"))


def test_a_file_cut_after_it_was_opened_is_refused(tmp_path: Path) -> None:
    source = folder_of(tmp_path, {"w": torch.ones(50)})
    assert source.read("w").sum() == 50
    (tmp_path / WEIGHTS).write_bytes((tmp_path / WEIGHTS).read_bytes()[:-1])
    with pytest.raises(BridgeError, match="became shorter while 'w' was read"):
        source.read("w")


def two(first: list[int], second: list[int]) -> dict[str, object]:
    return {
        "a": {"dtype": "U8", "shape": [first[1] - first[0]], "data_offsets": first},
        "b": {"dtype": "U8", "shape": [second[1] - second[0]], "data_offsets": second},
    }


@pytest.mark.parametrize(
    ("header", "reason"),
    [
        (b"{", "no JSON"),
        (b"\xff{}", "no JSON"),
        ("{}".encode("utf-16"), "no JSON"),
        (b"[]", "no JSON object"),
        (b'{"w":' * 100_000, "no JSON where it should be (maximum recursion"),
        (b'{"w":%s,"w":%s}' % ((json.dumps(ENTRY).encode(),) * 2), "a name twice"),
        (b'{"w":{"dtype":"F32","shape":[2,3],"shape":[2,3],"data_offsets":[0,24]}}', "a name twice"),
        (b'{"w":{"dtype":"U8","shape":[%s],"data_offsets":[0,24]}}' % (b"9" * 5000), "a number of 5000 digits"),
        ({"w": 3}, "needs a dtype"),
        ({"w": {}}, "needs a dtype"),
        ({"w": ENTRY | {"dtype": ["F32"]}}, "needs a dtype"),
        ({"w": ENTRY | {"dtype": "F33"}}, "the dtype of 'w' is 'F33', expected one of F64, "),
        ({"w": ENTRY | {"shape": [2.0, 3]}}, "a shape of whole numbers"),
        ({"w": ENTRY | {"shape": [-2, -3]}}, "a shape of whole numbers"),
        ({"w": ENTRY | {"shape": [True, 6]}}, "a shape of whole numbers"),
        ({"w": ENTRY | {"shape": [[2], 3]}}, "a shape of whole numbers"),
        ({"w": ENTRY | {"shape": [2, 4]}}, "'w' has 24 bytes, its shape and dtype need 32"),
        ({"w": ENTRY | {"shape": [2, 2]}}, "'w' has 24 bytes, its shape and dtype need 16"),
        ({"w": ENTRY | {"shape": [1] * 65}}, "more than 64 axes"),
        ({"w": ENTRY | {"shape": [0, 1 << 62], "data_offsets": [0, 0]}}, "numbers"),
        ({"w": ENTRY | {"shape": [10**19, 10**19]}}, "numbers"),
        ({"w": {"dtype": "F4", "shape": [49], "data_offsets": [0, 24]}}, "need 24.5"),
        ({"w": ENTRY | {"data_offsets": [0, 24, 48]}}, "two such data_offsets"),
        ({"w": ENTRY | {"data_offsets": [24, 0]}}, "has -24 bytes"),
        ({"w": ENTRY | {"data_offsets": [24, 48]}}, "overlap or hole: 'w' starts at byte"),
        (two([0, 13], [12, 24]), "overlap or hole: 'b'"),
        (two([0, 11], [12, 24]), "overlap or hole: 'b'"),
        (two([1, 12], [12, 24]), "overlap or hole: 'a'"),
        ({"w": ENTRY, "__metadata__": 3}, "no table of text"),
        ({"w": ENTRY, "__metadata__": {"format": 3}}, "no table of text"),
    ],
)
def test_damaged_headers_are_refused_for_their_reason(tmp_path: Path, header: object, reason: str) -> None:
    assert reason in refused(tmp_path, raw_file(header, bytes(24)))


@pytest.mark.parametrize(
    "header", [{"w": ENTRY}, two([0, 12], [12, 24]), two([12, 24], [0, 12]), {"w": ENTRY, "__metadata__": {"a": "b"}}]
)
def test_whole_headers_beside_the_damaged_ones_are_read(tmp_path: Path, header: dict[str, object]) -> None:
    (tmp_path / WEIGHTS).write_bytes(raw_file(header, bytes(24)))
    assert SafetensorsFolder.open(tmp_path).names == set(header) - {"__metadata__"}


def test_a_header_beyond_the_limit_is_refused_unread(tmp_path: Path) -> None:
    for size in (100_000_001, (1 << 64) - 1):
        assert "no length of a header" in refused(tmp_path, struct.pack("<Q", size) + bytes(100))


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.int64, torch.bool, torch.float8_e4m3fnuz])
def test_other_types_are_listed_and_not_read(tmp_path: Path, dtype: torch.dtype) -> None:
    source = folder_of(tmp_path, {"w": torch.ones(3, 2).to(dtype), "float": torch.ones(1)})
    assert source.names == {"w", "float"}
    assert source.shape("w") == (3, 2)
    for read in (source.read, lambda name: source.rows(name, np.array([0]))):
        with pytest.raises(BridgeError, match="quantized weights need their scales, which this version does not read"):
            read("w")
    assert source.read("float") == 1
    assert dict(source.digests).keys() == {"float"}


@pytest.mark.parametrize("scale", ["q.weight_scale_inv", "q.weight_scale", "q.scale_weight", "q.weight.scale"])
def test_scaled_float8_is_refused_and_plain_float8_read(tmp_path: Path, scale: str) -> None:
    beside = {name: torch.ones(2, 2).to(torch.float8_e4m3fn) for name in ("q.weight", "k.weight")}
    source = folder_of(tmp_path, beside | {scale: torch.ones(1)})
    with pytest.raises(BridgeError, match=r"'q\.weight' is stored as F8_E4M3: quantized weights need their scales"):
        source.read("q.weight")
    assert source.read("k.weight").sum() == 4
    assert folder_of(tmp_path, beside | {"attention.k_scale": torch.ones(1)}).read("q.weight").sum() == 4


def test_absent_tensors_and_rows_are_named(tmp_path: Path) -> None:
    source = folder_of(tmp_path, {"model.embed_tokens.weight": torch.ones(3, 2), "scalar": torch.tensor(2.0)})
    for ask in (source.read, source.shape, source.path_of):
        with pytest.raises(BridgeError, match=r"model\.safetensors: no tensor 'model\.embed\.weight', the nearest is"):
            ask("model.embed.weight")
    with pytest.raises(BridgeError, match="no tensor 'lm_head', none is like it: download"):
        source.read("lm_head")
    for row in (3, -1):
        with pytest.raises(BridgeError, match=f"has no row {row}: its 3 rows count from 0"):
            source.rows("model.embed_tokens.weight", np.array([0, row]))
    with pytest.raises(BridgeError, match="is a single number and has no rows"):
        source.rows("scalar", np.array([0]))
    assert source.read("scalar").shape == ()


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("fuzzed")


def outcome_of(folder: Path, raw: bytes) -> str:
    """How far a file is read: all that a person may ask of it raises nothing but a BridgeError of one line."""
    (folder / WEIGHTS).write_bytes(raw)
    outcome = "refused"
    try:
        source = SafetensorsFolder.open(folder)
        for name in source.names:
            outcome = "opened"
            source.shape(name)
            source.read(name)
            outcome = "read"
    except BridgeError as error:
        assert "\n" not in str(error)
        assert len(str(error)) < 1000
    return outcome


@settings(max_examples=600)
@given(header=st.binary(max_size=80), data=st.binary(max_size=8), claimed=st.none() | st.integers(0, (1 << 64) - 1))
def test_random_bytes_raise_nothing_else(scratch: Path, header: bytes, data: bytes, claimed: int | None) -> None:
    outcome_of(scratch, struct.pack("<Q", len(header) if claimed is None else claimed) + header + data)


LEAVES = (
    st.none()
    | st.booleans()
    | st.integers(-3, 30)
    | st.integers(-(10**25), 10**25)
    | st.sampled_from([1 << 31, 1 << 32, 1 << 59, 1 << 62, 1 << 63, 1 << 64])
    | st.floats()
    | st.sampled_from(["F64", "BF16", "F8_E4M3", "F4", "I32", "a\nb", "\ud800", "x" * 3000])
)
VALUES = LEAVES | st.lists(LEAVES | st.lists(LEAVES, max_size=2), max_size=3) | st.dictionaries(st.text(), LEAVES)


@st.composite
def mutated_headers(draw: st.DrawFn) -> dict[str, object]:
    """A valid header of three tensors over 28 bytes, in which up to three values are put at random places."""
    header: dict[str, object] = {
        "__metadata__": {"format": "pt"},
        "w": copy.deepcopy(ENTRY),
        "b": {"dtype": "BF16", "shape": [2], "data_offsets": [24, 28]},
        "none": {"dtype": "F8_E5M2", "shape": [3, 0], "data_offsets": [28, 28]},
    }
    for _ in range(draw(st.integers(0, 3))):
        node: dict | list = header
        while True:
            keys = list(node) if isinstance(node, dict) else list(range(len(node)))
            key = draw(st.sampled_from(keys))
            if not isinstance(node[key], dict | list) or not node[key] or draw(st.booleans()):
                break
            node = node[key]
        node[key] = draw(VALUES)
        if isinstance(node, dict) and draw(st.booleans()):
            node[draw(st.sampled_from(["", "a\nb", "\ud800", "n" * 3000, "\u2028"]))] = node.pop(key)
            if not node:
                break
    return header


def test_mutated_headers_raise_nothing_else(scratch: Path) -> None:
    outcomes: set[str] = set()

    @settings(max_examples=600)
    @given(header=mutated_headers(), data=st.binary(min_size=28, max_size=28))
    def case(header: dict[str, object], data: bytes) -> None:
        outcomes.add(outcome_of(scratch, raw_file(header, data)))

    case()
    assert outcomes == {"refused", "opened", "read"}  # the mutations reach every step


LARGE = """
import json, resource, struct, sys
from pathlib import Path
import numpy as np
from bridge.sources.safetensors import SafetensorsFolder
folder, embedding_rows, padding = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
small, embedding = 1 << 20, embedding_rows * 8192
stops = np.cumsum([0, padding, embedding, small]).tolist()
entries = {"padding": ("U8", [padding]), "embedding": ("BF16", [embedding_rows, 4096]), "small": ("F32", [512, 512])}
header = {name: {"dtype": dtype, "shape": shape, "data_offsets": [start, stop]}
          for (name, (dtype, shape)), start, stop in zip(entries.items(), stops, stops[1:])}
text = json.dumps(header).encode()
with (folder / "model.safetensors").open("wb") as file:
    file.write(struct.pack("<Q", len(text)) + text)
    file.truncate(8 + len(text) + stops[-1])
    file.seek(8 + len(text) + padding + 8192 * (embedding_rows - 1))
    file.write(b"\\x80\\x3f" * 4096)
source = SafetensorsFolder.open(folder)
assert source.read("small").shape == (512, 512)
rows = source.rows("embedding", np.linspace(0, embedding_rows - 1, 100).astype(np.int64))
assert rows.shape == (100, 4096) and rows.sum() == 4096 and (rows[-1] == 1).all()
if len(sys.argv) > 4:
    source.read("embedding")
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)
"""


def peak_mib(folder: Path, embedding_bytes: int, padding: int, *whole: str) -> int:
    """The greatest resident memory of a process that reads, started by a shell: it counts its parent's before exec."""
    sizes = (str(embedding_bytes // 8192), str(padding))
    run = subprocess.run(
        ["sh", "-c", '"$@"; exit $?', "sh", sys.executable, "-c", LARGE, str(folder), *sizes, *whole],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stderr
    return int(run.stdout)


def test_memory_holds_the_rows_and_not_the_file(tmp_path: Path) -> None:
    assert peak_mib(tmp_path, 200 << 20, 400 << 20) < 300
    # Positive control: the same tensor read whole, as float32.
    assert peak_mib(tmp_path, 200 << 20, 0, "whole") > 400


@pytest.mark.slow
def test_memory_holds_the_rows_and_not_a_file_of_3_gb(tmp_path: Path) -> None:
    assert peak_mib(tmp_path, 2 << 30, 1 << 30) < 300
