"""The one canonicaliser: the text of an element or attribute to the canonical text of its XSD value.

Two texts have the same canonical text exactly if they are equal values of their type (XML Schema part 2), so entries
compare by plain string equality, in the lookup service, in derived templates and in studies alike. Numbers, booleans
and floats get the text that `lookup.entry.canonical` gives to Python values. docs/codegen.md lists each built-in.

Pattern facets are not checked here: a pattern comes with the publisher's schema, and Python's backtracking engine
could be held up by it. Validation against the whole schema (libxml2, automata) checks them. In a union they decide
whose value a text is: its texts are kept as they are.
"""

from __future__ import annotations

import base64
import re
import struct
from collections.abc import Callable, Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any, Final, TypeVar

from jbi_pubsub.codegen.model import ValueType
from jbi_pubsub.core.errors import EntryError
from jbi_pubsub.core.xml import NAME_LETTER, NAME_START
from jbi_pubsub.lookup.entry import canonical

MAX_VALUE_CHARS: Final = 8_192
"""An invariant value is a key of the lookup service's index; CAP's longest coded value has 80 characters."""

MAX_LIST_ITEMS: Final = 1_000
"""Items of an xs:list value; bounds the work that one value can cause."""

INTEGERS: Final = frozenset(
    (
        *("integer", "nonPositiveInteger", "negativeInteger", "nonNegativeInteger", "positiveInteger"),
        *("long", "int", "short", "byte", "unsignedLong", "unsignedInt", "unsignedShort", "unsignedByte"),
    )
)
"""Built-ins derived from xs:integer (XML Schema part 2, section 3.3)."""

Namespaces = Mapping[str | None, str]
_SPACES: Final = re.compile(r"[ \t\r\n]+")  # XML white space only; str.split() would take more
_ZONE: Final = r"(Z|[+-](?:0\d|1[0-3]):[0-5]\d|[+-]14:00)?"
_DECIMAL: Final = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)", re.ASCII)
_INTEGER: Final = re.compile(r"[+-]?\d+", re.ASCII)
_FLOAT: Final = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?|-?INF|NaN", re.ASCII)
_DAY: Final = r"(-?\d{4,9})-(\d\d)-(\d\d)"  # nine year digits: beyond, even the Gyr of astronomy would not help
_CLOCK: Final = r"(\d\d):(\d\d):(\d\d)(\.\d+)?"
_DATE_TIME: Final = re.compile(f"{_DAY}T{_CLOCK}{_ZONE}", re.ASCII)
_DATE: Final = re.compile(_DAY + _ZONE, re.ASCII)
_TIME: Final = re.compile(_CLOCK + _ZONE, re.ASCII)
_DURATION: Final = re.compile(
    r"(-?)P(?=\d|T\d)(?:(\d{1,9})Y)?(?:(\d{1,9})M)?(?:(\d{1,9})D)?(?:T(?=\d)(?:(\d{1,9})H)?(?:(\d{1,9})M)?(?:(\d{1,9}(?:\.\d{1,12})?)S)?)?",
    re.ASCII,
)
_GREGORIAN: Final = {
    "gYear": re.compile(r"(-?\d{4,9})" + _ZONE, re.ASCII),
    "gYearMonth": re.compile(r"(-?\d{4,9}-(?:0[1-9]|1[0-2]))" + _ZONE, re.ASCII),
    "gMonth": re.compile(r"(--(?:0[1-9]|1[0-2]))" + _ZONE, re.ASCII),
    "gMonthDay": re.compile(r"(--(?:0[1-9]|1[0-2])-(?:0[1-9]|[12]\d|3[01]))" + _ZONE, re.ASCII),
    "gDay": re.compile(r"(---(?:0[1-9]|[12]\d|3[01]))" + _ZONE, re.ASCII),
}
_NAME: Final = rf"[{NAME_START}][{NAME_LETTER}]*"
_STRINGS: Final = {
    "language": re.compile(r"[a-zA-Z]{1,8}(-[a-zA-Z0-9]{1,8})*"),
    "Name": re.compile(rf"[:{NAME_START}][:{NAME_LETTER}]*"),
    "NMTOKEN": re.compile(rf"[:{NAME_LETTER}]+"),
    "NCName": re.compile(_NAME),
    "ID": re.compile(_NAME),
    "IDREF": re.compile(_NAME),
    "ENTITY": re.compile(_NAME),
}
_QNAME: Final = re.compile(rf"(?:({_NAME}):)?({_NAME})")


class NotAValueError(ValueError):
    """Internal: text outside the lexical or value space of its type; callers turn it into one of our errors."""


def canonical_text(text: str, kind: ValueType, namespaces: Namespaces | None = None) -> str:
    """The canonical text of `text` as a value of `kind`. `namespaces` (prefix to URI) serve xs:QName only.

    Raises NotAValueError, saying what was expected.
    """
    if len(text) > MAX_VALUE_CHARS:
        raise NotAValueError(f"a value of at most {MAX_VALUE_CHARS} characters")
    text = normalize(text, kind.space)
    if kind.members:
        value = _of_union(text, kind, namespaces)
    elif kind.items is not None:
        value = _of_list(text, kind, kind.items, namespaces)
    else:
        value = _of_atom(text, kind.builtin, namespaces)
    if kind.enumeration and value not in kind.enumeration:
        raise NotAValueError(f"one of {', '.join(kind.enumeration[:20])}")
    for facet, bound in kind.facets:
        _check(value, facet, bound, kind)
    return value


C = TypeVar("C", bound=type)


def xsd(**kinds: str) -> Callable[[C], C]:
    """A decorator of generated entry classes, below `@dataclass`: what is given for a field becomes the canonical text
    of its XSD type. `kinds` are built-in types by field, "list of ..." for a list of them.

    Python's numbers, booleans, dates and times are taken as well as text. The class then raises EntryError for what is
    no value of the type.
    """

    def decorate(cls: C) -> C:
        above: Mapping[str, ValueType] = getattr(cls, _KINDS, {})
        setattr(cls, _KINDS, {**above, **{field: _kind(kind) for field, kind in kinds.items()}})
        cls.__post_init__ = _make_canonical  # type: ignore[attr-defined]  # dataclasses call it
        return cls

    return decorate


def kind_of(kind: ValueType) -> str:
    """Kind to tell `xsd` of a field of that type; "" where text stays as it is, or depends on more than the type."""
    if kind.items is not None:
        inside = kind_of(kind.items)
        return f"list of {inside}" if inside and not inside.startswith("list") else ""
    if kind.members or kind.builtin in ("QName", "NOTATION"):
        return ""
    if kind.builtin in ("string", "anySimpleType", "normalizedString", "anyURI"):
        return {"replace": "normalizedString", "collapse": "token"}.get(kind.space, "")
    return kind.builtin


_KINDS: Final = "_xsd_kinds"


def _kind(name: str) -> ValueType:
    if name.startswith("list of "):
        return ValueType(f"a {name}", "list", items=_kind(name.removeprefix("list of ")))
    return ValueType(f"xs:{name}", name, "replace" if name == "normalizedString" else "collapse")


def _make_canonical(entry: Any) -> None:
    for field, kind in getattr(type(entry), _KINDS).items():
        value = getattr(entry, field)
        if value is None:
            continue
        text = value.isoformat() if isinstance(value, date | time) else canonical(value)
        try:
            object.__setattr__(entry, field, canonical_text(str(text), kind))
        except NotAValueError as exc:
            raise EntryError(
                f"{type(entry).__name__}.{field} is {value!r}, expected {exc}",
                hint="Give a value of the schema's type, as text or as Python's",
            ) from exc


def needs_context(kind: ValueType) -> bool:
    """Whether values of `kind` mean something only together with the namespaces in scope (xs:QName)."""
    parts = (*kind.members, *((kind.items,) if kind.items is not None else ()))
    return kind.builtin in ("QName", "NOTATION") or any(needs_context(part) for part in parts)


def is_value(text: str, kind: ValueType) -> bool:
    """Whether `text` is a value of `kind`."""
    try:
        canonical_text(text, kind)
    except NotAValueError:
        return False
    return True


def normalize(text: str, space: str) -> str:
    """White space as the whiteSpace facet says (XML Schema part 2, section 4.3.6)."""
    if space == "preserve":
        return text
    if space == "replace":
        return text.replace("\t", " ").replace("\n", " ").replace("\r", " ")
    return _SPACES.sub(" ", text).strip(" ")


def _of_union(text: str, kind: ValueType, namespaces: Namespaces | None) -> str:
    for member in kind.members:
        try:
            value = canonical_text(text, member, namespaces)
        except NotAValueError:
            continue  # the next member type may take it; the error below names them all
        return text if any(member.is_loose for member in kind.members) else value  # it may not be that member's
    raise NotAValueError(" or ".join(member.name for member in kind.members))


def _of_list(text: str, kind: ValueType, items: ValueType, namespaces: Namespaces | None) -> str:
    words = text.split(" ") if text else []
    if len(words) > MAX_LIST_ITEMS:
        raise NotAValueError(f"at most {MAX_LIST_ITEMS} items of {kind.name}")
    return " ".join(canonical_text(word, items, namespaces) for word in words)


def _of_atom(text: str, builtin: str, namespaces: Namespaces | None) -> str:
    pattern = _STRINGS.get(builtin)
    if pattern is not None:
        return _match(pattern, text, builtin)[0]
    if builtin in INTEGERS:
        return str(canonical(Decimal(_match(_INTEGER, text, builtin)[0])))
    if builtin in ("QName", "NOTATION"):
        return _qname(text, builtin, namespaces)
    if builtin in _GREGORIAN:
        found = _match(_GREGORIAN[builtin], text, builtin)
        return found[1] + (_zone_of(_minutes(found[2])) if found[2] else "")
    reader = _READERS.get(builtin)
    return reader(text) if reader else text  # string, normalizedString, token, anyURI, anySimpleType


def _match(pattern: re.Pattern[str], text: str, builtin: str) -> re.Match[str]:
    found = pattern.fullmatch(text)
    if found is None:
        raise NotAValueError(f"xs:{builtin}")
    return found


def _decimal(text: str) -> str:
    return str(canonical(Decimal(_match(_DECIMAL, text, "decimal")[0])))


def _boolean(text: str) -> str:
    if text not in ("true", "false", "1", "0"):
        raise NotAValueError("xs:boolean (true, false, 1, 0)")
    return "true" if text in ("true", "1") else "false"


def _double(text: str) -> str:
    return str(canonical(_number(text, "double")))


def _float(text: str) -> str:
    value = _number(text, "float")
    try:
        value = struct.unpack("f", struct.pack("f", value))[0]
    except OverflowError:
        value = float("inf") if value > 0 else float("-inf")
    return str(canonical(value))


def _number(text: str, builtin: str) -> float:
    return float(_match(_FLOAT, text, builtin)[0].replace("INF", "inf"))


def _date_time(text: str) -> str:
    year, month, day, hour, minute, second, fraction, zone = _match(_DATE_TIME, text, "dateTime").groups()
    clock = _instant(year, month, day, hour, minute, second, fraction or "", _minutes(zone))
    return clock + _tail(fraction) + ("Z" if zone else "")


def _date(text: str) -> str:
    """Canonical: the first moment of the day in UTC, with the recoverable time zone (part 2, section 3.2.9.2)."""
    year, month, day, zone = _match(_DATE, text, "date").groups()
    offset = _minutes(zone)
    moved = offset - 1440 if offset > 720 else offset + 1440 if offset <= -720 else offset
    shown = _instant(year, month, day, "00", "00", "00", "", offset - moved).partition("T")[0]
    return shown + (_zone_of(moved) if zone else "")


def _time(text: str) -> str:
    hour, minute, second, fraction, zone = _match(_TIME, text, "time").groups()
    shown = _instant("2000", "01", "02", hour, minute, second, fraction or "", _minutes(zone))
    return shown.partition("T")[2] + _tail(fraction) + ("Z" if zone else "")


def _instant(year: str, month: str, day: str, hour: str, minute: str, second: str, fraction: str, offset: int) -> str:
    """yyyy-mm-ddThh:mm:ss moved to UTC; years outside Python's range go by the 400-year Gregorian cycle."""
    astronomical = int(year) + 1 if year.startswith("-") else int(year)
    midnight = hour == "24" and minute == "00" and second == "00" and not fraction.strip(".0")
    near = astronomical % 400 + 2000
    try:
        moment = datetime(near, int(month), int(day), 0 if midnight else int(hour), int(minute), int(second))  # noqa: DTZ001 - the zone is `offset`; this is calendar arithmetic
    except ValueError as exc:
        raise NotAValueError("a date and time of the calendar") from exc
    if year.strip("-0") == "":
        raise NotAValueError("a year other than 0000 (XML Schema 1.0)")
    moment += timedelta(days=midnight, minutes=-offset)
    shown = moment.year - near + astronomical
    text = f"{shown:04d}" if shown > 0 else f"-{1 - shown:04d}"
    return f"{text}-{moment:%m-%dT%H:%M:%S}"


def _tail(fraction: str | None) -> str:
    digits = (fraction or "").lstrip(".").rstrip("0")
    return f".{digits}" if digits else ""


def _minutes(zone: str | None) -> int:
    if not zone or zone == "Z":
        return 0
    size = int(zone[1:3]) * 60 + int(zone[4:6])
    return -size if zone[0] == "-" else size


def _zone_of(minutes: int) -> str:
    return f"{'-' if minutes < 0 else '+'}{abs(minutes) // 60:02d}:{abs(minutes) % 60:02d}" if minutes else "Z"


def _duration(text: str) -> str:
    sign, *parts = _match(_DURATION, text, "duration").groups()
    years, months, days, hours, minutes = (int(part or 0) for part in parts[:5])
    seconds = Decimal(parts[5] or 0) + 60 * (minutes + 60 * (hours + 24 * days))
    months += 12 * years
    whole, fraction = divmod(seconds, 1)
    minutes, left = divmod(int(whole), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    date = "".join(f"{n}{unit}" for n, unit in ((months // 12, "Y"), (months % 12, "M"), (days, "D")) if n)
    second = canonical(left + fraction)
    time = "".join(f"{n}{unit}" for n, unit in ((hours, "H"), (minutes, "M")) if n) + (
        f"{second}S" if second != "0" else ""
    )
    if not date and not time:
        return "PT0S"
    return f"{sign}P{date}" + (f"T{time}" if time else "")


def _hex(text: str) -> str:
    return _match(re.compile(r"([0-9a-fA-F]{2})*"), text, "hexBinary")[0].upper()


def _base64(text: str) -> str:
    try:
        return base64.b64encode(base64.b64decode(text.replace(" ", ""), validate=True)).decode()
    except ValueError as exc:  # binascii's, and that of a character beyond ASCII
        raise NotAValueError("xs:base64Binary") from exc


def _qname(text: str, builtin: str, namespaces: Namespaces | None) -> str:
    prefix, local = _match(_QNAME, text, builtin).groups()
    uri = (namespaces or {}).get(prefix)
    if prefix and uri is None:
        raise NotAValueError(f"xs:{builtin} whose prefix {prefix} is declared")
    return f"{{{uri}}}{local}" if uri else local


_READERS: Final[Mapping[str, Callable[[str], str]]] = {
    "decimal": _decimal,
    "boolean": _boolean,
    "double": _double,
    "float": _float,
    "dateTime": _date_time,
    "date": _date,
    "time": _time,
    "duration": _duration,
    "hexBinary": _hex,
    "base64Binary": _base64,
}


def _check(value: str, facet: str, bound: str, kind: ValueType) -> None:
    if facet in ("length", "minLength", "maxLength"):
        size = _length(value, kind)
        good = size is None or {"length": size == int(bound), "minLength": size >= int(bound)}.get(
            facet, size <= int(bound)
        )
    elif facet in ("totalDigits", "fractionDigits"):
        whole, _, fraction = value.lstrip("-").partition(".")
        good = len(fraction) <= int(bound) if facet == "fractionDigits" else _digits(whole, fraction) <= int(bound)
    else:
        good = _within(value, facet, bound, kind.builtin)
    if not good:
        raise NotAValueError(f"{kind.name} with {facet} {bound}")


def _digits(whole: str, fraction: str) -> int:
    return len((whole + fraction).lstrip("0") if whole == "0" else whole + fraction)


def _length(value: str, kind: ValueType) -> int | None:
    if kind.items is not None:
        return len(value.split(" ")) if value else 0
    if kind.builtin == "hexBinary":
        return len(value) // 2
    if kind.builtin == "base64Binary":
        return len(base64.b64decode(value))
    return None if kind.builtin in ("QName", "NOTATION") else len(value)  # part 2, section 4.3.1: QNames pass


def _within(value: str, facet: str, bound: str, builtin: str) -> bool:
    """Numeric bounds; those of dates and durations are left to validation (their order is partial)."""
    if builtin == "decimal" or builtin in INTEGERS:
        left, right = Decimal(value), Decimal(bound)
    elif builtin in ("double", "float") and "NaN" not in (value, bound):
        left, right = (Decimal(each.replace("INF", "inf")) for each in (value, _READERS[builtin](bound)))
    else:
        return True
    return {
        "minInclusive": left >= right,
        "maxInclusive": left <= right,
        "minExclusive": left > right,
        "maxExclusive": left < right,
    }[facet]
