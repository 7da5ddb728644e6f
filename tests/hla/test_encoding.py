"""Encodings of values: byte tables of the standard, types of an object model, whatever is no value."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from extent import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from jbi_pubsub.core.errors import ConfigurationError
from jbi_pubsub.hla import datatypes
from jbi_pubsub.hla.encoding import (
    ELEMENTS_MOST,
    STANDARD,
    Encoding,
    ExtendableVariantRecord,
    FixedArray,
    FixedRecord,
    OpenArray,
    Padding,
    VariableArray,
    VariantRecord,
    standard,
)
from jbi_pubsub.hla.exceptions import DecoderException, EncoderException, ErrorReadingFom, NameNotFound
from jbi_pubsub.hla.fom import parsed
from tests.hla.models import SPATIAL

OCTET, BOOLEAN, DOUBLE = (standard(each) for each in ("HLAoctet", "HLAboolean", "HLAfloat64BE"))
SHORT, WORD = standard("HLAinteger16BE"), standard("HLAinteger32BE")
PADDED = FixedRecord([("a", OCTET), ("b", BOOLEAN), ("c", DOUBLE)])
CHOICE = {1: ("small", OCTET), 2: ("large", DOUBLE), 3: ("nothing", None)}
VARIANT = VariantRecord("kind", OCTET, CHOICE, other=("rest", SHORT))
EXTENDABLE = ExtendableVariantRecord("kind", OCTET, {1: ("small", OCTET), 2: ("large", DOUBLE)})

TABLE: list[tuple[Encoding, Any, str]] = [
    # basic data representations (IEEE 1516.2-2010, 4.13.4): byte order and size
    (standard("HLAinteger16BE"), -2, "fffe"),
    (standard("HLAinteger16LE"), -2, "feff"),
    (standard("HLAinteger32BE"), 1, "00000001"),
    (standard("HLAinteger32LE"), 1, "01000000"),
    (standard("HLAinteger64BE"), -1, "ffffffffffffffff"),
    (standard("HLAinteger64LE"), 258, "0201000000000000"),
    (standard("HLAfloat32BE"), 1.0, "3f800000"),
    (standard("HLAfloat32LE"), 1.0, "0000803f"),
    (standard("HLAfloat64BE"), -2.0, "c000000000000000"),
    (standard("HLAfloat64LE"), -2.0, "00000000000000c0"),
    (standard("HLAoctet"), 255, "ff"),
    (standard("HLAoctetPairBE"), 0x1234, "1234"),
    (standard("HLAoctetPairLE"), 0x1234, "3412"),
    (standard("HLAunsignedInteger16BE"), 65535, "ffff"),
    (standard("HLAunsignedInteger64LE"), 2**64 - 1, "ffffffffffffffff"),
    # simple, enumerated and array data types of the standard (4.13.5 to 4.13.8)
    (standard("HLAASCIIchar"), "A", "41"),
    (standard("HLAunicodeChar"), "\u00e9", "00e9"),
    (standard("HLAbyte"), 7, "07"),
    (BOOLEAN, "HLAtrue", "00000001"),
    (BOOLEAN, "HLAfalse", "00000000"),
    (standard("HLAASCIIstring"), "HLA", "00000003484c41"),
    (standard("HLAASCIIstring"), "", "00000000"),
    (standard("HLAunicodeString"), "H\u00e9", "00000002004800e9"),
    (standard("HLAunicodeString"), "\U0001f6e9", "00000002d83ddee9"),
    (standard("HLAopaqueData"), b"\1\2\3", "00000003010203"),
    # fixed records: zeros before what has a larger boundary, none at the end (4.13.9.1)
    (PADDED, {"a": 1, "b": "HLAtrue", "c": 1.0}, "01000000 00000001 3ff0000000000000"),
    (FixedRecord([("c", DOUBLE), ("a", OCTET)]), {"c": 1.0, "a": 1}, "3ff0000000000000 01"),
    (FixedRecord([("a", OCTET), ("in", FixedRecord([("b", OCTET), ("c", DOUBLE)])), ("d", SHORT)]),
     {"a": 1, "in": {"b": 2, "c": 1.0}, "d": 3}, "0100000000000000 0200000000000000 3ff0000000000000 0003"),
    (FixedRecord([]), {}, ""),
    # variant records: zeros up to the greatest boundary of all alternatives (4.13.9.2)
    (VARIANT, {"kind": 1, "small": 9}, "0100000000000000 09"),
    (VARIANT, {"kind": 2, "large": 1.0}, "0200000000000000 3ff0000000000000"),
    (VARIANT, {"kind": 3}, "03"),
    (VARIANT, {"kind": 77, "rest": 5}, "4d00000000000000 0005"),
    # extendable ones: a length at a boundary of 4, the alternative at one of 8 (2025, 4.14.10.3)
    (EXTENDABLE, {"kind": 1, "small": 9}, "01000000 00000001 09"),
    (EXTENDABLE, {"kind": 2, "large": 1.0}, "02000000 00000008 3ff0000000000000"),
    (EXTENDABLE, {"kind": 9}, "09000000 00000000"),
    (EXTENDABLE, {"kind": 1}, "01000000 00000000"),
    # fixed arrays: zeros between elements (4.13.9.3)
    (FixedArray(SHORT, 3), [1, 2, 3], "000100020003"),
    (FixedArray(FixedRecord([("c", WORD), ("a", OCTET)]), 2), [{"c": 1, "a": 2}, {"c": 3, "a": 4}],
     "0000000102000000 0000000304"),
    (FixedArray(standard("HLAASCIIchar"), 3), "HLA", "484c41"),
    (FixedArray(OCTET, 2), b"\1\2", "0102"),
    (FixedArray(FixedArray(OCTET, 2), 2), [b"\1\2", b"\3\4"], "01020304"),
    # variable arrays: zeros between the number of elements and the first one (4.13.9.4)
    (VariableArray(SHORT), [1, 2], "00000002 00010002"),
    (VariableArray(DOUBLE), [1.0], "0000000100000000 3ff0000000000000"),
    (VariableArray(DOUBLE), [], "00000000"),
    (VariableArray(standard("HLAASCIIstring")), ["a", "b"], "00000002 0000000161000000 0000000162"),
    (VariableArray(VARIANT), [{"kind": 3}, {"kind": 1, "small": 2}],
     "0000000200000000 0300000000000000 0100000000000000 02"),
    # the RPR FOM's own (SISO-STD-001, 6.8.5)
    (OpenArray(SHORT), [1, 2], "00010002"),
    (OpenArray(OCTET, is_terminated=True), b"ab", "616200"),
    # which ends where the bytes do, however long each of its elements is
    (OpenArray(VARIANT), [{"kind": 3}, {"kind": 1, "small": 2}], "0300000000000000 0100000000000000 02"),
    (OpenArray(VARIANT), [{"kind": 1, "small": 2}, {"kind": 3}], "0100000000000000 0200000000000000 03"),
    (OpenArray(FixedRecord([("c", WORD), ("a", OCTET)])), [{"c": 1, "a": 2}, {"c": 3, "a": 4}],
     "0000000102000000 0000000304"),
    (OpenArray(standard("HLAASCIIstring")), ["a", "bc", ""], "0000000161000000 000000026263 0000 00000000"),
    (OpenArray(VARIANT), [], ""),
    (OpenArray(SHORT, is_terminated=True), [1, 256], "000101000000"),
    (OpenArray(VARIANT, is_terminated=True), [{"kind": 1, "small": 2}], "0100000000000000 0200000000000000 00"),
    (FixedRecord([("a", OCTET), ("pad", Padding(4)), ("b", OCTET)]), {"a": 1, "b": 2}, "0100000002"),
]  # fmt: skip


@pytest.mark.parametrize(("encoding", "value", "data"), TABLE)
def test_values_and_bytes_are_as_the_tables_have_them(encoding: Encoding, value: Any, data: str) -> None:
    # Given a value and its bytes, written down by hand; Expect one from the other, both ways
    assert encoding.encode(value).hex() == data.replace(" ", "")
    assert encoding.decode(bytes.fromhex(data)) == value


def test_what_is_nearly_a_value_is_taken() -> None:
    assert BOOLEAN.encode(True) == BOOLEAN.encode("HLAtrue")
    for kind in (VariantRecord, ExtendableVariantRecord):
        has = kind("has", BOOLEAN, {"HLAtrue": ("small", OCTET), "HLAfalse": ("", None)})
        assert has.encode({"has": True, "small": 9}) == has.encode({"has": "HLAtrue", "small": 9})
        assert has.encode({"has": False}) == has.encode({"has": "HLAfalse"})
    # an alternative that came later is passed over
    later = ExtendableVariantRecord("kind", OCTET, {1: ("small", OCTET), 4: ("later", FixedArray(SHORT, 3))})
    after = FixedRecord([("v", EXTENDABLE), ("end", OCTET)])
    data = FixedRecord([("v", later), ("end", OCTET)]).encode({"v": {"kind": 4, "later": [1, 2, 3]}, "end": 7})
    assert after.decode(data) == {"v": {"kind": 4}, "end": 7}


# -- against the standard's own formulas ----------------------------------------------------------------------------

LEAVES = st.sampled_from([("B", 1), (">h", 2), (">i", 4), (">d", 8)])
SHAPES: st.SearchStrategy[Any] = st.recursive(
    LEAVES.map(lambda each: ("leaf", *each)),
    lambda inner: (
        st.tuples(st.just("record"), st.lists(inner, min_size=1, max_size=4))
        | st.tuples(st.just("fixed"), inner, st.integers(1, 3))
        | st.tuples(st.just("variable"), inner, st.integers(0, 3))
    ),
    max_leaves=12,
)
NAMES = {"B": "HLAoctet", ">h": "HLAinteger16BE", ">i": "HLAinteger32BE", ">d": "HLAfloat64BE"}


def boundary_of(shape: Any) -> int:
    if shape[0] == "leaf":
        return int(shape[2])
    if shape[0] == "record":
        return max(map(boundary_of, shape[1]))
    return max(boundary_of(shape[1]), 4 if shape[0] == "variable" else 1)


def bytes_of(shape: Any) -> bytes:
    """By the formulas of 4.13.9, which count from the beginning of a record or array. All values are 1."""
    if shape[0] == "leaf":
        return struct.pack(shape[1], 1)
    if shape[0] == "record":
        parts = [(bytes_of(each), boundary_of(each)) for each in shape[1]]
        data = b""
    else:
        parts = [(bytes_of(shape[1]), boundary_of(shape[1]))] * shape[2]
        data = struct.pack(">i", shape[2]) if shape[0] == "variable" else b""
    for part, boundary in parts:
        while len(data) % boundary:
            data += b"\0"
        data += part
    return data


def made(shape: Any) -> tuple[Encoding, Any]:
    if shape[0] == "leaf":
        return standard(NAMES[shape[1]]), 1
    if shape[0] == "record":
        parts = [made(each) for each in shape[1]]
        fields = [(f"f{n}", each) for n, (each, _) in enumerate(parts)]
        return FixedRecord(fields), {f"f{n}": value for n, (_, value) in enumerate(parts)}
    of, value = made(shape[1])
    values = bytes([1] * shape[2]) if of is OCTET else [value] * shape[2]
    return (FixedArray(of, shape[2]) if shape[0] == "fixed" else VariableArray(of)), values


@settings(max_examples=examples(300))
@given(SHAPES)
def test_whatever_is_made_of_what_has_the_bytes_of_the_formulas(shape: Any) -> None:
    encoding, value = made(shape)
    assert encoding.encode(value) == bytes_of(shape)
    assert encoding.decode(bytes_of(shape)) == value
    assert encoding.boundary == boundary_of(shape)


@settings(max_examples=examples(500))
@given(st.sampled_from([encoding for encoding, _, _ in TABLE]), st.binary(max_size=40))
def test_any_bytes_are_a_value_or_refused(encoding: Encoding, data: bytes) -> None:
    try:
        value = encoding.decode(data)
    except DecoderException:
        return
    encoding.encode(value)


@pytest.mark.parametrize(
    ("encoding", "value", "why"),
    [
        (PADDED, {"a": 1, "b": "HLAtrue"}, "no HLAfixedRecord: c: 'c' is missing"),
        (PADDED, {"a": 1, "b": "HLAmaybe", "c": 1.0}, "b: no enumerator 'HLAmaybe'"),
        (PADDED, {"a": 256, "b": "HLAtrue", "c": 1.0}, "a: "),
        (PADDED, {"a": 1, "b": "HLAtrue", "c": 1.0, "d": 1}, "it has no field 'd'"),
        (PADDED, 5, "no HLAfixedRecord"),
        (VARIANT, {"small": 1}, "'kind' is missing"),
        (VARIANT, {"kind": 1, "large": 1.0}, "'large' does not go with 1"),
        (FixedArray(SHORT, 2), [1], "1 elements, not 2"),
        (VariableArray(SHORT), "ab", "str, where a list is due"),
        (VariableArray(SHORT), None, "no HLAvariableArray"),
        (standard("HLAASCIIstring"), "\u00e9", "no HLAASCIIstring"),
    ],
)
def test_what_is_no_value_is_not_encoded(encoding: Encoding, value: Any, why: str) -> None:
    with pytest.raises(EncoderException) as caught:
        encoding.encode(value)
    assert why in str(caught.value)
    assert caught.value.hint


def test_counts_are_believed_as_far_as_there_are_bytes() -> None:
    # Given an array that says it has 2,147,483,647 elements
    with pytest.raises(DecoderException, match=r"2,147,483,647 elements in 4 bytes"):
        VariableArray(SHORT).decode(bytes.fromhex("7fffffff00010002"))
    # one that says nothing, and has more than are taken, or a cut one
    with pytest.raises(DecoderException, match="more than 1,048,576 elements"):
        OpenArray(FixedArray(OCTET, 1)).decode(bytes(ELEMENTS_MOST + 1))
    with pytest.raises(DecoderException, match="RPRlengthlessArray"):
        OpenArray(SHORT).decode(b"\0\1\0")
    with pytest.raises(DecoderException, match="no zero at its end"):
        OpenArray(SHORT, is_terminated=True).decode(b"\0\1")
    # elements of no bytes, of which there could be any number, and more than are taken
    with pytest.raises(ConfigurationError, match="may have no bytes"):
        VariableArray(FixedRecord([]))
    with pytest.raises(ConfigurationError, match="elements, of 0 to"):
        FixedArray(OCTET, ELEMENTS_MOST + 1)
    with pytest.raises(NameNotFound, match="HLAfloat65BE"):
        standard("HLAfloat65BE")
    assert STANDARD["HLAASCIIstring"].boundary == 4


# -- types of a model -----------------------------------------------------------------------------------------------


def test_types_of_a_model_are_there_by_name() -> None:
    # Given a model with types as the RPR FOM's
    fom = parsed(("types.xml", SPATIAL))
    spatial = fom.codec("SpatialStruct")
    where = {"WorldLocation": {"X": 1.0, "Y": 2.0}, "IsFrozen": "True", "Heading": 0.5}
    # Expect the layout that the RPR FOM's rules give
    data = bytes.fromhex("01000000000000003ff00000000000004000000000000000010000003f000000")
    assert spatial.encode({"DeadReckoningAlgorithm": "Static", "SpatialStatic": where}) == data
    assert spatial.decode(data) == {"DeadReckoningAlgorithm": "Static", "SpatialStatic": where}
    # alternatives for several enumerators, for none, and a number that has no name
    for name, number in (("FPW", 2), ("RPW", 3), ("RVW", 4)):
        turned = bytes([number]) + bytes.fromhex("000000000000003f000000")
        assert spatial.decode(turned) == {"DeadReckoningAlgorithm": name, "Heading": 0.5}
    assert spatial.decode(b"\0") == {"DeadReckoningAlgorithm": "Other"}
    assert spatial.decode(b"\x63") == {"DeadReckoningAlgorithm": 99}
    assert spatial.encode({"DeadReckoningAlgorithm": 99}) == b"\x63"
    # and arrays
    assert fom.codec("Marking").encode(b"abc") == b"abc"
    assert fom.codec("Route").decode(fom.codec("Route").encode([{"X": 1.0, "Y": 2.0}])) == [{"X": 1.0, "Y": 2.0}]
    assert fom.codec("Matrix").decode(struct.pack(">6f", *range(6))) == [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]]
    assert fom.codec("HLAunicodeString").encode("x") == b"\0\0\0\1\0x"


def test_a_type_is_what_it_says_whatever_it_is_called() -> None:
    # Given a model that calls two bytes an octet, and an array of them
    text = (
        b"<objectModel><dataTypes><e><enumeratedData><name>HLAoctet</name><representation>HLAinteger16BE</representation>"
        b"<enumerator><name>A</name><value>1</value></enumerator></enumeratedData></e><a><arrayData><name>Two</name>"
        b"<dataType>HLAoctet</dataType><cardinality>2</cardinality><encoding>HLAfixedArray</encoding></arrayData></a>"
        b"</dataTypes></objectModel>"
    )
    two = datatypes.parsed(("odd", text)).layout("Two")
    # Expect two enumerators, both ways
    assert two.decode(b"\0\1\0\2") == ["A", 2]
    assert two.encode(["A", 2]) == b"\0\1\0\2"


def test_types_that_a_model_does_not_tell_are_said_by_name() -> None:
    fom = parsed(("types.xml", SPATIAL))
    with pytest.raises(NameNotFound, match="no data type 'SpatialStrukt'"):
        fom.codec("SpatialStrukt")
    with pytest.raises(ErrorReadingFom, match="values of Strange, or of what is within"):
        fom.codec("Strange")


def test_types_within_types_are_looked_up_once() -> None:
    # Given records of two fields each, one of the other, as deep as may be: 2 ** 30 ways down
    rows = "".join(
        f"<fixedRecordData><name>T{n}</name><field><name>a</name><dataType>T{n + 1}</dataType></field>"
        f"<field><name>b</name><dataType>T{n + 1}</dataType></field></fixedRecordData>"
        for n in range(30)
    )
    last = "<simpleData><name>T30</name><representation>HLAoctet</representation></simpleData>"
    text = f"<objectModel><dataTypes><r>{rows}{last}</r></dataTypes></objectModel>"
    types = datatypes.parsed(("deep", text.encode()))
    # Expect an answer, and of deeper ones a refusal
    assert types.layout("T0").least == 2**30
    deeper = text.replace("<name>T30<", "<name>T40<")
    for n in range(30, 40):
        deeper = deeper.replace(
            "<r>", f"<r><simpleData><name>T{n}</name><representation>T{n + 1}</representation></simpleData>", 1
        )
    with pytest.raises(ErrorReadingFom, match="32 types within each other"):
        datatypes.parsed(("deeper", deeper.encode())).layout("T0")


def test_an_enumerator_may_have_zeros_before_its_number() -> None:
    rows = b"".join(
        b"<enumerator><name>%s</name><value>%s</value></enumerator>" % each
        for each in ((b"Ten", b"010"), (b"Eleven", b"0x0B"), (b"Less", b"-01"))
    )
    whole = b"""<objectModel><dataTypes><enumeratedDataTypes><enumeratedData><name>Many</name>
        <representation>HLAinteger32BE</representation>%s</enumeratedData></enumeratedDataTypes></dataTypes></objectModel>"""
    fom = parsed(("x", whole % rows))
    assert [fom.codec("Many").encode(each)[-1] for each in ("Ten", "Eleven", "Less")] == [10, 11, 255]
