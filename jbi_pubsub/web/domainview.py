"""A domain, which is what is found by the same lookup services (paper 004): its servers, what is offered in it, and its
links to other domains, with who stands behind what is brought by them. Knows no browser and no terminal.

What servers do is the observer's to know; what is offered, and by which traders, lookup services list.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any, Final

import msgspec
from msgspec import UNSET

from jbi_pubsub.core.config import Config
from jbi_pubsub.core.errors import AdapterStateError, EntryError
from jbi_pubsub.domains.application import APPLICATION
from jbi_pubsub.domains.client import PROFILE
from jbi_pubsub.domains.proxy import TRADER_TYPE, DomainEntry
from jbi_pubsub.domains.registry import OfferRegistry
from jbi_pubsub.domains.trader import OfferQuery
from jbi_pubsub.lookup.client.finder import LookupCache
from jbi_pubsub.lookup.client.proxy import EVERYTHING
from jbi_pubsub.lookup.item import ServiceItem, ServiceTemplate
from jbi_pubsub.protocol.entries import BRIDGE_TYPE, PAD_TYPE
from jbi_pubsub.protocol.status.bridge import DirectionStatus

from .federation import Observer, Server, Snapshot, harmless

OFFERS_TOLD: Final = 200
"""Applications that are told one by one, profiles of clients, and service types."""
WAIT_SECONDS: Final = 0.5


class DomainServer(msgspec.Struct, frozen=True):
    """A lookup service, channel (delegate) or trader of a domain. Its state is "ok", or why it is not; a trader is not
    asked: it is "listed"."""

    kind: str
    name: str
    address: str
    state: str


class DomainLink(msgspec.Struct, frozen=True):
    """A bridge to another domain, its state as above, and its directions."""

    bridge: str
    state: str
    directions: list[DirectionStatus]


class DomainStatus(msgspec.Struct, frozen=True):
    """Status of a domain. Applications and clients are the properties that they are offered with;
    `offers` are numbers by service type."""

    number: int
    """0: it has none."""
    name: str
    servers: list[DomainServer]
    links: list[DomainLink]
    applications: list[dict[str, Any]]
    clients: list[dict[str, Any]]
    offers: dict[str, int]
    troubles: list[str]

    @property
    def title(self) -> str:
        """Number and name, for people."""
        return ", ".join(
            filter(None, (f"domain {self.number}" if self.number else "domain without a number", self.name))
        )


TABLES: Final = {
    "Servers": ("server", "name", "address", "state"),
    "Links": ("bridge", "from", "to", "#relays", "#members", "#relayed", "#saved", "#lost", "state"),
    "Members": ("from", "to", "type", "predicate", "#behind", "#importance", "#crossed", "#saved"),
    "Applications": ("application", "#domain", "for", "parameters"),
    "Clients": ("client", "watches", "constraint"),
    "Offers": ("service type", "#offers"),
}
"""Heads of the columns of what is shown of a domain; those of numbers begin with #."""


class DomainView:
    """Domain of whoever has this configuration, as an observer of it sees it. Any thread; its calls block."""

    def __init__(self, config: Config, observer: Observer) -> None:
        """Nobody is asked yet."""
        self._config, self._observer = config, observer
        self._lock = threading.Lock()
        self._listed: tuple[OfferRegistry, LookupCache] | None = None
        """Offers, and traders."""
        self._closed = False

    def close(self) -> None:
        """Leave the lookup services."""
        with self._lock:
            listed, self._listed, self._closed = self._listed, None, True
        if listed is not None:
            listed[0].close()

    def look(self, timeout: float) -> DomainStatus:
        """The domain now, as far as the observer has heard; when lookup services do not answer, after so many seconds.
        Raises LookupNotFoundError, AccessDeniedError, AdapterStateError (it is closed)."""
        registry, traders = self._watched(timeout)
        return self._status(self._observer.snapshot(), traders.items(), registry)

    def wait(self, timeout: float) -> DomainStatus:
        """The same when all servers and links that are listed were asked, or after so many seconds."""
        until = time.monotonic() + timeout
        community = self._watched(timeout)[0].community
        templates = [ServiceTemplate(types=(kind,)) for kind in (PAD_TYPE, BRIDGE_TYPE)]
        listed = {item.proxy.service_id for each in templates for item in community.lookup(each, EVERYTHING)}
        shot = self._observer.snapshot()
        while time.monotonic() < until:
            shot = self._observer.wait(shot.number, WAIT_SECONDS)
            seen = [*(each for each in shot.servers if each.kind in _KINDS), *shot.bridges]
            if listed <= {each.id for each in seen} and all(each.facts or each.error for each in seen):
                break
        return self.look(timeout)

    def _watched(self, timeout: float) -> tuple[OfferRegistry, LookupCache]:
        with self._lock:
            if self._closed:
                raise AdapterStateError("this view of a domain is closed")
            if self._listed is None:
                registry = OfferRegistry(self._config, "domain-status")
                self._listed = registry, registry.community.watch(ServiceTemplate(types=(TRADER_TYPE,)))
            registry, traders = self._listed
        registry.watch(timeout)
        registry.community.wait_watching(traders, timeout)
        return registry, traders

    def _status(self, shot: Snapshot, traders: Sequence[ServiceItem], registry: OfferRegistry) -> DomainStatus:
        named = [_named(each) for each in traders]
        numbers = sorted({each.number for each in named if each.number is not None})
        number = numbers[0] if numbers else self._config.domain.number
        name = next((each.name for each in named if each.name and each.number == number), self._config.domain.name)
        troubles = [shot.problem] if shot.problem else []
        troubles += [f"{shot.unseen:,} more servers are not asked"] if shot.unseen else []
        if len(numbers) > 1:
            said = ", ".join(map(str, numbers))
            troubles.append(f"its traders say that it has the numbers {said}: [domain] number is to be one in all")
        told = []
        for type_ in (APPLICATION.name, PROFILE.name):
            answer = registry.trader.query(OfferQuery(type_, returned=OFFERS_TOLD, follow="local_only"))
            troubles += [f"{type_}: {note}" for note in answer.partial]
            told.append([harmless(each.properties) for each in answer.offers])
        servers = [
            DomainServer(_KINDS[each.kind], each.title, ", ".join(each.ref.endpoints), _state(each))
            for each in shot.servers
            if each.kind in _KINDS
        ]
        servers += [
            DomainServer("trader", harmless(each.name or ""), ", ".join(item.proxy.endpoints), "listed")
            for item, each in zip(traders, named, strict=True)
        ]
        links = sorted(map(_link, shot.bridges), key=lambda each: each.bridge)
        offers = {type_.name: count for type_, count in registry.trader.types()[:OFFERS_TOLD]}
        return DomainStatus(number, harmless(name), servers, links, told[0], told[1], offers, troubles)


_KINDS: Final = {"lookup": "lookup service", "delegate": "channel"}


def _named(trader: ServiceItem) -> DomainEntry:
    """Number and name of the domain that a trader says it is of. What can't be read says neither."""
    for rep in trader.entries:
        if rep.cls.name == DomainEntry.entry_name:
            with suppress(EntryError):
                return DomainEntry.from_rep(rep)
    return DomainEntry()


def _state(seen: Server) -> str:
    return seen.error or ("ok" if seen.facts is not None else "not asked yet")


def _link(seen: Server) -> DomainLink:
    """A bridge of which nothing was heard has the place where it is as its name."""
    told = (seen.delegate.foreign or None) if seen.delegate is not None else None
    if told is None or seen.error:
        return DomainLink(told.name if told is not None else seen.title, _state(seen), [])
    wrong = [f"{side} is away" for side, is_there in (told.sides or {}).items() if not is_there]
    wrong += [told.trouble] if told.trouble else []
    return DomainLink(told.name, "; ".join(wrong) or "ok", list(told.directions or ()))


def rows_of(found: DomainStatus) -> dict[str, list[tuple[str, ...]]]:
    """Rows of TABLES, for people. Each member has a row, and what is told of its type stands at the first."""
    return {
        "Servers": [(each.kind, each.name, each.address, each.state) for each in found.servers],
        "Links": [row for link in found.links for row in _link_rows(link)],
        "Members": [row for link in found.links for way in link.directions for row in _member_rows(way)],
        "Applications": [_texts(each, "name", "domain", "categories", "parameters") for each in found.applications],
        "Clients": [_texts(each, "client", "application", "constraint") for each in found.clients],
        "Offers": [(name, f"{count:,}") for name, count in found.offers.items()],
    }


def _link_rows(link: DomainLink) -> Iterator[tuple[str, ...]]:
    if not link.directions:
        yield link.bridge, *("",) * 7, link.state
    for way in link.directions:
        wrong = [link.state] if link.state != "ok" else []
        wrong += [] if way.listening else ["not subscribed yet"]
        wrong += [f"{way.troubles:,} troubles, see its log"] if way.troubles else []
        members, saved = ("all", "") if way.wanted is UNSET else (f"{way.members:,}", f"{way.saved:,}")
        counts = f"{way.registrations:,}", members, f"{way.relayed:,}", saved, f"{way.lost:,}"
        yield link.bridge, way.source, way.target, *counts, "; ".join(wrong) or "ok"


def _member_rows(way: DirectionStatus) -> Iterator[tuple[str, ...]]:
    for type_, brought in (way.wanted or {}).items():
        own = str(brought.importance or ""), f"{brought.crossed:,}", f"{brought.saved:,}"
        for each in brought.members:
            yield way.source, way.target, type_, each.predicate or "all", f"{each.behind:,}", *own
            own = ("",) * 3
        if brought.others:
            yield way.source, way.target, type_, f"{brought.others:,} more", "", *own


def _texts(properties: dict[str, Any], *names: str) -> tuple[str, ...]:
    """Values of properties, whatever kinds others give them; of those that restrict "all" for nothing."""
    values = [properties.get(name, "") for name in names]
    texts = [", ".join(each) if isinstance(each, list) else str(each) for each in values]
    return tuple(text or ("all" if name in _RESTRICTING else "") for name, text in zip(names, texts, strict=True))


_RESTRICTING: Final = ("categories", "constraint")
