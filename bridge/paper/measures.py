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
from theory.head import Carrier, Head
from theory.kernel import Margin, carrier_profile, margin, selected_offset


def at_length(run: Run, length: int) -> Observation:
    """What the run did at a length, directly after training."""
    return next(seen for seen in run.evaluation if seen.length == length)


def accuracy(runs: Sequence[Run], length: int) -> Measured:
    """Accuracy at a length over seeds."""
    seen = [at_length(run, length) for run in runs]
    return over_seeds([one.accuracy for one in seen], seen[0].accuracy_error)


def trained_accuracy(runs: Sequence[Run]) -> Measured:
    """Accuracy in distribution: the mean over the evaluated lengths that were trained, over seeds."""
    seen = [[one for one in run.evaluation if one.length <= run.spec.train_lengths[1]] for run in runs]
    errors = [one.accuracy_error for one in seen[0]]
    sampling_error = float(np.linalg.norm(errors)) / len(errors)
    return over_seeds([float(np.mean([one.accuracy for one in several])) for several in seen], sampling_error)


def decay_fit(runs: Sequence[Run]) -> InverseLinearFit:
    """The fit of 1/a to the peak height, averaged over seeds before the fit as the paper does."""
    lengths = runs[0].spec.evaluation_lengths
    peaks = np.array([[seen.peak for seen in run.evaluation] for run in runs])
    return fit_inverse_linear(lengths, peaks.mean(axis=0))


def key_fraction(runs: Sequence[Run]) -> Measured:
    """Key carrier fraction |m_K|^2 / E|k|^2 over seeds."""
    return over_seeds([head_of_run(run).carrier().key_fraction for run in runs])


def carrier_peak(run: Run) -> int:
    """Offset at which the carrier-only profile is highest, over the evaluated lengths."""
    return selected_offset(carrier_profile(head_of_run(run).carrier(), max(run.spec.evaluation_lengths)))


def carrier_margin(run: Run) -> Margin:
    """mu_L in nats of the carrier-only profile at the longest evaluated length."""
    return margin(carrier_profile(head_of_run(run).carrier(), max(run.spec.evaluation_lengths)), run.spec.offset)


def mode_carriers(head: Head) -> tuple[Carrier, ...]:
    """The carrier of every query of a head beside the mean key: where the queries are modes, one a mode."""
    key_mean = head.carrier().key_mean
    return tuple(Carrier.from_means(head.schedule, query, key_mean, head.logit_scale) for query in head.queries)


def top_energy(run: Run, index: int = 0) -> float:
    """Share of the largest singular value in W = W_Q^T W_K of one head: s_1^2 / sum s^2."""
    lanes = slice(index * run.spec.head_width, (index + 1) * run.spec.head_width)
    query, key = (weight.detach().double().numpy()[lanes] for weight in (run.model.query, run.model.key))
    energies = np.square(np.linalg.svd(query.T @ key, compute_uv=False))
    return float(energies[0] / energies.sum())


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
