"""The delivery connection of a session: opened, mended when it is cut, and acknowledged, on a thread of its own."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any, Final

from jbi_pubsub.core.backoff import Backoff
from jbi_pubsub.core.errors import JbiError, UnknownLeaseError, UnknownUidError
from jbi_pubsub.core.guard import guarded
from jbi_pubsub.core.wire.deflate import described
from jbi_pubsub.core.wire.dial import dial
from jbi_pubsub.core.wire.endpoint import DATA
from jbi_pubsub.core.wire.receiver import Receiver
from jbi_pubsub.core.wire.stream import WINDOW_BATCHES
from jbi_pubsub.core.wire.stream_socket import Hello, StreamSocket, greet
from jbi_pubsub.protocol.replies import OpenReply

from .deliveries import DeliveryReader
from .flows import FlowTable
from .link import SessionLink

log = logging.getLogger("jbi_pubsub.subscriber")

BACKOFF_FIRST: Final = 0.05
BACKOFF_MOST: Final = 5.0

LEAVE_SECONDS: Final = 1.0
"""For the delegate to read the last of it when we leave."""

ACK_AFTER: Final = WINDOW_BATCHES // 2
"""Batches that are acknowledged together while they come one upon the other: as many again may be under way."""


class DeliveryConnection:
    """See the module. The link's condition covers `receiver`."""

    def __init__(
        self, link: SessionLink, flows: FlowTable, reader: DeliveryReader, lose_session: Callable[[JbiError, str], None]
    ) -> None:
        """`lose_session(why, session id)`: the delegate does not know that session any more."""
        self.receiver: Receiver | None = None
        """The one that is connected."""
        self._owes_report = False
        self._link = link
        self._flows = flows
        self._reader = reader
        self._lose_session = lose_session

    def report(self) -> None:
        """Have what was consumed acknowledged at once; if the delegate's line takes nothing now, by the session's
        thread: whoever takes an object waits for no socket."""
        receiver = self.receiver
        if receiver is not None and not receiver.report_unless_full():
            with self._link.changed:
                self.owe_report()
                self._link.changed.notify_all()

    def owe_report(self) -> None:
        """Under the lock: have the session's thread report what was consumed, as the next thing that it does."""
        self._owes_report = self._link.is_dirty = True

    def report_if_owed(self) -> None:
        """Report what could not be at once. On the session's thread, which may wait."""
        with self._link.changed:
            is_owed, self._owes_report, receiver = self._owes_report, False, self.receiver
        if is_owed and receiver is not None:
            receiver.report()

    def close(self, timeout: float) -> None:
        """Leave."""
        with self._link.changed:
            receiver, is_told = self.receiver, self._flows.is_told_last()
        if receiver is not None:
            if is_told:
                receiver.leave(min(timeout, LEAVE_SECONDS))  # what was taken last: else it comes again the next time
            receiver.stop()

    def status(self) -> dict[str, Any]:
        """Plain data."""
        receiver = self.receiver
        return {"connected": receiver is not None, **described(receiver.compression if receiver is not None else None)}

    def run(self) -> None:
        """Receive until the session ends."""
        link = self._link
        receiver: Receiver | None = None
        session_id = ""
        backoff = Backoff(BACKOFF_FIRST, BACKOFF_MOST)
        while not link.stopping.is_set():
            opened = self._await_session()
            if opened is None:
                return
            if opened.uid != session_id or receiver is None:
                session_id = opened.uid
                receiver = Receiver(self._reader.take_batch, self._flows.note, ack_after=ACK_AFTER)
            began, position = time.monotonic(), receiver.position
            with guarded("delivery connection"):
                try:
                    self._receive(opened, receiver)
                except (UnknownUidError, UnknownLeaseError) as exc:
                    self._lose_session(exc, opened.uid)
                except JbiError as exc:
                    log.debug("%s: deliveries from %s ended: %s", link.name, link.ref.endpoints, exc)
                    if link.is_parted:
                        self._lose_session(exc, opened.uid)
            if receiver.position > position or time.monotonic() - began > 1.0:
                backoff.reset()
            link.stopping.wait(backoff.pause())

    def _await_session(self) -> OpenReply | None:
        link = self._link
        with link.changed:
            while not link.is_open() and not link.stopping.is_set():
                link.changed.wait(1.0)
            return None if link.stopping.is_set() else link.opened

    def _receive(self, opened: OpenReply, receiver: Receiver) -> None:
        link, config = self._link, self._link.config
        token = link.proxy.open_deliveries(opened.uid)
        sock = dial(link.ref, DATA, config.security(), config.lookup.timeout, window=config.link.window)
        try:
            line = StreamSocket(sock)
            greet(line, Hello.of(token, receiver.position, compression=config.link.compression))
            if opened.lease.duration < config.lease.subscriber:  # until now it was short
                link.renewals.hasten((link, opened.uid))
            with link.changed:
                if link.stopping.is_set() or not link.is_open(opened.uid):
                    return  # nobody would stop it
                self.receiver = receiver
                self._flows.report_again()
            receiver.run(line)  # nothing of a subscription is named here: it would be held for as long as that runs
        finally:
            with link.changed:
                self.receiver = None
            sock.close()
