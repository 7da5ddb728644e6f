"""The test client: a connection of the Common API with panels of publishers, subscribers and queries. Knows no browser
and no terminal; `jbi client FILE` runs a script of panels, the page Client of `jbi web` lets people add them.

Everything that happens is an event, told to `note` and counted in the same step: counters are those of the log. Panels
stay until they are removed, or the connection ends. What a panel does when it is started runs on threads of its own.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

import msgspec

from jbi_pubsub.capi import (
    CapiException,
    Connection,
    ConnectionManager,
    InfoObject,
    PublisherSequence,
    QuerySequence,
    SequenceStateException,
    SubscriberSequence,
    TimeoutException,
    bindings,
)
from jbi_pubsub.capi.connection import Share
from jbi_pubsub.core.config import Config
from jbi_pubsub.core.errors import BackPressureError, ConfigurationError, JbiError, UnknownUidError
from jbi_pubsub.core.guard import guarded

from .script import ROLES, ConnectionPanel, Panel, PublisherPanel, QueryPanel, Script, SubscriberPanel

PANELS_MOST: Final = 100
COUNTED_MOST: Final = 2 * PANELS_MOST
"""Panels with counters, removed ones too, of which the oldest go."""
PAGE: Final = 100
"""Results that are asked for at once."""
TURN_MS: Final = 200
"""The longest that a result is waited for at a time."""
LEAVE_SECONDS: Final = 5.0
"""For what a panel does to end, when it is removed."""

What = Literal[
    "connected", "away", "back", "disconnected", "opened", "published", "refused", "received", "lost", "result",
    "finished", "failed", "removed",
]  # fmt: skip


class Event(msgspec.Struct, frozen=True):
    """Something that has happened, at `at` (seconds of the epoch); `count` objects (0: not known how many)."""

    at: float
    panel: str
    what: What
    id: str = ""
    detail: str = ""
    count: int = 1


@dataclass(eq=False, slots=True)
class _OpenPanel:
    """A panel that is there."""

    name: str
    panel: Panel
    sequences: list[Any] = field(default_factory=list)
    threads: list[threading.Thread] = field(default_factory=list)
    ending: threading.Event = field(default_factory=threading.Event)
    is_open: bool = False
    """Whether it has all of its sequences."""


class Panels:
    """One connection and its panels. Any thread; `_lock` covers panels and counters."""

    def __init__(
        self, config: Config, note: Callable[[Event], None] | None = None, *, share: Share | None = None
    ) -> None:
        """`note` is called for each event, one at a time; it must not wait, nor call us. `share`: see
        ConnectionManager."""
        self._manager = ConnectionManager(config, share) if share is not None else ConnectionManager(config)
        self._note = note
        self._lock = threading.RLock()
        self._connection: Connection | None = None
        self._standing: dict[str, _OpenPanel] = {}
        self._counts: dict[str, Counter[What]] = {}
        self._last = time.monotonic()
        self._number = 0

    # -- connecting ---------------------------------------------------------------------------------------------

    def connect(self, said: ConnectionPanel) -> None:
        """Connect. Raises CapiException, ConfigurationError when it is connected."""
        name, location = (*said.delegate, None, None)[:2]
        descriptor = bindings.write(
            bindings.ConnectionDescriptor(name=name, location=location, timeout=said.timeout_ms)
        )
        connection = self._manager.createConnection(said.name, descriptor)
        try:
            if (said.user, said.password, said.role) != (None, None, None):
                credentials = bindings.Credentials(user=said.user, password=said.password, role=said.role)
                connection.authenticate(bindings.write(credentials))
            connection.setConnectionCallback(_StateCallback(self))
            connection.connect()
            with self._lock:
                if self._connection is not None:
                    raise ConfigurationError("the test client is connected already", hint="Disconnect first")
                self._connection = connection
        except BaseException:
            self._manager.destroyConnection(connection)
            raise
        self.happened("", "connected", detail=said.name)

    def disconnect(self) -> None:
        """Remove all panels, and leave. Does nothing when it is not connected. Raises CapiException, when it has left
        all the same."""
        with self._lock:
            connection, self._connection = self._connection, None
            standing = list(self._standing.values())
        if connection is None:
            return
        try:
            self._end_threads(*standing)
        finally:
            with self._lock:
                self._standing.clear()
            self.happened("", "disconnected")
            self._manager.destroyConnection(connection)

    @property
    def is_connected(self) -> bool:
        """Whether it is."""
        return self._connection is not None

    # -- panels -------------------------------------------------------------------------------------------------

    def add(self, panel: Panel) -> str:
        """Open its sequences; what it is called. Raises CapiException, ConfigurationError (not connected, a name that
        is taken), BackPressureError (there are too many)."""
        role = ROLES[type(panel)]
        with self._lock:
            connection = self._connected()
            if len(self._standing) >= PANELS_MOST:
                raise BackPressureError(f"{PANELS_MOST} panels are there", hint="Remove one")
            self._number += 1
            name = panel.name or f"{role} {self._number}"
            if name in self._standing:
                raise ConfigurationError(f"there is a panel {name[:60]!r} already", hint="Give another name")
            standing = self._standing[name] = _OpenPanel(name, panel)
            self._counts.pop(name, None)
            self._counts[name] = Counter()
            for gone in [each for each in self._counts if each and each not in self._standing][:-COUNTED_MOST]:
                del self._counts[gone]
        try:
            for _ in range(panel.publishers if isinstance(panel, PublisherPanel) else 1):
                make = getattr(connection, f"create{role.capitalize()}Sequence")
                standing.sequences.append(sequence := make(panel.type, panel.version))
                panel.set(sequence)
                if isinstance(sequence, SubscriberSequence):
                    sequence.setSequenceCallback(_ObjectCallback(self, name))
                sequence.activateSequence()
                self.happened(name, "opened")
        except BaseException:
            self._destroy(standing)
            raise
        with self._lock:
            standing.is_open = True
        return name

    def start(self, name: str) -> None:
        """Have a panel publish, or ask; a subscriber's does so by itself. Raises UnknownUidError, ConfigurationError
        when it is not open yet, or not done with what it was started for."""
        with self._lock:
            standing = self._find(name)
            if any(thread.is_alive() for thread in standing.threads):
                raise ConfigurationError(f"{name} is not done yet", hint="Wait, or remove it")
            panel, standing.threads = standing.panel, []
            if isinstance(panel, SubscriberPanel):
                return
            for sequence in standing.sequences:
                work = self._publish if isinstance(panel, PublisherPanel) else self._ask
                thread = threading.Thread(
                    target=self._guarded, args=(work, standing, sequence), name="jbi-test-client", daemon=True
                )
                standing.threads.append(thread)
            for thread in standing.threads:
                thread.start()

    def remove(self, name: str) -> None:
        """End its sequences; the others go on. Raises UnknownUidError, ConfigurationError when it is not open yet,
        CapiException (what it had published did not reach the node, or so)."""
        with self._lock:
            standing = self._find(name)
        self._end_threads(standing)
        self._destroy(standing)
        self.happened(name, "removed")

    def panels(self) -> dict[str, Panel]:
        """Those that are there, by name."""
        with self._lock:
            return {name: standing.panel for name, standing in self._standing.items()}

    def opening(self) -> set[str]:
        """Names of those that are not open yet."""
        with self._lock:
            return {name for name, standing in self._standing.items() if not standing.is_open}

    def is_busy(self) -> bool:
        """Whether any panel is not done with what it was started for."""
        with self._lock:
            return any(thread.is_alive() for standing in self._standing.values() for thread in standing.threads)

    # -- events -------------------------------------------------------------------------------------------------

    def happened(self, panel: str, what: What, id: str = "", detail: str = "", count: int = 1) -> None:  # noqa: A002  # the log's word
        """Note and count it."""
        event = Event(time.time(), panel, what, id, detail[:500], count)
        with self._lock:
            self._counts.setdefault(panel, Counter())[what] += count
            self._last = time.monotonic()
            if self._note is not None:
                self._note(event)

    def counts(self) -> dict[str, dict[str, int]]:
        """Counts of each panel, removed ones too, by what has happened; "" is the connection."""
        with self._lock:
            return {name: {str(what): n for what, n in count.items()} for name, count in self._counts.items()}

    def total(self, what: What) -> int:
        """Count over all panels."""
        with self._lock:
            return sum(count[what] for count in self._counts.values())

    def quiet_seconds(self) -> float:
        """Since anything has happened."""
        return time.monotonic() - self._last

    # -- inside -------------------------------------------------------------------------------------------------

    def _connected(self) -> Connection:
        if self._connection is None:
            raise ConfigurationError("the test client is not connected", hint="Connect first")
        return self._connection

    def _find(self, name: str) -> _OpenPanel:
        standing = self._standing.get(name)
        if standing is None:
            there = ", ".join(self._standing)[:300]
            raise UnknownUidError(f"there is no panel {name[:60]!r}", hint=f"There are {there or 'none'}")
        if not standing.is_open:
            raise ConfigurationError(f"{name} is not open yet", hint="Wait")
        return standing

    def _guarded(self, work: Callable[[_OpenPanel, Any], None], standing: _OpenPanel, sequence: Any) -> None:
        with guarded("test client"):
            work(standing, sequence)

    def _publish(self, standing: _OpenPanel, sequence: PublisherSequence) -> None:
        panel = standing.panel
        assert isinstance(panel, PublisherPanel)
        payload = Path(panel.payload_file) if panel.payload_file else panel.payload.encode()
        began = time.monotonic()
        for number in range(panel.count):
            if standing.ending.wait(max(0.0, began + number * panel.delay_ms / 1000 - time.monotonic())):
                return
            try:
                connection = self._connected()
                io = connection.createInfoObject(panel.type, panel.version, payload, panel.metadata)
                self.happened(standing.name, "published", sequence.publishInfoObject(io))
            except SequenceStateException:
                return  # it was removed
            except JbiError as exc:
                if standing.ending.is_set():
                    return
                self.happened(standing.name, "refused", detail=f"{exc.code}: {exc.message}")
        self.happened(standing.name, "finished")

    def _ask(self, standing: _OpenPanel, sequence: QuerySequence) -> None:
        panel = standing.panel
        assert isinstance(panel, QueryPanel)
        try:
            if panel.distributed_ms:
                sequence.executeDistributedQuery(panel.distributed_ms)
            else:
                sequence.executeQuery()
            for taken, io in enumerate(self._results(standing, sequence, panel.limit), 1):
                self.happened(standing.name, "result", io.getInfoObjectID())
                if taken == panel.limit:
                    sequence.cancelQuery()
        except SequenceStateException:
            return  # it was removed
        except JbiError as exc:
            self.happened(standing.name, "failed", detail=f"{exc.code}: {exc.message}")
        else:
            self.happened(standing.name, "finished")

    def _results(self, standing: _OpenPanel, sequence: QuerySequence, limit: int) -> Iterator[InfoObject]:
        left = limit
        while left and not standing.ending.is_set():
            try:
                found = sequence.getNext(min(left, PAGE), TURN_MS)
            except TimeoutException:
                continue
            if not found:
                return
            left -= len(found)
            yield from found

    def _end_threads(self, *standing: _OpenPanel) -> None:
        """All within LEAVE_SECONDS: who publishes may be waiting for the node."""
        for each in standing:
            each.ending.set()
        until = time.monotonic() + LEAVE_SECONDS
        for thread in (thread for each in standing for thread in each.threads):
            thread.join(max(0.0, until - time.monotonic()))

    def _destroy(self, standing: _OpenPanel) -> None:
        """Raises what the last sequence that did not end in order has raised."""
        with self._lock:
            self._standing.pop(standing.name, None)
            connection = self._connection
        failed = None
        for sequence in standing.sequences if connection is not None else ():
            try:
                assert connection is not None
                connection.destroySequence(sequence)
            except JbiError as exc:
                failed = exc
        if failed is not None:
            raise failed


class _ObjectCallback:
    """Callback of a subscriber's panel."""

    def __init__(self, panels: Panels, name: str) -> None:
        self._panels, self._name = panels, name

    def infoObjectAvailable(self, io: InfoObject) -> None:  # noqa: N802  # the API's names
        """See capi.callbacks."""
        self._panels.happened(self._name, "received", io.getInfoObjectID())

    def infoObjectsLost(self, cause: str, count: int) -> None:  # noqa: N802
        """See capi.callbacks."""
        self._panels.happened(self._name, "lost", detail=str(cause), count=count)


class _StateCallback:
    """Callback of the connection."""

    def __init__(self, panels: Panels) -> None:
        self._panels = panels

    def connectionLost(self, reason: str) -> None:  # noqa: N802  # the API's names
        """See capi.callbacks."""
        self._panels.happened("", "away", detail=reason)

    def connectionRestored(self) -> None:  # noqa: N802
        """See capi.callbacks."""
        self._panels.happened("", "back")


def run(panels: Panels, script: Script, stop: threading.Event, look: Callable[[], None] = lambda: None) -> list[str]:
    """Connect, open publishers and subscribers, publish, wait for what is expected, ask, and leave; what is not as the
    script expects, in words, with what has failed on the way. `look` is called while it waits; `stop` ends it. Raises
    CapiException when it can't connect."""
    deadline = time.monotonic() + script.timeout
    failures: list[str] = []

    def wait_while(is_under_way: Callable[[], bool]) -> bool:
        """Whether it has ended in time."""
        while is_under_way():
            look()
            if stop.wait(0.02):
                return False
            if time.monotonic() > deadline:
                return False
        return True

    panels.connect(script.connection)
    expected: dict[str, int | None] = {}
    is_late = False
    try:
        with _noting(failures):
            names = [panels.add(each) for each in script.publisher]
            hearing = {panels.add(each): each for each in script.subscriber}
            expected |= {name: each.expect for name, each in hearing.items()}
            for name in names:
                panels.start(name)
            is_late = not (
                wait_while(panels.is_busy) and wait_while(lambda: not _is_heard(panels, hearing, script.quiet_ms))
            )
            asking = {panels.add(each): each for each in script.query} if not is_late else {}
            expected |= {name: each.expect for name, each in asking.items()}
            for name in asking:
                panels.start(name)
            is_late = not wait_while(panels.is_busy) or is_late
    finally:
        with _noting(failures):
            panels.disconnect()
    if is_late:
        failures.append("it was interrupted" if stop.is_set() else f"it was not done within {script.timeout:g} s")
    return [*failures, *_unexpected(panels.counts(), expected)]


@contextmanager
def _noting(failures: list[str]) -> Iterator[None]:
    """Note what is raised by the node and its connection: what was counted until then is told all the same."""
    try:
        yield
    except CapiException as exc:
        failures.append(str(exc))


def _unexpected(counts: Mapping[str, Mapping[str, int]], expected: Mapping[str, int | None]) -> Iterator[str]:
    for name, expect in expected.items():
        came = counts[name].get("received", 0) + counts[name].get("result", 0)
        if expect is not None and came != expect:
            yield f"{name}: {came} objects came, {expect} were expected"
    for name, count in counts.items():
        if count.get("refused"):
            yield f"{name}: {count['refused']} objects were refused"
        if count.get("failed"):
            yield f"{name}: the query failed"


def _is_heard(panels: Panels, hearing: Mapping[str, SubscriberPanel], quiet_ms: int) -> bool:
    """Whether what is expected has come, and nothing for a while."""
    counts = panels.counts()
    if any(each.expect is not None and counts[name].get("received", 0) < each.expect for name, each in hearing.items()):
        return False
    return not hearing or panels.quiet_seconds() * 1000 >= quiet_ms
