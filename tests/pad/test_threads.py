"""Which threads an idle delegate has."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from jbi_pubsub.core.config import ArchiveSection, MetricsSection, PadSection, PolicySection, QosSection

pytestmark = pytest.mark.processes

SCRIPT = """
import sys, threading, time
import msgspec
from jbi_pubsub import Config
from jbi_pubsub.codegen.repository import TypeRepository
from jbi_pubsub.pad.server.server import DisseminationServer

server = DisseminationServer(
    msgspec.json.decode(sys.argv[1], type=Config), TypeRepository(), characteristics=("alpha", "rome")
)
server.start()
until, names = time.monotonic() + 60.0, []
while len(names) != int(sys.argv[2]) and time.monotonic() < until:
    time.sleep(0.1)  # who looks for namesakes, or answers the lookup service, ends soon
    names = sorted(thread.name for thread in threading.enumerate())
print(*names)
server.stop(0.0)
print(*(thread.name for thread in threading.enumerate()))
"""

PLAIN = ["MainThread", "deliver", "pad-alpha-rome-accept", "pad-alpha-rome-events", "pad-alpha-rome-registrar"]
POLICY = '[[policy]]\nname = "all"\nimportance = 3\n'


@pytest.mark.parametrize("all_on", [False, True])
def test_an_idle_delegate_has_few_threads(federation: Any, tmp_path: Path, *, all_on: bool) -> None:
    # Given a delegate alone in its process, with all that there is, or nothing beside
    config, expected = federation.config, [*PLAIN, "ticker", "ticker-slow"]
    if all_on:
        policy = tmp_path / "policy.toml"
        policy.write_text(POLICY)
        config = msgspec.structs.replace(
            config,
            pad=PadSection(port=0, state=str(tmp_path / "state")),
            archive=ArchiveSection(folder=str(tmp_path / "archive")),
            policy=PolicySection(file=str(policy), audit=str(tmp_path / "audit"), state=str(tmp_path / "policies")),
            qos=QosSection(mode="on", publish_measurements=True),
            metrics=MetricsSection(port=0),
        )
        expected += ["archive-worker", "metrics"]
    # When it has joined its lookup service, and nobody asks anything of it
    command = [sys.executable, "-c", SCRIPT, msgspec.json.encode(config).decode(), str(len(expected))]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=90, check=True)
    idle, left = done.stdout.splitlines()
    # Expect one for each that listens, sends or may wait for long, and two for all that is done from time to time
    names = [name.rpartition("-")[0] if name.startswith(("deliver-", "metrics-")) else name for name in idle.split()]
    assert sorted(names) == sorted(expected)
    assert len(names) <= 9, "the main one, and 8"
    # Expect none of them to be left behind
    assert left == "MainThread"
