"""Finding lookup services: unicast locators, mDNS, and what lookup services know of each other.

Rules (Jini Discovery and Join Specification DJ.2-DJ.3; measurements on zeroconf):
- mDNS only suggests, and so do the items of other lookup services that a lookup service lists. A suggestion counts
  once the lookup service itself has answered a probe and serves one of the groups; who it is, it says itself.
- A locator is configured: it is probed for ever. A suggestion goes with its last source (a good-bye, an expired record
  or lease), or when probes have failed for longer than mDNS keeps a dead record; their number is bounded.
- A killed process stays listed in mDNS for up to 19 minutes, so death is noticed by probes, never by mDNS.
- Whatever a peer answers or announces is one failed probe, or a suggestion less; it never ends the search for others.
- Groups are free strings, "" is public; None means all groups, () none. They travel in the TXT record and are
  confirmed by the probe.
- Without multicast an announcement "succeeds" silently; the locators carry on alone.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from jbi_pubsub.core.backoff import Backoff
from jbi_pubsub.core.errors import AccessDeniedError, ConfigurationError, JbiError, ProtocolError, WireTimeoutError
from jbi_pubsub.core.guard import guarded
from jbi_pubsub.core.hosts import ANY
from jbi_pubsub.core.ticker import Job
from jbi_pubsub.core.wire import ServiceRef
from jbi_pubsub.core.wire.address import check_endpoint, split_endpoint
from jbi_pubsub.core.wire.endpoint import Security
from jbi_pubsub.lookup.client.proxy import EXPORTED, RegistrarInfo, RegistrarProxy

if TYPE_CHECKING:
    from jbi_pubsub.lookup.client.multicast import Browser

log = logging.getLogger("jbi_pubsub.discovery")

MAX_SUGGESTIONS: Final = 256
"""Endpoints remembered that others have named; anybody on the link can announce, so there is a bound."""
MAX_ENDPOINTS: Final = 8
"""Endpoints taken from one source: a lookup service has one for each interface at most."""
MAX_SUGGESTED: Final = 64
"""Lookup services joined that no locator names. Each costs a session, so what others suggest must have a bound; a
community has a handful."""
PROBES_A_ROUND: Final = 4
"""Suggestions probed between two looks at the locators: 12 s at most when none answers."""
ROUND_SECONDS: Final = 0.02
"""Shortest time between two rounds: whoever suggests without end makes a party ask 200 times a second at most, which
costs it a tenth of a core."""
PAUSE_FIRST: Final = 0.5
PAUSE_MOST: Final = 60.0
"""Seconds between two probes of a suggestion that does not answer; doubles between these."""
LOCATORS_SECONDS: Final = 0.25
"""For locators to answer before mDNS begins: who has published by then needs none."""
HEARD_SECONDS: Final = 1.0
"""After which those that are announced by mDNS have been heard of."""
REFUSED_MOST: Final = 15.0
"""The same of a locator that refuses us, at most: a wrong password that is shown each second locks out who has the
right one (policy.users), and who is let in is there soon."""
SUGGESTION_SECONDS: Final = 1200.0
"""A suggestion that has not answered for so long is forgotten. Longer than mDNS itself lists a killed process (1,125 s:
PTR records live 75 minutes at most, RFC 6762 section 10, zeroconf asks again at a quarter), as a lookup service that
comes back meanwhile under the same name is not told of anew."""
PROBE_SECONDS: Final = 3.0
"""Time for the calls of one probe. A lookup service that needs longer is probed again in the next round."""
PROBE_MOST: Final = 12.0
"""The same of a locator that does not answer in time, at most: each probe has twice as long as the one before. Over a
satellite, or behind a full queue, to connect alone takes seconds."""
MAX_NAME: Final = 255
"""Characters of a lookup service's id, and of a group, that is believed (RegistrarLimits, registrar.MAX_GROUP)."""
MAX_GROUPS: Final = 64
"""Groups of a lookup service that are believed: as many as it may serve (RegistrarLimits.groups)."""


class _Problem(NamedTuple):
    """Why no lookup service of ours has answered at an endpoint; `is_closed`: the connection was refused."""

    why: str = ""
    is_closed: bool = False
    refusal: AccessDeniedError | None = None
    """That of a lookup service that does not let us in."""
    due: float = -math.inf
    """When such a one is asked again (monotonic)."""
    backoff: Backoff | None = None
    seconds: float = 0.0
    """Time that the next probe of a locator has; 0: as others."""


_NONE: Final = _Problem()


@dataclass(slots=True)
class _Suggestion:
    sources: set[str]
    due: float
    asked: float = -math.inf
    backoff: Backoff = field(default_factory=lambda: Backoff(PAUSE_FIRST, PAUSE_MOST))
    failing_since: float | None = None


class Suggestions:
    """Endpoints that others have named, each with its sources and its next probe. Pure; the owner's lock covers it."""

    def __init__(self, most: int = MAX_SUGGESTIONS) -> None:
        self._most = most
        self._book: dict[str, _Suggestion] = {}

    def __contains__(self, endpoint: object) -> bool:
        return endpoint in self._book

    def __iter__(self) -> Iterator[str]:
        return iter(tuple(self._book))

    def suggest(self, source: str, endpoints: Sequence[str], now: float) -> None:
        """`source` names these endpoints from now on, in place of those it named before.

        They are due: news of an endpoint is a reason to ask it, though not more often than every PAUSE_FIRST seconds.
        When all places are taken, the one that has failed longest gives way.
        """
        named = endpoints[:MAX_ENDPOINTS]
        self.withdraw(source, frozenset(named))
        for endpoint in named:
            known = self._book.get(endpoint)
            if known is not None:
                if len(known.sources) < self._most:
                    known.sources.add(source)
                known.due = max(now, known.asked + PAUSE_FIRST)
                known.backoff.reset()
            elif self._make_room():
                self._book[endpoint] = _Suggestion({source}, now)

    def withdraw(self, source: str, kept: Container[str] = ()) -> None:
        """`source` names nothing but what is `kept` any more; what no other source names is forgotten."""
        for endpoint in [e for e, each in self._book.items() if source in each.sources and e not in kept]:
            self._book[endpoint].sources.discard(source)
            if not self._book[endpoint].sources:
                del self._book[endpoint]

    def due(self, now: float, known: Container[str] = ()) -> list[str]:
        """Endpoints to probe now, longest due first, without those where a lookup service is `known`."""
        waiting = ((each.due, endpoint) for endpoint, each in self._book.items() if endpoint not in known)
        return [endpoint for due, endpoint in sorted(waiting) if due <= now]

    def answered(self, endpoint: str, now: float) -> None:
        """A lookup service of ours has answered there."""
        found = self._book.get(endpoint)
        if found is not None:
            found.due = found.asked = now
            found.failing_since = None
            found.backoff.reset()

    def failed(self, endpoint: str, now: float) -> None:
        """Nobody has answered there, or none that we want: asked again after a pause, forgotten in the end."""
        found = self._book.get(endpoint)
        if found is None:
            return
        since = found.failing_since = now if found.failing_since is None else found.failing_since
        if now - since > SUGGESTION_SECONDS:
            del self._book[endpoint]
        found.asked, found.due = now, now + found.backoff.pause()

    def _make_room(self) -> bool:
        if len(self._book) < self._most:
            return True
        failing = [(each.failing_since, e) for e, each in self._book.items() if each.failing_since is not None]
        if failing:
            del self._book[min(failing)[1]]
        return bool(failing)


class LookupDiscovery:
    """Keeps looking for lookup services of some groups.

    `discovered` is called when one answers at an endpoint where none, or another one, was known: for a lookup service
    with several endpoints more than once. `discarded` is called with the id of one that serves none of the groups any
    more, or whose locator was taken away while nobody else names it. Both on our thread, or on that of `configure`.
    """

    def __init__(
        self,
        *,
        groups: Sequence[str] | None,
        locators: Sequence[str],
        multicast: bool,
        interfaces: Callable[[], Sequence[str]],
        security: Security,
        interval: float,
        discovered: Callable[[ServiceRef, RegistrarInfo], None],
        discarded: Callable[[str], None],
        own: str = "",
        refused: Callable[[], None] = lambda: None,
    ) -> None:
        """`interfaces` gives those for mDNS, when it begins. `interval`: seconds between two rounds of probes of
        endpoints where no lookup service is known. `own` is the id of the lookup service that looks for others;
        `refused` is called when one has not let us in.

        Raises ConfigurationError for a locator that is none."""
        self._groups = None if groups is None else frozenset(groups)
        self._locators = tuple(dict.fromkeys(map(check_endpoint, locators)))
        self._security = security
        self._interval = interval
        self._discovered = discovered
        self._discarded = discarded
        self._refused = refused
        self._own = own
        self._lock = threading.RLock()  # covers all that follows but _browser
        self._suggestions = Suggestions()
        self._known: dict[str, str] = {}  # endpoint -> service id that answered there
        self._problems: dict[str, _Problem] = {}
        self._stopping = False
        self._has_more = False
        """More are due than one round probes."""
        self._round_at = 0.0
        """When the next round may be."""
        self._multicast = multicast
        self._heard = time.monotonic() + (LOCATORS_SECONDS + HEARD_SECONDS if multicast else 0.0)
        self._interfaces = interfaces
        self._browser: Browser | None = None
        self._job = Job("discovery", interval, self._round, slow=True)
        self._browsing = Job("discovery", math.inf, self._browse, slow=True)

    def start(self) -> None:
        """Begin."""
        if self._multicast:
            self._browsing.start(LOCATORS_SECONDS if self._locators else 0.0)
        self._job.start()

    def stop(self) -> None:
        """End, and leave mDNS."""
        self._stopping = True
        self._browsing.stop(PROBE_SECONDS)
        self._job.stop(PROBE_SECONDS + 2.0)
        if self._browser is not None:
            self._browser.close()

    def lost(self, endpoints: Sequence[str]) -> None:
        """Nobody answers there any more: whoever answers next counts as discovered."""
        with self._lock:
            for endpoint in endpoints:
                self._known.pop(endpoint, None)

    def suggest(self, source: str, endpoints: Sequence[str]) -> None:
        """`source` names these endpoints, in place of those it named before: they are probed soon, known or not."""
        named = [endpoint for endpoint in map(_usable, endpoints) if endpoint]
        with self._lock:
            self._suggestions.suggest(source, named, time.monotonic())
            for endpoint in named:
                self._known.pop(endpoint, None)
            self._job.wake()

    def withdraw(self, source: str) -> None:
        """`source` names nothing any more. Whoever is known there stays, as long as it answers."""
        with self._lock:
            self._suggestions.withdraw(source)

    def configure(self, *, groups: Sequence[str] | None, locators: Sequence[str]) -> None:
        """Look for other groups and ask other locators from now on. Raises ConfigurationError."""
        checked = tuple(dict.fromkeys(map(check_endpoint, locators)))
        with self._lock:
            self._groups = None if groups is None else frozenset(groups)
            self._locators = checked
            named = {self._known[e] for e in self._known if e in checked or e in self._suggestions}
            gone = set(self._known.values()) - named
            self._known.clear()  # all are asked again, as the groups may have changed
            self._problems = {at: _Problem(each.why, each.is_closed) for at, each in self._problems.items()}
            self._job.wake()
        for service_id in gone:
            self._discarded(service_id)

    def wants(self, endpoint: str) -> bool:
        """Whether a locator or anybody else names the endpoint."""
        with self._lock:
            return endpoint in self._locators or endpoint in self._suggestions

    def asked(self) -> dict[str, str]:
        """The endpoints that are asked, the locators and what others suggest, each with why no lookup service of ours
        has answered there: "" if one has, or it was not asked yet."""
        with self._lock:
            return {e: self._problems.get(e, _NONE).why for e in dict.fromkeys([*self._locators, *self._suggestions])}

    def refusals(self) -> dict[str, AccessDeniedError]:
        """Refusals of the endpoints that are asked, if each of them does not let us in; {} if another one may."""
        with self._lock:
            asked = {*self._locators, *self._suggestions}
            refused = {at: why for at in asked if (why := self._problems.get(at, _NONE).refusal) is not None}
            return refused if len(refused) == len(asked) and time.monotonic() >= self._heard else {}

    def is_alone(self) -> bool:
        """Whether every endpoint that is asked has refused the connection, and whoever announces itself was heard."""
        with self._lock:
            asked = (self._problems.get(each, _NONE) for each in (*self._locators, *self._suggestions))
            return all(each.is_closed for each in asked) and time.monotonic() >= self._heard

    def _round(self) -> float:
        """Probe what is due; seconds until the next round."""
        if (left := self._round_at - time.monotonic()) > 0:
            return left
        try:
            for endpoint in self._due():
                self._probe(endpoint)
        finally:
            self._round_at = time.monotonic() + ROUND_SECONDS
            if self._multicast and not self._known:
                self._browsing.wake()
        return ROUND_SECONDS if self._has_more else self._interval

    def _due(self) -> list[str]:
        with self._lock:
            now = time.monotonic()
            due = self._suggestions.due(now, self._known)
            self._has_more = len(due) > PROBES_A_ROUND
            refused = {at for at, each in self._problems.items() if each.due > now}
            return list(dict.fromkeys(at for at in (*self._locators, *due[:PROBES_A_ROUND]) if at not in refused))

    def _probe(self, endpoint: str) -> None:
        with self._lock:
            if self._stopping or endpoint in self._known:
                return
            seconds = self._problems.get(endpoint, _NONE).seconds or PROBE_SECONDS
        ref = ServiceRef("", EXPORTED, (endpoint,))
        info, problem = None, _Problem("its answer makes no sense")
        with guarded("discovery probe"):
            try:
                info = self._describe(ref, seconds)
            except JbiError as exc:
                refusal = exc if isinstance(exc, AccessDeniedError) else None
                is_late = isinstance(exc, WireTimeoutError) and endpoint in self._locators
                longer = min(2 * seconds, PROBE_MOST) if is_late else 0.0
                is_closed = isinstance(exc.__cause__, ConnectionRefusedError)
                problem = _Problem(exc.message, is_closed, refusal, seconds=longer)
        if info is None:
            log.debug("no lookup service at %s: %s", endpoint, problem.why)
            with self._lock:
                self._suggestions.failed(endpoint, time.monotonic())
                self._note(endpoint, problem)
            if problem.refusal is not None:
                self._refused()
            return
        with self._lock:
            wanted = self._take(endpoint, info)
            why = "" if wanted else f"it serves {shown_groups(info.groups)}"
            self._note(endpoint, _Problem(why, seconds=seconds))
        if info.service_id == self._own:
            return
        with guarded("discovery"):
            if wanted:
                self._discovered(msgspec.structs.replace(ref, service_id=info.service_id), info)
            elif not self._serves(info.groups):
                self._discarded(info.service_id)

    def _describe(self, ref: ServiceRef, seconds: float) -> RegistrarInfo:
        """Identity of the lookup service that answers there. Raises JbiError when it is none."""
        proxy = RegistrarProxy(ref, self._security, timeout=seconds)
        try:
            info = proxy.describe()
        finally:
            proxy.close()
        is_odd = any(len(name) > MAX_NAME or not name.isprintable() for name in (info.service_id, *info.groups))
        if not info.service_id or len(info.groups) > MAX_GROUPS or is_odd:
            raise ProtocolError("what answers there has an id or groups that no lookup service has")
        return info

    def _note(self, endpoint: str, problem: _Problem) -> None:
        """Called under the lock."""
        if problem.refusal is not None:
            known = self._problems.get(endpoint, _NONE).backoff
            # without jitter: shorter pauses would lock out sooner
            backoff = known or Backoff(PAUSE_FIRST, REFUSED_MOST, lambda: 1.0)
            problem = problem._replace(due=time.monotonic() + backoff.pause(), backoff=backoff)
        self._problems[endpoint] = problem
        for forgotten in self._problems.keys() - {endpoint, *self._locators, *self._suggestions}:
            del self._problems[forgotten]

    def _take(self, endpoint: str, info: RegistrarInfo) -> bool:
        """Note who has answered; whether we want it. Called under the lock."""
        known = set(self._known.values())
        room = endpoint in self._locators or info.service_id in known or len(known) < MAX_SUGGESTED
        if self._serves(info.groups) and room:
            self._suggestions.answered(endpoint, time.monotonic())
            self._known[endpoint] = info.service_id
            return True
        if not room:
            log.warning(
                "lookup service at %s not joined: the limit of %d without a locator is reached", endpoint, MAX_SUGGESTED
            )
        else:
            self._known = {at: who for at, who in self._known.items() if who != info.service_id}
        self._suggestions.failed(endpoint, time.monotonic())
        return False

    def _serves(self, groups: Iterable[str]) -> bool:
        return self._groups is None or not self._groups.isdisjoint(groups)

    def _browse(self) -> None:
        if self._stopping or not self._multicast:
            return
        self._multicast = False  # once
        from jbi_pubsub.lookup.client.multicast import Browser

        try:
            self._browser = Browser(
                self._interfaces(), self._announced, lambda name: self.withdraw(f"mdns {name}"), lambda: self._stopping
            )
        except ConfigurationError as exc:
            log.warning("%s: using only the locators", exc.message)

    def _announced(self, name: str, endpoints: list[str], groups: list[str] | None) -> None:
        if groups is None or self._serves(groups):
            self.suggest(f"mdns {name}", endpoints)


def shown_groups(groups: Iterable[str] | None) -> str:
    """Groups as people read them: "" is the public one, None means all."""
    if groups is None:
        return "any group"
    return " and ".join(f"the group {group}" if group else "the public group" for group in groups) or "no group"


def _usable(endpoint: str) -> str:
    """Endpoint that somebody suggests, as host:port in the usual form; "" if it is none, or means every interface."""
    try:
        checked = check_endpoint(endpoint)
    except ConfigurationError:
        return ""
    return "" if split_endpoint(checked)[0] in ANY else checked
