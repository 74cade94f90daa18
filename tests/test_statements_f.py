"""Statements on swap scores, discrepancies, periods and horizons: proofs can fail, numbers are recomputed here."""

import math
from dataclasses import replace

import numpy as np
import pytest
import sympy

from theory.schedule import RotarySchedule
from theory.statements import lookback_horizon_records as lookback
from theory.statements import modular_head_residue as modular
from theory.statements import no_period_conventional as period
from theory.statements import positional_discrepancy_dirichlet as positional
from theory.statements import statement
from theory.statements import swap_scores_law as swaps
from theory.statements import symbolic_discrepancy_loss as symbolic
from theory.statements.statement import Verdict, check


def shown(id: str, dropped: str) -> dict[str, float]:
    """The numbers that a counterexample shows."""
    return dict(next(e.numbers for e in statement(id).counterexamples() if e.dropped == dropped))


def unconfirmed(module) -> list[str]:
    """Steps of the amended wording that fail when the proofs of a statement's module run anew."""
    proofs = [getattr(module, name) for name in ("_prove_printed", "_prove_amended") if hasattr(module, name)]
    for proof in proofs:
        proof.cache_clear()
    failed = [step.text for step in proofs[-1]() if not step.confirmed]
    for proof in proofs:
        proof.cache_clear()
    return failed


def with_residual(entry, residual) -> Verdict:
    """The verdict on the amended wording if it claimed what this residual tests."""
    return check(replace(entry, amended=replace(entry.amended, residual=residual))).amended.verdict


def test_swap_proof_needs_the_swap(monkeypatch):
    assert not unconfirmed(swaps)
    right = swaps._squared_cosines
    # Scores of a head that keeps v where it should flip, and the reverse.
    monkeypatch.setattr(swaps, "_squared_cosines", lambda *terms: right(*terms)[::-1])
    assert len(unconfirmed(swaps)) == 5


def test_swap_scores_of_uniform_and_mixed_heads():
    assert shown("swap-scores", "not-uniform")["s_pos"] == pytest.approx(1, abs=1e-12)
    # Two keys, any tau, by hand: rows (e^3, 1) before and (e, e^2) after, over their sums.
    old, new = np.array([math.exp(3), 1]), np.array([math.exp(2), math.e])
    case = swaps.SwappedPrompt(np.array([1.0, 0]), np.array([2.0, 0]), np.array([[0, 1]]), 1.0)
    norm = np.linalg.norm(old) * np.linalg.norm(new)
    assert case.scores().positional == pytest.approx(old @ new / norm, rel=1e-12)
    assert case.scores().symbolic == pytest.approx(old[::-1] @ new / norm, rel=1e-12)
    assert case.scores().positional == pytest.approx(1 / math.hypot(1, math.sinh(1) / math.cosh(2)), rel=1e-12)


def test_positional_proof_needs_the_rotation(monkeypatch):
    assert not unconfirmed(positional)
    right = positional.rot
    monkeypatch.setattr(positional, "rot", lambda angle: right(angle) * 2)
    assert len(unconfirmed(positional)) == 1


def test_positional_bound_is_tight_and_n_is_too_few():
    g = np.cos(2 * np.pi / 3 * np.array([1, 2]))
    numbers = shown("positional-discrepancy", "printed wording")
    assert numbers["lead over A"] == pytest.approx(1 - g.max(), rel=1e-12) == pytest.approx(1.5, rel=1e-12)
    assert numbers["as printed"] == pytest.approx(1.26626, abs=1e-5)
    # A bound lower by 1e-6 is refuted by the frequency that attains it.
    entry = statement("positional-discrepancy")

    def lower(case) -> float:
        bounds = [positional.dirichlet_bound(n, case.schedule.pairs) - 1e-6 for n in range(2, len(case.residuals))]
        return positional._misses(case, bounds)

    assert with_residual(entry, lower) is Verdict.REFUTED


def test_symbolic_proof_needs_the_half(monkeypatch):
    assert not unconfirmed(symbolic)
    right = symbolic._is_flat_at_0
    monkeypatch.setattr(symbolic, "_is_flat_at_0", lambda f, x: right(f + x, x))
    assert len(unconfirmed(symbolic)) == 2


def test_symbolic_loss_is_two_not_two_thousand():
    loss = (1 - np.cos(np.arange(64))).max()
    assert shown("symbolic-discrepancy", "printed wording")["loss over A"] == pytest.approx(loss, rel=1e-12)
    assert 1.9999 < loss < 2 and 64**2 / 2 == 2048
    # Half of the bound is refuted: it is reached at small angles.
    entry = statement("symbolic-discrepancy")
    half = with_residual(entry, lambda case: max(0.0, case.loss() - float(case.amplitudes @ case.angles**2) / 4))
    assert half is Verdict.REFUTED


def test_modular_proof_needs_the_format(monkeypatch):
    assert not unconfirmed(modular)
    monkeypatch.setattr(modular, "BF16", modular.FP32)
    assert [text for text in unconfirmed(modular) if "92.88" in text]


@pytest.mark.parametrize("factor", [1.01, 0.99])
def test_modular_amplitude_is_enough_and_needed(factor):
    scores = factor * 25 * math.log(2) / (1 - math.cos(2 * math.pi / 5)) * np.cos(2 * np.pi * 2 * np.arange(5) / 5)
    kept = np.exp(scores - scores.max()).astype(np.float16) > 0
    assert kept.tolist() == [True, False, factor < 1, factor < 1, False]


@pytest.mark.parametrize("factor", [0.7, 1.5])
def test_another_modular_threshold_is_refuted(factor):
    def claims(case) -> float:
        return float(case.selects() != (case.amplitude >= factor * (1 + case.sink) * case.threshold))

    assert with_residual(statement("modular-head"), claims) is Verdict.REFUTED


def test_modular_gap_is_lost_to_rounded_scores():
    top, other = np.float16(129.4), np.float16(129.4 * math.cos(math.pi / 6))
    numbers = shown("modular-head", "exact-scores")
    assert numbers["gap in fp16"] == float(top) - float(other) < numbers["f"] == pytest.approx(25 * math.log(2))
    assert (
        numbers["gap"] == pytest.approx(129.4 * (1 - math.cos(math.pi / 6)), rel=1e-9) and numbers["gap"] > numbers["f"]
    )


def test_no_period_proof_needs_pi(monkeypatch):
    assert not unconfirmed(period)
    monkeypatch.setattr(period.sympy, "pi", sympy.Rational(22, 7))
    assert unconfirmed(period)


def test_no_period_search_finds_periods():
    both = np.ones(2, dtype=bool)
    assert period._first_return(RotarySchedule.periodic([(3, 4), (4, 6)]), both) == 12
    assert 2 * math.pi / math.sqrt(shown("no-period", "first-pair")["base"]) == pytest.approx(4 * math.pi**2 / 5)
    # Lag 710 is near a return of the first pair and none.
    assert abs(710 - 113 * 2 * math.pi) < 6.1e-5
    assert period._first_return(RotarySchedule.geometric(2, 1e4), both[:1]) is None
    entry = statement("no-period")
    claims_return = with_residual(entry, lambda case: float(period._first_return(case.schedule, case.active) is None))
    assert claims_return is Verdict.REFUTED


def test_lookback_proof_needs_the_records_and_the_bits(monkeypatch):
    assert not unconfirmed(lookback)
    monkeypatch.setattr(lookback, "FP16", replace(lookback.FP16, fraction_bits=9))
    assert len(unconfirmed(lookback)) == 1
    monkeypatch.setattr(lookback, "continued_fraction_recurrences", lambda *_: ())
    assert len(unconfirmed(lookback)) == 2


def test_lookback_cap_at_t_is_too_low():
    rivals = np.float16(np.cos(2 * np.pi / 251 * np.arange(1, 251)))
    assert float(rivals.max()) == shown("lookback-horizon", "printed wording")["highest rival in fp16"] == 1 - 2.0**-11
    assert 2 * math.pi / math.acos(1 - 2.0**-11) < 202 < 251 < 2 * math.pi / math.acos(1 - 2.0**-12)
    records, highest = [], math.cos(1)
    for n in range(2, 1001):
        if math.cos(n) > highest:
            highest = math.cos(n)
            records.append(n)
    assert records == [6, 19, 25, 44, 333, 710]
    entry = statement("lookback-horizon")
    assert (
        with_residual(entry, lambda case: lookback._misses(case, lookback.precision_cap(case.kept_bits)))
        is Verdict.REFUTED
    )
