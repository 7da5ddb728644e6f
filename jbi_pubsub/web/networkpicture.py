"""A node's networks as a picture: the node, its networks, and the nodes that it hears on each. Pure.

Those of which most is lost stand first; nodes that have no room are one box. On a narrow screen it is a list.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from jbi_pubsub.protocol.status.networks import NetworksStatus, NetworkStatus, PeerStatus

from .drawing import Drawing
from .federation import NETWORK, Server
from .picture import NARROW, WIDE, counted, per_second

PEERS_MOST: Final = 8
"""Boxes of other nodes on one network."""
LINKS_DRAWN: Final = 8
LOSS_MUCH: Final = 20.0
"""Percent of a node's datagrams that do not come, of which more is worth a look."""

_BOX: Final = 250.0
_LINK: Final = 300.0
_ROW: Final = 44.0
_TALL: Final = 60.0
_GAP: Final = 10.0


def network_picture(server: Server, told: NetworksStatus, *, narrow: bool = False) -> Drawing:
    """The drawing of a node's networks."""
    drawing = Drawing(NARROW if narrow else WIDE, 0, f"{server.title}: {counted(told.nodes, 'node')} heard")
    top = 0.0
    tops = []
    for link in told.links[:LINKS_DRAWN]:
        peers = [each for each in told.peers if each.network == link.name]
        tops.append((link, peers, top))
        rows = max(1, min(PEERS_MOST, len(peers)))
        top += max(_TALL, rows * (_ROW + _GAP) - _GAP) + 18
        if narrow:
            top += _TALL + _GAP if peers else 0
    drawing.height = max(_TALL, top - 18) + (_TALL + 18 if narrow else 0)
    at = 0.0 if narrow else (drawing.height - _TALL) / 2
    lines = (
        server.title,
        counted(told.nodes, "node") + " heard",
        *(["another node uses its id"] if told.twin else []),
    )
    drawing.box(0, at, NARROW if narrow else _BOX, _TALL, lines, kind=f"server {'bad' if told.twin else 'ok'}")
    for link, peers, y in tops:
        if narrow:
            _list(drawing, y + _TALL + 18, link, peers)
        else:
            _lane(drawing, y, at + _TALL / 2, (server, link), peers)
    return drawing


def state_of_link(link: NetworkStatus, peers: Sequence[PeerStatus]) -> tuple[str, str]:
    """ "ok", "warn" or "bad", and the words for it ("" when there is nothing to say)."""
    if link.trouble:
        return "bad", link.trouble
    if not link.neighbours:
        return "warn", "no other node is heard"
    if any(each.loss > LOSS_MUCH for each in peers):
        return "warn", "loses much"
    return "ok", ""


def _lane(
    drawing: Drawing, top: float, middle: float, link_of: tuple[Server, NetworkStatus], peers: Sequence[PeerStatus]
) -> None:
    server, link = link_of
    boxes = _boxes(peers, link)
    height = max(_TALL, len(boxes) * (_ROW + _GAP) - _GAP)
    x, center = (WIDE - _LINK) / 2, top + height / 2
    _network(drawing, x, center - _TALL / 2, _LINK, link, peers)
    rate = per_second(server.rates.get(f"{NETWORK}{link.name}.sent"))
    kind = "flows" if link.sent else "idle"
    drawing.arrow(_BOX, middle, x, center, rate, kind=kind, title=f"{link.sent:,} datagrams sent")
    used = len(boxes) * (_ROW + _GAP) - _GAP
    for place, (lines, state, loss) in enumerate(boxes):
        y = top + (height - used) / 2 + place * (_ROW + _GAP)
        drawing.box(WIDE - _BOX, y, _BOX, _ROW, lines, kind=f"party {state}")
        here = center + (place - (len(boxes) - 1) / 2) * min(12.0, (_TALL - 16) / max(1, len(boxes)))
        drawing.arrow(WIDE - _BOX, y + _ROW / 2, x + _LINK, here, loss, kind=_flow(state), at=0.3, title=lines[0])


def _list(drawing: Drawing, top: float, link: NetworkStatus, peers: Sequence[PeerStatus]) -> None:
    _network(drawing, 0, top, NARROW, link, peers)
    y = top + _TALL + _GAP
    for lines, state, loss in _boxes(peers, link):
        drawing.box(14, y, 218, _ROW, lines, kind=f"party {state}")
        drawing.text(242, y + _ROW / 2 + 4, loss)
        y += _ROW + _GAP


def _network(
    drawing: Drawing, x: float, y: float, width: float, link: NetworkStatus, peers: Sequence[PeerStatus]
) -> None:
    state, words = state_of_link(link, peers)
    told = words or f"{counted(link.neighbours, 'node')} heard, {link.repairs:.1f} % sent again"
    lines = (f"network {link.name}", f"{link.plugin} {link.place}".rstrip(), told)
    drawing.box(x, y, width, _TALL, lines, kind=f"lookup {state}", title=" - ".join(lines))


def _boxes(peers: Sequence[PeerStatus], link: NetworkStatus) -> list[tuple[tuple[str, str], str, str]]:
    """Lines, state and loss of each box; of those that have no room together, also of those that are not told."""
    ordered = sorted(peers, key=lambda each: (-each.loss, each.name, each.id))
    shown = ordered if len(ordered) <= PEERS_MOST and link.peers <= len(ordered) else ordered[: PEERS_MOST - 1]
    made = [
        (
            (each.name or each.id[:8], f"{each.heard:.1f} s ago, {counted(each.registrations, 'registration')}"),
            "warn" if each.loss > LOSS_MUCH else "ok", f"{each.loss:.1f} %",
        )
        for each in shown
    ]  # fmt: skip
    left = max(len(ordered), link.peers) - len(shown)
    if left > 0:
        made.append(((counted(left, "more node"), "of which less is lost"), "ok", ""))
    return made


def _flow(state: str) -> str:
    return "flows" if state == "ok" else "idle"
