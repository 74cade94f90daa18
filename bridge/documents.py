"""The JSON documents of the command. Keys stay; more may be added."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bridge.inspect import HeadReport
from bridge.prediction import Prediction
from bridge.sources.checkpoint import Checkpoint
from theory.statements.statement import PRINTED, Result

Document = dict[str, Any]


def verify_document(results: Sequence[Result], found: Mapping[str, str]) -> Document:
    """`carrier verify`: one entry for each wording of each statement; `found` is what runs say, by target."""
    return {
        "statements": [
            {
                "id": result.id,
                "label": result.label,
                "wording": wording,
                "verdict": finding.verdict.value,
                "recorded": finding.recorded.value,
                "method": finding.method,
                "seconds": round(finding.seconds, 4),
                "counterexample": _counterexample(result, wording),
                "run": finding.target and {"target": finding.target, "found": found[finding.target]},
            }
            for result in results
            for wording, finding in result.wordings.items()
        ],
        "seconds": round(sum(result.seconds for result in results), 4),
    }


def inspect_document(
    checkpoint: Checkpoint, reports: Sequence[HeadReport], assumptions: Sequence[str], files: Sequence[Path]
) -> Document:
    """`carrier inspect`: the model and one entry a head; what needs activations is null."""
    return {
        "model": {
            "format": checkpoint.format,
            "family": checkpoint.family,
            "sha256": checkpoint.sha256,
            "assumptions": list(assumptions),
            "provenance": [
                {"name": entry.name, "value": entry.value, "source": entry.source} for entry in checkpoint.provenance
            ],
        },
        "heads": [
            {
                "layer": report.layer,
                "head": report.head,
                "query_fraction": _finite(report.prediction.carrier.query_fraction),
                "key_fraction": _finite(report.prediction.carrier.key_fraction),
                "offset": report.offset,
                "share": report.share,
                "sink_share": None,
                "margin": report.margin.value,
                "margin_competitor": report.margin.competitor,
                "profile_offset": report.profile_offset,
                "reference_length": report.reference_length,
                "class": None,
                "flags": list(report.flags),
                "lengths": list(report.prediction.lengths),
                "laws": {
                    "exact": report.prediction.exact.tolist(),
                    "mean_profile": report.prediction.mean_profile.tolist(),
                },
            }
            for report in reports
        ],
        "files": [str(file) for file in files],
    }


def predict_document(
    layer: int,
    head: int,
    prediction: Prediction,
    assumptions: Sequence[str],
    flags: Sequence[str],
    files: Sequence[Path],
) -> Document:
    """`carrier predict`; what was not observed is null."""
    return {
        "layer": layer,
        "head": head,
        "offset": -prediction.offset,
        "lengths": list(prediction.lengths),
        "laws": {
            "exact": prediction.exact.tolist(),
            "mean_profile": prediction.mean_profile.tolist(),
            "constant": prediction.constant.tolist(),
            "bound": prediction.bound.tolist(),
        },
        "margins": [{"value": mu.value, "competitor": mu.competitor} for mu in prediction.margins],
        "query_fraction": _finite(prediction.carrier.query_fraction),
        "key_fraction": _finite(prediction.carrier.key_fraction),
        "alignment": _finite(prediction.carrier.alignment(prediction.offset)),
        "selected_offset": prediction.selected_offset,
        "standard_error": None,
        "observed": None,
        "verdicts": None,
        "flags": list(flags),
        "assumptions": list(assumptions),
        "files": [str(file) for file in files],
    }


def _finite(value: float) -> float | None:
    """JSON has no NaN: what is not defined is null."""
    return value if math.isfinite(value) else None


def _counterexample(result: Result, wording: str) -> list[Document]:
    """To the printed wording those that refute it, to the amended one those that drop an assumption."""
    return [
        {"dropped": shown.dropped, "text": shown.text, "breaks": shown.breaks, "numbers": dict(shown.numbers)}
        for shown in result.counterexamples
        if (shown.dropped == PRINTED) == (wording == "printed")
    ]
