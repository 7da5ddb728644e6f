"""The configuration's file: where it is, and how it is read; and a user's folders that are gone, can't be searched, or
are nobody's."""

from __future__ import annotations

import pwd
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import pytest

from jbi_pubsub.core.config import ClientSection, Config, default_file, effective, load
from jbi_pubsub.core.errors import ConfigurationError
from jbi_pubsub.core.toml import TomlError, read
from jbi_pubsub.node.identity import default_folder
from jbi_pubsub.node.reaching import near_node
from jbi_pubsub.subscriber.owner import secret_of

UNSEARCHABLE = "/" + "x" * 300
"""A folder where each look is an error that is not "no such file", for any user."""


@pytest.fixture
def nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """A user without a home, as a container has one that is given a number for a user."""

    def unknown(_number: int) -> NoReturn:
        raise KeyError

    for name in ("HOME", "XDG_STATE_HOME", "XDG_CACHE_HOME", "JBI_CONFIG"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(pwd, "getpwuid", unknown)


@pytest.fixture
def gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A current folder that was deleted."""
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()


@pytest.fixture
def home_unsearchable(monkeypatch: pytest.MonkeyPatch) -> None:
    """A home that this user can't look into."""
    monkeypatch.setenv("HOME", UNSEARCHABLE)


@pytest.mark.parametrize("place", ["gone", "nobody", "home_unsearchable"])
def test_where_there_can_be_no_file_there_is_none(
    place: str, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given a file that is named; When the folders of others can't be looked into, expect the one that is named
    request.getfixturevalue(place)
    assert default_file({"JBI_CONFIG": "/etc/jbi.toml"}) == Path("/etc/jbi.toml")
    # And without one the defaults, for a program as for a command
    if place == "gone":
        monkeypatch.setenv("HOME", str(tmp_path))
    else:
        monkeypatch.chdir(tmp_path)
    assert default_file({}) is None
    monkeypatch.delenv("JBI_CONFIG", raising=False)
    assert effective().node.folder == ""


def test_a_current_folder_that_is_gone_is_no_reason_to_miss_the_file_at_home(
    gone: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    file = tmp_path / ".config" / "jbi" / "jbi.toml"
    file.parent.mkdir(parents=True)
    file.touch()
    assert default_file({}) == file


def test_who_has_no_home_is_told_where_one_is_needed(nobody: None) -> None:
    # Given a user without a home; Expect no cache, no node to be near, and one line where something has to be kept
    assert Config().type_cache() is None
    assert near_node(Config()) is None
    needs: tuple[Callable[[], object], ...] = (default_folder, lambda: secret_of("fusion-1", ClientSection()))
    for need in needs:
        with pytest.raises(ConfigurationError, match="no home folder"):
            need()


@pytest.mark.processes
def test_a_configuration_is_utf_8_in_any_locale(tmp_path: Path) -> None:
    # Given a file as an editor of Windows saves it, with its mark, and a process in the C locale; Expect the name in it
    file = tmp_path / "jbi.toml"
    file.write_bytes('[lookup]\ngroups = ["zürich"]\n'.encode("utf-8-sig"))
    script = "from jbi_pubsub.core.config import effective; print(ascii(effective().lookup.groups))"
    environment = {"JBI_CONFIG": str(file), "LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}
    said = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, timeout=60.0, check=False
    )
    assert said.stdout == "('z\\xfcrich',)\n"


def test_a_policy_file_may_begin_with_a_byte_order_mark(tmp_path: Path) -> None:
    # Given such a file with a fault behind it; Expect it read, and the fault where an editor shows it
    file = tmp_path / "policy.toml"
    file.write_bytes('name = "zürich"\n'.encode("utf-8-sig"))
    assert read(file) == {"name": "zürich"}
    file.write_bytes(b'\xef\xbb\xbfname = "z\xfcrich"\n')
    with pytest.raises(TomlError, match="not UTF-8") as caught:
        read(file)
    assert caught.value.place == (1, 10)


@pytest.mark.parametrize(
    ("content", "hint"), [(None, "Name one that can be read"), ("[lookup]\nport = x\n", "It is TOML in UTF-8")]
)
def test_the_hint_is_of_what_is_wrong_with_the_file(content: str | None, hint: str, tmp_path: Path) -> None:
    file = tmp_path / "jbi.toml"
    if content is not None:
        file.write_text(content)
    with pytest.raises(ConfigurationError) as caught:
        load(file=file, environment={})
    assert caught.value.hint.startswith(hint)
