"""Swap scores of constructed heads, and the lead of positional and symbolic heads, against loops and mpmath."""

import itertools
import math
import tracemalloc

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from theory.discrepancy import (
    SymbolicLoss,
    dirichlet_bound,
    discrepancy,
    positional_discrepancy,
    swap_scores,
    symbolic_loss,
)
from theory.errors import TheoryError
from theory.schedule import RotarySchedule


def attention(symbol: np.ndarray, place: np.ndarray) -> np.ndarray:
    """Softmax of what a key's symbol and what its place adds to its logit."""
    weights = np.exp(symbol + place)
    return weights / weights.sum()


def swapped(symbol: np.ndarray, place: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The rows before and after every swap of two keys, run through the head again."""
    swaps = np.array(list(itertools.combinations(range(len(symbol)), 2)))
    after = []
    for i, j in swaps:
        moved = symbol.copy()
        moved[[i, j]] = moved[[j, i]]
        after.append(attention(moved, place))
    return attention(symbol, place), np.array(after), swaps


def scored_in_a_loop(before, after, swaps, temperature: float) -> tuple[float, float]:
    """The definition with plain numbers, one swap at a time."""
    positional = symbolic = total = 0.0
    for row, (i, j) in zip(after.tolist(), swaps.tolist(), strict=True):
        old, new = complex(before[i], before[j]), complex(row[i], row[j])
        weight = math.exp(abs(before[i] - before[j]) / temperature)
        length = abs(old) * abs(new)
        positional += weight * (old * new.conjugate()).real / length
        symbolic += weight * (old.real * new.imag + old.imag * new.real) / length
        total += weight
    return positional / total, symbolic / total


def slow_gap(amplitudes: np.ndarray, frequencies: np.ndarray, lag: int) -> mpmath.mpf:
    """sum r (1 - cos s theta) in 40 digits."""
    with mpmath.workdps(40):
        terms = zip(amplitudes.tolist(), frequencies.tolist(), strict=True)
        return mpmath.fsum(r * (1 - mpmath.cos(mpmath.mpf(theta) * lag)) for r, theta in terms)


PAIRS = st.integers(0, 10_000).map(
    lambda seed: (
        lambda rng, pairs: (
            rng.exponential(3, pairs),
            rng.uniform(-3.2, 3.2, pairs) * rng.choice([1, 0.1, 0.01], pairs),
        )
    )(np.random.default_rng(seed), 1 + seed % 4)
)


def test_a_positional_head_scores_one_on_place_alone() -> None:
    rng = np.random.default_rng(3)
    scores = swap_scores(*swapped(np.zeros(6), rng.normal(size=6)), temperature=0.1)
    assert scores.positional == pytest.approx(1, abs=1e-14)
    assert scores.symbolic < 0.9


def test_a_symbolic_head_scores_one_on_symbol_alone() -> None:
    rng = np.random.default_rng(4)
    scores = swap_scores(*swapped(rng.normal(size=6), np.zeros(6)), temperature=0.1)
    assert scores.symbolic == pytest.approx(1, abs=1e-14)
    assert scores.positional < 0.9


def test_a_sharp_head_scores_nearly_none_of_the_other() -> None:
    # Weight a on one key and b on the rest: flipping (a, b) leaves a cosine of 2 a b/(a^2 + b^2), and a low
    # temperature keeps the swaps with that key.
    place = np.array([0.0, 12.0, 0.0, 0.0])
    scores = swap_scores(*swapped(np.zeros(4), place), temperature=1e-3)
    expected = 2 / (math.exp(12) + math.exp(-12))
    assert scores.symbolic == pytest.approx(expected, rel=1e-10)


@pytest.mark.parametrize("keys", [2, 5, 40])
def test_uniform_attention_scores_one_on_both_with_entropy_log_n(keys: int) -> None:
    scores = swap_scores(*swapped(np.zeros(keys), np.zeros(keys)), temperature=1.0)
    assert (scores.positional, scores.symbolic) == pytest.approx((1, 1), abs=1e-14)
    assert scores.entropy == pytest.approx(math.log(keys), rel=1e-14)
    # Positive control: a head that attends to one place has the first of the scores and not the entropy.
    sharp = swap_scores(*swapped(np.zeros(keys), 9.0 * (np.arange(keys) == 1)), temperature=1.0)
    assert sharp.positional == pytest.approx(1, abs=1e-14)
    assert sharp.entropy < 0.2 * math.log(keys)


@settings(deadline=None, max_examples=40)
@given(seed=st.integers(0, 10_000), keys=st.integers(2, 8), temperature=st.floats(0.01, 10), scale=st.floats(0, 3))
def test_scores_are_the_definition_whatever_the_head(seed: int, keys: int, temperature: float, scale: float) -> None:
    rng = np.random.default_rng(seed)
    before, after, swaps = swapped(scale * rng.normal(size=keys), scale * rng.normal(size=keys))
    scores = swap_scores(before, after, swaps, temperature)
    assert (scores.positional, scores.symbolic) == pytest.approx(scored_in_a_loop(before, after, swaps, temperature))
    assert 0 <= scores.positional <= 1 + 1e-14 and 0 <= scores.symbolic <= 1 + 1e-14
    assert scores.entropy == pytest.approx(-sum(p * math.log(p) for p in before.tolist()))
    # Which of the two keys is named first does not matter.
    again = swap_scores(before, after, swaps[:, ::-1].copy(), temperature)
    assert (again.positional, again.symbolic) == pytest.approx((scores.positional, scores.symbolic), rel=1e-13)


def test_tiny_attention_still_has_a_direction() -> None:
    # Squares of 1e-170 underflow.
    before = np.array([1.0, 3e-170, 4e-170])
    scores = swap_scores(before, np.array([[1.0, 4e-170, 3e-170]]), np.array([[1, 2]]), 1.0)
    assert (scores.positional, scores.symbolic) == pytest.approx((0.96, 1), rel=1e-14)


def test_a_temperature_near_zero_leaves_the_largest_change() -> None:
    head = swapped(np.array([0.0, 1.0, 5.0, -1.0]), np.array([0.3, -0.2, 0.4, 0.1]))
    before, after, swaps = head
    widest = int(np.argmax(np.abs(before[swaps[:, 0]] - before[swaps[:, 1]])))
    alone = swap_scores(before, after[[widest]], swaps[[widest]], 1.0)
    for temperature in (1e-5, 1e-320):
        assert swap_scores(*head, temperature) == alone


def test_swaps_are_of_any_integer_type() -> None:
    head = swapped(np.array([0.0, 1.0, 5.0, -1.0]), np.array([0.3, -0.2, 0.4, 0.1]))
    for kind in (np.uint64, np.int8):
        assert swap_scores(*head[:2], head[2].astype(kind), 0.5) == swap_scores(*head, 0.5)


def test_one_key_that_is_not_masked_leads_by_infinity() -> None:
    assert discrepancy(np.array([[-np.inf, 3.0, -np.inf]])).tolist() == [np.inf]


def test_discrepancy_is_the_lead_of_the_first_over_the_second() -> None:
    rows = np.array([[1.0, 4.5, 2.0], [7.0, 7.0, 0.0], [-3.0, -1.0, -np.inf]])
    np.testing.assert_array_equal(discrepancy(rows), [2.5, 0, 2])
    np.testing.assert_array_equal(discrepancy(rows[None, :, ::-1].copy()), [[2.5, 0, 2]])


@settings(deadline=None, max_examples=40)
@given(PAIRS, st.integers(1, 60))
def test_positional_lead_is_the_least_gap_so_far(pairs: tuple[np.ndarray, np.ndarray], length: int) -> None:
    amplitudes, frequencies = pairs
    lead = positional_discrepancy(amplitudes, RotarySchedule(frequencies), length)
    gaps = [slow_gap(amplitudes, frequencies, lag) for lag in range(1, length)]
    assert lead[0] == math.inf and len(lead) == length
    expected = [float(min(gaps[: n - 1])) for n in range(2, length + 1)]
    # Half an angle below 100 rounds by 2^-53 of itself, and 2 sin^2 doubles it.
    np.testing.assert_allclose(lead[1:], expected, rtol=1e-13, atol=100 * amplitudes.sum() * 2.0**-51)
    assert (np.diff(lead[1:]) <= 0).all()


@settings(deadline=None, max_examples=20)
@given(PAIRS, st.integers(2, 40))
def test_positional_lead_is_the_worst_over_targets_of_a_head(pairs: tuple[np.ndarray, np.ndarray], length: int) -> None:
    # Score every key of every prompt in which the target is K back: the lead over the others, at the worst K.
    amplitudes, frequencies = pairs
    lags = np.arange(length)[:, None] - np.arange(length)[None, :]
    logits = (amplitudes * np.cos(lags[..., None] * frequencies)).sum(axis=-1)
    lead = positional_discrepancy(amplitudes, RotarySchedule(frequencies), length)[-1]
    assert float(discrepancy(logits).min()) == pytest.approx(float(lead), abs=1e-12 * (1 + amplitudes.sum()))


@settings(deadline=None, max_examples=200)
@given(theta=st.floats(-10, 10), lags=st.integers(1, 60))
def test_one_frequency_stays_below_its_bound(theta: float, lags: int) -> None:
    lead = positional_discrepancy(np.ones(1), RotarySchedule(np.array([theta])), lags + 1)[-1]
    assert lead <= dirichlet_bound(lags) + 1e-12


@pytest.mark.parametrize("lags", [1, 2, 3, 10, 999])
def test_one_frequency_attains_its_bound_and_no_smaller_one(lags: int) -> None:
    best = positional_discrepancy(np.ones(1), RotarySchedule(np.array([2 * np.pi / (lags + 1)])), lags + 1)[-1]
    assert best == pytest.approx(dirichlet_bound(lags), rel=1e-11)
    assert dirichlet_bound(lags) == pytest.approx(1 - math.cos(2 * math.pi / (lags + 1)), rel=1e-12)
    # One lag more, and what was attained is above the bound.
    assert best > dirichlet_bound(lags + 1) * (1 + 1e-3)


@settings(deadline=None, max_examples=200)
@given(seed=st.integers(0, 10_000), pairs=st.integers(2, 4), lags=st.integers(1, 400))
def test_several_frequencies_stay_below_their_bound(seed: int, pairs: int, lags: int) -> None:
    rng = np.random.default_rng(seed)
    weights, frequencies = rng.dirichlet(np.ones(pairs)), rng.uniform(-np.pi, np.pi, pairs)
    lead = positional_discrepancy(weights, RotarySchedule(frequencies), lags + 1)[-1]
    assert lead <= dirichlet_bound(lags, pairs) + 1e-12
    if lags >= 2**pairs:
        assert dirichlet_bound(lags, pairs) < 1 - math.cos(2 * math.pi * lags ** (-1 / pairs))
    if lags + 1 < 2**pairs:
        assert dirichlet_bound(lags, pairs) == 2


def test_several_pairs_keep_more_apart_than_one() -> None:
    # Positive control of the exponent 1/m: three pairs exceed what the bound allows one.
    lags, three = 400, np.array([2 * np.pi * a / 401 for a in (1, 7, 55)])
    lead = positional_discrepancy(np.full(3, 1 / 3), RotarySchedule(three), lags + 1)[-1]
    assert dirichlet_bound(lags, 1) < lead <= dirichlet_bound(lags, 3)


@settings(deadline=None, max_examples=60)
@given(PAIRS, st.integers(1, 50))
def test_symbolic_loss_is_the_worst_distance_and_below_its_bound(
    pairs: tuple[np.ndarray, np.ndarray], length: int
) -> None:
    amplitudes, frequencies = pairs
    loss = symbolic_loss(amplitudes, RotarySchedule(frequencies), length)
    worst = max(slow_gap(amplitudes, frequencies, lag) for lag in range(length))
    assert loss.exact == pytest.approx(float(worst), rel=1e-12, abs=1e-13 * amplitudes.sum())
    assert loss.exact <= loss.bound * (1 + 1e-12)


def test_a_long_context_takes_little_memory() -> None:
    schedule, amplitudes = RotarySchedule.geometric(64, 10_000), np.ones(32)
    tracemalloc.start()
    lead = positional_discrepancy(amplitudes, schedule, 100_000)
    loss = symbolic_loss(amplitudes, schedule, 100_000)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    # 16384 lags at a time, two tables of 32 pairs: 8 MB; all lags at once would be 51.
    assert peak < 15e6
    gaps = [float(slow_gap(amplitudes, schedule.frequencies, lag)) for lag in (16_383, 16_384, 99_999)]
    assert lead[-1] <= min(gaps) and loss.exact >= max(gaps)
    np.testing.assert_array_equal(lead[:20_000], positional_discrepancy(amplitudes, schedule, 20_000))


def test_more_lags_than_float64_holds_still_have_a_bound() -> None:
    with mpmath.workdps(30):
        exact = 2 * mpmath.sin(mpmath.pi * (mpmath.mpf(10) ** 400 + 1) ** (mpmath.mpf(-1) / 20)) ** 2
    # The logarithm of the lags, 921, is rounded to 2^-53 of itself.
    assert dirichlet_bound(10**400, 20) == pytest.approx(float(exact), rel=1e-13)
    assert dirichlet_bound(10**400, 2000) == 2


def test_a_frozen_symbolic_head_leads_alike_at_every_length_and_loses_it_rotated() -> None:
    # Two symbols in complex orthogonal pairs: the match scores A = 5, the other symbol 0, at any distance.
    query = match = np.array([2.0, 1.0, 0.0])
    other = np.array([0.0, 0.0, 3.0])
    for length in (3, 10, 200):
        for frequencies in (np.zeros(3), np.array([1e-3, 4e-4, 2e-3])):
            leads = []
            for place in range(length):
                keys = np.where((np.arange(length) == place)[:, None], match, other)
                turned = query * keys * np.exp(1j * np.arange(length)[:, None] * frequencies)
                leads.append(float(discrepancy(turned.sum(axis=1).real[None])[0]))
            loss = symbolic_loss(query * match, RotarySchedule(frequencies), length)
            assert min(leads) == pytest.approx(5 - loss.exact, abs=1e-12)
            assert (loss == SymbolicLoss(0.0, 0.0)) == (not frequencies.any())


def test_symbolic_loss_approaches_its_bound_as_the_turn_shrinks() -> None:
    loss = symbolic_loss(np.array([4.0]), RotarySchedule(np.array([1e-5])), 101)
    # 1 - cos x = x^2/2 (1 - x^2/12 + ...) with x = 1e-3.
    assert loss.exact / loss.bound == pytest.approx(1 - 1e-6 / 12, abs=1e-12)
    assert loss.bound == pytest.approx(4 * 1e-6 / 2, rel=1e-12)
    # A pair without amplitude does not count, however fast.
    assert symbolic_loss(np.array([4.0, 0.0]), RotarySchedule(np.array([1e-5, 1.0])), 101) == loss
    assert symbolic_loss(np.array([4.0]), RotarySchedule(np.array([1.0])), 101).exact < 8 < 4 * 100**2 / 2


ROW, SWAP = np.array([0.5, 0.3, 0.2]), np.array([[0, 1]])


@pytest.mark.parametrize(
    ("question", "text"),
    [
        (lambda: swap_scores(ROW, np.array([[0.5, 0.5]]), SWAP, 1.0), r"same keys: got shapes \(3,\), \(1, 2\)"),
        (lambda: swap_scores(ROW, ROW, SWAP, 1.0), r"same keys: got shapes \(3,\), \(3,\)"),
        (lambda: swap_scores(ROW, ROW[None], np.array([[0, 1, 2]]), 1.0), r"two whole numbers each.*\(1, 3\)"),
        (lambda: swap_scores(ROW, ROW[None], np.array([0, 1]), 1.0), r"two whole numbers each.*\(2,\)"),
        (lambda: swap_scores(ROW, ROW[None], np.array([[0.0, 1.0]]), 1.0), "two whole numbers each, got float64"),
        (lambda: swap_scores(ROW, ROW[None] * 2, SWAP, 1.0), r"probabilities with sum 1, got rows with sums \[1. 2.\]"),
        (lambda: swap_scores(ROW, -ROW[None], SWAP, 1.0), "attention rows are probabilities"),
        (lambda: swap_scores(ROW * np.nan, ROW[None], SWAP, 1.0), "attention rows are probabilities"),
        (lambda: swap_scores(ROW, ROW[None], np.array([[0, 1], [1, 2]]), 1.0), "got 1 rows, 2 swaps"),
        (lambda: swap_scores(ROW, np.empty((0, 3)), np.empty((0, 2), dtype=int), 1.0), "got 0 rows, 0 swaps"),
        (
            lambda: swap_scores(ROW, ROW[None], np.array([[1, 1]]), 1.0),
            r"two different keys among 0..2, got \[\[1, 1\]\]",
        ),
        (lambda: swap_scores(ROW, ROW[None], np.array([[0, 3]]), 1.0), "two different keys among 0..2"),
        (lambda: swap_scores(ROW, ROW[None], SWAP, 0.0), "temperature must be a finite number above 0, got 0.0"),
        (lambda: swap_scores(np.array([0.0, 0, 1]), ROW[None], SWAP, 1.0), r"keys \[0, 1\] hold no attention"),
        (
            lambda: swap_scores(ROW, np.array([[0.0, 0, 1]]), SWAP, 1.0),
            "leave out swaps of keys whose weight underflows",
        ),
        (lambda: discrepancy(np.ones((3, 1))), "two keys or more, got 1"),
        (lambda: discrepancy(np.array([[1.0, np.nan, 2.0], [1.0, 2.0, 3.0]])), "1 rows have no finite largest logit"),
        (lambda: discrepancy(np.full((2, 3), -np.inf)), "2 rows have no finite largest logit"),
        (lambda: positional_discrepancy(np.ones(1), RotarySchedule(np.ones(1)), 2.5), "whole number, got 2.5"),
        (lambda: positional_discrepancy(np.ones(2), RotarySchedule(np.ones(3)), 4), "give 3 finite amplitudes"),
        (
            lambda: positional_discrepancy(-np.ones(1), RotarySchedule(np.ones(1)), 4),
            r"0 or more, one a pair, got \[-1",
        ),
        (
            lambda: symbolic_loss(np.ones(1), RotarySchedule(np.ones(1)), 0),
            "a length, in keys, must be 1 or more, got 0",
        ),
        (lambda: dirichlet_bound(0), "lags must be 1 or more, got 0"),
        (lambda: dirichlet_bound(5.5), "lags must be a whole number, got 5.5"),
        (lambda: dirichlet_bound(5, 0), "pairs must be 1 or more, got 0"),
    ],
)
def test_bad_input_is_named(question, text: str, unchecked) -> None:
    with pytest.raises(TheoryError, match=text):
        question()
