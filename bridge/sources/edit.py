"""Another mean query and mean key for one head, written into the weights of its layer.

The input x = norm(stream) of a layer has no coordinate that is constant, but a direction e in which it nearly is:

    W <- W + d e^T        shifts the mean of W x by d E[e.x], and adds d (e.x - E[e.x]) to its residuals

e minimises E[(e.x - 1)^2] + ridge |e|^2 and is scaled to E[e.x] = 1. Query head h of a group shares its key with the
others: a shift of the query is its own, a shift of the key moves its siblings, too.

The same edit goes into our maps, in float64 and interleaved pairs, and into the running network, in float32 and the
layout that transformers has; biases stay. A norm behind the projection would undo it and is refused.

Source: ours; `bridge.sources.families` for where transformers keeps the weights.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float64, Int64
from scipy.special import softmax

from bridge.errors import BridgeError
from bridge.sources.activations import LayerActivations
from bridge.sources.attention import Maps, Projection
from bridge.sources.cache import FORMAT, keep, kept
from bridge.sources.families import FAMILIES
from bridge.sources.family import Family, RotaryPositions
from bridge.sources.formats import open_model
from bridge.sources.loading import open_network, weights_sha256
from bridge.sources.model import interleaving, read_maps
from bridge.sources.network import Network

_COMPARED = 257
"""Tokens over which attention of the edited network is compared with ours."""
RIDGE = 0.01
"""Of the mean square of a coordinate of x: less of it fits the calibration text closer, and other text less."""


@dataclass(frozen=True, eq=False)
class MeanEdit:
    """Shifts of the mean query of a head and of the mean key that it reads, along a direction e of the inputs.

    Lanes are interleaved pairs, as those of `Maps`; without `key_shift` the keys stay as they are.
    """

    layer: int
    head: int
    direction: Float64[np.ndarray, "width"]
    query_shift: Float64[np.ndarray, "lane"]
    key_shift: Float64[np.ndarray, "lane"] | None = None

    @property
    def digest(self) -> str:
        """sha256 in hexadecimal of all that it is."""
        arrays = [self.direction, self.query_shift] + ([] if self.key_shift is None else [self.key_shift])
        sizes = f"{self.layer} {self.head} {[len(array) for array in arrays]} "
        return hashlib.sha256(sizes.encode() + b"".join(array.tobytes() for array in arrays)).hexdigest()


def layer_inputs(layer: LayerActivations, first: int = 0) -> Float64[np.ndarray, "token width"]:
    """x = norm(stream) at positions `first` and beyond of every window."""
    stream = layer.streams[:, first:].reshape(-1, layer.streams.shape[2]).astype(np.float64)
    return stream if layer.maps.norm is None else layer.maps.norm.of(stream)


def steadiest_direction(inputs: Float64[np.ndarray, "token width"]) -> Float64[np.ndarray, "width"]:
    """e proportional to (E[x x^T] + ridge I)^-1 E[x], with E[e.x] = 1."""
    width = inputs.shape[1]
    second = inputs.T @ inputs / len(inputs)
    mean = inputs.mean(axis=0)
    direction = np.linalg.solve(second + RIDGE * np.trace(second) / width * np.eye(width), mean)
    return direction / (direction @ mean)


def mean_direction(inputs: Float64[np.ndarray, "token width"]) -> Float64[np.ndarray, "width"]:
    """e = E[x] / |E[x]|^2, for comparison: the simplest direction with E[e.x] = 1."""
    mean = inputs.mean(axis=0)
    return mean / (mean @ mean)


def share_explained(direction: Float64[np.ndarray, "width"], inputs: Float64[np.ndarray, "token width"]) -> float:
    """1 - E[(e.x - 1)^2]: 1 where e.x is constant, at 1."""
    return 1 - float(np.square(inputs @ direction - 1).mean())


def edited_maps(maps: Maps, edit: MeanEdit) -> Maps:
    """The maps of the layer with the edit.

    Raises BridgeError for a head that is not there, shifts or a direction of another size, and a layer whose queries
    and keys are normed.
    """
    _check(maps, edit)
    query = _shifted(maps.query, edit.head, edit.query_shift, edit.direction)
    if edit.key_shift is None:
        return replace(maps, query=query)
    return replace(maps, query=query, key=_shifted(maps.key, edit.head // maps.group, edit.key_shift, edit.direction))


@contextmanager
def with_edit(network: Network, edit: MeanEdit) -> Iterator[Network]:
    """The network with the edit, as long as the context lasts; afterwards its weights have the bits they had.

    Raises BridgeError for a family that transformers keeps in another way, and for a layer whose queries are normed.
    """
    import torch

    family = _declaration(network)
    shape, rotary = network.model.shape, network.model.positions[edit.layer].rotary
    half_split = isinstance(family.positions, RotaryPositions) and family.positions.pairs == "half-split"
    order = interleaving(shape.head_width, 0 if rotary is None else rotary.width, half_split)
    shifts = [(*_query_rows(network, family, edit), edit.query_shift)]
    if edit.key_shift is not None:
        shifts.append((*_key_rows(network, family, edit), edit.key_shift))
    kept = [(weight, weight.detach().clone()) for weight, _, _ in shifts]
    try:
        with torch.no_grad():
            for weight, first, shift in shifts:
                own = np.empty_like(shift)
                own[order] = shift
                weight[first : first + len(own)] += torch.from_numpy(np.outer(own, edit.direction)).to(weight.dtype)
        yield network
    finally:
        with torch.no_grad():
            for weight, before in kept:
                weight.copy_(before)


def next_token_losses(network: Network, tokens: Int64[np.ndarray, "window position"]) -> Float64[np.ndarray, "window"]:
    """Mean cross-entropy of the next token over each window, in nats."""
    import torch

    losses = []
    with torch.no_grad():
        for window in torch.from_numpy(tokens):
            logits = network.causal(input_ids=window[None], use_cache=False).logits[0, :-1]
            losses.append(float(torch.nn.functional.cross_entropy(logits, window[1:])))
    return np.array(losses)


def attention_error(network: Network, edit: MeanEdit, tokens: Int64[np.ndarray, "position"]) -> float:
    """The greatest difference of attention in the edited layer, over its heads, queries and keys of a sequence: ours,
    by edited maps from the stream of the network as it is, less that of the edited network."""
    import torch

    streams: list[np.ndarray] = []
    network.run([tokens], [edit.layer], lambda _, layer, stream: streams.append(stream.copy()))
    maps, positions = read_maps(network.model, edit.layer), network.model.positions[edit.layer]
    heads = LayerActivations(streams[0][None], edited_maps(maps, edit), positions).heads()
    ours = np.stack([softmax(head.logits(0, range(len(tokens))), axis=1) for head in heads])
    implementation = network.causal.config._attn_implementation
    network.causal.set_attn_implementation("eager")
    try:
        with with_edit(network, edit), torch.no_grad():
            out = network.causal.base_model(torch.from_numpy(tokens)[None], output_attentions=True, use_cache=False)
    finally:
        network.causal.set_attn_implementation(implementation)
    return float(np.abs(ours - out.attentions[edit.layer][0].double().numpy()).max())


def aftermath(
    path: Path, tokens: Int64[np.ndarray, "window position"], edits: Sequence[MeanEdit | None], cache: Path
) -> Float64[np.ndarray, "edit number"]:
    """For each edit the greatest error of its recomputed attention on the first window, and the loss of each window;
    what was run once is read from the cache."""
    model = open_model(path)
    run = f"{FORMAT} {weights_sha256(model)} {hashlib.sha256(tokens.tobytes()).hexdigest()} {tokens.shape}"
    names = [f"{run} {'none' if edit is None else edit.digest}" for edit in edits]
    files = [cache / "surgery" / f"{hashlib.sha256(name.encode()).hexdigest()[:32]}.npy" for name in names]
    if any(kept(file) is None for file in files):
        network = open_network(path)
        for file, edit in zip(files, edits, strict=True):
            if kept(file) is None:
                error = 0.0 if edit is None else attention_error(network, edit, tokens[0, :_COMPARED])
                with nullcontext() if edit is None else with_edit(network, edit):
                    keep(file, np.r_[error, next_token_losses(network, tokens)])
    return np.array([kept(file) for file in files])


def _shifted(
    projection: Projection,
    head: int,
    shift: Float64[np.ndarray, "lane"],
    direction: Float64[np.ndarray, "width"],
) -> Projection:
    weight = projection.weight.astype(np.float64)
    weight[head] += np.outer(shift, direction)
    return replace(projection, weight=weight)


def _check(maps: Maps, edit: MeanEdit) -> None:
    heads, lanes, width = maps.query.weight.shape
    if not 0 <= edit.head < heads:
        raise BridgeError(f"head {edit.head} does not exist: heads of this layer are 0 to {heads - 1}")
    given = [len(edit.query_shift), len(edit.direction)] + ([] if edit.key_shift is None else [len(edit.key_shift)])
    if given != [lanes, width, lanes][: len(given)]:
        raise BridgeError(
            f"an edit of {given[0]} lanes and {given[1]} inputs does not fit a head of {lanes} lanes and {width} "
            "inputs: make it from the activations of this layer"
        )
    if any(norm is not None for side in (maps.query, maps.key) for norm in (side.norm, side.whole_norm)):
        raise BridgeError(
            f"queries and keys of layer {edit.layer} are normed behind the projection, which undoes a shift of their "
            "means: edit a model without these norms"
        )


def _declaration(network: Network) -> Family:
    """The family as transformers has it, whatever file the weights come from."""
    kind = network.causal.config.get_text_config().model_type
    family = next((one for one in FAMILIES if kind in one.model_types), None)
    if family is None or not isinstance(family.positions, RotaryPositions):
        raise BridgeError(f"{kind} of transformers is not edited: give a family with rotary positions of {_READ}")
    if family.head_norm is not None:
        raise BridgeError(
            f"queries and keys of {family.name} are normed behind the projection, which undoes a shift of their means: "
            "edit a model without these norms"
        )
    return family


_READ = ", ".join(family.name for family in FAMILIES if isinstance(family.positions, RotaryPositions))


def _query_rows(network: Network, family: Family, edit: MeanEdit) -> tuple[Any, int]:
    """The weight that holds the queries of the head, and its first row."""
    lanes, head, names = network.model.shape.head_width, edit.head, family.names
    if names.fused is None:
        return _weight(network, names.query or "", edit.layer), head * lanes
    return _weight(network, names.fused, edit.layer), (3 * head if family.fused == "head-major" else head) * lanes


def _key_rows(network: Network, family: Family, edit: MeanEdit) -> tuple[Any, int]:
    """The same of the keys that it reads."""
    shape, names = network.model.shape, family.names
    kv = edit.head // (shape.heads // shape.kv_heads)
    if names.fused is None:
        return _weight(network, names.key or "", edit.layer), kv * shape.head_width
    place = 3 * kv + 1 if family.fused == "head-major" else shape.heads + kv
    return _weight(network, names.fused, edit.layer), place * shape.head_width


def _weight(network: Network, name: str, layer: int) -> Any:
    return network.causal.base_model.get_submodule(name.format(layer)).weight
