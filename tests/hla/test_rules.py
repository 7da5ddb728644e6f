"""Rules of object models: what is refused when a model is loaded, with its place, and what loads though it is odd."""

from __future__ import annotations

import itertools
import time
from pathlib import Path

import pytest

from jbi_pubsub.hla.exceptions import ErrorReadingFom, InconsistentFom
from jbi_pubsub.hla.fom import parsed

from .models import SPATIAL


def model(types: str = "", classes: str = "", more: str = "", year: int = 2010) -> bytes:
    return (
        f'<objectModel xmlns="http://standards.ieee.org/IEEE1516-{year}">{more}<objects><objectClass>'
        f"<name>HLAobjectRoot</name>{classes}</objectClass></objects>\n<dataTypes><table>\n{types}</table></dataTypes>"
        "</objectModel>"
    ).encode()


def row(kind: str, name: str, **children: str) -> str:
    inner = "".join(f"<{tag}>{text}</{tag}>" for tag, text in children.items())
    return f"<{kind}><name>{name}</name>{inner}</{kind}>\n"


def enum(name: str, *rows: tuple[str, object], of: str = "HLAoctet") -> str:
    told = "".join(f"<enumerator><name>{label}</name><value>{value}</value></enumerator>" for label, value in rows)
    return f"<enumeratedData><name>{name}</name><representation>{of}</representation>{told}</enumeratedData>\n"


def record(name: str, *fields: tuple[str, str], encoding: str = "HLAfixedRecord") -> str:
    told = "".join(f"<field><name>{label}</name><dataType>{of}</dataType></field>" for label, of in fields)
    return f"<fixedRecordData><name>{name}</name><encoding>{encoding}</encoding>{told}</fixedRecordData>\n"


def variant(name: str, of: str, *alternatives: tuple[str, str, str]) -> str:
    told = "".join(
        f"<alternative><enumerator>{enumerator}</enumerator><name>{label}</name><dataType>{kind}</dataType></alternative>"
        for enumerator, label, kind in alternatives
    )
    return (
        f"<variantRecordData><name>{name}</name><discriminant>kind</discriminant><dataType>{of}</dataType>{told}"
        "<encoding>HLAvariantRecord</encoding></variantRecordData>\n"
    )


def array(name: str, of: str = "HLAoctet", cardinality: str = "3", encoding: str = "HLAfixedArray") -> str:
    return row("arrayData", name, dataType=of, cardinality=cardinality, encoding=encoding)


ABC = enum("Abc", ("A", 1), ("B", 2), ("C", 3))


@pytest.mark.parametrize(
    ("types", "word"),
    [
        (row("basicData", ""), "m.xml:3: a data type of basicData has no name"),
        (row("basicData", "Short"), "Short has the size ''"),
        (row("basicData", "Short", size="-16"), "Short has the size '-16'"),
        (row("simpleData", "Speed"), "m.xml:3: Speed has no representation"),
        (
            row("simpleData", "Speed", representation="Nothing"),
            "Speed names the data type 'Nothing', which no module",
        ),
        (row("simpleData", "Speed", representation="HLAfloat64B"), "Did you mean HLAfloat64BE"),
        (row("simpleData", "Speed", representation="HLAboolean"), "'HLAboolean', which is not a basic representation"),
        (row("simpleData", "Speed", representation="Abc") + ABC, "'Abc', which is not a basic representation"),
        (row("simpleData", "Speed", representation="HLAhandle"), "'HLAhandle', which is not a basic representation"),
        (enum("Empty"), "Empty has no enumerators"),
        (enum("Odd", ("A", 1), ("B", 1)), "B of Odd has the value 1, as A has"),
        (enum("Odd", ("A", 1), ("A", 1)), "A of Odd has the value 1, as A has"),
        (enum("Odd", ("A", "one")), "A of Odd has the value 'one'"),
        (enum("Odd", ("A", "")), "A of Odd has the value ''"),
        (enum("Odd", ("", 1)), "an enumerator of Odd has no name"),
        (enum("Odd", ("A", 1), of=""), "Odd has no representation"),
        (ABC + ABC, "m.xml:4: there are two data types of the name Abc"),
        (array("Few", of="Nothing"), "Few names the data type 'Nothing'"),
        (array("Few", of=""), "Few does not say of what it is an array"),
        (array("Few", cardinality=""), "Few has the cardinality ''"),
        (array("Few", cardinality="-6"), "Few has the cardinality '-6'"),
        (array("Few", cardinality="2,four"), "Few has the cardinality '2,four'"),
        (array("Few", cardinality="Dynamic"), "Few is a fixed array of no fixed count"),
        (array("Few", encoding="HLAfixedarray"), "Few has the encoding 'HLAfixedarray'"),
        (record("Pair", ("a", "Nothing")), "Pair names the data type 'Nothing'"),
        (record("Pair", ("", "HLAoctet")), "a field of Pair has no name or no data type"),
        (record("Pair", ("a", "HLAoctet"), ("a", "HLAbyte")), "Pair has two of the name a"),
        (record("Pair", ("a", "HLAoctet"), encoding="HLArecord"), "Pair has the encoding 'HLArecord'"),
        (record("A", ("b", "B")) + array("B", of="A"), "is made of itself: (A < B < A|B < A < B)"),
        (record("A", ("a", "A")), "data type A is made of itself"),
        (variant("Either", "HLAoctet", ("A", "a", "NA")), "the discriminant of Either is of HLAoctet"),
        (variant("Either", "NA", ("A", "a", "NA")), "the discriminant of Either is of NA"),
        (row("variantRecordData", "Either"), "the discriminant of Either is of no data type"),
        (ABC + array("Few") + variant("Either", "Few", ("A", "a", "NA")), "the discriminant of Either is of Few"),
        (
            ABC + variant("Either", "Abc", ("D", "d", "NA")),
            "alternative of Either is for 'D', which is not an enumerator",
        ),
        (ABC + variant("Either", "Abc", ("[C .. A]", "d", "NA")), "is for '\\[C .. A\\]', which is not an enumerator"),
        (ABC + variant("Either", "Abc", ("", "d", "NA")), "is for '', which is not an enumerator"),
        (ABC + variant("Either", "Abc", ("[A..C]", "d", "NA"), ("B", "e", "NA")), "Either has two alternatives for B"),
        (ABC + variant("Either", "Abc", ("A", "a", "Nothing")), "Either names the data type 'Nothing'"),
        (ABC + variant("Either", "Abc", ("A", "", "HLAoctet")), "an alternative of Either has no name"),
        (variant("Either", "HLAboolean", ("HLAmaybe", "a", "NA")), "is for 'HLAmaybe', which is not an enumerator"),
    ],
)
def test_a_data_type_that_breaks_a_rule_is_refused_with_its_place(types: str, word: str) -> None:
    with pytest.raises(ErrorReadingFom, match=word) as caught:
        parsed(("m.xml", model(types)))
    assert caught.value.hint
    assert str(caught.value).startswith("m.xml:")


SHIP = "<objectClass><name>Ship</name><attribute><name>draught</name>%s</attribute></objectClass>"


@pytest.mark.parametrize(
    ("said", "word"),
    [
        ("<dataType>Metres</dataType>", "HLAobjectRoot.Ship.draught has the data type 'Metres', which no module has"),
        (
            "<transportation>HLAreliabel</transportation>",
            "'HLAreliabel', which no module has. Did you mean HLAreliable",
        ),
        ("<dimensions><dimension>Depth</dimension></dimensions>", "draught has the dimension 'Depth', which no module"),
    ],
)
def test_what_an_attribute_names_is_somewhere(said: str, word: str) -> None:
    # Given an attribute that names what no module has
    ship = ("m.xml", model(classes=SHIP % said))
    with pytest.raises(ErrorReadingFom, match=word):
        parsed(ship)
    # Expect that it loads with the module that has it, and alone when it says that it depends on one
    tables = (
        "<dimensions><dimension><name>Depth</name></dimension></dimensions>"
        "<transportations><transportation><name>HLAreliabel</name></transportation></transportations>"
    )
    base = ("base.xml", model(row("simpleData", "Metres", representation="HLAfloat64BE"), more=tables))
    for order in itertools.permutations((ship, base)):
        assert parsed(*order).object_class("Ship")
    needs = (
        "<modelIdentification><name>Ships</name><reference><type>Dependency</type><identification>Base"
        "</identification></reference></modelIdentification>"
    )
    assert parsed(("m.xml", model(classes=SHIP % said, more=needs)))
    there = ("b.xml", model(more="<modelIdentification><name>Base</name></modelIdentification>"))
    with pytest.raises(ErrorReadingFom, match=word):
        parsed(("m.xml", model(classes=SHIP % said, more=needs)), there)


@pytest.mark.parametrize(
    "types",
    [
        pytest.param(enum("Datum", ("Kind", 1), ("Kind", 2)), id="one name of several values, as in RPR 2 draft 18"),
        pytest.param(row("simpleData", "Count", representation="RPRunsignedInteger32BE"), id="basics of the RPR FOM"),
        pytest.param(array("Token", cardinality="0"), id="arrays of none, as HLAtoken"),
        pytest.param(array("Many", cardinality="4,(1..4),Dynamic", encoding="Own"), id="encodings of their own"),
        pytest.param(record("Mom", ("h", "HLAhandle"), ("s", "HLAindex")), id="types of the standard's own module"),
        pytest.param(variant("If", "HLAboolean", ("HLAtrue", "a", "HLAoctet"), ("HLAother", "b", "NA")), id="boolean"),
        pytest.param(record("Nothing"), id="records without fields"),
    ],
)
def test_what_models_in_use_have_loads(types: str) -> None:
    assert parsed(("m.xml", model(types)))


def test_models_that_are_here_load() -> None:
    for path in (Path(__file__).parents[2] / "examples/data/hla").glob("*.xml"):
        assert parsed((path.name, path.read_bytes()))
    assert parsed(("spatial.xml", SPATIAL))


@pytest.mark.parametrize(
    ("data", "word"),
    [
        (b'<objectModel DTDversion="1516.2" name="A"><objects/></objectModel>', "m is a model of IEEE 1516-2000"),
        (b'<!DOCTYPE a SYSTEM "HLA.dtd">\n<objectModel><objectClass a="N"\n name="A"/>', "model of IEEE 1516-2000"),
        (b";; of 1998\n\n  (FED (Federation Air)", r"m is a model of HLA 1.3 \(.fed\)"),
        (b"(OMDT v1.3)\n(ObjectModel (Name A))", "m is a model of HLA 1.3"),
    ],
)  # fmt: skip
def test_older_formats_are_refused_by_name(data: bytes, word: str) -> None:
    with pytest.raises(ErrorReadingFom, match=word) as caught:
        parsed(("m", data))
    assert "save it as OMT of IEEE 1516-2010" in caught.value.hint


def test_two_modules_say_the_same_of_a_data_type() -> None:
    first, again = ("a.xml", model(ABC)), ("b.xml", model("\n\n" + ABC.replace("</name>", " </name>")))
    assert parsed(first, again) == parsed(again, first)
    other = ("c.xml", model(ABC.replace("HLAoctet", "HLAinteger16BE")))
    for order in ((first, other), (other, first)):
        with pytest.raises(InconsistentFom, match=r"a.xml:3 and c.xml:3 say different things of the data type Abc"):
            parsed(*order)


MORE = (
    enum("Abc", ("D", 4), ("C", 3)) + variant("Either", "Abc", ("D", "d", "HLAinteger32BE")),
    SHIP % "<dataType>Abc</dataType>",
)


@pytest.mark.row("H-04")
def test_a_module_of_2025_adds_members_enumerators_and_alternatives() -> None:
    # Given a model of 2010, and a module of 2025 that adds an attribute, an enumerator and an alternative
    hull = "<objectClass><name>Ship</name><attribute><name>hull</name></attribute></objectClass>"
    base = ("base.xml", model(ABC + variant("Either", "Abc", ("A", "a", "HLAoctet")), hull))
    more = ("more.xml", model(*MORE, year=2025))
    # When they are loaded, in any order
    fom = parsed(base, more)
    assert fom.digest == parsed(more, base).digest == parsed(("z.xml", base[1]), ("y.xml", more[1])).digest
    # Expect both
    ship = fom.object_class("Ship")
    assert fom.attribute(ship, "hull") != fom.attribute(ship, "draught")
    assert fom.codec("Abc").decode(b"\x04") == "D"
    either = fom.codec("Either")
    assert either.encode({"kind": "A", "a": 7}) == bytes.fromhex("01 000000 07")
    assert either.encode({"kind": "D", "d": 7}) == bytes.fromhex("04 000000 00000007")
    # and that one of 2010 may not
    with pytest.raises(InconsistentFom, match="Ship"):
        parsed(base, ("more.xml", model("", MORE[1])))
    with pytest.raises(InconsistentFom, match="Abc"):
        parsed(base, ("more.xml", model(MORE[0])))


@pytest.mark.parametrize(
    ("types", "classes", "word"),
    [
        (enum("Abc", ("D", 1)), "", r"base.xml and (a|more).xml:3: D of Abc has the value 1, as A has"),
        (enum("Abc", ("D", 4), of="HLAinteger16BE"), "", "different things of the data type Abc"),
        (ABC, SHIP % "<dataType>HLAoctet</dataType>", "different things of HLAobjectRoot.Ship: draught"),
    ],
)
def test_what_a_module_of_2025_adds_changes_nothing_that_is_there(types: str, classes: str, word: str) -> None:
    base = ("base.xml", model(ABC, SHIP % "<dataType>Abc</dataType>"))
    for name in ("a.xml", "more.xml"):
        with pytest.raises((ErrorReadingFom, InconsistentFom), match=word):
            parsed(base, (name, model(types, classes, year=2025)))


def test_a_large_model_is_checked_in_no_long_time() -> None:
    # Given 10,000 enumerators, each with a range of its own, and a chain of 5,000 records
    many = enum("Many", *((f"E{n}", n) for n in range(10_000)), of="HLAinteger32BE")
    ranges = ",".join(f"[E{n}..E{n}]" for n in range(4_000))
    chain = "".join(record(f"R{n}", ("r", f"R{n + 1}")) for n in range(5_000)) + record("R5000", ("r", "HLAoctet"))
    data = model(many + variant("Either", "Many", (ranges, "a", "HLAoctet")) + chain)
    began = time.process_time()
    assert parsed(("m.xml", data))
    assert time.process_time() - began < 3
