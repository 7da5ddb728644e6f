"""System calls an object: which party makes how many of what.

    python benchmarks/system_calls.py [--json] [--only 64] [--strace]

Runs rows of benchmarks/dissemination.py (the same processes and documents: see there) and counts from when all are
connected until all has been delivered. Counted by the kernel (`perf stat` on its tracepoints, which needs privileges
and makes a call dearer by half a microsecond), else by `strace -c -f`, which makes each ten times as slow, so that
batches become larger. Rates are those of dissemination.py, not these. `switches` are voluntary context switches: how
often a thread has gone to sleep.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import shutil
import signal
import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from dissemination import CASES, Parties, measure

ROWS = (
    "100 B, one by one calls",
    "100 B, publish_many",
    "1 KB, predicate",
    "64 KB",
    "12,500/s: 1 in 1 process",
    "12,500/s: 10 in 2 processes",
)
KINDS = {
    "send": ("sendto", "sendmsg", "write", "writev"),
    "receive": ("recvfrom", "recvmsg", "read", "readv"),
    "wait": ("poll", "ppoll", "epoll_wait", "epoll_pwait", "select", "pselect6"),
    "futex": ("futex",),
    "sleep": ("nanosleep", "clock_nanosleep"),
    "getpid": ("getpid",),
}


def switches(pids: Sequence[int]) -> int:
    """Voluntary context switches of all threads so far."""
    found = 0
    for pid in pids:
        for status in Path(f"/proc/{pid}/task").glob("*/status"):
            found += int(status.read_text().rpartition("\nvoluntary_ctxt_switches:")[2].split()[0])
    return found


def by_perf(pids: Sequence[int], report: Path) -> subprocess.Popen[str]:
    """A counter that has begun: perf starts its command once it counts, and ends with it."""
    events = ",".join(
        ["raw_syscalls:sys_enter", *(f"syscalls:sys_enter_{name}" for names in KINDS.values() for name in names)]
    )
    command = ["perf", "stat", "-x", "|", "-o", str(report), "-e", events, "-p", ",".join(map(str, pids))]
    process = subprocess.Popen(
        [*command, "--", "sh", "-c", "echo begun; exec cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline(), "perf counts nothing"
    return process


def by_strace(pids: Sequence[int], report: Path) -> subprocess.Popen[str]:
    """The same by stopping the process at each call."""
    command = ["strace", "-c", "-f", "-o", str(report), *(f"-p{pid}" for pid in pids)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    for _ in pids:
        said = process.stderr.readline()
        assert "attached" in said, said
    return process


def counts(report: str) -> Counter[str]:
    """Calls by kind, from the report of either."""
    found: Counter[str] = Counter()
    for line in report.splitlines():
        if "sys_enter" in line:  # perf: 12||syscalls:sys_enter_futex|...
            count, _, event, *_ = line.split("|")
            if count.isdigit():  # else the process has not run at all
                found[event.partition("sys_enter_")[2] or "total"] += int(count)
        elif len(words := line.split()) in (5, 6) and words[3].isdigit() and words[-1] != "total":
            found[words[-1]] += int(words[3])  # strace: 34.69 0.413427 16 25346 [errors] recvfrom
            found["total"] += int(words[3])
    kinds = Counter({kind: sum(found[name] for name in names) for kind, names in KINDS.items()})
    kinds["other"] = max(0, found["total"] - kinds.total())  # perf's counters do not begin at the same moment
    kinds["total"] = found["total"]
    return kinds


class Counts:
    """Counts while it is entered, each party by a counter of its own."""

    def __init__(self, *, strace: bool) -> None:
        self.found: dict[str, Counter[str]] = {}
        self._begin, self._end = (by_strace, signal.SIGINT) if strace else (by_perf, None)

    @contextmanager
    def watch(self, parties: Parties) -> Iterator[None]:
        """From here to there."""
        with tempfile.TemporaryDirectory() as folder:
            reports = {party: Path(folder) / party for party in parties}
            # Ourselves, the publisher, last: what we start while we are watched is watched as well.
            counters = {party: self._begin(parties[party], reports[party]) for party in reversed(parties)}
            before = {party: switches(pids) for party, pids in parties.items()}
            try:
                yield
            finally:
                after = {party: switches(pids) for party, pids in parties.items()}
                for counter in reversed(counters.values()):
                    if self._end is not None:
                        counter.send_signal(self._end)
                    counter.communicate()  # perf's command ends with its input
            for party, report in reports.items():
                self.found[party] = counts(report.read_text())
                self.found[party]["switches"] = after[party] - before[party]


def can_perf() -> bool:
    """Whether the kernel lets us count."""
    if shutil.which("perf") is None:
        return False
    tried = ["perf", "stat", "-x", "|", "-e", "raw_syscalls:sys_enter", "--", "true"]
    return subprocess.run(tried, capture_output=True, check=False).returncode == 0


def main() -> None:
    """Print a table for each row."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--only", default="", help="rows whose name contains this")
    parser.add_argument("--strace", action="store_true", help="even where perf could be used")
    options = parser.parse_args()
    strace = options.strace or not can_perf()
    if strace and shutil.which("strace") is None:
        parser.error("neither perf (with the right to count system calls) nor strace is here")
    multiprocessing.set_start_method("spawn")
    found: dict[str, Any] = {}
    for name in ROWS:
        case = CASES[name]
        if options.only not in name:
            continue
        calls = Counts(strace=strace)
        row = measure(replace(case, count=case.count // (10 if strace else 2)), watch=calls.watch)
        each = {party: {k: round(v / row["objects"], 3) for k, v in of.items()} for party, of in calls.found.items()}
        found[name] = {"counted by": "strace" if strace else "perf", **row, "an object": each}
        if not options.json:
            show(name, found[name])
    if options.json:
        print(json.dumps(found))


def show(name: str, row: dict[str, Any]) -> None:
    """A table: parties by kinds of calls."""
    print(f"\n{name}: {row['objects']:,} objects, {row['objects/s']:,}/s, counted by {row['counted by']}")
    parties = row["an object"]
    columns = list(next(iter(parties.values())))
    print(f"{'calls an object':16}" + "".join(f"{column:>10}" for column in columns))
    parties["all"] = {column: sum(party[column] for party in parties.values()) for column in columns}
    for party, calls in parties.items():
        print(f"{party:16}" + "".join(f"{calls[column]:>10.2f}" for column in columns), flush=True)


if __name__ == "__main__":
    main()
