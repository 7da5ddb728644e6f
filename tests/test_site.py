"""The site is made of all pages without a warning, leads nowhere that is not there, and fetches nothing."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from urllib.parse import unquote

import pytest
from lxml import etree, html

TOP = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Made as `make docs` does."""
    for module in ("sphinx", "myst_parser", "furo"):
        pytest.importorskip(module, reason="needs the docs extra")
    made = tmp_path_factory.mktemp("site")
    (command,) = re.findall(
        r"^\t\$\(BIN\)/python (-m sphinx .*) docs build/docs$", (TOP / "Makefile").read_text(), re.M
    )
    words = [str(made / "trees") if word == "build/doctrees" else word for word in command.split()]
    said = subprocess.run(
        [sys.executable, *words, "docs", made / "html"],
        cwd=TOP,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert said.stderr == ""
    assert said.returncode == 0
    return made / "html"


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[Path, etree._Element]:
    """All pages, parsed."""
    return {path: html.fromstring(path.read_bytes()) for path in site.rglob("*.html")}


def test_every_page_is_on_the_site(site: Path, pages: dict[Path, etree._Element]) -> None:
    # Given the pages of docs/; Expect each, and in the navigation of the first one
    names = {path.stem for path in (TOP / "docs").glob("*.md")}
    assert {path.stem for path in pages} >= names
    listed = {Path(href).stem for href in pages[site / "index.html"].xpath("//nav//a/@href | //aside//a/@href")}
    assert names - listed <= {"index"}


def test_no_link_is_dead(pages: dict[Path, etree._Element]) -> None:
    # Given all links of the site to itself
    ids = {path: set(tree.xpath("//@id")) for path, tree in pages.items()}
    dead, count = [], 0
    for path, tree in pages.items():
        for href in tree.xpath("//a/@href"):
            if re.match(r"[a-z]+:", href):
                continue
            count += 1
            file, _, anchor = unquote(href).partition("#")
            target = (path.parent / file).resolve() if file else path
            if not target.exists() or (anchor and target in ids and anchor not in ids[target]):
                dead.append(f"{path.name}: {href}")
    # Expect each to lead somewhere
    assert count > 1000
    assert dead == []


def test_nothing_is_fetched_from_elsewhere(pages: dict[Path, etree._Element]) -> None:
    # Given what browsers load by themselves; Expect all of it on the site
    loaded = {
        source
        for tree in pages.values()
        for source in tree.xpath("//script/@src | //img/@src | //link[@rel='stylesheet']/@href | //iframe/@src")
    }
    assert loaded
    assert {source for source in loaded if re.match(r"(?:[a-z]+:)?//", source)} == set()


def test_docstrings_are_read_as_they_are_meant(site: Path, pages: dict[Path, etree._Element]) -> None:
    # Given the page made of docstrings; Expect what stands in backticks there as code, and nothing between asterisks
    api = pages[site / "api.html"]
    assert "flush" in {code.text_content() for code in api.xpath("//dd//code")}
    assert api.xpath("//*[@id='jbi_pubsub.SubscriberAdapter.register_subscriber']")
    assert [each.text_content() for each in api.xpath("//dd//*[contains(@class, 'problematic')]")] == []


def test_commands_are_made_when_the_site_is(site: Path, pages: dict[Path, etree._Element]) -> None:
    # Given the page of commands, which holds nothing but a mark for them; Expect them there
    assert pages[site / "commands.html"].xpath("//*[@id='jbi-subscribe']//td//code[contains(., '--predicate')]")
