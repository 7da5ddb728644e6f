"""An SMTP server on a free port of loopback that keeps nothing: each mail is given to a function, and that is that."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from email import message_from_bytes, policy
from email.message import EmailMessage
from typing import Any, Final
from weakref import WeakSet

from aiosmtpd.controller import Controller

READY_SECONDS: Final = 60.0
"""For the server to begin, which takes milliseconds unless others have the processors."""


@contextmanager
def mailbox(came: Callable[[tuple[str, ...], EmailMessage], object]) -> Iterator[int]:
    """Inside the `with` it listens at the port given; `came(recipients, message)` is called in a thread of its own."""
    controller = AnyPort(_Sink(came), hostname="127.0.0.1", port=0)
    controller.start()
    try:
        yield controller.port
    finally:
        controller.stop()


class AnyPort(Controller):
    """aiosmtpd's controller on a free port, which it would not learn by itself. Its end is that of its connections."""

    def __init__(self, handler: Any, **options: Any) -> None:
        super().__init__(handler, ready_timeout=READY_SECONDS, **options)
        self._protocols: WeakSet[Any] = WeakSet()

    def _factory_invoker(self) -> Any:
        protocol = super()._factory_invoker()
        self._protocols.add(protocol)
        return protocol

    def cancel_tasks(self, stop_loop: bool = True) -> None:  # aiosmtpd's
        """On the loop's thread. aiosmtpd leaves connections to the garbage, which warns of them at any later time."""
        for protocol in self._protocols:
            if protocol.transport is not None:
                protocol.transport.abort()
        super().cancel_tasks(stop_loop)

    def _trigger_server(self) -> None:
        assert isinstance(self.server, asyncio.Server)
        self.port = self.server.sockets[0].getsockname()[1]
        super()._trigger_server()  # type: ignore[no-untyped-call]  # aiosmtpd annotates in part


class _Sink:
    """aiosmtpd calls the handle_ methods."""

    def __init__(self, came: Callable[[tuple[str, ...], EmailMessage], object]) -> None:
        self._came = came

    async def handle_DATA(self, _server: Any, _session: Any, envelope: Any) -> str:  # noqa: N802  # aiosmtpd's name
        self._came(tuple(envelope.rcpt_tos), message_from_bytes(envelope.content, policy=policy.default))
        return "250 OK"
