"""A program that ends without closing its publisher loses nothing, or says what it loses."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import takewhile
from typing import Any

import msgspec
import pytest

from tests.conftest import Federation

pytestmark = pytest.mark.processes

BEGIN = """
import asyncio, sys, threading
import msgspec
from jbi_pubsub import Config

config = msgspec.json.decode(sys.argv[1], type=Config)
"""

LIGHT = """
from jbi_pubsub import PublisherAdapterLight

publisher = PublisherAdapterLight(config)
reports = publisher.register_publisher(publisher.connect_to_delegate("alpha"), type_name="report", validate=False)
"""

PUBLISH = """
for n in range(1000):
    publisher.publish(reports, b"<report><n>%d</n></report>" % n, bytes(10_000))
"""

THREAD = """
def work():
    for n in range(1000):
        publisher.publish(reports, b"<report><n>%d</n></report>" % n, bytes(10_000))
        if n % 100 == 0:
            threading.Event().wait(0.02)

threading.Thread(target=work).start()
"""

PEER = """
from jbi_pubsub import PublisherAdapter

publisher = PublisherAdapter(config)
reports = publisher.register_publisher(type_name="report", validate=False)
publisher.wait_for_subscribers(reports, 1, 60.0)
"""

AIO = """
from jbi_pubsub.aio import AsyncPublisherAdapterLight

async def main():
    publisher = await AsyncPublisherAdapterLight(config).open()
    delegate = await publisher.connect_to_delegate("alpha")
    reports = await publisher.register_publisher(delegate, type_name="report", validate=False)
    for n in range(1000):
        await publisher.publish(reports, b"<report><n>%d</n></report>" % n, bytes(10_000))

asyncio.run(main())
"""

BEREFT = """
from jbi_pubsub.core import open_adapters
open_adapters.PUBLISHERS_SECONDS = 0.5
print(reports, flush=True)
sys.stdin.readline()
"""


@contextmanager
def running(script: str, federation: Federation) -> Iterator[subprocess.Popen[str]]:
    """A program of a user, ended with the test."""
    command = [sys.executable, "-c", BEGIN + script, msgspec.json.encode(federation.config).decode()]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize(
    ("script", "code"),
    [
        (LIGHT + PUBLISH, 0),
        (LIGHT + PUBLISH + "raise SystemExit(3)\n", 3),
        (LIGHT + THREAD, 0),
        (AIO, 0),
        (PEER + PUBLISH, 0),
    ],
    ids=["end", "exit", "thread", "asyncio", "peer"],
)
def test_a_program_that_ends_without_closing_has_published_all(federation: Federation, script: str, code: int) -> None:
    # Given a subscription
    federation.lookup()
    federation.pad()
    subscriber = federation.subscriber()
    uid = subscriber.register_subscriber(type_name="report")
    # When a program publishes 1,000 objects, and ends
    with running(script, federation) as process:
        _, errors = process.communicate(timeout=60.0)
    # Expect all of them, in order, and nothing said
    received = takewhile(lambda obj: obj is not None, (subscriber.receive(uid, 10.0) for _ in range(1000)))
    assert [obj.metadata for obj in received if obj] == [b"<report><n>%d</n></report>" % n for n in range(1000)]
    assert (process.returncode, errors) == (code, "")


def test_a_program_that_ends_while_there_is_no_delegate_says_what_is_lost(
    federation: Federation, eventually: Callable[..., Any]
) -> None:
    # Given a program that has registered at a delegate, which has gone since
    federation.lookup()
    pad = federation.pad()
    with running(LIGHT + BEREFT + PUBLISH, federation) as process:
        assert process.stdout is not None
        registration = process.stdout.readline().strip()
        assert registration
        pad.stop(0.5)
        # When it publishes, and ends
        _, errors = process.communicate("\n", timeout=30.0)
    # Expect it to end, and one line to say how many objects of which registration nobody has
    told = [line for line in errors.splitlines() if "lost" in line]
    assert len(told) == 1
    assert re.search(rf": 1000 objects are lost, .*: 1000 of registration {re.escape(registration)}$", told[0])
