"""Two platforms that show each other what is published on them.

Theory of operation: each direction has a job that compares what is published on the one side with what it has
registered on the other, when something changes and every `poll` seconds, and a subscription on the one side whose
objects it publishes on the other. Objects of a registration that is not registered there yet, or that another bridge
has, are parked for a while: so the first objects of a new type come, and a bridge that comes in for another one has
what that one may not have sent. Whoever has seen an object before drops it, by its number; a number that does not come
is a loss on the other side, and what is left out is told in its place among the objects.

Rules:
- An echo is seen by the names of the platforms that an object or registration has passed: neither end of a direction
  may be among them. The platform refuses what it has the original of.
- Of several bridges side by side one has a registration, and the others wait until it is gone. The other side takes
  that first which has what follows the last object there.
- Sides that have a lookup service in common are one platform: that is told, and nothing goes.
- What can't be done now (a side is away, a right is missing) is told once and tried again at each poll; what has a
  schema in conflict, or is one too many, after ever longer pauses, so that many of these hold up nobody.
- Objects go in the order of their registration. While the other side has no room the subscription's queue fills, and
  its policy says what is lost.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from math import inf
from typing import Any, Final

import msgspec

from jbi_pubsub.codegen.repository import InformationType, TypeRepository
from jbi_pubsub.core.errors import (
    BackPressureError,
    ConfigurationError,
    JbiError,
    UnknownUidError,
    WireError,
)
from jbi_pubsub.core.info_object import InfoObject, SchemaBundle
from jbi_pubsub.core.ticker import Job
from jbi_pubsub.core.values import converted
from jbi_pubsub.core.xml import parse_metadata
from jbi_pubsub.protocol.entries import BRIDGE_TYPE, HOPS_MOST, bridge_name
from jbi_pubsub.protocol.merging import chosen, everything
from jbi_pubsub.protocol.remote import RemoteAnswers
from jbi_pubsub.protocol.requests import QueryRequest
from jbi_pubsub.protocol.status.bridge import DirectionStatus, RemoteStatus

from .listed import BridgedRegistration
from .listed import DirectionTerms as DirectionTerms
from .members import told
from .platform import BridgePlatform, PlatformAnswers, SelectivePlatform, check_apart
from .relayed import Relayed, RelayTable
from .transformation import Transformation
from .troubles import DirectionTroubles
from .wanted import WantedIntake, WholeIntake

log = logging.getLogger("jbi_pubsub.bridge")

PARKED_SECONDS: Final = 90.0
"""Time that an object waits for its registration: longer than a bridge that has died is believed to live, and who has
what follows is waited for then."""
LINGER_SECONDS: Final = 10.0
"""Time that a registration that has left is kept on the other side: its last objects are on their way, and a delegate
that restarts has it again soon."""
LINGER_MOST: Final = 3_600.0
"""Longest time that it is kept after its last object while others wait for room at the other side: more of its own may
wait behind them."""
STOP_SECONDS: Final = 10.0
"""For a look that is under way, when the bridge stops."""
BUSY_SECONDS: Final = 1.0
"""Time over which it is judged whether the target takes less than it could be given."""
ROOM_SECONDS: Final = 0.5
"""For room at the other side, until it is looked whether the bridge stops."""


class TargetLoad:
    """Time that giving objects to the target takes. Where that is most of it, more wait at the source. Any thread;
    times are a clock's seconds."""

    def __init__(self, now: float) -> None:
        self._lock = threading.Lock()
        self._seconds, self._judged = 0.0, now
        self.seen = -inf
        """When it was most of the time, last."""

    def note(self, seconds: float) -> None:
        """An object has taken so long to go."""
        with self._lock:
            self._seconds += seconds

    def judge(self, now: float) -> None:
        """See whether it is, if that is due."""
        with self._lock:
            if now - self._judged >= BUSY_SECONDS:
                if self._seconds > (now - self._judged) / 2:
                    self.seen = now
                self._seconds, self._judged = 0.0, now


class Direction:
    """From one side to the other (see the module)."""

    def __init__(
        self,
        source: BridgePlatform,
        target: BridgePlatform,
        transformation: Transformation,
        *,
        bridge: str,
        terms: DirectionTerms = DirectionTerms(),  # noqa: B008  # immutable
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`bridge`: the id that others see."""
        self.source, self.target, self.transformation = source, target, transformation
        self._bridge, self._terms, self._clock = bridge, terms, clock
        self._lock = threading.Lock()
        """Lock of what is counted."""
        self.counts = Counter(relayed=0, filtered=0, echoes=0, lost=0)
        self._relays = RelayTable()
        self._load = TargetLoad(clock())
        self._local: frozenset[str] = frozenset()
        """Registrations of the source that are not for others."""
        self._troubles = DirectionTroubles(f"{source.name} to {target.name}")
        self._intake = (
            WantedIntake(source, target, self, self._troubles, transformation, terms)
            if terms.wanted and isinstance(source, SelectivePlatform)
            else WholeIntake(source, self, self._troubles, terms.types)
        )
        self._job = Job(f"bridge-{source.name}-{target.name}", terms.poll, self.look, slow=True)

    def start(self) -> None:
        """Begin."""
        self._job.start()

    def wake(self) -> None:
        """Something has changed on one of the sides."""
        self._job.wake()

    def stop(self) -> None:
        """Look no more; the source does not listen any more."""
        self._job.stop(STOP_SECONDS)
        self._intake.stop()
        ends = self._clock() + STOP_SECONDS
        for uid, relay in self._relays.items():
            self._tell_rest(uid, relay, min(ROOM_SECONDS, max(0.0, ends - self._clock())))

    def owed(self) -> int:
        """Number of objects that are parked, and that nobody else brings."""
        return sum(len(each.parked) for _, each in self._relays.items() if each.is_owed)

    def status(self) -> dict[str, Any]:
        """Plain data."""
        relays = self._relays.items()
        standing = [each for _, each in relays if each.stands]
        with self._lock:
            counts = dict(self.counts)
        return {
            "from": self.source.name,
            "to": self.target.name,
            **self._intake.status(),
            "registrations": len(standing),
            "types": sorted({str(each.published.type) for each in standing if each.published}),
            "waiting": {uid: each.why for uid, each in relays if each.published and not each.stands},
            **counts,
            "parked": sum(len(each.parked) for _, each in relays),
            "trouble": self._troubles.all(),
        }

    def _count(self, what: str, number: int = 1) -> None:
        with self._lock:
            self.counts[what] += number

    # -- objects: on a thread of the source -----------------------------------------------------------------------

    def arrived(self, obj: InfoObject) -> None:
        """An object of the source."""
        if self._is_echo(obj.platform.via):
            self._count("echoes")
            return
        if not self.transformation.wants(obj.type) or obj.platform.registration in self._local:
            return
        relay = self._relays.made(obj.platform.registration, self._clock())
        if relay is None:
            self._count("lost")
            return
        with relay.lock:
            relay.last, relay.seen = obj.platform.sequence, self._clock()
            if relay.stands:
                self._send(relay, relay.seen, obj)
                self._load.note(self._clock() - relay.seen)
            else:
                self._park(relay, obj)
                self._job.wake()

    def waiting(self, uid: str) -> int:
        """Number of a registration's last objects that the target has not taken. What is lost, left out, or
        another bridge's, does not wait."""
        relay = self._relays.get(uid)
        if relay is None:
            return 0
        with relay.lock:  # or one that is unparked just now would be in neither
            return self.target.unfinished(uid) + len(relay.parked) * relay.is_owed

    def lost(self, cause: str, count: int, uid: str = "", up_to: int = 0, name: str = "") -> None:
        """Objects did not come from the source, of a type of that name, if it is known; with numbers up to `up_to` of
        that registration, if that is: its subscribers are told."""
        if cause != "filtered":  # that is what somebody there has left out
            self._count("lost", count)
            self._troubles.tell_loss(cause, count, self._clock())
        if not uid:
            self._relays.lose(count, name)
        elif (relay := self._relays.made(uid, self._clock())) is not None:
            with relay.lock:
                relay.untold.leave_out(count, up_to, lost=cause != "filtered")
                relay.seen = self._clock()

    def _is_echo(self, via: tuple[str, ...]) -> bool:
        """Whether what has come that way is not to go this one."""
        return self.source.name in via or self.target.name in via or len(via) >= HOPS_MOST

    def _send(self, relay: Relayed, since: float, obj: InfoObject) -> None:
        """Under the relay's lock; `since`: when it came (clock). Waits while there is no room."""
        uid, is_cut = obj.platform.registration, obj.platform.payload_length != obj.payload_size  # on its way to us
        changed = None if is_cut else self.transformation.apply(obj)
        if changed is None:
            relay.untold.leave_out(1, obj.platform.sequence)
            self._count("filtered")
            return
        while not self._job.is_over:
            try:
                relay.tell(self.target, uid, ROOM_SECONDS, obj.platform.sequence)
                self.target.publish(uid, changed, self.source.name, ROOM_SECONDS, self._clock() - since)
            except BackPressureError:
                continue
            except (UnknownUidError, WireError) as exc:  # the other side has not taken its registration back
                self._troubles.tell(obj.platform.registration, exc)
                relay.stands, relay.is_stale = False, True
                self._park(relay, obj, first=True)
                return
            except JbiError as exc:
                self._troubles.tell(f"object {obj.platform.registration}", exc)
                break
            relay.untold.up_to = obj.platform.sequence
            self._count("relayed")
            return
        relay.untold.lost += 1
        self._count("lost")

    def _park(self, relay: Relayed, obj: InfoObject, *, first: bool = False) -> None:
        """Under the relay's lock."""
        self._count("lost", self._relays.park(relay, self._clock(), obj, first=first))

    # -- registrations: by the direction's job ------------------------------------------------------------------------

    def look(self) -> None:
        """Compare both sides, and do what is to be done."""
        is_one = self._is_one_platform()
        found = () if is_one else self.source.published()
        self._local = frozenset(each.uid for each in found if each.is_local)
        published = {each.uid: each for each in found if self._is_for_us(each)}
        if not is_one:
            self._intake.look(published, {uid for uid, each in self._relays.items() if each.untold.is_awaited})
        there = {each.uid: each for each in self.target.published() if not each.has_left}
        for uid, each in published.items():
            if self._job.is_over:
                return
            self._keep(uid, each, there.get(uid))
        now = self._clock()
        self._load.judge(now)
        for uid, relay in self._relays.items():
            self._tend(uid, relay, now, is_there=uid in published)

    def _is_one_platform(self) -> bool:
        """Whether both sides are the same platform: then there is nothing to relay."""
        try:
            check_apart(self.source, self.target)
        except ConfigurationError as exc:
            self._troubles.tell("sides", exc)
            return True
        self._troubles.tell("sides", None)
        return False

    def _is_for_us(self, published: BridgedRegistration) -> bool:
        is_ours = not published.is_local and not self._is_echo(published.via)
        return is_ours and self.transformation.wants(published.type)

    def _keep(self, uid: str, published: BridgedRegistration, there: BridgedRegistration | None) -> None:
        """A registration of the source is so on the target, unless it is there already."""
        relay = self._relays.made(uid, self._clock())
        if relay is None:
            return
        relay.seen = self._clock()
        before, relay.published = relay.published, published
        if there is not None and there.bridge != self._bridge:
            relay.why = f"relayed by bridge {there.bridge}" if there.bridge else "published there itself"
            relay.is_others, relay.is_former = True, bridge_name(there.bridge) == bridge_name(self._bridge)
            relay.backoff, relay.again = None, 0.0  # when it is gone it is ours at once
            if relay.stands:  # two came at once, and the lookup services have taken the other one
                self._drop(uid, relay)
            return
        relay.is_others = False
        if relay.is_stale:
            self._drop(uid, relay)
        if before != published or (not relay.stands and self._clock() >= relay.again):
            self._register(uid, relay, published)

    def _register(self, uid: str, relay: Relayed, published: BridgedRegistration) -> None:
        """Then all that is parked goes."""
        type_ = self.transformation.named(published.type)
        via = (*published.via, self.source.name)
        try:
            bundle = self.source.schema(published)
            if type_ != published.type:
                if not relay.parked:
                    relay.why = f"waits for an object, which says what is invariant under the name {type_.name}"
                    return
                bundle = msgspec.structs.replace(bundle, type=type_)
                published = _renamed(published, bundle, relay.parked[-1][1])
            relay.untold.is_sparse = published.first is not None and (published.is_sparse or self._terms.wanted)
            passed = self._terms.passed(published, None if published.first is None else relay.first)
            self.target.register(passed, type_, bundle, via, validate=self._terms.validate)
        except JbiError as exc:
            if relay.refuse(exc, self._clock(), self._terms.poll):
                self._job.wake()
            self._troubles.tell(uid, exc)
            return
        self._troubles.tell(uid, None)
        relay.accept()
        with relay.lock:
            relay.stands = True
            while relay.parked and relay.stands:
                self._send(relay, *self._relays.unpark(relay))

    def _drop(self, uid: str, relay: Relayed, *, waits: bool = False) -> bool:
        """Take it back on the other side; with `waits` when that has what was published: False, it has not."""
        try:
            if not self.target.unregister(uid, waits=waits):
                return False
        except JbiError as exc:
            log.info("%s: registration %s ends there with its lease: %s", self._job.name, uid, exc)
        with relay.lock:
            relay.stands = relay.is_stale = False
        return True

    def _tend(self, uid: str, relay: Relayed, now: float, *, is_there: bool) -> None:
        """Tell of what is left out, let go what waits too long or has left."""
        with relay.lock:
            is_owed = is_there and relay.is_owed
            while relay.parked and relay.parked[0][0] < now - PARKED_SECONDS and not is_owed:
                self._count("lost", self._relays.give_up(relay))
            has_more = bool(relay.parked)
        self._tell_rest(uid, relay)
        lingers = now - self._load.seen < LINGER_SECONDS and now - relay.seen < LINGER_MOST
        if is_there or has_more or lingers or now - relay.seen < LINGER_SECONDS:
            return
        if relay.stands and not self._drop(uid, relay, waits=True):
            return  # the other side is away
        self._relays.remove(uid)
        self._troubles.tell(uid, None)

    def _tell_rest(self, uid: str, relay: Relayed, timeout: float = ROOM_SECONDS) -> None:
        """Tell of what was left out, where nothing has followed yet."""
        with relay.lock:
            try:
                if relay.stands:
                    relay.tell(self.target, uid, timeout)
            except JbiError as exc:
                log.debug("%s: the omitted objects of %s are told later: %s", self._job.name, uid, exc)

    # -- the past -------------------------------------------------------------------------------------------------

    def answers(self, request: QueryRequest) -> RemoteAnswers:
        """The source's answers to a query of the target, as they would have come (see protocol.remote). Nothing where
        it was brought from the source before, by whatever bridge: all of the source is asked by whoever brought it, and
        what passes the source twice is an echo. So rings end. Raises ConfigurationError beyond HOPS_MOST platforms."""
        passed = (*request.passed, self.target.name)
        if self.source.name in passed:
            return PlatformAnswers(None)
        if len(passed) > HOPS_MOST:
            raise ConfigurationError(
                f"a query has passed {HOPS_MOST} platforms, the limit",
                hint="A platform has one name in all its bridges",
            )
        asked = self.transformation.asked(request.type)
        own = msgspec.structs.replace(everything(request), type=asked, passed=passed)
        return _PassedAnswers(self.source.query(own), self.seen, request)

    def seen(self, obj: InfoObject) -> InfoObject | None:
        """An object of the source's archives, as it comes to the target; None: it does not."""
        if self._is_echo(obj.platform.via) or not self.transformation.wants(obj.type):
            return None
        changed = self.transformation.apply(obj)
        if changed is None:
            return None
        via = (*obj.platform.via, self.source.name)
        return msgspec.structs.replace(
            changed, platform=msgspec.structs.replace(changed.platform, hops=len(via), via=via)
        )


class _PassedAnswers:
    """RemoteAnswers of a source, as its direction lets them through."""

    def __init__(
        self, answers: RemoteAnswers, seen: Callable[[InfoObject], InfoObject | None], request: QueryRequest
    ) -> None:
        self._answers = answers
        self._seen = seen
        self._request = request
        self.signing_key, self.cancel = answers.signing_key, answers.cancel

    def __iter__(self) -> Iterator[InfoObject]:
        return chosen(filter(None, map(self._seen, self._answers)), self._request)

    @property
    def lacks(self) -> str:
        """Note on what is missing."""
        return self._answers.lacks


class Mirror:
    """Two platforms and the directions between them. Whoever makes it closes it."""

    def __init__(
        self, sides: tuple[BridgePlatform, BridgePlatform], directions: tuple[Direction, ...], *, name: str = "bridge"
    ) -> None:
        """`name`: what people call it."""
        self.sides, self.directions, self.name = sides, directions, name

    def start(self) -> None:
        """Begin."""
        for side in self.sides:
            side.watch(self._wake)
        for direction in self.directions:
            direction.target.provide(_Door(direction.answers, self.told))
            direction.start()

    def _wake(self) -> None:
        for direction in self.directions:
            direction.wake()

    def status(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "sides": {side.name: side.status() for side in self.sides},
            "directions": [direction.status() for direction in self.directions],
        }

    def told(self) -> RemoteStatus:
        """Status for those who may look at one of the sides: what it does, of the other platform whether it is
        there, and what is wanted."""
        ways = [
            converted(
                {**way, **told(way), "waiting": len(way["waiting"]), "troubles": len(way["trouble"])}, DirectionStatus
            )
            for way in (direction.status() for direction in self.directions)
        ]
        sides = {side.name: bool(side.status().get("connected")) for side in self.sides}
        return RemoteStatus(kind="bridge", name=self.name, sides=sides, directions=ways)

    def close(self) -> None:
        """Leave in order: nothing comes in any more, what has come goes out, then both sides are left."""
        for side in self.sides:
            side.stop_listening()
        for direction in self.directions:
            direction.stop()
        for side in self.sides:
            side.close()


@dataclass
class _Door:
    """A bridge as the target of one of its directions knows it (see protocol.remote.RemoteArchive)."""

    answers: Callable[[QueryRequest], RemoteAnswers]
    status: Callable[[], RemoteStatus]
    service_type: str = BRIDGE_TYPE


def _renamed(published: BridgedRegistration, bundle: SchemaBundle, obj: InfoObject) -> BridgedRegistration:
    """A registration whose type is called otherwise: classes of entries are named after the type, so its own are made
    anew, from one of its objects. What the publisher has not set stays so. Raises JbiError."""
    opened = TypeRepository().open_schema(bundle)
    if not isinstance(opened, InformationType):
        return published
    known = {entry.cls.name.partition("#")[2]: entry for entry in published.entries}
    made = []
    for entry in opened.entries(parse_metadata(obj.metadata)):
        own = known.get(entry.cls.name.partition("#")[2])
        if own is not None and len(own.values) == len(entry.values):
            values = tuple(new if old is not None else None for old, new in zip(own.values, entry.values, strict=True))
            made.append(msgspec.structs.replace(entry, values=values))
    return replace(published, type=bundle.type, entries=tuple(made), signing=None)
