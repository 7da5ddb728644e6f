"""A policy file at work: what a delegate makes of an object's type, size and metadata, of resources, of a strategy."""

from __future__ import annotations

import itertools
import logging
import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from lxml import etree

from jbi_pubsub import RegistrationUid, Wish
from jbi_pubsub.core.config import PolicySection, QosSection
from jbi_pubsub.core.info_object import Cause
from jbi_pubsub.pad.ingress.admission import Admission
from jbi_pubsub.pad.ingress.lane import RegistrationLane
from jbi_pubsub.pad.ingress.pipeline import Pipeline
from jbi_pubsub.policy import condition, manager, policyfile
from jbi_pubsub.policy.policyset import PolicySet
from tests.qos.conftest import Judging


@pytest.fixture
def rules(federation: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """rules(text): the policy file of all delegates of the federation from now on."""
    monkeypatch.setattr(manager, "LOOK_SECONDS", 0.05)
    path = tmp_path / "policy.toml"

    def write(text: str, **qos: Any) -> Path:
        path.write_text(text)
        federation.config = msgspec.structs.replace(
            federation.config, policy=PolicySection(file=str(path)), qos=QosSection(mode="on", **qos)
        )
        return path

    return write


def registered(publisher: Any, figures: Any, *types: str, at: Any = None) -> list[RegistrationUid]:
    """Registrations of types at the delegate (alpha, rome), over one connection."""
    at = at or publisher.connect_to_delegate("alpha", "rome")
    return [publisher.register_publisher(at, figures.schema, figures.figure_1, type_name=name) for name in types]


def came(subscriber: Any, subscription: str, count: int) -> list[Any]:
    """The next objects."""
    return [subscriber.receive(subscription, 60.0) for _ in range(count)]


# -- whose turn it is to be judged ------------------------------------------------------------------------------------

BY_OBJECT = """
[space]
strategy = "strict"

[[policy]]
name = "reports"
type = "report"
importance = 4

[[policy]]
name = "large"
when = "size > '50 KB'"
importance = 1

[[policy]]
name = "near Kabul"
when = "metadata(\\"//Area='Kabul'\\")"
precedence = 1
importance = 5
"""


@pytest.mark.row("Q-01", "Q-08", "Q-24")
def test_type_and_metadata_and_size_decide_who_is_judged_next(
    federation: Any, rules: Callable[..., Path], figures: Any, judging: Judging, eventually: Callable[..., Any]
) -> None:
    # Given a delegate that is busy, and the least important object first
    rules(BY_OBJECT)
    delegate = federation.pad()
    publisher, other = federation.light(), federation.light()
    [blocker] = registered(other, figures, "blocking")
    types = ("large", "plain", "report", "near")
    uids = registered(publisher, figures, *types)
    elsewhere = figures.metadata(Area="Rome")
    with judging.held():
        other.publish(blocker, figures.figure_1)
        assert judging.waiting.wait(60.0)
        # When
        for uid, metadata, size in zip(
            uids, (elsewhere, elsewhere, elsewhere, figures.figure_1), (60_000, 1, 1, 1), strict=True
        ):
            publisher.publish(uid, metadata, bytes(size))
        eventually(lambda: delegate.status()["qos"]["tasks"]["waiting"] == 4)
    publisher.flush(60.0)
    # Expect
    assert [name for name, _ in judging.judged] == ["blocking", "near", "report", "plain", "large"]
    told = delegate.status()
    assert {row["importance"]: row["served"] for row in told["qos"]["tasks"]["bins"]} == {1: 1, 3: 1, 4: 1, 5: 2}
    assert told["published"] == told["qos"]["tasks"]["kinds"]["judge"]["served"] == 5


@pytest.mark.row("Q-45")
def test_with_one_bin_objects_are_judged_as_they_come(
    federation: Any, rules: Callable[..., Path], figures: Any, judging: Judging, eventually: Callable[..., Any]
) -> None:
    # Given
    rules(BY_OBJECT, bins=1)
    delegate = federation.pad()
    publisher, other = federation.light(), federation.light()
    [blocker] = registered(other, figures, "blocking")
    types = ("plain", "report", "other")
    uids = registered(publisher, figures, *types)
    with judging.held():
        other.publish(blocker, figures.figure_1)
        assert judging.waiting.wait(60.0)
        # When
        for count, uid in enumerate(uids, 1):
            publisher.publish(uid, figures.metadata(Area="Rome"))
            eventually(lambda count=count: delegate.status()["qos"]["tasks"]["waiting"] == count)
    publisher.flush(60.0)
    # Expect
    assert [name for name, _ in judging.judged] == ["blocking", *types]


@pytest.fixture
def lanes(monkeypatch: pytest.MonkeyPatch) -> list[RegistrationLane]:
    """Of all registrations at delegates of the test, as their first objects come."""
    known: list[RegistrationLane] = []
    opened = Admission._open

    def noted(self: Admission, *arguments: Any) -> RegistrationLane:
        known.append(opened(self, *arguments))
        return known[-1]

    monkeypatch.setattr(Admission, "_open", noted)
    return known


def test_of_equals_the_one_with_less_to_read_is_judged_first(
    federation: Any,
    rules: Callable[..., Path],
    figures: Any,
    judging: Judging,
    lanes: list[RegistrationLane],
    eventually: Callable[..., Any],
) -> None:
    # Given two registrations whose objects have cost a millisecond for what figure 1 has to read
    rules("")
    delegate = federation.pad()
    publisher, other = federation.light(), federation.light()
    [blocker] = registered(other, figures, "blocking")
    uids = registered(publisher, figures, "long", "short")
    for uid in uids:
        publisher.publish(uid, figures.figure_1)
    publisher.flush(60.0)
    for lane in lanes:
        lane.task.cost.__init__()
        lane.task.cost.learn(0.001, 1, len(figures.figure_1))
    with judging.held():
        other.publish(blocker, figures.figure_1)
        assert judging.waiting.wait(60.0)
        # When one comes with six times as much
        publisher.publish(uids[0], figures.metadata(Area="x" * 5 * len(figures.figure_1)))
        eventually(lambda: delegate.status()["qos"]["tasks"]["waiting"] == 1)
        publisher.publish(uids[1], figures.figure_1)
        eventually(lambda: delegate.status()["qos"]["tasks"]["waiting"] == 2)
    publisher.flush(60.0)
    # Expect
    assert [name for name, _ in judging.judged[-3:]] == ["blocking", "short", "long"]


@pytest.mark.row("Q-09")
def test_what_costs_twice_as_much_is_known_to_after_fifty_objects(
    federation: Any,
    rules: Callable[..., Path],
    figures: Any,
    lanes: list[RegistrationLane],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Given a delegate that takes 3 ms of CPU for an object and each subscription
    rules("")
    federation.pad()
    publisher, subscriber = federation.light(), federation.subscriber()
    [uid] = registered(publisher, figures, "report")
    judge, subscribed = Pipeline.judge, 0

    def slow(self: Pipeline, registration: Any, run: Any, *more: Any) -> int:
        began = time.thread_time()
        while time.thread_time() - began < 0.003 * len(run) * subscribed:
            pass
        return judge(self, registration, run, *more)

    monkeypatch.setattr(Pipeline, "judge", slow)
    estimates = []
    # When
    for count in (1, 2):
        subscribed = count
        known = subscriber.register_subscriber(type_name="report")
        assert subscriber.wait_matched(known) == 1
        for _ in range(50):
            publisher.publish(uid, figures.figure_1)
        publisher.flush(30.0)
        estimates.append(lanes[0].task.cost.of(len(figures.figure_1)))
    # Expect
    assert estimates[1] / estimates[0] == pytest.approx(2.0, abs=0.7)


@pytest.mark.row("Q-33")
def test_no_policy_is_looked_up_while_objects_go_by(
    federation: Any, rules: Callable[..., Path], figures: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given contracts with conditions about objects
    rules(BY_OBJECT)
    delegate = federation.pad()
    publisher, subscriber = federation.light(), federation.subscriber()
    [uid] = registered(publisher, figures, "report")
    known = subscriber.register_subscriber(type_name="report", bound=10)
    assert subscriber.wait_matched(known) == 1
    publisher.publish(uid, figures.figure_1)
    publisher.flush(60.0)
    asked: list[str] = []

    def noted(where: Any, name: str) -> None:
        does = getattr(where, name)

        def asks(*arguments: Any, **named: Any) -> Any:
            if not threading.current_thread().name.startswith("ticker"):  # which looks at mail's link each second
                asked.append(name)
            return does(*arguments, **named)

        monkeypatch.setattr(where, name, asks)

    noted(PolicySet, "resolve")
    noted(condition, "parse_condition")
    noted(policyfile, "parse_condition")
    # When
    metadata = [figures.figure_1, figures.metadata(Area="Rome")]
    publisher.publish_many(uid, [(metadata[n // 100 % 2], b"x") for n in range(2_000)])
    publisher.flush(60.0)
    # Expect each to have been judged as what it is
    assert asked == []
    served = Counter[int]()
    for row in delegate.status()["qos"]["tasks"]["bins"]:
        served[row["importance"]] += row["served"]
    assert served == {4: 1_000, 5: 1_001}


# -- how it goes out --------------------------------------------------------------------------------------------------

LINK = """
[[link]]
name = "narrow"
members = "action == 'subscribe'"
rate = "{rate}"
reserve = 0.0
"""


@pytest.mark.row("Q-22")
def test_a_condition_about_bandwidth_holds_when_the_link_gets_another_rate(
    federation: Any, rules: Callable[..., Path], figures: Any, eventually: Callable[..., Any]
) -> None:
    # Given texts that are to be short over less than 400 kbit/s, over a link that has more
    shape = '[[policy]]\nname = "short"\nwhen = "bandwidth < \'400 kbps\'"\nshape = "truncate 10"\n'
    path = rules(shape + LINK.format(rate="8 Mbps"))
    federation.pad()
    publisher, subscriber = federation.light(), federation.subscriber()
    [uid] = registered(publisher, figures, "report")
    known = subscriber.register_subscriber(type_name="report")
    assert subscriber.wait_matched(known) == 1

    def length() -> int:
        publisher.publish(uid, figures.figure_1, b"a long text " * 10)
        return len(subscriber.receive(known, 60.0).payload)

    assert length() == 120
    # When the limit falls; Expect them to be, and whole again when it rises
    path.write_text(shape + LINK.format(rate="300 kbps"))
    eventually(lambda: length() == 10)
    path.write_text(shape + LINK.format(rate="8 Mbps"))
    eventually(lambda: length() == 120)


@pytest.mark.row("Q-36")
def test_another_strategy_changes_the_shares_of_what_waits(
    federation: Any, rules: Callable[..., Path], figures: Any, eventually: Callable[..., Any]
) -> None:
    # Given equal weights, and more of two types than a link carries
    link = LINK.format(rate="3 Mbps")
    policies = "".join(
        f'[[policy]]\nname = "{name}"\ntype = "{name}"\nimportance = {importance}\n'
        for name, importance in (("normal", 1), ("important", 5))
    )
    space = '[space]\nstrategy = "{}"\nlink_weights = [1, 1, 1, 1, 1]\n'
    path = rules(space.format("weighted_fair") + policies + link)
    federation.pad()
    publisher, subscriber = federation.light(), federation.subscriber()
    uids = registered(publisher, figures, "normal", "important")
    known = subscriber.register_subscriber(predicate="/metadata/RequiredMetadata", bound=10_000)
    assert [publisher.wait_for_subscribers(uid) for uid in uids] == [1, 1]
    for _ in range(60):
        for uid in uids:
            publisher.publish_many(uid, [(figures.figure_1, bytes(5_000))] * 10)
    publisher.flush(30.0)

    def came(count: int) -> Counter[str]:
        """By type, of so many that come next."""
        return Counter(subscriber.receive(known, 60.0).type.name for _ in range(count))

    came(20)  # of the first who came some went before the others were there
    fair = came(40)
    assert fair["normal"] == pytest.approx(20, abs=8)
    # When; Expect it while they wait, nobody having subscribed anew
    path.write_text(space.format("strict") + policies + link)
    eventually(lambda: came(10) == {"important": 10})
    assert came(20) == {"important": 20}


@pytest.mark.row("Q-11")
def test_an_object_for_fifty_subscriptions_is_fifty_deliveries(
    federation: Any, rules: Callable[..., Path], figures: Any, eventually: Callable[..., Any]
) -> None:
    # Given
    rules("")
    delegate = federation.pad()
    publisher, subscriber = federation.light(), federation.subscriber()
    [uid] = registered(publisher, figures, "report")
    known = [subscriber.register_subscriber(type_name="report") for _ in range(50)]
    assert publisher.wait_for_subscribers(uid, 50) == 50
    # When
    publisher.publish(uid, figures.figure_1)
    # Expect each to be counted under its own contract
    assert all(subscriber.receive(one, 60.0) for one in known)
    eventually(lambda: (told := delegate.status())["matched"] == told["delivered"] == 50)
    assert delegate.status()["published"] == 1

    def received() -> list[int]:
        return [row["qos"]["received"] for row in delegate.status()["subscriptions"]]

    eventually(lambda: received() == [1] * 50, what=received)
    assert delegate.status()["qos"]["types"][0]["received"] == 50


def test_whatever_their_importance_all_get_what_their_predicates_say(
    federation: Any, rules: Callable[..., Path], figures: Any
) -> None:
    # Given subscriptions of each importance, with predicates that an index takes and others
    rules(
        "".join(
            f'[[policy]]\nname = "{level}"\nattribute = {{ level = "{level}" }}\nimportance = {level}\n'
            for level in range(1, 6)
        )
    )
    delegate = federation.pad()
    publisher, subscriber = federation.light(), federation.subscriber()
    [uid] = registered(publisher, figures, "report")
    chance = random.Random(7)
    forms = ("//lat > {} and //lat < {}", "//Area = 'area {}' or //long > 60.{}", "sum(//lat) + {} > 60 + {}")
    predicates = [
        chance.choice(forms).format(low := chance.randint(0, 60), low + chance.randint(5, 30)) for _ in range(60)
    ]
    known = [
        subscriber.register_subscriber(
            type_name="report", predicate=predicate, qos=Wish(attributes={"level": str(1 + number % 5)})
        )
        for number, predicate in enumerate(predicates)
    ]
    assert publisher.wait_for_subscribers(uid, 60) == 60
    assert delegate.status()["qos"]["policy"]["contracts"] == {"1": 12, "2": 12, "3": 13, "4": 12, "5": 12}
    # When
    objects = [
        figures.metadata(lat=str(chance.randint(0, 90)), long=f"60.{chance.randint(10, 99)}", Area=f"area {n}")
        for n in range(60)
    ]
    publisher.publish_many(uid, [(metadata, None) for metadata in objects])
    publisher.flush(30.0)
    # Expect each to get those, once and in order, of which libxml2 says that its predicate is true
    documents = [etree.fromstring(metadata) for metadata in objects]
    matched = 0
    for one, predicate in zip(known, predicates, strict=True):
        holds = etree.XPath(f"boolean({predicate})")
        expected = [number for number, document in enumerate(documents, 1) if holds(document)]
        assert [obj.platform.sequence for obj in came(subscriber, one, len(expected))] == expected, predicate
        assert subscriber.losses(one) == {}
        matched += len(expected)
    assert delegate.status()["matched"] == matched


@pytest.mark.row("Q-15")
def test_levels_and_shapes_and_pacing_are_each_on_or_off_by_themselves(
    federation: Any, rules: Callable[..., Path], figures: Any, judging: Judging, eventually: Callable[..., Any]
) -> None:
    # Given two types, and a delegate that judges by importance alone
    rules("", bins=5)
    delegate = federation.pad()
    publisher, other, subscriber = federation.light(), federation.light(), federation.subscriber()
    [blocker] = registered(other, figures, "blocking")
    types = ("normal", "important")
    uids = registered(publisher, figures, *types)
    known = [subscriber.register_subscriber(type_name=name) for name in types]
    assert [subscriber.wait_matched(one) for one in known] == [1, 1]
    for levels, shapes, paces in itertools.product((False, True), repeat=3):
        # When policies say each of them, or not
        said = f"[space]\nstrategy = 'strict'\nshaping = {str(shapes).lower()}\n" + LINK.format(rate="8 Mbps") * paces
        for name, importance in zip(types, (1, 5), strict=True):
            said += f"[[policy]]\nname = '{name}'\ntype = '{name}'\nshape = 'truncate 10'\n"
            said += f"importance = {importance}\n" * levels
        delegate.quality.local.install(PolicySet.parse(said))
        with judging.held():
            other.publish(blocker, figures.figure_1)
            assert judging.waiting.wait(60.0)
            for count, uid in enumerate(uids, 1):
                publisher.publish(uid, figures.figure_1, b"a long text " * 10)
                eventually(lambda count=count: delegate.status()["qos"]["tasks"]["waiting"] == count)
        publisher.flush(60.0)
        # Expect who is judged first, how much comes, and by which link to depend on one of them each
        assert [name for name, _ in judging.judged[-2:]] == list(reversed(types) if levels else types)
        assert [len(obj.payload) for one in known for obj in came(subscriber, one, 1)] == [10 if shapes else 120] * 2
        destinations = [1] if paces else []
        eventually(lambda d=destinations: [r["destinations"] for r in delegate.status()["qos"]["links"]] == d)


# -- when it is on ----------------------------------------------------------------------------------------------------

RATE = '[[policy]]\nname = "slow"\naction = "subscribe"\nmax_rate = "0.01/s"\n'
ACCESS = "[[access]]\n"


@pytest.mark.parametrize(
    ("text", "mode", "is_on"),
    [
        (RATE, None, True),
        (ACCESS + RATE, "auto", True),
        (RATE, "off", False),
        (ACCESS, None, False),
        (ACCESS, "on", True),
    ],
)
def test_a_file_that_says_who_matters_is_enforced(
    federation: Any,
    figures: Any,
    tmp_path: Path,
    eventually: Callable[..., Any],
    caplog: pytest.LogCaptureFixture,
    text: str,
    mode: Any,
    is_on: bool,
) -> None:
    # Given a delegate that was only told where the policy file is
    caplog.set_level(logging.INFO, "jbi_pubsub.subscriber")
    path = tmp_path / "policy.toml"
    path.write_text(text)
    qos = QosSection() if mode is None else QosSection(mode=mode)
    federation.config = msgspec.structs.replace(federation.config, policy=PolicySection(file=str(path)), qos=qos)
    pad = federation.pad()
    assert ("qos" in pad.status()) == is_on
    if text == ACCESS:
        return
    # When much more is published than it allows, expect that much to come if it is enforced, and all if it is not
    publisher, subscriber = federation.light(), federation.subscriber()
    (registration,) = registered(publisher, figures, "report")
    uid = subscriber.register_subscriber(type_name="report")
    assert subscriber.wait_matched(uid) == 1
    for _ in range(40):
        publisher.publish(registration, figures.figure_1)
    publisher.flush()
    if is_on:
        eventually(lambda: subscriber.losses(uid) == {Cause.RATE: 39})
    assert all(came(subscriber, uid, 1 if is_on else 40))
    # and what it leaves out to be told once, and not as a fault
    told = [each.levelname for each in caplog.records if "objects are left out" in each.getMessage()]
    assert told == ["INFO"] * is_on
    assert "lost" not in caplog.text


def test_a_file_that_says_who_matters_later_is_told(
    federation: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: Any, eventually: Callable[..., Any]
) -> None:
    # Given a delegate whose file has spoken of access alone
    monkeypatch.setattr(manager, "LOOK_SECONDS", 0.05)
    path = tmp_path / "policy.toml"
    path.write_text(ACCESS)
    federation.config = msgspec.structs.replace(federation.config, policy=PolicySection(file=str(path)))
    pad = federation.pad()
    # When it speaks of who matters, expect a word that this needs a new start
    path.write_text(ACCESS + RATE)
    eventually(lambda: "start that again" in caplog.text)
    assert "qos" not in pad.status()
