"""Swap scores: 1 for the head that reads places, 1 for the head that reads symbols, and what else they say.

With v = (d_i, d_j) the attention to two keys before they change places and v' after,

    s_pos = sum_swaps w cos(v', v),   s_sym = sum_swaps w cos(v', flip v),   w = softmax(|d_i - d_j| / tau).

Amended: for any head whose logit is what the key's symbol adds, sigma, plus what its place adds, pi,
at any number of keys and any tau,

    cos(v', v)      = (1 + (sinh D_sigma / cosh D_pi)^2)^(-1/2),   D_sigma = sigma_i - sigma_j, D_pi = pi_i - pi_j,
    cos(v', flip v) = (1 + (sinh D_pi / cosh D_sigma)^2)^(-1/2),

so that s_pos = 1 iff no swapped pair differs in sigma, s_sym = 1 iff none differs in pi, and a head of one
kind scores mean 1/cosh of the logit difference on the other score. Attention that is uniform scores 1 on
both, at the greatest entropy there is, log n: the scores do not tell it from either kind of head.

Source: arXiv 2605.31558 with the scores of arXiv 2511.11579, claims as restated here; the law is ours.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import sympy
from jaxtyping import Float64, Int
from scipy import special
from sympy.simplify.simplify import factor_sum

from theory.discrepancy import SwapScores, swap_scores
from theory.statements.statement import Assumption, Counterexample, ProofStep, Statement, Verdict, Wording, vanishes


@dataclass(frozen=True, eq=False)
class SwappedPrompt:
    """What symbol and place of every key add to its logit, in nats, what both add together, and the swaps."""

    symbols: Float64[np.ndarray, "key"]
    places: Float64[np.ndarray, "key"]
    swaps: Int[np.ndarray, "swap 2"]
    temperature: float
    interaction: float = 0.0

    def attention(self, symbols: Float64[np.ndarray, "key"]) -> Float64[np.ndarray, "key"]:
        """The row with these symbols at the places."""
        logits = symbols + self.places + self.interaction * symbols * self.places
        return np.asarray(special.softmax(logits))

    def scores(self) -> SwapScores:
        """The prompt run again after every swap, then scored."""
        after = []
        for swap in self.swaps:
            moved = self.symbols.copy()
            moved[swap] = moved[swap[::-1]]
            after.append(self.attention(moved))
        return swap_scores(self.attention(self.symbols), np.array(after), self.swaps, self.temperature)


def _residual_printed(case: SwappedPrompt) -> float:
    """How far from 1 a head of one kind scores on its own score."""
    scores = case.scores()
    own = ((scores.positional, case.symbols), (scores.symbolic, case.places))
    return max((abs(score - 1) for score, ignored in own if np.ptp(ignored) == 0), default=0.0)


def _residual_amended(case: SwappedPrompt) -> float:
    """Distance of the scores from the law, plus 1 each where both are 1 and where the entropy is log n."""
    scores, row = case.scores(), case.attention(case.symbols).tolist()
    positional = symbolic = total = 0.0
    for i, j in case.swaps.tolist():
        weight = math.exp(abs(row[i] - row[j]) / case.temperature)
        symbol, place = case.symbols[i] - case.symbols[j], case.places[i] - case.places[j]
        positional += weight / math.hypot(1, math.sinh(symbol) / math.cosh(place))
        symbolic += weight / math.hypot(1, math.sinh(place) / math.cosh(symbol))
        total += weight
    distance = max(abs(scores.positional - positional / total), abs(scores.symbolic - symbolic / total))
    both = min(scores.positional, scores.symbolic) > 1 - STATEMENT.tolerance
    return distance + both + (scores.entropy > math.log(len(row)) - STATEMENT.tolerance)


@cache
def _prove_printed() -> tuple[ProofStep, ...]:
    symbol_i, symbol_j, place_i, place_j = sympy.symbols("sigma_i sigma_j pi_i pi_j", real=True)
    kept, flipped = _squared_cosines(symbol_i, symbol_j, place_i, place_j)
    return (
        ProofStep(
            "sigma_i = sigma_j: cos(v', v)^2 = 1, whatever the sums over the keys before and after the swap",
            vanishes(kept.subs(symbol_j, symbol_i) - 1),
        ),
        ProofStep("pi_i = pi_j: cos(v', flip v)^2 = 1", vanishes(flipped.subs(place_j, place_i) - 1)),
        _mean_step(),
    )


@cache
def _prove_amended() -> tuple[ProofStep, ...]:
    symbol_i, symbol_j, place_i, place_j = sympy.symbols("sigma_i sigma_j pi_i pi_j", real=True)
    kept, flipped = _squared_cosines(symbol_i, symbol_j, place_i, place_j)
    symbol, place = symbol_i - symbol_j, place_i - place_j
    x, u, w, gap = sympy.symbols("x u w gap", positive=True)
    y, partial = sympy.Symbol("y", real=True), sympy.Symbol("partial", nonnegative=True)
    keys, k = sympy.Symbol("n", integer=True, positive=True), sympy.Symbol("k", integer=True)
    below = sympy.log(x) - 1 + 1 / x
    return (
        *_prove_printed(),
        ProofStep(
            "1/cos(v', v)^2 = 1 + (sinh D_sigma / cosh D_pi)^2",
            vanishes(1 / kept - 1 - (sympy.sinh(symbol) / sympy.cosh(place)) ** 2),
        ),
        ProofStep(
            "1/cos(v', flip v)^2 = 1 + (sinh D_pi / cosh D_sigma)^2",
            vanishes(1 / flipped - 1 - (sympy.sinh(place) / sympy.cosh(symbol)) ** 2),
        ),
        ProofStep(
            "sinh is odd and above 0 beyond 0, cosh above 0: a cosine is 1 iff its difference is 0, else below",
            vanishes(sympy.sinh(-y) + sympy.sinh(y))
            and sympy.sinh(x).is_positive is True
            and sympy.cosh(y).is_positive is True,
        ),
        ProofStep(
            "with D_sigma = 0 the other cosine is 1/cosh D_pi, and so with the two exchanged",
            vanishes(flipped.subs(symbol_j, symbol_i) - sympy.cosh(place) ** -2)
            and vanishes(kept.subs(place_j, place_i) - sympy.cosh(symbol) ** -2),
        ),
        ProofStep(
            "weights are above 0: one term gap > 0 below 1 keeps the weighted mean below 1",
            (partial + w * gap).is_positive is True and sympy.exp(y).is_positive is True,
        ),
        ProofStep(
            "a pair with d_i/d_j = e^(D_sigma + D_pi) not 1 has D_sigma or D_pi not 0: the scores are not both 1",
            sympy.solve([symbol, place], [symbol_i, place_i], dict=True) == [{symbol_i: symbol_j, place_i: place_j}]
            and vanishes(sympy.exp(symbol_i + place_i) / sympy.exp(symbol_j + place_j) - sympy.exp(symbol + place)),
        ),
        ProofStep(
            "log x >= 1 - 1/x, equal at 1 alone: the slope of the difference is (x - 1)/x^2",
            below.subs(x, 1) == 0
            and below.diff(x).subs(x, 1 + u).simplify().is_positive is True
            and below.diff(x).subs(x, 1 / (1 + u)).simplify().is_negative is True,
        ),
        ProofStep(
            "so log n - H = sum d log(n d) >= sum d - 1 = 0, and uniform attention has H = log n",
            sympy.expand_log(sympy.Sum(-sympy.log(1 / keys) / keys, (k, 1, keys)).doit()) == sympy.log(keys)
            and sympy.expand(w * (1 - 1 / (keys * w)) - w + 1 / keys) == 0
            and sympy.Sum(1 / keys, (k, 1, keys)).doit() == 1,
        ),
    )


def _squared_cosines(
    symbol_i: sympy.Expr, symbol_j: sympy.Expr, place_i: sympy.Expr, place_j: sympy.Expr
) -> tuple[sympy.Expr, sympy.Expr]:
    """cos(v', v)^2 and cos(v', flip v)^2; Z and Z' are the softmax sums over any number of keys."""
    before, after = sympy.symbols("Z Z'", positive=True)
    old = sympy.Matrix([sympy.exp(symbol_i + place_i), sympy.exp(symbol_j + place_j)]) / before
    new = sympy.Matrix([sympy.exp(symbol_j + place_i), sympy.exp(symbol_i + place_j)]) / after
    lengths = (old.T * old)[0] * (new.T * new)[0]
    flip = sympy.Matrix([old[1], old[0]])
    return (new.T * old)[0] ** 2 / lengths, (new.T * flip)[0] ** 2 / lengths


def _mean_step() -> ProofStep:
    """sum_k c e^(D_k/tau)/W with W the sum of e^(D_k/tau)."""
    k, swaps = sympy.Symbol("k", integer=True), sympy.Symbol("m", integer=True, positive=True)
    tau, total = sympy.symbols("tau W", positive=True)
    term = sympy.exp(sympy.IndexedBase("D", real=True)[k] / tau)
    mean = factor_sum(sympy.Sum(term / total, (k, 1, swaps))).subs(total, sympy.Sum(term, (k, 1, swaps)))
    return ProofStep("a mean of ones over any number of swaps is 1, at any temperature", mean == 1)


def _every_swap(keys: int) -> Int[np.ndarray, "swap 2"]:
    return np.stack(np.triu_indices(keys, 1), axis=1)


def _draw(rng: np.random.Generator) -> SwappedPrompt:
    keys, kind = int(rng.integers(2, 13)), int(rng.integers(3))
    terms = rng.normal(size=(2, keys))
    # Two keys half a nat apart at the least, so that no score but a head's own is near 1.
    terms[:, :2] = terms[:, :1] + np.array([0, 1]) * rng.uniform(0.5, 2, size=(2, 1))
    symbols, places = terms[0] * (kind != 1), terms[1] * (kind != 0)
    return SwappedPrompt(symbols, places, _every_swap(keys), float(10 ** rng.uniform(-2, 1)))


def _counterexamples() -> tuple[Counterexample[SwappedPrompt], ...]:
    places = np.array([0.0, 2.0, 0.0, 2.0])
    reader = SwappedPrompt(np.zeros(4), places, _every_swap(4), 0.1)
    uniform = replace(reader, places=np.zeros(4))
    apart = replace(reader, swaps=np.array([[0, 2], [1, 3]]))
    match = replace(reader, symbols=np.array([1.0, 0, 0, 0]), interaction=1.0)
    return (
        Counterexample(
            "not-uniform", "four keys of one weight: both kinds of head at once", uniform, _numbers(uniform)
        ),
        Counterexample(
            "joined-swaps", "weights alternate, and only keys of equal weight are swapped", apart, _numbers(apart)
        ),
        Counterexample("additive", "a symbol that adds more to the logit at every other place", match, _numbers(match)),
    )


def _numbers(case: SwappedPrompt) -> dict[str, float]:
    scores = case.scores()
    return {
        "s_pos": scores.positional,
        "s_sym": scores.symbolic,
        "entropy": scores.entropy,
        "log n": math.log(len(case.places)),
    }


def _joins_all(case: SwappedPrompt) -> bool:
    """Whether a chain of swaps leads from the first key to every other one."""
    joined = {0}
    for _ in case.places:
        joined |= {int(key) for swap in case.swaps if joined & set(swap.tolist()) for key in swap}
    return len(joined) == len(case.places)


STATEMENT = Statement(
    row=26,
    id="swap-scores",
    label="Swap scores of positional and symbolic heads (arXiv 2605.31558, 2511.11579)",
    printed=Wording(
        claim="A head that reads places alone has s_pos = 1, one that reads symbols alone has s_sym = 1.",
        recorded=Verdict.PROVED,
        residual=_residual_printed,
        prove=_prove_printed,
    ),
    amended=Wording(
        claim="A head that adds what it reads of both has the two scores of a law in sinh and cosh of its logit "
        "differences; they are not both 1, and the entropy is below log n, unless its attention is uniform, which "
        "scores 1 on both.",
        recorded=Verdict.PROVED,
        residual=_residual_amended,
        prove=_prove_amended,
    ),
    assumptions=(
        Assumption(
            "not-uniform",
            "two keys differ in weight",
            lambda case: bool(np.ptp(case.attention(case.symbols)) > 0),
        ),
        Assumption("joined-swaps", "chains of swaps join all keys", _joins_all),
        Assumption(
            "additive", "a logit is a term of the symbol plus a term of the place", lambda c: c.interaction == 0
        ),
    ),
    draw=_draw,
    tolerance=1e-12,
    tolerance_reason="cosines of 66 swaps at most, each right to 2^-49 or so; a weight moves by 2^-52/tau of itself, "
    "which is 2e-14 at tau = 0.01",
    counterexamples=_counterexamples,
)
