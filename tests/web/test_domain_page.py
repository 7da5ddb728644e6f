"""The domain as `jbi domain status` and the page of the console show it: a link that is a process between two domains,
with who stands behind what it brings."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final, cast

import msgspec
import pytest
from browsing import browsed, needs_chromium, picture

from jbi_pubsub import Services
from jbi_pubsub.bridge.listening import SideSubscriber
from jbi_pubsub.bridge.members import MEMBERS_TOLD, TEXT_TOLD, TYPES_TOLD, told
from jbi_pubsub.core.config import Config
from jbi_pubsub.core.node_sections import DomainSection
from jbi_pubsub.core.wire import ServiceRef
from jbi_pubsub.domains.application import APPLICATION
from jbi_pubsub.domains.client import PROFILE
from jbi_pubsub.domains.server import TraderServer
from jbi_pubsub.protocol.entries import PAD_TYPE
from jbi_pubsub.protocol.status.bridge import BroughtStatus, DirectionStatus, MemberStatus
from jbi_pubsub.web.domainview import TABLES, DomainLink, DomainServer, DomainStatus, DomainView, rows_of
from jbi_pubsub.web.federation import Observer

HOSTILE: Final = "<img src=x onerror=alert(1)></script>"
EQUAL, OBJECTS = 3, 20
LINK: Final = """
name = "one-two"
poll = 0.2
[side.one]
locators = ["{}"]
delegate = ["one", "x"]
[side.two]
locators = ["{}"]
delegate = ["two", "x"]
[[direction]]
from = "one"
to = "two"
wanted = true
[[direction]]
from = "two"
to = "one"
"""


def test_rows_of_a_domain_say_who_stands_behind_what_is_brought_and_what_is_wrong() -> None:
    # Given a link that is well one way, and one that does not answer; offers whose properties are of other kinds
    wanted = {"a.T": BroughtStatus(
        members=[MemberStatus(predicate="x > 1", behind=1_200), MemberStatus(behind=2)], others=3, importance=4,
        crossed=10, saved=5_000,
    )}  # fmt: skip
    ways = [
        DirectionStatus(source="one", target="two", listening=True, members=1_205, saved=5_000, wanted=wanted),
        DirectionStatus(source="two", target="one", relayed=7, troubles=2),
    ]
    found = DomainStatus(
        2, "lab", [DomainServer("trader", "lab", "h:1", "listed")],
        [DomainLink("good", "ok", ways), DomainLink("h:2", "does not answer", [])],
        [{"name": 7, "categories": "junior"}, {"name": "heat", "domain": 2, "categories": ["a", "b"]}],
        [{"client": "anna", "application": "heat", "constraint": ""}], {"demo.Camera": 1_000}, [],
    )  # fmt: skip
    # When it is shown
    rows = rows_of(found)
    # Expect each fact at its head
    assert all(len(row) == len(heads) for title, heads in TABLES.items() for row in rows[title])
    assert rows["Links"] == [
        ("good", "one", "two", "0", "1,205", "0", "5,000", "0", "ok"),
        ("good", "two", "one", "0", "all", "7", "", "0", "not subscribed yet; 2 troubles, see its log"),
        ("h:2", "", "", "", "", "", "", "", "does not answer"),
    ]
    assert rows["Members"] == [
        ("one", "two", "a.T", "x > 1", "1,200", "4", "10", "5,000"),
        ("one", "two", "a.T", "all", "2", "", "", ""),
        ("one", "two", "a.T", "3 more", "", "", "", ""),
    ]
    assert rows["Applications"] == [("7", "", "junior", ""), ("heat", "2", "a, b", "")]
    assert (rows["Clients"], rows["Offers"]) == ([("anna", "heat", "all")], [("demo.Camera", "1,000")])
    assert found.title == "domain 2, lab"


def test_what_a_link_tells_of_its_members_is_bounded_and_the_most_come_first() -> None:
    def brought(behind: int, count: int) -> dict[str, Any]:
        members = [{"predicate": f"{n:05d}" + "y" * 1_000, "behind": behind + n} for n in range(count)]
        return {"members": members, "importance": 0, "crossed": 1, "saved": 2, "subscribed": "x" * 100_000}

    # Given more types, members and characters than fit
    wanted = {f"t{n}": brought(n, 100) for n in range(100)}
    # When others are told, expect the bounds, and what most want
    ((key, made),) = told({"wanted": wanted}).items()
    assert (key, list(made)) == ("wanted", [f"t{n}" for n in range(99, 99 - TYPES_TOLD, -1)])
    first = made["t99"]
    assert [each.behind for each in first.members] == list(range(198, 198 - MEMBERS_TOLD, -1))
    assert (first.others, first.crossed, first.saved) == (100 - MEMBERS_TOLD, 1, 2)
    assert len(first.members[0].predicate) == TEXT_TOLD
    assert len(json.dumps(msgspec.to_builtins(made))) < 200_000
    assert told({"from": "one"}) == {}


class Linked:
    """Two domains, of which the second has members, a trader and offers; the link between is a process."""

    def __init__(self, fixtures: Any, start: Callable[..., Any], folder: Path, stack: ExitStack) -> None:
        self.stack, self.start = stack, start
        configs: list[Config] = []
        for name in ("one", "two"):
            federation = fixtures.Federation(fixtures.test_config(), stack)
            federation.pad(name, "x")
            configs.append(federation.config)
            if name == "one":
                light = federation.light()
                at = light.connect_to_delegate("one", "x")
                self.registration = light.register_publisher(at, type_name="a.T", validate=False)
                self.publisher = light
        self.config = configs[1]
        self.locator = self.config.lookup.locators[0]
        section = DomainSection(number=7, name=HOSTILE)
        trader = TraderServer(msgspec.structs.replace(self.config, domain=section))
        stack.callback(trader.stop)
        trader.start(20.0)
        services = stack.enter_context(Services(self.config))
        channel = ServiceRef("channel", "delegate", ("127.0.0.1:1",))
        services.offer(APPLICATION, {"domain": 7, "name": "heat", "parameters": ("alpha",)}, at=channel)
        services.offer(PROFILE, {"client": "anna", "application": "heat", "constraint": "residual > 0.1"})
        file = folder / "link.toml"
        file.write_text(LINK.format(configs[0].lookup.locators[0], self.locator))
        assert start("--no-multicast", "bridge", str(file), "--json").fact()["ready"] == "bridge"
        subscriber = stack.enter_context(SideSubscriber(self.config))
        self.uids = [subscriber.register_subscriber(type_name="a.T", predicate="//n > 9") for _ in range(EQUAL)]
        self.subscriber = subscriber

    def flags(self) -> tuple[str, ...]:
        """The second domain for the command line."""
        return "--no-multicast", "--group", self.config.lookup.groups[0], "--locator", self.locator

    def settle(self, view: DomainView, eventually: Any) -> DomainStatus:
        """Objects have crossed for the members, as the domain's status says; it."""

        def way() -> DirectionStatus | None:
            return next(
                (way for link in view.look(20.0).links for way in link.directions if way.members == EQUAL), None
            )

        eventually(way, timeout=60.0)
        for number in range(OBJECTS):
            self.publisher.publish(self.registration, b"<a><n>%d</n></a>" % number)
        for uid in self.uids:
            for _ in range(OBJECTS - 10):
                assert self.subscriber.receive(uid, 30.0) is not None
        eventually(lambda: (found := way()) is not None and found.saved, timeout=60.0)
        return view.look(20.0)


@pytest.fixture
def linked(fixtures: Any, start: Callable[..., Any], tmp_path: Path) -> Iterator[Linked]:
    with ExitStack() as stack:
        yield Linked(fixtures, start, tmp_path, stack)


@pytest.mark.processes
def test_a_domain_says_who_stands_behind_what_a_link_brings_and_what_that_saves(
    linked: Linked, start: Callable[..., Any], eventually: Any
) -> None:
    # Given a link between two domains, behind which three of the second want the same; objects have crossed
    observer = Observer(linked.config, every=0.1)
    observer.start()
    try:
        with closing(DomainView(linked.config, observer)) as view:
            seen = linked.settle(view, eventually)
    finally:
        observer.stop()
    # When it is asked for
    out, err = start(*linked.flags(), "domain", "status", "--json").communicate()
    found = json.loads(out)
    # Expect number, name, channel, lookup service and trader
    assert (err, found["number"], found["name"], found["troubles"]) == ("", 7, HOSTILE, [])
    kinds = [(each["kind"], each["state"]) for each in found["servers"]]
    assert kinds == [("lookup service", "ok"), ("channel", "ok"), ("trader", "listed")]
    assert found["servers"][1]["name"] == "two, x"
    # and one member of three subscriptions, so that of three copies two did not cross
    (link,) = found["links"]
    assert (link["bridge"], link["state"]) == ("one-two", "ok")
    way, back = link["directions"]
    crossed = OBJECTS - 10
    assert (way["from"], way["to"], way["members"], way["saved"]) == ("one", "two", EQUAL, crossed * (EQUAL - 1))
    assert way["wanted"] == {
        "a.T": {"members": [{"predicate": "//n > 9", "behind": EQUAL}], "others": 0, "importance": 0,
                "crossed": crossed, "saved": crossed * (EQUAL - 1)}
    }  # fmt: skip
    assert "wanted" not in back
    # and what is offered
    assert found["applications"] == [{"domain": 7, "name": "heat", "parameters": ["alpha"]}]
    assert found["clients"] == [{"client": "anna", "application": "heat", "constraint": "residual > 0.1"}]
    assert found["offers"] == {"discover.Application": 1, "discover.Profile": 1}
    # and the same from the code that the console's page has it from
    assert msgspec.to_builtins(seen) == found


@pytest.mark.processes
@needs_chromium
def test_domains_in_a_browser(linked: Linked, start: Callable[..., Any], tmp_path: Path) -> None:
    pytest.importorskip("nicegui", reason="NiceGUI is not installed (extra web)")
    from .test_console import WIDER

    # Given the same, under a hostile name, and a console that reads only
    url = start(*linked.flags(), "web", "--port", "0", "--json").fact()["url"]
    with browsed(url) as (page, troubles):
        # When somebody goes to the page with the keyboard alone
        page.get_by_role("link", name="Domains").focus()
        page.keyboard.press("Enter")
        page.get_by_role("heading", name="Domains", level=1).wait_for()
        # Expect the domain by its name, as text, its servers, links, members and offers
        page.get_by_text(f"domain 7, {HOSTILE}", exact=True).wait_for()
        for title, text in (
            ("Servers", "two, x"), ("Links", "one-two"), ("Members", "//n > 9"), ("Applications", "heat"),
            ("Clients", "anna"), ("Offers", "discover.Application"),
        ):  # fmt: skip
            page.locator(f"section[aria-label={title}] td").get_by_text(text, exact=True).first.wait_for()
        assert page.locator("img[src=x]").count() == 0
        # and all of it to fit wide and narrow windows, light and dark
        for width, scheme in ((1280, "light"), (390, "light"), (390, "dark")):
            page.set_viewport_size({"width": width, "height": 800})
            page.emulate_media(color_scheme=scheme)
            page.wait_for_timeout(300)
            picture(page, f"domains-{width}-{scheme}")
            assert page.evaluate(WIDER) == []
        assert troubles == []


def test_who_looks_once_waits_until_a_lookup_service_was_asked_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    # Given an observer that has asked the delegate, and then the lookup service
    def shot(number: int, facts: dict[str, Any] | None) -> Any:
        servers = [
            SimpleNamespace(id=kind, kind=kind, facts=told, error="")
            for kind, told in (("delegate", {"uptime": 1.0}), ("lookup", facts))
        ]
        return SimpleNamespace(number=number, servers=servers, bridges=[])

    shots = [shot(1, None), shot(2, None), shot(3, {"uptime": 1.0})]
    asked: list[int] = []
    observer = SimpleNamespace(snapshot=lambda: shots[0], wait=lambda number, _: asked.append(number) or shots[number])
    view = DomainView(Config(), cast("Any", observer))
    item = SimpleNamespace(proxy=SimpleNamespace(service_id="delegate"))
    community = SimpleNamespace(lookup=lambda template, _: [item] if template.types == (PAD_TYPE,) else [])
    monkeypatch.setattr(view, "_watched", lambda _: (SimpleNamespace(community=community), None))
    monkeypatch.setattr(view, "look", lambda _: None)
    # When it is waited for
    view.wait(30.0)
    # Expect both to have been asked
    assert asked == [1, 2]
