"""Table 5: the rotary base. The kernel of equal weights, by theory alone, and what trained heads do; K = 2, seed 0."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from bridge.compare import Measured, over_seeds
from bridge.paper.measures import accuracy, at_length
from bridge.paper.target import CellKey, Printed, Target
from empirics.spec import Rotary, run_spec
from empirics.train import Run
from theory.certified import certified_maximum, kernel_enclosure
from theory.schedule import RotarySchedule

LONGEST, SELECTED_AT, FIRST_LAG = 48, 32, 4
_COLUMNS = ("g(1)/g(0)", f"max g(s)/g(0), s>={FIRST_LAG}", f"accuracy L={LONGEST}", f"offset L={SELECTED_AT}")
_DECIMALS = (2, 2, 2, 0)
_PRINTED = {
    1e3: (0.96, 0.67, 1.00, -2),
    1e4: (0.97, 0.75, 1.00, -2),
    1e5: (0.97, 0.79, 0.97, -2),
}


def measure(runs: tuple[Run, ...]) -> Mapping[CellKey, Measured]:
    """The kernel of a base and what the head that was trained with it does."""
    return {
        (f"base {base:g}", column): measured
        for base, run in zip(_PRINTED, runs, strict=True)
        for column, measured in zip(_COLUMNS, _row(base, run), strict=True)
    }


def _row(base: float, run: Run) -> tuple[Measured, ...]:
    schedule = RotarySchedule.geometric(run.spec.width, base)
    weights = np.full(run.spec.width // 2, 2 / run.spec.width)
    near = kernel_enclosure(weights, schedule, 1)
    far = certified_maximum(weights, schedule, FIRST_LAG, LONGEST).value
    selected = at_length(run, SELECTED_AT).selected_offset
    return (
        *(over_seeds([(value.lower + value.upper) / 2]) for value in (near, far)),
        accuracy([run], LONGEST),
        over_seeds([float(selected)]),
    )


TARGET = Target(
    id="table-5",
    title="rotary base: the kernel of equal weights and the trained head, K=2, seed 0",
    statement="base-sweep",
    specs=tuple(run_spec(encoding=Rotary(base=base)) for base in _PRINTED),
    printed=tuple(
        Printed(f"base {base:g}", column, value, decimals)
        for base, values in _PRINTED.items()
        for column, value, decimals in zip(_COLUMNS, values, _DECIMALS, strict=True)
    ),
    measure=measure,
    notes=(
        f"the maximum over s >= {FIRST_LAG} is taken, and certified, up to s = {LONGEST}; it is g({FIRST_LAG}), the "
        "shoulder of the peak at 0, and stays so up to 3e6 (`carrier verify base-sweep`)",
    ),
)
