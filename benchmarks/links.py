"""What idle parties send over their link: leases, probes, discovery (paper section 3.1).

    python benchmarks/links.py [--seconds 120] [--leases 60 10] [--json]

A lookup service and a delegate run as processes; a subscriber and a publisher, each behind a relay of its own, have
registered and then do nothing. Bytes a minute are counted by call, and once more with the headers of all TCP segments
(acknowledgements and keepalives as well). The share is of a link of 7,200 bit/s; the goal is less than 10 %.

Exit code 1 if an idle party needs more.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

from jbi_pubsub import Config, PublisherAdapterLight, SubscriberAdapter
from jbi_pubsub.core.config import LeaseSection, LookupSection

HERE = Path(__file__).parent
DATA = HERE.parent / "examples" / "data" / "intel_imagery"
BITS = 7_200
GOAL = 0.10


def relay() -> Any:
    """The tests' relay."""
    spec = importlib.util.spec_from_file_location("links_conftest", HERE.parent / "tests" / "links" / "conftest.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.Link


def counted(link: Any, names: dict[int, str]) -> Counter[str]:
    """Bytes so far by purpose."""
    found = Counter({"with TCP/IP headers": link.wire_bytes()})
    for (port, call), size in link.traffic.items():
        found[f"{names[port]} {call or 'preamble'}"] += size
        found["bytes in all"] += size
    return found


def measure(lease: float, probe: float, seconds: float) -> dict[str, dict[str, float]]:
    """Bytes a minute of an idle subscriber and an idle publisher, by purpose."""
    jbi = [sys.executable, "-m", "jbi_pubsub", "--no-multicast", "--set", f"lookup.probe={probe}"]
    lookup = subprocess.Popen([*jbi, "lookup", "--port", "0", "--json"], stdout=subprocess.PIPE, text=True)
    assert lookup.stdout is not None
    locator = json.loads(lookup.stdout.readline())["address"]
    pad = subprocess.Popen(
        [*jbi, "--locator", locator, "pad", "ground", "here", "--json"], stdout=subprocess.PIPE, text=True
    )
    assert pad.stdout is not None
    delegate = json.loads(pad.stdout.readline())["address"]
    ports = {int(locator.rpartition(":")[2]): "lookup", int(delegate.rpartition(":")[2]): "delegate"}
    config = Config(
        lookup=LookupSection(locators=(locator,), multicast=False, probe=probe),
        lease=LeaseSection(publisher=lease, subscriber=lease, lookup=lease),
    )
    new_link = relay()
    links = {"subscriber": new_link("127.0.0.2"), "publisher": new_link("127.0.0.3")}
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
        for server in (pad, lookup):
            server.terminate()
            server.wait(20)
    rows: dict[str, dict[str, float]] = {}
    for party in links:
        idle = after[party] - before[party]
        rows[party] = {what: round(size * 60 / seconds) for what, size in sorted(idle.items())}
        rows[party]["to join, once"] = joining[party]["bytes in all"]
        rows[party]["share, bytes"] = round(idle["bytes in all"] * 8 / seconds / BITS, 4)
        rows[party]["share, with headers"] = round(idle["with TCP/IP headers"] * 8 / seconds / BITS, 4)
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=120.0, help="of idleness; two of the longest leases")
    parser.add_argument("--leases", type=float, nargs="*", default=[60.0, 10.0], help="seconds; 60 is the default")
    parser.add_argument("--probe", type=float, default=LookupSection().probe, help="seconds between signs of life")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
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
