"""Service types, offers, and the trader's queries, without a network."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import pytest

from jbi_pubsub.core.errors import EntryError, PredicateError, TypeConflictError, UnknownUidError
from jbi_pubsub.core.wire import ServiceRef
from jbi_pubsub.domains.service_type import PropertyType, ServiceType, ServiceTypeEntry, offered
from jbi_pubsub.domains.trader import OfferQuery, Trader
from jbi_pubsub.lookup.entry import EntryRep, define
from jbi_pubsub.lookup.item import ServiceItem

pytestmark = pytest.mark.unit

SERVICE = ServiceType.of("demo.Service", "mandatory_readonly long domain")
APPLICATION = ServiceType.of(
    "demo.Application", "string name", "strings categories", "double load", "boolean ready", parent=SERVICE
)


def _item(offer_id: str, type_: ServiceType, **values: Any) -> ServiceItem:
    ref = ServiceRef(offer_id, "offer", ("127.0.0.1:1",))
    return ServiceItem(offer_id, tuple(each.name for each in type_.lineage), ref, type_.entries(values))


def _trader(*items: ServiceItem) -> Trader:
    trader = Trader()
    for each in items:
        trader.put(each)
    return trader


def _ids(trader: Trader, type_: str = "demo.Service", constraint: str = "", **terms: Any) -> list[str]:
    return [each.id for each in trader.query(OfferQuery(type_, constraint, **terms)).offers]


@pytest.mark.row("D-48")
def test_offer_says_its_type_and_its_values() -> None:
    # Given an offer of a type with a supertype; when it is read
    values = {"domain": 3, "name": "heat", "categories": ("junior", "senior"), "load": 1, "ready": True}
    said = offered(APPLICATION.entries(values))
    # Expect the type with its supertype, and the values of their kinds
    assert said == (APPLICATION, {**values, "load": 1.0})
    assert said is not None
    assert list(said[0].every) == ["domain", "name", "categories", "load", "ready"]


@pytest.mark.row("D-50")
@pytest.mark.row("D-52")
@pytest.mark.parametrize(
    ("values", "why"),
    [
        ({"name": "heat"}, "lacks domain"),
        ({"domain": 3, "speed": 1}, "has no property 'speed'"),
        ({"domain": "three"}, "property domain is 'three'"),
        ({"domain": 3.5}, "property domain is 3.5"),
        ({"domain": True}, "property domain is True"),
        ({"domain": 1 << 63}, "property domain is"),
        ({"domain": 3, "load": float("nan")}, "property load is nan"),
        ({"domain": 3, "name": "x" * 32_769}, "32,769 characters"),
        ({"domain": 3, "categories": ["junior"]}, "property categories is"),
        ({"domain": 3, "categories": ("junior", 4)}, "property categories is"),
        ({"domain": 3, "ready": 1}, "property ready is 1"),
    ],
)
def test_offer_that_its_type_does_not_allow_is_refused(values: Mapping[str, Any], why: str) -> None:
    with pytest.raises(EntryError, match=why):
        APPLICATION.entries(values)


@pytest.mark.parametrize(
    "made",
    [
        lambda: ServiceType.of("demo.Twice", "long a", "string a"),
        lambda: ServiceType.of("demo.Again", "long domain", parent=SERVICE),
        lambda: ServiceType.of("no name"),
        lambda: ServiceType.of("jbi.Own"),
        lambda: ServiceType.of("demo.Many", *(f"long a{n}" for n in range(257))),
        lambda: PropertyType.of("integer a"),
        lambda: PropertyType.of("long a b"),
        lambda: PropertyType.of("long a-b"),
        lambda: PropertyType.of(""),
    ],
)
def test_type_that_contradicts_itself_is_refused(made: Any) -> None:
    with pytest.raises(EntryError):
        made()


@pytest.mark.row("D-49")
def test_offer_refers_to_the_interface_of_its_type() -> None:
    # Given a type with an interface, and one below it
    watched = ServiceType.of("demo.Watched", interface="delegate")
    below = ServiceType.of("demo.Below", "long domain", parent=watched)
    channel = ServiceRef("channel", "delegate", ("127.0.0.1:1",))
    for each in (watched, below):
        said = offered(each.entries({}))
        assert said == (each, {})
        # When something is offered as such a one, expect a reference to that interface to be taken alone
        trader = Trader()
        trader.put(ServiceItem("good", ("demo.Watched",), channel, each.entries({})))
        with pytest.raises(EntryError, match=r"refers to 'offer'.*'delegate'"):
            trader.put(_item("bad", each))
        assert [offer.reference for offer in trader.query(OfferQuery("demo.Watched")).offers] == [channel]
    # Expect another interface to make another type
    with pytest.raises(TypeConflictError, match="interface"):
        watched.check_same(ServiceType.of("demo.Watched", interface="offer"))
    SERVICE.check_reference(channel)  # of none it may be any


def _forged() -> dict[str, tuple[EntryRep, ...]]:
    good = APPLICATION.entries({"domain": 3})
    told = ServiceTypeEntry(name="demo.Orphan", properties="").rep()
    orphan = EntryRep(define("demo.Orphan", {}, define("demo.Other", {"x": int})), ("1",))
    return {
        "no values": good[1:],
        "no definition of the supertype": good[:2],
        "other properties": (good[0], ServiceTypeEntry(name="demo.Application", properties="long x").rep(), good[2]),
        "a property that is none": (good[0], ServiceTypeEntry(name="demo.Application", properties=";;'").rep()),
        "a supertype that nobody defines": (orphan, told),
        "a number that is none": (EntryRep(good[0].cls, ("three", *good[0].values[1:])), *good[1:]),
        "a sequence that is none": (EntryRep(good[0].cls, ("3", None, "{}", None, None)), *good[1:]),
        "a sequence in itself": (EntryRep(good[0].cls, ("3", None, "[" * 2_000, None, None)), *good[1:]),
    }


@pytest.mark.parametrize("forged", _forged())
def test_offer_of_a_stranger_that_contradicts_itself_is_none(forged: str) -> None:
    with pytest.raises(EntryError):
        offered(_forged()[forged])


def test_type_of_one_name_with_other_properties_is_a_conflict() -> None:
    with pytest.raises(TypeConflictError, match=r"demo\.Service"):
        ServiceType.of("demo.Service", "long number").check_same(SERVICE)
    SERVICE.check_same(ServiceType.of("demo.Service", "mandatory_readonly long domain"))


@pytest.mark.row("D-51")
@pytest.mark.row("D-53")
def test_query_finds_by_name_by_category_and_by_subtype() -> None:
    trader = _trader(
        _item("a", APPLICATION, domain=1, name="heat", categories=("junior", "senior"), load=0.5),
        _item("b", APPLICATION, domain=2, name="heat", categories=("senior",)),
        _item("c", SERVICE, domain=2),
    )
    assert sorted(_ids(trader)) == ["a", "b", "c"]
    assert _ids(trader, exact_type=True) == ["c"]
    assert sorted(_ids(trader, "demo.Application")) == ["a", "b"]
    assert sorted(_ids(trader, constraint="name == 'heat'")) == ["a", "b"]
    assert _ids(trader, constraint="name == 'heat' and domain == 2") == ["b"]
    assert _ids(trader, constraint="domain == 2.0 and not exist name") == ["c"]
    assert _ids(trader, constraint="'junior' in categories") == ["a"]
    assert _ids(trader, constraint="domain == '2'") == []
    assert _ids(trader, "demo.Nothing") == []
    # and the values that are asked for
    query = OfferQuery("demo.Application", "load < 1", properties=("load", "speed"))
    (offer,) = trader.query(query).offers
    assert (offer.id, offer.type, offer.properties) == ("a", "demo.Application", {"load": 0.5})
    assert offer.reference.endpoints == ("127.0.0.1:1",)


@pytest.mark.row("D-53")
@pytest.mark.row("D-57")
def test_limits_of_a_query_are_kept_and_told() -> None:
    trader = _trader(*(_item(f"{n}", APPLICATION, domain=n, load=n) for n in range(10)))
    answer = trader.query(OfferQuery("demo.Service", preference="max load", returned=3))
    assert [each.id for each in answer.offers] == ["9", "8", "7"]
    assert answer.partial == ("10 offers match; 3 are returned",)
    assert len(trader.query(OfferQuery("demo.Service", "load >= 0", searched=4)).offers) == 4
    assert "4 offers were looked at" in trader.query(OfferQuery("demo.Service", searched=4)).partial[0]
    assert "2 matching offers" in trader.query(OfferQuery("demo.Service", matched=2)).partial[0]
    assert trader.query(OfferQuery("demo.Service", searched=10, matched=10)).partial == ()


def test_offer_that_changes_or_leaves_is_found_as_it_is() -> None:
    trader = _trader(_item("a", APPLICATION, domain=1, name="heat"))
    trader.put(_item("a", SERVICE, domain=2))
    assert (_ids(trader, constraint="domain == 1"), _ids(trader, constraint="domain == 2")) == ([], ["a"])
    assert [(each.name, count) for each, count in trader.types()] == [("demo.Service", 1)]
    trader.put(ServiceItem("a", ("other",), ServiceRef("a", "x", ())))  # it is no offer any more
    trader.remove("a")
    assert (_ids(trader), trader.types(), len(trader)) == ([], [], 0)
    with pytest.raises(UnknownUidError):
        trader.offer("a")


def test_types_of_one_name_by_hosts_that_do_not_know_each_other_are_both_searched() -> None:
    other = ServiceType.of("demo.Service", "string domain")
    trader = _trader(_item("a", SERVICE, domain=1), _item("b", other, domain="1"))
    assert (_ids(trader, constraint="domain == 1"), _ids(trader, constraint="domain == '1'")) == (["a"], ["b"])


@pytest.mark.row("D-22")
def test_query_gives_what_who_asks_may_know_of_alone() -> None:
    trader = _trader(_item("a", SERVICE, domain=1), _item("b", SERVICE, domain=2))
    for limits in ({}, {"searched": 1}, {"matched": 1}, {"returned": 1}):
        answer = trader.query(OfferQuery("demo.Service", **limits), lambda item: item.service_id == "b")
        assert ([each.id for each in answer.offers], answer.partial) == (["b"], ())


@pytest.mark.row("D-22")
def test_offers_that_who_asks_may_not_know_of_are_not_counted() -> None:
    # Given an offer, and one of a subtype that is withheld
    trader = _trader(_item("a", SERVICE, domain=1), _item("b", APPLICATION, domain=2))
    counts = [(each.name, count) for each, count in trader.types(lambda item: item.service_id == "a")]
    # Expect the subtype's not to count
    assert counts == [("demo.Service", 1)]
    assert [count for _, count in trader.types()] == [1, 2]


@pytest.mark.row("D-54")
@pytest.mark.parametrize("query", [OfferQuery("demo.Service", "domain ="), OfferQuery("demo.Service", "", "best")])
def test_constraint_or_preference_that_does_not_parse_is_refused(query: OfferQuery) -> None:
    with pytest.raises(PredicateError):
        Trader().query(query)


def test_index_and_plain_search_find_the_same() -> None:
    # Given random offers that come, change and go
    rnd = random.Random(7)
    trader, there = Trader(), {}
    for _ in range(400):
        key = f"{rnd.randrange(60)}"
        if rnd.random() < 0.3:
            there.pop(key, None)
            trader.remove(key)
            continue
        there[key] = values = {"domain": rnd.randrange(4), "load": rnd.choice([0.5, 1.0, 2.0])}
        if rnd.random() < 0.5:
            values["name"] = rnd.choice(["heat", "flow"])
        trader.put(_item(key, APPLICATION, **values))
        # Expect equal values to find what a search of all finds
        domain, load = rnd.randrange(4), rnd.choice([0.5, 1, 2])
        found = _ids(trader, "demo.Service", f"domain == {domain} and load == {load} and name == 'heat'")
        plain = [k for k, v in there.items() if (v["domain"], v["load"], v.get("name")) == (domain, load, "heat")]
        assert sorted(found) == sorted(plain)
