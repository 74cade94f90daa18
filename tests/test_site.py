"""The site of the documentation: it builds without a warning, and what it links to is there."""

from __future__ import annotations

import html
import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from conftest import ROOT

import theory
from bridge.findings import statement_page
from theory.statements import STATEMENTS
from theory.statements.statement import Verdict, check


class Page(HTMLParser):
    """What a page links to, which pictures and files it loads, and its anchors."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.files: list[str] = []
        self.anchors: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.anchors |= {given["id"]} if "id" in given else set()
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        self.files += [given["src"]] if "src" in given else []
        if tag == "link" and given.get("rel") == "stylesheet":
            self.files.append(given["href"])


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built as `make docs` does it, from a copy of the folder since pages are written into it."""
    folder = tmp_path_factory.mktemp("site")
    written = shutil.ignore_patterns("statements", "__pycache__", "*.csv", "build")
    shutil.copytree(ROOT / "docs", folder / "docs", ignore=written)
    built = build(folder / "docs", folder / "html")
    assert built.returncode == 0, built.stdout + built.stderr
    return folder / "html"


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[Path, Page]:
    """Every page of the site."""
    return {path: Page(path.read_text()) for path in sorted(site.rglob("*.html"))}


def build(source: Path, target: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-b", "html", str(source), str(target)]
    environment = dict(os.environ) | {"PYTHONPATH": str(ROOT)}
    return subprocess.run(command, env=environment, capture_output=True, text=True)


def broken(pages: dict[Path, Page]) -> list[str]:
    """Links and files that lead nowhere, within the site."""
    missing = []
    for path, page in pages.items():
        for link in (*page.links, *page.files):
            parts = urlsplit(link)
            if parts.scheme:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            anchors = pages[target].anchors if target in pages else set()
            if not target.is_file() or (parts.fragment and unquote(parts.fragment) not in anchors):
                missing.append(f"{path.name}: {link}")
    return missing


def test_every_link_anchor_and_picture_is_there(pages: dict[Path, Page]) -> None:
    assert len(pages) > 60 and sum(len(page.links) for page in pages.values()) > 1000
    assert broken(pages) == []


def test_a_link_that_leads_nowhere_is_found(tmp_path: Path) -> None:
    """The check itself: a page, an anchor and a picture that are not there, beside ones that are."""
    (tmp_path / "one.html").write_text(
        '<a id="x" href="two.html#y"></a><a href="#x"></a><img src="no.png"><a href="#z">'
    )
    (tmp_path / "two.html").write_text('<a href="one.html#x"></a><a href="https://nowhere"></a><a href="three.html">')
    found = broken({path: Page(path.read_text()) for path in sorted(tmp_path.glob("*.html"))})
    assert found == ["one.html: two.html#y", "one.html: #z", "one.html: no.png", "two.html: three.html"]


def test_each_statement_has_a_page_with_its_verdicts_and_the_table_names_them(site: Path) -> None:
    table = visible(site / "statements" / "index.html")
    for statement in STATEMENTS:
        text = visible(site / "statements" / f"{statement.id}.html")
        wordings = {"printed": statement.printed, "amended": statement.amended}
        made = {name: wording for name, wording in wordings.items() if wording is not None}
        said = [statement.label, f"carrier verify {statement.id}"]
        said += [f"As {name}: {wording.recorded.value}" for name, wording in made.items()]
        said += [wording.claim for wording in made.values()]
        said += [f"{assumption.id}: {assumption.text}" for assumption in statement.assumptions]
        said += [example.text for example in statement.counterexamples()]
        assert [part for part in said if words(part) not in text] == []
        printed = "-" if statement.printed is None else statement.printed.recorded.value
        assert f"{words(statement.label)} {printed} {statement.amended.recorded.value}" in table
    assert "carrier verify lemma-1" not in visible(site / "statements" / "lemma-2.html")


def test_a_verdict_on_a_page_is_the_one_that_is_computed() -> None:
    """Not the one on record: a claim whose record is wrong has a page that says what was found."""
    (lemma,) = (one for one in STATEMENTS if one.id == "lemma-1")
    wrong = replace(lemma, amended=replace(lemma.amended, recorded=Verdict.REFUTED))
    assert "## As amended: proved" in statement_page(wrong, check(wrong))
    unproved = replace(lemma, amended=replace(lemma.amended, prove=None))
    assert "## As amended: checked numerically" in statement_page(unproved, check(unproved))


def test_every_public_name_of_the_theory_stands_on_exactly_one_page_of_the_api(site: Path) -> None:
    anchors = [name for path in (site / "api").glob("*.html") for name in Page(path.read_text()).anchors]
    count = Counter(name.removeprefix("theory.") for name in anchors if re.fullmatch(r"theory\.\w+", name))
    assert {name: count[name] for name in theory.__all__} == dict.fromkeys(theory.__all__, 1)


def test_no_page_says_when_or_where_it_was_built(site: Path) -> None:
    for path in site.rglob("*.html"):
        text = path.read_text()
        assert str(ROOT) not in text and "Last updated" not in text, path


def visible(page: Path) -> str:
    """The words of a page without its marks."""
    return words(re.sub(r"<[^>]+>", " ", page.read_text()))


def words(text: str) -> str:
    """A text without the marks and spaces that typesetting changes."""
    return re.sub(r" ([:.,])", r"\1", " ".join(re.sub(r"[`*]", "", html.unescape(text)).split()))
