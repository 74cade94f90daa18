"""Rotary schedules and their scalings against transformers, against the published formulas at 40 digits, and by law.

transformers computes in float32, so the comparison has two steps: its frequencies against ours to
float32 accuracy, and our angles and logits at far positions against the formulas as written here.
"""

import dataclasses
import math
from fractions import Fraction

import mpmath
import numpy as np
import pytest
import sympy
from hypothesis import given, settings
from hypothesis import strategies as st

from theory.errors import TheoryError
from theory.incommensurability import rational_rank, realigning_period
from theory.ramp_scaling import Llama3, Yarn
from theory.rope_parameters import read_rotary, read_scaling, read_schedule, read_schedules, rope_parameters
from theory.rotary import Rotary
from theory.scaling import DynamicNtk, Linear, LongRope, Ntk, Proportional, Unscaled
from theory.schedule import RotarySchedule

SHORT, LONG = [1 + i / 100 for i in range(24)], [1.5 + i * i / 9 for i in range(24)]


@dataclasses.dataclass(frozen=True)
class Case:
    """A configuration, a head width, max_position_embeddings and a current length."""

    parameters: dict
    head_dim: int
    max_position_embeddings: int
    length: int | None = None


def parameters(rope_type, rope_theta, **numbers):
    return {"rope_type": rope_type, "rope_theta": rope_theta} | numbers


YARN_V3 = parameters("yarn", 10_000, factor=40, beta_fast=32, beta_slow=1, original_max_position_embeddings=4_096)
LONGROPE = parameters(
    "longrope", 10_000.0, short_factor=SHORT, long_factor=LONG, original_max_position_embeddings=4_096
)
LLAMA3 = parameters(
    "llama3", 500_000.0, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=8_192
)
CASES = {
    "linear, base 1e6": Case(parameters("linear", 1_000_000.0, factor=8.0), 64, 131_072),
    "linear, half of the lanes": Case(parameters("linear", 10_000.0, factor=2.5, partial_rotary_factor=0.5), 64, 4_096),
    "dynamic within the trained length": Case(parameters("dynamic", 10_000.0, factor=4.0), 64, 2_048, 1_000),
    "dynamic beyond it": Case(parameters("dynamic", 10_000.0, factor=4.0), 64, 2_048, 20_001),
    "dynamic, a quarter of the lanes": Case(
        parameters("dynamic", 10_000.0, factor=2.0, partial_rotary_factor=0.25), 64, 2_048, 3_000
    ),
    "dynamic, width 4": Case(parameters("dynamic", 10_000.0, factor=2.0), 4, 2_048, 3_000),
    "yarn, base 1e6": Case(
        parameters("yarn", 1_000_000.0, factor=4.0, original_max_position_embeddings=32_768), 128, 131_072
    ),
    "yarn, mscale": Case(YARN_V3 | {"mscale": 0.707, "mscale_all_dim": 1.0}, 64, 163_840),
    "yarn, one mscale": Case(YARN_V3 | {"mscale": 0.707}, 64, 163_840),
    "yarn, mscale of 0": Case(YARN_V3 | {"mscale": 0.707, "mscale_all_dim": 0.0}, 64, 163_840),
    "yarn, attention factor": Case(YARN_V3 | {"attention_factor": 1.25}, 64, 163_840),
    "yarn, factor from the lengths": Case(YARN_V3 | {"factor": None}, 64, 163_840),
    "yarn, not truncated": Case(
        parameters("yarn", 150_000.0, factor=32.0, original_max_position_embeddings=4_096, truncate=False), 64, 131_072
    ),
    "yarn, half of the lanes": Case(YARN_V3 | {"partial_rotary_factor": 0.5}, 64, 163_840),
    "yarn, one pair's ramp": Case(YARN_V3 | {"original_max_position_embeddings": 6}, 64, 163_840),
    "yarn, width 2": Case(YARN_V3, 2, 163_840),
    "yarn, width 4": Case(YARN_V3, 4, 163_840),
    "llama3": Case(LLAMA3, 128, 131_072),
    "llama3, width 64": Case(LLAMA3 | {"factor": 32.0}, 64, 131_072),
    "longrope, short": Case(LONGROPE, 48, 131_072, 4_096),
    "longrope, long": Case(LONGROPE, 48, 131_072, 4_097),
    "longrope, three quarters": Case(LONGROPE | {"partial_rotary_factor": 0.75}, 64, 131_072, 131_072),
    "longrope, factor": Case(LONGROPE | {"factor": 4.0}, 48, 131_072),
    "longrope, attention factor": Case(LONGROPE | {"factor": 4.0, "attention_factor": 1.5}, 48, 131_072),
    "proportional": Case(parameters("proportional", 1_000_000.0, partial_rotary_factor=0.25), 64, 131_072),
    "proportional, factor": Case(
        parameters("proportional", 1_000_000.0, partial_rotary_factor=0.4, factor=8.0), 64, 131_072
    ),
    "proportional, no pair": Case(parameters("proportional", 10_000.0, partial_rotary_factor=0.01), 64, 131_072),
}
cases = pytest.mark.parametrize("case", CASES.values(), ids=CASES)


def ours(case: Case) -> RotarySchedule:
    return read_schedule(case.parameters, case.head_dim, case.length, case.max_position_embeddings)


def published(case: Case) -> tuple[list[mpmath.mpf], mpmath.mpf]:
    """Frequencies of the pairs that turn, and the attention factor, from the formulas of the papers."""
    p = {key: value for key, value in case.parameters.items() if value is not None}
    kind, b, trained = p["rope_type"], mpmath.mpf(p["rope_theta"]), p.get("original_max_position_embeddings")
    d = case.head_dim if kind == "proportional" else int(case.head_dim * p.get("partial_rotary_factor", 1.0))
    s = mpmath.mpf(p.get("factor", case.max_position_embeddings / trained if trained else 1))
    wavelengths = [2 * mpmath.pi * mpmath.root(b, d) ** (2 * i) for i in range(d // 2)]
    attention = mpmath.mpf(1)
    if kind == "proportional":
        wavelengths = [s * w for w in wavelengths[: int(p["partial_rotary_factor"] * d / 2)]]
    elif kind == "linear":
        wavelengths = [s * w for w in wavelengths]
    elif kind == "dynamic":
        length = max(case.length or 0, case.max_position_embeddings)
        grown = b * mpmath.power(s * length / case.max_position_embeddings - (s - 1), mpmath.mpf(d) / (d - 2))
        wavelengths = [2 * mpmath.pi * grown ** (mpmath.mpf(2 * i) / d) for i in range(d // 2)]
    elif kind == "longrope":
        factors = p["long_factor"] if case.length is not None and case.length > trained else p["short_factor"]
        wavelengths = [w * mpmath.mpf(f) for w, f in zip(wavelengths, factors, strict=True)]
        attention = p.get("attention_factor") or mpmath.sqrt(1 + mpmath.log(s, trained))
    elif kind == "llama3":
        w_low, w_high = trained / mpmath.mpf(p["low_freq_factor"]), trained / mpmath.mpf(p["high_freq_factor"])
        smooth = [(trained / w - trained / w_low) / (trained / w_high - trained / w_low) for w in wavelengths]
        wavelengths = [
            w if w < w_high else s * w if w > w_low else w / ((1 - u) / s + u)
            for w, u in zip(wavelengths, smooth, strict=True)
        ]
    elif kind == "yarn":
        # The pair, as a real number, whose wavelength goes n times into the trained length.
        low, high = (
            mpmath.log(mpmath.mpf(trained) / n / (2 * mpmath.pi), b) * d / 2
            for n in (p.get("beta_fast", 32), p.get("beta_slow", 1))
        )
        if p.get("truncate", True):
            low, high = mpmath.floor(low), mpmath.ceil(high)
        low, high = max(low, 0), min(high, d - 1)
        high = low + mpmath.mpf("0.001") if low == high else high
        kept = [1 - min(1, max(0, (i - low) / (high - low))) for i in range(d // 2)]
        wavelengths = [w / (k + (1 - k) / s) for w, k in zip(wavelengths, kept, strict=True)]
        over, under = p.get("mscale"), p.get("mscale_all_dim")
        attention = 1 + mpmath.log(s) / 10
        if over and under:
            attention = (1 + over * mpmath.log(s) / 10) / (1 + under * mpmath.log(s) / 10)
        attention = p.get("attention_factor") or attention
    return [2 * mpmath.pi / w for w in wavelengths], mpmath.mpf(attention)


def llama_config(case: Case):
    transformers = pytest.importorskip("transformers")
    return transformers.LlamaConfig(
        hidden_size=2 * case.head_dim,
        num_attention_heads=2,
        head_dim=case.head_dim,
        max_position_embeddings=case.max_position_embeddings,
        rope_parameters=dict(case.parameters),
    )


def float32_tolerance(case: Case) -> float:
    """Relative error of a float32 frequency, in roundings of 2^-24.

    The exponent 2i/d and the base round once each and the first is multiplied by ln base; the power
    is off by two, reciprocal, factor and product by one each: ln base + 8 covers it. A ramp between
    gains 1 and 1/s is rounded at the size of 1: four of them, s times larger beside 1/s. llama3's
    ramp takes the error of the frequency itself into the gain, whose logarithmic slope is at most
    (high/(high - low)) s at the slow end.
    """
    s = float(case.parameters.get("factor") or 40)
    roundings = math.log(case.parameters["rope_theta"]) + 8
    if case.parameters["rope_type"] == "yarn":
        roundings += 4 * s
    if case.parameters["rope_type"] == "llama3":
        roundings *= 1 + 4 / 3 * s
    return roundings * 2.0**-24


@pytest.mark.case(7)
@cases
def test_frequencies_and_attention_factors_of_transformers(case):
    config = llama_config(case)
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    init = ROPE_INIT_FUNCTIONS[case.parameters["rope_type"]]
    theirs, attention = init(config, "cpu", seq_len=case.length)
    schedule = ours(case)
    np.testing.assert_allclose(
        schedule.frequencies[: len(theirs)], theirs.double().numpy(), rtol=float32_tolerance(case), atol=0
    )
    assert not schedule.frequencies[len(theirs) :].any()
    assert schedule.attention_factor == pytest.approx(attention, rel=1e-14)


@pytest.mark.case(20)
@cases
def test_angles_are_the_published_ones_at_every_position(case):
    schedule = ours(case)
    with mpmath.workdps(40):
        frequencies, attention = published(case)
        assert schedule.attention_factor == pytest.approx(float(attention), rel=1e-14)
        assert schedule.unrotated == schedule.pairs - len(frequencies)
        for position in (1, 20_000, 131_072, 1_000_000):
            angles = (position * schedule.frequencies).tolist()
            # An angle of 1e6 rad is rounded to 1.2e-10 and a frequency of 1 to a few times 1.1e-16.
            errors = [abs(a - position * theta) for a, theta in zip(angles, frequencies, strict=False)]
            assert max(errors, default=0) < 1e-9


@pytest.mark.case(6)
@cases
def test_logits_of_transformers_own_rotation_at_a_million(case):
    torch = pytest.importorskip("torch")
    pytest.importorskip("transformers")
    from transformers.models.phi3.modeling_phi3 import apply_rotary_pos_emb

    schedule, rng, positions = ours(case), np.random.default_rng(7), [0, 3, 20_000, 131_072, 1_000_000]
    queries, keys = rng.normal(size=(2, len(positions), case.head_dim))
    rotated = schedule.rotate(queries, np.array(positions)), schedule.rotate(keys, np.array(positions))
    logits = rotated[0] * np.repeat(schedule.score_gains, 2) @ rotated[1].T

    with mpmath.workdps(40):
        frequencies, attention = published(case)
        if case.parameters["rope_type"] == "proportional":
            frequencies += [mpmath.mpf(0)] * (case.head_dim // 2 - len(frequencies))
        turns = [[mpmath.expj(t * theta) for theta in frequencies] for t in positions]
    cosines, sines = (
        torch.tensor([[float(attention * part(z)) for z in row] * 2 for row in turns], dtype=torch.float64)[None]
        for part in (mpmath.re, mpmath.im)
    )
    halves = np.concatenate(
        [np.arange(2 * len(frequencies)).reshape(-1, 2).T.ravel(), np.arange(2 * len(frequencies), case.head_dim)]
    )
    q, k = apply_rotary_pos_emb(
        *(torch.tensor(np.ascontiguousarray(x[None, None][..., halves])) for x in (queries, keys)), cosines, sines
    )
    # An angle is off by 1e-9 at most (the test above), a product of lanes by as much times the attention squared.
    bound = 2e-9 * schedule.attention_factor**2 * np.abs(queries).sum(axis=1).max() * np.abs(keys).max()
    np.testing.assert_allclose(logits, (q[0, 0] @ k[0, 0].T).numpy(), atol=bound, rtol=0)


def test_plain_schedule_and_stateless_dynamic_against_the_module_of_transformers():
    torch = pytest.importorskip("torch")
    pytest.importorskip("transformers")
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    plain = Case(parameters("default", 10_000.0), 64, 2_048)
    tolerance = float32_tolerance(plain)
    module = LlamaRotaryEmbedding(llama_config(plain))
    np.testing.assert_allclose(ours(plain).frequencies, module.inv_freq.double().numpy(), rtol=tolerance)

    dynamic = CASES["dynamic beyond it"]
    module = LlamaRotaryEmbedding(llama_config(dynamic))
    for length in (20_001, 100):
        module(torch.zeros(1), torch.arange(length)[None])
        here = dataclasses.replace(dynamic, length=length)
        np.testing.assert_allclose(ours(here).frequencies, module.inv_freq.double().numpy(), rtol=tolerance)
    # The module keeps the longest length it has seen above the trained one; a schedule of ours does not.
    module(torch.zeros(1), torch.arange(20_001)[None])
    module(torch.zeros(1), torch.arange(5_000)[None])
    here = ours(dataclasses.replace(dynamic, length=5_000)).frequencies
    assert not np.allclose(here, module.inv_freq.double().numpy(), rtol=1e-3)
    np.testing.assert_array_equal(here, DynamicNtk(4, 2_048).schedule(64, 10_000, 5_000).frequencies)


def factors():
    return st.one_of(st.integers(1, 64), st.floats(0.25, 64))


WIDTHS, BASES = st.sampled_from([2, 4, 6, 48, 64, 128]), st.sampled_from([100, 10_000, 500_000, 5_000_000, 12_345.5])


def identities(dim: int) -> list:
    ones = (1.0,) * (dim // 2)
    return [
        Unscaled(),
        Linear(1),
        Ntk(1.0),
        DynamicNtk(3.0, 512),
        Yarn(1, 4_096),
        Yarn(1.0, 4_096, truncate=False, mscale=0.7, mscale_all_dim=0.9),
        Llama3(1, 8_192, 1, 4),
        LongRope(ones, ones, 4_096, factor=1),
        Proportional(1.0, 1.0),
    ]


@settings(deadline=None, max_examples=15)
@given(dim=WIDTHS, base=BASES)
def test_factor_one_is_the_identity(dim, base):
    plain = RotarySchedule.geometric(dim, base)
    for scaling in identities(dim):
        scaled = scaling.schedule(dim, base)
        # A gain between 1 and 1/1 on a floating-point ramp is a sum rounded twice.
        np.testing.assert_allclose(scaled.frequencies, plain.frequencies, rtol=4e-16, atol=0)
        assert (scaled.attention_factor, scaled.unrotated) == (1.0, 0)


@settings(deadline=None, max_examples=25)
@given(dim=WIDTHS, base=BASES, s=factors())
def test_no_scaling_by_a_factor_leaves_the_range_between_kept_and_divided(dim, base, s):
    plain = RotarySchedule.geometric(dim, base).frequencies
    ends = np.sort([plain, plain / s], axis=0)
    # 1e-14 is a few tens of roundings, most of them of the powers.
    for scaling in (Linear(s), Ntk(s), Yarn(s, 4_096), Yarn(s, 4_096, truncate=False), Llama3(s, 8_192, 1, 4)):
        scaled = scaling.schedule(dim, base).frequencies
        assert (scaled >= ends[0] * (1 - 1e-14)).all()
        assert (scaled <= ends[1] * (1 + 1e-14)).all()
        if not isinstance(scaling, Linear):
            assert scaled[0] == 1
    np.testing.assert_allclose(Ntk(s).schedule(64, base).frequencies[-1] * s, base ** (-62 / 64), rtol=1e-14)


@pytest.mark.parametrize("scaling", [Yarn(4, 4_096), Yarn(4, 4_096, truncate=False), Llama3(4, 4_096, 1, 32)], ids=repr)
def test_fast_pairs_are_kept_and_slow_ones_divided(scaling):
    plain, scaled = RotarySchedule.geometric(64, 10_000).frequencies, scaling.schedule(64, 10_000).frequencies
    turns, gains = 4_096 * plain / (2 * np.pi), scaled / plain
    # YaRN's truncated ramp starts up to a pair earlier and ends up to a pair later: a factor 10^(1/8) in turns.
    fast, slow = turns > 32 * 10**0.125, turns < 10**-0.125
    assert fast.any()
    assert slow.any()
    np.testing.assert_allclose(gains[fast], 1, rtol=1e-15)
    np.testing.assert_allclose(gains[slow], 1 / 4, rtol=1e-15)
    assert (np.diff(gains) <= 0).all()
    between = gains[(gains < 1) & (gains > 1 / 4)]
    assert len(between) > 8


@pytest.mark.case(8)
@settings(deadline=None, max_examples=25)
@given(s=factors(), trained=st.integers(1, 5_000), length=st.integers(1, 20_000), base=BASES)
def test_dynamic_is_plain_up_to_the_trained_length_and_forgets(s, trained, length, base):
    scaling, plain = DynamicNtk(s, trained), RotarySchedule.geometric(16, base).frequencies
    scaling.schedule(16, base, 10 * trained)
    here = scaling.schedule(16, base, length).frequencies
    if length <= trained:
        np.testing.assert_array_equal(here, plain)
    else:
        assert here[-1] == pytest.approx(plain[-1] / (1 + s * (length - trained) / trained), rel=1e-13)
    np.testing.assert_array_equal(scaling.schedule(16, base).frequencies, plain)


@settings(deadline=None, max_examples=15)
@given(dim=WIDTHS, s=factors(), base=st.sampled_from([100, 10_000, 5_000_000]))
def test_exact_frequencies_are_the_floating_ones(dim, s, base):
    scalings = [Linear(s), Ntk(s), DynamicNtk(s, 1_000), Yarn(s, 4_096), Proportional(0.5, s)]
    for scaling in [*scalings, LongRope((s,) * (dim // 2), (s,) * (dim // 2), 64, attention_factor=1)]:
        scaled = scaling.schedule(dim, base, 3_000)
        if scaled.exact is None:
            assert isinstance(scaling, Ntk | DynamicNtk)
            continue
        truth = [float(theta.evalf(30)) for theta in scaled.exact]
        np.testing.assert_allclose(scaled.frequencies, truth, rtol=1e-14, atol=0)


def test_frequencies_are_exact_where_their_numbers_are():
    assert Linear(2.5).schedule(4, 10_000).exact == (sympy.Rational(2, 5), sympy.Rational(1, 250))
    assert Ntk(4).schedule(6, 1_000).exact == (1, sympy.Rational(1, 20), sympy.Rational(1, 400))
    # A binary fraction of large whole numbers: its roots are left to floating point.
    assert Ntk(0.3).schedule(6, 1_000).exact is None
    assert Linear(0.3).schedule(6, 1_000).exact[0] == 1 / sympy.Rational(0.3)
    assert Yarn(4, 4_096, truncate=False).schedule(64, 10_000).exact is None
    assert Llama3(8, 8_192, 1, 4).schedule(64, 10_000).exact is None
    assert all(scaling.schedule(6, 12.5).exact is None for scaling in (Linear(2), Ntk(2), Yarn(2, 512)))


@pytest.mark.parametrize(
    ("scaling", "exponents"),
    [
        (Linear(3), lambda i: (Fraction(-i, 8), Fraction(-i, 8))),
        (Yarn(4, 4_096), lambda i: (Fraction(-i, 8), Fraction(-i, 8))),
        (Ntk(4), lambda i: (Fraction(-i, 8) - 2 * Fraction(i, 31), Fraction(-i, 8))),
    ],
    ids=["linear", "yarn", "ntk"],
)
def test_rank_over_the_rationals_after_scaling(scaling, exponents):
    # 10000^(-2i/64) = (2 5)^(-i/8), times 4^(-i/31) for NTK: classes are fractional exponents of 2 and of 5.
    classes = {tuple(e % 1 for e in exponents(i)) for i in range(32)}
    schedule = scaling.schedule(64, 10_000)
    assert rational_rank(schedule) == len(classes) == (32 if isinstance(scaling, Ntk) else 8)
    assert realigning_period(schedule) is None


@pytest.mark.case(7)
def test_logits_scale_as_the_square_of_the_attention_factor():
    scaled, plain = Yarn(4, 4_096), Yarn(4, 4_096, attention_factor=1.0)
    assert scaled.schedule(64, 10_000).attention_factor == pytest.approx(1 + math.log(4) / 10, rel=1e-15)
    ratio = scaled.schedule(64, 10_000).score_gains / plain.schedule(64, 10_000).score_gains
    np.testing.assert_allclose(ratio, (1 + math.log(4) / 10) ** 2, rtol=1e-15)
    padded = scaled.schedule(32, 10_000).padded(64).score_gains
    np.testing.assert_array_equal(padded[16:], np.ones(16))
    assert (padded[:16] > 1).all()


@pytest.mark.case(10)
@settings(deadline=None, max_examples=25)
@given(
    seed=st.integers(0, 99),
    rotary=st.sampled_from([2, 4, 10, 16]),
    position=st.integers(0, 10**6),
    s=st.integers(1, 64),
)
def test_partial_rotary_leaves_the_tail_as_it_is(seed, rotary, position, s):
    head, narrow = np.random.default_rng(seed).normal(size=16), Ntk(s).schedule(rotary, 10_000)
    schedule = narrow.padded(16)
    turned = schedule.rotate(head, np.array(position))
    np.testing.assert_array_equal(turned[rotary:], head[rotary:])
    np.testing.assert_array_equal(turned[:rotary], narrow.rotate(head[:rotary], np.array(position)))
    assert (schedule.unrotated, schedule.dim) == (8 - rotary // 2, 16)
    assert schedule.exact == narrow.exact + (0,) * schedule.unrotated
    if position:
        assert not np.array_equal(turned[:2], head[:2])


def test_proportional_takes_the_exponents_of_the_head_and_partial_rotary_its_own():
    proportional, partial = (
        read_schedule(parameters(kind, 10_000, partial_rotary_factor=0.5), 8) for kind in ("proportional", "default")
    )
    assert proportional.exact == (1, sympy.Rational(1, 10), 0, 0)
    assert partial.exact == (1, sympy.Rational(1, 100), 0, 0)
    assert proportional.unrotated == partial.unrotated == 2


def test_no_rotation_at_all():
    schedule, vectors = RotarySchedule.without_rotation(6), np.random.default_rng(3).normal(size=(4, 6))
    np.testing.assert_array_equal(schedule.rotate(vectors, np.arange(4) * 1_000), vectors)
    assert schedule.unrotated == 3
    assert realigning_period(schedule) == 1


@settings(deadline=None, max_examples=30)
@given(st.lists(st.tuples(st.integers(-40, 40), st.integers(1, 40)), min_size=1, max_size=5))
def test_periodic_schedules_come_back_after_the_least_common_period(turns):
    schedule = RotarySchedule.periodic(turns)
    period = math.lcm(*(Fraction(a, m).denominator for a, m in turns))
    assert realigning_period(schedule) == period
    vectors = np.tile([1.0, 0.0], (2, len(turns)))
    turned = schedule.rotate(vectors, np.array([0, period]))
    # Angles are 2 pi 40 period at most, each off by two roundings, of the frequency and of the product.
    np.testing.assert_allclose(turned[1], vectors[1], atol=40 * 2 * np.pi * period * 4e-16)
    np.testing.assert_allclose(schedule.frequencies, [2 * np.pi * a / m for a, m in turns], rtol=1e-15)


@pytest.mark.case(3)
def test_every_spelling_reads_the_same():
    yarn = {"factor": 4.0, "original_max_position_embeddings": 4_096}
    old, new, both = (
        {**names, **yarn} for names in ({"type": "yarn"}, {"rope_type": "yarn"}, {"rope_type": "yarn", "type": "yarn"})
    )
    assert read_scaling(old) == read_scaling(new) == read_scaling(both) == Yarn(4.0, 4_096)
    assert read_scaling(new | {"attention_factor": None, "mscale": None}) == Yarn(4.0, 4_096)
    longrope = {key: value for key, value in LONGROPE.items() if key != "rope_type"} | {"factor": 2}
    su, full = read_scaling({"type": "su"} | longrope), read_scaling({"rope_type": "longrope", "type": "su"} | longrope)
    assert su == full == LongRope(tuple(SHORT), tuple(LONG), 4_096, factor=2.0)
    assert read_scaling({}) == read_scaling({"rope_type": "default"}) == Unscaled()
    assert read_scaling({"type": "ntk", "factor": 4}) == Ntk(4.0)
    np.testing.assert_allclose(
        read_schedule(parameters("ntk", 10_000, factor=4), 64).frequencies,
        RotarySchedule.geometric(64, 10_000 * 4 ** (64 / 62)).frequencies,
        rtol=1e-14,
    )


def test_trained_lengths_and_factors_come_from_where_transformers_takes_them():
    dynamic = {"type": "dynamic", "factor": 2}
    assert read_scaling(dynamic, 2_048) == read_scaling(dynamic | {"original_max_position_embeddings": 2_048})
    assert read_scaling({"type": "yarn", "original_max_position_embeddings": 1_024}, 4_096) == Yarn(4.0, 1_024)
    given = {"type": "yarn", "original_max_position_embeddings": 1_024, "factor": 8}
    assert read_scaling(given, 4_096) == Yarn(8.0, 1_024)


@pytest.mark.case(18)
def test_one_schedule_a_layer_type():
    nested = {
        "full_attention": parameters("linear", 1_000_000.0, factor=8.0),
        "sliding_attention": parameters("default", 10_000.0),
        "chunked_attention": None,
    }
    layers = ["sliding_attention"] * 5 + ["full_attention"]
    schedules = read_schedules(nested, layers, 64)
    assert list(schedules) == ["sliding_attention", "full_attention"]
    np.testing.assert_array_equal(
        schedules["sliding_attention"].frequencies, RotarySchedule.geometric(64, 1e4).frequencies
    )
    np.testing.assert_allclose(
        schedules["full_attention"].frequencies, RotarySchedule.geometric(64, 1e6).frequencies / 8, rtol=1e-15
    )
    assert read_schedules(nested, ["chunked_attention"], 64)["chunked_attention"].unrotated == 32
    flat = read_schedules(nested["full_attention"], layers, 64)
    np.testing.assert_array_equal(flat["sliding_attention"].frequencies, schedules["full_attention"].frequencies)


def test_nested_parameters_of_transformers():
    transformers = pytest.importorskip("transformers")
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    nested = {
        "full_attention": parameters("linear", 1_000_000.0, factor=8.0),
        "sliding_attention": parameters("linear", 10_000.0, factor=1.0),
    }
    layers = ["sliding_attention", "full_attention"]
    config = transformers.Gemma3TextConfig(
        hidden_size=64,
        num_attention_heads=2,
        head_dim=32,
        num_hidden_layers=2,
        layer_types=layers,
        rope_parameters=nested,
    )
    for kind, schedule in read_schedules(nested, layers, 32).items():
        theirs, _ = ROPE_INIT_FUNCTIONS["linear"](config, "cpu", layer_type=kind)
        tolerance = float32_tolerance(Case(nested[kind], 32, 131_072))
        np.testing.assert_allclose(schedule.frequencies, theirs.double().numpy(), rtol=tolerance)


PLAIN, ONE = parameters("default", 10_000), sympy.S.One


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (
            lambda: read_scaling({"rope_type": "xpos"}),
            r"unknown rope_type 'xpos', which must be one of default, linear",
        ),
        (lambda: read_scaling({"type": ["yarn"]}), r"unknown rope_type \['yarn'\]"),
        (lambda: read_scaling({"type": "linear", "rope_type": "yarn"}), "two scalings, yarn and linear: give one"),
        (lambda: read_scaling({"factor": 4}), "unknown key factor in rotary parameters of type default"),
        (lambda: read_scaling(LLAMA3 | {"mscale": 1}), "unknown key mscale .* llama3, which takes .*take it out"),
        (lambda: read_scaling({"full_attention": {}}), "unknown key full_attention.*by read_schedules"),
        (lambda: read_scaling({"type": "linear"}), "type linear lack factor: put it into the mapping"),
        (lambda: read_scaling({"type": "linear", "factor": None}), "type linear lack factor"),
        (lambda: read_scaling({"type": "dynamic", "factor": 2}), "lack original_max_position_embeddings"),
        (lambda: read_scaling({"type": "yarn", "factor": 2}, 4_096), "lack original_max_position_embeddings"),
        (lambda: read_scaling({"type": "yarn", "original_max_position_embeddings": 9}), "type yarn lack factor"),
        (lambda: read_scaling({"type": "llama3", "factor": 8}), "lack original.*, low_freq_factor, high_freq_factor"),
        (lambda: read_scaling({"type": "longrope"}), "type longrope lack short_factor, long_factor"),
        (
            lambda: read_scaling({"type": "dynamic", "factor": 2, "original_max_position_embeddings": 512}, 1_024),
            "two trained lengths, .* 512 and max_position_embeddings 1024: give one",
        ),
        (lambda: read_scaling({"type": "linear", "factor": "4"}), "factor must be a finite number, got '4'"),
        (lambda: read_scaling({"type": "linear", "factor": True}), "factor must be a finite number, got True"),
        (lambda: read_scaling({"type": "linear", "factor": 10**400}), "factor must be a finite number"),
        (lambda: read_scaling({"type": "linear", "factor": math.nan}), "factor must be a finite number, got nan"),
        (lambda: read_scaling({"type": "linear", "factor": 0}), "factor must be a finite number above 0, got 0"),
        (lambda: read_scaling(YARN_V3 | {"truncate": 1}), "truncate must be true or false, got 1"),
        (lambda: read_scaling(LONGROPE | {"long_factor": 3}), "long_factor must be a list of numbers"),
        (lambda: read_scaling(LONGROPE | {"long_factor": ["a"]}), r"long_factor\[0\] must be a finite number, got 'a'"),
        (lambda: read_scaling(LONGROPE), "has no attention factor: give attention_factor, or factor"),
        (
            lambda: read_scaling(YARN_V3 | {"original_max_position_embeddings": 0.5}),
            "original_max_position_embeddings must be a whole number of tokens, 1 or more, got 0.5",
        ),
        (
            lambda: read_scaling(YARN_V3 | {"original_max_position_embeddings": 0, "factor": None}, 64),
            "original_max_position_embeddings must be a whole number of tokens, 1 or more, got 0",
        ),
        (
            lambda: read_scaling({"type": "yarn", "original_max_position_embeddings": 64}, 0),
            "^max_position_embeddings must be a whole number of tokens, 1 or more, got 0",
        ),
        (lambda: read_scaling({"type": "linear", "factor": 2, "foo": 3, 1: 2}), "unknown key 1, foo in"),
        (lambda: read_schedule({"rope_type": "default"}, 64), "lack rope_theta.*no base is assumed here"),
        (lambda: read_schedule({"rope_theta": None}, 64), "lack rope_theta"),
        (lambda: read_schedule({"rope_theta": "1e4"}, 64), "rope_theta must be a finite number, got '1e4'"),
        (lambda: read_schedule({"rope_theta": -1}, 64), "base must be a finite number above 0"),
        (lambda: read_schedule(PLAIN, 64, 0), r"current length \(None for the trained one\) must be 1 or more, got 0"),
        (lambda: read_schedule(PLAIN, 7), "turns 7 of 7 lanes.*even number of lanes"),
        (lambda: read_schedule(PLAIN | {"partial_rotary_factor": 0.3}, 10), "turns 3 of 10 lanes"),
        (lambda: read_schedule(PLAIN | {"partial_rotary_factor": 0}, 64), "factor 0 turns 0 of 64 lanes"),
        (lambda: read_schedule(PLAIN | {"partial_rotary_factor": 1.5}, 64), "factor 1.5 turns 96 of 64 lanes"),
        (lambda: read_schedule(LONGROPE | {"factor": 2}, 64), "24 factors and the rotary width 64 has 32 pairs"),
        (lambda: read_schedules({"a": PLAIN}, ["a", "b"], 64), r"lack \['b'\].*one mapping for each of a, b"),
        (lambda: read_schedules({"a": PLAIN, "rope_theta": 1}, ["a"], 64), r"hold \['rope_theta'\] beside"),
        (lambda: read_schedules({"a": 3}, ["a"], 64), r"hold \['a'\] beside"),
        (lambda: read_schedules(PLAIN, [], 64), "no layer type to read"),
        (lambda: read_schedules({"b": PLAIN}, ["a"], 64), "unknown key b"),
        (lambda: Linear(-2), "factor must be a finite number above 0, got -2"),
        (lambda: Ntk(0), "factor must be a finite number above 0, got 0"),
        (lambda: DynamicNtk(2, 0), "original_max_position_embeddings must be 1 or more, got 0"),
        (lambda: Yarn(math.inf, 64), "factor must be a finite number above 0, got inf"),
        (lambda: Yarn(2, 64, beta_fast=1, beta_slow=2), "beta_fast 1 is below beta_slow 2.*larger number there"),
        (lambda: Yarn(2, 64, attention_factor=0), "attention_factor must be a finite number above 0"),
        (lambda: Yarn(2, 64, mscale=-1), "mscale must be a finite number above 0"),
        (lambda: Yarn(2, 64).schedule(64, 1), "needs a base above 1, got 1"),
        (
            lambda: Yarn(2, 2).schedule(64, 10_000),
            r"ramps from -17 to -3, which must meet .* = 0\.\.63: give the trained",
        ),
        (lambda: Yarn(2, 10**6).schedule(64, 1.5), r"ramps from \d+ to \d+, which must meet .* 0\.\.63"),
        (lambda: Llama3(2, 64, 4, 4), "low_freq_factor 4 is not below high_freq_factor 4"),
        (lambda: Llama3(2, 64, 0, 4), "low_freq_factor must be a finite number above 0, got 0"),
        (lambda: LongRope((1.0,), (1.0, 2.0), 64, 2), "has 1 short and 2 long factors"),
        (lambda: LongRope((1.0,), (-1.0,), 64, 2), r"long_factor\[0\] must be a finite number above 0, got -1.0"),
        (lambda: LongRope((1.0,), (2.0,), 1, 2), "factor 2 and trained length 1 has no attention factor"),
        (lambda: Proportional(1.5), "partial_rotary_factor must be between 0 and 1, got 1.5"),
        (lambda: Proportional(0.5, -1), "factor must be a finite number above 0, got -1"),
        (lambda: RotarySchedule.geometric(8, 10**400), "base must be a finite number above 0, got 1000"),
        (
            lambda: RotarySchedule.geometric(8, 10).padded(6),
            "schedule of width 8 does not fit a head of width 6.*for 6 lanes or fewer",
        ),
        (lambda: RotarySchedule.geometric(8, 10).padded(9), "even and 2 or more, got 9"),
        (lambda: RotarySchedule.geometric(8, 10).scaled([sympy.S.One]), "4 pairs takes 4 gains, got 1"),
        (lambda: RotarySchedule.periodic([(1, 0)]), "period m of 1 token or more, got 1/0"),
        (lambda: RotarySchedule.periodic([]), "one finite frequency or more"),
        (lambda: RotarySchedule.from_exact([sympy.Symbol("x")]), r"exact frequencies must be real .*got \[x\]"),
        (lambda: RotarySchedule.from_exact([sympy.I]), r"exact frequencies must be real .*2\*sympy.pi/5, got \[I\]"),
        (lambda: RotarySchedule.from_exact([sympy.zoo]), r"exact frequencies must be real .*got \[zoo\]"),
        (lambda: RotarySchedule.from_exact([sympy.Integer(10) ** 400]), "finite frequency or more, got"),
        (lambda: RotarySchedule.geometric(4, 10).scaled([sympy.Symbol("x")] * 2), r"gains must be real .*got \[x, x\]"),
        (lambda: RotarySchedule(np.ones(1), (ONE,) * 3), r"^3 exact frequencies .* the 1 floating-point ones \[1"),
        (lambda: RotarySchedule(np.ones(2), (ONE,) * 3), "^3 exact frequencies .* not the 2 floating-point ones"),
        (lambda: RotarySchedule(np.ones(3), (ONE,)), "^1 exact frequencies .*: give one of each a pair"),
        (lambda: RotarySchedule(np.ones(2), (ONE, ONE / 2)), r"exact frequencies \[1.* 0.5\] are not .*\[1. 1.\]"),
        (lambda: RotarySchedule.without_rotation(5), "even and 2 or more, got 5"),
        (lambda: RotarySchedule(np.ones(1), attention_factor=0), "attention factor must be a finite number above 0"),
        (lambda: RotarySchedule(np.ones(2), unrotated=1), "last 1 of 2 pairs .* frequency must be 0"),
        (lambda: RotarySchedule(np.zeros(2), unrotated=3), "last 3 of 2 pairs"),
    ],
)
def test_what_cannot_be_read_or_scaled_is_named(call, text):
    with pytest.raises(TheoryError, match=text):
        call()


@pytest.mark.case(12)
@pytest.mark.parametrize(
    ("call", "got", "expected", "remedy"),
    [
        (lambda: RotarySchedule.geometric(7, 10_000), "got 7", "even", "give a whole number of lanes, two a pair"),
        (lambda: RotarySchedule.geometric(0, 10_000), "got 0", "2 or more", "give a whole number of lanes"),
        (lambda: Yarn(2, 64).schedule(7, 10_000), "got 7", "even", "give a whole number of lanes"),
        (lambda: Linear(2).schedule(0, 10_000), "got 0", "2 or more", "give a whole number of lanes"),
        (lambda: RotarySchedule.geometric(4, 10).padded(7), "head width .* got 7", "even", "give a whole number"),
        (lambda: RotarySchedule.geometric(8, 10).padded(6), "width 8.* width 6", "head's or less", "make the schedule"),
        (lambda: read_schedule(PLAIN, 7), r"1 \(none is given\) turns 7 of 7 lanes", "even number", "give the model's"),
        (lambda: read_schedule(PLAIN, 0), r"1 \(none is given\) turns 0 of 0 lanes", "2 or more", "give the model's"),
        (
            lambda: read_schedule(PLAIN | {"partial_rotary_factor": 1.5}, 64),
            "factor 1.5 turns 96 of 64 lanes",
            "above 0, 1 at most",
            "give the model's own head width and factor",
        ),
        (
            lambda: read_scaling(LLAMA3 | {"beta_fast": 3}),
            "unknown key beta_fast",
            "type llama3, which takes factor, high_freq_factor, low_freq_factor, original_max",
            "take it out",
        ),
        (lambda: read_scaling({"type": "xpos"}), "rope_type 'xpos'", "one of default, linear", "give one of these"),
    ],
)
def test_widths_keys_and_types_that_do_not_fit_say_what_was_given_what_is_expected_and_what_to_do(
    call, got, expected, remedy
):
    with pytest.raises(TheoryError) as raised:
        call()
    for part in (got, expected, remedy):
        raised.match(part)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("call", "text"),
    [
        (
            lambda: RotarySchedule(np.ones((2, 2))),
            r"(?s)flat array of one finite .* shape \(2, 2\): give the rad/position",
        ),
        (lambda: RotarySchedule.from_exact(["2*pi/"]), r"exact frequencies must be real .*got \['2\*pi/'\]"),
        (lambda: RotarySchedule.geometric(4.0, 10), "rotary width must be even .* got 4.0: give a whole number"),
        (lambda: RotarySchedule.periodic([(1, 2.5)]), "whole a and a period m .* got 1/2.5"),
        (lambda: RotarySchedule.geometric(4, 10).scaled(["a", "b"]), r"gains must be real .*got \['a', 'b'\]"),
        (lambda: Linear("4"), "factor must be a finite number above 0, got '4'"),
        (lambda: DynamicNtk(2, 0.5), "original_max_position_embeddings must be a whole number, got 0.5"),
        (lambda: Yarn(2, 4096.5), "original_max_position_embeddings must be a whole number, got 4096.5"),
        (lambda: Llama3(2, "8192", 1, 4), "original_max_position_embeddings must be a whole number, got '8192'"),
        (lambda: LongRope((1.0,), (2.0,), 2.5, 2), "original_max_position_embeddings must be a whole number, got 2.5"),
        (lambda: Unscaled().schedule(4, 10, 2.5), r"length \(None for .*\) must be a whole number, got 2.5"),
        (lambda: read_scaling(None), "must be a mapping, got None: .*'rope_theta': base"),
        (lambda: read_schedule(None, 64), "must be a mapping, got None"),
        (lambda: read_schedules(None, ["a"], 64), "must be a mapping, got None"),
        (
            lambda: read_scaling({"type": "yarn", "original_max_position_embeddings": 64}, "4096"),
            "^max_position_embeddings must be a finite number, got '4096'",
        ),
        (
            lambda: read_scaling({"type": "dynamic", "factor": 2}, "4096"),
            "^max_position_embeddings must be a finite number, got '4096'",
        ),
    ],
)
def test_values_of_another_type_are_named(call, text):
    with pytest.raises(TheoryError, match=text):
        call()


@pytest.mark.usefixtures("unchecked")
def test_numpys_narrow_numbers_are_taken_as_the_numbers_that_they_are():
    # Binary fractions that float32 holds: the schedules are the same to the last bit.
    plain = [
        Linear(2.5),
        Ntk(2.5),
        DynamicNtk(2.5, 64),
        Yarn(2.5, 64, 30.5, 1.5, mscale=0.75, mscale_all_dim=0.5),
        Llama3(2.5, 64, 1.5, 4.5),
        LongRope((1.5, 2.5), (2.5, 3.5), 64, factor=2.5),
        Proportional(0.5, 2.5),
    ]
    for scaling in plain:
        values = {field.name: getattr(scaling, field.name) for field in dataclasses.fields(scaling)}
        narrow = {name: np.float32(x) if isinstance(x, float) and x % 1 else x for name, x in values.items()}
        narrow |= {name: np.array(x, dtype=np.float32) for name, x in values.items() if isinstance(x, tuple)}
        narrow |= {name: np.int32(x) for name, x in values.items() if name == "trained_length"}
        same = type(scaling)(**narrow)
        assert (same, hash(same)) == (scaling, hash(scaling))
        ours, theirs = same.schedule(np.int64(4), 10_000, np.int64(100)), scaling.schedule(4, 10_000, 100)
        np.testing.assert_array_equal(ours.frequencies, theirs.frequencies)
        assert (ours.exact, ours.attention_factor) == (theirs.exact, theirs.attention_factor)
    factor = np.float32(1.1)
    assert RotarySchedule(np.ones(1), attention_factor=factor).score_gains[0] == float(factor) ** 2


@pytest.mark.usefixtures("unchecked")
def test_gains_may_be_pythons_own_numbers():
    scaled = RotarySchedule.geometric(4, 100).scaled([2, Fraction(1, 3)])
    assert scaled.exact == (2, sympy.Rational(1, 30))
    halved = RotarySchedule.geometric(4, 100).scaled([0.5, 0.5])
    assert halved.exact is None
    np.testing.assert_array_equal(halved.frequencies, [0.5, 0.05])


def test_lists_of_longrope_are_kept_as_tuples():
    given = LongRope([1.0, 2.0], [3.0, 4.0], 64, factor=2)
    assert given == LongRope((1.0, 2.0), (3.0, 4.0), 64, factor=2)
    assert hash(given) == hash(LongRope((1.0, 2.0), (3.0, 4.0), 64, factor=2))
    assert given != LongRope((1.0, 2.0), (3.0, 5.0), 64, factor=2)


def test_yarn_keeps_all_pairs_where_the_ramp_starts_beyond_the_last():
    # At base 100 the last of 32 pairs turns 1800 times in a million tokens: the ramp is at 59 to 63.
    scaled, plain = Yarn(2, 10**6).schedule(64, 100), RotarySchedule.geometric(64, 100)
    assert scaled.exact == plain.exact
    assert Yarn(2, 64).schedule(64, 100).exact != plain.exact


def test_padding_twice_is_padding_once():
    once = RotarySchedule.geometric(4, 100).padded(16)
    twice = RotarySchedule.geometric(4, 100).padded(8).padded(16)
    assert (once.unrotated, once.exact) == (twice.unrotated, twice.exact) == (6, (1, sympy.Rational(1, 10)) + (0,) * 6)
    np.testing.assert_array_equal(once.frequencies, twice.frequencies)


@st.composite
def rotaries(draw):
    """Base, widths, a kind of scaling and its numbers, with and without those that may be left out."""
    head = draw(st.sampled_from([8, 12, 16]))
    width = draw(st.integers(2, head // 2).map(lambda pairs: 2 * pairs) | st.just(head))
    of_all = {
        "factor": draw(st.sampled_from([0.5, 1, 2.5, 40.0])),
        "trained_length": draw(st.sampled_from([512, 4_096])),
    }
    optional = st.floats(0.5, 2)
    lists = st.lists(st.floats(1, 60), min_size=width // 2, max_size=width // 2)
    own = {
        Unscaled: {},
        Linear: {},
        Ntk: {},
        DynamicNtk: {},
        Yarn: {
            "attention_factor": optional,
            "mscale": optional | st.just(0.0),
            "mscale_all_dim": optional,
            "truncate": st.booleans(),
            "beta_fast": st.sampled_from([16.0, 40]),
        },
        Llama3: {"low_freq_factor": st.just(1.0), "high_freq_factor": st.just(4.0)},
        LongRope: {"short_factor": lists, "long_factor": lists, "attention_factor": optional},
        Proportional: {"partial_rotary_factor": st.floats(0, 1)},
    }
    kind = draw(st.sampled_from(list(own)))
    fields = {field.name: field for field in dataclasses.fields(kind)}
    numbers = {name: value for name, value in of_all.items() if name in fields}
    for name, values in own[kind].items():
        if fields[name].default is dataclasses.MISSING or draw(st.booleans()):
            numbers[name] = draw(values)
    if kind is LongRope and "attention_factor" in numbers and draw(st.booleans()):
        del numbers["factor"]
    return draw(BASES), head, head if kind is Proportional else width, kind, numbers


@settings(max_examples=80)
@given(made=rotaries(), length=st.sampled_from([None, 100, 16_384]))
def test_written_rotary_parameters_are_read_as_the_same_positions(made, length):
    """transformers knows every type that is written, and its own reading of one is the subject of the tests above."""
    *place, kind, numbers = made
    rotary = Rotary(*place, kind(**numbers))
    written = rope_parameters(rotary)
    assert None not in written.values()
    assert written["rope_type"] in {case.parameters["rope_type"] for case in CASES.values()} | {"default"}
    read = read_rotary(written, rotary.head_width)
    ours, theirs = rotary.schedule(length), read.schedule(length)
    np.testing.assert_allclose(theirs.frequencies, ours.frequencies, rtol=1e-12, atol=0)
    assert theirs.attention_factor == pytest.approx(ours.attention_factor, rel=1e-12)
    assert theirs.unrotated == ours.unrotated
    if kind is not Ntk:
        assert read == rotary
