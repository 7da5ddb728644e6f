"""Commands whose stdout is closed, or whose reader has gone."""

from __future__ import annotations

import http.client
import re
import subprocess
import sys
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

import pytest

pytestmark = pytest.mark.processes


def _entered(url: str) -> int:
    """Status of the answer to a browser that enters by that address."""
    found = urlsplit(url)
    line = http.client.HTTPConnection(found.netloc, timeout=30.0)
    try:
        line.request("GET", f"{found.path}?{found.query}")
        return line.getresponse().status
    finally:
        line.close()


def test_a_console_whose_first_line_alone_is_read_lets_the_next_browser_in(
    start: Callable[..., Any], world: str, eventually: Callable[..., Any]
) -> None:
    # Given a console that a script has started, which reads one line of it
    process = start("--no-multicast", "--group", world, "web", "--port", "0", "--json")
    first = process.fact()["url"]
    process.stdout.close()
    # When a browser enters, expect it in, and the address of the next one in the log
    assert _entered(first) == 200
    eventually(lambda: "another browser: " in process.stderr())
    [second] = re.findall(r"another browser: (\S+)", process.stderr())
    # And that one in, with an address for a third; it ends in order
    assert _entered(second) == 200
    eventually(lambda: len(re.findall("WARNING jbi_pubsub.*another browser: ", process.stderr())) == 2)
    assert process.end() == 0


@pytest.mark.parametrize("arguments", [("config",), ("lookup", "--port", "0")], ids=lambda each: each[0])
def test_with_stdout_closed_a_command_does_its_work(arguments: tuple[str, ...], world: str) -> None:
    # Given a shell's `>&-`; Expect a table to end well, a server to serve until it is stopped, and no traceback
    words = [sys.executable, "-m", "jbi_pubsub", "--no-multicast", "--group", world, "-v", *arguments]
    with subprocess.Popen(["sh", "-c", 'exec "$@" >&-', "sh", *words], stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        if arguments[0] == "lookup":
            assert "lookup service" in process.stderr.readline()
            process.terminate()
        assert "Traceback" not in process.stderr.read()
        assert process.wait(60.0) == 0


def test_a_full_disk_is_an_error_of_one_line() -> None:
    # Given a table that is written to a disk without room; Expect that said, and no more, by exit code 1
    with open("/dev/full", "w") as full:  # noqa: PTH123  # a device
        ended = subprocess.run(
            [sys.executable, "-m", "jbi_pubsub", "config"], stdout=full, stderr=subprocess.PIPE, text=True,
            timeout=60.0, check=False,
        )  # fmt: skip
    assert (ended.returncode, ended.stderr.count("\n")) == (1, 1)
    assert "No space left on device" in ended.stderr
