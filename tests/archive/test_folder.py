"""An archive's folder is one process's, one user's, and nothing else's."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from jbi_pubsub.archive.folder import Folder, archive_of
from jbi_pubsub.archive.log import Log
from jbi_pubsub.core.errors import StorageError

HOLDER = """
import sys, time
from pathlib import Path
from jbi_pubsub.archive.folder import Folder
folder = Folder(Path(sys.argv[1]))
print("taken", flush=True)
time.sleep(100)
"""


def test_a_folder_is_made_for_its_owner_alone_and_keeps_its_id(tmp_path: Path) -> None:
    folder = Folder(tmp_path / "a" / "archive")
    assert (tmp_path / "a" / "archive").stat().st_mode & 0o777 == 0o700
    first = folder.archive
    folder.close()
    again = Folder(tmp_path / "a" / "archive")
    assert again.archive == first == archive_of(again.path)
    again.close()
    other = Folder(tmp_path / "b")
    assert other.archive != first
    other.close()


@pytest.mark.processes
def test_a_second_process_is_refused_with_the_number_of_the_first_and_may_when_it_has_died(tmp_path: Path) -> None:
    # Given a process that has the folder
    with subprocess.Popen([sys.executable, "-c", HOLDER, str(tmp_path)], stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"taken\n"
        # When another one wants it
        with pytest.raises(StorageError, match=f"in use by process {holder.pid}") as caught:
            Folder(tmp_path)
        # Expect it to be told who has it
        assert caught.value.facts["pid"] == holder.pid
        holder.kill()
        holder.wait()
    Folder(tmp_path).close()


def test_twice_in_one_process_is_refused_too(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    with pytest.raises(StorageError, match=f"in use by process {os.getpid()}"):
        Folder(tmp_path)
    folder.close()


def test_a_folder_of_something_else_is_left_alone(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    (tmp_path / "thesis.txt").write_text("mine")
    with pytest.raises(StorageError, match=r"not an archive's folder: there is 'thesis.txt'"):
        Folder(tmp_path)
    assert sorted(each.name for each in tmp_path.iterdir()) == ["thesis.txt"]
    assert tmp_path.stat().st_mode & 0o777 == 0o755
    file = tmp_path / "thesis.txt"
    with pytest.raises(StorageError, match="can't be used"):
        Folder(file)


@pytest.mark.skipif(os.geteuid() != 0, reason="gives a folder to another user, which root alone may")
def test_another_users_folder_is_refused_with_his_name(tmp_path: Path) -> None:
    os.chown(tmp_path, 1, 1)
    with pytest.raises(StorageError, match="belongs to user ") as caught:
        Folder(tmp_path)
    assert caught.value.facts["owner"] not in ("root", "")


def test_another_versions_folder_is_refused(tmp_path: Path) -> None:
    Folder(tmp_path).close()
    (tmp_path / "ARCHIVE").write_text("jbi-pubsub archive 2\nwhatever\n")
    with pytest.raises(StorageError, match="of another version: 'jbi-pubsub archive 2'"):
        Folder(tmp_path)


def test_a_lost_or_damaged_mark_is_made_anew_from_the_volumes(tmp_path: Path) -> None:
    # Given an archive with a volume
    folder = Folder(tmp_path)
    log = Log(tmp_path / "log", folder.archive, volume_bytes=4_096)
    log.append([(1, (b"x",))], 1.0)
    log.close()
    folder.close()
    for damage in (None, b"", b"\0" * 40, b"jbi-pubsub archive 1\nno id\n"):
        # When its mark is lost
        if damage is None:
            (tmp_path / "ARCHIVE").unlink()
        else:
            (tmp_path / "ARCHIVE").write_bytes(damage)
        # Expect the same id
        again = Folder(tmp_path)
        assert again.archive == folder.archive
        again.close()
    # without volumes nobody knows
    shutil.rmtree(tmp_path / "log")
    (tmp_path / "ARCHIVE").write_bytes(b"?")
    with pytest.raises(StorageError, match="damaged"):
        Folder(tmp_path)


@pytest.mark.parametrize(
    "name",
    ["ARCHIVE", "LOCK", "archive.db", "log", "log/00000000000000000001.log", "packs/00000000000000000001.pack",
     "index/index.duckdb"],
)  # fmt: skip
def test_a_pipe_in_the_place_of_a_file_is_told_and_waited_for_by_nobody(tmp_path: Path, name: str) -> None:
    pipe = tmp_path / "archive" / name
    pipe.parent.mkdir(parents=True)
    os.mkfifo(pipe)
    with pytest.raises(StorageError, match=f"{pipe} is neither a file nor a folder"):
        Folder(tmp_path / "archive")
