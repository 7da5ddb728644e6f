"""Calls that are interrupted, as by Ctrl-C or a signal's handler that raises, lose nothing and leave nothing over."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from jbi_pubsub import PublisherAdapter, PublisherAdapterLight, SubscriberAdapter
from jbi_pubsub.core.config import LeaseSection
from jbi_pubsub.core.errors import AdapterStateError, TypeConflictError
from jbi_pubsub.core.wire.sender import Sender
from jbi_pubsub.pad.server.server import DisseminationServer
from jbi_pubsub.publisher import lanes, registrations
from jbi_pubsub.publisher.connection import DelegateConnection
from jbi_pubsub.publisher.lanes import Lanes, LaneTurns
from jbi_pubsub.publisher.registrations import DelegateAttachment, RemoteRegistrations
from jbi_pubsub.subscriber.listeners import ListenerPool
from tests.conftest import Federation

SCHEMA = """<xs:schema xmlns:xs="http://www.w3.org/2001/XMLSchema">
<xs:element name="t"><xs:complexType><xs:sequence><xs:element name="k" type="xs:string"/><!-- variant -->
<xs:element name="{}" type="xs:string"/></xs:sequence>
</xs:complexType></xs:element></xs:schema>"""


@pytest.fixture
def interrupting(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Has the next call of a method end with KeyboardInterrupt, before it has done anything or after it has."""

    def interrupt(kind: type, method: str, *, after: bool = False) -> None:
        usual = inspect.getattr_static(kind, method)

        def made(*given: Any, **named: Any) -> Any:
            monkeypatch.setattr(kind, method, usual)
            if after:
                usual(*given, **named)
            raise KeyboardInterrupt

        monkeypatch.setattr(kind, method, made)

    return interrupt


def test_what_is_published_after_an_interrupted_call_comes_without_a_gap(
    federation: Federation, interrupting: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given a delegate that has gone, and one object that waits for it
    federation.lookup()
    first = federation.pad()
    subscriber, light = federation.subscriber(), federation.light()
    uid = subscriber.register_subscriber(type_name="t")
    registration = light.register_publisher(light.connect_to_delegate("alpha"), type_name="t", validate=False)
    first.stop(0.5)
    light.publish(registration, b"<n>1</n>")
    # When a call that waits for room is interrupted, and then one that has queued its object
    with monkeypatch.context() as patch:
        patch.setattr(lanes, "QUEUE_ITEMS", 1)
        patch.setattr(light._publication(registration)[1].queue._changed, "wait", _interrupted)
        with pytest.raises(KeyboardInterrupt):
            light.publish(registration, b"<n>never</n>", timeout=60.0)
    interrupting(Sender, "push")
    with pytest.raises(KeyboardInterrupt):
        light.publish(registration, b"<n>2</n>")
    # Expect a delegate that takes over to get what was queued, and what comes, numbered without a gap
    federation.pad()
    light.publish(registration, b"<n>3</n>")
    received = [subscriber.receive(uid) for _ in range(3)]
    assert [each and (each.platform.sequence, each.metadata) for each in received] == [
        (n, b"<n>%d</n>" % n) for n in (1, 2, 3)
    ]
    assert subscriber.losses(uid) == {}


def _interrupted(*_: object) -> None:
    raise KeyboardInterrupt


def test_an_interrupt_while_an_object_is_queued_stops_nothing(
    federation: Federation, interrupting: Callable[..., None]
) -> None:
    federation.lookup()
    federation.pad()
    subscriber, light = federation.subscriber(), federation.light()
    uid = subscriber.register_subscriber(type_name="t")
    registration = light.register_publisher(light.connect_to_delegate("alpha"), type_name="t", validate=False)
    # When a call is interrupted where its object waits, and has no turn yet
    interrupting(LaneTurns, "admit")
    with pytest.raises(KeyboardInterrupt):
        light.publish(registration, b"<n>1</n>")
    # Expect it to go, and what comes
    light.publish(registration, b"<n>2</n>")
    received = [subscriber.receive(uid) for _ in range(2)]
    assert [each and each.metadata for each in received] == [b"<n>1</n>", b"<n>2</n>"]
    light.flush()
    assert light.status()["registrations"][registration]["unfinished"] == 0


@pytest.mark.parametrize("method", ["register", "_register"])
def test_an_interrupted_registration_is_none(
    method: str,
    federation: Federation,
    interrupting: Callable[..., None],
    eventually: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Given a publisher that renews its lease often
    monkeypatch.setattr(registrations, "ABANDONED_SECONDS", 0.0)
    federation.lookup()
    federation.config = msgspec.structs.replace(federation.config, lease=LeaseSection(publisher=0.5))
    pad, light = federation.pad(), federation.light()
    delegate = light.connect_to_delegate("alpha")
    # When a registration is interrupted after the delegate has taken it
    interrupting(DelegateAttachment if method == "register" else RemoteRegistrations, method, after=True)
    with pytest.raises(KeyboardInterrupt):
        light.register_publisher(delegate, SCHEMA.format("a"), "<t><k>1</k><a>x</a></t>")

    def is_corrected() -> bool:
        try:
            light.register_publisher(delegate, SCHEMA.format("b"), "<t><k>1</k><b>x</b></t>")
        except TypeConflictError:  # it is given up in the background
            return False
        return True

    # Expect it to be taken back there, and a corrected schema of the type to be taken
    eventually(is_corrected)
    assert len(light.status()["registrations"]) == len(pad.status().registrations) == 1


def test_an_interrupted_connection_is_none(
    federation: Federation, interrupting: Callable[..., None], eventually: Callable[..., Any]
) -> None:
    federation.lookup()
    pad, light = federation.pad(), federation.light()
    for kind, method, after in ((RemoteRegistrations, "move", True), (DelegateConnection, "open", True)):
        # When
        interrupting(kind, method, after=after)
        with pytest.raises(KeyboardInterrupt):
            light.connect_to_delegate("alpha")
        # Expect the delegate to have nobody, and (the fixture) no thread to be left
        eventually(lambda: not pad.status().publishers)
        assert not light.status()["delegates"]


def test_a_connection_that_comes_about_while_the_adapter_closes_is_none(
    federation: Federation, eventually: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    federation.lookup()
    pad, light = federation.pad(), federation.light()
    usual = DelegateConnection.open
    monkeypatch.setattr(DelegateConnection, "open", lambda self, timeout: (usual(self, timeout), light.close()))
    with pytest.raises(AdapterStateError):
        light.connect_to_delegate("alpha")
    eventually(lambda: not pad.status().publishers)


def test_an_interrupted_close_is_gone_on_with(federation: Federation, interrupting: Callable[..., None]) -> None:
    # Given a subscriber and publishers of both kinds
    federation.lookup()
    pad = federation.pad()
    subscriber = SubscriberAdapter(federation.config, name="watch")
    light, peer = PublisherAdapterLight(federation.config), PublisherAdapter(federation.config)
    uid = subscriber.register_subscriber(type_name="t")
    registration = light.register_publisher(light.connect_to_delegate("alpha"), type_name="t", validate=False)
    light.publish(registration, b"<a/>")
    # When the close of each is interrupted, and called again
    for adapter, kind, method in (
        (light, Lanes, "wait_taken"),
        (peer, DisseminationServer, "stop"),
        (subscriber, ListenerPool, "stop"),
    ):
        interrupting(kind, method)
        with pytest.raises(KeyboardInterrupt):
            adapter.close()
        if adapter is light:
            assert subscriber.receive(uid) is not None
        with pytest.raises(AdapterStateError):
            adapter.flush() if adapter is not subscriber else subscriber.receive(uid)
        adapter.close()
    # Expect all to have left (the fixture: with their threads), and the subscriber's name to be free
    status = pad.status()
    assert (status.publishers, status.subscriptions) == ([], [])
    SubscriberAdapter(federation.config, name="watch").close()
