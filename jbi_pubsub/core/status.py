"""Statuses of servers as typed values: the same keys and shape as on the wire and in JSON.

Servers make them of what they know, and others read them, with bounds: nobody's sums may be spoiled by one server. A
key that a status of another version lacks has its default; one that is not known here is left out. A field says by its
metadata what metric it is (`counter`, `gauge`).
"""

from __future__ import annotations

from collections.abc import Iterator, KeysView, Mapping
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import UNSET, UnsetType

MOST: Final = 10**15
"""The most that a server can have come to, in any unit."""

Count = Annotated[int, msgspec.Meta(ge=0, le=MOST)]
Measure = Annotated[float, msgspec.Meta(ge=0, le=MOST)]
"""A measure: negative numbers, and those that are none, are not believed."""
Moment = Annotated[float, msgspec.Meta(ge=0, le=10**11)]
"""Seconds since the epoch that a calendar knows."""
MaybeCount = Count | UnsetType
MaybeMeasure = Measure | UnsetType
MaybeText = str | UnsetType
"""The same, where the key may be missing."""


class FieldMetric(msgspec.Struct, frozen=True):
    """The metric that a field is shown as; without a name of its own it has the field's."""

    kind: Literal["counter", "gauge"]
    meaning: str
    name: str = ""


def counter(meaning: str, name: str = "") -> msgspec.Meta:
    """Metadata of a number that only grows. As a metric it is `jbi_<name>_total`."""
    return msgspec.Meta(description=meaning, extra={"metric": FieldMetric("counter", meaning, name)})


def gauge(meaning: str, name: str = "") -> msgspec.Meta:
    """Metadata of a number that goes up and down; of a text or truth the metric says whether there is one."""
    return msgspec.Meta(description=meaning, extra={"metric": FieldMetric("gauge", meaning, name)})


class Status(msgspec.Struct, frozen=True, kw_only=True):
    """A part of a status. It reads as the mapping that it is told as, too: without what is not set."""

    def __getitem__(self, name: str) -> Any:
        told = dict(zip(self.__struct_encode_fields__, self.__struct_fields__, strict=True))
        value = getattr(self, told[name])
        if value is UNSET:
            raise KeyError(name)
        return value

    def __iter__(self) -> Iterator[str]:
        names = zip(self.__struct_encode_fields__, self.__struct_fields__, strict=True)
        return (told for told, name in names if getattr(self, name) is not UNSET)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Mapping) and msgspec.to_builtins(self) == msgspec.to_builtins(other)

    def __contains__(self, name: object) -> bool:
        return name in set(self)

    def keys(self) -> KeysView[str]:
        """Keys that are told."""
        return KeysView(self)

    def get(self, name: str, default: Any = None) -> Any:
        """The value of a key; `default` where that is not told."""
        return dict(self).get(name, default)


Mapping.register(Status)


class AuditStatus(Status, frozen=True):
    """The audit log: its file, lines written, lines lost, what is wrong with it."""

    file: MaybeText = UNSET
    written: MaybeCount = UNSET
    lost: MaybeCount = UNSET
    fault: MaybeText = UNSET


class UsersStatus(Status, frozen=True):
    """Where users' passwords are checked: the file with its users, or a directory's URL."""

    file: MaybeText = UNSET
    users: MaybeCount = UNSET
    version: MaybeCount = UNSET
    fault: MaybeText = UNSET
    directory: MaybeText = UNSET


class AccessStatus(Status, frozen=True):
    """The access policy in force; without rules there is nothing of it."""

    file: MaybeText = UNSET
    version: MaybeCount = UNSET
    rules: MaybeCount = UNSET
    """Number of rules."""
    since: MaybeMeasure = UNSET
    """Seconds since they are in force."""
    fault: MaybeText = UNSET
    """Why the file is not in force, with the one of before in its place."""
    refused: dict[str, Count] | UnsetType = UNSET
    """Refusals by action."""
    audit: AuditStatus | UnsetType = UNSET
    users: UsersStatus | UnsetType = UNSET
    contradictions: list[str] | UnsetType = UNSET
    """Rules and policies whose XPaths are never true for a type that is published here, by its schema."""


class Validity(Status, frozen=True):
    """The end of a certificate or list: seconds since the epoch, and days until then; None: it does not say."""

    until: float | None = None
    days: float | None = None


class AuthorityStatus(Validity, frozen=True):
    """A certificate authority's own certificate."""

    name: str = ""


class RevocationsStatus(Validity, frozen=True):
    """A list of revoked certificates."""

    issuer: str = ""
    certificates: Count = 0


class TlsStatus(Status, frozen=True):
    """The certificates in force; without TLS there is nothing of it."""

    identity: MaybeText = UNSET
    """Holder of the certificate."""
    names: list[str] | UnsetType = UNSET
    issuer: MaybeText = UNSET
    serial: MaybeText = UNSET
    """In hexadecimal digits."""
    until: float | UnsetType | None = UNSET
    days: float | UnsetType | None = UNSET
    """Until the certificate ends."""
    ends_soon: bool | UnsetType = UNSET
    authorities: list[AuthorityStatus] | UnsetType = UNSET
    revocations: list[RevocationsStatus] | UnsetType = UNSET
    revoked: bool | UnsetType = UNSET
    problem: MaybeText = UNSET
    """Why files that have changed are not in force."""


class ServerStatus(Status, frozen=True):
    """The part of a status that all servers have."""

    kind: str
    """lookup, delegate, peer, rti, rti link, federation bridge."""
    address: str
    """Host and port where it is reached."""
    uptime: float
    """Seconds."""
    id: str = ""
    pid: Count = 0
    """Number of its process."""
    version: str = ""
    """Release of its software."""
    time: float = 0.0
    """Its clock, in seconds since the epoch."""
    connections: Count = 0
    """Open ones, in and out of calls and data."""
    tls: TlsStatus = TlsStatus()
    threads: Count = 0
    faults: dict[str, Count] = {}
    """Steps of threads that failed unexpectedly, by step."""
    access: AccessStatus = AccessStatus()
