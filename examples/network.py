"""`jbi demo network`: three nodes, two networks that lose, a relay between them, and an island that comes back.

Node alpha is in the field, bravo at the base, and the relay is on both networks, which are emulated: one loses a tenth
of what is sent, the other a fifth. What alpha publishes comes to a subscriber at bravo, by its predicate, once and in
order; then the far network fails, alpha publishes on, and what it has published comes when it is back. A query at bravo
finds all of it in the archive of alpha.
"""

from __future__ import annotations

import os
import time
from contextlib import ExitStack, closing
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from jbi_pubsub import Config, PublisherAdapterLight, SubscriberAdapter
from jbi_pubsub.core import extras
from jbi_pubsub.core.config import ArchiveSection
from jbi_pubsub.network.emulator import NetworkEmulator
from jbi_pubsub.network.topology import EmulatedSegment, NetworkTopology, SegmentMember
from jbi_pubsub.node.admin import NodeProxy

from .example import DATA, ExampleOptions, ExampleOutcome, OutcomeTable, Promise
from .federation import PATIENCE, Federation

TYPE: Final = "mil.af.rl.jbi.Intel_Imagery"
NETWORKS: Final = {"alpha": ("near",), "relay": ("near", "far"), "bravo": ("far",)}
LOSSES: Final = {"near": 0.1, "far": 0.2}
CONNECTED: Final = 200
"""Objects that are published while all are connected."""
AWAY: Final = 50
"""Those that are while the far network has failed."""
PORT: Final = 47_000
WANTED: Final = "//lat>33"
IS_KEPT: Final = not extras.missing("archive")
"""Whether a node can have an archive."""
QUIET: Final = 0.5
"""Seconds in which what comes twice, or should not come, would show itself."""


def run(options: ExampleOptions) -> ExampleOutcome:
    """The emulator and the applications are in this process, the nodes are processes of their own."""
    connected, away = (20, 10) if options.quick else (CONNECTED, AWAY)
    expected = [number for number in range(1, connected + away + 1) if number % 5]
    with TemporaryDirectory(prefix="jbi-demo-") as folder, ExitStack() as stack:
        groups = _groups()
        emulator = stack.enter_context(NetworkEmulator(_topology(groups)))
        nodes = {name: _node(name, Path(folder), groups, stack) for name in NETWORKS}
        options.tell("three nodes are ready: alpha and relay on the near network, relay and bravo on the far one")
        publisher = _Publisher(stack.enter_context(PublisherAdapterLight(nodes["alpha"].config)))
        subscriber = stack.enter_context(SubscriberAdapter(nodes["bravo"].config))
        subscription = subscriber.register_subscriber(type_name=TYPE, predicate=WANTED)
        subscriber.wait_matched(subscription, timeout=PATIENCE)
        options.tell("a subscriber at bravo knows of a publisher at alpha, which it has never heard itself")
        publisher.publish(connected)
        came = _received(subscriber, subscription, sum(number <= connected for number in expected))
        options.tell(f"{len(came)} of {connected} images are what it has subscribed to")
        emulator.change("far", down=True)
        options.tell("the far network has failed; alpha publishes on")
        publisher.publish(away)
        missed = _received(subscriber, subscription, 1, QUIET)
        emulator.change("far", down=False)
        late = _received(subscriber, subscription, len(expected) - len(came))
        options.tell(f"it is back, and so are {len(late)} images that were published meanwhile")
        again = _received(subscriber, subscription, 1, QUIET)
        found = len(list(subscriber.query(TYPE, predicate=WANTED, timeout=PATIENCE))) if IS_KEPT else 0
        rows = [row for name, each in nodes.items() for row in _networks(name, each)]
    promises = [
        Promise("what the predicate wants came two nodes away, once and in order", came == expected[: len(came)] != []),
        Promise("while the network was down nothing came", missed == []),
        Promise("what was published meanwhile came when it was back, in order", came + late == expected and late != []),
        Promise("nothing came twice", again == []),
        Promise("datagrams were lost, and sent again", any(row[-1] != "0.0 %" for row in rows)),
    ]
    if IS_KEPT:
        promises.append(Promise("a query at bravo finds in alpha's archive what came", found == len(expected)))
    columns = ("node", "network", "sent", "received", "sent again")
    return ExampleOutcome((OutcomeTable("datagrams of each node", columns, rows),), tuple(promises))


class _Publisher:
    """A publisher at alpha of images, every fifth of which is not wanted."""

    def __init__(self, adapter: PublisherAdapterLight) -> None:
        self._adapter = adapter
        images = DATA / "intel_imagery"
        self._wanted = (images / "fig1.xml").read_bytes()
        self._other = self._wanted.replace(b"<lat>33", b"<lat>12")
        at = adapter.connect_to_delegate("node", "alpha")
        self._uid = adapter.register_publisher(at, images / "Intel_Imagery.xsd", self._wanted, persist=IS_KEPT)
        self._number = 0

    def publish(self, count: int) -> None:
        for _ in range(count):
            self._number += 1
            self._adapter.publish(self._uid, self._wanted if self._number % 5 else self._other, b"%d" % self._number)


def _node(name: str, folder: Path, groups: dict[tuple[str, str], str], stack: ExitStack) -> Federation:
    """A node, and those who know it alone."""
    made = stack.enter_context(Federation(Config(archive=ArchiveSection(reserve=0.0))))
    own = _settings(name, groups, is_kept=IS_KEPT and name == "alpha")
    made.node(name, "--folder", str(folder / name), "--name", name, own=own)
    return made


def _groups() -> dict[tuple[str, str], str]:
    """Multicast group of each node on each network, others in each process."""
    pid = os.getpid()
    places = [(node, network) for node, networks in NETWORKS.items() for network in networks]
    net = f"239.{192 + (pid >> 13) % 4}.{pid >> 5 & 255}"
    return {place: f"{net}.{8 * (pid & 31) + at}" for at, place in enumerate(places)}


def _topology(groups: dict[tuple[str, str], str]) -> NetworkTopology:
    return NetworkTopology({
        network: EmulatedSegment(loss=loss, delay=0.002, member={
            node: SegmentMember(group=f"{group}:{PORT}") for (node, on), group in groups.items() if on == network
        })
        for network, loss in LOSSES.items()
    })  # fmt: skip


def _settings(name: str, groups: dict[tuple[str, str], str], *, is_kept: bool) -> list[str]:
    """Words for `jbi`."""
    values = {"node.archive": str(is_kept).lower(), "node.announce_seconds": "0.5", "node.events": "false"}
    for network in NETWORKS[name]:
        values[f"network.{network}.group"] = groups[name, network]
        values[f"network.{network}.port"] = str(PORT)
        values[f"network.{network}.interfaces"] = "lo"
    return [word for key, value in values.items() for word in ("--set", f"{key}={value}")]


def _received(subscriber: SubscriberAdapter, subscription: Any, count: int, seconds: float = PATIENCE) -> list[int]:
    """Numbers of so many objects that come within some seconds."""
    found: list[int] = []
    deadline = time.monotonic() + seconds
    while len(found) < count:
        obj = subscriber.receive(subscription, timeout=max(0.0, deadline - time.monotonic()))
        if obj is None:
            break
        found.append(int(bytes(obj.payload)))
    return found


def _networks(name: str, node: Federation) -> list[tuple[str | int | float, ...]]:
    with closing(NodeProxy(str(node.ready[name]["address"]), node.config.security())) as proxy:
        links = proxy.networks().links
    return [(name, each.name, each.sent, each.received, f"{each.repairs:.1f} %") for each in links]
