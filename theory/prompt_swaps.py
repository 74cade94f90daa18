"""Swaps of two keys of a prompt, or of two blocks of keys, and the scores of a head from its rows before and after.

The query stands last and stays. Counted from it back, the tokens before it are cut into blocks of b
tokens; two blocks change places with their order kept inside, and the attention of a block is that
of its tokens added up. With b = 1 a block is a token. What is left over at the front, fewer than b
tokens, stays where it is.

Source: arXiv 2511.11579 for the swap of two keys, `theory.discrepancy` for the scores; blocks are ours.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Float, Float64, Int64, Integer

from theory.discrepancy import SwapScores, swap_scores
from theory.errors import TheoryError
from theory.inputs import whole


@dataclass(frozen=True, eq=False)
class ScoredHeads:
    """s_pos, s_sym and entropy (nats) of every head of a model, prompt by prompt."""

    positional: Float64[np.ndarray, "prompt layer head"]
    symbolic: Float64[np.ndarray, "prompt layer head"]
    entropy: Float64[np.ndarray, "prompt layer head"]

    @classmethod
    def stacked(cls, scores: Float64[np.ndarray, "prompt layer head 3"]) -> ScoredHeads:
        """From a table whose last axis is s_pos, s_sym, entropy."""
        return cls(*np.moveaxis(scores, -1, 0))

    def over_prompts(self, prompts: slice = slice(None)) -> Float64[np.ndarray, "3 layer head"]:
        """Means over prompts of s_pos, s_sym, entropy."""
        return np.stack([one[prompts].mean(axis=0) for one in (self.positional, self.symbolic, self.entropy)])


@dataclass(frozen=True, eq=False)
class Swaps:
    """Swaps in a prompt of `length` tokens, the query among them: the numbers of two blocks each, from the front.

    Raises TheoryError for a prompt that holds no two blocks, and for a pair that is not of two of them.
    """

    length: int
    block: int
    pairs: Int64[np.ndarray, "swap 2"]

    def __post_init__(self) -> None:
        whole("a block, in tokens,", self.block, 1)
        if self.blocks < 2:
            raise TheoryError(
                f"a prompt of {self.length} tokens holds no two blocks of {self.block} before its query: "
                "give a longer prompt or smaller blocks"
            )
        inside = (self.pairs >= 0) & (self.pairs < self.blocks)
        if not inside.all() or (self.pairs[:, 0] == self.pairs[:, 1]).any():
            raise TheoryError(
                f"a swap is of two different blocks among 0..{self.blocks - 1}, got {self.pairs.tolist()}"
            )

    @property
    def blocks(self) -> int:
        """Whole blocks before the query."""
        return (self.length - 1) // self.block

    def before(self, query: int) -> Swaps:
        """The same swaps for an earlier query, at this position: those of blocks that lie before it. Blocks of one
        token alone can be asked so. Raises TheoryError for larger ones, and for a query outside the prompt."""
        if self.block != 1 or not 0 <= query < self.length:
            raise TheoryError(
                f"an earlier query among 0..{self.length - 1} has the same blocks if they are single tokens: "
                f"got query {query}, blocks of {self.block}"
            )
        return Swaps(query + 1, 1, self.pairs[(self.pairs < query).all(axis=1)])

    def changing(self, tokens: Int64[np.ndarray, "_length"]) -> Swaps:
        """Those that change the prompt: two equal blocks trade places unseen, and no head can be told from it."""
        cut = self._cut(tokens)
        return replace(self, pairs=self.pairs[(cut[self.pairs[:, 0]] != cut[self.pairs[:, 1]]).any(axis=1)])

    def prompts(self, tokens: Int64[np.ndarray, "length"]) -> Int64[np.ndarray, "swap length"]:
        """The prompt after each swap."""
        cut = np.repeat(self._cut(tokens)[None], len(self.pairs), axis=0)
        row, (first, second) = np.arange(len(self.pairs)), self.pairs.T
        cut[row, first], cut[row, second] = cut[row, second], cut[row, first]
        told = np.repeat(tokens[None], len(self.pairs), axis=0)
        told[:, self._front : self.length - 1] = cut.reshape(len(self.pairs), -1)
        return told

    def scores(
        self, before: Float[np.ndarray, "key"], after: Float[np.ndarray, "swap key"], temperature: float
    ) -> SwapScores:
        """s_pos, s_sym and the entropy of the row before, over blocks. Raises TheoryError as `swap_scores`."""
        front = int(self._front > 0)
        return swap_scores(self._sums(before), self._sums(after), self.pairs + front, temperature)

    @property
    def _front(self) -> int:
        return (self.length - 1) % self.block

    def _cut(self, tokens: Int64[np.ndarray, "length"]) -> Int64[np.ndarray, "block token"]:
        if len(tokens) != self.length:
            raise TheoryError(f"these swaps are of prompts of {self.length} tokens, got {len(tokens)}")
        return tokens[self._front : self.length - 1].reshape(self.blocks, self.block)

    def _sums(self, rows: Float[np.ndarray, "*batch key"]) -> Float64[np.ndarray, "*batch part"]:
        """Attention of every part: what is left over at the front, the blocks, the query."""
        starts = np.arange(self._front, self.length, self.block)
        return np.add.reduceat(rows, starts if not self._front else [0, *starts], axis=-1, dtype=np.float64)


def all_swaps(length: int, block: int = 1) -> Swaps:
    """Every swap of two blocks. Raises TheoryError as `Swaps`."""
    blocks = (whole("a length, in tokens,", length, 1) - 1) // whole("a block, in tokens,", block, 1)
    pairs = np.array(list(itertools.combinations(range(blocks), 2)), dtype=np.int64).reshape(-1, 2)
    return Swaps(length, block, pairs)


def drawn_swaps(length: int, each: int, rng: np.random.Generator) -> Swaps:
    """Every token but the first with `each` earlier ones, uniform and not two alike where there are as many.

    So a query anywhere in the prompt has every key before it in a swap. Raises TheoryError as `Swaps`.
    """
    pairs = [
        (earlier, later)
        for later in range(1, length - 1)
        for earlier in rng.choice(later, min(each, later), replace=False).tolist()
    ]
    return Swaps(length, 1, np.array(pairs, dtype=np.int64).reshape(-1, 2))


def lower_score(logits: Float64[np.ndarray, "key"], swaps: Integer[np.ndarray, "swap 2"], temperature: float) -> float:
    """The lower score of a pure head in closed form: sum_swaps w sech(l_i - l_j), with w of `theory.discrepancy`.

    A head whose logits depend on the place alone keeps v = (d_i, d_j) and has s_pos = 1; the cosine of v with
    flip v is 2 d_i d_j / (d_i^2 + d_j^2) = sech(l_i - l_j), and so s_sym is this sum. A head whose logits depend
    on the symbol alone has the two the other way round.
    """
    shares = np.exp(logits - logits.max())
    shares /= shares.sum()
    spreads = np.abs(shares[swaps[:, 0]] - shares[swaps[:, 1]]) / temperature
    weights = np.exp(spreads - spreads.max())
    gaps = np.abs(logits[swaps[:, 0]] - logits[swaps[:, 1]])
    sech = 2 * np.exp(-gaps) / (1 + np.exp(-2 * gaps))
    return float(weights @ sech / weights.sum())
