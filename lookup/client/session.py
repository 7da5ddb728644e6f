"""One client process at one lookup service: keeps what is joined and watched there, through every failure.

Theory of operation: the session knows what is wanted (items to hold, caches to feed) and what it has there (leases,
event registrations). Its one thread brings the second to the first, renews at 7/8 of the shortest term, and after
each failure connects again with capped exponential backoff and jitter. Events come over a data connection of
their own. Register first, then look up; older numbers are dropped; a gap leads to another lookup. Of the items it
looks at what has changed alone (`_news`): others may be many thousands.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final
from uuid import uuid4

import msgspec

from jbi_pubsub.core.backoff import Backoff
from jbi_pubsub.core.config import Config
from jbi_pubsub.core.errors import JbiError, ProtocolError, WireError, rebuild
from jbi_pubsub.core.guard import guarded
from jbi_pubsub.core.values import decoded, decoder_of
from jbi_pubsub.core.wire import ServiceRef
from jbi_pubsub.core.wire.control import DEFAULT_TIMEOUT
from jbi_pubsub.core.wire.endpoint import Security
from jbi_pubsub.core.wire.tls import is_about_tls
from jbi_pubsub.lookup.client.events import EventConnection
from jbi_pubsub.lookup.client.proxy import DIAGNOSTIC, EVENT, EVERYTHING, GAP, RegistrarProxy
from jbi_pubsub.lookup.client.states import (
    LINK,
    LinkEvent,
    LinkState,
    RegistrarWatch,
    SessionOwner,
    Watcher,
    WatchEvent,
    WatchState,
)
from jbi_pubsub.lookup.item import (
    ALL_TRANSITIONS,
    EventDiagnostic,
    LeaseResult,
    ServiceEvent,
    ServiceItem,
    Transition,
)

log = logging.getLogger("jbi_pubsub.lookup")

RENEW_AT: Final = 7 / 8
"""Part of the shortest term after which all leases are renewed (Jini's LeaseRenewalManager: 1/8 before the end). If an
outage costs them, everything is registered again and nothing is lost."""
RENEW_LEAST: Final = 0.05
"""Seconds between two renewals, however short the leases that a lookup service grants."""
BACKOFF_FIRST: Final = 0.1
BACKOFF_MOST: Final = 10.0
"""Seconds between two tries to reach a lookup service again; long enough not to crowd a 7,200 bps link."""
REFUSED_MOST: Final = 60.0
"""Seconds at most until what was refused is asked for again: a disk may have room by then, or another class have gone.
The first pause is that between two signs of life, each is twice the one before."""
STOP_SECONDS: Final = 5.0
"""For a session to cancel what it holds; a lookup service that takes longer notices by the leases."""
MAX_ENDPOINTS: Final = 8
"""Endpoints of one lookup service that are remembered: one for each interface, and one from before its port changed."""


LEASES_FIRST: Final = 64
LEASES_MOST: Final = 8192
"""Leases in one call: 64 are 3 kB each way, 6.3 s of 7,200 bit/s, of the 10 s that a call has; 8,192 are some 20 ms of
work for a lookup service."""
SOON: Final = 1.0
"""Seconds: what has been answered within them takes some two for twice as much."""
KEY_DIGITS: Final = 20
"""Digits of the key of a watch at most: it is an address of 64 bits."""


@dataclass(slots=True)
class _Joined:
    item: ServiceItem
    lease_id: str


@dataclass(slots=True)
class _Refused:
    wanted: object  # the item, or the watcher
    why: JbiError
    pause: float
    again: float  # monotonic seconds


class RegistrarSession:
    """Holds items and watches at one lookup service. `_changed` covers the wanted state and the event numbers."""

    def __init__(
        self,
        ref: ServiceRef,
        security: Security,
        config: Config,
        name: str,
        owner: SessionOwner,
    ) -> None:
        """`name`: that of the process."""
        self._owner = owner
        self.ref = ref
        self.registrar_id = ref.service_id
        self._security = security
        self._config = config
        self._is_told = False
        """That it is away because of TLS."""
        self._proxy = _calls(self.ref, security, config)
        self._listener = uuid4().hex
        self._changed = threading.Condition()
        self._items: dict[str, ServiceItem] = {}
        self._watchers: dict[int, Watcher] = {}
        self._joined: dict[str, _Joined] = {}
        self._watched: dict[int, RegistrarWatch] = {}
        self._ending: list[str] = []
        """Leases of what is wanted no more, until the lookup service has confirmed their end."""
        self._refused: dict[str | int, _Refused] = {}
        """By service id, or key of the watch."""
        self._news: dict[str, None] = {}
        """Service ids of items that are wanted or not since they were last looked at."""
        self._dirty = True
        self._renew_by = math.inf  # monotonic seconds; only the session's thread has to do with it
        self.state = LINK.initial
        self.away_since: float | None = None
        """When it stopped to answer (monotonic seconds), None while it answers or was never tried."""
        self._events = EventConnection(
            security, name=name, compression=config.link.compression, receive=self._receive, lost=self._wake
        )
        self._thread = threading.Thread(target=self._run, name=f"{name}-registrar", daemon=True)

    @property
    def connected(self) -> bool:
        """Whether the lookup service answers."""
        return self.state is LinkState.CONNECTED

    @property
    def has_left(self) -> bool:
        """Whether it is ending, or has ended."""
        return self.state is LinkState.LEFT

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def leave(self) -> None:
        """Begin to end."""
        with self._changed:
            self.state = LINK.after(self.state, LinkEvent.LEAVING)
            self._changed.notify_all()

    def stop(self, timeout: float = STOP_SECONDS) -> None:
        """Cancel what is held, if the lookup service answers, and end."""
        self.leave()
        self._thread.join(timeout)
        self._proxy.close()  # wakes a call that hangs
        self._events.close()

    def reach(self, endpoint: str) -> None:
        """The lookup service answers at `endpoint` (too): tried first from now on."""
        with self._changed:
            others = tuple(known for known in self.ref.endpoints if known != endpoint)
            self.ref = msgspec.structs.replace(self.ref, endpoints=(endpoint, *others)[:MAX_ENDPOINTS])
            self._changed.notify_all()  # it may be waiting to try the old ones again

    def leave_endpoint(self, endpoint: str) -> bool:
        """Another lookup service answers at `endpoint`. Whether it was the last one of this."""
        with self._changed:
            others = tuple(known for known in self.ref.endpoints if known != endpoint)
            if others:
                self.ref = msgspec.structs.replace(self.ref, endpoints=others)
            return not others

    def want(self, items: Mapping[str, ServiceItem | None], watchers: Mapping[int, Watcher]) -> None:
        """Hold these items (None: no more) beside the others, and feed these watchers alone, from now on."""
        with self._changed:
            for service_id, item in items.items():
                if item is None:
                    self._items.pop(service_id, None)
                else:
                    self._items[service_id] = item
            self._news |= dict.fromkeys(items)
            self._watchers = dict(watchers)
            self._dirty = True
            self._changed.notify_all()

    def holds(self, item: ServiceItem) -> bool:
        """Whether this very item is registered there now."""
        with self._changed:
            joined = self._joined.get(item.service_id)
            return joined is not None and joined.item == item

    def refusal(self, item: ServiceItem) -> JbiError | None:
        """Why this very item is refused there, if it is."""
        refused = self._refused.get(item.service_id)
        return refused.why if refused is not None and refused.wanted == item else None

    def watches(self, watcher: Watcher) -> bool:
        """Whether the watcher has been brought to what is there, and is told of what changes."""
        with self._changed:
            watched = self._watched.get(id(watcher))
            return watched is not None and watched.watcher is watcher and watched.state is WatchState.CURRENT

    # -- the thread ---------------------------------------------------------------------------------------------

    def _run(self) -> None:
        backoff = Backoff(BACKOFF_FIRST, BACKOFF_MOST)
        while not self.has_left:
            with guarded("lookup session"):
                try:
                    self._connect()
                    while self._work():
                        backoff.reset()  # not before: who answers the first call may fail at the next, always
                except JbiError as exc:
                    self._tell_away(exc)
            self._fail()
            with self._changed:
                if not self.has_left:
                    self._changed.wait(backoff.pause())
        with guarded("lookup session"):
            self._leave()

    def _fail(self) -> None:
        with self._changed:
            if self.away_since is None:
                self.away_since = time.monotonic()
            self.state = LINK.after(self.state, LinkEvent.FAILED)
        with guarded("lookup session"):
            self._owner.away(self.registrar_id)
        self._owner.progress()

    def _tell_away(self, why: JbiError) -> None:
        """Log that the service is away: what passes by itself is no warning; what somebody has to mend is one, once."""
        is_news = is_about_tls(why) and not self._is_told
        begins = self.away_since is None
        level = logging.WARNING if is_news else logging.INFO if begins else logging.DEBUG
        log.log(level, "lookup service %s is away: %s", ", ".join(self.ref.endpoints), why)
        self._is_told = self._is_told or is_news

    def _connect(self) -> None:
        if self._proxy.ref != self.ref:  # it answers elsewhere now
            self._proxy.close()
            self._proxy = _calls(self.ref, self._security, self._config)
        # one that was not tried yet has been asked just now, by discovery
        if self.state is not LinkState.UNTRIED and self._proxy.describe().service_id != self.registrar_id:
            raise WireError(f"another lookup service answers at {self.ref.endpoints}")
        self._open_events()
        with self._changed:
            self.state, self.away_since = LINK.after(self.state, LinkEvent.ANSWERED), None
            self._dirty = True
            self._is_told = False
            for watched in self._watched.values():
                watched.follow(WatchEvent.MISSED)  # perhaps, while we were away
        self._owner.progress()
        for refused in self._refused.values():
            refused.again = -math.inf  # it may be another one by now
        self._renew()

    def _work(self) -> bool:
        """One round: bring what is held to what is wanted, renew, wait for the next reason. False: stop."""
        self._reconcile()
        self._events.check()
        due = self._renew_by
        with self._changed:
            if self.has_left:
                return False
            if not self._dirty and due > time.monotonic():
                self._changed.wait(min(due - time.monotonic(), self._config.lookup.probe))
            idle = not self._dirty
        if due <= time.monotonic():
            self._renew()
        elif idle:
            self._proxy.describe()  # a sign of life; raises when it is gone
        return not self.has_left

    def _reconcile(self) -> None:
        now = time.monotonic()
        with self._changed:
            self._dirty = False
            watchers = dict(self._watchers)
            # A watcher that is gone may have left its key to another: keys are addresses.
            self._ending += [w.lease_id for key, w in self._watched.items() if watchers.get(key) is not w.watcher]
            self._watched = {key: w for key, w in self._watched.items() if watchers.get(key) is w.watcher}
            again = [key for key, refused in self._refused.items() if isinstance(key, str) and refused.again <= now]
            news = self._news | dict.fromkeys(again)
            gone = [service_id for service_id in news if service_id in self._joined and service_id not in self._items]
            self._ending += [self._joined.pop(service_id).lease_id for service_id in gone]
        self._refused = {
            key: refused
            for key, refused in self._refused.items()
            if (self._items.get(key) if isinstance(key, str) else watchers.get(key)) is refused.wanted
        }
        self._cancel()
        for service_id in news:
            self._bring(service_id)
        for key, watcher in reversed(watchers.items()):  # of other lookup services last: nobody waits for that
            if key not in self._watched:
                if self._may_ask(key):
                    self._breathe()
                    self._watch(key, watcher)
            elif self._watched[key].state is WatchState.STALE:
                self._resync(self._watched[key])

    def _bring(self, service_id: str) -> None:
        """One item as it is wanted now. If that does not come to an end, it is news still."""
        with self._changed:
            self._news.pop(service_id, None)
            item, joined = self._items.get(service_id), self._joined.get(service_id)
        if item is None or (joined is not None and joined.item == item) or not self._may_ask(service_id):
            return
        try:
            self._breathe()
            self._join(item)
        except JbiError:
            with self._changed:
                self._news[service_id] = None
            raise

    def _join(self, item: ServiceItem) -> None:
        begun = time.monotonic()
        try:
            granted = self._proxy.register(
                item, self._config.lease.lookup, self._owner.key(self.registrar_id, item.service_id)
            )
        except JbiError as exc:
            if self._refuse(item.service_id, item, exc):
                log.error("lookup service %s refuses %s: %s", self.ref.endpoints, item.service_id, exc)
                self._owner.refused(item.service_id, exc)
                self._owner.progress()
            return
        self._refused.pop(item.service_id, None)
        with self._changed:
            is_new = item.service_id not in self._joined
            self._joined[item.service_id] = _Joined(item, granted.lease_id)
        if is_new:
            self._owner.joined(item.service_id, granted.told)
        self._owner.progress()
        self._renew_within(granted.duration, begun)

    def _watch(self, key: int, watcher: Watcher) -> None:
        begun = time.monotonic()
        try:
            # Register first, then look up: a change between the two is seen twice, never missed.
            granted = self._proxy.notify(
                watcher.template, int(ALL_TRANSITIONS), self._config.lease.lookup, str(key), self._listener
            )
        except JbiError as exc:
            if self._refuse(key, watcher, exc):
                with guarded("lookup watcher"):
                    watcher.refused(self.registrar_id, exc)
                self._owner.progress()
            return
        self._refused.pop(key, None)
        watched = RegistrarWatch(watcher, granted.event_id, granted.number, granted.lease_id)
        with self._changed:
            self._watched[key] = watched
        self._renew_within(granted.duration, begun)
        self._resync(watched)

    def _may_ask(self, key: str | int) -> bool:
        refused = self._refused.get(key)
        return refused is None or refused.again <= time.monotonic()

    def _refuse(self, key: str | int, wanted: object, why: JbiError) -> bool:
        """Note a refusal, to be asked for again after a pause if still wanted; whether this is the first time. Raises
        `why` when it is no refusal but a failure of the connection."""
        if isinstance(why, WireError) and not isinstance(why, ProtocolError):
            raise why
        before = self._refused.get(key)
        pause = min(2 * before.pause, REFUSED_MOST) if before else self._config.lookup.probe
        self._refused[key] = _Refused(wanted, why, pause, time.monotonic() + pause)
        return before is None

    def _resync(self, watched: RegistrarWatch) -> None:
        """Look up all that matches, page by page, and bring the watcher to it.

        Invariant: of a service with no event since the lookup began, every page that could show it shows the truth: it
        either matched unchanged all the while, and is in a page (ServiceMatches), or never did, and is in none. Of
        any other the last event tells the truth, whatever a page said before or behind it; so it is applied last. Lost
        events show as a gap, and that as another resync.
        """
        with self._changed:
            watched.follow(WatchEvent.ASKED)
            watched.held = {}
        try:
            self._look(watched)
        except BaseException:
            with self._changed:
                watched.follow(WatchEvent.FAILED)
            raise
        self._owner.progress()

    def _look(self, watched: RegistrarWatch) -> None:
        watcher = watched.watcher
        found: dict[str, ServiceItem] = {}
        why: JbiError | None = None
        try:
            for page in self._proxy.pages(watcher.template, EVERYTHING):
                found.update((item.service_id, item) for item in page.items)
                if page.after:
                    self._breathe()
        except WireError:
            raise
        except JbiError as exc:  # the registrar's own: it would say the same again
            found.clear()
            why = exc
        with guarded("lookup watcher"):
            watcher.snapshot(self.registrar_id, tuple(found.values()))
            if why is not None:
                watcher.refused(self.registrar_id, why)
        self._events.check()
        while True:
            with self._changed:
                held, watched.held = watched.held, {}
                if not held:
                    watched.follow(WatchEvent.BROUGHT)
                    return
            for event in held.values():
                self._tell(watcher, event)

    def _breathe(self) -> None:
        """Between two of many calls: leases must not run out over them, nor an end be kept waiting."""
        self._check_going_on()
        if self._renew_by <= time.monotonic():
            self._renew()

    def _check_going_on(self) -> None:
        if self.has_left:
            raise WireError("left in the middle of its work")

    # -- leases -------------------------------------------------------------------------------------------------

    def _held(self) -> list[_Joined | RegistrarWatch]:
        return [*self._joined.values(), *self._watched.values()]

    def _renew_within(self, term: float, granted: float) -> None:
        """A lease was granted, at the latest at that moment. It puts off no other, or those that come and go would end
        those that stay."""
        self._renew_by = min(self._renew_by, granted + max(RENEW_LEAST, term * RENEW_AT))

    def _renew(self) -> None:
        with self._changed:
            leases = [held.lease_id for held in self._held()]
        begun = time.monotonic()
        results: list[LeaseResult] = []
        for part in self._parts(leases):
            self._check_going_on()
            results += self._proxy.renew([(lease, self._config.lease.lookup) for lease in part])
        took = time.monotonic() - begun
        terms = [result.duration for result in results if result.error is None]
        self._renew_by = begun + max(RENEW_LEAST, min(terms, default=math.inf) * RENEW_AT - took)
        gone = {result.lease_id for result in results if result.error is not None}
        if gone:
            with self._changed:  # forgotten here, so the next round registers again
                self._news |= dict.fromkeys(k for k, j in self._joined.items() if j.lease_id in gone)
                self._joined = {k: j for k, j in self._joined.items() if j.lease_id not in gone}
                self._watched = {k: w for k, w in self._watched.items() if w.lease_id not in gone}
                self._dirty = True

    def _parts(self, leases: list[str]) -> Iterator[list[str]]:
        """The leases, in as many calls as it takes: a slow link carries few within the time that a call has. So there
        are few in the first, and twice as many in each as long as the answers come soon."""
        at, count = 0, LEASES_FIRST
        while at < len(leases):
            begun = time.monotonic()
            yield leases[at : at + count]
            at += count
            if time.monotonic() - begun < SOON:
                count = min(2 * count, LEASES_MOST)

    def _cancel(self) -> None:
        """End what is wanted no more. Nobody renews it, so it ends by itself if nobody answers; but not so soon."""
        for part in self._parts(self._ending):
            self._proxy.cancel(part)
        self._ending = []

    def _leave(self) -> None:
        with self._changed:
            self._ending += [held.lease_id for held in self._held()]
            self._joined, self._watched = {}, {}
        try:
            self._cancel()
        except JbiError as exc:
            log.debug("leases at %s will expire: %s", self.ref.endpoints, exc)

    # -- events -------------------------------------------------------------------------------------------------

    def _open_events(self) -> None:
        self._events.close()
        self._events.open(self.ref, self._proxy.open_events(self._listener))

    def _wake(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def _receive(self, items: list[memoryview]) -> None:
        for item in items:
            kind = bytes(item[:1])
            if kind == EVENT:
                self._dispatch(decoded(decoder_of(ServiceEvent), item[1:], "event"))
            elif kind == DIAGNOSTIC:
                self._diagnose(decoded(decoder_of(EventDiagnostic), item[1:], "event"))
            elif kind == GAP:
                self._look_again()
            else:
                raise ProtocolError(f"event of kind {kind!r}")

    def _look_again(self) -> None:
        with self._changed:
            for watched in self._watched.values():
                watched.follow(WatchEvent.MISSED)
            self._dirty = True
            self._changed.notify_all()

    def _diagnose(self, diagnostic: EventDiagnostic) -> None:
        with self._changed:
            watched = self._watched_for(diagnostic)
        if watched is not None:
            with guarded("lookup watcher"):
                watched.watcher.refused(self.registrar_id, rebuild(diagnostic.error))

    def _dispatch(self, event: ServiceEvent) -> None:
        with self._changed:
            watched = self._watched_for(event)
            if watched is None:
                self._dirty = True  # the event overtook the answer to notify: its lookup comes after it anyway
                return
            if event.number <= watched.number:
                return
            if event.number > watched.number + 1:
                watched.follow(WatchEvent.MISSED)
                self._dirty = True
                self._changed.notify_all()
            watched.number = event.number
            if watched.state in (WatchState.LOOKING, WatchState.LOOKING_STALE):
                watched.held.pop(event.service_id, None)  # the newest stands last
                watched.held[event.service_id] = event
                return
            is_wanted = self._watchers.get(id(watched.watcher)) is watched.watcher
        if is_wanted:
            self._tell(watched.watcher, event)

    def _tell(self, watcher: Watcher, event: ServiceEvent) -> None:
        # one that has ceased to match by a change of its entries comes with them
        item = None if event.transition == Transition.MATCH_NOMATCH else event.item
        with guarded("lookup watcher"):
            watcher.changed(self.registrar_id, event.service_id, item)

    def _watched_for(self, event: ServiceEvent | EventDiagnostic) -> RegistrarWatch | None:
        """The watch that an event is for: its key was the handback. Looking for the event id would cost a step for each
        watch, and a service that comes may concern them all."""
        handback = event.handback
        known = handback.isascii() and handback.isdigit() and len(handback) <= KEY_DIGITS
        watched = self._watched.get(int(handback)) if known else None
        return watched if watched is not None and watched.event_id == event.event_id else None


def _calls(ref: ServiceRef, security: Security, config: Config) -> RegistrarProxy:
    """Calls of a lookup service; one that takes longer than [lookup] timeout has failed."""
    return RegistrarProxy(ref, security, timeout=max(DEFAULT_TIMEOUT, config.lookup.timeout))
