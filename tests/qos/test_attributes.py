"""Quality of service of one object, as its publisher says it: a priority, a time, whether it is to be reliable."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from jbi_pubsub import Config
from jbi_pubsub.core.errors import ConfigurationError, ProtocolError
from jbi_pubsub.core.info_object import Head, ObjectAttributes, Parcel, decode, encode, pack, packed
from jbi_pubsub.core.quality import Contract, Settings
from jbi_pubsub.pad.egress.queue import Waiting
from jbi_pubsub.protocol.replies import Registered
from jbi_pubsub.publisher.lanes import Lanes
from jbi_pubsub.qos.queue import LevelQueue
from tests.conftest import Federation, Publishing
from tests.qos.conftest import Judging

SAID = ObjectAttributes(2, 30.0, reliable=False)


def _parcel(registration: int, number: int = 1, attributes: ObjectAttributes | None = None) -> Parcel:
    head = Head("", f"r-{registration}", number, 1.0, "t", "1.0", b"<m/>", 1, attributes=attributes)
    return pack(head, b"p", 100.0)


# -- on the wire -------------------------------------------------------------------------------------------------------


def test_attributes_are_the_same_after_their_way_over_wire_and_bridges() -> None:
    for attributes in (None, SAID):
        parcel = _parcel(1, 1, attributes)
        obj = Parcel.received(b"".join(parcel.parts)).unpacked()
        assert obj.platform.attributes == attributes
        assert decode(b"".join(encode(obj))) == obj
        relayed = Parcel.received(b"".join(packed(obj, "there").parts))
        assert (relayed.head.attributes, relayed.head.via) == (attributes, ("there",))


def test_objects_of_before_there_were_attributes_are_read() -> None:
    # Given an object as archives have it that were filled before
    fields = msgspec.msgpack.decode(msgspec.msgpack.encode(_parcel(1).head))[:-1]
    head = msgspec.msgpack.encode(fields)
    # Expect it to be read
    assert Parcel.received(len(head).to_bytes(4, "big") + head + b"p").unpacked().payload == b"p"


@pytest.mark.parametrize("said", [[6, 0.0, True], [0, -1.0, True], [0, float("nan"), True], [0, 0.0, 1], [0] * 4, {}])
def test_attributes_of_strangers_that_are_none_are_refused(said: Any) -> None:
    fields = [*msgspec.msgpack.decode(msgspec.msgpack.encode(_parcel(1).head))[:-1], said]
    head = msgspec.msgpack.encode(fields)
    with pytest.raises(ProtocolError):
        Parcel.received(len(head).to_bytes(4, "big") + head + b"p")


@pytest.mark.processes
def test_subscribers_see_the_attributes_of_each_object(
    publishing: Publishing, federation: Federation, figures: Any
) -> None:
    # Given a subscriber of a peer publisher, or of one through a delegate
    subscriber = federation.subscriber()
    subscription = subscriber.register_subscriber(type_name="Intel_Imagery")
    registration = publishing.register(figures.figure_1, figures.schema)
    # When it publishes with attributes, and without; and with some that are none
    publishing.adapter.publish(registration, figures.figure_1, attributes=SAID)
    publishing.adapter.publish(registration, figures.figure_1)
    for wrong in (ObjectAttributes(6), ObjectAttributes(timeout=-1.0)):
        with pytest.raises(ConfigurationError, match="attributes"):
            publishing.adapter.publish(registration, figures.figure_1, attributes=wrong)
    # Expect those of each
    came = [subscriber.receive(subscription, 60.0) for _ in range(2)]
    assert [each.platform.attributes for each in came if each] == [SAID, None]


# -- priority ----------------------------------------------------------------------------------------------------------


@pytest.mark.row("D-28")
@pytest.mark.parametrize(("importance", "first"), [(5, "r-2"), (2, "r-1")])
def test_a_priority_lowers_what_policies_say_and_raises_nothing(importance: int, first: str) -> None:
    # Given objects of two registrations that wait for a subscriber, the one before with priority 3
    queue: LevelQueue[Waiting] = LevelQueue(Contract(Settings(importance=importance)), lambda *_: None)
    for registration, attributes in ((1, ObjectAttributes(3)), (2, None)):
        queue.put(Waiting(_parcel(registration, 1, attributes)), 1.0)
    # Expect it to be overtaken where policies say more, and nowhere else
    selected = queue.select(queue.levels.bit_length() - 1, 1.0)
    assert selected is not None
    assert selected.parcel.head.registration == first
    assert queue.levels.bit_length() == importance


@pytest.mark.row("D-28")
def test_at_its_publisher_a_lower_priority_is_overtaken() -> None:
    # Given two registrations of importance 5, and a publisher that has more than goes at once
    lanes = Lanes()
    for number in (1, 2):
        lanes.grant(number, Registered(credit=100, credit_bytes=1 << 20, importance=5, strict=True))
    lanes.put(1, [_parcel(1, number, ObjectAttributes(1)) for number in (1, 2)], 0.0)
    lanes.put(2, [_parcel(2, number) for number in (1, 2)], 0.0)
    # Expect that of no priority to go first
    heads = [Parcel.received(b"".join(bytes(part) for part in item[1:])).head for item in lanes.take(100, 1 << 20)]
    assert [each.registration for each in heads] == ["r-2", "r-2", "r-1", "r-1"]


@pytest.mark.row("D-28")
@pytest.mark.processes
def test_at_a_delegate_a_lower_priority_is_overtaken(
    federation: Federation,
    figures: Any,
    by_type: Callable[..., Config],
    register: Callable[..., Any],
    judging: Judging,
    eventually: Callable[..., Any],
) -> None:
    # Given a delegate that is busy, and two registrations that policies call important
    federation.config = by_type(federation.config)
    delegate = federation.pad()
    other, low, high = federation.light(), federation.light(), federation.light()
    blocker, unimportant, important = (
        register(other, "blocking"),
        register(low, "important"),
        register(high, "important"),
    )
    subscriber = federation.subscriber()
    subscription = subscriber.register_subscriber(type_name="important")
    with judging.held():
        other.publish(blocker, figures.figure_1)
        assert judging.waiting.wait(60.0)
        # When an object of a low priority comes before one that has none
        low.publish(unimportant, figures.figure_1, attributes=ObjectAttributes(1))
        eventually(lambda: delegate.status()["qos"]["tasks"]["waiting"] == 1)
        high.publish(important, figures.figure_1)
        eventually(lambda: delegate.status()["qos"]["tasks"]["waiting"] == 2)
    # Expect that one first
    came = [subscriber.receive(subscription, 60.0) for _ in range(2)]
    assert [each.platform.registration for each in came if each] == [important, unimportant]


# -- timeout -----------------------------------------------------------------------------------------------------------


@pytest.mark.row("D-39")
def test_at_its_publisher_what_has_waited_for_longer_than_it_says_does_not_go() -> None:
    # Given objects of which one may wait for five seconds
    now = [100.0]
    lanes = Lanes(clock=lambda: now[0])
    lanes.grant(1, Registered())
    for number, attributes in ((1, None), (2, ObjectAttributes(timeout=5.0)), (3, ObjectAttributes(timeout=50.0))):
        parcel = _parcel(1, number, attributes)
        parcel.expires = 100.0 + attributes.timeout if attributes is not None else 0.0
        lanes.put(1, [parcel], 0.0)
    # When nobody takes them for longer
    now[0] += 6.0
    heads = [Parcel.received(b"".join(bytes(part) for part in item[1:])).head for item in lanes.take(100, 1 << 20)]
    # Expect the others to go
    assert [each.sequence for each in heads] == [1, 3]
    assert (lanes.given_up, lanes.waiting) == (1, 0)


@pytest.mark.row("D-39")
@pytest.mark.processes
@pytest.mark.parametrize("mode", ["off", "on"])
def test_what_waits_for_a_subscriber_for_longer_than_it_says_is_lost_and_told(
    federation: Federation, mode: Any, eventually: Callable[..., Any]
) -> None:
    # Given a subscriber who has all that it may have at a time
    qos = msgspec.structs.replace(federation.config.qos, mode=mode)
    pad = federation.pad(config=msgspec.structs.replace(federation.config, qos=qos))
    publisher, subscriber = federation.light(), federation.subscriber()
    at = publisher.connect_to_delegate("alpha", "rome")
    registration = publisher.register_publisher(at, type_name="report", validate=False)
    uid = subscriber.register_subscriber(type_name="report", bound=10)
    for _ in range(10):
        publisher.publish(registration, b"", b"first")
    eventually(lambda: subscriber.queue_size(uid) == 10)
    # When more wait at the delegate, some of which may not wait for long
    for seconds in (0.3, 60.0, 0.3, 0.0):
        publisher.publish(registration, b"", str(seconds).encode(), attributes=ObjectAttributes(timeout=seconds))
    publisher.flush()
    eventually(lambda: pad.status()["published"] == 14)
    time.sleep(0.4)
    # Expect those to be told as lost
    got = []
    while (obj := subscriber.receive(uid, 0.5)) is not None:
        got.append(obj.payload)
    assert got[10:] == [b"60.0", b"0.0"]
    assert dict(subscriber.losses(uid)) == {"expired": 2}


# -- reliable ----------------------------------------------------------------------------------------------------------


@pytest.mark.row("D-39")
def test_what_is_not_reliable_is_not_sent_again() -> None:
    # Given objects under way when their delegate goes away
    lanes = Lanes()
    lanes.grant(1, Registered())
    said = (None, ObjectAttributes(reliable=False), ObjectAttributes())
    lanes.put(1, [_parcel(1, number, attributes) for number, attributes in enumerate(said, 1)], 0.0)
    assert len(lanes.take(100, 1 << 20)) == 3
    # When it has forgotten them
    lanes.restart()
    # Expect those that are reliable to go again
    heads = [Parcel.received(b"".join(bytes(part) for part in item[1:])).head for item in lanes.take(100, 1 << 20)]
    assert [each.sequence for each in heads] == [1, 3]
    lanes.acknowledged(2)
    assert (lanes.given_up, lanes.unfinished(1)) == (1, 0)


@pytest.mark.row("D-39")
@pytest.mark.processes
@pytest.mark.parametrize("policy", ["drop_oldest", "block"])
def test_nothing_goes_or_waits_for_what_is_not_reliable(
    federation: Federation, policy: Any, eventually: Callable[..., Any]
) -> None:
    # Given a subscriber who has all that it may have at a time, and a full queue at the delegate
    pad = federation.pad()
    publisher, subscriber = federation.light(), federation.subscriber()
    at = publisher.connect_to_delegate("alpha", "rome")
    registration = publisher.register_publisher(at, type_name="report", validate=False)
    uid = subscriber.register_subscriber(type_name="report", bound=10, policy=policy)
    for count in (10, 20):
        for number in range(count - 10, count):
            publisher.publish(registration, b"", b"%d" % number)
        eventually(lambda count=count: pad.status()["published"] == count)
        eventually(lambda: subscriber.queue_size(uid) == 10)
    # When more come that are not reliable
    for _ in range(3):
        publisher.publish(registration, b"", b"unreliable", attributes=ObjectAttributes(reliable=False))
    publisher.flush()
    eventually(lambda: pad.status()["published"] == 23)
    # Expect these to be lost, and no other
    got = []
    while (obj := subscriber.receive(uid, 0.5)) is not None:
        got.append(obj.payload)
    assert got == [b"%d" % number for number in range(20)]
    assert dict(subscriber.losses(uid)) == {"queue_overflow": 3}
