"""The tables and figures of arXiv 2607.18759 that are reproduced, one file each.

Every file names its specs, its statement, its printed numbers and how ours are measured;
none has a training loop of its own.
"""

from __future__ import annotations

from bridge.errors import BridgeError
from bridge.paper import figure_1, figure_3, table_1, table_2, table_7
from bridge.paper.target import Target

TARGETS: tuple[Target, ...] = (
    table_1.TARGET,
    table_2.TARGET,
    table_7.TARGET,
    figure_1.TARGET,
    figure_3.TARGET,
)


def target(name: str) -> Target:
    """The target of a name. Raises BridgeError that lists the known ones."""
    for known in TARGETS:
        if known.id == name:
            return known
    raise BridgeError(f"unknown target {name!r}: give {', '.join(known.id for known in TARGETS)} or all")
