"""Networks in virtual time: what is sent again, how late the last has all, what is said beside the messages. Seeded:
the same figures each time, whatever else the machine does."""

from __future__ import annotations

import importlib
import sys
import types
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any, Final

from network_figures import NetworkFigure

from jbi_pubsub.network.datagram import REPAIR, DatagramKind, DatagramMode
from jbi_pubsub.network.exchange import ExchangeSettings

SIZE: Final = 1_360
HEADERS: Final = 48 + 16 + 24
SENT_AGAIN: Final = {0.01: 6, 0.05: 26, 0.2: 105, 0.3: 160}
"""Percent of the blocks, by loss."""
BEHIND: Final = {0.05: 60, 0.2: 250}
"""Milliseconds."""
MODEM: Final = 19_200 / 8
PERIOD: Final = 2.0
"""Seconds between announcements."""
LONG: Final = 3_600_000


def of_tests(name: str) -> Any:
    """A module of the tests of networks, which import each other as parts of a package."""
    if "simulated_networks" not in sys.modules:
        package = types.ModuleType("simulated_networks")
        package.__path__ = [str(Path(__file__).parent.parent / "tests" / "network")]
        sys.modules[package.__name__] = package
    return importlib.import_module(f"simulated_networks.{name}")


class Simulation:
    """A world with segments and nodes, the first of which says most."""

    def __init__(self, seed: int) -> None:
        self.tests = of_tests("simulated")
        self.world = self.tests.World(seed)
        self.segments: list[Any] = []
        self.nodes: list[Any] = []
        self.requests = self.repairs = 0

    def segment(self, **given: float) -> Any:
        """One more, where requests and repairs are counted."""
        made = self.tests.Segment(self.world, **given)
        self.segments.append(made)
        return made

    def node(self, *segments: Any, **settings: Any) -> Any:
        """One more."""
        made = self.tests.Node(self.world, len(self.nodes) + 1, list(segments), ExchangeSettings(**settings))
        self.nodes.append(made)
        outgoing = made.exchange.outgoing

        def counted(at: int, now: float) -> bytes | None:
            data: bytes | None = outgoing(at, now)
            if data is not None:
                self.requests += data[3] == DatagramKind.REQUEST
                self.repairs += bool(data[4] & REPAIR)
            return data

        made.exchange.outgoing = counted
        return made

    def body(self, number: int, size: int = SIZE) -> bytes:
        """What nobody has said before."""
        body: bytes = b"%08d" % number + self.world.chance.randbytes(size - 8)
        return body

    def run(self, seconds: float, done: Callable[[], bool] = lambda: False) -> float:
        """Go on for so long, or until it is done; seconds that it took."""
        began = self.world.now
        self.world.run(began + seconds, done)
        return float(self.world.now - began)

    def count(self, what: str) -> int:
        """Bytes of all nodes on all networks: `sent`, `controlled`, or `repaired`."""
        return sum(getattr(side, what) for node in self.nodes for side in node.exchange.sides)


def _lossy(seed: int, loss: float, count: int, *, is_ugly: bool) -> tuple[float, float, float]:
    """Percent that is sent again, milliseconds that the last is behind, and goodput of the rate: five receivers."""
    sim = Simulation(seed)
    segment = sim.segment(loss=loss, overtaking=0.02 if is_ugly else 0.0)
    for _ in range(6):
        sim.node(segment, reorder_seconds=0.025 if is_ugly else 0.0)
    sim.run(2.5)
    first, *others = sim.nodes
    sim.repairs = 0
    for number in range(count):
        first.say(sim.body(number))
    took = sim.run(600.0, lambda: not first.exchange.sides[0].queues.waiting)
    behind = sim.run(600.0, lambda: all(len(each.heard) >= count for each in others))
    assert all(len({message.body for message in each.heard}) == len(each.heard) == count for each in others)
    return 100 * sim.repairs / count, 1e3 * behind, count * SIZE / (took + behind) / segment.rate


def losses(count: int, seeds: int, *, is_ugly: bool) -> Iterator[NetworkFigure]:
    """What is lost, independently at each of five receivers: 5 ms there and back, 5 MB/s."""
    words = ", overtaken" if is_ugly else ""
    for loss, most in SENT_AGAIN.items():
        found = [_lossy(seed, loss, count, is_ugly=is_ugly) for seed in range(seeds)]
        again, behind, goodput = (median(each[at] for each in found) for at in range(3))
        label = f"{loss:.0%} loss{words}"
        yield NetworkFigure(f"{label}: sent again", again, "%", None if is_ugly and loss > 0.1 else most)
        if loss in BEHIND:
            yield NetworkFigure(f"{label}: last is behind", behind, "ms", None if is_ugly else BEHIND[loss])
        if loss == 0.05:
            yield NetworkFigure(f"{label}: goodput", goodput, "", least=0.7)


def questions(seeds: int) -> Iterator[NetworkFigure]:
    """How many ask, answer and offer, where one is enough."""
    asked, answered, offered = [], [], []
    for seed in range(seeds):
        sim = Simulation(seed)
        segment = sim.segment()
        for _ in range(11):
            sim.node(segment)
        sim.run(2.5)
        sim.requests = 0
        segment.loss = 1.0
        sim.nodes[0].say(sim.body(1))
        sim.run(0.005)
        segment.loss = 0.0
        sim.nodes[0].say(sim.body(2))
        sim.run(1.0, lambda sim=sim: all(len(each.heard) == 2 for each in sim.nodes[1:]))  # type: ignore[misc]
        asked.append(sim.requests)
        sim.nodes[0].is_up = False
        sim.run(20.0)
        late = sim.node(segment)
        sim.repairs = 0
        sim.run(10.0, lambda late=late: len(late.heard) == 2)  # type: ignore[misc]
        sim.run(1.0)
        assert len(late.heard) == 2
        answered.append(sim.repairs / 2)
        world, _, coordinator, others = of_tests("test_volunteers")._election(seed, 30)
        coordinator.ask()
        world.run(12.0)
        offered.append(sum(each.offers for each in others))
    yield NetworkFigure("10 miss a block: requests", median(asked), "", 2)
    yield NetworkFigure("10 hold it, its origin is gone: answers", median(answered), "", 2)
    yield NetworkFigure("30 may keep: offers", median(offered), "", 10)


def missed(seeds: int) -> Iterator[NetworkFigure]:
    """When that comes of which nothing has come."""
    last, wholly = [], []
    for seed in range(seeds):
        sim = Simulation(seed)
        segment = sim.segment()
        first, other = sim.node(segment), sim.node(segment)
        sim.run(2.5)
        for number, away in enumerate((0.004, 3.0), 1):
            segment.loss = 1.0
            first.say(sim.body(number))
            sim.run(away)
            segment.loss = 0.0
            took = sim.run(30.0, lambda other=other, number=number: len(other.heard) == number)  # type: ignore[misc]
            (last if number == 1 else wholly).append(took)
    yield NetworkFigure("last of a burst, lost: comes after", 1e3 * median(last), "ms", 200)
    yield NetworkFigure("wholly missed: comes after", median(wholly) / PERIOD, "periods", 2)


def modem(seeds: int) -> Iterator[NetworkFigure]:
    """19,200 bit/s, 600 ms there and back."""
    took, expired = [], 0
    for seed in range(seeds):
        for is_ugly in (False, True):
            sim = Simulation(seed)
            segment = sim.segment(
                rate=MODEM, delay=0.3, loss=0.3 if is_ugly else 0.0, overtaking=0.6 if is_ugly else 0.0
            )
            settings = {"reorder_seconds": 0.7 if is_ugly else 0.0}
            first, other = sim.node(segment, **settings), sim.node(segment, **settings)
            sim.run(4.0)
            if not is_ugly:
                first.say(sim.body(0, 10_240))
                took.append(sim.run(60.0, lambda other=other: other.heard))
                continue
            for number in range(30):
                first.say(sim.body(number), expiration=120_000)
            sim.run(10.0)
            segment.is_cut = True
            sim.run(20.0)
            segment.is_cut = False
            sim.run(90.0)
            expired += 30 - len(other.heard)
    yield NetworkFigure("19,200 bit/s: 10 KB come within", median(took), "s", 6)
    yield NetworkFigure("  30% loss, overtaken, 20 s away: expired", expired, "", 0)


def _spoken(count: int, seconds: float, every: float) -> tuple[float, float]:
    """Percent of the bytes that are requests and announcements, and bytes a node and second."""
    sim = Simulation(1)
    segment = sim.segment(rate=1e8)
    for _ in range(count):
        sim.node(segment)
    sim.run(40.0 if count < 100 else 2 * PERIOD)  # by then they know that nothing is lost
    before = sim.count("sent"), sim.count("controlled")
    for second in range(int(seconds)):
        for number, node in enumerate(sim.nodes if every else ()):
            at = sim.world.now + number / count
            body = sim.body(second * count + number, 1_024)
            sim.world.at(at, lambda node=node, body=body: node.say(body))  # type: ignore[misc]
        sim.run(1.0)
    sent, control = sim.count("sent") - before[0], sim.count("controlled") - before[1]
    return 100 * control / sent, sent / count / seconds


def control(many: int, seconds: float) -> Iterator[NetworkFigure]:
    """What is said beside the messages, by 20 nodes, and by so many."""
    share, _ = _spoken(20, seconds, 1.0)
    yield NetworkFigure("20 nodes, 1 object/s each: control", share, "%", 10)
    _, few = _spoken(20, seconds, 0.0)
    _, lots = _spoken(many, min(seconds, 2 * PERIOD), 0.0)
    yield NetworkFigure(f"{many:,} nodes: bytes of each, by those of 20", lots / few, "x", 2)
    yield NetworkFigure("  bytes a second and node, of 20", few, "byte/s")


def _slow(most: float, seconds: float) -> float:
    """Objects a second at three nodes, beside one that takes so many bytes a second."""
    sim = Simulation(1)
    segment = sim.segment(rate=1e5)
    settings = {"cache_bytes": 800_000, "queue_bytes": 5_000, "announce_seconds": 1.0}
    first, *others = [sim.node(segment, **settings) for _ in range(5)]
    others[-1].most = most
    sim.run(3.0)
    said = 0

    def say() -> None:
        nonlocal said
        if not first.exchange.room(sim.world.now):
            first.say(sim.body(said, 1_000))
            said += 1
        sim.world.at(sim.world.now + 0.008, say)

    say()
    sim.run(seconds / 2)
    before = [len(each.heard) for each in others[:-1]]
    sim.run(seconds / 2)
    return min(len(each.heard) - had for each, had in zip(others, before, strict=False)) / (seconds / 2)


def slow(seconds: float) -> Iterator[NetworkFigure]:
    """Nodes beside one at a tenth of the speed."""
    part = _slow(1e4, seconds) / _slow(float("inf"), seconds)
    yield NetworkFigure("one takes a tenth: rate of the others", 100 * part, "%", least=80)


def relays(count: int, seeds: int) -> Iterator[NetworkFigure]:
    """Nodes that pass on what they hear: a ring of four, and three side by side."""
    rings, parallel = [], []
    for seed in range(seeds):
        sim = Simulation(seed)
        ring = [sim.segment() for _ in range(4)]
        for at in range(4):
            sim.node(ring[at], ring[(at + 1) % 4])
        rings.append(max(_passed(sim, count)))
        sim = Simulation(seed)
        one, other = sim.segment(), sim.segment()
        sim.node(one)
        for _ in range(3):
            sim.node(one, other)
        for _ in range(3):
            sim.node(other)
        parallel.append(_passed(sim, count)[1])
    yield NetworkFigure("ring of four: each segment bears it", median(rings), "times", 1.05)
    yield NetworkFigure("three relays in parallel send it", median(parallel), "times", 1.2)


def _passed(sim: Simulation, count: int) -> Sequence[float]:
    """Have the first node say so many blocks; bytes on each segment over the least, when all have all."""
    sim.run(2.5)
    before = [each.bytes for each in sim.segments]
    for number in range(count):
        sim.nodes[0].say(sim.body(number))
    others = sim.nodes[1:]
    sim.run(60.0, lambda: all(len(each.heard) >= count for each in others))
    assert all(len(each.heard) == count for each in others)
    return [(each.bytes - was) / count / (SIZE + HEADERS) for each, was in zip(sim.segments, before, strict=True)]


def islands(seeds: int, *, is_ugly: bool) -> Iterator[NetworkFigure]:
    """Two islands that meet; `is_ugly`: each network loses a fifth."""
    took = []
    for seed in range(seeds):
        sim = Simulation(seed)
        segments = [sim.segment(loss=0.2 if is_ugly else 0.0) for _ in range(2)]
        for segment in segments:
            for _ in range(3):
                sim.node(segment)
        said = 0
        for _ in range(10):
            for each in sim.nodes[:6:3]:
                said += 1
                each.say(sim.body(said), expiration=LONG)
                each.say(sim.body(said), DatagramMode.DURABLE, durability=b"%016d" % said, update=1, expiration=LONG)
            sim.run(1.0)
        sim.node(*segments)

        def met(sim: Simulation = sim, said: int = said) -> bool:
            return all(len(each.heard) == 2 * said - 2 * 10 * (each in sim.nodes[:6:3]) for each in sim.nodes)

        took.append(sim.run(60.0, met))
    words = ", 20% loss" if is_ugly else ""
    yield NetworkFigure(f"islands meet{words}: one after", median(took) / PERIOD, "periods", 3)


def churn(seconds: int) -> Iterator[NetworkFigure]:
    """Each second one of 20 leaves or is there again, while others speak."""
    sim = Simulation(1)
    segment = sim.segment(loss=0.02)
    for _ in range(20):
        sim.node(segment)
    staying, coming = sim.nodes[:10], sim.nodes[10:]
    sim.run(2.5)
    for second in range(seconds):
        node = sim.world.chance.choice(coming)
        node.is_up = not node.is_up
        node.arm()
        for each in staying[:3]:
            each.say(sim.body(second), expiration=LONG)
        sim.run(1.0)
    for each in coming:
        each.is_up = True
        each.arm()
    sim.run(30.0)
    lacks = sum(3 * seconds - len(each.heard) - seconds * (each in staying[:3]) for each in sim.nodes)
    yield NetworkFigure("each second one of 20 comes or goes: missing", lacks, "", 0)
