"""A platform as a bridge sees it, and the one of our own kind.

Another kind of system is another class with these calls: MQTT is one (mqtt.py), and whoever writes a further one enters
it as the plug-in `platform.X`.
"""

from __future__ import annotations

import hashlib
import logging
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any, Final, Generic, Protocol, TypeVar

import msgspec

from jbi_pubsub.codegen.types.untyped import bundle_without
from jbi_pubsub.core.config import Config
from jbi_pubsub.core.errors import EntryError, JbiError, LookupNotFoundError, UnknownUidError
from jbi_pubsub.core.guard import guarded
from jbi_pubsub.core.info_object import InfoObject, LossNotice, SchemaBundle, TypeName
from jbi_pubsub.core.quality import Wish
from jbi_pubsub.lookup.client.finder import LookupCache
from jbi_pubsub.lookup.item import ServiceItem, ServiceTemplate
from jbi_pubsub.protocol.entries import (
    PUBLISHER_TYPE,
)
from jbi_pubsub.protocol.remote import RemoteAnswers, RemoteArchive
from jbi_pubsub.protocol.requests import PublisherRequest, QueryRequest
from jbi_pubsub.protocol.services import fetch_schema
from jbi_pubsub.protocol.wanted import EVERYTHING, Wanted
from jbi_pubsub.publisher.light import DelegateUid
from jbi_pubsub.publisher.peer import PeerArchive
from jbi_pubsub.publisher.relay import RelayPublisher
from jbi_pubsub.subscriber import SubscriberAdapter
from jbi_pubsub.subscriber.archives import archives_with
from jbi_pubsub.subscriber.listeners import SubscriptionUid
from jbi_pubsub.subscriber.query import QUERY_SECONDS, Query, QueryDraft

from .listed import BridgedRegistration as BridgedRegistration
from .listed import listed

log = logging.getLogger("jbi_pubsub.bridge")

CONNECT_SECONDS: Final = 1.0
"""For a delegate to be found, at each try."""

SETTLE_SECONDS: Final = 0.02
"""Until it is looked again what the other side has taken."""
HANDED_SECONDS: Final = 5.0
"""For the other side to take what it was handed, when a bridge leaves."""

LEFT_SECONDS: Final = 5.0
"""Time that a registration is told of that has left: a publisher may come, publish and leave within some ms."""
LEFT_MOST: Final = 10_000


class ObjectReceiver(Protocol):
    """Receiver of a platform's objects. Calls are serial for each subscription, on a thread of the platform's."""

    def arrived(self, obj: InfoObject) -> None:
        """An object. While this waits the platform keeps what comes behind it, as far as its bounds allow."""
        ...

    def lost(self, cause: str, count: int, uid: str = "", up_to: int = 0) -> None:
        """Objects were lost on the way to us (0: it is not known how many); with numbers up to `up_to` of that
        registration, if it is known."""
        ...

    def waiting(self, uid: str) -> int:
        """Number of a registration's last objects that the other side has not taken yet: what the source has in safe
        keeping it keeps until then."""
        ...


What = TypeVar("What")


class HandOver(Generic[What]):
    """Things handed to the other side and kept until that has taken it, in order. For one thread."""

    def __init__(self, done: Callable[[What], None]) -> None:
        """`done` is called for each when it is taken, and so are all before it."""
        self._done = done
        self._all: deque[tuple[str, What]] = deque()
        self._counts: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._all)

    def add(self, uid: str, what: What) -> None:
        """Add what stands for an object of a registration that was handed over, or with "" what needs no taking."""
        self._all.append((uid, what))
        self._counts[uid] += 1

    def settle(self, arrived: ObjectReceiver) -> None:
        """See what is taken by now."""
        waiting = {"": 0}
        while self._all:
            uid, what = self._all[0]
            if uid not in waiting:
                waiting[uid] = arrived.waiting(uid)
            if self._counts[uid] <= waiting[uid]:
                return
            self._all.popleft()
            self._counts[uid] -= 1
            if not self._counts[uid]:
                del self._counts[uid]
            self._done(what)


class BridgePlatform(Protocol):
    """One side of a bridge. Safe from several threads. What its other side can't be asked raises our errors; whoever is
    given one closes it."""

    @property
    def name(self) -> str:
        """Name in `via`, the same in all bridges that it has."""
        ...

    def published(self) -> Sequence[BridgedRegistration]:
        """Registrations that are there now; () as well while it can't be asked."""
        ...

    def watch(self, changed: Callable[[], None]) -> None:
        """Have `changed` called when that may have changed."""
        ...

    def wanted(self, changed: Callable[[Wanted], None]) -> None:
        """Have `changed` called with what those who are here want of the other side, now and when it has changed; it
        must not wait. Of what does not say that, all is wanted."""
        changed(EVERYTHING)

    def schema(self, published: BridgedRegistration) -> SchemaBundle:
        """Schema of its type. Raises JbiError while nobody can be asked."""
        ...

    def subscribe(self, types: Sequence[str], arrived: ObjectReceiver) -> None:
        """Have objects of some types told, () for all, from now on. Raises JbiError when it can't be done now: nothing
        is told then."""
        ...

    def register(
        self,
        published: BridgedRegistration,
        type_: TypeName,
        bundle: SchemaBundle,
        via: tuple[str, ...],
        *,
        validate: bool,
    ) -> None:
        """Have what is published on the other side published here from now on, under its id, and what is missing before
        its `first` told. Raises JbiError."""
        ...

    def unregister(self, uid: str, *, waits: bool) -> bool:
        """Not any more; with `waits` not before all that was published is there: False, it is not."""
        ...

    def publish(self, uid: str, obj: InfoObject, source: str, timeout: float) -> None:
        """An object of the platform `source`. Raises BackPressureError when there is no room within `timeout` seconds,
        JbiError when it is refused."""
        ...

    def unfinished(self, uid: str) -> int:
        """Objects of a registration that were published and are not acknowledged here: if we are killed they may be
        lost."""
        ...

    def tell_filtered(self, uid: str, count: int, up_to: int, timeout: float) -> None:
        """So many objects of a registration, with numbers up to `up_to`, were left out. Raises as `publish`."""
        ...

    def query(self, request: QueryRequest) -> RemoteAnswers:
        """Answers of the archives there. Raises JbiError."""
        ...

    def provide(self, foreign: RemoteArchive) -> None:
        """Have the queries of those who are there answered by the other side as well."""
        ...

    def status(self) -> dict[str, Any]:
        """Plain data."""
        ...

    def stop_listening(self) -> None:
        """Nothing is told any more."""
        ...

    def close(self) -> None:
        """Leave, when what was published has gone out, or after some seconds."""
        ...


class SideSubscriber(SubscriberAdapter):
    """The subscriber adapter of one side of a bridge, which has several in its process."""

    _is_only = False

    def registrations(self, listener: Any) -> LookupCache:
        """All publisher registrations, as lookup services tell of them."""
        return self._community.watch(ServiceTemplate(types=(PUBLISHER_TYPE,)), listener)

    def connected(self) -> bool:
        """Whether a lookup service answers."""
        return self._community.connected() > 0

    def lookups(self) -> frozenset[str]:
        """The ids of the lookup services that answer."""
        return frozenset(each.registrar_id for each in self._community.sessions() if each.connected)

    def ask(self, request: QueryRequest, bridge: str) -> RemoteAnswers:
        """Answers of the archives of this platform, its query providers, and other platforms behind other bridges than
        the one that asks, whose server here has that id. Raises as `open_query`."""
        if not self.connected():
            raise LookupNotFoundError("no lookup service of the other platform answers its bridge")
        items = [item for item in self._queries.archives() if item.proxy.service_id != bridge]
        try:
            name, archives = archives_with(request.type, items, is_published=lambda _: False)
        except UnknownUidError:  # nobody has anything of it
            return PlatformAnswers(None)
        own = msgspec.structs.replace(request, type=name)
        draft = QueryDraft(own, archives, request.timeout or QUERY_SECONDS)
        return PlatformAnswers(self._queries.open(draft))


class PlatformAnswers:
    """A query of a platform's archives (see protocol.remote.RemoteAnswers)."""

    def __init__(self, query: Query | None) -> None:
        """None: there is nobody who could be asked."""
        self._query = query

    def __iter__(self) -> Iterator[InfoObject]:
        return iter(self._query if self._query is not None else ())

    @property
    def lacks(self) -> str:
        """Note on what is missing."""
        return "; ".join(self._query.partial) if self._query is not None else ""

    def cancel(self) -> None:
        """Cancel the query."""
        if self._query is not None:
            self._query.cancel()


class JbiPlatform:
    """A platform of our own kind (see Platform), as publishers and subscribers know it: relayed registrations at a
    delegate with some characteristics, and a subscription."""

    def __init__(
        self, name: str, config: Config, delegate: tuple[str | None, str | None], bridge: str, *, durable: str = ""
    ) -> None:
        """`delegate`: the characteristics of one that takes relayed registrations, None for any; `bridge`: our id;
        `durable`: what the subscriptions are called there that go on where a bridge before this one has got to; "":
        they do not. Nobody need be there yet."""
        self._name = name
        self._config = config
        self._delegate = delegate
        self._bridge = bridge
        self._lock = threading.Lock()
        self._connecting = threading.Lock()
        """Held while the delegate is looked for: what lookup services tell is not to wait for that."""
        self._at: DelegateUid | None = None
        self._changed: Callable[[], None] = lambda: None
        self._subscriptions: list[SubscriptionUid] = []
        self._subscriber = SideSubscriber(config, name=f"bridge-{bridge}")
        self._publisher = RelayPublisher(config, name=f"bridge-{bridge}", bridge=bridge)
        self._left: dict[str, tuple[float, ServiceItem]] = {}
        """Registrations that have left, and when (monotonic seconds)."""
        self._server: PeerArchive | None = None
        """By which queries come to the other side."""
        self._cache = self._subscriber.registrations(self)
        self._is_listening = True
        self._durable = durable
        self._listeners: list[_Durably] = []

    @property
    def name(self) -> str:
        """Name in `via`."""
        return self._name

    def lookups(self) -> frozenset[str]:
        """The ids of its lookup services, of those that answer."""
        return self._subscriber.lookups() if self._is_listening else frozenset()

    # -- what is there --------------------------------------------------------------------------------------------

    def published(self) -> Sequence[BridgedRegistration]:
        """Registrations that are there now. One that can't be read is none."""
        found = []
        with self._lock:
            self._left = {uid: one for uid, one in self._left.items() if one[0] > time.monotonic() - LEFT_SECONDS}
            left = {uid: item for uid, (_, item) in self._left.items()}
        standing = {item.service_id: item for item in self._cache.items()}
        for uid, item in (left | standing).items():
            try:
                found.append(listed(item, has_left=uid not in standing))
            except EntryError as exc:
                log.debug("%s: registration %s is left out: %s", self._name, item.service_id[:64], exc)
        return found

    def watch(self, changed: Callable[[], None]) -> None:
        """Have `changed` called when that may have changed."""
        self._changed = changed

    def wanted(self, changed: Callable[[Wanted], None]) -> None:
        """See BridgePlatform: of subscriptions at the delegate that takes relayed registrations, but for our own."""
        self._publisher.watch_interest(self._connected, changed)

    def service_added(self, item: ServiceItem) -> None:  # noqa: ARG002  # the listener's form
        """A registration has come (a ServiceListener)."""
        self._changed()

    def service_changed(self, old: ServiceItem, new: ServiceItem) -> None:  # noqa: ARG002  # as above
        """Tell that a registration is another one."""
        self._changed()

    def service_removed(self, item: ServiceItem) -> None:
        """Keep a registration that has left for a while: its objects may come yet."""
        with self._lock:
            if len(self._left) < LEFT_MOST:
                self._left[item.service_id] = time.monotonic(), item
        self._changed()

    def schema(self, published: BridgedRegistration) -> SchemaBundle:
        """Schema of its type. Raises JbiError while nobody can be asked."""
        if published.at is None:
            return bundle_without(published.type)
        type_, seconds = published.type, self._config.lookup.timeout
        return fetch_schema(published.at, self._config.security(), type_.name, type_.version, timeout=seconds)

    # -- objects from there ---------------------------------------------------------------------------------------

    def subscribe(self, types: Sequence[str], arrived: ObjectReceiver) -> None:
        """Have objects told, from now on. Raises JbiError: then nothing is."""
        made: list[SubscriptionUid] = []
        listeners: list[_Durably] = []
        try:
            for name in types or (None,):
                listener: _SideListener = _SideListener(arrived)
                if self._durable:
                    listeners.append(listener := _Durably(arrived, self._subscriber))
                own = f"{self._durable}-{hashlib.sha256(name.encode()).hexdigest()[:8]}" if name else self._durable
                uid = self._subscriber.register_subscriber(
                    type_name=name, listener=listener, unlike=self._bridge, timeout=CONNECT_SECONDS,
                    durable=own if self._durable else None, ack="explicit" if self._durable else None,
                )  # fmt: skip
                made.append(uid)
        except JbiError:
            for each in listeners:
                each.stop()
            for uid in made:
                self._subscriber.cancel_subscription(uid)
            raise
        self._subscriptions += made
        self._listeners += listeners

    def stop_listening(self) -> None:
        """Nothing is told any more."""
        if self._is_listening:
            self._is_listening = False
            for each in self._listeners:
                each.stop()
            if self._server is not None:
                self._server.stop(0.5)
            self._subscriber.close()

    # -- objects to there -----------------------------------------------------------------------------------------

    def register(
        self,
        published: BridgedRegistration,
        type_: TypeName,
        bundle: SchemaBundle,
        via: tuple[str, ...],
        *,
        validate: bool,
    ) -> None:
        """See BridgePlatform. Raises what the delegate says, DelegateNotFoundError, LookupNotFoundError, WireError."""
        request = PublisherRequest(
            bundle, published.entries, validate, signing=published.signing if type_ == published.type else None,
            qos=Wish(importance=published.importance if "importance" in published.passes else None),
            persist=True if published.is_persistent and "persist" in published.passes else None,
            expiration=published.expiration, sending=published.sending,
        )  # fmt: skip
        self._publisher.register_relayed(self._connected(), published.uid, type_, request, via, first=published.first)

    def _connected(self) -> DelegateUid:
        with self._connecting:
            if self._at is None:
                self._at = self._publisher.connect_to_delegate(*self._delegate, timeout=CONNECT_SECONDS)
            return self._at

    def unregister(self, uid: str, *, waits: bool) -> bool:
        """See BridgePlatform."""
        return self._publisher.unregister_relayed(uid, waits=waits)

    def publish(self, uid: str, obj: InfoObject, source: str, timeout: float) -> None:
        """See BridgePlatform; one that was published already is not again."""
        self._publisher.relay(uid, obj, source, timeout)

    def unfinished(self, uid: str) -> int:
        """Objects that no delegate has acknowledged."""
        return self._publisher.unfinished(uid)

    def tell_filtered(self, uid: str, count: int, up_to: int, timeout: float) -> None:
        """See BridgePlatform."""
        self._publisher.tell_filtered(uid, count, up_to, timeout)

    # -- the past -------------------------------------------------------------------------------------------------

    def query(self, request: QueryRequest) -> RemoteAnswers:
        """Answers of the archives there."""
        return self._subscriber.ask(request, self._server.server_id if self._server is not None else "")

    def provide(self, foreign: RemoteArchive) -> None:
        """Have the queries of those who are there answered by the other side as well: a server here is an archive to
        them. Raises PortInUseError."""
        self._server = PeerArchive(self._config, foreign)

    # -- the rest -------------------------------------------------------------------------------------------------

    def status(self) -> dict[str, Any]:
        """Plain data."""
        delegates = self._publisher.status()["delegates"].values()
        return {
            "kind": "jbi",
            "connected": self._is_listening and self._subscriber.connected(),
            "delegate": next((each["address"] for each in delegates if each["connected"]), ""),
            "published": len(self._cache.items()),
            "refused": sum(each["refused"] for each in delegates),
        }

    def close(self) -> None:
        """Leave, when what was published has gone out, or after some seconds."""
        self.stop_listening()
        self._publisher.close()


class _SideListener:
    """A subscription's listener."""

    def __init__(self, arrived: ObjectReceiver) -> None:
        self._arrived = arrived

    def arrived(self, subscription: SubscriptionUid, obj: InfoObject) -> None:  # noqa: ARG002  # the protocol's
        """An object."""
        self._arrived.arrived(obj)

    def lost(self, subscription: SubscriptionUid, notice: LossNotice) -> None:  # noqa: ARG002  # the protocol's
        """Objects were lost."""
        self._arrived.lost(str(notice.cause), notice.count)


class _Durably(_SideListener):
    """A durable subscription's listener: an object is done there when the other side has taken it."""

    def __init__(self, arrived: ObjectReceiver, subscriber: SubscriberAdapter) -> None:
        super().__init__(arrived)
        self._subscriber = subscriber
        self._lock = threading.Lock()
        self._handed = HandOver[tuple[SubscriptionUid, InfoObject]](self._done)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="bridge-acknowledge", daemon=True)
        self._thread.start()

    def arrived(self, subscription: SubscriptionUid, obj: InfoObject) -> None:
        """An object."""
        if self._stopping.is_set():
            return
        super().arrived(subscription, obj)
        if not self._stopping.is_set():  # or it may have been given up
            with self._lock:
                bare = InfoObject(obj.object_id, obj.type, b"", b"", obj.platform)
                self._handed.add(obj.platform.registration, (subscription, bare))

    def _run(self) -> None:
        while not self._stopping.wait(SETTLE_SECONDS):
            self._settle()
        deadline = time.monotonic() + HANDED_SECONDS
        while self._handed and time.monotonic() < deadline:
            time.sleep(SETTLE_SECONDS)
            self._settle()

    def _settle(self) -> None:
        with self._lock, guarded(self._thread.name):
            self._handed.settle(self._arrived)

    def _done(self, what: tuple[SubscriptionUid, InfoObject]) -> None:
        with suppress(UnknownUidError):
            self._subscriber.acknowledge(what[1], what[0])

    def stop(self) -> None:
        """Nothing is handed over any more; what was is waited for, some seconds."""
        self._stopping.set()
        self._thread.join(HANDED_SECONDS + CONNECT_SECONDS)  # the other side may hang


def shared_lookups(one: BridgePlatform, other: BridgePlatform) -> frozenset[str]:
    """The ids of lookup services that two sides have in common: then they are one platform."""
    if not isinstance(one, JbiPlatform) or not isinstance(other, JbiPlatform):
        return frozenset()
    return one.lookups() & other.lookups()
