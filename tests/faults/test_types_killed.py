"""A delegate with a type repository is killed, and started again; another one wants its folder meanwhile."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from jbi_pubsub import PublisherAdapterLight
from jbi_pubsub.cli.app import run
from jbi_pubsub.codegen.bundle import read_bundle
from jbi_pubsub.codegen.repository import TypeRepository
from jbi_pubsub.codegen.types.registry import open_registry
from jbi_pubsub.core.descriptors import Key
from jbi_pubsub.core.errors import StorageError
from jbi_pubsub.core.info_object import TypeName

pytestmark = pytest.mark.processes


def test_types_outlive_the_delegate(
    federation: Any, start: Callable[..., Any], figures: Any, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    # Given a delegate with a repository, and a type that was added over the network
    at = ("--set", f"lookup.locators={federation.lookups[0].address}")
    words = (*at, "pad", "alpha", "rome", "--types", str(tmp_path / "types"), "--json")
    pad = start(*words)
    address = pad.fact()["address"]
    assert run(["types", "add", str(figures.schema), "--at", address]) == 0
    # When another delegate is started on its folder; Expect a line that says whose it is
    other = start(*words)
    assert other.wait() == 1
    assert f"in use by process {pad.pid}" in other.stderr()
    assert "Traceback" not in other.stderr()
    # When it is killed and started again; Expect the type to be there, to publish by its name
    pad.end(kill=True)
    pad = start(*words)
    pad.fact()
    locators = msgspec.structs.replace(federation.config.lookup, locators=(federation.lookups[0].address,))
    with PublisherAdapterLight(msgspec.structs.replace(federation.config, lookup=locators)) as light:
        delegate = light.connect_to_delegate("alpha", "rome")
        registration = light.register_publisher(
            delegate, type_name="mil.af.rl.jbi.Intel_Imagery", invariants=figures.figure_1
        )
        light.publish(registration, figures.figure_1)
        light.flush()
    assert pad.end() == 0
    assert "type mil.af.rl.jbi.Intel_Imagery 1.0" in capfd.readouterr().out


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 256 KiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    if os.geteuid() != 0 or shutil.which("mount") is None:
        pytest.skip("a file system of its own needs root")
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=256k", "none", str(folder)], capture_output=True, text=True, check=False
    )
    if mounted.returncode:
        pytest.skip(f"no file system of its own: {mounted.stderr}")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_a_disk_that_is_full(small_disk: Path, figures: Any) -> None:
    # Given a repository with a type, on a disk that is filled up
    registry = open_registry(small_disk / "types")
    types = TypeRepository(registry=registry)
    first = read_bundle(figures.schema)
    types.add(first, by="anna")
    with (small_disk / "fill").open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while file.write(bytes(1000)):
            pass
    assert shutil.disk_usage(small_disk).free == 0
    # When types are added and properties set; Expect errors that say what to do, and what was there to be there
    key: Key = ("type", TypeName("mil.af.rl.jbi.Intel_Imagery"))
    other = read_bundle(figures.schema.read_bytes() + b"<!-- of other bytes -->", version="2")
    for change in (lambda: types.add(other, by="anna"), lambda: registry.set_property(key, "a", bytes(50_000), "anna")):
        with pytest.raises(StorageError) as refused:
            change()
        assert refused.value.hint
    assert registry.faults() == ()
    assert [d.type for d in registry.all("type")] == [key[1]]
    assert registry.properties(key) == ()
    # and all to go on when there is room
    (small_disk / "fill").unlink()
    types.add(other, by="anna")
    registry.set_property(key, "a", bytes(50_000), "anna")
    registry.close()
    again = open_registry(small_disk / "types")
    assert len(again.all("type")) == 2
    assert again.faults() == ()
    again.close()
