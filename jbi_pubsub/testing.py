"""A federation for tests: lookup services, delegates and adapters in this process, ready in hundredths of a second.

    with LocalFederation() as federation:
        federation.delegate("alpha", "rome")
        publisher, subscriber = federation.publisher(), federation.subscriber()

Everything is as in production but for where it runs: the servers listen at free ports of loopback, and nothing that
else runs on the host is found by them or finds them, another LocalFederation neither.
"""

from __future__ import annotations

from contextlib import ExitStack
from types import TracebackType
from typing import Any, Final, Self
from uuid import uuid4

from msgspec.structs import replace

from .codegen.repository import TypeRepository
from .core.config import Config
from .core.process import Birthplace
from .lookup.quotas import RegistrarLimits
from .lookup.registrar import Registrar
from .lookup.server import LookupServer
from .pad.server.server import DisseminationServer
from .publisher import PublisherAdapter, PublisherAdapterLight
from .subscriber import SubscriberAdapter

FLUSH_SECONDS: Final = 0.5
"""For a delegate that stops to send what waits: a test has read what it wants by then."""


class LocalFederation:
    """A lookup service, and what is added to it; `with` starts it, and ends all of it, what came last first. A forked
    child that leaves the `with` ends nothing: the federation is its parent's.

    `config` holds further settings, such as a shorter lease; no file and no JBI_* variable is read. Where servers
    listen, and which lookup services are asked, is the federation's. Its lookup services serve `group`, which is a name
    of its own if none is given.
    """

    def __init__(self, config: Config | None = None, *, group: str = "") -> None:
        given = config or Config()
        groups = (group or f"local-{uuid4().hex}",)
        alone = replace(given.lookup, groups=groups, port=0, locators=(), multicast=False)
        self.config = replace(given, lookup=alone, pad=replace(given.pad, port=0))
        """The settings by which it is found: for adapters and servers beside those that are made here."""
        self.stack: Final = ExitStack()
        """Whatever else is to end with the federation."""
        self.lookups: Final[list[LookupServer]] = []
        self._birthplace = Birthplace()

    def __enter__(self) -> Self:
        self.lookup()
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None) -> None:
        if self._birthplace.is_here():
            self.stack.close()

    def lookup(self, limits: RegistrarLimits | None = None, **changes: Any) -> LookupServer:
        """One more lookup service, of other [lookup] settings with `changes`; parties from now on know all of them."""
        section = replace(self.config.lookup, port=0, **changes)
        server = LookupServer(
            replace(self.config, lookup=section),
            Registrar(groups=section.groups, locators=section.locators, limits=limits),
        )
        server.start()
        self.stack.callback(server.stop)
        self.lookups.append(server)
        locators = tuple(each.address for each in self.lookups)
        self.config = replace(self.config, lookup=replace(self.config.lookup, locators=locators))
        return server

    def delegate(
        self, name: str = "alpha", location: str = "rome", config: Config | None = None
    ) -> DisseminationServer:
        """A delegate, found by its name and location; `status()` says what it holds and has done."""
        server = DisseminationServer(config or self.config, TypeRepository(), characteristics=(name, location))
        server.start()
        self.stack.callback(server.stop, FLUSH_SECONDS)
        return server

    def subscriber(self, config: Config | None = None) -> SubscriberAdapter:
        """A subscriber adapter."""
        return self.stack.enter_context(SubscriberAdapter(config or self.config))

    def publisher(self, config: Config | None = None, **options: Any) -> PublisherAdapterLight:
        """A publisher adapter that uses delegates; `options` are those of PublisherAdapterLight."""
        return self.stack.enter_context(PublisherAdapterLight(config or self.config, **options))

    def peer(self, config: Config | None = None) -> PublisherAdapter:
        """A publisher adapter that is its own delegate."""
        return self.stack.enter_context(PublisherAdapter(config or self.config))
