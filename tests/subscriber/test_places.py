"""Places in archives: whoever goes on from one is told when the archive is another one, or was put back from a copy."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from jbi_pubsub import SubscriberAdapter
from jbi_pubsub.core.config import ArchiveSection, PadSection
from jbi_pubsub.core.errors import ConfigurationError
from jbi_pubsub.subscriber.moments import is_place, start_at
from tests.conftest import Federation, Figures

TYPE = "mil.af.rl.jbi.Intel_Imagery"


class Kept:
    """A delegate with an archive in a folder, at one port, which can be stopped and started."""

    def __init__(self, federation: Federation, figures: Figures, folder: Path) -> None:
        self._federation, self._figures, self.folder = federation, figures, folder
        self._server: Any = None
        self._port = 0
        self.start()

    def start(self) -> None:
        config = msgspec.structs.replace(
            self._federation.config,
            archive=ArchiveSection(folder=str(self.folder), workers=0, reserve=0.0),
            pad=PadSection(port=self._port, settle_seconds=0.1),
        )
        self._server = self._federation.pad(config=config)
        self._port = int(self._server.address.rpartition(":")[2])

    def stop(self) -> None:
        self._server.stop(0.1)

    def publish(self, *latitudes: int) -> None:
        with self._federation.light() as publisher:
            at = publisher.connect_to_delegate("alpha", "rome")
            uid = publisher.register_publisher(at, self._figures.schema, self._figures.figure_1, persist=True)
            for lat in latitudes:
                publisher.publish(uid, self._figures.metadata(lat=str(lat)), b"<p/>")
            publisher.flush()


@pytest.fixture
def kept(federation: Federation, figures: Figures, tmp_path: Path) -> Kept:
    return Kept(federation, figures, tmp_path / "archive")


def _latitudes(objects: Any) -> list[int]:
    return [int(obj.metadata.split(b"<lat>")[1].split(b"</lat>")[0]) for obj in objects]


def _came(subscriber: SubscriberAdapter, count: int, **options: Any) -> tuple[list[int], dict[str, int]]:
    uid = subscriber.register_subscriber(type_name=TYPE, **options)
    found = [obj for _ in range(count) if (obj := subscriber.receive(uid, 60.0)) is not None]
    losses = subscriber.losses(uid)
    assert subscriber.receive(uid, 0.2) is None
    subscriber.cancel_subscription(uid)
    return _latitudes(found), losses


@pytest.mark.parametrize("how", ["the same", "again", "wiped", "a copy"])
def test_who_goes_on_from_a_place_is_told_if_the_archive_is_another(
    kept: Kept, federation: Federation, tmp_path: Path, how: str
) -> None:
    # Given an archive of which there is a copy, and that has gone on since
    kept.publish(1, 2)
    kept.stop()
    shutil.copytree(kept.folder, tmp_path / "copy")
    kept.start()
    kept.publish(3, 4)
    subscriber = federation.subscriber()
    place = list(subscriber.query(TYPE))[2].platform.place
    assert is_place(place)
    assert "@" in place
    # When it is opened again, wiped, or put back, and goes on
    if how != "the same":
        kept.stop()
    if how in ("wiped", "a copy"):
        shutil.rmtree(kept.folder)
    if how == "a copy":
        shutil.copytree(tmp_path / "copy", kept.folder)
    if how != "the same":
        kept.start()
    kept.publish(5, 6, 7)
    # Expect a query behind the place to be answered by the archive that gave it alone
    if how in ("the same", "again"):
        assert _latitudes(subscriber.query(TYPE, after=place)) == [4, 5, 6, 7]
        assert _latitudes(subscriber.query(TYPE, before=place, order="newest")) == [2, 1]
    else:
        with pytest.raises(ConfigurationError, match="position 3 is not one of this archive"):
            subscriber.count(TYPE, after=place)
        with pytest.raises(ConfigurationError, match="position 3 is not one of this archive"):
            subscriber.open_query(TYPE, after=place)
        with pytest.raises(ConfigurationError, match="position 3 is not one of this archive"):
            subscriber.open_query(TYPE, before=place)
    # Expect what is behind the place; where that is not known, all that there is, and to be told so
    expected = {"wiped": [5, 6, 7], "a copy": [1, 2, 5, 6, 7]}.get(how, [4, 5, 6, 7])
    told = {} if how in ("the same", "again") else {"other_archive": 1}
    assert _came(subscriber, len(expected), start=place) == (expected, told)
    # and the same of a durable subscription that begins there
    assert _came(subscriber, len(expected), start=place, durable="d") == (expected, told)


def test_a_position_that_the_archive_has_not_given_is_told(kept: Kept, federation: Federation) -> None:
    # Given an archive with two objects
    kept.publish(1, 2)
    # When somebody goes on behind a position that it can't have given
    came = _came(federation.subscriber(), 2, start=10_000)
    # Expect all that there is, and to be told so
    assert came == ([1, 2], {"other_archive": 1})


def test_who_has_a_subscription_open_is_told_when_the_archive_is_another(
    kept: Kept, federation: Federation, eventually: Callable[..., Any]
) -> None:
    # Given a durable subscription, and one that replays, of a process that lives on
    kept.publish(1, 2)
    subscriber = federation.subscriber()
    uids = [subscriber.register_subscriber(type_name=TYPE, start="all", durable=name) for name in ("d", None)]
    for uid in uids:
        assert _latitudes(subscriber.receive(uid, 60.0) for _ in range(2)) == [1, 2]
    # When the delegate is started again with its archive, expect nothing to be told
    kept.stop()
    kept.start()
    kept.publish(3)
    for uid in uids:
        assert _latitudes([subscriber.receive(uid, 60.0)]) == [3]
        assert "other_archive" not in subscriber.losses(uid)
    # When it is wiped, expect what is there, and to be told that more may have been
    kept.stop()
    shutil.rmtree(kept.folder)
    kept.start()
    kept.publish(4)
    for uid in uids:
        assert _latitudes([subscriber.receive(uid, 60.0)]) == [4]
        eventually(lambda uid=uid: subscriber.losses(uid).get("other_archive") == 1)


def test_a_durable_subscription_that_an_archive_does_not_know_any_more_is_told_as_new(
    kept: Kept, federation: Federation, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "jbi_pubsub.subscriber")
    kept.publish(1)

    def new() -> int:
        caplog.clear()
        with SubscriberAdapter(federation.config) as subscriber:
            uid = subscriber.register_subscriber(type_name=TYPE, durable="d")
            assert subscriber.wait_matched(uid, 1, 60.0) == 1
        return sum("durable subscription 'd' is new at" in each.getMessage() for each in caplog.records)

    # Given a durable subscription, expect it to be new the first time alone
    assert new() == 1
    assert new() == 0
    # When the archive is wiped, expect it to be new again
    kept.stop()
    shutil.rmtree(kept.folder)
    kept.start()
    kept.publish(2)
    assert new() == 1


def test_a_durable_subscription_is_not_set_to_a_place_of_another_archive(kept: Kept, federation: Federation) -> None:
    # Given a durable subscription
    kept.publish(1, 2)
    subscriber = federation.subscriber()
    uid = subscriber.register_subscriber(type_name=TYPE, start="all", durable="d")
    assert subscriber.receive(uid, 60.0) is not None
    # When it is set to a place that another archive gave, expect that to be refused
    with pytest.raises(ConfigurationError, match="position 1 is not one of this archive"):
        subscriber.reset_durable("d", f"1@{'0' * 32}")


def test_pages_follow_each_other_by_the_place_of_their_last_object(kept: Kept, federation: Federation) -> None:
    # Given an archive with five objects
    kept.publish(1, 2, 3, 4, 5)
    subscriber = federation.subscriber()
    # When each page begins behind the last object of the one before, expect no gap and no repetition
    for order, side in (("oldest", "after"), ("newest", "before")):
        pages: list[list[int]] = []
        place: dict[str, Any] = {}
        while page := list(subscriber.query(TYPE, order=order, limit=2, **place)):
            pages.append(_latitudes(page))
            place = {side: page[-1].platform.place}
        assert pages == ([[1, 2], [3, 4], [5]] if order == "oldest" else [[5, 4], [3, 2], [1]])
    # Expect another archive to refuse the lowest place as well, and two bounds to hold together
    with pytest.raises(ConfigurationError, match="position 1 is not one of this archive"):
        subscriber.open_query(TYPE, before=f"1@{'0' * 32}")
    assert _latitudes(subscriber.query(TYPE, after=1, before=4, up_to=2)) == [2]
    assert _latitudes(subscriber.query(TYPE, after=4, before=2)) == []
    with pytest.raises(ConfigurationError, match="places of two archives"):
        subscriber.open_query(TYPE, after=f"1@{'0' * 32}", before=f"2@{'1' * 32}")


@pytest.mark.parametrize("text", ["1@", "1@xyz", f"{'1' * 20}@{'0' * 32}", f"1@{'0' * 33}", "@"])
def test_what_is_no_place_is_refused(text: str) -> None:
    assert not is_place(text)
    with pytest.raises(ConfigurationError):
        start_at(text, now=0.0)
