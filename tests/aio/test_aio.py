"""The adapters for asyncio, over a real delegate: what comes, what is cancelled, and that nothing holds up the loop."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import msgspec
import pytest

from jbi_pubsub.aio import AsyncPublisherAdapter, AsyncPublisherAdapterLight, AsyncSubscriberAdapter
from jbi_pubsub.core.config import ArchiveSection
from jbi_pubsub.core.errors import AdapterStateError, ArgumentError, BackPressureError, MetadataError, UnknownUidError
from jbi_pubsub.core.info_object import ObjectAttributes
from jbi_pubsub.publisher import lanes
from jbi_pubsub.publisher.connection import DelegateConnection
from jbi_pubsub.publisher.registrations import RemoteRegistrations
from jbi_pubsub.subscriber.table import SubscriptionTable

pytestmark = pytest.mark.processes
TYPE = "Intel_Imagery"
IMPORTANT = ObjectAttributes(priority=4)


class Heartbeat:
    """A task that measures the longest time for which the loop did not turn."""

    def __init__(self) -> None:
        self.longest = 0.0

    async def __aenter__(self) -> Heartbeat:
        self._task = asyncio.create_task(self._beat())
        return self

    async def __aexit__(self, *raised: object) -> None:
        self._task.cancel()

    async def _beat(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            began = loop.time()
            await asyncio.sleep(0.001)
            self.longest = max(self.longest, loop.time() - began - 0.001)


async def registered(publisher: AsyncPublisherAdapterLight, figures: Any, **options: Any) -> Any:
    at = await publisher.connect_to_delegate("alpha", "rome")
    return await publisher.register_publisher(at, figures.schema, figures.figure_1, **options)


def test_objects_of_both_publishers_come_in_order_while_the_loop_turns(federation: Any, figures: Any) -> None:
    async def run() -> None:
        # Given a subscription, a publisher through a delegate, and a peer
        federation.pad()
        config = federation.config
        async with (
            AsyncSubscriberAdapter(config) as subscriber,
            AsyncPublisherAdapterLight(config) as light,
            AsyncPublisherAdapter(config) as peer,
        ):
            wanted = await subscriber.register_subscriber(type_name=TYPE)
            by_delegate = await registered(light, figures)
            by_itself = await peer.register_publisher(figures.schema, figures.figure_1)
            assert await subscriber.wait_matched(wanted, 2, 60.0) == 2
            assert await light.wait_for_subscribers(by_delegate, 1, 60.0) == 1
            # When one publishes a thousand objects, as the loop lets it
            async with Heartbeat() as heart:
                for number in range(1_000):
                    await light.publish(by_delegate, figures.figure_1, b"%d" % number, attributes=IMPORTANT)
                await light.flush(60.0)
                came = [obj async for obj in subscriber.objects(wanted, timeout=1.0)]
            await peer.publish(by_itself, figures.figure_1, b"peer")
            last = await subscriber.receive(wanted, 60.0)
            # Expect all of them in order, and a loop that had its turns
            assert [obj.payload for obj in came] == [b"%d" % number for number in range(1_000)]
            assert {obj.platform.attributes for obj in came} == {IMPORTANT}
            assert last is not None
            assert last.payload == b"peer"
            assert heart.longest < 0.5  # a busy machine takes 50 ms now and then

    asyncio.run(run())


def test_who_is_cancelled_has_taken_nothing_and_closing_ends_who_iterates(federation: Any, figures: Any) -> None:
    async def run() -> None:
        # Given somebody who waits for an object
        federation.pad()
        async with AsyncPublisherAdapterLight(federation.config) as publisher:
            subscriber = await AsyncSubscriberAdapter(federation.config).open()
            wanted = await subscriber.register_subscriber(type_name=TYPE)
            reports = await registered(publisher, figures)
            assert await publisher.wait_for_subscribers(reports, 1, 60.0) == 1
            stream = subscriber.objects(wanted)
            # When the time of one is over, and another is cancelled
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(anext(stream), 0.02)
            task = asyncio.create_task(subscriber.receive(wanted, 60.0))
            await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert await subscriber.receive(wanted, 0.0) is None
            # Expect the next object to come, to the same stream
            await publisher.publish(reports, figures.figure_1, b"1")
            assert (await asyncio.wait_for(anext(stream), 60.0)).payload == b"1"
            # When the adapter is closed while one iterates, expect the end, and AdapterStateError from then on
            rest = asyncio.create_task(anext(stream, None))
            await asyncio.sleep(0)
            await subscriber.close()
            assert await asyncio.wait_for(rest, 60.0) is None
            with pytest.raises(AdapterStateError):
                await subscriber.receive(wanted)

    asyncio.run(run())


def test_without_room_a_publisher_is_awaited_and_told_and_one_that_is_cancelled_has_published_nothing(
    federation: Any, figures: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lanes, "QUEUE_ITEMS", 2)

    async def run() -> None:
        # Given a delegate that has gone, and a queue that is full
        pad = federation.pad()
        async with AsyncPublisherAdapterLight(federation.config) as publisher:
            reports = await registered(publisher, figures)
            await asyncio.to_thread(pad.stop)
            with pytest.raises(BackPressureError):
                await asyncio.gather(*(publisher.publish(reports, figures.figure_1, timeout=0.1) for _ in range(20)))
            before = publisher.status()["registrations"][reports]["published"]
            # When one is cancelled that waits
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(publisher.publish(reports, figures.figure_1, timeout=60.0), 0.05)
            # Expect that it has published nothing
            assert publisher.status()["registrations"][reports]["published"] == before
            await publisher.close(0.0)

    asyncio.run(run())


def test_many_at_once_keep_their_place_among_single_ones_and_are_published_though_cancelled(
    federation: Any, figures: Any
) -> None:
    async def run() -> None:
        # Given a subscriber
        federation.pad()
        async with (
            AsyncSubscriberAdapter(federation.config) as subscriber,
            AsyncPublisherAdapterLight(federation.config) as light,
        ):
            wanted = await subscriber.register_subscriber(type_name=TYPE)
            reports = await registered(light, figures)
            assert await light.wait_for_subscribers(reports, 1, 60.0) == 1
            # When many are published between single ones, without waiting for any, and others are cancelled
            ids: list[Any] = await asyncio.gather(
                light.publish(reports, figures.figure_1, b"first"),
                light.publish_many(reports, ((figures.figure_1, b"%d" % number) for number in range(300))),
                light.publish(reports, figures.figure_1, b"last"),
            )
            task = asyncio.create_task(light.publish_many(reports, [(figures.figure_1, b"cancelled")] * 3))
            await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            got = [await subscriber.receive(wanted, 60.0) for _ in range(305)]
            # Expect all in the order of the calls, under the ids that were returned
            payloads = [b"first", *(b"%d" % number for number in range(300)), b"last", *[b"cancelled"] * 3]
            assert [obj.payload for obj in got if obj is not None] == payloads
            assert [obj.object_id for obj in got[:302] if obj is not None] == [ids[0], *ids[1], ids[2]]

    asyncio.run(run())


def test_of_a_call_that_is_cancelled_nothing_stays(
    federation: Any, monkeypatch: pytest.MonkeyPatch, eventually: Any
) -> None:
    # Given a delegate that takes a publisher, its registrations and subscriptions, each when it is let go
    begun, go, done = asyncio.Event(), threading.Event(), threading.Event()

    def late(call: Any) -> Any:
        def made(*given: Any, **named: Any) -> Any:
            loop.call_soon_threadsafe(begun.set)
            assert go.wait(60.0)
            call(*given, **named)
            done.set()

        return made

    async def cancelled(call: Any) -> None:
        begun.clear()
        go.clear()
        done.clear()
        task = asyncio.create_task(call)
        await begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        go.set()
        await asyncio.to_thread(done.wait, 60.0)

    async def run() -> None:
        nonlocal loop
        loop = asyncio.get_running_loop()
        pad = federation.pad()
        async with (
            AsyncSubscriberAdapter(federation.config) as watch,
            AsyncPublisherAdapterLight(federation.config) as light,
        ):
            delegate = await light.connect_to_delegate("alpha")
            with monkeypatch.context() as patch:
                for kind, method in (
                    (DelegateConnection, "open"),
                    (RemoteRegistrations, "register"),
                    (SubscriptionTable, "add"),
                ):
                    patch.setattr(kind, method, late(getattr(kind, method)))
                # When each call is cancelled before that
                await cancelled(light.connect_to_delegate("alpha"))
                await cancelled(light.register_publisher(delegate, type_name="t", validate=False))
                await cancelled(watch.register_subscriber(type_name="t"))
            # Expect the delegate to have the one publisher only, and nothing to stand here that nobody could reach
            await asyncio.to_thread(eventually, lambda: len(pad.status().publishers) == 1)
            await asyncio.to_thread(eventually, lambda: not pad.status().registrations)
            await asyncio.to_thread(eventually, lambda: not watch._inner.status()["subscriptions"])
            await asyncio.to_thread(eventually, lambda: list(light._inner.status()["delegates"]) == [delegate])
            await asyncio.to_thread(eventually, lambda: not light._inner.status()["registrations"])

    loop: Any = None
    asyncio.run(run())


def test_results_of_a_query_come_as_they_do_to_a_blocking_one(federation: Any, figures: Any, tmp_path: Path) -> None:
    async def run() -> None:
        # Given ten objects in an archive
        config = msgspec.structs.replace(federation.config, archive=ArchiveSection(folder=str(tmp_path), workers=0))
        federation.pad(config=config)
        async with (
            AsyncSubscriberAdapter(federation.config) as subscriber,
            AsyncPublisherAdapterLight(federation.config) as publisher,
        ):
            reports = await registered(publisher, figures, persist=True)
            for number in range(10):
                await publisher.publish(reports, figures.figure_1, b"%d" % number)
            await publisher.flush(60.0)
            expected = [b"%d" % number for number in range(10)]
            # Expect them by iterating, and in parts, with an end
            assert [obj.payload async for obj in subscriber.query()] == expected
            async with await subscriber.open_query() as query:
                first, rest = await query.get_next(3), await query.get_next(100)
                assert [obj.payload for obj in (*first, *rest)] == expected
                assert (await query.get_next(), query.state) == ([], "finished")
            assert await subscriber.count() == 10

    asyncio.run(run())


def test_errors_are_those_of_the_blocking_adapters(federation: Any, figures: Any, tmp_path: Path) -> None:
    async def run() -> None:
        federation.pad()
        async with (
            AsyncSubscriberAdapter(federation.config) as subscriber,
            AsyncPublisherAdapterLight(federation.config) as publisher,
        ):
            reports = await registered(publisher, figures)
            with pytest.raises(UnknownUidError):
                subscriber.objects("none")  # type: ignore[arg-type]
            with pytest.raises(ArgumentError):
                await subscriber.register_subscriber(type_name=1)  # type: ignore[arg-type]
            with pytest.raises(MetadataError):
                await publisher.publish(reports, tmp_path / "none.xml")
            with pytest.raises(UnknownUidError):
                await publisher.publish("none", figures.figure_1)  # type: ignore[arg-type]
            for wrong in ((1, figures.figure_1), (reports, 1), (reports, figures.figure_1, 1)):
                with pytest.raises(ArgumentError):
                    await publisher.publish(*wrong)
            with pytest.raises(ArgumentError):
                await publisher.publish(reports, figures.figure_1, attributes=1)  # type: ignore[arg-type]
        with pytest.raises(AdapterStateError, match="is not open"):
            await AsyncSubscriberAdapter(federation.config).receive("x")  # type: ignore[arg-type]

    asyncio.run(run())
