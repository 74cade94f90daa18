"""What a trained transformer does at a length: accuracy by position, and the attention of every head by offset.

The profile of a head is the mean attention on the key j tokens back. It is a mean over the queries
that have a target and reach that key, n = max(j, K) .. L-1, and over the sequences: a head that
looks at offsets alone has one profile at every length, up to what more keys take from the softmax.

Source: arXiv 2607.18759, section 5.2 and appendix E (figure 6).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float, Float64, Int64
from pydantic import BaseModel, ConfigDict
from torch import Tensor

from empirics.errors import EmpiricsError
from empirics.observe import check_lengths
from empirics.spec import TransformerSpec
from empirics.tasks import draw_batch
from empirics.transformer import Transformer, shift_targets

# Chunks that stay in the cache are faster than large ones.
_CHUNK_TOKENS = 1 << 12


class HeadObservation(BaseModel):
    """One head. `attention[j]` is its mean attention j tokens back, `attention_error` the standard error
    over the sequences; the carrier fractions ||mean||^2 / E||.||^2 are those of its keys and queries before
    they are turned, over all sequences and positions."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    layer: int
    head: int
    attention: tuple[float, ...]
    attention_error: tuple[float, ...]
    key_fraction: float
    query_fraction: float

    @property
    def selected_offset(self) -> int:
        """delta <= 0 of the highest mean attention."""
        return -max(range(len(self.attention)), key=self.attention.__getitem__)


class TransformerObservation(BaseModel):
    """One length. `accuracy_by_position` is over the positions K .. L-1, `accuracy` their mean; `offset` is
    the target K in tokens back. Profiles are over the first `profile_sequences` of the `sequences`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    length: int
    sequences: int
    profile_sequences: int
    offset: int
    accuracy: float
    accuracy_error: float
    accuracy_by_position: tuple[float, ...]
    heads: tuple[HeadObservation, ...]

    @property
    def is_finite(self) -> bool:
        """Whether the attention of every head is a number everywhere."""
        return all(math.isfinite(share) for head in self.heads for share in head.attention)

    @property
    def shift_head(self) -> HeadObservation:
        """The head with the most mean attention on the target offset."""
        return max(self.heads, key=lambda head: head.attention[self.offset])


def observe_transformer(
    model: Transformer, lengths: Sequence[int], sequences: int, profile_sequences: int, generator: torch.Generator
) -> tuple[TransformerObservation, ...]:
    """Observe a model at each length in the listed order, on fresh sequences from one generator.

    Raises EmpiricsError where a length does not hold the target or has no learned position.
    """
    spec = model.spec
    if not isinstance(spec, TransformerSpec):
        raise EmpiricsError(f"run {spec.id} was not trained on the shift: observe_sequences observes it")
    check_lengths(spec, lengths, sequences)
    if not 2 <= profile_sequences <= sequences:
        raise EmpiricsError(
            f"{profile_sequences} of {sequences} sequences cannot have profiles: "
            f"give 2 profiles or more, as many sequences"
        )
    return tuple(_observe_length(model, spec, length, sequences, profile_sequences, generator) for length in lengths)


def carrier_fraction(parts: Sequence[Float[Tensor, "_ head length lane"]]) -> Float64[Tensor, "head"]:
    """||mean||^2 / E||.||^2 of the vectors of every head, over sequences and positions."""
    vectors = torch.cat([part.double().transpose(0, 1).flatten(1, 2) for part in parts], dim=1)
    return vectors.mean(dim=1).square().sum(dim=-1) / vectors.square().sum(dim=-1).mean(dim=1)


@torch.no_grad()
def _observe_length(
    model: Transformer,
    spec: TransformerSpec,
    length: int,
    sequences: int,
    profile_sequences: int,
    generator: torch.Generator,
) -> TransformerObservation:
    tokens = draw_batch(spec, sequences, length, generator).tokens
    correct = torch.cat([_correct(model, chunk, spec.offset) for chunk in _chunks(tokens)]).double()
    by_sequence = correct.mean(dim=1)
    return TransformerObservation(
        length=length,
        sequences=sequences,
        profile_sequences=profile_sequences,
        offset=spec.offset,
        accuracy=float(by_sequence.mean()),
        accuracy_error=float(by_sequence.std()) / math.sqrt(sequences),
        accuracy_by_position=tuple(correct.mean(dim=0).tolist()),
        heads=_heads(model, tokens[:profile_sequences], spec.offset),
    )


def _correct(model: Transformer, tokens: Int64[Tensor, "batch length"], offset: int) -> Bool[Tensor, "batch counted"]:
    """Where the highest score is that of the target."""
    scores = model(tokens.to(model.embedding.weight.device)).cpu()
    return scores[:, offset:].argmax(dim=-1) == shift_targets(tokens, offset)


def _heads(model: Transformer, tokens: Int64[Tensor, "batch length"], offset: int) -> tuple[HeadObservation, ...]:
    """What every head does, from the first layer to the last."""
    traces = [model.trace(chunk.to(model.embedding.weight.device)).layers for chunk in _chunks(tokens)]
    heads = []
    for layer, parts in enumerate(zip(*traces, strict=True)):
        profiles = torch.cat([_profiles(part.attention, offset) for part in parts])
        mean, error = profiles.mean(dim=0), profiles.std(dim=0) / math.sqrt(len(tokens))
        key = carrier_fraction([part.key for part in parts])
        query = carrier_fraction([part.query for part in parts])
        for head in range(model.spec.heads):
            heads.append(
                HeadObservation(
                    layer=layer,
                    head=head,
                    attention=tuple(mean[head].tolist()),
                    attention_error=tuple(error[head].tolist()),
                    key_fraction=float(key[head]),
                    query_fraction=float(query[head]),
                )
            )
    return tuple(heads)


def _profiles(
    attention: Float[Tensor, "batch head length length"], offset: int
) -> Float64[Tensor, "batch head length"]:
    """Of every sequence the mean attention j tokens back, over the queries n = max(j, K) .. L-1."""
    diagonals = [attention.diagonal(-back, -2, -1) for back in range(attention.shape[-1])]
    means = [line[..., max(0, offset - back) :].double().mean(dim=-1) for back, line in enumerate(diagonals)]
    return torch.stack(means, dim=-1).cpu()


def _chunks(tokens: Int64[Tensor, "batch length"]) -> tuple[Int64[Tensor, "_ length"], ...]:
    return tokens.split(max(1, _CHUNK_TOKENS // tokens.shape[1]))
