"""Another rotary base or scaling than a model's own, to ask what it would do to a head without training.

    none, linear:4, ntk:4, dynamic:4, yarn:4, llama3:8

The number is the factor; the trained length is the model's. Where local layers have a base of their
own, they keep their positions: their window does not grow with the context.

Source: `theory.scaling`; llama3's turns, 1 and 4, are those of the models it is named after.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace

from bridge.errors import BridgeError
from theory.rope_parameters import read_scaling
from theory.rotary import Rotary
from theory.scaling import Scaling, Unscaled

_KINDS = ("none", "linear", "ntk", "dynamic", "yarn", "llama3")


@dataclass(frozen=True)
class RotaryChange:
    """What takes the place of a model's own: None keeps it. `scaling` is a kind, `factor` its number."""

    base: float | None = None
    scaling: str | None = None
    factor: float = 1.0

    @classmethod
    def parse(cls, base: float | None, scaling: str | None) -> RotaryChange:
        """From --base and --rope-scaling. Raises BridgeError, naming the option, for what they do not take."""
        if base is not None and not (math.isfinite(base) and base > 0):
            raise BridgeError(f"--base must be a finite number above 0, got {base}")
        if scaling is None:
            return cls(base)
        kind, _, number = scaling.partition(":")
        try:
            factor = float(number) if number else 1.0
        except ValueError:
            factor = math.nan
        if kind not in _KINDS or bool(number) == (kind == "none") or not (math.isfinite(factor) and factor > 0):
            shown = ", ".join(name if name == "none" else f"{name}:{8 if name == 'llama3' else 4}" for name in _KINDS)
            raise BridgeError(f"--rope-scaling needs a kind and a factor above 0, one of {shown}, got {scaling[:60]!r}")
        return cls(base, kind, factor)

    def of(self, rotary: Rotary, trained_length: int) -> Rotary:
        """Rotary positions with the change. Raises TheoryError as the scaling."""
        changed = rotary if self.base is None else replace(rotary, base=self.base)
        if self.scaling is None:
            return changed
        parameters: dict[str, object] = {"rope_type": "default" if self.scaling == "none" else self.scaling}
        if self.scaling != "none":
            parameters["factor"] = self.factor
        if self.scaling in ("yarn", "llama3", "dynamic"):
            parameters["original_max_position_embeddings"] = trained_length
        if self.scaling == "llama3":
            parameters |= {"low_freq_factor": 1.0, "high_freq_factor": 4.0}
        return replace(changed, scaling=read_scaling(parameters))


AS_IT_IS = RotaryChange()
"""Nothing is changed."""


def scaling_text(scaling: Scaling) -> str:
    """A scaling for a person: its kind and its numbers, long lists by their ends."""
    if scaling == Unscaled():
        return "none"
    parts = [type(scaling).__name__.lower()]
    for field in fields(scaling):
        value = getattr(scaling, field.name)
        if value != field.default:
            shown = f"{value:g}" if isinstance(value, float) else str(value)
            if isinstance(value, tuple):
                shown = f"{len(value)} numbers from {value[0]:g} to {value[-1]:g}"
            parts.append(f"{field.name.replace('_', ' ')} {shown}")
    return ", ".join(parts)
