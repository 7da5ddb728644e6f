"""What quality of service costs and keeps, part by part.

    python benchmarks/qos.py [--only policies|queue|bins|meter|shaping|bandwidth|link] [--json]

policies: 1,000 are read and checked; a contract is resolved among them; 200,000 contracts follow another
file; CPU time.
queue: a put and a take of a level queue, with key and deadline, in us of CPU time, with 100 to 100,000 waiting.
meter: an object that a contract's meter is told of, and a look at a thousand contracts, in CPU time.
shaping: a picture of 62 KB (640 x 480), in ms of CPU time and bytes, and the longest that a picture may take.
bins: a task put and another one taken, with up to a million waiting (goal: 1 us, and as much with a million); CPU time.
bandwidth: Table 2 of the QED paper with too little bandwidth, over real processes (examples/narrow.py); four minutes.
link: a link of 800 kbit/s with 400 KB of buffer that nobody has told the rate of, bulk that saturates it, and an urgent
10 KB object each 0.5 s; then 8 Mbit/s, then 800 kbit/s again; without quality of service beside it. In network
namespaces (root, ip and tc); two minutes.

Exit code 1 if a part misses its goal.
"""

from __future__ import annotations

import argparse
import importlib.util
import io
import json
import random
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from PIL import Image

from jbi_pubsub.core.info_object import Cause, Head, pack
from jbi_pubsub.core.quality import Contract, PayloadShape, Settings, Strategy, Wish
from jbi_pubsub.core.wire.endpoint import Caller
from jbi_pubsub.examples.narrow import run_link
from jbi_pubsub.pad.egress.queue import Waiting
from jbi_pubsub.policy.context import facts_of
from jbi_pubsub.policy.file import parse
from jbi_pubsub.policy.policyset import policies_of, review
from jbi_pubsub.qos.bins import Bins
from jbi_pubsub.qos.local import LocalManager
from jbi_pubsub.qos.meter import Meters
from jbi_pubsub.qos.queue import LevelQueue
from jbi_pubsub.qos.shaping import shape

HERE = Path(__file__).parent

Part = tuple[dict[str, object], bool]
"""What was measured, and whether the goal is reached."""

POLICIES, CONTRACTS, CLASSES = 1_000, 200_000, 1_000
WAITING = (100, 10_000, 1_000_000)


def cpu(work: Callable[[], object]) -> float:
    """Seconds of CPU that it takes."""
    began = time.process_time()
    work()
    return time.process_time() - began


def text_of(count: int, importance: int) -> str:
    """A policy file: of users, groups, types and operations, every third with a condition."""
    chance = random.Random(7)
    lines = ["[group]", *(f'g{n} = ["u{n}", "x{n}-*"]' for n in range(50))]
    for number in range(count):
        lines += ["[[policy]]", f'name = "p{number}"']
        kind = number % 4
        if kind in (0, 1):
            lines.append(f'type = "t{number % 250}.*"')
        if kind in (1, 2):
            lines.append(f'user = "u{number % 400}"')
        if kind == 3:
            lines.append(f'group = "g{number % 50}"')
        if number % 3 == 0:
            lines.append(f"when = \"size > '{chance.randint(1, 900)} KB' and bandwidth < '400 kbps'\"")
        lines += [f"importance = {importance}", 'preference = "GeneralSurv"']
    return "\n".join(lines)


def policies() -> Part:
    """Of policy/ and qos/local.py."""
    text = text_of(POLICIES, 2)

    def check() -> None:
        document = parse(text, "policy.toml")
        review(document, policies_of(document).rules)

    found = policies_of(parse(text, "policy.toml"))
    asked = [
        facts_of(Caller("10.1.2.3:1", user=f"u{n}", claimed=True), "subscribe", f"t{n % 250}.a", "1.0")
        for n in range(CLASSES)
    ]
    checking = cpu(check)
    resolving = cpu(lambda: [found.resolve(facts, now=0.0) for facts in asked]) / CLASSES
    local = LocalManager("alpha@rome")
    try:
        local.install(found)
        for n in range(CONTRACTS):
            who = Caller("10.1.2.3:1", user=f"u{n % CLASSES}", claimed=True)
            local.contract(who, "subscribe", f"t{n % 250}.a", "1.0", "queue", Wish())
        other = policies_of(parse(text_of(POLICIES, 4), "policy.toml")).of_version(2)
        applying = cpu(lambda: local.install(other))
        classes = local.status()["classes"]
    finally:
        local.stop()
    return {
        f"check {POLICIES:,} policies, s (goal 1)": round(checking, 3),
        "resolve a contract among them, ms (goal 2)": round(1000 * resolving, 3),
        f"apply at {CONTRACTS:,} contracts, s (goal 1)": round(applying, 3),
        "classes of these contracts": classes,
    }, checking < 1 and resolving < 0.002 and applying < 1


QUEUE_GOAL = 1.5
"""us, put and take."""
ROUNDS = 5


def queue() -> Part:
    """Put and take, of objects of ten registrations, each with a key (without the XPath, which costs by itself) and a
    deadline, beside so many that wait."""
    figures: dict[str, object] = {}
    best: dict[int, float] = {}
    for waiting in (100, 10_000, 100_000):  # the second is the bound of a queue, unless it is set higher
        best[waiting] = min(_put_and_take(waiting) for _ in range(ROUNDS))
        figures[f"{waiting:,} waiting"] = round(best[waiting], 2)
    plain = min(_put_and_take(100, Settings()) for _ in range(ROUNDS))
    return {
        **figures,
        "100 waiting, neither key nor deadline": round(plain, 2),
        "goal": QUEUE_GOAL,
    }, max(best[100], best[10_000]) <= QUEUE_GOAL


def _put_and_take(waiting: int, settings: Settings | None = None) -> float:
    """us of CPU time of a pair."""
    settings = settings or Settings(deadline=1e6, replace="type")
    count = 50_000
    rows = [
        Waiting(pack(Head(f"{n}", f"registration-{n % 10}", n, 1.0, f"t{n}", "1.0", b"<m/>", 0), b""), arrived=1.0)
        for n in range(waiting + count)
    ]
    lost: list[Cause] = []
    made = LevelQueue(Contract(settings), lambda _waiting, cause: lost.append(cause))
    for row in rows[:waiting]:
        made.put(row, 1.0)
    put, select, take = made.put, made.select, made.take
    began = time.thread_time()
    for row in rows[waiting:]:
        put(row, 1.0)
        select(2, 1.0)
        take()
    spent = time.thread_time() - began
    assert not lost
    return spent / count * 1e6


METER_GOAL = 0.5
"""us, an object."""


def meter() -> Part:
    """Of qos/meter.py."""
    count = 200_000
    meters = Meters()
    told = meters.meter()

    def tell() -> float:
        took, numbers = told.took, range(count)
        began = time.thread_time()
        for _ in numbers:
            took("uav.imagery", 62_000, 0.012)
        return (time.thread_time() - began) / count * 1e6

    each = min(tell() for _ in range(ROUNDS))
    contracts = [meters.meter() for _ in range(1_000)]
    for number, contract in enumerate(contracts):
        contract.took(f"type{number % 10}", 1_000, 0.01)
    folding = cpu(lambda: meters.fold(1.0, 1.0))
    return {
        f"an object, us (goal {METER_GOAL})": round(each, 2),
        "a look at 1,000 contracts with news, ms": round(1000 * folding, 1),
    }, each <= METER_GOAL


def shaping() -> Part:
    """Of qos/shaping.py."""
    noise = [Image.effect_noise((640, 480), 30) for _ in range(3)]
    data = _jpeg(Image.merge("RGB", noise), quality=50)
    figures: dict[str, object] = {"payload, bytes": len(data)}
    shapes = (("scale", 0.5), ("scale", 0.7), ("quality", 30), ("thumbnail", 100, 100), ("grey",))
    half = 0.0
    for name, *arguments in shapes:
        asked = (PayloadShape(name, tuple(arguments)),)
        spent = min(cpu(lambda asked=asked: shape(data, asked)) for _ in range(ROUNDS))
        half = half or spent
        left = shape(data, asked)
        figures[str(asked[0])] = f"{1000 * spent:.1f} ms, {len(left) if left is not None else len(data):,} bytes"
    longest = 0.0
    for size, options in (((8_000, 5_000), {}), ((4_000, 3_000), {"progressive": True})):
        large = _jpeg(Image.new("RGB", size, (10, 200, 30)), **options)
        longest = max(longest, cpu(lambda large=large: shape(large, (PayloadShape("scale", (0.9,)),))))
    figures["40 megapixels, or 12 in ten passes, s (goal 2)"] = round(longest, 2)
    return figures, half < 0.01 and longest < 2


def _jpeg(picture: Image.Image, **options: object) -> bytes:
    out = io.BytesIO()
    picture.save(out, "JPEG", **options)
    return out.getvalue()


def bins() -> Part:
    """Of qos/bins.py: a task taken and another one put, with so many waiting in 5 levels; the best of ten."""
    chance = random.Random(7)
    tasks = [(chance.randint(1, 5), chance.random() / 100) for _ in range(5_000)]
    found: dict[str, float] = {}
    for name in ("strict", "weighted_fair"):
        for waiting in WAITING:
            line: Bins[int] = Bins(Strategy(name=name))
            for number in range(waiting):
                line.put(number, *tasks[number % len(tasks)])

            def turns(line: Bins[int] = line) -> None:
                for importance, cost in tasks:
                    task, _ = line.take()
                    line.put(task, importance, cost)

            found[f"{name}, {waiting:,} wait, us"] = round(min(cpu(turns) for _ in range(10)) / len(tasks) * 1e6, 3)
    each = list(found.values())
    flat = max(max(part) / min(part) for part in (each[:3], each[3:]))
    found["slowest by fastest of a strategy (goal 1.3)"] = round(flat, 2)
    return {**found}, max(each) <= 1 and flat <= 1.3


# -- bandwidth and links ----------------------------------------------------------------------------------------------

LIMIT, FAST = 800_000, 8_000_000
"""Bits a second."""
BUFFER = 400_000
URGENT = 10_000
SOON = 0.3
"""Seconds that an urgent object may take beside its own transmission, p95."""
GOODPUT = 0.93
ADAPTED = 3.0
"""Seconds after a change of the link."""

LINK_POLICIES = """
[space]
strategy = "strict"

[[policy]]
name = "urgent"
type = "urgent"
importance = 5

[[policy]]
name = "bulk"
type = "bulk"
importance = 1

[[link]]
name = "unknown"
members = "action == 'subscribe'"
reserve = 0.0
"""

LINK_PUBLISHER = """
import pathlib, sys, threading, time
from jbi_pubsub import PublisherAdapterLight
from jbi_pubsub.core.config import effective
schema, figure = map(pathlib.Path, sys.argv[1:3])
rate = [0.0]
with PublisherAdapterLight(effective()) as publisher:
    at = publisher.connect_to_delegate("alpha", "rome")
    metadata = figure.read_bytes()
    urgent, bulk = (publisher.register_publisher(at, schema, figure, type_name=name) for name in ("urgent", "bulk"))
    for uid in (urgent, bulk):
        publisher.wait_for_subscribers(uid, 1, 60.0)
    print("ready", flush=True)
    def send():
        due = {"urgent": time.monotonic(), "bulk": time.monotonic()}
        while rate[0] >= 0:
            now = time.monotonic()
            if rate[0] and now >= due["urgent"]:
                due["urgent"] = max(now, due["urgent"] + 0.5)
                publisher.publish(urgent, metadata, bytes(10_000 - 700))
            if rate[0] and now >= due["bulk"]:
                due["bulk"] = max(now - 1.0, due["bulk"] + 20_000 * 8 / rate[0])
                publisher.publish(bulk, metadata, bytes(20_000))
            time.sleep(0.002)
    sending = threading.Thread(target=send)
    sending.start()
    for line in sys.stdin:
        rate[0] = float(line)
    rate[0] = -1.0
    sending.join()
"""
"""Publishes an urgent object each 0.5 s, and bulk at the rate, in bits a second, that it is told."""

LINK_SUBSCRIBER = """
import json, sys, time
from jbi_pubsub import SubscriberAdapter
from jbi_pubsub.core.config import effective
def arrived(_, obj):
    now = time.time()
    size = len(obj.metadata) + len(obj.payload)
    print(json.dumps([now, obj.type.name, now - obj.platform.published, size]), flush=True)
with SubscriberAdapter(effective()) as subscriber:
    for name in ("urgent", "bulk"):
        subscriber.register_subscriber(type_name=name, listener=arrived, bound=200)
    print("ready", flush=True)
    sys.stdin.read()
"""


def bandwidth() -> Part:
    """See examples/narrow.py."""
    outcome = run_link(lambda line: print(line, file=sys.stderr))
    [table] = outcome.tables
    figures: dict[str, object] = {str(row[0]): dict(zip(table.columns[1:], row[1:], strict=True)) for row in table.rows}
    missed = [promise.says for promise in outcome.promises if not promise.kept]
    return figures | {"promises": len(outcome.promises), "missed": missed}, outcome.right


def link() -> Part:
    """Nobody has told what the link can carry."""
    spaces = _of_tests("test_namespaces")
    if why := spaces.Namespaces.missing():
        return {"skipped": why}, True
    own = URGENT * 8 / LIMIT
    found = _on_a_link(spaces, [(LIMIT, 25.0), (FAST, 10.0), (LIMIT, 15.0)], policies=True)
    first, fast, last = found
    off = _on_a_link(spaces, [(LIMIT, 25.0)], policies=False)[0]
    good = (
        first.late(5.0, 0.95) <= own + SOON
        and first.goodput(5.0) >= GOODPUT
        and fast.goodput(ADAPTED) >= GOODPUT
        and fast.late(ADAPTED, 0.95) <= URGENT * 8 / FAST + SOON
        and last.late(ADAPTED, 0.95) <= own + SOON
    )
    return {
        "urgent, p50, s": round(first.late(5.0, 0.5), 3),
        f"urgent, p95, s (goal {own + SOON:g})": round(first.late(5.0, 0.95), 3),
        f"goodput by the link's rate (goal {GOODPUT})": round(first.goodput(5.0), 3),
        f"{FAST / 1e6:g} Mbit/s: goodput after {ADAPTED:g} s (goal {GOODPUT})": round(fast.goodput(ADAPTED), 3),
        f"{FAST / 1e6:g} Mbit/s: urgent, p95, s (goal {URGENT * 8 / FAST + SOON:g})": round(
            fast.late(ADAPTED, 0.95), 3
        ),
        f"{LIMIT / 1e6:g} Mbit/s again: urgent, p95, s, after {ADAPTED:g} s": round(last.late(ADAPTED, 0.95), 3),
        "without quality of service: urgent, p95, s": round(off.late(5.0, 0.95), 3),
        "without quality of service: goodput": round(off.goodput(5.0), 3),
    }, good


@dataclass
class Phase:
    """What came while the link had a rate, from `began` to `ended`: (when, type, how late, bytes)."""

    rate: int
    began: float
    ended: float
    came: list[tuple[float, str, float, int]]

    def late(self, after: float, part: float) -> float:
        """A quantile of how late urgent objects of that time came; infinite if none did. Not of its last second: what
        is under way when the rate changes goes at the next one."""
        times = self.began + after, self.ended - 1.0
        late = sorted(late for at, name, late, _ in self.came if name == "urgent" and times[0] <= at - late < times[1])
        return late[min(len(late) - 1, int(part * len(late)))] if late else float("inf")

    def goodput(self, after: float) -> float:
        """Metadata and payload that came after so many seconds, by what the link carries."""
        size = sum(size for at, *_, size in self.came if self.began + after <= at < self.ended)
        return size * 8 / (self.ended - self.began - after) / self.rate


def _on_a_link(spaces: Any, rates: list[tuple[int, float]], *, policies: bool) -> list[Phase]:
    """Phases of a run over such a link, each with its rate for so many seconds."""
    figures = spaces.FIGURES
    with tempfile.TemporaryDirectory() as folder, spaces.Namespaces() as made:
        file = Path(folder) / "policy.toml"
        file.write_text(LINK_POLICIES)
        made.serve(**({"policy_file": file, "qos_mode": "on"} if policies else {}))
        subscriber = made.start(made.air, "-c", LINK_SUBSCRIBER, lookup_probe=60.0)
        assert spaces.said(subscriber) == "ready"
        files = (str(figures / "Intel_Imagery.xsd"), str(figures / "fig1.xml"))
        publisher = made.start(made.ground, "-c", LINK_PUBLISHER, *files)
        assert spaces.said(publisher) == "ready"
        came: list[tuple[float, str, float, int]] = []

        def read() -> None:
            for line in subscriber.stdout:
                came.append(tuple(json.loads(line)))  # noqa: PERF401  # others look meanwhile

        reading = threading.Thread(target=read, daemon=True)
        reading.start()
        phases = []
        for rate, seconds in rates:
            tbf = ("tbf", "rate", f"{rate}bit", "burst", "5000", "limit", str(BUFFER))
            spaces.run("tc", "-n", made.ground, "qdisc", "replace", "dev", "link0", "root", *tbf)
            spaces.tell(publisher, 1.5 * rate)
            began = time.time()
            time.sleep(seconds)
            phases.append(Phase(rate, began, time.time(), came))
    reading.join(10.0)
    for phase in phases:
        phase.came = [each for each in came if phase.began <= each[0] - each[2] < phase.ended or each[1] == "bulk"]
    return phases


def _of_tests(name: str) -> Any:
    """A module of the tests: the namespaces."""
    spec = importlib.util.spec_from_file_location(f"links_{name}", HERE.parent / "tests" / "links" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


PARTS: dict[str, Callable[[], Part]] = {
    "policies": policies,
    "queue": queue,
    "bins": bins,
    "meter": meter,
    "shaping": shaping,
    "bandwidth": bandwidth,
    "link": link,
}


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=[*PARTS], help="one part alone")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    results = {name: part() for name, part in PARTS.items() if options.only in (None, name)}
    if options.json:
        print(json.dumps({name: figures | {"good": good} for name, (figures, good) in results.items()}))
    else:
        for name, (figures, good) in results.items():
            print(f"{name}: {'good' if good else 'MISSED'}")
            for row, value in figures.items():
                print(f"  {row:44}{value!s:>20}")
    sys.exit(not all(good for _, good in results.values()))


if __name__ == "__main__":
    main()
