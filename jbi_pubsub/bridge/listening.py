"""Subscriptions of a bridge on one of its sides: to types as wholes, and to what of a type is wanted alone."""

from __future__ import annotations

import hashlib
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final, Generic, NamedTuple, Protocol, TypeVar

import msgspec

from jbi_pubsub.core.errors import JbiError, LookupNotFoundError, UnknownUidError, WireError
from jbi_pubsub.core.guard import guarded
from jbi_pubsub.core.info_object import InfoObject, LossNotice
from jbi_pubsub.core.quality import Importance, Wish
from jbi_pubsub.core.signing import SigningKey
from jbi_pubsub.core.xpath.narrowing import Condition
from jbi_pubsub.lookup.client.finder import LookupCache
from jbi_pubsub.lookup.item import ServiceTemplate
from jbi_pubsub.protocol.conditions import MANY_ATTRIBUTE
from jbi_pubsub.protocol.entries import PUBLISHER_TYPE
from jbi_pubsub.protocol.remote import RemoteAnswers
from jbi_pubsub.protocol.requests import QueryRequest, check_request
from jbi_pubsub.subscriber import SubscriberAdapter
from jbi_pubsub.subscriber.archives import archives_with, types_at
from jbi_pubsub.subscriber.listeners import SubscriptionUid
from jbi_pubsub.subscriber.placed import subscription_of
from jbi_pubsub.subscriber.query import QUERY_SECONDS, Query, QueryDraft
from jbi_pubsub.subscriber.subscription import LocalSubscription

CONNECT_SECONDS: Final = 1.0
"""For a delegate to be found, at each try; for lookup services and delegates to answer."""
SETTLE_SECONDS: Final = 0.02
"""Until it is looked again what the other side has taken."""
HANDED_SECONDS: Final = 5.0
"""For the other side to take what it was handed, when a bridge leaves."""


class Profile(NamedTuple):
    """Interest in a type, whoever has it."""

    where: Condition = ("", ())
    """Objects for which that holds; "" for all."""
    importance: Importance | None = None
    """The wish of whoever is most important."""


class ObjectReceiver(Protocol):
    """Receiver of a platform's objects. Calls are serial for each subscription, on a thread of the platform's."""

    def arrived(self, obj: InfoObject) -> None:
        """An object. While this waits the platform keeps what comes behind it, as far as its bounds allow."""
        ...

    def lost(self, cause: str, count: int, uid: str = "", up_to: int = 0, name: str = "") -> None:
        """Objects were lost on the way to us (0: it is not known how many); with numbers up to `up_to` of that
        registration, and of a type of that name, if these are known."""
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


class SideSubscriber(SubscriberAdapter):
    """The subscriber adapter of one side of a bridge, which has several in its process."""

    _is_only = False
    _since: float | None = None
    """Since when the next subscription stands (monotonic seconds), as whoever it is for has stood; None: from now on.
    Subscriptions of a side are made by one thread."""

    def registrations(self, listener: Any) -> LookupCache:
        """All publisher registrations, as lookup services tell of them."""
        return self._community.watch(ServiceTemplate(types=(PUBLISHER_TYPE,)), listener)

    def connected(self) -> bool:
        """Whether a lookup service answers."""
        return self._community.connected() > 0

    def lookups(self) -> frozenset[str]:
        """The ids of the lookup services that answer."""
        return frozenset(each.registrar_id for each in self._community.sessions() if each.connected)

    def register_side(self, profile: Profile, since: float | None, **options: Any) -> SubscriptionUid:
        """As `register_subscriber`: a subscription for others, who have stood since then. Raises JbiError."""
        where, namespaces = profile.where
        self._since = since
        try:
            return self.register_subscriber(
                predicate=where, namespaces=dict(namespaces), qos=Wish(importance=profile.importance),
                attributes={MANY_ATTRIBUTE: "true"}, timeout=CONNECT_SECONDS, **options,
            )  # fmt: skip
        finally:
            self._since = None

    def _make(self, *args: Any) -> LocalSubscription:
        made = subscription_of(*args)
        if self._since is not None:
            made.stand(self._since)
        return made

    def amend_side(self, uid: SubscriptionUid, profile: Profile, since: float | None) -> None:
        """Have a standing one of these have another profile, between two objects; `since`: those who have come to it
        have stood since then, and get first objects. Raises as `amend_subscription`."""
        local, (where, namespaces) = self._find(uid), profile.where
        with local.terms.amending:
            request = msgspec.structs.replace(
                local.request, predicate=where, namespaces=namespaces, qos=Wish(importance=profile.importance)
            )
            check_request(request)
            local.terms.since = since
            try:
                self._subscriptions.amend(local, request, None, time.monotonic() + CONNECT_SECONDS)
            finally:
                local.terms.since = None

    def waiting(self, uid: SubscriptionUid) -> int:
        """Number of objects that the listener has not taken yet; 0 of a subscription that is gone."""
        with suppress(UnknownUidError):
            queue = self._find(uid).queue
            return len(queue.waiting) + queue.is_served
        return 0

    def ask(self, request: QueryRequest, bridge: str) -> RemoteAnswers:
        """Answers of the archives of this platform, its query providers, and other platforms behind other bridges than
        the one that asks, whose server here has that id. Raises as `open_query`."""
        if not self.connected():
            raise LookupNotFoundError("no lookup service of the other platform answers its bridge")
        items = [item for item in self._queries.archives() if item.proxy.service_id != bridge]
        try:
            name, archives = archives_with(request.type, items, types_at=partial(types_at, self._config))
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

    def signing_key(self, uid: str) -> SigningKey | None:
        """See RemoteAnswers."""
        return self._query.signing_key(uid) if self._query is not None else None

    def cancel(self) -> None:
        """Cancel the query."""
        if self._query is not None:
            self._query.cancel()


class SideSubscriptions:
    """Those of one side; what comes by them goes to a receiver. Calls by one thread, but for `stop`."""

    def __init__(self, subscriber: SideSubscriber, bridge: str, durable: str) -> None:
        """`bridge`: the owner of whose objects nothing comes; `durable`: the beginning of their names, if they are to
        go on where they have got to; "": they are not."""
        self._subscriber = subscriber
        self._bridge = bridge
        self._durable = durable
        self._standing: dict[str, tuple[SubscriptionUid, _SideListener]] = {}
        """By the type's name; of all types by ""."""

    def subscribe(self, types: Sequence[str], arrived: ObjectReceiver) -> None:
        """Have all objects of these types told, () for all. Raises JbiError: then nothing is."""
        try:
            for name in types or ("",):
                self.want(name, Profile(), arrived)
        except JbiError:
            for name in types or ("",):
                with suppress(WireError):
                    self.unwant(name)
            raise

    def want(self, name: str, profile: Profile, arrived: ObjectReceiver, since: float | None = None) -> None:
        """See SelectivePlatform. Raises JbiError: what stood stands as it was."""
        if (standing := self._standing.get(name)) is not None:
            self._subscriber.amend_side(standing[0], profile, since)
            return
        listener = _Durably(arrived, self._subscriber) if self._durable else _SideListener(arrived)
        own = f"{self._durable}-{hashlib.sha256(name.encode()).hexdigest()[:8]}" if name else self._durable
        try:
            uid = self._subscriber.register_side(
                profile, since, type_name=name or None, whole_name=True, listener=listener, unlike=self._bridge,
                durable=own if self._durable else None, ack="explicit" if self._durable else None,
            )  # fmt: skip
        except JbiError:
            listener.stop()
            raise
        self._standing[name] = uid, listener

    def unwant(self, name: str) -> None:
        """Have nothing told of a type any more. Raises WireError as `cancel_subscription`."""
        if (standing := self._standing.pop(name, None)) is not None:
            try:
                with suppress(UnknownUidError):
                    self._subscriber.cancel_subscription(standing[0])
            finally:
                standing[1].stop()

    def waiting(self) -> int:
        """Number of objects that have come, and that the receiver has not taken."""
        return sum(self._subscriber.waiting(uid) for uid, _ in list(self._standing.values()))

    def stop(self) -> None:
        """Nothing is handed over any more."""
        for _, listener in list(self._standing.values()):
            listener.stop()


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

    def stop(self) -> None:
        """Nothing is handed over any more."""


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
