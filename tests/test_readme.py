"""The README's commands and its Python block run as they stand, in its order, in a folder of their own."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT, run_carrier

import theory

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


def test_every_carrier_command_runs(models: Path, tmp_path: Path) -> None:
    for name in ("stories260K.bin", "tok512.bin"):
        shutil.copy(models / name, tmp_path)
    ours = [line for line in commands() if line.startswith("carrier ")]
    assert len(ours) >= 10
    for line in ours:
        name, *arguments = shlex.split(line)
        assert shlex.join([name, *arguments]) == line, f"{line}: a shell would read more into it than words"
        done = run_carrier(*arguments, cwd=tmp_path)
        assert done.returncode == 0, f"{line}: {done.stderr}"
        assert done.stdout, line
    assert list((tmp_path / "out").glob("rope-k3-d32-seed0-*-offset-3.png"))


def test_the_python_blocks_say_what_they_print(tmp_path: Path) -> None:
    printed = [run_python(block, tmp_path).splitlines() for block in blocks("python")]
    (accuracies,), (curve, facts), (plain, scaled, best) = printed
    assert len(re.findall(r"'[01]\.\d\d'", accuracies)) == 8
    values = [float(value) for value in curve.strip("[]").split()]
    assert facts == "8 None" and values == sorted(values, reverse=True) and values[0] < 1
    assert plain.startswith("101 [0.57881184898954146") and scaled.startswith("101 [0.63046006036108845")
    assert abs(float(best) - 0.296) < 1e-4


def test_the_sweep_on_slurm_runs_where_its_cluster_is_a_local_one(tmp_path: Path) -> None:
    """dask-jobqueue's cluster is played by Dask's local one: all else is the README's own text."""
    (tmp_path / "dask_jobqueue.py").write_text(
        "from distributed import LocalCluster\n"
        "class SLURMCluster(LocalCluster):\n"
        "    def __init__(self, **options):\n"
        "        super().__init__(n_workers=2, threads_per_worker=1, dashboard_address=None)\n"
        "    def scale(self, n=None, jobs=32):\n"
        "        assert jobs == 32\n"
        "        return super().scale(2 if n is None else n)\n"
    )
    laptop, slurm = next(block for block in blocks("python") if "local_pool" in block), blocks("python slurm")[0]
    setup = laptop[: laptop.index("if __name__")]
    count = 'print(sum(store.has(spec) for store in [Store(Path("runs"))] for spec in specs))'
    assert run_python(f"{setup}{slurm}    {count}\n", tmp_path) == "8"


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


def test_every_public_name_of_the_theory_in_the_readme_is_one() -> None:
    table = README[README.index("What else `theory` answers") : README.index("## What is where")]
    names = set(re.findall(r"`([A-Za-z_]+)`", table)) - {"theory", "rope_parameters"}
    assert len(names) > 30 and names <= set(theory.__all__)


def test_links_exist_and_every_command_but_demo_is_shown() -> None:
    for link in re.findall(r"\]\(([^)]+)\)", README):
        assert link.startswith("https://") or (ROOT / link).exists(), link
    used = {shlex.split(line)[1] for line in commands() if line.startswith("carrier ")}
    assert used == {"verify", "reproduce", "train", "runs", "predict", "inspect", "design", "repair"}


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
