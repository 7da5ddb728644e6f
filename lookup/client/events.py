"""The connection on which a lookup service tells events. Each is a new one: who connects again looks up again.

It is made beside the first calls, which over a long link would wait for two round trips else. What happens meanwhile
waits at the lookup service.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from contextlib import closing
from typing import Final

from jbi_pubsub.core.errors import JbiError, WireError, WireTimeoutError
from jbi_pubsub.core.guard import guarded
from jbi_pubsub.core.wire import ServiceRef
from jbi_pubsub.core.wire.dial import dial
from jbi_pubsub.core.wire.endpoint import DATA, Security
from jbi_pubsub.core.wire.receiver import Receiver
from jbi_pubsub.core.wire.stream_socket import Hello, StreamSocket, greet

log = logging.getLogger("jbi_pubsub.lookup")

DIAL_SECONDS: Final = 10.0


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
        self._lock = threading.Lock()
        """Covers which receiver counts, and its line."""
        self._receiver: Receiver | None = None
        self._line: StreamSocket | None = None
        self._thread: threading.Thread | None = None
        self._settled = threading.Event()
        """That it is open, has failed, or is not wanted yet."""
        self._settled.set()
        self._why: JbiError | None = None
        """Why it is not open any more, or could not be opened."""

    def open(self, ref: ServiceRef, token: str) -> None:
        """Connect, beside what else is to be done. Raises WireError."""
        self._why = None
        self._settled = settled = threading.Event()
        receiver = Receiver(self._receive, lambda: b"")
        with self._lock:
            self._receiver, self._line = receiver, None
        self._thread = None
        thread = threading.Thread(
            target=self._run, args=(receiver, settled, ref, token), name=f"{self._name}-events", daemon=True
        )
        try:
            thread.start()
        except RuntimeError as exc:  # the system has no more threads for us
            raise WireError(f"no thread for the events of {ref.endpoints}: {exc}") from exc
        self._thread = thread

    def check(self) -> None:
        """Wait until it is open. Raises WireError when it is not, or not any more."""
        if not self._settled.wait(2 * DIAL_SECONDS):
            raise WireTimeoutError("the event connection takes too long")
        if self._why is not None:
            raise self._why

    def _run(self, receiver: Receiver, settled: threading.Event, ref: ServiceRef, token: str) -> None:
        why: JbiError = WireError("event connection lost")
        with guarded("lookup events"):
            try:
                with closing(dial(ref, DATA, self._security, DIAL_SECONDS)) as sock:
                    line = StreamSocket(sock)
                    greet(line, Hello.of(token, compression=self._compression))
                    with self._lock:
                        is_wanted = self._receiver is receiver  # or it was closed meanwhile
                        if is_wanted:
                            self._line = line
                    if is_wanted:
                        settled.set()
                        receiver.run(line)
            except JbiError as exc:
                log.debug("events of %s ended: %s", self._name, exc)
                why = exc
        if self._receiver is receiver:
            self._why = why
            self._lost()
        settled.set()

    def close(self) -> None:
        """End it, and its thread."""
        with self._lock:
            receiver, self._receiver = self._receiver, None
            line, self._line = self._line, None
        if receiver is not None:
            receiver.stop()
        if line is not None:
            line.shut()  # the thread may not have come to run the receiver yet
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(5.0)
