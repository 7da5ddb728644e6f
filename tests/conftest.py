"""Fixtures: real servers on port 0 of loopback, in this process or as processes of their own; the paper's figures.

Each run of the suite is a world of its own: a lookup group and an mDNS service type that nobody else has, and no
setting from outside. What else runs on the host, another run too, is neither seen nor disturbed.
"""

from __future__ import annotations

import functools
import gc
import importlib.util
import inspect
import json
import multiprocessing
import os
import signal
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from multiprocessing import forkserver
from multiprocessing.connection import Connection
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, Final, TypeVar

import lock_order  # first: it sees every lock that the product makes
import msgspec
import pytest
from extent import examples
from hypothesis import HealthCheck, settings
from keeping import MemoryKeeping

import jbi_pubsub
from jbi_pubsub import Config, PublisherAdapter, PublisherAdapterLight, RegistrationUid, SubscriberAdapter
from jbi_pubsub.core import child, guard, ticker
from jbi_pubsub.core.config import ArchiveSection, LeaseSection, LookupSection, MailSection, PadSection, QueueSection
from jbi_pubsub.core.state import StateTable
from jbi_pubsub.lookup.client import multicast
from jbi_pubsub.lookup.item import ServiceItem
from jbi_pubsub.testing import LocalFederation

EXAMPLES = Path(__file__).parent.parent / "examples" / "data"
T = TypeVar("T")

WORLD: Final = uuid.uuid4().hex[:8]
GROUP: Final = f"test-{WORLD}"
"""The lookup group of this run. A port that one federation leaves may be taken by another run's, so that an address
alone does not keep them apart."""

settings.register_profile(
    "suite",
    max_examples=examples(100),
    derandomize=True,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("suite")  # the same examples each time, however busy the machine is


@pytest.fixture(scope="session", autouse=True)
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Settings of this run alone: no JBI_* variable and no file of whoever runs the tests, no locators, no mDNS but
    where a test asks for it, and there a service type of its own."""
    file = tmp_path_factory.mktemp("world") / "jbi.toml"
    file.write_text(f'[lookup]\ngroups = ["{GROUP}"]\nlocators = []\nmulticast = false\n')
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith("JBI_")]:
            patch.delenv(name)
        patch.setenv("JBI_CONFIG", str(file))
        patch.setenv("HOME", str(file.parent))
        patch.setattr(multicast, "SERVICE_TYPE", f"_jbi-{WORLD}._tcp.local.")
        yield GROUP


@pytest.fixture(scope="session", autouse=True)
def _patience() -> Iterator[None]:
    """Calls of applications that wait ten seconds by default wait a minute, where others have the processors and the
    disk; what is waited for comes, and ends the wait."""
    waits = (
        *(SubscriberAdapter.receive, SubscriberAdapter.wait_matched),
        *(getattr(kind, name) for kind in (PublisherAdapterLight, PublisherAdapter)
          for name in ("flush", "wait_for_subscribers")),
    )  # fmt: skip
    with pytest.MonkeyPatch.context() as patch:
        for each in map(inspect.unwrap, waits):
            assert each.__defaults__[-1] == 10.0
            patch.setattr(each, "__defaults__", (*each.__defaults__[:-1], 60.0))
        yield


@pytest.fixture(autouse=True)
def _no_children(request: pytest.FixtureRequest) -> Iterator[None]:
    """What a child process would do for this one, such as to open a schema, is done here, but in tests that are about
    children: a new interpreter takes most of a second of a processor. Processes that tests start have children. It has
    a patch of its own: `monkeypatch` is undone before those fixtures end that a test has asked for before it."""

    def ask(work: Any, limits: child.Limits) -> Any:
        return msgspec.structs.replace(child._answer(work, limits), seconds=0.0)

    with pytest.MonkeyPatch.context() as patch:
        if request.node.get_closest_marker("children") is None:
            patch.setattr(child, "_ask", ask)
        yield


STRANGERS: Final[list[str]] = []
"""Who has asked the lookup service that anybody may run at the usual port."""
OPENED: Final[list[tuple[threading.Thread, str]]] = []
"""Sockets and processes that a thread of this process has begun since the test did."""
OTHERS: Final[set[threading.Thread]] = set()
"""Threads that were there before the test, and those that they start: what they do is not the test's."""


def _note(event: str, arguments: tuple[Any, ...]) -> None:
    if event == "socket.connect" and arguments[1] == ("127.0.0.1", LookupSection().port):
        STRANGERS.append(f"{threading.current_thread().name} in {os.environ.get('PYTEST_CURRENT_TEST')}")
    elif event in ("socket.__new__", "subprocess.Popen", "os.fork", "os.posix_spawn"):
        OPENED.append((threading.current_thread(), event))


sys.addaudithook(_note)


def _begin(thread: threading.Thread, start: Callable[[threading.Thread], None] = threading.Thread.start) -> None:
    if threading.current_thread() in OTHERS:
        OTHERS.add(thread)
    start(thread)


threading.Thread.start = _begin  # type: ignore[method-assign]  # there is no event of it before Python 3.12

UNIT_ROOMS: Final = (
    *("archive", "bridge", "capi", "codegen", "core", "lookup", "pad", "policy", "publisher", "qos", "subscriber"),
    *("trust", "wire"),
)
"""Folders in which a test is `unit` unless it says otherwise; federations and programs are in the others."""
OPENING: Final = {"federation", "start", "serve", "attack"}
"""Fixtures that open sockets or start processes: who has one of them need not be marked."""
SHARED: Final = {"site", "spark"}
"""Fixtures of a session or module that take most of a minute of a processor."""


@functools.cache
def _is_unit_room(path: Path) -> bool:
    return path.relative_to(Path(__file__).parent).parts[0] in UNIT_ROOMS


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Reads no file of other folders for `-m unit`."""
    skips = config.option.markexpr == "unit" and collection_path.name.startswith("test_")
    return True if skips and not _is_unit_room(collection_path) else None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks those `unit` that are in such a folder, have no such fixture, and are not marked otherwise. Those that
    share what is made at great cost come first, and so to one process."""
    items.sort(key=lambda item: SHARED.isdisjoint(getattr(item, "fixturenames", [])))
    for item in items:
        marks = {mark.name for mark in item.iter_markers()}
        otherwise = marks & {"processes", "long", "slow", "spark"}
        fixtures: list[str] = getattr(item, "fixturenames", [])
        if _is_unit_room(item.path):
            assert not (otherwise and "unit" in marks), f"{item.nodeid} is `unit` and {', '.join(sorted(otherwise))}"
            if not otherwise and OPENING.isdisjoint(fixtures):
                item.add_marker("unit")


def pytest_collection_finish() -> None:
    """What some ten thousand tests are made of stays to the end: the garbage collector need not look through it again
    and again, nor as often for what one of them makes."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)


def pytest_unconfigure() -> None:
    gc.unfreeze()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Iterator[None]:
    OTHERS.clear()
    OTHERS.update(set(threading.enumerate()) - {threading.current_thread()})
    OPENED.clear()
    yield


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """Fails a `unit` test that has opened a socket or started a process, its fixtures too."""
    yield
    if item.get_closest_marker("unit"):
        opened = sorted({event for thread, event in OPENED if thread not in OTHERS})
        assert not opened, f"{', '.join(opened)}: mark the test `processes`"


@pytest.fixture(autouse=True)
def _keeps_to_itself() -> Iterator[None]:
    """Fails a test whose parties look for lookup services where it has started none. Faults that other tests have
    caused in this process are none of this one."""
    with guard._lock:
        guard._faults.clear()
    yield
    asked, STRANGERS[:] = list(STRANGERS), []
    assert lock_order.circles_seen() == []
    assert asked == [], f"port {LookupSection().port} was asked: give the configuration of the test its own locators"


def eventually(good: Callable[[], T], timeout: float = 60.0, *, what: object = "") -> T:
    """Wait until `good()` is true, and return it; fail with `what`, or what `what()` says, after `timeout` seconds:
    not of the clock, which goes on when others have the processors, but in turns of 10 ms."""
    for _ in range(round(timeout * 100) + 1):
        value = good()
        if value:
            return value
        time.sleep(0.01)
    pytest.fail(f"not within {timeout:g} s: {what() if callable(what) else what}")


@dataclass(frozen=True)
class Figures:
    """The figures of the paper, verbatim, and a schema for them."""

    schema: Path = EXAMPLES / "intel_imagery" / "Intel_Imagery.xsd"
    figure_1: bytes = (EXAMPLES / "intel_imagery" / "fig1.xml").read_bytes()
    figure_2: bytes = (EXAMPLES / "intel_imagery" / "fig2-invariant.xml").read_bytes()
    figure_3: bytes = (EXAMPLES / "intel_imagery" / "fig3-template.xml").read_bytes()
    figure_4: bytes = (EXAMPLES / "targets" / "fig4-targets.xml").read_bytes()

    def metadata(self, **changed: str) -> bytes:
        """Figure 1 with other values: metadata(lat="40.1", publisher="999th")."""
        text = self.figure_1.decode()
        for tag, value in changed.items():
            head, _, rest = text.partition(f"<{tag}>")
            _, _, tail = rest.partition(f"</{tag}>")
            text = f"{head}<{tag}>{value}</{tag}>{tail}"
        return text.encode()

    def register(self, adapter: PublisherAdapterLight) -> RegistrationUid:
        """A registration of figure 1 at the delegate (alpha, rome), by a connection of its own."""
        return adapter.register_publisher(adapter.connect_to_delegate("alpha", "rome"), self.schema, self.figure_1)


def module_of(path: Path) -> Any:
    """A file of Python that is in no package, as a module of its own: a tool, or an example."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def figures() -> Figures:
    return Figures()


class Federation(LocalFederation):
    """That of users' tests, with this run's group, and the paper's words for its parties; ends with `stack`."""

    pad, light = LocalFederation.delegate, LocalFederation.publisher

    def __init__(self, config: Config, stack: ExitStack) -> None:
        super().__init__(config, group=GROUP)
        stack.enter_context(self)

    def leases(self, seconds: float) -> None:
        """Of parties from now on: as short as this, for a test that waits for one to run out. A busy machine may let
        one run out that is renewed with an eighth of it left."""
        lease = LeaseSection(publisher=seconds, subscriber=seconds, lookup=seconds)
        self.config = msgspec.structs.replace(self.config, lease=lease)


def test_config(**sections: Any) -> Config:
    """Loopback, no mDNS, any port, leases that no test outlasts nor any pause of a busy machine."""
    alone = LookupSection(groups=(GROUP,), port=0, multicast=False, locators=(), timeout=60.0, probe=2.0)
    return Config(
        lookup=sections.pop("lookup", alone),
        pad=sections.pop("pad", PadSection()),
        lease=sections.pop("lease", LeaseSection(publisher=30.0, subscriber=30.0, lookup=30.0)),
        queue=sections.pop("queue", QueueSection()),
        mail=sections.pop("mail", MailSection(retries=2, retry_seconds=0.05, timeout=10.0)),
    )


test_config.__test__ = False  # type: ignore[attr-defined]  # a helper, not a test


class Heard:
    """Whoever watches a lookup service, and notes which services come, change and leave."""

    def __init__(self) -> None:
        self.told: list[tuple[str, str]] = []

    def service_added(self, item: ServiceItem) -> None:
        self.told.append(("added", item.service_id))

    def service_changed(self, old: ServiceItem, new: ServiceItem) -> None:  # noqa: ARG002  # the protocol's
        self.told.append(("changed", new.service_id))

    def service_removed(self, item: ServiceItem) -> None:
        self.told.append(("removed", item.service_id))

    @property
    def added(self) -> list[str]:
        """Those that have come, in order."""
        return [service_id for what, service_id in self.told if what == "added"]

    @property
    def removed(self) -> list[str]:
        """Those that have left, in order."""
        return [service_id for what, service_id in self.told if what == "removed"]


@pytest.fixture
def steady(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pauses between tries without jitter."""
    monkeypatch.setattr("jbi_pubsub.core.backoff.random.uniform", lambda _least, most: most)


class WalkedRows:
    """Rows of state tables that were walked, while `monkeypatch` has them recorded."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._walked: set[tuple[Any, Any]] = set()
        after = StateTable.after

        def walk(table: StateTable[Any, Any], state: Any, event: Any) -> Any:
            self._walked.add((state, event))
            return after(table, state, event)

        monkeypatch.setattr(StateTable, "after", walk)

    def left(self, table: StateTable[Any, Any]) -> set[tuple[Any, Any]]:
        """Rows of a table that nothing has led to."""
        return {(state, event) for state, event, _ in table.rows()} - self._walked


@pytest.fixture
def walked_rows(monkeypatch: pytest.MonkeyPatch) -> WalkedRows:
    """A record of the rows of state tables that the test walks."""
    return WalkedRows(monkeypatch)


@pytest.fixture
def heard() -> Heard:
    return Heard()


@pytest.fixture(scope="session")
def fixtures(pytestconfig: pytest.Config) -> Any:
    """The helpers beside the fixtures, for those who need them outside a fixture of a test."""
    return pytestconfig.pluginmanager.get_plugin(__file__)


class LeftOver:
    """Threads and jobs that were not there when this was made. The ticker's threads are those of all jobs, and asyncio
    keeps its own."""

    def __init__(self) -> None:
        self._threads, self._jobs = set(threading.enumerate()), ticker.jobs()

    def names(self) -> list[str]:
        """Of those that are there now."""
        threads = (each.name for each in threading.enumerate() if each not in self._threads and each.is_alive())
        kept = [name for name in threads if not name.startswith(("asyncio", "ticker"))]
        return kept + [job.name for job in ticker.jobs() - self._jobs]


@pytest.fixture
def left_over() -> LeftOver:
    """Threads and jobs that come from now on, and stay."""
    return LeftOver()


@pytest.fixture
def federation() -> Iterator[Federation]:
    """An empty federation with one lookup service."""
    left = LeftOver()
    with ExitStack() as stack:
        yield Federation(test_config(), stack)
    eventually(lambda: not left.names(), what=lambda: f"threads and jobs that did not end: {left.names()}")


@pytest.fixture
def archived(federation: Federation, monkeypatch: pytest.MonkeyPatch) -> Federation:
    """Each delegate of the federation has an archive of its own."""
    engine = type("engine", (), {"Archive": staticmethod(lambda _config: MemoryKeeping())})
    monkeypatch.setitem(sys.modules, "jbi_pubsub.archive.engine", engine)
    federation.config = msgspec.structs.replace(federation.config, archive=ArchiveSection(folder="/nowhere"))
    return federation


class Publishing:
    """A publisher of either kind with one registration, for tests that hold for both."""

    def __init__(self, federation: Federation, kind: str) -> None:
        self._federation = federation
        self.kind = kind
        self.adapter: PublisherAdapter | PublisherAdapterLight
        if kind == "delegate":
            self.pad = federation.pad()
            self.adapter = federation.light()
            self.at = self.adapter.connect_to_delegate("alpha", "rome")
        else:
            self.adapter = federation.peer()

    def register(self, invariants: bytes, schema: Path, **options: Any) -> RegistrationUid:
        """Register at the delegate, or peer to peer."""
        if isinstance(self.adapter, PublisherAdapterLight):
            return self.adapter.register_publisher(self.at, schema, invariants, **options)
        return self.adapter.register_publisher(schema, invariants, **options)

    def publish(self, registration: RegistrationUid, metadata: bytes, payload: Any = None) -> str:
        """Publish, and wait until the dissemination node has it."""
        object_id = self.adapter.publish(registration, metadata, payload)
        if isinstance(self.adapter, PublisherAdapterLight):
            self.adapter.flush()
        return object_id

    def status(self) -> dict[str, Any]:
        """Of the dissemination node."""
        return self.pad.status() if self.kind == "delegate" else self.adapter.status()


@pytest.fixture(params=["delegate", "peer"])
def publishing(request: pytest.FixtureRequest, federation: Federation) -> Publishing:
    """The same test over a delegate and over a peer publisher."""
    return Publishing(federation, request.param)


# -- processes --------------------------------------------------------------------------------------------------


CHILD: Final = """
import os, signal, sys
# who runs the tests in the background has these ignored
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)
os.environ.clear()
os.environ.update(environment)
for number, stream in enumerate(streams):
    os.dup2(stream.fileno(), number)
    stream.close()
unbuffered = 1 if "PYTHONUNBUFFERED" in environment else -1
sys.stdin, sys.stdout, sys.stderr = open(0), open(1, "w", buffering=unbuffered), open(2, "w", buffering=1)
if script:
    exec(compile(script, "<string>", "exec"), {"__name__": "__main__"})
else:
    from jbi_pubsub.cli import main
    sys.argv = ["jbi", *arguments]
    main()
"""
"""What a process does first: take its own environment and streams; then it is `python -c script` or `jbi arguments`."""

FORKS: Final = multiprocessing.get_context("forkserver")
"""Processes are forked from one that has imported the library and done nothing else, without a thread: an interpreter
that imports all of it anew takes half a second of a core. tests/cli/test_processes.py starts such ones, too."""


@pytest.fixture(scope="session")
def _forks() -> None:
    """Starts that process, with the library that is tested, whatever folder a test works in."""
    FORKS.set_forkserver_preload(["jbi_pubsub.cli.servers", "jbi_pubsub.cli.clients", "jbi_pubsub.pad.server.server"])
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(Path(jbi_pubsub.__file__).parent.parent), prepend=os.pathsep)
        forkserver.ensure_running()


class Process:
    """A `jbi` command or a Python script as a process of its own, with pipes for stdin and stdout."""

    def __init__(self, *arguments: str, script: str = "") -> None:
        (stdin, into), (out, stdout) = os.pipe(), os.pipe()
        self.stdin, self.stdout = open(into, "w"), open(out)  # noqa: PTH123, SIM115  # no paths; closed by `end`
        self._said = TemporaryFile()  # noqa: SIM115  # stderr: takes all, though nobody reads it; closed by `end`
        handles = (
            Connection(stdin, writable=False),
            Connection(stdout, readable=False),
            Connection(os.dup(self._said.fileno())),
        )
        given = {"streams": handles, "environment": dict(os.environ), "script": script, "arguments": arguments}
        self._process = FORKS.Process(target=exec, args=(CHILD, given))
        self._process.start()
        for handle in handles:
            handle.close()
        assert self._process.pid
        self.pid: int = self._process.pid

    @property
    def returncode(self) -> int | None:
        """Its exit code, or the negative number of the signal that ended it; None while it runs."""
        return self._process.exitcode

    def wait(self, timeout: float = 60.0) -> int:
        """The exit code; fails after `timeout` seconds."""
        self._process.join(timeout)
        if self._process.exitcode is None:
            pytest.fail(f"process goes on after {timeout:g} s")
        return self._process.exitcode

    def stderr(self) -> str:
        """All that it has said on stderr so far."""
        return os.pread(self._said.fileno(), os.fstat(self._said.fileno()).st_size, 0).decode()

    def communicate(self, timeout: float = 60.0) -> tuple[str, str]:
        """The rest of stdout, and stderr, when it has ended; fails after `timeout` seconds."""
        rest: list[str] = []
        reading = threading.Thread(target=lambda: rest.append(self.stdout.read()))
        reading.start()
        try:
            self.wait(timeout)
        finally:
            self._process.kill()
            reading.join()
        return rest[0], self.stderr()

    def fact(self) -> dict[str, Any]:
        """The next JSON line on its stdout."""
        line = self.stdout.readline()
        if not line:
            pytest.fail(f"process ended: {self.stderr()}")
        return json.loads(line)  # type: ignore[no-any-return]  # objects only

    def say(self, word: str) -> None:
        """A line on its stdin."""
        self.stdin.write(word + "\n")
        self.stdin.flush()

    def signal(self, number: int) -> None:
        """SIGKILL, SIGSTOP, SIGCONT, SIGTERM."""
        os.kill(self.pid, number)

    def end(self, *, kill: bool = False, timeout: float = 60.0) -> int:
        """SIGTERM, or SIGKILL, and the exit code."""
        if self._process.exitcode is None and not kill:
            with suppress(ProcessLookupError):  # it ends by itself
                self.signal(signal.SIGCONT)
                self.signal(signal.SIGTERM)
            self._process.join(timeout)
        self._process.kill()
        self._process.join()
        self.stdout.close()
        self._said.close()
        with suppress(BrokenPipeError):  # what nobody has read any more
            self.stdin.close()
        return self._process.exitcode or 0


@pytest.fixture
def start(_forks: None) -> Iterator[Callable[..., Process]]:
    """start("lookup", "--port", "0", "--json") starts `jbi lookup ...`; everything is killed afterwards."""
    processes: list[Process] = []

    def begin(*arguments: str, script: str = "") -> Process:
        processes.append(Process(*arguments, script=script))
        return processes[-1]

    yield begin
    for process in reversed(processes):
        process.end(kill=True)


@pytest.fixture(name="eventually")
def _eventually() -> Callable[..., Any]:
    """`eventually(good)`: wait until `good()` is true."""
    return eventually
