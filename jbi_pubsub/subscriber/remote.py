"""Subscriptions as they are at one delegate, as far as the subscriber knows: a state each, changed by the table alone.

Pure: the session's lock covers all of it, and whoever calls acts on what is returned after that lock.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from enum import Enum, auto
from typing import Final

from jbi_pubsub.core.errors import AccessDeniedError, JbiError
from jbi_pubsub.core.state import StateTable

from .flows import DeliveryFlow, FlowTable
from .subscription import LocalSubscription


class RemoteState(Enum):
    """States of a subscription at a delegate."""

    WANTED = auto()
    """Wanted, and to be asked for."""
    ASKED = auto()
    """The delegate is being asked."""
    UNSURE = auto()
    """The delegate was asked, and has not answered: it may stand there or not."""
    ACTIVE = auto()
    AMENDING = auto()
    """Standing, while the delegate was asked for other terms."""
    REFUSED = auto()
    LOST = auto()
    """Standing in a session that is lost, which it has not been told yet."""
    DROPPED = auto()
    """Not wanted any more, while the delegate, which was asked for it, has not answered yet."""
    ENDED = auto()


class RemoteEvent(Enum):
    """Events in the life of a subscription at a delegate."""

    UNWANT = auto()
    ASK = auto()
    GRANT = auto()
    KEEP = auto()
    """New terms are refused: it stands as before."""
    REFUSE = auto()
    MISS = auto()
    """No answer has come."""
    LOSE = auto()
    """The session is lost."""
    TELL = auto()
    """Losses with the session are told."""
    EXPEL = auto()
    LAPSE = auto()
    """The lease of mail has ended."""
    RETRY = auto()


_S, _E = RemoteState, RemoteEvent

WITHDRAWN: Final = "access was withdrawn"
"""Said of a subscription or query that the delegate has ended."""

REMOTE_SUBSCRIPTION: Final = StateTable(
    "subscription at a delegate",
    _S.WANTED,
    {
        (_S.WANTED, _E.ASK): _S.ASKED,
        (_S.WANTED, _E.UNWANT): _S.ENDED,
        (_S.WANTED, _E.REFUSE): _S.REFUSED,
        (_S.ASKED, _E.GRANT): _S.ACTIVE,
        (_S.ASKED, _E.REFUSE): _S.REFUSED,
        (_S.ASKED, _E.MISS): _S.UNSURE,
        (_S.ASKED, _E.UNWANT): _S.DROPPED,
        (_S.ASKED, _E.LOSE): _S.LOST,
        (_S.UNSURE, _E.ASK): _S.ASKED,
        (_S.UNSURE, _E.UNWANT): _S.DROPPED,
        (_S.UNSURE, _E.LOSE): _S.WANTED,
        (_S.ACTIVE, _E.ASK): _S.AMENDING,
        (_S.ACTIVE, _E.UNWANT): _S.ENDED,
        (_S.ACTIVE, _E.LOSE): _S.LOST,
        (_S.ACTIVE, _E.EXPEL): _S.REFUSED,
        (_S.ACTIVE, _E.LAPSE): _S.WANTED,
        (_S.AMENDING, _E.ASK): _S.AMENDING,
        (_S.AMENDING, _E.GRANT): _S.ACTIVE,
        (_S.AMENDING, _E.KEEP): _S.ACTIVE,
        (_S.AMENDING, _E.REFUSE): _S.REFUSED,
        (_S.AMENDING, _E.MISS): _S.AMENDING,
        (_S.AMENDING, _E.UNWANT): _S.DROPPED,
        (_S.AMENDING, _E.LOSE): _S.LOST,
        (_S.AMENDING, _E.EXPEL): _S.ASKED,  # the answer is still to come
        (_S.AMENDING, _E.LAPSE): _S.ASKED,
        (_S.REFUSED, _E.RETRY): _S.WANTED,
        (_S.REFUSED, _E.UNWANT): _S.ENDED,
        (_S.LOST, _E.TELL): _S.WANTED,
        (_S.LOST, _E.REFUSE): _S.REFUSED,
        (_S.LOST, _E.UNWANT): _S.ENDED,
        (_S.DROPPED, _E.ASK): _S.DROPPED,  # so that it can be cancelled
        (_S.DROPPED, _E.GRANT): _S.ENDED,
        (_S.DROPPED, _E.REFUSE): _S.ENDED,
        (_S.DROPPED, _E.MISS): _S.DROPPED,
        (_S.DROPPED, _E.LOSE): _S.ENDED,
    },
)

_UNWANTED: Final = frozenset({_S.DROPPED, _S.ENDED})
_STANDS: Final = frozenset({_S.ACTIVE, _S.AMENDING})
_OUTSTANDING: Final = frozenset({_S.WANTED, _S.ASKED, _S.UNSURE, _S.LOST})
_TO_ASK: Final = frozenset({_S.WANTED, _S.ASKED, _S.UNSURE, _S.AMENDING, _S.DROPPED})


class RemoteSubscription:
    """A subscription at the delegate."""

    __slots__ = ("expelled", "flow", "is_expected", "state", "subscription", "was_refused", "why")

    def __init__(self, subscription: LocalSubscription) -> None:
        self.subscription = subscription
        self.state = REMOTE_SUBSCRIPTION.initial
        self.flow: DeliveryFlow | None = None
        """Its objects, while it stands; and when it is lost, until that is told."""
        self.expelled = 0
        """The number under which the delegate has ended it since it was asked: an older answer says that it stands."""
        self.why: JbiError | None = None
        """The reason of its refusal; or, while it stands, why it is not evaluated for some registration."""
        self.is_expected = False
        """Whether it is older than what it is to stand for there: that may have had objects for it."""
        self.was_refused = False
        """Whether it was refused when it was asked for last: said once is enough."""

    def happen(self, event: RemoteEvent) -> None:
        """Go on to the state that follows."""
        self.state = REMOTE_SUBSCRIPTION.after(self.state, event)

    def ask(self) -> None:
        """The delegate is about to be asked for it."""
        self.expelled = 0
        self.happen(_E.ASK)

    def allows(self, event: RemoteEvent) -> bool:
        """Whether that can happen, to what has gone on while the delegate was asked."""
        return REMOTE_SUBSCRIPTION.allows(self.state, event)

    @property
    def stands(self) -> bool:
        """Whether the delegate has it now."""
        return self.state in _STANDS

    @property
    def may_stand(self) -> bool:
        """Whether the delegate has it now, or may have it: it has to be asked."""
        return self.stands or self.state is _S.UNSURE

    @property
    def is_wanted(self) -> bool:
        """Whether it is to stand there."""
        return self.state not in _UNWANTED

    @property
    def is_to_ask(self) -> bool:
        """Whether the delegate is to be asked for it, which nobody is doing now."""
        if self.state is _S.ACTIVE and self.flow is not None:
            return self.flow.revision != self.subscription.terms.revision
        return self.state in _TO_ASK


class RemoteSubscriptions:
    """All of one session. `flows`: those that stand have theirs there."""

    def __init__(self, flows: FlowTable) -> None:
        self.to_cancel: dict[str, str] = {}
        """Rights to cancel what the delegate has, and is to end, by the subscriptions' ids: it has not answered yet."""
        self.ending: set[str] = set()
        """Those of these that the application's thread is cancelling: meanwhile nothing is asked under their ids."""
        self._flows = flows
        self._records: dict[str, RemoteSubscription] = {}

    def __iter__(self) -> Iterator[RemoteSubscription]:
        return iter(list(self._records.values()))

    def is_empty(self) -> bool:
        """Whether nothing is to stand at the delegate, and nothing to end there."""
        return not (self._records or self.to_cancel)

    def get(self, uid: str) -> RemoteSubscription | None:
        """The subscription of that id."""
        return self._records.get(uid)

    def standing(self) -> list[DeliveryFlow]:
        """The flows of those that stand."""
        return [each.flow for each in self if each.stands and each.flow is not None]

    def is_outstanding(self) -> bool:
        """Whether the delegate has been asked, or will be, for what may stand there by now."""
        return any(each.state in _OUTSTANDING for each in self)

    def due(self) -> tuple[dict[str, str], list[RemoteSubscription]]:
        """Rights to cancel what the delegate is to end, by subscription; and those that it is to be asked for. Without
        those that another thread is ending: its call is not to end what is asked for now."""
        to_cancel = {uid: right for uid, right in self.to_cancel.items() if uid not in self.ending}
        return to_cancel, [each for each in self if each.is_to_ask and each.subscription.uid not in self.ending]

    def ask(self, records: Iterable[RemoteSubscription]) -> list[RemoteSubscription]:
        """The delegate is about to be asked for these; those of them that it is to be asked for still."""
        asked = [each for each in records if each.is_to_ask]
        for each in asked:
            each.ask()
        return asked

    def want(self, subscription: LocalSubscription, *, is_expected: bool) -> DeliveryFlow | None:
        """Have it stand there. A durable one that begins anew has the id of the former one, which may not be over; the
        flow of that which is to be cancelled, if it stood."""
        record, flow = self._records.get(subscription.uid), None
        if record is not None and record.subscription is not subscription:
            flow = self.unwant(record.subscription)  # whoever cancels it has not come here yet
        if record is None or not record.is_wanted:
            record = self._records[subscription.uid] = RemoteSubscription(subscription)
        record.is_expected = record.is_expected or is_expected
        return flow

    def unwant(self, subscription: LocalSubscription) -> DeliveryFlow | None:
        """Have it stand there no more; the flow that is to be cancelled, if it stood."""
        record = self._records.get(subscription.uid)
        if record is None or record.subscription is not subscription or not record.is_wanted:
            return None
        flow = self._end_flow(record) if record.stands else None
        record.happen(_E.UNWANT)
        self._settle(record)
        return flow

    def grant(self, record: RemoteSubscription, flow: DeliveryFlow) -> None:
        """The delegate has it now."""
        record.why = None
        self._end_flow(record)
        record.happen(_E.GRANT)
        if record.stands:
            record.flow = flow
            self._flows.by_number[flow.number] = flow
        self._settle(record)

    def refuse(self, record: RemoteSubscription, why: JbiError) -> DeliveryFlow | None:
        """The delegate does not have it; the flow that is to be cancelled, if it stands by terms that are over."""
        stood, flow = record.stands, self._end_flow(record)
        record.why = why
        record.happen(_E.REFUSE)
        self._settle(record)
        return flow if stood else None

    def lose(self, session_id: str, *, is_told: bool) -> list[DeliveryFlow]:
        """That session is lost: the flows of those that stood in it. Mail goes on by its own leases. `is_told`: of what
        may be lost they were told already."""
        lost = []
        self.to_cancel = {uid: right for uid, right in self.to_cancel.items() if right != session_id}
        for record in self:
            if not record.subscription.request.direct:
                continue
            if record.stands:
                flow = self._end_flow(record)
                lost += [flow] if flow is not None else []
                record.happen(_E.LOSE)
                if is_told:
                    record.happen(_E.TELL)
                else:
                    record.flow = flow
            elif record.state in (_S.UNSURE, _S.DROPPED):
                record.happen(_E.LOSE)
                self._settle(record)
        return lost

    def lose_granted(self, record: RemoteSubscription, flow: DeliveryFlow) -> None:
        """Note that it was granted in a session that is lost meanwhile."""
        if record.state is _S.ASKED:
            record.flow = flow
        if record.state in (_S.ASKED, _S.DROPPED):
            record.happen(_E.LOSE)
            self._settle(record)

    def take_lost(self) -> list[DeliveryFlow]:
        """The flows of all that are lost, which are about to be told so."""
        flows = []
        for record in self:
            if record.state is _S.LOST:
                record.happen(_E.TELL)
                if record.flow is not None:
                    flows.append(record.flow)
                record.flow = None
        return flows

    def expel(self, flow: DeliveryFlow) -> bool:
        """The delegate has ended it, and has told it so; whether it stood."""
        if (record := self._stop(flow, _E.EXPEL)) is not None:
            record.expelled = flow.number
            record.why, record.was_refused = AccessDeniedError(WITHDRAWN), True
        return record is not None

    def lapse(self, flow: DeliveryFlow) -> bool:
        """The lease of its mail has ended; whether it stood."""
        return self._stop(flow, _E.LAPSE) is not None

    def retry(self) -> None:
        """Those that are refused are asked for again."""
        for record in self:
            if record.state is _S.REFUSED:
                record.happen(_E.RETRY)

    def confirm(self, uid: str, right: str) -> None:
        """The delegate has answered to the end of it."""
        if self.to_cancel.get(uid) == right:
            del self.to_cancel[uid]

    def miss(self, records: Iterable[RemoteSubscription]) -> None:
        """No answer has come for these."""
        for record in records:
            if record.allows(_E.MISS):
                record.happen(_E.MISS)

    def _stop(self, flow: DeliveryFlow, event: RemoteEvent) -> RemoteSubscription | None:
        """The subscription of a flow that the delegate has ended; None: it did not stand by that."""
        record = self._records.get(flow.subscription.uid)
        if record is None or not record.stands or record.flow is not flow:
            return None
        self._end_flow(record)
        record.happen(event)
        return record

    def _end_flow(self, record: RemoteSubscription) -> DeliveryFlow | None:
        flow, record.flow = record.flow, None
        if flow is not None and self._flows.by_number.get(flow.number) is flow:
            del self._flows.by_number[flow.number]
        return flow

    def _settle(self, record: RemoteSubscription) -> None:
        """Forget what has ended."""
        uid = record.subscription.uid
        if REMOTE_SUBSCRIPTION.is_final(record.state) and self._records.get(uid) is record:
            del self._records[uid]
