"""Directions that bring only what is wanted: one subscription at the source for all of the other side's."""

from __future__ import annotations

import random
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec
import pytest
from lxml import etree

from jbi_pubsub.bridge import wanted as module
from jbi_pubsub.bridge.file import read
from jbi_pubsub.bridge.listed import BridgedRegistration
from jbi_pubsub.bridge.listening import Profile
from jbi_pubsub.bridge.mirror import Direction, DirectionTerms, Mirror
from jbi_pubsub.bridge.platform import JbiPlatform
from jbi_pubsub.bridge.transformation import Rule, Transformation
from jbi_pubsub.bridge.wanted import LINGER_SECONDS, WantedIntake
from jbi_pubsub.core.config import ArchiveSection, QueueSection
from jbi_pubsub.core.errors import AccessDeniedError, JbiError, OversizeError, WireError
from jbi_pubsub.core.info_object import TypeName
from jbi_pubsub.core.ticker import Job
from jbi_pubsub.protocol.wanted import EVERYTHING, InterestMembers, Wanted, WantedPredicate, WantedType
from tests.bridge.conftest import ALPHA, BRAVO, Place, taken

NAME = "mil.af.rl.jbi.Intel_Imagery"


class Link:
    """A bridge with one direction, from one place to another."""

    def __init__(
        self, source: tuple[str, Place], target: tuple[str, Place], rules: tuple[Rule, ...] = (), durable: str = ""
    ) -> None:
        bridge = f"{source[0]}-{target[0]}"
        self.source = source[1]
        sides = [
            JbiPlatform(name, place.federation.config, place.delegate, bridge, durable=kept)
            for (name, place), kept in ((source, durable), (target, ""))
        ]
        terms = DirectionTerms(poll=0.2, wanted=True)
        self.way = Direction(sides[0], sides[1], Transformation(("*",), (), rules), bridge=bridge, terms=terms)
        self.mirror = Mirror((sides[0], sides[1]), (self.way,))
        self.mirror.start()

    @property
    def status(self) -> dict[str, Any]:
        return self.way.status()

    @property
    def wanted(self) -> dict[str, Any]:
        """By type what is wanted, as the direction says."""
        return {name: each for name, each in self.status["wanted"].items() if each["subscribed"] is not None}

    def behind(self) -> dict[str, int]:
        """How many subscriptions stand behind each predicate."""
        return {e["predicate"]: e["behind"] for each in self.wanted.values() for e in each["members"] if e["behind"]}

    def there(self) -> list[str]:
        """Predicates that the source's delegate has for the link."""
        return [each["predicate"] for each in self.source.pad.status()["subscriptions"] if each.get("unlike")]


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LINGER_SECONDS", 0.3)


@pytest.fixture
def two(place: Callable[..., Place]) -> tuple[Place, Place]:
    return place(ALPHA), place(BRAVO)


@pytest.fixture
def link(two: tuple[Place, Place]) -> Iterator[Callable[..., Link]]:
    with ExitStack() as stack:

        def made(
            *rules: Rule, ends: tuple[tuple[str, Place], tuple[str, Place]] | None = None, durable: str = ""
        ) -> Link:
            one = Link(*(ends or (("alpha", two[0]), ("bravo", two[1]))), rules, durable)
            stack.callback(one.mirror.close)
            return one

        yield made


def publish(adapter: Any, uid: Any, figures: Any, *lats: int) -> list[str]:
    ids = [adapter.publish(uid, figures.metadata(lat=str(lat)), b"x") for lat in lats]
    adapter.flush()
    return ids


def template(figures: Any, publisher: str) -> bytes:
    """Figure 3, of that publisher."""
    return re.sub(rb"<publisher>.*?</publisher>", b"<publisher>%s</publisher>" % publisher.encode(), figures.figure_3)


@pytest.mark.row("D-10", "D-11", "D-12", "D-13")
def test_fifty_equal_subscribers_are_one_there(
    two: tuple[Place, Place], link: Any, figures: Any, eventually: Any
) -> None:
    # Given a publisher over there, and nobody who wants anything of it
    alpha, bravo = two
    publisher = alpha.publisher()
    made = link()
    eventually(lambda: made.status["registrations"] == 1, what=lambda: made.status)
    # When it publishes; Expect no subscription there, and nothing that crosses
    publish(*publisher, figures, *range(10))
    assert (made.there(), made.status["relayed"], made.status["lost"]) == ([], 0, 0)
    # When fifty come who want the same
    adapters = [bravo.subscriber(type_name=NAME, predicate="//lat > 33") for _ in range(5)]
    uids = [uid for _, uid in adapters]
    uids = [
        (adapter, adapter.register_subscriber(type_name=NAME, predicate="//lat > 33"))
        for adapter, _ in adapters
        for _ in range(9)
    ] + list(adapters)
    eventually(lambda: made.behind() == {"//lat > 33": 50}, what=lambda: made.status)
    # Expect one subscription there, and one copy of each object that one of them wants
    assert made.there() == ["//lat > 33"]
    ids = publish(*publisher, figures, *range(30, 40))
    for adapter, uid in uids:
        assert [adapter.receive(uid, 20.0).object_id for _ in range(6)] == ids[4:]
    assert all(adapter.queue_size(uid) == 0 and adapter.losses(uid) == {} for adapter, uid in uids)
    assert made.status["relayed"] == 6
    assert made.wanted[NAME]["saved"] == 6 * 49
    (told,) = made.mirror.told().directions
    assert (told.members, told.saved) == (50, 6 * 49)
    # When all leave; Expect no subscription there any more
    for adapter, uid in uids:
        adapter.cancel_subscription(uid)
    eventually(lambda: made.there() == [], what=made.there)


@pytest.mark.row("D-16", "D-17", "D-18")
def test_what_is_covered_costs_nothing_there_and_the_last_one_to_leave_narrows(
    two: tuple[Place, Place], link: Any, eventually: Any
) -> None:
    # Given somebody who wants some of a type, and somebody who wants all of it
    alpha, bravo = two
    alpha.publisher()
    made = link()
    bravo.subscriber(type_name=NAME, predicate="//lat > 33")
    adapter, everything = bravo.subscriber(type_name=NAME)
    eventually(lambda: made.there() == [""] and made.behind().get("") == 2, what=lambda: made.status)
    amended: list[str] = []
    real = alpha.pad.delegate.subscribers._amendments.amend

    def amend(*args: Any) -> Any:
        amended.append(args[2].request.predicate)
        return real(*args)

    alpha.pad.delegate.subscribers._amendments.amend = amend  # type: ignore[method-assign]
    # When others come, who want what comes already; Expect that nothing is asked of the other side
    others = [adapter.register_subscriber(type_name=NAME, predicate=f"//lat > {number}") for number in range(5)]
    eventually(lambda: made.behind().get("") == 7, what=lambda: made.status)
    for uid in others[1:]:
        adapter.cancel_subscription(uid)
    eventually(lambda: made.behind().get("") == 3, what=lambda: made.status)
    assert (amended, made.there()) == ([], [""])
    # When the one that wants all leaves; Expect what the others want, by one amendment
    adapter.cancel_subscription(everything)
    eventually(lambda: made.there() == ["//lat > 0"], what=made.there)  # which covers what the other one wants
    assert amended == ["//lat > 0"]


@pytest.mark.row("X-06")
def test_who_has_waited_gets_first_objects_whether_his_type_is_wanted_by_others_or_not(
    two: tuple[Place, Place], link: Any, figures: Any, eventually: Any
) -> None:
    # Given two subscriptions to what nobody publishes yet, by its invariants, one with a predicate
    alpha, bravo = two
    made = link()
    eventually(lambda: made.status["listening"], what=lambda: made.status)
    first, second = (
        bravo.subscriber(template=template(figures, name), schema=figures.schema, predicate=f"//lat > {least}")
        for name, least in (("a", 3), ("b", 6))
    )
    adapter = alpha.federation.light()
    at = adapter.connect_to_delegate(*alpha.delegate)
    for name, subscriber, least in (("a", first, 4), ("b", second, 7)):
        # When somebody comes who publishes that, and does so at once
        uid = adapter.register_publisher(at, figures.schema, figures.metadata(publisher=name))
        ids = [adapter.publish(uid, figures.metadata(publisher=name, lat=str(lat)), b"") for lat in range(12)]
        # Expect all of it that is wanted, in order
        got = [obj.object_id for obj in taken(*subscriber, 12 - least)]
        assert got == ids[least:]
    eventually(lambda: len(made.there()) == 1 and " or " in made.there()[0], what=made.there)
    # And that what their templates say is in what is asked of the other side
    assert all(f"publisher) = '{name}'" in made.there()[0] for name in "ab")
    relayed = made.status["relayed"]
    third = adapter.register_publisher(at, figures.schema, figures.metadata(publisher="c"))
    adapter.publish(third, figures.metadata(publisher="c", lat="50"), b"")
    adapter.flush()
    eventually(lambda: made.status["registrations"] == 3, what=lambda: made.status)
    assert made.status["relayed"] == relayed
    for adapter_, uid_ in (first, second):
        assert adapter_.losses(uid_) == {}


@pytest.mark.row("D-14", "D-30")
def test_of_disjoint_profiles_as_many_copies_cross_as_there_are_receivers(
    two: tuple[Place, Place], link: Any, figures: Any, eventually: Any
) -> None:
    # Given three who want nothing in common
    alpha, bravo = two
    publisher = alpha.publisher()
    made = link()
    parts = [f"//lat >= {10 * part} and //lat < {10 * part + 10}" for part in range(3)]
    there = [bravo.subscriber(type_name=NAME, predicate=part) for part in parts]
    eventually(lambda: len(made.behind()) == 3 and len(made.there()) == 1, what=lambda: made.status)
    eventually(lambda: made.there()[0].count(" or ") == 2, what=made.there)
    # When objects for each are published; Expect each once, and nothing else
    ids = publish(*publisher, figures, *range(40))
    for part, subscriber in enumerate(there):
        assert [obj.object_id for obj in taken(*subscriber, 10)] == ids[10 * part : 10 * part + 10]
    assert (made.status["relayed"], made.wanted[NAME]["crossed"], made.wanted[NAME]["saved"]) == (30, 30, 0)
    # When somebody wants what two of them do, expect copies that are saved
    bravo.subscriber(type_name=NAME, predicate="//lat < 20")
    eventually(lambda: len(made.behind()) == 4, what=lambda: made.status)
    publish(*publisher, figures, *[5] * 20)
    eventually(lambda: made.wanted[NAME]["saved"] == 20, what=lambda: made.wanted)


def test_the_file_of_a_bridge_says_that_what_is_wanted_comes_alone(tmp_path: Path) -> None:
    # Given such a file; Expect the direction to say so
    file = tmp_path / "bridge.toml"
    file.write_text('[side.a]\n[side.b]\n[[direction]]\nfrom = "a"\nto = "b"\nwanted = true\n')
    (way,) = read(file).ways
    assert way.wanted


class Receiver:
    """A subscription with a listener, and which objects it wants, by their latitude."""

    def __init__(self, place: Place, least: int, most: int) -> None:
        self.least, self.most = least, most
        self.lats: list[tuple[str, int, int]] = []
        self.notices: list[Any] = []
        predicate = f"//lat >= {least} and //lat < {most}"
        self.adapter, self.uid = place.subscriber(type_name=NAME, predicate=predicate, listener=self)

    def arrived(self, _uid: Any, obj: Any) -> None:
        lat = int(re.search(rb"<lat>(\d+)</lat>", obj.metadata)[1])  # type: ignore[index]
        self.lats.append((obj.platform.registration, obj.platform.sequence, lat))

    def lost(self, _uid: Any, notice: Any) -> None:
        self.notices.append(notice)

    def wants(self, lat: int) -> bool:
        return self.least <= lat < self.most


class Flow:
    """Publishers of random latitudes, on a thread, and what they have published."""

    def __init__(self, place: Place, figures: Any, publishers: int, rate: int = 20) -> None:
        self.said: list[tuple[str, int, int]] = []
        self._figures, self._rate = figures, rate
        self._at = [place.publisher() for _ in range(publishers)]
        self._stopping = threading.Event()
        self._random = random.Random(8)
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        numbers = [0] * len(self._at)
        while not self._stopping.is_set():
            for at, (adapter, uid) in enumerate(self._at):
                for _ in range(self._rate):
                    lat = self._random.randrange(100)
                    numbers[at] += 1
                    self.said.append((str(uid), numbers[at], lat))
                    adapter.publish(uid, self._figures.metadata(lat=str(lat)), b"")
                adapter.flush()

    def __enter__(self) -> Flow:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join(30.0)


def check(flow: Flow, receiver: Receiver, *, since: int = 0) -> None:
    """All that it wants of what was published after that many objects has come, up to the last that has come of each
    publisher, once and in order."""
    for uid in {uid for uid, _, _ in flow.said}:
        came = [number for registration, number, _ in receiver.lats if registration == uid]
        assert came == sorted(set(came))
        first = min((number for one, number, _ in flow.said[since:] if one == uid), default=0)
        last = max(came, default=0)
        wanted = [number for one, number, lat in flow.said if one == uid and receiver.wants(lat) and number <= last]
        begin = min([first, *came]) if since == 0 else first
        assert [each for each in came if each >= begin] == [each for each in wanted if each >= begin]
    assert receiver.adapter.losses(receiver.uid) == {}


def settled(made: Link, receivers: list[Receiver]) -> bool:
    """Whether the source's subscription is what the receivers want together."""
    told = made.behind().keys() >= {f"//lat >= {each.least} and //lat < {each.most}" for each in receivers}
    (there,) = made.there() or [None]
    ranges = [(int(least), int(most)) for least, most in re.findall(r">= (\d+) and //lat < (\d+)", there or "")]
    return told and all(any(low <= each.least and each.most <= high for low, high in ranges) for each in receivers)


@pytest.mark.parametrize("publishers", [1, 3])
def test_while_members_come_and_go_each_gets_all_that_it_wants_once_and_in_order(
    two: tuple[Place, Place], link: Any, figures: Any, eventually: Any, publishers: int
) -> None:
    # Given objects that flow, and somebody who wants some of them all the time
    alpha, bravo = two
    flow = Flow(alpha, figures, publishers)
    made = link()
    eventually(lambda: made.status["registrations"] == publishers, what=lambda: made.status)
    receivers = [Receiver(bravo, 10, 60)]
    eventually(lambda: settled(made, receivers), what=lambda: made.status)
    chance = random.Random(publishers)
    left: list[Receiver] = []
    since = {id(receivers[0]): 0}
    with flow:
        # When others come and go
        for _ in range(5):
            least = chance.randrange(90)
            come = Receiver(bravo, least, least + chance.randrange(5, 40))
            receivers.append(come)
            eventually(lambda: settled(made, receivers), what=lambda: made.status)  # at once
            since[id(come)] = len(flow.said)
            if len(receivers) > 3:
                gone = receivers.pop(chance.randrange(1, len(receivers)))
                before = len(flow.said)
                eventually(lambda: len(flow.said) > before + 60)  # noqa: B023  # at once
                gone.adapter.cancel_subscription(gone.uid)
                left.append(gone)
        before = len(flow.said)
        eventually(lambda: len(flow.said) > before + 150)
    # Expect of each what it wants, and no loss told
    last = {uid: max(n for one, n, _ in flow.said if one == uid) for uid, _, _ in flow.said}
    wanted = {uid: max(n for one, n, lat in flow.said if one == uid and receivers[0].wants(lat)) for uid in last}
    eventually(
        lambda: {uid: max(n for one, n, _ in receivers[0].lats if one == uid) for uid in wanted} == wanted,
        what=lambda: (made.status, wanted),
    )
    for each in receivers:
        check(flow, each, since=since[id(each)])
    for each in left:
        assert all(each.wants(lat) for _, _, lat in each.lats)
        assert each.notices == []
    assert made.status["lost"] == 0


@pytest.mark.row("X-08")
def test_in_a_chain_the_middle_wants_what_stands_behind_it(
    place: Callable[..., Place], link: Any, figures: Any, eventually: Any
) -> None:
    # Given three platforms in a row, and somebody at the end
    places = [(name, place((name, "x"))) for name in ("one", "two", "three")]
    first, second = (link(ends=ends) for ends in (tuple(places[:2]), tuple(places[1:])))
    publisher = places[0][1].publisher()
    end, middle = places[2][1], places[1][1]
    eventually(lambda: second.status["registrations"] == 1, what=lambda: (first.status, second.status))
    assert (first.there(), second.there()) == ([], [])
    receiver = end.subscriber(type_name=NAME, predicate="//lat > 33")
    eventually(lambda: first.there() == second.there() == ["//lat > 33"], what=lambda: (first.status, second.status))
    # When objects are published; Expect what it wants over both links, and no loss
    ids = publish(*publisher, figures, *range(30, 40))
    assert [obj.object_id for obj in taken(*receiver, 6)] == ids[4:]
    # When somebody in the middle wants more; Expect that to come there, and no further
    near = middle.subscriber(type_name=NAME, predicate="//lat > 30")
    both = ["//lat > 30"]
    eventually(lambda: first.there() == both, what=lambda: first.status)
    ids = publish(*publisher, figures, *range(30, 40))
    assert [obj.object_id for obj in taken(*near, 9)] == ids[1:]
    assert [obj.object_id for obj in taken(*receiver, 6)] == ids[4:]
    assert (first.status["relayed"], second.status["relayed"]) == (15, 12)
    for adapter, uid in (receiver, near):
        assert adapter.losses(uid) == {}


def test_a_delegate_that_restarts_gets_on_with_what_is_wanted(
    two: tuple[Place, Place], link: Any, figures: Any, eventually: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given somebody who gets what he wants
    monkeypatch.setattr(module, "LINGER_SECONDS", 10.0)
    alpha, bravo = two
    publisher = alpha.publisher()
    made = link()
    receiver = bravo.subscriber(type_name=NAME, predicate="//lat > 33")
    eventually(lambda: made.there() == ["//lat > 33"], what=lambda: made.status)
    ids = publish(*publisher, figures, *range(30, 40))
    assert len(taken(*receiver, 6)) == 6
    for place, name in ((bravo, "target"), (alpha, "source")):
        # When a delegate is killed, objects are published, and it is back
        place.pad.stop(0.0)
        more = [publisher[0].publish(publisher[1], figures.metadata(lat=str(lat)), b"") for lat in range(30, 40)]
        place.pad = place.federation.pad(*place.delegate)
        # Expect what he wants of these, once, and the subscription as it was
        got = taken(*receiver, 6)
        assert [obj.object_id for obj in got] == more[4:], (name, made.status)
        eventually(lambda: made.there() == ["//lat > 33"], what=lambda: made.status)
    assert made.status["lost"] == 0
    assert len(set(ids)) == 10


def test_where_an_amendment_is_refused_what_stood_stands_and_it_is_asked_again(
    two: tuple[Place, Place], link: Any, figures: Any, eventually: Any
) -> None:
    # Given somebody who gets what he wants, and a source that takes no amendment
    alpha, bravo = two
    publisher = alpha.publisher()
    made = link()
    first = bravo.subscriber(type_name=NAME, predicate="//lat > 33")
    eventually(lambda: made.there() == ["//lat > 33"], what=lambda: made.status)
    amendments = alpha.pad.delegate.subscribers._amendments
    real, is_open = amendments.amend, threading.Event()

    def amend(*args: Any) -> Any:
        if not is_open.is_set() and args[1].request.predicate != args[2].request.predicate:
            raise AccessDeniedError("rules have changed")
        return real(*args)

    amendments.amend = amend  # type: ignore[method-assign]
    # When somebody else comes; Expect the trouble told, and that the first one gets his
    second = bravo.subscriber(type_name=NAME, predicate="//lat < 32")
    eventually(lambda: made.status["trouble"], what=lambda: made.status)
    ids = publish(*publisher, figures, *range(30, 40))
    assert [obj.object_id for obj in taken(*first, 6)] == ids[4:]
    # When it is allowed again; Expect both to get theirs
    is_open.set()
    eventually(lambda: " or " in made.there()[0] and not made.status["trouble"], what=lambda: made.status)
    ids = publish(*publisher, figures, *range(30, 40))
    assert [obj.object_id for obj in taken(*first, 6)] == ids[4:]
    assert [obj.object_id for obj in taken(*second, 2)] == ids[:2]


class Source:
    """A side that notes what it is asked for."""

    name = "source"

    def __init__(self) -> None:
        self.asked: list[tuple[str, Profile | None]] = []
        self.fails: list[JbiError] = []

    def want(self, name: str, profile: Profile, _arrived: Any, _since: float | None = None) -> None:
        if self.fails:
            raise self.fails.pop(0)
        self.asked.append((name, profile))

    def unwant(self, name: str) -> None:
        if name:
            self.asked.append((name, None))


class Target:
    """A side that says what it wants."""

    name = "target"

    def wanted(self, changed: Any, *, members: bool) -> None:
        assert members
        self.changed = changed


class Ear:
    """A direction that hears nothing, and its troubles."""

    def __init__(self) -> None:
        self.troubles: list[str] = []

    def tell(self, what: str, exc: JbiError | None) -> None:
        if exc is not None:
            self.troubles.append(what)

    def arrived(self, obj: Any) -> None: ...

    def lost(self, *_: Any) -> None: ...

    def waiting(self, uid: str) -> int:  # noqa: ARG002  # the protocol's
        return 0


class Desk:
    """What is wanted, by hand: no thread, and a clock that is set."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(Job, "start", lambda _job: None)
        self.now = 100.0
        self.source, self.target, self.ear = Source(), Target(), Ear()
        self.intake = WantedIntake(
            self.source, self.target, self.ear, self.ear, Transformation(("*",), (), ()),  # type: ignore[arg-type]
            DirectionTerms(wanted=True), clock=lambda: self.now,
        )  # fmt: skip
        self.intake.look({"r": BridgedRegistration("r", TypeName("t"))}, {})

    def tell(self, *texts: str, **members: Any) -> list[tuple[str, Profile | None]]:
        """Predicates on the type are wanted now; what the source is asked for that."""
        predicates = tuple(WantedPredicate(text) for text in texts if text)
        told = (WantedType(TypeName("t"), predicates, members=InterestMembers(**members)),) if texts else ()
        self.target.changed(Wanted(1, told))
        return self.settle()

    def settle(self) -> list[tuple[str, Profile | None]]:
        self.intake.settle()
        asked, self.source.asked = self.source.asked, []
        return asked


@pytest.fixture
def desk(monkeypatch: pytest.MonkeyPatch) -> Desk:
    return Desk(monkeypatch)


def test_who_comes_and_goes_a_thousand_times_costs_what_is_new_alone(desk: Desk) -> None:
    # Given somebody who stays
    assert desk.tell("/a") == [("t", Profile(("/a", ())))]
    # When another one comes and goes a thousand times within a second; Expect one amendment
    asked = []
    for _ in range(1_000):
        desk.now += 0.0005
        asked += desk.tell("/a", "/b")
        desk.now += 0.0005
        asked += desk.tell("/a")
    assert asked == [("t", Profile(("(/a) or (/b)", ())))]
    # When he is gone for a while, expect another one; when all are, none there any more
    desk.now += 1.0
    assert desk.settle() == [("t", Profile(("/a", ())))]
    assert desk.tell() == []
    desk.now += 1.0
    assert desk.settle() == [("t", None)]
    assert desk.intake.status()["wanted"] == {}


@pytest.mark.row("D-17", "D-18")
def test_a_member_that_another_one_covers_costs_nothing_and_is_heard_of_when_that_one_leaves(desk: Desk) -> None:
    assert desk.tell("/a > 3", "/b") == [("t", Profile(("(/a > 3) or (/b)", ())))]
    # When narrower ones come, expect nothing
    assert desk.tell("/a > 3", "/a > 4", "/b", "/b = 'x'", "/a > 5 and /c") == []
    # When a wider one comes, expect it in the place of the others
    assert desk.tell("/a > 3", "/a > 4", "/a > 2", "/b") == [("t", Profile(("(/a > 2) or (/b)", ())))]
    # When the wide ones leave, expect what is left, once that is over
    assert desk.tell("/a > 4", "/b") == []
    desk.now += LINGER_SECONDS
    assert desk.settle() == [("t", Profile(("(/a > 4) or (/b)", ())))]


@pytest.mark.parametrize("texts", [["/a", ""], ["/a", "/b["], [f"/a = '{'x' * 9_000}{n}'" for n in range(900)]])
def test_what_can_not_be_said_at_once_is_wanted_as_a_whole(desk: Desk, texts: list[str]) -> None:
    if "" in texts:
        assert desk.tell("") == [("t", Profile())]
    else:
        assert desk.tell(*texts) == [("t", Profile())]


def test_the_highest_importance_counts_and_what_is_too_dear_is_asked_as_a_whole(desk: Desk) -> None:
    # Given a source for which a predicate is too much
    desk.source.fails = [OversizeError("too dear")]
    # When somebody important wants it; Expect all asked for, by his importance
    assert desk.tell("/a", importance=4) == [("t", Profile(importance=4))]
    # When the source is away, expect it told and tried again
    desk.source.fails = [WireError("away")]
    assert desk.tell("/a", "/b", importance=4) == []
    assert desk.ear.troubles == ["subscription t"]
    assert desk.settle() == [("t", Profile(("(/a) or (/b)", ()), 4))]


def test_of_a_side_that_does_not_say_what_it_wants_all_is_wanted(desk: Desk) -> None:
    desk.target.changed(EVERYTHING)
    assert desk.settle() == [("t", Profile())]


@pytest.mark.row("D-15")
@pytest.mark.parametrize(("sets", "events"), [(40, 500), pytest.param(1_000, 10_000, marks=pytest.mark.slow)])
def test_the_predicate_of_all_holds_wherever_that_of_a_member_does(
    monkeypatch: pytest.MonkeyPatch, sets: int, events: int
) -> None:
    # Given random documents, in which elements are absent, repeated and no numbers, and random profiles
    chance = random.Random(sets)
    values = ("1", "5", "5.0", " 7", "x", "", "NaN", "-3")

    def document() -> Any:
        inner = "".join(
            f"<{name} k='{chance.choice(values)}'>{chance.choice(values)}</{name}>"
            for name in "abc"
            for _ in range(chance.choice((0, 1, 1, 1, 2)))
        )
        return etree.fromstring(f"<m>{inner}</m>")

    def condition() -> str:
        path = f"/m/{chance.choice('abc')}{chance.choice(('', '', '/@k'))}"
        one = chance.choice(
            (path, f"{path} {chance.choice(('=', '!=', '<', '>='))} {chance.choice((1, 5, 7, -3))}",
             f"{path} = '{chance.choice(values)}'", f"count({path}) > 1", f"contains({path}, '5')")
        )  # fmt: skip
        return f"not({one})" if chance.random() < 0.2 else one

    documents = [document() for _ in range(events)]
    for _ in range(sets):
        desk = Desk(monkeypatch)
        members = [
            f" {chance.choice(('and', 'or'))} ".join(condition() for _ in range(chance.randrange(1, 4)))
            for _ in range(chance.randrange(1, 9))
        ]
        # When they are wanted together
        ((_, profile),) = desk.tell(*dict.fromkeys(members))
        assert profile is not None
        # Expect what is asked for to hold for the same documents as one of them, as libxml2 decides
        whole = etree.XPath(f"boolean({profile.where[0]})")
        single = [etree.XPath(f"boolean({each})") for each in members]
        assert [whole(each) for each in documents] == [any(one(each) for one in single) for each in documents]


def test_what_is_lost_on_the_way_is_told_and_what_nobody_wants_is_not(
    place: Callable[..., Place], link: Any, figures: Any, eventually: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given a bridge for which few objects may wait, and another side that has no room
    alpha, bravo = place(ALPHA, queue=QueueSection(bound=5, policy="drop_oldest")), place(BRAVO)
    publisher = alpha.publisher()
    made = link(ends=(("alpha", alpha), ("bravo", bravo)))
    adapter, uid = bravo.subscriber(type_name=NAME, predicate="//lat >= 50")
    eventually(lambda: made.there() == ["//lat >= 50"], what=lambda: made.status)
    publish(*publisher, figures, 10, 50, 20, 50)
    assert len(taken(adapter, uid, 2)) == 2
    has_room, real = threading.Event(), JbiPlatform.publish

    def wait(*args: Any) -> None:
        has_room.wait(60.0)
        real(*args)

    monkeypatch.setattr(JbiPlatform, "publish", wait)
    # When more is published than may wait, of which every other object is wanted
    publish(*publisher, figures, *(10, 50) * 40)
    eventually(lambda: alpha.pad.status()["subscriptions"][0].lost.get("queue_overflow", 0))
    has_room.set()
    publish(*publisher, figures, 10, 50)
    # Expect the subscriber told of those that were, and of no others
    came: list[Any] = []
    eventually(
        lambda: came.extend(adapter.drain(uid)) or len(came) + sum(adapter.losses(uid).values()) == 41,
        what=lambda: (len(came), adapter.losses(uid), made.status),
    )
    assert adapter.losses(uid).keys() == {"sequence_gap"}
    assert made.status["lost"] == adapter.losses(uid)["sequence_gap"]


def test_a_durable_side_is_amended_in_its_place_and_goes_on_where_it_was(
    place: Callable[..., Place], link: Any, figures: Any, eventually: Any, tmp_path: Path
) -> None:
    # Given a source with an archive, and a durable side there, of which somebody wants something
    alpha, bravo = place(ALPHA), place(BRAVO)
    alpha.pad.stop(0.0)
    archive = ArchiveSection(folder=str(tmp_path / "archive"), workers=0)
    alpha.pad = alpha.federation.pad(*ALPHA, msgspec.structs.replace(alpha.federation.config, archive=archive))
    publisher = alpha.publisher(persist=True)
    made = link(ends=(("alpha", alpha), ("bravo", bravo)), durable="bridge-x")
    first = bravo.subscriber(type_name=NAME, predicate="//lat < 40")
    eventually(lambda: made.there() == ["//lat < 40"], what=lambda: made.status)
    # When others come, one after the other, while objects flow
    ids, others = [], []
    for number in reversed(range(5)):
        ids += publish(*publisher, figures, *range(30, 50))
        others.append(bravo.subscriber(type_name=NAME, predicate=f"//lat > 4{number}"))
        predicate = f"//lat > 4{number}"
        eventually(lambda: predicate in made.there()[0], what=lambda: made.status)  # noqa: B023  # at once
    ids += publish(*publisher, figures, *range(30, 50))
    # Expect all that the first one wants, once and in order
    assert [obj.object_id for obj in taken(*first, 60)] == [each for at, each in enumerate(ids) if at % 20 < 10]
    assert [obj.object_id for obj in taken(*others[-1], 9)][-9:] == ids[-9:]
    # When the bridge ends, more is published, and it runs again; Expect that, too
    made.mirror.close()
    ids = publish(*publisher, figures, *range(30, 50))
    again = link(ends=(("alpha", alpha), ("bravo", bravo)), durable="bridge-x")
    assert [obj.object_id for obj in taken(*first, 10)] == ids[:10]
    assert (again.status["lost"], first[0].losses(first[1])) == (0, {})
