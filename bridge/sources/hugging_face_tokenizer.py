"""Tokenizers that the package `tokenizers` runs: a tokenizer.json, or a byte-level vocabulary with its merges.

What a tokenizer adds to a text on its own (a beginning-of-text token, padding) or takes from it
(truncation) would be counted as if it stood in the text: all of it is switched off. The token that
it puts before every text is noted, by the template in tokenizer.json's `post_processor`, unless
tokenizer_config.json beside it states `add_bos_token`.

Byte-level BPE writes every byte as a printable character. Text is first split, by a pattern
that differs between model families; then the neighbours of the earliest merge join, split by
split.

Source: the package `tokenizers`; openai/gpt-2, encoder.py (vocab.json and merges.txt).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

from bridge.errors import BridgeError
from bridge.sources.tensors import open_plain

_CONFIGURATION = "tokenizer_config.json"


@dataclass(frozen=True)
class Split:
    """How a text is cut before bytes merge: at `pattern` (None: GPT-2's), after single digits are set apart.

    `composed`: the text is brought to Unicode's composed form (NFC) before; `whole_words`: a part
    that is a token is taken as it is, whatever the merges say.
    """

    pattern: str | None = None
    single_digits: bool = False
    composed: bool = False
    whole_words: bool = False


@dataclass(frozen=True, eq=False)
class BackendTokenizer:
    """A tokenizer of the package `tokenizers`, which adds nothing to a text and takes nothing from it.

    `first_token` is the one that goes before every text, None for none; `encode` does not add it.
    """

    name: str
    backend: Any
    first_token: int | None = None

    def __post_init__(self) -> None:
        self.backend.no_padding()
        self.backend.no_truncation()

    @property
    def vocabulary(self) -> int:
        """One above the last token."""
        return 1 + max(self.backend.get_vocab().values(), default=-1)

    def encode(self, text: str) -> list[int]:
        """Tokens of a text, none added. Raises BridgeError where the tokenizer knows no token for a part of it."""
        try:
            return list(self.backend.encode(text, add_special_tokens=False).ids)
        except Exception as error:  # the package raises Exception itself
            raise BridgeError(f"{self.name} cannot encode the text: {_line(error)}") from None


def hugging_face_tokenizer(path: Path) -> BackendTokenizer:
    """The tokenizer of a tokenizer.json or of a folder that holds one; else of its vocab.json and merges.txt.

    Raises BridgeError where there is none, where a file is damaged or a git-LFS pointer, and
    where the package `tokenizers` is not installed.
    """
    if path.is_dir():
        held = [name for name in ("tokenizer.json", "vocab.json", "tokenizer.model") if (path / name).exists()]
        if not held:
            raise BridgeError(
                f"{path}: a folder without tokenizer.json: give --tokenizer the folder or file that has it"
            )
        if held[0] == "vocab.json":
            return _declared(_from_merges(path / "vocab.json", path / "merges.txt"), path / _CONFIGURATION)
        path = path / held[0]
    if path.suffix == ".model":
        raise BridgeError(
            f"{path}: a sentencepiece model, which is not read: convert it with transformers, "
            "AutoTokenizer.from_pretrained(folder).save_pretrained(folder)"
        )
    package, text = _package(), _text(path)
    try:
        backend = package.Tokenizer.from_str(text)
        processor = backend.post_processor
        first = None if processor is None else _put_first(json.loads(processor.__getstate__()))
    except Exception as error:  # the package raises Exception itself
        raise BridgeError(f"{path}: damaged or no tokenizer.json: {_line(error)}") from None
    return _declared(BackendTokenizer(f"the tokenizer {_named(path)}", backend, first), path.with_name(_CONFIGURATION))


def byte_level_tokenizer(
    path: Path,
    name: str,
    tokens: Mapping[str, int],
    merges: Sequence[str],
    split: Split,
    whole: Sequence[str] = (),
    first_token: int | None = None,
) -> BackendTokenizer:
    """Byte-level BPE of tokens by their written form and merges "a b"; `whole` texts are found before all else.

    Raises BridgeError, with the name of the file, where a merge has not two parts or joins what
    is no token, and where the package `tokenizers` is not installed.
    """
    pairs = [tuple(merge.split(" ")) for merge in merges]
    if odd := next((merge for merge, pair in zip(merges, pairs, strict=True) if len(pair) != 2), None):
        raise BridgeError(f"{path}: no merges, or damaged: expected two parts in each, got {odd!r:.80}")
    package = _package()
    try:
        model = package.models.BPE(vocab=dict(tokens), merges=pairs, ignore_merges=split.whole_words)
        backend = package.Tokenizer(model)
    except Exception as error:  # the package raises Exception itself
        raise BridgeError(f"{path}: its merges do not fit its tokens: {_line(error)}") from None
    steps = package.pre_tokenizers
    parts = [steps.Digits(individual_digits=True)] if split.single_digits else []
    if split.pattern is not None:
        parts.append(steps.Split(package.Regex(split.pattern), "isolated"))
    parts.append(steps.ByteLevel(add_prefix_space=False, use_regex=split.pattern is None))
    backend.pre_tokenizer = steps.Sequence(parts)
    if split.composed:
        backend.normalizer = package.normalizers.NFC()
    backend.add_tokens([package.AddedToken(text, normalized=False) for text in whole])
    return BackendTokenizer(name, backend, first_token)


def _from_merges(vocabulary: Path, merges: Path) -> BackendTokenizer:
    """GPT-2's two files: tokens with their numbers, and after a line of version a merge a line."""
    text, lines = _text(vocabulary), _text(merges).splitlines()
    try:
        tokens = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BridgeError(f"{vocabulary}: damaged or no vocabulary: {_line(error)}") from None
    if not isinstance(tokens, dict) or not all(
        type(token) is int and 0 <= token < 1 << 32 for token in tokens.values()
    ):
        raise BridgeError(f"{vocabulary}: no vocabulary: expected an object of tokens with their numbers")
    stated = [line for line in lines if line and not line.startswith("#version")]
    return byte_level_tokenizer(vocabulary, f"the tokenizer {_named(vocabulary)}", tokens, stated, Split())


def _put_first(processor: Mapping[str, Any]) -> int | None:
    """The token that a post-processor puts before a text; of several in sequence the last one's is outermost."""
    if processor.get("type") == "Sequence":
        firsts = [_put_first(one) for one in processor["processors"]]
        return next((first for first in reversed(firsts) if first is not None), None)
    if processor.get("type") == "TemplateProcessing":
        special = processor["single"][0].get("SpecialToken")
        return None if special is None else int(processor["special_tokens"][special["id"]]["ids"][0])
    return int(processor["cls"][1]) if "cls" in processor else None


def _declared(tokenizer: BackendTokenizer, configuration: Path) -> BackendTokenizer:
    """The tokenizer with the first token that tokenizer_config.json states, where there is such a file and it does."""
    if not configuration.exists():
        return tokenizer
    try:
        stated = json.loads(_text(configuration))
    except (ValueError, RecursionError) as error:
        raise BridgeError(f"{configuration}: damaged: {_line(error)}") from None
    added = stated.get("add_bos_token") if isinstance(stated, dict) else None
    if added is None:
        return tokenizer
    if not added:
        return replace(tokenizer, first_token=None)
    held = stated.get("bos_token")
    written = held.get("content") if isinstance(held, dict) else held
    first = tokenizer.backend.token_to_id(written) if isinstance(written, str) else tokenizer.first_token
    if first is None:
        raise BridgeError(
            f"{configuration}: add_bos_token, but bos_token is {written!r:.80}, no token of the tokenizer"
        )
    return replace(tokenizer, first_token=first)


def _package() -> ModuleType:
    try:
        import tokenizers
    except ImportError:
        raise BridgeError(
            "counting tokens needs the package tokenizers: pip install 'attention-carrier[models]'"
        ) from None
    return tokenizers


def _text(path: Path) -> str:
    try:
        with open_plain(path) as file:
            return file.read().decode("utf-8")
    except UnicodeDecodeError:
        raise BridgeError(f"{path}: damaged: it is not UTF-8") from None


def _named(path: Path) -> str:
    """A file's name with its folder's, for all such files are named alike."""
    return "/".join(path.parts[-2:])


def _line(error: Exception) -> str:
    return f"{' '.join(str(error).split()):.200}"
