"""The two files that a delegate keeps its state in: for the owner alone, and for nothing else."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from msgspec import msgpack

import jbi_pubsub.pad.delegate.store as store_module
from jbi_pubsub.core.errors import StorageError
from jbi_pubsub.pad.delegate.store import KeptSubscription, SubscriptionStore, Whose
from jbi_pubsub.pad.mail.store import MailStore
from jbi_pubsub.protocol.requests import SubscriptionRequest

Opened = Callable[[Path], SubscriptionStore | MailStore]
both = pytest.mark.parametrize("opened", [SubscriptionStore, MailStore])


@both
def test_a_state_file_is_for_its_owner_alone(opened: Opened, tmp_path: Path) -> None:
    # Expect nobody else to read the file or its log: there are addresses, mail and lease ids in it
    store = opened(tmp_path / "state")
    assert [f.name for f in tmp_path.iterdir() if f.stat().st_mode & 0o077] == []
    store.close()


@both
def test_a_file_with_the_tables_of_something_else_is_left_alone(opened: Opened, tmp_path: Path) -> None:
    # Given the state of a lookup service, say
    path = tmp_path / "state"
    with closing(sqlite3.connect(path, isolation_level=None)) as base:
        base.execute("CREATE TABLE kept (kind TEXT)")
    base.close()
    # When a delegate is given it; Expect an error that says so, and the file with what it had
    with pytest.raises(StorageError, match="something else") as refused:
        opened(path)
    assert str(refused.value).count(str(path)) == 1
    with closing(sqlite3.connect(path, isolation_level=None)) as base:
        assert base.execute("SELECT name FROM sqlite_master").fetchall() == [("kept",)]
    base.close()


@both
def test_a_file_of_ours_is_taken_again(opened: Opened, tmp_path: Path) -> None:
    opened(tmp_path / "state").close()
    opened(tmp_path / "state").close()


@both
def test_a_folder_that_is_not_there_is_named(opened: Opened, tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="nowhere"):
        opened(tmp_path / "nowhere" / "state")


def test_the_subscriptions_of_an_earlier_version_are_taken_over(tmp_path: Path) -> None:
    # Given the file of a version that reminded nobody, and bound nobody to a certificate
    path = tmp_path / "state"
    request = SubscriptionRequest("subscription-1", direct=False, recipients=("a@x.org",))
    with closing(sqlite3.connect(path, isolation_level=None)) as base:
        base.execute(
            "CREATE TABLE mail (uid TEXT PRIMARY KEY, request BLOB NOT NULL,"
            " lease TEXT NOT NULL, ends REAL NOT NULL) WITHOUT ROWID"
        )
        base.execute("INSERT INTO mail VALUES (?, ?, ?, ?)", (request.uid, msgpack.encode(request), "lease", 100.0))
    base.close()
    # When it is opened; Expect the subscription, of which a reminder can be kept, bound to none, and nobody who has
    # unsubscribed
    store = SubscriptionStore(path)
    assert store.load(50.0) == [KeptSubscription(request, "lease", 100.0)]
    store.set_times([(request.uid, 200.0, 150.0)])
    assert store.load(50.0) == [KeptSubscription(request, "lease", 200.0, 150.0)]
    store.reminded(request.uid)
    assert store.load(50.0) == [KeptSubscription(request, "lease", 200.0)]
    assert store.unsubscribed() == []
    whose = Whose("192.0.2.1:7", "anna", claimed=False, client="application", holder="1f:abcd")
    store.hand_over(request.uid, whose)
    store.close()
    again = SubscriptionStore(path)
    assert again.load(50.0) == [KeptSubscription(request, "lease", 200.0, whose=whose)]
    again.close()


def test_of_too_many_who_have_unsubscribed_the_first_are_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_module, "UNSUBSCRIBED_MOST", 3)
    store = SubscriptionStore(tmp_path / "state")
    for name in "abcdbe":
        store.unsubscribe("subscription-1", f"{name}@x.org")
    assert store.unsubscribed() == [("subscription-1", f"{name}@x.org") for name in "cde"]
    store.close()
