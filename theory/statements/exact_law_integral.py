"""Exact law: the mean attention of a head over random tokens, as one integral for all lengths.

For i.i.d. keys given the query token a, with X = e^l[a,-K,b], Y_delta = e^l[a,delta,b] and the
query's own key at offset 0, of mass C, T = C + X + sum Y_delta,

    E[(X/T)^p] = E_a 1/Gamma(p) int_0^inf u^(p-1) E[X^p e^(-uX)] e^(-uC) prod_delta E[e^(-u Y_delta)] du,

the product over all offsets but 0 and -K; p = 1 is the mean attention, and p = 2 gives its spread.
Not in the paper, whose Corollary 2 is the softmax of the mean logits. Exact for every finite
vocabulary and every length: the length enters through the number of factors alone.

The proof takes expectations as what they are, finite sums: each term's integral is elementary
(int X e^(-uT) du = X/T for X, T > 0), so that no theorem on exchanging limits is needed.

Source: ours; compare arXiv 2607.18759, Corollary 2.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from itertools import product

import numpy as np
import sympy
from jaxtyping import Float64
from sympy.simplify.simplify import factor_sum

from theory.exact_law import exact_moments
from theory.head import Head
from theory.schedule import RotarySchedule
from theory.statements.statement import Assumption, Counterexample, ProofStep, Statement, Verdict, Wording


@dataclass(frozen=True, eq=False)
class RandomContext:
    """A head that reads random tokens, a target K back and a length.

    `agreeing` are two places (tokens back) whose tokens are always the same one, None where all
    keys are independent; `own_key` says whether the key at offset 0 is of the query's own token.
    """

    head: Head
    offset: int
    length: int
    agreeing: tuple[int, int] | None = None
    own_key: bool = True

    def moments(self) -> Float64[np.ndarray, "2"]:
        """E[attention] and E[attention^2] on the target, over every sequence with its probability."""
        places = np.array(list(product(range(len(self.head.keys)), repeat=self.length + 1)))
        if self.own_key:
            places = places[places[:, 0] == places[:, 1]]
        if self.agreeing is not None:
            places = places[places[:, 1 + self.agreeing[0]] == places[:, 1 + self.agreeing[1]]]
        query, tokens = places[:, 0], places[:, 1:]
        drawn = [j for j in range(self.length) if not (j == 0 and self.own_key)]
        if self.agreeing is not None:
            drawn.remove(self.agreeing[1])
        chance = self.head.query_weights[query] * self.head.key_weights[tokens[:, drawn]].prod(axis=1)
        masses = self._masses()[query[:, None], np.arange(self.length), tokens]
        attention = masses[:, self.offset] / masses.sum(axis=1)
        return np.array([chance @ attention, chance @ attention**2])

    def _masses(self) -> Float64[np.ndarray, "query offset key"]:
        """e^l[a, -j, b] by cosines and sines."""
        (q0, q1), (k0, k1) = ((rows[:, 0::2], rows[:, 1::2]) for rows in (self.head.queries, self.head.keys))
        angles = np.outer(np.arange(self.length), self.head.schedule.frequencies)
        even = np.einsum("ai,ji,bi->ajb", q0, np.cos(angles), k0) + np.einsum("ai,ji,bi->ajb", q1, np.cos(angles), k1)
        odd = np.einsum("ai,ji,bi->ajb", q0, np.sin(angles), k1) - np.einsum("ai,ji,bi->ajb", q1, np.sin(angles), k0)
        return np.exp(self.head.logit_scale * (even + odd))


def _law(case: RandomContext) -> Float64[np.ndarray, "2"]:
    """Both moments by the integral."""
    mean, deviation = exact_moments(case.head, case.offset, [case.length])
    return np.array([mean[0], mean[0] ** 2 + deviation[0] ** 2])


def _residual(case: RandomContext) -> float:
    """Distance of both moments from the sums over all sequences."""
    return float(np.abs(_law(case) - case.moments()).max())


@cache
def _prove() -> tuple[ProofStep, ...]:
    u, p, own, target = sympy.symbols("u p C X", positive=True)
    mass, total = sympy.IndexedBase("X", positive=True), sympy.IndexedBase("T", positive=True)
    chance, weight = sympy.IndexedBase("P"), sympy.IndexedBase("w")
    before, last, rival = sympy.IndexedBase("A"), sympy.IndexedBase("B"), sympy.IndexedBase("Y")
    x, y, j = sympy.symbols("x y j", integer=True)
    contexts, tokens, rivals = sympy.symbols("M m N", integer=True, positive=True)
    one = sympy.integrate(u ** (p - 1) * mass[x] ** p * sympy.exp(-u * total[x]), (u, 0, sympy.oo))
    over_contexts = sympy.Sum(chance[x] * mass[x] * sympy.exp(-u * total[x]), (x, 0, contexts - 1))
    ratio = sympy.Sum(chance[x] * mass[x] / total[x], (x, 0, contexts - 1))
    # A sequence x of the keys so far, of any joint law P, and one key y more: E[A B] is a double sum.
    joint = sympy.Sum(chance[x] * before[x] * weight[y] * last[y], (y, 0, tokens - 1))
    apart = sympy.Sum(chance[x] * before[x], (x, 0, contexts - 1)) * sympy.Sum(weight[y] * last[y], (y, 0, tokens - 1))
    masses = sympy.exp(-u * own) * sympy.exp(-u * target) * sympy.exp(sympy.Sum(-u * rival[j], (j, 1, rivals)))
    factors = sympy.exp(-u * (own + target)) * sympy.Product(sympy.exp(-u * rival[j]), (j, 1, rivals))
    known = sympy.Sum(weight[y] * last[y] * sympy.exp(-u * own), (y, 0, tokens - 1))
    return (
        ProofStep(
            "int_0^inf u^(p-1) X^p e^(-uT) du = Gamma(p) (X/T)^p for X, T, p > 0",
            sympy.simplify(one - sympy.gamma(p) * (mass[x] / total[x]) ** p) == 0,
        ),
        ProofStep(
            "the integral of the expectation over any number M of sequences is the expectation of X/T",
            sympy.simplify(sympy.integrate(over_contexts, (u, 0, sympy.oo)) - ratio) == 0,
        ),
        ProofStep(
            "e^(-uT) is e^(-uC) e^(-uX) prod e^(-u Y_j), any number N of other keys",
            sympy.simplify(sympy.expand_power_exp(masses) / sympy.expand_power_exp(factors)) == 1,
        ),
        ProofStep(
            "E[A B] = E[A] E[B] for one key more, of m tokens, independent of those before: by induction on keys",
            factor_sum(sympy.Sum(factor_sum(joint), (x, 0, contexts - 1))) == apart,
        ),
        ProofStep(
            "given the query, the mass of its own key leaves the expectation as a constant",
            factor_sum(known) == sympy.exp(-u * own) * sympy.Sum(weight[y] * last[y], (y, 0, tokens - 1)),
        ),
    )


def _draw(rng: np.random.Generator) -> RandomContext:
    tokens, length = int(rng.integers(2, 5)), int(rng.integers(2, 6))
    schedule = RotarySchedule(rng.uniform(0.01, 2, size=2))
    queries, keys = rng.normal(size=(2, tokens, 4))
    head = Head.from_tokens(schedule, queries, keys, rng.dirichlet(np.full(tokens, 3.0)), float(rng.uniform(0.2, 1.5)))
    return RandomContext(head, int(rng.integers(0, length)), length)


def _counterexamples() -> tuple[Counterexample[RandomContext], ...]:
    # Nothing turns: a query of +-1 sees keys of 0 and ln 3 with masses 1 and 3, or 1 and 1/3, at any offset.
    still = RotarySchedule(np.zeros(1), unrotated=1)
    queries, keys = np.array([[1.0, 0.0], [1.0, 0.0]]), np.array([[0.0, 0.0], [np.log(3), 0.0]])
    steady = RandomContext(Head.from_tokens(still, queries, keys, np.full(2, 0.5), 1.0), offset=1, length=3)
    agreeing = replace(steady, agreeing=(1, 2))
    fresh = replace(steady, head=Head.from_tokens(still, queries * [[1], [-1]], keys, np.full(2, 0.5), 1.0))
    fresh = replace(fresh, own_key=False)
    return (
        Counterexample(
            "independent-keys",
            "two tokens of masses 1 and 3, K=1, L=3: the key 2 back always is the target's token",
            agreeing,
            _numbers(agreeing),
        ),
        Counterexample(
            "own-key",
            "masses 1 and 3 to query 0, 1 and 1/3 to query 1, K=1, L=3: the key at offset 0 drawn afresh",
            fresh,
            _numbers(fresh),
        ),
    )


def _numbers(case: RandomContext) -> dict[str, float]:
    return {"E[attention] over all sequences": float(case.moments()[0]), "by the law": float(_law(case)[0])}


STATEMENT = Statement(
    row=7,
    id="exact-law",
    label="Exact law",
    printed=None,
    amended=Wording(
        claim="For i.i.d. tokens the mean attention on the key K back is, query by query, the integral over u of "
        "E[X e^(-uX)] times the own key's e^(-uC) times E[e^(-uY)] of every other key: exact at every length, with "
        "no parameter; u^(p-1) X^p over Gamma(p) for X gives the moment p.",
        recorded=Verdict.PROVED,
        residual=_residual,
        prove=_prove,
    ),
    assumptions=(
        Assumption(
            "independent-keys",
            "given the query, all keys but its own are independent of each other",
            lambda case: case.agreeing is None,
        ),
        Assumption("own-key", "the key at offset 0 is of the query's own token", lambda case: case.own_key),
    ),
    draw=_draw,
    tolerance=1e-8,
    tolerance_reason="the quadrature is set to 1e-9 relative and moments are at most 1: the mean is off by 1e-9; its "
    "square by 2e-9, and a deviation that is not told from 0 by another 3e-9",
    counterexamples=_counterexamples,
)
