"""How often each token of a vocabulary occurs in a text: the content distribution of a layer-0 head.

    weight(token) = count(token) / sum of counts,

counted without a beginning-of-text token, which is one of every context and no content of the
rest. An embedding may have more rows than its tokenizer has tokens; those weigh 0.

Source: ours; readers of tokenizers name theirs.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Protocol, runtime_checkable

import numpy as np
from jaxtyping import Float64, Int64

from bridge.errors import BridgeError
from bridge.sources.gguf_tokenizer import gguf_tokenizer
from bridge.sources.hugging_face_tokenizer import hugging_face_tokenizer
from bridge.sources.llama2c_tokenizer import read_tokenizer
from bridge.sources.tensors import open_plain


@runtime_checkable
class TextTokenizer(Protocol):
    """Whatever turns a text into tokens."""

    @property
    def name(self) -> str:
        """What it is, for a person."""
        ...

    @property
    def vocabulary(self) -> int:
        """Number of tokens."""
        ...

    @property
    def first_token(self) -> int | None:
        """The token that it declares to go before every text, None for none."""
        ...

    def encode(self, text: str) -> list[int]:
        """Tokens of a text, none added at its beginning or end."""
        ...


@dataclass(frozen=True, eq=False)
class TokenWeights:
    """A probability for every token of a vocabulary, and a sentence on where it comes from.

    `uniform`: no text was counted.
    """

    weights: Float64[np.ndarray, "token"]
    provenance: str
    uniform: bool = False


def token_weights(
    vocabulary: int,
    tokenizer: TextTokenizer | None,
    text: Path | None,
    default: Callable[[], tuple[str, str]],
) -> TokenWeights:
    """Unigram weights of a text file, or else of the default text with the words that name it.

    Raises BridgeError where there is no tokenizer, where the text cannot be read and as `unigram`.
    """
    if tokenizer is None:
        missing = "--counts needs --tokenizer, to count its tokens" if text else "no tokenizer: give --tokenizer"
        raise BridgeError(f"{missing}, or --uniform for uniform weights (poor)")
    content, source = default() if text is None else (read_text(text), text.name)
    return unigram(tokenizer, content, source, vocabulary)


def unigram(tokenizer: TextTokenizer, text: str, source: str, vocabulary: int) -> TokenWeights:
    """The share of every token among those of a text, for an embedding of `vocabulary` rows; `source` names the text.

    Raises BridgeError where the text holds no token, or one that the embedding has no row for.
    """
    tokens = np.array(tokenizer.encode(text), dtype=np.int64)
    if not len(tokens):
        raise BridgeError(f"the text to count tokens in is empty: {source}; give --counts with another")
    check_rows(tokenizer, tokens, source, vocabulary)
    counts = np.bincount(tokens, minlength=vocabulary)
    digest = hashlib.sha256(text.encode("utf-8", errors="surrogatepass")).hexdigest()[:16]
    padding = (
        "" if tokenizer.vocabulary == vocabulary else f" of {tokenizer.vocabulary}, embedding of {vocabulary} rows"
    )
    return TokenWeights(
        counts / counts.sum(),
        f"unigram token weights of {source} ({len(text)} characters, sha256 {digest}) by {tokenizer.name}{padding}: "
        f"{len(tokens)} tokens, {np.count_nonzero(counts)} distinct, no beginning-of-text token added",
    )


def check_rows(tokenizer: TextTokenizer, tokens: Int64[np.ndarray, "..."], source: str, vocabulary: int) -> None:
    """Raises BridgeError where an embedding of `vocabulary` rows has none for a token found in the text `source`."""
    if tokens.max() >= vocabulary:
        raise BridgeError(
            f"{tokenizer.name} finds token {tokens.max()} in {source}, the embedding has rows 0 to {vocabulary - 1}: "
            "give the tokenizer of the model"
        )


def uniform(vocabulary: int) -> TokenWeights:
    """Every token as often as any other."""
    return TokenWeights(
        np.full(vocabulary, 1 / vocabulary),
        "uniform token weights: a poor stand-in for text, whose rare tokens they overrate; give a tokenizer",
        uniform=True,
    )


def read_tokenizer_at(path: Path) -> TextTokenizer:
    """The tokenizer in a folder or file of Hugging Face, in a GGUF file, or else in one of llama2.c.

    Raises BridgeError where the file is missing, damaged or of no kind that is read.
    """
    if path.is_dir() or path.suffix in (".json", ".model"):
        return hugging_face_tokenizer(path)
    with open_plain(path) as file:
        gguf = file.read(4) == b"GGUF"
    if gguf:
        from bridge.sources.gguf_file import GgufFile

        return gguf_tokenizer(GgufFile.open(path).metadata, path)
    return read_tokenizer(path)


def read_text(path: Path) -> str:
    """A text file. Raises BridgeError where it cannot be read or is not UTF-8."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise BridgeError(f"cannot read the text {path}: {reason}") from None


def documentation_topics() -> tuple[tuple[str, str], ...]:
    """The documentation topics that come with Python, each with its name, in the order of these."""
    from pydoc_data.topics import topics

    return tuple(sorted(topics.items()))


def default_text() -> tuple[str, str]:
    """The documentation topics that come with Python, one after another, and the words that name them."""
    version = ".".join(map(str, sys.version_info[:3]))
    return "\n".join(text for _, text in documentation_topics()), f"the documentation topics of Python {version}"


def story() -> tuple[str, str]:
    """Five short stories for children, written for this package, and the words that name them.

    The public llama2.c models are trained on such. Text of another kind misleads: a token that
    a model never saw in training, such as a brace to a model of stories, has a key of any size
    and can draw all attention at large offsets.
    """
    text = (files("bridge.sources") / "story.txt").read_text(encoding="utf-8")
    return text, "five short stories that come with carrier"
