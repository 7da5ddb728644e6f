"""Archives that lookup services know: those that may have what a query asks for, and calls to several of them."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from secrets import token_hex
from typing import Final, TypeVar
from weakref import WeakSet

import msgspec

from jbi_pubsub.core.config import Config
from jbi_pubsub.core.errors import ConfigurationError, JbiError, UnknownUidError, WireError
from jbi_pubsub.core.history import Explanation
from jbi_pubsub.core.info_object import InfoObject, TypeName
from jbi_pubsub.core.xpath.predicate import XPATH
from jbi_pubsub.lookup.client.join import JoinManager
from jbi_pubsub.lookup.client.proxy import EVERYTHING
from jbi_pubsub.lookup.entry import EntryRep
from jbi_pubsub.lookup.item import ServiceItem, ServiceTemplate
from jbi_pubsub.protocol.entries import ANSWERING_TYPES, ArchiveEntry, InformationType
from jbi_pubsub.protocol.requests import QueryRequest
from jbi_pubsub.protocol.services import Claims, HistoryProxy

from .coverage import ArchiveAnswer, ArchivePlace, entry_of, named, places_of
from .first_level import FirstLevel
from .listeners import ListenerPool
from .moments import Moment, start_at
from .options import Conditions, object_request, query_request, seconds_of
from .owner import secret_of
from .published import PublishedTypes, type_asked, with_local_name
from .query import QUERY_SECONDS, Count, Query, QueryDraft, QueryListener
from .session import DelegateSession
from .session_queries import QueryPart
from .table import SubscriptionTable

log = logging.getLogger("jbi_pubsub.subscriber")

ASKED_AT_ONCE: Final = 16
"""Archives that are asked at the same time."""

LISTED_SECONDS: Final = 1.0
"""Time that an archive is waited for to be listed."""

T = TypeVar("T")


def archives_with(
    name: str,
    items: Sequence[ServiceItem],
    *,
    is_published: Callable[[str], bool] = lambda _: False,
    types_at: Callable[[str, Sequence[ServiceItem]], Mapping[str, frozenset[str]]] = lambda *_: {},
    at: Sequence[str] | None = None,
    is_whole: bool = False,
) -> tuple[str, list[ServiceItem]]:
    """The type that is meant, and the archives that may have objects of it, of those `at` some addresses if any are
    given; "" stands for all types; `is_whole`: the name is that of the type, and not its last part; `types_at`: see the
    function. Raises UnknownUidError when none has, or none is at an address, and ConfigurationError when the name may
    be that of several types."""
    if at is not None:
        if not at:
            raise ConfigurationError("at: no address is named", hint="Leave it out for all archives")
        there = {address for item in items for address in item.proxy.endpoints}
        if missing := [address for address in at if address not in there]:
            raise UnknownUidError(
                f"the lookup services know of no archive at {', '.join(missing)[:200]}",
                hint=f"There are: {', '.join(sorted(there)[:5]) or 'none'}",
            )
        items = [item for item in items if not set(at).isdisjoint(item.proxy.endpoints)]
    if not items:
        raise UnknownUidError(
            "the lookup services know of no archive",
            hint="Start a delegate with one: `jbi pad NAME LOCATION --archive FOLDER`",
        )
    types = {item.service_id: _types_of(item) for item in items}
    if not name:
        return "", list(items)
    if not any(name in (of or ()) for of in types.values()):
        untold = [item for item in items if types[item.service_id] is None and ANSWERING_TYPES.isdisjoint(item.types)]
        types |= types_at(name, untold) if untold else {}
    names = sorted({known for of in types.values() for known in of or ()})
    having = [name] if name in names else [] if is_whole else with_local_name(name, names)
    if len(having) > 1:
        some = ", ".join(map(_shown, having[:5]))
        raise ConfigurationError(f"type {_shown(name)} may be one of {some}", hint="Name one in full")
    meant = having[0] if having else name
    found = [item for item in items if (of := types[item.service_id]) is None or meant in of]
    if not having and is_published(name):
        return name, list(items)  # what an archive has begun to keep it need not have told yet
    if not found:
        raise UnknownUidError(  # without the types that there are: who asks may not be one who may have them
            f"no archive has objects of type {_shown(name)}",
            hint="`jbi archive status` shows what they have",
            type=name,
        )
    return meant, found


def types_at(config: Config, name: str, items: Sequence[ServiceItem]) -> dict[str, frozenset[str]]:
    """Types at archives, by their service ids, that have that name or have it as the last part of theirs, as the
    archives say: those that do not are left out."""
    claims = Claims(config.client.user, config.client.role)

    def said(proxy: HistoryProxy) -> frozenset[str] | None:
        try:
            return frozenset(proxy.types_called(name, claims))
        except JbiError:  # it is asked by that name, and says so itself
            return None

    return {place.item.service_id: told for place, told in _each(config, items, said) if told is not None}


def _each(
    config: Config, items: Sequence[ServiceItem], ask: Callable[[HistoryProxy], T]
) -> list[tuple[ArchivePlace, T]]:
    """Answers of archives, each asked once."""
    security = config.security()

    def asked(place: ArchivePlace) -> T:
        proxy = HistoryProxy(place.item.proxy, security, timeout=config.lookup.timeout)
        try:
            return ask(proxy)
        finally:
            proxy.close()

    places = places_of(items)
    with ThreadPoolExecutor(min(len(places), ASKED_AT_ONCE), thread_name_prefix="archives") as pool:
        return list(zip(places, pool.map(asked, places), strict=True))


def _or_error(ask: Callable[[HistoryProxy], T]) -> Callable[[HistoryProxy], T | JbiError]:
    """The same, with an error as the answer."""

    def tried(proxy: HistoryProxy) -> T | JbiError:
        try:
            return ask(proxy)
        except JbiError as exc:
            return exc

    return tried


def _shown(name: str) -> str:
    """A type's name, ours or a stranger's, as a part of one line."""
    return name[:100] if name.isprintable() else repr(name[:100])


class Explanations(dict[str, Explanation]):
    """Explanations of how archives would answer, by their addresses."""

    def __init__(self, each: Mapping[str, Explanation], partial: tuple[str, ...] = ()) -> None:
        super().__init__(each)
        self.partial = partial
        """The archives (addresses) that have not said it, each with the reason."""


def _types_of(item: ServiceItem) -> frozenset[str] | None:
    """The types in an archive; None: not known."""
    said = entry_of(item)
    return None if said is None or said.types is None else frozenset(said.types.split())


class ArchiveQueries:
    """Queries of a subscriber: planned, opened, and ended with the subscriber. Safe for several threads."""

    def __init__(
        self,
        config: Config,
        community: JoinManager,
        published: PublishedTypes,
        table: SubscriptionTable,
        listeners: ListenerPool,
    ) -> None:
        self._config = config
        self._community = community
        self._published = published
        self._templates = table.templates
        self._sessions = table.sessions
        self._listeners = listeners
        self._claims = Claims(config.client.user, config.client.role)
        self._lock = threading.Lock()
        self._open: WeakSet[Query] = WeakSet()

    def draft(self, type_name: str | None, given: Conditions) -> QueryDraft:
        """Make out what is asked, of which archives. Raises what `open_query` of the adapter does."""
        # bad input is refused before anybody is asked
        called, timeout = type_name or "", seconds_of(given.get("timeout"), QUERY_SECONDS)
        request = query_request(called, given, self._config.client, now=time.time())
        entries: tuple[EntryRep, ...] = ()
        first_level = FirstLevel(given.get("template"), called, given, is_whole=True)
        if first_level.template is not None:
            called, entries = self._bound(first_level)
        name, archives = archives_with(
            called, self._listed(timeout), is_published=self._published.is_published,
            types_at=partial(types_at, self._config), at=given.get("at"), is_whole=given.get("whole_name", False),
        )  # fmt: skip
        first_level = replace(first_level, name=name)
        if first_level.template is not None and name != called:  # the entries of a type have its whole name
            _, entries = self._bound(first_level)
        request = msgspec.structs.replace(request, type=name, entries=entries)
        fitness = self._templates.fitness(first_level)
        return QueryDraft(request, archives, timeout, fitness)

    def _bound(self, first_level: FirstLevel) -> tuple[str, tuple[EntryRep, ...]]:
        """The type that a template names, and its entries. Raises MetadataError, SchemaError."""
        entries, opened = self._templates.entries(first_level, "", {})
        self._templates.forget_if_idle(opened)
        others = tuple(rep for rep in entries if rep.cls.name != InformationType.entry_name)
        return type_asked(entries).name or first_level.name, others

    def open(self, draft: QueryDraft, listener: QueryListener | None = None) -> Query:
        """Open a query; results come to the `listener`, if there is one. Raises what archives say if none takes it."""
        uid = f"query-{token_hex(8)}"
        asked, places = draft.request, places_of(draft.archives)
        if draft.fitness is not None or (asked.latest_by and len(places) > 1):
            asked = msgspec.structs.replace(asked, limit=0)  # of what they have, some is no result
        parts = [
            QueryPart(f"{uid}-{number}", asked, place, self._listeners, draft.fitness)
            for number, place in enumerate(places)
        ]
        draft = draft._replace(impossible=partial(self._impossible, draft.request))
        query = Query(parts, draft, listener, self._listeners, partial(self.count, draft))
        with self._lock:
            self._open.add(query)
        for part in parts:
            part.ask_at = partial(self._ask_at, part)
            part.ask_at(part.place.item.proxy.service_id)
        query.await_open(min(draft.timeout, self._config.lookup.timeout))
        return query

    def _impossible(self, request: QueryRequest) -> tuple[str, ...]:
        if not request.type or not request.predicate or request.language != XPATH or request.view != "metadata":
            return ()
        known = self._published.opened(request.type, request.version)
        if known is None and request.version:
            known = self._published.registered(TypeName(request.type, request.version))
        return known.impossible(request.predicate, dict(request.namespaces)) if known is not None else ()

    def count(self, draft: QueryDraft, seconds: float | None = None) -> Count:
        """Number of objects that they have in all. Raises what the first says, if none can."""
        request, claims = draft.request, self._claims
        told, errors = self._answers(
            draft, lambda proxy: proxy.count(request, draft.timeout if seconds is None else seconds, claims)
        )
        each = {(said.incarnations or (place.address,))[0]: said.count for place, said in told}  # one archive, once
        answers = [
            ArchiveAnswer(place.address, place.listed, said.incarnations, "", said.lacks) for place, said in told
        ]
        answers += [ArchiveAnswer(place.address, place.listed, (), why.message) for place, why in errors]
        total = sum(each.values())
        return Count(min(total, request.limit) if request.limit else total, named(answers))

    def explain(self, draft: QueryDraft) -> Explanations:
        """Explanations of how each would answer, by its address. Raises as `count`."""
        request, claims = draft.request, self._claims
        told, errors = self._answers(draft, lambda proxy: proxy.explain_query(request, claims))
        partial = tuple(f"{place.address}: {why.message}" for place, why in errors)
        return Explanations({place.address: said.explanation for place, said in told}, partial)

    def get(self, object_id: str, timeout: float) -> InfoObject:
        """An archived object. Raises as `get` of the adapter."""
        request = object_request(object_id, timeout)
        _, archives = archives_with("", self._listed(timeout))
        with self.open(QueryDraft(request, archives, timeout)) as opened:
            found = opened.get_next(1)
        if not found and opened.partial:
            raise WireError(
                f"whether an archive has object {object_id} is not known: {'; '.join(opened.partial)}",
                hint="Try again when they answer with all that they have",
            )
        if not found:
            raise UnknownUidError(f"no archive has object {object_id}", hint="It was not kept, or given up")
        return found[0]

    def reset_durable(self, name: str, to: Moment | int) -> int:
        """Number of archives at which a durable subscription goes on from there now. Raises as that of the adapter."""
        start, secret = start_at(to, now=time.time()), secret_of(name, self._config.client)
        return self._with_durable(name, lambda proxy: proxy.reset(name, secret, start, self._claims))

    def end_durable(self, name: str) -> int:
        """Number of archives that have forgotten a durable subscription. Raises as that of the adapter."""
        secret = secret_of(name, self._config.client)
        return self._with_durable(name, lambda proxy: proxy.end_durable(name, secret, self._claims))

    def _with_durable(self, name: str, do: Callable[[HistoryProxy], bool]) -> int:
        _, archives = archives_with("", self._listed())
        answers = _each(self._config, archives, _or_error(do))
        known = sum(answer is True for _, answer in answers)
        errors = [(place.address, answer) for place, answer in answers if isinstance(answer, JbiError)]
        if errors and len(answers) > 1:  # one that was killed is listed until its lease ends
            address, why = errors[0]
            raise type(why)(
                f"durable subscription {name!r}: done at {known} of {len(answers)} archives, not at {address}:"
                f" {why.message}", hint=why.hint or "Do it again when it answers",
            )  # fmt: skip
        if errors:
            raise errors[0][1]
        if not known:
            raise UnknownUidError(
                f"no archive knows a durable subscription {name!r} of this user",
                hint="It belongs to the user that made it, by certificate or [client] owner, and ends with its lease",
            )
        return known

    def archives(self, seconds: float = math.inf) -> list[ServiceItem]:
        """One listing of each archive; lookup services have so many `seconds` at most, and some. Raises
        LookupNotFoundError."""
        template = ServiceTemplate(entries=(ArchiveEntry().rep(),))
        timeout = min(self._config.lookup.timeout, max(LISTED_SECONDS, seconds))
        items = self._community.lookup(template, EVERYTHING, timeout=timeout)
        return list({item.proxy.service_id: item for item in items}.values())

    def close(self) -> None:
        """End all queries."""
        with self._lock:
            queries = list(self._open)
        for query in queries:
            query.close()

    def _listed(self, seconds: float = math.inf) -> list[ServiceItem]:
        """As `archives`. Where there is none it is looked again for a second: one that has just started is not listed
        yet."""
        until = time.monotonic() + LISTED_SECONDS
        while not (items := self.archives(seconds)) and time.monotonic() < until:
            time.sleep(0.05)
        return items

    def _ask_at(self, part: QueryPart, server: str) -> None:
        """Have a part asked at its address, where the server of that id is."""

        def ask(session: DelegateSession) -> bool:
            return session.ask(part)

        self._sessions.do(msgspec.structs.replace(part.place.item.proxy, service_id=server), ask)

    def _answers(
        self, draft: QueryDraft, ask: Callable[[HistoryProxy], T]
    ) -> tuple[list[tuple[ArchivePlace, T]], list[tuple[ArchivePlace, JbiError]]]:
        """Answers of those that give one, and why the others do not. Raises what the first says, if none does."""

        said = _each(self._config, draft.archives, _or_error(ask))
        answers = [(place, answer) for place, answer in said if not isinstance(answer, JbiError)]
        errors = [(place, error) for place, error in said if isinstance(error, JbiError)]
        if not answers:
            raise errors[0][1]
        for place, error in errors:
            log.warning("the archive at %s does not answer: %s", place.address, error)
        return answers, errors
