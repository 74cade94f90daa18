"""Proposition 2: rows of a position table that no training sequence reads are moved by weight decay alone.

With training lengths up to L_max, p_j for j >= L_max is read by no forward pass: dLoss/dp_j = 0, and

    SGD, AdamW               p <- (1 - eta lambda) p
    Adam with coupled L2     p <- p - eta m^/(sqrt v^ + eps),  m^, v^ averages of lambda p and its square

The second depends on lambda through eps/lambda alone: its first step is eta sign(p) but for a factor
1 - eps/(lambda |p| + eps). Refuted as printed on two counts. The geometric decay is SGD's, while the
paper trains with Adam: from N(0, 1) rows of width 64 it would leave the norm 7.966 (lambda = 1e-4) or
7.656 (1e-2) after 4000 steps at eta = 1e-3; coupled Adam leaves .178 at both, and .20 is printed at
both. And equal expected weights are not accuracy 1/m: uniform attention answered by the most frequent
of its L tokens is right with probability E[largest count]/L (ties shared), .162 at L = 20 and .118 at
L = 48 for m = 20; the printed .07 to .10 is above .05 too. Where in the trained range a head pins is a
matter of its trained weights and not decided here.

Source: arXiv 2607.18759, Proposition 2, its appendix proof and Table 6.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cache
from typing import Literal

import numpy as np
import sympy
from jaxtyping import Float64

from theory.drift import CoupledAdam, Decay
from theory.statements.statement import PRINTED, Assumption, Counterexample, ProofStep, Statement, Verdict, Wording

_DIFFERENCE = 1e-4  # half the distance of a central difference
_EPSILON = 1e-8  # Adam's


@dataclass(frozen=True, eq=False)
class PinnedHead:
    """A head with logits (x_n + p_n)^T form (x_t + p_t), how it is trained, and a length at which it is tested.

    `values` holds a score for every token read and answer. `moment` is what Adam's and AdamW's first
    moment holds at the start; with `centred` the head reads the table less its mean row.
    """

    embeddings: Float64[np.ndarray, "token dim"]
    form: Float64[np.ndarray, "dim dim"]
    values: Float64[np.ndarray, "token token"]
    table: Float64[np.ndarray, "position dim"]
    sequences: tuple[tuple[int, ...], ...]
    trained_below: int
    offset: int
    optimizer: Literal["sgd", "adamw", "adam"]
    decay: float = 1e-2
    rate: float = 1e-3
    steps: int = 3
    moment: float = 0.0
    centred: bool = False

    @property
    def test_length(self) -> int:
        """The whole table is read at test."""
        return len(self.table)

    @property
    def untrained(self) -> list[int]:
        """Positions from L_max on, and those of query and target at the test length."""
        return sorted({*range(self.trained_below, self.test_length), self.test_length - 1 - self.offset})

    def loss(self, tables: Float64[np.ndarray, "copy position dim"]) -> Float64[np.ndarray, "copy"]:
        """Mean cross-entropy over the training sequences, for every table."""
        read = tables - tables.mean(axis=1, keepdims=True) if self.centred else tables
        total = np.zeros(len(tables))
        for tokens in self.sequences:
            content = self.embeddings[list(tokens)] + read[:, : len(tokens)]
            attention = np.exp(np.einsum("cd,de,cte->ct", content[:, -1], self.form, content))
            scores = (attention / attention.sum(axis=1, keepdims=True)) @ self.values[list(tokens)]
            total += np.log(np.exp(scores).sum(axis=1)) - scores[:, tokens[-1 - self.offset]]
        return total / len(self.sequences)

    def gradient(self, table: Float64[np.ndarray, "position dim"]) -> Float64[np.ndarray, "position dim"]:
        """dLoss/dp by central differences: exactly 0 for a row that the loss does not read."""
        nudges = _DIFFERENCE * np.eye(table.size).reshape(-1, *table.shape)
        return ((self.loss(table + nudges) - self.loss(table - nudges)) / (2 * _DIFFERENCE)).reshape(table.shape)

    def trained(self, scale: float = 1.0) -> Float64[np.ndarray, "position dim"]:
        """The table after training, optimizers as their papers write them; `scale` multiplies lambda and eps."""
        table, first, second = self.table, np.full_like(self.table, self.moment), np.zeros_like(self.table)
        for step in range(1, self.steps + 1):
            decay = scale * self.decay * table
            gradient = self.gradient(table) + (0 if self.optimizer == "adamw" else decay)
            first = first + 0.1 * (gradient - first)
            second = second + 0.001 * (gradient * gradient - second)
            corrected = np.sqrt(second / (1 - 0.999**step)) + scale * _EPSILON
            move = gradient if self.optimizer == "sgd" else first / (1 - 0.9**step) / corrected
            table = table - self.rate * (move + (decay if self.optimizer == "adamw" else 0))
        return table


def _numbers(case: PinnedHead) -> dict[str, float]:
    """Of the untrained rows: the gradient, and after training the distance from the optimizer's own map."""
    law = (CoupledAdam if case.optimizer == "adam" else Decay)(case.rate, case.decay)
    gradient, off_map = case.gradient(case.table), case.trained() - law.after(case.table, case.steps)
    return {
        "gradient of an untrained row": float(np.abs(gradient[case.untrained]).max()),
        "its distance from the optimizer's map": float(np.abs(off_map[case.untrained]).max()),
    }


def _residual_printed(case: PinnedHead) -> float:
    """Distance of the untrained rows from (1 - eta lambda)^n of their start, and of the accuracy from 1/m."""
    shrunk, tokens = Decay(case.rate, case.decay).after(case.table, case.steps), len(case.embeddings)
    drift = float(np.abs(case.trained() - shrunk)[case.untrained].max())
    return max(drift, abs(plurality_accuracy(tokens, case.test_length) - 1 / tokens))


def _residual_amended(case: PinnedHead) -> float:
    """Gradient of untrained rows, distance from the optimizer's own map, and of the accuracy from an enumeration."""
    tokens, length = len(case.embeddings), case.test_length
    accuracy = plurality_accuracy(tokens, length)
    least = 1 / tokens + tokens ** (1.0 - length) * (1 - 1 / tokens)
    failures = [*_numbers(case).values(), abs(accuracy - _enumerated(tokens, length)), least - accuracy]
    if case.optimizer == "adam":
        failures.append(float(np.abs(case.trained() - case.trained(scale=3.0))[case.untrained].max()))
    return max(failures)


def plurality_accuracy(tokens: int, length: int) -> float:
    """E[largest count]/L: all of the L tokens' m counts are k or less in L! [x^L] (sum_{j<=k} x^j/j!)^m sequences."""
    reciprocals = np.array([1 / math.factorial(j) for j in range(length + 1)])
    expected = 0.0
    for largest in range(length):
        power = np.eye(1, length + 1)[0]
        for _ in range(tokens):
            power = np.convolve(power, reciprocals[: largest + 1])[: length + 1]
        expected += 1 - float(power[length]) * math.factorial(length) / tokens**length
    return expected / length


def _enumerated(tokens: int, length: int) -> float:
    """How often the plurality of a sequence, ties shared, is its first token: over all m^L sequences."""
    sequences = np.indices((tokens,) * length).reshape(length, -1)
    counts = np.stack([(sequences == token).sum(axis=0) for token in range(tokens)])
    winners = counts == counts.max(axis=0)
    return float((winners[sequences[0], np.arange(sequences.shape[1])] / winners.sum(axis=0)).mean())


@cache
def _prove_amended() -> tuple[ProofStep, ...]:
    return (*_prove_no_gradient(), *_prove_recurrences(), *_prove_above_chance())


def _prove_no_gradient() -> tuple[ProofStep, ...]:
    length, width, longest = sympy.symbols("L d L_max", integer=True, positive=True)
    back, beyond, target = sympy.symbols("s r K", integer=True, nonnegative=True)
    a, b, c = sympy.symbols("a b c", integer=True)
    x, p, form = (sympy.IndexedBase(name, real=True) for name in ("x", "p", "W"))
    n, t, test = length - 1, length - 1 - back, longest + target + 1 + beyond
    logit = sympy.Sum((x[n, a] + p[n, a]) * form[a, b] * (x[t, b] + p[t, b]), (a, 0, width - 1), (b, 0, width - 1))
    previous = logit.subs({back: 1, width: 1}).doit().diff(p[length - 2, 0])
    return (
        ProofStep(
            "d/dp_j of the logit of query n = L-1 and key n-s is 0 for j = L + r: any L, s, r, width and coordinate",
            logit.diff(p[length + beyond, c]).doit() == 0,
        ),
        ProofStep("for j = n-1, a row that is read, it is not", previous == (x[n, 0] + p[n, 0]) * form[0, 0]),
        ProofStep(
            "L' > L_max + K: the rows of query and target, L'-1 and L'-1-K, are L_max or more",
            bool((test - 1 - longest).is_nonnegative) and bool((test - 1 - target - longest).is_nonnegative),
        ),
    )


def _prove_recurrences() -> tuple[ProofStep, ...]:
    eta, decay, eps, p, m, v, b1, b2 = sympy.symbols("eta lambda epsilon p m v beta_1 beta_2", positive=True)
    n, t = sympy.Symbol("n", integer=True), sympy.Symbol("t", integer=True, positive=True)
    row, zero, either = sympy.Function("p"), sympy.S.Zero, sympy.Symbol("p", real=True, nonzero=True)

    def moments(gradient: sympy.Expr, m: sympy.Expr, v: sympy.Expr) -> tuple[sympy.Expr, sympy.Expr]:
        return b1 * m + (1 - b1) * gradient, b2 * v + (1 - b2) * gradient**2

    def move(m: sympy.Expr, v: sympy.Expr, eps: sympy.Expr, t: sympy.Expr) -> sympy.Expr:
        return -eta * (m / (1 - b1**t)) / (sympy.sqrt(v / (1 - b2**t)) + eps)

    sgd = sympy.rsolve(row(n + 1) - (row(n) - eta * decay * row(n)), row(n), {row(0): p})
    adamw = p - eta * decay * p + move(*moments(zero, zero, zero), eps, t)
    start = move(*moments(decay * either, zero, zero), eps, sympy.S.One)
    ours, unit = moments(decay * p, decay * m, decay**2 * v), moments(p, m, v)
    shrunk = p * (1 - eta * decay) ** n
    first, damped = start.subs(either, p), eta * eps / (decay * p + eps)
    return (
        _zero("SGD with zero gradient of the loss: n steps give (1 - eta lambda)^n p", sgd - shrunk),
        _zero("AdamW: moments of a zero gradient stay 0", *moments(zero, zero, zero)),
        _zero("and with moments 0 its step gives (1 - eta lambda) p", adamw - shrunk.subs(n, 1)),
        _zero("coupled Adam's first step on p > 0: -eta (1 - eps/(lambda p + eps))", first + eta - damped),
        _zero("it tends to -eta as eps goes to 0", first.limit(eps, 0) + eta),
        _zero("and is odd in p", start + start.subs(either, -either)),
        _zero("moments lambda m, lambda^2 v stay so", ours[0] - decay * unit[0], ours[1] - decay**2 * unit[1]),
        _zero("so every step is that of decay 1 and eps/lambda", move(*ours, eps, t) - move(*unit, eps / decay, t)),
    )


def _prove_above_chance() -> tuple[ProofStep, ...]:
    more, longer = sympy.symbols("q r", integer=True, nonnegative=True)
    m, length, y = more + 2, longer + 1, sympy.Symbol("y", integer=True)
    agree = m ** (1 - length)
    gain = (1 - agree) / m + agree - 1 / m
    counted = sympy.Sum(length / m, (y, 0, m - 1)).doit()
    return (
        _zero("m counts of L/m add up to L, so that the largest of m counts is L/m or more", counted - length),
        _zero("all L tokens agree with probability m/m^L = m^(1-L)", m * (1 / m) ** length - agree),
        _zero("so E[largest]/L - 1/m is m^(1-L) (1 - 1/m) or more", gain - agree * (1 - 1 / m)),
        ProofStep("which is above 0 for every m >= 2 and L >= 1", bool(sympy.simplify(gain).is_positive)),
    )


def _zero(text: str, *expressions: sympy.Expr) -> ProofStep:
    return ProofStep(text, all(sympy.simplify(expression) == 0 for expression in expressions))


def _head(rng: np.random.Generator, tokens: int, width: int, longest: int, offset: int, test_length: int) -> PinnedHead:
    lengths = [longest, *rng.integers(offset + 1, longest + 1, size=2)]
    sequences = tuple(tuple(rng.integers(tokens, size=length).tolist()) for length in lengths)
    embeddings, form, values = (rng.normal(size=shape) for shape in ((tokens, width), (width, width), (tokens, tokens)))
    # Adam's step is eta sign(p) where lambda |p| >> eps: rows stay 0.1 away from 0.
    table = rng.uniform(0.1, 2, size=(test_length, width)) * rng.choice([-1.0, 1.0], size=(test_length, width))
    return PinnedHead(embeddings, form, values, table, sequences, longest, offset, "adam")


def _draw(rng: np.random.Generator) -> PinnedHead:
    longest, offset = int(rng.integers(3, 5)), int(rng.integers(1, 3))
    test_length = longest + offset + int(rng.integers(1, 3))
    case = _head(rng, int(rng.integers(2, 5)), int(rng.integers(1, 4)), longest, offset, test_length)
    optimizers: tuple[Literal["sgd", "adamw", "adam"], ...] = ("sgd", "adamw", "adam")
    return replace(case, optimizer=optimizers[int(rng.integers(3))], decay=float(rng.choice([1e-4, 1e-2])))


@cache
def _counterexamples() -> tuple[Counterexample[PinnedHead], ...]:
    rng = np.random.default_rng(0)
    small, vocabulary = _head(rng, 2, 2, 4, 2, 7), replace(_head(rng, 20, 1, 16, 2, 20), optimizer="sgd")
    alone = replace(_head(rng, 1, 1, 4, 2, 7), table=np.ones((7, 1)), decay=1e-4, steps=1)
    one_step = {"p": float(alone.trained()[-1, 0]), "geometric": 1 - 1e-7, "printed norm": 0.20}
    for decay in (1e-4, 1e-2):
        one_step[f"geometric norm at {decay:g}"] = Decay(1e-3, decay).row_norm(64, 4000).mean
        one_step[f"coupled Adam's at {decay:g}"] = CoupledAdam(1e-3, decay).row_norm(64, 4000).mean
    uniform = {f"accuracy at L={length}": plurality_accuracy(20, length) for length in (20, 48)} | {"1/m": 1 / 20}
    by_adam = "one step of coupled Adam on p = 1 at 1e-4 (one token: chance is 1); norms of rows of 64 after 4000"
    dropped = (
        ("short-training", "a training sequence of L_max + 1", replace(small, sequences=((0, 1, 1, 0, 1),))),
        ("row-lookup", "the head reads the table less its mean row", replace(small, centred=True)),
        ("far-test", "L' = L_max + K: the target's row is the last trained", replace(small, table=small.table[:6])),
        ("from-rest", "Adam's first moment holds 0.1 from earlier training", replace(small, moment=0.1)),
    )
    return (
        Counterexample(PRINTED, by_adam, alone, one_step),
        Counterexample(PRINTED, "uniform attention answered by plurality, m = 20", vocabulary, uniform),
        *(Counterexample(drop, text, case, _numbers(case)) for drop, text, case in dropped),
    )


STATEMENT = Statement(
    row=12,
    id="proposition-2",
    label="Proposition 2, position pinning",
    printed=Wording(
        claim="Rows of positions never trained get no gradient: weight decay multiplies them by 1 - eta lambda a step, "
        "and at lengths that need them accuracy is at chance, 1/m.",
        recorded=Verdict.REFUTED,
        residual=_residual_printed,
    ),
    amended=Wording(
        claim="They get no gradient and move by the optimizer's own map: geometric for SGD and AdamW, free of lambda "
        "up to eps/lambda for Adam with coupled L2. Query and target are such rows from L_max + K + 1 on. Uniform "
        "attention answered by plurality is then right with E[largest count]/L, above 1/m.",
        recorded=Verdict.PROVED,
        residual=_residual_amended,
        prove=_prove_amended,
    ),
    assumptions=(
        Assumption(
            "short-training",
            "no training sequence is longer than L_max",
            lambda case: max(map(len, case.sequences)) <= case.trained_below,
        ),
        Assumption("row-lookup", "the loss reads the table row by row", lambda case: not case.centred),
        Assumption("far-test", "L' > L_max + K", lambda case: case.test_length > case.trained_below + case.offset),
        Assumption("from-rest", "the optimizer's moments start at 0", lambda case: case.moment == 0),
    ),
    draw=_draw,
    tolerance=1e-12,
    tolerance_reason="a row not read has difference quotients of exactly 0; three steps of a dozen roundings move rows "
    "of size 2 by 1e-14; accuracies are float64 sums over 65536 sequences at most",
    counterexamples=_counterexamples,
)
