"""`jbi demo`: a whole federation on loopback, as separate processes, checked against what must arrive.

A lookup service, two delegates, three publishers (two through delegates, one peer to peer), eight subscribers, a ninth
that comes when all is over and gets it from a delegate's archive, and an SMTP sink in this process. Everything that is
published is real: the paper's imagery and target list, real CAP alerts.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import msgspec

from jbi_pubsub.core import extras
from jbi_pubsub.core.config import ArchiveSection, Config, LookupSection, MailSection
from jbi_pubsub.examples.federation import PATIENCE, Federation
from jbi_pubsub.examples.mailbox import mailbox
from jbi_pubsub.examples.scenario import LATECOMER, PUBLISHERS, SUBSCRIBERS, PlannedSubscriber, expected, publications

QUIET: Final = 0.7
"""Seconds without news after everything has arrived, in which a duplicate or a stray would show itself."""

GROUP: Final = "demo"
"""Group of its lookup, so that nobody on this host takes it for his own: a node at work asks at the same port."""

DELEGATES: Final = (("alpha", "rome"), ("bravo", "paris"))


class SubscriberRow(msgspec.Struct):
    """Row that is shown of one subscriber."""

    subscriber: PlannedSubscriber
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

    rows: dict[str, SubscriberRow] = field(default_factory=lambda: {s.name: SubscriberRow(s) for s in SUBSCRIBERS})
    without: str = ""
    """Parts that are left out, and why."""
    stage: str = "starting"
    published: int = 0
    began: float = field(default_factory=time.monotonic)
    federation: Federation = field(default_factory=Federation)

    @property
    def locator(self) -> str:
        """Locator of the lookup service."""
        return self.federation.locator

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
            "without": self.without,
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

    def mailed(recipients: tuple[str, ...], message: Any) -> None:
        short = str(message["Subject"]).rpartition("}")[2].split()[0]
        demo.federation.tell(mailed=", ".join(recipients), subject=short)

    with ExitStack() as stack:
        archive = _archive_flags(demo, stack)
        port = stack.enter_context(mailbox(mailed))
        mail = MailSection(port=port, sender="demo@example.org")
        config = Config(lookup=LookupSection(groups=(GROUP,)), mail=mail, archive=ArchiveSection(reserve=0.0))
        here = demo.federation = stack.enter_context(Federation(config))
        here.lookup(_lookup_port())
        for name, location in DELEGATES:
            here.start_delegate(name, location, *archive.get(name, ()))
        _until(demo, lambda: len(here.ready) == 1 + len(DELEGATES), "the delegates", show)
        for subscriber in SUBSCRIBERS:
            here.start(f"subscriber {subscriber.name}", "roles", "subscriber", subscriber.name)
        for publisher in PUBLISHERS:
            is_kept = publisher.delegate is not None and publisher.delegate[0] in archive
            marks = ("persist",) if is_kept else ()
            here.start(f"publisher {publisher.name}", "roles", "publisher", publisher.name, *marks)
        everybody = len(DELEGATES) + 1 + len(SUBSCRIBERS) + len(PUBLISHERS)
        _until(demo, lambda: len(here.ready) == everybody, "publishers and subscribers", show)
        _until(demo, lambda: all(_matched(row) for row in demo.rows.values()), "the first-level matches", show)
        publish(demo)
        if archive:
            total = sum(len(publications(publisher)) for publisher in PUBLISHERS)
            _until(demo, lambda: demo.published == total, "the last object to be published", show)
            here.start(f"subscriber {LATECOMER.name}", "roles", "subscriber", LATECOMER.name)
        _settle(demo, show)
        yield demo


def _archive_flags(demo: Demo, stack: ExitStack) -> dict[str, tuple[str, ...]]:
    """For `jbi pad`, by the delegate's name: {} where the libraries are missing, which is told."""
    if library := extras.missing("archive"):
        demo.without = f"the subscriber that comes late: its archive needs {library}, pip install 'jbi-pubsub[archive]'"
        return {}
    demo.rows[LATECOMER.name] = SubscriberRow(LATECOMER)
    folder = stack.enter_context(TemporaryDirectory(prefix="jbi-demo-", ignore_cleanup_errors=True))
    return {DELEGATES[0][0]: ("--archive", str(Path(folder, "archive")))}


def publish(demo: Demo) -> None:
    """Have every publisher publish all its objects once."""
    demo.stage = "publishing"
    for publisher in PUBLISHERS:
        demo.federation.word(f"publisher {publisher.name}", "go")


def pump(demo: Demo, seconds: float) -> bool:
    """Take in what the processes say for at most `seconds`; whether there was any news."""
    facts = demo.federation.news(seconds)
    if facts is None:
        return False
    _heard(demo, facts)
    return True


def _heard(demo: Demo, facts: dict[str, Any]) -> None:
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


def _matched(row: SubscriberRow) -> bool:
    if row.subscriber.start != "new":
        return True  # it is not there yet
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

    def heard(facts: dict[str, Any]) -> None:
        _heard(demo, facts)
        show(demo)

    demo.federation.until(good, what, heard)


def _lookup_port() -> int:
    """The usual port if it is free, so that `jbi` finds the demo from another terminal; else any."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", 4160))
        except OSError:
            return 0
    return 4160
