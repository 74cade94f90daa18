"""Multi-hop lookup in a prompt of items and a query: by number, where the address is a place, or by letter.

    number   item (j, c): an integer 1..16 and one of 4 letters. The query k looks at the item k back, whose j says
             how many further back the next one is; the last one's letter is asked for.
    letter   item (a, b): two of 16 letters, b one of the 4 that follow a on their circle. The query a looks at the
             item with address a, whose b is the next address; the last one's b is asked for.

An item is one token of 64, a query one of 16 more. The two tasks ask the same of a model but for
what an address is. Both are answered from the prompt alone: without it the best guess after two
hops is right once in four. Every item that is visited lies among the last `reach`, so that a longer
prompt asks the same question among more distractors, which stand further back and, by letter, bear
none of the visited addresses.

Source: arXiv 2605.31558 for the pair of tasks, 64 pairs and 17 tokens; of its 120 letters we use 16.
What an item, a query and a longer prompt are is ours.
"""

from __future__ import annotations

from typing import Literal

import torch
from jaxtyping import Int64
from pydantic import Field, model_validator
from torch import Tensor

from empirics.means import Strict
from empirics.sequence_tasks import UNASKED, SequenceBatch

ADDRESSES, CONTENTS = 16, 4
ITEMS = ADDRESSES * CONTENTS


class Hops(Strict):
    """One of the two tasks; `reach` is the number of items, counted from the query back, among which it is answered."""

    kind: Literal["hops"] = "hops"
    address: Literal["number", "letter"] = "number"
    hops: int = Field(default=2, ge=1, le=3)
    reach: int = Field(default=16, ge=1)

    @model_validator(mode="after")
    def _fits(self) -> Hops:
        if self.reach < self.hops:
            raise ValueError(f"{self.hops} hops visit as many items: give a reach of {self.hops} or more")
        return self

    @property
    def tokens(self) -> int:
        return ITEMS + ADDRESSES

    @property
    def outputs(self) -> int:
        return CONTENTS if self.address == "number" else ADDRESSES

    @property
    def shortest(self) -> int:
        return self.reach + 1

    def draw(self, sequences: int, length: int, generator: torch.Generator) -> SequenceBatch:
        """Prompts of `length` - 1 items and a query; what is asked is asked at the query."""
        if self.address == "number":
            tokens, answers = self._by_number(sequences, length, generator)
        else:
            tokens, answers = self._by_letter(sequences, length, generator)
        targets = torch.full_like(tokens, UNASKED)
        targets[:, -1] = answers
        return SequenceBatch(tokens, targets)

    def visited(self, tokens: Int64[Tensor, "sequence length"]) -> Int64[Tensor, "sequence hop"]:
        """The places of the items that lead to the answer, in order, read from prompts that hold them."""
        places = []
        place, asked = torch.full((len(tokens),), tokens.shape[1] - 1), tokens[:, -1] - ITEMS
        for _ in range(self.hops):
            if self.address == "number":
                place = place - 1 - asked
            else:
                place = (tokens[:, :-1] // CONTENTS == asked[:, None]).long().argmax(dim=1)
            places.append(place)
            item = tokens.gather(1, place[:, None])[:, 0]
            asked = item // CONTENTS
            if self.address == "letter":
                asked = (asked + 1 + item % CONTENTS) % ADDRESSES
        return torch.stack(places, dim=1)

    def _by_number(
        self, sequences: int, length: int, generator: torch.Generator
    ) -> tuple[Int64[Tensor, "sequence length"], Int64[Tensor, "sequence"]]:
        """Each integer is uniform over those that leave an item for every hop that is still to come."""
        jumps = torch.randint(0, ADDRESSES, (sequences, length), generator=generator)
        contents = torch.randint(0, CONTENTS, (sequences, length), generator=generator)
        row, place = torch.arange(sequences), torch.full((sequences,), length - 1)
        for hop in range(self.hops):
            left = self.reach - (length - 1 - place) - (self.hops - 1 - hop)
            jump = (torch.rand(sequences, generator=generator) * left.clamp(max=ADDRESSES)).long()
            jumps[row, place] = jump
            place = place - 1 - jump
        tokens = jumps * CONTENTS + contents
        tokens[:, -1] = ITEMS + jumps[:, -1]
        return tokens, contents[row, place]

    def _by_letter(
        self, sequences: int, length: int, generator: torch.Generator
    ) -> tuple[Int64[Tensor, "sequence length"], Int64[Tensor, "sequence"]]:
        """Addresses of distractors are uniform over those that are not visited."""
        steps = torch.randint(0, CONTENTS, (sequences, length), generator=generator)
        path = torch.randint(0, ADDRESSES, (sequences, 1), generator=generator)
        taken = torch.randint(0, CONTENTS, (sequences, self.hops), generator=generator)
        path = torch.cat([path, path + (taken + 1).cumsum(dim=1)], dim=1) % ADDRESSES
        visited = torch.zeros(sequences, ADDRESSES).scatter_(1, path[:, :-1], 1.0)
        addresses = torch.multinomial(1 - visited, length, replacement=True, generator=generator)
        order = torch.rand(sequences, self.reach, generator=generator).argsort(dim=1)[:, : self.hops]
        places = length - 1 - self.reach + order
        addresses.scatter_(1, places, path[:, :-1])
        steps.scatter_(1, places, taken)
        tokens = addresses * CONTENTS + steps
        tokens[:, -1] = ITEMS + path[:, 0]
        return tokens, path[:, -1]
