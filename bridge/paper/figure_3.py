"""Figure 3: carrier-only profile and decay of the peak height, K = 3, 5 seeds."""

from __future__ import annotations

from collections.abc import Mapping

from matplotlib.figure import Figure

from bridge.compare import Measured, over_seeds
from bridge.figures.heads import carrier_figure
from bridge.paper.measures import carrier_peak, decay_fit, fit_numbers
from bridge.paper.target import CellKey, Printed, Target, rotary
from bridge.prediction import predict
from bridge.sources.run import head_of_run
from empirics.spec import EVALUATION_LENGTHS
from empirics.train import Run
from theory.kernel import carrier_profile

OFFSET, SEEDS = 3, 5


def measure(runs: tuple[Run, ...]) -> Mapping[CellKey, Measured]:
    """Where the carrier-only profile peaks, and how well the fit does."""
    return {
        ("K=3", "carrier peak"): over_seeds([float(carrier_peak(run)) for run in runs]),
        ("K=3", "R2"): fit_numbers(runs)[2],
    }


def draw(runs: tuple[Run, ...]) -> Figure:
    """Left the profiles of the carriers, right the observed peaks with fit and exact law."""
    axis = tuple(range(runs[0].spec.train_lengths[0], max(EVALUATION_LENGTHS) + 1))
    heads = [head_of_run(run) for run in runs]
    profiles = [carrier_profile(head.carrier(), max(EVALUATION_LENGTHS)) for head in heads]
    exact = [predict(head, OFFSET, axis).exact for head in heads]
    return carrier_figure(runs, profiles, axis, exact, decay_fit(runs))


TARGET = Target(
    id="figure-3",
    title="carrier-only profile and inverse-linear decay, K=3, 5 seeds",
    statement="corollary-2",
    specs=rotary(OFFSET, SEEDS),
    printed=(Printed("K=3", "carrier peak", -3, 0), Printed("K=3", "R2", 0.943, 3)),
    measure=measure,
    draw=draw,
    notes=(
        "every profile peaks at -K, with lower peaks about 2 pi tokens apart, where the fastest pair comes round; as "
        "one of them enters the context the peak height falls by a step, which the exact law has and the fit has not",
    ),
)
