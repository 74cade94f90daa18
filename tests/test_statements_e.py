"""Statements beside arXiv 2605.15514: their proofs fail for wrong claims, their numbers are those of plain numpy."""

import importlib
from dataclasses import replace
from math import erf, pi

import numpy as np
import pytest
import sympy

from theory.statements import statement
from theory.statements.statement import PRINTED, Verdict, check

MODULES = {
    "position-inversion": "position_inversion_closed_form",
    "inversion-limit": "inversion_limit_half",
    "token-inversion": "token_inversion_arc",
    "aliasing": "aliasing_pairs",
    "middle-range": "middle_range_kernel",
}


def module(id: str):
    return importlib.import_module(f"theory.statements.{MODULES[id]}")


def reflection(angle: sympy.Expr) -> sympy.Matrix:
    """Not a rotation: one sign is wrong."""
    return sympy.Matrix([[sympy.cos(angle), -sympy.sin(angle)], [-sympy.sin(angle), sympy.cos(angle)]])


def confirmed(id: str) -> list[bool]:
    return [step.confirmed for step in module(id)._prove_amended.__wrapped__()]


@pytest.mark.parametrize(
    ("id", "owner", "name", "wrong", "broken"),
    [
        ("position-inversion", None, "rot", reflection, [0, 1]),
        ("inversion-limit", sympy, "sign", sympy.Abs, [0]),
        ("inversion-limit", sympy, "is_decreasing", sympy.is_increasing, [5]),
        ("token-inversion", None, "rot", reflection, [0]),
        ("token-inversion", sympy, "acos", sympy.asin, [5]),
        ("aliasing", None, "rot", reflection, [0]),
        ("aliasing", sympy, "floor", sympy.ceiling, [5]),
        ("middle-range", sympy, "EulerGamma", sympy.Rational(1, 2), [1]),
        ("middle-range", sympy, "Ci", sympy.Si, [0, 1, 3]),
    ],
)
def test_a_step_fails_where_what_it_says_is_wrong(monkeypatch, id, owner, name, wrong, broken):
    assert all(confirmed(id))
    monkeypatch.setattr(owner or module(id), name, wrong)
    steps = confirmed(id)
    assert [place for place in broken if steps[place]] == []


@pytest.mark.parametrize(
    ("id", "wrong"),
    [
        ("position-inversion", lambda case: abs(1 - case.closed_form() - case.inversion())),
        ("inversion-limit", lambda case: abs(case.share(case.schedule) - 0.5)),
        ("token-inversion", lambda case: abs(1 - case.arc(np.array([case.distance]))[0] - case.flipped())),
        ("aliasing", lambda case: abs(2 * case.by_law(case.schedule) / case.expected() - 1)),
        ("middle-range", lambda case: max(0.0, abs(case.g() - case.law() + case.end()) - case.of_integral())),
    ],
)
def test_a_wrong_claim_is_refuted(id, wrong):
    entry = statement(id)
    assert check(replace(entry, amended=replace(entry.amended, residual=wrong))).amended.verdict is Verdict.REFUTED


def refutations(id: str) -> list[dict[str, float]]:
    return [dict(example.numbers) for example in statement(id).counterexamples() if example.dropped == PRINTED]


def frequencies(pairs: int, base: float) -> np.ndarray:
    return base ** (-np.arange(pairs) / pairs)


def test_isotropic_keys_and_keys_against_the_query_have_no_bias_to_the_near():
    isotropic, against = refutations("position-inversion")
    assert list(isotropic.values()) == [0.5, 0.5]
    keys = np.array([-1.0, 0.0]) + np.random.default_rng(15514).normal(size=(400_000, 2))
    # q = (1, 0): the key 1 back is turned by -1 rad.
    wins = (keys[:, 0] < np.cos(1) * keys[:, 0] + np.sin(1) * keys[:, 1]).mean()
    assert abs(wins - against["P(S(0) < S(1))"]) < 4.5 * 0.5 / np.sqrt(400_000)


def test_a_larger_base_inverts_more_pairs_below_it_and_fewer_above():
    (numbers,) = refutations("inversion-limit")
    for length in (100, 100_000):
        for base, name in ((1e4, "1e4"), (5e5, "5e5")):
            scores = np.cos(np.outer(np.arange(length), frequencies(64, base))).sum(axis=1)
            near, far = np.sort(scores[: length // 2]), scores[length // 2 :]
            share = np.searchsorted(near, far).mean() / (length // 2)
            assert numbers[f"share at M={length}, base {name}"] == pytest.approx(share, abs=1e-8)


def test_two_keys_do_not_flip_half_of_the_time():
    double, third = refutations("token-inversion")
    angles = (np.arange(100_000) + 0.5) * 2 * pi / 100_000
    limit = np.arccos((np.cos(2 * angles) + np.cos(angles)) / 2).mean() / pi
    # A million lags of theta = 1/2 leave a part of a turn, 4 pi / 1e6 of the mean.
    assert double["mean of arccos(g)/pi"] == pytest.approx(limit, abs=2e-5)
    assert abs(limit - 0.5) > 0.012
    assert double["one pair at m=710"] == pytest.approx((710 - 226 * pi) / pi, rel=1e-6)
    assert third["mean of arccos(g)/pi"] == pytest.approx(4 / 9, abs=1e-12)


@pytest.mark.parametrize("length", [100, 8192])
def test_slow_pairs_alias_more_than_independent_scores(length):
    (numbers,) = refutations("aliasing")
    lags = np.arange(1, length)
    deviations = np.sqrt((1 - np.cos(np.outer(lags, frequencies(64, 5e5)))).sum(axis=1))
    expected = sum((length - m) * erf(0.0625 / (sd * 2**0.5)) for m, sd in zip(lags, deviations, strict=True))
    assert numbers[f"pairs expected at L={length}"] == pytest.approx(expected, rel=1e-6)
    assert numbers[f"as printed at L={length}"] == pytest.approx(
        length * (length - 1) / 2 * 0.0625 / np.sqrt(32 * pi), rel=1e-4
    )
    assert numbers[f"pairs expected at L={length}"] > 1.25 * numbers[f"as printed at L={length}"]


def test_the_kernel_leaves_the_middle_range():
    (numbers,) = refutations("middle-range")
    assert numbers["g(965)"] == pytest.approx(np.cos(965 * frequencies(32, 1e4)).mean(), abs=1e-12)
    assert numbers["law"] == pytest.approx(1 - (np.log(965) + 0.5772156649015329) / np.log(1e4), abs=1e-12)
    lags = np.arange(300, 10_000)
    rest = np.cos(np.outer(lags, frequencies(64, 5e5))).mean(axis=1)
    rest -= 1 - (np.log(lags) + 0.5772156649015329) / np.log(5e5)
    assert numbers["mean of g less the law, d=128"] == pytest.approx(rest.mean(), abs=1e-12)
