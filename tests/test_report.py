"""`carrier report` as a person runs it, and its page in a real browser: verdicts, numbers, figures, heads, keyboard."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

import pytest
from browser import chromium, errors
from conftest import run_carrier, tiny_spec
from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import WebDriverWait

from bridge.paper import TARGETS
from bridge.paper.target import Preset
from bridge.reproduce import train_targets
from empirics.spec import LearnedPositions
from empirics.store import Store
from empirics.sweep import sweep
from theory.statements import STATEMENTS

MEGABYTE = 1 << 20
FIGURES = [target for target in TARGETS if target.draw is not None]


@pytest.fixture(scope="module")
def smoke(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The runs of every target at the preset smoke."""
    root = tmp_path_factory.mktemp("smoke") / "runs"
    train_targets(TARGETS, Preset.SMOKE, Store.open(root))
    return root


@pytest.fixture(scope="module")
def of_runs(smoke: Path) -> Path:
    """The folder of the report on these runs."""
    out = smoke.parent / "report"
    done = run_carrier("report", str(smoke), "--out", str(out))
    assert done.returncode == 0, done.stderr
    return out


@pytest.fixture(scope="module")
def of_checkpoint(models: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the report on a real checkpoint."""
    out = tmp_path_factory.mktemp("checkpoint")
    model, tokenizer = str(models / "stories260K.bin"), str(models / "tok512.bin")
    done = run_carrier("report", model, "--tokenizer", tokenizer, "--out", str(out))
    assert done.returncode == 0, done.stderr
    return out


@pytest.fixture(scope="module")
def page(of_runs: Path) -> Iterator[webdriver.Chrome]:
    """The report on runs in a browser."""
    with chromium() as browser:
        browser.get((of_runs / "report.html").as_uri())
        yield browser


def test_the_page_is_one_file_of_a_few_megabytes_that_needs_nothing_else(of_runs: Path) -> None:
    file = of_runs / "report.html"
    assert file.stat().st_size < 8 * MEGABYTE
    outside = Links().of(file.read_text())
    assert outside["script"] == [] and outside["link"] == ["data:,"] and outside["img"] == []
    for link in outside["a"]:
        place = link.removeprefix("#")
        assert f'id="{place}"' in file.read_text() if link.startswith("#") else (of_runs / link).is_file(), link


def test_the_same_runs_give_the_same_bytes(smoke: Path, of_runs: Path, tmp_path: Path) -> None:
    assert run_carrier("report", str(smoke), "--out", str(tmp_path)).returncode == 0
    files = sorted(path.relative_to(of_runs) for path in of_runs.rglob("*") if path.is_file())
    assert files == sorted(path.relative_to(tmp_path) for path in tmp_path.rglob("*") if path.is_file())
    different = [str(file) for file in files if (of_runs / file).read_bytes() != (tmp_path / file).read_bytes()]
    assert different == []


def test_every_statement_and_every_printed_number_stands_in_it(of_runs: Path) -> None:
    text = (of_runs / "report.html").read_text()
    for statement in STATEMENTS:
        assert f'id="statement-{statement.id}"' in text
    assert text.count(">refuted<") >= 1
    for target in TARGETS:
        part = text[text.index(f'id="{target.id}-numbers"') :] if target.printed else ""
        part = part[: part.index("</article>")] if part else ""
        for printed in target.printed:
            assert f">{printed.value:.{printed.decimals}f}<" in part, (target.id, printed.key)
    assert text.count(">out of regime<") >= sum(len(target.printed) for target in TARGETS)


def test_every_figure_has_its_files(of_runs: Path) -> None:
    assert len(FIGURES) == 6
    for target in FIGURES:
        starts = {".png": b"\x89PNG", ".svg": b"<?xml", ".pdf": b"%PDF"}
        for suffix, start in starts.items():
            assert (of_runs / "figures" / f"{target.id}{suffix}").read_bytes().startswith(start)
    assert len(list((of_runs / "figures").glob("*.csv"))) == len(TARGETS)


def test_in_the_browser_every_figure_is_drawn_and_nothing_is_complained_of(page: webdriver.Chrome) -> None:
    assert errors(page) == []
    panels = page.find_elements(By.CSS_SELECTOR, "figure.chart .panel")
    assert len(panels) >= 2 * len(FIGURES)
    drawn = "return [...document.querySelectorAll('figure.chart .panel')].every(one => one.querySelector('.main-svg'))"
    for panel in panels:
        page.execute_script("arguments[0].scrollIntoView()", panel)
    WebDriverWait(page, 20).until(lambda browser: browser.execute_script(drawn))
    for panel in panels:
        wanted = json.loads(page.find_element(By.ID, panel.get_attribute("data-figure")).get_attribute("textContent"))
        assert page.execute_script("return arguments[0].data.length", panel) == len(wanted["data"])
        assert len(panel.get_attribute("aria-label")) > 40
    assert errors(page) == []


def test_the_theme_follows_the_system_and_the_button(of_runs: Path, page: webdriver.Chrome) -> None:
    def theme(browser: webdriver.Chrome) -> str:
        return str(browser.execute_script("return document.documentElement.dataset.theme"))

    assert theme(page) == "light"
    button = page.find_element(By.ID, "theme")
    light = page.execute_script("return getComputedStyle(document.body).backgroundColor")
    button.send_keys(Keys.ENTER)
    assert theme(page) == "dark" and button.get_attribute("aria-pressed") == "true"
    assert page.execute_script("return getComputedStyle(document.body).backgroundColor") != light
    button.send_keys(Keys.ENTER)
    assert theme(page) == "light"
    with chromium(dark=True) as browser:
        browser.get((of_runs / "report.html").as_uri())
        assert theme(browser) == "dark" and errors(browser) == []


def test_on_a_narrow_screen_nothing_is_wider_than_it(of_runs: Path, of_checkpoint: Path) -> None:
    with chromium(width=400, height=800) as browser:
        for folder in (of_runs, of_checkpoint):
            browser.get((folder / "report.html").as_uri())
            for panel in browser.find_elements(By.CSS_SELECTOR, ".panel"):
                browser.execute_script("arguments[0].scrollIntoView()", panel)
            assert browser.execute_script("return document.documentElement.scrollWidth") <= 400


def test_a_cell_of_the_map_opens_its_head(of_checkpoint: Path, models: Path) -> None:
    told = run_carrier("inspect", str(models / "stories260K.bin"), "--tokenizer", str(models / "tok512.bin"), "--json")
    heads = json.loads(told.stdout)["heads"]
    with chromium() as browser:
        browser.get((of_checkpoint / "report.html").as_uri())
        cells = browser.find_elements(By.CSS_SELECTOR, "#heads-map button")
        assert len(cells) == len(heads)
        for shown, key in (("key", "key_fraction"), ("query", "query_fraction"), ("offset", "offset")):
            choose(browser, shown)
            numbers = [float(cell.text) for cell in cells]
            assert numbers == [pytest.approx(head[key], abs=0.00501) for head in heads]
        choose(browser, str(heads[0]["lengths"][-1]))
        assert [float(cell.text) for cell in cells] == [
            pytest.approx(head["laws"]["exact"][-1], abs=0.00501) for head in heads
        ]
        cells[4].send_keys(Keys.ENTER)
        assert browser.switch_to.active_element.get_attribute("id") == "head-title"
        assert f"offset {heads[4]['offset']}" in browser.find_element(By.ID, "head-title").text
        law = browser.execute_script("return document.getElementById('head-dilution').data[0]")
        assert law["x"] == heads[4]["lengths"] and law["y"] == heads[4]["laws"]["exact"]
        profile = browser.execute_script("return document.getElementById('head-profile').data[0]")
        highest = max(zip(profile["y"], profile["x"], strict=True))[1]
        assert highest == heads[4]["profile_offset"]
        kernel = browser.execute_script("return document.getElementById('head-kernel').data[0]")
        at = dict(zip(kernel["x"], kernel["y"], strict=True))
        assert at[0] == pytest.approx(1, abs=1e-12) and at[3] == at[-3] < 1
        assert errors(browser) == []


def test_one_run_is_a_map_of_its_heads_with_what_was_observed(tmp_path: Path) -> None:
    store, spec = Store.open(tmp_path / "runs"), tiny_spec(heads=1)
    sweep([spec], store)
    done = run_carrier("report", str(store.path(spec)), "--out", str(tmp_path / "report"), "--json")
    told = json.loads(done.stdout)
    assert told["heads"] == [{"layer": 0, "head": 0, "offset": -spec.offset}] and told["targets"] == []
    text = (tmp_path / "report" / "report.html").read_text()
    cell = json.loads(re.search(r'id="heads-data">(.*?)</script>', text)[1])["heads"][0]
    seen = store.load(spec).evaluation
    assert cell["observed"] == [
        [one.length, one.attention[spec.offset], one.attention_error[spec.offset]] for one in seen
    ]


def test_runs_that_belong_to_no_target_have_a_report_too(tiny_store: Store, tmp_path: Path) -> None:
    done = run_carrier("report", str(tiny_store.root), "--out", str(tmp_path), "--json")
    told = json.loads(done.stdout)
    assert told["targets"] == [] and len(told["absent"]) == len(TARGETS)
    text = (tmp_path / "report.html").read_text()
    for path in tiny_store.paths():
        assert path.name in text


def test_without_runs_and_checkpoint_the_statements_and_the_carrier_stand(tmp_path: Path) -> None:
    done = run_carrier("report", "--json", cwd=tmp_path)
    told = json.loads(done.stdout)
    assert told["statements"] == len(STATEMENTS) and told["files"] == ["report/report.html"]


def broken(store: Store, root: Path, how: str) -> Path:
    """A copy of a folder of runs that is damaged in a way."""
    shutil.copytree(store.root, root)
    run = next(path for path in root.iterdir() if path.is_dir())
    record = run / "run.json"
    if how == "cut":
        weights = run / "weights.safetensors"
        weights.write_bytes(weights.read_bytes()[:-1])
    elif how == "newer":
        record.write_text(record.read_text().replace("{", '{"gradient": "exact",', 1))
    return root


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("empty", "holds no runs and no checkpoint: `carrier reproduce all"),
        ("cut", "was altered or cut"),
        ("newer", "'gradient', which this version of carrier does not know: a newer one wrote it"),
        ("absent", "is not there: give a folder of runs, one run, or a checkpoint"),
    ],
)
def test_what_cannot_be_reported_is_one_line_and_overwrites_nothing(
    tiny_store: Store, tmp_path: Path, how: str, said: str
) -> None:
    out = tmp_path / "report"
    out.mkdir()
    (out / "report.html").write_text("the one before")
    place = tmp_path / "runs"
    if how == "empty":
        place.mkdir()
    elif how != "absent":
        broken(tiny_store, place, how)
    done = run_carrier("report", str(place), "--out", str(out))
    assert done.returncode == 2 and done.stderr.count("\n") == 1 and said in done.stderr, done.stderr
    assert [path.name for path in out.iterdir()] == ["report.html"]
    assert (out / "report.html").read_text() == "the one before"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("RUNS", "--layer", "1"), "--layer belongs to a checkpoint, and RUNS holds runs: drop it"),
        (("RUNS", "--preset", "huge"), "unknown preset 'huge': give smoke or paper"),
        (("RUN", "--preset", "smoke"), "--preset belongs to a folder of runs, and RUN is one run: drop it"),
        (("LEARNED",), "adds positions to its embedding"),
        (("RUNS", "--out", "/proc/report"), "cannot write to /proc/report"),
    ],
)
def test_bad_input_is_one_line(tiny_store: Store, tmp_path: Path, arguments: tuple[str, ...], said: str) -> None:
    names = {
        "RUNS": str(tiny_store.root),
        "RUN": str(tiny_store.path(tiny_spec())),
        "LEARNED": str(tiny_store.path(tiny_spec(encoding=LearnedPositions()))),
    }
    done = run_carrier("report", *(names.get(one, one) for one in arguments), cwd=tmp_path)
    assert done.returncode == 2 and done.stderr.count("\n") == 1, done.stderr
    for name, place in names.items():
        said = re.sub(rf"\b{name}\b", place.replace("\\", r"\\"), said)
    assert said in done.stderr, done.stderr
    assert list(tmp_path.iterdir()) == []


def choose(browser: webdriver.Chrome, value: str) -> None:
    """Pick what the cells of the map show."""
    browser.find_element(By.CSS_SELECTOR, f'#heads-shown option[value="{value}"]').click()


class Links(HTMLParser):
    """What a page points to, by element."""

    def of(self, text: str) -> dict[str, list[str]]:
        self.found: dict[str, list[str]] = {"script": [], "link": [], "img": [], "a": []}
        self.feed(text)
        return self.found

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if tag in self.found and (place := given.get("src") or given.get("href")):
            self.found[tag].append(place)
