"""Queries that are answered in the place of an archive: from another platform, or by an application."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from jbi_pubsub.core.info_object import InfoObject
from jbi_pubsub.protocol.requests import QueryRequest
from jbi_pubsub.protocol.status.bridge import RemoteStatus


class RemoteAnswers(Protocol):
    """Answers of another platform to a query."""

    def __iter__(self) -> Iterator[InfoObject]:
        """All of it, in order. Raises JbiError."""
        ...

    @property
    def lacks(self) -> str:
        """Message about what is missing because somebody there has not answered; "" for nothing. When all has come."""
        ...

    def cancel(self) -> None:
        """Cancel what is not wanted any more: whoever iterates comes to the end soon. From any thread."""
        ...


class RemoteArchive(Protocol):
    """Archive that answers from elsewhere. Any thread."""

    service_type: str
    """That of its item in the lookup services."""

    def answers(self, request: QueryRequest) -> RemoteAnswers:
        """Ask. Raises JbiError, now or by the answers."""
        ...

    def status(self) -> RemoteStatus:
        """Its kind and name, and what it does, for whoever may look here."""
        ...
