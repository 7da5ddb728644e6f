"""One publishing application at one delegate: lease, registrations, and the queue of what is on its way there.

Theory of operation: `publish` queues; a Sender takes from the queue and keeps what is not acknowledged (with quality of
service: what is not done, see lanes.py). One thread
owns the data connection and mends it: cut, it is opened again and goes on where the delegate has got to; if the
delegate has forgotten us (restart, lease run out), it is found again, everything is registered again under the same
ids, and what was not acknowledged is sent again. Subscribers drop what they have seen, by sequence number.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

from jbi_pubsub.core.arguments import called
from jbi_pubsub.core.backoff import Backoff
from jbi_pubsub.core.config import Config
from jbi_pubsub.core.errors import (
    AccessDeniedError,
    BackPressureError,
    DelegateNotFoundError,
    JbiError,
    LookupNotFoundError,
    UnknownLeaseError,
    UnknownUidError,
    WireError,
    rebuild,
)
from jbi_pubsub.core.guard import guarded
from jbi_pubsub.core.info_object import Parcel, SchemaBundle, TypeName
from jbi_pubsub.core.renewal import LeaseRenewalManager
from jbi_pubsub.core.values import decoded, decoder_of
from jbi_pubsub.core.wire import ServiceRef
from jbi_pubsub.core.wire.deflate import described
from jbi_pubsub.core.wire.dial import dial
from jbi_pubsub.core.wire.endpoint import DATA
from jbi_pubsub.core.wire.sender import Sender
from jbi_pubsub.core.wire.stream_socket import Hello, StreamSocket, greet
from jbi_pubsub.lookup.item import ServiceItem
from jbi_pubsub.protocol.replies import Refusals, Taken
from jbi_pubsub.protocol.services import fetch_schema

from .finder import DelegateFinder
from .lanes import Lanes, aged
from .publication import LocalPublication
from .registrations import DelegateAttachment, DelegateLink, RemoteRegistrations
from .states import SILENT, UNATTACHED, ConnectionEvent

log = logging.getLogger("jbi_pubsub.publisher")

BACKOFF_FIRST: Final = 0.1
BACKOFF_MOST: Final = 5.0
FIND_AGAIN_SECONDS: Final = 1.0
"""For one look for a delegate that went away; it is repeated until one is found or the adapter is closed."""
ASK_PAUSE: Final = 0.05
"""Between two questions whether subscribers have come."""
AWAY_SECONDS: Final = 2.0
"""Until it is said that no delegate answers: a restart in order takes less."""
NOTHING: Final = Taken()
ASKED_SECONDS: Final = 10.0
"""For a delegate that asks some others about a type."""
LEAVE_SECONDS: Final = 1.0
"""To leave a delegate in."""
LEFT_MOST: Final = 8
"""Registrations of which it is said how many objects are lost when we leave."""


class ConnectionReports:
    """Reports on a connection: refusals, and whether a delegate answers, to the log and to the application's callbacks.
    These are called on a thread of ours."""

    def __init__(
        self, name: str, refused: Callable[[str, JbiError], None] | None, away: Callable[[str], None] | None
    ) -> None:
        """`away(why)` is called when the delegate in use does not answer any more, and with "" when one does again; it
        must not wait. `refused`: see PublisherAdapterLight."""
        self._name = name
        self._refused = refused
        self._away = away
        self.refusals = 0
        """Objects that were refused."""
        self._warn_at: float | None = None
        """When it is logged that no delegate answers (monotonic seconds); None: it was."""

    def begin_silence(self, why: JbiError) -> None:
        """No delegate answers any more."""
        self._warn_at = time.monotonic() + AWAY_SECONDS
        self._call("delegates that are away", self._away, why.message)

    def keep_silence(self, waiting: int) -> None:
        """None answers still; `waiting` objects wait for one. That is logged once when it lasts."""
        if self._warn_at is not None and time.monotonic() >= self._warn_at:
            self._warn_at = None
            log.warning("%s: no delegate answers; %d objects wait for one", self._name, waiting)

    def end_silence(self) -> None:
        """One answers again."""
        if self._warn_at is None:
            log.warning("%s: a delegate answers again", self._name)
        self._call("delegates that are away", self._away, "")

    def refuse(self, refusals: Refusals, registrations: RemoteRegistrations) -> None:
        """The delegate refuses objects, or a lookup service one of our registrations."""
        for uid, error in refusals:
            rebuilt = rebuild(error)
            if uid in registrations:
                log.error("%s: a lookup service does not list registration %s: %s", self._name, uid, rebuilt)
            else:
                self.refusals += 1
                log.warning("%s: the delegate refused object %s: %s", self._name, uid, rebuilt, extra={"object": uid})
            self._call("what is refused", self._refused, uid, rebuilt)

    def _call(self, what: str, callback: Callable[..., None] | None, *arguments: Any) -> None:
        if callback is None:
            return
        try:
            called(callback, *arguments)
        except BaseException:  # an application's mistake, or its sys.exit(), must not end its publishing
            log.exception("%s: the callback for %s failed", self._name, what)


class DelegateConnection:
    """See the module."""

    def __init__(
        self,
        config: Config,
        renewals: LeaseRenewalManager,
        *,
        finder: DelegateFinder,
        name: str,
        reports: ConnectionReports,
    ) -> None:
        self._config = config
        self._security = config.security()
        self._renewals = renewals
        self._finder = finder
        self._name = name
        self._reports = reports
        self._link = DelegateLink()
        self.queue = Lanes(chunk=config.link.chunk)
        self._sender = Sender(
            self.queue, name=f"publish-{name}", acked=self._acked, batch_bytes=config.link.chunk, aged=aged
        )
        self.registrations = RemoteRegistrations(
            self._link, self.queue, self._sender, name=name, seconds=config.lookup.timeout
        )
        self._backoff = Backoff(BACKOFF_FIRST, BACKOFF_MOST)
        self._thread = threading.Thread(target=self._run, name=f"publish-{name}", daemon=True)

    def open(self, timeout: float) -> None:
        """Connect, under a lease, to the first delegate that answers; one that is listed may be dead until its lease
        ends. Raises the delegate's errors, DelegateNotFoundError or LookupNotFoundError."""
        deadline = time.monotonic() + timeout
        silence: tuple[ServiceItem, WireError] | None = None
        while silence is None or time.monotonic() < deadline:
            try:
                item = self._finder.find(max(0.0, deadline - time.monotonic()))
            except DelegateNotFoundError:
                if silence is None:
                    raise
                break  # the time is over: what did not answer says more than what was not found meanwhile
            try:
                self._connect(item)
            except WireError as exc:
                silence = item, exc
                time.sleep(min(0.1, max(0.0, deadline - time.monotonic())))  # until it is back, or out of the list
            else:
                self._sender.start()
                self._thread.start()
                return
        assert silence is not None  # the first turn returns, raises or sets it
        raise self._finder.silence(*silence, timeout) from silence[1]

    def ref(self) -> ServiceRef:
        """Reference to the delegate. Raises WireError while there is none."""
        return self._link.attached().ref

    def schema(self, type_: TypeName) -> SchemaBundle:
        """The schema that the delegate has of a type, or gets from other type repositories. Raises the delegate's
        errors, UnknownUidError for none, or WireError."""
        return fetch_schema(
            self._link.attached().ref,
            self._security,
            type_.name,
            type_.version,
            timeout=self._config.lookup.timeout + ASKED_SECONDS,
        )

    def wait_for_subscriptions(self, publication: LocalPublication, count: int, timeout: float) -> int:
        """Number standing there, as soon as there are `count`, or after `timeout` seconds; 0: the delegate is away."""
        deadline = time.monotonic() + timeout
        standing = 0
        while True:
            left = deadline - time.monotonic()
            try:
                at = self._link.attached()
                standing = at.proxy.wait_for_subscriptions(at.opened.uid, publication.uid, count, max(0.0, left))
            except JbiError as exc:
                log.debug("%s: subscriptions of %s are not known: %s", self._name, publication.uid, exc)
                self._link.pause(min(BACKOFF_FIRST, max(0.0, left)))
            if standing >= count or left <= 0 or self._link.pause(ASK_PAUSE):  # others have calls to make, too
                return standing

    def publish(self, publication: LocalPublication, run: Sequence[Parcel], timeout: float) -> None:
        """Queue consecutive objects. Raises BackPressureError with how many were `published`, or WireError when the
        delegate has refused to take back their registration."""
        refusal = self.registrations.refusal(publication.uid)
        if refusal is not None:
            raise WireError(
                f"the delegate does not take the registration back: {refusal.message}", hint=refusal.hint, published=0
            ) from refusal
        try:
            queued = self.queue.put(publication.number, run, timeout)
        finally:  # a signal's handler, too, leaves what is queued
            self._sender.push()
        if queued < len(run):
            raise BackPressureError(
                f"the delegate takes no more: {self.queue.waiting} objects wait for it",
                hint="Publish more slowly, or give a longer timeout",
                published=queued,
            )

    def flush(self, timeout: float, publication: LocalPublication | None = None) -> None:
        """Wait until what was published by now, of one registration or of all, is acknowledged. Raises
        BackPressureError. Of a registration that the delegate has refused nothing will be."""
        if publication is not None and self.registrations.refusal(publication.uid) is not None:
            return
        left = self.queue.wait_taken(timeout, publication.number if publication else None)
        if left:
            raise BackPressureError(f"{left} objects not taken by the delegate within {timeout:.3g} s")

    def close(self, timeout: float) -> None:
        """Hand over what is queued within `timeout` seconds, then leave, which takes LEAVE_SECONDS more at most. What
        is left is logged as lost. Out of a callback nothing is handed over: it is called on the thread that would."""
        is_waited_for = threading.current_thread() is not self._thread
        deadline = time.monotonic() + timeout
        left = 0 if self._link.has_left else self.queue.wait_taken(timeout if is_waited_for else 0.0)
        if left:
            log.warning("%s: %d objects are lost, as no delegate has taken them: %s", self._name, left, self._left())
        self._link.happen(ConnectionEvent.LEAVE)
        deadline = max(deadline, time.monotonic() + LEAVE_SECONDS)
        self._leave(deadline)
        self._sender.stop(max(0.0, deadline - time.monotonic()))
        if is_waited_for and self._thread.is_alive():
            self._thread.join(max(0.0, deadline - time.monotonic()))

    def _left(self) -> str:
        """Objects that no delegate has taken, by registration, for people."""
        left = {uid: self.queue.unfinished(each.number) for uid, each in self.registrations.wanted().items()}
        told = [f"{count} of registration {uid}" for uid, count in left.items() if count]
        more = [f"others of {len(told) - LEFT_MOST} more"] if len(told) > LEFT_MOST else []
        return ", ".join(told[:LEFT_MOST] + more)

    def _leave(self, deadline: float) -> None:
        self._renewals.remove(self)
        attachment = self._link.attachment
        if attachment is not None:
            attachment.leave(max(0.0, deadline - time.monotonic()))

    def status(self) -> dict[str, Any]:
        """Plain data."""
        attachment = self._link.attachment
        return {
            "delegate": attachment.ref.service_id if attachment is not None else "",
            "address": ", ".join(attachment.ref.endpoints) if attachment is not None else "",
            "connected": self._sender.connected,
            **described(self._sender.compression),
            "registrations": list(self.registrations.wanted()),
            "unacknowledged": self._sender.unacknowledged,
            "refused": self._reports.refusals,
            "given_up": self.queue.given_up,
            "refused_registrations": self.registrations.refusals(),
        }

    # -- keeping the connection ---------------------------------------------------------------------------------

    def _connect(self, item: ServiceItem) -> None:
        """Raises the delegate's errors or WireError."""
        try:
            attachment = DelegateAttachment(item.proxy, self._config, self._security, self._name)
            try:
                self._renewals.manage(  # now: to register everything may take longer than the lease
                    self,
                    attachment.opened.lease.duration,
                    lambda: self._renew(attachment),
                    lambda why: self._lease_lost(attachment, why),
                )
                self._renewals.hasten(self)  # opens the connection that will be needed
                before = self.registrations.move(attachment)
            except BaseException as exc:
                self._renewals.remove(self)  # who interrupts does not wait
                attachment.leave(None if isinstance(exc, JbiError) else LEAVE_SECONDS)  # or it stands in the way later
                raise
        except WireError:
            self._finder.note_in_vain(item.service_id)
            raise
        self._finder.forget_tried()
        if before is not None:
            before.proxy.close()

    def _renew(self, attachment: DelegateAttachment) -> float:
        term = attachment.renew(self._config.lease.publisher)
        self.registrations.look_again(attachment)
        return term

    def _lease_lost(self, attachment: DelegateAttachment, why: JbiError) -> None:
        if self._link.attachment is attachment:  # else that of a connection that we have given up
            self._link.happen(ConnectionEvent.FORGET, attachment)
            log.warning("%s lost its lease at the delegate, connecting again: %s", self._name, why)

    def _run(self) -> None:
        while not self._link.has_left:
            began = time.monotonic()
            with guarded("publisher connection"):
                self._turn()
            if time.monotonic() - began > BACKOFF_MOST:
                self._backoff.reset()
            self._link.pause(self._backoff.pause())

    def _turn(self) -> None:
        """Come back if need be, and send, until either fails."""
        try:
            if self._link.state in UNATTACHED:
                self._come_back()
            self._send_on_a_line()
        except (UnknownUidError, UnknownLeaseError) as exc:
            log.info("%s: the delegate does not know this publisher any more: %s", self._name, exc)
            self._link.happen(ConnectionEvent.FORGET)
        except WireError as exc:
            if self._link.has_left:
                return
            log.debug("%s: data connection ended: %s", self._name, exc)
            self._fail(exc)
            if self._is_forgotten():
                self._link.happen(ConnectionEvent.FORGET)
        except (DelegateNotFoundError, LookupNotFoundError) as exc:
            self._fail(exc)
            log.info("%s: waiting for the delegate: %s", self._name, exc)
        except JbiError as exc:
            if not self.registrations.refusals():
                log.error("%s: the delegate refuses this publisher: %s", self._name, exc)
            if isinstance(exc, AccessDeniedError):
                self.registrations.refuse_all(exc)  # who publishes is told

    def _fail(self, why: JbiError) -> None:
        before, now = self._link.happen(ConnectionEvent.FAIL)
        if now in SILENT and before not in SILENT:
            self._reports.begin_silence(why)
        if now in SILENT:
            self._reports.keep_silence(self.queue.waiting)

    def _come_back(self) -> None:
        self._renewals.remove(self)
        self._connect(self._finder.find(FIND_AGAIN_SECONDS, lambda: self._link.has_left))
        if self._link.has_left:
            self._leave(time.monotonic() + LEAVE_SECONDS)

    def _send_on_a_line(self) -> None:
        at = self._link.attached()
        token = at.proxy.open_publications(at.opened.uid)
        link = self._config.link
        sock = dial(at.ref, DATA, self._security, self._config.lookup.timeout, window=link.window)
        try:
            line = StreamSocket(sock)
            position = greet(line, Hello.of(token, compression=link.compression))
            before, _ = self._link.happen(ConnectionEvent.LINE)
            if before in SILENT:
                self._reports.end_silence()
            if at.opened.lease.duration < self._config.lease.publisher:  # until now it was short
                self._renewals.hasten(self)
            self._sender.run(line, position)
        finally:
            sock.close()

    def _is_forgotten(self) -> bool:
        """Whether another delegate stands where ours was, or ours is not there any more."""
        at = self._link.attached()
        try:
            at.renew(self._config.lease.publisher)
        except UnknownLeaseError:
            return True
        except WireError:
            self._finder.note_in_vain(at.ref.service_id)
            try:
                found = self._finder.find(FIND_AGAIN_SECONDS, lambda: self._link.has_left)
            except JbiError:
                return False  # nobody there yet: try again, ours may come back
            return found.service_id != at.ref.service_id
        except JbiError:
            return False
        return False

    def _acked(self, count: int, note: memoryview) -> None:
        if count:
            self._backoff.reset()  # after a connection that brought some the next one need not wait long
        taken = NOTHING
        try:
            if note:
                taken = decoded(decoder_of(Taken), note, "acknowledgement")
                self._reports.refuse(taken.refusals, self.registrations)
        finally:
            self.queue.acknowledged(count)  # behind that: who has flushed has been told
            if taken.done:
                self.queue.done(taken.done)
            if taken.importance or taken.strict is not None:
                self.queue.weigh(taken.importance, taken.strict)
