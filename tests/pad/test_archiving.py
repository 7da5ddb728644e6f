"""What a delegate archives: exactly what is to be kept, in the order of positions, before it is acknowledged."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec
import pytest
from keeping import MemoryKeeping

from jbi_pubsub import Config, InfoObject, PublisherAdapterLight
from jbi_pubsub.core.config import ArchiveSection, PolicySection, QosSection
from jbi_pubsub.core.errors import (
    AccessDeniedError,
    BackPressureError,
    ConfigurationError,
    JbiError,
    MetadataError,
    StorageError,
)
from jbi_pubsub.core.history import KeepRule
from jbi_pubsub.core.info_object import (
    Cause,
    Head,
    Parcel,
    Platform,
    SchemaBundle,
    TypeName,
    object_id_of,
    pack,
    packed,
)
from jbi_pubsub.pad.egress.session import Deliveries
from jbi_pubsub.pad.ingress.stages import Stages
from jbi_pubsub.pad.matching.recent import RecentBuffers
from jbi_pubsub.pad.matching.registration import Registration
from jbi_pubsub.pad.past.archiving import Archiving, entries_of
from jbi_pubsub.protocol.ownership import owned_uid
from jbi_pubsub.protocol.requests import PublisherRequest
from jbi_pubsub.protocol.status.archive import QueriesStatus
from jbi_pubsub.qos.enforcement import Enforcement
from tests.conftest import Federation, Figures
from tests.pad.test_first_object import World, secret

pytestmark = pytest.mark.processes

Refusals = list[tuple[int, JbiError]]


class Archived(World):
    """A delegate with an archive in memory."""

    def __init__(self, keeping: MemoryKeeping, monkeypatch: pytest.MonkeyPatch, *, qos: bool = False) -> None:
        def stages(*_: Any) -> Stages:
            buffers = RecentBuffers(10.0, 64 << 20)
            self.archive = Archiving(keeping, buffers)
            quality = Enforcement(of_quality(Config(), "on"), "alpha@rome", None) if qos else None
            return Stages(buffers, archive=self.archive, quality=quality)

        with monkeypatch.context() as patched:
            patched.setattr("jbi_pubsub.pad.delegate.delegate.stages_of", stages)
            super().__init__()
        self.keeping = keeping

    def enter(self, name: str, persist: bool | None) -> Registration:  # a publisher's word
        """A registration that says so."""
        number = len(self.registrations) + 1
        uid = owned_uid("registration", secret(name))
        request = PublisherRequest(SchemaBundle("main.xsd", ()), (), secret=secret(name), persist=persist)
        made = self.delegate.registrations.register(self.connection, request, uid=uid, number=number)
        self.registrations.append(made)
        self.delegate.registrations.announced(uid, 0)
        return made

    def send(
        self, registration: Registration, *sequences: int, metadata: bytes = b"<m/>", payload: bytes = b"p"
    ) -> Refusals:
        """A batch; the numbers that were refused, and why."""
        return self.judge(registration, *sequences, metadata=metadata, payload=payload)()

    def judge(
        self, registration: Registration, *sequences: int, metadata: bytes = b"<m/>", payload: bytes = b"p"
    ) -> Callable[[], Refusals]:
        """A batch up to where it is delivered; what does that."""
        uid = registration.uid
        heads = [Head(object_id_of(uid, n), uid, n, 1.0, "t", "1.0", metadata, len(payload)) for n in sequences]
        run = [Parcel.received(b"".join(pack(head, payload).parts)) for head in heads]
        deliveries = Deliveries()
        refused = self.delegate.publishers.publish(registration, run, deliveries)

        def deliver() -> Refusals:
            self.delegate.pipeline.distribution.deliver(deliveries)
            refused.extend(self.delegate.pipeline.persistence.sync(run))
            return [(parcel.head.sequence, why) for parcel, why in refused]

        return deliver


@pytest.fixture
def make(standing: Callable[..., Any]) -> Callable[..., Archived]:
    return partial(standing, Archived)


@pytest.fixture
def place(make: Callable[..., Archived], keeping: MemoryKeeping) -> Archived:
    return make(keeping)


# -- what is kept -------------------------------------------------------------------------------------------------


@pytest.mark.row("Q-05")
def test_of_half_the_objects_marked_exactly_those_are_kept(place: Archived, keeping: MemoryKeeping) -> None:
    # Given two registrations that publish by turns, of which one is to be kept
    kept, other = place.enter("kept", persist=True), place.enter("other", persist=None)
    for number in range(1, 21):
        assert not place.send(other, number)
        assert not place.send(kept, number)
    # Expect its objects alone, as they came, at positions that go up and leave room for the others'
    assert keeping.numbers() == [(kept.uid, number) for number in range(1, 21)]
    assert [position for position, _, _ in keeping.records] == list(range(2, 41, 2))
    assert keeping.synced == 40
    # And what a template is matched with later
    assert [source.uid for source in keeping.sources()] == [kept.uid]
    source = keeping.known[kept.uid]
    assert (source.type, source.publisher, entries_of(source.entries)[:-1]) == (
        TypeName("t"), "publisher", kept.topic.entries,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("types", "count", "persist", "is_kept"),
    [
        (("t",), None, None, True),
        (("x", "t*"), None, None, True),
        (("x",), None, None, False),
        (("t",), 0, None, False),
        (("t",), None, False, False),
        (("x",), None, True, True),
        (("t",), 0, True, True),
        ((), None, None, False),
    ],
)
def test_rules_decide_where_the_publisher_does_not(
    place: Archived,
    keeping: MemoryKeeping,
    types: tuple[str, ...],
    count: int | None,
    persist: bool | None,  # a publisher's word
    is_kept: bool,
) -> None:
    rules = (KeepRule(types=types, count=count), KeepRule(types=("*",), count=0)) if types else ()
    place.archive.follow(rules)
    assert keeping.rules == rules
    registration = place.enter("a", persist=persist)
    assert not place.send(registration, 1)
    assert bool(keeping.records) == registration.persist == is_kept


def test_the_first_rule_of_a_type_counts(place: Archived) -> None:
    place.archive.follow([KeepRule(types=("t",), count=0), KeepRule(types=("*",))])
    assert not place.enter("a", persist=None).persist


def test_rule_may_leave_what_bridges_bring_to_those_who_publish_it(place: Archived) -> None:
    # Given a rule for what is published here, expect that kept, and what is relayed if its publisher wishes it
    place.archive.follow([KeepRule(relayed=False)])
    t = TypeName("t")
    assert place.archive.is_kept(None, t, ())
    assert not place.archive.is_kept(None, t, (), is_relayed=True)
    assert place.archive.is_kept(True, t, (), is_relayed=True)  # a publisher's word


def test_what_is_refused_is_not_kept(place: Archived, keeping: MemoryKeeping) -> None:
    registration = place.enter("a", persist=True)
    assert [number for number, _ in place.send(registration, 1, metadata=b"<m>")] == [1]
    assert not place.send(registration, 2)
    assert keeping.numbers() == [(registration.uid, 2)]


def test_a_run_is_appended_at_once(place: Archived, keeping: MemoryKeeping) -> None:
    place.send(place.enter("a", persist=True), *range(1, 51))
    assert keeping.appends == [50]
    assert keeping.syncs == 1


def test_without_an_archive_nothing_can_be_marked() -> None:
    place = World()
    try:
        uid = owned_uid("registration", secret(1))
        request = PublisherRequest(SchemaBundle("main.xsd", ()), (), secret=secret(1), persist=True)
        with pytest.raises(ConfigurationError, match="needs an archive"):
            place.delegate.registrations.register(place.connection, request, uid=uid, number=1)
        assert not place.delegate.tables.registrations
        place.register()
    finally:
        place.delegate.subscribers.late_joiners._thread = None
        place.delegate.close()


# -- when the disk fails ------------------------------------------------------------------------------------------


def test_a_store_may_tell_more_of_itself_than_is_known_here(
    place: Archived, keeping: MemoryKeeping, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given a store of somebody else
    told = {**keeping.status(), "position": 7, "queries": 2, "shards": 12}
    monkeypatch.setattr(keeping, "status", lambda: told)
    # Expect what is known to be told, and the rest not
    status = place.archive.status()
    assert status["position"] == 7
    assert "shards" not in status
    assert isinstance(status.queries, QueriesStatus)


def test_what_cannot_be_kept_is_refused_and_nobodys(place: Archived, keeping: MemoryKeeping) -> None:
    # Given somebody who waits, and a disk that fails
    kept, other = place.enter("a", persist=True), place.enter("b", persist=None)
    there = place.subscribe(age=0.0)
    keeping.fails["append"] = True
    # When objects are published that are to be kept, and others
    refused = place.send(kept, 1, 2)
    assert [(number, type(why)) for number, why in refused] == [(1, StorageError), (2, StorageError)]
    assert not place.send(other, 1)
    # Expect those others alone to come, also to who comes later and stood before; the refused can't be recalled
    late = place.subscribe(age=50.0)
    place.serve_all()
    assert [place.sequences(there), place.sequences(late)] == [[1], [1]]
    assert place.got[there] == place.got[late] == [(other.uid, 1)]
    assert place.lost[there] == place.lost[late] == {Cause.SEQUENCE_GAP: 2}
    assert place.delegate.tables.buffers.find(object_id_of(kept.uid, 1)) is None
    assert (kept.totals.published, kept.totals.refused) == (0, 2)
    # And when the disk is mended, it goes on behind a gap that was told
    keeping.fails.clear()
    assert not place.send(kept, 3)
    assert keeping.numbers() == [(kept.uid, 3)]
    assert place.got[there] == [(other.uid, 1)]
    place.read()
    assert place.got[there][-1] == (kept.uid, 3)
    assert place.lost[there] == {Cause.SEQUENCE_GAP: 2}


def test_what_is_not_as_it_was_registered_is_a_gap_that_is_told(place: Archived) -> None:
    # Given somebody who waits
    registration = place.enter("a", persist=None)
    there = place.subscribe(age=0.0)
    assert not place.send(registration, 1)
    # When objects come between others whose metadata are none
    ((number, why),) = place.send(registration, 2, metadata=b"\xff\xff")
    assert (number, type(why)) == (2, MetadataError)
    assert not place.send(registration, 3)
    # Expect the others, and that one to be told as lost, once
    assert place.sequences(there) == [1, 3]
    assert place.lost[there] == {Cause.SEQUENCE_GAP: 1}


def test_what_is_not_on_disk_in_the_end_is_refused(place: Archived, keeping: MemoryKeeping) -> None:
    kept, other = place.enter("a", persist=True), place.enter("b", persist=None)
    assert not place.send(kept, 1)
    keeping.fails["sync"] = True
    refused = place.send(kept, 2, 3)
    assert [(number, type(why)) for number, why in refused] == [(2, StorageError), (3, StorageError)]
    assert not place.send(other, 1)
    keeping.fails.clear()
    assert not place.send(kept, 4)
    assert keeping.numbers() == [(kept.uid, 1), (kept.uid, 4)]
    assert place.archive.status()["refused"] == 2


def test_what_finds_no_room_is_refused_before_it_costs_anything(place: Archived, keeping: MemoryKeeping) -> None:
    kept, other = place.enter("a", persist=True), place.enter("b", persist=None)
    keeping.fails["room"] = True
    ((number, why),) = place.send(kept, 1)
    assert (number, type(why), keeping.appends) == (1, StorageError, [])
    assert not place.send(other, 1)


def test_a_registration_whose_entries_can_not_be_kept_is_refused(place: Archived, keeping: MemoryKeeping) -> None:
    keeping.fails["register"] = True
    with pytest.raises(StorageError):
        place.enter("a", persist=True)
    assert not place.delegate.tables.registrations
    keeping.fails.clear()
    place.enter("a", persist=True)


# -- after a restart ----------------------------------------------------------------------------------------------


def test_what_is_sent_again_after_a_kill_is_delivered_and_not_kept_twice(
    make: Callable[..., Archived], keeping: MemoryKeeping
) -> None:
    # Given a delegate that has kept three objects and is gone before their publisher knows
    before = make(keeping)
    registration = before.enter("a", persist=True)
    before.send(registration, 1, 2, 3)
    # When another one with the same archive is sent the last two again, and a new one in the same batch
    after = make(keeping)
    again = after.enter("a", persist=True)
    there = after.subscribe(age=0.0)
    assert not after.send(again, 2, 3, 4)
    # Expect all of them to be delivered, as nobody may have had them, and the new one alone to be kept
    assert after.sequences(there) == [2, 3, 4]
    assert keeping.numbers() == [(registration.uid, number) for number in (1, 2, 3, 4)]
    # And its position to be behind all that there were
    assert [position for position, _, _ in keeping.records] == [1, 2, 3, 6]


def test_what_comes_again_waits_for_the_disk_as_well(place: Archived, keeping: MemoryKeeping) -> None:
    # Given objects that were appended by a connection that broke before anybody waited for the disk
    kept = place.enter("kept", persist=True)
    place.judge(kept, 1, 2)
    assert (keeping.end, keeping.synced) == (2, 0)
    # When they come again, which are known by their numbers
    refused = place.judge(kept, 1, 2)
    assert keeping.end == 2
    assert refused() == []
    assert keeping.synced == 0  # nothing of this batch was appended
    # Expect whoever acknowledges them to wait for what was
    assert place.delegate.pipeline.persistence.sync((), comes_again=True) == []
    assert keeping.synced == 2


def test_two_publishers_at_once_keep_the_order_of_positions(place: Archived, keeping: MemoryKeeping) -> None:
    # Given four registrations that publish from a thread each; the archive takes no position that does not go up
    registrations = [place.enter(f"r{number}", persist=True) for number in range(4)]
    failed: list[object] = []

    def publish(registration: Registration) -> None:
        for first in range(1, 400, 4):
            failed.extend(place.send(registration, *range(first, first + 4)))

    threads = [threading.Thread(target=publish, args=(each,)) for each in registrations]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60.0)
    # Expect all there, of each registration in its order
    assert not failed
    numbers = keeping.numbers()
    for registration in registrations:
        assert [number for uid, number in numbers if uid == registration.uid] == list(range(1, 401))
    assert keeping.synced == keeping.end == 1_600


# -- over sockets -------------------------------------------------------------------------------------------------


def of_quality(config: Config, mode: Any) -> Config:
    return msgspec.structs.replace(config, qos=QosSection(mode=mode))


def begun(federation: Federation, figures: Figures, **options: Any) -> tuple[PublisherAdapterLight, Any]:
    light = federation.light(**options)
    delegate = light.connect_to_delegate("alpha", "rome")
    return light, light.register_publisher(delegate, figures.schema, figures.figure_1, persist=True)


@pytest.mark.parametrize("mode", ["off", "on"])
def test_nothing_is_done_before_it_is_on_disk(
    archived: Federation, figures: Figures, keeping: MemoryKeeping, eventually: Any, mode: str
) -> None:
    # Given a disk that does not answer
    archived.config = of_quality(archived.config, mode)
    archived.lookup()
    pad = archived.pad()
    keeping.may_sync.clear()
    light, registration = begun(archived, figures)
    # When objects are published
    for _ in range(3):
        light.publish(registration, figures.figure_1)
    # Expect them to be kept, and their publisher not to let go of them
    eventually(lambda: len(keeping.records) == 3)
    with pytest.raises(BackPressureError, match="3 objects"):
        light.flush(0.3)
    # And to be done when the disk has them
    keeping.may_sync.set()
    light.flush(60.0)
    assert keeping.synced == 3
    assert pad.status()["archive"]["position"] == 3
    assert pad.status()["registrations"][0]["persist"] is True


class Way:
    """A way on which objects come that the archive has when it is told so."""

    def __init__(self, take: Callable[[], object]) -> None:
        self._take = take
        self.asked: list[int] = []

    def due(self) -> int:
        return 1

    def has_taken(self, number: int) -> bool:
        self.asked.append(number)
        if len(self.asked) == 2:
            self._take()
        return len(self.asked) >= 2


def test_what_is_on_its_way_to_the_archive_comes_to_who_begins_in_the_past(
    archived: Federation, figures: Figures
) -> None:
    # Given an object of another node that is not in the archive yet
    archived.lookup()
    archive = archived.pad()._stages.archive
    assert archive is not None
    metadata = figures.figure_1
    at = Platform(1.0, "registration-far", 1, len(metadata), 0)
    parcel = packed(InfoObject("0" * 32, TypeName("mil.af.rl.jbi.Intel_Imagery", "1.0"), metadata, b"", at)).in_memory()
    archive.arrivals.add(way := Way(lambda: archive.take_in([parcel], {})))
    begun(archived, figures)
    # When a subscription begins with all that is there
    subscriber = archived.subscriber()
    uid = subscriber.register_subscriber(type_name="Intel_Imagery", start="all")
    # Expect it to wait for that
    found = subscriber.receive(uid, 60.0)
    assert (found and found.object_id, way.asked) == ("0" * 32, [1, 1])


@pytest.mark.parametrize("mode", ["off", "on"])
def test_with_a_disk_that_fails_publishers_are_told(
    archived: Federation, figures: Figures, keeping: MemoryKeeping, eventually: Any, mode: str
) -> None:
    archived.config = of_quality(archived.config, mode)
    archived.lookup()
    archived.pad()
    told: list[tuple[str, JbiError]] = []
    light, registration = begun(archived, figures, refused=lambda object_id, why: told.append((object_id, why)))
    keeping.fails["sync"] = True
    first = light.publish(registration, figures.figure_1)
    eventually(lambda: told)
    keeping.fails = {"append": True}
    second = light.publish(registration, figures.figure_1)
    eventually(lambda: len(told) == 2)
    keeping.fails = {"room": True}
    third = light.publish(registration, figures.figure_1)
    eventually(lambda: len(told) == 3)
    keeping.fails = {}
    light.publish(registration, figures.figure_1)
    light.flush(60.0)
    assert [(object_id, type(why)) for object_id, why in told] == [(o, StorageError) for o in (first, second, third)]
    assert [number for _, number in keeping.numbers()] == [4]


def test_with_quality_of_service_others_go_on_while_a_disk_waits(
    archived: Federation, figures: Figures, keeping: MemoryKeeping
) -> None:
    # Given a disk that does not answer, and an object that waits for it
    archived.config = of_quality(archived.config, "on")
    archived.lookup()
    archived.pad()
    keeping.may_sync.clear()
    light, kept = begun(archived, figures)
    other = light.register_publisher(light.connect_to_delegate("alpha", "rome"), figures.schema, figures.figure_1)
    app = archived.subscriber()
    light.publish(kept, figures.figure_1)
    uid = app.register_subscriber(figures.figure_3, schema=figures.schema)
    assert light.wait_for_subscribers(other, 1, 10.0)
    # When another registration publishes over the same connection
    for _ in range(5):
        light.publish(other, figures.figure_1)
    # Expect its objects to come, all the same
    assert all(app.receive(uid, 60.0) for _ in range(5))
    keeping.may_sync.set()
    light.flush(60.0)


def test_who_may_not_mark_is_told(archived: Federation, figures: Figures, tmp_path: Any) -> None:
    path = tmp_path / "policy.toml"
    path.write_text("[[access]]\naction = ['connect', 'publish', 'subscribe', 'status']\n")
    archived.config = msgspec.structs.replace(archived.config, policy=PolicySection(file=str(path)))
    archived.lookup()
    archived.pad()
    light = archived.light()
    delegate = light.connect_to_delegate("alpha", "rome")
    with pytest.raises(AccessDeniedError, match="persist"):
        light.register_publisher(delegate, figures.schema, figures.figure_1, persist=True)
    light.register_publisher(delegate, figures.schema, figures.figure_1)


def test_rules_of_a_policy_file_keep_what_they_name(
    archived: Federation, figures: Figures, keeping: MemoryKeeping, tmp_path: Any
) -> None:
    path = tmp_path / "policy.toml"
    path.write_text("[[keep]]\ntype = 'mil.af.*'\nage = '30 d'\n")
    archived.config = msgspec.structs.replace(archived.config, policy=PolicySection(file=str(path)))
    archived.lookup()
    archived.pad()
    light = archived.light()
    registration = figures.register(light)
    light.publish(registration, figures.figure_1)
    light.flush(60.0)
    assert [rule.name for rule in keeping.rules] == ["policy.toml:1"]
    assert len(keeping.records) == 1


def test_a_peer_publisher_has_one_too(archived: Federation, figures: Figures, keeping: MemoryKeeping) -> None:
    archived.lookup()
    peer = archived.peer()
    registration = peer.register_publisher(figures.schema, figures.figure_1, persist=True)
    peer.publish(registration, figures.figure_1, b"payload")
    # Expect it to be on disk when the call returns
    assert keeping.synced == 1
    # And a failure to be raised, with how many of many were published
    keeping.fails["sync"] = True
    with pytest.raises(StorageError) as caught:
        peer.publish_many(registration, [(figures.figure_1, b"1"), (figures.figure_1, b"2")])
    assert caught.value.facts["published"] == 0
    keeping.fails = {"append": True}
    with pytest.raises(StorageError):
        peer.publish(registration, figures.figure_1)
    keeping.fails = {}
    peer.publish(registration, figures.figure_1)
    assert [number for _, number in keeping.numbers()] == [1, 4]
    peer.close()
    assert keeping.closed == 1


# -- off ----------------------------------------------------------------------------------------------------------


def test_without_a_folder_nothing_of_it_is_imported() -> None:
    script = """
import sys, threading
from jbi_pubsub import Config
from jbi_pubsub.codegen.repository import TypeRepository
from jbi_pubsub.core.config import LookupSection
from jbi_pubsub.pad.server.server import DisseminationServer
config = Config(lookup=LookupSection(multicast=False, locators=()))
server = DisseminationServer(config, TypeRepository(), characteristics=("a", "b"))
server.start()
ours = ("jbi_pubsub.archive", "jbi_pubsub.pad.past.archiving", "jbi_pubsub.pad.past.queries", "duckdb")
found = [name for name in sys.modules if name.startswith(ours)]
before = {thread.name.rpartition("-")[0] for thread in threading.enumerate()} - {""}
found += sorted(before - {"deliver", "mail", "pad-a-b", "ticker"})
pipeline = server.delegate.pipeline
found += ["room"] if pipeline.control.has_stages or pipeline.persistence.archives else []
server.stop(0.0)
print(found)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]", done.stdout


@pytest.mark.parametrize("name", ["duckdb", "numpy"])
def test_a_missing_library_is_named_with_its_extra(
    federation: Federation, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda asked, *_: None if asked == name else object())
    federation.config = msgspec.structs.replace(federation.config, archive=ArchiveSection(folder="/nowhere"))
    with pytest.raises(ConfigurationError, match=name) as caught:
        federation.pad()
    assert "jbi-pubsub[archive]" in caught.value.hint
