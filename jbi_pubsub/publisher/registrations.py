"""Attachment to a delegate, and the registrations there, a record each, which stay in step with what it has.

Come back after it has forgotten us, everything is registered again under the same ids and numbers; what it refuses then
is held back in the queue, and asked for again with each renewal of the lease.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Mapping
from typing import Final

from jbi_pubsub.core.config import Config
from jbi_pubsub.core.errors import JbiError, UnknownUidError, WireError
from jbi_pubsub.core.wire import ServiceRef
from jbi_pubsub.core.wire.endpoint import Security
from jbi_pubsub.core.wire.sender import Sender
from jbi_pubsub.protocol.replies import OpenReply, Registered
from jbi_pubsub.protocol.services import Claims, DelegateProxy

from .lanes import Lanes
from .publication import LocalPublication
from .states import (
    CONNECTION,
    REMOTE_REGISTRATION,
    UNATTACHED,
    ConnectionEvent,
    ConnectionState,
    RegistrationEvent,
    RegistrationState,
)

log = logging.getLogger("jbi_pubsub.publisher")

ABANDONED_SECONDS: Final = 10.0
"""Until a registration that was not answered to is taken back: longer than a delegate needs for one."""
ASK_AGAIN_SECONDS: Final = 0.1
"""Until a delegate that has forgotten us is asked again: we come back meanwhile."""
AT_ONCE: Final = -math.inf

_S, _E = RegistrationState, RegistrationEvent


class DelegateAttachment:
    """A lease at a delegate. Each call raises the delegate's errors or WireError."""

    def __init__(self, ref: ServiceRef, config: Config, security: Security, name: str) -> None:
        """Connects. Raises the delegate's errors or WireError."""
        self.ref = ref
        self.proxy: Final = DelegateProxy(ref, security, timeout=config.lookup.timeout)
        try:
            claims = Claims(config.client.user, config.client.role)
            self.opened: OpenReply = self.proxy.connect(name, config.lease.publisher, claims)
        except BaseException:
            self.proxy.close()
            raise

    def register(self, publication: LocalPublication) -> Registered:
        """Register, under the publication's number."""
        return self.proxy.register(self.opened.uid, publication.request(), publication.uid, publication.number)

    def unregister(self, uid: str) -> None:
        """Take a registration back."""
        self.proxy.unregister(self.opened.uid, uid)

    def renew(self, duration: float) -> float:
        """Renew the lease; its seconds."""
        return self.proxy.renew(self.opened.lease.lease_id, duration).duration

    def leave(self, timeout: float | None = None) -> None:
        """End it, within `timeout` seconds. Raises nothing."""
        try:
            self.proxy.disconnect(self.opened.uid, timeout)
        except JbiError as exc:
            log.debug("the delegate will notice at the end of the lease: %s", exc)
        self.proxy.close()


class DelegateLink:
    """State of a connection, and its attachment. `lock` covers both, and what is registered there. The delegate is
    never called under it: what was asked for is looked at again when the answer has come, as we may have come back
    elsewhere meanwhile, or somebody has ended the registration."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self._changed = threading.Condition(self.lock)
        self.state = CONNECTION.initial
        self.attachment: DelegateAttachment | None = None

    @property
    def has_left(self) -> bool:
        """Whether the application has closed."""
        return self.state is ConnectionState.LEFT

    def attached(self) -> DelegateAttachment:
        """The attachment that counts. Raises WireError."""
        attachment = self.attachment
        if attachment is None:
            raise WireError("not connected to the delegate")
        return attachment

    def happen(
        self, event: ConnectionEvent, attachment: DelegateAttachment | None = None
    ) -> tuple[ConnectionState, ConnectionState]:
        """Go on to the state that follows, which is given with the one before; of an attachment that does not count any
        more nothing happens."""
        with self.lock:
            before = self.state
            if attachment is None or attachment is self.attachment:
                self.state = CONNECTION.after(before, event)
                self._changed.notify_all()
            return before, self.state

    def attach(self, attachment: DelegateAttachment) -> DelegateAttachment | None:
        """Have another one count; the one before."""
        with self.lock:
            before, self.attachment = self.attachment, attachment
            self.happen(ConnectionEvent.CONNECT)
            return before

    def pause(self, seconds: float) -> bool:
        """Wait so long, or until the application closes: whether it has."""
        with self.lock:
            return self._changed.wait_for(lambda: self.has_left, seconds)


class RemoteRegistration:
    """A registration at the delegate."""

    __slots__ = ("publication", "since", "state", "why")

    def __init__(self, publication: LocalPublication) -> None:
        self.publication = publication
        self.state = REMOTE_REGISTRATION.initial
        self.why: JbiError | None = None
        """The reason of its refusal."""
        self.since: float | None = None
        """When the delegate was asked for it last (monotonic) if it may have it although we don't know, or want it."""

    @property
    def is_wanted(self) -> bool:
        """Whether it is to stand there."""
        return self.state in (_S.OPEN, _S.REFUSED)

    def happen(self, event: RegistrationEvent, why: JbiError | None = None) -> None:
        """Go on to the state that follows."""
        self.state = REMOTE_REGISTRATION.after(self.state, event)
        self.why = why


class RemoteRegistrations:
    """All registrations of a connection. The link's lock covers them."""

    def __init__(self, link: DelegateLink, queue: Lanes, sender: Sender, *, name: str, seconds: float) -> None:
        """`sender` sends what is in `queue`; a registration waits `seconds` for us to come back."""
        self._link = link
        self._queue = queue
        self._sender = sender
        self._name = name
        self._seconds = seconds
        self._records: dict[str, RemoteRegistration] = {}
        self._last_number = 0

    def __contains__(self, uid: str) -> bool:
        record = self._records.get(uid)
        return record is not None and record.is_wanted

    def wanted(self) -> dict[str, LocalPublication]:
        """Those that are to stand, by id."""
        with self._link.lock:
            return {uid: each.publication for uid, each in self._records.items() if each.is_wanted}

    def refusals(self) -> list[str]:
        """Ids of those that are refused."""
        with self._link.lock:
            return [uid for uid, each in self._records.items() if each.state is _S.REFUSED]

    def refusal(self, uid: str) -> JbiError | None:
        """Why one is refused; None: it is not."""
        record = self._records.get(uid)
        return record.why if record is not None and record.state is _S.REFUSED else None

    def register(self, publication: LocalPublication) -> None:
        """Register at the delegate; if it has forgotten us, when we have come back. Raises the delegate's errors or
        WireError."""
        deadline = time.monotonic() + self._seconds
        while True:
            try:
                if self._register(publication):
                    return
                raise UnknownUidError("registered at a delegate that is not ours any more", uid=publication.uid)
            except JbiError as exc:
                comes_back = isinstance(exc, WireError) and self._link.state in UNATTACHED
                if not (comes_back or isinstance(exc, UnknownUidError)) or self._is_over(deadline):
                    self._give_up_asking(publication.uid, may_stand=isinstance(exc, WireError))
                    raise
                log.info(
                    "%s: the delegate does not know this publisher any more; it registers again later: %s",
                    self._name,
                    exc,
                )

    def _is_over(self, deadline: float) -> bool:
        return time.monotonic() >= deadline or self._link.pause(ASK_AGAIN_SECONDS)

    def _register(self, publication: LocalPublication) -> bool:
        with self._link.lock:
            attachment = self._link.attached()
            record = self._records.setdefault(publication.uid, RemoteRegistration(publication))
            record.happen(_E.ASK, record.why)
            if record.state is _S.ASKED:
                self._last_number += 1  # never again: the answer may be lost
                publication.number = self._last_number
            else:
                publication.number = record.publication.number  # under which objects are queued
        return self._ask(attachment, publication)

    def _ask(self, attachment: DelegateAttachment, publication: LocalPublication) -> bool:
        """Whether the answer counts: not if we have come back elsewhere meanwhile, nor if it has ended. Raises the
        delegate's errors or WireError."""
        try:
            granted = attachment.register(publication)
        except WireError:
            if self._link.attachment is attachment:
                raise
            return False  # its connections were closed when we came back
        with self._link.lock:
            if self._link.attachment is not attachment:
                return False
            record = self._records.get(publication.uid)
            if record is None or record.state in (_S.ENDING, _S.ABANDONED):
                self._abandon_at_once(publication)
                return False
            was_refused = record.state is _S.REFUSED
            record.happen(_E.GRANT)
            record.publication, record.since = publication, None
            terms = publication.terms
            self._queue.grant(publication.number, granted, reliable=terms.reliable, expiration=terms.expiration)
            if was_refused:
                self._queue.release(publication.number)
            return True

    def _abandon_at_once(self, publication: LocalPublication) -> None:
        """Under the lock: it stands there, and is not wanted any more."""
        record = self._records.get(publication.uid)
        if record is None:
            record = self._records[publication.uid] = RemoteRegistration(publication)
            record.happen(_E.ABANDON)
        record.since = AT_ONCE

    def abandon(self, uid: str) -> None:
        """Nobody will know of a registration that is being made: the delegate, which may have it, is told later."""
        with self._link.lock:
            record = self._records.get(uid)
            if record is not None and (record.state is _S.ASKED or record.is_wanted):
                self._queue.forget(record.publication.number)
                record.since = time.monotonic()
                self._end(record)

    def _give_up_asking(self, uid: str, *, may_stand: bool) -> None:
        with self._link.lock:
            record = self._records.get(uid)
            if record is not None and record.state is _S.ASKED:
                if may_stand:
                    record.since = time.monotonic()
                self._end(record)

    def _end(self, record: RemoteRegistration) -> None:
        """Under the lock: it has ended for us, and at the delegate unless that may have it behind our back."""
        record.happen(_E.END if record.since is None else _E.ABANDON)
        if REMOTE_REGISTRATION.is_final(record.state):
            del self._records[record.publication.uid]

    def unregister(self, publication: LocalPublication) -> None:
        """Take a registration back. Raises the delegate's errors or WireError."""
        while True:
            with self._link.lock:
                attachment = self._link.attached()
                record = self._records.get(publication.uid)
                if record is not None and record.is_wanted:
                    record.happen(_E.UNWANT, record.why)  # now: nobody registers it again behind our back
            try:
                attachment.unregister(publication.uid)
            except UnknownUidError:
                pass  # gone already: that answer was lost; or we are unknown
            except JbiError:
                with self._link.lock:
                    if self._link.attachment is attachment:
                        if record is not None and record.state is _S.ENDING:
                            record.happen(_E.KEEP if record.why is None else _E.REFUSE, record.why)
                        raise
            with self._link.lock:
                if self._link.attachment is attachment:  # else there as well
                    self._forget(publication, record)
                    if record is not None and record.state is _S.ENDING:
                        self._end(record)
                    return

    def _forget(self, publication: LocalPublication, record: RemoteRegistration | None) -> None:
        is_refused = record is not None and record.why is not None
        if lost := self._queue.forget(publication.number, drops=is_refused):
            log.warning("%s: %d objects of %s are lost: it was refused", self._name, lost, publication.uid)

    def give_up(self, publication: LocalPublication) -> None:
        """Take a registration back, as soon as the delegate can be told."""
        try:
            self.unregister(publication)
        except WireError as exc:
            log.info("%s: registration %s is withdrawn later: %s", self._name, publication.uid, exc)
            with self._link.lock:
                record = self._records.get(publication.uid)
                self._forget(publication, record)
                if record is not None and record.is_wanted:
                    record.since = time.monotonic()
                    self._end(record)

    def refuse_all(self, why: JbiError) -> None:
        """The delegate refuses us."""
        with self._link.lock:
            for record in self._records.values():
                if record.is_wanted:
                    record.happen(_E.REFUSE, why)

    # -- coming back --------------------------------------------------------------------------------------------

    def move(self, attachment: DelegateAttachment) -> DelegateAttachment | None:
        """Have all registrations stand there, and send there from then on; instead of where. Those that the delegate
        refuses, for reasons of their own, are asked for again later; unless it is all. Raises its errors or
        WireError."""
        asked: dict[str, LocalPublication] = {}
        refusals: dict[str, JbiError] = {}
        granted: dict[str, Registered] = {}
        while True:
            with self._link.lock:
                new = {uid: each for uid, each in self.wanted().items() if uid not in asked}
                if not new:
                    return self._take_over(attachment, asked, refusals, granted)
            for uid, publication in new.items():
                if self._link.has_left:
                    raise WireError("left in the middle of a come-back")
                try:
                    granted[uid] = attachment.register(publication)
                except (WireError, UnknownUidError):
                    raise
                except JbiError as exc:
                    if self.refusal(uid) is None:
                        log.error("%s: the delegate refuses registration %s: %s", self._name, uid, exc)
                    refusals[uid] = exc
            asked |= new
            if refusals and len(refusals) == len(asked):
                self._follow({uid: why for uid, why in refusals.items() if why.is_final})  # who publishes is told
                raise next(iter(refusals.values()))

    def _take_over(
        self,
        attachment: DelegateAttachment,
        asked: Mapping[str, LocalPublication],
        refusals: Mapping[str, JbiError],
        granted: Mapping[str, Registered],
    ) -> DelegateAttachment | None:
        """Under the lock: what is refused is held back before anybody can end it."""
        before = self._link.attach(attachment)
        for record in list(self._records.values()):
            record.since = None  # what was there has ended with the connection of before
            if record.state is _S.ABANDONED:
                self._end(record)
        for uid in asked:
            if uid not in self:  # it was ended meanwhile, and stands in this one
                self._abandon_at_once(asked[uid])
        self._follow(refusals)
        self._sender.forget_all()
        lost = -self._queue.given_up
        wanted = self.wanted()
        self._queue.restart(
            {wanted[uid].number for uid in refusals if uid in wanted},
            {wanted[uid].number: answer for uid, answer in granted.items() if uid in wanted},
        )
        if lost := lost + self._queue.given_up:
            log.warning("%s: %d objects of registrations that are not reliable are lost", self._name, lost)
        return before

    def _follow(self, refusals: Mapping[str, JbiError]) -> None:
        """These are refused, and no others."""
        with self._link.lock:
            for uid, record in self._records.items():
                if record.is_wanted:
                    why = refusals.get(uid)
                    record.happen(_E.GRANT if why is None else _E.REFUSE, why)

    # -- with each renewal of the lease -------------------------------------------------------------------------

    def look_again(self, attachment: DelegateAttachment) -> None:
        """Take back what may be registered although we were not told; register what was refused, as there may be room
        by now, and what another certificate answers for."""
        self._take_back(attachment)
        for uid in self.refusals():
            publication = self.wanted().get(uid)
            if publication is None:
                continue
            try:
                stands = self._ask(attachment, publication)
            except WireError as exc:
                log.debug("%s: registration %s is asked for again later: %s", self._name, uid, exc)
                break
            except JbiError as exc:
                log.debug("%s: registration %s is refused still: %s", self._name, uid, exc)
                continue
            if stands:
                log.warning("%s: the delegate accepts registration %s again", self._name, uid)
                self._sender.push()
        for publication in [each for each in self.wanted().values() if each.is_renewed()]:
            try:
                self._ask(attachment, publication)
            except JbiError as exc:
                publication.renew_again()
                log.warning("%s: the new certificate of %s is told later: %s", self._name, publication.uid, exc)
                return

    def _take_back(self, attachment: DelegateAttachment) -> None:
        due = time.monotonic() - ABANDONED_SECONDS
        with self._link.lock:
            if self._link.attachment is not attachment:
                return
            abandoned = [each for each in self._records.values() if each.state is _S.ABANDONED]
        for record in [each for each in abandoned if each.since is not None and each.since <= due]:
            uid = record.publication.uid
            try:
                attachment.unregister(uid)
            except UnknownUidError:
                pass  # it was not, or is not any more
            except JbiError as exc:
                log.debug("%s: registration %s is withdrawn later: %s", self._name, uid, exc)
                return
            with self._link.lock:
                if self._link.attachment is attachment and record.state is _S.ABANDONED:
                    record.since = None
                    self._end(record)
