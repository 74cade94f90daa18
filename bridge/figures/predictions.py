"""Pictures of predictions, and of what was observed beside them: no run, no torch."""

from __future__ import annotations

from collections.abc import Sequence

import matplotlib
from matplotlib.figure import Figure

from bridge.compare import LIMIT, Comparison
from bridge.figures.style import GREY, STYLE, add_legend, draw_laws
from bridge.prediction import Prediction


def prediction_figure(
    predictions: Sequence[tuple[str, Prediction]], trained_length: int, compared: Comparison | None = None
) -> Figure:
    """Attention on the selected offset against length, one panel a head; what was observed stands in the first."""
    with matplotlib.rc_context(STYLE):
        columns = min(4, len(predictions))
        rows = -(-len(predictions) // columns)
        figure = Figure(figsize=(max(3.1 * columns + 0.6, 4.6), 2.5 * rows + 1.2), layout="constrained")
        panels = figure.subplots(rows, columns, squeeze=False, sharex=True, sharey=True)
        for panel in panels.flat[len(predictions) :]:
            panel.remove()
        for panel, (name, prediction) in zip(panels.flat, predictions, strict=False):
            draw_laws(panel, prediction, bound=False)
            panel.axvline(trained_length, color=GREY, lw=0.8, label=f"trained length, {trained_length}")
            panel.set_xscale("log", base=2)
            panel.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
            panel.set_title(f"{name}, offset {-prediction.offset}", fontsize=9.5)
        first = panels.flat[0]
        if compared is not None:
            first.errorbar(
                compared.lengths,
                compared.observed,
                LIMIT * compared.standard_error,
                fmt="o",
                ms=4,
                color="black",
                label=f"observed (bars: {LIMIT} s.e.)",
            )
        first.set_ylim(bottom=0)
        figure.supxlabel("context length L (tokens)", fontsize=9.5)
        figure.supylabel("mean attention", fontsize=9.5)
        add_legend(figure, first, place="outside upper center", columns=2 if columns == 1 else 3)
    return figure
