"""A carrier that is wanted, and what it takes: its margin, its energy, what it gives up at short lengths.

No weights: width, base or periods, target and length are all that is given. The same carrier is what a run can start
from, before its first step.

Source: `theory.design`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bridge.documents import Document
from bridge.errors import BridgeError
from bridge.tables import Table
from empirics.means import Means
from empirics.spec import Rotary, RunSpec
from theory.best_schedules import BestBase, BestFrequencies, best_base, best_frequencies
from theory.certified import CertifiedMargin
from theory.content_costs import check_logits
from theory.design import Design, PriceInRange, design_carrier, energy_bound, energy_of_means, price_in_range
from theory.head import Head
from theory.schedule import RotarySchedule

ATTENTION = 0.9
"""What a design is made to reach where nothing else is said."""
_WIDTH, _BASE = 64, 10_000.0
_SHORT = (16, 64, 256, 1024)
# A solver's last bits shall not change the name of a run that starts from means.
_DECIMALS = 6


@dataclass(frozen=True, eq=False)
class Asked:
    """What a carrier is to do: attention on K = `offset` tokens back in contexts of up to `length` tokens.

    `frequencies` is the range in rad/token within which the best ones are looked for, where that is asked.
    """

    offset: int
    length: int
    attention: float
    find_base: bool = False
    frequencies: tuple[float, float] | None = None


@dataclass(frozen=True, eq=False)
class Designed:
    """The best carrier of a schedule for what was asked. Energies in nats; `bound` is enough for a head without
    residuals, `means` is what the softmax of its means takes; `price` is at the energy `bound`."""

    name: str
    asked: Asked
    design: Design
    certified: CertifiedMargin
    bound: float
    means: float
    price: PriceInRange
    base: BestBase | None
    frequencies: BestFrequencies | None


def named_schedule(width: int | None, base: float | None, periods: str | None) -> tuple[str, RotarySchedule]:
    """A geometric schedule (width 64 and base 10 000 where they are not given), or one pair a period in tokens.

    Raises BridgeError for periods that are no whole numbers of tokens, or stand beside a width or a base, and
    TheoryError as `RotarySchedule.geometric`.
    """
    if periods is None:
        width, base = width or _WIDTH, _BASE if base is None else base
        return f"base {base:g}, width {width}", RotarySchedule.geometric(width, base)
    if width is not None or base is not None:
        raise BridgeError("--periods is a whole schedule, a pair each: drop --width and --base")
    try:
        turns = [(1, int(period)) for period in periods.split(",")]
    except ValueError:
        raise BridgeError(
            f"--periods needs whole numbers of tokens with commas, such as 3,5,7, got {periods[:60]!r}"
        ) from None
    return f"periods {periods}, width {2 * len(turns)}", RotarySchedule.periodic(turns)


def make_design(name: str, schedule: RotarySchedule, asked: Asked) -> Designed:
    """The best carrier and what it takes.

    Raises TheoryError where no margin is possible over the length, BridgeError as `needed_energy`.
    """
    design = design_carrier(schedule, asked.offset, asked.length)
    bound = needed_energy(design, asked.attention)
    lengths = [length for length in (*_SHORT, asked.length) if max(asked.offset, 1) < length <= asked.length]
    return Designed(
        name,
        asked,
        design,
        design.certified(),
        bound,
        energy_of_means(design, asked.attention),
        price_in_range(design, list(dict.fromkeys(lengths)), bound),
        best_base(schedule.dim, asked.offset, asked.length) if asked.find_base else None,
        None if asked.frequencies is None else best_frequencies(schedule.pairs, design.reach, *asked.frequencies),
    )


def needed_energy(design: Design, attention: float) -> float:
    """The bound's energy in nats for an attention at the design's length.

    Raises BridgeError for an attention that every key has without any carrier, TheoryError as `energy_bound`.
    """
    bound = energy_bound(design.margin, attention, design.length)
    if bound == 0:
        raise BridgeError(
            f"attention {attention:g} at length {design.length} is what every key has without a carrier: ask for more "
            f"than {1 / design.length:.2g}"
        )
    return bound


def start_means(spec: RunSpec, length: int, attention: float) -> Means:
    """Means of a run to begin training from: in every head the best carrier for its target in contexts to `length`.

    The energy is the bound's for the attention, the query's phases are 0. Raises BridgeError for a run without rotary
    positions or softmax and as `needed_energy`, TheoryError as `design_carrier` and, for an energy that float32 does
    not hold, `check_logits`.
    """
    if not isinstance(spec.encoding, Rotary):
        raise BridgeError(f"a designed start needs rotary positions, got {spec.encoding.kind}: give rope")
    if spec.attention != "softmax":
        raise BridgeError(f"a designed start needs softmax attention, got {spec.attention}: leave it out")
    design = design_carrier(RotarySchedule.geometric(spec.head_width, spec.encoding.base), spec.offset, length)
    scale = spec.temperature * spec.head_width**-0.5
    made = design.carrier(needed_energy(design, attention), scale)
    content = Head.from_tokens(design.schedule, made.query_mean[None], made.key_mean[None], np.ones(1), scale)
    check_logits(content, length)
    query, key = (np.tile(np.round(mean, _DECIMALS), spec.heads).tolist() for mean in (made.query_mean, made.key_mean))
    return Means(query=tuple(query), key=tuple(key))


def design_tables(made: Designed) -> tuple[Table, ...]:
    """Margin and energies; attention at shorter lengths; the pairs that carry."""
    asked, design = made.asked, made.design
    found = []
    if made.base is not None:
        edge = ", at the edge of what was tried" if made.base.at_edge else ""
        found.append((f"best base, {made.base.base:.4g}{edge}", made.base.margin))
    if made.frequencies is not None:
        found.append(("best frequencies found", made.frequencies.margin))
    rows = [(made.name, f"{design.margin:.6f}", f"{made.bound:.2f}", f"{made.means:.2f}")]
    for name, margin in found:
        rows.append((name, f"{margin:.6f}", f"{energy_bound(margin, asked.attention, asked.length):.2f}", "-"))
    notes = [
        f"margin: min 1 - g(s) over the lags 1..{design.reach}, per nat of energy; that of the first row lies in "
        f"[{made.certified.value.lower:.12g}, {made.certified.value.upper:.12g}], with the highest rival at "
        f"offset {made.certified.competitor}, certified",
        "energy: sum r_i in nats; by the bound ln((L-1) a/(1-a))/margin, and by the softmax of the means; residuals "
        "of a head may take more or less, `carrier repair` says it of a run",
    ]
    if made.base is not None:
        tried = made.base.bases
        notes.append(
            f"best base: of {len(tried)} from {tried[0]:g} to {tried[-1]:g}; the margin has more than one peak"
        )
    if made.frequencies is not None:
        notes.append(f"no frequencies of the range, however many, have a margin above {made.frequencies.bound:.6f}")
    title = f"best carrier for K={asked.offset} up to L={asked.length}, attention {asked.attention:g}"
    first = Table(title, ("schedule", "margin", "energy, bound", "energy, means"), tuple(rows), tuple(notes))
    price = made.price
    second = Table(
        f"attention of the means at {price.energy:.2f} nats",
        ("L", f"made for L={asked.length}", "made for this L", "given up"),
        tuple(
            (str(length), f"{ours:.4f}", f"{own:.4f}", f"{lost:+.4f}")
            for length, ours, own, lost in zip(
                price.lengths, price.attention, price.of_own_design, price.price, strict=True
            )
        ),
    )
    carried = [pair for pair in range(len(design.weights)) if design.weights[pair] > 1e-9]
    third = Table(
        f"{len(carried)} of {len(design.weights)} pairs carry",
        ("pair", "rad/token", "weight"),
        tuple(
            (str(pair), f"{design.schedule.frequencies[pair]:.6g}", f"{design.weights[pair]:.6f}") for pair in carried
        ),
    )
    return first, second, third


def design_document(made: Designed) -> Document:
    """`carrier design` as JSON. Offsets are deltas, energies nats, margins nats per nat of energy."""
    design, price = made.design, made.price
    return {
        "schedule": made.name,
        "offset": -made.asked.offset,
        "length": made.asked.length,
        "attention": made.asked.attention,
        "margin": margin_document(design, made.certified),
        "energy": {"bound": made.bound, "means": made.means},
        "pairs": [
            {"frequency": float(frequency), "weight": float(weight)}
            for frequency, weight in zip(design.schedule.frequencies, design.weights, strict=True)
        ],
        "price": [
            {"length": length, "attention": float(ours), "of_own_design": float(own)}
            for length, ours, own in zip(price.lengths, price.attention, price.of_own_design, strict=True)
        ],
        "best_base": None
        if made.base is None
        else {
            "base": made.base.base,
            "margin": made.base.margin,
            "lowest": float(made.base.bases[0]),
            "highest": float(made.base.bases[-1]),
        },
        "best_frequencies": None
        if made.frequencies is None
        else {
            "frequencies": made.frequencies.schedule.frequencies.tolist(),
            "margin": made.frequencies.margin,
            "bound": made.frequencies.bound,
        },
    }


def margin_document(design: Design, certified: CertifiedMargin) -> Document:
    """A design's margin, nats per nat of energy, and the certificate of it; the competitor is a delta."""
    return {
        "value": design.margin,
        "lower": certified.value.lower,
        "upper": certified.value.upper,
        "competitor": certified.competitor,
    }
