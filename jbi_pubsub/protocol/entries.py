"""Entry classes of the platform, and the service types of its items in the lookup service."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, Final

import msgspec

from jbi_pubsub.core import combined
from jbi_pubsub.core.errors import EntryError
from jbi_pubsub.core.signing import CHAIN_MOST, SigningKey
from jbi_pubsub.core.values import converted
from jbi_pubsub.lookup.entry import Entry, EntryRep

PAD_TYPE: Final = "jbi.PublisherAdapterDelegate"
"""Service type of a delegate in the lookup service."""

PUBLISHER_TYPE: Final = "jbi.PublisherRegistration"
"""Service type of whatever a subscriber can register with: a registration at a delegate or a peer publisher."""

BRIDGE_TYPE: Final = "jbi.Bridge"
"""Service type of the item by which a bridge has a platform's queries answered from another one as well."""

PROVIDER_TYPE: Final = "jbi.Provider"
"""Service type of the item by which an application answers queries of others itself."""

ANSWERING_TYPES: Final = frozenset((BRIDGE_TYPE, PROVIDER_TYPE))
"""Types of services that answer queries, and have no archive to look after."""

RTI_TYPE: Final = "jbi.Rti"
"""Service type of a federation execution of simulations, and of an RTI that may be asked to make one."""

PEER_TYPE: Final = "jbi.PeerPublisher"
"""Further service type of a peer publisher's registrations."""

HOPS_MOST: Final = 16
"""Platforms that an object may have passed: who comes to more goes in a circle."""

PLATFORM_NAME: Final = re.compile(r"[0-9A-Za-z._-]{1,64}")
"""Name of a platform, of a bridge, and the id of a registration that is relayed."""


def bridge_name(bridge: str) -> str:
    """Name of a bridge, whose processes have ids with a random end."""
    return bridge.rpartition("-")[0] or bridge


@dataclass(frozen=True, kw_only=True)
class InformationType(Entry):
    """Type that a registration publishes: the information object type and a digest of its schema (paper 2.1).

    `local` is the last part of the name: who knows no more asks for that, also before anybody publishes the type.
    """

    entry_name = "jbi.InformationType"
    name: str | None = None
    version: str | None = None
    schema: str | None = None
    local: str | None = None


def local_name(name: str) -> str:
    """Local name of a type: what stands behind its namespace, or behind the last dot."""
    return re.split(r"[}.]", name)[-1]


@dataclass(frozen=True, kw_only=True)
class PublisherAdapterDelegate(Entry):
    """The two arbitrary strings that characterise a delegate (paper 2.4)."""

    entry_name = "jbi.PublisherAdapterDelegate"
    name: str | None = None
    location: str | None = None


@dataclass(frozen=True, kw_only=True)
class SigningKeyEntry(Entry):
    """Key that the objects of a registration are signed with: the fields of a SigningKey in base64, those of its chain
    with a space between."""

    entry_name = "jbi.SigningKey"
    key: str | None = None
    anchor: str | None = None
    chain: str | None = None
    statement: str | None = None
    consent: str | None = None

    @classmethod
    def of(cls, key: SigningKey) -> SigningKeyEntry:
        """The entry for a key."""
        texts = [_base64(part) for part in (key.key, key.anchor, key.statement, key.consent)]
        return cls(
            key=texts[0], anchor=texts[1], chain=" ".join(map(_base64, key.chain)), statement=texts[2], consent=texts[3]
        )

    @classmethod
    def reps(cls, key: SigningKey | None) -> tuple[EntryRep, ...]:
        """The entry for a key, if there is one."""
        return () if key is None else (cls.of(key).rep(),)

    def signing_key(self) -> SigningKey:
        """The key that it stands for. Raises EntryError; whether it holds is another question."""
        said = {
            "key": self.key, "anchor": self.anchor, "chain": (self.chain or "").split(" ", CHAIN_MOST),
            "statement": self.statement, "consent": self.consent,
        }  # fmt: skip
        try:
            return converted(said, SigningKey)
        except msgspec.ValidationError as exc:
            raise EntryError(f"a signing key that can't be read: {exc}", entry_class=self.entry_name) from exc


@dataclass(frozen=True, kw_only=True)
class ArchiveEntry(Entry):
    """On the item of a delegate, or an item of its own of a peer publisher: it has an archive, which takes queries
    (`services.HISTORY`, beside the SUBSCRIPTIONS that sessions are opened with). `types`: the names of the types in it,
    with a space between; unset: they are too many to say, or not known. `incarnation`: see `replies.QueryOpened`."""

    entry_name = "jbi.Archive"
    types: str | None = None
    incarnation: str | None = None


@dataclass(frozen=True, kw_only=True)
class ProvenanceEntry(Entry):
    """Publisher under a registration, and where it is, beside its other entries in an archive, and what goes from there
    to others: see core/combined.Provenance. `addresses` with a space between; `relayed` is set if that is so."""

    entry_name = "jbi.Provenance"
    publisher: str | None = None
    node: str | None = None
    addresses: str | None = None
    owner: str | None = None
    relayed: str | None = None

    @classmethod
    def of(cls, origin: combined.Provenance) -> ProvenanceEntry:
        """The entry for it."""
        return cls(
            publisher=origin.publisher,
            node=origin.node,
            addresses=" ".join(origin.addresses),
            owner=origin.owner,
            relayed="yes" if origin.is_relayed else None,
        )


@dataclass(frozen=True, kw_only=True)
class LocalEntry(Entry):
    """On the item of a registration whose objects are for the subscribers of its delegate alone: a bridge leaves it."""

    entry_name = "jbi.Local"


@dataclass(frozen=True, kw_only=True)
class ExpirationEntry(Entry):
    """On the item of a registration whose objects wait for so many seconds (PublisherRequest.expiration)."""

    entry_name = "jbi.Expiration"
    seconds: str | None = None


@dataclass(frozen=True, kw_only=True)
class PersistentEntry(Entry):
    """On the item of a registration whose publisher wants its objects kept (PublisherRequest.persist)."""

    entry_name = "jbi.Persistent"


@dataclass(frozen=True, kw_only=True)
class TypesEntry(Entry):
    """On the item of a delegate that has a type repository: its export `types` says what is known there."""

    entry_name = "jbi.Types"


@dataclass(frozen=True, kw_only=True)
class SendingEntry(Entry):
    """On the item of a registration whose publisher says how its objects are to go to other nodes and platforms: the
    fields of its Sending that are not the default, and the importance that it has when it is made, or wishes where
    there is no quality of service."""

    entry_name = "jbi.Sending"
    mode: str | None = None
    key: str | None = None
    importance: str | None = None


@dataclass(frozen=True, kw_only=True)
class RelayedEntry(Entry):
    """On the item of a registration that was made on another platform: the fields of its Origin, with a space between
    the names."""

    entry_name = "jbi.Relayed"
    via: str | None = None
    bridge: str | None = None


@dataclass(frozen=True, kw_only=True)
class NumberedEntry(Entry):
    """On the item of such a registration if a number that does not come is an object that did not (Origin.first)."""

    entry_name = "jbi.Numbered"


@dataclass(frozen=True, kw_only=True)
class SparseEntry(Entry):
    """On the item of such a registration if it brings what is wanted alone (Origin.is_sparse)."""

    entry_name = "jbi.Sparse"


OWN_ENTRIES: Final = {
    each.entry_name
    for each in list(globals().values())
    if isinstance(each, type) and issubclass(each, Entry) and each is not Entry
}
"""Classes of entries that a delegate makes, and nobody else: all of this module."""


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


class Origin(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Where a registration comes from that was made on another platform."""

    via: tuple[str, ...]
    """The names of the platforms that its objects have passed, in order: the first one is its publisher's."""
    bridge: str
    """The id of who relays it. It is public: of several bridges one has a registration, and the others see whose it
    is."""
    first: Annotated[int, msgspec.Meta(ge=0, le=2**53)] | None = None
    """From which number on it has all objects; 0: none has come yet. None: it does not say, and of numbers that do not
    come nothing is told (they are times, or the bridge is older than this field)."""
    is_sparse: bool = False
    """Whether what nobody wants is left out, so that a number that does not come is no loss: losses are told."""


def origin_of(entries: Iterable[EntryRep]) -> Origin | None:
    """Origin by the entries of an item; None: its publisher is here. Raises EntryError."""
    known = {rep.cls.name: rep for rep in entries}
    rep = known.get(RelayedEntry.entry_name)
    if rep is None:
        return None
    said = RelayedEntry.from_rep(rep)
    first = 0 if NumberedEntry.entry_name in known else None
    via = tuple((said.via or "").split(" ", HOPS_MOST))
    return Origin(via, said.bridge or "", first, SparseEntry.entry_name in known)
