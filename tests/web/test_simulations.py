"""Federations of simulations as the console and `jbi top` show them: an RTI, its federates, and what is under way."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest
from browsing import browsed, needs_chromium, picture

from jbi_pubsub.cli.pages import FEDERATES, FEDERATIONS, PAGES, PageFacts
from jbi_pubsub.core.wire import ServiceRef
from jbi_pubsub.hla.proxy import Module
from jbi_pubsub.hla.server import RtiServer
from jbi_pubsub.protocol.status.federations import FarFederationStatus, FederateStatus, FederationStatus, RtiStatus
from jbi_pubsub.web.federation import Observer, Server, Snapshot
from jbi_pubsub.web.simulations import TABLES, rows_of
from tests.hla.conftest import AIR
from tests.hla.parties import Federate

HOSTILE: Final = "<img src=x onerror=alert(1)>"


def rti(at: str, error: str = "", **facts: Any) -> Server:
    known = RtiStatus(kind="rti", address=at, uptime=1.0, **facts)
    return Server(at, "rti", ServiceRef("", "status", (at,)), known, {}, error, {}, listed=True)


def test_rows_say_what_is_under_way_and_who_does_not_answer() -> None:
    # Given an RTI that serves two federations, a link, one that has gone, and one of which nothing is known yet
    member = FederateStatus(name="a", lookahead=2.5, advancing=True, interactions_sent=1_200, stamped_waiting=3)
    air = FederationStatus(name="Air", federates=["a"], points=list("pqrs"), resigned={"lease": 2}, members=[member])
    sea = FederationStatus(name="Sea", saving="S")
    hill = FarFederationStatus(name="Hill", federation="Air", federates=1)
    shown = (
        rti("h:1", federations=[air, sea]), rti("h:2", link=hill),
        rti("h:3", "no answer", federations=[FederationStatus(name="Zoo", members=[member])]),
        Server("h:4", "rti", ServiceRef("", "status", ("h:4",)), None, {}, "", {}, listed=True),
    )  # fmt: skip
    # When they are shown
    rows = rows_of(shown)
    # Expect each fact at its head, and no federates of who does not answer
    assert all(len(row) == len(heads) for title, heads in TABLES.items() for row in rows[title])
    assert rows["Federations"] == [
        ("", "h:4", "", "", "", "", "", "", "not asked yet"),
        ("Air", "h:1", "1", "0", "0", "0", "0", "2", "point p, point q, point r, 1 more"),
        ("Hill", "h:2", "1", "", "", "", "", "", "link to Air"),
        ("Sea", "h:1", "0", "0", "0", "0", "0", "0", "saving S"),
        ("Zoo", "h:3", "0", "0", "0", "0", "0", "0", "no answer"),
    ]
    assert rows["Federates"] == [
        ("a", "Air", "", "-", "2.5", "0", "0", "0", "1,200", "0", "3", "regulates, advances"),
    ]
    # and the terminal to have the same columns
    tables = PAGES["federations"].tables(PageFacts(Snapshot(rtis=shown), lambda *_: ()))
    assert [list(each.rows) for each in tables] == list(rows.values())
    for title, columns in zip(TABLES, (FEDERATIONS, FEDERATES), strict=True):
        assert [each.head for each in columns] == [head.lstrip("#") for head in TABLES[title]]


@pytest.fixture
def served(federation: Any) -> RtiServer:
    """Two federations; in one are two federates, one of which has an aircraft, and a point is pending."""
    made = RtiServer(federation.config)
    made.start()
    federation.stack.callback(made.stop)
    for name in ("Air", HOSTILE):
        made.create(name, [Module("air.xml", AIR)])
        made.wait_known(name, 20.0)
    a, b = (Federate(federation.config, name, federate_type="flight") for name in ("a", "b"))
    for each in (a, b):
        federation.stack.callback(each.rti.disconnect)
    cls = a.rti.get_object_class_handle("Vehicle.Aircraft")
    position = a.rti.get_attribute_handle(cls, "position")
    a.rti.publish_object_class_attributes(cls, [position])
    plane = a.rti.register_object_instance(cls, "LH1")
    a.rti.enable_time_regulation(2.5)
    a.rti.update_attribute_values(plane, {position: bytes(8)}, time=4.0)
    a.rti.register_federation_synchronization_point("ready")
    a.until("announce_synchronization_point")
    return made


@pytest.mark.processes
def test_an_rti_is_observed_once_with_all_its_federations(
    served: RtiServer, federation: Any, start: Callable[..., Any], eventually: Any
) -> None:
    # Given an RTI with two federations; When it is looked at
    observer = Observer(federation.config, every=0.1)
    observer.start()
    try:
        eventually(lambda: any(each.facts for each in observer.snapshot().rtis))
        shot = observer.snapshot()
    finally:
        observer.stop()
    # Expect one server, apart from those of the platform, and what its federates did
    (found,) = shot.rtis
    assert (found.kind, found.title, found.error) == ("rti", served.address, "")
    assert all(each.kind == "lookup" for each in shot.servers)
    rows = rows_of(shot.rtis)
    assert [(row[0], row[2], row[3], row[-1]) for row in rows["Federations"]] == [
        (HOSTILE, "0", "0", ""), ("Air", "2", "1", "point ready")
    ]  # fmt: skip
    a, b = rows["Federates"]
    assert a == ("a", "Air", "flight", "0", "2.5", "1", "1", "0", "0", "0", "0", "regulates")
    assert (b[0], b[4], b[5], b[-1]) == ("b", "-", "0", "")
    # and the same from the terminal, for people and for programs, and of that server alone
    flags = "--no-multicast", "--group", federation.config.lookup.groups[0], "--locator", federation.lookups[0].address
    out, err = start(*flags, "top", "federations", "--json").communicate()
    (told,) = [each for each in json.loads(out)["servers"] if each["kind"] == "rti"]
    assert (err, [each["name"] for each in told["status"]["federations"]]) == ("", [HOSTILE, "Air"])
    out, _ = start(*flags, "top", "federations", "--once", "--server", served.address).communicate()
    assert "point ready" in out
    assert "regulates" in out


@pytest.mark.processes
@needs_chromium
def test_federations_in_a_browser(
    served: RtiServer, federation: Any, start: Callable[..., Any], tmp_path: Path
) -> None:
    pytest.importorskip("nicegui", reason="NiceGUI is not installed (extra web)")
    from .test_console import OVERLAPPING, WIDER

    flags = "--no-multicast", "--group", federation.config.lookup.groups[0], "--locator", federation.lookups[0].address
    url = start(*flags, "web", "--port", "0", "--json").fact()["url"]
    with browsed(url) as (page, troubles):
        # When somebody goes to the page
        page.get_by_role("link", name="Federations").focus()
        page.keyboard.press("Enter")
        page.get_by_role("heading", name="Federations", level=1).wait_for()
        # Expect federations and federates, whatever their names, in wide and narrow windows
        for title, text in (("Federations", HOSTILE), ("Federations", "point ready"), ("Federates", "regulates")):
            page.locator(f"section[aria-label={title}] td").get_by_text(text, exact=True).first.wait_for()
        assert page.locator("img[src=x]").count() == 0
        for width in (1280, 390):
            page.set_viewport_size({"width": width, "height": 800})
            page.wait_for_timeout(300)
            picture(page, f"federations-{width}")
            assert page.evaluate(WIDER) == []
            assert page.evaluate(OVERLAPPING) == []
        assert troubles == []
