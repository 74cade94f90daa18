"""The measurements behind the paper's tables, on runs whose numbers are known by construction."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from bridge.compare import Verdict
from bridge.paper import measures, target
from bridge.paper.target import Preset, grid, table
from empirics.head import AttentionHead
from empirics.observe import Observation
from empirics.spec import EVALUATION_LENGTHS, run_spec
from empirics.train import Run


def seen(length: int, peak: float, at: int, offset: int, accuracy: float = 0.9) -> Observation:
    """An observation whose highest attention is `peak`, `at` tokens back."""
    attention = np.full(length, (1 - peak) / (length - 1))
    attention[at] = peak
    errors = (0.001,) * length
    return Observation(
        length=length,
        sequences=100,
        offset=offset,
        accuracy=accuracy,
        attention=tuple(attention.tolist()),
        attention_error=errors,
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
