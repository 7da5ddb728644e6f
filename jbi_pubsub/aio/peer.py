"""PublisherAdapter for asyncio."""

from __future__ import annotations

from functools import partial

from jbi_pubsub.core.config import Config
from jbi_pubsub.publisher import PublisherAdapter, RegistrationUid

from .adapter import AsyncAdapter, awaited, ended, making


class AsyncPublisherAdapter(AsyncAdapter[PublisherAdapter]):
    """A peer publisher in an asyncio event loop: a PublisherAdapter whose calls are awaited. Each runs on a thread of
    the adapter, as it may wait for a subscriber or a disk; a `publish` that is cancelled may still be done."""

    def __init__(self, config: Config | None = None) -> None:
        """Opens nothing yet: see `open`, and PublisherAdapter."""
        super().__init__(lambda: PublisherAdapter(config), "peer")

    register_publisher = making(PublisherAdapter.register_publisher, PublisherAdapter.unregister_publisher)
    publish = awaited(PublisherAdapter.publish)
    publish_many = awaited(PublisherAdapter.publish_many)
    unregister_publisher = ended(PublisherAdapter.unregister_publisher)
    flush = awaited(PublisherAdapter.flush)

    async def wait_for_subscribers(self, registration: RegistrationUid, count: int = 1, timeout: float = 10.0) -> int:
        """Number of subscriptions that match the registration, as soon as there are `count`, or after `timeout`
        seconds. Raises UnknownUidError."""
        call = partial(self._adapter().wait_for_subscribers, registration, count)
        return await self._call_in_turns(call, count, timeout)
