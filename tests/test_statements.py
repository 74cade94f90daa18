"""The statements: verdicts as recorded, and a machinery that does not pass what it should not."""

import ast
import shutil
import subprocess
import sys
from dataclasses import dataclass, replace
from functools import cache
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
import sympy

import theory.statements
from bridge.findings import findings
from theory.errors import TheoryError
from theory.statements import STATEMENTS, statement
from theory.statements.statement import (
    PRINTED,
    Assumption,
    Counterexample,
    ProofStep,
    Statement,
    Verdict,
    Wording,
    check,
    unmet,
    vanishes,
)

FOLDER = Path(theory.statements.__file__).parent
checked = cache(check)
FILES = sorted(path.stem for path in FOLDER.glob("*.py") if path.stem not in ("__init__", "statement"))


def test_one_file_a_statement_and_one_statement_a_file():
    in_files = [import_module(f"theory.statements.{name}").STATEMENT for name in FILES]
    assert {id(entry) for entry in in_files} == {id(entry) for entry in STATEMENTS}
    assert [entry.row for entry in STATEMENTS] == sorted({entry.row for entry in STATEMENTS})
    assert len(in_files) == len(STATEMENTS)
    for name, entry in zip(FILES, in_files, strict=True):
        assert name.startswith(entry.id.replace("-", "_") + "_")


def test_no_proof_step_is_true_by_construction():
    """What confirms a step is computed: no constant stands in its place."""
    for name in FILES:
        for node in ast.walk(ast.parse((FOLDER / f"{name}.py").read_text())):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "ProofStep":
                confirmed = [*node.args[1:2], *(k.value for k in node.keywords if k.arg == "confirmed")]
                assert len(confirmed) == 1 and not isinstance(confirmed[0], ast.Constant), ast.unparse(node)


def test_ids_and_labels_are_unique():
    assert len({entry.id for entry in STATEMENTS}) == len(STATEMENTS)
    assert len({entry.label for entry in STATEMENTS}) == len(STATEMENTS)


def test_an_unknown_id_names_the_known_ones():
    assert statement("lemma-1").label == "Lemma 1, equivariance"
    with pytest.raises(TheoryError, match=rf"no statement 'lemma-9'.*{', '.join(entry.id for entry in STATEMENTS)}"):
        statement("lemma-9")


@pytest.mark.parametrize("entry", STATEMENTS, ids=lambda entry: entry.id)
@pytest.mark.parametrize("seed", [None, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (1, 2))])
def test_verdicts_are_the_recorded_ones(entry, seed):
    """On the cases that the command draws, and on others."""
    result = checked(entry) if seed is None else check(entry, seed=seed)
    assert result.agrees, {wording: finding.method for wording, finding in result.wordings.items()}
    assert result.cases == 16
    assert Verdict.NOT_DECIDED not in {finding.verdict for finding in result.wordings.values()}
    for shown in result.counterexamples:
        assert shown.breaks and shown.numbers, shown.text
        assert all(np.isfinite(value) for value in shown.numbers.values())


@pytest.mark.parametrize("entry", STATEMENTS, ids=lambda entry: entry.id)
def test_each_assumption_is_dropped_by_a_case_that_meets_the_others(entry):
    dropped = [example for example in entry.counterexamples() if example.dropped != PRINTED]
    assert {example.dropped for example in dropped} == {assumption.id for assumption in entry.assumptions}
    for example in dropped:
        assert [assumption.id for assumption in unmet(entry, example.case)] == [example.dropped]


ROWS = {
    "lemma-1": ("proved", "proved"),
    "corollary-1": ("refuted", "proved given a cited theorem"),
    "lemma-2": ("proved", "proved given a cited theorem"),
    "proposition-1": ("refuted", "proved given a cited theorem"),
    "residual-variance": ("refuted", "proved"),
    "corollary-2": ("refuted", "proved"),
    "exact-law": (None, "proved"),
    "windowed-exact-law": (None, "proved"),
    "mean-of-the-inverse": (None, "proved"),
    "equidistribution-limit": (None, "proved given a cited theorem"),
    "accuracy": (None, "proved"),
    "proposition-2": ("refuted", "proved"),
    "full-sequence-reading": ("refuted", "proved"),
    "carrier-baseline": ("refuted", "proved"),
    "linear-interpolant": ("refuted", "certified"),
    "base-sweep": ("refuted", "certified"),
    "width": ("refuted", "certified"),
    "heads": ("needs a run", "certified"),
    "linear-control": ("needs a run", "needs a run"),
    "best-carrier": (None, "certified"),
    "position-inversion": ("refuted", "proved"),
    "inversion-limit": ("refuted", "proved given a cited theorem"),
    "token-inversion": ("refuted", "proved"),
    "aliasing": ("refuted", "proved"),
    "middle-range": ("refuted", "proved"),
    "swap-scores": ("proved", "proved"),
    "positional-discrepancy": ("refuted", "proved given a cited theorem"),
    "symbolic-discrepancy": ("refuted", "proved"),
    "modular-head": ("proved", "proved"),
    "no-period": ("proved given a cited theorem", "proved given a cited theorem"),
    "lookback-horizon": ("refuted", "proved given a cited theorem"),
}
"""Every row of the list of statements, in its order: what is known of the printed and of the amended wording."""


def test_every_row_has_a_statement_and_every_statement_a_row():
    recorded = {e.id: (e.printed and e.printed.recorded.value, e.amended.recorded.value) for e in STATEMENTS}
    assert list(recorded) == list(ROWS)
    assert recorded == ROWS


def test_statements_are_checked_without_torch():
    code = (
        "import sys; from theory.statements import statement; from theory.statements.statement import check; "
        "assert check(statement('corollary-2')).agrees; "
        "assert not {'torch', 'empirics', 'bridge'} & {name.split('.')[0] for name in sys.modules}"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=FOLDER.parents[1], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_vanishes_in_both_directions():
    x, y = sympy.symbols("x y", real=True)
    assert vanishes(sympy.sin(x + y) - sympy.sin(x) * sympy.cos(y) - sympy.cos(x) * sympy.sin(y))
    assert vanishes(1 / (1 + sympy.exp(-x)) - sympy.exp(x) / (1 + sympy.exp(x)))
    assert not vanishes(sympy.sin(x + y) - sympy.sin(x) * sympy.cos(y) + sympy.cos(x) * sympy.sin(y))
    assert not vanishes(1 - sympy.cos(x) - sympy.sin(x / 2) ** 2)


@dataclass(frozen=True)
class Square:
    """A toy case: the claim is x^2 = |x| x, which needs x >= 0."""

    x: float


def wording(**changes) -> Wording[Square]:
    fields = {
        "claim": "x^2 = |x| x",
        "recorded": Verdict.PROVED,
        "residual": lambda case: abs(case.x**2 - abs(case.x) * case.x),
        "prove": lambda: (ProofStep("by hand", True),),
    }
    return Wording(**fields | changes)


def toy(amended: Wording[Square] | None = None, printed: Wording[Square] | None = None, **changes) -> Statement[Square]:
    fields = {
        "row": 0,
        "id": "toy",
        "label": "Toy",
        "printed": printed or wording(),
        "amended": amended or wording(),
        "assumptions": (Assumption("positive", "x >= 0", lambda case: case.x >= 0),),
        "draw": lambda rng: Square(float(rng.uniform(0, 1))),
        "tolerance": 1e-12,
        "tolerance_reason": "exact",
        "counterexamples": lambda: (Counterexample("positive", "x = -1", Square(-1.0), {"x": -1.0}),),
    }
    return Statement(**fields | changes)


def amended_verdict(entry: Statement[Square]) -> Verdict:
    return check(entry).amended.verdict


def test_a_sound_statement_is_proved():
    result = check(toy())
    assert result.amended.verdict is result.printed.verdict is Verdict.PROVED
    assert result.agrees and result.cases == 16
    assert "1 of 1 proof steps" in result.amended.method


@pytest.mark.parametrize(
    ("changes", "verdict"),
    [
        ({"prove": lambda: (ProofStep("fine", True), ProofStep("broken", False))}, Verdict.NOT_DECIDED),
        ({"prove": lambda: ()}, Verdict.NOT_DECIDED),
        ({"residual": None}, Verdict.NOT_DECIDED),
        ({"residual": lambda case: float("nan")}, Verdict.NOT_DECIDED),
        ({"residual": lambda case: 1e-11 if case.x >= 0 else 1.0}, Verdict.NOT_DECIDED),
        ({"residual": lambda case: 1.0}, Verdict.REFUTED),
        ({"residual": lambda case: 0.0}, Verdict.NOT_DECIDED),
        ({"prove": None}, Verdict.CHECKED),
        ({"cited": ("Lindemann 1882",)}, Verdict.PROVED_GIVEN_CITED),
        ({"prove": lambda: (ProofStep("ball", True, "arb"),)}, Verdict.CERTIFIED),
        ({"target": "table-1"}, Verdict.NEEDS_RUN),
    ],
    ids=["broken-step", "no-step", "no-residual", "nan", "slightly-off", "false", "never-breaks", "numeric", "cited",
         "arb", "run"],
)  # fmt: skip
def test_the_verdict_follows_from_what_was_found(changes, verdict):
    result = check(toy(wording(**changes)))
    assert result.amended.verdict is verdict
    assert result.agrees is (verdict is Verdict.PROVED)


def test_counterexamples_that_do_not_break_leave_it_undecided():
    meets_all = Counterexample("positive", "x = 1 meets the assumption", Square(1.0), {"x": 1.0})
    assert amended_verdict(toy(counterexamples=lambda: (meets_all,))) is Verdict.NOT_DECIDED
    assert amended_verdict(toy(counterexamples=tuple)) is Verdict.NOT_DECIDED
    second = Assumption("small", "|x| <= 1/2", lambda case: abs(case.x) <= 0.5)
    both = toy(assumptions=(toy().assumptions[0], second), draw=lambda rng: Square(0.3))
    assert amended_verdict(both) is Verdict.NOT_DECIDED


def test_cases_outside_the_assumptions_are_not_counted():
    strays = toy(draw=lambda rng: Square(float(rng.uniform(-1, 1))))
    result = check(strays)
    assert 0 < result.cases < 16
    assert result.amended.verdict is Verdict.NOT_DECIDED
    assert check(toy(), cases=0).amended.verdict is Verdict.NOT_DECIDED


def test_the_printed_wording_is_refuted_only_by_a_case_that_refutes_it():
    printed = wording(recorded=Verdict.REFUTED, residual=lambda case: float(abs(case.x) == 2), prove=None)
    two = Counterexample(PRINTED, "x = 2", Square(2.0), {"x": 2.0})
    entry = toy(printed=printed, counterexamples=lambda: (*toy().counterexamples(), two))
    assert check(entry).printed.verdict is Verdict.REFUTED
    harmless = replace(two, case=Square(1.0))
    weak = replace(entry, counterexamples=lambda: (*toy().counterexamples(), harmless))
    assert check(weak).printed.verdict is Verdict.NOT_DECIDED
    outside = replace(two, case=Square(-2.0))
    beyond = check(replace(entry, counterexamples=lambda: (*toy().counterexamples(), outside)))
    assert beyond.printed.verdict is Verdict.NOT_DECIDED
    assert not beyond.counterexamples[-1].breaks


def test_undecided_never_agrees_even_if_recorded():
    undecided = wording(recorded=Verdict.NOT_DECIDED, residual=None)
    assert not check(toy(undecided)).agrees


def test_assumption_ids_are_their_own():
    with pytest.raises(TheoryError, match="ids of their own"):
        toy(assumptions=toy().assumptions * 2)


def test_a_claim_of_ours_has_one_wording():
    ours = check(replace(toy(), printed=None))
    assert list(ours.wordings) == ["amended"] and ours.agrees and ours.printed is None


def test_the_page_of_findings_is_that_of_the_statements():
    """`make findings` writes it."""
    page = (FOLDER.parents[1] / "docs" / "findings.md").read_text()
    assert page == findings([checked(entry) for entry in STATEMENTS])
    assert all(f"`carrier verify {entry.id}`" in page for entry in STATEMENTS)


def test_a_new_file_is_a_statement_with_no_other_edit(tmp_path):
    """In a copy of the package: `verify` decides it and the page of findings has it."""
    for package in ("theory", "bridge"):
        shutil.copytree(FOLDER.parents[1] / package, tmp_path / package)
    source = (FOLDER / "lemma_1_equivariance.py").read_text()
    added = source.replace('id="lemma-1"', 'id="added"').replace("row=1,", "row=99,").replace("Lemma 1, equi", "Equi")
    (tmp_path / "theory" / "statements" / "added_claim.py").write_text(added)
    code = (
        "from theory.statements import STATEMENTS, statement; from theory.statements.statement import check; "
        "from bridge.findings import findings; assert STATEMENTS[-1].id == 'added'; "
        "page = findings([check(statement('added'))]); assert '`carrier verify added`' in page"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
