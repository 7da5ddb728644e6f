"""Queries of a session: asked at its delegate, each by a part of a query, until they end or are not wanted any more."""

from __future__ import annotations

import logging

from jbi_pubsub.core.errors import (
    AccessDeniedError,
    BackPressureError,
    JbiError,
    ProtocolError,
    UnknownLeaseError,
    UnknownUidError,
    WireError,
)
from jbi_pubsub.core.history import Progress
from jbi_pubsub.protocol.replies import Finished, QueryOpened

from .flows import DeliveryFlow, FlowTable
from .link import SessionLink
from .query import QueryPart
from .remote import WITHDRAWN

log = logging.getLogger("jbi_pubsub.subscriber")


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

    def end(self, flow: DeliveryFlow, how: Finished) -> None:
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
