"""The tables and figures of arXiv 2607.18759 that are reproduced, one file each.

Every file names its specs, its statement, its printed numbers and how ours are measured;
none has a training loop of its own.
"""

from __future__ import annotations

from bridge.errors import BridgeError
from bridge.paper import (
    figure_1,
    figure_2,
    figure_3,
    figure_4,
    figure_5,
    figure_6,
    table_1,
    table_2,
    table_3,
    table_4,
    table_5,
    table_6,
    table_7,
    table_8,
    text_claims,
)
from bridge.paper.target import Target

TARGETS: tuple[Target, ...] = (
    table_1.TARGET,
    table_2.TARGET,
    table_3.TARGET,
    table_4.TARGET,
    table_5.TARGET,
    table_6.TARGET,
    table_7.TARGET,
    table_8.TARGET,
    figure_1.TARGET,
    figure_2.TARGET,
    figure_3.TARGET,
    figure_4.TARGET,
    figure_5.TARGET,
    figure_6.TARGET,
    text_claims.TARGET,
)


def target(name: str) -> Target:
    """The target of a name. Raises BridgeError that lists the known ones."""
    for known in TARGETS:
        if known.id == name:
            return known
    raise BridgeError(f"unknown target {name!r}: give {', '.join(known.id for known in TARGETS)} or all")
