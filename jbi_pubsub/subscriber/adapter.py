"""SubscriberAdapter (SA): one in a process, any number of subscriptions (paper section 2.4(5)-(7)).

The adapter is told by the lookup services which delegates and peer publishers match a subscription, now and later,
and registers it with each. Each subscription has a queue of its own, or a listener, or e-mail recipients.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from secrets import token_hex
from types import TracebackType
from typing import Any, ClassVar, Final, Self

import msgspec

from jbi_pubsub.codegen.bundle import read_bundle
from jbi_pubsub.codegen.repository import InformationType as OpenType
from jbi_pubsub.codegen.repository import TypeRepository, type_name
from jbi_pubsub.core.arguments import Document, Source, checked, content, path_of, source
from jbi_pubsub.core.config import Config, effective
from jbi_pubsub.core.errors import AdapterStateError, JbiError, MetadataError, unknown_uid
from jbi_pubsub.core.guard import guarded
from jbi_pubsub.core.info_object import DEFAULT_VERSION, InfoObject, TypeName
from jbi_pubsub.core.process import Birthplace
from jbi_pubsub.core.quality import GrantedQos, Wish
from jbi_pubsub.core.renewal import LeaseRenewalManager
from jbi_pubsub.core.wire import ServiceRef
from jbi_pubsub.core.xml import Element, parse_metadata
from jbi_pubsub.lookup.client.finder import LookupCache
from jbi_pubsub.lookup.client.join import JoinManager
from jbi_pubsub.lookup.entry import EntryRep
from jbi_pubsub.lookup.item import ServiceItem, ServiceTemplate
from jbi_pubsub.pad.proxy import SUBSCRIPTIONS, SUBSCRIPTIONS_METHODS
from jbi_pubsub.pad.stages import verifier_of
from jbi_pubsub.pad.subscription import (
    PAD_TYPE,
    PUBLISHER_TYPE,
    InformationType,
    Policy,
    SubscriptionRequest,
    compile_subscription,
    owned_uid,
)

from .listeners import ListenerPool
from .published import Matching, Published, type_asked
from .session import DelegateSession
from .signed import SignatureCheck
from .subscription import LocalSubscription, SubscriptionListener, SubscriptionUid, Told
from .waiting import Waiting

matching_log = logging.getLogger("jbi_pubsub.subscriber.matching")
"""What subscriptions match, for people: a line when one is made, and when that changes before something matches."""

CLOSED_AT_ONCE: Final = 16
"""Sessions that are closed together: delegates that hang hold up no other's, short of so many."""

XSI: Final = "{http://www.w3.org/2001/XMLSchema-instance}"


class SubscriberAdapter:
    """Receives information objects. Safe for several threads.

    Only one may be open in a process (paper section 2.4(5)): a second raises AdapterStateError until the first is
    closed. A forked child does not own its parent's adapter: it may open one of its own. Without `config` the
    configuration file and JBI_* variables count.
    """

    _open: ClassVar[tuple[int, SubscriberAdapter] | None] = None
    _open_lock: ClassVar[threading.Lock] = threading.Lock()

    @checked
    def __init__(self, config: Config | None = None, *, name: str | None = None) -> None:
        self._config = config or effective()
        self._name = name or f"subscriber-{os.getpid()}"
        self._pid = os.getpid()
        self._birthplace = Birthplace()
        with SubscriberAdapter._open_lock:
            standing = SubscriberAdapter._open
            if standing is not None and standing[0] == self._pid:
                raise AdapterStateError(
                    "a SubscriberAdapter is open in this process already",
                    hint="Use it for all subscriptions, or close it first",
                )
            SubscriberAdapter._open = (self._pid, self)
        self._signatures: SignatureCheck | None = None
        self._types = TypeRepository(cache_dir=self._config.type_cache())
        self._lock = threading.RLock()
        self._subscriptions: dict[str, LocalSubscription] = {}
        self._watches: dict[tuple[EntryRep, ...], _Watch] = {}
        self._by_uid: dict[str, _Watch] = {}
        self._sessions: dict[str, DelegateSession] = {}
        self._told: dict[str, str] = {}
        """Of subscriptions without a match: why, as it was told last."""
        self._waiting = Waiting(self._look_again, name=self._name)
        self._closed = False
        try:
            verifier = verifier_of(self._config)
            if verifier is not None:
                self._signatures = SignatureCheck(verifier, require=self._config.tls.verify == "require")
            self._community = JoinManager(self._config, name=self._name)
        except JbiError:
            SubscriberAdapter._open = None
            raise
        self._published = Published(self._community, self._config)
        self._renewals = LeaseRenewalManager(self._name)
        self._listeners = ListenerPool(self._name)

    @checked
    def register_subscriber(
        self,
        template: Document | None = None,
        *,
        predicate: str | None = None,
        payload_filter: str | None = None,
        listener: SubscriptionListener | Callable[[SubscriptionUid, InfoObject], object] | None = None,
        recipients: Sequence[str] | None = None,
        direct: bool | None = None,
        schema: Source | None = None,
        marks: Source | None = None,
        type_name: str | None = None,
        version: str | None = None,
        namespaces: Mapping[str, str] | None = None,
        language: str | None = None,
        policy: Policy | None = None,
        bound: int | None = None,
        suppress_empty: bool = False,
        locations: Mapping[str, Path] | None = None,
        attributes: Mapping[str, str] | None = None,
        qos: Wish | None = None,
        timeout: float | None = None,
    ) -> SubscriptionUid:
        """Register a subscription; the id for all later calls. Everything is optional and ANDed.

        First level: `template` is a metadata document whose invariant elements, where they have a value, must be
        equal (paper figure 3); it needs its type's `schema` (and `marks` if the schema has none), or names one in
        xsi:noNamespaceSchemaLocation. `type_name` and `version` select a type without a template; of a name with a
        namespace or dots the last part will do as long as no other type has it. What a predicate says of invariant
        elements is matched at the first level as well: by `schema`, or by that of the type's publishers, if type and
        version are named.
        Second level: `predicate` over the metadata, `payload_filter` over an XML payload (`suppress_empty`: nothing
        selected is not delivered); `namespaces` are the prefixes in both, `language` is of the predicate.
        Delivery: to this subscription's queue, or to `listener` (a SubscriptionListener, or a function that takes the
        subscription's id and the object), or by e-mail to `recipients`; both with `direct` True. `bound` and `policy`
        say what happens when too many objects wait (default [queue]). `qos`: what is wished of importance, deadline,
        rate, size and shape; see `qos` for what was granted. A listener with a method `qos_changed(subscription,
        granted)` is told when that becomes another, if anything was wished.

        Returns when the lookup services watch for it (at most `timeout` seconds): from then on it stands, and gets what
        is published, however long it takes to reach the publishers; what could not be kept for it until then is told as
        lost (`missed`). See `wait_matched`, and `matching`, which is logged. Raises ArgumentError, PredicateError,
        AddressError, MetadataError, SchemaError, ConfigurationError, LookupNotFoundError: no state is left then.
        """
        self._check_open()
        seconds = self._config.lookup.timeout if timeout is None else timeout
        deadline = time.monotonic() + seconds
        language, namespaces = language or "xpath", namespaces or {}
        secret = token_hex(16)
        request = SubscriptionRequest(
            owned_uid("subscription", secret),
            (),
            predicate or "",
            payload_filter or "",
            tuple(namespaces.items()),
            language,
            suppress_empty,
            not recipients if direct is None else direct,
            tuple(recipients or ()),
            self._config.queue.bound if bound is None else bound,
            policy or self._config.queue.policy,
            self._config.queue.block_seconds,
            tuple((attributes or {}).items()),
            secret if recipients else "",  # the others are their session's, and told to every peer that matches
            qos or Wish(),
        )
        compile_subscription(request, owner="", number=0)  # bad input is refused here, before anybody is asked or told
        if type_name:
            self._await_lookup_service(seconds)
        entries, type_of_template = self._entries(
            template, schema=schema, marks=marks, name=type_name or "", version=version or "",
            predicate=predicate if predicate and language == "xpath" else "", namespaces=namespaces,
            locations=locations or {},
        )  # fmt: skip
        request = msgspec.structs.replace(request, entries=entries)
        told = listener if listener is None or isinstance(listener, SubscriptionListener) else Told(listener)
        subscription = LocalSubscription(request, told, self._listeners)
        watch = self._watch(subscription, type_of_template)
        try:
            self._community.wait_watching(watch.cache, max(0.0, deadline - time.monotonic()))
        except Exception:
            self._forget(subscription)
            raise
        subscription.stand()
        if not self._look_again(subscription.uid):
            self._waiting.add(subscription.uid)
        return subscription.uid

    @checked
    def matching(self, subscription: SubscriptionUid) -> Matching:
        """How many publisher registrations match now, and why none does: which types are published, which is nearest,
        in which versions. As text it is one line. Raises UnknownUidError."""
        return self._matching(self._find(subscription))

    @checked
    def wait_matched(self, subscription: SubscriptionUid, count: int = 1, timeout: float = 10.0) -> int:
        """At how many delegates and peer publishers the subscription stands, as soon as there are `count`, or after
        `timeout` seconds. Raises UnknownUidError."""
        self._find(subscription)
        deadline = time.monotonic() + timeout
        while True:
            with self._lock:
                standing = sum(session.stands(subscription) for session in self._sessions.values())
            if standing >= count or time.monotonic() >= deadline:
                return standing
            time.sleep(0.005)  # sessions make progress on their own threads

    @checked
    def receive(self, subscription: SubscriptionUid, timeout: float = 10.0) -> InfoObject | None:
        """The next object, or None after `timeout` seconds. Raises UnknownUidError."""
        return self._find(subscription).take(timeout)

    @checked
    def objects(self, subscription: SubscriptionUid, timeout: float = 10.0) -> Iterator[InfoObject]:
        """Objects as they come, until none has come for `timeout` seconds. Raises UnknownUidError."""
        local = self._find(subscription)
        while (obj := local.take(timeout)) is not None:
            yield obj

    @checked
    def drain(self, subscription: SubscriptionUid) -> list[InfoObject]:
        """All objects that wait in the queue now. Raises UnknownUidError."""
        return self._find(subscription).drain()

    @checked
    def queue_size(self, subscription: SubscriptionUid) -> int:
        """How many objects wait in the queue. Raises UnknownUidError."""
        return len(self._find(subscription))

    @checked
    def losses(self, subscription: SubscriptionUid) -> dict[str, int]:
        """Objects lost so far by cause (a cause of unknown extent counts 1). Raises UnknownUidError."""
        return {str(cause): count for cause, count in self._find(subscription).lost.items()}

    @checked
    def qos(self, subscription: SubscriptionUid) -> dict[str, GrantedQos]:
        """What it has got of its wish by now, by the service id of each delegate and peer publisher where it stands:
        the settings, and which fields are less than wished for, by which policy; without a wish, what it had got when
        it opened there: changes are told to those alone who wished. Raises UnknownUidError, and
        QosDeniedError if it stands nowhere as a field that it requires is not granted."""
        self._find(subscription)
        with self._lock:
            sessions = list(self._sessions.values())
        found = {session.ref.service_id: given for session in sessions if (given := session.quality(subscription))}
        denied = next((why for session in sessions if (why := session.denied(subscription))), None)
        if not found and denied is not None:
            raise denied
        return found

    @checked
    def cancel_subscription(self, subscription: SubscriptionUid) -> None:
        """Cancel it everywhere: no further object comes once this has returned. Raises UnknownUidError."""
        self._forget(self._find(subscription))

    def status(self) -> dict[str, Any]:
        """Subscriptions and sessions as plain data."""
        with self._lock:
            checked = self._signatures
            return {
                "name": self._name,
                "signed": checked.signed if checked is not None else 0,
                "bad_signature": checked.bad_signature if checked is not None else 0,
                "subscriptions": {
                    uid: {
                        "arrived": s.arrived,
                        "waiting": len(s),
                        "duplicates": s.duplicates,
                        "listener_errors": s.listener_errors,
                        "lost": dict(s.lost),
                        "matched": sum(session.stands(uid) for session in self._sessions.values()),
                    }
                    for uid, s in self._subscriptions.items()
                },
                "sessions": [session.status() for session in self._sessions.values()],
            }

    def close(self) -> None:
        """Cancel the direct subscriptions and end all threads; e-mail subscriptions live on by their leases.

        Safe to call twice. In a forked child nothing but the claim to the adapter is given up.
        """
        with SubscriberAdapter._open_lock:
            if SubscriberAdapter._open is not None and SubscriberAdapter._open[1] is self:
                SubscriberAdapter._open = None
        if self._closed or not self._birthplace.is_here():
            return
        self._closed = True
        self._waiting.stop()
        with self._lock:
            sessions, subscriptions = list(self._sessions.values()), list(self._subscriptions.values())
        if sessions:
            with ThreadPoolExecutor(
                min(len(sessions), CLOSED_AT_ONCE), thread_name_prefix=f"{self._name}-close"
            ) as pool:
                list(pool.map(_close_session, sessions))  # each waits for an answer
        for subscription in subscriptions:
            subscription.close()
        self._listeners.stop()
        self._renewals.stop()
        self._community.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    # -- first level --------------------------------------------------------------------------------------------

    def _entries(
        self,
        template: Document | None,
        *,
        schema: Source | None,
        marks: Source | None,
        name: str,
        version: str,
        predicate: str,
        namespaces: Mapping[str, str],
        locations: Mapping[str, Path],
    ) -> tuple[tuple[EntryRep, ...], TypeName | None]:
        """The templates of the first level, and the type whose schema was opened for them."""
        root = None
        if template is not None:
            root = parse_metadata(content(template, what="template"), what="template")
            schema = schema or _hinted_schema(root, template)
        if schema is None:
            if root is not None:
                raise MetadataError(
                    f"no schema is known for the template's type {type_name(root)}",
                    hint="Give schema=, or xsi:noNamespaceSchemaLocation with a file beside the template",
                )
            return self._entries_of_type(name, version, predicate, namespaces), None
        bundle = read_bundle(
            source(schema),
            marks=None if marks is None else source(marks),
            name=name,
            version=version or DEFAULT_VERSION,
            locations=locations,
        )
        opened = self._types.open(bundle)
        typed = InformationType(name=opened.type.name, version=version or None).rep()
        try:
            bound = () if root is None else opened.template(root)
            return (typed, *bound, *_derived(opened, predicate, namespaces)), opened.type
        except JbiError:
            self._forget_if_idle(opened.type)
            raise

    def _entries_of_type(
        self, called: str, version: str, predicate: str, namespaces: Mapping[str, str]
    ) -> tuple[EntryRep, ...]:
        """The templates of the first level for whoever knows a type by name at most."""
        meant = self._published.meant(called) if called else InformationType()
        typed = (replace(meant, version=version or None).rep(),) if called or version else ()
        # Not of any version: the invariants of one would keep later ones away, which the predicate may hold for.
        opened = self._published.opened(meant.name, version) if meant.name and version and predicate else None
        return typed if opened is None else (*typed, *_derived(opened, predicate, namespaces))

    def _await_lookup_service(self, timeout: float) -> None:
        """Raises LookupNotFoundError when none answers within `timeout` seconds."""
        deadline = time.monotonic() + timeout
        while not self._community.connected():
            if time.monotonic() >= deadline:
                self._community.lookup(ServiceTemplate(), 1, timeout=0.0, waited=timeout)
                return
            time.sleep(0.005)  # sessions make progress on their own threads

    # -- what matches -------------------------------------------------------------------------------------------

    def _matching(self, subscription: LocalSubscription) -> Matching:
        with self._lock:
            watch = self._by_uid.get(subscription.uid)
        count = len(watch.cache.items()) if watch is not None else 0
        return Matching(count, "" if count else self._published.why_none(subscription.request.entries))

    def _look_again(self, uid: str) -> bool:
        """Say whether something matches a subscription, or why nothing does, unless that was said; whether it need not
        be looked at again."""
        with self._lock:
            subscription = self._subscriptions.get(uid)
        if subscription is None:
            return True
        matching = self._matching(subscription)
        asked = type_asked(subscription.request.entries)
        with self._lock:
            known, self._told[uid] = self._told.get(uid), str(matching)
        if known != str(matching):
            nothing = matching.registrations or not self._published.names()
            level = logging.INFO if nothing else logging.WARNING
            matching_log.log(level, "subscription %s %s", uid, matching, extra={"subscription": uid})
        return bool(matching.registrations) or not (asked.name or asked.local)

    def _forget_if_idle(self, opened: TypeName | None) -> None:
        """A subscription has ended, or came to nothing: its schema must not stand in the way of another one."""
        with self._lock:
            used = opened is None or any(watch.type == opened for watch in self._watches.values())
        if opened is not None and not used:
            self._types.forget(opened)

    # -- delegates ----------------------------------------------------------------------------------------------

    def _watch(self, subscription: LocalSubscription, opened: TypeName | None) -> _Watch:
        entries = subscription.request.entries
        with self._lock:
            watch = self._watches.get(entries)
            if watch is None:
                watch = self._watches[entries] = _Watch(self, entries, opened)
            watch.hold(subscription)  # now: the watch ends with the last one that it holds
            self._subscriptions[subscription.uid] = subscription
            self._by_uid[subscription.uid] = watch
        watch.begin(subscription, self._community)
        return watch

    def _serve(self, subscription: LocalSubscription, item: ServiceItem) -> None:
        """Have the subscription registered with the delegate or peer publisher of a matching item."""
        ref = msgspec.structs.replace(item.proxy, exported=SUBSCRIPTIONS, methods=SUBSCRIPTIONS_METHODS)
        with self._lock:
            if self._closed or subscription.uid not in self._subscriptions:
                return
            session = self._sessions.get(ref.service_id)
            if session is None or not session.want(subscription):
                session = self._sessions[ref.service_id] = self._new_session(ref)
                session.want(subscription)
                session.start()

    def _new_session(self, ref: ServiceRef) -> DelegateSession:
        return DelegateSession(
            ref,
            self._config,
            self._renewals,
            name=self._name,
            is_listed=self._is_listed,
            ended=self._session_ended,
            item=self._item,
            signatures=self._signatures,
        )

    def _item(self, uid: str) -> ServiceItem | None:
        """What the lookup services say of a registration."""
        with self._lock:
            caches = [cache for watch in self._watches.values() for cache in watch.caches()]
        return next((item for cache in caches if (item := cache.item(uid)) is not None), None)

    def _is_listed(self, service_id: str) -> bool:
        with self._lock:
            caches = [cache for watch in self._watches.values() for cache in watch.caches()]
        return any(item.proxy.service_id == service_id for cache in caches for item in cache.items())

    def _session_ended(self, session: DelegateSession) -> None:
        with self._lock:
            if self._sessions.get(session.ref.service_id) is session:
                del self._sessions[session.ref.service_id]

    def _forget(self, subscription: LocalSubscription) -> None:
        with self._lock:
            self._subscriptions.pop(subscription.uid, None)
            self._told.pop(subscription.uid, None)
            sessions = list(self._sessions.values())
            self._unwatch(subscription)
        for session in sessions:
            session.unwant(subscription.uid)
        subscription.close()

    def _unwatch(self, subscription: LocalSubscription) -> None:
        """Under the lock."""
        watch = self._by_uid.pop(subscription.uid, None)
        if watch is not None and watch.remove(subscription):
            del self._watches[watch.entries]
            for cache in watch.caches():
                self._community.unwatch(cache)
            self._forget_if_idle(watch.type)

    def _find(self, subscription: SubscriptionUid) -> LocalSubscription:
        self._check_open()
        found = self._subscriptions.get(subscription)  # a look at one key needs no lock, and is made for each object
        if found is None:
            raise unknown_uid("subscription", subscription, "register_subscriber")
        return found

    def _check_open(self) -> None:
        if not self._birthplace.is_here():
            raise AdapterStateError(
                "this SubscriberAdapter belongs to the parent process", hint="Open a new one after the fork"
            )
        if self._closed:
            raise AdapterStateError("this SubscriberAdapter is closed")


def _close_session(session: DelegateSession) -> None:
    with guarded("closing a session"):  # the others are to be closed, too
        session.close()


def _after_fork() -> None:
    """In a child the parent's adapter is not open; its lock may have been held by a thread that is not here."""
    SubscriberAdapter._open_lock = threading.Lock()
    SubscriberAdapter._open = None


os.register_at_fork(after_in_child=_after_fork)


class _Watch:
    """The subscriptions of one template, and the caches that tell where they match (a ServiceListener)."""

    def __init__(self, adapter: SubscriberAdapter, entries: tuple[EntryRep, ...], opened: TypeName | None) -> None:
        """`opened`: the type whose schema was opened for them."""
        self.entries = entries
        self.type = opened
        self._adapter = adapter
        self._lock = threading.Lock()
        self._subscriptions: dict[str, LocalSubscription] = {}
        self._cache: LookupCache | None = None
        self._delegates: LookupCache | None = None

    @property
    def cache(self) -> LookupCache:
        """Publisher registrations whose entries match."""
        assert self._cache is not None
        return self._cache

    def caches(self) -> list[LookupCache]:
        return [cache for cache in (self._cache, self._delegates) if cache is not None]

    def hold(self, subscription: LocalSubscription) -> None:
        """One of its subscriptions from now on."""
        with self._lock:
            self._subscriptions[subscription.uid] = subscription

    def begin(self, subscription: LocalSubscription, community: JoinManager) -> None:
        """Have it stand wherever it matches."""
        with self._lock:
            if self._cache is None:
                template = ServiceTemplate(types=(PUBLISHER_TYPE,), entries=self.entries)
                self._cache = community.watch(template, self)
            if not subscription.request.direct and self._delegates is None:
                # An e-mail subscription also serves publishers that come when we are gone: every delegate gets it.
                self._delegates = community.watch(ServiceTemplate(types=(PAD_TYPE,)), _DelegateListener(self))
            items = self._cache.items()
            delegates = self._delegates.items() if self._delegates and not subscription.request.direct else []
        for item in (*items, *delegates):
            self._adapter._serve(subscription, item)

    def remove(self, subscription: LocalSubscription) -> bool:
        """Whether it was the last one."""
        with self._lock:
            self._subscriptions.pop(subscription.uid, None)
            return not self._subscriptions

    def service_added(self, item: ServiceItem, *, mail_only: bool = False) -> None:
        with self._lock:
            subscriptions = list(self._subscriptions.values())
        for subscription in subscriptions:
            if not (mail_only and subscription.request.direct):
                self._adapter._serve(subscription, item)

    def service_changed(self, old: ServiceItem, new: ServiceItem) -> None:
        if old.proxy != new.proxy:
            self.service_added(new)

    def service_removed(self, item: ServiceItem) -> None:
        """Nothing: the subscription stays with the delegate, which may have the next matching publisher soon. The
        session itself notices when the delegate is gone."""


class _DelegateListener:
    """Hands every delegate to a watch's e-mail subscriptions."""

    def __init__(self, watch: _Watch) -> None:
        self._watch = watch

    def service_added(self, item: ServiceItem) -> None:
        self._watch.service_added(item, mail_only=True)

    def service_changed(self, old: ServiceItem, new: ServiceItem) -> None:
        if old.proxy != new.proxy:
            self.service_added(new)

    def service_removed(self, item: ServiceItem) -> None:
        """Nothing: see the watch."""


def _derived(opened: OpenType, predicate: str, namespaces: Mapping[str, str]) -> tuple[EntryRep, ...]:
    return opened.derive(predicate, namespaces) if predicate else ()


def _hinted_schema(root: Element, template: Document) -> Path | None:
    """The file named by xsi:noNamespaceSchemaLocation or xsi:schemaLocation, beside the template or in this folder."""
    hint = root.get(f"{XSI}noNamespaceSchemaLocation") or (root.get(f"{XSI}schemaLocation") or "").split(" ")[-1]
    file = path_of(template)
    folders = [file.parent] if file is not None else []
    candidates = [folder / hint for folder in (*folders, Path.cwd())] if hint and "://" not in hint else []
    return next((path for path in candidates if path.is_file()), None)
