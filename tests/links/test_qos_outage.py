"""Links that fail and change under quality of service: queues stay bounded, and what is important comes first."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from jbi_pubsub.core.config import PolicySection, QosSection

POLICIES = """
[space]
strategy = "strict"

[[policy]]
name = "urgent"
when = "size > '3 KB'"
importance = 5

[[policy]]
name = "the rest"
importance = 1

[[link]]
name = "narrow"
members = "action == 'subscribe'"
reserve = 0.0
{more}
"""
"""What has more than 3 KB is urgent here: one subscription gets both."""
URGENT = bytes(3_000)


@pytest.fixture
def managed(scene: Any, tmp_path: Path) -> Callable[..., None]:
    """managed(more): the scene's parties go by POLICIES, with more said of the link."""

    def set_up(more: str = "") -> None:
        file = tmp_path / "policy.toml"
        file.write_text(POLICIES.format(more=more))
        scene._federation.config = msgspec.structs.replace(
            scene.config, qos=QosSection(mode="on"), policy=PolicySection(file=str(file))
        )
        scene.set("lookup", probe=5.0)

    return set_up


def _link(scene: Any) -> dict[str, Any]:
    """The link's row in the delegate's status."""
    [row] = scene.node.status()["qos"]["links"]
    return row


@pytest.mark.row("Q-80")
def test_a_link_that_is_cut_keeps_the_important_and_brings_it_first(
    scene: Any, managed: Callable[..., None], figures: Any
) -> None:
    # Given a subscription for fifty objects of two registrations, behind a link that fails
    managed('rate = "2 Mbps"')
    scene.open(bound=50)
    urgent = figures.register(scene.publisher)
    assert scene.publisher.wait_for_subscribers(urgent) == 1
    scene.publish(b"before")
    assert scene.sequences(1) == [1]
    scene.subscribers_link.down()
    scene.eventually(lambda: not scene.node.status()["sessions"][0]["connected"])
    # When two hundred unimportant objects are published meanwhile, and ten urgent ones between them
    for _ in range(10):
        scene.publish(*[b"."] * 20)
        scene.publisher.publish(urgent, figures.figure_1, URGENT)
        scene.published += 1
    scene.publisher.flush()
    scene.eventually(lambda: scene.node.status()["published"] == 211)
    assert sum(scene.node.status()["sessions"][0]["queued"].values()) == 50
    scene.subscribers_link.up()
    # Expect the urgent ones first when it is back, then the newest of the others, each in order; all accounted for
    came = [scene.subscriber.receive(scene.subscription, 30.0) for _ in range(50)]
    assert [obj.platform.sequence for obj in came[:10]] == list(range(1, 11))
    assert {obj.platform.registration for obj in came[:10]} == {urgent}
    assert [obj.platform.sequence for obj in came[10:]] == list(range(162, 202))
    account = scene.account()
    assert (account["lost"], account["delivered"]) == (160, 51)
    assert scene.node.status()["subscriptions"][0]["lost"] == {"queue_overflow": 160}
    assert scene.local()["lost"]["queue_overflow"] == 160


@pytest.mark.row("Q-18")
def test_of_tracks_that_go_on_while_a_link_is_cut_the_newest_of_each_comes(
    scene: Any, managed: Callable[..., None], figures: Any
) -> None:
    # Given a link that fails, and a policy that the newest of a track replaces the one before
    managed('rate = "2 Mbps"\n\n[[policy]]\nname = "tracks"\nreplace = "//Area"')
    scene.open()
    scene.publish(b"before")
    assert scene.sequences(1) == [1]
    scene.subscribers_link.down()
    scene.eventually(lambda: not scene.node.status()["sessions"][0]["connected"])
    # When a hundred updates of five tracks come meanwhile
    for number in range(100):
        scene.publish(b"%d" % number, metadata=figures.metadata(Area=f"track {number % 5}"))
    scene.publisher.flush()
    scene.subscribers_link.up()
    # Expect five, each the newest, and the others to be told as replaced
    came = [scene.subscriber.receive(scene.subscription, 30.0).payload for _ in range(5)]
    assert came == [b"95", b"96", b"97", b"98", b"99"]
    assert scene.account()["lost"] == 95
    assert scene.local()["lost"] == {"replaced": 95}
    assert len(scene.subscriber.drain(scene.subscription)) == 0


def test_a_measured_link_that_becomes_a_hundredth_and_comes_back_delivers_all(
    scene: Any, managed: Callable[..., None]
) -> None:
    # Given a link that nobody has told the rate of, of 8 Mbit/s, and 300 KB for it
    managed()
    scene.open("peer")
    link = scene.subscribers_link
    link.shape(bits_per_second=8_000_000)
    scene.publish(*[bytes(2_000)] * 20)
    assert scene.sequences(20)[-1] == 20
    fast = scene.eventually(lambda: _link(scene)["estimate"])
    # When it falls to 64 kbit/s and comes back three seconds later, with objects for it all the time
    link.shape(bits_per_second=64_000)
    scene.publish(*[bytes(2_000)] * 40)
    slow = scene.eventually(lambda: (e := _link(scene)["estimate"]) < fast / 4 and e)
    pending = _link(scene)["pending"]
    link.shape(bits_per_second=8_000_000)
    scene.publish(*[bytes(2_000)] * 60)
    # Expect the estimate to have followed, little to have been under way, and all of it to come, in order, once
    assert scene.sequences(120) == list(range(21, 121))
    assert pending <= 64_000
    scene.eventually(lambda: (_link(scene)["estimate"] or 0) > 2 * slow)
    assert scene.account()["lost"] == 0
    row = _link(scene)
    assert (row["name"], row["pending"], row["destinations"]) == ("narrow", 0, 1)
    assert row["rtt_ms"] > 0
    assert row["tcp_rtt_ms"] > 0


def test_a_subscriber_that_dies_is_off_its_link_with_its_lease(scene: Any, managed: Callable[..., None]) -> None:
    # Given a subscriber with much under way
    managed()
    scene.leases(1.5)
    scene.open("peer")
    scene.subscribers_link.shape(bits_per_second=400_000)
    scene.publish(*[bytes(2_000)] * 200)
    scene.eventually(lambda: _link(scene)["pending"] > 0)
    # When the way to it hangs, without an end of the connection
    scene.subscribers_link.down(silent=True)
    # Expect the link to have nobody and nothing when its lease has run out
    scene.eventually(lambda: (_link(scene)["destinations"], _link(scene)["pending"]) == (0, 0))
    scene.subscribers_link.up()


def test_a_slow_application_leaves_what_is_important_where_it_can_pass(
    scene: Any, managed: Callable[..., None]
) -> None:
    # Given an application that takes nothing, no limit on the link, and five hundred unimportant objects
    managed('rate = "100 Mbps"')
    scene.open("peer")
    scene.publish(*[b"."] * 500)
    scene.eventually(lambda: scene.node.status()["sessions"][0]["in_flight"] == 0)
    held = sum(scene.node.status()["sessions"][0]["queued"].values())
    assert held >= 400
    # When something urgent comes and it begins to take, expect the order of its registration: nothing is lost
    scene.publish(URGENT)
    assert scene.sequences(501) == list(range(1, 502))
    assert scene.account()["delivered"] == 501
