"""What a statement of a paper is, and how it is checked.

A statement is data: two wordings of a claim (as printed, as amended), each with its symbolic
proof and a numeric residual; assumptions that gate its use; a generator of cases that meet
them; and for each assumption a counterexample in which it alone is dropped. `check` runs all
of it and *computes* the verdict, which may then differ from the recorded one:

    refuted       a case that meets every assumption has a residual far above the tolerance
    proved        every proof step is confirmed, every case holds, every counterexample breaks
    not decided   anything else; it never counts as passed

A proof step by ball arithmetic makes it certified, a cited theorem makes it proved given that
theorem, and a wording without a proof is checked numerically at best.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from time import perf_counter
from typing import Generic, TypeVar

import numpy as np
import sympy

from theory.errors import TheoryError

Case = TypeVar("Case")

PRINTED = "printed wording"
"""What a counterexample drops where it meets every assumption and the printed wording fails."""

FAR = 1e3
"""A residual breaks a claim when it is this many tolerances; between 1 and FAR decides nothing."""


class Verdict(StrEnum):
    """What is known of a claim."""

    PROVED = "proved"
    PROVED_GIVEN_CITED = "proved given a cited theorem"
    CERTIFIED = "certified"
    CHECKED = "checked numerically"
    REFUTED = "refuted"
    NEEDS_RUN = "needs a run"
    NOT_DECIDED = "not decided"


@dataclass(frozen=True)
class Assumption(Generic[Case]):
    """One condition of a claim, as a test of a case."""

    id: str
    text: str
    holds: Callable[[Case], bool]


@dataclass(frozen=True)
class ProofStep:
    """One step of a proof, whether it was confirmed, and by what ("sympy" or "arb")."""

    text: str
    confirmed: bool
    method: str = "sympy"


@dataclass(frozen=True)
class Counterexample(Generic[Case]):
    """A case in which one assumption is dropped (its id), or in which the PRINTED wording fails."""

    dropped: str
    text: str
    case: Case
    numbers: Mapping[str, float]


@dataclass(frozen=True)
class Wording(Generic[Case]):
    """One wording of a claim, restated, with what decides it and the verdict on record.

    `residual` is 0 where the claim holds for a case, up to the tolerance of the statement.
    `target` names the `carrier reproduce` target of a claim that trained weights decide.
    """

    claim: str
    recorded: Verdict
    residual: Callable[[Case], float] | None = None
    prove: Callable[[], tuple[ProofStep, ...]] | None = None
    cited: tuple[str, ...] = ()
    target: str | None = None


@dataclass(frozen=True)
class Statement(Generic[Case]):
    """A claim of a paper with all that checks it; counterexamples are built when asked for.

    Statements are shown in the order of `row`. `printed` is None for a claim of ours that no paper
    makes: `amended` is then its only wording.
    """

    row: int
    id: str
    label: str
    printed: Wording[Case] | None
    amended: Wording[Case]
    assumptions: tuple[Assumption[Case], ...]
    draw: Callable[[np.random.Generator], Case]
    tolerance: float
    tolerance_reason: str
    counterexamples: Callable[[], tuple[Counterexample[Case], ...]] = field(default=tuple)

    def __post_init__(self) -> None:
        ids = [assumption.id for assumption in self.assumptions]
        if len(set(ids)) != len(ids) or PRINTED in ids:
            raise TheoryError(f"assumptions of {self.id} must have ids of their own, got {ids}")


@dataclass(frozen=True)
class Shown:
    """A counterexample as checked: it breaks where it fails what it drops, meets the rest, and misses by far."""

    dropped: str
    text: str
    numbers: Mapping[str, float]
    residual: float
    breaks: bool


@dataclass(frozen=True)
class Finding:
    """The verdict on one wording: computed, recorded, and how it came about."""

    claim: str
    verdict: Verdict
    recorded: Verdict
    method: str
    steps: tuple[ProofStep, ...]
    worst_residual: float
    seconds: float
    target: str | None = None

    @property
    def agrees(self) -> bool:
        """Whether the computed verdict is the recorded one; undecided never agrees."""
        return self.verdict is self.recorded is not Verdict.NOT_DECIDED


@dataclass(frozen=True)
class Result:
    """What `check` found; `cases` counts those that met every assumption."""

    id: str
    label: str
    printed: Finding | None
    amended: Finding
    counterexamples: tuple[Shown, ...]
    cases: int
    seconds: float

    @property
    def wordings(self) -> dict[str, Finding]:
        """The findings by wording, "printed" (where a paper has one) before "amended"."""
        return ({} if self.printed is None else {"printed": self.printed}) | {"amended": self.amended}

    @property
    def agrees(self) -> bool:
        """Whether every wording has its recorded verdict."""
        return all(finding.agrees for finding in self.wordings.values())


def check(statement: Statement[Case], seed: int = 0, cases: int = 16) -> Result:
    """Proof, `cases` drawn cases and counterexamples of both wordings; verdicts are computed."""
    start = perf_counter()
    rng = np.random.default_rng(seed)
    drawn = [statement.draw(rng) for _ in range(cases)]
    met = [case for case in drawn if not unmet(statement, case)]
    examples = statement.counterexamples()
    shown = tuple(_show(statement, example) for example in examples)
    sound = len(met) == cases > 0 and _covers(statement, shown)
    refutations = [e.case for e in examples if e.dropped == PRINTED and not unmet(statement, e.case)]
    amended = _find(statement, statement.amended, met, [], sound, shown)
    printed = None
    if statement.printed is not None:
        printed = _find(statement, statement.printed, met, refutations, sound, shown)
    return Result(statement.id, statement.label, printed, amended, shown, len(met), perf_counter() - start)


def unmet(statement: Statement[Case], case: Case) -> tuple[Assumption[Case], ...]:
    """The assumptions that a case does not meet: use the statement only where there are none."""
    return tuple(assumption for assumption in statement.assumptions if not assumption.holds(case))


def vanishes(expression: sympy.Expr) -> bool:
    """Whether an expression in sines, cosines and exponentials is identically 0.

    Exponentials of distinct arguments are linearly independent, so that expanding settles it;
    False means that the expansion, of the numerator if need be, left something.
    """
    exponentials = expression.rewrite(sympy.exp)
    return exponentials.expand() == 0 or sympy.fraction(sympy.together(exponentials))[0].expand() == 0


def rot(angle: sympy.Expr) -> sympy.Matrix:
    """Rot(angle), the block of one rotary pair."""
    return sympy.Matrix([[sympy.cos(angle), -sympy.sin(angle)], [sympy.sin(angle), sympy.cos(angle)]])


def _find(
    statement: Statement[Case],
    wording: Wording[Case],
    met: list[Case],
    refutations: list[Case],
    sound: bool,
    shown: tuple[Shown, ...],
) -> Finding:
    start = perf_counter()
    if wording.target is not None:
        method = f"decided by `carrier reproduce {wording.target}`"
        seconds = perf_counter() - start
        return Finding(wording.claim, Verdict.NEEDS_RUN, wording.recorded, method, (), np.nan, seconds, wording.target)
    steps = wording.prove() if wording.prove is not None else ()
    drawn, worst = _worst(wording, met), _worst(wording, met + refutations)
    if worst > FAR * statement.tolerance:
        verdict = Verdict.REFUTED
    elif sound and worst <= statement.tolerance and all(step.confirmed for step in steps):
        verdict = _strength(wording, steps)
    else:
        verdict = Verdict.NOT_DECIDED
    broken = sum(example.breaks for example in shown)
    method = "; ".join(
        [f"{sum(s.confirmed for s in steps)} of {len(steps)} proof steps"] * bool(steps)
        + [f"{len(met)} cases, residual {drawn:.1e} (tolerance {statement.tolerance:.0e})"]
        + [f"{broken} of {len(shown)} counterexamples break"]
        + [f"given {theorem}" for theorem in wording.cited]
    )
    return Finding(wording.claim, verdict, wording.recorded, method, steps, worst, perf_counter() - start)


def _worst(wording: Wording[Case], cases: list[Case]) -> float:
    """The greatest residual; nan (which decides nothing) where there is none to take or one is nan."""
    if wording.residual is None or not cases:
        return np.nan
    return float(np.max([wording.residual(case) for case in cases]))


def _strength(wording: Wording[Case], steps: tuple[ProofStep, ...]) -> Verdict:
    if wording.prove is None:
        return Verdict.CHECKED
    if not steps:
        return Verdict.NOT_DECIDED
    if wording.cited:
        return Verdict.PROVED_GIVEN_CITED
    return Verdict.CERTIFIED if any(step.method == "arb" for step in steps) else Verdict.PROVED


def _show(statement: Statement[Case], example: Counterexample[Case]) -> Shown:
    """A dropped assumption is held against the amended wording, a refutation against the printed one."""
    fails = {assumption.id for assumption in unmet(statement, example.case)}
    refutes = example.dropped == PRINTED
    wording = statement.printed if refutes else statement.amended
    residual = None if wording is None else wording.residual
    size = float(residual(example.case)) if residual is not None else np.nan
    alone = fails == (set() if refutes else {example.dropped})
    return Shown(example.dropped, example.text, example.numbers, size, bool(alone and size > FAR * statement.tolerance))


def _covers(statement: Statement[Case], shown: tuple[Shown, ...]) -> bool:
    """Every counterexample breaks, and every assumption has one."""
    dropped = {example.dropped for example in shown}
    return all(example.breaks for example in shown) and dropped >= {a.id for a in statement.assumptions}
