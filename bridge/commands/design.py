"""`carrier design`: the best carrier for a target and a length, what it takes, and which base or frequencies suit."""

from __future__ import annotations

from typing import Annotated

import typer

from bridge.commands.options import Json
from bridge.commands.terminal import check_length, show
from bridge.designs import ATTENTION, Asked, design_document, design_tables, make_design, named_schedule
from bridge.errors import BridgeError


def design(
    offset: Annotated[int, typer.Option(help="Target: tokens back.")] = 1,
    length: Annotated[int, typer.Option(help="Longest context in tokens.")] = 4096,
    attention: Annotated[float, typer.Option(help="Attention wanted on the target at that length.")] = ATTENTION,
    width: Annotated[int | None, typer.Option(help="Width of the head; default 64.")] = None,
    base: Annotated[float | None, typer.Option(help="Rotary base; default 10000.")] = None,
    periods: Annotated[
        str | None, typer.Option(help="A periodic schedule in place of a base: tokens, a pair each, such as 3,5,7.")
    ] = None,
    best_base: Annotated[bool, typer.Option("--best-base", help="Look for the best base, too: some seconds.")] = False,
    best_frequencies: Annotated[
        str | None, typer.Option(help="Look for the best frequencies within SLOWEST,FASTEST rad/token, too: a minute.")
    ] = None,
    as_json: Json = False,
) -> None:
    """The best carrier for a target and a length: margin, energy, what it gives up at short lengths. Needs no torch."""
    asked = Asked(abs(offset), check_length("--length", length), attention, best_base, _range(best_frequencies))
    made = make_design(*named_schedule(width, base, periods), asked)
    show(as_json, lambda: design_document(made), design_tables(made))


def _range(text: str | None) -> tuple[float, float] | None:
    if text is None:
        return None
    try:
        slowest, fastest = (float(part) for part in text.split(","))
    except ValueError:
        raise BridgeError(
            f"--best-frequencies needs two numbers in rad/token with a comma, such as 1e-4,1, got {text[:60]!r}"
        ) from None
    return slowest, fastest
