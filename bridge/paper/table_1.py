"""Table 1: accuracy by length at K = 1, rotary and learned positions, mean over 8 seeds."""

from __future__ import annotations

from collections.abc import Mapping

from bridge.compare import Measured
from bridge.paper.measures import accuracy
from bridge.paper.target import CellKey, Printed, Target, learned, rotary
from empirics.spec import EVALUATION_LENGTHS
from empirics.train import Run

SEEDS = 8
_PRINTED = {
    "rope": (1.00, 1.00, 1.00, 1.00, 0.96, 0.91, 0.83),
    "ape": (1.00, 1.00, 0.09, 0.07, 0.08, 0.07, 0.07),
}


def measure(runs: tuple[Run, ...]) -> Mapping[CellKey, Measured]:
    """Accuracy of every encoding at every length."""
    of = {"rope": runs[:SEEDS], "ape": runs[SEEDS:]}
    return {(kind, f"L={length}"): accuracy(of[kind], length) for kind in of for length in EVALUATION_LENGTHS}


TARGET = Target(
    id="table-1",
    title="accuracy by length, K=1, mean over 8 seeds (chance .05; trained on lengths 8-16)",
    statement="lemma-1",
    specs=rotary(1, SEEDS) + learned(1, SEEDS),
    printed=tuple(
        Printed(kind, f"L={length}", value, 2)
        for kind, values in _PRINTED.items()
        for length, value in zip(EVALUATION_LENGTHS, values, strict=True)
    ),
    measure=measure,
)
