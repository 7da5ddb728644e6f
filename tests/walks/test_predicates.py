"""Two levels of matching: templates once, at registration; XPath predicates for each publication (2.3.2)."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable
from decimal import Decimal
from typing import Any, NamedTuple

import pytest
from lxml import etree

from jbi_pubsub.core.errors import MetadataError

AT = "/metadata/ImageDescriptor/LocationCoord"


@pytest.mark.row("J-44", "J-45")
@pytest.mark.parametrize(
    ("changed", "delivered"),
    [
        pytest.param({}, True, id="figure 1"),
        pytest.param({"lat": "33.2"}, False, id="southern edge"),
        pytest.param({"lat": "33.2000001"}, True, id="just inside the southern edge"),
        pytest.param({"lat": "35.0"}, False, id="northern edge"),
        pytest.param({"lat": "34.9999999"}, True, id="just inside the northern edge"),
        pytest.param({"long": "65.7"}, False, id="western edge"),
        pytest.param({"long": "65.7000001"}, True, id="just inside the western edge"),
        pytest.param({"long": "70.0"}, False, id="eastern edge"),
        pytest.param({"latord": "S"}, False, id="southern hemisphere"),
        pytest.param({"longord": "W"}, False, id="western hemisphere"),
        pytest.param({"lat": "340"}, False, id="a string between, not a number"),
        pytest.param({"lat": "-33.34"}, False, id="negative"),
        pytest.param({"lat": "033.340"}, True, id="another way to write the number"),
    ],
)
def test_the_kabul_predicate(walk: Any, kabul: str, changed: dict[str, str], *, delivered: bool) -> None:
    # Given a subscription with the predicate of section 2.3.2, verbatim
    uid = walk.subscribe(predicate=kabul)
    # When figure 1 is published with another location
    walk.publish(walk.figures.metadata(**changed), b"image")
    # Expect it if the location is strictly inside the rectangle
    assert walk.payloads(uid) == ([b"image"] if delivered else [])


@pytest.mark.row("J-49")
def test_comparisons_with_quoted_numbers_are_numeric(walk: Any) -> None:
    # Given predicates that quote their numbers
    uid = walk.subscribe(predicate=f"{AT}/lat > '33.2' and {AT}/lat < '35.0' and {AT}/long > '65.7'")
    # When values are published that lie between them as strings only
    walk.publish(walk.figures.metadata(lat="340"), b"340")
    walk.publish(walk.figures.metadata(long="680"), b"680: no upper bound")
    walk.publish(walk.figures.metadata(lat="4"), b"4")
    # Expect a comparison of numbers (XPath 1.0)
    assert walk.payloads(uid) == [b"680: no upper bound"]


@pytest.mark.row("J-46")
@pytest.mark.parametrize("latitude", ["n/a", "", "33,34", "33.34N", "1e", "--34"])
def test_what_is_no_xpath_number_is_never_inside_and_never_disturbs_others(
    walk: Any, kabul: str, latitude: str
) -> None:
    # Given a registration without validation, a subscription on numbers, and others without
    walk.register(validate=False)
    inside = walk.subscribe(predicate=kabul)
    outside = walk.subscribe(predicate=f"not({AT}/lat > 33.2)")
    everything = walk.subscribe()
    # When an element that should be a number is none by the rules of XPath 1.0
    document = walk.figures.metadata(lat=latitude)
    walk.publish(document, b"odd")
    walk.publish(payload=b"even")
    # Expect no error for the publisher, no delivery to the first, delivery to the others
    assert walk.payloads(inside) == [b"even"]
    assert walk.payloads(everything) == [b"odd", b"even"]
    assert [obj.payload for obj in walk.subscriber.drain(outside)] == [b"odd"]


@pytest.mark.row("J-49")
@pytest.mark.parametrize("latitude", ["3.4e1", "34E0", "+34", " 34 ", ".34e2", "34.", "0x22"])
def test_what_is_a_number_is_for_lxml_to_say(walk: Any, kabul: str, latitude: str) -> None:
    # Given a registration without validation, and the Kabul predicate
    walk.register(validate=False)
    uid = walk.subscribe(predicate=kabul)
    # When a number is written in an unusual way
    document = walk.figures.metadata(lat=latitude)
    walk.publish(document, b"odd")
    # Expect what lxml says: exponents, for one, are numbers to libxml2, though not to XPath 1.0
    inside = bool(etree.fromstring(document).xpath(kabul))
    assert walk.payloads(uid) == ([b"odd"] if inside else [])


@pytest.mark.row("J-46")
@pytest.mark.parametrize(
    ("predicate", "true"),
    [
        ("//lat", True),
        ("//altitude", False),
        ("//lat[. > 90]", False),
        ("count(//keywords)", True),
        ("count(//altitude)", False),
        ("string(//Area)", True),
        ("string(//altitude)", False),
        ("'false'", True),
        ("''", False),
        ("0", False),
        ("//mil.af.rl.jbi.Intel_Imagery", True),
        ("//RequiredMetadata/comment()", False),
        ("boolean(//lat) = false()", False),
        ("contains(//Area, 'abu') and not(starts-with(//Area, 'abu'))", True),
    ],
)
def test_the_result_of_a_predicate_is_its_boolean(walk: Any, predicate: str, *, true: bool) -> None:
    # Given a subscription whose predicate is a node-set, number, string or boolean
    uid = walk.subscribe(predicate=predicate)
    follower = walk.subscribe()
    # When figure 1 is published
    walk.publish(payload=b"image")
    assert [obj.payload for obj in walk.received(follower)] == [b"image"]
    # Expect it if boolean() of the result is true
    assert walk.record(uid)["matched"] == (2 if true else 0)  # the image and the marker


class _Place(NamedTuple):
    lat: str
    long: str
    latord: str
    longord: str
    area: str
    image: str


_COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "=": operator.eq,
    "!=": operator.ne,
}


def _oracle() -> dict[str, Callable[[_Place], bool]]:
    """Forty predicates with inequality, AND, OR, NOT, and what each means, in Python."""
    table: dict[str, Callable[[_Place], bool]] = {}
    for (sign, compare), bound in itertools.product(_COMPARE.items(), ("10", "33.5", "60.25", "-5")):
        table[f"{AT}/lat {sign} {bound}"] = lambda p, c=compare, b=bound: c(Decimal(p.lat), Decimal(b))
    table |= {
        f"{AT}/lat > 10 and {AT}/long < 50": lambda p: Decimal(p.lat) > 10 and Decimal(p.long) < 50,
        f"{AT}/lat > 10 or {AT}/long < 50": lambda p: Decimal(p.lat) > 10 or Decimal(p.long) < 50,
        f"not({AT}/lat > 10)": lambda p: not Decimal(p.lat) > 10,
        f"not({AT}/lat > 10 and {AT}/latord = 'N')": lambda p: not (Decimal(p.lat) > 10 and p.latord == "N"),
        f"not({AT}/lat > 10) or not({AT}/long > 50)": lambda p: not Decimal(p.lat) > 10 or not Decimal(p.long) > 50,
        f"{AT}/latord = 'N' and ({AT}/longord = 'E' or //Area = 'Kabul')": lambda p: (
            p.latord == "N" and (p.longord == "E" or p.area == "Kabul")
        ),
        f"{AT}/latord = 'N' and {AT}/longord = 'E' or //Area = 'Kabul'": lambda p: (
            (p.latord == "N" and p.longord == "E") or p.area == "Kabul"
        ),
        "//ImageType = 'IR' or //ImageType = 'SAR'": lambda p: p.image in ("IR", "SAR"),
        "//ImageType != 'IR' and not(//ImageType = 'SAR')": lambda p: p.image == "EO",
        "//Area = 'Kabul'": lambda p: p.area == "Kabul",
        "not(//Area = 'Kabul')": lambda p: p.area != "Kabul",
        "starts-with(//Area, 'Ka') and not(contains(//Area, 'bul'))": lambda p: p.area == "Kandahar",
        f"*[{AT}/lat > 33.2 and {AT}/lat < 35]": lambda p: Decimal("33.2") < Decimal(p.lat) < 35,
        f"{AT}[lat > 33.2][long > 60]/latord = 'N'": lambda p: (
            Decimal(p.lat) > Decimal("33.2") and Decimal(p.long) > 60 and p.latord == "N"
        ),
        f"{AT}/lat + {AT}/long > 100": lambda p: Decimal(p.lat) + Decimal(p.long) > 100,
        "//publisher = '418th' and //ImageType = 'EO'": lambda p: p.image == "EO",
    }
    return table


@pytest.mark.row("J-10", "J-90", "Q-04", "D-35")
def test_forty_predicates_over_fifty_documents_equal_a_brute_force_oracle(walk: Any) -> None:
    # Given forty predicates with inequality, AND, OR and NOT
    oracle = _oracle()
    assert len(oracle) == 40
    uids = {walk.subscribe(predicate=predicate): predicate for predicate in oracle}
    everything = walk.subscribe()
    # When fifty documents are published
    lats, longs = ("-5", "10", "33.34", "33.5", "60.25"), ("20", "50", "69.98", "170")
    others = itertools.cycle(itertools.product("NS", "EW", ("Kabul", "Kandahar", "Rome"), ("IR", "EO", "SAR")))
    cycle = itertools.cycle(itertools.product(lats, longs))
    places = [_Place(*next(cycle), *next(others)) for _ in range(50)]
    for place in places:
        document = walk.figures.metadata(
            lat=place.lat,
            long=place.long,
            latord=place.latord,
            longord=place.longord,
            Area=place.area,
            ImageType=place.image,
        )
        walk.publishing.adapter.publish(walk.registration, document, repr(place))
    walk.publishing.adapter.flush()
    assert len(walk.received(everything)) == 50
    # Expect each subscription to get exactly what the oracle says
    for uid, predicate in uids.items():
        expected = [repr(place) for place in places if oracle[predicate](place)]
        found = [walk.subscriber.receive(uid).payload.decode() for _ in expected]
        assert found == expected, predicate
        assert walk.record(uid)["matched"] - len(expected) in (0, 1), predicate  # 1: the marker matches, too


@pytest.mark.row("J-47", "D-41")
def test_a_predicate_sees_the_metadata_only(walk: Any) -> None:
    # Given a predicate that names an element of the payload, and one that asks for its absence
    never = walk.subscribe(predicate="//descriptor/name = 'BRAVO51'")
    always = walk.subscribe(predicate="not(//descriptor)")
    # When figure 1 is published with figure 4
    walk.publish(payload=walk.figures.figure_4)
    # Expect that the payload is invisible to both
    assert walk.payloads(always) == [walk.figures.figure_4]
    assert walk.record(never)["matched"] == 0


@pytest.mark.row("J-57")
@pytest.mark.parametrize("with_filter", [False, True])
@pytest.mark.parametrize("with_predicate", [False, True])
def test_predicate_and_filter_are_each_optional(walk: Any, *, with_predicate: bool, with_filter: bool) -> None:
    # Given a subscription with or without each of them
    predicate, payload_filter = "//lat < 90" if with_predicate else "", "//name" if with_filter else ""
    uid = walk.subscribe(predicate=predicate, payload_filter=payload_filter)
    # When two objects are published, one of which the predicate lets through
    walk.publish(walk.figures.metadata(lat="99"), b"<a>out</a>")
    walk.publish(payload=b"<a><name>in</name><b/></a>")
    # Expect that what is there is applied, and what is not is not
    payloads = walk.payloads(uid)
    assert (b"<a>out</a>" in payloads or len(payloads) == 2) == (not with_predicate)
    assert (b"<name>in</name>" in payloads[-1], b"<b/>" in payloads[-1]) == (True, not with_filter)


@pytest.mark.row("J-03")
def test_only_matching_objects_travel_to_the_subscriber(walk: Any, bytes_from: Callable[[str], int]) -> None:
    # Given a predicate that will be true for 37 of 1,000 objects
    uid = walk.subscribe(predicate=f"{AT}/lat < 37 and {AT}/latord = 'S'")
    address = walk.publishing.status()["address"]
    before = bytes_from(address)
    # When the objects are published, each with a payload of 4 kB
    for number in range(1000):
        document = walk.figures.metadata(lat=str(number), latord="S")
        walk.publishing.adapter.publish(walk.registration, document, b"%04d" % number * 1000)
    walk.publish(walk.figures.metadata(lat="0", latord="S"), b"end")
    # Expect 37, and no more than their bytes on the way to the subscriber
    found = [walk.subscriber.receive(uid).payload for _ in range(38)]
    assert found == [*(b"%04d" % number * 1000 for number in range(37)), b"end"]
    assert walk.subscriber.status()["subscriptions"][uid]["arrived"] == 38
    assert 37 * 4000 < bytes_from(address) - before < 60 * 4000


@pytest.mark.row("J-06")
def test_the_first_level_is_matched_at_registration_never_for_a_publication(own_walk: Any) -> None:
    # Given a publisher and a subscriber that have met
    own_walk.register(validate=False)
    uid = own_walk.subscribe(predicate="//lat > 90")
    counters = ("lookups", "event_registrations", "events", "changes", "items")
    before = {name: own_walk.federation.lookups[0].status()[name] for name in counters}
    # When 10,000 objects are published
    for _ in range(10_000):
        own_walk.publishing.adapter.publish(own_walk.registration, own_walk.figures.figure_1)
    own_walk.publishing.adapter.flush()
    own_walk.publish(own_walk.figures.metadata(lat="91"), b"end")
    assert own_walk.subscriber.receive(uid).payload == b"end"
    # Expect the lookup service to have told nobody anything, and to have been asked by no object: who is in it looks
    # whether it is still there, now and then
    after = {name: own_walk.federation.lookups[0].status()[name] for name in counters}
    assert after["lookups"] - before["lookups"] < 10
    assert after | {"lookups": 0} == before | {"lookups": 0}


@pytest.mark.row("J-07")
def test_subscriptions_whose_template_does_not_match_cost_no_evaluation(walk: Any) -> None:
    # Given 200 subscriptions to another publisher, some of which stand at the node for another registration
    other = walk.register(walk.figures.metadata(publisher="999th"))
    mine = walk.register()
    nobodys = walk.figures.figure_3.replace(b"418th", b"1st")
    others = walk.figures.figure_3.replace(b"418th", b"999th")
    for number in range(180):
        walk.subscribe(nobodys, predicate=f"//lat > {number}", matched=0)
    theirs = [walk.subscribe(others, predicate=f"//lat > {number}") for number in range(20)]
    # When 200 objects are published
    for _ in range(200):
        walk.publishing.adapter.publish(mine, walk.figures.figure_1)
    walk.publishing.adapter.flush()
    # Expect that no predicate was evaluated
    assert walk.counter("published", mine) == 200
    assert walk.counter("evaluations", mine) == walk.counter("xpath_evaluations", mine) == 0
    assert walk.counter("evaluations", other) == 0
    assert all(walk.record(uid)["matched"] == 0 for uid in theirs[:3])


@pytest.mark.row("J-08")
def test_each_publication_is_matched_with_each_potentially_matching_predicate(walk: Any) -> None:
    # Given five subscriptions with predicates, three without, and four whose templates do not match
    for number in range(5):
        walk.subscribe(predicate=f"//lat > {number}")
    for _ in range(3):
        walk.subscribe()
    for number in range(4):
        walk.subscribe(walk.figures.figure_3.replace(b"418th", b"1st"), predicate=f"//lat > {number}", matched=0)
    # When seven objects are published
    for _ in range(7):
        walk.publish()
    # Expect publications times matching subscriptions with a predicate
    assert walk.counter("evaluations") == 7 * 5
    assert walk.counter("subscriptions") == 8


@pytest.mark.row("J-40")
def test_an_absent_template_element_is_a_wildcard_like_an_empty_one(walk: Any) -> None:
    # Given figure 3 with elements left out instead of empty
    absent = walk.figures.figure_3.replace(b"<JBIIIdentifier/>", b"").replace(b"<keywords/>", b"")
    assert absent != walk.figures.figure_3
    uids = [walk.subscribe(absent), walk.subscribe(walk.figures.figure_3)]
    # When figure 1 is published; Expect it in both forms
    walk.publish(payload=b"image")
    assert [walk.payloads(uid) for uid in uids] == [[b"image"], [b"image"]]


@pytest.mark.parametrize(
    ("element", "value", "matches"),
    [("publisher", "999th", False), ("language", "FR", False), ("JBIIIdentifier", "X", True), ("keywords", "X", True)],
)
def test_a_template_is_equality_with_wildcards(walk: Any, element: str, value: str, *, matches: bool) -> None:
    # Given registrations that differ in one invariant element
    standard, changed = walk.register(), walk.register(walk.figures.metadata(**{element: value}))
    # When figure 3 is the template, with a second registration to end the test
    uid = walk.subscribe()
    walk.publishing.publish(changed, walk.figures.metadata(**{element: value}), b"changed")
    walk.publishing.publish(standard, walk.figures.figure_1, b"standard")
    # Expect the changed one only if the element is a wildcard
    expected = {b"changed", b"standard"} if matches else {b"standard"}
    assert {walk.subscriber.receive(uid).payload for _ in expected} == expected
    assert walk.received(uid) == []


@pytest.mark.row("J-40")
def test_a_template_value_on_a_variant_element_is_an_error(walk: Any) -> None:
    # Given figure 1 as template: it fixes elements that change with each publication
    # When it is registered; Expect an error that names the element, and no subscription
    with pytest.raises(MetadataError) as caught:
        walk.subscribe(walk.figures.figure_1)
    assert "ImageDescriptor" in str(caught.value.facts.get("path", ""))
    assert walk.subscriber.status()["subscriptions"] == {}
