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

import contextlib
import errno
import hashlib
import json
import os
import platform
import shutil
import tempfile
import time
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
_FILES = ("spec.json", "weights.safetensors", "history.jsonl", "evaluation.json")
_PARTIAL = ".partial-"
_STALE_SECONDS = 3600


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
            for partial in root.glob(_PARTIAL + "*"):
                # Left by a process that was killed while it wrote, which takes milliseconds.
                if time.time() - partial.stat().st_mtime > _STALE_SECONDS:
                    shutil.rmtree(partial, ignore_errors=True)
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
        try:
            self._write(target, {**files, _RECORD: record.model_dump_json(indent=1).encode()})
        except OSError as error:
            raise EmpiricsError(f"cannot write run {run.spec.id} to {self.root}: {error.strerror}") from None
        return target

    def _write(self, target: Path, files: dict[str, bytes]) -> None:
        """A temporary folder, flushed, then renamed; where another process was first, its run stays."""
        partial = Path(tempfile.mkdtemp(prefix=_PARTIAL, dir=self.root))
        try:
            for name, data in files.items():
                _write_flushed(partial / name, data)
            _flush_folder(partial)
            partial.chmod(0o755)
            if not target.exists():
                with contextlib.suppress(FileExistsError):
                    _rename(partial, target)
                _flush_folder(self.root)
        finally:
            shutil.rmtree(partial, ignore_errors=True)

    def paths(self) -> tuple[Path, ...]:
        """Every folder of the store that is not hidden, by name: a run, or the rest of one."""
        return tuple(sorted(path for path in self.root.iterdir() if path.is_dir() and not path.name.startswith(".")))


def load_run(path: Path) -> Run:
    """Read a run. Raises DamagedRun where a file is not what run.json says it was."""
    record = read_record(path)
    spec = read_spec((path / "spec.json").read_text())
    model = AttentionHead(spec)
    try:
        model.load_state_dict(load((path / "weights.safetensors").read_bytes()))
        history = tuple(LossPoint(**json.loads(line)) for line in (path / "history.jsonl").read_text().splitlines())
        evaluation = _EVALUATION.validate_json((path / "evaluation.json").read_bytes())
    except (SafetensorError, RuntimeError, ValidationError, TypeError, json.JSONDecodeError) as error:
        raise DamagedRun(f"run {path} cannot be read ({_one_line(error)}); it was left as it is") from None
    return Run(spec, model, history, evaluation, record.seconds)


def read_record(path: Path) -> RunRecord:
    """run.json of a run whose files all have the checksum written there.

    Raises EmpiricsError where there is no run, DamagedRun where a file is missing, cut or altered
    or where the folder holds the run of another spec.
    """
    if not path.is_dir():
        raise EmpiricsError(f"no run at {path}: give the folder of a run, `carrier runs list` shows them")
    try:
        record = RunRecord.model_validate_json((path / _RECORD).read_bytes())
        if record.sha256.keys() != set(_FILES):
            raise DamagedRun(f"{path / _RECORD} does not list {', '.join(_FILES)}; the run was left as it is")
        for name, expected in record.sha256.items():
            if not (path / name).exists():
                raise DamagedRun(f"{path / name} is missing; the run was left as it is")
            if hashlib.sha256((path / name).read_bytes()).hexdigest() != expected:
                raise DamagedRun(
                    f"{path / name} was altered or cut: not the sha256 of {_RECORD}; the run was left as it is"
                )
    except FileNotFoundError:
        raise DamagedRun(f"{path} has no {_RECORD}, so it is no finished run; it was left as it is") from None
    except ValidationError:
        raise DamagedRun(f"{path / _RECORD} is damaged; it was left as it is") from None
    except OSError as error:
        raise DamagedRun(f"a file of {path} cannot be read ({error.strerror}); it was left as it is") from None
    held = read_spec((path / "spec.json").read_text()).id
    if not held == record.id == path.resolve().name:
        raise DamagedRun(f"{path} holds the run of another spec, {held}: rename the folder to that or move it away")
    return record


def _write_flushed(path: Path, data: bytes) -> None:
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _flush_folder(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _rename(partial: Path, target: Path) -> None:
    """Rename a folder. Raises FileExistsError where the target has come to be and is not empty."""
    try:
        partial.rename(target)
    except OSError as error:
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
            raise FileExistsError(error.errno, error.strerror) from None
        raise


def _one_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0]
