"""Bad links: parties behind emulated links, and what is needed to see who survives them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest

from jbi_pubsub import Config, InfoObject, SubscriberAdapter
from jbi_pubsub.core.config import LeaseSection
from jbi_pubsub.network.emulation import Link


@pytest.fixture
def new_link(worker_id: str) -> Iterator[Callable[..., Link]]:
    """new_link("127.0.0.2", seed=7) is a link there; closed at the end. Tests that run beside this one have another
    network: a port that a server has given back here may be one of theirs by now."""
    links: list[Link] = []
    network = "".join(filter(str.isdigit, worker_id)) or "0"

    def make(host: str, *, seed: int = 0) -> Link:
        links.append(Link(host.replace("127.0.0.", f"127.0.{network}."), seed=seed))
        return links[-1]

    yield make
    for link in links:
        link.close()


class Scene:
    """A publisher and a subscriber, each behind a link of its own, and a dissemination node that is behind none.

    `kind` delegate: publisher -> delegate -> subscriber. Peer: the publisher is the node itself.
    """

    def __init__(self, federation: Any, figures: Any, fixtures: Any, new_link: Callable[..., Link]) -> None:
        self._federation = federation
        self._figures = figures
        self.eventually: Callable[..., Any] = fixtures.eventually
        self.subscribers_link = new_link("127.0.0.2")
        self.publishers_link = new_link("127.0.0.3")
        self.published = 0
        self.node: Any = None
        self.publisher: Any = None
        self.subscriber: SubscriberAdapter | None = None
        self.subscription: Any = None
        self.leases(30.0)

    @property
    def config(self) -> Config:
        config: Config = self._federation.config
        return config

    def set(self, section: str, **changes: Any) -> None:
        """Other settings for whoever is opened from now on."""
        old = getattr(self.config, section)
        self._federation.config = msgspec.structs.replace(
            self.config, **{section: msgspec.structs.replace(old, **changes)}
        )

    def leases(self, seconds: float) -> None:
        """All leases from now on; 30 s before, which nothing but an outage outlasts."""
        self._federation.config = msgspec.structs.replace(
            self.config, lease=LeaseSection(publisher=seconds, subscriber=seconds, lookup=seconds)
        )

    def open_publisher(self, kind: str = "delegate") -> None:
        """A node and its publisher, registered with figure 1."""
        if kind == "peer":
            self.node = self.publisher = self._federation.peer()
            self.registration = self.publisher.register_publisher(self._figures.schema, self._figures.figure_1)
            return
        self.node = self._federation.pad()
        self.publisher = self._federation.light(self.publishers_link.behind(self.config, self.node.address))
        at = self.publisher.connect_to_delegate("alpha", "rome")
        self.registration = self.publisher.register_publisher(at, self._figures.schema, self._figures.figure_1)

    def open_subscriber(self, **options: Any) -> None:
        """The subscriber of this process, registered at the node."""
        address = self.node.status()["address"]
        config = self.subscribers_link.behind(self.config, address)
        self.subscriber = self._federation.subscriber(config)
        assert self.subscriber is not None
        self.subscription = self.subscriber.register_subscriber(type_name="mil.af.rl.jbi.Intel_Imagery", **options)
        assert self.subscriber.wait_matched(self.subscription) == 1

    def open(self, kind: str = "delegate", **options: Any) -> None:
        """Everybody."""
        self.open_publisher(kind)
        self.open_subscriber(**options)

    def publish(self, *payloads: bytes, metadata: bytes = b"") -> None:
        """Publish figure 1 with each payload."""
        for payload in payloads:
            self.publisher.publish(self.registration, metadata or self._figures.figure_1, payload)
            self.published += 1

    def receive(self, until: int, timeout: float = 60.0) -> list[InfoObject]:
        """All that comes up to and with the object of that sequence number."""
        assert self.subscriber is not None
        found: list[InfoObject] = []
        for obj in self.subscriber.objects(self.subscription, timeout):
            found.append(obj)
            if obj.platform.sequence >= until:
                return found
        pytest.fail(f"object {until} did not come, but {[o.platform.sequence for o in found]}")

    def sequences(self, until: int, timeout: float = 60.0) -> list[int]:
        """The sequence numbers of `receive`."""
        return [obj.platform.sequence for obj in self.receive(until, timeout)]

    def local(self) -> dict[str, Any]:
        """The subscription as its subscriber sees it."""
        assert self.subscriber is not None
        status: dict[str, Any] = self.subscriber.status()["subscriptions"][self.subscription]
        return status

    def account(self) -> dict[str, int]:
        """Where everything has gone, by the node's status. Waits until nothing is on its way between the two ends of
        a live connection, and checks that no object is missing from the account."""
        return balanced(self.node.status, self.eventually, self.published)

    def outage(self, link: Link, seconds: float, *, silent: bool = False) -> None:
        """The link is down for so long."""
        link.down(silent=silent)
        end = time.monotonic() + seconds
        self.eventually(lambda: time.monotonic() >= end, seconds + 1.0)
        link.up()

    def just_renewed(self, link: Link, address: str) -> float:
        """Waits until the party behind the link has renewed its lease at that server; when."""
        key = int(address.rpartition(":")[2]), "renew"
        before = link.answers[key]
        self.eventually(lambda: link.answers[key] > before, what="a renewal")
        return time.monotonic()


def balanced(
    status: Callable[[], dict[str, Any]], eventually: Callable[..., Any], published: int | None = None
) -> dict[str, int]:
    """The account of a dissemination node with at most one subscription at a time:

        published = not matched + suppressed + delivered + lost + waiting

    `published` is what the application counts (default: what the node counts). Fails if it does not come true."""
    seen: dict[str, int] = {}

    def holds() -> bool:
        now = status()
        seen.clear()
        seen["published"] = now["published"] if published is None else published
        seen["unmatched"] = sum(r["unmatched"] for r in now["registrations"])
        seen["suppressed"] = sum(s["suppressed"] for s in now["subscriptions"])
        seen["delivered"] = now["delivered"]
        seen["lost"] = sum(now["lost"].values())
        seen["waiting"] = sum(sum(s["queued"].values()) for s in now["sessions"])
        flying = sum(s["in_flight"] for s in now["sessions"] if s["connected"])
        balance = seen["unmatched"] + seen["suppressed"] + seen["delivered"] + seen["lost"] + seen["waiting"]
        return not flying and seen["published"] == balance

    eventually(holds, what=seen)
    return seen


@pytest.fixture
def scene(new_link: Callable[..., Link], federation: Any, figures: Any, fixtures: Any) -> Scene:
    """Nothing is open yet. The links are closed behind those who use them."""
    return Scene(federation, figures, fixtures, new_link)


@pytest.fixture
def account(fixtures: Any) -> Callable[..., dict[str, int]]:
    """account(status, published): see `balanced`."""
    return lambda status, published=None: balanced(status, fixtures.eventually, published)
