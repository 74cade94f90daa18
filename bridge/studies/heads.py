"""Positional and symbolic heads: constructed, trained on one task or two, and of real checkpoints.

    constructed   Index and Retrieval as explicit weights, held against their closed forms
    one layer     trained rotary heads, and heads without positions
    hops          a transformer on the number and on the letter task, by steps and by length
    checkpoints   SmolLM2-135M and stories260K on two texts each

Source: arXiv 2605.31558, metric of 2511.11579; the tasks, sizes and bars are ours.
"""

from __future__ import annotations

from bridge.paper.target import Preset
from bridge.studies import heads_checkpoints, heads_constructed, heads_hops, heads_one_layer
from bridge.studies.study import Findings, Place, Study
from empirics.specs import Spec
from empirics.train import one_thread

_PARTS = (heads_constructed, heads_one_layer, heads_hops, heads_checkpoints)


def specs(preset: Preset) -> tuple[Spec, ...]:
    """Every run that is trained for the study."""
    return (*heads_one_layer.specs(preset), *heads_hops.specs(preset))


def measure(preset: Preset, place: Place) -> Findings:
    """Every part at the size of a preset."""
    with one_thread():
        parts = [part.measure(preset, place) for part in _PARTS]
    return Findings(
        {key: value for part in parts for key, value in part.measured.items()},
        tuple(table for part in parts for table in part.tables),
        {name: figure for part in parts for name, figure in part.drawn.items()},
        tuple(reason for part in parts for reason in part.absent),
    )


STUDY = Study(
    id="heads",
    title="positional and symbolic heads: what a swap of two keys tells, and how far each kind reaches",
    statement="swap-scores",
    bars=tuple(bar for part in _PARTS for bar in part.BARS),
    measure=measure,
    notes=(
        "spread: over seeds, or for rank correlations the standard error by resampling heads",
        "what an item and a longer prompt are, the model's size, the temperature and the texts are ours: of the paper "
        "the abstract is at hand",
        "bars of the tasks were fixed after number had been tried once, before letter was seen beyond L=17; runs "
        "without positions were added to tell rotation from dilution, with their bar, before they were trained",
    ),
    specs_at=specs,
    cost="about a quarter of an hour of one core; what is trained or scored is kept, and not done again",
)
