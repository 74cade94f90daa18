"""The least-norm linear score: float64, exact, regularised, and of least group norm, each by a second route."""

import flint
import mpmath
import numpy as np
import pytest
import sympy
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.linalg import lstsq
from scipy.optimize import linprog

from theory.errors import TheoryError
from theory.group_interpolant import GroupInterpolant, _Barrier, least_group_norm
from theory.interpolant import InterpolationProblem, certified_min_norm, lengths_of_pairs, min_norm, ridge
from theory.kernel import kernel
from theory.schedule import RotarySchedule

EPS = np.finfo(np.float64).eps
SETUP = InterpolationProblem(RotarySchedule.geometric(64, 10_000), 2, 16)
BEYOND = -np.arange(16, 48)


def small_problem(seed: int, pairs: int, length: int) -> InterpolationProblem:
    """Frequencies up to pi at distances that keep X well-conditioned."""
    rng = np.random.default_rng(seed)
    theta = (np.arange(pairs) + rng.uniform(0.25, 0.75, size=pairs)) * np.pi / pairs
    return InterpolationProblem(RotarySchedule(theta), int(rng.integers(length)), length)


def to_mp(ball: flint.arb) -> mpmath.mpf:
    """The exact midpoint of a ball."""
    mantissa, exponent = ball.mid().man_exp()
    return mpmath.mpf(int(mantissa)) * mpmath.mpf(2) ** int(exponent)


def mp_min_norm(dim: int, base: int, offset: int, length: int, far: range):
    """|w|, f(-j) for j in `far` and the extreme eigenvalues, from the Toeplitz form h g(a - b) in mpmath."""
    theta = [mpmath.power(base, mpmath.mpf(-2 * i) / dim) for i in range(dim // 2)]
    hg = [mpmath.fsum(mpmath.cos(s * t) for t in theta) for s in range(max(far) + 1)]
    gram = mpmath.matrix([[hg[abs(a - b)] for b in range(length)] for a in range(length)])
    target = mpmath.matrix([int(j == offset) for j in range(length)])
    dual = mpmath.lu_solve(gram, target)
    values = [mpmath.fsum(dual[b] * hg[abs(j - b)] for b in range(length)) for j in far]
    return mpmath.sqrt(dual[offset]), values, mpmath.eigsy(gram, eigvals_only=True)


@pytest.fixture(scope="module")
def exact():
    return certified_min_norm(SETUP, BEYOND)


@pytest.fixture(scope="module")
def by_mpmath():
    with mpmath.workdps(160):
        return mp_min_norm(64, 10_000, 2, 16, range(16, 48))


def test_printed_numbers_of_the_exact_minimiser(exact):
    # statements.md, row "Linear interpolant": 6.41316e8 is |w|, not its square; 8.01708e8 is a root mean square.
    assert float(exact.norm) == pytest.approx(6.41316e8, abs=500)
    assert float(exact.values[0]) == pytest.approx(-91.455, abs=5e-4)
    assert float(exact.root_mean_square) == pytest.approx(8.01708e8, abs=500)
    assert exact.offsets[0] == -16


def test_balls_hold_what_mpmath_finds_at_160_digits(exact, by_mpmath):
    # 160 digits less the Gram matrix's 24 and the values' 9 leave 127; the radii, at 512 bits, are above 1e-100.
    norm, values, _ = by_mpmath
    with mpmath.workdps(160):
        rms = mpmath.sqrt(mpmath.fsum(v * v for v in values) / len(values))
        pairs = [(exact.norm, norm), (exact.root_mean_square, rms), *zip(exact.values, values, strict=True)]
        for ball, number in pairs:
            assert abs(to_mp(ball) - number) <= to_mp(ball.rad())
            assert to_mp(ball.rad()) <= mpmath.mpf(10) ** -15 * max(1, abs(number))


def test_digits_raise_the_precision_and_leave_the_global_one_alone(exact):
    before = flint.ctx.prec
    finer = certified_min_norm(SETUP, BEYOND[:1], digits=120)
    assert flint.ctx.prec == before
    assert finer.bits > exact.bits
    assert finer.norm.rel_accuracy_bits() >= 120 * np.log2(10)
    assert exact.norm.overlaps(finer.norm) and exact.values[0].overlaps(finer.values[0])


def test_float_numbers_are_those_of_the_exact_minimiser_up_to_its_condition(exact):
    found = min_norm(SETUP)
    # A backward error of n eps |X| in X moves w by condition * n eps, relative.
    assert found.norm == pytest.approx(float(exact.norm), rel=found.condition * 16 * EPS)
    assert found.group_norm == pytest.approx(float(exact.group_norm), rel=found.condition * 16 * EPS)
    assert found.off_support(48) == pytest.approx(float(exact.root_mean_square), rel=found.condition * 16 * EPS)
    # The residual of a backward stable solution: n eps |X| |w|, |X| <= sqrt(h n).
    assert found.residual <= 16 * EPS * np.sqrt(32 * 16) * found.norm
    assert found.profile(np.array([-2]))[0] == pytest.approx(1, abs=found.residual)


def test_rank_and_condition_are_of_the_matrix_they_name(by_mpmath):
    found, eigenvalues = min_norm(SETUP), by_mpmath[2]
    condition = float(mpmath.sqrt(max(eigenvalues) / min(eigenvalues)))
    assert condition == pytest.approx(1.1e12, rel=0.05)
    # Each singular value is off by n eps of the largest.
    assert found.condition == pytest.approx(condition, rel=condition * 16 * EPS)
    assert found.rank == 16
    assert (SETUP.feature_rank(1e-3), SETUP.gram_rank(1e-3)) == (9, 7)
    largest = max(eigenvalues)
    assert sum(e > 1e-6 * largest for e in eigenvalues) == 9
    assert sum(e > 1e-3 * largest for e in eigenvalues) == 7


def test_gram_matrix_is_the_kernel_of_equal_weights():
    features = SETUP.features
    lags = np.subtract.outer(np.arange(16), np.arange(16)).reshape(-1)
    g = kernel(np.full(32, 1 / 32), SETUP.schedule.frequencies, lags).reshape(16, 16)
    np.testing.assert_allclose(features @ features.T, 32 * g, atol=32 * 64 * EPS)


@pytest.mark.parametrize("tolerance", [1e-1, 1e-3, 1e-6])
def test_truncation_is_lapacks_truncated_least_squares(tolerance):
    found = min_norm(SETUP, tolerance)
    solution, _, rank, _ = lstsq(SETUP.features, SETUP.targets, cond=tolerance, lapack_driver="gelsd")
    assert found.rank == rank
    # Singular vectors kept move by n eps over the gap to those dropped, which is about the tolerance or less.
    np.testing.assert_allclose(np.r_[found.cosines, found.sines], solution, atol=1e-8 * found.norm)


@pytest.mark.parametrize("penalty", [1e2, 1e-2, 1e-6])
def test_ridge_is_least_squares_with_penalty_rows(penalty):
    stacked = np.vstack([SETUP.features, np.sqrt(penalty) * np.eye(64)])
    solution = lstsq(stacked, np.r_[SETUP.targets, np.zeros(64)], lapack_driver="gelsy")[0]
    found = ridge(SETUP, penalty)
    values = np.linalg.svd(stacked, compute_uv=False)
    # sqrt(penalty) itself is a singular value of the stack wherever X has none.
    assert found.condition <= values[0] / values[-1] * (1 + 1e-9)
    np.testing.assert_allclose(
        np.r_[found.cosines, found.sines], solution, atol=10 * EPS * found.condition**2 * found.norm
    )


def test_along_both_paths_residual_falls_as_norm_grows():
    tolerances, penalties = 10.0 ** -np.arange(1, 12), 10.0 ** -np.arange(-2, 16)
    for path in ([min_norm(SETUP, t) for t in tolerances], [ridge(SETUP, p) for p in penalties]):
        norms = [found.norm for found in path]
        misfits = [np.linalg.norm(found.profile(-np.arange(16)) - SETUP.targets) for found in path]
        assert (np.diff(norms) >= 0).all() and norms[-1] > 1e5 * norms[0]
        assert (np.diff(misfits) <= 0).all() and misfits[-1] < 0.2 * misfits[0]


def test_the_regularised_score_is_of_order_one_and_the_exact_one_is_not(exact):
    for found in (ridge(SETUP, 1e-2), min_norm(SETUP, 1e-2)):
        assert 0.1 < found.off_support(48) < 1
        # What that costs: the target's score is half of what was asked, and so is the largest misfit.
        assert 0.4 < found.residual < 0.6
    assert float(exact.root_mean_square) > 1e8


@settings(deadline=None, max_examples=30)
@given(seed=st.integers(0, 10_000), pairs=st.integers(2, 6), data=st.data())
def test_least_norm_of_all_that_fit(seed, pairs, data):
    problem = small_problem(seed, pairs, data.draw(st.integers(1, pairs)))
    found = min_norm(problem)
    coefficients = np.r_[found.cosines, found.sines]
    # Sums of at most 12 terms, each off by eps times the norms: 1e3 covers them, the condition what a solve adds.
    assert found.residual <= 1e3 * EPS * found.condition * found.norm
    null = np.linalg.svd(problem.features)[2][problem.length :]
    rng = np.random.default_rng(seed)
    other = coefficients + rng.normal(size=len(null)) @ null
    np.testing.assert_allclose(problem.features @ other, problem.targets, atol=1e3 * EPS * found.condition)
    assert found.norm < np.linalg.norm(other)
    # A vanishing penalty comes to the same; at distance penalty / smallest singular value^2, relative.
    slight = ridge(problem, 1e-9)
    smallest = np.linalg.svd(problem.features, compute_uv=False)[-1]
    assert slight.norm == pytest.approx(found.norm, rel=1e-9 / smallest**2 + 1e-12)


@settings(deadline=None, max_examples=15)
@given(seed=st.integers(0, 10_000), pairs=st.integers(2, 5), data=st.data())
def test_floating_frequencies_are_taken_as_the_binary_numbers_they_are(seed, pairs, data):
    floating = small_problem(seed, pairs, data.draw(st.integers(1, pairs)))
    rational = [sympy.Rational(float(theta)) for theta in floating.schedule.frequencies]
    exact = InterpolationProblem(RotarySchedule.from_exact(rational), floating.offset, floating.length)
    far = np.array([-floating.length, 3])
    ours, theirs = certified_min_norm(floating, far), certified_min_norm(exact, far)
    assert ours.norm.overlaps(theirs.norm) and ours.values[1].overlaps(theirs.values[1])
    found = min_norm(floating)
    np.testing.assert_allclose(
        found.profile(far), [float(v) for v in ours.values], atol=1e3 * EPS * found.condition * found.norm
    )
    # The least group norm is between the least norm and the group norm of the solution of least norm.
    grouped = least_group_norm(floating)
    assert ours.norm.lower() <= grouped.minimum.upper() and grouped.minimum.lower() <= ours.group_norm.upper()


def test_exact_frequencies_in_closed_form():
    # theta = pi/2 at offsets 0 and -1: rows (1, 0) and (0, -1), so f = cos or -sin of pi delta/2.
    schedule = RotarySchedule.from_exact([sympy.pi / 2])
    far = np.array([-1, -2, -3])
    for offset, values in ((0, (0, -1, 0)), (1, (1, 0, -1))):
        problem = InterpolationProblem(schedule, offset, 2)
        found = certified_min_norm(problem, far)
        assert found.norm.contains(1) and found.group_norm.contains(1)
        assert all(ball.contains(value) for ball, value in zip(found.values, values, strict=True))
        np.testing.assert_allclose(min_norm(problem).profile(far), values, atol=8 * EPS)
        # f(0) and f(-1) are one lane each: the target's lane alone is needed, at 1 - eps.
        assert least_group_norm(problem, 0.25).minimum.contains(0.75)
    # A frequency that is a sum: cos(delta (pi/6 + pi/3)) is the same score.
    both = RotarySchedule.from_exact([sympy.Add(sympy.pi / 6, sympy.sqrt(2), evaluate=False)])
    turn = float(sympy.pi / 6 + sympy.sqrt(2))
    found = certified_min_norm(InterpolationProblem(both, 0, 1), np.array([5]))
    assert float(found.values[0]) == pytest.approx(np.cos(5 * turn), abs=5 * turn * EPS)


def test_least_group_norm_of_the_reference_setup(exact):
    found = least_group_norm(SETUP)
    assert found.minimum.overlaps(flint.arb("1589083386.44467", "1e-4"))
    assert found.gap <= 1e-9
    assert found.minimum < exact.group_norm
    assert found.norm > float(exact.norm)
    assert found.group_norm == pytest.approx(float(found.minimum), rel=1e-9)
    # Rounding 64 coefficients to float64 and summing them.
    assert found.residual <= 64 * EPS * found.group_norm
    # L equations and one length a pair: 8 of 32 pairs carry it.
    assert (np.hypot(found.cosines, found.sines) > 1e-7 * found.group_norm).sum() == 8


def test_a_gap_that_is_not_reached_is_named(monkeypatch):
    # 256 bits solve the Gram matrix, of condition 1e24, to some 1e-52, and amplitudes to the root of that.
    monkeypatch.setattr("theory.group_interpolant._MOST_BITS", 256)
    assert least_group_norm(SETUP, 0.3, gap=1e-12).gap <= 1e-12
    with pytest.raises(TheoryError, match="certified to a gap of 1e-30 at 256 bits: give fewer offsets or a wider gap"):
        least_group_norm(SETUP, 0.3, gap=1e-30)


def test_the_least_gap_and_an_ill_conditioned_problem_are_certified():
    # At L = 24 the feature matrix has a condition of 1e20: what 256 bits lack, 512 have.
    assert least_group_norm(SETUP, 0.3, gap=1e-30).gap <= 1e-30
    longer = InterpolationProblem(SETUP.schedule, 2, 24)
    found = least_group_norm(longer, 0.3)
    assert (found.bits, found.gap <= 1e-9) == (512, True)
    assert found.residual <= 0.3 + 64 * EPS * found.group_norm


def test_the_length_of_a_pair_near_zero_has_a_ball():
    for width in ("0", "1e-20"):
        (length,) = lengths_of_pairs([flint.arb("0", width), flint.arb("0", width)])
        assert length.contains(0) and length.upper() <= flint.arb("2e-20")


def test_a_point_outside_the_discs_certifies_nothing():
    # theta = 1 at offset 0 alone: a = z, and every z in (-1, 1) is a dual point.
    problem = InterpolationProblem(RotarySchedule.geometric(2, 10), 0, 1)
    for z, proof in ((0.75, True), (1.0, False), (-2.0, False)):
        found = _Barrier(problem, 0.0).certify(flint.arb_mat([[z]]), flint.arb(2) ** -10)
        assert (found is not None) == proof
    assert least_group_norm(problem).minimum.contains(1)


@pytest.mark.parametrize("tolerance", [0.0, 0.1])
def test_certificate_is_a_dual_point_of_the_stated_value(tolerance):
    found = least_group_norm(SETUP, tolerance)
    with mpmath.workdps(100):
        z = [to_mp(ball) for ball in found.certificate]
        for i in range(32):
            theta = mpmath.power(10_000, mpmath.mpf(-i) / 32)
            assert abs(mpmath.fsum(z[j] * mpmath.expj(-j * theta) for j in range(16))) <= 1
        dual = z[2] - mpmath.mpf(tolerance) * mpmath.fsum(abs(number) for number in z)
        assert to_mp(found.minimum.lower()) <= dual <= to_mp(found.minimum.upper())
        assert to_mp(found.minimum.upper()) - dual <= mpmath.mpf(1e-9) * dual


def assert_in_polygonal_bracket(found: GroupInterpolant) -> None:
    """min sum r by HiGHS, every disc a regular polygon inside it: an upper bound, and cos(pi/corners) of it a lower."""
    problem, corners = found.problem, 256
    turns = np.multiply.outer(-np.arange(problem.length), problem.schedule.frequencies)
    atoms = np.cos(turns[:, :, None] - np.arange(corners) * 2 * np.pi / corners).reshape(problem.length, -1)
    answer = linprog(
        np.ones(atoms.shape[1]),
        A_ub=np.r_[atoms, -atoms],
        b_ub=np.r_[found.tolerance + problem.targets, found.tolerance - problem.targets],
        bounds=(0, None),
        method="highs",
    )
    # HiGHS leaves rows and reduced costs violated by up to 1e-7: worth that much of |z|_1 and of the minimum.
    slack = 2e-7 * (float(sum(abs(z) for z in found.certificate)) + answer.fun)
    assert answer.fun * np.cos(np.pi / corners) - slack <= float(found.minimum) <= answer.fun + slack


@settings(deadline=None, max_examples=25)
@given(
    seed=st.integers(0, 10_000),
    pairs=st.integers(2, 6),
    tolerance=st.sampled_from([0.0, 1e-3, 0.1, 0.3, 0.6, 0.9]),
    data=st.data(),
)
def test_group_norm_against_a_linear_program(seed, pairs, tolerance, data):
    problem = small_problem(seed, pairs, data.draw(st.integers(1, pairs)))
    found = least_group_norm(problem, tolerance)
    assert_in_polygonal_bracket(found)
    assert found.residual <= tolerance + 1e-12
    assert found.gap <= 1e-9


@pytest.mark.parametrize("tolerance", [0.2, 0.3])
def test_group_norm_of_the_reference_setup_against_a_linear_program(tolerance):
    assert_in_polygonal_bracket(least_group_norm(SETUP, tolerance))


def test_along_the_tolerance_the_group_norm_falls_to_that_of_a_constant():
    tolerances = [0.0, 1e-4, 1e-2, 0.1, 0.3, 0.5, 0.9]
    path = [least_group_norm(SETUP, tolerance) for tolerance in tolerances]
    minima = np.array([float(found.minimum) for found in path])
    assert (np.diff(minima) < 0).all()
    # f(-K) >= 1 - eps needs sum r >= 1 - eps; from eps = 1/2 on a constant score of that height fits.
    assert all(found.minimum.upper() >= 1 - tolerance for found, tolerance in zip(path, tolerances, strict=True))
    assert path[5].minimum.contains(0.5) and path[6].minimum.contains(1 - flint.arb(0.9))
    assert minima[4] > 40
    # Convex in the tolerance: the slope grows.
    slopes = np.diff(minima) / np.diff(tolerances)
    assert (np.diff(slopes) > 0).all()


@pytest.mark.parametrize(
    ("exact", "length"), [([sympy.pi], 2), ([2 * sympy.pi / 5] * 4, 6), ([sympy.Integer(1)] * 3, 4)]
)
def test_a_singular_gram_matrix_is_said_to_be_one(exact, length):
    problem = InterpolationProblem(RotarySchedule.from_exact(exact), 1, length)
    with pytest.raises(TheoryError, match=r"not told from a singular one.*Give fewer offsets"):
        certified_min_norm(problem, BEYOND)
    for tolerance in (0.0, 0.6):
        with pytest.raises(TheoryError, match=r"not told from a singular one at 4096 bits.*Give fewer offsets"):
            least_group_norm(problem, tolerance)
    assert min_norm(problem).rank < length


@pytest.mark.parametrize(
    ("question", "text"),
    [
        (lambda: InterpolationProblem(SETUP.schedule, 16, 16), "needs a length above 16"),
        (lambda: InterpolationProblem(SETUP.schedule, -2, 16), "counts tokens back"),
        (lambda: InterpolationProblem(RotarySchedule.geometric(4, 10), 2, 5), "5 training offsets .* 4 features"),
        (lambda: min_norm(SETUP, 1.0), r"in \[0, 1\), got 1.0"),
        (lambda: min_norm(SETUP, float("nan")), "got nan"),
        (lambda: ridge(SETUP, 0), "above 0, got 0: 0 is min_norm"),
        (lambda: ridge(SETUP, float("inf")), "finite number above 0, got inf"),
        (lambda: InterpolationProblem(SETUP.schedule, 2, 16.0), "the length must be a whole number, got 16.0"),
        (lambda: InterpolationProblem(SETUP.schedule, 2.5, 16), "offset K must be a whole number, got 2.5"),
        (lambda: SETUP.feature_rank(float("nan")), r"in \[0, 1\), got nan"),
        (lambda: SETUP.gram_rank(-1.0), r"in \[0, 1\), got -1.0"),
        (lambda: SETUP.gram_rank(float("nan")), r"in \[0, 1\), got nan"),
        (lambda: certified_min_norm(SETUP, BEYOND, digits=0), "number of digits must be 1 or more, got 0"),
        (
            lambda: certified_min_norm(InterpolationProblem(SETUP.schedule, 0, 1), BEYOND[:1], digits=5000),
            "5000 digits are not reached .* give fewer digits",
        ),
        (lambda: certified_min_norm(SETUP, BEYOND[:0]), "one offset or more"),
        (lambda: certified_min_norm(SETUP, np.array([2.7])), "an offset must be a whole number, got .*2.7"),
        (lambda: least_group_norm(SETUP, 1.0), "from 1 on f = 0 fits"),
        (lambda: least_group_norm(SETUP, -0.1), "got -0.1"),
        (lambda: least_group_norm(SETUP, 0.1, gap=0.0), r"in \[1e-30, 1\), got 0.0"),
        (lambda: least_group_norm(SETUP, 0.1, gap=1e-200), r"in \[1e-30, 1\), got 1e-200"),
        (lambda: min_norm(SETUP).off_support(16), "length above 16, got 16"),
        (
            lambda: certified_min_norm(
                InterpolationProblem(RotarySchedule.from_exact([sympy.cos(1)]), 0, 1), np.array([1])
            ),
            "has no ball: give sums, products and powers",
        ),
    ],
)
def test_bad_inputs_are_named(question, text, unchecked):
    with pytest.raises(TheoryError, match=text):
        question()
