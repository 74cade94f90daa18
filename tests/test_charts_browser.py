"""Charts in a real browser: drawn, told under the mouse and by the keyboard, dark and light, and whole on paper."""

from __future__ import annotations

import base64
import json
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from importlib import resources
from pathlib import Path

import pytest
from browser import chromium, errors
from matplotlib.figure import Figure
from plotly.offline import get_plotlyjs
from selenium import webdriver
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import WebDriverWait

from bridge.report.charts import Panel, chart

PALE = "<style>:root{--ink:#1a1a1a;--paper:#ffffff;--panel:#f6f7f8;--faint:#5c6370;--line:#d9dce1}"
DARK = ":root[data-theme=dark]{--ink:#e8e8e6;--paper:#14161a;--panel:#1d2026;--faint:#a3aab5;--line:#363b44}</style>"
GRID = (
    "<style>.panels{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,22rem),1fr));gap:1rem}"
    ".panel{min-width:0}@media print{.panels{grid-template-columns:1fr 1fr}.panel{break-inside:avoid}}</style>"
)
LENGTHS, ROTARY, LEARNED = [8, 16, 64], [0.9, 0.875, 0.682], [0.8, 0.25, 0.125]


def drawn() -> tuple[Panel, ...]:
    """A panel of the kind that the report has, one whose points are stored from right to left, cells, and a far one."""
    figure, cells = Figure(figsize=(9, 4)), Figure(figsize=(9, 4))
    (left, right), (mesh, far) = figure.subplots(1, 2), cells.subplots(1, 2)
    left.errorbar(LENGTHS, ROTARY, [0.01, 0.02, 0.004], fmt="o", color="#0072B2", label="rotary, 8 seeds (bars: s.d.)")
    left.plot(LENGTHS, LEARNED, color="black", ls="--", label="learned")
    left.axhline(0.05, color="#666666", ls=":", label="chance")
    left.set_title("accuracy of heads with a title that is longer than a narrow screen is wide")
    left.set_xscale("log", base=2)
    left.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    right.plot([0, -1, -2], [0.1, 0.2, 0.7], "s-", color="#00224e", label="profile")
    mesh.pcolormesh([-2, -1, 0], [0, 0.5, 1], [[0.0, 0.25], [0.5, 1.0]])
    far.barh(["a", "b"], [3, 4], color="#D55E00", label="heads")
    for axes in (left, right, mesh, far):
        axes.set_xlabel("length L (tokens)")
        axes.set_ylabel("accuracy (share)")
    return (*chart("figure", figure).panels, *chart("cells", cells).panels)


@pytest.fixture(scope="module")
def panels() -> tuple[Panel, ...]:
    return drawn()


@pytest.fixture(scope="module")
def file(panels: tuple[Panel, ...], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page with nothing but the panels; the last one far below the screen."""
    cells = [
        f'<div class="panel" id="{one.id}" data-figure="{one.id}-data" tabindex="0" aria-label="{one.alt}"></div>'
        f'<script type="application/json" id="{one.id}-data">{json.dumps(one.figure)}</script>'
        for one in panels
    ]
    script = (resources.files("bridge.report") / "charts.js").read_text()
    body = f'<div class="panels">{"".join(cells[:3])}</div><p style="height:5000px">.</p>{cells[3]}'
    page = (
        '<!doctype html><html lang="en" data-theme="light"><meta charset="utf-8"><title>charts</title>'
        f'<link rel="icon" href="data:,">{PALE}{DARK}{GRID}{body}<script>{get_plotlyjs()}</script>'
        f"<script>{script}</script><script>carrier.drawCharts()</script></html>"
    )
    path = tmp_path_factory.mktemp("charts") / "page.html"
    path.write_text(page)
    return path


@pytest.fixture(scope="module")
def browser(file: Path) -> Iterator[webdriver.Chrome]:
    with chromium() as opened:
        opened.get(file.as_uri())
        yield opened


@pytest.fixture
def page(browser: webdriver.Chrome) -> webdriver.Chrome:
    """The page at its top, light, with no point chosen."""
    browser.execute_script("document.activeElement.blur(); scrollTo(0, 0)")
    theme(browser, "light")
    return browser


def theme(page: webdriver.Chrome, name: str) -> None:
    page.execute_script(
        "document.documentElement.dataset.theme = arguments[0]; document.dispatchEvent(new Event('themechange'))", name
    )


def wait(page: webdriver.Chrome, true: Callable[[], object]) -> None:
    WebDriverWait(page, 10).until(lambda _: true())


def svgs(page: webdriver.Chrome, panel: str) -> int:
    return len(page.find_elements(By.CSS_SELECTOR, f"#{panel} .main-svg"))


def press(page: webdriver.Chrome, panel: str, *keys: str) -> None:
    page.find_element(By.ID, panel).send_keys(*keys)


def said(page: webdriver.Chrome) -> str:
    live = page.find_elements(By.ID, "carrier-live")
    return str(live[0].get_attribute("textContent")) if live else ""


def hears(page: webdriver.Chrome, words: str) -> None:
    """What is read out becomes these words; a difference is shown."""
    try:
        wait(page, lambda: said(page).replace("\u2212", "-") == words)
    except Exception:
        assert said(page) == words


def channels(color: str) -> list[float]:
    return [float(part) for part in re.findall(r"[\d.]+", color)[:3]]


def contrast(one: str, other: str) -> float:
    """The contrast ratio of WCAG 2."""

    def light(color: str) -> float:
        linear = [
            part / 255 / 12.92 if part <= 10 else ((part / 255 + 0.055) / 1.055) ** 2.4 for part in channels(color)
        ]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2] + 0.05

    low, high = sorted((light(one), light(other)))
    return high / low


def test_panels_near_the_screen_are_drawn_at_once_and_far_ones_when_they_come_near(
    page: webdriver.Chrome, panels: tuple[Panel, ...]
) -> None:
    for one in panels[:3]:
        wait(page, lambda one=one: svgs(page, one.id))
        counts = page.execute_script(
            "const {data, layout} = document.getElementById(arguments[0]); return [data.length, layout.shapes.length]",
            one.id,
        )
        assert counts == [len(one.figure["data"]), len(one.figure["layout"].get("shapes", ()))]
    assert svgs(page, panels[3].id) == 0
    page.execute_script("scrollTo(0, document.body.scrollHeight)")
    wait(page, lambda: svgs(page, panels[3].id))
    assert errors(page) == []


def test_the_mouse_on_a_point_shows_its_series_and_its_numbers(page: webdriver.Chrome) -> None:
    point = page.find_elements(By.CSS_SELECTOR, "#figure-1 .scatterlayer .trace:not(:empty) .points path")[2]
    ActionChains(page).move_to_element(point).perform()
    shown = "return [...document.querySelectorAll('#figure-1 .hovertext text')].map(one => one.textContent).join('')"
    wait(page, lambda: page.execute_script(shown))
    label = page.execute_script(shown)
    for words in ("rotary, 8 seeds (bars: s.d.)", "length L (tokens): 64", "accuracy (share): 0.682 \u00b1 0.004"):
        assert words in label
    ActionChains(page).move_by_offset(0, 400).perform()


def test_arrow_keys_go_through_points_and_series_and_read_them(page: webdriver.Chrome) -> None:
    last = "rotary, 8 seeds (bars: s.d.), length L (tokens): 64, accuracy (share): 0.682 \u00b1 0.004"
    press(page, "figure-1", Keys.ARROW_RIGHT)
    hears(page, "learned, length L (tokens): 8, accuracy (share): 0.8")
    press(page, "figure-1", Keys.ARROW_RIGHT)
    hears(page, "learned, length L (tokens): 16, accuracy (share): 0.25")
    press(page, "figure-1", Keys.ARROW_DOWN)
    hears(page, "rotary, 8 seeds (bars: s.d.), length L (tokens): 16, accuracy (share): 0.875 \u00b1 0.02")
    press(page, "figure-1", Keys.END)
    hears(page, last)
    press(page, "figure-1", Keys.ARROW_LEFT, Keys.ARROW_LEFT, Keys.ARROW_RIGHT, Keys.ARROW_RIGHT, Keys.ARROW_RIGHT)
    hears(page, last)
    press(page, "figure-1", Keys.ARROW_UP, Keys.HOME)
    hears(page, "learned, length L (tokens): 8, accuracy (share): 0.8")
    press(page, "figure-1", Keys.ESCAPE)
    hears(page, "")
    assert page.find_elements(By.CSS_SELECTOR, "#figure-1 .hovertext") == []


def test_right_is_to_the_right_on_the_screen_whatever_the_order_of_the_points(page: webdriver.Chrome) -> None:
    press(page, "figure-2", Keys.HOME)
    hears(page, "profile, length L (tokens): -2, accuracy (share): 0.7")
    press(page, "figure-2", Keys.ARROW_RIGHT)
    hears(page, "profile, length L (tokens): -1, accuracy (share): 0.2")


def test_cells_are_read_one_by_one(page: webdriver.Chrome) -> None:
    press(page, "cells-1", Keys.END)
    hears(page, "length L (tokens): -0.5, accuracy (share): 0.75, 1")
    press(page, "cells-1", Keys.ARROW_LEFT)
    hears(page, "length L (tokens): -1.5, accuracy (share): 0.75, 0.5")


def test_a_panel_takes_the_keyboard_says_what_it_is_and_lets_tab_go_on(
    page: webdriver.Chrome, panels: tuple[Panel, ...]
) -> None:
    panel = page.find_element(By.ID, "figure-1")
    assert panel.get_attribute("role") == "application" and panel.get_attribute("aria-label") == panels[0].alt
    panel.send_keys(Keys.ARROW_RIGHT, Keys.TAB)
    assert page.switch_to.active_element.get_attribute("id") == "figure-2"
    hears(page, "")


def test_in_the_dark_everything_stands_out_from_its_panel(page: webdriver.Chrome) -> None:
    colours = """return [...document.querySelectorAll('#figure-1 text, #figure-1 .js-line, #figure-1 .point')]
        .map(one => getComputedStyle(one)).map(one => (one.stroke === 'none' ? one.fill : one.stroke))"""
    light = page.execute_script(colours)
    theme(page, "dark")
    dark = page.execute_script(colours)
    assert len(light) == len(dark) > 10 and "rgb(232, 232, 230)" in dark and "rgb(26, 26, 26)" in light
    assert min(contrast(color, "rgb(29, 32, 38)") for color in dark) > 4.5
    assert min(contrast(color, "rgb(29, 32, 38)") for color in light) < 1.2
    told = "return carrier.colour(arguments[0])"
    assert contrast(page.execute_script(told, "#00224e"), "rgb(29, 32, 38)") > 4.5
    assert channels(page.execute_script(told, "#ffffff")) == [29, 32, 38]
    # Cells keep their colours, and so need light around them.
    ground = "return getComputedStyle(document.getElementById('cells-1')).backgroundColor"
    assert page.execute_script(ground) == "rgb(255, 255, 255)"
    theme(page, "light")
    assert page.execute_script(colours) == light


def test_on_a_narrow_screen_panels_stack_and_nothing_is_cut(file: Path) -> None:
    with chromium(width=400, height=800) as narrow:
        narrow.get(file.as_uri())
        wait(narrow, lambda: svgs(narrow, "figure-2"))
        boxes = narrow.execute_script(
            "return ['figure-1', 'figure-2'].map(id => document.getElementById(id).getBoundingClientRect().toJSON())"
        )
        assert boxes[1]["top"] >= boxes[0]["bottom"] and boxes[0]["width"] <= 400
        outside = narrow.execute_script(
            """return [...document.querySelectorAll('#figure-1 text')].filter(one => {
                const box = one.getBoundingClientRect(), room = one.closest('.panel').getBoundingClientRect();
                const across = box.left >= room.left - 1 && box.right <= room.right + 1;
                return !(across && box.top >= room.top - 1 && box.bottom <= room.bottom + 1);
            }).map(one => one.textContent)"""
        )
        assert outside == []
        assert narrow.execute_script("return document.documentElement.scrollWidth") <= 400


def test_a_panel_that_changes_its_width_is_drawn_anew(page: webdriver.Chrome) -> None:
    width = "return document.querySelector('#figure-1 .main-svg').getBoundingClientRect().width"
    before = page.execute_script(width)
    page.execute_script("document.querySelector('.panels').style.width = '900px'")
    wait(page, lambda: page.execute_script(width) != before)
    room = page.execute_script("return document.getElementById('figure-1').clientWidth")
    assert page.execute_script(width) == room
    page.execute_script("document.querySelector('.panels').style.width = ''")
    wait(page, lambda: page.execute_script(width) == before)


def test_on_paper_every_chart_is_light_and_within_its_panel_and_afterwards_as_before(
    file: Path, tmp_path: Path
) -> None:
    now = """[...document.querySelectorAll('.main-svg')].map(one =>
        [one.clientWidth, getComputedStyle(one.querySelector('text') || one).fill])"""
    with chromium() as opened:
        opened.get(file.as_uri())
        wait(opened, lambda: svgs(opened, "cells-1"))
        theme(opened, "dark")
        before = opened.execute_script(f"return {now}")
        opened.execute_script(f"addEventListener('beforeprint', () => {{ window.printed = {now}; }})")
        pdf = base64.b64decode(opened.print_page())
        # All four panels, three layers each. Half of A4 within Chromium's margins of a centimetre is 351 pixels.
        printed = opened.execute_script("return window.printed")
        assert len(printed) == 12 and {width for width, _ in printed} == {340}
        assert all(channels(color) == [0, 0, 0] for _, color in printed)
        after = opened.execute_script(f"return {now}")
        assert after[: len(before)] == before and [232, 232, 230] in [channels(color) for _, color in after]
        assert errors(opened) == []
    assert pdf.startswith(b"%PDF")
    if shutil.which("pdftotext"):
        (tmp_path / "page.pdf").write_bytes(pdf)
        read = subprocess.run(["pdftotext", tmp_path / "page.pdf", "-"], capture_output=True, text=True, check=True)
        assert {"rotary, 8 seeds (bars: s.d.)", "chance"} <= set(read.stdout.splitlines())
