"""Records and arrays of a federation as elements of documents, and the other way."""

from __future__ import annotations

from typing import Any

import pytest
from extent import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from lxml import etree

from jbi_pubsub.core.errors import MetadataError
from jbi_pubsub.core.info_object import InfoObject, Platform, TypeName
from jbi_pubsub.hla import datatypes
from jbi_pubsub.hla.documents import TEXT_MOST, FederationEvent, metadata, shown
from jbi_pubsub.hla.encoding import (
    ElementArray,
    Encoding,
    ExtendableVariantRecord,
    FixedArray,
    FixedRecord,
    Scalar,
    VariantRecord,
)
from jbi_pubsub.hla.fom import parsed
from jbi_pubsub.hla.interactions import Take, maker_of
from tests.hla.models import KIND_TYPES, KINDS, SPATIAL

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


# -- what is written is read back -------------------------------------------------------------------------------------

KINDS_FOM, KINDS_TYPES = parsed(("m.xml", KINDS)), datatypes.parsed(("m.xml", KINDS))
THING = shown(KINDS_FOM, KINDS_TYPES, "Sim", KINDS_FOM.objects[KINDS_FOM.object_class("Thing") - 1], is_object=True)
MEMBERS = {name: handle for handle, (name, _) in THING.members.items()}
ASCII, BMP = st.characters(max_codepoint=127), st.characters(max_codepoint=0xFFFF, exclude_categories=["Cs"])


def values_of(of: Encoding) -> st.SearchStrategy[Any]:
    """Values of a type; numbers but NaN, which is one in XML and many in bytes."""
    if isinstance(of, FixedRecord):
        return st.fixed_dictionaries({name: values_of(each) for name, each in of.fields})
    if isinstance(of, VariantRecord):
        return values_of(of.of).flatmap(lambda kind: choices_of(of, kind))
    if isinstance(of, Scalar):
        return st.binary(min_size=of.least, max_size=of.least).map(lambda data: value_of(of, data)).filter(is_number)
    assert isinstance(of, ElementArray)
    count: dict[str, Any] = (
        {"min_size": of.count, "max_size": of.count} if isinstance(of, FixedArray) else {"max_size": 3}
    )
    if of.is_octets:
        return st.binary(**count)
    if of.coding:
        return st.text(ASCII if of.coding == "ascii" else BMP, **count)
    return st.lists(values_of(of.of), **count)


def value_of(of: Scalar, data: bytes) -> Any:
    """Any value of the type, made of bytes."""
    if of.codec.kind == "text":
        return chr(data[-1] & 127)
    if of.name == "HLAboolean":
        return "HLAtrue" if data[-1] & 1 else "HLAfalse"
    return of.decode(data)


def is_number(value: Any) -> bool:
    return bool(value == value)


def choices_of(of: VariantRecord, kind: Any) -> st.SearchStrategy[dict[str, Any]]:
    """Values of a variant record with that discriminant."""
    name, inner = of.alternative(kind)
    alone = st.just({of.discriminant: kind})
    if inner is None:
        return alone
    both = values_of(inner).map(lambda value: {of.discriminant: kind, name: value})
    return alone | both if isinstance(of, ExtendableVariantRecord) else both


def bytes_of(name: str) -> st.SearchStrategy[bytes]:
    """Values of a data type as they are sent."""
    known = KINDS_TYPES.get(name)
    if known is None or known.layout is None:
        return st.binary(max_size=8)
    return values_of(known.layout).map(known.layout.encode)


def taken(xml: bytes, **rule: Any) -> dict[str, bytes]:
    """Parameters of the interaction that a document becomes."""
    paths = {name: f"/*/{name}" for name in MEMBERS} if not rule else {}
    take = maker_of(KINDS_FOM, KINDS_TYPES, Take(interaction="Order", parameter=paths, **rule))
    obj = InfoObject("u/1", TypeName("acme.Thing"), xml, b"\1\2", Platform(0.0, "u", 1, len(xml), 2, 0, ()))
    return {KINDS_FOM.parameters[handle - 1].name: data for handle, data in take.parameters(obj)}


@pytest.mark.parametrize("at", range(len(KIND_TYPES)), ids=lambda at: KIND_TYPES[at] or "none")
@settings(max_examples=examples(60))
@given(data=st.data())
def test_what_is_written_is_read_back(at: int, data: st.DataObject) -> None:
    # Given a value of a data type; Expect the interaction that is made of its document to have the same
    value = data.draw(bytes_of(KIND_TYPES[at]))
    xml = metadata(THING, FederationEvent([(MEMBERS[f"m{at}"], value)], "T1"))
    assert taken(xml) == {f"m{at}": value}, xml


def member(name: str) -> str:
    return f"m{KIND_TYPES.index(name)}"


@pytest.mark.parametrize(
    ("type_", "text", "value"),
    [
        ("HLAopaqueData", b">00ff<", b"\0\0\0\2\0\xff"),
        ("HLAopaqueData", b" encoding='hex'>00 ff<", b"\0\0\0\2\0\xff"),
        ("HLAunicodeString", b" encoding='hex'>00000001 0000<", b"\0\0\0\1\0\0"),
        ("HLAboolean", b">\n HLAtrue\n<", b"\0\0\0\1"),
        ("Kind", b"> -9 <", b"\xff\xf7"),
        ("Unsaid", b">text<", b"text"),
        ("Unsaid", b" encoding='hex'>00ff<", b"\0\xff"),
    ],
)
def test_an_element_is_a_value_of_the_parameters_type(type_: str, text: bytes, value: bytes) -> None:
    name = member(type_).encode()
    assert taken(b"<T><%s%s/%s></T>" % (name, text, name)) == {member(type_): value}


@pytest.mark.parametrize(
    ("type_", "text"),
    [
        ("HLAopaqueData", b">text<"), ("HLAunicodeString", b" encoding='hex'>00<"), ("Kind", b">Three<"),
        ("HLAunicodeString", b" cut='true'>a<"), ("Photo", b" encoding='hex' cut='true'>00<"),
    ],
)  # fmt: skip
def test_an_element_that_is_no_value_of_the_parameters_type_is_refused(type_: str, text: bytes) -> None:
    name = member(type_).encode()
    with pytest.raises(MetadataError, match=r"acme\.Thing can't be an interaction"):
        taken(b"<T><%s%s/%s></T>" % (name, text, name))


@pytest.mark.parametrize(
    ("what", "type_", "value"),
    [
        ("metadata", "HLAopaqueData", b"\0\0\0\4<T/>"), ("metadata", "HLAASCIIstring", b"\0\0\0\4<T/>"),
        ("metadata", "HLAunicodeString", b"\0\0\0\4\0<\0T\0/\0>"), ("metadata", "Unsaid", b"<T/>"),
        ("metadata", "Code", b"<T/>"), ("payload", "HLAopaqueData", b"\0\0\0\2\1\2"), ("payload", "", b"\1\2"),
        ("payload", "HLAinteger16BE", b"\1\2"), ("id", "HLAopaqueData", b"\0\0\0\3u/1"), ("id", "Octets", b"u/1"),
    ],
)  # fmt: skip
def test_metadata_payload_and_id_are_values_of_their_parameters_types(what: str, type_: str, value: bytes) -> None:
    assert taken(b"<T/>", **{what: member(type_)}) == {member(type_): value}


@pytest.mark.parametrize(
    ("what", "type_"), [("payload", "Octets"), ("payload", "Record"), ("metadata", "HLAfloat64BE")]
)
def test_what_is_no_value_of_a_parameters_type_is_refused(what: str, type_: str) -> None:
    with pytest.raises(MetadataError, match=r"acme\.Thing can't be an interaction"):
        taken(b"<T/>", **{what: member(type_)})
