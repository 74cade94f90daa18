"""The JSON documents of the command. Keys stay; more may be added."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float64

from bridge.calibrated import CalibratedReport
from bridge.compare import Comparison
from bridge.content import LayerContent
from bridge.inspect import HeadReport
from bridge.pinned import PinnedReport
from bridge.prediction import Prediction
from bridge.sources.attention import LayerPositions
from bridge.sources.change import scaling_text
from bridge.text_content import TextContent
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


def inspect_document(content: LayerContent, reports: Sequence[HeadReport], files: Sequence[Path]) -> Document:
    """`carrier inspect`: the model and one entry a head; what needs activations is null."""
    return {
        "model": _model(content),
        "heads": [
            {
                "layer": report.layer,
                "head": report.head,
                "query_fraction": _finite(report.prediction.carrier.query_fraction),
                "key_fraction": _finite(report.prediction.carrier.key_fraction),
                "offset": report.offset,
                "share": report.share,
                "share_error": report.share_error,
                "sink_share": None,
                "margin": report.margin.value,
                "margin_competitor": report.margin.competitor,
                "profile_offset": report.profile_offset,
                "reference_length": report.reference_length,
                "locality_length": report.locality_length,
                "class": None,
                "flags": list(report.flags),
                "lengths": list(report.prediction.lengths),
                "laws": _laws(report.prediction),
                "standard_error": _listed(report.prediction.standard_error),
            }
            | _in_force(content.positions)
            for report in reports
        ],
        "files": [str(file) for file in files],
    }


def pinned_document(content: LayerContent, reports: Sequence[PinnedReport], files: Sequence[Path]) -> Document:
    """`carrier inspect` of a model with learned positions: where each head is pinned."""
    return {
        "model": _model(content),
        "heads": [{"layer": content.index} | asdict(report) for report in reports],
        "files": [str(file) for file in files],
    }


def predict_document(
    layer: int,
    head: int,
    prediction: Prediction,
    assumptions: Sequence[str],
    flags: Sequence[str],
    files: Sequence[Path],
    unchanged: Prediction | None = None,
) -> Document:
    """`carrier predict`; what was not observed is null. `unchanged` is the head under its model's own positions.

    `sampling_error` is that of the exact law where it is sampled; `standard_error` that of an observation.
    """
    return {
        "layer": layer,
        "head": head,
        "offset": -prediction.offset,
        "lengths": list(prediction.lengths),
        "laws": _laws(prediction)
        | {
            "bound": prediction.bound.tolist(),
            "unchanged": None if unchanged is None else unchanged.exact.tolist(),
        },
        "sampling_error": _listed(prediction.standard_error),
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


def calibrated_document(content: TextContent, reports: Sequence[CalibratedReport], files: Sequence[Path]) -> Document:
    """`carrier inspect` on a text: the model, what it was run on, and one entry a head.

    `offset` and `share` are the windowed law's at the reference length; what was seen on the text is under `observed`.
    """
    return {
        "model": _model_on_text(content),
        "heads": [
            _calibrated(report)
            | {
                "share": report.share,
                "share_error": report.share_error,
                "profile_offset": report.profile_offset,
                "margin": report.margin.value,
                "margin_competitor": report.margin.competitor,
                "reference_length": report.reference_length,
                "locality_length": report.locality_length,
                "lengths": list(report.prediction.lengths),
                "laws": _laws(report.prediction),
                "standard_error": _listed(report.prediction.standard_error),
            }
            | _in_force(content.model.positions[report.layer])
            for report in reports
        ],
        "files": [str(file) for file in files],
    }


def calibrated_prediction_document(
    content: TextContent,
    report: CalibratedReport,
    compared: Comparison | None,
    observed_on: str | None,
    files: Sequence[Path],
) -> Document:
    """`carrier predict` on a text: as `predict_document`, with what was seen on the text, and the law `windowed`."""
    told = predict_document(
        report.layer, report.head, report.prediction, content.assumptions, report.flags, files, report.before
    )
    seen = {} if compared is None else observation_document(compared, observed_on)
    return (
        {"model": _model_on_text(content)}
        | told
        | {
            "on_text": _seen(report),
            "trust": asdict(report.trust),
            "notes": list(report.trust.notes),
        }
        | seen
    )


def observation_document(compared: Comparison, observed_on: str | None) -> Document:
    """What observing a checkpoint adds to the document of `carrier predict`; an error is null for a single window."""
    return {
        "observed": [_finite(value) for value in compared.observed],
        "standard_error": [_finite(value) for value in compared.standard_error],
        "observed_on": observed_on,
    }


def _calibrated(report: CalibratedReport) -> Document:
    carrier = report.prediction.carrier
    return {
        "layer": report.layer,
        "head": report.head,
        "query_fraction": _finite(carrier.query_fraction),
        "key_fraction": _finite(carrier.key_fraction),
        "offset": report.offset,
        "sink_share": report.seen.sink,
        "class": report.kind,
        "flags": list(report.flags),
        "notes": list(report.trust.notes),
        "observed": _seen(report),
        "trust": asdict(report.trust),
    }


def _seen(report: CalibratedReport) -> Document:
    seen = report.seen
    return {
        "class": report.kind,
        "length": seen.length,
        "offset": seen.offset,
        "share": seen.share,
        "share_error": _finite(seen.share_error),
        "sink_share": seen.sink,
        "sink_share_error": _finite(seen.sink_error),
        "entropy": seen.entropy,
        "entropy_error": _finite(seen.entropy_error),
        "peak": seen.peak,
    }


def _in_force(positions: LayerPositions) -> Document:
    rotary = positions.rotary
    return {
        "base": None if rotary is None else rotary.base,
        "scaling": None if rotary is None else scaling_text(rotary.scaling),
        "span": positions.span,
    }


def _laws(prediction: Prediction) -> Document:
    return {
        prediction.law: prediction.exact.tolist(),
        "mean_profile": prediction.mean_profile.tolist(),
        "constant": prediction.constant.tolist(),
    }


def _model_on_text(content: TextContent) -> Document:
    windows = content.activations.windows
    return {
        "format": content.model.format,
        "family": content.model.family.name,
        "sha256": content.activations.sha256,
        "assumptions": list(content.assumptions),
        "provenance": [asdict(entry) for entry in content.model.provenance],
        "text": windows.provenance,
        "first_token": windows.first_token,
    }


def _model(content: LayerContent) -> Document:
    return {
        "format": content.model.format,
        "family": content.model.family.name,
        "sha256": content.reading.sha256,
        "read": [{"name": name, "sha256": digest} for name, digest in content.reading.files],
        "assumptions": list(content.assumptions),
        "provenance": [asdict(entry) for entry in content.model.provenance],
    }


def _listed(numbers: Float64[np.ndarray, "length"] | None) -> list[float] | None:
    return None if numbers is None else numbers.tolist()


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
