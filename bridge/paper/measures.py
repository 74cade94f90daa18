"""Numbers that the paper's tables are made of, each from one run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from bridge.compare import Measured, over_seeds
from bridge.sources.run import head_of_run
from empirics.observe import Observation
from empirics.train import Run
from theory.dilution import InverseLinearFit, fit_inverse_linear
from theory.kernel import Margin, carrier_profile, margin, selected_offset


def at_length(run: Run, length: int) -> Observation:
    """What the run did at a length, directly after training."""
    return next(seen for seen in run.evaluation if seen.length == length)


def accuracy(runs: Sequence[Run], length: int) -> Measured:
    """Accuracy at a length over seeds."""
    seen = [at_length(run, length) for run in runs]
    return over_seeds([one.accuracy for one in seen], seen[0].accuracy_error)


def decay_fit(runs: Sequence[Run]) -> InverseLinearFit:
    """The fit of 1/a to the peak height, averaged over seeds before the fit as the paper does."""
    lengths = runs[0].spec.evaluation_lengths
    peaks = np.array([[seen.peak for seen in run.evaluation] for run in runs])
    return fit_inverse_linear(lengths, peaks.mean(axis=0))


def carrier_peak(run: Run) -> int:
    """Offset at which the carrier-only profile is highest, over the evaluated lengths."""
    return selected_offset(carrier_profile(head_of_run(run).carrier(), max(run.spec.evaluation_lengths)))


def carrier_margin(run: Run) -> Margin:
    """mu_L in nats of the carrier-only profile at the longest evaluated length."""
    return margin(carrier_profile(head_of_run(run).carrier(), max(run.spec.evaluation_lengths)), run.spec.offset)


def share_on_target(runs: Sequence[Run]) -> Measured:
    """Share of seed x length cells in which mean attention is highest at -K."""
    hits = [np.mean([seen.selected_offset == -run.spec.offset for seen in run.evaluation]) for run in runs]
    return over_seeds([float(hit) for hit in hits])


def fit_numbers(runs: Sequence[Run]) -> tuple[Measured, Measured, Measured]:
    """alpha, c and R^2 of `decay_fit`, with the spread of the same fits made seed by seed."""
    pooled, each = decay_fit(runs), [decay_fit([run]) for run in runs]
    alpha, c, r_squared = (over_seeds([getattr(fit, field) for fit in each]) for field in ("alpha", "c", "r_squared"))
    return replace(alpha, value=pooled.alpha), replace(c, value=pooled.c), replace(r_squared, value=pooled.r_squared)


def holds_in_range_only(run: Run) -> bool:
    """Whether a run is sure at trained lengths (accuracy 1.00 to two digits) and below .15 beyond them."""
    longest = run.spec.train_lengths[1]
    return all(seen.accuracy >= 0.995 if seen.length <= longest else seen.accuracy < 0.15 for seen in run.evaluation)
