"""Many of everything on one machine: delegates, registrations, subscriptions over many subscriber processes.

    python benchmarks/scale.py [--delegates 20] [--registrations 200] [--subscribers 100] [--subscriptions 100] [--json]

Starts in order, publishes one object for each registration, checks that every subscription gets exactly its objects,
stops in order with SIGTERM, and says how long each step took and what each part weighs.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil

from jbi_pubsub import Config, PublisherAdapterLight, SubscriberAdapter
from jbi_pubsub.core.config import LookupSection

DATA = Path(__file__).parent.parent / "examples" / "data" / "intel_imagery"
METADATA = (DATA / "fig1.xml").read_text()


def subscriber(config: Config, number: int, count: int, registrations: int, inbox: Any, out: Any) -> None:
    """A process with `count` subscriptions; subscription k wants the registrations whose number is k modulo count."""
    with SubscriberAdapter(config) as adapter:
        uids = [
            adapter.register_subscriber(
                type_name="mil.af.rl.jbi.Intel_Imagery",
                predicate=f"number(substring-after(ImageDescriptor/Area, ' ')) mod {count} = {k}",
                timeout=120,
            )
            for k in range(count)
        ]
        out.put(("ready", number))
        servers = inbox.get(timeout=600)
        until = time.monotonic() + 600
        while min(adapter.wait_matched(uid, servers, 60) for uid in uids) < servers and time.monotonic() < until:
            pass
        out.put(("matched", number))
        inbox.get(timeout=600)
        got = sum(len(adapter.drain(uid)) for uid in uids)
        deadline = time.monotonic() + 60
        while got < registrations and time.monotonic() < deadline:
            got += sum(len(adapter.drain(uid)) for uid in uids)
            time.sleep(0.01)
        out.put(("got", got))


def server(*arguments: str) -> tuple[subprocess.Popen[str], dict[str, Any]]:
    command = [sys.executable, "-m", "jbi_pubsub", "--no-multicast", *arguments, "--json"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    return process, json.loads(process.stdout.readline())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("delegates", 20), ("registrations", 200), ("subscribers", 100), ("subscriptions", 100)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    multiprocessing.set_start_method("forkserver")
    multiprocessing.set_forkserver_preload(["jbi_pubsub.subscriber", "jbi_pubsub.publisher"])
    rows: dict[str, object] = {}

    def step(name: str, begin: float) -> None:
        rows[f"{name} s"] = round(time.monotonic() - begin, 1)

    begin = time.monotonic()
    lookup, facts = server("lookup", "--port", "0")
    locator = facts["address"]
    delegates = [server("--locator", locator, "pad", f"d{n}", "here")[0] for n in range(options.delegates)]
    step("start servers", begin)
    config = Config(lookup=LookupSection(locators=(locator,), multicast=False, timeout=60.0))
    begin = time.monotonic()
    out: Any = multiprocessing.Queue()
    inboxes: list[Any] = [multiprocessing.Queue() for _ in range(options.subscribers)]
    processes = [
        multiprocessing.Process(
            target=subscriber, args=(config, n, options.subscriptions, options.registrations, inboxes[n], out)
        )
        for n in range(options.subscribers)
    ]
    for process in processes:
        process.start()
    for _ in processes:
        assert out.get(timeout=600)[0] == "ready"
    step("register subscriptions", begin)
    begin = time.monotonic()
    with PublisherAdapterLight(config) as publisher:
        at = [publisher.connect_to_delegate(f"d{n}") for n in range(options.delegates)]
        registrations = []
        for n in range(options.registrations):
            invariants = METADATA.replace("JBI000023", f"JBI{n:06}")
            registrations.append(publisher.register_publisher(at[n % len(at)], DATA / "Intel_Imagery.xsd", invariants))
        step("register publishers", begin)
        begin = time.monotonic()
        for inbox in inboxes:
            inbox.put(min(options.delegates, options.registrations))
        for _ in processes:
            assert out.get(timeout=900)[0] == "matched"
        step("match everything", begin)
        begin = time.monotonic()
        for n, registration in enumerate(registrations):
            metadata = METADATA.replace("JBI000023", f"JBI{n:06}").replace("Kabul", f"Area {n}")
            publisher.publish(registration, metadata, b"x" * 1024)
        publisher.flush(60)
        for inbox in inboxes:
            inbox.put("go")
        got = [out.get(timeout=120)[1] for _ in processes]
        step("publish and deliver", begin)
        rows["deliveries"] = sum(got)
        right = all(g == options.registrations for g in got)
        rows["right"] = right
        weights = [psutil.Process(p.pid) for p in (lookup, *delegates)]
        rows["lookup MB"] = round(weights[0].memory_info().rss / 1e6)
        rows["lookup threads"] = weights[0].num_threads()
        rows["delegate MB"] = round(max(w.memory_info().rss for w in weights[1:]) / 1e6)
        rows["delegate threads"] = max(w.num_threads() for w in weights[1:])
    begin = time.monotonic()
    for process in processes:
        process.join(60)
    for delegate in delegates:
        delegate.terminate()
    rows["delegates' exit codes"] = sorted({delegate.wait(60) for delegate in delegates})
    lookup.terminate()
    rows["lookup's exit code"] = lookup.wait(60)
    step("stop in order", begin)
    if options.json:
        print(json.dumps(rows))
    else:
        for name, value in rows.items():
            print(f"{name:26}{value!s:>12}")
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
