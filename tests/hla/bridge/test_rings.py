"""Bridges that would close a ring: which of them leaves, and when it comes again."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jbi_pubsub.bridge.file import OpenBridge, described
from jbi_pubsub.cli.status import Servers, tables
from jbi_pubsub.core.config import Config, LookupSection
from jbi_pubsub.core.wire import ServiceRef
from jbi_pubsub.hla.bridge.presence import certain
from jbi_pubsub.hla.bridge.rings import HOPS_MOST, TOLD_MOST, Span, SpanEntry, entry_of, ring, spans_of, told
from jbi_pubsub.hla.proxy import HLA_BRIDGE_TYPE, Module
from jbi_pubsub.hla.server import RtiServer
from jbi_pubsub.lookup.item import ServiceItem
from jbi_pubsub.lookup.opening import open_lookup
from jbi_pubsub.protocol.services import STATUS
from tests.hla.parties import Federate


def span(bridge: str, ends: str, since: int = 0, hops: int = 0) -> Span:
    return Span(bridge, f"{bridge}'s name", ends[0], ends[1], since, hops)


# -- the rule ---------------------------------------------------------------------------------------------------------


def test_who_would_close_a_ring_is_told_by_which_others() -> None:
    row = [span("a", "FG", 1), span("b", "GH", 2), span("c", "HI", 3)]
    # Given a row of bridges, expect another one at its end to be none
    assert ring(span("d", "IJ", 4), row) == ()
    # and one between two that are joined, the same two among them, to be one
    assert ring(span("d", "FI", 4), row) == tuple(row)
    assert ring(span("d", "HG", 4), row) == (row[1],)
    assert ring(span("d", "FF", 4), row) == ()  # (a bridge's file is refused for that)


def test_of_a_ring_the_youngest_leaves() -> None:
    # Given three bridges in a ring, expect one of them, whoever looks first, and of two that came at once the greater
    ring_of = [span("a", "FG", 1), span("b", "GH", 3), span("c", "HF", 3)]
    assert [bool(ring(one, ring_of)) for one in ring_of] == [False, False, True]


@pytest.mark.row("H-35")
@given(st.lists(st.tuples(st.sampled_from("FGHIJ"), st.sampled_from("FGHIJ")), max_size=12), st.randoms())
def test_what_stays_of_any_number_of_bridges_is_a_forest(ends: list[tuple[str, str]], random: Any) -> None:
    # Given bridges between any federations, that look in any order until nobody leaves
    spans = {f"{at}": span(f"{at}", one + other, since=at // 2) for at, (one, other) in enumerate(ends) if one != other}
    joined = bool(spans)
    before = components(spans.values())
    while joined:
        joined = False
        for key in random.sample(sorted(spans), len(spans)):
            if key in spans and ring(spans[key], spans.values()):
                del spans[key]
                joined = True
    # Expect no ring, and all that was joined to be so
    assert components(spans.values()) == before
    parts = {end for one in spans.values() for end in (one.one, one.other)}
    assert len(spans) == len(parts) - len(before)


def components(spans: Any) -> set[frozenset[str]]:
    """Which federations are joined, over whatever bridges."""
    found: dict[str, frozenset[str]] = {}
    for one in spans:
        whole = found.get(one.one, frozenset(one.one)) | found.get(one.other, frozenset(one.other))
        found.update(dict.fromkeys(whole, whole))
    return set(found.values())


def test_what_a_bridge_tells_is_bounded_and_goes_no_further_than_some_hops() -> None:
    own = span("own", "FG")
    # Given the same bridge over two ways, expect the nearer one; ourselves and what has gone far, expect not at all
    heard = [
        span("a", "GH", hops=4),
        span("a", "GH", hops=2),
        span("own", "FG", hops=1),
        span("b", "IJ", hops=HOPS_MOST),
    ]
    assert told(own, heard) == [own, span("a", "GH", hops=3)]
    assert len(told(own, [span(f"{at}", "GH") for at in range(2 * TOLD_MOST)])) == TOLD_MOST


@pytest.mark.parametrize("change", [{"hops": "x"}, {"hops": "-1"}, {"since": ""}, {"one": None}, {"name": "\n"},
                                    {"bridge": "x" * 300}, {"since": "9" * 5000}, {"hops": "99"}])  # fmt: skip
def test_what_is_no_span_is_left_out(change: dict[str, Any]) -> None:
    fields: dict[str, Any] = {"bridge": "b", "name": "n", "one": "1", "other": "2", "since": "3", "hops": "0"}
    good, bad = SpanEntry(**fields).rep(), SpanEntry(**(fields | change)).rep()
    assert spans_of([bad, good]) == spans_of([good]) == [Span("b", "n", "1", "2", 3, 0)]
    assert spans_of([entry_of(Span("b", "n", "1", "2", 3, 0))]) == spans_of([good])


# -- over sockets -----------------------------------------------------------------------------------------------------


class Places:
    """Lookup services that know nothing of each other, federations, and bridges."""

    def __init__(self, folder: Path, model: bytes) -> None:
        self.folder, self.model, self.stack = folder, model, ExitStack()
        self.configs: dict[str, Config] = {}
        self.locators: dict[str, str] = {}

    def place(self, name: str, *federations: str) -> None:
        """A lookup service, and an RTI there."""
        own = Config(lookup=LookupSection(port=0, multicast=False, groups=(name,), locators=()))
        server = open_lookup(own, None)
        server.start()
        self.stack.callback(server.stop)
        config = Config(lookup=LookupSection(port=0, multicast=False, groups=(name,), locators=(server.address,)))
        rti = RtiServer(config)
        self.stack.callback(rti.stop)
        rti.start()
        self.configs[name], self.locators[name] = config, server.address
        for each in federations:
            rti.create(each, [Module("air.xml", self.model)])

    def file(self, name: str, one: tuple[str, str], other: tuple[str, str]) -> Path:
        """Of a bridge between two federations, each (place, federation)."""
        path = self.folder / f"{name}.toml"
        sides = "".join(
            f'[side.s{at}]\nkind = "hla"\nfederation = "{federation}"\nlocators = ["{self.locators[place]}"]\n'
            f'groups = ["{place}"]\n'
            for at, (place, federation) in enumerate((one, other))
        )
        path.write_text(f'name = "{name}"\npoll = 0.1\n{sides}')
        return path

    def bridge(self, name: str, one: tuple[str, str], other: tuple[str, str]) -> OpenBridge:
        """Started."""
        running = described(self.file(name, one, other)).opened(Config())
        self.stack.callback(running.close)
        running.start()
        return running


@pytest.fixture
def places(tmp_path: Path, air: bytes) -> Iterator[Places]:
    made = Places(tmp_path, air)
    with made.stack:
        yield made


def is_up(bridge: OpenBridge) -> bool:
    return bool(bridge.status()["state"] == "up")


def test_a_second_bridge_stands_by_until_the_first_has_gone(places: Places, eventually: Callable[..., Any]) -> None:
    # Given a bridge between two federations
    places.place("here", "Air", "Sea")
    first = places.bridge("first", ("here", "Air"), ("here", "Sea"))
    assert is_up(first)
    # When another one comes, expect it to wait, and to say for whom, also to those who ask how servers are
    second = places.bridge("second", ("here", "Sea"), ("here", "Air"))
    status = second.status()
    assert status["state"] == "waiting"
    assert "would close a ring" in status["trouble"]
    assert "joined by first already" in status["trouble"]
    assert is_up(first)
    # When the first one leaves, expect the second one to be there
    first.close()
    eventually(lambda: is_up(second), what=second.status)


@pytest.mark.row("H-35")
def test_a_ring_of_three_federations_is_refused(places: Places) -> None:
    places.place("here", "Air", "Sea", "Land")
    one = places.bridge("one", ("here", "Air"), ("here", "Sea"))
    two = places.bridge("two", ("here", "Sea"), ("here", "Land"))
    three = places.bridge("three", ("here", "Land"), ("here", "Air"))
    assert [is_up(each) for each in (one, two, three)] == [True, True, False]
    assert "joined by one, two already" in three.status()["trouble"]


def test_a_ring_over_platforms_that_know_nothing_of_each_other_is_refused(
    places: Places, eventually: Callable[..., Any]
) -> None:
    # Given three platforms with a lookup service each, and a federation; and bridges from the first to the last
    for name in ("here", "there", "beyond"):
        places.place(name, "F")
    one = places.bridge("one", ("here", "F"), ("there", "F"))
    two = places.bridge("two", ("there", "F"), ("beyond", "F"))
    eventually(lambda: is_up(one) and is_up(two))
    # When a third one joins the last to the first, expect it to leave again, though no lookup service knows all three
    three = places.bridge("three", ("beyond", "F"), ("here", "F"))
    eventually(lambda: "close a ring" in three.status()["trouble"], what=three.status)
    eventually(lambda: not is_up(three), what=three.status)
    assert is_up(one)
    assert is_up(two)
    # When the middle one has gone, expect it to come
    two.close()
    eventually(lambda: is_up(three), what=three.status)


@pytest.mark.row("H-32")
def test_what_is_told_at_one_end_of_a_row_is_told_at_the_other_and_a_save_takes_all(
    places: Places, eventually: Callable[..., Any]
) -> None:
    # Given four federations in a row, on two platforms
    places.place("here", "Air", "Sea")
    places.place("there", "Land", "Space")
    ends = (("here", "Air"), ("here", "Sea"), ("there", "Land"), ("there", "Space"))
    bridges = [places.bridge(f"b{at}", ends[at], ends[at + 1]) for at in range(3)]
    eventually(lambda: all(map(is_up, bridges)))
    federates = [Federate(places.configs[place], f"f{at}", name) for at, (place, name) in enumerate(ends)]
    for one in federates:
        places.stack.callback(one.rti.disconnect)
    first, last = federates[0], federates[-1]
    cls = first.rti.get_object_class_handle("Vehicle.Aircraft")
    position = first.rti.get_attribute_handle(cls, "position")
    first.rti.publish_object_class_attributes(cls, [position])
    last.rti.subscribe_object_class_attributes(cls, [position])
    # When there is an aircraft at one end; Expect the other end to see it, and what becomes of it
    aircraft = first.rti.register_object_instance(cls, "LH1")
    there = last.until("discover_object_instance")[1]
    for number in range(100):
        first.rti.update_attribute_values(aircraft, {position: number.to_bytes(8, "big")}, b"")
    came = [last.until("reflect_attribute_values") for _ in range(100)]
    assert [(each[1], int.from_bytes(each[2][0][1], "big")) for each in came] == [(there, at) for at in range(100)]
    # When one of them asks for a save; Expect nobody to have saved before all have
    last.rti.request_federation_save("S")
    for one in federates:
        one.until("initiate_federate_save")
        one.rti.federate_save_begun()
        one.rti.federate_save_complete()
    for one in federates:
        one.until("federation_saved")


@pytest.mark.processes
def test_a_bridge_that_was_killed_is_in_nobodys_way(places: Places, eventually: Callable[..., Any]) -> None:
    # Given a bridge in a process of its own
    places.place("here", "Air", "Sea")
    file = places.file("span", ("here", "Air"), ("here", "Sea"))
    command = [sys.executable, "-m", "jbi_pubsub", "--no-multicast", "bridge", str(file)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "bridge of s0 and s1\n"
        other = places.bridge("other", ("here", "Air"), ("here", "Sea"))
        assert "joined by span already" in other.status()["trouble"]
        # When it is killed; Expect the other one to be there long before its leases end
        os.kill(process.pid, signal.SIGKILL)
        eventually(lambda: is_up(other), timeout=10.0, what=other.status)
    finally:
        process.kill()
        process.communicate()


def test_a_bridge_at_the_loopback_address_of_another_host_is_not_taken_for_dead() -> None:
    # Given bridges of which a lookup service tells, that listen where nobody can ask them from elsewhere, or can
    near, far = (ServiceItem(uuid4().hex, (HLA_BRIDGE_TYPE,), ServiceRef(uuid4().hex, STATUS, (at,)), ())
                 for at in ("127.0.0.1:4711", "10.0.0.7:4711"))  # fmt: skip
    # When that lookup service is on this host, expect both to be asked whether they live; else only who can be
    assert certain([near, far], ["127.0.0.1:4160", "[::1]:4160"]) == [near, far]
    assert certain([near, far], ["127.0.0.1:4160", "10.0.0.1:4160"]) == [far]


def test_bridges_are_seen_with_all_other_servers(places: Places) -> None:
    # Given two bridges of which one waits
    places.place("here", "Air", "Sea")
    places.bridge("first", ("here", "Air"), ("here", "Sea"))
    places.bridge("second", ("here", "Air"), ("here", "Sea"))
    # When all servers are asked how they are
    servers = Servers(places.configs["here"], ())
    try:
        found = servers.ask()
    finally:
        servers.close()
    # Expect both to be shown, each with its directions, and with what it waits for
    shown = list(tables(found, whole=True))
    kinds = [str(row[0]) for row in shown[0].rows]
    assert sorted(kinds) == ["bridge", "bridge", "lookup", "rti"]
    rows = [row for table in shown if table.columns[0].head == "bridge" for row in table.rows]
    assert {(row[0], row[1], row[2]) for row in rows} == {
        ("first", "s0", "s1"), ("first", "s1", "s0"), ("second", "s0", "s1"), ("second", "s1", "s0")
    }  # fmt: skip
    assert all(row[-1] == "ok" for row in rows if row[0] == "first")
    assert all("close a ring" in str(row[-1]) for row in rows if row[0] == "second")
