"""What weight decay leaves of rows that the loss never touches, against simulation, scipy, mpmath and torch."""

import math

import flint
import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from theory.drift import CoupledAdam, Decay, NormLaw
from theory.errors import TheoryError

RATE, STEPS, WIDTH = 1e-3, 4000, 64


def simulated_adam(start: np.ndarray, decay: float, steps: int, rate: float = RATE) -> np.ndarray:
    """Adam on 0.5 lambda p^2 as Kingma and Ba's Algorithm 1 writes it, unrolled: moments as weighted sums in place."""
    p, mean, square = start.copy(), np.zeros_like(start), np.zeros_like(start)
    for t in range(1, steps + 1):
        g = p * decay
        mean += 0.1 * (g - mean)
        square += 0.001 * (g * g - square)
        p -= rate * (mean / (1 - math.pow(0.9, t))) / (np.sqrt(square / (1 - math.pow(0.999, t))) + 1e-8)
    return p


@pytest.mark.parametrize(("decay", "norm"), [(1e-4, 7.966), (1e-2, 7.656)])
def test_decoupled_norms_of_statements(decay: float, norm: float) -> None:
    assert Decay(RATE, decay).row_norm(WIDTH, STEPS).mean == pytest.approx(norm, abs=5e-4)


@pytest.mark.parametrize("decay", [1e-4, 1e-2])
def test_coupled_norm_is_the_same_at_both_decays(decay: float) -> None:
    # statements.md, Proposition 2: .177 +- .001, and a scatter of .016 of the mean over 33 rows of 3 seeds.
    law = CoupledAdam(RATE, decay).row_norm(WIDTH, STEPS)
    assert law.mean == pytest.approx(0.177, abs=1e-3)
    assert law.scatter(33 * 3) == pytest.approx(0.016, abs=5e-4)
    assert law.quadrature_error < 1e-12
    # Positive control: the map that the paper states does tell the decays apart, and is far above.
    assert Decay(RATE, decay).row_norm(WIDTH, STEPS).mean > 40 * law.mean


def test_printed_norm_fits_the_coupled_law_alone() -> None:
    law = CoupledAdam(RATE, 1e-4).row_norm(WIDTH, STEPS)
    # Printed .20 is rounded by up to .005: within two standard deviations of a mean over 33 rows x 3 seeds.
    assert abs(0.20 - law.mean) < 2 * law.scatter(99) + 0.005
    decoupled = Decay(RATE, 1e-2).row_norm(WIDTH, STEPS)
    assert abs(0.20 - decoupled.mean) > 50 * decoupled.scatter(99)


@pytest.mark.parametrize("decay", [1e-4, 1e-2])
def test_coupled_law_is_that_of_simulated_rows(decay: float) -> None:
    rows = 1000
    start = np.random.default_rng(20_250_101).normal(size=(rows, WIDTH))
    norms = np.linalg.norm(simulated_adam(start, decay, STEPS), axis=1)
    law = CoupledAdam(RATE, decay).row_norm(WIDTH, STEPS)
    assert abs(norms.mean() - law.mean) < 4 * law.scatter(rows)
    # Var of a sample variance is about (kurtosis - 1)/n of its square; the kurtosis is taken from the sample.
    error = norms.var() * math.sqrt((stats.kurtosis(norms, fisher=False) - 1) / rows)
    assert abs(norms.var() - law.spread**2) < 4 * error


@settings(deadline=None, max_examples=30)
@given(
    width=st.integers(2, 300),
    deviation=st.floats(0.01, 10),
    steps=st.integers(0, 3000),
    rate=st.floats(1e-5, 0.1),
    decay=st.floats(0, 0.5),
)
def test_decoupled_law_is_a_scaled_chi(width: int, deviation: float, steps: int, rate: float, decay: float) -> None:
    law = Decay(rate, decay).row_norm(width, steps, deviation)
    factor = deviation * math.exp(steps * math.log1p(-rate * decay))
    # The power of n steps is off by n rounding errors of its base. scipy takes the mean from lgamma, off by
    # d log d 2^-53, and the variance 1/2 from d - mean^2: off by 2 d times that, 1e-10 at width 300.
    tolerance = 1e-12 + steps * 2.0**-52
    assert law.mean == pytest.approx(factor * stats.chi.mean(width), rel=tolerance)
    assert law.spread == pytest.approx(factor * stats.chi.std(width), rel=tolerance + 4e-10)
    assert law.quadrature_error == 0


@pytest.mark.parametrize("width", [1, 2, 64, 10**6, 10**9])
def test_chi_spread_keeps_its_digits_at_any_width(width: int) -> None:
    law = Decay(0.0, 0.0).row_norm(width, 0)
    with mpmath.workdps(60):
        mean = mpmath.sqrt(2) * mpmath.gammaprod([mpmath.mpf(width + 1) / 2], [mpmath.mpf(width) / 2])
        assert law.mean == pytest.approx(float(mean), rel=1e-14)
        assert law.spread == pytest.approx(float(mpmath.sqrt(width - mean**2)), rel=1e-14)


def test_a_rate_that_overshoots_flips_the_sign_and_not_the_norm() -> None:
    flipped = Decay(1.0, 1.5)
    np.testing.assert_array_equal(flipped.after(np.array([2.0]), 3), [-0.25])
    assert flipped.row_norm(5, 3).mean == pytest.approx(stats.chi.mean(5) / 8, rel=1e-12)


@pytest.mark.parametrize(("width", "tolerance"), [(1, 2e-6), (2, 1e-8), (64, 1e-12), (1000, 1e-12)])
def test_quadrature_of_the_identity_is_the_chi_law(width: int, tolerance: float) -> None:
    # Without decay the recurrence stays where it is. The kink of |x| at 0 costs one coordinate h^2, h = 10/4096.
    law, exact = CoupledAdam(RATE, 0.0).row_norm(width, 5, 3.0), Decay(RATE, 0.0).row_norm(width, 5, 3.0)
    assert law.mean == pytest.approx(exact.mean, abs=3 * tolerance * max(1, math.sqrt(width) / 8))
    assert law.spread == pytest.approx(exact.spread, abs=3 * tolerance * width)
    assert abs(law.mean - exact.mean) <= law.quadrature_error + 1e-12


def test_norm_of_two_coordinates_is_a_double_integral() -> None:
    steps, decay, spacing = 50, 1e-2, 0.01
    starts = spacing * np.arange(-800, 801)
    density = spacing * stats.norm.pdf(starts)
    ends = simulated_adam(starts, decay, steps)
    law = CoupledAdam(RATE, decay).row_norm(2, steps)
    # Trapezoidal rule: the norm and the map have kinks near 0, which cost about spacing^2/12 of their slopes, 1.
    assert law.mean == pytest.approx(float(density @ np.hypot.outer(ends, ends) @ density), abs=spacing**2 / 6)
    assert law.spread**2 + law.mean**2 == pytest.approx(2 * float(density @ ends**2), abs=spacing**2 / 6)


def test_mean_norm_is_not_the_root_of_the_mean_square() -> None:
    law = CoupledAdam(RATE, 1e-4).row_norm(WIDTH, STEPS)
    assert math.hypot(law.mean, law.spread) == pytest.approx(0.2393, abs=1e-4)
    assert law.mean < 0.75 * math.hypot(law.mean, law.spread)


@settings(deadline=None, max_examples=50)
@given(start=st.floats(0.01, 100), decay=st.floats(1e-3, 10), rate=st.floats(1e-5, 1e-3))
def test_first_step_is_the_rate_whatever_the_decay(start: float, decay: float, rate: float) -> None:
    moved = start - float(CoupledAdam(rate, decay).after(np.array([start]), 1)[0])
    # eta g/(|g| + eps) = eta (1 - eps/(|g| + eps)), up to the rounding of start.
    gradient = decay * start
    assert moved == pytest.approx(rate * (1 - 1e-8 / (gradient + 1e-8)), rel=1e-12, abs=1e-15 * start)


@settings(deadline=None, max_examples=20)
@given(st.lists(st.floats(-5, 5), min_size=1, max_size=5), st.integers(0, 60), st.sampled_from([1e-4, 1e-2, 1.0]))
def test_map_is_odd_and_coordinates_do_not_mix(start: list[float], steps: int, decay: float) -> None:
    optimizer, rows = CoupledAdam(RATE, decay), np.array(start)
    ends = optimizer.after(rows, steps)
    np.testing.assert_array_equal(optimizer.after(-rows, steps), -ends)
    for alone, together in zip(rows, ends, strict=True):
        assert optimizer.after(np.array([alone]), steps)[0] == together
    np.testing.assert_array_equal(rows, start)


@pytest.mark.parametrize("name", ["SGD", "AdamW", "Adam"])
@pytest.mark.parametrize("decay", [1e-4, 1e-2])
def test_torch_moves_untouched_rows_so(name: str, decay: float) -> None:
    torch = pytest.importorskip("torch")
    start = np.random.default_rng(7).normal(size=(3, 5))
    table = torch.nn.Parameter(torch.tensor(start))
    optimizer = getattr(torch.optim, name)([table], lr=RATE, weight_decay=decay)
    # The loss looks up no row of this table, which gives a gradient of zeros: torch skips what has none at all.
    torch.nn.functional.embedding(torch.empty(0, dtype=torch.long), table).sum().backward()
    assert table.grad is not None and not table.grad.any()
    for _ in range(STEPS):
        optimizer.step()
    ours = (CoupledAdam if name == "Adam" else Decay)(RATE, decay).after(start, STEPS)
    # 4000 steps of a few roundings each; the maps contract, so that they add up to no more than their sum.
    np.testing.assert_allclose(table.detach().numpy(), ours, rtol=0, atol=STEPS * 8 * 2.0**-53 * np.abs(start).max())
    # Positive control: at this tolerance the two kinds of decay are told apart.
    other = (Decay if name == "Adam" else CoupledAdam)(RATE, decay).after(start, STEPS)
    assert np.abs(table.detach().numpy() - other).max() > 0.1


def test_quadrature_error_tells_of_a_map_that_no_grid_resolves() -> None:
    # By 20000 steps at 1e-2 every coordinate jumps about 0: eta lambda/eps = 1000 is beyond the stable 38.
    law = CoupledAdam(RATE, 1e-2).row_norm(WIDTH, 20_000)
    assert law.mean < 1e-3
    assert law.quadrature_error > 0.01 * law.mean


@pytest.mark.parametrize("unit", [1e-200, 1e150])
def test_the_unit_of_rows_that_stay_does_not_matter(unit: float) -> None:
    scaled, law = (CoupledAdam(RATE, 0.0).row_norm(4, 3, deviation) for deviation in (unit, 1.0))
    assert (scaled.mean, scaled.spread) == pytest.approx((unit * law.mean, unit * law.spread), rel=1e-12)
    # By unit / epsilon a small row is moved in proportion: the first step of SGD at eta / eps.
    moved = CoupledAdam(1e-9, 0.1).row_norm(4, 1, 1e-200)
    assert moved.mean == pytest.approx(1e-200 * law.mean * (1 - 1e-9 * 0.1 / 1e-8), rel=1e-12)


def test_the_widest_rows_keep_their_spread() -> None:
    law, exact = CoupledAdam(RATE, 0.0).row_norm(10**9, 0), Decay(0.0, 0.0).row_norm(10**9, 0)
    # spread^2 is the difference of two numbers of 1e9, each off by a few 2^-53: 1e-6.
    assert law.spread == pytest.approx(exact.spread, abs=1e-6)
    assert abs(law.spread - exact.spread) <= 10 * law.quadrature_error


def test_rows_at_zero_stay_there() -> None:
    assert CoupledAdam(RATE, 1e-4).after(np.zeros(3), 10).tolist() == [0, 0, 0]


def test_precision_of_balls_is_restored() -> None:
    before = flint.ctx.prec
    Decay(RATE, 1e-4).row_norm(WIDTH, STEPS)
    assert flint.ctx.prec == before


@pytest.mark.parametrize(
    ("question", "text"),
    [
        (lambda: Decay(-1.0, 0.0), "learning rate must be a finite number, 0 or more, got -1.0"),
        (lambda: CoupledAdam(1e-3, math.nan), "weight decay must be a finite number, 0 or more, got nan"),
        (lambda: CoupledAdam(1e-3, 0.0, betas=(0.9, 1.0)), r"two numbers from 0 to below 1, got \(0.9, 1.0\)"),
        (
            lambda: CoupledAdam(1e-3, 0.0, betas=(0.9, 0.9, 0.9)),
            r"two numbers from 0 to below 1, got \(0.9, 0.9, 0.9\)",
        ),
        (lambda: CoupledAdam(1e-3, 0.0, epsilon=0.0), "epsilon must be a finite number above 0, got 0.0"),
        (lambda: Decay(1e-3, 0.0).row_norm(0, 1), "width must be 1 or more, got 0"),
        (lambda: Decay(1e-3, 0.0).row_norm(2.5, 2), "width must be a whole number, got 2.5"),
        (lambda: CoupledAdam(1e-3, 0.0).row_norm(10**20, 2), "width must be 1000000000 coordinates or fewer"),
        (lambda: Decay(1e-3, 0.0).row_norm(64, math.nan), "steps must be a whole number, got nan"),
        (lambda: Decay(1.0, 1.5).after(np.ones(2), 2.5), "steps must be a whole number, got 2.5"),
        (lambda: Decay(3.0, 1.0).row_norm(64, 10_000), "leave the range of float64 within 10000 steps: give smaller"),
        (lambda: Decay(3.0, 1.0).after(np.full(1, 1e300), 100), "leave the range of float64 within 100 steps"),
        (lambda: Decay(3.0, 1.0).row_norm(10**8, 1023), "leave the range of float64 within 1023 steps"),
        (lambda: CoupledAdam(1e-3, 0.1).row_norm(4, 3, 1e160), "leave the range of float64 within 3 steps"),
        (lambda: Decay(1e-3, 0.0).row_norm(4, -1), "steps must be 0 or more, got -1"),
        (lambda: CoupledAdam(1e-3, 0.0).after(np.ones(1), -2), "steps must be 0 or more, got -2"),
        (lambda: CoupledAdam(1e-3, 0.0).row_norm(4, 1, 0.0), "give a finite deviation above 0, got 0.0"),
        (lambda: NormLaw(1.0, 1.0).scatter(0), "rows must be 1 or more, got 0"),
        (lambda: NormLaw(1.0, 1.0).scatter(2.5), "rows must be a whole number, got 2.5"),
    ],
)
def test_bad_input_is_named(question, text: str, unchecked) -> None:
    with pytest.raises(TheoryError, match=text):
        question()
