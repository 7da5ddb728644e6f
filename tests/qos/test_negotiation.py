"""What subscribers and publishers wish for, what they are granted, and what they are told, over real connections."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import pytest

from jbi_pubsub import GrantedQos, Wish
from jbi_pubsub.cli.app import run
from jbi_pubsub.cli.wishes import granted_shown
from jbi_pubsub.core.config import ClientSection, PadSection, PolicySection, QosSection
from jbi_pubsub.core.errors import ConfigurationError, QosDeniedError
from jbi_pubsub.core.info_object import Cause, InfoObject, LossNotice
from jbi_pubsub.core.quality import UNMET_MOST, Settings, Unmet, unmet
from jbi_pubsub.pad.server.server import DisseminationServer
from jbi_pubsub.policy import manager

TYPE = "mil.af.rl.jbi.Intel_Imagery"
IMAGERY = f'[[policy]]\nname = "imagery"\ntype = "{TYPE}"\nimportance = {{}}\n'


@dataclass
class Heard:
    """A listener that keeps what it is told."""

    granted: list[GrantedQos] = field(default_factory=list)
    objects: int = 0

    def arrived(self, _subscription: str, _obj: InfoObject) -> None:
        self.objects += 1

    def lost(self, _subscription: str, _notice: LossNotice) -> None:
        """Not asked for."""

    def qos_changed(self, _subscription: str, granted: GrantedQos) -> None:
        self.granted.append(granted)


@pytest.fixture
def rules(federation: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The policy file of all delegates and peer publishers of the federation, who manage quality of service."""
    monkeypatch.setattr(manager, "LOOK_SECONDS", 0.05)
    path = tmp_path / "policy.toml"
    path.write_text(IMAGERY.format(2))
    federation.config = msgspec.structs.replace(
        federation.config, policy=PolicySection(file=str(path)), qos=QosSection(mode="on")
    )
    return path


def importance(pad: DisseminationServer) -> list[int]:
    """Of all subscriptions and registrations of a delegate."""
    delegate = pad.delegate
    contracts = [
        each.contract for each in (*delegate.tables.subscriptions.values(), *delegate.tables.registrations.values())
    ]
    return sorted(contract.settings.importance for contract in contracts if contract is not None)


def test_a_wish_is_answered_and_followed_while_it_stands(
    federation: Any, rules: Path, figures: Any, eventually: Callable[..., Any]
) -> None:
    # Given a delegate with a policy, a publisher, and a subscriber who wishes for more than it says
    pad = federation.pad()
    publisher = federation.light()
    registration = figures.register(publisher)
    subscriber = federation.subscriber()
    heard = Heard()
    uid = subscriber.register_subscriber(
        type_name=TYPE, version="1.0", listener=heard, qos=Wish(importance=4, deadline=60.0, require=("deadline",))
    )
    subscriber.wait_matched(uid)
    # Expect what is granted, and what is less by which policy
    (got,) = subscriber.qos(uid).values()
    assert (got.settings.importance, got.settings.deadline) == (2, 60.0)
    assert [(each.field, each.policy) for each in got.reduced] == [("importance", "imagery")]
    assert importance(pad) == [2, 2]
    assert pad.status()["qos"]["policy"]["contracts"] == {"2": 2}
    # When the policy changes while they stand
    rules.write_text(IMAGERY.format(4))
    eventually(lambda: heard.granted)
    # Expect it to be in force for both, and the listener to be told once, and nothing to be lost or repeated
    assert [(each.settings.importance, each.reduced) for each in heard.granted] == [(4, ())]
    assert next(iter(subscriber.qos(uid).values())).settings.importance == 4
    assert importance(pad) == [4, 4]
    publisher.publish(registration, figures.figure_1)
    publisher.flush()
    eventually(lambda: heard.objects == 1)
    # When the file is broken: what was in force stays, and the status says where it is broken
    rules.write_text(IMAGERY.format(9))
    eventually(lambda: pad.status()["qos"]["policy"]["fault"])
    assert "policy.toml:4:14: importance: '9'" in pad.status()["qos"]["policy"]["fault"]
    assert importance(pad) == [4, 4]
    # When it is gone: the same
    rules.unlink()
    eventually(lambda: "No such file" in pad.status()["qos"]["policy"]["fault"])
    assert importance(pad) == [4, 4]
    # When they end, so do their contracts
    subscriber.cancel_subscription(uid)
    publisher.unregister_publisher(registration)
    eventually(lambda: pad.status()["qos"]["policy"]["contracts"] == {})


def test_what_is_required_and_not_granted_is_refused_until_the_policy_grants_it(
    federation: Any, rules: Path, figures: Any, eventually: Callable[..., Any]
) -> None:
    # Given a publisher who requires what is not granted
    pad = federation.pad()
    publisher = federation.light()
    delegate = publisher.connect_to_delegate("alpha", "rome")
    with pytest.raises(QosDeniedError) as caught:
        publisher.register_publisher(
            delegate, figures.schema, figures.figure_2, qos=Wish(importance=5, require=("importance",))
        )
    assert caught.value.facts == {"field": "importance", "policy": "imagery"}
    assert pad.status()["registrations"] == []
    # And a subscriber who does
    figures.register(federation.light())
    subscriber = federation.subscriber()
    wish = Wish(importance=5, require=("importance",))
    uid = subscriber.register_subscriber(type_name=TYPE, version="1.0", qos=wish)
    eventually(lambda: subscriber.losses(uid).get(Cause.REFUSED))
    with pytest.raises(QosDeniedError):
        subscriber.qos(uid)
    assert "is required" in str(subscriber.status()["sessions"][0]["refused"])
    # When the policy grants it
    rules.write_text(IMAGERY.format(5))
    # Expect it to stand without anybody's asking anew
    assert subscriber.wait_matched(uid, timeout=60.0) == 1
    assert next(iter(subscriber.qos(uid).values())).reduced == ()


def test_without_quality_of_service_a_wish_is_told_that_it_is_not_granted(
    federation: Any, figures: Any, eventually: Callable[..., Any]
) -> None:
    pad = federation.pad()
    figures.register(federation.light())
    subscriber = federation.subscriber()
    uid = subscriber.register_subscriber(type_name=TYPE, version="1.0", qos=Wish(importance=5))
    plain = subscriber.register_subscriber(type_name=TYPE, version="1.0")
    assert subscriber.wait_matched(uid) == subscriber.wait_matched(plain) == 1
    (got,) = subscriber.qos(uid).values()
    assert (got.settings, [each.field for each in got.reduced]) == (Settings(), ["importance"])
    assert list(subscriber.qos(plain).values()) == [GrantedQos()]
    assert [each.contract for each in pad.delegate.tables.subscriptions.values()] == [None, None]
    required = subscriber.register_subscriber(
        type_name=TYPE, version="1.0", qos=Wish(deadline=5.0, require=("deadline",))
    )
    eventually(lambda: subscriber.losses(required).get(Cause.REFUSED))
    with pytest.raises(QosDeniedError):
        subscriber.qos(required)
    with pytest.raises(ConfigurationError, match="deadline nan"):
        subscriber.register_subscriber(type_name=TYPE, qos=Wish(deadline=float("nan")))


def test_what_an_application_says_of_its_user_counts_for_importance_and_for_no_right(
    federation: Any, rules: Path, figures: Any
) -> None:
    # Given policies and access rules about users and duties
    text = (
        '[[policy]]\nname = "watch"\nrole = "watch"\naction = "subscribe"\nimportance = 5\n'
        '[[policy]]\nname = "alice"\nuser = "alice"\naction = "publish"\nimportance = 4\n'
        '[[access]]\n[[access]]\nuser = "alice"\nallow = false\n'
    )
    rules.write_text(text)
    federation.config = msgspec.structs.replace(federation.config, client=ClientSection(user="alice", role="watch"))
    pad = federation.pad()
    # When alice comes, without a certificate
    figures.register(federation.light())
    subscriber = federation.subscriber()
    uid = subscriber.register_subscriber(type_name=TYPE, version="1.0")
    # Expect her to be let in, as the rule is about those who have proven to be alice, and to be ranked as she says
    assert subscriber.wait_matched(uid) == 1
    assert importance(pad) == [4, 5]


def test_a_peer_publisher_s_own_contracts_follow_policies_as_well(
    federation: Any, rules: Path, figures: Any, eventually: Callable[..., Any]
) -> None:
    rules.write_text(
        IMAGERY.format(2) + '[[policy]]\nname = "peers"\ndelivery = "peer"\nprecedence = 1\nimportance = 1\n'
    )
    peer = federation.peer()
    with pytest.raises(QosDeniedError):
        peer.register_publisher(figures.schema, figures.figure_2, qos=Wish(importance=5, require=("importance",)))
    registration = peer.register_publisher(figures.schema, figures.figure_2, qos=Wish(deadline=9.0))
    contract = peer._publications[registration][1].contract
    assert (contract.settings.importance, contract.settings.deadline) == (1, 9.0)
    rules.write_text(IMAGERY.format(4))
    eventually(lambda: contract.settings.importance == 4)


def test_mail_has_contracts_of_its_own_which_outlive_a_restart(
    federation: Any, rules: Path, figures: Any, tmp_path: Path
) -> None:
    # Given a delegate that keeps e-mail subscriptions, and one that requires what is granted
    rules.write_text('[[policy]]\nname = "mail"\ndelivery = "mail"\nimportance = 2\ndeadline = "5 min"\n')
    config = msgspec.structs.replace(federation.config, pad=PadSection(state=str(tmp_path / "state")))
    pad = federation.pad(config=config)
    subscriber = federation.subscriber()
    uid = subscriber.register_subscriber(
        type_name=TYPE, recipients=["ops@example.org"], qos=Wish(importance=2, deadline=60.0, require=("importance",))
    )
    assert subscriber.wait_matched(uid) == 1
    (subscription,) = pad.delegate.tables.subscriptions.values()
    assert subscription.contract is not None
    assert (subscription.contract.settings.importance, subscription.contract.settings.deadline) == (2, 60.0)
    # When it comes back under rules that would refuse it
    pad.stop(0.5)
    rules.write_text('[[policy]]\nname = "mail"\ndelivery = "mail"\nimportance = 1\n')
    again = federation.pad("beta", config=config)
    # Expect it to stand, with what there is
    (subscription,) = again.delegate.tables.subscriptions.values()
    assert subscription.contract is not None
    assert subscription.contract.settings.importance == 1


def test_a_running_server_says_why_a_contract_has_what_it_has(
    federation: Any, rules: Path, figures: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    pad = federation.pad()
    registration = figures.register(federation.light())
    subscriber = federation.subscriber()
    uid = subscriber.register_subscriber(type_name=TYPE, version="1.0", qos=Wish(importance=4))
    assert subscriber.wait_matched(uid) == 1
    for asked in (
        ("--subscription", uid), ("--subscription", registration), ("--action", "subscribe", "--type", TYPE),
    ):  # fmt: skip
        with suppress(SystemExit):
            run(("policy", "explain", "--at", pad.address, *asked))
        said = capsys.readouterr()
        assert 'importance 2, by policy "imagery"' in said.out, said
        assert ('less importance than requested, by policy "imagery"' in said.out) is (uid in asked)
    assert run(("policy", "explain", "--at", pad.address, "--subscription", "subscription-0")) != 0
    assert "no subscription or registration" in capsys.readouterr().err


@pytest.mark.row("Q-69")
def test_a_policy_that_is_written_by_command_is_in_force_and_one_that_can_not_be_used_is_nowhere(
    federation: Any, rules: Path, figures: Any, eventually: Callable[..., Any], capsys: pytest.CaptureFixture[str]
) -> None:
    # Given a delegate that goes by a file, with a registration and a subscription
    pad = federation.pad()
    figures.register(federation.light())
    subscriber = federation.subscriber()
    assert subscriber.wait_matched(subscriber.register_subscriber(type_name=TYPE, version="1.0")) == 1
    before, version = rules.read_text(), pad.status()["qos"]["policy"]["version"]
    # When somebody writes one with a condition that makes no sense
    assert run(("policy", "new", str(rules), "name=large", "when=type == 'x' and sze > '5 KB'", "importance=5")) != 0
    # Expect to be told where, and nothing else
    assert "policy.toml:8:25: when: unknown property 'sze'. Did you mean 'size'?" in capsys.readouterr().err
    assert (rules.read_text(), pad.status()["qos"]["policy"]["version"]) == (before, version)
    # When it makes sense; Expect what stands to follow it
    written = ("policy", "new", str(rules), "name=subscribers", "action=subscribe", "importance=5", "precedence=1")
    with suppress(SystemExit):
        run(written)
    eventually(lambda: importance(pad) == [2, 5])


def test_wishes_of_the_command_line(
    federation: Any, rules: Path, figures: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    federation.pad()
    publisher = federation.light()
    registration = figures.register(publisher)
    lookup = f"lookup.locators={federation.config.lookup.locators[0]}"
    set_up = (
        "--set",
        lookup,
        "--set",
        "lookup.multicast=false",
        "--set",
        f"lookup.groups={federation.config.lookup.groups[0]}",
    )
    subscribe = (*set_up, "subscribe", "--type", TYPE, "--timeout", "0.2")

    def said(*wishes: str) -> str:
        with suppress(SystemExit):
            run((*subscribe, *(word for wish in wishes for word in ("--wish", wish))))
        return capsys.readouterr().err

    assert 'importance 2 (by policy "imagery"), deadline 1 min, shape scale 0.5' in said(
        "importance=4", "deadline=1 min", "shape=scale 0.5"
    )
    assert "is required, and not granted by policy 'imagery'" in said("importance=4", "require=importance")
    assert "has no unit" in said("deadline=5")
    assert "Did you mean 'deadline'?" in said("dedline=5 s")
    publisher.unregister_publisher(registration)


@pytest.mark.row("Q-45")
@pytest.mark.processes
def test_what_is_off_is_not_imported_and_has_no_thread_nor_job() -> None:
    code = """
import sys, threading
from jbi_pubsub.codegen.repository import TypeRepository
from jbi_pubsub.core.config import Config, LookupSection
from jbi_pubsub.core.ticker import jobs
from jbi_pubsub.pad.server.server import DisseminationServer
config = Config(lookup=LookupSection(multicast=False, locators=()))
server = DisseminationServer(config, TypeRepository(), characteristics=("alpha", "rome"))
server.start()
print([name for name in sys.modules if name.startswith(("jbi_pubsub.qos", "jbi_pubsub.policy"))])
names = [each.name for each in (*threading.enumerate(), *jobs())]
print([name for name in names if any(word in name for word in ("qos", "quality", "contracts", "policy"))])
server.stop(0.1)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    # Expect of the policy room only what reads the settings, and neither thread nor job
    assert done.stdout.splitlines() == ["['jbi_pubsub.policy', 'jbi_pubsub.policy.settings']", "[]"]


def test_conditions_about_the_process_hold_when_it_is_so(
    federation: Any, rules: Path, figures: Any, eventually: Callable[..., Any]
) -> None:
    # Given conditions that hold for any process, and one that holds when objects wait
    always = "memory > '1 MB' and cpu < '5000 %' and loss < '1 %'"
    rules.write_text(
        f'[[policy]]\nname = "process"\nwhen = "{always}"\nimportance = 5\n'
        '[[policy]]\nname = "queue"\nwhen = "queue > 2 and queue_bytes > \'1 KB\'"\nprecedence = 1\nimportance = 1\n'
    )
    pad = federation.pad()
    publisher = federation.light()
    registration = figures.register(publisher)
    subscriber = federation.subscriber()
    uid = subscriber.register_subscriber(type_name=TYPE, version="1.0", bound=3)
    assert subscriber.wait_matched(uid) == 1
    eventually(lambda: importance(pad) == [5, 5])
    # When three wait here, and three with an application that takes none; Expect it to hold
    for _ in range(2):
        for _ in range(3):
            publisher.publish(registration, figures.figure_1)
        eventually(lambda: subscriber.queue_size(uid) == 3)
    eventually(lambda: importance(pad) == [1, 1])
    # and no more once they are taken
    assert [subscriber.receive(uid) is not None for _ in range(6)] == [True] * 6
    eventually(lambda: importance(pad) == [5, 5])


# -- offers -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("required", "offered", "fields"),
    [
        (Wish(deadline=5.0, require=("deadline",)), Wish(deadline=5.0), []),
        (Wish(deadline=5.0, require=("deadline",)), Wish(deadline=5.1), ["deadline"]),
        (Wish(deadline=5.0), Wish(deadline=60.0), []),
        (Wish(deadline=5.0, require=("deadline",)), Wish(max_rate=1e9, max_size=1), []),
        (
            Wish(deadline=5.0, max_rate=1e3, max_size=10, require=("deadline", "max_rate", "max_size")),
            Wish(deadline=1.0, max_rate=2e3, max_size=11),
            ["max_rate", "max_size"],
        ),
        (Wish(importance=5, require=("importance",)), Wish(importance=1), []),
    ],
)
def test_an_offer_is_to_stay_below_what_is_required(required: Wish, offered: Wish, fields: list[str]) -> None:
    assert [each.field for each in unmet(required, offered, "registration-1")] == fields


def test_what_is_required_and_not_offered_is_told_in_the_answer_and_whenever_that_changes(
    federation: Any, rules: Path, figures: Any, eventually: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    # Given a publisher that offers less than is required, and one that offers enough, and one that says nothing
    pad = federation.pad()
    publisher = federation.light()
    delegate = publisher.connect_to_delegate("alpha", "rome")

    def registered(**offer: Any) -> str:
        qos = Wish(**offer) if offer else None
        return str(publisher.register_publisher(delegate, figures.schema, figures.figure_1, qos=qos))

    slow, _, silent = registered(deadline=60.0), registered(deadline=2.0), registered()
    subscriber = federation.subscriber()
    heard = Heard()
    uid = subscriber.register_subscriber(
        type_name=TYPE, version="1.0", listener=heard, qos=Wish(deadline=5.0, require=("deadline",))
    )
    careless = subscriber.register_subscriber(type_name=TYPE, version="1.0", qos=Wish(deadline=5.0))
    assert subscriber.wait_matched(uid) == subscriber.wait_matched(careless) == 1
    # Expect it told who does not offer what is required, and nothing to those who require nothing
    (got,) = subscriber.qos(uid).values()
    assert got.unmet == (Unmet("deadline", 5.0, 60.0, slow),)
    assert next(iter(subscriber.qos(careless).values())).unmet == ()
    assert f"requires deadline 5, and registration {slow} offers 60" in caplog.text
    rows = {row["uid"]: row for row in pad.status()["subscriptions"]}
    assert [each.registration for each in rows[uid]["unmet"]] == [slow]
    assert "unmet" not in rows[careless]
    # Expect its objects to come all the same
    publisher.publish(slow, figures.figure_1)
    publisher.publish(silent, figures.figure_1)
    eventually(lambda: heard.objects == 2)
    # When another one comes that does not; Expect the listener to be told
    slower = registered(deadline=600.0)
    eventually(lambda: heard.granted)
    assert [each.registration for each in heard.granted[-1].unmet] == [slow, slower]
    # When the policies change: what is not met is told beside what is in force
    rules.write_text(IMAGERY.format(4))
    eventually(lambda: heard.granted[-1].settings.importance == 4)
    assert [each.registration for each in heard.granted[-1].unmet] == [slow, slower]
    # When they go
    publisher.unregister_publisher(slow)
    eventually(lambda: [each.registration for each in heard.granted[-1].unmet] == [slower])
    publisher.close()
    eventually(lambda: heard.granted[-1].unmet == ())
    # When it is cancelled, nothing of it is kept
    subscriber.cancel_subscription(uid)
    eventually(lambda: not pad.delegate.contracts.offers._requiring)
    assert pad.delegate.contracts.offers._offering == {}


def test_however_many_offer_less_a_bounded_number_is_told_and_the_others_later(
    federation: Any, rules: Path, figures: Any, eventually: Callable[..., Any]
) -> None:
    # Given more publishers than are told at once
    federation.pad()
    publisher = federation.light()
    delegate = publisher.connect_to_delegate("alpha", "rome")
    uids = [
        publisher.register_publisher(delegate, figures.schema, figures.figure_2, qos=Wish(max_size=2_000 + n))
        for n in range(UNMET_MOST + 1)
    ]
    subscriber = federation.subscriber()
    uid = subscriber.register_subscriber(type_name=TYPE, version="1.0", qos=Wish(max_size=1_000, require=("max_size",)))
    assert subscriber.wait_matched(uid) == 1

    def told() -> list[str]:
        return [each.registration for got in subscriber.qos(uid).values() for each in got.unmet]

    assert told() == uids[:-1]
    for each in uids[:-1]:
        publisher.unregister_publisher(each)
    eventually(lambda: told() == uids[-1:])


def test_an_offer_that_is_less_is_said_at_the_command_line() -> None:
    wish = Wish(deadline=5.0, require=("deadline",))
    granted = GrantedQos(Settings(deadline=5.0), unmet=(Unmet("deadline", 5.0, 60.0, "registration-1"),))
    assert list(granted_shown(wish, [("5f1b8a32", granted)])) == [
        "granted at 5f1b8a32: deadline 5 s",
        "not met by registration-1: deadline 5 s is required, 1 min offered",
    ]
