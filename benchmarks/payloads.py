"""Large payloads through a delegate, beside a plain relay that passes them on without looking at them.

    python benchmarks/payloads.py [--json] [--rounds 3] [--scale 1.0]

The relay is what Python can do at best with two hops: a publisher that sends length and payload by one `sendmsg`, a
relay that reads into a buffer that it uses again and sends that on, a receiver that reads into one and takes a copy, as
an application has of each object. Ours are those of benchmarks/dissemination.py: documents that are validated, one
subscription, one publish call an object, and the publisher waits for who is slower, as the relay's does. Both over TCP
and over Unix sockets on one host, in turns, medians of all rounds.

us of CPU time an object: of all parties, and of the one in the middle; `ratio` is to the relay's over TCP.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing
import os
import socket
import statistics
import struct
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from dissemination import HUGE, KILO, LARGE, Case, measure

LENGTH = struct.Struct("!I")
CASES = {
    "1 KB": Case(20_000, KILO, blocks=True),
    "64 KB": Case(8_000, LARGE, blocks=True),
    "1 MB": Case(800, HUGE, blocks=True),
}
Row = tuple[float, float]
"""CPU time of all, and of the one in the middle, in us an object."""


def read(sock: socket.socket, space: memoryview) -> None:
    """Fill `space`."""
    while len(space):
        count = sock.recv_into(space)
        assert count, "the other end has closed"
        space = space[count:]


def pass_on(listener: socket.socket, onwards: Any, size: int, count: int, out: Any) -> None:
    """The relay's process; with nobody behind it, the receiver's."""
    came, _ = listener.accept()
    goes = connect(onwards) if onwards else None
    space = memoryview(bytearray(LENGTH.size + size))
    before = time.process_time()
    for _ in range(count):
        read(came, space[: LENGTH.size])
        (length,) = LENGTH.unpack_from(space)
        read(came, space[LENGTH.size : LENGTH.size + length])
        if goes is not None:
            goes.sendall(space)
        else:
            bytes(space[LENGTH.size :])
    out.put(time.process_time() - before)


def connect(address: Any) -> socket.socket:
    """A socket to a path, or to a host and port."""
    sock = socket.socket(socket.AF_UNIX if isinstance(address, str) else socket.AF_INET)
    sock.connect(address)
    return sock


def relayed(case: Case, folder: str) -> Row:
    """The relay's figures, by Unix sockets in a folder, or by TCP."""
    listeners = []
    for name in ("relay", "receiver"):
        listener = socket.socket(socket.AF_UNIX if folder else socket.AF_INET)
        listener.bind(f"{folder}/{name}" if folder else ("127.0.0.1", 0))
        listener.listen()
        listeners.append(listener)
    relay, receiver = listeners
    outs: list[Any] = [multiprocessing.Queue() for _ in listeners]
    shared = case.payload, case.count
    processes = [
        multiprocessing.Process(target=pass_on, args=(receiver, None, *shared, outs[1]), daemon=True),
        multiprocessing.Process(target=pass_on, args=(relay, receiver.getsockname(), *shared, outs[0]), daemon=True),
    ]
    for process in processes:
        process.start()
    with contextlib.closing(connect(relay.getsockname())) as sock:
        payload, length = b"x" * case.payload, LENGTH.pack(case.payload)
        before = time.process_time()
        for _ in range(case.count):
            sent = sock.sendmsg([length, payload])
            if sent < LENGTH.size + case.payload:
                sock.sendall(memoryview(payload)[sent - LENGTH.size :])
        spent = time.process_time() - before
        middle, last = (out.get(timeout=120) for out in outs)
    for each in listeners:
        each.close()
        if folder:
            Path(folder, "relay" if each is relay else "receiver").unlink()
    return (spent + middle + last) / case.count * 1e6, middle / case.count * 1e6


def delegated(case: Case, folder: str) -> Row:
    """The same of publisher, delegate and subscriber."""
    os.environ["JBI_PAD_SOCKETS"] = folder
    found = measure(case)
    return found["CPU us"], found["delegate us"]


def rows(rounds: int, scale: float) -> Iterator[tuple[str, dict[str, Row]]]:
    """Each size, with each way's figures."""
    for name, case in CASES.items():
        case = replace(case, count=int(case.count * scale))
        with tempfile.TemporaryDirectory(prefix="jbi-") as folder:
            ways = {"TCP": "", "Unix": folder}
            taken: dict[str, list[Row]] = {}
            for _ in range(rounds):
                for way, where in ways.items():
                    taken.setdefault(f"relay {way}", []).append(relayed(case, where))
                    taken.setdefault(f"delegate {way}", []).append(delegated(case, where))
        medians = {
            way: tuple(round(statistics.median(each), 1) for each in zip(*found, strict=True))
            for way, found in taken.items()
        }
        yield name, medians  # type: ignore[misc]  # pairs


def main() -> None:
    """Print the table, row by row."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--scale", type=float, default=1.0, help="of the number of objects")
    options = parser.parse_args()
    found = {}
    if not options.json:
        print(f"{'us of CPU an object':32}{'all parties':>14}{'ratio':>8}{'middle':>10}{'ratio':>8}")
    for name, row in rows(options.rounds, options.scale):
        found[name] = row
        if options.json:
            continue
        whole, middle = row["relay TCP"]
        for way, (all_parties, own) in row.items():
            print(
                f"{name + ', ' + way:32}{all_parties:>14}{all_parties / whole:>8.2f}{own:>10}{own / middle:>8.2f}",
                flush=True,
            )
    if options.json:
        print(json.dumps(found))


if __name__ == "__main__":
    main()
