"""The main job: a run, its head, its prediction, fresh observations, and the comparison of both."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from bridge.compare import Comparison, Verdict
from bridge.documents import Document
from bridge.prediction import Prediction, predict
from bridge.sources.run import head_of_run
from empirics.observe import Observation, observe
from empirics.train import Run

LENGTHS = (12, 16, 20, 24, 32, 40, 48, 64, 128, 256, 512)
SEQUENCES = 40_000
OBSERVATION_SEED = 260_718_759


@dataclass(frozen=True, eq=False)
class Account:
    """What the theory said of a run and what the run did, on sequences that it had not seen."""

    run: Run
    prediction: Prediction
    observations: tuple[Observation, ...]
    seed: int
    exact: Comparison
    mean_profile: Comparison

    @property
    def agrees(self) -> bool:
        """Whether the exact law, which has no unmet assumption here, agrees at every length."""
        return self.exact.verdict is Verdict.AGREES


def account(
    run: Run,
    lengths: Sequence[int] = LENGTHS,
    sequences: int = SEQUENCES,
    offset: int | None = None,
    seed: int = OBSERVATION_SEED,
) -> Account:
    """Predict a run's attention `offset` tokens back (its target), observe it on fresh sequences, compare."""
    prediction = prediction_of(run, lengths, offset)
    observations = observe(run.model, lengths, sequences, torch.Generator().manual_seed(seed))
    return compare(run, prediction, observations, seed)


def prediction_of(run: Run, lengths: Sequence[int] = LENGTHS, offset: int | None = None) -> Prediction:
    """What the theory says of a run at `offset` tokens back (its target)."""
    return predict(head_of_run(run), run.spec.offset if offset is None else offset, lengths)


def compare(run: Run, prediction: Prediction, observations: tuple[Observation, ...], seed: int) -> Account:
    """A prediction against observations of a run at the same lengths, drawn from one seed."""
    observed = np.array([seen.attention[prediction.offset] for seen in observations])
    error = np.array([seen.attention_error[prediction.offset] for seen in observations])
    axis = prediction.lengths
    return Account(
        run,
        prediction,
        observations,
        seed,
        Comparison("exact law", axis, prediction.exact, observed, error),
        Comparison("mean-profile law", axis, prediction.mean_profile, observed, error, prediction.residuals()),
    )


def account_document(told: Account) -> Document:
    """What an observation adds to the document of `carrier predict`."""
    return {
        "observed": told.exact.observed.tolist(),
        "standard_error": told.exact.standard_error.tolist(),
        "observed_offset": [seen.selected_offset for seen in told.observations],
        "verdicts": {"exact": told.exact.verdict.value, "mean_profile": told.mean_profile.verdict.value},
        "observation_seed": told.seed,
    }
