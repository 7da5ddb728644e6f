"""A durable lookup service killed at any moment, over and over, under clients that register, renew and cancel."""

from __future__ import annotations

import random
import signal
import threading
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from jbi_pubsub.core.errors import WireError
from jbi_pubsub.core.wire import ServiceRef
from jbi_pubsub.core.wire.endpoint import Security
from jbi_pubsub.lookup.client.proxy import EVERYTHING, EXPORTED, RegistrarProxy
from jbi_pubsub.lookup.client.session import RegistrarSession
from jbi_pubsub.lookup.events import NUMBER_JUMP
from jbi_pubsub.lookup.item import ServiceEvent, ServiceItem, ServiceTemplate

pytestmark = pytest.mark.processes

ROUNDS = 6
CLIENTS = 4


class Registering(threading.Thread):
    """A client that registers, renews and cancels as fast as it can, until the lookup service is gone. It notes what
    was acknowledged, and what it does not know of."""

    def __init__(self, address: str, name: str, done: threading.Semaphore, seed: int) -> None:
        super().__init__(name=name)
        self.held: dict[str, tuple[str, str]] = {}  # service id -> name, lease id
        self.cancelled: set[str] = set()
        self.unsure: set[str] = set()  # names
        self._proxy = RegistrarProxy(ServiceRef("", EXPORTED, (address,)), Security())
        self._done = done
        self._random = random.Random(seed)

    def run(self) -> None:
        try:
            for number in range(100_000):
                self.once(f"{self.name}-{number}")
                self._done.release()
        except WireError:  # killed
            pass
        finally:
            self._proxy.close()

    def once(self, name: str) -> None:
        self.unsure = {name}
        proxy = ServiceRef("", name, ("127.0.0.1:1",))
        got = self._proxy.register(ServiceItem("", ("Service", self.name), proxy), 300.0)
        self.held[got.service_id] = (name, got.lease_id)
        which = self._random.choice(sorted(self.held))
        self.unsure = {self.held[which][0]}
        if self._random.random() < 0.3:
            self._proxy.cancel([self.held[which][1]])
            del self.held[which]
            self.cancelled.add(which)
        else:
            self._proxy.renew([(self.held[which][1], 200.0 + 100.0 * self._random.random())])
        self.unsure = set()


def test_what_was_acknowledged_is_there_after_every_kill_and_event_numbers_never_go_back(
    tmp_path: Path,
    start: Callable[..., Any],
    field: Any,
    eventually: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Given a durable lookup service, a client that watches it all the time, and the numbers of its events
    heard: dict[str, list[int]] = defaultdict(list)
    dispatch = RegistrarSession._dispatch

    def note(session: RegistrarSession, event: ServiceEvent) -> None:
        if event.service_id != facts["id"]:  # of its own item hears who looks for lookup services
            heard[event.event_id].append(event.number)
        dispatch(session, event)

    monkeypatch.setattr(RegistrarSession, "_dispatch", note)
    arguments = ("--no-multicast", "lookup", "--state", str(tmp_path / "state.db"), "--json")
    server = start(*arguments, "--port", "0")
    facts = server.fact()
    address = facts["address"]
    field.leases(lookup=300.0)
    field.lookups(address)
    community = field.community()
    cache = community.watch(ServiceTemplate(types=("Service",)))
    community.wait_watching(cache, 60.0)
    held: dict[str, tuple[str, str]] = {}
    unanswered: set[str] = set()
    moments = random.Random(7)
    for turn in range(ROUNDS):
        # When clients register, renew and cancel, and it is killed in the middle of that
        done = threading.Semaphore(0)
        clients = [Registering(address, f"{turn}-{n}", done, 100 * turn + n) for n in range(CLIENTS)]
        for client in clients:
            client.start()
        for _ in range(moments.randrange(1, 200)):
            done.acquire()
        server.signal(signal.SIGKILL)
        for client in clients:
            client.join()
        server.end()
        server = start(*arguments, "--port", address.rpartition(":")[2])

        # Expect the same lookup service with all that was acknowledged, under the same ids, and nothing else
        assert server.fact()["id"] == facts["id"]
        for client in clients:
            held |= client.held
        cancelled = {service_id for client in clients for service_id in client.cancelled}
        unsure = {name for client in clients for name in client.unsure}
        proxy = RegistrarProxy(ServiceRef("", EXPORTED, (address,)), Security())
        there = {
            i.service_id: i.proxy.exported for i in proxy.lookup(ServiceTemplate(types=("Service",)), EVERYTHING).items
        }
        expected = {service_id: name for service_id, (name, _) in held.items()}
        assert {n for i, n in expected.items() if there.get(i) != n} <= unsure
        unanswered |= unsure  # what came to the disk, but nobody was told, stays
        assert set(there.values()) - set(expected.values()) <= unanswered
        assert not cancelled & set(there)
        held = {service_id: each for service_id, each in held.items() if service_id in there}
        results = proxy.renew([(lease_id, 300.0) for _, lease_id in held.values()])
        assert [result.error for result in results] == [None] * len(held)
        proxy.close()

        # Expect the client that watches to see the same
        eventually(lambda: {item.service_id for item in cache.items()} == set(there), what=lambda: turn)  # noqa: B023  # waits here
    # Expect each registration's numbers to have grown all the while, over the kills too
    proxy = RegistrarProxy(ServiceRef("", EXPORTED, (address,)), Security())
    last = ServiceItem("", ("Service",), ServiceRef("", "last", ("127.0.0.1:1",)))

    def is_heard_behind_the_last_kill() -> bool:
        proxy.register(last, 300.0)  # again, as events may not be on their way yet
        return any(numbers[-1] > ROUNDS * NUMBER_JUMP for numbers in heard.values())

    eventually(is_heard_behind_the_last_kill)
    proxy.close()
    assert all(numbers == sorted(set(numbers)) for numbers in heard.values())
    assert len(heard) == 1, "one event registration has outlived all the kills"
