"""A repair as a person reads it, and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from bridge.account import Account
from bridge.compare import LIMIT
from bridge.designs import margin_document
from bridge.documents import Document
from bridge.surgery import Energies, Repair
from bridge.tables import Table
from theory.accuracy import AccuracyLaw

BEFORE, AFTER = "before", "edited"


def repair_table(done: Repair, head: int) -> Table:
    """One head before and after its edit: attention on the target predicted and observed, its peak, the accuracy."""
    before, after = done.before[head], done.after[head]
    laws = (None, None) if done.accuracy is None else done.accuracy
    rows = []
    for told, law, state in ((before, laws[0], BEFORE), (after, laws[1], AFTER)):
        for index, (length, seen) in enumerate(zip(told.exact.lengths, told.observations, strict=True)):
            rows.append(
                (
                    state,
                    str(length),
                    f"{told.exact.predicted[index]:.4f}",
                    f"{told.exact.observed[index]:.4f} +- {told.exact.standard_error[index]:.4f}",
                    f"{told.exact.deviations[index]:+.2f}",
                    str(seen.selected_by_head[head]),
                    "-" if law is None else _bracket(law, index),
                    f"{seen.accuracy:.4f}",
                )
            )
    columns = ("", "L", "predicted", "observed +- s.e.", "error (s.e.)", "peak at", "accuracy, predicted", "observed")
    offsets = dict.fromkeys(f"{-told.prediction.offset}" for told in (before, after))
    title = f"attention at offset {', then '.join(offsets)}: head {head} of {before.run.spec.id}"
    return Table(title, columns, tuple(rows), _notes(done, head))


def repair_document(done: Repair, path: Path, files: Sequence[Path]) -> Document:
    """`carrier repair` as JSON. Energies are in nats, margins in nats per nat of energy."""
    edit = done.run.spec.edit
    return {
        "id": done.run.spec.id,
        "path": str(path),
        "parent": None if edit is None else {"id": edit.parent, "sha256": edit.sha256},
        "offset": -done.design.offset,
        "length": done.design.length,
        "wanted": {
            name: getattr(done.wanted, name)
            for name in ("attention", "accuracy", "energy")
            if getattr(done.wanted, name) is not None
        },
        "margin": margin_document(done.design, done.margin),
        "reached": done.reached,
        "lengths": list(done.after[0].exact.lengths),
        "heads": [
            {
                "head": head,
                "energy": _energy_document(energy),
                "before": _account_document(before),
                "after": _account_document(after),
            }
            for head, (energy, before, after) in enumerate(zip(done.energies, done.before, done.after, strict=True))
        ],
        "accuracy": {
            state: {
                "predicted": None if done.accuracy is None else _law_document(done.accuracy[index]),
                "observed": [seen.accuracy for seen in told.observations],
                "standard_error": [seen.accuracy_error for seen in told.observations],
            }
            for index, (state, told) in enumerate((("before", done.before[0]), ("after", done.after[0])))
        },
        "sequences": done.after[0].observations[0].sequences,
        "observation_seed": done.after[0].seed,
        "files": [str(file) for file in files],
    }


def _notes(done: Repair, head: int) -> tuple[str, ...]:
    design, energy = done.design, done.energies[head]
    certified = done.margin.value
    notes = [
        f"best carrier for K={design.offset} over the lags 1..{design.reach}, by a linear program: margin "
        f"{certified.lower:.6f} of its energy, certified",
        f"energy: {energy.trained:.2f} nats before, {energy.written:.2f} written",
    ]
    if energy.bound is not None and energy.means is not None and energy.content is not None:
        notes.append(
            f"attention {done.wanted.attention:g} at L={design.length} takes {energy.means:.2f} nats by the means "
            f"alone, {energy.content:.2f} with residuals and self key, {energy.bound:.2f} by the bound "
            f"ln((L-1) a/(1-a))/mu"
            + ("" if energy.overshoot is None else f": {energy.overshoot:.2f} times what the head takes")
        )
    told = done.after[head]
    verdicts = ", ".join(f"{state} {one.exact.verdict}" for state, one in ((BEFORE, done.before[head]), (AFTER, told)))
    notes.append(f"exact law: {verdicts} (limit {LIMIT} s.e. at every length); no parameter is fitted")
    notes.append("s.e.: that of the sample, or the law's own where that has more, as with a head that is nearly sure")
    if done.accuracy is not None:
        notes.append("accuracy: the estimate of its law and, in brackets, its bounds, which rest on saddlepoints")
    if not done.reached:
        notes.append("what was wanted is not reached by the laws of the edited run")
    notes.append(f"observed: {told.observations[0].sequences} fresh sequences a length, seed {told.seed}")
    return tuple(notes)


def _bracket(law: AccuracyLaw, index: int) -> str:
    lower, point, upper = (float(side[index]) for side in (law.lower, law.point, law.upper))
    return f"{point:.4f}" if upper - lower < 1e-4 else f"{point:.4f} [{lower:.3f}, {upper:.3f}]"


def _energy_document(energy: Energies) -> Document:
    return {
        "trained": energy.trained,
        "written": energy.written,
        "bound": energy.bound,
        "means": energy.means,
        "content": energy.content,
        "overshoot": energy.overshoot,
    }


def _account_document(told: Account) -> Document:
    return {
        "offset": -told.prediction.offset,
        "predicted": told.exact.predicted.tolist(),
        "observed": told.exact.observed.tolist(),
        "standard_error": told.exact.standard_error.tolist(),
        "observed_offset": [seen.selected_by_head[told.head] for seen in told.observations],
        "verdict": told.exact.verdict.value,
    }


def _law_document(law: AccuracyLaw) -> Document:
    return {"lower": law.lower.tolist(), "point": law.point.tolist(), "upper": law.upper.tolist()}
