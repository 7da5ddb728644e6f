"""An object of 1 GiB by way of real processes."""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import Federation, eventually

GIB = 1 << 30
MOST = 200 << 20
"""Of memory that each process may ever have had."""


def peak(pid: int) -> int:
    """The most memory, in bytes, that a process has had; 0 of one that has just ended."""
    found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    return 1024 * int(found[1]) if found is not None else 0


def children(pid: int) -> list[int]:
    """The processes that one has started."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return [int(child) for task in tasks for child in (task / "children").read_text().split()]


def digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@pytest.mark.row("G-150")
@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.timeout(900)
def test_an_object_of_1_gib_takes_nobody_more_than_200_mib(federation: Federation, tmp_path: Path) -> None:
    # Given a delegate with an archive, a subscriber that writes to files, and a file of 1 GiB, in real processes
    config = tmp_path / "jbi.toml"
    (locator,) = federation.config.lookup.locators
    config.write_text(
        f'[lookup]\ngroups = ["{federation.config.lookup.groups[0]}"]\nlocators = ["{locator}"]\nmulticast = false\n'
        f'[link]\nspool_folder = "{tmp_path}/spool"\n'
    )
    (tmp_path / "metadata.xml").write_text("<report/>")
    payload = tmp_path / "payload"
    with payload.open("wb") as file:
        for _ in range(64):
            file.write(os.urandom(GIB // 64))
    environment = {**os.environ, "JBI_CONFIG": str(config)}

    def jbi(*arguments: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen(  # our own
            [sys.executable, "-m", "jbi_pubsub", *arguments], env=environment, cwd=tmp_path, stdout=subprocess.DEVNULL
        )

    def watch(who: str, folder: str) -> None:
        """Until the payload lies in that folder of a subscriber."""

        def is_there() -> bool:
            for name, process in running.items():
                if (code := process.poll()) is None:
                    peaks[name] = max(peaks.get(name, 0), peak(process.pid))
                assert not code, f"{name} has ended: {code}"
            for child in children(running["delegate"].pid):
                peaks["archive"] = max(peaks.get("archive", 0), peak(child))
            return sum(path.stat().st_size for path in (tmp_path / folder).glob("*.payload")) == GIB

        eventually(is_there, 300.0, what=lambda: f"{who}: {peaks}")

    peaks: dict[str, int] = {}
    running: dict[str, subprocess.Popen[bytes]] = {}
    try:
        running["delegate"] = jbi("pad", "alpha", "rome", "--archive", "archive")
        running["subscriber"] = jbi("subscribe", "--type", "report", "--out", "live", "--timeout", "300")
        arguments = ("--untyped", "--type", "report", "--metadata", "metadata.xml", "--payload", "payload")
        running["publisher"] = jbi(
            "publish", "--delegate", "alpha", "rome", *arguments, "--subscribers", "1", "--persist"
        )
        watch("live", "live")
        assert running["publisher"].wait(60) == 0
        # When another comes later, and asks for the past
        running["later"] = jbi("subscribe", "--type", "report", "--start", "2h", "--out", "past", "--timeout", "300")
        watch("past", "past")
    finally:
        for process in running.values():
            process.terminate()
        for process in running.values():
            process.wait(60.0)
    # Expect it whole, and nobody to have had much of it in memory
    for folder in ("live", "past"):
        (got,) = (tmp_path / folder).glob("*.payload")
        assert digest(got) == digest(payload)
    assert set(peaks) == {"delegate", "archive", "publisher", "subscriber", "later"}
    assert {who: most for who, most in peaks.items() if most > MOST} == {}
    assert list((tmp_path / "spool").iterdir()) == []
