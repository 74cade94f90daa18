"""What became of a head under the arms of its surgery, and the tables of it.

Source: ours; `bridge.studies.real_surgery_arms` for the arms.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float64

from bridge.calibrated import CalibratedReport
from bridge.compare import LIMIT
from bridge.studies.real_surgery_arms import (
    ALONE,
    AS_IT_IS,
    BOTH,
    LONGEST,
    OTHER,
    QUERYS_PHASES,
    RANDOM,
    STEADY,
    WANTED,
    Arm,
)
from bridge.tables import Table, number


@dataclass(frozen=True, eq=False)
class Outcome:
    """Attention at the arm's offset at each length, predicted from the calibration text and observed on other text,
    each with its standard error, and the offset delta <= 0 of the highest attention observed."""

    arm: Arm
    lengths: tuple[int, ...]
    predicted: Float64[np.ndarray, "length"]
    predicted_error: Float64[np.ndarray, "length"]
    observed: Float64[np.ndarray, "length"]
    error: Float64[np.ndarray, "length"]
    selected: tuple[int, ...]

    @property
    def errors(self) -> Float64[np.ndarray, "length"]:
        """Predicted less observed."""
        return self.predicted - self.observed

    @property
    def deviations(self) -> Float64[np.ndarray, "length"]:
        """|predicted - observed| in standard errors of both together."""
        return np.abs(self.errors) / np.hypot(self.predicted_error, self.error)

    def at(self, length: int) -> float:
        """Observed attention at one of the lengths."""
        return float(self.observed[self.lengths.index(length)])


@dataclass(frozen=True, eq=False)
class Sibling:
    """A head that reads the same keys: its own offset delta, and attention observed there as it is and in each arm."""

    head: int
    offset: int
    before: float
    after: Mapping[str, float]


@dataclass(frozen=True, eq=False)
class Surgery:
    """A head, the rule that chose it, and what became of it.

    `shares` are 1 - E(e.x - 1)^2 by direction and text; `losses` the mean next-token losses (nats) of held-out windows
    in each arm that was run.
    """

    report: CalibratedReport
    rule: str
    outcomes: tuple[Outcome, ...]
    shares: Mapping[tuple[str, str], float]
    siblings: tuple[Sibling, ...]
    losses: Mapping[str, Float64[np.ndarray, "window"]]

    @property
    def name(self) -> str:
        """Layer and head."""
        return f"{self.report.layer}.{self.report.head}"

    def outcome(self, arm: str) -> Outcome:
        """That of an arm."""
        return next(one for one in self.outcomes if one.arm.name == arm)


def heads_table(surgeries: Sequence[Surgery]) -> Table:
    """Which heads, by which rule, and what their carriers are before and after."""
    rows = tuple(
        (
            one.name,
            one.rule,
            str(one.report.offset),
            number(one.report.share),
            number(one.report.prediction.carrier.energy, 1),
            number(one.report.prediction.margins[-1].value, 2),
            number(one.outcome(BOTH).arm.margin, 2),
            number(one.outcome(STEADY).arm.margin, 2),
            number(one.outcome(BOTH + WANTED).arm.energy, 1),
            f"{one.report.prediction.carrier.query_fraction:.2f} {one.report.prediction.carrier.key_fraction:.2f}",
        )
        for one in surgeries
    )
    columns = (
        "head",
        "rule",
        "offset",
        "predicted attention",
        "energy",
        "margin",
        "margin of the best carrier",
        "of the best on steady pairs",
        "energy for .9 at 8192",
        "queries, keys held by the means",
    )
    length = surgeries[0].report.prediction.lengths[-1]
    notes = (
        f"energies and margins in nats; predicted attention and margin at L={length}, margins of best carriers at the "
        f"same energy, over {LONGEST} tokens",
        "a pair is steady where the mean key holds half of its keys' mean square or more",
    )
    return Table("heads, chosen from the calibration text alone", columns, rows, notes)


def attention_table(one: Surgery) -> Table:
    """Attention at the offset by arm and length: predicted, observed and its standard error."""
    rows = tuple(
        (
            done.arm.name,
            str(-done.arm.offset),
            number(done.arm.energy, 1),
            number(done.arm.margin, 1),
            *(
                f"{told:.3f} {seen:.3f} ({error:.3f}){'' if selected == -done.arm.offset else f' at {selected}'}"
                for told, seen, error, selected in zip(
                    done.predicted, done.observed, done.error, done.selected, strict=True
                )
            ),
        )
        for done in one.outcomes
    )
    columns = ("arm", "offset", "energy", "margin", *(f"L={length}" for length in one.outcomes[0].lengths))
    notes = (
        "predicted from 257-token windows, observed on other text with its standard error over windows; 'at' names the "
        "offset of the highest attention where that is another",
    )
    return Table(f"head {one.name}: attention at the offset, predicted and observed", columns, rows, notes)


def errors_table(surgeries: Sequence[Surgery]) -> Table:
    """Mean and greatest absolute error of the prediction against length, over heads, by kind of arm, and how many arms
    at how many lengths are off by more than 3.5 standard errors."""
    lengths = tuple(dict.fromkeys(length for one in surgeries for length in one.outcomes[0].lengths))
    outcomes = [done for one in surgeries for done in one.outcomes]
    groups = {
        AS_IT_IS: [done for done in outcomes if done.arm.edit is None],
        ALONE: [done for done in outcomes if done.arm.name.startswith(ALONE)],
        BOTH: [done for done in outcomes if done.arm.name in (BOTH, BOTH + WANTED)],
        QUERYS_PHASES: [done for done in outcomes if done.arm.name == QUERYS_PHASES],
        "controls": [done for done in outcomes if done.arm.name in (OTHER, RANDOM)],
    }
    rows = tuple((name, *(_sizes(done, length) for length in lengths), *_beyond(done)) for name, done in groups.items())
    columns = ("arms", *(f"L={length}" for length in lengths), f"beyond {LIMIT} s.e.", "greatest, s.e.")
    notes = (
        "standard errors of prediction and observation together; beyond them: arms x lengths, out of how many (no bar)",
    )
    return Table("absolute error of the prediction: mean, greatest, number of heads times arms", columns, rows, notes)


def shares_table(surgeries: Sequence[Surgery]) -> Table:
    """How constant e.x is: 1 - E(e.x - 1)^2 by direction and text."""
    rows = tuple(
        (one.name, direction, text, number(share, 5))
        for one in surgeries
        for (direction, text), share in one.shares.items()
    )
    notes = ("both directions are of the calibration text, positions 64 and beyond of its windows",)
    return Table("a direction in which the inputs of a layer are constant", ("head", "e", "text", "share"), rows, notes)


def siblings_table(surgeries: Sequence[Surgery], length: int) -> Table:
    """What an edit of the key does to the heads that share it."""
    rows = tuple(
        (
            one.name,
            f"{one.report.layer}.{sibling.head}",
            str(sibling.offset),
            arm,
            f"{sibling.before:.3f}",
            f"{now:.3f}",
        )
        for one in surgeries
        for sibling in one.siblings
        for arm, now in sibling.after.items()
    )
    columns = ("head", "sibling", "its offset", "arm", "as it is", "after")
    return Table(f"heads that read the same keys: attention observed at their own offset, L={length}", columns, rows)


def losses_table(surgeries: Sequence[Surgery], before: Float64[np.ndarray, "window"], length: int) -> Table:
    """Mean next-token loss of held-out windows before and after, with the standard error of the paired difference."""
    rows = [("-", AS_IT_IS, number(float(before.mean()), 4), "-", "-")]
    for one in surgeries:
        for arm, after in one.losses.items():
            mean, error = paired(after - before)
            rows.append((one.name, arm, number(float(after.mean()), 4), number(mean, 4), number(error, 4)))
    columns = ("head", "arm", "loss, nats a token", "less the loss as it is", "its s.e.")
    return Table(f"loss on {len(before)} held-out windows of {length} tokens", columns, tuple(rows))


def paired(differences: Float64[np.ndarray, "window"]) -> tuple[float, float]:
    """The mean and its standard error over windows."""
    return float(differences.mean()), float(differences.std(ddof=1) / np.sqrt(len(differences)))


def _beyond(outcomes: Sequence[Outcome]) -> tuple[str, str]:
    """How many of the deviations exceed 3.5 standard errors, out of how many, and the greatest."""
    deviations = np.concatenate([done.deviations for done in outcomes])
    return f"{np.count_nonzero(deviations > LIMIT)} of {len(deviations)}", number(float(deviations.max()), 1)


def _sizes(outcomes: Sequence[Outcome], length: int) -> str:
    sizes = np.abs([done.errors[done.lengths.index(length)] for done in outcomes if length in done.lengths])
    return f"{sizes.mean():.3f} {sizes.max():.3f} ({len(sizes)})"
