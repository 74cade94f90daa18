"""The kernel of a base and of a width, heads, linear control, best carrier: proofs that can fail, numbers by hand."""

from dataclasses import replace

import mpmath
import numpy as np
import pytest
import sympy
from scipy.optimize import linprog

import theory.statements.base_sweep_shoulder as base_sweep
import theory.statements.best_carrier_program as best
import theory.statements.heads_recurrence as heads
import theory.statements.width_core as width
from theory.statements import statement
from theory.statements.statement import PRINTED, Verdict, check


def numbers(entry_id: str) -> dict[str, dict[str, float]]:
    """What each counterexample of a statement states, the first of those that drop the same."""
    examples = statement(entry_id).counterexamples()
    return {example.dropped: dict(example.numbers) for example in reversed(examples)}


def confirmed(steps) -> list[bool]:
    return [step.confirmed for step in steps]


def g(lags, dim: int, base: float) -> np.ndarray:
    return np.cos(np.multiply.outer(lags, base ** (-np.arange(dim // 2) / (dim // 2)))).mean(axis=-1)


@pytest.mark.parametrize(
    ("change", "found"),
    [
        ({}, [True, True, True]),
        ({"near": "0.95"}, [False, True, True]),
        ({"shoulder": "0.68"}, [False, True, True]),
        ({"far_lag": 815_657}, [True, False, True]),
        ({"far": "0.5466"}, [True, False, True]),
        ({"beyond": 47_366_746}, [True, True, False]),
    ],
    ids=["as-is", "near", "shoulder", "far-lag", "far", "beyond"],
)
def test_digits_of_the_base_sweep_can_fail(change, found):
    assert confirmed(base_sweep._row_steps(replace(base_sweep.ROWS[0], **change))) == found


def test_the_base_sweep_in_ten_lines(monkeypatch):
    shown = numbers("base-sweep")
    heights = g(np.arange(4, 20_001), 64, 1e4)
    assert heights.argmax() == 0 and shown[PRINTED]["g(4)"] == pytest.approx(heights[0], abs=1e-10)
    far = heights[96:]
    assert far.argmax() == 1 and shown[PRINTED]["highest over 100..20000"] == pytest.approx(far.max(), abs=1e-10)
    assert shown["width-64"]["g(19472)"] == pytest.approx(g(19_472, 16, 1e4), abs=1e-10)
    with mpmath.workdps(40):
        late = mpmath.fsum(mpmath.cos(47_366_747 * mpmath.mpf(1000) ** (-mpmath.mpf(i) / 32)) for i in range(32)) / 32
    assert shown["finite-reach"]["g(47366747)"] == pytest.approx(float(late), abs=1e-12)
    assert late > g(4, 64, 1e3) and g(1, 64, 1e3) == pytest.approx(0.9576, abs=5e-5)
    # The peak is claimed to end before the fourth lag, half a turn of a pair at 1 rad: not before the third.
    monkeypatch.setattr(base_sweep, "_SHOULDER", 3)
    assert confirmed(base_sweep._core_steps()) == [False, True, True]


def test_the_proof_on_widths_needs_a_base_above_1(monkeypatch):
    assert all(confirmed(width._core_steps() + width._floor_steps()))
    y, shortfall = sympy.Symbol("y", nonnegative=True), sympy.Symbol("c", positive=True)
    monkeypatch.setattr(width, "_schedule", lambda: (y, (1 + shortfall) ** y))
    assert confirmed(width._core_steps())[:2] == [False, False]
    assert not all(confirmed(width._floor_steps()))
    monkeypatch.setattr(width, "_schedule", lambda: (y, sympy.S.One))
    assert not all(confirmed(width._core_steps())) and not all(confirmed(width._floor_steps()))
    monkeypatch.setitem(width._HEIGHTS, 16, "0.937")
    assert not width._height_step(16).confirmed


def test_widths_in_ten_lines():
    shown = numbers("width")
    assert shown[PRINTED]["g(1), 8 pairs"] == pytest.approx(g(1, 16, 1e4), abs=1e-14)
    assert shown[PRINTED]["g(1), 32 pairs"] == pytest.approx(g(1, 64, 1e4), abs=1e-14)
    assert np.cos(1) < (np.cos(1) + np.cos(0.01)) / 2 < g(1, 16, 1e4) < g(1, 32, 1e4) < g(1, 64, 1e4) < g(1, 128, 1e4)
    # A beat of x rad a step adds at most 1/(N sin(x/2)) to a mean over N = 4e5 steps of 3 lags: all beats of d=16
    # together, from 2 theta_7 = 6.3e-4 rad a lag up, change the mean square by 2e-4 at most, its root by 4e-4.
    floor = g(np.arange(10**6, 22 * 10**5, 3), 16, 1e4).std()
    assert floor == pytest.approx(0.25, abs=1e-3)
    assert g(5, 16, 1e4) > g(5, 64, 1e4)
    assert shown[PRINTED]["far standard deviation, d=16"] == pytest.approx(0.25, abs=1e-9)
    assert shown["core-lags"]["g(5), 8 pairs"] == pytest.approx(g(5, 16, 1e4), abs=1e-14)
    # The wrong claim, that the narrow peak is the broader one, is refuted as the amended wording too.
    wrong = replace(statement("width").printed, recorded=Verdict.CERTIFIED, prove=width._prove_amended)
    assert check(replace(statement("width"), amended=wrong)).amended.verdict is Verdict.REFUTED


def test_the_peak_of_a_head_in_ten_lines(monkeypatch):
    shown = numbers("heads")["margin-at-length"]
    theta, peaks = 1e4 ** (-np.arange(8) / 8), {}
    for length in (16, 32, 48):
        lags = 2 - np.arange(length)
        logits = 8 * np.cos(lags * theta[0] + 0.3) + 0.4 * np.cos(lags * theta[1])
        attention = np.exp(logits) / np.exp(logits).sum()
        peaks[length] = -int(attention.argmax())
    assert peaks == {16: -2, 32: -21, 48: -40}
    assert shown["peak"] == pytest.approx(attention[40], abs=1e-12) and shown["offset of the peak"] == -40
    assert shown["attention at -2"] == pytest.approx(attention[2], abs=1e-12)
    assert all(confirmed(heads._certified_steps()))
    aligned = heads._late()
    monkeypatch.setattr(heads, "_late", lambda: replace(aligned, errors=-aligned.errors))
    assert confirmed(heads._certified_steps()) == [True, True, False]
    monkeypatch.setattr(heads, "_LAG", 37)
    assert confirmed(heads._certified_steps())[:2] == [False, False]


@pytest.mark.parametrize(("entry_id", "target"), [("heads", "table-8"), ("linear-control", "table-3")])
def test_what_trained_weights_decide_says_which_run(entry_id, target):
    finding = check(statement(entry_id)).printed
    assert finding.verdict is Verdict.NEEDS_RUN and target in finding.method


def test_the_certificate_of_a_best_carrier_can_fail(monkeypatch):
    assert best._value_step(15, "0.4016").confirmed
    assert not best._value_step(15, "0.4017").confirmed and not best._value_step(47, "0.4016").confirmed
    found = best.best_carrier(best._reference(), 15)
    uneven = replace(found, lag_weights=np.roll(found.lag_weights, 1))
    monkeypatch.setattr(best, "best_carrier", lambda schedule, reach: uneven)
    assert not best._value_step(15, "0.4016").confirmed
    equal = replace(found, weights=np.full(32, 1 / 32))
    monkeypatch.setattr(best, "best_carrier", lambda schedule, reach: equal)
    assert not best._value_step(15, "0.4016").confirmed


def test_misaligned_phases_in_ten_lines():
    first, context = (example.case for example in statement("best-carrier").counterexamples())
    assert first.margin() == pytest.approx(2 * np.sin(0.5), abs=1e-15)
    assert first.aligned() == pytest.approx(1 - np.cos(1), abs=1e-9)
    theta, lags = 1e4 ** (-np.arange(32) / 32), np.array([s for s in range(-45, 3) if s])
    brackets = np.cos(context.errors) - np.cos(np.multiply.outer(lags, theta) - context.errors)
    assert context.weights.sum() == pytest.approx(1, abs=1e-12) and (context.weights >= 0).all()
    assert (brackets @ context.weights).min() == pytest.approx(0.347899, abs=1e-6)
    gains = np.c_[np.ones(45), np.cos(np.multiply.outer(np.arange(1, 46), theta)) - 1]
    answer = linprog(np.r_[-1.0, np.zeros(32)], gains, np.zeros(45), np.r_[0.0, np.ones(32)][None], [1.0])
    assert answer.x[0] == pytest.approx(0.344145, abs=1e-6)
