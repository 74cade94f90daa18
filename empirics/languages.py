"""Recognition of regular languages over {a, b}: at every prefix of a word, is it in the language?

    aa        (aa)*     all a, an even number of them
    abab      (ab)*     a and b in turn, as many of each
    a-first   a{a,b}*   whatever follows an a

A sequence is a begin token and a word; position i asks for the prefix of i letters, the begin token
for nothing. Half of the words go on as a word of the language does for as long as they last. The
others are near misses: one letter of such a word, drawn uniformly, is the other one (of `a-first`
it is the first letter, the only one that matters). So at an even length half of the words belong
to the language, of `a-first` at every length; at an odd length no word of the other two does.

The languages are those of arXiv 2608.11909; begin token, question at every prefix and near misses
are ours.
"""

from __future__ import annotations

from typing import Literal

import torch
from jaxtyping import Bool, Int64
from torch import Tensor

from empirics.means import Strict
from empirics.sequence_tasks import UNASKED, SequenceBatch

A, B, BEGIN = 0, 1, 2


class Language(Strict):
    """One language as a task: three input tokens, two classes (1 for a member)."""

    kind: Literal["language"] = "language"
    language: Literal["aa", "abab", "a-first"] = "aa"

    @property
    def tokens(self) -> int:
        return 3

    @property
    def outputs(self) -> int:
        return 2

    @property
    def shortest(self) -> int:
        return 2

    def draw(self, sequences: int, length: int, generator: torch.Generator) -> SequenceBatch:
        """Words of `length` - 1 letters behind a begin token."""
        letters = length - 1
        words = self._continued(sequences, letters, generator)
        reach = 1 if self.language == "a-first" else letters
        where = torch.randint(0, reach, (sequences,), generator=generator)
        miss = torch.randint(0, 2, (sequences,), generator=generator)
        words[torch.arange(sequences), where] ^= miss
        begin = torch.full((sequences, 1), BEGIN)
        unasked = torch.full((sequences, 1), UNASKED)
        asked = self.members(words).long()
        return SequenceBatch(torch.cat([begin, words], dim=1), torch.cat([unasked, asked], dim=1))

    def members(self, words: Int64[Tensor, "sequence letter"]) -> Bool[Tensor, "sequence letter"]:
        """Of every prefix of one letter or more whether it belongs to the language."""
        if self.language == "a-first":
            return (words[:, :1] == A).expand(words.shape)
        place = torch.arange(words.shape[1])
        wanted = place % 2 if self.language == "abab" else torch.full_like(place, A)
        return (words == wanted).cumprod(dim=1).bool() & (place % 2 == 1)

    def _continued(self, sequences: int, letters: int, generator: torch.Generator) -> Int64[Tensor, "sequence letter"]:
        """Words that go on as a word of the language does."""
        if self.language == "a-first":
            words = torch.randint(0, 2, (sequences, letters), generator=generator)
            words[:, 0] = A
            return words
        word = torch.arange(letters) % 2 if self.language == "abab" else torch.full((letters,), A)
        return word.repeat(sequences, 1)
