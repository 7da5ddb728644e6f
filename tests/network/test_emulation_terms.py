"""Impairments and their file: shares within their bounds, by seed; what can't be emulated is told with its place."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from jbi_pubsub.core.errors import ConfigurationError
from jbi_pubsub.network import topology
from jbi_pubsub.network.impairments import ImpairedWay, ImpairmentTerms, SharedMedium
from jbi_pubsub.network.topology import ChangedTerms, ScriptedChange

pytestmark = pytest.mark.unit

COUNT = 20_000
TWO = """
[segment.lan.member]
alpha = { group = "239.192.1.1:47001" }
bravo = { group = "239.192.1.2:47001" }
"""


def arrivals(terms: ImpairmentTerms, seed: object = 1, count: int = COUNT) -> list[tuple[float, ...]]:
    """Arrivals of datagrams that leave one each millisecond."""
    way = ImpairedWay(seed)
    return [way.arrivals(terms, number / 1000) for number in range(count)]


def binomial(share: float, count: int = COUNT) -> float:
    """Four standard deviations of a share."""
    return 4 * float((share * (1 - share) / count) ** 0.5)


@pytest.mark.row("G-119")
@pytest.mark.parametrize("loss", [0.0, 0.01, 0.2, 0.5, 1.0])
def test_as_many_are_lost_as_are_to_be(loss: float) -> None:
    found = arrivals(ImpairmentTerms(loss=loss))
    assert abs(sum(not each for each in found) / COUNT - loss) <= binomial(loss)


def test_bursts_have_their_length_and_lose_no_more() -> None:
    # Given losses of 20 % in bursts of 8
    lost = [not each for each in arrivals(ImpairmentTerms(loss=0.2, burst=8))]
    # Expect that share (a burst counts as one draw), and that length in the mean
    assert abs(sum(lost) / COUNT - 0.2) <= binomial(0.2, COUNT // 8)
    bursts = sum(is_lost and not before for before, is_lost in zip([False, *lost], lost, strict=False))
    assert 7 <= sum(lost) / bursts <= 9


def test_the_same_ones_are_lost_each_time_whatever_else_is_set() -> None:
    # Given one seed, and the same losses with and without other impairments
    plain = arrivals(ImpairmentTerms(loss=0.3))
    late = arrivals(ImpairmentTerms(loss=0.3, delay=1, jitter=1, reorder=0.5, duplication=0.5))
    # Expect the same ones to be lost, and all to be the same the next time; of another way others
    assert [not each for each in plain] == [not each for each in late]
    assert plain == arrivals(ImpairmentTerms(loss=0.3))
    assert late == arrivals(ImpairmentTerms(loss=0.3, delay=1, jitter=1, reorder=0.5, duplication=0.5))
    assert plain != arrivals(ImpairmentTerms(loss=0.3), seed=2)


def test_jitter_keeps_the_order_and_overtaking_is_for_its_share() -> None:
    # Given jitter alone: expect delays within it, in order
    late = [each for (each,) in arrivals(ImpairmentTerms(delay=0.1, jitter=0.05))]
    assert late == sorted(late)
    assert all(0.1 <= each - number / 1000 <= 0.15 + 1e-9 for number, each in enumerate(late))

    # Given a tenth that is held back by up to 20 ms: expect most of those to be overtaken, and no other to be late
    found = arrivals(ImpairmentTerms(reorder=0.1, reorder_seconds=0.02))
    held = [each - number / 1000 for number, (each,) in enumerate(found)]
    assert abs(sum(each > 1e-9 for each in held) / COUNT - 0.1) <= binomial(0.1)
    assert max(held) <= 0.02


def test_a_share_comes_twice() -> None:
    found = arrivals(ImpairmentTerms(duplication=0.1))
    assert {len(each) for each in found} == {1, 2}
    assert abs(sum(len(each) == 2 for each in found) / COUNT - 0.1) <= binomial(0.1)


def test_all_share_a_rate_and_what_has_no_room_is_lost() -> None:
    # Given a rate of 2,400 bytes a second, with room for 3,000
    medium, terms = SharedMedium(), ImpairmentTerms(rate=2_400, queue=3_000)
    # Expect three datagrams of 1,200 to wait for each other, no fourth, and one more when there is room again
    assert [medium.passed(1_200, terms, 1.0) for _ in range(3)] == [1.5, 2.0, None]
    assert medium.passed(1_200, terms, 1.5) == 2.5
    # One that is larger than the room goes alone; without a rate all go at once
    assert medium.passed(9_600, terms, 10.0) == 14.0
    assert SharedMedium().passed(9_600, ImpairmentTerms(), 10.0) == 10.0


def test_terms_of_members_stand_before_those_of_the_segment(tmp_path: Path) -> None:
    # Given a segment, a member that differs, and changes of either
    alpha = """alpha = { group = "239.192.1.1:47001", loss = 0.5, rate = 10 }"""
    text = "[segment.lan]\nloss = 0.1\nrate = 1000" + re.sub("alpha = .*", alpha, TWO)
    (tmp_path / "t.toml").write_text(text)
    found = topology.read(tmp_path / "t.toml")
    terms = ChangedTerms(found.segment["lan"])
    # Expect the rate of the segment to be paid once, for all
    assert terms.of() == ImpairmentTerms(loss=0.1, rate=1000)
    assert (terms.of("alpha"), terms.of("bravo")) == (ImpairmentTerms(loss=0.5, rate=10), ImpairmentTerms(loss=0.1))
    terms.change(ScriptedChange(at=0, segment="lan", loss=0.2, down=True))
    terms.change(ScriptedChange(at=0, segment="lan", member="alpha", loss=0.0))
    assert (terms.of("alpha").loss, terms.of("bravo").loss, terms.of("alpha").down) == (0.0, 0.2, True)


def test_outages_are_changes_of_the_script(tmp_path: Path) -> None:
    text = "segment.lan.outages = [[2, 3], [1, 1.5]]" + TWO + '[[change]]\nat = 1.2\nsegment = "lan"\nloss = 0.5\n'
    (tmp_path / "t.toml").write_text(text)
    changes = topology.read(tmp_path / "t.toml").changes()
    assert [(each.at, topology.told(each)) for each in changes] == [
        (1, "down"), (1.2, "loss 0.5"), (1.5, "up"), (2, "down"), (3, "up")
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "segment"),
        ("[segment.lan]\nloss = 2\n", r"t\.toml:2:1"),
        (TWO.replace('1.2:47001"', '1.2:47001", delay = -1'), r"t\.toml:4:\d+: Expected `float` >= 0"),
        ("[segment.lan]\nlos = 0.2\n", "Did you mean loss"),
        ("[segment.lan]\n", "0 members"),
        ("segment.lan.outages = [[2, 1]]" + TWO, "ends before it begins"),
        ("[segment.lan.member]\na = {}\nb = {}\n", "either at a group or between two ports"),
        ('[segment.lan.member]\na = { at = "127.0.0.1:1" }\nb = {}\n', "either at a group or between two ports"),
        ('[segment.lan.member]\na = { group = "10.0.0.1:1" }\nb = {}\n', "All is on one machine"),
        ('[segment.lan.member]\na = { group = "239.1.1.1:0" }\nb = {}\n', "All is on one machine"),
        ('[segment.lan.member]\na = { at = "192.0.2.1:1", node = "127.0.0.1:2" }\nb = {}\n', "All is on one machine"),
        (TWO.replace("1.2:", "1.1:"), "somebody else's as well"),
        (TWO + '[[change]]\nat = 1\nsegment = "lam"\n', "Did you mean lan"),
        (TWO + '[[change]]\nat = 1\nsegment = "lan"\nmember = "brave"\n', "Did you mean bravo"),
        ('[segment.s]\nloss = 0.1\ntcp = ["127.0.0.1:4160"]\n', "loss of TCP"),
        ('[segment.s]\ntcp = ["127.0.0.3:4160"]\n', "127.0.0.3 is not 127.0.0.1"),
        ('[segment.s]\nhost = "127.0.0.1"\ntcp = ["127.0.0.1:4160"]\n', r"t\.toml:2:1"),
        ("[segment.lan]\nrate = nan\n", r"t\.toml:2:1"),
        ('segment.lan.tcp = ["127.0.0.1:4160"]' + TWO, "both members and tcp"),
        ('[segment."a b"]\n', "segment"),
        ("segment = 3", "segment"),
        ("[", "TOML"),
    ],
)
def test_what_cannot_be_emulated_is_told_with_its_place(text: str, why: str, tmp_path: Path) -> None:
    (tmp_path / "t.toml").write_text(text)
    with pytest.raises(ConfigurationError, match=why) as told:
        topology.read(tmp_path / "t.toml")
    assert "t.toml" in str(told.value)
    assert told.value.hint
    with pytest.raises(ConfigurationError, match=r"nowhere\.toml"):
        topology.read(tmp_path / "nowhere.toml")


def test_every_term_can_be_changed() -> None:
    # Expect the terms of a change to be those of a segment, each
    assert set(ImpairmentTerms.__struct_fields__) == set(topology.TermsChange.__struct_fields__)
