"""Terms of subscriptions, for who studies them."""

from __future__ import annotations

from typing import Final

import msgspec

from jbi_pubsub.lookup.entry import EntryRep
from jbi_pubsub.protocol.requests import Unfiltered, View

TERMS_MOST: Final = 500
"""Subscriptions of a page of terms."""


class LeftPublishers(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Publishers whose objects a subscription does not want: those of an owner, those of another platform."""

    unlike: str = ""
    local: bool = False


class Terms(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Terms of a subscription, for who studies it. Nothing of it is a right: no secret, no lease, no address of a
    recipient; `session` is what a status shows of one, "" of an e-mail-only one. `subscriber` is the name of its
    process. `number` grows with each that comes."""

    number: int
    uid: str
    subscriber: str
    session: str
    entries: tuple[EntryRep, ...]
    predicate: str
    payload_filter: str
    namespaces: tuple[tuple[str, str], ...]
    language: str
    suppress_empty: bool
    recipients: int
    direct: bool
    view: View = "metadata"
    unfiltered: Unfiltered = "withhold"
    leaves: LeftPublishers = LeftPublishers()
