"""What publishing over HTTP costs: `python benchmarks/gateway.py [--seconds 5]`.

One client, one connection, objects of 1 KB, one a request and fifty a request, each way with a subscriber in the same
place; and the same objects by the adapter, in the same run. Servers are processes; wall time and processor time of the
gateway are told.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from contextlib import ExitStack
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

from jbi_pubsub import Config, PublisherAdapterLight
from jbi_pubsub.core.config import LookupSection

METADATA = b"<report><n>%d</n><text>" + b"x" * 256 + b"</text></report>"
PAYLOAD = b"\x00\xff" * 360
"""1,024 bytes with the metadata, about."""


def started(stack: ExitStack, *arguments: str) -> tuple[subprocess.Popen[str], dict[str, Any]]:
    """A `jbi` command, and the facts that it tells when it is ready."""
    process = subprocess.Popen(
        [sys.executable, "-m", "jbi_pubsub", "--no-multicast", "--group", "bench-gateway", *arguments, "--json"],
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    stack.callback(process.wait, 30)
    stack.callback(process.terminate)
    assert process.stdout is not None
    return process, json.loads(process.stdout.readline())


def body(first: int, count: int) -> bytes:
    """So many objects as multipart."""
    parts = (
        b'--b\r\nContent-Disposition: form-data; name="metadata"\r\n\r\n' + METADATA % number + b"\r\n"
        b'--b\r\nContent-Disposition: form-data; name="payload"\r\n\r\n' + PAYLOAD + b"\r\n"
        for number in range(first, first + count)
    )
    return b"".join(parts) + b"--b--\r\n"


def processor(pid: int) -> float:
    """Seconds that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def over_http(port: int, pid: int, seconds: float, count: int) -> tuple[float, float, int]:
    """Objects a second, microseconds of the gateway's processor an object, and how often it said 429."""
    connection = HTTPConnection("127.0.0.1", port, timeout=30)
    headers = {"Content-Type": "multipart/form-data; boundary=b"}
    path = "/v1/types/report/1.0/objects?validate=false"
    bodies = [body(n, count) for n in range(64)]
    sent = refused = 0
    for round_ in range(2):  # the first is to warm up
        begun, used, sent, refused = time.perf_counter(), processor(pid), 0, 0
        while time.perf_counter() - begun < (seconds if round_ else 1.0):
            connection.request("POST", path, bodies[sent // count % 64], headers)
            answer = connection.getresponse()
            said = answer.read()
            if answer.status == 429:
                published = int(json.loads(said)["facts"]["published"])
                refused += 1
                time.sleep(0.02)
            else:
                assert answer.status == 202, said
                published = count
            sent += published
    took = time.perf_counter() - begun
    return sent / took, (processor(pid) - used) / sent * 1e6, refused


def by_adapter(config: Config, seconds: float) -> float:
    """Objects a second of `publish`, without a gateway."""
    with PublisherAdapterLight(config) as publisher:
        at = publisher.register_publisher(publisher.connect_to_delegate(), type_name="report", validate=False)
        begun, sent = time.perf_counter(), 0
        while time.perf_counter() - begun < seconds:
            publisher.publish(at, METADATA % sent, PAYLOAD)
            sent += 1
        publisher.flush(60)
        return sent / (time.perf_counter() - begun)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=5.0)
    seconds = parser.parse_args().seconds
    with ExitStack() as stack:
        _, lookup = started(stack, "lookup", "--port", "0")
        at = ("--locator", lookup["address"])
        started(stack, *at, "pad", "alpha", "rome")
        process, facts = started(stack, *at, "gateway", "--port", "0")
        port = int(facts["url"].rpartition(":")[2])
        print(f"{'':34}{'objects/s':>10}{'gateway, us/object':>20}{'told 429':>10}")
        for count in (1, 50):
            rate, cost, refused = over_http(port, process.pid, seconds, count)
            print(f"HTTP, {count:2} a request, one client    {rate:>10,.0f}{cost:>20,.0f}{refused:>10}")
        found_by = LookupSection(groups=("bench-gateway",), locators=(lookup["address"],), multicast=False)
        print(f"{'publish of the adapter':34}{by_adapter(Config(lookup=found_by), seconds):>10,.0f}")


if __name__ == "__main__":
    main()
