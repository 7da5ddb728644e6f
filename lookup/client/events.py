"""The connection on which a lookup service tells events. Each is a new one: who connects again looks up again."""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Callable

from jbi_pubsub.core.errors import JbiError, WireError
from jbi_pubsub.core.guard import guarded
from jbi_pubsub.core.wire import ServiceRef
from jbi_pubsub.core.wire.dial import dial
from jbi_pubsub.core.wire.endpoint import DATA, Security
from jbi_pubsub.core.wire.receiver import Receiver
from jbi_pubsub.core.wire.stream_socket import Hello, StreamSocket, greet

log = logging.getLogger("jbi_pubsub.lookup")


class EventConnection:
    """At most one connection at a time, with a thread that reads it."""

    def __init__(
        self,
        security: Security,
        *,
        name: str,
        compression: str,
        receive: Callable[[list[memoryview]], None],
        lost: Callable[[], None],
    ) -> None:
        """`receive` gets the items, `lost` is called when the connection has ended, both on its thread."""
        self._security = security
        self._name = name
        self._compression = compression
        self._receive = receive
        self._lost = lost
        self.is_lost = False
        """Whether the connection has ended by itself."""
        self._receiver: Receiver | None = None
        self._line: StreamSocket | None = None
        self._thread: threading.Thread | None = None

    def open(self, ref: ServiceRef, token: str) -> None:
        """Connect. Raises WireError."""
        sock = dial(ref, DATA, self._security, 10.0)
        try:
            line = StreamSocket(sock)
            greet(line, Hello.of(token, compression=self._compression))
        except JbiError:
            sock.close()
            raise
        self.is_lost = False
        receiver = Receiver(self._receive, lambda: b"")
        self._receiver, self._line, self._thread = receiver, line, None
        thread = threading.Thread(
            target=self._read, args=(receiver, line, sock), name=f"{self._name}-events", daemon=True
        )
        try:
            thread.start()
        except RuntimeError as exc:  # the system has no more threads for us
            sock.close()
            raise WireError(f"no thread for the events of {ref.endpoints}: {exc}") from exc
        self._thread = thread

    def _read(self, receiver: Receiver, line: StreamSocket, sock: socket.socket) -> None:
        with guarded("lookup events"):
            try:
                receiver.run(line)
            except WireError as exc:
                log.debug("events of %s ended: %s", self._name, exc)
        sock.close()
        if self._receiver is receiver:
            self.is_lost = True
            self._lost()

    def close(self) -> None:
        """End it, and its thread."""
        receiver, self._receiver = self._receiver, None
        if receiver is not None:
            receiver.stop()
        if self._line is not None:
            self._line.shut()  # the thread may not have come to run the receiver yet
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(5.0)
