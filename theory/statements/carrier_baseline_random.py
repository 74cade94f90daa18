"""Carrier baseline: vectors with nothing in common have a carrier fraction of 1/m, whatever their width.

For m tokens with vectors x_i, E x_i = 0, uncorrelated between tokens, all of covariance S,

    E|sum_i w_i x_i|^2 = sum_ij w_i w_j E[x_i . x_j] = (sum_i w_i^2) tr S,    E|x|^2 = tr S,

so that the carrier fraction |mean|^2 / E|x|^2, as a ratio of expectations, is sum_i w_i^2: 1/m for
equal weights and never less. Refuted as printed: a baseline of 1/d. At m = 20, d = 64 it is .050,
not .016, and the paper's own start of training shows it (.04; for isotropic Gaussian rows the
fraction is Beta(d/2, (m-1)d/2), of mean 1/m and standard deviation .0086). 1/d is the share of *one
axis* in an isotropic vector: another question. The vectors need not be isotropic or Gaussian.

Source: arXiv 2607.18759, section 4.2, Tables 2 and 4 (1/d = 0.016), section 5.2 (1/d_h = 0.021).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import sympy
from jaxtyping import Float64
from sympy.simplify.simplify import factor_sum

from theory.statements.statement import PRINTED, Assumption, Counterexample, ProofStep, Statement, Verdict, Wording


@dataclass(frozen=True, eq=False)
class TokenVectors:
    """Vectors x_i = shared + spread_i A (B z)_i of m tokens, z_1..z_m independent N(0, I).

    `root` is A: A A^T is the covariance of one vector where `mixing`, B, is the identity. `weights`
    are probabilities of the tokens.
    """

    weights: Float64[np.ndarray, "token"]
    root: Float64[np.ndarray, "dim dim"]
    mixing: Float64[np.ndarray, "token token"]
    spread: Float64[np.ndarray, "token"]
    shared: Float64[np.ndarray, "dim"]

    def fraction(self) -> float:
        """E|mean|^2 / E|x|^2 by cubature: the 2n points +-sqrt(n) e_k, n = m d, are exact for quadratics."""
        tokens, width = len(self.weights), len(self.root)
        n = tokens * width
        nodes = np.sqrt(n) * np.concatenate([np.eye(n), -np.eye(n)]).reshape(2 * n, tokens, width)
        vectors = self.shared + self.spread[:, None] * (np.matmul(self.mixing, nodes) @ self.root.T)
        of_mean = np.square(self.weights @ vectors).sum(axis=-1).mean()
        of_vectors = (np.square(vectors).sum(axis=-1) @ self.weights).mean()
        return float(of_mean / of_vectors)


def _residual_printed(case: TokenVectors) -> float:
    """Distance of the fraction from one over the width."""
    return abs(case.fraction() - 1 / len(case.root))


def _residual_amended(case: TokenVectors) -> float:
    """Distance of the fraction from the sum of squared weights."""
    return abs(case.fraction() - float(np.square(case.weights).sum()))


@cache
def _prove_amended() -> tuple[ProofStep, ...]:
    i, j, k = sympy.symbols("i j k", integer=True)
    token, others = sympy.symbols("r q", integer=True, nonnegative=True)
    m, d = sympy.symbols("m d", integer=True, positive=True)
    w, variance = sympy.IndexedBase("w", real=True), sympy.IndexedBase("S", positive=True)
    # Token r < m = r + 1 + q, so that it is known to be in the range of the sum over j.
    over_tokens = sympy.Sum(w[token] * w[j] * sympy.KroneckerDelta(token, j) * variance[k], (j, 0, token + others))
    trace = sympy.Sum(variance[k], (k, 0, d - 1))
    of_mean = factor_sum(sympy.Sum(factor_sum(sympy.Sum(w[i] ** 2 * variance[k], (k, 0, d - 1))), (i, 0, m - 1)))
    squares = sympy.Sum(w[i] ** 2, (i, 0, m - 1))
    # sum_i (w_i - 1/m)^2, coefficient by coefficient: sum_i w_i^2 = W, sum_i w_i = 1, sum_i 1 = m.
    total, weight = sympy.symbols("W w", positive=True)
    gap = sympy.Poly((weight - 1 / m) ** 2, weight).all_coeffs()
    return (
        ProofStep(
            "sum_j w_r w_j E[x_rk x_jk] = w_r^2 S_kk for uncorrelated tokens, any token r < m and coordinate k",
            over_tokens.doit() == w[token] ** 2 * variance[k],
        ),
        ProofStep(
            "over tokens and coordinates, m and d symbolic: E|mean|^2 = sum w_i^2 tr S",
            of_mean == squares * trace,
        ),
        ProofStep(
            "so E|mean|^2 / E|x|^2 = sum w_i^2, free of d and of S",
            of_mean / trace == squares and not squares.has(d, variance),
        ),
        ProofStep("equal weights: sum 1/m^2 = 1/m", squares.replace(w[i], 1 / m).doit() == 1 / m),
        ProofStep(
            "no weights give less: sum w_i^2 - 1/m = sum (w_i - 1/m)^2",
            sympy.expand(gap[0] * total + gap[1] + gap[2] * m - (total - 1 / m)) == 0,
        ),
        ProofStep("1/m is 1/d where m = d alone", sympy.solve(1 / m - 1 / d, m) == [d]),
    )


def _unshared(
    tokens: int, width: int, root: Float64[np.ndarray, "dim dim"] | None = None, weights: tuple[float, ...] = ()
) -> TokenVectors:
    return TokenVectors(
        weights=np.array(weights) if weights else np.full(tokens, 1 / tokens),
        root=np.eye(width) if root is None else root,
        mixing=np.eye(tokens),
        spread=np.ones(tokens),
        shared=np.zeros(width),
    )


def _draw(rng: np.random.Generator) -> TokenVectors:
    tokens, width = int(rng.integers(1, 9)), int(rng.integers(1, 9))
    case = _unshared(tokens, width, rng.normal(size=(width, width)) + 3 * np.eye(width))
    if rng.random() < 0.5:
        case = replace(case, weights=rng.dirichlet(np.ones(tokens)))
    return replace(case, spread=np.full(tokens, rng.uniform(0.1, 10)))


def _counterexamples() -> tuple[Counterexample[TokenVectors], ...]:
    reference, four = _unshared(20, 64), _unshared(4, 2)
    shared = replace(four, shared=np.array([1.0, 0.0]))
    copies = replace(four, mixing=np.eye(4)[[0, 0, 0, 0]])
    uneven = replace(_unshared(2, 2, weights=(0.75, 0.25)), spread=np.array([1.0, 3.0]))
    return (
        Counterexample(
            PRINTED,
            "m=20, d=64, independent N(0, 1) coordinates: the mean of 20 vectors keeps 1/20 of their energy",
            reference,
            {"expected fraction": reference.fraction(), "1/m": 1 / 20, "1/d": 1 / 64},
        ),
        Counterexample(
            "nothing-shared", "four tokens in the plane about (1, 0): (1 + 2/4) / (1 + 2)", shared, _numbers(shared)
        ),
        Counterexample(
            "uncorrelated", "four tokens that are copies of one: all of it is mean", copies, _numbers(copies)
        ),
        Counterexample(
            "one-spread",
            "weights 3/4 and 1/4 of vectors of size 1 and 3: (9 + 9)/16 over 3/4 + 9/4",
            uneven,
            _numbers(uneven),
        ),
    )


def _numbers(case: TokenVectors) -> dict[str, float]:
    return {"expected fraction": case.fraction(), "sum of squared weights": float(np.square(case.weights).sum())}


STATEMENT = Statement(
    row=14,
    id="carrier-baseline",
    label="Carrier baseline",
    printed=Wording(
        claim="Vectors of width d that share no direction have a carrier fraction of 1/d.",
        recorded=Verdict.REFUTED,
        residual=_residual_printed,
    ),
    amended=Wording(
        claim="Their expected |mean|^2 over their expected |x|^2 is sum w_i^2 over the token weights w, whatever the "
        "width and the covariance: 1/m for m equally likely tokens, and no less for any weights.",
        recorded=Verdict.PROVED,
        residual=_residual_amended,
        prove=_prove_amended,
    ),
    assumptions=(
        Assumption("nothing-shared", "every vector has mean 0", lambda case: not case.shared.any()),
        Assumption(
            "uncorrelated",
            "vectors of different tokens are uncorrelated",
            lambda case: np.array_equal(case.mixing, np.eye(len(case.mixing))),
        ),
        Assumption(
            "one-spread", "all vectors have one covariance", lambda case: bool((case.spread == case.spread[0]).all())
        ),
    ),
    draw=_draw,
    tolerance=1e-11,
    tolerance_reason="float64 sums over 2n points of size sqrt n, n = m d <= 1280: relative errors stay below "
    "2n 2^-53 = 3e-13 and the fraction is 1 at most; covariances cancel out of it",
    counterexamples=_counterexamples,
)
