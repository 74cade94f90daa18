"""A checkpoint that runs: its network in torch, by transformers, on the CPU and in float32.

What attention of a layer reads is the residual stream that enters it. `Network.run` hands it out layer
by layer while the network runs, and stops after the last layer that was asked for: nothing is kept,
so memory is that of one pass. Queries and keys follow from the stream by the layer's own maps
(`bridge.sources.model.read_maps`), which are read from the file on another way than transformers'.

Sequences of a pass that differ in length are padded on the left; padding is masked, has no position,
and is cut off again.

Source: transformers 5.24; `bridge.sources.loading` for how it is given the checkpoint.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float32, Int64

from bridge.errors import BridgeError
from bridge.sources.model import Model

Visit = Callable[[int, int, Float32[np.ndarray, "position width"]], None]
"""Takes the number of a sequence, a layer, and the stream that enters it."""


@dataclass(frozen=True, eq=False)
class Network:
    """A model with its network: `causal` is transformers' module with the output head."""

    model: Model
    causal: Any

    def run(self, sequences: Sequence[Int64[np.ndarray, "_position"]], layers: Sequence[int], visit: Visit) -> None:
        """Run sequences of tokens side by side and visit the stream that enters each of the layers, in their order.

        Raises BridgeError for a token or a layer that is not there, and where a stream is not finite.
        """
        import torch

        self._check(sequences, layers)
        self._forget_lengths()
        longest = max(map(len, sequences))
        tokens = torch.zeros(len(sequences), longest, dtype=torch.long)
        mask = torch.zeros_like(tokens)
        for row, sequence in enumerate(sequences):
            tokens[row, longest - len(sequence) :] = torch.from_numpy(sequence)
            mask[row, longest - len(sequence) :] = 1

        def enter(layer: int, stream: Any) -> None:
            for row, sequence in enumerate(sequences):
                own = stream[row, longest - len(sequence) :].numpy()
                if not np.isfinite(own).all():
                    raise BridgeError(
                        f"{self.model.path}: the stream into layer {layer} is not finite: damaged weights"
                    )
                visit(row, layer, own)

        with torch.no_grad(), self._entering(layers, enter), suppress(_Reached):
            self.causal.base_model(
                input_ids=tokens,
                attention_mask=None if bool(mask.all()) else mask,
                position_ids=(mask.cumsum(1) - 1).clamp(min=0),
                use_cache=False,
            )

    def _check(self, sequences: Sequence[Int64[np.ndarray, "_position"]], layers: Sequence[int]) -> None:
        shape = self.model.shape
        if not layers or min(layers) < 0 or max(layers) >= shape.layers:
            raise BridgeError(f"layers of this model are 0 to {shape.layers - 1}, got {list(layers)}")
        if not sequences or min(map(len, sequences)) == 0:
            raise BridgeError("a network runs on sequences of one token or more: got an empty one, or none")
        top = max(int(sequence.max()) for sequence in sequences)
        if top >= shape.vocabulary or min(int(sequence.min()) for sequence in sequences) < 0:
            raise BridgeError(f"tokens of this model are 0 to {shape.vocabulary - 1}, the text has token {top}")

    def _forget_lengths(self) -> None:
        """transformers keeps dynamic frequencies of the longest pass so far: a shorter one would run under these."""
        for module in self.causal.modules():
            for name in [name for name in vars(module) if name.endswith("max_seq_len_cached")]:
                setattr(module, name, 0)

    @contextmanager
    def _entering(self, layers: Sequence[int], enter: Callable[[int, Any], None]) -> Iterator[None]:
        """Around a pass: call for the stream of each layer, and end the pass after the last of them."""
        last = max(layers)

        def hook(layer: int) -> Callable[..., None]:
            def entered(module: Any, positional: tuple, named: dict) -> None:
                enter(layer, positional[0] if positional else named["hidden_states"])
                if layer == last:
                    raise _Reached

            return entered

        blocks = _blocks(self.causal, self.model.shape.layers)
        handles = [blocks[n].register_forward_pre_hook(hook(n), with_kwargs=True) for n in sorted(set(layers))]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()


class _Reached(Exception):
    """The last layer that was asked for is entered."""


def _blocks(causal: Any, layers: int) -> Any:
    """The list of the layers of a decoder."""
    import torch

    lists = [module for module in causal.base_model.modules() if isinstance(module, torch.nn.ModuleList)]
    found = [blocks for blocks in lists if len(blocks) == layers]
    if not found:
        raise BridgeError(f"{type(causal).__name__} of transformers has no list of {layers} layers: it is not read")
    return found[0]
