"""What is in force for contracts: resolved when they open, followed when anything changes, decided per object."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any, cast

import pytest

from jbi_pubsub.cli.policies import Supposition
from jbi_pubsub.core.errors import ConfigurationError, QosDeniedError
from jbi_pubsub.core.info_object import Head, Parcel, numbered, pack, prefix_of
from jbi_pubsub.core.quality import Contract, GrantedQos, Rate, Resources, Settings, Space, Wish, unmanaged
from jbi_pubsub.core.wire.endpoint import Caller
from jbi_pubsub.core.xml import read_metadata
from jbi_pubsub.policy import condition
from jbi_pubsub.policy.condition import Bound, holds, parse_condition
from jbi_pubsub.policy.policyset import PolicySet
from jbi_pubsub.qos import local
from jbi_pubsub.qos.local import LocalManager, payload_type, still_holds

ALICE = Caller("10.1.2.3:1", user="alice", claimed=True, client="desk", role="watch")
P = '[[policy]]\nname = "{}"\n'
IMAGES = '[[policy]]\nname = "images"\ntype = "uav.imagery"\nimportance = 2\n'


class World:
    """A manager with clocks and resources that stand still until they are told otherwise."""

    def __init__(self, stack: ExitStack) -> None:
        self.wall, self.now = 1_000_000.0, 0.0
        self.resources = Resources()
        self.spaces: list[Space] = []
        self._stack = stack
        self.local = self.make()

    def make(self, *, claims: bool = True, measured: Callable[[str], Resources] | None = None) -> LocalManager:
        """Another manager."""
        made = LocalManager(
            "alpha@rome", installed=self.spaces.append, measured=measured or (lambda _link: self.resources),
            wall=lambda: self.wall, clock=lambda: self.now, claims=claims,
        )  # fmt: skip
        self._stack.callback(made.stop)
        return made

    def install(self, text: str) -> None:
        """Other policies."""
        self.local.install(PolicySet.parse(text))

    def open(
        self, caller: Caller = ALICE, type_name: str = "uav.imagery", changed: Any = None, **wish: Any
    ) -> tuple[Contract, GrantedQos]:
        """A subscription's contract."""
        version = "1.0" if type_name else ""
        return self.local.contract(caller, "subscribe", type_name, version, "queue", Wish(**wish), changed)


@pytest.fixture
def world() -> Iterator[World]:
    with ExitStack() as stack:
        yield World(stack)


def parcel(number: int = 1, *, size: int = 100, area: str = "Kabul", type_name: str = "uav.imagery") -> Parcel:
    """An object."""
    uid = "registration-" + "0" * 32
    metadata = f"<a><Area>{area}</Area></a>".encode()
    head = Head(numbered(prefix_of(uid), number), uid, number, 0.0, type_name, "1.0", metadata, size)
    return pack(head, b"\xff\xd8\xff" + b"x" * (size - 3))


def test_a_contract_gets_what_policies_say_and_follows_them(world: World) -> None:
    # Given a contract without policies
    contract, got = world.open()
    assert (contract.settings, got) == (Settings(), GrantedQos())
    # When policies come
    world.install(IMAGES)
    # Expect what they say, for contracts that stand and for new ones, who share it
    assert contract.settings.importance == world.open()[0].settings.importance == 2
    assert contract.settings is world.open()[0].settings
    # When they go
    world.install("")
    assert contract.settings.importance == 3
    assert world.local.status()["contracts"] == {"3": 3}
    world.local.close(contract)
    world.local.close(contract)
    assert world.local.status()["contracts"] == {"3": 2}


def test_a_contract_for_a_query_gets_what_policies_say_of_queries(world: World) -> None:
    world.install(IMAGES + P.format("searches") + 'action = "query"\nprecedence = 1\nimportance = 1\n')
    asked, _ = world.local.contract(ALICE, "query", "uav.imagery", "1.0", "queue", Wish())
    assert asked.settings.importance == 1
    assert world.open()[0].settings.importance == 2


def test_a_contract_that_has_ended_follows_nothing(world: World) -> None:
    contract, _ = world.open()
    world.local.close(contract)
    assert world.local.status()["classes"] == 0
    world.install(IMAGES)
    assert contract.settings.importance == 3


def test_what_changes_is_told_once_and_only_if_it_is_another(world: World) -> None:
    told: list[GrantedQos] = []
    world.install(IMAGES)
    world.open(changed=told.append, importance=5)
    world.install(IMAGES + P.format("other") + 'type = "t"\nimportance = 1\n')
    assert told == []
    world.install(IMAGES.replace("2", "4"))
    assert [(each.settings.importance, each.reduced[0].policy) for each in told] == [(4, "images")]


def test_roles_and_claims(world: World) -> None:
    world.install(
        P.format("r") + 'role = "watch"\nimportance = 5\n' + P.format("a") + 'user = "alice"\ndeadline = "5 s"\n'
    )
    assert world.open()[0].settings == Settings(importance=5, deadline=5.0)
    # When the file knows the user's duty, it wins over what he says
    world.install(P.format("r") + 'role = "watch"\nimportance = 5\n[role]\nalice = "off"\n')
    assert world.open()[0].settings.importance == 3
    # Expect claims not to count where they are not trusted, and an identity to win over a claim
    world.local = world.make(claims=False)
    world.install(P.format("a") + 'user = "alice"\nimportance = 5\n')
    assert world.open()[0].settings.importance == 3
    assert world.open(Caller("10.1.2.3:1", identity="alice"))[0].settings.importance == 5
    assert world.open(Caller("10.1.2.3:1", identity="bob", user="alice", claimed=True))[0].settings.importance == 3


def test_time_comes_and_goes_without_anybody_s_doing(world: World, eventually: Callable[..., None]) -> None:
    world.install(IMAGES + "from = 1970-01-12T13:46:50Z\nuntil = 1970-01-12T13:47:00Z\n")  # 1,000,010 and 1,000,020
    contract, _ = world.open()
    seen = []
    for wall in (1_000_000.0, 1_000_010.0, 1_000_019.0, 1_000_020.0, 1_000_011.0):  # the last: the clock is set back
        world.wall = wall
        world.local.look()
        seen.append(contract.settings.importance)
    assert seen == [3, 2, 2, 3, 2]
    # Expect the manager's own thread to look as well
    world.wall = 1_000_030.0
    eventually(lambda: contract.settings.importance == 3)


def test_policies_that_come_while_the_time_is_looked_at_are_asked_for_their_own(
    world: World, monkeypatch: pytest.MonkeyPatch, eventually: Callable[..., None]
) -> None:
    # Given a policy whose time is over in a moment
    world.install(IMAGES + "until = 1970-01-12T13:46:50Z\n")  # 1,000,010
    contract, _ = world.open()
    world.wall = 1_000_010.0
    coming = PolicySet.parse(IMAGES.replace("2", "5") + "from = 1970-01-12T13:47:00Z\n")  # 1,000,020
    installing = threading.Thread(target=world.local.install, args=(coming,))
    next_change = PolicySet.next_change

    def looks(self: PolicySet, now: float) -> float:
        found = next_change(self, now)
        if self is not coming and installing.ident is None:
            installing.start()
            installing.join(0.3)  # as long as it is let
        return found

    monkeypatch.setattr(PolicySet, "next_change", looks)
    # When others come at that very moment
    world.local.look()
    installing.join(60.0)
    assert contract.settings.importance == 3
    # Expect their time to come
    world.wall = 1_000_020.0
    world.local.look()
    assert contract.settings.importance == 5


def test_who_sees_other_settings_sees_what_they_say_of_objects() -> None:
    # Given who looks at a contract at the moment when its settings are replaced, as queues do
    seen: list[bool] = []

    class Looking(Contract):
        __slots__ = ()

        def __setattr__(self, name: str, value: Any) -> None:
            super().__setattr__(name, value)
            if name == "settings" and value.importance == 4:
                seen.append(self.by_object is not None)

    kind: Any = SimpleNamespace(
        granted=GrantedQos(Settings(importance=4)), by_object=lambda _parcel: Settings(), contracts=[Looking()]
    )
    # When
    LocalManager._apply(cast("LocalManager", None), kind, is_new=False)
    # Expect
    assert seen == [True]


def test_a_test_of_a_resource_has_hysteresis() -> None:
    test = Bound("bandwidth", "resource", "<", 100.0)
    assert still_holds(test, 99.0, False, -math.inf, 0.0)  # not decided yet
    assert not still_holds(test, None, True, 0.0, 0.1)  # not known any more
    assert not still_holds(test, 99.0, False, 0.0, 0.9)  # held for a second
    assert still_holds(test, 99.0, False, 0.0, 1.0)
    assert still_holds(test, 109.0, True, 0.0, 5.0)  # missed by less than a tenth
    assert not still_holds(test, 111.0, True, 0.0, 5.0)


def test_conditions_on_resources_swap_settings_by_a_tick(world: World) -> None:
    world.install(IMAGES + P.format("narrow") + "when = \"bandwidth < '400 kbps'\"\nprecedence = 1\nimportance = 1\n")
    contract, _ = world.open()
    seen = []
    for now, bandwidth in ((1, None), (2, 40_000.0), (2.5, 90_000.0), (4, 52_000.0), (5, 90_000.0)):
        world.now, world.resources = float(now), Resources(bandwidth=bandwidth)
        world.local.tick()
        seen.append(contract.settings.importance)
    assert seen == [2, 1, 1, 1, 2]


def test_conditions_on_objects_are_decided_per_object_and_no_policy_is_parsed(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.install(
        IMAGES
        + P.format("large") + "when = \"size > '50 KB'\"\nprecedence = 1\nimportance = 1\n"
        + P.format("Kabul") + "when = \"metadata(\\\"//Area='Kabul'\\\")\"\nprecedence = 2\nimportance = 5\n"
        + P.format("jpeg") + "when = \"payload_type == 'image/jpeg'\"\ndeadline = '5 s'\n"
    )  # fmt: skip
    contract, _ = world.open()
    parsed: list[str] = []
    monkeypatch.setattr(condition.ast, "parse", parsed.append)
    for number in range(1, 10_001):
        size, area = (60_000 if number % 2 else 100), "Kabul" if number % 3 else "Rome"
        got = contract.of(parcel(number, size=size, area=area))
        expected = 5 if area == "Kabul" else 1 if size > 50_000 else 2
        assert (got.importance, got.deadline) == (expected, 5.0)
    assert not parsed
    assert contract.settings == Settings(importance=2)


def test_conditions_that_say_the_same_in_other_policies_are_the_same(world: World) -> None:
    said = P.format("Kabul") + 'when = "metadata(\\"//Area=\'Kabul\'\\")"\nprecedence = 2\nimportance = 5\n'
    world.install(said)
    contract, _ = world.open()
    before = contract.by_object
    assert before is not None
    # When something else changes, expect queues to see that nothing is to be asked again
    world.install("[role]\nsomebody = 'patrol'\n" + P.format("other") + "type = 'other'\n" + said)
    assert contract.by_object is before
    # When what it says, or asks, or the link is another one, expect another one
    for other in (
        said.replace("importance = 5", "importance = 4"),
        said.replace("Kabul'", "Rome'"),
        said + '[[link]]\nname = "l"\nmembers = "action == \'subscribe\'"\n',
        said + IMAGES,
    ):
        world.install(said)
        before = contract.by_object
        world.install(other)
        assert contract.by_object is not before


def test_an_object_under_the_number_of_one_that_was_refused_is_another_one(world: World) -> None:
    world.install(P.format("large") + "when = \"size > '50 KB'\"\nimportance = 1\n")
    contract, _ = world.open()
    assert [contract.of(parcel(1, size=size)).importance for size in (100, 60_000, 100)] == [3, 1, 3]


def test_a_contract_without_a_type_gets_what_holds_for_the_type_of_each_object(world: World) -> None:
    contract, _ = world.open(type_name="")
    assert contract.by_object is None  # nothing asks for a type: it costs nothing
    world.install(IMAGES)
    assert contract.of(parcel(1)).importance == 2
    assert contract.of(parcel(2, type_name="t")).importance == 3
    world.install(IMAGES.replace("2", "4") + P.format("n") + 'type = "t"\nwhen = "cpu > \'50 %\'"\nimportance = 1\n')
    assert [contract.of(parcel(n, type_name=t)).importance for n, t in ((3, "uav.imagery"), (4, "t"))] == [4, 3]
    world.now, world.resources = 5.0, Resources(cpu=0.9)
    world.local.tick()
    assert contract.of(parcel(5, type_name="t")).importance == 1


def test_a_resource_is_measured_at_once_and_with_no_lock_held(world: World, eventually: Callable[..., None]) -> None:
    # Given a source that is asked by others for contracts meanwhile, with a lock of its own held
    queue = threading.Lock()

    def measured(_link: str) -> Resources:
        with queue:
            return Resources(queue=50.0)

    world.local = world.make(measured=measured)
    world.install(IMAGES + P.format("full") + "when = 'queue > 10'\nprecedence = 1\nimportance = 1\n")
    contract, _ = world.open(type_name="")
    for number in range(50):
        with queue:  # as a queue that asks what holds for an object
            contract.of(parcel(number, type_name=f"t{number}"))
    # Expect nobody to wait for the other, and the condition to hold within moments
    eventually(lambda: contract.of(parcel(99)).importance == 1)


def test_what_is_required_and_not_granted_is_an_error(world: World) -> None:
    world.install(IMAGES)
    with pytest.raises(QosDeniedError) as caught:
        world.open(importance=5, require=("importance",))
    assert caught.value.facts == {"field": "importance", "policy": "images"}
    assert world.local.status()["classes"] == 0
    contract, got = world.open(
        importance=1, deadline=3.0, max_rate=8_000.0, shape=("scale 0.5",), require=("deadline",)
    )
    assert contract.settings == got.settings
    assert (got.settings.importance, got.settings.deadline, got.settings.max_rate) == (1, 3.0, Rate(8_000.0))
    assert got.reduced == ()


@pytest.mark.parametrize(
    "wish",
    [
        Wish(importance=99), Wish(deadline=float("nan")), Wish(max_rate=float("inf")), Wish(max_size=0),
        Wish(deadline=-1.0), Wish(shape=("explode",)), Wish(shape=("grey",) * 9), Wish(replace="x" * 201),
        Wish(attributes={str(n): "" for n in range(10_000)}), Wish(attributes={"a": "x" * 201}),
        Wish(require=("speed",)), Wish(require=("deadline",)),
    ],
)  # fmt: skip
def test_a_wish_that_makes_no_sense_is_refused_with_and_without_quality_of_service(world: World, wish: Wish) -> None:
    with pytest.raises(ConfigurationError):
        world.local.contract(ALICE, "subscribe", "t", "1", "queue", wish)
    with pytest.raises(ConfigurationError):
        unmanaged(wish)


def test_without_quality_of_service_nothing_is_granted_and_that_is_said() -> None:
    got = unmanaged(Wish(importance=5, deadline=3.0))
    assert (got.settings, [each.field for each in got.reduced]) == (Settings(), ["importance", "deadline"])
    with pytest.raises(QosDeniedError):
        unmanaged(Wish(deadline=3.0, require=("deadline",)))
    assert unmanaged(Wish()) == GrantedQos()


def test_the_space_is_installed_before_contracts_follow(world: World) -> None:
    world.install(
        '[space]\nstrategy = "strict"\n[[link]]\nname = "l"\nmembers = "client == \'desk\'"\nrate = "8 kbps"\n'
    )
    assert (world.spaces[-1].strategy.name, world.spaces[-1].links[0].rate) == ("strict", 1_000.0)
    assert world.open()[0].settings.link == "l"
    assert world.open(Caller("10.0.0.1:1"))[0].settings.link == ""


@pytest.mark.parametrize(
    ("payload", "told"),
    [
        (b"", ""), (b"\x89PNG\r\n\x1a\n..", "image/png"), (b" <a/>", "application/xml"),
        ("é".encode() * 400, "text/plain"),
        (b"\xff\xfe\x00", "application/octet-stream"), (b"a\0b", "application/octet-stream"),
        (b"%PDF-1", "application/pdf"),
    ],
)  # fmt: skip
def test_payloads_are_told_by_their_first_bytes(payload: bytes, told: str) -> None:
    assert payload_type(payload) == told


@pytest.mark.parametrize("payload", [b"", b"%PDF-1.7"])
@pytest.mark.parametrize("metadata", [b"", b"no XML", b"<m><a/></m>"])
@pytest.mark.parametrize(
    "text",
    [
        *("payload_type == 'application/pdf'", "payload_type != 'application/pdf'", "payload_type != 'image/png'"),
        *("metadata('//a')", "not metadata('//a')", "not metadata('//b')", "not metadata('position()')"),
    ],
)
def test_objects_are_judged_as_it_is_explained(text: str, metadata: bytes, payload: bytes) -> None:
    # Given a condition, and an object of which something may not be known
    node = parse_condition(text)
    live = local.ObjectFacts(pack(Head("", "r", 1, 1.0, "t", "1.0", metadata, len(payload)), payload))
    supposed = Supposition(len(metadata) + len(payload), payload_type(payload), read_metadata(metadata))
    # Expect the same of it, from whoever asks
    assert holds(node, live) is supposed.holds(node)
    # Expect nothing to hold that is not known, and all else to be as it says
    is_known = bool(payload) if "payload_type" in text else metadata[:1] == b"<" and "position" not in text
    said = {
        "payload_type == 'application/pdf'",
        "payload_type != 'image/png'",
        "metadata('//a')",
        "not metadata('//b')",
    }
    assert holds(node, live) is (is_known and text in said)
