"""`make bench`: one JSON line a benchmark, {name, value, unit, baseline, ratio}.

Of the theory `value` and `baseline` are seconds of CPU on one core, the best of three where that is quick; `ratio` is
how many times cheaper the product's way is. Where the baseline would take hours, a part of it is run and scaled up.
`benchmarks.training` says how training is measured; `make bench BENCH=training` runs that alone.
"""

from __future__ import annotations

import json
import os
import sys

for threads in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(threads, "1")

from collections.abc import Callable  # noqa: E402
from dataclasses import replace  # noqa: E402
from time import process_time  # noqa: E402
from unittest.mock import patch  # noqa: E402

import numpy as np  # noqa: E402

from theory import (  # noqa: E402
    Carrier,
    Head,
    RotarySchedule,
    accuracy_law,
    best_carrier,
    carrier_profile,
    certified_maximum,
    exact_law,
    exact_moments,
    exact_surface,
    kernel_enclosure,
    mean_profile_law,
    sampled_attention,
)

BASES = (1_000, 10_000, 100_000)


def main(wanted: str = "") -> None:
    """Run the benchmarks of theory, of training, or of both."""
    if wanted in ("", "theory"):
        theory()
    if wanted in ("", "training"):
        from benchmarks.training import training_lines

        for line in training_lines():
            print(json.dumps(line), flush=True)


def theory() -> None:
    """Laws, certified numbers and designs."""
    rng = np.random.default_rng(0)
    queries, keys = rng.standard_normal((2, 20, 64))
    head = Head.from_tokens(RotarySchedule.geometric(64, 10_000), 2 * queries, 2 * keys, np.full(20, 0.05), 0.125)
    exact_curves(head, rng)
    mean_profile_curve(head.carrier())
    certified_maxima()
    accuracy(head, rng)
    linear_program()
    vocabulary(rng)
    windowed_law(rng)


def exact_curves(head: Head, rng: np.random.Generator) -> None:
    """The exact law for every length at once, against lengths one by one and against simulation."""
    lengths = [12, 16, 20, 24, 32, 40, 48, 64, 128, 256, 512]
    _report(
        "exact law at 11 lengths in one pass, against one by one",
        _seconds(lambda: exact_law(head, 2, lengths)),
        _seconds(lambda: [exact_law(head, 2, [n]) for n in lengths]),
    )
    every = np.arange(3, 4097)
    curve = _seconds(lambda: exact_law(head, 2, every))
    # One set of sequences serves all lengths; the widest spread says how many it takes for 1e-4.
    needed, sample = (exact_moments(head, 2, every)[1].max() / 1e-4) ** 2, 500
    table = np.exp(head.logits(-np.arange(4096)))
    simulated = _seconds(lambda: _simulate(table, sample, rng), repeats=1) * needed / sample
    _report(f"exact law, all L to 4096, against {needed:.2g} simulated sequences (s.e. 1e-4)", curve, simulated)
    long = _seconds(lambda: exact_law(head, 2, np.arange(3, 65_537)), repeats=1)
    _report("exact law, all L to 65 536, against 16 times all L to 4096 (linear growth)", long, 16 * curve)


def mean_profile_curve(carrier: Carrier) -> None:
    """The softmax of the mean profile at every length, against a cosine a pair and offset."""
    far, near = 10_000_000, 100_000

    def one_by_one() -> None:
        offsets = -np.arange(near)
        turns = np.multiply.outer(offsets, carrier.schedule.frequencies) - carrier.phases
        np.logaddexp.accumulate(np.cos(turns) @ carrier.amplitudes)

    lengths = np.arange(3, far + 1)
    fast = _seconds(lambda: mean_profile_law(carrier_profile(carrier, far), 2, lengths), repeats=1)
    _report("mean-profile law, all L to 1e7, against single cosines", fast, _seconds(one_by_one) * far / near)


def certified_maxima() -> None:
    """max g and its argmax on two ranges at three bases, against ball arithmetic on every lag."""
    weights, schedules = np.full(32, 1 / 32), [RotarySchedule.geometric(64, base) for base in BASES]
    ranges, sample = ((1, 1_000_000), (100, 3_000_000)), 2_000
    fast = _seconds(lambda: [certified_maximum(weights, s, *r) for s in schedules for r in ranges], repeats=1)
    balls = _seconds(lambda: [kernel_enclosure(weights, schedules[1], lag) for lag in range(sample)], repeats=1)
    every = len(BASES) * sum(last - first + 1 for first, last in ranges)
    _report("certified max g at six ranges, against balls at every lag", fast, balls * every / sample)


def accuracy(head: Head, rng: np.random.Generator) -> None:
    """Accuracy at seven lengths, against a simulation to a standard error of 1e-3; at two long ones, by light keys."""
    lengths, readout = (12, 16, 20, 24, 32, 40, 48), rng.standard_normal((20, 20)) + 4 * np.eye(20)
    law = _seconds(lambda: accuracy_law(head, readout, 2, lengths), repeats=1)
    gains, sample, needed = np.exp(head.logits(-np.arange(48))), 2_000, 0.25 / 1e-6

    def simulate() -> None:
        tokens = rng.integers(0, 20, (sample, 48))
        mass = gains[tokens[:, :1], np.arange(48), tokens]
        scores = np.cumsum(mass[..., None] * readout[tokens], axis=1)[:, [n - 1 for n in lengths]]
        (scores.argmax(axis=2) == tokens[:, 2:3]).mean(axis=0)

    _report("accuracy law at 7 lengths, against simulation (s.e. 1e-3)", law, _seconds(simulate) * needed / sample)

    def at(length: int) -> float:
        return _seconds(lambda: accuracy_law(head, readout, 2, [length]), repeats=1)

    # With no key light; what does not grow with the length cancels.
    with patch("theory.tails._ALLOWED", 0.0):
        token = (at(512) - at(256)) / 256
    for length in (4_096, 16_384):
        _report(f"accuracy law at {length} tokens, against one key at a time", at(length), length * token)


def linear_program() -> None:
    """The best carrier to 65 536 lags, where a dense program would hold two million cosines, against lags to 2047."""
    schedule = RotarySchedule.geometric(64, 10_000)
    near = _seconds(lambda: best_carrier(schedule, 2_047), repeats=1)
    _report(
        "best carrier to 65 536 lags, against 32 times that to 2047",
        _seconds(lambda: best_carrier(schedule, 65_536), repeats=1),
        32 * near,
    )


def vocabulary(rng: np.random.Generator) -> None:
    """A vocabulary's attention at every offset of three lengths: sampled, against quadrature of some queries."""
    tokens, some, lengths = 2_000, 4, [64, 256, 1_024]
    queries, keys = rng.standard_normal((2, tokens, 64))
    weights = 1 / np.arange(1, tokens + 1)
    head = Head.from_tokens(RotarySchedule.geometric(64, 10_000), queries, keys, weights / weights.sum(), 0.125)
    asking = np.full(some, 1 / some)
    few = replace(head, queries=queries[:some], query_weights=asking, local_keys=head.local_keys[:some])
    exact = _seconds(lambda: exact_surface(few, range(1_024), lengths, 1e-4), repeats=1) * tokens / some
    sampled = _seconds(lambda: sampled_attention(head, lengths))
    _report("exact law of 2000 tokens by 4096 samples, against quadrature to 1e-4", sampled, exact)


def windowed_law(rng: np.random.Generator) -> None:
    """A real head's attention by the windowed law at five lengths: in groups, against a context at a time."""
    queries, window, lengths, samples, some = 4_246, 9, [128, 256, 512, 1_024, 2_048], 2_048, 64
    shape = (queries, 64)
    head = Head(
        schedule=RotarySchedule.geometric(64, 10_000),
        queries=rng.standard_normal(shape),
        query_weights=np.full(queries, 1 / queries),
        local_keys=rng.standard_normal((queries, window, 64)),
        keys=rng.standard_normal(shape),
        key_weights=np.full(queries, 1 / queries),
        logit_scale=0.125,
        sink_keys=rng.standard_normal(shape),
    )

    def context_at_a_time() -> None:
        places = -np.arange(max(lengths))
        for row in rng.integers(0, queries, some):
            keys = head.keys[rng.integers(0, queries, max(lengths))]
            keys[:window] = head.local_keys[row]
            logits = head.logit_scale * head.schedule.rotate(keys, places) @ head.queries[row]
            for length in lengths:
                masses = np.exp(logits[:length])
                masses /= masses.sum()

    plain = _seconds(context_at_a_time) * samples / some
    grouped = _seconds(lambda: sampled_attention(head, lengths, samples))
    _report("windowed law at five lengths, 2048 samples, against a context at a time", grouped, plain)


def _simulate(table: np.ndarray, sequences: int, rng: np.random.Generator) -> np.ndarray:
    """Monte Carlo estimate of the whole curve, a few sequences at a time."""
    longest, total = table.shape[1], 0.0
    for _ in range(sequences // 50):
        tokens = rng.integers(0, 20, (50, longest))
        mass = table[tokens[:, :1], np.arange(longest), tokens]
        total += (mass[:, 2:3] / np.cumsum(mass, axis=1)).sum(axis=0)
    return total / sequences


def _seconds(work: Callable[[], object], repeats: int = 3) -> float:
    times = []
    for _ in range(repeats):
        started = process_time()
        work()
        times.append(process_time() - started)
    return min(times)


def _report(name: str, value: float, baseline: float) -> None:
    line = {"name": name, "value": round(value, 4), "unit": "s", "baseline": round(baseline, 4)}
    print(json.dumps(line | {"ratio": round(baseline / value, 2)}), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
