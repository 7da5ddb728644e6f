"""What a delegate holds for its clients, each a process of its own, and what it tells of it: where objects wait, and
what became of each."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from jbi_pubsub import InfoObject, LossNotice
from jbi_pubsub.core.config import ClientSection, PolicySection, QosSection

POLICIES = """
[space]
strategy = "strict"

[[policy]]
name = "chief"
user = "chief"
importance = 5

[[policy]]
name = "clerk"
user = "clerk"
importance = 1

[[policy]]
name = "tracks"
type = "tracks"
deadline = "400 ms"

[[link]]
name = "downlink"
members = "action == 'subscribe'"
rate = "{rate}"
reserve = 0.0
"""

CLIENT = """
import msgspec
from jbi_pubsub import Config, SubscriberAdapter
with SubscriberAdapter(msgspec.json.decode(CONFIG, type=Config)) as adapter:
    subscription = adapter.register_subscriber(type_name="images")
    adapter.wait_matched(subscription)
    print('{}', flush=True)
    while (obj := adapter.receive(subscription, 60.0)) is not None:
        print(len(obj.payload), flush=True)
"""


SHORT = """
[[policy]]
name = "the clerk reads the beginning"
user = "clerk"
type = "images"
shape = "truncate 6"
"""


def begun(start: Callable[..., Any], federation: Any, user: str) -> Any:
    """The process of a client, when it has found the images."""
    config = msgspec.structs.replace(federation.config, client=ClientSection(user=user))
    client = start(script=f"CONFIG = {msgspec.json.encode(config)!r}\n" + CLIENT)
    assert client.fact() == {}
    return client


@pytest.fixture
def managed(federation: Any, tmp_path: Path) -> Callable[[str], Path]:
    """managed(rate): the federation goes by those policies, which are in that file."""

    def made(rate: str) -> Path:
        file = tmp_path / "policy.toml"
        file.write_text(POLICIES.format(rate=rate))
        federation.config = msgspec.structs.replace(
            federation.config, qos=QosSection(mode="on"), policy=PolicySection(file=str(file))
        )
        return file

    return made


@pytest.mark.row("Q-10", "Q-46")
def test_an_object_waits_once_for_each_client_at_that_clients_importance(
    federation: Any, managed: Callable[[str], Path], start: Callable[..., Any], figures: Any,
    eventually: Callable[..., Any],
) -> None:  # fmt: skip
    # Given three clients behind one link, of importance 1, 3 and 5
    file = managed("1 kbps")
    server, publisher = federation.pad(), federation.light()
    delegate = publisher.connect_to_delegate("alpha", "rome")
    images = publisher.register_publisher(delegate, figures.schema, figures.figure_1, type_name="images")
    for user in ("clerk", "pilot", "chief"):
        begun(start, federation, user)
    # When objects come, more than the link takes in many seconds
    publisher.publish(images, figures.figure_1, bytes(300))
    eventually(lambda: server.status()["qos"]["links"][0]["sent"] > 300)
    for _ in range(3):
        publisher.publish(images, figures.figure_1, b"image")
    publisher.flush()
    # Expect them to wait once for each client, and each client for its turn at its own level
    status = eventually(lambda: (told := server.status())["matched"] == 12 and told)
    waiting = {session["name"]: sum(session["queued"].values()) for session in status["sessions"]}
    assert len(waiting) == 3
    assert sum(waiting.values()) >= 8  # but what had its turn meanwhile
    [link] = status["qos"]["links"]
    assert (link["waiting_by_level"], link["destinations"]) == ([1, 0, 1, 0, 1], 3)
    assert sorted(each["qos"]["importance"] for each in status["subscriptions"]) == [1, 3, 5]
    # When the link is there again; Expect the more important client to have all of its own before another has any
    before = link["sent_by_level"]
    file.write_text(POLICIES.format(rate="200 kbps"))
    sent: list[list[int]] = []

    def is_done() -> bool:
        told = server.status()
        now = told["qos"]["links"][0]["sent_by_level"]
        sent.append([after - was for after, was in zip(now, before, strict=True)])
        return bool(told["delivered"] == 12)

    eventually(is_done)
    least, _, usual, _, most = sent[-1]
    assert min(least, usual, most) > 0
    assert all(each[4] == most for each in sent if each[2])
    assert all(each[2] == usual for each in sent if each[0])


@pytest.mark.row("Q-52")
def test_a_preference_of_one_user_changes_what_he_gets_and_nobody_else(
    federation: Any, managed: Callable[[str], Path], start: Callable[..., Any], figures: Any,
    eventually: Callable[..., Any],
) -> None:  # fmt: skip
    # Given two clients that get whole reports
    file = managed("8 Mbps")
    federation.pad()
    publisher = federation.light()
    delegate = publisher.connect_to_delegate("alpha", "rome")
    images = publisher.register_publisher(delegate, figures.schema, figures.figure_1, type_name="images")
    clerk, chief = (begun(start, federation, user) for user in ("clerk", "chief"))

    def size() -> int:
        """Of the next report as the clerk gets it; to the chief it comes whole, whatever happens."""
        publisher.publish(images, figures.figure_1, b"a long report")
        assert int(chief.stdout.readline()) == 13
        return int(clerk.stdout.readline())

    assert size() == 13
    # When the file says that the clerk prefers less, expect him, and nobody else, to get that
    file.write_text(POLICIES.format(rate="8 Mbps") + SHORT)
    eventually(lambda: size() == 6)
    # When it says so no more, expect the same
    file.write_text(POLICIES.format(rate="8 Mbps"))
    eventually(lambda: size() == 13)


class Log:
    """What an application has seen: when each object came, and what it was told as lost."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.came: list[float] = []
        self.lost: dict[str, int] = {}

    def arrived(self, _subscription: str, _obj: InfoObject) -> None:
        with self._lock:
            self.came.append(time.time())

    def losses(self, _subscription: str, notice: LossNotice) -> None:
        with self._lock:
            self.lost[notice.cause.value] = self.lost.get(notice.cause.value, 0) + notice.count


@pytest.mark.row("Q-67", "Q-71")
def test_the_page_of_types_says_what_the_application_has_seen(
    federation: Any, managed: Callable[[str], Path], figures: Any, eventually: Callable[..., Any]
) -> None:
    # Given tracks that are dropped when they are older than 0.4 s, over a link that takes about five a second
    managed("80 kbps")
    server, publisher = federation.pad(), federation.light(name="tracker")
    delegate = publisher.connect_to_delegate("alpha", "rome")
    tracks = publisher.register_publisher(delegate, figures.schema, figures.figure_1, type_name="tracks")
    log = Log()
    listener = type("Listener", (), {"arrived": log.arrived, "lost": log.losses})()
    subscriber = federation.subscriber()
    uid = subscriber.register_subscriber(type_name="tracks", listener=listener)
    assert subscriber.wait_matched(uid) == 1
    # When forty come at once, and more one by one
    for _ in range(40):
        publisher.publish(tracks, figures.figure_1, bytes(500))
    for _ in range(3):
        publisher.publish(tracks, figures.figure_1, bytes(500))
        time.sleep(0.3)
    publisher.flush()
    eventually(lambda: len(log.came) + sum(log.lost.values()) == 43)
    # Expect all to have come or to have been told as too old, some of each
    assert log.lost == {"deadline": 43 - len(log.came)}
    assert 1 <= len(log.came) < 43

    # Expect what pages show of the type to be that: its source, numbers, when the last one came, how many a second
    def page() -> dict[str, Any]:
        one: dict[str, Any] = server.overview()["qos"]["types"][0]
        is_added_up = sum(one.get("rates", ())) >= 0.75 * len(log.came)  # a second after the last one came
        return one if is_added_up and one["received"] + one["dropped"] == 43 else {}

    told = eventually(page)
    assert (told["name"], told["sources"], told["dropped"]) == ("tracks", ["tracker"], log.lost["deadline"])
    assert abs(told["last"] - max(log.came)) < 20.0  # they are added up once a second
    assert 0.0 < told["rate"] <= max(told["rates"])
    assert 0.05 < told["p95"] < 6.0
