"""`make mutants`: each law broken in a scratch copy, one change at a time, must make a test fail.

Three slips that a person makes: a rotation the wrong way round, a forgotten 1/sqrt(d), an offset
that is off by one. For each law each of them that it can hold is applied, and the named tests are
run until the first failure. Five statements are emptied of their proof, relieved of an assumption, and
given the printed claim for the amended one. Prints the test that caught it; exits 1 where one survives.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
COPIED = ("theory", "empirics", "bridge", "tests", "docs", "pyproject.toml")


@dataclass(frozen=True)
class Mutant:
    """One change of one place, which must stand there exactly once, and the tests that should see it."""

    law: str
    slip: str
    file: str
    old: str
    new: str
    tests: str


HEAD, LAW = "theory/head.py", "tests/test_exact_law.py"
ROTATION, SCALE, OFFSET = "rotation the wrong way", "1/sqrt(d) dropped", "offset off by one"
MUTANTS = (
    Mutant(
        "mean-profile law",
        ROTATION,
        HEAD,
        "np.angle(as_pairs(self.query_mean) * as_pairs(self.key_mean).conj())",
        "np.angle(as_pairs(self.query_mean).conj() * as_pairs(self.key_mean))",
        "tests/test_theory.py -k dilution_curve",
    ),
    Mutant(
        "mean-profile law",
        SCALE,
        HEAD,
        "gains = self.logit_scale * self.schedule.score_gains",
        "gains = self.schedule.score_gains",
        "tests/test_theory.py -k dilution_curve",
    ),
    Mutant(
        "mean-profile law",
        OFFSET,
        "theory/dilution.py",
        "np.exp(profile[offset] - mass[ends])",
        "np.exp(profile[offset] - mass[ends - 1])",
        "tests/test_theory.py -k mean_profile_law",
    ),
    Mutant(
        "mean-profile law with a sink",
        OFFSET,
        "theory/dilution.py",
        "before = np.concatenate([[-np.inf], mass])[ends]",
        "before = mass[ends]",
        f"{LAW} -k mean_profile_law",
    ),
    Mutant(
        "exact law",
        ROTATION,
        HEAD,
        "np.broadcast_to(-offsets[:, None], shape)",
        "np.broadcast_to(offsets[:, None], shape)",
        f"{LAW} -k sum_over_all",
    ),
    Mutant(
        "exact law",
        SCALE,
        HEAD,
        "scaled = self.logit_scale * np.repeat(",
        "scaled = np.repeat(",
        f"{LAW} -k sum_over_all",
    ),
    Mutant(
        "exact law",
        OFFSET,
        "theory/exact_law.py",
        "start, np.exp(logits - self.top)",
        "start + 1, np.exp(logits - self.top)",
        f"{LAW} -k sum_over_all",
    ),
    Mutant(
        "exact law, local window",
        OFFSET,
        HEAD,
        "offsets = -np.arange(self.window)",
        "offsets = 1 - np.arange(self.window)",
        f"{LAW} -k sum_over_all",
    ),
    Mutant(
        "exact law, sink key",
        OFFSET,
        "theory/exact_law.py",
        "mass = np.multiply.outer(u, query.sink[ends])",
        "mass = np.multiply.outer(u, query.sink[ends - 1])",
        f"{LAW} -k sum_over_all",
    ),
    Mutant(
        "exact law, bias",
        OFFSET,
        HEAD,
        "self.bias.at(np.abs(offsets))",
        "self.bias.at(1 + np.abs(offsets))",
        f"{LAW} -k sum_over_all",
    ),
    Mutant(
        "exact law, bias",
        "slope the wrong way",
        "theory/bias.py",
        "return -self.slope * np.asarray",
        "return self.slope * np.asarray",
        f"{LAW} -k buckets_by_hand",
    ),
    Mutant(
        "exact law, attention factor",
        "factor entered once",
        "theory/schedule.py",
        "self.attention_factor**2",
        "self.attention_factor",
        f"{LAW} -k sum_over_all",
    ),
    Mutant(
        "exact limit",
        ROTATION,
        "theory/equidistribution.py",
        "queries[:, None] * keys.conj() *",
        "queries[:, None] * keys *",
        "tests/test_equidistribution.py -k tend_to_their",
    ),
    Mutant(
        "exact limit",
        SCALE,
        "theory/equidistribution.py",
        "keys.conj() * head.logit_scale *",
        "keys.conj() *",
        "tests/test_equidistribution.py -k tend_to_their",
    ),
    Mutant(
        "exact limit",
        OFFSET,
        "theory/equidistribution.py",
        "head.logits(np.array([-offset]))",
        "head.logits(np.array([1 - offset]))",
        "tests/test_equidistribution.py -k tend_to_their",
    ),
    Mutant(
        "mean-profile limit",
        OFFSET,
        "theory/equidistribution.py",
        "mean_profile(carrier, offset + 1)[offset]",
        "mean_profile(carrier, offset + 2)[offset + 1]",
        "tests/test_equidistribution.py -k tend_to_their",
    ),
    Mutant(
        "inverse-linear fit",
        OFFSET,
        "theory/dilution.py",
        "x = check_lengths(0, lengths) - 1.0",
        "x = check_lengths(0, lengths) - 0.0",
        "tests/test_theory.py -k fit_of_the_inverse",
    ),
    Mutant(
        "accuracy law",
        ROTATION,
        HEAD,
        "np.broadcast_to(-offsets[:, None], shape)",
        "np.broadcast_to(offsets[:, None], shape)",
        "tests/test_accuracy.py -k every_key",
    ),
    Mutant(
        "accuracy law",
        SCALE,
        HEAD,
        "scaled = self.logit_scale * np.repeat(",
        "scaled = np.repeat(",
        "tests/test_accuracy.py -k every_key",
    ),
    Mutant(
        "accuracy law",
        OFFSET,
        "theory/accuracy.py",
        "sums = known + gains[self.offset][:, None] * rows",
        "sums = known + gains[self.offset - 1][:, None] * rows",
        "tests/test_accuracy.py -k every_key",
    ),
    Mutant(
        "certified margin",
        ROTATION,
        "theory/certified.py",
        "factor * (b * c - a * d)",
        "factor * (a * d - b * c)",
        "tests/test_certified.py -k margin",
    ),
    Mutant(
        "certified margin",
        SCALE,
        "theory/certified.py",
        'scale = rational(carrier.logit_scale, "the logit scale")',
        'scale = rational(1.0, "the logit scale")',
        "tests/test_certified.py -k margin",
    ),
    Mutant(
        "certified margin",
        OFFSET,
        "theory/certified.py",
        "ranges = ((0, offset - 1), (offset + 1, length - 1))",
        "ranges = ((0, offset - 1), (offset + 1, length))",
        "tests/test_certified.py -k margin",
    ),
    Mutant(
        "linear interpolant",
        OFFSET,
        "theory/interpolant.py",
        "np.arange(self.length) == self.offset",
        "np.arange(self.length) == self.offset + 1",
        "tests/test_interpolant.py",
    ),
    Mutant(
        "best carrier",
        OFFSET,
        "theory/best_carriers.py",
        "_best(schedule, length - 1 - offset, offset, turning=True)",
        "_best(schedule, length - offset, offset, turning=True)",
        "tests/test_best_carriers.py",
    ),
    Mutant(
        "designed carrier",
        ROTATION,
        "theory/design.py",
        'query_phases = kept if keep == "query" else kept - turns',
        'query_phases = kept if keep == "query" else kept + turns',
        "tests/test_design.py",
    ),
    Mutant(
        "designed carrier",
        SCALE,
        "theory/design.py",
        "sizes = np.sqrt(energy * self.weights / (logit_scale * self.schedule.score_gains))",
        "sizes = np.sqrt(energy * self.weights / self.schedule.score_gains)",
        "tests/test_design.py",
    ),
    Mutant(
        "designed carrier",
        OFFSET,
        "theory/design.py",
        'math.log(whole("a length", length, 2) - 1)',
        'math.log(whole("a length", length, 2))',
        "tests/test_design.py",
    ),
)


# Five statements, and a predicate of each that gates its use.
GATES = {
    "corollary_1_invariance": "lambda case: case.slope == 0",
    "proposition_1_necessity": '"the active theta_i and 2 pi are linearly independent over Q", _is_independent',
    "residual_variance_by_lag": "lambda case: not case.own_key",
    "corollary_2_decay": "lambda case: case.margin > 0",
    "width_core": "lambda case: np.ptp(case.weights) == 0",
}


def statement_mutants(name: str, gate: str) -> tuple[Mutant, ...]:
    """A check that returns its claim unchecked; an assumption always met; the printed claim for the amended one."""
    law, file = f"statement {name}", f"theory/statements/{name}.py"
    tests = "tests/test_statements.py"
    open_gate = re.sub(r"(lambda case: |_is_).*", "lambda case: True", gate)
    emptied = "prove=lambda: (ProofStep(STATEMENT.amended.claim, True),)"
    return (
        Mutant(law, "proof emptied", file, "prove=_prove_amended", emptied, tests),
        Mutant(law, "assumption weakened", file, gate, open_gate, tests),
        Mutant(law, "printed for amended", file, "residual=_residual_amended", "residual=_residual_printed", tests),
    )


def main() -> int:
    """Run every mutant, two at a time; 0 where each was caught."""
    mutants = MUTANTS + tuple(m for name, gate in GATES.items() for m in statement_mutants(name, gate))
    with ThreadPoolExecutor(2) as pool:
        outcomes = list(pool.map(_run, mutants))
    survivors = 0
    for mutant, caught in zip(mutants, outcomes, strict=True):
        survivors += caught is None
        print(f"{mutant.law:36} {mutant.slip:24} {caught or 'SURVIVED ' + mutant.tests}")
    print(f"{len(mutants) - survivors} of {len(mutants)} caught")
    return int(survivors > 0)


def _run(mutant: Mutant) -> str | None:
    """The test that fails once the mutant is in place, None where all pass."""
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        for name in COPIED:
            copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
            copy(ROOT / name, scratch / name)
        broken = scratch / mutant.file
        source = broken.read_text()
        if source.count(mutant.old) != 1:
            raise SystemExit(f"{mutant.file} holds {source.count(mutant.old)} times: {mutant.old}")
        broken.write_text(source.replace(mutant.old, mutant.new))
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-x", "-q", "-n", "0", "-p", "no:cacheprovider", *mutant.tests.split()],
            cwd=scratch,
            env=dict(os.environ) | {"PYTHONPATH": str(scratch), "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
        )
    if done.returncode == 0:
        return None
    failed = re.search(r"^(?:FAILED|ERROR) (\S+)", done.stdout, re.MULTILINE)
    if failed is None:
        raise SystemExit(f"{mutant.law}, {mutant.slip}: pytest ended with {done.returncode}\n{done.stdout[-2000:]}")
    return failed.group(1)


if __name__ == "__main__":
    sys.exit(main())
