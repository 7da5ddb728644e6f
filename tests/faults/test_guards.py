"""A fault that nobody expected, in any loop of a delegate, publisher or subscriber: counted, and the loop goes on."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from jbi_pubsub.core.guard import faults
from jbi_pubsub.lookup.item import ServiceTemplate
from jbi_pubsub.pad.delegate.delegate import Delegate
from jbi_pubsub.pad.matching.dissemination import Judgement
from jbi_pubsub.pad.matching.recent import RecentBuffers
from jbi_pubsub.pad.server.presence import DelegatePresence
from jbi_pubsub.publisher.connection import DelegateConnection
from jbi_pubsub.subscriber.connection import DeliveryConnection
from jbi_pubsub.subscriber.deliveries import DeliveryReader
from jbi_pubsub.subscriber.queue import ObjectQueue
from jbi_pubsub.subscriber.session import DelegateSession


class UnexpectedError(Exception):
    """What no code expects."""


class Listener:
    """Keeps the numbers of what arrives."""

    def __init__(self, got: list[int]) -> None:
        self._got = got

    def arrived(self, _uid: str, obj: Any) -> None:
        self._got.append(obj.platform.sequence)

    def lost(self, _uid: str, _notice: Any) -> None: ...


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> Callable[[type, str, str], Callable[[], bool]]:
    """failing(cls, method, where): calls of the method fail until that shows under `where`; whether it does. (Servers
    that other tests have left standing have such loops, too.)"""

    def inject(cls: type, method: str, where: str) -> Callable[[], bool]:
        before = faults().get(where, 0)
        proper = getattr(cls, method)

        def shows() -> bool:
            return faults().get(where, 0) > before

        def fails(*args: Any, **options: Any) -> Any:
            if not shows():
                raise UnexpectedError(method)
            return proper(*args, **options)

        monkeypatch.setattr(cls, method, fails)
        return shows

    return inject


def test_a_fault_while_others_of_a_name_are_looked_for_is_counted(
    failing: Callable[[type, str, str], Callable[[], bool]], federation: Any, eventually: Callable[..., Any]
) -> None:
    # Given a fault in what a new delegate looks for besides, when it starts, expect the fault to be counted
    shows = failing(DelegatePresence, "_tell_namesakes", "pad-alpha-rome namesakes")
    federation.pad()
    eventually(shows)


def test_a_delegate_that_has_stopped_looks_for_no_others_of_its_name(
    federation: Any, eventually: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given a delegate that asks another one of its name, which does not answer until all else has stopped
    asked, answered = threading.Event(), threading.Event()

    def fetch(*_: Any, **__: Any) -> None:
        asked.set()
        answered.wait(60.0)

    monkeypatch.setattr("jbi_pubsub.pad.server.presence.fetch_status", fetch)
    first = federation.pad()
    eventually(lambda: first.community.lookup(ServiceTemplate(first.server_id)))
    second = federation.pad()
    assert asked.wait(60.0)
    asking = second.service.presence._namesakes
    stop = second.endpoints.first.stop

    def stop_and_answer() -> None:
        stop()
        threading.Timer(0.2, answered.set).start()

    monkeypatch.setattr(second.endpoints.first, "stop", stop_and_answer)
    # When it stops, expect nothing of it to go on
    second.stop(0.5)
    assert not asking.is_alive()


@pytest.mark.parametrize(
    ("cls", "method", "where"),
    [
        (Delegate, "expire", "pad-alpha-rome reaper"),
        (Judgement, "check", "judging an object"),
        (RecentBuffers, "look", "catching up of subscriptions"),
        (DelegateSession, "_reconcile", "subscriber session"),
        (DeliveryConnection, "_receive", "delivery connection"),
        (DeliveryReader, "take_batch", "stream of a receiver"),
        (DelegateConnection, "_send_on_a_line", "publisher connection"),
        (ObjectQueue, "serve", "listener"),
    ],
    ids=lambda value: value if isinstance(value, str) and value.isidentifier() else "",
)
def test_a_fault_in_a_loop_is_counted_and_the_loop_goes_on(
    cls: type,
    method: str,
    where: str,
    failing: Callable[[type, str, str], Callable[[], bool]],
    federation: Any,
    figures: Any,
    eventually: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Given a delegate, and a fault that waits in one loop; every late joiner catches up, though there be nothing
    monkeypatch.setattr(RecentBuffers, "owes", lambda *_: True)
    shows = failing(cls, method, where)
    pad = federation.pad()
    publisher, subscriber = federation.light(), federation.subscriber()
    got: list[int] = []
    subscriber.register_subscriber(type_name="mil.af.rl.jbi.Intel_Imagery", listener=Listener(got))
    registration = figures.register(publisher)
    # When objects are published until the loop has met its fault
    count = 0

    def publish() -> bool:
        nonlocal count
        publisher.publish(registration, figures.figure_1)
        count += 1
        return shows()

    eventually(publish)
    publisher.publish(registration, figures.figure_1)
    # Expect that what is published comes all the same, and that the fault shows
    eventually(lambda: got and got[-1] == count + 1, what=lambda: (count, got))
    assert pad.status()["faults"][where] == faults()[where]
