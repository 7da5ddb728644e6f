"""Links of the paper's section 3.1: thousands of bits a second."""

from __future__ import annotations

import time
from typing import Any

import pytest

AIRBORNE = 7_200
"""Bits a second of the paper's slowest link."""

RELEVANT = "//descriptor[./type='A10A']"


def tasking_order(size: int, *, relevant: float) -> bytes:
    """An ATO of about so many bytes: targets as in figure 4, a part of them of the relevant kind."""
    target = (
        "<descriptor><name>T%05d</name><type>%s</type><position><lat>34.817</lat><ladir>N</ladir>"
        "<long>67.817</long><lodir>E</lodir></position></descriptor>"
    )
    count = size // len(target % (0, "A10A"))
    every = round(1 / relevant)
    targets = (target % (n, "A10A" if n % every == 0 else "F15E") for n in range(count))
    return f"<targets>{''.join(targets)}</targets>".encode()


@pytest.mark.row("J-94")
def test_a_filtered_tasking_order_reaches_an_aircraft_over_7200_bits_a_second(scene: Any) -> None:
    # Given an aircraft that wants one percent of the air tasking order, behind a link of 7,200 bit/s, and a ground
    # node with default leases. All is two fifths of the paper's (500 KB in 10 s), so that the test is short
    scene.set("lookup", probe=5.0)
    scene.set("lease", subscriber=60.0, lookup=60.0)
    scene.open("peer", payload_filter=RELEVANT)
    order = tasking_order(200_000, relevant=0.01)
    link = scene.subscribers_link
    link.shape(bits_per_second=AIRBORNE)
    before = link.passed["down"]

    # When the order is published
    scene.publish(order)
    [obj] = scene.receive(1, timeout=60.0)

    # Expect the relevant targets, all of them and nothing else
    assert obj.payload.count(b"<descriptor>") == obj.payload.count(b"<type>A10A</type>") == order.count(b"A10A")

    # Expect that the link carried one percent of the order and the metadata, for which it needs two fifths of the 10 s
    # (its own seconds: those of the clock also tell how busy the machine is), where the order takes minutes
    carried = link.passed["down"] - before
    assert carried <= len(order) / 100 + len(obj.metadata) + 1_000
    assert carried * 8 / AIRBORNE <= 4.0
    assert len(order) * 8 / AIRBORNE > 200
    assert scene.account()["delivered"] == 1


def test_the_slow_link_really_is_slow(scene: Any) -> None:
    # Given a link of four times that
    scene.set("lease", subscriber=60.0, lookup=60.0)
    scene.open("peer")
    scene.subscribers_link.shape(bits_per_second=4 * AIRBORNE)

    # When 2,000 bytes are published that no filter cuts
    began = time.monotonic()
    scene.publish(bytes(1_000), bytes(1_000))

    # Expect that they, with the metadata, take the time that the link needs for them, at least
    came = scene.receive(2)
    size = sum(len(obj.metadata) + len(obj.payload) for obj in came)
    assert time.monotonic() - began >= size * 8 / (4 * AIRBORNE)


def test_a_large_object_on_a_slow_link_does_not_cost_the_lease(scene: Any) -> None:
    # Given a subscriber under a lease of a second, behind 28,800 bit/s
    scene.set("lease", subscriber=1.0)
    scene.open("peer")
    scene.subscribers_link.shape(bits_per_second=28_800)
    before = [session["session"] for session in scene.node.status()["sessions"]]

    # When an object comes that needs more than two leases for its way
    began = time.monotonic()
    scene.publish(bytes(8_000), b"after")

    # Expect that it arrives, and what is behind it, in the same session: renewals find their way beside it
    assert scene.sequences(2) == [1, 2]
    assert time.monotonic() - began > 2.0
    assert [session["session"] for session in scene.node.status()["sessions"]] == before
    assert scene.local()["lost"] == {}
    assert scene.account()["delivered"] == 2


def test_a_slow_link_loses_by_its_own_policy_and_each_loss_is_counted_and_told(scene: Any) -> None:
    # Given a subscriber with room for 5 objects behind a slow link
    scene.open("peer", bound=5, policy="drop_oldest")
    scene.subscribers_link.shape(bits_per_second=57_600)

    # When 60 objects of 500 bytes are published at once
    scene.publish(*[b"%03d" % n + bytes(497) for n in range(60)])

    # Expect the last, each at most once and in order, and the others told as lost
    came = scene.sequences(60)
    assert came == sorted(set(came))
    assert len(came) < 60
    scene.eventually(lambda: len(came) + sum(scene.local()["lost"].values()) == 60, what=scene.local())
    account = scene.account()
    assert account["delivered"] == len(came)
    assert scene.node.status()["lost"] == {"queue_overflow": 60 - len(came)}


@pytest.mark.parametrize("compression", ["none", "deflate"])
def test_metadata_that_repeats_costs_a_compressed_link_a_third(compression: str, scene: Any) -> None:
    # Given a subscriber and a publisher behind links of their own that ask for compression, or not
    scene.set("link", compression=compression)
    scene.leases(60.0)
    scene.open()
    links = {scene.subscribers_link: "down", scene.publishers_link: "up"}
    before = {link: link.passed[way] for link, way in links.items()}

    # When 40 objects are published, one after the other, each with figure 1
    for n in range(1, 41):
        scene.publish(b"%d" % n)
        assert scene.sequences(n) == [n]

    # Expect that each link has carried less than a third of it, or all
    metadata = 40 * len(scene._figures.figure_1)
    for link, way in links.items():
        carried = link.passed[way] - before[link]
        assert carried > 1_000  # nothing goes past the link
        assert (carried < metadata / 3) == (compression == "deflate")

    # Expect both ends to say so
    [session] = scene.node.status()["sessions"]
    [delegate] = scene.publisher.status()["delegates"].values()
    for said in (session, delegate):
        assert said["compression"] == compression
        assert (said["ratio"] > 3) == (compression == "deflate")
