"""Churn over real processes: everybody comes, goes, is killed and is stopped, for minutes.

    python benchmarks/soak.py [--minutes 10] [--seed 1] [--json]

One lookup service and two delegates stay; a third delegate, publishers through delegates and peer to peer, and
subscribers come and go: by SIGTERM, by SIGKILL, and some are stopped (SIGSTOP) for less or more than their lease.
At the end everybody has left, and:

- memory of those who stayed: resident bytes at first, at a quarter, last and most; flat means that the last is at
  most 1.2 times that of the quarter, and 8 MB;
- losses: at the delegates matched = delivered + lost + waiting, and no subscriber has missed an object that nobody
  told it of, or received one twice or out of order;
- threads, sockets, leases and registrations as before.

Exit code 1 if one of these does not hold.
"""

from __future__ import annotations

import argparse
import json
import random
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
from rich.console import Console
from rich.progress import Progress, TextColumn, TimeElapsedColumn

from jbi_pubsub.core.errors import JbiError
from jbi_pubsub.core.wire import ServiceRef
from jbi_pubsub.core.wire.endpoint import Security
from jbi_pubsub.protocol.services import fetch_status

DATA = Path(__file__).parent.parent / "examples" / "data" / "intel_imagery"
LEASE = 2.0
CHANNEL_SECONDS = 60.0
"""So long a lookup service keeps the event channel, a thread, of a client that is gone."""
STAYING = ("alpha", "bravo")
PASSING = "charlie"
MOST = {"publisher": 4, "peer": 2, "subscriber": 5}

WORKER = """
import json, os, random, signal, sys, threading, time
from pathlib import Path
from jbi_pubsub import Config, PublisherAdapter, PublisherAdapterLight, SubscriberAdapter
from jbi_pubsub.core.config import LeaseSection, LookupSection
from jbi_pubsub.core.errors import JbiError, WireError

kind, locator, seed, out, data, lease = sys.argv[1:]
lease = float(lease)
config = Config(lookup=LookupSection(locators=(locator,), multicast=False, probe=0.5),
                lease=LeaseSection(publisher=lease, subscriber=lease, lookup=lease))
rng = random.Random(int(seed))
stop = threading.Event()
signal.signal(signal.SIGTERM, lambda *_: stop.set())
threading.Thread(target=lambda: (sys.stdin.read(), os._exit(3)), daemon=True).start()
metadata = (Path(data) / "fig1.xml").read_bytes()
schema = Path(data) / "Intel_Imagery.xsd"

def tell(**facts):
    Path(out + ".new").write_text(json.dumps(facts))
    os.replace(out + ".new", out)

def publish(adapter, registration):
    published = refused = 0
    while not stop.wait(rng.uniform(0.01, 0.08)):
        size = 600_000 if rng.random() < 0.01 else rng.randrange(4_000)
        try:
            adapter.publish(registration, metadata, bytes(size))
            published += 1
        except JbiError:
            refused += 1
        if published % 20 == 0:
            tell(published=published, refused=refused)
    tell(published=published, refused=refused)

if kind == "publisher":
    with PublisherAdapterLight(config) as adapter:
        name = rng.choice(["alpha", "bravo", "charlie"])
        while True:
            try:
                at = adapter.connect_to_delegate(name, "soak", timeout=15)
                registration = adapter.register_publisher(at, schema, metadata)
                break
            except WireError:  # the delegate has just been killed: the application is told, and may try again
                if stop.wait(0.3):
                    sys.exit(0)
        publish(adapter, registration)
elif kind == "peer":
    with PublisherAdapter(config) as adapter:
        publish(adapter, adapter.register_publisher(schema, metadata))
else:
    options = rng.choice([{}, {"predicate": "//lat>33"}, {"bound": 20}, {"bound": 20, "policy": "drop_newest"}])
    pause = rng.choice([0, 0, 0.05])
    seen, received, disorder, told = {}, 0, 0, 0.0
    with SubscriberAdapter(config) as adapter:
        uid = adapter.register_subscriber(type_name="mil.af.rl.jbi.Intel_Imagery", **options)
        while not stop.is_set():
            obj = adapter.receive(uid, 0.2)
            if obj is not None:
                at = obj.platform
                first, last, count = seen.get(at.registration, (at.sequence, at.sequence - 1, 0))
                disorder += at.sequence <= last
                seen[at.registration] = (first, at.sequence, count + 1)
                received += 1
                time.sleep(pause)
            if time.monotonic() - told > 0.3:
                told = time.monotonic()
                missing = sum(last - first + 1 - count for first, last, count in seen.values())
                own = adapter.status()["subscriptions"][uid]
                tell(received=received, missing=missing, disorder=disorder, lost=own["lost"],
                     duplicates=own["duplicates"], options=options)
"""


@dataclass
class Worker:
    """A process that comes and goes."""

    kind: str
    process: subprocess.Popen[bytes]
    out: Path
    resume_at: float = 0.0
    stopped: float = 0.0
    """Seconds in all."""

    def told(self) -> dict[str, Any]:
        return json.loads(self.out.read_text()) if self.out.exists() else {}


@dataclass
class Server:
    """A lookup service or delegate that is measured."""

    name: str
    process: subprocess.Popen[str]
    address: str
    rss: list[int] = field(default_factory=list)

    def status(self) -> dict[str, Any]:
        return fetch_status(ServiceRef("", "status", (self.address,)), Security(), timeout=10.0)

    def measure(self) -> None:
        self.rss.append(psutil.Process(self.process.pid).memory_info().rss)

    def held(self) -> dict[str, Any]:
        """What must be the same again when everybody has left."""
        status = self.status()
        keys = ("threads", "connections", "leases", "items", "event_registrations", "publishers", "registrations")
        held = {key: status[key] for key in (*keys, "sessions", "subscriptions", "queued_bytes") if key in status}
        return held | {"sockets": len(psutil.Process(self.process.pid).net_connections("tcp"))}


class Soak:
    """The churn."""

    def __init__(self, seed: int, folder: Path) -> None:
        self.rng = random.Random(seed)
        self.folder = folder
        self.count = 0
        self.workers: list[Worker] = []
        self.done: list[tuple[str, str, dict[str, Any]]] = []
        self.actions: dict[str, int] = {}
        self.lookup = self.server("lookup", "--port", "0")
        self.staying = [self.server("pad", name, "soak") for name in STAYING]
        self.passing = self.server("pad", PASSING, "soak")
        self.measured = [self.lookup, *self.staying]

    def server(self, *arguments: str) -> Server:
        flags = ["--no-multicast", "--set", "lookup.probe=0.5", "--set", f"lease.lookup={LEASE}"]
        if arguments[0] == "pad":
            flags += ["--locator", self.lookup.address]
        process = subprocess.Popen(
            [sys.executable, "-m", "jbi_pubsub", *flags, *arguments, "--json"], stdout=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        return Server(
            arguments[1] if arguments[0] == "pad" else "lookup",
            process,
            json.loads(process.stdout.readline())["address"],
        )

    def note(self, action: str) -> None:
        self.actions[action] = self.actions.get(action, 0) + 1

    def start(self, kind: str) -> None:
        self.count += 1
        out = self.folder / f"{self.count}.json"
        arguments = [kind, self.lookup.address, str(self.rng.randrange(1 << 30)), str(out), str(DATA), str(LEASE)]
        process = subprocess.Popen(
            [sys.executable, "-c", WORKER, *arguments],
            stdin=subprocess.PIPE,
            stderr=(self.folder / "errors").open("ab"),
        )
        self.workers.append(Worker(kind, process, out))
        self.note(f"start {kind}")

    def step(self) -> None:
        """One thing happens."""
        now = time.monotonic()
        for worker in self.workers:
            if worker.resume_at and now >= worker.resume_at:
                worker.process.send_signal(signal.SIGCONT)
                worker.resume_at = 0.0
        for worker in [w for w in self.workers if w.process.poll() is not None]:
            self.ended(worker, f"by itself, stopped for {worker.stopped:g} s")
        kind = self.rng.choice(list(MOST))
        standing = [w for w in self.workers if w.kind == kind]
        if len(standing) < MOST[kind] and self.rng.random() < 0.6:
            self.start(kind)
        elif standing:
            self.disturb(self.rng.choice(standing))
        if self.rng.random() < 0.02:
            self.restart()

    def disturb(self, worker: Worker) -> None:
        how = self.rng.choice(["kill", "leave", "leave", "stop", "stop"])
        if how == "stop":
            if not worker.resume_at:
                worker.process.send_signal(signal.SIGSTOP)
                seconds = LEASE * self.rng.choice([0.2, 0.4, 2.0])
                worker.resume_at = time.monotonic() + seconds
                worker.stopped += seconds
                self.note("stop and continue")
        elif how == "kill":
            worker.process.kill()
            worker.process.wait()
            self.ended(worker, "killed")
        else:
            self.leave(worker)

    def leave(self, worker: Worker) -> None:
        worker.process.send_signal(signal.SIGCONT)
        worker.process.terminate()
        try:
            code = worker.process.wait(30.0)
        except subprocess.TimeoutExpired:
            worker.process.kill()
            code = worker.process.wait()
        # before its first report a process may not have got so far as to handle the signal
        self.ended(worker, "left" if code == 0 or (code == -15 and not worker.told()) else f"code {code}")

    def ended(self, worker: Worker, how: str) -> None:
        assert worker.process.stdin is not None
        worker.process.stdin.close()
        self.workers.remove(worker)
        self.done.append((worker.kind, how, worker.told()))
        self.note(f"{worker.kind} {how}")

    def restart(self) -> None:
        """The passing delegate is killed, and started again."""
        self.passing.process.kill()
        self.passing.process.wait()
        self.passing = self.server("pad", PASSING, "soak")
        self.note("delegate killed and restarted")

    def leave_all(self) -> None:
        for kind in ("publisher", "peer"):
            for worker in [w for w in self.workers if w.kind == kind]:
                self.leave(worker)
        time.sleep(1.0)  # what is under way arrives
        for worker in list(self.workers):
            self.leave(worker)

    def close(self) -> None:
        for worker in self.workers:
            worker.process.kill()
        for server in (*self.staying, self.passing, self.lookup):
            server.process.terminate()
            server.process.wait(20.0)


def unexplained(facts: dict[str, Any]) -> int:
    """Objects a subscriber has missed and was not told of. Whether a delegate that is gone held some, nobody knows."""
    lost: dict[str, int] = facts.get("lost", {})
    missing: int = facts.get("missing", 0)
    return 0 if "delegate_dead" in lost else max(0, missing - sum(lost.values()))


def account(server: Server) -> dict[str, int]:
    status = server.status()
    waiting = sum(sum(s["queued"].values()) + s["in_flight"] for s in status["sessions"])
    lost = sum(status["lost"].values())
    missing = status["matched"] - status["delivered"] - lost - waiting
    return {"matched": status["matched"], "delivered": status["delivered"], "lost": lost, "missing": missing}


def run(minutes: float, seed: int, console: Console, folder: Path) -> dict[str, Any]:
    soak = Soak(seed, folder)
    try:
        time.sleep(2.0)  # everybody has joined
        before = {server.name: server.held() for server in soak.measured}
        end = time.monotonic() + 60 * minutes
        columns = TextColumn("{task.description}"), TimeElapsedColumn()
        with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
            task = progress.add_task("soak", total=None)
            while time.monotonic() < end:
                soak.step()
                for server in soak.measured:
                    server.measure()
                running = ", ".join(f"{sum(w.kind == k for w in soak.workers)} {k}s" for k in MOST)
                memory = ", ".join(f"{s.name} {s.rss[-1] >> 20} MB" for s in soak.measured)
                progress.update(task, description=f"{sum(soak.actions.values())} actions; {running}; {memory}")
                time.sleep(soak.rng.uniform(0.1, 0.7))
        soak.leave_all()
        deadline = time.monotonic() + CHANNEL_SECONDS + 15.0
        after: dict[str, Any] = {}
        while time.monotonic() < deadline:
            after = {server.name: server.held() for server in soak.measured}
            if after == before:
                break
            time.sleep(0.2)
        subscribers = [facts for kind, _, facts in soak.done if kind == "subscriber" and facts]
        rss = {}
        for server in soak.measured:
            server.measure()
            quarter = server.rss[len(server.rss) // 4]
            flat = server.rss[-1] <= 1.2 * quarter + (8 << 20)
            first, last, most = server.rss[0], server.rss[-1], max(server.rss)
            rss[server.name] = {"first": first, "quarter": quarter, "last": last, "max": most, "flat": flat}
        accounts = {server.name: account(server) for server in soak.staying}
        result = {
            "minutes": minutes,
            "seed": seed,
            "actions": dict(sorted(soak.actions.items())),
            "rss": rss,
            "accounts": accounts,
            "subscribers": {
                "processes": len(subscribers),
                "received": sum(f["received"] for f in subscribers),
                "missing": sum(f["missing"] for f in subscribers),
                "unexplained": sum(map(unexplained, subscribers)),
                "twice or out of order": sum(f["disorder"] for f in subscribers),
                "repeated and dropped": sum(f["duplicates"] for f in subscribers),
            },
            "published": sum(facts.get("published", 0) for _, _, facts in soak.done),
            "failed": [f"{kind} {how}" for kind, how, _ in soak.done if how.startswith(("by itself", "code"))],
            "not as before": {
                name: {key: (before[name][key], value) for key, value in held.items() if value != before[name][key]}
                for name, held in after.items()
                if held != before[name]
            },
        }
        errors = folder / "errors"
        if result["failed"] and errors.exists():
            told = ("subscription ", "subscriber-", "publisher-")  # losses and reconnects, which are wanted here
            result["errors"] = [line for line in errors.read_text().splitlines() if not line.startswith(told)][-40:]
        result["good"] = (
            all(r["flat"] for r in rss.values())
            and not any(a["missing"] for a in accounts.values())
            and not result["subscribers"]["unexplained"]
            and not result["subscribers"]["twice or out of order"]
            and not result["not as before"]
            and not result["failed"]
        )
        return result
    finally:
        soak.close()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    console = Console(stderr=True)
    try:
        with tempfile.TemporaryDirectory() as folder:
            result = run(options.minutes, options.seed, console, Path(folder))
    except JbiError as exc:
        console.print(f"a server does not answer any more: {exc}", style="red")
        return 1
    if options.json:
        print(json.dumps(result))
    else:
        for name, value in result.items():
            if isinstance(value, dict):
                print(f"{name}:")
                for key, of in value.items():
                    print(f"  {key:32} {of}")
            else:
                print(f"{name}: {value}")
    return 0 if result["good"] else 1


if __name__ == "__main__":
    sys.exit(main())
