"""Where rounding breaks explicit heads: theory against numpy's formats, against torch, and what tells them apart."""

from __future__ import annotations

import math
from collections.abc import Callable

import mpmath
import numpy as np
import pytest
import sympy
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bridge.paper.target import Preset
from bridge.studies.explicit_heads import FORMATS, HeadCase, Outcome, compare, leaks_at, measured_leak
from bridge.studies.horizon_precision import BARS, PrecisionFindings, _narrowed, modular_head, precision_findings
from bridge.studies.horizon_precision_tables import broken_at
from empirics.explicit_heads import Arithmetic, ExplicitHead, Operation, attention
from theory.errors import TheoryError
from theory.horizon import BF16, FP16, FP32, FloatFormat, least_modular_amplitude, lookback_horizon
from theory.rounded_heads import RoundedHead, Rounding, _TurnedVectors, sufficient_modular_amplitude
from theory.schedule import RotarySchedule

ONE = RotarySchedule.from_exact([sympy.S.One])
SMALLEST = {"fp16": 2.0**-24, "bf16": 2.0**-133, "fp32": 2.0**-149}
VECTORS = torch.backends.cpu.get_cpu_capability() != "DEFAULT"
flushing = pytest.mark.skipif(not VECTORS, reason="the fused kernel of this processor has no vector exponential")


def one_rad(amplitude: float, offset: int = 1) -> HeadCase:
    return HeadCase("1 rad", ONE, np.array([amplitude]), offset)


def numpy_leak(amplitude: float, offset: int, kind: type, turned: bool, reach: int) -> int | None:
    """A head at 1 rad in numpy's own arithmetic, number by number, its cosines from 40 digits."""
    smallest = float(np.finfo(kind).smallest_subnormal)

    def once(number: mpmath.mpf) -> np.floating:
        return kind(float(number))

    def turn(function: Callable, position: int) -> np.floating:
        # Of a float32 cosine, as rotary caches are.
        return kind(np.float32(float(function(position))))

    with mpmath.workdps(40):
        looked = once(amplitude * mpmath.cos(offset)), once(-amplitude * mpmath.sin(offset))
        for length in range(offset + 1, reach + 1):
            last, target = length - 1, length - 1 - offset
            if turned:
                c, s = turn(mpmath.cos, last), turn(mpmath.sin, last)
                along, across = looked[0] * c - looked[1] * s, looked[1] * c + looked[0] * s
                keys = [(turn(mpmath.cos, i), turn(mpmath.sin, i)) for i in range(length)]
                # Products of two such numbers are exact in float64, for fp16 their sum too.
                scores = [kind(float(along) * float(x) + float(across) * float(y)) for x, y in keys]
            else:
                scores = [once(amplitude * mpmath.cos(target - i)) for i in range(length)]
            highest = max(scores)
            weights = [math.exp(np.float32(s) - np.float32(highest)) for s in scores]
            if any(w / sum(weights) > smallest / 2 for i, w in enumerate(weights) if i != target):
                return length
    return None


@pytest.mark.parametrize("rounding", [Rounding.SCORES, Rounding.EAGER])
@pytest.mark.parametrize("offset", [0, 1, 4])
@pytest.mark.parametrize("amplitude", [150.0, 1530.0, 4e4])
def test_the_prediction_is_numpys_arithmetic_in_fp16(amplitude: float, offset: int, rounding: Rounding) -> None:
    expected = numpy_leak(amplitude, offset, np.float16, rounding is Rounding.EAGER, 50)
    assert RoundedHead(np.array([amplitude]), ONE, offset, FP16, rounding).first_leak(50).length == expected
    assert expected is not None


@pytest.mark.parametrize("offset", [0, 1, 4])
def test_the_prediction_is_numpys_arithmetic_in_fp32(offset: int) -> None:
    for amplitude in (300.0, 8e3, 5e4):
        expected = numpy_leak(amplitude, offset, np.float32, True, 50)
        assert RoundedHead(np.array([amplitude]), ONE, offset, FP32, Rounding.EAGER).first_leak(50).length == expected


def test_cosines_are_rounded_to_float32_and_then_to_the_format() -> None:
    """The sine of 300 rad lies next to a tie of fp16, which float32 takes it for."""
    table = _TurnedVectors.of(one_rad(100.0).rounded(FP16, Rounding.EAGER), 301)
    angles = np.arange(301.0)
    for found, exact in ((table.cosines, np.cos(angles)), (table.sines, np.sin(angles))):
        assert np.array_equal(found[:, 0], exact.astype(np.float32).astype(np.float16).astype(np.float64))
    assert table.sines[300, 0] != float(np.float16(np.sin(300.0)))


@settings(max_examples=15)
@given(amplitude=st.floats(20, 5e4), offset=st.integers(0, 30), precision=st.sampled_from(FORMATS))
def test_rounded_weights_break_at_the_certified_horizon(amplitude: float, offset: int, precision: FloatFormat) -> None:
    horizon = lookback_horizon(np.array([amplitude]), ONE, precision)
    assert horizon is not None
    leak = RoundedHead(np.array([amplitude]), ONE, offset, precision, Rounding.WEIGHTS).first_leak(90)
    assert leak.length == broken_at(horizon, offset)


def test_rounded_scores_cap_the_length_whatever_the_amplitude() -> None:
    """At 44 lags, 1.6e-4 short of seven turns, the rival's score rounds to the target's; exact scores hold on."""
    for amplitude in (3e5, 4e6, 1e9):
        leaks = [
            RoundedHead(np.array([amplitude]), ONE, 1, BF16, rounding).first_leak(60).length
            for rounding in (Rounding.WEIGHTS, Rounding.SCORES)
        ]
        assert leaks == ([46, 46] if amplitude == 3e5 else [None, 46])


@pytest.mark.parametrize("precision", FORMATS, ids=lambda one: one.name)
@pytest.mark.parametrize("rounding", Rounding)
def test_torch_breaks_where_it_is_predicted(precision: FloatFormat, rounding: Rounding) -> None:
    seen = set()
    for amplitude in (60.0, 400.0, 2e3, 6e3, 1.6e4, 4e4):
        if rounding is Rounding.FUSED and precision is not FP16 and not VECTORS:
            continue
        outcome = compare(one_rad(amplitude), precision, rounding, 60)
        # Half of the slack is beyond what two sums of float32 products differ by.
        assert outcome.slack > 8 * 2.0**-24 * amplitude and outcome.equal and outcome.operation == ""
        seen.add(outcome.measured)
    assert len(seen) >= 2 or rounding is Rounding.FUSED


def test_torch_breaks_several_pairs_where_it_is_predicted() -> None:
    """bf16 breaks before its horizon where vectors are turned in it, and at 258 where positions are."""
    schedule = RotarySchedule.geometric(4, 100)
    case = HeadCase("2 pairs", schedule, np.full(2, 1e4))
    outcomes = {one: compare(case, BF16, one, 400) for one in (Rounding.WEIGHTS, Rounding.EAGER, Rounding.ANGLES)}
    assert all(outcome.equal for outcome in outcomes.values())
    weights, eager, angles = (outcome.measured for outcome in outcomes.values())
    assert weights == 379 and eager == 108 and angles == 165
    if VECTORS:
        fused = compare(case, BF16, Rounding.FUSED, 400)
        assert fused.equal and fused.measured == 336
    beyond = HeadCase("2 pairs", schedule, np.full(2, 5e5))
    last = compare(beyond, BF16, Rounding.ANGLES, 300)
    # 257 rounds to 256: the query at 257 cannot tell its target from itself.
    assert last.equal and last.measured == 258


def edge(precision: FloatFormat, rounding: Rounding, amplitudes: tuple[float, float]) -> tuple[Outcome, Outcome]:
    one, other = (compare(one_rad(amplitude), precision, rounding, 30) for amplitude in amplitudes)
    assert one.predicted != other.predicted
    return _narrowed(one, other)


def test_a_difference_at_a_jump_is_the_cast_through_float32() -> None:
    """A billionth from the amplitude at which a score is a tie of fp16, float32 has the tie itself."""
    outcomes = edge(FP16, Rounding.SCORES, (400.0, 800.0))
    assert [outcome.equal for outcome in outcomes].count(False) == 1
    assert {outcome.operation for outcome in outcomes} == {"", Operation.CAST.value}
    # Nothing else accounts for it: float64 in the softmax leaves it.
    (moved,) = (outcome for outcome in outcomes if not outcome.equal)
    found = measured_leak(moved.case, FP16, Rounding.SCORES, 30, (Operation.WEIGHTS, Operation.TURNS))
    assert found == moved.measured != moved.predicted


@pytest.mark.parametrize("precision", FORMATS, ids=lambda one: one.name)
def test_every_difference_at_a_jump_has_a_name(precision: FloatFormat) -> None:
    for rounding in (Rounding.WEIGHTS, Rounding.EAGER):
        assert all(outcome.explained for outcome in edge(precision, rounding, (100.0, 2e3)))


@flushing
@pytest.mark.parametrize("precision", [BF16, FP32], ids=lambda one: one.name)
def test_the_fused_kernel_drops_what_is_no_normal_number(precision: FloatFormat) -> None:
    """The next key lies 89 nats below the target: e^-89 is a subnormal number of float32, and of bf16."""
    case = one_rad(89 / (1 - math.cos(1)))
    fused, eager = (compare(case, precision, rounding, 4) for rounding in (Rounding.FUSED, Rounding.EAGER))
    assert (eager.predicted, eager.measured) == (2, 2)
    assert (fused.predicted, fused.measured) == (None, None)
    # Positive control: at 85 nats it is a normal one, and stays.
    kept = compare(one_rad(85 / (1 - math.cos(1))), precision, Rounding.FUSED, 4)
    assert (kept.predicted, kept.measured) == (2, 2)


def test_weights_are_the_softmax_of_the_scores_written_out() -> None:
    head = ExplicitHead((1.0, 0.3), (4.0, 2.0), 2, sink=5.0)
    weights = attention(head, torch.tensor([0, 6]), torch.float32, Arithmetic.WEIGHTS).double().numpy()
    for row, last in zip(weights, (0, 6), strict=True):
        lags = last - 2 - np.arange(last + 1)
        exponentials = np.exp([5.0, *(4 * np.cos(lags) + 2 * np.cos(0.3 * lags))])
        expected = np.zeros(8)
        expected[: last + 2] = exponentials / exponentials.sum()
        np.testing.assert_allclose(row, expected, rtol=2.0**-23)
    for arithmetic in (Arithmetic.FUSED, Arithmetic.EAGER, Arithmetic.ANGLES):
        rounded = attention(head, torch.tensor([0, 6]), torch.bfloat16, arithmetic)
        np.testing.assert_allclose(rounded.double().numpy(), weights, atol=0.05)


def test_every_replaced_operation_leaves_the_weights_nearly_as_they_are() -> None:
    head = ExplicitHead((1.0, 0.3), (4.0, 2.0), 1)
    for arithmetic in Arithmetic:
        plain = attention(head, torch.arange(20), torch.float16, arithmetic).double()
        for replaced in (*((one,) for one in Operation), tuple(Operation)):
            other = attention(head, torch.arange(20), torch.float16, arithmetic, replaced).double()
            assert (other - plain).abs().max() < 2.0**-9


@pytest.mark.parametrize("precision", FORMATS, ids=lambda one: one.name)
@pytest.mark.parametrize("turn", [(1, 2), (1, 3), (2, 7), (5, 12)])
def test_a_modular_head_breaks_at_no_length(turn: tuple[int, int], precision: FloatFormat) -> None:
    for rounding in (Rounding.WEIGHTS, Rounding.SCORES, Rounding.FUSED, Rounding.EAGER):
        for sink in (False, True):
            case = modular_head(turn, precision, rounding, 500, sink)
            assert measured_leak(case, precision, rounding, 160) is None
            assert not leaks_at(case, precision, rounding, 500)
    # With nine tenths of the least amplitude the residue next in height keeps weight as soon as there is a key of it.
    low = 0.9 * least_modular_amplitude(turn[1], precision)
    case = HeadCase("low", RotarySchedule.periodic([turn]), np.array([low]), period=turn[1])
    nearest = next(n for n in range(1, turn[1]) if n * turn[0] % turn[1] in (1, turn[1] - 1))
    for rounding in (Rounding.WEIGHTS, Rounding.EAGER):
        assert measured_leak(case, precision, rounding, 3 * turn[1]) == (2 if nearest == 1 else nearest + 2)


def test_a_modular_head_shares_its_weight_among_its_residue_and_leaves_the_rest_to_the_sink() -> None:
    case = modular_head((1, 4), BF16, Rounding.EAGER, 500, sink=True)
    weights = attention(case.explicit, torch.tensor([2, 3, 14]), torch.bfloat16, Arithmetic.EAGER).double().numpy()
    # It looks three back: at position 2 there is no such key, at 3 one, at 14 the keys 3, 7 and 11.
    assert weights[0].tolist() == [1, *[0] * 15]
    assert np.flatnonzero(weights[1]).tolist() == [1] and np.flatnonzero(weights[2]).tolist() == [4, 8, 12]
    np.testing.assert_allclose(weights[2, [4, 8, 12]], 1 / 3, rtol=2.0**-7)


def test_angles_in_the_format_break_a_modular_head() -> None:
    case = modular_head((1, 2), BF16, Rounding.EAGER, 500)
    outcome = compare(case, BF16, Rounding.ANGLES, 100)
    assert outcome.predicted == outcome.measured == 42
    assert measured_leak(case, BF16, Rounding.EAGER, 100) is None


@settings(max_examples=30)
@given(
    modulus=st.integers(2, 9),
    precision=st.sampled_from(FORMATS),
    rounding=st.sampled_from([Rounding.WEIGHTS, Rounding.SCORES, Rounding.FUSED, Rounding.EAGER]),
    sink=st.booleans(),
    place=st.integers(0, 100),
)
def test_a_sufficient_amplitude_suffices_for_every_head(
    modulus: int, precision: FloatFormat, rounding: Rounding, sink: bool, place: int
) -> None:
    prime = [a for a in range(1, modulus) if math.gcd(a, modulus) == 1]
    case = modular_head((prime[place % len(prime)], modulus), precision, rounding, 500, sink)
    assert case.rounded(precision, rounding).first_leak(3 * modulus).length is None
    least = least_modular_amplitude(modulus, precision, sink)
    assert least < case.amplitudes[0] < 2.5 * least


def test_scores_beyond_a_format_overflow_in_both() -> None:
    with pytest.raises(TheoryError, match=r"scores of 70000 nats overflow fp16, whose largest number is 65504: give"):
        one_rad(7e4).rounded(FP16, Rounding.EAGER)
    weights = attention(one_rad(7e4).explicit, torch.tensor([3]), torch.float16, Arithmetic.EAGER)
    assert weights.isnan().all()
    # Weights alone are of float64 scores, and bf16 has the numbers.
    assert one_rad(7e4).rounded(FP16, Rounding.WEIGHTS).first_leak(50).length == 46
    assert one_rad(7e4).rounded(BF16, Rounding.EAGER).first_leak(50).length == 46


@pytest.mark.parametrize(
    ("question", "text"),
    [
        (lambda: RoundedHead(np.ones(2), ONE, 1, FP16, Rounding.EAGER), "give 1 finite amplitudes"),
        (lambda: RoundedHead(np.ones(1), ONE, -1, FP16, Rounding.EAGER), "look-back must be 0 or more, got -1"),
        (lambda: RoundedHead(np.ones(1), ONE, 1, FP16, Rounding.EAGER, period=0), "chooses must be 1 or more, got 0"),
        (
            lambda: one_rad(5.0).rounded(FP16, Rounding.EAGER).first_leak(0),
            "reach, in tokens, must be 1 or more, got 0",
        ),
        (lambda: sufficient_modular_amplitude((2, 4), FP16, Rounding.EAGER, 9), "2/4 leaves residues together"),
        (
            lambda: sufficient_modular_amplitude((5, 12), FP16, Rounding.EAGER, 100_000),
            r"modulo 12 in fp16, eager, up to length 100000: rounding may take 0.19 of a gap of 0.13; give a smaller",
        ),
        (
            # Scores of +-C only, 2 C apart: 2 C is f to the last digit.
            lambda: RoundedHead(
                np.array([math.log(2**25 - 1) / 2]), RotarySchedule.periodic([(1, 2)]), 1, FP16, Rounding.WEIGHTS
            ).first_leak(3),
            "a weight at length 2 rounds to 0 in fp16 is not decided in float64",
        ),
    ],
)
def test_errors_say_what_was_given(question: Callable[[], object], text: str) -> None:
    with pytest.raises(TheoryError, match=text):
        question()


@pytest.fixture(scope="module")
def findings() -> PrecisionFindings:
    return precision_findings(Preset.SMOKE)


@flushing
def test_every_bar_of_the_small_study_has_its_number_and_is_met(findings: PrecisionFindings) -> None:
    assert findings.bars == BARS and {bar.key for bar in BARS} == set(findings.measured)
    assert {bar.key for bar in BARS if bar.judge(findings.measured[bar.key]) is not bar.recorded} == set()


def test_the_tables_name_what_differs_and_the_picture_has_its_panels(findings: PrecisionFindings) -> None:
    lengths, several, agreement, modular = findings.tables
    assert all(len(row) == len(table.columns) for table in findings.tables for row in table.rows)
    assert 3 * 4 <= len(lengths.rows) < 3 * 8 and several.rows and len(modular.rows) == 6
    differing = [row for row in agreement.rows if row[3] != row[4]]
    assert differing and all("torch" in row[5] or "Tensor" in row[5] for row in differing)
    assert [row[5:] for row in lengths.rows if row[1] == "fp16"][-1] == ("overflow",) * 4
    titles = [panel.get_title().split(",")[0].split(";")[0] for panel in findings.drawn["precision"].axes]
    assert titles == ["theta = 1 rad", "fp16", "bf16", "fp32"]
