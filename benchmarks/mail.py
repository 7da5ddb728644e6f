"""Mail: how many a second go out over one connection and over four, in memory and on disk, and as digests.

The mail server is a process of its own that takes everything, and answers a message after a pause, as one that writes
it to disk first does (`--pause`, milliseconds). Ratios are to one connection in memory of the same run and size.

    python benchmarks/mail.py [--count 1000] [--pause 2] [--json]
"""

from __future__ import annotations

import argparse
import asyncio
import functools
import json
import multiprocessing
import resource
import tempfile
import time
from pathlib import Path
from typing import Any

from jbi_pubsub.core.config import MailSection
from jbi_pubsub.core.info_object import Cause, InfoObject, Platform, TypeName
from jbi_pubsub.pad.mail.dispatcher import MailDispatcher
from jbi_pubsub.pad.mail.message import compose, single
from jbi_pubsub.pad.mail.store import MailStore
from jbi_pubsub.pad.model.subscription import Subscription, compile_subscription
from jbi_pubsub.protocol.requests import SubscriptionRequest

SIZES = (1_000, 64_000)
SUBSCRIPTIONS = 20
METADATA = b"<metadata>" + b"<name>value</name>" * 40 + b"</metadata>"


class Taker(asyncio.Protocol):
    """Says yes to everything."""

    def __init__(self, pause: float) -> None:
        self._pause = pause
        self._buffer = bytearray()
        self._in_message = False
        self._transport: Any = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        self._transport.write(b"220 benchmark\r\n")

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        if self._in_message:
            if self._buffer.endswith(b"\r\n.\r\n"):
                self._buffer.clear()
                self._in_message = False
                asyncio.get_running_loop().call_later(self._pause, self._transport.write, b"250 taken\r\n")
            return
        while (end := self._buffer.find(b"\n")) >= 0:
            word = bytes(self._buffer[:4]).upper()
            del self._buffer[: end + 1]
            self._in_message = word == b"DATA"
            self._transport.write(b"354 go on\r\n" if self._in_message else b"250 ok\r\n")


def serve(pause: float, port: Any) -> None:
    """The mail server."""

    async def run() -> None:
        server = await asyncio.get_running_loop().create_server(functools.partial(Taker, pause), "127.0.0.1", 0)
        port.put(server.sockets[0].getsockname()[1])
        await server.serve_forever()

    asyncio.run(run())


def measure(port: int, count: int, size: int, *, connections: int, store: Path | None = None, digest: int = 0) -> Any:
    """Offer `count` objects to one of several subscriptions each, and wait until all have gone."""

    def lost(_subscription: Subscription, cause: Cause, amount: int, why: str) -> None:
        raise AssertionError(f"{amount} lost: {cause} {why}")

    settings = MailSection(port=port, connections=connections, queue_bound=10**6, queue_bytes=1 << 40)
    mail = MailDispatcher(settings, name="benchmark", lost=lost, store=MailStore(store) if store else None)
    attributes = (("mail_digest_seconds", str(digest)),) if digest else ()
    subscriptions = []
    for n in range(SUBSCRIPTIONS):
        request = SubscriptionRequest(f"s{n}", direct=False, recipients=(f"r{n}@example.org",), attributes=attributes)
        subscriptions.append(compile_subscription(request, owner="mail", number=0))
        mail.open(subscriptions[-1])
    mail.start()
    objects = [made(n, size) for n in range(count)]
    used, begin = cpu(), time.perf_counter()
    for n, obj in enumerate(objects):
        mail.offer(subscriptions[n % SUBSCRIPTIONS], obj, obj.payload)
    offered = time.perf_counter() - begin
    mail.writer.sync()
    mail.drain(300.0, closing=True)
    took = time.perf_counter() - begin
    assert sum(s.mailed for s in subscriptions) == count
    used = cpu() - used
    mail.stop()
    return {
        "objects/s": round(count / took),
        "offer us": round(offered / count * 1e6),
        "cpu us": round(used / count * 1e6),
    }


def made(number: int, size: int) -> InfoObject:
    """An object with `size` bytes of payload."""
    platform = Platform(1.7e9, "registration-1", number, len(METADATA), size)
    return InfoObject(f"object-{number}", TypeName("mil.af.rl.jbi.Intel_Imagery"), METADATA, bytes(size), platform)


def building(size: int) -> dict[str, object]:
    """A mail for 100 subscriptions: built once and addressed, against built for each."""
    obj, rounds = made(1, size), 20

    def timed(work: Any) -> float:
        begin = time.perf_counter()
        for _ in range(rounds):
            work()
        return (time.perf_counter() - begin) / rounds / 100 * 1e6

    def shared() -> None:
        content = compose(obj, obj.payload, number=1, sender="a@example.org")
        for n in range(100):
            single(content, f"s{n}", "example.org")

    def each() -> None:
        for n in range(100):
            single(compose(obj, obj.payload, number=1, sender="a@example.org"), f"s{n}", "example.org")

    once, always = timed(shared), timed(each)
    return {"what": "building for 100", "size": size, "us once": round(once, 1), "us each": round(always, 1),
            "ratio": round(always / once, 1)}  # fmt: skip


def cpu() -> float:
    """Seconds that this process has computed."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def main() -> None:
    """Print a table, or JSON."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--count", type=int, default=1000)
    options.add_argument("--pause", type=float, default=2.0)
    options.add_argument("--json", action="store_true")
    chosen = options.parse_args()
    port: Any = multiprocessing.Queue()
    server = multiprocessing.Process(target=serve, args=(chosen.pause / 1000, port), daemon=True)
    server.start()
    address = port.get(timeout=30)
    rows: list[dict[str, object]] = []
    with tempfile.TemporaryDirectory() as folder:
        for size in SIZES:
            base = 0.0
            for what, given in (
                ("1 connection", {"connections": 1}),
                ("4 connections", {"connections": 4}),
                ("4, on disk", {"connections": 4, "store": Path(folder) / f"{size}.mails"}),
                ("4, digests of 50", {"connections": 4, "digest": 1}),
            ):
                found = measure(address, chosen.count, size, **given)
                base = base or found["objects/s"]
                rows.append({"what": what, "size": size, **found, "ratio": round(found["objects/s"] / base, 2)})
    server.terminate()
    server.join()
    built = [building(size) for size in SIZES]
    if chosen.json:
        print(json.dumps({"sending": rows, "building": built}, indent=1))
        return
    print(f"{'what':20} {'payload':>8} {'objects/s':>10} {'offer us':>9} {'cpu us':>7} {'ratio':>6}")
    for row in rows:
        print(f"{row['what']:20} {row['size']:>8} {row['objects/s']:>10} {row['offer us']:>9} {row['cpu us']:>7} "
              f"{row['ratio']:>6}")  # fmt: skip
    print(f"\n{'what':20} {'payload':>8} {'once, us':>10} {'each, us':>9} {'ratio':>6}   a subscription")
    for row in built:
        print(f"{row['what']:20} {row['size']:>8} {row['us once']:>10} {row['us each']:>9} {row['ratio']:>6}")


if __name__ == "__main__":
    main()
