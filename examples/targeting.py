"""The demonstration of the QED paper (section IV): imagery, reports, tasking and tracks share a link, and a patrol that
finds a target calls for close air support.

Eleven processes play it for some minutes: a lookup service, a delegate with a policy file, five publishers, four
subscribers, to whom just over 1 Mbit/s is offered. Then the file changes while all goes on: the link gets a limit of
800 kbit/s; the patrol's role becomes close air support, then damage assessment; one commander's preferences change, so
that imagery comes scaled to him; importance changes. What comes of it is counted beside what `jbi_pubsub.qos.simulate`
says.
"""

from __future__ import annotations

import io
import itertools
import math
import statistics
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any, Final

import msgspec

from jbi_pubsub import Config, InfoObject, LossNotice, PublisherAdapterLight, SubscriberAdapter
from jbi_pubsub.core.config import ClientSection
from jbi_pubsub.core.errors import DemoError
from jbi_pubsub.core.files import written
from jbi_pubsub.core.wire import ServiceRef
from jbi_pubsub.core.wire.endpoint import Security
from jbi_pubsub.examples.example import DATA, Cell, ExampleOutcome, OutcomeTable, Promise
from jbi_pubsub.examples.federation import PATIENCE, Federation, application, say
from jbi_pubsub.policy.policyset import PolicySet
from jbi_pubsub.protocol.services import fetch_status
from jbi_pubsub.qos.simulate import DEMO_FLOWS, DEMO_SUBSCRIBERS, Change, Publication, Simulated, SimulatedRun, Workload
from jbi_pubsub.spark.plots import Plot, Series, thinned

SCHEMA: Final = DATA / "targeting" / "Report.xsd"
LIMIT: Final = 800_000
"""Bits a second."""
EFFECT_SECONDS: Final = 2.0
"""A change is in force for what is published later than that behind it."""
SECONDS: Final = 240.0
FAST_SECONDS: Final = 60.0
"""Also the least that makes sense: of the rarest type four objects come in a stage."""
CHANGED: Final = '\n[[policy]]\nname = "{name}"\n{keys}\nprecedence = 20\n'

FREE, LIMITED, SUPPORT, PREFERENCES, IMPORTANCE = "free", "limited", "support", "preferences", "importance"
STAGES: Final = ((FREE, 0.0), (LIMITED, 0.25), (SUPPORT, 0.3), (PREFERENCES, 0.5), (IMPORTANCE, 0.75))
"""When each begins, as a part of the whole."""
WINDOW_SECONDS: Final = 1.8
"""Time over which what goes over the link is counted, at least."""
IMAGES: Final = ("cas.image", "uav.imagery")
PROTECTED: Final = 4
"""Importance from which on nearly all is to come."""


class Came(msgspec.Struct, frozen=True):
    """An object at a subscriber: when it was published (seconds of the play) and how late it came, bytes of its
    payload, its number."""

    type: str
    at: float
    late: float
    size: int
    registration: str
    number: int


class DemonstrationRun(msgspec.Struct, frozen=True):
    """Results of a run."""

    seconds: float
    came: dict[str, list[Came]]
    """By subscriber."""
    told: dict[str, dict[str, int]]
    """By subscriber: type -> losses that it was told."""
    subscriptions: list[dict[str, Any]]
    """The delegate's account of each: `user`, `type`, `matched`, `delivered`, `suppressed`, `lost`, `importance`."""
    use: list[tuple[float, float]]
    """Use of the link: (seconds of the play, bytes a second since the one before)."""
    published: dict[str, list[tuple[float, int]]]
    """By type: when, and bytes of the payload."""
    effects: dict[str, float]
    """By stage: seconds until the delegate went by its policies."""


def run_demo(tell: Callable[[str], object], *, rounds: int = 1, seconds: float = SECONDS) -> ExampleOutcome:
    """Play it, and simulate what was played. One round says it all. Raises DemoError."""
    del rounds
    if seconds < FAST_SECONDS:
        raise DemoError(
            f"in {seconds:g} s too little is published to say anything", hint=f"Take {FAST_SECONDS:g} s or more"
        )
    played = play_all(tell, seconds)
    return outcome(played, simulated(played))


# -- policies ---------------------------------------------------------------------------------------------------------


def policies(stage: str) -> str:
    """The policy file of a stage: that of the demonstration (policy/data/demo.toml), changed."""
    text = files("jbi_pubsub.policy").joinpath("data", "demo.toml").read_text()
    text = _replaced(text, 'preference = "GeneralSurv"', 'preference = "FullImageDrop"')
    at = [name for name, _ in STAGES].index(stage)
    if stage == FREE:
        text = _replaced(text, 'rate = "800 kbps"', 'rate = "100 Mbps"')
    if stage == SUPPORT:
        text = _replaced(text, '"Patrol-1" = "patrol"', '"Patrol-1" = "cas"')
        text = _replaced(text, 'strategy = "weighted_fair"', 'strategy = "strict"')
    if stage == PREFERENCES:
        text = _replaced(text, '"Patrol-1" = "patrol"', '"Patrol-1" = "bda"')
    if at >= 3:
        keys = 'user = "Ops-1"\ntype = "uav.imagery"\naction = "subscribe"\npreference = "GeneralSurv"'
        text += CHANGED.format(name="Ops-1 sees less of it", keys=keys)
    if stage == IMPORTANCE:
        text += CHANGED.format(name="Ops-2 looks for it", keys='user = "Ops-2"\ntype = "uav.imagery"\nimportance = 5')
        text += CHANGED.format(name="reports can wait", keys='type = "patrol_report"\nimportance = 1')
    return text


def _replaced(text: str, old: str, new: str) -> str:
    if text.count(old) != 1:
        raise DemoError(f"policy/data/demo.toml says {old!r} {text.count(old)} times")
    return text.replace(old, new)


# -- what came of it --------------------------------------------------------------------------------------------------


class ComparisonRow(msgspec.Struct):
    """A subscription in a stage, played and simulated. Objects count where they were published."""

    stage: str
    user: str
    type: str
    importance: int
    published: int
    came: list[Came]
    simulated: dict[str, Any]

    @property
    def part(self) -> float:
        """Part of what was published that came."""
        return len(self.came) / self.published if self.published else 1.0

    @property
    def mean(self) -> float:
        """Seconds."""
        return statistics.fmean(each.late for each in self.came) if self.came else 0.0

    @property
    def deviation(self) -> float:
        """Deviation of the same."""
        return statistics.pstdev(each.late for each in self.came) if self.came else 0.0

    def quantile(self, part: float) -> float:
        """Quantile of the same."""
        late = sorted(each.late for each in self.came)
        return late[min(len(late) - 1, int(len(late) * part))] if late else 0.0


def simulated(played: DemonstrationRun) -> Simulated:
    """Simulation of what was published, under the same policies."""
    users = {flow.type: flow for flow in DEMO_FLOWS}
    publications = [
        Publication(
            max(0.0, at), type_, size, users[type_].user, users[type_].picture, users[type_].metadata_of(number)
        )
        for type_, sent in played.published.items()
        for number, (at, size) in enumerate(sent)
    ]
    workload = Workload(DEMO_SUBSCRIBERS, tuple(sorted(publications, key=lambda each: each.at)))
    changes = [
        Change(
            part * played.seconds + played.effects.get(stage, 0.0), PolicySet.parse(policies(stage)).of_version(number)
        )
        for number, (stage, part) in enumerate(STAGES)
        if number
    ]
    first = PolicySet.parse(policies(FREE))
    return SimulatedRun(first, workload, 2 * played.seconds + PATIENCE, changes=changes).result()


def rows_of(played: DemonstrationRun, said: Simulated) -> list[ComparisonRow]:
    """Rows of each stage and subscription, the most important first."""
    begins = [part * played.seconds + played.effects.get(stage, 0.0) for stage, part in STAGES]
    found = []
    for (stage, _), begin, end, told in zip(STAGES, begins, [*begins[1:], math.inf], said.stages, strict=True):
        for row in told.rows():
            user, type_ = row["subscriber"], row["type"]
            came = [each for each in played.came[user] if each.type == type_ and begin <= each.at < end]
            published = sum(begin <= at < end for at, _ in played.published[type_])
            found.append(ComparisonRow(stage, user, type_, row["importance"], published, came, row))
    return found


def outcome(played: DemonstrationRun, said: Simulated) -> ExampleOutcome:
    """Outcome: who got what, stage by stage, and what was to hold."""
    rows = rows_of(played, said)
    columns = ("stage", "subscriber", "type", "importance", "published", "came", "simulated", "delay s", "deviation s",
               "p95 s", "simulated delay s")  # fmt: skip
    cells: list[tuple[Cell, ...]] = [
        (row.stage, row.user, row.type, row.importance, row.published, len(row.came), row.simulated["delivered"],
         round(row.mean, 3), round(row.deviation, 3), round(row.quantile(0.95), 3), row.simulated["delay"])
        for row in rows
    ]  # fmt: skip
    table = OutcomeTable("QED, section IV: who got what", columns, cells)
    return ExampleOutcome((table,), tuple(promises(played, rows)), tuple(_plots(played, said, rows)))


def _plots(played: DemonstrationRun, said: Simulated, rows: Sequence[ComparisonRow]) -> Iterator[Plot]:
    """The link over time, latency against importance, and played against simulated."""
    limits = [(dict(STAGES)[LIMITED] * played.seconds, LIMIT / 1000), (played.seconds, LIMIT / 1000)]
    kbits = {
        "played": [(at, used * 8 / 1000) for at, used in played.use],
        "simulated": [(at, used * 8 / 1000) for at, used in said.links["downlink"] if at <= played.seconds],
    }
    use = [*(Series.of(name, thinned(points)) for name, points in kbits.items()), Series.of("limit", limits)]
    title = "The link, limited from a quarter of the time on"
    yield Plot(name="demo-link", title=title, kind="lines", x="seconds", y="kbit/s", series=tuple(use))
    narrow = [row for row in rows if row.stage in (SUPPORT, PREFERENCES, IMPORTANCE) and row.came]
    kinds: dict[str, list[tuple[float, float]]] = {
        name: [] for name in ("images", "scaled images", "reports, tasks, tracks")
    }
    for row in narrow:
        image = "scaled images" if row.simulated["shaped"] else "images"
        kinds[image if row.type in IMAGES else "reports, tasks, tracks"].append((row.importance, row.mean))
    latency = tuple(Series.of(name, points) for name, points in kinds.items() if points)
    title = "Mean latency against importance, while the link is too narrow"
    yield Plot(name="demo-latency", title=title, kind="points", x="importance", y="seconds", series=latency, log_y=True)
    both = [
        Series.of(stage, ((max(0.001, row.simulated["delay"]), row.mean) for row in narrow if row.stage == stage))
        for stage in (SUPPORT, PREFERENCES, IMPORTANCE)
    ]
    yield Plot(
        name="demo-simulated", title="Mean latency of each subscription: played against simulated", kind="points",
        x="seconds, simulated", y="seconds, played", log_x=True, log_y=True, series=tuple(both),
    )  # fmt: skip


def promises(played: DemonstrationRun, rows: Sequence[ComparisonRow]) -> Iterator[Promise]:
    """Promises that are to hold."""
    narrow = dict(STAGES)[LIMITED] * played.seconds + EFFECT_SECONDS
    limited = [used for (begin, _), (_, used) in itertools.pairwise(played.use) if begin > narrow]
    mean, most = 8 * statistics.fmean(limited), 8 * max(limited)
    yield Promise(f"the link carries {mean / 1000:.0f} kbit/s, at most {LIMIT / 1000:g}", 0 < mean <= LIMIT)
    peak = LIMIT * 1.05
    yield Promise(f"in the fullest two seconds {most / 1000:.0f} kbit/s, at most {peak / 1000:g}", most <= peak)
    slowest = max(played.effects.values())
    yield Promise(
        f"each change is in force after {slowest:.2f} s at most, {EFFECT_SECONDS:g}", slowest <= EFFECT_SECONDS
    )
    yield from _accounts(played)
    important = [row for row in rows if row.importance >= PROTECTED]
    part = sum(len(row.came) for row in important) / max(1, sum(row.published for row in important))
    yield Promise(f"of importance {PROTECTED} and above {part:.1%} came, at least 95%", part >= 0.95)
    yield from _orders(rows)
    support = _of(rows, SUPPORT, "Patrol-1", "cas.image")
    called = dict(STAGES)[SUPPORT] * played.seconds + EFFECT_SECONDS
    support.came = [each for each in support.came if each.at > called]
    late, worst = support.quantile(0.95), _of(rows, SUPPORT, "Ops-2", "uav.imagery").mean
    yield Promise(
        f"who calls for support gets images in {late:.2f} s (p95), at most 1, while imagery waits for {worst:.1f} s",
        bool(support.came) and late < 1.0 < worst,
    )
    yield from _shapes(played)


def _accounts(played: DemonstrationRun) -> Iterator[Promise]:
    wrong = []
    for row in played.subscriptions:
        came = [each for each in played.came[row["user"]] if each.type == row["type"]]
        told = played.told[row["user"]].get(row["type"], 0)
        lost = sum(row["lost"].values())
        if not (row["matched"] == row["delivered"] + lost == len(came) + told and row["delivered"] == len(came)):
            wrong.append(f"{row['user']} {row['type']}: {row['matched']} != {len(came)} + {told}")
    yield Promise(f"received + lost = matched, for all subscriptions {' '.join(wrong)}".rstrip(), not wrong)
    twice, late = 0, 0
    for came in played.came.values():
        last: dict[tuple[str, str], int] = {}
        for each in came:
            before = last.get((each.type, each.registration), 0)
            twice += each.number == before
            late += each.number < before
            last[each.type, each.registration] = each.number
    yield Promise(f"{twice} objects twice, {late} out of their registration's order", not twice and not late)


def _orders(rows: Sequence[ComparisonRow]) -> Iterator[Promise]:
    """Promises on one size, and while the link is too narrow: more important is sooner, and steadier."""
    for stage, kind, types in (
        (SUPPORT, "images", IMAGES),
        (IMPORTANCE, "images", IMAGES),
        (IMPORTANCE, "reports", ("patrol_report", "uav.tasking", "blue_force_tracking")),
    ):
        by_level: dict[int, list[Came]] = defaultdict(list)
        for row in rows:
            if row.stage == stage and row.type in types and not row.simulated["shaped"]:
                by_level[row.importance] += row.came
        late = [(level, [each.late for each in came]) for level, came in sorted(by_level.items()) if len(came) > 1]
        means = [statistics.fmean(each) for _, each in late]
        spread = [statistics.pstdev(each) for _, each in late]
        both = zip(late, means, spread, strict=True)
        told = ", ".join(f"{level}: {mean:.2f} s, +- {deviation:.2f}" for (level, _), mean, deviation in both)
        good = len(late) > 1 and all(each == sorted(each, reverse=True) for each in (means, spread))
        yield Promise(f"{stage}: {kind} come in the order of importance, and as steadily ({told})", good)


def _shapes(played: DemonstrationRun) -> Iterator[Promise]:
    begin = dict(STAGES)[PREFERENCES] * played.seconds + EFFECT_SECONDS
    least = min(size for _, size in played.published["uav.imagery"])
    sizes = {
        (user, type_): [
            each.size for each in played.came[user] if each.type == type_ and begin + EFFECT_SECONDS < each.at
        ]
        for user, type_ in (("Ops-1", "uav.imagery"), ("Ops-1", "cas.image"), ("Ops-2", "uav.imagery"))
    }
    scaled, *full = sizes.values()
    good = bool(scaled) and all(full) and max(scaled) < least / 2 and min(map(min, full)) >= least
    yield Promise("of two types of images one client gets one scaled, one in full; another one both in full", good)


def _of(rows: Sequence[ComparisonRow], stage: str, user: str, type_: str) -> ComparisonRow:
    return next(row for row in rows if (row.stage, row.user, row.type) == (stage, user, type_))


# -- the play ---------------------------------------------------------------------------------------------------------


def play_all(tell: Callable[[str], object], seconds: float) -> DemonstrationRun:
    """All processes, and the changes. Raises DemoError."""
    with tempfile.TemporaryDirectory() as folder, Federation(patience=2 * PATIENCE) as here:
        file = Path(folder) / "policy.toml"
        file.write_text(policies(FREE))
        here.lookup()
        here.start_delegate("alpha", "rome", "--policy", str(file))
        here.until(lambda: "alpha" in here.ready, "the delegate")
        subscribers = sorted({each.subscriber for each in DEMO_SUBSCRIBERS})
        publishers = sorted({flow.user for flow in DEMO_FLOWS})
        for name in subscribers:
            here.start(name, "targeting", "subscribe", name)
        here.until(lambda: all(name in here.ready for name in subscribers), "the subscribers")
        for name in publishers:
            here.start(name, "targeting", "publish", name, str(seconds))
        here.until(lambda: all(name in here.ready for name in publishers), "the publishers")
        watched = _DelegateWatch(here.ready["alpha"]["address"])
        begin = time.time() + 0.5
        for name in publishers:
            here.word(name, str(begin))
        effects = {}
        for number, (stage, part) in enumerate(STAGES):
            watched.until(begin + part * seconds, begin)
            if number:
                with written(file, mode=None) as out:  # at once, as an editor does
                    out.write(policies(stage).encode())
                effects[stage] = watched.changed(begin)
                tell(f"{stage}: in force after {effects[stage]:.2f} s")
        watched.until(begin + seconds, begin)
        published = here.asked(publishers, "published", "published", "what was published")
        watched.drained(seconds)
        came = here.asked(subscribers, "came", "came", "what was came")
        told = {name: here_told["told"] for name, here_told in came.items()}
        uids = {name: here.ready[name]["uids"] for name in subscribers}
        return DemonstrationRun(
            seconds,
            {name: [Came(type_, published - begin, *rest) for type_, published, *rest in said["came"]]
             for name, said in came.items()},
            told,
            watched.accounts(uids),
            watched.use,
            {type_: [(at - begin, size) for at, size in sent]
             for said in published.values() for type_, sent in said["published"].items()},
            effects,
        )  # fmt: skip


class _DelegateWatch:
    """The delegate, by its status."""

    def __init__(self, address: str) -> None:
        self._ref = ServiceRef("", "status", (address,), ())
        self.use: list[tuple[float, float]] = []
        self._last: tuple[float, int] | None = None
        self._version = self._look()["qos"]["policy"]["digest"]

    def _look(self) -> dict[str, Any]:
        return fetch_status(self._ref, Security(), timeout=PATIENCE)

    def _sample(self, begin: float) -> dict[str, Any]:
        status = self._look()
        now = status["time"]  # when it was so, not when we have heard of it
        sent = sum(link["sent"] for link in status["qos"]["links"])
        if self._last is None:
            self._last = now, sent
        elif now - self._last[0] >= WINDOW_SECONDS:
            self.use.append((now - begin, (sent - self._last[1]) / (now - self._last[0])))
            self._last = now, sent
        return status

    def until(self, when: float, begin: float) -> None:
        """Look each second until then."""
        while (left := when - time.time()) > 0:
            time.sleep(min(1.0, left))
            self._sample(begin)

    def changed(self, begin: float) -> float:
        """Seconds until other policies are in force. Raises DemoError."""
        began = time.time()
        while time.time() < began + PATIENCE:
            digest = self._sample(begin)["qos"]["policy"]["digest"]
            if digest != self._version:
                self._version = digest
                return time.time() - began
            time.sleep(0.05)
        raise DemoError("the delegate does not follow its policy file")

    def drained(self, seconds: float) -> None:
        """Wait until nothing is left to be delivered. Raises DemoError."""
        deadline = time.time() + PATIENCE + seconds
        while any(sum(session["queued"].values()) + session["in_flight"] for session in self._look()["sessions"]):
            if time.time() > deadline:
                raise DemoError("what waits does not go out")
            time.sleep(0.2)

    def accounts(self, uids: Mapping[str, Mapping[str, str]]) -> list[dict[str, Any]]:
        """Accounts of each subscription. `uids`: by user and type."""
        known = {row["uid"]: row for row in self._look()["subscriptions"]}
        return [
            {
                "user": user,
                "type": type_,
                **{key: known[uid][key] for key in ("matched", "delivered", "suppressed")},
                "lost": known[uid]["lost"],
                "importance": known[uid]["qos"]["importance"],
            }
            for user, by_type in uids.items()
            for type_, uid in by_type.items()
        ]


# -- the processes ----------------------------------------------------------------------------------------------------


class _ArrivalListener:
    """Notes what comes, and what is told as lost."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._types: dict[str, str] = {}
        self._came: list[tuple[str, float, float, int, str, int]] = []
        self._lost: Counter[str] = Counter()

    def arrived(self, _: str, obj: InfoObject) -> None:
        """See SubscriptionListener."""
        platform, now = obj.platform, time.time()
        with self._lock:
            self._came.append(
                (obj.type.name, platform.published, now - platform.published, len(obj.payload),
                 platform.registration, platform.sequence)
            )  # fmt: skip

    def lost(self, subscription: str, notice: LossNotice) -> None:
        """See SubscriptionListener."""
        with self._lock:
            self._lost[subscription] += notice.count

    def said(self, types: Mapping[str, str]) -> dict[str, Any]:
        """All of it. `types`: by subscription."""
        with self._lock:
            return {"came": self._came, "told": {types[uid]: count for uid, count in self._lost.items()}}


def subscribe(config: Config, user: str) -> None:
    """One subscriber, of the demonstration's types for him."""
    listener = _ArrivalListener()
    with SubscriberAdapter(_as(config, user), name=user) as subscriber:
        uids = {
            each.type: subscriber.register_subscriber(type_name=each.type, listener=listener)
            for each in DEMO_SUBSCRIBERS
            if each.subscriber == user
        }
        say(ready=user, uids=uids)
        for _ in sys.stdin:
            say(**listener.said({uid: type_ for type_, uid in uids.items()}))


def publish(config: Config, user: str, seconds: str) -> None:
    """One publisher: his flows, from the time that stdin says."""
    flows = [flow for flow in DEMO_FLOWS if flow.user == user]
    sizes = {flow.type: [each.size for each in Workload.of([flow], (), float(seconds)).publications] for flow in flows}
    pictures = _pictures() if any(flow.picture for flow in flows) else []
    sent: dict[str, list[tuple[float, int]]] = defaultdict(list)
    with PublisherAdapterLight(_as(config, user), name=user) as publisher:
        delegate = publisher.connect_to_delegate("alpha", "rome")
        uids = {
            flow.type: publisher.register_publisher(delegate, SCHEMA, flow.metadata_of(0), type_name=flow.type)
            for flow in flows
        }
        for flow in flows:
            many = sum(each.type == flow.type for each in DEMO_SUBSCRIBERS)
            if not publisher.wait_for_subscribers(uids[flow.type], many, PATIENCE):
                raise DemoError(f"{flow.type} has not found its subscribers")
        say(ready=user)
        begin = float(sys.stdin.readline() or time.time())
        due = sorted(
            (begin + (number + 0.5) / flow.rate, number, flow)
            for flow in flows
            for number in range(len(sizes[flow.type]))
        )
        for at, number, flow in due:
            time.sleep(max(0.0, at - time.time()))
            payload = _picture(pictures, sizes[flow.type][number]) if flow.picture else _text(sizes[flow.type][number])
            sent[flow.type].append((time.time(), len(payload)))
            publisher.publish(uids[flow.type], flow.metadata_of(number), payload)
        publisher.flush(PATIENCE)
        for _ in sys.stdin:
            say(published=sent)


def _as(config: Config, user: str) -> Config:
    return msgspec.structs.replace(config, client=ClientSection(user=user))


def _text(size: int) -> bytes:
    return (b"Nothing to report. " * (size // 19 + 1))[:size]


def _pictures() -> list[bytes]:
    """JPEGs between 42 and 70 KB, the smallest first. Raises DemoError without Pillow."""
    try:
        from PIL import Image
    except ImportError as exc:
        raise DemoError(f"pictures need Pillow: {exc}", hint="pip install 'jbi-pubsub[qos]'") from exc
    found = []
    picture = Image.merge("RGB", [Image.effect_noise((640, 480), 30) for _ in range(3)])
    for quality in range(20, 80, 2):
        out = io.BytesIO()
        picture.save(out, "JPEG", quality=quality)
        if 42_000 <= len(out.getvalue()) <= 70_000:
            found.append(out.getvalue())
    return found


def _picture(pictures: Sequence[bytes], size: int) -> bytes:
    return min(pictures, key=lambda each: abs(len(each) - size))


def play(config: Config, part: str, user: str, seconds: str = "0") -> None:
    """A process of the play."""
    if part == "subscribe":
        subscribe(config, user)
    else:
        publish(config, user, seconds)


if __name__ == "__main__":
    sys.exit(application(play))
