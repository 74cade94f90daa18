"""Windowed exact law: keys that come with the query, and a sink of its own, are constants in the integral.

Given the query a, its keys at offsets 0..-(w-1) have masses C_0..C_(w-1) and the first token's has
mass D at length L; only the keys between are independent, so that

    E[X/T] = E_a int_0^inf E[X e^(-uX)] e^(-u (C_0 + ... + C_(w-1) + D)) prod_delta E[e^(-u Y_delta)] du,

the product over the offsets between that are not the target's. A target in the window or at the
sink is a constant too: E[X e^(-uX)] is C_j e^(-u C_j). w = 1 without a sink is the exact law. The
query's average stands outside the integral: a joint key treated as independent puts it inside, and
what that loses is a covariance over queries.

Source: ours; `theory.head` and `theory.exact_law`, for heads of trained models.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import sympy
from jaxtyping import Float64
from sympy.simplify.simplify import factor_sum

from theory.exact_law import exact_law
from theory.head import Head
from theory.schedule import RotarySchedule
from theory.statements.statement import Assumption, Counterexample, ProofStep, Statement, Verdict, Wording


@dataclass(frozen=True, eq=False)
class WindowedContext:
    """A head with window and sink, a target K back and a length.

    The law is told of the keys at the first `known` offsets and, if `sink_known`, of the sink; it takes
    what it is not told of for keys of the pool. `agreeing` are two offsets of the pool, in tokens
    back, whose keys are always the same one, None where all are independent.
    """

    head: Head
    offset: int
    length: int
    known: int
    sink_known: bool = True
    agreeing: tuple[int, int] | None = None

    def law(self) -> float:
        """The mean attention by the integral, from what the law is told."""
        told = replace(
            self.head,
            local_keys=self.head.local_keys[:, : self.known],
            sink_keys=self.head.sink_keys if self.sink_known else None,
        )
        return float(exact_law(told, self.offset, [self.length])[0])

    def attention(self) -> float:
        """The mean of the softmax over every choice of the pool's keys, query by query."""
        head, last, expected = self.head, self.length - 1, 0.0
        for query, weight, local, sink in zip(
            head.queries,
            head.query_weights,
            head.local_keys,
            np.zeros_like(head.queries) if head.sink_keys is None else head.sink_keys,
            strict=True,
        ):
            keys = [local[j : j + 1] if j < head.window else head.keys for j in range(self.length)]
            if head.sink_keys is not None:
                keys[last] = sink[None]
            choices = np.indices([len(rows) for rows in keys]).reshape(self.length, -1)
            drawn = [j for j in range(self.length) if len(keys[j]) > 1]
            if self.agreeing is not None:
                choices = choices[:, choices[self.agreeing[0]] == choices[self.agreeing[1]]]
                drawn.remove(self.agreeing[1])
            masses = np.stack([self._masses(query, keys[j], j)[choices[j]] for j in range(self.length)])
            chance = head.key_weights[choices[drawn]].prod(axis=0)
            expected += weight * chance @ (masses[self.offset] / masses.sum(axis=0))
        return float(expected)

    def _masses(
        self, query: Float64[np.ndarray, "dim"], keys: Float64[np.ndarray, "key dim"], distance: int
    ) -> Float64[np.ndarray, "key"]:
        """e^l of some keys at one distance: the query turned forwards by 2x2 matrices."""
        angles = distance * self.head.schedule.frequencies
        turns = np.array([[np.cos(angles), -np.sin(angles)], [np.sin(angles), np.cos(angles)]])
        turned = np.einsum("rci,ic->ir", turns, query.reshape(-1, 2)).reshape(-1)
        return np.exp(self.head.logit_scale * keys @ turned)


def _residual(case: WindowedContext) -> float:
    """Distance of the law from the sum over all choices of keys."""
    return abs(case.law() - case.attention())


@cache
def _prove() -> tuple[ProofStep, ...]:
    u, sink = sympy.symbols("u D", positive=True)
    j, x, a, t = sympy.symbols("j x a t", integer=True)
    window, choices = sympy.symbols("w M", integer=True, positive=True)
    local, pool = sympy.IndexedBase("C", positive=True), sympy.IndexedBase("S", positive=True)
    chance, held, rest = sympy.IndexedBase("P"), sympy.IndexedBase("c", positive=True), sympy.IndexedBase("f")
    total = local[t] + sink + pool[x]
    constants = sympy.exp(sympy.Sum(-u * local[j], (j, 0, window - 1)) - u * sink)
    # Once for the two terms, once for the sum.
    factors = sympy.expand_power_exp(sympy.expand_power_exp(constants))
    apart = sympy.exp(-u * sink) * sympy.Product(sympy.exp(-u * local[j]), (j, 0, window - 1))
    # Given a query: constants times a mean over M choices of the pool's keys, then a mean over queries.
    given = factor_sum(sympy.Sum(chance[x] * held[a] * rest[x], (x, 0, choices - 1)))
    in_window = sympy.integrate(local[t] * sympy.exp(-u * total), (u, 0, sympy.oo))
    at_sink = sympy.integrate(sink * sympy.exp(-u * total), (u, 0, sympy.oo))
    over_choices = sympy.Sum(chance[x] * local[t] * sympy.exp(-u * total), (x, 0, choices - 1))
    ratio = sympy.Sum(chance[x] * local[t] / total, (x, 0, choices - 1))
    first, second, f, g = sympy.symbols("c_1 c_2 f_1 f_2", real=True)
    outside, inside = (first * f + second * g) / 2, (first + second) * (f + g) / 4
    return (
        ProofStep(
            "e^(-u (C_0 + ... + C_(w-1) + D)) is the product of its factors, any window w",
            sympy.simplify(factors / apart) == 1,
        ),
        ProofStep(
            "given the query they are constants: they leave the expectation over the pool's keys",
            given == held[a] * sympy.Sum(chance[x] * rest[x], (x, 0, choices - 1)),
        ),
        ProofStep(
            "a target in the window or at the sink: int C_t e^(-uT) du = C_t/T, int D e^(-uT) du = D/T",
            sympy.simplify(in_window - local[t] / total) == 0 and sympy.simplify(at_sink - sink / total) == 0,
        ),
        ProofStep(
            "and so in the mean over any number M of choices of the other keys",
            sympy.simplify(sympy.integrate(over_choices, (u, 0, sympy.oo)) - ratio) == 0,
        ),
        ProofStep(
            "w = 1 and no sink leave e^(-u C_0), the exact law's",
            sympy.simplify(constants.subs({window: 1, sink: 0}).doit() - sympy.exp(-u * local[0])) == 0,
        ),
        ProofStep(
            "the mean over queries of c f less the product of means is (c_1-c_2)(f_1-f_2)/4 for two queries: not 0",
            sympy.expand(outside - inside - (first - second) * (f - g) / 4) == 0
            and sympy.expand(outside - inside) != 0,
        ),
    )


def _draw(rng: np.random.Generator) -> WindowedContext:
    tokens, window = int(rng.integers(2, 5)), int(rng.integers(1, 4))
    has_sink, queries = bool(rng.random() < 0.75), int(rng.integers(1, 5))
    # Four independent keys at most, and no length inside the window of a head with a sink.
    length = window + has_sink + int(rng.integers(0, 5))
    head = Head(
        RotarySchedule(rng.uniform(0.01, 2, size=2)),
        rng.normal(size=(queries, 4)),
        rng.dirichlet(np.full(queries, 3.0)),
        rng.normal(size=(queries, window, 4)),
        rng.normal(size=(tokens, 4)),
        rng.dirichlet(np.full(tokens, 3.0)),
        float(rng.uniform(0.2, 1.5)),
        rng.normal(size=(queries, 4)) if has_sink else None,
    )
    return WindowedContext(head, int(rng.integers(0, length)), length, known=window)


def _counterexamples() -> tuple[Counterexample[WindowedContext], ...]:
    # Nothing turns: a key of ln x has mass x at any offset. Pool 1 or 3; with query 0 come 1, 1, with query 1 3, 3.
    pool = np.array([[0.0, 0.0], [np.log(3), 0.0]])
    local, sinks = np.repeat(pool[:, None], 2, axis=1), np.array([[np.log(9), 0.0]] * 2)
    still, half = RotarySchedule(np.zeros(1), unrotated=1), np.full(2, 0.5)
    queries = np.array([[1.0, 0.0]] * 2)
    head = Head(still, queries, half, local, pool, half, 1.0, sinks)
    joint = WindowedContext(head, offset=2, length=4, known=1)
    unsunk = replace(joint, known=2, sink_known=False)
    agreeing = WindowedContext(head, offset=2, length=5, known=2, agreeing=(2, 3))
    return (
        Counterexample(
            "window-known",
            "masses 1 or 3 at offsets 0 and -1, the same one given the query, a sink of 9, K=2, L=4: the law takes "
            "the key at -1 for an independent one of the same distribution",
            joint,
            _numbers(joint),
        ),
        Counterexample(
            "sink-known",
            "the same head: the law takes the sink of mass 9 for a key of the pool",
            unsunk,
            _numbers(unsunk),
        ),
        Counterexample(
            "independent-rest",
            "the same head at L=5: the key 3 back is always the target's",
            agreeing,
            _numbers(agreeing),
        ),
    )


def _numbers(case: WindowedContext) -> dict[str, float]:
    return {"E[attention] over all choices": case.attention(), "by the law": case.law()}


STATEMENT = Statement(
    row=8,
    id="windowed-exact-law",
    label="Windowed exact law",
    printed=None,
    amended=Wording(
        claim="The exact law holds where the keys at the last w offsets and the first token's come jointly with the "
        "query: given it they are constants in the integral, as targets too, and only the keys between are factors.",
        recorded=Verdict.PROVED,
        residual=_residual,
        prove=_prove,
    ),
    assumptions=(
        Assumption(
            "window-known",
            "the law is told of every offset whose key is joint with the query",
            lambda case: case.known >= case.head.window,
        ),
        Assumption(
            "sink-known",
            "it is told of the sink, where there is one",
            lambda case: case.sink_known or case.head.sink_keys is None,
        ),
        Assumption(
            "independent-rest",
            "given the query, the keys between window and sink are independent of each other",
            lambda case: case.agreeing is None,
        ),
    ),
    draw=_draw,
    tolerance=1e-8,
    tolerance_reason="the quadrature of the exact law is set to 1e-9 relative and attention is at most 1; the sums "
    "over at most 4^4 choices round by 1e-14",
    counterexamples=_counterexamples,
)
