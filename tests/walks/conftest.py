"""The two walks, ready to be walked: one publisher, the subscriber of this process, and what both need around them."""

from __future__ import annotations

import contextlib
import gc
import itertools
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest

from jbi_pubsub import InfoObject, LossNotice, RegistrationUid, SubscriberAdapter, SubscriptionUid
from jbi_pubsub.core.errors import UnknownUidError
from jbi_pubsub.examples.mailbox import AnyPort

KABUL = (
    "*[(/metadata/ImageDescriptor/LocationCoord/lat>33.2) and (/metadata/ImageDescriptor/LocationCoord/lat<35.0) and "
    "(/metadata/ImageDescriptor/LocationCoord/latord='N') and (/metadata/ImageDescriptor/LocationCoord/long>65.7) and "
    "(/metadata/ImageDescriptor/LocationCoord/long<70.0) and (/metadata/ImageDescriptor/LocationCoord/longord='E')]"
)
FIGURE_4_FILTER = (
    "//descriptor[(((./position/lat>'33.2') and (./position/lat<'35.0')) and (./position/ladir='N')) and "
    "(((./position/long<'70.0') and (./position/long>'67.8')) and (./position/lodir='E'))]"
)
SELECTION = "{urn:jbi-pubsub:selection:1}selection"
MARKER = b"-- the marker: not XML, so that no filter changes it --"


@pytest.fixture
def kabul() -> str:
    """The predicate of section 2.3.2, verbatim."""
    return KABUL


@pytest.fixture
def figure_4_filter() -> str:
    """The filter of section 2.3.2, verbatim."""
    return FIGURE_4_FILTER


@pytest.fixture
def selection() -> str:
    """Qualified name of the element that wraps what a filter has selected."""
    return SELECTION


class Listener:
    """A listener that notes what it is told; `gate` holds it up, `fail` makes it raise."""

    def __init__(self) -> None:
        self.objects: list[InfoObject] = []
        self.notices: list[LossNotice] = []
        self.subscriptions: set[SubscriptionUid] = set()
        self.threads: set[int] = set()
        self.gate = threading.Event()
        self.gate.set()
        self.fail = False

    def arrived(self, subscription: SubscriptionUid, obj: InfoObject) -> None:
        self.gate.wait(60.0)
        self.subscriptions.add(subscription)
        self.threads.add(threading.get_ident())
        self.objects.append(obj)
        if self.fail:
            raise ValueError("a bug in the application")

    def lost(self, subscription: SubscriptionUid, notice: LossNotice) -> None:
        self.subscriptions.add(subscription)
        self.notices.append(notice)

    @property
    def lost_count(self) -> int:
        return sum(notice.count for notice in self.notices)


@pytest.fixture
def listener() -> Iterator[Listener]:
    made = Listener()
    yield made
    made.gate.set()


class Walk:
    """One registration with figure 1's invariants at a delegate or a peer publisher, and the subscriber."""

    def __init__(self, publishing: Any, federation: Any, figures: Any) -> None:
        self.publishing = publishing
        self.federation = federation
        self.figures = figures
        self.kind: str = publishing.kind
        self._subscriber: SubscriberAdapter | None = None
        self.registrations: list[RegistrationUid] = []
        self._markers = itertools.count(1)

    @property
    def subscriber(self) -> SubscriberAdapter:
        if self._subscriber is None:
            self._subscriber = SubscriberAdapter(self.federation.config)
            self.federation.stack.callback(self._subscriber.close)
        return self._subscriber

    @property
    def registration(self) -> RegistrationUid:
        if not self.registrations:
            self.register()
        return self.registrations[0]

    def register(self, invariants: bytes | None = None, schema: Any = None, **options: Any) -> RegistrationUid:
        """Register; the first one is what `publish` publishes with."""
        made = self.publishing.register(invariants or self.figures.figure_1, schema or self.figures.schema, **options)
        self.registrations.append(made)
        return made  # type: ignore[no-any-return]

    def subscribe(self, template: Any = None, *, matched: int = 1, **options: Any) -> SubscriptionUid:
        """Subscribe with figure 3, and wait until the dissemination node has the subscription."""
        self.registration  # noqa: B018  # registers at first use
        uid = self.subscriber.register_subscriber(
            template or self.figures.figure_3, schema=options.pop("schema", self.figures.schema), **options
        )
        if matched:
            assert self.subscriber.wait_matched(uid, matched) == matched
        return uid

    def publish(self, metadata: Any = None, payload: Any = None) -> str:
        """Publish with the first registration."""
        return self.publishing.publish(
            self.registration, self.figures.figure_1 if metadata is None else metadata, payload
        )  # type: ignore[no-any-return]

    def received(self, uid: SubscriptionUid, marker: bytes | None = None) -> list[InfoObject]:
        """What has come: publishes a marker (figure 1), and takes all that comes before it."""
        word = MARKER + b" %d" % next(self._markers)
        self.publish(marker, word)
        found: list[InfoObject] = []
        while (obj := self.subscriber.receive(uid, timeout=60.0)) is not None:
            if obj.payload == word:
                return found
            if not obj.payload.startswith(MARKER):
                found.append(obj)
        pytest.fail(f"the marker did not come, but {len(found)} objects")

    def payloads(self, uid: SubscriptionUid) -> list[bytes]:
        """The payloads of what has come."""
        return [obj.payload for obj in self.received(uid)]

    def record(self, uid: SubscriptionUid) -> dict[str, Any] | None:
        """The subscription's record at the dissemination node."""
        return next((s for s in self.publishing.status()["subscriptions"] if s["uid"] == uid), None)

    def counter(self, name: str, registration: RegistrationUid | None = None) -> int:
        """A counter of one registration at the dissemination node."""
        uid = registration or self.registration
        return next(r[name] for r in self.publishing.status()["registrations"] if r["uid"] == uid)  # type: ignore[no-any-return]

    def leave(self) -> None:
        """Take back what this walk has registered."""
        if self._subscriber is not None:
            self._subscriber.close()
        for registration in self.registrations:
            with contextlib.suppress(UnknownUidError):
                self.publishing.adapter.unregister_publisher(registration)


@pytest.fixture(scope="session", params=["delegate", "peer"])
def house(request: pytest.FixtureRequest, fixtures: Any) -> Iterator[tuple[Any, Any]]:
    """A federation and a publisher of either kind, for all walks that leave them as they were."""
    with contextlib.ExitStack() as stack:
        federation = fixtures.Federation(fixtures.test_config(), stack)
        yield fixtures.Publishing(federation, request.param), federation


@pytest.fixture
def walk(house: tuple[Any, Any], figures: Any) -> Iterator[Walk]:
    """The same test over a delegate and over a peer publisher, which serve other tests, too."""
    made = Walk(*house, figures)
    yield made
    made.leave()


@pytest.fixture
def own_walk(publishing: Any, federation: Any, figures: Any) -> Walk:
    """The same test over a delegate and over a peer publisher, which nobody else uses."""
    return Walk(publishing, federation, figures)


@pytest.fixture
def bytes_from() -> Callable[[str], int]:
    """bytes_from(address): how many bytes this process has received on its connections to that server."""

    def count(address: str) -> int:
        received = 0
        for sock in [o for o in gc.get_objects() if isinstance(o, socket.socket) and o.family == socket.AF_INET]:
            try:
                host, port = sock.getpeername()[:2]
                info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 232)
            except OSError:
                continue
            if f"{host}:{port}" == address:
                received += struct.unpack_from("Q", info, 128)[0]  # tcpi_bytes_received
        return received

    return count


@pytest.fixture
def other_schema(figures: Any) -> Callable[[str, str], bytes]:
    """other_schema(old, new): the schema of the figures with other text in one place."""

    def make(old: str, new: str) -> bytes:
        text: str = figures.schema.read_text()
        assert old in text
        return text.replace(old, new).encode()

    return make


class Postbox:
    """A mail server that keeps what it gets."""

    def __init__(self) -> None:
        self.envelopes: list[Any] = []

    async def handle_DATA(self, server: Any, session: Any, envelope: Any) -> str:  # noqa: ARG002, N802  # aiosmtpd's
        self.envelopes.append(envelope)
        return "250 OK"


@pytest.fixture
def postbox(federation: Any) -> Iterator[Postbox]:
    """A mail server on loopback that the federation's dissemination nodes hand their mail to."""
    box = Postbox()
    controller = AnyPort(box, hostname="127.0.0.1", port=0)
    controller.start()
    mail = msgspec.structs.replace(federation.config.mail, host="127.0.0.1", port=controller.port)
    federation.config = msgspec.structs.replace(federation.config, mail=mail)
    yield box
    controller.stop()


@pytest.fixture
def process_settings(federation: Any, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Tell processes of the federation's lookup services, and of `lease_publisher="1"` and the like."""

    def tell(**settings: str) -> None:
        locators = ",".join(lookup.address for lookup in federation.lookups)
        always = {"lookup_locators": locators, "lookup_multicast": "false", "lookup_probe": "0.3"}
        for name, value in (always | settings).items():
            monkeypatch.setenv(f"JBI_{name.upper()}", value)
        monkeypatch.setenv("PYTHONUNBUFFERED", "1")

    return tell
