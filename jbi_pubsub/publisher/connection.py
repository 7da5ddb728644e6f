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
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final
from uuid import uuid4

import msgspec

from jbi_pubsub.core.arguments import called
from jbi_pubsub.core.backoff import Backoff
from jbi_pubsub.core.config import Config
from jbi_pubsub.core.errors import (
    AccessDeniedError,
    BackPressureError,
    DelegateNotFoundError,
    JbiError,
    LookupNotFoundError,
    ProtocolError,
    UnknownLeaseError,
    UnknownUidError,
    WireError,
    rebuild,
)
from jbi_pubsub.core.guard import guarded
from jbi_pubsub.core.info_object import Parcel, SchemaBundle, TypeName
from jbi_pubsub.core.renewal import LeaseRenewalManager
from jbi_pubsub.core.values import decoder_of
from jbi_pubsub.core.wire.deflate import described
from jbi_pubsub.core.wire.endpoint import DATA, dial
from jbi_pubsub.core.wire.stream import Hello, Line, Sender, greet
from jbi_pubsub.lookup.item import ServiceItem
from jbi_pubsub.protocol.replies import Opened, Refusals, Registered, Taken
from jbi_pubsub.protocol.services import Claims, DelegateProxy, fetch_schema

from .lanes import Lanes, aged
from .publication import Publication

log = logging.getLogger("jbi_pubsub.publisher")

BACKOFF_FIRST: Final = 0.1
BACKOFF_MOST: Final = 5.0
ASK_PAUSE: Final = 0.05
"""Between two questions whether subscribers have come."""
AWAY_SECONDS: Final = 2.0
"""Until it is said that no delegate answers: a restart in order takes less."""
TRIED_MOST: Final = 100
"""Delegates that are remembered for not answering."""
NOTHING: Final = Taken()
ASKED_SECONDS: Final = 10.0
"""For a delegate that asks some others about a type."""
LEAVE_SECONDS: Final = 1.0
"""To leave a delegate in."""
ABANDONED_SECONDS: Final = 10.0
"""Until a registration that was not answered to is taken back: longer than a delegate needs for one."""


class DelegateConnection:
    """See the module. `_lock` covers the identity at the delegate (proxy, connection id, lease id) and what is
    registered there. The delegate is never called under it: what was asked for is looked at again when the answer has
    come, as we may have come back elsewhere meanwhile, or somebody has ended the registration."""

    def __init__(
        self,
        config: Config,
        renewals: LeaseRenewalManager,
        *,
        find: Callable[[Mapping[str, float], Callable[[], bool]], ServiceItem],
        name: str,
        refused: Callable[[str, JbiError], None] | None,
        away: Callable[[str], None] = lambda _why: None,
    ) -> None:
        """`find(tried, ended)` finds a delegate of the same characteristics, if possible none that was tried in vain
        (when, by service id); it gives up when `ended()`. `away(why)` is called when the delegate in use does not
        answer any more, and with "" when one does again; it must not wait."""
        self.uid = uuid4().hex
        self._config = config
        self._security = config.security()
        self._renewals = renewals
        self._find = find
        self._name = name
        self._refused = refused
        self._away = away
        self._lock = threading.RLock()
        self._proxy: DelegateProxy | None = None
        self._opened: Opened | None = None
        self._publications: dict[str, Publication] = {}
        self._abandoned: dict[str, float] = {}
        """Registrations that the delegate has not answered to, with the moment (monotonic): it may have made them, and
        as long as we are connected nothing else would end them."""
        self._refusals: dict[str, JbiError] = {}
        """Registrations that the delegate refused when we came back, until it takes them."""
        self._next_number = 0
        self._queue = Lanes(chunk=config.link.chunk)
        self._sender = Sender(
            self._queue, name=f"publish-{name}", acked=self._acked, batch_bytes=config.link.chunk, aged=aged
        )
        self._gone = False
        self._taken = 0
        """Items acknowledged so far: after a connection that brought some, the next one need not wait long."""
        self._tried: dict[str, float] = {}
        """Delegates that have not answered, and when they were asked last (monotonic seconds)."""
        self._away_since = 0.0
        """When the delegate in use ceased to answer (monotonic seconds); 0.0 while it does."""
        self._is_told_away = False
        self._stopping = threading.Event()
        self.refusals = 0
        self._thread = threading.Thread(target=self._run, name=f"publish-{name}", daemon=True)

    def open(self, item: ServiceItem) -> None:
        """Connect, under a lease. Raises the delegate's errors or WireError."""
        self._connect(item)
        self._sender.start()
        self._thread.start()

    def schema(self, type_: TypeName) -> SchemaBundle | None:
        """The schema that the delegate has of a type, or gets from other type repositories; None for none. Raises the
        delegate's errors or WireError."""
        proxy, _ = self._attached()
        try:
            return fetch_schema(
                proxy.ref,
                self._security,
                type_.name,
                type_.version,
                timeout=self._config.lookup.timeout + ASKED_SECONDS,
            )
        except UnknownUidError:
            return None

    def register(self, publication: Publication) -> None:
        """Register at the delegate; if it has forgotten us, when we have come back. Raises the delegate's errors or
        WireError."""
        deadline = time.monotonic() + self._config.lookup.timeout
        while True:
            try:
                self._register(publication)
            except (UnknownUidError, WireError) as exc:
                comes_back = self._gone or isinstance(exc, UnknownUidError)
                if not comes_back or time.monotonic() >= deadline or self._stopping.wait(BACKOFF_FIRST):
                    if isinstance(exc, WireError) and publication.uid not in self._publications:
                        self._abandon(publication)
                    raise
                log.info("%s: the delegate has forgotten us, registering when it knows us again: %s", self._name, exc)
            else:
                return

    def _register(self, publication: Publication) -> None:
        with self._lock:
            proxy, opened = self._attached()
            known = self._publications.get(publication.uid)
            if known is None:
                self._next_number += 1  # never again: the answer may be lost
            publication.number = self._next_number if known is None else known.number  # under which objects are queued
        granted = proxy.register(opened.uid, publication.request(), publication.uid, publication.number)
        with self._lock:
            if self._opened is not opened:
                raise UnknownUidError("registered at a delegate that is not ours any more", uid=publication.uid)
            self._abandoned.pop(publication.uid, None)
            self._grant(publication, granted)
            self._publications[publication.uid] = publication

    def _grant(self, publication: Publication, granted: Registered) -> None:
        terms = publication.terms
        self._queue.grant(publication.number, granted, reliable=terms.reliable, expiration=terms.expiration)

    def unregister(self, publication: Publication) -> None:
        """Take a registration back. Raises the delegate's errors or WireError."""
        while True:
            with self._lock:
                proxy, opened = self._attached()
                self._publications.pop(publication.uid, None)  # now: nobody registers it again behind our back
                refusal = self._refusals.pop(publication.uid, None)
                if refusal is not None and (lost := self._queue.forget(publication.number, drops=True)):
                    log.warning("%s: %d objects of %s are lost: it was refused", self._name, lost, publication.uid)
            try:
                proxy.unregister(opened.uid, publication.uid)
            except UnknownUidError:
                pass  # gone already: that answer was lost; or we are unknown
            except JbiError:
                with self._lock:
                    if self._opened is opened:
                        self._publications[publication.uid] = publication
                        if refusal is not None:
                            self._refusals[publication.uid] = refusal
                        raise
            with self._lock:
                if self._opened is opened:  # else there as well
                    self._queue.forget(publication.number)
                    return

    def give_up(self, publication: Publication) -> None:
        """Take a registration back, as soon as the delegate can be told."""
        try:
            self.unregister(publication)
        except WireError as exc:
            log.info("%s: registration %s is taken back later: %s", self._name, publication.uid, exc)
            with self._lock:
                self._publications.pop(publication.uid, None)
                self._refusals.pop(publication.uid, None)
                self._queue.forget(publication.number)
            self._abandon(publication)

    def _abandon(self, publication: Publication, since: float | None = None) -> None:
        with self._lock:
            self._abandoned[publication.uid] = time.monotonic() if since is None else since

    def wait_for_subscriptions(self, publication: Publication, count: int, timeout: float) -> int:
        """Number standing there, as soon as there are `count`, or after `timeout` seconds; 0: the delegate is away."""
        deadline = time.monotonic() + timeout
        standing = 0
        while True:
            left = deadline - time.monotonic()
            try:
                proxy, opened = self._attached()
                standing = proxy.wait_for_subscriptions(opened.uid, publication.uid, count, max(0.0, left))
            except JbiError as exc:
                log.debug("%s: subscriptions of %s are not known: %s", self._name, publication.uid, exc)
                self._stopping.wait(min(BACKOFF_FIRST, max(0.0, left)))
            if standing >= count or left <= 0 or self._stopping.wait(ASK_PAUSE):  # others have calls to make, too
                return standing

    def publish(self, publication: Publication, run: Sequence[Parcel], timeout: float) -> None:
        """Queue consecutive objects. Raises BackPressureError with how many were `published`, or WireError when the
        delegate has refused to take back their registration."""
        refusal = self._refusals.get(publication.uid)
        if refusal is not None:
            raise WireError(
                f"the delegate does not take the registration back: {refusal.message}", hint=refusal.hint, published=0
            ) from refusal
        queued = self._queue.put(publication.number, run, timeout)
        self._sender.push()
        if queued < len(run):
            raise BackPressureError(
                f"the delegate takes no more: {self._queue.waiting} objects wait since {timeout:g} s",
                hint="Publish more slowly, or give a longer timeout",
                published=queued,
            )

    def first(self, publication: Publication) -> int:
        """The number of the first object of a registration that the delegate has not done; 0: it has all."""
        return self._queue.first(publication.number)

    def unfinished(self, publication: Publication) -> int:
        """Objects of a registration that the delegate has not done yet."""
        return self._queue.unfinished(publication.number)

    def flush(self, timeout: float, publication: Publication | None = None) -> None:
        """Wait until what was published by now, of one registration or of all, is acknowledged. Raises
        BackPressureError. Of a registration that the delegate has refused nothing will be."""
        if publication is not None and publication.uid in self._refusals:
            return
        left = self._queue.wait_taken(timeout, publication.number if publication else None)
        if left:
            raise BackPressureError(f"{left} objects not taken by the delegate within {timeout:g} s")

    def close(self, timeout: float) -> None:
        """Hand over what is queued within `timeout` seconds, then leave, which takes LEAVE_SECONDS more at most. What
        is left is logged as lost."""
        deadline = time.monotonic() + timeout
        try:
            self.flush(timeout)
        except BackPressureError as exc:
            log.warning("%s leaves a delegate with objects lost: %s", self._name, exc)
        self._stopping.set()
        deadline = max(deadline, time.monotonic() + LEAVE_SECONDS)
        self._leave(deadline)
        self._sender.stop(max(0.0, deadline - time.monotonic()))
        self._thread.join(max(0.0, deadline - time.monotonic()))

    def _leave(self, deadline: float) -> None:
        self._renewals.remove(self)
        with self._lock:
            proxy, opened = self._proxy, self._opened
        if proxy is not None and opened is not None:
            self._disconnect(proxy, opened, max(0.0, deadline - time.monotonic()))

    def status(self) -> dict[str, Any]:
        """Plain data."""
        proxy = self._proxy
        ref = proxy.ref if proxy is not None else None
        return {
            "delegate": ref.service_id if ref is not None else "",
            "address": ", ".join(ref.endpoints) if ref is not None else "",
            "connected": self._sender.connected,
            **described(self._sender.compression),
            "registrations": list(self._publications),
            "unacknowledged": self._sender.unacknowledged,
            "refused": self.refusals,
            "given_up": self._queue.given_up,
            "refused_registrations": list(self._refusals),
        }

    # -- keeping the connection ---------------------------------------------------------------------------------

    def _connect(self, item: ServiceItem) -> None:
        proxy = DelegateProxy(item.proxy, self._security, timeout=self._config.lookup.timeout)
        try:
            client = self._config.client
            opened = proxy.connect(self._name, self._config.lease.publisher, Claims(client.user, client.role))
        except JbiError:
            proxy.close()
            raise
        self._renewals.manage(  # now: to register everything may take longer than the lease
            self, opened.lease.duration, lambda: self._renew(proxy, opened), lambda why: self._lease_lost(opened, why)
        )
        try:
            before = self._register_all(proxy, opened)
        except JbiError:
            self._renewals.remove(self)
            self._disconnect(proxy, opened)  # or what is registered stands in the way of the next try
            raise
        if before is not None:
            before.close()

    def _register_all(self, proxy: DelegateProxy, opened: Opened) -> DelegateProxy | None:
        """Have all registrations stand there, and send there from then on; instead of where. Those that the delegate
        refuses, for reasons of their own, are asked for again later; unless it is all."""
        asked: dict[str, Publication] = {}
        refusals: dict[str, JbiError] = {}
        granted: dict[int, Registered] = {}
        while True:
            with self._lock:
                new = {uid: each for uid, each in self._publications.items() if uid not in asked}
                if not new:
                    return self._take_over(proxy, opened, asked, refusals, granted)
            for uid, publication in new.items():
                if self._stopping.is_set():
                    raise WireError("left in the middle of a come-back")
                try:
                    answer = proxy.register(opened.uid, publication.request(), uid, publication.number)
                    granted[publication.number] = answer
                except (WireError, UnknownUidError):
                    raise
                except JbiError as exc:
                    if uid not in self._refusals:
                        log.error("%s: the delegate refuses registration %s: %s", self._name, uid, exc)
                    refusals[uid] = exc
            asked |= new
            if refusals and len(refusals) == len(asked):
                with self._lock:  # who publishes is told
                    self._refusals = {uid: why for uid, why in refusals.items() if why.is_final}
                raise next(iter(refusals.values()))

    def _take_over(
        self,
        proxy: DelegateProxy,
        opened: Opened,
        asked: Mapping[str, Publication],
        refusals: Mapping[str, JbiError],
        granted: Mapping[int, Registered],
    ) -> DelegateProxy | None:
        """Under the lock: what is refused is held back before anybody can end it."""
        before, self._proxy, self._opened, self._gone = self._proxy, proxy, opened, False
        # Those of before end with the connection of before. Those that were ended meanwhile stand in this one.
        self._abandoned = dict.fromkeys(asked.keys() - self._publications.keys(), -ABANDONED_SECONDS)
        self._refusals = {uid: exc for uid, exc in refusals.items() if uid in self._publications}
        self._sender.forget_all()
        lost = -self._queue.given_up
        self._queue.restart({asked[uid].number for uid in self._refusals}, granted)
        if lost := lost + self._queue.given_up:
            log.warning("%s: %d objects of registrations that are not reliable are lost", self._name, lost)
        return before

    def _disconnect(self, proxy: DelegateProxy, opened: Opened, timeout: float | None = None) -> None:
        try:
            proxy.disconnect(opened.uid, timeout)
        except JbiError as exc:
            log.debug("the delegate will notice by the lease: %s", exc)
        proxy.close()

    def _renew(self, proxy: DelegateProxy, opened: Opened) -> float:
        term = proxy.renew(opened.lease.lease_id, self._config.lease.publisher).duration
        self._take_back(proxy, opened)
        self._ask_again(proxy, opened)
        self._tell_renewed(proxy, opened)
        return term

    def _tell_renewed(self, proxy: DelegateProxy, opened: Opened) -> None:
        """Register again what another certificate answers for."""
        for publication in [each for each in list(self._publications.values()) if each.is_renewed()]:
            try:
                self._register_again(proxy, opened, publication)
            except JbiError as exc:
                publication.renew_again()
                log.warning("%s: the new certificate of %s is told later: %s", self._name, publication.uid, exc)
                return

    def _ask_again(self, proxy: DelegateProxy, opened: Opened) -> None:
        """Register what the delegate has refused: there may be room by now."""
        for uid in list(self._refusals):
            publication = self._publications.get(uid)
            if publication is None:
                continue
            try:
                stands = self._register_again(proxy, opened, publication)
            except WireError as exc:
                log.debug("%s: registration %s is asked for again later: %s", self._name, uid, exc)
                return
            except JbiError as exc:
                log.debug("%s: registration %s is refused still: %s", self._name, uid, exc)
                continue
            if stands:
                log.warning("%s: the delegate takes registration %s again", self._name, uid)
                self._sender.push()

    def _register_again(self, proxy: DelegateProxy, opened: Opened, publication: Publication) -> bool:
        """Whether that counts: not if we have come back elsewhere meanwhile, nor if it has ended. Raises the delegate's
        errors or WireError."""
        granted = proxy.register(opened.uid, publication.request(), publication.uid, publication.number)
        with self._lock:
            if self._opened is not opened:
                return False
            if publication.uid not in self._publications:
                self._abandon(publication, -ABANDONED_SECONDS)
                return False
            self._grant(publication, granted)
            if self._refusals.pop(publication.uid, None) is not None:
                self._queue.release(publication.number)
            return True

    def _take_back(self, proxy: DelegateProxy, opened: Opened) -> None:
        """Take back what may be registered although we were not told."""
        now = time.monotonic()
        with self._lock:
            if self._opened is not opened:
                return
            due = [uid for uid, since in self._abandoned.items() if now - since >= ABANDONED_SECONDS]
        for uid in due:
            try:
                proxy.unregister(opened.uid, uid)
            except UnknownUidError:
                pass  # it was not, or is not any more
            except JbiError as exc:
                log.debug("%s: registration %s is taken back later: %s", self._name, uid, exc)
                return
            with self._lock:
                if self._opened is opened:
                    self._abandoned.pop(uid, None)

    def _lease_lost(self, opened: Opened, why: JbiError) -> None:
        with self._lock:
            if self._opened is not opened:
                return  # that of a connection that we have given up
            self._gone = True
        log.warning("%s lost its lease at the delegate, connecting again: %s", self._name, why)

    def _attached(self) -> tuple[DelegateProxy, Opened]:
        with self._lock:
            if self._proxy is None or self._opened is None:
                raise WireError("not connected to the delegate")
            return self._proxy, self._opened

    def _run(self) -> None:
        backoff = Backoff(BACKOFF_FIRST, BACKOFF_MOST)
        while not self._stopping.is_set():
            began, taken = time.monotonic(), self._taken
            with guarded("publisher connection"):
                try:
                    if self._gone:
                        self._come_back()
                    self._send_on_a_line()
                except (UnknownUidError, UnknownLeaseError) as exc:
                    log.info("%s: the delegate has forgotten us: %s", self._name, exc)
                    self._gone = True
                except WireError as exc:
                    if self._stopping.is_set():
                        return
                    log.debug("%s: data connection ended: %s", self._name, exc)
                    self._tell_away(exc)
                    if self._is_forgotten():
                        self._gone = True
                except (DelegateNotFoundError, LookupNotFoundError) as exc:
                    self._tell_away(exc)
                    log.info("%s: waiting for the delegate: %s", self._name, exc)
                except AccessDeniedError as exc:
                    if not self._refusals:
                        log.error("%s: the delegate refuses us: %s", self._name, exc)
                    with self._lock:
                        self._refusals = dict.fromkeys(self._publications, exc)  # who publishes is told
                except JbiError as exc:
                    if not self._refusals:
                        log.error("%s: the delegate refuses us: %s", self._name, exc)
            if self._taken > taken or time.monotonic() - began > BACKOFF_MOST:
                backoff.reset()
            self._stopping.wait(backoff.pause())

    def _send_on_a_line(self) -> None:
        proxy, opened = self._attached()
        token = proxy.open_publications(opened.uid)
        link = self._config.link
        sock = dial(proxy.ref, DATA, self._security, self._config.lookup.timeout, window=link.window)
        try:
            line = Line(sock)
            hello = Hello.of(token, compression=link.compression)
            position = greet(line, hello)
            self._tell_away(None)
            if opened.lease.duration < self._config.lease.publisher:  # until now it was short
                self._renewals.hasten(self)
            self._sender.run(line, position)
        finally:
            sock.close()

    def _is_forgotten(self) -> bool:
        """Whether another delegate stands where ours was, or ours is not there any more."""
        proxy, opened = self._attached()
        try:
            proxy.renew(opened.lease.lease_id, self._config.lease.publisher)
        except UnknownLeaseError:
            return True
        except WireError:
            try:
                self._note_in_vain(proxy.ref.service_id)
                return self._find(self._tried, self._stopping.is_set).service_id != proxy.ref.service_id
            except JbiError:
                return False  # nobody there yet: try again, ours may come back
        except JbiError:
            return False
        return False

    def _note_in_vain(self, service_id: str) -> None:
        self._tried[service_id] = time.monotonic()
        if len(self._tried) > TRIED_MOST:
            del self._tried[min(self._tried, key=self._tried.__getitem__)]

    def _tell_away(self, why: JbiError | None) -> None:
        """Say once that no delegate answers, to the log when that lasts, and once that one does again (None)."""
        if why is None:
            if self._is_told_away:
                log.warning("%s: a delegate answers again", self._name)
            was_away, self._away_since, self._is_told_away = self._away_since, 0.0, False
            if was_away:
                self._away("")
            return
        if not self._away_since:
            self._away_since = time.monotonic()
            self._away(why.message)
        if not self._is_told_away and time.monotonic() - self._away_since >= AWAY_SECONDS:
            self._is_told_away = True
            log.warning("%s: no delegate answers; %d objects wait for one", self._name, self._queue.waiting)

    def _come_back(self) -> None:
        self._renewals.remove(self)
        item = self._find(self._tried, self._stopping.is_set)
        try:
            self._connect(item)
        except WireError:
            self._note_in_vain(item.service_id)
            raise
        self._tried.clear()
        if self._stopping.is_set():
            self._leave(time.monotonic() + LEAVE_SECONDS)

    # -- acknowledgements ---------------------------------------------------------------------------------------

    def _acked(self, count: int, note: memoryview) -> None:
        self._taken += count
        taken = NOTHING
        try:
            if note:
                taken = _decoded(note)
                self._tell_refusals(taken.refusals)
        finally:
            self._queue.acknowledged(count)  # behind that: who has flushed has been told
            if taken.done:
                self._queue.done(taken.done)
            if taken.importance or taken.strict is not None:
                self._queue.weigh(taken.importance, taken.strict)

    def _tell_refusals(self, refusals: Refusals) -> None:
        for uid, error in refusals:
            rebuilt = rebuild(error)
            if uid in self._publications:
                log.error("%s: a lookup service does not list registration %s: %s", self._name, uid, rebuilt)
            else:
                self.refusals += 1
                log.warning("%s: the delegate refused object %s: %s", self._name, uid, rebuilt, extra={"object": uid})
            self._tell(uid, rebuilt)

    def _tell(self, uid: str, error: JbiError) -> None:
        if self._refused is None:
            return
        try:
            called(self._refused, uid, error)
        except Exception:  # an application's mistake must not end its publishing
            log.exception("%s: the callback for what is refused failed", self._name)


def _decoded(note: memoryview) -> Taken:
    try:
        return decoder_of(Taken).decode(note)
    except (msgspec.DecodeError, UnicodeDecodeError) as exc:
        raise ProtocolError(f"bad acknowledgement: {exc}") from exc
