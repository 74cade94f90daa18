"""Byte-pair merging by score, and the llama2.c file that holds such a vocabulary.

A llama2.c tokenizer file is an int32 (length of the longest token), then for each token a
float32 score, an int32 length and that many bytes; the byte b is token b + 3, and token 1 begins
every text. GGUF files of sentencepiece vocabularies hold the same in another order.

Encoding: a space goes before the text; then the neighbours whose join is the token of highest
score merge, the leftmost first, until none can; a character left over that is no token becomes
its UTF-8 bytes. A merge across two characters needs a token that holds them side by side, so a
text may be cut wherever none does, and every stretch encodes alone to what it does in the whole.

Source: karpathy/llama2.c, tokenizer.py (export) and run.c (encode, decode, generate); sentencepiece,
bpe_model.cc.
"""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass
from functools import cached_property
from heapq import heapify, heappop, heappush
from pathlib import Path

from bridge.errors import BridgeError
from bridge.sources.tensors import open_plain

_BEGINNING = 1
_BYTES_FROM = 3


@dataclass(frozen=True, eq=False)
class MergeTokenizer:
    """A vocabulary that encodes by merging: the bytes and the score of every token.

    A piece that is empty is of a token that no text merges into. `byte_tokens` are the tokens of
    the bytes 0 to 255, `space` what a space is written as in pieces, `leading_space` whether one
    is put before a text, `whole` the tokens that are found in a text before anything merges, and
    `first_token` the one that goes before every text, None for none; `encode` does not add it.
    """

    name: str
    pieces: tuple[bytes, ...]
    scores: tuple[float, ...]
    byte_tokens: tuple[int, ...]
    space: str = " "
    leading_space: bool = True
    whole: tuple[int, ...] = ()
    first_token: int | None = None

    @property
    def vocabulary(self) -> int:
        """Number of tokens."""
        return len(self.pieces)

    def encode(self, text: str) -> list[int]:
        """Tokens of a text, without a beginning-of-text token."""
        cache: dict[str, list[int]] = {}
        tokens: list[int] = []
        # Split at its one group, a pattern yields text and matches by turns.
        for place, part in enumerate(self._whole_pattern.split(text.replace(" ", self.space))):
            if place % 2:
                tokens.append(self._ids[part])
            elif part:
                for stretch in self._stretches(self.space + part if self.leading_space else part):
                    if stretch not in cache:
                        cache[stretch] = self._merge(stretch)
                    tokens += cache[stretch]
        return tokens

    def decode(self, tokens: list[int]) -> str:
        """The text of tokens, without the space that `encode` put before it."""
        raw_bytes = {token: bytes([byte]) for byte, token in enumerate(self.byte_tokens)}
        raw = b"".join(raw_bytes.get(token, self.pieces[token]) for token in tokens)
        text = raw.decode("utf-8", errors="replace").replace(self.space, " ")
        return text.removeprefix(" ") if self.leading_space else text

    @cached_property
    def _ids(self) -> dict[str, int]:
        """Tokens by their text; bytes that are no UTF-8 are no join of characters."""
        ids: dict[str, int] = {}
        for token, piece in enumerate(self.pieces):
            try:
                ids.setdefault(piece.decode("utf-8", errors="surrogatepass"), token)
            except UnicodeDecodeError:
                continue
        return ids

    @cached_property
    def _pairs(self) -> frozenset[str]:
        """Every two characters that some token holds side by side."""
        return frozenset(piece[i : i + 2] for piece in self._ids for i in range(len(piece) - 1))

    @cached_property
    def _whole_pattern(self) -> re.Pattern[str]:
        texts = sorted((self.pieces[token].decode("utf-8", "surrogatepass") for token in self.whole), key=len)
        return re.compile(f"({'|'.join(map(re.escape, reversed(texts))) or '(?!)'})")

    def _stretches(self, text: str) -> list[str]:
        cuts = [i for i in range(1, len(text)) if text[i - 1 : i + 1] not in self._pairs]
        return [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]

    def _merge(self, stretch: str) -> list[int]:
        """The merges in order of score, then place; a join is stale where its parts have since merged elsewhere."""
        parts, ids, scores = list(stretch), self._ids, self.scores
        before, after = list(range(-1, len(parts) - 1)), list(range(1, len(parts) + 1))

        def join(left: int) -> list[tuple[float, int, str]]:
            if left < 0 or after[left] == len(parts):
                return []
            text = parts[left] + parts[after[left]]
            return [(-scores[ids[text]], left, text)] if text in ids else []

        queue = [one for left in range(len(parts)) for one in join(left)]
        heapify(queue)
        while queue:
            _, left, text = heappop(queue)
            right = after[left]
            if not parts[left] or right == len(parts) or parts[left] + parts[right] != text:
                continue
            parts[left], parts[right] = text, ""
            after[left] = after[right]
            if after[left] < len(parts):
                before[after[left]] = left
            for one in (*join(before[left]), *join(left)):
                heappush(queue, one)
        return [token for part in parts if part for token in self._tokens(part)]

    def _tokens(self, part: str) -> list[int]:
        whole = self._ids.get(part)
        return [self.byte_tokens[byte] for byte in part.encode("utf-8", "surrogatepass")] if whole is None else [whole]


def read_tokenizer(path: Path) -> MergeTokenizer:
    """The vocabulary of a llama2.c tokenizer file.

    Raises BridgeError where the file is missing, a git-LFS pointer, cut or no tokenizer.
    """
    with open_plain(path) as file:
        raw = file.read()
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
    except struct.error:
        raise BridgeError(
            f"{path}: truncated or no llama2.c tokenizer: {len(raw)} bytes end inside token {len(pieces)}; a tokenizer "
            "of Hugging Face is a folder or a .json file"
        ) from None
    if pieces[_BYTES_FROM : _BYTES_FROM + 256] != [b"<0x%02X>" % byte for byte in range(256)]:
        raise BridgeError(f"{path}: no llama2.c tokenizer: tokens 3 to 258 must be the bytes <0x00> to <0xFF>")
    if longest < max(map(len, pieces)):
        raise BridgeError(f"{path}: no llama2.c tokenizer: a token is longer than the {longest} bytes it declares")
    byte_tokens = tuple(range(_BYTES_FROM, _BYTES_FROM + 256))
    name = f"the llama2.c tokenizer {path.name}"
    return MergeTokenizer(name, tuple(pieces), tuple(scores), byte_tokens, first_token=_BEGINNING)
