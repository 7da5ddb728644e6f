"""What a bridge does to one element: units, encodings, grids, tables."""

from __future__ import annotations

import math
import struct
from decimal import Decimal, localcontext
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jbi_pubsub.bridge.elements import (
    ALSO,
    CODECS,
    LONGEST,
    UNITS,
    ElementChange,
    ElementRule,
    change_of,
    changed,
    codec_of,
    conversion,
    enumeration,
    opaque,
)
from jbi_pubsub.core.errors import ConfigurationError

NUMBERS = sorted(name for name, codec in CODECS.items() if codec.kind == "number")
WHOLE = sorted(name for name, codec in CODECS.items() if codec.is_whole)


def change(source: str, target: str = "", **rule: Any) -> ElementChange | None:
    return change_of(ElementRule(**rule), CODECS[source], CODECS[target or source])


def through(value: Any, source: str, target: str = "", **rule: Any) -> Any:
    """A value as it comes to the other side; None: it is left out."""
    done = changed(change(source, target, **rule), CODECS[source].encode(value))
    return None if done is None else CODECS[target or source].decode(done)


@pytest.mark.parametrize(
    ("value", "units", "there"),
    [
        (1000.0, ("ft", "m"), 304.8),
        (304.8, ("m", "ft"), 1000.0),
        (1.0, ("nmi", "km"), 1.852),
        (180.0, ("deg", "rad"), math.pi),
        (math.pi, ("rad", "deg"), 180.0),
        (100.0, ("kt", "m/s"), 100 * 1852 / 3600),
        (100.0, ("kt", "km h-1"), 185.2),
        (36.0, ("km/h", "m s-1"), 10.0),
        (0.0, ("degC", "K"), 273.15),
        (-40.0, ("degC", "degF"), -40.0),
        (212.0, ("degF", "degC"), 100.0),
        (451.0, ("degF", "K"), float((Fraction(451) + Fraction("459.67")) * 5 / 9)),
        (1013.25, ("hPa", "Pa"), 101325.0),
    ],
)
def test_units_are_exact(value: float, units: tuple[str, str], there: float) -> None:
    # Given a number in one unit, expect the nearest double of what it is in the other one
    assert through(value, "HLAfloat64BE", unit=units) == there


@given(
    st.floats(allow_nan=False, allow_infinity=False, min_value=-1e300, max_value=1e300),
    st.sampled_from(sorted(UNITS)), st.data(),
)  # fmt: skip
def test_a_conversion_is_rounded_once(value: float, one: str, data: Any) -> None:
    # Given two units of a dimension, compared with a reckoning in decimals of 120 digits
    other = data.draw(st.sampled_from(sorted(name for name in UNITS if UNITS[name].dimension == UNITS[one].dimension)))
    with localcontext(prec=120) as context:
        context.Emax, context.Emin = 10**6, -(10**6)
        a, b = UNITS[one], UNITS[other]
        base = Decimal(value) * Decimal(a.factor.numerator) / Decimal(a.factor.denominator)
        base += Decimal(a.offset.numerator) / Decimal(a.offset.denominator)
        base -= Decimal(b.offset.numerator) / Decimal(b.offset.denominator)
        wanted = float(base * Decimal(b.factor.denominator) / Decimal(b.factor.numerator))
    # Expect the same double, or that it is left out since it is too large
    assert through(value, "HLAfloat64BE", unit=(one, other)) == (None if math.isinf(wanted) else wanted)


@pytest.mark.parametrize(
    ("units", "why"),
    [
        (("m", "s"), "m is of dimension length, s is of time. Units of length: m, km"),
        (("deg", "degC"), "dimension angle"),
        (("metr", "m"), "no unit 'metr'. Did you mean metre"),
        (("m", "parsec"), "no unit 'parsec'"),
        (("nm", "m"), "no unit 'nm'"),
    ],
)
def test_units_that_are_unknown_or_of_two_dimensions_are_refused(units: tuple[str, str], why: str) -> None:
    with pytest.raises(ConfigurationError) as raised:
        change("HLAfloat64BE", unit=units)
    assert why in str(raised.value)


def test_other_spellings_are_of_units_that_there_are() -> None:
    assert {also: name for also, name in ALSO.items() if name not in UNITS} == {}
    assert set(ALSO).isdisjoint(UNITS)
    assert conversion("knots", "kt") is None


@given(st.sampled_from(NUMBERS), st.sampled_from(NUMBERS), st.integers(-(2**63), 2**64 - 1))
def test_a_number_keeps_its_value_in_another_encoding_or_is_left_out(source: str, target: str, value: int) -> None:
    # Given a whole number in any encoding that has it
    try:
        sent = CODECS[source].encode(value)
    except struct.error:
        return
    really = CODECS[source].decode(sent)  # of a float: the nearest
    # When it goes as another one
    done = changed(change(source, target), sent)
    # Expect the nearest that the other encoding has, or none when it has none
    try:
        wanted = CODECS[target].encode(int(really) if target in WHOLE else float(really))
    except (struct.error, OverflowError):
        wanted = None
    assert done == wanted


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_no_number_passes_untouched_or_not_at_all(value: float) -> None:
    sent = CODECS["HLAfloat64BE"].encode(value)
    # Given nothing to be done, expect the bytes as they are
    assert changed(change("HLAfloat64BE"), sent) == sent
    # and else nothing
    assert changed(change("HLAfloat64BE", "HLAfloat32BE"), sent) is None
    assert changed(change("HLAfloat64BE", step=1.0), sent) is None
    assert changed(change("HLAfloat64BE", unit=("m", "ft")), sent) is None


@given(st.sampled_from(sorted(set(CODECS) - {"HLAopaqueData", "bytes"})), st.binary(max_size=24))
def test_no_bytes_make_it_raise(source: str, data: bytes) -> None:
    # Given any bytes, and changes of each kind, expect bytes or nothing
    kind = CODECS[source].kind
    rules: dict[str, list[tuple[str, dict[str, Any]]]] = {
        "number": [("HLAinteger16BE", {}), (source, {"step": 0.25, "unit": ("degF", "K")})],
        "text": [("HLAASCIIstring", {}), ("HLAunicodeString", {"length": 2})],
        "enumeration": [("HLAunicodeString", {}), (source, {"table": {"HLAtrue": "HLAfalse"}})],
    }
    for each in (change(source, target, **rule) for target, rule in rules[kind]):
        done = changed(each, data)
        assert done is None or each is None or each.target.decode(done) is not None


@pytest.mark.parametrize(
    ("source", "data"),
    [
        ("HLAfloat64BE", b"\0" * 7),
        ("HLAfloat64BE", b"\0" * 9),
        ("HLAfloat32LE", b""),
        ("HLAinteger32BE", b"\0" * 3),
        ("HLAoctet", b""),
    ],
)
def test_a_number_of_a_wrong_length_is_left_out(source: str, data: bytes) -> None:
    assert changed(change(source, "HLAfloat64LE"), data) is None


@pytest.mark.parametrize(
    "data",
    [b"", b"\0\0\0", b"\0\0\0\2a", b"\0\0\0\1ab", b"\xff\xff\xff\xff", b"\0\0\0\1\xe4", b"\x7f\xff\xff\xff"],
    ids=["empty", "no count", "too short", "too long", "below 0", "not ASCII", "huge"],
)
def test_a_text_that_is_none_is_left_out(data: bytes) -> None:
    assert changed(change("HLAASCIIstring", "HLAunicodeString"), data) is None


def test_text_in_the_two_encodings() -> None:
    # Given text in one of them, expect the bytes of the standard in the other
    assert changed(change("HLAASCIIstring", "HLAunicodeString"), b"\0\0\0\2ab") == b"\0\0\0\2\0a\0b"
    assert changed(change("HLAunicodeString", "HLAASCIIstring"), b"\0\0\0\2\0a\0b") == b"\0\0\0\2ab"
    # and of what the other one does not have, nothing
    assert through("Zürich", "HLAunicodeString", "HLAASCIIstring") is None
    # A character beyond the first plane is two of its elements
    assert changed(change("HLAunicodeString", length=1), b"\0\0\0\3\xd8\x3d\xde\x00\0x") == b"\0\0\0\2\xd8\x3d\xde\x00"
    # and half of one is none
    assert changed(change("HLAunicodeString", length=1), b"\0\0\0\1\xd8\x3d") is None


@pytest.mark.row("H-31")
def test_coarser() -> None:
    # Given steps as they are written in a file, expect the nearest multiples, halves to even
    assert through(0.2999, "HLAfloat64BE", step=0.1) == 0.3
    assert [through(value, "HLAfloat64BE", step=10.0) for value in (4.9, 5.0, 15.0, 15.1)] == [0.0, 0.0, 20.0, 20.0]
    # a grid that begins elsewhere
    assert [through(value, "HLAfloat64BE", step=1.0, origin=0.5) for value in (0.01, 0.99, 1.01)] == [0.5, 0.5, 1.5]
    # in the other side's unit
    assert through(1049, "HLAinteger32BE", unit=("ft", "m"), step=100.0) == 300
    # and shorter text
    assert through("London Heathrow", "HLAunicodeString", "HLAASCIIstring", length=6) == "London"
    assert through("abc", "HLAASCIIstring", length=0) == ""


@given(st.floats(-1e15, 1e15), st.sampled_from([0.001, 0.1, 0.3, 1.0, 7.0, 250.0]), st.sampled_from([0.0, 0.05, -3.0]))
def test_a_grid_keeps_what_is_on_it(value: float, step: float, origin: float) -> None:
    once = through(value, "HLAfloat64BE", step=step, origin=origin)
    # Expect what is on the grid to stay, and no more than half a step in between
    assert through(once, "HLAfloat64BE", step=step, origin=origin) == once
    assert abs(Fraction(once) - Fraction(value)) <= Fraction(step) * Fraction(501, 1000) + Fraction(abs(value)) / 2**52


def test_whole_numbers_are_rounded_to_the_nearest() -> None:
    assert [through(value, "HLAfloat64BE", "HLAinteger16LE") for value in (0.5, 1.5, -1.49, 2.51)] == [0, 2, -1, 3]
    assert through(32768.0, "HLAfloat64BE", "HLAinteger16LE") is None
    assert through(1e39, "HLAfloat64BE", "HLAfloat32BE") is None


def test_enumerations() -> None:
    # Given enumerations of two models, by other numbers and in another encoding
    ours = enumeration("Force", CODECS["HLAinteger32BE"], {"FRIEND": 1, "FOE": 2, "UNKNOWN": 3})
    theirs = enumeration("Side", CODECS["HLAoctet"], {"FOE": 7, "FRIEND": 9, "BLUE": 4})
    number = CODECS["HLAinteger32BE"]
    # Without a table names count; who has none there is left out, and so is a number that is no enumerator
    plain = change_of(ElementRule(), ours, theirs)
    assert [changed(plain, number.encode(n)) for n in (1, 2, 3, 4)] == [b"\x09", b"\x07", None, None]
    # With one it says what each is
    told = change_of(ElementRule(table={"FRIEND": "BLUE"}), ours, theirs)
    assert [changed(told, number.encode(n)) for n in (1, 2)] == [b"\x04", None]
    # also from numbers and text, and back
    assert through(2, "HLAinteger16BE", "HLAASCIIstring", table={"2": "two"}) == "two"
    assert through("two", "HLAASCIIstring", "HLAinteger16BE", table={"two": 2}) == 2
    assert through("HLAtrue", "HLAboolean", "HLAfloat32BE", table={"HLAtrue": 1.0, "HLAfalse": 0.0}) == 1.0
    assert through("HLAtrue", "HLAboolean", "HLAASCIIstring") == "HLAtrue"


@pytest.mark.parametrize(
    ("source", "target", "rule", "why"),
    [
        ("HLAfloat64BE", "HLAASCIIstring", {}, "kind number, HLAASCIIstring is of text. Give a table"),
        ("HLAASCIIstring", "", {"unit": ("m", "ft")}, "neither unit nor step"),
        ("HLAASCIIstring", "", {"step": 1.0}, "neither unit nor step"),
        ("HLAfloat64BE", "", {"length": 3}, "length is for text"),
        ("HLAASCIIstring", "", {"length": -1}, "length is for text, and not below 0"),
        ("HLAfloat64BE", "", {"step": 0.0}, "not above 0"),
        ("HLAfloat64BE", "", {"step": math.nan}, "no numbers"),
        ("HLAfloat64BE", "", {"step": math.inf}, "no numbers"),
        ("HLAfloat64BE", "", {"origin": 1.0}, "origin without a step"),
        ("HLAfloat64BE", "", {"table": {}, "step": 1.0}, "a table together with"),
        ("HLAoctet", "", {"table": {"1": 256}}, "'256', which HLAoctet does not have"),
        ("HLAinteger16BE", "", {"table": {"1": "x"}}, "'x', which HLAinteger16BE does not have"),
        ("HLAinteger16BE", "HLAboolean", {"table": {"1": "true"}}, "'true', which HLAboolean does not have"),
        ("HLAopaqueData", "HLAASCIIstring", {}, "not known well enough"),
        ("HLAopaqueData", "", {"table": {}}, "not known well enough"),
    ],
)
def test_a_rule_that_can_not_be_is_refused(source: str, target: str, rule: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigurationError) as raised:
        change(source, target, **rule)
    assert why in str(raised.value)


def test_data_types_that_are_not_known() -> None:
    # Given an attribute of which it is not known what it is: it goes as it is
    assert change_of(ElementRule(), None, None) is None
    assert changed(None, b"anything") == b"anything"
    assert change_of(ElementRule(), opaque("Spatial"), opaque("Spatial")) is None
    # but for rules that have to look into it
    for rule in (ElementRule(step=1.0), ElementRule(unit=("m", "ft")), ElementRule(length=1), ElementRule(table={})):
        with pytest.raises(ConfigurationError, match="data type is needed"):
            change_of(rule, None, None)
    with pytest.raises(ConfigurationError, match="Did you mean HLAfloat64BE"):
        codec_of("HLAfloat64B")
    with pytest.raises(ConfigurationError, match="no whole numbers"):
        enumeration("E", CODECS["HLAfloat32BE"], {"A": 1})


def test_what_is_larger_than_any_text_is_not_looked_into() -> None:
    data = CODECS["HLAASCIIstring"].encode("a" * LONGEST)
    assert changed(change("HLAASCIIstring", "HLAunicodeString"), data) is None
