"""A publisher goes on publishing: after a come-back that fails at first, a callback that fails, and a fork."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import Any, cast

import msgspec
import pytest

from jbi_pubsub import Config
from jbi_pubsub.core.errors import (
    BackPressureError,
    InvariantError,
    JbiError,
    OversizeError,
    WireError,
    WireTimeoutError,
)
from jbi_pubsub.core.info_object import Head, Parcel
from jbi_pubsub.core.renewal import LeaseRenewalManager
from jbi_pubsub.core.wire import ServiceRef
from jbi_pubsub.core.wire.endpoint import Security
from jbi_pubsub.core.wire.stream import CHUNK_BYTES, MAX_BATCH_ITEMS
from jbi_pubsub.lookup.client.finder import LookupCache
from jbi_pubsub.lookup.item import ServiceItem
from jbi_pubsub.protocol.publications import CHUNK, LAST_CHUNK, MAX_COMING, PUBLICATION, WHOLE
from jbi_pubsub.protocol.replies import Registered
from jbi_pubsub.protocol.services import DelegateProxy, fetch_status
from jbi_pubsub.publisher import connection as connection_module
from jbi_pubsub.publisher.connection import ConnectionReports, DelegateConnection
from jbi_pubsub.publisher.lanes import Lanes

TYPE = "mil.af.rl.jbi.Intel_Imagery"


def _forget(pad: Any) -> None:
    """The delegate forgets its publishers, as it does when their leases run out."""
    for connection in list(pad.delegate.tables.connections):
        pad.delegate.publishers.disconnect(connection)
        pad.service.data.forget(connection)


@pytest.mark.parametrize("error", [WireTimeoutError("no answer"), JbiError("not now")], ids=["no answer", "refusal"])
def test_a_publisher_whose_come_back_fails_once_comes_back(
    error: JbiError, federation: Any, figures: Any, monkeypatch: pytest.MonkeyPatch, eventually: Callable[..., Any]
) -> None:
    # Given a publisher with a registration, and a subscriber that has its first object
    pad = federation.pad()
    publisher = federation.light()
    registration = figures.register(publisher)
    subscriber = federation.subscriber()
    uid = subscriber.register_subscriber(type_name=TYPE)
    assert subscriber.wait_matched(uid) == 1
    publisher.publish(registration, figures.figure_1)
    assert subscriber.receive(uid, 60.0).platform.sequence == 1
    # When the delegate forgets it, and its first call to register again fails
    calls: list[str] = []
    register = DelegateProxy.register

    def fails_once(proxy: DelegateProxy, connection: str, *rest: Any) -> Registered:
        calls.append(connection)
        if len(calls) == 1:
            raise error
        return register(proxy, connection, *rest)

    monkeypatch.setattr(DelegateProxy, "register", fails_once)
    _forget(pad)
    # Expect another try, the registration to stand again, and what is published to arrive
    publisher.publish(registration, figures.figure_1)
    publisher.flush(60.0)
    assert len(calls) == 2
    assert [r["uid"] for r in pad.status()["registrations"]] == [registration]
    assert subscriber.receive(uid, 60.0).platform.sequence == 2


def test_a_publisher_whose_only_registration_is_refused_for_good_is_told(
    federation: Any, figures: Any, monkeypatch: pytest.MonkeyPatch, eventually: Callable[..., Any]
) -> None:
    """Given a publisher that a delegate has forgotten, when it refuses the registration until somebody mends something,
    then whoever publishes hears the reason, and goes on when that is mended."""
    pad, publisher = federation.pad(), federation.light()
    registration = figures.register(publisher)
    register = DelegateProxy.register

    def refuses(proxy: DelegateProxy, *arguments: Any) -> Registered:
        raise OversizeError("too many of them", hint="Take fewer")

    monkeypatch.setattr(DelegateProxy, "register", refuses)
    _forget(pad)

    def why() -> str:
        try:
            publisher.publish(registration, figures.figure_1)
        except WireError as exc:
            return str(exc)
        return ""

    assert "too many of them" in eventually(why)
    monkeypatch.setattr(DelegateProxy, "register", register)
    eventually(lambda: not why())
    publisher.flush(60.0)


def _of_several(federation: Any, figures: Any, count: int) -> tuple[Any, Any, list[str]]:
    """A delegate, and a publisher with so many registrations by one connection."""
    pad = federation.pad()
    publisher = federation.light()
    at = publisher.connect_to_delegate("alpha", "rome")
    uids = [publisher.register_publisher(at, figures.schema, figures.figure_1) for _ in range(count)]
    return pad, publisher, uids


def _registered(pad: Any) -> list[str]:
    return [registration["uid"] for registration in pad.status()["registrations"]]


def test_a_come_back_that_takes_longer_than_the_lease_does_not_lose_it(
    federation: Any, figures: Any, monkeypatch: pytest.MonkeyPatch, eventually: Callable[..., Any]
) -> None:
    # Given a publisher with registrations that a delegate takes longer for than its lease lasts
    federation.leases(2.0)
    pad, _, uids = _of_several(federation, figures, 2)
    register, renew = DelegateProxy.register, DelegateProxy.renew
    renewals, kept = Counter[str](), threading.Event()

    def renews(proxy: DelegateProxy, lease_id: str, duration: float) -> Any:
        renewals[lease_id] += 1
        if renewals[lease_id] == 4:  # the first of them opens the connection
            kept.set()
        return renew(proxy, lease_id, duration)

    def registers(proxy: DelegateProxy, *rest: Any) -> Registered:
        assert kept.wait(60.0)
        return register(proxy, *rest)

    monkeypatch.setattr(DelegateProxy, "renew", renews)
    monkeypatch.setattr(DelegateProxy, "register", registers)
    # When the delegate has forgotten it
    renewals.clear()
    _forget(pad)
    # Expect the lease to be renewed meanwhile, and everything to stand again
    eventually(lambda: _registered(pad) == uids)
    assert kept.is_set()


def test_a_come_back_that_fails_half_way_leaves_nothing_in_the_way_of_the_next(
    federation: Any, figures: Any, monkeypatch: pytest.MonkeyPatch, eventually: Callable[..., Any]
) -> None:
    # Given a publisher with two registrations, the second of which is not answered to when it comes back
    pad, _, uids = _of_several(federation, figures, 2)
    register, connect = DelegateProxy.register, DelegateProxy.connect
    failures = iter([WireTimeoutError("no answer")])
    connects: list[str] = []

    def fails_once(proxy: DelegateProxy, connection: str, request: Any, uid: str, number: int) -> Registered:
        granted = register(proxy, connection, request, uid, number)
        if uid == uids[1]:
            for failure in failures:
                raise failure
        return granted

    def counted(proxy: DelegateProxy, name: str, duration: float, claims: Any) -> Any:
        connects.append(name)
        return connect(proxy, name, duration, claims)

    monkeypatch.setattr(DelegateProxy, "register", fails_once)
    monkeypatch.setattr(DelegateProxy, "connect", counted)
    # When the delegate has forgotten it
    _forget(pad)
    # Expect the next try to bring everything back
    eventually(lambda: len(connects) == 2 and _registered(pad) == uids)
    assert len(pad.status()["publishers"]) == 1
    assert len(connects) == 2


@pytest.mark.parametrize("end", ["taken", "unregistered"])
def test_a_registration_that_is_refused_in_a_come_back_holds_up_no_other(
    end: str, federation: Any, figures: Any, monkeypatch: pytest.MonkeyPatch, eventually: Callable[..., Any]
) -> None:
    # Given a publisher with two registrations, a subscriber, and a delegate that refuses the first from now on
    federation.leases(4.0)
    pad, publisher, uids = _of_several(federation, figures, 2)
    subscriber = federation.subscriber()
    subscription = subscriber.register_subscriber(type_name=TYPE)
    assert subscriber.wait_matched(subscription) == 1
    register, refuses = DelegateProxy.register, threading.Event()
    refuses.set()

    def registers(proxy: DelegateProxy, connection: str, request: Any, uid: str, number: int) -> Registered:
        if uid == uids[0] and refuses.is_set():
            raise OversizeError("no room")
        return register(proxy, connection, request, uid, number)

    monkeypatch.setattr(DelegateProxy, "register", registers)
    coming, published = threading.Event(), threading.Event()
    connect = DelegateProxy.connect

    def connects(proxy: DelegateProxy, name: str, duration: float, claims: Any) -> Any:
        coming.set()
        assert published.wait(60.0)
        return connect(proxy, name, duration, claims)

    monkeypatch.setattr(DelegateProxy, "connect", connects)
    # When it has forgotten the publisher, which publishes something of both meanwhile
    _forget(pad)
    assert coming.wait(60.0)
    for uid in uids:
        publisher.publish(uid, figures.figure_1)
    published.set()
    # Expect the object of the other one to arrive
    eventually(lambda: _registered(pad) == uids[1:])
    assert subscriber.receive(subscription, 60.0).platform.registration == uids[1]
    # Expect the application to be told when it publishes for the first one, or waits for what it has published
    with pytest.raises(WireError, match="no room"):
        publisher.publish(uids[0], figures.figure_1)
    with pytest.raises(BackPressureError):
        publisher.flush(0.0)
    if end == "taken":
        # When the delegate takes it, expect its object to arrive, and the next one
        refuses.clear()
        assert subscriber.receive(subscription, 60.0).platform.registration == uids[0]
        publisher.publish(uids[0], figures.figure_1)
        assert subscriber.receive(subscription, 60.0).platform.sequence == 2
    else:
        # When it is ended, expect nothing to wait for any more
        publisher.unregister_publisher(uids[0])
        publisher.flush(60.0)
        assert list(publisher.status()["registrations"]) == uids[1:]


def test_a_publisher_that_leaves_in_the_middle_of_a_come_back_registers_nothing_more(
    federation: Any, figures: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given a publisher with registrations
    pad, publisher, _ = _of_several(federation, figures, 4)
    register = DelegateProxy.register
    (connection,) = publisher._connections.values()
    leaving = threading.Thread(target=publisher.close)
    calls: list[str] = []

    def leaves_meanwhile(proxy: DelegateProxy, *rest: Any) -> Registered:
        # When it is closed while it comes back
        if not calls:
            leaving.start()
            assert connection._link.pause(60.0)
        calls.append("register")
        return register(proxy, *rest)

    monkeypatch.setattr(DelegateProxy, "register", leaves_meanwhile)
    _forget(pad)
    connection._thread.join(60.0)
    leaving.join(10.0)
    # Expect it to have ended with the registration under way, and nothing to be left at the delegate
    assert calls == ["register"]
    assert pad.status()["publishers"] == pad.status()["registrations"] == []


@pytest.mark.parametrize("is_back", [False, True], ids=["forgotten", "back in another connection"])
def test_a_publisher_that_its_delegate_has_forgotten_registers_all_the_same(
    federation: Any, figures: Any, monkeypatch: pytest.MonkeyPatch, eventually: Callable[..., Any], is_back: bool
) -> None:
    # Given a delegate that forgets its publisher before it registers, as when its lease runs out while it hangs
    pad = federation.pad()
    publisher = federation.light()
    calls: list[str] = []
    register = DelegateProxy.register

    def too_late(proxy: DelegateProxy, connection: str, *rest: Any) -> Registered:
        calls.append(connection)
        if len(calls) == 1:
            _forget(pad)
            eventually(lambda: not is_back or proxy._client._closed)  # then the new connection is in its place
        return register(proxy, connection, *rest)

    monkeypatch.setattr(DelegateProxy, "register", too_late)
    # When it registers, expect the registration to stand, in another connection
    registration = figures.register(publisher)
    assert len(set(calls)) == 2
    assert [r["uid"] for r in pad.status()["registrations"]] == [registration]


class _Hanging:
    """Calls of a delegate that it does not answer, the second and later ones of a kind, until it is let go."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, name: str, *, first: int = 1) -> None:
        self.asked, self.answers = threading.Event(), threading.Event()
        call = getattr(DelegateProxy, name)

        def hangs(proxy: DelegateProxy, *given: Any, **named: Any) -> Any:
            nonlocal first
            first -= 1
            if first < 0:
                self.asked.set()
                assert self.answers.wait(60.0)
            return call(proxy, *given, **named)

        monkeypatch.setattr(DelegateProxy, name, hangs)


@pytest.mark.parametrize("call", ["register", "come back", "unregister"])
def test_a_delegate_that_does_not_answer_holds_up_no_other_call(
    call: str, federation: Any, figures: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given a publisher, and a call of it that its delegate does not answer
    pad, publisher, uids = _of_several(federation, figures, 1)
    at = next(iter(publisher._connections))
    hanging = _Hanging(monkeypatch, "unregister" if call == "unregister" else "register", first=0)
    ask = {
        "register": lambda: publisher.register_publisher(at, figures.schema, figures.figure_1),
        "come back": lambda: _forget(pad),
        "unregister": lambda: publisher.unregister_publisher(uids[0]),
    }[call]

    def asks() -> None:
        with suppress(WireError):  # it has left meanwhile
            ask()

    asking = threading.Thread(target=asks)
    asking.start()
    assert hanging.asked.wait(60.0)
    # When the application asks something else of it, and leaves
    done = threading.Event()

    def leaves() -> None:
        publisher.wait_for_subscribers(uids[0], 1, 0.0)
        publisher.status()
        publisher.close(0.0)
        done.set()

    leaving = threading.Thread(target=leaves)
    leaving.start()
    # Expect it to have left while that call still waits
    was_done = done.wait(30.0)
    hanging.answers.set()
    leaving.join(60.0)
    asking.join(60.0)
    assert was_done


def test_a_publisher_that_looks_for_its_delegate_closes_at_once(
    federation: Any, figures: Any, monkeypatch: pytest.MonkeyPatch, eventually: Callable[..., Any]
) -> None:
    # Given a publisher whose delegate has gone, and that looks for another one, for an hour each time
    monkeypatch.setattr(connection_module, "FIND_AGAIN_SECONDS", 3600.0)
    pad = federation.pad()
    publisher = federation.light()
    figures.register(publisher)
    looks = threading.Event()
    wait = LookupCache.wait

    def looking(cache: LookupCache, count: int, timeout: float) -> list[ServiceItem]:
        looks.set()
        return wait(cache, count, timeout)

    monkeypatch.setattr(LookupCache, "wait", looking)
    pad.stop()
    assert looks.wait(60.0)
    # When it closes, expect its threads to end
    publisher.close()
    eventually(lambda: not [t.name for t in threading.enumerate() if t.name.startswith("publish")])


def test_a_callback_for_refused_objects_that_fails_does_not_end_publishing(
    federation: Any, figures: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given a publisher whose callback for refused objects raises, and a delegate that refuses one object
    pad = federation.pad()
    told: list[str] = []

    def mistaken(object_id: str, _error: JbiError) -> None:
        told.append(object_id)
        raise KeyError("the application's mistake")

    publisher = federation.light(refused=mistaken)
    registration = figures.register(publisher)
    publish = pad.delegate.publishers.publish

    def refuses_the_first(registered: Any, run: Any, deliveries: Any) -> Any:
        if run[0].head.sequence == 1:
            return [(run[0], InvariantError("other invariants"))]
        return publish(registered, run, deliveries)

    monkeypatch.setattr(pad.delegate.publishers, "publish", refuses_the_first)
    # When it publishes
    first = publisher.publish(registration, figures.figure_1)
    publisher.flush(60.0)
    for _ in range(3):
        publisher.publish(registration, figures.figure_1)
        publisher.flush(60.0)
    # Expect the application to have been told once, and the other objects to be taken
    assert told == [first]
    assert [r["published"] for r in pad.status()["registrations"]] == [3]


# -- what goes again ----------------------------------------------------------------------------------------------

SMALL = (b"head", b"small")
LARGE = (b"head", bytes(range(256)) * (4 << 10))


def _objects(items: list[tuple[Any, ...]]) -> list[bytes]:
    """The objects that a delegate puts together of a registration's items, none of them half."""
    whole: list[bytes] = []
    coming: bytes | None = None
    for head, *parts in items:
        kind, *_ = PUBLICATION.unpack(head)
        body = b"".join(parts)
        if kind not in (CHUNK, LAST_CHUNK):
            whole.append(body)
            continue
        coming = (coming or b"") + body
        if kind == LAST_CHUNK:
            whole.append(coming)
            coming = None
    assert coming is None
    return whole


def _put(queue: Lanes, number: int, parts: tuple[Any, ...]) -> None:
    head = Head("", "", 0, 0.0, "", "", b"", 0)
    assert queue.put(number, [Parcel(head, parts, sum(map(len, parts)), 0)], 1.0) == 1


def _all(queue: Lanes) -> list[tuple[Any, ...]]:
    return _some(queue, 1 << 30)


def _some(queue: Lanes, most: int) -> list[tuple[Any, ...]]:
    """Items as a link takes them that is not fast: a chunk at a time."""
    items: list[tuple[Any, ...]] = []
    while len(items) < most and (taken := queue.take(1, CHUNK_BYTES)):
        items += taken
    return items


@pytest.mark.parametrize(("taken", "acknowledged"), [(t, a) for t in range(1, 6) for a in range(t + 1)])
def test_a_large_object_that_has_not_gone_whole_goes_again_whole(taken: int, acknowledged: int) -> None:
    # Given a large object and a small one behind it, some items taken, some of these acknowledged
    assert sum(map(len, LARGE)) > 4 * CHUNK_BYTES
    queue = Lanes()
    _put(queue, 1, LARGE)
    _put(queue, 1, SMALL)
    assert len(_some(queue, taken)) == taken
    queue.acknowledged(acknowledged)
    # When everything begins again with a delegate that knows nothing of it
    queue.restart()
    # Expect both objects whole and in order, but for what was acknowledged whole
    again = _objects(_all(queue))
    expected = [b"".join(LARGE), b"".join(SMALL)]
    assert again == (expected[1:] if acknowledged >= 5 else expected)


def test_large_objects_of_several_registrations_each_go_again_once() -> None:
    # Given large objects of two registrations that take turns, half of them gone
    queue = Lanes()
    for number in (1, 2):
        _put(queue, number, LARGE)
    queue.acknowledged(len(_some(queue, 5)))
    # When everything begins again twice
    queue.restart()
    _some(queue, 3)
    queue.restart()
    # Expect each of them once, and then nothing to wait for
    items = _all(queue)
    for number in (1, 2):
        own = [item for item in items if PUBLICATION.unpack(item[0])[1] == number]
        assert _objects(own) == [b"".join(LARGE)]
    queue.acknowledged(len(items))
    assert queue.wait_taken(0.0) == 0


def test_no_more_large_objects_are_under_way_than_a_delegate_takes_at_once() -> None:
    # Given a large object of each of many registrations, and small ones of others
    queue = Lanes()
    large, small = range(1, 4 * MAX_COMING), range(100, 110)
    for number in (*large, *small):
        _put(queue, number, LARGE if number in large else SMALL)
    # When all of it is sent
    items = _all(queue)
    # Expect the small ones to go in the first round, and no more large ones to be under way at any time
    kinds = [PUBLICATION.unpack(item[0]) for item in items]
    assert {number for kind, number, _ in kinds[: MAX_COMING + len(small)] if kind == WHOLE} == set(small)
    under_way: set[int] = set()
    for kind, number, _ in kinds:
        if kind == CHUNK:
            under_way.add(number)
        elif kind == LAST_CHUNK:
            under_way.discard(number)
        assert len(under_way) <= MAX_COMING
    # Expect each to arrive whole
    for number in large:
        assert _objects([i for i in items if PUBLICATION.unpack(i[0])[1] == number]) == [b"".join(LARGE)]


def test_on_a_slow_link_a_small_object_waits_for_a_chunk_and_not_for_a_large_object() -> None:
    # Given chunks of 4 kB, a large object under way, and a small one of another registration behind it
    queue = Lanes(chunk=4 << 10)
    _put(queue, 1, LARGE)
    first = queue.take(MAX_BATCH_ITEMS, 4 << 10)
    _put(queue, 2, SMALL)
    # Expect a batch of about a chunk at a time, and the small one in the next or the one after it
    batches = [first, *(queue.take(MAX_BATCH_ITEMS, 4 << 10) for _ in range(2))]
    assert all(sum(len(part) for item in batch for part in item) < 9 << 10 for batch in batches)
    assert _objects([i for batch in batches for i in batch if PUBLICATION.unpack(i[0])[1] == 2]) == [b"".join(SMALL)]
    # Expect the large one whole
    rest = [item for batch in batches for item in batch] + _all(queue)
    assert _objects([i for i in rest if PUBLICATION.unpack(i[0])[1] == 1]) == [b"".join(LARGE)]


def test_a_large_object_goes_in_pieces_as_large_as_the_link_is_fast() -> None:
    # Given a large object; When a batch may have more than a chunk, as where the link is fast
    queue = Lanes()
    _put(queue, 1, LARGE)
    [first] = queue.take(MAX_BATCH_ITEMS, 2 * CHUNK_BYTES)
    # Expect one piece of that size, head and payload not copied, and the rest as the link takes it by then
    assert sum(map(len, first[1:])) == 2 * CHUNK_BYTES
    assert all(isinstance(part, memoryview) and part.obj in LARGE for part in first[1:])
    assert _objects([first, *_all(queue)]) == [b"".join(LARGE)]


def test_an_object_that_has_gone_is_not_kept() -> None:
    # Given a large object
    queue = Lanes()
    _put(queue, 1, LARGE)
    # When all of it is acknowledged
    queue.acknowledged(len(_all(queue)))
    # Expect nothing of it to be kept, nor to go again
    assert queue._lanes == {}
    queue.restart()
    assert _all(queue) == []


def test_a_registration_that_was_taken_back_leaves_nothing_in_the_queue() -> None:
    # Given objects of many registrations, large and small, that have gone
    queue = Lanes()
    for number in range(100):
        _put(queue, number, SMALL if number % 2 else LARGE)
    queue.acknowledged(len(queue.take(1000, 1 << 40)))
    # Expect nothing to be kept of them, and the next object of one of them to go
    assert queue._lanes == {}
    _put(queue, 7, SMALL)
    assert _objects(_all(queue)) == [b"".join(SMALL)]


def test_a_flush_waits_for_what_has_left_the_queue_and_is_not_sent_yet() -> None:
    # Given an object that the sending thread has taken from the queue a moment ago
    renewals = LeaseRenewalManager("test")
    connection = DelegateConnection(
        Config(), renewals, finder=cast("Any", None), name="p", reports=ConnectionReports("p", None, None)
    )
    _put(connection.queue, 1, SMALL)
    taken = len(_all(connection.queue))
    # Expect a flush to know of it, until it is acknowledged
    with pytest.raises(BackPressureError, match="1 objects"):
        connection.flush(0.0)
    connection._acked(taken, memoryview(b""))
    connection.flush(0.0)
    renewals.stop()


# -- registering --------------------------------------------------------------------------------------------------


def test_a_registration_whose_answer_is_lost_does_not_stand_in_the_way_of_the_next(
    federation: Any, figures: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given a publisher whose first registration reaches its delegate, but the answer does not come back
    federation.pad()
    publisher = federation.light()
    delegate = publisher.connect_to_delegate("alpha", "rome")
    register = DelegateProxy.register

    def unanswered(*arguments: Any) -> None:
        register(*arguments)
        raise WireTimeoutError("no answer")

    monkeypatch.setattr(DelegateProxy, "register", unanswered)
    with pytest.raises(WireTimeoutError):
        publisher.register_publisher(delegate, figures.schema, figures.figure_1)
    monkeypatch.undo()
    # When it registers again, expect that to stand, and what is published to be taken
    registration = publisher.register_publisher(delegate, figures.schema, figures.figure_1)
    publisher.publish(registration, figures.figure_1)
    publisher.flush(60.0)


# -- fork ---------------------------------------------------------------------------------------------------------

FORKING = """
import json, os, sys, warnings
from pathlib import Path
from jbi_pubsub import PublisherAdapter, PublisherAdapterLight
from jbi_pubsub.core.config import load
from jbi_pubsub.core.errors import AdapterStateError

warnings.simplefilter("ignore", DeprecationWarning)  # newer Pythons warn of any fork in a process with threads
flags = {{"lookup.locators": [{locator!r}], "lookup.port": 0}}
config = load(file=Path(os.environ["JBI_CONFIG"]), environment={{}}, flags=flags)[0]
schema, figure = Path({schema!r}), Path({schema!r}).with_name("fig1.xml")

def tell(**facts):
    print(json.dumps(facts), flush=True)

with PublisherAdapterLight(config) as light, PublisherAdapter(config) as peer:
    at_delegate = light.register_publisher(light.connect_to_delegate("alpha", "rome"), schema, figure)
    at_peer = peer.register_publisher(schema, figure)
    tell(address=peer.status()["address"])
    input()
    child = os.fork()
    if not child:
        refused = 0
        light.close(0.2)
        peer.close(0.2)
        for adapter, registration in ((light, at_delegate), (peer, at_peer)):
            try:
                adapter.publish(registration, figure)
            except AdapterStateError:
                refused += 1
        os._exit(refused)
    tell(child=os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    input()
    light.publish(at_delegate, figure)
    light.flush()
    peer.publish(at_peer, figure)
    tell(published=[at_delegate, at_peer])
    input()
"""


@pytest.mark.processes
def test_a_forked_child_that_closes_its_parents_publishers_leaves_them_alone(
    federation: Any, figures: Any, start: Callable[..., Any], eventually: Callable[..., Any]
) -> None:
    # Given a process that publishes at a delegate and peer to peer, and a subscriber to both
    pad = federation.pad()
    process = start(script=FORKING.format(locator=federation.lookups[0].address, schema=str(figures.schema)))
    address = process.fact()["address"]
    subscriber = federation.subscriber()
    uid = subscriber.register_subscriber(type_name=TYPE)
    eventually(lambda: subscriber.wait_matched(uid, 2, 1.0) == 2)
    before = pad.status()
    # When it forks, and the child closes both publishers and tries to publish
    process.say("fork")
    # Expect that the child is refused, and ends in time
    assert process.fact() == {"child": 2}
    # Expect the same connection at the delegate, and the peer's port to be served
    after = pad.status()
    assert [p["id"] for p in after["publishers"]] == [p["id"] for p in before["publishers"]]
    assert [r["uid"] for r in after["registrations"]] == [r["uid"] for r in before["registrations"]]
    assert len(fetch_status(ServiceRef("", "status", (address,)), Security(), timeout=60.0)["registrations"]) == 1
    # When the parent publishes, expect its objects to arrive
    process.say("publish")
    published = process.fact()["published"]
    received = {subscriber.receive(uid, 60.0).platform.registration for _ in published}
    assert received == set(published)
    process.say("end")


@pytest.mark.parametrize("number", [1, 2, None], ids=["the busy one", "another", "all"])
def test_what_was_published_before_is_waited_for_and_not_what_is_published_meanwhile(number: int | None) -> None:
    # Given an object of each of two registrations under way
    queue = Lanes()
    for registration in (1, 2):
        _put(queue, registration, SMALL)
    assert len(_all(queue)) == 2
    left: list[int] = []
    flushing = threading.Thread(target=lambda: left.append(queue.wait_taken(10.0, number)))
    flushing.start()
    while not queue._changed._waiters:  # type: ignore[attr-defined]  # who waits there
        pass
    # When there is never a moment without one under way
    for _ in range(10):
        _put(queue, 1, SMALL)
        _all(queue)
        queue.acknowledged(1)
    # Expect whoever waits for the first ones not to wait for the others
    flushing.join(10.0)
    assert left == [0]
    # Expect the others to be waited for as well, by who asks now
    assert queue.wait_taken(0.0) == 2
    queue.acknowledged(2)
    assert queue.wait_taken(0.0) == 0
    assert not queue._lanes


def test_a_registration_is_ended_while_another_one_publishes_without_pause(
    federation: Any, figures: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given a publisher with two registrations, of which one always has something under way
    monkeypatch.setattr(Lanes, "acknowledged", _all_but_one(Lanes.acknowledged))
    section = msgspec.structs.replace(federation.config.queue, publish_seconds=1.0)
    federation.config = msgspec.structs.replace(federation.config, queue=section)
    pad, publisher, (busy, quiet) = _of_several(federation, figures, 2)
    publisher.publish(busy, figures.figure_1)
    # When the other one is ended, expect that not to be waited for
    publisher.unregister_publisher(quiet)
    assert _registered(pad) == [busy]
    monkeypatch.undo()
    (connection,) = publisher._connections.values()
    connection.queue.acknowledged(1)  # or the end would wait for it


def _all_but_one(acknowledged: Callable[[Lanes, int], None]) -> Callable[[Lanes, int], None]:
    return lambda queue, count: acknowledged(queue, min(count, len(queue._taken) - 1))


@pytest.mark.parametrize("end", ["unregister", "disconnect"])
def test_a_type_that_nobody_publishes_any_more_may_have_another_schema(end: str, federation: Any, figures: Any) -> None:
    # Given a publisher whose only registration of a type has ended
    _pad, publisher, (registration,) = _of_several(federation, figures, 1)
    if end == "unregister":
        publisher.unregister_publisher(registration)
    else:
        publisher.disconnect(next(iter(publisher._connections)))
    # Expect another schema of the type to be taken
    more = b"<xs:simpleType name='Next'><xs:restriction base='xs:string'/></xs:simpleType></xs:schema>"
    changed = figures.schema.read_bytes().replace(b"</xs:schema>", more)
    at = publisher.connect_to_delegate("alpha", "rome")
    assert publisher.register_publisher(at, changed, figures.figure_1)
