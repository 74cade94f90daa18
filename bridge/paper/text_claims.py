"""What the paper prints in its text alone: alignments, larger offsets, training dynamics, retrieval by mode."""

from __future__ import annotations

from collections.abc import Mapping

from bridge.compare import Measured, over_seeds
from bridge.paper.measures import carrier_peak, key_fraction, mode_carriers, top_energy, trained_accuracy
from bridge.paper.target import CellKey, Printed, Target, rotary
from bridge.sources.run import head_of_run, heads_of_run
from bridge.tables import Table, number
from empirics.spec import run_spec
from empirics.train import Run
from theory.kernel import carrier_profile, selected_offset

SEEDS = 5
_ALIGNED = {1: (0.62, 0.71), 2: (0.83, 0.07), 3: (0.87, -0.40)}
_COSINES = ("cos(m_Q, R_-K m_K)", "cos(m_Q, m_K)")
_LARGER = (2, 3, 4, 5)
_DYNAMICS = {0: (0.04, 0.10), 200: (0.74, 0.50), 4000: (0.80, 0.50)}
_LOGGED = ("key fraction", "top-1 energy of W")
# Offset that each mode asks for, and where the carrier of each mode peaks with one head.
_MODES, _MODE_PEAKS, _HEADS = (1, 3), (0, -3), (1, 2)

# Runs stand in this order: the seeds of every aligned offset, larger offsets, steps of training, heads.
_SEEDED = tuple(spec for offset in _ALIGNED for spec in rotary(offset, SEEDS))
_FARTHER = tuple(spec for offset in _LARGER if offset not in _ALIGNED for spec in rotary(offset, 1))
_SEEN_EARLIER = tuple(run_spec(steps=steps) for steps in _DYNAMICS)
_CONDITIONED = tuple(run_spec(offset=_MODES[0], second_offset=_MODES[1], heads=heads) for heads in _HEADS)


def measure(runs: tuple[Run, ...]) -> Mapping[CellKey, Measured]:
    """Every number of the text from seed 0."""
    first, farther, earlier, conditioned = _parts(runs)
    cells: dict[CellKey, Measured] = {}
    for offset, several in first.items():
        for name, values in zip(_COSINES, _cosines(several), strict=True):
            cells[name, f"K={offset}"] = over_seeds(values[:1])
    peaks = {run.spec.offset: run for run in (*(several[0] for several in first.values()), *farther)}
    for offset in _LARGER:
        cells["carrier peak", f"K={offset}"] = over_seeds([float(carrier_peak(peaks[offset]))])
    for steps, run in zip(_DYNAMICS, earlier, strict=True):
        cells[_LOGGED[0], f"step {steps}"] = key_fraction([run])
        cells[_LOGGED[1], f"step {steps}"] = over_seeds([top_energy(run)])
    for heads, run in zip(_HEADS, conditioned, strict=True):
        cells["modes: in distribution", f"H={heads}"] = trained_accuracy([run])
    for mode, peak in enumerate(_mode_peaks(conditioned[0], 0, _longest(conditioned[0]))):
        cells["modes: carrier peak, H=1", f"mode {mode}"] = over_seeds([float(peak)])
    return cells


def beside(runs: tuple[Run, ...]) -> tuple[Table, ...]:
    """The alignments over five seeds, and the carriers of every mode and head."""
    first, _, _, conditioned = _parts(runs)
    rows = []
    for offset, several in first.items():
        found = [over_seeds(values) for values in _cosines(several)]
        rows.append((str(offset), *(f"{number(one.value)} ({number(one.spread)})" for one in found)))
    aligned = Table(f"alignments over {SEEDS} seeds (mean, s.d.)", ("K", *_COSINES), tuple(rows))
    return aligned, _modes(conditioned)


def _modes(conditioned: tuple[Run, ...]) -> Table:
    columns = ("H", "head", "carrier peaks, trained lengths", "carrier peaks, all lengths")
    rows = tuple(
        (
            str(run.spec.heads),
            str(index),
            *(
                "  ".join(map(str, _mode_peaks(run, index, length)))
                for length in (run.spec.train_lengths[1], _longest(run))
            ),
        )
        for run in conditioned
        for index in range(run.spec.heads)
    )
    return Table(f"mode carriers by head (modes ask for {' and '.join(map(str, _MODES))} back)", columns, rows)


def _cosines(runs: tuple[Run, ...]) -> tuple[list[float], list[float]]:
    carriers = [(head_of_run(run).carrier(), run.spec.offset) for run in runs]
    return [one.alignment(offset) for one, offset in carriers], [one.alignment(0) for one, _ in carriers]


def _mode_peaks(run: Run, index: int, length: int) -> list[int]:
    carriers = mode_carriers(heads_of_run(run)[index])
    return [selected_offset(carrier_profile(carrier, length)) for carrier in carriers]


def _longest(run: Run) -> int:
    return max(run.spec.evaluation_lengths)


def _parts(
    runs: tuple[Run, ...],
) -> tuple[dict[int, tuple[Run, ...]], tuple[Run, ...], tuple[Run, ...], tuple[Run, ...]]:
    left, parts = runs, []
    for specs in (_SEEDED, _FARTHER, _SEEN_EARLIER, _CONDITIONED):
        parts.append(left[: len(specs)])
        left = left[len(specs) :]
    seeded, farther, earlier, conditioned = parts
    first = {offset: seeded[index * SEEDS :][:SEEDS] for index, offset in enumerate(_ALIGNED)}
    return first, farther, earlier, conditioned


TARGET = Target(
    id="text-claims",
    title="numbers of the text: alignment, larger offsets, training dynamics at K=2, retrieval by mode; seed 0",
    statement="lemma-2",
    specs=_SEEDED + _FARTHER + _SEEN_EARLIER + _CONDITIONED,
    printed=(
        *(
            Printed(name, f"K={offset}", value, 2)
            for offset, values in _ALIGNED.items()
            for name, value in zip(_COSINES, values, strict=True)
        ),
        *(Printed("carrier peak", f"K={offset}", -offset, 0) for offset in _LARGER),
        *(
            Printed(name, f"step {steps}", value, 2)
            for steps, values in _DYNAMICS.items()
            for name, value in zip(_LOGGED, values, strict=True)
        ),
        *(Printed("modes: in distribution", f"H={heads}", 1.00, 2) for heads in _HEADS),
        *(Printed("modes: carrier peak, H=1", f"mode {mode}", peak, 0) for mode, peak in enumerate(_MODE_PEAKS)),
    ),
    measure=measure,
    notes=(
        "the printed alignments are those of seed 0, though five seeds stand beside them in the text",
        "the carrier of a mode is the query of its token beside the mean key of the content; it peaks over the "
        "evaluated lengths",
    ),
    beside=beside,
)
