"""What a model's configuration says of its heads, and what it leaves to the implementation.

A configuration is a mapping under the names of Hugging Face's config.json; readers of other formats
translate theirs. Nothing is assumed in silence: every value is noted as read from the file, as a
named default, or as declared by the family, and a base that nobody states is an error.

Rotary parameters are found in each of their spellings: `rope_parameters`, flat or by layer type;
`rope_theta` beside `rope_scaling`; a family's own names.

Source: transformers 5.24, configuration_utils and modeling_rope_utils.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from bridge.errors import BridgeError
from bridge.sources.attention import LayerPositions
from bridge.sources.change import AS_IT_IS, RotaryChange, scaling_text
from bridge.sources.family import Family, LearnedPositions, RotaryPositions
from bridge.sources.model import Provenance, Shape
from theory.errors import TheoryError
from theory.rope_parameters import read_rotary, read_scaling, unknown_keys
from theory.rotary import Rotary

_SLIDING, _FULL = "sliding_attention", "full_attention"
_TRAINED_LENGTH = "original_max_position_embeddings"
_OF_TRAINED_LENGTH = ("llama3", "yarn", "longrope", "su")
# No model is near these; without them a damaged number would ask for tables that no memory holds.
_MOST, _MOST_LAYERS, _WIDEST_HEAD = 1 << 30, 1 << 14, 1 << 14
_FILE, _OPTION = "file", "option"


class Configuration:
    """The entries of one configuration, and notes of where each value that was used comes from.

    `change` takes the place of what it says of rotary positions. Raises BridgeError, by every method, for an entry
    that is missing without a default or of the wrong kind.
    """

    def __init__(self, path: Path, family: Family, entries: Mapping[str, Any], change: RotaryChange = AS_IT_IS) -> None:
        self.path, self.change = path, change
        self.entries = {family.aliases.get(key, key): value for key, value in entries.items()}
        # Where the configuration says whether there are biases, it must be right.
        stated = self.entries.get(family.bias_entry) if family.bias_entry else None
        self.family = replace(family, bias="yes" if stated else "no") if isinstance(stated, bool) else family
        self.provenance: list[Provenance] = [Provenance("family", family.name, _FILE)]
        self.assumptions: list[str] = []

    def shape(self) -> Shape:
        """Widths and counts."""
        keys, family = self.family.keys, self.family
        width, heads = self._whole(keys.width, "width"), self._whole(keys.heads, "heads")
        kv_heads = self._or_derived(keys.kv_heads, "kv heads", heads, "every head has a key head of its own")
        if keys.kv_heads is not None and not self._is_stated(keys.kv_heads):
            self.assumptions.append(f"kv heads are as many as heads, {heads}: the file does not state them")
        head_width = self._or_derived(keys.head_width, "head width", width // heads, "width over heads")
        if width % heads and not self._is_stated(keys.head_width):
            raise self._error(f"{keys.width} {width} is not a multiple of {keys.heads} {heads}")
        if heads % kv_heads:
            raise self._error(f"{heads} heads are not a multiple of {kv_heads} kv heads")
        if head_width > _WIDEST_HEAD or (head_width % 2 and not self._is_learned):
            raise self._error(
                f"head width {head_width} is odd, or above {_WIDEST_HEAD}, and pairs take two lanes each: give the "
                f"model's own {keys.head_width or f'{keys.width} and {keys.heads}'}"
            )
        scale = head_width**-0.5
        if family.query_scale is None:
            self.note("logit scale", "1/sqrt(head width)", f"declared by family {family.name}")
        else:
            scale = self._number(family.query_scale, "logit scale, 1/sqrt of") ** -0.5
        for entry, (expected, part) in family.unmodelled.items():
            found = self.entries.get(entry, expected)
            if found != expected and not (found is None and not expected):
                raise self._error(f"{entry} {found} switches on {part}, which is not modelled")
        return Shape(
            width=width,
            heads=heads,
            kv_heads=kv_heads,
            head_width=head_width,
            layers=self._whole(keys.layers, "layers", most=_MOST_LAYERS),
            vocabulary=self._whole(keys.vocabulary, "vocabulary"),
            trained_length=self._trained_length(),
            epsilon=self._number(keys.epsilon, "norm epsilon"),
            logit_scale=scale,
            fresh_deviation=self._number(keys.fresh, "deviation of an untrained row") if self._is_learned else None,
        )

    def positions(self, shape: Shape) -> tuple[LayerPositions, ...]:
        """How positions enter each layer."""
        kinds = self._layer_types(shape.layers)
        span = self._whole("sliding_window", "sliding window", least=2) if _SLIDING in kinds else None
        rotary = {kind: self._rotary(kind, shape) for kind in dict.fromkeys(kinds)}
        return tuple(LayerPositions(rotary[kind], span if kind == _SLIDING else None) for kind in kinds)

    def note(self, name: str, value: object, source: str) -> None:
        """Provenance of one value."""
        if (entry := Provenance(name, _shown(value), source)) not in self.provenance:
            self.provenance.append(entry)

    def _is_local(self, kind: str) -> bool:
        positions = self.family.positions
        return isinstance(positions, RotaryPositions) and positions.local_base is not None and kind == _SLIDING

    @property
    def _is_learned(self) -> bool:
        return isinstance(self.family.positions, LearnedPositions)

    def _rotary(self, kind: str, shape: Shape) -> Rotary | None:
        positions = self.family.positions
        if not isinstance(positions, RotaryPositions):
            name = "learned" if self._is_learned else "linear bias (ALiBi)"
            if self.change != AS_IT_IS:
                raise self._error(f"its positions are {name}, not rotary: drop --base and --rope-scaling")
            self.note("positions", name, f"declared by family {self.family.name}")
            return None
        self.note("rotary pairs", positions.pairs, f"declared by family {self.family.name}")
        parameters = self._rotary_parameters(kind, positions)
        if parameters is None:
            self.note(f"rotary positions of {kind} layers", "none", _FILE)
            return None
        known = dict(parameters)
        try:
            if unknown := unknown_keys(parameters):
                self.assumptions.append(f"rotary parameters {', '.join(map(repr, unknown))} are not known and not used")
                known = {key: value for key, value in parameters.items() if key not in unknown}
            longest = shape.trained_length if "max_position_embeddings" in self.entries else None
            if positions.lanes is None:
                rotary = read_rotary(known, shape.head_width, longest)
            else:
                lanes = self._or_derived(positions.lanes, "rotary lanes", shape.head_width, "the whole head")
                whole = read_rotary({"rope_theta": known["rope_theta"]}, shape.head_width)
                rotary = replace(whole, width=lanes, scaling=read_scaling(known, longest))
            if not self._is_local(kind):
                rotary = self.change.of(rotary, shape.trained_length)
        except TheoryError as error:
            raise self._error(str(error)) from None
        layers = "" if self.family.window != "types" else f" of {kind} layers"
        if positions.lanes is None:
            self.note(f"rotary lanes{layers}", f"{rotary.width} of {rotary.head_width}", _FILE)
        changed = self.change.scaling is not None and not self._is_local(kind)
        self.note(f"rotary scaling{layers}", scaling_text(rotary.scaling), _OPTION if changed else _FILE)
        return rotary

    def _rotary_parameters(self, kind: str, positions: RotaryPositions) -> dict[str, Any] | None:
        """One mapping as `theory.rope_parameters` reads it, from whichever spelling; None where nothing turns."""
        given, older = self.entries.get("rope_parameters"), self.entries.get("rope_scaling")
        local = self._is_local(kind)
        if given and older and given != older:
            raise self._error(
                "two rotary mappings, rope_parameters and rope_scaling, which may differ: keep one of them"
            )
        if isinstance(given, Mapping) and (_FULL in given or _SLIDING in given):
            if kind not in given:
                raise self._error(f"rope_parameters have no entry for {kind} layers, only {', '.join(map(str, given))}")
            if given[kind] is None:
                return None
            given = given[kind]
        elif given is None:
            given = {} if local else older or {}
        if not isinstance(given, Mapping):
            raise self._error(f"rotary parameters must be a mapping, got {str(given)[:60]!r}")
        parameters = {key: value for key, value in given.items() if value is not None}
        if self.change.base is not None and not local:
            parameters["rope_theta"] = self.change.base
            self.note("rotary base", self.change.base, _OPTION)
        elif "rope_theta" not in parameters:
            parameters["rope_theta"] = self._base(positions, local)
        else:
            self.note(f"rotary base{' of sliding layers' if local else ''}", parameters["rope_theta"], _FILE)
        if positions.fraction is not None and "partial_rotary_factor" not in parameters:
            share = self.entries.get(positions.fraction)
            if share is None and positions.fraction in self.family.defaults:
                share = self._default(positions.fraction, "share of lanes that turn")
            parameters["partial_rotary_factor"] = share
        if parameters.get("rope_type", parameters.get("type")) in _OF_TRAINED_LENGTH:
            beside = self.entries.get(_TRAINED_LENGTH)
            if beside is not None:
                parameters[_TRAINED_LENGTH] = beside
            elif _TRAINED_LENGTH not in parameters and "max_position_embeddings" in self.entries:
                parameters[_TRAINED_LENGTH] = self.entries["max_position_embeddings"]
                self._assume(_TRAINED_LENGTH, parameters[_TRAINED_LENGTH], "max_position_embeddings")
        return parameters

    def _base(self, positions: RotaryPositions, local: bool) -> object:
        entry, name = positions.base, "rotary base"
        if local:
            entry, name = str(positions.local_base), "rotary base of sliding layers"
        for key in (entry, "rope_theta") if not local else (entry,):
            if self.entries.get(key) is not None:
                self.note(name, self.entries[key], _FILE)
                return self.entries[key]
        if positions.fixed_base is not None:
            self.assumptions.append(f"{name} {positions.fixed_base:g} is fixed in family {self.family.name}")
            self.note(name, positions.fixed_base, f"declared by family {self.family.name}")
            return positions.fixed_base
        if entry in self.family.defaults:
            return self._default(entry, name)
        raise self._error(
            f"no {entry}: the base of the rotary frequencies is not stated, and none is assumed; give --base "
            "(10000 in the first models of the Llama kind)"
        )

    def _layer_types(self, layers: int) -> tuple[str, ...]:
        given = self.entries.get("layer_types")
        if given is not None:
            if not (isinstance(given, list) and len(given) == layers and all(isinstance(kind, str) for kind in given)):
                raise self._error(f"layer_types must be {layers} names, one a layer")
            if other := sorted(set(given) - {_SLIDING, _FULL}):
                raise self._error(f"layers of type {', '.join(other)} are not modelled")
            return tuple(given)
        window = self.entries.get("sliding_window", self.family.defaults.get("sliding_window"))
        if self.family.window == "types":
            pattern = self._whole("sliding_window_pattern", "period of full layers")
            return tuple(_FULL if (layer + 1) % pattern == 0 else _SLIDING for layer in range(layers))
        if self.family.window == "all" and window is not None:
            return (_SLIDING,) * layers
        if self.family.window == "from" and window is not None and self.entries.get("use_sliding_window"):
            first = self._whole("max_window_layers", "first sliding layer", least=0)
            return tuple(_SLIDING if layer >= first else _FULL for layer in range(layers))
        return (_FULL,) * layers

    def _trained_length(self) -> int:
        if self.family.keys.length is not None:
            return self._whole(self.family.keys.length, "trained length", least=2)
        for key in ("seq_length", "n_positions", "max_position_embeddings"):
            if self.entries.get(key) is not None:
                return self._whole(key, "trained length", least=2)
        self._assume("trained length", 2048, f"the papers of family {self.family.name}")
        return 2048

    def _is_stated(self, key: str | None) -> bool:
        """Whether the file has a value, or, where it is silent and not null, the family."""
        return key is not None and self.entries.get(key, self.family.defaults.get(key)) is not None

    def _or_derived(self, key: str | None, name: str, derived: int, how: str) -> int:
        if key is not None and self._is_stated(key):
            return self._whole(key, name)
        self.note(name, derived, f"default of family {self.family.name}: {how}")
        return derived

    def _whole(self, key: str, name: str, least: int = 1, most: int = _MOST) -> int:
        number = self._value(key, name)
        if isinstance(number, bool) or not isinstance(number, int) or not least <= number <= most:
            raise self._error(f"{key} must be a whole number from {least} to {most}, got {str(number)[:60]!r}")
        return number

    def _number(self, key: str, name: str) -> float:
        number = self._value(key, name)
        if isinstance(number, bool) or not isinstance(number, int | float) or not 0 < number <= sys.float_info.max:
            raise self._error(f"{key} must be a finite number above 0, got {str(number)[:60]!r}")
        return float(number)

    def _value(self, key: str, name: str) -> object:
        if (value := self.entries.get(key)) is not None:
            self.note(name, value, _FILE)
            return value
        if self.family.defaults.get(key) is not None:
            return self._default(key, name)
        raise self._error(f"no {key}, which family {self.family.name} needs: complete the configuration")

    def _default(self, key: str, name: str) -> object:
        value = self.family.defaults[key]
        self._assume(name, value, self.family.defaults_of)
        return value

    def _assume(self, name: str, value: object, of: str) -> None:
        self.note(name, value, f"default of {of}")
        self.assumptions.append(f"{name} {_shown(value)} is the default of {of}: the file does not state it")

    def _error(self, message: str) -> BridgeError:
        # What a file says may hold line breaks.
        return BridgeError(f"{self.path}: {' '.join(message.split())}")


def _shown(value: object) -> str:
    return f"{value:.10g}" if isinstance(value, float) else str(value)
