"""The page of nodes' networks: links, the nodes that are heard, and how much of what goes and comes is lost.

It shows the status of a node's delegate, so who may `status` there may see it. Names of nodes are others' words, and
shown as text.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from msgspec import UNSET
from nicegui import ui

from jbi_pubsub.protocol.status.networks import NetworksStatus, PeerStatus

from .console import LOOK_SECONDS, Canvas, Console, later, offer, region, show_rows, table, tell, words
from .federation import LINKS_MOST, NETWORK, Server, Snapshot
from .networkpicture import network_picture, state_of_link
from .picture import per_second
from .plots import SeriesPlot

ROWS: Final = 25
"""Rows of a page of a table."""
PLOTS: Final = (
    ("Sent again, percent of datagrams sent", "again"), ("Loss of the worst node, percent", "loss"),
    ("Datagrams sent per second", "sent"), ("Datagrams received per second", "received"),
)  # fmt: skip


def build(console: Console) -> None:
    """Register the page."""
    console.page("/networks")(lambda: _NetworksPage(console))


def nodes_of(shot: Snapshot) -> dict[str, tuple[Server, NetworksStatus]]:
    """Nodes that have networks, by the ids of their delegates."""
    return {
        s.id: (s, s.delegate.networks)
        for s in shot.servers
        if s.delegate is not None and s.delegate.networks is not UNSET
    }


def link_rows(server: Server, told: NetworksStatus) -> list[dict[str, Any]]:
    """Networks of a node, as the table has them."""
    return [
        {
            "key": link.name, "name": link.name, "place": f"{link.plugin} {link.place}",
            "nodes": f"{link.neighbours:,}",
            "sent": _and_rate(link.sent, server, f"{link.name}.sent"),
            "received": _and_rate(link.received, server, f"{link.name}.received"),
            "again": f"{link.repairs:.1f} %", "rate": f"{link.rate:,.0f} B/s", "waiting": f"{link.waiting:,} B",
            "trouble": state_of_link(link, [each for each in told.peers if each.network == link.name])[1],
        }
        for link in told.links
    ]  # fmt: skip


def peer_rows(peers: Sequence[PeerStatus]) -> list[dict[str, Any]]:
    """Nodes that are heard, as the table has them."""
    return [
        {
            "key": each.id, "name": each.name, "id": each.id[:8], "network": each.network,
            "heard": f"{each.heard:.1f} s ago", "loss": f"{each.loss:.1f} %",
            "registrations": f"{each.registrations:,}", "roles": ", ".join(each.roles),
            "addresses": ", ".join(each.addresses),
        }
        for each in peers
    ]  # fmt: skip


def _and_rate(count: int, server: Server, name: str) -> str:
    return ", ".join(filter(None, (f"{count:,}", per_second(server.rates.get(f"{NETWORK}{name}")))))


class _NetworksPage:
    """One tab's."""

    def __init__(self, console: Console) -> None:
        self._console = console
        with ui.element("div").classes("jbi-form"):
            self._which = ui.select({}, label="Node").classes("jbi-grow")
        self._problem = words("p", "", "jbi-problem").props("role=status")
        with later() as self._parts:
            with ui.element("div").classes("jbi-wide"):
                self._wide = Canvas()
            with ui.element("div").classes("jbi-narrow"):
                self._narrow = Canvas()
            words("p", "Arrows show the datagrams sent per second, and the recent share of each node's datagrams "
                  "that was lost. Lost datagrams are requested again.", "jbi-note")  # fmt: skip
            with region("Links"):
                self._links = table(
                    (("name", "Network"), ("place", "Where"), ("nodes", "#Nodes"), ("sent", "#Sent"),
                     ("received", "#Received"), ("again", "#Sent again"), ("rate", "#Rate"), ("waiting", "#Waiting"),
                     ("trouble", "Trouble")), empty="No network",
                )  # fmt: skip
            with region("Nodes heard"):
                self._peers = table(
                    (("name", "Node"), ("id", "Id"), ("network", "Network"), ("heard", "#Last heard"),
                     ("loss", "#Lost"), ("registrations", "#Registrations"), ("roles", "Does"),
                     ("addresses", "Addresses")), empty="No other node is heard", rows=ROWS,
                )  # fmt: skip
                self._unseen = words("p", "", "jbi-note")
            with ui.element("div").classes("jbi-plots"):
                self._plots = [(SeriesPlot(title), series) for title, series in PLOTS]
        self._which.on_value_change(self._look)
        self._look()
        ui.timer(LOOK_SECONDS, self._look)

    def _look(self) -> None:
        shot = self._console.observer.snapshot()
        nodes = nodes_of(shot)
        titles = {key: server.title for key, (server, _) in nodes.items()}
        offer(self._which, titles, next(iter(titles), None))
        chosen = nodes.get(self._which.value)
        for each in (self._which, self._parts):
            each.set_visibility(chosen is not None)
        if chosen is None:
            note = "No node has networks: [network.NAME] in its configuration makes one"
            tell(self._problem, shot.problem or note, calm=not shot.problem)
            return
        server, told = chosen
        twin = f"{server.title}: another node uses its id: stop one of the two" if told.twin else ""
        tell(self._problem, server.error or "; ".join(filter(None, (twin, *told.troubles))))
        self._wide.show(network_picture(server, told))
        self._narrow.show(network_picture(server, told, narrow=True))
        show_rows(self._links, link_rows(server, told))
        show_rows(self._peers, peer_rows(told.peers))
        unseen = told.nodes - len(told.peers)
        self._unseen.text = f"{unseen:,} more nodes are heard: jbi node peers lists all" if unseen > 0 else ""
        names = [link.name for link in told.links[:LINKS_MOST]]
        for plot, series in self._plots:
            history = self._console.observer.history
            plot.show([(name, history(f"{NETWORK}{name}.{series}", server.id)) for name in names], shot.at)
