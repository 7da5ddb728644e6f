"""What was made of schemas, on disk: whose it is, that it is whole, and that it is made once."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from jbi_pubsub import Config
from jbi_pubsub.codegen import folder as module
from jbi_pubsub.codegen import opening
from jbi_pubsub.codegen.folder import SchemaFolder
from jbi_pubsub.core.config import TypesSection
from jbi_pubsub.core.errors import ChildError

SCHEMA = b'<xs:schema xmlns:xs="http://www.w3.org/2001/XMLSchema"><xs:element name="r" type="xs:int"/></xs:schema>'


def good(_data: bytes) -> bool:
    return True


def never() -> bytes:
    raise AssertionError("it is there already")


def only(path: Path) -> Path:
    [found] = path.iterdir()
    return found


def test_what_was_made_is_found_by_who_comes_later_and_is_for_the_user_alone(tmp_path: Path) -> None:
    # Given what one has made, in a folder that was not there
    path = tmp_path / "a" / "b"
    assert SchemaFolder(path).find("k", lambda: b"made", good) == b"made"
    # Expect that another one makes nothing, and that nobody else may look
    assert SchemaFolder(path).find("k", never, good) == b"made"
    assert path.stat().st_mode & 0o777 == 0o700
    assert only(path).stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("damage", ["cut", "turned", "empty", "another", "long", "link", "pipe", "of others"])
def test_what_is_not_whole_is_made_anew(tmp_path: Path, damage: str, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, aside = SchemaFolder(tmp_path / "f"), tmp_path / "aside"
    folder.find("k", lambda: b"made of it", good)
    path = only(tmp_path / "f")
    whole = path.read_bytes()
    # When its file is damaged, or is none
    if damage == "another":
        SchemaFolder(aside).find("another key", lambda: b"of another", good)
        path.write_bytes(only(aside).read_bytes())
    elif damage == "link":
        path.rename(aside)
        path.symlink_to(aside)
    elif damage == "pipe":
        path.unlink()
        os.mkfifo(path)
    elif damage == "of others":
        path.chmod(0o666)
    elif damage == "long":
        monkeypatch.setattr(module, "MAX_FILE_BYTES", len(whole) - 1)
    else:
        path.write_bytes({"cut": whole[:-1], "turned": whole[:-1] + b"T", "empty": b""}[damage])
    # Expect that it is made anew, once
    assert folder.find("k", lambda: b"made again", good) == b"made again"
    if damage != "long":
        assert folder.find("k", never, good) == b"made again"
        assert only(tmp_path / "f").is_file()
        assert not path.is_symlink()


def test_what_its_reader_can_not_use_is_made_anew(tmp_path: Path) -> None:
    folder = SchemaFolder(tmp_path)
    folder.find("k", lambda: b"old", good)
    assert folder.find("k", lambda: b"new", lambda data: data == b"new") == b"new"


def test_a_folder_that_others_can_write_to_is_left_alone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = SchemaFolder(tmp_path)
    folder.find("k", lambda: b"made", good)
    tmp_path.chmod(0o770)
    # Expect that it is made each time, and said why
    assert folder.find("k", lambda: b"again", good) == b"again"
    assert folder.find("k", lambda: b"and again", good) == b"and again"
    assert "other users may write there" in caplog.text
    # Until it is nobody else's any more
    tmp_path.chmod(0o700)
    assert folder.find("k", never, good) == b"made"


def test_a_folder_that_can_only_be_read_gives_what_it_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = SchemaFolder(tmp_path)
    folder.find("k", lambda: b"made", good)

    def refuse(*_arguments: object, **_options: object) -> None:
        raise PermissionError("read-only file system")

    monkeypatch.setattr(module, "written", refuse)  # root, as who the tests may run, can write everywhere
    assert folder.find("k", never, good) == b"made"
    assert folder.find("other", lambda: b"not kept", good) == b"not kept"
    assert len(list(tmp_path.iterdir())) == 1


def test_there_is_no_folder_where_a_file_is(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    assert SchemaFolder(tmp_path / "file" / "f").find("k", lambda: b"made", good) == b"made"


def test_an_error_of_making_is_raised_and_nothing_is_kept(tmp_path: Path) -> None:
    calls = []

    def fail() -> bytes:
        calls.append(1)
        raise ChildError("ended")

    with pytest.raises(ChildError):
        SchemaFolder(tmp_path).find("k", fail, good)
    assert calls == [1]
    assert list(tmp_path.iterdir()) == []


def test_it_is_bounded_and_the_oldest_go_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_FILES", 3)
    folder = SchemaFolder(tmp_path)
    for number in range(5):
        folder.find(f"k{number}", lambda: bytes(100), good)
        os.utime(tmp_path / f"k{number}.type", (number, number))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["k2.type", "k3.type", "k4.type"]
    # By bytes as well, and what a dead process has left counts
    monkeypatch.setattr(module, "MAX_BYTES", 300)
    (tmp_path / ".k9.type.tmp").write_bytes(bytes(50))
    os.utime(tmp_path / ".k9.type.tmp", (1, 1))
    folder.find("k5", lambda: bytes(100), good)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["k4.type", "k5.type"]


def test_of_several_that_come_at_once_one_makes_it(tmp_path: Path) -> None:
    makes, began, goes = [], threading.Event(), threading.Event()

    def make() -> bytes:
        makes.append(1)
        began.set()
        assert goes.wait(60)
        return b"made"

    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(SchemaFolder(tmp_path).find, "k", make, good)
        assert began.wait(60)
        second = pool.submit(SchemaFolder(tmp_path).find, "k", make, good)
        other = SchemaFolder(tmp_path).find("other", lambda: b"waits for nobody", good)
        goes.set()
        assert (first.result(60), second.result(60), other) == (b"made", b"made", b"waits for nobody")
    assert makes == [1]


PROCESS = """
import sys
from pathlib import Path
from jbi_pubsub.codegen.bundle import read_bundle
from jbi_pubsub.codegen.opening import Opener
from jbi_pubsub.core.child import Children
class Counted(Children):
    def run(self, *arguments, **options):
        print("child", flush=True)
        return super().run(*arguments, **options)
print(Opener(children=Counted()).open(read_bundle(sys.argv[2].encode(), root="r"), cache_dir=Path(sys.argv[1])).digest)
"""


@pytest.mark.processes
def test_two_processes_with_one_schema_have_one_child(tmp_path: Path) -> None:
    command = [sys.executable, "-c", PROCESS, str(tmp_path), SCHEMA.decode()]
    both = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    said = [line for process in both for line in process.communicate(timeout=60)[0].splitlines()]
    assert [process.returncode for process in both] == [0, 0]
    assert said.count("child") == 1
    assert len(set(said)) == 2


def test_what_another_release_made_is_not_found(monkeypatch: pytest.MonkeyPatch) -> None:
    here = opening._key(SCHEMA)
    opening._code.cache_clear()
    assert opening._key(SCHEMA) == here
    with monkeypatch.context() as patch:
        opening._code.cache_clear()
        patch.setattr(Path, "read_bytes", lambda path: path.name.encode())
        assert opening._key(SCHEMA) != here
    with monkeypatch.context() as patch:
        opening._code.cache_clear()
        patch.setattr(opening.etree, "LIBXML_VERSION", (2, 99, 0))
        assert opening._key(SCHEMA) != here
    opening._code.cache_clear()


def test_where_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert Config().type_cache() == tmp_path / ".cache" / "jbi-pubsub" / "types"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative: not valid")
    assert Config().type_cache() == tmp_path / ".cache" / "jbi-pubsub" / "types"
    monkeypatch.setenv("XDG_CACHE_HOME", "/x")
    assert Config().type_cache() == Path("/x/jbi-pubsub/types")
    assert Config(types=TypesSection(cache="/y")).type_cache() == Path("/y")
    assert Config(types=TypesSection(cache="none")).type_cache() is None
