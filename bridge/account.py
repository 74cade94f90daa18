"""The main job: a run, its head, its prediction, fresh observations, and the comparison of both."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from bridge.compare import Comparison, Verdict
from bridge.documents import Document
from bridge.errors import BridgeError
from bridge.prediction import Prediction, predict
from bridge.sources.run import head_of_run
from empirics.observe import Observation, observe
from empirics.train import Run

LENGTHS = (12, 16, 20, 24, 32, 40, 48, 64, 128, 256, 512)
SEQUENCES = 40_000
OBSERVATION_SEED = 260_718_759


@dataclass(frozen=True, eq=False)
class Account:
    """What the theory said of a head of a run and what that did, on sequences that it had not seen."""

    run: Run
    head: int
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
    head: int = 0,
) -> Account:
    """Predict a head's attention `offset` tokens back (its target), observe it on fresh sequences, compare."""
    prediction = prediction_of(run, lengths, offset, head)
    observations = observe(run.model, lengths, sequences, torch.Generator().manual_seed(seed))
    return compare(run, prediction, observations, seed, head)


def prediction_of(run: Run, lengths: Sequence[int] = LENGTHS, offset: int | None = None, head: int = 0) -> Prediction:
    """What the theory says of a head at `offset` tokens back (its target).

    Raises BridgeError for linear attention, which has no softmax to dilute it.
    """
    if run.spec.attention == "linear":
        raise BridgeError(
            f"run {run.spec.id} has linear attention, of which no dilution law speaks: give a softmax run"
        )
    return predict(head_of_run(run, head), run.spec.offset if offset is None else offset, lengths)


def compare(
    run: Run, prediction: Prediction, observations: tuple[Observation, ...], seed: int, head: int = 0
) -> Account:
    """A prediction against observations of a head at the same lengths, drawn from one seed."""
    observed = np.array([seen.by_head[head][prediction.offset] for seen in observations])
    error = np.array([seen.error_by_head[head][prediction.offset] for seen in observations])
    axis = prediction.lengths
    return Account(
        run,
        head,
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
