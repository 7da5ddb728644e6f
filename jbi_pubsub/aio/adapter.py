"""An adapter of the library in an asyncio event loop.

Theory of operation: each asynchronous adapter has a blocking one inside. A call that may wait for a network, a disk or
a delegate runs on one of a few threads of the adapter, and is awaited. What comes by itself (objects for a
subscription, results of a query, room for what is published) sets a LoopSignal, and the loop takes it from where the
library has put it: no thread waits for it. What need not wait is done at once; as such calls may follow one upon the
other without an end, they let the rest of the loop have its turn every TURN_SECONDS.
"""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import Any, Concatenate, Final, Generic, ParamSpec, Protocol, Self, TypeVar

from jbi_pubsub.core.errors import AdapterStateError
from jbi_pubsub.core.guard import guarded
from jbi_pubsub.core.loop_signal import LoopSignal

CALLS_AT_ONCE: Final = 16
"""Threads of an adapter, for calls that may wait: a further one waits until one has returned."""
WAIT_SECONDS: Final = 0.5
"""The longest that one of these waits for others (`wait_matched`): then it asks anew, if it is still awaited."""
TURN_SECONDS: Final = 0.005
"""Time that calls which do not wait take, one upon the other, before others of the loop have their turn."""

P = ParamSpec("P")
R = TypeVar("R")


class BlockingAdapter(Protocol):
    """An adapter of the library."""

    def close(self) -> None:
        """Leave."""

    def status(self) -> dict[str, Any]:
        """Plain data."""


A = TypeVar("A", bound=BlockingAdapter)


class AsyncAdapter(Generic[A]):
    """Common part of the asynchronous adapters. Each belongs to the event loop that has opened it."""

    def __init__(self, make: Callable[[], A], name: str) -> None:
        """`make`: the blocking adapter; it may take its time. `name`: of its threads."""
        self._make = make
        self._threads = ThreadPoolExecutor(CALLS_AT_ONCE, thread_name_prefix=f"{name}-aio")
        self._loop: asyncio.AbstractEventLoop | None = None
        self._inner: A | None = None
        self._is_closed = False
        self._turn_over = 0.0

    async def open(self) -> Self:
        """Begin, where there is no `async with`; itself. Raises as the blocking adapter does when it is made, and
        AdapterStateError when it is open, or was closed."""
        if self._loop is not None:
            raise AdapterStateError(f"this {type(self).__name__} was opened before", hint="Make a new one")
        self._loop = asyncio.get_running_loop()
        making = self._loop.run_in_executor(self._threads, self._make)
        try:
            self._inner = await asyncio.shield(making)
        except asyncio.CancelledError:
            making.add_done_callback(lambda made: made.exception() or self._threads.submit(made.result().close))
            raise
        return self

    async def close(self) -> None:
        """Leave, as the blocking adapter does. Safe to call twice."""
        if self._inner is not None:
            await self._leave(self._inner.close)

    async def _leave(self, close: Callable[[], None]) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        leaving = ThreadPoolExecutor(1, thread_name_prefix="aio-close")  # the other threads may all be waiting
        try:
            await asyncio.shield(asyncio.get_running_loop().run_in_executor(leaving, close))
        finally:
            leaving.shutdown(wait=False)
            self._threads.shutdown(wait=False)

    async def __aenter__(self) -> Self:
        return await self.open()

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None
    ) -> None:
        await self.close()

    def status(self) -> dict[str, Any]:
        """That of the blocking adapter, as plain data. Raises AdapterStateError."""
        return self._adapter().status()

    def _adapter(self) -> A:
        """The blocking one. Raises AdapterStateError unless it is open, and this its loop."""
        name = type(self).__name__
        if self._is_closed:
            raise AdapterStateError(f"this {name} is closed")
        if self._inner is None:
            raise AdapterStateError(f"this {name} is not open", hint="Use `async with`, or `await adapter.open()`")
        if asyncio.get_running_loop() is not self._loop:
            raise AdapterStateError(f"this {name} belongs to another event loop", hint="Open one in each loop")
        return self._inner

    async def _call(self, call: Callable[P, R], *given: P.args, **named: P.kwargs) -> R:
        """Result of a call that may wait. When it is cancelled nobody waits for it any more; it goes on if a thread has
        begun with it."""
        self._adapter()
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, functools.partial(call, *given, **named))

    async def _made(self, undo: Callable[[R], object], call: Callable[P, R], *given: P.args, **named: P.kwargs) -> R:
        """The same for a call that makes something: of one that is cancelled nothing stays, as `undo` is done with what
        comes of it."""
        self._adapter()
        making = self._threads.submit(functools.partial(call, *given, **named))
        try:
            return await asyncio.wrap_future(making)
        except asyncio.CancelledError:
            making.add_done_callback(functools.partial(self._undo, undo))
            raise

    def _undo(self, undo: Callable[[R], object], made: Future[R]) -> None:
        def undone() -> None:
            with guarded("undoing a call that was cancelled"):
                undo(made.result())

        if not made.cancelled() and made.exception() is None:
            with suppress(RuntimeError):  # the adapter is closed, and all that it had
                self._threads.submit(undone)

    async def _call_in_turns(self, call: Callable[[float], int], count: int, timeout: float) -> int:
        """The number that `call(seconds)` gives, as soon as it is `count`, or after `timeout` seconds. One that is
        cancelled leaves its thread soon."""
        until = time.monotonic() + timeout
        while True:
            left = until - time.monotonic()
            found = await self._call(call, min(left, WAIT_SECONDS))
            if found >= count or left <= WAIT_SECONDS:
                return found

    def _is_turn_over(self) -> bool:
        return time.monotonic() >= self._turn_over

    async def _give_turn(self) -> None:
        """Let the rest of the loop have its turn, if this one has had its own."""
        if time.monotonic() >= self._turn_over:
            await asyncio.sleep(0)
            self._turn_over = time.monotonic() + TURN_SECONDS


def awaited(
    call: Callable[Concatenate[Any, P], R],
) -> Callable[Concatenate[AsyncAdapter[Any], P], Coroutine[Any, Any, R]]:
    """A method of a blocking adapter as one that is awaited: the same arguments, result and errors."""

    @functools.wraps(call)
    async def made(self: AsyncAdapter[Any], /, *given: P.args, **named: P.kwargs) -> R:
        return await self._call(call, self._adapter(), *given, **named)

    return made


def making(
    call: Callable[Concatenate[Any, P], R], undo: Callable[[Any, R], object]
) -> Callable[Concatenate[AsyncAdapter[Any], P], Coroutine[Any, Any, R]]:
    """The same for a method that makes something: `undo(adapter, result)` is done with what comes of one that is
    cancelled, which nobody could reach."""

    @functools.wraps(call)
    async def made(self: AsyncAdapter[Any], /, *given: P.args, **named: P.kwargs) -> R:
        adapter = self._adapter()
        return await self._made(functools.partial(undo, adapter), call, adapter, *given, **named)

    return made


def ended(
    call: Callable[Concatenate[Any, P], R],
) -> Callable[Concatenate[AsyncAdapter[Any], P], Coroutine[Any, Any, R]]:
    """The same for a method that gives something up: it is done, though the task that awaits it is being cancelled."""
    in_time = awaited(call)

    @functools.wraps(call)
    async def made(self: AsyncAdapter[Any], /, *given: P.args, **named: P.kwargs) -> R:
        return await asyncio.shield(in_time(self, *given, **named))

    return made


@contextmanager
def woken(by: set[Callable[[], None]], loop: asyncio.AbstractEventLoop) -> Iterator[LoopSignal]:
    """A signal that is set by whoever calls the wakers `by`, for as long as somebody waits."""
    signal = LoopSignal(loop)
    by.add(signal.set)
    try:
        yield signal
    finally:
        by.discard(signal.set)


async def until_set(signal: LoopSignal, deadline: float | None) -> bool:
    """Wait for a signal; whether it has come by the deadline (monotonic seconds; None: none)."""
    if deadline is None:
        await signal.wait()
        return True
    try:
        async with asyncio.timeout(max(0.0, deadline - time.monotonic())):
            await signal.wait()
    except TimeoutError:
        return False
    return True
