"""Accuracy of recognisers against the length of a word, a panel a language."""

from __future__ import annotations

from collections.abc import Sequence

import matplotlib
import numpy as np
from matplotlib.figure import Figure

from bridge.figures.axes import SHARE
from bridge.figures.style import BLUE, GREEN, GREY, ORANGE, PURPLE, STYLE, add_legend, panels
from bridge.studies.horizon_languages import ENCODINGS, LANGUAGES, Recogniser

_LOOKS = tuple(
    zip((BLUE, "#56B4E9", ORANGE, PURPLE, GREEN, GREY), ("-", "--", "-.", ":", (0, (6, 2, 1, 2)), "--"), strict=True)
)
_TOGETHER = 20
"""Lengths whose mean is drawn: single ones alternate, as odd words belong to neither modular language."""


def languages_figure(found: Sequence[Recogniser], trained: int) -> Figure:
    """Means over seeds and over twenty lengths; the trained lengths are shaded."""
    with matplotlib.rc_context(STYLE):
        figure, all_panels = panels(3)
        for panel, (name, title) in zip(all_panels, LANGUAGES.items(), strict=True):
            for one in (one for one in found if one.language == name):
                color, dashes = _LOOKS[list(ENCODINGS).index(one.encoding)]
                means = one.accuracy.mean(axis=0)
                blocks = np.array_split(means, max(1, len(means) // _TOGETHER))
                ends = np.cumsum([len(block) for block in blocks])
                centres = [end - (len(block) - 1) / 2 for end, block in zip(ends, blocks, strict=True)]
                panel.plot(centres, [block.mean() for block in blocks], color=color, ls=dashes, label=one.encoding)
            panel.axvspan(1, trained, color="0.92", zorder=0, label=f"trained lengths, to {trained}")
            panel.axhline(0.5, color=GREY, ls=":", lw=0.8, label="one half")
            panel.set_ylim(SHARE)
            panel.set_xlabel("letters of the word")
            panel.set_ylabel("accuracy (share of words)")
            panel.set_title(title)
        add_legend(figure, *all_panels, columns=4)
    return figure
