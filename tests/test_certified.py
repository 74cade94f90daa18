"""Certified heights, maxima and margins against mpmath, brute force and exact algebra."""

import math
from fractions import Fraction
from unittest.mock import patch

import mpmath
import numpy as np
import pytest
import sympy
from flint import ctx
from hypothesis import example, given, settings
from hypothesis import strategies as st

from theory import certified
from theory.certified import CertifiedMaximum, CosineSum, certified_margin, certified_maximum, kernel_enclosure
from theory.errors import TheoryError
from theory.head import Carrier
from theory.kernel import carrier_profile, margin
from theory.schedule import RotarySchedule, as_lanes, as_pairs

PI = sympy.pi
EQUAL = np.full(32, 1 / 32)
FIFTH = RotarySchedule.from_exact([2 * PI / 5])
DIGITS = 100  # of mpmath: 60 and the 31 of the largest lag, with room


def exact_kernel(weights, schedule: RotarySchedule, lag: int) -> mpmath.mpf:
    """g(s) by mpmath, from exact frequencies where there are any."""
    with mpmath.workdps(DIGITS):
        thetas = schedule.exact or [sympy.Rational(theta) for theta in schedule.frequencies.tolist()]
        values = [theta.evalf(DIGITS)._to_mpmath(340) for theta in thetas]
        weights = [mpmath.mpf(w.p) / w.q if isinstance(w, sympy.Rational) else mpmath.mpf(float(w)) for w in weights]
        return mpmath.fsum(w * mpmath.cos(lag * theta) for w, theta in zip(weights, values, strict=True))


def exact_profile(carrier: Carrier, distance: int) -> mpmath.mpf:
    """phi at `distance` tokens back by mpmath: real rotation matrices on the binary means, lane by lane."""
    with mpmath.workdps(DIGITS):
        total = mpmath.mpf(0)
        thetas = carrier.schedule.exact or [sympy.Rational(theta) for theta in carrier.schedule.frequencies.tolist()]
        for i, (theta, gain) in enumerate(zip(thetas, carrier.schedule.score_gains.tolist(), strict=True)):
            angle = -distance * theta.evalf(DIGITS)._to_mpmath(340)
            cosine, sine = mpmath.cos(angle), mpmath.sin(angle)
            q0, q1 = (mpmath.mpf(float(x)) for x in carrier.query_mean[2 * i : 2 * i + 2])
            k0, k1 = (mpmath.mpf(float(x)) for x in carrier.key_mean[2 * i : 2 * i + 2])
            total += gain * (q0 * (cosine * k0 - sine * k1) + q1 * (sine * k0 + cosine * k1))
        return mpmath.mpf(float(carrier.logit_scale)) * total


def selecting_carrier(error: float, sign: int) -> Carrier:
    """theta = (1, 1/10), r = (.02, 1), K = 3 and phase errors (.5, error): Proposition 1's converse refuted."""
    schedule = RotarySchedule.from_exact([sympy.S.One, sympy.Rational(1, 10)])
    phases = -3 * schedule.frequencies + sign * np.array([0.5, error])
    return Carrier.from_means(
        schedule, as_lanes(np.array([0.02, 1]) * np.exp(1j * phases)), as_lanes(np.ones(2) + 0j), 1.0
    )


EXACT = [sympy.S.Zero, sympy.S.One, 2 * PI / 5, -PI / 7, sympy.sqrt(2) / 3, 10_000 ** sympy.Rational(-3, 32)]
FLOATS = [2 * math.pi / 5, 2 * math.pi / 7, 0.1, 1e-9]
grid = st.integers(-3 * 2**20, 3 * 2**20).map(lambda whole: whole / 2**20)
some_weights = st.lists(st.integers(-8, 8), min_size=4, max_size=4).filter(lambda weights: weights[0] != 0)
some_frequencies = st.one_of(
    st.lists(st.one_of(grid, st.sampled_from(FLOATS)), min_size=1, max_size=4),
    st.lists(st.sampled_from(EXACT), min_size=1, max_size=4),
)


def as_kernel(weights: list[int], frequencies: list) -> tuple[np.ndarray, RotarySchedule]:
    """Weights in eighths for a drawn list of frequencies, floats or exact numbers."""
    if isinstance(frequencies[0], sympy.Expr):
        schedule = RotarySchedule.from_exact(frequencies)
    else:
        schedule = RotarySchedule(np.array(frequencies))
    return np.array(weights[: schedule.pairs]) / 8, schedule


@pytest.mark.parametrize(
    ("dim", "base", "printed"),
    [
        (64, 1_000, ".9576"),
        (64, 10_000, ".9662"),
        (64, 100_000, ".9712"),
        (16, 10_000, ".936"),
        (32, 10_000, ".957"),
        (128, 10_000, ".970"),
    ],
)
def test_first_lag_of_equal_weights(dim, base, printed):
    found = kernel_enclosure(np.full(dim // 2, 2 / dim), RotarySchedule.geometric(dim, base), 1)
    assert f"{found.lower:.{len(printed) - 1}f}"[1:] == printed


@pytest.mark.parametrize(
    ("base", "first", "last", "lag", "printed"),
    [
        (1_000, 1, 10**6, 1, ".9576"),
        (1_000, 4, 10**6, 4, ".6712"),
        (10_000, 4, 10**6, 4, ".7479"),
        (100_000, 4, 10**6, 4, ".7942"),
        (1_000, 100, 3 * 10**6, 1_265_873, ".546"),
        (10_000, 100, 3 * 10**6, 101, ".579"),
        (100_000, 100, 3 * 10**6, 107, ".645"),
    ],
)
def test_highest_lag_of_the_base_sweep(base, first, last, lag, printed):
    schedule = RotarySchedule.geometric(64, base)
    found = certified_maximum(EQUAL, schedule, first, last)
    assert (found.lag, found.unique) == (lag, True)
    assert f"{found.value.lower:.{len(printed) - 1}f}"[1:] == printed
    assert found.value.lower <= exact_kernel(EQUAL, schedule, lag) <= found.value.upper


@settings(deadline=None, max_examples=150)
@given(
    weights=some_weights,
    frequencies=some_frequencies,
    lag=st.one_of(st.integers(-50, 50), st.integers(-(10**30), 10**30)),
)
@example(weights=[8], frequencies=[2 * PI / 5], lag=5 * 10**29)
@example(weights=[1, -2, -4, 5], frequencies=[1 / 2**20] * 4, lag=1)
def test_enclosure_holds_the_value_and_is_tight(weights, frequencies, lag):
    weights, schedule = as_kernel(weights, frequencies)
    found = kernel_enclosure(weights, schedule, lag)
    # The oracle is rounded: where everything cancels it leaves some 1e-100 of a sum that is 0.
    value, rounded = exact_kernel(weights, schedule, lag), mpmath.mpf(10) ** (31 - DIGITS)
    assert found.lower - rounded <= value <= found.upper + rounded
    # The ball of 4 weights up to 1 is below 2^-100 wide: its outward floats are two steps of 2^-52 apart at most.
    assert found.upper - found.lower <= 2.0**-51 * abs(found.upper) + 2.0**-100


@pytest.mark.parametrize("size", [1e40, 1e-40, 1e300])
def test_weights_that_cancel_leave_30_digits(size):
    schedule = RotarySchedule(np.array([1.0, 1.0, 0.5]))
    weights = np.array([size, -size, 1.0])
    for found in (kernel_enclosure(weights, schedule, 1), certified_maximum(weights, schedule, 1, 3).value):
        assert found.upper - found.lower <= 2.0**-51
        assert found.lower <= math.cos(0.5) <= found.upper
        assert float(found.decimals.strip("[]").split(" +/- ")[1]) < 1e-29
    # An exact 0 has no digits: its ball is some 2^-1152 of the weights.
    nothing = kernel_enclosure(np.array([size, -size]), RotarySchedule(np.ones(2)), 1)
    assert nothing.lower <= 0 <= nothing.upper
    assert float(nothing.decimals.strip("[]").removeprefix("+/- ")) <= size * 2.0**-1050 + 5e-324


def test_a_sum_of_exact_frequencies_needs_no_monomial():
    for theta, lag in ((1 + PI, 10**20), (sympy.sqrt(10**40 + 1) - 10**20, 10**30), (sympy.sqrt(2) ** PI, -7)):
        schedule = RotarySchedule.from_exact([theta])
        found = kernel_enclosure(np.ones(1), schedule, lag)
        with mpmath.workdps(DIGITS):
            value = mpmath.cos(lag * theta.evalf(DIGITS)._to_mpmath(340))
        assert found.lower <= value <= found.upper
        with pytest.raises(TheoryError, match="give frequencies of the form"):
            certified_maximum(np.ones(1), schedule, 1, 10)
    nothing = sympy.Add(sympy.sqrt(2), sympy.sqrt(3), -sympy.sqrt(5 + 2 * sympy.sqrt(6)), evaluate=False)
    with pytest.raises(TheoryError, match=r"not told from 0 at .* bits: simplify it"):
        kernel_enclosure(np.ones(1), RotarySchedule.from_exact([nothing]), 1)


@pytest.mark.usefixtures("unchecked")
def test_weights_of_any_exact_type_and_lags_of_any_whole_type():
    schedule = RotarySchedule.geometric(4, 10)
    plain = kernel_enclosure(np.array([0.5, 2.0]), schedule, 3)
    for half, two in ((np.float32(0.5), np.int64(2)), (Fraction(1, 2), 2), (sympy.Rational(1, 2), np.float16(2))):
        assert kernel_enclosure([half, two], schedule, np.int64(3)) == plain
    assert kernel_enclosure(np.array([0.5, 2.0], dtype=np.float32), schedule, np.uint8(3)) == plain
    assert certified_maximum(np.array([1, 4]), schedule, np.int32(3), np.int64(3)).lag == 3
    carrier = Carrier.from_means(schedule, np.arange(4.0), np.ones(4), 1.0)
    assert certified_margin(carrier, np.int64(2), np.int64(20)) == certified_margin(carrier, 2, 20)


def test_exact_weights_are_no_floats():
    thirds = [sympy.Rational(1, 3)] * 3
    schedule = RotarySchedule.from_exact([sympy.S.Zero, 2 * PI / 5, 2 * PI])
    whole = kernel_enclosure(thirds, schedule, 5)
    floats = kernel_enclosure(np.full(3, 1 / 3), schedule, 5)
    assert whole.lower < 1 < whole.upper or (whole.lower, whole.upper) == (1, 1)
    assert floats.upper <= 1  # 1/3 as a float is below 1/3
    assert sum([Fraction(1 / 3)] * 3) < 1


def test_decimals_hold_the_value():
    found = kernel_enclosure(EQUAL, RotarySchedule.geometric(64, 10_000), 1)
    middle, radius = found.decimals.strip("[]").split(" +/- ")
    with mpmath.workdps(50):
        value = exact_kernel(EQUAL, RotarySchedule.geometric(64, 10_000), 1)
        assert abs(value - mpmath.mpf(middle)) <= mpmath.mpf(radius) <= mpmath.mpf("1e-29")


@pytest.mark.parametrize("first", [0, -700, 10**9, 10**30])
def test_scan_stays_within_its_bound(first):
    schedule = RotarySchedule.geometric(16, 10_000)
    weights = np.random.default_rng(0).normal(size=8)
    total = CosineSum.of_kernel(weights, schedule)
    with patch.object(certified, "_BLOCK", 8):
        chunks = list(total.scan(first, first + 199))
    assert [start - first for start, _ in chunks] == [0, 64, 128, 192]
    values = np.concatenate([values for _, values in chunks])
    errors = [abs(exact_kernel(weights, schedule, first + j) - value) for j, value in enumerate(values)]
    assert len(values) == 200
    assert 0 < max(errors) <= total.rounding
    assert total.rounding == pytest.approx(36 * 2.0**-53 * np.abs(weights).sum(), rel=1e-12, abs=0)  # 2P + 20 = 36


@settings(deadline=None, max_examples=60)
@given(
    weights=some_weights,
    frequencies=some_frequencies,
    first=st.one_of(st.integers(-60, 5), st.integers(-(10**12), 10**12)),
    count=st.integers(1, 60),
    block=st.sampled_from([3, 1024]),
)
def test_maximum_is_that_of_every_lag(weights, frequencies, first, count, block):
    weights, schedule = as_kernel(weights, frequencies)
    with patch.object(certified, "_BLOCK", block):
        found = certified_maximum(weights, schedule, first, first + count - 1)
    heights = [exact_kernel(weights, schedule, first + j) for j in range(count)]
    highest = max(heights)
    tied = [first + j for j, height in enumerate(heights) if highest - height < mpmath.mpf("1e-60")]
    # The 100 digits of mpmath, where weights cancel to an exact 0.
    assert found.value.lower - mpmath.mpf("1e-90") <= highest <= found.value.upper + mpmath.mpf("1e-90")
    assert found.lag == tied[0]
    assert found.unique == (len(tied) == 1)


def test_float64_cannot_tell_what_is_told_apart_here():
    # 2 pi/5 as a float misses 2 pi/5 by some 1e-17: cos(5k theta) is 1 in float64 for every k, and falls with k.
    floating = RotarySchedule(FIFTH.frequencies)
    multiples = 5 * np.arange(1, 200)
    assert (np.cos(multiples * floating.frequencies[0]) == 1).all()
    found = certified_maximum(np.ones(1), floating, 1, 1000)
    assert (found.lag, found.unique) == (5, True)
    assert found.value.lower < 1
    assert certified_maximum(np.ones(1), floating, 6, 1000).lag == 10


def test_lags_that_128_bits_do_not_tell_apart():
    # cos(1e-30 s) falls by 5e-61 from s = 0 to 1: 200 bits after the point.
    slow = RotarySchedule(np.array([1e-30]))
    assert certified_maximum(np.ones(1), slow, 0, 50).unique
    assert certified_maximum(np.ones(1), slow, -50, 50).lag == 0
    carrier = Carrier.from_means(slow, np.array([1.0, 0.0]), np.array([1.0, 0.0]), 1.0)
    assert certified_margin(carrier, 0, 50).value.upper == pytest.approx(5e-61)


@pytest.mark.parametrize("noise", [-1, 1])
def test_the_screen_allows_for_the_error_of_the_scan(noise):
    # cos(1e-9 s) over -50..50: neighbours differ by less than a rounding. An error of a whole `rounding` may hide any.
    slow, scan = RotarySchedule(np.array([1e-9])), CosineSum.scan

    def disturbed(total, first, last):
        for start, values in scan(total, first, last):
            yield start, values + noise * total.rounding * np.where((start + np.arange(len(values))) % 2, 1, -1)

    with patch.object(CosineSum, "scan", disturbed):
        assert certified_maximum(np.ones(1), slow, -50, 50).lag == 0
        assert certified_maximum(-np.ones(1), slow, -50, 50) == CertifiedMaximum(
            -50, kernel_enclosure(-np.ones(1), slow, 50), unique=False
        )


@pytest.mark.parametrize("exponent", range(20, 40))
def test_a_margin_has_30_digits_however_small(exponent):
    # cos 0 - cos(theta) = theta^2/2 from 2^-134 to 2^-267: the first precision to see it gives few of its bits.
    theta = 10.0**-exponent
    carrier = Carrier.from_means(RotarySchedule(np.array([theta])), np.array([1.0, 0.0]), np.array([1.0, 0.0]), 1.0)
    found = certified_margin(carrier, 0, 9).value
    assert found.upper - found.lower <= 2.0**-51 * found.upper
    assert found.lower == pytest.approx(theta**2 / 2, rel=1e-12, abs=0)
    assert float(found.decimals.strip("[]").split(" +/- ")[1]) < 1e-28 * found.upper


@pytest.mark.parametrize(
    ("first", "last", "lag", "unique"),
    [(1, 10**7, 5, False), (1, 10, 5, False), (1, 9, 5, True), (2, 3, 2, False), (6, 8, 6, True), (-5, 5, -5, False)],
)
def test_an_exact_period_ties(first, last, lag, unique):
    # cos(2 pi 2/5) = cos(2 pi 3/5) ties inside a period.
    found = certified_maximum(np.ones(1), FIFTH, first, last)
    assert (found.lag, found.unique) == (lag, unique)


def test_a_kernel_that_never_moves_ties_everywhere():
    found = certified_maximum(np.ones(2), RotarySchedule(np.array([0.0, 0.0])), 3, 10**12)
    assert (found.lag, found.unique, found.value.lower, found.value.upper) == (3, False, 2, 2)


@settings(deadline=None, max_examples=40)
@given(
    seed=st.integers(0, 1000),
    offset=st.integers(0, 30),
    more=st.integers(1, 40),
    factor=st.sampled_from([1.0, 1.25]),
    exact=st.booleans(),
)
def test_margin_is_that_of_every_offset(seed, offset, more, factor, exact):
    rng = np.random.default_rng(seed)
    plain = RotarySchedule.geometric(8, 100)
    frequencies = np.append(plain.frequencies[:3], 0)
    exact_values = (*plain.exact[:3], sympy.S.Zero) if exact else None
    schedule = RotarySchedule(frequencies, exact_values, attention_factor=factor, unrotated=1)
    carrier = Carrier.from_means(schedule, rng.normal(size=8), rng.normal(size=8), 0.35)
    length = offset + more + (offset == 0)
    found = certified_margin(carrier, offset, length)
    heights = {j: exact_profile(carrier, j) for j in range(length)}
    with mpmath.workdps(DIGITS):
        rival = max((j for j in heights if j != offset), key=heights.__getitem__)
        value = heights[offset] - heights[rival]
    assert found.competitor == -rival
    assert found.unique
    assert found.value.lower <= value <= found.value.upper
    floating = margin(carrier_profile(carrier, length), offset)
    assert floating.competitor == found.competitor
    # Float64 profile: 4 pairs of r up to 0.35 * 1.6 * 16, each off by some (s theta + P) 2^-52.
    assert floating.value == pytest.approx(found.value.lower, abs=1e-11)


def test_refuted_converse_with_a_rounded_phase_error():
    # statements.md, Proposition 1: with -.096 for -arcsin(.2 sin .5), offset -106126 is higher by 1.7e-10.
    carrier = selecting_carrier(-0.096, sign=-1)
    found = certified_margin(carrier, 3, 106_127)
    assert (found.competitor, found.unique) == (-106_126, True)
    assert f"{found.value.upper:.1e}" == "-1.7e-10"
    with mpmath.workdps(DIGITS):
        value = exact_profile(carrier, 3) - exact_profile(carrier, 106_126)
    assert found.value.lower <= value <= found.value.upper
    assert certified_margin(carrier, 3, 106_126).value.lower > 0


@pytest.mark.parametrize("sign", [-1, 1])
def test_refuted_converse_selects_where_float64_sees_another(sign):
    # With the phase error right to 2^-53, -K is above every rival to 1e7; the float64 profile, off by
    # s |theta - float(theta)| = 1e7 * 5e-18 and more, puts another offset above it.
    carrier = selecting_carrier(-math.asin(0.2 * math.sin(0.5)), sign)
    found = certified_margin(carrier, 3, 10**7)
    assert 0 < found.value.lower < 1e-13
    with mpmath.workdps(DIGITS):
        value = exact_profile(carrier, 3) - exact_profile(carrier, -found.competitor)
    assert found.value.lower <= value <= found.value.upper
    assert margin(carrier_profile(carrier, 10**7), 3).competitor != found.competitor


def test_margin_at_a_whole_period_is_zero():
    carrier = Carrier.from_means(FIFTH, np.array([1.0, 0.0]), np.array([0.5, 0.0]), 1.0)
    tie = certified_margin(carrier, 0, 12)
    assert (tie.value.lower, tie.value.upper, tie.competitor, tie.unique) == (0, 0, -5, False)
    assert certified_margin(carrier, 0, 5).value.lower > 0
    assert certified_margin(carrier, 7, 12).competitor == 0
    # Rivals that tie are one number to 30 digits: sin^2 of 2 pi 3/5 once and again.
    once, again = certified_margin(carrier, 3, 5).value, certified_margin(carrier, 3, 50)
    assert (again.value, again.unique) == (once, False)


def test_profile_has_the_sign_of_the_carrier():
    carrier = Carrier.from_means(
        RotarySchedule.geometric(8, 100), *np.random.default_rng(1).normal(size=(2, 8)), logit_scale=0.35
    )
    total = CosineSum.of_carrier(carrier)
    ball = [total.enclosure(j).lower for j in range(20)]
    np.testing.assert_allclose(ball, carrier_profile(carrier, 20), atol=1e-13)
    pairs = as_pairs(carrier.query_mean) * as_pairs(carrier.key_mean).conj()
    assert abs(pairs.imag).min() > 0.01  # a sign error would show


def test_working_precision_is_left_as_it_was():
    before = ctx.prec
    certified_maximum(EQUAL, RotarySchedule.geometric(64, 10_000), 1, 100)
    with pytest.raises(TheoryError):
        kernel_enclosure(np.ones(1), RotarySchedule.from_exact([sympy.E]), 1)
    assert ctx.prec == before


@pytest.mark.parametrize(
    ("weights", "schedule", "text"),
    [
        (np.ones(2), FIFTH, "one weight a pair: the schedule has 1, got 2"),
        (np.array([np.nan]), FIFTH, "the weight of pair 0 must be a finite float, .* got nan of type"),
        (np.array([np.inf]), FIFTH, "got inf of type float64"),
        ([1.0, None], RotarySchedule(np.ones(2)), "the weight of pair 1 .* got None of type NoneType"),
        (np.ones(1) + 0j, FIFTH, "got .* of type complex128"),
        ([sympy.sqrt(2)], FIFTH, r"got sqrt\(2\) of type Pow"),
        ([sympy.oo], FIFTH, "got oo of type Infinity"),
        ([sympy.Float(2)], FIFTH, "of type Float"),
        (np.zeros(1), FIFTH, "every weight is 0"),
        (np.full(2, 1.7e308), RotarySchedule(np.ones(2)), "scale them down"),
        (np.ones(1), RotarySchedule.from_exact([sympy.cos(1)]), "has no ball: give sums, products and powers"),
    ],
)
@pytest.mark.usefixtures("unchecked")
def test_kernels_name_what_does_not_fit(weights, schedule, text):
    with pytest.raises(TheoryError, match=text):
        kernel_enclosure(weights, schedule, 1)


@pytest.mark.usefixtures("unchecked")
def test_ranges_and_targets_name_what_does_not_fit():
    with pytest.raises(TheoryError, match=r"the lag must be a whole number, got 3.0"):
        kernel_enclosure(np.ones(1), FIFTH, 3.0)
    with pytest.raises(TheoryError, match=r"the last lag must be a whole number, got 1000000.0"):
        certified_maximum(np.ones(1), FIFTH, 1, 1e6)
    with pytest.raises(TheoryError, match="from 5 to 4 are none: give first <= last"):
        certified_maximum(np.ones(1), FIFTH, 5, 4)
    carrier = Carrier.from_means(FIFTH, np.array([1.0, 0.0]), np.array([1.0, 0.0]), 1.0)
    with pytest.raises(TheoryError, match=r"the length must be a whole number, got 4.0"):
        certified_margin(carrier, 3, 4.0)
    with pytest.raises(TheoryError, match="needs a length above 3"):
        certified_margin(carrier, 3, 3)
    with pytest.raises(TheoryError, match="a length of 2 or more, got 1"):
        certified_margin(carrier, 0, 1)
    idle = Carrier.from_means(FIFTH, np.zeros(2), np.ones(2), 1.0)
    with pytest.raises(TheoryError, match="no rotary pair is active"):
        certified_margin(idle, 0, 5)
