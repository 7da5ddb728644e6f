"""SubscriberAdapter for asyncio."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator
from functools import partial
from typing import Unpack

from jbi_pubsub.core.arguments import checked
from jbi_pubsub.core.config import Config
from jbi_pubsub.core.info_object import InfoObject
from jbi_pubsub.subscriber import Conditions, Query, QueryListener, SubscriberAdapter, SubscriptionUid
from jbi_pubsub.subscriber.queue import ObjectQueue

from .adapter import AsyncAdapter, awaited, ended, making, until_set, woken
from .query import AsyncQuery

log = logging.getLogger("jbi_pubsub.aio")


class _OpenSubscriber(SubscriberAdapter):
    """The blocking adapter, whose queues are at hand."""

    def queue(self, subscription: SubscriptionUid) -> ObjectQueue:
        """Raises UnknownUidError, AdapterStateError."""
        return self._find(subscription).queue

    def let_go(self, subscription: SubscriptionUid) -> None:
        """Cancel it, as nobody knows its id. Of a durable one that would end its place: it stands until we close."""
        if not self._find(subscription).request.durable:
            self.cancel_subscription(subscription)


async def _await_object(queue: ObjectQueue, deadline: float | None, *, is_held: bool) -> InfoObject | None:
    """The next object; None when nothing comes any more, or none has by the deadline (monotonic seconds). `is_held`: of
    a subscription that is paused it is waited until it goes on."""
    with woken(queue.wakers, asyncio.get_running_loop()) as signal:
        while True:
            signal.clear()
            if (obj := queue.take(0.0)) is not None:  # no await from here on: who is cancelled has taken nothing
                return obj
            if queue.is_closed or (queue.is_paused and not is_held) or not await until_set(signal, deadline):
                return None


class ObjectStream(AsyncIterator[InfoObject]):
    """Objects of a subscription as they come, for `async for`. A `__anext__` that is cancelled has taken none."""

    def __init__(self, adapter: AsyncSubscriberAdapter, queue: ObjectQueue, timeout: float | None) -> None:
        self._adapter = adapter
        self._queue = queue
        self._timeout = timeout

    async def __anext__(self) -> InfoObject:
        """The next object."""
        if self._adapter._is_turn_over():
            await self._adapter._give_turn()
        obj = self._queue.take(0.0)
        if obj is None:
            deadline = None if self._timeout is None else time.monotonic() + self._timeout
            obj = await _await_object(self._queue, deadline, is_held=True)
        if obj is None:
            raise StopAsyncIteration
        return obj


class AsyncSubscriberAdapter(AsyncAdapter[_OpenSubscriber]):
    """Receives information objects, in an asyncio event loop: a SubscriberAdapter whose calls are awaited, but for
    those that never wait (`objects`, `drain`, `acknowledge`, `resume`, `queue_size`, `losses`, `cancel` of a query)::

        async with AsyncSubscriberAdapter() as subscriber:
            wanted = await subscriber.register_subscriber(type_name="report")
            async for obj in subscriber.objects(wanted):
                ...

    What is not taken waits in the subscription's queue, and at the delegate, by its `bound` and `policy`. A listener is
    a plain function here too, called on a thread of the library.
    """

    def __init__(self, config: Config | None = None, *, name: str | None = None) -> None:
        """Opens nothing yet: see `open`, and SubscriberAdapter."""
        super().__init__(lambda: _OpenSubscriber(config, name=name), name or "subscriber")

    register_subscriber = making(SubscriberAdapter.register_subscriber, _OpenSubscriber.let_go)
    amend_subscription = awaited(SubscriberAdapter.amend_subscription)
    cancel_subscription = ended(SubscriberAdapter.cancel_subscription)
    pause = awaited(SubscriberAdapter.pause)
    matching = awaited(SubscriberAdapter.matching)
    qos = awaited(SubscriberAdapter.qos)
    refusal = awaited(SubscriberAdapter.refusal)
    types = awaited(SubscriberAdapter.types)
    count = awaited(SubscriberAdapter.count)
    explain_query = awaited(SubscriberAdapter.explain_query)
    get = awaited(SubscriberAdapter.get)
    reset_durable = awaited(SubscriberAdapter.reset_durable)
    end_durable = awaited(SubscriberAdapter.end_durable)

    @checked
    def objects(self, subscription: SubscriptionUid, timeout: float | None = None) -> ObjectStream:
        """Objects as they come, for `async for`: until the subscription is cancelled, or the adapter closed, or none
        has come for `timeout` seconds. Raises UnknownUidError."""
        return ObjectStream(self, self._adapter().queue(subscription), timeout)

    async def receive(self, subscription: SubscriptionUid, timeout: float = 10.0) -> InfoObject | None:
        """The next object, or None after `timeout` seconds. One that is cancelled has taken none. Raises
        UnknownUidError."""
        queue = self._queue(subscription, timeout)
        await self._give_turn()
        obj = queue.take(0.0)
        if obj is not None:
            return obj
        return await _await_object(queue, time.monotonic() + timeout, is_held=False)

    async def wait_matched(self, subscription: SubscriptionUid, count: int = 1, timeout: float = 10.0) -> int:
        """At how many delegates and peer publishers the subscription stands, as soon as there are `count`, or after
        `timeout` seconds. Raises UnknownUidError."""
        return await self._call_in_turns(partial(self._adapter().wait_matched, subscription, count), count, timeout)

    def drain(self, subscription: SubscriptionUid) -> list[InfoObject]:
        """All objects that wait in the queue now. Raises UnknownUidError."""
        return self._adapter().drain(subscription)

    def resume(self, subscription: SubscriptionUid) -> None:
        """Undo `pause`. Raises UnknownUidError."""
        self._adapter().resume(subscription)

    def queue_size(self, subscription: SubscriptionUid) -> int:
        """Number of objects that wait in the queue. Raises UnknownUidError."""
        return self._adapter().queue_size(subscription)

    def losses(self, subscription: SubscriptionUid) -> dict[str, int]:
        """Objects lost so far by cause. Raises UnknownUidError."""
        return self._adapter().losses(subscription)

    def acknowledge(self, obj: InfoObject, subscription: SubscriptionUid | None = None) -> None:
        """The application is done with an object: see SubscriberAdapter.acknowledge."""
        self._adapter().acknowledge(obj, subscription)

    async def open_query(
        self, type_name: str | None = None, *, listener: QueryListener | None = None, **conditions: Unpack[Conditions]
    ) -> AsyncQuery:
        """Ask all archives: see SubscriberAdapter.open_query. Use it in `async with`, and iterate it."""
        opening = self._adapter().open_query
        query = await self._made(Query.cancel, opening, type_name, listener=listener, **conditions)
        return AsyncQuery(query, self)

    async def query(self, type_name: str | None = None, **conditions: Unpack[Conditions]) -> AsyncIterator[InfoObject]:
        """The archived objects of a type that match, for `async for`: see SubscriberAdapter.query."""
        async with await self.open_query(type_name, **conditions) as opened:
            async for obj in opened:
                yield obj
            if opened.partial:
                log.warning("a query is incomplete: %s", "; ".join(opened.partial))

    @checked
    def _queue(self, subscription: SubscriptionUid, timeout: float) -> ObjectQueue:  # noqa: ARG002  # is checked
        return self._adapter().queue(subscription)
