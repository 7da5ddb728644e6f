"""A node starts with the state that an earlier version has left: docs/upgrade.md promises that.

`fixtures/state/node-2026-11-28.tar.xz` is the folder of a node of that day's version, from before the rooms were
divided anew. It was stopped with three images in its archive, an e-mail subscription, and three mails that no
server took. A change of a file's format adds a folder of the version before it, or docs/upgrade.md says that the file
is refused.
"""

from __future__ import annotations

import json
import sqlite3
import tarfile
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

FIXTURES = Path(__file__).parent.parent / "fixtures"
DATA = FIXTURES.parent.parent / "examples" / "data" / "intel_imagery"
TYPE = "mil.af.rl.jbi.Intel_Imagery"


@pytest.fixture(params=sorted((FIXTURES / "state").glob("node-*.tar.xz")), ids=lambda path: path.name.split(".")[0])
def left(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A node's folder, as if it had been stopped just now: leases go by the clock."""
    with tarfile.open(request.param) as packed:
        packed.extractall(tmp_path, filter="data")
    folder = tmp_path / "node"
    changes = {
        "subscriptions.db": "UPDATE mail SET ends = ? + 3600",
        "subscriptions.db.mails": "UPDATE letters SET queued = ?",
    }
    for file, change in changes.items():
        with closing(sqlite3.connect(folder / file)) as base, base:
            base.execute(change, (time.time(),))
    return folder


@pytest.mark.processes
def test_a_node_goes_on_with_the_state_of_the_version_before(
    left: Path, start: Callable[..., Any], tmp_path: Path, world: str
) -> None:
    # Given the folder of the older version; When a node of today starts with it
    flags = ("--no-multicast", "--group", world, "--set", "mail.port=1", "--set", "archive.reserve=0")
    before = json.loads((left / "identity.json").read_text())
    node = start(*flags, "node", "start", "--folder", str(left), "--port", "0", "--json")
    ready = node.fact()

    # Expect the same node, in a later epoch
    assert ready["id"] == before["id"]
    assert ready["epoch"] > before["epoch"]

    # the objects of its archive, with their payloads
    there = ("--no-multicast", "--group", world, "--locator", ready["lookup"])
    query = start(*there, "query", "--type", TYPE, "--out", str(tmp_path / "out"), "--json")
    found = [json.loads(line) for line in query.communicate(60.0)[0].splitlines()]
    assert [each["sequence"] for each in found] == [1, 2, 3]
    written = [path.read_bytes() for path in (tmp_path / "out").iterdir()]
    assert written.count((DATA / "image.png").read_bytes()) == 3

    # its subscription by e-mail, with the mails that wait
    [mail] = json.loads(start(*there, "subscriptions", "--json").communicate(60.0)[0])
    assert (mail["recipients"], mail["mail_waiting"]) == (["ops@example.org"], 3)

    # and its types
    assert TYPE in start(*there, "types", "list").communicate(60.0)[0]
    assert node.end() == 0
