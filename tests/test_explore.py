"""The explorable carrier in a real browser: its numbers are `theory`'s, and its controls move what is drawn."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from browser import chromium, errors
from conftest import tiny_spec
from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import WebDriverWait

from bridge.errors import BridgeError
from bridge.report.contents import Contents
from bridge.report.explore import LONGEST, REACH, Explorable, NamedCarrier, explorable, named_carrier
from bridge.report.page import report_page
from bridge.sources.run import head_of_run
from empirics.store import Store
from empirics.sweep import sweep
from theory.best_carriers import best_carrier
from theory.bias import LinearBias
from theory.dilution import margin_bound, mean_profile_law
from theory.head import Carrier
from theory.kernel import carrier_profile, cosine_sums, kernel, margin, selected_offset
from theory.ramp_scaling import Yarn
from theory.scaling import Linear, Ntk, Scaling, Unscaled
from theory.schedule import RotarySchedule, as_lanes

TRAINED = "a run, K = 1"
SCALINGS = {"none": lambda s, T: Unscaled(), "linear": lambda s, T: Linear(s), "ntk": lambda s, T: Ntk(s), "yarn": Yarn}
PANELS = ("kernel", "profile", "dilution", "pairs")


@dataclass(frozen=True)
class Settings:
    """What `carrier.compute` takes."""

    width: int
    base: float
    scaling: str
    factor: float
    trained: int
    phases: str
    offset: int
    scale: float
    length: int
    weights: tuple[float, ...]
    errors: tuple[float, ...]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Carrier:
    """The carrier of a head that was trained for a moment: its phases are not on its target."""
    store, spec = Store.open(tmp_path_factory.mktemp("runs")), tiny_spec(heads=1)
    sweep([spec], store)
    return head_of_run(store.load(spec)).carrier()


@pytest.fixture(scope="module")
def explored(trained: Carrier) -> Explorable:
    return explorable([named_carrier(TRAINED, trained, 1, 16)])


@pytest.fixture(scope="module")
def page(explored: Explorable, tmp_path_factory: pytest.TempPathFactory) -> Iterator[webdriver.Chrome]:
    """A report with nothing but the carrier, in a browser."""
    file = tmp_path_factory.mktemp("page") / "report.html"
    file.write_text(report_page(Contents("a carrier", carriers=explored.carriers)))
    with chromium() as browser:
        browser.set_script_timeout(60)
        browser.get(file.as_uri())
        drawn(browser)
        yield browser


def drawn(browser: webdriver.Chrome) -> None:
    """Until what was asked for is drawn: a frame after it."""
    browser.execute_async_script("const done = arguments[0]; requestAnimationFrame(() => requestAnimationFrame(done))")
    panels = f"return {list(PANELS)}.every(name => document.getElementById(`explore-${{name}}`).data)"
    WebDriverWait(browser, 20).until(lambda _: browser.execute_script(panels))


def scaling_of(settings: Settings) -> Scaling:
    return SCALINGS[settings.scaling](settings.factor, settings.trained)


def carrier_of(settings: Settings) -> Carrier:
    """The same head by `theory`: means whose phases were trained on unscaled or on scaled frequencies."""
    plain = RotarySchedule.geometric(settings.width, settings.base)
    schedule = scaling_of(settings).schedule(settings.width, settings.base)
    learned = plain if settings.phases == "kept" else schedule
    sizes = np.sqrt(settings.scale * np.array(settings.weights))
    phases = np.array(settings.errors) - settings.offset * learned.frequencies
    query, key = as_lanes(sizes * np.exp(1j * phases)), as_lanes(sizes.astype(np.complex128))
    return Carrier.from_means(schedule, query, key, 1.0)


def random_settings(count: int, explored: Explorable, seed: int = 0) -> list[Settings]:
    """Settings of every kind; a few at the longest contexts, with few pairs so that they travel fast."""
    rng = np.random.default_rng(seed)
    cases = []
    for index in range(count):
        kind = ("equal", "best", "any", "trained")[index % 4]
        at = (index // 4) % 5, int(rng.integers(9))
        width, base = int(explored.stops["width"][at[0]]), explored.stops["base"][at[1]]
        none = np.zeros(width // 2)
        weights, off = none + 2 / width, none
        if kind == "best":
            weights = np.array(explored.best[at[0]][at[1]])
        elif kind == "any":
            weights, off = rng.dirichlet(none + 1), rng.uniform(-math.pi, math.pi, width // 2)
        elif kind == "trained":
            [head] = explored.carriers
            width, base, weights, off = head.width, head.base, np.array(head.weights), np.array(head.errors)
        offset = int(rng.integers(65))
        longest = LONGEST if index % 13 == 0 else 6000
        cases.append(
            Settings(
                width,
                base,
                list(SCALINGS)[(index // 3) % 4],
                float(np.exp(rng.uniform(0, math.log(32)))),
                int(rng.integers(16, 131072)),
                ("kept", "turned")[index % 2],
                offset,
                float(10 ** rng.uniform(-1, 2)),
                int(max(offset + 2, 8, longest if longest == LONGEST else np.exp(rng.uniform(2, math.log(longest))))),
                tuple(weights.tolist()),
                tuple(off.tolist()),
            )
        )
    return cases


def computed(browser: webdriver.Chrome, settings: Settings) -> dict[str, Any]:
    script = """
      return JSON.stringify(carrier.compute(arguments[0]),
                            (_, value) => ArrayBuffer.isView(value) ? [...value] : value)"""
    return json.loads(browser.execute_script(script, vars(settings)))


def agree(found: Any, wanted: Any, floor: float = 0.0) -> None:
    """To 1e-9 of the value, or of `floor` where sums of that size cancel."""
    np.testing.assert_allclose(np.array(found), np.array(wanted), rtol=1e-9, atol=1e-9 * floor)


def check_against_theory(found: dict[str, Any], settings: Settings) -> None:
    """Everything that the page shows, against `theory` from two mean vectors."""
    carrier, K, L = carrier_of(settings), settings.offset, settings.length
    schedule = carrier.schedule
    gain = settings.scale * schedule.attention_factor**2
    agree(found["frequencies"], schedule.frequencies)
    agree(found["attentionFactor"], schedule.attention_factor)
    errors = carrier.phases + K * schedule.frequencies
    around = cosine_sums(carrier.weights, schedule.frequencies, -errors, -64, 129)
    assert found["lags"] == list(range(-64, 65))
    agree(found["kernel"], around, 1e-2)
    profile = carrier_profile(carrier, LONGEST)
    agree(found["profile"], profile[:L], gain)
    mu = margin(profile[:L], K)
    agree(found["margin"], mu.value, 1e-2 * gain)
    # Lags s and -s of an aligned carrier tie but for the last bit.
    assert found["competitor"] == mu.competitor or profile[-found["competitor"]] == pytest.approx(
        profile[-mu.competitor], abs=1e-11 * gain
    )
    highest = selected_offset(profile[:L])
    assert found["selected"] == highest or profile[-found["selected"]] == pytest.approx(
        profile[-highest], abs=1e-11 * gain
    )
    lengths = np.arange(K + 1, L + 1)
    law = mean_profile_law(profile, K, np.arange(K + 1, LONGEST + 1))
    agree(found["dilution"], law[: len(lengths)], 1e-300)
    agree(found["share"], law[L - K - 1], 1e-300)
    for length in {max(K + 1, 2), max(K + 1, L // 3), L}:
        bound = margin_bound(margin(profile[:length], K).value, [length])[0]
        agree(found["bound"][length - K - 1], bound, 1e-300)
    below = np.flatnonzero(law < 0.5)
    assert found["half"] == (K + 1 + int(below[0]) if len(below) else None)


def test_every_number_of_the_page_is_theorys_at_random_settings(page: webdriver.Chrome, explored: Explorable) -> None:
    cases = random_settings(40, explored)
    kinds = {(case.scaling, case.phases) for case in cases}
    assert len(kinds) == 8 and {case.width for case in cases} >= set(explored.stops["width"])
    assert sum(case.length == LONGEST for case in cases) >= 3
    for case in cases:
        check_against_theory(computed(page, case), case)
    # A comparison that passes whatever it is given would pass these too.
    weights = explored.best[3][4]
    case = Settings(64, 10000, "yarn", 4, 4096, "kept", 3, 10, 64, weights, (0.0,) * 32)
    found = computed(page, case)
    check_against_theory(found, case)
    changes = ({"offset": 4}, {"factor": 4.001}, {"trained": 8192}, {"scale": 10.001}, {"phases": "turned"})
    for change in changes:
        with pytest.raises(AssertionError):
            check_against_theory(found, replace(case, **change))


def test_of_two_rivals_that_tie_the_nearer_is_told(page: webdriver.Chrome) -> None:
    for K in (1, 5, 17):
        settings = Settings(64, 10000, "none", 1, 16, "kept", K, 10, 40, (1 / 32,) * 32, (0.0,) * 32)
        found = computed(page, settings)
        assert found["profile"][K - 1] == found["profile"][K + 1] and found["competitor"] == 1 - K


def test_cosine_sums_of_the_map_are_the_kernel(page: webdriver.Chrome) -> None:
    theta, lags = RotarySchedule.geometric(32, 500).frequencies, np.array([-70000, -3, 0, 3, 512, 99999])
    weights = np.arange(1, 17) / 136
    script = "return [...carrier.cosineSums(arguments[0], arguments[1], arguments[1].map(() => 0), arguments[2])]"
    found = page.execute_script(script, theta.tolist(), weights.tolist(), lags.tolist())
    agree(found, kernel(weights, theta, lags), 1e-2)
    assert found[1] == found[3]


def slider(browser: webdriver.Chrome, name: str) -> Any:
    return browser.find_element(By.ID, f"explore-{name}")


def choose(browser: webdriver.Chrome, name: str, value: str) -> None:
    browser.find_element(By.CSS_SELECTOR, f'#explore-{name} option[value="{value}"]').click()
    drawn(browser)


def reset(browser: webdriver.Chrome) -> None:
    slider(browser, "reset").send_keys(Keys.ENTER)
    drawn(browser)


def shown(browser: webdriver.Chrome) -> dict[str, Any]:
    """What is on the page: first series of every chart, readouts, numbers, text alternatives."""
    script = """
      const told = {}, part = name => document.getElementById(`explore-${name}`);
      for (const name of arguments[0]) {
        const [first] = part(name).data;
        told[name] = { x: [...first.x], y: [...first.y], alt: part(name).getAttribute("aria-label") };
      }
      for (const slider of document.querySelectorAll(".controls input")) {
        const name = slider.id.replace("explore-", ""), spoken = slider.getAttribute("aria-valuetext");
        told[name] = { readout: part(`${name}-readout`).textContent, spoken, off: slider.disabled };
      }
      return { ...told, numbers: part("numbers").textContent, link: part("link").hash };"""
    return browser.execute_script(script, PANELS)


@pytest.mark.parametrize(
    ("name", "key", "said", "moved"),
    [
        ("width", Keys.ARROW_RIGHT, "64 pairs, 128 lanes", {"kernel", "profile", "dilution", "pairs"}),
        ("base", Keys.ARROW_LEFT, "3\u202f000", {"kernel", "profile", "dilution", "pairs"}),
        ("offset", Keys.ARROW_RIGHT, "4 tokens back", {"profile", "dilution"}),
        ("scale", Keys.HOME, "0.1 nats", {"profile", "dilution"}),
        ("length", Keys.END, "100\u202f000 tokens", {"profile", "dilution"}),
    ],
)
def test_a_slider_moves_what_is_drawn(page: webdriver.Chrome, name: str, key: str, said: str, moved: set[str]) -> None:
    reset(page)
    before = shown(page)
    slider(page, name).send_keys(key)
    drawn(page)
    after = shown(page)
    assert after[name]["readout"] == after[name]["spoken"] == said != before[name]["readout"]
    assert {panel for panel in PANELS if after[panel]["y"] != before[panel]["y"]} == moved
    assert {panel for panel in PANELS if after[panel]["alt"] != before[panel]["alt"]} >= moved
    assert after["numbers"] != before["numbers"] and after["link"] != before["link"]
    assert errors(page) == []


def test_what_is_drawn_is_theorys_and_no_extreme_is_lost(page: webdriver.Chrome, explored: Explorable) -> None:
    reset(page)
    slider(page, "length").send_keys(Keys.END)
    choose(page, "scaling", "yarn")
    choose(page, "weights", "equal")
    seen = shown(page)
    settings = Settings(64, 10000, "yarn", 4, 1024, "kept", 3, 10, LONGEST, (1 / 32,) * 32, (0.0,) * 32)
    carrier = carrier_of(settings)
    profile = carrier_profile(carrier, LONGEST)
    x, y = (np.array(seen["profile"][axis]) for axis in "xy")
    assert len(x) <= 2000 and x[0] == 1 and x[-1] == LONGEST
    agree(y, profile[x - 1], 10.0)
    assert y.max() == pytest.approx(profile.max(), rel=1e-9) and y.min() == pytest.approx(profile.min(), rel=1e-9)
    for far in (100, 1000, 10000):
        assert {far + profile[far:].argmax(), far + profile[far:].argmin()} <= set(x - 1)
    lengths = np.array(seen["dilution"]["x"])
    agree(seen["dilution"]["y"], mean_profile_law(profile, 3, lengths), 1e-300)
    mu = margin(profile, 3)
    assert f"margin {mu.value:.4g} nats".replace("-", "\u2212") in seen["numbers"]
    assert f"attention factor f: {1 + math.log(4) / 10:.5g}" in seen["numbers"]
    assert f"highest at offset \u2212{-selected_offset(profile)}" in seen["numbers"]


def test_the_best_weights_are_the_linear_programs(page: webdriver.Chrome) -> None:
    reset(page)
    wanted = best_carrier(RotarySchedule.geometric(64, 10000), REACH)
    agree(shown(page)["pairs"]["y"], wanted.weights)
    slider(page, "base").send_keys(Keys.END)
    drawn(page)
    agree(shown(page)["pairs"]["y"], best_carrier(RotarySchedule.geometric(64, 1_000_000), REACH).weights)


def test_a_carrier_of_a_run_brings_its_numbers_and_fixes_width_and_base(
    page: webdriver.Chrome, trained: Carrier
) -> None:
    reset(page)
    assert not any(shown(page)[name]["off"] for name in ("width", "base"))
    choose(page, "weights", TRAINED)
    seen = shown(page)
    spec = tiny_spec(heads=1)
    assert seen["width"]["off"] and seen["base"]["off"] and not seen["offset"]["off"] and not seen["scale"]["off"]
    assert seen["width"]["readout"] == f"{spec.width // 2} pairs, {spec.width} lanes"
    assert seen["offset"]["readout"] == "1 token back"
    assert "its weights and phases belong to them" in page.find_element(By.ID, "explore-note").text
    # At its own K, phi is that of its two mean vectors.
    profile = carrier_profile(trained, LONGEST)
    agree(seen["profile"]["y"], profile[np.array(seen["profile"]["x"]) - 1], trained.energy)
    choose(page, "weights", "equal")
    assert not any(shown(page)[name]["off"] for name in ("width", "base"))


def test_the_link_restores_what_is_shown(page: webdriver.Chrome) -> None:
    reset(page)
    start = shown(page)
    choose(page, "weights", TRAINED)
    choose(page, "scaling", "yarn")
    slider(page, "offset").send_keys(Keys.HOME)
    slider(page, "factor").send_keys(Keys.END)
    drawn(page)
    seen = shown(page)
    assert seen["offset"]["readout"] == "0 tokens back" and seen["factor"]["readout"] == "\u00d732"
    place = page.current_url.split("#")[0]
    reset(page)
    assert shown(page) == start != seen
    page.get("about:blank")
    page.get(place + seen["link"])
    drawn(page)
    assert shown(page) == seen
    # What cannot be is left out; what is between two stops goes to the nearer one.
    page.execute_script("location.hash = '#explore?width=abc&base=&offset=-5&length=4100&weights=nobody&scaling=yarn2'")
    WebDriverWait(page, 10).until(lambda _: shown(page) != seen)
    after = shown(page)
    assert after["offset"]["readout"] == "0 tokens back" and after["width"] == start["width"]
    assert after["base"] == start["base"] and after["length"]["readout"] == "4\u202f096 tokens"
    assert errors(page) == []


def test_a_context_holds_its_target(page: webdriver.Chrome) -> None:
    reset(page)
    slider(page, "length").send_keys(Keys.HOME)
    slider(page, "offset").send_keys(Keys.END)
    drawn(page)
    seen = shown(page)
    assert seen["offset"]["readout"] == "64 tokens back" and seen["length"]["readout"] == "76 tokens"


def test_every_control_has_a_name_and_every_chart_a_text(page: webdriver.Chrome) -> None:
    reset(page)
    controls = page.find_elements(By.CSS_SELECTOR, ".controls input, .controls select, .controls button")
    names = [control.accessible_name for control in controls]
    assert len(names) == 11 and all(names) and len(set(names)) == 11
    assert page.find_element(By.ID, "explore-numbers").get_attribute("aria-live") == "polite"
    for panel in PANELS:
        assert len(shown(page)[panel]["alt"]) > 60


def test_how_long_it_takes_is_told(page: webdriver.Chrome, capsys: pytest.CaptureFixture[str]) -> None:
    script = """
      const done = arguments[1], slider = document.getElementById("explore-length"), times = [];
      const step = left => {
        const began = performance.now();
        slider.value = arguments[0] - (left % 2);
        slider.dispatchEvent(new Event("input"));
        requestAnimationFrame(() => requestAnimationFrame(() => {
          times.push(performance.now() - began);
          left ? step(left - 1) : done(times.sort((a, b) => a - b)[Math.floor(times.length / 2)]);
        }));
      };
      step(6);"""
    reset(page)
    slider(page, "width").send_keys(Keys.END)
    choose(page, "weights", "equal")
    stops = json.loads(page.find_element(By.ID, "explore-data").get_attribute("textContent"))["stops"]["length"]
    with capsys.disabled():
        for length in (4096, LONGEST):
            taken = page.execute_async_script(script, stops.index(length))
            print(f"\n64 pairs, L = {length}: {taken:.0f} ms from the slider to the next frame", end="")
    assert errors(page) == []


def test_a_head_that_the_page_cannot_turn_is_refused_by_what_it_has(trained: Carrier) -> None:
    assert isinstance(named_carrier("plain", trained, 1, 16), NamedCarrier)
    dim, base = trained.schedule.dim, 10000.0
    half = RotarySchedule.geometric(dim // 2, base).padded(dim)
    refused = {
        "pairs that do not turn": replace(trained, schedule=half),
        "other than base": replace(trained, schedule=Linear(4).schedule(dim, base)),
        "attention factor": replace(trained, schedule=Yarn(4, 64).schedule(dim, base)),
        "a bias per offset": replace(trained, bias=LinearBias(0.5)),
        "add up to 0 nats": replace(trained, key_mean=np.zeros(dim)),
    }
    for reason, carrier in refused.items():
        with pytest.raises(BridgeError, match=reason):
            named_carrier("head", carrier, 1, 16)
    with pytest.raises(BridgeError, match="looks -1 tokens back"):
        named_carrier("head", trained, -1, 16)


@pytest.mark.parametrize("base", [10000.0, 500.0, 1e6, 10000 * 8 ** (128 / 126), 1.25e6 / 7])
def test_the_base_is_read_off_a_plain_schedule(base: float) -> None:
    schedule = RotarySchedule.geometric(128, base)
    means = np.ones(128)
    named = named_carrier("head", Carrier.from_means(schedule, means, means, 1.0), 0, 16)
    assert named.base == pytest.approx(base, rel=1e-13) and named.width == 128
    agree(RotarySchedule.geometric(128, named.base).frequencies, schedule.frequencies)


def test_a_label_stands_for_one_carrier(explored: Explorable) -> None:
    with pytest.raises(BridgeError, match="are called"):
        replace(explored, carriers=explored.carriers * 2)
    with pytest.raises(BridgeError, match="'best'"):
        replace(explored, carriers=(replace(explored.carriers[0], label="best"),))


def test_the_same_carriers_give_the_same_data(explored: Explorable, trained: Carrier) -> None:
    again = explorable([named_carrier(TRAINED, trained, 1, 16)])
    assert json.dumps(again.document()) == json.dumps(explored.document())
