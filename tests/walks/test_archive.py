"""Archives as applications meet them: what was published is kept on disk, asked for, replayed and waited for."""

from __future__ import annotations

import os
import shutil
import subprocess
import threading
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path
from typing import Any

import msgspec
import pytest
from lxml import etree

from jbi_pubsub import InfoObject, PublisherAdapterLight, RegistrationUid, SubscriberAdapter, SubscriptionUid
from jbi_pubsub.archive.engine import Archive
from jbi_pubsub.core.config import ArchiveSection, ClientSection, Config, PolicySection
from jbi_pubsub.core.errors import BackPressureError, ConfigurationError, StorageError, UnknownUidError
from jbi_pubsub.core.history import HistoryQuery, Scope
from jbi_pubsub.core.info_object import Head, TypeName, pack
from jbi_pubsub.core.xpath import compile_predicate
from jbi_pubsub.pad.server.server import DisseminationServer

SMALL = 20_000
"""Bytes of a file of the log: some of what a test publishes is in packs soon."""


class Place:
    """Delegates with archives in folders that outlive them, and who publishes there."""

    def __init__(self, federation: Any, folder: Path) -> None:
        self.federation = federation
        self.folder = folder
        self._connections: dict[tuple[str, str], tuple[PublisherAdapterLight, Any]] = {}

    def with_archive(self, name: str = "alpha", *, policy: str = "", **settings: Any) -> Config:
        section = ArchiveSection(
            **{"folder": str(self.folder / name), "reserve": 0.0, "workers": 0, "memory": 64 << 20, **settings}
        )
        return msgspec.structs.replace(self.federation.config, archive=section, policy=PolicySection(file=policy))

    def pad(self, name: str = "alpha", **settings: Any) -> DisseminationServer:
        server: DisseminationServer = self.federation.pad(name, "rome", self.with_archive(name, **settings))
        server.community.wait_joined(server.server_id, 60.0)
        return server

    def register(
        self, type_name: str, *, at: str = "alpha", by: str = "publisher", persist: bool | None = True, **options: Any
    ) -> tuple[PublisherAdapterLight, RegistrationUid]:
        """A registration of any well-formed metadata."""
        if (at, by) not in self._connections:
            light = self.federation.light(name=by)
            self._connections[at, by] = light, light.connect_to_delegate(at, "rome")
        light, delegate = self._connections[at, by]
        return light, light.register_publisher(
            delegate, type_name=type_name, validate=False, persist=persist, **options
        )

    def publish(self, type_name: str, *documents: bytes | str, payload: bytes = b"p", **options: Any) -> list[str]:
        """Each acknowledged when it returns: their ids."""
        light, registration = self.register(type_name, **options)
        ids = [light.publish(registration, document, payload) for document in documents]
        light.flush(60.0)
        return ids


@pytest.fixture
def place(federation: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    assert Archive.__init__.__kwdefaults__ is not None
    monkeypatch.setitem(Archive.__init__.__kwdefaults__, "volume_bytes", SMALL)
    monkeypatch.setattr("jbi_pubsub.archive.upkeep.LOOK_SECONDS", 0.05)
    return Place(federation, tmp_path)


def taken(subscriber: SubscriberAdapter, uid: SubscriptionUid, count: int) -> list[InfoObject]:
    """So many, and no more."""
    found = [obj for _ in range(count) if (obj := subscriber.receive(uid, 60.0)) is not None]
    assert len(found) == count
    assert subscriber.receive(uid, 0.01) is None
    return found


def ids(objects: Any) -> list[str]:
    return [obj.object_id for obj in objects]


# -- what is kept ---------------------------------------------------------------------------------------------------


@pytest.mark.row("Q-05", "G-72", "G-112", "X-07")
@pytest.mark.parametrize("workers", [0, 1])
def test_exactly_what_was_marked_is_found_after_a_restart_byte_for_byte(place: Place, workers: int) -> None:
    # Given objects of which every second one is to be kept, their metadata written in every way
    pad = place.pad(workers=workers)
    ways = (
        b"<m><n>%d</n></m>",
        b"<?xml version='1.0' encoding='utf-8'?>\r\n<m  a = 'x'\t>\r\n<n>%d</n><!-- a word --></m >\n\n",
        b"<m><n><![CDATA[%d]]></n><?an instruction?><empty></empty></m>",
        "<m\n>\u00e4\u20ac&#x41;&lt;<n>%d</n></m>".encode(),
    )
    light, marked = place.register("report")
    _, plain = place.register("report", persist=None)
    _, refused = place.register("report", persist=False)
    kept: dict[str, tuple[bytes, bytes]] = {}
    for number in range(40):
        metadata, payload = ways[number % 4] % number, bytes(range(256)) * (number % 3)
        kept[light.publish(marked, metadata, payload)] = metadata, payload
        light.publish(plain if number % 2 else refused, metadata, payload)
    light.flush()
    # When the delegate is started again; Expect exactly those to be found, as they were published
    pad.stop(0.5)
    place.pad(workers=workers)
    subscriber = place.federation.subscriber()
    found = list(subscriber.query("report"))
    assert {obj.object_id: (obj.metadata, obj.payload) for obj in found} == kept
    assert ids(found) == list(kept)
    assert subscriber.count("report") == 40


@pytest.mark.row("G-67")
def test_without_a_folder_a_delegate_takes_no_part_in_it(place: Place, federation: Any) -> None:
    # Given a delegate with an archive, and one without
    with_one, without = place.pad(), federation.pad("beta", "rome")
    place.publish("report", "<m/>")
    # Expect the first alone to be asked, and nothing to be kept at the other
    subscriber = federation.subscriber()
    assert list(subscriber.explain_query("report")) == [with_one.address]
    assert "archive" not in without.status()
    with pytest.raises(ConfigurationError, match="needs an archive"):
        place.register("report", at="beta")


def reporting(place: Place) -> Any:
    """Who publishes reports, what it was told to be refused, its registrations, one marked and one not, and who has
    subscribed to both."""
    told: list[tuple[str, Exception]] = []
    light = place.federation.light(refused=lambda uid, why: told.append((uid, why)))
    delegate = light.connect_to_delegate("alpha", "rome")
    marked, plain = (
        light.register_publisher(delegate, type_name="report", validate=False, persist=persist)
        for persist in (True, None)
    )
    subscriber = place.federation.subscriber()
    live = subscriber.register_subscriber(type_name="report")
    assert subscriber.wait_matched(live) == 1
    return told, light, (marked, plain), subscriber, live


@pytest.mark.row("G-69")
@pytest.mark.parametrize(("limit", "what", "size"), [("payload", "payloads", 1_000), ("metadata", "metadata", 0)])
def test_over_its_quota_a_delegate_refuses_what_is_to_be_kept_and_serves_on(
    place: Place, limit: str, what: str, size: int
) -> None:
    # Given a delegate that may keep so much, and a subscription
    place.pad(**{f"max_{limit}_bytes": 40_000})
    told, light, (marked, plain), subscriber, live = reporting(place)
    # When more is published
    published: list[str] = []
    while not told and len(published) < 1_000:
        published.append(light.publish(marked, b"<m>" + b"x" * 500 + b"</m>", bytes(size)))
        light.flush()
    # Expect its publisher to be told why, and how to mend it
    ((uid, why),) = told
    assert uid == published.pop()
    assert isinstance(why, StorageError)
    assert f"{what} take " in str(why)
    assert "of 40,000 bytes" in str(why)
    assert "[[keep]]" in why.hint
    # and the delegate to live: what is not to be kept comes, what was kept is found
    last = light.publish(plain, b"<m/>", b"")
    light.flush()
    assert ids(taken(subscriber, live, len(published) + 1)) == [*published, last]
    assert ids(subscriber.query("report")) == published


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 4 MiB."""
    where = tmp_path / "disk"
    where.mkdir()
    mount = shutil.which("mount")
    if os.geteuid() != 0 or mount is None:
        pytest.skip("mounting a small disk needs root")
    done = subprocess.run([mount, "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(where)], capture_output=True)
    if done.returncode:
        pytest.skip(f"no small disk can be mounted here: {done.stderr.decode().strip()}")
    yield where
    subprocess.run([shutil.which("umount") or "umount", "-l", str(where)], check=True)


def test_publishers_are_told_of_a_full_disk_and_all_goes_on_when_there_is_room(
    place: Place, disk: Path, eventually: Any
) -> None:
    # Given a delegate whose archive has a small disk, with objects in it
    place.folder = disk
    pad = place.pad()
    told, light, (marked, plain), subscriber, live = reporting(place)

    def publish() -> str:
        object_id: str = light.publish(marked, "<m/>", os.urandom(2_000))
        light.flush(60.0)
        return object_id

    kept = [publish() for _ in range(30)]
    # When others fill it up
    with (disk / "ballast").open("wb", buffering=0) as ballast, suppress(OSError):
        while ballast.write(bytes(4_096)):
            pass
    while not told and len(kept) < 100:
        kept.append(publish())
    # Expect the publisher to be told of the disk, and nobody to get what was refused
    ((uid, why),) = told
    assert uid == kept.pop()
    assert isinstance(why, StorageError)
    assert str(disk) in str(why)
    last = light.publish(plain, "<m/>", b"not kept")
    light.flush(60.0)
    assert ids(taken(subscriber, live, len(kept) + 1)) == [*kept, last]
    assert ids(subscriber.query("report")) == kept
    # When there is room again; Expect it to go on by itself
    (disk / "ballast").unlink()

    def goes_on() -> bool:
        told.clear()
        object_id = publish()
        if not told:
            kept.append(object_id)
        return not told

    eventually(goes_on)
    assert ids(subscriber.query("report")) == kept
    # and all of it to be there after a restart
    pad.stop(0.5)
    place.pad()
    assert ids(subscriber.query("report")) == kept


# -- asking ---------------------------------------------------------------------------------------------------------

DOCUMENTS = [
    "<m><lat>340</lat><long>680</long></m>", "<m><lat>34</lat><long>68</long></m>",
    "<m><lat>3.4e1</lat><long>68</long></m>", "<m><lat>n/a</lat><long>68</long></m>",
    "<m><lat> 34.0 </lat><long>068.0</long></m>", "<m><lat>33</lat><lat>34</lat><long>68</long></m>",
    "<m><lat>3<!-- -->4</lat><long><![CDATA[68]]></long></m>", "<m><lat/><long>68</long></m>", "<m/>",
    "<m a='34'><deep><lat>34</lat></deep></m>", "<m><lat>-34</lat><long>+68</long></m>",
]  # fmt: skip
PREDICATES = [
    "/m/lat > '33.2' and /m/lat < '35.0' and /m/long > '65.7' and /m/long < '70.0'", "/m/lat = '34'", "/m/lat = 34",
    "/m/lat != 34", "not(/m/lat = 34)", "//lat = 34", "*[lat > 33]", "contains(/m/lat, '4')",
    "starts-with(/m/lat, '3')",
    "normalize-space(/m/lat) = '34.0'", "/m/@a = 34", "count(//lat) > 1", "string(/m/lat) = ''", "/m/lat",
    "number(/m/lat) != number(/m/lat)", "/m/none", "sum(//lat) > 60",
]  # fmt: skip


@pytest.mark.row("G-14", "C-06")
def test_a_predicate_finds_what_it_lets_through(place: Place, eventually: Any) -> None:
    # Given a subscription for each predicate, and objects of two versions of a type, and of another
    pad = place.pad()
    subscriber = place.federation.subscriber()
    asked = [(predicate, version) for predicate in PREDICATES for version in (None, "2.0")]
    live = [subscriber.register_subscriber(type_name="spot", version=v, predicate=p) for p, v in asked]
    sent = {version: place.publish("spot", *DOCUMENTS, version=version) for version in ("1.0", "2.0")}
    place.publish("other", *DOCUMENTS)
    roots = [etree.fromstring(each) for each in DOCUMENTS]
    numbers = set()

    def check() -> None:
        for predicate, version in asked:
            found = ids(subscriber.query("spot", version=version, predicate=predicate))
            assert found == expected[predicate, version], predicate
            assert subscriber.count("spot", version=version, predicate=predicate) == len(found)

    # Expect it to have got what lxml says
    expected = {}
    for (predicate, version), uid in zip(asked, live, strict=True):
        holds = compile_predicate(predicate).matches
        expected[predicate, version] = [
            uid
            for of in ("1.0", "2.0")
            if version in (None, of)
            for uid, root in zip(sent[of], roots, strict=True)
            if holds(root)
        ]
        numbers.add(len(expected[predicate, version]))
        assert ids(taken(subscriber, uid, len(expected[predicate, version]))) == expected[predicate, version]
    assert len(numbers) > 5
    # When the archive is asked the same; Expect the same, whether or not it is in the index
    check()
    eventually(lambda: pad.status()["archive"]["indexed"] == 3 * len(DOCUMENTS))
    check()


@pytest.mark.row("Q-06")
def test_results_are_fetched_by_tens_and_nothing_is_left_of_them(place: Place, eventually: Any) -> None:
    # Given two thousand objects, a thousand of which match
    pad = place.pad()
    all_ids = place.publish("report", *(f"<m><n>{number}</n></m>" for number in range(2_000)))
    subscriber = place.federation.subscriber()
    query = subscriber.open_query("report", predicate="/m/n >= 1000")
    # When they are fetched ten by ten; Expect a hundred times ten, in order, and the end
    pages = [query.get_next(10) for _ in range(100)]
    assert [len(page) for page in pages] == [10] * 100
    assert ids(chain.from_iterable(pages)) == all_ids[1_000:]
    assert query.get_next(10) == []
    assert (query.state, query.progress.matched) == ("finished", 1_000)
    # When another one is cancelled before its end; Expect nothing of both to be open at the delegate
    other = subscriber.open_query("report")
    assert len(other.get_next(10)) == 10
    assert pad.status()["archive"]["queries"]["open"] == 1
    other.cancel()
    assert other.state == "cancelled"
    eventually(lambda: pad.status()["archive"]["queries"]["open"] == 0)
    assert pad.status()["archive"]["queries"]["ended"] == {"finished": 1, "cancelled": 1}
    eventually(lambda: [session["queued"] for session in pad.status()["sessions"]] == [{}])


@pytest.mark.row("G-144", "G-176")
def test_of_each_key_the_newest_is_asked_for_and_replayed(place: Place) -> None:
    # Given a hundred updates of five tracks
    place.pad()
    updates = [f"<metadata><force><ID>{n % 5}</ID><at>{n}</at></force></metadata>" for n in range(100)]
    sent = place.publish("track", *updates)
    subscriber = place.federation.subscriber()
    # When the newest of each is asked for; Expect five
    assert ids(subscriber.query("track", latest_by="//metadata/force/ID")) == sent[95:]
    assert ids(subscriber.query("track", latest_by="/metadata/force/ID", order="newest")) == sent[:94:-1]
    # When somebody comes late; Expect the latest of each track, then what is published
    late = subscriber.register_subscriber(type_name="track", start="last", latest_by="/metadata/force/ID")
    assert ids(taken(subscriber, late, 5)) == sent[95:]
    (next_one,) = place.publish("track", updates[7])
    assert ids(taken(subscriber, late, 1)) == [next_one]


@pytest.mark.row("G-100", "G-202")
def test_one_archive_is_asked_and_all_in_either_order(place: Place) -> None:
    # Given archives at two delegates
    at = {name: place.pad(name).address for name in ("alpha", "beta")}
    mine = place.publish("report", "<m>1</m>", "<m>2</m>", at="alpha")
    others = place.publish("report", "<m>3</m>", at="beta")
    for first in ("one", "all"):
        # When the same application asks one of them and then all, or the other way round
        with SubscriberAdapter(place.federation.config) as subscriber:
            for what in ("one", "all") if first == "one" else ("all", "one"):
                options: dict[str, Any] = {"at": (at["alpha"],)} if what == "one" else {}
                # Expect what is there, each time
                assert ids(subscriber.query("report", **options)) == mine + ([] if what == "one" else others)
                assert subscriber.count("report", **options) == 2 + (what == "all")
            for nowhere in ("127.0.0.1:1",), (at["alpha"], "beta"):
                with pytest.raises(UnknownUidError, match=nowhere[-1]):
                    subscriber.count("report", at=nowhere)
            with pytest.raises(ConfigurationError, match="no address"):
                subscriber.count("report", at=())


@pytest.mark.parametrize(("order", "side"), [("oldest", "after"), ("newest", "before")])
def test_a_page_behind_a_place_is_of_the_archive_that_gave_it_and_names_the_others(
    place: Place, order: Any, side: str
) -> None:
    # Given two archives, and the first page of both
    at = {name: place.pad(name).address for name in ("alpha", "beta")}
    said = [place.publish("report", f"<m>{n}</m>", at=name)[0] for n, name in enumerate(("alpha", "beta") * 2)]
    with place.federation.subscriber() as subscriber:
        (first,) = subscriber.query("report", order=order, limit=1)
        behind: dict[str, Any] = {side: first.platform.place}
        # When the next one is asked for
        with subscriber.open_query("report", order=order, **behind) as query:
            found = [obj.object_id for obj in query]
            # Expect what the archive of the place has, and the other one to be named
            assert found == ([said[2]] if order == "oldest" else [said[1]])
            other = at["beta" if order == "oldest" else "alpha"]
            assert [each.partition(": ")[0] for each in query.partial] == [other]


@pytest.mark.row("D-26")
def test_what_a_client_has_published_is_asked_for_by_its_name_time_and_type(place: Place, eventually: Any) -> None:
    # Given two clients that have published events of two kinds, some of them early
    pad = place.pad()
    sent = {
        (by, kind, when): place.publish(kind, f"<m><by>{by}</by></m>", by=by)
        for when in ("early", "late")
        for by in ("anna", "bert")
        for kind in ("moved", "said")
    }
    subscriber = place.federation.subscriber()
    late = pad.status()["archive"]["position"] // 2
    (first_late,) = subscriber.query(after=late, limit=1)
    at = datetime.fromtimestamp(first_late.platform.published, UTC)
    # When somebody asks what one of them did; Expect that alone
    assert ids(subscriber.query(publisher="anna")) == [
        sent["anna", kind, when][0] for when in ("early", "late") for kind in ("moved", "said")
    ]
    assert ids(subscriber.query("said", publisher="bert", since=at)) == sent["bert", "said", "late"]
    assert ids(subscriber.query("said", publisher="bert", up_to=late)) == sent["bert", "said", "early"]
    assert subscriber.count(publisher="nobody") == 0
    # and the same after a restart
    pad.stop(0.5)
    place.pad()
    assert subscriber.count("moved", publisher="anna") == 2


@pytest.mark.row("G-101", "G-195")
def test_one_object_that_two_archives_have_written_differently_comes_once(place: Place) -> None:
    # Given an object in two archives, one of which has its metadata in another layout
    for name, metadata in (("alpha", b"<m><n>1</n><k>x</k></m>"), ("beta", b"<m>\n  <n>1</n>\n  <k>x</k>\n</m>\n")):
        with_one = place.pad(name)
        place.publish("report", f"<m><n>{2 + (name == 'beta')}</n><k>x</k></m>", at=name)
        with_one.stop(0.5)
        section = ArchiveSection(folder=str(place.folder / name), reserve=0.0, workers=0)
        archive = Archive(msgspec.structs.replace(place.federation.config, archive=section), is_indexed=False)
        head = Head("0" * 32 + "1", "r-elsewhere", 1, 1000.0, "report", "1.0", metadata, 1)
        archive.append([(archive.end + 1, pack(head, b"p"))], 1001.0)
        archive.sync(archive.end)
        archive.close()
        place.pad(name)
    # When both are asked; Expect one result of it, and the other two
    subscriber = place.federation.subscriber()
    found = ids(subscriber.query("report", predicate="/m/k = 'x'"))
    assert len(found) == len(set(found)) == 3
    assert len(list(subscriber.query("report", predicate="//n = 1"))) == 1


# -- replaying, waiting ---------------------------------------------------------------------------------------------


@pytest.mark.row("D-24")
def test_what_comes_while_a_client_is_away_waits_for_it(place: Place) -> None:
    # Given a durable subscription, of a type that nobody marks
    pad = place.pad()
    light, registration = place.register("event", persist=None)
    with SubscriberAdapter(place.federation.config) as subscriber:
        mine = subscriber.register_subscriber(type_name="event", predicate="/m/n mod 2 = 1", durable="desk")
        assert subscriber.wait_matched(mine) == 1
        first = [light.publish(registration, f"<m><n>{n}</n></m>") for n in range(10)]
        light.flush()
        assert ids(taken(subscriber, mine, 5)) == first[1::2]
    # When it is away, and much is published, over a restart of the delegate
    away = [light.publish(registration, f"<m><n>{n}</n></m>") for n in range(1_000)]
    light.flush()
    pad.stop(0.5)
    place.pad()
    more = [light.publish(registration, f"<m><n>{n}</n></m>") for n in range(10)]
    light.flush(60.0)
    # Expect all of it when it is back, in order, once
    with SubscriberAdapter(place.federation.config) as subscriber:
        mine = subscriber.register_subscriber(type_name="event", predicate="/m/n mod 2 = 1", durable="desk")
        assert ids(taken(subscriber, mine, 505)) == [*away[1::2], *more[1::2]]
        assert subscriber.losses(mine) == {}


def test_what_rules_took_before_a_client_came_back_is_told_as_expired(
    place: Place, tmp_path: Path, eventually: Any
) -> None:
    # Given rules that keep ten objects, and a durable subscription that has had one and is away
    policy = tmp_path / "policy.toml"
    policy.write_text("[[keep]]\ntype = 'event'\ncount = 10\n")
    pad = place.pad(policy=str(policy))
    with SubscriberAdapter(place.federation.config) as subscriber:
        mine = subscriber.register_subscriber(type_name="event", durable="desk", start="all")
        first = place.publish("event", "<m/>", persist=None)
        assert ids(taken(subscriber, mine, 1)) == first
    away = place.publish("event", *["<m/>"] * 300, persist=None)
    # When the rules have taken some of what it has not had
    keeping: Any = pad._stages.archive.keeping  # type: ignore[union-attr]  # it has one
    eventually(lambda: pad.status()["archive"]["packs"] > 0)
    keeping.retain()
    # Expect it to get what is left, and to be told of the others by their cause and number
    with SubscriberAdapter(place.federation.config) as subscriber:
        mine = subscriber.register_subscriber(type_name="event", durable="desk")
        left = list(subscriber.query("event"))
        assert 10 <= len(left) < 300
        assert ids(taken(subscriber, mine, len(left))) == ids(left) == away[-len(left) :]
        eventually(lambda: subscriber.losses(mine) == {"expired": 300 - len(left)})


def test_what_was_deleted_before_a_client_came_back_is_told_as_expired(place: Place, eventually: Any) -> None:
    # Given a durable subscription that has had one of twenty objects
    pad = place.pad()
    with SubscriberAdapter(place.federation.config) as subscriber:
        mine = subscriber.register_subscriber(type_name="event", durable="desk", start="all")
        first = place.publish("event", "<m/>", persist=None)
        assert ids(taken(subscriber, mine, 1)) == first
    away = place.publish("event", *["<m/>"] * 20, persist=None)
    # When ten of those that it has not had are deleted
    keeping: Any = pad._stages.archive.keeping  # type: ignore[union-attr]  # it has one
    scopes = (Scope(TypeName("event", "1.0")),)
    assert keeping.delete(HistoryQuery(scopes=scopes, after=1, up_to=11)) == 10
    # Expect it to get the others, and to be told of those
    with SubscriberAdapter(place.federation.config) as subscriber:
        mine = subscriber.register_subscriber(type_name="event", durable="desk")
        assert ids(taken(subscriber, mine, 10)) == away[10:]
        eventually(lambda: subscriber.losses(mine) == {"expired": 10})


def test_what_passed_an_archive_without_room_is_told_to_who_waits_as_expired(place: Place, eventually: Any) -> None:
    # Given an archive that lets pass what it has no room for, a subscription, a durable one that reads slowly, and one
    # that is away
    settings = {"full": "pass", "max_payload_bytes": 2_300}
    pad = place.pad(**settings)
    light, registration = place.register("event")
    subscriber = place.federation.subscriber()
    plain = subscriber.register_subscriber(type_name="event")
    slow = subscriber.register_subscriber(type_name="event", durable="slow", bound=3, ack="explicit")
    with SubscriberAdapter(place.federation.config) as away:
        assert away.wait_matched(away.register_subscriber(type_name="event", durable="desk")) == 1
    assert all(subscriber.wait_matched(each) == 1 for each in (plain, slow))
    # When it keeps some of twenty objects
    published = []
    for _ in range(20):
        published.append(light.publish(registration, "<m/>", bytes(300)))
        light.flush()
    assert ids(taken(subscriber, plain, 20)) == published
    missing = pad.status()["archive"]["counters"]["not_archived"]
    assert 5 < missing < 20

    def losses_of(subscriber: SubscriberAdapter, mine: SubscriptionUid) -> dict[str, int]:
        """Expect it to get all that is kept, in order, and to be told of what does not come."""
        had: list[InfoObject] = []
        published.append(light.publish(registration, "<m/>"))
        while not had or had[-1].object_id != published[-1]:
            had += filter(None, [subscriber.receive(mine, 60.0)])
            subscriber.acknowledge(had[-1])
        assert ids(had) == [each for each in published if each in ids(had)]
        assert ids(had)[: 20 - missing] == published[: 20 - missing]
        eventually(lambda: sum(subscriber.losses(mine).values()) + len(had) == len(published))
        return subscriber.losses(mine)

    losses_of(subscriber, slow)  # which may have got some at once
    # and the same behind a restart
    pad.stop(0.5)
    place.pad(**settings)
    with SubscriberAdapter(place.federation.config) as back:
        mine = back.register_subscriber(type_name="event", durable="desk", ack="explicit")
        assert losses_of(back, mine) == {"expired": missing}


@pytest.mark.row("X-01")
def test_an_object_has_one_id_wherever_it_is_met(place: Place, postbox: Any, eventually: Any) -> None:
    # Given a subscription of an application, one by e-mail, and an archive
    pad = place.pad()
    subscriber = place.federation.subscriber()
    light, registration = place.register("report")
    live = subscriber.register_subscriber(type_name="report", recipients=["s2@example.org"], direct=True)
    assert subscriber.wait_matched(live) == 1
    # When an object is published; Expect its id in each of them
    object_id = light.publish(registration, "<m/>", b"a payload")
    light.flush()
    assert ids(taken(subscriber, live, 1)) == [object_id]
    eventually(lambda: postbox.envelopes)
    assert f"X-JBI-Object-Id: {object_id}".encode() in postbox.envelopes[0].content
    assert ids(subscriber.query("report")) == [object_id]
    # and after a restart
    pad.stop(0.5)
    place.pad()
    assert subscriber.get(object_id).payload == b"a payload"


def test_the_largest_object_is_kept_and_found(place: Place) -> None:
    # Given an object that nearly fills what may be published, and small ones around it
    pad = place.pad()
    largest = bytes(range(256)) * (62 << 12)
    sent = [place.publish("report", "<m/>", payload=payload)[0] for payload in (b"1", largest, b"2")]
    # When it is asked for after a restart; Expect it whole, between the others
    pad.stop(0.5)
    place.pad()
    found = list(place.federation.subscriber().query("report"))
    assert ids(found) == sent
    assert found[1].payload == largest


def test_many_queries_are_open_at_once_and_more_are_refused(place: Place, eventually: Any) -> None:
    # Given an archive that takes no more than thirty queries, and an application with as many as it may have
    pad = place.pad(max_queries=30)
    place.publish("report", *["<m/>"] * 300)
    with SubscriberAdapter(place.federation.config) as subscriber:
        standing = [subscriber.open_query("report") for _ in range(20)]
        # When it opens another one; Expect it to be told so, and the others not to notice
        with pytest.raises(BackPressureError, match="20 queries of this subscriber"):
            subscriber.open_query("report").get_next()
        assert all(len(query.get_next(1_000)) == 300 for query in standing)
        # When it leaves with queries that it has taken nothing of
        left = [subscriber.open_query("report") for _ in range(20)]
        assert pad.status()["archive"]["queries"]["open"] == 20
    assert {query.state for query in left} == {"cancelled"}
    # Expect none of them to be left
    eventually(lambda: pad.status()["archive"]["queries"]["open"] == 0)


@pytest.mark.parametrize("start", ["all", "last", "a time", "a position"])
def test_what_is_past_comes_and_then_what_is_published_however_fast(place: Place, start: str) -> None:
    # Given a past, partly in packs, and a publisher that goes on without a pause
    place.pad()
    light, registration = place.register("report")
    past = [light.publish(registration, f"<m><n>{n}</n></m>") for n in range(400)]
    light.flush()
    subscriber = place.federation.subscriber()
    middle = next(iter(subscriber.query("report", predicate="/m/n = 200")))
    at = datetime.fromtimestamp(middle.platform.published - 1e-5, UTC)
    begins: dict[str, Any] = {"all": "all", "last": "last", "a time": at, "a position": middle.platform.position}
    sent = list(past)

    def go_on() -> None:
        sent.extend(light.publish(registration, f"<m><n>{len(past) + n}</n></m>") for n in range(400))

    publishing = threading.Thread(target=go_on)
    publishing.start()
    # When a subscription begins there, with a queue of ten that publishers wait for
    uid = subscriber.register_subscriber(type_name="report", start=begins[start], bound=10, policy="block")
    found = [obj for obj in [subscriber.receive(uid, 60.0)] if obj is not None]
    while found[-1].platform.sequence < 800 and (obj := subscriber.receive(uid, 20.0)) is not None:
        found.append(obj)
    publishing.join(60.0)
    # Expect all from its beginning on, each once, in order
    first = sent.index(found[0].object_id)
    assert ids(found) == sent[first:]
    assert subscriber.losses(uid) == {}
    expected = {"all": [0], "a time": [199, 200], "a position": [201], "last": range(399, 800)}
    assert first in expected[start]


def test_a_durable_name_is_its_owners(place: Place, tmp_path: Path) -> None:
    # Given a durable subscription of one user, who has had all there is
    place.pad()
    configs = {
        user: msgspec.structs.replace(place.federation.config, client=ClientSection(owner=str(tmp_path / user)))
        for user in ("anna", "bert")
    }
    sent = place.publish("event", *["<m/>"] * 5)

    def opened(user: str, count: int) -> list[str]:
        with SubscriberAdapter(configs[user]) as subscriber:
            mine = subscriber.register_subscriber(type_name="event", durable="d", start="all")
            return ids(taken(subscriber, mine, count))

    assert opened("anna", 5) == sent
    # When another one takes the same name; Expect his own to begin, and hers to go on where it was
    with SubscriberAdapter(configs["bert"]) as subscriber, pytest.raises(UnknownUidError):
        subscriber.reset_durable("d", "all")
    assert opened("bert", 5) == sent
    more = place.publish("event", "<m/>")
    with SubscriberAdapter(configs["bert"]) as subscriber:
        assert subscriber.reset_durable("d", "all") == 1
    assert opened("anna", 1) == more
    assert opened("bert", 6) == [*sent, *more]
