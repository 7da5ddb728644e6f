"""Rings of bridges: what goes around one never ends, and a point or a save never does (Bridging the HLA, section 3, has
bridges in rows and trees alone).

A bridge is registered in the lookup services of both its sides. On each it says between which federation executions it
stands, and of which bridges it has heard on the other side: so that a ring is seen that goes over platforms which know
nothing of each other. Of the bridges of a ring the youngest leaves. Two bridges between the same federations are the
smallest ring: the second one is there when the first has gone.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from jbi_pubsub.core.errors import EntryError
from jbi_pubsub.lookup.entry import Entry, EntryRep

TOLD_MOST: Final = 500
"""Other bridges that one tells of."""
HOPS_MOST: Final = 16
"""From platform to platform that word of a bridge goes: what has left is not told in a circle for ever."""
_TEXT_MOST: Final = 200


class Span(NamedTuple):
    """A bridge, as others know it."""

    bridge: str
    """Its id."""
    name: str
    one: str
    """The ids of the federation executions that it joins: of the services that RTIs register for them."""
    other: str
    since: int
    """When it came: microseconds since 1970."""
    hops: int = 0
    """Platforms over which word of it came."""


@dataclass(frozen=True, kw_only=True)
class SpanEntry(Entry):
    """A span as it stands in lookup services."""

    entry_name = "jbi.HlaBridge"
    bridge: str | None = None
    name: str | None = None
    one: str | None = None
    other: str | None = None
    since: str | None = None
    hops: str | None = None


def entry_of(span: Span) -> EntryRep:
    """For a lookup service."""
    return SpanEntry(**{name: str(value) for name, value in span._asdict().items()}).rep()


def spans_of(entries: Iterable[EntryRep]) -> list[Span]:
    """Spans that a registered bridge tells of; what can't be read is left out, since anybody may register anything."""
    found: list[Span] = []
    for rep in entries:
        if rep.cls.name == SpanEntry.entry_name and len(found) < TOLD_MOST:
            with contextlib.suppress(EntryError, ValueError):
                found.append(_read(SpanEntry.from_rep(rep)))
    return found


def _read(entry: SpanEntry) -> Span:
    """Raises ValueError."""
    texts = (entry.bridge or "", entry.name or "", entry.one or "", entry.other or "")
    if not all(texts) or any(len(text) > _TEXT_MOST or not text.isprintable() for text in texts):
        raise ValueError("no span")
    since, hops = int(entry.since or ""), int(entry.hops or "")
    if not 0 <= hops <= HOPS_MOST or since < 0:
        raise ValueError("no span")
    return Span(*texts, since, hops)


def told(own: Span, heard: Iterable[Span]) -> list[Span]:
    """Spans that a bridge tells on one side: its own, and those that it has heard of on the other one, the nearest
    first."""
    nearest: dict[str, Span] = {}
    for span in heard:
        if span.bridge != own.bridge and span.hops < HOPS_MOST:
            known = nearest.get(span.bridge)
            if known is None or span.hops + 1 < known.hops:
                nearest[span.bridge] = span._replace(hops=span.hops + 1)
    return [own, *sorted(nearest.values(), key=lambda span: (span.hops, span.bridge))[: TOLD_MOST - 1]]


def ring(own: Span, known: Iterable[Span]) -> tuple[Span, ...]:
    """The other bridges of the shortest ring that `own` would close as its youngest; () if it closes none, or another
    one has to leave."""
    others = {span.bridge: span for span in known if span.bridge != own.bridge}
    older = {key: span for key, span in others.items() if (span.since, span.bridge) < (own.since, own.bridge)}
    return _way(own.one, own.other, older)


def _way(source: str, target: str, spans: Mapping[str, Span]) -> tuple[Span, ...]:
    """The shortest from one execution to another."""
    ends: dict[str, list[tuple[str, Span]]] = {}
    for _, span in sorted(spans.items()):
        ends.setdefault(span.one, []).append((span.other, span))
        ends.setdefault(span.other, []).append((span.one, span))
    ways: dict[str, tuple[Span, ...]] = {source: ()}
    front = [source]
    while front and target not in ways:
        near = [(at, end, span) for at in front for end, span in ends.get(at, ())]
        front = []
        for at, end, span in near:
            if end not in ways:
                ways[end] = (*ways[at], span)
                front.append(end)
    return ways.get(target, ())
