"""Object models: what modules say together, and what is refused."""

from __future__ import annotations

import pytest

from jbi_pubsub.hla.exceptions import ErrorReadingFom, InconsistentFom, NameNotFound
from jbi_pubsub.hla.fom import PRIVILEGE, parsed

MODULE = b"""<objectModel xmlns="http://standards.ieee.org/IEEE1516-2010"><objects><objectClass>
<name>HLAobjectRoot</name>%s</objectClass></objects></objectModel>"""


def cls(name: bytes, *attributes: bytes, inner: bytes = b"") -> bytes:
    rows = b"".join(b"<attribute><name>%s</name><order>Receive</order></attribute>" % each for each in attributes)
    return b"<objectClass><name>%s</name>%s%s</objectClass>" % (name, rows, inner)


def test_a_class_has_the_attributes_of_those_above_it(air: bytes) -> None:
    fom = parsed(("air.xml", air))
    aircraft = fom.objects[fom.object_class("HLAobjectRoot.Vehicle.Aircraft") - 1]
    assert [fom.attributes[each - 1].name for each in aircraft.members] == [PRIVILEGE, "position", "callsign"]
    assert fom.object_class("Vehicle.Aircraft") == aircraft.handle
    assert [fom.objects[each - 1].name.rpartition(".")[2] for each in aircraft.above] == [
        "Aircraft", "Vehicle", "HLAobjectRoot",
    ]  # fmt: skip
    position = fom.attributes[fom.attribute(aircraft.handle, "position") - 1]
    assert (position.data_type, position.order) == ("HLAfloat64BE", "timestamp")
    mayday = fom.interactions[fom.interaction_class("Radio.Mayday") - 1]
    assert [fom.parameters[each - 1].name for each in mayday.members] == ["text", "souls"]
    assert mayday.order == "timestamp"


def test_modules_make_the_same_model_in_whichever_order() -> None:
    # Given a module that extends a class of another one, which it names without attributes
    base = ("base", MODULE % cls(b"Vehicle", b"position"))
    more = ("more", MODULE % cls(b"Vehicle", inner=cls(b"Ship", b"draught")))
    # Expect one model, with the same handles for all
    assert parsed(base, more) == parsed(more, base)
    assert parsed(base, more).digest != parsed(base).digest
    ship = parsed(base, more).object_class("Vehicle.Ship")
    assert parsed(base, more).attribute(ship, "position")


def test_who_means_something_else_is_told_what_is_near(air: bytes) -> None:
    fom = parsed(("air.xml", air))
    with pytest.raises(NameNotFound, match=r"Did you mean HLAobjectRoot.Vehicle.Aircraft"):
        fom.object_class("HLAobjectRoot.Vehicle.Aircaft")
    with pytest.raises(NameNotFound, match="Did you mean position"):
        fom.attribute(fom.object_class("Vehicle"), "postion")
    with pytest.raises(NameNotFound):
        fom.parameter(fom.interaction_class("Radio"), "souls")


def test_without_modules_there_are_the_roots() -> None:
    fom = parsed()
    assert fom.objects[fom.object_class("HLAobjectRoot") - 1].members == (fom.privilege,)
    assert fom.interaction_class("HLAinteractionRoot") == 1


@pytest.mark.parametrize(
    ("data", "error", "word"),
    [
        (b"", ErrorReadingFom, "m.xml"),
        (b"<a/>", ErrorReadingFom, "root is a"),
        (b"<!DOCTYPE a [<!ENTITY b 'c'>]><objectModel>&b;</objectModel>", ErrorReadingFom, "m.xml"),
        (MODULE % cls(b"9lives"), ErrorReadingFom, "m.xml:2: '9lives' is no name"),
        (MODULE % b"<objectClass/>", ErrorReadingFom, "is no name"),
        (MODULE % cls(b"A", b"x", b"x"), InconsistentFom, "twice"),
        (MODULE % cls(b"A", b"x", inner=cls(b"B", b"x")), InconsistentFom, "a class above it has"),
        (MODULE % (cls(b"A", b"x") + cls(b"A", b"y")), InconsistentFom, "m.xml:2 and m.xml:2 say different things"),
        (MODULE.replace(b"HLAobjectRoot", b"Lost") % b"", ErrorReadingFom, "stands at the top"),
        (MODULE % cls(b"A", b"x").replace(b"Receive", b"Random"), ErrorReadingFom, "no such order: 'Random'"),
    ],
)
def test_a_module_that_is_none_is_refused_in_a_line(data: bytes, error: type[Exception], word: str) -> None:
    with pytest.raises(error, match=word) as caught:
        parsed(("m.xml", data))
    assert "\n" not in str(caught.value)


def test_classes_nested_without_end_are_refused() -> None:
    inner = b""
    for _ in range(70):
        inner = cls(b"A", inner=inner)
    with pytest.raises(ErrorReadingFom, match="deep"):
        parsed(("deep.xml", MODULE % inner))
