"""Texts as windows of tokens: what a model is run on.

    text -> documents -> shares of their bytes -> tokens -> windows of equal length

Windows come from as many documents as there are, since what two windows of one document have in
common is no property of the model. A text may be larger than memory: of a share no more is read
than a window needs.

Source: ours; `bridge.sources.document` (how a part is read).
"""

from __future__ import annotations

import hashlib
import os
import platform
import sysconfig
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain, islice, pairwise, zip_longest
from pathlib import Path

import numpy as np
from jaxtyping import Int64

from bridge.errors import BridgeError
from bridge.sources.document import Document, HeldDocument, file_document, unreadable
from bridge.sources.tokens import TextTokenizer, check_rows, default_text, documentation_topics, story

_LINE = 400
"""Characters within which a share that begins inside a line looks for the next one."""
_BYTES_PER_TOKEN = 8
"""Bytes first read for each token that is needed: twice what a token of prose has."""
_UNSETTLED = 8
"""Tokens left out before a cut: a word that is cut has other tokens than the whole one, and few words have more."""


@dataclass(frozen=True)
class Text:
    """Documents in order. `skipped` names the files beside them that hold no UTF-8 text, empty ones included."""

    name: str
    documents: tuple[Document, ...]
    skipped: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class Windows:
    """Stretches of tokens of one length, no token of a text in two; neighbours differ in document where possible.

    `documents` names the document of each, `first_token` is the one added before each, column 0
    of `tokens`, None where none is, and `provenance` a sentence on where they come from.
    """

    tokens: Int64[np.ndarray, "window position"]
    documents: tuple[str, ...]
    first_token: int | None
    provenance: str

    @property
    def digest(self) -> str:
        """sha256 in hexadecimal of the tokens and their shape."""
        return _digest(self.tokens)

    @property
    def distinct_documents(self) -> int:
        """Number of documents that they are from."""
        return len(set(self.documents))


def open_text(source: str) -> Text:
    """The text of a file, of a folder's files, or one at hand by its name: "topics", "stories", "source".

    A folder is read with the folders in it and without hidden files, in the order of paths. A path
    that exists is preferred to a name. Raises BridgeError for one that is neither, and where
    nothing can be read or is UTF-8.
    """
    path = Path(source)
    if not os.path.exists(source):
        if source not in _AT_HAND:
            raise BridgeError(f"no text {source!r:.200}: give a file, a folder, or one of {', '.join(_AT_HAND)}")
        return _AT_HAND[source]()
    if path.is_dir():
        return _folder(path, path.resolve().name, _files(path))
    return Text(path.name, (file_document(path, path.name),))


def cut_windows(
    text: Text, tokenizer: TextTokenizer, vocabulary: int, length: int, most: int, first_token: int | None
) -> Windows:
    """At most `most` windows of `length` tokens, the first one included, for an embedding of `vocabulary` rows.

    Every document that holds a window gives one before any gives two; where there are more such
    documents than windows, they are spread over the text, else each is cut into equal shares.

    Raises BridgeError for a length below 2 or no windows, where no document is as long as a
    window, and where the embedding has no row for a token.
    """
    _check(length, most)
    body = length - (first_token is not None)
    holding = _holding(text.documents, tokenizer, body, most)
    if not holding:
        raise _too_short(text, tokenizer, length, body)
    order = _interleaved(_shared_out(holding, tokenizer, body, most))
    tokens = np.array([window for _, window in order], dtype=np.int64)
    check_rows(tokenizer, tokens, text.name, vocabulary)
    if first_token is not None and not 0 <= first_token < vocabulary:
        remedy = "the tokenizer of the model" if first_token == tokenizer.first_token else "another --first-token"
        raise BridgeError(
            f"token {first_token} is to go before every window, the embedding has rows 0 to {vocabulary - 1}: "
            f"give {remedy}"
        )
    names = tuple(document.name for document, _ in order)
    used = f"{len(set(names))} of {len(text.documents)} documents"
    skipped = f", {len(text.skipped)} files skipped" if text.skipped else ""
    added = "which the tokenizer adds" if first_token == tokenizer.first_token else "which the tokenizer does not add"
    return _windows(tokens, names, first_token, f"{text.name} ({used}{skipped}) by {tokenizer.name}", added)


def join_windows(
    tokens: Sequence[Int64[np.ndarray, "..."]], length: int, most: int, first_token: int | None, name: str
) -> Windows:
    """At most `most` windows of `length` tokens of sequences joined in order, such as a model sampled; what is left
    over is dropped.

    Each begins with `first_token` where one is given, and `length` counts it; `name` says what the
    sequences are. Raises BridgeError for a length below 2 and where there is not one window.
    """
    _check(length, most)
    body = length - (first_token is not None)
    joined = np.concatenate([np.zeros(0, dtype=np.int64), *tokens])
    count = min(len(joined) // body, most)
    if not count:
        held = len(joined) + length - body
        raise BridgeError(f"{name}: {held} tokens, fewer than a window of {length}: {_remedy(held)}")
    source = f"{name} ({len(joined)} tokens in {len(tokens)} sequences, joined)"
    return _windows(joined[: count * body].reshape(count, body), (name,) * count, first_token, source, "which is added")


def _topics() -> Text:
    documents = tuple(HeldDocument(name, topic.encode()) for name, topic in documentation_topics())
    return Text(default_text()[1], documents)


def _stories() -> Text:
    text, name = story()
    return Text(name, tuple(HeldDocument(f"story {i}", one.encode()) for i, one in enumerate(text.split("\n\n"), 1)))


def _source() -> Text:
    folder = Path(sysconfig.get_path("stdlib"))
    name = f"the source of the standard library of Python {platform.python_version()}"
    return _folder(folder, name, sorted(folder.glob("*.py")))


_AT_HAND: dict[str, Callable[[], Text]] = {"topics": _topics, "stories": _stories, "source": _source}


def _files(folder: Path) -> list[Path]:
    """Files in a folder and the folders in it, no hidden ones and none twice, in the order of their paths."""

    def stop(error: OSError) -> None:
        raise unreadable(Path(error.filename), error)

    found: list[Path] = []
    for inner, folders, names in os.walk(folder, onerror=stop):
        folders[:] = [name for name in folders if not name.startswith(".")]
        found += [Path(inner, name) for name in names if not name.startswith(".")]
    if not found:
        raise BridgeError(f"{folder}: a folder without files, hidden ones apart: give another text")
    # A link to a file that is there, too, would count its text twice.
    own_first = sorted(found, key=lambda path: (path.is_symlink(), path))
    return sorted({path.resolve(): path for path in reversed(own_first)}.values())


def _folder(folder: Path, name: str, files: Iterable[Path]) -> Text:
    documents: list[Document] = []
    skipped: list[str] = []
    for path in files:
        inside = path.relative_to(folder).as_posix()
        try:
            documents.append(file_document(path, inside))
        except BridgeError:
            skipped.append(inside)
    if not documents:
        raise BridgeError(f"{folder}: none of its {len(skipped)} files holds UTF-8 text: give another text")
    return Text(name, tuple(documents), tuple(skipped))


def _holding(documents: Sequence[Document], tokenizer: TextTokenizer, body: int, most: int) -> list[Document]:
    """At most `most` documents that hold a window, evenly spread: the first ones of equal stretches, then the next."""

    def held(index: int) -> bool:
        return len(_beginning(documents[index], tokenizer, body, 0, documents[index].size)) >= body

    edges = [*_evenly(len(documents), most), len(documents)]
    rows = zip_longest(*(filter(held, range(*stretch)) for stretch in pairwise(edges)))
    found = islice((index for index in chain.from_iterable(rows) if index is not None), most)
    return [documents[index] for index in sorted(found)]


def _evenly(count: int, most: int) -> list[int]:
    """At most `most` of `count` indices at equal distances."""
    return [i * count // min(count, most) for i in range(min(count, most))]


def _shared_out(
    documents: Sequence[Document], tokenizer: TextTokenizer, body: int, most: int
) -> list[tuple[Document, list[list[int]]]]:
    """Windows of each document: equally many, and what a short one cannot give is left to longer ones."""
    windows: list[list[list[int]]] = [[] for _ in documents]
    left = most
    for rank, index in enumerate(sorted(range(len(documents)), key=lambda index: documents[index].size)):
        windows[index] = _spread(documents[index], tokenizer, body, left // (len(documents) - rank))
        left -= len(windows[index])
    return list(zip(documents, windows, strict=True))


def _spread(document: Document, tokenizer: TextTokenizer, body: int, most: int) -> list[list[int]]:
    """At most `most` windows of a document that holds one, each at the beginning of an equal share of its bytes.

    A document without room in such shares is tokenised whole, and windows follow one another.
    """
    if most > 1 and document.size <= 2 * most * _first_piece(body):
        tokens = tokenizer.encode(document.read(0, document.size))
        return [tokens[i * body : (i + 1) * body] for i in _evenly(len(tokens) // body, most)]
    edges = [i * document.size // most for i in range(most + 1)]
    shares = (_beginning(document, tokenizer, body, start, stop) for start, stop in pairwise(edges))
    return [share[:body] for share in shares if len(share) >= body] or _spread(document, tokenizer, body, 1)


def _beginning(document: Document, tokenizer: TextTokenizer, count: int, start: int, stop: int) -> list[int]:
    """Tokens at the beginning of a share of a document's bytes: `count` or more, or all where it holds fewer."""
    size = _first_piece(count)
    while True:
        end = min(start + size, stop)
        text = document.read(start, end)
        if start:
            text = text[text.find("\n", 0, _LINE) + 1 :]
        tokens = tokenizer.encode(text)
        if end < document.size:
            tokens = tokens[:-_UNSETTLED]
        if len(tokens) >= count or end == stop:
            return tokens
        size *= 2


def _first_piece(count: int) -> int:
    """Bytes in which `count` tokens are looked for first."""
    return _LINE + _BYTES_PER_TOKEN * count


def _interleaved(windows: Sequence[tuple[Document, list[list[int]]]]) -> list[tuple[Document, list[int]]]:
    """Windows in turn, each of the document with most of them left, that of the one before left out if it can be."""
    left = [list(held) for _, held in windows]
    order: list[tuple[Document, list[int]]] = []
    last = -1
    for _ in range(sum(map(len, left))):
        others = (index for index, held in enumerate(left) if held and index != last)
        last = max(others, key=lambda index: len(left[index]), default=last)
        order.append((windows[last][0], left[last].pop(0)))
    return order


def _windows(
    tokens: Int64[np.ndarray, "window _"], documents: tuple[str, ...], first_token: int | None, source: str, added: str
) -> Windows:
    """Windows, with the first token put before each, and the sentence on them; `added` says whose doing that is."""
    words = "no token is added before a window"
    if first_token is not None:
        tokens, words = np.insert(tokens, 0, first_token, axis=1), f"each begins with token {first_token}, {added}"
    count, length = tokens.shape
    provenance = f"{count} windows of {length} tokens of {source}, sha256 {_digest(tokens)[:16]}: {words}"
    return Windows(tokens, documents, first_token, provenance)


def _digest(tokens: Int64[np.ndarray, "window position"]) -> str:
    content = np.array(tokens.shape, dtype="<i8").tobytes() + tokens.astype("<i8").tobytes()
    return hashlib.sha256(content).hexdigest()


def _check(length: int, most: int) -> None:
    if length < 2:
        raise BridgeError(f"windows of {length} tokens: a window has 2 or more: give --window with a larger number")
    if most < 1:
        raise BridgeError(f"{most} windows: give 1 or more")


def _too_short(text: Text, tokenizer: TextTokenizer, length: int, body: int) -> BridgeError:
    longest = max((len(_beginning(one, tokenizer, body, 0, one.size)) for one in text.documents), default=0)
    if not longest:
        return BridgeError(f"{text.name}: {tokenizer.name} finds no tokens in it: give another text")
    held = longest + length - body
    return BridgeError(
        f"{text.name}: its longest document has {held} tokens, fewer than a window of {length}: {_remedy(held)}"
    )


def _remedy(held: int) -> str:
    return f"give a longer text or --window {held}" if held >= 2 else "give a longer text"
