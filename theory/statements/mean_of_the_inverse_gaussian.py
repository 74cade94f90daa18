"""Mean of the inverse: for Gaussian logits E[1/a] is a sum of exponentials; 1/E[a] is another matter.

With 1/a(L) = sum_delta e^(l(delta) - l(-K)) and Gaussian logits of means phi, variances v and
covariances c with the target's,

    E[1/a(L)] = 1 + sum_{delta != -K} e^(phi(delta) - phi(-K) + (v(delta) + v(-K) - 2 c(delta))/2),

so that a tail of keys of one mean and one spread about the target adds the same for each key: E[1/a]
is linear in L. 1/E[a] <= E[1/a] (Jensen) is not. Where all tail keys share one residual, each has the
same weight W over the target's, 1/a = Y + n W after n of them, and

    d^2/dn^2 1/E[1/x] = -2 (E[1/x] E[W^2/x^3] - E[W/x^2]^2) / E[1/x]^3,   x = Y + n W,

is below 0 by Cauchy-Schwarz unless W/Y is one number: strictly concave. With residuals of their own
it may be convex instead. The least of examples: a target of mean 0 among rivals fixed at 0 nats has
1/E[a] = 1, 2 at L = 1, 2 and less than L from L = 3 on, though E[1/a] = 1 + (L-1) e^(v/2).

So a fit of 1/a on L means nothing by itself for attention averaged over sequences. As a law for real
heads it is useless: e^(v/2) at variances of some nats^2 is far from anything seen.

Source: ours; compare arXiv 2607.18759, Corollary 2 and Table 2 (fit).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import sympy
from jaxtyping import Float64
from scipy.special import softmax

from theory.statements.statement import Assumption, Counterexample, ProofStep, Statement, Verdict, Wording, vanishes

_NODES = 48
_ROUNDING = 1e-9


@dataclass(frozen=True, eq=False)
class RandomLogits:
    """Logits l(-j) = mean_j + loadings_j . z with independent factors z of variance 1, a target and a tail.

    The factors are normal, or `signs`: 1 or -1 with equal chance. The tail starts `tail` tokens back.
    """

    means: Float64[np.ndarray, "offset"]
    loadings: Float64[np.ndarray, "offset factor"]
    target: int
    tail: int
    signs: bool = False

    def formula(self) -> Float64[np.ndarray, "length"]:
        """E[1/a] from means and covariances, without and with 1, 2, ... keys of the tail."""
        covariance = self.loadings @ self.loadings.T
        spread = np.diag(covariance) + covariance[self.target, self.target] - 2 * covariance[self.target]
        return np.cumsum(np.exp(self.means - self.means[self.target] + spread / 2))[self.tail - 1 :]

    def inverses(self) -> Float64[np.ndarray, "two length"]:
        """E[1/a] and 1/E[a] at the same lengths: the softmax at every node of a product rule over the factors."""
        nodes, weights = np.array([-1.0, 1.0]), np.ones(2)
        if not self.signs:
            nodes, weights = np.polynomial.hermite_e.hermegauss(_NODES)
        factors = self.loadings.shape[1]
        grid = np.stack(np.meshgrid(*[nodes] * factors), axis=-1).reshape(-1, factors)
        chance = np.stack(np.meshgrid(*[weights / weights.sum()] * factors), axis=-1).reshape(-1, factors).prod(axis=1)
        logits = self.means + grid @ self.loadings.T
        lengths = range(self.tail, len(self.means) + 1)
        attention = np.stack([softmax(logits[:, :length], axis=1)[:, self.target] for length in lengths], axis=1)
        return np.stack([chance @ (1 / attention), 1 / (chance @ attention)])


def _residual(case: RandomLogits) -> float:
    """Relative distance of E[1/a] from formula and line, excess of 1/E[a], plus 1 where that is not concave."""
    inverse, harmonic = case.inverses()
    misses = (
        np.abs(inverse / case.formula() - 1),
        np.abs(np.diff(inverse, 2)) / inverse[-1],
        (harmonic - inverse) / inverse,
    )
    concave = (np.diff(harmonic, 2) < -_ROUNDING).all()
    return float(max(0.0, *(miss.max() for miss in misses)) + (not concave))


@cache
def _prove() -> tuple[ProofStep, ...]:
    z, mean, sigma, rival, target = sympy.symbols("z m sigma l_j l_K", real=True)
    f, j = sympy.symbols("f j", integer=True)
    factors, tail, length = sympy.symbols("F t L", integer=True, positive=True)
    b, c = sympy.IndexedBase("b", real=True), sympy.IndexedBase("c", real=True)
    over = (f, 0, factors - 1)
    difference = sympy.Sum((b[f] - c[f]) ** 2, over)
    parts = sympy.Sum(b[f] ** 2, over) + sympy.Sum(c[f] ** 2, over) - 2 * sympy.Sum(b[f] * c[f], over)
    density = sympy.exp(-(z**2) / 2) / sympy.sqrt(2 * sympy.pi)
    generating = sympy.integrate(sympy.exp(mean + sigma * z) * density, (z, -sympy.oo, sympy.oo))
    added = sympy.Symbol("r", positive=True)
    with_tail = sympy.Sum(added, (j, tail, length - 1)).doit()
    x1, x2, y1, y2, w1, w2 = sympy.symbols("x_1 x_2 y_1 y_2 w_1 w_2", positive=True)
    n, level, more = (
        sympy.Symbol("n", nonnegative=True),
        sympy.Symbol("y", positive=True),
        sympy.Symbol("k", positive=True),
    )
    mass, mean_a = y1 + n * w1, sympy.Function("A", positive=True)(n)
    bend = (1 / mean_a).diff(n, 2) - (2 * mean_a.diff(n) ** 2 - mean_a * mean_a.diff(n, 2)) / mean_a**3
    # E[f] E[g] of one variable is a mean over two independent copies of it, 1 and 2, and may be symmetrised in them.
    schwarz = (w2**2 / (x1 * x2**3) + w1**2 / (x2 * x1**3)) / 2 - w1 * w2 / (x1 * x2) ** 2
    gap = (w2 * x1 - w1 * x2).subs({x1: mass, x2: y2 + n * w2}).expand()
    pair = 1 / (1 + n * level) + 1 / (1 + n / level) - 2 / (1 + n)
    excess = n * (n - 1) * (level - 1) ** 2 / ((1 + n * level) * (level + n) * (1 + n))
    return (
        ProofStep(
            "e^(l_j) / e^(l_K) = e^(l_j - l_K)",
            vanishes(sympy.exp(rival) / sympy.exp(target) - sympy.exp(rival - target)),
        ),
        ProofStep(
            "the variance of l_j - l_K, any number F of factors, is v_j + v_K - 2 c_j",
            sympy.simplify(sympy.expand(difference) - parts) == 0,
        ),
        ProofStep(
            "E[e^(m + sigma z)] = e^(m + sigma^2/2) for normal z",
            sympy.simplify(generating - sympy.exp(mean + sigma**2 / 2)) == 0,
        ),
        ProofStep(
            "a tail from t on whose keys add r each adds r (L-t): linear in L",
            sympy.expand(with_tail - added * (length - tail)) == 0 and with_tail.diff(length, 2) == 0,
        ),
        ProofStep(
            "E[x] E[1/x] - 1 is the mean over two copies of (x_1-x_2)^2/(2 x_1 x_2), 0 or more: 1/E[a] <= E[1/a]",
            sympy.simplify((x1 / x2 + x2 / x1) / 2 - 1 - (x1 - x2) ** 2 / (2 * x1 * x2)) == 0
            and bool(((sympy.Symbol("d", real=True)) ** 2 / (2 * x1 * x2)).is_nonnegative),
        ),
        ProofStep(
            "for x = Y + n W, A = E[1/x]: A' = -E[W/x^2], A'' = 2 E[W^2/x^3], (1/A)'' = (2 A'^2 - A A'')/A^3",
            sympy.simplify((1 / mass).diff(n) + w1 / mass**2) == 0
            and sympy.simplify((1 / mass).diff(n, 2) - 2 * w1**2 / mass**3) == 0
            and sympy.simplify(bend) == 0,
        ),
        ProofStep(
            "E[1/x] E[W^2/x^3] - E[W/x^2]^2 is the mean over two copies of (W_2 x_1 - W_1 x_2)^2/(2 x_1^3 x_2^3)",
            sympy.simplify(schwarz - (w2 * x1 - w1 * x2) ** 2 / (2 * (x1 * x2) ** 3)) == 0,
        ),
        ProofStep(
            "W_2 x_1 - W_1 x_2 = W_2 Y_1 - W_1 Y_2, for every n: all is 0 only where W/Y is one number",
            sympy.expand(gap - (w2 * y1 - w1 * y2)) == 0,
        ),
        ProofStep(
            "with y = e^-l of a symmetric law, n rivals at 0 nats: E[a] - 1/(1+n) is the mean of half "
            "n (n-1) (y-1)^2 / ((1+ny)(y+n)(1+n)): 0 at L = 1 and 2, above 0 from L = 3 on",
            sympy.simplify(pair - excess) == 0 and bool((excess / (level - 1) ** 2).subs(n, 1 + more).is_positive),
        ),
    )


def _draw(rng: np.random.Generator) -> RandomLogits:
    head, tail = int(rng.integers(1, 4)), int(rng.integers(3, 6))
    means, loadings = rng.uniform(-2, 1, size=head + 1), rng.normal(size=(head + 1, 2))
    loadings *= rng.uniform(0.5, 1, size=(head + 1, 1)) / np.linalg.norm(loadings, axis=1, keepdims=True)
    # The tail's residual is apart from the target's, so that its weight over the target's has a spread.
    target = int(rng.integers(0, head))
    loadings[-1] = -loadings[target]
    each = np.minimum(np.arange(head + tail), head)
    return RandomLogits(means[each], loadings[each], target, head)


def _counterexamples() -> tuple[Counterexample[RandomLogits], ...]:
    # A target of mean and residual z, K = 0, among rivals that stand at 0 nats.
    alone = RandomLogits(np.zeros(4), np.array([[1.0], [0.0], [0.0], [0.0]]), target=0, tail=1)
    signed, still = replace(alone, signs=True), replace(alone, loadings=np.ones((4, 1)))
    falling = replace(alone, means=np.array([0.0, 0.0, -1.0, -2.0]))
    opposed = replace(alone, means=np.zeros(3), loadings=np.array([[0.0], [1.0], [-1.0]]))
    return (
        Counterexample(
            "normal",
            "a target's residual of 1 or -1: each rival adds cosh 1, not e^(1/2)",
            signed,
            {"E[1/a] at L=2": float(signed.inverses()[0, 1]), "by the formula": float(signed.formula()[1])},
        ),
        Counterexample("level-tail", "rivals at 0, -1 and -2 nats", falling, _by_length("E[1/a]", falling)),
        Counterexample(
            "one-residual",
            "a fixed target and two rivals of residuals z and -z: convex",
            opposed,
            _by_length("1/E[a]", opposed),
        ),
        Counterexample(
            "weight-varies",
            "one residual for all keys, the target too: a is a constant and 1/E[a] is linear",
            still,
            _by_length("1/E[a]", still),
        ),
    )


def _by_length(name: str, case: RandomLogits) -> dict[str, float]:
    values = case.inverses()[["E[1/a]", "1/E[a]"].index(name)]
    return {f"{name} at L={case.tail + n}": float(value) for n, value in enumerate(values)}


def _is_level(case: RandomLogits) -> bool:
    apart = np.square(case.loadings - case.loadings[case.target]).sum(axis=1)[case.tail :]
    return bool(np.ptp(case.means[case.tail :]) == 0 and np.allclose(apart, apart[0], rtol=1e-12, atol=0))


STATEMENT = Statement(
    row=9,
    id="mean-of-the-inverse",
    label="Mean of the inverse",
    printed=None,
    amended=Wording(
        claim="For Gaussian logits E[1/a] is 1 plus the sum of e^(difference of means + half its variance), linear "
        "in L over a level tail. 1/E[a] is below it and not linear: strictly concave in L where the keys of the tail "
        "share one residual.",
        recorded=Verdict.PROVED,
        residual=_residual,
        prove=_prove,
    ),
    assumptions=(
        Assumption("normal", "differences of logits are normal", lambda case: not case.signs),
        Assumption("level-tail", "keys of the tail have one mean and one spread about the target", _is_level),
        Assumption(
            "one-residual",
            "keys of the tail have the same residual",
            lambda case: not np.ptp(case.loadings[case.tail :], axis=0).any(),
        ),
        Assumption(
            "weight-varies",
            "the weight of a tail key over that of all before the tail is not one number",
            lambda case: bool(np.ptp(case.loadings[: case.tail + 1], axis=0).any()),
        ),
    ),
    draw=_draw,
    tolerance=1e-10,
    tolerance_reason="differences of logits have a standard deviation of 2 at most: 48 Hermite nodes leave 1e-17 of "
    "E[e^(2z)], and float64 1e-13 of sums of positive terms whose exponentials reach e^18 or so",
    counterexamples=_counterexamples,
)
