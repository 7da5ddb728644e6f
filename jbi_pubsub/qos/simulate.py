"""Simulation of what policies would make of a workload: the classes that enforce them, on a virtual clock.

Simulated are contracts (local.py), the turns of judging (bins.py), what waits for a subscription (queue.py) and the
links (link.py), with the events between them: an object is published, has been judged, a batch goes, has arrived. What
is only estimated: judging takes the same for each object, a scaled picture is smaller by a rule, and a link of no
measured bandwidth carries all that its policy allows at once. Credits of publishers and subscribers, and predicates, do
not appear: each object of its type is for each of its subscribers.
"""

from __future__ import annotations

import itertools
import random
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec

from jbi_pubsub.core.errors import ConfigurationError
from jbi_pubsub.core.info_object import Cause, Head, Parcel, pack
from jbi_pubsub.core.quality import Contract, PayloadShape, Space, Wish
from jbi_pubsub.core.values import from_json
from jbi_pubsub.core.wire.endpoint import Caller
from jbi_pubsub.policy.policyset import PolicySet

from .bins import Bins, Cost, Ticket
from .local import TICK_SECONDS, LocalManager
from .shaping import JPEG
from .virtual import (
    SAMPLE_SECONDS,
    SimulatedNetwork,
    SimulatedObject,
    SimulatedQueue,
    SimulatedSession,
    StageResult,
    VirtualClock,
)

JUDGING: Final = 0.0002
"""Seconds for one object: a few predicates of an index, and what is around."""
BOUND: Final = 10_000
"""Objects that wait for a subscription ([queue] bound)."""
PUBLICATIONS_MOST: Final = 1_000_000
SIZE_MOST: Final = 64 << 20
SUBSCRIBERS_MOST: Final = 10_000
LINES_MOST: Final = 256 << 20
"""Bytes of a trace."""
LINE_MOST: Final = 1 << 20
"""Bytes of one line of it."""
_IS_SUBSCRIBER: Final = re.compile(rb'"subscriber"\s*:')
SHRINKS: Final = 2.9
"""A picture scaled by f has f to the power of this of its bytes: measured with noisy JPEGs of 42 to 70 KB; 2 would be
its area, but noise is lost as well."""


class Publication(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An object: when (seconds), its type and publisher, bytes of its payload, whether that is a picture."""

    at: Annotated[float, msgspec.Meta(ge=0, le=1e7)]
    type: Annotated[str, msgspec.Meta(min_length=1, max_length=200)]
    size: Annotated[int, msgspec.Meta(ge=0, le=SIZE_MOST)]
    user: str = ""
    picture: bool = False
    metadata: str = "<metadata/>"


class TraceSubscriber(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Subscriber to a type; subscriptions of one user and client share a connection."""

    subscriber: Annotated[str, msgspec.Meta(min_length=1, max_length=200)]
    type: Annotated[str, msgspec.Meta(min_length=1, max_length=200)]
    client: str = ""
    role: str = ""


class Flow(msgspec.Struct, frozen=True):
    """Objects of a type at regular times: how many a second, bytes of the least and the largest payload; `metadata`
    with `{user}`, and `{key}`, of which there are so many."""

    type: str
    user: str
    rate: float
    least: int
    most: int
    picture: bool = False
    metadata: str = "<metadata><source>{user}</source></metadata>"
    keys: int = 1

    def metadata_of(self, number: int) -> str:
        """Metadata of the object of that number."""
        return self.metadata.replace("{user}", self.user).replace("{key}", str(number % self.keys))


class Workload(msgspec.Struct, frozen=True):
    """Subscribers with their types, and publications, as they come."""

    subscribers: tuple[TraceSubscriber, ...]
    publications: tuple[Publication, ...]

    @staticmethod
    def of(flows: Iterable[Flow], subscribers: Iterable[TraceSubscriber], seconds: float, *, seed: int = 7) -> Workload:
        """Workload of regular flows, the same for the same seed."""
        chance, found = random.Random(seed), []  # noqa: S311  # no secret
        for flow in flows:
            for number in range(int(seconds * flow.rate)):
                metadata = flow.metadata_of(number)
                size = chance.randint(flow.least, flow.most)
                at = (number + 0.5) / flow.rate
                found.append(Publication(at, flow.type, size, flow.user, flow.picture, metadata))
        found.sort(key=lambda each: each.at)
        return Workload(tuple(subscribers), tuple(found))

    @staticmethod
    def read(path: Path) -> Workload:
        """A trace: lines of JSON, each a publication or a subscriber. Raises ConfigurationError, with its line."""
        subscribers: list[TraceSubscriber] = []
        publications: list[Publication] = []
        hint = 'Lines are {"at": 0.5, "type": "t", "size": 10000} or {"subscriber": "Ops-1", "type": "t"}'
        number = size = 0
        try:
            with path.open("rb") as lines:
                while line := lines.readline(LINE_MOST + 1):  # it may be a device, or a pipe
                    number += 1
                    size += len(line)
                    if len(line) > LINE_MOST:
                        raise ConfigurationError(f"{path}:{number}: a line of over {LINE_MOST >> 20} MiB", hint=hint)
                    if size > LINES_MOST:
                        raise ConfigurationError(
                            f"{path}: larger than {LINES_MOST >> 20} MiB", hint="Take a part of it"
                        )
                    if not line.strip():
                        continue
                    if _IS_SUBSCRIBER.search(line):
                        subscribers.append(from_json(TraceSubscriber, line))
                    else:
                        publications.append(from_json(Publication, line))
                    if len(publications) > PUBLICATIONS_MOST:
                        raise ConfigurationError(f"{path}: over {PUBLICATIONS_MOST:,} objects", hint="Take a part")
                    if len(subscribers) > SUBSCRIBERS_MOST:
                        raise ConfigurationError(f"{path}: over {SUBSCRIBERS_MOST:,} subscribers", hint="Take a part")
        except OSError as exc:
            raise ConfigurationError(f"{path}: {exc.strerror or exc}", hint=hint) from exc
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as exc:
            raise ConfigurationError(f"{path}:{number}: {exc}", hint=hint) from exc
        if not subscribers or not publications:
            raise ConfigurationError(f"{path}: {'no objects' if subscribers else 'no subscribers'}", hint=hint)
        return Workload(tuple(subscribers), tuple(sorted(publications, key=lambda each: each.at)))


DEMO_FLOWS: Final = (
    Flow("uav.imagery", "Predator-1", 0.5, 42_000, 70_000, picture=True),
    Flow("cas.image", "Raven-1", 0.3, 42_000, 70_000, picture=True),
    Flow("patrol_report", "Patrol-2", 1.2, 10_000, 10_000),
    Flow("uav.tasking", "Ops-3", 1.0, 10_000, 10_000),
    Flow(
        "blue_force_tracking", "Tracker-1", 1.5, 10_000, 10_000,
        metadata="<metadata><source>{user}</source><track_id>{key}</track_id></metadata>", keys=5,
    ),
)  # fmt: skip
DEMO_SUBSCRIBERS: Final = tuple(
    TraceSubscriber(user, type_)
    for user, types in (
        ("Ops-1", ("uav.imagery", "cas.image")),
        ("Ops-2", ("uav.imagery",)),
        ("Patrol-1", ("cas.image", "patrol_report", "uav.tasking")),
        ("HQ-1", ("blue_force_tracking",)),
    )
    for type_ in types
)
"""The demonstration of QED, section IV: types and sizes; together just over 1 Mbit/s."""


def demo(seconds: float) -> Workload:
    """The workload of the demonstration."""
    return Workload.of(DEMO_FLOWS, DEMO_SUBSCRIBERS, seconds)


class Change(msgspec.Struct, frozen=True):
    """Change of what holds, at a time: other policies, or what links can carry (bytes a second)."""

    at: float
    policies: PolicySet | None = None
    bandwidth: float | None = None


class Stage(msgspec.Struct):
    """The time between two changes."""

    begins: float
    ends: float
    got: dict[TraceSubscriber, StageResult]

    def rows(self) -> list[dict[str, Any]]:
        """Plain data, the most important first."""
        total = sum(got.size for got in self.got.values())
        seconds = max(self.ends - self.begins, 1e-9)
        rows = [got.row(seconds, total) for got in self.got.values()]
        return sorted(rows, key=lambda row: (-row["importance"], row["type"], row["subscriber"]))


class Simulated(msgspec.Struct):
    """Result of a simulation. An object counts to the stage in which it was published."""

    seconds: float
    stages: list[Stage]
    links: dict[str, list[tuple[float, float]]]
    """Rates of each: (when, bytes a second since)."""
    waiting: int
    """Objects that still waited at the end."""

    def plain(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "seconds": self.seconds,
            "waiting": self.waiting,
            "stages": [{"begins": each.begins, "ends": each.ends, "rows": each.rows()} for each in self.stages],
            "links": {name: [list(point) for point in points] for name, points in self.links.items()},
        }


class SimulatedRun:
    """A workload under policies for so many virtual seconds: events in their order. What the processes' threads and
    sockets do are methods here."""

    def __init__(
        self,
        policies: PolicySet,
        workload: Workload,
        seconds: float,
        *,
        changes: Sequence[Change] = (),
        judging: float = JUDGING,
        component: str = "alpha@rome",
        begins: float = 0.0,
    ) -> None:
        """`begins` is the time of the first second, for policies that are in force at times. Raises JbiError for what
        can't be."""
        self._seconds = seconds
        self._judging = judging
        self._clock = clock = VirtualClock()
        self._network = SimulatedNetwork(clock)
        self._bins: Bins[Publication] = Bins(policies.space.strategy)
        self._cost: dict[tuple[str, str], Cost] = {}
        self._is_judging = False
        self._heads: Counter[tuple[str, str]] = Counter()
        self._local = LocalManager(
            component,
            installed=self._use,
            measured=self._network.resources,
            wall=lambda: begins + clock.now,
            clock=lambda: clock.now,
        )
        self._local.stop()  # its thread: `look` is called here
        largest = max((each.size for each in workload.publications), default=0)
        self._payloads = memoryview(bytes(largest)), memoryview(JPEG + bytes(largest))
        """Shared by all objects: plain ones, and pictures."""
        self._subscribers = workload.subscribers
        self._stages: list[Stage] = []
        self._outlets: dict[str, list[tuple[TraceSubscriber, SimulatedSession, SimulatedQueue]]] = {}
        self._publishers: dict[tuple[str, str], Contract] = {}
        self._install(policies)
        for subscriber in workload.subscribers:
            self._subscribe(subscriber)
        self._stage()
        for change in changes:
            self._clock.at(change.at, lambda change=change: self._change(change))  # type: ignore[misc]
        for publication in workload.publications:
            if publication.at < seconds:
                self._clock.at(publication.at, lambda each=publication: self._published(each))  # type: ignore[misc]
        clock.at(0.0, self._tick)
        clock.at(SAMPLE_SECONDS, self._network.sample)

    def result(self) -> Simulated:
        """Run it to the end, once."""
        self._clock.run(self._seconds)
        self._stages[-1].ends = self._seconds
        waiting = sum(session.waiting() for session in self._network.sessions.values())
        return Simulated(self._seconds, self._stages, self._network.carried, waiting)

    # -- policies -----------------------------------------------------------------------------------------------

    def _install(self, policies: PolicySet) -> None:
        self._local.install(policies)
        self._network.follow()

    def _use(self, space: Space) -> None:
        if space.strategy != self._bins.strategy:
            self._bins.switch(space.strategy)
        self._network.use(space)

    def _change(self, change: Change) -> None:
        if change.bandwidth is not None:
            self._network.bandwidth = change.bandwidth
        if change.policies is not None:
            self._install(change.policies)
        if change.at > 0.0:
            self._stages[-1].ends = self._clock.now
            self._stage()

    def _stage(self) -> None:
        got = {each: StageResult(each.subscriber, each.type) for each in self._subscribers}
        for subscriber, _, outlet in itertools.chain.from_iterable(self._outlets.values()):
            got[subscriber].importance = outlet.contract.settings.importance
        self._stages.append(Stage(self._clock.now, self._clock.now, got))

    def _subscribe(self, subscriber: TraceSubscriber) -> None:
        caller = Caller("", user=subscriber.subscriber, claimed=True, client=subscriber.client, role=subscriber.role)
        contract, _ = self._local.contract(caller, "subscribe", subscriber.type, "1.0", "queue", Wish())
        session = self._network.sessions.setdefault((subscriber.subscriber, subscriber.client), SimulatedSession())
        outlet = SimulatedQueue(contract)
        session.outlets.append(outlet)
        self._outlets.setdefault(subscriber.type, []).append((subscriber, session, outlet))
        self._network.follow()

    # -- the processor ------------------------------------------------------------------------------------------

    def _published(self, publication: Publication) -> None:
        who = publication.user, publication.type
        if who not in self._publishers:
            caller = Caller("", user=publication.user, claimed=True)
            self._publishers[who] = self._local.contract(caller, "publish", publication.type, "1.0", "queue", Wish())[0]
            self._cost[who] = Cost()
        cost = self._cost[who].of(publication.size + 1)
        self._bins.put(publication, self._publishers[who].settings.importance, cost)
        if not self._is_judging:
            self._judge()

    def _judge(self) -> None:
        self._is_judging = len(self._bins) > 0
        if self._is_judging:
            publication, ticket = self._bins.take()
            self._clock.at(self._clock.now + self._judging, lambda: self._judged(publication, ticket))

    def _judged(self, publication: Publication, ticket: Ticket) -> None:
        self._bins.charge(ticket, self._judging)
        self._cost[publication.user, publication.type].learn(self._judging, 1, publication.size + 1)
        found = self._outlets.get(publication.type, ())
        if found:
            parcel = self._parcel(publication)
            stage = next(each for each in reversed(self._stages) if each.begins <= publication.at)
            for subscriber, session, outlet in found:
                self._offer(stage.got[subscriber], outlet, parcel, publication.at)
                self._network.ready(session)
        self._judge()

    def _parcel(self, publication: Publication) -> Parcel:
        who = publication.user, publication.type
        self._heads[who] += 1
        number, metadata = self._heads[who], publication.metadata.encode()
        name = f"{publication.user}:{publication.type}"
        head = Head(f"{name}/{number}", name, number, publication.at, publication.type, "1.0", metadata,
                    publication.size)  # fmt: skip
        first = pack(head, b"").parts[0]
        payload = self._payloads[publication.picture][: publication.size]
        return Parcel(head, (first, payload), len(first) + publication.size, 0)

    def _offer(self, got: StageResult, outlet: SimulatedQueue, parcel: Parcel, published: float) -> None:
        """Shaped, if its settings say so, into its queue (pad/matching/dissemination.py, pad/egress/levels.py)."""
        got.matched += 1
        settings = outlet.contract.of(parcel)
        size, whole = len(parcel.payload), len(parcel.head.metadata) + len(parcel.payload)
        too_large = settings.max_size is not None and whole > settings.max_size
        left = size
        if settings.shapes and self._local.policies.space.shaping and (settings.oversize == "drop" or too_large):
            left = estimated(size, settings.shapes, picture=parcel.payload[:3] == JPEG)
        if settings.oversize == "drop" and settings.max_size is not None and whole - size + left > settings.max_size:
            got.lost[Cause.OVERSIZE.value] += 1
            return
        shaped = left < size
        if shaped:
            parcel = Parcel(parcel.head, (*parcel.parts[:-1], parcel.payload[:left]), parcel.size - size + left, 0)
        queue = outlet.queue
        queue.expire(self._clock.now)
        if len(queue) >= BOUND and not queue.has_room_for(parcel, self._clock.now):
            if queue.is_least(parcel):
                got.lost[Cause.QUEUE_OVERFLOW.value] += 1
                return
            least = queue.drop_least()
            outlet.size -= least.parcel.size
            least.got.lost[Cause.QUEUE_OVERFLOW.value] += 1
        outlet.put(SimulatedObject(parcel, published, got, shaped), self._clock.now)

    # -- meanwhile ----------------------------------------------------------------------------------------------

    def _tick(self) -> None:
        self._local.look()
        self._network.follow()
        self._clock.at(self._clock.now + TICK_SECONDS, self._tick)


def estimated(size: int, shapes: Sequence[PayloadShape], *, picture: bool) -> int:
    """About what shapes leave of a payload of so many bytes. How much less a
    quality, or grey, makes of it depends on the picture: as it is."""
    left = size
    for each in shapes:
        if each.name == "drop_payload":
            left = 0
        elif each.name == "truncate" and not picture:
            left = min(left, int(each.arguments[0]))
        elif each.name == "scale" and picture:
            left = int(left * each.arguments[0] ** SHRINKS)
        elif each.name == "thumbnail" and picture:
            left = min(left, int(each.arguments[0] * each.arguments[1] / 5))
    return left
