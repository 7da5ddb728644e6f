"""Scenario of the demo: objects, subscribers, and what each must get, worked out with lxml alone.

The expectation is an oracle: it evaluates first level, predicate and filter naively on each document and knows
nothing of entries, indexes, queues or delegates. Two runs play exactly the same.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import msgspec
from lxml import etree

from jbi_pubsub.examples.example import DATA

CAP = (("c", "urn:oasis:names:tc:emergency:cap:1.2"),)
IMAGERY_TYPE = "mil.af.rl.jbi.Intel_Imagery"
TARGETS_TYPE = "mil.af.rl.jbi.Target_List"
CAP_TYPE = "{urn:oasis:names:tc:emergency:cap:1.2}alert"

KABUL = (
    "*[(/metadata/ImageDescriptor/LocationCoord/lat>33.2) and (/metadata/ImageDescriptor/LocationCoord/lat<35.0)"
    " and (/metadata/ImageDescriptor/LocationCoord/latord='N') and (/metadata/ImageDescriptor/LocationCoord/long>65.7)"
    " and (/metadata/ImageDescriptor/LocationCoord/long<70.0)"
    " and (/metadata/ImageDescriptor/LocationCoord/longord='E')]"
)
"""The paper's predicate (section 2.3.2), verbatim."""

TARGET_FILTER = (
    "//descriptor[(((./position/lat>'33.2') and (./position/lat<'35.0')) and (./position/ladir='N'))"
    " and (((./position/long<'70.0') and (./position/long>'67.8')) and (./position/lodir='E'))]"
)
"""The paper's filter (section 2.3.2), verbatim."""

_PLACES = (
    # image type, area, latitude, longitude: the first is the paper's figure 1
    ("IR", "Kabul", "33.34", "N", "69.98", "E"),
    ("EO", "Kabul", "34.51", "N", "69.18", "E"),
    ("SAR", "Bamyan", "34.82", "N", "67.82", "E"),
    ("IR", "Kandahar", "31.61", "N", "65.71", "E"),
    ("EO", "Rome NY", "43.21", "N", "75.46", "W"),
    ("SAR", "Edge of the box", "33.2", "N", "66.0", "E"),
    ("IR", "South of the equator", "34.0", "S", "67.0", "E"),
    ("EO", "Ghazni", "33.55", "N", "68.42", "E"),
)


class PlannedObject(msgspec.Struct, frozen=True):
    """An object to publish: metadata, and the payload with its name for people."""

    metadata: bytes
    payload: bytes
    label: str


class PlannedPublisher(msgspec.Struct, frozen=True):
    """A publishing process. `delegate` None is a peer publisher. Each object gets a registration of its own if
    `separately`, for publications whose invariants differ."""

    name: str
    delegate: tuple[str, str] | None
    type_name: str
    schema: str
    marks: str
    separately: bool


class PlannedSubscriber(msgspec.Struct, frozen=True):
    """A subscribing process and why it gets what it gets, in words."""

    name: str
    type_name: str = ""
    template: str = ""
    schema: str = ""
    marks: str = ""
    predicate: str = ""
    payload_filter: str = ""
    namespaces: tuple[tuple[str, str], ...] = ()
    recipients: tuple[str, ...] = ()
    first_level: str = ""
    first_level_test: str = ""
    """The first level as XPath, for the oracle alone."""
    second_level: str = ""
    filtered: str = ""
    start: str = "new"
    """Where it begins: "all" is for one that comes when everything has been published."""


PUBLISHERS = (
    PlannedPublisher(
        "imagery", ("alpha", "rome"), IMAGERY_TYPE, "intel_imagery/Intel_Imagery.xsd", "", separately=False
    ),
    PlannedPublisher("alerts", ("bravo", "paris"), CAP_TYPE, "cap/cap12.xsd", "cap/marks.json", separately=True),
    PlannedPublisher("targets", None, TARGETS_TYPE, "targets/Target_List.xsd", "", separately=False),
)

SUBSCRIBERS = (
    PlannedSubscriber(
        "kabul",
        type_name=IMAGERY_TYPE,
        template="intel_imagery/fig3-template.xml",
        schema="intel_imagery/Intel_Imagery.xsd",
        predicate=KABUL,
        first_level="418th, Imagery, EN",
        first_level_test="RequiredMetadata[publisher='418th' and Type='Imagery' and language='EN']",
        second_level="in the rectangle around Kabul",
    ),
    PlannedSubscriber("imagery", type_name=IMAGERY_TYPE, first_level="type Intel_Imagery"),
    PlannedSubscriber(
        "999th",
        type_name=IMAGERY_TYPE,
        template="intel_imagery/template-999th.xml",
        schema="intel_imagery/Intel_Imagery.xsd",
        first_level="publisher 999th: nobody",
        first_level_test="RequiredMetadata[publisher='999th']",
    ),
    PlannedSubscriber(
        "targets",
        type_name=TARGETS_TYPE,
        payload_filter=TARGET_FILTER,
        first_level="type Target_List",
        filtered="targets in the box",
    ),
    PlannedSubscriber(
        "canada",
        type_name=CAP_TYPE,
        template="cap/template-canada.xml",
        schema="cap/cap12.xsd",
        marks="cap/marks.json",
        first_level="sender cap@ec.gc.ca",
        first_level_test="self::c:alert[c:sender='cap@ec.gc.ca']",
        namespaces=CAP,
    ),
    PlannedSubscriber(
        "severe",
        type_name=CAP_TYPE,
        predicate="c:info/c:severity='Severe' or c:info/c:severity='Extreme'",
        namespaces=CAP,
        first_level="type CAP alert",
        second_level="Severe or Extreme",
    ),
    PlannedSubscriber("everything", first_level="no template: every type"),
    PlannedSubscriber(
        "e-mail",
        type_name=CAP_TYPE,
        predicate="c:info/c:category='Geo'",
        namespaces=CAP,
        recipients=("watch@example.org", "duty@example.org"),
        first_level="type CAP alert",
        second_level="category Geo",
    ),
)


LATECOMER = PlannedSubscriber(
    "latecomer", type_name=IMAGERY_TYPE, first_level="type Intel_Imagery", second_level="all of the past", start="all"
)
"""Comes last, and gets what its delegate has archived."""


@dataclass(frozen=True, slots=True)
class Expectation:
    """Numbers due to a subscriber: objects, selected parts, and from how many delegates and peer publishers."""

    objects: int
    parts: int
    servers: int


def publications(publisher: PlannedPublisher) -> list[PlannedObject]:
    """The objects of one publishing process, in order."""
    if publisher.name == "imagery":
        figure = (DATA / "intel_imagery" / "fig1.xml").read_bytes()
        image = (DATA / "intel_imagery" / "image.png").read_bytes()
        return [PlannedObject(_moved(figure, place), image, place[1]) for place in _PLACES]
    if publisher.name == "targets":
        return [_target_list(day) for day in (1, 2, 3)]
    files = sorted((DATA / "cap").glob("*.xml"))
    return [PlannedObject(f.read_bytes(), b"", f.stem) for f in files if not f.stem.startswith("template")]


@functools.cache
def expected(subscriber: PlannedSubscriber) -> Expectation:
    """Deliveries to a subscriber when everything has been published once."""
    objects = parts = 0
    servers = set()
    for publisher in PUBLISHERS:
        if subscriber.type_name not in ("", publisher.type_name):
            continue
        for publication in publications(publisher):
            root = etree.fromstring(publication.metadata)
            if not _true(subscriber.first_level_test, root, subscriber):
                continue
            servers.add(publisher.delegate or publisher.name)
            if _true(subscriber.predicate, root, subscriber):
                objects += 1
                parts += _selected(subscriber.payload_filter, publication.payload)
    return Expectation(objects, parts, len(servers))


def _true(expression: str, root: etree._Element, subscriber: PlannedSubscriber) -> bool:
    if not expression:
        return True
    return bool(etree.XPath(f"boolean({expression})", namespaces=dict(subscriber.namespaces) or None)(root))


def _selected(payload_filter: str, payload: bytes) -> int:
    return len(etree.fromstring(payload).xpath(payload_filter)) if payload_filter else 0


def _moved(figure: bytes, place: tuple[str, ...]) -> bytes:
    root = etree.fromstring(figure)
    for tag, value in zip(("ImageType", "Area", "lat", "latord", "long", "longord"), place, strict=True):
        element = root.find(f".//{tag}")
        assert element is not None
        element.text = value
    return etree.tostring(root, xml_declaration=True, encoding="UTF-8")


def _target_list(day: int) -> PlannedObject:
    metadata = (
        "<metadata><mil.af.rl.jbi.Target_List/><Source><publisher>AOC</publisher><theater>Centre</theater></Source>"
        f"<Valid><day>2002-04-{day:02}</day><targets>{day + 1}</targets></Valid></metadata>"
    ).encode()
    root = etree.parse(DATA / "targets" / "fig4-targets.xml").getroot()
    for number in range(1, day):
        descriptor = etree.fromstring(etree.tostring(root[number % 2]))
        name = descriptor.find("name")
        assert name is not None
        name.text = f"CHARLIE{number}"
        root.append(descriptor)
    return PlannedObject(metadata, etree.tostring(root), f"target list {day}")
