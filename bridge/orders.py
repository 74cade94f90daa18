"""Reports of heads in the order that a person asks for: by a column, or by predicted attention at a length."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeVar, runtime_checkable

from bridge.errors import BridgeError
from bridge.prediction import Prediction


@runtime_checkable
class Reported(Protocol):
    """A report that holds a prediction."""

    @property
    def prediction(self) -> Prediction:
        """The laws at lengths."""
        ...


Report = TypeVar("Report", bound=Reported)
Orders = Mapping[str, Callable[[Any], Any]]
"""Columns by name, each with what sorts by it."""


def check_order(order: str, orders: Orders, lengths: Sequence[int]) -> None:
    """Raises BridgeError for an order that `ordered` does not know."""
    if order not in orders and order not in map(str, lengths):
        raise BridgeError(
            f"--sort needs {', '.join(orders)}, or one of the lengths {', '.join(map(str, lengths))}, got {order!r}"
        )


def ordered(reports: Sequence[Report], order: str, orders: Orders) -> list[Report]:
    """Reports by a column, or by predicted attention at a length, the greatest first."""
    if order in orders:
        return sorted(reports, key=orders[order])
    return sorted(reports, key=lambda report: -(report.prediction.at(int(order)) or 0.0))
