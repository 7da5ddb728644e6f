"""First calls, as a user meets them: real processes, nothing warm but the disk.

    python benchmarks/first.py [--rounds 5] [--json]

For two schemas (Intel_Imagery of the paper, CAP 1.2) each round starts a lookup service and a delegate, then one
process after the other: `register_publisher` in the first that comes with the schema, the same in a second process,
`jbi publish` of one object; then again at a delegate that has just been started, with what the first has left on disk.
The folder for what was made of schemas is empty at the beginning of each round. Then a node that nobody has asked
anything. Medians of the rounds, and the longest; CPU is that of a process and its children. `bare` is a Python process
that does nothing, to compare with. Where Python may not write bytecode (PYTHONDONTWRITEBYTECODE), and nobody has, each
process compiles what it imports: no installed package is like that.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import psutil

DATA: Final = Path(__file__).parent.parent / "examples" / "data"
SCHEMAS: Final = {
    "Intel_Imagery": (DATA / "intel_imagery" / "Intel_Imagery.xsd", None, DATA / "intel_imagery" / "fig1.xml"),
    "CAP 1.2": (DATA / "cap" / "cap12.xsd", DATA / "cap" / "marks.json", DATA / "cap" / "canada.xml"),
}
PUBLISHER: Final = """
import json, pathlib, sys, time
began = time.perf_counter()
from jbi_pubsub import PublisherAdapterLight
from jbi_pubsub.core.config import effective
imported = time.perf_counter()
schema, marks, metadata = [pathlib.Path(given) if given else None for given in sys.argv[1:]]
with PublisherAdapterLight(effective()) as publisher:
    at = publisher.connect_to_delegate("here", "now")
    connected = time.perf_counter()
    uid = publisher.register_publisher(at, schema, metadata, marks=marks)
    registered = time.perf_counter()
    publisher.publish(uid, metadata)
    publisher.flush()
    flushed = time.perf_counter()
print(json.dumps({"import": imported - began, "connect": connected - imported, "register": registered - connected,
    "publish": flushed - registered}))
"""
"""An application; it says how long each of its steps took."""


@contextmanager
def served(environment: dict[str, str], *arguments: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """A command that serves: its process id, and what it says of itself."""
    process = subprocess.Popen(
        [sys.executable, "-m", "jbi_pubsub", *arguments, "--json"], stdout=subprocess.PIPE, env=environment
    )
    try:
        assert process.stdout is not None
        yield process.pid, json.loads(process.stdout.readline())
    finally:
        process.terminate()
        process.wait(30)


def took(command: list[str], environment: dict[str, str]) -> tuple[float, float, bytes]:
    """Seconds that a process took from its start to its end, those of CPU, and what it printed."""
    began, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True, timeout=60)
    seconds, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    return seconds, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, done.stdout


def round_of(name: str, cache: str) -> dict[str, float]:
    """Seconds of each step, with an empty folder for what is made of schemas."""
    schema, marks, metadata = SCHEMAS[name]
    environment = {**os.environ, "XDG_CACHE_HOME": cache, "JBI_LOOKUP_MULTICAST": "false", "JBI_CONFIG": os.devnull}
    application = [sys.executable, "-c", PUBLISHER, str(schema), str(marks or ""), str(metadata)]
    command = [sys.executable, "-m", "jbi_pubsub", "publish", "--delegate", "here", "now", "--schema", str(schema)]
    command += [*(["--marks", str(marks)] if marks else []), "--metadata", str(metadata)]
    rows: dict[str, float] = {}

    def steps(what: str) -> None:
        whole, used, said = took(application, environment)
        each = json.loads(said)
        rows[f"{what}: register_publisher"] = each.pop("register")
        rows.update({f"{what}: {step}": seconds for step, seconds in each.items()})
        rows[f"{what}: whole process"], rows[f"{what}: CPU of it"] = whole, used

    with served(environment, "lookup", "--port", "0") as (_, facts):
        environment["JBI_LOOKUP_LOCATORS"] = facts["address"]
        with served(environment, "pad", "here", "now"):
            steps("first")
            steps("second process")
            rows["jbi publish"], rows["jbi publish: CPU"], _ = took(command, environment)
        with served(environment, "pad", "here", "now"):
            steps("delegate started again")
    rows["bare python"] = took([sys.executable, "-c", "pass"], environment)[0]
    return rows


def idle(folder: str) -> dict[str, float]:
    """MB that the processes of an idle node take: resident, each."""
    environment = {**os.environ, "JBI_LOOKUP_MULTICAST": "false", "JBI_CONFIG": os.devnull, "JBI_LOOKUP_PORT": "0"}
    with served(environment, "node", "start", "--folder", folder) as (pid, _):
        time.sleep(2.0)  # what begins after it has said that it is there
        node = psutil.Process(pid)
        rows = {"idle node: MB": node.memory_info().rss / 1e6}
        children = [child.memory_info().rss / 1e6 for child in node.children(recursive=True)]
        return {**rows, "idle node: children": len(children), "idle node: MB of children": sum(children)}


def main() -> None:
    """Print the table, or JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    found: dict[str, list[float]] = {}
    for _ in range(options.rounds):
        for name in SCHEMAS:
            with tempfile.TemporaryDirectory() as cache:
                for what, seconds in round_of(name, cache).items():
                    found.setdefault(f"{name}: {what}", []).append(seconds)
    with tempfile.TemporaryDirectory() as folder:
        found.update({what: [value] for what, value in idle(folder).items()})
    rows = {what: [round(statistics.median(values), 3), round(max(values), 3)] for what, values in found.items()}
    if options.json:
        print(json.dumps(rows, indent=1))
        return
    print(f"{'s, unless it says MB':56}{'median':>9}{'longest':>9}")
    for what, (median, longest) in rows.items():
        print(f"{what:56}{median:>9}{longest:>9}")


if __name__ == "__main__":
    main()
