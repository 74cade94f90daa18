"""Recognisers of (aa)*, (ab)* and a-then-anything, trained to 40 letters and asked at every length to 500.

A transformer (2 layers, width 32, 4 heads) reads a begin token and a word, and says of every prefix whether it belongs
to the language. It is trained for 500 steps of 64 words at 3e-3: with periodic schedules, conventional ones of base
1, 1e4 and 1e12, and without positions. A run is right at a length where it is right on every prefix so long; half of
the words miss by one letter somewhere.

Source: arXiv 2608.11909 for languages and lengths; model, training, near misses and seeds are ours.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float64

from bridge.compare import Measured, Verdict, over_seeds
from bridge.paper.target import Bound, CellKey, Preset, Printed
from bridge.studies.study import Findings, Place
from bridge.tables import Table, number
from empirics.encoding_specs import NoPositions, PeriodicRotary, Rotary
from empirics.sequence_spec import SequenceSpec, sequence_spec
from empirics.store import Store
from empirics.train import SequenceRun

LANGUAGES = {"aa": "(aa)*", "abab": "(ab)*", "a-first": "a then anything"}
"""Languages by their name in a spec, and as they are written."""
PERIODIC, MIXED = "periodic, 2", "periodic, 2 and 3"
ENCODINGS: Mapping[str, Any] = {
    PERIODIC: PeriodicRotary(moduli=(2,)),
    MIXED: PeriodicRotary(moduli=(2, 3)),
    "base 1": Rotary(base=1),
    "base 1e4": Rotary(base=1e4),
    "base 1e12": Rotary(base=1e12),
    "none": NoPositions(),
}
"""Encodings by the name that tables give them."""
CONVENTIONAL = ("base 1", "base 1e4", "base 1e12")
RIGHT = "seeds at 1.00 at every length"
BEST = "best conventional base"

_TRAINED, _LONGEST = 40, 500
_NOT_ITS_PERIOD = "half of the pairs have period 3, which is not the language's; with period 2 alone the bar is met"
_SEEDS = (10, 11, 12)


@dataclass(frozen=True, eq=False)
class Recogniser:
    """One language with one encoding: accuracy of each seed at prefixes of 1, 2, ... letters."""

    language: str
    encoding: str
    accuracy: Float64[np.ndarray, "seed length"]

    @property
    def beyond(self) -> Float64[np.ndarray, "seed length"]:
        """At the lengths that were not trained."""
        return self.accuracy[:, _TRAINED:]

    @property
    def right(self) -> int:
        """Seeds that are right on every word of every length beyond training."""
        return int((self.beyond == 1).all(axis=1).sum())


def specs(preset: Preset) -> tuple[SequenceSpec, ...]:
    """A run for every language, encoding and seed."""
    return tuple(
        _spec(language, encoding, seed, preset)
        for language in LANGUAGES
        for encoding in ENCODINGS
        for seed in _seeds(preset)
    )


def measure(preset: Preset, place: Place) -> Findings:
    """Accuracy at every length, and how many seeds are right at all of them."""
    from bridge.figures.horizon_languages import languages_figure

    store = Store(place.runs)
    found = [
        Recogniser(
            language, encoding, _accuracy([store.load(_spec(language, encoding, seed, preset)) for seed in seeds])
        )
        for seeds in [_seeds(preset)]
        for language in LANGUAGES
        for encoding in ENCODINGS
    ]
    measured: dict[CellKey, Measured] = {(_row(one), RIGHT): over_seeds([float(one.right)]) for one in found}
    best = max(one.right for one in found if one.language == "a-first" and one.encoding in CONVENTIONAL)
    measured[f"{LANGUAGES['a-first']}, {BEST}", RIGHT] = over_seeds([float(best)])
    return Findings(measured, (_table(found),), {"languages": languages_figure(found, _TRAINED)}, ())


def bars() -> tuple[Printed, ...]:
    """Two seeds of three with periodic schedules, and not with any conventional base."""
    modular = tuple(LANGUAGES[name] for name in ("aa", "abab"))
    return (
        *(Printed(f"{name}, {PERIODIC}", RIGHT, 2, 0, bound=Bound.AT_LEAST) for name in modular),
        *(
            Printed(f"{name}, {MIXED}", RIGHT, 2, 0, Verdict.DEVIATES, _NOT_ITS_PERIOD, Bound.AT_LEAST)
            for name in modular
        ),
        *(
            Printed(f"{name}, {encoding}", RIGHT, 1, 0, bound=Bound.AT_MOST)
            for name in modular
            for encoding in (*CONVENTIONAL, "none")
        ),
        Printed(f"{LANGUAGES['a-first']}, {BEST}", RIGHT, 2, 0, bound=Bound.AT_LEAST),
    )


NOTES = (
    "at a length n: over the prefixes of n letters of 256 words of 500, of which a share n/1000 has its miss by then; "
    "asked on fresh words of each even length, a dozen near misses each, modulus 2 has the same counts",
    "a then anything: by seeds modulus 2 and no positions are right in 3 of 3, the best base in 2 of 3, while their "
    "mean accuracies are all 1.000: the bar does not say that nothing beats a conventional base",
    f"sizes and steps were chosen on seeds 0 to 2, the study's seeds are {', '.join(map(str, _SEEDS))}; the bar was "
    "set for moduli 2 and 3, which these three had favoured, and that for modulus 2 added when the study had been seen",
    "modulus 2 is no certainty: on seeds 0 to 2 one of three was right at every length, of either language",
)


def _spec(language: str, encoding: str, seed: int, preset: Preset) -> SequenceSpec:
    paper = preset is Preset.PAPER
    return sequence_spec(
        task={"kind": "language", "language": language},
        encoding=ENCODINGS[encoding],
        seed=seed,
        layers=2,
        width=32,
        heads=4,
        batch=64 if paper else 8,
        steps=500 if paper else 4,
        learning_rate=3e-3,
        train_lengths=(2, _TRAINED + 1),
        # Every prefix of the longest words is asked: one length has them all.
        evaluation_lengths=((_LONGEST if paper else 2 * _TRAINED) + 1,),
        evaluation_sequences=256 if paper else 8,
    )


def _seeds(preset: Preset) -> tuple[int, ...]:
    return _SEEDS if preset is Preset.PAPER else _SEEDS[:1]


def _accuracy(runs: Sequence[SequenceRun]) -> Float64[np.ndarray, "seed length"]:
    """Of every run at prefixes of 1, 2, ... letters; the begin token is asked for nothing."""
    return np.array([run.evaluation[0].by_position[1:] for run in runs], dtype=np.float64)


def _row(one: Recogniser) -> str:
    return f"{LANGUAGES[one.language]}, {one.encoding}"


def _table(found: Sequence[Recogniser]) -> Table:
    columns = ("language", "positions", RIGHT, "accuracy beyond", "s.d.", "lowest at a length", "first length missed")
    rows = []
    for one in found:
        means = one.beyond.mean(axis=1)
        missed = np.flatnonzero((one.beyond < 1).any(axis=0))
        rows.append(
            (
                LANGUAGES[one.language],
                one.encoding,
                f"{one.right} of {len(one.accuracy)}",
                number(float(means.mean())),
                number(over_seeds(means.tolist()).spread),
                number(float(one.beyond.min())),
                str(_TRAINED + 1 + int(missed[0])) if len(missed) else "-",
            )
        )
    title = f"recognisers trained to {_TRAINED} letters, asked at {_TRAINED + 1} and more"
    notes = ("accuracy beyond: mean over lengths and seeds, s.d. over seeds; first length missed: by any seed",)
    return Table(title, columns, tuple(rows), notes)
