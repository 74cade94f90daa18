"""How often each token of a vocabulary occurs: the content distribution of a layer-0 head.

A llama2.c tokenizer file is an int32 (length of the longest token), then for each token a
float32 score, an int32 length and that many bytes. Encoding is byte-pair merging: a space goes
before the text; characters are tokens, or else their UTF-8 bytes b are tokens b + 3; then the
neighbours whose join has the highest score merge, the leftmost first, until none can.

No token holds a space after another character, so no merge crosses the start of a word, and
words encode one by one to what the whole text does.

Source: karpathy/llama2.c, tokenizer.py (export) and run.c (encode, decode).
"""

from __future__ import annotations

import hashlib
import re
import struct
from dataclasses import dataclass
from functools import cached_property
from importlib.resources import files
from itertools import pairwise
from pathlib import Path

import numpy as np
from jaxtyping import Float64

from bridge.errors import BridgeError
from bridge.sources.checkpoint import file_sha256

_BYTES_FROM = 3
_WORD_START = re.compile(r"(?<=[^ ])(?= )")
_CROSSES_WORD = re.compile(rb"[^ ] ")
_RAW_BYTE = re.compile(rb"<0x([0-9A-F]{2})>")


@dataclass(frozen=True, eq=False)
class TokenWeights:
    """A probability for every token of a vocabulary, with a sentence on where it comes from."""

    weights: Float64[np.ndarray, "token"]
    provenance: str


@dataclass(frozen=True, eq=False)
class Tokenizer:
    """A llama2.c vocabulary: the bytes and the merge score of every token."""

    pieces: tuple[bytes, ...]
    scores: tuple[float, ...]

    def encode(self, text: str) -> list[int]:
        """Tokens of a text, without a beginning-of-text token; the format's space comes first."""
        if not text:
            return []
        cache: dict[str, list[int]] = {}
        tokens: list[int] = []
        for word in _WORD_START.split(" " + text):
            if word not in cache:
                cache[word] = self._encode_word(word)
            tokens += cache[word]
        return tokens

    def decode(self, tokens: list[int]) -> str:
        """The text of tokens, without the space that `encode` put before it."""
        raw = b"".join(
            bytes([int(byte[1], 16)]) if (byte := _RAW_BYTE.fullmatch(self.pieces[token])) else self.pieces[token]
            for token in tokens
        )
        return raw.removeprefix(b" ").decode("utf-8", errors="replace")

    @cached_property
    def _ids(self) -> dict[bytes, int]:
        # The first of equal pieces, hence backwards.
        return {piece: token for token, piece in reversed(list(enumerate(self.pieces)))}

    def _encode_word(self, word: str) -> list[int]:
        tokens: list[int] = []
        for character in word:
            raw = character.encode("utf-8", errors="surrogatepass")
            whole = self._ids.get(raw)
            tokens += [byte + _BYTES_FROM for byte in raw] if whole is None else [whole]
        while True:
            joins = (self._ids.get(self.pieces[a] + self.pieces[b]) for a, b in pairwise(tokens))
            ranked = [(self.scores[join], -place, join) for place, join in enumerate(joins) if join is not None]
            if not ranked:
                return tokens
            _, place, join = max(ranked)
            tokens[-place : -place + 2] = [join]


def read_tokenizer(path: Path) -> Tokenizer:
    """The vocabulary of a llama2.c tokenizer file.

    Raises BridgeError where the file is missing, a git-LFS pointer, cut or no tokenizer, and
    where a token holds a space after another character.
    """
    file_sha256(path)
    raw = path.read_bytes()
    pieces: list[bytes] = []
    scores: list[float] = []
    at = 4
    try:
        (longest,) = struct.unpack_from("<i", raw)
        while at < len(raw):
            score, length = struct.unpack_from("<fi", raw, at)
            if not 0 <= length <= len(raw) - at - 8:
                raise BridgeError(f"{path}: truncated or no llama2.c tokenizer: token {len(pieces)} has {length} bytes")
            pieces.append(raw[at + 8 : at + 8 + length])
            scores.append(score)
            at += 8 + length
    except struct.error as error:
        raise BridgeError(f"{path}: truncated or no llama2.c tokenizer: {len(raw)} bytes ({error})") from None
    if pieces[_BYTES_FROM : _BYTES_FROM + 256] != [b"<0x%02X>" % byte for byte in range(256)]:
        raise BridgeError(f"{path}: no llama2.c tokenizer: tokens 3 to 258 must be the bytes <0x00> to <0xFF>")
    if longest < max(map(len, pieces)):
        raise BridgeError(f"{path}: no llama2.c tokenizer: a token is longer than the {longest} bytes it declares")
    crossing = next((piece for piece in pieces if _CROSSES_WORD.search(piece)), None)
    if crossing is not None:
        raise BridgeError(f"{path}: token {crossing!r} holds a space after another character; such are not read")
    return Tokenizer(tuple(pieces), tuple(scores))


def token_weights(vocabulary: int, tokenizer: Path | None = None, text: Path | None = None) -> TokenWeights:
    """Weights for a vocabulary: of a text (`story`) by a tokenizer, uniform without one.

    Raises BridgeError where a text comes without a tokenizer, the tokenizer belongs to another
    vocabulary, or the text cannot be read.
    """
    if tokenizer is None:
        if text is not None:
            raise BridgeError("--text needs --tokenizer, to count its tokens")
        return uniform(vocabulary)
    reader = read_tokenizer(tokenizer)
    if len(reader.pieces) != vocabulary:
        raise BridgeError(
            f"{tokenizer} has {len(reader.pieces)} tokens, the checkpoint {vocabulary}: give the tokenizer of the model"
        )
    if text is None:
        return unigram(reader, story(), "five short stories that come with carrier")
    try:
        return unigram(reader, text.read_text(encoding="utf-8"), text.name)
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise BridgeError(f"cannot read the text {text}: {reason}") from None


def uniform(vocabulary: int) -> TokenWeights:
    """Every token as often as any other."""
    return TokenWeights(
        np.full(vocabulary, 1 / vocabulary),
        "uniform token weights: a poor stand-in for text, whose rare tokens they overrate; give a tokenizer",
    )


def unigram(tokenizer: Tokenizer, text: str, source: str) -> TokenWeights:
    """Unigram weights with their provenance; `source` names the text."""
    digest = hashlib.sha256(text.encode("utf-8", errors="surrogatepass")).hexdigest()[:16]
    return TokenWeights(
        unigram_weights(tokenizer, text),
        f"unigram token weights of {source} ({len(text)} characters, sha256 {digest})",
    )


def unigram_weights(tokenizer: Tokenizer, text: str) -> Float64[np.ndarray, "token"]:
    """The share of every token among those of a text. Raises BridgeError for an empty text."""
    if not text:
        raise BridgeError("the text to count tokens in is empty")
    counts = np.bincount(tokenizer.encode(text), minlength=len(tokenizer.pieces))
    return counts / counts.sum()


def story() -> str:
    """Five short stories for children, written for this package.

    The public llama2.c models are trained on such. Text of another kind misleads: a token that
    a model never saw in training, such as a brace to a model of stories, has a key of any size
    and can draw all attention at large offsets.
    """
    return (files("bridge.sources") / "story.txt").read_text(encoding="utf-8")
