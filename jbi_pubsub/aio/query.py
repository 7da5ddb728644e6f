"""A query of archives for asyncio."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any, Self

from jbi_pubsub.core.info_object import InfoObject
from jbi_pubsub.subscriber import Query

from .adapter import AsyncAdapter, until_set, woken

if TYPE_CHECKING:
    from jbi_pubsub.subscriber.query import Count


class AsyncQuery(AsyncIterator[InfoObject]):
    """A Query whose calls are awaited. Its results come by `async for`, or by `get_next`; a call that is cancelled has
    taken none. Whoever leaves it before its end cancels it, or uses it in `async with`.

    `blocking` is the Query itself: its `state`, `error`, `partial`, `invalid` and `left_out` never wait.
    """

    def __init__(self, query: Query, adapter: AsyncAdapter[Any]) -> None:
        self.blocking = query
        self._adapter = adapter

    @property
    def partial(self) -> tuple[str, ...]:
        """See Query."""
        return self.blocking.partial

    @property
    def state(self) -> str:
        """See Query."""
        return self.blocking.state

    async def get_next(self, count: int = 1, timeout: float | None = None) -> list[InfoObject]:
        """The next `count` results, fewer at the end or when `timeout` seconds are over; [] when there are none any
        more. Raises as Query.get_next."""
        until = None if timeout is None else time.monotonic() + timeout
        found: list[InfoObject] = []
        while len(found) < count and (obj := await self._next(until)) is not None:
            found.append(obj)
        if not found:
            self.blocking.check_outcome()
        return found

    async def __anext__(self) -> InfoObject:
        """The next result. Raises as Query.get_next."""
        obj = await self._next(None)
        if obj is None:
            self.blocking.check_outcome()
            raise StopAsyncIteration
        return obj

    async def count(self, timeout: float = 60.0) -> Count:
        """Number of objects that there are: see Query.count."""
        return await self._adapter._call(self.blocking.count, timeout)

    def cancel(self) -> None:
        """Want it no more."""
        self.blocking.cancel()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *raised: object) -> None:
        self.cancel()

    async def _next(self, until: float | None) -> InfoObject | None:
        """The next result; None when there is none any more, or none by then (monotonic seconds)."""
        await self._adapter._give_turn()
        query = self.blocking
        if (obj := query.take_now()) is not None:
            return obj
        with woken(query.wakers, asyncio.get_running_loop()) as signal:
            while True:
                signal.clear()
                if (obj := query.take_now()) is not None:
                    return obj
                now = time.monotonic()
                if query.state != "running" or (until is not None and now >= until):
                    return None
                over = now + query.seconds_left
                await until_set(signal, over if until is None else min(over, until))
