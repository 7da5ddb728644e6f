"""A process in the community: JoinManager keeps items registered and caches fed at every lookup service found.

Shared by delegates, peer publishers, subscribers, the command line, and lookup services themselves. Each lookup service
has a session of its own, so that one that hangs holds up nobody else; a new one is joined as it appears.

Lookup services are registered like any other service, with themselves and with each other. So who knows one learns of
the others there, without multicast: each such item is a suggestion to discovery, which asks the lookup service itself.
"""

from __future__ import annotations

import hmac
import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from hashlib import sha256
from secrets import token_hex
from typing import Final, NamedTuple

import msgspec

from jbi_pubsub.core.config import Config
from jbi_pubsub.core.errors import (
    AccessDeniedError,
    AdapterStateError,
    JbiError,
    LookupNotFoundError,
    UnknownUidError,
    WireError,
)
from jbi_pubsub.core.guard import guarded
from jbi_pubsub.core.wire import ServiceRef
from jbi_pubsub.lookup.administration import ALL_GROUPS
from jbi_pubsub.lookup.client.discovery import LookupDiscovery, shown_groups
from jbi_pubsub.lookup.client.finder import LookupCache, ServiceListener
from jbi_pubsub.lookup.client.proxy import LOOKUP_TYPE, RegistrarInfo, RegistrarProxy
from jbi_pubsub.lookup.client.session import STOP_SECONDS, RegistrarSession
from jbi_pubsub.lookup.entry import EntryRep, check_rep, matches
from jbi_pubsub.lookup.item import BOUNDS, ServiceItem, ServiceTemplate

log = logging.getLogger("jbi_pubsub.lookup")


_START_HINT: Final = "Start one with `jbi lookup`, or name its host:port in [lookup] locators"
_LOOK_SECONDS: Final = 0.25
"""Between two looks whether all addresses refuse the connection."""
_HINTS: Final = {
    "shows a certificate for": "Have its certificate issued for that address, or name it in [tls] server_names",
    "TLS": "Check [tls] at both ends: certificate, key and ca",
}
"""By what failed."""


class _JoinedItem(NamedTuple):
    item: ServiceItem
    secret: str
    """The secret that its keys are made from."""
    controlled: frozenset[str]
    """Entry classes that nobody else may add, change or remove entries of."""


class JoinedItems:
    """Items of a process, as they are to be registered everywhere. Whoever has them has a lock that covers them."""

    def __init__(self, secret: str) -> None:
        """`secret`: that of items which have none of their own."""
        self._secret = secret
        self._joined: dict[str, _JoinedItem] = {}

    def all(self) -> dict[str, ServiceItem]:
        """All of them, by their service ids."""
        return {service_id: joined.item for service_id, joined in self._joined.items()}

    def item(self, service_id: str) -> ServiceItem:
        """The item of that id. Raises UnknownUidError."""
        found = self._joined.get(service_id)
        if found is None:
            raise UnknownUidError(f"no service {service_id} of this process", uid=service_id)
        return found.item

    def put(self, item: ServiceItem, secret: str) -> None:
        """Have one more, or another one of its id."""
        controlled = frozenset(name for e in item.entries for name, _ in e.cls.lineage)
        self._joined[item.service_id] = _JoinedItem(item, secret or self._secret, controlled)

    def drop(self, service_id: str) -> None:
        """Have it no more."""
        self._joined.pop(service_id, None)

    def key(self, service_id: str, registrar_id: str) -> str:
        """Key of an item at one lookup service: it tells nothing of those at the others."""
        joined = self._joined.get(service_id)
        secret = self._secret if joined is None else joined.secret
        return hmac.new(secret.encode(), f"{registrar_id} {service_id}".encode(), sha256).hexdigest()

    def add_entries(self, service_id: str, entries: Sequence[EntryRep]) -> ServiceItem:
        """The item with these entries too, from now on."""
        item = self._changeable(service_id, entries)
        added = (*item.entries, *(e for e in entries if e not in item.entries))
        item = msgspec.structs.replace(item, entries=added)
        BOUNDS.check("item", item)
        return self._replace(item)

    def remove_entries(self, service_id: str, templates: Sequence[EntryRep]) -> ServiceItem:
        """The item without the entries that match any of the templates, from now on."""
        item = self._changeable(service_id, templates)
        kept = tuple(e for e in item.entries if not any(matches(t, e) for t in templates))
        return self._replace(msgspec.structs.replace(item, entries=kept))

    def _changeable(self, service_id: str, entries: Sequence[EntryRep]) -> ServiceItem:
        """The item, whose entries of such classes others may change."""
        item = self.item(service_id)
        for entry in map(check_rep, entries):
            denied = [name for name, _ in entry.cls.lineage if name in self._joined[service_id].controlled]
            if denied:
                raise AccessDeniedError(
                    f"entries of class {denied[0]} are controlled by the service itself",
                    hint="Add entries of a class of your own",
                    entry_class=denied[0],
                )
        return item

    def _replace(self, item: ServiceItem) -> ServiceItem:
        self._joined[item.service_id] = self._joined[item.service_id]._replace(item=item)
        return item


class _WantedThere(NamedTuple):
    """All that is wanted at lookup services, and the condition that covers it."""

    changed: threading.Condition
    items: JoinedItems
    caches: dict[int, LookupCache]


class RegistrarSessions:
    """The lookup services found so far, with a session each, of which it is the owner; and the listener of what they
    list of each other. The condition of what is wanted covers them."""

    def __init__(
        self,
        config: Config,
        name: str,
        own: str,
        wanted: _WantedThere,
        progress: Callable[[], None],
        joined: Callable[[str, int], None],
        refused: Callable[[str, JbiError], None],
    ) -> None:
        """`progress` is called when there are others, or one has got further; the others as those of JoinManager.
        Raises ConfigurationError."""
        self._config, self._name, self._own = config, name, own
        self._wanted = wanted
        self.progress, self.joined, self.refused = progress, joined, refused
        self.is_closed = False
        self._sessions: dict[str, RegistrarSession] = {}
        self._handing_over: set[threading.Timer] = set()
        self._listed = LookupCache(ServiceTemplate(types=(LOOKUP_TYPE,)), self)
        """Lookup services that are listed at some."""
        wanted.caches[id(self._listed)] = self._listed
        self._security = config.security()
        self.discovery = LookupDiscovery(
            groups=None if ALL_GROUPS in config.lookup.groups else config.lookup.groups,
            locators=config.lookup.locators,
            multicast=config.lookup.multicast,
            interfaces=lambda: _interfaces(config),
            security=self._security,
            interval=min(config.lookup.probe, 1.0),
            discovered=self._discovered,
            discarded=self._discarded,
            own=own,
            refused=progress,
        )

    def close(self) -> None:
        """Leave all, and end all threads."""
        with self._wanted.changed:
            self.is_closed = True
            sessions, timers = self.all(), list(self._handing_over)
        self.progress()  # whoever waits for a lookup service waits in vain
        for timer in timers:
            timer.cancel()
        for session in sessions:
            session.leave()
        deadline = time.monotonic() + STOP_SECONDS
        self.discovery.stop()
        for session in sessions:  # they leave together: those that hang have the same seconds
            session.stop(max(0.0, deadline - time.monotonic()))

    def all(self) -> list[RegistrarSession]:
        """One session for each lookup service found so far."""
        with self._wanted.changed:
            return list(self._sessions.values())

    def service_added(self, item: ServiceItem) -> None:
        """A lookup service is registered somewhere: it is asked, and joined if it is one of our groups."""
        if item.service_id != self._own:
            self.discovery.suggest(f"item {item.service_id}", item.proxy.endpoints)

    def service_changed(self, old: ServiceItem, new: ServiceItem) -> None:  # noqa: ARG002  # the listener's form
        """The lookup service has other groups or another address: it is asked again."""
        self.service_added(new)

    def service_removed(self, item: ServiceItem) -> None:
        """A lookup service is registered nowhere any more. As long as it answers it stays joined."""
        self.discovery.withdraw(f"item {item.service_id}")

    def key(self, registrar: str, service_id: str) -> str:
        """Key of an item at a lookup service."""
        with self._wanted.changed:
            return self._wanted.items.key(service_id, registrar)

    def _discovered(self, ref: ServiceRef, info: RegistrarInfo) -> None:
        endpoint = ref.endpoints[0]
        with self._wanted.changed:
            if self.is_closed:
                return
            # A restarted lookup service without state has another id: what stood at its endpoint is over.
            others = [s for key, s in self._sessions.items() if key != info.service_id and endpoint in s.ref.endpoints]
            ended = [s for s in others if s.leave_endpoint(endpoint)]
            for old in ended:
                del self._sessions[old.registrar_id]
            known = self._sessions.get(info.service_id)
            session = known or self._session(ref)
        if known is not None:
            known.reach(endpoint)
        else:
            self._start(session)
        for old in ended:
            self._end(old)
            self._hand_over(old, session)
        self.progress()

    def _start(self, session: RegistrarSession) -> None:
        """If the system has no thread for it, the lookup service is found again with the next probe."""
        try:
            session.start()
        except RuntimeError as exc:
            log.warning("no session at lookup service %s for now: %s", session.ref.endpoints, exc)
            with self._wanted.changed:
                del self._sessions[session.registrar_id]
            self.discovery.lost(session.ref.endpoints)

    def _session(self, ref: ServiceRef) -> RegistrarSession:
        made = RegistrarSession(ref, self._security, self._config, self._name, self)
        made.want(self._wanted.items.all(), self._wanted.caches)
        self._sessions[ref.service_id] = made
        return made

    def _end(self, session: RegistrarSession) -> None:
        """Its thread may be in a call, so it ends in the background."""

        def stop() -> None:
            with guarded("lookup leave"):
                session.stop()

        threading.Thread(target=stop, name=f"{self._name}-leave", daemon=True).start()

    def _discarded(self, registrar_id: str) -> None:
        """A lookup service is none of ours any more: what is held there is cancelled, what it lists counts no more."""
        with self._wanted.changed:
            session = self._sessions.pop(registrar_id, None)
            caches = list(self._wanted.caches.values())
        self.progress()
        if session is not None:
            self._end(session)
            for cache in caches:
                cache.forget(registrar_id)

    def away(self, registrar: str) -> None:
        """A lookup service does not answer. Once it has been silent for a lease, what it listed counts no more, if
        another one answers: its own leases would have run out as well."""
        with self._wanted.changed:
            session = self._sessions.get(registrar)
            another = any(s.connected for s in self._sessions.values())
            caches = list(self._wanted.caches.values())
        if session is None:
            return
        self.discovery.lost(session.ref.endpoints)
        since = session.away_since
        if since is None or time.monotonic() - since <= self._config.lease.lookup:
            return
        self._listed.changed(registrar, registrar, None)  # that it lists itself proves nothing any more
        if another:
            for cache in caches:
                cache.forget(registrar)
            if not any(map(self.discovery.wants, session.ref.endpoints)):
                self._discarded(registrar)  # nobody names it any more: if it comes back, it makes itself known

    def _hand_over(self, old: RegistrarSession, new: RegistrarSession) -> None:
        """Drop what only the ended lookup service listed, once services had the time to join the new one."""

        def forget() -> None:
            with self._wanted.changed:
                self._handing_over.discard(timer)
                caches = list(self._wanted.caches.values())
            with guarded("lookup hand-over"):
                for cache in caches:
                    cache.forget(old.registrar_id)

        timer = threading.Timer(2 * self._config.lease.lookup, forget)
        timer.name, timer.daemon = f"{self._name}-forget-{new.registrar_id[:8]}", True
        with self._wanted.changed:
            if self.is_closed:
                return
            self._handing_over.add(timer)
            timer.start()


class JoinManager:
    """Our side of all lookup services of our groups. `_changed` covers the wanted items and caches."""

    def __init__(
        self,
        config: Config,
        *,
        name: str,
        secret: str = "",
        own: str = "",
        joined: Callable[[str, int], None] = lambda service_id, told: None,  # noqa: ARG005  # nobody wants to know
        refused: Callable[[str, JbiError], None] = lambda service_id, why: None,  # noqa: ARG005  # nobody wants to know
    ) -> None:
        """`joined(service id, told)` is called when a lookup service has taken an item that it had not, and has told so
        many others of it; `refused(service id, why)` when one has refused an item. `secret` is what the keys of joined
        items are made from: the same over restarts for a process that keeps its service ids, else a new one. `own` is
        the id of the lookup service that this is for; it joins the others.

        Raises ConfigurationError.
        """
        self._config = config
        self._security = config.security()
        self._changed = threading.Condition()
        self._items = JoinedItems(secret or token_hex(16))
        self._caches: dict[int, LookupCache] = {}
        self._news = 0
        """Grows with all that may end a wait."""
        wanted = _WantedThere(self._changed, self._items, self._caches)
        self._registrars = RegistrarSessions(config, name, own, wanted, self._progress, joined, refused)
        self._registrars.discovery.start()

    def close(self) -> None:
        """Leave: cancel what is registered, end all threads."""
        self._registrars.close()

    def join(self, item: ServiceItem, secret: str = "") -> None:
        """Keep `item` (which has its service id) registered everywhere, or replace it.

        The entry classes that it has now are its own: nobody else may add, change or remove entries of them. Nobody
        else can replace the item either, unless told `secret`: that of whoever the item is registered for, if it is
        to be taken over by another process; by default this process's own.

        Raises AdapterStateError after `close`: it would be registered nowhere.
        """
        with self._changed:
            if self._registrars.is_closed:
                raise AdapterStateError(
                    f"service {item.service_id} can't be registered: this process has left the lookup services",
                    hint="Join before close()",
                )
            self._items.put(item, secret)
        self._push({item.service_id: item})

    def lookup_attributes(self, service_id: str) -> tuple[EntryRep, ...]:
        """The entries that an item of ours is registered with (Jini's JoinAdmin). Raises UnknownUidError."""
        with self._changed:
            return self._items.item(service_id).entries

    def add_lookup_attributes(self, service_id: str, entries: Sequence[EntryRep]) -> None:
        """An administrator adds entries, in every lookup service (Jini's JoinAdmin, LU.2.6).

        Raises UnknownUidError, EntryError (malformed), OversizeError, and AccessDeniedError for service-controlled
        classes.
        """
        with self._changed:
            item = self._items.add_entries(service_id, entries)
        self._push({service_id: item})

    def remove_lookup_attributes(self, service_id: str, templates: Sequence[EntryRep]) -> int:
        """An administrator removes the entries that match any of the templates; how many. Raises as above."""
        with self._changed:
            before = self._items.item(service_id)
            item = self._items.remove_entries(service_id, templates)
        self._push({service_id: item})
        return len(before.entries) - len(item.entries)

    def leave(self, *service_ids: str) -> None:
        """Cancel the items' registrations everywhere."""
        with self._changed:
            for service_id in service_ids:
                self._items.drop(service_id)
        self._push(dict.fromkeys(service_ids))

    def heard_of(self, item: ServiceItem) -> None:
        """A lookup service is registered somewhere: it is asked, and joined if it is one of our groups."""
        self._registrars.service_added(item)

    def look_in(self, groups: Sequence[str], locators: Sequence[str]) -> None:
        """Other groups and locators from now on: lookup services that are not of them are left.

        Raises ConfigurationError.
        """
        self._registrars.discovery.configure(groups=None if ALL_GROUPS in groups else groups, locators=locators)

    def watch(self, template: ServiceTemplate, listener: ServiceListener | None = None) -> LookupCache:
        """A cache of what matches `template`, now and later."""
        cache = LookupCache(template, listener)
        with self._changed:
            self._caches[id(cache)] = cache
        self._push({})
        return cache

    def unwatch(self, cache: LookupCache) -> None:
        """Stop feeding the cache."""
        with self._changed:
            self._caches.pop(id(cache), None)
        self._push({})

    def wait_joined(self, service_id: str, timeout: float) -> int:
        """Number of lookup services that hold the item as it is now, as soon as all that are connected do.

        Raises LookupNotFoundError when none answers within `timeout` seconds, and what one refused it with when none
        holds it.
        """
        with self._changed:
            item = self._items.item(service_id)
        self._wait(lambda session: session.holds(item) or session.refusal(item) is not None, timeout)
        sessions = self.sessions()
        held = sum(session.holds(item) for session in sessions)
        refusals = [why for session in sessions if (why := session.refusal(item)) is not None]
        if not held and refusals:
            raise refusals[0]
        return held

    def wait_watching(self, cache: LookupCache, timeout: float) -> int:
        """Number of lookup services that feed `cache`, as soon as all that are connected do.

        Raises LookupNotFoundError when none does within `timeout` seconds, and what a lookup service refused with.
        """
        watching = self._wait(lambda session: cache.error is not None or session.watches(cache), timeout)
        if (error := cache.error) is not None:
            raise error
        return watching

    def lookup(
        self, template: ServiceTemplate, limit: int = 1000, *, timeout: float | None = None, waited: float = 0.0
    ) -> list[ServiceItem]:
        """Matching items of all reachable lookup services, each service once.

        `timeout` seconds (default [lookup] timeout) for one to be there, and for each to answer. Raises
        LookupNotFoundError, which tells also of the seconds `waited` before.
        """
        seconds = self._config.lookup.timeout if timeout is None else timeout
        self._wait(lambda session: session.connected, seconds, waited)
        found: dict[str, ServiceItem] = {}
        for session in self.sessions():
            if not session.connected:
                continue  # it would only be waited for
            proxy = RegistrarProxy(session.ref, self._security, timeout=seconds)
            try:
                found |= {item.service_id: item for item in proxy.lookup(template, limit).items}
            except WireError:
                continue  # away: another one answers, or the next call finds it again
            finally:
                proxy.close()
        return list(found.values())[:limit]

    def connected(self) -> int:
        """Number of lookup services that answer."""
        return sum(session.connected for session in self.sessions())

    def refused(self) -> LookupNotFoundError | None:
        """That all lookup services that are asked don't let us in, the first one's AccessDeniedError as its cause;
        None: one does, or may yet."""
        refusals = self._registrars.discovery.refusals()
        if not refusals or self.connected():
            return None
        said = "; ".join(f"{at}: {why.message}" for at, why in refusals.items())
        first = next(iter(refusals.values()))
        made = LookupNotFoundError(f"no lookup service lets us in; {said}", hint=first.hint)
        made.__cause__ = first
        return made

    def absent(self, waited: float | None) -> LookupNotFoundError:
        """That none answered in `waited` seconds, with the last failure of each that was asked; None: we have left."""
        slow = ", ".join(at for session in self.sessions() if session.connected for at in session.ref.endpoints)
        if slow and waited is not None:
            return LookupNotFoundError(
                f"the lookup service at {slow} answers, but not in time",
                hint=f"Give it longer by [lookup] timeout, which is {self._config.lookup.timeout:g} s",
            )
        groups, asked = self._config.lookup.groups, self._registrars.discovery.asked()
        tried = ", ".join(f"{at} ({why})" if why else at for at, why in asked.items())
        return LookupNotFoundError(
            f"no lookup service of {shown_groups(None if ALL_GROUPS in groups else groups)} answered "
            f"{'before we left' if waited is None else f'within {round(waited, 1):g} s'}; tried: {tried or 'none'}",
            hint=next((hint for part, hint in _HINTS.items() if part in tried), _START_HINT),
        )

    def sessions(self) -> list[RegistrarSession]:
        """One for each lookup service found so far."""
        return self._registrars.all()

    def _progress(self) -> None:
        """A session has got further, on its own thread."""
        with self._changed:
            self._news += 1
            self._changed.notify_all()

    def _push(self, changed: Mapping[str, ServiceItem | None]) -> None:
        """Tell the sessions of items that changed (None: gone), and of the caches."""
        with self._changed:
            self._news += 1
            for session in self.sessions():
                session.want(changed, self._caches)
            self._changed.notify_all()

    def _wait(self, good: Callable[[RegistrarSession], bool], timeout: float, waited: float = 0.0) -> int:
        begun, refused_seconds = time.monotonic(), self._config.lookup.refused or timeout
        deadline = begun + timeout
        while True:
            with self._changed:
                news, sessions, closed = self._news, self.sessions(), self._registrars.is_closed
            done = sum(good(s) for s in sessions)
            away = sum(s.away_since is not None for s in sessions)  # one just found is about to answer: waited for
            if done and done + away >= len(sessions):
                return done
            if not done and (refused := self.refused()) is not None:
                raise refused from refused.__cause__
            seconds = min(timeout, time.monotonic() - begun)
            if closed or seconds >= timeout or (seconds >= refused_seconds and self._registrars.discovery.is_alone()):
                if done:
                    return done
                raise self.absent(None if closed else seconds + waited)
            with self._changed:
                soon = min(deadline, max(begun + refused_seconds, time.monotonic() + _LOOK_SECONDS))
                self._changed.wait_for(lambda: self._news != news, soon - time.monotonic())  # noqa: B023  # called here


def _interfaces(config: Config) -> tuple[str, ...]:
    from jbi_pubsub.lookup.client.multicast import interfaces_of  # here: few processes that are soon over need it

    return interfaces_of(config)
