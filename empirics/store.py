"""Runs on disk: one folder a finished run, one file a run in training; safetensors and JSON, no pickle.

    <root>/<spec id>/spec.json            the spec
                     weights.safetensors  the trained weights
                     history.jsonl        loss against step
                     evaluation.json      what the model did directly after training
                     run.json             versions, machine, device, seconds, sha256 of the other files
    <root>/.state-<spec id>.safetensors   the checkpoint: weights, optimizer, generator; in its header spec, step,
                                          history, and a sha256 over these and the tensors

Both are written under a temporary name, flushed and renamed, so that what has a spec's name is
whole or has been damaged since; a damaged one is named and left as it is.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import platform
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TypeVar, overload

import torch
from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError
from safetensors import SafetensorError, safe_open
from safetensors.torch import load, save
from torch import nn

from empirics.atomic import clear, write_file, write_folder
from empirics.errors import DamagedRun, EmpiricsError
from empirics.head import AttentionHead
from empirics.learner import State
from empirics.observe import Observation
from empirics.observe_sequences import SequenceObservation
from empirics.observe_transformer import TransformerObservation
from empirics.sequence_spec import SequenceSpec
from empirics.spec import RunSpec, TransformerSpec
from empirics.specs import Spec, read_spec
from empirics.train import AnyRun, Checkpoint, LossPoint, Run, SequenceRun, TransformerRun
from empirics.transformer import Transformer

_Model = TypeVar("_Model", bound=nn.Module)

_EVALUATION = TypeAdapter(tuple[Observation, ...])
_TRANSFORMER_EVALUATION = TypeAdapter(tuple[TransformerObservation, ...])
_SEQUENCE_EVALUATION = TypeAdapter(tuple[SequenceObservation, ...])
_RECORD = "run.json"
_FILES = ("spec.json", "weights.safetensors", "history.jsonl", "evaluation.json")
_STATE = (".state-", ".safetensors")


class RunRecord(BaseModel):
    """run.json: under what conditions a run was made, and what its files must be."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    id: str
    torch: str
    python: str
    machine: str
    device: str
    learner: str
    threads: int
    seconds: float
    sha256: dict[str, str]


class CheckpointRecord(BaseModel):
    """What the header of a checkpoint says of its tensors."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    spec: str
    step: int
    learner: str
    history: tuple[LossPoint, ...]


@dataclass(frozen=True)
class Store:
    """A folder of runs. Raises EmpiricsError where it cannot be written."""

    root: Path

    @classmethod
    def open(cls, root: Path) -> Store:
        """The store at a folder that is made where it is absent, checked to be writable, cleared of leavings."""
        store = cls(root)
        try:
            root.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=root):
                pass
            store._clear()
        except OSError as error:
            raise EmpiricsError(f"cannot write to {root}: {error.strerror}; choose another folder") from None
        return store

    def path(self, spec: Spec) -> Path:
        """Where the run of a spec lies, whether or not it is there."""
        return self.root / spec.id

    def checkpoint_path(self, spec: Spec) -> Path:
        """Where the checkpoint of a spec lies, whether or not it is there."""
        return self.root / spec.id.join(_STATE)

    def paths(self) -> tuple[Path, ...]:
        """Every folder of the store that is not hidden, by name: a run, or the rest of one."""
        return tuple(sorted(path for path in self.root.iterdir() if path.is_dir() and not path.name.startswith(".")))

    def has(self, spec: Spec) -> bool:
        """Whether the run is there and whole. Raises DamagedRun where it is there and is not."""
        if not self.path(spec).exists():
            return False
        read_record(self.path(spec))
        return True

    @overload
    def load(self, spec: RunSpec) -> Run: ...
    @overload
    def load(self, spec: TransformerSpec) -> TransformerRun: ...
    @overload
    def load(self, spec: SequenceSpec) -> SequenceRun: ...
    def load(self, spec: Spec) -> AnyRun:
        """The run of a spec."""
        return load_run(self.path(spec))

    def save(self, run: AnyRun) -> Path:
        """Write a run whole or not at all, then remove its checkpoint. A run that is already there stays."""
        target, device = self.path(run.spec), next(run.model.parameters()).device.type
        files = {
            "spec.json": run.spec.to_json().encode(),
            "weights.safetensors": save({k: v.contiguous() for k, v in run.model.state_dict().items()}),
            "history.jsonl": "".join(json.dumps(asdict(point)) + "\n" for point in run.history).encode(),
            "evaluation.json": _evaluation(run),
        }
        record = RunRecord(
            id=run.spec.id,
            torch=torch.__version__,
            python=platform.python_version(),
            machine=f"{platform.system()} {platform.machine()}",
            device=device,
            learner=run.learner,
            threads=torch.get_num_threads(),
            seconds=round(run.seconds, 3),
            sha256={name: hashlib.sha256(data).hexdigest() for name, data in files.items()},
        )
        try:
            write_folder(target, {**files, _RECORD: record.model_dump_json(indent=1).encode()})
            self.checkpoint_path(run.spec).unlink(missing_ok=True)
        except OSError as error:
            raise EmpiricsError(f"cannot write run {run.spec.id} to {self.root}: {error.strerror}") from None
        return target

    def keep(self, checkpoint: Checkpoint) -> None:
        """Write a checkpoint whole or not at all, in place of the one before."""
        spec = checkpoint.spec
        record = CheckpointRecord(
            spec=spec.to_json(), step=checkpoint.step, learner=checkpoint.learner, history=checkpoint.history
        )
        text, state = record.model_dump_json(), {name: value.contiguous() for name, value in checkpoint.state.items()}
        data = save(state, {"checkpoint": text, "sha256": _sha256(text, state)})
        try:
            write_file(self.checkpoint_path(spec), data)
        except OSError as error:
            raise EmpiricsError(
                f"cannot write a checkpoint of run {spec.id} to {self.root}: {error.strerror}"
            ) from None

    def checkpoint(self, spec: Spec) -> Checkpoint | None:
        """The last checkpoint of a run in training. Raises DamagedRun where it is not what was kept."""
        path = self.checkpoint_path(spec)
        try:
            with safe_open(path, framework="pt") as file:
                header, state = file.metadata() or {}, {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            text = header["checkpoint"]
            if header["sha256"] != _sha256(text, state):
                raise ValueError("altered since it was written")
            record = CheckpointRecord.model_validate_json(text)
            if record.spec != spec.to_json():
                raise ValueError("of another spec")
        except FileNotFoundError:
            return None
        except (SafetensorError, OSError, KeyError, ValueError) as error:
            raise DamagedRun(
                f"checkpoint {path} cannot be used ({_one_line(error)}); it was left as it is: "
                f"move it away, and the run starts from its first step"
            ) from None
        return Checkpoint(spec, record.step, record.history, state, record.learner)

    def _clear(self) -> None:
        """Remove what killed processes left: partial writings, and checkpoints of runs that are finished."""
        clear(self.root)
        before, after = _STATE
        for state in self.root.glob("*".join(_STATE)):
            run = self.root / state.name.removeprefix(before).removesuffix(after)
            # Beside a damaged run the checkpoint stays: from it the run can be had again.
            with contextlib.suppress(EmpiricsError):
                read_record(run)
                if state.is_file():
                    state.unlink(missing_ok=True)


def load_run(path: Path) -> AnyRun:
    """Read a run. Raises DamagedRun where a file is not what run.json says it was."""
    record = read_record(path)
    spec = read_spec((path / "spec.json").read_text())
    try:
        weights = load((path / "weights.safetensors").read_bytes())
        history = tuple(LossPoint(**json.loads(line)) for line in (path / "history.jsonl").read_text().splitlines())
        evaluation = (path / "evaluation.json").read_bytes()
        if isinstance(spec, RunSpec):
            observed = _EVALUATION.validate_json(evaluation)
            return Run(
                spec, _with_weights(AttentionHead(spec), weights), history, observed, record.seconds, record.learner
            )
        model = _with_weights(Transformer(spec), weights)
        if isinstance(spec, SequenceSpec):
            answers = _SEQUENCE_EVALUATION.validate_json(evaluation)
            return SequenceRun(spec, model, history, answers, record.seconds, record.learner)
        seen = _TRANSFORMER_EVALUATION.validate_json(evaluation)
        return TransformerRun(spec, model, history, seen, record.seconds, record.learner)
    except (SafetensorError, RuntimeError, ValidationError, TypeError, json.JSONDecodeError) as error:
        raise DamagedRun(f"run {path} cannot be read ({_one_line(error)}); it was left as it is") from None


def read_record(path: Path) -> RunRecord:
    """run.json of a run whose files all have the checksum written there.

    Raises EmpiricsError where there is no run, DamagedRun where a file is missing, cut or altered
    or where the folder holds the run of another spec.
    """
    if not path.is_dir():
        raise EmpiricsError(f"no run at {path}: give the folder of a run, `carrier runs list` shows them")
    try:
        record = RunRecord.model_validate_json((path / _RECORD).read_bytes())
        if unknown := sorted(record.sha256.keys() - set(_FILES)):
            raise _newer(path / _RECORD, unknown[0])
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
    except ValidationError as error:
        if unknown := [str(one["loc"][-1]) for one in error.errors() if one["type"] == "extra_forbidden"]:
            raise _newer(path / _RECORD, unknown[0]) from None
        raise DamagedRun(f"{path / _RECORD} is damaged; it was left as it is") from None
    except OSError as error:
        raise DamagedRun(f"a file of {path} cannot be read ({error.strerror}); it was left as it is") from None
    try:
        held = read_spec((path / "spec.json").read_text()).id
    except EmpiricsError as error:
        raise EmpiricsError(f"{path / 'spec.json'}: {error}; if a newer carrier wrote it, update carrier") from None
    if not held == record.id == path.resolve().name:
        raise DamagedRun(f"{path} holds the run of another spec, {held}: rename the folder to that or move it away")
    return record


def _newer(file: Path, name: str) -> EmpiricsError:
    return EmpiricsError(
        f"{file} has {name!r}, which this version of carrier does not know: a newer one wrote it; update carrier, or "
        "give another folder"
    )


def _with_weights(model: _Model, weights: State) -> _Model:
    model.load_state_dict(dict(weights))
    return model


def _evaluation(run: AnyRun) -> bytes:
    if isinstance(run, Run):
        return _EVALUATION.dump_json(run.evaluation, indent=1)
    if isinstance(run, SequenceRun):
        return _SEQUENCE_EVALUATION.dump_json(run.evaluation, indent=1)
    return _TRANSFORMER_EVALUATION.dump_json(run.evaluation, indent=1)


def _sha256(text: str, state: State) -> str:
    return hashlib.sha256(text.encode() + save(dict(state))).hexdigest()


def _one_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0]
