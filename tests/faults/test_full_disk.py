"""A lookup service, a mail queue or a node's blocks whose disk is full: a real file system with a bound, filled up."""

from __future__ import annotations

import shutil
import signal
import subprocess
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from jbi_pubsub.core.errors import StorageError
from jbi_pubsub.core.wire import ServiceRef
from jbi_pubsub.core.wire.endpoint import Security
from jbi_pubsub.lookup.client.proxy import EVERYTHING, EXPORTED, RegistrarProxy
from jbi_pubsub.lookup.entry import EntryRep, define
from jbi_pubsub.lookup.item import ServiceItem, ServiceTemplate
from jbi_pubsub.network.cache import HeldBlock
from jbi_pubsub.network.disk import DiskBlocks
from jbi_pubsub.network.log import LogId
from jbi_pubsub.pad.mail.journal import Changes
from jbi_pubsub.pad.mail.letters import Letter
from jbi_pubsub.pad.mail.message import Content
from jbi_pubsub.pad.mail.store import MailStore

pytestmark = pytest.mark.processes

NOTE = define("test.Note", {"text": str})
MEGABYTE = 1 << 20


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 8 MB in memory."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounting = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=8m", "none", str(folder)], capture_output=True, text=True, check=False
    )
    if mounting.returncode:
        pytest.skip(f"a file system can't be mounted here, which takes root: {mounting.stderr.strip()}")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def fill(path: Path) -> None:
    """Take all the room that is left."""
    with path.open("wb", buffering=0) as filler:
        for size in (MEGABYTE, 65_536, 4096):
            try:
                while filler.write(b"\0" * size) == size:
                    pass
            except OSError:  # no room for so much
                continue


def noted(name: str, text: str = "") -> ServiceItem:
    return ServiceItem(name, ("Service",), ServiceRef(name, name, ("127.0.0.1:1",)), (EntryRep(NOTE, (text,)),))


def changes(letters: Sequence[Letter] = (), done: Sequence[Letter] = ()) -> Changes:
    return Changes([each.number for each in done], [each.content.number for each in done], (), letters, (), {})


def test_a_mail_queue_that_has_filled_its_disk_is_written_again_when_it_is_empty(small_disk: Path) -> None:
    # Given a mail queue that takes mail until there is no room
    store = MailStore(small_disk / "mails")

    def fill_up(first: int) -> list[Letter]:
        letters: list[Letter] = []
        while len(letters) < 1_000:
            number = first + len(letters)
            letter = Letter(number, "one", Content(number, f"o-{number}", "t", "s", bytes(300_000)), ("a@x.org",), 1.0)
            try:
                store.commit(changes([letter]), 0.0)
            except StorageError:
                return letters
            letters.append(letter)
        raise AssertionError("it is not bounded")

    letters = fill_up(1)
    assert len(letters) > 3
    for first in (1_000, 2_000):
        # When all of it has been sent
        for letter in letters:
            store.commit(changes(done=[letter]), 0.0)
        # Expect the disk to be free again, and mail to be written as before
        assert shutil.disk_usage(small_disk).free > 6 * MEGABYTE
        letters = fill_up(first)
        assert len(letters) > 3
    store.close()


def test_a_mail_queue_begins_on_a_full_disk(small_disk: Path) -> None:
    # Given mail on disk, of a delegate that was killed, and a disk that others have filled since
    letter = Letter(1, "one", Content(1, "o-1", "t", "s", bytes(300_000)), ("a@x.org",), 1.0)
    store = MailStore(small_disk / "mails")
    store.commit(changes([letter]), 0.0)
    folder = small_disk / "killed"
    folder.mkdir()
    for file in small_disk.glob("mails*"):
        shutil.copy(file, folder)
    store.close()
    fill(small_disk / "filler")
    assert shutil.disk_usage(small_disk).free == 0
    # When it begins; Expect its mail to be there, new mail to be refused, and what is sent to be noted later
    again = MailStore(folder / "mails")
    assert [each.number for each in again.load(0.0).letters["one"]] == [1]
    with pytest.raises(StorageError, match="are left"):
        again.commit(changes([letter]), 0.0)
    (small_disk / "filler").unlink()
    again.commit(changes(done=[letter]), 0.0)
    assert again.load(0.0).letters == {}
    again.close()


class Served:
    """A durable lookup service as a process, and a client of it."""

    def __init__(self, process: Any) -> None:
        self.process = process
        facts = process.fact()
        self.id: str = facts["id"]
        self.address: str = facts["address"]
        self._metrics = f"http://127.0.0.1:{facts['metrics']}/metrics"
        self.registrar = RegistrarProxy(ServiceRef("", EXPORTED, (self.address,)), Security())
        self._status = ServiceRef("", "status", (self.address,))

    def names(self) -> set[str]:
        return {
            item.service_id for item in self.registrar.lookup(ServiceTemplate(types=("Service",)), EVERYTHING).items
        }

    def metric(self, name: str) -> float:
        with urllib.request.urlopen(self._metrics, timeout=60) as answer:
            lines = answer.read().decode().splitlines()
        return float(next(line.split()[-1] for line in lines if line.split()[0].endswith(name)))


def test_a_full_disk_refuses_what_is_new_serves_on_says_so_and_heals_by_itself(
    small_disk: Path, field: Any, start: Callable[..., Any], eventually: Callable[..., Any]
) -> None:
    # Given a lookup service that keeps its state on a small disk, some services, and a client that watches them
    arguments = ("--no-multicast", "lookup", "--port", "0", "--metrics-port", "0", "--json")
    arguments = (*arguments, "--state", str(small_disk / "state.db"))
    field.leases(lookup=300.0)
    served = Served(start(*arguments))
    field.lookups(served.address)
    leases = {name: served.registrar.register(noted(name), 300.0).lease_id for name in ("one", "two", "three")}
    community = field.community()
    cache = community.watch(ServiceTemplate(types=("Service",)))
    community.wait_watching(cache, 60.0)
    assert len(cache.wait(3, 60.0)) == 3

    # When its disk becomes full
    filler = small_disk / "filler"
    fill(filler)

    # Expect that new services are refused, with a hint, once what room there was is used up
    def register_many() -> None:
        for number in range(200):
            name = f"big-{number}"
            leases[name] = served.registrar.register(noted(name, "x" * 60_000), 300.0).lease_id

    with pytest.raises(StorageError, match="full") as refused:
        register_many()
    assert "free some space" in refused.value.hint
    assert refused.value.facts["code"] == "SQLITE_FULL"
    fill(small_disk / "rest")  # what a small item would still find
    with pytest.raises(StorageError, match="full"):
        served.registrar.register(noted("one more"), 300.0)
    with pytest.raises(StorageError, match="full"):
        served.registrar.set_attributes("one", leases["one"], ())

    # Expect that lookups, renewals and events go on
    assert served.names() == set(leases)
    results = served.registrar.renew([(lease_id, 300.0) for lease_id in leases.values()])
    assert [result.error for result in results] == [None] * len(leases)
    assert served.registrar.cancel([leases.pop("two")])[0].error is None
    eventually(lambda: {item.service_id for item in cache.items()} == set(leases))

    # Expect that status and metrics say so
    status = field.status(served)
    assert "full" in status["store"]["fault"]
    assert status["store"]["waiting"] >= 1
    assert status["refused"] >= 2
    assert served.metric("lookup_store_fault") == 1.0

    # When room is made, expect it well again without anybody's call
    filler.unlink()  # 6 MB
    eventually(lambda: served.metric("lookup_store_fault") == 0.0)
    assert field.status(served)["store"]["fault"] == ""
    leases["later"] = served.registrar.register(noted("later"), 300.0).lease_id

    # When it is killed and started again, expect everything that was acknowledged, and nothing that was not
    served.process.signal(signal.SIGKILL)
    served.process.end()
    again = Served(start(*arguments))
    assert again.id == served.id
    assert again.names() == set(leases)
    results = again.registrar.renew([(lease_id, 300.0) for lease_id in leases.values()])
    assert [result.error for result in results] == [None] * len(leases)
    for each in (served, again):
        each.registrar.close()


def test_a_lookup_service_that_finds_no_room_at_its_start_says_so_in_one_line(
    small_disk: Path, start: Callable[..., Any]
) -> None:
    # Given a full disk
    fill(small_disk / "filler")
    # When a lookup service is to keep its state there
    process = start("--no-multicast", "lookup", "--port", "0", "--json", "--state", str(small_disk / "state.db"))
    said = process.communicate(timeout=60.0)[1]
    # Expect an exit code, and what to do
    assert process.returncode not in (0, None)
    assert "free some space" in said
    assert "Traceback" not in said


def test_a_lookup_service_is_restarted_on_a_full_disk_and_found_and_watched_there(
    small_disk: Path, field: Any, start: Callable[..., Any], eventually: Callable[..., Any]
) -> None:
    # Given a lookup service with a delegate, and nothing left of its disk when it is stopped and started again
    arguments = ("--no-multicast", "lookup", "--port", "0", "--metrics-port", "0", "--json")
    arguments = (*arguments, "--state", str(small_disk / "state.db"))
    first = Served(start(*arguments))
    lease = first.registrar.register(noted("delegate"), 300.0).lease_id
    first.registrar.close()
    first.process.signal(signal.SIGTERM)
    first.process.end()
    fill(small_disk / "filler")
    fill(small_disk / "rest")
    again = Served(start(*arguments))

    # Expect the same one, with what it had; it says what is wrong, and refuses new services
    assert again.id == first.id
    assert again.names() == {"delegate"}
    eventually(lambda: again.metric("lookup_store_fault") == 1.0)
    with pytest.raises(StorageError, match="full"):
        again.registrar.register(noted("new"), 300.0)

    # Expect that who comes now can watch, as a new publisher does to find its delegate
    field.lookups(again.address)
    community = field.community()
    cache = community.watch(ServiceTemplate(types=("Service",)))
    assert community.wait_watching(cache, 60.0) == 1
    assert [item.service_id for item in cache.items()] == ["delegate"]
    assert again.registrar.cancel([lease])[0].error is None
    eventually(lambda: cache.items() == [])

    # When room is made, expect it well again, and nothing of all that lost by a kill
    (small_disk / "filler").unlink()
    eventually(lambda: again.metric("lookup_store_fault") == 0.0)
    again.registrar.register(noted("later"), 300.0)
    again.registrar.close()
    again.process.signal(signal.SIGKILL)
    again.process.end()
    last = Served(start(*arguments))
    assert (last.id, last.names()) == (first.id, {"later"})
    last.registrar.close()


def test_blocks_of_nodes_that_a_full_disk_does_not_take_are_given_up_and_all_others_are_there(small_disk: Path) -> None:
    # Given blocks on a disk that has room for some thousand of them
    disk, log_id = DiskBlocks(small_disk / "blocks.db", 100 * MEGABYTE), LogId(b"n" * 16, 1)

    def block(serial: int) -> HeldBlock:
        return HeldBlock(serial.to_bytes(8) * 170, float(serial), serial % 6)

    # When more come, expect those that have no room to be given up, and counted
    given_up = {each for serial in range(1, 10_001) for each in disk.put(log_id, serial, block(serial))}
    assert 1_000 < len(given_up) == disk.failed < 9_000
    # and each other one to be as it was put
    for serial in range(1, 10_001):
        assert disk.get(log_id, serial) == (None if (log_id, serial) in given_up else block(serial)), serial
    # When some are over, expect room for as many
    assert len(list(disk.expire(1_000.0))) == 1_000
    assert [each for serial in range(20_001, 20_901) for each in disk.put(log_id, serial, block(serial))] == []
    assert disk.get(log_id, 20_900) == block(20_900)
    disk.close()
