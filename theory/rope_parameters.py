"""Reads the rotary parameters of a model's configuration into scalings and schedules.

The mapping is the field's `rope_parameters` (formerly `rope_scaling`): a type under `rope_type` or
`type`, the base under `rope_theta`, the type's numbers under the names of the scaling's fields, the
trained length T as `original_max_position_embeddings`; None is absent. Nothing is assumed: a
configuration that keeps the base or T beside the mapping has them put in by who reads the file.

    default, linear, ntk, dynamic, yarn, llama3, longrope (su), proportional

`max_position_embeddings` stands beside the mapping and enters where transformers takes it: it is
T of dynamic, and over T it is the factor of yarn and longrope that give none.

Source: transformers 5.24, whose reading this follows, but for what it guesses or only warns of;
`ntk`, which it does not have, is ours.
"""

from __future__ import annotations

import dataclasses
import math
import sys
from collections.abc import Mapping, Sequence

from theory.errors import TheoryError
from theory.ramp_scaling import Llama3, Yarn
from theory.rotary import Rotary
from theory.scaling import DynamicNtk, Linear, LongRope, Ntk, Proportional, Scaling, Unscaled
from theory.schedule import RotarySchedule

_SCALINGS: dict[str, type[Scaling]] = {
    "default": Unscaled,
    "linear": Linear,
    "ntk": Ntk,
    "dynamic": DynamicNtk,
    "yarn": Yarn,
    "llama3": Llama3,
    "longrope": LongRope,
    "su": LongRope,
    "proportional": Proportional,
}
_TRAINED_LENGTH = "original_max_position_embeddings"
_OF_EVERY_TYPE = {"rope_type", "type", "rope_theta", "partial_rotary_factor"}


def read_scaling(parameters: Mapping[str, object], max_position_embeddings: int | None = None) -> Scaling:
    """The scaling of one mapping. Base and partial rotary factor may stand in it and are `read_schedule`'s.

    Raises TheoryError for what is no mapping, a type or key that is not known, a key that is missing,
    a value of the wrong kind, and whatever the scaling refuses.
    """
    _check_mapping(parameters)
    if max_position_embeddings is not None:
        max_position_embeddings = _tokens("max_position_embeddings", max_position_embeddings)
    given = {key: value for key, value in parameters.items() if value is not None}
    kind, scaling = _scaling_type(given)
    fields = {_key(field): field for field in dataclasses.fields(scaling)}
    if unknown := unknown_keys(given):
        raise TheoryError(
            f"unknown key {', '.join(unknown)} in rotary parameters of type {kind}, which takes "
            f"{', '.join(sorted(fields.keys() | _OF_EVERY_TYPE))}: take it out, or read one mapping a layer type "
            "by read_schedules"
        )
    values = {key: _value(key, given[key]) for key in fields if key in given}
    values |= _from_length(scaling, values, max_position_embeddings)
    missing = [key for key, field in fields.items() if field.default is dataclasses.MISSING and key not in values]
    if missing:
        raise TheoryError(
            f"rotary parameters of type {kind} lack {', '.join(missing)}: put it into the mapping "
            f"({_TRAINED_LENGTH} is the trained length in tokens; configurations may keep it beside the mapping)"
        )
    return scaling(**{fields[key].name: value for key, value in values.items()})


def read_rotary(parameters: Mapping[str, object], head_dim: int, max_position_embeddings: int | None = None) -> Rotary:
    """The rotary positions of one mapping for heads of width `head_dim`.

    A partial rotary factor p turns the first floor(p head_dim) lanes, and that width enters every
    formula but proportional's. Raises TheoryError as `read_scaling`, for a missing base, and where
    the rotary width is odd, 0 or more than the head's.
    """
    scaling = read_scaling(parameters, max_position_embeddings)
    base = parameters.get("rope_theta")
    if base is None:
        raise TheoryError(
            "rotary parameters lack rope_theta, the base of the frequencies: put the configuration's own into the "
            "mapping, no base is assumed here"
        )
    width = head_dim if isinstance(scaling, Proportional) else _rotary_width(parameters, head_dim)
    return Rotary(_number("rope_theta", base), head_dim, width, scaling)


def rope_parameters(rotary: Rotary) -> dict[str, object]:
    """The mapping that `read_rotary` reads as these rotary positions, for a configuration of transformers.

    `ntk`, which transformers does not have, is written as the base that it amounts to (of two rotary pairs or more), so
    that the mapping is one that transformers knows.
    """
    base, scaling = rotary.base, rotary.scaling
    if isinstance(scaling, Ntk) and rotary.width > 2:
        base, scaling = base * scaling.factor ** (rotary.width / (rotary.width - 2)), Unscaled()
    kind = next(name for name, known in _SCALINGS.items() if known is type(scaling))
    parameters: dict[str, object] = {"rope_type": kind, "rope_theta": base}
    if rotary.width < rotary.head_width:
        share = rotary.width / rotary.head_width
        # Its reader rounds down.
        parameters["partial_rotary_factor"] = (
            share if int(rotary.head_width * share) == rotary.width else math.nextafter(share, 1)
        )
    for field in dataclasses.fields(scaling):
        value = getattr(scaling, field.name)
        if value is not None:
            parameters[_key(field)] = list(value) if isinstance(value, tuple) else value
    return parameters


def read_schedule(
    parameters: Mapping[str, object],
    head_dim: int,
    length: int | None = None,
    max_position_embeddings: int | None = None,
) -> RotarySchedule:
    """The schedule of one mapping at a length, None for the trained one. Raises TheoryError as `read_rotary`."""
    return read_rotary(parameters, head_dim, max_position_embeddings).schedule(length)


def unknown_keys(parameters: Mapping[str, object]) -> tuple[str, ...]:
    """Keys of one mapping that its type does not take, in order. Raises TheoryError for a type that is not known."""
    given = {key: value for key, value in parameters.items() if value is not None}
    fields = {_key(field) for field in dataclasses.fields(_scaling_type(given)[1])}
    return tuple(sorted(str(key) for key in given.keys() - fields - _OF_EVERY_TYPE))


def read_schedules(
    parameters: Mapping[str, object],
    layer_types: Sequence[str],
    head_dim: int,
    length: int | None = None,
    max_position_embeddings: int | None = None,
) -> dict[str, RotarySchedule]:
    """One schedule a layer type, as for a local and a global base: `layer_types` is the configuration's own list.

    Nested parameters hold a mapping under each layer type, None for layers without rotary positions;
    a flat mapping is that of all. Raises TheoryError as `read_schedule`, and where a nested mapping
    lacks a layer type or holds anything beside layer types.
    """
    _check_mapping(parameters)
    kinds = tuple(dict.fromkeys(layer_types))
    if not kinds:
        raise TheoryError("there is no layer type to read a schedule for: give one or more, such as full_attention")
    if not any(kind in parameters for kind in kinds):
        return dict.fromkeys(kinds, read_schedule(parameters, head_dim, length, max_position_embeddings))
    missing = [kind for kind in kinds if kind not in parameters]
    stray = [key for key, value in parameters.items() if not (value is None or isinstance(value, Mapping))]
    if missing or stray:
        raise TheoryError(
            f"rotary parameters nested by layer type lack {missing} and hold {stray} beside the layer types: give one "
            f"mapping for each of {', '.join(kinds)} and move every other key into them"
        )
    schedules = {}
    for kind in kinds:
        own = parameters[kind]
        schedules[kind] = (
            read_schedule(own, head_dim, length, max_position_embeddings)
            if isinstance(own, Mapping)
            else RotarySchedule.without_rotation(head_dim)
        )
    return schedules


def _check_mapping(parameters: object) -> None:
    if not isinstance(parameters, Mapping):
        raise TheoryError(
            f"rotary parameters must be a mapping, got {parameters!r}: where a configuration has null in their place, "
            "put its base into one of type default, {'rope_theta': base}"
        )


def _scaling_type(given: Mapping[str, object]) -> tuple[str, type[Scaling]]:
    names = [given[key] for key in ("rope_type", "type") if key in given] or ["default"]
    for name in names:
        if not (isinstance(name, str) and name in _SCALINGS):
            raise TheoryError(
                f"unknown rope_type {name!r}, which must be one of {', '.join(_SCALINGS)}: give one of these, or the "
                "frequencies themselves as a RotarySchedule"
            )
    kinds = {str(name): _SCALINGS[str(name)] for name in names}
    if len(set(kinds.values())) > 1:
        raise TheoryError(f"rope_type and type name two scalings, {' and '.join(kinds)}: give one of them")
    return next(iter(kinds.items()))


def _key(field: dataclasses.Field) -> str:
    return _TRAINED_LENGTH if field.name == "trained_length" else field.name


def _from_length(
    scaling: type[Scaling], values: Mapping[str, object], max_position_embeddings: int | None
) -> dict[str, object]:
    """What a type takes from `max_position_embeddings`: dynamic its trained length, yarn and longrope their factor."""
    trained = values.get(_TRAINED_LENGTH)
    if max_position_embeddings is None:
        return {}
    if scaling is DynamicNtk:
        if trained not in (None, max_position_embeddings):
            raise TheoryError(
                f"dynamic scaling has two trained lengths, {_TRAINED_LENGTH} {trained} and max_position_embeddings "
                f"{max_position_embeddings}: give one of them"
            )
        return {_TRAINED_LENGTH: max_position_embeddings}
    if scaling in (Yarn, LongRope) and "factor" not in values and isinstance(trained, int):
        return {"factor": max_position_embeddings / trained}
    return {}


def _value(key: str, value: object) -> object:
    if key == "truncate":
        if not isinstance(value, bool):
            raise TheoryError(f"truncate must be true or false, got {value!r}")
        return value
    if key in ("short_factor", "long_factor"):
        if not isinstance(value, list | tuple):
            raise TheoryError(f"{key} must be a list of numbers, one a rotary pair, got {value!r}")
        return tuple(_number(f"{key}[{i}]", number) for i, number in enumerate(value))
    return _tokens(key, value) if key == _TRAINED_LENGTH else _number(key, value)


def _tokens(key: str, value: object) -> int:
    number = _number(key, value)
    if not (number.is_integer() and number >= 1):
        raise TheoryError(f"{key} must be a whole number of tokens, 1 or more, got {value!r}")
    return int(number)


def _number(key: str, value: object) -> float:
    # To Python true is a number, and a whole number may be more than a float holds.
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= sys.float_info.max:
        raise TheoryError(f"{key} must be a finite number, got {value!r}")
    return float(value)


def _rotary_width(parameters: Mapping[str, object], head_dim: int) -> int:
    given = parameters.get("partial_rotary_factor")
    fraction = 1.0 if given is None else _number("partial_rotary_factor", given)
    width = int(head_dim * fraction)
    if not 0 < fraction <= 1 or width < 2 or width % 2:
        raise TheoryError(
            f"partial_rotary_factor {fraction:g}{' (none is given)' if given is None else ''} turns {width} of "
            f"{head_dim} lanes, and must be above 0, 1 at most, and turn an even number of lanes, 2 or more: give the "
            "model's own head width and factor"
        )
    return width
