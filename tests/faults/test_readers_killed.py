"""Delegate and subscriber are killed at any moment, while four publish: who reads the archive misses nothing."""

from __future__ import annotations

import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from jbi_pubsub.core.errors import JbiError
from tests.faults.conftest import Party

pytestmark = pytest.mark.processes

TYPE = "mil.af.rl.jbi.Intel_Imagery"
PUBLISHERS = 4
PAUSE = 0.02
"""Seconds between two batches of a publisher."""

READER = """
import random, threading

class Into:
    def __init__(self, name, acknowledges):
        self.file, self.acknowledges, self.lock = open(name, "a", 1), acknowledges, threading.Lock()
        self.open = []

    def arrived(self, subscription, obj):
        self.file.write(f"got {obj.object_id}\\n")
        if self.acknowledges:
            with self.lock:
                self.open.append(obj)
                if LAST or random.random() < 0.7:
                    self.acknowledge(self.open.pop(random.randrange(len(self.open))))

    def acknowledge(self, obj):
        adapter.acknowledge(obj)
        self.file.write(f"done {obj.object_id}\\n")

    def lost(self, subscription, notice):
        if notice.cause != "refused":  # the one before may not be known to be dead
            self.file.write(f"lost {notice.cause}\\n")

with SubscriberAdapter(config) as adapter:
    for ack in ("auto", "explicit"):
        into = Into(FOLDER + "/" + ack, ack == "explicit")
        adapter.register_subscriber(type_name=TYPE, durable=ack, ack=ack, start="all", bound=200, listener=into)
    tell(ready=True)
    told()
tell(left=True)
"""


class Publishing(threading.Thread):
    """Publishes until it is told to end, whatever happens to the delegate; what is known to be taken."""

    def __init__(self, adapter: Any, figures: Any) -> None:
        super().__init__(name="publishing")
        self.adapter, self.figures = adapter, figures
        self.at = adapter.connect_to_delegate("alpha", "rome")
        self.registration = adapter.register_publisher(self.at, figures.schema, figures.figure_1, persist=True)
        self.ids: list[str] = []
        self.is_over = threading.Event()

    def run(self) -> None:
        while not self.is_over.wait(PAUSE * random.random()):
            for _ in range(random.randint(1, 5)):
                try:
                    self.ids.append(self.adapter.publish(self.registration, self.figures.figure_1, b"payload"))
                except JbiError:
                    time.sleep(0.1)  # no delegate just now


class Into:
    """Takes at once what comes, so that nobody waits for it."""

    def __init__(self) -> None:
        self.came: Counter[str] = Counter()

    def arrived(self, _subscription: str, obj: Any) -> None:
        self.came[obj.object_id] += 1

    def lost(self, _subscription: str, _notice: Any) -> None:
        """The adapter's account tells it as well."""


def lines(file: Path, word: str) -> list[str]:
    found = file.read_text().splitlines() if file.exists() else []
    return [line.split()[1] for line in found if line.startswith(word + " ") and len(line.split()) == 2]


@pytest.mark.parametrize("kills", [6, pytest.param(200, marks=[pytest.mark.slow, pytest.mark.timeout(1_200)])])
def test_who_reads_the_archive_misses_nothing(
    field: Any, figures: Any, tmp_path: Path, kills: int, eventually: Callable[..., Any]
) -> None:
    chance = random.Random(kills)
    folder = f"archive.folder={tmp_path / 'archive'}"

    def pad(port: str) -> Any:
        return Party(field.jbi("--set", folder, "pad", "alpha", "rome", "--port", port, "--json"))

    def reader(*, is_last: bool = False) -> Any:
        return field.script(f"FOLDER, LAST = {str(tmp_path)!r}, {is_last!r}\n" + READER)

    # Given a delegate with an archive, two durable subscriptions of a process, and one here that began with all
    delegate = pad("0")
    port = delegate.port
    publishing = [Publishing(field.light(), figures) for _ in range(PUBLISHERS)]
    subscriber, here = reader(), field.adapter()
    into = Into()
    replayed = here.register_subscriber(type_name=TYPE, start="all", bound=200, policy="block", listener=into)
    for each in publishing:
        each.start()
    # When delegate and subscriber are killed again and again
    try:
        for _ in range(kills):
            time.sleep(chance.random() * 0.5)
            if chance.random() < 0.5:
                delegate.signal(signal.SIGKILL)
                delegate = pad(port)
            else:
                subscriber.signal(signal.SIGKILL)
                subscriber = reader()
    finally:
        for each in publishing:
            each.is_over.set()
        for each in publishing:
            each.join(60.0)
    for each in publishing:
        each.adapter.flush(60.0)
    published = {uid for each in publishing for uid in each.ids}
    # Expect each object at least once for the durable ones, and what was not acknowledged again
    subscriber.signal(signal.SIGKILL)
    never = set(lines(tmp_path / "explicit", "got")) - set(lines(tmp_path / "explicit", "done"))
    before = len(lines(tmp_path / "explicit", "got"))
    subscriber = reader(is_last=True)
    for name in ("auto", "explicit"):
        eventually(
            lambda name=name: set(lines(tmp_path / name, "got")) >= published,
            60.0,
            what=lambda name=name: (name, len(published), sorted(published - set(lines(tmp_path / name, "got")))[:5]),
        )
        assert lines(tmp_path / name, "lost") == []
    eventually(lambda: set(lines(tmp_path / "explicit", "got")[before:]) >= never, 60.0)
    eventually(lambda: set(lines(tmp_path / "explicit", "done")) >= published, 60.0)
    # Expect each exactly once for the one that lived
    eventually(
        lambda: published <= into.came.keys(),
        60.0,
        what=lambda: (len(published), len(published - into.came.keys()), here.status()),
    )
    assert [uid for uid, count in into.came.items() if count > 1] == []
    assert here.losses(replayed) == {}
    # Expect nothing to come again, once all is acknowledged and the subscriber has left
    assert subscriber.ask("end")["left"]
    counts = [len(lines(tmp_path / name, "got")) for name in ("auto", "explicit")]
    subscriber = reader(is_last=True)
    publishing[0].ids.append(publishing[0].adapter.publish(publishing[0].registration, figures.figure_1, b"payload"))
    for name, count in zip(("auto", "explicit"), counts, strict=True):
        eventually(lambda name=name, count=count: len(lines(tmp_path / name, "got")) > count, 30.0)
        assert lines(tmp_path / name, "got")[count:] == [publishing[0].ids[-1]]
