"""Carriers of a run replaced by designed ones: what is written, what the theory says of it, what the edited run does.

    run -> heads -> design (linear program) -> energy -> mean vectors -> rank-one edits of W_Q and W_K -> edited run

Nothing is trained, no residual is touched, and no number is fitted: the prediction is the exact law of the edited
head, whose weights are the edited run's own.

Source: ours; the account that is used is that of arXiv 2607.18759.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Float64

from bridge.account import OBSERVATION_SEED, Account, compare, prediction_of
from bridge.designs import needed_energy
from bridge.errors import BridgeError
from bridge.sources.run import heads_of_run, readout_of_run
from empirics.edit import edited
from empirics.means import Means
from empirics.observe import observe
from empirics.observe_tables import observe_by_tables
from empirics.spec import Rotary
from empirics.train import Run
from theory.accuracy import AccuracyLaw, accuracy_law
from theory.certified import CertifiedMargin
from theory.content_costs import check_logits
from theory.design import (
    Design,
    design_carrier,
    energy_for_accuracy,
    energy_for_attention,
    energy_of_means,
)
from theory.exact_law import exact_law, exact_moments
from theory.head import Carrier, Head

_LAW_ERROR = 1e-8
_SHORT_OF = 1e-4
_MORE = 1.001
"""Above an energy that is known to half of that."""


@dataclass(frozen=True)
class Wanted:
    """What a repaired head is to reach at a length in tokens: attention on its target, accuracy, or energy (nats).

    Raises BridgeError unless one of the three is given.
    """

    length: int
    attention: float | None = None
    accuracy: float | None = None
    energy: float | None = None

    def __post_init__(self) -> None:
        given = [name for name in ("attention", "accuracy", "energy") if getattr(self, name) is not None]
        if len(given) != 1:
            raise BridgeError(
                f"a repair needs one of --attention, --accuracy and --energy, got {' and '.join(given) or 'none'}"
            )


@dataclass(frozen=True)
class Energies:
    """Energies sum r_i of one head in nats: as trained, as written, and what the attention that was wanted takes.

    `bound` is enough by the margin, `means` by the softmax of the means, `content` by the exact law of the head with
    its residuals; they are None where no attention was asked for.
    """

    trained: float
    written: float
    bound: float | None = None
    means: float | None = None
    content: float | None = None

    @property
    def overshoot(self) -> float | None:
        """bound / content: by how much the bound asks for more than the head takes; below 1 where it is not enough.

        None where no attention was asked for, or the residuals alone have it.
        """
        return self.bound / self.content if self.bound and self.content else None


@dataclass(frozen=True, eq=False)
class Repair:
    """A run and its edited copy, each predicted and then observed, head by head, at the same lengths.

    `margin` is the design's, certified, per nat of energy. The errors of the exact law's comparison are those of the
    sample, or the law's own where it has more (`law_and_error`). `accuracy` are the accuracy laws of the run and its
    copy where they have one head, else None.
    """

    wanted: Wanted
    design: Design
    margin: CertifiedMargin
    energies: tuple[Energies, ...]
    before: tuple[Account, ...]
    after: tuple[Account, ...]
    accuracy: tuple[AccuracyLaw, AccuracyLaw] | None

    @property
    def run(self) -> Run:
        """The edited run."""
        return self.after[0].run

    @property
    def reached(self) -> bool:
        """Whether the laws of the edited run come to what was wanted; an energy is what it is."""
        told = self.after[0].exact
        if self.wanted.accuracy is not None and self.accuracy is not None:
            law = self.accuracy[1]
            return bool(law.point[law.lengths.index(self.wanted.length)] >= self.wanted.accuracy - _SHORT_OF)
        if self.wanted.attention is None:
            return True
        at = told.lengths.index(self.wanted.length)
        return all(one.exact.predicted[at] >= self.wanted.attention - _SHORT_OF for one in self.after)

    @property
    def agrees(self) -> bool:
        """Whether the exact law agrees at every length with every head, edited or not."""
        return all(told.agrees for told in (*self.before, *self.after))


def repair_run(
    run: Run,
    sha256: str,
    wanted: Wanted,
    lengths: Sequence[int],
    sequences: int,
    offset: int | None = None,
    seed: int = OBSERVATION_SEED,
) -> Repair:
    """Replace the carrier of every head by the best one for `offset` tokens back (the target), predict, then observe.

    `sha256` is that of the run's weights. With another offset than the target the head is moved there, and the
    task of the edited run is that offset. `lengths` hold that of `wanted`. Raises BridgeError as `check_repairable`
    and `prescribe`, TheoryError where no margin is possible over the length, where what is wanted is out of reach, or
    where float32 does not hold the logits, EmpiricsError where the edit cannot be written exactly.
    """
    check_repairable(run)
    back = run.spec.offset if offset is None else offset
    heads = heads_of_run(run)
    design = design_carrier(heads[0].schedule, back, wanted.length)
    energies = tuple(prescribe(run, head, design, wanted) for head in heads)
    carriers = [
        design.carrier(energy.written, head.logit_scale, head.carrier())
        for head, energy in zip(heads, energies, strict=True)
    ]
    for head, made in zip(heads, carriers, strict=True):
        check_logits(head.with_means(made.query_mean, made.key_mean), max(wanted.length, *lengths))
    edited_run = with_carriers(run, sha256, carriers, back)
    both = (run, edited_run)
    laws = (_accuracy(run, lengths), _accuracy(edited_run, lengths)) if run.spec.heads == 1 else None
    before, after = (_accounts(one, lengths, sequences, seed) for one in both)
    return Repair(wanted, design, design.certified(), energies, before, after, laws)


def check_repairable(run: Run) -> None:
    """Raises BridgeError for a run that no one carrier makes select: without rotary positions, with linear attention,
    or with two offsets."""
    spec = run.spec
    if not isinstance(spec.encoding, Rotary):
        raise BridgeError(
            f"run {spec.id} has no rotary positions ({spec.encoding.kind}), so that no carrier makes it look at an "
            "offset: give a rotary run"
        )
    if spec.second_offset is not None:
        raise BridgeError(
            f"run {spec.id} selects by mode, {spec.offset} or {spec.second_offset} back, which one carrier cannot do: "
            "give a run with one offset"
        )
    if spec.attention == "linear":
        raise BridgeError(f"run {spec.id} has linear attention, which nothing dilutes: give a softmax run")


def prescribe(run: Run, head: Head, design: Design, wanted: Wanted) -> Energies:
    """The energy that is written for what is wanted.

    For an attention it is the bound's where the exact law of the edited head then has it, else what that law takes.
    Raises BridgeError for an accuracy of several heads and as `needed_energy`, TheoryError where it is out of reach.
    """
    own = head.carrier()
    if wanted.energy is not None:
        return Energies(own.energy, wanted.energy)
    if wanted.accuracy is not None:
        if run.spec.heads > 1:
            raise BridgeError(
                f"run {run.spec.id} has {run.spec.heads} heads, and the accuracy law is that of one: give --attention"
            )
        least = energy_for_accuracy(head, readout_of_run(run), design, wanted.accuracy)
        if least == 0:
            raise BridgeError(
                f"accuracy {wanted.accuracy:g} at length {design.length} is there without a carrier: ask for more"
            )
        return Energies(own.energy, _MORE * least)
    assert wanted.attention is not None
    bound, content = needed_energy(design, wanted.attention), energy_for_attention(head, design, wanted.attention)
    made = design.carrier(bound, head.logit_scale, own)
    edited_head = head.with_means(made.query_mean, made.key_mean)
    enough = exact_law(edited_head, design.offset, [design.length], _LAW_ERROR)[0] >= wanted.attention
    written = bound if enough else _MORE * content
    return Energies(own.energy, written, bound, energy_of_means(design, wanted.attention), content)


def with_carriers(run: Run, sha256: str, carriers: Sequence[Carrier], offset: int | None = None) -> Run:
    """An edited copy of a run, a carrier a head, evaluated as a trained run is. Raises EmpiricsError as `edited`."""
    means = Means(
        query=tuple(np.concatenate([carrier.query_mean for carrier in carriers]).tolist()),
        key=tuple(np.concatenate([carrier.key_mean for carrier in carriers]).tolist()),
    )
    made = edited(run, sha256, means, offset)
    spec, generator = made.spec, torch.Generator().manual_seed(made.spec.seed)
    seen = observe_by_tables(made.model, spec.evaluation_lengths, spec.evaluation_sequences, generator)
    return replace(made, evaluation=seen)


def with_temperature(run: Run, factor: float) -> Run:
    """A run with its logits multiplied, as a person would who hopes that sharper is enough; not observed."""
    spec = run.spec.model_copy(update={"temperature": run.spec.temperature * factor})
    model = copy.deepcopy(run.model)
    model.spec = spec
    return replace(run, spec=spec, model=model, evaluation=())


def law_and_error(
    head: Head, offset: int, lengths: Sequence[int], sequences: Sequence[int]
) -> tuple[Float64[np.ndarray, "length"], Float64[np.ndarray, "length"]]:
    """The exact law's attention at each length, and the standard error that it gives a mean over so many sequences.

    What a sure head loses it loses in rare sequences. A sample without them has a mean that is too high and next to
    no spread, so that its own standard error would refute a law that is right; the error under the law does not.
    """
    mean, deviation = exact_moments(head, offset, lengths, _LAW_ERROR)
    return mean, deviation / np.sqrt(sequences)


def _accounts(run: Run, lengths: Sequence[int], sequences: int, seed: int) -> tuple[Account, ...]:
    """Every head of a run, predicted, then observed on the same fresh sequences."""
    offset, heads = run.spec.offset, heads_of_run(run)
    predictions = [prediction_of(run, lengths, head=head) for head in range(run.spec.heads)]
    errors = [law_and_error(head, offset, lengths, [sequences] * len(lengths))[1] for head in heads]
    seen = observe(run.model, lengths, sequences, torch.Generator().manual_seed(seed))
    told = [compare(run, prediction, seen, seed, head) for head, prediction in enumerate(predictions)]
    return tuple(
        replace(one, exact=replace(one.exact, standard_error=np.maximum(one.exact.standard_error, error)))
        for one, error in zip(told, errors, strict=True)
    )


def _accuracy(run: Run, lengths: Sequence[int]) -> AccuracyLaw:
    (head,) = heads_of_run(run)
    return accuracy_law(head, readout_of_run(run), run.spec.offset, lengths)
