"""Options of subscriptions and conditions of queries, as applications give them by keyword; and requests made of them.

They are passed whole. What they do not say the configuration says, or the request's own defaults."""

from __future__ import annotations

import math
import os
import random
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from secrets import token_hex
from typing import Any, Final, TypedDict, TypeVar, cast

import msgspec

from jbi_pubsub.codegen.opening import MAX_NAME_CHARS
from jbi_pubsub.core.arguments import Document, Source
from jbi_pubsub.core.config import ClientSection, Config
from jbi_pubsub.core.constraint import as_xpath
from jbi_pubsub.core.errors import ConfigurationError, UnknownUidError
from jbi_pubsub.core.history import MAX_POSITION, Order
from jbi_pubsub.core.info_object import InfoObject, check_type_name, has_zeros
from jbi_pubsub.core.quality import Wish, checked_wish
from jbi_pubsub.core.xpath import compile_filter, compile_predicate
from jbi_pubsub.core.xpath.predicate import TCL
from jbi_pubsub.protocol.conditions import compile_conditions
from jbi_pubsub.protocol.ownership import owned_uid
from jbi_pubsub.protocol.requests import (
    Acknowledging,
    Policy,
    QueryRequest,
    SubscriptionRequest,
    Unfiltered,
    View,
    check_unfiltered,
)
from jbi_pubsub.protocol.wanted import Demand

from .listeners import SubscriptionListener, SubscriptionUid
from .moments import LATEST, Moment, place_at, seconds_at, start_at
from .owner import secret_of

MAX_LIMIT: Final = 2**53
MAX_IDS: Final = 10_000
"""Registrations that a query names."""
SAME: Final = ("predicate", "view", "language", "payload_filter", "suppress_empty", "unfiltered", "qos")
"""Options of both kinds that requests have under the same names."""
NO_CLIENT: Final = ClientSection()
_IDS: Final = random.Random()  # noqa: S311  # no secrets: see `_uid`
os.register_at_fork(after_in_child=_IDS.seed)
_OBJECT_ID: Final = re.compile(r"[0-9A-Za-z._-]{1,128}")


class TypeOptions(TypedDict, total=False):
    """Options of the type, and of what its schema is used for."""

    version: str | None
    """Version of the type; without, every version."""
    whole_name: bool
    """Whether the type is the one of that very name: without, the last part of a name may do as well."""
    schema: Source | None
    """Schema of the type, for the template and for `validate`."""
    marks: Source | None
    """Marks of what is invariant, if the schema has none."""
    locations: Mapping[str, Path] | None
    """Files that stand for the schema locations that the schema names."""
    well_formed: bool
    """Whether metadata that are not well-formed are dropped here: told as lost (`invalid`), or counted by
    `query.invalid`."""
    validate: bool
    """Whether those are that are not valid by `schema`, or that of the type's publishers or type repository; type and
    version are named then."""


class ContentOptions(TypedDict, total=False):
    """Options of the second level: conditions on an object's content, and what comes of it."""

    predicate: str | None
    """XPath over the metadata."""
    view: View | None
    """Document that the predicate is asked of: "metadata" (default), or "combined" with what the platform says of the
    object (core/combined.py, prefix `og`); of that nothing is matched at the first level."""
    namespaces: Mapping[str, str] | None
    """Namespaces of prefixes in predicate, payload filter and key, beside those of [client] namespaces."""
    language: str | None
    """Language of the predicate: "xpath" (default), "tcl" for the constraint language of the trader over structured
    events, or one that is registered."""
    payload_filter: str | None
    """XPath over an XML payload: what it selects comes."""
    suppress_empty: bool
    """Whether an object of which the filter selects nothing is not delivered."""
    unfiltered: Unfiltered | None
    """Fate of XML beyond what is filtered: "withhold" (default; it is lost, and `query.partial` tells of it), or
    "deliver" (it comes whole: see `InfoObject.is_selection`)."""
    latest_by: str | None
    """XPath of a key: the newest object alone of each that there is, by type and version; of what has none, none. Of a
    subscription with `start` "last"."""
    qos: Wish | None
    """Wish: importance, size and shape; of a subscription deadline and rate, too."""
    timeout: float | None
    """Seconds until a query ends as timed out; seconds to wait for lookup services to watch for a subscription."""


class SubscriptionOptions(TypeOptions, ContentOptions, total=False):
    """Options of `register_subscriber`. Everything is optional and ANDed.

    First level: the template is a metadata document whose invariant elements, where they have a value, must be equal
    (paper figure 3); it needs its type's `schema` (and `marks` if the schema has none), or names one in
    xsi:noNamespaceSchemaLocation. `type_name` and `version` select a type without a template; of a name with a
    namespace or dots the last part will do as long as no other type has it, unless it is to be the `whole_name`: which
    type is meant is decided when the subscription is made, and while none has that last part, whatever gets it is
    (`matching` says so, and the log warns, when several have it). What a predicate says of invariant elements is
    matched at the first level as well: by `schema`, or by that of the type's publishers, if type and version are named.

    History, at delegates with an archive: what is there from `start` on comes, then what is published, without a gap,
    each object once; nothing is lost by a full queue before it has caught up.
    """

    type_name: str | None
    """Name of the type."""
    listener: SubscriptionListener | Callable[[SubscriptionUid, InfoObject], object] | None
    """Receiver of the objects, instead of the subscription's queue: a SubscriptionListener, or a function that takes
    the subscription's id and the object; no `async def`. One with a method `qos_changed(subscription, granted)` is told
    when what is granted of its wish becomes another, if anything was wished."""
    recipients: Sequence[str] | None
    """E-mail addresses that objects go to; with `direct` True to queue or listener as well."""
    direct: bool | None
    """Whether objects come to queue or listener; without, if there are no recipients."""
    bound: int | None
    """Objects that wait at most (default [queue])."""
    policy: Policy | None
    """Policy when too many objects wait (default [queue])."""
    attributes: Mapping[str, str] | None
    """Settings of this subscription at delegates, as `mail_digest_seconds`."""
    start: Moment | int | None
    """Beginning of a subscription with history: "new" (default), "now" (the same, and objects of archives have places),
    "all", "last" (the newest object, or with `latest_by` the newest of each key), a time ("2026-11-01T00:00Z", "2h" for
    so long ago, a datetime), or the place of an object (`platform.place`), behind which it goes on."""
    durable: str | None
    """Name under which delegates remember how far it has come while no process has it open (docs/archive.md): whoever
    opens it again, of the same user, goes on there, and `start` counts the first time alone."""
    ack: Acknowledging | None
    """Moment when an object of a durable one is done: "auto", when the application has taken it; "explicit", when it is
    told so (`acknowledge`), and what was not comes again when it is opened the next time."""
    unlike: str | None
    """Owner of publishers (their `owner`) of whom nothing comes."""
    local: bool
    """Whether only that comes which was published at the delegate that it comes from."""
    demands: Sequence[Demand] | None
    """Demands on nodes of a network elsewhere, whatever publishers say: "reliable" (what is lost on the way is sent
    again), "persist" (what is sent is archived there as well)."""


class Conditions(TypeOptions, ContentOptions, total=False):
    """Conditions of a query beside the type's name; all that are given hold together. Answers are those that a
    subscription would get."""

    template: Document | None
    """Template as of a subscription: its invariant values must be equal. It needs `schema`."""
    since: Moment | None
    """First moment of publication (with `received`: of receipt at the delegate)."""
    until: Moment | None
    """Last moment of that."""
    received: bool
    """Whether `since` and `until` are of receipt."""
    after: int | str | None
    """Place of an object (its `platform.place`), of one archive, another one refuses; or a position alone, of which
    nobody can tell. Objects above it come, in whatever `order`: the next page where the oldest come first."""
    before: int | str | None
    """The same, but objects below it come: the next page with order="newest"."""
    up_to: int | None
    """Last position."""
    registrations: Sequence[str] | None
    """Ids of registrations."""
    publisher: str | None
    """Name that the publisher gave its adapter."""
    at: Sequence[str] | None
    """Addresses of delegates whose archives alone are asked; without, all that may have the type."""
    least_payload: int | None
    """Least bytes of the payload as published."""
    most_payload: int | None
    """Most of these."""
    order: Order | None
    """"oldest" (default) or "newest" first, by position."""
    limit: int | None
    """Results at most."""


def subscription_request(given: SubscriptionOptions, config: Config, *, now: float) -> SubscriptionRequest:
    """Request of a subscription, without its template. Raises PredicateError, ConfigurationError, StorageError."""
    name = given.get("type_name") or ""
    check_type_name(name)
    if len(name) > MAX_NAME_CHARS:
        hint = f"With its version it has {MAX_NAME_CHARS} characters at most"
        raise ConfigurationError(f"{name[:40]!r} is too long for a type's name", hint=hint)
    given = _in_xpath(given)
    queue, durable, recipients = config.queue, given.get("durable"), tuple(given.get("recipients") or ())
    start = start_at(given.get("start"), now=now, latest_by=given.get("latest_by") or "")
    secret = secret_of(durable, config.client) if durable is not None else token_hex(16) if recipients else ""
    direct, bound = given.get("direct"), given.get("bound")
    request = SubscriptionRequest(
        uid=_uid(secret),
        namespaces=tuple(_namespaces(given, config.client).items()),
        direct=not recipients if direct is None else direct,
        recipients=recipients,
        bound=queue.bound if bound is None else bound,
        policy=given.get("policy") or queue.policy,
        block_seconds=queue.block_seconds,
        attributes=tuple((given.get("attributes") or {}).items()),
        secret=secret,
        start=start,
        demands=tuple(given.get("demands") or ()),
        **_same(given, "durable", "ack", "unlike", "local"),
    )
    if request.durable and request.recipients:
        raise ConfigurationError("durable is not for e-mail", hint="Mail goes on without us already: leave it out")
    if request.ack != "auto" and not request.durable:
        raise ConfigurationError(f'ack="{request.ack}" is for durable subscriptions', hint="Give it a name: durable=")
    compile_conditions(request)  # bad input is refused here, before anybody is asked or told
    return request


def _uid(secret: str) -> str:
    """Id of a subscription: the caller's own, if he has a secret to prove it. Any other is its session's, and told to
    all that match; it has to be unique, and no more. Whoever asks the system for chance gives way to other threads for
    a moment, and a thousand such moments in turn keep the session's thread from its work for as long."""
    return owned_uid("subscription", secret) if secret else f"subscription-{_IDS.getrandbits(128):032x}"


def query_request(name: str, given: Conditions, client: ClientSection = NO_CLIENT, *, now: float) -> QueryRequest:
    """Request to each archive, without a template. Raises ConfigurationError, PredicateError."""
    given = _in_xpath(given)
    check_version(given.get("version") or "")
    namespaces = _namespaces(given, client)
    _check_content(given, namespaces)
    since, until = given.get("since"), given.get("until")
    earliest = 0.0 if since is None else seconds_at(since, now=now, what="since")
    latest = LATEST if until is None else seconds_at(until, now=now, what="until")
    _check_order("since", earliest, "until", latest)
    after, archive = (0, "") if (behind := given.get("after")) is None else place_at(behind, "after")
    up_to = _within("up_to", given.get("up_to"), 0, MAX_POSITION, MAX_POSITION)
    _check_order("after", after, "up_to", up_to)
    if (next_page := given.get("before")) is not None:
        before, other = place_at(next_page, "before")
        if archive and other and archive != other:
            raise ConfigurationError("after and before are places of two archives", hint="A query has a place of one")
        up_to, archive = min(up_to, max(after, before - 1)), archive or other
    least = _within("least_payload", given.get("least_payload"), 0, MAX_LIMIT, 0)
    most = _within("most_payload", given.get("most_payload"), 0, MAX_LIMIT, MAX_LIMIT)
    _check_order("least_payload", least, "most_payload", most)
    registrations = given.get("registrations")
    if registrations is not None and not 1 <= len(registrations) <= MAX_IDS:
        raise ConfigurationError(f"registrations: {len(registrations)} are not in 1..{MAX_IDS}")
    return QueryRequest(
        type=name,
        namespaces=tuple(namespaces.items()),
        since=earliest,
        until=latest,
        by_receipt=given.get("received", False),
        after=after,
        archive=archive,
        up_to=up_to,
        registrations=None if registrations is None else tuple(registrations),
        least_payload=least,
        most_payload=most,
        limit=_within("limit", given.get("limit"), 1, MAX_LIMIT, 0),
        **_same(given, "version", "publisher", "latest_by", "order", "timeout"),
    )


def amended_request(
    standing: SubscriptionRequest,
    client: ClientSection,
    predicate: str | None,
    payload_filter: str | None,
    namespaces: Mapping[str, str] | None,
    qos: Wish | None,
    language: str = "",
) -> SubscriptionRequest:
    """Request for other terms, without its template; what is None stays. `language`: that of the predicate, as the
    subscription was registered with. Raises PredicateError, ConfigurationError."""
    given: ContentOptions = {"predicate": predicate, "language": language}
    predicate = standing.predicate if predicate is None else (_in_xpath(given)["predicate"] or "")
    wanted = standing.payload_filter if payload_filter is None else payload_filter
    prefixes = {**dict(standing.namespaces), **(namespaces or {})}
    prefixes = bindings(client, prefixes, predicate, wanted, standing.start.latest_by)
    request = msgspec.structs.replace(
        standing, predicate=predicate, payload_filter=wanted, namespaces=tuple(prefixes.items()),
        qos=standing.qos if qos is None else qos,
    )  # fmt: skip
    compile_conditions(request)
    return request


def object_request(object_id: str, timeout: float) -> QueryRequest:
    """Request for one object. Raises UnknownUidError for what is no id."""
    if not _OBJECT_ID.fullmatch(object_id):
        raise UnknownUidError(f"{object_id[:64]!r} is not an object id", hint="Use the object_id of an object")
    return QueryRequest(object_ids=(object_id,), limit=1, timeout=timeout)


def bindings(client: ClientSection, given: Mapping[str, str] | None, *texts: str | None) -> dict[str, str]:
    """The namespaces of prefixes in some XPaths: those that are given, and of [client] namespaces those that are used
    and not given."""
    pairs = (each.split("=", 1) for each in client.namespaces)
    known = {prefix: uri for prefix, uri in pairs if any(f"{prefix}:" in text for text in texts if text)}
    return {**known, **(given or {})}


def check_version(version: str) -> None:
    """Raises ConfigurationError."""
    check_type_name(None, version)
    if has_zeros(version):
        raise ConfigurationError(
            f"version {version[:20]!r} begins a number with 0", hint="1.0, not 01.0: no type has such a version"
        )


def seconds_of(given: float | None, default: float) -> float:
    """Seconds that a query may take. Raises ConfigurationError."""
    seconds = default if given is None else given
    if not (math.isfinite(seconds) and seconds > 0):
        raise ConfigurationError(f"timeout {seconds} is not a time to wait", hint="Seconds, more than 0")
    return seconds


def _same(given: ContentOptions, *names: str) -> dict[str, Any]:
    """Options that requests have under the same names, as far as they are given: what is "" or None is not."""
    found = dict[str, Any](given)
    return {name: found[name] for name in (*SAME, *names) if found.get(name)}


G = TypeVar("G", bound=ContentOptions)


def _in_xpath(given: G) -> G:
    """Options whose predicate is XPath where it is a constraint of the trader: delegates and archives know of none.
    Raises PredicateError, ConfigurationError."""
    if given.get("language") != TCL:
        return given
    if given.get("view") == "combined":
        raise ConfigurationError(
            'language="tcl" is over the metadata of structured events, not over the combined view',
            hint='Leave view="combined" out, or write the predicate in XPath',
        )
    predicate: str | None = dict[str, Any](given).get("predicate")
    return cast(G, {**given, "predicate": as_xpath(predicate) if predicate else None, "language": None})


def _namespaces(given: ContentOptions, client: ClientSection) -> dict[str, str]:
    texts = (given.get("predicate"), given.get("payload_filter"), given.get("latest_by"))
    return bindings(client, given.get("namespaces"), *texts)


def _check_content(given: ContentOptions, namespaces: dict[str, str]) -> None:
    """Raises ConfigurationError, PredicateError."""
    if predicate := given.get("predicate"):
        compile_predicate(predicate, namespaces=namespaces, language=given.get("language") or "xpath")
    if wanted := given.get("payload_filter"):
        compile_filter(wanted, namespaces=namespaces)
    check_unfiltered(given.get("unfiltered") or "withhold")
    checked_wish(given.get("qos") or Wish())
    if key := given.get("latest_by"):
        compile_predicate(f"boolean({key})", namespaces=namespaces, argument="latest_by")


def _within(what: str, given: int | None, least: int, most: int, default: int) -> int:
    if given is None:
        return default
    if not least <= given <= most:
        raise ConfigurationError(f"{what} {given} is not in {least}..{most}")
    return given


def _check_order(low: str, least: float, high: str, most: float) -> None:
    if least > most:
        raise ConfigurationError(f"{low} is above {high}: nothing can be there", hint=f"{low} is the lower end")
