"""Numbers as XPath 1.0 in lxml sees them: libxml2's own conversion, bit for bit.

libxml2 accumulates the digits before the point, then those behind it (twenty at most after leading zeros), divides the
latter by a power of ten and adds; the result is not always the nearest double, so `float()` would differ in the last
bit (and in what it accepts). Where every step is exact or singly rounded, the same is done here in Python; everything
else goes to lxml's own number(). Never a third opinion.
"""

from __future__ import annotations

import math
import re
from typing import Final

from lxml import etree

_PLAIN: Final = re.compile(r"[ \t\r\n]*(-?)([0-9]{1,15})(?:\.([0-9]{0,15}))?[ \t\r\n]*", re.ASCII)
"""At most 15 digits on each side: below 2**53, so accumulating them is exact in any order and on any processor."""

_POSSIBLE: Final = re.compile(r"[ \t\r\n0-9.eE+-]+")
"""No other characters occur in what libxml2 takes for a number."""

_POWERS: Final = tuple(float(10**n) for n in range(16))
"""Powers of ten, all exact as doubles (they are up to 10**22)."""

_NUMBER: Final = etree.XPath("number($text)", regexp=False, smart_strings=False)
_ANYWHERE: Final = etree.Element("anywhere")
"""number($text) reads no document, but lxml wants a context node."""

NOT_A_NUMBER: Final = math.nan
"""Value of text that is no number. One object, never the one that marks an absent node in the index."""


def number(text: str) -> float:
    """number(text) of XPath 1.0 section 4.4, as libxml2 computes it; NaN when `text` is no number."""
    whole, _, fraction = text.partition(".")
    if len(text) <= 16 and text.isascii() and whole.isdigit() and fraction.isdigit():
        return int(whole) + int(fraction) / _POWERS[len(fraction)]  # the usual case, without the pattern
    plain = _PLAIN.fullmatch(text)
    if plain is None:
        return _by_libxml2(text)
    sign, whole, fraction = plain.groups()
    value = float(int(whole))
    if fraction:
        value += int(fraction) / _POWERS[len(fraction)]
    return -value if sign else value


def _by_libxml2(text: str) -> float:
    if not _POSSIBLE.fullmatch(text):
        return NOT_A_NUMBER
    value = float(_NUMBER(_ANYWHERE, text=text))
    return value if value == value else NOT_A_NUMBER
