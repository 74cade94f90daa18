"""Runs on disk: one folder a run, safetensors and JSON, no pickle.

    <root>/<spec id>/spec.json            the RunSpec
                     weights.safetensors  the trained weights
                     history.jsonl        loss against step
                     evaluation.json      what the model did directly after training
                     run.json             versions, machine, seconds, sha256 of the other files

A run is written to a temporary folder, flushed and renamed, so that a folder with a spec's
name is whole or has been damaged since; a damaged one is named and left as it is.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import shutil
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError
from safetensors import SafetensorError
from safetensors.torch import load, save

from empirics.errors import DamagedRun, EmpiricsError
from empirics.head import AttentionHead
from empirics.observe import Observation
from empirics.spec import RunSpec, read_spec
from empirics.train import LossPoint, Run

_EVALUATION = TypeAdapter(tuple[Observation, ...])
_RECORD = "run.json"


class RunRecord(BaseModel):
    """run.json: under what conditions a run was made, and what its files must be."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    id: str
    torch: str
    python: str
    machine: str
    threads: int
    seconds: float
    sha256: dict[str, str]


@dataclass(frozen=True)
class Store:
    """A folder of runs. Raises EmpiricsError where it cannot be written."""

    root: Path

    @classmethod
    def open(cls, root: Path) -> Store:
        """The store at a folder that is made where it is absent, checked to be writable."""
        try:
            root.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=root):
                pass
        except OSError as error:
            raise EmpiricsError(f"cannot write to {root}: {error.strerror}; choose another folder") from None
        return cls(root)

    def path(self, spec: RunSpec) -> Path:
        """Where the run of a spec lies, whether or not it is there."""
        return self.root / spec.id

    def has(self, spec: RunSpec) -> bool:
        """Whether the run is there and whole. Raises DamagedRun where it is there and is not."""
        if not self.path(spec).exists():
            return False
        read_record(self.path(spec))
        return True

    def load(self, spec: RunSpec) -> Run:
        """The run of a spec."""
        return load_run(self.path(spec))

    def save(self, run: Run) -> Path:
        """Write a run whole or not at all. A run that is already there stays."""
        target = self.path(run.spec)
        files = {
            "spec.json": run.spec.to_json().encode(),
            "weights.safetensors": save({k: v.contiguous() for k, v in run.model.state_dict().items()}),
            "history.jsonl": "".join(json.dumps(asdict(point)) + "\n" for point in run.history).encode(),
            "evaluation.json": _EVALUATION.dump_json(run.evaluation, indent=1),
        }
        record = RunRecord(
            id=run.spec.id,
            torch=torch.__version__,
            python=platform.python_version(),
            machine=f"{platform.system()} {platform.machine()}",
            threads=torch.get_num_threads(),
            seconds=round(run.seconds, 3),
            sha256={name: hashlib.sha256(data).hexdigest() for name, data in files.items()},
        )
        partial = Path(tempfile.mkdtemp(prefix=f".{run.spec.id}-", dir=self.root))
        try:
            for name, data in {**files, _RECORD: record.model_dump_json(indent=1).encode()}.items():
                _write_flushed(partial / name, data)
            partial.chmod(0o755)
            if not target.exists():
                partial.rename(target)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
        return target

    def paths(self) -> tuple[Path, ...]:
        """Every run folder of the store, by name."""
        folders = (path for path in self.root.iterdir() if path.is_dir() and not path.name.startswith("."))
        return tuple(sorted(path for path in folders if (path / _RECORD).exists() or (path / "spec.json").exists()))


def is_run(path: Path) -> bool:
    """Whether a path is meant as a run folder, whole or not."""
    return path.is_dir()


def load_run(path: Path) -> Run:
    """Read a run. Raises DamagedRun where a file is not what run.json says it was."""
    read_record(path)
    spec = read_spec((path / "spec.json").read_text())
    model = AttentionHead(spec)
    try:
        model.load_state_dict(load((path / "weights.safetensors").read_bytes()))
        history = tuple(LossPoint(**json.loads(line)) for line in (path / "history.jsonl").read_text().splitlines())
        evaluation = _EVALUATION.validate_json((path / "evaluation.json").read_bytes())
    except (SafetensorError, RuntimeError, ValidationError, TypeError, json.JSONDecodeError) as error:
        raise DamagedRun(f"run {path} cannot be read ({_one_line(error)}); it was left as it is") from None
    return Run(spec, model, history, evaluation, read_record(path).seconds)


def read_record(path: Path) -> RunRecord:
    """run.json of a run whose files all have the checksum written there.

    Raises EmpiricsError where there is no run, DamagedRun where a file is missing, cut or altered
    or where the folder holds the run of another spec.
    """
    if not path.is_dir():
        raise EmpiricsError(f"no run at {path}: give the folder of a run, `carrier runs list` shows them")
    try:
        record = RunRecord.model_validate_json((path / _RECORD).read_bytes())
    except FileNotFoundError:
        raise DamagedRun(f"{path} has no {_RECORD}, so it is no finished run; it was left as it is") from None
    except ValidationError:
        raise DamagedRun(f"{path / _RECORD} is damaged; it was left as it is") from None
    for name, expected in sorted(record.sha256.items()):
        file = path / name
        if not file.is_file():
            raise DamagedRun(f"{file} is missing; the run was left as it is")
        if hashlib.sha256(file.read_bytes()).hexdigest() != expected:
            raise DamagedRun(
                f"{file} was altered or cut: its sha256 is not that of {_RECORD}; the run was left as it is"
            )
    held = read_spec((path / "spec.json").read_text()).id
    if not held == record.id == path.resolve().name:
        raise DamagedRun(f"{path} holds the run of another spec, {held}: rename the folder to that or move it away")
    return record


def _write_flushed(path: Path, data: bytes) -> None:
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _one_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0]
