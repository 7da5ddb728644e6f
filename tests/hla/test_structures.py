"""Records and arrays of a federation as elements of documents, and the other way."""

from __future__ import annotations

import pytest
from extent import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from lxml import etree

from jbi_pubsub.core.errors import MetadataError
from jbi_pubsub.core.info_object import InfoObject, Platform, TypeName
from jbi_pubsub.hla import datatypes
from jbi_pubsub.hla.documents import TEXT_MOST, FederationEvent, metadata, shown
from jbi_pubsub.hla.fom import parsed
from jbi_pubsub.hla.interactions import Take, maker_of
from tests.hla.models import SPATIAL

FOM, TYPES = parsed(("m.xml", SPATIAL)), datatypes.parsed(("m.xml", SPATIAL))
TANK = shown(FOM, TYPES, "Sim", FOM.objects[FOM.object_class("Tank") - 1], is_object=True)
HANDLES = {name: handle for handle, (name, _) in TANK.members.items()}
WHERE = {"WorldLocation": {"X": 3905.5, "Y": -1.0}, "IsFrozen": "False", "Heading": 0.5}
STATIC = FOM.codec("SpatialStruct").encode({"DeadReckoningAlgorithm": "Static", "SpatialStatic": WHERE})
ROUTE = FOM.codec("Route").encode([{"X": 1.0, "Y": 2.0}, {"X": 3.0, "Y": 4.0}])
DOCUMENT = (
    b'<Tank object="T1"><Spatial><DeadReckoningAlgorithm>Static</DeadReckoningAlgorithm><SpatialStatic><WorldLocation>'
    b"<X>3905.5</X><Y>-1.0</Y></WorldLocation><IsFrozen>False</IsFrozen><Heading>0.5</Heading></SpatialStatic></Spatial>"
    b"<Route><item><X>1.0</X><Y>2.0</Y></item><item><X>3.0</X><Y>4.0</Y></item></Route>"
    b'<Marking encoding="hex">616263</Marking></Tank>'
)


def document(**values: bytes) -> bytes:
    return metadata(TANK, FederationEvent([(HANDLES[name], data) for name, data in values.items()], "T1"))


@pytest.mark.row("X-08")
def test_fields_of_records_are_elements() -> None:
    # Given a tank with where it is, where it goes, and octets; Expect an element for each field, and XPath on it
    made = document(Spatial=STATIC, Route=ROUTE, Marking=b"abc")
    assert made == DOCUMENT
    for path, matches in (("//WorldLocation/X > 3905", True), ("//WorldLocation/X > 3906", False),
                          ("count(/Tank/Route/item[Y > 1]) = 2", True)):  # fmt: skip
        assert bool(etree.fromstring(made).xpath(path)) is matches


def test_what_is_no_record_stands_in_hexadecimal() -> None:
    for wrong in (STATIC[:-1], STATIC + b"\0", b"\1"):
        assert (
            document(Spatial=wrong)
            == b'<Tank object="T1"><Spatial encoding="hex">%s</Spatial></Tank>' % wrong.hex().encode()
        )
    # and a record that is too large for a document
    long = FOM.codec("Route").encode([{"X": 1.0, "Y": 2.0}] * (TEXT_MOST // 16))
    [route] = etree.fromstring(document(Route=long))
    assert (route.get("encoding"), route.get("cut"), len(route.text or "")) == ("hex", "true", TEXT_MOST)


@settings(max_examples=examples(300))
@given(st.dictionaries(st.sampled_from(sorted(HANDLES)), st.binary(max_size=80)))
def test_whatever_a_federate_sends_is_a_document(values: dict[str, bytes]) -> None:
    root = etree.fromstring(document(**values))
    assert [each.tag for each in root] == list(values)


def made(xml: bytes) -> dict[str, bytes]:
    """Parameters of the interaction that a document becomes."""
    paths = {"Spatial": "//Spatial", "Route": "//Route", "Marking": "//Marking"}
    take = maker_of(FOM, TYPES, Take(interaction="Order", parameter=paths))
    obj = InfoObject("u/1", TypeName("acme.Tank"), xml, b"", Platform(0.0, "u", 1, len(xml), 0, 0, ()))
    names = {handle: FOM.parameters[handle - 1].name for handle in FOM.interactions[take.cls - 1].members}
    return {names[handle]: data for handle, data in take.parameters(obj)}


def test_elements_become_the_record_that_they_were() -> None:
    # Given the document of a tank; Expect an interaction with the same records
    assert made(DOCUMENT) == {"Spatial": STATIC, "Route": ROUTE, "Marking": b"abc"}
    # a number where an enumerator has no name, an alternative of nothing, and an empty array
    nothing = b"<T><Spatial><DeadReckoningAlgorithm>99</DeadReckoningAlgorithm></Spatial><Route/></T>"
    assert made(nothing) == {"Spatial": b"\x63", "Route": b"\0\0\0\0"}


@pytest.mark.parametrize(
    "xml",
    [
        b"<T><Spatial/></T>",
        b"<T><Spatial><DeadReckoningAlgorithm>Static</DeadReckoningAlgorithm></Spatial></T>",
        b"<T><Spatial><DeadReckoningAlgorithm>Nobody</DeadReckoningAlgorithm></Spatial></T>",
        b"<T><Route><item><X>1</X><Y>north</Y></item></Route></T>",
        b"<T><Marking>61</Marking></T>",
        b"<T><Marking>abcdeg</Marking></T>",
    ],
)
def test_elements_that_are_no_record_are_refused(xml: bytes) -> None:
    with pytest.raises(MetadataError, match=r"acme\.Tank can't be an interaction"):
        made(xml)
