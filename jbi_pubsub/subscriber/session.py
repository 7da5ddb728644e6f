"""One subscriber process at one delegate or peer publisher: lease, subscriptions there, and the delivery connection.

Theory of operation: the session knows which subscriptions are wanted there and which stand (remote.py). One thread
brings the second to the first; another owns the delivery connection and mends it. A cut shorter than the lease loses
nothing: the delegate keeps what was not acknowledged. If the delegate has forgotten us (restart, lease run out), a new
session is opened, everything is registered again, and the subscriptions are told that objects may be lost.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import repeat
from typing import Any, Final

import msgspec

from jbi_pubsub.core.backoff import Backoff
from jbi_pubsub.core.config import Config
from jbi_pubsub.core.errors import (
    AccessDeniedError,
    JbiError,
    UnknownLeaseError,
    UnknownUidError,
    WireError,
)
from jbi_pubsub.core.guard import guarded
from jbi_pubsub.core.info_object import Cause
from jbi_pubsub.core.open_adapters import SUBSCRIBERS
from jbi_pubsub.core.quality import GrantedQos
from jbi_pubsub.core.renewal import LeaseRenewalManager
from jbi_pubsub.core.spool import Spool
from jbi_pubsub.core.wire import ServiceRef
from jbi_pubsub.lookup.item import ServiceItem
from jbi_pubsub.protocol.entries import ArchiveEntry
from jbi_pubsub.protocol.services import SUBSCRIPTIONS, SUBSCRIPTIONS_METHODS

from .connection import BACKOFF_FIRST, BACKOFF_MOST, DeliveryConnection
from .deliveries import DeliveryReader
from .flows import FlowTable
from .link import ReplacedError, SessionLease, SessionLink
from .placed import PlacedSubscription
from .registry import RemoteRegistry, SessionLosses
from .remote import RemoteState
from .session_queries import QueryPart, SessionQueries
from .signed import DeliverySignatures, SessionSignatures
from .subscription import LocalSubscription
from .watches import TemplateWatches

log = logging.getLogger("jbi_pubsub.subscriber")

SHOWN_SECONDS: Final = 5.0
"""Within which publishers of a delegate that is dead go on elsewhere: their numbers tell what is lost of theirs."""

QUIET_SECONDS: Final = 1.0
"""When so long nothing was to be done, a durable subscription tells what was taken meanwhile."""


class DelegateSession:
    """See the module. The link's condition covers all state."""

    def __init__(
        self,
        ref: ServiceRef,
        config: Config,
        renewals: LeaseRenewalManager,
        name: str,
        watches: TemplateWatches,
        ended: Callable[[DelegateSession], None],
        signatures: DeliverySignatures | None = None,
        spool: Spool | None = None,
    ) -> None:
        """`watches`: what lookup services say of the delegate and of registrations; `ended` is called once;
        `signatures`: the check that objects pass; `spool`: where large payloads are kept, with those of other
        sessions."""
        self.ref = ref
        self.link = SessionLink(ref, config, renewals, name)
        self._watches = watches
        self._ended = ended
        self.flows = FlowTable(self.link.changed, self._expects_answers, lambda: self.connection.report())
        self.registry = RemoteRegistry(self.link, self.flows)
        self.losses = SessionLosses(self.link, self.registry.remotes, watches.matched)
        self.queries = SessionQueries(self.link, self.flows)
        checks = None if signatures is None else SessionSignatures(signatures, ref, self.link.proxy, watches.item)
        self.reader = DeliveryReader(
            self.link, self.flows, self.registry, self.queries, spool or config.link.spooling(), checks
        )
        self.connection = DeliveryConnection(self.link, self.flows, self.reader, self._lose_session)
        self.lease = SessionLease(self.link, self._lose_session)
        self._threads = [
            threading.Thread(target=self._keep, name=f"{name}-session-{ref.service_id[:8]}", daemon=True),
            threading.Thread(target=self.connection.run, name=f"{name}-receive-{ref.service_id[:8]}", daemon=True),
        ]

    def start(self) -> None:
        """Begin."""
        for thread in self._threads:
            thread.start()

    def want(self, subscription: LocalSubscription) -> bool:
        """Have the subscription stand there from now on. False: the session has ended, another one has to do it."""
        is_past = isinstance(subscription, PlacedSubscription) and _is_archive(self._watches.item(self.ref.service_id))
        with self.link.changed:
            if self.link.stopping.is_set():
                return False
            self.registry.want(subscription, is_expected=subscription.has_begun and not is_past)
            return True

    def ask(self, part: QueryPart) -> bool:
        """Have a query opened there; the part is told. False: the session has ended, another one has to do it."""
        with self.link.changed:
            if self.link.stopping.is_set():
                return False
            part.at = self.queries
            self.queries.parts[part.uid] = part
            self.link.demand()
            return True

    def stands(self, uid: str) -> bool:
        """Whether the delegate has the subscription now."""
        return self.quality(uid) is not None

    def quality(self, uid: str) -> GrantedQos | None:
        """The quality that the subscription has got there by now; None where it does not stand."""
        with self.link.changed:
            record = self.registry.remotes.get(uid)
            return record.flow.quality if record is not None and record.stands and record.flow is not None else None

    def denied(self, uid: str) -> JbiError | None:
        """Why it does not stand there, if it was refused; or stands, and is not evaluated for some registration."""
        with self.link.changed:
            record = self.registry.remotes.get(uid)
            return record.why if record is not None else None

    def close(self, timeout: float = 5.0) -> None:
        """Leave within `timeout` seconds: direct subscriptions end, e-mail ones live on by their leases."""
        link, ends = self.link, time.monotonic() + timeout
        link.stopping.set()
        link.left.set()
        self._renew_nothing()
        with link.changed:
            opened = link.opened
            link.changed.notify_all()
        self.connection.close(timeout)
        if opened is not None and not link.is_lost:
            try:
                link.proxy.close_session(opened.uid, max(0.1, ends - time.monotonic()))
            except JbiError as exc:
                log.debug("the delegate will notice at the end of the lease: %s", exc)
        link.close()
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(max(0.0, ends - time.monotonic()))

    def status(self) -> dict[str, Any]:
        """Plain data."""
        with self.link.changed:
            remotes = self.registry.remotes
            return {
                "delegate": self.ref.service_id,
                "address": self.link.address,
                **self.connection.status(),
                "subscriptions": [each.subscription.uid for each in remotes if each.stands],
                "refused": {
                    each.subscription.uid: str(each.why) for each in remotes if each.state is RemoteState.REFUSED
                },
            }

    # -- the session's thread -----------------------------------------------------------------------------------

    def _keep(self) -> None:
        backoff = Backoff(BACKOFF_FIRST, BACKOFF_MOST)
        unreachable_since: float | None = None
        while not self.link.stopping.is_set():
            with guarded("subscriber session"):
                try:
                    if self._is_needless():
                        self._end(WireError("nothing is wanted there any more"))
                        return
                    self._open_if_needed()
                    self._reconcile()
                    backoff.reset()
                    unreachable_since = None
                    self._wait_for_work()
                    continue
                except (UnknownUidError, UnknownLeaseError) as exc:
                    self._lose_session(exc)
                except ReplacedError as exc:
                    self._end(exc)
                    return
                except WireError as exc:
                    log.debug("%s: delegate %s is away: %s", self.link.name, self.ref.endpoints, exc)
                    if isinstance(exc.__cause__, ConnectionRefusedError):
                        self.queries.fail_unopened(exc)
                    unreachable_since = unreachable_since or time.monotonic()
                    if self._is_over(time.monotonic() - unreachable_since):
                        self._end(exc)
                        return
                except AccessDeniedError as exc:
                    self._refuse_all(exc)
                    continue
                except JbiError as exc:
                    log.error("%s: delegate %s refuses the session: %s", self.link.name, self.ref.endpoints, exc)
            self._pause(backoff.pause())

    def _pause(self, seconds: float) -> None:
        """Until the delegate is tried again: so long, or until a query is asked, whose application waits."""
        link = self.link
        with link.changed:
            known = set(self.queries.parts)
            link.changed.wait_for(lambda: link.stopping.is_set() or not self.queries.parts.keys() <= known, seconds)

    def _refuse_all(self, why: AccessDeniedError) -> None:
        """We may not be there: what is wanted is told so, once, and asked for again in a minute, or when something else
        is wanted."""
        link = self.link
        log.info("%s: delegate %s refuses the session: %s", link.name, link.ref.endpoints, why)
        with link.changed:
            asked = self.queries.take_all()
            link.is_dirty = False
        for part in asked:
            part.fail(why)
        again = self.registry.refuse_all(why)
        with link.changed:
            link.changed.wait_for(lambda: link.is_dirty or link.stopping.is_set(), again - time.monotonic())
            self.registry.retry_all()

    def _open_if_needed(self) -> None:
        link = self.link
        with link.changed:
            opened = link.opened if link.is_open() else None
            if opened is None and not (self.queries.parts or self.registry.needs_session()):
                link.opened, link.is_lost = None, False  # one that was lost is not missed
                return
        if opened is not None:
            self.lease.renew_if_doubted(opened)
            return
        self.lease.open(self.registry.remotes.retry)  # another session, another answer
        self.losses.tell(Cause.SUBSCRIBER_DEAD, "the lease at the delegate ran out")

    def _reconcile(self) -> None:
        with self.link.changed:
            self.link.is_dirty = False
            session_id = self.link.session_id
        self.registry.reconcile(session_id)
        self.queries.reconcile(session_id)
        self.losses.ask_for_mail()
        self.connection.report_if_owed()

    def _wait_for_work(self) -> None:
        link = self.link
        with link.changed:
            while not (link.is_dirty or link.is_lost or link.stopping.is_set() or self._stands_empty()):
                if time.monotonic() >= min(self.registry.ask_at, self.losses.ask_at):
                    return
                if not link.changed.wait(QUIET_SECONDS) and self.flows.owes_places():
                    self.connection.owe_report()
                    return

    def _lose_session(self, why: JbiError, session_id: str = "") -> None:
        """The delegate does not know that session any more ("": whichever it is). Called on the session's threads or
        the renewal manager's."""
        link = self.link
        with link.changed:
            opened = link.opened
            if opened is None or not link.is_open(session_id):
                return
            if link.is_parted:
                log.info("%s: delegate %s has stopped", link.name, link.address)
            else:
                log.warning("%s: session at delegate %s lost: %s", link.name, link.address, why)
            link.is_lost = True
            is_told = link.is_parted
            lost = self.registry.remotes.lose(opened.uid, is_told=is_told)
            begun = self.queries.lose()
            receiver = self.connection.receiver
            link.changed.notify_all()
        if is_told:
            for flow in lost:
                flow.subscription.settle(flow.consume)
        link.renewals.remove((link, opened.uid))  # from here on the next session may stand
        for part in begun:
            part.fail(WireError(f"the session at {link.address} was lost: {why}"))
        if receiver is not None:
            receiver.stop()

    def _is_over(self, away: float) -> bool:
        """Nobody answers there, our lease has run out, and no lookup service lists the delegate."""
        return away > self.link.config.lease.subscriber and not self._watches.is_listed(self.ref.service_id)

    def _is_needless(self) -> bool:
        """Whether there is no session, or it is lost, and nothing is left to do: then nobody can want it any more."""
        with self.link.changed:
            if self._stands_empty():
                self.link.stopping.set()
            return self.link.stopping.is_set()

    def _stands_empty(self) -> bool:
        return not self.link.is_open() and self.registry.remotes.is_empty() and not self.queries.parts

    def _end(self, why: JbiError) -> None:
        self._lose_session(why)
        with self.link.changed:  # objects for these were perhaps there, too
            missed = self.losses.missed()
            self.link.stopping.set()  # no further subscription or query is taken
            asked = self.queries.take_all()
        for part in asked:
            if isinstance(why, ReplacedError):
                part.replaced(str(why.facts["server"]))
            else:
                part.fail(why)
        self._renew_nothing()
        self.link.close()
        for subscription in missed:
            subscription.lose(Cause.DELEGATE_DEAD, 0, why.message)
        self.losses.tell(Cause.DELEGATE_DEAD, why.message, wait=SHOWN_SECONDS)
        self._ended(self)

    def _renew_nothing(self) -> None:
        with self.link.changed:
            mail = [flow.subscription.uid for flow in self.registry.remotes.standing()]
        self.lease.end(mail)

    def _expects_answers(self) -> bool:
        """Whether the delegate has been asked, or will be, for subscriptions that may stand there by now."""
        if self.link.is_lost or self.link.stopping.is_set():
            return False
        return bool(self.queries.unopened()) or self.link.is_dirty or self.registry.remotes.is_outstanding()


def _is_archive(item: ServiceItem | None) -> bool:
    """Whether an archive is listed there: what it has is not lost with it."""
    return item is not None and any(rep.cls.name == ArchiveEntry.entry_name for rep in item.entries)


CLOSED_AT_ONCE: Final = 16
"""Sessions that are closed together: delegates that hang hold up no other's, short of so many."""

LAST_SECONDS: Final = 1.0
"""For one of them at the end of the process, when they are closed one after the other."""


class DelegateSessions:
    """The sessions of a subscriber: each is begun when something is wanted there. `_lock` covers which there are."""

    def __init__(
        self, config: Config, name: str, watches: TemplateWatches, signatures: DeliverySignatures | None = None
    ) -> None:
        """`watches`: what lookup services say of delegates and registrations; `signatures`: the check that all objects
        pass."""
        self.renewals = LeaseRenewalManager(name)
        self._config = config
        self._name = name
        self._spool = config.link.spooling()
        """Place for large payloads, of all sessions."""
        self._watches = watches
        self._signatures = signatures
        self._lock = threading.RLock()
        self._sessions: dict[str, DelegateSession] = {}
        self._is_closed = False

    def all(self) -> list[DelegateSession]:
        """Those that there are now."""
        with self._lock:
            return list(self._sessions.values())

    def do(self, ref: ServiceRef, do: Callable[[DelegateSession], bool]) -> None:
        """Have something done by the session at a delegate or peer publisher, which may be a new one; `do` tells
        whether it was: not by one that has ended."""
        ref = msgspec.structs.replace(ref, exported=SUBSCRIPTIONS, methods=SUBSCRIPTIONS_METHODS)
        with self._lock:
            if self._is_closed:
                return
            session = self._sessions.get(ref.service_id)
            if session is None or not do(session):
                session = self._sessions[ref.service_id] = self._made(ref)
                do(session)
                session.start()

    def status(self) -> dict[str, Any]:
        """Plain data."""
        checked = self._signatures
        return {
            "signed": checked.signed if checked is not None else 0,
            "bad_signature": checked.bad_signature if checked is not None else 0,
            "sessions": [session.status() for session in self.all()],
        }

    def close(self, timeout: float = 5.0) -> None:
        """End all within `timeout` seconds, and begin none any more."""
        with self._lock:
            self._is_closed = True
            sessions = list(self._sessions.values())
        ends = time.monotonic() + timeout
        try:
            with ThreadPoolExecutor(CLOSED_AT_ONCE, thread_name_prefix=f"{self._name}-close") as pool:
                list(pool.map(_close, sessions, repeat(timeout)))  # each waits for an answer
        except RuntimeError:  # the interpreter ends, and begins no thread any more
            for session in sessions:
                _close(session, min(LAST_SECONDS, max(0.0, ends - time.monotonic())))
        self.renewals.stop(max(0.0, ends - time.monotonic()))
        SUBSCRIBERS.discard(self)

    def _made(self, ref: ServiceRef) -> DelegateSession:
        SUBSCRIBERS.add(self)
        given = (self._name, self._watches, self._forget, self._signatures, self._spool)
        return DelegateSession(ref, self._config, self.renewals, *given)

    def _forget(self, session: DelegateSession) -> None:
        with self._lock:
            if self._sessions.get(session.ref.service_id) is session:
                del self._sessions[session.ref.service_id]


def _close(session: DelegateSession, timeout: float) -> None:
    with guarded("closing a session"):  # the others are to be closed, too
        session.close(timeout)
