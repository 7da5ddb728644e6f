"""Clients of a collaboratory: scientists who find, watch and steer applications, and follow and talk to each other
(paper 4(1))."""

from __future__ import annotations

import hashlib
import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from typing import Final, Literal
from uuid import uuid4
from weakref import WeakSet

from jbi_pubsub.core.constraint import Constraint
from jbi_pubsub.core.errors import (
    AdapterStateError,
    BackPressureError,
    ConfigurationError,
    JbiError,
    LookupNotFoundError,
    PredicateError,
    UnknownUidError,
    WireError,
    WireTimeoutError,
)
from jbi_pubsub.core.ticker import Job
from jbi_pubsub.subscriber import SubscriptionUid
from jbi_pubsub.subscriber.moments import Moment

from .application import APPLICATION
from .catch_up import ClientInterest
from .channel import DomainChannel, EventListener, ListenerChannel, ListenerQueue, told
from .event import COLLABORATION, MONITORING, STEERING, StructuredEvent, quoted
from .history import ConsumptionRecord, consumed, events_of
from .journal import ClientJournal
from .service_type import PropertyValue, ServiceType
from .trader import Offer, OfferQuery

log = logging.getLogger("jbi_pubsub.domains")

PROFILE: Final = ServiceType.of(
    "discover.Profile", "mandatory_readonly string client", "mandatory_readonly string application",
    "readonly string constraint",
)  # fmt: skip
"""Service type of what a client watches, so that others can follow."""
WAITING_MOST: Final = 1_000
"""Commands of a client that wait for an answer."""
SAID_AGAIN: Final = 1.0
"""Seconds after which a command without an answer is said again, then twice as long, and so on."""
GONE_SECONDS: Final = 1.0
"""To ask whether an application that does not answer is still there."""
AGAIN_SECONDS: Final = 5.0
"""Between two looks at what somebody in another domain watches: nobody tells of offers there."""


class _Command:
    """A command that waits for its answer."""

    def __init__(self) -> None:
        self.answered = threading.Event()
        self.answer: StructuredEvent | None = None


class Client:
    """A scientist. Any thread. A listener is told each event once, over however many channels it comes."""

    def __init__(self, domain: DomainChannel, name: str, heard: EventListener, journal: ClientJournal | None) -> None:
        """Made by Domain.client."""
        self.name: Final = name
        self._domain = domain
        self._journal = journal
        self._heard = heard
        self._lock = threading.Lock()
        self._waiting: dict[str, _Command] = {}
        self._watched: dict[str, ClientInterest] = {}
        """By the profile's offer."""
        self._followed: dict[str, _Followed] = {}
        self._groups: dict[str, ClientInterest] = {}
        self._queues: WeakSet[ListenerQueue] = WeakSet()
        with ExitStack() as undo:
            self._answers = domain.listen(STEERING, f"$domain == {quoted(name)}", told(self._answered))
            undo.callback(domain.unlisten, self._answers)
            self._consumption = ConsumptionRecord(domain, name)
            undo.callback(self._consumption.stop)
            self.join(name)
            undo.pop_all()

    # -- applications ---------------------------------------------------------------------------------------------

    def find(self, constraint: str = "", *, preference: str = "", most: int = 100) -> list[Offer]:
        """Applications for which the constraint is true, here or, if there is none, in other domains. Raises
        PredicateError, LookupNotFoundError."""
        return self._domain.services.find(APPLICATION, constraint, preference=preference, most=most)

    def watch(
        self, application: Offer | str, constraint: str, listener: EventListener, *, durable: bool = False
    ) -> str:
        """Have its monitoring events told for which the constraint is true ("" for all); the id of what is watched.
        `durable`: who watches the same again, in a later process, gets what has come meanwhile, where the domain has an
        archive; with a journal in another domain as well. Raises PredicateError, LookupNotFoundError, StorageError,
        AdapterStateError (it is watched so already)."""
        name = _name(application)
        wanted = _watching(name, constraint)
        kept = f"{self.name}-{hashlib.sha256(wanted.encode()).hexdigest()[:12]}" if durable else None
        profile: dict[str, PropertyValue] = {"client": self.name, "application": name, "constraint": constraint}
        with ExitStack() as undo:
            offer_id = self._domain.services.offer(PROFILE, profile)  # first: a durable interest that ends is forgotten
            undo.callback(self._domain.services.withdraw, offer_id)
            interest = self._interest(MONITORING, wanted, listener, durable=kept)
            undo.pop_all()
        with self._lock:
            self._watched[offer_id] = interest
        return offer_id

    def unwatch(self, watched: str) -> None:
        """Have nothing told of it any more. Raises UnknownUidError, and WireError when a delegate that has not answered
        goes on to remember what was watched durably."""
        with self._lock:
            interest = self._watched.pop(watched, None)
        if interest is None:
            raise UnknownUidError(f"nothing {watched[:80]} is watched", uid=watched[:80])
        self._domain.services.withdraw(watched)
        interest.end()

    def set(self, application: Offer | str, parameter: str, value: PropertyValue, timeout: float = 10.0) -> None:
        """Set a parameter: of the application that is offered so, or of all that have the name. Raises
        ConfigurationError with what the application says, WireTimeoutError when there is no answer so many seconds
        after the channel has taken the command, UnknownUidError when it is gone, AccessDeniedError."""
        self._command(application, "set", {"parameter": parameter, "value": value}, timeout)

    def get(self, application: Offer | str, parameter: str, timeout: float = 10.0) -> PropertyValue | None:
        """The value of a parameter. Raises as `set`."""
        return self._command(application, "get", {"parameter": parameter}, timeout)

    def pause(self, application: Offer | str, timeout: float = 10.0) -> None:
        """Have it pause. Raises as `set`."""
        self._command(application, "pause", {}, timeout)

    def resume(self, application: Offer | str, timeout: float = 10.0) -> None:
        """Have it go on. Raises as `set`."""
        self._command(application, "resume", {}, timeout)

    def _command(
        self, application: Offer | str, name: str, body: dict[str, PropertyValue], timeout: float
    ) -> PropertyValue | None:
        waiting, command_id, to = _Command(), uuid4().hex, _name(application)
        with self._lock:
            if len(self._waiting) >= WAITING_MOST:
                raise AdapterStateError(f"{WAITING_MOST:,} commands of {self.name} wait for an answer")
            self._waiting[command_id] = waiting
        try:
            said: dict[str, PropertyValue] = {**body, "id": command_id, "client": self.name}
            if not isinstance(application, str):
                said["offer"] = application.id
            end, pause = time.monotonic() + timeout, SAID_AGAIN
            self._domain.publish(StructuredEvent(to, "Steering", name, said), STEERING)
            # the way there, or back, may have been made by it: a bridge carries what is wanted from then on
            while not waiting.answered.wait(min(pause, left := max(0.0, end - time.monotonic()))) and left > pause:
                with suppress(BackPressureError, WireError):  # the answer may come all the same
                    again = StructuredEvent(to, "Steering", name, said | {"again": True})
                    self._domain.publish(again, STEERING)
                pause *= 2
        finally:
            with self._lock:
                del self._waiting[command_id]
        answer = waiting.answer
        if answer is None:
            if self._is_gone(application):
                raise UnknownUidError(f"application {to[:80]} is not there", hint="Find it again", uid=to[:80])
            raise WireTimeoutError(f"application {to[:80]} did not answer in {timeout:.3g} s")
        if answer.body.get("done") is not True:
            raise ConfigurationError(f"{to[:80]}: {answer.body.get('why', 'refused')}")
        return answer.body.get("value")

    def _is_gone(self, application: Offer | str) -> bool:
        """Whether nobody offers it any more; False where not all say so within GONE_SECONDS."""
        named = f"name == {quoted(_name(application))}"
        asked = OfferQuery(APPLICATION.name, named, follow="always", timeout=GONE_SECONDS)
        try:
            found = self._domain.services.query(asked)
        except LookupNotFoundError:
            return False
        there = any(isinstance(application, str) or each.id == application.id for each in found.offers)
        return not there and not found.partial

    def _answered(self, event: StructuredEvent) -> None:
        with self._lock:
            waiting = self._waiting.get(str(event.body.get("id")))
        if waiting is not None and event.name == "answer":
            waiting.answer = event
            waiting.answered.set()

    # -- each other -----------------------------------------------------------------------------------------------

    def talk(self, to: str, text: str, remainder: bytes = b"") -> None:
        """Say something to a client, or to all of a group."""
        event = StructuredEvent(to, "Collaboration", self.name, {"text": text, "client": self.name}, {}, remainder)
        self._domain.publish(event, COLLABORATION)

    def join(self, group: str) -> None:
        """Hear what is said to a group; with a journal also what was said while it was away. Once is enough."""
        with self._lock:
            if group in self._groups:
                return
        kept = group if self._journal is not None else None
        interest = self._interest(COLLABORATION, f"$domain == {quoted(group)}", self._heard, durable=kept)
        with self._lock:
            self._groups[group] = interest

    def part(self, group: str) -> None:
        """Hear no more of it. Raises UnknownUidError."""
        with self._lock:
            interest = self._groups.pop(group, None)
        if interest is None:
            raise UnknownUidError(f"{self.name} is not of the group {group[:80]}", uid=group[:80])
        interest.end()

    def follow(self, client: str, listener: EventListener) -> None:
        """Hear what a client does and gets, as long as both stay: its commands, and the events of all that it watches,
        also of what it watches later."""
        queue = self._queue(listener)
        with self._lock:
            if client in self._followed:
                raise ConfigurationError(f"{self.name} follows {client[:80]} already", hint="unfollow() first")
            followed = self._followed[client] = _Followed(self._domain, client, ListenerChannel(queue))
        try:
            followed.start()
        except JbiError:
            self._followed.pop(client, None)
            raise

    def unfollow(self, client: str) -> None:
        """Follow a client no more. Raises UnknownUidError."""
        with self._lock:
            found = self._followed.pop(client, None)
        if found is None:
            raise UnknownUidError(f"{self.name} does not follow {client[:80]}", uid=client[:80])
        found.stop()

    def history(
        self,
        since: Moment | None = None,
        until: Moment | None = None,
        *,
        kind: Literal["produced", "consumed"] = "produced",
    ) -> Iterator[StructuredEvent]:
        """Events between these times, as archives have them: "produced": its commands, then what it said to others;
        "consumed": those that its listeners had then. Each in the order of time; of what was consumed in about a second
        that of one watch is together. Raises UnknownUidError where nobody archives these types."""
        if kind == "consumed":
            yield from consumed(self._domain, self.name, since, until)
            return
        unknown: list[UnknownUidError] = []
        own = f"client == {quoted(self.name)} and not exist again"
        for type_ in (STEERING, COLLABORATION):
            try:
                with self._domain.past(type_, own, since, until) as objects:
                    yield from events_of(objects)
            except UnknownUidError as exc:  # it has said nothing of this kind, perhaps
                unknown.append(exc)
        if len(unknown) > 1:
            raise unknown[0]

    def away(self) -> None:
        """Do no more; what is watched durably is kept. The domain's close() ends the subscriptions."""
        with self._lock:
            followed, self._followed = list(self._followed.values()), {}
            interests = [*self._watched.values(), *self._groups.values()]
        for each in followed:
            each.stop()
        for interest in interests:
            interest.away()
        self._end()

    def _interest(self, type_: str, constraint: str, listener: EventListener, *, durable: str | None) -> ClientInterest:
        """Interest in events, whose objects are noted as consumed. Raises as ClientInterest."""
        watched = type_, constraint
        channel = ListenerChannel(self._queue(listener), lambda obj: self._consumption.add(watched, obj))
        if durable is not None and self._journal is not None:
            return ClientInterest(self._domain, watched, channel, journal=self._journal)
        return ClientInterest(self._domain, watched, channel, durable=durable)

    def _queue(self, listener: EventListener) -> ListenerQueue:
        """The queue of a listener: one for all of its channels."""
        with self._lock:
            found = next((each for each in self._queues if each.listener == listener), None)
            if found is None:
                self._queues.add(found := ListenerQueue(listener))
        return found

    def _end(self) -> None:
        self._consumption.stop()
        if self._journal is not None:
            self._journal.close()

    def leave(self) -> None:
        """End all of it, also what is watched durably; one that fails leaves the others to be ended. Safe to repeat.
        Raises as `unwatch`."""
        with self._lock:
            watched, followed, groups = list(self._watched), list(self._followed), list(self._groups)
        with ExitStack() as ends:
            ends.callback(self._leave_domain)
            for each in groups:
                ends.callback(self.part, each)
            for each in followed:
                ends.callback(self.unfollow, each)
            for each in watched:
                ends.callback(self.unwatch, each)

    def _leave_domain(self) -> None:
        if self._domain.forget(self):
            self._domain.unlisten(self._answers)
            self._end()


class _Followed:
    """A client that is followed: its commands, and the events of what it watches, by application and constraint."""

    def __init__(self, domain: DomainChannel, client: str, channel: ListenerChannel) -> None:
        self._domain, self._client, self._channel = domain, client, channel
        self._kept: dict[tuple[str, str], SubscriptionUid] = {}
        """Subscriptions; the job's, and at last those of who stops it: whoever takes one out ends it."""
        self._refused: set[tuple[str, str]] = set()
        """Parts of what it watches that can't be followed."""
        self._job = Job(f"follow {client[:40]}", AGAIN_SECONDS, self._keep_up, slow=True)
        self._unwatch: Callable[[], None] = lambda: None

    def start(self) -> None:
        """Begin, and look again when offers change, and after some time."""
        constraint = f"client == {quoted(self._client)} and not exist again"
        actions = self._domain.listen(STEERING, constraint, self._channel.arrived)
        self._kept["", ""] = actions
        self._unwatch = self._domain.services.watch(self._job.wake)
        self._job.start()

    def stop(self) -> None:
        """End all of it."""
        self._channel.end()
        self._unwatch()
        self._job.stop()
        self._end_all()

    def _end_all(self) -> None:
        for each in list(self._kept):
            self._end(each)

    def _end(self, watched: tuple[str, str]) -> None:
        with suppress(KeyError, UnknownUidError):  # somebody else has, or the channel is closed
            self._domain.unlisten(self._kept.pop(watched))

    def _keep_up(self) -> None:
        """Watch what the client watches now."""
        asked = OfferQuery(PROFILE.name, f"client == {quoted(self._client)}", returned=1_000, follow="always")
        wanted = {
            (str(each.properties["application"]), str(each.properties.get("constraint", "")))
            for each in self._domain.services.query(asked).offers
        }
        for each in set(self._kept) - wanted - {("", "")}:
            self._end(each)
        self._refused &= wanted
        for each in wanted - set(self._kept) - self._refused:
            try:
                self._kept[each] = self._domain.listen(MONITORING, _watching(*each), self._channel.arrived)
            except PredicateError as exc:
                self._refused.add(each)
                log.warning("what %s watches of %s is not followed: %s", self._client, each[0], exc)
        if self._job.is_over:  # who stopped it has not waited so long
            self._end_all()


def _name(application: Offer | str) -> str:
    return application if isinstance(application, str) else str(application.properties.get("name", ""))


def _watching(application: str, constraint: str) -> str:
    """Constraint on the events of an application. Raises PredicateError, of the part that somebody wrote."""
    Constraint(constraint)
    return f"$domain == {quoted(application)}" + (f" and ({constraint})" if constraint.strip() else "")
