"""The trader as a server, `jbi trader serve`: answers queries for the offers of its domain, and asks the traders that
it is linked with.

It holds nothing: offers are leased items of the lookup services, which it watches. So nothing is lost when it dies, and
references that it gave go on being used (paper 4(2)(b)).
"""

from __future__ import annotations

import logging
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, suppress
from typing import Any, Final
from uuid import uuid4

import msgspec

from jbi_pubsub.core.access import (
    ADMIN,
    NONE_IN_PARTICULAR,
    AccessAdmin,
    AccessPolicy,
    AllowAll,
    LoginCalls,
    Subject,
    demand,
)
from jbi_pubsub.core.cache import Cache
from jbi_pubsub.core.config import Config
from jbi_pubsub.core.errors import JbiError, LookupNotFoundError, WireError
from jbi_pubsub.core.wire import ServiceRef
from jbi_pubsub.core.wire.control import LOGIN, ControlServer, exported
from jbi_pubsub.core.wire.endpoint import Caller, Endpoint
from jbi_pubsub.lookup.client.join import JoinManager
from jbi_pubsub.lookup.item import ServiceItem, ServiceTemplate

from .proxy import TRADER, TRADER_TYPE, DomainEntry, OfferedType, TraderProxy
from .registry import OfferRegistry, elsewhere
from .services import refused_data
from .trader import MATCHED, OFFERS_MOST, SEARCHED, Offer, OfferAnswer, OfferQuery, joined, with_properties

log = logging.getLogger("jbi_pubsub.domains")

LINKS_MOST: Final = 16
"""Linked traders."""
ASKING_MOST: Final = 32
"""Linked traders that are asked at one time, by all queries."""
MISSING: Final = "trader at"
"""Beginning of a note on what is missing. Others count offers, also those that who asks may not know of."""
QUERIES_KEPT: Final = 10_000
"""Queries that are remembered, so that a ring of traders asks each once."""


class TraderServer:
    """See the module."""

    def __init__(self, config: Config, *, access: AccessPolicy | None = None) -> None:
        """Binds [pad] host and port. Raises ConfigurationError, PortInUseError."""
        self._domain = config.domain
        self._access = access or AllowAll()
        self._asked: Cache[str, bool] = Cache(QUERIES_KEPT)
        self._lock = threading.Lock()
        """Covers what was asked."""
        self.service_id = uuid4().hex
        with ExitStack() as undo:
            undo.callback(self._access.close)
            self._registry = OfferRegistry(config, "trader")
            undo.callback(self._registry.close)
            self._asking = ThreadPoolExecutor(ASKING_MOST, "trader-link")
            undo.callback(self._asking.shutdown, wait=True, cancel_futures=True)
            self._links = []
            for locator in config.domain.traders[:LINKS_MOST]:
                self._links.append(link := _TraderLink(config, locator))
                undo.callback(link.close)
            exports = {TRADER: _TraderCalls(self), ADMIN: AccessAdmin(self._access), LOGIN: LoginCalls(self._access)}
            self._endpoint = Endpoint(
                config.pad.host, config.pad.port, name="trader", security=config.security(),
                control=ControlServer(exports).serve, data=refused_data, advertise=config.pad.advertise,
            )  # fmt: skip
            undo.callback(self._endpoint.stop)
            self._undo = undo.pop_all()

    @property
    def address(self) -> str:
        """host:port to connect to."""
        return self._endpoint.address

    def start(self, timeout: float = 0.0) -> None:
        """Serve; as soon as a lookup service has us and says which offers there are, or after so many seconds. Raises
        LookupNotFoundError when none does by then, if there are any seconds."""
        self._endpoint.start()
        ref = ServiceRef(self.service_id, TRADER, (self.address,), ("query", "types"), self._endpoint.certificate)
        told = (DomainEntry(number=self._domain.number, name=self._domain.name or None).rep(),)
        community = self._registry.community
        self._registry.watch(timeout)
        community.join(ServiceItem(self.service_id, (TRADER_TYPE,), ref, told))
        if timeout:
            community.wait_joined(self.service_id, timeout)

    def stop(self) -> None:
        """Leave."""
        self._undo.close()

    def status(self) -> dict[str, Any]:
        """Plain data."""
        types = self._registry.trader.types()
        links = {each.locator: each.connected for each in self._links}
        return {"address": self.address, "types": len(types), "offers": len(self._registry.trader), "links": links}

    def types(self, caller: Caller) -> tuple[OfferedType, ...]:
        """See TraderProxy."""
        demand(self._access, caller, ("connect", NONE_IN_PARTICULAR))
        return tuple(
            OfferedType(of.name, of.parent.name if of.parent else "", tuple(map(str, of.properties)), count)
            for of, count in self._registry.trader.types(lambda item: self._may_know(caller, item))
            if self._access.allow(caller, "subscribe", Subject(of.name, some=True))
        )

    def query(self, caller: Caller, query: OfferQuery) -> OfferAnswer:
        """See TraderProxy."""
        demand(self._access, caller, ("connect", NONE_IN_PARTICULAR))
        if self._has_asked(query.id):
            return OfferAnswer()
        return with_properties(query, self._found(caller, msgspec.structs.replace(query, properties=None)))

    def _found(self, caller: Caller, query: OfferQuery) -> OfferAnswer:
        until = time.monotonic() + query.timeout
        own = self._registry.trader.query(query, lambda item: self._may_know(caller, item))
        if not query.hops or query.follow == "local_only" or (own.offers and query.follow == "if_no_local"):
            return own
        asked = msgspec.structs.replace(
            query, hops=query.hops - 1, id=query.id or uuid4().hex, returned=OFFERS_MOST,
            searched=max(query.searched, SEARCHED), matched=max(query.matched, MATCHED),
        )  # fmt: skip  # limits hold for what is left of it
        self._has_asked(asked.id)  # a ring brings it back
        others, missing = self._ask(asked, until)
        others = [each for each in others if self._may_know(caller, each)]
        return joined(query, [own, OfferAnswer(tuple(others), tuple(missing))])

    def _has_asked(self, query_id: str) -> bool:
        """Whether that query has been here already, by another way."""
        if not query_id:
            return False
        with self._lock:
            known = query_id in self._asked
            self._asked[query_id] = True
            return known

    def _ask(self, query: OfferQuery, until: float) -> tuple[list[Offer], list[str]]:
        """Offers of the linked traders, and what is missing of them when the time is over."""
        asked: dict[Future[OfferAnswer], _TraderLink] = {}
        for link in self._links:
            with suppress(RuntimeError):  # it stops
                asked[self._asking.submit(link.query, query, until)] = link
        done, late = wait(asked, max(0.0, until - time.monotonic()))
        found: list[Offer] = []
        missing = [f"{MISSING} {asked[each].locator} did not answer in time" for each in late]
        for each in late:
            each.cancel()
        for each in done:
            try:
                told = each.result()
            except JbiError as exc:
                missing.append(f"{MISSING} {asked[each].locator}: {exc.message}"[:200])
                continue
            found += told.offers
            missing += [note[:200] for note in told.partial[:LINKS_MOST] if note.startswith(MISSING)]
            if len(told.offers) == OFFERS_MOST:
                missing.append(f"{MISSING} {asked[each].locator} returned {OFFERS_MOST:,} offers, and may have more")
        return found, missing

    def _may_know(self, caller: Caller, offer: Offer | ServiceItem) -> bool:
        """Whether who asks may subscribe to the service's type."""
        type_ = offer.type if isinstance(offer, Offer) else next(iter(offer.types), "")
        return bool(self._access.allow(caller, "subscribe", Subject(type_)))


class _TraderLink:
    """Traders of another domain, as the lookup service there knows them."""

    def __init__(self, config: Config, locator: str) -> None:
        self.locator = locator
        self._security = config.security()
        self._community = JoinManager(elsewhere(config, locator), name=f"trader-{locator}")
        self._traders = self._community.watch(ServiceTemplate(types=(TRADER_TYPE,)))
        self._lock = threading.Lock()
        self._asked: set[TraderProxy] = set()
        """Traders that are asked just now."""

    @property
    def connected(self) -> bool:
        """Whether a trader is known there."""
        return bool(self._traders.items())

    def query(self, query: OfferQuery, until: float) -> OfferAnswer:
        """Answer of the first one that gives one. Raises LookupNotFoundError, WireError, PredicateError."""
        self._community.wait_watching(self._traders, max(0.01, until - time.monotonic()))
        why: JbiError = LookupNotFoundError(f"no trader at {self.locator}", hint="Start one: jbi trader serve")
        for item in self._traders.wait(1, max(0.0, until - time.monotonic())):
            left = until - time.monotonic()
            if left <= 0:
                break
            proxy = TraderProxy(item.proxy, self._security, timeout=left)
            with self._lock:
                self._asked.add(proxy)
            try:
                return proxy.query(msgspec.structs.replace(query, timeout=left))
            except WireError as exc:
                why = exc
            finally:
                with self._lock:
                    self._asked.discard(proxy)
                proxy.close()
        raise why

    def close(self) -> None:
        """Leave; who waits for an answer waits no more."""
        with self._lock:
            asked = list(self._asked)
        for proxy in asked:
            proxy.close()
        self._community.close()


class _TraderCalls:
    """The trader's calls (TraderProxy)."""

    def __init__(self, server: TraderServer) -> None:
        self._server = server

    @exported
    def query(self, caller: Caller, query: OfferQuery) -> OfferAnswer:
        """See TraderProxy."""
        return self._server.query(caller, query)

    @exported
    def types(self, caller: Caller) -> tuple[OfferedType, ...]:
        """See TraderProxy."""
        return self._server.types(caller)
