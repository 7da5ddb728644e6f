"""Services beside publish and subscribe: applications offer them, and find those of others by a constraint."""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import Final, Self
from uuid import uuid4

import msgspec

from jbi_pubsub.core.config import Config, effective
from jbi_pubsub.core.errors import (
    AdapterStateError,
    ConfigurationError,
    EntryError,
    LookupNotFoundError,
    UnknownUidError,
    WireError,
)
from jbi_pubsub.core.values import converted
from jbi_pubsub.core.wire import ServiceRef
from jbi_pubsub.core.wire.control import ControlClient, ControlServer
from jbi_pubsub.core.wire.endpoint import Caller, Endpoint
from jbi_pubsub.lookup.item import BOUNDS, ServiceItem, ServiceTemplate

from .proxy import TRADER_TYPE, TraderProxy
from .registry import OfferRegistry, elsewhere
from .service_type import PropertyValue, ServiceType
from .trader import TIMEOUT_MOST, Offer, OfferAnswer, OfferQuery, joined, with_properties

log = logging.getLogger("jbi_pubsub.domains")

OFFER: Final = "offer"
"""Name of the exported object of an offer that answers calls."""


class _OwnOffer(msgspec.Struct, frozen=True):
    type: ServiceType
    values: Mapping[str, PropertyValue]
    reference: ServiceRef
    endpoint: Endpoint | None


class Services:
    """Offers services of this process in the lookup services, under leases, and finds those of others.

        tasking = ServiceType.of("demo.Tasking", "mandatory string area", "long sensors")
        with Services() as services:
            services.offer(tasking, {"area": "north", "sensors": 3}, calls=Tasking())
            for offer in services.find("demo.Tasking", "area == 'north' and sensors > 2", preference="max sensors"):
                with closing(services.connect(offer)) as client:
                    client.call("task", int, "fine")

    An offer is gone when it is withdrawn, with `close`, and when this process dies, with its lease. Any thread."""

    def __init__(self, config: Config | None = None, *, name: str = "services") -> None:
        """`config`: default that of the file and the environment. Raises ConfigurationError."""
        self._config = config or effective()
        self._name = name
        self._lock = threading.Lock()
        self._offers: dict[str, _OwnOffer] = {}
        self._watching: tuple[Callable[[], None], ...] = ()
        self._closed = False
        self._own = OfferRegistry(self._config, name, self._tell)
        central = self._config.domain.central
        self._central = OfferRegistry(elsewhere(self._config, *central), f"{name}-central") if central else None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, exc: object, trace: object) -> None:
        self.close()

    def close(self) -> None:
        """Withdraw all offers, and leave. Safe to repeat."""
        with self._lock:
            self._closed = True
            offers, self._offers = self._offers, {}
        for registry in self._registries():
            registry.close()
        for each in offers.values():
            if each.endpoint is not None:
                each.endpoint.stop()

    def offer(
        self,
        type_: ServiceType | str,
        properties: Mapping[str, PropertyValue],
        *,
        calls: object | None = None,
        at: ServiceRef | None = None,
        timeout: float | None = None,
    ) -> str:
        """Offer a service: the offer's id, as soon as the lookup services that answer have it.

        `type_`: the service type, or the name of one that others offer already. `calls`: an object whose `exported`
        methods answer; `at`: or where something else does; neither: the offer is its properties alone. `timeout`:
        seconds, default [lookup] timeout. Raises EntryError (properties that are not those of the type, or too large),
        TypeConflictError, UnknownUidError (no such type), LookupNotFoundError, AccessDeniedError (who offers must be
        allowed to `publish` the type), PortInUseError, AdapterStateError."""
        known = self._type(type_, timeout)
        offer_id = uuid4().hex
        with ExitStack() as undo:
            endpoint = self._endpoint(calls)
            if endpoint is not None:
                undo.callback(endpoint.stop)
            reference = at or ServiceRef(offer_id, OFFER, ())
            if endpoint is not None:
                reference = ServiceRef(offer_id, OFFER, (endpoint.address,), (), endpoint.certificate)
            item = _item(offer_id, known, properties, reference)
            with self._lock:
                if self._closed:
                    raise AdapterStateError("these services are closed", hint="Offer before close()")
                self._offers[offer_id] = _OwnOffer(known, dict(properties), reference, endpoint)
            undo.callback(self._offers.pop, offer_id, None)
            for registry in self._registries():
                undo.callback(registry.withdraw, offer_id)
                registry.offer(item)
            self._own.community.wait_joined(offer_id, self._seconds(timeout))
            undo.pop_all()
        return offer_id

    def modify(
        self, offer_id: str, properties: Mapping[str, PropertyValue | None], *, at: ServiceRef | None = None
    ) -> None:
        """Give properties of an offer of ours other values; None takes one away; `at`: another reference. Raises
        UnknownUidError, and EntryError also for one that is readonly."""
        with self._lock:
            own = self._offers.get(offer_id)
            if own is None:
                raise UnknownUidError(f"no offer {offer_id[:80]} of this process", uid=offer_id[:80])
            for name, value in properties.items():
                if name in own.type.every and own.type.every[name].is_readonly and value != own.values.get(name):
                    raise EntryError(
                        f"property {name} of {own.type.name} is readonly", hint="Withdraw the offer, and make a new one"
                    )
            values = {name: value for name, value in {**own.values, **properties}.items() if value is not None}
            reference = at or own.reference
            item = _item(offer_id, own.type, values, reference)
            self._offers[offer_id] = msgspec.structs.replace(own, values=values, reference=reference)
            for registry in self._registries():
                registry.offer(item)

    def withdraw(self, offer_id: str) -> None:
        """End an offer of ours. Raises UnknownUidError."""
        with self._lock:
            own = self._offers.pop(offer_id, None)
        if own is None:
            raise UnknownUidError(f"no offer {offer_id[:80]} of this process", uid=offer_id[:80])
        for registry in self._registries():
            registry.withdraw(offer_id)
        if own.endpoint is not None:
            own.endpoint.stop()

    def find(
        self, type_: ServiceType | str, constraint: str = "", *, preference: str = "", most: int = 100,
        timeout: float | None = None,
    ) -> list[Offer]:  # fmt: skip
        """Offers of that service type, and of its subtypes, for which the constraint is true, at most so many, those
        first that are preferred; [] when there is none. Traders of other domains are asked when there is none here;
        `query` says which did not answer. Raises PredicateError (with the position), LookupNotFoundError,
        ConfigurationError (more than 1,000)."""
        name = type_ if isinstance(type_, str) else type_.name
        seconds = min(max(0.001, self._seconds(timeout)), TIMEOUT_MOST)  # 0: nobody waits
        asked = OfferQuery(name, constraint, preference, returned=most, timeout=seconds)
        return list(self.query(asked).offers)

    def query(self, query: OfferQuery) -> OfferAnswer:
        """The same with all that a query can say, and what may be missing. Raises as `find`."""
        try:
            converted(msgspec.structs.asdict(query), OfferQuery)
        except msgspec.ValidationError as exc:  # other traders would refuse it
            raise ConfigurationError(f"query of {query.type[:80]}: {exc}", hint="OfferQuery has the bounds") from exc
        self._watch(query.timeout)
        return with_properties(query, self._found(msgspec.structs.replace(query, properties=None)))

    def _found(self, query: OfferQuery) -> OfferAnswer:
        found = self._own.trader.query(query)
        if query.follow == "local_only" or (found.offers and query.follow == "if_no_local"):
            return found
        found = self._of_traders(query, found)
        if self._central is not None and (not found.offers or query.follow == "always"):
            try:
                self._central.watch(query.timeout)
            except LookupNotFoundError as exc:
                return msgspec.structs.replace(found, partial=(*found.partial, f"central registry: {exc}"[:200]))
            found = joined(query, [found, self._central.trader.query(query)])
        return found

    def _of_traders(self, query: OfferQuery, found: OfferAnswer) -> OfferAnswer:
        """Answer of the domain's trader, who sees what we do, and more; without one what was found here."""
        others = self._own.community.lookup(ServiceTemplate(types=(TRADER_TYPE,)), timeout=query.timeout)
        missing: list[str] = []
        for item in others:
            trader = TraderProxy(item.proxy, self._config.security(), timeout=query.timeout)
            try:
                return trader.query(query)
            except WireError as exc:
                missing.append(f"trader {item.proxy.endpoints[0]}: {exc}"[:200])
            finally:
                trader.close()
        return msgspec.structs.replace(found, partial=(*found.partial, *missing))

    def types(self, timeout: float | None = None) -> list[tuple[ServiceType, int]]:
        """Service types that somebody offers, and the number of offers of each. Raises LookupNotFoundError."""
        self._watch(self._seconds(timeout))
        return self._own.trader.types()

    def watch(self, changed: Callable[[], None]) -> Callable[[], None]:
        """Have `changed` called when offers come, change or go, on a thread of ours, which it must not hold up; what is
        returned ends that."""
        with self._lock:
            self._watching = (*self._watching, changed)

        def end() -> None:
            with self._lock:
                self._watching = tuple(each for each in self._watching if each is not changed)

        return end

    def _tell(self) -> None:
        for changed in self._watching:
            changed()

    def connect(self, offer: Offer, timeout: float = 10.0) -> ControlClient:
        """A client of a service that answers calls; each call takes so many seconds at most. To be closed. Raises
        ConfigurationError for an offer without an address."""
        if not offer.reference.endpoints:
            raise ConfigurationError(f"offer {offer.id} of {offer.type} says no address", hint="It is properties alone")
        return ControlClient(offer.reference, self._config.security(), timeout=timeout)

    def _seconds(self, timeout: float | None) -> float:
        return self._config.lookup.timeout if timeout is None else timeout

    def _registries(self) -> list[OfferRegistry]:
        return [self._own] if self._central is None else [self._own, self._central]

    def _watch(self, timeout: float) -> None:
        """Know of all offers. Raises AdapterStateError, LookupNotFoundError."""
        with self._lock:
            if self._closed:
                raise AdapterStateError("these services are closed", hint="Use them before close()")
        self._own.watch(timeout)

    def _type(self, type_: ServiceType | str, timeout: float | None) -> ServiceType:
        """The type that is meant. Raises UnknownUidError, TypeConflictError, also of a supertype."""
        self._watch(self._seconds(timeout))
        if isinstance(type_, ServiceType):
            for each in type_.lineage:
                if (others := self._own.trader.type(each.name)) is not None:
                    each.check_same(others)
            return type_
        known = self._own.trader.type(type_)
        if known is None:
            raise UnknownUidError(f"no offer has service type {type_[:80]}", hint="Give a ServiceType", uid=type_[:80])
        return known

    def _endpoint(self, calls: object | None) -> Endpoint | None:
        if calls is None:
            return None
        made = Endpoint(
            self._config.pad.host, 0, name=self._name, security=self._config.security(),
            control=ControlServer({OFFER: calls}).serve, data=refused_data, advertise=self._config.pad.advertise,
        )  # fmt: skip
        made.start()
        return made


def _item(
    offer_id: str, type_: ServiceType, properties: Mapping[str, PropertyValue], reference: ServiceRef
) -> ServiceItem:
    type_.check_reference(reference)
    names = tuple(each.name for each in type_.lineage)
    item = ServiceItem(offer_id, names, reference, type_.entries(properties))
    BOUNDS.check(f"offer of {type_.name}", item)
    return item


def refused_data(sock: socket.socket, caller: Caller) -> None:
    """Refuse data: a service answers calls alone, and whoever opens a data connection is left."""
