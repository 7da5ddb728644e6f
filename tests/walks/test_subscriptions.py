"""The subscriber's adapter: queues, listeners, losses, cancellation (paper section 2.4(5)-(7))."""

from __future__ import annotations

import itertools
import signal
import threading
import time
import warnings
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from jbi_pubsub import Cause, SubscriberAdapter, SubscriptionUid
from jbi_pubsub.core.errors import AdapterStateError, UnknownUidError
from jbi_pubsub.subscriber import listeners
from jbi_pubsub.subscriber.adapter import NAMES

IMAGERY = "mil.af.rl.jbi.Intel_Imagery"


@pytest.mark.row("J-74", "J-90")
def test_all_sixteen_combinations_of_the_optional_arguments(
    postbox: Any, own_walk: Any, listener: Any, eventually: Callable[..., Any]
) -> None:
    # Given a subscription for each combination of template, predicate, filter, listener and e-mail recipients
    walk = own_walk
    walk.register()
    uids: dict[tuple[bool, ...], SubscriptionUid] = {}
    for combination in itertools.product([True, False], repeat=5):
        template, predicate, cut, told, mailed = combination
        uids[combination] = walk.subscriber.register_subscriber(
            walk.figures.figure_3 if template else None,
            schema=walk.figures.schema if template else None,
            type_name="" if template else IMAGERY,
            predicate="//lat < 40" if predicate else "",
            payload_filter="//name" if cut else "",
            listener=listener if told else None,
            recipients=["s2@example.org"] if mailed else [],
            direct=True if mailed and told else None,
        )
    assert len(set(uids.values())) == 32  # the paper's sixteen, with and without a template
    for uid in uids.values():
        assert walk.subscriber.wait_matched(uid) == 1
    # When one object is published that all predicates let through, and one that they do not
    walk.publish(walk.figures.metadata(lat="50"), b"<a><name/>50</a>")
    walk.publish(payload=b"<a><name/>33</a>")
    # Expect each in the queue, or at the listener, or in the mail, as asked
    expected = {uid: 1 if combination[1] else 2 for combination, uid in uids.items()}
    mails = sum(expected[uid] for combination, uid in uids.items() if combination[4])
    calls = sum(expected[uid] for combination, uid in uids.items() if combination[3])
    eventually(lambda: len(postbox.envelopes) == mails, what="all mails")
    eventually(lambda: len(listener.objects) == calls, what="all calls of the listener")
    assert listener.subscriptions == {uid for combination, uid in uids.items() if combination[3]}
    for (_, _, cut, told, mailed), uid in uids.items():
        if told or mailed:
            assert walk.subscriber.drain(uid) == []
            continue
        payloads = [walk.subscriber.receive(uid).payload for _ in range(expected[uid])]
        assert [b"<a>" in payload for payload in payloads] == [not cut] * expected[uid]
        assert walk.subscriber.drain(uid) == []
        assert walk.subscriber.losses(uid) == {}


@pytest.mark.row("J-12")
def test_direct_and_indirect_dissemination_of_one_subscription(
    postbox: Any, own_walk: Any, eventually: Callable[..., Any]
) -> None:
    # Given a subscription that asks for both
    uid = own_walk.subscribe(recipients=["s2@example.org", "s3@example.org"], direct=True)
    # When an object is published
    own_walk.publish(payload=b"both ways")
    # Expect it in the queue and in the mail of each recipient
    assert own_walk.subscriber.receive(uid).payload == b"both ways"
    eventually(lambda: sorted(r for e in postbox.envelopes for r in e.rcpt_tos) == ["s2@example.org", "s3@example.org"])


@pytest.mark.row("J-75")
@pytest.mark.parametrize("stranger", ["", "subscription-0"])
def test_the_uid_identifies_the_subscription_in_every_call(walk: Any, stranger: str) -> None:
    # Given a subscription, and an id that nobody has
    uid, foreign = walk.subscribe(), SubscriptionUid(stranger)
    subscriber = walk.subscriber
    # When it is used; Expect an error from every call, and the subscription unharmed
    calls: list[Callable[[SubscriptionUid], Any]] = [
        lambda u: subscriber.wait_matched(u, timeout=0.1),
        lambda u: subscriber.receive(u, 0.1),
        lambda u: list(subscriber.objects(u, 0.1)),
        subscriber.drain,
        subscriber.queue_size,
        subscriber.losses,
        subscriber.cancel_subscription,
    ]
    for call in calls:
        with pytest.raises(UnknownUidError):
            call(foreign)
    walk.publish(payload=b"unharmed")
    assert walk.payloads(uid) == [b"unharmed"]


@pytest.mark.row("J-76")
def test_every_subscription_has_a_queue_of_its_own(walk: Any, eventually: Callable[..., Any]) -> None:
    # Given two subscriptions that divide the world, and one that takes all
    north = walk.subscribe(predicate="//latord = 'N'")
    south = walk.subscribe(predicate="//latord = 'S'")
    everything = walk.subscribe()
    # When three objects of the north and two of the south are published
    for number, side in enumerate("NSNSN"):
        walk.publish(walk.figures.metadata(latord=side), side.encode() + b"%d" % number)
    # Expect each in its own queue only, in order
    sizes = {north: 3, south: 2, everything: 5}
    for uid, size in sizes.items():
        eventually(lambda uid=uid, size=size: walk.subscriber.queue_size(uid) == size, what=f"{size} objects wait")
    assert walk.subscriber.receive(north).payload == b"N0"
    assert walk.subscriber.queue_size(north) == 2
    assert [obj.payload for obj in walk.subscriber.drain(north)] == [b"N2", b"N4"]
    assert walk.subscriber.queue_size(north) == 0
    assert walk.subscriber.queue_size(south) == 2
    assert [obj.payload for obj in walk.subscriber.objects(south, 0.05)] == [b"S1", b"S3"]
    assert [o.payload for o in walk.subscriber.drain(everything)] == [b"N0", b"S1", b"N2", b"S3", b"N4"]


@pytest.mark.row("J-76")
def test_receive_waits_for_its_timeout_and_no_longer_than_for_the_object(walk: Any) -> None:
    # Given an empty queue; When it is asked with a timeout; Expect nothing, after that time
    uid = walk.subscribe()
    began = time.monotonic()
    assert walk.subscriber.receive(uid, 0.3) is None
    assert time.monotonic() - began >= 0.29
    assert walk.subscriber.receive(uid, 0.0) is None
    # When an object comes while somebody waits; Expect it long before the timeout
    timer = threading.Timer(0.1, walk.publish, kwargs={"payload": b"image"})
    timer.start()
    began = time.monotonic()
    assert walk.subscriber.receive(uid, 60.0).payload == b"image"
    assert time.monotonic() - began < 30.0
    timer.join()


@pytest.mark.row("J-77")
def test_a_listener_is_called_once_for_each_object_on_a_library_thread(
    walk: Any, listener: Any, eventually: Callable[..., Any]
) -> None:
    # Given a subscription with a listener
    uid = walk.subscribe(listener=listener)
    # When twenty objects are published
    ids = [walk.publish(payload=b"%d" % number) for number in range(20)]
    eventually(lambda: len(listener.objects) >= 20)
    # Expect one call for each, in order, on a thread of the library; nothing in the queue
    assert [obj.object_id for obj in listener.objects] == ids
    assert listener.subscriptions == {uid}
    assert threading.get_ident() not in listener.threads
    assert walk.subscriber.queue_size(uid) == 0


@pytest.mark.row("J-77")
def test_an_exception_in_a_listener_does_not_stop_delivery(
    walk: Any, listener: Any, eventually: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given a listener that always raises, and another subscription
    monkeypatch.setattr(listeners, "PAUSE_MOST", 0.001)
    listener.fail = True
    broken, sound = walk.subscribe(listener=listener), walk.subscribe()
    # When objects are published
    for number in range(5):
        walk.publish(payload=b"%d" % number)
    # Expect that both get all of them, the first one several times, as lost then, and that the errors are counted
    payloads = [b"0", b"1", b"2", b"3", b"4"]
    again = [payload for payload in payloads for _ in range(listeners.TRIES)]
    eventually(lambda: [obj.payload for obj in listener.objects if obj.payload in payloads] == again)
    assert walk.payloads(sound) == payloads
    eventually(lambda: walk.subscriber.losses(broken).get("listener_failed", 0) >= 5)
    assert walk.subscriber.status()["subscriptions"][broken]["listener_errors"] >= 25


# -- losses -------------------------------------------------------------------------------------------------------


@pytest.mark.row("X-12")
@pytest.mark.parametrize("policy", ["drop_oldest", "drop_newest"])
def test_a_full_queue_loses_objects_by_its_policy_and_counts_every_one(
    walk: Any, policy: str, eventually: Callable[..., Any]
) -> None:
    # Given a bound of three objects, nobody taking them, and a second subscription that is not affected
    uid = walk.subscribe(bound=3, policy=policy)
    other = walk.subscribe()
    # When twenty are published
    for number in range(1, 21):
        walk.publish(payload=b"%d" % number)
    assert len(walk.received(other)) == 20
    # Expect that what came and what was lost, by cause, are all there were: twenty and the marker
    found: list[int] = []

    def accounted() -> bool:
        found.extend(obj.platform.sequence for obj in walk.subscriber.drain(uid))
        return len(found) + sum(walk.subscriber.losses(uid).values()) == 21

    eventually(accounted)
    assert set(walk.subscriber.losses(uid)) == {Cause.QUEUE_OVERFLOW}
    assert walk.subscriber.losses(other) == {}
    # at most the bound here and again at the node, in order
    assert found == sorted(set(found))
    assert 3 <= len(found) <= 6
    # and that the oldest of those that waited, or the newest, are the ones that went
    assert found[-3:] == [19, 20, 21] if policy == "drop_oldest" else found[:3] == [1, 2, 3] and 21 not in found


@pytest.mark.row("J-78")
def test_a_listener_that_is_too_slow_is_told_of_its_losses(
    walk: Any, listener: Any, eventually: Callable[..., Any]
) -> None:
    # Given a listener that hangs, and a bound of two
    listener.gate.clear()
    uid = walk.subscribe(listener=listener, bound=2)
    # When fifty objects are published before it goes on
    for number in range(50):
        walk.publish(payload=b"%d" % number)
    listener.gate.set()
    # Expect calls for what came and notices for what did not, fifty in all, each with its cause
    eventually(lambda: len(listener.objects) + listener.lost_count == 50, what="all accounted for")
    assert listener.lost_count > 0
    assert {notice.cause for notice in listener.notices} == {Cause.QUEUE_OVERFLOW}
    assert {notice.subscription for notice in listener.notices} == {uid}
    assert sum(walk.subscriber.losses(uid).values()) == listener.lost_count
    sequences = [obj.platform.sequence for obj in listener.objects]
    assert sequences == sorted(set(sequences))


def test_policy_block_holds_the_publisher_up_and_loses_nothing(walk: Any) -> None:
    # Given a bound of two, policy block, and a consumer slower than the publisher
    uid = walk.subscribe(bound=2, policy="block")
    found: list[int] = []

    def consume() -> None:
        while len(found) < 60:
            obj = walk.subscriber.receive(uid)
            if obj is None:
                return
            found.append(obj.platform.sequence)

    # When sixty objects are published
    consumer = threading.Timer(0.3, consume)
    consumer.start()
    began = time.monotonic()
    for number in range(60):
        walk.publish(payload=b"%d" % number)
    # Expect that the publisher had to wait, and that all come
    assert time.monotonic() - began > 0.25
    consumer.join(60.0)
    assert found == list(range(1, 61))
    assert walk.subscriber.losses(uid) == {}


def test_policy_block_gives_up_after_its_time_and_counts_the_loss(
    publishing: Any, federation: Any, figures: Any, listener: Any, eventually: Callable[..., Any]
) -> None:
    # Given a bound of one, policy block for 0.2 s, and a listener that hangs
    registration = publishing.register(figures.figure_1, figures.schema)
    queue = msgspec.structs.replace(federation.config.queue, block_seconds=0.2)
    subscriber = federation.subscriber(msgspec.structs.replace(federation.config, queue=queue))
    listener.gate.clear()
    uid = subscriber.register_subscriber(
        figures.figure_3, schema=figures.schema, bound=1, policy="block", listener=listener
    )
    assert subscriber.wait_matched(uid) == 1
    # When more is published than has room
    for _ in range(6):
        publishing.publish(registration, figures.figure_1, b"image")
    listener.gate.set()
    # Expect that the publisher goes on, and that what was lost has its own cause
    eventually(lambda: len(listener.objects) + listener.lost_count == 6, what="all accounted for")
    assert listener.lost_count > 0
    assert {notice.cause for notice in listener.notices} == {Cause.BLOCK_TIMEOUT}
    assert subscriber.losses(uid) == {Cause.BLOCK_TIMEOUT: listener.lost_count}


@pytest.mark.row("J-78")
def test_the_death_of_a_delegate_is_told_as_a_loss_of_unknown_extent(
    federation: Any,
    figures: Any,
    listener: Any,
    start: Callable[..., Any],
    process_settings: Callable[..., None],
    eventually: Callable[..., Any],
) -> None:
    # Given a delegate in a process of its own, and a listener that hangs while objects wait there
    federation.leases(2.0)
    process_settings(lease_lookup="1")
    pad = start("pad", "alpha", "rome", "--port", "0", "--json")
    assert pad.fact()["ready"] == "pad"
    light = federation.light()
    registration = light.register_publisher(light.connect_to_delegate("alpha"), figures.schema, figures.figure_1)
    subscriber = federation.subscriber()
    uid = subscriber.register_subscriber(figures.figure_3, schema=figures.schema, listener=listener)
    assert subscriber.wait_matched(uid) == 1
    listener.gate.clear()
    for _ in range(5):
        light.publish(registration, figures.figure_1)
    light.flush()
    # When it is killed
    pad.signal(signal.SIGKILL)
    listener.gate.set()
    # Expect a notice with cause and count: 0, for nobody knows
    eventually(lambda: listener.notices, what="loss told")
    assert [(n.cause, n.count) for n in listener.notices] == [(Cause.DELEGATE_DEAD, 0)]
    assert subscriber.losses(uid) == {Cause.DELEGATE_DEAD: 1}


# -- many, one, none -----------------------------------------------------------------------------------------------


@pytest.mark.row("J-79")
def test_a_hundred_subscriptions_share_one_adapter_and_one_session(walk: Any) -> None:
    # Given a hundred subscriptions
    uids = [walk.subscribe(predicate=f"//lat > {number}", matched=0) for number in range(100)]
    for uid in uids:
        assert walk.subscriber.wait_matched(uid) == 1
    # When an object is published that 34 of them want
    walk.publish(payload=b"image")
    # Expect it in their queues, over one session and one delivery connection
    assert [walk.subscriber.receive(uid).payload for uid in uids[:34]] == [b"image"] * 34
    (session,) = walk.publishing.status()["sessions"]
    assert set(session["queued"]) == set(uids)
    (mine,) = walk.subscriber.status()["sessions"]
    assert (mine["connected"], set(mine["subscriptions"])) == (True, set(uids))
    assert [walk.record(uid)["matched"] for uid in uids] == [1] * 34 + [0] * 66


@pytest.mark.row("J-80")
def test_only_one_subscriber_adapter_of_a_name_in_an_address_space(federation: Any) -> None:
    # Given an open adapter
    first = SubscriberAdapter(federation.config, name="fusion")
    # When another one of its name is made; Expect an error, and the first unharmed
    with pytest.raises(AdapterStateError, match="fusion"):
        SubscriberAdapter(federation.config, name="fusion")
    first.register_subscriber(type_name=IMAGERY)
    # When the first is closed (twice is once); Expect that a new one may be made, and the first is of no use
    first.close()
    first.close()
    with SubscriberAdapter(federation.config) as second:
        assert second.status()["subscriptions"] == {}
        with pytest.raises(AdapterStateError):
            first.register_subscriber(type_name=IMAGERY)
    with pytest.raises(AdapterStateError):
        second.register_subscriber(type_name=IMAGERY)


def test_several_clients_of_a_process_get_all_that_is_theirs(walk: Any) -> None:
    # Given two adapters beside the walk's own, none of which has been given a name
    walk.register()
    with SubscriberAdapter(walk.federation.config) as one, SubscriberAdapter(walk.federation.config) as other:
        uids = [each.register_subscriber(type_name=IMAGERY) for each in (one, other)]
        assert [each.wait_matched(uid) for each, uid in zip((one, other), uids, strict=True)] == [1, 1]
        # When something is published, expect each to have it, and each to have a name of its own
        walk.publish(payload=b"for both")
        got = [each.receive(uid, 60.0) for each, uid in zip((one, other), uids, strict=True)]
        assert [obj.payload for obj in got if obj is not None] == [b"for both"] * 2
        assert len({each.status()["name"] for each in (one, other, walk.subscriber)}) == 3


@pytest.mark.row("J-80")
def test_a_client_that_nobody_refers_to_any_more_is_closed_by_the_next(
    federation: Any, eventually: Callable[..., Any]
) -> None:
    # Given a cell of a notebook, with a subscription that stands
    federation.pad()

    def cell() -> SubscriberAdapter:
        subscriber = SubscriberAdapter(federation.config)
        subscriber.register_subscriber(type_name=IMAGERY)
        return subscriber

    subscriber = cell()
    name = subscriber.status()["name"]
    # When it runs again, and again
    subscriber = cell()
    assert subscriber.status()["name"] != name
    with pytest.warns(ResourceWarning, match=name):
        subscriber = cell()
    # Expect no thread of the first to be left, and the last to work
    eventually(lambda: not [t for t in threading.enumerate() if t.name.startswith(f"{name}-l")])
    subscriber.register_subscriber(type_name=IMAGERY)
    subscriber.close()
    with pytest.warns(ResourceWarning):
        SubscriberAdapter(federation.config).close()


def test_where_warnings_are_errors_a_client_that_nobody_refers_to_is_closed_all_the_same(federation: Any) -> None:
    # Given one that was not closed
    name = SubscriberAdapter(federation.config).status()["name"]
    # When the next one is made where a warning is an error; Expect that, and the name to be free
    with warnings.catch_warnings():
        warnings.simplefilter("error", ResourceWarning)
        with pytest.raises(ResourceWarning, match=name):
            SubscriberAdapter(federation.config)
        SubscriberAdapter(federation.config, name=name).close()


def test_clients_that_nobody_refers_to_are_closed_by_one_of_those_that_are_made_at_once(
    federation: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given one that was not closed, which somebody else takes at the moment that it is looked at
    class Taken(list[object]):
        def pop(self, *at: Any) -> object:
            self.clear()
            return super().pop(*at)

    monkeypatch.setattr(NAMES, "lost", Taken([object()]))
    # When another one is made, expect it to be
    SubscriberAdapter(federation.config).close()


FORK = """
import json, os, warnings
from jbi_pubsub import SubscriberAdapter, JbiError
from jbi_pubsub.core.errors import AdapterStateError
warnings.simplefilter("ignore")
parent = SubscriberAdapter()
uid = parent.register_subscriber(type_name="mil.af.rl.jbi.Intel_Imagery")
child = os.fork()
if child == 0:
    try:
        parent.register_subscriber(type_name="mil.af.rl.jbi.Intel_Imagery")
    except AdapterStateError:
        parent.close()
        with SubscriberAdapter() as own:
            own.register_subscriber(type_name="mil.af.rl.jbi.Intel_Imagery")
            os._exit(7)
    os._exit(1)
status = os.waitpid(child, 0)[1]
print(json.dumps({"child": os.waitstatus_to_exitcode(status), "parent": list(parent.status()["subscriptions"]) == [uid],
                  "another": parent.queue_size(uid)}), flush=True)
parent.close()
"""


@pytest.mark.row("J-80")
def test_a_forked_child_does_not_own_its_parents_adapter(
    federation: Any, start: Callable[..., Any], process_settings: Callable[..., None]
) -> None:
    # Given a process with an adapter that forks; When the child uses it, closes it, and opens one of its own
    process_settings()
    process = start(script=FORK)
    # Expect an error, no harm to the parent's, and a working one
    assert process.fact() == {"child": 7, "parent": True, "another": 0}
    assert process.wait() == 0


@pytest.mark.row("J-82")
def test_the_node_is_told_all_of_a_subscription(postbox: Any, own_walk: Any) -> None:
    # Given a subscription with everything that can be said
    walk = own_walk
    uid = walk.subscribe(
        predicate="//lat > 33", payload_filter="//name", recipients=["s2@example.org"], direct=True, bound=7
    )
    # Expect its record: uid, predicate, filter, recipients, template, and the session through which it is reached
    record = walk.record(uid)
    wanted = {
        "uid": uid,
        "predicate": "//lat > 33",
        "filter": "//name",
        "recipients": ["s2@example.org"],
        "direct": True,
        "bound": 7,
        "policy": "drop_oldest",
    }
    assert {name: record[name] for name in wanted} == wanted
    assert "publisher=418th" in str(record["template"])
    assert "JBIIIdentifier" not in str(record["template"])
    assert record["owner"] in [session["session"] for session in walk.publishing.status()["sessions"]]


@pytest.mark.row("J-84")
def test_after_cancelling_nothing_comes_any_more(walk: Any, listener: Any, eventually: Callable[..., Any]) -> None:
    # Given a subscription with a listener, another one, and a publisher that never stops
    uid, other = walk.subscribe(listener=listener), walk.subscribe()
    ended = threading.Event()

    def publish() -> None:
        while not ended.is_set():
            walk.publish(payload=b"image")

    thread = threading.Thread(target=publish)
    thread.start()
    eventually(lambda: len(listener.objects) > 5)
    # When it is cancelled
    walk.subscriber.cancel_subscription(uid)
    count = len(listener.objects)
    record = walk.record(uid)
    for _ in range(20):
        walk.subscriber.drain(other)
        assert walk.subscriber.receive(other) is not None
    ended.set()
    thread.join()
    # Expect that no object came after the call returned, and that the node has no record of it; others go on
    assert len(listener.objects) == count
    assert record is None
    assert walk.record(other) is not None
    with pytest.raises(UnknownUidError):
        walk.subscriber.receive(uid)
    with pytest.raises(UnknownUidError):
        walk.subscriber.cancel_subscription(uid)


def test_whoever_waits_for_an_object_learns_that_the_subscription_is_cancelled(walk: Any) -> None:
    # Given somebody who waits in receive
    uid = walk.subscribe()
    threading.Timer(0.1, walk.subscriber.cancel_subscription, [uid]).start()
    # When the subscription is cancelled; Expect that the wait ends long before its timeout
    began = time.monotonic()
    assert walk.subscriber.receive(uid, 60.0) is None
    assert time.monotonic() - began < 30.0


def test_closing_the_adapter_takes_all_its_subscriptions_back(walk: Any, eventually: Callable[..., Any]) -> None:
    # Given two subscriptions; When the adapter is closed
    uids = [walk.subscribe(), walk.subscribe()]
    walk.subscriber.close()
    # Expect that the dissemination node has forgotten them and the session
    eventually(lambda: [walk.record(uid) for uid in uids] == [None, None])
    eventually(lambda: walk.publishing.status()["sessions"] == [])
