"""Object models: what modules say together, and what is refused."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jbi_pubsub.hla.exceptions import ErrorReadingFom, InconsistentFom, NameNotFound
from jbi_pubsub.hla.fom import KEPT_BYTES, PRIVILEGE, Fom, parsed

MODULE = b"""<objectModel xmlns="http://standards.ieee.org/IEEE1516-2010"><objects><objectClass>
<name>HLAobjectRoot</name>%s</objectClass></objects></objectModel>"""


def cls(name: bytes, *attributes: bytes, inner: bytes = b"") -> bytes:
    rows = b"".join(b"<attribute><name>%s</name><order>Receive</order></attribute>" % each for each in attributes)
    return b"<objectClass><name>%s</name>%s%s</objectClass>" % (name, rows, inner)


@pytest.mark.row("H-04")
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


def test_deletions_go_in_time_stamp_order_unless_a_model_says_otherwise() -> None:
    # Given models that do not speak of HLAprivilegeToDeleteObject, and one that says an order; Expect the standard's
    # order, and what is said
    def order(fom: Fom) -> str:
        return fom.attributes[fom.privilege - 1].order

    silent = parsed(("base", MODULE % cls(b"Vehicle", b"position")))
    row = b"<attribute><name>%s</name><order>Receive</order></attribute>" % PRIVILEGE.encode()
    assert (order(silent), order(parsed())) == ("timestamp", "timestamp")
    assert order(parsed(("base", MODULE % (row + cls(b"Vehicle", b"position"))))) == "receive"
    # Expect the digest under which saves of before the rule are filed
    assert silent.digest == "35478cf12d69f6f0f0a7ffdb602c05b1"


def interactions(*classes: bytes, root: bytes = b"") -> bytes:
    return (
        b"<objectModel><interactions><interactionClass><name>HLAinteractionRoot</name>%s%s"
        b"</interactionClass></interactions></objectModel>" % (root, b"".join(classes))
    )


def radio(*parameters: bytes, order: bytes = b"") -> bytes:
    rows = b"".join(b"<parameter><name>%s</name></parameter>" % each for each in parameters)
    said = b"<order>%s</order>" % order if order else b""
    return b"<interactionClass><name>Radio</name>%s%s</interactionClass>" % (said, rows)


PRIVILEGED = b"<attribute><name>%s</name><dataType>HLAtoken</dataType><order>TimeStamp</order></attribute>"

MODULES = {
    "vehicle": MODULE % cls(b"Vehicle", b"position"),
    "the same": MODULE % cls(b"Vehicle", b"position"),
    "vehicle with more": MODULE % cls(b"Vehicle", b"position", b"speed"),
    "ship": MODULE % cls(b"Vehicle", inner=cls(b"Ship", b"draught")),
    "ship with a position": MODULE % cls(b"Vehicle", inner=cls(b"Ship", b"position")),
    "standard": MODULE % (PRIVILEGED % PRIVILEGE.encode()),
    "standard with another type": MODULE % (b"<attribute><name>%s</name></attribute>" % PRIVILEGE.encode()),
    "root with an id": MODULE % b"<attribute><name>id</name></attribute>",
    "root with all": MODULE % (PRIVILEGED % PRIVILEGE.encode() + b"<attribute><name>id</name></attribute>"),
    "root with a name": MODULE % b"<attribute><name>name</name></attribute>",
    "vehicle with an id": MODULE % cls(b"Vehicle", b"id"),
    "radio": interactions(radio(b"text")),
    "radio by time": interactions(radio(b"text", order=b"TimeStamp")),
    "radio named": interactions(radio(), root=b"<order>TimeStamp</order>"),
    "radio named by time": interactions(radio(order=b"TimeStamp"), root=b"<order>Receive</order>"),
    "radio named as it comes": interactions(radio(order=b"Receive")),
    "no module": b"<a/>",
    "no xml": b"<",
}


@settings(derandomize=True, deadline=None, max_examples=200)
@given(st.lists(st.sampled_from(sorted(MODULES)), unique=True, max_size=6), st.integers(0, 6), st.integers(1, 3))
def test_what_is_added_later_leaves_handles_as_they_were(names: list[str], first: int, size: int) -> None:
    # Given a model, and further modules as additions
    modules = [(name, MODULES[name]) for name in names]
    added = [modules[at : at + size] for at in range(first, len(modules), size)]
    try:
        whole = parsed(*modules[:first], added=added)
    except (InconsistentFom, ErrorReadingFom) as exc:
        with pytest.raises(type(exc)):  # in whichever way they come
            parsed(*modules)
        return
    # Expect what they say together to be what they say at once
    assert said(whole) == said(parsed(*modules))
    # and each handle, at each time, to stand for the same
    for count in range(len(added)):
        try:
            before = parsed(*modules[:first], added=added[:count])
        except InconsistentFom:  # it would not have come so far
            continue
        assert all(whole.names[name] == handle for name, handle in before.names.items())
        for members, all_members in ((before.attributes, whole.attributes), (before.parameters, whole.parameters)):
            assert [each.name for each in members] == [each.name for each in all_members[: len(members)]]
        for some, others in ((before.objects, whole.objects), (before.interactions, whole.interactions)):
            assert all(set(one.members) <= set(other.members) for one, other in zip(some, others, strict=False))


def said(fom: Fom) -> dict[str, object]:
    """A model without handles; what the order of a root is makes no difference."""
    return {
        each.name: ({members[at - 1] for at in each.members}, each.order if "." in each.name else "", each.dimensions)
        for classes, members in ((fom.objects, fom.attributes), (fom.interactions, fom.parameters))
        for each in classes
    } | {each.name: each for each in fom.dimensions}


def outcome(modules: Sequence[tuple[str, bytes]]) -> object:
    try:
        return parsed(*modules)
    except (ErrorReadingFom, InconsistentFom) as exc:
        return type(exc), str(exc)


def test_a_small_model_is_read_once_and_a_large_one_is_not_kept() -> None:
    # Given a model that an RTI, its federates and bridges read; Expect the same one, and of a large one another
    small, large = MODULES["ship"], MODULES["ship"] + b" " * KEPT_BYTES
    assert parsed(("ship", small)) is parsed(("ship", small))
    assert parsed(("ship", large)) is not parsed(("ship", large))
    assert parsed(("ship", large)).digest == parsed(("ship", small)).digest


@pytest.mark.parametrize("step", [4, pytest.param(1, marks=pytest.mark.slow)])
def test_modules_make_the_same_model_or_the_same_refusal_in_every_order(step: int) -> None:
    models, refusals = 0, 0
    for modules in itertools.islice(itertools.combinations(MODULES.items(), 3), 0, None, step):
        first, *others = [outcome(each) for each in itertools.permutations(modules)]
        assert all(each == first for each in others), [name for name, _ in modules]
        models, refusals = models + isinstance(first, Fom), refusals + (not isinstance(first, Fom))
    assert min(models, refusals) > 200 // step


@pytest.mark.parametrize(
    ("names", "members"),
    [
        (("vehicle", "root with an id"), [PRIVILEGE, "id", "position"]),
        (("standard", "vehicle", "root with an id", "ship"), [PRIVILEGE, "id", "position"]),
        (("root with an id", "root with all", "vehicle"), [PRIVILEGE, "id", "position"]),
        (("standard", "vehicle"), [PRIVILEGE, "position"]),
    ],
)
def test_modules_that_only_name_the_root_go_with_those_that_say_what_it_has(
    names: tuple[str, ...], members: list[str]
) -> None:
    fom = parsed(*((name, MODULES[name]) for name in names))
    vehicle = fom.objects[fom.object_class("Vehicle") - 1]
    assert sorted(fom.attributes[each - 1].name for each in vehicle.members) == sorted(members)


@pytest.mark.parametrize(
    ("names", "word"),
    [
        (("standard", "standard with another type"), f"HLAobjectRoot: {PRIVILEGE}"),
        (("root with an id", "root with a name"), "HLAobjectRoot: id, name"),
        (("radio named by time", "radio named as it comes"), "Radio: order"),
        (("radio", "radio by time", "radio named as it comes"), ""),
        (("radio named", "radio named by time"), ""),
    ],
)
def test_modules_that_say_different_things_do_not_go_together(names: tuple[str, ...], word: str) -> None:
    modules = [(name, MODULES[name]) for name in names]
    if word:
        with pytest.raises(InconsistentFom, match=word):
            parsed(*modules)
    else:
        fom = parsed(*modules)
        assert fom.interactions[fom.interaction_class("Radio") - 1].order == "timestamp"


@pytest.mark.row("H-04")
def test_who_means_something_else_is_told_what_is_near(air: bytes) -> None:
    fom = parsed(("air.xml", air))
    with pytest.raises(NameNotFound, match=r"Did you mean HLAobjectRoot.Vehicle.Aircraft"):
        fom.object_class("HLAobjectRoot.Vehicle.Aircaft")
    with pytest.raises(NameNotFound, match="Did you mean position"):
        fom.attribute(fom.object_class("Vehicle"), "postion")
    for name in ("Aircraft", "aircaft", "AIRCRAFT", "Aircraft.Vehicle.Aircraft"):
        with pytest.raises(NameNotFound, match=r"Did you mean HLAobjectRoot.Vehicle.Aircraft\?"):
            fom.object_class(name)
    with pytest.raises(NameNotFound, match="Did you mean callsign"):
        fom.attribute(fom.object_class("Vehicle.Aircraft"), "CallSign")
    with pytest.raises(NameNotFound, match="Did you mean HLAunicodeString"):
        fom.codec("HLAUnicodeString")
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
        (MODULE % cls(b"9lives"), ErrorReadingFom, "m.xml:2: '9lives' is not a name"),
        (MODULE % b"<objectClass/>", ErrorReadingFom, "is not a name"),
        (MODULE % cls(b"A", b"x", b"x"), InconsistentFom, "twice"),
        (MODULE % cls(b"A", b"x", inner=cls(b"B", b"x")), InconsistentFom, "a class above it has"),
        (MODULE % (cls(b"A", b"x") + cls(b"A", b"y")), InconsistentFom, "m.xml:2 and m.xml:2 say different things"),
        (MODULE.replace(b"HLAobjectRoot", b"Lost") % b"", ErrorReadingFom, "is at the top level"),
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
