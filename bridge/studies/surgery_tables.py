"""Arms of surgery side by side: numbers over seeds, and the tables that a person reads."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float64

from bridge.compare import LIMIT, Comparison, Measured
from bridge.designs import ATTENTION
from bridge.studies.surgery_arms import KEY_KEPT, LENGTH, PRESCRIBED, TRAINED, ArmResult
from bridge.tables import Table, number


def seeds_of(arms: Sequence[ArmResult], arm: str, offset: int) -> tuple[ArmResult, ...]:
    """The results of one arm on the runs of one K, a seed each."""
    return tuple(one for one in arms if one.arm == arm and one.spec.offset == offset)


def offsets_of(arms: Sequence[ArmResult]) -> tuple[int, ...]:
    """Every K there is."""
    return tuple(dict.fromkeys(one.spec.offset for one in arms))


def deviations(result: ArmResult) -> Float64[np.ndarray, "head length"]:
    """Predicted less observed attention in standard errors of the observation."""
    rows = zip(result.predicted, result.observed, result.error, strict=True)
    return np.array([Comparison("exact law", result.lengths, *row).deviations for row in rows])


def pooled_deviations(found: Sequence[ArmResult]) -> Float64[np.ndarray, "length"]:
    """The same of the mean over several runs of one head each, whose sampling errors are independent."""
    predicted, observed, error = (
        np.concatenate([getattr(one, name) for one in found]) for name in ("predicted", "observed", "error")
    )
    spread = np.sqrt(np.square(error).sum(axis=0)) / len(error)
    return Comparison("exact law", found[0].lengths, predicted.mean(axis=0), observed.mean(axis=0), spread).deviations


def worst_of_each(found: Sequence[ArmResult], longest: int) -> Measured:
    """The largest |deviation| of any run at any length up to a longest; itself in errors, it has no spread."""
    kept = [length <= longest for length in found[0].lengths]
    return Measured(float(np.abs(np.concatenate([deviations(one)[:, kept] for one in found])).max()), None, 0.0)


def outside_the_bracket(arms: Sequence[ArmResult]) -> Measured:
    """How far an observed accuracy lies outside its predicted bracket at most, with its sampling error; 0 inside."""
    worst, error = 0.0, 0.0
    for one in arms:
        if one.predicted_accuracy is not None:
            law, seen = one.predicted_accuracy, one.accuracy[: len(one.predicted_accuracy.lengths)]
            beyond = np.maximum(law.lower - seen, seen - law.upper)
            if beyond.max() > worst:
                worst, error = float(beyond.max()), float(one.accuracy_error[beyond.argmax()])
    return Measured(worst, error, error)


def worst_pooled(found: Sequence[ArmResult], length: int) -> Measured:
    """The largest |deviation| of a mean over seeds at a length, over the Ks; itself in errors, it has no spread."""
    at = found[0].lengths.index(length)
    values = [
        pooled_deviations([one for one in found if one.spec.offset == offset])[at] for offset in offsets_of(found)
    ]
    return Measured(float(np.abs(values).max()), None, 0.0)


def extreme(values: Sequence[float], of: str) -> Measured:
    """The least or the greatest of one number a run, with the standard deviation over runs beside it."""
    chosen = min(values) if of == "least" else max(values)
    return Measured(float(chosen), float(np.std(values, ddof=1)) if len(values) > 1 else None, 0.0)


def first_seed(found: Sequence[ArmResult], index: int) -> Measured:
    """The accuracy of seed 0 at a length, the spread over all seeds, and the sampling error of a difference from it.

    How many sequences the prototype saw is not known: as many as here are taken.
    """
    (own,) = [one for one in found if one.spec.seed == 0]
    spread = float(np.std([one.accuracy[index] for one in found], ddof=min(1, len(found) - 1)))
    return Measured(float(own.accuracy[index]), spread, float(np.sqrt(2) * own.accuracy_error[index]))


def means(rows: Sequence[Float64[np.ndarray, "length"]]) -> tuple[str, ...]:
    """`mean` of every column, to three decimals."""
    return tuple(mean(np.array(column), 3) for column in zip(*rows, strict=True))


def mean(values: Float64[np.ndarray, "value"], decimals: int) -> str:
    """Mean and standard deviation of several numbers; a dash where there is none."""
    if np.isnan(values).all():
        return "-"
    spread = f" +- {values.std(ddof=1):.{decimals}f}" if len(values) > 1 else ""
    return f"{values.mean():.{decimals}f}{spread}"


def accuracy_table(arms: Sequence[ArmResult], offset: int) -> Table:
    """Accuracy of every arm at every length; of runs whose accuracy was predicted that beside it."""
    rows = []
    for arm in dict.fromkeys(one.arm for one in arms):
        found = seeds_of(arms, arm, offset)
        rows.append((arm, "observed", *means([one.accuracy for one in found])))
        for one in found:
            law = one.predicted_accuracy
            if law is not None:
                sides = zip(law.lower, law.point, law.upper, strict=True)
                told = (f"{point:.3f} [{lower:.3f}, {upper:.3f}]" for lower, point, upper in sides)
                rows.append(("", f"seed {one.spec.seed}, predicted", *told))
                rows.append(("", f"seed {one.spec.seed}, observed", *map(number, one.accuracy)))
    title = f"accuracy, K={offset}: mean and s.d. over seeds; predicted: the estimate and its bracket"
    return _padded(title, arms, rows, _seeds_note(arms, offset))


def attention_table(arms: Sequence[ArmResult], offset: int) -> Table:
    """Attention on the arm's own offset, predicted and observed, and how far a head's prediction is off at most."""
    rows = []
    for arm in dict.fromkeys(one.arm for one in arms):
        found = seeds_of(arms, arm, offset)
        name = arm if found[0].offset == offset else f"{arm} ({-found[0].offset})"
        worst = np.abs(np.concatenate([deviations(one) for one in found])).max(axis=0)
        rows += [
            (name, "predicted", *means([row for one in found for row in one.predicted])),
            ("", "observed", *means([row for one in found for row in one.observed])),
            ("", "worst error (s.e.)", *(f"{value:.2f}" for value in worst)),
        ]
    title = f"attention at offset {-offset}, or the one in brackets: mean and s.d. over seeds"
    return _padded(title, arms, rows, _seeds_note(arms, offset))


def agreement_table(arms: Sequence[ArmResult], longest: int) -> Table:
    """Of every arm the comparisons seed by seed up to a length, and those beyond the limit."""
    rows = []
    for arm in dict.fromkeys(one.arm for one in arms):
        found = [one for one in arms if one.arm == arm]
        kept = [length <= longest for length in found[0].lengths]
        each = np.abs(np.concatenate([deviations(one)[:, kept].ravel() for one in found]))
        pooled = np.abs(
            np.concatenate([pooled_deviations(seeds_of(arms, arm, offset))[kept] for offset in offsets_of(arms)])
        )
        rows.append(
            (
                arm,
                str(len(each)),
                f"{each.max():.2f}",
                str(int((each > LIMIT).sum())),
                f"{np.sqrt((each**2).mean()):.2f}",
                str(len(pooled)),
                f"{pooled.max():.2f}",
            )
        )
    columns = ("arm", "heads x lengths", "worst", f"beyond {LIMIT}", "r.m.s.", "K x lengths", "worst mean over seeds")
    notes = (
        "in standard errors of the observation, or of the law where that has more",
        f"of normal errors one in 2149 is beyond {LIMIT}; their r.m.s. is 1",
    )
    return Table(f"predicted against observed attention, lengths to {longest}", columns, tuple(rows), notes)


def energy_table(arms: Sequence[ArmResult], length: int) -> Table:
    """What attention at a length takes: by the bound, by the exact law, and what the bound's energy then gave."""
    rows = []
    for offset in offsets_of(arms):
        found = seeds_of(arms, PRESCRIBED, offset)
        if length not in found[0].lengths:
            continue
        trained = np.concatenate([one.energy for one in seeds_of(arms, TRAINED, offset)])
        written = np.concatenate([one.energy for one in found])
        needed = np.concatenate([one.needed for one in found if one.needed is not None])
        at = found[0].lengths.index(length)
        reached = np.concatenate([one.predicted[:, at] for one in found])
        kept = np.concatenate([one.predicted[:, at] for one in seeds_of(arms, KEY_KEPT, offset)])
        over = written / needed
        rows.append(
            (
                str(offset),
                mean(trained, 2),
                f"{written.mean():.2f}",
                mean(needed, 2),
                f"{over.min():.2f} .. {over.max():.2f}",
                f"{reached.min():.4f} .. {reached.max():.4f}",
                f"{kept.min():.4f} .. {kept.max():.4f}",
                f"{int((kept < ATTENTION).sum())} of {len(kept)}",
            )
        )
    columns = (
        "K",
        "trained",
        "bound, written",
        "exact law needs",
        "bound / needs",
        f"attention at L={length}",
        "with the key's phases kept",
        f"of these below {ATTENTION:g}",
    )
    title = f"energies in nats for attention {ATTENTION:g} at L={length}, attention by the exact law, over seeds"
    return Table(title, columns, tuple(rows))


def variants_table(name: str, found: Sequence[ArmResult]) -> Table:
    """A setting beside the reference one: as trained and with the prescribed carrier, over heads and seeds."""
    rows = []
    for arm in dict.fromkeys(one.arm for one in found):
        own = [one for one in found if one.arm == arm]
        worst = np.abs(np.concatenate([deviations(one) for one in own])).max(axis=0)
        energy, blank = np.concatenate([one.energy for one in own]), [""] * (len(own[0].lengths) - 1)
        lowest = np.concatenate([one.observed for one in own]).min(axis=0)
        needed = [one.needed for one in own if one.needed is not None]
        rows.append((arm, "energy (nats)", mean(energy, 2), *blank))
        if needed:
            least, greatest = np.min(needed), np.max(needed)
            rows.append(("", f"needed for {ATTENTION:g} at L={LENGTH}", f"{least:.1f} .. {greatest:.1f}", *blank))
        rows += [
            ("", "attention, predicted", *means([row for one in own for row in one.predicted])),
            ("", "attention, observed", *means([row for one in own for row in one.observed])),
            ("", "least, observed", *(f"{value:.3f}" for value in lowest)),
            ("", "worst error (s.e.)", *(f"{value:.2f}" for value in worst)),
            ("", "accuracy", *means([one.accuracy for one in own])),
        ]
    seeds = len({one.spec.seed for one in found})
    note = f"K={found[0].spec.offset}; mean and s.d. over {seeds} seeds, of attention over their heads too"
    return _padded(name, found, rows, (note,))


def _padded(title: str, arms: Sequence[ArmResult], rows: Sequence[tuple[str, ...]], notes: tuple[str, ...]) -> Table:
    """A column a length; arms that were not taken as far have dashes."""
    lengths = max((one.lengths for one in arms), key=len)
    width = len(lengths) + 2
    padded = tuple((*row, *("-",) * (width - len(row))) for row in rows)
    return Table(title, ("arm", "", *(f"L={length}" for length in lengths)), padded, notes)


def _seeds_note(arms: Sequence[ArmResult], offset: int) -> tuple[str, ...]:
    seeds = len({one.spec.seed for one in arms if one.spec.offset == offset})
    return (f"{seeds} seeds; nothing is fitted",)
