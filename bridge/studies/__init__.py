"""Experiments on real checkpoints, one module each; `carrier reproduce` runs them by name."""

from __future__ import annotations

from bridge.studies import real_heads
from bridge.studies.study import Study

STUDIES: tuple[Study, ...] = (real_heads.STUDY,)
