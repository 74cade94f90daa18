"""Table 2: carrier fractions, peak of the carrier-only profile and decay fit at K = 1, 2, 3, 5 seeds."""

from __future__ import annotations

from collections.abc import Mapping

from bridge.compare import Measured, over_seeds
from bridge.paper.measures import carrier_peak, fit_numbers, share_on_target
from bridge.paper.target import CellKey, Printed, Target, rotary
from bridge.sources.run import head_of_run
from empirics.train import Run

SEEDS = 5
_COLUMNS = ("key fraction", "query fraction", "carrier peak", "alpha", "c", "R2", "share at -K")
_DECIMALS = (2, 2, 0, 2, 4, 3, 2)
_PRINTED = {
    1: (0.69, 0.68, 0, 0.82, 0.0220, 0.914, 1.00),
    2: (0.82, 0.86, -2, 1.06, 0.0067, 0.926, 1.00),
    3: (0.80, 0.86, -3, 1.00, 0.0096, 0.943, 1.00),
}


def measure(runs: tuple[Run, ...]) -> Mapping[CellKey, Measured]:
    """Every column for every K."""
    return {
        (f"K={offset}", column): measured
        for index, offset in enumerate(_PRINTED)
        for column, measured in zip(_COLUMNS, _row(runs[index * SEEDS : (index + 1) * SEEDS]), strict=True)
    }


def _row(runs: tuple[Run, ...]) -> tuple[Measured, ...]:
    carriers = [head_of_run(run).carrier() for run in runs]
    return (
        over_seeds([carrier.key_fraction for carrier in carriers]),
        over_seeds([carrier.query_fraction for carrier in carriers]),
        over_seeds([float(carrier_peak(run)) for run in runs]),
        *fit_numbers(runs),
        share_on_target(runs),
    )


TARGET = Target(
    id="table-2",
    title="carrier and decay by target offset, mean over 5 seeds",
    statement="lemma-2",
    specs=tuple(spec for offset in _PRINTED for spec in rotary(offset, SEEDS)),
    printed=tuple(
        Printed(f"K={offset}", column, value, decimals)
        for offset, values in _PRINTED.items()
        for column, value, decimals in zip(_COLUMNS, values, _DECIMALS, strict=True)
    ),
    measure=measure,
)
