"""Blocks on disk: given as they were put, bounded by bytes, gone with the node."""

from __future__ import annotations

import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from jbi_pubsub.core.errors import StorageError
from jbi_pubsub.network.cache import OVERHEAD, HeldBlock
from jbi_pubsub.network.disk import DiskBlocks
from jbi_pubsub.network.exchange import ExchangeSettings
from jbi_pubsub.network.log import LogId

from .simulated import Node, Segment, World

SIZE = 1_000
ROOM = SIZE + OVERHEAD
ONE, OTHER = LogId(b"1" * 16, 1), LogId(b"2" * 16, (1 << 64) - 1, (1 << 64) - 1)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[DiskBlocks]:
    """A place for ten blocks."""
    made = DiskBlocks(tmp_path / "blocks.db", 10 * ROOM)
    yield made
    made.close()


def _block(number: int, expires: float = 100.0) -> HeldBlock:
    return HeldBlock(number.to_bytes(4) * (SIZE // 4), expires, number % 6)


def test_blocks_are_given_as_they_were_put(disk: DiskBlocks) -> None:
    for log_id in (ONE, OTHER):
        for serial in (1, 5, 1 << 40):
            assert list(disk.put(log_id, serial, _block(serial % 97))) == []
    assert disk.get(OTHER, 1 << 40) == _block((1 << 40) % 97)
    assert disk.get(ONE, 5) == _block(5)
    assert disk.get(ONE, 2) is None
    disk.remove(ONE, 5)
    disk.remove(ONE, 5)
    assert disk.get(ONE, 5) is None
    assert disk.size == 5 * ROOM


def test_what_is_put_twice_counts_once(disk: DiskBlocks) -> None:
    for _ in range(3):
        assert list(disk.put(ONE, 1, _block(1))) == []
    assert (disk.size, disk.failed) == (ROOM, 0)


def test_where_there_is_no_room_the_oldest_of_whoever_has_most_go(disk: DiskBlocks) -> None:
    for serial in range(1, 4):
        assert list(disk.put(OTHER, serial, _block(serial))) == []
    gone = [each for serial in range(1, 21) for each in disk.put(ONE, serial, _block(serial))]
    assert gone == [(ONE, serial) for serial in range(1, 14)]
    assert disk.size == 10 * ROOM
    assert all(disk.get(OTHER, serial) for serial in range(1, 4))


def test_what_is_over_goes(disk: DiskBlocks) -> None:
    for serial in range(1, 6):
        list(disk.put(ONE, serial, _block(serial, expires=float(serial))))
    assert list(disk.expire(0.5)) == []
    assert sorted(disk.expire(3.0)) == [(ONE, 1), (ONE, 2), (ONE, 3)]
    assert disk.size == 2 * ROOM
    assert sorted(disk.expire(9.0)) == [(ONE, 4), (ONE, 5)]
    assert list(disk.expire(10.0)) == []


def test_the_file_is_the_owners_alone_begins_empty_and_goes(tmp_path: Path) -> None:
    path = tmp_path / "blocks.db"
    path.write_bytes(b"left by a node that was killed")
    disk = DiskBlocks(path, 10 * ROOM)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert disk.get(ONE, 1) is None
    disk.close()
    disk.close()
    assert not path.exists()


def test_a_folder_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match=r"blocks in .*nowhere"):
        DiskBlocks(tmp_path / "nowhere" / "blocks.db", ROOM)


def test_a_disk_that_takes_nothing_more_loses_blocks_and_is_counted(disk: DiskBlocks, caplog: Any) -> None:
    # Given a file that may not grow any more
    list(disk.put(ONE, 1, _block(1)))
    disk._base.execute("PRAGMA max_page_count = 1")
    # When blocks come, expect each to be given up, one line that tells it, and what was there
    gone = [each for serial in range(2, 200) for each in disk.put(OTHER, serial, _block(serial))]
    assert gone
    assert disk.failed == len(gone)
    assert len(caplog.records) == 1
    assert "full" in caplog.text
    assert disk.get(ONE, 1) == _block(1)


@pytest.mark.row("G-157")
def test_a_late_node_gets_ten_times_what_has_room_in_memory(tmp_path: Path) -> None:
    # Given a node with little memory for blocks, and a disk
    world, life = World(seed=1), 600_000
    segment = Segment(world, loss=0.05)
    bodies = [b"%06d" % number + bytes(1_300) for number in range(1_000)]
    memory = sum(map(len, bodies)) // 10
    disk = DiskBlocks(tmp_path / "blocks.db", 100 * memory)
    first = Node(world, 1, [segment], ExchangeSettings(cache_bytes=memory, disk=disk))
    # When it says ten times as much before anybody is there
    for each in bodies:
        first.say(each, expiration=life)
        world.run(world.now + 0.01)
    assert first.exchange.held.size <= memory
    late = Node(world, 2, [segment], ExchangeSettings())
    # Expect that one that comes late gets all of it
    assert world.run(world.now + 60.0, lambda: len(late.heard) >= len(bodies))
    assert sorted(each.body for each in late.heard) == bodies
    # and that nothing is left when it is over
    world.run(world.now + life / 1_000 + 10.0)
    assert disk.size == 0
    disk.close()
