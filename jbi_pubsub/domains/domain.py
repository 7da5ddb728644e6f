"""A domain as applications and clients see it: what is found by the same lookup services (paper 3.3)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Final, Self

from jbi_pubsub.core.config import Config, effective
from jbi_pubsub.core.errors import AdapterStateError, ConfigurationError, JbiError
from jbi_pubsub.core.section import YEAR

from .application import Application
from .channel import DomainChannel, EventListener
from .client import Client
from .journal import ClientJournal
from .service_type import PropertyValue

log = logging.getLogger("jbi_pubsub.domains")

LEAST_PERIOD: Final = 0.001
"""Seconds between two monitoring events."""


class Domain(DomainChannel):
    """Applications and clients of this process in a domain.

        with Domain() as domain:
            app = domain.application("heat", lambda: {"residual": grid.residual}, period=0.5)
            app.steer("alpha", set=grid.set_alpha, get=grid.alpha)
            anna = domain.client("anna")
            anna.watch("heat", "residual > 0.001", print)
            anna.set("heat", "alpha", 0.2)

    Any thread."""

    def __init__(
        self,
        config: Config | None = None,
        *,
        name: str = "domain",
        delegate: tuple[str | None, str | None] = (None, None),
    ) -> None:
        """`config`: default that of the file and the environment, with [domain] number; `name`: as the adapters are
        called; `delegate`: characteristics of the domain's channel. Raises ConfigurationError, LookupNotFoundError,
        DelegateNotFoundError."""
        super().__init__(config or effective(), name, delegate, self._away)
        self._closed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, exc: object, trace: object) -> None:
        self.close()

    def close(self) -> None:
        """Close applications, have clients be away, and leave. Safe to repeat."""
        with self._lock:
            self._closed = True
            members = list(self._members)
        for each in members:
            if isinstance(each, Application):
                each.close()
            elif isinstance(each, Client):
                each.away()
        self._undo.close()

    def application(
        self,
        name: str,
        state: Callable[[], Mapping[str, PropertyValue]],
        *,
        period: float = 1.0,
        categories: tuple[str, ...] = (),
    ) -> Application:
        """An application of this process: `state` gives what its monitoring events say, each `period` seconds, to
        clients of these `categories`, as rules of access say them; () for all. Raises LookupNotFoundError,
        AccessDeniedError, EntryError, AdapterStateError, ConfigurationError (no name, or too short a period)."""
        if not name or not LEAST_PERIOD <= period <= YEAR:
            raise ConfigurationError(
                f"application {name!r:.80} with a period of {period:g} s",
                hint=f"It needs a name, and a period of {LEAST_PERIOD:g} seconds at least",
            )
        made = Application(self, name, state, period)
        self._add(made)
        try:
            made.start(categories)
        except BaseException:
            made.close()
            raise
        return made

    def client(
        self,
        name: str,
        heard: EventListener = lambda event: None,  # noqa: ARG005  # nobody listens
        *,
        journal: Path | str | None = None,
    ) -> Client:
        """A client of this process; `heard` is told what others say to it, or to groups that it joins. `journal`: file
        in which it remembers what it has had, so that it may go on in another domain; made if it is not there. Raises
        LookupNotFoundError, AccessDeniedError, AdapterStateError, ConfigurationError (no name), StorageError (another
        process has it open)."""
        if not name:
            raise ConfigurationError("a client without a name", hint="Give it one, by which others talk to it")
        kept = None if journal is None else ClientJournal(Path(journal), name)
        with ExitStack() as undo:
            if kept is not None:
                undo.callback(kept.close)
            made = Client(self, name, heard, kept)
            undo.callback(made.away)
            self._add(made)
            undo.pop_all()
        return made

    def _away(self, delegate: str, why: str) -> None:  # noqa: ARG002  # there is one
        """The channel is away, or, for no reason, there again, perhaps another delegate."""
        with self._lock:
            applications = [each for each in self._members if isinstance(each, Application)]
        for each in () if why else applications:
            try:
                each.moved()
            except JbiError as exc:  # away again, or the application is just leaving
                log.info("the offer of application %s refers to the previous channel: %s", each.name, exc)

    def _add(self, member: Application | Client) -> None:
        with self._lock:
            if self._closed:
                raise AdapterStateError("this domain is closed", hint="Make applications and clients before close()")
            self._members.append(member)
