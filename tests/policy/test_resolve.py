"""Which policy wins, field by field: against a resolver that is as simple as its rules."""

from __future__ import annotations

import fnmatch
import ipaddress
import itertools
import random
from pathlib import Path
from typing import Any

import pytest
from extent import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from jbi_pubsub.core.quality import PayloadShape, Rate, Settings, Wish, shape_of
from jbi_pubsub.policy.condition import Node
from jbi_pubsub.policy.context import CallerFacts
from jbi_pubsub.policy.file import dumped
from jbi_pubsub.policy.policy import Policy, granted
from jbi_pubsub.policy.policyfile import built_in
from jbi_pubsub.policy.policyset import PolicySet

DATA = Path(__file__).parents[2] / "jbi_pubsub" / "policy" / "data"
PEOPLE = {"group": {"UAS": ["Predator-*", "Raven-*"], "all": ["@UAS", "Patrol-*"]}, "role": {"Patrol-1": "patrol"}}


def facts(**said: str) -> CallerFacts:
    """Of a contract."""
    given = {
        "user": "Patrol-1", "client": "field-7", "component": "alpha@rome", "address": "10.1.2.3",
        "type": "uav.imagery", "version": "1.0", "action": "subscribe", "delivery": "queue",
    } | said  # fmt: skip
    area = given.pop("area", "")
    return CallerFacts(
        group=(),
        role=(),
        attribute=(("area", area),) if area else (),
        **{key: (value,) for key, value in given.items()},
    )


def made(*policies: dict[str, Any], **tables: Any) -> PolicySet:
    """A set of policies as a file says them."""
    return PolicySet.parse(dumped({**PEOPLE, **tables, "policy": list(policies)}))


# -- the naive resolver -----------------------------------------------------------------------------------------

POINTS = {"user": 48, "type": 34}
ONE_OF = {**dict.fromkeys(("group", "role", "client", "component", "address"), 40)}
OPERATION = {**dict.fromkeys(("version", "action", "delivery", "attribute"), 22)}


def naive_groups(user: str) -> set[str]:
    inner = {"UAS"} if user.startswith(("Predator-", "Raven-")) else set[str]()
    return inner | {"all"} if inner or user.startswith("Patrol-") else inner


def naive_applies(policy: dict[str, Any], contract: dict[str, str]) -> bool:
    user = contract["user"]
    known = {key: {value} for key, value in contract.items()}
    known["group"], known["role"] = naive_groups(user), {"patrol"} if user == "Patrol-1" else set()
    for key in (*POINTS, *ONE_OF, *OPERATION):
        if key not in policy or key == "attribute":
            continue
        texts = policy[key] if isinstance(policy[key], list) else [policy[key]]
        if key == "address":
            if not any(ipaddress.ip_address(contract["address"]) in ipaddress.ip_network(text) for text in texts):
                return False
        elif not any(fnmatch.fnmatchcase(value, text) for value in known[key] for text in texts):
            return False
    return all(contract.get(key, "") == value for key, value in policy.get("attribute", {}).items())


def naive_rank(policy: dict[str, Any]) -> tuple[int, int, int, str]:
    points = sum(
        (
            POINTS["user"] * ("user" in policy), POINTS["type"] * ("type" in policy),
            40 * any(key in policy for key in ONE_OF), 22 * any(key in policy for key in OPERATION),
            2 * ("when" in policy),
        )
    )  # fmt: skip
    return -policy.get("precedence", 0), -points, -policy.get("importance", 0), policy["name"]


def naive(policies: list[dict[str, Any]], contract: dict[str, str], size: int) -> dict[str, Any]:
    """Each field from the first of those that apply; of a preference those it does not say itself."""
    found: dict[str, Any] = {}
    for policy in sorted(policies, key=naive_rank):
        large = policy.get("when") is None or size > 50_000
        if large and naive_applies(policy, contract):
            said = {**TABLE_1.get(policy.get("preference", ""), {}), **policy}
            for field in ("importance", "deadline", "shape", "max_size"):
                if field in said:
                    found.setdefault(field, said[field])
    return found


TABLE_1: dict[str, dict[str, str]] = {
    "Default": {"shape": "none", "deadline": "none"},
    "NoDrop": {"deadline": "none"},
    "FullImageDrop": {"shape": "none", "deadline": "5 s"},
    "GeneralSurv": {"shape": "scale 0.5", "deadline": "5 s"},
    "FullImageNoDrop": {"shape": "none", "deadline": "none"},
    "FullImage": {"shape": "none"},
    "BFTrack": {"deadline": "15 s"},
}
"""As the paper prints it."""


def settings_of(said: dict[str, Any]) -> Settings:
    deadline, shape, size = said.get("deadline", "none"), said.get("shape", "none"), said.get("max_size", "none")
    return Settings(
        importance=said.get("importance", 3),
        deadline=None if deadline == "none" else float(deadline.split()[0]),
        shapes=() if shape == "none" else (shape_of(shape),),
        max_size=None if size == "none" else int(size.split()[0]) * 1_000,
    )


CONTEXTS = st.fixed_dictionaries(
    {},
    optional={
        "user": st.sampled_from(["Patrol-1", "Patrol-*", "Raven-1", ["Raven-*", "Patrol-2"]]),
        "group": st.sampled_from(["UAS", "all"]),
        "role": st.just("patrol"),
        "client": st.sampled_from(["field-*", "desk"]),
        "address": st.sampled_from(["10.1.0.0/16", "10.2.0.0/16", ["192.0.2.0/24", "10.0.0.0/8"]]),
        "type": st.sampled_from(["uav.*", "uav.imagery", "track", ["track", "cas.image"]]),
        "version": st.sampled_from(["1.*", "2.0"]),
        "action": st.sampled_from(["subscribe", ["publish", "query"]]),
        "delivery": st.sampled_from(["queue", "mail"]),
        "attribute": st.just({"area": "Kabul"}),
        "when": st.just("size > '50 KB'"),
        "precedence": st.integers(-1, 2),
        "importance": st.integers(1, 5),
        "preference": st.sampled_from(sorted(TABLE_1)),
        "deadline": st.sampled_from(["none", "1 s", "9 s"]),
        "shape": st.sampled_from(["none", "scale 0.7"]),
        "max_size": st.sampled_from(["none", "70 KB"]),
    },
)
CONTRACTS = st.fixed_dictionaries(
    {
        "user": st.sampled_from(["Patrol-1", "Patrol-2", "Raven-1", "x"]),
        "client": st.sampled_from(["field-7", "desk"]),
        "address": st.sampled_from(["10.1.2.3", "10.2.0.1", "192.0.2.9"]),
        "type": st.sampled_from(["uav.imagery", "track", "cas.image"]),
        "version": st.sampled_from(["1.0", "2.0"]),
        "action": st.sampled_from(["publish", "subscribe", "query"]),
        "delivery": st.sampled_from(["queue", "mail", "peer"]),
        "area": st.sampled_from(["Kabul", "Rome"]),
    }
)


@pytest.mark.row("Q-28", "Q-30")
@pytest.mark.long
@settings(max_examples=examples(200), deadline=None)
@given(data=st.data(), contexts=st.lists(CONTEXTS, max_size=8), seed=st.integers(0, 2**32))
def test_what_wins_is_what_the_simplest_resolver_says_in_any_order(
    data: st.DataObject, contexts: list[dict[str, Any]], seed: int
) -> None:
    # Given random policies, in two orders
    policies: list[dict[str, Any]] = [{"name": f"p{number}", **said} for number, said in enumerate(contexts)]
    shuffled = random.Random(seed).sample(policies, len(policies))  # no secret
    one, other = made(*policies), made(*shuffled)
    # When several contracts are resolved
    for contract in data.draw(st.lists(CONTRACTS, min_size=1, max_size=5)):
        for size in (10_000, 60_000):

            def holds(_node: Node, size: int = size) -> bool:
                return size > 50_000

            got = [s.resolve(facts(**contract), now=0.0).outcome(holds).settings for s in (one, other)]
            # Expect what the naive one says, both times
            assert got == [settings_of(naive(policies, contract, size))] * 2


@pytest.mark.row("Q-21", "Q-26")
def test_2_to_the_4_groups_each_select_the_right_contracts() -> None:
    parts = {
        "entity": {"user": "Patrol-1"},
        "operation": {"type": "uav.imagery"},
        "information": {"when": "size > '50 KB'"},
        "resource": {"when": "bandwidth < '400 kbps'"},
    }
    for count in range(5):
        for names in itertools.combinations(parts, count):
            context: dict[str, Any] = {}
            for name in names:
                part = dict(parts[name])
                if "when" in part and "when" in context:
                    part["when"] = f"{context['when']} and {part['when']}"
                context |= part
            policies = made({"name": "p", "importance": 5, **context})
            for present in itertools.product((True, False), repeat=4):
                entity, operation, information, resource = present
                resolution = policies.resolve(
                    facts(user="Patrol-1" if entity else "x", type="uav.imagery" if operation else "t"), now=0.0
                )
                needed = {"information": information, "resource": resource}
                ready = all(needed[name] for name in names if name in needed)
                settled = resolution.outcome(lambda _node, ready=ready: ready).settings  # type: ignore[misc]
                selected = all(here for name, here in zip(parts, present, strict=True) if name in names)
                assert (settled.importance == 5) is selected, (names, present)


@pytest.mark.row("Q-28", "Q-58", "Q-62", "Q-64")
@pytest.mark.parametrize("first", ["unspecified", "none", "5 s"])
@pytest.mark.parametrize("second", ["unspecified", "none", "9 s"])
def test_none_forbids_and_unspecified_inherits(first: str, second: str) -> None:
    # Given a policy of higher and one of lower precedence
    one = {"name": "high", "precedence": 1, "importance": 4} | ({} if first == "unspecified" else {"deadline": first})
    two = {"name": "low", "importance": 2} | ({} if second == "unspecified" else {"deadline": second})
    # When both apply
    got = made(one, two).resolve(facts(), now=0.0).settings
    # Expect each field from the first that says something of it
    said = first if first != "unspecified" else second
    assert got.deadline == {"none": None, "unspecified": None, "5 s": 5.0, "9 s": 9.0}[said]
    assert got.importance == 4


def test_a_name_decides_where_nothing_else_does_and_reasons_say_so() -> None:
    policies = made(
        {"name": "b", "type": "uav.imagery", "importance": 2, "deadline": "5 s"},
        {"name": "a", "type": "uav.*", "importance": 2, "deadline": "9 s"},
        {"name": "c", "precedence": -1, "user": "Patrol-1", "type": "uav.*", "importance": 5},
        {"name": "d", "importance": 1},
    )
    told = policies.explained(facts(), now=0.0)["fields"]["importance"]
    assert (told["by"], told["value"]) == ("a", 2)
    assert {each["policy"]: each["why"] for each in told["losers"]} == {
        "b": "the name comes later",
        "c": "precedence -1 < 0",
        "d": "less specific: 0 < 34",
    }
    near = policies.explained(facts(type="track"), now=0.0)["near"]
    assert {each["policy"]: each["why"] for each in near} == {"a": "type", "b": "type", "c": "type"}


@pytest.mark.row("Q-29")
def test_user_and_type_and_action_come_before_less_of_them() -> None:
    keys = [
        ("user", "type", "action"),
        ("user", "type"),
        ("type", "action"),
        ("user",),
        ("group",),
        ("type",),
        ("action",),
        (),
    ]
    said = {"user": "Patrol-1", "type": "uav.imagery", "action": "subscribe", "group": "all"}
    policies = made(
        *({"name": "-".join(each) or "all", **{key: said[key] for key in each}, "importance": 3} for each in keys)
    )
    order = [rule.name for rule, _ in policies.resolve(facts(), now=0.0).candidates]
    assert order == ["user-type-action", "user-type", "type-action", "user", "group", "type", "action", "all"]


# -- the shipped files ------------------------------------------------------------------------------------------


@pytest.mark.row("Q-56")
def test_the_preferences_are_those_of_table_1() -> None:
    shown = {
        name: {
            field: "none" if value is None else "5 s" if value == 5 else "15 s" if value == 15 else str(value[0])  # type: ignore[index]
            for field, value in fields.items()
        }
        for name, fields in built_in().items()
    }
    assert shown == TABLE_1


@pytest.mark.row("Q-23", "Q-25", "Q-68")
@pytest.mark.parametrize(
    ("policy", "selects", "others"),
    [
        ("AllUAS", {"client": "UAS-3"}, [{"client": "desk"}]),
        ("BFTrack", {"type": "blue_force_tracking"}, [{"type": "patrol_report"}]),
        ("Report", {"type": "patrol_report", "user": "Patrol-2"}, [{"type": "blue_force_tracking"}]),
        (
            "UASImgSub",
            {"type": "uav.imagery", "action": "subscribe"},
            [
                {"type": "uav.imagery", "action": "publish"},
                {"type": "uav.imagery", "action": "query"},
                {"type": "patrol_report", "action": "subscribe"},
            ],
        ),
        (
            "Patrol-1-Report",
            {"type": "patrol_report", "user": "Patrol-1"},
            [{"type": "patrol_report", "user": "Patrol-2"}, {"type": "uav.imagery", "user": "Patrol-1"}],
        ),
    ],
)
def test_each_policy_of_figure_6_selects_what_its_name_says(
    policy: str, selects: dict[str, str], others: list[dict[str, str]]
) -> None:
    policies = PolicySet.read(DATA / "figure6.toml")
    for said in (selects, *others):
        names = [rule.name for rule, _ in policies.resolve(facts(**said), now=0.0).candidates]
        assert (policy in names) is (said is selects)
    assert len(policies.rules) == 5


# -- wishes -----------------------------------------------------------------------------------------------------


def wished(wish: Wish, *policies: dict[str, Any]) -> tuple[Settings, list[tuple[str, str]]]:
    """What is granted, and what was less by which policy."""
    outcome = made(*policies).resolve(facts(), now=0.0).outcome()
    got = granted(outcome, wish, tuple(map(shape_of, wish.shape or ())))
    return got.settings, [(each.field, each.policy) for each in got.reduced]


def test_a_client_may_lower_its_importance_but_never_raise_it() -> None:
    policy = {"name": "p", "importance": 3}
    assert wished(Wish(importance=2), policy) == (Settings(importance=2), [])
    assert wished(Wish(importance=5), policy) == (Settings(importance=3), [("importance", "p")])
    assert wished(Wish(importance=5)) == (Settings(importance=3), [("importance", "")])


def test_allow_says_how_far_a_wish_may_go() -> None:
    allow = {"name": "a", "client": "field-*", "allow": {"importance": [2, 4], "max_rate": "64 kbps", "shape": False}}
    assert wished(Wish(importance=5), allow) == (Settings(importance=4), [("importance", "a")])
    assert wished(Wish(importance=1), allow) == (Settings(importance=2), [("importance", "a")])
    assert wished(Wish(max_rate=9_000.0), allow) == (Settings(max_rate=Rate(8_000.0)), [("max_rate", "a")])
    assert wished(Wish(shape=("grey",)), allow) == (Settings(), [("shape", "a")])
    # Expect one that has more by another policy not to lose it by a wish for more still
    assert wished(Wish(importance=5), allow, {"name": "b", "user": "Patrol-1", "importance": 5})[0].importance == 5


def test_a_wish_narrows_what_policies_say_and_never_widens_it() -> None:
    policy = {"name": "p", "deadline": "5 s", "shape": "scale 0.5", "max_size": "none", "max_rate": "2/s"}
    assert wished(Wish(deadline=3.0), policy)[0].deadline == 3.0
    assert wished(Wish(deadline=9.0), policy)[1] == [("deadline", "p")]
    assert wished(Wish(shape=("grey",)), policy) == (wished(Wish(), policy)[0], [("shape", "p")])
    assert wished(Wish(shape=("scale 0.5",)), policy)[1] == []
    assert wished(Wish(max_size=5), policy)[1] == [("max_size", "p")]
    assert wished(Wish(max_rate=5.0), policy)[1] == [("max_rate", "p")]
    assert wished(Wish(replace="registration", deadline=2.0, shape=("grey",))) == (
        Settings(replace="registration", deadline=2.0, shapes=(PayloadShape("grey"),)),
        [],
    )


def test_a_set_grows_by_policies_of_python() -> None:
    policies = made({"name": "p", "type": "uav.imagery", "importance": 2})
    more = policies.with_policy(Policy("q", type="uav.imagery", precedence=1, importance=5, when="size > '50 KB'"))
    assert more.resolve(facts(), now=0.0).outcome(lambda _node: True).settings.importance == 5
    assert PolicySet.parse(more.write()) == more != policies
    assert more.with_policy(Policy("q", importance=1)).resolve(facts(), now=0.0).settings.importance == 2
