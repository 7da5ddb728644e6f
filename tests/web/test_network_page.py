"""The page of nodes' networks: picture and rows, pure, and in a real browser beside nodes of this process."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest
from browsing import browsed, needs_chromium, picture

from jbi_pubsub.core.node_sections import NetworkSection, NodeSection
from jbi_pubsub.core.wire import ServiceRef
from jbi_pubsub.node.service import NodeService
from jbi_pubsub.protocol.status.delegate import DelegateOverview
from jbi_pubsub.protocol.status.networks import NetworksStatus, NetworkStatus, PeerStatus
from jbi_pubsub.web.drawing import Drawing
from jbi_pubsub.web.federation import NETWORK, Observer, Server, Snapshot
from jbi_pubsub.web.networkpicture import PEERS_MOST, network_picture, state_of_link
from jbi_pubsub.web.picture import NARROW, WIDE

from .test_console import OVERLAPPING, WIDER

HOSTILE: Final = "<img src=x onerror=alert(1)>"


def _node(told: NetworksStatus) -> Server:
    facts = DelegateOverview(
        kind="delegate", address="127.0.0.1:1", uptime=1.0, name="node", location="alpha", node="a" * 32, networks=told
    )
    rates = {f"{NETWORK}lab.sent": 12.5}
    return Server("one", "delegate", ServiceRef("", "status", ("127.0.0.1:1",)), facts, {}, "", rates, True)


def _link(name: str, **facts: Any) -> NetworkStatus:
    return NetworkStatus(name=name, plugin="udp", place="239.1.1.1 port 4162 on lo", sent=7, **facts)


def _words(drawing: Drawing) -> list[str]:
    boxed = [text["t"] for shape in drawing.shapes for text in shape.get("texts", [])]
    return boxed + [shape["t"] for shape in drawing.shapes if shape.get("t")]


@pytest.mark.parametrize("narrow", [False, True])
def test_a_node_on_networks_with_many_nodes_stays_readable(narrow: bool) -> None:
    # Given a node on three networks, with 40 nodes on the first, of which most are not told, and nobody on the last
    peers = [
        PeerStatus(id=f"{n:032x}", name=f"{HOSTILE}{n}", network="lab", loss=float(n), registrations=n)
        for n in range(25, 0, -1)
    ]
    peers.append(PeerStatus(id="f" * 32, name="far", network="far", heard=1.5))
    links = [_link("lab", neighbours=40, peers=40), _link("far", neighbours=1, peers=1, repairs=2.5), _link("sea")]
    told = NetworksStatus(links=links, peers=peers, nodes=41)
    drawing = network_picture(_node(told), told, narrow=narrow)
    words = _words(drawing)
    # Expect networks, the nodes of which most is lost, and how many there are more
    assert {"network lab", "network far", "network sea", "41 nodes heard", "no other node is heard"} <= set(words)
    assert f"{40 - PEERS_MOST + 1} more nodes" in words
    assert {"25.0 %", "1 node heard, 2.5 % sent again"} <= set(words)
    assert ("12.5/s" in words) != narrow
    # Expect no two boxes to overlap, and none beyond the edge
    boxes = [(s["x"], s["y"], s["x"] + s["w"], s["y"] + s["h"]) for s in drawing.shapes if s["s"] == "box"]
    for one, other in itertools.combinations(boxes, 2):
        apart = one[2] <= other[0] or other[2] <= one[0] or one[3] <= other[1] or other[3] <= one[1]
        assert apart, (one, other)
    assert max(box[2] for box in boxes) <= (NARROW if narrow else WIDE)
    assert max(box[3] for box in boxes) <= drawing.height < 2_000


def test_states_of_a_network_are_told_in_words() -> None:
    lossy = [PeerStatus(name="bravo", loss=21.0)]
    assert state_of_link(_link("lab", neighbours=1), [PeerStatus(loss=20.0)]) == ("ok", "")
    assert state_of_link(_link("lab", neighbours=1), lossy) == ("warn", "loses much")
    assert state_of_link(_link("lab"), []) == ("warn", "no other node is heard")
    assert state_of_link(_link("lab", trouble="eth7 is down"), lossy) == ("bad", "eth7 is down")
    twin = NetworksStatus(links=[_link("lab")], twin=True)
    assert "another node uses its id" in _words(network_picture(_node(twin), twin))


class Nodes:
    """Nodes of this process on a network within it, of which the first can be looked at."""

    def __init__(self, folder: Path, config: Any, stack: ExitStack) -> None:
        self._folder, self._config, self._stack = folder, config, stack

    def start(self, name: str) -> NodeService:
        section = NodeSection(
            folder=str(self._folder / name[:5]), name=name, archive=False, announce_seconds=0.2, node_timeout=2.0
        )
        network = {"lab": NetworkSection(plugin="local", group=f"{self._folder}-lab")}
        service = NodeService(msgspec.structs.replace(self._config, node=section, network=network))
        self._stack.callback(service.stop, 0.5)
        service.start()
        return service


@pytest.fixture
def nodes(tmp_path: Path, fixtures: Any) -> Iterator[Nodes]:
    with ExitStack() as stack:
        yield Nodes(tmp_path, fixtures.test_config(), stack)


def test_the_observer_keeps_series_of_networks_and_forgets_those_that_are_gone(
    nodes: Nodes, eventually: Callable[..., Any]
) -> None:
    # Given two nodes, and an observer of one
    alpha = nodes.start("alpha")
    nodes.start("bravo")
    observer = Observer(alpha.config, addresses=(alpha.delegate.address,), every=0.05)
    observer.start()
    try:
        # Expect what goes over its network as rates, and what is lost
        def seen() -> Snapshot | None:
            shot = observer.snapshot()
            return shot if shot.servers and shot.servers[0].rates.get(f"{NETWORK}lab.sent") else None

        shot = eventually(seen, timeout=20.0)
        [server] = shot.servers
        assert server.delegate is not None
        assert [each.name for each in server.delegate.networks.peers] == ["bravo"]
        for series in ("sent", "received", "again", "loss", "waiting"):
            assert observer.history(f"{NETWORK}lab.{series}", server.id), series
        # and nothing in the sums of all servers: another node's network may have that name
        assert observer.history("published")
        assert not observer.history(f"{NETWORK}lab.sent")
        # When the node is on no network any more; Expect no series of it
        alpha.delegate.show_networks(NetworksStatus)
        eventually(lambda: not observer.history(f"{NETWORK}lab.sent", server.id), timeout=20.0)
        eventually(lambda: f"{NETWORK}lab.sent" not in observer.snapshot().servers[0].rates, timeout=20.0)
    finally:
        observer.stop()


@pytest.mark.processes
@needs_chromium
def test_networks_in_a_browser(
    nodes: Nodes, start: Callable[..., Any], tmp_path: Path, eventually: Callable[..., Any]
) -> None:
    pytest.importorskip("nicegui", reason="NiceGUI is not installed (extra web)")
    # Given two nodes, one with a hostile name, and a console without any right to change something
    alpha = nodes.start("alpha")
    nodes.start(HOSTILE)
    eventually(lambda: alpha.networks().peers, timeout=20.0)
    assert alpha.lookup is not None
    seen = ("--no-multicast", "--locator", alpha.lookup.address, "web", "--port", "0", "--json")
    url = start(*seen).fact()["url"]
    with browsed(url) as (page, troubles):
        # When somebody opens the page
        page.get_by_role("link", name="Networks").click()
        page.get_by_role("heading", name="Networks", level=1).wait_for()
        # Expect the link, and the other node by its name, as text
        page.locator("section[aria-label=Links] td").get_by_text("lab", exact=True).wait_for()
        page.locator("section[aria-label='Nodes heard'] td").get_by_text(HOSTILE).wait_for()
        page.locator(".jbi-wide .jbi-drawing").get_by_text("network lab", exact=True).wait_for()
        page.locator("section[aria-label='Datagrams sent per second'] p").get_by_text("now: lab").wait_for()
        assert page.locator("img[src=x]").count() == 0
        # and all of it to fit wide and narrow windows
        for width in (1280, 390):
            page.set_viewport_size({"width": width, "height": 800})
            page.wait_for_timeout(300)
            picture(page, f"networks-{width}")
            assert page.evaluate(WIDER) == []
            assert page.evaluate(OVERLAPPING) == []
        assert troubles == []
