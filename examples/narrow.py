"""A link that is too narrow for all (the second half of Table 2 of the QED paper): who gets how much of it.

Three publishers send an important and a normal type as fast as they can, WAITING objects of each under way at any time,
to one subscriber behind a link with a limit. Lookup service and delegate are processes; fair with weights 2 to 1,
strict, and all alike under the same limit, each counted in the second half of its time. Shares and ratios count.
"""

from __future__ import annotations

import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import msgspec

from jbi_pubsub import Config, InfoObject, PublisherAdapterLight, RegistrationUid, SubscriberAdapter
from jbi_pubsub.core.config import effective
from jbi_pubsub.core.errors import DemoError
from jbi_pubsub.core.info_object import Head, pack
from jbi_pubsub.core.wire import ServiceRef
from jbi_pubsub.core.wire.endpoint import Security
from jbi_pubsub.examples.example import DATA, TYPES, Cell, ExampleOutcome, OutcomeTable, Promise, beside_paper
from jbi_pubsub.examples.federation import PATIENCE, Federation
from jbi_pubsub.protocol.services import fetch_status
from jbi_pubsub.spark.plots import Plot

SCHEMA: Final = DATA / "intel_imagery" / "Intel_Imagery.xsd"
FIGURE_1: Final = DATA / "intel_imagery" / "fig1.xml"
PUBLISHERS: Final = 3
WAITING: Final = 8
"""Objects of each publisher and type that have not been received."""
WIRE_BYTES: Final = 3_000
"""Bytes of an object on the delivery connection, as in the paper."""
FRAMING: Final = 26
"""Heads of a batch, its item's length, and the item (core/wire/stream.py, pad/egress/session.py)."""
LIMIT: Final = 300_000
"""Bits a second."""

POLICIES: Final = """
[space]
strategy = "{strategy}"
link_weights = [1, 1, 1, 1, 2]

[[policy]]
name = "important"
type = "important"
importance = {important}

[[policy]]
name = "normal"
type = "normal"
importance = {normal}

[[link]]
name = "narrow"
members = "action == 'subscribe'"
rate = "{rate} bps"
reserve = 0.0
"""
"""Nothing is reserved for control calls, so that the whole limit is to be used."""

MODES: Final = {"alike": ("weighted_fair", 3, 3), "fair": ("weighted_fair", 5, 4), "strict": ("strict", 5, 4)}
"""Strategy, and importance of the two types; `alike`: one queue, first in first out."""


PAPER: Final[dict[str, Sequence[float]]] = {"alike": (3.9, 3.8), "fair": (8.3, 4.2)}
"""Objects a second of the two types."""


class LinkArrivals(msgspec.Struct, frozen=True):
    """Arrivals in `seconds`: (when, type, bytes of metadata and payload, latency), and what the delegate has sent over
    the link."""

    mode: str
    seconds: float
    came: list[tuple[float, str, int, float]]
    sent: int

    def rate(self, type_name: str) -> float:
        """Objects a second."""
        return sum(1 for _, name, *_ in self.came if name == type_name) / self.seconds

    def latency(self, type_name: str) -> float:
        """The mean, in seconds; 0.0 when nothing came."""
        late = [late for _, name, _, late in self.came if name == type_name]
        return statistics.fmean(late) if late else 0.0

    @property
    def efficiency(self) -> float:
        """Metadata and payload by all bytes."""
        return sum(size for _, _, size, _ in self.came) / max(1, self.sent)

    def most_in_a_second(self) -> float:
        """Bytes of the link that came in the fullest second, by how efficient it was."""
        sizes, most, first, held = [(at, size) for at, _, size, _ in self.came], 0, 0, 0
        for at, size in sizes:
            held += size
            while sizes[first][0] <= at - 1.0:
                held -= sizes[first][1]
                first += 1
            most = max(most, held)
        return most / max(0.01, self.efficiency)


def run_link(
    tell: Callable[[str], object],
    *,
    rounds: int = 1,
    seconds: float = 20.0,
    limits: Sequence[int] = (LIMIT, 8_000_000, 100_000_000),
) -> ExampleOutcome:
    """All modes at the first limit, interleaved, `rounds` times, and fair at each of the others. Raises DemoError."""
    found: dict[str, list[LinkArrivals]] = {mode: [] for mode in MODES}
    for round_ in range(rounds):
        for mode in MODES:
            counted = narrow(mode, limits[0], seconds)
            found[mode].append(counted)
            told = ", ".join(f"{counted.rate(name):.2f} {name}/s" for name in TYPES)
            tell(f"round {round_ + 1}, {mode}: {told}")
    wider = []
    for limit in limits[1:]:
        size = WIRE_BYTES if limit < 50_000_000 else 9 * WIRE_BYTES
        wider.append((limit, narrow("fair", limit, seconds / 2, size=size)))
        tell(f"{limit / 1e6:g} Mbit/s: {wider[-1][1].sent * 8 / wider[-1][1].seconds / limit:.4f} of the limit used")
    return outcome(found, limits[0], wider)


def narrow(mode: str, limit: int, seconds: float, *, size: int = WIRE_BYTES) -> LinkArrivals:
    """One run: servers of its own, warmed up for as long as it is counted. Raises DemoError."""
    strategy, important, normal = MODES[mode]
    with tempfile.TemporaryDirectory() as folder, Federation(effective()) as here:
        file = Path(folder) / "policy.toml"
        file.write_text(POLICIES.format(strategy=strategy, important=important, normal=normal, rate=limit))
        delegate = serve(here, file)
        with Load(here.config, size) as load:
            load.start()
            time.sleep(seconds)
            before, began = _sent(delegate), load.mark()
            time.sleep(seconds)
            sent, came, took = _sent(delegate) - before, *load.since(began)
            return LinkArrivals(mode, took, came, sent)


def _sent(delegate: str) -> int:
    """Bytes that the delegate has sent over the link so far."""
    status: dict[str, Any] = fetch_status(ServiceRef("", "status", (delegate,), ()), Security(), timeout=PATIENCE)
    [link] = status["qos"]["links"]
    return int(link["sent"])


def serve(here: Federation, policies: Path) -> str:
    """Start a lookup service, and a delegate that goes by those policies: its address. Raises DemoError."""
    here.lookup()
    return str(here.server("narrow", "pad", "narrow", "here", "--policy", str(policies))["address"])


class Load:
    """Publishers and the subscriber, in this process. `with` ends them."""

    def __init__(self, config: Config, size: int) -> None:
        self._config = config
        self._size = size
        self._stack = ExitStack()
        self._lock = threading.Lock()
        self._came: list[tuple[float, str, int, float]] = []
        self._room: dict[str, threading.Semaphore] = {}
        """By registration."""
        self._stopping = threading.Event()
        self._threads: list[threading.Thread] = []

    def __enter__(self) -> Load:
        return self

    def __exit__(self, *why: object) -> None:
        self._stopping.set()
        for room in self._room.values():
            room.release()
        for thread in self._threads:
            thread.join(PATIENCE)
        self._stack.close()

    def start(self) -> None:
        """Everybody sends. Raises DemoError."""
        subscriber = self._stack.enter_context(SubscriberAdapter(self._config))
        subscriber.register_subscriber(predicate="/metadata/RequiredMetadata", listener=self._arrived)
        work = []
        for _ in range(PUBLISHERS):
            publisher = self._stack.enter_context(PublisherAdapterLight(self._config))
            delegate = publisher.connect_to_delegate("narrow", "here")
            for name in TYPES:
                uid = publisher.register_publisher(delegate, SCHEMA, FIGURE_1, type_name=name)
                self._room[uid] = threading.Semaphore(WAITING)
                work.append((publisher, uid, name))
        for publisher, uid, _ in work:
            if not publisher.wait_for_subscribers(uid, 1, PATIENCE):
                raise DemoError("a registration has not found the subscriber")
        for publisher, uid, name in work:
            sending = threading.Thread(target=self._send, args=(publisher, uid, name), name=f"send-{name}", daemon=True)
            self._threads.append(sending)
            sending.start()

    def mark(self) -> tuple[float, int]:
        """Now, and how many have come."""
        with self._lock:
            return time.monotonic(), len(self._came)

    def since(self, mark: tuple[float, int]) -> tuple[list[tuple[float, str, int, float]], float]:
        """Objects that have come since, and in how many seconds."""
        with self._lock:
            return self._came[mark[1] :], time.monotonic() - mark[0]

    def _arrived(self, _: str, obj: InfoObject) -> None:
        size = len(obj.metadata) + len(obj.payload)
        with self._lock:
            self._came.append((time.monotonic(), obj.type.name, size, time.time() - obj.platform.published))
        self._room[obj.platform.registration].release()

    def _send(self, publisher: PublisherAdapterLight, uid: RegistrationUid, name: str) -> None:
        metadata = FIGURE_1.read_bytes()
        head = Head("", uid, 1, time.time(), name, "1.0", metadata, self._size)
        payload = bytes(self._size - pack(head, b"").size - FRAMING)
        room = self._room[uid]
        while True:
            room.acquire()
            if self._stopping.is_set():
                return
            publisher.publish(uid, metadata, payload)


# -- what came of it --------------------------------------------------------------------------------------------------


def outcome(
    found: dict[str, list[LinkArrivals]], limit: int, wider: Sequence[tuple[int, LinkArrivals]]
) -> ExampleOutcome:
    """Medians of the rounds, beside what the paper has."""
    paper = {"alike": "3.9 / 3.8", "fair": "8.3 / 4.2", "strict": "-"}

    def median(of: Callable[[LinkArrivals], float], mode: str) -> float:
        return statistics.median(map(of, found[mode]))

    rows: list[tuple[Cell, ...]] = [
        (
            mode,
            *(round(median(lambda c, name=name: c.rate(name), mode), 2) for name in TYPES),  # type: ignore[misc]
            paper[mode],
            *(round(median(lambda c, name=name: c.latency(name), mode), 2) for name in TYPES),  # type: ignore[misc]
            round(median(lambda c: c.sent * 8 / c.seconds / limit, mode), 4),
            round(median(lambda c: c.efficiency, mode), 4),
        )
        for mode in found
    ]
    columns = ("", "important/s", "normal/s", "paper", "latency s", "normal latency s", "of the limit", "efficiency")
    table = OutcomeTable(f"{limit / 1000:g} kbit/s, {WIRE_BYTES} bytes an object: medians", columns, rows)
    return ExampleOutcome((table,), tuple(promises(found, limit, wider)), tuple(_plots(rows)))


def _plots(rows: Sequence[tuple[Cell, ...]]) -> Iterator[Plot]:
    here = {str(row[0]): [float(cell) for cell in (*row[1:3], *row[4:6])] for row in rows}
    title = "A narrow link: objects a second (the paper does not print strict)"
    return beside_paper("link", title, "a second", here, PAPER)


def promises(
    found: dict[str, list[LinkArrivals]], limit: int, wider: Sequence[tuple[int, LinkArrivals]]
) -> Iterator[Promise]:
    """Promises that are to hold."""

    def median(of: Callable[[LinkArrivals], float], mode: str) -> float:
        return statistics.median(map(of, found[mode]))

    def within(what: str, value: float, low: float, high: float) -> Promise:
        said = f"at least {low:g}" if high == float("inf") else f"{low:g} to {high:g}"
        return Promise(f"{what}: {value:.4g}, {said}", low <= value <= high)

    total = limit / 8 / WIRE_BYTES
    for name, part in zip(TYPES, (2 / 3, 1 / 3), strict=True):
        rate = median(lambda c, name=name: c.rate(name), "fair")  # type: ignore[misc]
        yield within(f"fair: {name} objects a second", rate, 0.95 * part * total, 1.05 * part * total)
    yield within("strict: important objects a second", median(lambda c: c.rate("important"), "strict"),
                 0.95 * total, 1.05 * total)  # fmt: skip
    yield within("strict: normal objects a second", median(lambda c: c.rate("normal"), "strict"), 0, 0)
    ratio = median(lambda c: c.rate("important") / max(0.01, c.rate("normal")), "alike")
    yield within("alike: important by normal (paper 1.03)", ratio, 0.8, 1.25)
    late = median(lambda c: c.latency("normal") / max(0.001, c.latency("important")), "fair")
    yield within("fair: latency of normal by important", late, 1.5, float("inf"))
    for mode in found:
        yield within(f"{mode}: efficiency", median(lambda c: c.efficiency, mode), 0.95, 1.0)
        yield within(f"{mode}: of the limit", median(lambda c: c.sent * 8 / c.seconds / limit, mode), 0.95, 1.005)
        most = 1.05 + WIRE_BYTES * 8 / limit
        fullest = median(lambda c: c.most_in_a_second() * 8 / limit, mode)
        yield within(f"{mode}: of the limit, in the fullest second", fullest, 0.0, most)
    for rate, counted in wider:
        used = counted.sent * 8 / counted.seconds / rate
        yield within(f"{rate / 1e6:g} Mbit/s: of the limit", used, 0.97, 1.005)
        shares = counted.rate("important") / max(0.01, counted.rate("normal"))
        yield within(f"{rate / 1e6:g} Mbit/s: important by normal at 2 to 1", shares, 1.9, 2.1)
