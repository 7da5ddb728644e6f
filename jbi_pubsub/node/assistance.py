"""Bodies of what nodes tell each other about what is kept, and deleted, at several of them. Pure."""

from __future__ import annotations

from typing import Annotated, Final, cast

import msgspec

from jbi_pubsub.core.values import decoded, decoder_of

VERSION: Final = 1
VOLUNTEERS_MOST: Final = 64
IDS_MOST: Final = 500
"""Ids of one message."""
_NodeId = Annotated[bytes, msgspec.Meta(min_length=16, max_length=16)]
_Name = Annotated[str, msgspec.Meta(min_length=1, max_length=1_024)]
_Count = Annotated[int, msgspec.Meta(ge=0, lt=1 << 62)]


class AssistanceBody(msgspec.Struct, frozen=True, array_like=True, tag_field="body", tag="assistance"):
    """Persistence assistance, requested or accepted: word of a coordinator on one registration, who keeps it, and how
    many more are needed. A request when it begins or has lost somebody."""

    version: int
    uid: _Name
    number: _Count
    """The greater one holds, over restarts of its node as well."""
    needed: Annotated[int, msgspec.Meta(ge=0, le=VOLUNTEERS_MOST)]
    """Volunteers that are still needed."""
    accepted: Annotated[tuple[_NodeId, ...], msgspec.Meta(max_length=VOLUNTEERS_MOST)] = ()
    """Ids of those that were accepted and are there."""
    is_request: bool = False


class OfferBody(msgspec.Struct, frozen=True, array_like=True, tag_field="body", tag="offer"):
    """Persistence assistance offer."""

    version: int
    uid: _Name
    nonce: _Count
    """By which no two are the same message."""


class DeletionBody(msgspec.Struct, frozen=True, array_like=True, tag_field="body", tag="deletion"):
    """Objects that are to be nowhere any more."""

    version: int
    ids: Annotated[tuple[_Name, ...], msgspec.Meta(max_length=IDS_MOST)]


Body = AssistanceBody | OfferBody | DeletionBody
_decoder: Final = decoder_of(cast("type[Body]", Body))


def decoded_assistance(data: bytes) -> Body:
    """A body of its bytes. Raises ProtocolError."""
    return decoded(_decoder, data, "message of a node")
