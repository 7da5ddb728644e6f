"""The console as its users meet it: `jbi web` as a process, in a real headless browser.

Names, types and predicates of the federation are hostile throughout: a page that takes one for markup fails here.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, Final

import browsing
import pytest
from browsing import needs_chromium, picture

from jbi_pubsub import SubscriberAdapter

sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed (extra test)")
pytest.importorskip("nicegui", reason="NiceGUI is not installed (extra web)")

pytestmark = [pytest.mark.processes, needs_chromium]

TYPE: Final = "mil.af.rl.jbi.Intel_Imagery"
HOSTILE: Final = "<img src=x onerror=alert(1)></script>"
SUBSCRIPTIONS: Final = 30
PAGES: Final = (
    "", "servers", "subscriptions", "plots", "networks", "domains", "objects", "archive", "explain", "administration",
    "node", "client",
)  # fmt: skip

WIDER: Final = """() => [...document.querySelectorAll('#app *')].filter(e => {
    const box = e.getBoundingClientRect();
    const out = box.right > innerWidth + 1 || box.left < -1;
    return box.width > 0 && out && !e.closest('pre, .nicegui-skip-link');
}).map(e => e.outerHTML.slice(0, 200))"""
"""Elements beyond the edges of the window."""
OVERLAPPING: Final = """() => {
    const texts = [...document.querySelectorAll('.jbi-drawing text')].filter(t => t.getBoundingClientRect().width > 0);
    const boxes = texts.map(t => t.getBoundingClientRect()), found = [];
    for (let i = 0; i < boxes.length; i++) for (let j = i + 1; j < boxes.length; j++) {
        const a = boxes[i], b = boxes[j];
        if (a.left < b.right - 1 && b.left < a.right - 1 && a.top < b.bottom - 2 && b.top < a.bottom - 2)
            found.push([texts[i].textContent, texts[j].textContent]);
    }
    for (const box of document.querySelectorAll('.jbi-drawing .box'))
        for (const text of box.querySelectorAll('text'))
            if (text.getBoundingClientRect().right > box.querySelector('rect').getBoundingClientRect().right + 1)
                found.push(['cut', text.textContent]);
    return found;
}"""
"""Texts of the picture that lie on each other, or go beyond their box."""
COLOURED: Final = "colour => getComputedStyle(document.body).backgroundColor === colour"
DRAWN: Final = "() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))"


SHIFTED: Final = """window.shifted = 0;
new PerformanceObserver(list => list.getEntries().forEach(e => { if (!e.hadRecentInput) window.shifted += e.value; }))
    .observe({type: 'layout-shift', buffered: true});"""
"""Script that sums up the layout shifts of a page (W3C Layout Instability; good is below 0.1)."""


@dataclass
class Watched:
    """A console over a federation, and what its browser has noticed."""

    federation: Any
    figures: Any
    base: str
    browser: Any
    context: Any
    camera: Any
    registration: str
    uid: str
    pads: list[Any]
    troubles: list[str] = field(default_factory=list)
    elsewhere: set[str] = field(default_factory=set)

    def open(self, path: str = "", *, width: int = 1280, scheme: str = "light", beside: bool = False) -> Any:
        """A page in a browser that has a session: in its first tab, or in another one beside that."""
        tabs = self.context.pages
        page = self._tab() if beside or not tabs else tabs[0]
        page.set_viewport_size({"width": width, "height": 800})
        page.emulate_media(color_scheme=scheme)
        page.goto(f"{self.base}/{path}")
        page.get_by_role("heading", level=1).wait_for()
        return page

    def subscribes(self) -> bool:
        """Whether the console does, for pages that look at the objects of a type."""
        return any(s["name"] == "console" and s["subscriptions"] for s in self.pads[0].overview()["sessions"])

    def leave(self) -> None:
        """Every page: nobody looks on, and one tab is kept."""
        for page in self.context.pages[1:]:
            page.close()
        for page in self.context.pages:
            page.goto("about:blank")

    def _tab(self) -> Any:
        page = self.context.new_page()
        page.add_init_script(SHIFTED)
        page.set_default_timeout(60_000)
        page.on("console", lambda m: self.troubles.append(m.text) if m.type in ("error", "warning") else None)
        page.on("pageerror", lambda e: self.troubles.append(str(e)))
        page.on("dialog", lambda d: (self.troubles.append(f"dialog {d.message}"), d.dismiss()))
        page.on("request", lambda r: self.elsewhere.add(r.url) if not r.url.startswith(self.base) else None)
        return page


@pytest.fixture(scope="module")
def watched(fixtures: Any, world: str) -> Iterator[Watched]:
    """Three delegates, their publishers, a peer, a subscriber with many subscriptions; the console, entered."""
    with ExitStack() as stack:
        federation = fixtures.Federation(fixtures.test_config(), stack)
        lookup = federation.lookups[0]
        figures = fixtures.Figures()
        pads = [federation.pad(HOSTILE if n == 1 else f"alpha{n}", "rome") for n in range(3)]
        for number, pad in enumerate(pads):
            light = federation.light(name=f"{HOSTILE}{number}")
            delegate = light.connect_to_delegate(*pad.characteristics)
            registration = light.register_publisher(delegate, figures.schema, figures.figure_1)
        peer = federation.peer()
        peer.register_publisher(figures.schema, figures.metadata(publisher=HOSTILE.replace("<", "&lt;")))
        subscriber = stack.enter_context(SubscriberAdapter(federation.config, name=HOSTILE))
        for number in range(SUBSCRIPTIONS - 1):
            subscriber.register_subscriber(type_name=TYPE, version="1.0", predicate=f"//Area='{HOSTILE}{number}'")
        uid = subscriber.register_subscriber(type_name=TYPE, version="1.0", predicate="//lat > 33")
        fixtures.eventually(lambda: all(p.overview()["counts"]["subscriptions"] == SUBSCRIPTIONS for p in pads))
        command = [sys.executable, "-m", "jbi_pubsub", "--no-multicast", "--group", world, "--locator", lookup.address]
        web = stack.enter_context(
            subprocess.Popen([*command, "web", "--port", "0", "--admin", "--json"], stdout=subprocess.PIPE, text=True)
        )
        stack.callback(web.terminate)
        assert web.stdout is not None
        ready = json.loads(web.stdout.readline())
        base = ready["url"].partition("/enter")[0]
        browser = stack.enter_context(browsing.browser())
        context = browser.new_context()
        made = Watched(federation, figures, base, browser, context, light, registration, uid, pads)
        made.open(ready["url"].removeprefix(f"{base}/"))
        assert json.loads(web.stdout.readline())["url"] != ready["url"]  # the next browser's
        yield made


@pytest.fixture
def console(watched: Watched) -> Iterator[Watched]:
    """The same; fails a test in which a page complained, asked for something elsewhere, or ran what it was shown."""
    yield watched
    watched.leave()
    troubles, watched.troubles = watched.troubles, []
    assert troubles == []
    assert watched.elsewhere == set()


def test_every_page_fits_its_window_and_what_comes_later_moves_nothing(console: Watched) -> None:
    one = f"subscription?uid={console.uid}"
    known = dict.fromkeys(("", "servers", "subscriptions", "domains"), ", rome") | {one: "//lat > 33"}
    windows = [(1280, "light"), (390, "dark")]
    for name in (*PAGES, one):
        # Given a page in a window, which is another one each time, and what it learns of the federation on it
        windows.reverse()
        page = console.open(name, width=windows[0][0], scheme=windows[0][1])
        if name in known:
            page.wait_for_function("text => document.querySelector('main').textContent.includes(text)", arg=known[name])
        page.evaluate(DRAWN)
        # Expect nothing that was there to have moved, and nothing to be cut, or to lie on another in either window
        assert page.evaluate("window.shifted") < 0.1, (name, windows[0])
        for width, scheme in windows:
            page.set_viewport_size({"width": width, "height": 800})
            page.emulate_media(color_scheme=scheme)
            page.wait_for_function(COLOURED, arg="rgb(18, 23, 29)" if scheme == "dark" else "rgb(255, 255, 255)")
            page.evaluate(DRAWN)
            assert page.evaluate(WIDER) == [], (name, width)
            assert page.evaluate(OVERLAPPING) == [], (name, width)
            assert page.evaluate("document.documentElement.scrollWidth") <= width, name
            picture(page, f"{name.partition('?')[0] or 'overview'}-{width}", whole=False)
        assert page.locator("img[src=x]").count() == 0


@pytest.mark.parametrize("width", [1280, 390])
def test_objects_that_come_move_nothing_that_is_there(
    console: Watched, width: int, eventually: Callable[..., Any]
) -> None:
    # Given nobody who looks on any more, since who does shares what has come
    eventually(lambda: not console.subscribes())
    page = console.open(f"objects?type={TYPE} 1.0", width=width)
    page.get_by_role("button", name="Show its objects").click()
    page.get_by_text("0 objects have come").wait_for()
    for number in range(3):
        metadata = console.figures.metadata(Area="x" * 1_000 * number, lat="35.5", long="69.5")
        console.camera.publish(console.registration, metadata, b"payload")
        page.get_by_text(f"{number + 1} objects have come").wait_for()
    assert page.evaluate("window.shifted") < 0.1


def test_the_overview_shows_who_publishes_what_to_whom(console: Watched) -> None:
    page = console.open()
    drawing = page.locator(".jbi-wide .jbi-drawing")
    drawing.locator("text", has_text="delegate alpha0, rome").wait_for()
    # Expect hostile names as they are, and a rate on an arrow once something is published
    assert drawing.locator("text", has_text="<img src=x oner").count() >= 3
    console.camera.publish(console.registration, console.figures.figure_1)
    page.wait_for_function("[...document.querySelectorAll('.jbi-wide .arrow.flows .rate')].length >= 2")
    # Expect a server to lead to its subscriptions
    drawing.get_by_role("link").filter(has_text="delegate alpha0").click()
    page.get_by_role("heading", name="Subscriptions", level=1).wait_for()
    page.get_by_text(f"{SUBSCRIPTIONS} subscriptions", exact=True).wait_for()


def test_a_keyboard_reaches_everything_with_a_visible_focus(console: Watched) -> None:
    page = console.open()
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent").startswith("Skip to main")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Overview"
    assert page.evaluate("getComputedStyle(document.activeElement).outlineWidth") == "3px"
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    page.get_by_role("heading", name="Servers", level=1).wait_for()
    assert page.get_by_role("navigation", name="Pages").locator("[aria-current=page]").inner_text() == "Servers"
    # and one main part, in which the menu is not
    assert page.locator("main").count() == 1
    assert page.locator("main nav").count() == 0


def test_colours_are_those_of_the_system_until_chosen(console: Watched) -> None:
    page = console.open(scheme="dark")
    button = page.get_by_role("button", name="Colours")
    button.click()
    page.wait_for_function("document.querySelector('[aria-label=Colours]').textContent.includes('dark')")
    button.click()
    page.wait_for_function("!document.body.classList.contains('body--dark')")
    # Expect the next page to remember, and a third click to give it back to the system
    page.goto(f"{console.base}/servers")
    page.get_by_role("heading", level=1).wait_for()
    page.wait_for_function("!document.body.classList.contains('body--dark')")
    page.get_by_role("button", name="Colours").click()
    page.wait_for_function("document.body.classList.contains('body--dark')")


def test_subscriptions_are_searched_and_come_page_by_page(console: Watched) -> None:
    page = console.open("subscriptions")
    page.get_by_text(f"{4 * SUBSCRIPTIONS} subscriptions", exact=True).wait_for()
    rows = page.locator("tbody tr:has(td a)")
    assert rows.count() == 25
    first = rows.first.inner_text()
    # Expect the next page to have others, and what is searched for alone
    page.get_by_role("button", name="Next page").click()
    page.get_by_text("26-50 of").wait_for()
    page.wait_for_function("first => document.querySelector('tbody tr:has(td a)').innerText != first", arg=first)
    assert rows.count() == 25
    page.get_by_label("Search").fill(f"{HOSTILE.upper()}7'")
    page.get_by_text("4 subscriptions", exact=True).wait_for()
    page.wait_for_function("document.querySelectorAll('tbody tr:has(td a)').length == 4")
    assert f"predicate //Area='{HOSTILE}7'" in rows.first.inner_text()
    # Expect an administrator to be led to the question with the whole id
    rows.first.get_by_role("link", name="Cancel").click()
    page.wait_for_url("**/administration?cancel=subscription-*")


def test_an_object_is_explained_for_a_subscription(console: Watched) -> None:
    page = console.open(f"explain?subscription={console.uid}")
    page.get_by_label("Metadata (XML)").fill(console.figures.figure_1.decode())
    page.get_by_role("button", name="Explain").click()
    page.get_by_role("heading", name="Delivered", level=2).first.wait_for()
    page.get_by_text("'33.34'").first.wait_for()
    # Expect an object elsewhere not to be, nonsense to be refused in words, and nothing to be asked for nobody
    page.get_by_label("Metadata (XML)").fill(console.figures.metadata(lat="10.0").decode())
    page.get_by_role("button", name="Explain").click()
    page.get_by_role("heading", name="Not delivered", level=2).first.wait_for()
    page.get_by_label("Metadata (XML)").fill(HOSTILE)
    page.get_by_role("button", name="Explain").click()
    page.get_by_text("the document: metadata is not well-formed XML").first.wait_for()
    page.get_by_label("or its id").fill("nobody")
    page.get_by_role("button", name="Explain").click()
    page.get_by_text("No delegate or peer publisher knows subscription nobody").wait_for()


def test_an_object_of_another_type_is_not_said_to_be_delivered(console: Watched) -> None:
    # Given an object of another type, whose document the subscribed type would take
    at = console.camera.connect_to_delegate("alpha0", "rome")
    other = console.camera.register_publisher(at, type_name="other", validate=False)
    published = console.camera.publish(other, console.figures.figure_1)
    console.camera.flush()
    # When it is explained by its id; Expect the answer to be of its own registration, as `jbi explain` has it
    page = console.open(f"explain?subscription={console.uid}&object={published}")
    page.get_by_role("button", name="Explain").click()
    page.get_by_text("the template asks for another type").wait_for()
    page.get_by_role("heading", name="Not delivered", level=2).wait_for()
    assert page.locator(".jbi-answer").count() == 1
    console.camera.unregister_publisher(other)


def test_the_last_objects_of_a_type_are_looked_at(console: Watched, eventually: Callable[..., Any]) -> None:
    page = console.open(f"objects?type={TYPE} 1.0")
    page.get_by_role("button", name="Show its objects").click()
    eventually(console.subscribes)
    hostile = HOSTILE.replace("<", "&lt;")
    metadata = console.figures.metadata(Area=hostile, lat="35.5", long="69.5")
    console.camera.publish(console.registration, metadata, f"payload {HOSTILE}".encode())
    # Expect it with metadata, payload, place and map
    page.locator("td", has_text="35.5, 69.5").wait_for()
    assert f"<Area>{hostile}" in page.get_by_label("Metadata").inner_text().replace("&gt;", ">")
    assert page.get_by_label("Payload").inner_text() == f"payload {HOSTILE}"
    assert page.locator("circle.dot").count() == 1
    page.get_by_role("button", name="Look at").first.click()
    # When the page is left; Expect the subscription to end
    page.close()
    eventually(lambda: not console.subscribes(), 30.0)


def test_an_administrator_acts_after_a_question(console: Watched, eventually: Callable[..., Any]) -> None:
    pad = console.pads[2]
    page = console.open("administration")
    drain = page.locator(".jbi-form", has_text="delegate alpha2, rome")
    # Expect nothing to happen when the answer is no
    drain.get_by_role("button", name="Drain").click()
    page.get_by_role("button", name="No, leave it").click()
    assert pad.status()["draining"] is False
    drain.get_by_role("button", name="Drain").click()
    page.get_by_role("button", name="Yes, do it").click()
    page.get_by_role("log").get_by_text("alpha2, rome is draining; 0 objects still wait.").wait_for()
    assert pad.status()["draining"] is True
    drain.get_by_role("button", name="Resume").click()
    page.get_by_role("button", name="Yes, do it").click()
    page.get_by_role("log").get_by_text("alpha2, rome takes publishers.").wait_for()
    # When a subscription is cancelled; Expect it gone everywhere, and what is nowhere to be said so
    one = pad.delegate.reports.page("", "number", 0, 1)["rows"][0]["uid"]
    brief = one.rpartition("-")[2][:12]  # as the table of subscriptions shows it
    page.get_by_label("Id of a subscription").fill(brief)
    page.get_by_role("button", name="Cancel it").click()
    page.get_by_text(f"Cancel {one} at all delegates?").wait_for()
    page.get_by_role("button", name="Yes, do it").click()
    page.get_by_role("log").get_by_text("Cancelled 3 times.").wait_for()
    page.get_by_role("button", name="Cancel it").click()
    page.get_by_role("log").get_by_text(f"Not done: no subscription {brief}").wait_for()
    assert pad.delegate.reports.page(one, "number", 0, 1)["total"] == 0
    # When a lookup service is told to join another; Expect it to
    page.get_by_label("Joins (host:port)").fill("127.0.0.1:1")
    page.get_by_role("button", name="Set locators").click()
    page.get_by_role("button", name="Yes, do it").click()
    page.get_by_role("log").get_by_text("joins 127.0.0.1:1.").wait_for()
    # and what it joins now to be shown
    page.locator(".jbi-form", has_text="lookup ").get_by_text(", joins 127.0.0.1:1").wait_for()
    assert console.federation.lookups[0]._presence.administered().locators == ("127.0.0.1:1",)


@pytest.mark.row("G-22", "G-28")
def test_the_test_client_publishes_subscribes_and_counts(console: Watched) -> None:
    page = console.open("client")
    one = page.locator("section[aria-label='Connection']")
    one.get_by_label("delegate").fill("alpha0, rome")
    one.get_by_role("button", name="Connect", exact=True).click()
    page.get_by_text("Connected.", exact=True).wait_for()
    # Given a subscriber, and five publishers of twenty objects each
    hears = page.locator("section[aria-label='New subscriber']")
    hears.get_by_label("type").fill("trial")
    hears.get_by_role("button", name="Add subscriber").click()
    page.get_by_role("button", name="Remove subscriber 1").wait_for()
    says = page.locator("section[aria-label='New publisher']")
    for label, text in (("type", "trial"), ("name", HOSTILE), ("metadata", "<t/>"), ("publishers", "5"),
                        ("count", "20"), ("delay ms", "10")):  # fmt: skip
        says.get_by_label(label, exact=True).fill(text)
    # Expect what is no number to be said, and an option to be chosen
    says.get_by_label("expiration ms").fill("soon")
    says.get_by_role("button", name="Add publisher").click()
    page.get_by_role("alert").get_by_text("expiration ms: 'soon' is not a number").wait_for()
    says.get_by_label("expiration ms").fill("")
    says.get_by_label("valid", exact=True).click()
    page.get_by_role("option", name="no", exact=True).click()
    says.get_by_role("button", name="Add publisher").click()
    # When it is started; Expect the counters of both to come to a hundred, and the log to be text
    page.get_by_role("button", name=f"Start {HOSTILE}").click()
    page.wait_for_function("""() => {
        const cells = [...document.querySelectorAll("section[aria-label='Panels'] tbody td")];
        return cells.filter(td => td.textContent === '100').length === 2;
    }""")
    assert "received" in page.get_by_label("Events").inner_text()
    assert page.locator("img[src=x]").count() == 0
    # When another tab looks; Expect the same panels, and one that is removed to be gone for both
    other = console.open("client", beside=True)
    other.get_by_role("button", name="Remove subscriber 1").click()
    page.get_by_role("button", name="Remove subscriber 1").wait_for(state="detached")
    page.get_by_role("button", name="Disconnect").click()
    page.get_by_text("Not connected.").wait_for()


def test_without_a_node_its_page_is_one_sentence(console: Watched) -> None:
    page = console.open("node")
    told = page.get_by_role("status").get_by_text("No node runs in this federation; a delegate alone is not a node")
    told.wait_for()
    assert told.get_attribute("class") == "jbi-note"  # it is no problem
    assert page.get_by_role("button", name="Shut the node down").count() == 0
    assert page.locator(".jbi-main section:visible").count() == 0
    page = console.open("networks")
    told = page.get_by_role("status").get_by_text("No node has networks")
    told.wait_for()
    assert told.get_attribute("class") == "jbi-note"


def test_lists_are_searched_and_sorted_by_keyboard(console: Watched) -> None:
    page = console.open("servers")
    servers = page.get_by_role("region", name="Servers").locator("tbody tr")
    page.wait_for_function("document.querySelectorAll('[aria-label=Servers] tbody tr').length >= 5")
    # Expect a head to sort by its figures, as figures: the delegates' subscriptions, and the peer's last
    head = page.get_by_role("region", name="Subscribers").locator("th", has_text="Delivered")
    head.focus()
    head.press("Enter")
    page.locator("th.sorted", has_text="Delivered").wait_for()
    # Expect the search of the page to leave out rows of all lists
    page.get_by_label("Search").fill("alpha2")
    page.wait_for_function("document.querySelectorAll('[aria-label=Servers] tbody tr').length == 1")
    assert "alpha2, rome" in servers.first.inner_text()
    page.get_by_label("Search").fill("nowhere")
    page.get_by_text("No match").first.wait_for()


def test_a_subscription_has_a_page(console: Watched) -> None:
    page = console.open(f"subscription?uid={console.uid}")
    # Expect what it wants in words and whole, its queues, and no loss
    page.get_by_text(f"type {TYPE} 1.0", exact=True).wait_for()
    assert page.get_by_label("Predicate").inner_text() == "//lat > 33"
    page.get_by_role("region", name="At each server").get_by_text("alpha0, rome").wait_for()
    page.get_by_text("Nothing was lost").wait_for()
    assert page.locator("canvas").count() == 2
    # Expect a pasted document to be explained for it
    page.get_by_label("Metadata (XML)").fill(console.figures.figure_1.decode())
    page.get_by_role("button", name="Explain").click()
    page.get_by_role("heading", name="Delivered", level=2).first.wait_for()
    # Expect an id that nobody has to be told
    page.goto(f"{console.base}/subscription?uid=nobody")
    page.get_by_text("No server has this subscription now").wait_for()


def test_on_a_phone_the_menu_is_one_row_until_it_is_opened(console: Watched) -> None:
    page = console.open("servers", width=390)
    assert page.locator(".jbi-header").bounding_box()["height"] < 60
    page.get_by_role("button", name="Menu").press("Enter")
    page.locator(".jbi-menu[aria-expanded=true]").wait_for()
    page.get_by_role("link", name="Plots").click()
    page.get_by_role("heading", name="Plots", level=1).wait_for()


def test_without_admin_these_pages_say_so_and_ctrl_c_ends_it(watched: Watched, world: str) -> None:
    lookup = watched.federation.lookups[0].address
    command = [sys.executable, "-m", "jbi_pubsub", "--no-multicast", "--group", world, "--locator", lookup]
    with subprocess.Popen(
        [*command, "web", "--port", "0"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as web:
        assert web.stdout is not None
        assert web.stderr is not None
        url = web.stdout.readline().split()[-1]
        page = watched.browser.new_context().new_page()
        page.goto(url)
        page.get_by_role("heading", level=1).wait_for()
        for name in ("Administration", "Node", "Client"):
            assert page.get_by_role("link", name=name, exact=True).count() == 0
        for path in ("administration", "node", "client"):
            page.goto(f"{url.partition('/enter')[0]}/{path}")
            page.get_by_text("It needs a console that was started by").wait_for()
            assert page.locator(".jbi-main button, .jbi-main input").count() == 0
        page.goto(url.partition("/enter")[0])
        page.get_by_role("heading", level=1).wait_for()
        # When it is interrupted with a page open; Expect it to end in order, soon, without a word
        began = time.monotonic()
        web.send_signal(signal.SIGINT)
        assert web.wait() == 0
        assert time.monotonic() - began < 50  # 3 s, and what other work on this machine adds
        assert web.stderr.read() == ""
        page.context.close()
    watched.troubles.clear()
