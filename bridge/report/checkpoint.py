"""What a checkpoint puts into a report: the map of its heads, their table's picture, and carriers to explore.

Source: `bridge.inspect` (layer 0 from weights), `bridge.calibrated` (any layer on a text).
"""

from __future__ import annotations

from collections.abc import Sequence

from bridge.calibrated import CalibratedReport
from bridge.calibrated_views import heading as heading_on_text
from bridge.content import LayerContent
from bridge.figures.layer import layer_figure
from bridge.figures.model import model_figure
from bridge.head_views import heading, positions_note
from bridge.inspect import HeadReport
from bridge.report.contents import Contents, Picture
from bridge.report.heads import HeadMap, mapped_from_weights, mapped_on_text
from bridge.text_content import TextContent


def report_from_weights(content: LayerContent, reports: Sequence[HeadReport]) -> Contents:
    """The report on a layer whose heads follow from the weights alone."""
    trained, title = content.model.shape.trained_length, heading(content)
    reference = reports[0].reference_length
    notes = (
        positions_note(content),
        f"offset: that of the highest expected attention at L={reference} by the exact law, sampled",
        *content.assumptions,
    )
    heads = HeadMap(title, tuple(mapped_from_weights(report) for report in reports), trained, notes)
    picture = Picture(f"{content.name}-heads", f"heads of {title}", layer_figure(reports, trained))
    return Contents(f"{content.name}: {title}", pictures=(picture,), heads=heads, carriers=heads.carriers())


def report_on_text(content: TextContent, reports: Sequence[CalibratedReport]) -> Contents:
    """The report on heads that were seen on a text."""
    trained, title = content.model.shape.trained_length, heading_on_text(content)
    notes = (
        f"offset: the one that the head selects by the windowed law at L={reports[0].reference_length}, under the "
        "model's own positions",
        *content.assumptions,
    )
    heads = HeadMap(title, tuple(mapped_on_text(report) for report in reports), trained, notes)
    picture = Picture(f"{content.model.name}-heads-on-text", f"heads of {title}", model_figure(reports))
    return Contents(f"{content.model.name}: {title}", pictures=(picture,), heads=heads, carriers=heads.carriers())
