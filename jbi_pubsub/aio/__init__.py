"""The adapters for asyncio: those of `jbi_pubsub`, by the same names, with calls that are awaited (docs/aio.md)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .publisher import AsyncPublisherAdapterLight
from .query import AsyncQuery
from .subscriber import AsyncSubscriberAdapter

if TYPE_CHECKING:
    from .peer import AsyncPublisherAdapter

__all__ = ["AsyncPublisherAdapter", "AsyncPublisherAdapterLight", "AsyncQuery", "AsyncSubscriberAdapter"]

if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        """Loaded when it is first used: it has a delegate inside."""
        if name != "AsyncPublisherAdapter":
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from .peer import AsyncPublisherAdapter

        return AsyncPublisherAdapter
