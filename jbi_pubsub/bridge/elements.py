"""Changes of a bridge to one element on its way: other units, another encoding, coarser, other names.

Pure. A `ElementChange` is what a rule of the file means, checked when it is made; `changed` gives the bytes for the
other side, or None for a value that can't be decoded or does not fit there: whoever asks counts that.

Rules:
- Numbers are exact from end to end: units are linear rules of rational numbers, grids are decimals as written in the
  file, and the result is rounded once, to the nearest value that the other encoding has, halves to even.
- What nothing is to be done to keeps its bytes, whatever they are; what is touched is decoded, and so has to be good:
  no NaN, nothing infinite, no byte too many.
- Encodings are those of the standard (IEEE 1516.2-2010, 4.13.4 and 4.13.6 to 4.13.8), called as there.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any, Final, Literal, NamedTuple

from immutables import Map

from jbi_pubsub.core.errors import ConfigurationError, JbiError
from jbi_pubsub.core.near import near_hint

Value = int | float | str | bytes
Kind = Literal["number", "text", "enumeration", "octets", "structure"]
"""Octets and structures are not looked into here."""

PI: Final = Fraction("3.14159265358979323846264338327950288419716939937510582097494459")
"""As many digits as make every double that is converted with it the nearest one."""

LONGEST: Final = 1 << 20
"""Bytes of one value that is decoded; one that is longer is left out."""


# -- units ----------------------------------------------------------------------------------------------------------


class Unit(NamedTuple):
    """A unit: value x factor + offset is in the dimension's own unit (SI)."""

    dimension: str
    factor: Fraction
    offset: Fraction = Fraction(0)


def _units(dimension: str, **factors: str | Fraction | tuple[str, str]) -> dict[str, Unit]:
    made = {}
    for name, said in factors.items():
        factor, offset = said if isinstance(said, tuple) else (said, "0")
        made[name] = Unit(dimension, Fraction(factor), Fraction(offset))
    return made


_FOOT: Final = Fraction("0.3048")  # international foot and pound: 1959, exact
_MILE: Final = Fraction("1609.344")
_NAUTICAL: Final = Fraction(1852)
_POUND: Final = Fraction("0.45359237")

UNITS: Final[Mapping[str, Unit]] = {
    **_units("length", m="1", km="1000", cm="0.01", mm="0.001", ft=_FOOT, mi=_MILE, nmi=_NAUTICAL),
    **_units("angle", rad="1", deg=PI / 180, grad=PI / 200, arcmin=PI / 10800, arcsec=PI / 648000, rev=2 * PI),
    **_units("temperature", K="1", degC=("1", "273.15")),
    "degF": Unit("temperature", Fraction(5, 9), Fraction("459.67") * Fraction(5, 9)),
    **_units("time", s="1", ms="0.001", us="0.000001", min="60", h="3600", d="86400"),
    **_units("speed", kt=_NAUTICAL / 3600, mph=_MILE / 3600),
    "m/s": Unit("speed", Fraction(1)),
    "km/h": Unit("speed", Fraction(1000, 3600)),
    "ft/s": Unit("speed", _FOOT),
    "ft/min": Unit("speed", _FOOT / 60),
    "rad/s": Unit("angular speed", Fraction(1)),
    "deg/s": Unit("angular speed", PI / 180),
    "m/s2": Unit("acceleration", Fraction(1)),
    "ft/s2": Unit("acceleration", _FOOT),
    "g0": Unit("acceleration", Fraction("9.80665")),
    **_units("mass", kg="1", g="0.001", t="1000", lb=_POUND),
    **_units("pressure", Pa="1", hPa="100", kPa="1000", bar="100000", mbar="100", atm="101325"),
    **_units("frequency", Hz="1", kHz="1000", MHz="1000000", GHz="1000000000"),
    **_units("ratio", percent="0.01"),
    "1": Unit("ratio", Fraction(1)),
}

ALSO: Final[Mapping[str, str]] = {
    "m s-1": "m/s", "m/sec": "m/s", "mps": "m/s", "km h-1": "km/h", "kmh": "km/h", "kph": "km/h", "knot": "kt",
    "knots": "kt", "kn": "kt", "ft min-1": "ft/min", "fpm": "ft/min", "m s-2": "m/s2", "m/s^2": "m/s2",
    "rad s-1": "rad/s", "deg s-1": "deg/s", "meter": "m", "meters": "m", "metre": "m", "metres": "m", "foot": "ft",
    "feet": "ft", "NM": "nmi", "degree": "deg", "degrees": "deg", "radian": "rad", "radians": "rad",
    "kelvin": "K", "celsius": "degC", "fahrenheit": "degF", "second": "s", "seconds": "s", "sec": "s", "%": "percent",
    "kilometer": "km", "kilometers": "km", "kilogram": "kg", "kilograms": "kg", "hertz": "Hz",
}  # fmt: skip
"""Other spellings of units, in object models above all; `nm` is two units, and none here."""


class LinearMap(NamedTuple):
    """value -> (value x slope + shift) / over, in whole numbers: exact."""

    slope: int
    shift: int
    over: int


def unit_of(name: str) -> Unit:
    """Raises ConfigurationError for one that is not known."""
    found = UNITS.get(ALSO.get(name, name))
    if found is None:
        raise ConfigurationError(f"no unit {name[:60]!r}", hint=near_hint(name, [*UNITS, *ALSO], len(UNITS)))
    return found


def is_unit(name: str) -> bool:
    """Whether there is such a unit."""
    return ALSO.get(name, name) in UNITS


def conversion(source: str, target: str) -> LinearMap | None:
    """The rule from one unit to another; None when nothing is to be done. Raises ConfigurationError for units that are
    not known, or of two dimensions."""
    one, other = unit_of(source), unit_of(target)
    if one.dimension != other.dimension:
        raise ConfigurationError(
            f"{source} is of dimension {one.dimension}, {target} is of {other.dimension}",
            hint=f"Units of {one.dimension}: {', '.join(n for n, u in UNITS.items() if u.dimension == one.dimension)}",
        )
    slope, shift = one.factor / other.factor, (one.offset - other.offset) / other.factor
    if slope == 1 and shift == 0:
        return None
    over = slope.denominator * shift.denominator
    return LinearMap(int(slope * over), int(shift * over), over)


# -- encodings ------------------------------------------------------------------------------------------------------


class Codec(NamedTuple):
    """An encoding. `decode` and `encode` raise ValueError, OverflowError, struct.error, UnicodeError."""

    name: str
    kind: Kind
    form: tuple[Any, ...]
    """The same for encodings that are the same, whatever they are called."""
    decode: Callable[[bytes], Value]
    encode: Callable[[Value], bytes]
    is_whole: bool = False
    """Its numbers are whole."""
    size: int = 0
    """Bytes of each value; 0: they differ."""


def _number(name: str, form: str) -> Codec:
    packed = struct.Struct(form)
    whole = form[1] not in "fd"
    return Codec(name, "number", (form,), lambda data: packed.unpack(data)[0], packed.pack, whole, packed.size)


def _numbers() -> dict[str, Codec]:
    forms = {"HLAfloat32": "f", "HLAfloat64": "d", "HLAinteger16": "h", "HLAinteger32": "i", "HLAinteger64": "q"}
    forms |= {"HLAunsignedInteger16": "H", "HLAunsignedInteger32": "I", "HLAunsignedInteger64": "Q"}  # of 2025
    found = {}
    for name, letter in forms.items():
        for end, order in (("BE", ">"), ("LE", "<")):
            found[name + end] = _number(name + end, order + letter)
    return found | {name: _number(name, ">B") for name in ("HLAoctet", "HLAbyte")}


def _counted(data: bytes, size: int) -> bytes:
    """The elements of a variable array of elements of so many bytes: their count comes first."""
    count = int.from_bytes(data[:4], "big", signed=True)
    if len(data) < 4 or count < 0 or len(data) - 4 != count * size:
        raise ValueError(f"{len(data)} bytes for {count} elements of {size} bytes")
    return data[4:]


def _text(name: str, coding: str, size: int) -> Codec:
    def encode(value: Value) -> bytes:
        encoded = str(value).encode(coding)
        return struct.pack(">i", len(encoded) // size) + encoded

    return Codec(name, "text", (coding,), lambda data: _counted(data, size).decode(coding), encode)


def _character(name: str, coding: str, size: int) -> Codec:
    def one(data: bytes) -> bytes:
        if len(data) != size:
            raise ValueError(f"{len(data)} bytes for one character")
        return data

    form = ("one", coding)
    return Codec(
        name,
        "text",
        form,
        lambda data: one(data).decode(coding),
        lambda value: one(str(value).encode(coding)),
        size=size,
    )


def opaque(name: str, form: tuple[Any, ...] = ()) -> Codec:
    """Codec of values that are not looked into. `form`: what makes it equal to another one; (): its name."""
    return Codec(name, "octets", form or (name,), bytes, _as_it_is)


def _as_it_is(value: Value) -> bytes:
    if not isinstance(value, bytes):
        raise ValueError("no octets")
    return value


def enumeration(name: str, base: Codec, names: Mapping[str, int]) -> Codec:
    """Codec of enumerators: values are their names. Raises ConfigurationError for a base without whole numbers."""
    if not base.is_whole:
        raise ConfigurationError(f"enumeration {name}: {base.name} has no whole numbers")
    numbers: dict[Value, Value] = {number: each for each, number in names.items()}
    known: dict[Value, Value] = dict(names.items())
    return Codec(
        name,
        "enumeration",
        ("enumeration", *base.form, *sorted(names.items())),
        lambda data: _enumerator(numbers, base.decode(data)),
        lambda value: base.encode(_enumerator(known, value)),
        size=base.size,
    )


def _enumerator(table: Mapping[Value, Value], key: Value) -> Value:
    found = table.get(key)
    if found is None:
        raise ValueError(f"no enumerator {key!r}")
    return found


def codecs() -> dict[str, Codec]:
    """Those of the standard, by name; `bytes` are values of which nobody has said what they are."""
    numbers = _numbers()
    boolean = enumeration("HLAboolean", numbers["HLAinteger32BE"], {"HLAfalse": 0, "HLAtrue": 1})
    texts = (_text("HLAASCIIstring", "ascii", 1), _text("HLAunicodeString", "utf-16-be", 2))
    characters = (_character("HLAASCIIchar", "ascii", 1), _character("HLAunicodeChar", "utf-16-be", 2))
    others = (boolean, *texts, *characters, opaque("HLAopaqueData"), opaque("bytes"))
    return numbers | {each.name: each for each in others}


CODECS: Final[Mapping[str, Codec]] = codecs()


def codec_of(name: str) -> Codec:
    """Raises ConfigurationError for one that is not known."""
    found = CODECS.get(name)
    if found is None:
        raise ConfigurationError(
            f"no data type {name[:100]!r} that can be decoded", hint=near_hint(name, sorted(CODECS))
        )
    return found


# -- changes --------------------------------------------------------------------------------------------------------


class Grid(NamedTuple):
    """The values that are left: origin + n x step, in the other side's unit."""

    step: Fraction
    origin: Fraction = Fraction(0)


class ElementChange(NamedTuple):
    """Steps of a change to an element, in this order."""

    source: Codec
    target: Codec
    line: LinearMap | None = None
    grid: Grid | None = None
    longest: int | None = None
    """Characters of a text that are left."""
    table: Map[str, str] | None = None
    """By what a value is called, what it is called there; what is not in it is left out."""


def changed(change: ElementChange | None, data: bytes) -> bytes | None:
    """The element for the other side; None: it can't be decoded, or does not fit. Without a change it stays so."""
    if change is None:
        return data
    if len(data) > LONGEST:
        return None
    try:
        return change.target.encode(value_there(change, change.source.decode(data)))
    except (ValueError, OverflowError, struct.error, KeyError, JbiError):  # of records JbiError
        return None


def value_there(change: ElementChange, value: Value) -> Value:
    """The value for the other side. Raises ValueError, OverflowError, KeyError."""
    if change.table is not None:
        value = _told(change.table, value, change.target)
    elif change.source.kind == "number":
        value = _counted_up(change, value)
    return value if change.longest is None else str(value)[: change.longest]


def _counted_up(change: ElementChange, value: Value) -> Value:
    """A number through units and grid: as a fraction of whole numbers, divided once."""
    over, under = value.as_integer_ratio()  # type: ignore[union-attr]  # NaN: ValueError, infinite: OverflowError
    if change.line is not None:
        slope, shift, by = change.line
        over, under = over * slope + under * shift, under * by
    if change.grid is not None:
        step, origin = change.grid
        on_grid = round((Fraction(over, under) - origin) / step) * step + origin
        over, under = on_grid.numerator, on_grid.denominator
    return round(Fraction(over, under)) if change.target.is_whole else over / under


def _told(table: Mapping[str, str], value: Value, target: Codec) -> Value:
    """The table's entry for a value; numbers as their text. Raises KeyError, ValueError."""
    there = table[_called(value)]
    if target.kind == "number":
        return int(there) if target.is_whole else float(there)
    return there


def _called(value: Value) -> str:
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


class ElementRule(NamedTuple):
    """The file's words on an element; () and None: nothing."""

    unit: tuple[str, ...] = ()
    """Units here and there."""
    step: float | None = None
    origin: float = 0.0
    length: int | None = None
    table: Mapping[str, str | int | float] | None = None


def change_of(rule: ElementRule, source: Codec | None, target: Codec | None) -> ElementChange | None:
    """The change that a rule means, with the encodings here and there, None for one that is not known. None: nothing is
    to be done. Raises ConfigurationError for what can't be: two kinds of value without a table, text with a unit, a bad
    grid, an encoding that is needed and not known."""
    line = conversion(*rule.unit) if len(rule.unit) == 2 else None
    grid = _grid(rule)
    acts = line is not None or grid is not None or rule.length is not None or rule.table is not None
    if source is None or target is None:
        if acts:
            raise ConfigurationError(
                "its data type is needed for that, and not known",
                hint='Say it in the rule: type = ["HLAfloat64BE", "HLAfloat32BE"]; known are ' + ", ".join(CODECS),
            )
        return None
    if not acts and source.form == target.form:
        return None
    _check_kinds(rule, source, target)
    table = Map({key: str(value) for key, value in rule.table.items()}) if rule.table is not None else None
    if table is not None:
        _check_table(table, target)
    return ElementChange(source, target, line, grid, rule.length, table)


def _grid(rule: ElementRule) -> Grid | None:
    if rule.step is None:
        if rule.origin:
            raise ConfigurationError("origin without a step", hint="step = 0.5 has a grid at origin + n x 0.5")
        return None
    try:
        step, origin = Fraction(repr(rule.step)), Fraction(repr(rule.origin))
    except ValueError:
        raise ConfigurationError(f"step = {rule.step}, origin = {rule.origin}: no numbers") from None
    if step <= 0:
        raise ConfigurationError(f"step = {rule.step} is not above 0")
    return Grid(step, origin)


def _check_kinds(rule: ElementRule, source: Codec, target: Codec) -> None:
    """That what comes can be what is to go."""
    numbers, texts = source.kind == "number", source.kind in ("text", "enumeration")
    if {"octets", "structure"} & {source.kind, target.kind}:
        raise ConfigurationError(
            f"{source.name} and {target.name} are not known well enough to make one of the other",
            hint='type = "bytes" has the bytes go as they are',
        )
    if rule.table is not None:
        if rule.unit or rule.step is not None:
            raise ConfigurationError(
                "a table together with a unit or step", hint="A table says what each value is there"
            )
    elif source.kind != target.kind and not (source.kind == "enumeration" and target.kind == "text"):
        raise ConfigurationError(
            f"{source.name} is of kind {source.kind}, {target.name} is of {target.kind}",
            hint='Give a table: table = { "1" = "one" }, or hide = true',
        )
    if (rule.unit or rule.step is not None) and not numbers:
        raise ConfigurationError(f"{source.name} is not a number: it has neither unit nor step")
    if rule.length is not None and (not texts or target.kind != "text" or rule.length < 0):
        raise ConfigurationError(f"length is for text, and not below 0: {source.name} to {target.name}")


def _check_table(table: Mapping[str, str], target: Codec) -> None:
    """That the other side has what the table says."""
    for key, value in sorted(table.items()):
        try:
            target.encode(_told(table, key, target))
        except (ValueError, OverflowError, struct.error):
            raise ConfigurationError(f"table: {key!r} is {value!r}, which {target.name} does not have") from None
