"""The information space: versions, steering by the file's own keys, who follows whom, shared links. Pure."""

from __future__ import annotations

import json
import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jbi_pubsub.core.errors import OversizeError, PolicyError
from jbi_pubsub.core.quality import Strategy
from jbi_pubsub.policy.policyset import PolicySet
from jbi_pubsub.policy.space import (
    HISTORY_MOST,
    IDLE_PART,
    NEWCOMER_PART,
    NEWCOMER_SECONDS,
    InformationSpaceManager,
    LinkUse,
    LqmReport,
    PolicyNews,
    PolicyStanding,
    divide,
    refusal,
)

FAIR, STRICT = Strategy("weighted_fair"), Strategy("strict")
NOTHING = (0.0, 0.0, 0.0, 0.0, 0.0)
ALL = math.inf

FILE = """
[space]
strategy = "weighted_fair"

[role]
"Patrol-1" = "patrol"

[preference.Mine]
deadline = "5 s"

[[policy]]
name = "tracks"
type = "track"
importance = 4

[[template]]
name = "convoy"
parameters = ["who"]

[[template.policy]]
name = "{who} first"
user = "{who}"
importance = 5

[[mission]]
name = "Route 1.2 Irish"
use = [{ template = "convoy", who = "Patrol-1" }]

[[link]]
name = "satcom"
members = "delivery == 'queue'"
rate = "800 kbps"
"""

wanted = st.lists(st.floats(0, 2e6) | st.just(ALL), min_size=5, max_size=5)


# -- division -----------------------------------------------------------------------------------------------------


@given(
    rate=st.floats(100, 1e9),
    demands=st.lists(wanted, min_size=1, max_size=40),
    strategy=st.sampled_from([FAIR, STRICT]),
    guaranteed=st.lists(st.floats(0, 0.2), min_size=5, max_size=5),
)
def test_shares_use_all_of_the_rate_never_more_and_serve_what_is_wanted(
    rate: float, demands: list[list[float]], strategy: Strategy, guaranteed: list[float]
) -> None:
    shares = divide(rate, {str(at): demand for at, demand in enumerate(demands)}, strategy, guaranteed)
    # Expect the rate in sum
    assert rate * (1 - 1e-9) <= math.fsum(shares.values()) <= rate * (1 + 1e-12)
    # Expect that everybody can start
    base = rate * min(IDLE_PART, 0.5 / len(demands))
    assert all(share >= base * (1 - 1e-9) for share in shares.values())
    # Expect nobody to have more than he wants while somebody has less (work-conserving), but for that base
    short = [at for at, demand in enumerate(demands) if shares[str(at)] < min(rate, sum(demand)) * (1 - 1e-9)]
    if short:
        for at, demand in enumerate(demands):
            assert shares[str(at)] <= max(base, min(rate * 5, sum(demand))) * (1 + 1e-9)


def test_strict_serves_the_most_important_of_all_first() -> None:
    shares = divide(1000.0, {"a": (ALL, 0, 0, 0, 0), "b": (0, 0, 0, 0, 600.0)}, STRICT)
    assert shares == pytest.approx({"a": 400.0, "b": 600.0})


def test_fair_goes_by_weights_of_levels_and_evenly_within_one() -> None:
    shares = divide(1000.0, {"a": (0, 0, 0, 0, ALL), "b": (ALL, 0, 0, 0, ALL), "c": (ALL, 0, 0, 0, 0)}, FAIR)
    assert shares["a"] < shares["b"]
    assert shares["a"] > 5 * shares["c"]


def test_guaranteed_parts_come_first_also_under_strict() -> None:
    shares = divide(1000.0, {"a": (ALL, 0, 0, 0, 0), "b": (0, 0, 0, 0, ALL)}, STRICT, (0.3, 0, 0, 0, 0))
    assert shares["a"] >= 300.0


@pytest.mark.parametrize("said", [math.nan, -5.0, -ALL, 1e300])
def test_what_hostile_reports_say_does_not_break_the_sum(said: float) -> None:
    shares = divide(1000.0, {"a": (said,) * 5, "b": (0, 0, 100.0, 0, 0)}, FAIR)
    assert math.fsum(shares.values()) == pytest.approx(1000.0)
    assert all(share >= 50.0 for share in shares.values())


class Space:
    """A manager with one link, and local managers that take what they are sent when they like."""

    def __init__(self) -> None:
        self.manager = InformationSpaceManager("m" * 32)
        self.change(FILE)
        self.force: dict[str, float] = {}
        self.waiting: dict[str, list[PolicyNews]] = {}
        self.now = 0.0

    def change(self, text: str) -> None:
        version = self.manager.proposed(text, "me", "", 0.0)
        assert version is not None
        self.manager.take(version)

    def join(self, lqm: str) -> None:
        rates = {"satcom": self.force[lqm]} if lqm in self.force else {}
        self.manager.join(lqm, lqm, PolicyStanding(), rates, self.now)
        self.waiting.setdefault(lqm, []).clear()

    def push(self) -> None:
        self.manager.share_out(self.now)
        for lqm in self.waiting:
            if not self.manager.waits_for_room(lqm):
                news = self.manager.news(lqm)
                if news is not None:
                    self.waiting[lqm].append(news)

    def take(self, lqm: str, demand: tuple[float, ...]) -> None:
        """It takes all that it was sent, and says so."""
        number = self.manager.members[lqm].heard.number
        for news in self.waiting[lqm]:
            self.force[lqm], number = news.rates["satcom"], news.number
        self.waiting[lqm].clear()
        report = LqmReport(number, PolicyStanding(), links={"satcom": LinkUse(demand=demand)})  # type: ignore[arg-type]  # five
        self.manager.heard(lqm, report, self.now)


@pytest.mark.parametrize("seed", range(30))
def test_what_is_in_force_anywhere_never_exceeds_the_rate(seed: int) -> None:
    # Given local managers that join, say what they want, acknowledge or do not, leave without a word and come again
    chance = random.Random(seed)  # no secret
    space = Space()
    for _ in range(400):
        space.now += 0.2 * chance.random()  # less than a newcomer waits for who does not answer
        lqm = chance.choice("abcd")
        connected = lqm in space.waiting and space.manager.members[lqm].away_since is None
        if not connected:
            space.join(lqm)
        elif chance.random() < 0.1:
            space.manager.lost(lqm, space.now)
            space.waiting[lqm].clear()
        else:
            space.take(lqm, tuple(chance.choice([0.0, 1e4, ALL]) for _ in range(5)))
        for member in space.manager.members.values():
            member.joined_at = max(member.joined_at, space.now - NEWCOMER_SECONDS / 2)
        space.push()
        # Expect the sum of what they send by to be within the rate, whatever is under way
        assert math.fsum(space.force.values()) <= 100_000 * (1 + 1e-9)
    # Expect all of it to be used, once all have taken what they were sent
    for lqm in space.waiting:
        if space.manager.members[lqm].away_since is not None:
            space.join(lqm)
    for _ in range(12):
        space.push()
        for lqm in space.waiting:
            space.take(lqm, (0.0, 0.0, ALL, 0.0, 0.0))
    assert math.fsum(space.force.values()) == pytest.approx(100_000, rel=0.1)


def test_one_that_does_not_answer_keeps_others_from_more_but_not_from_all() -> None:
    # Given one that has the whole link and has stopped
    space = Space()
    space.join("a")
    space.push()
    space.take("a", NOTHING)
    assert space.force["a"] == 100_000
    # When another one comes
    space.join("b")
    space.push()
    assert space.waiting["b"] == []
    # Expect that it begins with a hundredth after a while, and with its share when there is room
    space.now += NEWCOMER_SECONDS
    space.push()
    assert space.waiting["b"][0].rates["satcom"] == NEWCOMER_PART * 100_000
    for _ in range(4):
        space.take("b", (0, 0, 0, 0, ALL))
        space.take("a", NOTHING)
        space.push()
    assert space.force["b"] > 90_000
    assert math.fsum(space.force.values()) <= 100_000 * (1 + 1e-9)


def test_small_changes_of_demand_push_nothing() -> None:
    space = Space()
    for lqm in "ab":
        space.join(lqm)
    for _ in range(5):
        space.push()
        for lqm in "ab":
            space.take(lqm, (0, 0, 40_000.0, 0, 0))
    # When one of them wants a little more
    space.take("a", (0, 0, 41_000.0, 0, 0))
    space.push()
    assert space.waiting == {"a": [], "b": []}


def test_who_is_gone_frees_what_it_had_and_who_is_away_does_not() -> None:
    space = Space()
    for lqm in "ab":
        space.join(lqm)
    for _ in range(5):
        space.push()
        for lqm in "ab":
            space.take(lqm, (0, 0, ALL, 0, 0))
    space.manager.lost("b", space.now)
    del space.waiting["b"]
    space.push()
    space.take("a", (0, 0, ALL, 0, 0))
    assert space.force["a"] == pytest.approx(50_000)
    space.manager.gone("b")
    space.push()
    space.take("a", (0, 0, ALL, 0, 0))
    assert space.force["a"] == pytest.approx(100_000)


def test_who_is_here_divides_what_is_left_by_who_is_away() -> None:
    # Given two that have nearly all, and one that has begun
    space = Space()
    for lqm in "abc":
        space.join(lqm)
    for _ in range(6):
        space.push()
        for lqm, demand in (("a", ALL), ("b", 0.0), ("c", ALL)):
            space.take(lqm, (0, 0, demand, 0, 0))
    assert space.force == pytest.approx({"a": 47_500, "b": 5_000, "c": 47_500})
    # When one of them is away, and the one that has begun wants all
    space.manager.lost("c", space.now)
    del space.waiting["c"]
    for _ in range(6):
        for lqm in "ab":
            space.take(lqm, (0, 0, ALL, 0, 0))
        space.push()
    # Expect the two that are here to have the same
    assert space.force == pytest.approx({"a": 26_250, "b": 26_250, "c": 47_500})


# -- versions -----------------------------------------------------------------------------------------------------


def test_versions_go_up_also_when_one_goes_back() -> None:
    space = InformationSpaceManager("m")
    for importance in (1, 2):
        text = f'[[policy]]\nname = "a"\nimportance = {importance}\n'
        version = space.proposed(text, "alice", "first", 5.0)
        assert version is not None
        space.take(version)
    # Expect nothing new of what is in force already
    assert space.proposed(space.policies.write(), "alice", "", 6.0) is None
    again = space.proposed_again(1, "bob", "", 7.0)
    assert again is not None
    space.take(again)
    assert [(v.version, v.who, v.why) for v in space.versions] == [
        (1, "alice", "first"), (2, "alice", "first"), (3, "bob", "back to version 1")
    ]  # fmt: skip
    assert space.policies.rules[0].fields["importance"] == 1
    with pytest.raises(PolicyError) as refused:
        space.version(9)
    assert "Kept are 1 to 3" in refused.value.hint


def test_the_history_is_bounded() -> None:
    space = InformationSpaceManager("m")
    for number in range(HISTORY_MOST + 3):
        version = space.proposed(f'[role]\na = "{number}"\n', "me", "", 0.0)
        assert version is not None
        space.take(version)
    assert (len(space.versions), space.versions[0].version) == (HISTORY_MOST, 4)


@pytest.mark.long
def test_what_is_pushed_holds_no_access_rules_and_is_bounded() -> None:
    space = InformationSpaceManager("m")
    version = space.proposed('[[access]]\nallow = "status"\nuser = "boss"\n' + FILE, "me", "", 0.0)
    assert version is not None
    assert "access" not in version.version.toml
    with pytest.raises(OversizeError):
        space.proposed("".join(f'[[policy]]\nname = "{n}"\nuser = "{"u" * 150}"\n' for n in range(9_000)), "me", "", 0)


# -- steering -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("space.strategy", "strict", lambda s: s.space.strategy.name == "strict"),
        ("space.shaping", "false", lambda s: not s.space.shaping),
        ("link.satcom.rate", "64 kbps", lambda s: s.space.links[0].rate == 8_000),
        ("policy.tracks.importance", "5", lambda s: s.rules[0].fields["importance"] == 5),
        ("policy.tracks.preference", "NoDrop", lambda s: s.rules[0].fields["deadline"] is None),
        ('policy."tracks".deadline', "10 s", lambda s: s.rules[0].fields["deadline"] == 10),
        ("preference.Mine.deadline", "7 s", lambda s: s.tables["preference"]["Mine"]["deadline"] == "7 s"),
        ("role.Patrol-1", "cas", lambda s: s.people.roles["Patrol-1"] == "cas"),
        ('role."a.b@c"', "5", lambda s: s.people.roles["a.b@c"] == "5"),
        ("group.UAS", '["Raven-*"]', lambda s: "UAS" in s.people.groups),
        ('mission."Route 1.2 Irish".active', "false", lambda s: len(s.rules) == 1),
    ],
)
def test_each_control_is_a_path_of_the_file(key: str, value: str, expected: object) -> None:
    space = InformationSpaceManager("m")
    first = space.proposed(FILE, "me", "", 0.0)
    assert first is not None
    space.take(first)
    changed = space.proposed_value(key, value, "me", "", 1.0)
    assert changed is not None
    assert changed.version.why == f"{key} = {value}"
    assert expected(PolicySet.parse(changed.version.toml))  # type: ignore[operator]  # one of the above


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("spice.strategy", "strict", "not a path of a policy file"),
        ("space.strateg", "strict", "Did you mean 'strategy'"),
        ("space.strategy", "strickt", "Did you mean 'strict'"),
        ("link.satcon.rate", "1 kbps", "Did you mean 'satcom'"),
        ("link.satcom.rate", "fast", "link.satcom.rate = 'fast'"),
        ("policy.track.importance", "5", "Did you mean 'tracks'"),
        ("policy.tracks.importance", "9", "not a whole number from 1"),
        ("preference.GeneralSurv.deadline", "1 s", "is built in"),
        ("role.", "x", "not a path"),
        ("a = 1\nb", "x", "not a path"),
        ("space." * 1_000, "x", "not a path"),
        ("[" * 5_000, "x", "not a path"),
        ("", "", "not a path"),
        ("mission.Route 1.2 Irish.active", "false", "stand in"),
        ("mission.Route.active", "false", "no mission 'Route'"),
        ("space.strategy", "x" * 20_000, "more than"),
        ("policy.tracks.when", "size > " + "(" * 500, "when"),
        ("policy.tracks.importance", "[" * 2_000, "importance"),
        ("group.UAS", "{ a = 1 }", "group"),
    ],
)
def test_what_can_t_be_set_says_why_and_changes_nothing(key: str, value: str, message: str) -> None:
    space = InformationSpaceManager("m")
    first = space.proposed(FILE, "me", "", 0.0)
    assert first is not None
    space.take(first)
    with pytest.raises(PolicyError) as refused:
        space.proposed_value(key, value, "me", "", 1.0)
    assert message in f"{refused.value.message}. {refused.value.hint}"
    assert len(space.versions) == 1


# -- who follows whom ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mine", "offered", "reason"),
    [
        (PolicyStanding(), PolicyStanding("a", 1, 1, "x"), ""),
        (PolicyStanding("a", 1, 3, "x"), PolicyStanding("a", 1, 4, "y"), ""),
        (PolicyStanding("a", 1, 3, "x"), PolicyStanding("a", 1, 3, "x"), ""),
        (PolicyStanding("a", 1, 3, "x"), PolicyStanding("a", 1, 2, "y"), "older"),
        (PolicyStanding("a", 1, 3, "x"), PolicyStanding("a", 1, 3, "y"), "something else"),
        (PolicyStanding("a", 1, 3, "x"), PolicyStanding("b", 1, 9, "y"), "is followed"),
        (PolicyStanding("a", 1, 3, "x"), PolicyStanding("b", 1, 3, "x"), ""),
        (PolicyStanding("a", 1, 3, "x"), PolicyStanding("b", 2, 1, "y"), ""),
        (PolicyStanding("a", 2, 3, "x"), PolicyStanding("b", 1, 9, "y"), "is over"),
    ],
)
def test_a_local_manager_stays_with_the_one_it_has(mine: PolicyStanding, offered: PolicyStanding, reason: str) -> None:
    assert reason in refusal(mine, offered)
    assert bool(reason) == bool(refusal(mine, offered))


def test_what_somebody_says_that_he_has_stops_nobody_s_shares() -> None:
    # Given two who say that they may send more than there is, and report numbers that are none
    space = InformationSpaceManager("m" * 32)
    proposal = space.proposed('[[link]]\nname = "satcom"\nrate = "1 Mbps"\n', "a", "b", 0.0)
    assert proposal is not None
    space.take(proposal)
    space.join("honest", "rome", PolicyStanding(), {}, 0.0)
    for name in ("liar", "other"):
        space.join(name, "hostile", PolicyStanding(), {"satcom": 1.7e308}, 0.0)
        space.heard(name, LqmReport(0, PolicyStanding(), types={"t": math.nan}), 0.0)
    # When links are divided
    space.share_out(5.0)
    # Expect a share for who is honest, and a status that is JSON
    assert space.members["honest"].shares["satcom"] > 0
    assert json.dumps(space.status(5.0), allow_nan=False)
