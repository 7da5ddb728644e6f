"""Registrations as bridges see them, as lookup services of our own platforms list them, and as a direction passes them
on."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Final, Literal

import msgspec

from jbi_pubsub.core.errors import EntryError
from jbi_pubsub.core.info_object import TypeName
from jbi_pubsub.core.quality import Importance
from jbi_pubsub.core.signing import SigningKey
from jbi_pubsub.core.wire import ServiceRef
from jbi_pubsub.lookup.entry import EntryRep
from jbi_pubsub.lookup.item import ServiceItem
from jbi_pubsub.protocol.entries import (
    ExpirationEntry,
    InformationType,
    LocalEntry,
    NumberedEntry,
    PersistentEntry,
    RelayedEntry,
    SendingEntry,
    SigningKeyEntry,
    SparseEntry,
    origin_of,
)
from jbi_pubsub.protocol.sending import SENDING, Sending, sending_terms

Passing = Literal["persist", "importance"]
"""Wishes of a publisher that a direction may pass on: whether its objects are archived, and how important they are."""

LONGEST: Final = 1e11
"""Seconds of an expiration."""

_MADE_BY: Final = (
    InformationType, SigningKeyEntry, RelayedEntry, NumberedEntry, SparseEntry, ExpirationEntry, PersistentEntry,
    SendingEntry,
)  # fmt: skip
_MADE: Final = {each.entry_name for each in _MADE_BY}
"""Entries on an item that its delegate has made."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RegistrationNumbers:
    """Meaning of the numbers of a registration's objects."""

    first: int | None = field(default=None, compare=False)
    """From which number on a bridge has all objects; 0: none has come yet. None: numbers may be left out."""
    is_sparse: bool = False
    """Whether what nobody wants is left out, and all losses are told (see Origin)."""


@dataclass(frozen=True, slots=True)
class BridgedRegistration(RegistrationNumbers):
    """A registration as its platform shows it."""

    uid: str
    type: TypeName
    entries: tuple[EntryRep, ...] = ()
    """Entries of its invariant metadata."""
    signing: SigningKey | None = None
    via: tuple[str, ...] = ()
    """The platforms that its objects have passed before this one."""
    bridge: str = ""
    """Bridge that relays it to this platform; "": its publisher is here."""
    is_local: bool = False
    """Whether it is for those alone who are where it is."""
    expiration: float = 0.0
    """Seconds for which its objects may wait; 0.0: for ever."""
    is_persistent: bool = False
    """Whether its publisher wants its objects kept."""
    importance: Importance | None = None
    """Importance that its publisher wishes."""
    sending: Sending = SENDING
    """Way of its objects over networks of nodes."""
    passes: tuple[Passing, ...] = ()
    """Wishes that hold where it is relayed to. What is to be kept there is kept until it ends."""
    has_left: bool = field(default=False, compare=False)
    """Whether it was there moments ago, and its last objects may come yet."""
    at: ServiceRef | None = field(default=None, compare=False)
    """Service that knows its schema; None: there is none."""


class DirectionTerms(msgspec.Struct, frozen=True):
    """Terms of a direction beside its transformation."""

    types: tuple[str, ...] = ()
    """Names of the types that are subscribed to; () for all."""
    poll: float = 2.0
    validate: bool = True
    """Whether the other side checks metadata by their schema once more."""
    wanted: bool = False
    """Whether what the other side wants is brought alone (see wanted.py)."""
    passes: tuple[Passing, ...] = ()
    """Wishes of publishers that hold on the other side, too."""

    def passed(self, published: BridgedRegistration, first: int | None) -> BridgedRegistration:
        """A registration as it is for the other side, which has all its objects from number `first` on."""
        is_sparse = first is not None and (published.is_sparse or self.wanted)
        passes = tuple(dict.fromkeys((*published.passes, *self.passes)))
        return replace(published, first=first, is_sparse=is_sparse, passes=passes)


def listed(item: ServiceItem, *, has_left: bool) -> BridgedRegistration:
    """The registration of an item. Raises EntryError for one that is none."""
    reps = {rep.cls.name: rep for rep in reversed(item.entries)}
    described, key = reps.get(InformationType.entry_name), reps.get(SigningKeyEntry.entry_name)
    if described is None:
        raise EntryError("a registration that says nothing of its type", entry_class=InformationType.entry_name)
    told = InformationType.from_rep(described)
    if not told.name or not told.version:
        raise EntryError("a registration without a type", entry_class=InformationType.entry_name)
    origin, terms = origin_of(item.entries), sending_terms(item.entries)
    return BridgedRegistration(
        item.service_id,
        TypeName(told.name, told.version),
        tuple(rep for rep in item.entries if rep.cls.name not in _MADE),
        SigningKeyEntry.from_rep(key).signing_key() if key is not None else None,
        origin.via if origin is not None else (),
        origin.bridge if origin is not None else "",
        LocalEntry.entry_name in reps,
        _expiration(reps.get(ExpirationEntry.entry_name)),
        PersistentEntry.entry_name in reps,
        terms.importance,
        terms.sending,
        has_left=has_left,
        at=item.proxy if told.schema else None,
        first=origin.first if origin is not None else 0,
        is_sparse=origin is not None and origin.is_sparse,
    )


def _expiration(rep: EntryRep | None) -> float:
    """Raises EntryError for what is no time."""
    text = ExpirationEntry.from_rep(rep).seconds if rep is not None else None
    try:
        seconds = float(text or 0.0)
    except ValueError:
        seconds = math.nan
    if not 0.0 <= seconds <= LONGEST:
        raise EntryError("a registration whose expiration is not a time", entry_class=ExpirationEntry.entry_name)
    return seconds
