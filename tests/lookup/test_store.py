"""The store: what survives, a full disk, a kill at any moment. Clocks are numbers; `now` and `wall` lie far apart."""

from __future__ import annotations

import os
import random
import signal
import sqlite3
import subprocess
import sys
import threading
from contextlib import closing, suppress
from itertools import pairwise
from pathlib import Path
from unittest import mock

import msgspec
import pytest

from jbi_pubsub.core.errors import LeaseDeniedError, StorageError
from jbi_pubsub.core.lease import FixedLeasePeriodPolicy
from jbi_pubsub.core.wire import ServiceRef
from jbi_pubsub.lookup import store_file as store_module
from jbi_pubsub.lookup.entry import EntryRep, define
from jbi_pubsub.lookup.events import NUMBER_JUMP
from jbi_pubsub.lookup.item import ServiceItem, ServiceTemplate
from jbi_pubsub.lookup.registrar import Registrar
from jbi_pubsub.lookup.store import Store
from jbi_pubsub.lookup.store_file import LOG_BYTES, VACUUM_PAGES, StoreFile

COMMENT = define("Comment", {"text": str})
NOW, WALL = 100.0, 1_700_000_000.0
POLICY = FixedLeasePeriodPolicy(maximum=10_000.0, default=10_000.0)


def item(name: str, text: str = "", service_id: str = "") -> ServiceItem:
    return ServiceItem(service_id, ("Service",), ServiceRef("", name, ()), (EntryRep(COMMENT, (text,)),))


def start(path: Path, now: float = NOW, wall: float = WALL, boot: str = "", **options) -> tuple[Registrar, Store]:
    store = Store(path, **options)
    state = store.recover(now, wall, boot=boot)
    registrar = Registrar(item_leases=POLICY, event_leases=POLICY, log=store)
    registrar.restore(state, now)
    store.sync()
    return registrar, store


def names(registrar: Registrar, now: float = NOW) -> set[str]:
    return {each.proxy.exported for each in registrar.lookup_all(ServiceTemplate(), now, 10_000).items}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "lookup.db"


def test_a_restart_brings_back_items_leases_registrations_admin_and_the_own_id(path):
    """Given a registrar with everything, when another starts an hour later on another monotonic clock, it goes on."""
    registrar, store = start(path)
    got = registrar.register(item("p", "x"), 8000.0, NOW, owner="me").result
    event = registrar.notify(ServiceTemplate(), 7, 9000.0, NOW, handback="h", owner="me", listener="to").result
    registrar.set_groups(("ops",))
    registrar.set_attributes(got.service_id, got.lease_id, (EntryRep(COMMENT, ("y",)),), NOW)
    store.close()

    again, store = start(path, 5.0, WALL + 3600.0)
    assert (again.service_id, again.admin().groups) == (registrar.service_id, ("ops",))
    found = again.lookup(ServiceTemplate(), 5.0)
    assert (found.service_id, found.entries[0].values) == (got.service_id, ("y",))
    outcome = again.set_attributes(got.service_id, got.lease_id, (), 5.0)
    ((listener, told),) = outcome.events
    assert (listener, told.event_id, told.handback) == ("to", event.event_id, "h")
    assert again.renew(event.lease_id, 20.0, 5.0).result.duration == 20.0
    store.close()


def test_a_new_registrar_keeps_its_own_id_though_nothing_else_has_happened(path):
    registrar, store = start(path)
    store.close()
    again, store = start(path)
    assert again.service_id == registrar.service_id
    store.close()


def test_event_numbers_jump_with_each_restart_so_that_clients_see_a_gap(path):
    registrar, store = start(path)
    registrar.notify(ServiceTemplate(), 7, 9000.0, NOW)
    seen = [registrar.register(item("p"), 10.0, NOW).events[0][1].number]
    store.close()
    for _ in range(2):
        registrar, store = start(path)
        seen.append(registrar.register(item("q"), 10.0, NOW).events[-1][1].number)
        store.close()
    assert seen[0] == 1
    assert [b - a >= NUMBER_JUMP for a, b in pairwise(seen)] == [True, True]


def test_what_was_cancelled_expired_or_destroyed_does_not_come_back(path):
    registrar, store = start(path)
    cancelled = registrar.register(item("cancelled"), 5000.0, NOW).result
    registrar.register(item("expired"), 10.0, NOW)
    registrar.register(item("ended-while-down"), 100.0, NOW)
    registrar.register(item("stays"), 9000.0, NOW)
    registrar.cancel(cancelled.lease_id, NOW)
    registrar.expire(NOW + 10.0)
    store.close()
    registrar, store = start(path, NOW, WALL + 1000.0)
    assert names(registrar) == {"stays"}
    registrar.destroy()
    with pytest.raises(LeaseDeniedError, match="destroyed"):
        registrar.register(item("late"), 10.0, NOW)
    store.close()
    again, store = start(path)
    assert names(again) == set()
    assert again.service_id != registrar.service_id, "what begins where one was destroyed is another one"
    again.register(item("new"), 5000.0, NOW)
    store.close()
    third, store = start(path)
    assert (third.service_id, names(third)) == (again.service_id, {"new"})
    store.close()


def test_a_lease_has_after_a_restart_at_least_what_was_left_and_at_most_its_term(path):
    """Given renewals that wrote nothing, the promise holds all the same."""
    registrar, store = start(path)
    got = registrar.register(item("p"), 100.0, NOW).result
    written = store.status().waiting
    store.sync()
    registrar.renew(got.lease_id, 100.0, NOW + 80.0)  # ends at +180, on disk +200
    assert (written, store.status().waiting, store.status().spared) == (1, 0, 1)
    registrar.renew(got.lease_id, 100.0, NOW + 150.0)  # ends at +250: has to be written
    assert store.status().waiting == 1
    store.sync()
    registrar.renew(got.lease_id, 5.0, NOW + 160.0)  # much shorter: has to be written, or a dead one would linger
    assert store.status().waiting == 1
    store.close()
    registrar, store = start(path, NOW, WALL + 162.0)
    assert 3.0 <= registrar.next_deadline() - NOW <= 5.0
    store.close()


def test_a_renewal_for_a_longer_term_is_written_although_the_end_on_disk_is_later(path):
    """After a restart a lease has at most its term; so a longer term has to be on disk."""
    registrar, store = start(path)
    got = registrar.register(item("p"), 100.0, NOW).result
    store.sync()
    registrar.renew(got.lease_id, 150.0, NOW)
    store.close()
    registrar, store = start(path)
    assert registrar.next_deadline() - NOW == pytest.approx(150.0)
    store.close()


HOUR = 3600.0


@pytest.mark.parametrize("jump", [HOUR, -HOUR, 30 * 24 * HOUR])
class TestTheWallClockJumps:
    """Given leases of 100 and 1,000 s with 60 s gone of both: what is left after a restart, 10 s later."""

    LEFT = (100.0 - 70.0, 1000.0 - 70.0)

    def leases(self, registrar: Registrar) -> None:
        registrar.register(item("short"), 100.0, NOW)
        registrar.register(item("long"), 1000.0, NOW)

    def left(self, registrar: Registrar, now: float) -> list[float]:
        return sorted(expires - now for _, _, expires in registrar._leases.items.items())

    def check(self, registrar: Registrar, now: float) -> None:
        """At least what was left, and at most the term."""
        for left, least, most in zip(self.left(registrar, now), self.LEFT, (100.0, 1000.0), strict=True):
            assert least <= left <= most

    def test_while_running_and_the_machine_stays_up(self, path, jump):
        registrar, store = start(path, boot="one")
        self.leases(registrar)
        store.align(NOW + 60.0, WALL + 60.0 + jump)
        store.close()
        registrar, store = start(path, NOW + 70.0, WALL + 70.0 + jump, boot="one")
        self.check(registrar, NOW + 70.0)
        store.close()

    def test_while_running_and_then_the_machine_is_booted_anew(self, path, jump):
        registrar, store = start(path, boot="one")
        self.leases(registrar)
        store.align(NOW + 60.0, WALL + 60.0 + jump)
        store.close()
        for boot, now, away in (("two", 5.0, 0.0), ("three", 7.0, 5.0)):
            registrar, store = start(path, now, WALL + 70.0 + jump + away, boot=boot)
            assert len(self.left(registrar, now)) == 2
            for left, least, most in zip(self.left(registrar, now), self.LEFT, (100.0, 1000.0), strict=True):
                assert least - away <= left <= most
            store.close()

    def test_while_it_is_away_and_the_machine_stays_up(self, path, jump):
        registrar, store = start(path, boot="one")
        self.leases(registrar)
        store.close()
        registrar, store = start(path, NOW + 70.0, WALL + 70.0 + jump, boot="one")
        self.check(registrar, NOW + 70.0)
        store.close()

    def test_while_the_machine_is_off_it_counts_as_time_and_no_lease_grows(self, path, jump):
        registrar, store = start(path, boot="one")
        self.leases(registrar)
        store.close()
        registrar, store = start(path, 5.0, WALL + 70.0 + jump, boot="two")
        left = self.left(registrar, 5.0)
        assert left == [] if jump > 0 else left == [100.0, 1000.0]
        store.close()

    def test_renewals_go_on_to_be_spared(self, path, jump):
        registrar, store = start(path, boot="one")
        got = registrar.register(item("p"), 100.0, NOW).result
        store.sync()
        store.align(NOW + 60.0, WALL + 60.0 + jump)
        registrar.renew(got.lease_id, 100.0, NOW + 60.0)
        assert store.status().spared == 1
        store.close()


def test_a_file_without_a_clock_went_by_the_wall_clock(path):
    registrar, store = start(path)
    registrar.register(item("p"), 100.0, NOW)
    store.sync()
    store._file._base.execute("DELETE FROM meta WHERE name = 'clock'")
    store.close()
    registrar, store = start(path, 5.0, WALL + 150.0, boot="one")
    assert names(registrar, 5.0) == {"p"}
    assert registrar.next_deadline() == pytest.approx(5.0 + 50.0)
    store.close()


def test_a_renewal_during_a_commit_that_fails_lands_on_what_was_to_be_written(path, monkeypatch):
    registrar, store = start(path)
    got = registrar.register(item("p"), 100.0, NOW).result

    def fail(_: object) -> None:
        registrar.renew(got.lease_id, 9000.0, NOW)
        raise StorageError("the disk is full")

    with monkeypatch.context() as patched:
        patched.setattr(store, "_commit", fail)
        with pytest.raises(StorageError):
            store.sync()
    store.close()
    registrar, store = start(path, NOW, WALL + 5000.0)
    assert names(registrar) == {"p"}
    store.close()


def test_a_call_is_durable_after_sync_and_a_burst_is_one_commit(path):
    registrar, store = start(path)
    commits = store.status().commits
    for number in range(100):
        registrar.register(item(f"p{number}"), 5000.0, NOW)
    assert store.status().waiting == 100
    store.sync()
    store.sync()
    assert (store.status().waiting, store.status().commits) == (0, commits + 1)
    store.close()


def test_many_threads_share_commits_and_each_returns_durable(path):
    """Given eight threads that register and sync, when all are done, all is on disk, in fewer commits than calls."""
    registrar, store = start(path)
    lock = threading.Lock()

    def register(which: int) -> None:
        for number in range(25):
            with lock:
                registrar.register(item(f"{which}-{number}"), 5000.0, NOW)
            store.sync()

    threads = [threading.Thread(target=register, args=(which,), name=f"client-{which}") for which in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert store.status().waiting == 0
    assert store.status().commits <= 201
    store.close()
    registrar, store = start(path)
    assert len(names(registrar)) == 200
    store.close()


def test_a_full_disk_refuses_what_is_new_serves_on_and_says_so(path):
    """Given room for some items, when it is used up, lookups, renewals and cancels go on; space makes it well again."""
    registrar, store = start(path, max_bytes=200_000)
    kept = []

    def fill() -> None:
        for number in range(1000):
            kept.append(registrar.register(item(f"p{number}", "x" * 1000), 5000.0, NOW).result)
            store.sync()

    with pytest.raises(StorageError, match="full"):
        fill()
    with pytest.raises(StorageError, match="nothing new is registered") as refused:
        registrar.register(item("one more"), 5000.0, NOW)
    assert refused.value.facts["code"] == "SQLITE_FULL"
    assert "full" in store.status().fault
    assert len(names(registrar)) == len(kept)
    assert registrar.renew(kept[0].lease_id, 6000.0, NOW).result.duration == 6000.0
    for each in kept[1:]:
        registrar.cancel(each.lease_id, NOW)
    store.sync()
    assert store.status().fault == ""
    registrar.register(item("one more"), 5000.0, NOW)
    store.close()
    registrar, store = start(path)
    assert names(registrar) == {"p0", "one more"}
    store.close()


def test_a_start_needs_no_room_on_the_disk_and_numbers_events_anew_each_time(path):
    """Given a file that takes no more, two starts find what was kept, refuse what is new, and jump in the numbers."""
    registrar, store = start(path)
    kept = registrar.register(item("kept"), 5000.0, NOW).result
    registrar.register(item("ended"), 10.0, NOW)
    registrar.notify(ServiceTemplate(), 7, 9000.0, NOW)
    store.close()

    def start_full(later: float) -> tuple[Registrar, Store]:
        full = mock.patch.object(StoreFile, "_put_meta", side_effect=StorageError("the disk is full", hint="Free some"))
        with full:
            store = Store(path)
            state = store.recover(NOW, WALL + later)
        assert "full" in store.status().fault
        registrar = Registrar(item_leases=POLICY, event_leases=POLICY, log=store)
        registrar.restore(state, NOW)
        return registrar, store

    numbers = []
    for later in (100.0, 200.0):
        registrar, store = start_full(later)
        assert names(registrar) == {"kept"}
        with pytest.raises(StorageError, match="full"):
            registrar.register(item("new"), 10.0, NOW)
        numbers.append(registrar.cancel(kept.lease_id, NOW).events[0][1].number)
        with mock.patch.object(Store, "_commit", side_effect=StorageError("the disk is full")), suppress(StorageError):
            store.close()
    assert numbers[1] - numbers[0] >= NUMBER_JUMP
    registrar, store = start_full(300.0)
    store.sync()  # there is room again
    assert store.status().fault == ""
    numbers.append(registrar.register(item("new"), 10.0, NOW).events[0][1].number)
    store.close()
    registrar, store = start(path)
    numbers.append(registrar.register(item("newer"), 10.0, NOW).events[0][1].number)
    assert all(after - before >= NUMBER_JUMP for before, after in pairwise(numbers))
    store.close()


def test_nothing_that_waits_is_lost_when_a_commit_fails(path):
    """Given a commit that fails, what is renewed or dropped meanwhile lands on top of what waited."""
    registrar, store = start(path)
    store.sync()
    store._file._base.execute("PRAGMA max_page_count = 1")
    a = registrar.register(item("a", "x" * 9000), 100.0, NOW).result
    b = registrar.register(item("b"), 100.0, NOW).result
    with pytest.raises(StorageError):
        store.sync()
    registrar.renew(a.lease_id, 9000.0, NOW)
    registrar.cancel(b.lease_id, NOW)
    with pytest.raises(StorageError):
        store.sync()
    store._file._base.execute("PRAGMA max_page_count = 100000")
    store.close()
    registrar, store = start(path, NOW, WALL + 5000.0)
    assert names(registrar) == {"a"}
    store.close()


def test_free_pages_are_given_back_while_running(path):
    registrar, store = start(path)
    leases = [registrar.register(item(f"p{n}", "x" * 2000), 5000.0, NOW).result.lease_id for n in range(1500)]
    store.sync()
    large = store.status().bytes
    assert large > 1500 * 2000
    registrar.cancel_all(leases[1:], NOW)
    for _ in range(10):  # any commits
        registrar.renew(leases[0], 6000.0, NOW)
        registrar.renew(leases[0], 10.0, NOW)
        store.sync()
    assert path.stat().st_size < VACUUM_PAGES * 4096
    assert store.status().bytes < VACUUM_PAGES * 4096 + LOG_BYTES + 4096
    assert names(registrar) == {"p0"}
    store.close()


def test_the_log_of_a_burst_is_cut_while_running(path):
    """Given a commit far larger than the log's bound, a few more bring it back."""
    registrar, store = start(path)
    log = path.with_name(path.name + "-wal")
    for number in range(10):
        registrar.register(item("p", "x" * 60_000, f"id-{number}"), 5000.0, NOW)
    for number in range(100, 400):
        registrar.register(item("p", "x" * 60_000, f"id-{number}"), 5000.0, NOW)
    store.sync()
    assert log.stat().st_size > 4 * LOG_BYTES
    registrar.register(item("q"), 5000.0, NOW)
    store.sync()
    registrar.register(item("r"), 5000.0, NOW)
    store.sync()
    assert log.stat().st_size <= LOG_BYTES
    store.close()


def test_a_store_belongs_to_one_process_and_to_its_owner(path):
    _, store = start(path)
    assert path.stat().st_mode & 0o077 == 0, "lease ids are secrets"
    with pytest.raises(StorageError, match="locked") as raised:
        Store(path)
    assert "give each its own" in raised.value.hint
    store.close()


def made_by(path: Path, *statements: str) -> None:
    with closing(sqlite3.connect(path)) as base:
        for statement in statements:
            base.execute(statement)
        base.commit()


def assert_refused_and_untouched(path: Path, why: str) -> None:
    """The error says why and what to do; the file and its folder stay as they were."""
    before, folder, changed = path.read_bytes(), sorted(path.parent.iterdir()), path.stat().st_mtime_ns
    with pytest.raises(StorageError, match=why) as raised, closing(Store(path)) as store:
        store.recover(NOW, WALL)
    assert raised.value.hint
    assert raised.value.facts["path"] == str(path)
    assert path.read_bytes() == before
    assert (sorted(path.parent.iterdir()), path.stat().st_mtime_ns) == (folder, changed)


@pytest.mark.parametrize("content", [b"", b"\n", b"no database" * 100, b"SQLite format 3\0" + b"\xff" * 40])
def test_what_is_no_store_is_refused_however_short_it_is(path, content):
    path.write_bytes(content)
    assert_refused_and_untouched(path, "is not a store of a lookup service")


@pytest.mark.parametrize("journal", ["DELETE", "WAL"])
def test_a_file_with_the_tables_of_something_else_is_left_alone(path, journal):
    # Given the state of a delegate, or any other SQLite file
    made_by(path, f"PRAGMA journal_mode = {journal}", "PRAGMA user_version = 1", "CREATE TABLE mail (uid TEXT)")
    assert_refused_and_untouched(path, "something else")


def test_a_store_of_another_version_is_told_with_both_numbers(path):
    _, store = start(path)
    store.close()
    made_by(path, "PRAGMA user_version = 99")
    assert_refused_and_untouched(path, "of version 99 of the tables, and this program knows 2 alone")


def test_what_is_no_file_is_refused(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", tmp_path):
        with pytest.raises(StorageError, match="not a file"):
            Store(path)


def test_a_new_file_is_there_whole_or_not_at_all(path, monkeypatch):
    """Given a process that ends in the middle of making it, or just before it is moved, another one makes it."""
    with monkeypatch.context() as patched:
        patched.setattr(store_module, "_SCHEMA", "BEGIN; CREATE TABLE half (a TEXT); SELECT * FROM nothing")
        with pytest.raises(StorageError):
            Store(path)
    with monkeypatch.context() as patched:
        patched.setattr(Path, "rename", mock.Mock(side_effect=OSError(30, "killed")))
        with pytest.raises(StorageError, match="killed"):
            Store(path)
    assert not path.exists()
    _, store = start(path)
    store.close()
    assert [each.name for each in path.parent.iterdir()] == [path.name]


@pytest.mark.long
def test_no_flipped_bit_changes_what_is_read(path):
    """Given a store with items, registrations and settings, when any bit of it is flipped, then the file is refused and
    left as it is, or all is read as it was: nothing comes back as something else, and nothing is missing."""
    registrar, store = start(path)
    for number in range(6):
        registrar.register(item(f"p{number}", "\u00e9" * 200, service_id=f"s{number}"), 5000.0, NOW, owner="me")
    registrar.notify(ServiceTemplate(types=("Service",)), 7, 9000.0, NOW, handback="back", listener="to")
    registrar.set_groups(("ops", ""))
    store.close()

    def content() -> object:
        store = Store(path)
        try:
            state = store.recover(NOW, WALL)
        finally:
            store._file._base.close()
        items = [(kept.item, kept.lease_id, kept.expires, kept.owner) for kept in state.items]
        interests = [(msgspec.structs.replace(kept.interest, number=0), kept.expires) for kept in state.interests]
        return state.admin, sorted(items, key=str), interests

    whole = path.read_bytes()
    before = content()
    path.write_bytes(whole)
    chosen, refused = random.Random(3), 0
    # of each page the header and the places of its first cells (SQLite file format, section 1.6), and anything else
    structure = [8 * byte for page in range(0, len(whole), 4096) for byte in range(page + 100 * (not page), page + 116)]
    anything = [chosen.randrange(8 * len(whole)) for _ in range(300)]
    for at in [*anything, *(8 * (place // 8) + chosen.randrange(8) for place in chosen.sample(structure, 200))]:
        damaged = bytearray(whole)
        damaged[at // 8] ^= 1 << at % 8
        path.write_bytes(damaged)
        try:
            read = content()
        except StorageError:
            refused += 1
            assert path.read_bytes() == damaged, "left as it is"
            assert [each.name for each in path.parent.iterdir()] == [path.name]
        else:
            assert read == before
    assert refused > 40


def test_a_row_that_can_not_be_read_is_an_error_with_a_hint(path):
    _, store = start(path)
    store.close()
    good = store_module._checksum(b"\x00", "items", "x", 1), store_module._checksum(b"", "items", "x", 9e18, 1.0)
    made_by(path, f"INSERT INTO kept VALUES ('items', 'x', x'00', 1, {good[0]}, 9e18, 1.0, {good[1]})")
    assert_refused_and_untouched(path, "damaged: Expected")


def test_a_folder_that_does_not_exist_is_an_error_with_a_hint(tmp_path):
    with pytest.raises(StorageError, match="must exist") as raised:
        Store(tmp_path / "none" / "lookup.db")
    assert raised.value.facts["path"].endswith("lookup.db")


CHILD = """
import sys
from pathlib import Path
sys.path.insert(0, {here!r})
from test_store import NOW, item, start
registrar, store = start(Path({path!r}))
number = 0
while True:  # registers, changes and cancels; says what is durable, a line each
    got = registrar.register(item(f"p{{number}}", service_id=f"id-{{number}}"), 5000.0, NOW).result
    store.sync()
    print("+", number, flush=True)
    if number % 3 == 2:
        registrar.cancel(got.lease_id, NOW)
        store.sync()
        print("-", number, flush=True)
    number += 1
"""


@pytest.mark.processes
@pytest.mark.parametrize("lines", [1, 40, 173, *random.Random(6).sample(range(2, 500), 5)])
def test_after_a_kill_all_that_was_said_to_be_durable_is_there(path, lines):
    """Given a process killed (SIGKILL) in the middle of its commits, a new one has every synced call, whole."""
    code = CHILD.format(here=str(Path(__file__).parent), path=str(path))
    child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    said = [child.stdout.readline().split() for _ in range(lines)]
    os.kill(child.pid, signal.SIGKILL)
    said += [line.split() for line in child.stdout.read().splitlines() if len(line.split()) == 2]
    child.stdout.close()
    assert child.wait() == -signal.SIGKILL
    added, taken = ({f"p{number}" for sign, number in said if sign == which} for which in "+-")
    kept = added - taken
    last = max(int(number) for _, number in said)
    registrar, store = start(path)
    unsaid = {f"p{last}", f"p{last + 1}"}  # the call that was under way may be there or not
    assert names(registrar) - unsaid == kept - unsaid
    assert registrar.status().items >= len(kept) - 1
    store.close()
