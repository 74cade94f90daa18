"""Corollary 2: attention on the target falls with length, by dilution.

For the softmax of a profile phi in nats, over offsets 0..-(L-1),

    1/a(L) = sum_delta e^(phi(delta) - phi(-K)),   1/a(L+1) - 1/a(L) = e^(phi(-L) - phi(-K)) > 0,
    a(L) >= 1 / (1 + (L-1) e^-mu_L),

and for mu_L > 0 that bound is above the uniform share 1/L. Refuted as printed: there phi is the
mean of the *unscaled* score q.k, while the head takes the softmax of q.k/sqrt(d). Amended: phi in
nats, and a law of the softmax of the mean profile, which is a head's own attention only where
its logits have no residuals; the margin must be the one at the length in question, because
offsets that come in later may be nearer.

Source: arXiv 2607.18759, Corollary 2 and appendix A.4.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import sympy
from jaxtyping import Float64
from sympy.simplify.simplify import sum_add

from theory.dilution import margin_bound, mean_profile_law
from theory.exact_law import exact_law
from theory.head import Head
from theory.kernel import margin, mean_profile
from theory.schedule import RotarySchedule
from theory.statements.statement import (
    PRINTED,
    Assumption,
    Counterexample,
    ProofStep,
    Statement,
    Verdict,
    Wording,
    vanishes,
)


@dataclass(frozen=True, eq=False)
class DilutedHead:
    """A head, its target, lengths from short to long, and the length at which its margin was taken."""

    head: Head
    offset: int
    lengths: tuple[int, ...]
    margin_length: int

    @property
    def profile(self) -> Float64[np.ndarray, "offset"]:
        """The mean logit in nats at every offset of the longest length."""
        return mean_profile(self.head.carrier(), max(*self.lengths, self.margin_length))

    @property
    def margin(self) -> float:
        """mu in nats at `margin_length`."""
        return margin(self.profile[: self.margin_length], self.offset).value

    def own_attention(self) -> Float64[np.ndarray, "length"]:
        """E[softmax] on the target at each length, by the exact law."""
        return exact_law(self.head, self.offset, self.lengths)


def _residual_printed(case: DilutedHead) -> float:
    """Distance of the head's attention from the softmax of the unscaled mean score."""
    unscaled = mean_profile_law(case.profile / case.head.logit_scale, case.offset, case.lengths)
    return float(np.abs(case.own_attention() - unscaled).max())


def _residual_amended(case: DilutedHead) -> float:
    """Distance from the exact form, and by how much the bound, its use or the decrease fails."""
    attention, bound = case.own_attention(), margin_bound(case.margin, case.lengths)
    law = mean_profile_law(case.profile, case.offset, case.lengths)
    failures = (
        np.abs(attention - law),
        bound - attention,
        1 / np.array(case.lengths) - bound,
        np.diff(attention),
    )
    return float(max(0.0, *(failure.max() for failure in failures)))


@cache
def _prove_amended() -> tuple[ProofStep, ...]:
    j, length = sympy.Symbol("j", integer=True), sympy.Symbol("L", integer=True, positive=True)
    phi, target = sympy.Function("phi", real=True), sympy.Symbol("K", integer=True, nonnegative=True)
    mu, excess, x = sympy.symbols("mu epsilon x", positive=True)
    rivals = sympy.Symbol("N", integer=True, positive=True)
    ratio = sympy.exp(phi(-j) - phi(-target))
    upto = sympy.Sum(ratio, (j, 0, length - 1))
    last = sympy.Sum(ratio, (j, length, length))
    added, nearest = last.doit(), sympy.exp(-mu)
    falls = bool(nearest.diff(mu).is_negative)
    return (
        ProofStep(
            "e^phi(delta) / e^phi(-K) = e^(phi(delta)-phi(-K)), term by term, and 1 at delta = -K",
            vanishes(sympy.exp(phi(-j)) / sympy.exp(phi(-target)) - ratio) and ratio.subs(j, target) == 1,
        ),
        ProofStep(
            "1/a(L+1) = 1/a(L) + e^(phi(-L)-phi(-K)) for every L",
            sum_add(upto, last, method=1) == sympy.Sum(ratio, (j, 0, length)) and added == ratio.subs(j, length),
        ),
        ProofStep("the term added is above 0: a is strictly decreasing", bool(added.is_positive)),
        ProofStep(
            "a rival mu + epsilon below the target adds less than e^-mu: e^-x falls",
            vanishes(ratio.subs(phi(-j), phi(-target) - mu - excess) - nearest * sympy.exp(-excess)) and falls,
        ),
        ProofStep(
            "N = L-1 rivals add N e^-mu at most, and 1/(1 + N x) falls in x",
            sympy.Sum(nearest, (j, 1, rivals)).doit() == rivals * nearest
            and bool((1 / (1 + rivals * x)).diff(x).is_negative),
        ),
        ProofStep(
            "1/(1 + N e^-mu) - 1/(1 + N) = N (1 - e^-mu) / ((1 + N e^-mu)(1 + N)), above 0 for mu > 0",
            vanishes(
                1 / (1 + rivals * nearest)
                - 1 / (1 + rivals)
                - rivals * (1 - nearest) / ((1 + rivals * nearest) * (1 + rivals))
            )
            and falls
            and nearest.subs(mu, 0) == 1,
        ),
    )


def _aligned(schedule: RotarySchedule, shares: Float64[np.ndarray, "pair"], nats: float, offset: int) -> Head:
    """The residual-free head of a carrier aligned with the target, its peak `nats` high."""
    scale = 1 / np.sqrt(schedule.dim)
    key = np.repeat(np.sqrt(shares / shares.sum() / 2 * nats / scale), 2)
    query = schedule.rotate(key, np.array(-offset))
    return Head.from_tokens(schedule, query[None], key[None], np.ones(1), float(scale))


def _draw(rng: np.random.Generator) -> DilutedHead:
    pairs, offset = int(rng.integers(1, 9)), int(rng.integers(0, 6))
    schedule = RotarySchedule.geometric(2 * pairs, float(rng.choice([100.0, 1e4])))
    head = _aligned(schedule, rng.uniform(0.5, 1, size=pairs), float(rng.uniform(1, 8)), offset)
    longest = offset + int(rng.integers(4, 48))
    return DilutedHead(head, offset, tuple(range(longest - 2, longest + 1)), longest)


def _counterexamples() -> tuple[Counterexample[DilutedHead], ...]:
    rng = np.random.default_rng(0)
    wide, equal = RotarySchedule.geometric(64, 1e4), np.ones(32)
    lengths = (12, 24, 48)
    steady = DilutedHead(_aligned(wide, equal, 8.0, 2), 2, lengths, 48)
    noise = rng.normal(size=(2, 20, 64))
    noise -= noise.mean(axis=1, keepdims=True)
    noisy_head = Head.from_tokens(
        wide, steady.head.queries + noise[0], steady.head.keys + noise[1], np.full(20, 1 / 20), steady.head.logit_scale
    )
    noisy = replace(steady, head=noisy_head)
    beside = replace(steady, offset=1, head=_aligned(wide, equal, 8.0, 0))
    early = DilutedHead(_aligned(RotarySchedule.geometric(2, 1e4), np.ones(1), 100.0, 2), 2, (16, 32, 48), 16)
    own, at_48 = steady.own_attention(), "attention on the target at L=48"
    unscaled = mean_profile_law(steady.profile / steady.head.logit_scale, 2, lengths)
    return (
        Counterexample(
            PRINTED,
            "d=64, base 1e4, K=2, no residuals: the softmax of the unscaled score is not the head's",
            steady,
            {at_48: float(own[-1]), "as printed": float(unscaled[-1])},
        ),
        Counterexample(
            "no-residuals",
            "the same means with 20 tokens of unit residuals: the mean of the softmax is not the softmax of the mean",
            noisy,
            {at_48: float(noisy.own_attention()[-1]), "by the law": float(_law(noisy))},
        ),
        Counterexample(
            "positive-margin",
            "target K=1 with the peak of the profile at 0: the bound is below the uniform share and says nothing",
            beside,
            {"mu in nats": beside.margin, "bound at L=48": _bound(beside), "uniform share": 1 / 48},
        ),
        Counterexample(
            "same-length",
            "one pair at 1 rad/position: the margin at L=16 does not know of the near recurrence 44 positions on",
            early,
            {at_48: float(early.own_attention()[-1]), "bound from the margin at L=16": _bound(early)},
        ),
    )


def _law(case: DilutedHead) -> float:
    return float(mean_profile_law(case.profile, case.offset, case.lengths)[-1])


def _bound(case: DilutedHead) -> float:
    return float(margin_bound(case.margin, case.lengths)[-1])


def _has_no_residuals(case: DilutedHead) -> bool:
    vectors = (case.head.queries, case.head.keys, case.head.local_keys.reshape(-1, case.head.schedule.dim))
    return all(np.array_equal(rows, np.broadcast_to(rows[0], rows.shape)) for rows in vectors) and np.array_equal(
        vectors[1][0], vectors[2][0]
    )


STATEMENT = Statement(
    row=6,
    id="corollary-2",
    label="Corollary 2, decay law",
    printed=Wording(
        claim="With phi the mean score q.k before the factor 1/sqrt(d), the target's weight is e^phi(-K) over the sum "
        "of e^phi; it is 1/(1 + (L-1) r) with r the mean rival ratio, at least 1/(1 + (L-1) e^-mu), and falls with L.",
        recorded=Verdict.REFUTED,
        residual=_residual_printed,
    ),
    amended=Wording(
        claim="It is so with phi in nats, after 1/sqrt(d), for the softmax of the mean profile, which is the head's "
        "attention where logits have no residuals; with mu_L > 0 at that length the bound is above 1/L.",
        recorded=Verdict.PROVED,
        residual=_residual_amended,
        prove=_prove_amended,
    ),
    assumptions=(
        Assumption("no-residuals", "all queries are one vector and all keys one", _has_no_residuals),
        Assumption("positive-margin", "mu > 0 where it was taken", lambda case: case.margin > 0),
        Assumption(
            "same-length",
            "the margin was taken at the longest length or beyond",
            lambda case: case.margin_length >= max(case.lengths),
        ),
    ),
    draw=_draw,
    tolerance=1e-8,
    tolerance_reason="the quadrature of the exact law is set to 1e-9 relative, attention is at most 1, "
    "and the mean-profile law sums 52 float64 exponentials at most",
    counterexamples=_counterexamples,
)
