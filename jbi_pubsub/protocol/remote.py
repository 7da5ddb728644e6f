"""Queries that are answered in the place of an archive: from another platform, or by an application."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, Protocol

from jbi_pubsub.core.cache import Cache
from jbi_pubsub.core.info_object import InfoObject
from jbi_pubsub.core.signing import SigningKey
from jbi_pubsub.protocol.requests import QueryRequest
from jbi_pubsub.protocol.status.bridge import RemoteStatus

KEYS_MOST: Final = 4_096
"""Signing keys of registrations that are remembered."""


class RemoteAnswers(Protocol):
    """Answers of another platform to a query."""

    def __iter__(self) -> Iterator[InfoObject]:
        """All of it, in order. Raises JbiError."""
        ...

    @property
    def lacks(self) -> str:
        """Message about what is missing because somebody there has not answered; "" for nothing. When all has come."""
        ...

    def signing_key(self, uid: str) -> SigningKey | None:
        """Key that objects of a registration among them are signed with, as whoever answers says; None: nobody does.
        May ask others. Whoever verifies takes nobody's word for it."""
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


def with_keys(answers: RemoteAnswers, objects: Iterable[InfoObject]) -> Iterator[tuple[InfoObject, SigningKey | None]]:
    """Objects of these answers, each first one of a registration with the key that it is signed with."""
    asked: Cache[str, None] = Cache(KEYS_MOST)
    for obj in objects:
        uid = obj.platform.registration
        key = None
        if obj.platform.signature and uid not in asked:
            asked[uid] = None
            key = answers.signing_key(uid)
        yield obj, key
