"""The tokenizer that a GGUF file carries in its metadata, under keys `tokenizer.ggml.`.

`model` says which it is: "gpt2" is byte-level BPE by `merges`, its split named by `pre`; "llama"
is sentencepiece's merging by `scores`, with U+2581 for a space. `token_type` marks tokens: those
of a user (4) are found in a text before anything else, control tokens (3) never are. A text begins
with `bos_token_id` where `add_bos_token` says so, or else llama.cpp does by the kind.

The file states no Unicode form; the models split like Qwen2 were trained on the composed one (NFC).

Source: llama.cpp, src/llama-vocab.cpp (splits by `pre`, the sentencepiece session, defaults); the
tokenizer.json of the model families (patterns).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from bridge.errors import BridgeError
from bridge.sources.hugging_face_tokenizer import BackendTokenizer, Split, byte_level_tokenizer
from bridge.sources.llama2c_tokenizer import MergeTokenizer

_KEY = "tokenizer.ggml."
_SPACE = "\u2581"
_UNKNOWN, _CONTROL, _USER_DEFINED, _BYTE = 2, 3, 4, 6
_REMEDY = "give --tokenizer FOLDER with the tokenizer.json of the model"

_WORD = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+"
_MARKS = r" ?[^\s\p{L}\p{N}]+[\r\n]*"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_CASED = rf"[^\r\n\p{{L}}\p{{N}}]?(?:{_UPPER}*{_LOWER}+|{_UPPER}+{_LOWER}*)"
_GPT2 = Split()
_DIGITS = Split(single_digits=True)
_LLAMA3 = rf"{_WORD}|\p{{N}}{{1,3}}|{_MARKS}|{_SPACES}"
_QWEN2 = Split(rf"{_WORD}|\p{{N}}|{_MARKS}|{_SPACES}", composed=True)
_TEKKEN = Split(rf"{_CASED}|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_SPACES}", whole_words=True)
_SPLITS = {
    **dict.fromkeys(("gpt-2", "phi-2", "jais", "mpt", "olmo"), _GPT2),
    **dict.fromkeys(("smollm", "starcoder", "refact", "codeshell", "command-r", "exaone", "minerva-7b"), _DIGITS),
    **dict.fromkeys(("llama-bpe", "llama3", "llama-v3", "falcon3"), Split(_LLAMA3, whole_words=True)),
    **dict.fromkeys(("dbrx", "smaug-bpe"), Split(_LLAMA3)),
    **dict.fromkeys(("qwen2", "deepseek-r1-qwen", "megrez"), _QWEN2),
    "tekken": _TEKKEN,
}
_BEGUN = frozenset(("llama-bpe", "llama3", "llama-v3", "falcon3", "tekken"))
"""Byte-level tokenizers that begin a text with a token unless the file says otherwise."""
_SENTENCEPIECE_BEGINNING = 1


def gguf_tokenizer(metadata: Mapping[str, object], path: Path) -> MergeTokenizer | BackendTokenizer:
    """The tokenizer of the metadata of the file at `path`.

    `metadata` has strings as str, arrays of them as tuples, arrays of numbers as numpy's. Raises
    BridgeError where there is no tokenizer, one of a kind that is not read, or one that is damaged.
    """
    kind = metadata.get(f"{_KEY}model")
    if kind == "gpt2":
        return _byte_level(metadata, path)
    if kind == "llama":
        return _sentencepiece(metadata, path)
    what = "no tokenizer" if kind is None else f"a tokenizer of the kind {kind!r:.40}, which is not read"
    raise BridgeError(f"{path}: its metadata hold {what}: {_REMEDY}")


def _byte_level(metadata: Mapping[str, object], path: Path) -> BackendTokenizer:
    tokens = _strings(metadata, path, "tokens")
    stated = metadata.get(f"{_KEY}pre")
    split = _SPLITS.get(str(stated))
    how = f"split {stated}" if split else f"split {stated or 'not stated'}, GPT-2's in its place"
    return byte_level_tokenizer(
        path,
        f"the byte-level tokenizer in {path.name} ({how})",
        {token: number for number, token in enumerate(tokens)},
        _strings(metadata, path, "merges"),
        split or _GPT2,
        [tokens[token] for token in np.flatnonzero(_types(metadata, path, len(tokens)) == _USER_DEFINED)],
        _first_token(metadata, path, len(tokens), str(stated) in _BEGUN, None),
    )


def _sentencepiece(metadata: Mapping[str, object], path: Path) -> MergeTokenizer:
    tokens = _strings(metadata, path, "tokens")
    scores, types = _numbers(metadata, path, "scores", len(tokens)), _types(metadata, path, len(tokens))
    if not np.isfinite(scores).all():
        raise BridgeError(f"{path}: damaged: scores of its tokens are not finite: {_REMEDY}")
    numbers = {token: number for number, token in reversed(list(enumerate(tokens)))}
    named_bytes = [f"<0x{byte:02X}>" for byte in range(256)]
    if absent := next((name for name in named_bytes if name not in numbers), None):
        raise BridgeError(f"{path}: its tokenizer has no token for the byte {absent}: {_REMEDY}")
    byte_tokens = tuple(numbers[name] for name in named_bytes)
    closed = np.isin(types, (_UNKNOWN, _CONTROL, _BYTE))
    closed[list(byte_tokens)] = True
    return MergeTokenizer(
        f"the sentencepiece tokenizer in {path.name}",
        tuple(
            b"" if shut else token.replace(" ", _SPACE).encode("utf-8", errors="surrogatepass")
            for token, shut in zip(tokens, closed, strict=True)
        ),
        tuple(map(float, scores)),
        byte_tokens,
        space=_SPACE,
        leading_space=bool(metadata.get(f"{_KEY}add_space_prefix", True)),
        whole=tuple(int(token) for token in np.flatnonzero(types == _USER_DEFINED) if tokens[token]),
        first_token=_first_token(metadata, path, len(tokens), True, _SENTENCEPIECE_BEGINNING),
    )


def _first_token(
    metadata: Mapping[str, object], path: Path, count: int, added: bool, default: int | None
) -> int | None:
    """The token before every text, where one is `added` unless the file says otherwise; `default` if it names none."""
    if not metadata.get(f"{_KEY}add_bos_token", added):
        return None
    token = metadata.get(f"{_KEY}bos_token_id", default)
    if token is not None and not (isinstance(token, int) and 0 <= token < count):
        raise BridgeError(f"{path}: {_KEY}bos_token_id is {token!r:.40}, the tokens are 0 to {count - 1}: {_REMEDY}")
    return token


def _strings(metadata: Mapping[str, object], path: Path, name: str) -> tuple[str, ...]:
    held = metadata.get(_KEY + name)
    if not isinstance(held, tuple) or not held or not all(isinstance(one, str) for one in held):
        raise BridgeError(f"{path}: its metadata hold no strings {_KEY}{name}: {_REMEDY}")
    return held


def _numbers(metadata: Mapping[str, object], path: Path, name: str, count: int) -> np.ndarray:
    held = metadata.get(_KEY + name)
    if not isinstance(held, np.ndarray) or held.shape != (count,):
        raise BridgeError(f"{path}: its metadata hold no {count} numbers {_KEY}{name}: {_REMEDY}")
    return held


def _types(metadata: Mapping[str, object], path: Path, count: int) -> np.ndarray:
    """The type of every token; 1, a token like any other, where the file does not say."""
    return _numbers(metadata, path, "token_type", count) if f"{_KEY}token_type" in metadata else np.ones(count)
