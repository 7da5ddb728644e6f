"""A platform as a bridge sees it, and the one of our own kind.

Another kind of system is another class with these calls: MQTT is one (mqtt.py), and whoever writes a further one enters
it as the plug-in `platform.X`.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol, runtime_checkable

from jbi_pubsub.codegen.types.untyped import bundle_without
from jbi_pubsub.core.config import Config
from jbi_pubsub.core.errors import ConfigurationError, EntryError
from jbi_pubsub.core.info_object import InfoObject, SchemaBundle, TypeName
from jbi_pubsub.core.quality import Wish
from jbi_pubsub.lookup.item import ServiceItem
from jbi_pubsub.protocol.remote import RemoteAnswers, RemoteArchive
from jbi_pubsub.protocol.requests import PublisherRequest, QueryRequest
from jbi_pubsub.protocol.services import fetch_schema
from jbi_pubsub.protocol.wanted import EVERYTHING, Wanted
from jbi_pubsub.publisher.light import DelegateUid
from jbi_pubsub.publisher.peer import PeerArchive
from jbi_pubsub.publisher.relay import RelayPublisher

from .listed import BridgedRegistration as BridgedRegistration
from .listed import listed
from .listening import CONNECT_SECONDS, Profile, SideSubscriptions
from .listening import ObjectReceiver as ObjectReceiver
from .listening import PlatformAnswers as PlatformAnswers
from .listening import SideSubscriber as SideSubscriber

log = logging.getLogger("jbi_pubsub.bridge")

LEFT_SECONDS: Final = 5.0
"""Time that a registration is told of that has left: a publisher may come, publish and leave within some ms."""
LEFT_MOST: Final = 10_000


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

    def wanted(self, changed: Callable[[Wanted], None], *, members: bool = False) -> None:  # noqa: ARG002  # others say it
        """Have `changed` called with what those who are here want of the other side, now and when it has changed; it
        must not wait. `members`: with who wants it. Of what does not say that, all is wanted."""
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

    def publish(self, uid: str, obj: InfoObject, source: str, timeout: float, waited: float = 0.0) -> None:
        """An object of the platform `source`, which has `waited` so many seconds here. Raises BackPressureError when
        there is no room within `timeout` seconds, JbiError when it is refused."""
        ...

    def unfinished(self, uid: str) -> int:
        """Objects of a registration that were published and are not acknowledged here: if we are killed they may be
        lost."""
        ...

    def tell_filtered(self, uid: str, count: int, up_to: int, timeout: float, *, lost: bool = False) -> None:
        """So many objects of a registration, with numbers up to `up_to`, were left out (0: nobody here lacks one); or
        `lost`, of one that is sparse (0: it is not known how many; `up_to` may be less than their numbers). Raises as
        `publish`."""
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


@runtime_checkable
class SelectivePlatform(Protocol):
    """One that can be asked for some objects of a type alone. Calls by one thread."""

    def want(self, name: str, profile: Profile, arrived: ObjectReceiver, since: float | None = None) -> None:
        """Have objects of the types of that name told for which a profile holds, or of those that are told already by
        another one: nothing is lost or comes twice by that. `since`: whoever wants them has stood since then (monotonic
        seconds), and gets first objects. What can't choose tells all. Raises JbiError: what was told still is."""
        ...

    def unwant(self, name: str) -> None:
        """Have nothing of these types told any more."""
        ...


class JbiPlatform:
    """A platform of our own kind (see Platform), as publishers and subscribers know it: relayed registrations at a
    delegate with some characteristics, and a subscription."""

    def __init__(
        self, name: str, config: Config, delegate: tuple[str | None, str | None], bridge: str, *, durable: str = ""
    ) -> None:
        """`delegate`: the characteristics of one that takes relayed registrations, None for any; `bridge`: our id;
        `durable`: what the subscriptions are called there that go on where a bridge before this one has got to; "":
        they do not. Nobody need be there yet."""
        self.name = name
        """Name in `via`."""
        self._config = config
        self._delegate = delegate
        self._lock = threading.Lock()
        self._connecting = threading.Lock()
        """Held while the delegate is looked for: what lookup services tell is not to wait for that."""
        self._at: DelegateUid | None = None
        self._changed: Callable[[], None] = lambda: None
        self.client: Final = f"bridge-{bridge}"
        """Name of the clients that we are there."""
        self._subscriber = SideSubscriber(config, name=self.client)
        self._subscriptions = SideSubscriptions(self._subscriber, bridge, durable)
        self._publisher = RelayPublisher(config, name=self.client, bridge=bridge)
        self._left: dict[str, tuple[float, ServiceItem]] = {}
        """Registrations that have left, and when (monotonic seconds)."""
        self._server: PeerArchive | None = None
        """By which queries come to the other side."""
        self._cache = self._subscriber.registrations(self)
        self._is_listening = True

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
                log.debug("%s: registration %s is left out: %s", self.name, item.service_id[:64], exc)
        return found

    def watch(self, changed: Callable[[], None]) -> None:
        """Have `changed` called when that may have changed."""
        self._changed = changed

    def wanted(self, changed: Callable[[Wanted], None], *, members: bool = False) -> None:
        """See BridgePlatform: of subscriptions at the delegate that takes relayed registrations, but for our own."""
        self._publisher.watch_interest(self._connected, changed, members=members)

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
        self._subscriptions.subscribe(types, arrived)

    def want(self, name: str, profile: Profile, arrived: ObjectReceiver, since: float | None = None) -> None:
        """See SelectivePlatform. Raises JbiError: what stood stands as it was."""
        self._subscriptions.want(name, profile, arrived, since)

    def unwant(self, name: str) -> None:
        """See SelectivePlatform."""
        self._subscriptions.unwant(name)

    def waiting(self) -> int:
        """Number of objects that have come from there and are not handed over."""
        return self._subscriptions.waiting()

    def flush(self, timeout: float) -> None:
        """Wait until what was published there is there. Raises BackPressureError after so many seconds."""
        self._publisher.flush(timeout)

    def stop_publishing(self, timeout: float) -> None:
        """Nothing is published there any more; what was has so many seconds."""
        self._publisher.close(timeout)

    def stop_listening(self) -> None:
        """Nothing is told any more."""
        if self._is_listening:
            self._is_listening = False
            self._subscriptions.stop()
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
        self._publisher.register_relayed(
            self._connected(), published.uid, type_, request, via,
            first=published.first, is_sparse=published.is_sparse,
        )  # fmt: skip

    def _connected(self) -> DelegateUid:
        with self._connecting:
            if self._at is None:
                self._at = self._publisher.connect_to_delegate(*self._delegate, timeout=CONNECT_SECONDS)
            return self._at

    def unregister(self, uid: str, *, waits: bool) -> bool:
        """See BridgePlatform."""
        return self._publisher.unregister_relayed(uid, waits=waits)

    def publish(self, uid: str, obj: InfoObject, source: str, timeout: float, waited: float = 0.0) -> None:
        """See BridgePlatform; one that was published already is not again."""
        self._publisher.relay(uid, obj, source, timeout, waited)

    def unfinished(self, uid: str) -> int:
        """Objects that no delegate has acknowledged."""
        return self._publisher.unfinished(uid)

    def tell_filtered(self, uid: str, count: int, up_to: int, timeout: float, *, lost: bool = False) -> None:
        """See BridgePlatform."""
        self._publisher.tell_filtered(uid, count, up_to, timeout, lost=lost)

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


def check_apart(one: BridgePlatform, other: BridgePlatform) -> None:
    """Raises ConfigurationError for sides that have a lookup service in common: they are one platform."""
    if isinstance(one, JbiPlatform) and isinstance(other, JbiPlatform) and (shared := one.lookups() & other.lookups()):
        raise ConfigurationError(
            f"they are one platform, as lookup service {min(shared)} is found on both sides. Give their servers"
            " groups of their own, or start them with --no-multicast"
        )
