"""Heads of a model with learned positions as a table that a person reads."""

from __future__ import annotations

from collections.abc import Sequence

from bridge.content import LayerContent
from bridge.head_views import heading
from bridge.pinned import PinnedReport
from bridge.tables import Table


def pinned_table(content: LayerContent, reports: Sequence[PinnedReport]) -> Table:
    """One head a row: what it looks at from trained positions, and where it is pinned beyond them."""
    trained = content.model.shape.trained_length
    rows = tuple(
        (
            f"{content.index}.{report.head}",
            str(report.offset),
            f"{report.share:.3f} +- {report.share_error:.3f}",
            f"{report.steadiness:.1f}",
            str(report.pinned),
            f"{report.pinned_share:.3f} +- {report.pinned_error:.3f}",
            f"{report.fresh_agreement:.2f}",
            str(report.decayed_pinned),
            f"{report.decayed_share:.3f}",
        )
        for report in reports
    )
    columns = ("head", "offset", "share", "steady", "pinned at", "share there", "draws", "decayed: at", "share at")
    notes = (
        f"offset, share: the peak of the query at the last trained position, {trained - 1}; steady: share of ten "
        "trained positions whose peak is at the same offset",
        f"pinned at: position most attended by the query at {trained}, whose row is untrained (mean over fresh draws; "
        "draws: share of them that agree); decayed: with a row of zeros",
        *content.assumptions,
    )
    return Table(f"{heading(content)}: learned positions", columns, rows, notes)
