"""What a spec says of the means of a layer: written before training, penalised in it, written into a finished run.

The mean query and the mean key of a rotary head turn against one another with the offset; their
product is the mean profile, from which the head's offset is selected. These are the data;
`empirics.edit` writes means into weights, `empirics.margin_penalty` is the penalty.
"""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field


class Strict(BaseModel):
    """What every part of a spec is: frozen, without unknown fields, without numbers that are not finite."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Means(Strict):
    """Mean query and mean key of a layer, lanes of its heads side by side."""

    query: tuple[float, ...]
    key: tuple[float, ...]

    def check(self, width: int) -> None:
        """Raise ValueError where they are not those of a layer of this width."""
        if not len(self.query) == len(self.key) == width:
            raise ValueError(
                f"a mean query of {len(self.query)} lanes and a mean key of {len(self.key)} do not fit width {width}: "
                f"give {width} of each"
            )


class Edit(Strict):
    """What was written into a finished run: means, and the run they went into.

    `parent` is the id of that run, `sha256` that of its weights.safetensors.
    """

    parent: str = Field(pattern=r"^[a-z0-9-]+$")
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    means: Means


class MarginPenalty(Strict):
    """`weight` times the cross-entropy (nats) of the mean profile at the length `reach` (tokens), added to the loss."""

    weight: float = Field(gt=0)
    reach: int = Field(ge=1, le=1_000_000)

    def check(self, offset: int, attention: str) -> None:
        """Raise ValueError where a run of this offset and kind of attention has no such cross-entropy."""
        if attention != "softmax":
            raise ValueError(f"penalty needs softmax attention, got {attention}: leave it out")
        if self.reach <= offset:
            raise ValueError(
                f"penalty reaches {self.reach} tokens, none of them K = {offset} back: give {offset + 1} or more"
            )
