"""The federation as a picture: who publishes where, and who gets it. Pure: a look in, a drawing out.

Each delegate and peer has a lane: its publishers to the left, its subscribers to the right, so that no arrow crosses
another. The fewer lanes, the more names in each; what has no room is one box ("4,812 more subscriptions"). On a narrow
screen a lane is a list: the server, below it those who publish there and those who get it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final
from urllib.parse import quote

from jbi_pubsub.protocol.status.delegate import CountsStatus

from .drawing import Drawing
from .federation import Edge, Server, Snapshot

WIDE: Final = 1160
NARROW: Final = 352
ROWS: Final = 24
"""Boxes on one side of all lanes together, more or less."""
ROWS_MOST: Final = 5
"""Boxes on one side of one lane."""
LANES_MOST: Final = 30
"""Servers drawn; of more it is said how many."""

_BOX: Final = 250.0
_SERVER: Final = 280.0
_ROW: Final = 44.0
_GAP: Final = 10.0


def picture(shot: Snapshot, *, narrow: bool = False) -> Drawing:
    """The drawing of a look."""
    lookups = [s for s in shot.servers if s.kind == "lookup"]
    lanes = [s for s in shot.servers if s.kind != "lookup"]
    shown = lanes[:LANES_MOST]
    left = len(lanes) - len(shown) + shot.unseen
    most = max(1, min(ROWS_MOST, ROWS // max(1, len(shown))))
    label = f"The federation: {counted(len(lookups), 'lookup service')}, {counted(len(lanes), 'delegate')} and peers"
    drawing = Drawing(NARROW if narrow else WIDE, 0, label)
    y = _band(drawing, lookups, narrow=narrow)
    for server in shown:
        publishers = folded([e for e in shot.edges if e.server == server.id and e.kind == "publish"], most)
        receivers = folded([e for e in shot.edges if e.server == server.id and e.kind != "publish"], most)
        lane = _list if narrow else _lane
        y = lane(drawing, y, server, publishers, receivers) + 14
    if left:
        drawing.text(drawing.width / 2, y + 14, f"and {left:,} more servers", kind="note", anchor="middle")
        y += 28
    drawing.height = max(60.0, y)
    return drawing


def folded(edges: Sequence[Edge], most: int) -> list[Edge]:
    """At most so many arrows: the largest, and the others as the last one."""
    ordered = sorted(edges, key=lambda e: (e.of > 1, -e.count, e.kind, e.name))
    if len(ordered) <= most and all(e.of == 1 for e in ordered[:-1]):
        return ordered
    kept, rest = ordered[: most - 1], ordered[most - 1 :]
    rates = [e.rate for e in rest if e.rate is not None]
    together = Edge(
        kind=rest[0].kind if len({e.kind for e in rest}) == 1 else "deliver",
        server=rest[0].server,
        name="",
        of=sum(e.of for e in rest),
        count=sum(e.count for e in rest),
        rate=sum(rates) if rates else None,
        waiting=sum(e.waiting for e in rest),
        lost=sum(e.lost for e in rest),
    )
    return [*kept, together]


def per_second(rate: float | None) -> str:
    """A rate, short; "" when it is not known yet."""
    if rate is None:
        return ""
    if rate >= 10_000:
        return f"{short(rate)}/s"
    return f"{rate:,.0f}/s" if rate >= 100 or rate == 0 else f"{rate:.1f}/s"


def short(count: float) -> str:
    """A number in five characters, up to a billion."""
    for least, unit in ((1e7, "M"), (1e4, "k")):
        if count >= least:
            return f"{count / (1e6 if unit == 'M' else 1e3):,.0f}{unit}"
    return f"{count:,.0f}"


def counted(count: int, noun: str) -> str:
    """So many of them: "1 object", "2 objects"."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def state_of(server: Server) -> tuple[str, str]:
    """ "ok", "warn" or "bad", and the words for it ("" when there is nothing to say)."""
    facts = server.facts
    if server.error:
        return "bad", "does not answer"
    if facts is None:
        return "warn", "not asked yet"
    known, store = server.delegate, server.lookup.store if server.lookup is not None else None
    if facts.faults or (store is not None and store.fault) or (known is not None and known.mail.fault):
        return "bad", "has faults"
    if known is not None and known.draining:
        return "warn", "draining"
    if known is not None and known.mail.away and known.mail.queued:
        return "warn", "mail server away"
    if server.rates.get("lost", 0.0) > 0 or server.rates.get("events_lost", 0.0) > 0:
        return "warn", "loses objects"
    return "ok", ""


def _band(drawing: Drawing, lookups: Sequence[Server], *, narrow: bool) -> float:
    """The lookup services, above all; where the next may begin."""
    across = 1 if narrow else 4
    width = (drawing.width - (across - 1) * _GAP) / across
    shown = lookups[: 4 * across]
    for place, server in enumerate(shown):
        x, y = (place % across) * (width + _GAP), (place // across) * (56 + _GAP)
        kind, words = state_of(server)
        events = per_second(server.rates.get("events"))
        facts = server.lookup
        told = f"{counted(facts.items, 'item')}{f', {events[:-2]} events/s' if events else ''}" if facts else ""
        lines = (f"lookup {server.title}", words or told)
        drawing.box(x, y, width, 56, lines, kind=f"lookup {kind}", title=_whole(server), href="/servers")
    rows = -(-len(shown) // across)
    return rows * (56 + _GAP) + (12 if rows else 0)


def _lane(drawing: Drawing, top: float, server: Server, publishers: Sequence[Edge], receivers: Sequence[Edge]) -> float:
    rows = max(1, len(publishers), len(receivers))
    height = rows * (_ROW + _GAP) - _GAP
    tall = 60.0
    height = max(height, tall)
    x, middle = (WIDE - _SERVER) / 2, top + height / 2
    for side, edges in (("in", publishers), ("out", receivers)):
        used = len(edges) * (_ROW + _GAP) - _GAP
        for place, edge in enumerate(edges):
            y = top + (height - used) / 2 + place * (_ROW + _GAP)
            here = middle + (place - (len(edges) - 1) / 2) * min(12.0, (tall - 16) / max(1, len(edges)))
            if side == "in":
                _party(drawing, 0, y, _BOX, edge, alone=len(edges) == 1)
                drawing.arrow(_BOX, y + _ROW / 2, x, here, per_second(edge.rate), kind=_kind(edge), at=0.3,
                              title=_told(edge))  # fmt: skip
            else:
                _party(drawing, WIDE - _BOX, y, _BOX, edge, alone=len(edges) == 1)
                drawing.arrow(x + _SERVER, here, WIDE - _BOX, y + _ROW / 2, per_second(edge.rate), kind=_kind(edge),
                              at=0.7, title=_told(edge))  # fmt: skip
    _server(drawing, x, middle - tall / 2, _SERVER, tall, server)
    return top + height


def _list(drawing: Drawing, top: float, server: Server, publishers: Sequence[Edge], receivers: Sequence[Edge]) -> float:
    _server(drawing, 0, top, NARROW, 60, server)
    y, bottom, spine = top + 60 + _GAP, top + 60, NARROW - 8.0
    for side, edges in (("in", publishers), ("out", receivers)):
        for edge in edges:
            _party(drawing, 14, y, 218, edge, alone=len(edges) == 1)
            at, text = y + _ROW / 2, per_second(edge.rate)
            if side == "in":
                drawing.arrow(232, at, spine, at, text, kind=_kind(edge), at=0.45, title=_told(edge))
            else:
                drawing.arrow(spine, at, 232, at, text, kind=_kind(edge), at=0.55, title=_told(edge))
            bottom = at
            y += _ROW + _GAP
    if bottom > top + 60:
        drawing.line([(spine, top + 60), (spine, bottom)], kind="spine")
    return y - _GAP


def _server(drawing: Drawing, x: float, y: float, width: float, height: float, server: Server) -> None:
    kind, words = state_of(server)
    counts = server.delegate.counts if server.delegate is not None else CountsStatus()
    told = ", ".join(counted(getattr(counts, f"{noun}s"), noun) for noun in ("subscription", "registration"))
    name = f"{'delegate' if server.kind == 'unknown' else server.kind} {server.title}"
    lines = (name, told if server.facts else "", words) if words else (name, told)
    drawing.box(
        x, y, width, height, [line for line in lines if line], kind=f"server {kind}", title=_whole(server),
        href=f"/subscriptions?server={quote(server.id, safe='')}",
    )  # fmt: skip


def _party(drawing: Drawing, x: float, y: float, width: float, edge: Edge, *, alone: bool) -> None:
    what = {"publish": "publisher", "deliver": "subscriber", "mail": "e-mail"}[edge.kind]
    noun = "registration" if edge.kind == "publish" else "subscription"
    head = "e-mail" if edge.kind == "mail" else edge.name or "(no name)"
    if edge.of > 1:
        head = f"{edge.of:,} {what}s" if alone else f"{edge.of:,} more {what}s"
    waiting = f", {short(edge.waiting)} wait" if edge.waiting else ""
    drawing.box(x, y, width, _ROW, (head, f"{counted(edge.count, noun)}{waiting}"), kind=f"party {edge.kind}")


def _kind(edge: Edge) -> str:
    return "flows" if edge.rate else "idle"


def _told(edge: Edge) -> str:
    rate = per_second(edge.rate) or "not known yet"
    return f"{edge.name or edge.kind}: {rate}, {edge.waiting:,} waiting, {edge.lost:,} lost"


def _whole(server: Server) -> str:
    where = f"{server.kind} {server.title} at {', '.join(server.ref.endpoints)}"
    return f"{where}: {server.error}" if server.error else where
