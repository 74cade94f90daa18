"""The measurements behind the paper's tables, on runs whose numbers are known by construction."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from bridge.compare import Verdict, over_seeds
from bridge.errors import BridgeError
from bridge.paper import measures, table_3, table_6, table_8, target
from bridge.paper.position_fixes import clamped, interpolated, observe_fixed, rescaled
from bridge.paper.target import Preset, grid, table
from bridge.sources.run import head_of_run
from empirics.head import AttentionHead
from empirics.observe import Observation, observe
from empirics.spec import EVALUATION_LENGTHS, LearnedPositions, RunSpec, run_spec
from empirics.store import Store
from empirics.sweep import sweep
from empirics.train import Run
from theory.bias import BucketBias
from theory.head import Head
from theory.schedule import RotarySchedule


def seen(length: int, peak: float, at: int, offset: int, accuracy: float = 0.9) -> Observation:
    """An observation whose highest attention is `peak`, `at` tokens back."""
    attention = np.full(length, (1 - peak) / (length - 1))
    attention[at] = peak
    errors, heights = (0.001,) * length, tuple(attention.tolist())
    return Observation(
        length=length,
        sequences=100,
        offset=offset,
        accuracy=accuracy,
        attention=heights,
        attention_error=errors,
        by_head=(heights,),
        error_by_head=(errors,),
    )


def made(seed: int = 0, offset: int = 2, alpha: float = 1.0, c: float = 0.01, missed: int | None = None) -> Run:
    """A run that decays as 1/(alpha + c(L-1)) with its peak on the target, but at one length if asked for."""
    spec = run_spec(offset=offset, seed=seed)
    evaluation = tuple(
        seen(n, 1 / (alpha + c * (n - 1)), 7 if n == missed else offset, offset) for n in EVALUATION_LENGTHS
    )
    return Run(spec, AttentionHead(spec, torch.Generator().manual_seed(seed)), (), evaluation, 0.0)


def test_the_fit_gives_back_the_law_that_made_the_decay() -> None:
    fit = measures.decay_fit([made(alpha=1.1, c=0.02)])
    assert (fit.alpha, fit.c, fit.r_squared) == pytest.approx((1.1, 0.02, 1.0))


def test_the_fit_is_of_the_mean_over_seeds_and_its_spread_that_of_the_seeds_fits() -> None:
    runs = [made(0, alpha=1.0, c=0.01), made(1, alpha=1.2, c=0.03)]
    alpha, c, r_squared = measures.fit_numbers(runs)
    peaks = np.mean(
        [[1 / (a + s * (n - 1)) for n in EVALUATION_LENGTHS] for a, s in ((1.0, 0.01), (1.2, 0.03))], axis=0
    )
    slope, intercept = np.polyfit(np.array(EVALUATION_LENGTHS) - 1, 1 / peaks, 1)
    assert (alpha.value, c.value) == pytest.approx((intercept, slope))
    assert alpha.spread == pytest.approx(np.std([1.0, 1.2], ddof=1)) and c.spread == pytest.approx(0.02 / 2**0.5)
    assert r_squared.value < 1


def test_the_share_on_target_counts_every_cell() -> None:
    share = measures.share_on_target([made(0), made(1, missed=48)])
    assert share.value == pytest.approx(13 / 14)


def test_accuracy_of_one_seed_has_its_binomial_error_and_of_several_their_spread() -> None:
    (one,) = [measures.accuracy([made(0)], 48)]
    assert (one.value, one.spread) == (0.9, None)
    assert one.standard_error == pytest.approx((0.9 * 0.1 / 100) ** 0.5)
    assert measures.accuracy([made(0), made(1)], 48).spread == 0


def test_the_carrier_of_a_run_peaks_where_its_means_say() -> None:
    """Queries all alike, keys all alike, the one the other turned by K = 3: the peak is at -3, margin as by hand."""
    run = made(offset=3)
    width = run.spec.width
    theta = 10_000.0 ** (-np.arange(0, width, 2) / width)
    turn = torch.zeros(width, width)
    for i, angle in enumerate(-3 * theta):
        turn[2 * i : 2 * i + 2, 2 * i : 2 * i + 2] = torch.tensor(
            [[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]]
        )
    with torch.no_grad():
        run.model.embedding.fill_(1.0)
        run.model.key.copy_(torch.eye(width))
        run.model.query.copy_(turn)
    assert measures.carrier_peak(run) == -3
    lags = np.array([n for n in range(3 - 47, 4) if n != 0])
    kernel = np.cos(np.multiply.outer(lags, theta)).sum(axis=1)
    assert measures.carrier_margin(run).value == pytest.approx(2 * (32 - kernel.max()) / 8, abs=1e-5)


def test_a_run_that_holds_in_range_only() -> None:
    spec = run_spec()
    model = AttentionHead(spec, torch.Generator().manual_seed(0))

    def run(inside: float, beyond: float) -> Run:
        accuracies = [inside if n <= 16 else beyond for n in EVALUATION_LENGTHS]
        observations = [seen(n, 0.5, 2, 2, a) for n, a in zip(EVALUATION_LENGTHS, accuracies, strict=True)]
        return Run(spec, model, (), tuple(observations), 0.0)

    assert measures.holds_in_range_only(run(1.0, 0.14))
    assert not measures.holds_in_range_only(run(0.99, 0.14)) and not measures.holds_in_range_only(run(1.0, 0.15))


def test_columns_of_table_2_stand_under_their_names() -> None:
    runs = tuple(made(seed, offset, alpha=1.5, c=0.04) for offset in (1, 2, 3) for seed in range(5))
    cells = {cell.printed.key: cell for cell in target("table-2").cells(runs, Preset.PAPER)}
    assert cells["K=2", "alpha"].measured.value == pytest.approx(1.5)
    assert cells["K=2", "c"].measured.value == pytest.approx(0.04)
    assert cells["K=3", "share at -K"].verdict is Verdict.AGREES
    assert cells["K=2", "alpha"].verdict is Verdict.DEVIATES and not cells["K=2", "alpha"].as_recorded
    assert len(table(target("table-2"), tuple(cells.values())).rows) == 21
    drawn = grid(target("table-2"), tuple(cells.values()))
    assert drawn.columns[2:] == ("key fraction", "query fraction", "carrier peak", "alpha", "c", "R2", "share at -K")
    assert drawn.rows[0][:2] == ("K=1", "printed") and drawn.rows[3][-1] == "digits"


def test_table_1_keeps_its_two_encodings_apart() -> None:
    runs = tuple(made(seed, 1) for seed in range(16))
    measured = target("table-1").measure(runs)
    assert measured["rope", "L=48"].value == measured["ape", "L=48"].value == pytest.approx(0.9)
    assert [spec.encoding.kind for spec in target("table-1").specs] == ["rope"] * 8 + ["ape"] * 8


def untrained(**fields: object) -> Run:
    """A run of no steps, with an accuracy of its own at every length: .90 at L = 12, .01 less at each one after."""
    spec = run_spec(**({"steps": 0} | fields))
    peaks = tuple(seen(n, 0.5, 2, spec.offset, 0.9 - i / 100) for i, n in enumerate(spec.evaluation_lengths))
    return Run(spec, AttentionHead(spec, torch.Generator().manual_seed(spec.seed)), (), peaks, 0.0)


def test_accuracy_in_distribution_is_the_mean_over_the_trained_lengths() -> None:
    """L = 12 and 16 are trained by default; up to 32 five lengths are."""
    assert measures.trained_accuracy([untrained()]).value == pytest.approx((0.90 + 0.89) / 2)
    assert measures.trained_accuracy([untrained(train_lengths=(8, 32))]).value == pytest.approx(0.88)
    error = measures.trained_accuracy([untrained()]).standard_error
    assert error == pytest.approx((0.9 * 0.1 / 100 + 0.89 * 0.11 / 100) ** 0.5 / 2)


def test_the_top_energy_of_each_head_is_that_of_its_own_lanes() -> None:
    """W of head 0 is diag(3, 4) in two lanes, that of head 1 has rank one."""
    run = untrained(width=4, heads=2)
    with torch.no_grad():
        run.model.query.copy_(torch.diag(torch.tensor([3.0, 4.0, 5.0, 0.0])))
        run.model.key.copy_(torch.eye(4))
    assert [measures.top_energy(run, index) for index in (0, 1)] == pytest.approx([16 / 25, 1.0])
    drawn = untrained(width=8, heads=2)
    query, key = (weight.detach().double().numpy()[4:] for weight in (drawn.model.query, drawn.model.key))
    form = np.einsum("la,lb->ab", query, key)
    energies = np.linalg.eigvalsh(form @ form.T)
    assert measures.top_energy(drawn, 1) == pytest.approx(energies.max() / energies.sum())


def test_the_carrier_of_a_mode_is_its_query_beside_the_mean_of_the_content() -> None:
    run = untrained(offset=1, second_offset=3)
    embedding = run.model.embedding.detach().double()
    queries = embedding[20:] @ run.model.query.detach().double().T
    key_mean = (embedding[:20] @ run.model.key.detach().double().T).mean(dim=0)
    for carrier, query in zip(measures.mode_carriers(head_of_run(run)), queries, strict=True):
        assert carrier.query_mean == pytest.approx(query.numpy()) and carrier.key_mean == pytest.approx(
            key_mean.numpy()
        )


def test_fixes_lay_a_long_sequence_over_the_trained_rows() -> None:
    rows = torch.tensor([[0.0], [10.0], [40.0]])
    assert interpolated(rows, 5)[:, 0].tolist() == [0, 5, 10, 25, 40]
    assert clamped(rows, 5)[:, 0].tolist() == [0, 10, 40, 40, 40]
    assert rescaled(rows, 6)[:, 0].tolist() == [0, 0, 10, 10, 40, 40]
    sixteen = torch.arange(16.0)[:, None]
    assert rescaled(sixteen, 20)[-3:, 0].tolist() == [13, 14, 15], "the last tokens keep their distance at L = 20"


def test_a_fix_changes_the_rows_and_nothing_else() -> None:
    """With a table that is clamped already, clamping is no change; interpolating is one, and the run stays as it is."""
    run = untrained(encoding=LearnedPositions(), evaluation_sequences=256)
    assert run.model.positions is not None
    with torch.no_grad():
        run.model.positions[16:] = run.model.positions[15]
    before = run.model.positions.detach().clone()
    (plain,) = observe(run.model, [40], 256, torch.Generator().manual_seed(0))
    assert observe_fixed(run, clamped, 40) == plain
    assert observe_fixed(run, interpolated, 40).attention != plain.attention
    assert torch.equal(run.model.positions, before)


def test_what_cannot_be_fixed_is_refused() -> None:
    with pytest.raises(BridgeError, match="has no position table to fix: give one with learned positions"):
        observe_fixed(untrained(), clamped, 40)
    with pytest.raises(BridgeError, match="length 16 is not beyond the trained ones: give more than 16"):
        observe_fixed(untrained(encoding=LearnedPositions()), clamped, 16)


def test_table_3_takes_the_size_of_an_alignment_whose_sign_is_free() -> None:
    """-W_Q and -W_V leave linear attention as it is and turn the sign of the cosine; with softmax they change it."""
    linear, softmax = untrained(attention="linear"), untrained()
    tokens = torch.randint(0, 20, (8, 12), generator=torch.Generator().manual_seed(1))
    for run, same in ((linear, True), (softmax, False)):
        before, aligned = run.model(tokens).scores, head_of_run(run).carrier().alignment(2)
        columns = table_3._columns((run,))
        with torch.no_grad():
            run.model.query.neg_(), run.model.value.neg_()
        assert torch.allclose(run.model(tokens).scores, before, atol=1e-5) is same
        assert head_of_run(run).carrier().alignment(2) == pytest.approx(-aligned)
        assert table_3._columns((run,))["|cos|"].value == pytest.approx(columns["|cos|"].value) == abs(aligned)


def test_rows_of_table_4_are_the_settings_that_they_name() -> None:
    rows = list(dict.fromkeys(printed.row for printed in target("table-4").printed))
    specs = dict(zip(rows, target("table-4").specs, strict=True))
    assert (specs["d 32"].width, specs["m 40"].vocabulary, specs["temperature 0.5"].temperature) == (32, 40, 0.5)
    assert specs["lengths 8-32"].train_lengths == (8, 32)
    assert specs["d 64"] == specs["m 20"] == specs["lengths 8-16"] == specs["temperature 1.0"] == run_spec()


def test_the_kernel_of_table_5_against_a_plain_sum() -> None:
    runs = tuple(Run(run.spec, run.model, (), run.evaluation, 0.0) for run in map(bare, target("table-5").specs))
    cells = target("table-5").measure(runs)
    for base in (1e3, 1e4, 1e5):
        theta = base ** (-np.arange(0, 64, 2) / 64)
        sums = [float(np.cos(lag * theta).mean()) for lag in range(49)]
        assert cells[f"base {base:g}", "g(1)/g(0)"].value == pytest.approx(sums[1], abs=1e-12)
        assert cells[f"base {base:g}", "max g(s)/g(0), s>=4"].value == pytest.approx(max(sums[4:]), abs=1e-12)


def bare(spec: RunSpec) -> Run:
    return untrained(**(spec.model_dump(exclude={"model"}) | {"steps": 0}))


def test_table_6_counts_pins_from_the_first_token_and_rows_from_the_first_untrained_one() -> None:
    """At L = 40 a peak 27, 28, 30 tokens back is position 12, 11, 9: mean 10.67, s.d. of these three 1.25."""
    runs = []
    for seed, back in enumerate((27, 28, 30)):
        run = untrained(encoding=LearnedPositions(), seed=seed, evaluation_sequences=64)
        evaluation = tuple(seen(n, 0.5, back if n == 40 else 2, 2) for n in EVALUATION_LENGTHS)
        assert run.model.positions is not None
        with torch.no_grad():
            run.model.positions.zero_()
            run.model.positions[:16, 0], run.model.positions[16:, 0] = 3.0, 5.0
        runs.append(Run(run.spec, run.model, (), evaluation, 0.0))
    row = dict(zip(table_6._COLUMNS, table_6._row(tuple(runs)), strict=True))
    assert row["pin"].value == pytest.approx(32 / 3) and row["pin s.d."].value == pytest.approx((14 / 9) ** 0.5)
    assert (row["norm in"].value, row["norm out"].value) == pytest.approx((3.0, 5.0))


def test_the_exact_law_of_a_heads_offset_can_agree_tie_and_deviate() -> None:
    """A head that puts .41 on offset -1 and .39 on -2."""
    bias = BucketBias.clamped(np.log([0.2, 0.41, 0.39]))
    theta, zero = RotarySchedule.geometric(2, 1e4), np.zeros((1, 2))
    head = Head.from_tokens(theta, zero, zero, np.ones(1), 1.0, bias=bias)

    def told(observed: list[float], error: float) -> tuple[str, ...]:
        attention, errors = tuple(observed), (error,) * 3
        one = Observation(
            length=3,
            sequences=100,
            offset=2,
            accuracy=0.9,
            attention=attention,
            attention_error=errors,
            by_head=(attention,),
            error_by_head=(errors,),
        )
        return table_8._one(head, one, 0)

    assert told([0.2, 0.41, 0.39], 0.001) == ("-1", "-1", "-1", "0.0000", "0.0000", "0.0000", "agrees")
    assert told([0.2, 0.395, 0.405], 0.01) == ("-2", "-1", "-1", "0.0200", "-0.0100", "0.0200", "agrees")
    assert told([0.2, 0.30, 0.50], 0.01)[-1] == "deviates"


@pytest.fixture(scope="module")
def four_heads(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Table 8's run of four heads at the paper's settings: trained in seconds."""
    store, spec = Store.open(tmp_path_factory.mktemp("heads") / "runs"), target("table-8").specs[1]
    sweep([spec], store)
    return store.load(spec)


def test_the_peak_of_four_heads_at_48_stands_at_minus_40_and_the_carriers_say_so(four_heads: Run) -> None:
    last = measures.at_length(four_heads, 48)
    assert (last.selected_offset, last.selected_by_head) == (-40, (-40,) * 4)
    assert (last.peak, last.accuracy) == pytest.approx((0.30, 0.19), abs=0.01)
    foretold = {(row[1], row[2]): row[3:] for row in table_8._foretold((four_heads,)).rows}
    means, exact = ([foretold[str(head), "48"][column] for head in range(4)] for column in (1, 2))
    assert (means.count("-40"), exact.count("-40")) == (3, 4)
    assert {row[-1] for row in foretold.values()} == {"agrees"}


def test_the_head_at_minus_21_at_32_is_a_tie(four_heads: Run) -> None:
    """Observed with -21 ahead; its weights have -2 ahead by less than the sampling error of the two heights."""
    observed, mean, exact, lead, seen_lead, error, verdict = table_8._foretold((four_heads,)).rows[0][3:]
    assert (observed, mean, exact, verdict) == ("-21", "-2", "-2", "agrees")
    assert 0 < float(lead) < float(error) and float(seen_lead) < 0
    draws = observe(four_heads.model, [32] * 8, 1024, torch.Generator().manual_seed(0))
    gaps = [one.by_head[0][2] - one.by_head[0][21] for one in draws]
    assert abs(np.mean(gaps) - float(lead)) < 3.5 * np.std(gaps, ddof=1) / 8**0.5


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """The runs of the tables below at the smoke preset."""
    store = Store.open(tmp_path_factory.mktemp("small") / "runs")
    sweep([spec for name in _COMPANIED for spec in target(name).specs_at(Preset.SMOKE)], store)
    return store


_COMPANIED = {
    "table-3": (4,),
    "table-4": (),
    "table-5": (),
    "table-6": (3, 6),
    "table-8": (10, 10),
    "text-claims": (3, 3),
}


@pytest.mark.parametrize("name", _COMPANIED)
def test_a_target_measures_all_its_cells_and_has_its_companions(small: Store, name: str) -> None:
    one = target(name)
    runs = tuple(small.load(spec) for spec in one.specs_at(Preset.SMOKE))
    cells = one.cells(runs, Preset.SMOKE)
    assert [cell.printed for cell in cells] == list(one.printed)
    assert all(np.isfinite(cell.measured.value) for cell in cells)
    companions = one.companions(runs)
    assert tuple(len(companion.rows) for companion in companions) == _COMPANIED[name]
    assert all(len(row) == len(companion.columns) for companion in companions for row in companion.rows)


def test_runs_of_the_text_stand_where_they_are_measured(small: Store) -> None:
    """The rotary runs by offset, the steps of training and the numbers of heads, each told by its cells."""
    one = target("text-claims")
    runs = tuple(small.load(spec) for spec in one.specs_at(Preset.SMOKE))
    cells = one.measure(runs)
    by = {(run.spec.offset, run.spec.second_offset, run.spec.steps, run.spec.heads, run.spec.seed): run for run in runs}
    for offset in (1, 2, 3):
        carrier = head_of_run(by[offset, None, 20, 1, 0]).carrier()
        assert cells["cos(m_Q, R_-K m_K)", f"K={offset}"].value == carrier.alignment(offset)
        assert cells["cos(m_Q, m_K)", f"K={offset}"].value == carrier.alignment(0)
    for offset in (2, 3, 4, 5):
        peak = measures.carrier_peak(by[offset, None, 20, 1, 0])
        assert cells["carrier peak", f"K={offset}"] == over_seeds([float(peak)])
    start, later = (measures.top_energy(by[2, None, steps, 1, 0]) for steps in (0, 20))
    assert cells["top-1 energy of W", "step 0"].value == start
    assert cells["top-1 energy of W", "step 200"].value == cells["top-1 energy of W", "step 4000"].value == later
    for heads in (1, 2):
        expected = measures.trained_accuracy([by[1, 3, 20, heads, 0]])
        assert cells["modes: in distribution", f"H={heads}"] == expected
