"""The study `horizon`: how far a look-back holds in each precision, and what periodic schedules recognise.

Explicit heads in fp16, bf16 and fp32 as torch computes them (`bridge.studies.horizon_precision`), and trained
recognisers of regular languages (`bridge.studies.horizon_languages`).

Source: arXiv 2608.11909.
"""

from __future__ import annotations

from bridge.paper.target import Preset
from bridge.studies import horizon_languages as languages
from bridge.studies.horizon_precision import BARS, precision_findings
from bridge.studies.study import Findings, Place, Study


def measure(preset: Preset, place: Place) -> Findings:
    """Both halves: the explicit heads need no run, the recognisers are in the store."""
    explicit, trained = precision_findings(preset), languages.measure(preset, place)
    return Findings(
        {**trained.measured, **explicit.measured},
        (*trained.tables, *explicit.tables),
        {**trained.drawn, **explicit.drawn},
        (),
    )


STUDY = Study(
    id="horizon",
    title="periodic and conventional schedules: recognisers to 500 letters, explicit heads in each precision",
    statement="lookback-horizon",
    bars=(*languages.bars(), *BARS),
    measure=measure,
    notes=languages.NOTES,
    specs_at=languages.specs,
    cost="54 runs of some 10 s, then four minutes of one core for the explicit heads",
)
