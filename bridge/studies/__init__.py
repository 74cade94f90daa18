"""Experiments of our own; `carrier reproduce` runs them by name."""

from __future__ import annotations

from bridge.studies import heads, horizon, limits, real_heads, real_surgery, surgery
from bridge.studies.study import Study

STUDIES: tuple[Study, ...] = (
    real_heads.STUDY,
    surgery.STUDY,
    real_surgery.STUDY,
    heads.STUDY,
    limits.STUDY,
    horizon.STUDY,
)
