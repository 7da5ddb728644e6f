"""Persistence over a node's networks: what is kept elsewhere, what is fetched, and deleted everywhere."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from keeping import MemoryKeeping

from jbi_pubsub.core.errors import BackPressureError, ProtocolError, StorageError
from jbi_pubsub.core.history import HistoryQuery, Scope, TakenIn
from jbi_pubsub.core.info_object import Head, InfoObject, Parcel, TypeName, object_id_of, pack
from jbi_pubsub.core.node_sections import NodeSection
from jbi_pubsub.network.datagram import DatagramKind, DatagramMode
from jbi_pubsub.network.message import NodeMessage
from jbi_pubsub.node.bodies import (
    IDS_MOST,
    AssistanceBody,
    DeletionBody,
    OfferBody,
    SequenceBody,
    decoded_assistance,
)
from jbi_pubsub.node.deletions import TOLD_SECONDS, NodeDeletions
from jbi_pubsub.node.identity import CLOCK_MOST
from jbi_pubsub.node.keeping import VolunteerKeeping, _Deletion
from jbi_pubsub.node.persistence import NodePersistence
from jbi_pubsub.pad.matching.recent import RecentBuffers
from jbi_pubsub.pad.past.archiving import Archiving
from jbi_pubsub.pad.past.arrivals import ArrivalWay
from jbi_pubsub.pad.past.deletions import ArchiveDeletions
from jbi_pubsub.protocol.remote import RemoteAnswers
from jbi_pubsub.protocol.requests import QueryRequest

TRACK = TypeName("track", "1.0")
UID = "registration-1"


def parcel(number: int, uid: str = UID, type_: str = TRACK.name) -> Parcel:
    head = Head(object_id_of(uid, number), uid, number, 5.0, type_, TRACK.version, b"<m/>", 1)
    return Parcel.received(b"".join(map(bytes, pack(head, b"p").parts)))


def ids(*numbers: int) -> set[str]:
    return {object_id_of(UID, number) for number in numbers}


def ids_of(data: bytes) -> tuple[str, ...]:
    body = decoded_assistance(data)
    assert isinstance(body, DeletionBody)
    return body.ids


class Store:
    """An archive in memory."""

    def __init__(self) -> None:
        self.archiving = Archiving(MemoryKeeping(), RecentBuffers(10.0, 64 << 20))  # type: ignore[arg-type]
        self._deletions = ArchiveDeletions(self.archiving)
        self.archived: set[str] = set()
        self.arrivals: list[ArrivalWay] = []
        self.fails = 0
        self.goes = threading.Event()
        self.goes.set()

    def take_in(self, parcels: Sequence[Parcel], entries: dict[str, Any]) -> TakenIn:
        self.goes.wait()
        if self.fails:
            self.fails -= 1
            raise StorageError("the disk is full")
        return self.archiving.take_in(parcels, entries)

    def delete(self, object_ids: Sequence[str]) -> None:
        self._deletions.delete_as_told(object_ids)

    def archives(self, uid: str) -> bool:
        return uid in self.archived

    def follow(self, way: ArrivalWay) -> None:
        self.arrivals.append(way)

    def ids(self) -> set[str]:
        found = self.archiving.answers(HistoryQuery(scopes=(Scope(TRACK),)))
        return {Parcel.received(each.data).head.object_id for each in found}


class Answers:
    """Answers of other nodes."""

    lacks = ""

    def __init__(self, found: list[InfoObject]) -> None:
        self._found = found

    def __iter__(self) -> Iterator[InfoObject]:
        return iter(self._found)

    def cancel(self) -> None: ...


class Air:
    """A network that loses nothing; each node is on it as one that says, hears and asks."""

    def __init__(self) -> None:
        self.nodes: dict[bytes, PersistentNode] = {}
        self.said: list[NodeMessage] = []
        self.durable: dict[tuple[bytes, bytes], NodeMessage] = {}
        self.registrations: dict[str, SequenceBody] = {}
        """Those that are there."""
        self.owner = b""

    def say(self, message: NodeMessage) -> None:
        self.said.append(message)
        if message.mode == DatagramMode.DURABLE:
            self.durable[message.origin, message.durability] = message
        for node in list(self.nodes.values()):
            if node.id != message.origin and message.to in (b"", node.id) and message.body:
                node.persistence.hear(message)

    def join(self, node: PersistentNode) -> None:
        self.nodes[node.id] = node
        for message in filter(lambda each: each.body, self.durable.values()):
            node.persistence.hear(message)

    def publish(self, by: PersistentNode, *numbers: int) -> None:
        for number in numbers:
            data = b"".join(map(bytes, parcel(number).parts))
            message = NodeMessage(DatagramKind.PUBLICATION, DatagramMode.RELIABLE, data, by.id)
            for node in self.nodes.values():
                if node is not by:
                    node.persistence.came(message)


class PersistentNode:
    """A node's part in it."""

    def __init__(
        self,
        air: Air,
        number: int,
        tmp_path: Path,
        *,
        epoch: int = CLOCK_MOST,
        store: Store | None = None,
        **settings: Any,
    ) -> None:
        self.id = bytes((number,)) * 16
        self._air, self._epoch = air, epoch
        self.has_room = True
        self.refused = 0
        self.asked: list[QueryRequest] = []
        self.store = store
        self.deletions = NodeDeletions(tmp_path / f"deletions-{number}.db") if store is not None else None
        section = NodeSection(**{"offer_seconds": 0.02, "persist_elsewhere": True, "node_timeout": 1.0, **settings})
        self.persistence = NodePersistence(self.id, epoch, section, self, store, self.deletions)
        self.persistence.start()
        air.join(self)

    def publish(self, *, is_persistent: bool = True) -> None:
        """Register."""
        self._air.owner = self.id
        self._air.registrations[UID] = SequenceBody(1, UID, TRACK, bytes(16), is_persistent=is_persistent)

    def persistent(self) -> Collection[str]:
        found = self._air.registrations if self._air.owner == self.id else {}
        return [uid for uid, each in found.items() if each.is_persistent]

    def remote(self, uid: str) -> SequenceBody | None:
        return self._air.registrations.get(uid) if self._air.owner != self.id else None

    def say(self, message: NodeMessage, timeout: float) -> None:  # noqa: ARG002  # the protocol's
        if not self.has_room:
            self.refused += 1
            raise BackPressureError("no room")
        self._air.say(message._replace(origin=self.id, epoch=self._epoch))

    def present(self) -> Collection[bytes]:
        return set(self._air.nodes) - {self.id}

    def query(self, request: QueryRequest) -> RemoteAnswers:
        self.asked.append(request)
        stores = [each.store for each in self._air.nodes.values() if each is not self and each.store is not None]
        found = [
            Parcel.received(each.data).unpacked()
            for store in stores for each in store.archiving.answers(HistoryQuery(scopes=(Scope(TRACK),)))
        ]  # fmt: skip
        return Answers(found)

    @property
    def has_it(self) -> set[str]:
        return self.store.ids() if self.store is not None else set()

    def leave(self) -> None:
        self._air.nodes.pop(self.id, None)
        self.persistence.stop()


Make = Callable[..., PersistentNode]


@pytest.fixture
def air() -> Air:
    return Air()


@pytest.fixture
def make(air: Air, tmp_path: Path) -> Iterator[Make]:
    made: list[PersistentNode] = []

    def make(number: int, *, has_archive: bool = True, store: Store | None = None, **settings: Any) -> PersistentNode:
        store = store or (Store() if has_archive else None)
        made.append(PersistentNode(air, number, tmp_path, store=store, **settings))
        return made[-1]

    yield make
    for each in made:
        if each.store is not None:
            each.store.goes.set()
        each.leave()


def holders(air: Air, *numbers: int) -> int:
    """How many nodes have all of these."""
    return sum(ids(*numbers) <= each.has_it for each in air.nodes.values())


@pytest.mark.row("G-68")
def test_five_others_keep_what_a_node_without_an_archive_publishes(air: Air, make: Make, eventually: Any) -> None:
    origin = make(1, has_archive=False)
    for number in range(2, 10):
        make(number)

    origin.publish()
    air.publish(origin, 1, 2)
    eventually(lambda: sum(bool(each.persistence.keeping()) for each in air.nodes.values()) == 5)
    air.publish(origin, 3)

    eventually(lambda: holders(air, 1, 2, 3) == 5)
    assert sum(bool(each.has_it) for each in air.nodes.values()) == 5, "others keep nothing"


@pytest.mark.row("G-99")
def test_who_is_gone_is_replaced_and_the_new_one_has_all(air: Air, make: Make, eventually: Any) -> None:
    origin = make(1, has_archive=False, volunteers=2)
    nodes = [make(number) for number in (2, 3)]
    origin.publish()
    eventually(lambda: all(each.persistence.keeping() for each in nodes))
    air.publish(origin, 1, 2, 3)
    eventually(lambda: holders(air, 1, 2, 3) == 2)

    nodes[0].leave()
    late = make(9)

    eventually(lambda: late.has_it == ids(1, 2, 3))
    assert late.asked[0].registrations == (UID,)


@pytest.mark.row("G-99")
def test_what_is_published_before_anybody_notices_that_who_kept_it_is_dead_is_kept_by_its_successor(
    air: Air, make: Make, eventually: Any
) -> None:
    # Given two nodes of which one keeps what a third one publishes
    origin = make(1, has_archive=False, volunteers=1)
    nodes = [make(number) for number in (2, 3)]
    origin.publish()
    eventually(lambda: any(each.persistence.keeping() for each in nodes))
    keeper, other = sorted(nodes, key=lambda each: not each.persistence.keeping())
    air.publish(origin, 1)
    eventually(lambda: keeper.has_it == ids(1))
    # When that one is dead, and more is published before it is noticed
    heard = {keeper.id, other.id}
    origin.present = lambda: heard  # type: ignore[method-assign]  # it hears announcements alone
    keeper.leave()
    air.publish(origin, 2, 3)
    assert not other.persistence.keeping()
    heard.remove(keeper.id)
    # Expect it at the other one
    eventually(lambda: ids(2, 3) <= other.has_it)


def test_who_is_heard_later_is_asked_as_well(air: Air, make: Make, eventually: Any) -> None:
    origin, early = make(1, has_archive=False, volunteers=1), make(2)
    origin.publish()
    eventually(lambda: early.persistence.keeping() == [UID])
    eventually(lambda: early.asked)
    store = Store()
    store.take_in([parcel(1), parcel(2)], {})
    make(3, store=store)

    eventually(lambda: early.has_it == ids(1, 2))


@pytest.mark.row("G-67")
def test_roles_that_are_off_are_not_taken(air: Air, make: Make, eventually: Any) -> None:
    origin, other, third = make(1, has_archive=False), make(2, volunteer=False), make(3)
    origin.publish()
    eventually(lambda: third.persistence.keeping() == [UID])
    air.publish(origin, 1)

    eventually(lambda: third.has_it == ids(1))
    assert not other.has_it
    kinds = [message.kind for message in air.said]
    assert kinds == [DatagramKind.ASSISTANCE, DatagramKind.OFFER, DatagramKind.ACCEPTED]


def test_what_was_said_without_room_is_said_later(air: Air, make: Make, eventually: Any) -> None:
    origin, other = make(1, has_archive=False), make(2)
    origin.has_room = False
    origin.publish()
    eventually(lambda: origin.refused)

    origin.has_room = True

    eventually(lambda: other.persistence.keeping() == [UID])


def test_a_registration_that_has_ended_is_kept_until_all_has_come(
    air: Air, make: Make, monkeypatch: pytest.MonkeyPatch, eventually: Any
) -> None:
    monkeypatch.setattr("jbi_pubsub.node.persistence.UNKNOWN_SECONDS", 0.1)
    origin, other = make(1, has_archive=False), make(2)
    origin.publish()
    eventually(lambda: other.persistence.keeping() == [UID])

    air.owner = b"nobody"
    eventually(lambda: len(air.said) >= 4)
    air.publish(origin, 1)
    eventually(lambda: other.has_it == ids(1))
    air.registrations.clear()
    eventually(lambda: other.persistence.keeping() == [])
    keeping = other.persistence._keeping
    eventually(lambda: keeping is not None and not keeping._entries)
    # And the network forgets what was said of it
    eventually(lambda: not air.said[-1].body)


def test_objects_of_what_nobody_wants_kept_do_not_wait(air: Air, make: Make, eventually: Any) -> None:
    origin, other = make(1, has_archive=False), make(2)
    keeping = other.persistence._keeping
    assert keeping is not None
    air.publish(origin, 1)
    assert keeping.undecided() == [UID]

    origin.publish(is_persistent=False)

    eventually(lambda: not keeping.undecided())
    air.publish(origin, 2)
    assert not keeping.undecided()


def test_what_the_delegate_here_archives_itself_is_not_kept_twice(air: Air, make: Make, eventually: Any) -> None:
    origin, other = make(1, has_archive=False), make(2)
    origin.publish()
    eventually(lambda: other.persistence.keeping() == [UID])
    assert other.store is not None

    other.store.archived.add(UID)
    air.publish(origin, 1)
    other.store.archived.clear()
    air.publish(origin, 2)

    eventually(lambda: other.has_it == ids(2))


@pytest.mark.row("G-172")
def test_what_is_deleted_goes_everywhere_and_does_not_come_back(air: Air, make: Make, eventually: Any) -> None:
    origin = make(1)
    others = [make(number) for number in range(2, 7)]
    origin.publish()
    eventually(lambda: all(each.persistence.keeping() for each in others))
    air.publish(origin, 1, 2, 3)
    eventually(lambda: holders(air, 1, 2, 3) == 5)

    origin.persistence.deleted(sorted(ids(2, 4)))

    eventually(lambda: all(each.has_it == ids(1, 3) for each in others))
    air.publish(origin, 2, 4, 5)
    eventually(lambda: all(each.has_it == ids(1, 3, 5) for each in others))


def test_who_was_away_hears_of_a_deletion_when_it_is_back(
    air: Air, make: Make, tmp_path: Path, eventually: Any
) -> None:
    origin, other = make(1), make(2)
    assert other.store is not None
    other.store.take_in([parcel(1), parcel(2)], {})
    other.leave()
    origin.persistence.deleted(sorted(ids(1)))
    eventually(lambda: air.durable)

    back = PersistentNode(air, 2, tmp_path, epoch=CLOCK_MOST + 1, store=other.store)

    eventually(lambda: other.has_it == ids(2))
    back.leave()


def test_deletions_are_said_again_after_a_start(air: Air, make: Make, tmp_path: Path, eventually: Any) -> None:
    origin = make(1)
    origin.has_room = False
    origin.persistence.deleted(["a" * 40])
    origin.leave()

    again = PersistentNode(air, 1, tmp_path, epoch=CLOCK_MOST + 1, store=Store())

    eventually(lambda: [ids_of(message.body) for message in air.said] == [("a" * 40,)])
    again.leave()


class Clocks:
    """Both clocks of a host, far apart."""

    def __init__(self) -> None:
        self.wall, self.clock = 1_800_000_000.0, 1_000.0

    def deletions(self, tmp_path: Path) -> NodeDeletions:
        """Those of a process."""
        return NodeDeletions(tmp_path / "deletions.db", wall=lambda: self.wall, clock=lambda: self.clock)

    def later(self, seconds: float) -> None:
        """Time passes."""
        self.wall += seconds
        self.clock += seconds


def test_deletions_are_told_in_batches_for_thirty_days(tmp_path: Path) -> None:
    clocks = Clocks()
    deletions = clocks.deletions(tmp_path)
    names = [f"{number:040}" for number in range(IDS_MOST + 1)]
    deletions.add(names)

    first = list(deletions.due())
    for each in first:
        deletions.said(each)

    assert [len(ids_of(each.body)) for each in first] == [IDS_MOST, 1]
    assert {each.life for each in first} == {int(TOLD_SECONDS * 1_000)}
    clocks.later(1_000.0)
    assert not list(deletions.due())
    deletions.close()
    # After a start, for the time that is left
    clocks.later(TOLD_SECONDS / 2 - 1_000.0)
    again = clocks.deletions(tmp_path)
    left = list(again.due())
    assert {each.life for each in left} == {int(TOLD_SECONDS * 500)}
    for each in left:
        again.said(each)
    # And then no more
    clocks.later(TOLD_SECONDS / 2)
    over = list(again.due())
    assert [(each.key, each.body) for each in over] == [(each.key, b"") for each in left]
    for each in over:
        again.said(each)
    assert not list(again.due())
    again.close()


@pytest.mark.parametrize("step", [2 * 365 * 86_400.0, -2 * 365 * 86_400.0])
def test_deletions_are_told_for_as_long_when_the_wall_clock_is_set(tmp_path: Path, step: float) -> None:
    # Given a deletion that was told while the clock was wrong
    clocks = Clocks()
    deletions = clocks.deletions(tmp_path)
    deletions.add(["a" * 40])
    for each in deletions.due():
        deletions.said(each)
    # When that is set, expect it not to be over, nor after a start to be told for longer than others
    clocks.wall += step
    assert not list(deletions.due())
    deletions.close()
    again = clocks.deletions(tmp_path)
    assert [each.life for each in again.due()] == [int(TOLD_SECONDS * 1_000)]
    again.close()


def test_deletions_of_a_process_whose_clock_was_ahead_are_told_for_thirty_days(tmp_path: Path) -> None:
    # Given a deletion, and a process that comes when the clock is right again
    clocks = Clocks()
    before = clocks.deletions(tmp_path)
    before.add(["a" * 40])
    before.close()
    clocks.wall -= 10 * TOLD_SECONDS
    after = clocks.deletions(tmp_path)
    for each in after.due():
        after.said(each)
    # When these are over, expect it to be
    clocks.later(TOLD_SECONDS)
    assert [each.body for each in after.due()] == [b""]
    after.close()


# -- on the way into the archive ----------------------------------------------------------------------------------


@pytest.fixture
def store() -> Store:
    return Store()


@pytest.fixture
def keeping(store: Store) -> Iterator[VolunteerKeeping]:
    keeping = VolunteerKeeping(store)
    keeping.start()
    yield keeping
    store.goes.set()
    keeping.stop()


def test_objects_wait_for_a_decision(keeping: VolunteerKeeping, store: Store, eventually: Any) -> None:
    keeping.wait(UID, parcel(1), 0.0)
    keeping.wait("other", parcel(2, uid="other"), 0.0)
    keeping.end("other")
    assert not store.ids()

    keeping.begin(UID, ())

    eventually(lambda: store.ids() == ids(1))


def test_the_last_objects_of_what_others_keep_wait_for_some_time(
    keeping: VolunteerKeeping, store: Store, eventually: Any
) -> None:
    for number in (1, 2, 3):
        keeping.wait(UID, parcel(number), float(number))
    keeping.end(UID, 2.0)

    keeping.begin(UID, ())

    eventually(lambda: store.ids() == ids(2, 3))


def test_who_reads_the_past_waits_for_what_had_come_before(
    keeping: VolunteerKeeping, store: Store, eventually: Any
) -> None:
    # Given an object that the disk has not taken yet
    store.goes.clear()
    keeping.begin(UID, ())
    keeping.keep(UID, parcel(1))
    # When the past is to be read, expect that it is not there yet
    [way] = store.arrivals
    number = way.due()
    assert not way.has_taken(number)
    # When the disk takes it, expect it there, whatever comes then
    store.goes.set()
    eventually(lambda: way.has_taken(number))
    assert store.ids() == ids(1)


def test_nobody_waits_for_an_archive_that_is_full(
    keeping: VolunteerKeeping, store: Store, monkeypatch: pytest.MonkeyPatch, eventually: Any
) -> None:
    # Given an archive that refuses what comes from others, again and again
    monkeypatch.setattr("jbi_pubsub.node.keeping.AGAIN_SECONDS", 0.01)
    store.fails = 1_000_000
    keeping.begin(UID, ())
    keeping.keep(UID, parcel(1))
    # Expect the past to be read without it
    [way] = store.arrivals
    eventually(lambda: way.has_taken(way.due()))
    assert not store.ids()
    # When there is room again, expect it there
    store.fails = 0
    eventually(lambda: store.ids() == ids(1))


def test_a_disk_that_is_full_is_tried_again(
    keeping: VolunteerKeeping, store: Store, monkeypatch: pytest.MonkeyPatch, eventually: Any
) -> None:
    monkeypatch.setattr("jbi_pubsub.node.keeping.AGAIN_SECONDS", 0.01)
    store.fails = 3
    for number in (1, 2, 3):
        keeping.keep(UID, parcel(number))
    eventually(lambda: store.ids() == ids(1, 2, 3))


def test_what_makes_no_sense_is_left_out_and_the_rest_is_kept(
    keeping: VolunteerKeeping, store: Store, eventually: Any
) -> None:
    store.goes.clear()
    for each in (parcel(1), parcel(2, type_="another"), parcel(3)):
        keeping.keep(UID, each)
    store.goes.set()
    eventually(lambda: store.ids() == ids(1, 3))
    assert keeping.left_out == 1


def test_what_there_is_no_room_for_is_told_once_there_is_some(
    keeping: VolunteerKeeping, store: Store, monkeypatch: pytest.MonkeyPatch, eventually: Any
) -> None:
    monkeypatch.setattr("jbi_pubsub.node.keeping.BYTES_MOST", 4_000)
    store.goes.clear()
    for number in range(1, 21):
        keeping.keep(UID, parcel(number))
    assert not keeping.lacking()

    store.goes.set()

    eventually(lambda: keeping.lacking() == {UID})
    assert keeping.left_out > 10


def test_deletions_that_a_full_disk_does_not_take_are_bounded_and_told(
    store: Store, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    # Given an archive that takes nothing; when others tell it of more deletions than there is room for
    monkeypatch.setattr("jbi_pubsub.node.keeping.BYTES_MOST", 4_000)
    keeping = VolunteerKeeping(store)
    for number in range(20):
        keeping.delete([f"{number:04}" * 20] * 10)
    # Expect those that have room to wait, and to be told of the others
    assert keeping.left_out == 10 * (20 - len(keeping._due)) > 0
    assert sum(len("".join(each.ids)) for each in keeping._due if isinstance(each, _Deletion)) <= 8_000
    assert "10 objects that other nodes have deleted stay" in caplog.text


def test_of_what_waits_for_decisions_the_oldest_give_way(
    keeping: VolunteerKeeping, store: Store, monkeypatch: pytest.MonkeyPatch, eventually: Any
) -> None:
    monkeypatch.setattr("jbi_pubsub.node.keeping.BYTES_MOST", 4_000)
    for number in range(1, 21):
        keeping.wait(UID, parcel(number), float(number))
    keeping.begin(UID, ())
    eventually(lambda: object_id_of(UID, 20) in store.ids())
    assert object_id_of(UID, 1) not in store.ids()


def test_bodies_of_strangers_are_bounded() -> None:
    for body in (
        AssistanceBody(1, UID, 1, 65),
        AssistanceBody(1, UID, 1, 1, (b"short",)),
        DeletionBody(1, ("a",) * (IDS_MOST + 1)),
        OfferBody(1, "", 1),
    ):
        with pytest.raises(ProtocolError):
            decoded_assistance(msgspec.msgpack.encode(body))
