"""A federation as child processes on free ports of loopback: started, awaited, listened to, ended.

Each process says what it has to say in JSON lines on stdout (`say`): first that it is ready. It ends when its stdin
does, or, if it is a server, when it is terminated. What the user has configured for another federation is kept from all
of them.
"""

from __future__ import annotations

import atexit
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import msgspec

from jbi_pubsub import Config
from jbi_pubsub.core.config import LookupSection
from jbi_pubsub.core.errors import DemoError, JbiError
from jbi_pubsub.core.guard import guarded
from jbi_pubsub.core.values import from_json

PATIENCE: Final = 60.0
"""Seconds for something that is waited for; a normal run needs a few, one beside others that keep every core busy needs
several times that."""

WAITING_MOST: Final = 10_000
"""Facts that nobody has asked for yet; then who has more to say waits."""

STOP_SECONDS: Final = 10.0
"""For the processes of one kind to end by themselves."""


class Federation:
    """Processes and what they say. `with` ends them: applications first, then delegates, lookup services last.

    One thread uses it, but for `tell`. `config` is what an application of the federation is opened with: its lookup
    service, of the same groups, is the only one; `patience` is how long `until` waits, in seconds.
    """

    def __init__(self, config: Config | None = None, *, patience: float = PATIENCE) -> None:
        given = config or Config()
        self.config = given
        self._found_at()
        self.ready: dict[str, dict[str, Any]] = {}
        """Facts that each process has told when it was ready, by its name."""
        self._patience = patience
        self._servers: list[list[str]] = [[], []]
        self._processes: dict[str, subprocess.Popen[str]] = {}
        self._listeners: list[threading.Thread] = []
        self._news: queue.Queue[dict[str, Any]] = queue.Queue(WAITING_MOST)
        self._stopping = False
        atexit.register(self.stop)  # whoever uses it without `with`, as a notebook does, may end before it is stopped

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None) -> None:
        self.stop()

    @property
    def locator(self) -> str:
        """The address of the lookup service, "" before it is ready."""
        return next(iter(self.config.lookup.locators), "")

    def lookup(self, port: int = 0) -> Self:
        """Start a lookup service, and wait until it is ready. Raises DemoError."""
        self._start_server(0, "lookup", "lookup", "--port", str(port))
        self.until(lambda: "lookup" in self.ready, "the lookup service")
        self._found_at(self.ready["lookup"]["address"])
        return self

    def start_delegate(self, name: str, location: str, *flags: str) -> None:
        """Start a delegate, `ready` under its name; `flags` for `jbi pad`."""
        self._start_server(1, name, "pad", name, location, *flags)

    def delegate(self, name: str, location: str) -> Self:
        """Start a delegate, and wait until it is ready. Raises DemoError."""
        self.start_delegate(name, location)
        self.until(lambda: name in self.ready, f"the delegate {name}")
        return self

    def server(self, name: str, *arguments: str) -> dict[str, Any]:
        """Start a server of any kind, `arguments` for `jbi`, and wait until it is ready: what it says then. Raises
        DemoError."""
        self._start_server(1, name, *arguments)
        self.until(lambda: name in self.ready, name)
        return self.ready[name]

    def node(self, name: str, *flags: str, own: Sequence[str] = ()) -> dict[str, Any]:
        """Start a node, and wait until it is ready: what it says then; `flags` for `jbi node start`, `own` for `jbi`.
        Its lookup service is the federation's. Raises DemoError."""
        self.ready.pop(name, None)
        words = flags if "--port" in flags else (*flags, "--port", "0")
        self._start_server(1, name, *own, "node", "start", *words)
        self.until(lambda: name in self.ready, f"the node {name}")
        self._found_at(self.ready[name]["lookup"])
        return self.ready[name]

    def end(self, name: str) -> None:
        """End a server in order, and wait until it has. Raises DemoError."""
        process = self._processes.pop(name)
        _ask_to_end(process, terminate=True)
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired as exc:
            process.kill()
            raise DemoError(f"{name} has not ended within {STOP_SECONDS:g} s") from exc

    def pid(self, name: str) -> int:
        """Process id of one of them."""
        return self._processes[name].pid

    def start(self, name: str, module: str, *arguments: str) -> None:
        """Start an application: a module of the examples whose `main` is `application(...)`."""
        config = msgspec.json.encode(self.config).decode()
        self._start(name, ["-m", f"jbi_pubsub.examples.{module}", *arguments, config])

    def word(self, name: str, word: str) -> None:
        """A line for an application. Raises DemoError if it has ended."""
        stdin = self._processes[name].stdin
        assert stdin is not None
        try:
            stdin.write(f"{word}\n")
            stdin.flush()
        except OSError as exc:
            raise DemoError(f"{name} has ended: {exc.strerror or exc}") from exc

    def tell(self, **facts: Any) -> None:
        """Something that this process has to say itself, from any of its threads."""
        while not self._stopping:
            with suppress(queue.Full):
                self._news.put(facts, timeout=0.5)
                return

    def news(self, seconds: float) -> dict[str, Any] | None:
        """News of one of the processes, `process` is its name; None when none has for so long. Raises DemoError
        when one has failed."""
        try:
            facts = self._news.get(timeout=seconds)
        except queue.Empty:
            return None
        if "ended" in facts:
            raise DemoError(f"{facts['ended']} has ended: {facts['why'] or 'no message'}")
        if "ready" in facts:
            self.ready[facts["process"]] = facts
        return facts

    def until(
        self, good: Callable[[], object], what: str, heard: Callable[[dict[str, Any]], object] | None = None
    ) -> None:
        """Wait until it is `good`, and give away meanwhile what is `heard`. Raises DemoError when it takes too long."""
        deadline = time.monotonic() + self._patience
        while not good():
            if time.monotonic() > deadline:
                raise DemoError(
                    f"{what} took longer than {self._patience:g} s", hint="Try `jbi -v demo`; is the machine busy?"
                )
            facts = self.news(0.05)
            if facts is not None and heard is not None:
                heard(facts)

    def asked(self, names: Collection[str], word: str, key: str, what: str) -> dict[str, dict[str, Any]]:
        """A word for each of these applications; the facts with `key` that each says then, by its name. Raises
        DemoError, which calls them `what`."""
        said: dict[str, dict[str, Any]] = {}

        def heard(facts: dict[str, Any]) -> None:
            if key in facts:
                said[facts["process"]] = facts

        for name in names:
            self.word(name, word)
        self.until(lambda: len(said) == len(names), what, heard)
        return said

    def stop(self) -> None:
        """End all processes, those that do not within some seconds by force; an interrupt meanwhile ends all of them by
        force. Safe to call twice."""
        self._stopping = True
        try:
            self._end_in_order()
        except BaseException:  # Ctrl-C once more
            for process in self._processes.values():
                process.kill()
                _ask_to_end(process, terminate=False)
            raise
        finally:
            atexit.unregister(self.stop)
        for listener in self._listeners:
            listener.join(STOP_SECONDS)

    def _end_in_order(self) -> None:
        servers = [name for kind in self._servers for name in kind]
        applications = [name for name in self._processes if name not in servers]
        for kind in (applications, *reversed(self._servers)):
            ending = {name: self._processes[name] for name in kind if name in self._processes}
            for process in ending.values():
                _ask_to_end(process, terminate=kind is not applications)
            deadline = time.monotonic() + STOP_SECONDS
            for name, process in ending.items():
                try:
                    process.wait(max(0.0, deadline - time.monotonic()))
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()
                del self._processes[name]

    def _found_at(self, *locators: str) -> None:
        section = LookupSection(locators=locators, multicast=False, groups=self.config.lookup.groups)
        self.config = msgspec.structs.replace(self.config, lookup=section)

    def _start_server(self, kind: int, name: str, *arguments: str) -> None:
        mail = self.config.mail
        flags = ["--no-multicast", "--set", f"mail.port={mail.port}", "--set", f"mail.sender={mail.sender}"]
        flags += ["--set", f"archive.reserve={self.config.archive.reserve}"]
        flags += [part for group in self.config.lookup.groups for part in ("--group", group)]
        flags += [part for locator in self.config.lookup.locators for part in ("--locator", locator)]
        self._servers[kind].append(name)
        self._start(name, ["-m", "jbi_pubsub", *flags, *arguments, "--json"])

    def _start(self, name: str, arguments: list[str]) -> None:
        kept = {variable: value for variable, value in os.environ.items() if not variable.startswith("JBI_")}
        process = subprocess.Popen(  # noqa: S603  # our own interpreter and modules, no shell
            [sys.executable, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=kept | {"JBI_CONFIG": os.devnull},
            start_new_session=True,  # Ctrl-C is for us; we stop the others in order
        )
        self._processes[name] = process
        listener = threading.Thread(target=self._listen, args=(name, process), name=f"hear {name}", daemon=True)
        self._listeners.append(listener)
        listener.start()

    def _listen(self, name: str, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        assert process.stderr is not None
        with guarded(f"hear {name}"), process.stdout, process.stderr:
            for line in process.stdout:
                self.tell(**{**json.loads(line), "process": name})
            why = process.stderr.read().strip()
            if process.wait() != 0:
                self.tell(ended=name, why=why[-500:])


def cpu_seconds(pid: int) -> float:
    """Processor time of a process so far, in hundredths (Linux)."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100


def _ask_to_end(process: subprocess.Popen[str], *, terminate: bool) -> None:
    if terminate:
        process.terminate()
    assert process.stdin is not None
    with suppress(OSError):  # it has ended
        process.stdin.close()


# -- for the processes ------------------------------------------------------------------------------------------


def say(**facts: Any) -> None:
    """One fact for whoever has started this process."""
    print(json.dumps(facts), flush=True)  # noqa: T201  # the process's interface


def application(play: Callable[..., None]) -> int:
    """The `main` of an application: `play(config, *arguments)` until it is done; the exit code. It should end with its
    stdin."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for whoever has started us, and closes our stdin
    *arguments, encoded = sys.argv[1:]
    try:
        play(from_json(Config, encoded.encode()), *arguments)
    except JbiError as exc:
        print(exc, file=sys.stderr)  # noqa: T201  # the process's interface
        return 1
    return 0
