"""Remark on the residual: what it adds to the variance of a logit depends on the offset.

Key rho u + xi, mean query rho R_-K u, |u| = 1, g the kernel, s = delta + K. Under Cov xi = C,

    Var(m_Q^T R_delta xi) = v^T C v,   v = rho R_-s u,
    C = sigma^2 (I - u u^T):   rho^2 sigma^2 (1 - g(s)^2), 0 at the target;     C = sigma^2 I:   rho^2 sigma^2,
    Var(logit) = v^T C v + m_K^T R^T S_Q R m_K + tr(S_Q R C R^T)      for query residuals of covariance S_Q.

Refuted is the constant rho^2 sigma^2, by its own assumption: xi is perpendicular to u, and at the target
v is parallel to it. The constant belongs to isotropic xi, which are not perpendicular to u, and the two
terms of the query's residual come on top. At d=64, base 1e4 and equal energy the variance one token off
the target is .0666 of the constant: selection against near rivals is easier than the remark has it.
I - u u^T has rank d-1, the covariance of m tokens m-1 at most: with 20 tokens and d=64 the assumption
cannot hold, with m = d it can (a regular simplex).

Source: arXiv 2607.18759, the remark after Proposition 1 and the end of appendix A.3.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import sympy
from jaxtyping import Float64
from scipy.linalg import block_diag, null_space
from sympy.simplify.simplify import factor_sum

from theory.head import Head
from theory.kernel import kernel
from theory.schedule import RotarySchedule
from theory.statements.statement import (
    PRINTED,
    Assumption,
    Counterexample,
    ProofStep,
    Statement,
    Verdict,
    Wording,
    rot,
    vanishes,
)

_LENGTH = 48  # offsets 0..-47, the paper's longest


@dataclass(frozen=True, eq=False)
class ResidualHead:
    """Queries and keys of equally likely tokens about a carrier, and a target K.

    sigma^2 is the greatest variance of a key along a direction; `own_key` pairs every query with its own token's key.
    """

    schedule: RotarySchedule
    direction: Float64[np.ndarray, "dim"]
    rho: float
    queries: Float64[np.ndarray, "query dim"]
    keys: Float64[np.ndarray, "key dim"]
    offset: int
    own_key: bool = False

    @property
    def covariances(self) -> tuple[Float64[np.ndarray, "dim dim"], Float64[np.ndarray, "dim dim"]]:
        """Those of the queries and of the keys."""
        return np.cov(self.queries.T, bias=True), np.cov(self.keys.T, bias=True)

    @property
    def variance(self) -> float:
        """sigma^2."""
        return float(np.linalg.eigvalsh(self.covariances[1])[-1])

    def logits(self) -> Float64[np.ndarray, "query offset key"]:
        """Unscaled scores over rho sigma, of every query with every key."""
        of_query, of_key = (np.full(len(rows), 1 / len(rows)) for rows in (self.queries, self.keys))
        head = Head(self.schedule, self.queries, of_query, self.queries[:, None], self.keys, of_key, 1.0)
        return head.logits(-np.arange(_LENGTH)) / (self.rho * np.sqrt(self.variance))

    def fluctuation(self) -> Float64[np.ndarray, "offset"]:
        """Var(m_Q^T R_delta xi) / (rho^2 sigma^2), over the key's token."""
        return self.logits().mean(axis=0).var(axis=1)

    def whole(self) -> Float64[np.ndarray, "offset"]:
        """Var(logit) / (rho^2 sigma^2), over both tokens."""
        table = self.logits()
        return np.einsum("ada->da", table).var(axis=1) if self.own_key else table.var(axis=(0, 2))

    def query_terms(self) -> Float64[np.ndarray, "offset"]:
        """m_K^T R^T S_Q R m_K + tr(S_Q R S_K R^T), over rho^2 sigma^2, with R written out."""
        of_queries, second = self.covariances[0], self.keys.T @ self.keys / len(self.keys)
        turns = (_rotation(self.schedule, -j) for j in range(_LENGTH))
        return np.array([np.trace(of_queries @ r @ second @ r.T) for r in turns]) / (self.rho**2 * self.variance)


def _rotation(schedule: RotarySchedule, position: int) -> Float64[np.ndarray, "dim dim"]:
    angles = position * schedule.frequencies
    return block_diag(*([[np.cos(a), -np.sin(a)], [np.sin(a), np.cos(a)]] for a in angles))


def _residual_printed(case: ResidualHead) -> float:
    """Distance of the fluctuation from the constant, over rho^2 sigma^2."""
    return float(np.abs(case.fluctuation() - 1).max())


def _residual_amended(case: ResidualHead) -> float:
    """Distance of the fluctuation from 1 - g^2 and of the whole variance from the sum of its terms, likewise."""
    weights = np.square(case.direction).reshape(-1, 2).sum(axis=1)
    law = 1 - kernel(weights, case.schedule.frequencies, case.offset - np.arange(_LENGTH)) ** 2
    fluctuation, whole = case.fluctuation() - law, case.whole() - law - case.query_terms()
    return float(max(np.abs(fluctuation).max(), np.abs(whole).max()))


@cache
def _prove_amended() -> tuple[ProofStep, ...]:
    d, m = sympy.symbols("d m", integer=True, positive=True)
    tokens, mix = sympy.MatrixSymbol("X", m, d), sympy.MatrixSymbol("W", m, m)
    u, v, unit = sympy.MatrixSymbol("u", d, 1), sympy.MatrixSymbol("v", d, 1), sympy.Identity(d)
    second = ((tokens * v).T * mix * (tokens * v) - v.T * (tokens.T * mix * tokens) * v).doit()
    beside = (v.T * (unit - u * u.T) * v).expand() - (v.T * v - (v.T * u) * (u.T * v))
    i, h = sympy.Symbol("i", integer=True), sympy.Symbol("h", integer=True, positive=True)
    s, rho, sigma, g = sympy.symbols("s rho sigma g", real=True)
    theta, lane, p = sympy.IndexedBase("theta", real=True), sympy.IndexedBase("u", real=True), sympy.IndexedBase("p")
    pair = sympy.Matrix([lane[2 * i], lane[2 * i + 1]])
    turned, share = rot(-s * theta[i]) * pair, (pair.T * pair)[0]
    terms = p[i] * sympy.cos(s * theta[i]), p[i]
    product, square = (sympy.Sum(c * t, (i, 0, h - 1)) for c, t in zip((rho, rho**2), terms, strict=True))
    g_sum, shares = (sympy.Sum(t, (i, 0, h - 1)) for t in terms)
    law = sigma**2 * (factor_sum(square) - factor_sum(product) ** 2).subs({g_sum: g, shares: 1})
    return (
        ProofStep("E (v^T xi)^2 = v^T (X^T W X) v for any m tokens and width d", second == sympy.ZeroMatrix(1, 1)),
        ProofStep(
            "v^T (I - u u^T) v = v^T v - (u^T v)^2 and v^T I v = v^T v: isotropic xi lose the second term",
            beside.doit() == sympy.ZeroMatrix(1, 1) and (v.T * unit * v).doit() == v.T * v,
        ),
        ProofStep(
            "block i of R_-s u has the length of block i of u, and their product is p_i cos(s theta_i)",
            vanishes((turned.T * turned)[0] - share)
            and vanishes((pair.T * turned)[0] - share * sympy.cos(s * theta[i])),
        ),
        ProofStep(
            "over blocks 0..h-1, h symbolic, sum p_i = 1: sigma^2 (v^T v - (u^T v)^2) = rho^2 sigma^2 (1 - g^2)",
            sympy.expand(law - rho**2 * sigma**2 * (1 - g**2)) == 0,
        ),
        ProofStep(
            "at the target s = 0, where g = sum p_i = 1, that is 0; it is rho^2 sigma^2 iff g = 0",
            g_sum.subs(s, 0) == shares
            and law.subs(g, 1) == 0
            and sympy.solve(sympy.Eq(law, rho**2 * sigma**2), g) == [0],
        ),
        *_whole_logit_steps(),
        ProofStep(
            "(I - u u^T) v = v - u (u^T v): only multiples of u go to 0, the rank is d-1",
            ((unit - u * u.T) * v).expand() - (v - u * (u.T * v)) == sympy.ZeroMatrix(d, 1),
        ),
        _centring_step(),
    )


def _whole_logit_steps() -> tuple[ProofStep, ...]:
    """Entry by entry: the residuals x of the query and y of the key over tokens j and k with weights w."""
    j, k = sympy.symbols("j k", integer=True)
    tokens, w = sympy.Symbol("m", integer=True, positive=True), sympy.IndexedBase("w")
    x, x2, y, y2 = (sympy.IndexedBase(name) for name in ("x_a", "x_b", "y_c", "y_e"))

    def mean(over_query: sympy.Expr, over_key: sympy.Expr) -> sympy.Expr:
        inner = factor_sum(sympy.Sum(w[j] * w[k] * over_query * over_key, (k, 0, tokens - 1)))
        return factor_sum(sympy.Sum(inner, (j, 0, tokens - 1)))

    query, query2 = (sympy.Sum(w[j] * f, (j, 0, tokens - 1)) for f in (x[j], x[j] * x2[j]))
    key, key2 = (sympy.Sum(w[k] * f, (k, 0, tokens - 1)) for f in (y[k], y[k] * y2[k]))
    crossed = (mean(x[j], y[k]), mean(x[j] * x2[j], y[k]), mean(x[j], y[k] * y2[k]))
    return (
        ProofStep(
            "E[x_a x_b y_c y_e] = (S_Q)_ab (S_K)_ce for independent tokens: E (x^T R y)^2 = tr(S_Q R S_K R^T)",
            mean(x[j] * x2[j], y[k] * y2[k]) == query2 * key2,
        ),
        ProofStep(
            "m_Q^T R y, x^T R m_K and x^T R y are uncorrelated: each product has a factor E[x_a] or E[y_c], which is 0",
            all(term != 0 and term.subs({query: 0, key: 0}) == 0 for term in crossed),
        ),
    )


def _centring_step() -> ProofStep:
    j, m, mean = sympy.Symbol("j", integer=True), sympy.Symbol("m", integer=True, positive=True), sympy.Symbol("M")
    w, z = sympy.IndexedBase("w"), sympy.IndexedBase("z")
    total, weights = sympy.Sum(w[j] * z[j], (j, 0, m - 1)), sympy.Sum(w[j], (j, 0, m - 1))
    left = total - factor_sum(sympy.Sum(w[j] * mean, (j, 0, m - 1)))
    return ProofStep(
        "the m residuals z_j - M obey sum w_j (z_j - M) = 0: they span m-1 directions at most, and so does X^T W X",
        left.subs({weights: 1, mean: total}) == 0,
    )


def _simplex(tokens: int, directions: Float64[np.ndarray, "dim rank"]) -> Float64[np.ndarray, "token dim"]:
    """Centred points with covariance D D^T over equally likely tokens, in at most tokens - 1 directions."""
    return np.sqrt(tokens) * null_space(np.ones((1, tokens)))[:, : directions.shape[1]] @ directions.T


def _head(
    schedule: RotarySchedule,
    key: Float64[np.ndarray, "dim"],
    query_residuals: Float64[np.ndarray, "query dim"],
    key_residuals: Float64[np.ndarray, "key dim"],
    offset: int,
) -> ResidualHead:
    rho = float(np.linalg.norm(key))
    queries = schedule.rotate(key, np.array(-offset)) + query_residuals
    return ResidualHead(schedule, key / rho, rho, queries, key + key_residuals, offset)


def _draw(rng: np.random.Generator) -> ResidualHead:
    dim = 2 * int(rng.integers(1, 6))
    schedule = RotarySchedule.geometric(dim, float(10 ** rng.uniform(1, 5)))
    key, queries = rng.normal(size=dim), rng.normal(size=(int(rng.integers(2, 9)), dim))
    residuals = rng.uniform(0.3, 2) * _simplex(dim + int(rng.integers(4)), null_space(key[None]))
    return _head(schedule, key, queries - queries.mean(axis=0), residuals, int(rng.integers(6)))


def _counterexamples() -> tuple[Counterexample[ResidualHead], ...]:
    none, unit = np.zeros((2, 2)), np.array([1.0, 0.0])
    pair = _head(RotarySchedule.geometric(2, 1e4), unit, none, np.array([[0.0, 1], [0, -1]]), 2)
    equal, wide = np.full(64, 1 / 8), RotarySchedule.geometric(64, 1e4)
    beside = null_space(equal[None])
    full = _head(wide, equal, np.zeros((1, 64)), _simplex(64, beside), 2)
    few = _head(wide, equal, np.zeros((1, 64)), _simplex(20, beside[:, :19]), 2)
    isotropic = _head(pair.schedule, unit, none, _simplex(3, np.eye(2)), 2)
    late = replace(pair, queries=pair.schedule.rotate(pair.queries, np.full(2, -1)))
    own = replace(pair, queries=pair.queries + pair.keys - pair.keys.mean(axis=0), own_key=True)
    projected = "projected-covariance"
    examples = (
        (PRINTED, "d=2, theta=1, u = (1, 0), two tokens xi = (0, 1), (0, -1), K=2: it is sin^2(delta + 2)", pair),
        (PRINTED, "d=64, base 1e4, equal energy, K=2, 64 tokens in a regular simplex beside u", full),
        (projected, "the first case with isotropic residuals of three tokens: the constant is theirs", isotropic),
        (projected, "d=64 with 20 tokens, a regular simplex beside u: rank 19 of the 63 needed", few),
        ("aligned", "the first case with the query turned for 3 back: it is sin^2(delta + 3)", late),
        ("independent-tokens", "every key of the query's own token, with equal residuals: correlated terms", own),
    )
    return tuple(Counterexample(dropped, text, case, _numbers(case)) for dropped, text, case in examples)


def _numbers(case: ResidualHead) -> dict[str, float]:
    found, at = case.fluctuation(), case.offset
    return {
        **{f"Var(m_Q^T R xi)/rho^2 sigma^2 at -{j}": float(found[j]) for j in (at, at - 1)},
        f"Var(logit)/rho^2 sigma^2 at -{at - 1}": float(case.whole()[at - 1]),
        "rank of Cov xi": float(np.linalg.matrix_rank(case.covariances[1])),
    }


def _is_projected(case: ResidualHead) -> bool:
    wanted = case.variance * (np.eye(case.schedule.dim) - np.outer(case.direction, case.direction))
    found, mean = case.covariances[1], case.keys.mean(axis=0)
    return _near(found, wanted, case.variance) and _near(mean, case.rho * case.direction, case.rho)


def _is_aligned(case: ResidualHead) -> bool:
    wanted = case.rho * case.schedule.rotate(case.direction, np.array(-case.offset))
    return _near(case.queries.mean(axis=0), wanted, case.rho)


def _near(found: Float64[np.ndarray, "..."], wanted: Float64[np.ndarray, "..."], size: float) -> bool:
    return np.allclose(found, wanted, rtol=0, atol=1e-12 * size)


STATEMENT = Statement(
    row=5,
    id="residual-variance",
    label="Remark, residual variance",
    printed=Wording(
        claim="Key residuals of covariance sigma^2 (I - u u^T) add the variance rho^2 sigma^2 to every logit, the same "
        "at all offsets.",
        recorded=Verdict.REFUTED,
        residual=_residual_printed,
    ),
    amended=Wording(
        claim="They add rho^2 sigma^2 (1 - g(delta+K)^2) through the mean query, 0 at the target; isotropic ones would "
        "add the constant. The query's residuals add two terms of their own. It takes d tokens or more.",
        recorded=Verdict.PROVED,
        residual=_residual_amended,
        prove=_prove_amended,
    ),
    assumptions=(
        Assumption("projected-covariance", "keys have mean rho u and covariance sigma^2 (I - u u^T)", _is_projected),
        Assumption("aligned", "queries have mean rho R_-K u", _is_aligned),
        Assumption(
            "independent-tokens", "the key's token is independent of the query's", lambda case: not case.own_key
        ),
    ),
    draw=_draw,
    tolerance=1e-10,
    tolerance_reason="variances of at most 64^2 float64 logits below 1e2 rho sigma, each off by 1e-14 of that or less, "
    "their squares by 1e-11 at the most",
    counterexamples=_counterexamples,
)
