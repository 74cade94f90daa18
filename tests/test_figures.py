"""The pictures show what was measured: axes, labels and plotted numbers, on heads whose numbers are known or drawn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bridge.compare import LIMIT, Verdict
from bridge.errors import BridgeError
from bridge.figures.transformer import Followed, read_in_range
from bridge.paper import figure_1, figure_2, figure_3, figure_4, figure_5, figure_6
from bridge.paper.measures import carrier_margin, decay_fit
from bridge.paper.target import Preset, Target
from bridge.sources.run import head_of_run
from bridge.sources.transformer import head_of_transformer
from empirics.head import AttentionHead
from empirics.observe import Observation, observe
from empirics.observe_transformer import HeadObservation, TransformerObservation, observe_transformer
from empirics.spec import LearnedPositions, RunSpec, TransformerSpec, run_spec, transformer_spec
from empirics.specs import Spec
from empirics.train import AnyRun, Run, TransformerRun
from empirics.transformer import Transformer
from theory.exact_law import exact_law
from theory.kernel import carrier_profile
from theory.schedule import RotarySchedule
from theory.statements import STATEMENTS

TARGETS: tuple[Target, ...] = tuple(
    module.TARGET for module in (figure_1, figure_2, figure_3, figure_4, figure_5, figure_6)
)
SEQUENCES = 128


@cache
def untrained(spec: Spec) -> AnyRun:
    """The model of a spec before training, observed; a head is sharpened, so that no two attend alike."""
    generator = torch.Generator().manual_seed(spec.seed)
    if isinstance(spec, TransformerSpec):
        model = Transformer(spec, generator)
        seen = observe_transformer(model, spec.evaluation_lengths, 16, 8, generator)
        return TransformerRun(spec, model, (), seen, 0.0)
    head = AttentionHead(spec, generator)
    with torch.no_grad():
        head.query.mul_(8)
    return Run(spec, head, (), observe(head, spec.evaluation_lengths, SEQUENCES, generator), 0.0)


@cache
def runs_of(target: Target) -> tuple[AnyRun, ...]:
    return tuple(untrained(spec) for spec in target.specs_at(Preset.SMOKE))


@cache
def drawn(target: Target) -> Figure:
    assert target.draw is not None
    return target.draw(runs_of(target))


def titled(figure: Figure, words: str) -> Axes:
    (panel,) = [panel for panel in figure.axes if words in panel.get_title()]
    return panel


def line(panel: Axes, label: str) -> tuple[np.ndarray, np.ndarray]:
    """Abscissae and ordinates of the one curve or set of points with this label."""
    lines = [line for line in panel.lines if label in str(line.get_label())]
    bars = [bars.lines[0] for bars in panel.containers if label in str(bars.get_label())]
    (found,) = lines + bars
    return np.asarray(found.get_xdata(), dtype=float), np.asarray(found.get_ydata(), dtype=float)


def bar_ends(panel: Axes, label: str) -> np.ndarray:
    """Lower and upper ends of the error bars with this label."""
    (bars,) = [bars for bars in panel.containers if label in str(bars.get_label())]
    return np.array([segment[:, 1] for segment in bars.lines[2][0].get_segments()])


def observation(profile: Sequence[float], offset: int = 2, accuracy: float = 0.5) -> Observation:
    """What a head did whose mean attention j tokens back is `profile[j]`."""
    numbers = tuple(float(one) for one in profile)
    errors = (0.001,) * len(numbers)
    return Observation(
        length=len(numbers),
        sequences=100,
        offset=offset,
        accuracy=accuracy,
        attention=numbers,
        attention_error=errors,
        by_head=(numbers,),
        error_by_head=(errors,),
    )


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.id)
def test_every_axis_is_named_and_every_entry_of_the_legend_stands_once(target: Target) -> None:
    figure = drawn(target)
    assert len(figure.axes) >= 2
    for panel in figure.axes:
        assert panel.get_xlabel() and panel.get_ylabel()
    (legend,) = figure.legends
    entries = [text.get_text() for text in legend.get_texts()]
    assert entries and len(entries) == len(set(entries))


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.id)
def test_a_figure_says_what_its_caption_claims_and_gives_every_printed_cell(target: Target) -> None:
    assert target.notes and target.statement in {statement.id for statement in STATEMENTS}
    measured = target.measure(runs_of(target))
    assert {printed.key for printed in target.printed} <= set(measured)
    assert all(
        table.rows and len(row) == len(table.columns)
        for table in target.companions(runs_of(target))
        for row in table.rows
    )


def test_figure_1_draws_means_over_seeds_and_the_law_of_the_rotary_heads() -> None:
    runs, figure = runs_of(figure_1.TARGET), drawn(figure_1.TARGET)
    rotary, learned = runs[:8], runs[8:]
    for words, name in (("accuracy", "accuracy"), ("peak height", "peak"), ("offset of the peak", "selected_offset")):
        for group, label in ((rotary, "rotary"), (learned, "learned")):
            lengths, means = line(titled(figure, words), label)
            values = [[getattr(seen, name) for seen in run.evaluation] for run in group]
            assert lengths.tolist() == list(rotary[0].spec.evaluation_lengths)
            assert means == pytest.approx(np.mean(values, axis=0))
    _, law = line(titled(figure, "peak height"), "exact law")
    assert law[-1] == pytest.approx(np.mean([exact_law(head_of_run(run), 1, (48,))[0] for run in rotary]))


def test_attention_that_follows_the_offset_is_one_profile_in_relative_coordinates_alone() -> None:
    """The same weights at every length, whatever the context takes from them; and a head that pins, the other way."""
    weights = np.random.default_rng(0).random(48)
    turned = [observation(weights[:length] / weights[:length].sum()) for length in (20, 48)]
    pinned = [observation((weights[:length] / weights[:length].sum())[::-1]) for length in (20, 48)]
    assert figure_2.profile_distance(*turned, "relative") == pytest.approx(0, abs=1e-12)
    assert figure_2.profile_distance(*pinned, "absolute") == pytest.approx(0, abs=1e-12)
    assert figure_2.profile_distance(*turned, "absolute") > 0.1 and figure_2.profile_distance(*pinned, "relative") > 0.1


def test_profiles_that_share_no_key_are_all_apart() -> None:
    one, other = np.zeros(20), np.zeros(20)
    one[3], other[4] = 0.7, 0.2
    assert figure_2.profile_distance(observation(one), observation(other), "relative") == pytest.approx(1)


def test_the_peak_of_a_pinned_head_moves_in_relative_coordinates_alone() -> None:
    """It stands on position 9 at every length. Unseen are lengths whose target, too, has no trained position."""
    spec = run_spec(encoding=LearnedPositions(), evaluation_lengths=(16, 18, 19, 40))
    evaluation = []
    for length in spec.evaluation_lengths:
        profile = np.full(length, 0.1)
        profile[length - 1 - 9] = 0.9
        evaluation.append(observation(profile))
    run = Run(spec, AttentionHead(spec, torch.Generator()), (), tuple(evaluation), 0.0)
    assert figure_2.peak_spread([run], "absolute").value == 0
    assert figure_2.peak_spread([run], "relative").value == pytest.approx(np.std([19, 40]))
    assert [seen.length for seen in figure_2.unseen(run)] == [19, 40]
    assert figure_2.share_at_target([run]) == 0


def test_figure_2_draws_one_attention_by_offset_above_and_by_position_below() -> None:
    runs, figure = runs_of(figure_2.TARGET), drawn(figure_2.TARGET)
    above, below = figure.axes[:3], figure.axes[3:]
    for column, run in enumerate((runs[0], runs[3], runs[6])):
        seen = next(seen for seen in run.evaluation if seen.length == 24)
        offsets, attention = line(above[column], "L = 24")
        assert offsets.tolist() == list(range(0, -24, -1)) and attention.tolist() == list(seen.attention)
        curves = {len(one.get_xdata()): one for one in below[column].lines if len(one.get_xdata()) > 1}
        assert dict(zip(curves[24].get_xdata(), curves[24].get_ydata(), strict=True))[23 - 2] == seen.attention[2]
        targets = [one.get_xdata()[0] for one in below[column].lines if one.get_marker() == "^"]
        assert sorted(targets) == [9, 13, 21, 29, 45]


def test_figure_3_draws_every_profile_and_the_fit_of_the_peaks() -> None:
    runs, figure = runs_of(figure_3.TARGET), drawn(figure_3.TARGET)
    profiles = [one for one in titled(figure, "means select").lines if len(one.get_xdata()) == 48]
    assert len(profiles) == len(runs) == 5
    for profile, run in zip(profiles, runs, strict=True):
        assert profile.get_ydata() == pytest.approx(carrier_profile(head_of_run(run).carrier(), 48))
    lengths, fitted = line(titled(figure, "dilutes"), "fit")
    fit = decay_fit(runs)
    assert 1 / fitted == pytest.approx(fit.alpha + fit.c * (lengths - 1))


def test_figure_4_draws_bound_course_and_pins() -> None:
    runs, figure = runs_of(figure_4.TARGET), drawn(figure_4.TARGET)
    run, learned = runs[8], runs[9:]
    lengths, bound = line(titled(figure, "bound"), "bound")
    assert bound == pytest.approx(1 / (1 + (lengths - 1) * np.exp(-carrier_margin(run).value)))
    _, observed = line(titled(figure, "bound"), "observed")
    assert observed.tolist() == [seen.attention[2] for seen in run.evaluation]
    ends = bar_ends(titled(figure, "bound"), "observed")
    assert ends[0, 1] - ends[0, 0] == pytest.approx(2 * LIMIT * run.evaluation[0].attention_error[2])

    course = titled(figure, "carrier forms")
    embedding, key = run.model.embedding.detach().double(), run.model.key.detach().double()
    keys = embedding @ key.T
    fraction = float(keys.mean(dim=0).square().sum() / keys.square().sum(dim=1).mean())
    assert line(course, "carrier fraction")[1][-1] == pytest.approx(fraction)
    values = torch.linalg.svdvals(run.model.query.detach().double().T @ key)
    assert line(course, "top-1 energy")[1][-1] == pytest.approx(float(values[0] ** 2 / (values**2).sum()))

    pins = titled(figure, "learned positions")
    drawn_pins = [place for one in pins.lines if len(one.get_xdata()) == 3 for place in one.get_ydata().tolist()]
    seen = [next(seen for seen in run.evaluation if seen.length == 40) for run in learned]
    assert drawn_pins == [40 - 1 - int(np.argmax(one.attention)) for one in seen]


def test_the_course_of_figure_4_is_one_run_seen_earlier() -> None:
    specs = figure_4.TARGET.specs[: len(figure_4.STEPS)]
    assert [spec.steps for spec in specs] == list(figure_4.STEPS) and figure_4.STEPS[-1] == RunSpec().steps
    assert len({spec.model_copy(update={"steps": 0}) for spec in specs}) == 1


def test_figure_5_draws_every_scheme_and_the_law_passes_through_its_points() -> None:
    """Heads of no training still attend by their scores, so the law of each relative scheme must hold for them."""
    runs, figure = runs_of(figure_5.TARGET), drawn(figure_5.TARGET)
    panel = titled(figure, "accuracy at L = 48")
    schemes = ["ALiBi", "T5", "RoPE", "none", "sinusoidal", "randomized"]
    assert [label.get_text() for label in panel.get_xticklabels()] == schemes
    kinds = ["alibi", "t5", "rope", "none", "sinusoidal", "randomized"]
    for offset in (1, 2):
        groups = [
            [run for run in runs if run.spec.encoding.kind == kind and run.spec.offsets == (offset,)] for kind in kinds
        ]
        means = [np.mean([run.evaluation[-1].accuracy for run in group]) for group in groups]
        points = [bars.lines[0] for bars in panel.containers if f"K = {offset}" in str(bars.get_label())]
        assert [len(group) for group in groups] == [5] * 6
        assert [float(point.get_ydata()[0]) for point in points] == pytest.approx(means)
        assert [round(float(point.get_xdata()[0])) for point in points] == list(range(6))
    middle = titled(figure, "attention on the target")
    for kind, name in zip(kinds[:3], schemes, strict=False):
        run = next(run for run in runs if run.spec.encoding.kind == kind and run.spec.offset == 2)
        lengths, observed = line(middle, f"observed, {name}")
        assert observed.tolist() == [seen.attention[2] for seen in run.evaluation]
        axis, law = line(middle, f"exact law, {name}")
        error = np.array([seen.attention_error[2] for seen in run.evaluation])
        at = law[[axis.tolist().index(length) for length in lengths]]
        assert (np.abs(at - observed) <= LIMIT * error).all()
        assert at == pytest.approx(exact_law(head_of_run(run), 2, run.spec.evaluation_lengths), rel=1e-6)
    _, laws = figure_5.TARGET.companions(runs)
    assert [row[-1] for row in laws.rows] == [Verdict.AGREES.value] * 3


def test_figure_5_keeps_one_head_and_two_apart() -> None:
    runs, panel = runs_of(figure_5.TARGET), titled(drawn(figure_5.TARGET), "two modes")
    for run, label in zip(runs[-2:], ("1 head,", "2 heads,"), strict=True):
        assert run.spec.offsets == (1, 3) and run.spec.heads == int(label[0])
        assert line(panel, label)[1].tolist() == [seen.accuracy for seen in run.evaluation]


def head_seen(layer: int, head: int, length: int, on_target: float, fraction: float = 0.5) -> HeadObservation:
    attention = np.full(length, (1 - on_target) / (length - 1))
    attention[3] = on_target
    return HeadObservation(
        layer=layer,
        head=head,
        attention=tuple(attention.tolist()),
        attention_error=(0.001,) * length,
        key_fraction=fraction,
        query_fraction=0.5,
    )


def made(on_target: dict[int, tuple[float, float]], fractions: tuple[float, float] = (0.1, 0.9)) -> TransformerRun:
    """A transformer of two heads in layer 1 whose attention on -K at each length is given."""
    spec = transformer_spec(width=16, heads=2, vocabulary=16, evaluation_lengths=tuple(on_target))
    evaluation = tuple(
        TransformerObservation(
            length=length,
            sequences=16,
            profile_sequences=8,
            offset=3,
            accuracy=0.5,
            accuracy_error=0.01,
            accuracy_by_position=(0.5,) * (length - 3),
            heads=tuple(head_seen(1, head, length, shares[head], fractions[head]) for head in (0, 1)),
        )
        for length, shares in on_target.items()
    )
    return TransformerRun(spec, Transformer(spec, torch.Generator().manual_seed(0)), (), evaluation, 0.0)


def test_the_shift_head_is_chosen_at_the_longest_trained_length_and_followed() -> None:
    """Head 1 is ahead at L = 16, head 0 at every other length."""
    run = made({12: (0.9, 0.8), 16: (0.6, 0.7), 48: (0.9, 0.2)})
    followed = figure_6.followed("", run)
    assert [head.head for head in followed.heads] == [1, 1, 1]
    assert [head.attention[3] for head in followed.heads] == [0.8, 0.7, 0.2]
    assert figure_6.measure((run, run))["ape", "key fraction"].value == 0.9


def test_attention_of_untrained_queries_is_what_the_others_leave_of_the_mean() -> None:
    """13 queries put .9 on -K, those after them .03 at L = 48 and .05 at L = 24."""
    mean = {length: (13 * 0.9 + (length - 16) * share) / (length - 3) for length, share in ((24, 0.05), (48, 0.03))}
    run = made({12: (0.9, 0), 16: (0.9, 0), 24: (mean[24], 0), 48: (mean[48], 0)})
    beyond = figure_6.beyond_training(figure_6.followed("", run))
    assert beyond[:2] == (None, None) and beyond[2:] == pytest.approx((0.05, 0.03))


def test_a_reader_of_trained_positions_guesses_at_the_others() -> None:
    """L = 48, K = 3: 13 of 45 are read, 32 guessed one in 16: 15/45. At trained lengths all are read."""
    spec = transformer_spec(vocabulary=16)
    assert read_in_range(spec, [12, 16, 48]) == pytest.approx([1, 1, 15 / 45])


def test_figure_6_draws_accuracy_profiles_and_the_carrier() -> None:
    runs, figure = runs_of(figure_6.TARGET), drawn(figure_6.TARGET)
    rope, ape = (figure_6.followed("", run) for run in runs)
    for run, label in zip(runs, ("rotary", "learned"), strict=True):
        lengths, accuracy = line(titled(figure, "full-sequence shift"), label)
        assert lengths.tolist() == [12, 16, 24, 32, 48]
        assert accuracy.tolist() == [seen.accuracy for seen in run.evaluation]
    positions = [one for one in titled(figure, "by position").lines if len(one.get_xdata()) == 45]
    assert [one.get_ydata().tolist() for one in positions] == [
        list(run.evaluation[-1].accuracy_by_position) for run in runs
    ]
    assert positions[0].get_xdata().tolist() == list(range(3, 48))
    for followed, panel in zip((rope, ape), figure.axes[3:5], strict=True):
        assert followed.name in panel.get_title()
        for length, head in zip((16, 48), (followed.heads[1], followed.heads[4]), strict=True):
            offsets, attention = line(panel, f"L = {length}")
            assert offsets.tolist() == list(range(0, -length, -1)) and attention.tolist() == list(head.attention)
    _, profile = np.asarray(titled(figure, "carrier").lines[0].get_data())
    chosen = rope.heads[0]
    head = head_of_transformer(runs[0], chosen.layer, chosen.head, 16)
    mean_query, mean_key = head.queries.mean(axis=0), head.keys.mean(axis=0)
    turned = RotarySchedule.geometric(8, 1e4).rotate(mean_key, np.array(-3))
    assert profile[3] == pytest.approx(mean_query @ turned / 8**0.5)
    lengths, law = line(titled(figure, "the shift head"), "exact law")
    assert lengths.tolist() == list(range(8, 49))
    by_context = exact_law(head, 3, tuple(range(4, 49)), 1e-5)
    assert law[[0, -1]] == pytest.approx([by_context[:5].mean(), by_context.mean()])


@cache
def peaked() -> TransformerRun:
    """An untrained transformer whose first layer, sharpened, attends to some offsets and tokens more than to others."""
    spec = transformer_spec(width=32, vocabulary=8, evaluation_lengths=(16, 32))
    generator = torch.Generator().manual_seed(1)
    model = Transformer(spec, generator)
    with torch.no_grad():
        model.blocks[0].query.weight.mul_(6)
    return TransformerRun(spec, model, (), observe_transformer(model, (16, 32), 2048, 2048, generator), 0.0)


def law_deviation(turning: bool) -> float:
    """The exact law of a first-layer head from L = 16 against its attention at L = 32, in standard errors of both.

    The law is taken from five samples of the head, whose scatter is its error.
    """
    run = peaked()
    seen = next(head for head in run.evaluation[1].heads if (head.layer, head.head) == (0, 2))
    laws = []
    for seed in range(5):
        head = head_of_transformer(run, 0, 2, 16, samples=64, seed=seed)
        if not turning:
            head = replace(head, schedule=RotarySchedule.without_rotation(8))
        laws.append(exact_law(head, 3, tuple(range(4, 33)), 1e-5).mean())
    error = np.hypot(np.std(laws, ddof=1) / 5**0.5, seen.attention_error[3])
    return float(abs(np.mean(laws) - seen.attention[3]) / error)


def test_the_law_of_a_transformer_head_sampled_at_trained_lengths_holds_at_others() -> None:
    """In the first layer keys are independent tokens, so nothing but sampling parts the law from the head.

    Five laws leave four degrees of freedom: 8.6 errors are the .999 level. Without its turns the head is another.
    """
    assert law_deviation(turning=True) < 8.6
    assert law_deviation(turning=False) > 20


def test_a_transformer_head_has_the_means_that_were_observed() -> None:
    run = peaked()
    seen = next(head for head in run.evaluation[0].heads if (head.layer, head.head) == (1, 1))
    carriers = [head_of_transformer(run, 1, 1, 16, seed=seed).carrier() for seed in range(5)]
    for name in ("key_fraction", "query_fraction"):
        fractions = [getattr(carrier, name) for carrier in carriers]
        # The mean of so many samples has 1/512 of their energy by chance alone.
        allowed = 8.6 * np.std(fractions, ddof=1) / 5**0.5 + 1 / 512
        assert abs(np.mean(fractions) - getattr(seen, name)) < allowed < 0.1


def test_heads_that_cannot_be_had_are_refused() -> None:
    run = made({16: (0.5, 0.5)})
    with pytest.raises(BridgeError, match="has layers 0 to 1, got layer 2"):
        head_of_transformer(run, 2, 0, 16)
    with pytest.raises(BridgeError, match="has heads 0 to 1, got head -1"):
        head_of_transformer(run, 0, -1, 16)
    with pytest.raises(BridgeError, match="length 3 holds no token K = 3 back"):
        head_of_transformer(run, 0, 0, 3)
    spec = transformer_spec(encoding=LearnedPositions(), width=16, heads=2)
    learned = TransformerRun(spec, Transformer(spec, torch.Generator().manual_seed(0)), (), (), 0.0)
    with pytest.raises(BridgeError, match="adds positions to its embedding"):
        head_of_transformer(learned, 0, 0, 16)
    assert Followed("", run, figure_6.followed("", run).heads).name == "layer 1, head 0"
