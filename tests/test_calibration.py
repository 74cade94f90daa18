"""Heads calibrated on text, from vectors written here: the law, what is seen, flags and classes.

Vectors are a carrier with a spread, and two lanes that no position turns: what is put there depends on no offset, so
that a head can be given one property and no other. Attention is recomputed by loops over windows and queries with
rotations of their own; the windowed law by drawing contexts key by key.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy.special import softmax

from bridge.calibrated import Asked, CalibratedReport, classify, report_head
from bridge.calibration import POOL_FROM, SHORTEST, WINDOW, Seen, independent_head, see, windowed_head
from bridge.errors import BridgeError
from bridge.prediction import mean_profile_at
from bridge.sources.activations import HeadActivations
from bridge.sources.attention import LayerPositions
from bridge.surface import PlacedHead, sampled_surface
from bridge.trust import LIMIT, Trust, judge
from theory.head import Head
from theory.ramp_scaling import Yarn
from theory.rotary import Rotary
from theory.sampled_law import SEED
from theory.scaling import DynamicNtk
from theory.schedule import RotarySchedule

BASE, TURNED, WIDTH = 4.0, 12, 16
DOCUMENT, PLACE = 12, 13
"""Lanes that no position turns."""
WINDOWS, LENGTH = 16, 192
PLAIN = LayerPositions(Rotary(BASE, WIDTH, TURNED))
AT = np.arange(LENGTH)
SIGN = np.where(np.arange(WINDOWS) % 2, 1.0, -1.0)[:, None]
"""Of two documents whose windows take turns."""


def turns(positions: int) -> np.ndarray:
    """e^(i position theta) of every pair, from the formula, [position pair]."""
    theta = np.zeros(WIDTH // 2)
    theta[: TURNED // 2] = BASE ** (-np.arange(0, TURNED, 2) / TURNED)
    return np.exp(1j * np.arange(positions)[:, None] * theta)


def pairs(lanes: np.ndarray) -> np.ndarray:
    return lanes[..., ::2] + 1j * lanes[..., 1::2]


def stationary(
    seed: int = 0, back: int = 3, strength: float = 1.1, windows: int = WINDOWS, length: int = LENGTH
) -> HeadActivations:
    """A carrier that looks `back` tokens back, with independent content all along."""
    queries, keys = 0.2 * np.random.default_rng(seed).normal(size=(2, windows, length, WIDTH))
    queries[..., TURNED:], keys[..., TURNED:] = 0, 0
    keys[..., :TURNED:2] += 1
    looking = strength * turns(back + 1)[back].conj()[: TURNED // 2]
    queries[..., :TURNED:2] += looking.real
    queries[..., 1:TURNED:2] += looking.imag
    return HeadActivations(queries, keys, 1.0, PLAIN)


def with_lane(head: HeadActivations, lane: int, keys: np.ndarray, queries: np.ndarray | float) -> HeadActivations:
    """The head with one of the lanes that do not turn filled."""
    queries_of, keys_of = head.queries.copy(), head.keys.copy()
    queries_of[..., lane], keys_of[..., lane] = queries, keys
    return replace(head, queries=queries_of, keys=keys_of)


def with_sink(head: HeadActivations, *logits: float) -> HeadActivations:
    """The head with a first key whose logit is the same from everywhere, one for all windows or one each."""
    keys = head.keys.copy()
    keys[:, 0] = 0
    return with_lane(replace(head, keys=keys), PLACE, (AT[: head.length] == 0) * np.array(logits)[:, None], 1.0)


def copying(strength: float) -> HeadActivations:
    """Queries that look for the content of their own key three tokens back: a local correlation."""
    words = np.random.default_rng(5).normal(size=(WINDOWS, LENGTH))
    return with_lane(stationary(), DOCUMENT, words, strength * np.roll(words, 3, axis=1))


def of_documents(head: HeadActivations, strength: float) -> HeadActivations:
    """Queries that look for keys of their own document, of two."""
    return with_lane(head, DOCUMENT, SIGN, strength * SIGN)


# Logits and what is seen


@pytest.mark.parametrize("span", [None, 40])
@pytest.mark.parametrize(
    "rotary",
    [
        Rotary(1e4, 8, 8),
        Rotary(1e4, 8, 8, Yarn(4.0, trained_length=64)),
        Rotary(50.0, 8, 4, Yarn(8.0, trained_length=64)),
        Rotary(1e4, 8, 8, DynamicNtk(4.0, trained_length=64)),
        None,
    ],
    ids=["plain", "YaRN", "half of the lanes, YaRN", "dynamic", "no rotary positions"],
)
def test_logits_are_those_of_the_theory(rotary: Rotary | None, span: int | None) -> None:
    """Both are the model's; one turns keys to their places, the other queries by an offset."""
    queries, keys = np.random.default_rng(1).normal(size=(2, 3, 130, 8))
    head = HeadActivations(queries, keys, 0.35, LayerPositions(rotary, span))
    asking, schedule = np.arange(64, 130), RotarySchedule.without_rotation(8)
    if rotary is not None:
        schedule = rotary.schedule(130)
        assert isinstance(rotary.scaling, Yarn) == (schedule.attention_factor > 1.1)
    for window, other in ((0, None), (2, 1)):
        pool = keys[window if other is None else other]
        known = Head(
            schedule=schedule,
            queries=queries[window, asking],
            query_weights=np.full(66, 1 / 66),
            local_keys=pool[asking[:, None] - np.arange(9)],
            keys=pool,
            key_weights=np.full(130, 1 / 130),
            logit_scale=0.35,
            sink_keys=np.repeat(pool[:1], 66, axis=0),
        )
        logits = head.logits(window, range(64, 130), other)
        back = asking[:, None] - np.arange(130)
        seen = (back >= 0) & (back < (span or 1000))
        assert (logits[~seen] == -np.inf).all() and np.isfinite(logits[seen]).all()
        rows, columns = np.nonzero(seen)
        table = known.logits(-np.arange(130))
        np.testing.assert_allclose(logits[seen], table[rows, back[seen], columns], atol=1e-11)
        np.testing.assert_allclose(
            np.take_along_axis(logits, asking[:, None] - np.arange(9), axis=1), known.local_logits(), atol=1e-11
        )
        if span is None:
            sinks = known.sink_logits(-asking)[np.arange(66), np.arange(66)]
            np.testing.assert_allclose(logits[:, 0], sinks, atol=1e-11)


@pytest.mark.parametrize("span", [None, 50])
def test_what_is_seen_is_the_mean_over_windows_of_loops_over_queries(span: int | None) -> None:
    head = with_sink(stationary(windows=3, length=130), 7.0, 8.0, 9.0)
    head = replace(head, positions=LayerPositions(PLAIN.rotary, span))
    queries, keys, turn = pairs(head.queries), pairs(head.keys), turns(130)
    rows = np.zeros((3, 65, 130))
    swapped, entropies, peaks = np.zeros((3, 65, 65)), np.zeros((3, 65)), np.zeros((3, 65))
    for window in range(3):
        for place, at in enumerate(range(65, 130)):
            logits, mixed = np.full(at + 1, -np.inf), np.full(at + 1, -np.inf)
            for key in range(0 if span is None else at + 1 - span, at + 1):
                own_key, other_key = keys[window, key], keys[(window + 1) % 3, key]
                logits[key] = (queries[window, at].conj() * own_key * turn[at - key].conj()).real.sum()
                other = (queries[window, at].conj() * other_key * turn[at - key].conj()).real.sum()
                mixed[key] = logits[key] if key == 0 or at - key <= 8 else other
            attention = softmax(logits)
            rows[window, place, : at + 1] = attention[::-1]
            swapped[window, place] = softmax(mixed)[::-1][:65]
            some = attention[attention > 0]
            entropies[window, place] = -(some * np.log(some)).sum()
            peaks[window, place] = attention[1:].max()
    sinks = np.array([[rows[window, place, 65 + place] for place in range(65)] for window in range(3)])
    seen = see(head)
    assert seen.length == 98
    by_window = rows[:, :, :65].mean(axis=1)
    np.testing.assert_allclose(seen.profile, by_window.mean(axis=0), atol=1e-13)
    np.testing.assert_allclose(seen.profile_error, by_window.std(axis=0, ddof=1) / 3**0.5, atol=1e-13)
    np.testing.assert_allclose(seen.swapped, swapped.mean(axis=(0, 1)), atol=1e-13)
    assert np.abs(seen.swapped - seen.profile).max() > 1e-5
    told = (seen.sink, seen.sink_error, seen.entropy, seen.entropy_error, seen.peak)
    by_loops = [(table.mean(), table.mean(axis=1).std(ddof=1) / 3**0.5) for table in (sinks, entropies)]
    np.testing.assert_allclose(told, (*by_loops[0], *by_loops[1], peaks.mean()), atol=1e-12)
    assert (seen.sink == 0) == (span is not None)
    assert (seen.offset, seen.share) == (-3, seen.profile[3]) and seen.share_error == seen.profile_error[3]


# The windowed law


def test_a_calibrated_head_holds_every_position_once() -> None:
    head = stationary(windows=3, length=130)
    for made, first, stop, window in (
        (windowed_head(head), POOL_FROM, 130, WINDOW),
        (windowed_head(head, 90, 100), 90, 100, WINDOW),
        (independent_head(head), POOL_FROM, 130, 1),
    ):
        content, places = made.content, [(w, at) for w in range(3) for at in range(first, stop)]
        assert len(content.queries) == len(content.keys) == len(places) and content.window == window
        assert content.sink_keys is not None and content.logit_scale == head.logit_scale
        for row, (w, at) in enumerate(places):
            assert (content.queries[row] == head.queries[w, at]).all()
            assert (content.keys[row] == head.keys[w, at]).all()
            assert (content.local_keys[row] == head.keys[w, at - np.arange(window)]).all()
            assert (content.sink_keys[row] == head.keys[w, 0]).all()
        assert np.ptp(content.query_weights) == np.ptp(content.key_weights) == 0


def drawn_law(head: HeadActivations, length: int, samples: int) -> tuple[np.ndarray, np.ndarray]:
    """Mean attention by offset and its error: contexts drawn one by one, each key by itself."""
    rng = np.random.default_rng(length)
    windows, places = len(head.queries), head.length - POOL_FROM
    window, at = rng.integers(0, windows, samples), POOL_FROM + rng.integers(0, places, samples)
    contexts = head.keys[
        rng.integers(0, windows, (samples, length)), POOL_FROM + rng.integers(0, places, (samples, length))
    ]
    contexts[:, :9] = head.keys[window[:, None], at[:, None] - np.arange(9)]
    contexts[:, -1] = head.keys[window, 0]
    logits = np.einsum("sp,slp,lp->sl", pairs(head.queries[window, at]).conj(), pairs(contexts), turns(length).conj())
    attention = softmax(logits.real, axis=1)
    return attention.mean(axis=0), attention.std(axis=0) / samples**0.5


def test_the_law_is_the_mean_over_contexts_drawn_from_the_text() -> None:
    """Of a head with local correlation and a sink; the law with independent keys is the negative control."""
    head = with_sink(copying(1.5), 3.0)
    windowed, independent = (sampled_surface(made(head), [20, 60]) for made in (windowed_head, independent_head))
    squares, control = [], []
    for length in (20, 60):
        mean, error = drawn_law(head, length, 20_000)
        for surface, found in ((windowed, squares), (independent, control)):
            profile = surface[length]
            found.append((profile.mean - mean) / np.hypot(profile.standard_error, error))
    assert np.abs(np.concatenate(squares)).max() < 4.5
    assert np.square(np.concatenate(squares)).mean() < 1.6
    assert min(np.abs(deviations).max() for deviations in control) > 20


def test_a_first_token_beyond_the_span_is_no_sink() -> None:
    head = replace(windowed_head(with_sink(stationary(), 5.0)), positions=LayerPositions(PLAIN.rotary, 100))
    assert head.at(100).sink_keys is not None
    assert head.at(101).sink_keys is None
    surface = sampled_surface(head, [100, 101, 300])
    assert [len(surface[length].mean) for length in (100, 101, 300)] == [100, 100, 100]
    assert surface[100].mean[99] > 0.05 > 10 * surface[101].mean[99]
    assert (surface[101].mean == surface[300].mean).all()


# Flags


def judged(head: HeadActivations, length: int = 512) -> tuple[Seen, Trust]:
    seen = see(head)
    return seen, judge(head, seen, -seen.offset, length)


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("length", [SHORTEST, LENGTH])
def test_a_stationary_head_of_position_alone_raises_no_flag(seed: int, length: int) -> None:
    seen, trust = judged(stationary(seed, length=length, windows=24))
    assert seen.offset == -3 and trust.share == seen.share > 0.3
    assert trust.flags == () and trust.notes == ()


FLAGGED = {
    # Queries of the second half are longer. A law of the whole text has most of its own from there and is near.
    "drift": (
        replace(stationary(5), queries=stationary(5).queries * np.where(AT < LENGTH // 2, 1.0, 1.09)[:, None]),
        lambda trust: trust.drift,
        -1,
    ),
    # Keys before the pool draw attention that no law knows of, in any document alike.
    "self-consistency": (
        with_lane(stationary(), PLACE, np.where((AT > 0) & (AT < POOL_FROM), 0.6, 0.0), 1.0),
        lambda trust: trust.consistency,
        1,
    ),
    # Half of the pool is of the own document, all far keys of the text are, none of those that are swapped in.
    "content retrieval": (of_documents(stationary(back=0), 0.1), lambda trust: trust.retrieval, 1),
}


@pytest.mark.parametrize("name", FLAGGED)
def test_each_flag_rises_alone(name: str) -> None:
    head, difference, sign = FLAGGED[name]
    seen, trust = judged(head)
    assert [flag.partition(":")[0] for flag in trust.flags] == [name]
    assert sign * difference(trust) > LIMIT
    assert seen.share > 0.3


def test_a_weak_head_is_undecided_and_no_law_is_asked() -> None:
    seen, trust = judged(stationary(strength=0.2))
    assert trust.flags == ("share below 0.05: offset undecided",) and seen.share < 0.05
    assert (trust.drift, trust.consistency, trust.dependence) == (None, None, None)
    seen = see(stationary())
    assert judge(stationary(), seen, len(seen.profile), 512).flags == ("share below 0.05: offset undecided",)


def test_a_local_correlation_is_noted_and_no_flag() -> None:
    """The windowed law holds there; laws with independent keys do not."""
    seen, trust = judged(copying(0.5))
    assert trust.flags == () and seen.offset == -3
    assert trust.dependence is not None and trust.dependence > LIMIT
    (note,) = trust.notes
    assert note.startswith("content dependence")


# Classes and reports


def sharp(strength: float) -> HeadActivations:
    """Queries and keys without a mean, whose products are large: each query has a key somewhere."""
    queries, keys = strength * np.random.default_rng(3).normal(size=(2, WINDOWS, LENGTH, WIDTH))
    return HeadActivations(queries, keys, WIDTH**-0.5, PLAIN)


@pytest.mark.parametrize(
    ("kind", "head"),
    [
        ("sink", with_sink(stationary(strength=1.5), 10.0)),
        ("positional", with_sink(stationary(strength=1.5), 0.0)),
        ("self", stationary(back=0)),
        ("mixed", of_documents(stationary(back=0), 0.1)),
        ("content", sharp(2.5)),
        ("mixed", sharp(1.0)),
        ("mixed", stationary(strength=0.2)),
    ],
)
def test_classes_follow_from_what_is_seen(kind: str, head: HeadActivations) -> None:
    seen = see(head)
    assert classify(seen) == kind
    if kind == "sink":
        assert seen.share > 0.2 and seen.offset == -3, "a head with a sink can be positional, too"
    if kind == "content":
        assert seen.share < 0.2 < 0.3 < seen.peak


def report(head: HeadActivations, lengths: tuple[int, ...], at: int, **asked: object) -> CalibratedReport:
    return report_head(2, 5, head, Asked(lengths, at, **asked))  # type: ignore[arg-type]


def test_a_report_under_changed_positions_is_of_the_offset_that_was_selected_before() -> None:
    head, changed = stationary(), LayerPositions(Rotary(20.0, WIDTH, TURNED))
    own, other = report(head, (64, 256), 256), report(head, (64, 256), 256, changed=changed)
    assert (own.layer, own.head, own.offset, own.before) == (2, 5, -3, None)
    assert other.offset == -4 and other.prediction.offset == own.prediction.offset == 3
    assert other.before is not None and (other.before.exact == own.prediction.exact).all()
    assert other.before.law == other.prediction.law == "windowed"
    there = sampled_surface(PlacedHead(windowed_head(head).content, changed), (64, 256), SEED + 1)
    assert (other.prediction.exact == [there[length].mean[3] for length in (64, 256)]).all()
    assert np.abs(other.prediction.exact - own.prediction.exact).max() > 0.05
    assert (other.trust.drift, other.seen.share, other.kind) == (own.trust.drift, own.seen.share, "positional")
    assert other.share == pytest.approx(there[256].mean[-other.offset], rel=1e-12)


def test_a_report_is_of_the_offset_asked_for_where_lengths_hold_it() -> None:
    head = stationary()
    near = report(head, (64, 256), 64, offset=5)
    assert (near.offset, near.prediction.offset, near.prediction.lengths) == (-3, 5, (64, 256))
    assert near.prediction.constant.tolist() == [near.seen.profile[5]] * 2
    assert near.trust.share == near.seen.profile[5] and "share below 0.05: offset undecided" in near.flags
    far = report(head, (64, 256), 64, offset=150)
    assert far.prediction.lengths == (256,) and far.prediction.seen is None
    assert far.prediction.constant == far.prediction.exact


def test_errors_say_what_to_do() -> None:
    short, whole, one = stationary(length=SHORTEST - 1), stationary(), stationary(windows=1)
    for call, text in (
        (lambda: report(short, (64,), 64), r"windows of 127 tokens are too short: 128 or more are needed.*--window"),
        (lambda: see(short), "windows of 127 tokens are too short"),
        (lambda: windowed_head(whole, 190, 200), "calibrated at positions 9 to 191 .*, got 190 to 199: give longer"),
        (lambda: windowed_head(whole, 8), "calibrated at positions 9 to 191 .*, got 8 to 191"),
        (lambda: windowed_head(whole, 80, 80), "one or more, got 80 to 79"),
        (lambda: report(one, (64,), 64), "and there is one: give a longer text"),
        (lambda: report(whole, (64,), 9), "lengths must be 10 or more, got 9"),
        (lambda: report(whole, (5, 64), 64), "lengths must be 10 or more, got 5"),
        (lambda: report(whole, (64,), 64, offset=64), r"offset -64 of head 2\.5 lies outside .*: give a longer one"),
        (lambda: report(whole, (64,), 64, offset=63), r"or on the first token: give a longer one"),
    ):
        with pytest.raises(BridgeError, match=text) as caught:
            call()
        assert "\n" not in str(caught.value)


def test_the_mean_profile_law_has_the_first_token_at_its_place() -> None:
    """Softmax of mean logits, key by key, the farthest that of the first token; without it the law is another."""
    placed = windowed_head(with_sink(stationary(), 6.0))
    head, length, back = placed.content, 70, 1
    assert head.sink_keys is not None
    mean = np.empty(length)
    for j in range(length):
        turned = head.schedule.rotate(head.queries, np.full(len(head.queries), j))
        keys = head.local_keys[:, j] if j < WINDOW else np.broadcast_to(head.keys.mean(axis=0), turned.shape)
        keys = head.sink_keys if j == length - 1 else keys
        mean[j] = head.logit_scale * (turned * keys).sum(axis=1).mean()
    expected = np.exp(mean[back]) / np.exp(mean).sum()
    assert mean_profile_at(placed, back, length) == pytest.approx(expected, rel=1e-9)
    without = replace(placed, content=replace(head, sink_keys=None))
    assert mean_profile_at(without, back, length) > 1.2 * expected
