"""Links for tests: groups and ports that nobody else has, and what comes on a link."""

from __future__ import annotations

import ctypes
import itertools
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from jbi_pubsub.network.links.link import DatagramLink
from jbi_pubsub.network.links.waiting import LinkWaiter

_COUNT: Final = itertools.count()


def new_group() -> str:
    """An IPv4 group of this process alone."""
    return f"239.{100 + next(_COUNT) % 100}.{os.getpid() >> 8 & 255}.{os.getpid() & 255}"


def free_port(kind: socket.SocketKind = socket.SOCK_DGRAM, host: str = "127.0.0.1") -> int:
    """A port where nobody listens."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, kind) as sock:
        sock.bind((host, 0))
        return int(sock.getsockname()[1])


class Driven:
    """Links that are driven together, and what came on each."""

    def __init__(self, *links: DatagramLink) -> None:
        self.links = list(links)
        self.came: list[list[bytes]] = [[] for _ in links]
        self._waiter = LinkWaiter(self.links)

    def step(self, pause: float = 0.01) -> None:
        """Have come what comes within so many seconds."""
        for at, sock in self._waiter.ready(pause):
            self.came[at].extend(self.links[at].receive(sock))

    def until(self, good: Callable[[], Any], timeout: float = 30.0) -> None:
        """Go on until it is so."""
        end = time.monotonic() + timeout
        while not good():
            assert time.monotonic() < end, f"not within {timeout} s: {[each.status() for each in self.links]}"
            self.step()

    def send(self, at: int, datagrams: Sequence[bytes]) -> None:
        """Send all of them, however busy the link is."""
        left = list(datagrams)
        end = time.monotonic() + 30.0
        while left:
            del left[: self.links[at].send(left)]
            assert time.monotonic() < end
            if left:
                self.step()

    def close(self) -> None:
        for link in self.links:
            link.close()
        self._waiter.close()


@contextmanager
def driven(*links: DatagramLink) -> Iterator[Driven]:
    """They leave at the end."""
    made = Driven(*links)
    try:
        yield made
    finally:
        made.close()


class Spaces:
    """Two network namespaces with a veth pair between them, `link0` in both. `with` removes them."""

    def __init__(self) -> None:
        self.names = tuple(f"jbi-link-{side}-{os.getpid()}" for side in "ab")
        self._libc = ctypes.CDLL(None, use_errno=True)

    @staticmethod
    def missing() -> str:
        """Why there can be none here; "" if there can."""
        if sys.platform != "linux" or os.geteuid() != 0 or not shutil.which("ip") or not shutil.which("tc"):
            return "network namespaces need Linux, root, ip and tc (iproute2)"
        try:
            with Spaces():
                return ""
        except subprocess.CalledProcessError as exc:
            return f"{' '.join(exc.cmd)}: {exc.stderr.strip()}"

    def __enter__(self) -> Spaces:
        try:
            for name in self.names:
                run("ip", "netns", "add", name)
                run("ip", "-n", name, "link", "set", "lo", "up")
                run("ip", "netns", "exec", name, "sysctl", "-qw", "net.ipv6.conf.default.accept_dad=0")
            self.connect()
        except subprocess.CalledProcessError:
            self.__exit__()
            raise
        return self

    def __exit__(self, *why: object) -> None:
        for name in self.names:
            subprocess.run(["ip", "netns", "delete", name], capture_output=True, check=False)

    def connect(self) -> None:
        """Make the pair."""
        one, other = self.names
        run("ip", "-n", one, "link", "add", "link0", "type", "veth", "peer", "link0", "netns", other)
        for number, name in enumerate(self.names, 1):
            run("ip", "-n", name, "address", "add", f"10.78.0.{number}/24", "dev", "link0")
            run("ip", "-n", name, "link", "set", "link0", "up")

    @contextmanager
    def inside(self, at: int) -> Iterator[None]:
        """This thread is in one of them: sockets that it makes, interfaces that it sees."""
        with Path("/proc/thread-self/ns/net").open("rb") as before:
            self._enter(Path(f"/run/netns/{self.names[at]}"))
            try:
                yield
            finally:
                assert self._libc.setns(before.fileno(), 0) == 0

    def _enter(self, path: Path) -> None:
        with path.open("rb") as there:
            assert self._libc.setns(there.fileno(), 0) == 0, os.strerror(ctypes.get_errno())

    def ip(self, at: int, *words: str) -> None:
        """`ip` in one of them."""
        run("ip", "-n", self.names[at], *words)

    def shape(self, at: int, bits_per_second: int) -> None:
        """So many from there from now on."""
        tbf = ("tbf", "rate", f"{bits_per_second}bit", "burst", "1600", "limit", "1000000")
        run("tc", "-n", self.names[at], "qdisc", "replace", "dev", "link0", "root", *tbf)


def run(*command: str) -> str:
    """What it says. Raises CalledProcessError."""
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=30.0).stdout
