"""`jbi demo`: a whole federation on loopback, as separate processes, checked against what must arrive.

A lookup service, two delegates, three publishers (two through delegates, one peer to peer), eight subscribers, and an
SMTP sink in this process. Everything published is real: the paper's imagery and target list, real CAP alerts.
"""

from __future__ import annotations

import asyncio
import json
import os
import queue
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from email import message_from_bytes
from typing import Any, Final

import msgspec
from aiosmtpd.controller import Controller

from jbi_pubsub.core.config import Config, LookupSection, MailSection
from jbi_pubsub.core.errors import DemoError
from jbi_pubsub.examples.scenario import PUBLISHERS, SUBSCRIBERS, Subscriber, expected

PATIENCE: Final = 60.0
"""Seconds for all processes to be ready, and again for all objects to arrive; a normal run needs 10 in all, one beside
others that keep every core busy needs several times that."""

QUIET: Final = 0.7
"""Seconds without news after everything has arrived, in which a duplicate or a stray would show itself."""

DELEGATES: Final = (("alpha", "rome"), ("bravo", "paris"))


class Row(msgspec.Struct):
    """What is shown of one subscriber."""

    subscriber: Subscriber
    servers: int = 0
    objects: int = 0
    parts: int = 0
    mails: int = 0
    last: str = ""

    @property
    def must(self) -> int:
        """Objects (or mails) that must arrive."""
        return expected(self.subscriber).objects

    @property
    def got(self) -> int:
        """Objects (or mails) that have arrived."""
        return self.mails if self.subscriber.recipients else self.objects

    @property
    def right(self) -> bool:
        """Whether all is as it must be."""
        want = expected(self.subscriber)
        return (
            self.got == want.objects
            and self.parts == want.parts
            and (self.objects == 0 or not self.subscriber.recipients)
        )


@dataclass(slots=True)
class Demo:
    """The state of a run. One thread (the one in `play`) reads the news and changes it."""

    rows: dict[str, Row] = field(default_factory=lambda: {s.name: Row(s) for s in SUBSCRIBERS})
    locator: str = ""
    stage: str = "starting"
    published: int = 0
    began: float = field(default_factory=time.monotonic)
    news: queue.Queue[dict[str, Any]] = field(default_factory=queue.Queue)
    processes: dict[str, subprocess.Popen[str]] = field(default_factory=dict)
    ready: set[str] = field(default_factory=set)

    @property
    def right(self) -> bool:
        """Whether every subscriber has exactly what it must."""
        return all(row.right for row in self.rows.values())

    @property
    def seconds(self) -> float:
        """Since the start."""
        return time.monotonic() - self.began

    def summary(self) -> dict[str, Any]:
        """The result as plain data."""
        return {
            "right": self.right,
            "seconds": round(self.seconds, 1),
            "published": self.published,
            "locator": self.locator,
            "subscribers": [
                {
                    "name": row.subscriber.name,
                    "first_level": row.subscriber.first_level,
                    "predicate": row.subscriber.predicate,
                    "filter": row.subscriber.payload_filter,
                    "recipients": list(row.subscriber.recipients),
                    "servers": row.servers,
                    "got": row.got,
                    "must": row.must,
                    "parts": row.parts,
                    "right": row.right,
                }
                for row in self.rows.values()
            ],
        }


@contextmanager
def play(show: Callable[[Demo], None]) -> Iterator[Demo]:
    """Run the demo; inside the `with` everything still runs. `show` is called on each change.

    Raises DemoError when a process fails or is not ready in time. Wrong counts are no error: look at `right`.
    """
    demo = Demo()
    with ExitStack() as stack:
        mail = stack.enter_context(_smtp_sink(demo))
        stack.callback(_stop_all, demo)
        lookup = _start(
            demo, "lookup", ["-m", "jbi_pubsub", "--no-multicast", "lookup", "--port", str(_lookup_port()), "--json"]
        )
        _until(demo, lambda: bool(demo.locator), "the lookup service", show)
        config = Config(
            lookup=LookupSection(locators=(demo.locator,), multicast=False),
            mail=MailSection(port=mail, sender="demo@example.org"),
        )
        for name, location in DELEGATES:
            _start(demo, f"delegate {name}", _jbi(config, "pad", name, location, "--json"))
        _until(demo, lambda: len(demo.ready) == 1 + len(DELEGATES), "the delegates", show)
        encoded = msgspec.json.encode(config).decode()
        for kind, names in (("subscriber", [s.name for s in SUBSCRIBERS]), ("publisher", [p.name for p in PUBLISHERS])):
            for name in names:
                _start(demo, f"{kind} {name}", ["-m", "jbi_pubsub.examples.roles", kind, name, encoded])
        everybody = len(DELEGATES) + 1 + len(SUBSCRIBERS) + len(PUBLISHERS)
        _until(demo, lambda: len(demo.ready) == everybody, "publishers and subscribers", show)
        _until(demo, lambda: all(_matched(row) for row in demo.rows.values()), "the first-level matches", show)
        publish(demo)
        _settle(demo, show)
        assert lookup.poll() is None
        yield demo


def publish(demo: Demo) -> None:
    """Have every publisher publish all its objects once."""
    demo.stage = "publishing"
    for publisher in PUBLISHERS:
        stdin = demo.processes[f"publisher {publisher.name}"].stdin
        assert stdin is not None
        stdin.write("go\n")
        stdin.flush()


def pump(demo: Demo, seconds: float) -> bool:
    """Take in what the processes say for at most `seconds`; whether there was any news."""
    try:
        facts = demo.news.get(timeout=seconds)
    except queue.Empty:
        return False
    if "ended" in facts:
        raise DemoError(f"{facts['ended']} has ended: {facts['why'] or 'no message'}")
    if "address" in facts and facts.get("ready") == "lookup":
        demo.locator = facts["address"]
    if "ready" in facts:
        demo.ready.add(facts["process"])
    if "published" in facts and "objects" in facts:
        demo.published += facts["objects"]
    if "matched" in facts:
        demo.rows[facts["matched"]].servers = facts["servers"]
    if "received" in facts:
        row = demo.rows[facts["received"]]
        row.objects += 1
        row.parts += facts["parts"]
        cut = (
            f", {facts['parts']} parts: {facts['payload']} of {facts['published']} B"
            if row.subscriber.payload_filter
            else ""
        )
        row.last = f"{facts['type'].rpartition('}')[2].rpartition('.')[2]} #{facts['sequence']}{cut}"
    if "mailed" in facts:
        row = next(r for r in demo.rows.values() if r.subscriber.recipients)
        row.mails += 1
        row.last = f"{facts['subject']} to {facts['mailed']}"
    return True


def _matched(row: Row) -> bool:
    # e-mail subscriptions stand at every delegate, for publishers to come
    return row.servers >= (len(DELEGATES) if row.subscriber.recipients else expected(row.subscriber).servers)


def _settle(demo: Demo, show: Callable[[Demo], None]) -> None:
    deadline = time.monotonic() + PATIENCE
    quiet_since = time.monotonic()
    while time.monotonic() < deadline:
        if pump(demo, 0.1):
            quiet_since = time.monotonic()
            show(demo)
        elif demo.right and time.monotonic() - quiet_since > QUIET:
            break
    demo.stage = "done"
    show(demo)


def _until(demo: Demo, good: Callable[[], bool], what: str, show: Callable[[Demo], None]) -> None:
    demo.stage = f"waiting for {what}"
    show(demo)
    deadline = time.monotonic() + PATIENCE
    while not good():
        if time.monotonic() > deadline:
            raise DemoError(
                f"{what} were not ready within {PATIENCE:g} s", hint="Try `jbi -v demo`; is the machine busy?"
            )
        if pump(demo, 0.1):
            show(demo)


def _environment() -> dict[str, str]:
    """Ours without settings: those of the user's own federation are not meant for the demo."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("JBI_")}
    return kept | {"JBI_CONFIG": os.devnull}


def _jbi(config: Config, *arguments: str) -> list[str]:
    mail = ["--set", f"mail.port={config.mail.port}", "--set", f"mail.sender={config.mail.sender}"]
    return ["-m", "jbi_pubsub", "--no-multicast", "--locator", config.lookup.locators[0], *mail, *arguments]


def _lookup_port() -> int:
    """The usual port if it is free, so that `jbi` finds the demo from another terminal; else any."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", 4160))
        except OSError:
            return 0
    return 4160


def _start(demo: Demo, name: str, arguments: list[str]) -> subprocess.Popen[str]:
    process = subprocess.Popen(  # noqa: S603  # our own interpreter and modules, no shell
        [sys.executable, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=_environment(),
        start_new_session=True,  # Ctrl-C is for us; we stop the others in order
    )
    demo.processes[name] = process
    threading.Thread(target=_listen, args=(demo, name, process), name=f"hear {name}", daemon=True).start()
    return process


def _listen(demo: Demo, name: str, process: subprocess.Popen[str]) -> None:
    assert process.stdout is not None
    assert process.stderr is not None
    for line in process.stdout:
        demo.news.put({**json.loads(line), "process": name})
    why = process.stderr.read().strip()
    if process.wait() != 0 and demo.stage != "stopping":
        demo.news.put({"ended": name, "why": why[-500:]})


def _stop_all(demo: Demo) -> None:
    """Publishers and subscribers first, then delegates, the lookup service last."""
    demo.stage = "stopping"
    for kind in ("publisher", "subscriber", "delegate", "lookup"):
        ending = [p for name, p in demo.processes.items() if name.startswith(kind)]
        for process in ending:
            if kind in ("publisher", "subscriber") and process.stdin is not None:
                process.stdin.close()
            else:
                process.terminate()
        for process in ending:
            try:
                process.wait(10.0)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


@contextmanager
def _smtp_sink(demo: Demo) -> Iterator[int]:
    controller = _AnyPort(_Sink(demo), hostname="127.0.0.1", port=0)
    controller.start()
    try:
        yield controller.port
    finally:
        controller.stop()


class _AnyPort(Controller):
    """aiosmtpd's controller on a free port, which it would not learn by itself."""

    def _trigger_server(self) -> None:
        assert isinstance(self.server, asyncio.Server)
        self.port = self.server.sockets[0].getsockname()[1]
        super()._trigger_server()  # type: ignore[no-untyped-call]  # aiosmtpd annotates in part


class _Sink:
    """Takes mail and tells the demo; aiosmtpd calls the handle_ methods."""

    def __init__(self, demo: Demo) -> None:
        self._demo = demo

    async def handle_DATA(self, _server: Any, _session: Any, envelope: Any) -> str:  # noqa: N802  # aiosmtpd's name
        subject = message_from_bytes(envelope.content)["Subject"]
        short = str(subject).rpartition("}")[2].split()[0]
        self._demo.news.put({"mailed": ", ".join(envelope.rcpt_tos), "subject": short})
        return "250 OK"
