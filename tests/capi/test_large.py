"""Large payloads by the Common API: from files, in files, read in pieces."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import msgspec
import pytest

from jbi_pubsub.capi import InvalidPayloadException, ObjectSizeException
from jbi_pubsub.core import spool
from jbi_pubsub.core.config import LinkSection

SIZE = 1_000_000


@pytest.fixture
def payload(tmp_path: Path) -> Path:
    path = tmp_path / "payload"
    path.write_bytes(bytes(range(250)) * (SIZE // 250))
    return path


def test_large_payloads_come_in_files_and_go_on(
    empty_node: Any, payload: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given a client and a node that keep what has more than 64 KiB in files
    empty_node.federation.config = msgspec.structs.replace(empty_node.config, link=LinkSection(spool=64 << 10))
    empty_node.start()
    connection = empty_node.connected()
    subscriber = connection.createSubscriberSequence("t", "1.0")
    subscriber.activateSequence()
    publisher = connection.createPublisherSequence("t", "1.0")
    publisher.setValidationAttribute(True, False)
    publisher.activateSequence()

    def published(given: object) -> Any:
        publisher.publishInfoObject(connection.createInfoObject("t", "1.0", given, "<a/>"))
        return subscriber.getNext(20_000)

    # Expect paths, open files and bytes to come, to be read in pieces or as a whole
    with payload.open("rb") as file:
        came = [published(given) for given in (payload, file, payload.read_bytes())]
    for each in came:
        with each.getPayloadFile() as read:
            assert read.read(250) == bytes(range(250))
        assert each.getPayload() == payload.read_bytes()
    # Expect what has come to be published again
    publisher.publishInfoObject(came[0])
    assert subscriber.getNext(20_000).getPayload() == payload.read_bytes()
    # Expect what is too large for memory to be told
    monkeypatch.setattr(spool, "MEMORY_BYTES", SIZE - 1)
    with pytest.raises(ObjectSizeException, match="payload_file"):
        came[0].getPayload()
    assert came[0].getPayloadFile().read() == payload.read_bytes()


def test_of_what_is_made_here_the_payload_can_be_read_too(connection: Any, payload: Path) -> None:
    for given in (payload, payload.read_bytes()):
        made = connection.createInfoObject("t", "1.0", given, "<a/>")
        with made.getPayloadFile() as file:
            assert file.read() == payload.read_bytes() == made.getPayload()
    with pytest.raises(InvalidPayloadException, match="when the object is published"):
        connection.createInfoObject("t", "1.0", io.BytesIO(b"x"), "<a/>").getPayload()


def test_a_file_that_gives_no_bytes_is_told(connection: Any, publisher: Any, tmp_path: Path) -> None:
    sequence = publisher()
    for given in (io.StringIO("text"), tmp_path / "nothing", tmp_path):
        with pytest.raises(InvalidPayloadException):
            sequence.publishInfoObject(connection.createInfoObject("t", "1.0", given, "<a/>"))
