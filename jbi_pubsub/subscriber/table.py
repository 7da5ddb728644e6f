"""The subscriptions of a subscriber: registered wherever they match, amended, and cancelled there."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import Counter
from collections.abc import Callable
from shlex import quote
from typing import Any, Final

from jbi_pubsub.core.backoff import Backoff
from jbi_pubsub.core.config import Config
from jbi_pubsub.core.errors import AdapterStateError, JbiError, QosDeniedError, UnknownUidError, WireError, unknown_uid
from jbi_pubsub.core.guard import guarded
from jbi_pubsub.core.info_object import InfoObject, TypeName
from jbi_pubsub.core.quality import GrantedQos
from jbi_pubsub.core.ticker import Job
from jbi_pubsub.lookup.client.join import JoinManager
from jbi_pubsub.lookup.item import ServiceItem
from jbi_pubsub.protocol.requests import SubscriptionRequest

from .first_level import FirstLevelTemplates
from .placed import PlacedSubscription
from .published import Matching, PublishedTypes, type_asked
from .session import DelegateSessions
from .signed import DeliverySignatures
from .subscription import LocalSubscription, matching_log
from .watches import TemplateWatches, has_past

log = logging.getLogger("jbi_pubsub.subscriber")


AGAIN_FIRST: Final = 5.0
"""Seconds until they are looked at again; twice as long each time."""
AGAIN_MOST: Final = 300.0
"""Most of these. A look costs a lookup service some milliseconds: 10,000 subscribers that wait ask it 33 times a
second."""


class UnmatchedSubscriptions:
    """Subscriptions that nothing matches yet: looked at by `look(uid)` again and again until that says that they need
    not, so that nobody waits in silence."""

    def __init__(self, look: Callable[[str], bool]) -> None:
        self._look = look
        self._lock = threading.Lock()
        self._backoff = Backoff(AGAIN_FIRST, AGAIN_MOST)
        self._waiting: dict[str, None] = {}
        self._job = Job("look at subscriptions without a match", AGAIN_MOST, self._look_at_all, slow=True)

    def add(self, uid: str) -> None:
        """Look at that one from now on."""
        with self._lock:
            self._waiting[uid] = None
            self._backoff.reset()
            pause = self._backoff.pause()
        self._job.start(after=pause)
        self._job.wake(after=pause)

    def stop(self, timeout: float = 5.0) -> None:
        """Look at nothing any more."""
        self._job.stop(timeout)

    def _look_at_all(self) -> float:
        """Seconds until the next look."""
        for uid in list(self._waiting):
            with guarded("look at a subscription without a match"):
                if not self._job.is_over and self._look(uid):
                    with self._lock:
                        self._waiting.pop(uid, None)
        with self._lock:
            return self._backoff.pause() if self._waiting else math.inf


class SubscriptionTable:
    """See the module. `_lock` covers which there are; what one is to stand at is decided under it."""

    def __init__(
        self,
        config: Config,
        name: str,
        community: JoinManager,
        published: PublishedTypes,
        signatures: DeliverySignatures | None,
    ) -> None:
        """`name`: of the adapter; `signatures`: the check that all objects pass."""
        self.templates = FirstLevelTemplates(published, config, self._is_used)
        self.watches = TemplateWatches(community, self.templates, self._serve)
        self.sessions = DelegateSessions(config, name, self.watches, signatures)
        self.warns = True
        """Whether a subscription that nothing matches is worth a warning."""
        self._published = published
        self._lock = threading.RLock()
        self._subscriptions: dict[str, LocalSubscription] = {}
        self._told: dict[str, str] = {}
        """Reasons that were told last, of subscriptions without a match."""
        self._waiting = UnmatchedSubscriptions(self._tell_matching)

    def find(self, uid: str) -> LocalSubscription:
        """The subscription of that id. Raises UnknownUidError."""
        found = self._subscriptions.get(uid)  # a look at one key needs no lock, and is made for each object
        if found is None:
            raise unknown_uid("subscription", uid, "register_subscriber")
        return found

    def all(self) -> list[LocalSubscription]:
        """Those that there are now."""
        with self._lock:
            return list(self._subscriptions.values())

    def add(self, subscription: LocalSubscription, opened: TypeName | None, deadline: float) -> None:
        """Have a subscription stand wherever it matches; returns when the lookup services watch for it. `opened`: the
        type whose schema was opened for its template. Raises LookupNotFoundError, and AdapterStateError for a durable
        one that is open here: nothing of it is left then."""
        with self._lock:
            if subscription.uid in self._subscriptions:
                self.templates.forget_if_idle(opened)
                raise AdapterStateError(
                    f"durable subscription {subscription.request.durable!r} is open here already",
                    hint="Use the id that it has, or cancel it first",
                )
            watch = self.watches.add(subscription, opened)
            self._subscriptions[subscription.uid] = subscription
        try:
            self.watches.begin(watch, subscription, deadline)
        except BaseException:
            self._drop(subscription)
            raise
        subscription.stand()
        subscription.has_begun = True
        if not self._tell_matching(subscription.uid):
            self._waiting.add(subscription.uid)

    def cancel(self, subscription: LocalSubscription) -> None:
        """Cancel it everywhere: no further object comes once this has returned. Raises WireError when an archive that
        has not answered goes on to keep a durable one."""
        ended = self._drop(subscription)
        if kept := [address for address in subscription.kept_at() if address not in ended]:
            name = subscription.request.durable
            raise WireError(
                f"durable subscription {name!r} is not ended at {'; '.join(kept)}, where nobody has answered to that",
                hint=f"When it answers again: jbi subscriptions end {quote(name)}",
            )

    def _drop(self, subscription: LocalSubscription) -> set[str]:
        """Addresses at which it stood, and is cancelled."""
        with self._lock:
            self._subscriptions.pop(subscription.uid, None)
            self._told.pop(subscription.uid, None)
            sessions = self.sessions.all()
            self.watches.remove(subscription)
        ended = {session.link.address for session in sessions if session.registry.unwant(subscription)}
        subscription.close()
        return ended

    def amend(
        self, local: LocalSubscription, request: SubscriptionRequest, opened: TypeName | None, deadline: float
    ) -> int:
        """Have it stand by other terms; at how many delegates and peer publishers these are in force. If one refuses
        them, or this is interrupted, all have the old terms again. Raises what one refuses with."""
        before = local.request
        try:
            with self.watches.exchanging(local, request.entries, opened, deadline):
                return self._amend(local, request, deadline)
        except BaseException as exc:
            if local.request is not before:
                until = deadline if isinstance(exc, JbiError) else 0.0  # who interrupts does not wait
                self._amend(local, before, until, is_awaited=False)
            raise
        finally:
            local.terms.end_amendment()

    def matching(self, subscription: LocalSubscription) -> Matching:
        """Number of registrations that it matches, and why there is none."""
        watch = self.watches.of(subscription.uid)
        items = watch.cache.items() if watch is not None else []
        count = len(items)
        given = subscription.terms.first_level
        is_whole = given is not None and given.is_whole
        digest = self.templates.digest(watch.type) if watch is not None else ""
        entries = subscription.request.entries
        why = "" if count else self._published.why_none(entries, is_whole=is_whole, digest=digest)
        why = f"{why}; what archives have comes all the same" if why and has_past(subscription) else why
        if not count:
            return Matching(0, why)
        at, called = Counter(item.proxy.service_id for item in items), subscription.terms.last_part
        meant = type_asked(entries).name
        others = self._published.others(called, meant) if called else ()
        return Matching(count, impossible=subscription.impossible(at), others=others)

    def wait_matched(self, uid: str, count: int, timeout: float) -> int:
        """Number of delegates and peer publishers where it stands, as soon as it is `count`, or after that time."""
        deadline = time.monotonic() + timeout
        while True:
            standing = sum(session.stands(uid) for session in self.sessions.all())
            if standing >= count or time.monotonic() >= deadline:
                return standing
            time.sleep(0.005)  # sessions make progress on their own threads

    def quality(self, uid: str) -> dict[str, GrantedQos]:
        """Grants of its wish, by the service ids of where it stands. Raises QosDeniedError if that is nowhere."""
        sessions = self.sessions.all()
        found = {session.ref.service_id: given for session in sessions if (given := session.quality(uid))}
        denied = [session.denied(uid) for session in sessions]
        if not found and (why := next((each for each in denied if isinstance(each, QosDeniedError)), None)):
            raise why
        return found

    def refusal(self, uid: str) -> JbiError | None:
        """Why it stands nowhere, or is not evaluated for some registration where it stands."""
        sessions, watch = self.sessions.all(), self.watches.of(uid)
        standing = [session for session in sessions if session.stands(uid)]
        denied = [session.denied(uid) for session in standing or sessions]
        if not standing and watch is not None:
            denied += [cache.error for cache in watch.caches()]
        return next((each for each in denied if each is not None), None)

    def acknowledge(self, obj: InfoObject, uid: str | None) -> None:
        """Acknowledge an object to all subscriptions that have got it, or to one. Raises UnknownUidError."""
        asked = self.all() if uid is None else [self.find(uid)]
        done = [each.acknowledge(obj) for each in asked if isinstance(each, PlacedSubscription)]
        if not any(done):
            raise UnknownUidError(
                f"object {obj.object_id} does not wait to be acknowledged",
                hint='It came for no durable subscription with ack="explicit", or was acknowledged before',
            )

    def status(self) -> dict[str, Any]:
        """Plain data."""
        sessions = self.sessions.all()
        said = {
            each.uid: {**each.status(), "matched": sum(session.stands(each.uid) for session in sessions)}
            for each in self.all()
        }
        return {"subscriptions": said, **self.sessions.status()}

    def close(self) -> None:
        """End all sessions, and all subscriptions here; those by mail live on by their leases."""
        self._waiting.stop()
        self.sessions.close()
        for subscription in self.all():
            subscription.close()

    def _amend(
        self, local: LocalSubscription, request: SubscriptionRequest, deadline: float, *, is_awaited: bool = True
    ) -> int:
        """Have all sessions change its terms; at how many these are in force. Raises what one refuses with."""
        local.terms.amend(request, is_awaited=is_awaited)
        sessions = self.sessions.all()
        for session in sessions:
            session.registry.amend(local.uid)
        while (why := local.terms.refusal()) is None:
            stands = [session.registry.has_amended(local.uid) for session in sessions]
            if False not in stands or time.monotonic() >= deadline:
                if False in stands:
                    log.warning(
                        "subscription %s has its new terms at %d of %d", local.uid, stands.count(True), len(stands)
                    )
                return stands.count(True)
            time.sleep(0.005)  # sessions make progress on their own threads
        raise why

    def _is_used(self, opened: TypeName) -> bool:
        return any(watch.type == opened for watch in self.watches.all())

    def _serve(self, subscription: LocalSubscription, item: ServiceItem) -> None:
        """Have the subscription registered with the delegate or peer publisher of a matching item."""
        with self._lock:
            if self._subscriptions.get(subscription.uid) is subscription:  # a durable one that begins anew has its id
                self.sessions.do(item.proxy, lambda session: session.want(subscription))

    def _tell_matching(self, uid: str) -> bool:
        """Say whether something matches a subscription, or why nothing does, unless that was said; whether it need not
        be looked at again."""
        with self._lock:
            subscription = self._subscriptions.get(uid)
        if subscription is None:
            return True
        matching = self.matching(subscription)
        if not (matching.registrations or matching.why):
            return False
        asked = type_asked(subscription.request.entries)
        with self._lock:
            known, self._told[uid] = self._told.get(uid), str(matching)
        if known != str(matching):
            is_usual = not self.warns or not self._published.names() or (matching.registrations and not matching.others)
            level = logging.INFO if is_usual else logging.WARNING
            matching_log.log(level, "subscription %s %s", uid, matching, extra={"subscription": uid})
        if matching.registrations:
            return bool(matching.others) or not subscription.terms.last_part
        return not (asked.name or asked.local)
