"""Deliveries of a delegate, taken apart: each batch is handed on, to each subscription at once what is for it.

Objects pass the signature check and the subscription's fitness here. What else a delegate delivers (losses, grants, the
end of a query or of all) is told in the order in which it came. One thread at a time: that of the delivery connection.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from jbi_pubsub.core.errors import OversizeError, ProtocolError
from jbi_pubsub.core.gathering import Gathering
from jbi_pubsub.core.info_object import Cause, InfoObject, LossNotice, decode
from jbi_pubsub.core.quality import GrantedQos
from jbi_pubsub.core.spool import Spool
from jbi_pubsub.core.values import decoded, decoder_of
from jbi_pubsub.protocol.deliveries import (
    ASK_AGAIN,
    CHUNK,
    END,
    FINISHED,
    ITEM,
    LAST_CHUNK,
    LOSS,
    OBJECT,
    PLACED,
    POSITION,
    QUALITY,
    SHARED,
    SHARED_MOST,
)
from jbi_pubsub.protocol.replies import QueryEnd

from .flows import DeliveryFlow, FlowTable
from .link import SessionLink
from .registry import RemoteRegistry
from .session_queries import SessionQueries
from .signed import SessionSignatures

Arrivals = dict[DeliveryFlow, list[InfoObject]]
"""Objects that have come, and are to be handed on together."""


class DeliveryReader:
    """See the module."""

    def __init__(
        self,
        link: SessionLink,
        flows: FlowTable,
        registry: RemoteRegistry,
        queries: SessionQueries,
        spool: Spool,
        signatures: SessionSignatures | None,
    ) -> None:
        """`spool`: where large payloads are kept; `signatures`: the check that objects pass, if there is one."""
        self._link = link
        self._flows = flows
        self._registry = registry
        self._queries = queries
        self._spool = spool
        self._signatures = signatures

    def take_batch(self, items: list[memoryview]) -> None:
        """Hand a batch on: to each subscription at once what is for it."""
        arrived: Arrivals = {}
        archive = ""  # of that run
        for_whom: int | bytes = -1  # the number, or numbers, of the run of objects that was begun
        lists: Sequence[list[InfoObject]] = ()  # of those in `arrived`
        for item in items:
            try:
                kind, number = ITEM.unpack_from(item)
                if kind == OBJECT:
                    at = ITEM.size
                    if number != for_whom:
                        for_whom, lists = number, self._lists((number,), arrived)
                elif kind == SHARED:
                    at = ITEM.size + 4 * _at_most(number)
                    if (numbers := bytes(item[ITEM.size : at])) != for_whom:
                        lists = self._lists(struct.unpack(f"!{number}I", numbers), arrived)
                        for_whom = numbers
                elif kind == PLACED:
                    (place,) = POSITION.unpack_from(item, ITEM.size)
                    if number != for_whom:
                        for_whom, lists = number, self._lists((number,), arrived)
                        archive = flow.archive if (flow := self._flows.by_number.get(number)) is not None else ""
                    if lists:
                        lists[0].append(decode(item[ITEM.size + POSITION.size :], place, archive))
                    continue
                else:
                    self._take_other(kind, number, item[ITEM.size :], arrived)
                    for_whom = -1
                    continue
            except struct.error as exc:
                raise ProtocolError(f"bad delivery: {exc}") from exc
            if lists:  # else they were cancelled meanwhile
                obj = decode(item[at:])
                for objects in lists:
                    objects.append(obj)
        self._hand_on(arrived)

    def _lists(self, numbers: Sequence[int], arrived: Arrivals) -> list[list[InfoObject]]:
        """Where objects for these subscriptions are gathered."""
        flow = [self._of_number(number, arrived) for number in numbers]  # first: it may hand on what was gathered
        return [arrived.setdefault(one, []) for one in flow if one is not None]

    def _take_other(self, kind: int, number: int, body: memoryview, arrived: Arrivals) -> None:
        if kind == END:
            self._take_end(number, arrived)
            return
        flow = self._of_number(number, arrived)
        if flow is None:
            return
        if kind in (CHUNK, LAST_CHUNK):
            place = POSITION.unpack_from(body)[0] if flow.is_placed else 0
            coming = flow.coming = flow.coming or self._gathering()
            coming.add(body[POSITION.size :] if flow.is_placed else body)
            if kind == LAST_CHUNK:
                flow.coming = None
                self._take_large(flow, coming, place, arrived)
        elif kind == FINISHED:
            self._hand_on(arrived)  # what came before the end is there before it
            self._queries.end(flow, decoded(decoder_of(QueryEnd), body, "end of a query"))
        elif kind == LOSS:
            self._hand_on(arrived)  # what came before the loss is told before it
            flow.coming = None  # the rest of it can't be read there
            notice = decoded(decoder_of(LossNotice), body, "loss notice")
            if notice.cause is Cause.REFUSED and notice.detail:
                self._registry.deny(flow.subscription.uid, OversizeError(notice.detail))
            flow.subscription.lose(notice.cause, notice.count, notice.detail, flow.consume)
        elif kind == QUALITY:
            flow.take_quality(decoded(decoder_of(GrantedQos), body, "notice of quality"))
            flow.subscription.qos_changed(flow.quality)
        else:
            raise ProtocolError(f"delivery of kind {kind}")

    def _gathering(self) -> Gathering:
        """A large object begins to come."""
        config = self._link.config
        wait, looks = config.queue.block_seconds, self._signatures is not None
        return Gathering(self._spool, config.client.max_payload, wait, is_cut=True, is_looked_at=looks)

    def _take_large(self, flow: DeliveryFlow, coming: Gathering, place: int, arrived: Arrivals) -> None:
        """All of a large object has come; if it could not be kept here, it is lost."""
        obj, why = coming.info_object(place, flow.archive), coming.failure
        if why is None:
            arrived.setdefault(flow, []).append(obj)
            return
        self._hand_on(arrived)
        cause = Cause.OVERSIZE if isinstance(why, OversizeError) else Cause.STORAGE
        flow.came(1)
        flow.subscription.lose(cause, 1, f"object {obj.object_id}: {why}", flow.consume)
        flow.drop([obj])

    def _take_end(self, number: int, arrived: Arrivals) -> None:
        if number == ASK_AGAIN:
            self._registry.ask_again()
        elif not number:
            self._link.is_parted = True
        else:
            self._hand_on(arrived)
            flow = self._flows.by_number.get(number)
            if flow is not None and not self._queries.expel(flow):
                self._registry.expel(flow)

    def _of_number(self, number: int, arrived: Arrivals) -> DeliveryFlow | None:
        """The subscription of that number; None if it was cancelled meanwhile."""
        flow = self._flows.by_number.get(number)
        if flow is None:
            self._hand_on(arrived)  # nobody else is to wait for this one
            flow = self._flows.await_flow(number)
        return flow

    def _hand_on(self, arrived: Arrivals) -> None:
        if self._signatures is not None:
            self._signatures.begin()
        for flow, objects in arrived.items():
            flow.came(len(objects))
            if self._signatures is None and flow.subscription.fitness is None:
                flow.hand_on(objects)
            else:
                self._hand_on_looked_at(flow, objects)
        arrived.clear()

    def _hand_on_looked_at(self, flow: DeliveryFlow, objects: Sequence[InfoObject]) -> None:
        of, good = flow.subscription, objects
        if self._signatures is not None:
            looked = self._signatures.look(objects, of.terms.filter_digests, takes_shapes=of.terms.takes_shapes)
            good = looked.objects
            if looked.dropped:
                of.lose(Cause.BAD_SIGNATURE, looked.dropped, looked.why, flow.consume)
        if of.fitness is not None:
            fit = of.fitness.look(good)
            good = fit.objects
            if fit.dropped:
                of.lose(Cause.INVALID, fit.dropped, fit.why, flow.consume)
        if good:
            flow.hand_on(good)
        if len(good) < len(objects):  # behind the others: what is told as taken is told in order
            ids = {obj.object_id for obj in good}
            flow.drop([obj for obj in objects if obj.object_id not in ids])


def _at_most(count: int) -> int:
    if not 1 <= count <= SHARED_MOST:
        raise ProtocolError(f"delivery for {count} subscriptions, the limit is {SHARED_MOST}")
    return count
