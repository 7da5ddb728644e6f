"""The common part of both publishers' adapters: who may use one, and how it ends."""

from __future__ import annotations

from functools import partial
from types import TracebackType
from typing import Generic, Self, TypeVar

from jbi_pubsub.core.arguments import checked
from jbi_pubsub.core.errors import AdapterStateError, unknown_uid
from jbi_pubsub.core.open_adapters import PUBLISHERS, Closing
from jbi_pubsub.core.process import Birthplace

from .publication import LocalPublication, RegistrationUid

At = TypeVar("At")
"""Where an adapter's registrations are."""


class PublishingAdapter(Generic[At]):
    """An adapter that is closed once, by the process that has opened it."""

    def __init__(self) -> None:
        self._publications: dict[RegistrationUid, tuple[LocalPublication, At]] = {}
        self._closed = False
        self._birthplace = Birthplace()
        self._closing = Closing()

    @checked
    def close(self, timeout: float = 5.0) -> None:
        """Leave, handing over what is queued within `timeout` seconds, and end all threads. What is left then is logged
        as lost. Safe to call twice: the second call goes on with one that was interrupted. In a forked child it does
        nothing, as the adapter is its parent's. One that is open when the interpreter ends is closed.
        """
        if self._birthplace.is_here():
            self._closed = True
            self._closing.run(partial(self._end, timeout))

    def _end(self, timeout: float) -> None:
        self._leave(timeout)
        PUBLISHERS.discard(self)

    def _leave(self, timeout: float) -> None:
        """Do what `close` says; again, if it was interrupted."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def _check_open(self) -> None:
        if self._closed or not self._birthplace.is_here():
            raise AdapterStateError(
                "this publisher is closed, or belongs to the parent process", hint="Open a new one after a fork"
            )

    def _publication(self, registration: RegistrationUid) -> tuple[LocalPublication, At]:
        self._check_open()
        found = self._publications.get(registration)  # a look at one key needs no lock, and is made for each object
        if found is None:
            raise unknown_uid("registration", registration, "register_publisher")
        return found
