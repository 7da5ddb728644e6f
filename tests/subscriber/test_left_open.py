"""A program that ends without closing its subscriber has what it took told to the archive."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from jbi_pubsub.core.config import ArchiveSection
from tests.conftest import Federation
from tests.publisher.test_left_open import running

pytestmark = pytest.mark.processes

TAKE = """
from jbi_pubsub import SubscriberAdapter

def take(subscriber):
    uid = subscriber.register_subscriber(type_name="report", durable="fusion-1", start="all")
    for _ in range(3):
        print(subscriber.receive(uid, 60.0).metadata.decode(), flush=True)
"""

KEPT = TAKE + "subscriber = SubscriberAdapter(config)\ntake(subscriber)\n"
FORGOTTEN = TAKE + "take(SubscriberAdapter(config))\n"
RAISES = KEPT + "raise SystemExit(3)\n"

AIO = """
from jbi_pubsub.aio import AsyncSubscriberAdapter

async def main():
    subscriber = await AsyncSubscriberAdapter(config).open()
    uid = await subscriber.register_subscriber(type_name="report", durable="fusion-1", start="all")
    for _ in range(3):
        print((await subscriber.receive(uid, 60.0)).metadata.decode(), flush=True)

asyncio.run(main())
"""


@pytest.fixture
def published(federation: Federation, tmp_path: Path) -> None:
    """A delegate with an archive that has four reports."""
    archive = ArchiveSection(folder=str(tmp_path / "archive"), workers=0)
    federation.config = msgspec.structs.replace(federation.config, archive=archive)
    federation.lookup()
    federation.pad("alpha")
    publisher = federation.light()
    delegate = publisher.connect_to_delegate("alpha")
    reports = publisher.register_publisher(delegate, type_name="report", validate=False, persist=True)
    for n in range(4):
        publisher.publish(reports, b"<report>%d</report>" % n)
    publisher.flush()


@pytest.mark.usefixtures("published")
@pytest.mark.parametrize(
    ("script", "code"), [(KEPT, 0), (FORGOTTEN, 0), (RAISES, 3), (AIO, 0)], ids=["kept", "forgotten", "exit", "asyncio"]
)
def test_what_a_program_took_before_it_ended_does_not_come_again(
    federation: Federation, script: str, code: int
) -> None:
    # Given a program that takes three objects of a durable subscription, and ends at once
    with running(script, federation) as process:
        out, errors = process.communicate(timeout=60.0)
    assert (process.returncode, errors) == (code, "")
    assert out.split() == [f"<report>{n}</report>" for n in range(3)]
    # When the subscription goes on elsewhere; Expect the fourth to be the next
    subscriber = federation.subscriber()
    uid = subscriber.register_subscriber(type_name="report", durable="fusion-1")
    obj = subscriber.receive(uid, 60.0)
    assert obj is not None
    assert obj.metadata == b"<report>3</report>"
