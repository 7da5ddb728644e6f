"""The infosphere of a node's networks as a side of a bridge (see bridge.platform.BridgePlatform).

A registration of this node is a durable message to all, its schema another one, its objects are reliable messages. What
other nodes say stands in tables here, and a mirror makes relayed registrations of it at the node's delegate.

Rules:
- A registration is shown when its schema is here, and as long as its node is heard, and `sequence_timeout` longer.
- What a node said before it was started anew is over.
- Objects of a registration are told in the order of their numbers (see ordering).
"""

from __future__ import annotations

import hashlib
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Protocol

import msgspec

from jbi_pubsub.bridge.platform import BridgedRegistration, ObjectReceiver
from jbi_pubsub.core.errors import ProtocolError, UnknownUidError
from jbi_pubsub.core.guard import guarded
from jbi_pubsub.core.info_object import InfoObject, Parcel, SchemaBundle, TypeName, packed
from jbi_pubsub.core.node_sections import NodeSection
from jbi_pubsub.network.datagram import DatagramKind, DatagramMode
from jbi_pubsub.network.message import NodeMessage
from jbi_pubsub.network.peers import NodePeer, PeerChange
from jbi_pubsub.protocol.remote import RemoteAnswers, RemoteArchive
from jbi_pubsub.protocol.requests import QueryRequest
from jbi_pubsub.protocol.wanted import EVERYTHING, Wanted

from .bodies import VERSION, LeftOutBody, NodeBody, QueryBody, SchemaBody, SequenceBody, decoded_body, encoded
from .ordering import Numbered, ObjectOrder
from .remote_queries import NetworkQueries

log = logging.getLogger("jbi_pubsub.node")

NAME: Final = "infosphere"
ANSWERS: Final = "answers"
"""Role of a node that answers queries of others."""
DURABLE_LIFE: Final = 3_600_000
"""Milliseconds that a durable message lives that its node says no more."""
SEQUENCES_MOST: Final = 10_000
"""Registrations of one node; of all together ten times as many."""
SCHEMAS_MOST: Final = 2_000
ENDED_SECONDS: Final = 30.0
"""For the last objects of a registration that has ended."""


class NodeNetwork(Protocol):
    """The network, as the infosphere uses it (see network.network.Network)."""

    def say(self, message: NodeMessage, timeout: float = 0.0) -> None:
        """Say a message. Raises BackPressureError."""
        ...

    def peers(self) -> Mapping[bytes, NodePeer]:
        """Nodes that are heard, by id."""
        ...

    def settled(self, origin: bytes, epoch: int) -> int:
        """Serial of a node's log up to which nothing more comes."""
        ...


@dataclass(slots=True)
class _Own:
    """A registration of ours, and the number of its last object that was said."""

    body: SequenceBody
    last: int = 0


class _Remote:
    """A registration of another node. `body` None: its objects have come before it."""

    def __init__(self, origin: bytes, epoch: int) -> None:
        self.origin, self.epoch = origin, epoch
        self.body: SequenceBody | None = None
        self.order: ObjectOrder[InfoObject | LeftOutBody] = ObjectOrder()
        self.ended = 0.0
        """When its end was told (monotonic seconds); 0.0: it stands."""

    def is_over(self, now: float, seconds: float) -> bool:
        """Whether it has ended, and its last object has come, or can't come any more. `seconds`: that objects live
        which say no expiration."""
        if not self.ended or self.body is None:
            return False
        has_all = self.order.next > self.body.last
        life = ENDED_SECONDS if has_all else max(ENDED_SECONDS, self.body.expiration or seconds)
        return now - self.ended > life


class Infosphere:
    """See the module. Any thread; messages come on the network's delivery thread."""

    name = NAME

    def __init__(self, network: Callable[[], NodeNetwork], section: NodeSection, bridge: str) -> None:
        """`network`: the one that is there, when it is; `bridge`: id of the bridge that this is a side of."""
        self._network, self._section, self._bridge = network, section, bridge
        self._lock = threading.Lock()
        self._own: dict[str, _Own] = {}
        self._updates: Counter[bytes] = Counter()
        """Updates of our durable messages."""
        self._schemas: dict[bytes, SchemaBundle] = {}
        self._remote: dict[str, _Remote] = {}
        self._epochs: dict[bytes, int] = {}
        self._heard: dict[bytes, float] = {}
        """When a node was heard last (monotonic seconds)."""
        self._faults: Counter[str] = Counter()
        self._changed: Callable[[], None] = lambda: None
        self._arrived: ObjectReceiver | None = None
        self._is_listening = True
        self._queries = NetworkQueries(self.say, section.query_seconds, answers=section.answer)

    # -- what is there --------------------------------------------------------------------------------------------

    def published(self) -> Sequence[BridgedRegistration]:
        """See BridgePlatform: registrations of other nodes, and our own as they are shown there."""
        self._look()
        with self._lock:
            found = [replace(each.body.registration(), bridge=self._bridge, first=None) for each in self._own.values()]
            bodies = [each.body for each in self._remote.values() if each.origin in self._heard]
            return found + [each.registration() for each in bodies if each and each.schema in self._schemas]

    def _look(self) -> None:
        """Forget nodes that are not heard any more, and registrations that are over."""
        now = time.monotonic()
        peers = self._network().peers()
        with self._lock:
            for origin, peer in peers.items():
                self._heard[origin] = now
                self._begin_epoch(origin, peer.epoch)
            for origin in [e for e, when in self._heard.items() if now - when > self._section.sequence_timeout]:
                del self._heard[origin]
            seconds = self._section.object_seconds
            for uid in [uid for uid, each in self._remote.items() if each.is_over(now, seconds)]:
                del self._remote[uid]
        self._queries.left(frozenset(self._heard))

    def _begin_epoch(self, origin: bytes, epoch: int) -> None:
        """Under the lock: what the node said before is over."""
        if epoch > self._epochs.get(origin, -1):
            self._epochs[origin] = epoch
            for uid in [uid for uid, e in self._remote.items() if e.origin == origin and e.epoch < epoch]:
                del self._remote[uid]

    def watch(self, changed: Callable[[], None]) -> None:
        """See BridgePlatform."""
        self._changed = changed

    def persistent(self) -> frozenset[str]:
        """Registrations of ours that other nodes are asked to keep."""
        with self._lock:
            return frozenset(uid for uid, each in self._own.items() if each.body.is_persistent)

    def remote(self, uid: str) -> SequenceBody | None:
        """A registration of another node, as that says it; None: it has not, or all of it is over."""
        remote = self._remote.get(uid)
        return remote.body if remote is not None else None

    def wanted(self, changed: Callable[[Wanted], None]) -> None:
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
        data = encoded(SchemaBody(VERSION, bundle))
        digest = _digest(data)
        with self._lock:
            is_new = digest not in self._schemas
            self._schemas[digest] = bundle
        if is_new:
            self._tell(digest, data)
        body = SequenceBody(
            VERSION, published.uid, type_, digest, published.entries, published.signing, via, published.expiration,
            is_persistent=published.is_persistent and self._section.persist_elsewhere,
        )  # fmt: skip
        with self._lock:
            known = self._own.get(body.uid)
            self._own[body.uid] = _Own(body, known.last if known is not None else 0)
        self._tell(_digest(body.uid.encode()), encoded(body))
        self._changed()

    def unregister(self, uid: str, *, waits: bool) -> bool:  # noqa: ARG002  # what was said is the network's
        """See BridgePlatform."""
        with self._lock:
            own = self._own.pop(uid, None)
        if own is not None:
            ended = msgspec.structs.replace(own.body, last=own.last, has_ended=True)
            self._tell(_digest(uid.encode()), encoded(ended))
            self._changed()
        return True

    def publish(self, uid: str, obj: InfoObject, source: str, timeout: float) -> None:
        """See BridgePlatform."""
        parcel = packed(obj).relayed(source).in_memory()
        self._publish(uid, obj.platform.sequence, DatagramKind.PUBLICATION, b"".join(parcel.parts), timeout)

    def tell_filtered(self, uid: str, count: int, up_to: int, timeout: float) -> None:
        """See BridgePlatform."""
        self._publish(uid, up_to, DatagramKind.SEQUENCE, encoded(LeftOutBody(VERSION, uid, count, up_to)), timeout)

    def unfinished(self, uid: str) -> int:  # noqa: ARG002  # what was said is the network's
        """See BridgePlatform: what was said is the network's."""
        return 0

    def _publish(self, uid: str, number: int, kind: DatagramKind, data: bytes, timeout: float) -> None:
        own = self._own.get(uid)
        if own is None:
            raise UnknownUidError(f"{uid} is not registered in the network")
        life = int((own.body.expiration or self._section.object_seconds) * 1000)
        self.say(NodeMessage(kind, DatagramMode.RELIABLE, data, expiration=life), timeout)
        own.last = number

    def _tell(self, key: bytes, body: bytes) -> None:
        """Say something that holds until it is said otherwise."""
        with self._lock:
            self._updates[key] += 1
            update = self._updates[key]
        self.say(NodeMessage(
            DatagramKind.SEQUENCE, DatagramMode.DURABLE, body, expiration=DURABLE_LIFE, durability=key, update=update
        ), self._section.node_timeout)  # fmt: skip

    def say(self, message: NodeMessage, timeout: float) -> None:
        """Say something to other nodes. Raises BackPressureError."""
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
            else:
                self._hear_body(message, decoded_body(message.body))
        except ProtocolError as exc:
            self.fault(message.origin, exc)

    def _hear_body(self, message: NodeMessage, body: NodeBody) -> None:
        if isinstance(body, SequenceBody):
            self._hear(message, body)
        elif isinstance(body, SchemaBody):
            self._learn(_digest(message.body), body.bundle)
        elif isinstance(body, LeftOutBody):
            self._take(message, body)
        elif isinstance(body, QueryBody):
            self._queries.asked(message.origin, body)
        else:
            self._queries.came(message.origin, body)

    def idle(self) -> None:
        """Let go what waits for objects that do not come; on the network's delivery thread, from time to time."""
        with self._lock:
            waiting = [each for each in self._remote.values() if len(each.order)]
        for remote in waiting:
            self._go(remote.order.settled(remote.epoch, self._network().settled(remote.origin, remote.epoch)))

    def peers_changed(self, change: PeerChange) -> None:
        """A node has come, or left; on the network's delivery thread."""
        log.info("node %s: %s", change.id.hex()[:8], change.event)
        self._changed()

    def _hear(self, message: NodeMessage, body: SequenceBody) -> None:
        with self._lock:
            remote = self._remote_of(body.uid, message)
            if remote is None:
                return
            remote.body = body
            remote.ended = time.monotonic() if body.has_ended else 0.0
        self._changed()

    def _remote_of(self, uid: str, message: NodeMessage) -> _Remote | None:
        """Under the lock: a registration of the node that says something of it. None: it is another's, or over."""
        self._begin_epoch(message.origin, message.epoch)
        if message.epoch < self._epochs[message.origin] or uid in self._own:
            return None
        remote = self._remote.get(uid)
        if remote is None:
            own = sum(each.origin == message.origin for each in self._remote.values())
            if own >= SEQUENCES_MOST or len(self._remote) >= 10 * SEQUENCES_MOST:
                self._faults["more registrations than a node may have"] += 1
                return None
            remote = self._remote[uid] = _Remote(message.origin, message.epoch)
        return remote if remote.origin == message.origin else None

    def _learn(self, digest: bytes, bundle: SchemaBundle) -> None:
        with self._lock:
            if len(self._schemas) >= SCHEMAS_MOST:
                used = {each.body.schema for each in self._own.values()}
                used |= {each.body.schema for each in self._remote.values() if each.body is not None}
                self._schemas = {key: each for key, each in self._schemas.items() if key in used}
            if len(self._schemas) < SCHEMAS_MOST:
                self._schemas[digest] = bundle
        self._changed()

    def _take(self, message: NodeMessage, thing: InfoObject | LeftOutBody) -> None:
        if isinstance(thing, LeftOutBody):
            uid, last, first = thing.uid, thing.up_to, thing.up_to - thing.count + 1
        else:
            uid, last, first = thing.platform.registration, thing.platform.sequence, thing.platform.sequence
        with self._lock:
            remote = self._remote_of(uid, message)
        if remote is not None:
            self._go(remote.order.add(Numbered(last, first, message.epoch, message.serial, thing)))

    def _go(self, things: Iterable[InfoObject | LeftOutBody]) -> None:
        arrived = self._arrived
        for each in things:
            if arrived is None or not self._is_listening:
                return
            with guarded("infosphere"):
                if isinstance(each, LeftOutBody):
                    arrived.lost("filtered", each.count, each.uid, each.up_to)
                else:
                    arrived.arrived(each)

    def fault(self, origin: bytes, exc: ProtocolError) -> None:
        """A node has said what makes no sense."""
        with self._lock:
            is_first = not self._faults[exc.message[:60]]
            self._faults[exc.message[:60]] += 1
        if is_first:
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
            return Counter(each.origin for each in self._remote.values() if each.body is not None and not each.ended)

    def status(self) -> dict[str, Any]:
        """See BridgePlatform."""
        with self._lock:
            stands = sum(each.body is not None and not each.ended for each in self._remote.values())
            return {
                "kind": NAME,
                "connected": True,
                "own": len(self._own),
                "published": stands,
                "waiting": sum(len(each.order) for each in self._remote.values()),
                "schemas": len(self._schemas),
                "faults": dict(self._faults),
            }

    def stop_listening(self) -> None:
        """See BridgePlatform."""
        self._is_listening = False

    def close(self) -> None:
        """See BridgePlatform."""
        self._queries.close()


def _digest(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=16).digest()
