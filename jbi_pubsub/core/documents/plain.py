"""Documents in plain form: what may be written in several ways is written in one, so that an expression can tell it.

The plain form has a byte of its own for each thing that stands for something else. No such byte is part of any UTF-8,
so it can't have been there before, and each may stand in some places only:
- In texts and values of attributes `&`, `<`, `>` and quotes, for the five entities and in CDATA sections.
- In texts CDATA, where a section begins. One of nothing but white space stays as it is: it is no white space between
  elements.
- REFERENCE, in texts and values of attributes, before a character written by its number.
- INSTRUCTION, where white space may stand between tags, for a processing instruction.

What is left of markup that is not understood, or stands where it may not, is in no stencil; such documents are parsed.
"""

from __future__ import annotations

import re
from typing import Final

_SPECIAL: Final = {b"amp": b"&", b"lt": b"<", b"gt": b">", b"quot": b'"', b"apos": b"'"}
_INSTEAD: Final = b"\xf8\xf9\xfa\xfb\xfc"
INSTRUCTION: Final = b"\xfd"
CDATA: Final = b"\xfe"
REFERENCE: Final = b"\xff"
_MARKS: Final = CDATA + REFERENCE

_TO: Final = bytes.maketrans(b"".join(_SPECIAL.values()), _INSTEAD)
_FROM: Final = bytes.maketrans(_INSTEAD, b"".join(_SPECIAL.values()))

_INSTRUCTION: Final = re.compile(
    rb"<\?(?![xX][mM][lL][\s?])[A-Za-z_][A-Za-z0-9._-]{0,99}"
    rb"(?:[ \t\r\n][ -;=>@-~\t\r\n\x80-\xf4]*+(?:\?++[ -;=@-~\t\r\n\x80-\xf4][ -;=>@-~\t\r\n\x80-\xf4]*+)*+)?+\?>"
)
"""None goes on behind the begin of another one, so that all are found in linear time."""
_REFERENCE: Final = re.compile(rb"&(?:#(?:x([0-9A-Fa-f]{1,6})|([0-9]{1,7}))|(amp|lt|gt|quot|apos));")

_BRACKET, _AMPERSAND = b"[&"
"""Numbers of the bytes: `in` finds a number five times as fast as bytes."""

HEAD: Final = 60
"""Bytes in which the XML declaration has its question marks; for instructions that end there nobody looks."""


def plain(data: bytes) -> bytes | None:
    """A document in plain form; None: it is no UTF-8, or has characters that no document may have."""
    if not data.isascii() and not _is_utf8(data):
        return None
    if _BRACKET in data:
        data = _without_sections(data)
    if data.find(b"?", HEAD) >= 0:
        data = _INSTRUCTION.sub(INSTRUCTION, data)
    if _AMPERSAND in data:
        data = _REFERENCE.sub(_reference, data)
    return data


def meaning(text: bytes) -> str:
    """The text that is meant by one in plain form."""
    return text.decode() if text.isascii() else text.translate(_FROM, _MARKS).decode()


def _is_utf8(data: bytes) -> bool:
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return False
    return "\ufffe" not in text and "\uffff" not in text


def _without_sections(data: bytes) -> bytes:
    first, *others = data.split(b"<![CDATA[")
    made = [first]
    for other in others:
        text, end, rest = other.partition(b"]]>")
        made += (CDATA, text.translate(_TO), rest) if end and text.strip() else (b"<![CDATA[", other)
    return b"".join(made)


def _reference(found: re.Match[bytes]) -> bytes:
    if found[3]:
        return _SPECIAL[found[3]].translate(_TO)
    number = int(found[1], 16) if found[1] else int(found[2])
    is_plain = (
        0x20 < number < 0x7F or 0x80 <= number < 0xD800 or 0xE000 <= number < 0xFFFE or 0xFFFF < number < 0x110000
    )
    return REFERENCE + chr(number).encode().translate(_TO) if is_plain else found[0]
