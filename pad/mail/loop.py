"""The thread that sends mail: an asyncio loop with the tries that are under way."""

from __future__ import annotations

import asyncio
import functools
import math
import threading
import time
from collections.abc import Callable, Coroutine, Hashable
from typing import Any, Final, Generic, TypeVar

from jbi_pubsub.core.guard import guarded

K = TypeVar("K", bound=Hashable)
A = TypeVar("A")

FAULT_SECONDS: Final = 1.0
"""Pause after a step that has failed."""


class MailLoop(Generic[K, A]):
    """A thread with tasks by key, which does a step when it is poked, and when the last one said that something would
    be due. It begins when there is something to do. Its owner's lock covers it, but for the tasks, which are the
    thread's."""

    def __init__(
        self,
        name: str,
        lock: threading.Condition,
        step: Callable[[float], float],
        end: Callable[[], Coroutine[Any, Any, None]],
    ) -> None:
        """`step(now)`: when something is due, may begin tasks; `end` is awaited when all have ended."""
        self._lock = lock
        self._step = step
        self._end = end
        self._loop: asyncio.AbstractEventLoop | None = None
        self._woken = asyncio.Event()
        self._is_poked = self._is_stopping = False
        self._tasks: dict[K, asyncio.Task[A]] = {}
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def __len__(self) -> int:
        return len(self._tasks)

    def poke(self, *, is_needed: bool = True) -> None:
        """Under the lock: do a step. Begins where that `is_needed`."""
        if is_needed and self._thread.ident is None and not self._is_stopping:
            with guarded("mail dispatcher's thread"):
                self._thread.start()
        if self._loop is not None and not self._is_poked:
            self._is_poked = True
            self._loop.call_soon_threadsafe(self._woken.set)

    def stop(self, timeout: float) -> None:
        """Abort what is under way, and end."""
        with self._lock:
            self._is_stopping = True
            self.poke()
        if self._thread.ident is not None:
            self._thread.join(timeout)

    def abort(self, key: K) -> None:
        """Under the lock: abort a task, if it is under way."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._abort, key)

    def begin(self, key: K, work: Coroutine[Any, Any, A], done: Callable[[A | None], None]) -> None:
        """From a step: a task; `done` gets its result, None when it was aborted."""
        task = self._tasks[key] = asyncio.get_running_loop().create_task(work)
        task.add_done_callback(functools.partial(self._finish, key, done))

    def _abort(self, key: K) -> None:
        if key in self._tasks:
            self._tasks[key].cancel()

    def _finish(self, key: K, done: Callable[[A | None], None], task: asyncio.Task[A]) -> None:
        del self._tasks[key]
        done(None if task.cancelled() else task.result())
        self._woken.set()

    def _run(self) -> None:
        with guarded("mail dispatcher's loop"), asyncio.Runner() as runner:
            try:
                runner.run(self._serve())
            finally:
                with self._lock:
                    self._loop = None

    async def _serve(self) -> None:
        with self._lock:
            self._loop = asyncio.get_running_loop()
        while True:
            now = time.monotonic()
            due = now + FAULT_SECONDS
            with self._lock:
                self._is_poked = False  # from here on: what changes behind our back pokes us again
                if self._is_stopping:
                    self._loop = None
                    break
            with guarded("mail dispatcher"):
                due = self._step(now)
            await self._sleep(due - time.monotonic())
        for task in list(self._tasks.values()):
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)
        await self._end()

    async def _sleep(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(None if seconds == math.inf else max(0.0, seconds)):
                await self._woken.wait()
        except TimeoutError:
            pass  # something is due
        self._woken.clear()
