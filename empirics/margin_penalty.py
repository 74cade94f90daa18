"""A penalty on the margin of the mean profile, from the means alone: no long sequence is seen.

With m_Q and m_K the mean query and mean key of a head,

    phi(delta) = tau/sqrt(d_head) m_Q . R_delta m_K,     delta = 0, -1 .. -(reach-1)
    penalty    = weight * mean over heads of log sum_delta e^(phi(delta) - phi(-K)),    nats

which is what the cross-entropy would be at the length `reach`, were every key at its mean: -log of the attention
that the mean-profile law gives the target. In complex pairs phi(-j) = Re sum_i z_i e^(i j theta_i) with
z = scale m_Q conj(m_K), so that all offsets are two products of a table and a vector.

The penalty is ours; the mean profile is that of arXiv 2607.18759, section 3.
"""

from __future__ import annotations

import math
from functools import lru_cache

import torch
from jaxtyping import Float
from torch import Tensor

from empirics.encodings import frequencies
from empirics.errors import EmpiricsError
from empirics.spec import Rotary, RunSpec


class MarginLoss:
    """The penalty of a run, as a function of its weights; the turns of its offsets are computed once, in float64."""

    def __init__(self, spec: RunSpec, device: torch.device | str = "cpu", dtype: torch.dtype = torch.float32) -> None:
        if spec.penalty is None or not isinstance(spec.encoding, Rotary):
            raise EmpiricsError(f"run {spec.id} has no penalty on its margin: give a rotary spec with one")
        self._cosines, self._sines = _turns(
            spec.head_width, spec.encoding.base, spec.penalty.reach, torch.device(device), dtype
        )
        self._spec, self._weight = spec, spec.penalty.weight
        self._scale = spec.temperature / math.sqrt(spec.head_width)

    def __call__(
        self,
        embedding: Float[Tensor, "token width"],
        query: Float[Tensor, "width width"],
        key: Float[Tensor, "width width"],
    ) -> Float[Tensor, ""]:
        """The penalty (nats) of a model with these weights."""
        profile = self.profile(embedding, query, key)
        return self._weight * (profile.logsumexp(dim=0) - profile[self._spec.offset]).mean()

    def profile(
        self,
        embedding: Float[Tensor, "token width"],
        query: Float[Tensor, "width width"],
        key: Float[Tensor, "width width"],
    ) -> Float[Tensor, "offset head"]:
        """phi(-j) of every head (nats)."""
        content = embedding.mean(dim=0)
        pairs = self._spec.heads, self._spec.head_width // 2, 2
        asking, asked = (self._scale * (query @ content)).view(pairs), (key @ content).view(pairs)
        real = (asking * asked).sum(dim=2)
        imaginary = asking[..., 1] * asked[..., 0] - asking[..., 0] * asked[..., 1]
        return self._cosines @ real.T - self._sines @ imaginary.T


@lru_cache(maxsize=4)
def _turns(
    width: int, base: float, reach: int, device: torch.device, dtype: torch.dtype
) -> tuple[Float[Tensor, "offset pair"], Float[Tensor, "offset pair"]]:
    """Cosines and sines of j theta_i. Runs of a stack hold the same ones: at long reach they outweigh the weights."""
    angles = torch.outer(torch.arange(reach).double(), frequencies(width, base))
    return angles.cos().to(device, dtype), angles.sin().to(device, dtype)
