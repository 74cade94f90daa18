"""Table 4: carrier fraction and decay fit across width, vocabulary, training lengths and temperature; K = 2, seed 0."""

from __future__ import annotations

from collections.abc import Mapping

from bridge.compare import Measured
from bridge.paper.measures import fit_numbers, key_fraction
from bridge.paper.target import CellKey, Printed, Target
from empirics.spec import run_spec
from empirics.train import Run

_KNOBS = {"d": "width", "m": "vocabulary", "lengths": "train_lengths", "temperature": "temperature"}
_COLUMNS = ("carrier fraction", "alpha", "c", "R2")
_DECIMALS = (2, 2, 4, 2)
_PRINTED = {
    ("d", 32): (0.84, 0.80, 0.0171, 0.82),
    ("d", 64): (0.80, 1.09, 0.0070, 0.93),
    ("d", 128): (0.81, 1.27, 0.0004, 0.91),
    ("m", 10): (0.81, 1.14, 0.0060, 0.93),
    ("m", 20): (0.80, 1.09, 0.0070, 0.93),
    ("m", 40): (0.82, 1.06, 0.0072, 0.94),
    ("lengths", (8, 16)): (0.80, 1.09, 0.0070, 0.93),
    ("lengths", (4, 12)): (0.78, 1.01, 0.0135, 0.94),
    ("lengths", (8, 32)): (0.82, 1.15, 0.0021, 0.72),
    ("temperature", 0.5): (0.86, 1.15, 0.0085, 0.93),
    ("temperature", 1.0): (0.80, 1.09, 0.0070, 0.93),
    ("temperature", 2.0): (0.73, 1.01, 0.0075, 0.94),
}


def row(knob: str, value: object) -> str:
    """Name of a row: the knob and its value, a range of lengths as 8-16."""
    return f"{knob} {'-'.join(map(str, value)) if isinstance(value, tuple) else value}"


def measure(runs: tuple[Run, ...]) -> Mapping[CellKey, Measured]:
    """Key carrier fraction and decay fit of every row's run."""
    return {
        (row(*knob), column): measured
        for knob, run in zip(_PRINTED, runs, strict=True)
        for column, measured in zip(_COLUMNS, (key_fraction([run]), *fit_numbers([run])), strict=True)
    }


TARGET = Target(
    id="table-4",
    title="key carrier fraction and decay fit across settings, K=2, seed 0 (reference: d 64, m 20, 8-16, 1.0)",
    statement="corollary-2",
    specs=tuple(run_spec(**{_KNOBS[knob]: value}) for knob, value in _PRINTED),
    printed=tuple(
        Printed(row(*knob), column, value, decimals)
        for knob, values in _PRINTED.items()
        for column, value, decimals in zip(_COLUMNS, values, _DECIMALS, strict=True)
    ),
    measure=measure,
    notes=("temperature multiplies the logits", "the reference setting is one run that stands in four rows"),
)
