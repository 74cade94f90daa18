"""Results of runs as tables: apart from `views`, since these need what trained them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bridge.account import Account
from bridge.compare import LIMIT
from bridge.documents import Document
from bridge.tables import Table, number
from empirics.observe import Observation
from empirics.observe_sequences import SequenceObservation
from empirics.observe_transformer import TransformerObservation
from empirics.spec import RunSpec
from empirics.store import RunRecord
from empirics.train import AnyRun, Run, SequenceRun, TransformerRun


@dataclass(frozen=True)
class RunState:
    """A run folder, its record where it is whole, and its state in words."""

    path: Path
    record: RunRecord | None
    state: str


def account_table(told: Account) -> Table:
    """Observed beside predicted, with the error of each law in its own terms."""
    rows = tuple(
        (
            str(length),
            f"{observed:.4f} +- {error:.4f}",
            str(seen.selected_offset),
            f"{exact:.4f}",
            f"{deviation:+.2f}",
            f"{mean:.4f}",
            f"{mean - observed:+.4f}",
        )
        for length, observed, error, seen, exact, deviation, mean in zip(
            told.exact.lengths,
            told.exact.observed,
            told.exact.standard_error,
            told.observations,
            told.exact.predicted,
            told.exact.deviations,
            told.mean_profile.predicted,
            strict=True,
        )
    )
    columns = ("L", "observed +- s.e.", "peak at", "exact law", "error (s.e.)", "mean-profile law", "error")
    sequences = told.observations[0].sequences
    notes = (
        f"observed: {sequences} fresh sequences a length, seed {told.seed}; no parameter is fitted",
        f"exact law: {told.exact.verdict} (limit {LIMIT} s.e. at every length)",
        f"mean-profile law: {told.mean_profile.verdict}" + "".join(f" ({why})" for why in told.mean_profile.unmet),
    )
    title = (
        f"attention at offset {-told.prediction.offset}: predicted from the weights of {told.run.spec.id}, and observed"
    )
    return Table(title, columns, rows, notes)


def run_table(run: AnyRun) -> Table:
    """What a run did directly after training: accuracy by length, and each peak with the offset at which it stands."""
    made = isinstance(run.spec, RunSpec) and run.spec.edit is not None
    title = f"{run.spec.id}: directly after {'its edit' if made else 'training'}"
    if isinstance(run, TransformerRun):
        shift = ("L", "accuracy", "head with most attention at -K", "its attention there", "it selects")
        return Table(title, shift, tuple(_shift_row(seen) for seen in run.evaluation))
    if isinstance(run, SequenceRun):
        answers = ("L", "accuracy", "at the last position", "cross-entropy (nats)")
        return Table(title, answers, tuple(_answers_row(seen) for seen in run.evaluation))
    columns = ("L", "accuracy", "peak attention", "at offset", "offsets of the heads")
    count = len(columns) - (run.spec.heads == 1)
    return Table(title, columns[:count], tuple(_peak_row(seen)[:count] for seen in run.evaluation))


def _peak_row(seen: Observation) -> tuple[str, ...]:
    offsets = " ".join(map(str, seen.selected_by_head))
    return str(seen.length), f"{seen.accuracy:.4f}", f"{seen.peak:.4f}", str(seen.selected_offset), offsets


def _shift_row(seen: TransformerObservation) -> tuple[str, ...]:
    head = seen.shift_head
    share = f"{head.attention[seen.offset]:.4f}"
    return str(seen.length), f"{seen.accuracy:.4f}", f"{head.layer}.{head.head}", share, str(head.selected_offset)


def _answers_row(seen: SequenceObservation) -> tuple[str, ...]:
    accuracies = (
        f"{share:.4f} +- {error:.4f}"
        for share, error in ((seen.accuracy, seen.accuracy_error), (seen.last_accuracy, seen.last_accuracy_error))
    )
    return str(seen.length), *accuracies, f"{seen.loss:.4f}"


def runs_table(states: Sequence[RunState]) -> Table:
    """Name, record and state of every run folder."""
    rows = tuple(
        (
            state.path.name,
            state.record.torch if state.record else "-",
            number(state.record.seconds if state.record else None, 1),
            state.state,
        )
        for state in states
    )
    return Table("runs", ("run", "torch", "seconds", "state"), rows)


def run_states_document(states: Sequence[RunState]) -> Document:
    """`carrier runs list` and `verify` as JSON."""
    entries = [{"id": one.path.name, "whole": one.record is not None, "state": one.state} for one in states]
    return {"runs": entries}


def run_document(run: AnyRun, path: Path) -> Document:
    """`carrier train` and `carrier runs show` as JSON."""
    return {
        "id": run.spec.id,
        "seed": run.spec.seed,
        "path": str(path),
        "spec": run.spec.model_dump(mode="json"),
        "seconds": run.seconds,
        "evaluation": [_seen_document(seen) for seen in run.evaluation],
    }


def _seen_document(seen: Observation | TransformerObservation | SequenceObservation) -> Document:
    if isinstance(seen, SequenceObservation):
        return seen.model_dump(mode="json")
    offset = seen.selected_offset if isinstance(seen, Observation) else seen.shift_head.selected_offset
    return seen.model_dump(mode="json") | {"selected_offset": offset}


def accuracy_table(rotary: Run, learned: Run) -> Table:
    """Accuracy by length of a rotary and a learned-position head, directly after training."""
    rows = tuple(
        (str(ours.length), f"{ours.accuracy:.4f}", f"{theirs.accuracy:.4f}")
        for ours, theirs in zip(rotary.evaluation, learned.evaluation, strict=True)
    )
    shortest, longest = learned.spec.train_lengths
    chance = 1 / learned.spec.vocabulary
    note = f"trained on lengths {shortest}-{longest}; chance {chance:.2f}"
    title = f"accuracy at K={learned.spec.offset}, {learned.evaluation[0].sequences} sequences a length"
    return Table(title, ("L", "rotary", "learned positions"), rows, (note,))
