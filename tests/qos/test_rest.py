"""What takes long of an object is done when it is its turn: only those wait for it whom it is for, in their order."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from contracts import stand_under

from jbi_pubsub import Config, RegistrationUid
from jbi_pubsub.core.quality import PayloadShape
from jbi_pubsub.pad.ingress.pipeline import RUN_BYTES, Pipeline
from jbi_pubsub.qos.shaping import PICTURE_SECONDS, Shaper
from tests.conftest import eventually
from tests.qos.conftest import Judging
from tests.qos.test_credit import received, subscribed
from tests.qos.test_shaping import picture, sized

Register = Callable[..., RegistrationUid]
Configured = Callable[..., Config]

HALF = (PayloadShape("scale", (0.5,)),)
LARGE = picture((400, 300), quality=95)
"""70 KB: more than 2 ms by what is guessed."""


class Work:
    """What is judged and shaped, in its order."""

    def __init__(self) -> None:
        self.done: list[tuple[str, int]] = []
        """(what, number) of each object."""
        self.bar = threading.Event()
        self.bar.set()
        self.shaping = threading.Event()


@pytest.fixture
def work(monkeypatch: pytest.MonkeyPatch) -> Iterator[Work]:
    """Of all delegates; who shapes a picture waits at the bar, with the baton. A picture always seems to take long."""
    noted = Work()
    judge, shape = Pipeline.judge, Shaper.shape

    def judges(self: Pipeline, registration: Any, run: Any, *rest: Any) -> int:
        noted.done += [("judged", parcel.head.sequence) for parcel in run]
        return judge(self, registration, run, *rest)

    def shapes(self: Shaper, head: Any, wanted: Any, payload: Any, asked: Any) -> bytes | None:
        noted.shaping.set()
        assert noted.bar.wait(60.0)
        noted.done.append(("shaped", head.sequence))
        return shape(self, head, wanted, payload, asked)

    monkeypatch.setattr(Pipeline, "judge", judges)
    monkeypatch.setattr(Shaper, "shape", shapes)
    monkeypatch.setattr(Shaper, "_cost", lambda *_: type("", (), {"learn": lambda *_: None})())
    yield noted
    noted.bar.set()


@pytest.fixture
def delegate(federation: Any, by_type: Configured) -> Any:
    return federation.pad(config=by_type(federation.config, credit=32))


def shaped_for(delegate: Any, federation: Any, type_name: str, importance: int = 1, **options: Any) -> tuple[Any, str]:
    """A subscription that gets pictures at half their size."""
    subscriber, uid = subscribed(federation, type_name, **options)
    stand_under(delegate.delegate, uid, importance=importance, shapes=HALF)
    return subscriber, uid


def test_who_wants_no_shape_does_not_wait_for_one(
    delegate: Any, federation: Any, figures: Any, register: Register, work: Work
) -> None:
    # Given: one who gets a picture as it is, one who gets it small
    publisher = federation.light()
    registration = register(publisher, "normal")
    small, small_uid = shaped_for(delegate, federation, "normal")
    plain, plain_uid = subscribed(federation, "normal", small)
    # When: shaping takes its time
    work.bar.clear()
    publisher.publish(registration, figures.figure_1, LARGE)
    # Expect
    assert received(plain, plain_uid, 1) == [1]
    assert work.shaping.wait(60.0)
    assert publisher.status()["registrations"][registration]["unfinished"] == 1
    assert small.receive(small_uid, 0.0) is None
    work.bar.set()
    assert sized(small.receive(small_uid, 60.0).payload) == (200, 150)
    publisher.flush(60.0)
    assert delegate.status()["qos"]["tasks"]["kinds"]["shape"]["served"] == 1


def test_important_objects_are_judged_before_a_picture_is_shaped_for_who_is_not(
    delegate: Any, federation: Any, figures: Any, register: Register, judging: Judging, work: Work
) -> None:
    # Given: an important registration that has one unimportant subscriber; and the delegate is busy
    publisher, other = federation.light(), federation.light()
    registration, blocker = register(publisher, "important"), register(other, "blocking")
    subscriber, uid = shaped_for(delegate, federation, "important")
    with judging.held():
        other.publish(blocker, figures.figure_1)
        assert judging.waiting.wait(60.0)
        # When
        for _ in range(6):
            publisher.publish(registration, figures.figure_1, LARGE)
        admitted(publisher)
    publisher.flush(60.0)
    # Expect
    assert [each for each in work.done if each[0] == "shaped"] == [("shaped", n) for n in range(1, 7)]
    assert [what for what, _ in work.done[-12:]] == ["judged"] * 6 + ["shaped"] * 6
    assert received(subscriber, uid, 6) == list(range(1, 7))


def test_pictures_and_texts_come_in_their_order(
    delegate: Any, federation: Any, figures: Any, register: Register, work: Work
) -> None:
    # Given: one who has pictures shaped, one who does not, one who blocks
    publisher = federation.light()
    registration = register(publisher, "normal")
    subscriber, uid = shaped_for(delegate, federation, "normal")
    takers = [
        (subscriber, uid),
        shaped_for(delegate, federation, "normal", subscriber=subscriber, policy="block", bound=2),
        subscribed(federation, "normal", subscriber),
    ]
    # When
    for n in range(40):
        publisher.publish(registration, figures.figure_1, LARGE if n % 3 == 0 else b"text")
    # Expect
    for n in range(1, 41):
        assert [received(subscriber, uid, 1) for _, uid in takers] == [[n]] * 3
    assert [subscriber.losses(uid) for _, uid in takers] == [{}] * 3
    publisher.flush(60.0)
    assert publisher.status()["registrations"][registration]["unfinished"] == 0


def test_what_comes_behind_a_picture_stays_there_when_its_subscriber_wants_no_shapes_any_more(
    delegate: Any, federation: Any, figures: Any, register: Register, judging: Judging, work: Work
) -> None:
    # Given: a picture that is being shaped
    publisher = federation.light()
    registration = register(publisher, "normal")
    subscriber, uid = shaped_for(delegate, federation, "normal")
    work.bar.clear()
    publisher.publish(registration, figures.figure_1, LARGE)
    assert work.shaping.wait(60.0)
    publisher.publish(registration, figures.figure_1, LARGE)
    admitted(publisher)
    work.shaping.clear()
    work.bar.set()
    # When: the next one waits to be shaped
    work.bar.clear()
    assert work.shaping.wait(60.0)
    stand_under(delegate.delegate, uid, importance=5)
    for _ in range(3):
        publisher.publish(registration, figures.figure_1, b"text")
    admitted(publisher)
    work.bar.set()
    # Expect
    assert received(subscriber, uid, 5) == [1, 2, 3, 4, 5]


def test_what_is_left_never_takes_the_credit_of_what_is_important(
    delegate: Any, federation: Any, figures: Any, register: Register, judging: Judging, work: Work
) -> None:
    # Given: an important registration with one unimportant subscriber, and others that would never let that one have
    # its turn
    publisher, other = federation.light(), federation.light()
    important, blocker = register(publisher, "important"), register(other, "blocking")
    subscriber, uid = shaped_for(delegate, federation, "important")
    with judging.held():
        other.publish(blocker, figures.figure_1)
        assert judging.waiting.wait(60.0)
        for _ in range(30):
            publisher.publish(important, figures.figure_1, LARGE)
        admitted(publisher)
    publisher.flush(60.0)
    # Expect: no more than a quarter of the credit waits to be shaped at any time, and what is judged in one step
    left = most = 0
    for what, _ in work.done:
        left += (what == "judged") - (what == "shaped")
        most = max(most, left)
    assert received(subscriber, uid, 30) == list(range(1, 31))
    assert 8 <= most <= 8 + RUN_BYTES // len(LARGE) + 1


def test_a_fault_in_shaping_refuses_that_object_and_the_others_go_on(
    delegate: Any, federation: Any, figures: Any, register: Register, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given
    shape = Shaper.shape

    def fails_at_two(self: Shaper, head: Any, *rest: Any) -> bytes | None:
        if head.sequence == 2:
            raise ZeroDivisionError("a fault of ours")
        return shape(self, head, *rest)

    monkeypatch.setattr(Shaper, "shape", fails_at_two)
    monkeypatch.setattr(Shaper, "seconds", lambda *_: 1.0)
    told: list[str] = []
    publisher = federation.light(refused=lambda object_id, _: told.append(object_id))
    registration = register(publisher, "normal")
    subscriber, uid = shaped_for(delegate, federation, "normal")
    # When
    for _ in range(3):
        publisher.publish(registration, figures.figure_1, LARGE)
    publisher.flush(60.0)
    # Expect
    assert received(subscriber, uid, 2) == [1, 3]
    assert [each[-12:] for each in told] == ["000000000002"]


def test_a_subscription_that_is_cancelled_meanwhile_holds_up_nobody(
    delegate: Any, federation: Any, figures: Any, register: Register, work: Work
) -> None:
    # Given
    publisher = federation.light()
    registration = register(publisher, "normal")
    subscriber, uid = shaped_for(delegate, federation, "normal")
    work.bar.clear()
    publisher.publish(registration, figures.figure_1, LARGE)
    publisher.publish(registration, figures.figure_1, b"text")
    assert work.shaping.wait(60.0)
    # When
    subscriber.cancel_subscription(uid)
    work.bar.set()
    # Expect
    publisher.flush(60.0)
    assert publisher.status()["registrations"][registration]["unfinished"] == 0


def test_what_shaping_takes_is_learned_and_what_is_made_takes_nothing() -> None:
    # Given
    shaper = Shaper()
    head: Any = object()
    # Expect
    assert shaper.seconds(head, None, LARGE, HALF) == pytest.approx(PICTURE_SECONDS * len(LARGE))
    assert shaper.seconds(head, None, b"a text", (PayloadShape("truncate", (2,)),)) == 0.0
    assert shaper.seconds(head, None, LARGE, (PayloadShape("drop_payload"),)) == 0.0
    # When
    assert shaper.shape(head, None, LARGE, HALF) is not None
    # Expect: by what it took, in proportion to the bytes
    assert shaper.seconds(head, None, LARGE, HALF) == 0.0
    other: Any = object()
    assert shaper.seconds(other, None, LARGE, HALF) == pytest.approx(shaper._seconds)
    assert shaper.seconds(other, None, LARGE * 2, HALF) == pytest.approx(2 * shaper._seconds)


def admitted(publisher: Any) -> None:
    """All that was published is with the delegate."""
    (connection,) = publisher._connections.values()
    eventually(lambda: connection._sender.unacknowledged == 0 and connection.queue.waiting == 0)
