"""Services of applications, over real lookup services and sockets: offered, found, called, gone; traders and links."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, suppress
from typing import Any

import msgspec
import pytest

from jbi_pubsub import Services, ServiceType
from jbi_pubsub.core.access import AllowAll, Decision, Subject
from jbi_pubsub.core.config import Config, DomainSection
from jbi_pubsub.core.errors import (
    AdapterStateError,
    ConfigurationError,
    EntryError,
    PredicateError,
    TypeConflictError,
    UnknownUidError,
    WireError,
)
from jbi_pubsub.core.wire.control import exported
from jbi_pubsub.core.wire.endpoint import Caller
from jbi_pubsub.domains.proxy import TraderProxy
from jbi_pubsub.domains.registry import OfferRegistry
from jbi_pubsub.domains.server import TraderServer
from jbi_pubsub.domains.trader import OfferAnswer, OfferQuery, Trader
from jbi_pubsub.lookup.item import ServiceItem
from jbi_pubsub.testing import LocalFederation
from tests.conftest import Federation

TASKING = ServiceType.of("demo.Tasking", "mandatory_readonly string area", "long sensors")


class Tasking:
    """A service that answers calls."""

    @exported
    def task(self, caller: Caller, mode: str) -> int:  # noqa: ARG002  # the form of calls
        return len(mode)


@pytest.fixture
def services(federation: Federation) -> Iterator[Callable[[], Services]]:
    with ExitStack() as stack:
        yield lambda: stack.enter_context(Services(federation.config))


@pytest.mark.row("X-02")
@pytest.mark.row("D-53")
def test_service_is_offered_found_called_and_withdrawn(
    services: Callable[[], Services], eventually: Callable[..., Any]
) -> None:
    # Given two services of one process
    host, user = services(), services()
    north = host.offer(TASKING, {"area": "north", "sensors": 3}, calls=Tasking())
    host.offer(TASKING, {"area": "south"})
    # When another one looks for them
    (found,) = user.find("demo.Tasking", "area == 'north' and sensors > 2")
    assert (found.id, found.properties) == (north, {"area": "north", "sensors": 3})
    # Expect it to be called
    with closing(user.connect(found)) as client:
        assert client.call("task", int, "fine") == 4
    # and others by preference, by their values as they are now, and not without an address
    assert [each.properties["area"] for each in user.find(TASKING, preference="max sensors")] == ["north", "south"]
    host.modify(north, {"sensors": 1})
    eventually(lambda: not user.find("demo.Tasking", "sensors > 2"))
    (south,) = user.find("demo.Tasking", "not exist sensors")
    with pytest.raises(ConfigurationError, match="no address"):
        user.connect(south)
    # and nothing when it is withdrawn
    host.withdraw(north)
    eventually(lambda: not user.find("demo.Tasking", "area == 'north'"))
    assert [(each.name, count) for each, count in user.types()] == [("demo.Tasking", 1)]


@pytest.mark.row("D-07")
def test_offers_of_who_has_left_are_gone(
    services: Callable[[], Services], federation: Federation, eventually: Callable[..., Any]
) -> None:
    with Services(federation.config) as host:
        host.offer(TASKING, {"area": "north"})
        user = services()
        assert len(user.find("demo.Tasking")) == 1
    eventually(lambda: user.find("demo.Tasking") == [])
    with pytest.raises(AdapterStateError, match="closed"):
        host.offer(TASKING, {"area": "north"})


def test_what_is_wrong_with_an_offer_is_said(services: Callable[[], Services], eventually: Callable[..., Any]) -> None:
    host, user = services(), services()
    offer = host.offer(TASKING, {"area": "north"})
    with pytest.raises(EntryError, match="lacks area"):
        host.offer(TASKING, {"sensors": 3})
    with pytest.raises(EntryError, match="readonly"):
        host.modify(offer, {"area": "south"})
    with pytest.raises(TypeConflictError, match=r"demo\.Tasking"):
        user.offer(ServiceType.of("demo.Tasking", "long area"), {"area": 3})
    with pytest.raises(UnknownUidError, match="no offer has service type"):
        user.offer("demo.Tasks", {})
    with pytest.raises(UnknownUidError):
        user.withdraw(offer)
    with pytest.raises(PredicateError, match="position 6"):
        user.find("demo.Tasking", "area = 'north'")
    for most in (-1, 1_001):
        with pytest.raises(ConfigurationError, match="query of demo"):
            user.find("demo.Tasking", most=most)
    # and one may be of a type that is known from others
    user.offer("demo.Tasking", {"area": "south"})
    eventually(lambda: len(host.find("demo.Tasking")) == 2)


def test_offer_whose_supertype_others_define_otherwise_is_refused(services: Callable[[], Services]) -> None:
    # Given an offer; when somebody offers something of a subtype with another supertype of that name
    host, user = services(), services()
    offer = host.offer(TASKING, {"area": "north"})
    other = ServiceType.of("demo.Tasking", "long area")
    with pytest.raises(TypeConflictError, match=r"demo\.Tasking is offered"):
        user.offer(ServiceType.of("demo.Imaging", "string lens", parent=other), {"area": 7})
    # Expect nobody to stand in the way of the first one
    host.withdraw(offer)
    host.offer(TASKING, {"area": "north"})


class Domain:
    """A domain with lookup service and trader."""

    def __init__(self, stack: ExitStack, number: int, access: AllowAll | None = None) -> None:
        self.federation = stack.enter_context(LocalFederation())
        self.number, self._stack, self._access = number, stack, access
        self.services = stack.enter_context(Services(self.federation.config))
        self.services.offer(TASKING, {"area": f"area{number}", "sensors": number})

    @property
    def locator(self) -> str:
        return self.federation.lookups[0].address

    def trade(self, *linked: Domain) -> TraderServer:
        section = DomainSection(number=self.number, traders=tuple(each.locator for each in linked))
        config: Config = msgspec.structs.replace(self.federation.config, domain=section)
        trader = TraderServer(config, access=self._access)
        self._stack.callback(trader.stop)
        trader.start(20.0)
        return trader

    def ask(self, trader: TraderServer, **terms: Any) -> tuple[list[str], tuple[str, ...]]:
        proxy = TraderProxy(_ref(trader), self.federation.config.security())
        with closing(proxy):
            answer = proxy.query(OfferQuery("demo.Tasking", **terms))
        return sorted(str(each.properties["area"]) for each in answer.offers), answer.partial


def _ref(trader: TraderServer) -> Any:
    from jbi_pubsub.core.wire import ServiceRef

    return ServiceRef(trader.service_id, "trader", (trader.address,))


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as made:
        yield made


@pytest.mark.row("D-59")
@pytest.mark.row("D-60")
@pytest.mark.row("D-61")
def test_traders_in_a_ring_are_each_asked_once_and_only_when_they_have_to_be(stack: ExitStack) -> None:
    # Given three domains whose traders are linked in a ring
    one, two, three = (Domain(stack, number) for number in (1, 2, 3))
    trader = one.trade(two, three)
    two.trade(three, one)
    three.trade(one, two)
    # When one is asked for what is here, expect nobody else to be asked
    assert one.ask(trader, constraint="sensors == 1") == (["area1"], ())
    # and for what is elsewhere, or of all, each once
    assert one.ask(trader, constraint="sensors == 3") == (["area3"], ())
    assert one.ask(trader, follow="always") == (["area1", "area2", "area3"], ())
    assert one.ask(trader, follow="always", preference="max sensors", returned=1)[0] == ["area3"]
    assert one.ask(trader, follow="always", preference="max sensors", returned=1, properties=("area",))[0] == ["area3"]
    # and nobody beyond so many links, or when it is not wanted
    assert one.ask(trader, follow="local_only", constraint="sensors == 3") == ([], ())
    assert one.ask(trader, hops=0, follow="always") == (["area1"], ())
    # and an application that looks for a service finds it without knowing of traders
    assert [each.properties["area"] for each in one.services.find("demo.Tasking", "sensors == 2")] == ["area2"]


@pytest.mark.row("D-59")
def test_trader_that_does_not_answer_costs_its_answer_alone(stack: ExitStack, monkeypatch: pytest.MonkeyPatch) -> None:
    # Given a domain linked with one that answers and one that hangs
    one, two, three = (Domain(stack, number) for number in (1, 2, 3))
    two.trade()
    hanging = three.trade()
    trader = one.trade(two, three)
    gate = threading.Event()
    stack.callback(gate.set)
    query = hanging.query
    monkeypatch.setattr(hanging, "query", lambda *given: (gate.wait(60.0), query(*given))[1])
    # When all are asked, expect what the others have, in time, and to be told who is missing
    began = time.monotonic()
    found, partial = one.ask(trader, follow="always", timeout=1.0)
    assert (found, time.monotonic() - began < 4.0) == (["area1", "area2"], True)
    assert len(partial) == 1
    assert three.locator in partial[0]


def test_trader_that_stops_waits_for_no_answer(stack: ExitStack, monkeypatch: pytest.MonkeyPatch) -> None:
    # Given a trader that waits for one that hangs
    one, two = Domain(stack, 1), Domain(stack, 2)
    hanging, gate, asked = two.trade(), threading.Event(), threading.Event()
    stack.callback(gate.set)
    monkeypatch.setattr(hanging, "query", lambda *_: (asked.set(), gate.wait(60.0), OfferAnswer())[2])
    trader = one.trade(two)
    asking = threading.Thread(target=lambda: suppressed(one.ask, trader, follow="always", timeout=60.0))
    asking.start()
    assert asked.wait(20.0)
    # When it stops, expect that to take seconds at most
    began = time.monotonic()
    trader.stop()
    assert time.monotonic() - began < 20.0
    asking.join(20.0)
    assert not asking.is_alive()


def suppressed(call: Callable[..., Any], *given: Any, **terms: Any) -> None:
    with suppress(WireError):
        call(*given, **terms)


def test_domain_without_a_trader_is_told_as_missing(stack: ExitStack) -> None:
    one, two = Domain(stack, 1), Domain(stack, 2)
    found, partial = one.ask(one.trade(two), follow="always", timeout=1.0)
    assert found == ["area1"]
    assert "no trader" in partial[0] or "in time" in partial[0]


@pytest.mark.row("D-04", "D-05", "D-06")
def test_services_of_all_domains_are_in_the_central_registry_as_long_as_they_are_offered(
    stack: ExitStack, eventually: Callable[..., Any]
) -> None:
    # Given two domains with a central registry, which is lookup services alone
    central = stack.enter_context(LocalFederation()).lookups[0].address
    one, two = (_of_central(stack, number, central) for number in (1, 2))
    # When one offers a service, expect the other one to find it there, and what is told to be small
    offer = one.offer(TASKING, {"area": "north", "sensors": 1})
    (found,) = eventually(lambda: two.find("demo.Tasking", "area == 'north'"))
    assert found.id == offer
    assert len(msgspec.msgpack.encode(found)) < 4_096
    # and who asks for all of it to have each once
    two.offer(TASKING, {"area": "south", "sensors": 2})
    every = OfferQuery("demo.Tasking", preference="max sensors", follow="always")
    eventually(lambda: [each.properties["area"] for each in two.query(every).offers] == ["south", "north"])
    few = msgspec.structs.replace(every, preference="min sensors", properties=("area",), returned=1)
    assert [each.properties for each in two.query(few).offers] == [{"area": "north"}]
    assert [each.properties["area"] for each in two.find("demo.Tasking")] == ["south"]
    # and nothing when it is withdrawn
    one.modify(offer, {"sensors": 5})
    eventually(lambda: two.find("demo.Tasking", "sensors == 5"))
    one.withdraw(offer)
    eventually(lambda: two.find("demo.Tasking", "area == 'north'") == [])


def test_who_offers_a_service_finds_it_before_the_lookup_service_says_so(
    stack: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given services whose lookup service tells nothing yet
    services = stack.enter_context(Services(stack.enter_context(LocalFederation()).config))
    for event in ("added", "changed", "removed"):
        monkeypatch.setattr(OfferRegistry, f"service_{event}", lambda *_: None)
    # When one is offered, changed and withdrawn, expect that to be so for who did it
    offer = services.offer(TASKING, {"area": "north"})
    assert [each.id for each in services.find("demo.Tasking", "area == 'north'")] == [offer]
    services.modify(offer, {"sensors": 5})
    assert [each.id for each in services.find("demo.Tasking", "sensors == 5")] == [offer]
    services.withdraw(offer)
    assert services.find("demo.Tasking") == []


def test_what_a_lookup_service_says_late_of_an_own_offer_changes_nothing(
    services: Callable[[], Services], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given an offer, and what a lookup service tells of it
    told: list[ServiceItem] = []
    host = services()
    with monkeypatch.context() as patch:
        patch.setattr(Trader, "put", lambda trader, item, put=Trader.put: (told.append(item), put(trader, item)))
        offer = host.offer(TASKING, {"area": "north", "sensors": 3})
    host.modify(offer, {"sensors": 1})
    # When that is told again, as it was before it was changed; Expect it to be as it is
    registry = host._own
    registry.service_added(told[0])
    assert [each.properties["sensors"] for each in host.find(TASKING)] == [1]
    # and when it is withdrawn, not to be there, until a lookup service has told its end
    monkeypatch.setattr(registry.community, "leave", lambda _: None)
    host.withdraw(offer)
    registry.service_added(told[0])
    assert host.find(TASKING) == []
    registry.service_removed(told[0])
    assert host.find(TASKING) == []
    assert not registry._withdrawn


@pytest.mark.row("D-04")
def test_central_registry_that_is_down_costs_what_it_has_alone(stack: ExitStack) -> None:
    # Given a domain whose central registry is down
    services = _of_central(stack, 1, "127.0.0.1:1")
    services.offer(TASKING, {"area": "north"})
    # When somebody asks for all, expect what is here, and to be told what is missing
    answer = services.query(OfferQuery("demo.Tasking", follow="always", timeout=0.5))
    assert [each.properties["area"] for each in answer.offers] == ["north"]
    assert any("central registry" in each for each in answer.partial)
    assert services.find("demo.Tasking", "area == 'south'", timeout=0.5) == []


def _of_central(stack: ExitStack, number: int, central: str) -> Services:
    config = stack.enter_context(LocalFederation()).config
    section = DomainSection(number=number, central=(central,))
    return stack.enter_context(Services(msgspec.structs.replace(config, domain=section)))


@pytest.mark.row("D-22")
def test_trader_gives_who_asks_what_he_may_subscribe_to(stack: ExitStack) -> None:
    class Some(AllowAll):
        def allow(self, caller: Caller, action: Any, subject: Subject) -> Decision:  # noqa: ARG002  # whoever asks
            return Decision(action != "subscribe" or subject.type != "demo.Tasking")

    one, two = Domain(stack, 1, Some()), Domain(stack, 2)
    two.trade()
    trader = one.trade(two)
    assert one.ask(trader, follow="always") == ([], ())


@pytest.mark.row("D-22")
def test_offers_that_are_withheld_leave_the_places_of_an_answer_to_others(stack: ExitStack) -> None:
    class Some(AllowAll):
        def allow(self, caller: Caller, action: Any, subject: Subject) -> Decision:  # noqa: ARG002  # whoever asks
            return Decision(action != "subscribe" or subject.type == "demo.Tasking")

    # Given a trader that withholds the best offers of another domain, and of its own
    one, two = Domain(stack, 1, Some()), Domain(stack, 2)
    secret = ServiceType.of("demo.Secret", parent=TASKING)
    for domain in (one, two):
        domain.services.offer(secret, {"area": "secret", "sensors": 9})
    two.trade()
    trader = one.trade(two)
    best = {"follow": "always", "preference": "max sensors"}
    # When it is asked for one, expect the best of the others, and a note of these alone
    assert one.ask(trader, returned=1, **best) == (["area2"], ("2 offers match; 1 are returned",))
    assert one.ask(trader, returned=1, constraint="sensors == 2 or sensors == 9", **best) == (["area2"], ())
    assert one.ask(trader, searched=1, matched=1, **best) == (["area1", "area2"], ())


@pytest.mark.row("D-58")
def test_what_a_trader_gave_goes_on_without_it(stack: ExitStack) -> None:
    one = Domain(stack, 1)
    one.services.offer(TASKING, {"area": "called", "sensors": 9}, calls=Tasking())
    trader = one.trade()
    with closing(TraderProxy(_ref(trader), one.federation.config.security())) as proxy:
        (offer,) = proxy.query(OfferQuery("demo.Tasking", "sensors == 9")).offers
    trader.stop()
    with closing(one.services.connect(offer)) as client:
        assert client.call("task", int, "fine") == 4
