"""Networks over real sockets: a process for each node, multicast on loopback, losses drawn at each receiver."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import random
import socket
import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from network_figures import NetworkFigure

from jbi_pubsub.core.errors import JbiError
from jbi_pubsub.network.datagram import DatagramKind, DatagramMode
from jbi_pubsub.network.exchange import Exchange, ExchangeSettings
from jbi_pubsub.network.links.link import Waitable
from jbi_pubsub.network.links.udp import UdpLink
from jbi_pubsub.network.message import MessageForm, NodeMessage
from jbi_pubsub.network.network import Network, NetworkLink
from jbi_pubsub.network.sealing import seal_of
from jbi_pubsub.network.side import SideTerms

RECEIVERS: Final = 5
SENT_AGAIN: Final = {0.01: 8, 0.05: 28, 0.2: 115, 0.3: 190}
"""Percent of the blocks, by loss."""
FAST: Final = 300e6
"""Bytes a second where a link sets no bound."""
LARGE_BLOCK: Final = 60_000
"""Bytes of a block where the link takes any: loopback."""
PATIENCE: Final = 120.0
BURST: Final = 8
_COUNT: Final = itertools.count()


def place() -> tuple[str, int]:
    """A group of this process alone, and a free port."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.bind(("", 0))
        port = int(sock.getsockname()[1])
    return f"239.{80 + next(_COUNT) % 20}.{os.getpid() >> 8 & 255}.{os.getpid() & 255}", port


class LosingLink:
    """A link that loses what comes by chance; in bursts, if it is ugly."""

    is_lossless: Final = False

    def __init__(self, link: UdpLink, loss: float, *, is_ugly: bool, seed: int) -> None:
        self._link, self._loss, self._is_ugly = link, loss, is_ugly
        self._chance = random.Random(seed)
        self._left = 0

    def sockets(self) -> Sequence[Waitable]:
        """See DatagramLink."""
        return self._link.sockets()

    def receive(self, sock: Waitable) -> list[bytes]:
        """See DatagramLink."""
        return [data for data in self._link.receive(sock) if not self._is_lost()]

    def send(self, datagrams: Sequence[bytes]) -> int:
        """See DatagramLink."""
        return self._link.send(datagrams)

    def waiting(self) -> int:
        """See DatagramLink."""
        return self._link.waiting()

    def status(self) -> dict[str, Any]:
        """See DatagramLink."""
        return self._link.status()

    def close(self) -> None:
        """See DatagramLink."""
        self._link.close()

    def _is_lost(self) -> bool:
        if not self._is_ugly:
            return self._chance.random() < self._loss
        if self._left:
            self._left -= 1
            return True
        if self._chance.random() < self._loss / BURST:
            self._left = BURST - 1
            return True
        return False


@dataclass(frozen=True)
class LiveCase:
    """A multicast: so many messages of a size."""

    count: int
    size: int
    loss: float = 0.0
    is_ugly: bool = False
    rate: float = FAST
    block: int = 1_360
    secret: str = ""
    receivers: int = RECEIVERS

    @property
    def blocks(self) -> int:
        """Blocks that all messages are."""
        return self.count * -(-self.size // self.block)


def take_part(case: LiveCase, at: tuple[str, int], number: int, told: Any, go: Any, over: Any) -> None:
    """A node in a process of its own; the first one says all."""
    came: list[float] = []
    me = bytes((number,)) * 4 + os.urandom(12)
    link: Any = UdpLink(at[0], at[1], interfaces=("lo",), send_buffer=8 << 20, receive_buffer=64 << 20)
    if case.loss:
        link = LosingLink(link, case.loss, is_ugly=case.is_ugly, seed=number)
    settings = ExchangeSettings(announce_seconds=0.5, form=MessageForm(case.block))

    def deliver(message: NodeMessage) -> None:
        if message.kind == DatagramKind.PUBLICATION:
            came.append(time.time())
            if len(came) == case.count:
                told.put(("complete", number, came[-1], time.process_time() - used))

    network = Network(me, 1, [NetworkLink(link, SideTerms(case.rate), seal_of(case.secret, me))], deliver, settings)
    network.start()
    while len(network.peers()) < case.receivers:
        time.sleep(0.02)
    told.put(("there", number, 0.0, 0.0))
    go.wait(PATIENCE)
    used = time.process_time()
    if not number:
        began = time.time()
        body = os.urandom(case.size)
        for at_ in range(case.count):
            message = NodeMessage(DatagramKind.PUBLICATION, DatagramMode.RELIABLE, b"%08d" % at_ + body[8:])
            network.say(message, PATIENCE)
        told.put(("said", number, began, 0.0))
    over.wait(PATIENCE)
    if not number:
        told.put(("sender", number, 0.0, time.process_time() - used))
    status = network.status()["links"][0]
    told.put(("status", number, status, len(came)))
    network.stop()


def multicast(case: LiveCase) -> dict[str, float]:
    """Figures of it."""
    context = multiprocessing.get_context("spawn")
    told, go, over = context.Queue(), context.Event(), context.Event()
    at = place()
    parties = [
        context.Process(target=take_part, args=(case, at, number, told, go, over), daemon=True)
        for number in range(case.receivers + 1)
    ]
    for each in parties:
        each.start()
    found: dict[str, list[Any]] = {"there": [], "complete": [], "said": [], "status": [], "sender": []}

    def until(what: str, count: int) -> list[Any]:
        while len(found[what]) < count:
            name, _, *facts = told.get(timeout=PATIENCE)
            found[name].append(facts)
        return found[what]

    try:
        until("there", len(parties))
        go.set()
        until("complete", case.receivers)
        ended = max(when for when, _ in found["complete"])
        began = until("said", 1)[0][0]
        over.set()
        statuses = [status for status, _ in until("status", len(parties))]
        came = [count for _, count in found["status"]]
    finally:
        over.set()
        for each in parties:
            each.join(10.0)
            each.kill()
    megabytes = case.count * case.size / 1e6
    repairs = sum(each["repairs"] * each["sent"] / 100 for each in statuses)
    return {
        "seconds": ended - began,
        "objects/s": case.count / (ended - began),
        "MB/s": megabytes / (ended - began),
        "sent again": 100 * repairs / case.blocks,
        "bytes": sum(each["sent_bytes"] for each in statuses) / (case.count * case.size),
        "dropped": sum(each["faults"].get("no room", 0) for each in statuses),
        "received": sum(each["received"] for each in statuses),
        "receiver ms/MB": statistics.mean(used for _, used in found["complete"]) / megabytes * 1e3,
        "sender ms/MB": until("sender", 1)[0][1] / megabytes * 1e3,
        "twice": sum(came) - case.receivers * case.count,
    }


def losses(seconds: float, *, is_ugly: bool) -> Iterator[NetworkFigure]:
    """What is sent again, at 2 MB/s for so many seconds."""
    words = ", in bursts" if is_ugly else ""
    for loss, most in SENT_AGAIN.items():
        case = LiveCase(max(40, int(2e6 * seconds / 1_360)), 1_360, loss, is_ugly, rate=2e6)
        found = multicast(case)
        yield NetworkFigure(f"sockets, {loss:.0%} loss{words}: sent again", found["sent again"], "%", most)
        if loss == 0.05:
            share = found["MB/s"] * 1e6 / case.rate
            yield NetworkFigure(f"sockets, 5% loss{words}: goodput", share, "", least=0.7)


def speed(megabytes: float) -> Iterator[NetworkFigure]:
    """How fast, without losses."""
    for size, block in ((65_536, LARGE_BLOCK), (65_536, 1_360), (1_024, 1_360)):
        found = multicast(
            LiveCase(max(8, int(megabytes * 1e6 / size * (1 if block > 2_000 else 0.2))), size, block=block)
        )
        words = f"{size >> 10} KB, blocks of {block}"
        aims = size > 1_024 and block == LARGE_BLOCK
        yield NetworkFigure(f"multicast to 5, {words}", found["MB/s"], "MB/s each", least=50 if aims else None)
        yield NetworkFigure("  CPU of a receiver", found["receiver ms/MB"], "ms/MB", 2 if aims else None)
        yield NetworkFigure("  CPU of the sender", found["sender ms/MB"], "ms/MB")
        dropped = 100 * found["dropped"] / max(1, found["received"])
        yield NetworkFigure("  dropped by the kernel", dropped, "%", 0.1 if aims else None)


def sealing(megabytes: float, rounds: int) -> Iterator[NetworkFigure]:
    """By how much sealing slows a network down."""
    for size in (1_024, 65_536):
        count = max(8, int(megabytes * 1e6 / size))
        cases = [LiveCase(count, size, secret=secret, receivers=1) for secret in ("", "a secret of all nodes")]
        rates = [[multicast(case)["objects/s"] for case in cases] for _ in range(rounds)]
        slower = statistics.median(100 * (1 - sealed / clear) for clear, sealed in rates)
        yield NetworkFigure(f"sealing, {size >> 10} KB: slower by", slower, "%", 25)
        yield NetworkFigure("  sealed", statistics.median(each[1] for each in rates), "objects/s")


@contextmanager
def joined(*sides: Sequence[tuple[str, int]]) -> Iterator[tuple[list[Network], list[list[float]]]]:
    """Nodes in this process, each on some groups, and when messages came at each."""
    came: list[list[float]] = [[] for _ in sides]
    networks = []
    for number, places in enumerate(sides):
        links = [NetworkLink(UdpLink(group, port, interfaces=("lo",))) for group, port in places]

        def deliver(_: NodeMessage, number: int = number) -> None:
            came[number].append(time.perf_counter())

        me = bytes((number + 1,)) * 4 + os.urandom(12)
        networks.append(Network(me, 1, links, deliver, ExchangeSettings(announce_seconds=0.3)))
    for each in networks:
        each.start()
    try:
        yield networks, came
    finally:
        for each in networks:
            each.stop()


def memory(count: int) -> Iterator[NetworkFigure]:
    """What a node that hears so many messages has grown by in the second half of them, in no more than it may keep."""
    kept = ExchangeSettings(cache_bytes=8 << 20, processed_hashes=20_000, announce_seconds=0.5)
    say, hear = (Exchange(bytes((at,)) * 16, 1, 1, random.Random(at).uniform, kept) for at in (1, 2))
    now, heard, before = 0.0, 0, 0.0
    for number in range(count):
        now += 0.001
        if not say.room(now):
            message = NodeMessage(DatagramKind.PUBLICATION, DatagramMode.RELIABLE, b"%016d" % number)
            say.say(message, now)
        for one, other in ((say, hear), (hear, say)):
            if one.due() <= now:
                one.tick(now)
            while (data := one.outgoing(0, now)) is not None:
                heard += len(list(other.received(0, data, now)))
        if number == count // 2:
            before = _resident()
    grown = 100 * (_resident() / before - 1)
    yield NetworkFigure(f"{heard:,} messages: memory grows by", grown, "%", 3)


def _resident() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return float(pages * os.sysconf("SC_PAGE_SIZE"))


def relay(count: int) -> Iterator[NetworkFigure]:
    """How long a node takes that passes messages on, one now and then."""
    one, other = place(), place()
    with joined((one,), (one, other), (other,)) as (networks, came):
        deadline = time.monotonic() + PATIENCE
        while len(networks[0].peers()) < 2 and time.monotonic() < deadline:
            time.sleep(0.02)
        for number in range(count):
            body = b"%08d" % number + os.urandom(1_000)
            networks[0].say(NodeMessage(DatagramKind.PUBLICATION, DatagramMode.RELIABLE, body))
            time.sleep(0.1)
        while len(came[2]) < count:
            time.sleep(0.01)
            if time.monotonic() > deadline:
                raise JbiError("what a relay was to pass on has not come")
        waits = [1e3 * (last - first) for first, last in zip(came[1], came[2], strict=True)]
    yield NetworkFigure("relay, median of the time it takes", statistics.median(waits), "ms", 5)
