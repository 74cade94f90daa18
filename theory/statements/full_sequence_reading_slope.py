"""Full-sequence reading: accuracy over a sequence that is read within the training range and guessed beyond.

A reader is asked for the token K back at every position 0..L-1. With accuracy a at the n_r scored
positions below L_max and c at the others, over n scored positions

    n A(L) = n_r a + (n - n_r) c,    (n A(L) - n' A(L')) / (L - L') = c whatever a is,

n_r = L_max, n = L where all are scored, K fewer of both where the first K, which have no target, are
not; c = 1/m for a guess independent of a uniform target. At a = 1, L_max = 16, K = 3, m = 20 that is
.683/.525/.367 at L = 24/32/48, or .638/.476/.324 without the first K; printed is .66/.51/.37. Refuted as
printed: for every a, those numbers, rounded to .005, need c in [.065, .095], or [.1025, .13] without the
first K, and not 1/20. (Sampling 512 sequences moves c by .0025.) At a = 1 scoring all is excluded, as
.66 is below 16/24, and without the first K it is c in [.107, .121]: of all 1/m, 1/9 alone.

m = 20 is the paper's one stated vocabulary; that of this run ("small") is not given. Either it is about
half as large, or positions out of range are right above chance, as under uniform attention
(Proposition 2). Trained weights tell which: `carrier reproduce figure-6`.

Source: arXiv 2607.18759, section 5.2, Figure 6 and the remark after the appendix proof of Proposition 2.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from itertools import combinations

import numpy as np
import sympy
from jaxtyping import Float64
from sympy.simplify.simplify import factor_sum

from theory.statements.statement import PRINTED, Assumption, Counterexample, ProofStep, Statement, Verdict, Wording

_ROUNDING = 0.005
_IN_PRINT = {24: sympy.Rational(66, 100), 32: sympy.Rational(51, 100), 48: sympy.Rational(37, 100)}
_LONGEST, _OFFSET = 16, 3


@dataclass(frozen=True, eq=False)
class Reader:
    """A reader of accuracy `in_range` at positions below `trained_below` that guesses at the others.

    `target` holds the probability of each token, `guess[y]` the distribution of the answer where y is
    asked for. The first K positions are scored with `all_scored` only. `reported` holds accuracies
    rounded to two digits, by length.
    """

    target: Float64[np.ndarray, "token"]
    guess: Float64[np.ndarray, "token token"]
    in_range: float
    trained_below: int
    offset: int
    all_scored: bool
    reported: dict[int, float]

    def accuracy(self, length: int) -> float:
        """The mean over scored positions, every target and every guess, one by one."""
        right = np.eye(len(self.target), dtype=bool)
        first = 0 if self.all_scored else self.offset
        hits = [
            self.in_range if position < self.trained_below else float((self.target[:, None] * self.guess)[right].sum())
            for position in range(first, length)
        ]
        return float(np.mean(hits))

    def slopes(self, all_scored: bool) -> tuple[float, float]:
        """The accuracies out of range that the reported numbers allow, whatever the accuracy in range."""
        unscored = 0 if all_scored else self.offset
        low, high = -np.inf, np.inf
        for short, long in combinations(sorted(self.reported), 2):
            slope = (long - unscored) * self.reported[long] - (short - unscored) * self.reported[short]
            slack = _ROUNDING * (long + short - 2 * unscored)
            low, high = max(low, (slope - slack) / (long - short)), min(high, (slope + slack) / (long - short))
        return low, high


def _residual_printed(case: Reader) -> float:
    """How far 1/m is from what the reported numbers allow, with either way of scoring."""
    return min(_outside(1 / len(case.target), case.slopes(all_scored)) for all_scored in (True, False))


def _residual_amended(case: Reader) -> float:
    """Distance of the accuracies from f a + (1 - f)/m, and of 1/m from what their rounded values allow."""
    unscored, chance = 0 if case.all_scored else case.offset, 1 / len(case.target)
    shares = {length: (case.trained_below - unscored) / (length - unscored) for length in case.reported}
    off = [abs(case.accuracy(n) - share * case.in_range - (1 - share) * chance) for n, share in shares.items()]
    return max(*off, _outside(chance, case.slopes(case.all_scored)))


def _outside(value: float, interval: tuple[float, float]) -> float:
    return max(0.0, interval[0] - value, value - interval[1])


@cache
def _prove_amended() -> tuple[ProofStep, ...]:
    i, y = sympy.symbols("i y", integer=True)
    m, longest, length, other = sympy.symbols("m L_max L M", integer=True, positive=True)
    unscored = sympy.Symbol("k", integer=True, nonnegative=True)
    a, c = sympy.symbols("a c")
    guess = sympy.IndexedBase("g")[y]
    right = (sympy.Sum(a, (i, unscored, longest - 1)) + sympy.Sum(c, (i, longest, length - 1))).doit()
    share = (longest - unscored) / (length - unscored)
    slope = (right - right.subs(length, other)) / (length - other)
    return (
        ProofStep(
            "a guess of distribution g is right with probability sum_y g_y/m = 1/m, for any m and g",
            factor_sum(sympy.Sum(guess / m, (y, 0, m - 1))) == sympy.Sum(guess, (y, 0, m - 1)) / m,
        ),
        ProofStep(
            "k positions unscored: (L_max - k) a + (L - L_max) c are right, f a + (1-f) c of L - k",
            sympy.simplify(right / (length - unscored) - share * a - (1 - share) * c) == 0,
        ),
        ProofStep(
            "the number right grows by c a position: its slope between two lengths is c, free of a and k",
            sympy.simplify(slope - c) == 0,
        ),
        *_prove_windows(right.subs(longest, _LONGEST), length, unscored, a, c),
    )


def _prove_windows(
    right: sympy.Expr, length: sympy.Symbol, unscored: sympy.Symbol, a: sympy.Symbol, c: sympy.Symbol
) -> tuple[ProofStep, ...]:
    """What the printed numbers allow, in rationals."""
    half, thousandth = sympy.Rational(1, 200), sympy.Rational(1, 1000)
    chance = sympy.Rational(1, 20)
    triples, whatever, all_right = {}, {}, {}
    for k in (0, _OFFSET):
        law = {n: (right / (length - unscored)).subs({length: n, unscored: k, a: 1}) for n in _IN_PRINT}
        triples[k] = [accuracy.subs(c, chance) for accuracy in law.values()]
        windows = {
            n: sympy.Interval((number - half) * (n - k), (number + half) * (n - k)) for n, number in _IN_PRINT.items()
        }
        whatever[k] = sympy.Intersection(
            *(
                sympy.Interval(
                    (windows[n].start - windows[o].end) / (n - o), (windows[n].end - windows[o].start) / (n - o)
                )
                for o, n in combinations(_IN_PRINT, 2)
            )
        )
        fits = [[sympy.solve(law[n] * (n - k) - end, c)[0] for end in windows[n].args[:2]] for n in _IN_PRINT]
        all_right[k] = sympy.Intersection(sympy.Interval(0, 1), *(sympy.Interval(*ends) for ends in fits))
    expected = {0: (683, 525, 367), _OFFSET: (638, 476, 324)}
    vocabularies = [m for m in range(1, 101) if sympy.Rational(1, m) in all_right[_OFFSET]]
    return (
        ProofStep(
            "a = 1, m = 20, L_max = 16, K = 3: .683/.525/.367, or .638/.476/.324 without the first K",
            all(
                abs(found - number * thousandth) <= thousandth / 2
                for k in expected
                for found, number in zip(triples[k], expected[k], strict=True)
            ),
        ),
        ProofStep(
            "whatever a is, .66/.51/.37 at L = 24/32/48 need c in [.065, .095], or [.1025, .13]: not 1/20",
            whatever[0] == sympy.Interval(65 * thousandth, 95 * thousandth)
            and whatever[_OFFSET] == sympy.Interval(thousandth * 205 / 2, 130 * thousandth)
            and chance not in whatever[0]
            and chance not in whatever[_OFFSET],
        ),
        ProofStep("with a = 1 and all scored no c fits: .665 * 24 is below 16", all_right[0] is sympy.S.EmptySet),
        ProofStep(
            "with a = 1 and the first K unscored c is in [.107, .121], and of all 1/m that is 1/9 alone",
            all_right[_OFFSET] == sympy.Interval(sympy.Rational(137, 1280), sympy.Rational(193, 1600))
            and vocabularies == [9],
        ),
    )


def _reader(
    tokens: int, in_range: float, trained_below: int, offset: int, all_scored: bool, lengths: tuple[int, ...]
) -> Reader:
    """One that guesses uniformly, and reports its own accuracies."""
    uniform = np.full(tokens, 1 / tokens)
    silent = Reader(uniform, np.tile(uniform, (tokens, 1)), in_range, trained_below, offset, all_scored, {})
    return _reporting(silent, lengths)


def _reporting(reader: Reader, lengths: tuple[int, ...]) -> Reader:
    return replace(reader, reported={length: round(reader.accuracy(length), 2) for length in lengths})


def _draw(rng: np.random.Generator) -> Reader:
    tokens, trained_below, offset = (int(rng.integers(*bounds)) for bounds in ((2, 41), (8, 33), (1, 6)))
    lengths = tuple((trained_below + np.cumsum(rng.integers(1, 17, size=3))).tolist())
    reader = _reader(tokens, float(rng.uniform(0.5, 1)), trained_below, offset, bool(rng.integers(2)), lengths)
    return _reporting(replace(reader, guess=np.tile(rng.dirichlet(np.ones(tokens)), (tokens, 1))), lengths)


def _counterexamples() -> tuple[Counterexample[Reader], ...]:
    lengths = tuple(_IN_PRINT)
    reader = _reader(20, 1.0, _LONGEST, _OFFSET, True, lengths)
    printed = replace(reader, reported={length: float(number) for length, number in _IN_PRINT.items()})
    # Uniform attention over 48 tokens answered by plurality is right with probability .118.
    above = np.full((20, 20), (1 - 0.118) / 19) + (0.118 - (1 - 0.118) / 19) * np.eye(20)
    skewed = np.r_[0.24, np.full(19, 0.04)]
    first = np.tile(np.eye(20)[0], (20, 1))
    copies = _reporting(replace(reader, guess=above), lengths)
    modal = _reporting(replace(reader, target=skewed, guess=first), lengths)
    return (
        Counterexample(
            PRINTED,
            "at most .665 * 24 = 15.96 right at L=24 and at least .365 * 48 = 17.52 at L=48: 1.56 or more of 24",
            printed,
            {"least accuracy out of range": printed.slopes(True)[0], "first K unscored": printed.slopes(False)[0]}
            | {"1/m": 1 / 20}
            | {f"by the claim at L={length}": reader.accuracy(length) for length in lengths},
        ),
        Counterexample(
            "independent-guess", "guesses that see the target are right 118 in 1000 times", copies, _at_48(copies)
        ),
        Counterexample("uniform-target", "a token asked for 24 in 100 times is always the guess", modal, _at_48(modal)),
    )


def _at_48(case: Reader) -> dict[str, float]:
    return {"accuracy at L=48": case.accuracy(48), "by the law": (_LONGEST + 32 / 20) / 48}


STATEMENT = Statement(
    row=13,
    id="full-sequence-reading",
    label="Full-sequence reading",
    printed=Wording(
        claim="A model with a learned position table is right where query and key are below L_max and at chance 1/20 "
        "elsewhere, so that its accuracy is the share in range, near .66/.51/.37 at L = 24/32/48.",
        recorded=Verdict.REFUTED,
        residual=_residual_printed,
    ),
    amended=Wording(
        claim="With accuracy a in range and guesses elsewhere it is f a + (1-f)/m, f the scored share in range, and "
        "the number right grows by 1/m a position. The printed numbers need a growth of .065 to .095, or .1025 to .13 "
        "without the first K, so not m = 20.",
        recorded=Verdict.PROVED,
        residual=_residual_amended,
        prove=_prove_amended,
    ),
    assumptions=(
        Assumption(
            "independent-guess",
            "out of range the guess does not depend on the target",
            lambda case: bool((case.guess == case.guess[0]).all()),
        ),
        Assumption(
            "uniform-target",
            "every token is asked for equally often",
            lambda case: bool((case.target == case.target[0]).all()),
        ),
    ),
    draw=_draw,
    tolerance=1e-12,
    tolerance_reason="float64 means of up to 80 accuracies, each a sum of up to 40 products, and differences of counts "
    "below 80 over a length of 1 or more: 80 * 40 * 2^-53 = 4e-13",
    counterexamples=_counterexamples,
)
