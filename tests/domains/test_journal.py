"""A client's journal and what it catches up with, without servers: archives are made up."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from jbi_pubsub.core.errors import AccessDeniedError, AdapterStateError
from jbi_pubsub.core.info_object import InfoObject, Platform, TypeName
from jbi_pubsub.domains import catch_up, history, journal
from jbi_pubsub.domains.catch_up import CatchUp
from jbi_pubsub.domains.history import ConsumptionRecord
from jbi_pubsub.domains.journal import ClientJournal, WatchRecord

pytestmark = pytest.mark.unit
WATCHED = "discover.Monitoring heat"


def _object(number: int, registration: str = "r", published: float = 1e9) -> InfoObject:
    platform = Platform(published, registration, number, 4, 0)
    return InfoObject(f"{registration}{number}", TypeName("t"), b"<m/>", b"", platform)


class Archive:
    """The query of one archive: what it has said, and then silence, or its end."""

    def __init__(self, *objects: InfoObject, is_silent: bool = False) -> None:
        self._left = list(objects)
        self._is_silent = is_silent
        self._cancelled = threading.Event()
        self.asked = threading.Event()
        self.state = "running"
        self.partial: tuple[str, ...] = ()

    def __enter__(self) -> Archive:
        return self

    def __exit__(self, *raised: object) -> None:
        self.cancel()

    def cancel(self) -> None:
        self._cancelled.set()

    def get_next(self, timeout: float) -> list[InfoObject]:
        self.asked.set()
        if self._left:
            return [self._left.pop(0)]
        if self._is_silent and not self._cancelled.wait(timeout):
            return []
        self.state = "cancelled" if self._is_silent else "finished"
        return []


@pytest.fixture
def kept(tmp_path: Path) -> Iterator[ClientJournal]:
    made = ClientJournal(tmp_path / "anna", "anna")
    yield made
    made.close()


@pytest.fixture
def again(kept: ClientJournal) -> WatchRecord:
    """The record of somebody who has watched before, and comes back."""
    first = kept.record(WATCHED)
    first.add(_object(5))
    first.close()
    return kept.record(WATCHED)


@pytest.fixture
def catching(again: WatchRecord) -> Iterator[Callable[..., CatchUp]]:
    made: list[CatchUp] = []

    def catch(archive: Archive, listener: Callable[[InfoObject], object]) -> CatchUp:
        made.append(CatchUp("heat", again, listener, lambda since, registrations: archive))  # type: ignore[arg-type]  # made up  # noqa: ARG005
        made[-1].start()
        return made[-1]

    yield catch
    for each in made:
        each.stop()


def _rows(path: Path, what: str) -> list[Any]:
    with closing(sqlite3.connect(path, isolation_level=None)) as base:
        found = base.execute(what).fetchall()
    base.close()
    return found


def test_what_is_noted_while_it_is_caught_up_with_is_bounded(
    kept: ClientJournal, again: WatchRecord, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given somebody who comes back, and archives that never answer for good
    monkeypatch.setattr(journal, "ROWS_MOST", 100)
    monkeypatch.setattr(journal, "RANGES_MOST", 10)
    # When each second object comes of hundreds
    for number in range(10, 1_010, 2):
        again.add(_object(number))
    kept.close()
    # Expect so many rows and no more, which say what was had last, and what it may lack
    assert len(_rows(tmp_path / "anna", "SELECT * FROM had")) <= 110
    since = _rows(tmp_path / "anna", "SELECT since FROM watch")[0][0]
    reopened = ClientJournal(tmp_path / "anna", "anna")
    record = reopened.record(WATCHED)
    assert (record.since, _object(1_008) in record, _object(1_007) in record) == (since, True, False)
    reopened.close()


def test_file_alone_has_all_that_was_noted_of_a_client_that_was_killed(
    kept: ClientJournal, again: WatchRecord, tmp_path: Path
) -> None:
    # Given a client who has had something more, and whose process ends then; when the file is carried elsewhere
    again.add(_object(6))
    (tmp_path / "elsewhere").write_bytes((tmp_path / "anna").read_bytes())
    # Expect all of it there
    with closing(ClientJournal(tmp_path / "elsewhere", "anna")) as carried:
        record = carried.record(WATCHED)
        assert (record.since is not None, _object(6) in record, _object(7) in record) == (True, True, False)


def test_the_same_is_watched_durably_once(kept: ClientJournal) -> None:
    # Given something that is watched, expect it not to be begun again, until it is not watched any more
    record = kept.record(WATCHED)
    with pytest.raises(AdapterStateError, match="already"):
        kept.record(WATCHED)
    record.close()
    assert kept.record(WATCHED).since is not None


@pytest.mark.parametrize(
    ("began", "published", "since"),
    [
        pytest.param(1e9, [], 1e9 - 1.0, id="nothing had come: since it began"),
        pytest.param(1e9, [1e9 + 60.0], 1e9 - 1.0, id="since it began, as another clock may be a minute behind"),
        pytest.param(1e9, [1e9 + 86_400.0], 1e9 + 82_800.0, id="an hour before the last, as far apart may clocks be"),
        pytest.param(1e9, [1e9 + 84_000.0, 1e9 + 86_400.0], 1e9 + 80_400.0, id="an hour before the older of two"),
        pytest.param(1e9, [1e9 + 1.0, 1e9 + 86_400.0], 1e9 + 82_800.0, id="but not of one that is over"),
        pytest.param(1e9, [1e9 - 600.0], 1e9 - 4_200.0, id="its own clock was ahead when it began"),
        pytest.param(1e9, [1e9 + 86_000.0, 2e9], 1e9 + 82_400.0, id="one clock is years ahead"),
    ],
)
def test_it_is_asked_for_more_from_where_the_clocks_of_publishers_may_have_been(
    tmp_path: Path, began: float, published: list[float], since: float
) -> None:
    # Given somebody who has watched since then, and has had an object of each of some registrations
    now = [began]
    kept = ClientJournal(tmp_path / "anna", "anna", wall=lambda: now[0])
    first = kept.record(WATCHED)
    now[0] = 1e9 + 86_400.0
    for number, moment in enumerate(published):
        first.add(_object(1, f"r{number}", moment))
    first.close()
    # When he comes back, expect archives to be asked from then on
    assert kept.record(WATCHED).since == since
    kept.close()


def test_what_is_not_remembered_any_more_is_not_asked_for_again(
    kept: ClientJournal, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given somebody who has had objects of more registrations than are remembered
    monkeypatch.setattr(journal, "REGISTRATIONS_MOST", 2)
    first = kept.record(WATCHED)
    for number in range(4):
        first.add(_object(1, f"r{number}", 1e9 + 10.0 * number))
    first.settle()
    first.close()
    # When he comes back, expect archives to be asked for what came since those that are
    assert kept.record(WATCHED).since == 1e9 + 19.0


def test_nobody_waits_for_an_archive_that_says_nothing(
    catching: Callable[..., CatchUp], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given somebody who comes back, and an archive that hangs behind its first object
    monkeypatch.setattr(catch_up, "QUIET_SECONDS", 0.05)
    had: list[int] = []
    coming = catching(Archive(_object(6), is_silent=True), lambda obj: had.append(obj.platform.sequence))
    # When an object comes, expect it behind that one, as soon as the archive was silent for a while
    coming.arrived(_object(7))
    assert had == [6, 7]


def test_who_leaves_while_archives_are_asked_lacks_what_he_lacked(
    kept: ClientJournal, catching: Callable[..., CatchUp], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given somebody who comes back, and whose second look waits for an archive
    monkeypatch.setattr(catch_up, "SETTLE_SECONDS", 0.0)
    monkeypatch.setattr(catch_up, "QUIET_SECONDS", 60.0)
    archive = Archive(_object(9), is_silent=True)
    coming = catching(archive, lambda obj: None)  # noqa: ARG005  # a listener
    assert archive.asked.wait(10)
    # When he leaves
    coming.stop()
    kept.close()
    # Expect it known that there may be more, and what was had alone to be known as had
    assert _rows(tmp_path / "anna", "SELECT since FROM watch")[0][0] is not None
    assert all(
        first == last or (first, last) == (1, 5)
        for first, last in _rows(tmp_path / "anna", "SELECT first, last FROM had")
    )


def test_what_may_not_be_published_of_what_is_consumed_is_tried_again_later() -> None:
    # Given rules that do not let a client say what it consumes
    class Channel:
        published = 0

        def publish(self, event: object, type_: str) -> str:  # noqa: ARG002  # the channel's form
            self.published += 1
            raise AccessDeniedError("no")

    channel = Channel()
    record = ConsumptionRecord(channel, "anna")  # type: ignore[arg-type]  # made up
    try:
        record.add(("t", ""), _object(1))
        # When it is to be published, expect that said once, and a pause
        assert record._publish() == history.DENIED_SECONDS
        assert record._publish() == history.BATCH_SECONDS
    finally:
        record.stop()
    assert channel.published == 1
