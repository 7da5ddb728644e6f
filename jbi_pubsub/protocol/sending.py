"""Wishes of a publisher about how its objects go to other nodes and platforms."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Final, Literal

import msgspec

from jbi_pubsub.core.errors import ConfigurationError, EntryError, JbiError
from jbi_pubsub.core.quality import Importance
from jbi_pubsub.core.values import converted
from jbi_pubsub.core.xpath import compile_predicate
from jbi_pubsub.lookup.entry import EntryRep
from jbi_pubsub.protocol.entries import SendingEntry

KEY_MOST: Final = 1_024
"""Characters of a key."""

SendingMode = Literal["reliable", "unreliable", "durable", "sender", "connected"]
"""Mode in which nodes send objects to each other: "reliable" (what is lost is sent again until it expires, by whoever
has it), "unreliable" (it is not), "durable" (as reliable, and a newer object of the same key takes the place of an
older one), "sender" (as reliable, but only by the node that sent it and by relays, so that no other one holds it),
"connected" (as "sender", until all nodes that are connected have it: one that comes late does not get it)."""


class Sending(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Way of a registration's objects over networks of nodes, which lose some; where a publisher does not say it, its
    `reliable` does. Between a client and its delegate, and over a bridge of platforms, it has no effect."""

    mode: SendingMode = "reliable"
    key: Annotated[str, msgspec.Meta(max_length=KEY_MOST)] = ""
    """XPath, in the metadata, of the text that durable objects replace each other by."""


SENDING: Final = Sending()


class SendingTerms(msgspec.Struct, frozen=True):
    """Terms of a registration about its way to others, as they are told."""

    sending: Sending = SENDING
    importance: Importance | None = None
    """None: its publisher has no wish."""


def check_sending(sending: Sending) -> None:
    """Raises ConfigurationError, PredicateError."""
    if (sending.mode == "durable") != bool(sending.key):
        raise ConfigurationError(
            f"sending: mode {sending.mode} {'without' if sending.mode == 'durable' else 'with'} a key",
            hint='A key, an XPath, is for mode "durable", which needs one',
        )
    if sending.key:
        compile_predicate(sending.key, argument="sending: key")


def sending_entries(told: SendingTerms) -> tuple[EntryRep, ...]:
    """The entry that tells it; none where there is nothing to tell."""
    if told == SendingTerms():
        return ()
    entry = SendingEntry(
        mode=told.sending.mode if told.sending.mode != SENDING.mode else None,
        key=told.sending.key or None,
        importance=str(told.importance) if told.importance is not None else None,
    )
    return (entry.rep(),)


def sending_terms(entries: Iterable[EntryRep]) -> SendingTerms:
    """Terms by the entries of an item. Raises EntryError."""
    rep = next((rep for rep in entries if rep.cls.name == SendingEntry.entry_name), None)
    if rep is None:
        return SendingTerms()
    said = SendingEntry.from_rep(rep)
    try:
        sending = converted({"mode": said.mode or SENDING.mode, "key": said.key or ""}, Sending)
        check_sending(sending)
        importance = converted(int(said.importance), Importance) if said.importance is not None else None
    except (JbiError, msgspec.ValidationError, ValueError) as exc:
        raise EntryError(
            f"a registration that says nothing sensible of how it is sent: {exc}", entry_class=SendingEntry.entry_name
        ) from exc
    return SendingTerms(sending, importance)
