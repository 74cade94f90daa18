"""The main job at the paper's own settings: predicted from the weights against what the head does."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import tiny_spec

from bridge.account import LENGTHS, Account, account, compare, prediction_of
from bridge.compare import LIMIT, Comparison, Verdict, against_printed, over_seeds, same_digits
from bridge.errors import BridgeError
from bridge.on_disk import found_on_disk
from bridge.paper import TARGETS, target
from bridge.paper.target import Preset
from bridge.prediction import predict
from bridge.sources.run import head_of_run, heads_of_run
from empirics.head import AttentionHead
from empirics.spec import BucketBias, LinearBias, NoPositions, Rotary, RunSpec
from empirics.store import Store
from empirics.tasks import draw_batch
from empirics.train import Run, train
from theory.dilution import dilution_curve
from theory.head import Head
from theory.kernel import carrier_profile, margin
from theory.schedule import as_lanes, as_pairs
from theory.statements import STATEMENTS

TABLE_7 = {12: ".83", 16: ".83", 20: ".83", 24: ".82", 32: ".76", 40: ".74", 48: ".69"}


@pytest.fixture(scope="module")
def told(rotary_run: Run) -> Account:
    """40 000 fresh sequences a length from the named seed."""
    return account(rotary_run)


def turned(head: Head, pair: int, angle: float) -> Head:
    """The head with one rotary pair of its mean key turned by an angle in rad."""
    pairs = as_pairs(head.carrier().key_mean)
    pairs[pair] *= np.exp(1j * angle)
    return head.with_means(key_mean=as_lanes(pairs))


def test_the_run_gives_the_digits_of_table_7(rotary_run: Run) -> None:
    assert {seen.length: f"{seen.peak:.2f}"[1:] for seen in rotary_run.evaluation} == TABLE_7
    assert {seen.selected_offset for seen in rotary_run.evaluation} == {-2}
    assert {seen.sequences for seen in rotary_run.evaluation} == {4096}
    measured = margin(carrier_profile(head_of_run(rotary_run).carrier(), 48), 2)
    assert f"{measured.value:.2f}" == "2.30"


def test_learned_positions_hold_in_range_and_fall_beyond(learned_run: Run) -> None:
    accuracy = {seen.length: seen.accuracy for seen in learned_run.evaluation}
    assert all(f"{accuracy[length]:.2f}" == "1.00" for length in (12, 16))
    assert all(accuracy[length] < 0.15 for length in (20, 24, 32, 40, 48))


def test_the_exact_law_holds_at_every_length(told: Account) -> None:
    assert told.exact.lengths == LENGTHS and max(LENGTHS) == 512
    assert {seen.sequences for seen in told.observations} == {40_000}
    assert np.abs(told.exact.deviations).max() <= LIMIT
    assert told.exact.verdict is Verdict.AGREES and told.agrees


def test_the_mean_profile_law_errs_by_many_standard_errors_and_says_why(told: Account) -> None:
    """The control: an observation that could not tell the laws apart would prove nothing."""
    assert np.abs(told.mean_profile.deviations).max() > 50
    assert told.mean_profile.verdict is Verdict.OUT_OF_REGIME
    assert "residuals" in told.mean_profile.unmet[0]


@pytest.mark.parametrize("angle", [0.1, -0.1])
def test_a_key_mean_turned_by_a_tenth_of_a_radian_fails(told: Account, angle: float) -> None:
    wrong = compare(
        told.run, predict(turned(head_of_run(told.run), 1, angle), 2, LENGTHS), told.observations, told.seed
    )
    assert np.abs(wrong.exact.predicted - told.exact.predicted).max() > 10 * told.exact.standard_error.max()
    assert np.abs(wrong.exact.deviations).max() > 10
    assert wrong.exact.verdict is Verdict.DEVIATES and not wrong.agrees


def test_a_turn_of_nothing_changes_nothing(told: Account) -> None:
    same = predict(turned(head_of_run(told.run), 1, 0.0), 2, LENGTHS)
    assert same.exact == pytest.approx(told.exact.predicted, abs=1e-12)


@pytest.mark.parametrize("length", [9, 48, 300])
def test_the_score_table_holds_the_models_own_logits(rotary_run: Run, length: int) -> None:
    """Lemma 1 on the trained weights: query token, offset and key token say all, beyond training too."""
    tokens = torch.randint(0, 20, (32, length), generator=torch.Generator().manual_seed(length))
    logits = rotary_run.model(tokens).logits[:, 0].detach().numpy()
    table = head_of_run(rotary_run).logits(-np.arange(length))
    back = tokens.numpy()[:, ::-1]
    ours = table[back[:, :1], np.arange(length)[None], back][:, ::-1]
    assert np.abs(ours - logits).max() < 1e-5
    # The table transposed in tokens is another: the comparison can fail.
    assert np.abs(table[back, np.arange(length)[None], back[:, :1]][:, ::-1] - logits).max() > 0.1


@pytest.mark.parametrize(
    "spec",
    [
        tiny_spec(encoding=Rotary(base=50.0), heads=4, temperature=0.5),
        tiny_spec(encoding=LinearBias(slope=0.3), heads=2),
        tiny_spec(encoding=BucketBias(buckets=6), heads=2),
        tiny_spec(encoding=NoPositions()),
        tiny_spec(offset=1, second_offset=3, heads=2),
        tiny_spec(attention="linear"),
    ],
    ids=lambda spec: spec.id,
)
def test_every_head_of_a_run_has_the_logits_of_its_model(spec: RunSpec) -> None:
    """Heads with biases, temperatures and modes: in float64, the self key with them."""
    run = Run(spec, AttentionHead(spec, torch.Generator().manual_seed(1)).double(), (), (), 0.0)
    if run.model.bias is not None:
        torch.nn.init.normal_(run.model.bias, generator=torch.Generator().manual_seed(2))
    tokens = draw_batch(spec, 16, 20, torch.Generator().manual_seed(3)).tokens
    logits = run.model(tokens).logits.detach().numpy()
    back = tokens.numpy()[:, ::-1]
    asking = back[:, 0] - (spec.vocabulary if spec.second_offset else 0)
    for index, head in enumerate(heads_of_run(run)):
        pool = head.logits(-np.arange(20))[asking[:, None], np.arange(1, 20)[None], back[:, 1:]]
        assert pool[:, ::-1] == pytest.approx(logits[:, index, :-1], abs=1e-9)
        assert head.local_logits()[asking, 0] == pytest.approx(logits[:, index, -1], abs=1e-9)
    with pytest.raises(BridgeError, match=f"has heads 0 to {spec.heads - 1}, got {spec.heads}"):
        head_of_run(run, spec.heads)


def test_linear_attention_has_a_carrier_and_no_law_of_dilution() -> None:
    run = train(tiny_spec(attention="linear"))
    assert 0 <= head_of_run(run).carrier().key_fraction <= 1
    with pytest.raises(BridgeError, match="linear attention, of which no dilution law speaks"):
        prediction_of(run)


def test_a_curve_from_two_vectors_is_the_law_of_the_head(rotary_run: Run) -> None:
    carrier = head_of_run(rotary_run).carrier()
    curve = dilution_curve(carrier.query_mean, carrier.key_mean, carrier.schedule, 2, LENGTHS, carrier.logit_scale)
    predicted = predict(head_of_run(rotary_run), 2, LENGTHS)
    # Two vectors do not know the covariance of a token with itself at offset 0, and nothing else.
    own = np.exp(predicted.profile[2]) / predicted.mean_profile
    without = own - np.exp(predicted.profile[0]) + np.exp(carrier_profile(carrier, 1)[0])
    assert curve == pytest.approx(np.exp(predicted.profile[2]) / without, rel=1e-12)


def test_the_bound_lies_below_the_mean_profile_law(told: Account) -> None:
    margins = [mu.value for mu in told.prediction.margins]
    assert margins == sorted(margins, reverse=True) and margins[0] > margins[-1]
    assert (told.prediction.bound <= told.prediction.mean_profile + 1e-12).all()


def test_learned_positions_have_no_carrier(learned_run: Run) -> None:
    with pytest.raises(BridgeError, match="adds positions to its embedding: its logits are no function of the offset"):
        head_of_run(learned_run)


def test_the_verdict_of_a_comparison() -> None:
    def verdict(error: float, unmet: tuple[str, ...] = ()) -> Verdict:
        observed, errors = np.array([0.5, 0.4]), np.array([0.01, 0.01])
        return Comparison("law", (8, 16), observed + np.array([0, error]), observed, errors, unmet).verdict

    assert verdict(0.0349) is Verdict.AGREES and verdict(-0.0349) is Verdict.AGREES
    assert verdict(0.0351) is Verdict.DEVIATES and verdict(-0.0351) is Verdict.DEVIATES
    assert verdict(0.0, ("an assumption",)) is Verdict.OUT_OF_REGIME
    sure = Comparison("law", (8,), np.ones(1), np.ones(1) - 2.0**-24, np.zeros(1))
    assert sure.verdict is Verdict.AGREES, "rounding of float32 is no deviation where nothing scatters"
    assert Comparison("law", (8,), np.ones(1), np.ones(1) - 1e-6, np.zeros(1)).verdict is Verdict.DEVIATES
    with pytest.raises(BridgeError, match="differ in size"):
        Comparison("law", (8, 16, 32), np.ones(2), np.ones(2), np.ones(2))


def test_the_verdict_against_a_printed_number() -> None:
    one = over_seeds([0.834])
    assert one.spread is None and against_printed(one, 0.83, 2) is Verdict.AGREES
    assert against_printed(over_seeds([0.84]), 0.83, 2) is Verdict.AGREES, "one seed: .01"
    assert against_printed(over_seeds([0.841]), 0.83, 2) is Verdict.DEVIATES
    assert against_printed(over_seeds([0.0072]), 0.0071, 4) is Verdict.AGREES, "more decimals: a unit of the last one"
    assert against_printed(over_seeds([0.00731]), 0.0071, 4) is Verdict.DEVIATES
    assert against_printed(over_seeds([-2.0]), -2, 0) is Verdict.AGREES, "an offset is the same or it is not"
    assert against_printed(over_seeds([-1.0]), -2, 0) is Verdict.DEVIATES
    several = over_seeds([0.80, 0.84, 0.88])
    assert several.value == pytest.approx(0.84) and several.spread == pytest.approx(0.04)
    assert several.standard_error == pytest.approx(0.04 / 3**0.5)
    assert against_printed(several, 0.89, 2) is Verdict.AGREES, "a mean: a unit and two standard errors, .046"
    assert against_printed(several, 0.90, 2) is Verdict.DEVIATES
    assert same_digits(0.8349, 0.83, 2) and not same_digits(0.8351, 0.83, 2)


def test_table_7_has_its_recorded_verdicts(rotary_run: Run) -> None:
    cells = target("table-7").cells((rotary_run,), Preset.PAPER)
    assert all(cell.as_recorded for cell in cells)
    assert all(cell.agrees for cell in cells)
    others = {(cell.printed.row, cell.printed.column) for cell in cells if not cell.digits}
    assert others == {("bound", "L=20"), ("bound", "L=48")}


def test_the_margin_that_gives_the_printed_bounds_is_not_that_of_the_weights(rotary_run: Run) -> None:
    """The note of Table 7, and why: a margin measured on sampled logits scatters so far."""
    printed = {row.column: row.value for row in target("table-7").printed if row.row == "bound"}
    ends = np.array(
        [
            [np.log((int(column[2:]) - 1) * bound / (1 - bound)) for bound in (value - 0.005, value + 0.005)]
            for column, value in printed.items()
        ]
    )
    low, high = ends[:, 0].max(), ends[:, 1].min()
    assert (f"{low:.4f}", f"{high:.4f}") == ("2.3033", "2.3082")
    table, rng = head_of_run(rotary_run).logits(-np.arange(12)), np.random.default_rng(0)
    measured = []
    for _ in range(50):
        tokens = rng.integers(0, 20, (4096, 12))
        measured.append(margin(table[tokens[:, :1], np.arange(12)[None], tokens].mean(axis=0), 2).value)
    assert np.mean(measured) < low < np.max(measured)


def test_targets_name_statements_that_exist_and_share_their_runs() -> None:
    assert {one.statement for one in TARGETS} <= {statement.id for statement in STATEMENTS}
    specs = {spec for name in ("table-1", "table-2") for spec in target(name).specs}
    kinds = [spec.encoding.kind for spec in specs]
    assert (kinds.count("rope"), kinds.count("ape")) == (18, 8)
    with pytest.raises(BridgeError, match="unknown target 'table-99': give table-1, table-2"):
        target("table-99")


def test_what_runs_on_disk_say_of_a_target(paper_store: Store, tmp_path: Path) -> None:
    """Table 7 is of the one run that the store has; Table 1 of sixteen, of which it has none."""
    cells = len(target("table-7").printed)
    assert found_on_disk("table-7", paper_store.root) == f"{cells} of {cells} cells have the verdict on record"
    assert found_on_disk("table-1", paper_store.root).startswith("not run: 16 of 16 runs are not in")
    assert found_on_disk("table-7", tmp_path / "nowhere").startswith("not run: 1 of 1")
    assert found_on_disk("table-8", paper_store.root).startswith("not run: 2 of 2")
    assert found_on_disk("table-99", paper_store.root) == "`carrier reproduce` has no such target yet"
