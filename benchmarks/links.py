"""What idle parties send over their link: leases, probes, discovery (paper section 3.1).

    python benchmarks/links.py [--seconds 120] [--leases 60 10] [--json]
    python benchmarks/links.py --compression [--json]
    python benchmarks/links.py --namespaces [--seconds 120] [--leases 60 10] [--json]

A lookup service and a delegate run as processes; a subscriber and a publisher, each behind a relay of its own, have
registered and then do nothing. Bytes a minute are counted by call, and once more with the headers of all TCP segments
(acknowledgements and keepalives as well). The share is of a link of 7,200 bit/s; the goal is less than 10 %.

Exit code 1 if an idle party needs more.

--compression counts what the data connections carry for the same objects with `link.compression` none and deflate.

--namespaces repeats what matters over the kernel's own TCP, in two network namespaces joined at 7,200 bit/s (root, ip
and tc): the filtered tasking order, an idle subscriber with all segments of both ends, and one object that fills the
link for longer than two leases while `link.window` bounds what is under way, or does not.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import random
import select
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from jbi_pubsub import Config, PublisherAdapterLight, SubscriberAdapter
from jbi_pubsub.core.config import LeaseSection, LinkSection, LookupSection
from jbi_pubsub.network.emulation import Link

HERE = Path(__file__).parent
DATA = HERE.parent / "examples" / "data" / "intel_imagery"
BITS = 7_200
GOAL = 0.10


def of_tests(name: str) -> Any:
    """A module of the tests: the namespaces."""
    spec = importlib.util.spec_from_file_location(f"links_{name}", HERE.parent / "tests" / "links" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@contextmanager
def servers(probe: float) -> Iterator[tuple[str, str]]:
    """Addresses of a lookup service and a delegate, as processes."""
    jbi = [sys.executable, "-m", "jbi_pubsub", "--no-multicast", "--set", f"lookup.probe={probe}"]
    lookup = subprocess.Popen([*jbi, "lookup", "--port", "0", "--json"], stdout=subprocess.PIPE, text=True)
    assert lookup.stdout is not None
    locator = json.loads(lookup.stdout.readline())["address"]
    pad = subprocess.Popen(
        [*jbi, "--locator", locator, "pad", "ground", "here", "--json"], stdout=subprocess.PIPE, text=True
    )
    assert pad.stdout is not None
    try:
        yield locator, json.loads(pad.stdout.readline())["address"]
    finally:
        for server in (pad, lookup):
            server.terminate()
            server.wait(20)


def counted(link: Any, names: dict[int, str]) -> Counter[str]:
    """Bytes so far by purpose."""
    found = Counter({"with TCP/IP headers": link.wire_bytes()})
    for (port, call), size in link.traffic.items():
        found[f"{names[port]} {call or 'preamble'}"] += size
        found["bytes in all"] += size
    return found


def measure(lease: float, probe: float, seconds: float) -> dict[str, dict[str, float]]:
    """Bytes a minute of an idle subscriber and an idle publisher, by purpose."""
    with servers(probe) as (locator, delegate):
        return measure_at(locator, delegate, lease, probe, seconds)


def measure_at(locator: str, delegate: str, lease: float, probe: float, seconds: float) -> dict[str, dict[str, float]]:
    """The same, with servers at these addresses."""
    ports = {int(locator.rpartition(":")[2]): "lookup", int(delegate.rpartition(":")[2]): "delegate"}
    config = Config(
        lookup=LookupSection(locators=(locator,), multicast=False, probe=probe),
        lease=LeaseSection(publisher=lease, subscriber=lease, lookup=lease),
    )
    links = {"subscriber": Link("127.0.0.2"), "publisher": Link("127.0.0.3")}
    try:
        with (
            PublisherAdapterLight(links["publisher"].behind(config, delegate)) as publisher,
            SubscriberAdapter(links["subscriber"].behind(config, delegate)) as subscriber,
        ):
            at = publisher.connect_to_delegate("ground", "here")
            publisher.register_publisher(at, DATA / "Intel_Imagery.xsd", DATA / "fig1.xml")
            uid = subscriber.register_subscriber(type_name="mil.af.rl.jbi.Intel_Imagery")
            assert subscriber.wait_matched(uid) == 1
            joining = {party: counted(link, ports) for party, link in links.items()}
            time.sleep(2.0)
            before = {party: counted(link, ports) for party, link in links.items()}
            time.sleep(seconds)
            after = {party: counted(link, ports) for party, link in links.items()}
    finally:
        for link in links.values():
            link.close()
    rows: dict[str, dict[str, float]] = {}
    for party in links:
        idle = after[party] - before[party]
        rows[party] = {what: round(size * 60 / seconds) for what, size in sorted(idle.items())}
        rows[party]["to join, once"] = joining[party]["bytes in all"]
        rows[party]["share, bytes"] = round(idle["bytes in all"] * 8 / seconds / BITS, 4)
        rows[party]["share, with headers"] = round(idle["with TCP/IP headers"] * 8 / seconds / BITS, 4)
    return rows


# -- what compression saves -------------------------------------------------------------------------------------


def objects(what: str, figure: str) -> list[tuple[str, bytes]]:
    """Metadata and payloads: one filtered tasking order; a hundred of figure 1, each of another place, alone or with
    2 KB that does not shrink, as imagery."""
    if what == "tasking order":
        return [(figure, of_tests("test_namespaces").tasking_order(500_000, every=100))]
    chance = random.Random(1)
    size = 2_000 if what == "with images" else 0
    places = [(f"{chance.uniform(33, 36):.2f}", f"{chance.uniform(66, 71):.2f}") for _ in range(100)]
    return [(figure.replace("33.34", lat).replace("69.98", long), chance.randbytes(size)) for lat, long in places]


def compressed(what: str, setting: Literal["none", "deflate"]) -> dict[str, float]:
    """Bytes of the data connections for the same objects, published one after the other."""
    figure = (DATA / "fig1.xml").read_text()
    with servers(10.0) as (locator, delegate):
        config = Config(
            lookup=LookupSection(locators=(locator,), multicast=False), link=LinkSection(compression=setting)
        )
        near, far = Link("127.0.0.2"), Link("127.0.0.3")
        key = int(delegate.rpartition(":")[2]), "data"
        with (
            PublisherAdapterLight(near.behind(config, delegate)) as publisher,
            SubscriberAdapter(far.behind(config, delegate)) as subscriber,
        ):
            at = publisher.connect_to_delegate("ground", "here")
            registration = publisher.register_publisher(at, DATA / "Intel_Imagery.xsd", DATA / "fig1.xml")
            relevant = of_tests("test_namespaces").RELEVANT if what == "tasking order" else ""
            uid = subscriber.register_subscriber(type_name="mil.af.rl.jbi.Intel_Imagery", payload_filter=relevant)
            assert subscriber.wait_matched(uid) == 1
            time.sleep(0.5)
            before = near.traffic[key], far.traffic[key]
            coming = subscriber.objects(uid, 30.0)
            for metadata, payload in objects(what, figure):
                publisher.publish(registration, metadata.encode(), payload)
                next(coming)
            publisher.flush()
            sent, received = near.traffic[key] - before[0], far.traffic[key] - before[1]
        near.close()
        far.close()
    return {"from the publisher": sent, "to the subscriber": received, "seconds": round(received * 8 / BITS, 2)}


def compression() -> dict[str, dict[str, dict[str, float]]]:
    """By case and setting."""
    cases = ("tasking order", "metadata", "with images")
    return {what: {setting: compressed(what, setting) for setting in ("none", "deflate")} for what in cases}


# -- the kernel's own TCP ---------------------------------------------------------------------------------------


def order_over_tcp(module: Any, setting: str) -> dict[str, float]:
    """The paper's case: seconds and bytes of one percent of 500 KB."""
    with module.Namespaces() as spaces, tempfile.TemporaryDirectory() as folder:
        spaces.serve()
        publisher, subscriber = spaces.publisher(), spaces.subscriber(module.RELEVANT, link_compression=setting)
        order = Path(folder) / "order"
        order.write_bytes(module.tasking_order(500_000, every=100))
        spaces.shape(BITS)
        began, before = time.monotonic(), sum(spaces.carried())
        module.tell(publisher, order)
        came = json.loads(module.said(subscriber))
        return {"seconds": round(came["at"] - began, 2), "bytes": sum(spaces.carried()) - before}


def idle_over_tcp(module: Any, lease: float, seconds: float) -> dict[str, float]:
    """A subscriber's bytes a minute, of all segments of both ends, and their share of the link."""
    with module.Namespaces() as spaces:
        spaces.serve()
        spaces.publisher()
        spaces.subscriber(lease_subscriber=lease, lease_lookup=lease)
        spaces.shape(BITS)
        time.sleep(5.0)
        before = sum(spaces.carried())
        time.sleep(seconds)
        size = sum(spaces.carried()) - before
        return {"bytes a minute": round(size * 60 / seconds), "share": round(size * 8 / seconds / BITS, 4)}


def filled_over_tcp(module: Any, lease: float, window: int) -> dict[str, Any]:
    """One object of 20 KB, 22 s of the link: when it came, and what the subscriber was told."""
    with module.Namespaces() as spaces, tempfile.TemporaryDirectory() as folder:
        spaces.serve()
        publisher, subscriber = spaces.publisher(), spaces.subscriber(lease_subscriber=lease, link_window=window)
        payload = Path(folder) / "payload"
        payload.write_bytes(bytes(range(256)) * 80)
        spaces.shape(BITS)
        began = time.monotonic()
        module.tell(publisher, payload)
        if not select.select([subscriber.stdout], [], [], 60.0)[0]:
            return {"came": "lost with its session"}
        came = json.loads(module.said(subscriber))
        return {"came": f"after {came['at'] - began:.1f} s", **came["lost"]}


def over_tcp(leases: list[float], seconds: float) -> dict[str, Any]:
    """All of it. Ends with exit code 2 where there are no namespaces."""
    module = of_tests("test_namespaces")
    why = module.Namespaces.missing()
    if why:
        print(f"no network namespaces here: {why}", file=sys.stderr)
        raise SystemExit(2)
    found: dict[str, Any] = {}
    for setting in ("none", "deflate"):
        found[f"filtered order, compression {setting}"] = order_over_tcp(module, setting)
    for lease in leases:
        found[f"idle subscriber, leases of {lease:g} s"] = idle_over_tcp(module, lease, seconds)
    for window in (0, 4096):
        found[f"22 s of data, lease of 10 s, window {window}"] = filled_over_tcp(module, 10.0, window)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=120.0, help="of idleness; two of the longest leases")
    parser.add_argument("--leases", type=float, nargs="*", default=[60.0, 10.0], help="seconds; 60 is the default")
    parser.add_argument("--probe", type=float, default=LookupSection().probe, help="seconds between signs of life")
    parser.add_argument("--compression", action="store_true", help="count what compression saves instead")
    parser.add_argument("--namespaces", action="store_true", help="measure over real TCP instead")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if options.compression or options.namespaces:
        other = compression() if options.compression else over_tcp(options.leases, options.seconds)
        for what, row in other.items() if not options.json else ():
            print(f"{what:45}" + ", ".join(f"{name} {value}" for name, value in row.items()))
        if options.json:
            print(json.dumps(other))
        return 0
    table = {f"{lease:g} s": measure(lease, options.probe, options.seconds) for lease in options.leases}
    columns = [(lease, party) for lease, rows in table.items() for party in rows]
    if options.json:
        print(json.dumps(table))
    else:
        print(f"{'bytes a minute, idle':28}" + "".join(f"{f'{party}, {lease}':>20}" for lease, party in columns))
        purposes = dict.fromkeys(what for rows in table.values() for row in rows.values() for what in row)
        for what in sorted(purposes, key=lambda w: (w.startswith(("share", "with", "bytes", "to join")), w)):
            cells = [table[lease][party].get(what, 0) for lease, party in columns]
            texts = [f"{c:.1%}" if what.startswith("share") else f"{c:,.0f}" for c in cells]
            print(f"{what:28}" + "".join(f"{text:>20}" for text in texts))
    return int(any(table[lease][party]["share, with headers"] >= GOAL for lease, party in columns))


if __name__ == "__main__":
    sys.exit(main())
