"""Table 8: a width of 64 in one head and in four: rank, peak height and where the peak stands; K = 2, seed 0."""

from __future__ import annotations

from collections.abc import Mapping

from bridge.compare import LIMIT, Measured, Verdict, over_seeds
from bridge.paper.measures import at_length, top_energy
from bridge.paper.target import CellKey, Printed, Target
from bridge.sources.run import heads_of_run
from bridge.tables import Table, number
from empirics.observe import Observation
from empirics.spec import run_spec
from empirics.train import Run
from theory.exact_law import exact_profile
from theory.head import Head
from theory.kernel import mean_profile, selected_offset

LENGTHS = (12, 16, 24, 32, 48)
FORETOLD = (32, 48)
_ENERGY = {1: (0.50, 0.50), 4: (0.39, 0.57)}
_PEAK = {1: (0.83, 0.83, 0.82, 0.76, 0.69), 4: (0.67, 0.63, 0.44, 0.42, 0.30)}


def measure(runs: tuple[Run, ...]) -> Mapping[CellKey, Measured]:
    """Lowest and highest top-1 energy of a head, and the peak of attention averaged over heads."""
    cells = {}
    for run in runs:
        name = f"H={run.spec.heads}"
        energies = [top_energy(run, index) for index in range(run.spec.heads)]
        cells[name, "top-1 energy, lowest"] = over_seeds([min(energies)])
        cells[name, "top-1 energy, highest"] = over_seeds([max(energies)])
        for length in LENGTHS:
            seen = at_length(run, length)
            cells[name, f"L={length}"] = over_seeds([seen.peak], seen.peak_error)
    return cells


def beside(runs: tuple[Run, ...]) -> tuple[Table, ...]:
    """Where every peak stands with the accuracy there, and what the carriers of the heads foretell."""
    return _places(runs), _foretold(runs)


def _places(runs: tuple[Run, ...]) -> Table:
    columns = ("H", "L", "peak", "at offset", "accuracy", "offset of each head")
    rows = tuple(
        (
            str(run.spec.heads),
            str(seen.length),
            number(seen.peak),
            str(seen.selected_offset),
            number(seen.accuracy),
            "  ".join(map(str, seen.selected_by_head)),
        )
        for run in runs
        for seen in run.evaluation
    )
    return Table("where the peaks stand: the offset beside every height", columns, rows)


def _foretold(runs: tuple[Run, ...]) -> Table:
    columns = ("H", "head", "L", "observed", "mean profile", "exact law", "lead", "observed lead", "s.e.", "verdict")
    rows = tuple(
        (str(run.spec.heads), str(index), str(length), *_one(head, at_length(run, length), index))
        for run in runs
        for index, head in enumerate(heads_of_run(run))
        for length in FORETOLD
    )
    notes = (
        "observed, mean profile, exact law: the offset of the peak; lead: attention at the exact law's offset less "
        "that at the observed one",
        f"verdict of the exact law: the same offset, or a lead within {LIMIT} s.e. of the observed one, which is a tie",
    )
    return Table("the offset of every head's peak, from its weights and observed", columns, rows, notes)


def _one(head: Head, seen: Observation, index: int) -> tuple[str, ...]:
    """The standard error of a lead is at most the sum of those of the two heights."""
    law = exact_profile(head, seen.length)
    observed, errors = seen.by_head[index], seen.error_by_head[index]
    there, expected = -seen.selected_by_head[index], -selected_offset(law)
    lead, seen_lead = float(law[expected] - law[there]), observed[expected] - observed[there]
    error = errors[expected] + errors[there] if expected != there else 0.0
    verdict = Verdict.AGREES if abs(lead - seen_lead) <= LIMIT * error else Verdict.DEVIATES
    mean = selected_offset(mean_profile(head.carrier(), seen.length))
    return str(-there), str(mean), str(-expected), *(number(x, 4) for x in (lead, seen_lead, error)), verdict.value


TARGET = Target(
    id="table-8",
    title="top-1 energy of W by head and peak of attention, K=2, seed 0, a width of 64 in one head and in four",
    statement="heads",
    specs=tuple(run_spec(heads=heads, evaluation_lengths=LENGTHS) for heads in _PEAK),
    printed=tuple(
        Printed(f"H={heads}", column, value, 2)
        for heads, peaks in _PEAK.items()
        for column, value in zip(
            ("top-1 energy, lowest", "top-1 energy, highest", *(f"L={length}" for length in LENGTHS)),
            (*_ENERGY[heads], *peaks),
            strict=True,
        )
    ),
    measure=measure,
    notes=(
        "the peak is the maximum of attention averaged over sequences and heads, whatever offset it stands at: the "
        "table beside has that offset, which is not the target's at every length",
    ),
    beside=beside,
)
