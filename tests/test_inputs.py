"""Bad input as a user meets it: without the shape checks of this test suite, every message whole.

Each says what it is about, what was given, what was expected and what to do.
"""

import subprocess
import sys

import pytest
from conftest import ROOT

SETTING = """
import numpy as np
from theory import *
schedule = RotarySchedule.geometric(4, 100)
vectors, half = np.ones((2, 4)), np.full(2, 0.5)
head = Head.from_tokens(schedule, vectors, vectors, half, 0.5)
"""


WIDTHS = "hold its counts against the other arrays, and its width against the schedule"
CALLS = [
    (
        "exact_law(head, 9, [9])",
        "a key 9 tokens back needs a length above 9, got 9: give a longer context or a nearer target",
    ),
    ("exact_law(head, -2, [9])", "the target offset K counts tokens back and is 0 or more, got -2: give 2"),
    ("exact_law(head, 1.0, [9])", "the target offset K must be a whole number, got 1.0: round it yourself"),
    ("exact_law(head, 1, [9.5])", "lengths are whole numbers of tokens, got float64 [9.5]: round them"),
    ("exact_law(head, 1, 9)", "give one length or more, in a flat list, got shape ()"),
    (
        "Head.from_tokens(schedule, vectors[:0], vectors[:0], half[:0], 0.5)",
        "a head without content attends to nothing: got 0 queries and 0 keys, give one of each or more",
    ),
    (
        "Head.from_tokens(schedule, vectors, vectors, np.array([1.5, -0.5]), 0.5)",
        "query weights must be 2 probabilities with sum 1, got the least -0.5 and sum 1: divide counts by their sum",
    ),
    (
        "Head.from_tokens(schedule, vectors, vectors, np.array([3.0, 1.0]), 0.5)",
        "query weights must be 2 probabilities with sum 1, got the least 1 and sum 4: divide counts by their sum",
    ),
    (
        "Head.from_tokens(schedule, vectors * np.nan, vectors, half, 0.5)",
        "queries hold 8 numbers that are not finite: the weights they come from are damaged, "
        "look for the step at which they diverged",
    ),
    (
        "Head.from_tokens(schedule, vectors.astype(np.float32), vectors, half, 0.5)",
        "queries must be a float64 array of any x 4, got float32 array: use numpy.asarray(..., float)",
    ),
    (
        "Head.from_tokens(RotarySchedule.geometric(6, 100), vectors, vectors, half, 0.5)",
        "queries must be a float64 array of any x 6, got shape (2, 4): " + WIDTHS,
    ),
    (
        "dilution_curve(np.ones(4), np.ones(6), schedule, 1, [9], 0.5)",
        "the mean key must be a float64 array of 4, got shape (6,): " + WIDTHS,
    ),
    ("head.with_means(key_mean=np.ones(1))", "the mean key must be a float64 array of 4, got shape (1,): " + WIDTHS),
    (
        "fit_inverse_linear([4, 5, 6], [0.5, 0.4, 0.3])",
        "attention must be a float64 array of 3, got list: use numpy.asarray(..., float)",
    ),
]


@pytest.fixture(scope="module")
def said() -> list[str]:
    """What each call raises, all in one process."""
    code = f"""{SETTING}
for call in {[call for call, _ in CALLS]!r}:
    try:
        exec(call)
    except TheoryError as error:
        print(error)
    else:
        print("no error")
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.parametrize("number", range(len(CALLS)), ids=[call for call, _ in CALLS])
def test_messages_are_whole(said, number):
    assert said[number] == CALLS[number][1]
