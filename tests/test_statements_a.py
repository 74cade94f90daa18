"""Corollary 1, Proposition 1 and the residual remark: proofs that can fail, numbers by a few lines of numpy."""

from dataclasses import replace

import numpy as np
import pytest
import sympy

from theory.kernel import kernel
from theory.statements import corollary_1_invariance, proposition_1_necessity, residual_variance_by_lag, statement
from theory.statements.statement import PRINTED, Verdict, check


@pytest.fixture
def fresh():
    """Proofs are cached: forget them before and after one that is broken on purpose."""
    proofs = [m._prove_amended for m in (corollary_1_invariance, proposition_1_necessity, residual_variance_by_lag)]
    for proof in proofs:
        proof.cache_clear()
    yield
    for proof in proofs:
        proof.cache_clear()


def shear(angle):
    return sympy.Matrix([[1, -sympy.sin(angle)], [0, 1]])


@pytest.mark.parametrize("module", [corollary_1_invariance, proposition_1_necessity, residual_variance_by_lag])
def test_a_block_that_does_not_rotate_proves_nothing(module, monkeypatch, fresh):
    monkeypatch.setattr(module, "rot", shear)
    finding = check(module.STATEMENT).amended
    assert finding.verdict is Verdict.NOT_DECIDED
    assert not all(step.confirmed for step in finding.steps)


def test_the_corollary_needs_the_length_to_cancel(monkeypatch, fresh):
    summand = corollary_1_invariance._summand
    monkeypatch.setattr(corollary_1_invariance, "_summand", lambda n, t, i: summand(n, t - n, i))
    assert not corollary_1_invariance._prove_amended()[0].confirmed


@pytest.mark.parametrize(
    ("claim", "value"),
    [("mu stays", lambda case: abs(corollary_1_invariance._long_margin(case) - 0.1)), ("mu rises", lambda case: 1.0)],
)
def test_other_claims_on_the_margin_are_refuted(claim, value):
    entry = statement("corollary-1")
    wrong = replace(entry, amended=replace(entry.amended, claim=claim, residual=value))
    assert check(wrong).amended.verdict is Verdict.REFUTED


def test_the_margin_of_the_refutation_written_out():
    lags = np.concatenate([np.arange(1, 65), [-1, -2]])
    gaps = 2 - np.cos(lags) - np.cos(lags / 10)
    short = 2 - np.cos([1.0, -1, -2]) - np.cos([0.1, -0.1, -0.2])
    numbers = refutations("corollary-1")[0].numbers
    assert numbers["mu at L=4"] == pytest.approx(short.min(), rel=1e-12)
    assert numbers["mu at L=67"] == pytest.approx(gaps.min(), rel=1e-11)
    assert lags[gaps.argmin()] == 63


@pytest.mark.parametrize(
    ("errors", "failing"),
    [
        ((sympy.Rational(1, 2), -sympy.Rational(12, 125)), [0]),
        ((sympy.Rational(1, 2), sympy.asin(sympy.sin(sympy.Rational(1, 2)) / 5)), [0, 2]),
        ((sympy.S.Zero, sympy.S.Zero), [4]),
        ((sympy.S.Zero, sympy.Rational(1, 2)), [0, 2]),
    ],
    ids=["rounded", "other sign", "aligned", "wrong place"],
)
def test_the_case_without_independence_is_exact(errors, failing):
    steps = proposition_1_necessity._without_independence(errors)
    assert [place for place, step in enumerate(steps) if not step.confirmed] == failing


def test_the_circle_written_out():
    y = np.linspace(-np.pi, np.pi, 2_000_001)
    height = 0.02 * np.cos(10 * y - 0.5) + np.cos(y + np.arcsin(0.2 * np.sin(0.5)))
    assert abs(y[height.argmax()]) < 4e-6
    rounded = [0.02 * np.cos(s + 0.5) + np.cos(s / 10 - 0.096) for s in (0, -106123)]
    assert rounded[1] - rounded[0] == pytest.approx(1.658e-10, abs=2e-13)


def test_the_refutations_of_necessity_written_out():
    theta = 5e5 ** (-np.arange(32) / 32)
    lags = 2 - np.arange(48)
    profile = np.cos(np.outer(lags, theta) - 0.2 * (-1.0) ** np.arange(32)).sum(axis=1)
    first, second = refutations("proposition-1")
    assert lags[profile.argmax()] == 0
    assert first.numbers["margin over 48 offsets"] == pytest.approx(-np.diff(np.sort(profile)[-2:][::-1])[0], rel=1e-9)
    assert first.numbers["cos(m_Q, R_-2 m_K)"] == pytest.approx(np.cos(0.2), rel=1e-12)
    t = 5 + np.sqrt(24)
    assert second.numbers["cos(m_Q, R_-2 m_K)"] == pytest.approx(2 * t / (t**2 + 1), rel=1e-12) == pytest.approx(0.2)


def test_the_variance_written_out():
    small, wide = refutations("residual-variance")
    found = [[number for name, number in e.numbers.items() if "m_Q" in name] for e in (small, wide)]
    turns = [np.array([[np.cos(s), -np.sin(s)], [np.sin(s), np.cos(s)]]) for s in (0, 1)]
    direct = [np.var([r[0] @ xi for xi in ([0, 1], [0, -1])]) for r in turns]
    assert found[0] == pytest.approx(direct, abs=1e-15) and direct[1] == pytest.approx(np.sin(1) ** 2)
    assert found[1] == pytest.approx([0, 1 - np.cos(1e4 ** (-np.arange(32) / 32)).mean() ** 2], abs=1e-12)


@pytest.mark.parametrize("power", [0.5, 2.0])
def test_another_power_of_the_kernel_is_refuted(power, monkeypatch):
    monkeypatch.setattr(residual_variance_by_lag, "kernel", lambda *of: np.abs(kernel(*of)) ** power)
    assert check(statement("residual-variance")).amended.verdict is Verdict.REFUTED


def refutations(id):
    return [example for example in statement(id).counterexamples() if example.dropped == PRINTED]
