"""Objects that are written to files."""

from __future__ import annotations

from pathlib import Path

import pytest

from jbi_pubsub.cli.clients import write_object
from jbi_pubsub.core.info_object import InfoObject, Platform, TypeName


@pytest.mark.parametrize(
    ("object_id", "name"),
    [("r-1.a_0", "r-1.a_0"), ("../x", ".._x"), ("/etc/x", "_etc_x"), ("a\0\n", "a__"), ("x" * 300, "x" * 200)],
)
def test_an_object_is_written_into_the_folder_whatever_its_id(tmp_path: Path, object_id: str, name: str) -> None:
    folder = tmp_path / "out"
    write_object(folder, InfoObject(object_id, TypeName("t"), b"<a/>", b"p", Platform(1.0, "r", 1, 4, 1)))
    assert {each.name for each in folder.iterdir()} == {f"{name}.metadata.xml", f"{name}.payload"}
    assert [each.name for each in tmp_path.iterdir()] == ["out"]
