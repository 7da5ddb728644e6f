"""Finding others and asking one of them, for commands: by the lookup services or by address, under time limits."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from typing import Protocol, TypeVar

from jbi_pubsub.core.config import Config
from jbi_pubsub.core.errors import JbiError, ProtocolError
from jbi_pubsub.core.wire import ServiceRef
from jbi_pubsub.core.wire.address import check_endpoint
from jbi_pubsub.lookup.client.join import JoinManager
from jbi_pubsub.lookup.client.proxy import EVERYTHING
from jbi_pubsub.lookup.item import ServiceItem, ServiceTemplate
from jbi_pubsub.protocol.entries import PublisherAdapterDelegate

from .settings import looking


class Proxy(Protocol):
    """Calls to a server, over a connection that is to be closed."""

    def close(self) -> None: ...


P = TypeVar("P", bound=Proxy)


@contextmanager
def community(config: Config) -> Iterator[JoinManager]:
    """The lookup services that are found, while the `with` lasts."""
    with closing(JoinManager(config, name="jbi")) as found:
        yield found


def listed(
    config: Config, template: ServiceTemplate, what: str = "a lookup service", *, wait: float = 0.0
) -> list[ServiceItem]:
    """All that the lookup services list of a kind; `wait`: seconds for a first one to appear. Raises
    LookupNotFoundError."""
    with community(config) as joined, looking(config, what):
        if wait:
            joined.watch(template).wait(1, wait)
        return list(joined.lookup(template, EVERYTHING))


def check_lookup(config: Config) -> None:
    """Whether a lookup service is there, for a command that would wait for one. Raises LookupNotFoundError."""
    with community(config) as joined, looking(config):
        joined.lookup(ServiceTemplate(), 1)


def by_address(items: Iterable[ServiceItem]) -> list[ServiceItem]:
    """Each server once: one that was killed and started again at its address is listed twice until its former lease has
    run out."""
    return list({(item.proxy.endpoints, item.proxy.certificate): item for item in items}.values())


def name_of(item: ServiceItem) -> str:
    """Name and location of a delegate as lookup services know them; "" for what is none."""
    known = [each.as_dict() for each in item.entries if each.cls.name == PublisherAdapterDelegate.entry_name]
    return f"{known[0].get('name')}, {known[0].get('location')}" if known else ""


def at_address(at: str, exported: str = "") -> ServiceRef:
    """The server at HOST:PORT. Raises ConfigurationError."""
    return ServiceRef("", exported, (check_endpoint(at),))


def lacks(exc: ProtocolError, exported: str) -> bool:
    """Whether the server that was asked has nothing that is called so."""
    return f"no exported method {exported}." in exc.message


@contextmanager
def calling(
    make: Callable[..., P], ref: ServiceRef, config: Config, exported: str = "", otherwise: JbiError | None = None
) -> Iterator[P]:
    """A proxy of `ref`, closed at the end. Raises `otherwise` for a server that has no `exported`."""
    try:
        with closing(make(ref, config.security(), timeout=config.lookup.timeout)) as proxy:
            yield proxy
    except ProtocolError as exc:
        if otherwise is None or not lacks(exc, exported):
            raise
        raise otherwise from exc
