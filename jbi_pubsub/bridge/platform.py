"""A platform as a bridge sees it, and the one of our own kind.

Another kind of system is another class with these calls: MQTT is one (mqtt.py), and whoever writes a further one enters
it as the plug-in `platform.X`.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

import msgspec

from jbi_pubsub.codegen.repository import TypeRepository
from jbi_pubsub.codegen.types.untyped import bundle_without
from jbi_pubsub.core.config import Config
from jbi_pubsub.core.errors import EntryError, JbiError, LookupNotFoundError, UnknownUidError
from jbi_pubsub.core.info_object import InfoObject, LossNotice, SchemaBundle, TypeName
from jbi_pubsub.core.signing import SigningKey
from jbi_pubsub.core.wire import ServiceRef
from jbi_pubsub.lookup.client.finder import LookupCache
from jbi_pubsub.lookup.entry import EntryRep
from jbi_pubsub.lookup.item import ServiceItem, ServiceTemplate
from jbi_pubsub.pad.foreign import Answers, Foreign
from jbi_pubsub.pad.proxy import fetch_schema
from jbi_pubsub.pad.server import DisseminationServer
from jbi_pubsub.pad.subscription import (
    PUBLISHER_TYPE,
    ExpirationEntry,
    InformationType,
    LocalEntry,
    NumberedEntry,
    QueryRequest,
    RelayedEntry,
    SigningKeyEntry,
    origin_of,
)
from jbi_pubsub.publisher.light import DelegateUid
from jbi_pubsub.publisher.relay import RelayPublisher
from jbi_pubsub.subscriber import SubscriberAdapter
from jbi_pubsub.subscriber.asking import Asking, archives_with, key_of
from jbi_pubsub.subscriber.query import QUERY_SECONDS, Query
from jbi_pubsub.subscriber.subscription import SubscriptionUid

log = logging.getLogger("jbi_pubsub.bridge")

CONNECT_SECONDS: Final = 1.0
"""For a delegate to be found, at each try."""

LONGEST: Final = 1e11
"""Seconds of an expiration."""

LEFT_SECONDS: Final = 5.0
"""How long a registration is told of that has left: a publisher may come, publish and leave within some ms."""
LEFT_MOST: Final = 10_000

_MADE: Final = {
    each.entry_name for each in (InformationType, SigningKeyEntry, RelayedEntry, NumberedEntry, ExpirationEntry)
}
"""Entries on an item that its delegate has made."""


@dataclass(frozen=True, slots=True)
class Published:
    """A registration as its platform shows it."""

    uid: str
    type: TypeName
    entries: tuple[EntryRep, ...] = ()
    """Of its invariant metadata."""
    signing: SigningKey | None = None
    via: tuple[str, ...] = ()
    """The platforms that its objects have passed before this one."""
    bridge: str = ""
    """Who relays it to this platform; "": its publisher is here."""
    is_local: bool = False
    """It is for those alone who are where it is."""
    expiration: float = 0.0
    """Seconds for which its objects may wait; 0.0: for ever."""
    has_left: bool = field(default=False, compare=False)
    """It was there moments ago, and its last objects may come yet."""
    at: ServiceRef | None = field(default=None, compare=False)
    """Who knows its schema; None: there is none."""
    first: int | None = field(default=None, compare=False)
    """From which number on a bridge has all objects; 0: none has come yet. None: numbers may be left out."""


class Arrived(Protocol):
    """Who is told of a platform's objects. Calls are serial for each subscription, on a thread of the platform's."""

    def arrived(self, obj: InfoObject) -> None:
        """An object. While this waits the platform keeps what comes behind it, as far as its bounds allow."""
        ...

    def lost(self, cause: str, count: int) -> None:
        """Objects were lost on the way to us (0: it is not known how many)."""
        ...


class Platform(Protocol):
    """One side of a bridge. Safe from several threads. What its other side can't be asked raises our errors; whoever is
    given one closes it."""

    @property
    def name(self) -> str:
        """What it is called in `via`, the same in all bridges that it has."""
        ...

    def published(self) -> Sequence[Published]:
        """What is published there now; () as well while it can't be asked."""
        ...

    def watch(self, changed: Callable[[], None]) -> None:
        """Have `changed` called when that may have changed."""
        ...

    def schema(self, published: Published) -> SchemaBundle:
        """Of its type. Raises JbiError while nobody can be asked."""
        ...

    def subscribe(self, types: Sequence[str], arrived: Arrived) -> None:
        """Have objects of some types told, () for all, from now on. Raises JbiError when it can't be done now: nothing
        is told then."""
        ...

    def register(
        self, published: Published, type_: TypeName, bundle: SchemaBundle, via: tuple[str, ...], *, validate: bool
    ) -> None:
        """What is published on the other side is so here from now on, under its id, and what is missing before its
        `first` is told. Raises JbiError."""
        ...

    def unregister(self, uid: str, *, waits: bool) -> bool:
        """Not any more; with `waits` not before all that was published is there: False, it is not."""
        ...

    def publish(self, uid: str, obj: InfoObject, source: str, timeout: float) -> None:
        """An object of the platform `source`. Raises BackPressureError when there is no room within `timeout` seconds,
        JbiError when it is refused."""
        ...

    def tell_filtered(self, uid: str, count: int, up_to: int, timeout: float) -> None:
        """So many objects of a registration, with numbers up to `up_to`, were left out. Raises as `publish`."""
        ...

    def query(self, request: QueryRequest) -> Answers:
        """What archives there have. Raises JbiError."""
        ...

    def provide(self, foreign: Foreign) -> None:
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

    def ask(self, request: QueryRequest, bridge: str) -> Answers:
        """What the archives of this platform have, its query providers, and other platforms behind other bridges than
        the one that asks, whose server here has that id. Raises as `open_query`."""
        if not self.connected():
            raise LookupNotFoundError("no lookup service of the other platform answers its bridge")
        items = [item for item in self._archive_items() if item.proxy.service_id != bridge]
        try:
            name, archives = archives_with(request.type, items, is_published=lambda _: False)
        except UnknownUidError:  # nobody has anything of it
            return Answered(None)
        own = msgspec.structs.replace(request, type=name)
        asking = Asking(own, archives, key_of(own), request.timeout or QUERY_SECONDS)
        return Answered(self._open_query(asking, None))


class Answered:
    """A query of a platform's archives (see pad.foreign.Answers)."""

    def __init__(self, query: Query | None) -> None:
        """None: there is nobody who could be asked."""
        self._query = query

    def __iter__(self) -> Iterator[InfoObject]:
        return iter(self._query if self._query is not None else ())

    @property
    def lacks(self) -> str:
        """What is missing."""
        return "; ".join(self._query.partial) if self._query is not None else ""

    def cancel(self) -> None:
        """It is not wanted any more."""
        if self._query is not None:
            self._query.cancel()


class JbiPlatform:
    """A platform of our own kind (see Platform), as publishers and subscribers know it: relayed registrations at a
    delegate with some characteristics, and a subscription."""

    def __init__(self, name: str, config: Config, delegate: tuple[str | None, str | None], bridge: str) -> None:
        """`delegate`: the characteristics of one that takes relayed registrations, None for any; `bridge`: our id.
        Nobody need be there yet."""
        self._name = name
        self._config = config
        self._delegate = delegate
        self._bridge = bridge
        self._lock = threading.Lock()
        self._at: DelegateUid | None = None
        self._changed: Callable[[], None] = lambda: None
        self._subscriptions: list[SubscriptionUid] = []
        self._subscriber = SideSubscriber(config, name=f"bridge-{bridge}")
        self._publisher = RelayPublisher(config, name=f"bridge-{bridge}", bridge=bridge)
        self._left: dict[str, tuple[float, ServiceItem]] = {}
        """Registrations that have left, and when (monotonic seconds)."""
        self._server: DisseminationServer | None = None
        """By which queries come to the other side."""
        self._cache = self._subscriber.registrations(self)
        self._is_listening = True

    @property
    def name(self) -> str:
        """What it is called in `via`."""
        return self._name

    def lookups(self) -> frozenset[str]:
        """The ids of its lookup services, of those that answer."""
        return self._subscriber.lookups() if self._is_listening else frozenset()

    # -- what is there --------------------------------------------------------------------------------------------

    def published(self) -> Sequence[Published]:
        """What is published there now. A registration that can't be read is none."""
        found = []
        with self._lock:
            self._left = {uid: one for uid, one in self._left.items() if one[0] > time.monotonic() - LEFT_SECONDS}
            left = {uid: item for uid, (_, item) in self._left.items()}
        standing = {item.service_id: item for item in self._cache.items()}
        for uid, item in (left | standing).items():
            try:
                found.append(_published(item, has_left=uid not in standing))
            except EntryError as exc:
                log.debug("%s: registration %s is left out: %s", self._name, item.service_id[:64], exc)
        return found

    def watch(self, changed: Callable[[], None]) -> None:
        """Have `changed` called when that may have changed."""
        self._changed = changed

    def service_added(self, item: ServiceItem) -> None:  # noqa: ARG002  # the listener's form
        """A registration has come (a ServiceListener)."""
        self._changed()

    def service_changed(self, old: ServiceItem, new: ServiceItem) -> None:  # noqa: ARG002  # as above
        """It is another one."""
        self._changed()

    def service_removed(self, item: ServiceItem) -> None:
        """It has left: its objects may come yet."""
        with self._lock:
            if len(self._left) < LEFT_MOST:
                self._left[item.service_id] = time.monotonic(), item
        self._changed()

    def schema(self, published: Published) -> SchemaBundle:
        """Of its type. Raises JbiError while nobody can be asked."""
        if published.at is None:
            return bundle_without(published.type)
        type_, seconds = published.type, self._config.lookup.timeout
        return fetch_schema(published.at, self._config.security(), type_.name, type_.version, timeout=seconds)

    # -- objects from there ---------------------------------------------------------------------------------------

    def subscribe(self, types: Sequence[str], arrived: Arrived) -> None:
        """Have objects told, from now on. Raises JbiError: then nothing is."""
        made: list[SubscriptionUid] = []
        try:
            for name in types or (None,):
                listener = _Listener(arrived)
                uid = self._subscriber.register_subscriber(
                    type_name=name, listener=listener, unlike=self._bridge, timeout=CONNECT_SECONDS
                )
                made.append(uid)
        except JbiError:
            for uid in made:
                self._subscriber.cancel_subscription(uid)
            raise
        self._subscriptions += made

    def stop_listening(self) -> None:
        """Nothing is told any more."""
        if self._is_listening:
            self._is_listening = False
            if self._server is not None:
                self._server.stop(0.5)
            self._subscriber.close()

    # -- objects to there -----------------------------------------------------------------------------------------

    def register(
        self, published: Published, type_: TypeName, bundle: SchemaBundle, via: tuple[str, ...], *, validate: bool
    ) -> None:
        """See Platform. Raises what the delegate says, DelegateNotFoundError, LookupNotFoundError, WireError."""
        self._publisher.register_relayed(
            self._connected(), published.uid, type_, bundle, published.entries, via,
            validate=validate, signing=published.signing if type_ == published.type else None,
            expiration=published.expiration, first=published.first,
        )  # fmt: skip

    def _connected(self) -> DelegateUid:
        with self._lock:
            if self._at is None:
                self._at = self._publisher.connect_to_delegate(*self._delegate, timeout=CONNECT_SECONDS)
            return self._at

    def unregister(self, uid: str, *, waits: bool) -> bool:
        """See Platform."""
        return self._publisher.unregister_relayed(uid, waits=waits)

    def publish(self, uid: str, obj: InfoObject, source: str, timeout: float) -> None:
        """See Platform; one that was published already is not again."""
        self._publisher.relay(uid, obj, source, timeout)

    def tell_filtered(self, uid: str, count: int, up_to: int, timeout: float) -> None:
        """See Platform."""
        self._publisher.tell_filtered(uid, count, up_to, timeout)

    # -- the past -------------------------------------------------------------------------------------------------

    def query(self, request: QueryRequest) -> Answers:
        """What archives there have."""
        return self._subscriber.ask(request, self._server.server_id if self._server is not None else "")

    def provide(self, foreign: Foreign) -> None:
        """Have the queries of those who are there answered by the other side as well: a server here is an archive to
        them. Raises PortInUseError."""
        self._server = DisseminationServer(
            _serving(self._config), TypeRepository(), characteristics=None, foreign=foreign
        )
        self._server.start()

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


class _Listener:
    """A subscription's listener."""

    def __init__(self, arrived: Arrived) -> None:
        self._arrived = arrived

    def arrived(self, subscription: SubscriptionUid, obj: InfoObject) -> None:  # noqa: ARG002  # the protocol's
        """An object."""
        self._arrived.arrived(obj)

    def lost(self, subscription: SubscriptionUid, notice: LossNotice) -> None:  # noqa: ARG002  # the protocol's
        """Objects were lost."""
        self._arrived.lost(str(notice.cause), notice.count)


def shared_lookups(one: Platform, other: Platform) -> frozenset[str]:
    """The ids of lookup services that two sides have in common: then they are one platform."""
    if not isinstance(one, JbiPlatform) or not isinstance(other, JbiPlatform):
        return frozenset()
    return one.lookups() & other.lookups()


def _published(item: ServiceItem, *, has_left: bool) -> Published:
    """Raises EntryError for an item that is no registration."""
    described = next((rep for rep in item.entries if rep.cls.name == InformationType.entry_name), None)
    if described is None:
        raise EntryError("a registration that says nothing of its type", entry_class=InformationType.entry_name)
    told = InformationType.from_rep(described)
    if not told.name or not told.version:
        raise EntryError("a registration without a type", entry_class=InformationType.entry_name)
    key = next((rep for rep in item.entries if rep.cls.name == SigningKeyEntry.entry_name), None)
    origin = origin_of(item.entries)
    return Published(
        item.service_id,
        TypeName(told.name, told.version),
        tuple(rep for rep in item.entries if rep.cls.name not in _MADE),
        SigningKeyEntry.from_rep(key).signing_key() if key is not None else None,
        origin.via if origin is not None else (),
        origin.bridge if origin is not None else "",
        any(rep.cls.name == LocalEntry.entry_name for rep in item.entries),
        _expiration(item),
        has_left,
        item.proxy if told.schema else None,
        origin.first if origin is not None else 0,
    )


def _expiration(item: ServiceItem) -> float:
    """Raises EntryError for what is no time."""
    rep = next((rep for rep in item.entries if rep.cls.name == ExpirationEntry.entry_name), None)
    text = ExpirationEntry.from_rep(rep).seconds if rep is not None else None
    try:
        seconds = float(text or 0.0)
    except ValueError:
        seconds = math.nan
    if not 0.0 <= seconds <= LONGEST:
        raise EntryError("a registration whose expiration is no time", entry_class=ExpirationEntry.entry_name)
    return seconds


def _serving(config: Config) -> Config:
    """What a server of ours for queries needs of a configuration: neither archive nor quality of service nor ports that
    others may have."""
    pad = msgspec.structs.replace(config.pad, port=0, state="", sockets="")
    plain = Config()
    return msgspec.structs.replace(config, pad=pad, archive=plain.archive, qos=plain.qos, metrics=plain.metrics)
