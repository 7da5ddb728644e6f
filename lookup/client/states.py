"""States of a session with a lookup service, and of a watch there, as tables."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Final, Protocol

from jbi_pubsub.core.errors import JbiError
from jbi_pubsub.core.state import StateTable
from jbi_pubsub.lookup.item import (
    ServiceEvent,
    ServiceItem,
    ServiceTemplate,
)


class LinkState(Enum):
    """States of a session with a lookup service."""

    UNTRIED = auto()
    CONNECTED = auto()
    AWAY = auto()
    LEFT = auto()


class LinkEvent(Enum):
    """Events in the life of such a session."""

    ANSWERED = auto()
    FAILED = auto()
    LEAVING = auto()


LINK: Final = StateTable(
    "session with a lookup service",
    LinkState.UNTRIED,
    {
        (LinkState.UNTRIED, LinkEvent.ANSWERED): LinkState.CONNECTED,
        (LinkState.UNTRIED, LinkEvent.FAILED): LinkState.AWAY,
        (LinkState.CONNECTED, LinkEvent.FAILED): LinkState.AWAY,
        (LinkState.AWAY, LinkEvent.ANSWERED): LinkState.CONNECTED,
        (LinkState.AWAY, LinkEvent.FAILED): LinkState.AWAY,
        (LinkState.UNTRIED, LinkEvent.LEAVING): LinkState.LEFT,
        (LinkState.CONNECTED, LinkEvent.LEAVING): LinkState.LEFT,
        (LinkState.AWAY, LinkEvent.LEAVING): LinkState.LEFT,
        # a call was under way when it left
        (LinkState.LEFT, LinkEvent.ANSWERED): LinkState.LEFT,
        (LinkState.LEFT, LinkEvent.FAILED): LinkState.LEFT,
        (LinkState.LEFT, LinkEvent.LEAVING): LinkState.LEFT,
    },
)


class WatchState(Enum):
    """States of a watch at a lookup service."""

    STALE = auto()
    """Events may have been missed: a lookup is due."""
    LOOKING = auto()
    """A lookup is under way; events that come meanwhile are applied behind its result."""
    LOOKING_STALE = auto()
    """The same, and events were missed meanwhile."""
    CURRENT = auto()


class WatchEvent(Enum):
    """Events in the life of a watch."""

    MISSED = auto()
    ASKED = auto()
    BROUGHT = auto()
    FAILED = auto()


WATCH: Final = StateTable(
    "watch at a lookup service",
    WatchState.STALE,
    {
        (WatchState.STALE, WatchEvent.MISSED): WatchState.STALE,
        (WatchState.STALE, WatchEvent.ASKED): WatchState.LOOKING,
        (WatchState.LOOKING, WatchEvent.BROUGHT): WatchState.CURRENT,
        (WatchState.LOOKING, WatchEvent.MISSED): WatchState.LOOKING_STALE,
        (WatchState.LOOKING, WatchEvent.FAILED): WatchState.STALE,
        (WatchState.LOOKING_STALE, WatchEvent.BROUGHT): WatchState.STALE,
        (WatchState.LOOKING_STALE, WatchEvent.MISSED): WatchState.LOOKING_STALE,
        (WatchState.LOOKING_STALE, WatchEvent.FAILED): WatchState.STALE,
        (WatchState.CURRENT, WatchEvent.MISSED): WatchState.STALE,
    },
)


class Watcher(Protocol):
    """Consumer of a session: a template, and three calls, all made on the session's threads, serially."""

    template: ServiceTemplate

    def snapshot(self, registrar: str, items: tuple[ServiceItem, ...]) -> None:
        """All items that match at the registrar now."""

    def changed(self, registrar: str, service_id: str, item: ServiceItem | None) -> None:
        """One item is new or different there, or gone (None)."""

    def refused(self, registrar: str, error: JbiError) -> None:
        """The registrar can't watch this template."""


class SessionOwner(Protocol):
    """Owner of sessions, which is told of what happens there, by their threads. Each is named by its lookup service."""

    def key(self, registrar: str, service_id: str) -> str:
        """Secret that an item is registered with there, so that nobody else can replace it."""

    def away(self, registrar: str) -> None:
        """The lookup service does not answer: another one may answer at its endpoint now."""

    def progress(self) -> None:
        """A session may hold or watch something else than before, or not be connected any more."""

    def joined(self, service_id: str, told: int) -> None:
        """An item is registered that was not; the lookup service has told so many others of it."""

    def refused(self, service_id: str, why: JbiError) -> None:
        """An item is refused that was not."""


@dataclass(slots=True)
class RegistrarWatch:
    watcher: Watcher
    event_id: str
    number: int
    lease_id: str
    state: WatchState = WATCH.initial
    held: dict[str, ServiceEvent] = field(default_factory=dict)
    """The last event of each service that came while a lookup was under way: applied behind its result."""

    def follow(self, event: WatchEvent) -> None:
        """Go on to the next state."""
        self.state = WATCH.after(self.state, event)
