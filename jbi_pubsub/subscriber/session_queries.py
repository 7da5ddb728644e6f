"""Queries of a session: asked at its delegate, each by a part of a query, until they end or are not wanted any more."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final

from jbi_pubsub.core.errors import (
    AccessDeniedError,
    BackPressureError,
    JbiError,
    ProtocolError,
    UnknownLeaseError,
    UnknownUidError,
    WireError,
    WireTimeoutError,
)
from jbi_pubsub.core.history import Progress
from jbi_pubsub.core.info_object import Cause, InfoObject
from jbi_pubsub.core.signing import SigningKey
from jbi_pubsub.protocol.replies import QueryEnd, QueryOpened
from jbi_pubsub.protocol.requests import QueryRequest, SubscriptionRequest

from .coverage import ArchiveAnswer, ArchivePlace
from .first_level import Fitness
from .flows import DeliveryFlow, FlowTable
from .link import SessionLink
from .listeners import ListenerPool
from .queue import Consumer
from .remote import WITHDRAWN
from .subscription import LocalSubscription

log = logging.getLogger("jbi_pubsub.subscriber")


KEY_SECONDS: Final = 2.0
"""For a delegate to say what a registration signs with."""
REPLACED_MOST: Final = 5
"""So often a part is asked of another server at its address."""


class QueryPart(LocalSubscription):
    """Results of one archive for a query."""

    def __init__(
        self,
        uid: str,
        request: QueryRequest,
        place: ArchivePlace,
        listeners: ListenerPool,
        fitness: Fitness | None = None,
    ) -> None:
        super().__init__(
            SubscriptionRequest(
                uid,
                payload_filter=request.payload_filter,
                namespaces=request.namespaces,
                bound=request.bound,
                qos=request.qos,
            ),
            None,
            listeners,
        )
        self.fitness = fitness
        self.asked = request
        self.place = place
        self.address = place.address
        self.at: SessionQueries | None = None
        self.opened: QueryOpened | None = None
        self.ended: QueryEnd | None = None
        self.error: JbiError | None = None
        self.is_late = False
        """Whether the time of the query was over before the archive had told all."""
        self.tell: Callable[[], None] = lambda: None
        """Called when something has come or changed."""
        self.ask_at: Callable[[str], None] = lambda _: None
        """Has the server of that id be asked, at the same address."""
        self._replaced = 0

    def add(self, objects: Sequence[InfoObject], consumed: Consumer) -> None:
        """Results have come."""
        with self.queue.changed:
            dropped = len(objects) if self.queue.is_closed else 0
            if not dropped:
                self.arrived += len(objects)
                self.queue.waiting.extend((obj, consumed) for obj in objects)
        if dropped:
            consumed(dropped)
        else:
            self.tell()

    def open(self, opened: QueryOpened) -> None:
        """The archive has begun."""
        self.opened = opened
        self.tell()

    def finish(self, how: QueryEnd) -> None:
        """The archive has told the end, behind its last result."""
        if how.state == "timed_out":
            self.expire()
        self.ended = how
        if how.state in ("failed", "cancelled"):
            self.error = JbiError(how.error or f"the query was {how.state} at {self.address}")
        self.tell()

    def fail(self, why: JbiError) -> None:
        """Nothing comes any more, for want of an answer or by one."""
        if self.ended is None and self.error is None:
            self.error = why
            self.tell()

    def expire(self) -> None:
        """The time of the query is over, by its clock or by the archive's."""
        self.is_late = True
        self.fail(WireTimeoutError("not all has come before the time of the query was over"))

    def replaced(self, server: str) -> None:
        """Another server answers there, of that id: it is asked. Whether its archive is the one that was meant, it says
        itself."""
        self._replaced += 1
        if self._replaced > REPLACED_MOST:
            self.fail(WireError(f"another server answers at {self.address} each time"))
        elif not self.is_needless:
            self.ask_at(server)
            if self.is_needless and self.at is not None:  # by now
                self.at.unask(self)

    @property
    def is_over(self) -> bool:
        """Whether nothing comes behind what waits."""
        return self.ended is not None or self.error is not None

    @property
    def is_needless(self) -> bool:
        """Whether it is over, or nobody takes what comes."""
        return self.is_over or self.queue.is_closed

    @property
    def answer(self) -> ArchiveAnswer:
        """Outcome so far."""
        if self.opened is None and self.error is None:
            return ArchiveAnswer(self.address, frozenset())
        told = self.opened.incarnations if self.opened is not None else ()
        why = self.error.message if self.error is not None else ""
        lacks = [self.ended.error] if self.ended is not None and self.ended.state == "finished" else []
        if bad := self.losses.by_cause[Cause.BAD_SIGNATURE]:
            lacks.append(f"objects without a valid signature: {bad}")
        return ArchiveAnswer(self.address, self.place.listed, told, why, "; ".join(filter(None, lacks)))

    def progress(self) -> Progress:
        """Progress of the archive: it is asked."""
        if (ended := self.ended) is not None:
            return Progress(ended.state, ended.matched, ended.candidates, ended.verified, seconds=ended.seconds)
        if self.error is None and self.at is not None and self.opened is not None:
            with suppress(WireError):
                return self.at.progress(self) or Progress()
        return Progress("failed" if self.error is not None else "running")

    def signing_key(self, uid: str) -> SigningKey | None:
        """Key that the archive knows of a registration: it is asked."""
        return self.at.signing_key(uid) if self.at is not None and self.opened is not None else None

    def pop(self) -> tuple[InfoObject, Consumer] | None:
        """The first result that waits, without waiting."""
        with suppress(IndexError):
            return self.queue.waiting.popleft()
        return None


class SessionQueries:
    """See the module. The link's condition covers all state."""

    def __init__(self, link: SessionLink, flows: FlowTable) -> None:
        self.parts: dict[str, QueryPart] = {}
        """Those that are asked here, and have not ended."""
        self.to_cancel: dict[int, str] = {}
        """Numbers of those that are not wanted any more and were not cancelled yet, with their session."""
        self._link = link
        self._flows = flows

    def unask(self, part: QueryPart) -> None:
        """Want it no more. The delegate is told by the session's thread."""
        link = self._link
        with link.changed:
            self.parts.pop(part.uid, None)
            number = part.opened.number if part.opened is not None else 0
            if link.opened is not None and self._flows.by_number.pop(number, None) is not None:
                self.to_cancel[number] = link.opened.uid
                link.is_dirty = True
            link.changed.notify_all()

    def progress(self, part: QueryPart) -> Progress | None:
        """The progress of a query there. Raises WireError."""
        with self._link.changed:
            session_id = self._link.session_id
        if part.opened is None or not session_id:
            return None
        try:
            return self._link.history.progress(session_id, part.opened.number)
        except UnknownUidError:  # its end is on the way
            return None

    def signing_key(self, uid: str) -> SigningKey | None:
        """Key that the delegate knows of a registration; None: none, or it does not answer."""
        try:
            return self._link.proxy.signing_key(uid, KEY_SECONDS)
        except JbiError as exc:
            log.debug("%s does not say what %s signs with: %s", self._link.name, uid, exc)
            return None

    def unopened(self) -> list[QueryPart]:
        """Under the lock: those that the delegate has not begun."""
        return [part for part in self.parts.values() if part.opened is None]

    def reconcile(self, session_id: str) -> None:
        """Cancel and open at the delegate what is to be."""
        with self._link.changed:
            self.to_cancel, to_cancel = {}, self.to_cancel
        for number, session in to_cancel.items():
            if session == session_id:
                try:
                    self._link.history.cancel_query(session_id, number)
                except JbiError as exc:  # it ends with the session
                    log.debug("%s: query %d is not cancelled: %s", self._link.name, number, exc)
        with self._link.changed:
            waiting = self.unopened()
        for part in waiting:
            try:
                opened = self._link.history.open_query(session_id, part.asked, self._link.claims)
            except (UnknownUidError, UnknownLeaseError):
                raise  # the session is not known any more
            except WireError as exc:
                if not isinstance(exc, (ProtocolError, BackPressureError)):
                    raise
                self.fail(part, exc)
            except JbiError as exc:
                self.fail(part, exc)
            else:
                self._begin(session_id, part, opened)

    def fail(self, part: QueryPart, why: JbiError) -> None:
        """Nothing comes for it any more."""
        with self._link.changed:
            self.parts.pop(part.uid, None)
            self._link.changed.notify_all()
        part.fail(why)

    def fail_unopened(self, why: JbiError) -> None:
        """Nobody listens there: the others that are asked are not to wait for it."""
        with self._link.changed:
            unopened = self.unopened()
        for part in unopened:
            self.fail(part, why)

    def take_all(self) -> list[QueryPart]:
        """Under the lock: all of them, which are not asked here any more."""
        taken, self.parts = list(self.parts.values()), {}
        return taken

    def lose(self) -> list[QueryPart]:
        """Under the lock: those that have begun in a session that is lost."""
        begun = [part for part in self.parts.values() if part.opened is not None]
        for part in begun:
            del self.parts[part.uid]
            if part.opened is not None:
                self._flows.by_number.pop(part.opened.number, None)
        return begun

    def end(self, flow: DeliveryFlow, how: QueryEnd) -> None:
        """All results of a query have come. Raises ProtocolError for what is no query."""
        part = flow.subscription
        if not isinstance(part, QueryPart):
            raise ProtocolError("the end of a query for a subscription")
        with self._link.changed:
            self._flows.by_number.pop(flow.number, None)
            self.parts.pop(part.uid, None)
        part.finish(how)

    def expel(self, flow: DeliveryFlow) -> bool:
        """The delegate has ended it; whether it is a query."""
        if not isinstance(flow.subscription, QueryPart):
            return False
        with self._link.changed:
            self._flows.by_number.pop(flow.number, None)
        self.fail(flow.subscription, AccessDeniedError(WITHDRAWN))
        return True

    def _begin(self, session_id: str, part: QueryPart, opened: QueryOpened) -> None:
        link, flows = self._link, self._flows
        flow = DeliveryFlow(part, opened.number, flows)
        flow.is_placed, flow.archive = True, next(iter(opened.incarnations), "")
        with link.changed:
            if not link.is_open(session_id):
                return  # it was lost meanwhile: the query is asked in the next one
            flows.highest = max(flows.highest, opened.number)
            if part.uid in self.parts:
                flows.by_number[flow.number] = flow
            else:  # it was cancelled meanwhile
                self.to_cancel[opened.number] = session_id
                link.is_dirty = True
            part.open(opened)
            link.changed.notify_all()
