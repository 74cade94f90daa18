"""Accuracy: whether a token is read has nothing to do with the softmax's denominator.

With readout scores S_y = sum_t p_t O[b_t, y], p_t = e^l_t / T, T = sum_t e^l_t, token y is read iff

    D_c = sum_t e^l_t (O[b_t, y] - O[b_t, c]) > 0    for every other token c,

sums of independent terms given the query and y. Dilution is not in them but by the terms that a longer
context adds. With q_c = P(D_c <= 0),

    1 - sum_c q_c  <=  P(D_c > 0 for all c)  <=  1 - max_c q_c                      (Bonferroni)

for any number of tokens. That the scores are the attention's alone is needed: what a residual stream
or a bias adds to S is worth T to the sums, and with it the denominator decides again.

Source: ours; the task is that of arXiv 2607.18759, section 2, `theory.accuracy`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from itertools import product

import numpy as np
import sympy
from jaxtyping import Bool, Float64, Int
from scipy.special import softmax
from sympy.simplify.simplify import factor_sum

from theory.accuracy import accuracy_law
from theory.head import Head
from theory.schedule import RotarySchedule
from theory.statements.statement import Assumption, Counterexample, ProofStep, Statement, Verdict, Wording

# Above the rounding of a sum of five terms of e^10.
_TIE = 1e-9


@dataclass(frozen=True, eq=False)
class Reader:
    """A head over a vocabulary, its readout O[b, y], the token K back as the target, and a length.

    `beside[a]` is what query token a adds to the scores beside the attention. `agreeing` are two
    places, in tokens back, whose tokens are always the same one, None where all are independent.
    """

    head: Head
    readout: Float64[np.ndarray, "token token"]
    beside: Float64[np.ndarray, "token token"]
    offset: int
    length: int
    agreeing: tuple[int, int] | None = None

    def sequences(self) -> tuple[Int[np.ndarray, "sequence place"], Float64[np.ndarray, "sequence"]]:
        """Every sequence, the query's token first and so back, and its probability."""
        tokens = np.array(list(product(range(len(self.readout)), repeat=self.length)))
        drawn = list(range(self.length))
        if self.agreeing is not None:
            tokens = tokens[tokens[:, self.agreeing[0]] == tokens[:, self.agreeing[1]]]
            drawn.remove(self.agreeing[1])
        return tokens, self.head.key_weights[tokens[:, drawn]].prod(axis=1)

    def logits(self, tokens: Int[np.ndarray, "sequence place"]) -> Float64[np.ndarray, "sequence place"]:
        """The logit of every place of every sequence, by cosines and sines."""
        (q0, q1), (k0, k1) = ((rows[:, 0::2], rows[:, 1::2]) for rows in (self.head.queries, self.head.keys))
        table = np.zeros((len(q0), self.length, len(k0)))
        for pair, theta in enumerate(self.head.schedule.frequencies):
            angles = np.arange(self.length)[:, None] * theta
            even = np.outer(q0[:, pair], k0[:, pair]) + np.outer(q1[:, pair], k1[:, pair])
            odd = np.outer(q0[:, pair], k1[:, pair]) - np.outer(q1[:, pair], k0[:, pair])
            table += even[:, None] * np.cos(angles) + odd[:, None] * np.sin(angles)
        return self.head.logit_scale * table[tokens[:, :1], np.arange(self.length), tokens]

    def predictions(self) -> tuple[Bool[np.ndarray, "sequence"], Float64[np.ndarray, "sequence"]]:
        """Whether the argmax of the scores of a softmax is the target, and the chance of each sequence."""
        tokens, chance = self.sequences()
        attention = softmax(self.logits(tokens), axis=1)
        scores = np.einsum("sp,spy->sy", attention, self.readout[tokens]) + self.beside[tokens[:, 0]]
        return scores.argmax(axis=1) == tokens[:, self.offset], chance

    def leads(self) -> Float64[np.ndarray, "sequence token"]:
        """D_c for every token c, infinite for the target's own."""
        tokens, _ = self.sequences()
        sums = np.einsum("sp,spy->sy", np.exp(self.logits(tokens)), self.readout[tokens])
        target = tokens[:, self.offset]
        leads = sums[np.arange(len(sums)), target][:, None] - sums
        leads[np.arange(len(sums)), target] = np.inf
        return leads


def _residual(case: Reader) -> float:
    """Chance of a sequence read otherwise than by D, distance of the law, and what the bracket leaves outside."""
    (read, chance), beaten = case.predictions(), case.leads() <= 0
    accuracy, failures = chance @ read, chance @ beaten
    law = accuracy_law(case.head, case.readout, case.offset, [case.length])
    misses = (
        chance @ (read == beaten.any(axis=1)),
        np.abs(np.stack([law.lower, law.point, law.upper]) - accuracy).max(),
        1 - failures.sum() - accuracy,
        accuracy - (1 - failures.max()),
    )
    return float(max(0.0, *misses))


@cache
def _prove() -> tuple[ProofStep, ...]:
    t, tokens = sympy.Symbol("t", integer=True), sympy.Symbol("n", integer=True, positive=True)
    logit, ours, theirs = (sympy.IndexedBase(name, real=True) for name in ("l", "O_y", "O_c"))
    mass, partial = sympy.Symbol("T", positive=True), sympy.Symbol("T_n", nonnegative=True)
    lead, shift = sympy.symbols("D lambda", real=True)
    over = (t, 1, tokens)
    score = sympy.Sum(sympy.exp(logit[t]) / mass * (ours[t] - theirs[t]), over)
    unnormalised = sympy.Sum(sympy.exp(logit[t]) * (ours[t] - theirs[t]), over)
    shifted = sympy.Sum(sympy.exp(shift) * sympy.exp(logit[t]) * (ours[t] - theirs[t]), over)
    # Indicators of "one of the first n rivals is not behind", its opposite, and the same of rival n+1.
    some, none, new, not_new = sympy.symbols("u v x z", nonnegative=True)
    either = 1 - (1 - some) * (1 - new)
    beside = lead / mass - sympy.Rational(1, 2)
    return (
        ProofStep(
            "S_y - S_c = D_c / T, any number n of keys: the denominator is one factor of the whole sum",
            sympy.simplify(factor_sum(score) - factor_sum(unnormalised) / mass) == 0,
        ),
        ProofStep(
            "T is above 0, by induction on keys, and D/T has the sign of D",
            bool((partial + sympy.exp(logit[t])).is_positive)
            and sympy.simplify(sympy.sign(lead / mass) - sympy.sign(lead)) == 0,
        ),
        ProofStep(
            "nor does a common shift of all logits: it multiplies D by e^lambda, above 0",
            factor_sum(shifted) == sympy.exp(shift) * factor_sum(unnormalised) and bool(sympy.exp(shift).is_positive),
        ),
        ProofStep(
            "with a score of -1/2 beside the attention D = 1 wins at T = 1 and loses at T = 3",
            bool(beside.subs({lead: 1, mass: 1}) > 0) and bool(beside.subs({lead: 1, mass: 3}) < 0),
        ),
        ProofStep(
            "one rival more: 1(A or B) = 1(A) + 1(B) - 1(A) 1(B) is at most 1(A) + 1(B): by induction on rivals P(any) "
            "is at most the sum",
            sympy.expand(some + new - either - some * new) == 0 and bool((some * new).is_nonnegative),
        ),
        ProofStep(
            "and at least 1(A) and at least 1(B): by induction P(any) is at least the greatest",
            sympy.expand(either - some - new * (1 - some)) == 0
            and sympy.expand(either - new - some * (1 - new)) == 0
            and bool((new * none).is_nonnegative)
            and bool((some * not_new).is_nonnegative),
        ),
    )


def _draw(rng: np.random.Generator) -> Reader:
    tokens, length = int(rng.integers(2, 5)), int(rng.integers(2, 6))
    queries, keys = rng.normal(size=(2, tokens, 4))
    weights = rng.dirichlet(np.full(tokens, 3.0))
    schedule = RotarySchedule(rng.uniform(0.01, 2, size=2))
    head = Head.from_tokens(schedule, queries, keys, weights, float(rng.uniform(0.2, 1.5)))
    readout = 2 * np.eye(tokens) + rng.normal(size=(tokens, tokens))
    return Reader(head, readout, np.zeros((tokens, tokens)), int(rng.integers(0, length)), length)


def _counterexamples() -> tuple[Counterexample[Reader], ...]:
    # All logits are 0 and the readout copies: the scores are the shares of two tokens in the context.
    still, none = RotarySchedule(np.zeros(1), unrotated=1), np.zeros((2, 2))
    head = Head.from_tokens(still, none, none, np.full(2, 0.5), 1.0)
    majority = Reader(head, np.eye(2), none, offset=1, length=3)
    tied = replace(majority, length=2)
    residual = replace(majority, beside=np.eye(2) / 2)
    agreeing = replace(majority, agreeing=(1, 2))
    return (
        Counterexample(
            "no-ties",
            "two tokens at equal weight, L=2: where they differ the argmax takes token 0",
            tied,
            _numbers(tied),
        ),
        Counterexample(
            "attention-alone",
            "L=3: the majority's token is read, but for a score of 1/2 for the query's own token beside it",
            residual,
            _numbers(residual),
        ),
        Counterexample(
            "independent-keys", "L=3, K=1: the token 2 back always is the target's", agreeing, _numbers(agreeing)
        ),
    )


def _numbers(case: Reader) -> dict[str, float]:
    read, chance = case.predictions()
    return {
        "accuracy over all sequences": float(chance @ read),
        "P(D_c > 0 for all c)": float(chance @ (case.leads() > 0).all(axis=1)),
        "by the law": float(accuracy_law(case.head, case.readout, case.offset, [case.length]).point[0]),
    }


STATEMENT = Statement(
    row=11,
    id="accuracy",
    label="Accuracy",
    printed=None,
    amended=Wording(
        claim="The softmax's denominator decides no prediction: token y is read iff the sum of e^l_t (O[b_t,y] - "
        "O[b_t,c]) is above 0 for every other c; accuracy lies between 1 less the sum and 1 less the greatest of the "
        "chances that it is not.",
        recorded=Verdict.PROVED,
        residual=_residual,
        prove=_prove,
    ),
    assumptions=(
        Assumption("no-ties", "no sum is 0 to rounding", lambda case: bool(np.abs(case.leads()).min() > _TIE)),
        Assumption("attention-alone", "nothing is added to the attention's scores", lambda case: not case.beside.any()),
        Assumption("independent-keys", "tokens are independent", lambda case: case.agreeing is None),
    ),
    draw=_draw,
    tolerance=1e-12,
    tolerance_reason="nothing is approximated where every key is enumerated: probabilities of 4^5 sequences at most "
    "are added up, with 1e-13 of rounding",
    counterexamples=_counterexamples,
)
