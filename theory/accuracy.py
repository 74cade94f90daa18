"""Accuracy against length, from the unnormalised sums of a head that reads one token.

Token y stands K back from the query a, whose own key is at offset 0; the other keys are
independent tokens. The readout scores are sum_t p_t O[b_t, :] with softmax weights p_t, whose
common denominator changes no argmax. So y is predicted iff for every other token c

    D_c = sum_t e^(l[a, delta_t, b_t]) (O[b_t, y] - O[b_t, c]) > 0,

given a and y a constant plus a sum of independent finite-valued terms. Accuracy is the mean of
P(D_c > 0 for all c) over a and y. The keys of largest variance are enumerated, as many as 400
cases allow: near a recurrence of the kernel they outweigh the rest. In each case, with
P(D_c <= 0) by saddlepoint over the keys that are left,

    1 - sum_c P(D_c <= 0)  <=  P(D_c > 0 for all c)  <=  1 - max_c P(D_c <= 0)   (Bonferroni).

The estimate joins the same marginals by a Gaussian copula with the covariances of (D_c)_c,
reduced to one common factor. Its error has no bound but the bracket, and is small where the
enumerated keys hold most of the variance, as in a head with a carrier: elsewhere one key that
is left moves all D_c together, which no Gaussian does.

Ties go to the lower token, as argmax has it, where all keys are enumerated; the saddlepoint
knows no atoms and counts about half of a tie.

Source: ours; the task is that of arXiv 2607.18759, section 2.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float64, Int
from scipy.special import ndtr

from theory.errors import TheoryError
from theory.head import Head
from theory.inputs import Lengths, check_array, check_lengths
from theory.tails import Tails, saddlepoint_tails

# Two keys at twenty tokens.
_MOST_CASES = 400
# Logits of so many offsets at a time.
_OFFSETS = 256
# Rivals that win with a chance below e^-28 < 1e-12 count as never.
_NEVER = 28.0
# Where the bracket is narrower its middle is the estimate.
_NARROW = 1e-5
# The trapezoidal rule, worst over equal scores: 1e-5 off for 20 tokens, 4e-4 for 256, both at the strongest loading,
# 1e-6 up to .7. Loadings nearer 1 would make the integrand a step that the nodes miss.
_FACTOR_NODES = np.linspace(-5, 5, 49)
_FACTOR_WEIGHTS = np.exp(-(_FACTOR_NODES**2) / 2)
_FACTOR_STEPS = 10
_STRONGEST_LOADING = 0.95


@dataclass(frozen=True, eq=False)
class AccuracyLaw:
    """Accuracy at each length: Bonferroni's bracket and the copula's estimate within it.

    All three are exact and equal where every key is enumerated (m^(L-2) <= 400, m^(L-1) at K = 0); else the bracket
    is as good as the saddlepoint's marginals.
    """

    lengths: tuple[int, ...]
    lower: Float64[np.ndarray, "length"]
    point: Float64[np.ndarray, "length"]
    upper: Float64[np.ndarray, "length"]


def accuracy_law(head: Head, readout: Float64[np.ndarray, "key output"], offset: int, lengths: Lengths) -> AccuracyLaw:
    """Accuracy of reading the token K = `offset` back at each length, with `readout[b, y]` = (U W_V E_b)_y.

    Tokens are drawn by the head's weights. Time grows as keys^4, keys^3 a query; a length costs the copula over
    its enumerated cases, and its keys what `saddlepoint_tails` says, little where they are light: these are estimated,
    from a bound on their cumulants, to move a P(D_c <= 0) by at most 1e-4. What is added to a whole row of the readout,
    or multiplies all of it, changes nothing but by rounding. Raises TheoryError where the head is no vocabulary with
    the self key alone, where the readout is not one finite score per key and token, or where a length does not hold the
    target.
    """
    _check(head, readout)
    each = tuple(check_lengths(offset, lengths).tolist())
    held = np.flatnonzero(head.key_weights)
    rows, weights = _of_order_one(readout, held), head.key_weights[held]
    logits, self_logits = _logits(head, max(each)), head.local_logits()[:, 0]
    law = np.zeros((3, len(each)))
    for a in np.flatnonzero(head.query_weights):
        query = _Query(int(a), offset, float(self_logits[a]), logits[a][:, held], held, weights, rows)
        law += head.query_weights[a] * np.stack([query.accuracy(length) for length in each], axis=1)
    # Sums of the same terms in another order: where all three are equal, rounding must not part them.
    lower, point, upper = np.clip(law, 0, 1)
    upper = np.maximum(lower, upper)
    return AccuracyLaw(each, lower, np.clip(point, lower, upper), upper)


@dataclass(frozen=True, eq=False)
class _Query:
    """Query token `token`, the logits of the tokens that occur (`keys`) at every offset, and the readout."""

    token: int
    offset: int
    self_logit: float
    logits: Float64[np.ndarray, "offset key"]
    keys: Int[np.ndarray, "key"]
    weights: Float64[np.ndarray, "key"]
    readout: Float64[np.ndarray, "token output"]

    def accuracy(self, length: int) -> Float64[np.ndarray, "3"]:
        """Lower bound, estimate and upper bound at one length."""
        # A common factor of all keys changes no sign of D: the largest gain is 1.
        top = max(self.self_logit, float(self.logits[1:length].max(initial=-np.inf)))
        gains, rows = np.exp(self.logits[:length] - top), self.readout[self.keys]
        known = np.exp(self.self_logit - top) * self.readout[self.token]
        if self.offset == 0:
            targets = [(self.token, 1.0, known)]
        else:
            sums = known + gains[self.offset][:, None] * rows
            targets = list(zip(self.keys.tolist(), self.weights.tolist(), sums, strict=True))

        free = np.array([t for t in range(1, length) if t != self.offset], dtype=np.int64)
        heavy = _heavy(gains[free], self.weights, rows)
        case_sums, case_weights = _cases(gains[free[heavy]], self.weights, rows)
        rest = gains[np.delete(free, heavy)]
        if _never_fails(rest, self.weights, rows, [(y, fixed + case_sums) for y, _, fixed in targets]):
            return np.ones(3)
        tails, joint = saddlepoint_tails(rest, self.weights, rows), _covariance(rest, self.weights, rows)
        law = np.zeros(3)
        for y, weight, fixed in targets:
            law += weight * (_chances(_failure_scores(tails, y, fixed + case_sums), joint, y) @ case_weights)
        return law


def _logits(head: Head, length: int) -> Float64[np.ndarray, "query offset key"]:
    """The score table, a block of offsets at a time: turned queries take more memory than their logits."""
    table = np.empty((len(head.queries), length, len(head.keys)))
    for first in range(0, length, _OFFSETS):
        table[:, first : first + _OFFSETS] = head.logits(-np.arange(first, min(first + _OFFSETS, length)))
    return table


def _of_order_one(
    readout: Float64[np.ndarray, "token output"], held: Int[np.ndarray, "key"]
) -> Float64[np.ndarray, "token output"]:
    """Rows about 0, the largest score of the tokens that occur brought to between 1/2 and 1.

    Their squares then stay in float64, and a power of two leaves ties as they are.
    """
    rows = readout - (readout.max(axis=1, keepdims=True) / 2 + readout.min(axis=1, keepdims=True) / 2)
    return np.ldexp(rows, -np.frexp(np.abs(rows[held]).max())[1])


def _heavy(
    gains: Float64[np.ndarray, "free key"],
    weights: Float64[np.ndarray, "key"],
    rows: Float64[np.ndarray, "key output"],
) -> Int[np.ndarray, "heavy"]:
    """The places of the offsets whose keys are enumerated, those of largest variance over all D_c."""
    # About 0 in each row, half the sum over y and c of Var(S_y - S_c), S the scores, is the trace times their number.
    centred = rows - rows.mean(axis=1, keepdims=True)
    means = gains @ (weights[:, None] * centred)
    variance = np.square(gains) @ (weights * np.square(centred).sum(axis=1)) - np.square(means).sum(axis=1)
    ranked = np.argsort(-variance, kind="stable")
    count = 0
    while count < len(ranked) and len(weights) ** (count + 1) <= _MOST_CASES:
        count += 1
    return ranked[:count]


def _covariance(
    gains: Float64[np.ndarray, "light key"],
    weights: Float64[np.ndarray, "key"],
    rows: Float64[np.ndarray, "key output"],
) -> Float64[np.ndarray, "output output"]:
    """Covariance of the scores, sums over the offsets of a row that is drawn at each."""
    means = gains @ (weights[:, None] * rows)
    return (rows * (weights * np.square(gains).sum(axis=0))[:, None]).T @ rows - means.T @ means


def _cases(
    gains: Float64[np.ndarray, "heavy key"],
    weights: Float64[np.ndarray, "key"],
    rows: Float64[np.ndarray, "key output"],
) -> tuple[Float64[np.ndarray, "case output"], Float64[np.ndarray, "case"]]:
    """Every choice of tokens at the heavy offsets: the sum of their readout rows, and its probability."""
    sums, chances = np.zeros((1, rows.shape[1])), np.ones(1)
    for gain in gains:
        sums = (sums[:, None] + gain[:, None] * rows).reshape(-1, rows.shape[1])
        chances = np.multiply.outer(chances, weights).reshape(-1)
    return sums, chances


def _never_fails(
    gains: Float64[np.ndarray, "light key"],
    weights: Float64[np.ndarray, "key"],
    rows: Float64[np.ndarray, "key output"],
    fixed: list[tuple[int, Float64[np.ndarray, "case output"]]],
) -> bool:
    """Whether every rival beats every target in every case with a chance below e^-`_NEVER`.

    Hoeffding: of terms in [-x_t, x_t], P(R - E R <= -d) <= exp(-d^2 / (2 sum x_t^2)).
    """
    means = (weights * gains.sum(axis=0)) @ rows
    reach = (gains * np.ptp(rows, axis=1)).max(axis=1)
    distance = np.sqrt(2 * _NEVER * np.square(reach).sum())
    sums = ((y, cases + means) for y, cases in fixed)
    return all((case[:, [y]] - np.delete(case, y, axis=1) > distance).all() for y, case in sums)


def _failure_scores(
    tails: Tails, y: int, fixed: Float64[np.ndarray, "case output"]
) -> Float64[np.ndarray, "case rival"]:
    """Normal scores of P(rival c beats y) in each case, c in ascending order without y."""
    thresholds = fixed - fixed[:, y : y + 1]
    # A higher token loses a tie: it wins at D < 0 alone, a lower one at D <= 0.
    thresholds[:, y + 1 :] = np.nextafter(thresholds[:, y + 1 :], -np.inf)
    return np.delete(tails.scores(y, thresholds), y, axis=1)


def _chances(
    scores: Float64[np.ndarray, "case rival"], covariance: Float64[np.ndarray, "output output"], y: int
) -> Float64[np.ndarray, "3 case"]:
    """Lower bound, estimate and upper bound of the chance that no rival beats y, in each case.

    A rival wins where Z_c <= score_c, Z_c = loading_c F + sqrt(1 - loading_c^2) E_c; given F
    the rivals are independent, and F is integrated out.
    """
    failures = ndtr(scores)
    lower, upper = np.maximum(1 - failures.sum(axis=1), 0), 1 - failures.max(axis=1)
    point = (lower + upper) / 2
    open_cases = np.flatnonzero(upper - lower > _NARROW)
    if len(open_cases):
        loadings = _loadings(covariance, y)
        rest = np.sqrt(1 - loadings**2)
        slopes, inner = loadings / rest, scores[open_cases] / rest
        given = [ndtr(slopes * node - inner).prod(axis=1) for node in _FACTOR_NODES]
        joint = _FACTOR_WEIGHTS @ np.stack(given) / _FACTOR_WEIGHTS.sum()
        # The copula lies between the bounds of its own marginals; the rule may be off by a little.
        point[open_cases] = np.clip(joint, lower[open_cases], upper[open_cases])
    return np.stack([lower, point, upper])


def _loadings(covariance: Float64[np.ndarray, "output output"], y: int) -> Float64[np.ndarray, "rival"]:
    """Least-squares fit of corr(D_c, D_d) by loading_c loading_d, c != d, none below 0.

    D_c = S_y - S_c: the factor stands for S_y, which all rivals share with one sign. Equal and
    independent S have loadings sqrt(1/2), where the iteration starts.
    """
    joint = covariance[y, y] - covariance[y] - covariance[y][:, None] + covariance
    joint = np.delete(np.delete(joint, y, axis=0), y, axis=1)
    deviations = np.sqrt(np.maximum(np.diag(joint), 0))
    scale = np.outer(deviations, deviations)
    correlation = np.divide(joint, scale, out=np.zeros_like(joint), where=scale > 0)
    np.fill_diagonal(correlation, 0)
    loadings = np.full(len(joint), np.sqrt(0.5))
    for _ in range(_FACTOR_STEPS):
        others = np.maximum(loadings @ loadings - loadings**2, np.finfo(np.float64).tiny)
        loadings = np.clip((loadings + correlation @ loadings / others) / 2, 0, _STRONGEST_LOADING)
    return loadings


def _check(head: Head, readout: Float64[np.ndarray, "key output"]) -> None:
    tokens = len(head.keys)
    if head.window != 1 or head.sink_keys is not None:
        raise TheoryError(
            f"the accuracy law knows the self key alone, this head has {head.window} local keys"
            f"{' and a sink' if head.sink_keys is not None else ''}: give a head made by Head.from_tokens"
        )
    if len(head.queries) != tokens or tokens < 2:
        raise TheoryError(
            f"queries and keys must be the same two tokens or more, got {len(head.queries)} queries and {tokens} "
            "keys: give a head made by Head.from_tokens"
        )
    check_array("the readout (U W_V E_b)_y", readout, tokens, tokens)
