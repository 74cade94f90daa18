"""How far a look-back holds at a precision, against mpmath scans, the formats themselves and rounded softmaxes."""

import math

import flint
import mpmath
import numpy as np
import pytest
import sympy
from hypothesis import given, settings
from hypothesis import strategies as st

from theory.certified import CosineSum
from theory.errors import TheoryError
from theory.horizon import (
    BF16,
    FP16,
    FP32,
    FloatFormat,
    least_modular_amplitude,
    lookback_horizon,
    precision_cap,
)
from theory.schedule import RotarySchedule

PI, ONE = sympy.pi, sympy.S.One
FORMATS = [FP16, BF16, FP32]
SMALLEST = {"fp16": 2.0**-24, "bf16": 2.0**-133, "fp32": 2.0**-149}


def scanned_horizon(frequencies: list[mpmath.mpf], amplitudes: list[float], gap: mpmath.mpf, reach: int) -> int | None:
    """The definition in 50 digits, lag by lag."""
    with mpmath.workdps(50):
        for lag in range(1, reach + 1):
            pairs = zip(amplitudes, frequencies, strict=True)
            if mpmath.fsum(r * (1 - mpmath.cos(lag * theta)) for r, theta in pairs) < gap:
                return lag - 1
    return None


def exact_gap(precision: FloatFormat) -> mpmath.mpf:
    """-log of half the smallest subnormal, from the table above."""
    with mpmath.workdps(50):
        return -mpmath.log(mpmath.mpf(SMALLEST[precision.name]) / 2)


def rounded(values: np.ndarray, precision: FloatFormat) -> np.ndarray:
    """Below the normal range a format is a grid of its smallest subnormal; numpy rounds to even."""
    step = SMALLEST[precision.name]
    return np.where(values < 64 * step, np.rint(values / step) * step, values)


@pytest.mark.parametrize(("precision", "gap"), [(FP16, 17.33), (BF16, 92.88), (FP32, 103.97)])
def test_gaps_of_statements(precision: FloatFormat, gap: float) -> None:
    assert precision.underflow_gap == pytest.approx(gap, abs=5e-3)


@pytest.mark.parametrize(("precision", "kind"), [(FP16, np.float16), (FP32, np.float32)])
def test_formats_are_those_of_numpy(precision: FloatFormat, kind: type) -> None:
    assert float(np.finfo(kind).smallest_subnormal) == SMALLEST[precision.name]
    assert float(np.finfo(kind).epsneg) == 2.0**-precision.significand_bits
    # On either side of the gap, and at its tie: exp(-f) is kept and lost.
    gap = precision.underflow_gap
    assert kind(math.exp(-gap * (1 - 1e-9))) > 0
    assert kind(math.exp(-gap * (1 + 1e-9))) == 0
    assert kind(2.0**-precision.underflow_exponent) == 0


def test_bf16_is_that_of_torch() -> None:
    torch = pytest.importorskip("torch")
    limits = torch.finfo(torch.bfloat16)
    assert limits.smallest_normal * limits.eps == SMALLEST["bf16"]
    assert limits.eps / 2 == 2.0**-BF16.significand_bits
    # Through float32, whose grid of 2^-149 holds both sides of the tie at 2^-134.
    kept, lost = (torch.tensor(math.exp(-BF16.underflow_gap * (1 + e))).to(torch.bfloat16) for e in (-1e-4, 1e-4))
    assert kept > 0 and lost == 0


@settings(deadline=None, max_examples=40)
@given(
    theta=st.floats(0.05, 6.2),
    amplitude=st.floats(1, 3e4),
    precision=st.sampled_from(FORMATS),
)
def test_one_pair_is_the_definition(theta: float, amplitude: float, precision: FloatFormat) -> None:
    found = lookback_horizon(np.array([amplitude]), RotarySchedule(np.array([theta])), precision)
    scanned = scanned_horizon([mpmath.mpf(theta)], [amplitude], exact_gap(precision), 2000)
    assert found == scanned or (scanned is None and found >= 2000)


@settings(deadline=None, max_examples=25)
@given(seed=st.integers(0, 10_000), pairs=st.integers(2, 3), scale=st.floats(20, 400))
def test_several_pairs_are_the_definition(seed: int, pairs: int, scale: float) -> None:
    rng = np.random.default_rng(seed)
    frequencies, amplitudes = rng.uniform(-2, 2, pairs), scale * rng.dirichlet(np.ones(pairs))
    found = lookback_horizon(amplitudes, RotarySchedule(frequencies), FP16, reach=600)
    scanned = scanned_horizon([mpmath.mpf(t) for t in frequencies], amplitudes.tolist(), exact_gap(FP16), 600)
    assert found == scanned


@settings(deadline=None, max_examples=25)
@given(theta=st.floats(0.2, 3), amplitude=st.floats(50, 5000), share=st.floats(0.1, 0.9))
def test_search_by_records_and_by_scan_agree(theta: float, amplitude: float, share: float) -> None:
    # The same pair split in two is scanned, and its sum is the pair's up to a rounding of the amplitude.
    one = lookback_horizon(np.array([amplitude]), RotarySchedule(np.array([theta])), FP32)
    halves = np.array([share * amplitude, amplitude - share * amplitude])
    two = lookback_horizon(halves, RotarySchedule(np.array([theta, theta])), FP32, reach=3000)
    assert one == two or (two is None and one >= 3000)


def test_horizons_of_one_radian() -> None:
    one = RotarySchedule.from_exact([ONE])
    horizons = [lookback_horizon(np.array([c]), one, FP16) for c in (20.0, 100.0, 1e3, 1e4, 1e6, 1e12)]
    assert horizons == [0, 5, 18, 43, 709, 312_688]


def test_horizon_jumps_where_the_gap_is_met() -> None:
    # At C = f/(1 - cos 6) the rival at lag 6 is just lost, and the next record is 19.
    one, threshold = RotarySchedule.from_exact([ONE]), FP32.underflow_gap / (1 - math.cos(6))
    assert lookback_horizon(np.array([threshold * (1 - 1e-12)]), one, FP32) == 5
    assert lookback_horizon(np.array([threshold * (1 + 1e-12)]), one, FP32) == 18


def test_one_pair_is_followed_however_far() -> None:
    lag = lookback_horizon(np.array([1e100]), RotarySchedule.from_exact([ONE]), FP16) + 1
    with mpmath.workdps(160):
        # The rivals nearest to a whole turn, by Euclid's algorithm in 160 digits: denominators of 1/2 pi.
        turn, before, q, gaps = 1 / (2 * mpmath.pi), 0, 1, {}
        while q <= lag:
            gaps[q] = mpmath.mpf(1e100) * (1 - mpmath.cos(q))
            turn = 1 / turn
            before, q = q, int(turn) * q + before
            turn -= int(turn)
        assert list(gaps)[:7] == [1, 6, 19, 25, 44, 333, 710]
        assert gaps.pop(lag) < exact_gap(FP16) < min(gaps.values())


def test_a_period_ends_the_horizon_and_the_float_one_does_not() -> None:
    # With enough amplitude the rivals of 2 pi a/m are lost up to the period, where the score is the target's.
    exact = RotarySchedule.from_exact([4 * PI / 5, 2 * PI / 7])
    assert lookback_horizon(np.full(2, 500.0), exact, FP16) == 34
    assert lookback_horizon(np.array([1e300]), RotarySchedule.from_exact([2 * PI / 5]), FP32) == 4
    # The float64 frequency is no rational part of 2 pi: at 1e300 lag 5 is told from a whole turn.
    assert lookback_horizon(np.array([1e300]), RotarySchedule(np.array([2 * np.pi / 5])), FP32) > 5


def test_a_horizon_may_lie_as_far_as_dirichlet_allows() -> None:
    # On 2 pi/M the lags 1..M-1 all lose C (1 - cos 2 pi/M) or more, here f by less than a rounding: the first to fall
    # short is the period, and the bound on it, rounded to float64, is below M.
    period = 10**18 + 1
    with mpmath.workdps(60):
        drop = 1 - mpmath.cos(2 * mpmath.pi / period)
        amplitude = float(exact_gap(FP32) / drop)
        if amplitude * drop < exact_gap(FP32):
            amplitude = math.nextafter(amplitude, math.inf)
        assert float(2 * mpmath.pi / mpmath.acos(1 - exact_gap(FP32) / amplitude)) < period
    assert lookback_horizon(np.array([amplitude]), RotarySchedule.periodic([(1, period)]), FP32) == period - 1


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("lag", [1, 6, 19, 25])
def test_no_rounding_of_the_scan_changes_a_horizon(sign: int, lag: int, monkeypatch) -> None:
    # Amplitudes at which one lag falls short, or does not, by its last digit; the scan then errs by all it may.
    schedule, shape = RotarySchedule(np.array([1.0, 1 / 44])), np.array([1.0, 1e-3])
    with mpmath.workdps(50):
        thetas = [mpmath.mpf(theta) for theta in schedule.frequencies.tolist()]
        unit = sum(r * (1 - mpmath.cos(lag * theta)) for r, theta in zip(shape.tolist(), thetas, strict=True))
        edge = float(exact_gap(FP16) / unit)
    scan = CosineSum.scan

    def off(self: CosineSum, first: int, last: int):
        for start, values in scan(self, first, last):
            yield start, values + sign * self.rounding * (1 - 2.0**-40)

    monkeypatch.setattr(CosineSum, "scan", off)
    expected = set()
    for ulps in range(-3, 4):
        amplitudes = edge * (1 + ulps * 2.0**-52) * shape
        horizon = scanned_horizon(thetas, amplitudes.tolist(), exact_gap(FP16), 200)
        assert lookback_horizon(amplitudes, schedule, FP16, reach=200) == horizon
        expected.add(horizon)
    # Both sides of the edge were met.
    assert lag - 1 in expected and len(expected) == 2


def test_pairs_that_do_not_turn_count_for_nothing() -> None:
    frequencies, amplitudes = np.array([1.0, 0.0, 0.3]), np.array([100.0, 1e6, 0.0])
    alone = lookback_horizon(amplitudes[:1], RotarySchedule(frequencies[:1]), FP16)
    assert lookback_horizon(amplitudes, RotarySchedule(frequencies), FP16) == alone == 5
    assert lookback_horizon(np.full(2, 1e9), RotarySchedule(np.zeros(2)), FP16) == 0
    # Nor do they limit the search of the one that turns.
    assert lookback_horizon(np.array([1e6, 5.0]), RotarySchedule(frequencies[:2]), FP16, reach=10) == 709


def test_many_pairs_hold_beyond_reach() -> None:
    schedule = RotarySchedule.geometric(64, 10_000)
    assert lookback_horizon(np.full(32, 1000 / 32), schedule, FP16, reach=20_000) is None
    # Positive control: at a tenth of the amplitude already the nearest rival keeps weight.
    assert lookback_horizon(np.full(32, 100 / 32), schedule, FP16, reach=20_000) == 0


@pytest.mark.parametrize(("precision", "cap"), [(BF16, 71), (FP16, 201), (FP32, 18_198)])
def test_caps_of_statements(precision: FloatFormat, cap: int) -> None:
    assert round(precision_cap(precision.significand_bits)) == cap
    assert precision_cap(precision.significand_bits, 3) == pytest.approx(precision_cap(precision.significand_bits) ** 3)
    with mpmath.workdps(50):
        exact = 2 * mpmath.pi / mpmath.acos(1 - mpmath.mpf(2) ** -precision.significand_bits)
    assert precision_cap(precision.significand_bits) == pytest.approx(float(exact), rel=1e-15)


@settings(deadline=None, max_examples=100)
@given(theta=st.floats(0, 6.3), mantissa=st.integers(1024, 2047))
def test_beyond_the_cap_fp16_cannot_tell_the_nearest_rival(theta: float, mantissa: int) -> None:
    t, amplitude = FP16.significand_bits, float(mantissa)
    cosines = np.cos(theta * np.arange(1, math.ceil(precision_cap(t + 1))))
    assert 1 - cosines.max() <= 2.0 ** -(t + 1)
    assert np.float16(amplitude * cosines.max()) == np.float16(amplitude)


def test_within_the_cap_a_frequency_keeps_its_rivals_apart() -> None:
    # Positive control, C a power of 2: at L lags theta = 2 pi/(L + 1) keeps all of them a roundoff below the target.
    for t, kind in ((FP16.significand_bits, np.float16), (FP32.significand_bits, np.float32)):
        lags = math.floor(precision_cap(t)) - 1
        cosines = np.cos(2 * np.pi / (lags + 1) * np.arange(1, lags + 1))
        assert (cosines.astype(kind) < 1).all()
        # Just above a power of 2 numbers lie twice as far apart, and the cap is met at t already.
        amplitude = 1 + float(np.finfo(kind).eps)
        beyond = np.cos(2 * np.pi / (lags + 3))
        assert kind(amplitude * beyond) == kind(amplitude)


@pytest.mark.parametrize("precision", FORMATS, ids=lambda p: p.name)
@pytest.mark.parametrize(("modulus", "multiple"), [(2, 1), (3, 2), (5, 2), (7, 3), (16, 5)])
def test_least_amplitude_selects_one_residue(precision: FloatFormat, modulus: int, multiple: int) -> None:
    scores = np.cos(2 * np.pi * multiple * (np.arange(6 * modulus) - 1) / modulus)
    chosen = np.arange(6 * modulus) % modulus == 1
    least = least_modular_amplitude(modulus, precision)
    for factor, others in ((1 + 1e-9, 0), (1 - 1e-6, 1)):
        weights = rounded(np.exp(factor * least * (scores - 1)), precision)
        assert (weights[chosen] == 1).all()
        assert bool((weights[~chosen] > 0).any()) == bool(others)


@pytest.mark.parametrize("modulus", [2, 3, 5, 9])
def test_a_sink_needs_twice_the_amplitude(modulus: int) -> None:
    # A sink between the residue and the others loses to the one and leaves nothing to the others.
    cosine = math.cos(2 * math.pi / modulus)
    alone, twice = (least_modular_amplitude(modulus, FP16, sink=sink) for sink in (False, True))
    assert twice == 2 * alone

    def sink_works(amplitude: float) -> bool:
        return any(
            rounded(np.exp([sink - amplitude, amplitude * cosine - sink]), FP16).tolist() == [0, 0]
            for sink in np.linspace(amplitude * cosine, amplitude, 1001)
        )

    assert sink_works(twice * (1 + 1e-9))
    assert not sink_works(twice * (1 - 1e-6))


@pytest.mark.parametrize("modulus", [2, 3, 5, 9])
def test_rounded_scores_need_the_margin_of_their_rounding(modulus: int) -> None:
    t, gap = FP16.significand_bits, FP16.underflow_gap
    drop = 1 - math.cos(2 * math.pi / modulus)
    # C (drop - 2^(1-t)) >= f (1 + 2^-t): both scores and their difference are rounded, 2^-t of C, C and f.
    amplitude = gap * (1 + 2.0**-t) / (drop - 2.0 ** (1 - t))
    for factor in np.linspace(1, 1.1, 200):
        scores = (factor * amplitude * np.cos(2 * np.pi * np.arange(modulus) / modulus)).astype(np.float16)
        weights = np.exp((scores - scores.max()).astype(np.float64)).astype(np.float16)
        assert weights[0] == 1 and not weights[1:].any()


def test_precision_of_balls_is_restored() -> None:
    before = flint.ctx.prec
    lookback_horizon(np.array([1e6]), RotarySchedule.from_exact([ONE]), FP32)
    lookback_horizon(np.ones(4), RotarySchedule.geometric(8, 100), FP32, reach=100)
    assert flint.ctx.prec == before


@pytest.mark.parametrize(
    ("question", "text"),
    [
        (
            lambda: FloatFormat("tiny", 1, 3),
            "tiny: exponent bits must be 2 or more, got 1",
        ),
        (lambda: FloatFormat("tiny", 5, 0), "tiny: fraction bits must be 1 or more, got 0"),
        (lambda: FloatFormat("e4m3", 4.0, 3.0), "e4m3: exponent bits must be a whole number, got 4.0"),
        (lambda: FloatFormat("wide", 2000, 10), "wide: no format has more than 512 exponent bits, got 2000"),
        (lambda: lookback_horizon(np.ones(3), RotarySchedule.geometric(4, 10), FP16), "give 2 finite amplitudes"),
        (
            lambda: lookback_horizon(-np.ones(1), RotarySchedule.geometric(2, 10), FP16),
            r"0 or more, one a pair, got \[-1",
        ),
        (
            lambda: lookback_horizon(np.ones(1), RotarySchedule.geometric(2, 10), FP16, 0),
            "reach, in lags, must be 1 or more, got 0",
        ),
        (
            lambda: lookback_horizon(np.ones(1), RotarySchedule.geometric(2, 10), FP16, 9.5),
            "must be a whole number, got 9.5",
        ),
        (
            lambda: lookback_horizon(np.full(1, 9.0), RotarySchedule.from_exact([sympy.E]), FP16),
            "no rational times powers",
        ),
        (lambda: precision_cap(0), "significand bits must be 1 or more, got 0"),
        (lambda: precision_cap(10.5), "significand bits must be a whole number, got 10.5"),
        (lambda: precision_cap(24, 128), "the cap of 128 pairs at 24 bits is more than float64 holds"),
        (lambda: precision_cap(3000), "the cap of 1 pairs at 3000 bits is more than float64 holds"),
        (lambda: least_modular_amplitude(1, FP16), "modulus of a residue must be 2 or more, got 1"),
        (lambda: least_modular_amplitude(2.5, FP16), "must be a whole number, got 2.5"),
        (lambda: least_modular_amplitude(10**200, FP16), "amplitude for this modulus is more than float64 holds"),
    ],
)
def test_bad_input_is_named(question, text: str, unchecked) -> None:
    with pytest.raises(TheoryError, match=text):
        question()
