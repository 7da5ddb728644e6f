"""A wake-up of an asyncio event loop by the library's threads."""

from __future__ import annotations

import asyncio
from contextlib import suppress


class LoopSignal:
    """An asyncio.Event that any thread may set. Of many calls before the loop has its turn it hears one."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._event = asyncio.Event()
        self._is_under_way = False
        self.wait, self.clear = self._event.wait, self._event.clear

    def set(self) -> None:
        """Wake whoever waits; nothing when the loop has ended. Never waits."""
        if self._is_under_way:
            return
        self._is_under_way = True
        with suppress(RuntimeError):  # it is closed: nobody waits there any more
            self.loop.call_soon_threadsafe(self._arrive)

    def _arrive(self) -> None:
        self._is_under_way = False  # first: what is set from here on is another call
        self._event.set()
