"""Two object models, and what of the one is what in the other."""

from __future__ import annotations

import struct
from typing import Any

import msgspec
import pytest

from jbi_pubsub.core.errors import ConfigurationError
from jbi_pubsub.hla import datatypes, fom
from jbi_pubsub.hla.bridge.rules import Way
from jbi_pubsub.hla.bridge.translation import Limit, SideModel, Translation, identity, translation
from jbi_pubsub.hla.exceptions import ErrorReadingFom
from jbi_pubsub.hla.proxy import modules_of

AIR = """<objectModel xmlns="http://standards.ieee.org/IEEE1516-2010">
 <objects><objectClass><name>HLAobjectRoot</name>
  <objectClass><name>Aircraft</name>
   <attribute><name>altitude</name><dataType>Feet</dataType></attribute>
   <attribute><name>callsign</name><dataType>HLAASCIIstring</dataType></attribute>
   <attribute><name>force</name><dataType>Force</dataType></attribute>
   <attribute><name>secret</name><dataType>HLAinteger32BE</dataType></attribute>
   <objectClass><name>Jet</name>
    <attribute><name>thrust</name><dataType>HLAfloat64BE</dataType></attribute>
    <objectClass><name>Stealth</name></objectClass></objectClass>
   <objectClass><name>Glider</name></objectClass></objectClass>
  <objectClass><name>HLAmanager</name><attribute><name>x</name></attribute></objectClass>
 </objectClass></objects>
 <interactions><interactionClass><name>HLAinteractionRoot</name>
  <interactionClass><name>Radio</name>
   <parameter><name>text</name><dataType>HLAunicodeString</dataType></parameter>
   <parameter><name>channel</name><dataType>HLAinteger16BE</dataType></parameter>
   <interactionClass><name>Scrambled</name></interactionClass></interactionClass>
 </interactionClass></interactions>
 <dataTypes>
  <simpleDataTypes><simpleData><name>Feet</name><representation>HLAfloat64BE</representation><units>ft</units></simpleData>
  </simpleDataTypes>
  <enumeratedDataTypes><enumeratedData><name>Force</name><representation>HLAinteger32BE</representation>
   <enumerator><name>FRIEND</name><value>1</value></enumerator><enumerator><name>FOE</name><value>2</value></enumerator>
  </enumeratedData></enumeratedDataTypes>
 </dataTypes></objectModel>"""

WEATHER = """<objectModel>
 <objects><objectClass><name>HLAobjectRoot</name>
  <objectClass><name>Aircraft</name>
   <attribute><name>altitude</name><dataType>Metres</dataType></attribute>
   <attribute><name>force</name><dataType>Side</dataType></attribute>
   <attribute><name>label</name><dataType>HLAunicodeString</dataType></attribute></objectClass>
  <objectClass><name>Plane</name>
   <attribute><name>height</name><dataType>HLAinteger32LE</dataType></attribute>
   <attribute><name>label</name><dataType>HLAunicodeString</dataType></attribute>
   <objectClass><name>Jet</name><attribute><name>thrust</name><dataType>HLAfloat32BE</dataType></attribute></objectClass>
  </objectClass>
  <objectClass><name>Cloud</name><attribute><name>cover</name><dataType>HLAoctet</dataType></attribute></objectClass>
 </objectClass></objects>
 <interactions><interactionClass><name>HLAinteractionRoot</name>
  <interactionClass><name>Radio</name>
   <parameter><name>text</name><dataType>HLAunicodeString</dataType></parameter></interactionClass>
 </interactionClass></interactions>
 <dataTypes>
  <basicDataRepresentations><basicData><name>RPRunsignedInteger8BE</name></basicData></basicDataRepresentations>
  <simpleDataTypes><simpleData><name>Metres</name><representation>HLAfloat32BE</representation><units>metre</units></simpleData>
  </simpleDataTypes>
  <enumeratedDataTypes><enumeratedData><name>Side</name><representation>RPRunsignedInteger8BE</representation>
   <enumerator><name>FOE</name><value>9</value></enumerator><enumerator><name>FRIEND</name><value>8</value></enumerator>
  </enumeratedData></enumeratedDataTypes>
 </dataTypes></objectModel>"""


def model(name: str, text: str) -> SideModel:
    module = (name, text.encode())
    return SideModel(name, fom.parsed(module), datatypes.parsed(module))


air, weather = model("air", AIR), model("weather", WEATHER)


def way(text: dict[str, Any] | None = None, *, back: bool = False) -> Way:
    ends = {"from": "weather", "to": "air"} if back else {"from": "air", "to": "weather"}
    return msgspec.convert({**ends, **(text or {})}, Way)


def made(said: dict[str, Any] | None = None, there: SideModel = weather) -> Translation:
    return translation(air, there, way(said), way(back=True))


class Names:
    """Handles of a model by name."""

    def __init__(self, of: SideModel) -> None:
        self.fom = of.fom

    def cls(self, name: str) -> int:
        return self.fom.object_class(name)

    def attributes(self, cls: str, *names: str) -> tuple[int, ...]:
        return tuple(sorted(self.fom.attribute(self.cls(cls), name) for name in names))


A, W = Names(air), Names(weather)


def values(translated: Translation, cls: str, **said: bytes) -> tuple[dict[str, bytes], int]:
    """Of a class of the first side as they are on the other one, by names."""
    sent = tuple(sorted((air.fom.attribute(A.cls(cls), name), data) for name, data in said.items()))
    there, left_out = translated.values(0, A.cls(cls), sent)
    return {weather.fom.attributes[handle - 1].name: data for handle, data in there}, left_out


@pytest.mark.row("H-30")
def test_what_is_called_the_same_goes_and_what_the_models_say_of_it_is_kept_to() -> None:
    # Given two models with an Aircraft, whose altitude is in feet here and in metres there, in another encoding
    plain = made()
    sent = {"altitude": struct.pack(">d", 1000.0), "force": struct.pack(">i", 2), "secret": b"\0\0\0\1"}
    # When values go, expect them as the other model has them, and what it has not to be left out
    assert values(plain, "Aircraft", **sent) == ({"altitude": struct.pack(">f", 304.8), "force": b"\x09"}, 1)
    # and so back
    back = plain.values(1, W.cls("Aircraft"), ((weather.fom.attribute(W.cls("Aircraft"), "force"), b"\x08"),))
    assert back == (((air.fom.attribute(A.cls("Aircraft"), "force"), struct.pack(">i", 1)),), 0)
    # What can't be decoded or is no enumerator is left out, the rest goes
    assert values(plain, "Aircraft", altitude=b"\0\0", force=struct.pack(">i", 1)) == ({"force": b"\x08"}, 1)
    assert values(plain, "Aircraft", force=struct.pack(">i", 3)) == ({}, 1)


@pytest.mark.row("H-25")
def test_what_surrogates_declare() -> None:
    plain = made()
    # Expect that they ask for what goes, and publish what comes; HLAmanager is each RTI's own
    both = A.attributes("Aircraft", "altitude", "force"), W.attributes("Aircraft", "altitude", "force")
    privilege = (air.fom.privilege, weather.fom.privilege)
    assert plain.subscribed(0) == ((A.cls("Aircraft"), tuple(sorted((privilege[0], *both[0])))),)
    assert plain.published(1) == ((W.cls("Aircraft"), tuple(sorted((privilege[1], *both[1])))),)
    assert plain.heard(0) == (air.fom.interaction_class("Radio"),)
    assert plain.sent(1) == (weather.fom.interaction_class("Radio"),)
    # A class that goes nowhere is none
    assert plain.object_class(1, W.cls("Cloud")) == 0
    assert plain.values(1, W.cls("Cloud"), ((1, b""),)) == ((), 1)


@pytest.mark.row("H-30")
def test_renamed() -> None:
    # Given a class and attributes that are called otherwise, with a type and a unit that the other model does not say
    rule = {
        "name": "Aircraft", "to": "Plane",
        "attribute": {
            "altitude": {"name": "height", "unit": ["ft", "m"], "step": 100.0},
            "callsign": {"name": "label", "length": 3},
        },
    }  # fmt: skip
    translated = made({"class": [rule]})
    sent = {"altitude": struct.pack(">d", 1000.0), "callsign": b"\0\0\0\5ABCDE"}
    # Expect them so there
    assert translated.object_class(0, A.cls("Aircraft")) == W.cls("Plane")
    assert values(translated, "Aircraft", **sent) == (
        {"height": struct.pack("<i", 300), "label": b"\0\0\0\3\0A\0B\0C"}, 0,
    )  # fmt: skip
    # Classes below follow, where the other model has them: else their objects are known as those above
    assert translated.object_class(0, A.cls("Aircraft.Jet")) == W.cls("Plane.Jet")
    assert values(translated, "Aircraft.Jet", thrust=struct.pack(">d", 2.0), **sent)[0]["thrust"] == struct.pack(
        ">f", 2.0
    )
    assert A.cls("Aircraft.Glider") not in dict(translated.subscribed(0))
    # and handles of attributes come back
    (height,) = W.attributes("Plane", "height")
    assert translated.attributes(0, A.cls("Aircraft"), A.attributes("Aircraft", "altitude", "secret")) == (height,)
    assert translated.attributes_back(0, A.cls("Aircraft"), (height, 10_000)) == A.attributes("Aircraft", "altitude")


@pytest.mark.row("H-31")
def test_hidden() -> None:
    # Given a guard: what it does not name does not go
    rules = [
        {"name": "Aircraft", "attribute": {"altitude": {"step": 1000.0}}},
        {"name": "Aircraft.Jet.Stealth", "hide": True},
    ]
    guard = made({"rest": "hide", "class": rules})
    assert values(guard, "Aircraft", altitude=struct.pack(">d", 5000.0), force=b"\0\0\0\1") == (
        {"altitude": struct.pack(">f", 2000.0)}, 1,
    )  # fmt: skip
    # Expect that what is hidden below is asked for, so that it is known as what it is, and left out
    stealth = A.cls("Aircraft.Jet.Stealth")
    assert dict(guard.subscribed(0))[stealth] == A.attributes("Aircraft", "HLAprivilegeToDeleteObject", "altitude")
    assert guard.object_class(0, stealth) == 0
    assert values(guard, "Aircraft.Jet.Stealth", altitude=struct.pack(">d", 5000.0)) == ({}, 1)
    # and nothing of what no rule names
    assert guard.heard(0) == ()
    assert guard.interaction(0, air.fom.interaction_class("Radio"), ()) == (0, (), 0)
    # What is hidden in a class is hidden in those below
    rules = [{"name": "Aircraft", "to": "Plane", "attribute": {"thrust": {"hide": True}}}]
    with pytest.raises(ConfigurationError, match=r"Aircraft .*has no attribute 'thrust'"):
        made({"class": rules})
    rules = [
        {"name": "Aircraft", "attribute": {"altitude": {"hide": True}}},
        {"name": "Aircraft.Jet", "to": "Aircraft", "attribute": {"force": {}}},
    ]
    assert values(made({"class": rules}), "Aircraft.Jet", altitude=b"\0" * 8) == ({}, 1)


def test_interactions() -> None:
    radio, scrambled = (air.fom.interaction_class(name) for name in ("Radio", "Radio.Scrambled"))
    text, channel = (air.fom.parameter(radio, name) for name in ("text", "channel"))
    there = weather.fom.interaction_class("Radio")
    (text_there,) = weather.fom.interactions[there - 1].members
    # Given a rule that shortens, and one that hides a class below
    rules = [
        {"name": "Radio", "rate": 5.0, "parameter": {"text": {"length": 1}}},
        {"name": "Radio.Scrambled", "hide": True},
    ]
    translated = made({"interaction": rules})
    # Expect them, and what has no mapping to be left out
    sent = tuple(sorted([(text, b"\0\0\0\2\0a\0b"), (channel, b"\0\1")]))
    assert translated.interaction(0, radio, sent) == (there, ((text_there, b"\0\0\0\1\0a"),), 1)
    assert translated.heard(0) == tuple(sorted((radio, scrambled), reverse=True))
    assert translated.interaction(0, scrambled, sent) == (0, (), 2)
    # and the rate of the rule
    assert translated.limit(0, radio, of_interaction=True) == Limit(radio, 5.0, 5.0)
    assert translated.limit(0, A.cls("Aircraft")) is None


def test_a_rate_counts_for_classes_below() -> None:
    limited = made({"class": [{"name": "Aircraft", "to": "Plane", "rate": 0.5, "burst": 3.0}]})
    wanted = Limit(A.cls("Aircraft"), 0.5, 3.0)
    assert [limited.limit(0, A.cls(name)) for name in ("Aircraft", "Aircraft.Jet")] == [wanted, wanted]
    assert limited.limit(1, W.cls("Aircraft")) is None


def test_a_direction_that_does_not_go() -> None:
    one_way = translation(air, weather, way(), None)
    assert one_way.subscribed(1) == one_way.published(0) == ()
    assert one_way.published(1) != ()


def test_one_model_on_both_sides_changes_nothing() -> None:
    same = identity(air.fom)
    stealth = A.cls("Aircraft.Jet.Stealth")
    sent = tuple((each, b"any bytes") for each in A.attributes("Aircraft.Jet.Stealth", "altitude", "thrust"))
    assert same.values(0, stealth, sent) == (sent, 0)
    assert same.object_class(1, stealth) == stealth
    assert len(same.subscribed(0)) == 4


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ({"class": [{"name": "Aircraf"}]}, "side air has no object class 'Aircraf'. Did you mean Aircraft?"),
        (
            {"class": [{"name": "Aircraft", "to": "Plan"}]},
            "side weather has no object class 'Plan'. Did you mean Plane?",
        ),
        ({"class": [{"name": "Aircraft.Glider"}]}, "side weather has no object class 'Aircraft.Glider'"),
        (
            {"class": [{"name": "Aircraft", "attribute": {"altitud": {}}}]},
            "Aircraft of side air has no attribute 'altitud'. Did you mean altitude?",
        ),
        (
            {"class": [{"name": "Aircraft", "attribute": {"altitude": {"name": "heigt"}}}]},
            "altitude: HLAobjectRoot.Aircraft of side weather has no attribute 'heigt'",
        ),
        ({"class": [{"name": "Aircraft"}, {"name": "HLAobjectRoot.Aircraft"}]}, "has two rules"),
        ({"class": [{"name": "Aircraft", "burst": 2.0}]}, "a burst without a rate"),
        ({"class": [{"name": "Aircraft", "hide": True, "to": "Plane"}]}, "is hidden, and has rules"),
        (
            {"class": [{"name": "Aircraft", "attribute": {"altitude": {"unit": ["ft", "s"]}}}]},
            "altitude: ft is of dimension length, s is of time",
        ),
        (
            {"class": [{"name": "Aircraft", "to": "Plane", "attribute": {"callsign": {"name": "height"}}}]},
            'Give a table: table = { "1" = "one" }, or hide = true. Or leave it out: attribute.callsign = { hide',
        ),
        (
            {"class": [{"name": "Aircraft", "attribute": {"callsign": {"name": "force", "table": {"A": "FRIEND"}}}}]},
            "has callsign and force, which both are force there",
        ),
        (
            {"class": [{"name": "Aircraft", "attribute": {"altitude": {"type": ["HLAfloat64", "Metres"]}}}]},
            "no data type 'HLAfloat64' that can be decoded. Did you mean HLAfloat64",
        ),
        ({"interaction": [{"name": "Radoi"}]}, "side air has no interaction class 'Radoi'. Did you mean Radio?"),
        (
            {"interaction": [{"name": "Radio", "parameter": {"txt": {}}}]},
            "Radio of side air has no parameter 'txt'. Did you mean text?",
        ),
    ],
)
def test_a_rule_that_fits_no_model_is_told_with_what_was_meant(said: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigurationError) as raised:
        made(said)
    assert why in str(raised.value)


def types(tables: str) -> datatypes.Types:
    return datatypes.parsed(("m", f"<objectModel><dataTypes>{tables}</dataTypes></objectModel>".encode()))


def test_data_types_are_the_same_when_their_structure_is() -> None:
    # Given records of two models, by other names, and one that has other fields
    record = (
        "<simpleDataTypes><simpleData><name>{s}</name><representation>HLAfloat64BE</representation></simpleData>"
        "</simpleDataTypes><fixedRecordDataTypes><fixedRecordData><name>{r}</name><encoding>HLAfixedRecord</encoding>"
        "<field><name>x</name><dataType>{s}</dataType></field><field><name>{y}</name><dataType>{s}</dataType></field>"
        "</fixedRecordData></fixedRecordDataTypes>"
    )
    one, same, other = (
        types(record.format(s=s, r=r, y=y)).get(r) for s, r, y in (("A", "P", "y"), ("B", "Q", "y"), ("A", "P", "z"))
    )
    assert one is not None
    assert same is not None
    assert other is not None
    # Expect the first two to be the same
    assert one.codec.form == same.codec.form != other.codec.form


def test_data_types_that_are_none() -> None:
    # Given one that is made of itself
    loop = types("<arrayDataTypes><arrayData><name>A</name><dataType>A</dataType></arrayData></arrayDataTypes>")
    with pytest.raises(ErrorReadingFom, match="made of itself"):
        loop.get("A")
    # an enumeration of floating point numbers
    floats = types(
        "<enumeratedDataTypes><enumeratedData><name>E</name><representation>HLAfloat32BE</representation>"
        "<enumerator><name>A</name><value>1</value></enumerator></enumeratedData></enumeratedDataTypes>"
    )
    with pytest.raises(ErrorReadingFom, match="no whole numbers"):
        floats.get("E")
    # one that nobody has said anything of, which is no error, and no XML, which is
    assert types("").get("Nothing") is None
    with pytest.raises(ErrorReadingFom, match="the module m"):
        datatypes.parsed(("m", b"<objectModel"))
    with pytest.raises(ErrorReadingFom, match=r"the module nowhere\.xml can't be read"):
        modules_of(["nowhere.xml"])


# -- what is within records -----------------------------------------------------------------------------------------

SPACE = """<objectModel><objects><objectClass><name>HLAobjectRoot</name><objectClass><name>Aircraft</name>
  <attribute><name>spatial</name><dataType>Spatial</dataType></attribute>
  <attribute><name>route</name><dataType>Route</dataType></attribute>
  <attribute><name>label</name><dataType>Label</dataType></attribute></objectClass></objectClass></objects>
 <dataTypes>
  <simpleDataTypes><simpleData><name>Length</name><representation>{number}</representation><units>{unit}</units></simpleData>
  </simpleDataTypes>
  <enumeratedDataTypes><enumeratedData><name>Kind</name><representation>HLAoctet</representation>
   <enumerator><name>FIXED</name><value>{fixed}</value></enumerator><enumerator><name>MOVING</name><value>2</value></enumerator>
  </enumeratedData></enumeratedDataTypes>
  <arrayDataTypes><arrayData><name>Route</name><dataType>Point</dataType><cardinality>Dynamic</cardinality>
   <encoding>HLAvariableArray</encoding></arrayData></arrayDataTypes>
  <fixedRecordDataTypes><fixedRecordData><name>Point</name><encoding>HLAfixedRecord</encoding>
   <field><name>X</name><dataType>Length</dataType></field><field><name>{second}</name><dataType>HLAfloat64BE</dataType></field>
  </fixedRecordData><fixedRecordData><name>Label</name><encoding>HLAfixedRecord</encoding>
   <field><name>kind</name><dataType>Kind</dataType></field><field><name>text</name><dataType>{text}</dataType></field>
  </fixedRecordData></fixedRecordDataTypes>
  <variantRecordDataTypes><variantRecordData><name>Spatial</name><discriminant>kind</discriminant><dataType>Kind</dataType>
   <alternative><enumerator>FIXED</enumerator><name>at</name><dataType>Point</dataType></alternative>
   <encoding>HLAvariantRecord</encoding></variantRecordData></variantRecordDataTypes>
 </dataTypes></objectModel>"""


def space(
    name: str, number: str = "HLAfloat64BE", unit: str = "ft", second: str = "heading", *, fixed: int = 1,
    text: str = "HLAunicodeString",
) -> SideModel:  # fmt: skip
    return model(name, SPACE.format(number=number, unit=unit, second=second, fixed=fixed, text=text))


def sent_within(there: SideModel, value: Any, name: str = "spatial", **rule: Any) -> Any:
    """A value as it is on the other side, decoded; None: it is left out."""
    here = space("air")
    said = {"class": [{"name": "Aircraft", "attribute": {name: rule}}]} if rule else None
    translated = translation(here, there, way(said), way(back=True))
    cls, of = here.fom.object_class("Aircraft"), here.fom.codec(name.capitalize())
    data = of.encode(value) if not isinstance(value, bytes) else value
    found, _ = translated.values(0, cls, ((here.fom.attribute(cls, name), data),))
    return there.fom.codec(of.name).decode(found[0][1]) if found else None


def test_what_is_within_a_record_goes_in_the_unit_and_encoding_that_the_models_say() -> None:
    at = {"kind": "FIXED", "at": {"X": 1000.0, "heading": 45.0}}
    # Given a record whose field is in feet here; When it goes to where that is in metres, in another encoding, or not
    # Expect the number there, in records, alternatives and arrays, and the rest as it is
    metres = space("weather", unit="m")
    assert sent_within(metres, at) == {"kind": "FIXED", "at": {"X": 304.8, "heading": 45.0}}
    assert sent_within(metres, [at["at"]] * 2, "route") == [{"X": 304.8, "heading": 45.0}] * 2
    assert sent_within(metres, {"kind": "MOVING"}) == {"kind": "MOVING"}
    assert sent_within(space("weather", "HLAinteger32LE", "m"), at) == {
        "kind": "FIXED",
        "at": {"X": 305, "heading": 45.0},
    }
    assert sent_within(space("weather"), at) == at
    # and what can't be decoded, or does not fit, to be left out where something is changed
    assert sent_within(metres, b"\1") is None
    assert sent_within(space("weather", "HLAoctet", "m"), at) is None


def test_a_guard_is_on_a_field_of_a_record() -> None:
    at = {"kind": "FIXED", "at": {"X": 1234.5, "heading": 47.0}}
    coarse = {"at.X": {"unit": ["ft", "m"], "step": 100.0}, "at.heading": {"step": 10.0}}
    assert sent_within(space("weather"), at, field=coarse) == {"kind": "FIXED", "at": {"X": 400.0, "heading": 50.0}}
    assert sent_within(space("weather"), [at["at"]], "route", field={"X": {"step": 1000.0}}) == [
        {"X": 1000.0, "heading": 47.0}
    ]
    # and a discriminant may be called otherwise, if its alternative is there
    assert sent_within(space("weather"), {"kind": "MOVING"}, field={"kind": {"table": {"FIXED": "FIXED"}}}) is None
    with pytest.raises(ConfigurationError, match=r"spatial: Spatial has no number or text 'at.Y' within") as refused:
        sent_within(space("weather"), at, field={"at.Y": {"step": 1.0}})
    assert "at.X" in str(refused.value.hint)
    with pytest.raises(ConfigurationError, match=r"at.X: m is of dimension length, s is of time"):
        sent_within(space("weather"), at, field={"at.X": {"unit": ["m", "s"]}})
    with pytest.raises(ConfigurationError, match="Point is something else there"):
        sent_within(space("weather", second="speed"), at)
    with pytest.raises(ConfigurationError, match="not a record"):
        made({"class": [{"name": "Aircraft", "attribute": {"altitude": {"field": {"X": {"step": 1.0}}}}}]})


def test_an_enumerator_within_a_record_that_has_no_name_here_is_left_out_where_enumerations_differ() -> None:
    label, unknown = {"kind": "FIXED", "text": "x"}, {"kind": 10, "text": "x"}
    # Given an enumeration that has other numbers there, one of which no enumerator has here
    other = space("weather", fixed=10)
    # When a record has that number; Expect it not to become another enumerator there, as it does not by itself
    assert sent_within(other, label, "label") == label
    assert sent_within(other, unknown, "label") is None
    assert sent_within(other, {"kind": 10}) is None
    # but to go as it is where both have one enumeration, and where a rule says what it is
    assert sent_within(space("weather"), unknown, "label", field={"text": {"length": 3}}) == unknown
    said = {"kind": {"table": {"10": "MOVING"}}}
    assert sent_within(other, unknown, "label", field=said) == {"kind": "MOVING", "text": "x"}


def test_a_text_within_a_record_has_the_rules_of_a_text() -> None:
    label = {"kind": "FIXED", "text": "hello"}
    assert sent_within(space("weather"), label, "label", field={"text": {"length": 2}}) == {**label, "text": "he"}
    bye = {"text": {"table": {"hello": "bye"}}}
    assert sent_within(space("weather"), label, "label", field=bye) == {**label, "text": "bye"}
    assert sent_within(space("weather"), {**label, "text": "else"}, "label", field=bye) is None
    # It goes in the encoding that the other side has
    ascii_there = space("weather", text="HLAASCIIstring")
    assert sent_within(ascii_there, label, "label") == label
    assert sent_within(ascii_there, {**label, "text": "\u00e9"}, "label") is None
    with pytest.raises(ConfigurationError, match=r"text: HLAunicodeString is not a number"):
        sent_within(space("weather"), label, "label", field={"text": {"step": 1.0}})
