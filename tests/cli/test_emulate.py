"""`jbi emulate`: who is where, what passes, what changes, and faults of the file in a line."""

from __future__ import annotations

import json
import signal
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.processes


@pytest.fixture
def ports() -> list[int]:
    """Two pairs of free ports of UDP, of the emulator and of nodes."""
    socks = [socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(4)]
    for sock in socks:
        sock.bind(("127.0.0.1", 0))
    found = [sock.getsockname()[1] for sock in socks]
    for sock in socks:
        sock.close()
    return found


@pytest.fixture
def file(ports: list[int], tmp_path: Path) -> Path:
    """A pair of nodes, of which the second one loses all from a moment on."""
    path = tmp_path / "pair.toml"
    path.write_text(
        "seed = 5\n[segment.pair.member]\n"
        f'alpha = {{ at = "127.0.0.1:{ports[0]}", node = "127.0.0.1:{ports[1]}" }}\n'
        f'bravo = {{ at = "127.0.0.1:{ports[2]}", node = "127.0.0.1:{ports[3]}", loss = 0.25 }}\n'
        '[[change]]\nat = 0.2\nsegment = "pair"\nmember = "bravo"\nloss = 1\n'
    )
    return path


def test_it_passes_datagrams_on_until_it_is_ended(start: Callable[..., Any], file: Path, ports: list[int]) -> None:
    # Given an emulator that runs, of which programs read each line
    process = start("emulate", str(file), "--json", "--every", "0.2")
    assert process.fact() == {"ready": "emulation", "segments": ["pair"], "seed": 5}
    # When a node says something to its peer, expect the other one to hear it
    one, other = (socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(2))
    with one, other:
        one.bind(("127.0.0.1", ports[1]))
        other.bind(("127.0.0.1", ports[3]))
        one.settimeout(20.0)
        other.sendto(b"to alpha", ("127.0.0.1", ports[2]))
        assert one.recvfrom(100) == (b"to alpha", ("127.0.0.1", ports[0]))
    # And the change to be told, and what has passed, until Ctrl-C
    told = [process.fact() for _ in range(3)]
    assert {"change": 0.2, "segment": "pair", "member": "bravo", "loss": 1.0} in told
    process.signal(signal.SIGINT)
    out, err = process.communicate()
    assert (process.returncode, err) == (0, "")
    last = json.loads(out.splitlines()[-1])
    assert (last["event"], last["segments"]["pair"]["delivered"]) == ("ended", 1)


def test_it_shows_who_is_where(said: Callable[..., Any], file: Path, ports: list[int]) -> None:
    answer = said("emulate", str(file), "--check", "--json")
    assert answer.code == 0
    alpha, bravo = json.loads(answer.out)
    assert alpha["network"] == f'peers = ["127.0.0.1:{ports[0]}"], port = {ports[1]}'
    assert (alpha["terms"], bravo["terms"]) == ("perfect", "loss 0.25")


def test_it_ends_by_itself_and_says_what_has_passed(start: Callable[..., Any], file: Path) -> None:
    process = start("emulate", str(file), "--seconds", "0.3", "--seed", "6")
    out, err = process.communicate()
    assert (process.returncode, err) == (0, "")
    lines = out.splitlines()
    assert lines[0] == "emulates pair with seed 6"
    assert lines[1].endswith("pair, bravo: loss 1")
    assert lines[-1].endswith("pair: 0 datagrams (0 B): 0 delivered")


def test_faults_are_a_line(said: Callable[..., Any], start: Callable[..., Any], file: Path, ports: list[int]) -> None:
    # Given a port that somebody has; and a file with a misspelt term
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as taken:
        taken.bind(("127.0.0.1", ports[0]))
        process = start("emulate", str(file), "--seconds", "0.1")
        out, err = process.communicate()
    assert (process.returncode, out) == (1, "")
    assert err.startswith(f"jbi: segment pair, member alpha: nobody can listen at 127.0.0.1:{ports[0]}")
    file.write_text(file.read_text().replace("loss = 0.25", "los = 0.25"))
    answer = said("emulate", str(file))
    assert answer.code == 2
    assert answer.err.startswith(f"jbi: topology {file}:4:")
    assert "Did you mean loss?" in answer.err
    assert len(answer.err.splitlines()) == 1
