"""Shape checks for every annotated function and dataclass; the command as a person runs it; shared runs."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from multiprocessing.process import BaseProcess
from pathlib import Path

import jaxtyping

jaxtyping.install_import_hook(["theory", "empirics", "bridge"], "shapes.checked")

import carrier_process  # noqa: E402
import pytest  # noqa: E402
from hypothesis import settings  # noqa: E402

from empirics.spec import LearnedPositions, RunSpec, run_spec  # noqa: E402
from empirics.store import Store  # noqa: E402
from empirics.sweep import sweep  # noqa: E402
from empirics.train import Run  # noqa: E402

# The same cases on every machine and at every call; HYPOTHESIS_PROFILE=fresh draws others. No case is timed.
settings.register_profile("same", derandomize=True, deadline=None)
settings.register_profile("fresh", deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "same"))

ROOT = Path(__file__).resolve().parent.parent
TIMEOUT = 300
"""Seconds that a command may take."""
TINY = {"steps": 20, "batch": 16, "evaluation_sequences": 32}


def run_carrier(
    *arguments: str, env: Mapping[str, str] | None = None, cwd: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Run `carrier` in a process of its own, without a terminal; in a new interpreter where an environment is given."""
    command = [sys.executable, "-c", "from bridge.cli import main; main()", *arguments]
    if env is None:
        return _forked_carrier(command, arguments, cwd or ROOT)
    return subprocess.run(
        command,
        cwd=cwd or ROOT,
        env=dict(env) | {"PYTHONPATH": os.pathsep.join([str(ROOT), env.get("PYTHONPATH", "")])},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
    )


def forked(target: Callable[..., object], *arguments: object) -> BaseProcess:
    """A process that can be killed, forked from one that has loaded everything and done nothing."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([*carrier_process.LOADED, "noted"])
    process = context.Process(target=target, args=arguments)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
        process.start()
    return process


def _forked_carrier(command: list[str], arguments: tuple[str, ...], folder: Path) -> subprocess.CompletedProcess[str]:
    environment = dict(os.environ) | {"PYTHONPATH": str(ROOT)}
    with tempfile.NamedTemporaryFile("r") as stdout, tempfile.NamedTemporaryFile("r") as stderr:
        process = forked(carrier_process.run, arguments, folder, environment, Path(stdout.name), Path(stderr.name))
        process.join(TIMEOUT)
        if process.exitcode is None:
            process.kill()
            raise subprocess.TimeoutExpired(command, TIMEOUT)
        return subprocess.CompletedProcess(command, process.exitcode, stdout.read(), stderr.read())


def without_training_extra(folder: Path) -> dict[str, str]:
    """An environment in which torch and what comes with it cannot be imported."""
    (folder / "sitecustomize.py").write_text(
        """
import sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("torch", "safetensors"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Absent())
"""
    )
    return dict(os.environ) | {"PYTHONPATH": str(folder)}


@pytest.fixture(scope="session")
def models() -> Path:
    """Small real checkpoints, read from beside the repository and never committed."""
    folder = Path(os.environ.get("CARRIER_MODELS", ROOT.parent / "shared" / "models"))
    if not (folder / "stories260K.bin").is_file():
        pytest.skip(f"no real checkpoints at {folder}: set CARRIER_MODELS to their folder")
    return folder


@pytest.fixture(scope="session")
def paper_store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """The two runs of the main job at the paper's own settings: K=2, seed 0, rotary and learned positions."""
    store = Store.open(tmp_path_factory.mktemp("paper") / "runs")
    sweep([rotary_spec(), learned_spec()], store)
    return store


@pytest.fixture(scope="session")
def rotary_run(paper_store: Store) -> Run:
    """K=2, seed 0, rotary, at the paper's settings."""
    return paper_store.load(rotary_spec())


@pytest.fixture(scope="session")
def learned_run(paper_store: Store) -> Run:
    """K=2, seed 0, learned positions, at the paper's settings."""
    return paper_store.load(learned_spec())


@pytest.fixture(scope="session")
def tiny_store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """A store with one rotary and one learned-position run that took a second to train."""
    store = Store.open(tmp_path_factory.mktemp("tiny") / "runs")
    sweep([tiny_spec(), tiny_spec(encoding=LearnedPositions())], store)
    return store


def rotary_spec() -> RunSpec:
    """The reference setup at K=2, seed 0."""
    return run_spec(offset=2, seed=0)


def learned_spec() -> RunSpec:
    """The same with learned positions."""
    return run_spec(encoding=LearnedPositions(), offset=2, seed=0)


def tiny_spec(**fields: object) -> RunSpec:
    """A run of twenty small steps."""
    return run_spec(**(TINY | fields))


@pytest.fixture
def unchecked(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a person calls it: the shape checks of this suite do not stand before the theory's own errors."""
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
