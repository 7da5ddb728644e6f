"""All of it together, over real processes: policies change and connections break all the time, and every account stays
even."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import pytest

from jbi_pubsub import InfoObject, LossNotice, PublisherAdapterLight, SubscriberAdapter
from jbi_pubsub.core.config import effective
from jbi_pubsub.core.wire import ServiceRef
from jbi_pubsub.core.wire.endpoint import Security
from jbi_pubsub.examples.federation import Federation
from jbi_pubsub.examples.narrow import serve
from jbi_pubsub.examples.targeting import SCHEMA
from jbi_pubsub.network.emulation import Link
from jbi_pubsub.protocol.services import fetch_status

TYPES = ("one", "two", "three", "four")
SECONDS = 8.0
SIZES = (100, 1_000, 9_000, 30_000)
EVERYTHING = '[[policy]]\nname = "everything"\nimportance = 3\n'


def a_policy_file(chance: random.Random) -> str:
    """Another one each time; now and then one that is broken."""
    if chance.random() < 0.1:
        return "[[policy"
    lines = ["[space]", f'strategy = "{chance.choice(["strict", "weighted_fair"])}"']
    for name in TYPES:
        lines += ["[[policy]]", f'name = "{name}"', f'type = "{name}"', f"importance = {chance.randint(1, 5)}"]
        may_be = (
            f'deadline = "{chance.choice(["300 ms", "2 s"])}"',
            f'replace = "{chance.choice(["//track_id", "registration", "type"])}"',
            f'max_rate = "{chance.choice(["10/s", "20 KB/s"])}"',
            'max_size = "12 KB"',
            'shape = "truncate 500"',
            f'queue = "{chance.choice(["drop_least", "drop_oldest", "drop_newest", "block"])}"',
        )
        lines += [line for line in may_be if chance.random() < 0.25]
    lines += ["[[policy]]", 'name = "large"', "when = \"size > '8 KB'\"", "precedence = 1", "importance = 2"]
    if chance.random() < 0.8:
        rate = chance.choice(['rate = "400 kbps"', 'rate = "4 Mbps"', ""])
        lines += ["[[link]]", 'name = "link"', "members = \"action == 'subscribe'\"", rate]
    return "\n".join(lines)


class Listener:
    """Notes what comes and what is told as lost."""

    def __init__(self) -> None:
        self.came: dict[str, list[tuple[str, int]]] = defaultdict(list)
        self.told: dict[str, Counter[str]] = defaultdict(Counter)

    def arrived(self, subscription: str, obj: InfoObject) -> None:
        self.came[subscription].append((obj.platform.registration, obj.platform.sequence))

    def lost(self, subscription: str, notice: LossNotice) -> None:
        self.told[subscription][notice.cause.value] += notice.count


def publish(publisher: PublisherAdapterLight, uid: str, sent: Counter[str], ended: threading.Event, seed: int) -> None:
    chance = random.Random(seed)
    while not ended.wait(chance.choice((0.002, 0.01, 0.03))):
        metadata = f"<metadata><source>s</source><track_id>{chance.randint(1, 5)}</track_id></metadata>"
        publisher.publish(uid, metadata, b"x" * chance.choice(SIZES))
        sent[uid] += 1


def status_of(address: str) -> dict[str, Any]:
    return fetch_status(ServiceRef("", "status", (address,), ()), Security(), timeout=60.0)


@pytest.mark.processes
@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
def test_accounts_are_even_whatever_policies_and_links_do(seed: int, tmp_path: Path) -> None:
    # Given two publishers of four types, a subscriber to each type, and policies that change all the time; the
    # subscriber and one of the publishers are behind a link whose connections break now and then
    chance, file, ended = random.Random(seed), tmp_path / "policy.toml", threading.Event()
    file.write_text(EVERYTHING)
    listener, sent = Listener(), Counter[str]()
    with Federation(effective()) as here, Link("127.0.0.2", seed=seed) as link:
        address, config = serve(here, file), here.config
        behind = link.behind(config, address)
        with (
            SubscriberAdapter(behind) as subscriber,
            PublisherAdapterLight(config) as one,
            PublisherAdapterLight(behind) as other,
        ):
            mine = [
                subscriber.register_subscriber(type_name=name, listener=listener, bound=chance.choice([50, 10_000]))
                for name in TYPES
            ]
            work = []
            for publisher in (one, other):
                delegate = publisher.connect_to_delegate("narrow", "here")
                for name in TYPES:
                    metadata = "<metadata><source>s</source></metadata>"
                    work.append((publisher, publisher.register_publisher(delegate, SCHEMA, metadata, type_name=name)))
            assert all(publisher.wait_for_subscribers(uid, 1, 20.0) for publisher, uid in work)
            threads = [
                threading.Thread(target=publish, args=(*each, sent, ended, number), name=f"publish-{number}")
                for number, each in enumerate(work)
            ]
            # When
            for thread in threads:
                thread.start()
            end = time.monotonic() + SECONDS
            while time.monotonic() < end:
                time.sleep(chance.choice((0.2, 0.7, 1.5)))
                file.write_text(a_policy_file(chance))
                if chance.random() < 0.5:
                    link.cut()
            file.write_text(EVERYTHING)
            ended.set()
            for thread in threads:
                thread.join(60.0)
            one.flush(30.0)
            other.flush(30.0)
            # Expect all to be received or told as lost, in the order of its registration, once
            accounts = drained(address, mine, listener)
    assert accounts.pop("published") == sum(sent.values())
    for uid in mine:
        account, came, told = accounts[uid], listener.came[uid], dict(listener.told[uid])
        assert account["lost"] == told
        assert account["matched"] == account["delivered"] + sum(told.values()) == len(came) + sum(told.values())
        numbers: dict[str, int] = {}
        for registration, number in came:
            assert number > numbers.get(registration, 0)
            numbers[registration] = number
    assert len({cause for told in listener.told.values() for cause in told}) >= 3


def drained(address: str, mine: list[str], listener: Listener) -> dict[str, Any]:
    """The delegate's account when nothing waits any more, and all losses have been told."""
    deadline = time.monotonic() + 120.0
    while True:
        status = status_of(address)
        rows = {row["uid"]: row for row in status["subscriptions"]}
        waiting = sum(sum(each["queued"].values()) + each["in_flight"] for each in status["sessions"])
        told = {uid: dict(listener.told[uid]) for uid in mine}
        if not waiting and all(rows[uid]["lost"] == told[uid] for uid in mine):
            return {"published": status["published"], **rows}
        assert time.monotonic() < deadline, (waiting, status["qos"], told)
        time.sleep(0.2)
