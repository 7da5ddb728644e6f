"""Clients of what a delegate exports: publishers, subscribers and administrators call an object each (paper 2.3.1).

A subscriber gets `SubscriptionsProxy` through the lookup service; publisher calls can't be reached through it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from typing import Any, Final, TypeVar

import msgspec

from jbi_pubsub.core.access import ADMIN
from jbi_pubsub.core.config import Config
from jbi_pubsub.core.descriptors import MAX_DESCRIPTORS, Descriptor, Key, Kind, Property, StoredType, TypeChange
from jbi_pubsub.core.errors import ProtocolError
from jbi_pubsub.core.history import GivenUp, Progress, TakenIn
from jbi_pubsub.core.info_object import Cause, SchemaBundle, TypeName
from jbi_pubsub.core.lease import Lease
from jbi_pubsub.core.quality import PolicyChanged
from jbi_pubsub.core.renewal import RENEW_AT
from jbi_pubsub.core.signing import SigningKey
from jbi_pubsub.core.wire import ServiceRef
from jbi_pubsub.core.wire.control import DEFAULT_TIMEOUT, ControlClient
from jbi_pubsub.core.wire.endpoint import Security
from jbi_pubsub.protocol.mail_links import LinkAction
from jbi_pubsub.protocol.replies import (
    Answers,
    ArchivedSource,
    DeletionCount,
    ObjectCount,
    OpenReply,
    QueryExplanation,
    QueryOpened,
    Registered,
    SubscribeReply,
)
from jbi_pubsub.protocol.requests import PublisherRequest, QueryRequest, Start, SubscriptionRequest
from jbi_pubsub.protocol.status.terms import TERMS_MOST, Terms
from jbi_pubsub.protocol.wanted import Wanted

T = TypeVar("T")

DELEGATE: Final = "delegate"
SUBSCRIPTIONS: Final = "subscriptions"
STATUS: Final = "status"
JOIN_ADMIN: Final = "join_admin"
TYPES: Final = "types"
MAIL_LINKS: Final = "mail_links"
BRIDGING: Final = "bridging"
HISTORY: Final = "history"
"""Service of a delegate or peer publisher with an archive: its item has an Entry `jbi.Archive`."""

DELEGATE_METHODS: Final = (
    "connect", "renew", "disconnect", "register", "unregister", "filtered", "open_publications",
    "wait_for_subscriptions",
)  # fmt: skip

SUBSCRIPTIONS_METHODS: Final = (
    "open", "renew", "close", "subscribe", "unsubscribe", "open_deliveries", "mail_subscriptions", "renew_mail",
    "explain", "explain_object", "signing_key", "mail_losses", "durable_subscriptions",
)  # fmt: skip

HISTORY_METHODS: Final = (
    "open_query", "cancel_query", "progress", "count", "explain_query", "reset", "end_durable", "delete", "retain",
    "rebuild", "take_in", "describe", "types_called",
)  # fmt: skip

RENEW_SECONDS: Final = 5.0
"""For renewing a lease: it is tried again until it runs out, so one try need not last. Where the term leaves more than
that (three fifths of it, see core/renewal.py), a try may take as long as any call: behind a slow link's queue an answer
takes seconds, and to begin again costs more of them."""

SUBSCRIBE_AT_ONCE: Final = 1_000
"""Subscriptions in one call, at most: they take a delegate a tenth of a second."""

OPENING_SECONDS: Final = 20.0
"""For a schema that was not seen before: twice the processor time that it may take (core/child.py)."""

WANTED_SECONDS: Final = 5.0
"""The longest that one call waits for another interest: it is made over a connection of its own."""

STANDING_SECONDS: Final = 0.2
"""The longest that one call waits for subscriptions, as other calls of the connection wait behind it: who wants to wait
longer asks again."""


class Claims(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Claims of an application about its user ([client] user, role): where there is a certificate that counts."""

    user: str = ""
    role: str = ""


NO_CLAIMS: Final = Claims()


def _client(
    ref: ServiceRef, exported: str, security: Security, timeout: float, methods: tuple[str, ...] = ()
) -> ControlClient:
    """A client of what the server that has `ref` exports under a name; `methods` () for any."""
    own = msgspec.structs.replace(ref, exported=exported, methods=methods)
    return ControlClient(own, security, timeout=timeout)


class _LeasedProxy:
    """Base of both proxies. Leases are renewed over a connection of their own: a long call must not cost a lease."""

    def __init__(self, ref: ServiceRef, security: Security, *, timeout: float) -> None:
        self.ref = ref
        self._client = ControlClient(ref, security, timeout=timeout)
        self._renewing = ControlClient(ref, security, timeout=timeout)
        self._most = timeout

    def renew(self, lease_id: str, duration: float) -> Lease:
        """Renew a lease granted there. Only the term comes back: who renews often pays for each byte."""
        seconds = min(self._most, max(RENEW_SECONDS, (1 - RENEW_AT) * duration))
        return Lease(lease_id, self._renewing.call("renew", float, lease_id, duration, timeout=seconds))

    def close(self) -> None:
        """Close the connections."""
        self._client.close()
        self._renewing.close()


class DelegateProxy(_LeasedProxy):
    """Calls of a publishing application. Each raises the delegate's errors, WireError or WireTimeoutError."""

    def connect(self, name: str, duration: float, claims: Claims = NO_CLAIMS) -> OpenReply:
        """Connect under a lease (paper section 2.4(1))."""
        return self._client.call("connect", OpenReply, name, duration, claims)

    def disconnect(self, connection_id: str, timeout: float | None = None) -> None:
        """Leave, with all registrations, within `timeout` seconds."""
        self._client.call("disconnect", None, connection_id, timeout=timeout)

    def register(self, connection_id: str, request: PublisherRequest, uid: str, number: int) -> Registered:
        """Register what will be published, under an id and a number of the publisher's choice."""
        return self._client.call("register", Registered, connection_id, request, uid, number)

    def unregister(self, connection_id: str, uid: str) -> None:
        """Take a registration back."""
        self._client.call("unregister", None, connection_id, uid)

    def wait_for_subscriptions(self, connection_id: str, uid: str, count: int, seconds: float) -> int:
        """Number of subscriptions that a registration matches, as soon as there are `count`, or after `seconds`, at
        most STANDING_SECONDS."""
        return self._client.call("wait_for_subscriptions", int, connection_id, uid, count, seconds)

    def open_publications(self, connection_id: str) -> str:
        """A token for the data connection on which objects are published."""
        return self._client.call("open_publications", str, connection_id)


class SubscriptionsProxy(_LeasedProxy):
    """Calls of a subscribing application. Each raises the delegate's errors, WireError or WireTimeoutError."""

    opened_at = 0.0
    """When the session was opened, by our clock (monotonic seconds), or later by the way of an answer at most: of the
    fastest one. Ties the delegate's clock to ours."""

    def open(self, name: str, duration: float, claims: Claims = NO_CLAIMS) -> OpenReply:
        """Open a session for this process under a lease."""
        opened: OpenReply = self._client.call("open", OpenReply, name, duration, claims)
        self.opened_at = time.monotonic()
        return opened

    def close_session(self, session_id: str, timeout: float | None = None) -> None:
        """End the session and its subscriptions."""
        self._client.call("close", None, session_id, timeout=timeout)

    def subscribe(
        self,
        session_id: str,
        requests: Sequence[SubscriptionRequest],
        duration: float,
        ages: Sequence[float],
        claims: Claims = NO_CLAIMS,
    ) -> tuple[SubscribeReply, ...]:
        """Register subscriptions, an answer for each; `duration` is for the leases of e-mail-only ones; `ages`: since
        when each stands (see Delegate.subscribe)."""
        elapsed = time.monotonic() - self.opened_at if session_id else 0.0
        asked = (session_id, tuple(requests), duration, tuple(ages), elapsed, claims)
        given: Answers = self._client.call("subscribe", Answers, *asked)
        if given.open_for > 0:
            self.opened_at = min(self.opened_at, time.monotonic() - given.open_for)
        return given.answers

    def unsubscribe(self, right: str, uid: str) -> None:
        """Cancel it, by the session id, the lease id of an e-mail-only one, or "" as an administrator."""
        self._client.call("unsubscribe", None, right, uid)

    def open_deliveries(self, session_id: str) -> str:
        """A token for the data connection on which objects are delivered."""
        return self._client.call("open_deliveries", str, session_id)

    def explain(self, uid: str, metadata: bytes, payload: bytes) -> dict[str, Any]:
        """Why an object would be delivered to the subscription, or not."""
        return self._client.call("explain", dict[str, Any], uid, metadata, payload)

    def explain_object(self, uid: str, object_id: str) -> dict[str, Any]:
        """The same for an object that was published there some seconds ago."""
        return self._client.call("explain_object", dict[str, Any], uid, object_id)

    def signing_key(self, uid: str, timeout: float) -> SigningKey | None:
        """Key that signs the objects of a registration there, or what the delegate of that id says."""
        return self._client.call("signing_key", SigningKey | None, uid, timeout=timeout)

    def mail_subscriptions(self) -> list[dict[str, Any]]:
        """The e-mail-only subscriptions that live there."""
        return self._client.call("mail_subscriptions", list[dict[str, Any]])

    def durable_subscriptions(self) -> list[dict[str, Any]]:
        """The durable subscriptions that the archive there knows by name, and how far each has come."""
        return self._client.call("durable_subscriptions", list[dict[str, Any]])

    def mail_losses(self, lease_ids: Sequence[str]) -> dict[str, dict[Cause, int]]:
        """Losses so far of e-mail-only subscriptions, by their ids: of those with these leases, SUBSCRIBE_AT_ONCE at
        most, of which something was lost."""
        return self._client.call("mail_losses", dict[str, dict[Cause, int]], tuple(lease_ids))

    def renew_mail(self, uid: str, duration: float) -> Lease:
        """Renew the lease of an e-mail-only subscription as an administrator."""
        return self._client.call("renew_mail", Lease, uid, duration)


class _ServerProxy:
    """Base of the proxies that go by any reference of a server: what they call has a name of its own there."""

    _exported: str
    _methods: tuple[str, ...] = ()

    def __init__(self, ref: ServiceRef, security: Security, *, timeout: float) -> None:
        """`ref` may be any of the server's."""
        self._client = _client(ref, self._exported, security, timeout, self._methods)
        self._timeout = timeout

    def close(self) -> None:
        """Close the connection; a call under way ends."""
        self._client.close()


class HistoryProxy(_ServerProxy):
    """Calls of a subscribing application to an archive. Each raises the delegate's errors, WireError or
    WireTimeoutError."""

    _exported = HISTORY
    _methods = HISTORY_METHODS

    def open_query(self, session_id: str, request: QueryRequest, claims: Claims = NO_CLAIMS) -> QueryOpened:
        """Ask; it ends with the session, at last. Everything is seen that was acknowledged to its publisher before.
        Raises PredicateError, AccessDeniedError (there is no type that the caller may read), BackPressureError (too
        many are open), QosDeniedError, UnknownUidError (no such session), StorageError."""
        return self._client.call("open_query", QueryOpened, session_id, request, claims)

    def cancel_query(self, session_id: str, number: int) -> None:
        """Cancel a query: FINISHED comes, behind at most what is on its way. One that has ended is none."""
        self._client.call("cancel_query", None, session_id, number)

    def progress(self, session_id: str, number: int) -> Progress:
        """Progress of a query. Raises UnknownUidError for one that has ended."""
        return self._client.call("progress", Progress, session_id, number)

    def count(self, request: QueryRequest, seconds: float, claims: Claims = NO_CLAIMS) -> ObjectCount:
        """Count the objects that there are, within so many seconds. Raises as `open_query`, and WireTimeoutError."""
        most = self._timeout + seconds
        return self._client.call("count", ObjectCount, request, seconds, claims, timeout=most)

    def explain_query(self, request: QueryRequest, claims: Claims = NO_CLAIMS) -> QueryExplanation:
        """Explain how a query would be answered. Raises as `open_query`."""
        return self._client.call("explain_query", QueryExplanation, request, claims)

    def reset(self, name: str, secret: str, start: Start, claims: Claims = NO_CLAIMS) -> bool:
        """Have the durable subscription of that name and owner go on from there when it is opened the next time, now if
        it is open; whether there is one. Raises AccessDeniedError, StorageError."""
        return self._client.call("reset", bool, name, secret, start, claims)

    def end_durable(self, name: str, secret: str, claims: Claims = NO_CLAIMS) -> bool:
        """Forget the durable subscription of that name and owner; whether there was one. Raises AccessDeniedError,
        ConfigurationError while a process has it open, StorageError."""
        return self._client.call("end_durable", bool, name, secret, claims)

    def delete(self, request: QueryRequest, seconds: float) -> DeletionCount:
        """Delete what a query finds, within so many seconds, as an administrator: gone from every answer when this
        returns, from the disk soon, and it does not come back. Raises AccessDeniedError, PredicateError, StorageError,
        also when there are more."""
        return self._client.call("delete", DeletionCount, request, seconds, timeout=self._timeout + seconds)

    def retain(self, *, is_dry: bool, seconds: float) -> tuple[GivenUp, ...]:
        """Give up now what the rules say, or say what that would be, as an administrator: of each volume of which
        something goes. Raises AccessDeniedError, StorageError."""
        return self._client.call("retain", tuple[GivenUp, ...], is_dry, seconds, timeout=self._timeout + seconds)

    def rebuild(self) -> None:
        """Make the index anew, in the background, as an administrator. Raises AccessDeniedError, StorageError."""
        self._client.call("rebuild", None)

    def take_in(self, objects: Sequence[bytes], of: Sequence[ArchivedSource], seconds: float) -> TakenIn:
        """Keep objects (their bytes on the wire) that were published elsewhere, or before, as an administrator; `of`:
        what is known of their registrations. Raises AccessDeniedError, StorageError, and for one that is none
        ProtocolError, MetadataError or EntryError: then none of them is kept."""
        return self._client.call("take_in", TakenIn, tuple(objects), tuple(of), timeout=self._timeout + seconds)

    def describe(self, uids: Sequence[str], claims: Claims = NO_CLAIMS) -> tuple[ArchivedSource, ...]:
        """Those of these registrations of which something is archived, and that the caller may query. Raises
        AccessDeniedError, StorageError."""
        return self._client.call("describe", tuple[ArchivedSource, ...], tuple(uids), claims)

    def types_called(self, name: str, claims: Claims = NO_CLAIMS) -> tuple[str, ...]:
        """Types that are archived there, may be queried by the caller, and have that name, or have it as the last part
        of theirs. Raises AccessDeniedError when there are some and none may be, ConfigurationError where another
        platform answers, StorageError."""
        return self._client.call("types_called", tuple[str, ...], name, claims)


def follow_link(ref: ServiceRef, security: Security, action: LinkAction, token: str, *, timeout: float) -> None:
    """Do what a link of a mail says, at the delegate or peer publisher that `ref` is of. Raises UnknownUidError when
    its subscription is not there, StorageError, WireError."""
    with closing(_client(ref, MAIL_LINKS, security, timeout)) as client:
        client.call("follow", None, action, token)


def patience(config: Config) -> float:
    """Factor by which whoever looks at servers waits longer for each, over long links: [lookup] timeout in its
    default."""
    return max(1.0, config.lookup.timeout / DEFAULT_TIMEOUT)


def fetch_status(ref: ServiceRef, security: Security, *, timeout: float) -> dict[str, Any]:
    """The status of any server of ours, as plain data. Raises WireError."""
    with closing(_client(ref, STATUS, security, timeout)) as client:
        return client.call("status", dict[str, Any])


def fetch_page(
    ref: ServiceRef, security: Security, search: str, order: str, start: int, count: int, *, timeout: float
) -> dict[str, Any]:
    """Some of a delegate's or peer publisher's subscriptions (see overview.page_of_subscriptions). Raises WireError,
    OversizeError, ConfigurationError."""
    with closing(_client(ref, STATUS, security, timeout)) as client:
        return client.call("subscriptions", dict[str, Any], search, order, start, count)


def fetch_terms(ref: ServiceRef, security: Security, *, timeout: float) -> Iterator[Terms]:
    """Terms of the subscriptions at a delegate or peer publisher, as they came: page by page, so that one that comes
    meanwhile is told, too. Raises AccessDeniedError, WireError."""
    after = -1
    page: tuple[Terms, ...]
    with closing(_client(ref, STATUS, security, timeout)) as client:
        while page := client.call("terms", tuple[Terms, ...], after, TERMS_MOST):
            if page[-1].number <= after:
                raise ProtocolError(f"{', '.join(ref.endpoints)} tells the same subscriptions again")
            after = page[-1].number
            yield from page


class AdminProxy(_ServerProxy):
    """Calls of an administrator. Each raises AccessDeniedError, WireError or WireTimeoutError."""

    _exported = ADMIN

    def cancel(self, uid: str) -> int:
        """Cancel a subscription, whosesoever it is: in how many sessions it stood. Raises UnknownUidError."""
        return self._client.call("cancel", int, uid)

    def explain_contract(self, uid: str) -> dict[str, Any]:
        """Why a subscription or registration has the importance and preferences that it has. Raises UnknownUidError,
        ConfigurationError."""
        return self._client.call("explain_contract", dict[str, Any], uid)

    def set_policy(self, key: str, value: str, why: str) -> PolicyChanged:
        """Change one value of the policy file there. Raises PolicyError, ConfigurationError for a file that can't be
        written."""
        return self._client.call("set_policy", PolicyChanged, key, value, why)

    def drain(self, seconds: float) -> int:
        """Take no new publishers; how many objects still wait after `seconds`."""
        return self._client.call("drain", int, seconds, timeout=self._timeout + seconds)

    def resume(self) -> None:
        """Take publishers again."""
        self._client.call("resume", None)


class BridgingProxy(_ServerProxy):
    """Calls of a bridge to a delegate that takes what it relays."""

    _exported = BRIDGING

    def wanted(self, bridge: str, after: int, seconds: float, *, members: bool = False) -> Wanted:
        """Interest of the subscriptions there in what is relayed, but for those of that bridge, as soon as it is
        another one than that of revision `after`, or after `seconds`, at most WANTED_SECONDS. Of types that the caller
        may relay; with `members` who wants them counts, too. Raises AccessDeniedError, WireError or
        WireTimeoutError."""
        return self._client.call("wanted", Wanted, bridge, after, seconds, members, timeout=self._timeout + seconds)


class TypesProxy(_ServerProxy):
    """Calls about types, at a delegate or peer publisher. Each raises the errors of core.descriptors.TypeRegistry,
    AccessDeniedError, WireError or WireTimeoutError, and ConfigurationError where there is no type repository."""

    _exported = TYPES

    def get(self, type_: TypeName) -> SchemaBundle:
        """The schema of a type that is published there, or in a repository that it can ask."""
        return self._client.call("get", SchemaBundle, type_.name, type_.version)

    def held(self, key: Key) -> StoredType | None:
        """Type as its own repository holds it."""
        return self._client.call("held", StoredType | None, *_said(key))

    def all(self, kind: Kind) -> tuple[Descriptor, ...]:
        """By name and version."""
        return tuple(self._pages(lambda after: self._client.call("list", tuple[Descriptor, ...], kind, after)))

    def show(self, key: Key) -> tuple[Descriptor, tuple[Property, ...]]:
        """Descriptor of a type, and its properties."""
        return self._client.call("show", tuple[Descriptor, tuple[Property, ...]], *_said(key))

    def property(self, key: Key, name: str) -> bytes:
        """The bytes of a property."""
        return self._client.call("property", bytes, *_said(key), name)

    def history(self, key: Key) -> tuple[TypeChange, ...]:
        """Changes, in order."""
        return tuple(
            self._pages(lambda after: self._client.call("history", tuple[TypeChange, ...], *_said(key), after))
        )

    def faults(self) -> tuple[str, ...]:
        """Damages there."""
        return self._client.call("faults", tuple[str, ...])

    def add(self, kind: Kind, bundle: SchemaBundle, parent: TypeName | None, description: str) -> Descriptor:
        """Add it; opening a schema may take a while."""
        seconds = self._timeout + OPENING_SECONDS
        return self._client.call("add", Descriptor, kind, bundle, parent, description, timeout=seconds)

    def describe(self, key: Key, text: str) -> Descriptor:
        """Another description."""
        return self._client.call("describe", Descriptor, *_said(key), text)

    def deprecate(self, key: Key, *, undo: bool = False) -> Descriptor:
        """Deprecate it, or undo that."""
        return self._client.call("deprecate", Descriptor, *_said(key), undo)

    def set_property(self, key: Key, name: str, data: bytes | None) -> None:
        """Add or replace one; None removes it."""
        self._client.call("set_property", None, *_said(key), name, data)

    def remove(self, key: Key, *, force: bool = False) -> bool:
        """Whether it is gone; False: by force, while something uses it."""
        return self._client.call("remove", bool, *_said(key), force, timeout=self._timeout + OPENING_SECONDS)

    @staticmethod
    def _pages(ask: Callable[[int], tuple[T, ...]]) -> Iterator[T]:
        after = 0
        while page := ask(after):
            after += len(page)
            if after > MAX_DESCRIPTORS:
                raise ProtocolError(f"more than {MAX_DESCRIPTORS} descriptors")
            yield from page


def _said(key: Key) -> tuple[str, str, str]:
    return key[0], key[1].name, key[1].version


def fetch_schema(ref: ServiceRef, security: Security, name: str, version: str, *, timeout: float) -> SchemaBundle:
    """The schema of an information object type, from whoever publishes it. Raises UnknownUidError, WireError."""
    with closing(TypesProxy(ref, security, timeout=timeout)) as types:
        return types.get(TypeName(name, version))
