"""Two platforms mirrored: all types of both, both ways, without echo, whatever restarts."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import pytest

from jbi_pubsub.bridge import listed, relayed
from jbi_pubsub.bridge import mirror as mirroring
from jbi_pubsub.bridge import platform as platforms
from jbi_pubsub.bridge.mirror import Direction, DirectionTerms, Mirror
from jbi_pubsub.bridge.platform import JbiPlatform
from jbi_pubsub.bridge.transformation import Rule, Transformation
from jbi_pubsub.cli.status import Servers, tables
from jbi_pubsub.codegen.repository import TypeRepository
from jbi_pubsub.core.config import LinkSection
from jbi_pubsub.core.errors import EntryError
from jbi_pubsub.core.gathering import Gathering
from jbi_pubsub.core.info_object import Head, TypeName, pack
from jbi_pubsub.core.wire import ServiceRef
from jbi_pubsub.lookup.item import ServiceItem
from jbi_pubsub.pad.server.server import DisseminationServer
from jbi_pubsub.protocol.entries import PUBLISHER_TYPE, ExpirationEntry, InformationType
from tests.bridge.conftest import ALPHA, BRAVO, Place, taken

SCHEMA = """<xs:schema xmlns:xs="http://www.w3.org/2001/XMLSchema">
<xs:element name="{0}"><xs:complexType><xs:sequence><xs:element name="i" type="xs:string" minOccurs="0"/>
<xs:element name="n" type="xs:integer" minOccurs="0"
xmlns:jbi="urn:jbi:codegen:1" jbi:variance="variant"/></xs:sequence>
</xs:complexType></xs:element></xs:schema>"""


@pytest.fixture
def two(place: Callable[..., Place]) -> tuple[Place, Place]:
    return place(ALPHA), place(BRAVO)


@pytest.fixture
def mirror(two: tuple[Place, Place], eventually: Any) -> Any:
    """mirror(id, rules) is a bridge between them that runs."""
    with ExitStack() as stack:

        def made(
            bridge: str = "b1", there: tuple[Rule, ...] = (), back: tuple[Rule, ...] = (), poll: float = 0.2
        ) -> Mirror:
            alpha, bravo = two
            a = JbiPlatform("alpha", alpha.federation.config, ALPHA, bridge)
            b = JbiPlatform("bravo", bravo.federation.config, BRAVO, bridge)
            ways = (
                Direction(a, b, Transformation(("*",), (), there), bridge=bridge, terms=DirectionTerms(poll=poll)),
                Direction(b, a, Transformation(("*",), (), back), bridge=bridge, terms=DirectionTerms(poll=poll)),
            )
            one = Mirror((a, b), ways)
            stack.callback(one.close)
            one.start()
            eventually(lambda: is_listening(one), what=one.status)
            return one

        yield made


def is_listening(mirror: Mirror) -> bool:
    return all(way["listening"] for way in mirror.status()["directions"])


def publish(adapter: Any, uid: Any, figures: Any, *lats: int) -> list[str]:
    ids = [adapter.publish(uid, figures.metadata(lat=str(lat)), b"x" * lat) for lat in lats]
    adapter.flush()
    return ids


@pytest.mark.row("G-24", "G-104")
def test_types_of_both_repositories_are_mirrored(two: tuple[Place, Place], mirror: Any, eventually: Any) -> None:
    # Given two types on one platform and one on the other
    alpha, bravo = two
    for place, names in ((alpha, ("red", "green")), (bravo, ("blue",))):
        adapter = place.federation.light()
        at = adapter.connect_to_delegate(*place.delegate)
        for name in names:
            adapter.register_publisher(at, SCHEMA.format(name), f"<{name}/>".encode(), validate=False)
    # When they are bridged
    made = mirror()
    # Expect each type on both
    eventually(
        lambda: [each["types"] for each in made.status()["directions"]] == [["green 1.0", "red 1.0"], ["blue 1.0"]],
        what=made.status,
    )
    for place in two:
        types = {each["type"] for each in place.pad.status()["registrations"]}
        assert types == {"red 1.0", "green 1.0", "blue 1.0"}


@pytest.mark.row("G-105")
def test_a_hundred_objects_each_way_and_no_loop(
    two: tuple[Place, Place], mirror: Any, figures: Any, eventually: Any
) -> None:
    # Given publishers and subscribers of one type on both platforms
    sides = [(place.publisher(), place.subscriber(type_name="Intel_Imagery")) for place in two]
    made = mirror()
    # When each publishes a hundred
    ids = [publish(*publisher, figures, *range(1, 51), *range(1, 51)) for publisher, _ in sides]
    # Expect all of both at both, each once, in order, with their ids
    for _, subscriber in sides:
        came = [obj.object_id for obj in taken(*subscriber, 200)]
        assert sorted(came) == sorted(ids[0] + ids[1])
        assert [each for each in came if each in set(ids[0])] == ids[0]
    relayed = [each["relayed"] for each in made.status()["directions"]]
    assert relayed == [100, 100]
    # And that delegates do not even offer a bridge what it has brought
    assert [each["echoes"] for each in made.status()["directions"]] == [0, 0]


def test_no_echo_with_two_bridges_side_by_side(
    two: tuple[Place, Place], mirror: Any, figures: Any, eventually: Any
) -> None:
    # Given two bridges between the same platforms
    alpha, bravo = two
    publisher = alpha.publisher()
    there, home = bravo.subscriber(type_name="Intel_Imagery"), alpha.subscriber(type_name="Intel_Imagery")
    one, other = mirror("b1"), mirror("b2")
    # When objects are published
    ids = publish(*publisher, figures, *range(1, 51))
    # Expect each once on each side, by one of them
    assert [obj.object_id for obj in taken(*there, 50)] == ids
    came = taken(*home, 50)
    assert [obj.object_id for obj in came] == ids
    assert {obj.platform.hops for obj in came} == {0}
    ways = [made.status()["directions"][0] for made in (one, other)]
    assert sorted(way["relayed"] for way in ways) == [0, 50]
    # When the one that relays leaves, and more is published
    first = ways.index(max(ways, key=lambda way: way["relayed"]))
    (one, other)[first].close()
    more = publish(*publisher, figures, 1, 2, 3)
    # Expect the other one in its place, and nothing lost nor twice
    assert [obj.object_id for obj in taken(*there, 3)] == more
    assert there[0].losses(there[1]) == {}


@pytest.mark.row("G-107")
def test_a_type_that_comes_later_is_mirrored_from_its_first_object_on(
    two: tuple[Place, Place], mirror: Any, figures: Any
) -> None:
    # Given a bridge between platforms where nothing is published
    alpha, bravo = two
    made = mirror(poll=60.0)  # lookup services tell of what comes; the period is for what they do not
    subscriber = bravo.subscriber(type_name="Intel_Imagery")
    # When a publisher comes, publishes at once and leaves
    adapter, uid = alpha.publisher()
    ids = publish(adapter, uid, figures, 1, 2, 3)
    adapter.close()
    # Expect its objects on the other side
    assert [obj.object_id for obj in taken(*subscriber, 3)] == ids
    assert made.status()["directions"][0]["lost"] == 0


@pytest.mark.row("X-12")
def test_what_a_bridge_leaves_out_is_told_as_filtered(
    two: tuple[Place, Place], mirror: Any, figures: Any, eventually: Any
) -> None:
    # Given a bridge that passes the north alone
    alpha, bravo = two
    publisher = alpha.publisher()
    adapter, uid = bravo.subscriber(type_name="Intel_Imagery")
    made = mirror(there=(Rule(types=("*",), where="//lat > 40"),))
    # When objects of north and south are published
    ids = publish(*publisher, figures, 10, 41, 20, 42, 30)
    # Expect the north, and the others as losses of their own cause
    assert [obj.object_id for obj in taken(adapter, uid, 2)] == [ids[1], ids[3]]
    eventually(lambda: adapter.losses(uid) == {"filtered": 3}, what=lambda: adapter.losses(uid))
    assert made.status()["directions"][0]["filtered"] == 3


def test_a_type_may_be_called_otherwise_on_the_other_side(two: tuple[Place, Place], mirror: Any, figures: Any) -> None:
    # Given a bridge on which a type has another name
    alpha, bravo = two
    publisher = alpha.publisher()
    mirror(there=(Rule(types=("mil.af.rl.jbi.Intel_Imagery",), name="nato.Imagery"),))
    # When somebody there subscribes by that name, with a template, as invariants count at the first level
    adapter, uid = bravo.subscriber(type_name="nato.Imagery", schema=figures.schema, template=figures.figure_3)
    ids = publish(*publisher, figures, 1, 2)
    # Expect the objects, with their ids and the other name
    came = taken(adapter, uid, 2)
    assert [(obj.object_id, obj.type.name) for obj in came] == [(each, "nato.Imagery") for each in ids]


def test_a_publisher_that_leaves_while_the_other_side_is_away_is_not_forgotten_and_not_kept(
    two: tuple[Place, Place], mirror: Any, figures: Any, eventually: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given a bridge that does not linger, and a publisher that it has relayed
    monkeypatch.setattr(mirroring, "LINGER_SECONDS", 0.1)
    monkeypatch.setattr(platforms, "LEFT_SECONDS", 0.1)
    alpha, bravo = two
    adapter, uid = alpha.publisher()
    subscriber = bravo.subscriber(type_name="Intel_Imagery")
    made = mirror()
    ids = publish(adapter, uid, figures, 1)
    assert [obj.object_id for obj in taken(*subscriber, 1)] == ids
    # When the other side goes away, and the publisher publishes and leaves
    bravo.pad.stop(0.5)
    more = publish(adapter, uid, figures, 2, 3)
    eventually(lambda: made.status()["directions"][0]["relayed"] == 3)
    adapter.close()
    eventually(lambda: alpha.pad.status()["registrations"] == [])
    # And the other side comes back
    again = bravo.federation.pad(*BRAVO)
    # Expect its last objects there, and then nothing more of it
    assert [obj.object_id for obj in taken(*subscriber, 2, 30.0)] == more
    eventually(lambda: again.status()["registrations"] == [], what=made.status)
    assert made.status()["directions"][0]["registrations"] == 0


@pytest.mark.parametrize("name", ["mil.af.rl.jbi.Intel_Imagery", "Type"])
def test_types_that_are_named_are_all_that_is_sent_to_a_bridge(
    two: tuple[Place, Place], figures: Any, eventually: Any, name: str
) -> None:
    # Given a bridge for one type, by its name, and publishers of that and another one, which may end so
    alpha, bravo = two
    other = alpha.federation.light()
    plain = other.register_publisher(other.connect_to_delegate(*ALPHA), type_name="other.Type", validate=False)
    a = JbiPlatform("alpha", alpha.federation.config, ALPHA, "b1")
    b = JbiPlatform("bravo", bravo.federation.config, BRAVO, "b1")
    types = (name,)
    one = Direction(a, b, Transformation(types, (), ()), bridge="b1", terms=DirectionTerms(types, poll=0.2))
    made = Mirror((a, b), (one,))
    made.start()
    try:
        eventually(lambda: is_listening(made), what=made.status)
        publisher, uid = alpha.publisher(type_name=name)
        subscriber = bravo.subscriber()
        # When both publish
        other.publish(plain, b"<m/>")
        ids = publish(publisher, uid, figures, 1, 2)
        # Expect the one type there, and nothing of the other delivered to the bridge
        assert [obj.object_id for obj in taken(*subscriber, 2)] == ids
        assert {each["type"]: each["unmatched"] for each in alpha.pad.status()["registrations"]} == {
            f"{name} 1.0": 0,
            "other.Type 1.0": 1,
        }
    finally:
        made.close()


def test_what_may_not_wait_longer_at_home_may_not_on_the_other_side(
    two: tuple[Place, Place], mirror: Any, figures: Any, eventually: Any
) -> None:
    # Given publishers of which one's objects expire, and a subscriber beyond a bridge that may have a hundred at a time
    alpha, bravo = two
    mirror()
    subscriber, uid = bravo.subscriber(type_name="Intel_Imagery", bound=100)
    lasting, passing = alpha.publisher(), alpha.publisher(expiration=3.0)
    for each in (lasting, passing):
        publish(*each, figures, 1)
        assert subscriber.receive(uid, 60.0)
    # When more come than it may have, and it takes them later
    for count in (60, 90):
        publish(*passing, figures, *(40 for _ in range(count)))
        eventually(lambda: subscriber.queue_size(uid) >= 60)
    publish(*lasting, figures, 50)
    eventually(lambda: {each["published"] for each in bravo.pad.status()["registrations"]} == {2, 151})
    time.sleep(3.5)
    got = [len(obj.payload) for obj in taken(subscriber, uid, 151, timeout=3.0)]
    # Expect what had waited to be told as expired there as well, and the other one to come
    lost = subscriber.losses(uid)
    assert got.count(50) == 1
    assert lost.get("expired", 0) > 10, lost
    assert got.count(40) + sum(lost.values()) == 150


@pytest.mark.parametrize("said", ["nan", "-1", "1e400", "soon", "x" * 4000])
def test_an_expiration_that_is_no_time_is_no_registration(said: str) -> None:
    # Given the item of a registration, as a stranger may make one; When it is read, expect a plain refusal
    described = InformationType(name="a", version="1.0").rep()
    ref = ServiceRef("0" * 32, "subscriptions", ("127.0.0.1:1",), ())
    item = ServiceItem("registration-1", (PUBLISHER_TYPE,), ref, (described, ExpirationEntry(seconds=said).rep()))
    with pytest.raises(EntryError, match="expiration is not a time"):
        listed.listed(item, has_left=False)


def test_a_bridge_shows_in_the_status_of_both_platforms(
    two: tuple[Place, Place], mirror: Any, figures: Any, eventually: Any
) -> None:
    # Given a bridge that has relayed two objects of one registration
    alpha, bravo = two
    mirror()
    adapter, uid = bravo.subscriber(type_name="Intel_Imagery")
    publish(*alpha.publisher(), figures, 1, 2)
    assert len(taken(adapter, uid, 2)) == 2

    def seen(place: Place) -> dict[str, list[tuple[str, ...]]]:
        servers = Servers(place.federation.config, ())
        try:
            found = tables(servers.ask())
            return {table.columns[0].head: [tuple(map(str, row)) for row in table.rows] for table in found}
        finally:
            servers.close()

    # When people look at either platform, expect the bridge as a server, and what it does each way
    for place, delegate in ((alpha, "alpha, rome"), (bravo, "bravo, paris")):
        eventually(lambda place=place: ["bridge", "bridge"] in [list(row[:2]) for row in seen(place)["kind"]])
        shown = seen(place)
        assert shown["bridge"] == [
            ("bridge", "alpha", "bravo", "1", "0", "2", "0", "0", "ok"),
            ("bridge", "bravo", "alpha", "0", "0", "0", "0", "0", "ok"),
        ]
        assert [row[0] for row in shown["objects at"]] == [delegate]
    # And when one of them has gone, that
    bravo.federation.lookups[0].stop()
    eventually(lambda: seen(alpha)["bridge"][0][-1].startswith("bravo is away"))


@pytest.mark.row("G-175")
def test_what_is_local_passes_no_bridge(two: tuple[Place, Place], mirror: Any, figures: Any) -> None:
    # Given a bridge, a registration for its own delegate alone, and one for all
    alpha, bravo = two
    local, plain = alpha.publisher(local=True), alpha.publisher()
    subscriber = bravo.subscriber(type_name="Intel_Imagery")
    made = mirror()
    # When both publish
    publish(*local, figures, 1, 2)
    ids = publish(*plain, figures, 3)
    # Expect the second one's object alone, and nothing of the other kept at the bridge
    assert [obj.object_id for obj in taken(*subscriber, 1)] == ids
    assert (made.status()["directions"][0]["relayed"], made.status()["directions"][0]["parked"]) == (1, 0)


def test_sides_that_share_a_lookup_service_are_told_to_be_one_platform(
    two: tuple[Place, Place], figures: Any, eventually: Any
) -> None:
    # Given a bridge whose sides find the same lookup service, and a publisher there
    alpha, _ = two
    a, b = (JbiPlatform(name, alpha.federation.config, ALPHA, "b1") for name in ("alpha", "bravo"))
    one = Direction(b, a, Transformation(("*",), (), ()), bridge="b1", terms=DirectionTerms(poll=0.1))
    eventually(lambda: a.lookups() and b.lookups(), what="lookup services")
    made = Mirror((a, b), (one,))
    made.start()
    try:
        publisher = alpha.publisher()
        subscriber = alpha.subscriber(type_name="Intel_Imagery")
        # When it publishes
        ids = publish(*publisher, figures, 1, 2)
        # Expect each object once, nothing relayed, and that it is told why
        eventually(lambda: one.status()["trouble"], what=made.status)
        assert [obj.object_id for obj in taken(*subscriber, 2)] == ids
        assert "one platform" in one.status()["trouble"][0]
        assert (one.status()["relayed"], one.status()["registrations"], one.status()["listening"]) == (0, 0, False)
    finally:
        made.close()


def test_events_for_administrators_go_where_they_are_named_alone() -> None:
    # Given directions for all types, for those of a prefix, and for events by name
    event, other = TypeName("jbi.Event"), TypeName("jbi.Measurement")
    # Expect that a glob does not stand for them
    for globs in (("*",), ("jbi.*",), ("jbi.Even?",)):
        assert not Transformation(globs, (), ()).wants(event)
    assert Transformation(("jbi.*",), (), ()).wants(other)
    assert Transformation(("*", "jbi.Event"), (), ()).wants(event)


@pytest.mark.parametrize("which", [0, 1], ids=["the publisher's side", "the subscriber's side"])
def test_a_bridge_survives_the_restart_of_either_side(
    two: tuple[Place, Place], mirror: Any, figures: Any, which: int, eventually: Any
) -> None:
    # Given a bridge that has relayed
    alpha, bravo = two
    publisher = alpha.publisher()
    subscriber = bravo.subscriber(type_name="Intel_Imagery")
    made = mirror()
    ids = publish(*publisher, figures, 1, 2, 3)
    assert [obj.object_id for obj in taken(*subscriber, 3)] == ids
    # When the delegate of one side restarts
    place = two[which]
    place.pad.stop(0.5)
    again = place.federation.pad(*place.delegate)
    # And objects are published while it comes back, and behind that
    more = publish(*publisher, figures, 4, 5)
    eventually(lambda: again.status()["registrations"], what=made.status)
    more += publish(*publisher, figures, 6)
    # Expect all of them
    assert [obj.object_id for obj in taken(*subscriber, 3, 30.0)] == more


def test_a_bridge_waits_for_sides_that_are_not_there(
    place: Callable[..., Place], figures: Any, eventually: Any, caplog: pytest.LogCaptureFixture
) -> None:
    # Given a bridge whose other side has a lookup service and no delegate yet
    alpha = place(ALPHA)
    bravo = place(BRAVO)
    bravo.pad.stop(0.0)
    a = JbiPlatform("alpha", alpha.federation.config, ALPHA, "b1")
    b = JbiPlatform("bravo", bravo.federation.config, BRAVO, "b1")
    one = Direction(a, b, Transformation(("*",), (), ()), bridge="b1", terms=DirectionTerms(poll=0.2))
    made = Mirror((a, b), (one,))
    made.start()
    try:
        eventually(lambda: is_listening(made), what=made.status)
        publisher = alpha.publisher()
        ids = publish(*publisher, figures, 1, 2)
        eventually(lambda: one.status()["trouble"], what=made.status)
        # When it comes, and a subscriber waits there
        subscriber = bravo.subscriber(type_name="Intel_Imagery")
        pad = DisseminationServer(bravo.federation.config, TypeRepository(), characteristics=BRAVO)
        pad.start()
        try:
            # Expect what was published meanwhile
            assert [obj.object_id for obj in taken(*subscriber, 2)] == ids
            assert one.status()["trouble"] == []
            # And that the trouble was told once
            told = [each for each in caplog.messages if "alpha to bravo" in each]
            assert len(told) == len(set(told))
        finally:
            pad.stop(0.5)
    finally:
        made.close()


def test_what_lies_in_a_file_is_parked_at_what_it_takes_in_memory() -> None:
    # Given an object of 3 MB whose payload lies in a file
    head = Head("1", "r", 1, 1.0, "t", "1.0", b"<a/>", 3_000_000)
    coming = Gathering(LinkSection(spool=64 << 10).spooling(), 1 << 30, 0.0)
    for chunk in (pack(head, b"").parts[0], bytes(3_000_000)):
        coming.add(memoryview(chunk))
    # Expect a bridge that waits for a platform to count a part of it
    assert relayed._size(coming.info_object(0)) < 1_000_000
