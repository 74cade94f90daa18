"""Table 6: learned positions under weight decay, where they pin, and what inference-time fixes do; K = 2, 3 seeds."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

import numpy as np
from jaxtyping import Float32

from bridge.compare import LIMIT, Measured, Verdict, over_seeds
from bridge.paper.measures import accuracy, at_length
from bridge.paper.position_fixes import FIXES, Fix, observe_fixed
from bridge.paper.target import CellKey, Printed, Target
from bridge.tables import Table, number
from empirics.spec import LearnedPositions, RunSpec, run_spec
from empirics.train import Run
from theory.drift import CoupledAdam, Decay, NormLaw

DECAYS = (0.0, 1e-4, 1e-2)
SEEDS, LENGTH, NEAR = 3, 40, 20
_COLUMNS = ("OOD accuracy", "pin", "pin s.d.", "norm in", "norm out", "interpolated")
_DECIMALS = (2, 1, 1, 2, 2, 2)
_PRINTED = {
    0.0: (0.08, 7.3, 1.7, 8.18, 8.08, 0.05),
    1e-4: (0.10, 11.7, 1.2, 3.83, 0.20, 0.05),
    1e-2: (0.09, 12.7, 0.5, 0.66, 0.20, 0.06),
}
_FIXES = {"lowest": 0.05, "highest": 0.06}
_TIE = (
    "ours pins at 13 with every seed, but with seed 0 that is a tie, attention .091 at 12 and .092 at 13, and at this "
    "decay training amplifies rounding from step 2000 on: the plain trainer, sequence by sequence, has .096 at 12 and "
    ".086 at 13, so pins of 12, 13, 13, which are 12.7 and 0.5"
)
_DEVIATING = {(1e-2, column): (Verdict.DEVIATES, _TIE) for column in ("pin", "pin s.d.")}


def measure(runs: tuple[Run, ...]) -> Mapping[CellKey, Measured]:
    """Every column for every decay, and the range of all fixes over the decays."""
    groups = _by_decay(runs)
    cells = {
        (f"decay {decay:g}", column): measured
        for decay, several in groups.items()
        for column, measured in zip(_COLUMNS, _row(several), strict=True)
    }
    fixed = [_fixed(several, fix, LENGTH) for several in groups.values() for fix in FIXES.values()]
    cells["fixes", "lowest"] = min(fixed, key=lambda measured: measured.value)
    cells["fixes", "highest"] = max(fixed, key=lambda measured: measured.value)
    return cells


def beside(runs: tuple[Run, ...]) -> tuple[Table, ...]:
    """What the laws of weight decay say of the untrained rows, and each fix at two lengths."""
    groups = _by_decay(runs)
    return _norms(groups), _accuracies(groups)


def pin(run: Run, length: int = LENGTH) -> int:
    """The absolute position on which mean attention is highest."""
    return length - 1 + at_length(run, length).selected_offset


def _row(runs: tuple[Run, ...]) -> tuple[Measured, ...]:
    pins = [float(pin(run)) for run in runs]
    trained = runs[0].spec.train_lengths[1]
    norms = [np.linalg.norm(_table(run), axis=1) for run in runs]
    return (
        accuracy(runs, LENGTH),
        over_seeds(pins),
        Measured(float(np.std(pins)), None, 0.0),
        over_seeds([float(norm[:trained].mean()) for norm in norms]),
        over_seeds([float(norm[trained:].mean()) for norm in norms]),
        _fixed(runs, FIXES["interpolated"], LENGTH),
    )


@lru_cache(maxsize=32)
def _fixed(runs: tuple[Run, ...], fix: Fix, length: int) -> Measured:
    """Accuracy through a fix over seeds; kept, since `measure` and `beside` both show it."""
    return over_seeds([observe_fixed(run, fix, length).accuracy for run in runs])


def _table(run: Run) -> Float32[np.ndarray, "position width"]:
    assert run.model.positions is not None
    return run.model.positions.detach().numpy()


def _by_decay(runs: tuple[Run, ...]) -> dict[float, tuple[Run, ...]]:
    return {decay: runs[index * SEEDS :][:SEEDS] for index, decay in enumerate(DECAYS)}


def _norms(groups: Mapping[float, tuple[Run, ...]]) -> Table:
    """The mean norm of the untrained rows beside both laws; a mean over n rows scatters by spread/sqrt(n)."""
    told = ("coupled Adam", "s.e.", "verdict", "SGD, AdamW", "s.e.", "verdict")
    columns = ("decay", "untrained rows", "observed", *told)
    rows = []
    for decay, runs in groups.items():
        spec, trained = runs[0].spec, runs[0].spec.train_lengths[1]
        norms = np.concatenate([np.linalg.norm(_table(run)[trained:], axis=1) for run in runs])
        laws = [law(spec.learning_rate, decay).row_norm(spec.width, spec.steps) for law in (CoupledAdam, Decay)]
        cells = [cell for law in laws for cell in _against(law, float(norms.mean()), len(norms))]
        rows.append((f"{decay:g}", str(len(norms)), number(float(norms.mean())), *cells))
    return Table("norm of the untrained rows: what the laws of weight decay give", columns, tuple(rows))


def _against(law: NormLaw, observed: float, count: int) -> tuple[str, str, str]:
    error = law.scatter(count)
    verdict = Verdict.AGREES if abs(law.mean - observed) <= LIMIT * error else Verdict.DEVIATES
    return number(law.mean), number(error), verdict.value


def _accuracies(groups: Mapping[float, tuple[Run, ...]]) -> Table:
    columns = ("decay", "L", "as trained", *FIXES)
    rows = tuple(
        (
            f"{decay:g}",
            str(length),
            number(accuracy(runs, length).value),
            *(number(_fixed(runs, fix, length).value) for fix in FIXES.values()),
        )
        for decay, runs in groups.items()
        for length in (NEAR, LENGTH)
    )
    return Table(f"accuracy through inference-time fixes, mean over {SEEDS} seeds", columns, rows)


def _learned(decay: float) -> tuple[RunSpec, ...]:
    return tuple(run_spec(encoding=LearnedPositions(decay=decay), seed=seed) for seed in range(SEEDS))


TARGET = Target(
    id="table-6",
    title=f"learned positions under weight decay, K=2, {SEEDS} seeds, L_max=16 (16-1-K = 13), observed at L={LENGTH}",
    statement="proposition-2",
    specs=tuple(spec for decay in DECAYS for spec in _learned(decay)),
    printed=(
        *(
            Printed(f"decay {decay:g}", column, value, decimals, *_DEVIATING.get((decay, column), ()))
            for decay, values in _PRINTED.items()
            for column, value, decimals in zip(_COLUMNS, values, _DECIMALS, strict=True)
        ),
        *(Printed("fixes", column, value, 2) for column, value in _FIXES.items()),
    ),
    measure=measure,
    notes=(
        "decay is Adam's coupled L2 on the position table alone; the spread of pins is the population's (ddof 0)",
        f"the length is not stated: at L={LENGTH} the pins, norms and fixes come back together",
        f"not every fix fails at every length: at L={NEAR} cutting the rescaled index leaves the last positions their "
        "distance, and accuracy is that of trained lengths",
    ),
    beside=beside,
)
