"""Connections: what an application makes its sequences with. Each publishes through a delegate of its own choice; all
connections of a process share its one SubscriberAdapter.

Rules:
- A connection is new, connected (`connect`) or destroyed; `disconnect` makes it new again. In a wrong state a call
  raises ConnectionException, and has changed nothing.
- When the node goes away sequences stay, and come back with it, or at another node that the descriptor fits.
- A process subscribes and asks as one user, at one place: a connection whose credentials or locators say otherwise can
  publish alone.
"""

from __future__ import annotations

import logging
import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from secrets import token_hex
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar

import msgspec

from jbi_pubsub.core.arguments import called
from jbi_pubsub.core.config import Config, effective
from jbi_pubsub.core.errors import ArgumentError, BackPressureError, ConfigurationError, JbiError, WireError
from jbi_pubsub.core.info_object import is_name
from jbi_pubsub.core.wire import ServiceRef
from jbi_pubsub.protocol.services import fetch_status
from jbi_pubsub.publisher import DelegateUid, PublisherAdapterLight
from jbi_pubsub.subscriber import SubscriberAdapter
from jbi_pubsub.subscriber.listeners import ListenerPool

from . import bindings, objects
from .callbacks import ConnectionCallback, QueryProvider
from .errors import (
    CapiException,
    ConnectionException,
    NodeAwayException,
    PlatformFailureException,
    SequenceStateException,
    call,
)
from .metadata_repository import MetadataRepository
from .objects import InfoObject, type_of
from .publisher_sequence import PublisherSequence
from .query_sequence import QuerySequence
from .sequences import InfoObjectSequence, Left, SubscriberSequence

if TYPE_CHECKING:
    from jbi_pubsub.publisher.peer import PeerArchive

log = logging.getLogger("jbi_pubsub.capi")


MAX_NAME: Final = 200
"""Characters of a connection's name."""

_State = Literal["new", "connecting", "connected", "destroyed"]

S = TypeVar("S", bound=InfoObjectSequence)


class NodeDetails(msgspec.Struct, frozen=True, kw_only=True):
    """Details of a node that its clients may know."""

    id: str
    name: str
    location: str
    addresses: tuple[str, ...]
    version: str
    """Version of its software."""
    compression_allowed: bool
    """Whether one more client may have its connection compressed."""
    max_metadata: int
    """Bytes; larger metadata are refused."""
    max_payload: int
    """Bytes; larger payloads are refused."""
    has_archive: bool
    has_type_repository: bool

    @classmethod
    def of(cls, status: Mapping[str, Any], addresses: Iterable[str]) -> NodeDetails:
        """Details by what a node at these addresses says of its state."""
        limits = status.get("limits", {})
        return cls(
            id=str(status.get("node", status["id"])), name=str(status["name"]), location=str(status["location"]),
            addresses=tuple(addresses), version=str(status["version"]),
            compression_allowed=bool(limits["compressed"] > status["compressed"]),
            max_metadata=int(limits["metadata"]), max_payload=int(limits["payload"]),
            has_archive="archive" in status, has_type_repository=bool(limits["types"]),
        )  # fmt: skip


class ConnectionCalls:
    """Calls of a connection's callback, one call after the other, on a thread of its own: it may take its time."""

    def __init__(self, name: str) -> None:
        self._pool = ListenerPool(f"{name}-connection")
        self._lock = threading.Lock()
        self._calls: deque[Callable[[], object]] = deque()
        self._submitted = False

    def tell(self, made: Callable[[], object]) -> None:
        """Soon. Never waits."""
        with self._lock:
            self._calls.append(made)
            if not self._submitted:
                self._submitted = True
                self._pool.submit(self)

    def serve(self) -> bool:
        """Make one call (a pool's Client)."""
        made = self._calls.popleft()
        try:
            called(made)
        except BaseException:  # an application's mistake must not end the next call
            log.exception("the callback of a connection failed")
        with self._lock:
            self._submitted = bool(self._calls)
            return self._submitted

    def stop(self) -> None:
        """No more calls."""
        self._pool.stop()


class Share:
    """The SubscriberAdapter that connections have in common, open as long as one of them uses it."""

    def __init__(self, make: type[SubscriberAdapter] = SubscriberAdapter) -> None:
        self._make = make
        self._lock = threading.Lock()
        self._pid = os.getpid()
        self._adapter: SubscriberAdapter | None = None
        self._config: Config | None = None
        self._users = 0
        self.durables: dict[str, Left | None] = {}
        """See `Owner`."""

    def take(self, config: Config, name: str) -> SubscriberAdapter:
        """One more user. Raises ConnectionException when it is open otherwise, AdapterStateError when the application
        has opened one of its own of the same name."""
        with self._lock:
            if self._pid != os.getpid():  # a forked child: that one is its parent's
                self._pid, self._adapter, self._users = os.getpid(), None, 0
                self.durables.clear()
            if self._adapter is None:
                self._adapter, self._config = self._make(config, name=name), config
            elif self._config != config:
                raise ConnectionException(
                    "another connection of this process subscribes with other credentials, or elsewhere",
                    hint="A process subscribes and asks as one user: use one descriptor and credentials, or processes",
                )
            self._users += 1
            return self._adapter

    def give_back(self) -> None:
        """One user less; the last one closes it."""
        with self._lock:
            self._users -= 1
            adapter = self._adapter if self._users == 0 else None
            if adapter is not None:
                adapter.close()
                self._adapter = None
                self.durables.clear()


_share: Final = Share()
"""That of this process."""


class Connection:
    """See the module. Made by `ConnectionManager.createConnection`; all calls may come from any thread."""

    def __init__(self, name: str, descriptor: bindings.ConnectionDescriptor, config: Config, share: Share) -> None:
        self.name = name
        self.owner = token_hex(16)
        self.durables = share.durables
        self._share = share
        self._descriptor = descriptor
        self._base = config
        self._config = config
        self._lock = threading.Lock()
        self._state: _State = "new"
        self._lights: dict[bool, tuple[PublisherAdapterLight, DelegateUid]] = {}
        """By whether they compress."""
        self._subscriber: SubscriberAdapter | None = None
        self._sequences: set[InfoObjectSequence] = set()
        self._callback: ConnectionCallback | None = None
        self._teller: ConnectionCalls | None = None
        self._provider: PeerArchive | None = None

    # -- connecting ---------------------------------------------------------------------------------------------

    @call
    def authenticate(self, credentials: str) -> None:
        """Say who connects, before `connect`, as a document (schemas/credentials.xsd): a user's name and role, which
        are claims, with a password, or the folder of a certificate, which prove who it is; looked at when it connects.
        Raises InvalidMetadataException, ConnectionException when it is connected or destroyed."""
        said = bindings.read(bindings.Credentials, credentials)
        with self._lock:
            self._require("new")
            self._config = _identified(self._base, said)

    @call
    def connect(self) -> None:
        """Connect to a node that the descriptor fits. Raises ConnectionException (there is none, or it does not answer,
        or the connection is in use or destroyed), PermissionDeniedException."""
        with self._lock:
            self._require("new")
            self._state = "connecting"
        try:
            light = self._open_light(self._config)
        except JbiError:
            with self._lock:
                if self._state == "connecting":
                    self._state = "new"
            raise
        compresses = self._config.link.compression != "none"
        with self._lock:
            is_ours = self._state == "connecting"
            if is_ours:
                self._lights[compresses] = light
                self._state = "connected"
        if not is_ours:
            light[0].close()
            raise ConnectionException("the connection was destroyed meanwhile")

    @call
    def disconnect(self) -> None:
        """Destroy all sequences, after what was published has reached the node, and leave; durable ones are kept there.
        Raises ConnectionException when it is not connected; and PlatformFailureException when something has not reached
        the node within [queue] publish_seconds, and is lost, or why the node has refused an object, as
        publishInfoObject does. It has left all the same."""
        with self._lock:
            self._require("connected")
            self._state = "new"
        self._end()

    @call
    def setConnectionCallback(self, callback: ConnectionCallback | None) -> None:
        """Be told when the node goes away, and when it or another is there again; None for nobody. Raises
        ConnectionException for a destroyed connection."""
        with self._lock:
            self._require("new", "connected")
            self._callback = callback

    # -- sequences ----------------------------------------------------------------------------------------------

    @call
    def createPublisherSequence(self, type: str, version: str) -> PublisherSequence:  # noqa: A002  # the API's word
        """A new sequence, to publish objects of a type. Raises ConnectionException, VersionNumberException,
        UnrecognizedObjectTypeException for what can't be a type's name."""
        return self._keep(PublisherSequence(self, type_of(type, version)))

    @call
    def createSubscriberSequence(self, type: str, version: str) -> SubscriberSequence:  # noqa: A002  # the API's word
        """A new sequence, to get objects of a type. Raises as createPublisherSequence, and ConnectionException when
        other connections of the process subscribe as somebody else."""
        wanted = type_of(type, version)
        self.subscriber()
        return self._keep(SubscriberSequence(self, wanted))

    @call
    def createQuerySequence(self, type: str, version: str) -> QuerySequence:  # noqa: A002  # the API's word
        """A new sequence, to ask archives for objects of a type. Raises as createSubscriberSequence."""
        wanted = type_of(type, version)
        self.subscriber()
        return self._keep(QuerySequence(self, wanted))

    def createInfoObject(self, type: str, version: str, payload: object, metadata: object) -> InfoObject:  # noqa: A002
        """An object to be published: `payload` are bytes, the Path of a file or one that is open, or None, `metadata`
        the text or bytes of an XML document, or None. Raises ConnectionException, VersionNumberException,
        UnrecognizedObjectTypeException, InvalidPayloadException, InvalidMetadataException."""
        if self._state == "connected":  # made for each object: what is plain is made without a further look
            quick = objects.quickly_made(type, version, payload, metadata)
            if quick is not None:
                return quick
        return self._create_info_object(type, version, payload, metadata)

    @call
    def _create_info_object(self, type: str, version: str, payload: object, metadata: object) -> InfoObject:  # noqa: A002
        with self._lock:
            self._require("connected")
        return objects.made(type, version, payload, metadata)

    @call
    def destroySequence(self, sequence: InfoObjectSequence) -> None:
        """End a sequence for good. Raises ConnectionException, SequenceStateException for one that is destroyed, or of
        another connection; and PlatformFailureException when what it has published did not reach the node within
        [queue] publish_seconds: what waits goes out if the node comes back; or why the node has refused an object, as
        publishInfoObject does; NodeAwayException when a node keeps a durable one. It is destroyed all the same."""
        with self._lock:
            self._require("connected")
            if sequence not in self._sequences:
                is_ours = sequence._connection is self
                raise SequenceStateException(
                    "the sequence is destroyed" if is_ours else "the sequence is another connection's", state=3
                )
        sequence.destroy()

    # -- the platform -------------------------------------------------------------------------------------------

    @call
    def getMetadataRepository(self) -> MetadataRepository:
        """The type repository of the node. Raises ConnectionException."""
        with self._lock:
            self._require("connected")
        return MetadataRepository(self._config, self._ref)

    @call
    def getNodeDetails(self) -> NodeDetails:
        """Details of the node that it is connected to now. Raises ConnectionException, PermissionDeniedException."""
        with self._lock:
            self._require("connected")
        with _as_connection():
            said = fetch_status(self._ref(), self._config.security(), timeout=self._config.lookup.timeout)
        return NodeDetails.of(said, self.node_addresses())

    @call
    def registerQueryProvider(self, provider: QueryProvider | None) -> None:
        """Have `provider` asked by queries that ask everybody (`executeDistributedQuery`), wherever they come from, as
        long as the connection lasts; None for nobody any more. Rules of this process ([policy] file) say who may ask.
        Raises ConnectionException, PlatformFailureException."""
        with self._lock:
            self._require("connected")
        made = None
        if provider is not None:
            from .provider import provide  # here: a client that is none needs no server

            made = provide(provider, self._config, self.name)
        with self._lock:
            is_connected = self._state == "connected"
            if is_connected:
                made, self._provider = self._provider, made
        if made is not None:
            made.stop()
        if not is_connected:
            raise ConnectionException("the connection was ended meanwhile")

    # -- for sequences ------------------------------------------------------------------------------------------

    def publisher(self, *, compress: bool | None) -> tuple[PublisherAdapterLight, DelegateUid]:
        """The adapter to publish with, compressed or not; None: as [link] compression says."""
        base = self._config.link.compression != "none"
        wanted = base if compress is None else compress
        with self._lock:
            self._require("connected")
            if (found := self._lights.get(wanted)) is not None:
                return found
        link = msgspec.structs.replace(self._config.link, compression="deflate" if wanted else "none")
        made = self._open_light(msgspec.structs.replace(self._config, link=link))
        with self._lock:
            kept = self._lights.setdefault(wanted, made) if self._state == "connected" else None
        if kept is not made:
            made[0].close()
        if kept is None:
            raise ConnectionException("the connection was ended meanwhile")
        return kept

    def subscriber(self) -> SubscriberAdapter:
        """The adapter to subscribe and ask with."""
        with self._lock:
            self._require("connected")
            if self._subscriber is None:
                self._subscriber = self._share.take(self._config, self.name)
            return self._subscriber

    def node_addresses(self) -> list[str]:
        """Addresses of the node that it is connected to now. Raises ConnectionException."""
        with self._lock:
            self._require("connected")
            light, delegate = next(iter(self._lights.values()))
        address = light.status()["delegates"][delegate]["address"]
        return [each for each in str(address).split(", ") if each]

    def forget(self, sequence: InfoObjectSequence) -> None:
        """Forget a sequence that is destroyed."""
        with self._lock:
            self._sequences.discard(sequence)

    def destroy(self) -> None:
        """For the manager. Raises ConnectionException when it is destroyed already."""
        with self._lock:
            self._require("new", "connecting", "connected")
            was_connected, self._state = self._state == "connected", "destroyed"
        if was_connected:
            self._end()

    # -- inside -------------------------------------------------------------------------------------------------

    def _end(self) -> None:
        """Give up all that it has; a step that fails leaves the others to be done. Raises why the first has."""
        with self._lock:
            sequences = list(self._sequences)  # they are told what the node refuses until they are destroyed
            lights, self._lights = list(self._lights.values()), {}
            subscriber, self._subscriber = self._subscriber, None
            teller, self._teller = self._teller, None
            provider, self._provider = self._provider, None
        if provider is not None:
            provider.stop()
        failed = _failures(
            *(partial(_hand_over, light, self._config.queue.publish_seconds) for light, _ in lights),
            *(partial(sequence.destroy, leave=True) for sequence in sequences),
        )
        for light, _ in lights:
            light.close(0.0 if failed else self._config.queue.publish_seconds)
        if subscriber is not None:
            self._share.give_back()
        if teller is not None:
            teller.stop()
        if failed:
            raise failed[0]

    def _open_light(self, config: Config) -> tuple[PublisherAdapterLight, DelegateUid]:
        light = PublisherAdapterLight(config, name=self.name, refused=self._refused, away=self._away)
        timeout = self._descriptor.timeout
        try:
            with _as_connection():
                return light, light.connect_to_delegate(
                    self._descriptor.name,
                    self._descriptor.location,
                    timeout=None if timeout is None else timeout / 1000,
                )
        except JbiError:
            light.close()
            raise

    def _keep(self, sequence: S) -> S:
        with self._lock:
            self._require("connected")
            self._sequences.add(sequence)
        return sequence

    def _ref(self) -> ServiceRef:
        """Where the node is now."""
        addresses = self.node_addresses()
        if not addresses:
            raise NodeAwayException("the node is away")
        return ServiceRef("", "", tuple(addresses))

    def _refused(self, uid: str, error: JbiError) -> None:
        """The node has refused an object, or a lookup service to list a registration: its sequence is told."""
        with self._lock:
            sequences = [each for each in self._sequences if isinstance(each, PublisherSequence)]
        for sequence in sequences:
            if sequence.published(uid):
                sequence.refused(uid, error)

    def _away(self, delegate: str, why: str) -> None:
        with self._lock:
            callback = self._callback
            if callback is None or self._state != "connected" or delegate != next(iter(self._lights.values()))[1]:
                return
            if self._teller is None:
                self._teller = ConnectionCalls(self.name)
            teller = self._teller
        if why:
            teller.tell(lambda: callback.connectionLost(why))
        else:
            teller.tell(getattr(callback, "connectionRestored", lambda: None))

    def _require(self, *states: _State) -> None:
        """Under the lock. Raises ConnectionException."""
        if self._state not in states:
            state = "not connected" if self._state == "new" else self._state
            raise ConnectionException(
                f"the connection {self.name!r} is {state}",
                hint="Call connect() first" if self._state == "new" else "",
                state=self._state,
            )


def _identified(base: Config, said: bindings.Credentials) -> Config:
    """The configuration of who connects. Raises ConnectionException for a certificate that is no good."""
    given = {"user": said.user, "password": said.password, "role": said.role}
    client = {key: value for key, value in given.items() if value is not None}
    config = msgspec.structs.replace(base, client=msgspec.structs.replace(base.client, **client))
    if said.certificate is not None:
        tls = msgspec.structs.replace(config.tls, folder=said.certificate, certificate="", key="", ca="")
        config = msgspec.structs.replace(config, tls=tls)
        with _as_connection():
            config.security()
    return config


@contextmanager
def _as_connection() -> Iterator[None]:
    """A configuration, or certificate, that is no good, or a node that does not answer, is the connection's failure."""
    try:
        yield
    except (ConfigurationError, WireError) as exc:
        if isinstance(exc, CapiException):
            raise
        kind = NodeAwayException if isinstance(exc, WireError) else ConnectionException
        raise kind(exc.message, hint=exc.hint, **exc.facts) from exc


def _failures(*steps: Callable[[], None]) -> list[JbiError]:
    """Take all steps; why some have failed, which leaves the others to be taken."""
    failed = []
    for step in steps:
        try:
            step()
        except SequenceStateException:
            pass  # destroyed by somebody else, at the same moment
        except JbiError as exc:
            log.warning("a connection did not end in order: %s", exc)
            failed.append(exc)
    return failed


def _hand_over(light: PublisherAdapterLight, seconds: float) -> None:
    """Wait until the node has what was published. Raises PlatformFailureException."""
    try:
        light.flush(seconds)
    except BackPressureError as exc:
        raise PlatformFailureException(f"{exc.message}; they are lost") from exc


class ConnectionManager:
    """Makes connections. Without arguments its configuration is that of the process (jbi.toml, JBI_*), and they share
    the process's one SubscriberAdapter; `share` is for who acts for several users in one."""

    def __init__(self, config: Config | None = None, share: Share = _share) -> None:
        self._config = config
        self._share = share
        self._lock = threading.Lock()
        self._connections: set[Connection] = set()

    @call
    def createConnection(self, name: str, descriptor: str | None = None) -> Connection:
        """A new connection, which is not connected yet. `name` is the publisher's that others see, `descriptor` where
        it goes, as a document (schemas/connection.xsd); "" or None: any node that the configuration leads to. Raises
        InvalidMetadataException, ArgumentError for a bad name, ConnectionException for a bad configuration."""
        said = (
            bindings.read(bindings.ConnectionDescriptor, descriptor) if descriptor else bindings.ConnectionDescriptor()
        )
        if not name.strip() or len(name) > MAX_NAME or not is_name(name):
            hint = f"1 to {MAX_NAME} printable characters"
            raise ArgumentError(f"{name[:60]!r} is not a name of a connection", hint=hint, argument="name")
        with _as_connection():
            config = self._config or effective()
        lookup = config.lookup
        if said.locator or said.group:
            lookup = msgspec.structs.replace(
                lookup, locators=said.locator or lookup.locators, groups=said.group or lookup.groups
            )
        made = Connection(name, said, msgspec.structs.replace(config, lookup=lookup), self._share)
        with self._lock:
            self._connections.add(made)
        return made

    @call
    def destroyConnection(self, connection: Connection) -> None:
        """End a connection for good; as `disconnect`, if it is connected. Raises ConnectionException for one that is
        destroyed, or of another manager, and as `disconnect`: it is destroyed all the same."""
        with self._lock:
            if connection not in self._connections:
                raise ConnectionException("the connection is destroyed, or another manager's")
            self._connections.discard(connection)
        connection.destroy()
