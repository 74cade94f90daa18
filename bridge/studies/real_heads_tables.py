"""The tables of the study of real heads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from scipy.stats import spearmanr

from bridge.studies.held import Change, Heads, correlation, high_absolute, mean_absolute, median_absolute
from bridge.tables import Table, number
from bridge.trust import LIMIT

_LAWS = ("windowed", "constant", "mean profile")


def errors_table(model: str, sets: Mapping[str, Heads]) -> Table:
    """Errors of each law at the longest length, by strength of the head and by flags."""
    rows = []
    for name, heads in sets.items():
        strong = heads.above(0.1)
        groups = {
            "above .3": heads.above(0.3),
            "above .2": heads.above(0.2),
            "above .1": strong,
            "above .1, no flag": strong.where(~strong.flagged),
            "above .1, flagged": strong.where(strong.flagged),
        }
        rows += [(name, group, str(len(chosen.held)), *_errors(chosen)) for group, chosen in groups.items()]
    columns = ("text", "heads", "number", *(f"{law}: mean, median, p90" for law in _LAWS))
    length = next(iter(sets.values())).lengths[-1]
    title = f"{model}: absolute error in mean attention at L={length}"
    notes = ("heads by attention observed at the offset that was predicted from the calibration text",)
    return Table(title, columns, tuple(rows), notes)


def kinds_table(model: str, kinds: Mapping[str, Heads]) -> Table:
    """The same for each kind of text alone, over heads above .1 without a flag. How far a text is from that of the
    calibration shows in the constant baseline, too."""
    chosen = {kind: heads.above(0.1) for kind, heads in kinds.items()}
    chosen = {kind: heads.where(~heads.flagged) for kind, heads in chosen.items()}
    rows = tuple((kind, str(len(heads.held)), *_errors(heads)) for kind, heads in chosen.items())
    columns = ("kind of text", "heads", *(f"{law}: mean, median, p90" for law in _LAWS))
    return Table(f"{model}: heads above .1 without a flag, by kind of text", columns, rows)


def lengths_table(model: str, heads: Heads, what: str) -> Table:
    """Mean absolute error of each law against length, with the mean of what was observed."""
    rows = tuple(
        (
            str(length),
            number(float(heads.observed[:, place].mean())),
            number(float(np.mean([one.error[place] for one in heads.held])), 4),
            *(number(mean_absolute(heads.errors(law)[:, place]), 4) for law in _LAWS),
        )
        for place, length in enumerate(heads.lengths)
    )
    columns = ("L", "mean observed", "its s.e. a head", *(f"{law}: MAE" for law in _LAWS))
    return Table(f"{model}: {len(heads.held)} heads {what}, against length", columns, rows)


def beyond_table(model: str, heads: Heads, trained_length: int) -> Table:
    """The logarithm of the fall beyond the trained length."""
    observed = heads.log_ratio(heads.observed)
    rows = tuple(
        (
            law,
            number(mean_absolute(heads.log_ratio(values) - observed)),
            "-" if law == "constant" else number(correlation(heads.log_ratio(values), observed)),
        )
        for law, values in heads.laws.items()
    )
    title = (
        f"{model}: ln of attention at L={heads.lengths[-1]} over {heads.lengths[0]}, {len(heads.held)} heads, trained "
        f"to {trained_length} tokens; observed mean {observed.mean():.3f}"
    )
    return Table(title, ("law", "MAE", "r"), rows)


def changes_table(model: str, changes: Sequence[Change]) -> Table:
    """Changed frequencies: the change of attention on a head's own offset, predicted from a frozen calibration."""
    rows = []
    for change in changes:
        for name, chosen in (("all", np.ones(len(change.before), dtype=bool)), ("no flag", ~change.heads.flagged)):
            predicted, observed = change.predicted[chosen], change.observed[chosen]
            other = change.mean_profile_change[chosen]
            rows.append(
                (
                    change.name,
                    name,
                    str(int(chosen.sum())),
                    number(mean_absolute(observed)),
                    number(mean_absolute(predicted - observed), 4),
                    number(correlation(predicted, observed)),
                    number(mean_absolute(other - observed), 4),
                    number(correlation(other, observed)),
                    number(change.offsets_right, 2) if name == "all" else "",
                )
            )
    columns = (
        "change",
        "heads",
        "number",
        "observed mean size of change",
        "windowed: MAE",
        "r",
        "mean profile: MAE",
        "r",
        "new offset right",
    )
    length = changes[0].heads.lengths[-1]
    notes = ("the constant baseline predicts no change: its MAE is the observed mean size of change",)
    return Table(f"{model}: changed frequencies at L={length}, no number fitted", columns, tuple(rows), notes)


def flags_table(model: str, heads: Heads, which: str) -> Table:
    """How well each flag foretells the windowed law's error."""
    errors = np.abs(heads.errors("windowed")[:, -1])
    trusts = [one.report.trust for one in heads.held]
    sizes: dict[str, list[float | None]] = {
        "drift": [trust.drift for trust in trusts],
        "self-consistency": [trust.consistency for trust in trusts],
        "content retrieval": [*(trust.retrieval for trust in trusts)],
        "content dependence (a note)": [trust.dependence for trust in trusts],
    }
    rows = []
    for name, values in sizes.items():
        size = np.abs(np.array([value or 0.0 for value in values]))
        rows.append((name, *_split(errors, size >= LIMIT), number(float(spearmanr(size, errors)[0]), 2)))
    rows.append(("any flag", *_split(errors, heads.flagged), ""))
    columns = ("flag", "raised", "error if raised: median, p90", "if not: median, p90", "Spearman with error")
    notes = ("error: absolute, of the windowed law; every flag follows from the calibration text alone",)
    return Table(f"{model}: flags against error, {len(heads.held)} heads, {which}", columns, tuple(rows), notes)


def flagged_table(model: str, heads: Heads) -> Table:
    """The heads that were not to be trusted, worst first."""
    flagged = heads.where(heads.flagged)
    order = sorted(flagged.held, key=lambda one: -abs(one.report.prediction.exact[-1] - one.observed[-1]))
    rows = tuple(
        (
            f"{one.report.layer}.{one.report.head}",
            str(-one.report.prediction.offset),
            f"{one.observed[-1]:.3f} +- {one.error[-1]:.3f}",
            number(float(one.report.prediction.exact[-1])),
            number(float(one.report.prediction.constant[-1])),
            ", ".join(flag.partition(":")[0] for flag in one.report.trust.flags),
        )
        for one in order
    )
    columns = ("head", "offset", "observed", "windowed", "constant", "flags")
    return Table(f"{model}: flagged heads above .1 at L={heads.lengths[-1]}", columns, rows)


def _errors(heads: Heads) -> tuple[str, ...]:
    if not heads.held:
        return ("-",) * len(_LAWS)
    found = (heads.errors(law)[:, -1] for law in _LAWS)
    return tuple(
        f"{mean_absolute(errors):.4f} {median_absolute(errors):.4f} {high_absolute(errors):.4f}" for errors in found
    )


def _split(errors: np.ndarray, raised: np.ndarray) -> tuple[str, str, str]:
    def words(chosen: np.ndarray) -> str:
        return f"{median_absolute(chosen):.4f} {high_absolute(chosen):.4f}" if len(chosen) else "-"

    return str(int(raised.sum())), words(errors[raised]), words(errors[~raised])
