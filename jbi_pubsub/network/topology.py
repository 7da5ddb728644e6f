"""The file of an emulated network: segments, who is on them, what they are like, and how that changes.

A node on a segment has a multicast group or a UDP port of its own, and nobody else's datagrams come there but by the
emulator: so the losses between any two can be decided, though all are on one machine.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from ipaddress import ip_address
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, Final, NamedTuple

import msgspec
from msgspec import UNSET, UnsetType

from jbi_pubsub.core import toml
from jbi_pubsub.core.errors import ConfigurationError
from jbi_pubsub.core.near import near_hint
from jbi_pubsub.core.toml import TomlDocument, TomlError, TomlTable
from jbi_pubsub.core.wire.address import split_endpoint
from jbi_pubsub.network.emulation import HERE
from jbi_pubsub.network.impairments import ImpairmentTerms, Seconds, Share

MEMBERS_MOST: Final = 256
"""Members of a segment."""
CHANGES_MOST: Final = 10_000
_STREAM: Final = ("rate", "delay", "jitter", "down")
"""Terms of a segment of TCP: what it carries is put together again, whatever becomes of datagrams below it."""

Address = tuple[str, int]
_Name = Annotated[str, msgspec.Meta(pattern=r"^[\w.-]{1,64}$")]
Moment = Annotated[float, msgspec.Meta(ge=0, le=1e7)]


class TermsChange(TomlTable, frozen=True):
    """Terms that are other than before; the rest stays."""

    rate: Annotated[float, msgspec.Meta(ge=0, le=1e12)] | UnsetType = UNSET
    queue: Annotated[int, msgspec.Meta(ge=1_500, le=1 << 30)] | UnsetType = UNSET
    loss: Share | UnsetType = UNSET
    burst: Annotated[float, msgspec.Meta(ge=1, le=1e6)] | UnsetType = UNSET
    delay: Seconds | UnsetType = UNSET
    jitter: Seconds | UnsetType = UNSET
    reorder: Share | UnsetType = UNSET
    reorder_seconds: Seconds | UnsetType = UNSET
    duplication: Share | UnsetType = UNSET
    down: bool | UnsetType = UNSET

    def terms(self) -> dict[str, Any]:
        """Those that it says."""
        names = ImpairmentTerms.__struct_fields__
        return {name: value for name in names if (value := getattr(self, name)) is not UNSET}


class SegmentMember(TermsChange, frozen=True):
    """`[segment.NAME.member]`: a multicast group on loopback, or a pair of UDP ports; terms are of what comes to it."""

    group: str = ""
    """GROUP:PORT that its nodes have; several nodes there hear each other as on a switch."""
    at: str = ""
    """HOST:PORT of the emulator, which the node has as its peer."""
    node: str = ""
    """HOST:PORT of the node."""
    nodes: tuple[str, ...] = ()
    """Names of the nodes that are there, for readers; () for one of the member's name."""


class EmulatedSegment(ImpairmentTerms, frozen=True):
    """`[segment.NAME]`: members, or ports of TCP."""

    member: Annotated[dict[_Name, SegmentMember], msgspec.Meta(max_length=MEMBERS_MOST)] = msgspec.field(
        default_factory=dict
    )
    host: Annotated[str, msgspec.Meta(pattern=r"^127\.0\.[0-9]\.[2-9]$")] = "127.0.0.2"
    """Address where `tcp` is found through the emulator, at the same ports: 127.0.0.2 to 127.0.9.9."""
    tcp: Annotated[tuple[str, ...], msgspec.Meta(max_length=MEMBERS_MOST)] = ()
    """HOST:PORT of servers at 127.0.0.1."""
    outages: Annotated[tuple[tuple[Moment, Moment], ...], msgspec.Meta(max_length=CHANGES_MOST)] = ()
    """Seconds from the beginning, from and to."""


class ScriptedChange(TermsChange, frozen=True, kw_only=True):
    """`[[change]]`."""

    at: Moment
    """Seconds from the beginning."""
    segment: str
    member: str = ""
    """To which it comes alone; "": to all that have no terms of their own for that."""


class NetworkTopology(TomlTable, frozen=True):
    """The whole."""

    segment: Annotated[dict[_Name, EmulatedSegment], msgspec.Meta(min_length=1, max_length=MEMBERS_MOST)]
    seed: int = 0
    change: Annotated[tuple[ScriptedChange, ...], msgspec.Meta(max_length=CHANGES_MOST)] = ()

    def changes(self) -> list[ScriptedChange]:
        """The script with the outages, in its order."""
        outages = (
            ScriptedChange(at=at, segment=name, down=is_down)
            for name, segment in self.segment.items()
            for first, last in segment.outages
            for at, is_down in ((first, True), (last, False))
        )
        return sorted(chain(self.change, outages), key=lambda change: change.at)


class ChangedTerms:
    """Terms of a segment and its members as they are now."""

    def __init__(self, segment: EmulatedSegment) -> None:
        self._segment = {name: getattr(segment, name) for name in ImpairmentTerms.__struct_fields__}
        self._members = {name: member.terms() for name, member in segment.member.items()}
        self._made: dict[str, ImpairmentTerms] = {}

    def of(self, member: str = "") -> ImpairmentTerms:
        """Terms of what comes to a member; of one that has a rate of its own that, else none: the segment's is shared.
        "": those of the segment."""
        found = self._made.get(member)
        if found is None:
            own = self._members.get(member, {})
            rate = {"rate": 0.0} if member else {}
            found = self._made[member] = ImpairmentTerms(**(self._segment | rate | own))
        return found

    def change(self, change: ScriptedChange) -> None:
        """Do what a script says."""
        (self._members[change.member] if change.member else self._segment).update(change.terms())
        self._made.clear()


class MemberRow(NamedTuple):
    """A member of a segment, for people."""

    segment: str
    member: str
    nodes: str
    network: str
    """Settings of its nodes' network."""
    terms: str


def read(path: Path) -> NetworkTopology:
    """The topology of a file. Raises ConfigurationError, which names file and place."""
    document = toml.TomlDocument("")
    try:
        document = toml.read(path)
        found = toml.typed(document, NetworkTopology)
    except OSError as exc:
        raise ConfigurationError(f"topology {path}: {exc.strerror}", hint="See docs/emulation.md for one") from exc
    except TomlError as exc:
        exc = _placed(document, exc)
        raise ConfigurationError(
            f"topology {exc.told(path)}", hint=exc.hint or "See docs/emulation.md for one"
        ) from exc
    try:
        check(found)
    except ConfigurationError as exc:
        raise ConfigurationError(f"topology {path}: {exc.message}", hint=exc.hint) from exc
    return found


def _placed(document: TomlDocument, fault: TomlError) -> TomlError:
    """The fault at its place: of tables by name the reader says only that it is in one of them."""
    if fault.key:
        return fault
    for name, segment in _tables(document.get("segment")):
        parts: list[tuple[toml.Where, dict[str, Any], type[Any]]] = [
            (("segment", name, "member", member), each, SegmentMember)
            for member, each in _tables(segment.get("member"))
        ]
        parts.append((("segment", name), segment, EmulatedSegment))
        for where, table, kind in parts:
            try:
                toml.typed(table, kind)
            except TomlError as exc:
                key = re.search(r"`\$\.(\w+)", exc.message)
                return TomlError(exc.message, document.key((*where, *(key.groups() if key else ()))), exc.hint)
    return fault


def _tables(table: object) -> list[tuple[str, dict[str, Any]]]:
    """The tables of a table, by name."""
    found = table.items() if isinstance(table, dict) else ()
    return [(name, each) for name, each in found if isinstance(each, dict)]


def check(topology: NetworkTopology) -> None:
    """Raises ConfigurationError for what can't be emulated."""
    taken: set[tuple[str, Address]] = set()
    for name, segment in topology.segment.items():
        for kind, address, of in _addresses(name, segment):
            if (kind, address) in taken:
                raise ConfigurationError(
                    f"{of}: {address[0]}:{address[1]} is somebody else's as well",
                    hint="A node has a group or port of its own on each segment",
                )
            taken.add((kind, address))
        if segment.tcp:
            _check_stream(name, segment, ImpairmentTerms())
        elif len(segment.member) < 2:
            raise ConfigurationError(
                f"segment {name} has {len(segment.member)} members", hint="It has two at least, or tcp = [...]"
            )
        if any(last <= first for first, last in segment.outages):
            raise ConfigurationError(f"segment {name}: an outage that ends before it begins", hint="It is [from, to]")
    for change in topology.change:
        place = topology.segment.get(change.segment)
        if place is None or (change.member and change.member not in place.member):
            what, known = change.segment, list(topology.segment)
            if place is not None:
                what, known = change.member, list(place.member)
            raise ConfigurationError(
                f"change at {change.at:g} s of {what[:64]!r}, which is not there", hint=near_hint(what, known)
            )


def _check_stream(name: str, segment: EmulatedSegment, plain: ImpairmentTerms) -> None:
    if segment.member:
        raise ConfigurationError(f"segment {name} has both members and tcp", hint="Make two segments of it")
    for term in ImpairmentTerms.__struct_fields__:
        if term not in _STREAM and getattr(segment, term) != getattr(plain, term):
            raise ConfigurationError(
                f"segment {name}: {term} of TCP", hint=f"A stream is whole: it has {', '.join(_STREAM)} and outages"
            )


def _addresses(name: str, segment: EmulatedSegment) -> Iterator[tuple[str, Address, str]]:
    """Addresses of a segment with whose they are. Raises ConfigurationError."""
    for member, each in segment.member.items():
        of = f"segment {name}, member {member}"
        if bool(each.group) == bool(each.at) or bool(each.at) != bool(each.node):
            raise ConfigurationError(
                f"{of}: it is either at a group or between two ports",
                hint='Give group = "239.192.1.1:47001", or at = "127.0.0.1:47001" and node = "127.0.0.1:47002"',
            )
        for address in filter(None, (each.group, each.at, each.node)):
            yield "udp", address_of(address, of, is_group=bool(each.group)), of
    for address in segment.tcp:
        of = f"segment {name}"
        host, port = address_of(address, of)
        if host != HERE.decode():
            raise ConfigurationError(f"{of}: {host} is not {HERE.decode()}", hint="Servers of TCP are at that address")
        yield "tcp", (segment.host, port), of


def address_of(text: str, of: str, *, is_group: bool = False) -> Address:
    """A multicast group of IPv4, or an address of loopback, with its port. Raises ConfigurationError."""
    try:
        host, port = split_endpoint(text)
        where = ip_address(host)
        fits = (where.is_multicast and where.version == 4) if is_group else where.is_loopback
    except ValueError:
        fits = False
    if not fits:
        good = "239.192.1.1:47001" if is_group else "127.0.0.1:47001"
        raise ConfigurationError(f"{of}: {text[:80]!r} can't be used", hint=f"All is on one machine: like {good}")
    return host, port


def rows(topology: NetworkTopology) -> list[MemberRow]:
    """Members, where they are, and what comes to each is like."""
    found = []
    for name, segment in topology.segment.items():
        terms = ChangedTerms(segment)
        for member, each in segment.member.items():
            if each.group:
                group, port = address_of(each.group, "", is_group=True)
                network = f'group = "{group}", port = {port}, interfaces = ["lo"]'
            else:
                network = f'peers = ["{each.at}"], port = {address_of(each.node, "")[1]}'
            whole = msgspec.structs.replace(terms.of(member), rate=terms.of(member).rate or segment.rate)
            found.append(MemberRow(name, member, ", ".join(each.nodes or (member,)), network, told(whole)))
        for address in segment.tcp:
            through = f"{segment.host}:{address_of(address, '')[1]}"
            found.append(MemberRow(name, "", "", f"{through} leads to {address}", told(terms.of())))
    return found


def told(terms: ImpairmentTerms | TermsChange) -> str:
    """Terms in a line: those that are not as usual, or that have changed."""
    if isinstance(terms, TermsChange):
        said = terms.terms()
    else:
        plain = ImpairmentTerms()
        names = ImpairmentTerms.__struct_fields__
        said = {name: getattr(terms, name) for name in names if getattr(terms, name) != getattr(plain, name)}
    words = [_word(name, value) for name, value in said.items()]
    return ", ".join(words) or "perfect"


def _word(name: str, value: float | bool) -> str:
    if isinstance(value, bool):
        return "down" if value else "up"
    unit = {"rate": " B/s", "queue": " B", "delay": " s", "jitter": " s", "reorder_seconds": " s"}.get(name, "")
    return f"{name} {value:g}{unit}"
