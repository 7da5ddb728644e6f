"""Moments as people give them: "2026-11-01T00:00Z", "2h" (ago), a datetime. And where a subscription is to begin."""

from __future__ import annotations

import re
from datetime import datetime, timedelta
from typing import Final

from jbi_pubsub.core.errors import ConfigurationError
from jbi_pubsub.core.history import MAX_POSITION
from jbi_pubsub.protocol.requests import NEW, Start

Moment = str | datetime
"""A time: a text as ISO 8601 has it, with its zone, or a date, whose midnight in UTC is meant; a text like "2h" or
"1d12h" for so long ago; a datetime with its zone."""

LATEST: Final = 1e11
"""Seconds since the epoch: what a time on the wire may be."""

_UNITS: Final = {"s": 1.0, "m": 60.0, "h": 3_600.0, "d": 86_400.0, "w": 604_800.0}
_AGO: Final = re.compile(r"(?:\d{1,9}(?:\.\d{1,6})?[smhdw])+", re.ASCII)
_PART: Final = re.compile(r"([\d.]+)([smhdw])")
_DATE: Final = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)
_END_OF_DAY: Final = re.compile(r"(?<=[T ])24(?=:?00(:?00([.,]0+)?)?(Z|[+-]|$))", re.ASCII)
_PLACE: Final = re.compile(r"(\d{1,19})(?:@([0-9a-f]{32}))?", re.ASCII)
_LIKE: Final = 'For example "2026-11-01T00:00Z", or "2h" for two hours ago'


def seconds_at(given: Moment, *, now: float, what: str) -> float:
    """The moment in seconds since the epoch; `now` is that as well. Raises ConfigurationError, which names `what`."""
    if isinstance(given, str):
        text = given.strip()
        if _AGO.fullmatch(text):
            ago = sum(float(number) * _UNITS[unit] for number, unit in _PART.findall(text))
            return max(0.0, now - ago)
        text = f"{text}T00:00Z" if _DATE.fullmatch(text) else text
        try:
            begins, days = _END_OF_DAY.subn("00", text if text.isprintable() else "")  # Python takes a NUL at the end
            given = datetime.fromisoformat(begins) + timedelta(days)
        except (ValueError, OverflowError) as exc:
            raise ConfigurationError(f"{what}: {text[:60]!r} is not a time", hint=_LIKE) from exc
    if given.utcoffset() is None:
        raise ConfigurationError(
            f"{what}: {given.isoformat()} has no time zone",
            hint=f"For UTC write {given.isoformat(timespec='minutes')}Z; a datetime needs its tzinfo",
        )
    try:
        seconds = given.timestamp()
    except (ValueError, OverflowError) as exc:
        raise ConfigurationError(f"{what}: {given} is not a valid time", hint=_LIKE) from exc
    if not 0 <= seconds <= LATEST:
        which = "before 1970" if seconds < 0 else "after the year 5138, the limit"
        raise ConfigurationError(f"{what}: {given.isoformat()} is {which}", hint=_LIKE)
    return seconds


def is_place(text: str) -> bool:
    """Whether that is `Platform.place` of an object, or a position."""
    return _PLACE.fullmatch(text) is not None


def place_at(given: int | str, what: str) -> tuple[int, str]:
    """Position and archive of what that is; "" for an archive that is not named. Raises ConfigurationError, which names
    `what`."""
    archive = ""
    if isinstance(given, str):
        if (place := _PLACE.fullmatch(given.strip())) is None:
            raise ConfigurationError(f"{what}: {given[:60]!r} is no place", hint="Use `platform.place` of an object")
        given, archive = int(place[1]), place[2] or ""
    if not 0 <= given <= MAX_POSITION:
        raise ConfigurationError(f"{what}: position {given} is not in 0..{MAX_POSITION}")
    return given, archive


def start_at(given: Moment | int | None, *, now: float, latest_by: str = "") -> Start:
    """Start that `start=` of a subscription asks for: "new", "now" (the same, and objects of archives have places),
    "all", "last", a moment, or the place (`Platform.place`), or position of one archive, that the last object had which
    is not wanted again. Raises ConfigurationError."""
    if latest_by and given != "last":
        raise ConfigurationError('latest_by is for start="last"', hint="It says of which keys the newest objects come")
    if given is None or given == "new":
        return NEW
    if given == "now":
        given = MAX_POSITION
    if isinstance(given, int) or (isinstance(given, str) and is_place(given.strip())):
        after, archive = place_at(given, "start")
        return Start("after", after=after, archive=archive)
    if given == "all":
        return Start("all")
    if given == "last":
        return Start("last", latest_by=latest_by)
    try:
        return Start("since", since=seconds_at(given, now=now, what="start"))
    except ConfigurationError as exc:
        hint = f'"now", "all", "last", a time, or the place of an object. {exc.hint}'
        raise ConfigurationError(exc.message, hint=hint) from exc
