"""SubscriberAdapter (SA): one for each client of a process, any number of subscriptions (paper section 2.4(5)-(7)).

The adapter is told by the lookup services which delegates and peer publishers match a subscription, now and later,
and registers it with each. Each subscription has a queue of its own, or a listener, or e-mail recipients.
"""

from __future__ import annotations

import logging
import os
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import count as count_from
from pathlib import Path
from secrets import token_hex
from types import TracebackType
from typing import Any, ClassVar, Final, Self, TypeVar, Unpack
from weakref import WeakMethod, WeakSet

import msgspec

from jbi_pubsub.core.arguments import Document, Source, checked
from jbi_pubsub.core.config import Config, effective
from jbi_pubsub.core.errors import (
    AdapterStateError,
    ConfigurationError,
    JbiError,
    QosDeniedError,
    UnknownUidError,
    WireError,
    unknown_uid,
)
from jbi_pubsub.core.guard import guarded
from jbi_pubsub.core.info_object import InfoObject, TypeName
from jbi_pubsub.core.process import Birthplace
from jbi_pubsub.core.quality import GrantedQos, Wish
from jbi_pubsub.core.renewal import LeaseRenewalManager
from jbi_pubsub.core.wire import ServiceRef
from jbi_pubsub.lookup.client.join import JoinManager
from jbi_pubsub.lookup.client.proxy import EVERYTHING
from jbi_pubsub.lookup.entry import EntryRep
from jbi_pubsub.lookup.item import ServiceItem, ServiceTemplate
from jbi_pubsub.protocol.conditions import compile_conditions
from jbi_pubsub.protocol.entries import ArchiveEntry
from jbi_pubsub.protocol.ownership import owned_uid
from jbi_pubsub.protocol.requests import (
    NEW,
    Acknowledging,
    Policy,
    SubscriptionRequest,
    Unfiltered,
    View,
    check_request,
)
from jbi_pubsub.protocol.services import SUBSCRIPTIONS, SUBSCRIPTIONS_METHODS
from jbi_pubsub.trust.settings import verifier_of

from .asking import (
    Archives,
    Asking,
    Conditions,
    Count,
    Explanations,
    archives_with,
    bindings,
    key_of,
    request_for,
    request_of,
    seconds_of,
    split_type,
)
from .coverage import places_of
from .first_level import FirstLevel, FirstLevelTemplates
from .listeners import ListenerPool
from .moments import Moment, start_at
from .owner import secret_of
from .placed import PlacedSubscription
from .published import Matching, Published, type_asked
from .query import QUERY_SECONDS, Query, QueryListener, QueryPart
from .session import DelegateSession
from .signed import SignatureCheck
from .subscription import LocalSubscription, SubscriptionListener, SubscriptionUid, Told
from .waiting import Waiting
from .watches import TemplateWatch, has_past

log = logging.getLogger("jbi_pubsub.subscriber")
matching_log = logging.getLogger("jbi_pubsub.subscriber.matching")
"""What subscriptions match, for people: a line when one is made, and when that changes before something matches."""

LISTED_SECONDS: Final = 1.0
"""Waited at most for an archive to be listed."""
CLOSED_AT_ONCE: Final = 16
"""Sessions that are closed together: delegates that hang hold up no other's, short of so many."""

A = TypeVar("A")
R = TypeVar("R")


class SubscriberAdapter:
    """Receives information objects. Safe for several threads.

    Each is a client of its own. Of one `name` only one may be open in a process (paper section 2.4(5)): a second raises
    AdapterStateError until the first is closed. Without `name` it gets one that no other has. One that nobody refers to
    any more, and that was not closed, is closed by the next one, with a ResourceWarning. A forked child does not own
    its parent's adapters: it opens its own. Without `config` the configuration file and JBI_* variables count.
    """

    _is_only: ClassVar[bool] = True
    """A bridge has one for each platform that it is on."""
    _open: ClassVar[set[str]] = set()
    """Names of this process."""
    _lost: ClassVar[list[SubscriberAdapter]] = []
    """Those that nobody refers to, and that were not closed."""
    _open_lock: ClassVar[threading.Lock] = threading.Lock()

    @checked
    def __init__(self, config: Config | None = None, *, name: str | None = None) -> None:
        self._config = config or effective()
        self._spool = self._config.link.spooling()
        self._birthplace = Birthplace()
        self._closed = True  # until there is something to close
        self._name = self._claimed(name)
        self._signatures: SignatureCheck | None = None
        self._lock = threading.RLock()
        self._subscriptions: dict[str, LocalSubscription] = {}
        self._watches: dict[tuple[EntryRep, ...], TemplateWatch] = {}
        self._by_uid: dict[str, TemplateWatch] = {}
        self._sessions: dict[str, DelegateSession] = {}
        self._told: dict[str, str] = {}
        """Of subscriptions without a match: why, as it was told last."""
        self._waiting = Waiting(_weakly(self._look_again, otherwise=True))
        try:
            verifier = verifier_of(self._config)
            if verifier is not None:
                self._signatures = SignatureCheck(verifier, require=self._config.tls.verify == "require")
            self._community = JoinManager(self._config, name=self._name)
        except JbiError:
            self._give_up_name()
            raise
        self._closed = False
        self._published = Published(self._community, self._config)
        self._archives = Archives(self._config)
        forget_if_idle = _weakly(self._forget_if_idle, otherwise=None)
        self._templates = FirstLevelTemplates(self._published, self._config, forget_if_idle)
        self._queries: WeakSet[Query] = WeakSet()
        self._renewals = LeaseRenewalManager(self._name)
        self._listeners = ListenerPool(self._name)

    def __del__(self) -> None:
        if not getattr(self, "_closed", True) and self._birthplace.is_here():
            SubscriberAdapter._lost.append(self)  # closing takes a while, and waits for others: not here

    def _claimed(self, name: str | None) -> str:
        """A name that no other adapter of the process has. Raises AdapterStateError."""
        while True:
            try:
                lost = SubscriberAdapter._lost.pop()
            except IndexError:  # none is left; another thread may close them as well
                break
            lost.close()  # first: a warning may be an error
            text = f"SubscriberAdapter {lost._name} was not closed, and nobody refers to it: it is closed now"
            warnings.warn(text, ResourceWarning, stacklevel=4)
        usual = f"subscriber-{os.getpid()}"
        if not self._is_only:
            return name or usual
        with SubscriberAdapter._open_lock:
            if name in SubscriberAdapter._open:
                raise AdapterStateError(
                    f"a SubscriberAdapter named {name!r} is open in this process already",
                    hint="Use it for all subscriptions, close it first, or give another name",
                )
            names = (usual if number == 1 else f"{usual}-{number}" for number in count_from(1))
            claimed = name or next(each for each in names if each not in SubscriberAdapter._open)
            SubscriberAdapter._open.add(claimed)
            return claimed

    def _give_up_name(self) -> None:
        if self._is_only and self._birthplace.is_here():
            with SubscriberAdapter._open_lock:
                SubscriberAdapter._open.discard(self._name)

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
        unfiltered: Unfiltered | None = None,
        locations: Mapping[str, Path] | None = None,
        attributes: Mapping[str, str] | None = None,
        qos: Wish | None = None,
        start: Moment | int | None = None,
        latest_by: str | None = None,
        durable: str | None = None,
        ack: Acknowledging | None = None,
        view: View | None = None,
        unlike: str | None = None,
        local: bool = False,
        well_formed: bool = False,
        validate: bool = False,
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
        selected is not delivered; `unfiltered`: XML beyond what is filtered is lost, "withhold", or comes whole,
        "deliver": see `InfoObject.is_selection`); `namespaces` are the prefixes in both, beside those of [client]
        namespaces;
        `language` is of the predicate. With `view` "combined" it is asked of the metadata within what the platform says
        of the object (core/combined.py, prefix `og`), and nothing of it is matched at the first level.
        `unlike`: nothing of publishers whose `owner` that is; `local`: only what was published at the delegate that it
        comes from. `well_formed` and `validate` (by `schema`, or that of the type's publishers or type repository, for
        which type and version are named): what is not is dropped here, and told as lost (`invalid`).
        Delivery: to this subscription's queue, or to `listener` (a SubscriptionListener, or a function that takes the
        subscription's id and the object; no `async def`), or by e-mail to `recipients`; both with `direct` True.
        `bound` and `policy` say what happens when too many objects wait (default [queue]). `qos`: what is wished of
        importance, deadline, rate, size and shape; see `qos` for what was granted. A listener with a method
        `qos_changed(subscription, granted)` is told when that becomes another, if anything was wished.

        History, at delegates with an archive: `start` says where it begins: "new" (default), "all", "last" (the newest
        object, or with the XPath `latest_by` the newest of each key), a time ("2026-11-01T00:00Z", "2h" for so long
        ago, a datetime), or the place of an object (`platform.place`), behind which it goes on. What
        is there comes, then what is published, without a gap, each object once; nothing is lost by a full queue before
        it has caught up. `durable`, a name, has delegates remember how far it has come while no process has it open
        (docs/archive.md): whoever opens it again, of the same user, goes on there, and `start` counts the first time
        alone. With `ack` "auto" an object is done when the application has taken it; "explicit": when it is told so
        (`acknowledge`), and what was not comes again when it is opened the next time.

        Returns when the lookup services watch for it (at most `timeout` seconds): from then on it stands, and gets what
        is published, however long it takes to reach the publishers; what could not be kept for it until then is told as
        lost (`missed`). See `wait_matched`, and `matching`, which is logged. Raises ArgumentError, PredicateError,
        AddressError, MetadataError, SchemaError, OversizeError, ConfigurationError, LookupNotFoundError: no state is
        left then.
        """
        self._check_open()
        seconds = self._config.lookup.timeout if timeout is None else timeout
        deadline = time.monotonic() + seconds
        language = language or "xpath"
        namespaces = bindings(self._config.client, namespaces, predicate, payload_filter, latest_by)
        begin = start_at(start, now=time.time(), latest_by=latest_by or "")
        secret = self._secret(durable) if durable is not None else token_hex(16)
        request = SubscriptionRequest(
            uid=owned_uid("subscription", secret),
            predicate=predicate or "",
            payload_filter=payload_filter or "",
            namespaces=tuple(namespaces.items()),
            language=language,
            suppress_empty=suppress_empty,
            direct=not recipients if direct is None else direct,
            recipients=tuple(recipients or ()),
            bound=self._config.queue.bound if bound is None else bound,
            policy=policy or self._config.queue.policy,
            block_seconds=self._config.queue.block_seconds,
            attributes=tuple((attributes or {}).items()),
            secret=secret if recipients or durable else "",  # others are their session's, and told to all that match
            qos=qos or Wish(),
            start=begin,
            durable=durable or "",
            ack=ack or "auto",
            view=view or "metadata",
            unlike=unlike or "",
            local=local,
            unfiltered=unfiltered or "withhold",
        )
        _check_durable(request)
        compile_conditions(request)  # bad input is refused here, before anybody is asked or told
        if type_name:
            self._await_lookup_service(seconds)
        first_level = FirstLevel(
            template=template, schema=schema, marks=marks, name=type_name or "", version=version or "",
            is_derived=language == "xpath" and view != "combined", locations=locations or {},
            well_formed=well_formed, validate=validate,
        )  # fmt: skip
        entries, type_of_template = self._templates.entries(first_level, predicate or "", namespaces)
        request = msgspec.structs.replace(request, entries=entries)
        check_request(request)
        fitness = self._templates.fitness(first_level)
        told = listener if listener is None or isinstance(listener, SubscriptionListener) else Told(listener)
        kind = PlacedSubscription if durable or begin != NEW else LocalSubscription
        subscription = kind(request, told, self._listeners)
        subscription.fitness, subscription.first_level = fitness, first_level
        watch = self._watch(subscription, type_of_template)
        try:
            self._community.wait_watching(watch.cache, max(0.0, deadline - time.monotonic()))
        except BaseException:
            self._forget(subscription)
            raise
        subscription.stand()
        subscription.has_begun = True
        if not self._look_again(subscription.uid):
            self._waiting.add(subscription.uid)
        return subscription.uid

    @checked
    def amend_subscription(
        self,
        subscription: SubscriptionUid,
        *,
        predicate: str | None = None,
        payload_filter: str | None = None,
        namespaces: Mapping[str, str] | None = None,
        qos: Wish | None = None,
        timeout: float | None = None,
    ) -> int:
        """Change what a standing subscription asks for: its predicate, payload filter or wish. What is left out stays;
        "" takes a predicate or filter away, an empty Wish the wish. `namespaces` are the prefixes in both, beside those
        that the subscription has.

        Each delegate and peer publisher makes the change between two objects: an object is judged by the old terms or
        by the new ones, none is lost for it, and none comes twice. What is published once this has returned is judged
        by the new ones; what waits already, or is on its way, comes as it is. A subscription that is catching up with
        the past looks by the new terms for what it has not caught up with.

        Returns at how many delegates and peer publishers it stands by the new terms, once all where it stands have
        answered, or after `timeout` seconds: those that are away get them when they are back. If one refuses, all have
        the old terms again. Raises UnknownUidError, ArgumentError, PredicateError, SchemaError, LookupNotFoundError,
        and what a delegate refuses with (AccessDeniedError, QosDeniedError, OversizeError, ConfigurationError)."""
        local = self._find(subscription)
        deadline = time.monotonic() + (self._config.lookup.timeout if timeout is None else timeout)
        with local.amending:
            before = local.request
            predicate = before.predicate if predicate is None else predicate
            wanted = before.payload_filter if payload_filter is None else payload_filter
            prefixes = {**dict(before.namespaces), **(namespaces or {})}
            prefixes = bindings(self._config.client, prefixes, predicate, wanted, before.start.latest_by)
            request = msgspec.structs.replace(
                before, predicate=predicate, payload_filter=wanted, namespaces=tuple(prefixes.items()),
                qos=before.qos if qos is None else qos,
            )  # fmt: skip
            compile_conditions(request)
            assert local.first_level is not None
            entries, opened = self._templates.entries(local.first_level, predicate, prefixes)
            request = msgspec.structs.replace(request, entries=entries)
            try:
                with self._rewatching(local, entries, opened, deadline):
                    return self._amend(local, request, deadline)
            except BaseException as exc:
                if local.request is not before:
                    until = deadline if isinstance(exc, JbiError) else 0.0  # who interrupts does not wait
                    self._amend(local, before, until, is_awaited=False)
                raise
            finally:
                local.end_amendment()

    def _amend(
        self, local: LocalSubscription, request: SubscriptionRequest, deadline: float, *, is_awaited: bool = True
    ) -> int:
        """Have all sessions change its terms; at how many these are in force. Raises what one refuses with."""
        local.amend(request, is_awaited=is_awaited)
        with self._lock:
            sessions = list(self._sessions.values())
        for session in sessions:
            session.registry.amend(local.uid)
        while (why := local.refusal()) is None:
            stands = [session.registry.has_amended(local.uid) for session in sessions]
            if False not in stands or time.monotonic() >= deadline:
                if False in stands:
                    log.warning(
                        "subscription %s has its new terms at %d of %d", local.uid, stands.count(True), len(stands)
                    )
                return stands.count(True)
            time.sleep(0.005)  # sessions make progress on their own threads
        raise why

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
    def pause(self, subscription: SubscriptionUid) -> None:
        """Have nothing taken of it until `resume`: `receive` gives None, its listener is not called; what comes waits,
        as much as it may. Raises UnknownUidError."""
        self._find(subscription).pause()

    @checked
    def resume(self, subscription: SubscriptionUid) -> None:
        """Undo `pause`. Raises UnknownUidError."""
        self._find(subscription).resume()

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
        denied = [session.denied(subscription) for session in sessions]
        if not found and (why := next((each for each in denied if isinstance(each, QosDeniedError)), None)):
            raise why
        return found

    @checked
    def refusal(self, subscription: SubscriptionUid) -> JbiError | None:
        """Why it stands nowhere, if those that it was to stand at refuse it, or lookup services do not watch for it; or
        why a delegate where it stands does not evaluate it for some registration: it would cost too much. It is asked
        for again after a while, and when the rules there change. None if it stands somewhere and is evaluated, or
        nobody has refused it. Raises UnknownUidError."""
        local = self._find(subscription)
        with self._lock:
            sessions, watch = list(self._sessions.values()), self._watches.get(local.request.entries)
        standing = [session for session in sessions if session.stands(subscription)]
        denied = [session.denied(subscription) for session in standing or sessions]
        if not standing and watch is not None:
            denied += [cache.error for cache in watch.caches()]
        return next((each for each in denied if each is not None), None)

    @checked
    def acknowledge(self, obj: InfoObject, subscription: SubscriptionUid | None = None) -> None:
        """The application is done with an object of a durable subscription with ack="explicit": it does not come again.
        Of all subscriptions that have got it, or of one. Raises UnknownUidError when it does not wait for that."""
        if subscription is not None:
            asked = [self._find(subscription)]
        else:
            self._check_open()
            with self._lock:
                asked = list(self._subscriptions.values())
        done = [each.acknowledge(obj) for each in asked if isinstance(each, PlacedSubscription)]
        if not any(done):
            raise UnknownUidError(
                f"object {obj.object_id} does not wait to be acknowledged",
                hint='It came for no durable subscription with ack="explicit", or was acknowledged before',
            )

    def types(self) -> list[TypeName]:
        """Types and versions that are published now, as far as the lookup services that answer know."""
        self._check_open()
        names = self._published.names()
        return sorted(TypeName(name, version) for name in names for version in self._published.versions(name))

    # -- archives -----------------------------------------------------------------------------------------------

    @checked
    def query(self, type_name: str | None = None, **conditions: Unpack[Conditions]) -> Iterator[InfoObject]:
        """The archived objects of a type that match, as they come: see `open_query`, whose conditions it takes. It is
        opened when the first is asked for. An archive that does not answer is logged, and the others' objects come."""
        return self._results(self._asking(type_name, conditions))

    @checked
    def open_query(
        self,
        type_name: str | None = None,
        *,
        listener: QueryListener | None = None,
        **conditions: Unpack[Conditions],
    ) -> Query:
        """Ask all archives that the lookup services know for a type; of its name the last part will do, as long as no
        other type has it; without, all types. What is acknowledged to its publisher by now is seen, nothing later.

        Conditions, which hold together (see `Conditions`): `version`, `template` (with `schema`, `marks`, `locations`),
        `predicate` (with `view`), `payload_filter` (with `namespaces`, `language`, `suppress_empty`, `unfiltered`),
        `well_formed`, `validate`, `since` and `until` (with `received`), `after` and `up_to` (positions),
        `registrations`, `publisher` (the name that it goes by), `least_payload` and `most_payload`; `at` names the
        archives by their addresses.
        `latest_by` leaves the newest object of each key. `order` is "oldest" or "newest" first, `limit` the most
        results, `timeout` the seconds that it may take (default an hour), `qos` what is wished of importance, size and
        shape. Of several archives results come by time of publication, each object once. To a `listener` they come on a
        library thread, else to whoever iterates or calls `get_next`.

        Raises ArgumentError, PredicateError, ConfigurationError, MetadataError, SchemaError, LookupNotFoundError,
        UnknownUidError (no archive has the type), and what the archives say if none of them takes the query.
        """
        return self._open_query(self._asking(type_name, conditions), listener)

    @checked
    def count(self, type_name: str | None = None, **conditions: Unpack[Conditions]) -> Count:
        """How many archived objects a query would have, without fetching them; a copy in another archive counts as
        well. A number whose `partial` names the archives that could not say, as that of a query. Raises as
        `open_query`."""
        asking = self._asking(type_name, conditions)
        return self._archives.count(asking, asking.timeout)

    @checked
    def explain_query(self, type_name: str | None = None, **conditions: Unpack[Conditions]) -> Explanations:
        """How each archive (by its address) would answer a query: what its index decides, what is left to look at, and
        about how long it takes. A dictionary whose `partial` names those that could not say. Raises as `open_query`."""
        return self._archives.explain(self._asking(type_name, conditions))

    @checked
    def get(self, object_id: str, timeout: float = 60.0) -> InfoObject:
        """An archived object, wherever it is. Raises UnknownUidError when no archive has it; when none that answers has
        it, and not all do, WireError."""
        self._check_open()
        request = request_for(object_id)
        _, archives = archives_with("", self._listed_archives(), is_published=lambda _: False)
        with self._open_query(Asking(request, archives, None, timeout), None) as opened:
            found = opened.get_next(1)
        if not found and opened.partial:
            raise WireError(
                f"whether an archive has object {object_id} is not known: {'; '.join(opened.partial)}",
                hint="Try again when all of them answer",
            )
        if not found:
            raise UnknownUidError(f"no archive has object {object_id}", hint="It was not kept, or given up")
        return found[0]

    @checked
    def reset_durable(self, name: str, to: Moment | int) -> int:
        """Have a durable subscription of this user go on from another place the next time: "new", "all", "last", a time
        or a position, as `start` of `register_subscriber`. At how many archives it is known. Raises UnknownUidError
        when at none, ConfigurationError, StorageError, and what an archive says that does not do it."""
        self._check_open()
        start, secret = start_at(to, now=time.time()), self._secret(name)
        _, archives = archives_with("", self._listed_archives(), is_published=lambda _: False)
        known = self._archives.reset(archives, name, secret, start)
        if not known:
            raise UnknownUidError(
                f"no archive knows a durable subscription {name!r} of this user",
                hint="It is its user's who made it, by his certificate or [client] owner, and ends with its lease",
            )
        return known

    def _secret(self, durable: str) -> str:
        """Raises ConfigurationError, StorageError."""
        client = self._config.client
        return secret_of(durable, client.owner, client.user if client.password else "")

    def _results(self, asking: Asking) -> Iterator[InfoObject]:
        with self._open_query(asking, None) as opened:
            yield from opened
            if opened.partial:
                log.warning("a query is incomplete: %s", "; ".join(opened.partial))

    def _asking(self, type_name: str | None, given: Conditions) -> Asking:
        """What is asked, of which archives."""
        self._check_open()
        timeout = seconds_of(given.get("timeout"), QUERY_SECONDS)
        called, version = type_name or "", given.get("version") or ""
        entries: tuple[EntryRep, ...] = ()
        client = self._config.client
        request_of(called, (), given, client=client, now=time.time(), timeout=timeout)  # bad input: nobody is asked
        first_level = FirstLevel(
            template=given.get("template"), schema=given.get("schema"), marks=given.get("marks"), name=called,
            version=version, locations=given.get("locations") or {}, well_formed=given.get("well_formed", False),
            validate=given.get("validate", False),
        )  # fmt: skip
        if first_level.template is not None:
            entries, opened = self._templates.entries(first_level, "", {})
            self._forget_if_idle(opened)
            typed, entries = split_type(entries)
            called = typed.name or called
        name, archives = archives_with(
            called, self._listed_archives(), is_published=self._published.is_published, at=given.get("at")
        )
        request = request_of(name, entries, given, client=client, now=time.time(), timeout=timeout)
        fitness = self._templates.fitness(replace(first_level, name=name))
        return Asking(request, archives, key_of(request), timeout, fitness)

    def _archive_items(self) -> list[ServiceItem]:
        """One of each archive. Raises LookupNotFoundError."""
        template = ServiceTemplate(entries=(ArchiveEntry().rep(),))
        items = self._community.lookup(template, EVERYTHING)
        return list({item.proxy.service_id: item for item in items}.values())

    def _listed_archives(self) -> list[ServiceItem]:
        """As `_archive_items`. Where there is none it is looked again for a second: one that has just started is not
        listed yet."""
        until = time.monotonic() + LISTED_SECONDS
        while not (items := self._archive_items()) and time.monotonic() < until:
            time.sleep(0.05)
        return items

    def _open_query(self, asking: Asking, listener: QueryListener | None) -> Query:
        uid = f"query-{token_hex(8)}"
        asked = asking.request if asking.fitness is None else msgspec.structs.replace(asking.request, limit=0)
        parts = [
            QueryPart(f"{uid}-{number}", asked, place, self._listeners, asking.fitness)
            for number, place in enumerate(places_of(asking.archives))
        ]
        query = Query(
            parts, key=asking.key, timeout=asking.timeout, listener=listener, listeners=self._listeners,
            count=lambda seconds: self._archives.count(asking, seconds), limit=asking.request.limit,
        )  # fmt: skip
        with self._lock:
            self._queries.add(query)
        for part in parts:
            part.ask_at = partial(self._ask_at, part)
            part.ask_at(part.place.item.proxy.service_id)
        query.await_open(min(asking.timeout, self._config.lookup.timeout))
        return query

    def _ask_at(self, part: QueryPart, server: str) -> None:
        """Have a part asked at its address, where the server of that id is."""
        self._at_session(msgspec.structs.replace(part.place.item.proxy, service_id=server), partial(_asked, part))

    # -- ending -------------------------------------------------------------------------------------------------

    @checked
    def cancel_subscription(self, subscription: SubscriptionUid) -> None:
        """Cancel it everywhere: no further object comes once this has returned. A durable one is over then: `close`
        leaves it for the next time. Raises UnknownUidError."""
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

        Safe to call twice. Of a parent's adapter a forked child closes nothing.
        """
        if self._closed or not self._birthplace.is_here():
            return
        self._closed = True
        self._give_up_name()
        self._waiting.stop()
        with self._lock:
            sessions, subscriptions = list(self._sessions.values()), list(self._subscriptions.values())
            queries = list(self._queries)
        for query in queries:
            query.close()
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

    def _await_lookup_service(self, timeout: float) -> None:
        """Raises LookupNotFoundError when none answers within `timeout` seconds."""
        deadline = time.monotonic() + timeout
        while not self._community.connected():
            if time.monotonic() >= deadline or self._community.refused() is not None:
                self._community.lookup(ServiceTemplate(), 1, timeout=0.0, waited=timeout)
                return
            time.sleep(0.005)  # sessions make progress on their own threads

    # -- what matches -------------------------------------------------------------------------------------------

    def _matching(self, subscription: LocalSubscription) -> Matching:
        with self._lock:
            watch = self._by_uid.get(subscription.uid)
        count = len(watch.cache.items()) if watch is not None else 0
        why = "" if count else self._published.why_none(subscription.request.entries)
        return Matching(
            count, f"{why}; what archives have comes all the same" if why and has_past(subscription) else why
        )

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
            self._templates.forget(opened)

    # -- delegates ----------------------------------------------------------------------------------------------

    def _watch(self, subscription: LocalSubscription, opened: TypeName | None) -> TemplateWatch:
        with self._lock:
            watch = self._held(subscription, subscription.request.entries, opened)
            self._subscriptions[subscription.uid] = subscription
            self._by_uid[subscription.uid] = watch
        watch.begin(subscription, self._community)
        return watch

    def _held(
        self, subscription: LocalSubscription, entries: tuple[EntryRep, ...], opened: TypeName | None
    ) -> TemplateWatch:
        """Under the lock: the watch of that template, which ends with the last subscription that it holds."""
        watch = self._watches.get(entries)
        if watch is None:
            watch = self._watches[entries] = TemplateWatch(self._serve, entries, opened)
        watch.hold(subscription)
        return watch

    @contextmanager
    def _rewatching(
        self, subscription: LocalSubscription, entries: tuple[EntryRep, ...], opened: TypeName | None, deadline: float
    ) -> Iterator[None]:
        """Have it stand wherever that template matches as well, and no more by its own once what is done meanwhile has
        succeeded. Raises UnknownUidError, LookupNotFoundError."""
        with self._lock:
            former = self._by_uid.get(subscription.uid)
            if former is None:
                self._forget_if_idle(opened)
                raise unknown_uid("subscription", subscription.uid, "register_subscriber")
            watch = self._held(subscription, entries, opened)
        kept = former
        try:
            if watch is not former:
                watch.begin(subscription, self._community)
                self._community.wait_watching(watch.cache, max(0.0, deadline - time.monotonic()))
            yield
            kept = watch
        finally:
            with self._lock:
                if stands := self._by_uid.get(subscription.uid) is former:
                    self._by_uid[subscription.uid] = kept
                if watch is not former:  # the former one has let go of what was cancelled meanwhile
                    self._let_go(former if stands and kept is watch else watch, subscription)

    def _serve(self, subscription: LocalSubscription, item: ServiceItem) -> None:
        """Have the subscription registered with the delegate or peer publisher of a matching item."""
        with self._lock:
            if self._subscriptions.get(subscription.uid) is subscription:  # a durable one that begins anew has its id
                self._at_session(item.proxy, lambda session: session.want(subscription))

    def _at_session(self, ref: ServiceRef, do: Callable[[DelegateSession], bool]) -> None:
        """Have something done by the session at a delegate or peer publisher, which may be a new one; `do` tells
        whether it was: not by one that has ended."""
        ref = msgspec.structs.replace(ref, exported=SUBSCRIPTIONS, methods=SUBSCRIPTIONS_METHODS)
        with self._lock:
            if self._closed:
                return
            session = self._sessions.get(ref.service_id)
            if session is None or not do(session):
                session = self._sessions[ref.service_id] = self._new_session(ref)
                do(session)
                session.start()

    def _new_session(self, ref: ServiceRef) -> DelegateSession:
        return DelegateSession(
            ref,
            self._config,
            self._renewals,
            name=self._name,
            is_listed=_weakly(self._is_listed, otherwise=False),
            ended=_weakly(self._session_ended, otherwise=None),
            item=_weakly(self._item, otherwise=None),
            matched=_weakly(self._matched, otherwise=()),
            signatures=self._signatures,
            spool=self._spool,
        )

    def _item(self, uid: str) -> ServiceItem | None:
        """What the lookup services say of a registration."""
        with self._lock:
            caches = [cache for watch in self._watches.values() for cache in watch.caches()]
        return next((item for cache in caches if (item := cache.item(uid)) is not None), None)

    def _matched(self, uid: str) -> list[str]:
        """Registrations that a subscription matches now."""
        with self._lock:
            watch = self._by_uid.get(uid)
        return [] if watch is None else [item.service_id for item in watch.cache.items()]

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
            watch = self._by_uid.pop(subscription.uid, None)
            if watch is not None:
                self._let_go(watch, subscription)
        for session in sessions:
            session.registry.unwant(subscription.uid)
        subscription.close()

    def _let_go(self, watch: TemplateWatch, subscription: LocalSubscription) -> None:
        """Under the lock: a watch ends with the last subscription that it holds."""
        if watch.remove(subscription):
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


def _weakly(method: Callable[[A], R], *, otherwise: Any) -> Callable[[A], R]:
    """Calls a method of an adapter, without keeping that: `otherwise` when nobody refers to it any more."""
    known = WeakMethod(method)

    def called(argument: A) -> R:
        bound = known()
        return otherwise if bound is None else bound(argument)

    return called


def _asked(part: QueryPart, session: DelegateSession) -> bool:
    return session.ask(part)


def _check_durable(request: SubscriptionRequest) -> None:
    """Raises ConfigurationError."""
    if request.durable and request.recipients:
        raise ConfigurationError("durable is not for e-mail", hint="Mail goes on without us already: leave it out")
    if request.ack != "auto" and not request.durable:
        raise ConfigurationError(f'ack="{request.ack}" is for durable subscriptions', hint="Give it a name: durable=")


def _close_session(session: DelegateSession) -> None:
    with guarded("closing a session"):  # the others are to be closed, too
        session.close()


def _after_fork() -> None:
    """In a child the parent's adapter is not open; its lock may have been held by a thread that is not here."""
    SubscriberAdapter._open_lock = threading.Lock()
    SubscriberAdapter._open = set()
    SubscriberAdapter._lost = []


os.register_at_fork(after_in_child=_after_fork)
