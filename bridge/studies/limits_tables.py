"""Numbers and tables of the study of limits: what was counted against what closed forms say, over heads."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float64

from bridge.compare import Measured
from bridge.paper.target import CellKey
from bridge.studies.held import correlation, mean_absolute, statistic
from bridge.studies.limits_heads import ANOTHER_TEXT, COUNTED, NORMAL_KEYS, RATES, HeadLimits
from bridge.tables import Table, number
from theory.content_limits import Refinement

LAW = Refinement.EACH_QUERY
_POSITION, _TOKEN, _ALIASING = range(len(RATES))
_MIDDLE = 1_000
_SHOWN_LENGTHS = (100, 1_000, 10_000, 100_000, 1_000_000)
_SHOWN_OF_HEADS = ((_POSITION, 1_000), (_POSITION, 10_000), (_POSITION, 100_000), (_TOKEN, 1_000), (_ALIASING, 1_000))


def numbers(model: str, heads: Sequence[HeadLimits]) -> dict[CellKey, Measured]:
    """The number of every bar that this model and these lengths decide."""
    counted, law = of(heads, COUNTED), of(heads, LAW)
    errors = np.nanmean(np.abs(law - counted), axis=1)
    coarse = np.nanmean(np.abs(of(heads, Refinement.MEAN_QUERY) - counted), axis=1)
    found = {
        "heads": Measured(float(len(heads)), None, 0.0),
        "position inversion: mean absolute error": statistic(np.mean, errors[:, _POSITION]),
        "token inversion: mean absolute error": statistic(np.mean, errors[:, _TOKEN]),
        "aliasing: mean relative error": statistic(mean_absolute, relative_errors(heads)),
        "position inversion: error over that of the mean query": statistic(
            lambda one, other: float(one.mean() / other.mean()), errors[:, _POSITION], coarse[:, _POSITION]
        ),
        "normal keys: greatest deviation in standard errors": Measured(normal_deviation(heads), None, 0.0),
        "position inversion under changes: mean absolute error": statistic(np.mean, _changed_errors(heads)),
    }
    elsewhere = np.abs(law - of(heads, ANOTHER_TEXT))[:, :, _POSITION]
    told = elsewhere[~np.isnan(elsewhere).all(axis=1)]
    if len(told):
        found["position inversion on another text: mean absolute error"] = statistic(np.mean, np.nanmean(told, axis=1))
    factors = locality_factors(heads)
    if len(factors):
        found["length of locality: median factor off"] = statistic(np.median, factors)
    lengths = heads[0].lengths
    if _MIDDLE in lengths:
        place = lengths.index(_MIDDLE)
        for name, rate in (("position", _POSITION), ("token", _TOKEN)):
            both = law[:, place, rate], counted[:, place, rate]
            found[f"{name} inversion at L={_MIDDLE}: r over heads"] = statistic(correlation, *both)
    for name, rate in (("position", _POSITION), ("token", _TOKEN)):
        distance = float(np.abs(counted[:, -1, rate] - 0.5).max())
        found[f"{name} inversion at L={lengths[-1]}: greatest distance from 1/2"] = Measured(distance, None, 0.0)
    return {(model, name): value for name, value in found.items()}


def of(heads: Sequence[HeadLimits], series: str) -> Float64[np.ndarray, "head length rate"]:
    """A series of every head."""
    return np.array([head.of(series) for head in heads])


def relative_errors(heads: Sequence[HeadLimits]) -> Float64[np.ndarray, "head"]:
    """Mean size of the relative error of aliasing, head by head."""
    law, counted = (of(heads, series)[:, :, _ALIASING] for series in (LAW, COUNTED))
    return np.abs(law / counted - 1).mean(axis=1)


def locality_factors(heads: Sequence[HeadLimits]) -> Float64[np.ndarray, "head"]:
    """Factor, 1 or more, between predicted and counted length of locality, of the heads that have both within reach."""
    factors = []
    for head in heads:
        law, counted = head.locality(LAW), head.locality(COUNTED)
        if law is not None and counted is not None and min(law, counted) > head.lengths[0]:
            factors.append(max(law, counted) / min(law, counted))
    return np.array(factors, dtype=np.float64)


def normal_deviation(heads: Sequence[HeadLimits]) -> float:
    """The greatest distance of the law from what normal keys do, in standard errors of both."""
    gaps = of(heads, LAW) - of(heads, NORMAL_KEYS)
    errors = [np.hypot(head.error(LAW), head.error(NORMAL_KEYS)) for head in heads]
    return float(np.nanmax(np.abs(gaps) / errors))


def changes_of(heads: Sequence[HeadLimits]) -> tuple[str, ...]:
    """Names of the changes, in order."""
    return tuple(name.removesuffix(", law") for name in heads[0].series if name.endswith(", law"))


def errors_table(model: str, heads: Sequence[HeadLimits]) -> Table:
    """Every closed form against what was counted, and the finest one against other texts and normal keys."""
    rows = []
    for place, rate in enumerate(RATES):
        for law in Refinement:
            for against in (COUNTED, ANOTHER_TEXT, NORMAL_KEYS) if law is LAW else (COUNTED,):
                gaps = np.abs(of(heads, law) - of(heads, against))[:, :, place]
                if np.isnan(gaps).all():
                    continue
                sampling = np.nanmean([np.hypot(head.error(law), head.error(against))[:, place] for head in heads])
                bounds = np.nanquantile(gaps, (0.5, 0.9, 1.0))
                figures = (float(np.nanmean(gaps)), *bounds.tolist(), float(sampling))
                rows.append((rate, str(law), against, *(number(figure, 4) for figure in figures)))
    columns = ("rate", "closed form", "against", "mean |error|", "median", "p90", "greatest", "mean s.e.")
    return Table(f"{model}: errors of closed forms, {len(heads)} heads", columns, tuple(rows))


def lengths_table(model: str, heads: Sequence[HeadLimits]) -> Table:
    """Means over heads against length: counted, and by the finest closed form."""
    counted, law = of(heads, COUNTED), of(heads, LAW)
    rows = []
    for place, length in enumerate(heads[0].lengths):
        row = [str(length)]
        for rate in range(len(RATES)):
            told, seen = law[:, place, rate], counted[:, place, rate]
            row += [
                number(float(seen.mean())),
                number(float(told.mean())),
                number(float(np.abs(told - seen).mean()), 4),
            ]
            row.append(number(correlation(told, seen), 3))
        rows.append(tuple(row))
    columns = (
        "L",
        *(f"{rate}: {what}" for rate in RATES for what in ("counted", "law", "mean |error|", "r over heads")),
    )
    return Table(f"{model}: means over {len(heads)} heads against length", columns, tuple(rows))


def changes_table(model: str, heads: Sequence[HeadLimits]) -> Table:
    """What another base or a scaling does to positions and to tokens, by the law; its error where it was counted."""
    own = of(heads, LAW)
    lengths = heads[0].lengths
    shown = [place for place, length in enumerate(lengths) if length in _SHOWN_LENGTHS]
    rows = []
    for name in ("own positions", *changes_of(heads)):
        law = own if name == "own positions" else of(heads, f"{name}, law")
        counted = of(heads, COUNTED if name == "own positions" else f"{name}, {COUNTED}")
        row = [name]
        for rate in (_POSITION, _TOKEN):
            row += [number(float(law[:, place, rate].mean())) for place in shown]
            row.append(number(float(np.nanmean(np.abs(law - counted)[:, :, rate])), 4))
        rows.append(tuple(row))
    named = (*(f"L={lengths[place]}" for place in shown), "mean |error|")
    columns = ("positions", *(f"{kind}: {name}" for kind in RATES[:2] for name in named))
    notes = ("mean over heads by the closed form of each query, content unchanged; error: against counting",)
    return Table(f"{model}: base and scaling, {len(heads)} heads", columns, tuple(rows), notes)


def endless_table(model: str, heads: Sequence[HeadLimits]) -> Table:
    """The longest context beside the endless one, means over heads with their extremes."""
    rows = []
    for place, rate in enumerate(RATES):
        values = (
            [head.of(COUNTED)[-1, place] for head in heads],
            [head.of(LAW)[-1, place] for head in heads],
            [head.endless(LAW)[place] for head in heads],
        )
        rows.append((rate, *(f"{np.mean(one):.4f} ({np.min(one):.4f} to {np.max(one):.4f})" for one in values)))
    longest = heads[0].lengths[-1]
    columns = ("rate", f"counted, L={longest}", f"law, L={longest}", "law, endless")
    error = np.mean([head.rates[head.series.index(LAW), -1, :2, 1] for head in heads])
    notes = (
        "mean over heads (least to greatest); endless: angles uniform on the closure of the rotary orbit, inversion of "
        f"a head with a standard error of {error:.4f}",
    )
    return Table(f"{model}: the asymptote", columns, tuple(rows), notes)


def heads_table(model: str, heads: Sequence[HeadLimits]) -> Table:
    """Every head: rates at some lengths, and its length of locality."""
    shown = [(rate, length) for rate, length in _SHOWN_OF_HEADS if length in heads[0].lengths]
    rows = []
    for head in heads:
        row = [f"{head.layer}.{head.head}"]
        for rate, length in shown:
            at = head.lengths.index(length), rate
            row.append(f"{number(head.of(COUNTED)[at])} / {number(head.of(LAW)[at])}")
        row.append(f"{_locality(head, COUNTED)} / {_locality(head, LAW)}")
        rows.append(tuple(row))
    columns = ("head", *(f"{RATES[rate]} L={length}" for rate, length in shown), "local to")
    return Table(f"{model}: counted / law, head by head", columns, tuple(rows))


def _locality(head: HeadLimits, series: str) -> str:
    found = head.locality(series)
    if found is None:
        return f"beyond {head.lengths[-1]}"
    return f"below {head.lengths[0]}" if found <= head.lengths[0] else f"{found:.0f}"


def _changed_errors(heads: Sequence[HeadLimits]) -> Float64[np.ndarray, "head"]:
    """Mean size of the error in position inversion under the changes, where it was counted."""
    errors = [
        np.abs(of(heads, f"{name}, law") - of(heads, f"{name}, {COUNTED}"))[:, :, _POSITION]
        for name in changes_of(heads)
    ]
    return np.nanmean(np.concatenate(errors, axis=1), axis=1)
