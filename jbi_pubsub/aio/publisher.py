"""PublisherAdapterLight for asyncio."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Final
from weakref import WeakValueDictionary

from jbi_pubsub.core.arguments import Document, checked
from jbi_pubsub.core.config import Config
from jbi_pubsub.core.errors import BackPressureError, JbiError
from jbi_pubsub.core.info_object import ObjectAttributes
from jbi_pubsub.publisher import PublisherAdapterLight, RegistrationUid
from jbi_pubsub.publisher.payloads import Payload
from jbi_pubsub.publisher.publication import metadata_bytes

from .adapter import AsyncAdapter, awaited, ended, making, until_set, woken

AT_HAND_BYTES: Final = 1 << 16
"""Metadata or payload up to that size is looked at in the loop; what is larger, or in a file, is made ready by a
thread."""


class _OpenPublisher(PublisherAdapterLight):
    """The blocking adapter, whose queues are at hand."""

    def wakers(self, registration: RegistrationUid) -> set[Callable[[], None]]:
        """Those that are called when there may be room. Raises UnknownUidError."""
        return self._publication(registration)[1].queue.wakers

    def made_ready(
        self, registration: RegistrationUid, metadata: Document | None, payload: Payload, seconds: float
    ) -> tuple[bytes, Payload]:
        """An object read and checked, not published. Raises as `publish`."""
        publication, _ = self._publication(registration)
        data = metadata_bytes(metadata)
        publication.check(data)
        return data, self._payloads.body(payload, publication.terms.max_payload, seconds)

    @property
    def patience(self) -> float:
        """Seconds that `publish` waits for room."""
        return self._config.queue.publish_seconds


class AsyncPublisherAdapterLight(AsyncAdapter[_OpenPublisher]):
    """Publishes through delegates, in an asyncio event loop: a PublisherAdapterLight whose calls are awaited.

        async with AsyncPublisherAdapterLight() as publisher:
            delegate = await publisher.connect_to_delegate("alpha", "rome")
            reports = await publisher.register_publisher(delegate, "report.xsd", "report.xml")
            await publisher.publish(reports, b"<report><n>1</n></report>")

    `refused` and `away` are plain functions, called on a thread of the library.
    """

    def __init__(
        self,
        config: Config | None = None,
        *,
        name: str | None = None,
        refused: Callable[[str, JbiError], None] | None = None,
        away: Callable[[str, str], None] | None = None,
    ) -> None:
        """Opens nothing yet: see `open`, and PublisherAdapterLight."""
        super().__init__(lambda: _OpenPublisher(config, name=name, refused=refused, away=away), name or "publisher")
        self._orders: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        """Registrations of which something waits to be published, in the order of the calls."""

    connect_to_delegate = making(PublisherAdapterLight.connect_to_delegate, PublisherAdapterLight.disconnect)
    register_publisher = making(PublisherAdapterLight.register_publisher, PublisherAdapterLight.unregister_publisher)
    unregister_publisher = ended(PublisherAdapterLight.unregister_publisher)
    disconnect = ended(PublisherAdapterLight.disconnect)
    flush = awaited(PublisherAdapterLight.flush)

    async def publish(
        self,
        registration: RegistrationUid,
        metadata: Document | None,
        payload: Payload = None,
        *,
        timeout: float | None = None,
        attributes: ObjectAttributes | None = None,
    ) -> str:
        """Publish an object; its id: see PublisherAdapterLight.publish. Calls of one registration are served in their
        order; one that is cancelled has published nothing. While there is no room it waits, for `timeout` seconds at
        most, and no thread does. Raises as the blocking one."""
        adapter = self._adapter()
        is_at_hand = _is_at_hand(metadata) and _is_at_hand(payload)
        needs_no_check = is_at_hand and attributes is None and type(registration) is str
        if needs_no_check and not self._orders and not self._is_turn_over():
            try:
                return _at_once(adapter, registration, metadata, payload, timeout=0.0)
            except BackPressureError:
                pass  # there may be room in time
        self._publish(registration, metadata, payload, timeout, attributes)
        async with self._orders.setdefault(registration, asyncio.Lock()):
            await self._give_turn()
            seconds = adapter.patience if timeout is None else timeout
            until = time.monotonic() + seconds
            if not is_at_hand:
                metadata, payload = await self._call(adapter.made_ready, registration, metadata, payload, seconds)
            publish = partial(adapter.publish, registration, metadata, payload, timeout=0.0, attributes=attributes)
            return await self._publish_when_room(registration, publish, until)

    @checked
    def _publish(
        self,
        registration: RegistrationUid,
        metadata: Document | None,
        payload: Payload,
        timeout: float | None,
        attributes: ObjectAttributes | None,
    ) -> None:
        """Arguments of `publish`. Raises ArgumentError."""

    async def publish_many(
        self,
        registration: RegistrationUid,
        objects: Iterable[tuple[Document | None, Payload]],
        *,
        timeout: float | None = None,
    ) -> list[str]:
        """Publish many objects that are at hand, for less than as many calls of `publish`; their ids: see
        PublisherAdapterLight.publish_many. Done on a thread, in its turn among the calls of the registration; one that
        is cancelled when it has begun is still done. Raises as the blocking one."""
        publish_many = self._adapter().publish_many
        order = self._orders.setdefault(registration, asyncio.Lock())
        await order.acquire()
        publishing = asyncio.ensure_future(self._call(publish_many, registration, objects, timeout=timeout))
        publishing.add_done_callback(lambda _: order.release())
        return await asyncio.shield(publishing)

    async def _publish_when_room(self, registration: RegistrationUid, publish: Callable[[], str], until: float) -> str:
        with woken(self._adapter().wakers(registration), asyncio.get_running_loop()) as signal:
            while True:
                signal.clear()
                try:
                    self._adapter()  # it may have been closed meanwhile
                    return publish()
                except BackPressureError:
                    if not await until_set(signal, until):
                        raise

    async def close(self, timeout: float = 5.0) -> None:
        """Leave, handing over what is queued within `timeout` seconds. Safe to call twice."""
        if self._inner is not None:
            await self._leave(partial(self._inner.close, timeout))

    async def wait_for_subscribers(self, registration: RegistrationUid, count: int = 1, timeout: float = 10.0) -> int:
        """Number of subscriptions that match the registration, as soon as there are `count`, or after `timeout`
        seconds. Raises UnknownUidError."""
        call = partial(self._adapter().wait_for_subscribers, registration, count)
        return await self._call_in_turns(call, count, timeout)


_at_once: Final[Callable[..., str]] = inspect.unwrap(PublisherAdapterLight.publish)
"""Without the check of its arguments, where they are what they should be: it costs a tenth of the call."""


def _is_at_hand(given: Any) -> bool:
    """Whether it is a few bytes, and nothing that has to be read."""
    return given is None or (type(given) is bytes and len(given) <= AT_HAND_BYTES)
