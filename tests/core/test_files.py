"""Files that several use: locked, written as a whole, read again."""

import os
import threading
import time
from pathlib import Path

import pytest

from jbi_pubsub.core.files import Watched, is_locked, locked, locker, written


def test_a_file_is_locked_by_one_at_a_time_and_says_by_whom(tmp_path: Path) -> None:
    path = tmp_path / "LOCK"
    assert (is_locked(path), locker(path)) == (False, 0)
    fd = locked(path)
    assert (is_locked(path), locker(path)) == (True, os.getpid())
    begun = time.monotonic()
    with pytest.raises(BlockingIOError):
        locked(path, patience=0.1)
    assert time.monotonic() - begun >= 0.1
    os.close(fd)
    assert not is_locked(path)


def test_a_lock_is_of_the_file_that_has_the_name(tmp_path: Path) -> None:
    # Given somebody who waits for a file that another one locks
    path, got = tmp_path / "LOCK", []
    fd = locked(path)
    waits = threading.Thread(target=lambda: got.append(locked(path, patience=10.0)))
    waits.start()
    time.sleep(0.1)
    # When the file is moved away
    path.rename(tmp_path / "away")
    os.close(fd)
    waits.join()
    # Expect the new file of that name to be locked
    assert is_locked(path)
    os.close(got[0])


def test_a_folder_is_locked_without_a_file_in_it(tmp_path: Path) -> None:
    fd = locked(tmp_path)
    with pytest.raises(BlockingIOError):
        locked(tmp_path)
    os.close(fd)
    assert list(tmp_path.iterdir()) == []


def test_a_file_is_written_as_a_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "a"
    with written(path) as file:
        file.write(b"one")
        assert not path.exists()
    assert (path.read_bytes(), path.stat().st_mode & 0o777) == (b"one", 0o600)
    with pytest.raises(ZeroDivisionError), written(path) as file:
        file.write(b"%d" % (1 // 0))
    assert path.read_bytes() == b"one"
    path.chmod(0o640)
    with written(path, mode=None) as file:
        file.write(b"three")
    assert (path.read_bytes(), path.stat().st_mode & 0o777) == (b"three", 0o640)
    with written(path, replaces=False) as file:
        file.write(b"four")
    assert path.read_bytes() == b"three"
    assert list(tmp_path.iterdir()) == [path]


def test_many_who_write_one_file_at_once_leave_it_whole(tmp_path: Path) -> None:
    path = tmp_path / "a"

    def write(number: int) -> None:
        for _ in range(20):
            with written(path, is_durable=False) as file:
                for _ in range(100):
                    file.write(b"%d" % number * 100)

    writers = [threading.Thread(target=write, args=(number,)) for number in range(4)]
    for each in writers:
        each.start()
    for each in writers:
        each.join()
    data = path.read_bytes()
    assert (len(data), len(set(data))) == (10_000, 1)
    assert list(tmp_path.iterdir()) == [path]


def test_what_is_read_again_when_it_changes(tmp_path: Path) -> None:
    path, now = tmp_path / "a", [0.0]
    path.write_text("1")
    file = Watched((path,), lambda: int(path.read_text()), clock=lambda: now[0])
    path.write_text("22")
    assert (file.look(), file.value) == (False, 1)  # it was looked at less than a second ago
    now[0] = 1.0
    assert (file.look(), file.value, file.version) == (True, 22, 2)
    # When it is no good any more, expect that to be told once, and what was good to stay
    path.write_text("none")
    now[0] = 2.0
    with pytest.raises(ValueError, match="invalid literal"):
        file.look()
    now[0] = 3.0
    assert (file.look(), file.value) == (False, 22)
    file.forget()
    now[0] = 4.0
    with pytest.raises(ValueError, match="invalid literal"):
        file.look()
