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
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import count
from types import TracebackType
from typing import Any, ClassVar, Self, Unpack

import msgspec

from jbi_pubsub.core.arguments import Document, checked
from jbi_pubsub.core.config import Config, effective
from jbi_pubsub.core.errors import AdapterStateError, JbiError
from jbi_pubsub.core.info_object import InfoObject, TypeName
from jbi_pubsub.core.open_adapters import Closing
from jbi_pubsub.core.process import Birthplace
from jbi_pubsub.core.quality import GrantedQos, Wish
from jbi_pubsub.lookup.client.join import JoinManager
from jbi_pubsub.protocol.requests import check_request

from .archives import ArchiveQueries, Explanations
from .first_level import FirstLevel
from .listeners import ListenerPool, SubscriptionUid
from .moments import Moment
from .options import Conditions, SubscriptionOptions, amended_request, seconds_of, subscription_request
from .placed import subscription_of
from .published import Matching, PublishedTypes
from .query import Count, Query, QueryDraft, QueryListener
from .signed import DeliverySignatures
from .subscription import LocalSubscription
from .table import SubscriptionTable

log = logging.getLogger("jbi_pubsub.subscriber")


class AdapterNames:
    """Names of the subscribers' adapters that are open in this process. `_lock` covers them."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Have no adapter: as in a forked child, where the lock may have been held by a thread that is not there."""
        self.lost: list[tuple[str, Callable[[], None]]] = []
        """Names of adapters that nobody refers to, and that were not closed; and what closes them."""
        self._lock = threading.Lock()
        self._open: set[str] = set()

    def claim(self, name: str | None, *, is_only: bool) -> str:
        """A name that no other adapter of the process has; where it is not the only one (`is_only`) any. Those that
        are lost are closed first. Raises AdapterStateError."""
        while True:
            try:
                lost, close = self.lost.pop()
            except IndexError:  # none is left; another thread may close them as well
                break
            close()  # first: a warning may be an error
            text = f"SubscriberAdapter {lost} was not closed, and nobody refers to it: it is closed now"
            warnings.warn(text, ResourceWarning, stacklevel=4)
        usual = f"subscriber-{os.getpid()}"
        if not is_only:
            return name or usual
        with self._lock:
            if name in self._open:
                raise AdapterStateError(
                    f"a SubscriberAdapter named {name!r} is open in this process already",
                    hint="Use it for all subscriptions, close it first, or give another name",
                )
            names = (usual if number == 1 else f"{usual}-{number}" for number in count(1))
            claimed = name or next(each for each in names if each not in self._open)
            self._open.add(claimed)
            return claimed

    def give_up(self, name: str, *, is_only: bool) -> None:
        """Have another one take that name, which was claimed in that way."""
        if is_only:
            with self._lock:
                self._open.discard(name)


NAMES = AdapterNames()


os.register_at_fork(after_in_child=NAMES.forget)


class SubscriberAdapter:
    """Receives information objects. Safe for several threads.

    Each is a client of its own. Of one `name` only one may be open in a process (paper section 2.4(5)): a second raises
    AdapterStateError until the first is closed. Without `name` it gets one that no other has. One that nobody refers to
    any more, and that was not closed, is closed by the next one, with a ResourceWarning. A forked child does not own
    its parent's adapters: it opens its own. Without `config` the configuration file and JBI_* variables count.
    """

    _is_only: ClassVar[bool] = True
    """A bridge has one for each platform that it is on."""
    _make = staticmethod(subscription_of)

    @checked
    def __init__(self, config: Config | None = None, *, name: str | None = None) -> None:
        self._config, self._birthplace = config or effective(), Birthplace()
        self._name = NAMES.claim(name, is_only=self._is_only)
        try:
            signatures = DeliverySignatures.of(self._config)
            self._community = JoinManager(self._config, name=self._name)
        except JbiError:
            NAMES.give_up(self._name, is_only=self._is_only)
            raise
        self._closed, self._closing = False, Closing()
        self._published = PublishedTypes(self._community, self._config)
        self._listeners = ListenerPool(self._name)
        given = (self._community, self._published)
        self._subscriptions = SubscriptionTable(self._config, self._name, *given, signatures)
        self._queries = ArchiveQueries(self._config, *given, self._subscriptions, self._listeners)

    def __del__(self) -> None:
        if (closing := getattr(self, "_closing", None)) and not closing.has_begun and self._birthplace.is_here():
            NAMES.lost.append((self._name, self.close))  # closing takes a while, and waits for others: not here

    @checked
    def register_subscriber(
        self, template: Document | None = None, **options: Unpack[SubscriptionOptions]
    ) -> SubscriptionUid:
        """Register a subscription; the id for all later calls. Everything is optional and ANDed: see
        `SubscriptionOptions`.

        First level: `template`, a metadata document whose invariant elements must be equal (with `schema`, `marks`,
        `locations`), or `type_name` and `version`. Second level: `predicate` over the metadata (with `view`),
        `payload_filter` over an XML payload (with `suppress_empty`, `unfiltered`); `namespaces` and `language` of both;
        `unlike` and `local`, `well_formed` and `validate`. Delivery: to this subscription's queue, or to `listener`, or
        by e-mail to `recipients`, both with `direct` True; `bound` and `policy` say what happens when too many objects
        wait (default [queue]). `qos`: what is wished of importance, deadline, rate, size and shape; see `qos` for what
        was granted. History, at delegates with an archive: `start` (with `latest_by`), `durable` and `ack`.

        Returns when the lookup services watch for it (at most `timeout` seconds): from then on it stands, and gets what
        is published, however long it takes to reach the publishers; what could not be kept for it until then is told as
        lost (`missed`). See `wait_matched`, and `matching`, which is logged. Raises ArgumentError, PredicateError,
        AddressError, MetadataError, SchemaError, OversizeError, ConfigurationError, LookupNotFoundError, and
        AdapterStateError for a durable one that is open here: no state is left then.
        """
        self._check_open()
        seconds = seconds_of(options.get("timeout"), self._config.lookup.timeout)
        deadline = time.monotonic() + seconds
        request = subscription_request(options, self._config, now=time.time())
        is_derived = request.language == "xpath" and request.view != "combined"
        is_whole = options.get("whole_name", False)
        first_level = FirstLevel(template, options.get("type_name") or "", options, is_derived, is_whole)
        if first_level.name:
            self._published.await_service(seconds)
        templates = self._subscriptions.templates
        entries, opened = templates.entries(first_level, request.predicate, dict(request.namespaces))
        request = msgspec.structs.replace(request, entries=entries)
        check_request(request)
        fitness = templates.fitness(first_level)
        subscription = self._make(request, options.get("listener"), self._listeners)
        subscription.fitness, subscription.terms.first_level = fitness, first_level
        subscription.terms.language = options.get("language") or ""
        self._subscriptions.add(subscription, opened, deadline)
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
        "" takes a predicate or filter away, an empty Wish the wish. The predicate is in the language that it was
        registered with; `namespaces` are the prefixes in both, beside those that the subscription has.

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
        with local.terms.amending:
            given = (predicate, payload_filter, namespaces, qos, local.terms.language)
            request = amended_request(local.request, self._config.client, *given)
            entries, opened = self._subscriptions.templates.entries(
                local.terms.decided, request.predicate, dict(request.namespaces)
            )
            request = msgspec.structs.replace(request, entries=entries)
            return self._subscriptions.amend(local, request, opened, deadline)

    @checked
    def matching(self, subscription: SubscriptionUid) -> Matching:
        """Number of publisher registrations that match now, and why none does: which types are published, which is
        nearest, in which versions. As text it is one line. Raises UnknownUidError."""
        return self._subscriptions.matching(self._find(subscription))

    @checked
    def wait_matched(self, subscription: SubscriptionUid, count: int = 1, timeout: float = 10.0) -> int:
        """At how many delegates and peer publishers the subscription stands, as soon as there are `count`, or after
        `timeout` seconds. Raises UnknownUidError."""
        return self._subscriptions.wait_matched(self._find(subscription).uid, count, timeout)

    @checked
    def receive(self, subscription: SubscriptionUid, timeout: float = 10.0) -> InfoObject | None:
        """The next object, or None after `timeout` seconds. Raises UnknownUidError."""
        return self._find(subscription).queue.take(timeout)

    @checked
    def objects(self, subscription: SubscriptionUid, timeout: float = 10.0) -> Iterator[InfoObject]:
        """Objects as they come, until none has come for `timeout` seconds. Raises UnknownUidError."""
        return iter(partial(self._find(subscription).queue.take, timeout), None)

    @checked
    def drain(self, subscription: SubscriptionUid) -> list[InfoObject]:
        """All objects that wait in the queue now. Raises UnknownUidError."""
        return self._find(subscription).queue.drain()

    @checked
    def pause(self, subscription: SubscriptionUid) -> None:
        """Have nothing taken of it until `resume`: `receive` gives None, its listener is not called; what comes waits,
        as much as it may. Raises UnknownUidError."""
        self._find(subscription).queue.pause()

    @checked
    def resume(self, subscription: SubscriptionUid) -> None:
        """Undo `pause`. Raises UnknownUidError."""
        self._find(subscription).queue.resume()

    @checked
    def queue_size(self, subscription: SubscriptionUid) -> int:
        """Number of objects that wait in the queue. Raises UnknownUidError."""
        return len(self._find(subscription).queue.waiting)

    @checked
    def losses(self, subscription: SubscriptionUid) -> dict[str, int]:
        """Objects lost so far by cause (a cause of unknown extent counts 1). Raises UnknownUidError."""
        return {str(cause): count for cause, count in self._find(subscription).losses.by_cause.items()}

    @checked
    def qos(self, subscription: SubscriptionUid) -> dict[str, GrantedQos]:
        """Grants of its wish by now, by the service id of each delegate and peer publisher where it stands:
        the settings, and which fields are less than wished for, by which policy; without a wish, what it had got when
        it opened there: changes are told to those alone who wished. Raises UnknownUidError, and
        QosDeniedError if it stands nowhere as a field that it requires is not granted."""
        return self._subscriptions.quality(self._find(subscription).uid)

    @checked
    def refusal(self, subscription: SubscriptionUid) -> JbiError | None:
        """Why it stands nowhere, if those that it was to stand at refuse it, or lookup services do not watch for it; or
        why a delegate where it stands does not evaluate it for some registration: it would cost too much. It is asked
        for again after a while, and when the rules there change. None if it stands somewhere and is evaluated, or
        nobody has refused it. Raises UnknownUidError."""
        return self._subscriptions.refusal(self._find(subscription).uid)

    @checked
    def acknowledge(self, obj: InfoObject, subscription: SubscriptionUid | None = None) -> None:
        """The application is done with an object of a durable subscription with ack="explicit": it does not come again.
        Of all subscriptions that have got it, or of one. Raises UnknownUidError when it does not wait for that."""
        self._check_open()
        self._subscriptions.acknowledge(obj, subscription)

    def types(self) -> list[TypeName]:
        """Types and versions that are published now, as lookup services know them. Raises LookupNotFoundError."""
        self._check_open()
        return self._published.types(self._config.lookup.timeout)

    # -- archives -----------------------------------------------------------------------------------------------

    @checked
    def query(self, type_name: str | None = None, **conditions: Unpack[Conditions]) -> Iterator[InfoObject]:
        """The archived objects of a type that match, as they come: see `open_query`, whose conditions it takes. It is
        opened when the first is asked for. An archive that does not answer is logged, and the others' objects come."""
        self._check_open()
        return self._results(self._queries.draft(type_name, conditions))

    @checked
    def open_query(
        self, type_name: str | None = None, *, listener: QueryListener | None = None, **conditions: Unpack[Conditions]
    ) -> Query:
        """Ask all archives that the lookup services know for a type; of its name the last part will do, as long as no
        other type has it; without, all types. What is acknowledged to its publisher by now is seen, nothing later.

        All conditions hold together (see `Conditions`). Of several archives results come by time of publication, each
        object once; without `timeout` it may take an hour. To a `listener` they come on a library thread, else to
        whoever iterates or calls `get_next`.

        Raises ArgumentError, PredicateError, ConfigurationError, MetadataError, SchemaError, LookupNotFoundError,
        UnknownUidError (no archive has the type), and what the archives say if none of them takes the query.
        """
        self._check_open()
        query = self._queries.open(self._queries.draft(type_name, conditions), listener)
        query.adapter = self
        return query

    @checked
    def count(self, type_name: str | None = None, **conditions: Unpack[Conditions]) -> Count:
        """Number of archived objects that a query would have, without fetching them; a copy in another archive counts
        as well, and what `suppress_empty` would leave out. A number whose `partial` names the archives that could not
        say, as that of a query. Raises as `open_query`."""
        self._check_open()
        return self._queries.count(self._queries.draft(type_name, conditions))

    @checked
    def explain_query(self, type_name: str | None = None, **conditions: Unpack[Conditions]) -> Explanations:
        """Explanation of how each archive (by its address) would answer a query: what its index decides, what is left
        to look at, and about how long it takes. A dictionary whose `partial` names those that could not say. Raises as
        `open_query`."""
        self._check_open()
        return self._queries.explain(self._queries.draft(type_name, conditions))

    @checked
    def get(self, object_id: str, timeout: float = 60.0) -> InfoObject:
        """An archived object, wherever it is. Raises UnknownUidError when no archive has it; when none that answers has
        it, and not all do, WireError."""
        self._check_open()
        return self._queries.get(object_id, timeout)

    @checked
    def reset_durable(self, name: str, to: Moment | int) -> int:
        """Have a durable subscription of this user go on from another place the next time: "now", "all", "last", a time
        or a position, as `start` of `register_subscriber`. At how many archives it is known. Raises UnknownUidError
        when at none, ConfigurationError, StorageError, and when all others have, what an archive says that does not."""
        self._check_open()
        return self._queries.reset_durable(name, to)

    @checked
    def end_durable(self, name: str) -> int:
        """End one that no process has open: its position is forgotten. Otherwise as `reset_durable`."""
        self._check_open()
        return self._queries.end_durable(name)

    @checked
    def cancel_subscription(self, subscription: SubscriptionUid) -> None:
        """Cancel it everywhere: no further object comes once this has returned. A durable one is over then: `close`
        leaves it for the next time. Raises UnknownUidError, WireError when an archive that has not answered goes on
        to keep a durable one."""
        self._subscriptions.cancel(self._find(subscription))

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._name!r}{', closed' if self._closed else ''}>"

    def status(self) -> dict[str, Any]:
        """Subscriptions and sessions as plain data."""
        return {"name": self._name} | self._subscriptions.status()

    def close(self) -> None:
        """Cancel the direct subscriptions and end all threads; e-mail subscriptions live on by their leases. Safe to
        call twice: the second call goes on with one that was interrupted. Of a parent's adapter a child closes none."""
        if self._birthplace.is_here():
            self._closed = True
            self._closing.run(self._leave)

    def _leave(self) -> None:
        self._queries.close()
        self._subscriptions.close()
        self._listeners.stop()
        self._community.close()
        NAMES.give_up(self._name, is_only=self._is_only)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def _results(self, draft: QueryDraft) -> Iterator[InfoObject]:
        with self._queries.open(draft) as opened:
            yield from opened
            if opened.partial:
                log.warning("a query is incomplete: %s", "; ".join(opened.partial))

    def _find(self, subscription: SubscriptionUid) -> LocalSubscription:
        self._check_open()
        return self._subscriptions.find(subscription)

    def _check_open(self) -> None:
        if not self._birthplace.is_here():
            raise AdapterStateError("this SubscriberAdapter is the parent process's", hint="Open one after the fork")
        if self._closed:
            raise AdapterStateError("this SubscriberAdapter is closed")
