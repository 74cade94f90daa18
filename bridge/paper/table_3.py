"""Table 3: the linear control. Linear attention at K = 2 beside the softmax; its numbers stand in section 7 only.

(W_Q, W_V) -> (-W_Q, -W_V) leaves every output of linear attention as it is and turns the sign of
cos(m_Q, R_-K m_K): that sign is no property of what was learned, so its size is compared.
"""

from __future__ import annotations

from collections.abc import Mapping

from bridge.compare import Measured, over_seeds
from bridge.paper.measures import accuracy, trained_accuracy
from bridge.paper.target import CellKey, Printed, Target, rotary
from bridge.sources.run import head_of_run
from bridge.tables import Table, number
from empirics.spec import RunSpec, run_spec
from empirics.train import Run
from theory.head import Carrier

OFFSET, SEEDS, LONGEST = 2, 5, 48
# Target offset and width of the linear runs; the first are the paper's, the others the test of the amended claim.
_LINEAR = ((OFFSET, 64), (1, 64), (3, 64), (OFFSET, 16))
_PRINTED = {
    "linear": {"|cos|": (0.1, 1), "key fraction": (0.07, 2), "in distribution": (0.96, 2), "L=48": (0.07, 2)},
    "softmax": {"|cos|": (0.83, 2), "key fraction": (0.80, 2), "L=48": (1.00, 2)},
}


def measure(runs: tuple[Run, ...]) -> Mapping[CellKey, Measured]:
    """Size of the alignment, key carrier fraction and accuracies of linear attention and of softmax at K = 2."""
    of = {"linear": runs[1 : 1 + SEEDS], "softmax": runs[:1]}
    return {(name, column): measured for name, several in of.items() for column, measured in _columns(several).items()}


def beside(runs: tuple[Run, ...]) -> tuple[Table, ...]:
    """Linear attention at other offsets and widths: what of the control depends on them, and what on the seed."""
    columns = ("K", "d", "cos of each seed", "|cos|", "key fraction", "query fraction", "in distribution", "L=48")
    rows = []
    for index, (offset, width) in enumerate(_LINEAR):
        several = runs[1 + index * SEEDS :][:SEEDS]
        carriers = [head_of_run(run).carrier() for run in several]
        signed = "  ".join(f"{carrier.alignment(offset):+.2f}" for carrier in carriers)
        query = over_seeds([carrier.query_fraction for carrier in carriers])
        found = _columns(several)
        cells = (found["|cos|"], found["key fraction"], query, found["in distribution"], found["L=48"])
        rows.append((str(offset), str(width), signed, *map(_with_spread, cells)))
    return (Table(f"linear attention by offset and width, {SEEDS} seeds (mean, s.d.)", columns, tuple(rows)),)


def _columns(runs: tuple[Run, ...]) -> dict[str, Measured]:
    carriers: list[Carrier] = [head_of_run(run).carrier() for run in runs]
    return {
        "|cos|": over_seeds([abs(carrier.alignment(runs[0].spec.offset)) for carrier in carriers]),
        "key fraction": over_seeds([carrier.key_fraction for carrier in carriers]),
        "in distribution": trained_accuracy(runs),
        f"L={LONGEST}": accuracy(runs, LONGEST),
    }


def _with_spread(measured: Measured) -> str:
    return f"{number(measured.value)} ({number(measured.spread)})"


def _linear(offset: int, width: int) -> tuple[RunSpec, ...]:
    return tuple(run_spec(attention="linear", offset=offset, width=width, seed=seed) for seed in range(SEEDS))


TARGET = Target(
    id="table-3",
    title=f"linear control at K={OFFSET}, d=64: linear attention ({SEEDS} seeds) and softmax (seed 0)",
    statement="linear-control",
    specs=rotary(OFFSET, 1) + tuple(spec for setting in _LINEAR for spec in _linear(*setting)),
    printed=tuple(
        Printed(name, column, value, decimals)
        for name, columns in _PRINTED.items()
        for column, (value, decimals) in columns.items()
    ),
    measure=measure,
    notes=(
        "|cos| is the size of cos(m_Q, R_-K m_K): linear attention is the same with -W_Q and -W_V, which turn its sign",
        "in distribution: the mean accuracy over the evaluated lengths that were trained",
        "the key fraction of linear attention scatters by its seed so far that one printed number says little of it",
    ),
    beside=beside,
)
