"""What a query asks for, of which archives: the conditions of an application, and the archives that may have it."""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, NamedTuple, TypedDict, TypeVar

from jbi_pubsub.core.arguments import Document, Source
from jbi_pubsub.core.config import ClientSection, Config
from jbi_pubsub.core.errors import ConfigurationError, JbiError, MetadataError, UnknownUidError
from jbi_pubsub.core.history import MAX_POSITION, Explanation, Order
from jbi_pubsub.core.info_object import InfoObject, has_zeros
from jbi_pubsub.core.quality import Wish, checked_wish
from jbi_pubsub.core.wire.endpoint import Security
from jbi_pubsub.core.xml import parse_metadata
from jbi_pubsub.core.xpath import compile_filter, compile_predicate
from jbi_pubsub.core.xpath.predicate import FOREIGN_ERRORS, compiled_xpath
from jbi_pubsub.lookup.entry import EntryRep
from jbi_pubsub.lookup.item import ServiceItem
from jbi_pubsub.protocol.entries import InformationType
from jbi_pubsub.protocol.requests import QueryRequest, Start, Unfiltered, View, check_unfiltered
from jbi_pubsub.protocol.services import Claims, HistoryProxy

from .coverage import Answer, Place, entry_of, named, places_of
from .fitness import Fitness
from .merging import KeyOf
from .moments import LATEST, Moment, place_at, seconds_at
from .published import with_local_name

log = logging.getLogger("jbi_pubsub.subscriber")

MAX_LIMIT: Final = 2**53
MAX_IDS: Final = 10_000
"""Registrations that a query names."""
ASKED_AT_ONCE: Final = 16
"""Archives that are asked at the same time."""
NO_CLIENT: Final = ClientSection()
_OBJECT_ID: Final = re.compile(r"[0-9A-Za-z._-]{1,128}")

T = TypeVar("T")


class Conditions(TypedDict, total=False):
    """What a query may ask for beside the type's name; all that is given holds together."""

    version: str | None
    """Of the type; without, every version."""
    template: Document | None
    """As of a subscription: its invariant values must be equal."""
    schema: Source | None
    """Of the template."""
    marks: Source | None
    locations: Mapping[str, Path] | None
    predicate: str | None
    """XPath over the metadata; answers are those that a subscription would get."""
    view: View | None
    """Of the predicate: "metadata" (default), or "combined" with what the platform says of the object."""
    namespaces: Mapping[str, str] | None
    """Of predicate, payload filter and key, beside those of [client] namespaces."""
    well_formed: bool
    """Whether results whose metadata are not are dropped here; `query.invalid` counts them."""
    validate: bool
    """Whether those are that are not valid by `schema`, or the type repository's; type and version are named then."""
    language: str | None
    payload_filter: str | None
    suppress_empty: bool
    unfiltered: Unfiltered | None
    """What becomes of XML beyond what is filtered: "withhold" (default; `query.partial` tells of it), or "deliver"."""
    since: Moment | None
    """Published (with `received`: received at the delegate) at this moment or later."""
    until: Moment | None
    received: bool
    after: int | str | None
    """Positions above that of an object's `platform.place`, of one archive: another one refuses. Or above a position
    alone, of which nobody can tell."""
    up_to: int | None
    registrations: Sequence[str] | None
    """Ids of registrations."""
    publisher: str | None
    """The name that the publisher gave its adapter."""
    at: Sequence[str] | None
    """Addresses of delegates whose archives alone are asked; without, all that may have the type."""
    least_payload: int | None
    """Bytes of the payload as published."""
    most_payload: int | None
    latest_by: str | None
    """XPath of a key: the newest object alone of each that there is, by type and version; of what has none, none."""
    order: Order | None
    """"oldest" (default) or "newest" first, by position."""
    limit: int | None
    """Results at most."""
    timeout: float | None
    """Seconds until it ends as timed out."""
    qos: Wish | None
    """What is wished of importance, size and shape."""


class Asking(NamedTuple):
    """A query before it is opened: what is asked, of which archives."""

    request: QueryRequest
    archives: Sequence[ServiceItem]
    key: KeyOf | None
    timeout: float
    fitness: Fitness | None = None
    """What metadata of results have to be. What is dropped here the archives do not know of: they are not told `limit`,
    and count it."""


def bindings(client: ClientSection, given: Mapping[str, str] | None, *texts: str | None) -> dict[str, str]:
    """The namespaces of prefixes in some XPaths: those that are given, and of [client] namespaces those that are used
    and not given."""
    pairs = (each.split("=", 1) for each in client.namespaces)
    known = {prefix: uri for prefix, uri in pairs if any(f"{prefix}:" in text for text in texts if text)}
    return {**known, **(given or {})}


def request_of(
    name: str,
    entries: tuple[EntryRep, ...],
    given: Conditions,
    *,
    client: ClientSection = NO_CLIENT,
    now: float,
    timeout: float,
) -> QueryRequest:
    """What goes to each archive. `entries`: of the template. Raises ConfigurationError, PredicateError."""
    check_version(given.get("version") or "")
    language = given.get("language") or "xpath"
    predicate, wanted, key = (
        given.get("predicate") or "",
        given.get("payload_filter") or "",
        given.get("latest_by") or "",
    )
    namespaces = bindings(client, given.get("namespaces"), predicate, wanted, key)
    if predicate:
        compile_predicate(predicate, namespaces=namespaces, language=language)
    if wanted:
        compile_filter(wanted, namespaces=namespaces)
    unfiltered = given.get("unfiltered") or "withhold"
    check_unfiltered(unfiltered)
    wish = given.get("qos") or Wish()
    checked_wish(wish)
    if key:
        compile_predicate(f"boolean({key})", namespaces=namespaces, argument="latest_by")
    since, until = given.get("since"), given.get("until")
    earliest = 0.0 if since is None else seconds_at(since, now=now, what="since")
    latest = LATEST if until is None else seconds_at(until, now=now, what="until")
    _check_order("since", earliest, "until", latest)
    after, archive = (0, "") if (behind := given.get("after")) is None else place_at(behind, "after")
    up_to = _within("up_to", given.get("up_to"), 0, MAX_POSITION, MAX_POSITION)
    _check_order("after", after, "up_to", up_to)
    least = _within("least_payload", given.get("least_payload"), 0, MAX_LIMIT, 0)
    most = _within("most_payload", given.get("most_payload"), 0, MAX_LIMIT, MAX_LIMIT)
    _check_order("least_payload", least, "most_payload", most)
    registrations = given.get("registrations")
    if registrations is not None and not 1 <= len(registrations) <= MAX_IDS:
        raise ConfigurationError(f"registrations: {len(registrations)} are not in 1..{MAX_IDS}")
    return QueryRequest(
        type=name, version=given.get("version") or "", entries=entries, predicate=predicate, payload_filter=wanted,
        namespaces=tuple(namespaces.items()), language=language, suppress_empty=given.get("suppress_empty", False),
        since=earliest, until=latest, by_receipt=given.get("received", False),
        after=after, archive=archive, up_to=up_to,
        registrations=None if registrations is None else tuple(registrations), least_payload=least, most_payload=most,
        publisher=given.get("publisher") or "", latest_by=key, order=given.get("order") or "oldest",
        limit=_within("limit", given.get("limit"), 1, MAX_LIMIT, 0), timeout=timeout,
        qos=wish, view=given.get("view") or "metadata", unfiltered=unfiltered,
    )  # fmt: skip


def check_version(version: str) -> None:
    """Raises ConfigurationError."""
    if has_zeros(version):
        raise ConfigurationError(
            f"version {version[:20]!r} begins a number with 0", hint="1.0, not 01.0: no type has such a version"
        )


def seconds_of(given: float | None, default: float) -> float:
    """How long a query may take. Raises ConfigurationError."""
    seconds = default if given is None else given
    if not (math.isfinite(seconds) and seconds > 0):
        raise ConfigurationError(f"timeout {seconds} is no time to wait", hint="Seconds, more than 0")
    return seconds


def request_for(object_id: str) -> QueryRequest:
    """One object. Raises UnknownUidError for what is no id."""
    if not _OBJECT_ID.fullmatch(object_id):
        raise UnknownUidError(f"{object_id[:64]!r} is no object id", hint="Use the object_id of an object")
    return QueryRequest(object_ids=(object_id,), limit=1)


def archives_with(
    name: str,
    items: Sequence[ServiceItem],
    *,
    is_published: Callable[[str], bool],
    at: Sequence[str] | None = None,
) -> tuple[str, list[ServiceItem]]:
    """The type that is meant, and the archives that may have objects of it, of those `at` some addresses if any are
    given; "" stands for all types. Raises UnknownUidError when none has, or none is at an address, and
    ConfigurationError when the name may be that of several types."""
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
    names = sorted({known for of in types.values() for known in of or ()})
    having = [name] if name in names else with_local_name(name, names)
    if len(having) > 1:
        some = ", ".join(map(_told, having[:5]))
        raise ConfigurationError(f"type {_told(name)} may be one of {some}", hint="Name one in full")
    meant = having[0] if having else name
    found = [item for item in items if (of := types[item.service_id]) is None or meant in of]
    if not having and is_published(name):
        return name, list(items)  # what an archive has begun to keep it need not have told yet
    if not found:
        raise UnknownUidError(  # without the types that there are: who asks may not be one who may have them
            f"no archive has objects of type {_told(name)}", hint="`jbi archive status` shows what they have", type=name
        )
    return meant, found


def _told(name: str) -> str:
    """A type's name, ours or a stranger's, as a part of one line."""
    return name[:100] if name.isprintable() else repr(name[:100])


def key_of(request: QueryRequest) -> KeyOf | None:
    """How the key of `latest_by` is read of an object; "" for what has none."""
    if not request.latest_by:
        return None
    find = compiled_xpath(f"string({request.latest_by})", dict(request.namespaces))

    def key(obj: InfoObject) -> str:
        try:
            return str(find(parse_metadata(obj.metadata)))
        except (*FOREIGN_ERRORS, MetadataError):
            return ""

    return key


def split_type(entries: Sequence[EntryRep]) -> tuple[InformationType, tuple[EntryRep, ...]]:
    """The type that a template names, and its other entries."""
    typed = next((rep for rep in entries if rep.cls.name == InformationType.entry_name), None)
    others = tuple(rep for rep in entries if rep is not typed)
    return (InformationType() if typed is None else InformationType.from_rep(typed)), others


class Count(int):
    """A number of objects, of the archives that have answered."""

    partial: tuple[str, ...]
    """The archives (addresses) that have not, each with the reason: what they have is missing."""

    def __new__(cls, count: int, partial: tuple[str, ...] = ()) -> Count:
        """See the class."""
        made = super().__new__(cls, count)
        made.partial = partial
        return made


class Explanations(dict[str, Explanation]):
    """How archives would answer, by their addresses."""

    def __init__(self, each: Mapping[str, Explanation], partial: tuple[str, ...] = ()) -> None:
        super().__init__(each)
        self.partial = partial
        """The archives (addresses) that have not said it, each with the reason."""


class Archives:
    """Calls to several archives, each in a thread of its own."""

    def __init__(self, config: Config) -> None:
        self._security: Security = config.security()
        self._claims = Claims(config.client.user, config.client.role)
        self._timeout = config.lookup.timeout

    def count(self, asking: Asking, seconds: float) -> Count:
        """How many objects they have in all. Raises what the first says, if none can."""
        request = asking.request
        told, errors = self._answers(asking, lambda proxy: proxy.count(request, seconds, self._claims))
        each = {(said.incarnations or (place.address,))[0]: said.count for place, said in told}  # one archive, once
        answers = [Answer(place.address, place.listed, said.incarnations, "", said.lacks) for place, said in told]
        answers += [Answer(place.address, place.listed, (), why.message) for place, why in errors]
        total = sum(each.values())
        return Count(min(total, request.limit) if request.limit else total, named(answers))

    def explain(self, asking: Asking) -> Explanations:
        """How each would answer, by its address. Raises as `count`."""
        request = asking.request
        told, errors = self._answers(asking, lambda proxy: proxy.explain_query(request, self._claims))
        partial = tuple(f"{place.address}: {why.message}" for place, why in errors)
        return Explanations({place.address: said.explanation for place, said in told}, partial)

    def reset(self, items: Sequence[ServiceItem], name: str, secret: str, start: Start) -> int:
        """At how many of them the durable subscription is known, and goes on from there now."""
        answers = self._each(items, lambda proxy: proxy.reset(name, secret, start, self._claims))
        return sum(is_known for _, is_known in answers)

    def _answers(
        self, asking: Asking, ask: Callable[[HistoryProxy], T]
    ) -> tuple[list[tuple[Place, T]], list[tuple[Place, JbiError]]]:
        """Of those that answer, and why the others do not. Raises what the first says, if none does."""

        def tried(proxy: HistoryProxy) -> T | JbiError:
            try:
                return ask(proxy)
            except JbiError as exc:
                return exc

        said = self._each(asking.archives, tried)
        answers = [(place, answer) for place, answer in said if not isinstance(answer, JbiError)]
        errors = [(place, error) for place, error in said if isinstance(error, JbiError)]
        if not answers:
            raise errors[0][1]
        for place, error in errors:
            log.warning("the archive at %s does not answer: %s", place.address, error)
        return answers, errors

    def _each(self, items: Sequence[ServiceItem], ask: Callable[[HistoryProxy], T]) -> list[tuple[Place, T]]:
        def asked(place: Place) -> T:
            proxy = HistoryProxy(place.item.proxy, self._security, timeout=self._timeout)
            try:
                return ask(proxy)
            finally:
                proxy.close()

        places = places_of(items)
        with ThreadPoolExecutor(min(len(places), ASKED_AT_ONCE), thread_name_prefix="archives") as pool:
            return list(zip(places, pool.map(asked, places), strict=True))


def _types_of(item: ServiceItem) -> frozenset[str] | None:
    """The types in an archive; None: not known."""
    said = entry_of(item)
    return None if said is None or said.types is None else frozenset(said.types.split())


def _within(what: str, given: int | None, least: int, most: int, default: int) -> int:
    if given is None:
        return default
    if not least <= given <= most:
        raise ConfigurationError(f"{what} {given} is not in {least}..{most}")
    return given


def _check_order(low: str, least: float, high: str, most: float) -> None:
    if least > most:
        raise ConfigurationError(f"{low} is above {high}: nothing can be there", hint=f"{low} is the lower end")
