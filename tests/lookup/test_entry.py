"""Entries: identity, canonical values, matching of one template against one entry."""

from __future__ import annotations

import dataclasses
from decimal import Decimal

import pytest
from extent import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from jbi_pubsub.core.errors import EntryError, IncompatibleEntryError
from jbi_pubsub.lookup.entry import (
    Entry,
    EntryClass,
    EntryRep,
    canonical,
    check_rep,
    define,
    entry_class,
    fits,
    matches,
    parse,
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Device(Entry):
    entry_name = "Device"
    building: str | None = None
    floor: int | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Printer(Device):
    entry_name = "Printer"
    colour: bool | None = None
    dpi: Decimal | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Scanner(Device):
    entry_name = "Scanner"


def test_a_subclass_has_the_fields_of_its_superclass_first():
    assert entry_class(Printer).fields == ("building", "floor", "colour", "dpi")
    assert [name for name, _ in entry_class(Printer).lineage] == ["Printer", "Device"]


def test_identity_is_the_name_with_its_fields_and_ancestors_wherever_it_comes_from():
    """A class and a definition of the same fields are one; another type, name or ancestor is another."""
    device = define("Device", {"building": str, "floor": int})
    assert device == entry_class(Device)
    assert define("Printer", {"colour": bool, "dpi": Decimal}, device) == entry_class(Printer)
    others = [
        define("Device", {"building": str, "floor": str}),
        define("Device", {"floor": int, "building": str}),
        define("Device", {"building": str}),
        define("Device2", {"building": str, "floor": int}),
    ]
    assert len({device.fingerprint, *(other.fingerprint for other in others)}) == 5
    assert (
        define("Printer", {"colour": bool}, others[0]).fingerprint
        != define("Printer", {"colour": bool}, device).fingerprint
    )


@pytest.mark.parametrize(
    ("template", "entry", "expected"),
    [
        (Device(), Printer(building="9"), True),
        (Device(building="9"), Printer(building="9", colour=True), True),
        (Printer(building="9"), Device(building="9"), False),
        (Scanner(), Printer(), False),
        (Printer(building="9", floor=1), Printer(building="9", floor=2), False),
        (Printer(colour=True), Printer(), False),
        (Printer(dpi=Decimal("1.0")), Printer(dpi=Decimal("1.00")), True),
        (Device(building=""), Device(building=""), True),
        (Device(building=""), Device(), False),
    ],
    ids=str,
)
def test_class_or_ancestor_and_every_set_field_equal(template, entry, expected):
    """LU.2.1; an unset field of an entry equals no set field of a template."""
    assert matches(template.rep(), entry.rep()) is expected
    assert fits(template.rep(), entry.rep()) is expected


def test_another_generation_is_an_error_for_matches_and_another_class_for_fits():
    old, new = define("Printer", {"colour": str}), define("Printer", {"colour": str, "dpi": str})
    template, entry = EntryRep(new, (None, None)), EntryRep(old, ("red",))
    with pytest.raises(IncompatibleEntryError) as raised:
        matches(template, entry)
    assert raised.value.facts["entry_class"] == "Printer"
    assert fits(template, entry) is False


def test_an_entry_that_lacks_the_fields_it_claims_matches_no_set_field():
    """Given a forged class with an ancestor's identity but fewer values."""
    device = entry_class(Device)
    forged = EntryRep(EntryClass("Forged", ("building",), (("Forged", "0"), device.lineage[0])), ("9",))
    assert matches(Device(building="9").rep(), forged) is True
    assert matches(Device(building="9", floor=1).rep(), forged) is False


GOOD = entry_class(Printer)


@pytest.mark.parametrize(
    ("cls", "values", "fault"),
    [
        (EntryClass("A", ("x",), (("A", "1"),)), (), "one value per field"),
        (EntryClass("A", ("x",), ()), ("v",), "begin with itself"),
        (EntryClass("A", ("x",), (("B", "1"),)), ("v",), "begin with itself"),
        (EntryClass("A", (), (("A", "1"), ("A", "2"))), (), "names a class twice"),
        (EntryClass("A", ("x", "x"), (("A", "1"),)), ("v", "v"), "names a field twice"),
        (EntryClass("\0A", (), (("\0A", "1"),)), (), "control character"),
        (EntryClass("", (), (("", "1"),)), (), "empty"),
        (EntryClass("A", (), (("A", "1"), ("\nB", "2"))), (), "control character"),
        (EntryClass("A", tuple(map(str, range(257))), (("A", "1"),)), ("",) * 257, "too large"),
        (EntryClass("A0", (), tuple((f"A{n}", "1") for n in range(33))), (), "too large"),
    ],
)
def test_a_malformed_entry_is_refused(cls, values, fault):
    with pytest.raises(EntryError, match=fault):
        check_rep(EntryRep(cls, values))


def test_a_well_formed_entry_passes():
    rep = Printer(building="9").rep()
    assert check_rep(rep) is rep
    assert rep.as_dict() == {"building": "9", "floor": None, "colour": None, "dpi": None}


@pytest.mark.row("J-41")
@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, None), ("1.0", "1.0"), (True, "true"), (False, "false"), (7, "7"), (-7, "-7"),
        (1.0, "1.0"), (-0.0, "0.0"), (float("inf"), "INF"), (float("-inf"), "-INF"), (float("nan"), "NaN"),
        (Decimal("1.00"), "1"), (Decimal("-0.50"), "-0.5"), (Decimal("-0"), "0"), (Decimal("1E3"), "1000"),
        (Decimal("0.000001"), "0.000001"),
    ],
)  # fmt: skip
def test_values_have_one_canonical_text(value, text):
    """XML Schema part 2, canonical representations; text stays as it is, so "1.0" and "1.00" differ as strings."""
    assert canonical(value) == text


@pytest.mark.parametrize(
    "value",
    [Decimal("NaN"), Decimal("Infinity"), b"x", ["x"], object()],
    ids=["NaN", "Infinity", "bytes", "list", "object"],
)
def test_anything_else_is_no_value(value):
    with pytest.raises(EntryError, match="not an entry value"):
        canonical(value)


@settings(derandomize=True, max_examples=examples(200))
@given(
    st.one_of(
        st.integers(),
        st.booleans(),
        st.text(),
        st.floats(allow_nan=False),
        st.decimals(allow_nan=False, allow_infinity=False),
    )
)
def test_canonical_text_gives_the_value_back(value):
    assert parse(canonical(value), type(value)) == value


@pytest.mark.parametrize(("text", "kind"), [("x", int), ("TRUE", bool), ("1,5", Decimal), ("", float)])
def test_text_of_another_type_is_refused(text, kind):
    with pytest.raises(EntryError, match=f"not of type {kind.__name__}"):
        parse(text, kind)


@pytest.mark.parametrize(
    ("field", "value"),
    [("building", 1), ("floor", "ground"), ("floor", 1.5), ("floor", True), ("colour", 1), ("dpi", 300.0)],
)
def test_a_value_of_another_type_than_its_field_is_refused(field, value):
    with pytest.raises(EntryError, match=rf"Printer\.{field} is {value!r}"):
        Printer(**{field: value}).rep()


def test_a_whole_number_equals_the_same_number_in_a_field_of_numbers():
    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Gauge(Entry):
        height: float | None = None

    assert Gauge(height=1).rep() == Gauge(height=1.0).rep()
    assert Printer(dpi=300).rep() == Printer(dpi=Decimal("300.0")).rep()


def test_an_entry_comes_back_from_its_rep_also_as_its_superclass():
    printer = Printer(building="9", floor=3, colour=True, dpi=Decimal("600"))
    assert Printer.from_rep(printer.rep()) == printer
    assert Device.from_rep(printer.rep()) == Device(building="9", floor=3)
    with pytest.raises(EntryError, match="Device is not a Printer"):
        Printer.from_rep(Device().rep())


def test_classes_that_can_not_be_entries_are_refused():
    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Listed(Entry):
        field: list[str] | None = None

    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Both(Printer, Scanner):
        pass

    for cls in (Listed, Both):
        with pytest.raises(EntryError):
            cls().rep()
    with pytest.raises(EntryError, match="inherited fields again"):
        define("Printer", {"building": str}, entry_class(Device))
