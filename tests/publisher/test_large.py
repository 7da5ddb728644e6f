"""Objects whose payloads lie in files: at their publisher, at a delegate, and at who gets them."""

from __future__ import annotations

import io
import os
import random
import resource
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, BinaryIO

import msgspec
import pytest
from keeping import MemoryKeeping

from jbi_pubsub import JbiError, SubscriberAdapter
from jbi_pubsub.core import spool as spool_module
from jbi_pubsub.core.config import ArchiveSection, ClientSection, Config, LinkSection, PadSection, QueueSection
from jbi_pubsub.core.errors import BackPressureError, MetadataError, OversizeError, StorageError, UnknownUidError
from jbi_pubsub.core.files import written
from jbi_pubsub.core.history import HistoryQuery, KeepRule, Scope
from jbi_pubsub.core.info_object import Head, InfoObject, LargeObject, TypeName, pack
from jbi_pubsub.core.spool import Spool, SpooledPayload
from jbi_pubsub.pad.past import blobs as beside
from jbi_pubsub.pad.server.server import DisseminationServer
from jbi_pubsub.protocol.publications import LAST_CHUNK, PUBLICATION
from jbi_pubsub.protocol.replies import Registered
from jbi_pubsub.publisher.lanes import Lanes
from jbi_pubsub.publisher.payloads import Payloads
from tests.conftest import Federation, eventually

SPOOL = 64 << 10
SIZE = 5_000_000


@pytest.fixture
def large(federation: Federation, tmp_path: Path) -> Federation:
    """Whoever is in the federation keeps what has more than 64 KiB in files."""
    config = with_link(federation.config, spool_folder=str(tmp_path / "spool"))
    federation.config = msgspec.structs.replace(config, pad=PadSection(keep_seconds=0.2))
    return federation


def _spool_of(subscriber: SubscriberAdapter) -> Spool:
    return subscriber._subscriptions.sessions._spool


def with_link(config: Config, **given: Any) -> Config:
    return msgspec.structs.replace(config, link=LinkSection(**{"spool": SPOOL, **given}))


@pytest.fixture
def picture(tmp_path: Path) -> Path:
    """A file of 5 MB that no two parts of are equal."""
    path = tmp_path / "picture"
    path.write_bytes(random.Random(5).randbytes(SIZE))
    return path


def opened(federation: Federation, publisher: Any = None, **terms: Any) -> tuple[Any, Any]:
    """A publisher with one registration."""
    publisher = publisher or federation.light()
    at = publisher.connect_to_delegate("alpha", "rome")
    return publisher, publisher.register_publisher(at, type_name="report", validate=False, **terms)


def received(subscriber: SubscriberAdapter, uid: Any) -> InfoObject:
    obj = subscriber.receive(uid, 60.0)
    assert isinstance(obj, InfoObject)
    return obj


def open_files(folder: Path) -> int:
    """Files without a name in a folder that this process has open."""
    found = []
    for fd in Path("/proc/self/fd").iterdir():
        with suppress(OSError):  # it was closed meanwhile
            found.append(str(fd.readlink()))
    return sum(each.startswith(f"{folder}/") and each.endswith("(deleted)") for each in found)


@pytest.mark.row("D-41")
@pytest.mark.parametrize("given", ["path", "file", "pipe", "bytes"])
def test_a_large_payload_comes_as_it_was(large: Federation, picture: Path, tmp_path: Path, given: str) -> None:
    # Given a delegate, and two subscriptions
    pad = large.pad()
    subscriber = large.subscriber()
    uids = [subscriber.register_subscriber(type_name="report") for _ in range(2)]
    publisher, uid = opened(large)
    publisher.wait_for_subscribers(uid, 1, 60.0)
    # When a large payload is published, as a path, a file, what is read like one, or as bytes
    data = picture.read_bytes()
    with picture.open("rb") as on_disk:
        payloads = {"path": picture, "file": on_disk, "pipe": io.BufferedReader(Pipe(data)), "bytes": data}
        publisher.publish(uid, b"<a>large</a>", payloads[given])
    # Expect files that have no names: there is nothing to be left over, also if somebody is killed
    eventually(lambda: open_files(tmp_path / "spool") > 0)
    assert list((tmp_path / "spool").iterdir()) == []
    assert list((tmp_path / "spool").iterdir()) == []
    # Expect it, in a file, and in memory for who wants that
    for each in uids:
        obj = received(subscriber, each)
        assert isinstance(obj, LargeObject)
        assert (obj.metadata, obj.payload_size, obj.platform.payload_length) == (b"<a>large</a>", SIZE, SIZE)
        with obj.payload_file as file:
            assert file.read(10) == data[:10]
            assert file.seek(-10, os.SEEK_END) == SIZE - 10
            assert file.read() == data[-10:]
        assert obj.payload_file.read() == data == obj.payload
    # Expect nothing to be left when nobody has it any more
    del obj, file
    eventually(lambda: open_files(tmp_path / "spool") == 0)
    spools = pad.service.data.spool, _spool_of(subscriber), publisher._payloads._spool
    eventually(lambda: [each.used for each in spools] == [0, 0, 0])


class Pipe(io.RawIOBase):
    """Gives what it has in pieces, and has no place."""

    def __init__(self, data: bytes) -> None:
        self._data = memoryview(data)

    def readable(self) -> bool:
        return True

    def readinto(self, space: Any) -> int:
        count = min(len(space), 70_001, len(self._data))
        space[:count], self._data = self._data[:count], self._data[count:]
        return count


def test_small_payloads_are_in_memory_wherever_they_come_from(large: Federation, tmp_path: Path) -> None:
    large.pad()
    subscriber = large.subscriber()
    wanted = subscriber.register_subscriber(type_name="report")
    publisher, uid = opened(large)
    publisher.wait_for_subscribers(uid, 1, 60.0)
    path = tmp_path / "small"
    for size in (0, 1, SPOOL - 1, SPOOL):
        path.write_bytes(b"x" * size)
        publisher.publish(uid, b"<a/>", path)
        obj = received(subscriber, wanted)
        assert type(obj) is InfoObject
        assert (obj.payload, obj.payload_file.read(), obj.payload_size) == (b"x" * size, b"x" * size, size)


def test_a_peer_publisher_has_them_in_one_file_for_all(large: Federation, picture: Path) -> None:
    publisher = large.peer()
    uid = publisher.register_publisher(type_name="report", validate=False)
    subscriber = large.subscriber()
    wanted = [subscriber.register_subscriber(type_name="report") for _ in range(3)]
    publisher.wait_for_subscribers(uid, 3)
    publisher.publish_many(uid, [(b"<a>1</a>", picture), (b"<a>2</a>", b"small"), (b"<a>3</a>", picture)])
    for each in wanted:
        objects = [received(subscriber, each) for _ in range(3)]
        assert [obj.metadata for obj in objects] == [b"<a>1</a>", b"<a>2</a>", b"<a>3</a>"]
        assert [obj.payload_size for obj in objects] == [SIZE, 5, SIZE]
        assert objects[2].payload == picture.read_bytes()


@pytest.mark.parametrize("mode", ["off", "on"])
def test_limits_of_size_are_taken_and_one_byte_more_is_not(large: Federation, tmp_path: Path, mode: Any) -> None:
    # Given a delegate that takes a million bytes, with and without quality of service, and a publisher that takes more
    config = msgspec.structs.replace(
        large.config,
        client=ClientSection(max_payload=1_000_000),
        qos=msgspec.structs.replace(large.config.qos, mode=mode),
    )
    pad = large.pad(config=config)
    refused: list[JbiError] = []
    publisher, uid = opened(large, large.light(refused=lambda _uid, why: refused.append(why)))
    subscriber = large.subscriber()
    wanted = subscriber.register_subscriber(type_name="report")
    path = tmp_path / "payload"
    for size in (1_000_000, 1_000_001, 999_999):
        path.write_bytes(bytes(size))
        publisher.publish(uid, b"<a/>", path)
    publisher.flush()
    # Expect one to be refused, and the others to come
    assert [received(subscriber, wanted).payload_size for _ in range(2)] == [1_000_000, 999_999]
    assert [type(each) for each in eventually(lambda: refused)] == [OversizeError]
    assert eventually(lambda: pad.status()["registrations"][0]["published"] == 2)
    # Expect its publisher to refuse it if that knows the limit: by what it is said to have, or has
    knowing, own = opened(large, large.light(config))
    knowing.wait_for_subscribers(own, 1, 60.0)
    for payload in (path, io.BytesIO(bytes(1_000_001)), bytes(1_000_001)):
        path.write_bytes(bytes(1_000_001))
        with pytest.raises(OversizeError, match="the limit is 1000000"):
            knowing.publish(own, b"<a/>", payload)


def test_a_file_that_changes_while_it_is_read_is_refused_and_publishing_goes_on(
    large: Federation, picture: Path, tmp_path: Path
) -> None:
    # Given files that shrink, grow, or are written to while they are read
    large.pad()
    subscriber = large.subscriber()
    wanted = subscriber.register_subscriber(type_name="report")
    publisher, uid = opened(large)
    publisher.wait_for_subscribers(uid, 1, 60.0)

    def shrink(path: Path) -> None:
        os.truncate(path, 3_000_000)

    def grow(path: Path) -> None:
        with path.open("ab") as file:
            file.write(b"more")

    def write(path: Path) -> None:
        with path.open("r+b") as file:
            file.write(b"other")
        os.utime(path, ns=(1, 1))  # whatever the clock of the file system says

    for change in (shrink, grow, write):
        path = tmp_path / "changing"
        path.write_bytes(picture.read_bytes())
        with path.open("rb") as file, pytest.raises(MetadataError, match="changed while it was read"):
            publisher.publish(uid, b"<a/>", Changing(file, lambda path=path, change=change: change(path)))
    # Expect what is good before and behind it to come, without a gap in the numbers
    publisher.publish(uid, b"<a/>", picture)
    obj = received(subscriber, wanted)
    assert (obj.platform.sequence, obj.payload_size) == (1, SIZE)


class Changing:
    """A file on disk that something happens to after a megabyte."""

    def __init__(self, file: Any, happens: Any) -> None:
        self._file = file
        self._happens: Any = happens
        self.fileno, self.tell = file.fileno, file.tell

    def read(self, size: int) -> bytes:
        if self._file.tell() > 1_000_000 and self._happens:
            self._happens()
            self._happens = None
        return bytes(self._file.read(size))


@pytest.mark.parametrize(
    ("payload", "why"),
    [
        (Path("/nowhere/at/all"), "No such file"),
        (Path("/"), "directory"),
        (io.StringIO("text"), "str where bytes belong"),
        (Path("\0"), "null byte"),
    ],
)
def test_what_can_not_be_read_is_told(large: Federation, payload: Any, why: str) -> None:
    large.pad()
    publisher, uid = opened(large)
    with pytest.raises(MetadataError, match=why):
        publisher.publish(uid, b"<a/>", payload)
    closed = io.BytesIO(b"x")
    closed.close()
    with pytest.raises(MetadataError, match="closed"):
        publisher.publish(uid, b"<a/>", closed)
    publisher.publish(uid, b"<a/>", b"good")
    publisher.flush()


# -- where there is no room -------------------------------------------------------------------------------------------


def _full(_fd: int, _data: Any, _at: int) -> int:
    raise OSError(28, "No space left on device")


@pytest.mark.parametrize("mode", ["off", "on"])
def test_a_full_disk_is_told_the_publisher_and_the_delegate_goes_on(
    large: Federation, picture: Path, monkeypatch: pytest.MonkeyPatch, mode: Any
) -> None:
    # Given a payload that was in memory at its publisher, and a disk that is full
    qos = msgspec.structs.replace(large.config.qos, mode=mode)
    pad = large.pad(config=msgspec.structs.replace(large.config, qos=qos))
    subscriber = large.subscriber()
    wanted = subscriber.register_subscriber(type_name="report")
    refused: list[JbiError] = []
    publisher, uid = opened(large, large.light(refused=lambda _uid, why: refused.append(why)))
    publisher.wait_for_subscribers(uid, 1, 60.0)
    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", _full)
        publisher.publish(uid, b"<a>1</a>", picture.read_bytes())
        publisher.flush()
        (why,) = eventually(lambda: refused)
        assert isinstance(why, StorageError)
        assert "No space left" in why.message
        # Expect a publisher that has to write itself to be told at once
        with pytest.raises(StorageError, match="No space left"):
            publisher.publish(uid, b"<a/>", picture)
        # Expect small ones to go on meanwhile
        publisher.publish(uid, b"<a>2</a>", b"small")
        assert received(subscriber, wanted).metadata == b"<a>2</a>"
    # Expect large ones to go on when there is room again, and nothing to be kept of the one that failed
    publisher.publish(uid, b"<a>3</a>", picture)
    assert received(subscriber, wanted).payload == picture.read_bytes()
    eventually(lambda: pad.service.data.spool.used == 0, what=lambda: pad.service.data.spool.used)


def test_all_files_of_a_delegate_are_bounded(large: Federation, picture: Path) -> None:
    # Given a delegate with room for two such objects, and a subscriber that takes none
    config = with_link(large.config, spool_bytes=2 * SIZE)
    queue = QueueSection(block_seconds=0.1, bound=1)
    pad = large.pad(config=msgspec.structs.replace(config, queue=queue))
    subscriber = large.subscriber()
    wanted = subscriber.register_subscriber(type_name="report", bound=1, policy="drop_newest")
    refused: list[JbiError] = []
    publisher, uid = opened(large, large.light(refused=lambda _uid, why: refused.append(why)))
    data = picture.read_bytes()
    publisher.wait_for_subscribers(uid)
    # When more come than there is room for, of which it holds one
    held = pad.service.data.spool.begin(SIZE + 1)
    publisher.publish(uid, b"<a>1</a>", data)
    publisher.flush()
    # Expect them to be refused with what to do
    (why,) = eventually(lambda: refused)
    assert isinstance(why, BackPressureError)
    assert "spool_bytes" in why.hint
    # Expect others to go on when there is room
    del held
    publisher.publish(uid, b"<a>2</a>", data)
    assert received(subscriber, wanted).metadata == b"<a>2</a>"


def test_the_files_of_a_party_are_bounded_in_number(
    large: Federation, picture: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given a publisher that may have two files, of which one is held
    monkeypatch.setattr(spool_module, "FILES_MOST", 2)
    large.pad()
    publisher, uid = opened(large)
    held = [publisher._payloads._spool.begin(1) for _ in range(2)]
    with pytest.raises(BackPressureError, match="in 2 of 2 files"):
        publisher.publish(uid, b"<a/>", picture, timeout=0.05)
    del held[0]
    publisher.publish(uid, b"<a/>", picture)
    publisher.flush()


def test_a_publisher_waits_for_room_and_is_told_when_there_is_none(large: Federation, picture: Path) -> None:
    # Given a publisher whose files have room for one, and no delegate that takes it
    pad = large.pad()
    publisher, uid = opened(large, large.light(with_link(large.config, spool_bytes=SIZE + 1)))
    held = publisher._payloads._spool.begin(SIZE)
    larger = picture.with_name("larger")
    larger.write_bytes(bytes(SIZE + 2))
    with pytest.raises(BackPressureError, match="no room"):
        publisher.publish(uid, b"<a/>", picture, timeout=0.05)
    with pytest.raises(OversizeError, match="does not fit"):
        publisher.publish(uid, b"<a/>", larger)
    del held
    with pytest.raises(OversizeError, match="does not fit"):
        publisher.publish(uid, b"<a/>", io.BytesIO(bytes(SIZE + 2)))
    publisher.publish(uid, b"<a/>", picture)
    publisher.flush()
    eventually(lambda: pad.status()["registrations"][0]["published"] == 1)


def test_a_subscriber_without_room_is_told_of_its_loss_and_goes_on(
    large: Federation, picture: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    large.pad()
    subscriber = large.subscriber()
    wanted = subscriber.register_subscriber(type_name="report", bound=1)
    publisher, uid = opened(large)
    publisher.wait_for_subscribers(uid, 1, 60.0)
    with monkeypatch.context() as patch:
        patch.setattr(
            _spool_of(subscriber),
            "begin",
            lambda *_: (_ for _ in ()).throw(StorageError("no room at all")),
        )
        publisher.publish(uid, b"<a>1</a>", picture)
        eventually(lambda: subscriber.losses(wanted) == {"storage": 1}, what=lambda: subscriber.losses(wanted))
    # Expect its credit to be given back: its bound is one
    publisher.publish(uid, b"<a>2</a>", picture)
    assert received(subscriber, wanted).payload == picture.read_bytes()


@pytest.mark.parametrize("mode", ["off", "on"])
def test_what_can_not_be_read_again_is_lost_and_told(
    large: Federation, picture: Path, monkeypatch: pytest.MonkeyPatch, mode: Any
) -> None:
    # Given a delegate whose disk fails when an object has gone by half
    qos = msgspec.structs.replace(large.config.qos, mode=mode)
    pad = large.pad(config=msgspec.structs.replace(large.config, qos=qos))
    subscriber = large.subscriber()
    wanted = subscriber.register_subscriber(type_name="report")
    publisher, uid = opened(large)
    publisher.wait_for_subscribers(uid, 1, 60.0)
    read = SpooledPayload.read

    def half(self: SpooledPayload, at: int, count: int) -> bytes:
        if self._spool is pad.service.data.spool and at > SIZE // 2:
            raise StorageError("the disk is gone")
        return read(self, at, count)

    with monkeypatch.context() as patch:
        patch.setattr(SpooledPayload, "read", half)
        publisher.publish(uid, b"<a>1</a>", picture)
        eventually(lambda: subscriber.losses(wanted) == {"storage": 1}, what=lambda: subscriber.losses(wanted))
    publisher.publish(uid, b"<a>2</a>", picture)
    obj = received(subscriber, wanted)
    assert (obj.metadata, obj.payload) == (b"<a>2</a>", picture.read_bytes())


def test_a_publisher_that_can_not_read_its_file_again_gives_the_object_up(
    large: Federation, picture: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pad = large.pad()
    subscriber = large.subscriber()
    wanted = subscriber.register_subscriber(type_name="report")
    publisher, uid = opened(large)
    publisher.wait_for_subscribers(uid, 1, 60.0)
    read = SpooledPayload.read

    def half(self: SpooledPayload, at: int, count: int) -> bytes:
        if self._spool is publisher._payloads._spool and at > SIZE // 2:
            raise StorageError("the disk is gone")
        return read(self, at, count)

    publisher.publish(uid, b"<a>0</a>")
    with monkeypatch.context() as patch:
        patch.setattr(SpooledPayload, "read", half)
        publisher.publish(uid, b"<a>1</a>", picture)
        publisher.flush()
    publisher.publish(uid, b"<a>2</a>", picture)
    objects = [received(subscriber, wanted) for _ in range(2)]
    assert [obj.metadata for obj in objects] == [b"<a>0</a>", b"<a>2</a>"]
    assert objects[1].payload == picture.read_bytes()
    assert subscriber.losses(wanted) == {"sequence_gap": 1}
    del objects
    eventually(lambda: pad.service.data.spool.used == 0)


def test_credit_counts_what_a_large_payload_may_take_at_a_delegate(large: Federation, picture: Path) -> None:
    # Given objects in files here, for a delegate that may have each of them in memory, and grants the bytes of two
    spool = large.config.link.spooling()
    lanes = Lanes()
    lanes.grant(1, Registered(100, 1, 1, 2 * SIZE + 1_000))
    for number in range(1, 5):
        body = Payloads(spool).body(picture, SIZE, 0.0)
        assert lanes.put(1, [pack(Head("", "r-1", number, 1.0, "t", "1.0", b"", SIZE), body)], 0.0) == 1
    # When as much goes as may
    gone = []
    while items := lanes.take(500, 1 << 20):
        gone += [PUBLICATION.unpack_from(item[0])[0] for item in items]
    # Expect two of them
    assert gone.count(LAST_CHUNK) == 2
    lanes.done({1: 1})
    assert not lanes.is_empty()


# -- who stops in the middle ------------------------------------------------------------------------------------------


def test_of_a_publisher_that_stops_in_the_middle_nothing_stays(
    large: Federation, picture: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given a publisher that is gone when its object has come by half
    pad: DisseminationServer = large.pad()
    publisher, uid = opened(large)
    read = SpooledPayload.read

    def slow(self: SpooledPayload, at: int, count: int) -> bytes:
        if self._spool is publisher._payloads._spool and at > SIZE // 2:
            next(iter(publisher._connections.values()))._sender._line.shut()
        return read(self, at, count)

    with monkeypatch.context() as patch:
        patch.setattr(SpooledPayload, "read", slow)
        publisher.publish(uid, b"<a/>", picture)
        eventually(lambda: pad.service.data.spool.used == SIZE, what=lambda: pad.service.data.spool.used)
        publisher.close(0.1)
    # Expect its file to go with it
    eventually(lambda: pad.service.data.spool.used == 0, what=lambda: pad.service.data.spool.used)


def test_of_what_is_cancelled_in_the_middle_nothing_stays(
    large: Federation, picture: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given a subscription that is cancelled when an object has come by half
    pad: DisseminationServer = large.pad()
    subscriber = large.subscriber()
    publisher, uid = opened(large)
    wanted = subscriber.register_subscriber(type_name="report")
    publisher.wait_for_subscribers(uid, 1)
    is_half, goes_on = threading.Event(), threading.Event()
    read = SpooledPayload.read

    def half(self: SpooledPayload, at: int, count: int) -> bytes:
        if self._spool is pad.service.data.spool and at > SIZE // 2:
            is_half.set()
            assert goes_on.wait(60.0)
        return read(self, at, count)

    monkeypatch.setattr(SpooledPayload, "read", half)
    publisher.publish(uid, b"<a/>", picture)
    assert is_half.wait(60.0)
    eventually(
        lambda: _spool_of(subscriber).used == SIZE,
        what=lambda: _spool_of(subscriber).used,
    )
    threading.Timer(0.2, goes_on.set).start()
    subscriber.cancel_subscription(wanted)
    # Expect no file of it, though the connection is there for others
    eventually(
        lambda: (pad.service.data.spool.used, _spool_of(subscriber).used) == (0, 0),
        what=lambda: _spool_of(subscriber).used,
    )


def test_who_takes_nothing_holds_a_part_of_the_files_alone(large: Federation, picture: Path) -> None:
    # Given a delegate with little memory for queues, and a subscription that is not taken from, beside one that is
    pad_section = msgspec.structs.replace(large.config.pad, max_queued_bytes=8 << 20, keep_seconds=0.0)
    pad = large.pad(config=msgspec.structs.replace(large.config, pad=pad_section))
    subscriber = large.subscriber()
    idle = subscriber.register_subscriber(type_name="report", bound=1)
    busy = subscriber.register_subscriber(type_name="report", bound=100)
    publisher, uid = opened(large)
    publisher.wait_for_subscribers(uid, 2)
    # When many come
    for number in range(12):
        publisher.publish(uid, b"<a>%d</a>" % number, picture)
        assert received(subscriber, busy).metadata == b"<a>%d</a>" % number
    # Expect the idle one to hold few, to be told of the others, and to get the newest
    assert eventually(lambda: pad.service.data.spool.used <= 3 * SIZE, what=lambda: pad.service.data.spool.used)
    assert received(subscriber, idle).metadata == b"<a>0</a>"
    assert received(subscriber, idle).metadata == b"<a>11</a>"
    assert subscriber.losses(idle) == {"queue_overflow": 10}


# -- what looks into payloads -----------------------------------------------------------------------------------------


def test_a_filter_looks_at_what_fits_into_memory(
    large: Federation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given subscriptions with and without a filter
    large.pad()
    subscriber = large.subscriber()
    whole = subscriber.register_subscriber(type_name="report")
    cut = subscriber.register_subscriber(type_name="report", payload_filter="//b")
    publisher, uid = opened(large)
    publisher.wait_for_subscribers(uid, 2)
    path = tmp_path / "document"
    path.write_bytes(b"<a><b>wanted</b>" + b"<c>not wanted</c>" * 10_000 + b"</a>")
    # Expect it to be filtered
    publisher.publish(uid, b"<a/>", path)
    assert received(subscriber, whole).payload == path.read_bytes()
    assert b"wanted" in received(subscriber, cut).payload
    # Expect what is no XML to come as it is, from its file
    path.write_bytes(bytes(SIZE))
    publisher.publish(uid, b"<a/>", path)
    assert received(subscriber, whole).payload_size == received(subscriber, cut).payload_size == SIZE
    # Expect the same of what does not fit into memory
    monkeypatch.setattr("jbi_pubsub.pad.matching.dissemination.MEMORY_BYTES", 1_000_000)
    publisher.publish(uid, b"<a/>", path)
    assert received(subscriber, whole).payload_size == received(subscriber, cut).payload_size == SIZE
    # Expect XML that does not to be told as lost, unless it is wished as it is
    wished = subscriber.register_subscriber(type_name="report", payload_filter="//b", unfiltered="deliver")
    publisher.wait_for_subscribers(uid, 3)
    path.write_bytes(b"<r>".ljust(SIZE - 4) + b"</r>")
    publisher.publish(uid, b"<a/>", path)
    assert received(subscriber, whole).payload_size == received(subscriber, wished).payload_size == SIZE
    eventually(lambda: subscriber.losses(cut) == {"oversize": 1}, what=lambda: subscriber.losses(cut))


@pytest.mark.parametrize(("begin", "is_cut"), [(b"<r>", False), (b"---", True)], ids=["XML", "none"])
def test_what_does_not_fit_into_memory_is_explained(
    begin: bytes, is_cut: bool, large: Federation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given those who take an object whole and filtered, and one that is too large to be read
    reports = large.pad().delegate.reports
    subscriber = large.subscriber()
    whole = subscriber.register_subscriber(type_name="report")
    cut = subscriber.register_subscriber(type_name="report", payload_filter="//b")
    publisher, uid = opened(large)
    publisher.wait_for_subscribers(uid, 2)
    monkeypatch.setattr(spool_module, "MEMORY_BYTES", SIZE - 1)
    monkeypatch.setattr("jbi_pubsub.pad.matching.dissemination.MEMORY_BYTES", SIZE - 1)
    path = tmp_path / "document"
    path.write_bytes(begin.ljust(SIZE))
    published = publisher.publish(uid, b"<a/>", path)
    assert received(subscriber, whole).payload_size == SIZE
    # Expect it to be delivered whole, and to who filters only if it is no XML
    told = [reports.explain_object(each, published) for each in (whole, cut)]
    assert [each["delivered"] for each in told] == [True, is_cut]
    assert told[1]["payload_is_xml"] is not is_cut


def test_a_filter_may_leave_more_than_was_published(large: Federation, tmp_path: Path) -> None:
    # Given a filter whose parts each get the declaration of their namespace
    large.pad()
    subscriber = large.subscriber()
    cut = subscriber.register_subscriber(
        type_name="report", payload_filter="//n:b", namespaces={"n": "http://" + "n" * 60}
    )
    publisher, uid = opened(large)
    publisher.wait_for_subscribers(uid, 1)
    # When what it leaves is larger than the payload, and both lie in files
    publisher.publish(uid, b"<a/>", f'<a xmlns="http://{"n" * 60}">{"<b/>" * 30_000}</a>')
    publisher.publish(uid, b"<a/>", b"small")
    # Expect it to come, and what is behind it
    assert received(subscriber, cut).payload_size > 2_000_000
    assert received(subscriber, cut).payload == b"small"


def test_what_is_too_large_for_memory_is_read_in_pieces_alone(
    large: Federation, picture: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    large.pad()
    subscriber = large.subscriber()
    wanted = subscriber.register_subscriber(type_name="report")
    publisher, uid = opened(large)
    publisher.wait_for_subscribers(uid, 1, 60.0)
    publisher.publish(uid, b"<a/>", picture)
    obj = received(subscriber, wanted)
    monkeypatch.setattr(spool_module, "MEMORY_BYTES", SIZE - 1)
    with pytest.raises(OversizeError, match="payload_file"):
        _ = obj.payload
    assert obj.payload_file.read() == picture.read_bytes()
    monkeypatch.setattr(spool_module, "MEMORY_BYTES", SIZE)
    assert len(obj.payload) == SIZE


@pytest.fixture
def archived(large: Federation, tmp_path: Path) -> Federation:
    """Delegates of the federation keep objects in one folder, one after the other."""
    archive = ArchiveSection(folder=str(tmp_path / "archive"), workers=0, reserve=0.0, memory=64 << 20)
    large.config = msgspec.structs.replace(large.config, archive=archive)
    return large


def archive_of(subscriber: SubscriberAdapter) -> list[InfoObject]:
    """What the archive has, as soon as it is known."""

    def asked() -> list[InfoObject] | None:
        with suppress(UnknownUidError), subscriber.open_query("report", timeout=20.0) as query:
            return list(query)
        return None

    found = eventually(asked)
    assert found is not None
    return found


@pytest.mark.parametrize("mode", ["off", "on"])
@pytest.mark.parametrize("most", [SIZE, SIZE - 1])
def test_an_archive_has_large_payloads_wherever_it_keeps_them(
    archived: Federation, picture: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: Any, most: int
) -> None:
    # Given a delegate with an archive, and a payload that fits into memory, or does not
    monkeypatch.setattr("jbi_pubsub.pad.past.archiving.MEMORY_BYTES", most)
    qos = msgspec.structs.replace(archived.config.qos, mode=mode)
    config = msgspec.structs.replace(archived.config, qos=qos)
    pad = archived.pad(config=config)
    publisher, uid = opened(archived, persist=True)
    for number in range(3):
        publisher.publish(uid, b"<a>%d</a>" % number, b"small" if number == 1 else picture)
    publisher.flush()
    publisher.close()
    files = list((tmp_path / "archive" / "large").glob("*"))
    assert len(files) == (2 if most < SIZE else 0)
    # Expect queries, and subscriptions to the past, to have all of it, also of the next delegate
    pad.stop()
    pad = archived.pad(config=config)
    subscriber = archived.subscriber()
    found = archive_of(subscriber)
    past = subscriber.register_subscriber(type_name="report", start=datetime(2000, 1, 1, tzinfo=UTC))
    for objects in (found, [received(subscriber, past) for _ in range(3)]):
        assert [obj.metadata for obj in objects] == [b"<a>0</a>", b"<a>1</a>", b"<a>2</a>"]
        assert [obj.payload for obj in objects] == [picture.read_bytes(), b"small", picture.read_bytes()]
    # Expect what is deleted to go from the disk, and nothing else
    archive = pad.delegate.registrations.archive
    first = HistoryQuery(scopes=(Scope(TypeName("report")),), object_ids=(found[0].object_id,))
    assert archive.keeping.delete(first) == 1
    if most < SIZE:
        assert archive._beside.take_away() == 0  # it is new
        assert (archive._beside.take_away(0.0), archive._beside.take_away(0.0)) == (1, 0)
    assert [obj.payload_size for obj in archive_of(subscriber)] == [5, SIZE]


def test_an_archive_without_room_refuses_large_payloads_alone(
    archived: Federation, picture: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given an archive that may have one such payload, and a disk that is full for a while
    monkeypatch.setattr("jbi_pubsub.pad.past.archiving.MEMORY_BYTES", SIZE - 1)
    archive = msgspec.structs.replace(archived.config.archive, max_payload_bytes=2 * SIZE - 1)
    archived.pad(config=msgspec.structs.replace(archived.config, archive=archive))
    refused: list[JbiError] = []
    publisher, uid = opened(archived, archived.light(refused=lambda _uid, why: refused.append(why)), persist=True)

    @contextmanager
    def full(path: Path) -> Iterator[BinaryIO]:
        with written(path) as file:
            yield file
            raise OSError(28, "No space left on device")

    for number, write in enumerate((full, written, written)):
        with monkeypatch.context() as patch:
            patch.setattr(beside, "written", write)
            publisher.publish(uid, b"<a>large</a>", picture)
            publisher.publish(uid, b"<a>%d</a>" % number, b"small")
            publisher.flush()
    # Expect the first to be refused, and the third; of neither is anything left
    eventually(lambda: len(refused) == 2, what=lambda: refused)
    assert [type(each) for each in refused] == [StorageError] * 2
    assert "No space left" in refused[0].message
    assert "max_payload_bytes" in refused[1].hint
    assert [path.stat().st_size for path in (tmp_path / "archive" / "large").iterdir()] == [SIZE]
    subscriber = archived.subscriber()
    eventually(lambda: len(archive_of(subscriber)) == 4)


def test_a_rule_that_gives_up_payloads_takes_files_and_what_is_damaged_is_told(
    archived: Federation, picture: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given an archive with two payloads in files, of which one has lost its end
    monkeypatch.setattr("jbi_pubsub.pad.past.archiving.MEMORY_BYTES", SIZE - 1)
    pad = archived.pad()
    publisher, uid = opened(archived, persist=True)
    for _ in range(2):
        publisher.publish(uid, b"<a/>", picture)
    publisher.flush()
    archive = pad.delegate.registrations.archive
    files = sorted((tmp_path / "archive" / "large").iterdir())
    os.truncate(files[0], SIZE - 1)
    # Expect that one to be lost, and told, rather than to come as if a filter had cut it
    subscriber = archived.subscriber()
    past = subscriber.register_subscriber(type_name="report", start=datetime(2000, 1, 1, tzinfo=UTC))
    assert received(subscriber, past).payload_size == SIZE
    eventually(lambda: subscriber.losses(past) == {"storage": 1}, what=lambda: subscriber.losses(past))
    # Expect files to stay under a rule that may hold payloads, and to go with their age
    for rule, count in ((KeepRule(payload_age=0.0, until_durables=True), 0), (KeepRule(payload_age=0.0), 2)):
        archive.follow([rule])
        assert archive._beside.take_away(0.0) == count
    assert [obj.payload_size for obj in archive_of(subscriber)] == [0, 0]


def test_files_that_go_meanwhile_refuse_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Given files of which one is renamed between the look at the folder and the look at it
    beside_it = beside.LargePayloads(tmp_path, 10)
    beside_it._known = lambda _: set()
    large_folder = tmp_path / "large"
    large_folder.mkdir()
    for name in (".a.payload.tmp", "b.payload"):
        (large_folder / name).write_bytes(bytes(5))
    stat = Path.stat

    def late(self: Path, **given: Any) -> os.stat_result:
        if self.name == ".a.payload.tmp":
            raise FileNotFoundError(self)
        return stat(self, **given)

    monkeypatch.setattr(Path, "stat", late)
    # Expect the others to be counted, and to be taken away
    beside_it._check_room(5)
    with pytest.raises(StorageError):
        beside_it._check_room(6)
    assert beside_it.take_away(0.0) == 1


def test_an_archive_that_has_no_folder_refuses_what_does_not_fit_into_memory(
    large: Federation, picture: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given an archive of a plug-in
    monkeypatch.setattr("jbi_pubsub.pad.ingress.stages._keeping_of", lambda _config: MemoryKeeping())
    monkeypatch.setattr("jbi_pubsub.pad.past.archiving.MEMORY_BYTES", SIZE - 1)
    archive = ArchiveSection(folder="memory://x")
    large.pad(config=msgspec.structs.replace(large.config, archive=archive))
    refused: list[JbiError] = []
    publisher, uid = opened(large, large.light(refused=lambda _uid, why: refused.append(why)), persist=True)
    publisher.publish(uid, b"<a/>", picture)
    publisher.publish(uid, b"<a/>", b"small")
    publisher.flush()
    (why,) = eventually(lambda: refused)
    assert isinstance(why, OversizeError)
    assert "persist=False" in why.hint


@pytest.mark.row("G-150")
def test_it_does_not_grow_the_process(large: Federation, tmp_path: Path) -> None:
    # Given an object of 200 MB, of which there is nothing on disk
    large.pad()
    subscriber = large.subscriber()
    wanted = subscriber.register_subscriber(type_name="report")
    publisher, uid = opened(large)
    publisher.wait_for_subscribers(uid, 1, 60.0)
    path = tmp_path / "hole"
    path.touch()
    os.truncate(path, 200_000_000)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    publisher.publish(uid, b"<a/>", path)
    obj = subscriber.receive(wanted, 60.0)
    assert isinstance(obj, InfoObject)
    assert obj.payload_size == 200_000_000
    # Expect publisher, delegate and subscriber together to take a few chunks of it
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 150_000


@pytest.mark.parametrize("name", ["../secret", "/etc/secret", "x" * 300, "a\0b", ""])
def test_an_object_that_was_brought_names_no_file_elsewhere(tmp_path: Path, name: str) -> None:
    # Given a file beside an archive's folder, and an object of the archive whose id leads there
    (tmp_path / "large").mkdir()
    (tmp_path / "secret.payload").write_bytes(b"secret")
    brought = pack(Head(name, "r-1", 1, 1.0, "t", "1.0", b"<a/>", 6), b"")
    # Expect the object as it was brought
    assert beside.LargePayloads(tmp_path, 0).whole(brought) is brought
