"""The pages of studies in a real headless browser: at both widths, in both colours, on paper, and sorted.

What they show is hostile throughout: a page that takes a name for markup fails here.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import browsing
import pytest
from browsing import needs_chromium

from jbi_pubsub.lookup.entry import EntryRep, define
from jbi_pubsub.spark import dataset, page, report, result
from jbi_pubsub.spark.dataset import Contracts, PublicationRow, RegistrationRow, SubscriptionRow
from jbi_pubsub.spark.plots import Plot, Series, drawn
from jbi_pubsub.spark.result import StudyRun
from jbi_pubsub.spark.studies import bandwidth, comparison, contracts, fanout
from jbi_pubsub.spark.studies.match import match_study
from jbi_pubsub.spark.studies.study import Options, data_in, run

sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed (extra test)")
pytest.importorskip("pyarrow", reason="needs the spark extra")
pytest.importorskip("matplotlib", reason="needs the spark extra")

pytestmark = [pytest.mark.processes, needs_chromium]

HOSTILE: Final = "<img src=x onerror=alert(1)></script><script>alert(2)</script>$\\frac{"
LONG: Final = "https://example.org/" + "one-name-without-a-space" * 40
SUBSCRIPTIONS: Final = 250
STUDIES: Final = ("fanout", "bandwidth", "match", "made-up", "compare", "nothing")
PAPER: Final = 718
"""CSS pixels between the margins (1 cm) of A4 upright."""

WIDER: Final = """() => [...document.querySelectorAll('body *')].filter(e => {
    const box = e.getBoundingClientRect(), paper = matchMedia('print').matches;
    const rolls = !paper && e.parentElement.closest('.wide, figure');
    return box.width > 0 && !rolls && !e.closest('svg') && (box.right > innerWidth + 1 || box.left < -1);
}).map(e => e.outerHTML.slice(0, 200))"""
"""Elements beyond the edges of the window, and not in a part that rolls."""
OVERLAPPING: Final = """() => [...document.querySelectorAll('svg')].flatMap(svg => {
    const texts = [...svg.querySelectorAll('text')], found = [], edge = svg.getBoundingClientRect();
    const upright = texts.filter(t => !/rotate\\((?!-?0\\b)/.test(t.getAttribute('transform') || ''));
    const boxes = upright.map(t => t.getBoundingClientRect());
    for (let i = 0; i < boxes.length; i++) for (let j = i + 1; j < boxes.length; j++) {
        const a = boxes[i], b = boxes[j];
        if (a.left < b.right - 1 && b.left < a.right - 1 && a.top < b.bottom - 3 && b.top < a.bottom - 3)
            found.push([upright[i].textContent, upright[j].textContent]);
    }
    return found.concat(texts.filter(t => t.getBoundingClientRect().right > edge.right + 1).map(t => t.textContent));
})"""
"""Texts of plots that lie on each other, or go beyond their plot."""


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page of each kind: hostile and long names, more rows than a page has, numbers of many digits."""
    home = tmp_path_factory.mktemp("pages")
    cls = define("x.Y", {"a": str})
    registrations = tuple(
        RegistrationRow(
            registration=f"{HOSTILE}{n}", delegate=(HOSTILE, LONG)[n % 2], type=f"{HOSTILE}{n % 3}",
            entries=(EntryRep(cls, ((HOSTILE, LONG)[n % 2],)),),
        )
        for n in range(4)
    )  # fmt: skip
    subscriptions = tuple(
        SubscriptionRow(
            subscription=f"{HOSTILE}{n}", subscriber=(LONG, HOSTILE, f"app {n}")[n % 3], predicate=f"//x > {n}"
        )
        for n in range(SUBSCRIPTIONS)
    )
    published = [
        PublicationRow(
            f"{HOSTILE}{n}", registrations[n % 4].type, "1.0", float(n), registrations[n % 4].registration,
            f"<t><x>{(n * 37) % 300}</x></t>".encode(), 10 ** (8 - n),
        )
        for n in range(9)
    ]  # fmt: skip
    dataset.write(home / "data", Contracts(registrations, subscriptions), published, source="test")
    data = data_in(home / "data")
    for study in (fanout.STUDY, bandwidth.STUDY):
        run(study, data, home / study.name, Options(engine="local"))
    run(fanout.STUDY, data, home / "more", Options(engine="local", parameters={"delegates": 9}))
    how = StudyRun(input="test", engine="local")
    result.finish(report.claim(home / "match"), contracts.match(data.contracts), how)
    result.finish(report.claim(home / "compare"), comparison.compare(home / "fanout", home / "more"), how)
    dataset.write(home / "nobody", Contracts(registrations), published, source="test")
    run(bandwidth.STUDY, data_in(home / "nobody"), home / "nothing", Options(engine="local"))
    match_study(registrations=2_000, templates=500, seed=1, out=home / "made-up", engine="local")
    return home


@pytest.fixture(scope="module")
def tab() -> Iterator[Tab]:
    with browsing.browser() as browser:
        yield Tab(browser.new_page())


@pytest.fixture
def browser(tab: Tab) -> Iterator[Tab]:
    """Fails a test whose page complained, asked for something elsewhere, or ran what it was shown."""
    yield tab
    tab.page.goto("about:blank")
    troubles, tab.troubles = tab.troubles, []
    assert troubles == []


class Tab:
    """The one of the browser, and what its pages did that they should not."""

    def __init__(self, page: Any) -> None:
        self.page, self._own = page, "about:blank"
        self.troubles: list[str] = []
        page.on("console", lambda m: self.troubles.append(m.text))
        page.on("pageerror", lambda e: self.troubles.append(str(e)))
        page.on("dialog", lambda d: (self.troubles.append(f"dialog {d.message}"), d.dismiss()))
        page.on("request", lambda r: self.troubles.append(r.url) if r.url not in (self._own, "about:blank") else None)

    def open(self, folder: Path, *, width: int = 1280, scheme: str = "light", medium: str = "screen") -> Any:
        """A report as it is on a screen, or on paper."""
        self._own = (folder / "report.html").as_uri()
        self.page.set_viewport_size({"width": width, "height": 800})
        self.page.emulate_media(media=medium, color_scheme=scheme)
        self.page.goto(self._own)
        return self.page


@pytest.mark.parametrize("study", STUDIES)
def test_nothing_is_cut_or_lies_on_another_at_any_width_or_on_paper(study: str, folders: Path, browser: Tab) -> None:
    for width, scheme, medium in ((1280, "light", "screen"), (390, "dark", "screen"), (PAPER, "light", "print")):
        shown = browser.open(folders / study, width=width, scheme=scheme, medium=medium)
        at = (study, width, medium)
        assert (at, shown.evaluate(WIDER)) == (at, [])
        assert (at, shown.evaluate(OVERLAPPING)) == (at, [])
        assert shown.locator("img, body script[src], figure:empty").count() == 0
        ink = shown.evaluate("getComputedStyle(document.querySelector('svg text')).fill")
        assert ink == {"light": "rgb(0, 0, 0)", "dark": "rgb(255, 255, 255)"}[scheme]


def test_a_long_table_has_its_first_rows_and_sorts_by_numbers(folders: Path, browser: Tab) -> None:
    shown = browser.open(folders / "fanout")
    region = shown.get_by_role("region", name="Subscriptions by what they get")
    rows = region.locator("tbody tr")

    def column() -> list[int]:
        return [int(text.replace(",", "")) for text in rows.locator("td:last-child").all_inner_texts()]

    # Given more rows than a page has; Expect the first, and where the rest is
    assert rows.count() == page.ROWS_MOST
    assert shown.get_by_text("tables/subscriptions.csv").count() == 1
    # When sorted by a number, both ways, by the keyboard; Expect its order to be that of numbers, and said
    button = region.get_by_role("button", name="bytes")
    button.click()
    assert column() == sorted(column(), reverse=True)
    assert len(str(max(column()))) > len(str(min(column())))
    button.press("Enter")
    assert column() == sorted(column())
    assert region.locator("th[aria-sort=ascending]").count() == 1
    # Expect names as text, and long ones cut, with a word of it
    shown.get_by_role("region", name="Delegates as they are").get_by_text(HOSTILE, exact=True).wait_for()
    assert "of texts the first 300 characters" in shown.inner_text("body")


def test_a_plot_of_nothing_says_so(folders: Path, browser: Tab) -> None:
    shown = browser.open(folders / "nothing")

    assert shown.locator("svg text", has_text="nothing").count() == 2
    assert shown.locator("svg text").count() == 4  # with their titles: no ticks, no legend


def test_a_plot_is_the_same_bytes_each_time() -> None:
    # Given a plot with several series, one with a band
    line = Series("a", (1.0, 2.0, 3.0), (3.0, 1.0, 2.0), low=(2.0, 0.5, 1.0), high=(4.0, 2.0, 3.0))
    plot = Plot(name="p", title="t", kind="lines", x="x", y="y", series=(line, Series("b", (1.0, 2.0), (1.0, 4.0))))
    # When it is drawn twice; Expect the same SVG and PNG
    assert drawn(plot) == drawn(plot)
    # and others for other data
    assert drawn(plot)[0] != drawn(Plot(name="p", title="t", kind="lines", x="x", y="y", series=(line,)))[0]
