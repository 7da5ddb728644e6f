"""A delegate's state for who looks at it every second, and the rows of its lists page by page. Pure.

The whole status of a large delegate is some megabytes, most of it subscriptions that nobody reads. So publishers and
subscriber sessions are told by name, together, types likewise, and of leases those that end first; a row is made when
somebody turns to its page.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from heapq import nlargest, nsmallest
from typing import Final, TypeVar

from jbi_pubsub.core.errors import ConfigurationError, OversizeError
from jbi_pubsub.pad.egress.session import SubscriberSession
from jbi_pubsub.pad.matching.registration import Registration
from jbi_pubsub.pad.model.subscription import Subscription, shown
from jbi_pubsub.protocol.status.delegate import (
    EndingLease,
    ListedSubscription,
    PageStatus,
    PublishedType,
    PublishersStatus,
    SubscribersStatus,
)
from jbi_pubsub.protocol.status.terms import TERMS_MOST, LeftPublishers, Terms

NAMES_MOST: Final = 100
"""Names of publishers, and of subscribers, told one by one; the others are told together, under the name ""."""
LEASES_MOST: Final = 20
"""Leases told, those that end first."""
PAGE_MOST: Final = 200
"""Rows of a page."""
TERMS_BYTES: Final = 4 << 20
"""Characters in the texts of such a page, but for those of the last: an answer may have eight times that."""
SEARCH_MOST: Final = 200
"""Characters of what is searched for."""

ORDERS: Final[Mapping[str, Callable[[Subscription, int], int]]] = {
    "number": lambda s, waiting: -s.number,  # noqa: ARG005  # as they came
    "waiting": lambda s, waiting: waiting + s.mail_waiting,
    "lost": lambda s, waiting: sum(s.lost.values()),  # noqa: ARG005
    "delivered": lambda s, waiting: s.delivered + s.mailed,  # noqa: ARG005
    "matched": lambda s, waiting: s.matched,  # noqa: ARG005
}
"""Figures that subscriptions are listed by, the largest first; those of the same as they came."""

G = TypeVar("G", PublishersStatus, SubscribersStatus, PublishedType)


def page_of_terms(
    subscriptions: Iterable[Subscription], names: Mapping[str, str], *, after: int, count: int
) -> tuple[Terms, ...]:
    """The terms of those whose number is above `after`, ascending: at least one if there is one, at most `count` and
    what TERMS_BYTES allow. `names` of subscribers are by owner. Raises OversizeError."""
    if count > TERMS_MOST:
        raise OversizeError(f"a page of terms has at most {TERMS_MOST} rows")
    found = nsmallest(max(1, count), (s for s in subscriptions if s.number > after), key=lambda s: s.number)
    page: list[Terms] = []
    size = 0
    for s in found:
        page.append(_terms(s, names.get(s.owner, "")))
        size += len(_searched(s, names))
        if size > TERMS_BYTES:
            break
    return tuple(page)


def _terms(subscription: Subscription, name: str) -> Terms:
    said, owner = subscription.request, subscription.owner
    return Terms(
        subscription.number, said.uid, name, shown(owner) if owner != "mail" else "", said.entries, said.predicate,
        said.payload_filter, said.namespaces, said.language, said.suppress_empty, len(said.recipients), said.direct,
        said.view, said.unfiltered, LeftPublishers(said.unlike, said.local),
    )  # fmt: skip


def publishers_by_name(connections: Iterable[tuple[str, Sequence[Registration]]]) -> list[PublishersStatus]:
    """(name of a publisher's connection, its registrations) -> by name: connections, registrations, published."""
    groups: dict[str, Counter[str]] = {}
    for name, registrations in connections:
        group = groups.setdefault(name, Counter())
        published = sum(each.totals.published for each in registrations)
        group.update(connections=1, registrations=len(registrations), published=published)
    return _largest(groups, PublishersStatus, by="registrations")


def sessions_by_name(
    sessions: Iterable[SubscriberSession], subscriptions: Iterable[Subscription]
) -> list[SubscribersStatus]:
    """By name of the subscriber: sessions, those connected, subscriptions, delivered, queued, in flight, lost."""
    groups: dict[str, Counter[str]] = {}
    owners: dict[str, Counter[str]] = {}
    for session in sessions:
        group = owners[session.session_id] = groups.setdefault(session.name, Counter())
        group.update(sessions=1, connected=int(session.connected), queued=session.queued, in_flight=session.in_flight)
    for subscription in subscriptions:
        if (of := owners.get(subscription.owner)) is not None:
            of["subscriptions"] += 1
            of["delivered"] += subscription.delivered
            of["lost"] += sum(subscription.lost.values())
    return _largest(groups, SubscribersStatus, by="subscriptions")


def types_of(registrations: Iterable[Registration]) -> list[PublishedType]:
    """By type: registrations, published, unmatched, and the most subscriptions that one of them has."""
    groups: dict[str, Counter[str]] = {}
    for registration in registrations:
        group = groups.setdefault(str(registration.gate.type), Counter())
        group.update(registrations=1, published=registration.totals.published, unmatched=registration.totals.unmatched)
        group["subscriptions"] = max(group["subscriptions"], len(registration.topic.table))
    return _largest(groups, PublishedType, by="registrations")


def leases_ending(leases: Iterable[tuple[str, str, float]]) -> list[EndingLease]:
    """(kind of holder, its name or id, seconds left) -> those that end first."""
    return [
        EndingLease(kind=kind, name=name, left=round(left, 1))
        for kind, name, left in nsmallest(LEASES_MOST, leases, key=lambda lease: lease[2])
    ]


def page_of_subscriptions(
    subscriptions: Sequence[Subscription],
    queued: Mapping[tuple[str, str], int],
    names: Mapping[str, str],
    *,
    search: str,
    order: str,
    start: int,
    count: int,
) -> PageStatus:
    """The subscriptions in which `search` occurs (whatever its case; in id, subscriber's name, template, predicate,
    filter or recipients), by `order`: how many there are, and `count` of them from number `start` on, as in the status,
    with `waiting` and the subscriber's `name`. `queued` is by owner and id, `names` by owner.

    Raises OversizeError, ConfigurationError for an unknown order.
    """
    if count > PAGE_MOST or len(search) > SEARCH_MOST:
        raise OversizeError(f"a page has at most {PAGE_MOST} rows, what is searched for {SEARCH_MOST} characters")
    if order not in ORDERS:
        raise ConfigurationError(f"no order {order[:40]!r} of subscriptions", hint=f"There are {', '.join(ORDERS)}")
    wanted = search.casefold()
    found = [s for s in subscriptions if not wanted or wanted in _searched(s, names)]
    key, start, count = ORDERS[order], max(0, start), max(0, count)

    def rank(s: Subscription) -> tuple[int, int]:
        return key(s, queued.get((s.owner, s.uid), 0)), -s.number

    shown = nlargest(min(start + count, len(found)), found, key=rank)[start:]
    rows = [
        s.status(
            ListedSubscription,
            name=names.get(s.owner, ""),
            waiting=queued.get((s.owner, s.uid), 0) + s.mail_waiting,
        )
        for s in shown
    ]
    return PageStatus(total=len(found), rows=rows)


def _searched(subscription: Subscription, names: Mapping[str, str]) -> str:
    request = subscription.request
    template = (f"{e.cls.name} {' '.join(str(v) for v in e.values if v is not None)}" for e in request.entries)
    parts = (
        request.uid, names.get(subscription.owner, ""), request.predicate, request.payload_filter,
        *request.recipients, *template,
    )  # fmt: skip
    return "\n".join(parts).casefold()


def _largest(groups: Mapping[str, Counter[str]], kind: type[G], *, by: str) -> list[G]:
    """Those with most of `by`, and the others together as the last."""
    names = [name for name in kind.__struct_fields__ if name not in ("name", "of")]
    first = nlargest(NAMES_MOST, groups, key=lambda name: groups[name][by])
    rest = groups.keys() - set(first)
    told = [kind(name=name[:200], of=1, **{each: groups[name][each] for each in names}) for name in first]
    if rest:
        together: Counter[str] = Counter()
        for name in rest:
            together.update(groups[name])
        told.append(kind(name="", of=len(rest), **{each: together[each] for each in names}))
    return told
