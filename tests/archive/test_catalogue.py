"""What the catalogue alone knows is on disk when the call returns; a damage costs nothing, or is told."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from jbi_pubsub.archive.catalogue import MAX_NAME, Catalogue, Kept
from jbi_pubsub.core.errors import StorageError
from jbi_pubsub.core.history import Consumer

ID = b"an archive's id."


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "archive.db"


def filled(path: Path, registrations: int = 2_000) -> tuple[list[Kept], list[Consumer]]:
    catalogue = Catalogue(path, ID)
    kept = [Kept(f"r-{n:06d}", "track", "1.0", "me", b"e" * 100, n, n, n + 1, 2, 99) for n in range(registrations)]
    catalogue.keep(kept, 500, {"not_archived": 3})
    consumers = [Consumer(f"c{n}", "me", b"asked", 10 + n, ((20, 21), (30, 30)), 5.0) for n in range(3)]
    catalogue.note(consumers)
    catalogue.delete(["gone-1", "gone-2"])
    catalogue.close()
    return kept, consumers


def test_what_was_noted_is_there_again(path: Path) -> None:
    kept, consumers = filled(path)
    catalogue = Catalogue(path, ID)
    assert sorted(catalogue.registrations(), key=lambda each: each.uid) == kept
    assert catalogue.consumers() == consumers
    assert (catalogue.end, catalogue.checkpoint, catalogue.counters()) == (500, 500, {"not_archived": 3})
    assert catalogue.are_deleted(["gone-2", "here"]) == {"gone-2"}
    # When one goes on, one ends
    further = Consumer("c0", "me", b"asked", 900)
    catalogue.note([further])
    assert catalogue.cancel("c1", "me")
    assert not catalogue.cancel("c1", "me")
    assert catalogue.consumers() == [further, consumers[2]]
    # Expect new positions behind what a consumer has had
    assert catalogue.end == 900
    catalogue.close()


def test_the_file_is_its_owners_alone(path: Path) -> None:
    filled(path)
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_damaged_page_of_what_can_be_made_anew_sets_the_file_aside(path: Path) -> None:
    # Given a catalogue in which the page of what was counted is damaged
    kept, consumers = filled(path, 20)
    with closing(sqlite3.connect(path, isolation_level=None)) as base:
        (page,) = base.execute("SELECT rootpage FROM sqlite_master WHERE name = 'counters'").fetchone()
        (size,) = base.execute("PRAGMA page_size").fetchone()
    base.close()
    data = bytearray(path.read_bytes())
    data[(page - 1) * size : page * size] = b"?" * size
    path.write_bytes(data)
    # When it is opened
    catalogue = Catalogue(path, ID)
    # Expect all else, the damaged file beside it, and that it is told
    assert sorted(catalogue.registrations(), key=lambda each: each.uid) == kept
    assert catalogue.consumers() == consumers
    assert catalogue.checkpoint == 500
    assert catalogue.are_deleted(["gone-1"]) == {"gone-1"}
    assert catalogue.counters() == {}
    assert (path.parent / "archive.db.damaged1").read_bytes() == bytes(data)
    assert "is damaged" in catalogue.troubles[0]
    catalogue.close()


@pytest.mark.parametrize("table", ["consumers", "deleted", "archive"])
def test_a_damage_of_what_nothing_else_knows_refuses_to_open(path: Path, table: str) -> None:
    filled(path, 20)
    with closing(sqlite3.connect(path, isolation_level=None)) as base:
        (page,) = base.execute("SELECT rootpage FROM sqlite_master WHERE name = ?", (table,)).fetchone()
        (size,) = base.execute("PRAGMA page_size").fetchone()
    base.close()
    data = bytearray(path.read_bytes())
    data[(page - 1) * size : page * size] = b"?" * size
    path.write_bytes(data)
    with pytest.raises(StorageError, match="move it away"):
        Catalogue(path, ID)
    assert path.read_bytes() == data  # as it was: for whoever mends it


def test_a_turned_bit_in_a_durable_subscription_is_told_or_changes_nothing(path: Path) -> None:
    # Given a catalogue with three
    _, consumers = filled(path, 20)
    with closing(sqlite3.connect(path, isolation_level=None)) as base:
        (page,) = base.execute("SELECT rootpage FROM sqlite_master WHERE name = 'consumers'").fetchone()
        (size,) = base.execute("PRAGMA page_size").fetchone()
    base.close()
    whole = path.read_bytes()
    places = [place for place in range((page - 1) * size, page * size) if whole[place]]
    assert len(places) > 60
    told = 0
    for place in places:
        # When a bit of their page is turned
        for each in path.parent.iterdir():
            each.unlink()
        path.write_bytes(whole[:place] + bytes((whole[place] ^ 1 << place % 8,)) + whole[place + 1 :])
        # Expect all of them as they were, or to be told
        try:
            catalogue = Catalogue(path, ID)
        except StorageError:
            told += 1
            continue
        try:
            assert catalogue.consumers() == consumers, place
        except StorageError:
            told += 1
        finally:
            catalogue.close()
    assert told > len(places) // 2


def test_no_database_another_archives_and_another_versions_are_refused(path: Path) -> None:
    path.write_bytes(b"what is this?" * 1_000)
    with pytest.raises(StorageError, match="not a database"):
        Catalogue(path, ID)
    path.unlink()
    filled(path)
    with pytest.raises(StorageError, match="of another archive"):
        Catalogue(path, b"another one's id")
    with closing(sqlite3.connect(path, isolation_level=None)) as base:
        base.execute("PRAGMA user_version=7")
    base.close()
    with pytest.raises(StorageError, match="of version 7, not 1"):
        Catalogue(path, ID)


def test_a_file_that_was_begun_and_not_finished_is_begun_again(path: Path) -> None:
    path.touch()
    Catalogue(path, ID).close()


@pytest.mark.parametrize("name", ["", "n" * (MAX_NAME + 1)])
def test_names_of_durable_subscriptions_are_bounded(path: Path, name: str) -> None:
    catalogue = Catalogue(path, ID)
    with pytest.raises(StorageError, match="characters"):
        catalogue.note([Consumer(name, "me", b"", 1)])
    with pytest.raises(StorageError, match="gaps"):
        catalogue.note([Consumer("n", "me", b"", 1, tuple((n, n) for n in range(2, 30_000, 2)))])
    assert catalogue.consumers() == []
    catalogue.close()


def test_strange_texts_stay_texts(path: Path) -> None:
    catalogue = Catalogue(path, ID)
    strange = ["'; DROP TABLE consumers; --", '"', "\0", "é\u202e", "?1"]
    catalogue.note([Consumer(name, name, b"\0", 1) for name in strange])
    catalogue.keep([Kept(name, name, name, name) for name in strange], 1, {})
    assert {each.name for each in catalogue.consumers()} == set(strange)
    assert {each.uid for each in catalogue.registrations()} == set(strange)
    catalogue.close()
