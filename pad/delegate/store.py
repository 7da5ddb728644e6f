"""Store of a delegate over restarts: here its e-mail subscriptions, in pad/mail its mail queue; an SQLite file each.

Rules: a subscription is on disk before it is acknowledged (WAL, synchronous=FULL); times are wall-clock times there
and are told by the caller; a file that can't be read or written is a StorageError, never a silent loss. Two files, so
that neither waits for the other's disk writes.
"""

from __future__ import annotations

import logging
import math
import sqlite3
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from jbi_pubsub.core.sqlite import check_tables, opened, storage_errors, transaction
from jbi_pubsub.core.values import decoder_of
from jbi_pubsub.core.wire.endpoint import Caller
from jbi_pubsub.core.wire.places import PortPlace
from jbi_pubsub.pad.mail.store import MailStore
from jbi_pubsub.protocol.requests import SubscriptionRequest

log = logging.getLogger("jbi_pubsub.pad")

UNSUBSCRIBED_MOST: Final = 100_000
"""Recipients who have unsubscribed and are remembered; of more the first are forgotten."""


class Whose(msgspec.Struct, frozen=True):
    """Owner of a subscription: what access rules, and revocation lists, are asked about after a restart. The
    fields are those of Caller, and `holder` its certificate (`x509.Certificate.holder`)."""

    address: str
    user: str
    claimed: bool
    client: str
    holder: str = ""


class KeptSubscription(msgspec.Struct, frozen=True):
    """An e-mail subscription on disk; `ends` is when its lease does, `remind` when its recipients are told so (None:
    never, or they have been), in seconds since the epoch; `whose` it is."""

    request: SubscriptionRequest
    lease_id: str
    ends: float
    remind: float | None = None
    whose: Whose | None = None


COLUMNS: Final = {"remind": "REAL", "whose": "BLOB"}
"""Columns of table `mail`, that earlier versions did not have."""


class SubscriptionStore:
    """Safe for several threads. Each call is one transaction."""

    def __init__(self, path: Path) -> None:
        """Opens or makes the file, for the owner alone: lease ids are secrets. Raises StorageError."""
        self.path = path
        self._lock = threading.Lock()
        with self._translated():
            self._base = opened(path, self._set_up, timeout=5.0)

    def _set_up(self, base: sqlite3.Connection) -> None:
        base.execute("PRAGMA journal_mode=WAL")
        base.execute("PRAGMA synchronous=FULL")
        check_tables(base, {"mail", "unsubscribed"}, f"e-mail subscriptions in {self.path}")
        base.execute(
            "CREATE TABLE IF NOT EXISTS mail (uid TEXT PRIMARY KEY, request BLOB NOT NULL,"
            " lease TEXT NOT NULL, ends REAL NOT NULL) WITHOUT ROWID"
        )
        known = {column[1] for column in base.execute("PRAGMA table_info(mail)")}
        for name, kind in COLUMNS.items():
            if name not in known:  # of an earlier version
                base.execute(f"ALTER TABLE mail ADD COLUMN {name} {kind}")
        base.execute(
            "CREATE TABLE IF NOT EXISTS unsubscribed"
            " (number INTEGER PRIMARY KEY, uid TEXT NOT NULL, recipient TEXT NOT NULL, UNIQUE (uid, recipient))"
        )

    def load(self, wall: float) -> list[KeptSubscription]:
        """All whose lease has not ended at `wall`; the others are removed. Raises StorageError."""
        with self._lock, self._translated():
            for uid, ends in self._base.execute("SELECT uid, ends FROM mail WHERE ends <= ?", (wall,)).fetchall():
                log.warning("e-mail subscription %s has ended, %.0f s ago by the clock of this host", uid, wall - ends)
            self._base.execute("DELETE FROM mail WHERE ends <= ?", (wall,))
            rows = self._base.execute("SELECT request, lease, ends, remind, whose FROM mail").fetchall()
            return [
                KeptSubscription(
                    decoder_of(SubscriptionRequest).decode(request), lease, ends, remind,
                    decoder_of(Whose).decode(whose) if whose else None,
                )
                for request, lease, ends, remind, whose in rows
            ]  # fmt: skip

    def keep(self, kept: KeptSubscription) -> None:
        """Add or replace a subscription. Raises StorageError."""
        request, whose = msgspec.msgpack.encode(kept.request), _encoded(kept.whose)
        statement = "INSERT OR REPLACE INTO mail (uid, request, lease, ends, remind, whose) VALUES (?, ?, ?, ?, ?, ?)"
        self._write(statement, (kept.request.uid, request, kept.lease_id, kept.ends, kept.remind, whose))

    def amend(self, request: SubscriptionRequest) -> None:
        """A subscription has other terms. Raises StorageError."""
        self._write("UPDATE mail SET request = ? WHERE uid = ?", (msgspec.msgpack.encode(request), request.uid))

    def set_times(self, times: Iterable[tuple[str, float, float | None]]) -> None:
        """When leases end from now on, and their recipients are reminded, by ids. Raises StorageError."""
        with self._lock, self._translated(), transaction(self._base):
            self._base.executemany(
                "UPDATE mail SET ends = ?, remind = ? WHERE uid = ?", ((ends, due, uid) for uid, ends, due in times)
            )

    def reminded(self, uid: str) -> None:
        """Its recipients have been told that the lease ends. Raises StorageError."""
        self._write("UPDATE mail SET remind = NULL WHERE uid = ?", (uid,))

    def unsubscribed(self) -> list[tuple[str, str]]:
        """(subscription, recipient) of all who have, in the order in which they did. Raises StorageError."""
        with self._lock, self._translated():
            return self._base.execute("SELECT uid, recipient FROM unsubscribed ORDER BY number").fetchall()

    def unsubscribe(self, uid: str, recipient: str) -> None:
        """Remember that the recipient wants no mail of it, also when it has ended. Raises StorageError."""
        with self._lock, self._translated():
            self._base.execute("INSERT OR IGNORE INTO unsubscribed (uid, recipient) VALUES (?, ?)", (uid, recipient))
            self._base.execute(
                "DELETE FROM unsubscribed WHERE number <= (SELECT max(number) FROM unsubscribed) - ?",
                (UNSUBSCRIBED_MOST,),
            )

    def hand_over(self, uid: str, whose: Whose | None) -> None:
        """Note that it was asked for again, with another certificate. Raises StorageError."""
        self._write("UPDATE mail SET whose = ? WHERE uid = ?", (_encoded(whose), uid))

    def forget(self, uid: str) -> None:
        """The subscription is gone. Raises StorageError."""
        self._write("DELETE FROM mail WHERE uid = ?", (uid,))

    def close(self) -> None:
        """Close the file."""
        with self._lock, self._translated():
            self._base.close()

    def _write(self, statement: str, values: tuple[object, ...]) -> None:
        with self._lock, self._translated():
            self._base.execute(statement, values)

    def _translated(self) -> AbstractContextManager[None]:
        hint = "Check the disk and the file, or choose another [pad] state"
        return storage_errors("e-mail subscriptions in", self.path, hint)


def _encoded(whose: Whose | None) -> bytes | None:
    return msgspec.msgpack.encode(whose) if whose is not None else None


def whose_of(caller: Caller | None) -> Whose | None:
    """For the disk."""
    if caller is None:
        return None
    return Whose(caller.address, caller.user, caller.claimed, caller.client, caller.holder)


def caller_of(whose: Whose | None) -> Caller:
    """From the disk; nobody, for a subscription of an earlier version, which did not say whose it is."""
    if whose is None:
        return Caller("")
    place = PortPlace(holder=whose.holder)
    return Caller(whose.address, place=place, user=whose.user, claimed=whose.claimed, client=whose.client)


@dataclass(frozen=True, slots=True, kw_only=True)
class DelegateOptions:
    """Given to a delegate by the process that it lives in; by default it keeps nothing over restarts, and is alone."""

    peer: bool = False
    """Inside a publishing application."""
    store: SubscriptionStore | None = None
    """Keeps e-mail subscriptions; those in it are taken over."""
    mails: MailStore | None = None
    """Keeps their mail; what is in it is taken over."""
    node: str = ""
    """The id of the node that it is part of."""
    keeps_elsewhere: bool = False
    """Whether others keep what is to be kept, where there is no archive."""
    wall: Callable[[], float] = time.time
    stall: float = math.inf
    """Seconds between two calls of `expire` beyond which it did not listen (see Landlord)."""
