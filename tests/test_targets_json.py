"""Every number of the paper is a printed cell of one target, with the same value: none forgotten, none mistyped.

The paper's numbers were transcribed apart from the targets, into a file beside the repository; what is compared
here are two readings of one page.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT

from bridge.paper import TARGETS
from bridge.paper.target import Printed

Place = tuple[str, str, str]
Numbers = dict[tuple[str | int, ...], float]

# Sections that hold no number of the paper, and what in the others is an axis, a title or a remark of ours.
_NOT_PRINTED = {"meta", "L", "columns", "caption", "found_in_rerun", "selected_offset_equals_minus_K"}
# The columns of a row that say which row it is.
_AXES = {"table_2": 1, "table_4": 2, "table_5": 1, "table_6": 1}

# Cells whose number stands in another cell as well, or in words: `share at -K` is "100 % of seed x length cells",
# and so is the offset of every peak of Table 7, whose caption has mu.
_REPEATED: dict[Place, Place] = {
    ("figure-3", "K=3", "carrier peak"): ("table-2", "K=3", "carrier peak"),
    ("figure-3", "K=3", "R2"): ("table-2", "K=3", "R2"),
}
_IN_WORDS = {
    ("table-7", "mu", "nats"): 2.30,
    ("figure-1", "rope", "share at -K"): 1.0,
    **{("table-2", f"K={offset}", "share at -K"): 1.0 for offset in (1, 2, 3)},
    **{("table-7", "peak offset", f"L={length}"): -2.0 for length in (12, 16, 20, 24, 32, 40, 48)},
}


@pytest.fixture(scope="module")
def paper() -> dict[str, Any]:
    """The transcribed numbers, read from beside the repository and never committed."""
    file = Path(os.environ.get("CARRIER_PAPER", ROOT.parent / "shared" / "paper")) / "targets.json"
    if not file.is_file():
        pytest.skip(f"no numbers of the paper at {file}: set CARRIER_PAPER to their folder")
    return json.loads(file.read_text())


def test_every_number_of_the_paper_has_its_place(paper: dict[str, Any]) -> None:
    """Both ways: no number without a place, no place without a number, and no cell for two numbers."""
    found, placed = numbers_of(paper), places(paper)
    assert set(found) == set(placed)
    assert {place: count for place, count in Counter(placed.values()).items() if count > 1} == {}


def test_every_number_of_the_paper_is_declared_with_its_value(paper: dict[str, Any]) -> None:
    declared, found = cells(), numbers_of(paper)
    missing = {path: place for path, place in places(paper).items() if place not in declared}
    assert missing == {}
    for path, (target, row, column) in places(paper).items():
        printed = declared[target, row, column]
        # A target K is given as tokens back there, a peak as the offset at which it stands.
        value = -found[path] if path[0] == "larger_offsets" else found[path]
        assert printed.value == pytest.approx(value, abs=1e-12), (path, printed)
        assert round(value, printed.decimals) == pytest.approx(value, abs=1e-12), (path, printed)


def test_no_cell_is_declared_that_the_paper_does_not_print(paper: dict[str, Any]) -> None:
    declared = cells()
    known = set(places(paper).values()) | set(_REPEATED) | set(_IN_WORDS)
    assert set(declared) - known == set()
    for place, other in _REPEATED.items():
        assert declared[place].value == declared[other].value, place
    for place, value in _IN_WORDS.items():
        assert declared[place].value == value, place


def test_no_cell_is_declared_twice() -> None:
    for target in TARGETS:
        keys = [printed.key for printed in target.printed]
        assert len(keys) == len(set(keys)), target.id


def cells() -> dict[Place, Printed]:
    return {(target.id, *printed.key): printed for target in TARGETS for printed in target.printed}


def numbers_of(paper: dict[str, Any]) -> Numbers:
    """Every number with the path at which it stands, axes left out."""
    return {
        path: value
        for section, content in paper.items()
        if section not in _NOT_PRINTED
        for path, value in _leaves(content, (section,))
    }


def _leaves(content: Any, path: tuple[str | int, ...]) -> Iterator[tuple[tuple[str | int, ...], float]]:
    if isinstance(content, dict):
        for key, value in content.items():
            if key not in _NOT_PRINTED:
                yield from _leaves(value, (*path, key))
    elif isinstance(content, list):
        axes = _AXES[str(path[0])] if len(path) == 3 and path[1] == "rows" else 0
        for index, value in enumerate(content[axes:], start=axes):
            yield from _leaves(value, (*path, index))
    else:
        assert isinstance(content, int | float), f"neither number nor title: {path}"
        yield path, float(content)


def places(paper: dict[str, Any]) -> dict[tuple[str | int, ...], Place]:
    """Where each number is declared: target, row, column."""
    return dict(_tables(paper)) | dict(_texts(paper)) | dict(_figures())


Placed = Iterator[tuple[tuple[str | int, ...], Place]]


def _tables(paper: dict[str, Any]) -> Placed:
    for kind in ("rope", "ape"):
        for index, length in enumerate(paper["table_1"]["L"]):
            yield ("table_1", kind, index), ("table-1", kind, f"L={length}")
    rows = {
        "table_2": ("table-2", "K={0:g}", ("key fraction", "query fraction", "carrier peak", "alpha", "c", "R2")),
        "table_4": ("table-4", "{0}", ("carrier fraction", "alpha", "c", "R2")),
        "table_5": ("table-5", "base {0:g}", ("g(1)/g(0)", "max g(s)/g(0), s>=4", "accuracy L=48", "offset L=32")),
        "table_6": (
            "table-6",
            "decay {0:g}",
            ("OOD accuracy", "pin", "pin s.d.", "norm in", "norm out", "interpolated"),
        ),
    }
    for section, (target, name, columns) in rows.items():
        for index, row in enumerate(paper[section]["rows"]):
            label = name.format(_knob(*row[:2]) if section == "table_4" else row[0])
            for place, column in enumerate(columns, start=_AXES[section]):
                yield (section, "rows", index, place), (target, label, column)
    columns = {"cos_mQ_RmK": "|cos|", "key_fraction": "key fraction", "accuracy_in_distribution": "in distribution"}
    for key, column in (columns | {"accuracy_L48": "L=48"}).items():
        yield ("table_3", key), ("table-3", "linear", column)
    for key, column in {"cos": "|cos|", "key_fraction": "key fraction", "accuracy_L48": "L=48"}.items():
        yield ("table_3", "softmax", key), ("table-3", "softmax", column)
    for index, column in enumerate(("lowest", "highest")):
        (fixes,) = paper["table_6"]["inference_time_fixes"]
        yield ("table_6", "inference_time_fixes", fixes, index), ("table-6", "fixes", column)
    for key, row in {"bound": "bound", "observed": "observed peak"}.items():
        for index, length in enumerate(paper["table_7"]["L"]):
            yield ("table_7", key, index), ("table-7", row, f"L={length}")
    for heads in (1, 4):
        for index, column in enumerate(("top-1 energy, lowest", "top-1 energy, highest")):
            yield ("table_8", f"H{heads}", "top1_energy", index), ("table-8", f"H={heads}", column)
        for index, length in enumerate(paper["table_8"]["L"]):
            yield ("table_8", f"H{heads}", "peak", index), ("table-8", f"H={heads}", f"L={length}")


def _knob(knob: str, value: object) -> str:
    short = {"train_lengths": "lengths"}.get(knob, knob)
    return f"{short} {'-'.join(map(str, value))}" if isinstance(value, list) else f"{short} {value}"


def _texts(paper: dict[str, Any]) -> Placed:
    for key, row in {"cos_mQ_RmK": "cos(m_Q, R_-K m_K)", "cos_mQ_mK": "cos(m_Q, m_K)"}.items():
        for offset in ("1", "2", "3"):
            yield ("text_4_2", key, offset), ("text-claims", row, f"K={offset}")
    for key, row in {"key_fraction": "key fraction", "top1_singular_energy_W": "top-1 energy of W"}.items():
        for step in ("0", "200", "4000"):
            yield ("dynamics", key, step), ("text-claims", row, f"step {step}")
    for heads in (1, 2):
        place = ("text-claims", "modes: in distribution", f"H={heads}")
        yield ("content_conditioned", "accuracy_in_distribution", f"H{heads}"), place
    for mode in (0, 1):
        place = ("text-claims", "modes: carrier peak, H=1", f"mode {mode}")
        yield ("content_conditioned", "carrier_peak_H1", f"mode_{mode}"), place
    for index, offset in enumerate(paper["larger_offsets"]["carrier_peak_equals_minus_K"]):
        place = ("text-claims", "carrier peak", f"K={offset}")
        yield ("larger_offsets", "carrier_peak_equals_minus_K", index), place


def _figures() -> Placed:
    section, alibi = "figure_5_left", "ALiBi, K=2, seed 0"
    yield (section, "alibi", "K1"), ("figure-5", "ALiBi, K=1", "L=48")
    yield (section, "alibi", "K2", 0), ("figure-5", alibi, "lowest accuracy")
    yield (section, "alibi", "K2", 1), ("figure-5", alibi, "highest accuracy")
    yield (section, "alibi", "selected_offset_K2"), ("figure-5", alibi, "selected offset")
    for length in ("12", "48"):
        yield (section, "t5", f"L{length}"), ("figure-5", "T5, K=2", f"L={length}")
    yield (section, "rope", "K2_L48"), ("figure-5", "RoPE, K=2", "L=48")
    for kind, lengths in {"rope": ("48",), "ape": ("24", "32", "48")}.items():
        for length in lengths:
            yield ("figure_6", f"{kind}_accuracy", length), ("figure-6", kind, f"L={length}")
    for row in ("rope", "ape", "baseline"):
        yield ("figure_6", "shift_head_key_input_carrier_fraction", row), ("figure-6", row, "key fraction")
