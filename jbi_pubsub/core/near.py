"""The name that was meant, for hints."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from itertools import islice
from typing import Final

NAME_MOST: Final = 200
KNOWN_MOST: Final = 1_000
SHOWN_MOST: Final = 25
"""Names that a hint lists."""


def near_name(name: str, known: Iterable[str], cutoff: float = 0.6) -> str:
    """The one of the known names that is most like `name`, "" when none is. `cutoff`: how like it has to be, 0 to 1.
    The time to compare two names grows with the product of their lengths. So names of more than NAME_MOST characters
    are like none, and of the known ones KNOWN_MOST are looked at."""
    if len(name) > NAME_MOST:
        return ""
    short = (each for each in islice(known, KNOWN_MOST) if len(each) <= NAME_MOST)
    return next(iter(get_close_matches(name, list(short), n=1, cutoff=cutoff)), "")


def near_hint(name: str, known: Iterable[str], shown: int = SHOWN_MOST) -> str:
    """For a name that is none of the known ones: the one that was meant, else which there are, the first `shown`."""
    names = list(known)
    if near := near_name(name, names, 0.5):
        return f"Did you mean {near}?"
    more = f" and {len(names) - shown} more" if len(names) > shown else ""
    return f"There {'are' if len(names) > 1 else 'is'} {', '.join(names[:shown]) or 'none'}{more}"
