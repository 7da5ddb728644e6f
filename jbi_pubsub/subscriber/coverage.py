"""Whether those who have answered a query are all the archives that there are. Pure.

Rules:
- Lookup services list an archive as one of its *incarnations*: each time that it is opened is one. A listing may be out
  of date: the process that it names is gone, and whoever has its address now need not have its archive.
- Whoever answers says which incarnations its archive has been. What is listed is covered when one of those has answered
  to the end that was it, or comes after it: wherever that is.
- What is not covered is named. Nothing counts as answered because another answer is expected to bring it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from jbi_pubsub.core.errors import EntryError
from jbi_pubsub.lookup.item import ServiceItem
from jbi_pubsub.protocol.entries import ArchiveEntry

ANOTHER: Final = (
    "another archive answers there than the one that is listed, or that one as a copy had it: what is in the listed one"
    " is missing"
)


class ArchivePlace(NamedTuple):
    """An address where archives are listed."""

    item: ServiceItem
    """Server that is asked there: whoever has the address answers."""
    listed: frozenset[str]
    """The incarnations that are known there."""

    @property
    def address(self) -> str:
        """Where it is reached."""
        return ", ".join(self.item.proxy.endpoints)


class ArchiveAnswer(NamedTuple):
    """Outcome of asking at an address."""

    address: str
    listed: frozenset[str]
    incarnations: tuple[str, ...] = ()
    """Incarnations of the archive that has answered."""
    why: str = ""
    """Why nobody has, or not to the end."""
    lacks: str = ""
    """Part that could not be read there."""


def places_of(items: Sequence[ServiceItem]) -> list[ArchivePlace]:
    """Where they are, each once: a server that was killed and started again is listed twice for a while."""
    found: dict[str, ArchivePlace] = {}
    for item in items:
        endpoints = item.proxy.endpoints
        address = next((each for each in endpoints if "://" not in each), endpoints[0])  # others end with their server
        known = found[address].listed if address in found else frozenset()
        found[address] = ArchivePlace(item, known | _listed(item))
    return list(found.values())


def missing(answers: Sequence[ArchiveAnswer]) -> list[str]:
    """Missing parts: of each answer what is missing there and nowhere else; "" for nothing."""
    covered = {each for answer in answers if not answer.why for each in answer.incarnations}
    return [
        ("" if answer.listed and answer.listed <= covered else answer.why)
        if answer.why
        else (ANOTHER if answer.listed - covered else answer.lacks)
        for answer in answers
    ]


def named(answers: Sequence[ArchiveAnswer]) -> tuple[str, ...]:
    """The addresses of which something is missing, each with the reason."""
    return tuple(f"{answer.address}: {why}" for answer, why in zip(answers, missing(answers), strict=True) if why)


def entry_of(item: ServiceItem) -> ArchiveEntry | None:
    """Entry about its archive; None: nothing, or as another version does: asked, it will say."""
    rep = next((rep for rep in item.entries if rep.cls.name == ArchiveEntry.entry_name), None)
    try:
        return ArchiveEntry.from_rep(rep) if rep is not None else None
    except EntryError:
        return None


def _listed(item: ServiceItem) -> frozenset[str]:
    said = entry_of(item)
    return frozenset((said.incarnation,)) if said is not None and said.incarnation else frozenset()
