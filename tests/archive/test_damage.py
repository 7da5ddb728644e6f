"""What is damaged is named to whoever asks, and the rest goes on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from kept import Reader, asking, publish, until

from jbi_pubsub.archive.engine import Archive
from jbi_pubsub.archive.inspection import inspected
from jbi_pubsub.core.config import ArchiveSection

SMALL = 20_000


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jbi_pubsub.archive.upkeep.LOOK_SECONDS", 0.02)
    monkeypatch.setattr("jbi_pubsub.archive.engine.TICK", 0.02)


def turned(path: Path, at: int) -> None:
    """A bit of a file is another."""
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def asked(archive: Archive, **conditions: Any) -> tuple[list[int], str]:
    """What is found, and what a query says of what it could not read."""
    reader = Reader(archive, asking(**conditions))
    positions = reader.all()
    progress = reader.results.progress()
    assert progress.state == "finished"
    return positions, progress.error


@pytest.mark.long
@pytest.mark.parametrize("is_indexed", [True, False])
@pytest.mark.parametrize("part", [".pack", ".meta", ".data"])
def test_a_query_over_a_damaged_pack_says_that_it_is_incomplete(
    opened: Callable[..., Archive], part: str, is_indexed: bool
) -> None:
    # Given packs, of one of which a part is damaged
    archive = opened(workers=0, volume=SMALL, is_indexed=is_indexed)
    publish(archive, 1_000)
    until(lambda: len(list((archive.folder.path / "log").glob("*.log"))) == 1)
    until(lambda: not is_indexed or archive.status()["indexed"] == 1_000)
    archive.close()
    _, second, third, *_ = sorted((archive.folder.path / "packs").glob("*.pack"))
    first, behind = int(second.stem), int(third.stem)
    turned(second.with_suffix(part), 30 if part == ".pack" else second.with_suffix(part).stat().st_size // 3)
    again = opened(workers=0, volume=SMALL, is_indexed=is_indexed)
    # When it is asked
    found, error = asked(again)
    # Expect it to be said, with the file and the place, and the rest to come
    missing = set(range(1, 1_001)) - set(found)
    assert missing
    assert missing <= set(range(first, behind))
    assert error.startswith("incomplete: ")
    assert str(second.with_suffix(part)) in error
    assert part == ".pack" or " bytes at " in error
    # and nothing of it where it is not
    assert asked(again, after=behind) == (list(range(behind + 1, 1_001)), "")
    assert asked(again, up_to=first - 1) == (list(range(1, first)), "")
    again.status()


def test_a_volume_that_is_missing_is_named(opened: Callable[..., Archive]) -> None:
    archive = opened(workers=0, volume=SMALL, is_indexed=False)
    publish(archive, 1_000)
    until(lambda: len(list((archive.folder.path / "log").glob("*.log"))) == 1)
    archive.close()
    _, second, third, *_ = sorted((archive.folder.path / "packs").glob("*.pack"))
    second.unlink()
    again = opened(workers=0, volume=SMALL, is_indexed=False)
    found, error = asked(again)
    assert set(range(1, 1_001)) - set(found) == set(range(int(second.stem), int(third.stem)))
    assert "a volume is missing" in error
    assert asked(again, after=int(third.stem))[1] == ""


def test_a_closed_file_of_the_log_that_can_not_be_read_stops_nothing(
    opened: Callable[..., Archive], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given files of the log that are not sealed yet, one of them nothing but damaged
    with monkeypatch.context() as patch:
        patch.setattr("jbi_pubsub.archive.upkeep.Upkeep._seal_all", lambda _: None)
        archive = opened(workers=0, volume=SMALL, is_indexed=False)
        publish(archive, 300)
        archive.close()
    log = archive.folder.path / "log"
    _, second, third, *_ = sorted(log.glob("*.log"))
    second.write_bytes(b"?" * 1_000)
    # When it goes on
    again = opened(workers=0, volume=SMALL, is_indexed=False)
    publish(again, 50, first=301)
    # Expect the others to be sealed, and what is missing to be told
    until(lambda: len(list(log.glob("*.log"))) == 2)
    found, error = asked(again)
    assert set(range(1, 351)) - set(found) == set(range(int(second.stem), int(third.stem)))
    assert second.exists()
    assert str(second) in error
    assert again.retain(is_dry=True) == ()


def test_an_application_is_told_what_an_archive_lacks(
    federation: Any, figures: Any, tmp_path: Path, eventually: Callable[..., Any]
) -> None:
    # Given a delegate with three objects in its archive, of which the second is damaged
    folder = tmp_path / "archive"
    section = ArchiveSection(folder=str(folder), workers=0, reserve=0.0, memory=64 << 20)
    config = msgspec.structs.replace(federation.config, archive=section)
    server = federation.pad(config=config)
    publisher = federation.light()
    at = publisher.connect_to_delegate("alpha", "rome")
    uid = publisher.register_publisher(at, figures.schema, figures.figure_1, persist=True)
    for _ in range(3):
        publisher.publish(uid, figures.figure_1, b"the payload")
        publisher.flush()
    publisher.close()
    server.stop(0.5)
    (file,) = (folder / "log").glob("*.log")
    data = file.read_bytes()
    turned(file, data.index(b"the payload", data.index(b"the payload") + 20))
    federation.pad(config=config)
    # When an application asks
    app = federation.subscriber()
    query = app.open_query("Intel_Imagery")
    found = query.get_next(10)
    # Expect the others to come, and the query to be partial
    assert [obj.platform.sequence for obj in found] == [1, 3]
    assert query.get_next(1) == []
    assert query.state == "finished"
    (why,) = query.partial
    assert "incomplete" in why
    assert str(file) in why
    assert [str(file) in each for each in query.count().partial] == [True]
    # and a subscription that begins in the past to count a loss
    subscription = app.register_subscriber(type_name="Intel_Imagery", start="all")
    assert [app.receive(subscription, 60.0).platform.sequence for _ in range(2)] == [1, 3]
    eventually(lambda: app.losses(subscription) == {"storage": 1})


def test_a_damaged_end_stays_as_it_is_however_often_it_is_opened(opened: Callable[..., Archive]) -> None:
    # Given an archive that was closed in order, and a bit of its last object turned since
    archive = opened(workers=0, volume=1 << 20)
    publish(archive, 20)
    before = {key: archive.status()[key] for key in ("metadata_bytes", "payload_bytes")}
    archive.close()
    (log,) = (archive.folder.path / "log").glob("*.log")
    turned(log, log.stat().st_size - 3)
    data = log.read_bytes()
    for _ in range(3):
        # When it is opened, expect that to be said, nothing to be cut, and the sizes of what is there
        again = opened(workers=0, volume=1 << 20)
        found, error = asked(again)
        assert (found, str(log) in error) == (list(range(1, 20)), True)
        assert again.status()["metadata_bytes"] == before["metadata_bytes"] * 19 // 20
        assert again.status()["payload_bytes"] == before["payload_bytes"] * 19 // 20
        again.close()
        assert log.read_bytes() == data
    # Also by who only looks
    inspection = inspected(archive.folder.path, whole=False)
    assert inspection.torn == 0
    assert any(str(log) in trouble for trouble in inspection.troubles)
