"""Faults: parties of a federation as processes of their own, with leases of a second, so that they can be killed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec
import pytest

from jbi_pubsub import Config, PublisherAdapter, PublisherAdapterLight, SubscriberAdapter
from jbi_pubsub.core.config import LeaseSection
from jbi_pubsub.core.wire import ServiceRef
from jbi_pubsub.core.wire.control import ControlClient
from jbi_pubsub.lookup.client.join import JoinManager

LEASE = 1.0
GRACE = 39.0
"""Reapers look twice a second; the rest is for a busy machine. The default lease, of a minute, is far longer."""

DATA = Path(__file__).parent.parent.parent / "examples" / "data" / "intel_imagery"

PREAMBLE = f"""
import json, os, sys
import msgspec
from jbi_pubsub import Config, PublisherAdapter, PublisherAdapterLight, SubscriberAdapter
from jbi_pubsub.core.errors import AdapterStateError

SCHEMA = {str(DATA / "Intel_Imagery.xsd")!r}
FIGURE_1 = open({str(DATA / "fig1.xml")!r}, "rb").read()
TYPE = "mil.af.rl.jbi.Intel_Imagery"
config = msgspec.json.decode(CONFIG, type=Config)

def tell(**fact):
    print(json.dumps(fact), flush=True)

def told():
    return sys.stdin.readline().strip()
"""

PUBLISHER = """
with PublisherAdapterLight(config) as adapter:
    at = adapter.connect_to_delegate("alpha", "rome")
    registration = adapter.register_publisher(at, SCHEMA, FIGURE_1)
    tell(registration=registration)
    while (word := told()) not in ("", "end"):
        for _ in range(int(word)):
            adapter.publish(registration, FIGURE_1, b"payload")
        adapter.flush()
        tell(published=int(word))
"""

SUBSCRIBER = """
with SubscriberAdapter(config) as adapter:
    subscription = adapter.register_subscriber(type_name=TYPE, **OPTIONS)
    tell(subscription=subscription, servers=adapter.wait_matched(subscription))
    while True:
        obj = adapter.receive(subscription, 60.0)
        if obj is not None:
            tell(sequence=obj.platform.sequence)
"""


class Party:
    """A process and what it said when it was ready."""

    def __init__(self, process: Any) -> None:
        self.process = process
        self.ready: dict[str, Any] = process.fact()

    @property
    def address(self) -> str:
        """host:port of a server."""
        return str(self.ready["address"])

    @property
    def port(self) -> str:
        """The port of a server."""
        return self.address.rpartition(":")[2]

    def signal(self, number: int) -> None:
        """Send a signal; when it is SIGKILL, wait until the process is gone."""
        self.process.signal(number)
        if number == 9:
            self.process.wait(60.0)

    def ask(self, word: object) -> dict[str, Any]:
        """Say a line to a script; its answer."""
        self.process.say(str(word))
        fact: dict[str, Any] = self.process.fact()
        return fact

    def fact(self) -> dict[str, Any]:
        """The next line the process says."""
        fact: dict[str, Any] = self.process.fact()
        return fact


class Field:
    """Starts parties as processes, all under `config`, which the parties in this process use as well."""

    lease = LEASE
    within = LEASE + GRACE

    def __init__(self, config: Config, begin: Callable[..., Any]) -> None:
        self.config = config
        self._begin = begin
        self._stack = ExitStack()
        self._clients: dict[str, ControlClient] = {}

    def lookups(self, *addresses: str) -> None:
        """These lookup services, and no others, are known from now on."""
        self.config = msgspec.structs.replace(
            self.config, lookup=msgspec.structs.replace(self.config.lookup, locators=addresses)
        )

    def leases(self, **seconds: float) -> None:
        """Other leases from now on."""
        self.config = msgspec.structs.replace(self.config, lease=msgspec.structs.replace(self.config.lease, **seconds))

    def keep(self, seconds: float) -> None:
        """How long delegates keep for those who come late, from now on."""
        self.config = msgspec.structs.replace(
            self.config, pad=msgspec.structs.replace(self.config.pad, keep_seconds=seconds)
        )

    def flags(self) -> list[str]:
        """`config` for the command line."""
        flags = ["--no-multicast"]
        for locator in self.config.lookup.locators:
            flags += ["--locator", locator]
        for section in ("lease", "mail"):
            for key, value in msgspec.structs.asdict(getattr(self.config, section)).items():
                flags += ["--set", f"{section}.{key}={value}"]
        flags += ["--set", f"pad.keep_seconds={self.config.pad.keep_seconds}"]
        return [*flags, "--set", f"lookup.probe={self.config.lookup.probe}"]

    def jbi(self, *arguments: str) -> Any:
        """A `jbi` command."""
        return self._begin(*self.flags(), *arguments)

    def lookup(self, port: str = "0") -> Party:
        """A lookup service."""
        return Party(self.jbi("lookup", "--port", port, "--json"))

    def pad(self, name: str = "alpha", location: str = "rome", *, port: str = "0", more: tuple[str, ...] = ()) -> Party:
        """A delegate."""
        return Party(self.jbi("pad", name, location, "--port", port, "--json", *more))

    def script(self, body: str) -> Party:
        """A Python program with `config`, `tell(key=value)` and `told()`."""
        made = f"CONFIG = {msgspec.json.encode(self.config)!r}\n"
        return Party(self._begin(script=made + PREAMBLE + body))

    def publisher(self) -> Party:
        """Registers figure 1 at alpha, rome; told a number, it publishes so many objects."""
        return self.script(PUBLISHER)

    def subscriber(self, **options: Any) -> Party:
        """Subscribes to imagery; tells the sequence number of each object."""
        return self.script(f"OPTIONS = {options!r}\n" + SUBSCRIBER)

    def light(self) -> PublisherAdapterLight:
        """A publisher in this process that uses delegates."""
        return self._stack.enter_context(PublisherAdapterLight(self.config))

    def peer(self) -> PublisherAdapter:
        """A peer publisher in this process."""
        return self._stack.enter_context(PublisherAdapter(self.config))

    def adapter(self) -> SubscriberAdapter:
        """The subscriber adapter of this process."""
        return self._stack.enter_context(SubscriberAdapter(self.config))

    def community(self) -> JoinManager:
        """This process in the community of the lookup services."""
        made = JoinManager(self.config, name="watcher")
        self._stack.callback(made.close)
        return made

    def status(self, party: Party) -> dict[str, Any]:
        """What a server says about itself; always over one and the same connection."""
        if party.address not in self._clients:
            ref = ServiceRef("", "status", (party.address,))
            self._clients[party.address] = ControlClient(ref, self.config.security())
        status: dict[str, Any] = self._clients[party.address].call("status", dict[str, Any])
        return status

    def held(self, party: Party) -> dict[str, Any]:
        """What a delegate holds for others: to be the same again when they are gone."""
        status = self.status(party)
        kept = ("connections", "threads", "publishers", "registrations", "sessions", "subscriptions", "leases")
        return {key: status[key] for key in kept}

    def holds_no_more(self, party: Party, before: dict[str, Any]) -> bool:
        """Whether it holds what it held before, on as many threads at most: one may have been about to end."""
        now = self.held(party)
        return now["threads"] <= before["threads"] and now | {"threads": 0} == before | {"threads": 0}

    def close(self) -> None:
        """Leave the servers, while they are still there."""
        self._stack.close()
        for client in self._clients.values():
            client.close()


@pytest.fixture
def field(federation: Any, start: Callable[..., Any]) -> Iterator[Field]:
    """A federation with one lookup service in this process, leases of a second."""
    federation.config = msgspec.structs.replace(
        federation.config, lease=LeaseSection(publisher=LEASE, subscriber=LEASE, lookup=LEASE)
    )
    made = Field(federation.config, start)
    yield made
    made.close()
