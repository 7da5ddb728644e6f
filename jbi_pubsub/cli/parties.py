"""Parties that `jbi doctor` finds, and findings on them: lookup services at locators and by mDNS, and the servers that
they list. All are asked side by side, under time limits: who hangs delays nobody."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, Literal, NamedTuple, TypeVar

from jbi_pubsub.core.config import Config, Origins
from jbi_pubsub.core.errors import ConfigurationError, JbiError, WireTimeoutError
from jbi_pubsub.core.wire import ServiceRef
from jbi_pubsub.core.wire.address import check_endpoint
from jbi_pubsub.core.wire.endpoint import Security
from jbi_pubsub.lookup.client.discovery import LookupDiscovery
from jbi_pubsub.lookup.client.multicast import interfaces_of
from jbi_pubsub.lookup.client.proxy import EXPORTED, RegistrarInfo, RegistrarProxy
from jbi_pubsub.lookup.item import ServiceItem, ServiceTemplate
from jbi_pubsub.protocol.services import STATUS, fetch_status, patience

from .status import DISSEMINATORS

T = TypeVar("T")

PROBE_SECONDS: Final = 2.5
"""For a locator to answer."""
LOOK_SECONDS: Final = 1.5
"""For a lookup service to list what it has, and for a server to tell its status."""
MDNS_SECONDS: Final = 1.5
"""For lookup services to answer by mDNS."""
SERVERS_MOST: Final = 64
"""Servers that are asked; anybody may register more."""


class Answer(NamedTuple):
    """Answer of somebody asked: `value`, or the `error`; `seconds` is one call's time."""

    at: str
    value: Any
    error: JbiError | None
    seconds: float
    clock: float = 0.0
    """The middle of the call, by our clock (seconds since 1970)."""

    @property
    def called(self) -> str:
        """A server that has told its status, for people."""
        return " ".join(f"{kind_of(self.value)} {self.value.get('name', '')} at {self.at}".split())


@dataclass(frozen=True, slots=True)
class FoundParties:
    """Parties that were found: lookup services at locators and by mDNS, and all servers that they list."""

    locators: Sequence[Answer] = ()
    announced: Sequence[Answer] = ()
    servers: Sequence[Answer] = ()
    unseen: int = 0
    problem: str = ""


State = Literal["ok", "warning", "failure", "skipped"]


class Finding(NamedTuple):
    """Finding of a check on one thing; `advice` is what to type, or to set."""

    check: str
    state: State
    found: str
    advice: str = ""


@dataclass(eq=False)
class Checkup:
    """Subject of the checks: the configuration, and whom it leads to."""

    config: Config
    origins: Origins
    _looking: Future[FoundParties] | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def found(self) -> FoundParties:
        """Parties that there are; the first check that wants to know has them looked for."""
        with self._lock:
            mine = self._looking is None
            looking = self._looking = self._looking or Future()
        if mine:
            try:
                looking.set_result(look(self.config))
            except BaseException as exc:
                looking.set_exception(exc)
                raise
        return looking.result()

    def is_set(self, *keys: str) -> bool:
        """Whether one of these settings, or sections, is not the default."""
        return any(origin == key or origin.startswith(f"{key}.") for key in keys for origin in self.origins)


Check = Callable[[Checkup], Iterator[Finding]]


def running_servers(checkup: Checkup) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Each server that answers, what to call it, and what it says of itself."""
    for answer in checkup.found().servers:
        if answer.error is None:
            yield answer.called, answer.value


def table_of(facts: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """A part of a status, which may be an older server's, or a stranger's."""
    found = facts.get(key)
    return found if isinstance(found, Mapping) else {}


def number_of(facts: Mapping[str, Any], key: str) -> float:
    found = facts.get(key)
    return float(found) if isinstance(found, (int, float)) else 0.0


def kind_of(facts: Mapping[str, Any]) -> str:
    return "lookup service" if facts.get("kind") == "lookup" else str(facts.get("kind"))


def look(config: Config) -> FoundParties:
    """Ask the locators, mDNS, whom these list, and each of those."""
    try:
        security = config.security()
    except ConfigurationError as exc:
        return FoundParties(problem=exc.message)
    announced = _announced(config, security)
    probe, listed = PROBE_SECONDS * patience(config), LOOK_SECONDS * patience(config)
    probes = together([(at, partial(_described, at, security, probe)) for at in config.lookup.locators], probe)
    others = [at for at in announced() if at not in {_same(at) for at in config.lookup.locators}]
    heard = together([(at, partial(_described, at, security, probe)) for at in others[:SERVERS_MOST]], probe)
    lookups = {a.value.service_id: a.at for a in (*probes, *heard) if a.error is None}
    lists = together([(at, partial(_listed, at, security, listed)) for at in lookups.values()], listed)
    refs = {key: ServiceRef(key, STATUS, (at,)) for key, at in lookups.items()}
    for answer in lists:
        refs |= {i.proxy.service_id: i.proxy for i in answer.value or () if DISSEMINATORS.intersection(i.types)}
    some = list(refs.values())[:SERVERS_MOST]
    servers = together([(", ".join(ref.endpoints), partial(_status, ref, security, listed)) for ref in some], listed)
    return FoundParties(probes, heard, servers, len(refs) - len(some))


def together(tasks: Sequence[tuple[str, Callable[[], tuple[T, float]]]], seconds: float) -> list[Answer]:
    """Everybody asked at once; one without an answer after `seconds` counts as one that never answers."""
    answers: dict[int, Answer] = {}

    def ask(number: int, at: str, task: Callable[[], tuple[T, float]]) -> None:
        began = time.time()
        try:
            value, took = task()
        except JbiError as exc:
            answers[number] = Answer(at, None, exc, time.time() - began)
        else:
            answers[number] = Answer(at, value, None, took, time.time() - took / 2)

    side_by_side({f"ask-{n}": partial(ask, n, at, task) for n, (at, task) in enumerate(tasks)}, seconds + 0.2)
    late = WireTimeoutError(f"no answer within {seconds:g} s")
    return [answers.get(number, Answer(at, None, late, seconds)) for number, (at, _) in enumerate(tasks)]


def side_by_side(steps: Mapping[str, Callable[[], object]], seconds: float) -> None:
    """All at once, each in a thread; one that has not ended after `seconds` is left behind."""
    threads = [threading.Thread(target=step, name=f"jbi-doctor-{name}", daemon=True) for name, step in steps.items()]
    deadline = time.monotonic() + seconds
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))


def timed(call: Callable[[], T]) -> tuple[T, float]:
    """Result of a call, and the seconds it took."""
    began = time.perf_counter()
    return call(), time.perf_counter() - began


def _described(at: str, security: Security, seconds: float) -> tuple[RegistrarInfo, float]:
    with closing(RegistrarProxy(ServiceRef("", EXPORTED, (at,)), security, timeout=seconds / 2)) as proxy:
        proxy.describe()  # connects
        return timed(proxy.describe)


def _listed(at: str, security: Security, seconds: float) -> tuple[tuple[ServiceItem, ...], float]:
    with closing(RegistrarProxy(ServiceRef("", EXPORTED, (at,)), security, timeout=seconds)) as proxy:
        return timed(lambda: proxy.lookup(ServiceTemplate(), 10_000).items)


def _status(ref: ServiceRef, security: Security, seconds: float) -> tuple[dict[str, Any], float]:
    return timed(lambda: fetch_status(ref, security, timeout=seconds))


def _announced(config: Config, security: Security) -> Callable[[], list[str]]:
    """Begin to listen for lookup services; what is returned waits for those that answer soon."""
    if not config.lookup.multicast:
        return list
    heard: dict[str, None] = {}
    discovery = LookupDiscovery(
        groups=None,
        locators=(),
        multicast=True,
        interfaces=lambda: interfaces_of(config),
        security=security,
        interval=0.2,
        discovered=lambda ref, _: heard.update(dict.fromkeys(ref.endpoints)),
        discarded=lambda _: None,
    )
    discovery.start()
    deadline = time.monotonic() + MDNS_SECONDS

    def wait() -> list[str]:
        time.sleep(max(0.0, deadline - time.monotonic()))
        found = list(dict.fromkeys((*heard, *discovery.asked())))
        threading.Thread(target=discovery.stop, name="jbi-doctor-mdns-stop", daemon=True).start()  # it may wait
        return found

    return wait


def _same(at: str) -> str:
    try:
        return check_endpoint(at)
    except ConfigurationError:
        return at
