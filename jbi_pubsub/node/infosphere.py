"""The infosphere of a node's networks as a side of a bridge (see bridge.platform.BridgePlatform).

A registration of this node is a durable message to all, its schema another one, its objects are reliable messages. What
other nodes say stands in tables here, and a mirror makes relayed registrations of it at the node's delegate.

Rules:
- A registration is shown when its schema is here, and as long as its node is heard, and `sequence_timeout` longer. It
  is heard by its announcements, and by what it says where these don't come.
- What a node said before it was started anew is over.
- Objects of a registration are told in the order of their numbers (see ordering).
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final

import msgspec

from jbi_pubsub.bridge.platform import BridgedRegistration, ObjectReceiver
from jbi_pubsub.core.errors import BackPressureError, ProtocolError, UnknownUidError
from jbi_pubsub.core.fault_counts import FaultCounts
from jbi_pubsub.core.guard import guarded
from jbi_pubsub.core.info_object import InfoObject, Parcel, SchemaBundle, TypeName
from jbi_pubsub.core.node_sections import NodeSection
from jbi_pubsub.network.datagram import DatagramKind, DatagramMode
from jbi_pubsub.network.message import NodeMessage
from jbi_pubsub.network.network import Network
from jbi_pubsub.network.peers import PeerChange
from jbi_pubsub.protocol.remote import RemoteAnswers, RemoteArchive
from jbi_pubsub.protocol.requests import QueryRequest
from jbi_pubsub.protocol.wanted import EVERYTHING, Wanted

from .bodies import (
    VERSION,
    LeftOutBody,
    NodeBody,
    QueryBody,
    SchemaBody,
    SequenceBody,
    SettledBody,
    WantedBody,
    decoded_body,
    digest,
)
from .ordering import Numbered
from .own import OwnSequence
from .remote import RemoteSequences
from .remote_queries import NetworkQueries
from .schemas import RemoteSchemas
from .words import OwnWords

log = logging.getLogger("jbi_pubsub.node")

NAME: Final = "infosphere"
ANSWERS: Final = "answers"
"""Role of a node that answers queries of others."""
_WANTED: Final = digest(b"wanted")
"""Key of the message that tells what a node's subscribers want."""
EXPIRED: Final = "objects that expired before they came to the network"
OBJECT_BYTES: Final = 1_000
"""That an object takes beside its body, while it waits for those before it."""


class OwnInterest:
    """Interest of this node's subscribers in what other nodes publish. One thread at a time; times are monotonic
    seconds."""

    def __init__(self) -> None:
        self._untold: Wanted | None = None
        self._since: Mapping[TypeName, float] | None = {}
        """Types that are wanted, and since when; None: all are."""

    def note(self, wanted: Wanted, now: float) -> None:
        """Note what they want now."""
        before, types = self._since or {}, wanted.types
        self._untold = wanted
        self._since = None if types is None else {each.type: before.get(each.type, now) for each in types}

    def take(self) -> Wanted | None:
        """The interest that other nodes have not been told yet."""
        untold, self._untold = self._untold, None
        return untold

    def lacking(self, left: LeftOutBody, body: SequenceBody | None, now: float) -> LeftOutBody:
        """The same objects of a registration, 0 of those that were left out before they wanted the type."""
        if body is None or self._since is None or self._since.get(body.type, math.inf) <= now - left.age / 1000:
            return left
        return msgspec.structs.replace(left, count=0, lost=0)


class Infosphere:
    """See the module. Any thread; messages come on the network's delivery thread."""

    def __init__(self, network: Callable[[], Network], section: NodeSection, bridge: str) -> None:
        """`network`: the one that is there, when it is; `bridge`: id of the bridge that this is a side of."""
        self.name = NAME
        self._network, self._section, self._bridge = network, section, bridge
        self._lock = threading.Lock()
        self._own: dict[str, OwnSequence] = {}
        self.words = OwnWords(self.say, section.node_timeout, silent_receivers=section.silent_receivers)
        self._remote = RemoteSequences()
        self._schemas = RemoteSchemas(self._remote.schemas)
        self._interest = OwnInterest()
        self._faults = FaultCounts()
        self._changed: Callable[[], None] = lambda: None
        self._arrived: ObjectReceiver | None = None
        self._queries = NetworkQueries(self.say, section.query_seconds, answers=section.answer)
        self.settled: Callable[[bytes, SettledBody], None] = lambda origin, body: None  # noqa: ARG005

    # -- what is there --------------------------------------------------------------------------------------------

    def published(self) -> Sequence[BridgedRegistration]:
        """See BridgePlatform: registrations of other nodes, and our own as they are shown there."""
        self._look()
        with self._lock:
            found = [replace(each.body.registration(), bridge=self._bridge, first=None) for each in self._own.values()]
            return found + [each.registration() for each in self._remote.known() if each.schema in self._schemas]

    def _look(self) -> None:
        """Forget nodes that are not heard any more, and registrations that are over: what has not come is lost."""
        now, section, peers = time.monotonic(), self._section, self._network().peers()
        with self._lock:
            lacking = self._remote.look(peers, now, timeout=section.sequence_timeout, seconds=section.object_seconds)
            wanted = self._interest.take()
            own = [(each, self._is_wanted(each.body)) for each in self._own.values()]
        self._queries.left(frozenset(peers))
        self._go(lacking)
        if wanted is not None:
            self.words.stand(_WANTED, WantedBody(VERSION, wanted))
        self.words.speak()
        with suppress(BackPressureError):  # at the next look
            for each, is_wanted in own:
                each.look(now, is_wanted=is_wanted)

    def watch(self, changed: Callable[[], None]) -> None:
        """See BridgePlatform."""
        self._changed = changed

    def persistent(self) -> frozenset[str]:
        """Registrations of ours that other nodes are asked to keep."""
        if not self._section.persist_elsewhere:
            return frozenset()
        with self._lock:
            demanded, bodies = self._remote.demand, [each.body for each in self._own.values()]
            return frozenset(each.uid for each in bodies if each.is_persistent or demanded(each.type, "persist"))

    def remote(self, uid: str) -> SequenceBody | None:
        """A registration of another node, as that says it; None: it has not, or all of it is over."""
        return remote.body if (remote := self._remote.get(uid)) is not None else None

    def wanted(self, changed: Callable[[Wanted], None], *, members: bool = False) -> None:  # noqa: ARG002  # nobody knows
        """See BridgePlatform: nodes may be there that hear and say nothing."""
        changed(EVERYTHING)

    def schema(self, published: BridgedRegistration) -> SchemaBundle:
        """See BridgePlatform."""
        with self._lock:
            remote = self._remote.get(published.uid)
            found = self._schemas.get(remote.body.schema) if remote is not None and remote.body is not None else None
        if found is None:
            raise UnknownUidError(f"no node has said the schema of {published.uid}")
        return found

    def types(self) -> list[tuple[TypeName, SchemaBundle, bytes]]:
        """Type, schema and node of each registration; b"" is this one."""
        with self._lock:
            said = [(b"", each.body) for each in self._own.values()] + self._remote.standing()
            found = [(e.type, self._schemas.get(e.schema) or self.words.schema(e.schema), node) for node, e in said]
        return [(type_, bundle, node) for type_, bundle, node in found if bundle is not None]

    # -- from here to there ---------------------------------------------------------------------------------------

    def register(
        self,
        published: BridgedRegistration,
        type_: TypeName,
        bundle: SchemaBundle,
        via: tuple[str, ...],
        *,
        validate: bool,  # noqa: ARG002  # every node checks what comes
    ) -> None:
        """See BridgePlatform."""
        schema = SchemaBody(VERSION, bundle)
        own = self._own.get(published.uid)
        before = own.body.schema if own is not None else None
        if not self._uses(schema.name):
            self.words.stand(schema.name, schema)
        body = SequenceBody(
            VERSION, published.uid, type_, schema.name, published.entries, published.signing, via, published.expiration,
            is_persistent=published.is_persistent and self._section.persist_elsewhere,
            importance=published.importance, sending=published.sending,
        )  # fmt: skip
        with self._lock:
            own = self._own.setdefault(body.uid, own or OwnSequence(body, self.say))
            own.change(body)
        self.words.stand(digest(body.uid.encode()), body)
        if before is not None and not self._uses(before):
            self.words.end(before)
        self._changed()

    def unregister(self, uid: str, *, waits: bool) -> bool:  # noqa: ARG002  # what was said is the network's
        """See BridgePlatform."""
        with self._lock:
            own = self._own.pop(uid, None)
        if own is not None:
            self.words.end(digest(uid.encode()), msgspec.structs.replace(own.body, last=own.last, has_ended=True))
            if not self._uses(own.body.schema):
                self.words.end(own.body.schema)
            self._changed()
        return True

    def publish(self, uid: str, obj: InfoObject, source: str, timeout: float, waited: float = 0.0) -> None:
        """See BridgePlatform; one that has expired meanwhile is lost, which other nodes are told."""
        own = self._known(uid)
        if (life := own.life(obj, waited)) <= 0:
            own.leave_out(1, obj.platform.sequence, time.monotonic(), timeout, lost=True)
            self._faults.note(EXPIRED)
            return
        with self._lock:
            is_wanted = self._is_wanted(own.body)
            is_reliable = own.body.sending.mode == "unreliable" and self._remote.demand(own.body.type, "reliable")
        message = own.message(obj, source, life, self._section.object_seconds, is_reliable=is_reliable)
        now, number = time.monotonic(), obj.platform.sequence
        if is_wanted:
            own.go(now, timeout, number, message)
        else:
            own.hold(number, message, now, life, 2 * self._section.announce_seconds, is_alone=self._remote.is_alone())

    def tell_filtered(self, uid: str, count: int, up_to: int, timeout: float, *, lost: bool = False) -> None:
        """See BridgePlatform; where it is not known how much is lost, the other nodes hear of one."""
        self._known(uid).leave_out(count or int(lost), up_to, time.monotonic(), timeout, lost=lost)

    def want(self, wanted: Wanted) -> None:
        """Have other nodes told what our subscribers want, soon."""
        with self._lock:
            self._interest.note(wanted, time.monotonic())
        self._changed()

    def _is_wanted(self, body: SequenceBody) -> bool:
        """Under the lock. Durable objects can wait until it is told."""
        is_wanted = self._remote.is_wanted(body.type, is_told=body.sending.mode == "durable")
        return self._section.silent_receivers or body.is_persistent or is_wanted

    def _known(self, uid: str) -> OwnSequence:
        if (own := self._own.get(uid)) is None:
            raise UnknownUidError(f"{uid} is not registered in the network")
        return own

    def unfinished(self, uid: str) -> int:  # noqa: ARG002  # what was said is the network's
        """See BridgePlatform: what was said is the network's."""
        return 0

    def _uses(self, schema: bytes) -> bool:
        """Whether registrations of ours have a schema."""
        with self._lock:
            return any(each.body.schema == schema for each in self._own.values())

    def say(self, message: NodeMessage, timeout: float) -> None:
        """Say something to other nodes. Raises BackPressureError, OversizeError."""
        self._network().say(message, timeout)

    # -- from there to here ---------------------------------------------------------------------------------------

    def subscribe(self, types: Sequence[str], arrived: ObjectReceiver) -> None:  # noqa: ARG002  # all types come
        """See BridgePlatform."""
        self._arrived = arrived

    def deliver(self, message: NodeMessage) -> None:
        """A message of another node; on the network's delivery thread."""
        try:
            if message.kind == DatagramKind.PUBLICATION:
                self._take(message, Parcel.received(message.body).unpacked())
            elif message.body:  # or a word that is taken back
                self._hear_body(message, decoded_body(message.body))
        except ProtocolError as exc:
            self.fault(message.origin, exc)

    def _hear_body(self, message: NodeMessage, body: NodeBody) -> None:
        if isinstance(body, SequenceBody):
            self._hear(message, body)
        elif isinstance(body, SchemaBody):
            with self._lock:
                self._schemas.add(body.name, body.bundle)
            self._changed()
        elif isinstance(body, WantedBody):
            with self._lock:
                self._remote.hear(message.origin, message.epoch, time.monotonic()).wanted = body.wanted
            self._changed()  # it may want what is held
        elif isinstance(body, SettledBody):
            self.settled(message.origin, body)
        elif isinstance(body, LeftOutBody):
            self._take(message, body)
        elif isinstance(body, QueryBody):
            self._queries.asked(message.origin, body)
        else:
            self._queries.came(message.origin, message.epoch, body)

    def idle(self) -> None:
        """Let go what waits for objects that do not come; on the network's delivery thread, from time to time."""
        with self._lock:
            waiting = [each for each in self._remote if len(each.order)]
        for remote in waiting:
            settled = self._network().settled(remote.origin, remote.epoch)
            self._go(remote.order.settled(remote.epoch, settled, time.monotonic()))

    def peers_changed(self, change: PeerChange) -> None:
        """A node has come, or left; on the network's delivery thread."""
        log.info("node %s: %s", change.id.hex()[:8], change.event)
        self._changed()

    def _hear(self, message: NodeMessage, body: SequenceBody) -> None:
        with self._lock:
            things = () if body.uid in self._own else self._remote.tell(message, body, time.monotonic())
        self._go(things)
        self._changed()

    def _take(self, message: NodeMessage, thing: InfoObject | LeftOutBody) -> None:
        if isinstance(thing, LeftOutBody):
            uid, last, first = thing.uid, thing.up_to, thing.up_to - thing.count + 1
        else:
            uid, last, first = thing.platform.registration, thing.platform.sequence, thing.platform.sequence
        now, size = time.monotonic(), len(message.body) + OBJECT_BYTES
        with self._lock:
            if isinstance(thing, LeftOutBody):
                thing = self._interest.lacking(thing, self.remote(uid), now)
            remote = self._remote.of(uid, message, now) if uid not in self._own else None
        if remote is not None:
            life = max(message.expiration / 1000, remote.life(self._section.object_seconds))
            take = remote.order.add if message.mode != DatagramMode.UNRELIABLE else remote.order.skip_to
            self._go(take(Numbered(last, first, message.epoch, message.serial, thing, size, now + life)))
        while self._remote.room.is_full:
            with self._lock:
                largest = max(self._remote, key=lambda each: each.order.size, default=None)
            if largest is None or not largest.order.size:  # one was forgotten while something came
                self._remote.room.size = 0
            else:
                self._go(largest.order.first())

    def _go(self, things: Iterable[InfoObject | LeftOutBody]) -> None:
        for each in things:
            if (arrived := self._arrived) is None:
                return
            with guarded("infosphere"):
                if isinstance(each, LeftOutBody):
                    for cause, count, up_to in each.by_cause():
                        arrived.lost(cause, count, each.uid, up_to)
                else:
                    arrived.arrived(each)

    def fault(self, origin: bytes, exc: ProtocolError) -> None:
        """A node has said what makes no sense."""
        if self._faults.note(exc.message):
            log.warning("node %s: %s", origin.hex()[:8], exc)

    # -- the rest -------------------------------------------------------------------------------------------------

    def query(self, request: QueryRequest) -> RemoteAnswers:
        """See BridgePlatform."""
        peers = self._network().peers()
        return self._queries.ask(request, frozenset(origin for origin, e in peers.items() if ANSWERS in e.roles))

    def present(self) -> frozenset[bytes]:
        """Ids of the nodes that are heard."""
        return frozenset(self._network().peers())

    def provide(self, foreign: RemoteArchive) -> None:
        """See BridgePlatform."""
        self._queries.foreign = foreign

    def registrations(self) -> Counter[bytes]:
        """Number of registrations of each node."""
        with self._lock:
            return self._remote.counts()

    def status(self) -> dict[str, Any]:
        """See BridgePlatform."""
        with self._lock:
            return {
                "kind": NAME, "connected": True, "own": len(self._own), "published": self._remote.counts().total(),
                "waiting": sum(len(each.order) for each in self._remote), "schemas": len(self._schemas),
                "faults": self._faults.counts(),
            }  # fmt: skip

    def stop_listening(self) -> None:
        """See BridgePlatform."""
        self._arrived = None

    def close(self) -> None:
        """See BridgePlatform."""
        self._queries.close()
